/* Every rule of an entry: each state against each request, the retry budget, fences, times, and any entry that a store
 * may hold. */
#include "entry_fixture.h"

/* --- every state against every request --- */

/* What is known of the attempt before is told to the next one, and counted only when nobody has counted it. */
static void check_claim_of_a_stranger(bool silent, bool is_natural)
{
    for (size_t i = 0; i < ROWS; i++) {
        const row *r = &rows[i];
        once_entry e = entry_of(r);
        e.unreported = silent && !once_state_finished(e.state);
        e.natural = !is_natural; /* the handler has changed: whoever claims says how it is now */
        once_request q = request(yours);
        q.natural = is_natural;
        once_decision d;
        const int changes = once_entry_claim(&e, NULL, &q, NOW, &d);
        if (d.answer != r->claim || e.state != r->after_claim)
            fail_msg("%s: %s, then %s", r->name, once_answer_name(d.answer), once_state_name(e.state));
        assert_int_equal(changes, r->runs || e.state != r->state ? ONCE_ENTRY_CHANGED : ONCE_UNCHANGED);
        if (r->runs) {
            const bool orphan = r->state == ONCE_STATE_CLAIMED;
            assert_true(once_hash_equal(e.token, yours));
            assert_int_equal(e.due_ms, NOW + LEASE);
            assert_int_equal(e.attempt, is_new_life(r) ? 1 : 4);
            assert_int_equal(e.failures, is_new_life(r) ? 0
                                         : orphan       ? 3
                                                        : 2); /* ending without an outcome is a failure */
            assert_int_equal(d.attempt, e.attempt);
            assert_int_equal(d.failures, e.failures);
            assert_int_equal(d.unreported, !is_new_life(r) && (orphan || silent));
            assert_int_equal(e.unreported, d.unreported);
            assert_int_equal(e.natural, is_natural);
        } else {
            assert_true(once_hash_equal(e.token, mine));
            assert_int_equal(e.attempt, 3);
        }
        assert_false(d.own);
        if (d.answer == ONCE_ANSWER_DUPLICATE) {
            assert_int_equal(d.result.len, 6);
            assert_string_equal(once_outcome_name(d.outcome), once_state_name(r->state));
        }
    }
}

static void claim_of_a_stranger_in_every_state(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) check_claim_of_a_stranger(i & 1, i & 2);
}

static void accept_of_a_stranger_in_every_state(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++) {
        const row *r = &rows[i];
        once_entry e = entry_of(r);
        const once_request q = request(yours);
        once_decision d;
        const int changes = once_entry_accept(&e, NULL, &q, &body, NOW, &d);
        if (d.answer != r->accept || e.state != r->after_accept || e.has_message != r->attaches)
            fail_msg("%s: %s, then %s", r->name, once_answer_name(d.answer), once_state_name(e.state));
        assert_int_equal(changes, r->attaches ? ONCE_ENTRY_CHANGED : ONCE_UNCHANGED);
        if (r->attaches && !is_new_life(r)) { /* the second body finds the first one there */
            once_entry before = e;
            assert_int_equal(once_entry_accept(&e, NULL, &q, &body, NOW, &d), ONCE_UNCHANGED);
            assert_memory_equal(&e, &before, sizeof e);
        }
    }
}

static void f26_another_fingerprint_conflicts_in_every_state(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++) {
        if (is_new_life(&rows[i])) continue;
        once_entry e = entry_of(&rows[i]);
        e.maybe_done = e.state == ONCE_STATE_WAITING; /* otherwise it would give way */
        const once_entry before = e;
        once_request q = request(yours);
        q.fingerprint = print_b;
        once_decision d = claim(&e, NULL, q, NOW, ONCE_UNCHANGED);
        assert_int_equal(d.answer, ONCE_ANSWER_CONFLICT);
        assert_int_equal(d.result.len, 0); /* never the stored result */
        d = accept(&e, NULL, q, NOW, ONCE_UNCHANGED);
        assert_int_equal(d.answer, ONCE_ANSWER_CONFLICT);
        assert_memory_equal(&e, &before, sizeof e);

        q.fingerprint = (once_hash){0}; /* none on one side: nothing to compare */
        d = claim(&e, NULL, q, NOW, before.due_ms <= NOW ? ONCE_ENTRY_CHANGED : ONCE_UNCHANGED);
        assert_int_equal(d.answer, rows[i].claim);
    }
}

static void f14_settle_by_a_stranger_is_fenced_in_every_state(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++)
        for (int outcome = 0; outcome < ONCE_OUTCOMES; outcome++) {
            once_entry e = entry_of(&rows[i]), before = e;
            assert_false(settle(&e, NULL, request(yours), (once_outcome)outcome, NOW, ONCE_UNCHANGED));
            assert_memory_equal(&e, &before, sizeof e);
            /* A natural one that has finished cannot be told from one that was never there; a body that nobody kept
             * can. */
            const bool applied = settle(&e, NULL, natural(request(yours)), (once_outcome)outcome, NOW, ONCE_UNCHANGED);
            assert_int_equal(applied, is_new_life(&rows[i]) && outcome <= ONCE_STALE);
            assert_memory_equal(&e, &before, sizeof e);
        }
}

