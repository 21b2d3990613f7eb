/* Lanes of a transaction. A lane has a record (its version and more, the entries that occupy it) and a sorted set of
 * its unfinished entries. Only both ends of the set are read: a thousand entries that wait in a lane cost nothing.
 *
 * Invariant: saving an entry gives its lane a new stamp, and a transaction that has read a lane compares its stamp when
 * it commits. So of two transactions in one lane only one commits: it cannot happen that one parks an entry behind a
 * claim while the other settles this claim and wakes nobody. */
#include <assert.h>
#include <endian.h>
#include <string.h>

#include "store/redis/redis.h"

#include "base/banned.h"

static int compare(once_redis_member x, once_redis_member y)
{
    if (x.order != y.order) return x.order < y.order ? -1 : 1;
    if (x.seen_ms != y.seen_ms) return x.seen_ms < y.seen_ms ? -1 : 1;
    return once_hash_compare(x.id, y.id);
}

static once_redis_lane *known_lane(once_redis *r, once_hash id) { return once_table_get(&r->lane_map, id); }

bool once__redis_lane_known(once_redis *r, once_hash id) { return known_lane(r, id) != NULL; }

/* Room for one more; the old array stays in the arena. */
static bool room(once_redis *r, void *list_at, size_t n, size_t *capacity, size_t size)
{
    if (n < *capacity) return true;
    const size_t more = *capacity ? *capacity * 2 : 8;
    void **at = list_at, *grown = once_arena_alloc(&r->arena, more * size);
    if (!grown) return false;
    if (n) memcpy(grown, *at, n * size);
    *at = grown;
    *capacity = more;
    return true;
}

/* --- members that were read --- */

static size_t place_of(const once_redis_lane *lane,
                       once_redis_member member) /* the first position whose member is not before it */
{
    size_t low = 0, high = lane->n_known;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (compare(lane->known[middle], member) < 0) low = middle + 1;
        else high = middle;
    }
    return low;
}

static bool add_member(once_redis *r, once_redis_lane *lane, once_redis_member member)
{
    const size_t at = place_of(lane, member);
    if (at < lane->n_known && compare(lane->known[at], member) == 0) return true;
    if (lane->hidden && at == lane->hole) { /* among the members that were not read */
        lane->hidden++;
        return true;
    }
    if (!room(r, &lane->known, lane->n_known, &lane->known_room, sizeof *lane->known)) return false;
    memmove(lane->known + at + 1, lane->known + at, (lane->n_known - at) * sizeof *lane->known);
    lane->known[at] = member;
    lane->n_known++;
    if (at < lane->hole) lane->hole++;
    return true;
}

static size_t find_member(const once_redis_lane *lane, once_redis_member member)
{
    const size_t at = place_of(lane, member);
    return at < lane->n_known && compare(lane->known[at], member) == 0 ? at : lane->n_known;
}

static void remove_member(once_redis_lane *lane, once_redis_member member)
{
    size_t at = find_member(lane, member);
    if (at == lane->n_known)
        at = find_member(lane, (once_redis_member){member.order, ONCE_REDIS_SEEN_BEFORE, member.id});
    if (at < lane->n_known) {
        memmove(lane->known + at, lane->known + at + 1, (lane->n_known - at - 1) * sizeof *lane->known);
        lane->n_known--;
        if (at < lane->hole) lane->hole--;
    } else if (lane->hidden) {
        lane->hidden--;
    }
}

/* --- reading --- */

void once__redis_lane_ask(once_redis *r, once_hash id, size_t window)
{
    assert(window > 0);
    once__redis_command(&r->pipe, ONCE_REPLY_VALUE, 2);
    once__redis_text(&r->pipe, "GET");
    once__redis_put_id_key(r, "l", id);
    once__redis_command(&r->pipe, ONCE_REPLY_COUNT, 2);
    once__redis_text(&r->pipe, "ZCARD");
    once__redis_put_id_key(r, "o", id);
    once__redis_command(&r->pipe, ONCE_REPLY_TEXTS, 4);
    once__redis_text(&r->pipe, "ZRANGE");
    once__redis_put_id_key(r, "o", id);
    once__redis_number(&r->pipe, 0);
    once__redis_number(&r->pipe, (int64_t)window - 1);
    once__redis_command(&r->pipe, ONCE_REPLY_TEXTS, 4);
    once__redis_text(&r->pipe, "ZRANGE");
    once__redis_put_id_key(r, "o", id);
    once__redis_number(&r->pipe, -(int64_t)window);
    once__redis_number(&r->pipe, -1);
    once__redis_command(&r->pipe, ONCE_REPLY_LEFT, 2);
    once__redis_text(&r->pipe, "PTTL");
    once__redis_put_id_key(r, "l", id);
}

