/* An index or a lane names an entry that is gone, or that belongs elsewhere by now.
 *
 * Mostly another worker was quicker: the index is read in one round trip, and the entry in the next. So both are read
 * once more, by one script. If they still disagree, the store is damaged, and the error says where. To go on would
 * leave out the entry for good. */
#include <assert.h>
#include <string.h>

#include "store/redis/redis.h"

#include "base/banned.h"

static int damaged(const once_redis *r, once_bytes list, once_hash id, once_error *err)
{
    char list_text[ONCE_REDIS_QUOTED], entry_text[ONCE_REDIS_QUOTED], key[ONCE_REDIS_KEY];
    const once_bytes entry = {key, once__redis_id_key(r, "e", id, key)};
    return once_fail(err, ONCE_E_CORRUPT,
                     "\"%s\" of the redis store '%s' names the entry \"%s\", which is not there or does not belong "
                     "there: another program wrote"
                     " there, or it is damaged",
                     once__redis_quote(list, list_text), r->url.name, once__redis_quote(entry, entry_text));
}

/* The reply to the command on `list`, and the value of the entry, from one script. */
static int ask_both(once_redis *r, once_bytes list, const char *command, once_bytes member, once_hash id,
                    once_error *err)
{
    static const char script[] = "return {redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2)), redis.call('GET', KEYS[2])}";
    once__redis_pipe_clear(&r->pipe);
    once__redis_command_for(&r->pipe, 2, member.len ? 7 : 6);
    once__redis_text(&r->pipe, "EVAL");
    once__redis_text(&r->pipe, script);
    once__redis_text(&r->pipe, "2");
    once__redis_arg(&r->pipe, list.data, list.len);
    once__redis_put_id_key(r, "e", id);
    once__redis_text(&r->pipe, command);
    if (member.len) once__redis_arg(&r->pipe, member.data, member.len);
    return once__redis_ask(r, err);
}

static bool read_now(const once_redis *r, once_hash id, once_entry *out)
{
    once_redis_finished names;
    const once_bytes value = once__reply_at(r->pipe.replies[0], 1);
    *out = (once_entry){.id = id};
    return value.len == 0 || once__redis_read_entry(value, id, out, &names);
}

int once__redis_misplaced_in_index(once_redis *r, char index, once_bytes consumer, once_hash id, once_error *err)
{
    assert(r->open && index != ONCE_REDIS_NOWHERE);
    unsigned char member[16];
    const char kind[] = {'i', index, 0};
    once_bytes list;
    once_entry entry;
    once_buf_clear(&r->key);
    once_buf_puts(&r->key, r->prefix);
    once_buf_puts(&r->key, kind);
    once_buf_append(&r->key, consumer.data, consumer.len);
    if (r->key.failed || !once_arena_copy(&r->arena, once_buf_bytes(&r->key), &list)) return once__redis_nomem(err);
    once__redis_id_write(id, member);
    const int rc = ask_both(r, list, "ZSCORE", (once_bytes){(const char *)member, sizeof member}, id, err);
    if (rc != ONCE_OK) return rc;
    const bool listed = once__reply_at(r->pipe.replies[0], 0).len > 0;
    if (listed && (!read_now(r, id, &entry) || once__redis_index_of(&entry) != index)) return damaged(r, list, id, err);
    return ONCE_OK;
}

int once__redis_misplaced_in_lane(once_redis *r, const once_redis_lane *lane, once_hash id, once_error *err)
{
    assert(r->open);
    char key[ONCE_REDIS_KEY];
    once_entry entry;
    once_bytes list = {key, once__redis_id_key(r, "l", lane->id, key)};
    const int rc = ask_both(r, list, "GET", (once_bytes){0}, id, err);
    if (rc != ONCE_OK) return rc;
    const once_bytes now = once__reply_at(r->pipe.replies[0], 0);
    const bool same = once_bytes_equal(now, lane->stored); /* including its stamp */
    if (!same) return once__redis_conflict(r, err);
    list.len = once__redis_id_key(r, "o", lane->id, key);
    if (!read_now(r, id, &entry) || !once_state_unfinished(entry.state) || !once_hash_equal(entry.lane, lane->id))
        return damaged(r, list, id, err);
    return once__redis_conflict(r, err);
}

/* --- lanes that have lost entries --- */

bool once__redis_lane_is_empty(const once_redis *r, const once_redis_lane_record *record, int64_t left_ms)
{
    if (record->n_claimed || (!record->has_version && !record->kept.len)) return false;
    return left_ms != -1 || record->expires_ms >= INT64_MAX / 4 || once__redis_test_clock(r);
}

