/* Every rule of an entry: each state against each request, then budgets, fences and lanes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "core/conflict.h"
#include "core/entry.h"
#include "core/plant.h"

#define NOW INT64_C(1000000)
#define LEASE 1000
#define REMEMBER 50000

static const once_token mine = {1, 1}, yours = {2, 2}, third = {3, 3};
static const once_hash id = {77, 78}, print_a = {10, 10}, print_b = {11, 11}, lane_id = {5, 5};
static const once_scope scope = {{"t", 1}, {"c", 1}, {"o", 1}};
static const once_message body = {.body = {"{}", 2}, .sent_ms = ONCE_NO_TIME};

static once_request request(once_token token)
{
    return (once_request){
        .scope = &scope,
        .key = ONCE_BYTES("key"),
        .id = id,
        .fingerprint = print_a,
        .token = token,
        .lane = {.gap_ms = -1},
        .lease_ms = LEASE,
        .remember_ms = REMEMBER,
        .sent_ms = ONCE_NO_TIME,
        .run = 9,
        .at = {ONCE_BYTES("place"), ONCE_BYTES("point")},
    };
}

static once_request lane_request(once_token token, int64_t version, int64_t gap_ms)
{
    once_request r = request(token);
    r.lane = (once_lane_request){.id = lane_id, .versioned = version >= 0, .version = version, .gap_ms = gap_ms};
    return r;
}

/* An empty lane, or one that settled `version`. */
static once_lane lane_at(int64_t version)
{
    return (once_lane){.has_version = version >= 0, .version = version, .head = ONCE_NEVER, .tail = -1};
}

static once_entry absent(void) { return (once_entry){.id = id}; }

/* An entry in `state` whose claim, if it had one, was mine. */
static once_entry entry_in(once_state state, int64_t due_ms)
{
    once_entry e = absent();
    if (state == ONCE_STATE_ABSENT) return e;
    e.state = state;
    e.token = mine;
    e.attempt = 3;
    e.failures = 2;
    e.fingerprint = print_a;
    e.gap_ms = -1;
    e.remember_ms = REMEMBER;
    e.seen_ms = e.changed_ms = NOW - 500;
    e.due_ms = due_ms;
    e.scope = scope;
    e.key = ONCE_BYTES("key");
    if (state == ONCE_STATE_WAITING) e.expires_ms = NOW + REMEMBER; /* while it has no body */
    if (once_state_finished(state)) {
        e.expires_ms = due_ms; /* for the tables below */
        e.due_ms = ONCE_NEVER;
        e.result = ONCE_BYTES("stored");
    }
    return e;
}

static once_decision claim(once_entry *e, once_lane *lane, once_request r, int64_t now_ms, int changes)
{
    once_decision d;
    assert_int_equal(once_entry_claim(e, lane, &r, now_ms, &d), changes);
    return d;
}

static once_decision accept(once_entry *e, once_lane *lane, once_request r, int64_t now_ms, int changes)
{
    once_decision d;
    assert_int_equal(once_entry_accept(e, lane, &r, &body, now_ms, &d), changes);
    return d;
}

static bool settle(once_entry *e, once_lane *lane, once_request r, once_outcome outcome, int64_t now_ms, int changes)
{
    const once_settlement s = {&r, outcome, ONCE_BYTES("result"), ONCE_BYTES("reason"), 100, &body};
    bool applied;
    assert_int_equal(once_entry_settle(e, lane, &s, now_ms, &applied), changes);
    return applied;
}

/* Whether it was applied; `maybe`: the effect may have happened. */
static bool settle_maybe(once_entry *e, once_request r, once_outcome outcome, bool maybe, int64_t now_ms)
{
    const once_settlement s = {.request = &r, .outcome = outcome, .message = &body, .failed = true, .maybe = maybe};
    bool applied;
    once_entry_settle(e, NULL, &s, now_ms, &applied);
    return applied;
}

static once_request natural(once_request r)
{
    r.natural = true;
    return r;
}

static once_decision take(once_entry *e, once_lane *lane, once_token token, int64_t now_ms, int changes)
{
    once_decision d;
    assert_int_equal(once_entry_take(e, lane, token, LEASE, now_ms, &d), changes);
    return d;
}

/* --- every state against every request --- */

