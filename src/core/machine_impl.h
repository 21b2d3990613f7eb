/* The state of the machine, and the functions that its files share. Only the machine_*.c files and tests of their
 * internals include this; all others use core/machine.h.
 *
 * Each part of the state is a struct that is named after the file that works on it. core/machine.h lists the invariants
 * between the parts, with numbers. */
#ifndef ONCE_CORE_MACHINE_IMPL_H
#define ONCE_CORE_MACHINE_IMPL_H

#include "core/due_shares.h"
#include "core/flight.h"
#include "core/id_set.h"
#include "core/machine.h"
#include "core/stream.h"
#include "core/key_queue.h"

#define OUTSTANDING 64   /* so many batches of a stream may be delivered and not acked */
#define EXPECTED 4       /* so far ahead the CPU is told which key will be looked up (core/key_queue.h) */
#define PARKED 2         /* so many batches of a stream may wait behind equal keys and lanes */
#define SINGLY_LEAST 64  /* after an unclean end, at least so many effects run one by one */
#define CLAIMED_LEAST 64 /* after an unclean end, at least so many batches of effects outside are claimed */
#define BLAME_AFTER 3    /* after so many rollbacks in a row by the database, find the message that causes them */
#define CLOCK_SLACK_MS 2 /* added to waits, because the store's clock and ours do not tick at the same time */

/* --- state --- */

/* What the store executor does next. */
typedef enum next_step {
    NEXT_CHOOSE,   /* there is no work: choose some */
    NEXT_PRECLAIM, /* claim the one message of the work durably, before its transaction */
    NEXT_ABSENT,   /* ask which messages of the work have no entry and may run without a claim */
    NEXT_BEGIN,    /* begin the transaction of the work */
    NEXT_KEEP,     /* extend the leases of effects in flight */
    NEXT_FIND,     /* find what waits in the lanes of the work */
    NEXT_ROUND,    /* choose the messages of the next round; then one action after the other, as named */
    NEXT_CLAIM,
    NEXT_EXTEND,
    NEXT_RUN,
    NEXT_SETTLE,
    NEXT_SETTLE_AGAIN,
    NEXT_ACCEPT,
    NEXT_BURY,
    NEXT_COMMIT,
    NEXT_ROLLBACK
} next_step;

/* All batches. */
typedef struct machine_batches {
    once_batch *spare, *all;
    size_t held_bytes; /* of the bodies of all batches that were fetched */
} machine_batches;

/* The items that are READY: each in a queue of its stream, or in `taken` if it came from the store. */
typedef struct machine_ready {
    once_queue taken;
    size_t n, bytes; /* items of all queues; bytes of their bodies */
} machine_ready;

/* The streams of the source, by their numbers. */
typedef struct machine_streams {
    once_stream **at;     /* NULL: that number is free */
    uint32_t n;           /* numbers, used or not */
    uint32_t *paused;     /* the list for FETCH; room for all numbers */
    once_stream *last;    /* the last one looked up, because messages of a stream come together; NULL: none */
    size_t live;          /* streams that are not released */
    size_t leaving;       /* of them, those that are no longer ASSIGNED */
    size_t to_seek;       /* of them, those that wait for a SEEK */
    once_stream *seeking; /* the stream of the SEEK that is out; NULL: none, or it was let go since */
    bool seek_failed;     /* the last SEEK failed: other work comes first */
    uint32_t turn;        /* the stream whose messages go first into the next work */
} machine_streams;

/* The source executor. In this and the next structs: `out` says that the executor has the action; `tries` counts the
 * failures in a row, the first of which was at `failing_since_ms`; no action is given before `at_ms`. */
typedef struct machine_source {
    once_action action;
    bool out, at_end;
    bool woken;       /* the FETCH that is out was woken (once_machine_wakes_fetch) */
    bool rested;      /* after a stop: the source has handed out all that it had read */
    uint64_t open;    /* messages that have a tag and are not over */
    uint64_t dropped; /* messages that were fetched and dropped before they got a tag */
    uint64_t gone;    /* deliveries that were no longer ours when they were acked or extended */
    int64_t asked_ms; /* when the source was last asked */
    int64_t at_ms;
    unsigned tries;
    int64_t failing_since_ms;
} machine_source;

