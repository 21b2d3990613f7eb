/* Which files this process has open, and closing those that are not databases (base/beside.h). */
#include "base/beside.h"

#include <assert.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/banned.h"

/* Held while a database is opened, and from the check of a file until its close. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Under the lock: descriptors that could not be closed yet. Any beyond this number stay open until the process ends. */
enum { KEPT_MAX = 64 };
static int kept[KEPT_MAX];
static size_t n_kept;

static bool is_sidecar(const char *name)
{
    static const char *const ends[] = {"-wal", "-shm", "-journal"};
    const size_t len = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const size_t end = strlen(ends[i]);
        if (len > end && memcmp(name + len - end, ends[i], end) == 0) return true;
    }
    return false;
}

/* A database is open for reading and writing, or its content tells. A log is open only for writing or only for reading.
 */
static bool is_of_database(int fd)
{
    const int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && !(flags & O_PATH) &&
           ((flags & O_ACCMODE) == O_RDWR || ((flags & O_ACCMODE) == O_RDONLY && once_is_database(fd)));
}

static bool is_kept(int fd)
{
    for (size_t i = 0; i < n_kept; i++)
        if (kept[i] == fd) return true;
    return false;
}

typedef enum finding { NOT_OPEN, OPEN, NOT_KNOWN } finding;

/* Whether other code has the file open as a database. Not counted: `but`, and, if the lock is held, kept descriptors.
 * */
static finding look_for(const struct stat *file, int but, bool locked)
{
    DIR *folder = opendir("/proc/self/fd");
    if (!folder) return NOT_KNOWN;
    finding found = NOT_OPEN;
    for (const struct dirent *at; found == NOT_OPEN && (at = readdir(folder));) {
        struct stat st;
        if (at->d_name[0] == '.' || fstatat(dirfd(folder), at->d_name, &st, 0) != 0) continue;
        const int fd = (int)strtol(at->d_name, NULL, 10);
        if (st.st_dev != file->st_dev || st.st_ino != file->st_ino || fd == but || (locked && is_kept(fd))) continue;
        if (is_of_database(fd)) found = OPEN;
    }
    closedir(folder);
    return found;
}

bool once_may_be_locked(const char *name, const struct stat *file)
{
    return is_sidecar(name) || look_for(file, -1, false) != NOT_OPEN;
}

int once_reopen(int path_fd)
{
    char name[40];
    (void)snprintf(name, sizeof name, "/proc/self/fd/%d", path_fd);
    return open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

bool once_is_database(int fd)
{
    static const char magic[16] = "SQLite format 3";
    char head[sizeof magic];
    return pread(fd, head, sizeof head, 0) == sizeof head && memcmp(head, magic, sizeof head) == 0;
}

/* If the system does not tell which files are open, a file counts as a database by its first bytes; an empty one may
 * become one. */
static bool would_drop_locks(int fd)
{
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) return false;
    const finding found = look_for(&st, fd, true);
    return found == OPEN || (found == NOT_KNOWN && (st.st_size == 0 || once_is_database(fd)));
}

static void close_kept(void)
{
    size_t n = 0;
    for (size_t i = 0; i < n_kept; i++) {
        if (would_drop_locks(kept[i])) kept[n++] = kept[i];
        else close(kept[i]);
    }
    assert(n <= n_kept);
    n_kept = n;
}

/* Drops the locks of the open file description, as closing it would. */
static void keep(int fd)
{
    assert(fd >= 0 && !is_kept(fd));
    struct flock whole = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
    (void)fcntl(fd, F_OFD_SETLK, &whole);
    if (n_kept < KEPT_MAX) kept[n_kept++] = fd;
}

void once_close_beside(const once_env *env, int fd)
{
    pthread_mutex_lock(&lock);
    close_kept();
    if (would_drop_locks(fd)) keep(fd);
    else if (env) env->close(env->self, fd);
    else close(fd);
    pthread_mutex_unlock(&lock);
}

void once_database_opening(void) { pthread_mutex_lock(&lock); }

void once_database_opened(void) { pthread_mutex_unlock(&lock); }
