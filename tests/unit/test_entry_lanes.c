/* Entries in a lane: order, versions, where a lane begins, dead letters that block it, and how long it is kept. */
#include "entry_fixture.h"

/* --- lanes --- */

static void lane_runs_one_at_a_time_in_order_of_arrival(void **state)
{
    (void)state;
    once_lane lane = lane_at(-1);
    once_entry e = absent();
    assert_int_equal(claim(&e, &lane, lane_request(mine, -1, -1), NOW, ONCE_ENTRY_CHANGED).answer, ONCE_ANSWER_RUN);
    assert_int_equal(e.order, 0);

    lane = (once_lane){.claimed = true, .head = 0, .tail = 0};
    once_entry second = absent();
    once_decision d = claim(&second, &lane, lane_request(yours, -1, -1), NOW, ONCE_UNCHANGED);
    assert_int_equal(d.answer, ONCE_ANSWER_LATER);
    assert_true(d.wait_ms == ONCE_NEVER);
    d = accept(&second, &lane, lane_request(yours, -1, -1), NOW, ONCE_ENTRY_CHANGED);
    assert_int_equal(d.answer, ONCE_ANSWER_WAITING);
    assert_true(second.due_ms == ONCE_NEVER && d.wait_ms == ONCE_NEVER);
    assert_int_equal(second.order, 1);

    /* f33: the first failed and waits; the second stays parked behind it */
    lane = (once_lane){.head = 0, .tail = 0};
    assert_int_equal(once_entry_wake(&second, &lane, NOW), ONCE_UNCHANGED);
    assert_int_equal(claim(&second, &lane, lane_request(third, -1, -1), NOW, ONCE_UNCHANGED).answer, ONCE_ANSWER_LATER);

    /* the first is gone */
    lane = lane_at(-1);
    assert_int_equal(once_entry_wake(&second, &lane, NOW), ONCE_ENTRY_CHANGED);
    assert_int_equal(second.due_ms, NOW);
    assert_int_equal(take(&second, &lane, third, NOW, ONCE_ENTRY_CHANGED).answer, ONCE_ANSWER_RUN);
}

static void lane_frees_the_next_at_every_end(void **state)
{
    (void)state;
    for (int outcome = 0; outcome < ONCE_OUTCOMES; outcome++) {
        once_lane lane = lane_at(-1);
        once_entry e = absent();
        claim(&e, &lane, lane_request(mine, -1, -1), NOW, ONCE_ENTRY_CHANGED);
        const int letter = outcome == ONCE_DEAD ? ONCE_LETTER_NEEDED : 0;
        settle(&e, &lane, lane_request(mine, -1, -1), (once_outcome)outcome, NOW,
               ONCE_ENTRY_CHANGED | ONCE_LANE_FREED | letter);
        const int freed = once_state_unfinished(e.state) ? ONCE_LANE_FREED : 0;
        assert_int_equal(once_entry_forget(&e, NULL), ONCE_ENTRY_CHANGED | freed);
    }
    once_lane lane = lane_at(-1);
    once_entry e = absent();
    once_request q = lane_request(mine, -1, -1);
    q.hold = true;
    claim(&e, &lane, q, NOW, ONCE_ENTRY_CHANGED);
    q.token = yours;
    assert_int_equal(claim(&e, &lane, q, NOW + LEASE, ONCE_ENTRY_CHANGED | ONCE_LANE_FREED).answer,
                     ONCE_ANSWER_UNKNOWN);
}