#define RECEIPTS_MAX 512 /* receipts in one action */

/* The ack executor. */
typedef struct machine_acks {
    once_action action;
    bool out;
    bool release_all; /* the run ends: all streams are released */
    bool woken;       /* for that (once_machine_wakes_acks) */
    bool acks_next;   /* the last action was EXTEND_DELIVERIES: now acks go first */
    once_receipt list[RECEIPTS_MAX];
    struct {
        once_stream *stream;
        uint64_t tag;
    } asked[RECEIPTS_MAX];  /* the delivery of each receipt */
    once_stream *releasing; /* the stream of the RELEASE that is out; NULL: none */
    uint32_t turn;          /* the stream that goes first */
    int64_t next_ms;        /* the pause after the last ACK ends */
    int64_t at_ms;
    unsigned tries;
    int64_t failing_since_ms;
} machine_acks;

/* The last item of the work with this key or lane. */
typedef struct machine_mark {
    once_hash id;
    once_item *last;
    uint64_t turn; /* as work.marks_turn when it was set; otherwise it is free */
} machine_mark;

/* The work: the messages of one transaction. */
typedef struct machine_work {
    next_step next;
    bool in_tx;                               /* the transaction is open */
    once_item **items, **round, **next_round; /* all; those of this round; those of the next */
    size_t n, size, round_n, next_round_n;
    size_t again_n;            /* how many of the last SETTLE are settled once more; they are the first of `list` */
    once_item **list, **about; /* copies for actions, because the lists above change while an executor has the action */
    machine_mark *marks;       /* a hash table */
    size_t marks_size;         /* a power of two */
    uint64_t marks_turn;       /* counts how often the table was emptied */
    uint32_t *admitted;        /* by handler: slots that the next round will need */
    bool had_lanes;            /* at least one message has a lane */
    bool ran;                  /* effects ran in this transaction */
    once_item *runs_alone;     /* the only one whose effect ran; NULL: none, or more than one */
    const once_item **last;    /* by stream whose cursor the commit moves: the message up to which all are over */
    size_t last_n;
    once_item **keeping; /* the items in flight whose leases the transaction extends */
    size_t keeping_n;
    int64_t asked_at_ms; /* when the transaction began */
    unsigned unasked;    /* for so many more works the store is not asked which keys have no entry */
} machine_work;

/* How carefully effects run in the store's database, after they failed, or killed the process or the server. */
typedef struct machine_caution {
    unsigned careful_left; /* so many more batches have a savepoint around each message */
    size_t left, window;   /* so many more effects run at most `window` at a time */
    bool look;             /* in this work only messages that were claimed durably before may run */
    bool preclaim;         /* the executor has such a durable claim */
    bool claim_first;      /* such a claim is the next action after the rollback */
    unsigned hung_up;      /* how often in a row the server closed the connection while effects ran */
    bool accused;          /* a message was found to cause that: from now on once is enough to suspect one */
    unsigned rolled_back;  /* how often in a row the database itself rolled the work back */
} machine_caution;

/* What waits in the store, to be taken or found. */
typedef struct machine_due {
    int64_t at_ms, asked_ms; /* when to look next; when the last TAKE was asked for */
    once_token token;        /* of the last TAKE; so are `most`, `filtered`, `all` and `batch` */
    bool again;              /* its reply was lost: ask again with the same token and `most` */
    bool took_last;          /* the last work came from the store: now the source's messages go first, except for ... */
    unsigned takes_left;     /* ... so many more takes */
    size_t most;             /* at most so many entries */
    bool filtered;           /* it has a filter */
    bool all;                /* it asks for all shares, and not only for those that are wanted (core/due_shares.h) */
    once_due_shares shares;
    once_batch *batch;
    bool finds;     /* a transaction may find and run what waits, without a TAKE */
    bool finding;   /* the work was begun to find what is due */
    bool sought;    /* this transaction has looked for it ... */
    size_t found_n; /* ... and found so many */
    bool take_next; /* something is due that only a TAKE can hand out */
} machine_due;

