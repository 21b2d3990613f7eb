/* What is asked about many entries: due ones, lists, counts. Outside of the verbs nothing here needs to be one moment. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "store/redis/redis.h"

#include "base/banned.h"

enum { PAGE = 256, LETTER_PAGE = 16 };

/* --- a page of an index --- */

static void ask_range(once_redis *r, char index, once_bytes consumer, int64_t first, int64_t last)
{
    const char kind[] = {'i', index, 0};
    once__redis_command(&r->pipe, 4);
    once__redis_text(&r->pipe, "ZRANGE");
    once__redis_put_key(r, kind, consumer.data, consumer.len);
    once__redis_number(&r->pipe, first);
    once__redis_number(&r->pipe, last);
}

/* Values of the ids in `reply`, in the pipe's first reply. */
static int ask_values(once_redis *r, const once_hash *ids, size_t n, once_error *err)
{
    once__redis_pipe_clear(&r->pipe);
    once__redis_command(&r->pipe, n + 1);
    once__redis_text(&r->pipe, "MGET");
    for (size_t i = 0; i < n; i++) once__redis_put_id_key(r, "e", ids[i]);
    return once__redis_ask(r, err);
}

/* --- due --- */

typedef struct ranked {
    double when;
    once_hash id;
} ranked;

/* "1794763413433", "inf", or "9.2233720368547758e+18", which strtod would read as 9 in a locale with a decimal comma. */
static double score_of(const redisReply *reply)
{
    const once_bytes text = once__redis_bytes(reply);
    double score = 0;
    size_t digits = 0;
    for (; digits < text.len && text.data[digits] >= '0' && text.data[digits] <= '9'; digits++) score = score * 10 + (text.data[digits] - '0');
    if (digits == text.len && digits > 0 && digits <= 15) return score;
    once_json json = {0};
    const bool finite = once_json_parse(&json, text, NULL, NULL) == ONCE_OK && once_json_double(once_json_root(&json), &score);
    once_json_release(&json);
    return finite ? score : INFINITY;
}

static int by_rank(const void *x, const void *y)
{
    const ranked *a = x, *b = y;
    if (a->when != b->when) return a->when < b->when ? -1 : 1;
    return once_hash_compare(a->id, b->id);
}

static void ask_due(once_redis *r, char index, once_bytes consumer, int64_t now_ms, size_t max)
{
    const char kind[] = {'i', index, 0};
    once__redis_command(&r->pipe, 8);
    once__redis_text(&r->pipe, "ZRANGEBYSCORE");
    once__redis_put_key(r, kind, consumer.data, consumer.len);
    once__redis_text(&r->pipe, "-inf");
    once__redis_number(&r->pipe, now_ms);
    once__redis_text(&r->pipe, "WITHSCORES");
    once__redis_text(&r->pipe, "LIMIT");
    once__redis_number(&r->pipe, 0);
    once__redis_number(&r->pipe, (int64_t)max);
}

int once__redis_due(once_shelf *shelf, once_bytes consumer, int64_t now_ms, size_t max, once_hash *out, size_t *n, once_error *err)
{
    once_redis *r = once__redis_of(shelf);
    *n = 0;
    once__redis_pipe_clear(&r->pipe);
    ask_due(r, ONCE_REDIS_WAITING, consumer, now_ms, max);
    ask_due(r, ONCE_REDIS_CLAIMED, consumer, now_ms, max);
    const int rc = once__redis_ask(r, err);
    if (rc != ONCE_OK) return rc;
    ranked *all = once_arena_alloc(&r->arena, (2 * max + 1) * sizeof *all);
    if (!all) return once__redis_nomem(err);
    size_t count = 0;
    for (size_t i = 0; i < 2; i++) {
        const redisReply *reply = r->pipe.replies[i];
        for (size_t k = 0; k + 1 < reply->elements && count < 2 * max; k += 2) {
            const once_bytes id = once__redis_bytes(reply->element[k]);
            if (id.len != 16) return once__redis_damaged(r, "an index", err);
            all[count++] = (ranked){score_of(reply->element[k + 1]), once__redis_id_read(id.data)};
        }
    }
    qsort(all, count, sizeof *all, by_rank);
    *n = count < max ? count : max;
    for (size_t i = 0; i < *n; i++) out[i] = all[i].id;
    return once__redis_prefetch(r, out, *n, NULL, 0, false, err);
}

