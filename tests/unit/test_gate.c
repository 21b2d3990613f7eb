/* The gate of a handler: when it is held, when it is probed, and what its rate allows. Time is an argument. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/gate.h"
#include "testenv.h"

typedef struct fixture {
    test_env world;
    once_gate_spec spec;
    once_gate gate;
    int64_t now_ms;
    int messages[1000]; /* only their addresses count */
    int next;
} fixture;

static int setup(void **state)
{
    static fixture f;
    f = (fixture){.spec = {.breaker = {50, 20, 10000}, .dead_share = 50}, .now_ms = 5000};
    test_env_init(&f.world, 7);
    once_gate_init(&f.gate, &f.spec);
    *state = &f;
    return 0;
}

static const void *begins(fixture *f)
{
    const void *who = &f->messages[f->next++ % 1000];
    once_gate_begin(&f->gate, who, f->now_ms);
    return who;
}

static void ends(fixture *f, const void *who, int status, once_outcome outcome, const char *reason)
{
    const once_ended how = {.who = who,
                            .status = status,
                            .outcome = outcome,
                            .dead = outcome == ONCE_DEAD,
                            .reason = {reason, strlen(reason)}};
    once_gate_ended(&f->gate, &how, f->now_ms, &f->world.env);
}

static void one(fixture *f, int status, once_outcome outcome, const char *reason)
{
    ends(f, begins(f), status, outcome, reason);
}

/* Waits for the next probe, and returns how long that took. */
static int64_t wait_for_probe(fixture *f)
{
    const int64_t at_ms = once_gate_at_ms(&f->gate, f->now_ms), from_ms = f->now_ms;
    assert_true(once_gate_is_held(&f->gate) && at_ms > f->now_ms && at_ms != ONCE_NEVER);
    f->now_ms = at_ms - 1;
    assert_int_equal(once_gate_room(&f->gate, f->now_ms), 0);
    f->now_ms = at_ms;
    assert_int_equal(once_gate_room(&f->gate, f->now_ms), 1);
    return at_ms - from_ms;
}

static void a_pause_is_probed_in_growing_intervals_and_ends_by_itself(void **state)
{
    fixture *f = *state;
    assert_true(once_gate_room(&f->gate, 0) == SIZE_MAX);
    one(f, ONCE_E_MISSING, ONCE_RELEASE, "no such command");
    assert_int_equal(f->gate.hold, ONCE_GATE_PAUSED);
    assert_string_equal(f->gate.reason, "no such command");
    int64_t interval_ms = 1000;
    for (int i = 0; i < 12; i++) {
        const int64_t waited_ms = wait_for_probe(f);
        assert_true(waited_ms >= interval_ms / 2 && waited_ms <= interval_ms);
        const void *probe = begins(f);
        assert_int_equal(once_gate_room(&f->gate, f->now_ms + 1000000), 0); /* one at a time */
        assert_int_equal(once_gate_at_ms(&f->gate, f->now_ms), ONCE_NEVER);
        ends(f, probe, ONCE_E_MISSING, ONCE_RELEASE, "no such command");
        interval_ms = interval_ms < 30000 ? 2 * interval_ms : 60000;
    }
    assert_int_equal(f->gate.since_ms, 5000);
    assert_int_equal(f->gate.probes, 12);
    wait_for_probe(f);
    one(f, ONCE_OK, ONCE_RELEASE, "put back"); /* that is no answer */
    assert_true(once_gate_is_held(&f->gate));
    wait_for_probe(f);
    one(f, ONCE_OK, ONCE_DONE, "");
    assert_false(once_gate_is_held(&f->gate));
    assert_true(once_gate_room(&f->gate, f->now_ms) == SIZE_MAX);
    one(f, ONCE_E_MISSING, ONCE_RELEASE, "no such command"); /* anew */
    assert_int_equal(f->gate.since_ms, f->now_ms);
    assert_int_equal(f->gate.probes, 0);
}

