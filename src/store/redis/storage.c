/* The Redis store as a storage of the engine (store/engine.h): transactions, entries, lanes, audit records. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/failpoint.h"
#include "store/redis/redis.h"

#include "base/banned.h"

enum { TURN_MS = 2000, TURN_WAITS = 200, NAMES_MAX = 65536, RACES = 100 };

bool once__redis_test_clock(const once_redis *r)
{
#ifdef ONCE_TEST_BUILD
    return r->test_clock;
#else
    (void)r;
    return false;
#endif
}

/* A random pause of up to max_ms. It waits for other processes, so it is a real one even when a test sets the clock. */
void once__redis_pause(once_redis *r, int64_t max_ms)
{
    const once_env *env = once__redis_test_clock(r) ? once_env_real() : r->storage.store.env;
    once_env_sleep_ms(env, (int64_t)(once_env_random_u64(env) % (uint64_t)(max_ms + 1)));
}

/* --- begin, commit, rollback --- */

static void tx_over(once_redis *r)
{
    r->slots.n = r->lanes.n = r->facts.n = r->puts.n = r->dropped.n = r->ahead.n = r->audits.n = 0;
    r->assumed = r->open = false;
    once__redis_was_asked(r);
    once_table *const maps[] = {&r->slot_map, &r->lane_map, &r->dropped_map, &r->dropped_uniques};
    for (size_t i = 0; i < sizeof maps / sizeof *maps; i++) once_table_clear(maps[i], ONCE_TABLE_KEPT);
    once__redis_commit_clear(r);
    once__redis_pipe_clear(&r->pipe);
    once_arena_reset(&r->arena);
}

#ifdef ONCE_TEST_BUILD
static void read_clock(once_redis *r, once_bytes stored)
{
    once_clock clock;
    if (!r->test_clock || stored.len != sizeof clock) return;
    memcpy(&clock, stored.data, sizeof clock);
    const once_clock *known = &r->stored_clock;
    if (clock.tenths != known->tenths || clock.boot_ms != known->boot_ms || clock.boot_id != known->boot_id)
        r->storage.clock = clock;
    r->stored_clock = clock;
}
#else
static void read_clock(once_redis *r, once_bytes stored) { (void)r, (void)stored; }
#endif

/* A worker that has lost races sets {NAME}turn and goes first: others pause before they begin. Nothing depends on
 * it. */
static void ask_turn(once_redis *r)
{
    if (r->losses && !r->has_turn) {
        once__redis_command(&r->pipe, ONCE_REPLY_DONE_OR_NOT, 6);
        once__redis_text(&r->pipe, "SET");
        once__redis_put_key(r, "turn", NULL, 0);
        once__redis_text(&r->pipe, "1");
        once__redis_text(&r->pipe, "NX");
        once__redis_text(&r->pipe, "PX");
        once__redis_number(&r->pipe, TURN_MS);
    } else {
        once__redis_command(&r->pipe, ONCE_REPLY_COUNT, 2);
        once__redis_text(&r->pipe, "EXISTS");
        once__redis_put_key(r, "turn", NULL, 0);
    }
}

static bool may_go_on(once_redis *r, const redisReply *turn)
{
    if (r->has_turn) return true;
    if (!r->losses) return once__reply_count(turn) == 0;
    r->has_turn = once__reply_bytes(turn).len > 0;
    return r->has_turn;
}

static void ask_head(once_redis *r)
{
    once__redis_command_for(&r->pipe, 3, 5);
    once__redis_text(&r->pipe, "HMGET");
    once__redis_put_key(r, "head", NULL, 0);
    once__redis_text(&r->pipe, r->format < 2 ? "secret" : "key_secret");
    once__redis_text(&r->pipe, "commits");
    once__redis_text(&r->pipe, "letters");
}

static int read_head(once_redis *r, const redisReply *reply, once_error *err)
{
    uint64_t commits;
    int rc = once__redis_head_number(r, once__reply_at(reply, 1), &commits, err);
    if (rc == ONCE_OK) rc = once__redis_head_number(r, once__reply_at(reply, 2), &r->letters, err);
    return rc == ONCE_OK ? once__redis_check_head(r, once__reply_at(reply, 0), commits, r->url.wait == 0, err) : rc;
}

