/* The round trip that locks and loads entries and lanes. postgres.h says in which order locks are taken, and why rows
 * are inserted ahead. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"
#include "store/lane_record.h"
#include "store/postgres/live.h"

#include "base/banned.h"

enum { VANISHED_TRIES = 8, WAITS = 16 };

enum { ROUND_MAX = PG_BEGIN_RESULTS + 9 };

static int run_round(once_postgres *q, once_pg_round *round, once_error *err);

void once__pg_put_id_or_null(once_pg_array *column, once_hash id)
{
    if (once_hash_is_zero(id)) once__pg_put_null(column);
    else once__pg_put_id(column, id);
}

static bool is_inserted(const once_pg_slot *slot) { return slot->ahead && !slot->seen; }

/* Sends the ids of all entries of the round; with `inserted` false, only of those that are not inserted. */
static int send_ids(once_postgres *q, unsigned statement, const once_pg_round *round, bool inserted, once_error *err)
{
    once_pg_params params = {0};
    once__pg_array_begin(&q->columns[0], PG_UUID);
    for (size_t i = 0; i < round->n; i++)
        if (inserted || !is_inserted(round->slots[i])) once__pg_put_id(&q->columns[0], round->slots[i]->entry.id);
    once__pg_param_array(&params, &q->columns[0]);
    return once__pg_send(q->pg, statement, &params, err);
}

/* An entry that is inserted. Its id is copied, because slots are large and sorting compares ids. */
typedef struct inserted {
    once_hash id;
    const once_pg_slot *slot;
} inserted;

/* The order in which the server compares ids, as once__pg_put_id writes them. */
static int compare_inserted(const void *a, const void *b)
{
    const once_hash x = ((const inserted *)a)->id, y = ((const inserted *)b)->id;
    if (x.a != y.a) return x.a < y.a ? -1 : 1;
    return x.b < y.b ? -1 : x.b > y.b;
}

/* The inserted entries in the order in which locks are taken. NULL: memory is out. */
static const inserted *sort_inserted(once_postgres *q, const once_pg_round *round)
{
    inserted *list = once_arena_alloc(&q->arena, round->n_ahead * sizeof *list);
    size_t n = 0;
    for (size_t i = 0; list && i < round->n; i++)
        if (is_inserted(round->slots[i])) list[n++] = (inserted){round->slots[i]->entry.id, round->slots[i]};
    assert(!list || n == round->n_ahead);
    if (list) qsort(list, n, sizeof *list, compare_inserted);
    return list;
}

static int send_inserted_ids(once_postgres *q, unsigned statement, const once_pg_round *round, once_error *err)
{
    once_pg_params params = {0};
    once__pg_array_begin(&q->columns[0], PG_UUID);
    for (size_t i = 0; i < round->n; i++)
        if (is_inserted(round->slots[i])) once__pg_put_id(&q->columns[0], round->slots[i]->entry.id);
    once__pg_param_array(&params, &q->columns[0]);
    return once__pg_send(q->pg, statement, &params, err);
}

static int send_ahead(once_postgres *q, const once_pg_round *round, once_error *err)
{
    assert(q->write && round->n_ahead > 0);
    static const uint32_t types[] = {PG_UUID, PG_INT8, PG_UUID, PG_UUID, PG_BYTEA};
    once_pg_params params = {0};
    const inserted *list = sort_inserted(q, round);
    if (!list) return once_no_memory(err, "for a batch");
    for (size_t i = 0; i < 5; i++) once__pg_array_begin(&q->columns[i], types[i]);
    for (size_t i = 0; i < round->n_ahead; i++) {
        const once_pg_slot *slot = list[i].slot;
        once__pg_put_id(&q->columns[0], list[i].id);
        if (slot->ahead_detail.len) {
            once__pg_put_int8(&q->columns[1], slot->ahead_kept_ms);
            once__pg_put_id(&q->columns[2], slot->ahead_token);
            once__pg_put_id_or_null(&q->columns[3], slot->ahead_fingerprint);
            once__pg_put_bytes(&q->columns[4], slot->ahead_detail);
        } else {
            for (size_t k = 1; k < 5; k++) once__pg_put_null(&q->columns[k]);
        }
    }
    for (size_t i = 0; i < 5; i++) once__pg_param_array(&params, &q->columns[i]);
    once__pg_param_now(q, &params);
    return once__pg_send(q->pg, round->guessed ? PG_ENTRY_NEW : PG_ENTRY_AHEAD, &params, err);
}