/* Effects outside of the store. */
typedef struct machine_outside {
    once_flight flight;
    once_action action;
    bool out;
    once_item **list;
    once_item *returned, *returned_last; /* the list of RETURNED items, except those that are unwritten */
    once_queue unwritten;                /* RETURNED items whose `then` cannot be written for now; they have no slot */
    int64_t unwritten_at_ms;             /* when that is tried again; it extends their claims */
    uint64_t unrecorded;                 /* messages that ended without a transaction since the last one of the store */
    /* After an unclean end so many more are claimed, also those that need no claim: the one that killed the process is
     * among them, and only a claim counts its attempts. */
    size_t claims_left;
} machine_outside;

/* Which handlers are held up (machine_gate.c). */
typedef struct machine_gate {
    once_gates gates;
    bool has_queues;     /* messages may wait for room in memory: there are effects outside, or rates */
    int64_t progress_ms; /* when a message of a handler that is not held last went on */
    bool gave_up;        /* the run ends because only messages of held handlers are left */
} machine_gate;

/* The store executor, and what it does besides the work. */
typedef struct machine_store {
    once_action action;
    bool out;
    bool gone; /* the store was given up: nothing can be settled from now on */
    int64_t at_ms, stats_at_ms, sweep_at_ms, renew_at_ms;
    unsigned tries;
    int64_t failing_since_ms;
} machine_store;

/* How much waits in the store (machine_room.c). It is full when that is as much as `waiting_max` allows. */
typedef struct machine_room {
    bool known;              /* the store was asked at least once */
    bool full;               /* it is full, so nothing is fetched */
    once_waiting_size there; /* what waits: the last answer, plus what this run has added, less what it took since */
    once_waiting_size added; /* what this run has added since the last answer */
    bool only_source;        /* it is full, and its entries wait for messages that only the source can deliver */
    bool gave_up;            /* the run ends because it is full; no effect was begun and left */
    bool stuck;              /* it is full, and an operator must act ... */
    int64_t stuck_ms;        /* ... since this time */
    int64_t asked_ms, at_ms; /* when the store was last asked; when to ask again, because other workers change it */
} machine_room;

/* The end of the run. */
typedef struct machine_end {
    bool stopping, ended;
    bool drained;       /* stopping because the source has ended and all is settled: nobody asked for a stop */
    int64_t stop_at_ms; /* when the stop was first noticed; ONCE_NEVER: it was not */
    uint64_t unsettled; /* what once_machine_unsettled returns */
    int status;         /* what once_machine_status returns */
    once_error error;
} machine_end;

struct once_machine {
    once_machine_options o;
    const once_spec *spec;
    size_t batch_max;
    once_intake intake;       /* for messages from the store; only the machine uses it */
    once_intake fetch_intake; /* for fetched messages; the source executor uses it while a FETCH is out */
    int64_t now_ms;           /* `now_ms` of the current call, for the times of items */
    once_counts counts;
    once_timings timings;
    once_id_set unknown; /* the keys that are counted as unknown */

    size_t at[ONCE_AT_PLACES]; /* how many items are in each place; NEW and OVER are not counted */
    machine_batches batches;
    machine_ready ready;
    machine_streams streams;
    once_key_queue key_queue; /* which items are PARKED, and behind which */
    machine_source source;
    machine_acks acks;
    machine_work work;
    machine_caution caution;
    machine_due due;
    machine_room room;
    machine_outside outside;
    machine_gate gate;
    machine_store store;
    machine_end end;
};

/* --- what the files share --- */

static inline bool once__item_is_external(const once_item *item)
{
    return item->handler && once_handler_external(item->handler);
}

