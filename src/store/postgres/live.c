/* Entries of the open transaction and their lanes: locked and loaded in rounds, changed in memory, written at commit.
 * The head of postgres.h says in which order locks are taken, and why rows are inserted ahead. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"
#include "core/fields.h"
#include "store/lane_record.h"
#include "store/postgres/postgres.h"
#include "store/states.h"

#include "base/banned.h"

enum { VANISHED_TRIES = 8 };

/* A remember that is longer cannot be added to the time by the server without care. */
#define AHEAD_KEPT_MAX (INT64_C(1) << 62)

_Static_assert(offsetof(once_pg_slot, entry) == 0, "load gives out the entry of a slot, and save gets the slot back");

static int damaged(const once_postgres *q, const char *table, once_error *err)
{
    return once_fail(err, ONCE_E_CORRUPT, "%s: table %s is damaged; restore it from a backup", q->pg->where, table);
}

/* A lane that cannot be used, by the key of the first one in it. */
static int bad_lane(once_postgres *q, once_hash lane, const char *flaw, once_error *err)
{
    char sql[200], key[ONCE_SHOWN_KEY] = "";
    PGresult *rows;
    snprintf(sql, sizeof sql,
             "SELECT key FROM once_live WHERE lane = '%016llx%016llx'::uuid AND state < 4 ORDER BY ord, id LIMIT 1",
             (unsigned long long)lane.a, (unsigned long long)lane.b);
    int rc = once__pg_send_text(q->pg, sql, err);
    if (rc == ONCE_OK) rc = once__pg_round(q->pg, &rows, 1, err);
    if (rc != ONCE_OK) return rc;
    if (PQntuples(rows)) once__shown_key(once__pg_bytes(rows, 0, 0), key);
    PQclear(rows);
    return once_fail(
        err, ONCE_E_CORRUPT,
        "%s: table once_lane, id %016llx%016llx, the lane of key '%s': %s; somebody else wrote there, or it is damaged:"
        " restore it from a backup, or 'once check --repair'",
        q->pg->where, (unsigned long long)lane.a, (unsigned long long)lane.b, key, flaw);
}

int once__pg_lane_gone(once_postgres *q, once_hash lane, once_error *err)
{
    return bad_lane(q, lane, "its row is gone, and with it which version was the last", err);
}

static bool list_room(void *list_at, size_t n, size_t *size, size_t each)
{
    if (n < *size) return true;
    const size_t more = *size ? *size * 2 : 1024;
    void **at = list_at, *grown = realloc(*at, more * each);
    if (!grown) return false;
    *at = grown;
    *size = more;
    return true;
}

void once__pg_live_clear(once_postgres *q)
{
    once_table_clear(&q->slots, ONCE_TABLE_KEPT);
    once_table_clear(&q->lanes, ONCE_TABLE_KEPT);
    q->n_all = q->n_lanes = 0;
    q->head = (once_hash){0};
    if (q->arena.total > 8u << 20) once_arena_release(&q->arena);
    else once_arena_reset(&q->arena);
}

/* ---- slots and lanes in memory ---- */

static once_pg_slot *slot_new(once_postgres *q, once_hash id)
{
    if (!list_room(&q->all, q->n_all, &q->all_size, sizeof *q->all)) return NULL;
    once_pg_slot *slot = once_arena_new(&q->arena, once_pg_slot, 1);
    if (!slot) return NULL;
    slot->entry.id = id;
    if (!once_table_put(&q->slots, slot->entry.id, slot)) return NULL;
    q->all[q->n_all++] = slot;
    return slot;
}

static once_pg_lane *lane_of(once_postgres *q, once_hash id)
{
    once_pg_lane *lane = once_table_get(&q->lanes, id);
    if (lane) return lane;
    if (!list_room(&q->lane_list, q->n_lanes, &q->lanes_size, sizeof *q->lane_list)) return NULL;
    lane = once_arena_new(&q->arena, once_pg_lane, 1);
    if (!lane) return NULL;
    lane->id = id;
    if (!once_table_put(&q->lanes, lane->id, lane)) return NULL;
    q->lane_list[q->n_lanes++] = lane;
    return lane;
}

/* A slot knows its entry better than the table does, so its lane must know the slot. The lane is another one when the
 * id began a new life in this transaction. */
static bool join_lane(once_postgres *q, once_pg_slot *slot)
{
    once_pg_lane *lane = slot->lane;
    if (once_hash_is_zero(slot->entry.lane) || (lane && once_hash_equal(lane->id, slot->entry.lane))) return true;
    if (lane) {
        once_pg_slot **at = &lane->first;
        while (*at != slot) at = &(*at)->lane_next;
        *at = slot->lane_next;
        slot->lane = NULL;
    }
    lane = lane_of(q, slot->entry.lane);
    if (!lane) return false;
    slot->lane_next = lane->first;
    lane->first = slot;
    slot->lane = lane;
    return true;
}

static void note_own(once_pg_slot *slot)
{
    const once_entry *e = &slot->entry;
    const char *const own[PG_OWNS] = {[PG_OWN_KEY] = e->key.data,
                                      [PG_OWN_POINT] = e->at.point.data,
                                      [PG_OWN_RESULT] = e->result.data,
                                      [PG_OWN_REASON] = e->reason.data,
                                      [PG_OWN_HISTORY] = e->history.data,
                                      [PG_OWN_TYPE] = e->message.type.data,
                                      [PG_OWN_HEADERS] = e->message.headers.data,
                                      [PG_OWN_BODY] = e->message.body.data,
                                      [PG_OWN_BODY_POINT] = e->message.at.point.data};
    memcpy(slot->own, own, sizeof own);
}

/* ---- rows to entries ---- */

static bool copy_column(const PGresult *result, int row, int column, once_arena *arena, once_bytes *out)
{
    const once_bytes bytes = once__pg_bytes(result, row, column);
    *out = (once_bytes){0};
    return bytes.len == 0 || once_arena_copy(arena, bytes, out);
}

int once__pg_read_live(once_postgres *q, const PGresult *r, int row, once_arena *arena, once_entry *e, once_error *err)
{
    const int64_t state = once__pg_int(r, row, 14), flags = once__pg_int(r, row, 15);
    if (state <= ONCE_STATE_ABSENT || state > ONCE_STATE_DEAD) return damaged(q, "once_live", err);
    *e = (once_entry){
        .id = once__pg_id(r, row, 0),
        .state = (once_state)state,
        .token = once__pg_id(r, row, 1),
        .fingerprint = once__pg_id(r, row, 2),
        .lane = once__pg_id(r, row, 3),
        .order = once__pg_int(r, row, 4),
        .gap_ms = once__pg_int(r, row, 5),
        .remember_ms = once__pg_int(r, row, 6),
        .run = (uint64_t)once__pg_int(r, row, 7),
        .seen_ms = once__pg_int(r, row, 8),
        .changed_ms = once__pg_int(r, row, 9),
        .due_ms = once__pg_int(r, row, 10),
        .expires_ms = once__pg_int(r, row, 11),
        .attempt = (uint32_t)once__pg_int(r, row, 12),
        .failures = (uint32_t)once__pg_int(r, row, 13),
        .versioned = flags & ONCE_FLAG_VERSIONED,
        .gap = flags & ONCE_FLAG_GAP,
        .hold = flags & ONCE_FLAG_HOLD,
        .silent = flags & ONCE_FLAG_SILENT,
        .maybe = flags & (ONCE_FLAG_MAYBE | ONCE_FLAG_SILENT), /* older tables have only the last attempt's */
        .natural = flags & ONCE_FLAG_NATURAL,
        .old_key = !(flags & ONCE_FLAG_NEW_KEY),
        .block = flags & ONCE_FLAG_BLOCK,
        .fixed = flags & ONCE_FLAG_FIXED,
        .has_message = once__pg_int(r, row, 16) != 0,
    };
    once_bytes *const texts[] = {&e->scope.tenant, &e->scope.consumer, &e->scope.operation, &e->key,
                                 &e->at.place,     &e->at.point,       &e->reason,          &e->who,
                                 &e->worker,       &e->history};
    for (int i = 0; i < 10; i++)
        if (!copy_column(r, row, 17 + i, arena, texts[i])) return once_no_memory(err, "for a batch");
    e->failing_ms = once__pg_int(r, row, 27);
    if (!once_fields_read(once__pg_bytes(r, row, 28), &e->fields)) return damaged(q, "once_live", err);
    if (!e->has_message) return ONCE_OK;
    if (once__pg_null(r, row, 32)) return damaged(q, "once_body", err);
    once_message *m = &e->message;
    m->sent_ms = once__pg_null(r, row, 29) ? ONCE_NO_TIME : once__pg_int(r, row, 29);
    once_bytes *const parts[] = {&m->type, &m->headers, &m->body, &m->at.place, &m->at.point};
    for (int i = 0; i < 5; i++)
        if (!copy_column(r, row, 30 + i, arena, parts[i])) return once_no_memory(err, "for a batch");
    return ONCE_OK;
}

