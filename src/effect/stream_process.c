/* How a kept process starts and ends.
 *
 * One that must end is killed with its group at once, or, when it seems to be ending by itself, after a grace. What it
 * had written before is read first, and only then is the rest of its flight unknown. */
#include <assert.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#include "base/log.h"
#include "effect/stream_impl.h"

#include "base/banned.h"

#define DRAIN_MAX (1u << 20) /* a pipe holds no more; a child that left the group could write without end */
#define BACKOFF_MIN_MS 100
#define BACKOFF_MAX_MS 10000

bool once__stream_watch(stream_process *p, once_watch *one, int fd, uint32_t events)
{
    one->fd = fd;
    if (once_runner_watch(p->stream->driver.runner, one, events, NULL) == ONCE_OK) return true;
    one->fd = -1;
    return false;
}

void once__stream_unwatch(stream_process *p, once_watch *one)
{
    if (one->fd >= 0) once_runner_unwatch(p->stream->driver.runner, one);
}

/* --- ending --- */

void once__stream_stop_sending(stream_process *p)
{
    p->state = PROCESS_ENDS;
    once__stream_unwatch(p, &p->in);
    once__stream_requeue_unwritten(p);
}

void once__stream_kill_process(stream_process *p)
{
    assert(p->state != PROCESS_NONE && p->why[0]);
    once__stream_stop_sending(p);
    p->killed = true;
    p->kill_ms = ONCE_NEVER;
    once_process_kill(&p->child);
}

void once__stream_end_process(stream_process *p, const char *why)
{
    if (p->state != PROCESS_RUNS) return;
    once__stream_stop_sending(p);
    snprintf(p->why, sizeof p->why, "broke the protocol: %s", why);
    p->kill_ms = once_runner_now_ms(p->stream->driver.runner) + ONCE_STREAM_GRACE_MS;
}

void once__stream_break(stream_process *p, const char *why)
{
    snprintf(p->why, sizeof p->why, "broke the protocol: %s", why);
    p->broke = true;
    once__stream_unwatch(p, &p->out);
    once__stream_kill_process(p);
}

/* --- after the end --- */

static void describe_end(const stream_process *p, int status, char *out, size_t size)
{
    if (p->killed) {
        snprintf(out, size, "the handler process %s", p->why);
        return;
    }
    char how[40] = ""; /* stays empty when another part of the program took its status */
    if (WIFSIGNALED(status)) snprintf(how, sizeof how, " by signal %d", WTERMSIG(status));
    if (WIFEXITED(status)) snprintf(how, sizeof how, " with exit status %d", WEXITSTATUS(status));
    const once_bytes line = once_tail_last_line(&p->tail);
    snprintf(out, size, "the handler process ended%s before it replied%s%.*s", how, line.len ? ": " : "", (int)line.len,
             line.data);
}

void once__stream_reset_process(stream_process *p)
{
    once__stream_unwatch(p, &p->in);
    once__stream_unwatch(p, &p->out);
    once__stream_unwatch(p, &p->err);
    once__stream_unwatch(p, &p->end);
    once_process_close(&p->child);
    once_buf_clear(&p->lines);
    p->written = 0;
    p->sent = 0;
    p->next_id = 1;
    p->n_replies = p->searched = p->tail.len = 0;
    p->why[0] = '\0';
    p->broke = p->killed = p->kill_wanted = false;
    p->state = PROCESS_NONE;
}

void once__stream_back_off(stream_process *p)
{
    p->backoff_ms = p->backoff_ms == 0 ? BACKOFF_MIN_MS : 2 * p->backoff_ms;
    if (p->backoff_ms > BACKOFF_MAX_MS) p->backoff_ms = BACKOFF_MAX_MS;
    p->restart_ms = once_runner_now_ms(p->stream->driver.runner) + p->backoff_ms;
}

