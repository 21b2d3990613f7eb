/* A stream of the source as the machine has it: its own tags and watermark, its own queue, and what is acked of it.
 * So a slow or stuck stream holds up nobody else.
 *
 * Where acks are single, tags are those of core/deliveries.h, and each is acked when it is over; otherwise they are
 * those of the watermark, whose delivery is acked. Thread rule: one thread. */
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

void once_queue_put(once_queue *queue, once_item *item, bool last); /* as the last or the first */
void once_queue_remove(once_queue *queue, once_item *item);

struct once_stream {
    uint32_t number;
    once_stream_change state;
    bool to_seek;        /* with a cursor: nothing of it comes before the source has heard where it goes on */
    unsigned seek_tries; /* failed in a row, ... */
    int64_t seek_at_ms, seek_failing_since_ms; /* ... the next one not before, and the first of them */
    bool let_go;           /* nothing of it is acked any more, and no item belongs to it: it is to be released */
    bool released;         /* at the end: it stays for those that wait */
    int64_t release_by_ms; /* REVOKED */
    int64_t paused_at_ms;  /* since then enough of it is here; ONCE_NO_TIME: it is fetched */
    int64_t release_at_ms; /* not before, after a release that failed */
    bool single;           /* acks are */
    once_deliveries open;  /* where they are */
    once_watermark mark;   /* where they are not, and ... */
    uint64_t acked;        /* ... every tag up to here */
    once_queue ready;
    once_queue *full; /* by handler: READY, too, but the handler had no slot free; others of the stream go meanwhile */
    size_t full_n;    /* of all of them */
    size_t ready_bytes;             /* of their bodies */
    size_t at[ONCE_AT_PLACES];      /* items of it in each place; those of NEW and OVER are not counted */
    size_t coming;                  /* messages of the batch that is taken in */
    once_item *farthest;            /* with a cursor: of those that are over, the last one; its batch is kept for it */
    const once_item *next_farthest; /* the same when the work is committed, and ... */
    uint64_t peeked;                /* ... the watermark then, plus 1; 0: not known */
    int64_t expires_ms;             /* for how long a delivery is ours; 0: it does not run out */
    int64_t prolong_at_ms;          /* when deliveries that are not over are extended; ONCE_NEVER: there are none */
    uint64_t prolong_from;          /* of the round that is under way the first tag that was not asked for, or
                            * ONCE_ROUND_END; 0: none is */
    uint8_t round;                  /* its number */
};

#define ONCE_ROUND_END UINT64_MAX

once_stream *once_stream_new(uint32_t number, bool single); /* NULL: out of memory */
void once_stream_free(once_stream *stream);

bool once_stream_reserve(once_stream *stream, size_t n); /* for n deliveries more; false: out of memory */
/* The tag of a delivery; there is room. */
uint64_t once_stream_begin(once_stream *stream, uint64_t delivery, once_item *item);
/* Of a tag whose delivery is not acked. */
once_delivery_state *once_stream_at(const once_stream *stream, uint64_t tag);
/* The tag of the delivery that came first of those that are not acked, or after that one; ONCE_ROUND_END: none did.
 */
uint64_t once_stream_first(const once_stream *stream);
uint64_t once_stream_after(const once_stream *stream, uint64_t tag);
bool once_stream_all_over(const once_stream *stream);
/* A delivery is over: to be acked, or (`gone`) never. */
void once_stream_end(once_stream *stream, uint64_t tag, bool gone, int64_t now_ms);
/* Of an item that leaves the stream: nobody finds it by its tag. */
void once_stream_forget(once_stream *stream, const once_item *item);
/* Something of it is to be acked. */
bool once_stream_has_acks(const once_stream *stream);
/* The next tag to be acked, which is taken out of the list; 0: none. */
uint64_t once_stream_next_ack(once_stream *stream);
void once_stream_acked(once_stream *stream, uint64_t tag);     /* or it is gone */
void once_stream_not_acked(once_stream *stream, uint64_t tag); /* it is asked for again */
/* How long after it was delivered or extended a delivery that runs out is extended. */
static inline int64_t once_stream_extends_after_ms(const once_stream *stream)
{
    return stream->expires_ms < 3 ? 1 : stream->expires_ms / 3;
}

/* Deliveries that are not acked, over or not. Where acks are not single, all behind the first that is not over are. */
static inline uint64_t once_stream_outstanding(const once_stream *stream)
{
    return stream->single ? stream->open.n : stream->mark.next - 1 - stream->mark.kept;
}

#endif
