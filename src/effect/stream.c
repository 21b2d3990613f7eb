/* Kept handler processes (`mode: stream`): one JSON line for each message, replies in any order, a window in flight.
 *
 * A message is queued (nobody has it), in flight in one process, or back. `begin` and `end` are where its line lies in
 * all that the process was ever sent; `sent` is how far the pipe took it. So there is never a doubt about what a
 * process may have seen:
 *
 *   begin >= sent    not a byte was written: it goes back to the queue when the process ends, as if nothing had been
 *   end   <= sent    the process may have it, and may reply
 *   otherwise        a part was written: it may not reply
 *
 * When the process is gone, what is left in the pipe shows how much it has read. What it has read even a byte of is
 * unknown then.
 *
 * Lines are made for what the window lets through and as long as less than LINES_FULL bytes wait, and are written once
 * in each turn of the loop (`stream_tick`), so a turn costs one write for a process whatever the number of messages.
 *
 * A process that must end is killed with its group at once, or, when it seems to be ending by itself, after a grace.
 * What it had written before is read first, and only then is the rest of its window unknown. Then, if there was such a
 * rest, the window is narrowed to one message: the one that kills its handler does so alone the next time. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/no_memory.h"
#include "core/policy.h"
#include "effect/exec.h"
#include "effect/process.h"
#include "effect/stream_line.h"

#include "base/banned.h"

#define LINES_FULL (256u << 10)
#define READ_SIZE (256u << 10)
#define DRAIN_MAX (1u << 20) /* a pipe holds no more; somebody who escaped from the group could go on for ever */
#define ERRORS_SIZE 4096u
#define LINE_SLACK (64u << 10)
#define GRACE_MS 1000
#define BACKOFF_MIN_MS 100
#define BACKOFF_MAX_MS 10000

typedef struct stream stream;
typedef struct worker worker;

typedef struct call { /* a message that was started and is not back */
    once_item *item;
    worker *worker; /* NULL: queued */
    uint64_t id, begin, end;
    struct call *next, *prev; /* in the queue, or in flight, in order; `next` also of the unused ones */
    struct call *chain;       /* of equal id & mask */
} call;

typedef struct calls {
    call *first, *last;
    size_t n;
} calls;

typedef enum phase {
    OFF, /* no process; the next one not before restart_ms */
    RUNNING,
    ENDING /* gets nothing more; waited for, and killed at kill_ms */
} phase;

struct worker {
    stream *stream;
    phase phase;
    once_child child;
    once_watch in, out, err, end;

    calls flight;
    call **by_id; /* chains; `mask` + 1 of them */
    uint64_t next_id;
    int64_t oldest_ms; /* since when flight.first is that */
    uint32_t width;    /* messages that it may have now */
    uint32_t calm;     /* replies until it may have more */

    once_buf lines; /* from `written` on they wait for the pipe */
    size_t written;
    uint64_t sent; /* bytes, of all that it ever got */

    char *replies;
    size_t n_replies, replies_size, searched; /* bytes; up to `searched` there is no end of a line */
    once_tail tail;                           /* of stderr */

    char why[300]; /* what we have against it; empty: nothing */
    bool broke;    /* the protocol: nothing that it says counts any more */
    bool killed;   /* by us */
    bool asked;    /* somebody wanted it to end */
    int64_t kill_ms, restart_ms, backoff_ms;
};

struct stream {
    once_effect_driver driver;
    once_arena arena, scratch; /* as long as the driver; as long as one read */
    char *file, **argv, **envp;
    size_t line_max;
    calls queue;
    call *calls, *unused; /* as many as slots; those from n_calls on were never used */
    size_t n_calls;
    worker *workers;
    uint32_t n, window, mask;
    once_json json;
};

/* --- lists -------------------------------------------------------------------------------------------------------- */

static void calls_insert(calls *list, call *l, call *before) /* NULL: at the end */
{
    l->next = before;
    l->prev = before ? before->prev : list->last;
    *(l->prev ? &l->prev->next : &list->first) = l;
    *(before ? &before->prev : &list->last) = l;
    list->n++;
}

static void calls_remove(calls *list, call *l)
{
    assert(list->n > 0);
    *(l->prev ? &l->prev->next : &list->first) = l->next;
    *(l->next ? &l->next->prev : &list->last) = l->prev;
    list->n--;
}