/* This is an attempt whose effect has begun. A lookup, which only asks about an unknown, is no attempt. */
static inline bool once__item_has_tried(const once_item *item) { return item->started && !item->decision.asks; }

/* The transaction did not reach it: no slot was free, or it waits behind an item that is now in flight. */
static inline bool once__item_is_left(const once_item *item)
{
    return item->stage == ONCE_STAGE_CLAIM || item->stage == ONCE_STAGE_ACCEPT;
}

/* The store may have an entry of it: it was claimed durably, or was in a commit whose result is unknown. */
static inline bool once__item_is_begun(const once_item *item)
{
    return item->held || item->commit_unknown || item->ended_tx;
}

/* Whether its claim is in the store from before this transaction. */
static inline bool once__item_has_claim(const once_item *item)
{
    return item->held || (item->returned && !item->unclaimed);
}

/* It came from the source, and its delivery is no longer ours: the stream was revoked, or another consumer has it. */
static inline bool once__item_is_unwanted(const once_item *item)
{
    return item->tag && (!item->from || item->from->state != ONCE_STREAM_ASSIGNED);
}

static inline bool once__machine_has_work(const once_machine *machine)
{
    return machine->work.n || machine->work.keeping_n;
}

/* machine_place.c: batches, lists, and the place of an item */
once_batch *once__machine_batch_get(once_machine *machine);
void once__machine_batch_put(once_machine *machine, once_batch *batch);
void once__machine_batch_let_go(once_machine *machine, once_batch *batch);
void once__item_forget_output(once_item *item);
void once__machine_ready_put(once_machine *machine, once_item *item, bool last);
void once__machine_ready_take(once_machine *machine, once_item *item);
void once__machine_move(once_machine *machine, once_item *item, once_item_place to);
void once__machine_leave_key_queue(once_machine *machine, once_item *item);
void once__batch_free(once_batch *batch);

/* machine_source.c: fetching, and cursors */
bool once__machine_rest_to_fetch(const once_machine *machine);
size_t once__machine_ids(const once_machine *machine);
once_action *once__machine_source_action(once_machine *machine, int64_t now_ms);
int64_t once__machine_source_at_ms(const once_machine *machine, int64_t now_ms);
void once__machine_fetched(once_machine *machine, once_action *action, int64_t now_ms);
void once__machine_end_delivery(once_machine *machine, once_item *item);
void once__machine_ack_work(once_machine *machine);
void once__machine_remember_farthest(once_machine *machine, once_item *item);
void once__machine_find_last(once_machine *machine);
void once__machine_let_last_go(once_machine *machine);

/* machine_stream.c: streams that come and go, and what happens to their items */
once_stream *once__machine_stream(once_machine *machine, uint32_t number);
once_stream *once__machine_stream_add(once_machine *machine, uint32_t number);
int once__machine_heed(once_machine *machine, const once_stream_news *news, int64_t now_ms, once_error *err);
void once__machine_requeue(once_machine *machine, once_item *item);
void once__machine_drop_unwanted(once_machine *machine);
void once__machine_lose_delivery(once_machine *machine, once_item *item, int64_t now_ms);
void once__machine_give_to_store(once_machine *machine, once_item *item);
void once__machine_let_stream_go(once_machine *machine, once_stream *stream);
void once__machine_stream_released(once_machine *machine, once_stream *stream);
once_action *once__machine_begin_seek(once_machine *machine, int64_t now_ms);
int64_t once__machine_seek_at_ms(const once_machine *machine);
void once__machine_sought(once_machine *machine, const once_action *action, int64_t now_ms);

/* machine_ack.c: acks, extensions, releases */
bool once__machine_has_acks(const once_machine *machine);
once_action *once__machine_ack_action(once_machine *machine, int64_t now_ms);
int64_t once__machine_ack_at_ms(const once_machine *machine, int64_t now_ms);
void once__machine_acked(once_machine *machine, once_action *action, int64_t now_ms);