static void pauses(fixture *f, uint64_t id)
{
    const once_ended how = {.who = begins(f), .id = id, .status = ONCE_E_DENIED, .outcome = ONCE_RELEASE};
    once_gate_ended(&f->gate, &how, f->now_ms, &f->world.env);
}

/* It is refused. True: that is its own fault. */
static bool is_blamed(fixture *f, uint64_t id)
{
    const bool blamed = once_gate_blames(&f->gate, id);
    const once_ended how = {.who = begins(f), .id = id, .outcome = ONCE_RETRY};
    if (blamed) once_gate_ended(&f->gate, &how, f->now_ms, &f->world.env);
    return blamed;
}

static void f96_a_message_that_pauses_it_alone_is_blamed_for_it(void **state)
{
    fixture *f = *state;
    pauses(f, 7);
    assert_false(once_gate_blames(&f->gate, 7)); /* nobody knows yet whether others get through */
    wait_for_probe(f);
    pauses(f, 7);
    wait_for_probe(f);
    one(f, ONCE_OK, ONCE_UNKNOWN, "no answer"); /* which opens it, but was not answered either */
    assert_false(once_gate_is_held(&f->gate) || once_gate_blames(&f->gate, 7));
    const void *under_way = begins(f);
    pauses(f, 7);
    ends(f, under_way, ONCE_OK, ONCE_DONE, ""); /* it may have begun before */
    wait_for_probe(f);
    one(f, ONCE_OK, ONCE_RETRY, "busy");
    assert_false(once_gate_is_held(&f->gate) || once_gate_blames(&f->gate, 7));
    one(f, ONCE_OK, ONCE_DONE, "");
    assert_false(once_gate_blames(&f->gate, 8));
    assert_true(is_blamed(f, 7));
    assert_false(is_blamed(f, 7)); /* perhaps nobody gets through any more */
    one(f, ONCE_OK, ONCE_DONE, "");
    pauses(f, 8);
    assert_false(once_gate_blames(&f->gate, 7) || once_gate_blames(&f->gate, 8));
    wait_for_probe(f);
    one(f, ONCE_OK, ONCE_DONE, "");
    assert_true(once_gate_blames(&f->gate, 7) && once_gate_blames(&f->gate, 8));
}

static void f96_more_refused_messages_than_are_known_are_blamed_in_time(void **state)
{
    fixture *f = *state;
    enum { REFUSED = ONCE_GATE_PAUSERS + 50 };
    int blamed = 0;
    for (int round = 0; round < 3; round++) {
        for (uint64_t i = 0; i < REFUSED; i++) {
            if (is_blamed(f, 100 + i)) blamed++;
            else pauses(f, 100 + i);
            if (once_gate_is_held(&f->gate)) wait_for_probe(f);
            one(f, ONCE_OK, ONCE_DONE, "");
        }
    }
    assert_in_range(blamed, REFUSED, 2 * REFUSED);
}

static void what_was_under_way_neither_opens_it_nor_puts_the_probe_off(void **state)
{
    fixture *f = *state;
    const void *before[3] = {begins(f), begins(f), begins(f)};
    ends(f, before[0], ONCE_E_DENIED, ONCE_RELEASE, "401");
    const int64_t at_ms = f->gate.at_ms;
    ends(f, before[1], ONCE_E_DENIED, ONCE_RELEASE, "401");
    ends(f, before[2], ONCE_OK, ONCE_DONE, "");
    assert_int_equal(f->gate.hold, ONCE_GATE_PAUSED);
    assert_int_equal(f->gate.at_ms, at_ms);
    assert_int_equal(f->gate.interval_ms, ONCE_GATE_FIRST_MS);
}

