/* The file source: NDJSON, one message a line. "-" is standard input; `follow` waits at the end for more.
 *
 * Everything is bounded in bytes: a batch, and a line, of which no more than message_max is kept. A longer one is
 * handed out cut, and says so (once_message.cut_from).
 *
 * Coordinates are the path as it was written and the line number, blank lines included in the count, so they are the
 * same on every reading. When the path names another file than before (rotation), its second file is "PATH/2", and so
 * on: no file is below a file, so that cannot be a path. The numbers are kept in the store (source/place.h).
 *
 * A last line without a newline is perhaps not complete. While a file is followed, it waits for its newline. A finite
 * run hands it out, and the place that is kept stays before it: when the line is found again as it was, it is not
 * handed out again; when it has grown, the whole line is a message at the same coordinates.
 *
 * Rotation, while a file is followed:
 *   - Another file has the path (rename and create): the old one stays open and is read to its end, then the new one.
 *   Files are
 *     opened when they are seen, so none is missed while there is much to read. The old one is looked at for ROTATED_MS
 *     more, since
 *     its writer may not know yet; then its last line counts as complete and it is closed.
 *   - The file was truncated, or what was before the place has changed (copytruncate): the rest of what was there is
 *   looked for in
 *     the folder, in a copy whose name begins with that of the file. The truncated one is a new file, read from its
 *     beginning.
 *   - The old file is gone and the new one goes on with the same bytes, all that the old one had: it was written anew
 *   as a whole, and is
 *     the same file.
 *   - Files had the path and lost it before they were seen: they are found in the folder, by their names and times.
 *   - There is no file for a while: it is waited for.
 * At the start the kept places are found again in the same ways. What cannot be noticed: other content of which the
 * first ONCE_HEAD_BYTES and the bytes before the place are the same. */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/beside.h"
#include "base/errno_text.h"
#include "base/log.h"
#include "base/no_memory.h"
#include "source/file.h"
#include "source/lines.h"
#include "source/place.h"

#include "base/banned.h"

#define CHUNK (256u << 10)
#define BATCH_BYTES (4u << 20) /* a batch is handed out when it has so many, or `max` messages */
#define IDLE_MS 100
#define ROTATED_MS 30000 /* how long a file that lost its path may stand still before it is over */

/* A file that is read, or will be. Of its place, offset and line say what was handed out. */
typedef struct open_file {
    once_place place;
    int fd;
    once_lines lines; /* read, not yet handed out */
    int64_t read;     /* bytes read */
    char tail[64];    /* the last of them, to notice that they were changed */
    size_t tail_len;
    bool at_eof;
    int64_t grown_ms; /* when it had more for the last time */
    int64_t ended_ms; /* when it was looked at for the last time, and had not */
} open_file;

typedef struct file_source {
    once_source base;
    char *path;
    bool is_stdin, regular;
    open_file files[ONCE_FILES_MAX]; /* oldest first; the last one has the path */
    size_t n;
    once_places known; /* files of this path from before, by their numbers */
    bool sought, locks;
    bool looks; /* for one message */
    once_file_keeping keeping;
    bool goes_on; /* it has a cursor */
    once_hash lock;
    uint64_t version;   /* of the set of files */
    uint64_t delivered; /* messages */
    int path_error;     /* what was said of the path last */
    atomic_bool woken;
    _Atomic int64_t left;
    int failed; /* not ONCE_OK: what the next fetch has to say, which is `failure` */
    once_error failure;
} file_source;

static int bad_file(const file_source *f, int status, const char *what, int error, once_error *err)
{
    return once_fail(err, status, "source '%s': %s: %s", f->path, what, once_errno_text(error));
}

static int64_t now_ms(const file_source *f) { return once_env_mono_ns(f->base.env) / 1000000; }
static bool follows(const file_source *f) { return once_file_of(&f->base.spec->source)->follow; }

/* --- the files --- */

static void close_file(file_source *f, open_file *file)
{
    if (file->fd >= 0 && !f->is_stdin) once_close_beside(f->base.env, file->fd);
    once_lines_release(&file->lines);
    file->fd = -1;
}

/* So that it is not taken for a new one when it is seen again. */
static void remember_file(file_source *f, const once_place *place)
{
    once_places known = {.n = 1, .at[0] = *place};
    once_places_add_known(&known, &f->known);
    f->known = known;
}

static void remove_file(file_source *f, size_t i)
{
    assert(i < f->n);
    remember_file(f, &f->files[i].place);
    close_file(f, &f->files[i]);
    memmove(&f->files[i], &f->files[i + 1], (f->n - i - 1) * sizeof *f->files);
    f->n--;
    f->version++;
}

/* In the order of their numbers. There is room. */
static open_file *add_file(file_source *f, int fd, const once_place *place)
{
    assert(f->n < ONCE_FILES_MAX);
    size_t i = f->n++;
    for (; i > 0 && f->files[i - 1].place.number > place->number; i--) f->files[i] = f->files[i - 1];
    open_file *file = &f->files[i];
    *file = (open_file){.place = *place, .fd = fd, .read = (int64_t)place->offset, .grown_ms = now_ms(f)};
    once_lines_init(&file->lines, f->base.spec->message_max);
    f->version++;
    return file;
}

/* An old one of which all was read is given up for another: nothing comes any more, most likely. */
static bool has_room(file_source *f)
{
    for (size_t i = 0; f->n == ONCE_FILES_MAX && i + 1 < f->n; i++)
        if (f->files[i].at_eof && once_lines_held(&f->files[i].lines) == 0) remove_file(f, i);
    return f->n < ONCE_FILES_MAX;
}

