/* Dead letters in a transaction. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/redis/redis.h"

#include "base/banned.h"

static once_hash number_key(uint64_t id) { return (once_hash){0, id}; }
static bool was_dropped(once_redis *r, once_hash unique) { return once_table_get(&r->dropped_uniques, unique) != NULL; }
static bool number_was_dropped(once_redis *r, uint64_t id)
{
    return once_table_get(&r->dropped_map, number_key(id)) != NULL;
}

static bool note_dropped(once_redis *r, const once_redis_dropped *dropped)
{
    assert(r->writes);
    assert(!number_was_dropped(r, dropped->id));
    const size_t at = r->dropped.n;
    if (!ONCE_REDIS_ROOM(r->dropped) || !once_table_reserve(&r->dropped_map, at + 1) ||
        !once_table_reserve(&r->dropped_uniques, at + 1))
        return false;
    r->dropped.at[r->dropped.n++] = *dropped;
    (void)once_table_put_position(&r->dropped_map, number_key(dropped->id), at);
    (void)once_table_put_position(&r->dropped_uniques, dropped->unique, at);
    return true;
}

static int put_pending(once_redis *r, const once_letter *letter, once_hash unique, once_bytes stored, once_error *err)
{
    assert(r->writes);
    if (!ONCE_REDIS_ROOM(r->puts)) return once__redis_nomem(err);
    once_redis_letter *to = &r->puts.at[r->puts.n];
    *to = (once_redis_letter){.unique = unique};
    if (!once__letter_copy(&r->arena, letter, &to->letter)) return once__redis_nomem(err);
    if (stored.len && !once_arena_copy(&r->arena, stored, &to->stored)) return once__redis_nomem(err);
    r->puts.n++;
    return ONCE_OK;
}

static int count_pending(once_redis *r, once_redis_letter *kept, const once_letter *again, once_error *err)
{
    if (!once_hash_is_zero(again->entry)) return ONCE_OK;
    once__letter_again(&kept->letter, again);
    return once__letter_copy(&r->arena, &kept->letter, &kept->letter) ? ONCE_OK : once__redis_nomem(err);
}

/* Counts another delivery of a letter that the server has. */
static int count_stored(once_redis *r, once_bytes number, const once_letter *again, once_hash unique, once_error *err)
{
    assert(number.len > 0 && once_hash_is_zero(again->entry));
    once_letter kept;
    char text[24];
    if (number.len >= sizeof text) return once__redis_damaged(r, "a letter", err);
    memcpy(text, number.data, number.len);
    text[number.len] = 0;
    once__redis_pipe_clear(&r->pipe);
    once__redis_command(&r->pipe, ONCE_REPLY_VALUE, 2);
    once__redis_text(&r->pipe, "GET");
    once__redis_put_key(r, "L", text, strlen(text));
    const int rc = once__redis_ask(r, err);
    if (rc != ONCE_OK) return rc;
    const once_bytes value = once__reply_bytes(r->pipe.replies[0]);
    if (!value.len) return once__redis_conflict(r, err); /* dropped since */
    if (!once__redis_read_letter(value, strtoull(text, NULL, 10), &kept, &unique))
        return once__redis_damaged_letter(r, strtoull(text, NULL, 10), err);
    once__letter_again(&kept, again);
    return put_pending(r, &kept, unique, value, err);
}

int once__redis_letter_put(once_storage *storage, const once_letter *letter, once_hash unique, bool *fresh,
                           once_error *err)
{
    once_redis *r = once__redis_of(storage);
    assert(r->writes);
    unsigned char field[16];
    once__redis_id_write(unique, field);
    *fresh = false;
    for (size_t i = 0; i < r->puts.n; i++)
        if (once_hash_equal(r->puts.at[i].unique, unique)) return count_pending(r, &r->puts.at[i], letter, err);
    once__redis_pipe_clear(&r->pipe);
    once__redis_command(&r->pipe, ONCE_REPLY_VALUE, 3);
    once__redis_text(&r->pipe, "HGET");
    once__redis_put_key(r, "U", NULL, 0);
    once__redis_arg(&r->pipe, field, sizeof field);
    const int rc = once__redis_ask(r, err);
    if (rc != ONCE_OK) return rc;
    const once_bytes number = once__reply_bytes(r->pipe.replies[0]);
    *fresh = number.len == 0 || was_dropped(r, unique);
    if (!*fresh) return once_hash_is_zero(letter->entry) ? count_stored(r, number, letter, unique, err) : ONCE_OK;
    once__redis_expect_field(r, 'U', field, sizeof field, number);
    return put_pending(r, letter, unique, (once_bytes){0}, err);
}