/* It says that somebody must act, which is more than that the other side is away. Nothing else changes the reason. */
static void of_what_was_under_way_only_what_is_worse_changes_the_reason(void **state)
{
    fixture *f = *state;
    const void *denied = begins(f), *unable = begins(f);
    for (int i = 0; i < 20; i++) one(f, ONCE_OK, ONCE_RETRY, "refused");
    assert_int_equal(f->gate.hold, ONCE_GATE_BREAKER);
    ends(f, unable, ONCE_E_NOMEM, ONCE_RELEASE, "no process");
    assert_int_equal(f->gate.hold, ONCE_GATE_BREAKER);
    ends(f, denied, ONCE_E_DENIED, ONCE_RELEASE, "401");
    assert_int_equal(f->gate.hold, ONCE_GATE_PAUSED);
    assert_string_equal(f->gate.reason, "401");
    const int64_t at_ms = f->gate.at_ms;
    for (int i = 0; i < 200; i++) ends(f, f, ONCE_OK, ONCE_DEAD, "400");
    for (int i = 0; i < 20; i++) ends(f, f, ONCE_OK, ONCE_RETRY, "refused");
    assert_int_equal(f->gate.hold, ONCE_GATE_PAUSED);
    assert_string_equal(f->gate.reason, "401");
    ends(f, f, ONCE_E_MISSING, ONCE_RELEASE, "no such table"); /* that is as bad */
    assert_string_equal(f->gate.reason, "401");
    assert_int_equal(f->gate.at_ms, at_ms);
}

/* What is wrong now may be repaired soon, however long the other thing took. */
static void another_cause_is_probed_from_the_first_interval_on(void **state)
{
    fixture *f = *state;
    one(f, ONCE_E_MISSING, ONCE_RELEASE, "no such command");
    for (int i = 0; i < 8; i++) {
        wait_for_probe(f);
        one(f, ONCE_E_MISSING, ONCE_RELEASE, "no such command");
    }
    assert_true(wait_for_probe(f) > 10000);
    one(f, ONCE_E_NOMEM, ONCE_RELEASE, "no process");
    assert_int_equal(f->gate.hold, ONCE_GATE_UNABLE);
    assert_true(wait_for_probe(f) <= ONCE_GATE_UNABLE_FIRST_MS);
    assert_int_equal(f->gate.since_ms, 5000); /* it did not work in between */
}

static void a_probe_that_did_not_begin_is_tried_again_at_once(void **state)
{
    fixture *f = *state;
    one(f, ONCE_E_MISSING, ONCE_RELEASE, "gone");
    wait_for_probe(f);
    once_gate_undo(&f->gate, begins(f));
    assert_int_equal(once_gate_room(&f->gate, f->now_ms), 1);
}

/* What may pass by itself is tried sooner. */
static void effects_that_cannot_be_started_are_probed_sooner(void **state)
{
    fixture *f = *state;
    one(f, ONCE_E_NOMEM, ONCE_RELEASE, "no process");
    assert_int_equal(f->gate.hold, ONCE_GATE_UNABLE);
    assert_true(wait_for_probe(f) <= 100);
    for (int i = 0; i < 12; i++) {
        one(f, ONCE_E_NOMEM, ONCE_RELEASE, "no process");
        assert_true(wait_for_probe(f) <= 10000);
    }
    assert_int_equal(f->gate.since_ms, 5000);
    assert_int_equal(f->gate.interval_ms, ONCE_GATE_UNABLE_LONGEST_MS);
    one(f, ONCE_OK, ONCE_RETRY, "busy"); /* it was started */
    assert_false(once_gate_is_held(&f->gate));
}

