/* Reading entries into the transaction, with the names that they refer to. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"
#include "store/redis/redis.h"

#include "base/banned.h"

/* --- small things --- */

bool once__redis_grow(void *list_at, size_t n, size_t *room, size_t size)
{
    assert(n <= *room && size > 0);
    if (n < *room) return true;
    const size_t more = *room ? *room * 2 : 16;
    void **at = list_at, *grown = reallocarray(*at, more, size);
    if (!grown) return false;
    *at = grown;
    *room = more;
    return true;
}

int once__redis_nomem(once_error *err) { return once_no_memory(err, "in the redis store"); }

int once__redis_damaged(const once_redis *r, const char *what, once_error *err)
{
    return once_fail(err, ONCE_E_CORRUPT,
                     "%s in the redis store '%s' cannot be read: another program wrote there, or it is damaged", what,
                     r->url.name);
}

int once__redis_damaged_key(const once_redis *r, once_bytes key, once_error *err)
{
    char text[ONCE_REDIS_QUOTED];
    return once_fail(
        err, ONCE_E_CORRUPT,
        "the key \"%s\" of the redis store '%s' is not what once writes there: another program wrote it, or "
        "it is damaged",
        once__redis_quote(key, text), r->url.name);
}

int once__redis_damaged_id(const once_redis *r, const char *kind, once_hash id, once_error *err)
{
    char key[ONCE_REDIS_KEY];
    return once__redis_damaged_key(r, (once_bytes){key, once__redis_id_key(r, kind, id, key)}, err);
}

int once__redis_damaged_letter(const once_redis *r, uint64_t number, once_error *err)
{
    char text[24], key[ONCE_REDIS_KEY];
    const int len = snprintf(text, sizeof text, "%llu", (unsigned long long)number);
    return once__redis_damaged_key(r, (once_bytes){key, once__redis_key(r, "L", text, (size_t)len, key)}, err);
}

int once__redis_conflict(once_redis *r, once_error *err)
{
    r->conflict = true;
    once__redis_claim_cache_clear(r);
    return once_fail(err, ONCE_E_ABORTED,
                     "another worker changed the same entries of the redis store at the same time");
}

size_t once__redis_key(const once_redis *r, const char *kind, const void *rest, size_t len, char out[ONCE_REDIS_KEY])
{
    assert(kind[0]);
    assert(len <= 32);
    const size_t prefix = strlen(r->prefix), n = strlen(kind);
    memcpy(out, r->prefix, prefix);
    memcpy(out + prefix, kind, n);
    if (len) memcpy(out + prefix + n, rest, len);
    return prefix + n + len;
}

size_t once__redis_id_key(const once_redis *r, const char *kind, once_hash id, char out[ONCE_REDIS_KEY])
{
    unsigned char bytes[16];
    once__redis_id_write(id, bytes);
    return once__redis_key(r, kind, bytes, sizeof bytes, out);
}

void once__redis_put_id_key(once_redis *r, const char *kind, once_hash id)
{
    char key[ONCE_REDIS_KEY];
    once__redis_arg(&r->pipe, key, once__redis_id_key(r, kind, id, key));
}

void once__redis_put_key(once_redis *r, const char *kind, const void *rest, size_t len)
{
    once_buf_clear(&r->value);
    once_buf_puts(&r->value, r->prefix);
    once_buf_puts(&r->value, kind);
    if (len) once_buf_append(&r->value, rest, len);
    if (r->value.failed) r->pipe.failed = true;
    else once__redis_arg(&r->pipe, r->value.data, r->value.len);
}

int once__redis_ask(once_redis *r, once_error *err)
{
    assert(!r->pipe.stays); /* a commit is not sent twice */
    int rc = once__redis_exchange(r->link, &r->pipe, NULL, err);
    if (rc == ONCE_E_UNAVAILABLE && !once__redis_silent(r->link))
        rc = once__redis_exchange(r->link, &r->pipe, NULL, err); /* the server may have been restarted */
    if (once__redis_connections(r->link) != r->connections) {    /* this may be another server */
        once__redis_names_forget(r);
        once__redis_claim_cache_clear(r);
    }
    return rc;
}