static void f28_versions_against_the_lane(void **state)
{
    (void)state;
    static const struct {
        int64_t lane, version, gap_ms;
        once_answer claim, accept;
        bool recorded; /* the claim leaves an entry */
    } cases[] = {
        {-1, 0, 500, A(RUN), A(WAITING), true}, /* the first version seen is accepted */
        {-1, 7, 500, A(RUN), A(WAITING), true},
        {-1, INT64_MAX, 500, A(RUN), A(WAITING), true}, /* not taken for "behind somebody" */
        {7, 8, 500, A(RUN), A(WAITING), true},          /* next */
        {7, 7, 500, A(CONFLICT), A(CONFLICT), false},   /* equal, and nothing is known of the one that settled */
        {7, 6, 500, A(STALE), A(STALE), true},          /* older */
        {7, 0, -1, A(STALE), A(STALE), true},
        {7, 9, 500, A(GAP), A(WAITING), false}, /* further ahead */
        {7, INT64_MAX, 500, A(GAP), A(WAITING), false},
        {0, 2, 0, A(GAP), A(WAITING), false},
        {7, 9, -1, A(RUN), A(WAITING), true}, /* without `gap` a jump runs */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        once_lane lane = lane_at(cases[i].lane);
        once_entry e = absent();
        const once_request q = lane_request(mine, cases[i].version, cases[i].gap_ms);
        const bool stale = cases[i].claim == ONCE_ANSWER_STALE;
        const int changes = !cases[i].recorded ? ONCE_UNCHANGED : ONCE_ENTRY_CHANGED | (stale ? ONCE_LANE_FREED : 0);
        once_decision d = claim(&e, &lane, q, NOW, changes);
        assert_int_equal(d.answer, cases[i].claim);
        if (d.answer == ONCE_ANSWER_GAP) assert_int_equal(d.wait_ms, cases[i].gap_ms);
        if (stale) {
            assert_int_equal(e.state, ONCE_STATE_STALE);
            assert_int_equal(e.expires_ms, NOW + REMEMBER);
            assert_int_equal(claim(&e, &lane, q, NOW, ONCE_UNCHANGED).answer, ONCE_ANSWER_STALE); /* f76 */
            assert_int_equal(accept(&e, &lane, q, NOW, ONCE_UNCHANGED).answer, ONCE_ANSWER_STALE);
            once_request other = q;
            other.token = yours;
            assert_int_equal(claim(&e, &lane, other, NOW, ONCE_UNCHANGED).answer, ONCE_ANSWER_DUPLICATE);
        }

        e = absent();
        const bool kept = cases[i].accept == ONCE_ANSWER_WAITING;
        const bool gap = cases[i].claim == ONCE_ANSWER_GAP;
        d = accept(&e, &lane, q, NOW, kept ? ONCE_ENTRY_CHANGED | (gap ? ONCE_LANE_CHANGED : 0) : changes);
        assert_int_equal(d.answer, cases[i].accept);
        if (kept) {
            assert_int_equal(e.gap, gap);
            assert_int_equal(e.due_ms, gap ? NOW + (cases[i].gap_ms < 250 ? cases[i].gap_ms : 250)
                                           : NOW); /* looked at in steps */
        }
    }
}

/* Older is stale and leaves nothing, equal runs again, further ahead as for everybody. */
static void f28_versions_of_natural_ones_against_the_lane(void **state)
{
    (void)state;
    static const struct {
        int64_t lane, version, gap_ms;
        once_answer claim, accept;
    } cases[] = {
        {-1, 7, 500, A(RUN), A(WAITING)},
        {7, 8, 500, A(RUN), A(WAITING)},
        {7, 7, 500, A(RUN), A(WAITING)},
        {7, 7, -1, A(RUN), A(WAITING)},
        {7, 6, 500, A(STALE), A(STALE)},
        {7, 0, -1, A(STALE), A(STALE)},
        {7, 9, 500, A(GAP), A(WAITING)},
        {7, 9, -1, A(RUN), A(WAITING)},
        {INT64_MAX, INT64_MAX, 500, A(RUN), A(WAITING)},
        {0, 0, 500, A(RUN), A(WAITING)},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        once_lane lane = lane_at(cases[i].lane);
        once_entry e = absent();
        const once_request q = natural(lane_request(mine, cases[i].version, cases[i].gap_ms));
        const int changes = cases[i].claim == ONCE_ANSWER_RUN ? ONCE_ENTRY_CHANGED : ONCE_UNCHANGED;
        for (int again = 0; again < 2; again++) {
            once_decision d = claim(&e, &lane, q, NOW, changes);
            assert_int_equal(d.answer, cases[i].claim);
            if (!changes) continue;
            const bool rises = cases[i].version > lane.version;
            assert_true(settle(&e, &lane, q, ONCE_DONE, NOW,
                               ONCE_ENTRY_CHANGED | ONCE_LANE_FREED | (rises ? ONCE_LANE_CHANGED : 0)));
            assert_int_equal(e.state, ONCE_STATE_ABSENT);
            assert_int_equal(e.expires_ms, NOW + REMEMBER); /* of the lane's version */
            assert_int_equal(lane.version, cases[i].version);
        }
        lane = lane_at(cases[i].lane);
        e = absent();
        const int waits = ONCE_ENTRY_CHANGED | (cases[i].claim == ONCE_ANSWER_GAP ? ONCE_LANE_CHANGED : 0);
        assert_int_equal(
            accept(&e, &lane, q, NOW, cases[i].accept == ONCE_ANSWER_WAITING ? waits : ONCE_UNCHANGED).answer,
            cases[i].accept);
    }
}