static void f95_the_breaker_opens_at_a_share_of_failures_and_closes_at_an_answer(void **state)
{
    fixture *f = *state;
    for (int i = 0; i < 19; i++) one(f, ONCE_OK, i % 2 ? ONCE_RETRY : ONCE_DONE, "refused");
    assert_false(once_gate_is_held(&f->gate));
    one(f, ONCE_OK, ONCE_UNKNOWN, "timed out"); /* the tenth of twenty */
    assert_int_equal(f->gate.hold, ONCE_GATE_BREAKER);
    wait_for_probe(f);
    one(f, ONCE_OK, ONCE_RETRY, "refused");
    assert_true(once_gate_is_held(&f->gate));
    assert_true(wait_for_probe(f) >= 1000);
    one(f, ONCE_OK, ONCE_DEAD, "400"); /* an answer */
    assert_false(once_gate_is_held(&f->gate));
    for (int i = 0; i < 18; i++) { /* what was before does not count */
        one(f, ONCE_OK, ONCE_RETRY, "refused");
        assert_false(once_gate_is_held(&f->gate));
    }
    one(f, ONCE_OK, ONCE_DONE, ""); /* and a success is no reason */
    assert_false(once_gate_is_held(&f->gate));
}

static void ends_held(fixture *f, const void *who)
{
    const once_ended how = {.who = who, .outcome = ONCE_UNKNOWN, .held = true};
    once_gate_ended(&f->gate, &how, f->now_ms, &f->world.env);
}

/* Somebody must decide about each of them. */
static void f95_probes_that_an_operator_must_decide_about_become_rare(void **state)
{
    fixture *f = *state;
    int64_t waited_ms = 0;
    for (int i = 0; i < 20; i++) ends_held(f, begins(f));
    assert_int_equal(f->gate.hold, ONCE_GATE_BREAKER);
    assert_true(f->gate.costly);
    const int64_t since_ms = f->now_ms;
    for (; f->now_ms - since_ms < 8 * 3600 * 1000; ends_held(f, begins(f))) {
        waited_ms = wait_for_probe(f);
        assert_true(waited_ms <= 1000 + f->now_ms - since_ms && waited_ms <= 15 * 60000);
    }
    assert_true(f->gate.probes < 60 && waited_ms >= 15 * 60000 / 2);
    wait_for_probe(f);
    one(f, ONCE_OK, ONCE_RETRY, "refused"); /* that costs nothing */
    assert_false(f->gate.costly);
    assert_true(wait_for_probe(f) <= 60000);
    ends_held(f, begins(f));
    assert_true(f->gate.costly);
    wait_for_probe(f);
    one(f, ONCE_E_MISSING, ONCE_RELEASE, "no such command");
    assert_true(f->gate.hold == ONCE_GATE_PAUSED && !f->gate.costly);
    wait_for_probe(f);
    one(f, ONCE_OK, ONCE_DONE, "");
    assert_false(once_gate_is_held(&f->gate));
}

static void fewer_failures_or_slower_ones_do_not_open_the_breaker(void **state)
{
    fixture *f = *state;
    for (int i = 0; i < 300; i++) one(f, ONCE_OK, i % 9 < 3 ? ONCE_RETRY : ONCE_DONE, "refused");
    assert_false(once_gate_is_held(&f->gate));
    f->now_ms += 10001;
    for (int i = 0; i < 300; i++) {
        f->now_ms += 530; /* twenty of them take longer than 10 s */
        one(f, ONCE_OK, ONCE_RETRY, "refused");
    }
    assert_false(once_gate_is_held(&f->gate));
    f->spec.breaker.of = 0;
    for (int i = 0; i < 300; i++) one(f, ONCE_OK, ONCE_RETRY, "refused");
    assert_false(once_gate_is_held(&f->gate));
}

static void f95_a_row_of_failures_amid_many_answers_does_not_open_the_breaker(void **state)
{
    fixture *f = *state;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 300; i++) one(f, ONCE_OK, ONCE_DONE, "");
        f->now_ms += 300 + 150 * round;
        for (int i = 0; i < 100; i++) one(f, ONCE_OK, ONCE_UNKNOWN, "timeout"); /* that ended together */
        assert_false(once_gate_is_held(&f->gate));
        f->now_ms += 100;
    }
    f->now_ms += 1000; /* nobody is answered any more */
    for (int i = 0; i < 19; i++) one(f, ONCE_OK, ONCE_UNKNOWN, "timeout");
    assert_int_equal(f->gate.hold, ONCE_GATE_BREAKER);
}

