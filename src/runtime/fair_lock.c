#include "runtime/fair_lock.h"

#include <assert.h>

#include "base/banned.h"

bool once_fair_lock_init(once_fair_lock *lock)
{
    *lock = (once_fair_lock){0};
    if (pthread_mutex_init(&lock->lock, NULL) != 0) return false;
    if (pthread_cond_init(&lock->changed, NULL) == 0) return true;
    pthread_mutex_destroy(&lock->lock);
    return false;
}

void once_fair_lock_release(once_fair_lock *lock)
{
    assert(!lock->held && lock->next == lock->now);
    pthread_cond_destroy(&lock->changed);
    pthread_mutex_destroy(&lock->lock);
}

bool once_fair_lock_enter(once_fair_lock *lock)
{
    pthread_mutex_lock(&lock->lock);
    const bool again = lock->held && pthread_equal(lock->by, pthread_self());
    if (!again) {
        assert(lock->now <= lock->next);
        const uint64_t mine = lock->next++;
        while (lock->now != mine) pthread_cond_wait(&lock->changed, &lock->lock);
        assert(!lock->held);
        lock->held = true;
        lock->by = pthread_self();
    }
    pthread_mutex_unlock(&lock->lock);
    return !again;
}

void once_fair_lock_take(once_fair_lock *lock)
{
    const bool entered = once_fair_lock_enter(lock);
    assert(entered);
    (void)entered;
}

bool once_fair_lock_is_mine(once_fair_lock *lock)
{
    pthread_mutex_lock(&lock->lock);
    const bool mine = lock->held && pthread_equal(lock->by, pthread_self());
    pthread_mutex_unlock(&lock->lock);
    return mine;
}

void once_fair_lock_leave(once_fair_lock *lock)
{
    pthread_mutex_lock(&lock->lock);
    assert(lock->held && pthread_equal(lock->by, pthread_self()));
    lock->held = false;
    if (++lock->now != lock->next) pthread_cond_broadcast(&lock->changed);
    pthread_mutex_unlock(&lock->lock);
}