/* --- open entries --- */

static int by_id(const void *x, const void *y) { return once_hash_compare(*(const once_hash *)x, *(const once_hash *)y); }

static size_t sort_ids(once_hash *ids, size_t n)
{
    size_t unique = 0;
    if (n) qsort(ids, n, sizeof *ids, by_id);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || !once_hash_equal(ids[i], ids[unique - 1])) ids[unique++] = ids[i];
    return unique;
}

/* Entries that may be of the state: they move while we look, and groups of claims also name those that have left. Each once; free *out. */
static int open_ids(once_redis *r, once_bytes consumer, once_state state, once_hash **out, size_t *n, once_error *err)
{
    static const struct {
        once_state state;
        const char indexes[3];
    } where[] = {{ONCE_STATE_WAITING, {ONCE_REDIS_WAITING, ONCE_REDIS_WAITING_BARE}},
                 {ONCE_STATE_CLAIMED, {ONCE_REDIS_CLAIMED}},
                 {ONCE_STATE_UNKNOWN, {ONCE_REDIS_UNKNOWN}},
                 {ONCE_STATE_DEAD, {ONCE_REDIS_DEAD}}};
    once__redis_pipe_clear(&r->pipe);
    for (size_t i = 0; i < sizeof where / sizeof *where; i++)
        for (const char *index = where[i].indexes; where[i].state == state && *index; index++) ask_range(r, *index, consumer, 0, -1);
    if (state == ONCE_STATE_CLAIMED) {
        once__redis_command(&r->pipe, 2);
        once__redis_text(&r->pipe, "HVALS");
        once__redis_put_key(r, "g", consumer.data, consumer.len);
    }
    assert(r->pipe.n > 0);
    const int rc = once__redis_ask(r, err);
    if (rc != ONCE_OK) return rc;
    size_t room = 1, count = 0;
    for (size_t i = 0; i < r->pipe.n; i++)
        for (size_t k = 0; k < r->pipe.replies[i]->elements; k++) {
            const size_t len = once__redis_bytes(r->pipe.replies[i]->element[k]).len;
            if (len == 0 || len % 16) return once__redis_damaged(r, "an index", err);
            room += len / 16;
        }
    once_hash *ids = calloc(room, sizeof *ids);
    if (!ids) return once__redis_nomem(err);
    for (size_t i = 0; i < r->pipe.n; i++)
        for (size_t k = 0; k < r->pipe.replies[i]->elements; k++) {
            const once_bytes some = once__redis_bytes(r->pipe.replies[i]->element[k]);
            for (size_t at = 0; at < some.len; at += 16) ids[count++] = once__redis_id_read(some.data + at);
        }
    *out = ids;
    *n = sort_ids(ids, count);
    return ONCE_OK;
}

/* --- by token --- */

typedef struct claim {
    uint64_t token_b;
    once_hash id;
} claim;

static int by_number(const void *x, const void *y)
{
    const claim *a = x, *b = y;
    return a->token_b < b->token_b ? -1 : a->token_b > b->token_b;
}

