/* How a check reads a store: names of keys, pages of keys and of their members, values of many ids. Everything is
 * copied into the arena of the page. */
#include <assert.h>
#include <string.h>

#include "store/redis/look.h"

#include "base/banned.h"

once_bytes once__look_copy(once_redis_looking *l, once_bytes bytes, bool *fine)
{
    once_bytes out = {0};
    if (bytes.len && !once_arena_copy(&l->arena, bytes, &out)) *fine = false;
    return out;
}

bool once__look_is_word(once_bytes rest, const char *word)
{
    return rest.len == strlen(word) && memcmp(rest.data, word, rest.len) == 0;
}

/* kind 0 is none of them, though strchr would find the NUL. */
bool once__look_one_of(const char *kinds, char kind) { return kind && strchr(kinds, kind); }

bool once__look_letter_number(once_bytes text, uint64_t *out)
{
    return text.len && text.data[0] != '0' && once__reply_read_number(text, out);
}

once_look_key once__look_key(const once_redis *r, once_bytes whole)
{
    const size_t prefix = strlen(r->prefix);
    once_look_key key = {.whole = whole};
    if (whole.len < prefix) return key; /* not a key of the store */
    once_bytes rest = {whole.data + prefix, whole.len - prefix};
    if (rest.len == 0) return key;
    const char kind = rest.data[0];
    if (once__look_is_word(rest, "head")) key.kind = 'h';
    else if (once__look_is_word(rest, "turn") || once__look_is_word(rest, "trial") ||
             once__look_is_word(rest, "testclock"))
        key.kind = 't';
    else if (once__look_one_of("elo", kind) && rest.len == 17) key.kind = kind;
    else if (once__look_one_of("nfUw", kind) && rest.len == 1) key.kind = kind;
    else if (kind == 'L' && once__look_letter_number((once_bytes){rest.data + 1, rest.len - 1}, &key.number))
        key.kind = kind;
    else if (kind == 'i' && rest.len > 1 && once__look_one_of("WwCux", rest.data[1])) key.kind = kind;
    else if (once__look_one_of("cgda", kind)) key.kind = kind;
    if (once__look_one_of("elo", kind) && key.kind == kind) key.id = once__redis_id_read(rest.data + 1);
    const size_t before = kind == 'i' ? 2 : 1;
    if (once__look_one_of("icgda", kind) && key.kind == kind)
        key.consumer = (once_bytes){rest.data + before, rest.len - before};
    return key;
}

static const char *type_of(char kind)
{
    if (once__look_one_of("hnfUg", kind)) return "hash";
    if (once__look_one_of("iocd", kind)) return "zset";
    return kind == 'w' ? "set" : kind == 'a' ? "list" : "string";
}

bool once__look_is_type(char kind, once_bytes type)
{
    assert(kind);
    return once__look_is_word(type, type_of(kind));
}

int once__look_found(once_redis_looking *l, once_redis_flaw flaw, once_error *err)
{
    assert(flaw.kind < FLAW_KINDS);
    return l->found(l, &flaw, err);
}

int once__look_found_at(once_redis_looking *l, once_redis_flaw_kind kind, once_bytes key, once_bytes in_words,
                        once_error *err)
{
    return once__look_found(l, (once_redis_flaw){.kind = kind, .key = key, .in_words = in_words}, err);
}

int once__look_ask(once_redis_looking *l, once_error *err)
{
    assert(once__look_pipe(l)->n > 0);
    char refused[24];
    const int rc = once__redis_exchange(l->r->link, &l->r->pipe, refused, err);
    if (rc == ONCE_E_DENIED && strcmp(refused, "NOPERM") == 0) {
        once_error why = *err;
        return once_fail(
            err, rc,
            "to read the whole store this user of redis needs rights that docs/redis.md names, 'SCAN' among them: %s",
            why.text);
    }
    return rc;
}