static void settle_by_the_owner_in_every_state(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++)
        for (int outcome = 0; outcome < ONCE_OUTCOMES; outcome++) {
            const row *r = &rows[i];
            const once_state to = state_of_outcome[outcome];
            const bool open = r->state == ONCE_STATE_CLAIMED || r->state == ONCE_STATE_UNKNOWN;
            once_entry e = entry_of(r), before = e;
            const bool applied = settle(&e, NULL, request(mine), (once_outcome)outcome, NOW,
                                        !open                  ? ONCE_UNCHANGED
                                        : outcome == ONCE_DEAD ? ONCE_ENTRY_CHANGED | ONCE_LETTER_NEEDED
                                                               : ONCE_ENTRY_CHANGED);
            if (!open) { /* a reply that was lost, or nothing of ours */
                assert_int_equal(applied, r->state == to && !is_new_life(r));
                assert_memory_equal(&e, &before, sizeof e);
                continue;
            }
            assert_true(applied);
            assert_int_equal(e.state, to);
            assert_int_equal(e.changed_ms, to == S(UNKNOWN) && r->state == to ? before.changed_ms : NOW);
            assert_int_equal(e.attempt, 3);
            assert_int_equal(e.failures, outcome == ONCE_RETRY ? 3 : 2);
            assert_int_equal(e.due_ms, to == S(WAITING) ? NOW + 100 : ONCE_NEVER);
            assert_int_equal(e.has_message, !once_state_finished(to));
            if (once_state_finished(to)) {
                assert_int_equal(e.expires_ms, NOW + REMEMBER);
                assert_int_equal(e.result.len, 6);
            }
            before = e; /* f76: the same settlement once more */
            assert_true(settle(&e, NULL, request(mine), (once_outcome)outcome, NOW + 1,
                               outcome == ONCE_UNKNOWN ? ONCE_ENTRY_CHANGED : ONCE_UNCHANGED));
            assert_int_equal(e.state, before.state);
            assert_int_equal(e.failures, before.failures);
            assert_int_equal(e.due_ms, before.due_ms);
        }
}

/* Nothing is kept of what finished; a failure is an entry as for everybody. */
static void natural_settle_in_every_state(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++)
        for (int outcome = 0; outcome < ONCE_OUTCOMES; outcome++) {
            const once_state to = state_of_outcome[outcome];
            if (rows[i].state != ONCE_STATE_CLAIMED && rows[i].state != ONCE_STATE_UNKNOWN) continue;
            once_entry e = entry_of(&rows[i]);
            e.natural = true;
            const int letter = outcome == ONCE_DEAD ? ONCE_LETTER_NEEDED : 0;
            assert_true(
                settle(&e, NULL, natural(request(mine)), (once_outcome)outcome, NOW, ONCE_ENTRY_CHANGED | letter));
            if (!once_state_finished(to)) {
                assert_int_equal(e.state, to);
                assert_true(e.natural);
                continue;
            }
            assert_int_equal(e.state, ONCE_STATE_ABSENT);
            assert_true(settle(&e, NULL, natural(request(mine)), (once_outcome)outcome, NOW, ONCE_UNCHANGED)); /* f76 */
            once_request other = natural(request(yours));
            other.fingerprint = print_b; /* there is nothing left to be in conflict with */
            const once_decision d = claim(&e, NULL, other, NOW, ONCE_ENTRY_CHANGED);
            assert_int_equal(d.answer, ONCE_ANSWER_RUN);
            assert_true(d.attempt == 1 && d.failures == 0 && !d.unreported && !d.own);
            assert_false(
                settle(&e, NULL, natural(request(mine)), (once_outcome)outcome, NOW, ONCE_UNCHANGED)); /* f14 */
        }
}

/* A new key runs without a claim, and nothing changes. What is known answers as it always does. */
static void natural_without_a_claim_in_every_state(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++) {
        once_entry e = entry_of(&rows[i]), same = e, before = e;
        once_request q = natural(request(yours));
        once_decision usual, d;
        const int changes = once_entry_claim(&same, NULL, &q, NOW, &usual);
        q.unclaimed = true;
        assert_int_equal(once_entry_claim(&e, NULL, &q, NOW, &d), is_new_life(&rows[i]) ? ONCE_UNCHANGED : changes);
        assert_int_equal(d.answer, usual.answer);
        assert_int_equal(d.attempt, usual.attempt);
        assert_int_equal(d.failures, usual.failures);
        assert_int_equal(d.failing_for_ms, usual.failing_for_ms);
        assert_int_equal(d.unclaimed, is_new_life(&rows[i]));
        assert_memory_equal(&e, is_new_life(&rows[i]) ? &before : &same, sizeof e);
    }
}

