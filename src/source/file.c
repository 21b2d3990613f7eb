/* The file source: NDJSON, one message a line. "-" is standard input; `follow` waits at the end for more.
 *
 * Everything is bounded in bytes: a batch, and a line, of which no more than message_max is kept. A longer one is handed out cut,
 * and says so (once_message.cut_from). Coordinates are the path as it was written and the line number, blank
 * lines included in the count, so they are the same on every reading. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "source/lines.h"
#include "source/source.h"

#include "base/banned.h"

#define CHUNK (256u << 10)
#define BATCH_BYTES (4u << 20)     /* a batch is handed out when it has so many, or `max` messages */
#define LINE_MAX_BYTES (64u << 20)
#define IDLE_MS 100

typedef struct file_source {
    once_source base;
    int fd;
    bool is_stdin, regular, at_eof;
    uint64_t line;     /* of the last line handed out */
    once_lines lines;  /* read, not yet handed out */
    _Atomic int64_t offset; /* bytes read; `left` asks from another thread */
    int64_t given;     /* bytes handed out; the lines begin here */
    dev_t device;
    ino_t inode;
    char *path;
    atomic_bool woken;
    int failed; /* not ONCE_OK: what the next fetch has to say, which is `failure` */
    once_error failure;
} file_source;

static int bad_file(const file_source *f, int status, const char *what, int error, once_error *err)
{
    return once_fail(err, status, "source '%s': %s: %s", f->path, what, strerror(error));
}

static void file_close(once_source *source)
{
    file_source *f = (file_source *)source;
    if (f->fd >= 0 && !f->is_stdin) source->env->close(source->env->self, f->fd);
    once_lines_release(&f->lines);
    free(f->path);
    free(f);
}

static int file_open(const once_spec *spec, const once_env *env, once_source **out, once_error *err)
{
    file_source *f = calloc(1, sizeof *f);
    if (!f || !(f->path = strndup(spec->source.path.data, spec->source.path.len))) {
        free(f);
        return once_fail(err, ONCE_E_NOMEM, "out of memory for the source");
    }
    f->base = (once_source){.ops = &once_source_file, .spec = spec, .env = env};
    f->is_stdin = strcmp(f->path, "-") == 0;
    once_lines_init(&f->lines, spec->message_max);
    f->fd = f->is_stdin ? STDIN_FILENO : env->open(env->self, f->path, O_RDONLY | O_CLOEXEC, 0);

    struct stat st;
    int rc = ONCE_OK;
    if (f->fd < 0) rc = bad_file(f, ONCE_E_CONFIG, "cannot open", errno, err);
    else if (fstat(f->fd, &st) != 0) rc = bad_file(f, ONCE_E_IO, "cannot stat", errno, err);
    else if (S_ISDIR(st.st_mode)) rc = once_fail(err, ONCE_E_CONFIG, "source '%s' is a directory; name a file", f->path);
    if (rc != ONCE_OK) {
        file_close(&f->base);
        return rc;
    }
    f->regular = S_ISREG(st.st_mode);
    f->device = st.st_dev;
    f->inode = st.st_ino;
    *out = &f->base;
    return ONCE_OK;
}

static unsigned file_bits(const once_source *source)
{
    const file_source *f = (const file_source *)source;
    return (source->spec->source.follow ? 0u : ONCE_SOURCE_FINITE) | (f->regular ? ONCE_SOURCE_REDELIVERS : 0u);
}

/* --- the cursor --- */

/* The message before the cursor must still be there: otherwise this is another file, and its lines would be skipped unseen. */
static int check_place(file_source *f, const once_cursor *cursor, once_error *err)
{
    struct stat st;
    if (fstat(f->fd, &st) != 0) return bad_file(f, ONCE_E_IO, "cannot stat", errno, err);
    bool same = st.st_size >= cursor->offset && cursor->offset > 0 && cursor->len < (uint64_t)cursor->offset + 1 && cursor->len <= LINE_MAX_BYTES;
    char *body = same ? malloc(cursor->len + 2) : NULL;
    if (same && !body) return once_fail(err, ONCE_E_NOMEM, "out of memory for the source");
    if (same) { /* the line may end without a newline, at the end of the file */
        const size_t want = cursor->len + (cursor->len < (uint64_t)cursor->offset);
        const ssize_t got = pread(f->fd, body, want, cursor->offset - (int64_t)want);
        same = got == (ssize_t)want;
        const once_hash with_newline = once_xxh128(0, body, cursor->len), without = once_xxh128(0, body + (want - cursor->len), cursor->len);
        same = same && (once_hash_equal(with_newline, cursor->hash) || once_hash_equal(without, cursor->hash));
    }
    free(body);
    if (same) return ONCE_OK;
    return once_fail(err, ONCE_E_CORRUPT, "source '%s' is not the file that its cursor belongs to: it was truncated or replaced; use a new path, or 'cursor: false'", f->path);
}

