/* Turns what a transaction has decided into arguments of the commit script: entries and their indexes, lanes, facts,
 * letters, audit records. */
#include <assert.h>
#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "store/redis/commit.h"

#include "base/banned.h"

/* --- entries --- */

static bool same_scope(const once_scope *x, const once_scope *y)
{
    return once_bytes_equal(x->tenant, y->tenant) && once_bytes_equal(x->consumer, y->consumer) &&
           once_bytes_equal(x->operation, y->operation);
}

/* Mostly an entry has the names of the one before. */
static bool write_finished(once_redis *r, const once_entry *e, const once_entry *before, once_redis_finished *names)
{
    assert(once_state_finished(e->state));
    if (!before || !same_scope(&before->scope, &e->scope)) {
        once_buf_clear(&r->value);
        once__redis_write_scope(&r->value, &e->scope);
        names->scope = once__redis_name_of(r, once_buf_bytes(&r->value));
    }
    if (!before || before->run != e->run || !once_bytes_equal(before->at.place, e->at.place) ||
        !once_bytes_equal(before->who, e->who)) {
        once_buf_clear(&r->value);
        once__redis_write_origin(&r->value, e->at.place, e->run, e->who);
        names->origin = once__redis_name_of(r, once_buf_bytes(&r->value));
    }
    if (r->value.failed || !names->scope || !names->origin) return false;
    once_buf_clear(&r->value);
    once__redis_write_finished(&r->value, e, *names);
    return true;
}

static void write_new_names(once_redis *r)
{
    for (size_t i = 0; i < r->names.n; i++) {
        const once_redis_name *name = &r->names.at[i];
        if (name->written) continue;
        once__redis_do(r, "HSET", "n", (once_bytes){0}, 2);
        once__redis_put(r, &name->id, sizeof name->id);
        once__redis_put(r, name->value.data, name->value.len);
    }
}

static bool write_entries(once_redis *r)
{
    const once_entry *before = NULL;
    once_redis_finished names;
    for (size_t i = 0; i < r->slots.n; i++) {
        const once_redis_slot *slot = r->slots.at[i];
        const once_entry *e = &slot->entry;
        if (!slot->dirty) {
            if (slot->assumed) once__redis_put_value(r, "e", e->id, slot->stored, ONCE_REDIS_KEEP, 0);
            continue;
        }
        const bool finished = once_state_finished(e->state), absent = e->state == ONCE_STATE_ABSENT;
        once_buf_clear(&r->value);
        if (finished && !write_finished(r, e, before, &names)) return false;
        if (finished) before = e;
        if (!finished && !absent) once__redis_write_open(&r->value, e, r->stamp);
        once__redis_claim_cache_note(r, e, once_buf_bytes(&r->value));
        once__redis_put_value(r, "e", e->id, slot->stored,
                              !absent            ? ONCE_REDIS_WRITE
                              : slot->stored.len ? ONCE_REDIS_DELETE
                                                 : ONCE_REDIS_KEEP,
                              once_entry_expires(e) ? e->expires_ms : ONCE_NEVER);
    }
    return true;
}

/* --- indexes --- */

/* One change: an entry leaves or enters an index or a group of claims. */
typedef struct change {
    char index;
    bool enters;
    once_bytes consumer;
    int64_t due_ms; /* with the stamp it names a group */
    uint64_t stamp;
    const once_entry *entry;
} change;

static uint64_t stamp_of(once_bytes stored)
{
    uint64_t stamp;
    assert(stored.len >= ONCE_REDIS_STAMPED);
    memcpy(&stamp, stored.data + 1, sizeof stamp);
    return le64toh(stamp);
}

/* What a slot changes: up to two. A claim without a body changes its group whenever it is written, because it gets
 * another stamp. */
static size_t changes_of(const once_redis *r, const once_redis_slot *slot, change out[2])
{
    size_t n = 0;
    if (!slot->dirty) return 0;
    const once_entry *e = &slot->entry;
    const char now = once__redis_index_of(e);
    const bool stays =
        now == slot->index && now != ONCE_REDIS_CLAIMED_BARE && once_bytes_equal(slot->consumer, e->scope.consumer);
    if (slot->index && !stays) {
        out[n++] = (change){slot->index, false, slot->consumer, 0, 0, e};
        if (slot->index == ONCE_REDIS_CLAIMED_BARE)
            out[n - 1].due_ms = slot->due_ms, out[n - 1].stamp = stamp_of(slot->stored);
    }
    if (now && (!stays || e->due_ms != slot->due_ms || now == ONCE_REDIS_WAITING_BARE)) {
        out[n++] = (change){now, true, e->scope.consumer, 0, 0, e};
        if (now == ONCE_REDIS_CLAIMED_BARE) out[n - 1].due_ms = e->due_ms, out[n - 1].stamp = r->stamp;
    }
    return n;
}