static call **place_of(worker *w, uint64_t id)
{
    call **at = &w->by_id[id & w->stream->mask];
    while (*at && (*at)->id != id) at = &(*at)->chain;
    return at;
}

/* Into the flight of `w`, as the last. */
static void launch(worker *w, call *l)
{
    assert(!l->worker && !*place_of(w, l->id)); /* an id is used once */
    assert(w->flight.n < w->stream->window);
    calls_remove(&w->stream->queue, l);
    calls_insert(&w->flight, l, NULL);
    l->worker = w;
    l->chain = NULL;
    *place_of(w, l->id) = l;
    if (w->flight.first == l) w->oldest_ms = once_runner_now_ms(w->stream->driver.runner);
}

static void land(worker *w, call *l)
{
    assert(l->worker == w && *place_of(w, l->id) == l);
    const bool oldest = w->flight.first == l;
    calls_remove(&w->flight, l);
    *place_of(w, l->id) = l->chain;
    l->worker = NULL;
    if (oldest && w->flight.first) w->oldest_ms = once_runner_now_ms(w->stream->driver.runner);
}

/* --- how a message ends ------------------------------------------------------------------------------------------- */

/* It is in no list any more. */
static void finish(stream *s, call *l, const once_stream_reply *reply, bool started, int not_started)
{
    assert(l->item && !l->worker);
    once_item *item = l->item;
    *l = (call){.next = s->unused};
    s->unused = l;
    item->outcome = reply->outcome;
    item->delay_ms = reply->delay_ms;
    item->started = started;
    item->maybe = reply->outcome == ONCE_UNKNOWN;
    item->not_started = not_started;
    once_runner_output(s->driver.runner, item, reply->result, reply->reason);
    once_runner_finished(s->driver.runner, item);
}

static void finish_unknown(stream *s, call *l, const char *reason)
{
    const once_stream_reply reply = {.outcome = ONCE_UNKNOWN, .reason = {reason, strlen(reason)}, .delay_ms = -1};
    finish(s, l, &reply, true, ONCE_OK);
}

/* A queued one, of which no process has seen anything. */
static void finish_unstarted(stream *s, call *l, int not_started, const char *reason)
{
    const once_stream_reply reply = {.outcome = ONCE_RELEASE, .reason = {reason, strlen(reason)}, .delay_ms = -1};
    calls_remove(&s->queue, l);
    finish(s, l, &reply, false, not_started);
}

/* --- descriptors -------------------------------------------------------------------------------------------------- */

static bool watch(worker *w, once_watch *one, int fd, uint32_t events)
{
    one->fd = fd;
    if (once_runner_watch(w->stream->driver.runner, one, events, NULL) == ONCE_OK) return true;
    one->fd = -1;
    return false;
}

static void unwatch(worker *w, once_watch *one) /* also one that is not watched */
{
    if (one->fd >= 0) once_runner_unwatch(w->stream->driver.runner, one);
}

/* --- how a process ends ------------------------------------------------------------------------------------------- */

/* The last one in flight goes back to the head of the queue, as if it had never been here. */
static void take_back_last(worker *w)
{
    assert(w->flight.last);
    stream *s = w->stream;
    call *l = w->flight.last;
    land(w, l);
    calls_insert(&s->queue, l, s->queue.first);
}

static void take_back_unwritten(worker *w)
{
    assert(w->written <= w->lines.len);
    for (call *l; (l = w->flight.last) && l->begin >= w->sent;) {
        take_back_last(w);
        w->next_id = l->id;
        w->lines.len = w->written + (size_t)(l->begin - w->sent);
    }
}

static void stop_sending(worker *w)
{
    w->phase = ENDING;
    unwatch(w, &w->in);
    take_back_unwritten(w);
}

static void end_now(worker *w)
{
    stop_sending(w);
    w->killed = true;
    w->kill_ms = ONCE_NEVER;
    once_process_kill(&w->child);
}

/* It looks as if it were ending by itself: how it ends is worth waiting for. */
static void end_soon(worker *w, const char *why)
{
    if (w->phase != RUNNING) return;
    stop_sending(w);
    snprintf(w->why, sizeof w->why, "broke the protocol: %s", why);
    w->kill_ms = once_runner_now_ms(w->stream->driver.runner) + GRACE_MS;
}