typedef struct row {
    const char *name;
    once_state state;
    int64_t due_ms; /* of an unfinished entry; of a finished one when it expires */
    bool hold;
    once_answer claim, accept; /* what a stranger hears */
    once_state after_claim, after_accept;
    bool runs;     /* the claim begins a new attempt */
    bool attaches; /* accept leaves the body with it */
} row;

#define S(name) ONCE_STATE_##name
#define A(name) ONCE_ANSWER_##name

static const row rows[] = {
    /* name                  state        due       hold   claim         accept        after claim  after accept runs
       attaches */
    {"absent", S(ABSENT), 0, false, A(RUN), A(WAITING), S(CLAIMED), S(WAITING), true, true},
    {"claimed", S(CLAIMED), NOW + 1, false, A(BUSY), A(BUSY), S(CLAIMED), S(CLAIMED), false, true},
    {"claimed, no end", S(CLAIMED), ONCE_NEVER, false, A(BUSY), A(BUSY), S(CLAIMED), S(CLAIMED), false, true},
    {"claimed, held", S(CLAIMED), NOW + 1, true, A(BUSY), A(BUSY), S(CLAIMED), S(CLAIMED), false, true},
    {"orphan", S(CLAIMED), NOW, false, A(RUN), A(BUSY), S(CLAIMED), S(CLAIMED), true, true},
    {"orphan, held", S(CLAIMED), NOW, true, A(UNKNOWN), A(UNKNOWN), S(UNKNOWN), S(UNKNOWN), false, true},
    {"waiting, due", S(WAITING), NOW, false, A(RUN), A(LATER), S(CLAIMED), S(WAITING), true, true},
    {"waiting", S(WAITING), NOW + 1, false, A(LATER), A(LATER), S(WAITING), S(WAITING), false, true},
    {"parked", S(WAITING), ONCE_NEVER, false, A(LATER), A(LATER), S(WAITING), S(WAITING), false, true},
    {"unknown", S(UNKNOWN), ONCE_NEVER, false, A(UNKNOWN), A(UNKNOWN), S(UNKNOWN), S(UNKNOWN), false, true},
    {"dead", S(DEAD), ONCE_NEVER, false, A(DEAD), A(DEAD), S(DEAD), S(DEAD), false, false},
    {"done", S(DONE), NOW + 1, false, A(DUPLICATE), A(DUPLICATE), S(DONE), S(DONE), false, false},
    {"already", S(ALREADY), NOW + 1, false, A(DUPLICATE), A(DUPLICATE), S(ALREADY), S(ALREADY), false, false},
    {"rejected", S(REJECTED), NOW + 1, false, A(DUPLICATE), A(DUPLICATE), S(REJECTED), S(REJECTED), false, false},
    {"stale", S(STALE), NOW + 1, false, A(DUPLICATE), A(DUPLICATE), S(STALE), S(STALE), false, false},
    {"done for ever", S(DONE), ONCE_FOREVER, false, A(DUPLICATE), A(DUPLICATE), S(DONE), S(DONE), false, false},
    {"done, expired", S(DONE), NOW, false, A(RUN), A(WAITING), S(CLAIMED), S(WAITING), true, true},
    {"already, expired", S(ALREADY), NOW, false, A(RUN), A(WAITING), S(CLAIMED), S(WAITING), true, true},
    {"rejected, expired", S(REJECTED), NOW, false, A(RUN), A(WAITING), S(CLAIMED), S(WAITING), true, true},
    {"stale, expired", S(STALE), NOW, false, A(RUN), A(WAITING), S(CLAIMED), S(WAITING), true, true},
};
#define ROWS (sizeof rows / sizeof *rows)

static once_entry entry_of(const row *r)
{
    once_entry e = entry_in(r->state, r->due_ms);
    e.hold = r->hold;
    return e;
}

static bool is_new_life(const row *r)
{
    return r->state == ONCE_STATE_ABSENT || (once_state_finished(r->state) && r->due_ms <= NOW);
}

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
        e.maybe = e.state == ONCE_STATE_WAITING; /* otherwise it would give way */
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

static const once_state state_of_outcome[ONCE_OUTCOMES] = {
    [ONCE_DONE] = S(DONE),     [ONCE_ALREADY] = S(ALREADY), [ONCE_REJECTED] = S(REJECTED), [ONCE_STALE] = S(STALE),
    [ONCE_RETRY] = S(WAITING), [ONCE_RELEASE] = S(WAITING), [ONCE_UNKNOWN] = S(UNKNOWN),   [ONCE_DEAD] = S(DEAD),
};

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
                d.unreported != silent || d.maybe != ever || d.orphan != orphaned)
                fail_msg("sequence %d, attempt %d: failures %u, not %u; silent %d, not %d; maybe %d, not %d", sequence,
                         i + 1, d.failures, failures, d.unreported, silent, d.maybe, ever);
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