/* --- slots --- */

char once__redis_index_of(const once_entry *entry)
{
    switch (entry->state) {
    case ONCE_STATE_WAITING: return entry->has_message ? ONCE_REDIS_WAITING : ONCE_REDIS_WAITING_BARE;
    case ONCE_STATE_CLAIMED: return entry->has_message ? ONCE_REDIS_CLAIMED : ONCE_REDIS_CLAIMED_BARE;
    case ONCE_STATE_UNKNOWN: return ONCE_REDIS_UNKNOWN;
    case ONCE_STATE_DEAD: return ONCE_REDIS_DEAD;
    default: return ONCE_REDIS_NOWHERE;
    }
}

static once_redis_slot *known_slot(once_redis *r, once_hash id) { return once_table_get(&r->slot_map, id); }

static once_redis_slot *new_slot(once_redis *r, once_hash id)
{
    assert(!known_slot(r, id));
    once_redis_slot *slot = once_arena_new(&r->arena, once_redis_slot, 1);
    if (!slot || !ONCE_REDIS_ROOM(r->slots) || !once_table_put(&r->slot_map, id, slot)) return NULL;
    slot->entry.id = id;
    r->slots.at[r->slots.n++] = slot;
    return slot;
}

static int fill_slot(once_redis *r, once_hash id, once_bytes value, bool assumed, once_error *err)
{
    assert(r->open);
    once_redis_slot *slot = new_slot(r, id);
    if (!slot) return once__redis_nomem(err);
    slot->assumed = assumed;
    r->assumed |= assumed;
    if (value.len == 0) return ONCE_OK;
    if (!once_arena_copy(&r->arena, value, &slot->stored)) return once__redis_nomem(err);
    if (!once__redis_read_entry(slot->stored, id, &slot->entry, &slot->names))
        return once__redis_damaged_id(r, "e", id, err);
    const once_entry *e = &slot->entry;
    slot->index = once__redis_index_of(e);
    slot->consumer = e->scope.consumer;
    slot->due_ms = e->due_ms;
    slot->in_lane = once_state_unfinished(e->state) && !once_hash_is_zero(e->lane);
    slot->lane = e->lane;
    slot->order = e->order;
    slot->seen_ms = e->seen_ms;
    return ONCE_OK;
}

int once__redis_assume(once_redis *r, once_hash id, once_bytes value, once_error *err)
{
    assert(r->open && !once_hash_is_zero(id));
    return known_slot(r, id) ? ONCE_OK : fill_slot(r, id, value, true, err);
}

/* --- names of finished entries --- */

static void apply_names(once_redis *r, once_entry *e, once_redis_finished names)
{
    assert(once_state_finished(e->state));
    const once_redis_name *scope = once__redis_name_find(r, names.scope),
                          *origin = once__redis_name_find(r, names.origin);
    if (!scope || !once__redis_read_scope(scope->value, &e->scope)) e->scope = (once_scope){0};
    if (!origin || !once__redis_read_origin(origin->value, &e->at.place, &e->run, &e->who))
        e->at.place = e->who = (once_bytes){0};
}

static size_t want_names(once_redis *r, const once_redis_finished *names, uint64_t *wanted)
{
    size_t n = 0;
    if (!once__redis_name_find(r, names->scope)) wanted[n++] = names->scope;
    if (!once__redis_name_find(r, names->origin)) wanted[n++] = names->origin;
    return n;
}

static void ask_names(once_redis *r, const uint64_t *wanted, size_t n)
{
    assert(n > 0);
    once__redis_command_for(&r->pipe, n, n + 2);
    once__redis_text(&r->pipe, "HMGET");
    once__redis_put_key(r, "n", NULL, 0);
    for (size_t i = 0; i < n; i++) once__redis_arg(&r->pipe, &wanted[i], sizeof wanted[i]);
}