/* One that waits, or whose worker died, while its version settled under the same key or another. */
static void f28_a_known_natural_one_of_the_lanes_version_runs(void **state)
{
    (void)state;
    for (int bits = 0; bits < 8; bits++)
        for (int64_t version = 8; version <= 9; version++) {
            const bool orphan = bits & 1, taken = bits & 2, woken = bits & 4;
            once_entry e = entry_in(orphan ? S(CLAIMED) : S(WAITING), woken && !orphan ? ONCE_NEVER : NOW);
            e.natural = e.versioned = e.has_message = true;
            e.message = body;
            e.lane = lane_id;
            e.order = version;
            e.gap_ms = 500;
            once_lane lane = lane_at(9);
            if (woken && !orphan) assert_int_equal(once_entry_wake(&e, &lane, NOW), ONCE_ENTRY_CHANGED);
            const int changes = ONCE_ENTRY_CHANGED | (version < 9 ? ONCE_LANE_FREED : 0);
            const once_decision d = taken ? take(&e, &lane, yours, NOW, changes)
                                          : claim(&e, &lane, natural(lane_request(yours, version, 500)), NOW, changes);
            assert_int_equal(d.answer, version < 9 ? A(STALE) : A(RUN));
            assert_int_equal(e.state, version < 9 ? S(ABSENT) : S(CLAIMED)); /* superseded: nothing is recorded */
        }
}

static void lane_version_only_rises_and_not_by_stale(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * ONCE_OUTCOMES; i++)
        for (int64_t before = -1; before < 9; before += 3) {
            const int outcome = i % ONCE_OUTCOMES;
            once_lane lane = lane_at(before);
            once_entry e = absent();
            once_request q = lane_request(mine, 5, -1);
            q.natural = i >= ONCE_OUTCOMES;
            once_lane empty = lane_at(-1);
            claim(&e, &empty, q, NOW, ONCE_ENTRY_CHANGED);
            const bool counts = outcome == ONCE_DONE || outcome == ONCE_ALREADY || outcome == ONCE_REJECTED;
            const bool rises = counts && before < 5;
            settle(&e, &lane, q, (once_outcome)outcome, NOW,
                   ONCE_ENTRY_CHANGED | ONCE_LANE_FREED | (rises ? ONCE_LANE_CHANGED : 0) |
                       (outcome == ONCE_DEAD ? ONCE_LETTER_NEEDED : 0));
            assert_int_equal(lane.version, rises ? 5 : before);
        }
}

/* --- where a lane begins --- */