static void f96_a_storm_of_letters_with_one_reason_is_a_pause(void **state)
{
    fixture *f = *state;
    char reason[80];
    for (int i = 0; i < 99; i++) {
        (void)snprintf(reason, sizeof reason, "line %d: no field '/amont' in order A%dB", i, i);
        one(f, ONCE_OK, ONCE_DEAD, reason);
        one(f, ONCE_OK, ONCE_DONE, "");
    }
    assert_false(once_gate_is_held(&f->gate));
    one(f, ONCE_OK, ONCE_DEAD, "line 7: no field '/amont' in order A7B");
    assert_int_equal(f->gate.hold, ONCE_GATE_DEAD);
    assert_true(once_gate_spares(&f->gate, ONCE_BYTES("line 8: no field '/x' in order Z9")));
    assert_false(once_gate_spares(&f->gate, ONCE_BYTES("another reason")));
    for (int i = 0; i < 200; i++) ends(f, f, ONCE_OK, ONCE_DONE, ""); /* they were under way: it is held all the same */
    once_gate_begin_pass(&f->gate);
    assert_true(once_gate_try(&f->gate, ONCE_BYTES("line 8: no field '/x' in order Z9")));
    assert_false(once_gate_try(&f->gate, ONCE_BYTES("another reason")));
    once_gate_end_pass(&f->gate);
    wait_for_probe(f);
    one(f, ONCE_OK, ONCE_DEAD, "another reason"); /* no success */
    assert_int_equal(f->gate.hold, ONCE_GATE_DEAD);
    wait_for_probe(f);
    one(f, ONCE_OK, ONCE_REJECTED, "");
    assert_false(once_gate_is_held(&f->gate));
}

/* Where only some messages die, each probe that lives would let as many die again as the limit allows. */
static void f96_a_message_that_lives_does_not_let_as_many_die_again(void **state)
{
    fixture *f = *state;
    for (int i = 0; i < 100; i++) one(f, ONCE_OK, ONCE_DEAD, "no column");
    for (int i = 0; i < 50; i++) {
        wait_for_probe(f);
        one(f, ONCE_OK, ONCE_DONE, "");
        assert_false(once_gate_is_held(&f->gate));
        one(f, ONCE_OK, ONCE_DEAD, "no column");
        assert_true(once_gate_spares(&f->gate, ONCE_BYTES("no column")));
    }
    wait_for_probe(f);
    for (int i = 0; i < 200; i++) one(f, ONCE_OK, ONCE_DONE, "");
    one(f, ONCE_OK, ONCE_DEAD, "no column"); /* it works again, and letters are letters */
    assert_false(once_gate_is_held(&f->gate));
}

/* It has ended and is tried again: nothing else begins, however long that takes. */
static void a_probe_that_is_kept_is_the_only_one(void **state)
{
    fixture *f = *state;
    const void *who = begins(f);
    once_gate_keep_probe(&f->gate, who, 0); /* an open gate has no probe */
    assert_true(once_gate_room(&f->gate, f->now_ms) == SIZE_MAX);
    for (int i = 0; i < 3; i++) {
        ends(f, who, ONCE_E_SCHEMA, ONCE_RELEASE, "no such table");
        once_gate_keep_probe(&f->gate, who, f->now_ms + 500);
        assert_int_equal(f->gate.at_ms, f->now_ms + 500);
        f->now_ms += INT64_C(1000000);
        assert_int_equal(once_gate_room(&f->gate, f->now_ms), 0);
    }
    once_gate_forget(&f->gate, f); /* another one */
    assert_int_equal(once_gate_room(&f->gate, f->now_ms), 0);
    once_gate_forget(&f->gate, who);
    assert_int_equal(once_gate_room(&f->gate, f->now_ms), 1);
    ends(f, begins(f), ONCE_OK, ONCE_DONE, "");
    assert_false(once_gate_is_held(&f->gate));
}