static int read_names(once_redis *r, const uint64_t *wanted, size_t n, const redisReply *reply, once_error *err)
{
    for (size_t i = 0; i < n; i++) {
        const once_bytes value = once__reply_at(reply, i);
        if (value.len && !once__redis_name_add(r, wanted[i], value, true)) return once__redis_nomem(err);
    }
    return ONCE_OK;
}

int once__redis_read_value(once_redis *r, once_bytes value, once_hash id, once_entry *out, once_arena *arena,
                           once_error *err)
{
    once_redis_finished names;
    uint64_t wanted[2];
    if (!once_arena_copy(arena, value, &value)) return once__redis_nomem(err);
    if (!once__redis_read_entry(value, id, out, &names)) return once__redis_damaged_id(r, "e", id, err);
    if (!once_state_finished(out->state)) return ONCE_OK;
    const size_t n = want_names(r, &names, wanted);
    int rc = ONCE_OK;
    if (n) {
        once__redis_pipe_clear(&r->pipe);
        ask_names(r, wanted, n);
        rc = once__redis_ask(r, err);
        if (rc == ONCE_OK) rc = read_names(r, wanted, n, r->pipe.replies[0], err);
    }
    if (rc == ONCE_OK) apply_names(r, out, names);
    return rc;
}

/* --- reading a batch --- */

static bool has_hash(const once_hash *list, size_t n, once_hash hash)
{
    for (size_t i = 0; i < n; i++)
        if (once_hash_equal(list[i], hash)) return true;
    return false;
}

/* The ids without duplicates, and without those that were read before. */
static bool distinct(const once_hash *ids, size_t n, bool (*known)(once_redis *r, once_hash id), once_redis *r,
                     once_hash *out, size_t *count)
{
    once_table listed = {0};
    bool fine = true;
    *count = 0;
    for (size_t i = 0; i < n && fine; i++) {
        if (once_hash_is_zero(ids[i]) || known(r, ids[i])) continue;
        if (n <= 4 && has_hash(out, *count, ids[i])) continue;
        if (n > 4 && once_table_get(&listed, ids[i])) continue;
        fine = n <= 4 || once_table_put_position(&listed, ids[i], *count);
        if (fine) out[(*count)++] = ids[i];
    }
    once_table_release(&listed);
    return fine;
}

static bool slot_known(once_redis *r, once_hash id) { return known_slot(r, id) != NULL; }

enum { WINDOW = 16, LANE_COMMANDS = 5 };

static int read_round(once_redis *r, const once_hash *ids, size_t n, const once_hash *lanes, size_t n_lanes,
                      const uint64_t *names, size_t n_names, once_error *err)
{
    assert(r->open);
    if (n + n_lanes + n_names == 0) return ONCE_OK;
    once__redis_pipe_clear(&r->pipe);
    if (n) {
        once__redis_command_for(&r->pipe, n, n + 1);
        once__redis_text(&r->pipe, "MGET");
        for (size_t i = 0; i < n; i++) once__redis_put_id_key(r, "e", ids[i]);
    }
    if (n_names) ask_names(r, names, n_names);
    for (size_t i = 0; i < n_lanes; i++) once__redis_lane_ask(r, lanes[i], WINDOW);
    int rc = once__redis_ask(r, err);
    if (rc != ONCE_OK) return rc;
    redisReply **reply = r->pipe.replies;
    if (n) {
        for (size_t i = 0; i < n && rc == ONCE_OK; i++)
            rc = fill_slot(r, ids[i], once__reply_at(*reply, i), false, err);
        reply++;
    }
    if (n_names) {
        if (rc == ONCE_OK) rc = read_names(r, names, n_names, *reply, err);
        reply++;
    }
    for (size_t i = 0; i < n_lanes && rc == ONCE_OK; i++, reply += LANE_COMMANDS)
        rc = once__redis_lane_read(r, lanes[i], WINDOW, reply, err);
    return rc;
}

