/* Waiting for missing versions of a lane: how long, when they are given up, and what is counted. */
#include "entry_fixture.h"

#include "core/plant.h"

static void f28_the_missing_version_ends_the_gap(void **state)
{
    (void)state;
    once_lane lane;
    once_entry e = behind_a_gap(&lane);
    assert_int_equal(once_entry_wake(&e, &lane, NOW + 10), ONCE_UNCHANGED); /* its wait is running */
    settled_by(&lane, 8, other_id, print_a, scope.operation);
    assert_int_equal(once_entry_wake(&e, &lane, NOW + 10), ONCE_ENTRY_CHANGED | ONCE_LANE_CHANGED);
    assert_int_equal(e.due_ms, NOW + 10);
    assert_false(lane.waits);
    const once_decision d = take(&e, &lane, yours, NOW + 10, ONCE_ENTRY_CHANGED);
    assert_int_equal(d.answer, ONCE_ANSWER_RUN);
    assert_false(d.gap_over);
}

static void f28_a_gap_that_stays_is_over_after_its_time(void **state)
{
    (void)state;
    for (int claimed = 0; claimed < 2; claimed++) {
        once_lane lane;
        once_entry e = behind_a_gap(&lane);
        const once_request again = lane_request(yours, 9, 500);
        assert_int_equal(claim(&e, &lane, again, NOW + 249, ONCE_UNCHANGED).answer, ONCE_ANSWER_LATER);
        assert_int_equal(take(&e, &lane, yours, NOW + 250, ONCE_ENTRY_CHANGED | ONCE_LANE_CHANGED).answer,
                         ONCE_ANSWER_LATER);
        assert_int_equal(e.due_ms, NOW + 500);
        assert_string_equal(once_lane_explain(&lane, &e).data, "version 8 is missing; 250ms of 500ms have passed");
        const int changes = ONCE_ENTRY_CHANGED | ONCE_LANE_CHANGED;
        const once_decision d =
            claimed ? claim(&e, &lane, again, NOW + 500, changes) : take(&e, &lane, yours, NOW + 500, changes);
        assert_int_equal(d.answer, ONCE_ANSWER_RUN);
        assert_true(d.gap_over);
        assert_string_equal(d.reason.data, "version 8 did not come within 500ms");
        assert_int_equal(d.failures, 0); /* f77: waiting for a gap is nobody's failure */
        assert_true(lane.has_lost && lane.lost_from == 8 && lane.lost_to == 8 && !lane.waits);
    }
}

/* What takes the place of another one is remembered until it is too old by its own time, also when its sender's clock
 * is ahead. */
static void f71_what_replaces_is_remembered_by_its_own_time(void **state)
{
    (void)state;
    once_entry e = absent();
    claim(&e, NULL, request(mine), NOW, ONCE_ENTRY_CHANGED);
    assert_true(settle(&e, NULL, request(mine), ONCE_RELEASE, NOW, ONCE_ENTRY_CHANGED));
    once_request other = request(yours);
    other.fingerprint = print_b;
    other.sent_ms = NOW + 5000;
    const once_decision d = claim(&e, NULL, other, NOW + 1, ONCE_ENTRY_CHANGED | ONCE_REPLACED);
    assert_true(d.replaced && d.answer == ONCE_ANSWER_RUN);
    assert_true(e.expires_ms == NOW + 5000 + REMEMBER);
}

/* Once for each time that versions are given up, as far as anybody settles: with the first settlement, or after a claim
 * that got lost. */