/* Who settles says whether the effect may have happened; a release of a claim that never ran says nothing. */
static void maybe_in_every_state(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++)
        for (int outcome = 0; outcome < ONCE_OUTCOMES; outcome++)
            for (int bits = 0; bits < 4; bits++) {
                const bool before = bits & 1, maybe = bits & 2;
                const bool open = rows[i].state == ONCE_STATE_CLAIMED || rows[i].state == ONCE_STATE_UNKNOWN;
                once_entry e = entry_of(&rows[i]);
                e.unreported = before;
                settle_maybe(&e, request(mine), (once_outcome)outcome, maybe, NOW);
                const bool says = open && (outcome == ONCE_RETRY || outcome == ONCE_DEAD);
                assert_int_equal(e.unreported, says ? maybe : before);
                settle_maybe(&e, request(mine), (once_outcome)outcome, !maybe,
                             NOW); /* once more: only the first one counts */
                if (open && outcome != ONCE_UNKNOWN) assert_int_equal(e.unreported, says ? maybe : before);
            }
}

static void extend_in_every_state(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++) {
        bool ours;
        once_entry e = entry_of(&rows[i]), before = e;
        once_request q = request(yours);
        assert_int_equal(once_entry_extend(&e, &q, NOW, &ours), ONCE_UNCHANGED);
        assert_false(ours);
        assert_memory_equal(&e, &before, sizeof e);

        q = request(mine);
        const bool claimed = rows[i].state == ONCE_STATE_CLAIMED;
        assert_int_equal(once_entry_extend(&e, &q, NOW, &ours), claimed ? ONCE_ENTRY_CHANGED : ONCE_UNCHANGED);
        assert_int_equal(ours, claimed);
        if (claimed) assert_int_equal(e.due_ms, NOW + LEASE);
    }
}

static void f74_forget_leaves_nothing_and_fences_the_zombie(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++) {
        once_entry e = entry_of(&rows[i]);
        assert_int_equal(once_entry_forget(&e, NULL), ONCE_ENTRY_CHANGED);
        assert_int_equal(e.state, ONCE_STATE_ABSENT);
        assert_false(settle(&e, NULL, request(mine), ONCE_DONE, NOW, ONCE_UNCHANGED));
        const once_decision d = claim(&e, NULL, request(yours), NOW, ONCE_ENTRY_CHANGED);
        assert_int_equal(d.attempt, 1);
        assert_int_equal(d.failures, 0);
        assert_false(settle(&e, NULL, request(mine), ONCE_DONE, NOW, ONCE_UNCHANGED));
        bool ours;
        const once_request q = request(mine);
        once_entry_extend(&e, &q, NOW, &ours);
        assert_false(ours);
        assert_true(settle(&e, NULL, request(yours), ONCE_DONE, NOW, ONCE_ENTRY_CHANGED));
    }
}

/* Made anew under the same id, natural or not: whoever lived before has no say, whatever it wants to say. */
static void f74_a_zombie_of_an_earlier_life_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++) {
        if (!is_new_life(&rows[i])) continue;
        for (int outcome = 0; outcome < ONCE_OUTCOMES; outcome++) {
            once_entry e = entry_of(&rows[i]);
            claim(&e, NULL, request(yours), NOW, ONCE_ENTRY_CHANGED);
            const once_entry before = e;
            assert_false(settle(&e, NULL, request(mine), (once_outcome)outcome, NOW, ONCE_UNCHANGED));
            assert_false(settle(&e, NULL, natural(request(mine)), (once_outcome)outcome, NOW, ONCE_UNCHANGED));
            assert_int_equal(claim(&e, NULL, request(mine), NOW, ONCE_UNCHANGED).answer, ONCE_ANSWER_BUSY);
            assert_memory_equal(&e, &before, sizeof e);
        }
    }
}

static void replay_in_every_state(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++) {
        once_entry e = entry_of(&rows[i]), before = e;
        e.run = before.run = 77;
        if (rows[i].state != ONCE_STATE_DEAD) {
            assert_int_equal(once_entry_replay(&e, NULL, NOW, &body), ONCE_UNCHANGED);
            assert_memory_equal(&e, &before, sizeof e);
            continue;
        }
        assert_int_equal(once_entry_replay(&e, NULL, NOW, &body), ONCE_ENTRY_CHANGED);
        assert_int_equal(e.state, ONCE_STATE_WAITING);
        assert_int_equal(e.due_ms, NOW);
        assert_int_equal(e.failures, 0);
        assert_int_equal(e.run, 0); /* no run counts it as waiting */
        assert_int_equal(e.attempt, 3);
        assert_true(e.has_message);
        assert_false(
            settle(&e, NULL, request(mine), ONCE_DONE, NOW, ONCE_UNCHANGED)); /* whoever buried it is fenced off, */
        assert_false(settle(&e, NULL, request(mine), ONCE_RETRY, NOW,
                            ONCE_UNCHANGED)); /* also when it is waiting as that one says */
        const once_decision d = take(&e, NULL, yours, NOW, ONCE_ENTRY_CHANGED);
        assert_int_equal(d.answer, ONCE_ANSWER_RUN);
        assert_int_equal(d.attempt, 4);
        assert_int_equal(d.failures, 0);
    }
}

