/* The machine's own: its state, and what its files share. Nobody else includes this, but tests that look inside. */
#ifndef ONCE_CORE_MACHINE_IMPL_H
#define ONCE_CORE_MACHINE_IMPL_H

#include "core/due_shares.h"
#include "core/flight.h"
#include "core/id_set.h"
#include "core/machine.h"
#include "core/stream.h"
#include "core/key_queue.h"

#define OUTSTANDING 64    /* batches that may be on their way behind one that takes long */
#define PARKED 2          /* batches that may wait behind equal keys and lanes */
#define CAUTIOUS_LEAST 64 /* after an unclean end, so many effects run one by one, or a whole batch if that is more */
#define BLAME_AFTER 3     /* a work that was rolled back so often by the database itself looks for whose fault it is */
#define CLOCK_SLACK_MS 2  /* the store's clock and ours need not tick together */

/* --- state --- */

/* What the store executor should do next. */
typedef enum next_step {
    NEXT_CHOOSE,   /* no work */
    NEXT_PRECLAIM, /* the one message of the work, durably */
    NEXT_BEGIN,    /* the work, from the start */
    NEXT_KEEP,     /* the leases of effects on their way */
    NEXT_FIND,     /* what waits in its lanes */
    NEXT_ROUND,
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

/* The batches that there are. */
typedef struct pipe_batches {
    once_batch *spare, *all;
    size_t held_bytes; /* of the bodies of all that were fetched */
} pipe_batches;

/* The items that are READY: each in the queue of its stream, or of what was taken from the store. */
typedef struct pipe_ready {
    once_queue taken;
    size_t n, bytes; /* of all queues; bytes of their bodies */
} pipe_ready;

/* The streams of the source, by their numbers. */
typedef struct pipe_streams {
    once_stream **at;     /* NULL: that number is free */
    uint32_t n;           /* numbers, used or not */
    uint32_t *paused;     /* room for all of them */
    once_stream *last;    /* that was looked up, since messages of a stream come together; NULL: none */
    size_t live;          /* streams that are not released */
    size_t leaving;       /* of them, those that are not ASSIGNED any more */
    size_t to_seek;       /* of them, those that wait for a SEEK */
    once_stream *seeking; /* the one that it is about; NULL: none, or it was let go since */
    bool seek_failed;     /* the last one did: what else there is to do comes first */
    uint32_t turn;        /* whose messages go first */
} pipe_streams;

/* The source executor's action. */
typedef struct pipe_source {
    once_action action;
    bool out, at_end;
    bool rested;            /* told to stop, it has handed out all that it had read */
    uint64_t open, dropped; /* messages that have a tag and are not over; messages that got none */
    uint64_t gone;          /* deliveries that were not ours any more when they were to be acked or extended */
    int64_t asked_ms;       /* when it was asked for something last */
    int64_t at_ms;
    unsigned tries;
    int64_t failing_since_ms; /* the first of them */
} pipe_source;

#define RECEIPTS_MAX 512 /* that an action is about */

/* The ack executor's action. */
typedef struct pipe_acks {
    once_action action;
    bool out;
    bool release_all; /* nothing else is left to do */
    bool acks_next;   /* the last one was a PROLONG: what is to be acked has its turn */
    once_receipt list[RECEIPTS_MAX];
    struct {
        once_stream *stream;
        uint64_t tag;
    } asked[RECEIPTS_MAX]; /* whose receipts these are */
    once_stream *releasing;
    uint32_t turn;
    int64_t at_ms; /* after a failure */
    unsigned tries;
    int64_t failing_since_ms; /* the first of them */
} pipe_acks;

/* Last item of the work with this key or lane. */
typedef struct pipe_mark {
    once_hash id;
    once_item *last;
} pipe_mark;

/* The messages of one transaction. */
typedef struct pipe_work {
    next_step next;
    bool in_tx;
    once_item **items, **round, **next_round;
    size_t n, size, round_n, next_round_n;
    size_t again_n;            /* of the list of the last SETTLE: those that are settled once more */
    once_item **list, **about; /* what an action is given; the executor has it while the others change */
    pipe_mark *marks;
    size_t marks_size;
    uint32_t *admitted; /* by handler, in the round that is being made */
    bool had_lanes;
    bool ran;               /* effects */
    once_item *runs_alone;  /* the one of them; NULL: none, or more than one */
    const once_item **last; /* for each stream of which something will be over: the message up to which all is */
    size_t last_n;
    once_item **keeping; /* whose leases it extends */
    size_t keeping_n;
    int64_t asked_at_ms; /* when the transaction began */
} pipe_work;

/* How carefully effects run in the store's database, after they failed, or killed us or the server. */
typedef struct pipe_caution {
    unsigned careful_left; /* so many batches more have a savepoint around each message */
    size_t left, window;   /* so many effects more run few at a time, and how many that is */
    bool look;             /* in this work nothing may run that was not claimed durably */
    bool preclaim;         /* the claim that is out is such a durable one */
    bool claim_first;      /* after the rollback, such a claim */
    unsigned hung_up;      /* so often in a row the server has, on a work whose effects ran */
    bool accused;          /* somebody was found before: it need not happen twice again */
    unsigned rolled_back;  /* so often in a row a work was, by the database itself */
} pipe_caution;

/* What waits in the store, for us to take or to find. */
typedef struct pipe_due {
    int64_t at_ms, asked_ms; /* when to look, and when the take was asked for */
    once_token token;
    bool again, took_last;
    unsigned takes_left; /* so many more may come before what the source has brought */
    size_t most;         /* of the take that is asked for again */
    bool filtered;       /* it has a filter */
    bool all;            /* it looks for everything that is due, and not only for what is wanted since the last look */
    once_due_shares shares;
    once_batch *batch;
    bool finds;     /* what waits may be run by the transaction that finds it */
    bool finding;   /* the work was begun to find what is due */
    bool sought;    /* in this transaction it was looked for ... */
    size_t found_n; /* ... and so many were found */
    bool take_next; /* something is due that must be taken */
} pipe_due;

/* Effects outside of the store. */
typedef struct pipe_outside {
    once_flight flight;
    once_action action;
    bool out;
    once_item **list;
    once_item *back, *back_last; /* RETURNED */
    unsigned tries;
    int64_t failing_since_ms; /* the first of them */
    int64_t at_ms;            /* nothing external starts before */
} pipe_outside;

/* The store executor's action, and what it does besides the work. */
typedef struct pipe_store {
    once_action action;
    bool out;
    bool gone; /* given up: nothing can be settled any more */
    int64_t at_ms, stats_at_ms, sweep_at_ms, renew_at_ms;
    unsigned tries;
    int64_t failing_since_ms; /* the first of them */
} pipe_store;

/* How much waits in the store (machine_room.c). */
typedef struct pipe_room {
    bool known;              /* the store has told */
    bool full;               /* fetching has stopped */
    once_waiting_size there; /* as it told, with what we have added and taken away since */
    once_waiting_size added; /* since then, by us */
    bool only_source;        /* it is full, and only the source can bring what is waited for */
    bool gave_up;            /* because of that the run ends, with nothing begun */
    bool stuck;              /* it is full, and somebody must act ... */
    int64_t stuck_ms;        /* ... since then */
    int64_t asked_ms, at_ms; /* when it was asked, and when it is to be asked again because of others */
} pipe_room;

typedef struct pipe_end {
    bool stopping, ended;
    int64_t stop_at_ms; /* when the stop was seen; ONCE_NEVER: it was not */
    uint64_t unsettled; /* once_machine_unsettled */
    int status;
    once_error error;
} pipe_end;

struct once_machine {
    once_machine_options o;
    const once_spec *spec;
    size_t batch_max;
    once_intake intake;       /* for what is taken from the store; used in steps */
    once_intake fetch_intake; /* for what is fetched; the source executor uses it while a FETCH is out */
    int64_t now_ms;           /* of the call that is running, for the times of items */
    once_counts counts;
    once_timings timings;
    once_id_set unknown; /* the keys that are counted as such */

    size_t at[ONCE_AT_PLACES]; /* how many items are in each place; those of NEW and OVER are not counted */
    pipe_batches batches;
    pipe_ready ready;
    pipe_streams streams;
    once_key_queue key_queue; /* who is PARKED, and behind whom */
    pipe_source source;
    pipe_acks acks;
    pipe_work work;
    pipe_caution caution;
    pipe_due due;
    pipe_room room;
    pipe_outside outside;
    pipe_store store;
    pipe_end end;
};

/* --- what the files share --- */

static inline bool once__item_is_external(const once_item *item)
{
    return item->handler && once_handler_external(item->handler);
}

/* Its effect has begun. Who asks about one that nobody knows the end of tries nothing. */
static inline bool once__item_has_tried(const once_item *item) { return item->started && !item->decision.asks; }

/* The transaction did not come to it: no slot was free, or it stands behind one that flies now. */
static inline bool once__item_is_left(const once_item *item)
{
    return item->stage == ONCE_STAGE_CLAIM || item->stage == ONCE_STAGE_ACCEPT;
}

/* The store may know of it: it was claimed durably, or was in a commit whose fate is not known. */
static inline bool once__item_is_begun(const once_item *item)
{
    return item->held || item->commit_unknown || item->ended_tx;
}

/* From the source, and not its any more: its stream was revoked, or its delivery went to somebody else. */
static inline bool once__item_is_unwanted(const once_item *item)
{
    return item->tag && (!item->from || item->from->state != ONCE_STREAM_ASSIGNED);
}

static inline bool once__machine_has_work(const once_machine *machine)
{
    return machine->work.n || machine->work.keeping_n;
}

/* machine_place.c: where items are */
once_batch *once__machine_batch_get(once_machine *machine);
void once__machine_batch_put(once_machine *machine, once_batch *batch);
void once__machine_batch_let_go(once_machine *machine, once_batch *batch);
void once__item_forget_output(once_item *item);
void once__machine_ready_put(once_machine *machine, once_item *item, bool last);
void once__machine_ready_take(once_machine *machine, once_item *item);
void once__machine_move(once_machine *machine, once_item *item, once_item_place to);
void once__machine_leave_key_queue(once_machine *machine, once_item *item);
void once__batch_free(once_batch *batch);

/* machine_source.c: what is fetched */
bool once__machine_rest_to_fetch(const once_machine *machine);
once_action *once__machine_source_action(once_machine *machine, int64_t now_ms);
int64_t once__machine_source_at_ms(const once_machine *machine, int64_t now_ms);
void once__machine_fetched(once_machine *machine, once_action *action, int64_t now_ms);
void once__machine_ack_work(once_machine *machine);
void once__machine_remember_farthest(once_machine *machine, once_item *item);
void once__machine_find_last(once_machine *machine);
void once__machine_let_last_go(once_machine *machine);

/* machine_stream.c: streams that come and go, and what becomes of their items */
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

/* machine_ack.c: what the source is told */
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
void once__machine_next_round(once_machine *machine);
once_action *once__machine_begin(once_machine *machine);

/* machine_decide.c: what becomes of one message */
void once__machine_judge(once_machine *machine, once_item *item);
int64_t once__machine_question_ms(const once_machine *machine, const once_item *item);
void once__item_refused_or_over(once_item *item);
void once__machine_note_replaced(const once_machine *machine, once_item *item);
void once__machine_decide(once_machine *machine, once_item *item);
void once__machine_preclaimed(once_machine *machine, once_item *item);
void once__machine_extended(once_machine *machine, once_action *action);
void once__machine_have_run(once_machine *machine, once_action *action, int64_t now_ms);
void once__machine_settled(once_machine *machine, once_action *action);
void once__machine_buried(once_machine *machine, once_action *action);

/* machine_times.c: when items came to their stages */
void once__machine_note_received(const once_machine *machine, once_item *item);
void once__machine_note_claimed(const once_machine *machine, once_item *const *items, size_t n);
void once__machine_note_started(const once_machine *machine, once_item *const *items, size_t n);
void once__item_forget_times(once_item *item);
void once__machine_note_settled(once_machine *machine, once_item *item);
void once__machine_note_acked(once_machine *machine, const once_stream *stream, uint64_t from, uint64_t upto);

/* machine_count.c: after the commit */
void once__machine_count_settled_by_lane(once_machine *machine, const once_item *item);
bool once__machine_is_known_now(once_machine *machine, const once_item *item);
void once__machine_count_origin(once_machine *machine, const once_item *item, bool known_now);
int once__item_repeats(const once_item *item);
int once__item_new_repeats(const once_item *item);
int64_t once__item_given_up(const once_item *item);
void once__count_replaced(once_counts *counts, bool ours);
void once__machine_conclude(once_machine *machine, int64_t now_ms);

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

/* machine_room.c: how much may wait there */
bool once__machine_must_count(const once_machine *machine, int64_t now_ms);
int64_t once__machine_count_at_ms(const once_machine *machine);
once_action *once__machine_begin_count(once_machine *machine, int64_t now_ms);
void once__machine_counted(once_machine *machine, const once_action *action, int64_t now_ms);
size_t once__machine_room_to_fetch(const once_machine *machine);
void once__machine_note_waiting(once_machine *machine, const once_item *item, bool waits);

/* machine_outside.c: effects outside of the store */
void once__machine_depart(once_machine *machine, once_item *item, int64_t asked_at_ms);
void once__machine_recall(once_machine *machine);
void once__machine_lose_flying(once_machine *machine, once_item *item);
once_action *once__machine_effect_action(once_machine *machine, int64_t now_ms);
void once__machine_finished(once_machine *machine, once_item *const *items, size_t n, int64_t now_ms);

/* machine_failure.c: what failed */
void once__machine_give_up(once_machine *machine, int status, const once_error *error);
bool once__machine_worth_another_try(once_machine *machine, int status, const once_error *error, unsigned *tries,
                                     int64_t *at_ms, int64_t since_ms, int64_t now_ms, int64_t longest_ms);
bool once__machine_cautious_leaves(once_machine *machine);
void once__machine_be_cautious(once_machine *machine);
void once__machine_store_failed(once_machine *machine, once_action *action, int64_t now_ms);
void once__machine_run_carefully(once_machine *machine);
bool once__machine_disproved(const once_machine *machine, const once_action *action);

/* machine_store.c: what the store executor does next */
once_action *once__machine_store_action(once_machine *machine, int64_t now_ms);
void once__machine_store_step(once_machine *machine, once_action *action, int64_t now_ms);

/* machine_check.c: which invariant (core/machine.h) does not hold, in words that begin with its number; NULL: all hold.
 * In test builds every function that changes the machine asks, and the process ends when there is one. */
const char *once__machine_check(const once_machine *machine);
#ifdef ONCE_TEST_BUILD
void once__machine_checked(const once_machine *machine);
#else
static inline void once__machine_checked(const once_machine *machine) { (void)machine; }
#endif

#endif
