/* The file source: NDJSON, one message a line. "-" is standard input; `follow` waits at the end for more.
 *
 * Lines are split in place: a chunk is read into the batch's arena and the bodies point into it. What is left behind the
 * last whole line is carried over to the next batch. Coordinates are the path as it was written and the line number, blank
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

#include "base/buf.h"
#include "base/hash.h"
#include "source/source.h"

#include "base/banned.h"

#define CHUNK (256u << 10)
#define LINE_MAX_BYTES (64u << 20) /* a longer line is cut; it is a dead letter anyway */
#define IDLE_MS 100

typedef struct file_source {
    once_source base;
    int fd;
    bool is_stdin, regular, at_eof;
    uint64_t line;     /* of the last line handed out */
    once_buf carry;    /* read, not yet handed out */
    _Atomic int64_t offset; /* bytes read; `left` asks from another thread */
    int64_t given;     /* bytes handed out; what is carried begins here */
    dev_t device;
    ino_t inode;
    char *path;
    atomic_bool woken;
} file_source;

static int bad_file(const file_source *f, int status, const char *what, int error, once_error *err)
{
    return once_fail(err, status, "source '%s': %s: %s", f->path, what, strerror(error));
}

static void file_close(once_source *source)
{
    file_source *f = (file_source *)source;
    if (f->fd >= 0 && !f->is_stdin) source->env->close(source->env->self, f->fd);
    once_buf_release(&f->carry);
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
    once_buf_init(&f->carry, LINE_MAX_BYTES + 2 * CHUNK);
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

/* Reads more behind what is carried; at_eof: there was nothing, for now. */
static int read_more(file_source *f, once_error *err)
{
    const once_env *env = f->base.env;
    if (!once_buf_reserve(&f->carry, CHUNK)) return once_fail(err, ONCE_E_NOMEM, "out of memory for a line of '%s'", f->path);
    ssize_t n;
    do n = env->read(env->self, f->fd, f->carry.data + f->carry.len, CHUNK);
    while (n < 0 && errno == EINTR);
    if (n < 0) return errno == EAGAIN ? ONCE_OK : bad_file(f, ONCE_E_IO, "cannot read", errno, err);
    f->at_eof = n == 0;
    f->carry.len += (size_t)n;
    f->offset += n;
    return ONCE_OK;
}

/* A line that grows beyond all bounds keeps its beginning and loses the rest. */
static void cut_long_line(file_source *f)
{
    if (f->carry.len <= LINE_MAX_BYTES || memrchr(f->carry.data, '\n', f->carry.len)) return;
    f->carry.len = LINE_MAX_BYTES;
}

/* --- splitting --- */

static bool is_blank(const char *at, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (at[i] != ' ' && at[i] != '\t' && at[i] != '\r') return false;
    return true;
}

static bool write_number(once_arena *arena, uint64_t number, once_bytes *out)
{
    char text[20], *at = text + sizeof text;
    do *--at = (char)('0' + number % 10);
    while (number /= 10);
    return once_arena_copy(arena, (once_bytes){at, (size_t)(text + sizeof text - at)}, out);
}

/* Moves what is carried into the arena and hands out up to `max` lines of it. `last`: the end counts as the end of a line. */
static int split(file_source *f, size_t max, bool last, once_batch *batch, once_error *err)
{
    char *data = once_arena_alloc(&batch->arena, f->carry.len + 1);
    if (!data) return once_fail(err, ONCE_E_NOMEM, "out of memory for a batch");
    if (f->carry.len) memcpy(data, f->carry.data, f->carry.len);
    size_t at = 0;
    while (batch->n < max && at < f->carry.len) {
        const char *end = memchr(data + at, '\n', f->carry.len - at);
        if (!end && !last) break;
        const size_t len = (end ? (size_t)(end - data) : f->carry.len) - at;
        f->line++;
        if (!is_blank(data + at, len)) {
            once_item *item = &batch->items[batch->n++];
            *item = (once_item){.batch = batch, .message = {.body = {data + at, len}, .sent_ms = ONCE_NO_TIME}};
            item->message.at.place = f->base.spec->source.path;
            item->resume = f->given + (int64_t)(at + len + (end != NULL));
            if (!write_number(&batch->arena, f->line, &item->message.at.point)) return once_fail(err, ONCE_E_NOMEM, "out of memory for a batch");
        }
        at += len + (end != NULL);
    }
    if (at) memmove(f->carry.data, f->carry.data + at, f->carry.len - at);
    f->carry.len -= at;
    f->given += (int64_t)at;
    return ONCE_OK;
}

static size_t lines_carried(const file_source *f, size_t enough)
{
    size_t n = 0;
    const char *at = f->carry.data, *end = at + f->carry.len;
    while (n < enough && at < end && (at = memchr(at, '\n', (size_t)(end - at)))) n++, at++;
    return n;
}

static int file_fetch(once_source *source, size_t max, once_batch *batch, bool *at_end, once_error *err)
{
    file_source *f = (file_source *)source;
    const bool follow = source->spec->source.follow;
    int rc = ONCE_OK;
    size_t lines = f->carry.len ? lines_carried(f, max) : 0;
    *at_end = false;
    batch->n = 0;
    while (lines < max && !atomic_load(&f->woken)) {
        if (!wait_readable(f, lines ? source->spec->batch_wait_ms : IDLE_MS)) break;
        rc = read_more(f, err);
        if (rc != ONCE_OK) return rc;
        if (f->at_eof) {
            if (!follow || lines) break;
            rc = still_the_same(f, err);
            if (rc != ONCE_OK) return rc;
            once_env_sleep_ms(source->env, IDLE_MS);
            break;
        }
        cut_long_line(f);
        lines = lines_carried(f, max);
    }
    atomic_store(&f->woken, false);
    const bool last = f->at_eof && !follow;
    batch->items = once_arena_new(&batch->arena, once_item, max);
    if (!batch->items) return once_fail(err, ONCE_E_NOMEM, "out of memory for a batch");
    rc = split(f, max, last, batch, err);
    if (rc != ONCE_OK) batch->n = 0;
    *at_end = last && f->carry.len == 0;
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