static void take_of_everything_that_can_be_due(void **state)
{
    (void)state;
    for (int hold = 0; hold < 2; hold++)
        for (int orphan = 0; orphan < 2; orphan++) {
            once_entry e = entry_in(orphan ? S(CLAIMED) : S(WAITING), NOW);
            e.hold = hold;
            e.message = body;
            e.has_message = true;
            const once_decision d = take(&e, NULL, yours, NOW, ONCE_ENTRY_CHANGED);
            if (orphan && hold) {
                assert_int_equal(d.answer, ONCE_ANSWER_UNKNOWN);
                assert_int_equal(e.state, ONCE_STATE_UNKNOWN);
                assert_true(e.has_message);
                assert_true(
                    settle(&e, NULL, request(mine), ONCE_DONE, NOW, ONCE_ENTRY_CHANGED)); /* it lived after all */
                continue;
            }
            assert_int_equal(d.answer, ONCE_ANSWER_RUN);
            assert_int_equal(d.attempt, 4);
            assert_int_equal(d.failures, orphan ? 3 : 2);
            assert_int_equal(d.unreported, orphan);
            assert_int_equal(e.due_ms, NOW + LEASE);
            assert_true(e.has_message);
            assert_false(settle(&e, NULL, request(mine), ONCE_DONE, NOW, ONCE_UNCHANGED));
        }
}

/* --- a claim, its budget, its end --- */

static void f76_a_claim_repeated_after_a_lost_reply_is_the_same_claim(void **state)
{
    (void)state;
    once_entry e = absent();
    once_decision first = claim(&e, NULL, request(mine), NOW, ONCE_ENTRY_CHANGED);
    assert_false(first.own);
    first.own = true; /* all that differs */
    static const int64_t later[] = {0, 1, LEASE - 1, LEASE,
                                    10 * LEASE}; /* also when the lease is over and nobody came */
    for (size_t i = 0; i < sizeof later / sizeof *later; i++) {
        const once_decision again = claim(&e, NULL, request(mine), NOW + later[i], ONCE_ENTRY_CHANGED);
        assert_memory_equal(&again, &first, sizeof first);
        assert_int_equal(e.due_ms, NOW + later[i] + LEASE);
    }
    assert_int_equal(claim(&e, NULL, request(yours), NOW + 20 * LEASE, ONCE_ENTRY_CHANGED).answer, ONCE_ANSWER_RUN);
    const once_decision d = claim(&e, NULL, request(mine), NOW + 20 * LEASE, ONCE_UNCHANGED);
    assert_true(d.answer == ONCE_ANSWER_BUSY && !d.own);
}

static void f76_an_accept_repeated_after_a_lost_reply_is_the_same_accept(void **state)
{
    (void)state;
    once_entry e = absent();
    const once_decision first = accept(&e, NULL, request(mine), NOW, ONCE_ENTRY_CHANGED);
    const once_decision again = accept(&e, NULL, request(mine), NOW + 5, ONCE_UNCHANGED);
    assert_memory_equal(&again, &first, sizeof first);
    take(&e, NULL, yours, NOW + 5, ONCE_ENTRY_CHANGED);
    assert_int_equal(accept(&e, NULL, request(mine), NOW + 6, ONCE_UNCHANGED).answer, ONCE_ANSWER_BUSY);
    settle(&e, NULL, request(yours), ONCE_DONE, NOW + 7, ONCE_ENTRY_CHANGED);
    assert_int_equal(accept(&e, NULL, request(mine), NOW + 8, ONCE_UNCHANGED).answer, ONCE_ANSWER_DUPLICATE);
}

static void attempts_and_failures_are_counted_apart(void **state)
{
    (void)state;
    static const struct {
        once_outcome outcome;
        uint32_t failures; /* after it */
    } steps[] = {{ONCE_RETRY, 1},   {ONCE_RELEASE, 1}, {ONCE_RETRY, 2},
                 {ONCE_RELEASE, 2}, {ONCE_RELEASE, 2}, {ONCE_RETRY, 3}};
    once_entry e = absent();
    int64_t now_ms = NOW;
    uint32_t failures = 0;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) { /* f77: release does not count */
        const once_request q = request((once_token){100 + i, 1});
        const once_decision d = claim(&e, NULL, q, now_ms, ONCE_ENTRY_CHANGED);
        assert_int_equal(d.attempt, i + 1);
        assert_int_equal(d.failures, failures);
        assert_false(d.unreported);
        assert_true(settle(&e, NULL, q, steps[i].outcome, now_ms, ONCE_ENTRY_CHANGED));
        failures = steps[i].failures;
        assert_int_equal(claim(&e, NULL, request(yours), now_ms, ONCE_UNCHANGED).wait_ms, 100);
        now_ms += 100;
    }
}

static void a_retried_unknown_is_one_failure(void **state)
{
    (void)state;
    once_entry e = absent();
    claim(&e, NULL, request(mine), NOW, ONCE_ENTRY_CHANGED);
    settle(&e, NULL, request(mine), ONCE_UNKNOWN, NOW, ONCE_ENTRY_CHANGED);
    assert_int_equal(e.failures, 0);
    assert_true(settle(&e, NULL, request(mine), ONCE_RETRY, NOW, ONCE_ENTRY_CHANGED));
    assert_int_equal(e.failures, 1);
    const once_decision d = take(&e, NULL, yours, NOW + 100, ONCE_ENTRY_CHANGED);
    assert_int_equal(d.failures, 1);
    assert_int_equal(d.attempt, 2);
}