static int redis_begin(once_storage *storage, bool write, once_error *err)
{
    once_redis *r = once__redis_of(storage);
    assert(!r->open);
    assert(r->slots.n == 0 && r->parts[ONCE_REDIS_COMMANDS].n == 0);
    r->conflict = false;
    r->open = true;
    r->writes = write;
    if (r->names.n > NAMES_MAX) once__redis_names_forget(r);
    int rc = ONCE_OK;
    for (int i = 0; i < TURN_WAITS && rc == ONCE_OK; i++) {
        if (i) once__redis_pause(r, 10);
        once__redis_pipe_clear(&r->pipe);
        once__redis_words(&r->pipe, ONCE_REPLY_TIME, "TIME");
        ask_head(r);
        if (once__redis_test_clock(r)) {
            once__redis_command(&r->pipe, ONCE_REPLY_VALUE, 2);
            once__redis_text(&r->pipe, "GET");
            once__redis_put_key(r, "testclock", NULL, 0);
        }
        if (write) ask_turn(r);
        rc = once__redis_ask(r, err);
        if (rc == ONCE_OK && !once__redis_test_clock(r)) r->storage.now_ms = once__reply_time_ms(r->pipe.replies[0]);
        if (rc == ONCE_OK && once__redis_may_be_astray(r))
            rc = once__redis_look_for_strays(r, err); /* first: a head on another node would seem to be missing */
        once__redis_was_asked(r);
        if (rc == ONCE_OK) rc = read_head(r, r->pipe.replies[1], err);
        if (rc == ONCE_OK && once__redis_test_clock(r)) read_clock(r, once__reply_bytes(r->pipe.replies[2]));
        if (rc == ONCE_OK && (!write || may_go_on(r, r->pipe.replies[r->pipe.n - 1]))) break;
    }
    if (once__redis_test_clock(r)) storage->now_ms = once_clock_step(&storage->clock, storage->store.env);
    once_env_random(r->storage.store.env, &r->stamp, sizeof r->stamp);
    if (rc != ONCE_OK) tx_over(r);
    return rc;
}

static int redis_commit(once_storage *storage, once_error *err)
{
    once_redis *r = once__redis_of(storage);
    assert(r->open);
    const int rc = once__redis_apply(r, err);
    if (rc != ONCE_OK) once__redis_claim_cache_clear(r);
    if (!r->conflict) r->losses = 0;
    else if (!r->assumed) r->losses++; /* otherwise an assumption was wrong, which is no lost race */
#ifdef ONCE_TEST_BUILD
    if (rc == ONCE_OK && r->parts[ONCE_REDIS_COMMANDS].n)
        r->stored_clock = storage->clock; /* the script has written it */
#endif
    tx_over(r);
    return rc;
}

static void redis_rollback(once_storage *storage)
{
    once_redis *r = once__redis_of(storage);
    if (r->conflict && !r->assumed) r->losses++;
    tx_over(r); /* a turn that was not used expires */
}

/* --- entries --- */

/* Assumes instead of reads: claims of this handle, and new keys after a while in which all were new. Keys are not
 * assumed to be new in the caller's transaction, which would have to run again as a whole; nor while keys move, because
 * the commit would take a key that was left on the other node for a new one. */
static int assume(once_redis *r, const once_request *const *requests, size_t n, once_purpose purpose, once_error *err)
{
    const bool own = purpose == ONCE_FOR_SETTLE || purpose == ONCE_FOR_EXTEND;
    const bool fresh = purpose == ONCE_FOR_CLAIM && !r->storage.in_tx && !once__redis_saw_move(r->link) &&
                       once__redis_claim_cache_new(r);
    int rc = ONCE_OK;
    for (size_t i = 0; i < n && (own || fresh) && rc == ONCE_OK; i++) {
        const once_bytes value =
            own ? once__redis_claim_cache_value(r, requests[i]->id, requests[i]->token) : (once_bytes){0};
        if (fresh || value.len) rc = once__redis_assume(r, requests[i]->id, value, err);
    }
    return rc;
}

static int redis_prefetch(once_storage *storage, const once_request *const *requests, size_t n, once_purpose purpose,
                          once_error *err)
{
    once_redis *r = once__redis_of(storage);
    assert(r->open);
    if (n == 0) return ONCE_OK;
    once_hash *ids = once_arena_alloc(&r->arena, 2 * n * sizeof *ids), *lanes = ids + n;
    if (!ids) return once__redis_nomem(err);
    for (size_t i = 0; i < n; i++) {
        ids[i] = requests[i]->id;
        lanes[i] = requests[i]->lane.id;
    }
    int rc = assume(r, requests, n, purpose, err);
    if (rc == ONCE_OK) rc = once__redis_prefetch(r, ids, n, lanes, n, purpose == ONCE_FOR_SETTLE, err);
    if (rc == ONCE_OK && purpose == ONCE_FOR_CLAIM) once__redis_claim_cache_count(r);
    return rc;
}

static int redis_load(once_storage *storage, once_hash id, once_entry **out, once_error *err)
{
    once_redis_slot *slot;
    const int rc = once__redis_slot(once__redis_of(storage), id, &slot, err);
    if (rc == ONCE_OK) *out = &slot->entry;
    return rc;
}

static int redis_save(once_storage *storage, once_entry *entry, once_error *err)
{
    once_redis *r = once__redis_of(storage);
    assert(r->writes);
    once_redis_slot *slot;
    int rc = once__redis_slot(r, entry->id, &slot, err);
    if (rc != ONCE_OK) return rc;
    assert(entry == &slot->entry);
    if (entry->state != ONCE_STATE_ABSENT && !once__entry_copy(&r->arena, entry, entry)) return once__redis_nomem(err);
    slot->dirty = true;
    return once__redis_lane_follow(r, slot, err);
}

/* --- lanes --- */

