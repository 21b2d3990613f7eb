/* `once check --repair` of a Redis store: repairs the flaws that a check of every key finds (look.h), from what
 * entries, lanes and dead letters say themselves.
 *
 * Everything is written by the commit of a transaction, which compares what the repair was derived from. So workers go
 * on, and a flaw whose entry a worker writes in between is left alone: that commit has repaired it. Entries come first,
 * so that a lane has its members again before a worker takes it for empty. */
#include "store/redis/verify.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/banned.h"

enum { STEP_BYTES = 16 << 20, STEP = 500 }; /* flaws of a transaction; a page may add a few */

typedef struct mending {
    once_redis *r;
    once_arena arena;
    ONCE_REDIS_LIST(once_redis_flaw) flaws;
    uint64_t bytes; /* of the values that the repair will read again */
} mending;

static bool same(once_bytes x, once_bytes y)
{
    return x.len == y.len && (x.len == 0 || memcmp(x.data, y.data, x.len) == 0);
}

static bool keep_bytes(mending *m, once_bytes *bytes)
{
    const once_bytes were = *bytes;
    *bytes = (once_bytes){0};
    return were.len == 0 || once_arena_copy(&m->arena, were, bytes);
}

static bool is_of_letter(once_redis_flaw_kind kind)
{
    return kind == FLAW_LETTER_NOT_LISTED || kind == FLAW_LETTER_NO_UNIQUE || kind == FLAW_LETTER_OF_OTHER;
}

static bool is_of_entry(once_redis_flaw_kind kind)
{
    return (kind >= FLAW_OTHER_KEY && kind <= FLAW_NO_NAME) || kind == FLAW_LISTED || kind == FLAW_STANDS ||
           kind == FLAW_PLACE;
}

/* Keeps only the bytes that a commit compares; the rest may be a large message. */
static void cut_stored(once_redis_flaw *flaw)
{
    const size_t most = is_of_letter(flaw->kind)                                            ? ONCE_REDIS_LETTER_HEAD
                        : is_of_entry(flaw->kind) && !once__redis_is_finished(flaw->stored) ? ONCE_REDIS_STAMPED
                                                                                            : SIZE_MAX;
    if (flaw->stored.len > most) flaw->stored.len = most;
}

static int keep(once_redis_looking *l, const once_redis_flaw *flaw, once_error *err)
{
    mending *m = l->user;
    once_redis_flaw kept = *flaw;
    if (flaw->kind == FLAW_TYPE) return once__redis_damaged_key(l->r, flaw->key, err);
    if (!once__redis_is_mended(flaw->kind)) return ONCE_OK;
    m->bytes += kept.stored.len;
    cut_stored(&kept);
    const bool fine = keep_bytes(m, &kept.key) && keep_bytes(m, &kept.in_words) && keep_bytes(m, &kept.stored) &&
                      keep_bytes(m, &kept.consumer) && keep_bytes(m, &kept.group) && keep_bytes(m, &kept.bytes) &&
                      keep_bytes(m, &kept.place);
    if (!fine || !ONCE_REDIS_ROOM(m->flaws)) return once__redis_nomem(err);
    m->flaws.at[m->flaws.n++] = kept;
    return ONCE_OK;
}

/* --- one flaw --- */

/* The entry, which must still be as the check has read it; NULL: it has changed since. */
static int take(once_redis *r, once_hash id, once_bytes stored, once_redis_slot **out, once_error *err)
{
    const int rc = once__redis_slot(r, id, out, err);
    if (rc != ONCE_OK) return rc;
    const once_bytes now = {(*out)->stored.data, !once__redis_is_finished(stored) && (*out)->stored.len > stored.len
                                                     ? stored.len
                                                     : (*out)->stored.len};
    if (!same(now, stored) || !once__redis_is_own(r, &(*out)->entry)) *out = NULL;
    else (*out)->assumed = r->assumed = true;
    return ONCE_OK;
}

static void put_number(once_redis *r, uint64_t number)
{
    char text[24];
    const int len = snprintf(text, sizeof text, "%llu", (unsigned long long)number);
    once__redis_put(r, text, (size_t)len);
}