static void f86_a_lane_waits_for_its_first_version(void **state)
{
    (void)state;
    for (int64_t first = 0; first < 3; first++)
        for (int64_t ahead = 0; ahead < 3; ahead++) {
            once_lane lane = lane_at(-1);
            once_entry e = absent();
            once_request q = lane_request(mine, first + ahead, 500);
            q.lane.has_first = true;
            q.lane.first = first;
            assert_int_equal(claim(&e, &lane, q, NOW, ahead ? ONCE_UNCHANGED : ONCE_ENTRY_CHANGED).answer,
                             ahead ? A(GAP) : A(RUN));
            lane = lane_at(-1);
            e = absent();
            accept(&e, &lane, q, NOW, ONCE_ENTRY_CHANGED | ONCE_LANE_CHANGED);
            assert_true(lane.has_next && lane.next == first && !lane.has_version);
            assert_int_equal(e.gap, ahead > 0);
            q.lane.gap_ms = -1; /* without `gap` a jump runs */
            lane = lane_at(-1);
            e = absent();
            assert_int_equal(claim(&e, &lane, q, NOW, ONCE_ENTRY_CHANGED).answer, ONCE_ANSWER_RUN);
        }
}

/* --- behind a dead one --- */

static void f33_a_dead_one_that_blocks_holds_its_lane(void **state)
{
    (void)state;
    for (int way = 0; way < 4; way++)
        for (int64_t version = -1; version < 5; version += 5) {
            once_lane lane = lane_at(-1);
            once_entry e = absent(), next = absent();
            once_request q = lane_request(mine, version, -1),
                         behind = lane_request(yours, version < 0 ? version : version + 1, -1);
            q.lane.block = behind.lane.block = true;
            next.id = behind.id = other_id;
            claim(&e, &lane, q, NOW, ONCE_ENTRY_CHANGED);
            if (way == 3) settle(&e, &lane, q, ONCE_UNKNOWN, NOW, ONCE_ENTRY_CHANGED | ONCE_LANE_FREED);
            const int died = ONCE_ENTRY_CHANGED | ONCE_LANE_FREED | ONCE_LANE_CHANGED | ONCE_LETTER_NEEDED;
            if (way == 3) assert_int_equal(once_entry_resolve(&e, &lane, ONCE_DEAD, ONCE_BYTES("no"), NOW), died);
            else settle(&e, &lane, q, ONCE_DEAD, NOW, died);
            assert_true(lane.n_blockers == 1 && once_hash_equal(lane.blockers[0].id, id) &&
                        lane.expires_ms == ONCE_FOREVER);
            assert_int_equal(claim(&next, &lane, behind, NOW, ONCE_UNCHANGED).answer, ONCE_ANSWER_LATER);
            accept(&next, &lane, behind, NOW, ONCE_ENTRY_CHANGED);
            assert_int_equal(once_entry_wake(&next, &lane, NOW), ONCE_UNCHANGED);
            assert_true(once_lane_explain(&lane, &next).len > 0);
            lane.head = lane.tail = next.order;
            const int freed = ONCE_ENTRY_CHANGED | ONCE_LANE_FREED | ONCE_LANE_CHANGED;
            if (way == 0) assert_int_equal(once_entry_forget(&e, &lane), freed);
            else if (way == 1) assert_int_equal(once_entry_replay(&e, &lane, NOW, &body), freed);
            else assert_int_equal(once_entry_discard(&e, &lane, ONCE_NO_TIME, NOW), freed);
            assert_true(lane.n_blockers == 0);
            lane.head = way == 1 ? e.order : ONCE_NEVER;
            lane.tail = way == 1 ? e.order : -1;
            assert_int_equal(once_entry_wake(&next, &lane, NOW),
                             way == 1 ? ONCE_UNCHANGED : ONCE_ENTRY_CHANGED); /* the replayed one is first */
        }
}

/* What is in front of the dead one is not behind it. */
static void f33_an_older_version_passes_a_dead_one_that_blocks(void **state)
{
    (void)state;
    once_lane lane = lane_at(1);
    once_entry e = absent(), older = absent();
    once_request q = lane_request(mine, 4, -1);
    q.lane.block = true;
    claim(&e, &lane, q, NOW, ONCE_ENTRY_CHANGED);
    settle(&e, &lane, q, ONCE_DEAD, NOW, ONCE_ENTRY_CHANGED | ONCE_LANE_FREED | ONCE_LANE_CHANGED | ONCE_LETTER_NEEDED);
    assert_int_equal(claim(&older, &lane, lane_request(yours, 3, -1), NOW, ONCE_ENTRY_CHANGED).answer, ONCE_ANSWER_RUN);
}