/* The letter if it was read ahead; it may say that there is none. */
static const once_redis_ahead *find_ahead(once_redis *r, uint64_t id)
{
    for (size_t i = 0; i < r->ahead.n; i++) { /* the engine mostly asks in the order of reading */
        const once_redis_ahead *ahead = &r->ahead.at[(r->ahead_at + i) % r->ahead.n];
        if (ahead->id != id) continue;
        r->ahead_at = (size_t)(ahead - r->ahead.at);
        return ahead;
    }
    return NULL;
}

static int find_letter(once_redis *r, uint64_t id, once_letter *out, once_hash *unique, bool *found, once_error *err)
{
    assert(r->open);
    char number[24];
    const int len = snprintf(number, sizeof number, "%llu", (unsigned long long)id);
    *found = false;
    if (number_was_dropped(r, id)) return ONCE_OK;
    for (size_t i = 0; i < r->puts.n; i++) { /* as this transaction has counted it */
        if (r->puts.at[i].letter.id != id) continue;
        *out = r->puts.at[i].letter;
        *unique = r->puts.at[i].unique;
        *found = true;
        return ONCE_OK;
    }
    const once_redis_ahead *ahead = find_ahead(r, id);
    once_bytes value = ahead ? ahead->value : (once_bytes){0};
    if (!ahead) {
        once__redis_pipe_clear(&r->pipe);
        once__redis_command(&r->pipe, ONCE_REPLY_VALUE, 2);
        once__redis_text(&r->pipe, "GET");
        once__redis_put_key(r, "L", number, (size_t)len);
        const int rc = once__redis_ask(r, err);
        if (rc != ONCE_OK) return rc;
        value = once__reply_bytes(r->pipe.replies[0]);
    }
    *found = value.len > 0;
    return !*found || once__redis_read_letter(value, id, out, unique) ? ONCE_OK
                                                                      : once__redis_damaged_letter(r, id, err);
}

int once__redis_letter_get(once_storage *storage, uint64_t id, once_letter *out, bool *found, once_arena *arena,
                           once_error *err)
{
    once_redis *r = once__redis_of(storage);
    once_letter letter;
    once_hash unique;
    const int rc = find_letter(r, id, &letter, &unique, found, err);
    if (rc != ONCE_OK || !*found) return rc;
    if (!once__letter_copy(arena, &letter, out)) return once__redis_nomem(err);
    out->identity = unique;
    return ONCE_OK;
}

int once__redis_letter_drop(once_storage *storage, uint64_t id, once_error *err)
{
    once_redis *r = once__redis_of(storage);
    assert(r->writes);
    once_letter letter;
    once_hash unique;
    bool found;
    char number[24];
    unsigned char field[16];
    const int len = snprintf(number, sizeof number, "%llu", (unsigned long long)id);
    const int rc = find_letter(r, id, &letter, &unique, &found, err);
    if (rc != ONCE_OK || !found) return rc;
    once_redis_dropped dropped = {.id = id, .unique = unique};
    if (!once_arena_copy(&r->arena, letter.scope.consumer, &dropped.consumer) || !note_dropped(r, &dropped))
        return once__redis_nomem(err);
    for (size_t i = 0; i < r->puts.n; i++) { /* a letter that was only counted is no longer written */
        if (r->puts.at[i].letter.id != id) continue;
        memmove(&r->puts.at[i], &r->puts.at[i + 1], (r->puts.n - i - 1) * sizeof *r->puts.at);
        r->puts.n--;
        break;
    }
    once__redis_id_write(unique, field);
    once__redis_expect_field(r, 'U', field, sizeof field,
                             (once_bytes){number, (size_t)len}); /* otherwise another worker has dropped it */
    return ONCE_OK;
}