/* The record of the lane and two more texts, from one script: {record, text, text}. */
static int ask_lane(once_redis *r, const once_redis_lane *lane, const char *script, once_redis_member member,
                    once_error *err)
{
    unsigned char bytes[ONCE_REDIS_MEMBER], old[ONCE_REDIS_OLD_MEMBER];
    once__redis_member_write(member, bytes, old);
    once__redis_pipe_clear(&r->pipe);
    once__redis_command_for(&r->pipe, 3, 8);
    once__redis_text(&r->pipe, "EVAL");
    once__redis_text(&r->pipe, script);
    once__redis_text(&r->pipe, "3");
    once__redis_put_id_key(r, "l", lane->id);
    once__redis_put_id_key(r, "o", lane->id);
    once__redis_put_id_key(r, "e", member.id);
    once__redis_arg(&r->pipe, bytes, sizeof bytes);
    once__redis_arg(&r->pipe, old, sizeof old);
    return once__redis_ask(r, err);
}

static bool is_as_read(const once_redis *r, size_t i, once_bytes stored)
{
    const once_bytes now = once__reply_at(r->pipe.replies[0], i);
    return now.len == stored.len && (now.len == 0 || memcmp(now.data, stored.data, now.len) == 0);
}

static bool says(const once_redis *r, size_t i, const char *text)
{
    const once_bytes said = once__reply_at(r->pipe.replies[0], i);
    return said.len == strlen(text) && memcmp(said.data, text, said.len) == 0;
}

int once__redis_lane_lost(once_redis *r, const once_redis_lane *lane, once_error *err)
{
    assert(r->open && !r->mends);
    static const char script[] = "return {redis.call('GET', KEYS[1]), tostring(redis.call('ZCARD', KEYS[2])), "
                                 "tostring(redis.call('PTTL', KEYS[1]))}";
    char text[ONCE_REDIS_QUOTED], key[ONCE_REDIS_KEY];
    once_redis_lane_record record;
    const int rc = ask_lane(r, lane, script, (once_redis_member){0}, err);
    if (rc != ONCE_OK) return rc;
    if (!is_as_read(r, 0, lane->stored) || !says(r, 1, "0") || !once__redis_read_lane(lane->stored, &record))
        return once__redis_conflict(r, err);
    if (once__redis_lane_is_empty(r, &record, says(r, 2, "-1") ? -1 : 0)) return once__redis_conflict(r, err);
    const once_bytes set = {key, once__redis_id_key(r, "o", lane->id, key)};
    return once_fail(err, ONCE_E_CORRUPT,
                     "\"%s\" of the redis store '%s' is gone, and the lane has entries: their messages would run "
                     "out of order, or never;"
                     " 'once check --repair' restores it from the entries",
                     once__redis_quote(set, text), r->url.name);
}

/* The entry may have been read before its lane, and have left it in between. So it must be unchanged as well. */
int once__redis_lane_lacks(once_redis *r, const once_redis_lane *lane, const once_redis_slot *slot,
                           once_redis_member member, once_error *err)
{
    assert(!r->mends && slot->in_lane);
    static const char script[] =
        "local at = redis.call('ZSCORE', KEYS[2], ARGV[1]) or redis.call('ZSCORE', KEYS[2], ARGV[2])\n"
        "return {redis.call('GET', KEYS[1]), at, redis.call('GET', KEYS[3])}";
    char set_text[ONCE_REDIS_QUOTED], entry_text[ONCE_REDIS_QUOTED], set[ONCE_REDIS_KEY], entry[ONCE_REDIS_KEY];
    const int rc = ask_lane(r, lane, script, member, err);
    if (rc != ONCE_OK) return rc;
    if (!is_as_read(r, 0, lane->stored) || !is_as_read(r, 2, slot->stored) || once__reply_at(r->pipe.replies[0], 1).len)
        return once__redis_conflict(r, err);
    const once_bytes names[] = {{set, once__redis_id_key(r, "o", lane->id, set)},
                                {entry, once__redis_id_key(r, "e", member.id, entry)}};
    return once_fail(err, ONCE_E_CORRUPT,
                     "\"%s\" of the redis store '%s' does not name the entry \"%s\", which is in that lane: its "
                     "messages would run out of order,"
                     " or never; 'once check --repair' repairs that",
                     once__redis_quote(names[0], set_text), r->url.name, once__redis_quote(names[1], entry_text));
}