/* A take whose reply was lost: rare, so all claims of the consumer are looked at. */
int once__redis_by_token(once_shelf *shelf, once_bytes consumer, uint64_t token_a, size_t max, once_hash *out, size_t *n, once_error *err)
{
    once_redis *r = once__redis_of(shelf);
    ONCE_REDIS_LIST(claim) found = {0};
    once_hash *ids = NULL;
    size_t n_ids = 0;
    int rc = open_ids(r, consumer, ONCE_STATE_CLAIMED, &ids, &n_ids, err);
    *n = 0;
    for (size_t at = 0; at < n_ids && rc == ONCE_OK; at += PAGE) {
        const size_t count = n_ids - at < PAGE ? n_ids - at : PAGE;
        rc = ask_values(r, ids + at, count, err);
        for (size_t k = 0; k < count && rc == ONCE_OK; k++) {
            once_entry entry;
            once_redis_finished names;
            const once_bytes value = once__redis_bytes(r->pipe.replies[0]->element[k]);
            if (!value.len || !once__redis_read_entry(value, ids[at + k], &entry, &names)) continue; /* gone meanwhile */
            if (entry.state != ONCE_STATE_CLAIMED || entry.token.a != token_a) continue;
            if (!ONCE_REDIS_ROOM(found)) rc = once__redis_nomem(err);
            else found.at[found.n++] = (claim){entry.token.b, ids[at + k]};
        }
    }
    if (found.n) qsort(found.at, found.n, sizeof *found.at, by_number);
    for (size_t i = 0; i < found.n && *n < max; i++) out[(*n)++] = found.at[i].id;
    free(found.at);
    free(ids);
    return rc == ONCE_OK ? once__redis_prefetch(r, out, *n, NULL, 0, false, err) : rc;
}

/* --- lists --- */

static int now_of(once_redis *r, int64_t *out, once_error *err)
{
    const bool inside = r->shelf.in_tx;
    if (!inside) {
        const int rc = r->shelf.shelf->begin(&r->shelf, false, err);
        if (rc != ONCE_OK) return rc;
        r->shelf.shelf->rollback(&r->shelf);
    }
    *out = r->shelf.now_ms;
    return ONCE_OK;
}

typedef struct listing {
    once_redis *r;
    once_bytes consumer;
    once_state state;
    int64_t now_ms;
    once_entry_visit *visit;
    void *user;
    bool ended;
} listing;

/* Shows those of the ids that are (still) of the state. */
static int show(listing *list, const once_hash *ids, size_t n, once_error *err)
{
    once_redis *r = list->r;
    once_arena arena = {0};
    int rc = n ? ask_values(r, ids, n, err) : ONCE_OK;
    once_bytes *values = once_arena_new(&arena, once_bytes, n);
    if (!values) rc = once__redis_nomem(err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        const once_bytes value = once__redis_bytes(r->pipe.replies[0]->element[i]);
        if (value.len && !once_arena_copy(&arena, value, &values[i])) rc = once__redis_nomem(err);
    }
    for (size_t i = 0; i < n && rc == ONCE_OK && !list->ended; i++) {
        once_entry entry;
        if (!values[i].len) continue;
        rc = once__redis_read_value(r, values[i], ids[i], &entry, &arena, err);
        if (rc != ONCE_OK || entry.state != list->state || once_entry_expired(&entry, list->now_ms)) continue;
        if (entry.scope.consumer.len != list->consumer.len || memcmp(entry.scope.consumer.data, list->consumer.data, list->consumer.len) != 0) continue;
        if (!list->visit(list->user, &entry)) list->ended = true;
    }
    once_arena_release(&arena);
    return rc;
}

static int list_open(listing *list, once_error *err)
{
    once_hash *ids = NULL;
    size_t n = 0;
    int rc = open_ids(list->r, list->consumer, list->state, &ids, &n, err);
    for (size_t at = 0; at < n && rc == ONCE_OK && !list->ended; at += PAGE) rc = show(list, ids + at, n - at < PAGE ? n - at : PAGE, err);
    free(ids);
    return rc;
}

/* Finished entries are in no index: the key space is walked. The server may name a key twice. */
static bool pattern_of(const once_redis *r, char out[2 * ONCE_REDIS_NAME + 40])
{
    size_t n = 0;
    for (const char *c = r->prefix; *c; c++) {
        if (strchr("[]*?\\^-", *c)) out[n++] = '\\';
        out[n++] = *c;
    }
    memcpy(out + n, "e*", 3);
    return true;
}

