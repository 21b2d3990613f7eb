/* The machine's own: its state, and what its files share. Nobody else includes this, but tests that look inside. */
#ifndef ONCE_CORE_PIPE_H
#define ONCE_CORE_PIPE_H

#include "core/flight.h"
#include "core/id_set.h"
#include "core/pipeline.h"
#include "core/waits.h"
#include "core/watermark.h"

#define OUTSTANDING 64           /* batches that may be on their way behind one that takes long */

/* What the store executor should do next. */
typedef enum next_step {
    NEXT_CHOOSE, /* no work */
    NEXT_PRECLAIM, /* the one message of the work, durably */
    NEXT_BEGIN,  /* the work, from the start */
    NEXT_KEEP,   /* the leases of effects on their way */
    NEXT_FIND,   /* what waits in its lanes */
    NEXT_ROUND,
    NEXT_CLAIM,
    NEXT_EXTEND,
    NEXT_RUN,
    NEXT_SETTLE,
    NEXT_ACCEPT,
    NEXT_BURY,
    NEXT_COMMIT,
    NEXT_ROLLBACK
} next_step;

/* Last item of the work with this key or lane. */
typedef struct mark {
    once_hash id;
    once_item *last;
} mark;

struct once_pipe {
    once_pipe_options o;
    const once_spec *spec;
    once_intake intake;       /* for what is taken from the store; used in steps */
    once_intake fetch_intake; /* for what is fetched; the source executor uses it while a FETCH is out */
    once_counts counts;
    once_id_set unknown; /* the keys that are counted as such */
    size_t batch_max;
    size_t at[ONCE_AT_PLACES]; /* how many items are in each place; those of NEW and OVER are not counted */

    /* source side */
    once_action source;
    bool source_out, at_end;
    bool rested; /* told to stop, it has handed out all that it had read */
    uint64_t next_ticket, acked;
    uint64_t over, dropped; /* tickets that are over, in any order; messages that got none */
    once_watermark watermark;
    int64_t source_at_ms;
    unsigned source_tries;
    int64_t source_failing_since_ms; /* the first of them */
    once_batch *spare, *batches;
    once_item **ready; /* ring */
    size_t ready_first, ready_n, ready_size;
    size_t ready_bytes, held_bytes; /* of bodies: of those in it, of all batches that were fetched */
    once_waits waits;
    once_item *farthest; /* with a cursor: of those that are over, the last one; its batch is kept for it */

    /* store side */
    once_action store;
    bool store_out;
    next_step next;
    bool in_tx;
    once_item **work, **round, **next_round, **list, **about;
    size_t work_n, work_size, round_n, next_round_n;
    mark *marks;
    size_t marks_size;
    bool had_lanes;
    unsigned careful_left;
    size_t cautious_left, cautious_window;
    bool cautious_look; /* in this work nothing may run that was not claimed durably */
    bool preclaim;      /* the claim that is out is such a durable one */
    bool claim_first;   /* after the rollback, such a claim */
    once_item *runs_alone; /* the one effect of the open transaction; NULL: none, or more than one */
    bool ran;              /* there were some */
    unsigned hung_up;      /* so often in a row the server has, on a work whose effects ran */
    bool accused;          /* somebody was found before: it need not happen twice again */
    unsigned tries;
    unsigned rolled_back; /* of these in a row: by the database itself */
    int64_t failing_since_ms; /* the first of them */
    int64_t store_at_ms, take_at_ms, stats_at_ms, sweep_at_ms, renew_at_ms;
    once_token take_token;
    bool take_again, took_last;
    unsigned takes_left; /* so many more may come before what the source has brought */
    size_t take_most; /* of the take that is asked for again */
    once_batch *take_batch;
    bool finds;         /* what waits may be run by the transaction that finds it */
    bool find_due;      /* the work was begun to find what is due */
    bool sought;        /* in this transaction it was looked for ... */
    size_t found_n;     /* ... and so many were found */
    bool take_next;     /* something is due that must be taken */
    int64_t asked_at_ms, take_asked_ms; /* when the transaction began, and the take */

    /* external effects */
    once_flight flight;
    once_action effect;
    bool effect_out;
    once_item **effect_list;
    once_item *back, *back_last; /* returned, to be settled */
    once_item **keeping;         /* whose leases the work extends */
    size_t keeping_n;
    uint32_t *admitted;          /* by handler, in the round that is being made */
    unsigned effect_tries;
    int64_t effect_failing_since_ms; /* the first of them */
    int64_t effect_at_ms; /* nothing external starts before */
    int64_t stop_at_ms;   /* when the stop was seen; ONCE_NEVER: it was not */

    bool stopping, ended;
    bool store_gone; /* given up on it: nothing can be settled any more */
    uint64_t unsettled; /* once_pipe_unsettled */
    int status;
    once_error error;
};

/* Which invariant (core/pipeline.h) does not hold, in words that begin with its number; NULL: all hold. In test builds every function that
 * changes the machine asks, and the process ends when there is one. */
const char *once__pipe_check(const once_pipe *pipe);
#ifdef ONCE_TEST_BUILD
void once__pipe_checked(const once_pipe *pipe);
#else
static inline void once__pipe_checked(const once_pipe *pipe) { (void)pipe; }
#endif

#endif
