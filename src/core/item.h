/* A message on its way through the pipeline (an item), and the batches that items live in.
 *
 * Invariants: an item is in one place at a time, and only once__machine_move changes it. All bytes of an item belong to
 * the arena of its batch, except `output`, which is malloc'd. A batch is freed when all of its items are over.
 *
 * Thread rule: the machine's (core/machine.h). The executor of an action owns the items of that action until it reports
 * back. */
#ifndef ONCE_CORE_ITEM_H
#define ONCE_CORE_ITEM_H

#include "base/arena.h"
#include "core/entry.h"
#include "core/message.h"
#include "core/spec.h"

typedef struct once_item once_item;
typedef struct once_batch once_batch;
typedef struct once_stream once_stream; /* core/stream.h */

/* Where an item is. once__machine_move (core/machine_place.c) is the one function that changes it, and has the table of
 * what may follow what. */
typedef enum once_item_place {
    ONCE_AT_NEW,    /* in a batch that an executor fills, or has just filled */
    ONCE_AT_READY,  /* in a queue, for the next transaction */
    ONCE_AT_PARKED, /* behind an item with the same key or lane that is not over (core/key_queue.h) */
    ONCE_AT_WORK,   /* in the current transaction */
    ONCE_AT_FLIGHT, /* claimed durably; its effect outside of the store is about to begin or running (core/flight.h) */
    ONCE_AT_RETURNED, /* that effect ended; its outcome waits for a transaction */
    ONCE_AT_OVER,     /* nothing is left to do; its memory is freed with its batch */
    ONCE_AT_PLACES
} once_item_place;

/* What happens to an item next in its transaction. */
typedef enum once_stage {
    ONCE_STAGE_CLAIM,  /* its key must be claimed, or (when `held`) its claim checked */
    ONCE_STAGE_RUN,    /* claimed: the effect runs in this transaction */
    ONCE_STAGE_FLY,    /* claimed, with an effect outside: it starts when the claim is committed */
    ONCE_STAGE_SETTLE, /* it has an outcome */
    ONCE_STAGE_ACCEPT, /* it cannot run now: the store takes the body */
    ONCE_STAGE_BURY,   /* it becomes a dead letter without an entry */
    ONCE_STAGE_OVER    /* decided; counted and acked when the transaction is committed */
} once_stage;

/* When a message reached each stage, in milliseconds of the machine's clock (core/machine.h), which only moves forward;
 * ONCE_NO_TIME: it did not. Messages that reach a stage together share the time. The ack comes after the item is freed,
 * so the watermark keeps `settled_ms` of its tag until then. */
typedef struct once_item_times {
    int64_t received_ms; /* the source or the store handed it out */
    int64_t claimed_ms;  /* the store answered its claim, the last one if there were several */
    int64_t started_ms;  /* its effect was asked for */
    int64_t settled_ms;  /* its end is durable */
} once_item_times;

struct once_item {
    once_batch *batch;
    once_item_place place;
    once_item *next, *prev; /* in the list of its place */
    once_item_times times;
    once_message message;
    const once_handler_spec *handler; /* NULL: none; `reason` says why */
    once_scope scope;
    once_request request;  /* request.id zero: it has no key; `reason` says why */
    const uint64_t *locks; /* hashes of the names that it locks, in the batch's arena */
    size_t n_locks;
    void *input;          /* what the effect made of the body; NULL: it cannot run, `reason` says why */
    once_bytes reason;    /* static or in the batch's arena */
    bool no_handler;      /* the reason is that no handler takes its type */
    once_bytes sent_text; /* the text that message.sent_ms was read from, if it is in the message */
    once_time_unit sent_unit;
    const void *resume;  /* set by the source, in the batch's arena: where to go on behind this message; or NULL */
    uint32_t stream;     /* of the source */
    uint64_t delivery;   /* the number that the source gave the delivery (core/receipt.h); set by fetch */
    uint64_t tag;        /* from a source: 1, 2, 3... in the order of delivery, in its stream; 0: from the store */
    once_stream *from;   /* the stream to ack it to; NULL: none, it is from the store or was taken from us */
    bool full;           /* READY, in the list of its stream for its handler, which has no free slot */
    bool to_store;       /* its delivery cannot be extended again: the store must take it */
    bool held;           /* claimed durably before this transaction: by take, or one by one after a crash */
    once_decision first; /* the answer to that claim */
    bool resumed;        /* taken or found, and another run had left it waiting */
    bool found;          /* the current transaction found it waiting in the store; dropped if that is rolled back */
    bool overtakes;      /* from a source; it goes on with an entry that this run had left waiting */
    bool replaces;       /* it took the place of other content; this commit counts the conflict letter ... */
    bool replaces_ours;  /* ... of a message that this run had left waiting */
    bool commit_unknown; /* it was in a commit whose fate is not known: the entry may be our own. Keeps its token */
    bool acked;
    bool lapsed; /* set by the executor: it recorded that the claim before this one is unknown */

