/* What operators decide about an entry: replay, discard, resolve, revive, and what a message that comes back would
 * meet. */
#include "entry_fixture.h"

/* What becomes of a message that a person brings back, by the rules that really do it. */
static once_answer bring_back(once_entry e, once_lane lane, once_request q)
{
    once_decision d;
    if (e.state == ONCE_STATE_DEAD) (void)once_entry_replay(&e, &lane, NOW, &body);
    else if (e.state == ONCE_STATE_ABSENT) {
        (void)once_entry_accept(&e, &lane, &q, &body, NOW, &d);
        if (d.answer != ONCE_ANSWER_WAITING) return d.answer;
    } else (void)once_entry_revive(&e, &lane, &q, &body, NOW);
    (void)once_entry_take(&e, &lane, yours, LEASE, NOW, &d);
    return d.answer;
}

static void f34_the_outlook_of_a_message_that_comes_back(void **state)
{
    (void)state;
    static const once_state states[] = {ONCE_STATE_ABSENT, ONCE_STATE_DEAD, ONCE_STATE_DONE, ONCE_STATE_STALE};
    unsigned seen[ONCE_ANSWERS] = {0};
    for (unsigned i = 0; i < 4 * 3 * 2 * 2 * 2 * 2; i++) {
        const once_state before = states[i % 4];
        const int64_t version = 6 + i / 4 % 3;
        once_lane lane = lane_at(-1);
        once_entry e = entry_in(before, before == ONCE_STATE_DEAD ? ONCE_NEVER : NOW + REMEMBER);
        once_request q = lane_request(mine, version, -1);
        q.natural = i / 12 % 2;
        q.fingerprint = i / 24 % 2 ? print_b : print_a;
        if (before == ONCE_STATE_DEAD) {
            e.lane = q.lane.id;
            e.versioned = true;
            e.order = version;
            e.natural = q.natural;
            e.fingerprint = q.fingerprint;
        }
        if (i / 96 % 2) settled_by(&lane, 7, i / 48 % 2 ? id : other_id, print_a, scope.operation);
        once_decision d;
        once_entry_outlook(&e, &lane, &q, &d);
        assert_int_equal(d.answer, bring_back(e, lane, q));
        seen[d.answer]++;
        if (d.answer != ONCE_ANSWER_RUN) {
            assert_true(d.reason.len > 0);
            assert_int_equal(d.lane, d.answer != ONCE_ANSWER_STALE);
            continue;
        }
        lane.claimed = true; /* which of them is at work is not known */
        lane.head = 1;
        lane.tail = version;
        once_entry_outlook(&e, &lane, &q, &d);
        assert_int_equal(d.answer, ONCE_ANSWER_RUN); /* after an older one or an equal one */
        lane.tail = version + 1;
        once_entry_outlook(&e, &lane, &q, &d);
        assert_int_equal(d.answer, ONCE_ANSWER_STALE);
        lane.claimed = false;
        once_entry_outlook(&e, &lane, &q, &d);
        assert_int_equal(d.answer, ONCE_ANSWER_RUN); /* it waits, and the older one goes first */
    }
    assert_true(seen[ONCE_ANSWER_RUN] && seen[ONCE_ANSWER_STALE] && seen[ONCE_ANSWER_DUPLICATE] &&
                seen[ONCE_ANSWER_CONFLICT]);
}

/* --- what operators decide --- */

static void discard_in_every_state(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++) {
        once_entry e = entry_of(&rows[i]), before = e;
        if (rows[i].state != ONCE_STATE_DEAD) {
            assert_int_equal(once_entry_discard(&e, NULL, ONCE_NO_TIME, NOW), ONCE_UNCHANGED);
            assert_memory_equal(&e, &before, sizeof e);
            continue;
        }
        assert_int_equal(once_entry_discard(&e, NULL, NOW + 7, NOW), ONCE_ENTRY_CHANGED);
        assert_int_equal(e.state, ONCE_STATE_REJECTED);
        assert_int_equal(e.expires_ms, NOW + 7 + REMEMBER); /* until its message is too old */
        assert_int_equal(claim(&e, NULL, request(yours), NOW, ONCE_UNCHANGED).answer, ONCE_ANSWER_DUPLICATE);
        assert_false(settle(&e, NULL, request(mine), ONCE_DONE, NOW, ONCE_UNCHANGED));
        assert_false(claim(&e, NULL, request(mine), NOW, ONCE_UNCHANGED)
                         .own); /* a person did it, and not the claim that had died */
    }
}