/* The entry of a version of the lane, which blocks when it dies. */
static once_entry dies_at(once_lane *lane, int64_t version)
{
    once_entry e = {.id = {7, (uint64_t)version + 1}};
    once_request q = lane_request(mine, version, -1);
    q.id = e.id;
    q.lane.block = true;
    assert_int_equal(claim(&e, lane, q, NOW, ONCE_ENTRY_CHANGED).answer, ONCE_ANSWER_RUN);
    settle(&e, lane, q, ONCE_DEAD, NOW, ONCE_ENTRY_CHANGED | ONCE_LANE_FREED | ONCE_LANE_CHANGED | ONCE_LETTER_NEEDED);
    return e;
}

/* An older version came late and died, too: the lane waits for both letters, whichever is decided first. */
static void f33_a_lane_waits_for_all_its_dead_that_block(void **state)
{
    (void)state;
    for (int way = 0; way < 6; way++) {
        once_lane lane = lane_at(1);
        once_entry dead[2] = {dies_at(&lane, 4), dies_at(&lane, 3)}, next = absent();
        once_entry *const first = &dead[way % 2], *const second = &dead[!(way % 2)];
        assert_true(once_lane_explain(&lane, first).len > 0 && once_lane_explain(&lane, second).len > 0);
        for (int i = 0; i < 2; i++) {
            once_entry *const e = i ? second : first;
            assert_int_equal(claim(&next, &lane, lane_request(yours, 5, -1), NOW, ONCE_UNCHANGED).answer,
                             ONCE_ANSWER_LATER);
            assert_true(lane.expires_ms == ONCE_FOREVER && lane.n_blockers == (unsigned)(2 - i));
            if (way < 2) assert_true(once_entry_discard(e, &lane, ONCE_NO_TIME, NOW) & ONCE_LANE_FREED);
            else if (way < 4) assert_true(once_entry_forget(e, &lane) & ONCE_LANE_FREED);
            else assert_true(once_entry_replay(e, &lane, NOW, &body) & ONCE_LANE_FREED);
        }
        assert_int_equal(lane.n_blockers, 0);
        assert_int_equal(claim(&next, &lane, lane_request(yours, 5, -1), NOW, ONCE_ENTRY_CHANGED).answer,
                         ONCE_ANSWER_RUN);
    }
}

static void f33_a_lane_that_cannot_keep_one_more_dead_one_lets_nothing_run(void **state)
{
    (void)state;
    once_lane lane = lane_at(1);
    once_entry dead = {0}, older = absent();
    for (int64_t i = 0; i < ONCE_LANE_BLOCKERS; i++) dead = dies_at(&lane, 100 - i);
    assert_int_equal(claim(&older, &lane, lane_request(yours, 5, -1), NOW, ONCE_UNCHANGED).answer, ONCE_ANSWER_LATER);
    once_entry_forget(&dead, &lane);
    assert_int_equal(claim(&older, &lane, lane_request(yours, 5, -1), NOW, ONCE_ENTRY_CHANGED).answer, ONCE_ANSWER_RUN);
}

static void f33_an_older_version_that_finishes_does_not_let_a_blocked_lane_expire(void **state)
{
    (void)state;
    once_lane lane = lane_at(1);
    once_entry e = absent();
    (void)dies_at(&lane, 4);
    const once_request q = lane_request(mine, 3, -1);
    claim(&e, &lane, q, NOW, ONCE_ENTRY_CHANGED);
    settle(&e, &lane, q, ONCE_DONE, NOW, ONCE_ENTRY_CHANGED | ONCE_LANE_FREED | ONCE_LANE_CHANGED);
    assert_true(lane.version == 3 && lane.n_blockers == 1 && lane.expires_ms == ONCE_FOREVER);
    assert_int_equal(once_lane_rest(&lane, &e, NOW), ONCE_UNCHANGED);
}