static int file_seek(once_source *source, once_hash which, const once_cursor *cursor, once_error *err)
{
    file_source *f = (file_source *)source;
    once_error why;
    int rc = once_cursor_lock(source->env, f->fd, which, &why);
    if (rc != ONCE_OK) return once_fail(err, rc, "source '%s': %s", f->path, why.text);
    if (!cursor) return ONCE_OK;
    rc = check_place(f, cursor, err);
    if (rc != ONCE_OK) return rc;
    if (lseek(f->fd, cursor->offset, SEEK_SET) < 0) return bad_file(f, ONCE_E_IO, "cannot seek", errno, err);
    f->offset = f->given = cursor->offset;
    f->line = 0;
    for (size_t i = 0; i < cursor->line.len; i++) f->line = f->line * 10 + (uint64_t)(cursor->line.data[i] - '0');
    return ONCE_OK;
}

once_bytes once_cursor_write(const once_cursor *cursor, char out[ONCE_CURSOR_TEXT])
{
    const int n = snprintf(out, ONCE_CURSOR_TEXT, "%lld %.*s %llu %016llx%016llx", (long long)cursor->offset, (int)cursor->line.len,
                           cursor->line.data, (unsigned long long)cursor->len, (unsigned long long)cursor->hash.a, (unsigned long long)cursor->hash.b);
    assert(n > 0 && n < ONCE_CURSOR_TEXT);
    return (once_bytes){out, (size_t)n};
}

bool once_cursor_read(once_bytes text, once_cursor *out)
{
    char copy[ONCE_CURSOR_TEXT];
    long long offset;
    unsigned long long len, a, b;
    int from = 0, to = 0, end = 0;
    if (text.len >= sizeof copy) return false;
    memcpy(copy, text.data, text.len);
    copy[text.len] = 0;
    if (sscanf(copy, "%lld %n%*[0-9]%n %llu %16llx%16llx%n", &offset, &from, &to, &len, &a, &b, &end) != 4 || (size_t)end != text.len) return false;
    *out = (once_cursor){.offset = offset, .line = {text.data + from, (size_t)(to - from)}, .len = len, .hash = {a, b}};
    return true;
}

/* --- reading --- */

/* Waits until the descriptor has something, at most `ms`. Files always have. */
static bool wait_readable(file_source *f, int64_t ms)
{
    if (f->regular) return true;
    struct pollfd p = {.fd = f->fd, .events = POLLIN};
    while (ms >= 0 && !atomic_load(&f->woken)) {
        const int step = ms > IDLE_MS ? IDLE_MS : (int)ms;
        if (poll(&p, 1, step) != 0) return true; /* data, end, or an error that read() will name */
        ms -= step ? step : 1;
    }
    return false;
}

/* The followed file must still be the one we read from: a shorter or another one would reuse its coordinates. */
static int still_the_same(file_source *f, once_error *err)
{
    struct stat here, there;
    if (f->is_stdin || !f->regular) return ONCE_OK;
    if (fstat(f->fd, &here) != 0) return bad_file(f, ONCE_E_IO, "cannot stat", errno, err);
    if (here.st_size < f->offset)
        return once_fail(err, ONCE_E_CORRUPT, "source '%s' was truncated while it was followed; its line numbers name other messages now", f->path);
    if (stat(f->path, &there) != 0 || there.st_dev != f->device || there.st_ino != f->inode)
        return once_fail(err, ONCE_E_CORRUPT, "source '%s' was replaced while it was followed; start again with a new path", f->path);
    return ONCE_OK;
}

/* Reads more behind what is there; at_eof: there was nothing, for now. */
static int read_more(file_source *f, once_error *err)
{
    const once_env *env = f->base.env;
    char *room = once_lines_room(&f->lines, CHUNK);
    if (!room) return once_fail(err, ONCE_E_NOMEM, "out of memory for a line of '%s'", f->path);
    ssize_t n;
    do n = env->read(env->self, f->fd, room, CHUNK);
    while (n < 0 && errno == EINTR);
    if (n < 0) return errno == EAGAIN ? ONCE_OK : bad_file(f, ONCE_E_IO, "cannot read", errno, err);
    f->at_eof = n == 0;
    once_lines_fed(&f->lines, (size_t)n);
    f->offset += n;
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
    size_t max;   /* items */
    size_t bytes; /* of bodies so far */
} filling;

static bool is_full(const filling *to) { return to->batch->n == to->max || to->bytes >= BATCH_BYTES; }

static void add_item(file_source *f, filling *to, const once_line *line)
{
    once_item *item = &to->batch->items[to->batch->n++];
    *item = (once_item){.batch = to->batch, .message = {.body = {line->data, line->kept}, .sent_ms = ONCE_NO_TIME}};
    item->message.cut_from = line->len > line->kept ? line->len : 0;
    item->message.at = (once_coordinates){f->base.spec->source.path, {NULL, (size_t)f->line}};
    item->resume = f->given;
    to->bytes += line->kept;
}

