/* Looking for a file that has lost its path: in its folder, by its inode, or as a copy by what is in it. */
#include <assert.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/beside.h"
#include "source/file_impl.h"

#include "base/banned.h"

const char *once__file_name_in(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

DIR *once__file_folder(const file_source *f)
{
    const char *name = once__file_name_in(f->path);
    char *folder = name == f->path ? strdup(".") : strndup(f->path, (size_t)(name - f->path));
    DIR *dir = folder ? opendir(folder) : NULL;
    free(folder);
    return dir;
}

/* A regular file of the folder, which is not the one that the path names; -1: it is none, cannot be read, or is to be
 * left alone: a store may lie in the folder, too. */
int once__file_open_other(const file_source *f, DIR *dir, const char *name, struct stat *st)
{
    if (strcmp(name, once__file_name_in(f->path)) == 0) return -1;
    const int at = openat(dirfd(dir), name, O_PATH | O_CLOEXEC | O_NOFOLLOW);
    if (at < 0) return -1;
    const bool fine = fstat(at, st) == 0 && S_ISREG(st->st_mode) && !once_may_be_locked(name, st);
    const int fd = fine ? once_reopen(at) : -1;
    close(at);
    return fd;
}

/* A device may have another number after a mount, or on another machine; then the first bytes have to say it. */
bool once__file_is(const once_place *place, uint64_t device, uint64_t inode, int fd)
{
    return place->inode == inode && (place->device == device || place->head_len > 0) && once_place_head_fits(fd, place);
}

/* Whether it is one of these files, under another number. */
static bool is_other_number(const once_place *p, uint64_t number, const struct stat *st, int fd)
{
    return p->number != number && (p->head_len > 0 || st->st_size == 0) &&
           once__file_is(p, st->st_dev, st->st_ino, fd) && once_place_fits(fd, p);
}

static bool has_other_number(const file_source *f, uint64_t number, const struct stat *st, int fd)
{
    bool other = false;
    for (size_t i = 0; i < f->n && !other; i++) other = is_other_number(&f->files[i].place, number, st, fd);
    for (size_t i = 0; i < f->known.n && !other; i++) other = is_other_number(&f->known.at[i], number, st, fd);
    return other;
}

/* The files before and after it may begin with the same bytes; they are no copies of it. */
static bool is_copy(const file_source *f, const once_place *place, const struct stat *st, int fd)
{
    return st->st_ino != place->inode && place->head_len > 0 && once_place_fits(fd, place) &&
           !has_other_number(f, place->number, st, fd);
}

typedef enum look_for { ITSELF, COPY } look_for;

static int find_in_folder(const file_source *f, const once_place *place, look_for what)
{
    DIR *dir = once__file_folder(f);
    const char *name = once__file_name_in(f->path);
    int found = -1;
    if (!dir) return -1;
    for (struct dirent *entry; found < 0 && (entry = readdir(dir));) {
        struct stat st;
        if (what == ITSELF ? entry->d_ino != place->inode : strncmp(entry->d_name, name, strlen(name)) != 0) continue;
        const int fd = once__file_open_other(f, dir, entry->d_name, &st);
        if (fd < 0) continue;
        if (what == ITSELF ? once__file_is(place, st.st_dev, st.st_ino, fd) : is_copy(f, place, &st, fd)) found = fd;
        else once_close_beside(NULL, fd);
    }
    closedir(dir);
    return found;
}

/* By its inode; only when no file has that, by what is in it, when the name begins as the path's does. Returns a
 * descriptor, or -1. */
int once__file_find(const file_source *f, const once_place *place, bool copies)
{
    assert(place->number > 0);
    const int found = find_in_folder(f, place, ITSELF);
    return found < 0 && copies ? find_in_folder(f, place, COPY) : found;
}

bool once__file_is_elsewhere(const file_source *f, const once_place *place)
{
    const int fd = once__file_find(f, place, false);
    if (fd >= 0) once_close_beside(NULL, fd);
    return fd >= 0;
}
