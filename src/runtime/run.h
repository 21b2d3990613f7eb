/* A run of a pipeline as an object: started, observed, stopped and joined from any thread.
 *
 * once_pipeline_start opens the parts (store, effects, runner, source), records in the store that a run begins, and
 * starts the run's own thread. That thread starts the worker threads, waits until the machine has ended, records the
 * end in the store and closes the parts. So a run ends whether or not anybody joins it; joining it waits for that
 * thread.
 *
 * Each pipeline has one run object, made with it. After a join it may be started again.
 *
 *   state  NONE -> OPENING -> WORKING -> DRAINING -> ENDED; the next start goes from ENDED to OPENING.
 *          OPENING goes to ENDED when a part cannot be opened, WORKING when a finite source is drained.
 *   join   OPEN -> BEGUN -> OVER; only a run whose join is OVER is started again.
 *
 * Threads of a run (run_threads.c)
 *   the store's    carries out actions on the store (once_execute_store); holds store_lock while a transaction is open
 *   the acks'      acks, extends and releases deliveries (once_execute_ack)
 *   the source's   fetches (once_execute_source)
 *   the effects'   starts effects outside of the store and collects their outcomes (effect/runner.h), if there are any
 *   the run's own  waits for the end
 * The machine (core/machine.h) decides; each thread takes its next action from it, carries it out without the lock, and
 * reports back under the lock. */
#ifndef ONCE_RUNTIME_RUN_H
#define ONCE_RUNTIME_RUN_H

#include <pthread.h>
#include <sys/types.h>

#include "core/machine.h"
#include "runtime/executor.h"
#include "runtime/runtime.h"

/* In the order in which they start: nothing is fetched before the other two can work. */
enum { ONCE_THREAD_STORE, ONCE_THREAD_ACKS, ONCE_THREAD_SOURCE, ONCE_RUN_THREADS };

/* How the failures of one kind of action are logged. */
typedef struct once_run_failure {
    const char *event; /* when an action fails; NULL: once__store_event chooses it */
    const char *works; /* when one succeeds again */
    once_log_throttle throttle;
    bool warned; /* a failure was logged as a warning since the last success */
} once_run_failure;

/* A thread that carries out actions of the machine. */
typedef struct once_run_thread {
    once_run *r;
    pthread_t thread;
    pthread_cond_t wakeup; /* with `lock`: there may be an action for this thread */
    int64_t until_ms;      /* with `lock`: it sleeps until this time at most */
    once_action *(*next)(once_machine *machine, int64_t now_ms);
    void (*execute)(once_run *r, once_action *action);
    once_run_failure failure;
} once_run_thread;

/* Whether a handler works, for the log. */
typedef struct once_handler_state {
    unsigned refused;           /* messages in a row that it released, or failed without a limit of attempts */
    int64_t worked_ms;          /* when a message last ended otherwise; 0: never */
    bool said;                  /* `handler_down` was logged */
    once_log_throttle throttle; /* kept when it works again: a handler that comes and goes must not fill the log */
    /* held up (core/gate.h): */
    bool held, held_said; /* it is; that was logged */
    once_gate_hold held_why;
    int64_t held_since_ms, held_wall_ms; /* since when, by the machine's clock and by the wall clock */
    int64_t next_ms, next_wall_ms;       /* the next probe, the same */
    uint32_t probes;                     /* that have ended */
    once_log_throttle held_throttle;
} once_handler_state;

/* What a run reads from and writes to the store before its first and after its last message (run_session.c). */
typedef struct once_run_session {
    once_worker worker;     /* its record in the store */
    once_gone gone;         /* workers whose process no longer exists */
    bool unclean;           /* the last run did not end cleanly */
    once_store_facts facts; /* where the source keeps its cursor */
    once_stats stats;       /* at the end */
    once_store_time time;   /* at the start */
} once_run_session;

/* What a run leaves unfinished (run_end.c). */
typedef struct once_run_ending {
    uint64_t lost;      /* messages read, perhaps not settled, that the source cannot deliver again */
    uint64_t unsettled; /* effects started whose outcome was not recorded (once_machine_unsettled) */
    uint64_t open;      /* messages read and not settled, that the source delivers again */
    bool clean;         /* it ended by its own decision: the next run needs no special care */
} once_run_ending;