/* What can happen to an attempt, and what the next one hears of it. */
enum { FAILS, MAYBE_FAILS, RELEASED, ORPHANED, UNKNOWN_RETRIED, DIES, MAYBE_DIES, UNKNOWN_DIES, FATES };

static void meet(once_entry *e, int fate, once_request r, int64_t now_ms)
{
    switch (fate) {
    case FAILS:
    case MAYBE_FAILS: assert_true(settle_maybe(e, r, ONCE_RETRY, fate == MAYBE_FAILS, now_ms)); break;
    case RELEASED: assert_true(settle_maybe(e, r, ONCE_RELEASE, false, now_ms)); break;
    case ORPHANED: break;
    case UNKNOWN_RETRIED:
    case UNKNOWN_DIES:
        assert_true(settle_maybe(e, r, ONCE_UNKNOWN, false, now_ms));
        once_entry_resolve(e, NULL, fate == UNKNOWN_DIES ? ONCE_DEAD : ONCE_RETRY, ONCE_BYTES(""), now_ms);
        break;
    default: assert_true(settle_maybe(e, r, ONCE_DEAD, fate == MAYBE_DIES, now_ms));
    }
    if (e->state == ONCE_STATE_DEAD) {
        e->has_message = false; /* its letter has it */
        assert_int_equal(once_entry_replay(e, NULL, now_ms, &body), ONCE_ENTRY_CHANGED);
    }
}

/* Every sequence of four fates, by turns taken and claimed. */
static void f77_budget_and_silence_after_every_sequence(void **state)
{
    (void)state;
    for (int sequence = 0; sequence < FATES * FATES * FATES * FATES; sequence++) {
        once_entry e = absent();
        uint32_t failures = 0;
        bool silent = false, ever = false, orphaned = false;
        int64_t first_ms = -1; /* when the first failure since the last replay was counted */
        int64_t now_ms = NOW;
        for (int i = 0, rest = sequence; i < 5; i++, rest /= FATES) {
            const once_request r = request((once_token){100 + (uint64_t)i, 1});
            const bool taken = e.has_message && (sequence + i) % 2;
            const once_decision d = taken ? take(&e, NULL, r.token, now_ms, ONCE_ENTRY_CHANGED)
                                          : claim(&e, NULL, r, now_ms, ONCE_ENTRY_CHANGED);
            if (d.answer != ONCE_ANSWER_RUN || d.attempt != (uint32_t)i + 1 || d.failures != failures ||
                d.unreported != silent || d.maybe_done != ever || d.orphan != orphaned)
                fail_msg("sequence %d, attempt %d: failures %u, not %u; silent %d, not %d; maybe %d, not %d", sequence,
                         i + 1, d.failures, failures, d.unreported, silent, d.maybe_done, ever);
            if (orphaned && first_ms < 0) first_ms = now_ms; /* counted by this claim */
            assert_int_equal(d.failing_for_ms, first_ms < 0 ? -1 : now_ms - first_ms);
            const int fate = rest % FATES;
            meet(&e, fate, r, now_ms);
            now_ms += LEASE;
            const bool anew =
                fate == DIES || fate == MAYBE_DIES || fate == UNKNOWN_DIES || fate == UNKNOWN_RETRIED; /* by a person */
            if (anew) failures = 0;
            else if (fate != RELEASED) failures++;
            if (fate != RELEASED) silent = fate != FAILS && fate != DIES;
            ever |= silent;
            orphaned = fate == ORPHANED;
            if (anew) first_ms = -1;
            else if (fate != RELEASED && !orphaned && first_ms < 0) first_ms = now_ms - LEASE; /* when it was settled */
        }
    }
}

static void f16_every_claim_has_a_deadline(void **state)
{
    (void)state;
    once_entry e = absent();
    claim(&e, NULL, request(mine), NOW, ONCE_ENTRY_CHANGED);
    assert_int_equal(e.due_ms, NOW + LEASE);
    assert_int_equal(claim(&e, NULL, request(yours), NOW + LEASE - 1, ONCE_UNCHANGED).wait_ms, 1);
    assert_int_equal(claim(&e, NULL, request(yours), NOW + LEASE, ONCE_ENTRY_CHANGED).answer, ONCE_ANSWER_RUN);
    assert_int_equal(e.due_ms, NOW + 2 * LEASE);
}

