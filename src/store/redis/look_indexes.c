/* The check of indexes and groups of claims: every open entry that they name belongs there. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "store/redis/look.h"

#include "base/banned.h"

static int ids_of(once_redis_looking *l, const once_look_key *key, const once_bytes *pairs, size_t n, once_hash *out,
                  once_error *err)
{
    int rc = ONCE_OK;
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        if (pairs[2 * i].len == 16) out[i] = once__redis_id_read(pairs[2 * i].data);
        else rc = once__look_found_at(l, FLAW_UNREADABLE, key->whole, (once_bytes){0}, err);
    }
    return rc;
}

/* The entry belongs in this index; or it has expired, and a sweep will remove its place. */
static bool belongs(const once_redis_looking *l, once_bytes value, once_hash id, char index, once_bytes consumer,
                    double at, int64_t now_ms)
{
    once_entry entry;
    if (!value.len) return index == ONCE_REDIS_WAITING_BARE && at <= (double)now_ms;
    return !once__look_read_own(l, value, id, &entry) ||
           (once__redis_index_of(&entry) == index && once_bytes_equal(entry.scope.consumer, consumer));
}

/* Whether the index still has it, and the entry was the same before and after that was read. */
static int confirm_listed(once_redis_looking *l, const once_look_key *key, once_hash id, once_error *err)
{
    assert(key->kind == 'i');
    const char index = key->whole.data[strlen(l->r->prefix) + 1], kind[] = {'i', index, 0};
    unsigned char bytes[16];
    double at = 0;
    bool fine = true;
    once__redis_id_write(id, bytes);
    for (int i = 0; i < ONCE_LOOK_TRIES; i++) {
        once__redis_pipe_clear(once__look_pipe(l));
        once__redis_words(once__look_pipe(l), ONCE_REPLY_TIME, "TIME");
        once__look_ask_value(l, "e", id);
        once__look_ask_in(l, "ZSCORE", kind, key->consumer, bytes, sizeof bytes);
        once__look_ask_value(l, "e", id);
        const int rc = once__look_ask(l, err);
        if (rc != ONCE_OK) return rc;
        const int64_t now_ms = once__reply_time_ms(once__look_pipe(l)->replies[0]);
        const once_bytes before = once__look_first(l, 1), score = once__look_reply(l, 2),
                         behind = once__look_first(l, 3);
        if (!score.len ||
            (once__reply_read_score(score, &at) && belongs(l, behind, id, index, key->consumer, at, now_ms)))
            return ONCE_OK;
        if (!once_bytes_equal(before, behind) || (!before.len && i == 0)) continue;
        const once_bytes value = once__look_copy(l, behind, &fine);
        if (!fine) return once__redis_nomem(err);
        return once__look_found(l,
                                (once_redis_flaw){.kind = value.len ? FLAW_LISTED : FLAW_LISTED_GONE,
                                                  .key = key->whole,
                                                  .in_words = once__look_id_key(l, "e", id),
                                                  .id = id,
                                                  .stored = value,
                                                  .index = index,
                                                  .consumer = key->consumer},
                                err);
    }
    return ONCE_OK;
}

static int look_at_part_of_index(once_redis_looking *l, const once_look_key *key, const once_bytes *pairs, size_t n,
                                 once_error *err)
{
    const char index = key->whole.data[strlen(l->r->prefix) + 1];
    once_hash *ids = once_arena_new(&l->arena, once_hash, n + 1);
    once_bytes *values = once_arena_new(&l->arena, once_bytes, n + 1);
    if (!ids || !values) return once__redis_nomem(err);
    int rc = ids_of(l, key, pairs, n, ids, err);
    if (rc == ONCE_OK) rc = once__look_read_ids(l, "e", ids, n, values, err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++)
        if (pairs[2 * i].len == 16 && !belongs(l, values[i], ids[i], index, key->consumer, INFINITY, 0))
            rc = confirm_listed(l, key, ids[i], err);
    return rc;
}

int once__look_at_index(once_redis_looking *l, const once_look_key *key, const once_bytes *pairs, size_t n,
                        once_error *err)
{
    return once__look_in_parts(l, key, pairs, n, look_at_part_of_index, err);
}

/* --- groups of claims --- */

