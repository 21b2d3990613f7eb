/* What a batch will touch: all of it is locked and loaded at once, and new rows are inserted ahead, in the form that
 * they most likely end in. */
#include <assert.h>
#include <string.h>

#include "base/no_memory.h"
#include "store/postgres/live.h"

#include "base/banned.h"

/* The server adds `remember` to its time; a longer one might overflow. */
#define AHEAD_KEPT_MAX (INT64_C(1) << 62)

enum { SEEN_AHEAD = 16 };

void once__pg_remember_seen(once_postgres *q)
{
    assert(q->batch);
    for (size_t i = 0; i < q->n_all; i++) {
        if (i + SEEN_AHEAD < q->n_all) once__pg_seen_soon(&q->seen, q->all[i + SEEN_AHEAD]->entry.id);
        if (q->all[i]->row != PG_ROW_NONE) once__pg_seen_add(&q->seen, q->all[i]->entry.id);
    }
}

static once_bytes self(const once_postgres *q)
{
    return (once_bytes){q->storage.store.who, strlen(q->storage.store.who)};
}

/* Prepares the row of the entry as it will be if the effect succeeds in this transaction. */
static int guess_done(once_postgres *q, once_pg_slot *slot, const once_request *r, once_error *err)
{
    const once_name *scope = once__pg_name_scope(&q->names, r->scope),
                    *place = once__pg_name_place(&q->names, r->at.place), *run = once__pg_name_run(&q->names, r->run),
                    *who = once__pg_name_who(&q->names, self(q));
    if (!scope || !place || !run || !who) return once_no_memory(err, "for a batch");
    const once_pg_names_of names = {(int32_t)scope->number, (int32_t)place->number, (int32_t)run->number,
                                    (int32_t)who->number};
    const once_entry done = {.id = r->id,
                             .state = ONCE_STATE_DONE,
                             .attempt = 1,
                             .expires_ms = r->remember_ms,
                             .fields = r->fields,
                             .old_key = r->old_key,
                             .at = r->at};
    once_buf_clear(&q->detail);
    if (!once__pg_detail_write(&done, names, &q->detail, &slot->ahead_kept_ms) ||
        !once_arena_copy(&q->arena, once_buf_bytes(&q->detail), &slot->ahead_detail))
        return once_no_memory(err, "for a batch");
    slot->ahead_token = r->token;
    slot->ahead_fingerprint = r->fingerprint;
    return ONCE_OK;
}

static int name_requests(once_postgres *q, const once_request *const *requests, size_t n, once_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (!once__pg_name_scope(&q->names, requests[i]->scope) ||
            !once__pg_name_place(&q->names, requests[i]->at.place) || !once__pg_name_run(&q->names, requests[i]->run) ||
            !once__pg_name_who(&q->names, self(q)))
            return once_no_memory(err, "for a batch");
    return once__pg_names_resolve(q, err);
}

static bool goes_ahead(const once_postgres *q, const once_request *r, once_purpose purpose)
{
    if (purpose == ONCE_FOR_ACCEPT) return true;
    return purpose == ONCE_FOR_CLAIM && !(q->storage.in_tx && r->natural); /* a natural entry leaves no row */
}

int once__pg_want_lane(once_postgres *q, once_pg_round *round, const once_request *r, once_error *err)
{
    assert(q->open);
    if (once_hash_is_zero(r->lane.id) || once_table_get(&q->lanes, r->lane.id)) return ONCE_OK;
    once_pg_lane *lane = once__pg_lane_of(q, r->lane.id);
    if (!lane) return once_no_memory(err, "for a batch");
    round->lanes[round->n_lanes++] = lane;
    return ONCE_OK;
}

/* The names of the request are resolved before, where it is claimed and settled in one transaction. */
int once__pg_want_entry(once_postgres *q, once_pg_round *round, const once_request *r, once_purpose purpose,
                        once_error *err)
{
    assert(q->open && !once_hash_is_zero(r->id));
    if (once_table_get(&q->slots, r->id)) return ONCE_OK;
    once_pg_slot *slot = once__pg_slot_new(q, r->id);
    if (!slot) return once_no_memory(err, "for a batch");
    round->slots[round->n++] = slot;
    slot->asked = true;
    slot->ahead = goes_ahead(q, r, purpose);
    round->n_ahead += slot->ahead;
    const bool settles = slot->ahead && purpose == ONCE_FOR_CLAIM && q->storage.in_tx;
    return settles && (r->remember_ms < AHEAD_KEPT_MAX / 2 || r->remember_ms == ONCE_FOREVER)
               ? guess_done(q, slot, r, err)
               : ONCE_OK;
}

