/* What the tests of the rules of an entry share: requests, entries and lanes in known states, and calls that check
 * which changes a rule reports. */
#ifndef ONCE_TESTS_ENTRY_FIXTURE_H
#define ONCE_TESTS_ENTRY_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/entry.h"

#define NOW INT64_C(1000000)
#define LEASE 1000
#define REMEMBER 50000

static const once_token mine = {1, 1}, yours = {2, 2}, third = {3, 3};
static const once_hash id = {77, 78}, print_a = {10, 10}, print_b = {11, 11}, lane_id = {5, 5};
static const once_scope scope = {{"t", 1}, {"c", 1}, {"o", 1}};
static const once_message body = {.body = {"{}", 2}, .sent_ms = ONCE_NO_TIME};

static inline once_request request(once_token token)
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

static inline once_request lane_request(once_token token, int64_t version, int64_t gap_ms)
{
    once_request r = request(token);
    r.lane = (once_lane_request){.id = lane_id, .versioned = version >= 0, .version = version, .gap_ms = gap_ms};
    return r;
}

/* An empty lane, or one that settled `version`. */
static inline once_lane lane_at(int64_t version)
{
    return (once_lane){.has_version = version >= 0, .version = version, .head = ONCE_NEVER, .tail = -1};
}

static inline once_entry absent(void) { return (once_entry){.id = id}; }

/* An entry in `state` whose claim, if it had one, was mine. */
static inline once_entry entry_in(once_state state, int64_t due_ms)
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

static inline once_decision claim(once_entry *e, once_lane *lane, once_request r, int64_t now_ms, int changes)
{
    once_decision d;
    assert_int_equal(once_entry_claim(e, lane, &r, now_ms, &d), changes);
    return d;
}

static inline once_decision accept(once_entry *e, once_lane *lane, once_request r, int64_t now_ms, int changes)
{
    once_decision d;
    assert_int_equal(once_entry_accept(e, lane, &r, &body, now_ms, &d), changes);
    return d;
}

static inline bool settle(once_entry *e, once_lane *lane, once_request r, once_outcome outcome, int64_t now_ms,
                          int changes)
{
    const once_settlement s = {.request = &r,
                               .outcome = outcome,
                               .result = ONCE_BYTES("result"),
                               .reason = ONCE_BYTES("reason"),
                               .delay_ms = 100,
                               .message = &body};
    bool applied;
    assert_int_equal(once_entry_settle(e, lane, &s, now_ms, &applied), changes);
    return applied;
}

/* Whether it was applied; `maybe`: the effect may have happened. */
static inline bool settle_maybe(once_entry *e, once_request r, once_outcome outcome, bool maybe, int64_t now_ms)
{
    const once_settlement s = {
        .request = &r, .outcome = outcome, .message = &body, .failed = true, .maybe_done = maybe};
    bool applied;
    once_entry_settle(e, NULL, &s, now_ms, &applied);
    return applied;
}

static inline once_request natural(once_request r)
{
    r.natural = true;
    return r;
}

static inline once_decision take(once_entry *e, once_lane *lane, once_token token, int64_t now_ms, int changes)
{
    once_decision d;
    assert_int_equal(once_entry_take(e, lane, token, LEASE, now_ms, &d), changes);
    return d;
}

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

static inline once_entry entry_of(const row *r)
{
    once_entry e = entry_in(r->state, r->due_ms);
    e.hold = r->hold;
    return e;
}

static inline bool is_new_life(const row *r)
{
    return r->state == ONCE_STATE_ABSENT || (once_state_finished(r->state) && r->due_ms <= NOW);
}

static const once_state state_of_outcome[ONCE_OUTCOMES] = {
    [ONCE_DONE] = S(DONE),     [ONCE_ALREADY] = S(ALREADY), [ONCE_REJECTED] = S(REJECTED), [ONCE_STALE] = S(STALE),
    [ONCE_RETRY] = S(WAITING), [ONCE_RELEASE] = S(WAITING), [ONCE_UNKNOWN] = S(UNKNOWN),   [ONCE_DEAD] = S(DEAD),
};

/* v9 waits for v8; what may happen meanwhile */
static inline once_entry behind_a_gap(once_lane *lane)
{
    *lane = lane_at(7);
    once_entry e = absent();
    accept(&e, lane, lane_request(mine, 9, 500), NOW, ONCE_ENTRY_CHANGED | ONCE_LANE_CHANGED);
    assert_true(e.gap && lane->waits);
    assert_true(lane->expires_ms == ONCE_FOREVER); /* while somebody waits, the lane is not forgotten */
    return e;
}

static inline void settled_by(once_lane *lane, int64_t version, once_hash by, once_hash content, once_bytes operation)
{
    lane->has_version = true;
    lane->version = version;
    lane->by = by;
    lane->content = content;
    lane->operation = operation;
    lane->key = ONCE_BYTES("the first");
}

static const once_hash other_id = {88, 89};

#endif