void once__pg_param_lanes(once_postgres *q, const once_pg_round *round, once_pg_params *params)
{
    assert(round->n_lanes > 0);
    once__pg_array_begin(&q->columns[0], PG_UUID);
    for (size_t i = 0; i < round->n_lanes; i++) once__pg_put_id(&q->columns[0], round->lanes[i]->id);
    once__pg_param_array(params, &q->columns[0]);
}

static int send_lane_ids(once_postgres *q, unsigned statement, const once_pg_round *round, once_error *err)
{
    once_pg_params params = {0};
    once__pg_param_lanes(q, round, &params);
    if (statement == PG_LANE_AHEAD) once__pg_param_now(q, &params);
    return once__pg_send(q->pg, statement, &params, err);
}

/* Asks for the lanes without the entries that have slots: those are looked at in memory. */
static int send_lane_read(once_postgres *q, const once_pg_round *round, once_error *err)
{
    once_pg_params params = {0};
    once__pg_array_begin(&q->columns[0], PG_UUID);
    once__pg_array_begin(&q->columns[1], PG_UUID);
    for (size_t i = 0; i < round->n_lanes; i++) once__pg_put_id(&q->columns[0], round->lanes[i]->id);
    for (size_t i = 0; i < q->n_all; i++)
        if (q->all[i]->live || q->all[i]->asked) once__pg_put_id(&q->columns[1], q->all[i]->entry.id);
    once__pg_param_array(&params, &q->columns[0]);
    once__pg_param_array(&params, &q->columns[1]);
    once__pg_param_now(q, &params);
    once__pg_param_int8(&params, ONCE_LANE_EQUALS);
    return once__pg_send(q->pg, PG_LANE_READ, &params, err);
}

static once_pg_row row_ahead(const once_pg_slot *slot)
{
    return slot->ahead_detail.len ? PG_ROW_FINISHED : PG_ROW_LIVE;
}

/* The statement inserts all of them, or fails. */
static void presume_new(const once_pg_round *round)
{
    for (size_t i = 0; i < round->n; i++)
        if (is_inserted(round->slots[i])) round->slots[i]->row = row_ahead(round->slots[i]);
}

static int read_new(once_postgres *q, size_t n_ahead, PGresult *result, once_error *err)
{
    return strtoull(PQcmdTuples(result), NULL, 10) == n_ahead ? ONCE_OK : once__pg_damaged(q, "once_entry", err);
}

static void read_ahead(once_postgres *q, const PGresult *result)
{
    for (int i = 0; i < PQntuples(result); i++) {
        once_pg_slot *slot = once_table_get(&q->slots, once__pg_id(result, i, 0));
        if (slot) slot->row = row_ahead(slot);
    }
}

/* Reads the rows that existed. An unfinished entry is only known after once_live was read as well. */
static int read_entries(once_postgres *q, const once_pg_round *round, const PGresult *result, once_error *err)
{
    for (int i = 0; i < PQntuples(result); i++) {
        once_pg_slot *slot = once_table_get(&q->slots, once__pg_id(result, i, 0));
        if (!slot || !slot->asked) return once__pg_damaged(q, "once_entry", err);
        if (slot->ahead && slot->row != PG_ROW_NONE)
            continue; /* inserted by us; inside a savepoint the statement returns it, too */
        slot->row = PG_ROW_LIVE;
        slot->ahead = false;
        slot->ahead_detail = (once_bytes){0};
        if (once__pg_null(result, i, 1)) continue;
        const int rc = once__pg_read_finished(q, result, i, &q->arena, &slot->entry, &round->names[slot->at], err);
        if (rc != ONCE_OK) return rc;
        slot->row = PG_ROW_FINISHED;
    }
    return ONCE_OK;
}