/* Calls that get no reply, and questions about them that do: the calls fail all the same. */
static void f95_answered_questions_neither_hide_an_outage_nor_end_it(void **state)
{
    fixture *f = *state;
    const once_ended answered = {.who = f, .outcome = ONCE_DONE, .asked = true};
    once_ended silent = {.who = f, .outcome = ONCE_UNKNOWN, .asked = true};
    for (int i = 0; i < 19; i++) {
        one(f, ONCE_OK, ONCE_UNKNOWN, "timed out");
        for (int n = 0; n < 5; n++) once_gate_ended(&f->gate, &answered, f->now_ms, &f->world.env);
    }
    assert_false(once_gate_is_held(&f->gate));
    once_gate_ended(&f->gate, &silent, f->now_ms, &f->world.env);
    assert_int_equal(f->gate.hold, ONCE_GATE_BREAKER);
    wait_for_probe(f);
    once_gate_begin(&f->gate, f, f->now_ms);
    once_gate_ended(&f->gate, &answered, f->now_ms, &f->world.env);
    assert_int_equal(f->gate.hold, ONCE_GATE_BREAKER);
    assert_int_equal(once_gate_room(&f->gate, f->now_ms), 1); /* the next one may be an effect */
    once_gate_begin(&f->gate, f, f->now_ms);
    once_gate_ended(&f->gate, &silent, f->now_ms, &f->world.env);
    assert_int_equal(once_gate_room(&f->gate, f->now_ms), 0);
    wait_for_probe(f);
    one(f, ONCE_OK, ONCE_DONE, "");
    assert_false(once_gate_is_held(&f->gate));
    one(f, ONCE_E_NOMEM, ONCE_RELEASE, "no process");
    wait_for_probe(f);
    once_gate_begin(&f->gate, f, f->now_ms);
    once_gate_ended(&f->gate, &answered, f->now_ms, &f->world.env); /* it was started */
    assert_false(once_gate_is_held(&f->gate));
}

static void letters_with_different_reasons_or_among_many_successes_are_no_storm(void **state)
{
    fixture *f = *state;
    static const char *const reasons[] = {"no such order", "limit", "no such customer"};
    for (int i = 0; i < 1000; i++) one(f, ONCE_OK, ONCE_DEAD, reasons[i % 3]);
    assert_false(once_gate_is_held(&f->gate));
    for (int i = 0; i < 1000; i++) one(f, ONCE_OK, i % 9 < 4 ? ONCE_DEAD : ONCE_DONE, "limit");
    assert_false(once_gate_is_held(&f->gate));
    f->spec.dead_share = 0;
    for (int i = 0; i < 1000; i++) one(f, ONCE_OK, ONCE_DEAD, "limit");
    assert_false(once_gate_is_held(&f->gate));
}

static void assert_folds(const char *a, const char *b, bool same)
{
    const uint32_t x = once_gate_fold((once_bytes){a, strlen(a)}), y = once_gate_fold((once_bytes){b, strlen(b)});
    if ((x == y) != same) fail_msg("'%s' and '%s' are %s", a, b, same ? "different" : "the same");
}

static void reasons_are_compared_without_what_differs_from_message_to_message(void **state)
{
    (void)state;
    assert_folds("line 5", "line 6", true);
    assert_folds("order 3f2a-9 is gone", "order 77-1 is gone", true);
    assert_folds("field '/a b' is missing", "field '/c' is missing", true);
    assert_folds("value \"x y\" is bad", "value \"it's\" is bad", true);
    assert_folds("it doesn't fit", "it doesn't count", false);
    assert_folds("it's a cat", "it's a dog", false);
    assert_folds("field 'x", "field 'y", true);
    assert_folds("no such table", "no such column", false);
    assert_folds("", "x", false);
}

