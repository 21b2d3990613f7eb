/* The pipeline as a state machine: step(event) -> actions. Single-threaded, no I/O, no clock.
 *
 * The machine decides what happens to messages; executors carry it out and report back. There are four: the store
 * executor (claims, atomic effects, settlements, in one transaction), the source executor (fetch), the ack executor
 * (what the source is told: ack, prolong, release), so that neither waits for the other, and, for effects
 * outside of the store, the effect executor (start, kill). Each has at most one action at a time. The runtime drives
 * the machine with threads; the simulator drives the same code in a world of its own.
 *
 * One batch is one transaction:
 *
 *   begin; rounds of { claim, extend, run, settle, accept }; bury; commit; ack
 *
 * A message ends in it in one of four ways: suppressed (duplicate, dead, stale), settled, given to the store (accept),
 * or buried. So after commit all of the batch can be acked, and before it nothing can. Equal keys and lanes of a batch
 * wait for each other: the follower is claimed in the next round of the same transaction, after its leader was settled.
 *
 * An effect outside of the store (core/flight.h) runs between two transactions: the first one claims, the effect starts
 * when that is committed, and whichever transaction begins after it came back settles it. So one commit carries the
 * claims of the next messages and the outcomes of the last ones. A claim is only asked for when a slot is free to start
 * at once. While such an effect is on its way, equal keys and lanes wait behind it (core/key_queue.h), leases are
 * extended, and when that fails, the effect is told to end before its lease does. What it says when its claim is
 * somebody else's by then is not settled.
 *
 * An unknown whose handler can ask the other side about it (`lookup`) comes back by TAKE when it is due, under a claim
 * like any other, and flies as a question: it takes a slot, its lease is extended, and the answer is settled. Done is
 * done; absent has failed and may be tried again, under the same key; anything else stays unknown, and is asked about
 * again or left to a person (core/policy.h). Whoever dies while asking leaves what was there: an unknown that is due.
 *
 * With an inbox (ack: after_accept) what comes from the source is only accepted in it, and the work is done from the
 * store.
 *
 * The first pass is optimistic: no savepoints. When an effect fails, everything is rolled back and run once more
 * carefully (a savepoint around each message), and so are the next batches; a failure then costs its own message only,
 * and is written in the same commit as the survivors. An executor need not wait for the effects of an optimistic pass:
 * it may take them for done, and when they were not, a later action of that transaction, COMMIT at the latest, fails
 * with a status that blames a message. Nothing is committed then, and it is as if RUN had failed.
 *
 * After an unclean end the first messages are claimed durably and run one by one, so a message that kills the process
 * is counted (claims that end without an outcome add a failure) and becomes a dead letter in the end.
 *
 * A transaction that the database rolls back again and again (a deadlock, a timeout of a statement) is perhaps a
 * message's fault, and perhaps that of other transactions. So a careful pass finds out at whose statement it happens,
 * and that one is run in a transaction without others. Only what happens to it there, again and again, counts against
 * it: it spends its own attempts, and not everybody's time.
 *
 * Failures of executors: what can pass is repeated after a pause, and nothing is fetched while the store fails; a
 * finite source gives up after some tries, when its patience is over, too (a full disk is one of these: space may come
 * back); so it does when external effects cannot be started. After a commit whose fate is not known, the batch is
 * claimed again with the same tokens: what had been committed answers so.
 *
 * The source has streams (core/stream.h), each with its own tags, acks and queue. Work is filled from them in
 * turn, and one that cannot go on holds up no other one. Streams come and go by news of a FETCH (machine_stream.c);
 * deliveries that run out are extended (machine_ack.c).
 *
 * Invariants. They hold whenever none of the functions below is running; test builds check them after each one
 * (once__machine_check), and name them by number.
 *
 *   1  An item is in exactly one place (once_item_place). READY, WORK, FLIGHT and RETURNED are lists, and each has the
 *      items whose place it is, each once; READY is for each stream a list, and one for each handler that has no slot
 *      free, and one for what was taken from the store. No item of an open batch is NEW: an executor that fills a batch
 *      has it alone.
 *   2  A batch is open for as many items as are not over, and for those that cursors would be kept at.
 *   3  Tags of a stream: acked <= watermark < next, where acks are not single. No tag is over before its item is,
 *      and each that is not is known by its item.
 *   4  Each item that is in FLIGHT or RETURNED, or about to be claimed for FLIGHT, has a slot of its handler, nobody
 *      else has one, and no handler has more than there are.
 *   5  An item is PARKED if and only if somebody stands before it in the queue of its key or lane. Who is over
 *      stands in none.
 *   6  With nothing begun there is no work and no transaction. Leases are only kept of items that are away, or just
 *      came back.
 *   7  The bytes that bound the fetching are those of the bodies that are there.
 *   8  An outcome from outside is at RETURNED, or in the WORK that settles it. An effect under way is in FLIGHT.
 *   9  No more than 64 batches of a stream are delivered and not acked. Where acks are not single, all behind the
 *      first that is not over count.
 *   10 At the end nothing is in work, away or back, and nobody has an action.
 *   11 No item waits whose stream is not assigned, and none belongs to a stream that was let go.
 *   12 Who waits for a slot of its handler stands in the queues of its key and lane, so that nobody of these passes it.
 *
 * Thread rule: one thread at a time (the runtime's executors step it themselves, under a lock). Between an action and
 * its event the executor owns the items of that action. */