/* What was kept for those who waited is kept no longer than others when they are gone. */
static void a_lane_rests_when_all_have_left(void **state)
{
    (void)state;
    once_lane lane;
    once_entry e = behind_a_gap(&lane);
    once_entry_forget(&e, &lane);
    assert_int_equal(once_lane_rest(&lane, &e, NOW), ONCE_LANE_CHANGED);
    assert_true(lane.expires_ms == NOW + REMEMBER && !lane.waits);
    assert_int_equal(once_lane_rest(&lane, &e, NOW + 1), ONCE_UNCHANGED);
    lane.expires_ms = ONCE_FOREVER;
    lane.blockers[lane.n_blockers++].id = other_id;
    assert_int_equal(once_lane_rest(&lane, &e, NOW), ONCE_UNCHANGED);
}

/* But a dead one that did not run keeps it: its letter's end does not move the lane. */
static void a_gap_that_was_waited_for_is_not_kept_by_what_has_ended(void **state)
{
    (void)state;
    static const once_outcome ends[] = {ONCE_UNKNOWN, ONCE_DEAD, ONCE_DEAD};
    for (size_t i = 0; i < 3; i++) {
        once_lane lane;
        once_entry e = behind_a_gap(&lane);
        assert_true(take(&e, &lane, yours, NOW + 500, ONCE_ENTRY_CHANGED | ONCE_LANE_CHANGED).gap_over);
        once_request q = lane_request(yours, 9, 500);
        e.maybe_done = i == 1;
        assert_true(settle(&e, &lane, q, ends[i], NOW + 5000,
                           ONCE_ENTRY_CHANGED | ONCE_LANE_FREED | (i ? ONCE_LETTER_NEEDED | ONCE_LANE_CHANGED : 0)));
        assert_int_equal(e.gap, i == 2);
    }
}

static void whoever_claims_says_whether_it_is_held(void **state)
{
    (void)state;
    for (int hold = 0; hold < 2; hold++) {
        once_entry e = entry_in(S(WAITING), NOW);
        once_request q = request(yours);
        e.hold = !hold;
        q.hold = hold;
        assert_int_equal(claim(&e, NULL, q, NOW, ONCE_ENTRY_CHANGED).answer, ONCE_ANSWER_RUN);
        assert_int_equal(e.hold, hold);
    }
}

/* The same version under two keys, or one that came back from the dead: each would wait for the other. */
static void equals_in_a_lane_do_not_wait_for_each_other(void **state)
{
    (void)state;
    once_lane other = {.head = 9, .tail = 9};
    once_entry e = absent();
    assert_int_equal(claim(&e, &other, lane_request(mine, 9, -1), NOW, ONCE_UNCHANGED).answer, ONCE_ANSWER_LATER);
    accept(&e, &other, lane_request(mine, 9, -1), NOW, ONCE_ENTRY_CHANGED);
    assert_true(e.due_ms == ONCE_NEVER); /* it came second */
    assert_true(e.seen_ms == NOW);
    assert_int_equal(once_entry_wake(&e, &other, NOW), ONCE_ENTRY_CHANGED);
    assert_int_equal(take(&e, &other, yours, NOW, ONCE_ENTRY_CHANGED).answer, ONCE_ANSWER_RUN);

    once_entry dead = entry_in(S(DEAD), ONCE_NEVER);
    dead.lane = lane_id;
    once_entry_replay(&dead, NULL, NOW, &body);
    other = (once_lane){.head = 0, .tail = 0};
    assert_int_equal(take(&dead, &other, yours, NOW, ONCE_ENTRY_CHANGED).answer, ONCE_ANSWER_RUN);
}

/* The clock says nothing of the order within a millisecond, and it may go back. */
static void f86_an_equal_is_seen_after_those_that_came_before(void **state)
{
    (void)state;
    static const int64_t there_ms[] = {0, NOW - 1, NOW, NOW + 5, INT64_MAX},
                         seen_ms[] = {NOW, NOW, NOW + 1, NOW + 6, INT64_MAX};
    for (size_t i = 0; i < sizeof there_ms / sizeof *there_ms; i++) {
        once_lane lane = {.head = 9, .tail = 9, .equal_ms = there_ms[i]};
        once_entry e = absent();
        accept(&e, &lane, lane_request(mine, 9, -1), NOW, ONCE_ENTRY_CHANGED);
        assert_true(e.seen_ms == seen_ms[i]);
        assert_true(e.changed_ms == NOW);
    }
}

