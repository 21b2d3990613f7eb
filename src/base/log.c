/* The log queue, and the thread that writes it out (base/log.h).
 *
 * The queue is a ring of records: a header, then the line with its newline. A record that would cross the end of the
 * ring is split; it is always copied out before it is read. The header says how many lines were dropped just before the
 * record, so that the report of a gap is where the gap is.
 *
 * `lock` is held for copying lines in or out, never across a system call that may block, so a caller waits for a few
 * copies at most. The writer waits for the descriptor with poll before each write of at most PIPE_BUF bytes. It does
 * not change the flags of the descriptor, because other processes may share it. A terminal or a file can still make the
 * write hang; then only the writer hangs, and closing the log leaves it behind. */
#include "base/log.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/duration.h"
#include "base/env.h"

#include "base/banned.h"

#define RING_SIZE (256 * 1024)
#define MESSAGE_MAX 2048
#define CHUNK_SIZE 16384
/* An escaped byte takes at most six; a report and a line fit into a chunk. */
#define LINE_MAX_BYTES (CHUNK_SIZE - 512)
#define CLOSE_WAIT_MS 200
#define POLL_MS 50
#define RETRY_MS 5

typedef struct record {
    uint32_t len;            /* of the line that follows */
    uint32_t dropped_before; /* lines that found no room since the record before this one */
} record;

typedef struct logger {
    int fd;
    once_log_format format;
    pthread_t writer;
    pthread_cond_t changed; /* signalled when a line came, and when `closing` or `ended` was set */
    bool closing;           /* the writer writes what is there, then ends */
    bool abandoned;         /* close has given up: the writer ends as soon as it can, and frees this */
    bool ended;
    bool terminal;

    uint32_t dropped;  /* lines that found no room since the last record */
    uint64_t taken;    /* lines that the writer has taken out and not written yet */
    size_t head, used; /* of `ring`: first byte to read, bytes in it */
    char ring[RING_SIZE];
} logger;

/* What the writer is about to write; only the writer uses it. */
typedef struct chunk {
    char clear[4]; /* clears the line of a terminal; directly before the lines, to be one write with them */
    char data[CHUNK_SIZE];
    size_t len;
    uint64_t lines;    /* in it, not counting a report of dropped lines */
    uint64_t reported; /* lines that it reports as dropped */
} chunk;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static logger *current; /* under `lock`; NULL: lines go nowhere */
static atomic_int wanted = -1;
static atomic_uint_least64_t lost_lines;
static atomic_bool clears_line;

const char *once_log_level_name(once_log_level level)
{
    static const char *const names[ONCE_LOG_LEVELS] = {
#define ONCE_LOG_LEVEL_NAME(name, text) [ONCE_LOG_##name] = text,
        ONCE_LOG_LEVEL_MAP(ONCE_LOG_LEVEL_NAME)
#undef ONCE_LOG_LEVEL_NAME
    };
    assert((unsigned)level < ONCE_LOG_LEVELS);
    return names[level];
}

bool once_log_level_parse(const char *name, once_log_level *ret_level)
{
    assert(name);
    assert(ret_level);
    for (int level = 0; level < ONCE_LOG_LEVELS; level++)
        if (strcmp(name, once_log_level_name((once_log_level)level)) == 0) {
            *ret_level = (once_log_level)level;
            return true;
        }
    return false;
}

bool once_log_wants(once_log_level level) { return (int)level <= atomic_load_explicit(&wanted, memory_order_relaxed); }

uint64_t once_log_dropped(void) { return atomic_load(&lost_lines); }

/* ---- the line ---- */

static bool is_bare(once_bytes text)
{
    for (size_t i = 0; i < text.len; i++)
        if (text.data[i] <= ' ' || text.data[i] >= 0x7f || strchr("\"=\\", text.data[i]))
            return false; /* bytes from 0x80 on fail one of the two comparisons, whether char is signed or not */
    return text.len > 0;
}

static void put_bytes(once_buf *line, once_log_format format, const char *name, once_bytes value, bool number)
{
    if (format == ONCE_LOG_JSON) {
        once_buf_printf(line, "%s\"%s\":", line->len == 0 ? "{" : ",", name);
    } else {
        once_buf_printf(line, "%s%s=", line->len == 0 ? "" : " ", name);
        number = is_bare(value);
    }
    if (number) {
        once_buf_append(line, value.data, value.len);
        return;
    }
    once_buf_json(line, value);
}

static void put_field(once_buf *line, once_log_format format, const char *name, const char *value)
{
    put_bytes(line, format, name, (once_bytes){value, strlen(value)}, false);
}

static bool format_line(once_buf *line, once_log_format format, once_log_level level, const char *event,
                        const once_log_field *fields, size_t n, const char *message)
{
    char time_text[ONCE_TIME_TEXT];
    put_field(line, format, "time", once_time_format(once_env_wall_ms(once_env_real()), time_text));
    put_field(line, format, "level", once_log_level_name(level));
    put_field(line, format, "event", event);
    for (size_t i = 0; i < n; i++)
        if (fields[i].value.len) put_bytes(line, format, fields[i].name, fields[i].value, fields[i].number);
    if (*message) put_field(line, format, "msg", message);
    return once_buf_puts(line, format == ONCE_LOG_JSON ? "}\n" : "\n");
}