#ifndef ONCE_CORE_MACHINE_H
#define ONCE_CORE_MACHINE_H

#include "base/env.h"
#include "core/due_filter.h"
#include "core/receipt.h"
#include "core/intake.h"
#include "core/item.h"
#include "once/pipeline.h"

typedef struct once_machine once_machine;

typedef enum once_action_kind {
    ONCE_ACT_NONE,
    /* store executor */
    ONCE_ACT_BEGIN,  /* items: all that the transaction may be about; `kept` of them, at the end, are only extended;
                        `due`: and FIND */
    ONCE_ACT_FIND,   /* in a transaction: what waits in the lanes of the items, and with `due` what else is due; up to
                      * `max` into `batch`; -> more:   something is due that only TAKE can hand out */
    ONCE_ACT_CLAIM,  /* -> item->decision */
    ONCE_ACT_EXTEND, /* -> item->granted: still ours; `kept`: of effects that are on their way, which end before
                        it is known what that means */
    ONCE_ACT_RUN,    /* -> item->outcome, result, failure; in order. Not careful: presumed perhaps */
    ONCE_ACT_SETTLE, /* item->outcome... -> item->granted: applied */
    ONCE_ACT_ACCEPT, /* -> item->decision */
    ONCE_ACT_BURY,
    ONCE_ACT_COMMIT, /* items: all of the transaction; with `last`: when it succeeds, everything up to each of these is
                      * over, in its stream */
    ONCE_ACT_ROLLBACK,
    ONCE_ACT_TAKE,  /* up to `max` into `batch` (items and n set by the executor); token, again, filter */
    ONCE_ACT_STATS, /* -> waiting, claimed, unknown, wait_ms */
    ONCE_ACT_COUNT, /* what the store keeps to be worked on; -> size; with `due` also what STATS has */
    ONCE_ACT_RENEW, /* the worker's own lease, when no commit has done so for a while */
    ONCE_ACT_SWEEP, /* a bounded step; -> more, wait_ms: not before then */
    ONCE_ACT_SEEK,  /* `stream`, which was assigned: the source goes on where the store says it had got to */
    /* source executor */
    ONCE_ACT_FETCH, /* up to `max` into `batch` (items with message, batch, stream and delivery set), none of streams
                     * that are `paused`; -> at_end, news. With `rest` only such as it has read already. The executor
                     * may also do the intake (once_intake_batch with `intake`), so that the machine need not */
    /* ack executor */
    ONCE_ACT_ACK,     /* `receipts`: each for itself, or all up to it in its stream; -> their answers */
    ONCE_ACT_PROLONG, /* `receipts`: they are ours for longer; -> their answers */
    ONCE_ACT_RELEASE, /* `stream`: nothing of it is worked on or acked any more */
    /* effect executor */
    ONCE_ACT_START, /* items: their effects begin, or (decision.asks) the other side is asked what became of them; each
                     * comes back by once_machine_finished */
    ONCE_ACT_KILL /* items that were started: they must end now (the lease is about to, or the pipeline is); they still
                     come back */
} once_action_kind;

const char *once_action_name(once_action_kind kind);

/* Filled by the machine; the executor fills what is marked ->, and `status`. It comes back as the event. */
typedef struct once_action {
    once_action_kind kind;
    once_item **items;
    size_t n;
    bool careful; /* RUN: a savepoint around each message; otherwise stop at the first failure and set `failed` */
    bool blame;   /* RUN of one, careful: if it has the database roll back, it is told to retry; otherwise that is a
                     failure of the store */
    size_t kept;
    size_t max;
    once_batch *batch;
    bool due;
    once_token token;
    bool again;
    once_due_filter *filter; /* NULL: every handler has room for `max` */
    int64_t lease_ms;
    once_receipt *receipts; /* `n` of them */
    uint32_t stream;
    const uint32_t *paused;
    size_t n_paused;
    once_intake *intake;
    bool rest;
    const once_item *const *last; /* of different streams */
    size_t n_last;
    int64_t given_up; /* COMMIT: versions that did not come within gap.wait; counted for ever */
    int64_t repeats;  /* COMMIT: claims that repeat an external effect which may have happened, less those given back
                         unbegun; counted for ever */

    int status;
    once_error error;
    bool open; /* BEGIN, COMMIT that failed: the transaction is open, nothing of it was tried to commit; the machine
                  ends it */
    bool failed;
    bool at_end;
    once_stream_news *news;
    size_t n_news;
    bool more;
    bool renewed; /* COMMIT: the worker's lease with it */
    uint64_t waiting, claimed, unknown;
    once_waiting_size size;
    int64_t wait_ms;
} once_action;

