/* Carries out the actions of the machine (core/machine.h) on a store and a source. The threads of a run call it, and so
 * does the simulator, with the store and the effects of its own world.
 *
 * An action comes with its items and parameters; the executor fills in the results and action->status. It never decides
 * what happens next; the machine does, from the status.
 *
 * Thread rule. once_execute_store: the store's thread, which owns the executor. once_execute_source: the thread that
 * fetches. once_execute_ack: the thread that acks. The last two need no state, so they take the source alone.
 *
 * Invariants
 *   E1  in_tx is true from a successful BEGIN to its COMMIT or ROLLBACK, and only then may a batch's verbs run.
 *   E2  What `log` collected is written only after the commit, so that a rolled back batch leaves no lines. When no
 *       answer to the commit came, the lines move to `log_in_doubt`, and the next pass over the same messages writes
 *       them.
 *   E3  `wrote` and `settled` describe the open transaction alone.
 *
 * Files: executor.c (the verbs of a batch, and the source), executor_due.c (messages that wait in the store),
 * executor_keep.c (facts written with a batch), executor_log.c (lines about messages), waiting.c, fetch_pause.c. */
#ifndef ONCE_RUNTIME_EXECUTOR_H
#define ONCE_RUNTIME_EXECUTOR_H

#include "core/outward.h"
#include "core/machine.h"
#include "runtime/message_log.h"
#include "runtime/unconfirmed.h"
#include "source/source.h"
#include "store/store.h"
#include "store/takeover.h"

/* Runs the effects of a batch inside the transaction; as once_effects_run. */
typedef int once_run_effects(void *user, once_item *const *items, size_t n, bool careful, bool blame, once_arena *arena,
                             bool *failed, once_error *err);

/* The claims of other workers that a run waits for. */
enum { ONCE_WAITING_NAME = 120, ONCE_WAITING_TEXT = 320 };
typedef struct once_waiting_for {
    uint64_t n;        /* claims; 0: it does not wait, or nobody asked */
    int64_t until_ns;  /* when the first of them ends, by our monotonic clock; shown, never used for a decision */
    int64_t found_ns;  /* when that was looked up; 0: never */
    bool worker_alive; /* its worker is alive */
    const char *state; /* of its worker, in words: "which is alive" */
    char key[ONCE_WAITING_NAME], who[ONCE_WAITING_NAME];
} once_waiting_for;

typedef struct once_executor {
    once_backend *store;
    once_bytes consumer;
    once_run_effects *run;
    void *user;
    once_keying keying; /* idempotency keys in log lines */

    /* facts written with a transaction (executor_keep.c) */
    once_source *source;     /* NULL: none keeps anything in the store */
    once_facts *facts;       /* where it does; with `source` */
    int64_t newest_ms;       /* time of the newest message of this transaction, or ONCE_NO_TIME */
    int64_t newest_kept_ms;  /* the newest that this run wrote or found in the store, or ONCE_NO_TIME */
    int64_t newest_limit_ms; /* an earlier run's value above this came from a wrong clock, and is replaced */
    once_worker *worker;     /* whose record is renewed; NULL: none */
    int64_t rate_at_ns;      /* when the worker's rate was computed last ... */
    uint64_t rate_done;      /* ... and how many messages were done then */

    /* the open transaction */
    bool in_tx;
    bool wrote;                    /* something, so that the worker's record is renewed with it */
    uint64_t settled;              /* messages */
    once_item *denied;             /* permission was denied to its effect; the first one, or NULL */
    once_message_log log;          /* E2 */
    once_message_log log_in_doubt; /* E2 */
    once_unconfirmed unconfirmed;  /* log lines in doubt of verbs that commit by themselves (take, lapse) */
    once_arena arena;              /* results and reasons; until the next BEGIN */
    once_arena scratch;            /* until the next action */

    /* handlers of this worker that are held up, to be written with its record; and what was written last */
    once_paused paused;
    uint64_t paused_version; /* of what was written last */

    /* workers that are gone, expired claims, and claims that the run waits for (waiting.c, executor_due.c) */
    once_gone gone;
    int64_t gone_at_ns;   /* when they were looked for; 0: never */
    bool met_busy;        /* since then a claim of this run met a claim of another worker (BUSY) */
    int64_t lapsed_at_ns; /* when expired claims were looked for; 0: never */
    bool shows_waiting;   /* keep `waiting` up to date */
    once_waiting_for waiting;
    int64_t waiting_said_ns; /* when it was logged last; 0: never */
    int64_t lookup_until_ns; /* a line that says until when the run waits for a lookup is true until then; 0: none */
} once_executor;

