/* The pipeline as a state machine: step(event) -> actions. Single-threaded, no I/O, no clock.
 *
 * The machine decides what happens to each message. Executors carry out its actions and report back. There are four:
 *   store executor    claims, effects in the store's database, settlements: one transaction at a time
 *   source executor   fetch
 *   ack executor      what the source must be told: ack, extend, release. It is separate from fetch so that neither
 *                     waits for the other
 *   effect executor   starts and kills effects outside of the store
 * Each executor has at most one action at a time. The runtime drives the machine with threads; the simulator drives the
 * same code in a world of its own.
 *
 * One batch is one transaction, except for natural messages whose key has no entry (ABSENT), which need none:
 *
 *   begin; rounds of { claim, extend, run, settle, accept }; bury; commit; ack
 *
 * Unless its effect is outside of the store, a message ends in it in one of four ways: suppressed (duplicate, dead,
 * stale), settled, given to the store (accept), or buried as a dead letter. So after the commit the whole batch can be
 * acked, and before it nothing can. Messages of a batch with equal keys or lanes wait for each other: the follower is
 * claimed in the next round of the same transaction, after its leader was settled.
 *
 * Effects outside of the store (core/flight.h) run between two transactions. The first one claims; the effect starts
 * when that is committed; the next transaction that begins after the effect ended settles it. So one commit carries the
 * claims of the next messages and the outcomes of the last ones. The machine claims such a message only when a slot is
 * free to start it at once. While the effect is in flight, equal keys and lanes wait behind it (core/key_queue.h) and
 * its lease is extended. If that fails, the effect is told to end before its lease does. If its claim was lost by then,
 * its outcome is not settled.
 *
 * Lookup. An unknown whose handler can ask the other side (`lookup`) comes back by TAKE when it is due, under a claim
 * like any other. The question is handled like an effect in flight: it takes a slot, its lease is extended, and the
 * answer is settled. "Done" settles done. "Absent" means that the attempt failed, and the message may be tried again
 * under the same key. Any other answer leaves it unknown, to be asked about again or held for an operator
 * (core/policy.h). If the worker dies during the lookup, the entry is still an unknown with a due time, and another
 * worker asks.
 *
 * Inbox (ack: after_accept). Messages of the source are only accepted into the store, and are then worked on from
 * there.
 *
 * Optimistic, then careful. The first pass sets no savepoints. When an effect fails, everything is rolled back and run
 * again with a savepoint around each message, and so are the next batches. A failure then costs only its own message,
 * and is written in the same commit as the survivors. In an optimistic pass an executor need not wait for its effects:
 * it may presume that they are done. If one was not, a later action of that transaction, COMMIT at the latest, fails
 * with a status that blames a message. Nothing is committed then, and it is as if RUN had failed.
 *
 * After an unclean end the first messages are claimed durably and run one by one. So a message that kills the process
 * is counted (a claim that ends without reporting an outcome adds a failure) and becomes a dead letter in the end.
 *
 * A transaction that the database rolls back again and again (a deadlock, a statement timeout) may be the fault of one
 * message or of other transactions. A careful pass finds the message at whose statement it happens, and that message
 * runs in a transaction of its own. Only rollbacks that happen to it there count against it, so it uses up its own
 * attempts and does not delay the other messages.
 *
 * Failures of executors. A failure that can pass is repeated after a pause, and nothing is fetched while the store
 * fails. A run with a finite source gives up when it has tried several times and `patience` is over (also for a full
 * disk, where space may come back). After a commit whose
 * result is unknown, because its reply was lost, the batch is claimed again with the same tokens: the answers then tell
 * what was committed.
 *
 * Handlers that are held up (core/gate.h). A handler whose effects cannot work, fail or die too often is held: one
 * message at a time tries it, and it goes on when that succeeds. Meanwhile its messages are accepted into the store,
 * and TAKE hands out none but the probe. Other handlers go on. A run with a finite source ends when only messages of
 * held handlers are left and `patience` is over.
 *
 * Streams (core/stream.h). Each stream of the source has its own tags, acks and queue. A transaction is filled from the
 * streams in turn, and a stream that cannot go on holds up no other. Streams come and go by the news of a FETCH
 * (machine_stream.c). Deliveries that would expire are extended (machine_ack.c).
 *
 * Invariants. They hold whenever none of the functions below is running. Test builds check them after each call
 * (once__machine_check) and name them by number.
 *
 *   1  An item is in exactly one place (once_item_place). READY, WORK, FLIGHT and RETURNED are lists; each list has the
 *      items whose place it is, each once. READY is several lists: one for each stream, one for each stream and handler
 *      without a free slot, and one for items taken from the store. No item of an open batch is NEW: while an executor
 *      fills a batch, the batch belongs to the executor.
 *   2  batch->open is the number of its items that are not OVER, plus one while the cursor of a stream still refers to
 *      one of them (machine_source.c).
 *   3  Tags of a stream with cumulative acks: acked <= watermark < next. A tag is not over before its item is, and each
 *      tag that is not over refers to its item.
 *   4  An item has a slot of its handler if and only if it is in FLIGHT or RETURNED, or in WORK about to be claimed for
 *      FLIGHT; used slots <= handler->slots.
 *   5  An item is PARKED if and only if another item precedes it in the queue of its key or lane. An OVER item is in no
 *      queue.
 *   6  While no work is chosen, WORK is empty and no transaction is open. Leases are extended only for items in FLIGHT
 *      or RETURNED.
 *   7  The byte counts that limit fetching equal the bytes of the bodies held.
 *   8  An item with an outcome from outside is in RETURNED, in the WORK that settles it, or OVER. An item whose effect
 *      is under way is in FLIGHT.
 *   9  At most 64 batches of a stream are delivered and not acked. With cumulative acks, all deliveries behind the
 *      first one that is not over count.
 *   10 When the machine has ended, WORK, FLIGHT and RETURNED are empty, and no executor has an action.
 *   11 An item in READY or PARKED belongs to an assigned stream or to none; no item belongs to a stream that is to be
 *      released.
 *   12 An item that waits for a slot, or for the rate of its handler, in a list of its handler is in the queues of its
 *      key and lane, so no later one passes it.
 *
 * Thread rule: one thread at a time (the runtime's executors step it themselves, under a lock). Between an action and
 * its event the executor owns the items of that action. The effect executor reports START before it reports that one of
 * its items finished. */