static int read_live(once_postgres *q, const PGresult *result, once_error *err)
{
    for (int i = 0; i < PQntuples(result); i++) {
        once_pg_slot *slot = once_table_get(&q->slots, once__pg_id(result, i, 0));
        if (!slot || !slot->asked || slot->row != PG_ROW_LIVE) return once__pg_damaged(q, "once_live", err);
        const int rc = once__pg_read_live(q, result, i, &q->arena, &slot->entry, err);
        if (rc != ONCE_OK) return rc;
        slot->live = true;
        slot->body = slot->body_same = slot->entry.has_message;
    }
    return ONCE_OK;
}

static int read_lanes(once_postgres *q, const PGresult *result, once_error *err)
{
    for (int i = 0; i < PQntuples(result); i++) {
        once_pg_lane *lane = once_table_get(&q->lanes, once__pg_id(result, i, 0));
        if (!lane) return once__pg_damaged(q, "once_lane", err);
        lane->known = true;
        if (once__pg_int(result, i, 2) < 0) return once__pg_bad_lane(q, lane->id, "its time is before 1970", err);
        if (!lane->dirty) {
            const bool empty = once__pg_null(result, i, 1) && once__pg_bytes(result, i, 7).len == 0; /* only a lock */
            lane->version = once__pg_null(result, i, 1) ? ONCE_LANE_NO_VERSION : once__pg_int(result, i, 1);
            lane->expires_ms = empty ? 0 : once__pg_int(result, i, 2);
            if (!once_arena_copy(&q->arena, once__pg_bytes(result, i, 7), &lane->record))
                return once_no_memory(err, "for a batch");
        }
        lane->others = !once__pg_null(result, i, 3);
        lane->head_id = once__pg_id(result, i, 3);
        lane->head = once__pg_int(result, i, 4);
        lane->tail = once__pg_int(result, i, 5);
        lane->claimed = once__pg_int(result, i, 6) != 0;
        lane->head_ms = once__pg_int(result, i, 8);
    }
    return ONCE_OK;
}

/* An entry that is in a lane has locked the row of the lane before. So a row that had to be inserted must belong to a
 * lane without entries; otherwise the row was lost. `made` is cleared afterwards: it is true only in this round. */
static int look_at_made(once_postgres *q, const once_pg_round *round, const PGresult *made, once_error *err)
{
    const once_pg_lane *gone = NULL;
    for (int i = 0; i < PQntuples(made); i++) {
        once_pg_lane *lane = once_table_get(&q->lanes, once__pg_id(made, i, 0));
        if (lane) lane->made = true;
        if (lane && (lane->others || lane->claimed)) gone = lane;
    }
    for (size_t i = 0; PQntuples(made) && i < round->n; i++) {
        const once_pg_slot *slot = round->slots[i];
        const once_pg_lane *lane =
            slot->live && slot->entry.state < ONCE_STATE_DEAD ? once_table_get(&q->lanes, slot->entry.lane) : NULL;
        if (lane && lane->made) gone = lane;
    }
    for (int i = 0; i < PQntuples(made); i++) {
        once_pg_lane *lane = once_table_get(&q->lanes, once__pg_id(made, i, 0));
        if (lane) lane->made = false;
    }
    return gone ? once__pg_lane_gone(q, gone->id, err) : ONCE_OK;
}

void once__pg_mark_locked(once_postgres *q, const PGresult *result)
{
    for (int i = 0; i < PQntuples(result); i++) {
        once_pg_lane *lane = once_table_get(&q->lanes, once__pg_id(result, i, 0));
        if (lane) lane->locked = true;
    }
}