void once_executor_init(once_executor *executor, once_backend *store, once_bytes consumer, once_run_effects *run,
                        void *user);
/* Writes the log lines that are still in doubt: rather twice than never. */
void once_executor_release(once_executor *executor);

void once_execute_store(once_executor *executor, once_action *action);
void once_execute_source(once_source *source, once_action *action);
void once_execute_ack(once_source *source, once_action *action);

/* The time of the newest message that a consumer has seen, to within an hour, from a fact of the store; ONCE_NO_TIME:
 * no message had a time. */
int once_newest_read(once_backend *store, once_bytes consumer, int64_t *out, once_error *err);

/* --- waiting.c: claims of other workers --- */

/* Logs what a run waits for that has nothing else to do. Claims of other workers: whose they are and how long they
 * last, at most every ten seconds. A lookup that is not due: once for each wait. */
void once__log_waiting(once_executor *executor, const once_stats *stats);
/* The same for the progress line; empty: the run does not wait. */
void once__waiting_text(const once_waiting_for *waiting, int64_t now_ns, char out[ONCE_WAITING_TEXT]);
/* Ends the claims of workers that are gone (store/takeover.h), and logs it. *ended: how many. */
int once__take_over(once_backend *store, once_bytes consumer, const once_worker *self, once_gone *gone, size_t *ended,
                    once_error *err);
/* The same every ten seconds, or every second when a claim is in the way. Outside of a transaction. True: some
 * ended. */
bool once__look_for_gone(once_executor *executor, bool in_the_way);

/* --- paused.c: handlers that are held up --- */

/* A line of once_paused. */
typedef struct once_paused_line {
    int64_t since_ms, next_ms; /* wall clock; next_ms: no probe before; 0: with its next message */
    uint64_t probes;           /* that have ended */
    once_bytes cause;          /* once_gate_hold_name */
    once_bytes handler, reason;
} once_paused_line;
/* A handler, as it is named in such a line. */
once_bytes once__paused_name(const once_handler_spec *handler);
/* The next line of the text, which begins at *text and ends with a zero; false: there is none. */
bool once__paused_next(const char **text, once_paused_line *out);
/* "paused: payment.requested for 12s, next try in 4s (permission denied)", as of this time of the wall clock; without
 * one (ONCE_NO_TIME) "paused: payment.requested (permission denied)". Empty: none is. */
void once__paused_text(const once_paused *paused, int64_t wall_ms, char *out, size_t size);

/* --- fetch_pause.c: waiting_max --- */

/* What was logged about pauses of fetching. A small waiting_max pauses many times a minute, so a pause is logged as a
 * warning only after it has lasted for long_ms; otherwise as debug. All zero: nothing was logged. */
typedef struct once_fetch_pause {
    bool paused, warned;
    int64_t since_ms; /* of the pause, or of its end */
    int64_t long_ms;  /* doubled by each warning, and reset when fetching has gone on for as long */
} once_fetch_pause;
void once__log_fetch_pause(once_fetch_pause *said, const once_machine *machine, const once_spec *spec, int64_t now_ms);
/* Whether there is something to log, and whether it is a warning. */
bool once__fetch_pause_news(once_fetch_pause *said, bool full, int64_t now_ms, bool *warn);
/* For the progress line; empty: fetching is not paused. */
void once__fetch_pause_text(const once_machine *machine, char out[ONCE_WAITING_TEXT]);

#endif
