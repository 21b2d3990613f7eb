/* What is asked about many entries: due ones, lists, counts. Outside of the verbs nothing here needs to be one moment.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/redis/redis.h"

#include "base/banned.h"

enum { PAGE = 256, LETTER_PAGE = 16, LETTER_PAGE_MAX = 512, LETTER_PAGE_BYTES = 1 << 20 };

static int damaged_list(once_redis *r, const char *kind, once_bytes consumer, once_error *err)
{
    once_buf_clear(&r->key);
    once_buf_puts(&r->key, r->prefix);
    once_buf_puts(&r->key, kind);
    if (consumer.len) once_buf_append(&r->key, consumer.data, consumer.len);
    return r->key.failed ? once__redis_nomem(err) : once__redis_damaged_key(r, once_buf_bytes(&r->key), err);
}

/* --- a page of an index --- */

static void ask_range(once_redis *r, char index, once_bytes consumer, int64_t first, int64_t last)
{
    const char kind[] = {'i', index, 0};
    once__redis_command(&r->pipe, ONCE_REPLY_TEXTS, 4);
    once__redis_text(&r->pipe, "ZRANGE");
    once__redis_put_key(r, kind, consumer.data, consumer.len);
    once__redis_number(&r->pipe, first);
    once__redis_number(&r->pipe, last);
}

/* Values of the ids in `reply`, in the pipe's first reply. */
static int ask_values(once_redis *r, const once_hash *ids, size_t n, once_error *err)
{
    once__redis_pipe_clear(&r->pipe);
    once__redis_command_for(&r->pipe, n, n + 1);
    once__redis_text(&r->pipe, "MGET");
    for (size_t i = 0; i < n; i++) once__redis_put_id_key(r, "e", ids[i]);
    return once__redis_ask(r, err);
}

/* --- due --- */

typedef struct ranked {
    double when;
    once_hash id;
    char index;
} ranked;

static int by_rank(const void *x, const void *y)
{
    const ranked *a = x, *b = y;
    if (a->when != b->when) return a->when < b->when ? -1 : 1;
    return once_hash_compare(a->id, b->id);
}

static void ask_due(once_redis *r, char index, once_bytes consumer, int64_t now_ms, size_t max)
{
    const char kind[] = {'i', index, 0};
    once__redis_command(&r->pipe, ONCE_REPLY_PAIRS, 8);
    once__redis_text(&r->pipe, "ZRANGEBYSCORE");
    once__redis_put_key(r, kind, consumer.data, consumer.len);
    once__redis_text(&r->pipe, "-inf");
    once__redis_number(&r->pipe, now_ms);
    once__redis_text(&r->pipe, "WITHSCORES");
    once__redis_text(&r->pipe, "LIMIT");
    once__redis_number(&r->pipe, 0);
    once__redis_number(&r->pipe, (int64_t)max);
}

int once__redis_due(once_shelf *shelf, once_bytes consumer, int64_t now_ms, size_t max, once_hash *out, size_t *n,
                    once_error *err)
{
    once_redis *r = once__redis_of(shelf);
    assert(r->open && max > 0);
    *n = 0;
    once__redis_pipe_clear(&r->pipe);
    ask_due(r, ONCE_REDIS_WAITING, consumer, now_ms, max);
    ask_due(r, ONCE_REDIS_CLAIMED, consumer, now_ms, max);
    int rc = once__redis_ask(r, err);
    if (rc != ONCE_OK) return rc;
    ranked *all = once_arena_alloc(&r->arena, (2 * max + 1) * sizeof *all);
    if (!all) return once__redis_nomem(err);
    size_t count = 0;
    for (size_t i = 0; i < 2; i++) {
        const redisReply *reply = r->pipe.replies[i];
        for (size_t k = 0; k < once__reply_n(reply) && count < 2 * max; k += 2) {
            const once_bytes id = once__reply_at(reply, k);
            double when;
            if (id.len != 16 || !once__reply_read_score(once__reply_at(reply, k + 1), &when))
                return damaged_list(r, i ? "iC" : "iW", consumer, err);
            all[count++] = (ranked){when, once__redis_id_read(id.data), i ? ONCE_REDIS_CLAIMED : ONCE_REDIS_WAITING};
        }
    }
    if (count) qsort(all, count, sizeof *all, by_rank);
    *n = count < max ? count : max;
    for (size_t i = 0; i < *n; i++) out[i] = all[i].id;
    rc = once__redis_prefetch(r, out, *n, NULL, 0, false, err);
    for (size_t i = 0; i < *n && rc == ONCE_OK; i++) {
        once_redis_slot *slot;
        rc = once__redis_slot(r, all[i].id, &slot, err);
        if (rc == ONCE_OK && !slot->dirty && slot->index != all[i].index)
            rc = once__redis_misplaced_in_index(r, all[i].index, consumer, all[i].id, err);
    }
    return rc;
}

