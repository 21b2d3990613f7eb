/* The folder of a file as it was at one moment, while other programs rename files in it.
 *
 * Reading a folder takes a while. A file that is renamed meanwhile, from a name that comes later to one that was read
 * already, would not be seen at all. So the folder is read until two readings in a row are the same: then each name is
 * what it was at the end of the first of them. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/beside.h"
#include "base/no_memory.h"
#include "source/file_impl.h"

#include "base/banned.h"

const char *once__file_name_in(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* A number or a date: digits and what divides them. */
static bool is_number(const char *text, size_t len)
{
    size_t digits = 0, others = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] >= '0' && text[i] <= '9') digits++;
        else if (!strchr(".-_:TZ", text[i])) others++;
    }
    return digits > 0 && others == 0;
}

rotation once__file_kind_of_name(const char *name, const char *entry)
{
    static const char *const packed[] = {".gz", ".bz2", ".xz", ".zst", ".lz4", ".Z"};
    rotation kind = ROTATION_READABLE;
    size_t len = strlen(entry);
    const size_t size = strlen(name);
    for (size_t i = 0; i < sizeof packed / sizeof *packed && kind == ROTATION_READABLE; i++) {
        const size_t end = strlen(packed[i]);
        if (len <= end || memcmp(entry + len - end, packed[i], end) != 0) continue;
        kind = ROTATION_PACKED;
        len -= end;
    }
    if (len > size && memcmp(entry, name, size) == 0)
        return is_number(entry + size, len - size) || (len - size == 4 && memcmp(entry + size, ".old", 4) == 0)
                   ? kind
                   : ROTATION_NONE;
    const char *dot = strrchr(name, '.');
    const size_t stem = dot ? (size_t)(dot - name) : size, end = size - stem;
    if (stem == 0 || end == 0 || len <= size || memcmp(entry, name, stem) != 0 ||
        memcmp(entry + len - end, dot, end) != 0)
        return ROTATION_NONE;
    return is_number(entry + stem, len - size) ? kind : ROTATION_NONE;
}

static int bad_folder(const file_source *f, int error, once_error *err)
{
    return once__file_bad(f, ONCE_E_UNAVAILABLE, "cannot look through its folder", error, err);
}

/* `dir` NULL: the folder may not be listed, and nothing is found there. */
static int open_folder(const file_source *f, DIR **dir, once_error *err)
{
    const char *name = once__file_name_in(f->path);
    char *path = name == f->path ? strdup(".") : strndup(f->path, (size_t)(name - f->path));
    if (!path) return once_no_memory(err, "for the folder of '%s'", f->path);
    *dir = opendir(path);
    const int error = errno;
    free(path);
    return *dir || error == EACCES || error == ENOENT || error == ENOTDIR ? ONCE_OK : bad_folder(f, error, err);
}

static void drop_names(folder *list)
{
    for (size_t i = 0; i < list->n; i++) free(list->names[i].name);
    free(list->names);
    *list = (folder){0};
}

static bool add_name(folder *list, const char *name, bool counts, const struct stat *st)
{
    if (list->n == list->room) {
        const size_t room = list->room ? list->room * 2 : 16;
        folder_name *more = reallocarray(list->names, room, sizeof *more);
        if (!more) return false;
        list->names = more;
        list->room = room;
    }
    char *copy = strdup(name);
    if (copy)
        list->names[list->n++] =
            (folder_name){.name = copy, .counts = counts, .device = st->st_dev, .inode = st->st_ino};
    return copy;
}

/* Names that begin with the path's may be copies. Whether the folder is unchanged depends only on names that
 * rotation makes: a store may be there, too, whose journal comes and goes. */