/* v9 waits for v8; what may happen meanwhile */
static once_entry behind_a_gap(once_lane *lane)
{
    *lane = lane_at(7);
    once_entry e = absent();
    accept(&e, lane, lane_request(mine, 9, 500), NOW, ONCE_ENTRY_CHANGED | ONCE_LANE_CHANGED);
    assert_true(e.gap && lane->waits);
    assert_true(lane->expires_ms == ONCE_FOREVER); /* while somebody waits, the lane is not forgotten */
    return e;
}

static void settled_by(once_lane *lane, int64_t version, once_hash by, once_hash content, once_bytes operation)
{
    lane->has_version = true;
    lane->version = version;
    lane->by = by;
    lane->content = content;
    lane->operation = operation;
    lane->key = ONCE_BYTES("the first");
}

static const once_hash other_id = {88, 89};

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
        assert_string_equal(once_lane_says(&lane, &e).data, "version 8 is missing; 250ms of 500ms have passed");
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

/* --- an equal version under another key --- */

static void f86_an_equal_version_is_judged(void **state)
{
    (void)state;
    static const once_hash none = {0};
    const struct {
        once_hash by, content, fingerprint;
        const char *operation;
        once_answer answer;
        const char *words;
    } cases[] = {
        {other_id, print_a, print_a, "op", A(DUPLICATE), "version 7 of this lane was settled by key 'the first'"},
        {other_id, print_a, print_b, "op", A(CONFLICT),
         "version 7 of this lane was settled by key 'the first' with other content"},
        {other_id, print_a, print_a, "other", A(CONFLICT),
         "version 7 of this lane was settled by key 'the first' of another operation"},
        {other_id, none, print_a, "op", A(CONFLICT),
         "version 7 of this lane was settled by key 'the first'; with which content is not known"},
        {other_id, none, none, "op", A(DUPLICATE),
         "version 7 of this lane was settled by key 'the first'; contents are not compared"},
        {other_id, print_a, none, "op", A(DUPLICATE),
         "version 7 of this lane was settled by key 'the first'; contents are not compared"},
        {other_id, none, none, "other", A(CONFLICT),
         "version 7 of this lane was settled by key 'the first' of another operation"},
        {none, none, print_a, "op", A(CONFLICT),
         "version 7 of this lane was settled before; by which key and with which content is not known"},
        {none, none, none, "op", A(CONFLICT),
         "version 7 of this lane was settled before; by which key and with which content is not known"},
        {id, print_a, print_a, "op", A(DUPLICATE),
         "version 7 of this lane was settled by key 'the first'"}, /* its own key, forgotten */
        {id, print_a, print_b, "op", A(CONFLICT),
         "version 7 of this lane was settled by key 'the first' with other content"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int way = 0; way < 3; way++) {
            const once_scope mine_is = {scope.tenant, scope.consumer, ONCE_BYTES("op")};
            once_lane lane = lane_at(-1);
            once_entry e = absent();
            once_request q = lane_request(mine, 7, -1);
            q.scope = &mine_is;
            q.fingerprint = cases[i].fingerprint;
            const bool taken = way == 2;
            if (taken) { /* it waited behind the first one */
                if (once_hash_equal(cases[i].by, id)) continue;
                lane.claimed = true;
                lane.head = lane.tail = 7;
                accept(&e, &lane, q, NOW, ONCE_ENTRY_CHANGED);
                assert_true(e.due_ms == ONCE_NEVER);
                lane = lane_at(-1);
            }
            settled_by(&lane, 7, cases[i].by, cases[i].content,
                       (once_bytes){cases[i].operation, strlen(cases[i].operation)});
            const bool duplicate = cases[i].answer == ONCE_ANSWER_DUPLICATE;
            const int left = ONCE_ENTRY_CHANGED | ONCE_LANE_FREED, changes = duplicate ? left
                                                                             : taken   ? left | ONCE_LETTER_NEEDED
                                                                                       : ONCE_UNCHANGED;
            if (taken) assert_int_equal(once_entry_wake(&e, &lane, NOW), ONCE_ENTRY_CHANGED);
            const once_decision d = taken      ? take(&e, &lane, yours, NOW, changes)
                                    : way == 0 ? claim(&e, &lane, q, NOW, changes)
                                               : accept(&e, &lane, q, NOW, changes);
            assert_int_equal(d.answer, cases[i].answer);
            assert_true(d.lane);
            assert_string_equal(d.reason.data, cases[i].words);
            assert_int_equal(e.state, duplicate ? S(ALREADY)
                                      : taken   ? S(DEAD)
                                                : S(ABSENT)); /* the trace; a letter is one, too */
            if (!duplicate) continue;
            assert_int_equal(d.outcome, ONCE_ALREADY);
            assert_int_equal(e.expires_ms, NOW + REMEMBER);
            assert_string_equal(e.reason.data, cases[i].words);
            if (!taken)
                assert_false(claim(&e, &lane, q, NOW, ONCE_UNCHANGED).own); /* f76: asked again, and it did not run */
        }
}

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

/* A key is any bytes. */
static void a_reason_is_plain_text(void **state)
{
    (void)state;
    static const struct {
        const char *key, *shown;
    } cases[] = {
        {"a\x1b[2J\n\x7f", "a?[2J??"},
        {"\xc2\x80"
         "b\xc2\x9f",
         "?b?"}, /* U+0080 and U+009F move a terminal as well */
        {"\xc2\xa0\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80",
         "\xc2\xa0\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"}, /* what is text stays */
        {"\xff"
         "a\xe2\x82"
         "b\xc3",
         "?a?b?"},               /* not UTF-8 */
        {"\xed\xa0\x80", "???"}, /* a surrogate */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        once_lane lane = lane_at(-1);
        once_entry e = absent();
        settled_by(&lane, 7, other_id, print_b, scope.operation);
        lane.key = (once_bytes){cases[i].key, strlen(cases[i].key)};
        const once_decision d = claim(&e, &lane, lane_request(mine, 7, -1), NOW, ONCE_UNCHANGED);
        char expected[200];
        snprintf(expected, sizeof expected, "version 7 of this lane was settled by key '%s' with other content",
                 cases[i].shown);
        assert_string_equal(d.reason.data, expected);
        assert_int_equal(d.reason.len, strlen(expected));
    }
}

/* What a lane keeps of a long name ends with a whole character, and the reason with it. */
static void a_long_key_is_cut_between_characters(void **state)
{
    (void)state;
    for (size_t before = ONCE_LANE_NAME - 5; before <= ONCE_LANE_NAME; before++) {
        char key[ONCE_LANE_NAME + 40];
        memset(key, 'k', before);
        memcpy(key + before, "\xf0\x9f\x98\x80tail", 8); /* one character of four bytes */
        const size_t whole = before + 4 <= ONCE_LANE_NAME ? before + 4 : before;
        once_lane lane = lane_at(-1);
        once_entry e = absent(), second = absent();
        once_request q = lane_request(mine, 7, -1);
        q.key = (once_bytes){key, before + 8};
        claim(&e, &lane, q, NOW, ONCE_ENTRY_CHANGED);
        settle(&e, &lane, q, ONCE_DONE, NOW, ONCE_ENTRY_CHANGED | ONCE_LANE_FREED | ONCE_LANE_CHANGED);
        assert_true(lane.key.len <= ONCE_LANE_NAME && lane.key.len >= whole && lane.key.len <= whole + 4);
        second.id = other_id;
        q.id = other_id;
        q.fingerprint = print_b;
        const once_decision d = claim(&second, &lane, q, NOW, ONCE_UNCHANGED);
        for (size_t at = 0; at < d.reason.len;) {
            const int n = once_utf8_sequence((const unsigned char *)d.reason.data + at, d.reason.len - at);
            assert_true(n > 0);
            at += (size_t)n;
        }
        assert_null(memchr(d.reason.data, '?', d.reason.len));
    }
    /* Bytes that are no text are cut where the room ends. */
    char bytes[ONCE_LANE_NAME + 10];
    memset(bytes, 0x80, sizeof bytes);
    once_lane lane = lane_at(-1);
    once_entry e = absent();
    once_request q = lane_request(mine, 7, -1);
    q.key = (once_bytes){bytes, sizeof bytes};
    claim(&e, &lane, q, NOW, ONCE_ENTRY_CHANGED);
    settle(&e, &lane, q, ONCE_DONE, NOW, ONCE_ENTRY_CHANGED | ONCE_LANE_FREED | ONCE_LANE_CHANGED);
    assert_int_equal(lane.key.len, ONCE_LANE_NAME);
}

/* A lane keeps so much of an operation; both who judges and who says why compare that. */
static void f86_a_long_operation_is_the_same_one(void **state)
{
    (void)state;
    char name[ONCE_LANE_NAME + 50];
    memset(name, 'o', sizeof name);
    const once_scope long_scope = {scope.tenant, scope.consumer, {name, sizeof name}};
    once_lane lane = lane_at(-1);
    once_entry e = absent(), second = absent();
    once_request q = lane_request(mine, 7, -1);
    q.scope = &long_scope;
    claim(&e, &lane, q, NOW, ONCE_ENTRY_CHANGED);
    settle(&e, &lane, q, ONCE_DONE, NOW, ONCE_ENTRY_CHANGED | ONCE_LANE_FREED | ONCE_LANE_CHANGED);
    q.id = second.id = other_id;
    q.fingerprint = print_b;
    const once_decision d = claim(&second, &lane, q, NOW, ONCE_UNCHANGED);
    assert_int_equal(d.answer, ONCE_ANSWER_CONFLICT);
    assert_non_null(strstr(d.reason.data, "' with other content"));
}

/* It ran, failed and waited; then its version settled under another key. No claim settled it, whoever asks how often.
 */
static void f76_what_its_lane_settled_is_nobodys_own(void **state)
{
    (void)state;
    once_lane lane = lane_at(-1);
    once_entry e = absent();
    const once_request first = lane_request(mine, 7, -1), later = lane_request(yours, 7, -1);
    claim(&e, &lane, first, NOW, ONCE_ENTRY_CHANGED);
    settle(&e, &lane, first, ONCE_RETRY, NOW, ONCE_ENTRY_CHANGED | ONCE_LANE_FREED);
    settled_by(&lane, 7, other_id, print_a, scope.operation);
    for (int i = 0; i < 3; i++) {
        const once_decision d =
            claim(&e, &lane, later, NOW + 10000, i ? ONCE_UNCHANGED : ONCE_ENTRY_CHANGED | ONCE_LANE_FREED);
        assert_int_equal(d.answer, ONCE_ANSWER_DUPLICATE);
        assert_int_equal(d.outcome, ONCE_ALREADY);
        assert_false(d.own);
    }
    assert_int_equal(e.attempt, 1);
    assert_false(
        settle(&e, &lane, later, ONCE_ALREADY, NOW + 10000, ONCE_UNCHANGED)); /* nor can it be settled as one's own */
}

/* v3 died and nobody waited for it; then v4 was given up. Each is told what happened to it. */
static void f28_a_version_that_died_was_not_given_up(void **state)
{
    (void)state;
    once_lane lane = lane_at(2);
    lane.has_next = lane.has_lost = true;
    lane.next = 5;
    lane.lost_from = lane.lost_to = 4;
    settled_by(&lane, 5, other_id, print_a, scope.operation);
    const int changes = ONCE_ENTRY_CHANGED | ONCE_LANE_FREED;
    once_entry e = absent();
    once_decision d = claim(&e, &lane, lane_request(mine, 4, 500), NOW, changes);
    assert_int_equal(d.answer, ONCE_ANSWER_STALE);
    assert_string_equal(d.reason.data, "version 4 was given up before it came");
    e = absent();
    d = claim(&e, &lane, lane_request(mine, 3, 500), NOW, changes);
    assert_int_equal(d.answer, ONCE_ANSWER_STALE);
    assert_string_equal(d.reason.data, "a newer version came first");
}

/* v5 died and blocks its lane; v4 comes and finishes. The lane must not end with it. */
static void f33_a_blocked_lane_does_not_expire(void **state)
{
    (void)state;
    for (int gap = 0; gap < 2; gap++)
        for (int waits = 0; waits < 2; waits++) {
            once_lane lane = lane_at(3);
            once_entry five = absent(), four = absent();
            once_request q5 = lane_request(mine, 5, -1), q4 = lane_request(yours, 4, gap ? 500 : -1);
            q5.lane.block = q4.lane.block = true;
            four.id = q4.id = other_id;
            claim(&five, &lane, q5, NOW, ONCE_ENTRY_CHANGED);
            settle(&five, &lane, q5, ONCE_DEAD, NOW,
                   ONCE_ENTRY_CHANGED | ONCE_LANE_FREED | ONCE_LANE_CHANGED | ONCE_LETTER_NEEDED);
            if (waits) lane.head = lane.tail = 6;
            claim(&four, &lane, q4, NOW, ONCE_ENTRY_CHANGED);
            settle(&four, &lane, q4, ONCE_DONE, NOW, ONCE_ENTRY_CHANGED | ONCE_LANE_FREED | ONCE_LANE_CHANGED);
            assert_int_equal(lane.version, 4);
            assert_true(lane.expires_ms == ONCE_FOREVER);
            assert_int_equal(once_lane_rest(&lane, &four, NOW), ONCE_UNCHANGED);
            once_entry_discard(&five, &lane, ONCE_NO_TIME, NOW);
            lane.head = ONCE_NEVER;
            lane.tail = -1;
            once_lane_rest(&lane, &five, NOW);
            assert_int_equal(lane.expires_ms, NOW + REMEMBER); /* and ends like others when the letter is gone */
        }
}

/* Forced to run once more, the one that settled the version is not its own duplicate. */
static void f86_a_forced_one_runs_although_its_version_is_settled(void **state)
{
    (void)state;
    once_lane lane = lane_at(-1);
    once_entry e = absent();
    const once_request q = lane_request(mine, 7, 500);
    claim(&e, &lane, q, NOW, ONCE_ENTRY_CHANGED);
    settle(&e, &lane, q, ONCE_DONE, NOW, ONCE_ENTRY_CHANGED | ONCE_LANE_FREED | ONCE_LANE_CHANGED);
    assert_true(once_hash_equal(lane.by, id) && once_hash_equal(lane.content, print_a));
    once_entry_revive(&e, &lane, &q, &body, NOW);
    assert_int_equal(take(&e, &lane, yours, NOW, ONCE_ENTRY_CHANGED).answer, ONCE_ANSWER_RUN);
    settle(&e, &lane, lane_request(yours, 7, 500), ONCE_DONE, NOW, ONCE_ENTRY_CHANGED | ONCE_LANE_FREED);
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
            assert_true(once_lane_says(&lane, &next).len > 0);
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
        assert_true(once_lane_says(&lane, first).len > 0 && once_lane_says(&lane, second).len > 0);
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
        e.maybe = i == 1;
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

/* --- identities --- */

/* A long key is shown, and looked for, by its hash; who sends that text as a key of its own has another one. */
static void f63_a_long_key_is_not_the_text_that_it_is_shown_as(void **state)
{
    (void)state;
    const once_secret secret = {1, 2};
    const once_scope s = {.consumer = ONCE_BYTES("c")};
    once_arena arena = {0};
    char large[ONCE_KEY_MAX + 1];
    once_bytes shown;
    memset(large, 'a', sizeof large);
    assert_true(once_key_show(&arena, (once_bytes){large, sizeof large}, &shown));
    assert_memory_equal(shown.data, "sha256:", 7);
    assert_false(
        once_hash_equal(once_key_id(secret, &s, (once_bytes){large, sizeof large}), once_key_id(secret, &s, shown)));
    assert_true(
        once_key_show(&arena, (once_bytes){large, ONCE_KEY_MAX}, &shown)); /* the longest that is kept as it is */
    assert_int_equal(shown.len, ONCE_KEY_MAX);
    once_arena_release(&arena);
}

static void f27_scopes_and_parts_are_never_confused(void **state)
{
    (void)state;
    const once_secret secret = {1, 2};
    static const char *const texts[] = {"", "a", "aa", "aaa", "b"};
    once_hash seen[700];
    size_t n = 0;
    char large[5000];
    memset(large, 'a', sizeof large);
    for (int t = 0; t < 5; t++)
        for (int c = 0; c < 5; c++)
            for (int o = 0; o < 5; o++)
                for (int k = 0; k < 5; k++) {
                    const once_scope s = {
                        {texts[t], strlen(texts[t])}, {texts[c], strlen(texts[c])}, {texts[o], strlen(texts[o])}};
                    seen[n++] = once_key_id(secret, &s, (once_bytes){texts[k], strlen(texts[k])});
                }
    for (size_t len = 1570; len < 1610; len++) seen[n++] = once_key_id(secret, &scope, (once_bytes){large, len});
    seen[n++] = once_key_id(secret, &scope, (once_bytes){large, sizeof large});
    seen[n++] = once_key_id((once_secret){1, 3}, &scope, (once_bytes){large, sizeof large});
    seen[n++] = once_lane_id(secret, &scope, ONCE_BYTES("a"));
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++) assert_false(once_hash_equal(seen[i], seen[j]));

    once_scope other = scope;
    other.operation = ONCE_BYTES("another");
    assert_true(
        once_hash_equal(once_lane_id(secret, &scope, ONCE_BYTES("x")), once_lane_id(secret, &other, ONCE_BYTES("x"))));
}

static void f63_keys_are_binary_safe(void **state)
{
    (void)state;
    const once_secret secret = {3, 4};
    const once_hash a = once_key_id(secret, &scope, ONCE_BYTES("a\0b")),
                    b = once_key_id(secret, &scope, ONCE_BYTES("a\0c")),
                    c = once_key_id(secret, &scope, ONCE_BYTES("a")),
                    d = once_key_id(secret, &scope, ONCE_BYTES("a\0"));
    assert_false(once_hash_equal(a, b) || once_hash_equal(a, c) || once_hash_equal(c, d));
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
    e.maybe = draw(2), e.block = draw(2);
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
        if (lane) (void)once_lane_says(lane, e);
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

static void reason_of_conflict(once_bytes first, once_bytes now, char *out, size_t size)
{
    once_arena arena = {0};
    once_decision met = {.answer = ONCE_ANSWER_CONFLICT, .first = {.body = first, .seen_ms = 0}};
    once_bytes reason;
    assert_true(once_conflict_reason(&met, NULL, now, (once_secret){1, 2}, &arena, &reason));
    assert_true(reason.len < size);
    memcpy(out, reason.data, reason.len);
    out[reason.len] = 0;
    once_arena_release(&arena);
}

/* {"m0":0,"m1":1,...}, or from the last to the first; the value of one member is another. */
static void wide_object(once_buf *to, unsigned n, bool backward, unsigned other)
{
    once_buf_init(to, 10u << 20);
    for (unsigned i = 0; i < n; i++) {
        const unsigned member = backward ? n - 1 - i : i;
        once_buf_printf(to, "%c\"m%u\":%u", i ? ',' : '{', member, member == other ? 7 : 0);
    }
    once_buf_puts(to, "}");
}

/* Searching for each member of one object in the other took minutes, inside the lock of the store. */
static void f26_f65_a_conflict_of_wide_objects_is_bounded(void **state)
{
    (void)state;
    enum { MEMBERS = 300000 };
    char text[5000];
    once_buf first, now, turned;
    wide_object(&first, MEMBERS, false, MEMBERS);
    wide_object(&now, MEMBERS, false, MEMBERS - 2);
    wide_object(&turned, MEMBERS, true, MEMBERS - 1);
    reason_of_conflict(once_buf_bytes(&first), once_buf_bytes(&now), text, sizeof text);
    assert_non_null(strstr(text, ": 'm299998' differs;")); /* in the same order: all of it is compared */
    reason_of_conflict(once_buf_bytes(&first), once_buf_bytes(&turned), text, sizeof text);
    assert_non_null(strstr(text, ": 'm299999' and perhaps others differ;"));
    once_buf_release(&first);
    once_buf_release(&now);
    once_buf_release(&turned);
    wide_object(&first, 300, false, 300);
    wide_object(&turned, 300, true, 17);
    reason_of_conflict(once_buf_bytes(&first), once_buf_bytes(&turned), text, sizeof text);
    assert_non_null(strstr(text, ": 'm17' differs;"));
    once_buf_release(&first);
    once_buf_release(&turned);
}

static void f26_f65_names_in_a_conflict_are_whole_characters_that_steer_nothing(void **state)
{
    (void)state;
    char text[5000], object[200], wanted[200];
    reason_of_conflict(ONCE_BYTES("{\"a\xc2\x9b\xe2\x80\xae\xe2\x81\xa6z\": 1}"), ONCE_BYTES("{\"\\u001b\": 1}"), text,
                       sizeof text);
    assert_non_null(strstr(text, ": '?', 'a\?\?\?z' differ;"));
    for (size_t pad = 60; pad < 66; pad++) { /* the limit of 64 bytes falls on each byte of a character */
        char name[100];
        memset(name, 'x', pad);
        snprintf(name + pad, sizeof name - pad, "\xf0\x9f\x98\x80");
        snprintf(object, sizeof object, "{\"%s\": 1}", name);
        reason_of_conflict((once_bytes){object, strlen(object)}, ONCE_BYTES("{}"), text, sizeof text);
        snprintf(wanted, sizeof wanted, ": '%.*s%s' differs;",
                 (int)(pad == 60  ? 64
                       : pad < 64 ? pad
                                  : 64),
                 name, pad == 60 ? "" : "...");
        assert_non_null(strstr(text, wanted));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(claim_of_a_stranger_in_every_state),
        cmocka_unit_test(accept_of_a_stranger_in_every_state),
        cmocka_unit_test(f26_another_fingerprint_conflicts_in_every_state),
        cmocka_unit_test(f26_f65_a_conflict_of_wide_objects_is_bounded),
        cmocka_unit_test(f26_f65_names_in_a_conflict_are_whole_characters_that_steer_nothing),
        cmocka_unit_test(f14_settle_by_a_stranger_is_fenced_in_every_state),
        cmocka_unit_test(settle_by_the_owner_in_every_state),
        cmocka_unit_test(natural_settle_in_every_state),
        cmocka_unit_test(maybe_in_every_state),
        cmocka_unit_test(extend_in_every_state),
        cmocka_unit_test(f74_forget_leaves_nothing_and_fences_the_zombie),
        cmocka_unit_test(f74_a_zombie_of_an_earlier_life_is_refused),
        cmocka_unit_test(replay_in_every_state),
        cmocka_unit_test(discard_in_every_state),
        cmocka_unit_test(a_discarded_version_is_not_waited_for),
        cmocka_unit_test(f99_what_every_state_is_at_a_time),
        cmocka_unit_test(resolve_in_every_state),
        cmocka_unit_test(resolve_without_a_body_is_done_or_nothing),
        cmocka_unit_test(f34_revive_in_every_state),
        cmocka_unit_test(a_revived_one_stands_behind_the_others_of_its_lane),
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
        cmocka_unit_test(lane_runs_one_at_a_time_in_order_of_arrival),
        cmocka_unit_test(lane_frees_the_next_at_every_end),
        cmocka_unit_test(f28_versions_against_the_lane),
        cmocka_unit_test(f28_versions_of_natural_ones_against_the_lane),
        cmocka_unit_test(f28_a_known_natural_one_of_the_lanes_version_runs),
        cmocka_unit_test(lane_version_only_rises_and_not_by_stale),
        cmocka_unit_test(f28_the_missing_version_ends_the_gap),
        cmocka_unit_test(f28_a_gap_that_stays_is_over_after_its_time),
        cmocka_unit_test(f28_parked_after_its_gap_was_over_waits_again_and_not_for_ever),
        cmocka_unit_test(superseded_while_waiting_is_stale),
        cmocka_unit_test(a_gap_that_was_waited_for_is_not_kept_by_what_has_ended),
        cmocka_unit_test(whoever_claims_says_whether_it_is_held),
        cmocka_unit_test(f28_versions_that_are_given_up_are_counted),
        cmocka_unit_test(f71_what_replaces_is_remembered_by_its_own_time),
        cmocka_unit_test(f28_time_without_a_run_does_not_count),
        cmocka_unit_test(f28_one_wait_for_all_of_a_lane),
        cmocka_unit_test(f28_a_replayed_one_does_not_wait_again),
        cmocka_unit_test(f28_a_wrong_version_does_not_end_its_lane),
        cmocka_unit_test(f86_an_equal_version_is_judged),
        cmocka_unit_test(f34_the_outlook_of_a_message_that_comes_back),
        cmocka_unit_test(a_reason_is_plain_text),
        cmocka_unit_test(a_long_key_is_cut_between_characters),
        cmocka_unit_test(f86_a_long_operation_is_the_same_one),
        cmocka_unit_test(f76_what_its_lane_settled_is_nobodys_own),
        cmocka_unit_test(f28_a_version_that_died_was_not_given_up),
        cmocka_unit_test(f33_a_blocked_lane_does_not_expire),
        cmocka_unit_test(f86_a_forced_one_runs_although_its_version_is_settled),
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
        cmocka_unit_test(f63_a_long_key_is_not_the_text_that_it_is_shown_as),
        cmocka_unit_test(f27_scopes_and_parts_are_never_confused),
        cmocka_unit_test(f63_keys_are_binary_safe),
        cmocka_unit_test(f93_rules_take_every_entry_without_a_flaw),
        cmocka_unit_test(f93_flaws_are_found),
        cmocka_unit_test(names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