static open_file *current(file_source *f) { return f->n ? &f->files[f->n - 1] : NULL; }

static uint64_t next_number(const file_source *f)
{
    uint64_t number = f->n ? f->files[f->n - 1].place.number : 0;
    for (size_t i = 0; i < f->known.n; i++)
        if (f->known.at[i].number > number) number = f->known.at[i].number;
    return number + 1;
}

static int open_path(file_source *f)
{
    return f->base.env->open(f->base.env->self, f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
}

static int lock_file(file_source *f, int fd, once_error *err)
{
    once_error why;
    if (!f->locks) return ONCE_OK;
    const int rc = once_cursor_lock(f->base.env, fd, f->lock, &why);
    return rc == ONCE_OK ? rc : once_fail(err, rc, "source '%s': %s", f->path, why.text);
}

/* --- looking for a file that has lost its path --- */

static const char *name_in_path(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static DIR *folder_of(const file_source *f)
{
    const char *name = name_in_path(f->path);
    char *folder = name == f->path ? strdup(".") : strndup(f->path, (size_t)(name - f->path));
    DIR *dir = folder ? opendir(folder) : NULL;
    free(folder);
    return dir;
}

/* A regular file of the folder, which is not the one that the path names; -1: it is none, cannot be read, or is to be
 * left alone: a store may lie in the folder, too. */
static int open_other(const file_source *f, DIR *dir, const char *name, struct stat *st)
{
    if (strcmp(name, name_in_path(f->path)) == 0) return -1;
    const int at = openat(dirfd(dir), name, O_PATH | O_CLOEXEC | O_NOFOLLOW);
    if (at < 0) return -1;
    const bool fine = fstat(at, st) == 0 && S_ISREG(st->st_mode) && !once_may_be_locked(name, st);
    const int fd = fine ? once_reopen(at) : -1;
    close(at);
    return fd;
}

/* A device may have another number after a mount, or on another machine; then the first bytes have to say it. */
static bool is_file_of(const once_place *place, uint64_t device, uint64_t inode, int fd)
{
    return place->inode == inode && (place->device == device || place->head_len > 0) && once_place_head_fits(fd, place);
}

/* Whether it is one of these files, under another number. */
static bool is_other_number(const once_place *p, uint64_t number, const struct stat *st, int fd)
{
    return p->number != number && (p->head_len > 0 || st->st_size == 0) && is_file_of(p, st->st_dev, st->st_ino, fd) &&
           once_place_fits(fd, p);
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
    DIR *dir = folder_of(f);
    const char *name = name_in_path(f->path);
    int found = -1;
    if (!dir) return -1;
    for (struct dirent *entry; found < 0 && (entry = readdir(dir));) {
        struct stat st;
        if (what == ITSELF ? entry->d_ino != place->inode : strncmp(entry->d_name, name, strlen(name)) != 0) continue;
        const int fd = open_other(f, dir, entry->d_name, &st);
        if (fd < 0) continue;
        if (what == ITSELF ? is_file_of(place, st.st_dev, st.st_ino, fd) : is_copy(f, place, &st, fd)) found = fd;
        else once_close_beside(NULL, fd);
    }
    closedir(dir);
    return found;
}

/* By its inode; only when no file has that, by what is in it, when the name begins as the path's does. Returns a
 * descriptor, or -1. */
static int find_elsewhere(const file_source *f, const once_place *place, bool copies)
{
    assert(place->number > 0);
    const int found = find_in_folder(f, place, ITSELF);
    return found < 0 && copies ? find_in_folder(f, place, COPY) : found;
}

static bool is_elsewhere(const file_source *f, const once_place *place)
{
    const int fd = find_elsewhere(f, place, false);
    if (fd >= 0) once_close_beside(NULL, fd);
    return fd >= 0;
}

/* --- files that had the path in between --- */

/* A regular file of the folder that was rotated away. */
typedef struct rotated {
    int fd;
    struct stat st;
} rotated;

static bool is_before(struct timespec a, struct timespec b)
{
    return a.tv_sec != b.tv_sec ? a.tv_sec < b.tv_sec : a.tv_nsec < b.tv_nsec;
}

/* {0, 0}: the file system does not say. */
static struct timespec born(int fd)
{
    struct statx st;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_BTIME, &st) != 0 || !(st.stx_mask & STATX_BTIME))
        return (struct timespec){0};
    return (struct timespec){.tv_sec = st.stx_btime.tv_sec, .tv_nsec = (long)st.stx_btime.tv_nsec};
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

typedef enum rotation { ROTATION_NONE, ROTATION_READABLE, ROTATION_PACKED } rotation;

/* Whether a name is what rotation makes of that of the file: "in.ndjson.1", "in.ndjson-20260102", "in-2.ndjson",
 * "in.ndjson.old"; or of such a one that was compressed. */
static rotation kind_of_name(const char *name, const char *entry)
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

static bool is_known_file(const file_source *f, const rotated *r)
{
    bool known = false;
    for (size_t i = 0; i < f->n && !known; i++)
        known = f->files[i].place.inode == r->st.st_ino && f->files[i].place.device == r->st.st_dev;
    for (size_t i = 0; i < f->known.n && !known; i++) /* an empty one tells nothing of what has its inode now */
        known = is_file_of(&f->known.at[i], r->st.st_dev, r->st.st_ino, r->fd) &&
                (f->known.at[i].head_len > 0 || r->st.st_size == 0);
    return known;
}

/* In the order in which they were written to for the last time; the newest of too many are found again later. */
static size_t insert_rotated(rotated list[ONCE_FILES_MAX], size_t n, const rotated *r)
{
    size_t at = n;
    while (at > 0 && is_before(r->st.st_mtim, list[at - 1].st.st_mtim)) at--;
    if (at == ONCE_FILES_MAX) {
        once_close_beside(NULL, r->fd);
        return n;
    }
    if (n == ONCE_FILES_MAX) once_close_beside(NULL, list[--n].fd);
    memmove(&list[at + 1], &list[at], (n - at) * sizeof *list);
    list[at] = *r;
    return n + 1;
}

/* Files of the folder that had the path after the file `old` and before the one that has it now: made, and written to,
 * after that, and never seen. */
static size_t find_between(const file_source *f, int old, const struct stat *now, rotated list[ONCE_FILES_MAX])
{
    struct stat st;
    size_t n = 0;
    DIR *dir = fstat(old, &st) == 0 ? folder_of(f) : NULL;
    if (!dir) return 0;
    const struct timespec old_born = born(old);
    for (struct dirent *entry; (entry = readdir(dir));) {
        const rotation kind = kind_of_name(name_in_path(f->path), entry->d_name);
        rotated r;
        if (kind == ROTATION_NONE || (r.fd = open_other(f, dir, entry->d_name, &r.st)) < 0) continue;
        const bool later = !is_before(r.st.st_mtim, st.st_mtim) && !is_before(born(r.fd), old_born);
        const bool other = (r.st.st_ino != st.st_ino || r.st.st_dev != st.st_dev) &&
                           (r.st.st_ino != now->st_ino || r.st.st_dev != now->st_dev);
        /* A compressed one keeps the time of what it was made of: with the same time it is `old`. */
        if (kind == ROTATION_PACKED && later && is_before(st.st_mtim, r.st.st_mtim))
            once_log(ONCE_LOG_WARN, "source_lost",
                     "source '%s': '%s' may have had the path in between, and is compressed; what it has is not read",
                     f->path, entry->d_name);
        if (kind == ROTATION_READABLE && later && other && !is_known_file(f, &r)) n = insert_rotated(list, n, &r);
        else once_close_beside(NULL, r.fd);
    }
    closedir(dir);
    return n;
}

/* Takes them in, up to the last one that there is room for. */
static int take_between(file_source *f, int old, int now_fd, once_error *err)
{
    rotated list[ONCE_FILES_MAX];
    struct stat now;
    int rc = ONCE_OK;
    if (fstat(now_fd, &now) != 0) return bad_file(f, ONCE_E_IO, "cannot stat", errno, err);
    const size_t n = find_between(f, old, &now, list);
    for (size_t i = 0; i < n; i++) {
        if (rc == ONCE_OK && has_room(f)) rc = lock_file(f, list[i].fd, err);
        if (rc != ONCE_OK || !has_room(f)) {
            once_close_beside(NULL, list[i].fd);
            continue;
        }
        once_place place = {.number = next_number(f)};
        (void)once_place_look(list[i].fd, &place);
        once_log(ONCE_LOG_INFO, "source_rotated", "source '%s' had a file in between, which is read as '%s/%llu'",
                 f->path, f->path, (unsigned long long)place.number);
        add_file(f, list[i].fd, &place);
    }
    return rc;
}

/* --- the start --- */

static void file_close(once_source *source)
{
    file_source *f = (file_source *)source;
    for (size_t i = 0; i < f->n; i++) close_file(f, &f->files[i]);
    free(f->path);
    free(f);
}

static int check_kind(file_source *f, int fd, once_error *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0) return bad_file(f, ONCE_E_IO, "cannot stat", errno, err);
    if (S_ISDIR(st.st_mode)) return once_fail(err, ONCE_E_CONFIG, "source '%s' is a directory; name a file", f->path);
    if (once_is_database(fd))
        return once_fail(err, ONCE_E_CONFIG, "source '%s' is an SQLite database; name a file with one message per line",
                         f->path);
    f->regular = S_ISREG(st.st_mode);
    return ONCE_OK;
}