/* Completes the loaded entries: their names, and their places in lanes. */
static int settle_in(once_postgres *q, const once_pg_round *round, once_error *err)
{
    int rc = once__pg_names_fetch(q, err);
    for (size_t i = 0; i < round->n && rc == ONCE_OK; i++) {
        once_pg_slot *slot = round->slots[i];
        slot->asked = false;
        if (slot->ahead) continue; /* what was inserted ahead is a guess, not a fact */
        if (slot->row == PG_ROW_FINISHED) rc = once__pg_name_finished(q, &round->names[i], &slot->entry, err);
        once__pg_note_own(slot);
        if (!slot->live) continue;
        once_pg_lane *lane = once_table_get(&q->lanes, slot->entry.lane);
        if (lane && !lane->asked) lane->known = false; /* it was read with this entry as a row */
        if (rc == ONCE_OK && !once__pg_join_lane(q, slot)) rc = once_no_memory(err, "for a batch");
    }
    return rc;
}

static int send_begin(once_postgres *q, once_pg_round *round, bool plan, once_error *err)
{
    size_t sent = 0;
    int rc = once__pg_begin_send(q, &sent, err);
    round->n_begin = sent;
    if (rc == ONCE_OK) rc = once__pg_guard_send(q, &sent, err);
    if (plan) SEND(once__pg_plan_send(q, err));
    round->begun = sent;
    return rc;
}

int once__pg_begin_round(once_postgres *q, once_pg_round *round, once_error *err)
{
    assert(!q->begun && !round->begun);
    const int rc = send_begin(q, round, true, err);
    return rc == ONCE_OK ? once__pg_push(q->pg, err) : rc;
}

/* ---- a round of which only a part is waited for ---- */

enum { LATER_INSERT, LATER_LIVE, LATER_UNPLAN, LATER_MAX };

/* Reads whether the insert has succeeded. Nothing may be committed before. */
static int read_presumed(void *user, once_error *err)
{
    once_postgres *q = user;
    PGresult *results[LATER_MAX];
    int rc = once__pg_later(q->pg, results, LATER_MAX, err);
    const bool known = rc != ONCE_OK && q->pg->failed_at == LATER_INSERT && strcmp(q->pg->failed_state, "23505") == 0;
    q->pg->failed_state[0] = '\0'; /* the next round begins without a failure */
    if (known) {
        once__pg_guess_wrong(q);
        return once_fail(err, ONCE_E_ABORTED, "%s: an entry that seemed new exists already", q->pg->where);
    }
    if (rc != ONCE_OK) return once__pg_names_failed(q, rc, err);
    rc = read_new(q, q->n_presumed, results[LATER_INSERT], err);
    if (rc == ONCE_OK && PQntuples(results[LATER_LIVE])) rc = once__pg_damaged(q, "once_live", err);
    once__pg_clear(results, LATER_MAX);
    return rc;
}

int once__pg_presumed(once_postgres *q, once_error *err) { return q->pg->later.n ? read_presumed(q, err) : ONCE_OK; }

/* For batches whose keys are all new, or were met before. Known keys are read first. While the server inserts the new
 * ones, the rules decide on all entries, and effects are sent behind. Finished entries are read without a lock: only an
 * operator changes them, or a worker that finds them expired. */
static int run_presuming(once_postgres *q, once_pg_round *round, once_error *err)
{
    PGresult *results[ROUND_MAX];
    int rc = round->begun ? ONCE_OK : send_begin(q, round, true, err), entries = -1;
    size_t sent = round->begun;
    round->begun = 0;
    if (rc == ONCE_OK) rc = once__pg_names_check_send(q, &sent, err);
    if (round->n_ahead < round->n) {
        entries = (int)sent;
        SEND(send_ids(q, PG_ENTRY_READ, round, false, err));
    }
    if (rc == ONCE_OK) rc = once__pg_split(q->pg, err);
    if (rc == ONCE_OK) rc = send_ahead(q, round, err);
    if (rc == ONCE_OK) rc = send_inserted_ids(q, PG_LIVE_READ, round, err);
    if (rc == ONCE_OK) rc = once__pg_send(q->pg, PG_UNPLAN, NULL, err);
    assert(sent <= ROUND_MAX);
    q->n_presumed = round->n_ahead;
    if (rc == ONCE_OK) rc = once__pg_head(q->pg, results, sent, read_presumed, q, err);
    if (rc != ONCE_OK) return once__pg_names_failed(q, rc, err);
    rc = once__pg_begin_read(q, results, round->n_begin, err);
    once__pg_turn_taken(q);
    if (rc == ONCE_OK && entries >= 0) rc = read_entries(q, round, results[entries], err);
    presume_new(round);
    once__pg_clear(results, sent);
    return rc;
}