static void break_protocol(worker *w, const char *why)
{
    snprintf(w->why, sizeof w->why, "broke the protocol: %s", why);
    w->broke = true;
    unwatch(w, &w->out);
    end_now(w);
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

static bool has_room(const worker *w)
{
    return w->phase == RUNNING && w->flight.n < w->width && w->lines.len - w->written < LINES_FULL;
}

/* The line of the first one of the queue. */
static void hand_over(worker *w)
{
    assert(has_room(w) && w->stream->queue.first);
    stream *s = w->stream;
    call *l = s->queue.first;
    l->id = w->next_id;
    l->begin = w->sent + (w->lines.len - w->written);
    if (!once_stream_write(&w->lines, l->id, l->item, &once_runner_options_of(s->driver.runner)->keying)) {
        finish_unstarted(s, l, ONCE_E_NOMEM, "out of memory for a message");
        return;
    }
    l->end = w->sent + (w->lines.len - w->written);
    w->next_id++;
    launch(w, l);
}

/* Moves what waits to the front, when that pays. */
static void compact_lines(worker *w)
{
    assert(w->written <= w->lines.len);
    const size_t left = w->lines.len - w->written;
    if (left > w->written) return;
    if (left == 0 && w->lines.capacity > 4 * LINES_FULL) once_buf_release(&w->lines); /* there was a huge message */
    if (left > 0) memmove(w->lines.data, w->lines.data + w->written, left);
    w->lines.len = left;
    w->written = 0;
}

static void write_lines(worker *w)
{
    const size_t left = w->lines.len - w->written;
    if (w->phase != RUNNING || left == 0) return;
    ssize_t n;
    do n = once_process_write(w->child.in, w->lines.data + w->written, left);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno != EAGAIN) {
        end_soon(w, "it closed its standard input");
        return;
    }
    if (n > 0) {
        w->written += (size_t)n;
        w->sent += (size_t)n;
        compact_lines(w);
    }
    if (n >= 0 && (size_t)n == left) unwatch(w, &w->in);
    else if (w->in.fd < 0 && !watch(w, &w->in, w->child.in, EPOLLOUT)) { /* the rest when the pipe has room */
        snprintf(w->why, sizeof w->why, "was killed: out of memory");
        end_now(w);
    }
}