/* ---- the ring, under `lock` ---- */

static void ring_put(logger *log, const void *data, size_t len)
{
    assert(log->used + len <= RING_SIZE);
    size_t at = (log->head + log->used) % RING_SIZE;
    size_t first = len < RING_SIZE - at ? len : RING_SIZE - at;
    memcpy(log->ring + at, data, first);
    memcpy(log->ring, (const char *)data + first, len - first);
    log->used += len;
}

static void ring_peek(const logger *log, size_t skip, void *out, size_t len)
{
    assert(skip + len <= log->used);
    size_t at = (log->head + skip) % RING_SIZE;
    size_t first = len < RING_SIZE - at ? len : RING_SIZE - at;
    memcpy(out, log->ring + at, first);
    memcpy((char *)out + first, log->ring, len - first);
}

static void drop_line(logger *log)
{
    if (log->dropped < UINT32_MAX) log->dropped++;
    atomic_fetch_add(&lost_lines, 1);
}

static void enqueue(logger *log, const once_buf *line)
{
    if (line->failed || RING_SIZE - log->used < sizeof(record) + line->len) {
        drop_line(log);
        return;
    }
    assert(line->len > 0 && line->len <= LINE_MAX_BYTES);
    record head = {(uint32_t)line->len, log->dropped};
    log->dropped = 0;
    ring_put(log, &head, sizeof head);
    ring_put(log, line->data, line->len);
    pthread_cond_broadcast(&log->changed);
}

__attribute__((format(printf, 5, 0))) static void log_line(once_log_level level, const char *event,
                                                           const once_log_field *fields, size_t n, const char *format,
                                                           va_list args)
{
    assert(event);
    assert(format);
    int saved_errno = errno;
    char message[MESSAGE_MAX];
    if (vsnprintf(message, sizeof message, format, args) < 0) message[0] = '\0';

    pthread_mutex_lock(&lock);
    bool open = current != NULL;
    once_log_format shape = open ? current->format : ONCE_LOG_LOGFMT;
    pthread_mutex_unlock(&lock);
    if (open) {
        once_buf line;
        once_buf_init(&line, LINE_MAX_BYTES);
        format_line(&line, shape, level, event, fields, n, message);
        pthread_mutex_lock(&lock);
        if (current) enqueue(current, &line);
        pthread_mutex_unlock(&lock);
        once_buf_release(&line);
    }
    errno = saved_errno;
}

void once_log(once_log_level level, const char *event, const char *format, ...)
{
    if (!once_log_wants(level)) return;
    va_list args;
    va_start(args, format);
    log_line(level, event, NULL, 0, format, args);
    va_end(args);
}

void once_log_fields(once_log_level level, const char *event, const once_log_field *fields, size_t n,
                     const char *format, ...)
{
    if (!once_log_wants(level)) return;
    va_list args;
    va_start(args, format);
    log_line(level, event, fields, n, format, args);
    va_end(args);
}

/* ---- the writer ---- */

static bool chunk_report(chunk *out, once_log_format format, uint64_t dropped)
{
    char message[64];
    (void)snprintf(message, sizeof message, "%llu lines were not logged", (unsigned long long)dropped);
    once_buf line;
    once_buf_init(&line, LINE_MAX_BYTES);
    bool done = format_line(&line, format, ONCE_LOG_WARN, "log_dropped", NULL, 0, message);
    assert(out->len == 0);
    if (done) {
        memcpy(out->data, line.data, line.len);
        out->len = line.len;
        out->reported = dropped;
    }
    once_buf_release(&line);
    return done;
}

/* Fills `out` with whole records: at least one if there is any, more while they fit into one atomic write to a pipe.
 * Under `lock`. *owed: lines that earlier writes lost and that are not reported yet. */
static void take_lines(logger *log, chunk *out, uint64_t *owed)
{
    out->len = 0;
    out->lines = 0;
    out->reported = 0;
    while (log->used > 0) {
        record head;
        ring_peek(log, 0, &head, sizeof head);
        uint64_t gap = *owed + head.dropped_before;
        if (out->len > 0 && (gap > 0 || out->len + head.len > PIPE_BUF)) return; /* a report must begin a chunk */
        *owed = gap > 0 && !chunk_report(out, log->format, gap) ? gap : 0;
        assert(out->len + head.len <= sizeof out->data);
        ring_peek(log, sizeof head, out->data + out->len, head.len);
        out->len += head.len;
        out->lines++;
        log->head = (log->head + sizeof head + head.len) % RING_SIZE;
        log->used -= sizeof head + head.len;
    }
}

static bool is_abandoned(logger *log)
{
    pthread_mutex_lock(&lock);
    bool abandoned = log->abandoned;
    pthread_mutex_unlock(&lock);
    return abandoned;
}