/* Of a transaction that is rolled back nothing counts, and of one that buries too many the rest is spared. */
static void f96_what_would_die_in_one_transaction_is_spared_from_the_limit_on(void **state)
{
    fixture *f = *state;
    for (int pass = 0; pass < 3; pass++) {
        once_gate_begin_pass(&f->gate);
        int spared = 0;
        for (int i = 0; i < 1000; i++) spared += once_gate_try(&f->gate, ONCE_BYTES("no field 'x'"));
        assert_int_equal(spared, 901);
    }
    once_gate_begin_pass(&f->gate);
    for (int i = 0; i < 1000; i++)
        assert_false(once_gate_try(&f->gate, i % 9 < 4 ? ONCE_BYTES("no field 'x'") : (once_bytes){0}));
    once_gate_end_pass(&f->gate);
    assert_false(once_gate_is_held(&f->gate));
}

static void what_began_in_a_transaction_that_was_rolled_back_has_not(void **state)
{
    fixture *f = *state;
    f->spec.rate = (once_rate){100, 1000};
    one(f, ONCE_E_SCHEMA, ONCE_RELEASE, "no such table");
    wait_for_probe(f);
    once_gate_begin_pass(&f->gate);
    once_gate_begin_inside(&f->gate, f, f->now_ms);
    assert_int_equal(once_gate_room(&f->gate, f->now_ms), 0);
    once_gate_begin_pass(&f->gate);
    assert_int_equal(once_gate_room(&f->gate, f->now_ms), 1);
    once_gate_begin_inside(&f->gate, f, f->now_ms);
    ends(f, f, ONCE_OK, ONCE_DONE, "");
    once_gate_end_pass(&f->gate);
    assert_false(once_gate_is_held(&f->gate));
}

static void what_is_rolled_back_costs_nothing_of_the_rate(void **state)
{
    fixture *f = *state;
    f->spec.rate = (once_rate){1, 1000};
    for (int i = 0; i < 3; i++) {
        once_gate_begin_pass(&f->gate);
        assert_int_equal(once_gate_room(&f->gate, f->now_ms), 1);
        once_gate_begin_inside(&f->gate, f, f->now_ms);
        assert_int_equal(once_gate_room(&f->gate, f->now_ms), 0);
    }
}

/* What it has begun stays begun when the next transaction is made. */
static void what_began_in_a_transaction_that_is_committed_has(void **state)
{
    fixture *f = *state;
    f->spec.rate = (once_rate){1, 1000};
    once_gate_begin_pass(&f->gate);
    once_gate_begin_inside(&f->gate, f, f->now_ms);
    once_gate_end_pass(&f->gate);
    once_gate_begin_pass(&f->gate);
    assert_int_equal(once_gate_room(&f->gate, f->now_ms), 0);
    ends(f, f, ONCE_E_MISSING, ONCE_RELEASE, "gone");
    f->now_ms += 10000;
    (void)begins(f); /* outside of it */
    once_gate_begin_pass(&f->gate);
    f->now_ms += 10000;
    assert_int_equal(once_gate_room(&f->gate, f->now_ms), 0);
}

/* How many begin within a time, if as many do as may. */
static int64_t begin_for(fixture *f, int64_t ms)
{
    int64_t n = 0;
    const int64_t until_ms = f->now_ms + ms;
    while (f->now_ms < until_ms) {
        for (size_t room = once_gate_room(&f->gate, f->now_ms); room > 0; room--, n++) (void)begins(f);
        const int64_t at_ms = once_gate_at_ms(&f->gate, f->now_ms);
        assert_true(at_ms > f->now_ms && at_ms != ONCE_NEVER);
        f->now_ms = at_ms;
    }
    return n;
}