static int scan(once_redis *r, char cursor[24], once_hash *ids, size_t max, size_t *n, once_error *err)
{
    char pattern[2 * ONCE_REDIS_NAME + 40];
    pattern_of(r, pattern);
    once__redis_pipe_clear(&r->pipe);
    once__redis_command(&r->pipe, 6);
    once__redis_text(&r->pipe, "SCAN");
    once__redis_text(&r->pipe, cursor);
    once__redis_text(&r->pipe, "MATCH");
    once__redis_text(&r->pipe, pattern);
    once__redis_text(&r->pipe, "COUNT");
    once__redis_number(&r->pipe, PAGE);
    const int rc = once__redis_ask(r, err);
    if (rc != ONCE_OK) return rc;
    const redisReply *reply = r->pipe.replies[0];
    if (reply->elements != 2) return once__redis_damaged(r, "a reply", err);
    (void)snprintf(cursor, 24, "%s", reply->element[0]->str);
    const size_t prefix = strlen(r->prefix) + 1;
    *n = 0;
    for (size_t i = 0; i < reply->element[1]->elements && *n < max; i++) {
        const once_bytes key = once__redis_bytes(reply->element[1]->element[i]);
        if (key.len == prefix + 16) ids[(*n)++] = once__redis_id_read(key.data + prefix);
    }
    return ONCE_OK;
}

static int list_finished(listing *list, once_error *err)
{
    enum { SCAN_MAX = PAGE * 16 };
    ONCE_REDIS_LIST(once_hash) all = {0};
    once_hash *page = calloc(SCAN_MAX, sizeof *page);
    char cursor[24] = "0";
    int rc = page ? ONCE_OK : once__redis_nomem(err);
    do {
        size_t n = 0;
        if (rc == ONCE_OK) rc = scan(list->r, cursor, page, SCAN_MAX, &n, err);
        for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
            if (!ONCE_REDIS_ROOM(all)) rc = once__redis_nomem(err);
            else all.at[all.n++] = page[i];
        }
    } while (rc == ONCE_OK && strcmp(cursor, "0") != 0);
    free(page);
    const size_t n = sort_ids(all.at, all.n);
    for (size_t at = 0; at < n && rc == ONCE_OK && !list->ended; at += PAGE) rc = show(list, all.at + at, n - at < PAGE ? n - at : PAGE, err);
    free(all.at);
    return rc;
}

int once__redis_list(once_store *store, once_bytes consumer, once_state state, once_entry_visit *visit, void *user, once_error *err)
{
    listing list = {(once_redis *)store, consumer, state, 0, visit, user, false};
    const int rc = now_of(list.r, &list.now_ms, err);
    if (rc != ONCE_OK) return rc;
    return once_state_finished(state) ? list_finished(&list, err) : list_open(&list, err);
}