/* v5 is an orphan, v3 came meanwhile and is parked because the lane is claimed: v5 must go on, or neither ever does. */
static void f24_an_orphan_goes_on_before_what_came_in_front_of_it(void **state)
{
    (void)state;
    once_lane lane = lane_at(-1);
    once_entry orphan = absent();
    claim(&orphan, &lane, lane_request(mine, 5, -1), NOW, ONCE_ENTRY_CHANGED);
    once_entry claimed_again = orphan;
    lane = (once_lane){.head = 3, .tail = 3};
    once_decision d = claim(&claimed_again, &lane, lane_request(yours, 5, -1), NOW + LEASE, ONCE_ENTRY_CHANGED);
    assert_int_equal(d.answer, ONCE_ANSWER_RUN);
    orphan.message = body;
    orphan.has_message = true;
    d = take(&orphan, &lane, yours, NOW + LEASE, ONCE_ENTRY_CHANGED);
    assert_int_equal(d.answer, ONCE_ANSWER_RUN);
    assert_true(d.unreported);
}

static void a_lane_that_is_full_of_the_highest_version_still_counts(void **state)
{
    (void)state;
    once_lane lane = {.head = INT64_MAX, .tail = INT64_MAX};
    once_entry e = absent(); /* without a version: behind all others, and no overflow */
    assert_int_equal(accept(&e, &lane, lane_request(mine, -1, -1), NOW, ONCE_ENTRY_CHANGED).answer,
                     ONCE_ANSWER_WAITING);
    assert_true(e.order == INT64_MAX && e.due_ms == ONCE_NEVER);
}

static void wake_leaves_alone_what_waits_for_its_time(void **state)
{
    (void)state;
    once_lane lane = lane_at(-1);
    for (size_t i = 0; i < ROWS; i++) {
        once_entry e = entry_of(&rows[i]), before = e;
        if (e.state == ONCE_STATE_WAITING && e.due_ms == ONCE_NEVER) continue;
        assert_int_equal(once_entry_wake(&e, &lane, NOW), ONCE_UNCHANGED); /* a backoff is not cut short */
        assert_memory_equal(&e, &before, sizeof e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lane_runs_one_at_a_time_in_order_of_arrival),
        cmocka_unit_test(lane_frees_the_next_at_every_end),
        cmocka_unit_test(f28_versions_against_the_lane),
        cmocka_unit_test(f28_versions_of_natural_ones_against_the_lane),
        cmocka_unit_test(f28_a_known_natural_one_of_the_lanes_version_runs),
        cmocka_unit_test(lane_version_only_rises_and_not_by_stale),
        cmocka_unit_test(a_gap_that_was_waited_for_is_not_kept_by_what_has_ended),
        cmocka_unit_test(whoever_claims_says_whether_it_is_held),
        cmocka_unit_test(f86_a_lane_waits_for_its_first_version),
        cmocka_unit_test(f33_a_dead_one_that_blocks_holds_its_lane),
        cmocka_unit_test(f33_an_older_version_passes_a_dead_one_that_blocks),
        cmocka_unit_test(f33_a_lane_waits_for_all_its_dead_that_block),
        cmocka_unit_test(f33_a_lane_that_cannot_keep_one_more_dead_one_lets_nothing_run),
        cmocka_unit_test(f33_an_older_version_that_finishes_does_not_let_a_blocked_lane_expire),
        cmocka_unit_test(a_lane_rests_when_all_have_left),
        cmocka_unit_test(equals_in_a_lane_do_not_wait_for_each_other),
        cmocka_unit_test(f86_an_equal_is_seen_after_those_that_came_before),
        cmocka_unit_test(f24_an_orphan_goes_on_before_what_came_in_front_of_it),
        cmocka_unit_test(a_lane_that_is_full_of_the_highest_version_still_counts),
        cmocka_unit_test(wake_leaves_alone_what_waits_for_its_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