static int open_first(file_source *f, once_error *err)
{
    const int wait =
        follows(f) ? O_NONBLOCK : 0; /* the open of a pipe waits for a writer; a follower waits while it reads */
    const int fd =
        f->is_stdin ? STDIN_FILENO : f->base.env->open(f->base.env->self, f->path, O_RDONLY | O_CLOEXEC | wait, 0);
    if (fd < 0 && errno == ENOENT && follows(f)) {
        once_log(ONCE_LOG_WARN, "source_missing", "source '%s' is not there yet; waiting for it", f->path);
        f->regular = true;
        return ONCE_OK;
    }
    if (fd < 0) return bad_file(f, ONCE_E_CONFIG, "cannot open", errno, err);
    once_place place = {.number = 1};
    const int rc = check_kind(f, fd, err);
    if (rc == ONCE_OK && f->regular) (void)once_place_look(fd, &place);
    add_file(f, fd, &place); /* it is closed with the source */
    return rc;
}

/* Whatever it is for: to read a file takes nothing from anybody, and the cursor is taken later. */
static int file_open(const once_spec *spec, const once_env *env, once_source_purpose purpose, once_source **out,
                     once_error *err)
{
    (void)purpose;
    assert(spec->source.own && spec->source.name.len > 0);
    file_source *f = calloc(1, sizeof *f);
    if (!f || !(f->path = strndup(spec->source.name.data, spec->source.name.len))) {
        free(f);
        return once_no_memory(err, "for the source");
    }
    f->base = (once_source){.ops = &once__file_ops, .spec = spec, .env = env};
    f->is_stdin = strcmp(f->path, "-") == 0;
    const int rc = open_first(f, err);
    if (rc != ONCE_OK) {
        file_close(&f->base);
        return rc;
    }
    *out = &f->base;
    return ONCE_OK;
}

