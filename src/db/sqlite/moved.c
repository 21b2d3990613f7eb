/* Notices when the files of a connection are no longer those at their paths.
 *
 * A file that was deleted, renamed or replaced stays open, and SQLite goes on writing to it. Nobody who opens the path
 * will find what is committed from then on, nor what was committed before: the next run would repeat all of it.
 *
 * SQLite compares the inode at its path with that of the open file (SQLITE_FCNTL_HAS_MOVED). Its path has symbolic
 * links resolved, and it does not compare the device. So the path as it was given is compared as well. The -wal and
 * -shm files keep their inodes as long as a connection is open: only the last one that closes removes them. Nothing is
 * opened here: closing any descriptor of a file would drop the process's POSIX locks on it. */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/beside.h"
#include "db/sqlite/sqlite.h"

#include "base/banned.h"

static bool is_unix_vfs(sqlite3 *handle)
{
    sqlite3_vfs *vfs = NULL;
    if (sqlite3_file_control(handle, "main", SQLITE_FCNTL_VFS_POINTER, &vfs) != SQLITE_OK || !vfs) return false;
    return strncmp(vfs->zName, "unix", 4) == 0;
}

/* The absolute path, because the program may change its working directory. Links are not resolved. */
static char *from_root(const char *path)
{
    char folder[PATH_MAX];
    char *whole = NULL;
    if (path[0] == '/') return strdup(path);
    if (!getcwd(folder, sizeof folder)) return NULL;
    return asprintf(&whole, "%s/%s", folder, path) < 0 ? NULL : whole;
}

static bool note(once_sqlite_place *place, const char *path)
{
    struct stat file;
    if (stat(path, &file) != 0) return false;
    *place = (once_sqlite_place){.known = true, .device = file.st_dev, .inode = file.st_ino};
    return true;
}

void once__sqlite_note_place(once_sqlite_db *db)
{
    const char *path = sqlite3_db_filename(db->handle, "main");
    if (!path || !path[0] || !is_unix_vfs(db->handle)) return; /* in memory, temporary, or not in the file system */
    db->place_path = from_root(db->path);
    if (db->place_path) note(&db->place, db->place_path);
}

/* Whether the path now leads to another file than was noted, or to none. */
static bool differs(const once_sqlite_place *place, const char *path)
{
    struct stat file;
    return stat(path, &file) != 0 || file.st_dev != place->device || file.st_ino != place->inode;
}

static bool sidecar_lost(once_sqlite_place *place, const char *path)
{
    if (!place->known) {
        note(place, path); /* it does not exist when the file is not in WAL mode */
        return false;
    }
    return differs(place, path);
}

static const char *file_of(once_sqlite_db *db) { return sqlite3_db_filename(db->handle, "main"); }

static bool file_moved(once_sqlite_db *db)
{
    assert(db->place.known && db->place_path);
    int moved = 0;
    const int code = sqlite3_file_control(db->handle, "main", SQLITE_FCNTL_HAS_MOVED, &moved);
    return (code == SQLITE_OK && moved) || differs(&db->place, db->place_path);
}

static void sidecar_name(once_sqlite_db *db, const char *end, char out[PATH_MAX + 8])
{
    (void)snprintf(out, PATH_MAX + 8, "%s%s", file_of(db), end);
}

bool once__sqlite_moved(once_sqlite_db *db)
{
    char name[PATH_MAX + 8];
    if (!db->place.known) return false;
    if (file_moved(db)) return true;
    sidecar_name(db, "-wal", name);
    if (sidecar_lost(&db->wal_place, name)) return true;
    sidecar_name(db, "-shm", name);
    return sidecar_lost(&db->shm_place, name);
}

/* ---- reporting it ---- */

/* Finds the descriptor of the open file, and its path if it still has one. */
static int find_open(const once_sqlite_place *place, char now[PATH_MAX], bool *deleted)
{
    DIR *folder = opendir("/proc/self/fd");
    int found = -1;
    for (const struct dirent *at; folder && found < 0 && (at = readdir(folder));) {
        struct stat file;
        if (fstatat(dirfd(folder), at->d_name, &file, 0) != 0 || file.st_dev != place->device ||
            file.st_ino != place->inode)
            continue;
        const ssize_t len = readlinkat(dirfd(folder), at->d_name, now, PATH_MAX - 1);
        if (len < 0) continue;
        now[len] = '\0';
        *deleted = file.st_nlink == 0;
        found = (int)strtol(at->d_name, NULL, 10);
    }
    if (folder) closedir(folder);
    return found;
}

