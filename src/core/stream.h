/* A stream of the source as the machine sees it. Each has its own tags, its own queue and its own acks, so that a slow
 * or stuck stream holds up no other.
 *
 * A tag is the machine's number of a delivery. Where acks are single (ONCE_SOURCE_SINGLE_ACKS), tags are those of
 * core/deliveries.h, and each delivery is acked when it is over. Otherwise tags are those of core/watermark.h, and an
 * ack of the watermark covers all deliveries up to it.
 *
 * Invariants: exactly one of `open` and `mark` is used, as `single` says. A delivery that is not over leads to its
 * item, until the item leaves the stream.
 *
 * Thread rule: one thread. */
#ifndef ONCE_CORE_STREAM_H
#define ONCE_CORE_STREAM_H

#include "core/deliveries.h"
#include "core/item.h"
#include "core/receipt.h"
#include "core/watermark.h"

/* A list of items, by item->next and item->prev. */
typedef struct once_queue {
    once_item *first, *last;
    size_t n;
} once_queue;

void once_queue_put(once_queue *queue, once_item *item, bool last); /* as the last one, or as the first */
void once_queue_remove(once_queue *queue, once_item *item);

struct once_stream {
    uint32_t number;
    once_stream_change state;
    bool to_seek;        /* with a cursor: fetches nothing until the source got its position (SEEK) */
    unsigned seek_tries; /* failures in a row of that SEEK ... */
    int64_t seek_at_ms, seek_failing_since_ms; /* ... when to try again, and when the first one failed */
    bool let_go;           /* nothing of it is acked from now on, and no item belongs to it: it is to be released */
    bool released;         /* at the end of the run; it stays in memory for the items that wait */
    int64_t release_by_ms; /* REVOKED: the deadline; ONCE_NEVER: none */
    int64_t paused_at_ms;  /* since when it is not fetched, because enough of it is here; ONCE_NO_TIME: it is fetched */
    int64_t release_at_ms; /* after a RELEASE that failed: not before */
    bool single;           /* each delivery is acked for itself */
    once_deliveries open;  /* with `single`: the deliveries that are not acked */
    once_watermark mark;   /* otherwise: which deliveries are over ... */
    uint64_t acked;        /* ... and the tag up to which all are acked */
    once_queue ready;      /* READY items */
    once_queue *full;      /* by handler: READY items that wait for a slot of it; others of the stream may pass them */
    size_t full_n;         /* items in all of these */
    size_t ready_bytes;    /* of the bodies of all READY items */
    size_t at[ONCE_AT_PLACES];      /* how many of its items are in each place; NEW and OVER are not counted */
    size_t coming;                  /* messages of the batch that is being taken in */
    once_item *farthest;            /* with a cursor: the last message that is over; keeps its batch open */
    const once_item *next_farthest; /* the same once the work is committed ... */
    uint64_t peeked;                /* ... and the watermark then, plus 1; 0: not known */
    int64_t expires_ms;             /* how long a delivery stays ours; 0: it does not expire */
    int64_t extend_at_ms;           /* when to extend the deliveries that are not over; ONCE_NEVER: there are none */
    uint64_t extend_from; /* the next tag that the current round of extending asks for; ONCE_ROUND_END: it has asked
                            * for all; 0: there is no round */
    uint8_t round;        /* the number of that round; 0 is never used */
};

#define ONCE_ROUND_END UINT64_MAX

once_stream *once_stream_new(uint32_t number, bool single); /* NULL: out of memory */
void once_stream_free(once_stream *stream);

bool once_stream_reserve(once_stream *stream, size_t n); /* room for n more deliveries; false: out of memory */
/* A new delivery: returns its tag. There must be room. */
uint64_t once_stream_begin(once_stream *stream, uint64_t delivery, once_item *item);
/* The state of a delivery that is not acked. */
once_delivery_state *once_stream_at(const once_stream *stream, uint64_t tag);
/* The oldest delivery that is not acked, and the next one after a tag; ONCE_ROUND_END: none. */
uint64_t once_stream_first(const once_stream *stream);
uint64_t once_stream_after(const once_stream *stream, uint64_t tag);
bool once_stream_all_over(const once_stream *stream);
/* A delivery is over. It will be acked, unless it is `gone`: no longer ours. */
void once_stream_end(once_stream *stream, uint64_t tag, bool gone, int64_t now_ms);
/* An item leaves the stream: from now on its tag does not lead to it. */
void once_stream_forget(once_stream *stream, const once_item *item);
/* Whether something of it is to be acked. */
bool once_stream_has_acks(const once_stream *stream);
/* Takes the next tag to be acked out of the list; 0: none. */
uint64_t once_stream_next_ack(once_stream *stream);
void once_stream_acked(once_stream *stream, uint64_t tag);     /* it is acked, or gone */
void once_stream_not_acked(once_stream *stream, uint64_t tag); /* the ack failed: it is listed again */
/* How long after it was delivered or extended a delivery that expires is extended: a third of its time. */
static inline int64_t once_stream_extends_after_ms(const once_stream *stream)
{
    return stream->expires_ms < 3 ? 1 : stream->expires_ms / 3;
}

/* Deliveries that are not acked, over or not. Unless acks are single, all behind the first that is not over count. */
static inline uint64_t once_stream_outstanding(const once_stream *stream)
{
    return stream->single ? stream->open.n : stream->mark.next - 1 - stream->mark.kept;
}

#endif
