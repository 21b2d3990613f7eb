/* An item is a message on its way through the pipeline. A batch is the items that were fetched or taken together; it
 * owns their memory.
 *
 * Invariants: an item is in one place at a time, and only once__machine_move changes its place. All bytes of an item
 * belong to the arena of its batch, except `output`, which is malloc'd. A batch is freed when all of its items are over
 * and no cursor refers to one of them.
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

/* Where an item is. Only once__machine_move (core/machine_place.c) changes it, by a table that says which place may
 * follow which. */
typedef enum once_item_place {
    ONCE_AT_NEW,    /* in a batch that an executor fills, or has just filled */
    ONCE_AT_READY,  /* in a queue, for the next transaction */
    ONCE_AT_PARKED, /* it waits for an earlier item with the same key or lane (core/key_queue.h) */
    ONCE_AT_WORK,   /* in the current transaction */
    /* claimed durably, or `unclaimed`; its effect outside of the store is about to begin or running (core/flight.h) */
    ONCE_AT_FLIGHT,
    ONCE_AT_RETURNED, /* its effect outside ended; the outcome waits for a transaction */
    ONCE_AT_OVER,     /* nothing is left to do; its memory is freed with its batch */
    ONCE_AT_PLACES
} once_item_place;

/* What happens to an item next in its transaction. */
typedef enum once_stage {
    ONCE_STAGE_CLAIM,   /* its key must be claimed, or, if it is `held`, its claim must be checked */
    ONCE_STAGE_RUN,     /* claimed: the effect runs in this transaction */
    ONCE_STAGE_OUTSIDE, /* claimed: its effect is outside, and starts when the claim is committed */
    ONCE_STAGE_SETTLE,  /* it has an outcome */
    ONCE_STAGE_ACCEPT,  /* it cannot run now: the store takes it, with its body */
    ONCE_STAGE_BURY,    /* it becomes a dead letter without an entry */
    ONCE_STAGE_OVER     /* decided; counted and acked when the transaction is committed */
} once_stage;

/* When a message reached each stage, on the machine's clock (core/machine.h). ONCE_NO_TIME: it has not reached it.
 * Messages that reach a stage together have the same time. The ack comes after the item is freed, so the stream keeps
 * `settled_ms` of its tag until then. */
typedef struct once_item_times {
    int64_t received_ms; /* the source or the store handed it out */
    int64_t claimed_ms;  /* the store answered its claim, the last one if there were several */
    int64_t started_ms;  /* its effect was asked for */
    int64_t settled_ms;  /* its end is durable */
} once_item_times;

/* Threads on different cores pass items on, a cache line at a time, so members that are used together stand together,
 * and small ones do not stand alone. No bit-fields: the machine and the executor write different members at the same
 * time. */
struct once_item {
    once_batch *batch;
    once_item *next, *prev; /* in the list of its place */
    once_item_place place;
    once_stage stage;  /* in its transaction */
    once_stream *from; /* the stream to ack it to; NULL: it came from the store, or its delivery is no longer ours */
    uint64_t tag;      /* from a source: 1, 2, 3... in the order of delivery, in its stream; 0: from the store */
    uint64_t delivery; /* the number that the source gave the delivery (core/receipt.h); set by fetch */
    uint32_t stream;   /* the number of its stream */
    const once_handler_spec *handler; /* NULL: no handler takes it; `reason` says why */
    void *input;                      /* what the effect made of the body; NULL: it cannot run, `reason` says why */
    void *then_input;                 /* what its `then` (ONCE_EFFECT_THEN) made of the body */
    once_item_times times;

    /* Its place among equal keys and lanes of the current transaction, which are processed in order. */
    unsigned blockers; /* how many items it waits for */
    once_item *next_of_key, *next_of_lane;

    /* What happened to it. */
    bool no_handler;     /* `reason` is that no handler takes its type */
    bool skipped;        /* a message without a body that is skipped; it has no key, and `reason` says it */
    bool full;           /* it is READY and its handler has no free slot: it is in that list of its stream */
    bool to_store;       /* its delivery cannot be extended again: the store must take it */
    bool crowded;        /* too many wait here for the rate of its handler: it waits in the store */
    bool held;           /* it was claimed durably before this transaction: by TAKE, or one by one after a crash */
    bool resumed;        /* it came from the store, where another run had left it */
    bool found;          /* the current transaction found it in the store; it is dropped if that is rolled back */
    bool overtakes;      /* it came from a source, and continues an entry that this run had left in the store */
    bool replaces;       /* it replaced a message with other content; this commit counts that one's conflict letter */
    bool replaces_ours;  /* this run had left the replaced message in the store */
    bool commit_unknown; /* it was in a commit whose result is unknown: the entry may be our own. It keeps its token */
    bool acked;
    bool joined; /* it is in the queues of its key and lane (core/key_queue.h) */

