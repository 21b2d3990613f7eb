/* A lock that is given in the order in which it was asked for, so that nobody who asks again and again keeps others
 * out: the transactions of a run and the operators that use its store take turns with it. */
#ifndef ONCE_RUNTIME_TURN_H
#define ONCE_RUNTIME_TURN_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct once_turn {
    pthread_mutex_t lock;
    pthread_cond_t news;
    uint64_t next, now; /* the number that the next one gets, and the one whose turn it is */
    bool held;
    pthread_t by;
} once_turn;

bool once_turn_init(once_turn *turn); /* false: out of memory */
void once_turn_release(once_turn *turn);
bool once_turn_enter(once_turn *turn); /* false: this thread has it already, and would wait for itself */
void once_turn_take(once_turn *turn);  /* for a thread that cannot have it */
void once_turn_leave(once_turn *turn);
bool once_turn_is_mine(once_turn *turn); /* this thread has it */

#endif
