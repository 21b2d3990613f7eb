#include "runtime/fair_lock.h"

#include <assert.h>

#include "base/banned.h"

bool once_fair_lock_init(once_fair_lock *turn)
{
    *turn = (once_fair_lock){0};
    if (pthread_mutex_init(&turn->lock, NULL) != 0) return false;
    if (pthread_cond_init(&turn->news, NULL) == 0) return true;
    pthread_mutex_destroy(&turn->lock);
    return false;
}

void once_fair_lock_release(once_fair_lock *turn)
{
    assert(!turn->held && turn->next == turn->now);
    pthread_cond_destroy(&turn->news);
    pthread_mutex_destroy(&turn->lock);
}

bool once_fair_lock_enter(once_fair_lock *turn)
{
    pthread_mutex_lock(&turn->lock);
    const bool again = turn->held && pthread_equal(turn->by, pthread_self());
    if (!again) {
        const uint64_t mine = turn->next++;
        while (turn->now != mine) pthread_cond_wait(&turn->news, &turn->lock);
        assert(!turn->held);
        turn->held = true;
        turn->by = pthread_self();
    }
    pthread_mutex_unlock(&turn->lock);
    return !again;
}

void once_fair_lock_take(once_fair_lock *turn)
{
    const bool entered = once_fair_lock_enter(turn);
    assert(entered);
    (void)entered;
}

bool once_fair_lock_is_mine(once_fair_lock *turn)
{
    pthread_mutex_lock(&turn->lock);
    const bool mine = turn->held && pthread_equal(turn->by, pthread_self());
    pthread_mutex_unlock(&turn->lock);
    return mine;
}

void once_fair_lock_leave(once_fair_lock *turn)
{
    pthread_mutex_lock(&turn->lock);
    assert(turn->held && pthread_equal(turn->by, pthread_self()));
    turn->held = false;
    if (++turn->now != turn->next) pthread_cond_broadcast(&turn->news);
    pthread_mutex_unlock(&turn->lock);
}