static void a_discarded_version_is_not_waited_for(void **state)
{
    (void)state;
    for (int is_natural = 0; is_natural < 2; is_natural++)
        for (int resolved = 0; resolved < 2; resolved++) {
            once_lane lane = lane_at(4);
            once_entry e = entry_in(resolved ? S(UNKNOWN) : S(DEAD), ONCE_NEVER);
            e.lane = lane_id;
            e.versioned = true;
            e.order = 5;
            e.natural = is_natural;
            const int changed = resolved ? once_entry_resolve(&e, &lane, ONCE_DONE, ONCE_BYTES(""), NOW)
                                         : once_entry_discard(&e, &lane, ONCE_NO_TIME, NOW);
            assert_int_equal(changed, ONCE_ENTRY_CHANGED | ONCE_LANE_FREED | ONCE_LANE_CHANGED);
            assert_int_equal(lane.version, 5);
            assert_int_equal(e.state, is_natural ? S(ABSENT) : resolved ? S(DONE) : S(REJECTED));
        }
}

/* Without anybody having changed it. */
static void f99_what_every_state_is_at_a_time(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++) {
        once_entry e = entry_of(&rows[i]);
        e.worker = ONCE_BYTES("somebody");
        const once_entry before = e;
        const bool lost = strncmp(rows[i].name, "orphan", 6) == 0, expired = strstr(rows[i].name, "expired") != NULL;
        const once_state is = !lost          ? (expired ? ONCE_STATE_ABSENT : rows[i].state)
                              : rows[i].hold ? ONCE_STATE_UNKNOWN
                                             : ONCE_STATE_WAITING;
        assert_string_equal(once_state_name(once_entry_state_at(&e, NOW)), once_state_name(is));
        once_entry_look(&e, NOW);
        assert_string_equal(once_state_name(e.state), once_state_name(is));
        if (!lost && !expired) assert_memory_equal(&e, &before, sizeof e);
        if (!lost) continue;
        assert_true(e.changed_ms == NOW); /* when its lease ended */
        assert_true(e.due_ms == (rows[i].hold ? ONCE_NEVER : NOW));
        assert_int_equal(e.worker.len, 8);
        assert_int_equal(once_entry_state_at(&before, NOW - 1), ONCE_STATE_CLAIMED);
    }
}

static void resolve_in_every_state(void **state)
{
    (void)state;
    static const once_outcome outcomes[] = {ONCE_DONE, ONCE_RETRY, ONCE_DEAD};
    for (size_t i = 0; i < ROWS; i++)
        for (size_t o = 0; o < 3; o++) {
            once_entry e = entry_of(&rows[i]);
            e.message = body;
            e.has_message = once_state_unfinished(e.state);
            e.run = 77;
            const once_entry before = e;
            const int changed = once_entry_resolve(&e, NULL, outcomes[o], ONCE_BYTES("looked up"), NOW);
            if (once_entry_state_at(&before, NOW) != ONCE_STATE_UNKNOWN) {
                assert_int_equal(changed, ONCE_UNCHANGED);
                assert_memory_equal(&e, &before, sizeof e);
                continue;
            }
            assert_int_equal(changed, ONCE_ENTRY_CHANGED | (outcomes[o] == ONCE_DEAD ? ONCE_LETTER_NEEDED : 0));
            assert_int_equal(e.state, state_of_outcome[outcomes[o]]);
            assert_int_equal(e.changed_ms, NOW);
            assert_int_equal(e.reason.len, 9);
            assert_int_equal(e.failures, outcomes[o] == ONCE_RETRY ? 0 : 2); /* a new budget, as a replay has */
            assert_int_equal(e.attempt, 3);
            if (outcomes[o] == ONCE_DONE) assert_int_equal(e.expires_ms, NOW + REMEMBER);
            if (outcomes[o] == ONCE_RETRY) {
                assert_int_equal(e.due_ms, NOW);
                assert_int_equal(e.run, 0); /* no run counts it as waiting */
                assert_false(settle(&e, NULL, request(mine), ONCE_RETRY, NOW,
                                    ONCE_UNCHANGED)); /* who left it unknown is fenced off */
                const once_decision d = take(&e, NULL, yours, NOW, ONCE_ENTRY_CHANGED);
                assert_true(d.attempt == 4 && d.failures == 0 && d.unreported); /* it may have happened */
            }
        }
}

