/* Lists of entries, letters and audits, and counts.
 *
 * The engine reads a list in pages. In a store on a server each page has its own transaction, and its items are kept in
 * memory until that is over: so memory is bounded, and no transaction is open while the visitor runs. The storages of
 * sqlite and memory show everything in one transaction: there the visitor gets each page as soon as it is full, and the
 * last page after the transaction. Meanwhile the visitor may read with the same handle, because a memory store has no
 * second one. */
#include <assert.h>
#include <stdlib.h>

#include "base/no_memory.h"
#include "store/engine/parts.h"

#include "base/banned.h"

/* Pages grow: a visitor that ends the list early did not need many. */
enum { PAGE = 16, PAGE_MAX = 256, HEADS_MAX = 4096, PAGE_BYTES = 1 << 20 };

/* Items that the storage has shown and the visitor has not: of one of three kinds. */
typedef struct pages {
    once_entry_visit *on_entry; /* one of these three is set */
    once_letter_visit *on_letter;
    once_audit_visit *on_audit;
    void *user; /* of the visitor */
    once_bytes consumer;
    once_state state;
    int64_t now_ms;
    union {
        once_entry *entries;
        once_letter *letters;
        once_audit *audits;
    } kept;
    size_t n, room, bytes;
    once_arena arena;
    bool ended;     /* the visitor ended the list */
    bool no_memory; /* for the next item */
} pages;

static void show_kept(pages *p)
{
    assert(p->n <= p->room);
    for (size_t i = 0; i < p->n && !p->ended; i++)
        p->ended = !(p->on_entry    ? p->on_entry(p->user, &p->kept.entries[i])
                     : p->on_letter ? p->on_letter(p->user, &p->kept.letters[i])
                                    : p->on_audit(p->user, &p->kept.audits[i]));
    p->n = p->bytes = 0;
    once_arena_reset(&p->arena);
}

/* Makes room for one more item with so many bytes beside itself. */
static bool make_room(pages *p, size_t bytes)
{
    assert(p->n <= p->room);
    if (p->n == p->room || p->bytes + bytes > PAGE_BYTES) show_kept(p);
    p->bytes += bytes;
    return !p->ended;
}

static bool keep_entry(void *user, const once_entry *entry)
{
    pages *p = user;
    once_entry seen = *entry;
    once_entry_look(&seen, p->now_ms);
    if (seen.state != p->state || !once_bytes_equal(seen.scope.consumer, p->consumer)) return true;
    if (!make_room(p, seen.message.body.len + seen.message.headers.len + seen.result.len)) return false;
    assert(p->n < p->room);
    p->no_memory = !once__entry_copy(&p->arena, &seen, &p->kept.entries[p->n]);
    p->n += !p->no_memory;
    return !p->no_memory;
}

static bool keep_letter(void *user, const once_letter *letter)
{
    pages *p = user;
    if (!make_room(p, letter->message.body.len + letter->message.headers.len)) return false;
    assert(p->n < p->room);
    p->no_memory = !once__letter_copy(&p->arena, letter, &p->kept.letters[p->n]);
    p->n += !p->no_memory;
    return !p->no_memory;
}

static bool keep_audit(void *user, const once_audit *audit)
{
    pages *p = user;
    if (!make_room(p, audit->body.len)) return false;
    assert(p->n < p->room);
    p->no_memory = !once__audit_copy(&p->arena, audit, &p->kept.audits[p->n]);
    p->n += !p->no_memory;
    return !p->no_memory;
}

static int ask_page(once_storage *storage, const once_letter_query *letters, pages *p, once_page *page, once_error *err)
{
    const once_storage_ops *ops = storage->ops;
    p->now_ms = storage->now_ms;
    if (p->on_entry) return ops->list(storage, p->consumer, p->state, page, keep_entry, p, err);
    if (p->on_letter) return ops->letters(storage, letters, page, keep_letter, p, err);
    return ops->audits(storage, p->consumer, page, keep_audit, p, err);
}

