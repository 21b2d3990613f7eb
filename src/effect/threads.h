/* A driver whose effects run in threads, as many as it has slots: C functions of the program (callback.c), and SQL
 * in another database (sql_driver.c). A thread cannot be killed: an effect is asked to end, and the outcome that it
 * returns counts. */
#ifndef ONCE_EFFECT_THREADS_H
#define ONCE_EFFECT_THREADS_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/call.h"
#include "effect/driver.h"

typedef struct once_threads once_threads;

/* One effect. */
typedef struct once_job {
    once_item *item;
    atomic_bool killed;   /* it should end: its lease is lost, or the runner closes */
    once_outcome outcome; /* the four that `run` fills; the others are there already */
    once_reply *reply;    /* of the thread that it is in */
    bool started;         /* true, unless `run` clears it */
    int run_failure;      /* as in the item */
    uint32_t thread;      /* that it is in; 0, 1... */

    /* Of threads.c. */
    atomic_bool running; /* its thread runs it; unless `groups`, changed with the lock */
    bool ended;          /* with the lock; for the kind's `end`. False at first */
    int64_t deadline_ms; /* ONCE_NEVER: it has passed, and `end` was called */
    struct once_job *next, *next_of_all;
} once_job;

typedef struct once_threads_ops {
    const char *what; /* "the callback", for reasons */
    /* A thread takes several effects at a time while they are short. `end` may be called for one that ends or begins
     * just now. */
    bool groups;
    void (*run)(once_threads *threads, once_job *job); /* in the thread; a question (decision.asks), too */
    /* On the loop, with the lock, while the job is in its thread: it is past its deadline, or was killed. Does not
     * wait. Returns when to be called again should it still run; ONCE_NEVER: not. */
    int64_t (*end)(once_threads *threads, once_job *job, int64_t now_ms);
    void (*close)(
        once_threads *threads); /* when all threads have ended; frees it. May be called on one that was half opened */
} once_threads_ops;

typedef struct once_job_queue {
    once_job *first, *last;
} once_job_queue;

struct once_threads { /* first member of each kind */
    once_effect_driver driver;
    const once_threads_ops *ops;
    once_watch done_watch;
    struct once_thread *list; /* room for as many as there are slots */

    /* The loop's. */
    once_job *spare, *all;
    once_job_queue starting; /* they are handed over together: the lock and the clock are needed once for all */
    uint32_t n_starting;
    int64_t look_at_ms;   /* no job is past its deadline before this time */
    int64_t rescue_at_ms; /* `groups`: when to look whether jobs wait behind one that takes long */
    uint64_t taken_then;  /* `taken` at the last such look */

    pthread_mutex_t lock; /* protects what follows, and what a driver puts behind this struct */
    once_job_queue queued, done;
    uint32_t n_queued, n_done;
    uint64_t taken;           /* jobs that threads took from `queued`, in all */
    int64_t each_ns;          /* `groups`: how long an effect takes, lately */
    bool told;                /* the loop was told of them */
    uint32_t n;               /* threads; they are made when they are needed */
    struct once_thread *idle; /* those that wait for a job; the last one that began to is the first */
    bool calling;             /* one was called, and has not come yet */
    bool ending;
};

/* Initialises a struct that the driver has allocated with zeros. After a failure it is closed. */
int once_threads_open(once_threads *threads, const once_threads_ops *ops, once_runner *runner,
                      const once_handler_spec *handler, once_error *err);

#endif