int once__pg_read_finished(once_postgres *q, const PGresult *r, int row, once_arena *arena, once_entry *e,
                           once_pg_names_of *names, once_error *err)
{
    once_bytes detail;
    *e = (once_entry){
        .id = once__pg_id(r, row, 0), .token = once__pg_id(r, row, 2), .fingerprint = once__pg_id(r, row, 3)};
    if (!copy_column(r, row, 4, arena, &detail)) return once_no_memory(err, "for a batch");
    if (!once__pg_detail_read(detail, once__pg_int(r, row, 1), e, names)) return damaged(q, "once_entry", err);
    if (!once__pg_names_want(&q->names, names->scope) || !once__pg_names_want(&q->names, names->place) ||
        !once__pg_names_want(&q->names, names->run) || !once__pg_names_want(&q->names, names->who))
        return once_no_memory(err, "for a batch");
    return ONCE_OK;
}

int once__pg_name_finished(once_postgres *q, const once_pg_names_of *names, once_entry *e, once_error *err)
{
    if (!once__pg_names_whole(q, names))
        return once_fail(
            err, ONCE_E_CORRUPT,
            "%s: an entry refers to names that table once_name does not have, as when it was restored under a worker;"
            " 'once check --repair' mends that",
            q->pg->where);
    e->scope = once__pg_names_get(&q->names, names->scope)->scope;
    e->at.place = once__pg_names_get(&q->names, names->place)->bytes;
    e->run = once__pg_names_get(&q->names, names->run)->run;
    e->who = once__pg_names_get(&q->names, names->who)->bytes;
    return ONCE_OK;
}

/* ---- a round that locks and loads ---- */

typedef struct round_of {
    once_pg_slot **slots;    /* that are asked for */
    once_pg_names_of *names; /* of those that are finished */
    size_t n;
    once_pg_lane **lanes;
    size_t n_lanes;
    size_t n_ahead;
    bool locked; /* the entries are */
    bool fresh;  /* they are inserted, or the round fails */
} round_of;

enum { ROUND_MAX = PG_BEGIN_RESULTS + 9 };

static void put_id_or_null(once_pg_array *column, once_hash id)
{
    if (once_hash_is_zero(id)) once__pg_put_null(column);
    else once__pg_put_id(column, id);
}

/* What tests say that the time is, or NULL: the server knows. */
void once__pg_param_now(const once_postgres *q, once_pg_params *params)
{
    bool set;
    const int64_t now_ms = once__pg_test_now(q, &set);
    if (set) once__pg_param_int8(params, now_ms);
    else once__pg_param_null(params);
}

static int send_ids(once_postgres *q, unsigned statement, const round_of *round, once_error *err)
{
    once_pg_params params = {0};
    once__pg_array_begin(&q->columns[0], PG_UUID);
    for (size_t i = 0; i < round->n; i++) once__pg_put_id(&q->columns[0], round->slots[i]->entry.id);
    once__pg_param_array(&params, &q->columns[0]);
    return once__pg_send(q->pg, statement, &params, err);
}

static int send_ahead(once_postgres *q, const round_of *round, once_error *err)
{
    static const uint32_t types[] = {PG_UUID, PG_INT8, PG_UUID, PG_UUID, PG_BYTEA};
    once_pg_params params = {0};
    for (size_t i = 0; i < 5; i++) once__pg_array_begin(&q->columns[i], types[i]);
    for (size_t i = 0; i < round->n; i++) {
        const once_pg_slot *slot = round->slots[i];
        if (!slot->ahead) continue;
        once__pg_put_id(&q->columns[0], slot->entry.id);
        if (slot->ahead_detail.len) {
            once__pg_put_int8(&q->columns[1], slot->ahead_kept_ms);
            once__pg_put_id(&q->columns[2], slot->ahead_token);
            put_id_or_null(&q->columns[3], slot->ahead_fingerprint);
            once__pg_put_bytes(&q->columns[4], slot->ahead_detail);
        } else {
            for (size_t k = 1; k < 5; k++) once__pg_put_null(&q->columns[k]);
        }
    }
    for (size_t i = 0; i < 5; i++) once__pg_param_array(&params, &q->columns[i]);
    once__pg_param_now(q, &params);
    return once__pg_send(q->pg, round->fresh ? PG_ENTRY_NEW : PG_ENTRY_AHEAD, &params, err);
}

static int send_lane_ids(once_postgres *q, unsigned statement, const round_of *round, once_error *err)
{
    once_pg_params params = {0};
    once__pg_array_begin(&q->columns[0], PG_UUID);
    for (size_t i = 0; i < round->n_lanes; i++) once__pg_put_id(&q->columns[0], round->lanes[i]->id);
    once__pg_param_array(&params, &q->columns[0]);
    if (statement == PG_LANE_AHEAD) once__pg_param_now(q, &params);
    return once__pg_send(q->pg, statement, &params, err);
}

/* What the tables say of the lanes, but for the entries that have slots: those are looked at in memory. */
static int send_lane_read(once_postgres *q, const round_of *round, once_error *err)
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

static void read_ahead(once_postgres *q, const PGresult *result)
{
    for (int i = 0; i < PQntuples(result); i++) {
        once_pg_slot *slot = once_table_get(&q->slots, once__pg_id(result, i, 0));
        if (slot) slot->row = slot->ahead_detail.len ? PG_ROW_FINISHED : PG_ROW_LIVE;
    }
}