static int show_all(once_storage *storage, const once_letter_query *letters, pages *p, once_page page, once_error *err)
{
    assert((p->on_entry != NULL) + (p->on_letter != NULL) + (p->on_audit != NULL) == 1 && page.max > 0);
    assert(!p->on_letter == !letters);
    const size_t page_max = letters && (letters->heads || letters->by_key) ? HEADS_MAX : PAGE_MAX;
    const size_t item_size = p->on_entry    ? sizeof *p->kept.entries
                             : p->on_letter ? sizeof *p->kept.letters
                                            : sizeof(once_audit);
    int rc = ONCE_OK;
    p->room = PAGE_MAX;
    p->kept.entries = calloc(p->room, item_size);
    if (!p->kept.entries) return once_no_memory(err, "for a list");
    for (page.more = true; page.more && !p->ended && rc == ONCE_OK;) {
        page.more = false;
        rc = once__verb_begin(storage, false, err);
        if (rc != ONCE_OK) break;
        storage->listing = true;
        rc = ask_page(storage, letters, p, &page, err);
        storage->listing = false;
        if (rc == ONCE_OK && p->no_memory) rc = once_no_memory(err, "for a list");
        rc = once__verb_end(storage, rc, err);
        show_kept(p); /* also the items before a failure */
        page.max = 4 * page.max < page_max ? 4 * page.max : page_max;
    }
    free(p->kept.entries);
    once_arena_release(&p->arena);
    return rc;
}

int once__engine_list(once_backend *store, once_bytes consumer, once_state state, once_entry_visit *visit, void *user,
                      once_error *err)
{
    pages p = {.on_entry = visit, .user = user, .consumer = consumer, .state = state};
    assert(visit && state != ONCE_STATE_ABSENT);
    return show_all(once__storage_of(store), NULL, &p, (once_page){.max = PAGE}, err);
}

static int show_letters(once_backend *store, const once_letter_query *what, uint64_t after, once_letter_visit *visit,
                        void *user, once_error *err)
{
    pages p = {.on_letter = visit, .user = user};
    assert(visit);
    return show_all(once__storage_of(store), what, &p, (once_page){.max = PAGE, .number = after}, err);
}

int once__engine_letters(once_backend *store, once_bytes consumer, uint64_t after, once_letter_visit *visit, void *user,
                         once_error *err)
{
    return show_letters(store, &(once_letter_query){.consumer = consumer}, after, visit, user, err);
}

int once__engine_letter_heads(once_backend *store, once_bytes consumer, uint64_t after, bool only_ids,
                              once_letter_visit *visit, void *user, once_error *err)
{
    const once_letter_query what = {.consumer = consumer, .heads = true, .only_ids = only_ids};
    return show_letters(store, &what, after, visit, user, err);
}

int once__engine_letters_of_key(once_backend *store, once_bytes consumer, once_bytes key, once_letter_visit *visit,
                                void *user, once_error *err)
{
    const once_letter_query what = {.consumer = consumer, .by_key = true, .key = key};
    return show_letters(store, &what, 0, visit, user, err);
}

int once__engine_audits(once_backend *store, once_bytes consumer, once_audit_visit *visit, void *user, once_error *err)
{
    pages p = {.on_audit = visit, .user = user, .consumer = consumer};
    assert(visit);
    return show_all(once__storage_of(store), NULL, &p, (once_page){.max = PAGE}, err);
}

/* --- counts --- */

void once__stats_add(once_stats *stats, once_state state, uint64_t n, int64_t due_ms)
{
    assert(state < ONCE_STATES);
    switch (state) {
    case ONCE_STATE_WAITING: stats->waiting += n; break;
    case ONCE_STATE_CLAIMED: stats->claimed += n; break;
    case ONCE_STATE_UNKNOWN: stats->unknown += n; break;
    default: return;
    }
    if (due_ms < stats->wait_ms) stats->wait_ms = due_ms;
}

int once__engine_stats(once_backend *store, once_bytes consumer, once_stats *out, once_error *err)
{
    once_storage *storage = once__storage_of(store);
    int rc = once__verb_begin(storage, false, err);
    if (rc != ONCE_OK) return rc;
    *out = (once_stats){.wait_ms = ONCE_NEVER};
    rc = storage->ops->stats(storage, consumer, out, err);
    const int64_t next_ms = out->wait_ms;
    if (next_ms != ONCE_NEVER) out->wait_ms = next_ms > storage->now_ms ? next_ms - storage->now_ms : 0;
    return once__verb_end(storage, rc, err);
}

int once__engine_waiting_size(once_backend *store, once_bytes consumer, once_waiting_size *out, once_error *err)
{
    once_storage *storage = once__storage_of(store);
    int rc = once__verb_begin(storage, false, err);
    if (rc != ONCE_OK) return rc;
    *out = (once_waiting_size){0};
    rc = storage->ops->waiting_size(storage, consumer, out, err);
    return once__verb_end(storage, rc, err);
}