static void know_consumer(once_redis *r, once_bytes consumer)
{
    once__redis_do(r, "SADD", "w", (once_bytes){0}, 1);
    once__redis_put(r, consumer.data, consumer.len);
}

static void put_into_index(once_redis *r, const once_entry *e)
{
    assert(once__redis_index_of(e) != ONCE_REDIS_NOWHERE && once__redis_index_of(e) != ONCE_REDIS_CLAIMED_BARE);
    const char kind[] = {'i', once__redis_index_of(e), 0};
    const int64_t when_ms = kind[1] != ONCE_REDIS_WAITING_BARE ? e->due_ms
                            : once_entry_expires(e)            ? e->expires_ms
                                                               : ONCE_NEVER;
    unsigned char id[16];
    once__redis_id_write(e->id, id);
    if (kind[1] == ONCE_REDIS_WAITING_BARE) know_consumer(r, e->scope.consumer);
    once__redis_do(r, "ZADD", kind, e->scope.consumer, 2);
    if (when_ms == ONCE_NEVER) once__redis_put(r, "+inf", 4);
    else put_number(r, (uint64_t)when_ms);
    once__redis_put(r, id, sizeof id);
}

/* Writing an entry again gives it the time to live of its state, and a new group. */
static int write_anew(once_redis *r, once_redis_slot *slot, once_error *err)
{
    const once_entry *e = &slot->entry;
    int rc = once_state_unfinished(e->state) && !once_hash_is_zero(e->lane) ? once__redis_lane_mend(r, slot, false, err)
                                                                            : ONCE_OK;
    return rc == ONCE_OK ? r->storage.ops->save(&r->storage, &slot->entry, err) : rc;
}

/* A finished entry is written with its names. */
static void fill_names(once_redis *r, once_redis_slot *slot)
{
    once_entry *e = &slot->entry;
    if (!once_state_finished(e->state)) return;
    if (!once__redis_name_find(r, slot->names.scope)) e->scope = once__redis_lost_scope;
    if (!once__redis_name_find(r, slot->names.origin)) e->at.place = e->who = once__redis_lost;
}

static int mend_entry(once_redis *r, const once_redis_flaw *flaw, bool *done, once_error *err)
{
    assert(is_of_entry(flaw->kind));
    once_redis_slot *slot;
    int rc = take(r, flaw->id, flaw->stored, &slot, err);
    if (rc != ONCE_OK || !slot) return rc;
    *done = true;
    switch (flaw->kind) {
    case FLAW_NO_INDEX:
    case FLAW_OTHER_TIME: put_into_index(r, &slot->entry); break;
    case FLAW_NO_CONSUMER: know_consumer(r, slot->entry.scope.consumer); break;
    case FLAW_NO_LANE:
    case FLAW_NOT_OCCUPIED: rc = once__redis_lane_mend(r, slot, false, err); break;
    case FLAW_NO_PLACE: rc = once__redis_lane_mend(r, slot, true, err); break;
    default: fill_names(r, slot); rc = write_anew(r, slot, err);
    }
    return rc;
}

static void mend_name(once_redis *r, const once_redis_flaw *flaw)
{
    once__redis_do(r, "HSET", "n", (once_bytes){0}, 2);
    once__redis_put(r, &flaw->name, sizeof flaw->name);
    once_buf_clear(&r->value);
    once__redis_lost_name(&r->value, flaw->scope);
    once__redis_put(r, r->value.data, r->value.len);
}

static int mend_listed(once_redis *r, const once_redis_flaw *flaw, bool *done, once_error *err)
{
    const char kind[] = {'i', flaw->index, 0};
    unsigned char id[16];
    once_redis_slot *slot;
    const int rc = take(r, flaw->id, flaw->stored, &slot, err);
    if (rc != ONCE_OK || !slot) return rc;
    once__redis_id_write(flaw->id, id);
    once__redis_undo(r, "ZREM", kind, flaw->consumer, 1);
    once__redis_put(r, id, sizeof id);
    *done = true;
    return ONCE_OK;
}