/* Known keys whose entry is not finished, or has expired, are locked and read again. */
static int lock_open(once_postgres *q, const once_pg_round *round, once_error *err)
{
    once_pg_round open = *round;
    open.slots = once_arena_alloc(&q->arena, (round->n + 1) * sizeof *open.slots);
    if (!open.slots) return once_no_memory(err, "for a batch");
    open.n = open.n_ahead = 0;
    open.guessed = false;
    for (size_t i = 0; i < round->n; i++) {
        once_pg_slot *slot = round->slots[i];
        if (!slot->seen || slot->row == PG_ROW_NONE) continue;
        slot->unlocked = slot->row == PG_ROW_FINISHED && !once_entry_expired(&slot->entry, q->storage.now_ms);
        if (slot->unlocked) continue;
        slot->row = PG_ROW_NONE;
        slot->entry = (once_entry){.id = slot->entry.id};
        open.slots[open.n++] = slot;
    }
    if (open.n == 0) return ONCE_OK;
    q->guess.waits = WAITS;
    return run_round(q, &open, err);
}

/* ---- a round ---- */

/* Sends all statements of a round trip in pipeline mode, then reads their results. `ahead`, `entries`... are the
 * positions of the statements in the round; -1: it was not sent. */
static int run_round(once_postgres *q, once_pg_round *round, once_error *err)
{
    assert(q->open && round->n_ahead <= round->n);
    PGresult *results[ROUND_MAX];
    int ahead = -1, entries = -1, live = -1, made = -1, locks = -1, lanes = -1;
    const bool plan = round->n > 0 || round->n_lanes > 0;
    bool lock_lanes = false;
    for (size_t i = 0; i < round->n_lanes; i++) lock_lanes |= !round->lanes[i]->locked;
    int rc = round->begun ? ONCE_OK : send_begin(q, round, plan, err);
    size_t sent = round->begun;
    round->begun = 0;
    once_error why = {0};
    if (rc == ONCE_OK) rc = once__pg_names_check_send(q, &sent, err);
    if (lock_lanes && q->write) { /* reading needs no lock, and a lane without a row has no entries */
        made = (int)sent;
        SEND(send_lane_ids(q, PG_LANE_AHEAD, round, err));
        locks = (int)sent;
        SEND(send_lane_ids(q, PG_LANE_LOCK, round, err));
    }
    if (round->n_ahead) {
        ahead = (int)sent;
        if (round->guessed) q->guess.at = sent;
        SEND(send_ahead(q, round, err));
    }
    if (round->n) {
        if (!round->guessed || round->n_ahead < round->n) {
            entries = (int)sent;
            SEND(send_ids(q, q->write && !round->locked ? PG_ENTRY_LOCK : PG_ENTRY_READ, round, !round->guessed, err));
        }
        live = (int)sent;
        SEND(send_ids(q, PG_LIVE_READ, round, true, err));
    }
    if (round->n_lanes) {
        lanes = (int)sent;
        SEND(send_lane_read(q, round, err));
    }
    if (plan) SEND(once__pg_send(q->pg, PG_UNPLAN, NULL, err));
    assert(sent <= ROUND_MAX);
    if (rc != ONCE_OK) return rc;
    rc = once__pg_round(q->pg, results, sent, &why);
    if (rc != ONCE_OK) return once__pg_names_failed(q, once__pg_guard_failed(q, rc, &why, err), err);
    rc = once__pg_begin_read(q, results, round->n_begin, err);
    once__pg_turn_taken(q);
    if (locks >= 0) once__pg_mark_locked(q, results[locks]);
    if (rc == ONCE_OK && ahead >= 0 && round->guessed) {
        presume_new(round);
        rc = read_new(q, round->n_ahead, results[ahead], err);
    } else if (ahead >= 0) {
        read_ahead(q, results[ahead]);
    }
    if (rc == ONCE_OK && entries >= 0) rc = read_entries(q, round, results[entries], err);
    if (rc == ONCE_OK && live >= 0) rc = read_live(q, results[live], err);
    if (rc == ONCE_OK && lanes >= 0) rc = read_lanes(q, results[lanes], err);
    if (rc == ONCE_OK && made >= 0) rc = look_at_made(q, round, results[made], err);
    once__pg_clear(results, sent);
    return rc;
}