static int by_group(const void *left, const void *right)
{
    const change *x = left, *y = right;
    if (x->index != y->index) return x->index < y->index ? -1 : 1;
    if (x->enters != y->enters) return x->enters ? 1 : -1;
    if (x->due_ms != y->due_ms) return x->due_ms < y->due_ms ? -1 : 1;
    if (x->stamp != y->stamp) return x->stamp < y->stamp ? -1 : 1;
    if (x->consumer.len != y->consumer.len) return x->consumer.len < y->consumer.len ? -1 : 1;
    return x->consumer.data == y->consumer.data || x->consumer.len == 0
               ? 0
               : memcmp(x->consumer.data, y->consumer.data, x->consumer.len);
}

static void put_score(once_redis *r, const change *c)
{
    assert(c->enters && c->index == once__redis_index_of(c->entry));
    const once_entry *e = c->entry;
    const int64_t when_ms = c->index != ONCE_REDIS_WAITING_BARE ? e->due_ms
                            : once_entry_expires(e)             ? e->expires_ms
                                                                : ONCE_NEVER;
    if (when_ms == ONCE_NEVER) once__redis_put_text(r, "+inf");
    else once__redis_put_number(r, when_ms);
}

static void write_claims(once_redis *r, const change *list, size_t n)
{
    assert(n > 0 && list->index == ONCE_REDIS_CLAIMED_BARE);
    unsigned char group[16];
    once__redis_group_write(list->due_ms, list->stamp, group);
    if (!list->enters) {
        once_redis_part *to = &r->parts[ONCE_REDIS_GROUPS];
        once__redis_declare(r, to, "c", list->consumer.data, list->consumer.len);
        once__redis_declare(r, to, "g", list->consumer.data, list->consumer.len);
        once__redis_part_arg(to, group, sizeof group);
        once__redis_part_count(to, n);
        to->n++;
        return;
    }
    once__redis_do(r, "ZADD", "c", list->consumer, 2);
    once__redis_put_number(r, (int64_t)n);
    once__redis_put(r, group, sizeof group);
    once__redis_do(r, "HSET", "g", list->consumer, 2);
    once__redis_put(r, group, sizeof group);
    once_buf_clear(&r->value);
    for (size_t i = 0; i < n; i++) {
        unsigned char id[16];
        once__redis_id_write(list[i].entry->id, id);
        once_buf_append(&r->value, id, sizeof id);
    }
    if (r->value.failed) r->command->args.failed = true;
    once__redis_put(r, r->value.data, r->value.len);
}

static void write_group(once_redis *r, const change *list, size_t n)
{
    assert(n > 0 && list->index != ONCE_REDIS_NOWHERE && list->index != ONCE_REDIS_CLAIMED_BARE);
    const char kind[] = {'i', list->index, 0};
    const size_t each = list->enters ? 2 : 1;
    if (list->enters && list->index == ONCE_REDIS_WAITING_BARE) { /* a sweep finds the consumer there */
        once__redis_do(r, "SADD", "w", (once_bytes){0}, 1);
        once__redis_put(r, list->consumer.data, list->consumer.len);
    }
    for (size_t at = 0; at < n; at += ONCE_REDIS_ARGS_MAX / 2) {
        const size_t count = n - at < ONCE_REDIS_ARGS_MAX / 2 ? n - at : ONCE_REDIS_ARGS_MAX / 2;
        if (list->enters) once__redis_do(r, "ZADD", kind, list->consumer, count * each);
        else once__redis_undo(r, "ZREM", kind, list->consumer, count * each);
        for (size_t i = at; i < at + count; i++) {
            unsigned char id[16];
            once__redis_id_write(list[i].entry->id, id);
            if (list->enters) put_score(r, &list[i]);
            once__redis_put(r, id, sizeof id);
        }
    }
}

/* All entries that leave or enter one index go into one command. */
static bool write_indexes(once_redis *r)
{
    change *list = once_arena_alloc(&r->arena, (2 * r->slots.n + 1) * sizeof *list);
    if (!list) return false;
    size_t n = 0;
    bool sorted = true; /* mostly they are: all make the same change */
    for (size_t i = 0; i < r->slots.n; i++) {
        const size_t before = n;
        n += changes_of(r, r->slots.at[i], list + n);
        for (size_t k = before ? before : 1; k < n && sorted; k++) sorted = by_group(&list[k - 1], &list[k]) <= 0;
    }
    if (!sorted) qsort(list, n, sizeof *list, by_group);
    for (size_t at = 0, end; at < n; at = end) {
        for (end = at + 1; end < n && by_group(&list[at], &list[end]) == 0;) end++;
        (list[at].index == ONCE_REDIS_CLAIMED_BARE ? write_claims : write_group)(r, list + at, end - at);
    }
    return true;
}