int once__look_scan(once_redis_looking *l, char cursor[24], size_t count, once_bytes **keys, size_t *n, once_error *err)
{
    assert(count > 0);
    once_redis *r = l->r;
    once_arena_reset(&l->arena);
    once__redis_ask_scan(r, "", cursor, count);
    const int rc = once__look_ask(l, err);
    if (rc != ONCE_OK) return rc;
    const redisReply *page = once__reply_keys(r->pipe.replies[0]);
    bool fine = true;
    once__reply_cursor(r->pipe.replies[0], cursor);
    *n = once__reply_n(page);
    *keys = once_arena_new(&l->arena, once_bytes, *n + 1);
    for (size_t i = 0; i < *n && *keys; i++) (*keys)[i] = once__look_copy(l, once__reply_at(page, i), &fine);
    return *keys && fine ? ONCE_OK : once__redis_nomem(err);
}

void once__look_ask_key(once_redis_looking *l, once_reply_kind kind, const char *command, once_bytes key)
{
    once__redis_command(once__look_pipe(l), kind, 2);
    once__redis_text(once__look_pipe(l), command);
    once__redis_arg(once__look_pipe(l), key.data, key.len);
}

void once__look_ask_in(once_redis_looking *l, const char *command, const char *kind, once_bytes rest,
                       const void *member, size_t len)
{
    assert(kind[0]);
    once__redis_command(once__look_pipe(l), ONCE_REPLY_VALUE, 3);
    once__redis_text(once__look_pipe(l), command);
    once__redis_put_key(l->r, kind, rest.data, rest.len);
    once__redis_arg(once__look_pipe(l), member, len);
}

void once__look_ask_id_in(once_redis_looking *l, const char *command, const char *kind, once_hash key,
                          const void *member, size_t len)
{
    unsigned char bytes[16];
    once__redis_id_write(key, bytes);
    once__look_ask_in(l, command, kind, (once_bytes){(const char *)bytes, sizeof bytes}, member, len);
}

void once__look_begin_values(once_redis_looking *l, size_t n)
{
    assert(n > 0);
    once__redis_command(once__look_pipe(l), ONCE_REPLY_STRINGS, n + 1);
    once__look_pipe(l)->asked[once__look_pipe(l)->n - 1].n = n;
    once__redis_text(once__look_pipe(l), "MGET");
}

void once__look_ask_value(once_redis_looking *l, const char *kind, once_hash id)
{
    once__look_begin_values(l, 1);
    once__redis_put_id_key(l->r, kind, id);
}

void once__look_ask_range(once_redis_looking *l, once_bytes key, int64_t last)
{
    once__redis_command(once__look_pipe(l), ONCE_REPLY_TEXT, 4);
    once__redis_text(once__look_pipe(l), "GETRANGE");
    once__redis_arg(once__look_pipe(l), key.data, key.len);
    once__redis_number(once__look_pipe(l), 0);
    once__redis_number(once__look_pipe(l), last);
}

int once__look_read_ids(once_redis_looking *l, const char *kind, const once_hash *ids, size_t n, once_bytes *out,
                        once_error *err)
{
    bool fine = true;
    if (n == 0) return ONCE_OK;
    once__redis_pipe_clear(once__look_pipe(l));
    once__look_begin_values(l, n);
    for (size_t i = 0; i < n; i++) once__redis_put_id_key(l->r, kind, ids[i]);
    const int rc = once__look_ask(l, err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        out[i] = once__look_copy(l, once__reply_at(once__look_pipe(l)->replies[0], i), &fine);
        l->bytes += out[i].len;
    }
    return rc != ONCE_OK || fine ? rc : once__redis_nomem(err);
}

once_bytes once__look_id_key(once_redis_looking *l, const char *kind, once_hash id)
{
    char key[ONCE_REDIS_KEY];
    bool fine = true;
    return once__look_copy(l, (once_bytes){key, once__redis_id_key(l->r, kind, id, key)}, &fine);
}

bool once__look_ends_well(const once_redis_looking *l, int64_t expires_ms, int64_t left_ms, int64_t now_ms)
{
    enum { SLACK_MS = 5000 };
    if (once__redis_test_clock(l->r)) return true;
    if (expires_ms >= INT64_MAX / 4) return left_ms == -1;
    const int64_t expected_ms = expires_ms - now_ms;
    return left_ms >= 0 && left_ms >= expected_ms - SLACK_MS && left_ms <= expected_ms + SLACK_MS;
}

bool once__look_names_id(once_bytes ids, once_hash id)
{
    for (size_t at = 0; at + 16 <= ids.len; at += 16)
        if (once_hash_equal(once__redis_id_read(ids.data + at), id)) return true;
    return false;
}