static void put_lane_command(once_redis *r, bool removes, once_hash lane, once_bytes member)
{
    unsigned char id[16];
    once__redis_id_write(lane, id);
    const once_bytes rest = {(const char *)id, sizeof id};
    if (removes) once__redis_undo(r, "ZREM", "o", rest, 1);
    else once__redis_do(r, "ZADD", "o", rest, 2);
    if (!removes) once__redis_put(r, "0", 1);
    once__redis_put(r, member.data, member.len);
}

/* Removes a member with bytes that once does not write. The right member exists, or was added before. */
static int mend_place(once_redis *r, const once_redis_flaw *flaw, bool *done, once_error *err)
{
    once_redis_slot *slot;
    int rc = take(r, flaw->id, flaw->stored, &slot, err);
    if (rc != ONCE_OK || !slot) return rc;
    rc = once__redis_lane_renew(r, flaw->lane, err);
    if (rc != ONCE_OK) return rc;
    put_lane_command(r, !once__redis_member_is(flaw->member, flaw->bytes), flaw->lane, flaw->bytes);
    *done = true;
    return ONCE_OK;
}

static int mend_lane(once_redis *r, const once_redis_flaw *flaw, bool *done, once_error *err)
{
    once_redis_slot *slot;
    int rc = ONCE_OK;
    *done = true;
    switch (flaw->kind) {
    case FLAW_STANDS:
        rc = take(r, flaw->id, flaw->stored, &slot, err);
        *done = rc == ONCE_OK && slot;
        if (*done && !once__redis_member_is(flaw->member, flaw->bytes))
            put_lane_command(r, true, flaw->lane, flaw->bytes);
        return *done ? once__redis_lane_drop(r, flaw->lane, flaw->member, err) : rc;
    case FLAW_OCCUPIED_TWICE: return once__redis_lane_vacate(r, flaw->lane, flaw->id, err); /* removes one of the two */
    case FLAW_OCCUPIED:
        rc = once__redis_slot(r, flaw->id, &slot, err);
        *done =
            rc == ONCE_OK && !(once_state_occupies(slot->entry.state) && once_hash_equal(slot->entry.lane, flaw->lane));
        if (*done) slot->assumed = r->assumed = true;
        return *done ? once__redis_lane_vacate(r, flaw->lane, flaw->id, err) : rc;
    default: return once__redis_lane_renew(r, flaw->lane, err);
    }
}

/* Entries that are still claimed in the group get a new one. */
static int mend_group(once_redis *r, const once_redis_flaw *flaw, bool *done, once_error *err)
{
    assert(flaw->kind == FLAW_COUNT || flaw->kind == FLAW_GROUP_ALONE);
    int rc = ONCE_OK;
    for (size_t at = 0; at + 16 <= flaw->stored.len && rc == ONCE_OK; at += 16) {
        once_redis_slot *slot;
        once_redis_open_head head;
        rc = once__redis_slot(r, once__redis_id_read(flaw->stored.data + at), &slot, err);
        if (rc != ONCE_OK || slot->dirty || !once__redis_is_own(r, &slot->entry) ||
            !once__redis_read_head(slot->stored, &head))
            continue;
        if (head.stamp == once__redis_group_stamp(flaw->group.data) && slot->index == ONCE_REDIS_CLAIMED_BARE)
            rc = write_anew(r, slot, err);
    }
    if (rc != ONCE_OK) return rc;
    once__redis_undo(r, "ZREM", "c", flaw->consumer, 1);
    once__redis_put(r, flaw->group.data, flaw->group.len);
    once__redis_undo(r, "HDEL", "g", flaw->consumer, 1);
    once__redis_put(r, flaw->group.data, flaw->group.len);
    *done = true;
    return ONCE_OK;
}

/* The commit is a conflict unless the letter is unchanged. */
static void expect_letter(once_redis *r, once_bytes key, const once_redis_flaw *flaw)
{
    assert(flaw->stored.len > 0);
    once_redis_values *to = &r->values[1];
    once__redis_encode(&to->keys, key.data, key.len);
    once__redis_encode(&to->was, flaw->stored.data,
                       flaw->stored.len < ONCE_REDIS_LETTER_HEAD ? flaw->stored.len : ONCE_REDIS_LETTER_HEAD);
    once__redis_encode(&to->now, "", 0);
    once__redis_encode(&to->how, "-", 1);
    to->n++;
}