/* --- lanes --- */

static void write_member(once_redis *r, const once_redis_lane *lane, once_redis_member member, bool added)
{
    unsigned char bytes[ONCE_REDIS_MEMBER], old[ONCE_REDIS_OLD_MEMBER];
    once__redis_member_write(member, bytes, old);
    unsigned char id[16];
    once__redis_id_write(lane->id, id);
    const once_bytes rest = {(const char *)id, sizeof id};
    if (added) once__redis_do(r, "ZADD", "o", rest, 2);
    else once__redis_undo(r, "ZREM", "o", rest, 2);
    if (added) once__redis_put_text(r, "0");
    else once__redis_put(r, old, sizeof old);
    once__redis_put(r, bytes, sizeof bytes);
}

static bool is_same_member(once_redis_member x, once_redis_member y)
{
    return x.order == y.order && x.seen_ms == y.seen_ms && once_hash_equal(x.id, y.id);
}

/* A member that came and went within the transaction is not written. */
static void write_steps(once_redis *r, const once_redis_lane *lane)
{
    assert(lane->dirty);
    for (size_t i = 0; i < lane->n_steps; i++) {
        const struct once_redis_step *last = &lane->steps[i];
        bool is_last = true, was_there = !last->added;
        for (size_t k = 0; k < lane->n_steps && is_last; k++) {
            const struct once_redis_step *other = &lane->steps[k];
            if (k == i || !is_same_member(other->member, last->member)) continue;
            if (k > i) is_last = false;
        }
        for (size_t k = 0; k < i; k++) {
            const struct once_redis_step *other = &lane->steps[k];
            if (!is_same_member(other->member, last->member)) continue;
            was_there = !other->added;
            break;
        }
        if (is_last && was_there != last->added) write_member(r, lane, last->member, last->added);
    }
}

static bool write_lanes(once_redis *r)
{
    for (size_t i = 0; i < r->lanes.n; i++) {
        const once_redis_lane *lane = r->lanes.at[i];
        const bool kept =
            (lane->version != ONCE_LANE_NO_VERSION || lane->record.len) && lane->expires_ms > r->storage.now_ms;
        const bool members = lane->n_known + lane->hidden > 0;
        once_buf_clear(&r->value);
        if (!lane->dirty || (!kept && !members)) {
            once__redis_put_value(r, "l", lane->id, lane->stored,
                                  lane->dirty && lane->stored.len ? ONCE_REDIS_DELETE : ONCE_REDIS_KEEP, 0);
        } else {
            unsigned char *claimed = once_arena_alloc(&r->arena, 16 * lane->n_claimed);
            if (!claimed) return false;
            for (size_t k = 0; k < lane->n_claimed; k++) once__redis_id_write(lane->claimed[k], claimed + 16 * k);
            const once_redis_lane_record record = {r->stamp,       lane->version != ONCE_LANE_NO_VERSION,
                                                   lane->version,  lane->expires_ms,
                                                   lane->record,   claimed,
                                                   lane->n_claimed};
            once__redis_write_lane(&r->value, &record);
            once__redis_put_value(r, "l", lane->id, lane->stored, ONCE_REDIS_WRITE,
                                  members ? ONCE_NEVER : lane->expires_ms);
        }
        if (lane->dirty) write_steps(r, lane);
    }
    return true;
}

/* --- facts --- */

static void write_facts(once_redis *r)
{
    for (size_t i = 0; i < r->facts.n; i++) {
        const once_redis_fact *fact = &r->facts.at[i];
        if (!fact->written) continue;
        if (fact->read) once__redis_expect_field(r, 'f', fact->name, strlen(fact->name), fact->was);
        if (fact->value.len) once__redis_do(r, "HSET", "f", (once_bytes){0}, 2);
        else once__redis_undo(r, "HDEL", "f", (once_bytes){0}, 1);
        once__redis_put_text(r, fact->name);
        if (fact->value.len) once__redis_put(r, fact->value.data, fact->value.len);
    }
}

/* --- letters --- */

static void write_new_letter(once_redis *r, const once_redis_letter *put)
{
    assert(put->stored.len == 0);
    once_redis_part *to = &r->parts[ONCE_REDIS_LETTERS];
    unsigned char field[16];
    once__redis_id_write(put->unique, field);
    once__redis_declare(r, to, "d", put->letter.scope.consumer.data, put->letter.scope.consumer.len);
    once__redis_declare(r, to, "U", NULL, 0);
    once__redis_part_arg(to, field, sizeof field);
    once_buf_clear(&r->value);
    once__redis_write_letter(&r->value, &put->letter, put->unique);
    once__redis_part_arg(to, r->value.data, r->value.len);
    to->n++;
}

