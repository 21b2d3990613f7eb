/* Files that had the path in between, and lost it before they were seen: found in the folder, by their names and times.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/beside.h"
#include "base/log.h"
#include "source/file_impl.h"

#include "base/banned.h"

static bool is_before(struct timespec a, struct timespec b)
{
    return a.tv_sec != b.tv_sec ? a.tv_sec < b.tv_sec : a.tv_nsec < b.tv_nsec;
}

/* {0, 0}: the file system has no birth times. */
static struct timespec born(int fd)
{
    struct statx st;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_BTIME, &st) != 0 || !(st.stx_mask & STATX_BTIME))
        return (struct timespec){0};
    return (struct timespec){.tv_sec = st.stx_btime.tv_sec, .tv_nsec = (long)st.stx_btime.tv_nsec};
}

static bool is_known_file(const file_source *f, const rotated *r)
{
    bool known = false;
    for (size_t i = 0; i < f->n && !known; i++)
        known = f->files[i].place.inode == r->st.st_ino && f->files[i].place.device == r->st.st_dev;
    /* an empty file does not identify the one that has its inode now */
    for (size_t i = 0; i < f->known.n && !known; i++)
        known = once__file_is(&f->known.at[i], r->st.st_dev, r->st.st_ino, r->fd) &&
                (f->known.at[i].head_len > 0 || r->st.st_size == 0);
    return known;
}

/* In the order in which they were written to for the last time; the newest of too many are found again later. */
static void insert_rotated(between *list, const rotated *r)
{
    assert(list->n <= ONCE_FILES_MAX && r->fd >= 0);
    size_t at = list->n;
    while (at > 0 && is_before(r->st.st_mtim, list->at[at - 1].st.st_mtim)) at--;
    if (at == ONCE_FILES_MAX) {
        once_close_beside(NULL, r->fd);
        return;
    }
    if (list->n == ONCE_FILES_MAX) once_close_beside(NULL, list->at[--list->n].fd);
    memmove(&list->at[at + 1], &list->at[at], (list->n - at) * sizeof *list->at);
    list->at[at] = *r;
    list->n++;
}

void once__file_drop_between(between *list)
{
    while (list->n) once_close_beside(NULL, list->at[--list->n].fd);
}

typedef struct bounds {
    struct stat old, now;
    struct timespec old_born;
    between *found;
    char packed[300]; /* names of compressed ones, which are not read; empty: there are none */
} bounds;

static bool is_file(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev;
}

static void add_packed(bounds *b, const char *name)
{
    const size_t len = strlen(b->packed);
    if (len + strlen(name) + 5 <= sizeof b->packed)
        (void)snprintf(b->packed + len, sizeof b->packed - len, "%s'%s'", len ? ", " : "", name);
}

static void keep_or_close(const file_source *f, const rotated *r, rotation kind, const char *name, bounds *b)
{
    const bool later = !is_before(r->st.st_mtim, b->old.st_mtim) && !is_before(born(r->fd), b->old_born);
    /* A compressed file keeps the time of its original: with the same time it is `old`. */
    if (kind == ROTATION_PACKED && later && is_before(b->old.st_mtim, r->st.st_mtim)) add_packed(b, name);
    if (kind == ROTATION_READABLE && later && !is_file(&r->st, &b->old) && !is_file(&r->st, &b->now) &&
        !is_known_file(f, r))
        insert_rotated(b->found, r);
    else once_close_beside(NULL, r->fd);
}

static int look_between(const file_source *f, const folder *list, void *user, once_error *err)
{
    bounds *b = user;
    int rc = ONCE_OK;
    once__file_drop_between(b->found); /* of a look before, in which something was renamed */
    *b->packed = '\0';
    for (size_t i = 0; rc == ONCE_OK && i < list->n; i++) {
        const char *name = list->names[i].name;
        const rotation kind = once__file_kind_of_name(once__file_name_in(f->path), name);
        rotated r;
        if (kind == ROTATION_NONE) continue;
        rc = once__file_open_other(f, list, i, &r.fd, &r.st, err);
        if (rc == ONCE_OK && r.fd >= 0) keep_or_close(f, &r, kind, name, b);
    }
    return rc;
}

int once__file_find_between(const file_source *f, int old, int now, between *found, once_error *err)
{
    assert(old >= 0 && now >= 0);
    bounds b = {.found = found, .old_born = born(old)};
    found->n = 0;
    if (fstat(old, &b.old) != 0 || fstat(now, &b.now) != 0)
        return once__file_bad(f, ONCE_E_IO, "cannot stat", errno, err);
    const int rc = once__file_look_through(f, 0, look_between, &b, err);
    if (rc != ONCE_OK) once__file_drop_between(found);
    else if (*b.packed)
        once_log(ONCE_LOG_WARN, "source_lost",
                 "source '%s': %s may have had the path in between, compressed; what is in there is not read", f->path,
                 b.packed);
    return rc;
}

int once__file_take_between(file_source *f, between *list, once_error *err)
{
    int rc = ONCE_OK;
    for (size_t i = 0; i < list->n; i++) {
        const int fd = list->at[i].fd;
        assert(fd >= 0 && (i == 0 || !is_before(list->at[i].st.st_mtim, list->at[i - 1].st.st_mtim)));
        if (rc == ONCE_OK && once__file_has_room(f)) rc = once__file_lock(f, fd, err);
        if (rc != ONCE_OK || !once__file_has_room(f)) {
            once_close_beside(NULL, fd);
            continue;
        }
        once_place place = {.number = once__file_next_number(f)};
        (void)once_place_look(fd, &place);
        once_log(ONCE_LOG_INFO, "source_rotated", "source '%s' had a file in between, which is read as '%s/%llu'",
                 f->path, f->path, (unsigned long long)place.number);
        once__file_add(f, fd, &place);
    }
    list->n = 0;
    return rc;
}

/* A file that has lost the path meanwhile may have others after it in the folder, which must not come before it. In a
 * run that ends at the end of the file it is enough that no other has the path. */
bool once__file_has_path(const file_source *f, int fd)
{
    struct stat path, st;
    if (f->is_stdin) return true;
    if (stat(f->path, &path) != 0) return !once__file_follows(f);
    return fstat(fd, &st) == 0 && is_file(&path, &st);
}
