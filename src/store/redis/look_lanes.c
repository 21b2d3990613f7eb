/* The check of lanes: their records, the entries that occupy them, and the sets of their entries. */
#include <assert.h>

#include "store/redis/look.h"

#include "base/banned.h"

static bool stands(const once_redis_looking *l, once_bytes value, const once_redis_member *member, once_hash lane)
{
    once_entry entry;
    if (!value.len) return false;
    if (!once__look_read_own(l, value, member->id, &entry)) return true;
    if (!once_state_unfinished(entry.state) || !once_hash_equal(entry.lane, lane) || entry.order != member->order)
        return false;
    return member->seen_ms == ONCE_REDIS_SEEN_BEFORE || member->seen_ms == entry.seen_ms;
}

/* A change of an entry gives its lane a new stamp, so an equal stamp means that nothing has changed. */
static int confirm_stands(once_redis_looking *l, const once_look_key *key, const once_redis_member *member,
                          once_bytes bytes, once_error *err)
{
    assert(key->kind == 'o');
    bool fine = true;
    for (int i = 0; i < ONCE_LOOK_TRIES; i++) {
        once__redis_pipe_clear(once__look_pipe(l));
        once__look_ask_value(l, "l", key->id);
        once__look_ask_value(l, "e", member->id);
        once__look_ask_id_in(l, "ZSCORE", "o", key->id, bytes.data, bytes.len);
        once__look_ask_value(l, "e", member->id);
        once__look_ask_value(l, "l", key->id);
        const int rc = once__look_ask(l, err);
        if (rc != ONCE_OK) return rc;
        const once_bytes value = once__look_first(l, 3);
        if (!once__look_reply(l, 2).len || stands(l, value, member, key->id)) return ONCE_OK;
        if (!once_bytes_equal(once__look_first(l, 0), once__look_first(l, 4)) ||
            !once_bytes_equal(once__look_first(l, 1), value))
            continue;
        const once_bytes stored = once__look_copy(l, value, &fine);
        if (!fine) return once__redis_nomem(err);
        return once__look_found(l,
                                (once_redis_flaw){.kind = stored.len ? FLAW_STANDS : FLAW_STANDS_GONE,
                                                  .key = key->whole,
                                                  .in_words = once__look_id_key(l, "e", member->id),
                                                  .id = member->id,
                                                  .stored = stored,
                                                  .lane = key->id,
                                                  .member = *member,
                                                  .bytes = bytes},
                                err);
    }
    return ONCE_OK;
}

bool once__redis_member_is(once_redis_member member, once_bytes bytes)
{
    unsigned char now[ONCE_REDIS_MEMBER], old[ONCE_REDIS_OLD_MEMBER];
    once__redis_member_write(member, now, old);
    return once_bytes_equal(bytes, bytes.len == sizeof old ? (once_bytes){(const char *)old, sizeof old}
                                                           : (once_bytes){(const char *)now, sizeof now});
}

/* The member of an entry that is in the lane must have exactly the bytes that once writes: they alone give the
 * order. */
static int judge_place(once_redis_looking *l, const once_look_key *key, const once_redis_member *member,
                       const once_bytes pair[2], once_bytes value, once_error *err)
{
    once_entry entry;
    if ((once__redis_member_is(*member, pair[0]) && once__look_is_word(pair[1], "0")) ||
        !once__look_read_own(l, value, member->id, &entry))
        return ONCE_OK;
    return once__look_found(l,
                            (once_redis_flaw){.kind = FLAW_PLACE,
                                              .key = key->whole,
                                              .in_words = once__look_id_key(l, "e", member->id),
                                              .id = member->id,
                                              .stored = value,
                                              .lane = key->id,
                                              .member = *member,
                                              .bytes = pair[0]},
                            err);
}

static int look_at_some_members(once_redis_looking *l, const once_look_key *key, const once_bytes *pairs, size_t n,
                                once_error *err)
{
    once_redis_member *members = once_arena_new(&l->arena, once_redis_member, n + 1);
    once_hash *ids = once_arena_new(&l->arena, once_hash, n + 1);
    once_bytes *values = once_arena_new(&l->arena, once_bytes, n + 1);
    bool *readable = once_arena_new(&l->arena, bool, n + 1);
    int rc = ONCE_OK;
    if (!members || !ids || !values || !readable) return once__redis_nomem(err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        readable[i] = once__redis_member_read(pairs[2 * i], &members[i]);
        if (!readable[i]) rc = once__look_found_at(l, FLAW_UNREADABLE, key->whole, (once_bytes){0}, err);
        ids[i] = members[i].id;
    }
    if (rc == ONCE_OK) rc = once__look_read_ids(l, "e", ids, n, values, err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++)
        if (readable[i] && stands(l, values[i], &members[i], key->id))
            rc = judge_place(l, key, &members[i], &pairs[2 * i], values[i], err);
        else if (readable[i]) rc = confirm_stands(l, key, &members[i], pairs[2 * i], err);
    return rc;
}

int once__look_at_members(once_redis_looking *l, const once_look_key *key, const once_bytes *pairs, size_t n,
                          once_error *err)
{
    return once__look_in_parts(l, key, pairs, n, look_at_some_members, err);
}

