/* Threads get their turn in the order in which they ask; runs under ThreadSanitizer too (pthread). */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/fair_lock.h"

enum { ROUNDS = 2000, THREADS = 4 };

typedef struct world {
    once_fair_lock turn;
    uint64_t order[THREADS]; /* who had it, one after the other */
    size_t n;
    uint64_t sum; /* by whoever has the turn */
} world;

typedef struct asker {
    world *w;
    uint64_t name;
    pthread_t thread;
} asker;

static void *ask_once(void *arg)
{
    asker *a = arg;
    assert_true(once_fair_lock_enter(&a->w->turn));
    a->w->order[a->w->n++] = a->name;
    once_fair_lock_leave(&a->w->turn);
    return NULL;
}

static void wait_until_asked(world *w, uint64_t n)
{
    for (;;) {
        pthread_mutex_lock(&w->turn.lock);
        const bool asked = w->turn.next - w->turn.now == n;
        pthread_mutex_unlock(&w->turn.lock);
        if (asked) return;
        sched_yield();
    }
}

static void it_is_given_in_the_order_of_asking(void **state)
{
    (void)state;
    world w = {0};
    asker askers[THREADS];
    assert_true(once_fair_lock_init(&w.turn));
    assert_true(once_fair_lock_enter(&w.turn));
    for (size_t i = 0; i < THREADS; i++) {
        askers[i] = (asker){.w = &w, .name = i};
        assert_int_equal(pthread_create(&askers[i].thread, NULL, ask_once, &askers[i]), 0);
        wait_until_asked(&w, i + 2); /* and who has it */
    }
    once_fair_lock_leave(&w.turn);
    assert_true(once_fair_lock_enter(&w.turn)); /* behind all of them, although this one asks again at once */
    assert_int_equal(w.n, THREADS);
    for (size_t i = 0; i < THREADS; i++) assert_int_equal(w.order[i], i);
    once_fair_lock_leave(&w.turn);
    for (size_t i = 0; i < THREADS; i++) pthread_join(askers[i].thread, NULL);
    once_fair_lock_release(&w.turn);
}

static void who_has_it_does_not_wait_for_itself(void **state)
{
    (void)state;
    once_fair_lock turn;
    assert_true(once_fair_lock_init(&turn));
    assert_false(once_fair_lock_is_mine(&turn));
    assert_true(once_fair_lock_enter(&turn));
    assert_true(once_fair_lock_is_mine(&turn));
    assert_false(once_fair_lock_enter(&turn));
    once_fair_lock_leave(&turn);
    assert_false(once_fair_lock_is_mine(&turn));
    assert_true(once_fair_lock_enter(&turn));
    once_fair_lock_leave(&turn);
    once_fair_lock_release(&turn);
}

static void *count(void *arg)
{
    asker *a = arg;
    for (int i = 0; i < ROUNDS; i++) {
        assert_true(once_fair_lock_enter(&a->w->turn));
        a->w->sum++;
        once_fair_lock_leave(&a->w->turn);
    }
    return NULL;
}

static void one_has_it_at_a_time(void **state)
{
    (void)state;
    world w = {0};
    asker askers[THREADS];
    assert_true(once_fair_lock_init(&w.turn));
    for (size_t i = 0; i < THREADS; i++) {
        askers[i] = (asker){.w = &w, .name = i};
        assert_int_equal(pthread_create(&askers[i].thread, NULL, count, &askers[i]), 0);
    }
    for (size_t i = 0; i < THREADS; i++) pthread_join(askers[i].thread, NULL);
    assert_int_equal(w.sum, ROUNDS * THREADS);
    once_fair_lock_release(&w.turn);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_given_in_the_order_of_asking),
        cmocka_unit_test(who_has_it_does_not_wait_for_itself),
        cmocka_unit_test(one_has_it_at_a_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
