/* A run of a pipeline, as an object: started, looked at, stopped and joined from any thread.
 *
 * Whoever starts it opens the parts (store, effects, hands, source) and tells the store that a run begins. From then on
 * a thread of its own looks after it, starts the threads, and when these have ended, tells the store and closes the
 * parts; so a run ends whether or not anybody waits for it. Joining it is waiting for that thread.
 *
 * There is one for each pipeline, made with it; it may be started again when it was joined. */
#ifndef ONCE_RUNTIME_RUN_H
#define ONCE_RUNTIME_RUN_H

#include <pthread.h>
#include <sys/types.h>

#include "core/machine.h"
#include "runtime/executor.h"
#include "runtime/runtime.h"

/* The threads of a run, in the order in which they begin: nothing is fetched before all are there. */
enum { ONCE_THREAD_STORE, ONCE_THREAD_ACKS, ONCE_THREAD_SOURCE, ONCE_RUN_THREADS };

/* What is logged of actions that fail. */
typedef struct once_run_failure {
    const char *event;          /* when one does; NULL: once__store_event says it ... */
    const char *works;          /* ... and when that is over */
    once_log_throttle throttle; /* of failures in a row */
    bool warned;                /* of these */
} once_run_failure;

/* A thread that carries out actions of the machine. */
typedef struct once_run_thread {
    once_run *r;
    pthread_t thread;
    pthread_cond_t news; /* there may be something to do for this one; with `lock` */
    once_action *(*next)(once_machine *machine, int64_t now_ms);
    void (*execute)(once_run *r, once_action *action);
    once_run_failure failure;
} once_run_thread;

/* What comes of a handler's effects. */
typedef struct once_handler_state {
    unsigned refused;           /* in a row: it gave them back, and will for as long as what it needs is away */
    int64_t worked_ms;          /* when it last did anything else; 0: never */
    bool said;                  /* that it is down */
    once_log_throttle throttle; /* kept when it works: one that comes and goes does not fill the log */
} once_handler_state;

/* What the store has to know before the first message and after the last (run_session.c). */
typedef struct once_run_session {
    once_worker worker;
    once_gone gone;
    bool unclean;           /* the last run did not end cleanly */
    once_store_facts facts; /* where the source keeps what it needs */
    once_stats stats;
    once_store_time time;
} once_run_session;

/* How a run ended that did not end well (run_end.c). */
typedef struct once_run_ending {
    uint64_t lost;      /* messages that were read and are not known to be settled, and that the source does not deliver
                           again */
    uint64_t unsettled; /* once_machine_unsettled */
    uint64_t open;      /* messages that were read, are not settled, and that the source delivers again */
    bool clean;         /* by its own decision: the next run has nothing to be careful about */
} once_run_ending;

typedef enum once_run_join {
    ONCE_JOIN_OPEN,  /* nobody has begun to join it */
    ONCE_JOIN_BEGUN, /* somebody waits for its end, and then for its thread: until that is gone, it is not started */
    ONCE_JOIN_OVER   /* or there was nothing to join, because it could not begin */
} once_run_join;

struct once_run {
    once_pipeline *pipeline;
    _Atomic pid_t pid;    /* of the process that started it: threads are not where a fork leads; 0: nobody did */
    pthread_mutex_t lock; /* of the machine, and of everything down to the next line */
    pthread_cond_t ended; /* the state is ENDED */
    once_run_state state;
    once_run_join join;
    once_machine *machine; /* NULL: not yet, or not any more */
    once_source *source;
    bool stop_seen;
    bool asked;               /* for a snapshot, so that it is worth knowing for whom the run waits */
    once_waiting_for waiting; /* as the store's worker found it last */
    size_t stuck_said;        /* streams that stand still */
    int64_t stuck_look_ms;    /* when they are looked for again */
    once_fetch_pause fetch_pause;
    int64_t begun_ns;     /* when the threads began; 0: not yet */
    once_timings timings; /* at the end */
    int64_t left;         /* the same */
    once_summary summary; /* the same */
    int status;           /* the same */
    once_error error;     /* the same */
    /* --- of the threads, under the same lock --- */
    pthread_cond_t over; /* the machine has ended */
    once_run_thread threads[ONCE_RUN_THREADS];
    once_run_failure seeks;             /* the store's worker does them, and the source fails */
    once_handler_state *handlers;       /* as spec->handlers */
    once_log_throttle effects_throttle; /* of times in a row that effects could not be started */
    /* --- of whoever starts it, then of its own thread --- */
    bool has_thread; /* to be joined */
    pthread_t thread, effects;
    once_run_options options;
    once_parts parts;
    once_run_session session;
    once_executor executor; /* of the store's worker while that runs */
    bool has_store_lock;    /* that worker has it */
};

/* Made with its pipeline, and never moved. NULL: out of memory. */
once_run *once__run_new(once_pipeline *pipeline);
/* Of one that was started and not joined, stops and joins it. NULL is fine. False: it was started before a fork, and
 * nothing of it can be freed in this process. */
bool once__run_release(once_run *run);

static inline int64_t once__run_now_ms(const once_run *r) { return once_env_mono_ns(r->pipeline->env) / 1000000; }

/* run_threads.c: the threads, until the machine has ended. */
int once__run_threads(once_run *run, once_error *err);

/* run_log.c: what is logged of failures. @locks: lock */
void once__run_report(once_run_thread *w, const once_action *done);
void once__run_report_effects(once_run *run, once_item *const *items, size_t n);
/* Whether an event can mean work for another worker: inside a transaction it cannot. */
bool once__run_concerns_others(once_action_kind kind);

/* run_streams.c: the streams by their names. @locks: lock, but for names and releases */
#define ONCE_STREAM_NAME 200
void once__stream_name(once_source *source, uint32_t stream, char out[ONCE_STREAM_NAME]);
int64_t once__run_left(once_run *run, uint64_t *n, uint64_t *paused);
void once__run_report_news(once_run *run, const once_action *done);
void once__run_report_release(const char *name, int status);
void once__run_report_stuck(once_run *run);

/* run_session.c */
int once__run_begins(once_run *run, once_error *err);
int once__run_ends(once_run *run, once_error *err);

/* run_end.c */
once_run_ending once__run_ending(const once_machine *machine, const once_source *source);
/* What to make of a run that ended with `rc`: the status for its caller, and `why` in words. */
int once__run_conclude(const once_pipeline *pipeline, const once_run_ending *end, int rc, once_summary *summary,
                       once_error *why);

#endif
