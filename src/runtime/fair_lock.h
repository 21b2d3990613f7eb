/* A lock that is given in the order in which it was asked for, so that nobody who asks again and again keeps others
 * out: the transactions of a run and the operators that use its store take turns with it. */
#ifndef ONCE_RUNTIME_FAIR_LOCK_H
#define ONCE_RUNTIME_FAIR_LOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct once_fair_lock {
    pthread_mutex_t lock;
    pthread_cond_t news;
    uint64_t next, now; /* the number that the next one gets, and the one whose turn it is */
    bool held;
    pthread_t by;
} once_fair_lock;

bool once_fair_lock_init(once_fair_lock *turn); /* false: out of memory */
void once_fair_lock_release(once_fair_lock *turn);
bool once_fair_lock_enter(once_fair_lock *turn); /* false: this thread has it already, and would wait for itself */
void once_fair_lock_take(once_fair_lock *turn);  /* for a thread that cannot have it */
void once_fair_lock_leave(once_fair_lock *turn);
bool once_fair_lock_is_mine(once_fair_lock *turn); /* this thread has it */

#endif
