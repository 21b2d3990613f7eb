#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "source/beside.h"

#include "base/banned.h"

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

/* Whoever writes a log opens it for writing alone. */
static bool is_for_both(int fd)
{
    const int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && (flags & O_ACCMODE) == O_RDWR;
}

bool once_may_be_locked(const char *name, const struct stat *file)
{
    if (is_sidecar(name)) return true;
    DIR *folder = opendir("/proc/self/fd");
    if (!folder) return true;
    bool found = false;
    for (const struct dirent *at; !found && (at = readdir(folder));) {
        struct stat st;
        if (at->d_name[0] == '.' || fstatat(dirfd(folder), at->d_name, &st, 0) != 0) continue;
        found = st.st_dev == file->st_dev && st.st_ino == file->st_ino && is_for_both((int)strtol(at->d_name, NULL, 10));
    }
    closedir(folder);
    return found;
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