/* --- many at once --- */

/* The entry that the letter belongs to; for a letter without one, the entry of its key. */
static once_hash entry_of(const once_redis *r, const once_letter *letter)
{
    if (!once_hash_is_zero(letter->entry) || letter->key.len == 0) return letter->entry;
    return once_key_id(r->storage.store.secret, &letter->scope, letter->key);
}

static void put_letter_key(once_redis *r, uint64_t id)
{
    char number[24];
    const int len = snprintf(number, sizeof number, "%llu", (unsigned long long)id);
    once__redis_put_key(r, "L", number, (size_t)len);
}

int once__redis_ask_letters(once_redis *r, const uint64_t *ids, size_t n, once_error *err)
{
    assert(n > 0);
    once__redis_pipe_clear(&r->pipe);
    once__redis_command_for(&r->pipe, n, n + 1);
    once__redis_text(&r->pipe, "MGET");
    for (size_t i = 0; i < n; i++) put_letter_key(r, ids[i]);
    return once__redis_ask(r, err);
}

/* Another process may have removed a letter before its entry was read, and that entry may have been processed since:
 * what was read of such a letter says nothing any more. From now on, whoever removes one changes its entry, and the
 * commit finds that out. */
static int look_again(once_redis *r, const uint64_t *ids, size_t n, once_error *err)
{
    size_t had = 0;
    assert(n == r->ahead.n);
    for (size_t i = 0; i < n; i++) had += r->ahead.at[i].value.len > 0;
    if (had == 0) return ONCE_OK;
    once__redis_pipe_clear(&r->pipe);
    once__redis_command(&r->pipe, ONCE_REPLY_COUNT, had + 1);
    once__redis_text(&r->pipe, "EXISTS");
    for (size_t i = 0; i < n; i++)
        if (r->ahead.at[i].value.len) put_letter_key(r, ids[i]);
    int rc = once__redis_ask(r, err);
    if (rc != ONCE_OK || once__reply_count(r->pipe.replies[0]) == had) return rc;
    rc = once__redis_ask_letters(r, ids, n, err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++)
        if (once__reply_at(r->pipe.replies[0], i).len == 0) r->ahead.at[i].value = (once_bytes){0};
    return rc;
}

int once__redis_letters_ahead(once_storage *storage, const uint64_t *ids, size_t n, once_error *err)
{
    once_redis *r = once__redis_of(storage);
    assert(r->open);
    once_hash *entries = once_arena_alloc(&r->arena, (n + 1) * sizeof *entries);
    size_t n_entries = 0;
    r->ahead.n = r->ahead_at = 0;
    if (!entries) return once__redis_nomem(err);
    if (n == 0) return ONCE_OK;
    int rc = once__redis_ask_letters(r, ids, n, err);
    if (rc != ONCE_OK) return rc;
    for (size_t i = 0; i < n; i++) {
        once_redis_ahead ahead = {.id = ids[i]};
        once_letter letter;
        once_hash unique;
        const once_bytes value = once__reply_at(r->pipe.replies[0], i);
        if (!ONCE_REDIS_ROOM(r->ahead) || (value.len && !once_arena_copy(&r->arena, value, &ahead.value)))
            return once__redis_nomem(err);
        r->ahead.at[r->ahead.n++] = ahead;
        if (value.len && once__redis_read_letter(ahead.value, ids[i], &letter, &unique))
            entries[n_entries++] = entry_of(r, &letter);
    }
    rc = once__redis_prefetch(r, entries, n_entries, NULL, 0, false, err);
    return rc == ONCE_OK ? look_again(r, ids, n, err) : rc;
}