typedef enum once_run_join {
    ONCE_JOIN_OPEN,  /* nobody has begun to join it */
    ONCE_JOIN_BEGUN, /* a thread is joining it; until that has finished, the run cannot be started again */
    ONCE_JOIN_OVER   /* joined; or it could not begin, so that there is nothing to join */
} once_run_join;

struct once_run {
    once_pipeline *pipeline;
    _Atomic pid_t pid; /* of the process that started it, because threads do not survive a fork; 0: never started */

    pthread_mutex_t lock; /* of the machine, and of everything down to the line below */
    pthread_cond_t ended; /* state became ENDED */
    once_run_state state;
    once_run_join join;
    once_machine *machine; /* not NULL: WORKING or DRAINING, and `source` is set too */
    once_source *source;
    bool stop_seen;           /* the machine was told to stop */
    bool snapshot_wanted;     /* somebody asked for a snapshot, so find out what the run waits for */
    once_waiting_for waiting; /* as the store's thread found it last */
    size_t stuck_said;        /* paused streams when that was logged last */
    int64_t stuck_look_ms;    /* when to look for them again */
    once_fetch_pause fetch_pause;
    once_paused paused; /* handlers that are held up, or were when the last run ended */
    int64_t begun_ns;   /* when the threads began; 0: not yet */
    /* from the end of the run until the next start: */
    once_timings timings;
    int64_t left; /* lag; -1: not known */
    once_summary summary;
    int status;
    once_error error;
    /* of the threads: */
    pthread_cond_t machine_ended;
    once_run_thread threads[ONCE_RUN_THREADS];
    unsigned wake_threads;        /* those that are woken when the lock is free, as bits ... */
    bool wake_runner;             /* ... and the effects' thread */
    once_run_failure seeks;       /* the store's thread carries them out, but it is the source that fails */
    once_handler_state *handlers; /* one for each of spec->handlers */
    /* --- the lock ends here; the rest belongs to the thread that starts the run, then to the run's own thread --- */
    bool has_thread; /* `thread` is to be joined; read and written under the lock */
    pthread_t thread, effects;
    once_run_options options;
    once_parts parts;
    once_run_session session;
    once_executor executor; /* of the store's thread while that runs */
    bool has_store_lock;    /* the store's thread holds it */
};

/* Made with its pipeline, and never moved. NULL: out of memory. */
once_run *once__run_new(once_pipeline *pipeline);
/* Stops and joins it if it was started and not joined, then frees it. NULL is fine. False: it was started before a
 * fork, and this process can free nothing of it. */
bool once__run_release(once_run *run);

/* The machine's clock: leases and deliveries end while this system is suspended. */
static inline int64_t once__run_now_ms(const once_run *r) { return once_env_boot_ms(r->pipeline->env); }

/* run_threads.c: starts the threads, and returns when the machine has ended and all are joined. */
int once__run_threads(once_run *run, once_error *err);

/* run_log.c: logs failures. @locks: lock */
void once__run_report(once_run_thread *w, const once_action *done);
void once__run_report_effects(once_run *run, once_item *const *items, size_t n);
/* The end of such an action may give other threads work. Actions inside a transaction do not. */
bool once__run_concerns_others(once_action_kind kind);

/* paused.c: logs which handlers are held up. @locks: lock */
void once__run_report_held(once_run *run);

/* run_streams.c: the streams of the source, by name. @locks: lock, except for stream_name and report_release */
#define ONCE_STREAM_NAME 200
void once__stream_name(once_source *source, uint32_t stream, char out[ONCE_STREAM_NAME]);
/* The sum of the lags that are known, -1 if none is; *n streams, of which *paused are paused. */
int64_t once__run_left(once_run *run, uint64_t *n, uint64_t *paused);
void once__run_report_news(once_run *run, const once_action *done);
void once__run_report_release(const char *name, int status);
void once__run_report_stuck(once_run *run);

/* run_session.c */
int once__run_begins(once_run *run, once_error *err);
int once__run_ends(once_run *run, once_error *err);

/* run_end.c */
once_run_ending once__run_ending(const once_machine *machine, const once_source *source);
/* The status for the caller of a run that ended with `rc`, with `why` in words: what was lost, what is delivered
 * again. */
int once__run_conclude(const once_pipeline *pipeline, const once_run_ending *end, int rc, once_summary *summary,
                       once_error *why);

#endif
