/* Messages to a kept process. Lines are made for what its width lets through, and as long as less than LINES_FULL bytes
 * wait; they are written once in each turn of the loop. So a turn costs one write for a process, however many messages
 * there are. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

#include "effect/stream_impl.h"

#include "base/banned.h"

#define LINES_FULL (256u << 10)

bool once__stream_has_room(const stream_process *p)
{
    return p->state == PROCESS_RUNS && p->flight.n < p->width && p->lines.len - p->written < LINES_FULL;
}

void once__stream_send(stream_process *p)
{
    assert(once__stream_has_room(p) && p->stream->queue.first);
    stream *s = p->stream;
    stream_call *c = s->queue.first;
    c->id = p->next_id;
    c->begin = p->sent + (p->lines.len - p->written);
    if (!once_stream_write(&p->lines, c->id, c->item, &once_runner_options_of(s->driver.runner)->keying)) {
        once__stream_finish_unstarted(s, c, ONCE_E_NOMEM, "out of memory for a message");
        return;
    }
    c->end = p->sent + (p->lines.len - p->written);
    p->next_id++;
    once__stream_enter_flight(p, c);
}

/* Moves the bytes that wait to the front when there are fewer of them than were written. */
static void compact_lines(stream_process *p)
{
    assert(p->written <= p->lines.len);
    const size_t left = p->lines.len - p->written;
    if (left > p->written) return;
    if (left == 0 && p->lines.capacity > 4 * LINES_FULL) once_buf_release(&p->lines); /* there was a huge message */
    if (left > 0) memmove(p->lines.data, p->lines.data + p->written, left);
    p->lines.len = left;
    p->written = 0;
}

void once__stream_write_lines(stream_process *p)
{
    assert(p->written <= p->lines.len);
    const size_t left = p->lines.len - p->written;
    if (p->state != PROCESS_RUNS || left == 0) return;
    ssize_t n;
    do n = once_process_write(p->child.in, p->lines.data + p->written, left);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno != EAGAIN) {
        once__stream_end_process(p, "it closed its standard input");
        return;
    }
    if (n > 0) {
        p->written += (size_t)n;
        p->sent += (size_t)n;
        compact_lines(p);
    }
    if (n >= 0 && (size_t)n == left) once__stream_unwatch(p, &p->in);
    else if (p->in.fd < 0 &&
             !once__stream_watch(p, &p->in, p->child.in, EPOLLOUT)) { /* the rest when the pipe has room */
        snprintf(p->why, sizeof p->why, "was killed: out of memory");
        once__stream_kill_process(p);
    }
}

void once__stream_on_in(once_watch *one, uint32_t events)
{
    (void)events;
    once__stream_write_lines((stream_process *)((char *)one - offsetof(stream_process, in)));
}
