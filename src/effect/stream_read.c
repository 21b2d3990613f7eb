/* Replies of a kept process, and what it writes to standard error.
 *
 * When messages became unknown with a process, the next one gets one message at a time: a message that kills its
 * handler then does so alone. Replies widen that again. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/policy.h"
#include "effect/stream_impl.h"

#include "base/banned.h"

#define READ_SIZE (256u << 10)

/* After as many replies as it is wide, a process gets twice the width. The first time that takes as many replies as the
 * whole window, so that every message that was in flight beside the one that ended the last process was sent alone. */
static void widen(stream_process *p)
{
    assert(p->width >= 1 && p->width <= p->stream->window);
    const uint32_t window = p->stream->window;
    if (p->width == window || --p->to_widen > 0) return;
    p->width = p->width > window / 2 ? window : 2 * p->width;
    p->to_widen = p->width;
}

void once__stream_narrow(stream_process *p)
{
    p->width = 1;
    p->to_widen = p->stream->window;
}

/* Takes away a result that the outcome cannot have, and adds a reason where one is missing. */
static void complete_reply(once_stream_reply *reply)
{
    const once_outcome outcome = reply->outcome;
    if (!once_outcome_is_final(outcome)) reply->result = (once_bytes){0};
    if (reply->odd) reply->reason = ONCE_BYTES("the handler replied with a word that is no outcome");
    if (reply->reason.len > 0) return;
    reply->reason = once_policy_words(outcome);
}

static void take_reply(stream_process *p, once_bytes line)
{
    stream *s = p->stream;
    once_stream_reply reply;
    char why[200];
    if (line.len > s->line_max) {
        once__stream_break(p, "a line that is too long");
        return;
    }
    if (!once_stream_read(&s->json, &s->scratch, line, &reply, why, sizeof why)) {
        once__stream_break(p, why);
        return;
    }
    stream_call *c = *once__stream_find(p, reply.id);
    if (!c || c->end > p->sent) {
        const bool before = !c && reply.id < p->next_id;
        snprintf(why, sizeof why, "a %s id %" PRIu64, before ? "second reply to" : "reply to an unknown", reply.id);
        once__stream_break(p, why);
        return;
    }
    once__stream_leave_flight(p, c);
    complete_reply(&reply);
    p->backoff_ms = 0;
    widen(p);
    once__stream_finish(s, c, &reply, true, ONCE_OK);
}

static void take_lines(stream_process *p)
{
    size_t begin = 0;
    char *end;
    assert(p->searched <= p->n_replies && p->n_replies <= p->replies_size);
    while (!p->broke && (end = memchr(p->replies + p->searched, '\n', p->n_replies - p->searched))) {
        const size_t next = (size_t)(end + 1 - p->replies);
        take_reply(p, (once_bytes){p->replies + begin, next - 1 - begin});
        begin = p->searched = next;
    }
    once_arena_reset(&p->stream->scratch);
    p->n_replies -= begin;
    if (p->n_replies > 0) memmove(p->replies, p->replies + begin, p->n_replies);
    p->searched = p->n_replies;
    if (!p->broke && p->n_replies > p->stream->line_max) once__stream_break(p, "a line that is too long");
}

/* Room for more of a line that has not ended yet. After a long line the buffer shrinks again. */
static bool make_room(stream_process *p)
{
    size_t size = p->replies_size;
    if (p->n_replies == size) size = size ? 2 * size : READ_SIZE;
    else if (size > READ_SIZE && p->n_replies < READ_SIZE / 2) size = READ_SIZE;
    if (size == p->replies_size) return true;
    char *replies = realloc(p->replies, size);
    if (!replies) return p->n_replies < p->replies_size;
    p->replies = replies;
    p->replies_size = size;
    return true;
}

size_t once__stream_read_replies(stream_process *p, bool *over)
{
    if (!make_room(p)) {
        once__stream_break(p, "a line that memory has no room for");
        return 0;
    }
    assert(p->n_replies < p->replies_size);
    ssize_t n;
    do n = read(p->child.out, p->replies + p->n_replies, p->replies_size - p->n_replies);
    while (n < 0 && errno == EINTR);
    *over = n == 0 || (n < 0 && errno != EAGAIN);
    if (n <= 0) return 0;
    p->n_replies += (size_t)n;
    take_lines(p);
    return (size_t)n;
}

void once__stream_on_out(once_watch *one, uint32_t events)
{
    stream_process *p = (stream_process *)((char *)one - offsetof(stream_process, out));
    bool over = false;
    (void)events;
    once__stream_read_replies(p, &over);
    if (!over) return;
    once__stream_unwatch(p, &p->out);
    once__stream_end_process(p, "it closed its standard output");
}

size_t once__stream_read_errors(stream_process *p)
{
    char text[4096];
    ssize_t n;
    do n = read(p->child.err, text, sizeof text);
    while (n < 0 && errno == EINTR);
    if (n == 0 || (n < 0 && errno != EAGAIN)) once__stream_unwatch(p, &p->err);
    if (n <= 0) return 0;
    once_tail_keep(&p->tail, text, (size_t)n);
    return (size_t)n;
}

void once__stream_on_err(once_watch *one, uint32_t events)
{
    (void)events;
    once__stream_read_errors((stream_process *)((char *)one - offsetof(stream_process, err)));
}