    /* Filled by the actions of a transaction. */
    bool granted;  /* EXTEND: the claim is still ours. SETTLE: it was applied. BURY: the letter is new. ABSENT: it
                    * has no entry */
    bool lapsed;   /* it was recorded that the outcome of the claim before this one is unknown */
    bool hung_up;  /* the database closed the connection while its effect ran alone */
    bool suspect;  /* the database rolled the transaction back at one of its statements */
    bool apart;    /* it was a suspect, so its effect runs in a transaction of its own */
    bool ended_tx; /* its effect ended the whole transaction. It is not run again: `outcome` and `reason` are settled */
    bool letter;   /* BURY wrote its dead letter, which did not exist before */

    /* About an external effect, only for the machine (core/flight.h). */
    bool given;            /* START gave it to the executor; stays true when the effect has ended */
    bool told_to_end;      /* KILL was asked for; stays true when the effect has ended */
    bool unclaimed;        /* its effect began without a claim (core/entry.h): there is no lease and no fence */
    bool returned;         /* its effect ended, and its outcome is not in the store yet */
    bool unwritten;        /* returned: its `then` cannot be written for now, and it waits for that */
    bool lost;             /* another worker has its claim: its outcome cannot be settled */
    once_outcome came_to;  /* returned: the outcome of the effect outside ... */
    once_bytes came_with;  /* ... its result ... */
    once_bytes came_why;   /* ... and its reason. A `then` (ONCE_EFFECT_THEN) that fails changes none of these */
    int64_t claimed_at_ms; /* just before the claim or its last extension was asked for */

    /* The end of its effect. The executor of an external effect fills these; it owns them from START until
     * once_machine_finished. */
    once_outcome outcome;
    bool started;     /* the effect was started */
    bool maybe_done;  /* external: the effect may have happened */
    bool result_lost; /* external: it had a result, which was not kept: too long, or no memory */
    /* Not ONCE_OK: the effect could not be started, or the next one would end in the same way. The message is not to
     * blame; `failure` says why. The machine sets ONCE_E_MESSAGE: it would be a dead letter if its handler were not at
     * fault (core/gate.h). */
    int run_failure;
    int64_t delay_ms;           /* retry, release, unknown: the wait; -1: the backoff decides */
    once_bytes result, failure; /* `failure` says in words why it failed */
    void *output;               /* external, malloc'd: the bytes of result and failure; freed when the item is over */
    void *driver;               /* external: the effect driver's own data about it */

    once_request request; /* request.id zero: it has no key; `reason` says why */
    once_decision decision;
    const once_decision *first; /* `held`: the answer to that claim, in the batch's arena; otherwise NULL */
    once_message message;
    once_scope scope;

    /* Its place among equal keys and lanes across transactions (core/key_queue.h). */
    once_item *ahead[2], *behind[2]; /* in the queue of its key, and of its lane */
    unsigned waits_for;              /* in how many of them another item is before it: 0, 1 or 2 */

    once_time_unit sent_unit;
    once_bytes sent_text;  /* the text that message.sent_ms was read from, if it is in the message */
    once_bytes reason;     /* static or in the batch's arena */
    const uint64_t *locks; /* hashes of the names that its effect locks, in the batch's arena */
    size_t n_locks;
    const void *resume; /* set by the source, in the batch's arena: where to continue after this message; or NULL */
};

/* It will be worked on soon, and another core may have written it: its cache lines are asked for together, so that they
 * need not be waited for one by one. */
static inline void once_item_expect(const once_item *item)
{
    for (size_t at = 0; at < sizeof *item; at += 64) __builtin_prefetch((const char *)item + at, 1);
}

/* Its effect outside has happened, by this attempt (done) or before it (already: perhaps by an attempt whose reply was
 * lost), and `then` is to be written in the transaction that settles it. This is so even if its claim seems lost: the
 * transaction checks the claim first, and perhaps no other worker has taken it over. */
static inline bool once_item_has_then(const once_item *item)
{
    const bool happened = item->came_to == ONCE_DONE || item->came_to == ONCE_ALREADY;
    return item->returned && happened && (item->handler->bits & ONCE_EFFECT_THEN);
}

/* Its effect ended without a claim, and nothing is kept of its outcome: the store need not hear of it. */
static inline bool once_item_leaves_nothing(const once_item *item)
{
    return item->returned && item->unclaimed && item->came_to <= ONCE_STALE;
}

/* Its `then` was not written in this transaction (its claim is gone, or `then` failed), and the result of an earlier
 * commit is unknown: perhaps that commit settled the item as done. */
static inline bool once_item_may_be_settled(const once_item *item)
{
    return item->commit_unknown && once_item_has_then(item) && item->outcome != item->came_to;
}

struct once_batch {
    once_arena arena;
    once_item *items;
    size_t n;               /* items */
    size_t open;            /* items that are not over, plus references of cursors to items */
    size_t bytes;           /* of the bodies, if the batch was fetched */
    bool taken_in;          /* intake (core/intake.h) is done for all items */
    once_batch *next, *all; /* the next spare batch; the next of all batches */
};

#endif