/* Settling an entry wakes the next one of its lane, so that is loaded as well. */
static int want_heads(once_postgres *q, once_pg_round *round, const once_request *const *requests, size_t n,
                      once_error *err)
{
    for (size_t i = 0; i < n; i++) {
        once_pg_lane *lane =
            once_hash_is_zero(requests[i]->lane.id) ? NULL : once_table_get(&q->lanes, requests[i]->lane.id);
        if (!lane || !lane->known || !lane->others || lane->asked || once_table_get(&q->slots, lane->head_id)) continue;
        once_pg_slot *slot = once__pg_slot_new(q, lane->head_id);
        if (!slot) return once_no_memory(err, "for a batch");
        slot->asked = lane->asked = true; /* the lane is read again, without this entry */
        round->slots[round->n++] = slot;
        round->lanes[round->n_lanes++] = lane;
    }
    return ONCE_OK;
}

/* Mostly all were loaded when the batch began. */
static bool all_known(once_postgres *q, const once_request *const *requests, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!once_table_get(&q->slots, requests[i]->id) ||
            (!once_hash_is_zero(requests[i]->lane.id) && !once_table_get(&q->lanes, requests[i]->lane.id)))
            return false;
    return true;
}

int once__pg_prefetch(once_storage *storage, const once_request *const *requests, size_t n, once_purpose purpose,
                      once_error *err)
{
    assert(once__pg_of(storage)->open);
    once_postgres *q = once__pg_of(storage);
    int rc;
    once_pg_round round;
    if (q->begun && purpose != ONCE_FOR_SETTLE && all_known(q, requests, n)) return ONCE_OK;
    if (purpose == ONCE_FOR_SETTLE && (rc = once__pg_presumed(q, err)) != ONCE_OK) return rc;
    rc = purpose == ONCE_FOR_CLAIM && storage->in_tx ? name_requests(q, requests, n, err) : ONCE_OK;
    if (rc == ONCE_OK) rc = once__pg_round_begin(q, 2 * n, &round, err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        rc = once__pg_want_lane(q, &round, requests[i], err);
        if (rc == ONCE_OK) rc = once__pg_want_entry(q, &round, requests[i], purpose, err);
    }
    if (rc == ONCE_OK && purpose == ONCE_FOR_SETTLE) rc = want_heads(q, &round, requests, n, err);
    if (rc != ONCE_OK || (q->begun && round.n == 0 && round.n_lanes == 0)) return rc;
    return once__pg_load_round(q, &round, err);
}

static int name_claims(once_postgres *q, const once_touch *touched, size_t n, once_error *err)
{
    const once_request **claims = once_arena_alloc(&q->arena, (n + 1) * sizeof *claims);
    size_t n_claims = 0;
    if (!claims) return once_no_memory(err, "for a batch");
    for (size_t i = 0; i < n; i++)
        if (touched[i].kind == ONCE_TOUCH_CLAIM) claims[n_claims++] = touched[i].request;
    return n_claims ? name_requests(q, claims, n_claims, err) : ONCE_OK;
}

static void count_streak(once_postgres *q, const once_pg_round *round)
{
    bool all = true;
    for (size_t i = 0; i < round->n && all; i++)
        all = round->slots[i]->ahead || once__pg_seen_has(&q->seen, round->slots[i]->entry.id);
    if (round->n) q->guess.streak = all ? q->guess.streak + 1 : 0;
}

/* Marks the keys that were met before: their rows probably exist. */
static void guess_seen(once_postgres *q, once_pg_round *round)
{
    for (size_t i = 0; i < round->n; i++) {
        if (i + SEEN_AHEAD < round->n) once__pg_seen_soon(&q->seen, round->slots[i + SEEN_AHEAD]->entry.id);
        round->slots[i]->seen = once__pg_seen_has(&q->seen, round->slots[i]->entry.id);
        round->n_ahead -= round->slots[i]->seen;
    }
}

/* Whether BEGIN is sent before the rest of the round is built: something will be locked for certain, and there is
 * enough of it that an early start is worth a system call. */
static bool begins_early(const once_touch *touched, size_t n)
{
    enum { MANY = 64 };
    if (n < MANY) return false;
    for (size_t i = 0; i < n; i++)
        if (touched[i].kind != ONCE_TOUCH_LANE) return true;
    return false;
}