/* How many entries are still claimed in the group, from the first bytes of their values. */
static uint64_t count_claims(const redisReply *heads, uint64_t stamp)
{
    uint64_t n = 0;
    for (size_t i = 0; i < once__reply_n(heads); i++) {
        once_redis_open_head head;
        if (once__redis_read_head(once__reply_at(heads, i), &head) && head.stamp == stamp &&
            head.state == ONCE_STATE_CLAIMED && !head.has_message)
            n++;
    }
    return n;
}

/* All claims of a group are made by one commit; an entry that leaves the group lowers its count. */
static int look_at_group(once_redis_looking *l, const once_look_key *key, once_bytes group, once_error *err)
{
    assert(key->kind == 'c' && group.len == 16);
    bool fine = true;
    for (int i = 0; i < ONCE_LOOK_TRIES; i++) {
        once__redis_pipe_clear(once__look_pipe(l));
        once__look_ask_in(l, "HGET", "g", key->consumer, group.data, group.len);
        once__look_ask_in(l, "ZSCORE", "c", key->consumer, group.data, group.len);
        int rc = once__look_ask(l, err);
        if (rc != ONCE_OK) return rc;
        const once_bytes ids = once__look_copy(l, once__look_reply(l, 0), &fine),
                         left = once__look_copy(l, once__look_reply(l, 1), &fine);
        if (!fine) return once__redis_nomem(err);
        if (!left.len) return ONCE_OK; /* all have left it since */
        if (ids.len % 16) return once__look_found_at(l, FLAW_UNREADABLE, key->whole, (once_bytes){0}, err);
        once__redis_pipe_clear(once__look_pipe(l));
        if (ids.len) once__look_begin_values(l, ids.len / 16);
        for (size_t at = 0; at < ids.len; at += 16)
            once__redis_put_id_key(l->r, "e", once__redis_id_read(ids.data + at));
        once__look_ask_in(l, "ZSCORE", "c", key->consumer, group.data, group.len);
        rc = once__look_ask(l, err);
        if (rc != ONCE_OK) return rc;
        double count;
        if (!once_bytes_equal(once__look_reply(l, once__look_pipe(l)->n - 1), left)) continue;
        const uint64_t claims =
            ids.len ? count_claims(once__look_pipe(l)->replies[0], once__redis_group_stamp(group.data)) : 0;
        if (once__reply_read_score(left, &count) && count == (double)claims && ids.len) return ONCE_OK;
        return once__look_found(
            l,
            (once_redis_flaw){
                .kind = FLAW_COUNT, .key = key->whole, .consumer = key->consumer, .group = group, .stored = ids},
            err);
    }
    return ONCE_OK;
}

int once__look_at_groups(once_redis_looking *l, const once_look_key *key, const once_bytes *pairs, size_t n,
                         once_error *err)
{
    int rc = ONCE_OK;
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        if (pairs[2 * i].len == 16) rc = look_at_group(l, key, pairs[2 * i], err);
        else rc = once__look_found_at(l, FLAW_UNREADABLE, key->whole, (once_bytes){0}, err);
    }
    return rc;
}

int once__look_at_claims(once_redis_looking *l, const once_look_key *key, const once_bytes *pairs, size_t n,
                         once_error *err)
{
    assert(key->kind == 'g' && n > 0);
    once__redis_pipe_clear(once__look_pipe(l));
    for (size_t i = 0; i < n; i++) {
        once__look_ask_in(l, "ZSCORE", "c", key->consumer, pairs[2 * i].data, pairs[2 * i].len);
        once__look_ask_in(l, "HGET", "g", key->consumer, pairs[2 * i].data, pairs[2 * i].len);
    }
    int rc = once__look_ask(l, err);
    bool *alone = once_arena_new(&l->arena, bool, n + 1);
    if (!alone) return once__redis_nomem(err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++)
        alone[i] = !once__look_reply(l, 2 * i).len && once__look_reply(l, 2 * i + 1).len;
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        const bool whole = pairs[2 * i].len == 16 && pairs[2 * i + 1].len && pairs[2 * i + 1].len % 16 == 0;
        if (!whole) rc = once__look_found_at(l, FLAW_UNREADABLE, key->whole, (once_bytes){0}, err);
        else if (alone[i])
            rc = once__look_found(l,
                                  (once_redis_flaw){.kind = FLAW_GROUP_ALONE,
                                                    .key = key->whole,
                                                    .consumer = key->consumer,
                                                    .group = pairs[2 * i],
                                                    .stored = pairs[2 * i + 1]},
                                  err);
    }
    return rc;
}
