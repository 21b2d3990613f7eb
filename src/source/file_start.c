/* Where a file source begins: the file that has the path, with its number, and the rest of the files before it. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/beside.h"
#include "base/log.h"
#include "source/file_impl.h"

#include "base/banned.h"

static int check_kind(file_source *f, int fd, once_error *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0) return once__file_bad(f, ONCE_E_IO, "cannot stat", errno, err);
    if (S_ISDIR(st.st_mode)) return once_fail(err, ONCE_E_CONFIG, "source '%s' is a directory; name a file", f->path);
    if (once_is_database(fd))
        return once_fail(err, ONCE_E_CONFIG, "source '%s' is an SQLite database; name a file with one message per line",
                         f->path);
    f->regular = S_ISREG(st.st_mode);
    return ONCE_OK;
}

int once__file_open_first(file_source *f, once_error *err)
{
    const int wait = once__file_follows(f)
                         ? O_NONBLOCK
                         : 0; /* the open of a pipe waits for a writer; a follower waits while it reads */
    const int fd =
        f->is_stdin ? STDIN_FILENO : f->base.env->open(f->base.env->self, f->path, O_RDONLY | O_CLOEXEC | wait, 0);
    if (fd < 0 && errno == ENOENT && once__file_follows(f)) {
        once_log(ONCE_LOG_WARN, "source_missing", "source '%s' is not there yet; waiting for it", f->path);
        f->regular = true;
        return ONCE_OK;
    }
    if (fd < 0) return once__file_bad(f, ONCE_E_CONFIG, "cannot open", errno, err);
    once_place place = {.number = 1};
    const int rc = check_kind(f, fd, err);
    if (rc == ONCE_OK && f->regular) (void)once_place_look(fd, &place);
    once__file_add(f, fd, &place); /* it is closed with the source */
    return rc;
}

static const once_place *find_by_itself(const file_source *f, const once_place *here, int fd)
{
    for (size_t i = f->known.n; i > 0; i--) {
        const once_place *p = &f->known.at[i - 1];
        if (once__file_is(p, here->device, here->inode, fd) && once_place_fits(fd, p)) return p;
    }
    return NULL;
}

/* The file that has the path now, among those that had it before; NULL: it is a new file. */
static int find_known(const file_source *f, int fd, const once_place **known, once_error *err)
{
    once_place here = {0};
    bool elsewhere;
    *known = NULL;
    if (!once_place_look(fd, &here) || (*known = find_by_itself(f, &here, fd))) return ONCE_OK;
    const once_place *last = f->known.n ? &f->known.at[f->known.n - 1] : NULL;
    if (!last) return ONCE_OK;
    /* A file that is read as a whole each time may have been edited: then a changed line is a conflict, and the
     * other lines are known. */
    const bool whole = !once__file_follows(f) && !f->goes_on;
    if (whole && last->device == here.device && last->inode == here.inode) {
        *known = last;
        return ONCE_OK;
    }
    /* A program wrote it anew as a whole, with its old content: then the old file is gone, and not under another
     * name. */
    if (!whole && (last->head_len == 0 || !once_place_fits(fd, last))) return ONCE_OK;
    const int rc = once__file_is_elsewhere(f, last, &elsewhere, err);
    if (rc == ONCE_OK && !elsewhere) *known = last;
    return rc;
}

/* The number of a file that has just got the path, or is found there at the start; and the place in it. */
int once__file_place_of_new(const file_source *f, int fd, once_place *place, once_error *err)
{
    const once_place *known;
    const int rc = find_known(f, fd, &known, err);
    if (rc != ONCE_OK) return rc;
    *place = known ? *known : (once_place){.number = once__file_next_number(f)};
    if (!once_place_head_fits(fd, place)) place->head_len = 0; /* it was edited */
    (void)once_place_look(fd, place);
    return ONCE_OK;
}

