/* A message on its way through the pipeline, and the batches that such messages live in. */
#ifndef ONCE_CORE_ITEM_H
#define ONCE_CORE_ITEM_H

#include "base/arena.h"
#include "core/entry.h"
#include "core/message.h"
#include "core/spec.h"

typedef struct once_item once_item;
typedef struct once_batch once_batch;
typedef struct once_stream once_stream; /* core/stream.h */

/* Where an item is. It is in one place at a time, once__machine_move (core/machine_place.c) is the one function that
 * changes it, and says what may follow what. */
typedef enum once_item_place {
    ONCE_AT_NEW,      /* in a batch that an executor fills, or has just filled */
    ONCE_AT_READY,    /* in the queue, for a transaction */
    ONCE_AT_PARKED,   /* behind an item whose key or lane it has, and which is not over (core/key_queue.h) */
    ONCE_AT_WORK,     /* in the transaction that is being made */
    ONCE_AT_FLIGHT,   /* claimed durably for its effect outside, which is about to begin or under way (core/flight.h) */
    ONCE_AT_RETURNED, /* that effect ended; its outcome waits for a transaction */
    ONCE_AT_OVER,     /* nothing is left to do; its memory goes with that of its batch */
    ONCE_AT_PLACES
} once_item_place;

/* What happens to an item in the transaction that it is in. */
typedef enum once_stage {
    ONCE_STAGE_CLAIM,  /* its key must be claimed, or (when `held`) its claim checked */
    ONCE_STAGE_RUN,    /* ours: the effect runs */
    ONCE_STAGE_FLY,    /* ours, and its effect is outside: it starts when the claim is committed */
    ONCE_STAGE_SETTLE, /* it has an outcome */
    ONCE_STAGE_ACCEPT, /* somebody else's turn: the body goes to the store */
    ONCE_STAGE_BURY,   /* a dead letter without an entry */
    ONCE_STAGE_OVER    /* decided; counted and acked when the transaction is committed */
} once_stage;

/* When a message came to each of its stages, in milliseconds of the machine's clock (core/machine.h), which only moves
 * forward; ONCE_NO_TIME: it was not there. Those that come to a stage together share the moment. Its ack is later than
 * its memory: the watermark keeps `settled_ms` of its tag until then. */
typedef struct once_item_times {
    int64_t received_ms; /* its source, or the store, handed it out */
    int64_t claimed_ms;  /* the store answered its claim, the last one if there were several */
    int64_t started_ms;  /* its effect was asked for */
    int64_t settled_ms;  /* what became of it is durable */
} once_item_times;

struct once_item {
    once_batch *batch;
    once_item_place place;
    once_item *next, *prev; /* in the list of its place */
    once_item_times times;
    once_message message;
    const once_handler_spec *handler; /* NULL: none; then `reason` says why */
    once_scope scope;
    once_request request;  /* request.id zero: it has no key; then `reason` says why */
    const uint64_t *locks; /* of what it will touch, in the batch's arena */
    size_t n_locks;
    void *input;       /* what the effect made of the body; NULL: `reason` says why it cannot run */
    once_bytes reason; /* static or in the batch's arena */
    bool no_handler;   /* the reason is that no handler takes its type */
    once_bytes
        sent_text; /* what message.sent_ms was read from, if the message says it; in its body or the batch's arena */
    once_time_unit sent_unit;
    const void *resume; /* the source's own, in the batch's arena: where it goes on behind this; or NULL */
    uint32_t stream;    /* of the source, and ... */
    uint64_t delivery;  /* ... the delivery as the source knows it (core/receipt.h); set by fetch */
    /* From a source: 1, 2, 3... in the order of delivery, in its stream; 0: taken from the store, or found there. */
    uint64_t tag;
    once_stream *from;   /* whom its end is told to; NULL: nobody, it is not the source's or not its any more */
    bool full;           /* READY, and in the list of its stream for its handler, which has no slot free */
    bool to_store;       /* its delivery cannot be extended any more: the store must take it */
    bool held;           /* claimed durably before this transaction: by take, or one by one after a crash */
    once_decision first; /* the answer to that claim */
    bool resumed;        /* taken or found, and not one that this run had left waiting */
    bool found; /* it waits in the store, and was found there by the transaction that it is in: forgotten when that does
                   not happen */
    bool overtakes;     /* from a source, and goes on with what an equal one before it had left waiting */
    bool replaces;      /* it took the place of other content, whose letter is to be counted with this commit ... */
    bool replaces_ours; /* ... and which this run had left waiting */
    /* It was in a commit whose fate is not known: what the store shows may be our own. Keeps its token. */
    bool commit_unknown;
    bool acked;
    bool lapsed; /* the executor's: it wrote down that the claim which was there is unknown */

    /* Filled by actions. */
    once_stage stage;
    once_decision decision;
    once_outcome outcome;
    once_bytes result, failure; /* of the effect; `failure` in words */
    int64_t delay_ms;
    bool granted;  /* answer to extend, settle, bury: ours, applied, fresh */
    bool started;  /* the effect was started */
    bool hung_up;  /* the database has, while its effect ran alone */
    bool suspect;  /* its statement is the one that the database rolled the transaction back at */
    bool apart;    /* it had been; so its effect runs in a transaction without others */
    bool ended_tx; /* its effect ended the whole transaction; `outcome` and `reason` say what that means, it is not run
                     again */
    bool letter;   /* buried by us, not by somebody before */

    /* Of an external effect, filled by the effect executor, which owns the item from START to once_machine_finished. */
    void *output;    /* malloc'd, holds result and failure; freed when the item is over */
    void *driver;    /* what the executor needs to find it again */
    bool maybe;      /* the effect may have happened */
    int not_started; /* not ONCE_OK: it could not be started, and that is not the message's fault; `failure` says why */

    /* The machine's own, about external effects (core/flight.h). */
    bool given;       /* to the executor; stays true when it is back */
    bool told_to_end; /* KILL was asked for; the same */
    bool returned; /* its effect is over, its outcome is not in the store yet: it waits for a transaction, or is in one
                    */
    bool lost;     /* its claim is somebody else's: whatever its effect says cannot be settled */
    /* Returned: how it ended, and its result, whatever comes of what is written with it (ONCE_EFFECT_THEN). */
    once_outcome came_to;
    once_bytes came_with;
    int64_t claimed_at_ms; /* before the claim or the last extension was asked for */

    /* Equal keys and lanes across transactions (core/key_queue.h). */
    bool joined;
    unsigned waits_for;
    once_item *ahead[2], *behind[2]; /* in the queue of its key, and of its lane */

    /* Equal keys and lanes inside one transaction wait for each other, in order. */
    unsigned blockers;
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

/* Messages that came together and end together. */
struct once_batch {
    once_arena arena;
    once_item *items;
    size_t n, open;         /* open: not yet over */
    size_t bytes;           /* of the bodies, when it was fetched */
    bool taken_in;          /* intake is done for all items */
    once_batch *next, *all; /* spare ones; all there are */
};

#endif
