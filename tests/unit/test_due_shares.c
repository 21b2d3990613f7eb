/* How due entries are shared out among handlers, some of which have no free slot. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/due_shares.h"

enum { SLOW, FAST, TWIN, INSIDE, HANDLERS, MOST = 100 };

typedef struct fixture {
    once_handler_spec handlers[HANDLERS];
    once_spec spec;
    once_flight flight;
    once_gates gates;
    once_due_shares shares;
} fixture;

static void begin(fixture *f, size_t n_handlers)
{
    const unsigned outside = ONCE_EFFECT_RUNS | ONCE_EFFECT_OUTSIDE | ONCE_EFFECT_ISOLATED;
    *f = (fixture){.handlers = {[SLOW] = {.operation = ONCE_BYTES("slow"), .bits = outside, .slots = 2},
                                [FAST] = {.operation = ONCE_BYTES("fast"), .bits = outside, .slots = 4},
                                [TWIN] = {.operation = ONCE_BYTES("fast"), .bits = outside, .slots = 3},
                                [INSIDE] = {.operation = ONCE_BYTES("sql"), .bits = ONCE_EFFECT_RUNS}}};
    f->spec = (once_spec){.handlers = f->handlers, .n_handlers = n_handlers};
    assert_true(once_flight_init(&f->flight, &f->spec));
    assert_true(once_gates_init(&f->gates, &f->spec));
    assert_true(once_due_shares_init(&f->shares, &f->spec));
}

static void end(fixture *f)
{
    once_due_shares_release(&f->shares);
    once_gates_release(&f->gates);
    once_flight_release(&f->flight);
}

static void use(fixture *f, int handler, int n)
{
    const once_item item = {.handler = &f->handlers[handler]};
    for (; n > 0; n--) once_flight_reserve(&f->flight, &item);
    for (; n < 0; n++) once_flight_unreserve(&f->flight, &item);
}

static size_t room(const fixture *f, bool all)
{
    const once_room now = {&f->flight, &f->gates, 0};
    return once_due_shares_room(&f->shares, &now, all, MOST);
}

static size_t any(const fixture *f)
{
    const once_room now = {&f->flight, &f->gates, 0};
    return once_due_shares_any(&now);
}

static once_due_share *filter(fixture *f, bool all, int64_t now_ms)
{
    const once_room now = {&f->flight, &f->gates, now_ms};
    return once_due_shares_filter(&f->shares, &now, all, MOST)->shares;
}

static void one_handler_needs_no_filter(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 1);
    assert_int_equal(f.shares.filter.n, 0);
    assert_int_equal(any(&f), 2);
    use(&f, SLOW, 2);
    assert_int_equal(any(&f), 0);
    end(&f);
}

static void a_share_without_room_is_not_searched(void **state)
{
    (void)state;
    fixture f;
    begin(&f, HANDLERS);
    use(&f, TWIN, 3); /* which shares its operation with a handler that has room */
    (void)filter(&f, true, 0);
    assert_true(once_due_shares_searched(&f.shares, f.handlers[SLOW].operation));
    assert_true(once_due_shares_searched(&f.shares, f.handlers[INSIDE].operation));
    assert_false(once_due_shares_searched(&f.shares, f.handlers[FAST].operation));
    end(&f);
}

static void without_a_filter_no_more_is_taken_than_every_handler_can_start(void **state)
{
    (void)state;
    fixture f;
    begin(&f, HANDLERS);
    assert_int_equal(any(&f), 2);
    use(&f, FAST, 3);
    assert_int_equal(any(&f), 1);
    use(&f, FAST, 1);
    assert_int_equal(any(&f), 0);
    use(&f, FAST, -4);
    f.handlers[FAST].slots = 100; /* it would get two at a time */
    assert_int_equal(any(&f), 0);
    f.handlers[FAST].slots = 12; /* the least of the others has less than a fourth of that */
    assert_int_equal(any(&f), 0);
    f.handlers[FAST].slots = 8;
    assert_int_equal(any(&f), 2);
    end(&f);
}

static void handlers_of_one_operation_have_the_room_of_the_one_that_has_least(void **state)
{
    (void)state;
    fixture f;
    begin(&f, HANDLERS);
    assert_int_equal(f.shares.filter.n, 4);
    assert_int_equal(f.shares.filter.read_max, 1024); /* as the documents say */
    const once_due_share *shares = filter(&f, true, 0);
    assert_int_equal(shares[0].room, 2);
    assert_int_equal(shares[1].room, 3);
    assert_int_equal(shares[2].room, MOST); /* the one inside */
    assert_true(shares[3].others);
    assert_int_equal(shares[3].room, MOST);
    use(&f, FAST, 3);
    assert_int_equal(filter(&f, true, 0)[1].room, 1);
    use(&f, TWIN, 3);
    assert_int_equal(filter(&f, true, 0)[1].room, 0);
    end(&f);
}