typedef struct once_machine_options {
    const once_spec *spec;
    const once_env *env; /* randomness only */
    once_secret secret;
    uint64_t run;
    once_prepare *prepare;
    bool unclean;     /* the last run of this consumer did not end cleanly */
    int64_t renew_ms; /* how often the worker's own lease is renewed at least; 0: it has none */
    unsigned source;  /* bits of the source when it is open (ONCE_SOURCE_) */
    int64_t beat_ms;  /* how often the source wants to be asked; 0: it does not matter */
    bool finds;       /* the store can look for what waits inside a transaction */
    bool gives_once;  /* the source does not deliver again what was not acked */
} once_machine_options;

int once_machine_new(const once_machine_options *options, once_machine **out, once_error *err);
void once_machine_free(once_machine *machine);

/* The next action for the executor; NULL: nothing to do at `now_ms` (any clock that only moves
 * forward; it paces the asking and decides nothing). The caller reports it back with once_machine_step before asking
 * again. */
once_action *once_machine_store_action(once_machine *machine, int64_t now_ms);
once_action *once_machine_source_action(once_machine *machine, int64_t now_ms);
once_action *once_machine_ack_action(once_machine *machine, int64_t now_ms);
once_action *once_machine_effect_action(once_machine *machine, int64_t now_ms);
void once_machine_step(once_machine *machine, once_action *action, int64_t now_ms);

/* External effects ended, in any order. Of each item outcome, result, failure, delay_ms (-1: the backoff decides),
 * maybe, started and not_started are set. Never started (killed before, or it could not be started): outcome RELEASE.
 * Of one that asks the outcome is what was found out (core/policy.h). */
void once_machine_finished(once_machine *machine, once_item *const *items, size_t n, int64_t now_ms);

/* Drain: finish what is in a transaction, put back the rest, end. What a source that gives once has been read of goes
 * to the store. */
void once_machine_stop(once_machine *machine);

bool once_machine_ended(const once_machine *machine);
/* After the end: ONCE_OK, or why it could not go on. */
int once_machine_status(const once_machine *machine, once_error *err);
/* External effects that were begun and whose outcome could not be settled, because the store was given up. */
uint64_t once_machine_unsettled(const once_machine *machine);
/* Messages that were fetched and are not over: those of a source that gives once are lost. */
uint64_t once_machine_dropped(const once_machine *machine);
/* Deliveries that were not ours any more when they were acked or extended: they came too late. */
uint64_t once_machine_gone(const once_machine *machine);
/* How long nothing needs to be asked when no action is out; ONCE_NEVER: until an event. The second one for the source
 * and its acks, the third one for effects. */
int64_t once_machine_wait_ms(const once_machine *machine, int64_t now_ms);
int64_t once_machine_source_wait_ms(const once_machine *machine, int64_t now_ms);
int64_t once_machine_effect_wait_ms(const once_machine *machine, int64_t now_ms);
const once_counts *once_machine_counts(const once_machine *machine);
const once_timings *once_machine_timings(const once_machine *machine);
size_t once_machine_open(const once_machine *machine); /* messages that are here and not over */
/* A stream that the source has not got back. */
typedef struct once_stream_view {
    uint32_t number;
    once_stream_change state;
    uint64_t open;     /* deliveries that are not acked (once_stream_outstanding) */
    int64_t paused_ms; /* for how long nothing more of it is fetched, because enough is here; 0: it is fetched */
} once_stream_view;
/* The one at *at or behind it, and *at is behind that; false: there is none. From 0 on. */
bool once_machine_next_stream(const once_machine *machine, uint32_t *at, int64_t now_ms, once_stream_view *out);
/* Whether nothing is fetched because too much waits in the store, and how much that is as far as it is known. */
bool once_machine_full(const once_machine *machine, once_waiting_size *out);
/* It has a status, but only because of that, by its own decision: the store works, and nothing is begun and left. */
bool once_machine_ended_at_bound(const once_machine *machine);

#endif