/* --- open entries --- */

static int by_id(const void *x, const void *y)
{
    return once_hash_compare(*(const once_hash *)x, *(const once_hash *)y);
}

static size_t sort_ids(once_hash *ids, size_t n)
{
    size_t unique = 0;
    if (n) qsort(ids, n, sizeof *ids, by_id);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || !once_hash_equal(ids[i], ids[unique - 1])) ids[unique++] = ids[i];
    return unique;
}

typedef ONCE_REDIS_LIST(once_hash) id_list;

/* Adds the ids in `some`, 16 bytes each. */
static int add_ids(once_redis *r, id_list *list, once_bytes some, once_error *err)
{
    if (some.len == 0 || some.len % 16) return once__redis_damaged(r, "an index", err);
    for (size_t at = 0; at < some.len; at += 16) {
        if (!ONCE_REDIS_ROOM(*list)) return once__redis_nomem(err);
        list->at[list->n++] = once__redis_id_read(some.data + at);
    }
    return ONCE_OK;
}

static int add_all(once_redis *r, id_list *list, const redisReply *reply, once_error *err)
{
    int rc = ONCE_OK;
    for (size_t i = 0; i < once__reply_n(reply) && rc == ONCE_OK; i++)
        rc = add_ids(r, list, once__reply_at(reply, i), err);
    return rc;
}

/* Of groups and what was claimed in them: those whose leases end in [from, to]. */
static int add_groups(once_redis *r, id_list *list, const redisReply *reply, int64_t from_ms, int64_t to_ms,
                      once_error *err)
{
    int rc = ONCE_OK;
    for (size_t i = 0; i < once__reply_n(reply) && rc == ONCE_OK; i += 2) {
        const once_bytes group = once__reply_at(reply, i);
        if (group.len != 16) return once__redis_damaged(r, "an index", err);
        const int64_t due_ms = once__redis_group_due(group.data);
        if (due_ms >= from_ms && due_ms <= to_ms) rc = add_ids(r, list, once__reply_at(reply, i + 1), err);
    }
    return rc;
}

static void ask_claims(once_redis *r, once_bytes consumer, int64_t from_ms, int64_t to_ms)
{
    once__redis_command(&r->pipe, ONCE_REPLY_TEXTS, 4);
    once__redis_text(&r->pipe, "ZRANGEBYSCORE");
    once__redis_put_key(r, "iC", consumer.data, consumer.len);
    once__redis_number(&r->pipe, from_ms);
    if (to_ms == ONCE_NEVER) once__redis_text(&r->pipe, "+inf");
    else once__redis_number(&r->pipe, to_ms);
    once__redis_command(&r->pipe, ONCE_REPLY_PAIRS, 2);
    once__redis_text(&r->pipe, "HGETALL");
    once__redis_put_key(r, "g", consumer.data, consumer.len);
}

/* Entries that may be of the state at that time: they move while we look, and groups of claims also name those that
 * have left. Each once; free *out. A claim whose lease is over is unknown or waiting, which only its value tells. */
