/* Lists for operators: entries of a state, dead letters, audit records. A page is read before the visitor sees it. It
 * is no snapshot: entries may change while pages are read. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/redis/index.h"

#include "base/banned.h"

enum { FEW = 16, LETTERS_MAX = 512 }; /* values that are read at once: at first, and at most */

typedef struct listing {
    once_redis *r;
    once_bytes consumer;
    once_state state;
    int64_t now_ms;
    once_entry_visit *visit;
    void *user;
    bool ended;
} listing;

/* Visits the entries that are still in the state. Adds up the size of the values in `bytes`. */
static int show(listing *list, const once_hash *ids, size_t n, size_t *bytes, once_error *err)
{
    once_redis *r = list->r;
    once_arena arena = {0}, one = {0};
    int rc = once__redis_ask_entries(r, ids, n, err);
    once_bytes *values = once_arena_new(&arena, once_bytes, n);
    if (!values) rc = once__redis_nomem(err);
    *bytes = 0;
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        const once_bytes value = once__reply_at(r->pipe.replies[0], i);
        *bytes += value.len;
        if (value.len && !once_arena_copy(&arena, value, &values[i])) rc = once__redis_nomem(err);
    }
    for (size_t i = 0; i < n && rc == ONCE_OK && !list->ended; i++) {
        once_entry entry;
        if (!values[i].len) continue;
        once_arena_reset(&one);
        rc = once__redis_read_value(r, values[i], ids[i], &entry, &one, err);
        if (rc == ONCE_OK && !list->visit(list->user, &entry)) list->ended = true;
    }
    once_arena_release(&one);
    once_arena_release(&arena);
    return rc;
}

/* The value of an entry holds its message. So few are read at first, and never more than fit into memory. */
static int show_all(listing *list, const once_hash *ids, size_t n, once_error *err)
{
    int rc = ONCE_OK;
    for (size_t at = 0, step = FEW, count; at < n && rc == ONCE_OK && !list->ended; at += count) {
        size_t bytes;
        count = n - at < step ? n - at : step;
        rc = show(list, ids + at, count, &bytes, err);
        step = once__redis_next_page(step, count, bytes, ONCE_REDIS_PAGE);
    }
    return rc;
}

static int list_open(listing *list, once_error *err)
{
    assert(!once_state_finished(list->state));
    once_hash *ids = NULL;
    size_t n = 0;
    int rc = once__redis_open_ids(list->r, list->consumer, list->state, list->now_ms, &ids, &n, err);
    if (rc == ONCE_OK) rc = show_all(list, ids, n, err);
    free(ids);
    return rc;
}

static int list_finished(listing *list, once_error *err)
{
    assert(once_state_finished(list->state));
    enum { SCAN_MAX = ONCE_REDIS_PAGE * 16 };
    ONCE_REDIS_LIST(once_hash) all = {0};
    once_hash *page = calloc(SCAN_MAX, sizeof *page);
    char cursor[24] = "0";
    int rc = page ? ONCE_OK : once__redis_nomem(err);
    do {
        size_t n = 0;
        if (rc == ONCE_OK) rc = once__redis_scan_entries(list->r, cursor, page, SCAN_MAX, &n, err);
        for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
            if (!ONCE_REDIS_ROOM(all)) rc = once__redis_nomem(err);
            else all.at[all.n++] = page[i];
        }
    } while (rc == ONCE_OK && strcmp(cursor, "0") != 0);
    free(page);
    const size_t n = once__redis_sort_ids(all.at, all.n);
    if (rc == ONCE_OK) rc = show_all(list, all.at, n, err);
    free(all.at);
    return rc;
}

int once__redis_list(once_storage *storage, once_bytes consumer, once_state state, once_page *page,
                     once_entry_visit *visit, void *user, once_error *err)
{
    assert(once__redis_of(storage)->open && page->max > 0);
    (void)page; /* an index, or the whole key space, is read at once: its entries change while it is read */
    listing list = {once__redis_of(storage), consumer, state, storage->now_ms, visit, user, false};
    return once_state_finished(state) ? list_finished(&list, err) : list_open(&list, err);
}