static int add_entry(const file_source *f, folder *list, const struct dirent *entry, uint64_t inode, once_error *err)
{
    const char *own = once__file_name_in(f->path);
    struct stat st;
    const bool counts = entry->d_ino == inode || strcmp(entry->d_name, own) == 0 ||
                        once__file_kind_of_name(own, entry->d_name) != ROTATION_NONE;
    if (!counts && strncmp(entry->d_name, own, strlen(own)) != 0) return ONCE_OK;
    if (fstatat(dirfd(list->dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
        if (errno != ENOENT) return bad_folder(f, errno, err);
        return counts ? ONCE_E_ABORTED : ONCE_OK;
    }
    return add_name(list, entry->d_name, counts, &st) ? ONCE_OK : once_no_memory(err, "for names of a folder");
}

static int read_names(const file_source *f, folder *list, uint64_t inode, once_error *err)
{
    int rc = ONCE_OK;
    rewinddir(list->dir);
    for (struct dirent *entry; rc == ONCE_OK;) {
        errno = 0;
        if (!(entry = readdir(list->dir))) return errno ? bad_folder(f, errno, err) : ONCE_OK;
        rc = add_entry(f, list, entry, inode, err);
    }
    return rc;
}

static size_t next_that_counts(const folder *list, size_t i)
{
    while (i < list->n && !list->names[i].counts) i++;
    return i;
}

static bool are_same(const folder *a, const folder *b)
{
    for (size_t i = 0, k = 0;; i++, k++) {
        i = next_that_counts(a, i);
        k = next_that_counts(b, k);
        if (i == a->n || k == b->n) return i == a->n && k == b->n;
        const folder_name *x = &a->names[i], *y = &b->names[k];
        if (x->device != y->device || x->inode != y->inode || strcmp(x->name, y->name) != 0) return false;
    }
}

/* ONCE_E_ABORTED: something was renamed meanwhile. */
static int look_once(const file_source *f, DIR *dir, uint64_t inode, folder_look *look, void *user, once_error *err)
{
    folder first = {.dir = dir}, list = {.dir = dir};
    int rc = read_names(f, &first, inode, err);
    if (rc == ONCE_OK) rc = read_names(f, &list, inode, err);
    if (rc == ONCE_OK && !are_same(&first, &list)) rc = ONCE_E_ABORTED;
    if (rc == ONCE_OK) rc = look(f, &list, user, err);
    drop_names(&first);
    drop_names(&list);
    return rc;
}

int once__file_look_through(const file_source *f, uint64_t inode, folder_look *look, void *user, once_error *err)
{
    DIR *dir = NULL;
    int rc = open_folder(f, &dir, err);
    if (rc != ONCE_OK || !dir) return rc;
    rc = ONCE_E_ABORTED;
    for (int i = 0; i < FOLDER_TRIES && rc == ONCE_E_ABORTED; i++) {
        if (i) once_env_sleep_ms(f->base.env, FOLDER_PAUSE_MS);
        rc = look_once(f, dir, inode, look, user, err);
    }
    closedir(dir);
    return rc == ONCE_E_ABORTED ? once__file_renamed_too_often(f, err) : rc;
}

int once__file_renamed_too_often(const file_source *f, once_error *err)
{
    return once_fail(err, ONCE_E_UNAVAILABLE,
                     "source '%s': files in its folder are renamed all the time, so it is not known which files are "
                     "there",
                     f->path);
}

/* Whether there is nothing to read, in any way. */
static bool is_unreadable(int error) { return error == EACCES || error == EPERM || error == ELOOP || error == ENXIO; }

int once__file_open_other(const file_source *f, const folder *list, size_t i, int *fd, struct stat *st, once_error *err)
{
    assert(i < list->n);
    const folder_name *n = &list->names[i];
    *fd = -1;
    if (strcmp(n->name, once__file_name_in(f->path)) == 0) return ONCE_OK;
    const int at = openat(dirfd(list->dir), n->name, O_PATH | O_CLOEXEC | O_NOFOLLOW);
    if (at < 0 && errno == ENOENT) return n->counts ? ONCE_E_ABORTED : ONCE_OK;
    if (at < 0) return bad_folder(f, errno, err);
    int rc = fstat(at, st) == 0 ? ONCE_OK : bad_folder(f, errno, err);
    if (rc == ONCE_OK && n->counts && (st->st_dev != n->device || st->st_ino != n->inode)) rc = ONCE_E_ABORTED;
    if (rc == ONCE_OK && S_ISREG(st->st_mode) && !once_may_be_locked(n->name, st) && (*fd = once_reopen(at)) < 0 &&
        !is_unreadable(errno))
        rc = bad_folder(f, errno, err);
    close(at);
    return rc;
}
