/* Slots and leases of external effects in flight. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/flight.h"

#define LEASE 30000

typedef struct fixture {
    once_handler_spec handlers[3];
    once_spec spec;
    once_flight flight;
    once_item items[8];
    once_item *out[8];
} fixture;

static void begin(fixture *f)
{
    *f = (fixture){0};
    f->handlers[0] =
        (once_handler_spec){.bits = ONCE_EFFECT_RUNS | ONCE_EFFECT_OUTSIDE | ONCE_EFFECT_ISOLATED, .slots = 4};
    f->handlers[1] = (once_handler_spec){.bits = ONCE_EFFECT_RUNS};
    f->handlers[2] = (once_handler_spec){.bits = ONCE_EFFECT_RUNS | ONCE_EFFECT_OUTSIDE, .slots = 2};
    f->spec = (once_spec){.handlers = f->handlers, .n_handlers = 3};
    for (size_t i = 0; i < 8; i++) f->items[i] = (once_item){.handler = &f->handlers[0], .request.lease_ms = LEASE};
    assert_true(once_flight_init(&f->flight, &f->spec));
}

static void depart(fixture *f, size_t i, int64_t now_ms)
{
    once_flight_reserve(&f->flight, &f->items[i]);
    once_flight_add(&f->flight, &f->items[i], now_ms);
}

/* What the attempt before reported is not said of this one. */
static void an_item_departs_without_what_was_said_of_it(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    once_item *item = &f.items[0];
    item->given = item->told_to_end = item->lost = item->started = item->maybe_done = true;
    item->run_failure = ONCE_E_UNAVAILABLE;
    item->delay_ms = 5;
    depart(&f, 0, 17);
    assert_false(item->given || item->told_to_end || item->lost || item->started || item->maybe_done);
    assert_int_equal(item->run_failure, ONCE_OK);
    assert_int_equal(item->delay_ms, -1);
    assert_int_equal(item->claimed_at_ms, 17);
    once_flight_release(&f.flight);
}

static void slots_are_counted_by_handler(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    assert_int_equal(f.flight.slots, 6);
    depart(&f, 0, 0);
    depart(&f, 1, 0);
    depart(&f, 2, 0);
    assert_int_equal(once_flight_free(&f.flight, &f.handlers[0]), 1);
    assert_int_equal(once_flight_free(&f.flight, &f.handlers[2]), 2);
    once_flight_reserve(&f.flight, &f.items[3]); /* claimed in a transaction that is rolled back */
    once_flight_unreserve(&f.flight, &f.items[3]);
    once_flight_remove(&f.flight, &f.items[1]);
    assert_int_equal(once_flight_free(&f.flight, &f.handlers[0]), 1); /* not before it is settled */
    once_flight_unreserve(&f.flight, &f.items[1]);
    assert_int_equal(once_flight_free(&f.flight, &f.handlers[0]), 2);
    assert_int_equal(f.flight.n, 2);
    once_flight_release(&f.flight);
}

static void each_starts_once_and_in_order(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    for (size_t i = 0; i < 3; i++) depart(&f, i, 0);
    assert_int_equal(once_flight_starts(&f.flight, 10, f.out, 8), 3);
    for (size_t i = 0; i < 3; i++) assert_ptr_equal(f.out[i], &f.items[i]);
    assert_int_equal(once_flight_starts(&f.flight, 10, f.out, 8), 0);
    depart(&f, 3, 20);
    assert_int_equal(once_flight_starts(&f.flight, 20, f.out, 8), 1);
    assert_ptr_equal(f.out[0], &f.items[3]);
    once_flight_release(&f.flight);
}

