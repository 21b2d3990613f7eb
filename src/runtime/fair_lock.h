/* A lock that is granted in the order of asking, so that a thread that asks again and again cannot starve others. The
 * transactions of a run and the operator verbs that use its store take turns with it. */
#ifndef ONCE_RUNTIME_FAIR_LOCK_H
#define ONCE_RUNTIME_FAIR_LOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct once_fair_lock {
    pthread_mutex_t lock;   /* of the fields below; held for moments only */
    pthread_cond_t changed; /* `now` changed */
    uint64_t next, now;     /* the ticket that the next thread gets, and the ticket that is served */
    bool held;
    pthread_t by; /* the holder, when held */
} once_fair_lock;

bool once_fair_lock_init(once_fair_lock *lock);    /* false: out of memory */
void once_fair_lock_release(once_fair_lock *lock); /* frees it; nobody holds it or waits for it */
bool once_fair_lock_enter(once_fair_lock *lock);   /* false: this thread holds it already, and would wait for itself */
void once_fair_lock_take(once_fair_lock *lock);    /* the same for a thread that cannot hold it */
void once_fair_lock_leave(once_fair_lock *lock);
bool once_fair_lock_is_mine(once_fair_lock *lock); /* this thread holds it */

#endif