static void f28_versions_that_are_given_up_are_counted(void **state)
{
    (void)state;
    const int changes = ONCE_ENTRY_CHANGED | ONCE_LANE_CHANGED;
    once_lane lane = lane_at(4);
    once_entry e = absent();
    accept(&e, &lane, lane_request(mine, 9, 0), NOW, changes); /* 5 to 8 are missing */
    once_decision d = take(&e, &lane, yours, NOW, changes);
    assert_true(d.answer == ONCE_ANSWER_RUN && d.gap_over);
    assert_int_equal(d.given_up, 4);
    once_entry same = e; /* the reply was lost */
    d = claim(&same, &lane, lane_request(yours, 9, 0), NOW, ONCE_ENTRY_CHANGED);
    assert_true(d.own);
    assert_int_equal(d.given_up, 4);
    once_entry orphan = e;
    d = take(&orphan, &lane, mine, NOW + LEASE, ONCE_ENTRY_CHANGED);
    assert_true(d.orphan && d.gap_over);
    assert_int_equal(d.given_up, 4);
    orphan = e; /* and a delivery finds it */
    d = claim(&orphan, &lane, lane_request(mine, 9, 0), NOW + LEASE, ONCE_ENTRY_CHANGED);
    assert_true(d.orphan && d.gap_over);
    assert_int_equal(d.given_up, 4);
    assert_true(settle(&e, &lane, lane_request(yours, 9, 0), ONCE_RETRY, NOW, ONCE_ENTRY_CHANGED | ONCE_LANE_FREED));
    d = take(&e, &lane, mine, NOW + 1000000, ONCE_ENTRY_CHANGED);
    assert_true(d.answer == ONCE_ANSWER_RUN && d.gap_over);
    assert_int_equal(d.given_up, 0); /* its first settlement has counted them */
    d = take(&e, &lane, yours, NOW + 2000000, ONCE_ENTRY_CHANGED);
    assert_true(d.orphan);
    assert_int_equal(d.given_up, 0);

    static const int64_t wrong[] = {1004, 1005, 1006, INT64_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        lane = lane_at(4);
        e = absent();
        accept(&e, &lane, lane_request(mine, wrong[i], 0), NOW, changes);
        assert_int_equal(take(&e, &lane, yours, NOW, changes).given_up, i ? ONCE_GAP_COUNTED : 999);
    }

    lane = lane_at(8); /* nothing is missing */
    e = absent();
    assert_int_equal(claim(&e, &lane, lane_request(mine, 9, 0), NOW, ONCE_ENTRY_CHANGED).given_up, 0);
}

/* A person settled it, and does not count. The attempt that follows is told nothing, however often it is answered. */
static void f28_versions_that_were_given_up_are_not_counted_after_a_persons_retry(void **state)
{
    (void)state;
    const int changes = ONCE_ENTRY_CHANGED | ONCE_LANE_CHANGED;
    once_lane lane = lane_at(4);
    once_entry e = absent();
    once_request held = lane_request(mine, 9, 0);
    held.hold = true;
    accept(&e, &lane, held, NOW, changes);
    assert_int_equal(take(&e, &lane, yours, NOW, changes).given_up, 4);
    assert_int_equal(once_entry_resolve(&e, &lane, ONCE_RETRY, ONCE_BYTES("again"), NOW + LEASE),
                     ONCE_ENTRY_CHANGED | ONCE_LANE_FREED);
    once_decision d = take(&e, &lane, third, NOW + LEASE, ONCE_ENTRY_CHANGED);
    assert_true(d.answer == ONCE_ANSWER_RUN && d.unreported && d.attempt == 2);
    assert_int_equal(d.given_up, 0);
    d = claim(&e, &lane, lane_request(third, 9, 0), NOW + LEASE, ONCE_ENTRY_CHANGED); /* its reply was lost */
    assert_true(d.own && d.answer == ONCE_ANSWER_RUN);
    assert_int_equal(d.given_up, 0);
}

/* Nobody looked for hours: no more than two steps of that count. */
static void f28_time_without_a_run_does_not_count(void **state)
{
    (void)state;
    once_lane lane = lane_at(1);
    once_entry e = absent();
    const int changes = ONCE_ENTRY_CHANGED | ONCE_LANE_CHANGED;
    accept(&e, &lane, lane_request(mine, 4, 30000), NOW, changes);
    int64_t now_ms = NOW;
    const int64_t step_ms = 30000 / 16;
    for (int i = 0; i < 8; i++) {
        now_ms += step_ms;
        assert_int_equal(take(&e, &lane, yours, now_ms, changes).answer, ONCE_ANSWER_LATER);
    }
    assert_int_equal(lane.waited_ms, 8 * step_ms);
    now_ms += INT64_C(5) * 3600000;
    assert_int_equal(take(&e, &lane, yours, now_ms, changes).answer, ONCE_ANSWER_LATER);
    assert_int_equal(lane.waited_ms, 10 * step_ms);
    assert_int_equal(e.due_ms, now_ms + step_ms);
    once_planted = ONCE_PLANT_gap_while_down;
    assert_int_equal(take(&e, &lane, yours, now_ms + 3600000, changes).answer, ONCE_ANSWER_RUN);
    once_planted = ONCE_PLANT_none;
}

/* The wait is the lane's: who comes in front shares it, and those behind a version that was given up do not begin anew.
 */