static int open_ids(once_redis *r, once_bytes consumer, once_state state, int64_t now_ms, once_hash **out, size_t *n,
                    once_error *err)
{
    static const struct {
        once_state state;
        const char indexes[3];
    } where[] = {{ONCE_STATE_WAITING, {ONCE_REDIS_WAITING, ONCE_REDIS_WAITING_BARE}},
                 {ONCE_STATE_UNKNOWN, {ONCE_REDIS_UNKNOWN}},
                 {ONCE_STATE_DEAD, {ONCE_REDIS_DEAD}}};
    const bool claimed = state == ONCE_STATE_CLAIMED,
               claims = claimed || state == ONCE_STATE_WAITING || state == ONCE_STATE_UNKNOWN;
    const int64_t from_ms = claimed && now_ms ? now_ms + 1 : 0, to_ms = claimed ? ONCE_NEVER : now_ms;
    id_list list = {0};
    once__redis_pipe_clear(&r->pipe);
    for (size_t i = 0; i < sizeof where / sizeof *where; i++)
        for (const char *index = where[i].indexes; where[i].state == state && *index; index++)
            ask_range(r, *index, consumer, 0, -1);
    const size_t indexes = r->pipe.n;
    if (claims) ask_claims(r, consumer, from_ms, to_ms);
    assert(r->pipe.n > 0);
    int rc = once__redis_ask(r, err);
    if (rc != ONCE_OK) return rc;
    redisReply *const *reply = r->pipe.replies;
    for (size_t i = 0; i < indexes + claims && rc == ONCE_OK; i++) rc = add_all(r, &list, reply[i], err);
    if (rc == ONCE_OK && claims) rc = add_groups(r, &list, reply[indexes + 1], from_ms, to_ms, err);
    if (rc != ONCE_OK) {
        free(list.at);
        return rc;
    }
    *out = list.at;
    *n = sort_ids(list.at, list.n);
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
int once__redis_by_token(once_shelf *shelf, once_bytes consumer, uint64_t token_a, size_t max, once_hash *out,
                         size_t *n, once_error *err)
{
    once_redis *r = once__redis_of(shelf);
    assert(r->open && max > 0);
    ONCE_REDIS_LIST(claim) found = {0};
    once_hash *ids = NULL;
    size_t n_ids = 0;
    int rc = open_ids(r, consumer, ONCE_STATE_CLAIMED, 0, &ids, &n_ids, err); /* whether or not its lease is over */
    *n = 0;
    for (size_t at = 0; at < n_ids && rc == ONCE_OK; at += PAGE) {
        const size_t count = n_ids - at < PAGE ? n_ids - at : PAGE;
        rc = ask_values(r, ids + at, count, err);
        for (size_t k = 0; k < count && rc == ONCE_OK; k++) {
            once_entry entry;
            once_redis_finished names;
            const once_bytes value = once__reply_at(r->pipe.replies[0], k);
            if (!value.len || !once__redis_read_entry(value, ids[at + k], &entry, &names))
                continue; /* gone meanwhile */
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

/* Claims whose lease is over, with a body or without. Groups also name those that have left them. */
static int lapsed_ids(once_redis *r, once_bytes consumer, int64_t now_ms, id_list *out, once_error *err)
{
    once__redis_pipe_clear(&r->pipe);
    ask_claims(r, consumer, 0, now_ms);
    int rc = once__redis_ask(r, err);
    if (rc == ONCE_OK) rc = add_all(r, out, r->pipe.replies[0], err);
    if (rc == ONCE_OK) rc = add_groups(r, out, r->pipe.replies[1], 0, now_ms, err);
    out->n = sort_ids(out->at, out->n);
    return rc;
}

int once__redis_lapsed(once_shelf *shelf, once_bytes consumer, int64_t now_ms, size_t max, once_hash *out, size_t *n,
                       once_error *err)
{
    once_redis *r = once__redis_of(shelf);
    assert(r->open && max > 0);
    id_list ids = {0};
    int rc = lapsed_ids(r, consumer, now_ms, &ids, err);
    *n = 0;
    for (size_t at = 0; at < ids.n && *n < max && rc == ONCE_OK; at += PAGE) {
        const size_t count = ids.n - at < PAGE ? ids.n - at : PAGE;
        rc = ask_values(r, ids.at + at, count, err);
        for (size_t k = 0; k < count && *n < max && rc == ONCE_OK; k++) {
            once_redis_open_head head;
            if (!once__redis_read_head(once__reply_at(r->pipe.replies[0], k), &head)) continue; /* gone meanwhile */
            if (head.state == ONCE_STATE_CLAIMED && head.hold) out[(*n)++] = ids.at[at + k];
        }
    }
    free(ids.at);
    return rc == ONCE_OK && *n ? once__redis_prefetch(r, out, *n, NULL, 0, false, err) : rc;
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
        const once_bytes value = once__reply_at(r->pipe.replies[0], i);
        if (value.len && !once_arena_copy(&arena, value, &values[i])) rc = once__redis_nomem(err);
    }
    for (size_t i = 0; i < n && rc == ONCE_OK && !list->ended; i++) {
        once_entry entry;
        if (!values[i].len) continue;
        rc = once__redis_read_value(r, values[i], ids[i], &entry, &arena, err);
        if (rc == ONCE_OK && !list->visit(list->user, &entry)) list->ended = true;
    }
    once_arena_release(&arena);
    return rc;
}

static int list_open(listing *list, once_error *err)
{
    once_hash *ids = NULL;
    size_t n = 0;
    int rc = open_ids(list->r, list->consumer, list->state, list->now_ms, &ids, &n, err);
    for (size_t at = 0; at < n && rc == ONCE_OK && !list->ended; at += PAGE)
        rc = show(list, ids + at, n - at < PAGE ? n - at : PAGE, err);
    free(ids);
    return rc;
}

/* Finished entries are in no index: the key space is walked. The server may name a key twice. */
static void pattern_of(const once_redis *r, const char *kind, char out[2 * ONCE_REDIS_NAME + 40])
{
    size_t n = 0;
    for (const char *c = r->prefix; *c; c++) {
        if (strchr("[]*?\\^-", *c)) out[n++] = '\\';
        out[n++] = *c;
    }
    memcpy(out + n, kind, strlen(kind));
    memcpy(out + n + strlen(kind), "*", 2);
}

void once__redis_ask_scan(once_redis *r, const char *kind, const char cursor[24], size_t count)
{
    char pattern[2 * ONCE_REDIS_NAME + 40];
    pattern_of(r, kind, pattern);
    once__redis_pipe_clear(&r->pipe);
    once__redis_command(&r->pipe, ONCE_REPLY_PAGE, 6);
    once__redis_text(&r->pipe, "SCAN");
    once__redis_text(&r->pipe, cursor);
    once__redis_text(&r->pipe, "MATCH");
    once__redis_text(&r->pipe, pattern);
    once__redis_text(&r->pipe, "COUNT");
    once__redis_number(&r->pipe, (int64_t)count);
}

/* A page of the keys of a kind. */
static int scan_keys(once_redis *r, const char *kind, char cursor[24], const redisReply **keys, once_error *err)
{
    once__redis_ask_scan(r, kind, cursor, PAGE);
    const int rc = once__redis_ask(r, err);
    if (rc != ONCE_OK) return rc;
    once__reply_cursor(r->pipe.replies[0], cursor);
    *keys = once__reply_keys(r->pipe.replies[0]);
    return ONCE_OK;
}

static int scan(once_redis *r, char cursor[24], once_hash *ids, size_t max, size_t *n, once_error *err)
{
    const redisReply *keys;
    const int rc = scan_keys(r, "e", cursor, &keys, err);
    if (rc != ONCE_OK) return rc;
    const size_t prefix = strlen(r->prefix) + 1;
    *n = 0;
    for (size_t i = 0; i < once__reply_n(keys) && *n < max; i++) {
        const once_bytes key = once__reply_at(keys, i);
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
    for (size_t at = 0; at < n && rc == ONCE_OK && !list->ended; at += PAGE)
        rc = show(list, all.at + at, n - at < PAGE ? n - at : PAGE, err);
    free(all.at);
    return rc;
}

int once__redis_list(once_shelf *shelf, once_bytes consumer, once_state state, once_page *page, once_entry_visit *visit,
                     void *user, once_error *err)
{
    assert(once__redis_of(shelf)->open && page->max > 0);
    (void)page; /* an index, or all keys, are read at once: they move while we look */
    listing list = {once__redis_of(shelf), consumer, state, shelf->now_ms, visit, user, false};
    return once_state_finished(state) ? list_finished(&list, err) : list_open(&list, err);
}

/* The numbers of the next letters, up to `max`. */
static int next_letters(once_redis *r, once_bytes consumer, uint64_t after, size_t max, uint64_t *ids, size_t *n,
                        once_error *err)
{
    char from[32];
    (void)snprintf(from, sizeof from, "(%llu", (unsigned long long)after);
    once__redis_pipe_clear(&r->pipe);
    once__redis_command(&r->pipe, ONCE_REPLY_TEXTS, 7);
    once__redis_text(&r->pipe, "ZRANGEBYSCORE");
    once__redis_put_key(r, "d", consumer.data, consumer.len);
    once__redis_text(&r->pipe, from);
    once__redis_text(&r->pipe, "+inf");
    once__redis_text(&r->pipe, "LIMIT");
    once__redis_number(&r->pipe, 0);
    once__redis_number(&r->pipe, (int64_t)max);
    const int rc = once__redis_ask(r, err);
    if (rc != ONCE_OK) return rc;
    const redisReply *reply = r->pipe.replies[0];
    *n = once__reply_n(reply) < max ? once__reply_n(reply) : max;
    for (size_t i = 0; i < *n; i++) {
        if (!once__reply_read_number(once__reply_at(reply, i), &ids[i]) || ids[i] <= after)
            return damaged_list(r, "d", consumer,
                                err); /* a member that is not its score: it would come again and again */
        after = ids[i];
    }
    return ONCE_OK;
}

/* Shows a page of letters. The engine keeps copies of them; these here are for when its page is full in the middle, and
 * whoever sees it then uses the store, which takes the replies away. Their size is in `bytes`. */
static int show_letters(once_redis *r, const uint64_t *ids, size_t n, once_letter_visit *visit, void *user, bool *ended,
                        size_t *bytes, once_error *err)
{
    once_arena arena = {0};
    once_letter *letters = once_arena_new(&arena, once_letter, n);
    int rc = letters ? once__redis_ask_letters(r, ids, n, err) : once__redis_nomem(err);
    *bytes = 0;
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        once_letter letter;
        once_hash unique;
        const once_bytes value = once__reply_at(r->pipe.replies[0], i);
        *bytes += value.len;
        if (!value.len) continue; /* dropped meanwhile */
        if (!once__redis_read_letter(value, ids[i], &letter, &unique)) rc = once__redis_damaged_letter(r, ids[i], err);
        else if (!once__letter_copy(&arena, &letter, &letters[i])) rc = once__redis_nomem(err);
    }
    for (size_t i = 0; i < n && rc == ONCE_OK && !*ended; i++)
        if (letters[i].id && !visit(user, &letters[i])) *ended = true;
    once_arena_release(&arena);
    return rc;
}

/* Only their numbers. */
static int show_numbers(once_redis *r, once_bytes consumer, once_page *page, once_letter_visit *visit, void *user,
                        once_error *err)
{
    uint64_t ids[LETTER_PAGE_MAX];
    const size_t max = page->max < LETTER_PAGE_MAX ? page->max : LETTER_PAGE_MAX;
    size_t n = 0;
    const int rc = next_letters(r, consumer, page->number, max, ids, &n, err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        page->number = ids[i];
        if (!visit(user, &(once_letter){.id = ids[i]})) break;
    }
    page->more = rc == ONCE_OK && n == max;
    return rc;
}

/* A letter is one value, so whoever wants more than its id gets all of it. So many are asked for at once as fit: more
 * while they are small. */
int once__redis_letters(once_shelf *shelf, const once_letter_query *what, once_page *page, once_letter_visit *visit,
                        void *user, once_error *err)
{
    once_redis *r = once__redis_of(shelf);
    assert(r->open && page->max > 0);
    if (what->only_ids) return show_numbers(r, what->consumer, page, visit, user, err);
    uint64_t ids[LETTER_PAGE_MAX];
    size_t step = LETTER_PAGE, n = step, bytes = 0, shown = 0;
    bool ended = false;
    int rc = ONCE_OK;
    while (rc == ONCE_OK && n == step && !ended && shown < page->max) {
        if (bytes && bytes < LETTER_PAGE_BYTES && step < LETTER_PAGE_MAX) step *= 2;
        else if (bytes > 4 * LETTER_PAGE_BYTES && step > LETTER_PAGE) step /= 2;
        rc = next_letters(r, what->consumer, page->number, step, ids, &n, err);
        if (rc != ONCE_OK || n == 0) break;
        rc = show_letters(r, ids, n, visit, user, &ended, &bytes, err);
        page->number = ids[n - 1];
        shown += n;
    }
    page->more = rc == ONCE_OK && n == step && !ended;
    return rc;
}

int once__redis_audits(once_shelf *shelf, once_bytes consumer, once_page *page, once_audit_visit *visit, void *user,
                       once_error *err)
{
    once_redis *r = once__redis_of(shelf);
    assert(r->open && page->max > 0);
    once__redis_pipe_clear(&r->pipe);
    once__redis_command(&r->pipe, ONCE_REPLY_TEXTS, 4);
    once__redis_text(&r->pipe, "LRANGE");
    once__redis_put_key(r, "a", consumer.data, consumer.len);
    once__redis_number(&r->pipe, (int64_t)page->number);
    once__redis_number(&r->pipe, (int64_t)(page->number + page->max - 1));
    const int rc = once__redis_ask(r, err);
    if (rc != ONCE_OK) return rc;
    const size_t n = once__reply_n(r->pipe.replies[0]);
    for (size_t i = 0; i < n; i++) {
        once_audit audit;
        if (!once__redis_read_audit(once__reply_at(r->pipe.replies[0], i), &audit))
            return damaged_list(r, "a", consumer, err);
        page->number++;
        if (!visit(user, &audit)) break;
    }
    page->more = n == page->max;
    return ONCE_OK;
}

/* --- counts --- */

static void ask_card(once_redis *r, const char *kind, once_bytes consumer)
{
    once__redis_command(&r->pipe, ONCE_REPLY_COUNT, 2);
    once__redis_text(&r->pipe, "ZCARD");
    once__redis_put_key(r, kind, consumer.data, consumer.len);
}

static void ask_count_above(once_redis *r, const char *kind, once_bytes consumer, int64_t score)
{
    char above[32];
    (void)snprintf(above, sizeof above, "(%lld", (long long)score);
    once__redis_command(&r->pipe, ONCE_REPLY_COUNT, 4);
    once__redis_text(&r->pipe, "ZCOUNT");
    once__redis_put_key(r, kind, consumer.data, consumer.len);
    once__redis_text(&r->pipe, above);
    once__redis_text(&r->pipe, "+inf");
}

/* The first one that is due after `above_ms`, or at any time: ONCE_NO_TIME. */
static void ask_first(once_redis *r, const char *kind, once_bytes consumer, int64_t above_ms)
{
    char above[32] = "-inf";
    if (above_ms != ONCE_NO_TIME) (void)snprintf(above, sizeof above, "(%lld", (long long)above_ms);
    once__redis_command(&r->pipe, ONCE_REPLY_PAIRS, 8);
    once__redis_text(&r->pipe, "ZRANGEBYSCORE");
    once__redis_put_key(r, kind, consumer.data, consumer.len);
    once__redis_text(&r->pipe, above);
    once__redis_text(&r->pipe, "+inf");
    once__redis_text(&r->pipe, "WITHSCORES");
    once__redis_text(&r->pipe, "LIMIT");
    once__redis_number(&r->pipe, 0);
    once__redis_number(&r->pipe, 1);
}

/* Whichever is sooner: it, or the first one of the reply. */
static int sooner(once_redis *r, const redisReply *reply, int64_t *due_ms, once_error *err)
{
    double due;
    if (once__reply_n(reply) == 0) return ONCE_OK;
    if (!once__reply_read_score(once__reply_at(reply, 1), &due) || due < 0)
        return once__redis_damaged(r, "an index", err);
    if (due < 9.2e18 && (int64_t)due < *due_ms) *due_ms = (int64_t)due;
    return ONCE_OK;
}

/* A claim whose lease is over, if it is still there; stamp 0: whatever its stamp. */
typedef struct lost_claim {
    once_hash id;
    uint64_t stamp;
} lost_claim;

typedef ONCE_REDIS_LIST(lost_claim) lost_list;

static int add_lost(once_redis *r, lost_list *list, once_bytes ids, uint64_t stamp, once_error *err)
{
    if (ids.len == 0 || ids.len % 16) return once__redis_damaged(r, "an index", err);
    for (size_t at = 0; at < ids.len; at += 16) {
        if (!ONCE_REDIS_ROOM(*list)) return once__redis_nomem(err);
        list->at[list->n++] = (lost_claim){once__redis_id_read(ids.data + at), stamp};
    }
    return ONCE_OK;
}

/* Whether they wait or are unknown stands in the first bytes of their values. They are few: whoever works comes back in
 * time. */
static int count_lost(once_redis *r, const lost_list *list, once_stats *out, once_error *err)
{
    int rc = ONCE_OK;
    for (size_t from = 0; from < list->n && rc == ONCE_OK; from += PAGE) {
        const size_t n = list->n - from < PAGE ? list->n - from : PAGE;
        once__redis_pipe_clear(&r->pipe);
        for (size_t i = from; i < from + n; i++) {
            once__redis_command(&r->pipe, ONCE_REPLY_TEXT, 4);
            once__redis_text(&r->pipe, "GETRANGE");
            once__redis_put_id_key(r, "e", list->at[i].id);
            once__redis_number(&r->pipe, 0);
            once__redis_number(&r->pipe, ONCE_REDIS_HEAD - 1);
        }
        rc = once__redis_ask(r, err);
        for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
            once_redis_open_head head;
            const uint64_t stamp = list->at[from + i].stamp;
            if (!once__redis_read_head(once__reply_bytes(r->pipe.replies[i]), &head) ||
                head.state != ONCE_STATE_CLAIMED)
                continue;
            if (stamp && head.stamp != stamp) continue; /* claimed anew, and in another group */
            if (head.hold) out->unknown++;
            else out->waiting++;
            if (!head.hold && head.has_message) out->wait_ms = 0; /* long since */
        }
    }
    return rc;
}

/* Claims without a body: those whose lease is not over count as such. */
static int count_groups(once_redis *r, once_bytes consumer, const redisReply *groups, int64_t now_ms, once_stats *out,
                        lost_list *lost, once_error *err)
{
    ONCE_REDIS_LIST(once_bytes) over = {0};
    int rc = ONCE_OK;
    for (size_t i = 0; i < once__reply_n(groups) && rc == ONCE_OK; i += 2) {
        once_bytes group = once__reply_at(groups, i);
        double left;
        if (group.len != 16 || !once__reply_read_score(once__reply_at(groups, i + 1), &left) || left < 0 ||
            left > UINT32_MAX) {
            rc = once__redis_damaged(r, "an index", err);
            break;
        }
        const int64_t due_ms = once__redis_group_due(group.data);
        if (due_ms <= now_ms) {
            if (!ONCE_REDIS_ROOM(over) || !once_arena_copy(&r->arena, group, &group)) rc = once__redis_nomem(err);
            else over.at[over.n++] = group;
            continue;
        }
        out->claimed += (uint64_t)left;
        if (due_ms < out->wait_ms) out->wait_ms = due_ms;
    }
    if (rc == ONCE_OK && over.n) {
        once__redis_pipe_clear(&r->pipe);
        once__redis_command_for(&r->pipe, over.n, over.n + 2);
        once__redis_text(&r->pipe, "HMGET");
        once__redis_put_key(r, "g", consumer.data, consumer.len);
        for (size_t i = 0; i < over.n; i++) once__redis_arg(&r->pipe, over.at[i].data, over.at[i].len);
        rc = once__redis_ask(r, err);
        for (size_t i = 0; i < over.n && rc == ONCE_OK; i++) {
            const once_bytes ids = once__reply_at(r->pipe.replies[0], i);
            if (ids.len) rc = add_lost(r, lost, ids, once__redis_group_stamp(over.at[i].data), err);
        }
    }
    free(over.at);
    return rc;
}

int once__redis_stats(once_shelf *shelf, once_bytes consumer, once_stats *out, once_error *err)
{
    once_redis *r = once__redis_of(shelf);
    assert(r->open);
    const int64_t now_ms = shelf->now_ms;
    once__redis_pipe_clear(&r->pipe);
    ask_card(r, "iW", consumer);
    ask_count_above(r, "iw", consumer, now_ms);
    ask_count_above(r, "iC", consumer, now_ms);
    ask_card(r, "iu", consumer);
    ask_card(r, "d", consumer);
    ask_first(r, "iW", consumer, ONCE_NO_TIME);
    ask_first(r, "iC", consumer, now_ms);
    ask_due(r, ONCE_REDIS_CLAIMED, consumer, now_ms, INT32_MAX);
    once__redis_command(&r->pipe, ONCE_REPLY_PAIRS, 5);
    once__redis_text(&r->pipe, "ZRANGE");
    once__redis_put_key(r, "c", consumer.data, consumer.len);
    once__redis_text(&r->pipe, "0");
    once__redis_text(&r->pipe, "-1");
    once__redis_text(&r->pipe, "WITHSCORES");
    int rc = once__redis_ask(r, err);
    if (rc != ONCE_OK) return rc;
    redisReply *const *reply = r->pipe.replies;
    *out = (once_stats){
        .waiting = once__reply_count(reply[0]) + once__reply_count(reply[1]),
        .claimed = once__reply_count(reply[2]),
        .unknown = once__reply_count(reply[3]),
        .dead = once__reply_count(reply[4]),
        .wait_ms = ONCE_NEVER,
    };
    for (size_t i = 5; i < 7 && rc == ONCE_OK; i++) rc = sooner(r, reply[i], &out->wait_ms, err);
    lost_list lost = {0};
    for (size_t i = 0; rc == ONCE_OK && i < once__reply_n(reply[7]); i += 2)
        rc = add_lost(r, &lost, once__reply_at(reply[7], i), 0, err);
    if (rc == ONCE_OK) rc = count_groups(r, consumer, reply[8], now_ms, out, &lost, err);
    if (rc == ONCE_OK) rc = count_lost(r, &lost, out, err);
    free(lost.at);
    return rc;
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

/* Of a sorted set by time: what is over, up to so many. One script, because somebody may bring such an entry back
 * between two commands. */
static void trim(once_redis *r, once_bytes consumer, int64_t now_ms, size_t max)
{
    static const char script[] =
        "local over = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])\n"
        "if #over > 0 then redis.call('ZREM', KEYS[1], unpack(over)) end\n"
        "return #over\n";
    once__redis_command(&r->pipe, ONCE_REPLY_COUNT, 6);
    once__redis_text(&r->pipe, "EVAL");
    once__redis_text(&r->pipe, script);
    once__redis_text(&r->pipe, "1");
    once__redis_put_key(r, "iw", consumer.data, consumer.len);
    once__redis_number(&r->pipe, now_ms);
    once__redis_number(&r->pipe, (int64_t)max);
}

/* The server drops by itself what has expired, but for the place of what waited without a body in its index. */
static int sweep_index(once_redis *r, size_t limit, once_sweep_result *out, once_error *err)
{
    enum { MOST = 1000 };
    const size_t max = limit < MOST ? limit : MOST;
    int64_t now_ms;
    once_arena arena = {0};
    int rc = now_of(r, &now_ms, err);
    if (rc != ONCE_OK) return rc;
    once__redis_pipe_clear(&r->pipe);
    once__redis_command(&r->pipe, ONCE_REPLY_TEXTS, 2);
    once__redis_text(&r->pipe, "SMEMBERS");
    once__redis_put_key(r, "w", NULL, 0);
    rc = once__redis_ask(r, err);
    const size_t n = rc == ONCE_OK ? once__reply_n(r->pipe.replies[0]) : 0;
    once_bytes *consumers = once_arena_new(&arena, once_bytes, n + 1);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++)
        if (!consumers || !once_arena_copy(&arena, once__reply_at(r->pipe.replies[0], i), &consumers[i]))
            rc = once__redis_nomem(err);
    if (rc == ONCE_OK && n) {
        once__redis_pipe_clear(&r->pipe);
        for (size_t i = 0; i < n; i++) trim(r, consumers[i], now_ms, max);
        rc = once__redis_ask(r, err);
        for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
            out->dropped += once__reply_count(r->pipe.replies[i]);
            out->more |= once__reply_count(r->pipe.replies[i]) == max;
        }
    }
    once_arena_release(&arena);
    return rc;
}

int once__redis_sweep(once_backend *store, size_t limit, once_sweep_result *out, once_error *err)
{
    once_redis *r = (once_redis *)store;
    *out = (once_sweep_result){0};
#ifdef ONCE_TEST_BUILD
    if (r->test_clock) return sweep_by_hand(r, limit, out, err);
#endif
    return sweep_index(r, limit, out, err);
}

/* --- older formats --- */

/* Writes them anew, as they are written today. */
static int rewrite(once_redis *r, const once_hash *ids, size_t n, once_error *err)
{
    int rc = r->shelf.shelf->begin(&r->shelf, true, err);
    if (rc != ONCE_OK) return rc;
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        once_redis_slot *slot;
        rc = once__redis_slot(r, ids[i], &slot, err);
        if (rc == ONCE_OK && slot->index == ONCE_REDIS_WAITING_BARE)
            rc = r->shelf.shelf->save(&r->shelf, &slot->entry, err);
    }
    if (rc == ONCE_OK) return r->shelf.shelf->commit(&r->shelf, err);
    r->shelf.shelf->rollback(&r->shelf);
    return rc;
}