static void mend_letter(once_redis *r, const once_redis_flaw *flaw)
{
    unsigned char unique[16];
    once__redis_id_write(flaw->unique, unique);
    switch (flaw->kind) {
    case FLAW_LETTER_NOT_LISTED:
        expect_letter(r, flaw->key, flaw);
        once__redis_do(r, "ZADD", "d", flaw->consumer, 2);
        put_number(r, flaw->number);
        put_number(r, flaw->number);
        break;
    case FLAW_LETTER_NO_UNIQUE:
        expect_letter(r, flaw->key, flaw);
        once__redis_expect_field(r, 'U', unique, sizeof unique, flaw->bytes);
        once__redis_do(r, "HSET", "U", (once_bytes){0}, 2);
        once__redis_put(r, unique, sizeof unique);
        put_number(r, flaw->number);
        break;
    case FLAW_LETTER_OF_OTHER:
        expect_letter(r, flaw->place, flaw);
        once__redis_undo(r, "ZREM", "d", flaw->consumer, 1);
        put_number(r, flaw->number);
        break;
    case FLAW_UNIQUE_GONE:
        if (flaw->replaced) break;
        once__redis_expect_field(r, 'U', unique, sizeof unique, flaw->stored);
        once__redis_undo(r, "HDEL", "U", (once_bytes){0}, 1);
        once__redis_put(r, unique, sizeof unique);
        break;
    default: /* workers may have written letters since; then the number becomes higher than needed */
        once__redis_do(r, "HINCRBY", "head", (once_bytes){0}, 2);
        once__redis_put(r, "letters", 7);
        put_number(r, flaw->number > r->letters ? flaw->number - r->letters : 0);
    }
}

static void mend_end(once_redis *r, const once_redis_flaw *flaw)
{
    assert(flaw->key.len > strlen(r->prefix));
    const size_t prefix = strlen(r->prefix);
    once__redis_do(r, "PERSIST", "", (once_bytes){flaw->key.data + prefix, flaw->key.len - prefix}, 0);
}

/* If Redis refuses a command in the middle of the commit script, a part of the script has already run (script.c). So
 * the right is tested here, and only for repairs, which alone need it. */
static int may_persist(once_redis *r, const mending *m, once_error *err)
{
    char refused[24];
    bool needed = false;
    for (size_t i = 0; i < m->flaws.n; i++) needed |= m->flaws.at[i].kind == FLAW_LIMITED;
    if (!needed) return ONCE_OK;
    once__redis_pipe_clear(&r->pipe);
    once__redis_command(&r->pipe, ONCE_REPLY_COUNT, 2);
    once__redis_text(&r->pipe, "PERSIST");
    once__redis_put_key(r, "trial", NULL, 0);
    const int rc = once__redis_exchange(r->link, &r->pipe, refused, err);
    if (rc != ONCE_E_DENIED || strcmp(refused, "NOPERM") != 0) return rc;
    once_error why = *err;
    return once_fail(
        err, rc, "the redis user needs the right to 'PERSIST', to remove the expiry of a key; see docs/redis.md: %s",
        why.text);
}

/* When a letter takes the unique of one that is gone, no removal may follow: it would remove the new number. */
static void note_replaced(mending *m)
{
    for (size_t i = 0; i < m->flaws.n; i++) {
        once_redis_flaw *gone = &m->flaws.at[i];
        for (size_t k = 0; k < m->flaws.n && gone->kind == FLAW_UNIQUE_GONE; k++)
            gone->replaced |=
                m->flaws.at[k].kind == FLAW_LETTER_NO_UNIQUE && once_hash_equal(m->flaws.at[k].unique, gone->unique);
    }
}