/* Takes in what the store has: numbers, and with a cursor, places. */
static int read_kept(file_source *f, const once_kept_places *kept, once_error *err)
{
    once_places files = {0}, cursor = {0};
    open_file *file = once__file_current(f);
    if (kept->files.len && !once_places_read(kept->files, &files))
        return once_fail(err, ONCE_E_CORRUPT, "what the store keeps of the files of source '%s' cannot be read",
                         f->path);
    if (kept->cursor.len && !once_places_read(kept->cursor, &cursor)) {
        if (!file || !once_place_read_old(file->fd, kept->cursor, &cursor.at[0]))
            return once_fail(err, ONCE_E_CORRUPT,
                             "source '%s' is not the file that its cursor belongs to, and the cursor, which an older "
                             "once wrote, does not identify another; use a new path, or 'cursor: false'",
                             f->path);
        cursor.n = 1;
    }
    f->known = cursor;
    for (size_t i = 0; i < files.n && f->known.n < ONCE_FILES_MAX; i++) {
        bool there = false;
        for (size_t k = 0; k < cursor.n; k++) there |= cursor.at[k].number == files.at[i].number;
        if (there) continue;
        once_place p = files.at[i];
        once_place_rewind(&p);
        size_t at = f->known.n++;
        for (; at > 0 && f->known.at[at - 1].number > p.number; at--) f->known.at[at] = f->known.at[at - 1];
        f->known.at[at] = p;
    }
    return ONCE_OK;
}

int once__file_go_to(file_source *f, open_file *file, once_error *err)
{
    assert(file->fd >= 0 && file->lines.from == file->lines.to); /* nothing was read ahead */
    file->read = (int64_t)file->place.offset;
    return lseek(file->fd, file->read, SEEK_SET) < 0 ? once__file_bad(f, ONCE_E_IO, "cannot seek", errno, err)
                                                     : ONCE_OK;
}

/* The rest of a file that had the path when the cursor was kept, or was seen after that. */
static int find_the_rest(file_source *f, const once_place *p, once_error *err)
{
    int fd = -1;
    int rc = f->n < ONCE_FILES_MAX ? once__file_find(f, p, true, &fd, err) : ONCE_OK;
    if (rc != ONCE_OK) return rc;
    if (fd < 0) {
        once_log(ONCE_LOG_WARN, "source_lost",
                 "source '%s' has another file now, and the one before it is not found; what it had behind line %llu, "
                 "and files that had "
                 "the path after it, if any, are not read",
                 f->path, (unsigned long long)p->line);
        return ONCE_OK;
    }
    once_place place = *p;
    (void)once_place_look(fd, &place);
    rc = once__file_go_to(f, once__file_add(f, fd, &place), err);
    return rc == ONCE_OK ? once__file_lock(f, fd, err) : rc;
}

/* ONCE_E_ABORTED: the file has lost the path meanwhile. */
static int find_unseen(file_source *f, int fd, once_error *err)
{
    assert(f->n > 0 && fd >= 0);
    between list;
    int rc = once__file_find_between(f, f->files[f->n - 1].fd, fd, &list, err);
    if (rc == ONCE_OK && !once__file_has_path(f, fd)) rc = ONCE_E_ABORTED;
    if (rc == ONCE_OK) return once__file_take_between(f, &list, err);
    once__file_drop_between(&list);
    return rc;
}

/* Everything before the file that has the path: the files that the cursor names, those with a higher number, and
 * files that were never seen. */
static int find_files_before(file_source *f, const once_places *cursor, int fd, const once_place *current,
                             once_error *err)
{
    assert(cursor->n <= ONCE_FILES_MAX && f->known.n <= ONCE_FILES_MAX);
    const once_places known = f->known;
    const uint64_t last = cursor->n ? cursor->at[cursor->n - 1].number : 0;
    int rc = ONCE_OK;
    for (size_t i = 0; rc == ONCE_OK && i < known.n; i++) {
        const once_place *p = &known.at[i];
        bool wanted = f->locks && p->number > last;
        for (size_t k = 0; k < cursor->n; k++) wanted |= cursor->at[k].number == p->number;
        if (wanted && !(current && current->number == p->number)) rc = find_the_rest(f, p, err);
    }
    if (rc == ONCE_OK && f->locks && fd >= 0 && !current && f->n) rc = find_unseen(f, fd, err);
    return rc;
}