/* 0 is a number: a lease that ends now has ended, a time of 0 is long ago, and a wait of 0 is over. Below 0 too. */
static void f17_nothing_left_is_not_unset(void **state)
{
    (void)state;
    static const int64_t over[] = {NOW, NOW - 1, 0, -1, INT64_MIN};
    for (size_t i = 0; i < sizeof over / sizeof *over; i++) {
        once_entry e = entry_in(S(CLAIMED), over[i]);
        assert_int_equal(claim(&e, NULL, request(yours), NOW, ONCE_ENTRY_CHANGED).answer, ONCE_ANSWER_RUN);
        e = entry_in(S(WAITING), over[i]);
        e.message = body;
        e.has_message = true;
        assert_int_equal(take(&e, NULL, yours, NOW, ONCE_ENTRY_CHANGED).answer, ONCE_ANSWER_RUN);
        e = entry_in(S(WAITING), over[i]);
        const once_decision d = accept(&e, NULL, request(yours), NOW, ONCE_ENTRY_CHANGED);
        assert_true(d.answer == ONCE_ANSWER_LATER && d.wait_ms == 0); /* now, and neither never nor a default */
        e = entry_in(S(DONE), over[i]);
        assert_true(once_entry_expired(&e, NOW));
    }
    once_entry e = entry_in(S(CLAIMED), 1);
    assert_int_equal(claim(&e, NULL, request(yours), 0, ONCE_UNCHANGED).wait_ms, 1); /* and a clock at 0 is a clock */
    const once_request q = request(mine);
    const once_settlement s = {.request = &q, .outcome = ONCE_RETRY, .delay_ms = 0, .message = &body};
    bool applied;
    once_entry_settle(&e, NULL, &s, NOW, &applied);
    assert_int_equal(e.due_ms, NOW);

    once_lane lane = lane_at(7); /* a gap that is waited for 0 ms is over at once; -1 is none */
    e = absent();
    assert_int_equal(accept(&e, &lane, lane_request(mine, 9, 0), NOW, ONCE_ENTRY_CHANGED | ONCE_LANE_CHANGED).wait_ms,
                     0);
    const once_decision d = take(&e, &lane, yours, NOW, ONCE_ENTRY_CHANGED | ONCE_LANE_CHANGED);
    assert_true(d.answer == ONCE_ANSWER_RUN && d.gap_over);
}

static void f21_extreme_times_do_not_wrap(void **state)
{
    (void)state;
    static const int64_t extremes[] = {INT64_MAX, INT64_MAX - 1, INT64_MAX - NOW, INT64_MAX - NOW + 1};
    for (size_t i = 0; i < sizeof extremes / sizeof *extremes; i++) {
        once_entry e = absent();
        once_request q = request(mine);
        q.lease_ms = extremes[i];
        q.remember_ms = extremes[i];
        q.sent_ms = INT64_MIN + 1;
        claim(&e, NULL, q, NOW, ONCE_ENTRY_CHANGED);
        assert_true(e.due_ms > NOW);
        assert_int_equal(claim(&e, NULL, request(yours), NOW + 1, ONCE_UNCHANGED).answer, ONCE_ANSWER_BUSY);
        bool ours;
        once_entry_extend(&e, &q, NOW, &ours);
        assert_true(ours && e.due_ms > NOW);
        once_settlement s = {.request = &q, .outcome = ONCE_RETRY, .delay_ms = extremes[i]};
        once_entry_settle(&e, NULL, &s, NOW, &ours);
        assert_true(ours && e.due_ms > NOW);
        e.due_ms = NOW;
        claim(&e, NULL, q, NOW, ONCE_ENTRY_CHANGED);
        settle(&e, NULL, q, ONCE_DONE, NOW, ONCE_ENTRY_CHANGED);
        assert_true(e.expires_ms > NOW);
        assert_false(once_entry_expired(&e, INT64_MAX - 1 - NOW));
    }
}

static void remembered_at_least_as_long_as_once_promised(void **state)
{
    (void)state;
    once_entry e = entry_in(S(CLAIMED), NOW + 1);
    e.expires_ms = NOW + 2 * REMEMBER;
    settle(&e, NULL, request(mine), ONCE_DONE, NOW, ONCE_ENTRY_CHANGED);
    assert_int_equal(e.expires_ms, NOW + 2 * REMEMBER);
}

static void f71_older_than_remembered_is_too_old(void **state)
{
    (void)state;
    static const struct {
        int64_t sent_ms;
        bool too_old;
    } cases[] = {{ONCE_NO_TIME, false},
                 {NOW, false},
                 {NOW - REMEMBER + 1, false},
                 {NOW - REMEMBER, true},
                 {NOW - REMEMBER - 1, true},
                 {0, true},
                 {-5, true},
                 {INT64_MIN + 1, true},
                 {INT64_MAX, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        once_entry e = absent();
        once_request q = request(mine);
        q.sent_ms = cases[i].sent_ms;
        const int changes = cases[i].too_old ? ONCE_UNCHANGED : ONCE_ENTRY_CHANGED;
        assert_int_equal(claim(&e, NULL, q, NOW, changes).answer, cases[i].too_old ? A(TOO_OLD) : A(RUN));
        e = absent();
        assert_int_equal(accept(&e, NULL, q, NOW, changes).answer, cases[i].too_old ? A(TOO_OLD) : A(WAITING));
        e = absent();
        q.remember_ms = ONCE_FOREVER;
        assert_int_equal(claim(&e, NULL, q, NOW, ONCE_ENTRY_CHANGED).answer, ONCE_ANSWER_RUN);
    }
}

/* Nothing of a natural message could have expired, but for the version of its lane. */
static void f71_a_natural_message_is_too_old_only_for_its_lane(void **state)
{
    (void)state;
    once_request q = natural(request(mine));
    q.sent_ms = 0;
    once_entry e = absent();
    assert_int_equal(claim(&e, NULL, q, NOW, ONCE_ENTRY_CHANGED).answer, ONCE_ANSWER_RUN);
    e = absent();
    assert_int_equal(accept(&e, NULL, q, NOW, ONCE_ENTRY_CHANGED).answer, ONCE_ANSWER_WAITING);
    once_lane lane = lane_at(-1);
    for (int64_t version = -1; version < 1; version++) {
        q = natural(lane_request(mine, version, -1));
        q.sent_ms = 0;
        e = absent();
        assert_int_equal(claim(&e, &lane, q, NOW, version < 0 ? ONCE_ENTRY_CHANGED : ONCE_UNCHANGED).answer,
                         version < 0 ? A(RUN) : A(TOO_OLD));
    }
}

/* There is no moment at which an entry has expired and its message, sent before it was settled, may run again. */
static void f71_no_moment_between_expired_and_too_old(void **state)
{
    (void)state;
    once_entry settled = absent();
    once_request q = request(mine);
    q.sent_ms = NOW;
    claim(&settled, NULL, q, NOW, ONCE_ENTRY_CHANGED);
    settle(&settled, NULL, q, ONCE_DONE, NOW, ONCE_ENTRY_CHANGED);
    for (int64_t at = -2; at <= 2; at++) {
        once_entry e = settled;
        q.token = yours;
        const once_decision d = claim(&e, NULL, q, NOW + REMEMBER + at, ONCE_UNCHANGED);
        assert_int_equal(d.answer, at < 0 ? ONCE_ANSWER_DUPLICATE : ONCE_ANSWER_TOO_OLD);
    }
}

static void f71_what_the_store_knows_is_never_too_old(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++) {
        if (is_new_life(&rows[i])) continue;
        once_entry e = entry_of(&rows[i]);
        once_request q = request(yours);
        q.sent_ms = 0;
        once_decision d;
        once_entry_claim(&e, NULL, &q, NOW, &d);
        assert_int_equal(d.answer, rows[i].claim);
    }
}

