/* The messages of `mode: stream`: the queue, what is in flight in a process, and how a message is reported. */
#include <assert.h>
#include <string.h>

#include "effect/stream_impl.h"

#include "base/banned.h"

void once__stream_insert(stream_calls *list, stream_call *c, stream_call *before)
{
    assert(!list->first == (list->n == 0) && !list->last == (list->n == 0));
    c->next = before;
    c->prev = before ? before->prev : list->last;
    *(c->prev ? &c->prev->next : &list->first) = c;
    *(before ? &before->prev : &list->last) = c;
    list->n++;
}

void once__stream_remove(stream_calls *list, stream_call *c)
{
    assert(list->n > 0);
    *(c->prev ? &c->prev->next : &list->first) = c->next;
    *(c->next ? &c->next->prev : &list->last) = c->prev;
    list->n--;
}

stream_call **once__stream_find(stream_process *p, uint64_t id)
{
    stream_call **at = &p->by_id[id & p->stream->mask];
    while (*at && (*at)->id != id) at = &(*at)->chain;
    return at;
}

void once__stream_enter_flight(stream_process *p, stream_call *c)
{
    assert(!c->process && !*once__stream_find(p, c->id)); /* an id is used once */
    assert(p->flight.n < p->stream->window);
    assert(c->begin < c->end && (!p->flight.last || p->flight.last->end <= c->begin)); /* in the order of sending */
    once__stream_remove(&p->stream->queue, c);
    once__stream_insert(&p->flight, c, NULL);
    c->process = p;
    c->chain = NULL;
    *once__stream_find(p, c->id) = c;
    if (p->flight.first == c) p->oldest_ms = once_runner_now_ms(p->stream->driver.runner);
}

void once__stream_leave_flight(stream_process *p, stream_call *c)
{
    assert(c->process == p && *once__stream_find(p, c->id) == c);
    const bool oldest = p->flight.first == c;
    once__stream_remove(&p->flight, c);
    *once__stream_find(p, c->id) = c->chain;
    c->process = NULL;
    if (oldest && p->flight.first) p->oldest_ms = once_runner_now_ms(p->stream->driver.runner);
}

/* --- back to the queue --- */

void once__stream_requeue_last(stream_process *p)
{
    assert(p->flight.last);
    stream *s = p->stream;
    stream_call *c = p->flight.last;
    once__stream_leave_flight(p, c);
    once__stream_insert(&s->queue, c, s->queue.first);
}

void once__stream_requeue_unwritten(stream_process *p)
{
    assert(p->written <= p->lines.len);
    for (stream_call *c; (c = p->flight.last) && c->begin >= p->sent;) {
        once__stream_requeue_last(p);
        p->next_id = c->id;
        p->lines.len = p->written + (size_t)(c->begin - p->sent);
    }
}

/* --- reported --- */

void once__stream_finish(stream *s, stream_call *c, const once_stream_reply *reply, bool started, int run_failure)
{
    assert(c->item && !c->process && c->item->driver == c);
    assert(started || reply->outcome == ONCE_RELEASE);
    once_item *item = c->item;
    *c = (stream_call){.next = s->unused};
    s->unused = c;
    item->outcome = reply->outcome;
    item->delay_ms = reply->delay_ms;
    item->started = started;
    item->maybe_done = reply->outcome == ONCE_UNKNOWN;
    item->run_failure = run_failure;
    once_runner_output(s->driver.runner, item, reply->result, reply->reason);
    once_runner_finished(s->driver.runner, item);
}

void once__stream_finish_unknown(stream *s, stream_call *c, const char *reason)
{
    const once_stream_reply reply = {.outcome = ONCE_UNKNOWN, .reason = {reason, strlen(reason)}, .delay_ms = -1};
    once__stream_finish(s, c, &reply, true, ONCE_OK);
}

void once__stream_finish_unstarted(stream *s, stream_call *c, int run_failure, const char *reason)
{
    const once_stream_reply reply = {.outcome = ONCE_RELEASE, .reason = {reason, strlen(reason)}, .delay_ms = -1};
    assert(!c->process);
    once__stream_remove(&s->queue, c);
    once__stream_finish(s, c, &reply, false, run_failure);
}