void once__redis_member_write(once_redis_member member, unsigned char out[ONCE_REDIS_MEMBER],
                              unsigned char old[ONCE_REDIS_OLD_MEMBER])
{
    const uint64_t order = htobe64((uint64_t)member.order), seen_ms = htobe64((uint64_t)member.seen_ms);
    memcpy(out, &order, 8);
    memset(out + 8, 0xff, 8);
    memcpy(out + 16, &seen_ms, 8);
    once__redis_id_write(member.id, out + 24);
    memcpy(old, &order, 8);
    once__redis_id_write(member.id, old + 8);
}

bool once__redis_member_read(once_bytes bytes, once_redis_member *out)
{
    const bool old = bytes.len == ONCE_REDIS_OLD_MEMBER;
    uint64_t order, seen_ms;
    if (!old && bytes.len != ONCE_REDIS_MEMBER) return false;
    memcpy(&order, bytes.data, 8);
    memcpy(&seen_ms, bytes.data + 16, 8);
    *out = (once_redis_member){(int64_t)be64toh(order), old ? ONCE_REDIS_SEEN_BEFORE : (int64_t)be64toh(seen_ms),
                               once__redis_id_read(bytes.data + bytes.len - 16)};
    return true;
}

static int read_members(once_redis *r, once_redis_lane *lane, const redisReply *reply, once_error *err)
{
    for (size_t i = 0; i < once__reply_n(reply); i++) {
        const once_bytes bytes = once__reply_at(reply, i);
        once_redis_member member;
        if (!once__redis_member_read(bytes, &member)) return once__redis_damaged_id(r, "o", lane->id, err);
        if (!add_member(r, lane, member)) return once__redis_nomem(err);
    }
    return ONCE_OK;
}

/* Both ends as the server has them, then the changes of this transaction. */
static int read_ends(once_redis *r, once_redis_lane *lane, size_t window, redisReply *const *replies, once_error *err)
{
    lane->n_known = lane->hole = lane->hidden = 0;
    lane->window = window;
    const size_t all = once__reply_count(replies[1]);
    int rc = read_members(r, lane, replies[2], err);
    const size_t front = lane->n_known;
    if (rc == ONCE_OK) rc = read_members(r, lane, replies[3], err);
    if (rc != ONCE_OK) return rc;
    lane->hole = all > lane->n_known ? front : lane->n_known;
    lane->hidden = all > lane->n_known ? all - lane->n_known : 0;
    for (size_t i = 0; i < lane->n_steps; i++) {
        if (!lane->steps[i].added) remove_member(lane, lane->steps[i].member);
        else if (!add_member(r, lane, lane->steps[i].member)) return once__redis_nomem(err);
    }
    return ONCE_OK;
}

int once__redis_lane_read(once_redis *r, once_hash id, size_t window, redisReply *const *replies, once_error *err)
{
    once_redis_lane *lane = once_arena_new(&r->arena, once_redis_lane, 1);
    if (!lane || !ONCE_REDIS_ROOM(r->lanes) || !once_table_put(&r->lane_map, id, lane)) return once__redis_nomem(err);
    lane->id = id;
    lane->version = ONCE_LANE_NO_VERSION;
    r->lanes.at[r->lanes.n++] = lane;

    const once_bytes value = once__reply_bytes(replies[0]);
    once_redis_lane_record record = {0};
    if (value.len) {
        if (!once_arena_copy(&r->arena, value, &lane->stored)) return once__redis_nomem(err);
        if (!once__redis_read_lane(lane->stored, &record)) return once__redis_damaged_id(r, "l", id, err);
        if (record.has_version) lane->version = record.version;
        lane->expires_ms = record.expires_ms;
        lane->record = record.kept;
    }
    for (size_t i = 0; i < record.n_claimed; i++) {
        if (!room(r, &lane->claimed, lane->n_claimed, &lane->claimed_room, sizeof *lane->claimed))
            return once__redis_nomem(err);
        lane->claimed[lane->n_claimed++] = once__redis_id_read(record.claimed + 16 * i);
    }
    const int rc = read_ends(r, lane, window, replies, err);
    const bool alone = once__reply_count(replies[1]) == 0 && value.len > 0;
    if (rc != ONCE_OK || !alone || r->mends || once__redis_lane_is_empty(r, &record, once__reply_left(replies[4])))
        return rc;
    return once__redis_lane_lost(r, lane, err);
}