#ifndef ONCE_CORE_MACHINE_H
#define ONCE_CORE_MACHINE_H

#include "base/env.h"
#include "core/due_filter.h"
#include "core/gate.h"
#include "core/receipt.h"
#include "core/intake.h"
#include "core/item.h"
#include "once/pipeline.h"

typedef struct once_machine once_machine;

/* What an executor is asked to do. "->" names what it fills in. */
typedef enum once_action_kind {
    ONCE_ACT_NONE,
    /* store executor */
    ONCE_ACT_BEGIN,  /* items: every message that the transaction may touch; the last `n_extend` are only extended.
                      * `due`: a FIND with `due` follows */
    ONCE_ACT_ABSENT, /* in a transaction of its own: -> item->granted: the store has no entry of it, and it may run
                      * without a claim */
    ONCE_ACT_FIND,   /* in the transaction: find what waits in the lanes of the items, and with `due` what else is due;
                      * up to `max` into `batch`. -> more: something is due that only TAKE can hand out */
    ONCE_ACT_CLAIM,  /* -> item->decision */
    ONCE_ACT_EXTEND, /* -> item->granted: the claim is still ours. `n_extend`: these are effects in flight, which may
                      * end while the answer is under way */
    ONCE_ACT_RUN,    /* in order. -> item->outcome, result, failure. Unless `careful`, the executor may report DONE
                      * before the database has answered; COMMIT fails if that was wrong */
    ONCE_ACT_SETTLE, /* item->outcome and the rest. -> item->granted: applied */
    ONCE_ACT_ACCEPT, /* -> item->decision */
    ONCE_ACT_BURY,   /* write dead letters. -> item->granted: the letter is new */
    ONCE_ACT_COMMIT, /* items: all of the transaction. `last`: if it succeeds, all messages of these streams up to each
                      * of these are over */
    ONCE_ACT_ROLLBACK,
    ONCE_ACT_TAKE,  /* claim up to `max` due entries into `batch` (-> its items and n), with `token`, `again` and
                     * `filter` */
    ONCE_ACT_STATS, /* -> waiting, claimed, unknown, wait_ms */
    ONCE_ACT_COUNT, /* how much waits in the store. -> size; with `due` also what STATS gives */
    ONCE_ACT_RENEW, /* renews the worker's record (store/worker.h), when no commit has renewed it for a while */
    ONCE_ACT_SWEEP, /* one bounded step. -> more; wait_ms: the next step not before then */
    ONCE_ACT_SEEK,  /* `stream` was assigned: tell the source where the store's cursor says it goes on */
    /* source executor */
    ONCE_ACT_FETCH, /* up to `max` into `batch` (items with message, batch, stream and delivery set), none of streams in
                     * `paused`. -> at_end, news. With `rest` only what the source has already read. The executor may
                     * also do the intake (once_intake_batch with `intake`), which spares the machine the time */
    /* ack executor */
    ONCE_ACT_ACK,               /* `receipts`: each alone, or everything up to it in its stream. -> their answers */
    ONCE_ACT_EXTEND_DELIVERIES, /* `receipts`: keep these deliveries for longer. -> their answers */
    ONCE_ACT_RELEASE,           /* `stream`: nothing of it is worked on or acked from now on */
    /* effect executor */
    ONCE_ACT_START, /* items: begin their effects, or (decision.asks) ask the other side what became of them. Each
                     * comes back by once_machine_finished */
    ONCE_ACT_KILL   /* items that were started: they must end now, because the lease or the run ends. They still come
                     * back */
} once_action_kind;