/* The copy may replace the store's file, so it gets the same journal mode. */
static void use_wal(const char *path)
{
    sqlite3 *copy;
    once_database_opening();
    const int code = sqlite3_open_v2(path, &copy, SQLITE_OPEN_READWRITE, NULL);
    once_database_opened();
    if (code == SQLITE_OK) sqlite3_exec(copy, "PRAGMA journal_mode = WAL", NULL, NULL, NULL);
    sqlite3_close(copy);
}

/* Creates an empty file with a new name that only this user may read: it will hold bodies. */
static char *new_name(const char *path)
{
    for (int i = 1; i < 10; i++) {
        char *name = NULL;
        if (asprintf(&name, i == 1 ? "%s.rescued-%ld" : "%s.rescued-%ld-%d", path, (long)getpid(), i) < 0) return NULL;
        const int fd = open(name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
        if (fd >= 0) {
            close(fd);
            return name;
        }
        free(name);
        if (errno != EEXIST) return NULL;
    }
    return NULL;
}

static char *copy_beside(once_sqlite_db *db, const char *path)
{
    char *name = new_name(path);
    char *sql = name ? sqlite3_mprintf("VACUUM INTO %Q", name) : NULL;
    const bool done = sql && sqlite3_exec(db->handle, sql, NULL, NULL, NULL) == SQLITE_OK;
    sqlite3_free(sql);
    if (done) {
        if (db->wal_place.known) use_wal(name);
        return name;
    }
    if (name) unlink(name);
    free(name);
    return NULL;
}

/* When this process ends, the last descriptor of a deleted file is closed, and its contents are gone. So a copy is
 * made: beside it, or in the working directory when that folder is gone as well. Once, because nothing more is
 * committed. */
static const char *rescue(once_sqlite_db *db)
{
    if (db->rescued) return db->rescued;
    if (db->borrowed || db->stop || sqlite3_db_readonly(db->handle, "main") != 0 || !sqlite3_get_autocommit(db->handle))
        return NULL;
    db->rescued = copy_beside(db, db->place_path);
    if (!db->rescued) db->rescued = copy_beside(db, strrchr(db->place_path, '/') + 1);
    return db->rescued;
}

static int say_sidecar(once_sqlite_db *db, once_error *err)
{
    char name[PATH_MAX + 8];
    sidecar_name(db, "-wal", name);
    const char *which = differs(&db->wal_place, name) ? "-wal" : "-shm";
    return once_fail(err, ONCE_E_MOVED,
                     "file '%.150s': its '%s' file was deleted or replaced while it was in use; nothing more is "
                     "acknowledged: stop everything"
                     " that uses the file, then run again",
                     db->path, which);
}

int once__sqlite_say_moved(once_sqlite_db *db, once_error *err)
{
    char now[PATH_MAX] = "";
    bool deleted = false;
    if (!file_moved(db)) return say_sidecar(db, err);
    const int fd = find_open(&db->place, now, &deleted);
    struct stat file;
    const char *what = stat(db->place_path, &file) == 0 ? "was replaced by another file while it was in use"
                                                        : "was deleted or renamed while it was in use";
    if (fd >= 0 && !deleted)
        return once_fail(
            err, ONCE_E_MOVED,
            "file '%.120s': %s, and is '%.120s' now; nothing more is acknowledged: stop everything that uses"
            " it, put it back and run again",
            db->path, what, now);
    const char *kept = deleted ? rescue(db) : NULL;
    if (kept)
        return once_fail(err, ONCE_E_MOVED,
                         "file '%.120s': %s; nothing more is acknowledged: stop everything that uses it. What was"
                         " committed is kept in '%.140s': put that in its place and run again",
                         db->path, what, kept);
    return once_fail(
        err, ONCE_E_MOVED,
        "file '%.120s': %s; nothing more is acknowledged: stop everything that uses it. What was committed is"
        " in the deleted file, which process %ld holds at /proc/%ld/fd/%d until it ends",
        db->path, what, (long)getpid(), (long)getpid(), fd);
}

int once__sqlite_unmoved(once_sqlite_db *db, once_error *err)
{
    return once__sqlite_moved(db) ? once__sqlite_say_moved(db, err) : ONCE_OK;
}
