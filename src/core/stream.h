/* A stream of the source as the machine sees it. Each stream has its own tags, queue and acks, so a slow or stuck one
 * does not delay another.
 *
 * A tag is the machine's number of a delivery. A source with single acks (ONCE_SOURCE_SINGLE_ACKS) gets an ack for each
 * delivery when it is over; its tags are those of core/deliveries.h. Other sources get an ack of the watermark, which
 * covers all deliveries up to it; their tags are those of core/watermark.h.
 *
 * Invariants: `single` says which of `open` and `mark` is used; the other one is empty. The state of a delivery that is
 * not over refers to its item, until the item leaves the stream.
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

void once_queue_put(once_queue *queue, once_item *item, bool last); /* as the last item, or as the first */
void once_queue_remove(once_queue *queue, once_item *item);

struct once_stream {
    uint32_t number;
    once_stream_change state;
    bool to_seek;        /* with a cursor: nothing of it is fetched until the source got its position (SEEK) */
    unsigned seek_tries; /* how often in a row that SEEK failed */
    int64_t seek_at_ms, seek_failing_since_ms; /* when to try it again; when it failed first */
    bool let_go;           /* it is to be released: nothing of it is acked from now on, and no item belongs to it */
    bool released;         /* it was released at the end of the run; it stays in memory for the items that wait */
    int64_t release_by_ms; /* when it was revoked: the deadline; ONCE_NEVER: there is none */
    int64_t paused_at_ms; /* since when nothing of it is fetched, because enough is here; ONCE_NO_TIME: it is fetched */
    int64_t release_at_ms;     /* after a RELEASE that failed: it is not tried again before */
    bool single;               /* each delivery gets its own ack */
    once_deliveries open;      /* with `single`: the deliveries that are not acked */
    once_watermark mark;       /* otherwise: which deliveries are over ... */
    uint64_t acked;            /* ... and the tag up to which all are acked */
    once_queue ready;          /* READY items, except those in `full` */
    once_queue *full;          /* by handler: READY items that wait for a slot of it; other items may overtake them */
    size_t full_n;             /* how many items are in all of these */
    size_t ready_bytes;        /* of the bodies of all READY items */
    size_t ready_keyless;      /* READY items without a key, which need no slot */
    size_t at[ONCE_AT_PLACES]; /* how many of its items are in each place; NEW and OVER are not counted */
    size_t coming;             /* messages of the batch that is being taken in */
    once_item *farthest;       /* with a cursor: the last one of the messages that are over; its batch stays open */
    const once_item *next_farthest; /* up to this one all will be over when the work is committed ... */
    uint64_t peeked;                /* ... and the watermark then, plus 1; 0: not known */
    int64_t expires_ms;             /* how long a delivery stays ours; 0: it does not expire */
    int64_t extend_at_ms;           /* when to extend the deliveries that are not over; ONCE_NEVER: there are none */
    uint64_t extend_from; /* the next tag that this round of extensions asks for; ONCE_ROUND_END: it has asked for all;
                            * 0: there is no round */
    uint8_t round;        /* the number of that round; 0 is never used */
};

#define ONCE_ROUND_END UINT64_MAX

once_stream *once_stream_new(uint32_t number, bool single); /* NULL: out of memory */
void once_stream_free(once_stream *stream);

bool once_stream_reserve(once_stream *stream, size_t n); /* room for n more deliveries; false: out of memory */
/* Adds a delivery and returns its tag. There must be room. */
uint64_t once_stream_begin(once_stream *stream, uint64_t delivery, once_item *item);
/* The state of a delivery that is not acked. */
once_delivery_state *once_stream_at(const once_stream *stream, uint64_t tag);
/* The tag of the oldest delivery that is not acked, and of the next one after a tag; ONCE_ROUND_END: there is none. */
uint64_t once_stream_first(const once_stream *stream);
uint64_t once_stream_after(const once_stream *stream, uint64_t tag);
bool once_stream_all_over(const once_stream *stream);
/* A delivery is over. It will be acked, unless it is `gone`: then it is no longer ours. */
void once_stream_end(once_stream *stream, uint64_t tag, bool gone, int64_t now_ms);
/* An item leaves the stream: its tag no longer refers to it. */
void once_stream_forget(once_stream *stream, const once_item *item);
/* Whether a delivery is to be acked. */
bool once_stream_has_acks(const once_stream *stream);
/* Takes the next tag that is to be acked out of the list; 0: there is none. */
uint64_t once_stream_next_ack(once_stream *stream);
void once_stream_acked(once_stream *stream, uint64_t tag);     /* it is acked, or gone */
void once_stream_not_acked(once_stream *stream, uint64_t tag); /* the ack failed: it is listed again */
/* A delivery that expires is extended this long after it was delivered or last extended: after a third of its time. */
static inline int64_t once_stream_extends_after_ms(const once_stream *stream)
{
    return stream->expires_ms < 3 ? 1 : stream->expires_ms / 3;
}

/* How many deliveries are not acked, whether they are over or not. Where acks are not single, all deliveries behind the
 * first one that is not over count. */
static inline uint64_t once_stream_outstanding(const once_stream *stream)
{
    return stream->single ? stream->open.n : stream->mark.next - 1 - stream->mark.kept;
}

#endif
