#include "differential.h"

#include <ftw.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/plant.h"
#include "store/engine.h"
#include "store/sqlite/sqlite.h"
#ifdef ONCE_WITH_POSTGRES
#include "store/postgres/postgres.h"
#endif
#include "postgres.h"
#include "testenv.h"

enum {
    KEYS = 12,  /* of each scope: 0-2 without a lane, 3-5 in one by arrival, 6-8 and 9-11 in two with versions */
    SCOPES = 3, /* two of one consumer, one of another */
    BATCH = 24,
    HELD = 48, /* requests whose claims may be settled or extended, zombies among them */
    TRACE = 20,
    LETTERS = 400,
    STUCK = 80 /* rounds in which everything must have come to an end */
};

static const once_scope scopes[SCOPES] = {
    {{"", 0}, {"one", 3}, {"op", 2}},
    {{"tenant", 6}, {"one", 3}, {"pay", 3}},
    {{"", 0}, {"two", 3}, {"op", 2}},
};
static const char key_bytes[KEYS + 8] = "k\0ey\xff_abcdefghijklm"; /* key i is the first 1 + i of them */
static char filler[5000];                                          /* bodies, results and values are pieces of it */
static const char *const points[] = {"0", "1", "2", "3", "4", "5"};

typedef struct side {
    test_env world;
    once_backend *store;
    once_arena arena;
    uint64_t letters[LETTERS];
    size_t n_letters;
} side;

typedef enum verb { CLAIM, ACCEPT, SETTLE, EXTEND, TAKE, VERBS } verb;

typedef struct run {
    differential_options options;
    differential_counts *counts;
    side sides[2]; /* memory, the other */
    uint64_t random;
    uint64_t tokens;
    bool in_tx, failed;
    once_request held[HELD];
    size_t n_held;

    /* the last batch, for playing it once more */
    verb last;
    bool has_last;
    size_t n;
    once_request requests[BATCH];
    once_message messages[BATCH];
    once_settlement settlements[BATCH];
    once_token take_token;
    int take_scope;

    char trace[TRACE][240];
    size_t n_trace;
    char *report;
    size_t report_size;
    char folder[64], url[256];
    once_settled_limits limits;
} run;

/* --- saying what happened --- */