/* The rows that were there. Nothing is known of those that are not finished before once_live has been read. */
static int read_entries(once_postgres *q, const round_of *round, const PGresult *result, once_error *err)
{
    for (int i = 0; i < PQntuples(result); i++) {
        once_pg_slot *slot = once_table_get(&q->slots, once__pg_id(result, i, 0));
        if (!slot || !slot->asked) return damaged(q, "once_entry", err);
        if (slot->ahead && slot->row != PG_ROW_NONE) continue; /* our own; in a savepoint the statement cannot tell */
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
        if (!slot || !slot->asked || slot->row != PG_ROW_LIVE) return damaged(q, "once_live", err);
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
        if (!lane) return damaged(q, "once_lane", err);
        lane->known = true;
        if (once__pg_int(result, i, 2) < 0) return bad_lane(q, lane->id, "its time is before 1970", err);
        if (!lane->dirty) {
            const bool empty =
                once__pg_null(result, i, 1) && once__pg_bytes(result, i, 7).len == 0; /* there for the lock alone */
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

/* Who stands in a lane has locked its row before: rows that had to be made are of lanes in which nobody is. Behind that
 * the flags say nothing, because there may be somebody soon. */
static int look_at_made(once_postgres *q, const round_of *round, const PGresult *made, once_error *err)
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

static void mark_locked(once_postgres *q, const PGresult *result)
{
    for (int i = 0; i < PQntuples(result); i++) {
        once_pg_lane *lane = once_table_get(&q->lanes, once__pg_id(result, i, 0));
        if (lane) lane->locked = true;
    }
}

/* What was loaded takes its place: names, lanes. */
static int settle_in(once_postgres *q, const round_of *round, once_error *err)
{
    int rc = once__pg_names_fetch(q, err);
    for (size_t i = 0; i < round->n && rc == ONCE_OK; i++) {
        once_pg_slot *slot = round->slots[i];
        slot->asked = false;
        if (slot->ahead) continue; /* what was written ahead is not what is known */
        if (slot->row == PG_ROW_FINISHED) rc = once__pg_name_finished(q, &round->names[i], &slot->entry, err);
        note_own(slot);
        if (!slot->live) continue;
        once_pg_lane *lane = once_table_get(&q->lanes, slot->entry.lane);
        if (lane && !lane->asked) lane->known = false; /* it counted this one as a row */
        if (rc == ONCE_OK && !join_lane(q, slot)) rc = once_no_memory(err, "for a batch");
    }
    return rc;
}

#define SEND(call)                                                                                                     \
    do {                                                                                                               \
        if (rc == ONCE_OK && (rc = (call)) == ONCE_OK) sent++;                                                         \
    } while (0)

static int run_round(once_postgres *q, round_of *round, once_error *err)
{
    PGresult *results[ROUND_MAX];
    size_t sent = 0;
    int ahead = -1, entries = -1, live = -1, made = -1, locks = -1, lanes = -1, rc = once__pg_begin_send(q, &sent, err);
    const size_t begin = sent;
    const bool plan = round->n > 0 || round->n_lanes > 0;
    bool lock_lanes = false;
    for (size_t i = 0; i < round->n_lanes; i++) lock_lanes |= !round->lanes[i]->locked;
    if (plan) SEND(once__pg_plan_send(q, err));
    if (rc == ONCE_OK) rc = once__pg_names_check_send(q, &sent, err);
    if (lock_lanes &&
        q->write) { /* whoever only looks needs no lock, and a lane that nobody locked yet has nothing to show */
        made = (int)sent;
        SEND(send_lane_ids(q, PG_LANE_AHEAD, round, err));
        locks = (int)sent;
        SEND(send_lane_ids(q, PG_LANE_LOCK, round, err));
    }
    if (round->n_ahead) {
        ahead = (int)sent;
        if (round->fresh) q->news.at = sent;
        SEND(send_ahead(q, round, err));
    }
    if (round->n) {
        if (!round->fresh) {
            entries = (int)sent;
            SEND(send_ids(q, q->write && !round->locked ? PG_ENTRY_LOCK : PG_ENTRY_READ, round, err));
        }
        live = (int)sent;
        SEND(send_ids(q, PG_LIVE_READ, round, err));
    }
    if (round->n_lanes) {
        lanes = (int)sent;
        SEND(send_lane_read(q, round, err));
    }
    if (plan) SEND(once__pg_send(q->pg, PG_UNPLAN, NULL, err));
    assert(sent <= ROUND_MAX);
    if (rc == ONCE_OK) rc = once__pg_round(q->pg, results, sent, err);
    if (rc != ONCE_OK) return once__pg_names_failed(q, rc, err);
    rc = once__pg_begin_read(q, results, begin, err);
    if (locks >= 0) mark_locked(q, results[locks]);
    if (ahead >= 0) read_ahead(q, results[ahead]);
    if (rc == ONCE_OK && entries >= 0) rc = read_entries(q, round, results[entries], err);
    if (rc == ONCE_OK && live >= 0) rc = read_live(q, results[live], err);
    if (rc == ONCE_OK && lanes >= 0) rc = read_lanes(q, results[lanes], err);
    if (rc == ONCE_OK && made >= 0) rc = look_at_made(q, round, results[made], err);
    once__pg_clear(results, sent);
    return rc;
}

/* Whether an entry that should have been inserted ahead is neither ours nor there: somebody deleted it between the two
 * statements. Those are asked for again. */
static size_t keep_vanished(round_of *round)
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

static int load_round(once_postgres *q, round_of *round, once_error *err)
{
    round->names = once_arena_new(&q->arena, once_pg_names_of, round->n + 1);
    once_pg_slot **all = once_arena_alloc(&q->arena, (round->n + 1) * sizeof *all);
    if (!round->names || !all) return once_no_memory(err, "for a batch");
    for (size_t i = 0; i < round->n; i++) {
        all[i] = round->slots[i];
        all[i]->at = i;
    }
    for (size_t i = 0; i < round->n_lanes; i++) round->lanes[i]->asked = true;
    round_of again = *round;
    again.fresh = false;
    int rc = run_round(q, round, err);
    for (int tries = 0; rc == ONCE_OK && (again.n = keep_vanished(&again)) > 0; tries++) {
        if (tries == VANISHED_TRIES)
            rc = once_fail(err, ONCE_E_ABORTED, "%s: entries came and went too fast", q->pg->where);
        else rc = run_round(q, &again, err);
    }
    round->slots = all; /* in the order of their names */
    for (size_t i = 0; i < round->n_lanes && rc == ONCE_OK; i++)
        if (!round->lanes[i]->locked && q->write)
            rc = once_fail(err, ONCE_E_ABORTED, "%s: a lane came and went too fast", q->pg->where);
    if (rc == ONCE_OK) rc = settle_in(q, round, err);
    for (size_t i = 0; i < round->n_lanes; i++) round->lanes[i]->asked = false;
    return rc;
}

/* ---- what is written ahead ---- */

static once_bytes self(const once_postgres *q) { return (once_bytes){q->shelf.store.who, strlen(q->shelf.store.who)}; }

/* The entry as it will be if the effect succeeds in this very transaction. */
static int guess_done(once_postgres *q, once_pg_slot *slot, const once_request *r, once_error *err)
{
    const once_pg_name *scope = once__pg_name_scope(&q->names, r->scope),
                       *place = once__pg_name_place(&q->names, r->at.place),
                       *run = once__pg_name_run(&q->names, r->run), *who = once__pg_name_who(&q->names, self(q));
    if (!scope || !place || !run || !who) return once_no_memory(err, "for a batch");
    const once_pg_names_of names = {scope->number, place->number, run->number, who->number};
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
    return purpose == ONCE_FOR_CLAIM && !(q->shelf.in_tx && r->natural); /* of a natural one nothing will be left */
}

static int round_begin(once_postgres *q, size_t n, round_of *round, once_error *err)
{
    *round = (round_of){.slots = once_arena_alloc(&q->arena, (n + 1) * sizeof *round->slots),
                        .lanes = once_arena_alloc(&q->arena, (n + 1) * sizeof *round->lanes)};
    return round->slots && round->lanes ? ONCE_OK : once_no_memory(err, "for a batch");
}

static int want_lane(once_postgres *q, round_of *round, const once_request *r, once_error *err)
{
    if (once_hash_is_zero(r->lane.id) || once_table_get(&q->lanes, r->lane.id)) return ONCE_OK;
    once_pg_lane *lane = lane_of(q, r->lane.id);
    if (!lane) return once_no_memory(err, "for a batch");
    round->lanes[round->n_lanes++] = lane;
    return ONCE_OK;
}

/* The names of its scope and so on are known, where it is claimed and settled in one transaction. */
static int want_entry(once_postgres *q, round_of *round, const once_request *r, once_purpose purpose, once_error *err)
{
    if (once_table_get(&q->slots, r->id)) return ONCE_OK;
    once_pg_slot *slot = slot_new(q, r->id);
    if (!slot) return once_no_memory(err, "for a batch");
    round->slots[round->n++] = slot;
    slot->asked = true;
    slot->ahead = goes_ahead(q, r, purpose);
    round->n_ahead += slot->ahead;
    const bool settles = slot->ahead && purpose == ONCE_FOR_CLAIM && q->shelf.in_tx;
    return settles && (r->remember_ms < AHEAD_KEPT_MAX / 2 || r->remember_ms == ONCE_FOREVER)
               ? guess_done(q, slot, r, err)
               : ONCE_OK;
}

/* Whoever settles in a lane wakes the next one, which is read with all others here. */
static int want_heads(once_postgres *q, round_of *round, const once_request *const *requests, size_t n, once_error *err)
{
    for (size_t i = 0; i < n; i++) {
        once_pg_lane *lane =
            once_hash_is_zero(requests[i]->lane.id) ? NULL : once_table_get(&q->lanes, requests[i]->lane.id);
        if (!lane || !lane->known || !lane->others || lane->asked || once_table_get(&q->slots, lane->head_id)) continue;
        once_pg_slot *slot = slot_new(q, lane->head_id);
        if (!slot) return once_no_memory(err, "for a batch");
        slot->asked = lane->asked = true; /* and the lane is read again, without it */
        round->slots[round->n++] = slot;
        round->lanes[round->n_lanes++] = lane;
    }
    return ONCE_OK;
}

/* Mostly all were read when the batch began. */
static bool all_known(once_postgres *q, const once_request *const *requests, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!once_table_get(&q->slots, requests[i]->id) ||
            (!once_hash_is_zero(requests[i]->lane.id) && !once_table_get(&q->lanes, requests[i]->lane.id)))
            return false;
    return true;
}

int once__pg_prefetch(once_shelf *shelf, const once_request *const *requests, size_t n, once_purpose purpose,
                      once_error *err)
{
    once_postgres *q = once__pg_of(shelf);
    round_of round;
    if (q->begun && purpose != ONCE_FOR_SETTLE && all_known(q, requests, n)) return ONCE_OK;
    int rc = purpose == ONCE_FOR_CLAIM && shelf->in_tx ? name_requests(q, requests, n, err) : ONCE_OK;
    if (rc == ONCE_OK) rc = round_begin(q, 2 * n, &round, err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        rc = want_lane(q, &round, requests[i], err);
        if (rc == ONCE_OK) rc = want_entry(q, &round, requests[i], purpose, err);
    }
    if (rc == ONCE_OK && purpose == ONCE_FOR_SETTLE) rc = want_heads(q, &round, requests, n, err);
    if (rc != ONCE_OK || (q->begun && round.n == 0 && round.n_lanes == 0)) return rc;
    return load_round(q, &round, err);
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

static void count_news(once_postgres *q, const round_of *round)
{
    bool all = true;
    for (size_t i = 0; i < round->n && all; i++) all = round->slots[i]->ahead;
    if (round->n) q->news.streak = all ? q->news.streak + 1 : 0;
}

static int expect_all(once_postgres *q, const once_touch *touched, size_t n, bool finds, once_error *err)
{
    static const once_purpose purposes[] = {[ONCE_TOUCH_CLAIM] = ONCE_FOR_CLAIM,
                                            [ONCE_TOUCH_ACCEPT] = ONCE_FOR_ACCEPT,
                                            [ONCE_TOUCH_KEEP] = ONCE_FOR_EXTEND};
    round_of round = {0};
    int rc = name_claims(q, touched, n, err);
    if (rc == ONCE_OK) rc = round_begin(q, n, &round, err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        rc = want_lane(q, &round, touched[i].request, err);
        if (rc == ONCE_OK && touched[i].kind != ONCE_TOUCH_LANE)
            rc = want_entry(q, &round, touched[i].request, purposes[touched[i].kind], err);
    }
    q->batch =
        round.n || round.n_lanes || finds; /* otherwise no effect runs in it, and BEGIN goes with what is asked first */
    round.fresh = q->news.expected && round.n && round.n_ahead == round.n;
    if (rc == ONCE_OK && q->batch) rc = load_round(q, &round, err);
    if (rc == ONCE_OK) count_news(q, &round);
    return rc;
}

/* Not to look what is there, nor to insert with care, saves a fifth of what a batch costs the server. To be wrong costs
 * the batch, and a line in the server's log: so that is tried the more rarely the more often it was. */
static int expect_news(once_postgres *q, const once_touch *touched, size_t n, bool finds, once_error *err)
{
    enum { AFTER = 4, AFTER_MAX = 256, MUCH = 8 };
    once_pg_news *news = &q->news;
    if (news->needed == 0) news->needed = AFTER;
    if (news->needed > AFTER && news->streak >= MUCH * news->needed) news->streak = news->needed /= 2;
    news->expected = news->streak >= news->needed;
    news->at = SIZE_MAX;
    const int rc = expect_all(q, touched, n, finds, err);
    if (rc == ONCE_OK || q->pg->failed_at != news->at || strcmp(q->pg->failed_state, "23505") != 0) return rc;
    news->expected = false;
    if (news->needed < AFTER_MAX) news->needed *= 2;
    once__pg_begin_anew(q);
    return expect_all(q, touched, n, finds, err);
}

/* Nothing but BEGIN, until it is our turn, and all names are locked. */
static int wait_for_turn(once_postgres *q, once_error *err)
{
    int rc;
    do {
        round_of none = {0};
        once__pg_begin_anew(q);
        once__pg_turn_pause(q);
        q->turns.tries++;
        if (once_patience_over(&q->pg->patience))
            return once_fail(err, ONCE_E_UNAVAILABLE, "%s: told to stop before it was our turn", q->pg->where);
        rc = load_round(q, &none, err);
    } while (rc != ONCE_OK && once__pg_turn_missed(q));
    return rc;
}

int once__pg_expect(once_backend *store, const once_touch *touched, size_t n, bool finds, const uint64_t *locks,
                    size_t n_locks, once_error *err)
{
    once_postgres *q = once__pg_of((once_shelf *)store);
    assert(q->shelf.in_tx && !q->begun && !q->nested);
    int rc = once__pg_turns_tell(q, err);
    q->turns.at = SIZE_MAX;
    q->turns.tries = 0;
    q->locks = locks;
    q->n_locks = n_locks;
    q->batch = n || finds;
    if (rc == ONCE_OK && !q->turns.crowded) {
        rc = expect_news(q, touched, n, finds, err);
        if (rc == ONCE_OK || !once__pg_turn_missed(q)) return rc;
        q->turns.tries = 1;
        rc = ONCE_OK;
    }
    if (rc == ONCE_OK && q->batch) rc = wait_for_turn(q, err);
    q->turns.crowded = q->turns.tries > 1; /* then what it is about need not be sent before it is our turn */
    q->news.expected = false;              /* to be wrong would cost our turn */
    return rc == ONCE_OK ? expect_all(q, touched, n, finds, err) : rc;
}

static int know_lane(once_postgres *q, once_hash id, once_pg_lane **out, once_error *err)
{
    once_pg_lane *lane = lane_of(q, id);
    if (!lane) return once_no_memory(err, "for a batch");
    *out = lane;
    if (lane->known && lane->locked) return ONCE_OK;
    round_of round = {.lanes = out, .n_lanes = 1};
    return load_round(q, &round, err);
}

/* A lane is locked before its entries. Whoever comes with nothing but ids has to look first where they are; should one
 * be elsewhere when it is locked, its lane is locked late. */
static int want_lanes_of(once_postgres *q, const once_hash *ids, size_t n, round_of *round, once_error *err)
{
    once_pg_params params = {0};
    PGresult *results[PG_BEGIN_RESULTS + 1];
    size_t sent = 0;
    int rc = once__pg_begin_send(q, &sent, err);
    const size_t begin = sent;
    once__pg_array_begin(&q->columns[0], PG_UUID);
    for (size_t i = 0; i < n; i++) once__pg_put_id(&q->columns[0], ids[i]);
    once__pg_param_array(&params, &q->columns[0]);
    SEND(once__pg_send(q->pg, PG_LIVE_LANES, &params, err));
    if (rc == ONCE_OK) rc = once__pg_round(q->pg, results, sent, err);
    if (rc != ONCE_OK) return rc;
    rc = once__pg_begin_read(q, results, begin, err);
    for (int i = 0; i < PQntuples(results[begin]) && rc == ONCE_OK; i++) {
        once_pg_lane *lane = lane_of(q, once__pg_id(results[begin], i, 0));
        if (!lane) rc = once_no_memory(err, "for a batch");
        else if (!lane->asked && !(lane->known && lane->locked)) {
            lane->asked = true;
            round->lanes[round->n_lanes++] = lane;
        }
    }
    once__pg_clear(results, sent);
    return rc;
}

int once__pg_load_by_id(once_postgres *q, const once_hash *ids, size_t n, once_error *err)
{
    round_of round;
    int rc = round_begin(q, n, &round, err);
    if (rc == ONCE_OK && q->write && n) rc = want_lanes_of(q, ids, n, &round, err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        const once_request at = {.id = ids[i]};
        rc = want_entry(q, &round, &at, ONCE_FOR_OTHERS, err);
    }
    return rc == ONCE_OK && (round.n || round.n_lanes) ? load_round(q, &round, err) : rc;
}

/* The next one of a lane was found there. */
static int load_head(once_postgres *q, once_hash id, once_error *err)
{
    round_of round;
    const once_request at = {.id = id};
    int rc = round_begin(q, 1, &round, err);
    if (rc == ONCE_OK) rc = want_entry(q, &round, &at, ONCE_FOR_OTHERS, err);
    return rc == ONCE_OK ? load_round(q, &round, err) : rc;
}

int once__pg_load(once_shelf *shelf, once_hash id, once_entry **out, once_error *err)
{
    once_postgres *q = once__pg_of(shelf);
    if (!once_table_get(&q->slots, id)) {
        const int rc = once_hash_equal(id, q->head) ? load_head(q, id, err) : once__pg_load_by_id(q, &id, 1, err);
        if (rc != ONCE_OK) return rc;
    }
    *out = &((once_pg_slot *)once_table_get(&q->slots, id))->entry;
    return ONCE_OK;
}

static int lock_free_lanes(once_postgres *q, round_of *round, once_error *err)
{
    PGresult *result;
    int rc = send_lane_ids(q, PG_LANE_LOCK_FREE, round, err);
    if (rc == ONCE_OK) rc = once__pg_round(q->pg, &result, 1, err);
    if (rc != ONCE_OK) return rc;
    mark_locked(q, result);
    PQclear(result);
    size_t left = 0;
    for (size_t i = 0; i < round->n_lanes; i++)
        if (round->lanes[i]->locked) round->lanes[left++] = round->lanes[i];
    round->n_lanes = left;
    return ONCE_OK;
}

/* Lanes of the entries that were not where they had been seen. */
static int load_other_lanes(once_postgres *q, size_t n, once_error *err)
{
    round_of lanes = {.lanes = once_arena_alloc(&q->arena, (n + 1) * sizeof *lanes.lanes)};
    if (!lanes.lanes) return once_no_memory(err, "for a batch");
    for (size_t i = 0; i < q->n_lanes && lanes.n_lanes < n; i++)
        if (!q->lane_list[i]->locked) lanes.lanes[lanes.n_lanes++] = q->lane_list[i];
    const int rc = lanes.n_lanes ? lock_free_lanes(q, &lanes, err) : ONCE_OK;
    return rc == ONCE_OK && lanes.n_lanes ? load_round(q, &lanes, err) : rc;
}

int once__pg_load_found(once_postgres *q, const PGresult *found, bool locked, once_hash *ids, size_t *n,
                        once_error *err)
{
    const size_t rows = (size_t)PQntuples(found);
    round_of round;
    int rc = round_begin(q, rows, &round, err);
    round.locked = locked;
    for (size_t i = 0; i < rows && rc == ONCE_OK; i++) {
        const once_request at = {.id = once__pg_id(found, (int)i, 0), .lane.id = once__pg_id(found, (int)i, 1)};
        const size_t lanes = round.n_lanes;
        ids[i] = at.id;
        rc = want_lane(q, &round, &at, err);
        if (rc == ONCE_OK && round.n_lanes > lanes) round.lanes[lanes]->locked = locked;
        if (rc == ONCE_OK) rc = want_entry(q, &round, &at, ONCE_FOR_OTHERS, err);
    }
    if (rc == ONCE_OK && round.n) rc = load_round(q, &round, err);
    if (rc == ONCE_OK) rc = load_other_lanes(q, rows, err);
    size_t left = 0;
    for (size_t i = 0; i < rows && rc == ONCE_OK; i++) {
        const once_pg_slot *slot = once_table_get(&q->slots, ids[i]);
        if (!slot->lane || slot->lane->locked) ids[left++] = ids[i];
    }
    *n = left;
    return rc;
}

/* Lanes that have somebody, and are not occupied by another worker; each once. */
static int waiting_lanes(once_postgres *q, const once_hash *lanes, size_t n, round_of *round, once_error *err)
{
    round->lanes = once_arena_alloc(&q->arena, (n + 1) * sizeof *round->lanes);
    if (!round->lanes) return once_no_memory(err, "for a batch");
    for (size_t i = 0; i < n; i++) {
        once_pg_lane *lane = once_table_get(&q->lanes, lanes[i]);
        if (!lane || !lane->locked || !lane->known || lane->asked || lane->claimed || (!lane->others && !lane->first))
            continue;
        lane->asked = true;
        round->lanes[round->n_lanes++] = lane;
    }
    return ONCE_OK;
}

int once__pg_lanes_waiting(once_shelf *shelf, const once_hash *lanes, size_t n_lanes, size_t each, size_t max,
                           once_hash *out, size_t *n, once_error *err)
{
    once_postgres *q = once__pg_of(shelf);
    once_pg_params params = {0};
    PGresult *results[3];
    round_of round = {0};
    *n = 0;
    int rc = waiting_lanes(q, lanes, n_lanes, &round, err);
    if (rc != ONCE_OK || round.n_lanes == 0) return rc;
    once__pg_array_begin(&q->columns[0], PG_UUID);
    for (size_t i = 0; i < round.n_lanes; i++) once__pg_put_id(&q->columns[0], round.lanes[i]->id);
    once__pg_param_array(&params, &q->columns[0]);
    once__pg_param_int8(&params, (int64_t)each);
    once__pg_param_int8(&params, (int64_t)max);
    once__pg_param_int8(&params, shelf->now_ms);
    rc = once__pg_send(q->pg, PG_PLAN, NULL, err);
    if (rc == ONCE_OK) rc = once__pg_send(q->pg, PG_LANE_WAITING, &params, err);
    if (rc == ONCE_OK) once__pg_must(q->pg, q->pg->sql[PG_LANE_WAITING].sql, q->pg->sql[PG_LANE_WAITING].shape, max);
    if (rc == ONCE_OK) rc = once__pg_send(q->pg, PG_UNPLAN, NULL, err);
    if (rc == ONCE_OK) rc = once__pg_round(q->pg, results, 3, err);
    if (rc != ONCE_OK) return rc;
    *n = (size_t)PQntuples(results[1]);
    round.slots = once_arena_alloc(&q->arena, (*n + 1) * sizeof *round.slots);
    if (!round.slots) rc = once_no_memory(err, "for a batch");
    for (size_t i = 0; i < *n && rc == ONCE_OK; i++) {
        const once_request at = {.id = out[i] = once__pg_id(results[1], (int)i, 0)};
        rc = want_entry(q, &round, &at, ONCE_FOR_OTHERS, err);
    }
    once__pg_clear(results, 3);
    return rc == ONCE_OK ? load_round(q, &round, err) : rc;
}

int once__pg_lane_before(once_shelf *shelf, const once_entry *entry, size_t max, once_hash *out, size_t *n,
                         uint64_t *count, once_error *err)
{
    once_postgres *q = once__pg_of(shelf);
    once_pg_params params = {0};
    PGresult *results[3];
    round_of round;
    once__pg_param_id(&params, entry->lane);
    once__pg_param_int8(&params, entry->order);
    once__pg_param_int8(&params, entry->seen_ms);
    once__pg_param_id(&params, entry->id);
    once__pg_param_int8(&params, (int64_t)max);
    once__pg_param_int8(&params, ONCE_BEFORE_COUNTED);
    int rc = once__pg_send(q->pg, PG_PLAN, NULL, err);
    if (rc == ONCE_OK) rc = once__pg_send(q->pg, PG_LANE_BEFORE, &params, err);
    if (rc == ONCE_OK) once__pg_must(q->pg, q->pg->sql[PG_LANE_BEFORE].sql, q->pg->sql[PG_LANE_BEFORE].shape, 2 * max);
    if (rc == ONCE_OK) rc = once__pg_send(q->pg, PG_UNPLAN, NULL, err);
    if (rc == ONCE_OK) rc = once__pg_round(q->pg, results, 3, err);
    if (rc != ONCE_OK) return rc;
    *n = (size_t)PQntuples(results[1]);
    *count = *n ? (uint64_t)once__pg_int(results[1], 0, 1) : 0;
    if (*n > 2 * max) *n = 2 * max; /* the room that there is */
    rc = round_begin(q, *n, &round, err);
    for (size_t i = 0; i < *n && rc == ONCE_OK; i++) {
        const once_request at = {.id = out[i] = once__pg_id(results[1], (int)i, 0)};
        rc = want_entry(q, &round, &at, ONCE_FOR_OTHERS, err);
    }
    once__pg_clear(results, 3);
    return rc == ONCE_OK && round.n ? load_round(q, &round, err) : rc;
}

/* ---- saving ---- */

static bool own(once_postgres *q, once_pg_slot *slot, int which, once_bytes *bytes)
{
    if (bytes->len == 0) *bytes = (once_bytes){0};
    else if (bytes->data != slot->own[which] && !once_arena_copy(&q->arena, *bytes, bytes)) return false;
    slot->own[which] = bytes->data;
    return true;
}

/* Copies what the entry points to, as far as it is not ours already. */
static bool own_all(once_postgres *q, once_pg_slot *slot)
{
    once_entry *e = &slot->entry;
    const once_pg_name *scope = once__pg_name_scope(&q->names, &e->scope),
                       *place = once__pg_name_place(&q->names, e->at.place);
    const once_pg_name *who = once__pg_name_who(&q->names, e->who);
    const once_pg_name *worker = e->worker.len ? once__pg_name_who(&q->names, e->worker) : who;
    if (!scope || !place || !who || !worker) return false;
    e->scope = scope->scope;
    e->at.place = place->bytes;
    e->who = who->bytes;
    if (e->worker.len) e->worker = worker->bytes;
    if (!own(q, slot, PG_OWN_KEY, &e->key) || !own(q, slot, PG_OWN_POINT, &e->at.point) ||
        !own(q, slot, PG_OWN_RESULT, &e->result) || !own(q, slot, PG_OWN_REASON, &e->reason) ||
        !own(q, slot, PG_OWN_HISTORY, &e->history))
        return false;
    if (!e->has_message) return true;
    const once_pg_name *body_place = once__pg_name_place(&q->names, e->message.at.place);
    if (!body_place) return false;
    e->message.at.place = body_place->bytes;
    return own(q, slot, PG_OWN_TYPE, &e->message.type) && own(q, slot, PG_OWN_HEADERS, &e->message.headers) &&
           own(q, slot, PG_OWN_BODY, &e->message.body) && own(q, slot, PG_OWN_BODY_POINT, &e->message.at.point);
}

int once__pg_save(once_shelf *shelf, once_entry *entry, once_error *err)
{
    once_postgres *q = once__pg_of(shelf);
    once_pg_slot *slot = (once_pg_slot *)entry;
    assert(once_table_get(&q->slots, entry->id) == slot);
    if (!q->write) return once_fail(err, ONCE_E_BUG, "a change inside a transaction that only reads");
    if (q->pg->savepoints) return once_fail(err, ONCE_E_BUG, "a store verb between a savepoint and its end");
    const char *body = slot->own[PG_OWN_BODY], *point = slot->own[PG_OWN_BODY_POINT];
    if (!own_all(q, slot)) return once_no_memory(err, "for a batch");
    const bool bare = entry->message.body.len == 0 &&
                      entry->message.at.point.len == 0; /* then nothing tells it from the one before */
    if (!entry->has_message || bare || body != slot->own[PG_OWN_BODY] || point != slot->own[PG_OWN_BODY_POINT])
        slot->body_same = false;
    slot->dirty = true;
    return join_lane(q, slot) ? ONCE_OK : once_no_memory(err, "for a batch");
}

/* ---- lanes ---- */

int once__pg_lane(once_shelf *shelf, once_hash id, once_hash except, once_lane *out, once_error *err)
{
    once_postgres *q = once__pg_of(shelf);
    once_pg_lane *lane;
    const int rc = know_lane(q, id, &lane, err);
    if (rc != ONCE_OK) return rc;
    assert(once_table_get(&q->slots, except)); /* so that no row is its own */
    if (!once__lane_read(lane->version, lane->expires_ms, lane->record, shelf->now_ms, out))
        return damaged(q, "once_lane", err);
    if (lane->others) {
        out->head = lane->head;
        out->tail = lane->tail;
        out->claimed = lane->claimed;
    }
    for (const once_pg_slot *slot = lane->first; slot; slot = slot->lane_next) {
        const once_entry *other = &slot->entry;
        if (!once_state_unfinished(other->state) || !once_hash_equal(other->lane, id) ||
            once_hash_equal(other->id, except))
            continue;
        if (once_state_occupies(other->state)) out->claimed = true;
        if (other->order < out->head) out->head = other->order;
        if (other->order > out->tail) out->tail = other->order;
    }
    return ONCE_OK;
}

int once__pg_save_lane(once_shelf *shelf, once_hash id, const once_lane *kept, once_error *err)
{
    once_postgres *q = once__pg_of(shelf);
    unsigned char record[ONCE_LANE_RECORD];
    once_pg_lane *lane;
    const int rc = know_lane(q, id, &lane, err);
    if (rc != ONCE_OK) return rc;
    lane->dirty = true;
    lane->version = once__lane_version(kept);
    lane->expires_ms = kept->expires_ms;
    return once_arena_copy(&q->arena, once__lane_write(kept, record), &lane->record)
               ? ONCE_OK
               : once_no_memory(err, "for a batch");
}

int once__pg_lane_head(once_shelf *shelf, once_hash id, once_hash *out, once_error *err)
{
    once_pg_lane *lane;
    const int rc = know_lane(once__pg_of(shelf), id, &lane, err);
    if (rc != ONCE_OK) return rc;
    once_hash best = lane->others ? lane->head_id : (once_hash){0};
    int64_t order = lane->head, seen_ms = lane->head_ms;
    for (const once_pg_slot *slot = lane->first; slot; slot = slot->lane_next) {
        const once_entry *other = &slot->entry;
        if (!once_state_unfinished(other->state) || !once_hash_equal(other->lane, id)) continue;
        if (!once_hash_is_zero(best) && once__lane_before(order, seen_ms, best, other)) continue;
        best = other->id;
        order = other->order;
        seen_ms = other->seen_ms;
    }
    *out = once__pg_of(shelf)->head = best;
    return ONCE_OK;
}

static int ask_equals(once_postgres *q, once_hash id, int64_t order, int64_t *seen_ms, once_error *err)
{
    once_pg_params params = {0};
    PGresult *results[3];
    once__pg_param_id(&params, id);
    once__pg_param_int8(&params, order);
    once__pg_param_int8(&params, ONCE_LANE_EQUALS);
    int rc = once__pg_send(q->pg, PG_PLAN, NULL, err);
    if (rc == ONCE_OK) rc = once__pg_send(q->pg, PG_LANE_EQUALS, &params, err);
    if (rc == ONCE_OK) rc = once__pg_send(q->pg, PG_UNPLAN, NULL, err);
    if (rc == ONCE_OK) rc = once__pg_round(q->pg, results, 3, err);
    if (rc != ONCE_OK) return rc;
    const int64_t found_ms = once__pg_int(results[1], 0, 0);
    if (found_ms > *seen_ms) *seen_ms = found_ms;
    once__pg_clear(results, 3);
    return ONCE_OK;
}

int once__pg_lane_equals(once_shelf *shelf, once_hash id, int64_t order, int64_t *seen_ms, once_error *err)
{
    once_postgres *q = once__pg_of(shelf);
    once_pg_lane *lane;
    const int rc = know_lane(q, id, &lane, err);
    if (rc != ONCE_OK) return rc;
    *seen_ms = 0;
    for (const once_pg_slot *slot = lane->first; slot; slot = slot->lane_next) {
        const once_entry *other = &slot->entry;
        if (!once_state_unfinished(other->state) || !once_hash_equal(other->lane, id) || other->order != order)
            continue;
        if (other->seen_ms > *seen_ms) *seen_ms = other->seen_ms;
    }
    return lane->others && lane->head <= order && order <= lane->tail ? ask_equals(q, id, order, seen_ms, err)
                                                                      : ONCE_OK;
}

/* ---- writing ---- */

typedef struct written {
    once_pg_slot *slot;
    enum { ENTRY_KEEP, ENTRY_INSERT, ENTRY_UPDATE, ENTRY_DELETE } entry;
    bool live_put, live_delete, body_put, body_delete;
    int64_t expires_ms; /* with a detail */
    once_bytes detail;  /* empty: not finished */
} written;

static int encode(once_postgres *q, written *w, int64_t *kept_ms, once_error *err)
{
    const once_entry *e = &w->slot->entry;
    const once_pg_name *scope = once__pg_name_scope(&q->names, &e->scope),
                       *place = once__pg_name_place(&q->names, e->at.place),
                       *run = once__pg_name_run(&q->names, e->run), *who = once__pg_name_who(&q->names, e->who);
    if (!scope || !place || !run || !who) return once_no_memory(err, "for a batch");
    const once_pg_names_of names = {scope->number, place->number, run->number, who->number};
    once_buf_clear(&q->detail);
    if (!once__pg_detail_write(e, names, &q->detail, kept_ms) ||
        !once_arena_copy(&q->arena, once_buf_bytes(&q->detail), &w->detail))
        return once_no_memory(err, "for a batch");
    w->expires_ms = e->changed_ms + *kept_ms;
    return ONCE_OK;
}

static bool as_guessed(const written *w, int64_t kept_ms, int64_t now_ms)
{
    const once_pg_slot *slot = w->slot;
    return slot->ahead && slot->row == PG_ROW_FINISHED && once_hash_equal(slot->ahead_token, slot->entry.token) &&
           once_hash_equal(slot->ahead_fingerprint, slot->entry.fingerprint) && slot->ahead_kept_ms == kept_ms &&
           slot->entry.changed_ms == now_ms && once_bytes_equal(slot->ahead_detail, w->detail);
}

/* What has to be done so that the tables say what the slot says. */
static int plan(once_postgres *q, written *w, once_error *err)
{
    once_pg_slot *slot = w->slot;
    const once_entry *e = &slot->entry;
    const bool finished = once_state_finished(e->state), live = !finished && e->state != ONCE_STATE_ABSENT;
    int64_t kept_ms = 0;
    int rc = ONCE_OK;
    w->live_put = live;
    w->live_delete = slot->live && !live;
    w->body_put = live && e->has_message && !slot->body_same;
    w->body_delete = slot->body && !(live && e->has_message);
    if (finished) {
        rc = encode(q, w, &kept_ms, err);
        w->entry = slot->row == PG_ROW_NONE                  ? ENTRY_INSERT
                   : as_guessed(w, kept_ms, q->shelf.now_ms) ? ENTRY_KEEP
                                                             : ENTRY_UPDATE;
    } else if (live) {
        w->entry = slot->row == PG_ROW_NONE ? ENTRY_INSERT : slot->row == PG_ROW_LIVE ? ENTRY_KEEP : ENTRY_UPDATE;
    } else {
        w->entry = slot->row == PG_ROW_NONE ? ENTRY_KEEP : ENTRY_DELETE;
    }
    return rc;
}

static void param_columns(once_postgres *q, size_t n, once_pg_params *params)
{
    for (size_t i = 0; i < n; i++) once__pg_param_array(params, &q->columns[i]);
}

static int send_entries(once_postgres *q, unsigned statement, const written *list, size_t n, int which, once_error *err)
{
    static const uint32_t types[] = {PG_UUID, PG_INT8, PG_UUID, PG_UUID, PG_BYTEA};
    once_pg_params params = {0};
    const size_t columns = statement == PG_ENTRY_DELETE ? 1 : 5;
    for (size_t i = 0; i < columns; i++) once__pg_array_begin(&q->columns[i], types[i]);
    for (size_t i = 0; i < n; i++) {
        const once_entry *e = &list[i].slot->entry;
        if ((int)list[i].entry != which) continue;
        once__pg_put_id(&q->columns[0], e->id);
        if (columns == 1) continue;
        if (list[i].detail.len) {
            once__pg_put_int8(&q->columns[1], list[i].expires_ms);
            put_id_or_null(&q->columns[2], e->token);
            put_id_or_null(&q->columns[3], e->fingerprint);
            once__pg_put_bytes(&q->columns[4], list[i].detail);
        } else {
            for (size_t k = 1; k < 5; k++) once__pg_put_null(&q->columns[k]);
        }
    }
    param_columns(q, columns, &params);
    return once__pg_send(q->pg, statement, &params, err);
}

static void put_live(once_postgres *q, const once_entry *e)
{
    once_pg_array *c = q->columns;
    once__pg_put_id(&c[0], e->id);
    once__pg_put_id(&c[1], e->token);
    put_id_or_null(&c[2], e->fingerprint);
    put_id_or_null(&c[3], e->lane);
    const int64_t numbers[] = {e->order,      e->gap_ms, e->remember_ms, (int64_t)e->run, e->seen_ms,
                               e->changed_ms, e->due_ms, e->expires_ms,  e->attempt,      e->failures};
    for (size_t i = 0; i < 10; i++) once__pg_put_int8(&c[4 + i], numbers[i]);
    once__pg_put_int2(&c[14], (int16_t)e->state);
    once__pg_put_int2(&c[15], (int16_t)((e->versioned ? ONCE_FLAG_VERSIONED : 0) | (e->gap ? ONCE_FLAG_GAP : 0) |
                                        (e->hold ? ONCE_FLAG_HOLD : 0) | (e->silent ? ONCE_FLAG_SILENT : 0) |
                                        (e->natural ? ONCE_FLAG_NATURAL : 0) | (e->maybe ? ONCE_FLAG_MAYBE : 0) |
                                        (e->old_key ? 0 : ONCE_FLAG_NEW_KEY) | (e->block ? ONCE_FLAG_BLOCK : 0) |
                                        (e->fixed ? ONCE_FLAG_FIXED : 0)));
    once__pg_put_bool(&c[16], e->has_message);
    const once_bytes texts[] = {e->scope.tenant, e->scope.consumer, e->scope.operation, e->key,
                                e->at.place,     e->at.point,       e->reason,          e->who,
                                e->worker,       e->history};
    for (size_t i = 0; i < 10; i++) once__pg_put_bytes(&c[17 + i], texts[i]);
    once__pg_put_int8(&c[27], e->failing_ms);
    unsigned char fields[ONCE_FIELDS_BYTES];
    once__pg_put_bytes(&c[28], (once_bytes){(const char *)fields, once_fields_write(&e->fields, fields)});
}

static int send_live(once_postgres *q, const written *list, size_t n, once_error *err)
{
    once_pg_params params = {0};
    for (size_t i = 0; i < 29; i++)
        once__pg_array_begin(&q->columns[i], i < 4               ? PG_UUID
                                             : i < 14 || i == 27 ? PG_INT8
                                             : i < 16            ? PG_INT2
                                             : i == 16           ? PG_BOOL
                                                                 : PG_BYTEA);
    for (size_t i = 0; i < n; i++)
        if (list[i].live_put) put_live(q, &list[i].slot->entry);
    param_columns(q, 29, &params);
    return once__pg_send(q->pg, PG_LIVE_PUT, &params, err);
}

static int send_bodies(once_postgres *q, const written *list, size_t n, once_error *err)
{
    once_pg_params params = {0};
    for (size_t i = 0; i < 7; i++) once__pg_array_begin(&q->columns[i], i == 0 ? PG_UUID : i == 1 ? PG_INT8 : PG_BYTEA);
    for (size_t i = 0; i < n; i++) {
        const once_message *m = &list[i].slot->entry.message;
        if (!list[i].body_put) continue;
        once__pg_put_id(&q->columns[0], list[i].slot->entry.id);
        if (m->sent_ms == ONCE_NO_TIME) once__pg_put_null(&q->columns[1]);
        else once__pg_put_int8(&q->columns[1], m->sent_ms);
        const once_bytes texts[] = {m->type, m->headers, m->body, m->at.place, m->at.point};
        for (size_t k = 0; k < 5; k++) once__pg_put_bytes(&q->columns[2 + k], texts[k]);
    }
    param_columns(q, 7, &params);
    return once__pg_send(q->pg, PG_BODY_PUT, &params, err);
}

static int send_deleted(once_postgres *q, unsigned statement, const written *list, size_t n, once_error *err)
{
    once_pg_params params = {0};
    once__pg_array_begin(&q->columns[0], PG_UUID);
    for (size_t i = 0; i < n; i++)
        if (statement == PG_LIVE_DELETE ? list[i].live_delete : list[i].body_delete)
            once__pg_put_id(&q->columns[0], list[i].slot->entry.id);
    param_columns(q, 1, &params);
    return once__pg_send(q->pg, statement, &params, err);
}

static int send_lanes(once_postgres *q, once_error *err)
{
    once_pg_params params = {0};
    for (size_t i = 0; i < 4; i++) once__pg_array_begin(&q->columns[i], i == 0 ? PG_UUID : i == 3 ? PG_BYTEA : PG_INT8);
    for (size_t i = 0; i < q->n_lanes; i++) {
        const once_pg_lane *lane = q->lane_list[i];
        if (!lane->dirty) continue;
        once__pg_put_id(&q->columns[0], lane->id);
        if (lane->version == ONCE_LANE_NO_VERSION) once__pg_put_null(&q->columns[1]);
        else once__pg_put_int8(&q->columns[1], lane->version);
        once__pg_put_int8(&q->columns[2], lane->expires_ms);
        once__pg_put_bytes(&q->columns[3], lane->record);
    }
    param_columns(q, 4, &params);
    return once__pg_send(q->pg, PG_LANE_PUT, &params, err);
}

/* Names that finished entries will refer to. */
static int name_slots(once_postgres *q, once_error *err)
{
    for (size_t i = 0; i < q->n_all; i++) {
        const once_entry *e = &q->all[i]->entry;
        if (!q->all[i]->dirty || !once_state_finished(e->state)) continue;
        if (!once__pg_name_scope(&q->names, &e->scope) || !once__pg_name_place(&q->names, e->at.place) ||
            !once__pg_name_run(&q->names, e->run) || !once__pg_name_who(&q->names, e->who))
            return once_no_memory(err, "for a batch");
    }
    return once__pg_names_resolve(q, err);
}

/* In the order of the indexes, so that neighbours find the same pages. */
static int by_entry_id(const void *x, const void *y)
{
    return once_hash_compare(((const written *)x)->slot->entry.id, ((const written *)y)->slot->entry.id);
}

/* First of all that is written: after SET ROLE the rest might fail for another reason. */
static int guard_send(once_postgres *q, size_t *sent, once_error *err)
{
    once_pg_params params = {0};
    q->guard_at = SIZE_MAX;
    if (!q->pg->effects || q->pg->borrowed) return ONCE_OK;
    once__pg_guard_params(q->pg, &params);
    q->guard_at = *sent;
    const int rc = once__pg_send(q->pg, q->pg->temps ? PG_GUARD_TEMP : PG_GUARD, &params, err);
    *sent += rc == ONCE_OK;
    return rc;
}

int once__pg_write_send(once_postgres *q, size_t *sent_out, once_error *err)
{
    written *list = once_arena_new(&q->arena, written, q->n_all + 1);
    if (!list) return once_no_memory(err, "for a batch");
    size_t n = 0, counts[4] = {0}, sent = 0;
    bool live_put = false, live_delete = false, body_put = false, body_delete = false, lanes = false;
    int rc = name_slots(q, err);
    for (size_t i = 0; i < q->n_all && rc == ONCE_OK; i++) {
        if (!q->all[i]->dirty && !(q->all[i]->ahead && q->all[i]->row != PG_ROW_NONE)) continue;
        written *w = &list[n++];
        w->slot = q->all[i];
        rc = plan(q, w, err);
        counts[w->entry]++;
        live_put |= w->live_put;
        live_delete |= w->live_delete;
        body_put |= w->body_put;
        body_delete |= w->body_delete;
    }
    for (size_t i = 0; i < q->n_lanes; i++) lanes |= q->lane_list[i]->dirty;
    const bool rows = counts[ENTRY_INSERT] + counts[ENTRY_UPDATE] + counts[ENTRY_DELETE] || live_put || live_delete,
               plans = rows || lanes;
    if (rc == ONCE_OK) rc = guard_send(q, &sent, err);
    if (rows) qsort(list, n, sizeof *list, by_entry_id); /* mostly all are as they were written ahead */
    if (plans) SEND(once__pg_send(q->pg, PG_PLAN, NULL, err));
    if (rc == ONCE_OK) rc = once__pg_names_check_send(q, &sent, err);
    if (counts[ENTRY_INSERT]) SEND(send_entries(q, PG_ENTRY_INSERT, list, n, ENTRY_INSERT, err));
    if (counts[ENTRY_UPDATE]) SEND(send_entries(q, PG_ENTRY_UPDATE, list, n, ENTRY_UPDATE, err));
    if (counts[ENTRY_DELETE]) SEND(send_entries(q, PG_ENTRY_DELETE, list, n, ENTRY_DELETE, err));
    if (live_put) SEND(send_live(q, list, n, err));
    if (live_delete) SEND(send_deleted(q, PG_LIVE_DELETE, list, n, err));
    if (body_put) SEND(send_bodies(q, list, n, err));
    if (body_delete) SEND(send_deleted(q, PG_BODY_DELETE, list, n, err));
    if (lanes) SEND(send_lanes(q, err));
    if (plans && q->nested) SEND(once__pg_send(q->pg, PG_UNPLAN, NULL, err)); /* otherwise the commit ends it */
    *sent_out = sent;
    return rc;
}