/* --- whatever was read --- */

static uint64_t drawn;

static uint64_t draw(uint64_t below)
{
    drawn = drawn * 6364136223846793005u + 1442695040888963407u;
    return (drawn >> 16) % below;
}

/* Ordinary ones, and those at the edges. */
static int64_t any_number(void)
{
    static const int64_t edges[] = {
        INT64_MIN,        INT64_MIN + 1, -2,       -1, 0, 1, NOW - 1, NOW, NOW + 1, INT64_MAX / 4,
        ONCE_FOREVER - 1, INT64_MAX - 1, INT64_MAX};
    return draw(3) ? edges[draw(sizeof edges / sizeof *edges)] : (int64_t)draw(UINT64_MAX);
}

static int64_t any_time(void) { return draw(2) ? NOW - 500 + (int64_t)draw(1000) : any_number(); }

static once_entry any_entry(void)
{
    once_entry e = entry_in((once_state)draw(ONCE_STATES + 1), any_time());
    e.state = (once_state)draw(ONCE_STATES + 1);
    e.lane = draw(2) ? lane_id : (once_hash){0};
    e.versioned = draw(2), e.gap = draw(2), e.hold = draw(2), e.natural = draw(2), e.unreported = draw(2),
    e.maybe_done = draw(2), e.block = draw(2);
    e.has_message = draw(2);
    if (e.has_message) e.message = body;
    e.attempt = (uint32_t)draw(UINT64_C(1) << 32);
    e.failures = draw(2) ? (uint32_t)draw(5) : UINT32_MAX;
    e.order = any_number();
    e.gap_ms = draw(2) ? 100 : any_number();
    e.remember_ms = draw(2) ? REMEMBER : any_number();
    int64_t *const times[] = {&e.seen_ms, &e.changed_ms, &e.due_ms, &e.expires_ms, &e.failing_ms};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) *times[i] = any_time();
    return e;
}

static void any_rule(once_entry *e, once_lane *lane)
{
    const once_outcome ends[] = {ONCE_DONE, ONCE_RETRY, ONCE_DEAD};
    once_request r = draw(2) ? request(mine) : lane_request(mine, (int64_t)draw(10), draw(2) ? -1 : 100);
    const once_settlement s = {.request = &r,
                               .outcome = (once_outcome)draw(ONCE_OUTCOMES),
                               .message = draw(2) ? &body : NULL,
                               .delay_ms = (int64_t)draw(10)};
    once_decision d;
    bool yes;
    switch (draw(13)) {
    case 0: (void)once_entry_claim(e, lane, &r, NOW, &d); break;
    case 1: (void)once_entry_accept(e, lane, &r, &body, NOW, &d); break;
    case 2: (void)once_entry_settle(e, lane, &s, NOW, &yes); break;
    case 3: (void)once_entry_extend(e, &r, NOW, &yes); break;
    case 4:
        if (once_entry_may_be_taken(e, NOW)) (void)once_entry_take(e, lane, third, LEASE, NOW, &d);
        break;
    case 5: (void)once_entry_forget(e, lane); break;
    case 6: (void)once_entry_replay(e, lane, NOW, &body); break;
    case 7: (void)once_entry_discard(e, lane, ONCE_NO_TIME, NOW); break;
    case 8: (void)once_entry_resolve(e, lane, ends[draw(3)], ONCE_BYTES("said"), NOW); break;
    case 9: (void)once_entry_revive(e, lane, &r, &body, NOW); break;
    case 10:
        if (lane) (void)once_entry_wake(e, lane, NOW);
        break;
    case 11:
        if (lane) (void)once_lane_explain(lane, e);
        break;
    default: once_entry_look(e, NOW);
    }
}