static int mend(once_redis *r, const once_redis_flaw *flaw, bool *done, once_error *err)
{
    assert(r->mends && once__redis_is_mended(flaw->kind));
    switch (flaw->kind) {
    case FLAW_LIMITED: mend_end(r, flaw); break;
    case FLAW_HEAD_SECRET:
        once__redis_do(r, "HSET", "head", (once_bytes){0}, 2);
        once__redis_put(r, "secret", 6);
        once__redis_put(r, ONCE_REDIS_NO_SECRET, sizeof ONCE_REDIS_NO_SECRET - 1);
        break;
    case FLAW_HEAD_COMMITS: break; /* the commit itself writes it */
    case FLAW_NO_NAME: mend_name(r, flaw); break;
    case FLAW_LISTED: return mend_listed(r, flaw, done, err);
    case FLAW_PLACE: return mend_place(r, flaw, done, err);
    case FLAW_STANDS:
    case FLAW_OCCUPIED:
    case FLAW_OCCUPIED_TWICE:
    case FLAW_LANE_ENDS:
    case FLAW_LANE_STAYS: return mend_lane(r, flaw, done, err);
    case FLAW_COUNT:
    case FLAW_GROUP_ALONE: return mend_group(r, flaw, done, err);
    case FLAW_LETTER_NOT_LISTED:
    case FLAW_LETTER_NO_UNIQUE:
    case FLAW_LETTER_OF_OTHER:
    case FLAW_UNIQUE_GONE:
    case FLAW_LAST_LETTER: mend_letter(r, flaw); break;
    default: return mend_entry(r, flaw, done, err);
    }
    *done = true;
    return ONCE_OK;
}

/* --- a part of the store --- */

/* *after: the SCAN cursor, and which keys are checked with it. */
static int look(once_redis_looking *l, mending *m, once_hash *after, bool *more, once_error *err)
{
    char cursor[24];
    int rc = ONCE_OK;
    (void)snprintf(cursor, sizeof cursor, "%llu", (unsigned long long)after->a);
    if (after->b == 0) rc = once__redis_look_at_types(l, err);
    l->what = after->b > ONCE_REDIS_LOOK_ENTRIES ? ONCE_REDIS_LOOK_OTHERS : ONCE_REDIS_LOOK_ENTRIES;
    do {
        if (rc == ONCE_OK) rc = once__redis_look_at_some(l, cursor, err);
    } while (rc == ONCE_OK && strcmp(cursor, "0") != 0 && m->flaws.n < STEP && m->bytes < STEP_BYTES);
    if (rc == ONCE_OK) rc = once__redis_look_end(l, err);
    *after = (once_hash){strtoull(cursor, NULL, 10), l->what};
    *more = after->a != 0 || l->what == ONCE_REDIS_LOOK_ENTRIES;
    if (after->a == 0) after->b = ONCE_REDIS_LOOK_OTHERS;
    return rc;
}

int once__redis_repair(once_backend *store, once_hash *after, uint64_t *repaired, bool *more, once_error *err)
{
    once_redis *r = (once_redis *)store;
    mending m = {.r = r};
    once_redis_looking l = {.r = r, .found = keep, .user = &m};
    if (!r->storage.in_tx)
        return once_fail(err, ONCE_E_USAGE, "a repair is done in a transaction, together with its audit record");
    int rc = once__redis_look_begin(&l, err);
    if (rc == ONCE_OK) rc = look(&l, &m, after, more, err);
    if (rc == ONCE_OK) rc = may_persist(r, &m, err);
    note_replaced(&m);
    r->mends = true;
    for (size_t i = 0; i < m.flaws.n && rc == ONCE_OK; i++) {
        bool done = false;
        once_error why;
        rc = mend(r, &m.flaws.at[i], &done, &why);
        if (rc == ONCE_E_CORRUPT)
            rc = ONCE_OK; /* what it belongs to cannot be read: this one stays, the others are repaired */
        else if (rc != ONCE_OK) (void)once_fail(err, rc, "%s", why.text);
        else *repaired += done;
    }
    r->mends = false;
    once__redis_look_release(&l);
    once_arena_release(&m.arena);
    free(m.flaws.at);
    return rc;
}