static void f28_one_wait_for_all_of_a_lane(void **state)
{
    (void)state;
    const int changes = ONCE_ENTRY_CHANGED | ONCE_LANE_CHANGED;
    once_lane lane = lane_at(1);
    once_entry five = absent(), four = absent(), seven = absent(), six = absent();
    accept(&five, &lane, lane_request(mine, 5, 500), NOW, changes);
    lane.head = lane.tail = 5;
    accept(&four, &lane, lane_request(mine, 4, 500), NOW + 300, changes);
    assert_int_equal(lane.waited_ms, 300);
    assert_int_equal(four.due_ms, NOW + 500);
    once_decision d = take(&four, &lane, yours, NOW + 500, changes);
    assert_true(d.answer == ONCE_ANSWER_RUN && d.gap_over);
    assert_string_equal(d.reason.data, "versions 2 to 3 did not come within 500ms");
    assert_true(settle(&four, &lane, lane_request(yours, 4, 500), ONCE_DEAD, NOW + 500,
                       changes | ONCE_LANE_FREED | ONCE_LETTER_NEEDED)); /* and the one behind it runs on */
    lane.head = ONCE_NEVER;
    lane.tail = -1;
    assert_int_equal(once_entry_wake(&five, &lane, NOW + 500), ONCE_ENTRY_CHANGED);
    d = take(&five, &lane, yours, NOW + 500, ONCE_ENTRY_CHANGED);
    assert_true(d.answer == ONCE_ANSWER_RUN && !d.gap_over);
    settle(&five, &lane, lane_request(yours, 5, 500), ONCE_DONE, NOW + 500, changes | ONCE_LANE_FREED);
    d = accept(&seven, &lane, lane_request(mine, 7, 500), NOW + 600, changes); /* a further hole is waited for anew */
    assert_int_equal(lane.waited_ms, 0);
    assert_int_equal(take(&seven, &lane, yours, NOW + 850, changes).answer, ONCE_ANSWER_LATER);
    assert_true(take(&seven, &lane, yours, NOW + 1100, changes).gap_over);
    lane.claimed = true;
    assert_int_equal(claim(&six, &lane, lane_request(mine, 6, 500), NOW + 1100, ONCE_UNCHANGED).answer,
                     ONCE_ANSWER_LATER); /* nothing newer settled */
    lane.claimed = false;
    settle(&seven, &lane, lane_request(yours, 7, 500), ONCE_DONE, NOW + 1100, changes | ONCE_LANE_FREED);
    d = claim(&six, &lane, lane_request(mine, 6, 500), NOW + 1100,
              ONCE_ENTRY_CHANGED | ONCE_LANE_FREED); /* too late, and told so */
    assert_int_equal(d.answer, ONCE_ANSWER_STALE);
    assert_string_equal(d.reason.data, "version 6 was given up before it came");
}

/* It died because the versions before it did not come. Somebody replays it: that is a decision. */
static void f28_a_replayed_one_does_not_wait_again(void **state)
{
    (void)state;
    for (int blocked = 0; blocked < 2; blocked++) {
        once_lane lane;
        once_entry e = behind_a_gap(&lane);
        e.block = blocked;
        take(&e, &lane, yours, NOW + 500, ONCE_ENTRY_CHANGED | ONCE_LANE_CHANGED);
        settle(&e, &lane, lane_request(yours, 9, 500), ONCE_DEAD, NOW + 500,
               ONCE_ENTRY_CHANGED | ONCE_LANE_CHANGED | ONCE_LANE_FREED | ONCE_LETTER_NEEDED);
        e.has_message = false;
        once_entry_replay(&e, &lane, NOW + 600, &body);
        const once_decision d = take(&e, &lane, yours, NOW + 600, ONCE_ENTRY_CHANGED);
        assert_true(d.answer == ONCE_ANSWER_RUN && !d.gap_over);
    }
}

/* A version far too high waits, dies, and is discarded, or not: those that were given up for it run when they come, and
 * wait for each other again. */
static void f28_a_wrong_version_does_not_end_its_lane(void **state)
{
    (void)state;
    const int changes = ONCE_ENTRY_CHANGED | ONCE_LANE_CHANGED | ONCE_LANE_FREED;
    for (int discarded = 0; discarded < 2; discarded++) {
        once_lane lane = lane_at(1);
        once_entry wrong = absent(), two = absent(), four = absent(), three = absent();
        accept(&wrong, &lane, lane_request(mine, INT64_MAX, 500), NOW, ONCE_ENTRY_CHANGED | ONCE_LANE_CHANGED);
        assert_true(take(&wrong, &lane, yours, NOW + 500, ONCE_ENTRY_CHANGED | ONCE_LANE_CHANGED).gap_over);
        const once_request asked = lane_request(yours, INT64_MAX, 500);
        const once_settlement death = {
            .request = &asked, .outcome = ONCE_DEAD, .reason = ONCE_BYTES("they did not come"), .message = &body};
        bool applied;
        assert_true(once_entry_settle(&wrong, &lane, &death, NOW + 500, &applied) & ONCE_LETTER_NEEDED);
        assert_string_equal(wrong.reason.data, "they did not come; this one was not run, those behind it go on");
        if (discarded)
            assert_int_equal(once_entry_discard(&wrong, &lane, ONCE_NO_TIME, NOW + 500),
                             ONCE_ENTRY_CHANGED | ONCE_LANE_FREED);
        assert_int_equal(lane.version, 1);
        assert_int_equal(claim(&two, &lane, lane_request(mine, 2, 500), NOW + 600, ONCE_ENTRY_CHANGED).answer,
                         ONCE_ANSWER_RUN);
        settle(&two, &lane, lane_request(mine, 2, 500), ONCE_DONE, NOW + 600, changes);
        assert_true(lane.version == 2 && lane.next == 3 && !lane.has_lost);
        assert_int_equal(claim(&four, &lane, lane_request(mine, 4, 500), NOW + 600, ONCE_UNCHANGED).answer,
                         ONCE_ANSWER_GAP);
        assert_int_equal(claim(&three, &lane, lane_request(mine, 3, 500), NOW + 600, ONCE_ENTRY_CHANGED).answer,
                         ONCE_ANSWER_RUN);
        settle(&three, &lane, lane_request(mine, 3, 500), ONCE_DONE, NOW + 600, changes);
        if (discarded) continue;
        wrong.has_message = false;
        once_entry_replay(&wrong, &lane, NOW + 700,
                          &body); /* replayed it runs, although the versions before it are waited for again */
        assert_int_equal(take(&wrong, &lane, yours, NOW + 700, ONCE_ENTRY_CHANGED).answer, ONCE_ANSWER_RUN);
    }
}