/* machine_work.c: the messages of one transaction */
once_action *once__machine_emit(once_machine *machine, once_action_kind kind, size_t n);
size_t once__machine_gather(once_machine *machine, once_stage stage, int held);
void once__machine_arrange(once_machine *machine);
void once__machine_shorten_work(once_machine *machine, size_t keep);
void once__machine_bound_locks(once_machine *machine);
void once__machine_start_work(once_machine *machine);
void once__machine_unreserve_work(once_machine *machine);
void once__machine_leave_unsettled(once_machine *machine, once_item *item);
void once__machine_drop_work(once_machine *machine);
void once__machine_drop_found(once_machine *machine);
size_t once__machine_can_go(const once_machine *machine, const once_stream *stream, int64_t now_ms);
bool once__machine_ready_can_go(const once_machine *machine, int64_t now_ms);
void once__machine_begin_work(once_machine *machine, int64_t now_ms);
void once__machine_put_back_held(once_machine *machine);
once_action *once__machine_ask_absent(once_machine *machine, int64_t now_ms);
void once__machine_told_absent(once_machine *machine);
void once__machine_next_round(once_machine *machine);
once_action *once__machine_begin(once_machine *machine);

/* machine_decide.c: what an answer or an outcome means for one message */
void once__machine_judge(once_machine *machine, once_item *item);
int64_t once__machine_question_ms(const once_machine *machine, const once_item *item);
void once__item_refused_or_over(once_item *item);
void once__machine_note_replaced(const once_machine *machine, once_item *item);
void once__machine_decide(once_machine *machine, once_item *item);
void once__machine_hold(once_machine *machine, once_item *item);
void once__machine_preclaimed(once_machine *machine, once_item *item);
void once__machine_extended(once_machine *machine, once_action *action);
void once__machine_have_run(once_machine *machine, once_action *action, int64_t now_ms);
void once__machine_settled(once_machine *machine, once_action *action);
void once__machine_buried(once_machine *machine, once_action *action);

/* machine_times.c: when items reached their stages */
void once__machine_note_received(const once_machine *machine, once_item *item);
void once__machine_note_claimed(const once_machine *machine, once_item *const *items, size_t n);
void once__machine_note_started(const once_machine *machine, once_item *const *items, size_t n);
void once__item_forget_times(once_item *item);
void once__machine_note_settled(once_machine *machine, once_item *item);
void once__machine_note_acked(once_machine *machine, const once_stream *stream, uint64_t from, uint64_t upto);

/* machine_count.c: counts, and what follows from a commit */
void once__machine_count_settled_by_lane(once_machine *machine, const once_item *item);
bool once__machine_is_known_now(once_machine *machine, const once_item *item);
void once__machine_count_origin(once_machine *machine, const once_item *item, bool known_now);
int once__item_repeat_change(const once_item *item);
int once__item_new_repeat_change(const once_item *item);
int64_t once__item_given_up(const once_item *item);
void once__count_replaced(once_counts *counts, bool ours);
void once__machine_conclude(once_machine *machine, int64_t now_ms);
void once__machine_end_unrecorded(once_machine *machine, once_item *item, int64_t now_ms);

/* machine_due.c: what waits in the store */
void once__machine_looked_for_due(once_machine *machine, size_t n, int64_t now_ms);
int64_t once__machine_take_at_ms(const once_machine *machine, int64_t now_ms);
size_t once__machine_take_max(const once_machine *machine, int64_t now_ms);
bool once__machine_may_find(const once_machine *machine);
void once__machine_begin_find_due(once_machine *machine);
bool once__machine_wants_find(const once_machine *machine);
once_action *once__machine_begin_find(once_machine *machine);
once_action *once__machine_begin_take(once_machine *machine, size_t max, int64_t now_ms);
void once__machine_took(once_machine *machine, once_action *action, int64_t now_ms);
void once__machine_found(once_machine *machine, once_action *action);
void once__machine_told_stats(once_machine *machine, const once_action *action, int64_t now_ms);