/* There would be a letter without its message, and the source would be told to forget it. */
static void resolve_without_a_body_is_done_or_nothing(void **state)
{
    (void)state;
    once_entry e = entry_in(S(UNKNOWN), ONCE_NEVER), before = e;
    assert_int_equal(once_entry_resolve(&e, NULL, ONCE_RETRY, ONCE_BYTES(""), NOW), ONCE_UNCHANGED);
    assert_int_equal(once_entry_resolve(&e, NULL, ONCE_DEAD, ONCE_BYTES(""), NOW), ONCE_UNCHANGED);
    assert_memory_equal(&e, &before, sizeof e);
    once_lane lane = lane_at(2);
    e.lane = lane_id;
    e.versioned = true;
    e.order = 3;
    assert_int_equal(once_entry_resolve(&e, &lane, ONCE_DONE, ONCE_BYTES(""), NOW),
                     ONCE_ENTRY_CHANGED | ONCE_LANE_FREED | ONCE_LANE_CHANGED);
    assert_int_equal(lane.version, 3);
}

static void f34_revive_in_every_state(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++) {
        once_entry e = entry_of(&rows[i]), before = e;
        once_request q = request(yours);
        q.fingerprint = print_b;
        q.remember_ms = 5;
        q.natural = i % 2;
        const int changed = once_entry_revive(&e, NULL, &q, &body, NOW);
        if (!once_state_finished(rows[i].state) || is_new_life(&rows[i])) {
            assert_int_equal(changed, ONCE_UNCHANGED);
            assert_memory_equal(&e, &before, sizeof e);
            continue;
        }
        assert_int_equal(changed, ONCE_ENTRY_CHANGED);
        assert_int_equal(e.state, ONCE_STATE_WAITING);
        assert_true(e.has_message && once_hash_equal(e.fingerprint, print_b) && e.failures == 0);
        assert_int_equal(e.result.len, 0); /* of a life that does not count any more */
        assert_false(
            settle(&e, NULL, request(mine), ONCE_DONE, NOW, ONCE_UNCHANGED)); /* who finished it before is fenced off */
        assert_true(e.natural == q.natural);
        const once_decision d = take(&e, NULL, yours, NOW, ONCE_ENTRY_CHANGED);
        assert_true(d.attempt == 4 && !d.unreported);
        assert_true(settle(&e, NULL, q, ONCE_DONE, NOW, ONCE_ENTRY_CHANGED));
        assert_int_equal(e.state, q.natural ? S(ABSENT) : S(DONE));
        assert_true(e.expires_ms >= before.expires_ms); /* what was promised before still holds */
    }
}

static void a_revived_one_stands_behind_the_others_of_its_lane(void **state)
{
    (void)state;
    once_lane lane = {.head = 4, .tail = 6};
    once_entry e = entry_in(S(DONE), NOW + 1);
    const once_request q = lane_request(yours, -1, -1);
    assert_int_equal(once_entry_revive(&e, &lane, &q, &body, NOW), ONCE_ENTRY_CHANGED);
    assert_true(e.order == 7 && once_hash_equal(e.lane, lane_id));
    assert_int_equal(take(&e, &lane, yours, NOW, ONCE_ENTRY_CHANGED).answer, ONCE_ANSWER_LATER);

    lane = lane_at(9); /* and is stale where a later version has settled */
    e = entry_in(S(DONE), NOW + 1);
    const once_request old = lane_request(yours, 8, -1);
    once_entry_revive(&e, &lane, &old, &body, NOW);
    assert_int_equal(take(&e, &lane, yours, NOW, ONCE_ENTRY_CHANGED | ONCE_LANE_FREED).answer, ONCE_ANSWER_STALE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(discard_in_every_state),
        cmocka_unit_test(a_discarded_version_is_not_waited_for),
        cmocka_unit_test(f99_what_every_state_is_at_a_time),
        cmocka_unit_test(resolve_in_every_state),
        cmocka_unit_test(resolve_without_a_body_is_done_or_nothing),
        cmocka_unit_test(f34_revive_in_every_state),
        cmocka_unit_test(a_revived_one_stands_behind_the_others_of_its_lane),
        cmocka_unit_test(f34_the_outlook_of_a_message_that_comes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