    /* Filled by the actions of a transaction. */
    once_stage stage;
    once_decision decision;
    once_outcome outcome;
    once_bytes result, failure; /* of the effect; `failure` in words */
    int64_t delay_ms;           /* retry, release, unknown: the wait; -1: the backoff decides */
    bool granted;               /* the answer to extend: still ours; to settle: applied; to bury: new */
    bool started;               /* the effect was started */
    bool hung_up;               /* the database closed the connection while its effect ran alone */
    bool suspect;               /* the database rolled the transaction back at its statement */
    bool apart;                 /* it was a suspect, so its effect runs in a transaction of its own */
    bool ended_tx;              /* its effect ended the whole transaction; it is not run again, `outcome` and `reason`
                                 * say what is settled */
    bool letter;                /* this bury wrote the dead letter; it was not there before */

    /* Of an external effect, filled by the effect executor, which owns the item from START to once_machine_finished. */
    void *output; /* malloc'd, holds result and failure; freed when the item is over */
    void *driver; /* what the executor needs to find it again */
    bool maybe;   /* the effect may have happened */
    /* Not ONCE_OK: the effect could not be started, or the next one would end in the same way. The message is not to
     * blame; `failure` says why. */
    int run_failure;

    /* The machine's own, about external effects (core/flight.h). */
    bool given;           /* to the executor; stays true when it is back */
    bool told_to_end;     /* KILL was asked for; stays true when it is back */
    bool returned;        /* its effect ended, and its outcome is not in the store yet */
    bool lost;            /* another worker has its claim: its outcome cannot be settled */
    once_outcome came_to; /* returned: how the effect ended, and its result, even if the write that belongs to it ... */
    once_bytes came_with; /* ... (ONCE_EFFECT_THEN) fails */
    int64_t claimed_at_ms; /* the time before the claim or the last extension was asked for */

    /* Its place among equal keys and lanes across transactions (core/key_queue.h). */
    bool joined;                     /* it stands in the queues */
    unsigned waits_for;              /* how many stand directly before it: 0, 1 or 2 */
    once_item *ahead[2], *behind[2]; /* in the queue of its key, and of its lane */

    /* Its place among equal keys and lanes of the current transaction, which run in order. */
    unsigned blockers; /* how many it waits for */
    once_item *next_of_key, *next_of_lane;
};

/* Its effect outside is done, and something is written in the store's database together with its outcome, only under
 * its claim. That holds for a claim that seems lost, too: perhaps no other worker has taken it over, and its outcome
 * can still be settled. */
static inline bool once_item_has_then(const once_item *item)
{
    return item->returned && item->came_to == ONCE_DONE && (item->handler->bits & ONCE_EFFECT_THEN);
}

/* Its claim is gone, and the answer to its last commit was lost: perhaps that commit settled it as done. */
static inline bool once_item_may_be_settled(const once_item *item)
{
    return item->commit_unknown && once_item_has_then(item) && item->outcome != item->came_to;
}

/* Messages that came together and whose memory is freed together. */
struct once_batch {
    once_arena arena;
    once_item *items;
    size_t n, open;         /* all items; those that are not over, and those that a cursor points to */
    size_t bytes;           /* of the bodies, if it was fetched */
    bool taken_in;          /* intake is done for all items */
    once_batch *next, *all; /* the next spare batch; the next of all batches */
};

#endif