int once__redis_letters(once_store *store, once_bytes consumer, uint64_t after, once_letter_visit *visit, void *user, once_error *err)
{
    once_redis *r = (once_redis *)store;
    int rc = ONCE_OK;
    size_t n = LETTER_PAGE;
    bool ended = false;
    while (rc == ONCE_OK && n == LETTER_PAGE && !ended) {
        char from[32];
        uint64_t ids[LETTER_PAGE];
        (void)snprintf(from, sizeof from, "(%llu", (unsigned long long)after);
        once__redis_pipe_clear(&r->pipe);
        once__redis_command(&r->pipe, 7);
        once__redis_text(&r->pipe, "ZRANGEBYSCORE");
        once__redis_put_key(r, "d", consumer.data, consumer.len);
        once__redis_text(&r->pipe, from);
        once__redis_text(&r->pipe, "+inf");
        once__redis_text(&r->pipe, "LIMIT");
        once__redis_number(&r->pipe, 0);
        once__redis_number(&r->pipe, LETTER_PAGE);
        rc = once__redis_ask(r, err);
        if (rc != ONCE_OK) break;
        n = r->pipe.replies[0]->elements;
        for (size_t i = 0; i < n && i < LETTER_PAGE; i++) ids[i] = strtoull(r->pipe.replies[0]->element[i]->str, NULL, 10);
        if (n == 0) break;
        once__redis_pipe_clear(&r->pipe);
        once__redis_command(&r->pipe, n + 1);
        once__redis_text(&r->pipe, "MGET");
        for (size_t i = 0; i < n; i++) {
            char number[24];
            const int len = snprintf(number, sizeof number, "%llu", (unsigned long long)ids[i]);
            once__redis_put_key(r, "L", number, (size_t)len);
        }
        rc = once__redis_ask(r, err);
        once_arena arena = {0}; /* the visitor may use the store */
        once_letter letters[LETTER_PAGE];
        bool there[LETTER_PAGE] = {false};
        for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
            once_letter letter;
            once_hash unique;
            const once_bytes value = once__redis_bytes(r->pipe.replies[0]->element[i]);
            if (!value.len) continue; /* dropped meanwhile */
            if (!once__redis_read_letter(value, ids[i], &letter, &unique)) rc = once__redis_damaged(r, "a letter", err);
            else if (!once__letter_copy(&arena, &letter, &letters[i])) rc = once__redis_nomem(err);
            else there[i] = true;
        }
        for (size_t i = 0; i < n && rc == ONCE_OK && !ended; i++)
            if (there[i] && !visit(user, &letters[i])) ended = true;
        once_arena_release(&arena);
        after = ids[n - 1];
    }
    return rc;
}

int once__redis_audits(once_store *store, once_bytes consumer, once_audit_visit *visit, void *user, once_error *err)
{
    once_redis *r = (once_redis *)store;
    int rc = ONCE_OK;
    size_t n = PAGE;
    for (int64_t at = 0; rc == ONCE_OK && n == PAGE; at += PAGE) {
        once__redis_pipe_clear(&r->pipe);
        once__redis_command(&r->pipe, 4);
        once__redis_text(&r->pipe, "LRANGE");
        once__redis_put_key(r, "a", consumer.data, consumer.len);
        once__redis_number(&r->pipe, at);
        once__redis_number(&r->pipe, at + PAGE - 1);
        rc = once__redis_ask(r, err);
        n = rc == ONCE_OK ? r->pipe.replies[0]->elements : 0;
        for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
            once_audit audit;
            if (!once__redis_read_audit(once__redis_bytes(r->pipe.replies[0]->element[i]), &audit)) rc = once__redis_damaged(r, "an audit", err);
            else if (!visit(user, &audit)) return ONCE_OK;
        }
    }
    return rc;
}

/* --- counts --- */

static void ask_card(once_redis *r, const char *kind, once_bytes consumer)
{
    once__redis_command(&r->pipe, 2);
    once__redis_text(&r->pipe, "ZCARD");
    once__redis_put_key(r, kind, consumer.data, consumer.len);
}

static void ask_first(once_redis *r, const char *kind, once_bytes consumer)
{
    once__redis_command(&r->pipe, 8);
    once__redis_text(&r->pipe, "ZRANGEBYSCORE");
    once__redis_put_key(r, kind, consumer.data, consumer.len);
    once__redis_text(&r->pipe, "-inf");
    once__redis_text(&r->pipe, "+inf");
    once__redis_text(&r->pipe, "WITHSCORES");
    once__redis_text(&r->pipe, "LIMIT");
    once__redis_number(&r->pipe, 0);
    once__redis_number(&r->pipe, 1);
}

static int64_t first_due(const redisReply *reply)
{
    if (reply->elements < 2) return ONCE_NEVER;
    const double due = score_of(reply->element[1]);
    return isinf(due) || due >= 9.2e18 ? ONCE_NEVER : (int64_t)due;
}