/* Keeps the entries that were neither inserted nor found: another worker deleted them between the two statements. They
 * are asked for again. */
static size_t keep_vanished(once_pg_round *round)
{
    size_t left = 0;
    round->n_ahead = 0;
    for (size_t i = 0; i < round->n; i++) {
        once_pg_slot *slot = round->slots[i];
        if (!slot->ahead || slot->row != PG_ROW_NONE) continue;
        round->slots[left++] = slot;
        round->n_ahead++;
    }
    return left;
}

/* Whether a key that was met before is gone: expired and swept, or removed. Inserting it now, behind the locks of other
 * entries, would break the order of locks. */
static bool misses_some(const once_pg_round *round)
{
    for (size_t i = 0; i < round->n; i++)
        if (round->slots[i]->seen && round->slots[i]->row == PG_ROW_NONE) return true;
    return false;
}

int once__pg_load_round(once_postgres *q, once_pg_round *round, once_error *err)
{
    assert(q->open);
    round->names = once_arena_new(&q->arena, once_pg_names_of, round->n + 1);
    once_pg_slot **all = once_arena_alloc(&q->arena, (round->n + 1) * sizeof *all);
    if (!round->names || !all) return once_no_memory(err, "for a batch");
    for (size_t i = 0; i < round->n; i++) {
        all[i] = round->slots[i];
        all[i]->at = i;
    }
    for (size_t i = 0; i < round->n_lanes; i++) round->lanes[i]->asked = true;
    once_pg_round again = *round;
    again.guessed = false;
    again.begun = 0;
    const bool presumes = round->guessed && round->n_ahead && !round->n_lanes && !q->pg->borrowed && !q->guess.waits;
    if (round->guessed && q->guess.waits) q->guess.waits--;
    int rc = presumes ? run_presuming(q, round, err) : run_round(q, round, err);
    if (rc == ONCE_OK && presumes) rc = lock_open(q, round, err);
    if (rc == ONCE_OK && misses_some(round)) {
        q->guess.missed = true;
        return once_fail(err, ONCE_E_ABORTED,
                         "%s: an entry that this worker has read before no longer exists; the batch is read again",
                         q->pg->where);
    }
    for (int tries = 0; rc == ONCE_OK && (again.n = keep_vanished(&again)) > 0; tries++) {
        if (tries == VANISHED_TRIES)
            rc = once_fail(err, ONCE_E_ABORTED, "%s: entries were inserted and deleted too fast by other workers",
                           q->pg->where);
        else rc = run_round(q, &again, err);
    }
    round->slots = all; /* in the order of `names` */
    for (size_t i = 0; i < round->n_lanes && rc == ONCE_OK; i++)
        if (!round->lanes[i]->locked && q->write)
            rc = once_fail(err, ONCE_E_ABORTED, "%s: a lane was inserted and deleted too fast by other workers",
                           q->pg->where);
    if (rc == ONCE_OK) rc = settle_in(q, round, err);
    for (size_t i = 0; i < round->n_lanes; i++) round->lanes[i]->asked = false;
    return rc;
}

int once__pg_round_begin(once_postgres *q, size_t n, once_pg_round *round, once_error *err)
{
    *round = (once_pg_round){.slots = once_arena_alloc(&q->arena, (n + 1) * sizeof *round->slots),
                             .lanes = once_arena_alloc(&q->arena, (n + 1) * sizeof *round->lanes)};
    return round->slots && round->lanes ? ONCE_OK : once_no_memory(err, "for a batch");
}