/* What the rules make of an entry that they take is one that they take. */
static void f93_rules_take_every_entry_without_a_flaw(void **state)
{
    (void)state;
    unsigned sound = 0;
    for (drawn = 1; sound < 200000;) {
        once_entry e = any_entry();
        once_lane lane = lane_at(draw(2) ? -1 : (int64_t)draw(10));
        if (once_entry_flaw(&e)) continue;
        sound++;
        for (int i = 0; i < 3; i++) {
            any_rule(&e, once_hash_is_zero(e.lane) ? NULL : &lane);
            if (once_entry_flaw(&e)) fail_msg("%s: state %d", once_entry_flaw(&e), (int)e.state);
        }
    }
}

static void f93_flaws_are_found(void **state)
{
    (void)state;
    once_entry e = entry_in(ONCE_STATE_WAITING, NOW);
    assert_null(once_entry_flaw(&e));
    e.remember_ms = 0;
    assert_non_null(once_entry_flaw(&e));
    e = entry_in(ONCE_STATE_DONE, NOW);
    e.changed_ms = -1;
    assert_non_null(once_entry_flaw(&e));
    e = entry_in(ONCE_STATE_CLAIMED, NOW);
    e.lane = lane_id;
    e.order = -1;
    assert_non_null(once_entry_flaw(&e));
    e.order = 0;
    e.gap_ms = -2;
    assert_non_null(once_entry_flaw(&e));
    e.state = ONCE_STATES;
    assert_non_null(once_entry_flaw(&e));
}

static void names(void **state)
{
    (void)state;
    for (int i = 0; i < ONCE_STATES; i++) assert_true(once_state_name((once_state)i)[0]);
    for (int i = 0; i < ONCE_ANSWERS; i++) assert_true(once_answer_name((once_answer)i)[0]);
    assert_string_equal(once_state_name(ONCE_STATE_STALE), "stale");
    assert_string_equal(once_answer_name(ONCE_ANSWER_TOO_OLD), "too_old");
}

/* A server's clock went back since it became unknown; and nobody asks about one that waits for a person. */
static void a_question_is_told_how_long_it_is_open(void **state)
{
    (void)state;
    once_entry e = entry_in(ONCE_STATE_UNKNOWN, NOW);
    once_decision d;
    e.has_message = e.hold = e.lookup = true;
    e.message = body;
    e.changed_ms = NOW - 30;
    assert_true(once_entry_question(&e, NOW, &d));
    assert_int_equal(d.unknown_for_ms, 30);
    e.changed_ms = NOW + 30;
    assert_int_equal(take(&e, NULL, yours, NOW, ONCE_ENTRY_CHANGED).unknown_for_ms, 0);
    e.due_ms = ONCE_NEVER;
    assert_false(once_entry_question(&e, NOW, &d));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_question_is_told_how_long_it_is_open),
        cmocka_unit_test(claim_of_a_stranger_in_every_state),
        cmocka_unit_test(accept_of_a_stranger_in_every_state),
        cmocka_unit_test(f26_another_fingerprint_conflicts_in_every_state),
        cmocka_unit_test(f14_settle_by_a_stranger_is_fenced_in_every_state),
        cmocka_unit_test(settle_by_the_owner_in_every_state),
        cmocka_unit_test(natural_settle_in_every_state),
        cmocka_unit_test(natural_without_a_claim_in_every_state),
        cmocka_unit_test(maybe_in_every_state),
        cmocka_unit_test(extend_in_every_state),
        cmocka_unit_test(f74_forget_leaves_nothing_and_fences_the_zombie),
        cmocka_unit_test(f74_a_zombie_of_an_earlier_life_is_refused),
        cmocka_unit_test(replay_in_every_state),
        cmocka_unit_test(take_of_everything_that_can_be_due),
        cmocka_unit_test(f76_a_claim_repeated_after_a_lost_reply_is_the_same_claim),
        cmocka_unit_test(f76_an_accept_repeated_after_a_lost_reply_is_the_same_accept),
        cmocka_unit_test(attempts_and_failures_are_counted_apart),
        cmocka_unit_test(a_retried_unknown_is_one_failure),
        cmocka_unit_test(f77_budget_and_silence_after_every_sequence),
        cmocka_unit_test(f16_every_claim_has_a_deadline),
        cmocka_unit_test(f17_nothing_left_is_not_unset),
        cmocka_unit_test(f21_extreme_times_do_not_wrap),
        cmocka_unit_test(remembered_at_least_as_long_as_once_promised),
        cmocka_unit_test(f71_older_than_remembered_is_too_old),
        cmocka_unit_test(f71_a_natural_message_is_too_old_only_for_its_lane),
        cmocka_unit_test(f71_no_moment_between_expired_and_too_old),
        cmocka_unit_test(f71_what_the_store_knows_is_never_too_old),
        cmocka_unit_test(f93_rules_take_every_entry_without_a_flaw),
        cmocka_unit_test(f93_flaws_are_found),
        cmocka_unit_test(names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