static void of_many_the_oldest_start_first(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    for (size_t i = 0; i < 5; i++) depart(&f, i, 0);
    once_flight_lose(&f.flight, &f.items[1]); /* it does not start */
    assert_int_equal(once_flight_starts(&f.flight, 10, f.out, 2), 2);
    assert_ptr_equal(f.out[0], &f.items[0]);
    assert_ptr_equal(f.out[1], &f.items[2]);
    depart(&f, 5, 10);
    assert_int_equal(once_flight_starts(&f.flight, 10, f.out, 2), 2);
    assert_ptr_equal(f.out[0], &f.items[3]);
    assert_ptr_equal(f.out[1], &f.items[4]);
    assert_int_equal(once_flight_starts(&f.flight, 10, f.out, 2), 1);
    assert_ptr_equal(f.out[0], &f.items[5]);
    assert_int_equal(once_flight_starts(&f.flight, 10, f.out, 2), 0);
    once_flight_release(&f.flight);
}

static void a_lease_is_extended_well_before_its_end(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    depart(&f, 0, 1000);
    depart(&f, 1, 5000);
    once_flight_starts(&f.flight, 5000, f.out, 8);
    assert_int_equal(f.flight.extend_at_ms, 1000 + LEASE / 3);
    assert_int_equal(once_flight_extends(&f.flight, 1000 + LEASE / 3 - 1, f.out, 8), 0);
    assert_int_equal(once_flight_extends(&f.flight, 1000 + LEASE / 3, f.out, 8), 1);
    assert_ptr_equal(f.out[0], &f.items[0]);
    once_flight_extended(&f.flight, &f.items[0], 12000);
    assert_int_equal(once_flight_extends(&f.flight, 5000 + LEASE / 3, f.out, 8), 1);
    assert_ptr_equal(f.out[0], &f.items[1]);
    once_flight_extended(&f.flight, &f.items[1], 15000);
    assert_int_equal(f.flight.extend_at_ms, 12000 + LEASE / 3);
    assert_int_equal(once_flight_ends(&f.flight, false, 1000 + LEASE, f.out, 8), 0); /* kept: none must end */
    once_flight_release(&f.flight);
}

static void f15_an_effect_ends_before_a_lease_that_cannot_be_kept(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    depart(&f, 0, 0);
    assert_int_equal(once_flight_ends(&f.flight, true, 0, f.out, 8), 0); /* it has not begun */
    once_flight_starts(&f.flight, 0, f.out, 8);
    assert_int_equal(once_flight_ends(&f.flight, false, LEASE * 4 / 5 - 1, f.out, 8), 0);
    assert_int_equal(f.flight.end_at_ms, LEASE * 4 / 5);
    assert_int_equal(once_flight_ends(&f.flight, false, LEASE * 4 / 5, f.out, 8), 1);
    assert_int_equal(once_flight_ends(&f.flight, true, LEASE, f.out, 8), 0); /* told once */
    once_flight_release(&f.flight);
}

static void a_lost_claim_ends_at_once(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    depart(&f, 0, 0);
    depart(&f, 1, 0);
    once_flight_starts(&f.flight, 0, f.out, 8);
    once_flight_lose(&f.flight, &f.items[1]);
    assert_int_equal(once_flight_ends(&f.flight, false, 1, f.out, 8), 1);
    assert_ptr_equal(f.out[0], &f.items[1]);
    assert_int_equal(once_flight_extends(&f.flight, LEASE, f.out, 8), 1); /* and is not extended */
    assert_ptr_equal(f.out[0], &f.items[0]);
    once_flight_release(&f.flight);
}

static void nothing_starts_late_in_its_lease(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    depart(&f, 0, 0);
    assert_int_equal(once_flight_starts(&f.flight, LEASE / 2 + 1, f.out, 8), 0);
    assert_int_equal(once_flight_extends(&f.flight, LEASE / 2 + 1, f.out, 8), 1);
    once_flight_extended(&f.flight, &f.items[0], LEASE / 2 + 1);
    assert_int_equal(once_flight_starts(&f.flight, LEASE / 2 + 2, f.out, 8), 1);
    once_flight_release(&f.flight);
}