static int judge_lane_record(once_redis_looking *l, once_hash id, once_bytes value, const once_redis_lane_record *lane,
                             size_t at, once_error *err)
{
    assert(value.len > 0);
    int rc = ONCE_OK;
    const bool members = once__reply_count(once__look_pipe(l)->replies[at]) > 0;
    const int64_t left_ms = once__reply_left(once__look_pipe(l)->replies[at + 1]),
                  now_ms = once__reply_time_ms(once__look_pipe(l)->replies[0]);
    if (!members && !lane->n_claimed && !once__redis_lane_is_empty(l->r, lane, left_ms))
        rc = once__look_found(
            l,
            (once_redis_flaw){
                .kind = FLAW_LANE_STAYS, .key = once__look_id_key(l, "l", id), .lane = id, .stored = value},
            err);
    else if (!once__look_ends_well(l, members ? ONCE_NEVER : lane->expires_ms, left_ms, now_ms))
        rc = once__look_found(
            l,
            (once_redis_flaw){
                .kind = FLAW_LANE_ENDS, .key = once__look_id_key(l, "l", id), .lane = id, .stored = value},
            err);
    for (size_t i = 1; i < lane->n_claimed && rc == ONCE_OK; i++) {
        const once_hash who = once__redis_id_read(lane->claimed + 16 * i);
        if (once__look_names_id((once_bytes){(const char *)lane->claimed, 16 * i}, who))
            rc = once__look_found(l,
                                  (once_redis_flaw){.kind = FLAW_OCCUPIED_TWICE,
                                                    .key = once__look_id_key(l, "l", id),
                                                    .in_words = once__look_id_key(l, "e", who),
                                                    .id = who,
                                                    .lane = id,
                                                    .stored = value},
                                  err);
    }
    for (size_t i = 0; i < lane->n_claimed && rc == ONCE_OK; i++) {
        const once_hash who = once__redis_id_read(lane->claimed + 16 * i);
        once_entry entry = {.state = ONCE_STATE_ABSENT};
        const once_bytes there = once__reply_at(once__look_pipe(l)->replies[at + 2], i);
        if (there.len && !once__look_read_own(l, there, who, &entry)) continue;
        if (once_state_occupies(entry.state) && once_hash_equal(entry.lane, id)) continue;
        rc = once__look_found(l,
                              (once_redis_flaw){.kind = there.len ? FLAW_OCCUPIED : FLAW_OCCUPIED_GONE,
                                                .key = once__look_id_key(l, "l", id),
                                                .in_words = once__look_id_key(l, "e", who),
                                                .id = who,
                                                .lane = id,
                                                .stored = value},
                              err);
    }
    return rc;
}

static int look_at_lane(once_redis_looking *l, once_hash id, once_bytes value, bool *changed, once_error *err)
{
    assert(value.len > 0);
    once_redis_lane_record lane;
    once_lane view;
    *changed = false;
    if (!once__redis_read_lane(value, &lane) ||
        !once__lane_read(lane.has_version ? lane.version : ONCE_LANE_NO_VERSION, lane.expires_ms, lane.kept, 0, &view))
        return once__look_found_at(l, FLAW_UNREADABLE, once__look_id_key(l, "l", id), (once_bytes){0}, err);
    once__redis_pipe_clear(once__look_pipe(l));
    once__redis_words(once__look_pipe(l), ONCE_REPLY_TIME, "TIME");
    once__look_ask_key(l, ONCE_REPLY_COUNT, "ZCARD", once__look_id_key(l, "o", id));
    once__look_ask_key(l, ONCE_REPLY_LEFT, "PTTL", once__look_id_key(l, "l", id));
    if (lane.n_claimed) once__look_begin_values(l, lane.n_claimed);
    for (size_t i = 0; i < lane.n_claimed; i++)
        once__redis_put_id_key(l->r, "e", once__redis_id_read(lane.claimed + 16 * i));
    once__look_ask_value(l, "l", id);
    const int rc = once__look_ask(l, err);
    if (rc != ONCE_OK) return rc;
    *changed = !once_bytes_equal(once__look_first(l, once__look_pipe(l)->n - 1), value);
    return *changed ? ONCE_OK : judge_lane_record(l, id, value, &lane, 1, err);
}

int once__look_at_lanes(once_redis_looking *l, const once_hash *ids, size_t n, once_error *err)
{
    once_bytes *values = once_arena_new(&l->arena, once_bytes, n + 1);
    if (!values) return once__redis_nomem(err);
    int rc = once__look_read_ids(l, "l", ids, n, values, err);
    if (rc == ONCE_OK && n) rc = once__look_for_empty(l, "l", ids, values, n, err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        bool changed = true;
        for (int k = 0; k < ONCE_LOOK_TRIES && changed && values[i].len && rc == ONCE_OK; k++) {
            if (k) rc = once__look_read_ids(l, "l", &ids[i], 1, &values[i], err);
            if (rc == ONCE_OK && values[i].len) rc = look_at_lane(l, ids[i], values[i], &changed, err);
        }
    }
    return rc;
}