static int redis_lane(once_storage *storage, once_hash id, once_hash except, once_lane *out, once_error *err)
{
    once_redis *r = once__redis_of(storage);
    assert(r->open && !once_hash_is_zero(id));
    once_redis_lane *lane;
    const int rc = once__redis_lane(r, id, &lane, err);
    return rc == ONCE_OK ? once__redis_lane_view(r, lane, except, out, err) : rc;
}

static int redis_save_lane(once_storage *storage, once_hash id, const once_lane *kept, once_error *err)
{
    once_redis *r = once__redis_of(storage);
    assert(r->writes && !once_hash_is_zero(id));
    unsigned char record[ONCE_LANE_RECORD];
    once_redis_lane *lane;
    const int rc = once__redis_lane(r, id, &lane, err);
    if (rc != ONCE_OK) return rc;
    lane->dirty = true;
    lane->version = once__lane_version(kept);
    lane->expires_ms = kept->expires_ms;
    return once_arena_copy(&r->arena, once__lane_write(kept, record), &lane->record) ? ONCE_OK : once__redis_nomem(err);
}

static int redis_lane_head(once_storage *storage, once_hash id, once_hash *out, once_error *err)
{
    once_redis *r = once__redis_of(storage);
    assert(r->open);
    once_redis_lane *lane;
    int rc = once__redis_lane(r, id, &lane, err);
    if (rc == ONCE_OK) rc = once__redis_lane_first(r, lane, out, err);
    if (rc != ONCE_OK || once_hash_is_zero(*out)) return rc;
    once_redis_slot *slot;
    rc = once__redis_slot(r, *out, &slot, err);
    if (rc != ONCE_OK || slot->dirty || (slot->in_lane && once_hash_equal(slot->lane, id))) return rc;
    return once__redis_misplaced_in_lane(r, lane, *out, err);
}

static int redis_lane_equals(once_storage *storage, once_hash id, int64_t order, int64_t *seen_ms, once_error *err)
{
    once_redis *r = once__redis_of(storage);
    once_redis_lane *lane;
    const int rc = once__redis_lane(r, id, &lane, err);
    return rc == ONCE_OK ? once__redis_lane_equals(r, lane, order, seen_ms, err) : rc;
}

static int redis_lane_before(once_storage *storage, const once_entry *entry, size_t max, once_hash *out, size_t *n,
                             uint64_t *count, once_error *err)
{
    once_redis *r = once__redis_of(storage);
    assert(r->open && max > 0 && !once_hash_is_zero(entry->lane));
    once_redis_lane *lane;
    int rc = once__redis_lane(r, entry->lane, &lane, err);
    if (rc == ONCE_OK) rc = once__redis_lane_before(r, lane, entry, max, out, n, count, err);
    return rc == ONCE_OK ? once__redis_prefetch(r, out, *n, NULL, 0, false, err) : rc;
}

/* --- audits --- */

static int redis_audit_put(once_storage *storage, const once_audit *audit, once_error *err)
{
    once_redis *r = once__redis_of(storage);
    assert(r->writes);
    once_redis_audit to;
    once_buf_clear(&r->value);
    once__redis_write_audit(&r->value, audit);
    if (r->value.failed || !ONCE_REDIS_ROOM(r->audits) ||
        !once_arena_copy(&r->arena, once_buf_bytes(&r->value), &to.value) ||
        !once_arena_copy(&r->arena, audit->consumer, &to.consumer))
        return once__redis_nomem(err);
    r->audits.at[r->audits.n++] = to;
    return ONCE_OK;
}

/* After a conflict: whether the engine runs the transaction again. */
static bool redis_again(once_storage *storage, int rc, unsigned tries)
{
    once_redis *r = once__redis_of(storage);
    assert(rc != ONCE_OK && !r->open);
    if (!r->conflict || tries >= RACES) return false;
    if (r->losses) once__redis_pause(r, INT64_C(1) << (tries < 6 ? tries : 6)); /* otherwise an assumption was wrong */
    return true;
}

const once_storage_ops once__redis_storage = {
    .begin = redis_begin,
    .commit = redis_commit,
    .rollback = redis_rollback,
    .again = redis_again,
    .prefetch = redis_prefetch,
    .load = redis_load,
    .save = redis_save,
    .lane = redis_lane,
    .save_lane = redis_save_lane,
    .lane_head = redis_lane_head,
    .lane_equals = redis_lane_equals,
    .lane_before = redis_lane_before,
    .due = once__redis_due,
    .due_of_operations = once__redis_due_of_operations,
    .by_token = once__redis_by_token,
    .lapsed = once__redis_lapsed,
    .letter_put = once__redis_letter_put,
    .letters_ahead = once__redis_letters_ahead,
    .letter_get = once__redis_letter_get,
    .letter_drop = once__redis_letter_drop,
    .audit_put = redis_audit_put,
    .list = once__redis_list,
    .letters = once__redis_letters,
    .audits = once__redis_audits,
    .stats = once__redis_stats,
    .waiting_size = once__redis_waiting_size,
    .fact_get = once__redis_fact_get,
    .fact_set = once__redis_fact_set,
    .fact_count = once__redis_fact_count,
    .facts = once__redis_facts,
};
