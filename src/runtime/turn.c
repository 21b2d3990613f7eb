#include "runtime/turn.h"

#include <assert.h>

#include "base/banned.h"

bool once_turn_init(once_turn *turn)
{
    *turn = (once_turn){0};
    if (pthread_mutex_init(&turn->lock, NULL) != 0) return false;
    if (pthread_cond_init(&turn->news, NULL) == 0) return true;
    pthread_mutex_destroy(&turn->lock);
    return false;
}

void once_turn_release(once_turn *turn)
{
    assert(!turn->held && turn->next == turn->now);
    pthread_cond_destroy(&turn->news);
    pthread_mutex_destroy(&turn->lock);
}

bool once_turn_enter(once_turn *turn)
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

void once_turn_take(once_turn *turn)
{
    const bool entered = once_turn_enter(turn);
    assert(entered);
    (void)entered;
}

bool once_turn_is_mine(once_turn *turn)
{
    pthread_mutex_lock(&turn->lock);
    const bool mine = turn->held && pthread_equal(turn->by, pthread_self());
    pthread_mutex_unlock(&turn->lock);
    return mine;
}

void once_turn_leave(once_turn *turn)
{
    pthread_mutex_lock(&turn->lock);
    assert(turn->held && pthread_equal(turn->by, pthread_self()));
    turn->held = false;
    if (++turn->now != turn->next) pthread_cond_broadcast(&turn->news);
    pthread_mutex_unlock(&turn->lock);
}