/* The numbers of the next letters, up to `max`. */
static int next_letters(once_redis *r, once_bytes consumer, uint64_t after, size_t max, uint64_t *ids, size_t *n,
                        once_error *err)
{
    assert(max > 0);
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
            return once__redis_damaged_list(
                r, "d", consumer,
                err); /* a member that differs from its score: the next page would begin with it again */
        after = ids[i];
    }
    return ONCE_OK;
}

/* Visits a page of letters. They are copied first: a visitor may use the store, which frees the replies. Adds up the
 * size of the values in `bytes`. */
static int show_letters(once_redis *r, const uint64_t *ids, size_t n, once_letter_visit *visit, void *user, bool *ended,
                        size_t *bytes, once_error *err)
{
    assert(n > 0 && n <= LETTERS_MAX);
    once_arena arena = {0};
    once_letter *letters = once_arena_new(&arena, once_letter, n);
    int rc = letters ? once__redis_ask_letters(r, ids, n, err) : once__redis_nomem(err);
    *bytes = 0;
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        once_letter letter;
        once_hash unique;
        const once_bytes value = once__reply_at(r->pipe.replies[0], i);
        *bytes += value.len;
        if (!value.len) continue; /* dropped since */
        if (!once__redis_read_letter(value, ids[i], &letter, &unique)) rc = once__redis_damaged_letter(r, ids[i], err);
        else if (!once__letter_copy(&arena, &letter, &letters[i])) rc = once__redis_nomem(err);
    }
    for (size_t i = 0; i < n && rc == ONCE_OK && !*ended; i++)
        if (letters[i].id && !visit(user, &letters[i])) *ended = true;
    once_arena_release(&arena);
    return rc;
}

/* Visits letters that have only their numbers set. */
static int show_numbers(once_redis *r, once_bytes consumer, once_page *page, once_letter_visit *visit, void *user,
                        once_error *err)
{
    uint64_t ids[LETTERS_MAX];
    const size_t max = page->max < LETTERS_MAX ? page->max : LETTERS_MAX;
    size_t n = 0;
    const int rc = next_letters(r, consumer, page->number, max, ids, &n, err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        page->number = ids[i];
        if (!visit(user, &(once_letter){.id = ids[i]})) break;
    }
    page->more = rc == ONCE_OK && n == max;
    return rc;
}

/* The value of a letter holds its message. So as many are read at once as fit: more while they are small. */
int once__redis_letters(once_storage *storage, const once_letter_query *what, once_page *page, once_letter_visit *visit,
                        void *user, once_error *err)
{
    once_redis *r = once__redis_of(storage);
    assert(r->open && page->max > 0);
    if (what->only_ids) return show_numbers(r, what->consumer, page, visit, user, err);
    uint64_t ids[LETTERS_MAX];
    size_t step = FEW, n = step, bytes = 0, shown = 0;
    bool ended = false;
    int rc = ONCE_OK;
    while (rc == ONCE_OK && n == step && !ended && shown < page->max) {
        if (shown) step = once__redis_next_page(step, n, bytes, LETTERS_MAX);
        rc = next_letters(r, what->consumer, page->number, step, ids, &n, err);
        if (rc != ONCE_OK || n == 0) break;
        rc = show_letters(r, ids, n, visit, user, &ended, &bytes, err);
        page->number = ids[n - 1];
        shown += n;
    }
    page->more = rc == ONCE_OK && n == step && !ended;
    return rc;
}

int once__redis_audits(once_storage *storage, once_bytes consumer, once_page *page, once_audit_visit *visit, void *user,
                       once_error *err)
{
    once_redis *r = once__redis_of(storage);
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
            return once__redis_damaged_list(r, "a", consumer, err);
        page->number++;
        if (!visit(user, &audit)) break;
    }
    page->more = n == page->max;
    return ONCE_OK;
}