/* So many entries have left one end that the first or last one is not known: more of both ends is read. */
static int read_more(once_redis *r, once_redis_lane *lane, once_error *err)
{
    if (lane->window > UINT32_MAX)
        return once__redis_damaged_id(r, "o", lane->id, err); /* all members were asked for, and some are missing */
    const size_t window = lane->window * 8;
    once__redis_pipe_clear(&r->pipe);
    once__redis_lane_ask(r, lane->id, window);
    const int rc = once__redis_ask(r, err);
    if (rc != ONCE_OK) return rc;
    const once_bytes now = once__reply_bytes(r->pipe.replies[0]);
    if (!once_bytes_equal(now, lane->stored)) return once__redis_conflict(r, err);
    return read_ends(r, lane, window, r->pipe.replies, err);
}

int once__redis_lane(once_redis *r, once_hash id, once_redis_lane **out, once_error *err)
{
    *out = known_lane(r, id);
    if (*out) return ONCE_OK;
    const int rc = once__redis_prefetch(r, NULL, 0, &id, 1, false, err);
    if (rc != ONCE_OK) return rc;
    *out = known_lane(r, id);
    return *out ? ONCE_OK : once__redis_nomem(err);
}

/* --- questions --- */

static bool front_is_known(const once_redis_lane *lane, once_hash except)
{
    for (size_t i = 0; i < lane->hole; i++)
        if (!once_hash_equal(lane->known[i].id, except)) return true;
    return lane->hidden == 0;
}

static bool back_is_known(const once_redis_lane *lane, once_hash except)
{
    for (size_t i = lane->n_known; i > lane->hole; i--)
        if (!once_hash_equal(lane->known[i - 1].id, except)) return true;
    return lane->hidden == 0;
}

int once__redis_lane_view(once_redis *r, once_redis_lane *lane, once_hash except, once_lane *out, once_error *err)
{
    while (!front_is_known(lane, except) || !back_is_known(lane, except)) {
        const int rc = read_more(r, lane, err);
        if (rc != ONCE_OK) return rc;
    }
    if (!once__lane_read(lane->version, lane->expires_ms, lane->record, r->storage.now_ms, out))
        return once__redis_damaged_id(r, "l", lane->id, err);
    for (size_t i = 0; i < lane->n_claimed; i++) out->claimed |= !once_hash_equal(lane->claimed[i], except);
    for (size_t i = 0; i < lane->n_known; i++) {
        if (once_hash_equal(lane->known[i].id, except)) continue;
        out->head = lane->known[i].order;
        break;
    }
    for (size_t i = lane->n_known; i > 0; i--) {
        if (once_hash_equal(lane->known[i - 1].id, except)) continue;
        out->tail = lane->known[i - 1].order;
        break;
    }
    return ONCE_OK;
}

int once__redis_lane_first(once_redis *r, once_redis_lane *lane, once_hash *out, once_error *err)
{
    while (!front_is_known(lane, (once_hash){0})) {
        const int rc = read_more(r, lane, err);
        if (rc != ONCE_OK) return rc;
    }
    *out = lane->n_known ? lane->known[0].id : (once_hash){0};
    return ONCE_OK;
}

/* Whether an entry of this order may be among the members that were not read. */
static bool may_hide(const once_redis_lane *lane, int64_t order)
{
    const size_t hole = lane->hole;
    return lane->hidden && (hole == 0 || lane->known[hole - 1].order <= order) &&
           (hole == lane->n_known || order <= lane->known[hole].order);
}

/* The last entry of this order as the server has it; one that has left in this transaction still counts. */
static int ask_last(once_redis *r, const once_redis_lane *lane, int64_t order, int64_t *seen_ms, once_error *err)
{
    char from[9] = {'['}, below[9] = {'('};
    const uint64_t low = htobe64((uint64_t)order), high = htobe64((uint64_t)order + 1);
    memcpy(from + 1, &low, 8);
    memcpy(below + 1, &high, 8);
    once__redis_pipe_clear(&r->pipe);
    once__redis_command(&r->pipe, ONCE_REPLY_TEXTS, 7);
    once__redis_text(&r->pipe, "ZREVRANGEBYLEX");
    once__redis_put_id_key(r, "o", lane->id);
    once__redis_arg(&r->pipe, below, sizeof below);
    once__redis_arg(&r->pipe, from, sizeof from);
    once__redis_text(&r->pipe, "LIMIT");
    once__redis_number(&r->pipe, 0);
    once__redis_number(&r->pipe, 1);
    const int rc = once__redis_ask(r, err);
    if (rc != ONCE_OK || once__reply_n(r->pipe.replies[0]) == 0) return rc;
    once_redis_member last;
    if (!once__redis_member_read(once__reply_at(r->pipe.replies[0], 0), &last))
        return once__redis_damaged_id(r, "o", lane->id, err);
    if (last.seen_ms > *seen_ms) *seen_ms = last.seen_ms;
    return ONCE_OK;
}