static unsigned file_bits(const once_source *source)
{
    const file_source *f = (const file_source *)source;
    return source->spec->source.bits | (f->regular ? ONCE_SOURCE_REDELIVERS | ONCE_SOURCE_STABLE : 0u);
}

/* The file that has the path now, among those that had it before; NULL: it is new. */
static const once_place *find_known(const file_source *f, int fd)
{
    once_place here = {0};
    if (!once_place_look(fd, &here)) return NULL;
    for (size_t i = f->known.n; i > 0; i--) {
        const once_place *p = &f->known.at[i - 1];
        if (is_file_of(p, here.device, here.inode, fd) && once_place_fits(fd, p)) return p;
    }
    const once_place *last = f->known.n ? &f->known.at[f->known.n - 1] : NULL;
    /* Whoever reads the whole file each time may have edited it: then a line that was changed is a conflict, and the
     * others are known. */
    const bool whole = !follows(f) && !f->goes_on;
    if (whole && last && ((last->device == here.device && last->inode == here.inode) || !is_elsewhere(f, last)))
        return last;
    /* Written anew as a whole, with what it had: then the old one is gone, and not under another name. */
    return last && last->head_len > 0 && once_place_fits(fd, last) && !is_elsewhere(f, last) ? last : NULL;
}

/* The number of a file that has just got the path, or is found there at the start; and the place in it. */
static once_place place_of_new(const file_source *f, int fd)
{
    const once_place *known = find_known(f, fd);
    once_place place = known ? *known : (once_place){.number = next_number(f)};
    if (!once_place_head_fits(fd, &place)) place.head_len = 0; /* it was edited */
    (void)once_place_look(fd, &place);
    return place;
}

