/* Rotation while a file is followed: another file has the path, or the one that is read was truncated (file.c has the
 * rules). */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/beside.h"
#include "base/errno_text.h"
#include "base/log.h"
#include "source/file_impl.h"

#include "base/banned.h"

static int open_path(file_source *f)
{
    return f->base.env->open(f->base.env->self, f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
}

/* What the old file has behind the place, the new one has there too: then nothing is lost without the old one. */
static bool has_the_rest(int old, int fd, int64_t at)
{
    assert(old >= 0 && fd >= 0 && at >= 0);
    char a[4096], b[sizeof a];
    for (;;) {
        const ssize_t n = pread(old, a, sizeof a, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n == 0;
        for (ssize_t have = 0; have < n;) {
            const ssize_t m = pread(fd, b + have, (size_t)(n - have), (off_t)(at + have));
            if (m < 0 && errno == EINTR) continue;
            if (m <= 0) return false;
            have += m;
        }
        if (memcmp(a, b, (size_t)n) != 0) return false;
        at += n;
    }
}

/* The old file was deleted, and this one is a copy of it: with the same first bytes, the same bytes before the place up
 * to which the old one was read, and everything that the old one has behind it. */
static bool is_written_anew(const open_file *old, int fd)
{
    struct stat st;
    once_place read = old->place; /* up to where it was read */
    read.offset = (uint64_t)old->read;
    read.part_len = read.part_kept = 0;
    read.tail_len = old->tail_len;
    read.tail = once_place_hash(old->tail, old->tail_len);
    return fstat(old->fd, &st) == 0 && st.st_nlink == 0 && read.head_len > 0 && once_place_fits(fd, &read) &&
           has_the_rest(old->fd, fd, old->read);
}

/* Begins with the file that now has the path. If there was none before: at its place. If it is a copy of the old one,
 * which was deleted: at the same offset. Otherwise the rest of the old file comes first, then files rotated in between.
 */
static int take_new_file(file_source *f, int fd, once_error *err)
{
    assert(fd >= 0 && f->regular);
    struct stat st;
    open_file *old = once__file_current(f);
    int rc = once__file_lock(f, fd, err);
    if (rc != ONCE_OK || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        once_close_beside(NULL, fd);
        return rc;
    }
    once_place place;
    if (!old) {
        rc = once__file_place_of_new(f, fd, &place, err);
        if (rc == ONCE_OK) return once__file_go_to(f, once__file_add(f, fd, &place), err);
        once_close_beside(NULL, fd);
        return rc;
    }
    if (is_written_anew(old, fd)) {
        once_close_beside(f->base.env, old->fd);
        old->fd = fd;
        (void)once_place_look(fd, &old->place);
        f->version++;
        return lseek(fd, old->read, SEEK_SET) < 0 ? once__file_bad(f, ONCE_E_IO, "cannot seek", errno, err) : ONCE_OK;
    }
    between list;
    const uint64_t line = old->place.line; /* files in between may move `old` */
    old->grown_ms = once__file_now_ms(f);
    rc = once__file_find_between(f, old->fd, fd, &list, err);
    const bool stays = rc == ONCE_OK && once__file_has_path(f, fd);
    if (stays) rc = once__file_take_between(f, &list, err);
    else once__file_drop_between(&list);
    if (!stays || rc != ONCE_OK || !once__file_has_room(f)) {
        once_close_beside(NULL, fd); /* it is found again by the path */
        return rc;
    }
    place = (once_place){.number = once__file_next_number(f)};
    assert(place.number > old->place.number);
    (void)once_place_look(fd, &place);
    once_log(ONCE_LOG_INFO, "source_rotated",
             "source '%s' was rotated: the next file is '%s/%llu'; the one before was read up to line %llu, "
             "and its rest is read first",
             f->path, f->path, (unsigned long long)place.number, (unsigned long long)line);
    once__file_add(f, fd, &place);
    return ONCE_OK;
}

enum { NO_FILE = -1 }; /* the path names a pipe, a socket or a device */

/* Logs once why the path cannot be read, and again when the reason changes. 0: it can be read. */
static void log_path_error(file_source *f, int error)
{
    if (error && error != f->path_error)
        once_log(ONCE_LOG_WARN, "source_unreadable", "source '%s' cannot be read: %s; waiting for a file there",
                 f->path, error == NO_FILE ? "it is no longer a regular file" : once_errno_text(error));
    f->path_error = error;
}

int once__file_look_at_path(file_source *f, once_error *err)
{
    struct stat st;
    const open_file *file = once__file_current(f);
    int error = 0, fd = -1;
    if (stat(f->path, &st) != 0) error = errno == ENOENT ? 0 : errno; /* for a while there is none */
    else if (file && (uint64_t)st.st_dev == file->place.device && st.st_ino == file->place.inode) error = 0;
    else if (!S_ISREG(st.st_mode)) error = S_ISDIR(st.st_mode) ? EISDIR : NO_FILE;
    else if (!once__file_has_room(f)) error = 0; /* when one of them is over */
    else if ((fd = open_path(f)) < 0) error = errno == ENOENT ? 0 : errno;
    log_path_error(f, error);
    return fd < 0 ? ONCE_OK : take_new_file(f, fd, err);
}

/* The bytes that were read must still be there. */
bool once__file_is_changed(const open_file *file)
{
    assert(file->fd >= 0 && (int64_t)file->tail_len <= file->read);
    struct stat st;
    char tail[sizeof file->tail];
    if (fstat(file->fd, &st) != 0) return false; /* the next read reports what is wrong */
    if (st.st_size < file->read) return true;
    if (file->tail_len &&
        (pread(file->fd, tail, file->tail_len, file->read - (int64_t)file->tail_len) != (ssize_t)file->tail_len ||
         memcmp(tail, file->tail, file->tail_len) != 0))
        return true;
    return !once_place_head_fits(file->fd, &file->place);
}

/* The file was truncated in place. Its descriptor is that of the new content; the old content may be in a copy. */
int once__file_was_truncated(file_source *f, size_t i, once_error *err)
{
    assert(i < f->n && f->regular);
    open_file *file = &f->files[i];
    once_place read = file->place;
    read.offset = (uint64_t)file->read;
    read.tail_len = file->tail_len;
    read.tail = once_place_hash(file->tail, file->tail_len);
    read.part_len = read.part_kept = 0;
    const bool has_path = i == f->n - 1;
    const int fd = file->fd;
    between list = {.n = 0};
    int copy;
    int rc = once__file_find(f, &read, true, &copy, err);
    if (rc == ONCE_OK && copy >= 0 && has_path) rc = once__file_find_between(f, copy, fd, &list, err);
    if (rc != ONCE_OK) { /* nothing is changed: it is found to be truncated again */
        if (copy >= 0) once_close_beside(NULL, copy);
        return rc;
    }
    if (copy < 0)
        once_log(ONCE_LOG_WARN, "source_truncated",
                 "source '%s' was truncated, and no copy of it was found: lines after line %llu that were not read yet "
                 "are lost",
                 f->path, (unsigned long long)file->place.line);
    else
        once_log(ONCE_LOG_INFO, "source_truncated", "source '%s' was truncated; the rest of it is read from a copy",
                 f->path);
    if (copy >= 0) {
        (void)once_place_look(copy, &file->place);
        file->fd = copy;
        file->at_eof = false;
        file->grown_ms = once__file_now_ms(f);
        if (lseek(copy, file->read, SEEK_SET) < 0) rc = once__file_bad(f, ONCE_E_IO, "cannot seek", errno, err);
        if (rc == ONCE_OK) rc = once__file_take_between(f, &list, err);
        else once__file_drop_between(&list);
    } else {
        file->fd = -1;
        once__file_remove(f, i);
    }
    if (rc != ONCE_OK || !has_path || !once__file_has_room(f)) {
        once_close_beside(NULL, fd); /* it is found again by the path */
        return rc;
    }
    once_place place = {.number = once__file_next_number(f)};
    (void)once_place_look(fd, &place);
    return once__file_go_to(f, once__file_add(f, fd, &place), err);
}