static void read_rest(stream_process *p)
{
    bool over = false;
    for (size_t n, sum = 0; !p->broke && sum < DRAIN_MAX && (n = once__stream_read_replies(p, &over)) > 0; sum += n) {
    }
    for (size_t n, sum = 0; sum < DRAIN_MAX && (n = once__stream_read_errors(p)) > 0; sum += n) {
    }
}

/* How many of the bytes that it was sent it has read. Bytes in the pipe count as not read only when no process has the
 * other end open, so that none can ever read them. */
static uint64_t bytes_read(const stream_process *p)
{
    struct pollfd in = {.fd = p->child.in};
    int left = 0;
    if (poll(&in, 1, 0) != 1 || !(in.revents & POLLERR) || ioctl(p->child.in, FIONREAD, &left) != 0) return p->sent;
    assert(left >= 0 && (uint64_t)left <= p->sent);
    return p->sent - (uint64_t)left;
}

/* Messages of which it has not read a byte certainly had no effect, and go to the next process. When it has read
 * nothing at all, no other message can have ended it: then each of them has failed, so that a program that never
 * works spends their attempts and does not run for ever. */
static void finish_unread(stream_process *p, const char *reason)
{
    stream *s = p->stream;
    const uint64_t read_upto = bytes_read(p);
    const once_stream_reply failed = {.outcome = ONCE_RETRY, .reason = {reason, strlen(reason)}, .delay_ms = -1};
    for (stream_call *c; (c = p->flight.last) && c->begin >= read_upto;) {
        once__stream_requeue_last(p);
        if (p->kill_wanted) {
            once__stream_finish_unstarted(s, c, ONCE_OK, "told to end before it began");
        } else if (read_upto == 0) {
            once__stream_remove(&s->queue, c);
            once__stream_finish(s, c, &failed, true, ONCE_OK);
        }
    }
}

void once__stream_on_end(once_watch *one, uint32_t events)
{
    stream_process *p = (stream_process *)((char *)one - offsetof(stream_process, end));
    stream *s = p->stream;
    int status = 0;
    (void)events;
    if (!once_process_reap(&p->child, false, &status)) return;
    read_rest(p);
    once__stream_stop_sending(p);
    char reason[sizeof p->why + sizeof p->tail.text + 100];
    describe_end(p, status, reason, sizeof reason);
    finish_unread(p, reason);
    const size_t unknown = p->flight.n;
    for (stream_call *c; (c = p->flight.first);) {
        once__stream_leave_flight(p, c);
        once__stream_finish_unknown(s, c, reason);
    }
    if (!p->kill_wanted) {
        once__stream_back_off(p);
        once_log(
            ONCE_LOG_WARN, "handler_ended", "operation '%.*s': %s; %zu unknown; started again after %" PRId64 " ms",
            (int)s->driver.handler->operation.len, s->driver.handler->operation.data, reason, unknown, p->backoff_ms);
    }
    if (unknown > 0) once__stream_narrow(p);
    assert(p->flight.n == 0 && !p->flight.first);
    once__stream_reset_process(p);
}

/* --- starting --- */

int once__stream_start_process(stream_process *p, once_error *err)
{
    assert(p->state == PROCESS_NONE && p->sent == 0 && p->next_id == 1);
    stream *s = p->stream;
    const int rc = once_process_start(s->file, s->argv, s->envp, NULL, &p->child, err);
    if (rc != ONCE_OK) return rc;
    p->state = PROCESS_RUNS;
    p->kill_ms = ONCE_NEVER;
    if (once__stream_watch(p, &p->out, p->child.out, EPOLLIN) &&
        once__stream_watch(p, &p->err, p->child.err, EPOLLIN) &&
        once__stream_watch(p, &p->end, p->child.pidfd, EPOLLIN))
        return ONCE_OK;
    int status;
    once_process_kill(&p->child);
    once_process_reap(&p->child, true, &status);
    once__stream_reset_process(p);
    return once_fail(err, ONCE_E_NOMEM, "cannot watch the handler process");
}