static void a_rate_is_kept_with_a_burst_of_a_second(void **state)
{
    fixture *f = *state;
    static const once_rate rates[] = {{1, 1000},   {100, 1000},   {3333, 1000},
                                      {30, 60000}, {10, 3600000}, {1000000, 1000}};
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        const once_rate rate = f->spec.rate = rates[i];
        once_gate_init(&f->gate, &f->spec);
        assert_false(once_gate_is_wide(&f->gate));
        const int64_t for_ms = 100 * rate.per_ms / (rate.n < 100 ? rate.n : 100);
        const int64_t wanted = for_ms * rate.n / rate.per_ms;
        const int64_t n = begin_for(f, for_ms);
        assert_true(n >= wanted - wanted / 50 - 1 && n <= wanted + wanted / 50 + 1);
        f->now_ms += INT64_C(1000) * 86400000; /* a long quiet time */
        const int64_t second = rate.n * 1000 / rate.per_ms;
        assert_int_equal(once_gate_room(&f->gate, f->now_ms), second ? second : 1);
    }
}

/* A claim that must be repeated begins without room; later ones wait for longer. */
static void what_begins_beyond_a_rate_is_made_up_for(void **state)
{
    fixture *f = *state;
    f->spec.rate = (once_rate){10, 1000};
    for (int i = 0; i < 11; i++) (void)begins(f);
    assert_int_equal(once_gate_room(&f->gate, f->now_ms), 0);
    assert_int_equal(once_gate_at_ms(&f->gate, f->now_ms), f->now_ms + 1100);
    once_gate_undo(&f->gate, &f->messages[0]);
    assert_int_equal(once_gate_at_ms(&f->gate, f->now_ms), f->now_ms + 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_pause_is_probed_in_growing_intervals_and_ends_by_itself, setup),
        cmocka_unit_test_setup(f96_a_message_that_pauses_it_alone_is_blamed_for_it, setup),
        cmocka_unit_test_setup(f96_more_refused_messages_than_are_known_are_blamed_in_time, setup),
        cmocka_unit_test_setup(what_was_under_way_neither_opens_it_nor_puts_the_probe_off, setup),
        cmocka_unit_test_setup(of_what_was_under_way_only_what_is_worse_changes_the_reason, setup),
        cmocka_unit_test_setup(another_cause_is_probed_from_the_first_interval_on, setup),
        cmocka_unit_test_setup(a_probe_that_did_not_begin_is_tried_again_at_once, setup),
        cmocka_unit_test_setup(effects_that_cannot_be_started_are_probed_sooner, setup),
        cmocka_unit_test_setup(f95_the_breaker_opens_at_a_share_of_failures_and_closes_at_an_answer, setup),
        cmocka_unit_test_setup(f95_probes_that_an_operator_must_decide_about_become_rare, setup),
        cmocka_unit_test_setup(fewer_failures_or_slower_ones_do_not_open_the_breaker, setup),
        cmocka_unit_test_setup(f95_a_row_of_failures_amid_many_answers_does_not_open_the_breaker, setup),
        cmocka_unit_test_setup(f96_a_storm_of_letters_with_one_reason_is_a_pause, setup),
        cmocka_unit_test_setup(f96_a_message_that_lives_does_not_let_as_many_die_again, setup),
        cmocka_unit_test_setup(a_probe_that_is_kept_is_the_only_one, setup),
        cmocka_unit_test_setup(f95_answered_questions_neither_hide_an_outage_nor_end_it, setup),
        cmocka_unit_test_setup(letters_with_different_reasons_or_among_many_successes_are_no_storm, setup),
        cmocka_unit_test_setup(reasons_are_compared_without_what_differs_from_message_to_message, setup),
        cmocka_unit_test_setup(f96_what_would_die_in_one_transaction_is_spared_from_the_limit_on, setup),
        cmocka_unit_test_setup(what_began_in_a_transaction_that_was_rolled_back_has_not, setup),
        cmocka_unit_test_setup(what_is_rolled_back_costs_nothing_of_the_rate, setup),
        cmocka_unit_test_setup(what_began_in_a_transaction_that_is_committed_has, setup),
        cmocka_unit_test_setup(a_rate_is_kept_with_a_burst_of_a_second, setup),
        cmocka_unit_test_setup(what_begins_beyond_a_rate_is_made_up_for, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