static int rewrite_waiting(once_redis *r, once_bytes consumer, once_error *err)
{
    enum { TRIES = 20 };
    id_list list = {0};
    once__redis_pipe_clear(&r->pipe);
    ask_range(r, ONCE_REDIS_WAITING_BARE, consumer, 0, -1);
    int rc = once__redis_ask(r, err);
    if (rc == ONCE_OK) rc = add_all(r, &list, r->pipe.replies[0], err);
    for (size_t at = 0; at < list.n && rc == ONCE_OK; at += PAGE)
        for (int i = 0; i < TRIES; i++) {
            rc = rewrite(r, list.at + at, list.n - at < PAGE ? list.n - at : PAGE, err);
            if (rc != ONCE_E_ABORTED) break;
        }
    free(list.at);
    return rc;
}

int once__redis_upgrade(once_redis *r, once_error *err)
{
    once_arena arena = {0};
    ONCE_REDIS_LIST(once_bytes) consumers = {0};
    const size_t prefix = strlen(r->prefix) + 2;
    char cursor[24] = "0";
    int rc = ONCE_OK;
    do {
        const redisReply *keys = NULL;
        rc = scan_keys(r, "iw", cursor, &keys, err);
        for (size_t i = 0; rc == ONCE_OK && i < once__reply_n(keys); i++) {
            once_bytes key = once__reply_at(keys, i);
            if (key.len < prefix) continue; /* not what was asked for, so nothing of ours */
            key = (once_bytes){key.data + prefix, key.len - prefix};
            if (!ONCE_REDIS_ROOM(consumers) || !once_arena_copy(&arena, key, &key)) rc = once__redis_nomem(err);
            else consumers.at[consumers.n++] = key;
        }
    } while (rc == ONCE_OK && strcmp(cursor, "0") != 0);
    for (size_t i = 0; i < consumers.n && rc == ONCE_OK; i++) rc = rewrite_waiting(r, consumers.at[i], err);
    free(consumers.at);
    once_arena_release(&arena);
    return rc;
}