/* Two gaps end together: the higher version is parked behind the lower one. When that settles, a version between them
 * is still missing: the wait begins again, and must not be taken for one that is already running. */
static void f28_parked_after_its_gap_was_over_waits_again_and_not_for_ever(void **state)
{
    (void)state;
    once_lane lane;
    once_entry e = behind_a_gap(&lane);
    lane = (once_lane){.has_version = true, .version = 3, .head = 5, .tail = 5};
    assert_int_equal(take(&e, &lane, yours, NOW + 500, ONCE_ENTRY_CHANGED).answer, ONCE_ANSWER_LATER);
    assert_true(e.due_ms == ONCE_NEVER);
    lane = lane_at(5);
    assert_int_equal(once_entry_wake(&e, &lane, NOW + 600), ONCE_ENTRY_CHANGED | ONCE_LANE_CHANGED);
    assert_int_equal(e.due_ms, NOW + 600 + 250);
    const once_decision d = take(&e, &lane, yours, NOW + 1100, ONCE_ENTRY_CHANGED | ONCE_LANE_CHANGED);
    assert_int_equal(d.answer, ONCE_ANSWER_RUN);
    assert_true(d.gap_over);
    assert_string_equal(d.reason.data, "versions 6 to 8 did not come within 500ms");
}

static void superseded_while_waiting_is_stale(void **state)
{
    (void)state;
    once_lane lane;
    once_entry e = behind_a_gap(&lane);
    settled_by(&lane, 10, other_id, print_a, scope.operation);
    assert_int_equal(once_entry_wake(&e, &lane, NOW + 1), ONCE_ENTRY_CHANGED | ONCE_LANE_CHANGED);
    once_entry other = e;
    assert_int_equal(take(&e, &lane, yours, NOW + 1, ONCE_ENTRY_CHANGED | ONCE_LANE_FREED).answer, ONCE_ANSWER_STALE);
    assert_int_equal(e.state, ONCE_STATE_STALE);
    assert_false(e.has_message);
    once_decision d = claim(&other, &lane, lane_request(yours, 9, 500), NOW + 1, ONCE_ENTRY_CHANGED | ONCE_LANE_FREED);
    assert_int_equal(d.answer, ONCE_ANSWER_STALE);
    d = claim(&other, &lane, lane_request(yours, 9, 500), NOW + 1, ONCE_UNCHANGED); /* f76: the reply was lost */
    assert_int_equal(d.answer, ONCE_ANSWER_STALE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f28_the_missing_version_ends_the_gap),
        cmocka_unit_test(f28_a_gap_that_stays_is_over_after_its_time),
        cmocka_unit_test(f28_parked_after_its_gap_was_over_waits_again_and_not_for_ever),
        cmocka_unit_test(superseded_while_waiting_is_stale),
        cmocka_unit_test(f28_versions_that_are_given_up_are_counted),
        cmocka_unit_test(f28_versions_that_were_given_up_are_not_counted_after_a_persons_retry),
        cmocka_unit_test(f71_what_replaces_is_remembered_by_its_own_time),
        cmocka_unit_test(f28_time_without_a_run_does_not_count),
        cmocka_unit_test(f28_one_wait_for_all_of_a_lane),
        cmocka_unit_test(f28_a_replayed_one_does_not_wait_again),
        cmocka_unit_test(f28_a_wrong_version_does_not_end_its_lane),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