static void f80_callbacks_run_alone_after_an_unclean_end(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    f.flight.alone_left = 1;
    assert_int_equal(once_flight_free(&f.flight, &f.handlers[0]), 4); /* a command cannot crash us */
    assert_int_equal(once_flight_free(&f.flight, &f.handlers[2]), 1);
    f.items[0].handler = &f.handlers[2];
    depart(&f, 0, 0);
    assert_int_equal(once_flight_free(&f.flight, &f.handlers[2]), 0);
    once_flight_remove(&f.flight, &f.items[0]);
    once_flight_unreserve(&f.flight, &f.items[0]);
    assert_int_equal(once_flight_free(&f.flight, &f.handlers[2]), 2); /* enough of them came back */
    once_flight_release(&f.flight);
}

/* Three tries to extend it, each with its reply and the pause before the next, between the first and the kill. */
static void tries_fit(int64_t lease_ms, int64_t reply_ms)
{
    fixture f;
    begin(&f);
    for (size_t i = 0; i < 8; i++) f.items[i].request.lease_ms = lease_ms;
    depart(&f, 0, 0);
    assert_int_equal(once_flight_starts(&f.flight, 0, f.out, 8), 1);
    int64_t now_ms = 0;
    while (once_flight_extends(&f.flight, now_ms, f.out, 8) == 0) now_ms++; /* when the first try begins */
    for (int i = 0; i < 3; i++) {
        const int64_t pause_ms = once_lease_pause_ms(once_flight_shortest_ms(&f.flight), now_ms);
        assert_in_range(pause_ms, 1, lease_ms / 20);
        now_ms += reply_ms + pause_ms;
    }
    assert_int_equal(once_flight_ends(&f.flight, false, now_ms - 1, f.out, 8), 0);
    once_flight_release(&f.flight);
}

static void f95_extensions_pauses_and_the_kill_fit_into_every_lease(void **state)
{
    (void)state;
    for (int64_t lease_ms = ONCE_LEASE_LEAST_HERE_MS; lease_ms < 100000; lease_ms += 37) tries_fit(lease_ms, 20);
    for (int64_t lease_ms = ONCE_LEASE_LEAST_SERVER_MS; lease_ms < 100000; lease_ms += 37) tries_fit(lease_ms, 100);
}

static void pauses_are_short_only_while_there_is_something_to_save(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    assert_int_equal(once_flight_shortest_ms(&f.flight), ONCE_NEVER);
    assert_int_equal(once_lease_pause_ms(ONCE_NEVER, 0), ONCE_NEVER);
    f.items[1].request.lease_ms = 2000;
    for (size_t i = 0; i < 3; i++) depart(&f, i, 0);
    assert_int_equal(once_flight_shortest_ms(&f.flight), 2000);
    assert_int_equal(once_lease_pause_ms(2000, 4000), 100);
    assert_int_equal(once_lease_pause_ms(2000, 4002), ONCE_NEVER);
    assert_int_equal(once_lease_pause_ms(1, 0), 1);
    once_flight_remove(&f.flight, &f.items[1]);
    assert_int_equal(once_flight_shortest_ms(&f.flight), LEASE);
    once_flight_release(&f.flight);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f95_extensions_pauses_and_the_kill_fit_into_every_lease),
        cmocka_unit_test(pauses_are_short_only_while_there_is_something_to_save),
        cmocka_unit_test(an_item_departs_without_what_was_said_of_it),
        cmocka_unit_test(slots_are_counted_by_handler),
        cmocka_unit_test(each_starts_once_and_in_order),
        cmocka_unit_test(of_many_the_oldest_start_first),
        cmocka_unit_test(a_lease_is_extended_well_before_its_end),
        cmocka_unit_test(f15_an_effect_ends_before_a_lease_that_cannot_be_kept),
        cmocka_unit_test(a_lost_claim_ends_at_once),
        cmocka_unit_test(nothing_starts_late_in_its_lease),
        cmocka_unit_test(f80_callbacks_run_alone_after_an_unclean_end),
    };
    return cmocka_run_group_tests_name("flight", tests, NULL, NULL);
}