int once__redis_lane_equals(once_redis *r, once_redis_lane *lane, int64_t order, int64_t *seen_ms, once_error *err)
{
    *seen_ms = 0;
    for (size_t i = 0; i < lane->n_known; i++)
        if (lane->known[i].order == order && lane->known[i].seen_ms > *seen_ms) *seen_ms = lane->known[i].seen_ms;
    for (size_t i = 0; i < lane->n_steps; i++)
        if (lane->steps[i].member.order == order && lane->steps[i].member.seen_ms > *seen_ms)
            *seen_ms = lane->steps[i].member.seen_ms;
    return may_hide(lane, order) ? ask_last(r, lane, order, seen_ms, err) : ONCE_OK;
}

/* The entries that the server has before this one, and the others that occupy the lane. */
int once__redis_lane_before(once_redis *r, once_redis_lane *lane, const once_entry *entry, size_t max, once_hash *out,
                            size_t *n, uint64_t *count, once_error *err)
{
    assert(max > 0);
    char below[1 + ONCE_REDIS_MEMBER] = {'('};
    const uint64_t order = htobe64((uint64_t)entry->order), seen_ms = htobe64((uint64_t)entry->seen_ms);
    memcpy(below + 1, &order, 8);
    memset(below + 9, 0xff, 8);
    memcpy(below + 17, &seen_ms, 8);
    once__redis_id_write(entry->id, (unsigned char *)below + 25);
    once__redis_pipe_clear(&r->pipe);
    once__redis_command(&r->pipe, ONCE_REPLY_COUNT, 4);
    once__redis_text(&r->pipe, "ZLEXCOUNT");
    once__redis_put_id_key(r, "o", lane->id);
    once__redis_text(&r->pipe, "-");
    once__redis_arg(&r->pipe, below, sizeof below);
    once__redis_command(&r->pipe, ONCE_REPLY_TEXTS, 7);
    once__redis_text(&r->pipe, "ZRANGEBYLEX");
    once__redis_put_id_key(r, "o", lane->id);
    once__redis_text(&r->pipe, "-");
    once__redis_arg(&r->pipe, below, sizeof below);
    once__redis_text(&r->pipe, "LIMIT");
    once__redis_number(&r->pipe, 0);
    once__redis_number(&r->pipe, (int64_t)max + 1); /* an entry of an older program may find itself */
    const int rc = once__redis_ask(r, err);
    if (rc != ONCE_OK) return rc;
    *n = 0;
    *count = once__reply_count(r->pipe.replies[0]);
    for (size_t i = 0; i < once__reply_n(r->pipe.replies[1]); i++) {
        once_redis_member member;
        if (!once__redis_member_read(once__reply_at(r->pipe.replies[1], i), &member))
            return once__redis_damaged_id(r, "o", lane->id, err);
        if (once_hash_equal(member.id, entry->id)) --*count;
        else if (*n < max) out[(*n)++] = member.id;
    }
    if (*count > ONCE_BEFORE_COUNTED) *count = ONCE_BEFORE_COUNTED;
    const size_t before = *n;
    for (size_t i = 0; i < lane->n_claimed && *n < before + max; i++) {
        bool known = once_hash_equal(lane->claimed[i], entry->id);
        for (size_t k = 0; k < before; k++) known |= once_hash_equal(out[k], lane->claimed[i]);
        if (!known) out[(*n)++] = lane->claimed[i];
    }
    return ONCE_OK;
}

/* --- saving --- */

static int step(once_redis *r, once_redis_lane *lane, once_redis_member member, bool added, once_error *err)
{
    if (!room(r, &lane->steps, lane->n_steps, &lane->steps_room, sizeof *lane->steps)) return once__redis_nomem(err);
    lane->steps[lane->n_steps++] = (struct once_redis_step){member, added};
    if (!added) remove_member(lane, member);
    else if (!add_member(r, lane, member)) return once__redis_nomem(err);
    return ONCE_OK;
}

