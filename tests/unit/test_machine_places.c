/* The machine's places and invariants: what is refused, and what is found to be broken. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "machine_fixture.h"

/* The function ends the process before it changes anything. */
static bool is_refused(once_item_place from, once_item_place to)
{
    (void)fflush(stdout);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        once_item item = {.place = from};
        (void)close(STDERR_FILENO);
        (void)signal(SIGABRT, SIG_DFL);
        once__machine_move(NULL, &item, to);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void no_item_moves_where_it_may_not(void **state)
{
    (void)state;
    static const once_item_place not_after[][2] = {
        {ONCE_AT_OVER, ONCE_AT_READY},   {ONCE_AT_OVER, ONCE_AT_WORK},      {ONCE_AT_OVER, ONCE_AT_OVER},
        {ONCE_AT_READY, ONCE_AT_FLIGHT}, {ONCE_AT_READY, ONCE_AT_READY},    {ONCE_AT_PARKED, ONCE_AT_WORK},
        {ONCE_AT_WORK, ONCE_AT_PARKED},  {ONCE_AT_WORK, ONCE_AT_RETURNED},  {ONCE_AT_FLIGHT, ONCE_AT_READY},
        {ONCE_AT_FLIGHT, ONCE_AT_WORK},  {ONCE_AT_RETURNED, ONCE_AT_READY}, {ONCE_AT_RETURNED, ONCE_AT_FLIGHT},
        {ONCE_AT_WORK, ONCE_AT_NEW},     {ONCE_AT_NEW, ONCE_AT_PARKED},
    };
    for (size_t i = 0; i < sizeof not_after / sizeof *not_after; i++)
        assert_true(is_refused(not_after[i][0], not_after[i][1]));
}

static void assert_broken(const fixture *f, const char *number)
{
    const char *wrong = once__machine_check(f->machine);
    assert_non_null(wrong);
    char begin[8];
    (void)snprintf(begin, sizeof begin, "%s: ", number);
    assert_memory_equal(wrong, begin, strlen(begin));
}

/* Something is changed, an invariant with that number is broken, and it is changed back. */
#define BREAK(number, field, value)                                                                                    \
    do {                                                                                                               \
        __typeof__(field) kept = (field);                                                                              \
        (field) = (value);                                                                                             \
        assert_broken(f, number);                                                                                      \
        (field) = kept;                                                                                                \
        assert_null(once__machine_check(f->machine));                                                                  \
    } while (0)

static void each_invariant_is_found_broken(void **state)
{
    fixture *f = open_pipe(state, true);
    once_machine *machine = f->machine;
    once_item *items[4];
    fetch(f, 4, 9, items);
    send_out(f, 1); /* the others wait for their lane */
    asks_nothing(f);
    assert_places(f, 0, 3, 0, 1, 0);
    BREAK("1", machine->at[ONCE_AT_PARKED], (size_t)2);
    BREAK("1", items[0]->place, ONCE_AT_WORK);
    BREAK("2", items[0]->batch->open, (size_t)3);
    BREAK("3", items[1]->tag, UINT64_C(99));
    BREAK("3", machine->streams.at[0]->mark.upto, UINT64_C(1));
    BREAK("3", machine->streams.at[0]->acked, UINT64_C(1));
    BREAK("4", machine->outside.flight.used[0], (uint32_t)0);
    BREAK("4", f->handler.slots, (uint32_t)0);
    BREAK("5", items[1]->waits_for, 0u);
    BREAK("6", machine->work.in_tx, true);
    BREAK("7", machine->ready.bytes, (size_t)1);
    BREAK("7", machine->batches.held_bytes, (size_t)1);
    BREAK("8", items[0]->returned, true);
    BREAK("8", items[0]->given, false);
    BREAK("9", machine->streams.at[0]->mark.next, (uint64_t)(OUTSTANDING * BATCH + 2));
    BREAK("10", machine->end.ended, true);
    finishes(f, items[0], ONCE_DONE);
    BREAK("8", items[0]->returned, false);
    BREAK("1", machine->outside.returned, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_item_moves_where_it_may_not),
        TEST(each_invariant_is_found_broken),
    };
    return cmocka_run_group_tests_name("machine_places", tests, NULL, NULL);
}
