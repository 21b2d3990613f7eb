/* Carries out the actions of the machine (core/machine.h) on a real store and source. Threads of the runtime
 * call it, and so does the simulator, with a store and effects of its own world.
 *
 * Thread rule: once_execute_store belongs to the store's thread, once_execute_source to the one that fetches and
 * once_execute_ack to the one that acks. */
#ifndef ONCE_RUNTIME_EXECUTOR_H
#define ONCE_RUNTIME_EXECUTOR_H

#include "core/outward.h"
#include "core/machine.h"
#include "runtime/message_log.h"
#include "runtime/unconfirmed.h"
#include "source/source.h"
#include "store/store.h"
#include "store/takeover.h"

/* As once_effects_run. */
typedef int once_run_effects(void *user, once_item *const *items, size_t n, bool careful, bool blame, once_arena *arena,
                             bool *failed, once_error *err);

/* What is shown of a run that waits for claims of others. */
enum { ONCE_WAITING_NAME = 120, ONCE_WAITING_TEXT = 320 };
typedef struct once_waiting_for {
    uint64_t n;        /* of them; 0: it does not wait, or nobody asked */
    int64_t until_ns;  /* when the first of them ends, by our own clock, which decides nothing */
    int64_t found_ns;  /* when that was looked up; 0: never */
    bool routine;      /* its worker is alive */
    const char *state; /* of its worker, in words */
    char key[ONCE_WAITING_NAME], who[ONCE_WAITING_NAME];
} once_waiting_for;

typedef struct once_executor {
    once_backend *store;
    once_bytes consumer;
    once_run_effects *run;
    void *user;
    once_keying keying;     /* for what is logged */
    once_source *source;    /* that keeps something with each transaction; NULL: none does */
    once_facts *facts;      /* where; with a source */
    int64_t newest_ms;      /* time of the newest message of this transaction, or ONCE_NO_TIME ... */
    int64_t newest_kept_ms; /* ... and what the store was told last */
    int64_t newest_most_ms; /* what an earlier run kept beyond this was a wrong clock, and does not count */
    once_worker *worker;    /* whose record is renewed; NULL: none */
    bool wrote;             /* in the open transaction, so that it must be */
    uint64_t settled;       /* messages, in the open transaction */
    int64_t rate_at_ns;     /* when the rate was taken last, and how many were done then */
    uint64_t rate_done;
    once_gone gone;       /* workers that were found to be gone */
    int64_t gone_at_ns;   /* when they were looked for; 0: never */
    bool met_busy;        /* since then a claim of somebody else was in the way */
    int64_t lapsed_at_ns; /* when claims were looked for whose lease is over; 0: never */
    bool in_tx;           /* the transaction of BEGIN is open */
    bool shows_waiting;   /* `waiting` is wanted */
    once_waiting_for waiting;
    int64_t waiting_said_ns;  /* when it was told last that others hold what is left; 0: never */
    once_message_log said;    /* what became of the messages of the open transaction */
    once_message_log doubted; /* the same of one to whose commit no answer came; the next pass says it */
    once_unconfirmed unconfirmed;
    once_arena arena;   /* lives as long as a transaction: results, reasons */
    once_arena scratch; /* lives as long as one action */
} once_executor;

void once_executor_init(once_executor *executor, once_backend *store, once_bytes consumer, once_run_effects *run,
                        void *user);
void once_executor_release(once_executor *executor);

/* Fills what the action asks for, and action->status. */
void once_execute_store(once_executor *executor, once_action *action);
void once_execute_source(once_source *source, once_action *action);
void once_execute_ack(once_source *source, once_action *action);

/* The time of the newest message that a consumer has seen, to within an hour, for whoever compares clocks
 * (ONCE_NO_TIME: none had one): a fact of the store. */
int once_newest_read(once_backend *store, once_bytes consumer, int64_t *out, once_error *err);

/* waiting.c: nothing is left but what others have claimed; for whom the run waits, and how long. Once in a while. */
void once__log_waiting(once_executor *executor, const once_stats *stats);
/* The same for a line on a terminal; empty: it does not wait. */
void once__waiting_text(const once_waiting_for *waiting, int64_t now_ns, char out[ONCE_WAITING_TEXT]);
/* fetch_pause.c: says that nothing is fetched because of waiting_max, and that it goes on. Where less may wait than comes at a
 * time, that is many times a minute and nobody's business: a pause is a warning when it has lasted. All zero: nothing
 * was said. */
typedef struct once_fetch_pause {
    bool paused, warned;
    int64_t since_ms; /* it is paused, or goes on */
    int64_t long_ms;  /* a pause of this length is a warning; doubled by each, until it has gone on for as long */
} once_fetch_pause;
void once__log_fetch_pause(once_fetch_pause *said, const once_machine *machine, const once_spec *spec, int64_t now_ms);
/* Whether there is something to say, and whether it is a warning. */
bool once__fetch_pause_news(once_fetch_pause *said, bool full, int64_t now_ms, bool *warn);
void once__fetch_pause_text(const once_machine *machine, char out[ONCE_WAITING_TEXT]); /* empty: there is room */
/* waiting.c: ends the claims of workers that are gone (store/takeover.h), and says so. *ended: how many. */
int once__take_over(once_backend *store, once_bytes consumer, const once_worker *self, once_gone *gone, size_t *ended,
                    once_error *err);
/* Once in a while, and sooner when a claim is in the way; outside of a transaction. Whether there were some. */
bool once__look_for_gone(once_executor *executor, bool in_the_way);

#endif