int once__look_for_empty(once_redis_looking *l, const char *kind, const once_hash *ids, const once_bytes *values,
                         size_t n, once_error *err)
{
    once__redis_pipe_clear(once__look_pipe(l));
    size_t asked = 0;
    for (size_t i = 0; i < n; i++) {
        if (values[i].len) continue;
        once__look_ask_key(l, ONCE_REPLY_COUNT, "STRLEN", once__look_id_key(l, kind, ids[i]));
        once__look_ask_key(l, ONCE_REPLY_COUNT, "EXISTS", once__look_id_key(l, kind, ids[i]));
        asked++;
    }
    int rc = asked ? once__look_ask(l, err) : ONCE_OK;
    for (size_t i = 0, at = 0; i < n && asked && rc == ONCE_OK; i++) {
        if (values[i].len) continue;
        const bool empty = once__reply_count(once__look_pipe(l)->replies[at]) == 0 &&
                           once__reply_count(once__look_pipe(l)->replies[at + 1]) == 1;
        at += 2;
        if (empty) rc = once__look_found_at(l, FLAW_EMPTY, once__look_id_key(l, kind, ids[i]), (once_bytes){0}, err);
    }
    return rc;
}

/* A page of a sorted set, a hash or a set, as pairs; they are copied. */
static int scan_pairs(once_redis_looking *l, const char *command, once_bytes key, char cursor[24], once_bytes **out,
                      size_t *n, once_error *err)
{
    bool fine = true;
    once__redis_pipe_clear(once__look_pipe(l));
    once__redis_command(once__look_pipe(l), ONCE_REPLY_PAGE, 5);
    once__redis_text(once__look_pipe(l), command);
    once__redis_arg(once__look_pipe(l), key.data, key.len);
    once__redis_text(once__look_pipe(l), cursor);
    once__redis_text(once__look_pipe(l), "COUNT");
    once__redis_number(once__look_pipe(l), ONCE_LOOK_PAGE);
    const int rc = once__look_ask(l, err);
    if (rc != ONCE_OK) return rc;
    const redisReply *page = once__reply_keys(once__look_pipe(l)->replies[0]);
    once__reply_cursor(once__look_pipe(l)->replies[0], cursor);
    *n = once__reply_n(page) / 2;
    *out = once_arena_new(&l->arena, once_bytes, 2 * *n + 1);
    for (size_t i = 0; i < 2 * *n && *out; i++) (*out)[i] = once__look_copy(l, once__reply_at(page, i), &fine);
    return *out && fine ? ONCE_OK : once__redis_nomem(err);
}

/* All members of a key. The memory of a page is freed before the next one. */
int once__look_each_pair(once_redis_looking *l, const once_look_key *at, const char *command, once_look_pairs *look,
                         once_error *err)
{
    char cursor[24] = "0";
    once_arena page = {0}, whole = l->arena;
    int rc;
    l->arena = page;
    l->part = 0; /* the size of values in another list says nothing about this one */
    do {
        once_bytes *pairs;
        size_t n;
        once_arena_reset(&l->arena);
        rc = scan_pairs(l, command, at->whole, cursor, &pairs, &n, err);
        if (rc == ONCE_OK && n) rc = look(l, at, pairs, n, err);
    } while (rc == ONCE_OK && strcmp(cursor, "0") != 0);
    once_arena_release(&l->arena);
    l->arena = whole;
    return rc;
}

int once__look_in_parts(once_redis_looking *l, const once_look_key *key, const once_bytes *pairs, size_t n,
                        once_look_pairs *look, once_error *err)
{
    assert(n > 0);
    const once_arena whole = l->arena;
    int rc = ONCE_OK;
    for (size_t at = 0, part; at < n && rc == ONCE_OK; at += part) {
        const size_t most = l->part ? l->part : ONCE_LOOK_FEW;
        part = n - at < most ? n - at : most;
        l->arena = (once_arena){0};
        l->bytes = 0;
        rc = look(l, key, pairs + 2 * at, part, err);
        once_arena_release(&l->arena);
        l->part = once__redis_next_page(most, part, l->bytes, ONCE_LOOK_PAGE);
    }
    l->arena = whole;
    return rc;
}