static void note(run *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void note(run *r, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(r->trace[r->n_trace++ % TRACE], sizeof r->trace[0], format, args);
    va_end(args);
}

/* The first difference ends the run. */
static void differ(run *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void differ(run *r, const char *format, ...)
{
    if (r->failed) return;
    r->failed = true;
    size_t at = (size_t)snprintf(r->report, r->report_size, "seed %" PRIu64 ", %s: ", r->options.seed, r->options.url);
    va_list args;
    va_start(args, format);
    at += (size_t)vsnprintf(r->report + at, r->report_size - at, format, args);
    va_end(args);
    for (size_t i = r->n_trace > TRACE ? r->n_trace - TRACE : 0; i < r->n_trace && at < r->report_size; i++)
        at += (size_t)snprintf(r->report + at, r->report_size - at, "\n  %zu %s", i, r->trace[i % TRACE]);
}

/* --- chance --- */

static uint64_t below(run *r, uint64_t n) { return test_random(&r->random) % n; }
static bool chance(run *r, unsigned percent) { return below(r, 100) < percent; }

static once_bytes key_of(uint64_t i) { return (once_bytes){key_bytes, 1 + (size_t)i}; }
static once_hash id_of(const run *r, uint64_t scope, uint64_t key)
{
    return once_key_id(r->sides[0].store->secret, &scopes[scope], key_of(key));
}
static int64_t now_of(const run *r) { return ((const once_storage *)r->sides[0].store)->clock.tenths / 10; }

static once_request request_for(run *r, uint64_t scope, uint64_t key)
{
    static const int64_t leases[] = {1, 60, 60, 1000, 1000, 1000, 1000, INT64_MAX},
                         remembers[] = {1, 300, 2000, 2000, 2000, 8000}, gaps[] = {-1, 0, 100, 1000};
    const uint64_t lane = chance(r, 3) ? below(r, 4) : key / 3; /* some keys move from lane to lane */
    const once_bytes lane_name = {&"0123"[lane], 1};
    once_request q = {
        .scope = &scopes[scope],
        .key = key_of(key),
        .id = id_of(r, scope, key),
        .lane = {.id = lane ? once_lane_id(r->sides[0].store->secret, &scopes[scope], lane_name) : (once_hash){0},
                 .versioned = lane > 1,
                 .gap_ms = -1},
        .sent_ms = ONCE_NO_TIME,
        .at = {.place = ONCE_BYTES("place")},
    };
    /* One choice a statement: the same seed is the same run, whatever the compiler. */
    ++r->tokens;
    q.token = (once_token){r->tokens * UINT64_C(0x9e3779b97f4a7c15), r->tokens << 40};
    const uint64_t print = below(r, 10);
    if (print < 9) q.fingerprint = print < 7 ? (once_hash){1, 1} : (once_hash){2, 2};
    if (print < 9) q.fields.n = (uint16_t)(r->tokens % (ONCE_FIELDS_MAX + 1));
    for (uint16_t i = 0; i < q.fields.n; i++) q.fields.prints[i] = (uint16_t)(i * 4000u + r->tokens % 5000);
    if (lane > 1) {
        q.lane.version = chance(r, 1) ? INT64_MAX : (int64_t)below(r, 10);
        q.lane.gap_ms = gaps[below(r, 4)];
        q.lane.has_first = chance(r, 40);
        q.lane.first = (int64_t)below(r, 4);
    }
    q.lane.block = lane && chance(r, 15);
    q.lease_ms = leases[below(r, 8)];
    q.remember_ms = chance(r, 1) ? ONCE_FOREVER : remembers[below(r, 6)];
    if (chance(r, 30)) q.sent_ms = now_of(r) - (int64_t)below(r, 4000);
    q.hold = chance(r, 15);
    q.lookup = q.hold && chance(r, 60);
    q.natural = chance(r, 25);
    q.old_key = chance(r, 20);
    q.run = below(r, 3);
    q.at.point = (once_bytes){points[below(r, 6)], 1};
    return q;
}

static once_request any_request(run *r)
{
    const uint64_t scope = below(r, SCOPES);
    return request_for(r, scope, below(r, KEYS));
}

static once_message message_for(run *r, const once_request *q)
{
    static const size_t sizes[] = {0, 1, 3, 60, 60, 4000};
    once_message m = {.at = q->at, .sent_ms = q->sent_ms};
    m.body.data = filler + below(r, 900);
    m.body.len = sizes[below(r, 6)];
    if (chance(r, 50)) m.headers = ONCE_BYTES("{\"a\":1}");
    if (chance(r, 50)) m.type = ONCE_BYTES("type");
    return m;
}

static void hold(run *r, const once_request *q) { r->held[r->n_held < HELD ? r->n_held++ : below(r, HELD)] = *q; }

/* --- comparing --- */

static bool equal_bytes(once_bytes x, once_bytes y)
{
    return x.len == y.len && (x.len == 0 || memcmp(x.data, y.data, x.len) == 0);
}

static bool equal_message(const once_message *x, const once_message *y)
{
    return equal_bytes(x->body, y->body) && equal_bytes(x->headers, y->headers) && equal_bytes(x->type, y->type) &&
           equal_bytes(x->at.place, y->at.place) && equal_bytes(x->at.point, y->at.point) && x->sent_ms == y->sent_ms;
}

static bool equal_fields(const once_fields *x, const once_fields *y)
{
    return x->n == y->n && memcmp(x->prints, y->prints, x->n * sizeof *x->prints) == 0;
}

static bool equal_firsts(const once_first *x, const once_first *y)
{
    return x && y ? equal_fields(&x->fields, &y->fields) : x == y;
}

static void compare_decisions(run *r, const char *what, size_t i, const once_decision *x, const once_decision *y)
{
    if (x->answer == y->answer && x->attempt == y->attempt && x->failures == y->failures &&
        x->unreported == y->unreported && x->maybe_done == y->maybe_done && x->orphan == y->orphan &&
        x->failing_for_ms == y->failing_for_ms && x->gap_over == y->gap_over && x->outcome == y->outcome &&
        x->wait_ms == y->wait_ms && equal_bytes(x->result, y->result) && x->own == y->own && x->left_by == y->left_by &&
        x->replaced == y->replaced && x->letter == y->letter && x->old_key == y->old_key && x->lane == y->lane &&
        equal_bytes(x->reason, y->reason) && equal_firsts(x->first, y->first) && x->asks == y->asks &&
        x->unknown_for_ms == y->unknown_for_ms)
        return;
    differ(r,
           "%s[%zu] differs: memory %s attempt %u failures %u silent %d gap_over %d outcome %d wait %" PRId64
           " result %zu own %d left_by %" PRIu64
           " reason '%.*s', other %s attempt %u failures %u silent %d gap_over %d outcome %d wait %" PRId64
           " result %zu own %d left_by %" PRIu64 " reason '%.*s'",
           what, i, once_answer_name(x->answer), x->attempt, x->failures, x->unreported, x->gap_over, (int)x->outcome,
           x->wait_ms, x->result.len, x->own, x->left_by, (int)x->reason.len, x->reason.data,
           once_answer_name(y->answer), y->attempt, y->failures, y->unreported, y->gap_over, (int)y->outcome,
           y->wait_ms, y->result.len, y->own, y->left_by, (int)y->reason.len, y->reason.data);
}

static bool compare_status(run *r, const char *what, const int rc[2], once_error err[2])
{
    if (rc[0] != rc[1])
        differ(r, "%s: memory says %s (%s), other %s (%s)", what, once_status_name(rc[0]), rc[0] ? err[0].text : "",
               once_status_name(rc[1]), rc[1] ? err[1].text : "");
    return rc[0] == ONCE_OK && !r->failed;
}

/* Fields of a state in which they mean something: drivers need not keep the others. */
static const char *entry_difference(const once_entry *x, const once_entry *y)
{
    if (x->state != y->state) return "state";
    if (x->state == ONCE_STATE_ABSENT) return NULL;
    const bool open = once_state_unfinished(x->state);
    if (!once_hash_equal(x->token, y->token)) return "token";
    if (x->attempt != y->attempt) return "attempt";
    if (x->old_key != y->old_key) return "old_key";
    if (x->failures != y->failures) return "failures";
    if (!once_hash_equal(x->fingerprint, y->fingerprint)) return "fingerprint";
    if (!equal_fields(&x->fields, &y->fields)) return "fields";
    if (x->seen_ms != y->seen_ms) return "seen_ms";
    if (x->changed_ms != y->changed_ms) return "changed_ms";
    if (x->run != y->run) return "run";
    if (!equal_bytes(x->scope.tenant, y->scope.tenant) || !equal_bytes(x->scope.consumer, y->scope.consumer) ||
        !equal_bytes(x->scope.operation, y->scope.operation))
        return "scope";
    if (!equal_bytes(x->at.place, y->at.place) || !equal_bytes(x->at.point, y->at.point)) return "at";
    if (!equal_bytes(x->reason, y->reason)) return "reason";
    if (!equal_bytes(x->who, y->who)) return "who";
    if (!equal_bytes(x->worker, y->worker)) return "worker";
    if (!equal_bytes(x->history, y->history)) return "history";
    if (once_state_finished(x->state)) {
        if (x->expires_ms != y->expires_ms) return "expires_ms";
        if (!equal_bytes(x->result, y->result)) return "result";
        return NULL;
    }
    if (!equal_bytes(x->key, y->key)) return "key";
    if (!once_hash_equal(x->lane, y->lane)) return "lane";
    if (x->order != y->order) return "order";
    if (x->versioned != y->versioned || x->gap_ms != y->gap_ms || x->gap != y->gap) return "gap";
    if (x->remember_ms != y->remember_ms) return "remember_ms";
    if (open && x->due_ms != y->due_ms) return "due_ms";
    if (open && x->hold != y->hold) return "hold";
    if (open && x->lookup != y->lookup) return "lookup";
    if (x->unreported != y->unreported) return "silent";
    if (x->maybe_done != y->maybe_done) return "maybe";
    if (x->fixed != y->fixed) return "fixed";
    if (x->failing_ms != y->failing_ms) return "failing_ms";
    if (x->natural != y->natural) return "natural";
    if (x->block != y->block) return "block";
    if (x->has_message != y->has_message) return "has_message";
    if (x->has_message && !equal_message(&x->message, &y->message)) return "message";
    return NULL;
}

/* --- calling both --- */

static void plant(const run *r, int which) { once_planted = which == 1 ? r->options.plant : ONCE_PLANT_none; }

/* Runs the statement once for each side, as `s` and `store`, with its status in rc[] and its detail in err[]. */
#define BOTH(statement)                                                                                                \
    int rc[2] = {0};                                                                                                   \
    once_error err[2] = {{0}};                                                                                         \
    for (int s = 0; s < 2; s++) {                                                                                      \
        once_backend *store = r->sides[s].store;                                                                       \
        plant(r, s);                                                                                                   \
        rc[s] = (statement);                                                                                           \
        plant(r, 0);                                                                                                   \
    }

static void compare_stats(run *r)
{
    for (int scope = 0; scope < SCOPES && !r->failed; scope++) {
        once_stats stats[2];
        BOTH(store->ops->stats(store, scopes[scope].consumer, &stats[s], &err[s]))
        if (!compare_status(r, "stats", rc, err)) return;
        if (memcmp(&stats[0], &stats[1], sizeof stats[0]) != 0)
            differ(r,
                   "stats differ: memory %" PRIu64 " waiting %" PRIu64 " claimed %" PRIu64 " unknown %" PRIu64
                   " dead wait %" PRId64 ", other %" PRIu64 " waiting %" PRIu64 " claimed %" PRIu64 " unknown %" PRIu64
                   " dead wait %" PRId64,
                   stats[0].waiting, stats[0].claimed, stats[0].unknown, stats[0].dead, stats[0].wait_ms,
                   stats[1].waiting, stats[1].claimed, stats[1].unknown, stats[1].dead, stats[1].wait_ms);
    }
}

/* What `waiting_max` bounds. Some stores count more than the bodies. */
static void compare_waiting_size(run *r)
{
    for (int scope = 0; scope < SCOPES && !r->failed; scope++) {
        once_waiting_size size[2];
        BOTH(store->ops->waiting_size(store, scopes[scope].consumer, &size[s], &err[s]))
        if (!compare_status(r, "waiting_size", rc, err)) return;
        if (size[0].messages != size[1].messages || size[0].bytes > size[1].bytes ||
            (size[1].bytes && !size[1].messages)) /* a body may be empty */
            differ(r,
                   "what waits differs: memory %" PRIu64 " messages of %" PRIu64 " bytes, other %" PRIu64
                   " of %" PRIu64,
                   size[0].messages, size[0].bytes, size[1].messages, size[1].bytes);
    }
}

/* Every movement of the clocks is seen by both stores at the same moment: they lean the same way. */
static void clocks_moved(run *r)
{
    if (!r->in_tx) compare_stats(r);
}

/* A filter for every other take, and how much room its shares have: both follow from its token, so a repeat
 * has the same. All is read: how far a search comes within its bound is a store's own business. */
typedef struct share_out {
    once_due_share shares[3];
    once_due_filter is;
} share_out;

static once_due_filter *share_out_due(const run *r, share_out *out)
{
    const uint64_t draw = r->take_token.b;
    *out = (share_out){.shares = {{.operation = scopes[0].operation, .room = draw >> 8 & 3},
                                  {.operation = ONCE_BYTES("none"), .room = draw >> 16 & 3},
                                  {.others = true, .room = draw >> 24 & 3}},
                       .is = {.n = 3, .read_max = 1000}};
    out->is.shares = out->shares;
    return draw & 1 ? &out->is : NULL;
}

static void play(run *r, bool again)
{
    static const char *const names[VERBS] = {"claim", "accept", "settle", "extend", "take"};
    const once_request *requests[BATCH];
    const once_message *messages[BATCH];
    once_decision decisions[2][BATCH];
    bool flags[2][BATCH];
    once_taken taken[2][BATCH];
    share_out shared[2];
    size_t n[2] = {r->n, r->n};
    for (size_t i = 0; i < r->n && r->last != TAKE; i++) {
        requests[i] = &r->requests[i];
        messages[i] = &r->messages[i];
    }
    const char *name = names[r->last];
    if (again) r->counts->repeated[r->last]++;
    BOTH(r->last == CLAIM ? store->ops->claim(store, requests, r->n, decisions[s], &r->sides[s].arena, &err[s])
         : r->last == ACCEPT
             ? store->ops->accept(store, requests, messages, r->n, decisions[s], &r->sides[s].arena, &err[s])
         : r->last == SETTLE ? store->ops->settle(store, r->settlements, r->n, flags[s], &err[s])
         : r->last == EXTEND
             ? store->ops->extend(store, requests, r->n, flags[s], &err[s])
             : store->ops->take(store, scopes[r->take_scope].consumer, r->take_token, again, 1000, r->n,
                                share_out_due(r, &shared[s]), taken[s], &n[s], &r->sides[s].arena, &err[s]))
    note(r, "%s %zu%s: %s", name, r->n, again ? " again" : "", once_status_name(rc[0]));
    if (!compare_status(r, name, rc, err)) return;
    if (n[0] != n[1]) differ(r, "take: memory hands out %zu, other %zu", n[0], n[1]);

    for (size_t i = 0; i < n[0] && !r->failed; i++) {
        const once_request *q = r->last == SETTLE ? r->settlements[i].request : &r->requests[i];
        switch (r->last) {
        case CLAIM:
        case ACCEPT: {
            const once_decision *d = &decisions[0][i];
            note(r, "  %s %zu lane %" PRIu64 " v%" PRId64 ": %s", name, q->key.len - 1, q->lane.id.a % 1000,
                 q->lane.version, once_answer_name(d->answer));
            compare_decisions(r, name, i, d, &decisions[1][i]);
            (r->last == CLAIM ? r->counts->claim : r->counts->accept)[d->answer]++;
            r->counts->unreported += d->unreported;
            r->counts->gap_over += d->gap_over;
            r->counts->result += d->result.len > 0;
            r->counts->own += d->own && d->answer == ONCE_ANSWER_RUN;
            r->counts->left_by += d->left_by > 0;
            r->counts->replaced[r->last == ACCEPT] += d->letter;
            if (r->last == CLAIM && q->natural) r->counts->natural[d->answer]++;
            if (d->answer == ONCE_ANSWER_RUN) hold(r, q);
            break;
        }
        case SETTLE:
            note(r, "  settle %zu %s: %s", q->key.len - 1, once_outcome_name(r->settlements[i].outcome),
                 flags[0][i] ? "applied" : "fenced");
            if (flags[0][i] != flags[1][i]) differ(r, "settle[%zu]: memory %d, other %d", i, flags[0][i], flags[1][i]);
            r->counts->settle[r->settlements[i].outcome][flags[0][i]]++;
            if (q->natural) r->counts->natural_settle[r->settlements[i].outcome][flags[0][i]]++;
            if (r->settlements[i].maybe_done && flags[0][i])
                r->counts->maybe_done[r->settlements[i].outcome == ONCE_DEAD]++;
            break;
        case EXTEND:
            if (flags[0][i] != flags[1][i]) differ(r, "extend[%zu]: memory %d, other %d", i, flags[0][i], flags[1][i]);
            r->counts->extend[flags[0][i]]++;
            break;
        default: {
            const once_taken *x = &taken[0][i], *y = &taken[1][i];
            note(r, "  took %zu: %s", x->request.key.len - 1, once_answer_name(x->decision.answer));
            compare_decisions(r, "take", i, &x->decision, &y->decision);
            if (!once_hash_equal(x->request.id, y->request.id) ||
                !once_hash_equal(x->request.token, y->request.token) || !equal_bytes(x->request.key, y->request.key) ||
                !equal_message(&x->message, &y->message) || x->request.lane.version != y->request.lane.version ||
                x->request.lane.gap_ms != y->request.lane.gap_ms ||
                x->request.lane.versioned != y->request.lane.versioned || x->request.sent_ms != y->request.sent_ms ||
                !once_hash_equal(x->request.lane.id, y->request.lane.id) || x->request.run != y->request.run ||
                x->request.hold != y->request.hold || x->request.lookup != y->request.lookup ||
                x->request.natural != y->request.natural || x->request.lane.block != y->request.lane.block ||
                !equal_bytes(x->scope.tenant, y->scope.tenant) ||
                !equal_bytes(x->request.at.point, y->request.at.point) ||
                !once_hash_equal(x->request.fingerprint, y->request.fingerprint) ||
                !equal_fields(&x->request.fields, &y->request.fields))
                differ(r, "take[%zu]: the entries differ", i);
            r->counts->take[x->decision.answer]++;
            r->counts->unreported += x->decision.unreported;
            r->counts->gap_over += x->decision.gap_over;
            once_request claim = request_for(r,
                                             x->scope.tenant.len                ? 1
                                             : x->scope.consumer.data[0] == 'o' ? 0
                                                                                : 2,
                                             x->request.key.len - 1);
            claim.token = x->request.token;
            claim.hold = x->request.hold;
            claim.lookup = x->request.lookup && chance(r, 90);
            if (chance(r, 90)) claim.natural = x->request.natural; /* else: the handler has changed meanwhile */
            r->counts->natural_taken += x->request.natural;
            r->counts->asks += x->decision.asks;
            if (x->decision.answer == ONCE_ANSWER_RUN || x->decision.asks) hold(r, &claim);
        }
        }
    }
}

/* --- the steps --- */

static void step_requests(run *r, verb v)
{
    r->last = v;
    r->has_last = true;
    r->n = chance(r, 5) ? BATCH : 1 + below(r, 5);
    for (size_t i = 0; i < r->n; i++) {
        r->requests[i] = v == EXTEND && r->n_held ? r->held[below(r, r->n_held)] : any_request(r);
        r->messages[i] = message_for(r, &r->requests[i]);
    }
    play(r, false);
}

static void step_settle(run *r)
{
    static const once_outcome outcomes[] = {ONCE_DONE,     ONCE_DONE,    ONCE_DONE,  ONCE_ALREADY,
                                            ONCE_REJECTED, ONCE_STALE,   ONCE_RETRY, ONCE_RETRY,
                                            ONCE_RELEASE,  ONCE_UNKNOWN, ONCE_DEAD};
    static const int64_t delays[] = {0, 1, 80, 500};
    if (r->n_held == 0) return;
    r->last = SETTLE;
    r->has_last = true;
    r->n = 1 + below(r, 4);
    for (size_t i = 0; i < r->n; i++) {
        r->requests[i] = r->held[below(r, r->n_held)];
        r->messages[i] = message_for(r, &r->requests[i]);
        const once_outcome outcome = outcomes[below(r, sizeof outcomes / sizeof *outcomes)];
        const bool open = outcome >= ONCE_RETRY;
        static const size_t sizes[] = {0, 1, 20, 300, 4100};
        once_settlement settlement = {.request = &r->requests[i], .outcome = outcome};
        if (!open) {
            settlement.result.data = filler + below(r, 900);
            settlement.result.len = sizes[below(r, 5)];
        }
        if (chance(r, 50)) settlement.reason = ONCE_BYTES("because");
        if (outcome == ONCE_RETRY || outcome == ONCE_RELEASE) settlement.delay_ms = delays[below(r, 4)];
        if (outcome == ONCE_UNKNOWN) settlement.delay_ms = chance(r, 20) ? ONCE_NEVER : delays[below(r, 4)];
        if (open && chance(r, 80)) settlement.message = &r->messages[i];
        if (outcome == ONCE_RETRY || outcome == ONCE_DEAD) settlement.maybe_done = chance(r, 40);
        r->settlements[i] = settlement;
    }
    play(r, false);
}

static void step_take(run *r, size_t max)
{
    r->last = TAKE;
    r->has_last = true;
    r->n = max;
    r->take_scope = (int)below(r, SCOPES);
    r->take_token = (once_token){++r->tokens, test_random(&r->random)};
    play(r, false);
}

static bool keep_letter(void *user, const once_letter *letter)
{
    side *to = user;
    if (to->n_letters == LETTERS) return false;
    to->letters[to->n_letters++] = letter->id;
    return true;
}

typedef struct letter_digest {
    char text[LETTERS][320];
    size_t n;
    const run *r;
} letter_digest;

static bool digest_letter(void *user, const once_letter *l)
{
    letter_digest *to = user;
    if (to->n == LETTERS) return false;
    /* ids are each store's own */
    snprintf(to->text[to->n++], sizeof to->text[0],
             "entry %" PRIx64
             " kind %d tenant %zu key %zu body %zu reason %zu type %zu headers %zu point %.*s a%u f%u seen %" PRId64
             " buried %" PRId64 " sent %" PRId64 " history %" PRIx64 " old_key %d maybe %d count %" PRIu64
             " last %" PRId64,
             l->entry.a, (int)l->kind, l->scope.tenant.len, l->key.len, l->message.body.len, l->reason.len,
             l->message.type.len, l->message.headers.len, (int)l->message.at.point.len,
             l->message.at.point.data ? l->message.at.point.data : "", l->attempt, l->failures, l->seen_ms,
             l->buried_ms, l->message.sent_ms, once_xxh128(0, l->history.data, l->history.len).a, l->old_key,
             l->maybe_done, l->count, l->last_ms);
    return true;
}

static void list_letters(run *r, int scope)
{
    r->sides[0].n_letters = r->sides[1].n_letters = 0;
    BOTH(store->ops->letters(store, scopes[scope].consumer, 0, keep_letter, &r->sides[s], &err[s]))
    if (!compare_status(r, "letters", rc, err)) return;
    if (r->sides[0].n_letters != r->sides[1].n_letters)
        differ(r, "letters: memory has %zu, other %zu", r->sides[0].n_letters, r->sides[1].n_letters);
}

static void step_replay(run *r)
{
    if (!r->in_tx) list_letters(r, (int)below(r, SCOPES)); /* in a transaction: what was listed before it */
    if (r->failed) return;
    const size_t n = r->sides[0].n_letters, at = n ? below(r, n + 1) : 0;
    bool found[2] = {false, false};
    BOTH(store->ops->replay_letter(
        store, at < n && at < r->sides[s].n_letters ? r->sides[s].letters[at] : UINT64_C(1) << 40, &found[s], &err[s]))
    note(r, "replay: %s %d", once_status_name(rc[0]), found[0]);
    const bool ok = compare_status(r, "replay", rc, err);
    if (r->failed) return;
    r->counts->replay[ok ? found[0] : 2]++;
    if (ok && found[0] != found[1]) differ(r, "replay: memory %d, other %d", found[0], found[1]);
}

static void step_forget(run *r)
{
    const uint64_t scope = below(r, SCOPES), key = below(r, KEYS);
    const once_hash id = id_of(r, scope, key);
    bool found[2] = {false, false};
    BOTH(store->ops->forget(store, id, &found[s], &err[s]))
    note(r, "forget %" PRIu64 ": %d", key, found[0]);
    if (!compare_status(r, "forget", rc, err)) return;
    r->counts->forget[found[0]]++;
    if (found[0] != found[1]) differ(r, "forget: memory %d, other %d", found[0], found[1]);
}

/* A key in a state that fits, if chance finds one. */
static void find_key(run *r, bool (*fits)(once_state), uint64_t *scope, uint64_t *key)
{
    once_backend *memory = r->sides[0].store;
    for (int i = 0; i < 10; i++) {
        once_entry entry;
        *scope = below(r, SCOPES);
        *key = below(r, KEYS);
        if (memory->ops->get(memory, id_of(r, *scope, *key), &entry, &r->sides[0].arena, NULL) == ONCE_OK &&
            fits(entry.state))
            return;
    }
}

static bool is_unknown(once_state state) { return state == ONCE_STATE_UNKNOWN; }

static void step_resolve(run *r)
{
    static const once_outcome outcomes[] = {ONCE_DONE, ONCE_RETRY, ONCE_DEAD};
    uint64_t scope, key;
    bool done[2] = {false, false};
    const uint64_t what = below(r, 3);
    find_key(r, is_unknown, &scope, &key);
    const once_hash id = id_of(r, scope, key);
    BOTH(store->ops->resolve(store, id, outcomes[what], ONCE_BYTES("resolved"), &done[s], &err[s]))
    note(r, "resolve %" PRIu64 " %s: %d", key, once_outcome_name(outcomes[what]), done[0]);
    if (!compare_status(r, "resolve", rc, err)) return;
    r->counts->resolve[what][done[0]]++;
    if (done[0] != done[1]) differ(r, "resolve: memory %d, other %d", done[0], done[1]);
}

static void step_revive(run *r)
{
    uint64_t scope, key;
    bool done[2] = {false, false};
    find_key(r, once_state_finished, &scope, &key);
    const once_request q = request_for(r, scope, key);
    const once_message message = message_for(r, &q);
    BOTH(store->ops->revive(store, &q, &message, &done[s], &err[s]))
    note(r, "revive %" PRIu64 ": %d", key, done[0]);
    if (!compare_status(r, "revive", rc, err)) return;
    r->counts->revive[done[0]]++;
    if (done[0] != done[1]) differ(r, "revive: memory %d, other %d", done[0], done[1]);
}

/* Ends a letter, with or without its entry. */
static void step_end_letter(run *r)
{
    const bool discard = chance(r, 60);
    bool found[2] = {false, false};
    if (!r->in_tx) list_letters(r, (int)below(r, SCOPES));
    if (r->failed) return;
    const size_t n = r->sides[0].n_letters, at = n ? below(r, n + 1) : 0;
    uint64_t ids[2];
    for (int s = 0; s < 2; s++)
        ids[s] = at < n && at < r->sides[s].n_letters ? r->sides[s].letters[at] : UINT64_C(1) << 40;
    BOTH(discard ? store->ops->discard(store, ids[s], 60000, &found[s], &err[s])
                 : store->ops->letter_drop(store, ids[s], &found[s], &err[s]))
    note(r, "%s: %d", discard ? "discard" : "drop", found[0]);
    if (!compare_status(r, "end of a letter", rc, err)) return;
    (discard ? r->counts->discard : r->counts->drop)[found[0]]++;
    if (found[0] != found[1]) differ(r, "end of a letter: memory %d, other %d", found[0], found[1]);
}

/* What a delivery would get, and why those that are known wait. */
static void step_look(run *r)
{
    const once_request q = any_request(r);
    once_decision decisions[2];
    once_bytes words[2] = {{0}, {0}};
    {
        BOTH(store->ops->look(store, &q, &decisions[s], &r->sides[s].arena, &err[s]))
        if (!compare_status(r, "look", rc, err)) return;
    }
    compare_decisions(r, "look", 0, &decisions[0], &decisions[1]);
    {
        BOTH(store->ops->outlook(store, &q, &decisions[s], &r->sides[s].arena, &err[s]))
        if (!compare_status(r, "outlook", rc, err)) return;
    }
    compare_decisions(r, "outlook", 0, &decisions[0], &decisions[1]);
    BOTH(store->ops->explain_lane(store, q.id, &words[s], &r->sides[s].arena, &err[s]))
    if (!compare_status(r, "why", rc, err)) return;
    if (!equal_bytes(words[0], words[1]))
        differ(r, "why: memory '%.*s', other '%.*s'", (int)words[0].len, words[0].data, (int)words[1].len,
               words[1].data);
    r->counts->why += words[0].len > 0;
}

static void step_audit(run *r)
{
    const once_request q = any_request(r);
    const once_audit act = {.consumer = q.scope->consumer,
                            .who = ONCE_BYTES("who"),
                            .what = ONCE_BYTES("what"),
                            .key = q.key,
                            .letter = below(r, 3)};
    BOTH(store->ops->audit(store, &act, &err[s]))
    if (compare_status(r, "audit", rc, err)) r->counts->audited++;
}

static bool digest_audit(void *user, const once_audit *a)
{
    uint64_t *sum = user;
    *sum = (*sum ^ ((uint64_t)a->time_ms * 31 + a->key.len * 7 + a->letter)) * UINT64_C(0x9e3779b97f4a7c15) +
           a->who.len + a->what.len + a->note.len;
    return true;
}

static void compare_audits(run *r)
{
    for (int scope = 1; scope < SCOPES && !r->failed; scope++) {
        uint64_t sums[2] = {1, 1};
        BOTH(store->ops->audits(store, scopes[scope].consumer, digest_audit, &sums[s], &err[s]))
        if (compare_status(r, "audits", rc, err) && sums[0] != sums[1]) differ(r, "the audits differ");
    }
}

static void step_bury(run *r)
{
    once_letter letters[3];
    bool fresh[2][3];
    const size_t n = 1 + below(r, 3);
    for (size_t i = 0; i < n; i++) {
        const once_request q = any_request(r);
        letters[i] = (once_letter){
            .scope = *q.scope, .message = message_for(r, &q), .kind = ONCE_ANSWER_CONFLICT, .reason = ONCE_BYTES("no")};
        if (chance(r, 50)) letters[i].key = q.key;
        if (chance(r, 50)) letters[i].fingerprint = q.fingerprint;
    }
    BOTH(store->ops->bury(store, letters, n, fresh[s], &err[s]))
    note(r, "bury %zu", n);
    if (!compare_status(r, "bury", rc, err)) return;
    for (size_t i = 0; i < n; i++) {
        if (fresh[0][i] != fresh[1][i]) differ(r, "bury[%zu]: memory %d, other %d", i, fresh[0][i], fresh[1][i]);
        r->counts->bury[fresh[0][i]]++;
    }
}

static void step_fact(run *r)
{
    static const char *const names[] = {"a", "b"};
    const char *name = names[below(r, 2)];
    const once_bytes value = {filler, below(r, 4)};
    BOTH(store->ops->fact_set(store, name, value, &err[s]))
    if (!compare_status(r, "fact_set", rc, err)) return;
    once_bytes got[2];
    for (int s = 0; s < 2; s++) {
        once_error e;
        if (r->sides[s].store->ops->fact_get(r->sides[s].store, name, &got[s], &r->sides[s].arena, &e) != ONCE_OK)
            differ(r, "fact_get failed");
    }
    if (!r->failed && !equal_bytes(got[0], got[1]))
        differ(r, "fact: memory %zu bytes, other %zu", got[0].len, got[1].len);
}

static void step_sweep(run *r)
{
    const size_t limit = 1 + below(r, 20);
    once_sweep_result result[2];
    BOTH(store->ops->sweep(store, limit, &result[s], &err[s])) /* how much fits into a step is each store's own */
    note(r, "sweep");
    if (compare_status(r, "sweep", rc, err)) r->counts->swept++;
}

static void step_time(run *r)
{
    static const int64_t times[] = {1, 10, 50, 100, 100, 300, 1000, 3000}, hour = 3600 * 1000;
    static const int64_t jumps[] = {30,
                                    -30,
                                    3000,
                                    -3000,
                                    3600 * 1000,
                                    -3600 * 1000,
                                    INT64_C(365) * 24 * 3600 * 1000,
                                    -INT64_C(365) * 24 * 3600 * 1000};
    int64_t pass_ms = times[below(r, 8)], jump_ms = 0;
    const bool jump = chance(r, 10), reboot = chance(r, 2);
    if (jump) jump_ms = jumps[below(r, 8)];
    for (int s = 0; s < 2; s++) {
        test_env *world = &r->sides[s].world;
        test_env_pass(world, pass_ms);
        if (world->wall_ms + jump_ms > TEST_EPOCH_MS - 20000 * hour) test_env_jump(world, jump_ms);
        if (reboot) test_env_reboot(world, 100);
    }
    r->counts->jumped += jump;
    r->counts->rebooted += reboot;
    note(r, "time +%" PRId64 " jump %" PRId64 "%s", pass_ms, jump_ms, reboot ? " reboot" : "");
    clocks_moved(r);
}

static void step_begin(run *r)
{
    BOTH(store->ops->begin(store, &err[s]))
    note(r, "begin");
    if (compare_status(r, "begin", rc, err)) r->in_tx = true;
}

static void step_end(run *r)
{
    r->in_tx = false;
    if (chance(r, 40)) {
        for (int s = 0; s < 2; s++) r->sides[s].store->ops->rollback(r->sides[s].store);
        note(r, "rollback");
        r->counts->rolled_back++;
    } else {
        BOTH(store->ops->commit(store, &err[s]))
        note(r, "commit: %s", once_status_name(rc[0]));
        if (compare_status(r, "commit", rc, err)) r->counts->committed++;
        else r->counts->broken++;
    }
    clocks_moved(r);
}

static once_backend *open_other(run *r)
{
    const once_store_options options = {.size = sizeof options, .env = &r->sides[1].world.env, .create = true};
    once_backend *store = NULL;
    once_error err;
    int rc;
    if (strncmp(r->url, "sqlite:", 7) == 0 && r->limits.level0_bits)
        rc = once__sqlite_store_open(r->url + 7, &options, &r->limits, &store, &err);
    else rc = once__store_open(r->url, &options, &store, &err);
    if (rc != ONCE_OK) differ(r, "cannot open '%s': %s", r->url, err.text);
    return store;
}

/* From here on it is another process that asks. */
static void step_who(run *r)
{
    static const char *const whos[] = {"tester@world:1", "root@elsewhere:77", "7@h:8"};
    const char *who = whos[below(r, 3)];
    for (int s = 0; s < 2; s++) {
        r->sides[s].world.who = who;
        once__store_sign(r->sides[s].store);
    }
    note(r, "who %s", who);
}

static void step_reopen(run *r)
{
    if (!(r->sides[1].store->bits & ONCE_STORE_DURABLE)) return;
    /* Time is written with what is written: so that both stores go on from the same moment, something is. */
    BOTH(store->ops->fact_set(store, "moment", ONCE_BYTES("x"), &err[s]))
    if (!compare_status(r, "fact_set", rc, err)) return;
    const once_secret secret = r->sides[1].store->secret;
    once__store_close(r->sides[1].store);
    r->sides[1].store = open_other(r);
    note(r, "reopen");
    r->counts->reopened++;
    if (!r->failed && memcmp(&secret, &r->sides[1].store->secret, sizeof secret) != 0) differ(r, "the secret changed");
}

/* --- checkpoints --- */

static void compare_entries(run *r)
{
    for (uint64_t i = 0; i < SCOPES * KEYS && !r->failed; i++) {
        once_entry entries[2];
        const once_hash id = id_of(r, i / KEYS, i % KEYS);
        BOTH(store->ops->get(store, id, &entries[s], &r->sides[s].arena, &err[s]))
        if (!compare_status(r, "get", rc, err)) return;
        const char *what = entry_difference(&entries[0], &entries[1]);
        if (what)
            differ(r,
                   "key %" PRIu64 " of scope %" PRIu64 ": %s differs: memory %s attempt %u failures %u due %" PRId64
                   " expires %" PRId64 " order %" PRId64 ", other %s attempt %u failures %u due %" PRId64
                   " expires %" PRId64 " order %" PRId64 " (now %" PRId64 ")",
                   i % KEYS, i / KEYS, what, once_state_name(entries[0].state), entries[0].attempt, entries[0].failures,
                   entries[0].due_ms, entries[0].expires_ms, entries[0].order, once_state_name(entries[1].state),
                   entries[1].attempt, entries[1].failures, entries[1].due_ms, entries[1].expires_ms, entries[1].order,
                   now_of(r));
    }
}

typedef struct id_list {
    once_hash ids[SCOPES * KEYS + 1];
    size_t n;
} id_list;

static bool list_id(void *user, const once_entry *entry)
{
    id_list *list = user;
    list->ids[list->n++] = entry->id;
    return list->n < sizeof list->ids / sizeof *list->ids;
}

static int by_id(const void *x, const void *y)
{
    return once_hash_compare(*(const once_hash *)x, *(const once_hash *)y);
}

static bool has_twins(const id_list *list) /* sorted */
{
    for (size_t i = 1; i < list->n; i++)
        if (once_hash_equal(list->ids[i - 1], list->ids[i])) return true;
    return false;
}

static void compare_lists(run *r)
{
    for (int scope = 1; scope < SCOPES; scope++)
        for (int state = ONCE_STATE_CLAIMED; state < ONCE_STATES && !r->failed; state++) {
            id_list lists[2] = {{.n = 0}, {.n = 0}};
            BOTH(store->ops->list(store, scopes[scope].consumer, (once_state)state, list_id, &lists[s], &err[s]))
            if (!compare_status(r, "list", rc, err)) return;
            for (int s = 0; s < 2; s++) qsort(lists[s].ids, lists[s].n, sizeof(once_hash), by_id);
            if (lists[0].n != lists[1].n || memcmp(lists[0].ids, lists[1].ids, lists[0].n * sizeof(once_hash)) != 0)
                differ(r, "list of %s: memory has %zu, other %zu%s", once_state_name((once_state)state), lists[0].n,
                       lists[1].n, has_twins(&lists[1]) ? ", one of them twice" : "");
        }
}

static void compare_letters(run *r)
{
    static letter_digest digests[2];
    for (int scope = 1; scope < SCOPES && !r->failed; scope++) {
        digests[0].n = digests[1].n = 0;
        BOTH(store->ops->letters(store, scopes[scope].consumer, 0, digest_letter, &digests[s], &err[s]))
        if (!compare_status(r, "letters", rc, err)) return;
        if (digests[0].n != digests[1].n) differ(r, "letters: memory has %zu, other %zu", digests[0].n, digests[1].n);
        for (size_t i = 0; i < digests[0].n && !r->failed; i++)
            if (strcmp(digests[0].text[i], digests[1].text[i]) != 0)
                differ(r, "letter %zu: memory %s, other %s", i, digests[0].text[i], digests[1].text[i]);
    }
}

static void checkpoint(run *r)
{
    r->counts->checkpoints++;
    compare_entries(r);
    if (r->in_tx) return; /* lists and counts are asked outside */
    compare_stats(r);
    compare_waiting_size(r);
    compare_lists(r);
    compare_letters(r);
    compare_audits(r);
}

/* --- everything comes to an end --- */

typedef struct open_list {
    once_entry entries[SCOPES * KEYS];
    once_arena *arena;
    size_t n;
} open_list;

static bool list_open(void *user, const once_entry *entry)
{
    open_list *list = user;
    return once__entry_copy(list->arena, entry, &list->entries[list->n]) && ++list->n < SCOPES * KEYS;
}

static size_t list_unfinished(run *r, open_list *list)
{
    static const once_state states[] = {ONCE_STATE_CLAIMED, ONCE_STATE_WAITING, ONCE_STATE_UNKNOWN};
    *list = (open_list){.arena = &r->sides[0].arena};
    once_backend *store = r->sides[0].store;
    for (int scope = 1; scope < SCOPES; scope++)
        for (int i = 0; i < 3; i++)
            if (list->n < SCOPES * KEYS &&
                store->ops->list(store, scopes[scope].consumer, states[i], list_open, list, NULL) != ONCE_OK)
                differ(r, "list failed");
    return list->n;
}

/* A lane may wait for a dead one; in the end somebody gives it up. */
static void forget_the_dead(run *r, open_list *list)
{
    *list = (open_list){.arena = &r->sides[0].arena};
    once_backend *reference_store = r->sides[0].store;
    for (int scope = 1; scope < SCOPES; scope++)
        if (list->n < SCOPES * KEYS && reference_store->ops->list(reference_store, scopes[scope].consumer,
                                                                  ONCE_STATE_DEAD, list_open, list, NULL) != ONCE_OK)
            differ(r, "list failed");
    for (size_t i = 0; i < list->n && !r->failed; i++) {
        bool found[2];
        BOTH(store->ops->forget(store, list->entries[i].id, &found[s], &err[s]))
        if (compare_status(r, "forget", rc, err) && found[0] != found[1])
            differ(r, "forget: memory %d, other %d", found[0], found[1]);
    }
}

/* What brokers, operators and workers would do sooner or later for this entry. */
static void nudge(run *r, const once_entry *e)
{
    const uint64_t scope = e->scope.tenant.len ? 1 : e->scope.consumer.data[0] == 'o' ? 0 : 2;
    once_request q = request_for(r, scope, e->key.len - 1);
    q.fingerprint = (once_hash){0};
    q.fields = (once_fields){0};
    q.remember_ms = 2000;
    r->n = 1;
    if (e->state == ONCE_STATE_UNKNOWN || (e->state == ONCE_STATE_CLAIMED && e->due_ms == ONCE_NEVER)) {
        q.token = e->token;
        r->last = SETTLE;
        r->requests[0] = q;
        r->settlements[0] = (once_settlement){.request = &r->requests[0], .outcome = ONCE_DONE};
        play(r, false);
    } else if (!e->has_message) {
        r->last = ACCEPT;
        r->requests[0] = q;
        r->messages[0] = message_for(r, &q);
        play(r, false);
    }
}

static void drain(run *r)
{
    open_list *list = calloc(1, sizeof *list);
    int round = 0;
    while (list && !r->failed && list_unfinished(r, list) > 0) {
        if (++round > STUCK) {
            const once_entry *e = &list->entries[0];
            differ(r,
                   "stuck: %zu entries, the first one %s, key %zu, order %" PRId64 ", gap %d, due %" PRId64
                   ", now %" PRId64,
                   list->n, once_state_name(e->state), e->key.len - 1, e->order, e->gap, e->due_ms, now_of(r));
            break;
        }
        for (size_t i = 0; i < list->n && !r->failed; i++) nudge(r, &list->entries[i]);
        if (!r->failed) forget_the_dead(r, list);
        for (int s = 0; s < 2; s++) test_env_pass(&r->sides[s].world, 2000);
        clocks_moved(r);
        r->n_held = 0;
        for (int i = 0; i < 4 && !r->failed; i++) step_take(r, 4);
        while (r->n_held > 0 && !r->failed) {
            r->last = SETTLE;
            r->n = 1;
            r->requests[0] = r->held[--r->n_held];
            r->settlements[0] = (once_settlement){.request = &r->requests[0], .outcome = ONCE_DONE};
            play(r, false);
        }
        once_arena_reset(&r->sides[0].arena);
        once_arena_reset(&r->sides[1].arena);
    }
    free(list);
}

/* --- one run --- */

static void step(run *r)
{
    r->counts->steps++;
    const uint64_t what = below(r, 100);
    if (what < 22) step_requests(r, CLAIM);
    else if (what < 36) step_requests(r, ACCEPT);
    else if (what < 56) step_settle(r);
    else if (what < 61) step_requests(r, EXTEND);
    else if (what < 65) step_forget(r);
    else if (what < 67) step_bury(r);
    else if (what < 70) step_replay(r);
    else if (what < 71) step_fact(r);
    else if (what < 73) step_resolve(r);
    else if (what < 75) step_revive(r);
    else if (what < 76) step_end_letter(r);
    else if (what < 77) step_audit(r);
    else if (what < 84) step_time(r);
    else if (what < 85) compare_entries(r);
    else if (what < 86) step_look(r);
    else if (r->in_tx) {
        if (what < 94) step_end(r);
        else if (r->has_last && r->last != TAKE) play(r, true);
    } else if (what < 91) step_take(r, 1 + below(r, 5));
    else if (what < 94) step_begin(r);
    else if (what < 95) step_sweep(r);
    else if (what < 96) chance(r, 50) ? step_reopen(r) : step_who(r);
    else if (what < 97) checkpoint(r);
    else if (r->has_last) play(r, true); /* the reply to the last batch was lost */
    once_arena_reset(&r->sides[0].arena);
    once_arena_reset(&r->sides[1].arena);
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    (void)info, (void)kind, (void)at;
    return remove(path);
}

#ifdef ONCE_WITH_POSTGRES
/* A server's clock does not lean as the memory store's does: so here it says what that one said last. */
static const once_storage *reference;
static int64_t as_reference(const once_env *env)
{
    (void)env;
    return reference->clock.tenths / 10;
}

static void follow_reference(run *r, bool follow)
{
    reference = (const once_storage *)r->sides[0].store;
    once__pg_test_clock = follow ? as_reference : NULL;
}
#else
static void follow_reference(run *r, bool follow) { (void)r, (void)follow; }
#endif

static bool open_both(run *r)
{
    for (int s = 0; s < 2; s++) test_env_init(&r->sides[s].world, r->options.seed);
    const char *tmp = getenv("TMPDIR");
    snprintf(r->folder, sizeof r->folder, "%s/once-differential-XXXXXX", tmp && strlen(tmp) < 30 ? tmp : "/tmp");
    if (!mkdtemp(r->folder)) {
        differ(r, "cannot make the folder '%s'", r->folder);
        return false;
    }
    const bool file = strcmp(r->options.url, "sqlite:") == 0,
               redis = strncmp(r->options.url, "redis://", 8) == 0; /* there it is a name */
    snprintf(r->url, sizeof r->url, "%s%s%s", r->options.url, file || redis ? r->folder : "", file ? "/once.db" : "");
    if (strcmp(r->options.url, "postgres:") == 0)
        test_postgres_make(strrchr(r->folder, '/') + 1, r->url, sizeof r->url);
    if (strcmp(r->options.url, "sqlite:") == 0 &&
        r->options.seed % 4 != 0) /* small sizes: finished entries move about */
        r->limits = (once_settled_limits){
            .recent_records = 2 + r->options.seed % 7, .recent_bytes = 3000, .level0_bits = 6, .filter_bytes = 4096};
    const once_store_options options = {.size = sizeof options, .env = &r->sides[0].world.env, .create = true};
    once_error err;
    if (once__store_open("memory:", &options, &r->sides[0].store, &err) != ONCE_OK) differ(r, "%s", err.text);
    follow_reference(r, true);
    r->sides[1].store = open_other(r);
    if (r->failed) return false;
    r->sides[0].store->secret = r->sides[1].store->secret;
    r->sides[1].world.state = r->sides[0].world.state;
    return true;
}

bool differential_run(const differential_options *options, differential_counts *counts, char *report, size_t size)
{
    run *r = calloc(1, sizeof *r);
    if (!r) return false;
    r->options = *options;
    r->counts = counts;
    r->random = options->seed * UINT64_C(0x2545f4914f6cdd1d) + 1;
    r->report = report;
    r->report_size = size;
    for (size_t i = 0; i < sizeof filler; i++) filler[i] = (char)(i * 2654435761u >> 13);
    if (open_both(r)) {
        for (unsigned i = 0; i < options->steps && !r->failed; i++) step(r);
        if (r->in_tx && !r->failed) step_end(r);
        if (!r->failed) checkpoint(r);
        if (!r->failed) drain(r);
        if (!r->failed) checkpoint(r);
    }
    for (int s = 0; s < 2; s++) {
        once__store_close(r->sides[s].store);
        once_arena_release(&r->sides[s].arena);
    }
    follow_reference(r, false);
    if (strcmp(r->options.url, "postgres:") == 0) test_postgres_unmake(strrchr(r->folder, '/') + 1);
    nftw(r->folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    const bool fine = !r->failed;
    free(r);
    return fine;
}

/* --- counts --- */

static int show(const char *what, const char *answer, uint64_t n, bool possible, bool table)
{
    if (table && (possible || n))
        printf("%-10s %-22s %12" PRIu64 "%s\n", what, answer, n, possible && !n ? "   NEVER" : "");
    return possible && n == 0;
}

static int show_settled(const char *what, const uint64_t counts[ONCE_OUTCOMES][2], bool table)
{
    int never = 0;
    for (int i = 0; i < ONCE_OUTCOMES; i++)
        for (int applied = 0; applied < 2; applied++) {
            char text[40];
            snprintf(text, sizeof text, "%s %s", once_outcome_name((once_outcome)i), applied ? "applied" : "fenced");
            never += show(what, text, counts[i][applied], true, table);
        }
    return never;
}

int differential_print(const differential_counts *c, bool table)
{
    static const char *const verbs[VERBS] = {"claim", "accept", "settle", "extend", "take"};
    int never = 0;
    for (int i = 0; i < ONCE_ANSWERS; i++)
        never += show("claim", once_answer_name((once_answer)i), c->claim[i],
                      i != ONCE_ANSWER_WAITING && i != ONCE_ANSWER_CUT, table);
    for (int i = 0; i < ONCE_ANSWERS; i++)
        never += show("accept", once_answer_name((once_answer)i), c->accept[i],
                      i != ONCE_ANSWER_RUN && i != ONCE_ANSWER_GAP && i != ONCE_ANSWER_CUT, table);
    for (int i = 0; i < ONCE_ANSWERS; i++)
        never += show("take", once_answer_name((once_answer)i), c->take[i],
                      i == ONCE_ANSWER_RUN || i == ONCE_ANSWER_STALE || i == ONCE_ANSWER_DUPLICATE ||
                          i == ONCE_ANSWER_CONFLICT,
                      table);
    never += show("", "after silence", c->unreported, true, table);
    never += show("", "after a gap", c->gap_over, true, table);
    never += show("", "why it waits", c->why, true, table);
    never += show("", "with a result", c->result, true, table);
    never += show("", "claimed by itself", c->own, true, table);
    never += show("", "left by a run", c->left_by, true, table);
    never += show("replaced", "by a claim", c->replaced[0], true, table) +
             show("replaced", "by accept", c->replaced[1], true, table);
    for (int i = 0; i < ONCE_ANSWERS; i++)
        never += show("natural", once_answer_name((once_answer)i), c->natural[i],
                      i != ONCE_ANSWER_WAITING && i != ONCE_ANSWER_CUT, table);
    never += show("natural", "taken", c->natural_taken, true, table);
    never += show("take", "asks", c->asks, true, table);
    never += show_settled("natural", c->natural_settle, table);
    never += show("maybe", "retry applied", c->maybe_done[0], true, table) +
             show("maybe", "dead applied", c->maybe_done[1], true, table);
    never += show_settled("settle", c->settle, table);
    never += show("extend", "lost", c->extend[0], true, table) + show("extend", "ours", c->extend[1], true, table);
    never += show("bury", "known", c->bury[0], true, table) + show("bury", "fresh", c->bury[1], true, table);
    never += show("forget", "nothing", c->forget[0], true, table) + show("forget", "found", c->forget[1], true, table);
    never += show("replay", "nothing", c->replay[0], true, table) + show("replay", "found", c->replay[1], true, table) +
             show("replay", "refused", c->replay[2], true, table);
    never +=
        show("discard", "nothing", c->discard[0], true, table) + show("discard", "found", c->discard[1], true, table);
    never += show("drop", "nothing", c->drop[0], true, table) + show("drop", "found", c->drop[1], true, table);
    never += show("revive", "nothing", c->revive[0], true, table) + show("revive", "forced", c->revive[1], true, table);
    for (int i = 0; i < 3; i++) {
        static const char *const texts[3][2] = {
            {"done: nothing", "done"}, {"retry: nothing", "retry"}, {"dead: nothing", "dead"}};
        never += show("resolve", texts[i][0], c->resolve[i][0], true, table) +
                 show("resolve", texts[i][1], c->resolve[i][1], true, table);
    }
    never += show("audit", "written", c->audited, true, table);
    for (int i = 0; i < VERBS; i++) never += show("repeated", verbs[i], c->repeated[i], true, table);
    never += show("tx", "committed", c->committed, true, table) +
             show("tx", "rolled back", c->rolled_back, true, table) + show("tx", "broken", c->broken, true, table);
    never += show("world", "jumps", c->jumped, true, table) + show("world", "reboots", c->rebooted, true, table);
    never += show("store", "swept", c->swept, true, table);
    show("store", "reopened", c->reopened, false, table);
    show("store", "checkpoints", c->checkpoints, false, table);
    show("store", "steps", c->steps, false, table);
    return never;
}

/* --- the program --- */

static uint64_t number(const char *text)
{
    char *end;
    const uint64_t n = strtoull(text, &end, 10);
    if (end == text || *end) {
        fprintf(stderr, "differential: '%s' is not a number\n", text);
        exit(2);
    }
    return n;
}

int differential_main(int argc, char **argv)
{
    differential_options options = {.seed = 1, .steps = 2000};
    uint64_t seeds = 1;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seeds") == 0 && i + 1 < argc) seeds = number(argv[++i]);
        else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) options.seed = number(argv[++i]);
        else if (strcmp(argv[i], "--steps") == 0 && i + 1 < argc) options.steps = (unsigned)number(argv[++i]);
        else options.url = argv[i];
    }
    if (!options.url) {
        fprintf(stderr, "usage: differential [--seeds N] [--seed S] [--steps N] memory:|sqlite:|postgres:\n");
        return 2;
    }
    static differential_counts counts;
    static char report[16384];
    for (; seeds > 0; seeds--, options.seed++)
        if (!differential_run(&options, &counts, report, sizeof report)) {
            printf("%s\n", report);
            return 1;
        }
    const int never = differential_print(&counts, true);
    if (never) printf("%d possible answers never came; more seeds?\n", never);
    return never ? 1 : 0;
}