const char *once_action_name(once_action_kind kind);

/* The machine fills an action; the executor fills `status` and what its kind names with "->", and gives the action back
 * as the event (once_machine_step). The fields mean what the kinds above say. */
typedef struct once_action {
    once_action_kind kind;
    once_item **items;
    size_t n;
    bool careful; /* RUN: a savepoint around each message; otherwise stop at the first failure and set `failed` */
    bool blame;   /* RUN of one item, careful: if the database rolls back, its outcome is retry; otherwise that is a
                   * failure of the store */
    size_t n_extend;
    size_t max;
    once_batch *batch;
    bool due;
    once_token token;
    bool again;              /* TAKE: the reply to one with this token was lost */
    once_due_filter *filter; /* NULL: every handler has room for `max` */
    int64_t lease_ms;        /* FIND, TAKE */
    once_receipt *receipts;  /* `n` of them */
    uint32_t stream;
    const uint32_t *paused;
    size_t n_paused;
    once_intake *intake;
    bool rest;
    const once_item *const *last; /* each of another stream */
    size_t n_last;
    int64_t given_up; /* COMMIT: versions that did not come within gap.wait; added to a count that is kept for good */
    int64_t repeats;  /* COMMIT: claims that repeat an external effect which may have happened, less those that were
                       * given back before they began; added to a count that is kept for good */
    uint64_t ended;   /* COMMIT, RENEW: messages that ended without a transaction since the last one of these; they
                       * count for the rate of the worker */

    int status;
    once_error error;
    bool tx_open; /* BEGIN, COMMIT that failed: the transaction is still open and no commit was tried; the machine will
                * roll it back */
    bool failed;
    bool at_end;
    once_stream_news *news;
    size_t n_news;
    bool more;
    bool renewed; /* COMMIT: it renewed the worker's lease, too */
    uint64_t waiting, claimed, unknown;
    once_waiting_size size;
    int64_t wait_ms;
} once_action;

typedef struct once_machine_options {
    const once_spec *spec; /* must live as long as the machine */
    const once_env *env;   /* randomness only */
    once_secret secret;    /* of the store */
    uint64_t run;          /* the number of this run */
    once_prepare *prepare;
    bool unclean;         /* the last run of this consumer did not end cleanly */
    int64_t renew_ms;     /* how often the worker's own lease is renewed at least; 0: it has none */
    unsigned source;      /* bits of the open source (ONCE_SOURCE_) */
    int64_t beat_ms;      /* how often the source wants to be asked; 0: it does not matter */
    int64_t ack_pause_ms; /* as in source/source.h */
    bool tells_absent;    /* the store can tell, without a claim, that it has no entry of a key */
    bool finds;           /* the store can look for waiting entries inside a transaction */
    /* A stop gives what was read and not begun to the store: the source does not deliver it again, and the store keeps
     * it for the next run. */
    bool accepts_at_stop;
} once_machine_options;

/* ONCE_OK or ONCE_E_NOMEM. */
int once_machine_new(const once_machine_options *options, once_machine **out, once_error *err);
void once_machine_free(once_machine *machine);

/* The next action of an executor; NULL: nothing to do at `now_ms`. That is any clock which only moves forward. It
 * decides how often the store and the source are asked, and never what happens to a message. The caller reports the
 * action back with once_machine_step before it asks again. */