/* The commit compares the head of the letter, which has its count. */
static void write_counted_letter(once_redis *r, const once_redis_letter *put)
{
    assert(put->stored.len > 0);
    once_redis_values *to = &r->values[put->stored.len > ONCE_REDIS_SMALL];
    char number[24];
    const size_t len = once__redis_number_text((int64_t)put->letter.id, number);
    char key[ONCE_REDIS_KEY];
    once__redis_encode(&to->keys, key, once__redis_key(r, "L", number, len, key));
    once__redis_encode(&to->was, put->stored.data,
                       put->stored.len < ONCE_REDIS_LETTER_HEAD ? put->stored.len : ONCE_REDIS_LETTER_HEAD);
    once_buf_clear(&r->value);
    once__redis_write_letter(&r->value, &put->letter, put->unique);
    once__redis_encode(&to->now, r->value.data, r->value.len);
    once__redis_encode(&to->how, "", 0);
    to->n++;
}

static bool write_letters(once_redis *r)
{
    for (size_t i = 0; i < r->puts.n; i++) {
        (r->puts.at[i].stored.len ? write_counted_letter : write_new_letter)(r, &r->puts.at[i]);
        if (r->value.failed) return false;
    }
    return true;
}

static bool is_written(const once_redis *r, once_hash unique)
{
    for (size_t i = 0; i < r->puts.n; i++)
        if (once_hash_equal(r->puts.at[i].unique, unique)) return true;
    return false;
}

/* The unique of a dropped letter stays when a new letter takes it over. */
static void write_dropped_uniques(once_redis *r, const once_redis_dropped *list, size_t n)
{
    assert(n > 0);
    size_t gone = 0;
    for (size_t i = 0; i < n; i++) gone += !is_written(r, list[i].unique);
    if (gone) once__redis_undo(r, "HDEL", "U", (once_bytes){0}, gone);
    for (size_t i = 0; i < n; i++) {
        unsigned char field[16];
        if (is_written(r, list[i].unique)) continue;
        once__redis_id_write(list[i].unique, field);
        once__redis_put(r, field, sizeof field);
    }
}

static void write_dropped_letters(once_redis *r)
{
    const once_redis_dropped *list = r->dropped.at;
    once_redis_part *gone = &r->parts[ONCE_REDIS_DROPPED];
    for (size_t at = 0, end; at < r->dropped.n; at = end) {
        for (end = at + 1; end < r->dropped.n && end - at < ONCE_REDIS_ARGS_MAX &&
                           once_bytes_equal(list[end].consumer, list[at].consumer);)
            end++;
        once__redis_undo(r, "ZREM", "d", list[at].consumer, end - at);
        for (size_t i = at; i < end; i++) {
            char number[24];
            const size_t len = once__redis_number_text((int64_t)list[i].id, number);
            once__redis_put(r, number, len);
            once__redis_declare(r, gone, "L", number, len);
            gone->n++;
        }
        write_dropped_uniques(r, list + at, end - at);
    }
}

/* --- audits --- */

static void write_audits(once_redis *r)
{
    for (size_t at = 0, end; at < r->audits.n; at = end) {
        const once_bytes consumer = r->audits.at[at].consumer;
        for (end = at + 1; end < r->audits.n && end - at < ONCE_REDIS_ARGS_MAX &&
                           once_bytes_equal(r->audits.at[end].consumer, consumer);)
            end++;
        once__redis_do(r, "RPUSH", "a", consumer, end - at);
        for (size_t i = at; i < end; i++) once__redis_put(r, r->audits.at[i].value.data, r->audits.at[i].value.len);
    }
}

#ifdef ONCE_TEST_BUILD
static void write_clock(once_redis *r)
{
    if (!r->test_clock) return;
    once__redis_do(r, "SET", "testclock", (once_bytes){0}, 1);
    once__redis_put(r, &r->storage.clock, sizeof r->storage.clock);
}
#else
static void write_clock(once_redis *r) { (void)r; }
#endif

/* Returns false when memory is out. */
bool once__redis_write_changes(once_redis *r)
{
    assert(r->open && r->owed == 0);
    if (!write_entries(r) || !write_indexes(r) || !write_letters(r)) return false;
    write_dropped_letters(r);
    write_audits(r);
    write_facts(r);
    once__redis_expect_now(r);
    return true;
}

/* Lanes are compared even when they are not changed. */
bool once__redis_write_around(once_redis *r)
{
    assert(r->writes);
    if (!write_lanes(r)) return false;
    write_new_names(r);
    write_clock(r);
    return true;
}