static int expect_all(once_postgres *q, const once_touch *touched, size_t n, bool finds, once_error *err)
{
    assert(q->open && q->write);
    static const once_purpose purposes[] = {[ONCE_TOUCH_CLAIM] = ONCE_FOR_CLAIM,
                                            [ONCE_TOUCH_ACCEPT] = ONCE_FOR_ACCEPT,
                                            [ONCE_TOUCH_HELD] = ONCE_FOR_EXTEND,
                                            [ONCE_TOUCH_KEEP] = ONCE_FOR_EXTEND};
    once_pg_round round = {0};
    int rc = name_claims(q, touched, n, err);
    if (rc == ONCE_OK) rc = once__pg_round_begin(q, n, &round, err);
    if (rc == ONCE_OK && !q->begun && begins_early(touched, n)) rc = once__pg_begin_round(q, &round, err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        rc = once__pg_want_lane(q, &round, touched[i].request, err);
        if (rc == ONCE_OK && touched[i].kind != ONCE_TOUCH_LANE)
            rc = once__pg_want_entry(q, &round, touched[i].request, purposes[touched[i].kind], err);
    }
    q->batch = round.n || round.n_lanes || finds; /* otherwise no effect runs, and BEGIN goes with the first question */
    round.guessed = q->guess.expected && round.n && round.n_ahead == round.n;
    if (round.guessed) guess_seen(q, &round);
    if (rc == ONCE_OK && q->batch) rc = once__pg_load_round(q, &round, err);
    if (rc == ONCE_OK) count_streak(q, &round);
    return rc;
}

void once__pg_guess_wrong(once_postgres *q)
{
    enum { AFTER_MAX = 256 };
    q->guess.expected = false;
    q->guess.streak = 0;
    if (q->guess.needed < AFTER_MAX) q->guess.needed *= 2;
}

/* The guess that all keys are new saves a fifth of the server's work: it neither looks for rows nor inserts with ON
 * CONFLICT. A wrong guess costs the batch, and a line in the server's log. So each wrong guess doubles the number of
 * good batches that must come before the next one. */
static int expect_new_keys(once_postgres *q, const once_touch *touched, size_t n, bool finds, once_error *err)
{
    assert(q->open && q->write);
    enum { AFTER = 4, MUCH = 8 };
    once_pg_guess *guess = &q->guess;
    if (guess->needed == 0) guess->needed = AFTER;
    if (guess->needed > AFTER && guess->streak >= MUCH * guess->needed) guess->streak = guess->needed /= 2;
    guess->expected = guess->streak >= guess->needed;
    guess->at = SIZE_MAX;
    guess->missed = false;
    q->pg->failed_state[0] = '\0';
    const int rc = expect_all(q, touched, n, finds, err);
    const bool known = q->pg->failed_at == guess->at && strcmp(q->pg->failed_state, "23505") == 0;
    if (rc == ONCE_OK || !(known || guess->missed)) return rc;
    once__pg_guess_wrong(q);
    once__pg_begin_anew(q);
    return expect_all(q, touched, n, finds, err);
}

static bool runs_effects(const once_touch *touched, size_t n, bool finds)
{
    for (size_t i = 0; i < n && !finds; i++)
        finds = touched[i].kind == ONCE_TOUCH_CLAIM || touched[i].kind == ONCE_TOUCH_HELD;
    return finds;
}

int once__pg_expect(once_backend *store, const once_touch *touched, size_t n, bool finds, const uint64_t *locks,
                    size_t n_locks, once_error *err)
{
    once_postgres *q = once__pg_of((once_storage *)store);
    assert(q->storage.in_tx && !q->begun && !q->nested);
    int rc = once__pg_turns_tell(q, err);
    if (rc != ONCE_OK) return rc;
    q->locks = locks;
    q->n_locks = n_locks;
    q->batch = n || finds;
    once__pg_turn_plan(q, n_locks || runs_effects(touched, n, finds));
    while ((rc = expect_new_keys(q, touched, n, finds, err)) != ONCE_OK && once__pg_turn_missed(q)) {
        const unsigned streak = q->guess.streak;
        once__pg_begin_anew(q);
        q->guess.streak = streak; /* nothing was wrong with the keys */
        if (once_cancelled(&q->pg->cancel))
            return once_fail(err, ONCE_E_UNAVAILABLE, "%s: stopped before it was this batch's turn", q->pg->where);
        once__pg_turn_again(q);
    }
    return rc;
}
