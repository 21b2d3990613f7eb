/* Looking for a file that has lost its path: in its folder, by its inode, or as a copy by what is in it. */
#include <assert.h>
#include <string.h>

#include "base/beside.h"
#include "source/file_impl.h"

#include "base/banned.h"

/* A device may have another number after a mount, or on another host; then the first bytes decide. */
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

typedef struct sought {
    const once_place *place;
    look_for what;
    int fd; /* -1: not found */
} sought;

static bool is_sought(const file_source *f, const sought *s, const struct stat *st, int fd)
{
    return s->what == ITSELF ? once__file_is(s->place, st->st_dev, st->st_ino, fd) : is_copy(f, s->place, st, fd);
}

static int look_for_file(const file_source *f, const folder *list, void *user, once_error *err)
{
    sought *s = user;
    const char *name = once__file_name_in(f->path);
    int rc = ONCE_OK;
    for (size_t i = 0; rc == ONCE_OK && s->fd < 0 && i < list->n; i++) {
        const folder_name *n = &list->names[i];
        struct stat st;
        int fd;
        if (s->what == ITSELF ? n->inode != s->place->inode : strncmp(n->name, name, strlen(name)) != 0) continue;
        rc = once__file_open_other(f, list, i, &fd, &st, err);
        if (rc != ONCE_OK || fd < 0) continue;
        if (is_sought(f, s, &st, fd)) s->fd = fd;
        else once_close_beside(NULL, fd);
    }
    return rc;
}

static int find_in_folder(const file_source *f, const once_place *place, look_for what, int *fd, once_error *err)
{
    sought s = {.place = place, .what = what, .fd = -1};
    const int rc = once__file_look_through(f, place->inode, look_for_file, &s, err);
    *fd = s.fd;
    return rc;
}

/* By its inode. Only when no file has that, by its content, among files whose names begin with the path's. Returns a
 * descriptor, or -1: it is not there. */
int once__file_find(const file_source *f, const once_place *place, bool copies, int *fd, once_error *err)
{
    assert(place->number > 0);
    const int rc = find_in_folder(f, place, ITSELF, fd, err);
    return rc == ONCE_OK && *fd < 0 && copies ? find_in_folder(f, place, COPY, fd, err) : rc;
}

int once__file_is_elsewhere(const file_source *f, const once_place *place, bool *is, once_error *err)
{
    int fd;
    const int rc = once__file_find(f, place, false, &fd, err);
    if (fd >= 0) once_close_beside(NULL, fd);
    *is = fd >= 0;
    return rc;
}