/* Takes in what the store has: numbers, and with a cursor, places. */
static int learn(file_source *f, const once_kept_places *kept, once_error *err)
{
    once_places files = {0}, cursor = {0};
    open_file *file = current(f);
    if (kept->files.len && !once_places_read(kept->files, &files))
        return once_fail(err, ONCE_E_CORRUPT, "what the store keeps of the files of source '%s' cannot be read",
                         f->path);
    if (kept->cursor.len && !once_places_read(kept->cursor, &cursor)) {
        if (!file || !once_place_read_old(file->fd, kept->cursor, &cursor.at[0]))
            return once_fail(err, ONCE_E_CORRUPT,
                             "source '%s' is not the file that its cursor belongs to, and an older version kept that, "
                             "which told too little "
                             "of the file to go on; use a new path, or 'cursor: false'",
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

static int go_to(file_source *f, open_file *file, once_error *err)
{
    file->read = (int64_t)file->place.offset;
    return lseek(file->fd, file->read, SEEK_SET) < 0 ? bad_file(f, ONCE_E_IO, "cannot seek", errno, err) : ONCE_OK;
}

/* The rest of a file that had the path when the cursor was kept, or was seen after that. */
static int find_the_rest(file_source *f, const once_place *p, once_error *err)
{
    const int fd = f->n < ONCE_FILES_MAX ? find_elsewhere(f, p, true) : -1;
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
    const int rc = go_to(f, add_file(f, fd, &place), err);
    return rc == ONCE_OK ? lock_file(f, fd, err) : rc;
}

/* All that comes before the file that has the path: what the cursor names, what has a higher number, and files that
 * nobody has seen. */
static int find_files_before(file_source *f, const once_places *cursor, int fd, const once_place *current,
                             once_error *err)
{
    const once_places known = f->known;
    const uint64_t last = cursor->n ? cursor->at[cursor->n - 1].number : 0;
    int rc = ONCE_OK;
    for (size_t i = 0; rc == ONCE_OK && i < known.n; i++) {
        const once_place *p = &known.at[i];
        bool wanted = f->locks && p->number > last;
        for (size_t k = 0; k < cursor->n; k++) wanted |= cursor->at[k].number == p->number;
        if (wanted && !(current && current->number == p->number)) rc = find_the_rest(f, p, err);
    }
    if (rc == ONCE_OK && f->locks && fd >= 0 && !current && f->n) rc = take_between(f, f->files[f->n - 1].fd, fd, err);
    return rc;
}

/* The file that has the path, behind those before it. */
static int place_current(file_source *f, int fd, const once_places *cursor, bool has_cursor, once_error *err)
{
    const once_place *known = fd >= 0 ? find_known(f, fd) : NULL;
    const once_place found = known ? *known : (once_place){0};
    int rc = has_cursor ? find_files_before(f, cursor, fd, known ? &found : NULL, err) : ONCE_OK;
    if (fd < 0) return rc;
    if (rc != ONCE_OK || f->n == ONCE_FILES_MAX) {
        if (rc == ONCE_OK)
            once_log(ONCE_LOG_WARN, "source_rotated",
                     "source '%s' was rotated too often to read all of its files at once; the newest come later",
                     f->path);
        once_close_beside(f->base.env, fd);
        return rc;
    }
    once_place place = place_of_new(f, fd);
    if (place.number > 1 || f->known.n)
        once_log(ONCE_LOG_DEBUG, "source_file", "source '%s' is its file %llu, from line %llu on", f->path,
                 (unsigned long long)place.number, (unsigned long long)place.line + 1);
    if (!has_cursor) once_place_rewind(&place);
    return go_to(f, add_file(f, fd, &place), err);
}

int once__file_start(once_source *source, const once_kept_places *kept, once_error *err)
{
    file_source *f = (file_source *)source;
    if (!f->regular) return ONCE_OK;
    if (f->sought) { /* the store was away, and this is repeated */
        while (f->n) remove_file(f, 0);
        const int again = open_first(f, err);
        if (again != ONCE_OK) return again;
    }
    open_file *file = current(f);
    const int fd = file ? file->fd : -1;
    f->sought = true;
    f->locks = kept->lock != NULL;
    f->goes_on = kept->lock || kept->cursor.len;
    if (kept->lock) f->lock = *kept->lock;
    int rc = file ? lock_file(f, fd, err) : ONCE_OK;
    if (rc == ONCE_OK) rc = learn(f, kept, err);
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

bool once__file_has_places(const once_source *source) { return ((const file_source *)source)->regular; }

/* As they are before anything is read. */
void once__file_places(const once_source *source, once_places *out)
{
    const file_source *f = (const file_source *)source;
    *out = (once_places){.n = f->regular ? f->n : 0};
    for (size_t i = 0; i < out->n; i++) out->at[i] = f->files[i].place;
}

/* --- rotation --- */

/* What the old file has behind the place, the new one has there too: then nothing is lost without the old one. */
static bool has_the_rest(int old, int fd, int64_t at)
{
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

/* The old file is gone, and this one goes on with the same bytes. */
static bool is_written_anew(const open_file *old, int fd)
{
    struct stat st;
    once_place read = old->place; /* as far as it was read */
    read.offset = (uint64_t)old->read;
    read.part_len = read.part_kept = 0;
    read.tail_len = old->tail_len;
    read.tail = once_place_hash(old->tail, old->tail_len);
    return fstat(old->fd, &st) == 0 && st.st_nlink == 0 && read.head_len > 0 && once_place_fits(fd, &read) &&
           has_the_rest(old->fd, fd, old->read);
}

/* Another file has the path. */
static int take_new_file(file_source *f, int fd, once_error *err)
{
    assert(fd >= 0 && f->regular);
    struct stat st;
    open_file *old = current(f);
    int rc = lock_file(f, fd, err);
    if (rc != ONCE_OK || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        once_close_beside(NULL, fd);
        return rc;
    }
    if (!old) {
        const once_place place = place_of_new(f, fd);
        return go_to(f, add_file(f, fd, &place), err);
    }
    if (is_written_anew(old, fd)) {
        once_close_beside(f->base.env, old->fd);
        old->fd = fd;
        (void)once_place_look(fd, &old->place);
        f->version++;
        return lseek(fd, old->read, SEEK_SET) < 0 ? bad_file(f, ONCE_E_IO, "cannot seek", errno, err) : ONCE_OK;
    }
    old->grown_ms = now_ms(f);
    rc = take_between(f, old->fd, fd, err);
    if (rc != ONCE_OK || !has_room(f)) {
        once_close_beside(NULL, fd); /* it is found again by the path */
        return rc;
    }
    once_place place = {.number = next_number(f)};
    (void)once_place_look(fd, &place);
    once_log(ONCE_LOG_INFO, "source_rotated",
             "source '%s' has another file now: '%s/%llu', after line %llu of the one before and what is left of it",
             f->path, f->path, (unsigned long long)place.number, (unsigned long long)current(f)->place.line);
    add_file(f, fd, &place);
    return ONCE_OK;
}

enum { NO_FILE = -1 }; /* the path names a pipe, a socket or a device */

/* Says once why the path cannot be read, and again when that changes. 0: it can. */
static void tell_of_path(file_source *f, int error)
{
    if (error && error != f->path_error)
        once_log(ONCE_LOG_WARN, "source_unreadable", "source '%s' cannot be read: %s; waiting for a file there",
                 f->path, error == NO_FILE ? "it is no regular file any more" : once_errno_text(error));
    f->path_error = error;
}

static int look_at_path(file_source *f, once_error *err)
{
    struct stat st;
    const open_file *file = current(f);
    int error = 0, fd = -1;
    if (stat(f->path, &st) != 0) error = errno == ENOENT ? 0 : errno; /* for a while there is none */
    else if (file && (uint64_t)st.st_dev == file->place.device && st.st_ino == file->place.inode) error = 0;
    else if (!S_ISREG(st.st_mode)) error = S_ISDIR(st.st_mode) ? EISDIR : NO_FILE;
    else if (!has_room(f)) error = 0; /* when one of them is over */
    else if ((fd = open_path(f)) < 0) error = errno == ENOENT ? 0 : errno;
    tell_of_path(f, error);
    return fd < 0 ? ONCE_OK : take_new_file(f, fd, err);
}

/* What was read must still be there. */
static bool is_changed(const open_file *file)
{
    struct stat st;
    char tail[sizeof file->tail];
    if (fstat(file->fd, &st) != 0) return false; /* the next read says what is wrong */
    if (st.st_size < file->read) return true;
    if (file->tail_len &&
        (pread(file->fd, tail, file->tail_len, file->read - (int64_t)file->tail_len) != (ssize_t)file->tail_len ||
         memcmp(tail, file->tail, file->tail_len) != 0))
        return true;
    return !once_place_head_fits(file->fd, &file->place);
}

/* The file was truncated in place. Its descriptor is that of the new content; the old content may be in a copy. */
static int was_truncated(file_source *f, size_t i, once_error *err)
{
    assert(i < f->n && f->regular);
    open_file *file = &f->files[i];
    once_place read = file->place;
    read.offset = (uint64_t)file->read;
    read.tail_len = file->tail_len;
    read.tail = once_place_hash(file->tail, file->tail_len);
    read.part_len = read.part_kept = 0;
    const int copy = find_elsewhere(f, &read, true);
    const bool has_path = i == f->n - 1;
    const int fd = file->fd;
    if (copy < 0)
        once_log(ONCE_LOG_WARN, "source_truncated",
                 "source '%s' was truncated, and no copy of it is found; what it had behind line %llu and was not "
                 "read, if anything, is lost",
                 f->path, (unsigned long long)file->place.line);
    else
        once_log(ONCE_LOG_INFO, "source_truncated", "source '%s' was truncated; the rest of it is read from a copy",
                 f->path);
    int rc = ONCE_OK;
    if (copy >= 0) {
        (void)once_place_look(copy, &file->place);
        file->fd = copy;
        file->at_eof = false;
        file->grown_ms = now_ms(f);
        if (lseek(copy, file->read, SEEK_SET) < 0) rc = bad_file(f, ONCE_E_IO, "cannot seek", errno, err);
        if (rc == ONCE_OK && has_path) rc = take_between(f, copy, fd, err);
    } else {
        file->fd = -1;
        remove_file(f, i);
    }
    if (rc != ONCE_OK || !has_path || !has_room(f)) {
        once_close_beside(NULL, fd); /* it is found again by the path */
        return rc;
    }
    once_place place = {.number = next_number(f)};
    (void)once_place_look(fd, &place);
    return go_to(f, add_file(f, fd, &place), err);
}

once_file_keeping *once__file_keeping(once_source *source) { return &((file_source *)source)->keeping; }
void once__file_looks(once_source *source) { ((file_source *)source)->looks = true; }

/* --- reading --- */

/* Waits until the descriptor has something, at most `ms`. Files always have. */
static bool wait_readable(file_source *f, int64_t ms)
{
    if (f->regular) return true;
    struct pollfd p = {.fd = f->files[0].fd, .events = POLLIN};
    while (ms >= 0 && !atomic_load(&f->woken)) {
        const int step = ms > IDLE_MS ? IDLE_MS : (int)ms;
        if (poll(&p, 1, step) != 0) return true; /* data, end, or an error that read() will name */
        ms -= step ? step : 1;
    }
    return false;
}

static void remember_tail(open_file *file, const char *data, size_t n)
{
    assert(file->tail_len <= sizeof file->tail);
    const size_t room = sizeof file->tail;
    if (n >= room) {
        memcpy(file->tail, data + n - room, room);
        file->tail_len = room;
        return;
    }
    const size_t keep = file->tail_len + n > room ? room - n : file->tail_len;
    memmove(file->tail, file->tail + file->tail_len - keep, keep);
    memcpy(file->tail + keep, data, n);
    file->tail_len = keep + n;
}

/* Reads more behind what is there; at_eof: there was nothing, for now. `changed`: what was there is not what is there.
 */
static int read_more(file_source *f, open_file *file, bool *changed, once_error *err)
{
    const once_env *env = f->base.env;
    char *room = once_lines_room(&file->lines, CHUNK);
    *changed = false;
    if (!room) return once_no_memory(err, "for a line of '%s'", f->path);
    ssize_t n;
    do n = env->read(env->self, file->fd, room, CHUNK);
    while (n < 0 && errno == EINTR);
    if (n < 0) return errno == EAGAIN ? ONCE_OK : bad_file(f, ONCE_E_IO, "cannot read", errno, err);
    /* Asked after reading: if it was changed before that, these bytes are not what follows. */
    if (f->regular && (follows(f) || n == 0) && is_changed(file)) {
        *changed = true;
        return follows(f)
                   ? ONCE_OK
                   : once_fail(err, ONCE_E_CORRUPT,
                               "source '%s' was truncated or written anew while it was read; run again", f->path);
    }
    *(n > 0 ? &file->grown_ms : &file->ended_ms) = now_ms(f);
    file->at_eof = n == 0;
    remember_tail(file, room, (size_t)n);
    once_lines_fed(&file->lines, (size_t)n);
    file->read += n;
    if (f->regular && file->place.head_len < ONCE_HEAD_BYTES && (uint64_t)file->read > file->place.head_len) {
        (void)once_place_look(file->fd, &file->place);
        f->version++;
    }
    return ONCE_OK;
}

/* --- splitting --- */

static bool is_blank(const once_line *line)
{
    if (line->len > line->kept) return false;
    for (size_t i = 0; i < line->kept; i++)
        if (line->data[i] != ' ' && line->data[i] != '\t' && line->data[i] != '\r') return false;
    return true;
}

static size_t write_number(uint64_t number, char out[20])
{
    char text[20], *at = text + sizeof text;
    do *--at = (char)('0' + number % 10);
    while (number /= 10);
    const size_t len = (size_t)(text + sizeof text - at);
    memcpy(out, at, len);
    return len;
}

/* A batch while it is filled. */
typedef struct filling {
    once_batch *batch;
    once_resume *resumes; /* of its items; NULL: of a pipe, which cannot go on */
    size_t max;           /* items */
    size_t bytes;         /* of bodies so far */
} filling;

static bool is_full(const filling *to) { return to->batch->n == to->max || to->bytes >= BATCH_BYTES; }

/* The end of a line that is cut is not in its body. */
static void keep_tail(const once_line *line, once_resume *resume)
{
    assert(line->ended && line->len > line->kept);
    const size_t len = line->ending < ONCE_TAIL_BYTES - 1 ? line->ending : ONCE_TAIL_BYTES - 1;
    resume->tail_len = len + 1;
    resume->tail = once_place_hash(line->end - len, len + 1);
}

static void add_item(const open_file *file, filling *to, const once_line *line, uint64_t number)
{
    assert(to->batch->n < to->max && number > 0);
    assert(line->kept <= line->len);
    const size_t i = to->batch->n++;
    once_item *item = &to->batch->items[i];
    *item = (once_item){.batch = to->batch, .message = {.body = {line->data, line->kept}, .sent_ms = ONCE_NO_TIME}};
    item->message.cut_from = line->len > line->kept ? line->len : 0;
    item->message.at.point.len = (size_t)number; /* until it is written */
    to->bytes += line->kept;
    if (!to->resumes) return;
    once_resume *resume = &to->resumes[i];
    *resume = (once_resume){.offset = (int64_t)file->place.offset, .line = file->place.line, .part = !line->ended};
    if (item->message.cut_from && line->ended) keep_tail(line, resume);
    item->resume = resume;
}

/* It was handed out without its newline, and has not grown. */
static bool is_known_part(const once_place *p, const once_line *line)
{
    return p->part_len && p->part_len == line->len && line->kept >= p->part_kept &&
           once_place_hash(line->data, p->part_kept) == p->part;
}

static void hand_out(const file_source *f, open_file *file, filling *to, const once_line *line)
{
    once_place *p = &file->place;
    const uint64_t number = p->line + 1;
    const bool again = is_known_part(p, line);
    if (line->ended) {
        p->offset += line->len + 1;
        p->line = number;
        p->part_len = p->part_kept = p->part = p->tail_len = 0;
    } else if (f->regular) { /* perhaps it goes on: then it is a message again */
        p->part_len = line->len;
        p->part_kept = line->kept;
        p->part = once_place_hash(line->data, p->part_kept);
    }
    if (!again && !is_blank(line)) add_item(file, to, line, number);
}

/* Bodies and line numbers of items[from...] into the arena, in two pieces. */
static bool copy_items(once_batch *batch, size_t from)
{
    const size_t n = batch->n - from;
    if (n == 0) return true;
    const once_message *last = &batch->items[batch->n - 1].message;
    const char *base = batch->items[from].message.body.data;
    const size_t size = (size_t)(last->body.data - base) + last->body.len;
    char *bodies = once_arena_alloc(&batch->arena, size + 1), *points = once_arena_alloc(&batch->arena, n * 21);
    if (!bodies || !points) return false;
    memcpy(bodies, base, size);
    for (size_t i = from; i < batch->n; i++) {
        once_message *m = &batch->items[i].message;
        m->body.data = bodies + (m->body.data - base);
        m->at.point = (once_bytes){points, write_number(m->at.point.len, points)};
        points[m->at.point.len] = '\0';
        points += m->at.point.len + 1;
    }
    return true;
}

/* Takes what lines there are, up to the bounds of the batch. All or nothing. */
static int take_lines(file_source *f, open_file *file, bool last, filling *to, once_error *err)
{
    assert(!is_full(to));
    const once_lines lines = file->lines; /* to go back to: taking a line changes no bytes */
    const once_place place = file->place;
    const filling was = *to;
    const size_t n = to->batch->n;
    once_line line;
    while (!is_full(to) && once_lines_next(&file->lines, last, &line)) hand_out(f, file, to, &line);
    if (copy_items(to->batch, n)) return ONCE_OK;
    file->lines = lines;
    file->place = place;
    *to = was;
    to->batch->n = n;
    return once_no_memory(err, "for a batch of '%s'", f->path);
}

/* Nothing will follow what is in it. */
static bool is_over(const file_source *f, const open_file *file)
{
    if (!file->at_eof) return false;
    if (!follows(f)) return true;
    return file != &f->files[f->n - 1] && file->ended_ms - file->grown_ms >= ROTATED_MS;
}

/* One step: takes what there is, or reads. */
static int fill_some(file_source *f, size_t i, filling *to, bool *more, once_error *err)
{
    open_file *file = &f->files[i];
    const bool over = is_over(f, file);
    bool changed;
    int rc = take_lines(f, file, over, to, err);
    *more = false;
    if (rc != ONCE_OK || is_full(to) || over) return rc;
    if (atomic_load(&f->woken) || !wait_readable(f, to->batch->n ? f->base.spec->batch_wait_ms : IDLE_MS))
        return ONCE_OK;
    rc = read_more(f, file, &changed, err);
    if (rc == ONCE_OK && changed) {
        const uint64_t number = file->place.number;
        rc = was_truncated(f, i, err);
        *more = rc == ONCE_OK && i < f->n && f->files[i].place.number == number; /* a copy goes on */
        return rc;
    }
    *more = rc == ONCE_OK && (!file->at_eof || is_over(f, file));
    return rc;
}

static int fill_from(file_source *f, size_t i, filling *to, once_error *err)
{
    int rc = ONCE_OK;
    for (bool more = true; more && rc == ONCE_OK;) rc = fill_some(f, i, to, &more, err);
    return rc;
}

/* From the first file that has something: a batch is of one file. */
static int fill(file_source *f, filling *to, size_t *index, once_error *err)
{
    int rc = f->regular && follows(f) ? look_at_path(f, err) : ONCE_OK;
    for (size_t i = 0; rc == ONCE_OK && i < f->n && (i == 0 || !atomic_load(&f->woken));) {
        const uint64_t number = f->files[i].place.number;
        rc = fill_from(f, i, to, err);
        if (to->batch->n) {
            for (*index = 0; *index + 1 < f->n && f->files[*index].place.number != number;) ++*index;
            return rc;
        }
        if (rc != ONCE_OK || i >= f->n || f->files[i].place.number != number) continue; /* it is gone */
        if (i + 1 < f->n && is_over(f, &f->files[i]) && once_lines_held(&f->files[i].lines) == 0) remove_file(f, i);
        else i++;
    }
    return rc;
}

/* The bytes before the place, when nothing was read behind it. */
static once_place place_now(const open_file *file)
{
    once_place place = file->place;
    const bool all = (int64_t)place.offset == file->read && place.part_len == 0;
    place.tail_len = all ? file->tail_len : 0;
    place.tail = all ? once_place_hash(file->tail, file->tail_len) : 0;
    return place;
}

/* Where the messages of the batch are, in words and for the cursor. `name` has room for the path and a number. */
static void set_origin(file_source *f, const filling *of, size_t index, char *name, once_origin *origin)
{
    once_batch *batch = of->batch;
    assert(index < f->n && batch->n > 0);
    once_bytes place = f->base.spec->source.name;
    const uint64_t number = f->files[index].place.number;
    if (number > 1) {
        memcpy(name, place.data, place.len);
        name[place.len] = '/';
        place = (once_bytes){name, place.len + 1 + write_number(number, name + place.len + 1)};
        name[place.len] = '\0';
    }
    for (size_t i = 0; i < batch->n; i++) {
        batch->items[i].message.at.place = place;
        batch->items[i].delivery = ++f->delivered;
    }
    if (!of->resumes) return;
    *origin = (once_origin){.index = index, .version = f->version, .places.n = f->n};
    for (size_t i = 0; i < f->n; i++) origin->places.at[i] = place_now(&f->files[i]);
    for (size_t i = 0; i < batch->n; i++) of->resumes[i].origin = origin;
}

static void note_left(file_source *f)
{
    int64_t left = f->regular ? 0 : -1;
    for (size_t i = 0; i < f->n && f->regular; i++) {
        struct stat st;
        if (fstat(f->files[i].fd, &st) == 0 && st.st_size > f->files[i].read) left += st.st_size - f->files[i].read;
    }
    atomic_store(&f->left, left);
}

static bool all_over(const file_source *f)
{
    return !follows(f) && f->n == 1 && f->files[0].at_eof && once_lines_held(&f->files[0].lines) == 0;
}

static int file_fetch(once_source *source, once_fetch *fetch, once_error *err)
{
    file_source *f = (file_source *)source;
    once_batch *batch = fetch->batch;
    size_t index = 0;
    fetch->at_end = false;
    batch->n = 0;
    if (f->failed != ONCE_OK) {
        if (err) *err = f->failure;
        const int rc = f->failed;
        f->failed = ONCE_OK;
        return rc;
    }
    if (fetch->max == 0 || fetch->n_paused) return ONCE_OK; /* it has one stream, and nobody to keep awake */
    if (fetch->rest) atomic_store(&f->woken, true);
    batch->items = once_arena_new(&batch->arena, once_item, fetch->max);
    once_origin *origin = once_arena_new(&batch->arena, once_origin, 1);
    char *name = once_arena_alloc(&batch->arena, source->spec->source.name.len + 22);
    once_resume *resumes = f->regular ? once_arena_new(&batch->arena, once_resume, fetch->max) : NULL;
    if (!batch->items || !origin || !name || (f->regular && !resumes))
        return once_no_memory(err, "for a batch of '%s'", f->path);
    filling to = {.batch = batch, .max = fetch->max, .resumes = resumes};
    int rc = fill(f, &to, &index, &f->failure);
    atomic_store(&f->woken, false);
    note_left(f);
    if (batch->n) { /* what was read comes first; what failed behind it is said next time */
        f->failed = rc;
        rc = ONCE_OK;
        set_origin(f, &to, index, name, origin);
    } else if (rc == ONCE_OK && follows(f)) {
        once_env_sleep_ms(source->env, IDLE_MS);
    }
    if (rc != ONCE_OK && err) *err = f->failure;
    fetch->at_end = rc == ONCE_OK && (all_over(f) || (f->looks && batch->n == 0));
    return rc;
}

/* Nothing to tell a file. What was not settled is read again by the next run, and suppressed where it was settled. */
static int file_ack(once_source *source, once_receipt *list, size_t n, once_error *err)
{
    (void)source, (void)list, (void)n, (void)err;
    return ONCE_OK;
}

static void file_wake(once_source *source) { atomic_store(&((file_source *)source)->woken, true); }
/* Of a pipe: whole lines, and the part of one without its newline. */
static uint64_t file_held(const once_source *source)
{
    const file_source *f = (const file_source *)source;
    if (f->regular || f->n == 0) return 0;
    once_lines lines = f->files[0].lines; /* taking a line changes no bytes */
    once_line line;
    uint64_t n = 0;
    while (once_lines_next(&lines, true, &line)) n += !is_blank(&line);
    return n;
}

static const char *file_stream_name(once_source *source, uint32_t stream)
{
    const file_source *f = (const file_source *)source;
    (void)stream; /* it has one */
    return f->is_stdin ? "standard input" : f->path;
}

static int64_t file_lag(once_source *source, uint32_t stream)
{
    (void)stream; /* it has one */
    return atomic_load(&((file_source *)source)->left);
}

const once_source_ops once__file_ops = {
    .open = file_open,
    .close = file_close,
    .bits = file_bits,
    .seek = once__file_seek,
    .keep = once__file_keep,
    .look = once__file_look,
    .fetch = file_fetch,
    .ack = file_ack,
    .wake = file_wake,
    .held = file_held,
    .lag = file_lag,
    .stream_name = file_stream_name,
};