int once__redis_prefetch(once_redis *r, const once_hash *ids, size_t n, const once_hash *lanes, size_t n_lanes,
                         bool heads, once_error *err)
{
    assert(r->open);
    const size_t slots_before = r->slots.n;
    size_t n_ids, n_new, n_names = 0;
    once_hash *some = once_arena_alloc(&r->arena, (n + n_lanes + 1) * sizeof *some), *more = some + n;
    if (!some || !distinct(ids, n, slot_known, r, some, &n_ids) ||
        !distinct(lanes, n_lanes, once__redis_lane_known, r, more, &n_new))
        return once__redis_nomem(err);
    int rc = read_round(r, some, n_ids, more, n_new, NULL, 0, err);
    if (rc != ONCE_OK) return rc;

    /* what these refer to: names of finished entries, lanes of open ones */
    const size_t found = r->slots.n - slots_before;
    once_hash *wanted_lanes = once_arena_alloc(&r->arena, (2 * found + 1) * sizeof *wanted_lanes),
              *new_lanes = wanted_lanes + found;
    uint64_t *names = once_arena_alloc(&r->arena, (2 * found + 1) * sizeof *names);
    if (!wanted_lanes || !names) return once__redis_nomem(err);
    size_t n_wanted = 0;
    for (size_t i = slots_before; i < r->slots.n; i++) {
        const once_redis_slot *slot = r->slots.at[i];
        uint64_t wanted[2];
        if (slot->in_lane) wanted_lanes[n_wanted++] = slot->lane;
        if (!once_state_finished(slot->entry.state)) continue;
        const size_t count = want_names(r, &slot->names, wanted);
        for (size_t k = 0; k < count; k++)
            if (n_names == 0 || (names[n_names - 1] != wanted[k] && (n_names < 2 || names[n_names - 2] != wanted[k])))
                names[n_names++] = wanted[k];
    }
    if (!distinct(wanted_lanes, n_wanted, once__redis_lane_known, r, new_lanes, &n_new)) return once__redis_nomem(err);
    rc = read_round(r, NULL, 0, new_lanes, n_new, names, n_names, err);
    for (size_t i = slots_before; i < r->slots.n && rc == ONCE_OK; i++)
        if (once_state_finished(r->slots.at[i]->entry.state))
            apply_names(r, &r->slots.at[i]->entry, r->slots.at[i]->names);
    if (rc != ONCE_OK || !heads || r->lanes.n == 0) return rc;

    /* the entries that may be woken when these lanes go on */
    once_hash *firsts = once_arena_alloc(&r->arena, 4 * r->lanes.n * sizeof *firsts),
              *new_firsts = firsts + 2 * r->lanes.n;
    if (!firsts) return once__redis_nomem(err);
    size_t n_firsts = 0;
    for (size_t i = 0; i < r->lanes.n; i++)
        for (size_t k = 0; k < 2 && k < r->lanes.at[i]->n_known; k++) firsts[n_firsts++] = r->lanes.at[i]->known[k].id;
    if (!distinct(firsts, n_firsts, slot_known, r, new_firsts, &n_new)) return once__redis_nomem(err);
    return read_round(r, new_firsts, n_new, NULL, 0, NULL, 0, err); /* unfinished entries have no names */
}

int once__redis_slot(once_redis *r, once_hash id, once_redis_slot **out, once_error *err)
{
    assert(r->open);
    *out = known_slot(r, id);
    if (*out) return ONCE_OK;
    const int rc = once__redis_prefetch(r, &id, 1, NULL, 0, false, err);
    if (rc != ONCE_OK) return rc;
    *out = known_slot(r, id);
    return *out ? ONCE_OK : once__redis_nomem(err);
}