/* True: all of it is written. False: the write failed, or the log was abandoned. */
static bool write_out(logger *log, const char *data, size_t len)
{
    while (len > 0) {
        struct pollfd ready = {.fd = log->fd, .events = POLLOUT};
        int answer = poll(&ready, 1, POLL_MS);
        if (is_abandoned(log)) return false;
        if (answer == 0 || (answer < 0 && errno == EINTR)) continue;
        ssize_t written = write(log->fd, data, len < PIPE_BUF ? len : PIPE_BUF);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0 && errno == EAGAIN) { /* there is room, but for less than this */
            once_env_sleep_ms(once_env_real(), RETRY_MS);
            continue;
        }
        if (written <= 0) return false;
        data += written;
        len -= (size_t)written;
    }
    return true;
}

/* Waits for lines and takes them. False: the end. After a failed write, dropped lines are reported with the next line,
 * not at once, because that write would only fail again. */
static bool next_chunk(logger *log, chunk *out, uint64_t *owed, bool refused)
{
    pthread_mutex_lock(&lock);
    for (;;) {
        take_lines(log, out, owed);
        if (out->len == 0 && (!refused || log->closing)) { /* dropped lines, with no line after them yet */
            *owed += log->dropped;
            log->dropped = 0;
            if (*owed > 0 && chunk_report(out, log->format, *owed)) *owed = 0;
        }
        if (out->len > 0 || log->closing || log->abandoned) break;
        pthread_cond_wait(&log->changed, &lock);
    }
    bool more = out->len > 0 && !log->abandoned;
    log->taken = more ? out->lines : 0;
    pthread_mutex_unlock(&lock);
    return more;
}

static void *writer_main(void *argument)
{
    logger *log = argument;
    static const chunk empty = {.clear = {'\r', '\033', '[', 'K'}};
    _Static_assert(offsetof(chunk, data) == sizeof empty.clear, "both are one write");
    chunk out = empty;
    uint64_t owed = 0; /* lines lost in writes, not yet reported */
    bool refused = false;
    while (next_chunk(log, &out, &owed, refused)) {
        const size_t clear = log->terminal && atomic_load(&clears_line) ? sizeof out.clear : 0;
        refused = !write_out(log, (const char *)&out + sizeof out.clear - clear, clear + out.len);
        if (!refused) continue;
        owed += out.lines + out.reported;
        pthread_mutex_lock(&lock);
        if (!log->abandoned) atomic_fetch_add(&lost_lines, out.lines); /* otherwise close has counted them */
        bool ending = log->closing && log->used == 0;
        pthread_mutex_unlock(&lock);
        if (ending) break;
    }

    pthread_mutex_lock(&lock);
    log->ended = true;
    bool mine = log->abandoned;
    pthread_cond_broadcast(&log->changed);
    pthread_mutex_unlock(&lock);
    if (mine) free(log);
    return NULL;
}

/* ---- open and close ---- */

/* Counts the lines that will not be written: the rest of the queue, and those in a write that hangs. Under `lock`. */
static void lose_the_rest(logger *log)
{
    assert(log->abandoned);
    uint64_t lines = log->taken;
    for (size_t at = 0; at < log->used;) {
        record head;
        ring_peek(log, at, &head, sizeof head);
        at += sizeof head + head.len;
        lines++;
    }
    atomic_fetch_add(&lost_lines, lines);
}

void once_log_clears_line(void) { atomic_store(&clears_line, true); }

/* The writer blocks all signals: they are for the program, and SIGPIPE must not end it. */
static bool start_writer(logger *log)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(&log->writer, NULL, writer_main, log) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

static void init_condition(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

bool once_log_open_fd(int fd, once_log_format format, once_log_level level)
{
    assert(fd >= 0);
    assert((unsigned)level < ONCE_LOG_LEVELS);
    assert(!current);
    logger *log = calloc(1, sizeof *log);
    if (!log) return false;
    log->fd = fd;
    log->format = format;
    log->terminal = isatty(fd);
    init_condition(&log->changed);
    if (!start_writer(log)) {
        free(log);
        return false;
    }
    pthread_mutex_lock(&lock);
    current = log;
    pthread_mutex_unlock(&lock);
    atomic_store(&lost_lines, 0);
    atomic_store(&wanted, (int)level);
    return true;
}

bool once_log_open(once_log_format format, once_log_level level)
{
    return once_log_open_fd(STDERR_FILENO, format, level);
}

void once_log_close(void)
{
    atomic_store(&wanted, -1);
    atomic_store(&clears_line, false);
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += CLOSE_WAIT_MS * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;

    pthread_mutex_lock(&lock);
    logger *log = current;
    current = NULL;
    if (!log) {
        pthread_mutex_unlock(&lock);
        return;
    }
    log->closing = true;
    pthread_cond_broadcast(&log->changed);
    int waited = 0;
    while (!log->ended && waited == 0) waited = pthread_cond_timedwait(&log->changed, &lock, &until);
    bool ended = log->ended;
    log->abandoned = !ended;
    if (!ended) lose_the_rest(log);
    pthread_t writer = log->writer;
    pthread_mutex_unlock(&lock);

    if (ended) {
        pthread_join(writer, NULL);
        free(log);
    } else {
        pthread_detach(writer);
    }
}