/* Where all are outside, nobody looks for operations without a handler alone. */
static void others_have_room_when_a_handler_is_inside(void **state)
{
    (void)state;
    fixture f;
    begin(&f, HANDLERS);
    use(&f, SLOW, 2);
    use(&f, TWIN, 3);
    assert_int_equal(room(&f, true), MOST);
    end(&f);
    begin(&f, TWIN);
    use(&f, SLOW, 2);
    assert_int_equal(filter(&f, true, 0)[2].room, MOST);
    use(&f, FAST, 4);
    assert_int_equal(room(&f, true), 0);
    assert_int_equal(filter(&f, true, 0)[2].room, 0);
    end(&f);
}

/* A handler inside that is held up is left out, too; the probe is one. */
static void who_is_held_up_has_room_for_a_probe_or_none(void **state)
{
    (void)state;
    fixture f;
    begin(&f, HANDLERS);
    once_gate *gate = &f.gates.at[INSIDE];
    gate->hold = ONCE_GATE_PAUSED;
    gate->at_ms = 10;
    assert_int_equal(any(&f), 0);
    assert_int_equal(filter(&f, true, 9)[2].room, 0);
    assert_int_equal(filter(&f, true, 9)[0].room, 2);
    assert_int_equal(filter(&f, true, 10)[2].room, 1);
    gate->probe = &f;
    assert_int_equal(filter(&f, true, 10)[2].room, 0);
    end(&f);
    begin(&f, HANDLERS);
    f.gates.at[FAST].hold = ONCE_GATE_PAUSED;
    f.gates.at[FAST].at_ms = 10;
    assert_int_equal(filter(&f, true, 9)[1].room, 0); /* its twin has its operation */
    assert_int_equal(filter(&f, true, 10)[1].room, 1);
    end(&f);
}

static void who_was_left_out_is_wanted_until_it_was_searched(void **state)
{
    (void)state;
    fixture f;
    begin(&f, TWIN);
    assert_int_equal(room(&f, false), 0); /* nothing was looked for yet */
    use(&f, SLOW, 2);
    once_due_share *shares = filter(&f, true, 0);
    shares[1].more = true; /* as the store would say */
    once_due_shares_took(&f.shares);
    assert_int_equal(room(&f, false), 4);
    shares = filter(&f, false, 0); /* nothing is left for it this time */
    assert_int_equal(shares[2].room, 0);
    once_due_shares_took(&f.shares);
    assert_int_equal(room(&f, false), 0);
    use(&f, SLOW, -1);
    assert_int_equal(room(&f, false), 1);
    assert_int_equal(filter(&f, false, 0)[1].room, 0);
    once_due_shares_took(&f.shares);
    assert_int_equal(room(&f, false), 0);
    once_due_shares_took_any(&f.shares, 1);
    assert_int_equal(room(&f, false), MOST);
    once_due_shares_took_any(&f.shares, 0);
    assert_int_equal(room(&f, false), 0);
    end(&f);
}

static void searches_begin_at_the_front_again_the_rarer_the_more_they_read(void **state)
{
    (void)state;
    fixture f;
    begin(&f, TWIN);
    for (int i = 0; i < 3; i++) filter(&f, true, 1000)[i].from.due_ms = 7;
    for (int i = 0; i < 3; i++) assert_int_equal(filter(&f, true, 10999)[i].from.due_ms, 7);
    f.shares.filter.read = 1000000; /* a backlog of that many was passed over */
    for (int i = 0; i < 3; i++) assert_int_equal(filter(&f, true, 11000)[i].from.due_ms, 0);
    f.shares.filter.shares[0].from.due_ms = 8;
    assert_int_equal(filter(&f, true, 110999)[0].from.due_ms, 8);
    assert_int_equal(filter(&f, true, 111000)[0].from.due_ms, 0);
    f.shares.filter.shares[0].from.due_ms = 9; /* what was read before that does not count again */
    assert_int_equal(filter(&f, true, 120999)[0].from.due_ms, 9);
    assert_int_equal(filter(&f, true, 121000)[0].from.due_ms, 0);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_share_without_room_is_not_searched),
        cmocka_unit_test(one_handler_needs_no_filter),
        cmocka_unit_test(without_a_filter_no_more_is_taken_than_every_handler_can_start),
        cmocka_unit_test(handlers_of_one_operation_have_the_room_of_the_one_that_has_least),
        cmocka_unit_test(others_have_room_when_a_handler_is_inside),
        cmocka_unit_test(who_is_held_up_has_room_for_a_probe_or_none),
        cmocka_unit_test(who_was_left_out_is_wanted_until_it_was_searched),
        cmocka_unit_test(searches_begin_at_the_front_again_the_rarer_the_more_they_read),
    };
    return cmocka_run_group_tests_name("due_shares", tests, NULL, NULL);
}