once_action *once_machine_store_action(once_machine *machine, int64_t now_ms);
once_action *once_machine_source_action(once_machine *machine, int64_t now_ms);
once_action *once_machine_ack_action(once_machine *machine, int64_t now_ms);
once_action *once_machine_effect_action(once_machine *machine, int64_t now_ms);
void once_machine_step(once_machine *machine, once_action *action, int64_t now_ms);

/* External effects ended, in any order. The caller has set outcome, result, failure, delay_ms (-1: the backoff
 * decides), maybe_done, started and run_failure of each item. For an effect that was never started (killed before, or
 * it could not be started) the outcome is RELEASE. For an item that asks, it is what was found out (core/policy.h). */
void once_machine_finished(once_machine *machine, once_item *const *items, size_t n, int64_t now_ms);

/* Whether the FETCH that is out may be waiting although a stream that was paused for it can be fetched again: it should
 * be woken. True once for each FETCH. */
bool once_machine_wakes_fetch(once_machine *machine, int64_t now_ms);

/* Whether the thread of acks has to be woken: the run ends, and it has streams to release. True once. */
bool once_machine_wakes_acks(once_machine *machine);

/* Drain: finish the current transaction, put back the rest, end. With `accepts_at_stop`, the rest goes to the store. */
void once_machine_stop(once_machine *machine);

bool once_machine_ended(const once_machine *machine);
/* After the end: ONCE_OK, or why it could not go on. */
int once_machine_status(const once_machine *machine, once_error *err);
/* External effects that were begun and whose outcome could not be settled, because the store was given up. */
uint64_t once_machine_unsettled(const once_machine *machine);
/* Messages of the source that were fetched and neither settled nor given to the store, dropped ones included. If the
 * source does not deliver them again, they are lost. */
uint64_t once_machine_unfinished(const once_machine *machine);
/* Deliveries that were no longer ours when they were acked or extended: the call came too late. */
uint64_t once_machine_gone(const once_machine *machine);
/* How long an executor may sleep before it asks for its next action, if no event comes; ONCE_NEVER: until an event. The
 * first is for the store, the second for the source and its acks, the third for effects. */
int64_t once_machine_wait_ms(const once_machine *machine, int64_t now_ms);
int64_t once_machine_source_wait_ms(const once_machine *machine, int64_t now_ms);
int64_t once_machine_effect_wait_ms(const once_machine *machine, int64_t now_ms);
/* As things are now, there is nothing to ack, extend or release before this time; ONCE_NEVER: until the next event. */
int64_t once_machine_acks_at_ms(const once_machine *machine, int64_t now_ms);
const once_counts *once_machine_counts(const once_machine *machine);
const once_timings *once_machine_timings(const once_machine *machine);
size_t once_machine_open(const once_machine *machine); /* items, from the source or the store, that are not over */

/* A stream that was not released to the source. */
typedef struct once_stream_view {
    uint32_t number;
    once_stream_change state;
    uint64_t open;     /* deliveries that are not acked (once_stream_outstanding) */
    int64_t paused_ms; /* how long nothing of it was fetched because enough is here; 0: it is fetched */
} once_stream_view;
/* Walks over the streams: begin with *at = 0. False: there are no more. */
bool once_machine_next_stream(const once_machine *machine, uint32_t *at, int64_t now_ms, once_stream_view *out);
/* Whether fetching has stopped because of waiting_max. `out`: how much waits in the store, as far as is known. Messages
 * whose handlers have no free slot (*without_slot) count, too: if the other side is down, they will all wait there. */
bool once_machine_full(const once_machine *machine, once_waiting_size *out, uint64_t *without_slot);
/* True: the run ended only because `waiting_max` was reached and nothing made room, or because only messages of
 * handlers that are held up are left. The store works, and no effect was begun and left. */
bool once_machine_ended_at_bound(const once_machine *machine);

/* A handler that is held up (core/gate.h). */
typedef struct once_held_view {
    const once_handler_spec *handler;
    once_gate_hold hold;
    once_bytes reason; /* of the machine; valid until its next call */
    int64_t since_ms;
    int64_t next_ms; /* no probe before; in the past: one is out, or begins with the next message */
    bool unmet;      /* it is time for a probe, and no message waits for that */
    bool costly;     /* behind its breaker, and each probe leaves an unknown to an operator */
    uint32_t probes; /* that have ended */
} once_held_view;
/* The worker's record is renewed as soon as there is time. */
void once_machine_renew_soon(once_machine *machine, int64_t now_ms);
/* Walks over them: begin with *at = 0. False: there are no more. */
bool once_machine_next_held(const once_machine *machine, size_t *at, once_held_view *out);

#endif