/* The file that has the path, after those before it. */
static int place_current(file_source *f, int fd, const once_places *cursor, bool has_cursor, once_error *err)
{
    const once_place *known = NULL;
    int rc = fd >= 0 ? find_known(f, fd, &known, err) : ONCE_OK;
    const once_place found = known ? *known : (once_place){0};
    if (rc == ONCE_OK && has_cursor) rc = find_files_before(f, cursor, fd, known ? &found : NULL, err);
    if (fd < 0) return rc;
    if (rc != ONCE_OK || f->n == ONCE_FILES_MAX) {
        if (rc == ONCE_OK)
            once_log(ONCE_LOG_WARN, "source_rotated",
                     "source '%s' was rotated too often to read all of its files at once; the newest come later",
                     f->path);
        once_close_beside(f->base.env, fd);
        return rc;
    }
    once_place place;
    rc = once__file_place_of_new(f, fd, &place, err);
    if (rc != ONCE_OK) {
        once_close_beside(f->base.env, fd);
        return rc;
    }
    if (place.number > 1 || f->known.n)
        once_log(ONCE_LOG_DEBUG, "source_file", "source '%s': file number %llu of this path is read, from line %llu on",
                 f->path, (unsigned long long)place.number, (unsigned long long)place.line + 1);
    if (!has_cursor) once_place_rewind(&place);
    return once__file_go_to(f, once__file_add(f, fd, &place), err);
}

static int start_once(file_source *f, const once_kept_places *kept, once_error *err)
{
    if (f->sought) { /* the store was away, or files were renamed, and this is repeated */
        while (f->n) once__file_remove(f, 0);
        const int again = once__file_open_first(f, err);
        if (again != ONCE_OK) return again;
    }
    open_file *file = once__file_current(f);
    const int fd = file ? file->fd : -1;
    f->sought = true;
    f->locks = kept->lock != NULL;
    f->goes_on = kept->lock || kept->cursor.len;
    if (kept->lock) f->lock = *kept->lock;
    int rc = file ? once__file_lock(f, fd, err) : ONCE_OK;
    if (rc == ONCE_OK) rc = read_kept(f, kept, err);
    if (rc != ONCE_OK) return rc;
    if (file) once_lines_release(&file->lines);
    f->n = 0; /* its number is not known yet */
    once_places cursor = {0};
    if (kept->cursor.len && !once_places_read(kept->cursor, &cursor))
        cursor = (once_places){.n = 1, .at[0] = f->known.at[0]}; /* an old one */
    rc = place_current(f, fd, &cursor, kept->cursor.len > 0, err);
    f->version++;
    return rc;
}

int once__file_start(once_source *source, const once_kept_places *kept, once_error *err)
{
    file_source *f = (file_source *)source;
    int rc = f->regular ? ONCE_E_ABORTED : ONCE_OK;
    for (int i = 0; i < FOLDER_TRIES && rc == ONCE_E_ABORTED; i++) {
        if (i) once_env_sleep_ms(f->base.env, FOLDER_PAUSE_MS);
        rc = start_once(f, kept, err);
    }
    return rc == ONCE_E_ABORTED ? once__file_renamed_too_often(f, err) : rc;
}

/* As they are before anything is read. */
void once__file_places(const once_source *source, once_places *out)
{
    const file_source *f = (const file_source *)source;
    *out = (once_places){.n = f->regular ? f->n : 0};
    for (size_t i = 0; i < out->n; i++) out->at[i] = f->files[i].place;
}