static void on_in(once_watch *one, uint32_t events)
{
    (void)events;
    write_lines((worker *)((char *)one - offsetof(worker, in)));
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* A quiet process gets its window back: twice as wide after as many replies as it is wide, but the first time only
 * after as many as it once was wide, so that all its former neighbours have gone through alone. */
static void widen(worker *w)
{
    assert(w->width >= 1 && w->width <= w->stream->window);
    const uint32_t window = w->stream->window;
    if (w->width == window || --w->calm > 0) return;
    w->width = w->width > window / 2 ? window : 2 * w->width;
    w->calm = w->width;
}

static void narrow(worker *w)
{
    w->width = 1;
    w->calm = w->stream->window;
}

/* A reply without what its outcome cannot have, and with the words that a silent one lacks. */
static void trim(once_stream_reply *reply)
{
    const once_outcome outcome = reply->outcome;
    if (!once_outcome_is_final(outcome)) reply->result = (once_bytes){0};
    if (reply->odd) reply->reason = ONCE_BYTES("the handler replied with a word that is no outcome");
    if (reply->reason.len > 0) return;
    reply->reason = once_policy_words(outcome);
}

static void take_reply(worker *w, once_bytes line)
{
    stream *s = w->stream;
    once_stream_reply reply;
    char why[200];
    if (line.len > s->line_max) {
        break_protocol(w, "a line that is too long");
        return;
    }
    if (!once_stream_read(&s->json, &s->scratch, line, &reply, why, sizeof why)) {
        break_protocol(w, why);
        return;
    }
    call *l = *place_of(w, reply.id);
    if (!l || l->end > w->sent) {
        const bool before = !l && reply.id < w->next_id;
        snprintf(why, sizeof why, "a %s id %" PRIu64, before ? "second reply to" : "reply to an unknown", reply.id);
        break_protocol(w, why);
        return;
    }
    land(w, l);
    trim(&reply);
    w->backoff_ms = 0;
    widen(w);
    finish(s, l, &reply, true, ONCE_OK);
}

static void take_lines(worker *w)
{
    size_t begin = 0;
    char *end;
    while (!w->broke && (end = memchr(w->replies + w->searched, '\n', w->n_replies - w->searched))) {
        const size_t next = (size_t)(end + 1 - w->replies);
        take_reply(w, (once_bytes){w->replies + begin, next - 1 - begin});
        begin = w->searched = next;
    }
    once_arena_reset(&w->stream->scratch);
    w->n_replies -= begin;
    if (w->n_replies > 0) memmove(w->replies, w->replies + begin, w->n_replies);
    w->searched = w->n_replies;
    if (!w->broke && w->n_replies > w->stream->line_max) break_protocol(w, "a line that is too long");
}

/* Room for more of a line that did not end yet; what a long one took is given back after it. */
static bool make_room(worker *w)
{
    size_t size = w->replies_size;
    if (w->n_replies == size) size = size ? 2 * size : READ_SIZE;
    else if (size > READ_SIZE && w->n_replies < READ_SIZE / 2) size = READ_SIZE;
    if (size == w->replies_size) return true;
    char *replies = realloc(w->replies, size);
    if (!replies) return w->n_replies < w->replies_size;
    w->replies = replies;
    w->replies_size = size;
    return true;
}

/* One read. Returns how many bytes; 0: there is nothing now, or there will be nothing more (*over). */
static size_t read_replies(worker *w, bool *over)
{
    if (!make_room(w)) {
        break_protocol(w, "a line that memory has no room for");
        return 0;
    }
    ssize_t n;
    do n = read(w->child.out, w->replies + w->n_replies, w->replies_size - w->n_replies);
    while (n < 0 && errno == EINTR);
    *over = n == 0 || (n < 0 && errno != EAGAIN);
    if (n <= 0) return 0;
    w->n_replies += (size_t)n;
    take_lines(w);
    return (size_t)n;
}

static void on_out(once_watch *one, uint32_t events)
{
    worker *w = (worker *)((char *)one - offsetof(worker, out));
    bool over = false;
    (void)events;
    read_replies(w, &over);
    if (!over) return;
    unwatch(w, &w->out);
    end_soon(w, "it closed its standard output");
}

/* Keeps the end of what it says there. */
static bool read_errors(worker *w)
{
    char text[ERRORS_SIZE];
    ssize_t n;
    do n = read(w->child.err, text, sizeof text);
    while (n < 0 && errno == EINTR);
    if (n == 0 || (n < 0 && errno != EAGAIN)) unwatch(w, &w->err);
    if (n <= 0) return false;
    once_tail_keep(&w->tail, text, (size_t)n);
    return true;
}

static void on_err(once_watch *one, uint32_t events)
{
    (void)events;
    read_errors((worker *)((char *)one - offsetof(worker, err)));
}

/* --- after the end ------------------------------------------------------------------------------------------------ */

static void describe_end(const worker *w, int status, char *out, size_t size)
{
    if (w->killed) {
        snprintf(out, size, "the handler process %s", w->why);
        return;
    }
    char how[40] = ""; /* stays empty when somebody else took its status */
    if (WIFSIGNALED(status)) snprintf(how, sizeof how, " by signal %d", WTERMSIG(status));
    if (WIFEXITED(status)) snprintf(how, sizeof how, " with exit status %d", WEXITSTATUS(status));
    const once_bytes line = once_tail_last_line(&w->tail);
    snprintf(out, size, "the handler process ended%s before it replied%s%.*s", how, line.len ? ": " : "", (int)line.len,
             line.data);
}

static void forget_process(worker *w)
{
    unwatch(w, &w->in);
    unwatch(w, &w->out);
    unwatch(w, &w->err);
    unwatch(w, &w->end);
    once_process_close(&w->child);
    once_buf_clear(&w->lines);
    w->written = 0;
    w->sent = 0;
    w->next_id = 1;
    w->n_replies = w->searched = w->tail.len = 0;
    w->why[0] = '\0';
    w->broke = w->killed = w->asked = false;
    w->phase = OFF;
}

static void back_off(worker *w)
{
    w->backoff_ms = w->backoff_ms == 0 ? BACKOFF_MIN_MS : 2 * w->backoff_ms;
    if (w->backoff_ms > BACKOFF_MAX_MS) w->backoff_ms = BACKOFF_MAX_MS;
    w->restart_ms = once_runner_now_ms(w->stream->driver.runner) + w->backoff_ms;
}

static void read_the_rest(worker *w)
{
    bool over = false;
    for (size_t n, sum = 0; !w->broke && sum < DRAIN_MAX && (n = read_replies(w, &over)) > 0; sum += n) {
    }
    for (size_t n = 0; n < DRAIN_MAX && read_errors(w); n += ERRORS_SIZE) {
    }
}

/* How many of the bytes that it was sent it has read. What is left in the pipe counts as not read only when nobody has
 * the other end any more, and so nobody ever will. */
static uint64_t bytes_read(const worker *w)
{
    struct pollfd in = {.fd = w->child.in};
    int left = 0;
    if (poll(&in, 1, 0) != 1 || !(in.revents & POLLERR) || ioctl(w->child.in, FIONREAD, &left) != 0) return w->sent;
    return w->sent - (uint64_t)left;
}

/* Messages of which it has not read a byte: surely nothing was done about them. They go to the next process. But when
 * it has read nothing at all, it cannot be the fault of another message, and it is counted, so that a program that does
 * not work has an end. */
static void settle_unread(worker *w, const char *reason)
{
    stream *s = w->stream;
    const uint64_t read_upto = bytes_read(w);
    const once_stream_reply failed = {.outcome = ONCE_RETRY, .reason = {reason, strlen(reason)}, .delay_ms = -1};
    for (call *l; (l = w->flight.last) && l->begin >= read_upto;) {
        take_back_last(w);
        if (w->asked) {
            finish_unstarted(s, l, ONCE_OK, "told to end before it began");
        } else if (read_upto == 0) {
            calls_remove(&s->queue, l);
            finish(s, l, &failed, true, ONCE_OK);
        }
    }
}

static void on_end(once_watch *one, uint32_t events)
{
    worker *w = (worker *)((char *)one - offsetof(worker, end));
    stream *s = w->stream;
    int status = 0;
    (void)events;
    if (!once_process_reap(&w->child, false, &status)) return;
    read_the_rest(w);
    stop_sending(w);
    char reason[sizeof w->why + sizeof w->tail.text + 100];
    describe_end(w, status, reason, sizeof reason);
    settle_unread(w, reason);
    const size_t unknown = w->flight.n;
    for (call *l; (l = w->flight.first);) {
        land(w, l);
        finish_unknown(s, l, reason);
    }
    if (!w->asked) {
        back_off(w);
        once_log(
            ONCE_LOG_WARN, "handler_ended", "operation '%.*s': %s; %zu unknown; a new one not before %" PRId64 " ms",
            (int)s->driver.handler->operation.len, s->driver.handler->operation.data, reason, unknown, w->backoff_ms);
    }
    if (unknown > 0) narrow(w);
    forget_process(w);
}

/* --- starting ----------------------------------------------------------------------------------------------------- */

static int start_process(worker *w, once_error *err)
{
    stream *s = w->stream;
    const int rc = once_process_start(s->file, s->argv, s->envp, NULL, &w->child, err);
    if (rc != ONCE_OK) return rc;
    w->phase = RUNNING;
    w->kill_ms = ONCE_NEVER;
    if (watch(w, &w->out, w->child.out, EPOLLIN) && watch(w, &w->err, w->child.err, EPOLLIN) &&
        watch(w, &w->end, w->child.pidfd, EPOLLIN))
        return ONCE_OK;
    int status;
    once_process_kill(&w->child);
    once_process_reap(&w->child, true, &status);
    forget_process(w);
    return once_fail(err, ONCE_E_NOMEM, "cannot watch the handler process");
}

/* Where somebody must act, nothing is gained by keeping what waits: the pipeline pauses, and asks again. */
static void start_failed(worker *w, const once_error *err)
{
    stream *s = w->stream;
    back_off(w);
    once_log(ONCE_LOG_WARN, "handler_start", "operation '%.*s': %s; tried again in %" PRId64 " ms",
             (int)s->driver.handler->operation.len, s->driver.handler->operation.data, err->text, w->backoff_ms);
    if (once_status_class(err->status) == ONCE_CLASS_RETRY) return;
    while (s->queue.first) finish_unstarted(s, s->queue.first, err->status, err->text);
}

/* The one that has least to do; one that must be started first only when all others have something. */
static worker *least_busy(stream *s, int64_t now_ms)
{
    worker *best = NULL;
    for (worker *w = s->workers; w < s->workers + s->n; w++) {
        if (w->phase == OFF ? now_ms < w->restart_ms : !has_room(w)) continue;
        if (!best || w->flight.n < best->flight.n || (w->flight.n == best->flight.n && w->phase > best->phase))
            best = w;
    }
    return best;
}

static void send_queued(stream *s, int64_t now_ms)
{
    worker *w;
    once_error err = {0};
    do {
        while (s->queue.first && (w = least_busy(s, now_ms))) {
            if (w->phase == RUNNING) hand_over(w);
            else if (start_process(w, &err) != ONCE_OK) start_failed(w, &err);
        }
        for (w = s->workers; w < s->workers + s->n; w++)
            if (w->in.fd < 0) write_lines(w); /* otherwise the loop says when there is room */
    } while (s->queue.first && least_busy(s, now_ms));
}

/* --- the driver -----------------------------------------------------------------------------------------------------
 * */

static stream *stream_of(once_effect_driver *driver) { return (stream *)driver; }

static void stream_start(once_effect_driver *driver, once_item *item)
{
    stream *s = stream_of(driver);
    assert(s->unused || s->n_calls < driver->handler->slots);
    call *l = s->unused ? s->unused : &s->calls[s->n_calls++];
    if (l == s->unused) s->unused = l->next;
    *l = (call){.item = item};
    item->driver = l;
    calls_insert(&s->queue, l, NULL);
}

static void stream_kill(once_effect_driver *driver, once_item *item)
{
    stream *s = stream_of(driver);
    call *l = item->driver;
    worker *w = l->worker;
    if (w && l->begin >= w->sent) take_back_unwritten(w);
    if (!l->worker) {
        finish_unstarted(s, l, ONCE_OK, "told to end before it began");
        return;
    }
    if (w->why[0] == '\0') snprintf(w->why, sizeof w->why, "was killed before it replied");
    w->asked = true;
    end_now(w);
}

static int64_t worker_tick(worker *w, int64_t now_ms)
{
    const int64_t timeout_ms = w->stream->driver.handler->timeout_ms;
    if (w->phase == RUNNING && w->flight.first) {
        if (now_ms - w->oldest_ms < timeout_ms) return w->oldest_ms + timeout_ms;
        snprintf(w->why, sizeof w->why, "was killed: no reply to its oldest message for %" PRId64 " ms", timeout_ms);
        end_now(w);
    }
    if (w->phase == ENDING && now_ms >= w->kill_ms) end_now(w);
    return w->phase == ENDING ? w->kill_ms : w->phase == OFF && w->stream->queue.first ? w->restart_ms : ONCE_NEVER;
}

static int64_t stream_tick(once_effect_driver *driver, int64_t now_ms)
{
    stream *s = stream_of(driver);
    int64_t next_ms = ONCE_NEVER;
    send_queued(s, now_ms);
    for (worker *w = s->workers; w < s->workers + s->n; w++) {
        const int64_t due_ms = worker_tick(w, now_ms);
        if (due_ms < next_ms) next_ms = due_ms;
    }
    return next_ms;
}

/* They see the end of their input, and have a moment to end by themselves. */
static void end_all(stream *s)
{
    const int64_t kill_ms = once_runner_now_ms(s->driver.runner) + GRACE_MS;
    int status;
    for (worker *w = s->workers; w < s->workers + s->n; w++) {
        if (w->phase == OFF) continue;
        unwatch(w, &w->in);
        if (w->child.in >= 0) close(w->child.in);
        w->child.in = -1;
    }
    for (worker *w = s->workers; w < s->workers + s->n; w++) {
        if (w->phase == OFF) continue;
        struct pollfd end = {.fd = w->child.pidfd, .events = POLLIN};
        int64_t left_ms;
        while ((left_ms = kill_ms - once_runner_now_ms(s->driver.runner)) > 0 && poll(&end, 1, (int)left_ms) < 0 &&
               errno == EINTR) {
        }
        once_process_kill(&w->child);
        once_process_reap(&w->child, true, &status);
        forget_process(w);
    }
}

static void stream_free(stream *s)
{
    for (worker *w = s->workers; w && w < s->workers + s->n; w++) {
        once_buf_release(&w->lines);
        free(w->replies);
        free(w->by_id);
    }
    free(s->workers);
    free(s->calls);
    free(s->file);
    once_json_release(&s->json);
    once_arena_release(&s->scratch);
    once_arena_release(&s->arena);
    free(s);
}

static void stream_close(once_effect_driver *driver)
{
    stream *s = stream_of(driver);
    end_all(s);
    stream_free(s);
}

static const once_effect_driver_ops stream_ops = {
    .start = stream_start, .kill = stream_kill, .tick = stream_tick, .close = stream_close};

/* --- opening ------------------------------------------------------------------------------------------------------ */

static int read_command(stream *s, once_error *err)
{
    const once_exec_spec *exec = once_exec_of(s->driver.handler);
    const once_template_input nothing = {0};
    const once_exec_command *command = &exec->command;
    s->argv = once_arena_new(&s->arena, char *, command->n + 1);
    if (!s->argv) return once_no_memory(err, "for the handlers");
    int rc = once_exec_environment(s->driver.runner, exec, &s->arena, &s->envp, err);
    for (size_t i = 0; i < command->n && rc == ONCE_OK; i++) {
        once_bytes argument;
        assert(once_template_is_literal(command->argv[i]));
        rc = once_template_render_plain(command->argv[i], &nothing, &s->arena, &argument, err);
        if (rc == ONCE_OK) s->argv[i] = (char *)argument.data;
    }
    return rc == ONCE_OK ? once_exec_find(s->driver.runner, s->driver.handler, s->argv[0], s->envp, &s->file, err) : rc;
}

static bool make_worker(stream *s, worker *w)
{
    *w =
        (worker){.stream = s, .child = {.pidfd = -1, .in = -1, .out = -1, .err = -1}, .next_id = 1, .width = s->window};
    w->in = (once_watch){.fd = -1, .ready = on_in};
    w->out = (once_watch){.fd = -1, .ready = on_out};
    w->err = (once_watch){.fd = -1, .ready = on_err};
    w->end = (once_watch){.fd = -1, .ready = on_end};
    once_buf_init(&w->lines, SIZE_MAX / 4);
    w->by_id = calloc((size_t)s->mask + 1, sizeof(call *));
    return w->by_id;
}

static bool make_workers(stream *s)
{
    const once_handler_spec *handler = s->driver.handler;
    const uint32_t processes = once_exec_of(handler)->processes;
    s->calls = calloc(handler->slots, sizeof *s->calls);
    s->workers = calloc(processes, sizeof *s->workers);
    if (!s->calls || !s->workers) return false;
    for (; s->n < processes; s->n++)
        if (!make_worker(s, &s->workers[s->n])) return false;
    return true;
}

int once_effect_driver_open_stream(once_runner *runner, const once_handler_spec *handler, once_effect_driver **out,
                                   once_error *err)
{
    const once_exec_spec *exec = once_exec_of(handler);
    assert(exec->mode == ONCE_EXEC_STREAM && exec->window > 0 && exec->processes > 0 && handler->slots > 0);
    stream *s = calloc(1, sizeof *s);
    if (!s) return once_no_memory(err, "for the handlers");
    s->driver = (once_effect_driver){.ops = &stream_ops, .handler = handler, .runner = runner};
    s->window = exec->window;
    s->line_max = 6 * once_runner_options_of(runner)->spec->result_max + LINE_SLACK;
    for (s->mask = 1; s->mask < s->window; s->mask = 2 * s->mask + 1) {
    }
    once_json_init(&s->json);
    once_arena_init(&s->arena);
    once_arena_init(&s->scratch);
    int rc = read_command(s, err);
    if (rc == ONCE_OK && !make_workers(s)) rc = once_no_memory(err, "for the handlers");
    if (rc != ONCE_OK) {
        stream_free(s);
        return rc;
    }
    *out = &s->driver;
    return ONCE_OK;
}