/* machine_room.c: how much may wait in the store */
bool once__machine_must_count(const once_machine *machine, int64_t now_ms);
int64_t once__machine_count_at_ms(const once_machine *machine);
once_action *once__machine_begin_count(once_machine *machine, int64_t now_ms);
void once__machine_counted(once_machine *machine, const once_action *action, int64_t now_ms);
size_t once__machine_room_to_fetch(const once_machine *machine);
void once__machine_note_waiting(once_machine *machine, const once_item *item, bool waits);

/* machine_gate.c: handlers that are held up */
once_room once__machine_room(const once_machine *machine, int64_t now_ms);
bool once__machine_is_held(const once_machine *machine, const once_item *item);
bool once__machine_must_not_begin(const once_machine *machine, const once_item *item);
bool once__machine_may_begin(const once_machine *machine, const once_item *item);
void once__machine_begins(once_machine *machine, once_item *item);
void once__machine_tries(once_machine *machine, once_item *item);
void once__machine_begins_not(once_machine *machine, const once_item *item);
bool once__machine_spares(once_machine *machine, once_item *item);
void once__machine_passes(once_machine *machine, const once_item *item);
void once__machine_ended_outside(once_machine *machine, once_item *item, once_outcome came_to, int64_t now_ms);
void once__machine_ended_inside(once_machine *machine, const once_item *item, int64_t now_ms);
void once__machine_then_ended(once_machine *machine, const once_item *item, int64_t now_ms);
void once__machine_note_progress(once_machine *machine, const once_item *item, int64_t now_ms);
void once__machine_judged_late(once_machine *machine, once_item *item);
void once__machine_blame(once_machine *machine, once_item *item);
bool once__machine_may_be_over(const once_machine *machine);
bool once__machine_waits_in_vain(once_machine *machine, const once_action *stats, int64_t now_ms);

/* machine_outside.c: effects outside of the store */
void once__machine_put_in_flight(once_machine *machine, once_item *item, int64_t asked_at_ms);
void once__machine_release_unstarted(once_machine *machine);
void once__machine_put_back_paused(once_machine *machine);
void once__machine_lose_in_flight(once_machine *machine, once_item *item);
bool once__machine_must_settle(const once_machine *machine, int64_t now_ms);
void once__machine_settle_returned(once_machine *machine, int64_t now_ms);
void once__machine_keep_unwritten(once_machine *machine, once_item *item, int64_t now_ms);
once_action *once__machine_effect_action(once_machine *machine, int64_t now_ms);
void once__machine_finished(once_machine *machine, once_item *const *items, size_t n, int64_t now_ms);

/* machine_failure.c: failures: when to try again, when to give up, which message is at fault */
void once__machine_give_up(once_machine *machine, int status, const once_error *error);
bool once__machine_worth_another_try(once_machine *machine, int status, const once_error *error, unsigned *tries,
                                     int64_t *at_ms, int64_t since_ms, int64_t now_ms, int64_t longest_ms);
bool once__machine_singly_leaves(once_machine *machine);
void once__machine_run_singly(once_machine *machine);
void once__machine_store_failed(once_machine *machine, once_action *action, int64_t now_ms);
void once__machine_run_carefully(once_machine *machine);
bool once__machine_disproved(const once_machine *machine, const once_action *action);

/* machine_store.c: what the store executor does next */
once_action *once__machine_store_action(once_machine *machine, int64_t now_ms);
void once__machine_store_step(once_machine *machine, once_action *action, int64_t now_ms);

/* machine_check.c: names the invariant of core/machine.h that does not hold, in words that begin with its number; NULL:
 * all hold. In test builds every function that changes the machine calls this, and aborts if one does not hold. */
const char *once__machine_check(const once_machine *machine);
#ifdef ONCE_TEST_BUILD
void once__machine_checked(const once_machine *machine);
#else
static inline void once__machine_checked(const once_machine *machine) { (void)machine; }
#endif

#endif