/* Bodies and line numbers of items[from...] into the arena, in two pieces. */
static bool copy_items(once_batch *batch, size_t from)
{
    const size_t n = batch->n - from;
    if (n == 0) return true;
    const once_message *last = &batch->items[batch->n - 1].message;
    const char *base = batch->items[from].message.body.data;
    const size_t size = (size_t)(last->body.data - base) + last->body.len;
    char *bodies = once_arena_alloc(&batch->arena, size + 1), *points = once_arena_alloc(&batch->arena, n * 20);
    if (!bodies || !points) return false;
    memcpy(bodies, base, size);
    for (size_t i = from; i < batch->n; i++) {
        once_message *m = &batch->items[i].message;
        m->body.data = bodies + (m->body.data - base);
        m->at.point = (once_bytes){points, write_number(m->at.point.len, points)};
        points += m->at.point.len;
    }
    return true;
}

/* Takes what lines there are, up to the bounds of the batch. All or nothing. */
static int take_lines(file_source *f, bool last, filling *to, once_error *err)
{
    const once_lines lines = f->lines; /* to go back to: taking a line changes no bytes */
    const filling was = *to;
    const size_t n = to->batch->n;
    const int64_t given = f->given;
    const uint64_t number = f->line;
    once_line line;
    while (!is_full(to) && once_lines_next(&f->lines, last, &line)) {
        f->line++;
        f->given += (int64_t)line.len + line.ended;
        if (!is_blank(&line)) add_item(f, to, &line);
    }
    if (copy_items(to->batch, n)) return ONCE_OK;
    f->lines = lines;
    f->given = given;
    f->line = number;
    *to = was;
    to->batch->n = n;
    return once_fail(err, ONCE_E_NOMEM, "out of memory for a batch of '%s'", f->path);
}

/* One step of a fetch: takes what there is, or reads. */
static int fill_some(file_source *f, filling *to, bool *more, once_error *err)
{
    const bool follow = f->base.spec->source.follow;
    int rc = take_lines(f, f->at_eof && !follow, to, err);
    *more = false;
    if (rc != ONCE_OK || is_full(to) || (f->at_eof && !follow)) return rc;
    if (!wait_readable(f, to->batch->n ? f->base.spec->batch_wait_ms : IDLE_MS)) return ONCE_OK;
    rc = read_more(f, err);
    if (rc != ONCE_OK) return rc;
    *more = !f->at_eof || !follow;
    if (*more || to->batch->n) return ONCE_OK;
    rc = still_the_same(f, err);
    if (rc == ONCE_OK) once_env_sleep_ms(f->base.env, IDLE_MS);
    return rc;
}

static int file_fetch(once_source *source, size_t max, once_batch *batch, bool *at_end, once_error *err)
{
    file_source *f = (file_source *)source;
    *at_end = false;
    batch->n = 0;
    if (f->failed != ONCE_OK) {
        if (err) *err = f->failure;
        const int rc = f->failed;
        f->failed = ONCE_OK;
        return rc;
    }
    batch->items = once_arena_new(&batch->arena, once_item, max);
    if (!batch->items) return once_fail(err, ONCE_E_NOMEM, "out of memory for a batch of '%s'", f->path);
    filling to = {.batch = batch, .max = max};
    int rc = ONCE_OK;
    for (bool more = true; more && rc == ONCE_OK && !atomic_load(&f->woken);) rc = fill_some(f, &to, &more, &f->failure);
    atomic_store(&f->woken, false);
    if (rc != ONCE_OK && batch->n) { /* what was read comes first; it is said next time */
        f->failed = rc;
        return ONCE_OK;
    }
    if (rc != ONCE_OK && err) *err = f->failure;
    *at_end = rc == ONCE_OK && f->at_eof && !source->spec->source.follow && once_lines_held(&f->lines) == 0;
    return rc;
}

/* Nothing to tell a file. What was not settled is read again by the next run, and suppressed where it was settled. */
static int file_ack(once_source *source, uint64_t upto, once_error *err)
{
    (void)source, (void)upto, (void)err;
    return ONCE_OK;
}

static void file_wake(once_source *source) { atomic_store(&((file_source *)source)->woken, true); }

static int64_t file_left(once_source *source)
{
    const file_source *f = (const file_source *)source;
    struct stat st;
    if (!f->regular || fstat(f->fd, &st) != 0) return -1;
    return st.st_size - f->offset;
}

const once_source_ops once_source_file = {
    .name = "file",
    .summary = "NDJSON, one message a line; '-' is standard input",
    .open = file_open,
    .close = file_close,
    .bits = file_bits,
    .seek = file_seek,
    .fetch = file_fetch,
    .ack = file_ack,
    .wake = file_wake,
    .left = file_left,
};

const once_source_ops *const *once_source_list(size_t *n)
{
    static const once_source_ops *const sources[] = {&once_source_file};
    *n = sizeof sources / sizeof *sources;
    return sources;
}