int once__redis_stats(once_store *store, once_bytes consumer, once_stats *out, once_error *err)
{
    once_redis *r = (once_redis *)store;
    int64_t now_ms;
    int rc = now_of(r, &now_ms, err);
    if (rc != ONCE_OK) return rc;
    once__redis_pipe_clear(&r->pipe);
    ask_card(r, "iW", consumer);
    ask_card(r, "iw", consumer);
    ask_card(r, "iC", consumer);
    ask_card(r, "iu", consumer);
    ask_card(r, "d", consumer);
    ask_first(r, "iW", consumer);
    ask_first(r, "iC", consumer);
    once__redis_command(&r->pipe, 5);
    once__redis_text(&r->pipe, "ZRANGE");
    once__redis_put_key(r, "c", consumer.data, consumer.len);
    once__redis_text(&r->pipe, "0");
    once__redis_text(&r->pipe, "-1");
    once__redis_text(&r->pipe, "WITHSCORES");
    rc = once__redis_ask(r, err);
    if (rc != ONCE_OK) return rc;
    redisReply *const *reply = r->pipe.replies;
    *out = (once_stats){
        .waiting = (uint64_t)(reply[0]->integer + reply[1]->integer),
        .claimed = (uint64_t)reply[2]->integer,
        .unknown = (uint64_t)reply[3]->integer,
        .dead = (uint64_t)reply[4]->integer,
        .wait_ms = ONCE_NEVER,
    };
    int64_t next_ms = ONCE_NEVER;
    for (size_t i = 5; i < 7; i++)
        if (first_due(reply[i]) < next_ms) next_ms = first_due(reply[i]);
    for (size_t i = 0; i + 1 < reply[7]->elements; i += 2) { /* a claim without a body counts until its lease is over */
        const once_bytes group = once__redis_bytes(reply[7]->element[i]);
        if (group.len != 16) return once__redis_damaged(r, "an index", err);
        const int64_t due_ms = once__redis_group_due(group.data);
        if (due_ms <= now_ms) continue;
        out->claimed += strtoull(reply[7]->element[i + 1]->str, NULL, 10);
        if (due_ms < next_ms) next_ms = due_ms;
    }
    if (next_ms != ONCE_NEVER) out->wait_ms = next_ms > now_ms ? next_ms - now_ms : 0;
    return ONCE_OK;
}

/* --- sweep --- */

#ifdef ONCE_TEST_BUILD
/* The test's clock is not the server's: what the server would have dropped by itself is dropped here. */
static int sweep_by_hand(once_redis *r, size_t limit, once_sweep_result *out, once_error *err)
{
    enum { SCAN_MAX = PAGE * 16 };
    static once_hash ids[SCAN_MAX];
    size_t n;
    char cursor[24] = "0";
    int rc = ONCE_OK;
    do {
        rc = scan(r, cursor, ids, SCAN_MAX, &n, err);
        for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
            if (out->dropped == limit) {
                out->more = true;
                return ONCE_OK;
            }
            once_redis_slot *slot;
            rc = r->shelf.shelf->begin(&r->shelf, true, err);
            if (rc != ONCE_OK) break;
            rc = once__redis_slot(r, ids[i], &slot, err);
            const bool over = rc == ONCE_OK && once_entry_expired(&slot->entry, r->shelf.now_ms);
            if (over) {
                slot->entry.state = ONCE_STATE_ABSENT;
                rc = r->shelf.shelf->save(&r->shelf, &slot->entry, err);
            }
            if (rc == ONCE_OK) rc = r->shelf.shelf->commit(&r->shelf, err);
            else r->shelf.shelf->rollback(&r->shelf);
            if (rc == ONCE_OK && over) out->dropped++;
        }
    } while (rc == ONCE_OK && strcmp(cursor, "0") != 0);
    return rc;
}
#endif

/* The server drops what has expired by itself. */
int once__redis_sweep(once_store *store, size_t limit, once_sweep_result *out, once_error *err)
{
    *out = (once_sweep_result){0};
#ifdef ONCE_TEST_BUILD
    if (((once_redis *)store)->test_clock) return sweep_by_hand((once_redis *)store, limit, out, err);
#endif
    (void)store, (void)limit, (void)err;
    return ONCE_OK;
}