static int claimed_by(once_redis *r, once_redis_lane *lane, once_hash id, bool claimed, once_error *err)
{
    size_t at = 0;
    while (at < lane->n_claimed && !once_hash_equal(lane->claimed[at], id)) at++;
    if (claimed == (at < lane->n_claimed)) return ONCE_OK;
    if (!claimed) {
        lane->claimed[at] = lane->claimed[--lane->n_claimed];
        return ONCE_OK;
    }
    if (!room(r, &lane->claimed, lane->n_claimed, &lane->claimed_room, sizeof *lane->claimed))
        return once__redis_nomem(err);
    lane->claimed[lane->n_claimed++] = id;
    return ONCE_OK;
}

/* An entry that is missing in the set of its lane has lost its place: entries behind it would pass it, and nothing
 * would wake it. */
static int must_have(once_redis *r, const once_redis_lane *lane, const once_redis_slot *slot, once_error *err)
{
    const once_redis_member member = {slot->order, slot->seen_ms, slot->entry.id};
    const once_redis_member old = {member.order, ONCE_REDIS_SEEN_BEFORE, member.id};
    if (r->mends || lane->hidden || find_member(lane, member) < lane->n_known || find_member(lane, old) < lane->n_known)
        return ONCE_OK;
    return once__redis_lane_lacks(r, lane, slot, member, err);
}

int once__redis_lane_follow(once_redis *r, once_redis_slot *slot, once_error *err)
{
    assert(slot->dirty);
    const once_entry *e = &slot->entry;
    const bool in_lane = once_state_unfinished(e->state) && !once_hash_is_zero(e->lane);
    const bool claimed = once_state_occupies(e->state);
    const bool moved =
        in_lane != slot->in_lane ||
        (in_lane && (!once_hash_equal(e->lane, slot->lane) || e->order != slot->order || e->seen_ms != slot->seen_ms));
    once_redis_lane *lane;
    int rc = ONCE_OK;
    if (slot->in_lane) {
        rc = once__redis_lane(r, slot->lane, &lane, err);
        if (rc == ONCE_OK) rc = must_have(r, lane, slot, err);
        if (rc == ONCE_OK) lane->dirty = true;
        if (rc == ONCE_OK && moved)
            rc = step(r, lane, (once_redis_member){slot->order, slot->seen_ms, e->id}, false, err);
        if (rc == ONCE_OK && (moved || !claimed)) rc = claimed_by(r, lane, e->id, false, err);
    }
    if (rc == ONCE_OK && in_lane) {
        rc = once__redis_lane(r, e->lane, &lane, err);
        if (rc == ONCE_OK) lane->dirty = true;
        if (rc == ONCE_OK && moved) rc = step(r, lane, (once_redis_member){e->order, e->seen_ms, e->id}, true, err);
        if (rc == ONCE_OK) rc = claimed_by(r, lane, e->id, claimed, err);
    }
    slot->in_lane = in_lane;
    slot->lane = e->lane;
    slot->order = e->order;
    slot->seen_ms = e->seen_ms;
    return rc;
}

/* --- repairs --- */

int once__redis_lane_mend(once_redis *r, const once_redis_slot *slot, bool lacks, once_error *err)
{
    const once_entry *e = &slot->entry;
    const once_redis_member member = {e->order, e->seen_ms, e->id}, old = {e->order, ONCE_REDIS_SEEN_BEFORE, e->id};
    once_redis_lane *lane;
    int rc = once__redis_lane(r, e->lane, &lane, err);
    if (rc != ONCE_OK) return rc;
    const bool there = !lacks && (find_member(lane, member) < lane->n_known || find_member(lane, old) < lane->n_known);
    if (!there)
        rc = step(r, lane, member, true,
                  err); /* in a long lane the set may have it already; adding it again changes nothing */
    if (rc == ONCE_OK) rc = claimed_by(r, lane, e->id, once_state_occupies(e->state), err);
    lane->dirty = true;
    return rc;
}

int once__redis_lane_drop(once_redis *r, once_hash id, once_redis_member member, once_error *err)
{
    once_redis_lane *lane;
    const int rc = once__redis_lane(r, id, &lane, err);
    if (rc != ONCE_OK) return rc;
    lane->dirty = true;
    return step(r, lane, member, false, err);
}

int once__redis_lane_vacate(once_redis *r, once_hash id, once_hash entry, once_error *err)
{
    once_redis_lane *lane;
    const int rc = once__redis_lane(r, id, &lane, err);
    if (rc != ONCE_OK) return rc;
    lane->dirty = true;
    return claimed_by(r, lane, entry, false, err);
}

int once__redis_lane_renew(once_redis *r, once_hash id, once_error *err)
{
    once_redis_lane *lane;
    const int rc = once__redis_lane(r, id, &lane, err);
    if (rc == ONCE_OK) lane->dirty = true;
    return rc;
}
