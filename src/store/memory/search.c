/* Queries over many entries of the memory store: due entries, lists, counts, expired entries. */
#include <assert.h>
#include <stdlib.h>

#include "base/no_memory.h"
#include "store/memory/memory.h"

#include "base/banned.h"

/* Smallest first by (when, id); keeps the `max` smallest in out[]. */
typedef struct ranked {
    int64_t when;
    once_hash id;
} ranked;

static bool before(ranked x, ranked y)
{
    return x.when != y.when ? x.when < y.when : once_hash_compare(x.id, y.id) < 0;
}

static bool is_behind(const once_entry *e, once_due_mark mark)
{
    return before((ranked){mark.due_ms, mark.id}, (ranked){e->due_ms, e->id});
}

static int compare_due(const void *x, const void *y)
{
    const once_entry *a = *(const once_entry *const *)x, *b = *(const once_entry *const *)y;
    return a->due_ms != b->due_ms ? (a->due_ms < b->due_ms ? -1 : 1) : once_hash_compare(a->id, b->id);
}

/* Sorts what is due behind the mark, and goes through it. */
int once__mem_due_of_operations(once_storage *storage, once_bytes consumer, int64_t now_ms, once_due_search *search,
                                once_hash *out, size_t *n, once_error *err)
{
    const once_mem *m = once__mem_of(storage);
    assert(m->open && search->max > 0 && search->read_max > 0);
    const once_entry **due = calloc(m->slots.n + 1, sizeof *due);
    if (!due) return once_no_memory(err, "in the memory store");
    size_t found = 0;
    for (size_t i = 0; i < m->slots.n; i++) {
        const once_entry *e = m->slots.at[i].record ? &m->slots.at[i].record->entry : NULL;
        if (!e || !once_bytes_equal(e->scope.consumer, consumer) || !once_entry_may_be_taken(e, now_ms)) continue;
        if (is_behind(e, search->from)) due[found++] = e;
    }
    qsort(due, found, sizeof *due, compare_due);
    *n = 0;
    for (search->read = 0; search->read < search->read_max && *n < search->max; search->read++) {
        search->end = search->read == found;
        if (search->end) break;
        const once_entry *e = due[search->read];
        search->from = (once_due_mark){e->due_ms, e->id};
        if (once__due_search_matches(search, e->scope.operation)) out[(*n)++] = e->id;
    }
    free(due);
    return ONCE_OK;
}

/* Picks due entries; or entries of a token; or with `lapsed` claimed entries with `hold` that are due. */
static int pick(once_mem *m, once_bytes consumer, int64_t now_ms, const uint64_t *token_a, bool lapsed, size_t max,
                once_hash *out, size_t *n, once_error *err)
{
    assert(max > 0 && !(token_a && lapsed));
    ranked *best = calloc(max, sizeof *best);
    if (!best) return once_no_memory(err, "in the memory store");
    size_t count = 0;
    for (size_t i = 0; i < m->slots.n; i++) {
        if (!m->slots.at[i].record) continue;
        const once_entry *e = &m->slots.at[i].record->entry;
        if (!once_bytes_equal(e->scope.consumer, consumer)) continue;
        ranked mine = {.id = e->id};
        if (token_a) {
            const bool asked = e->state == ONCE_STATE_UNKNOWN && e->due_ms != ONCE_NEVER;
            if ((e->state != ONCE_STATE_CLAIMED && !asked) || e->token.a != *token_a) continue;
            mine.when = (int64_t)(e->token.b ^ (UINT64_C(1) << 63)); /* sorts as an unsigned number */
        } else {
            const bool wanted = lapsed ? e->state == ONCE_STATE_CLAIMED && e->hold && e->due_ms <= now_ms
                                       : once_entry_may_be_taken(e, now_ms);
            if (!wanted) continue;
            mine.when = e->due_ms;
        }
        size_t at = count;
        while (at > 0 && before(mine, best[at - 1])) {
            if (at < max) best[at] = best[at - 1];
            at--;
        }
        if (at < max) best[at] = mine;
        if (count < max) count++;
    }
    for (size_t i = 0; i < count; i++) out[i] = best[i].id;
    *n = count;
    free(best);
    return ONCE_OK;
}

int once__mem_due(once_storage *storage, once_bytes consumer, int64_t now_ms, size_t max, once_hash *out, size_t *n,
                  once_error *err)
{
    assert(once__mem_of(storage)->open && max > 0);
    return pick(once__mem_of(storage), consumer, now_ms, NULL, false, max, out, n, err);
}

int once__mem_by_token(once_storage *storage, once_bytes consumer, uint64_t token_a, size_t max, once_hash *out,
                       size_t *n, once_error *err)
{
    assert(once__mem_of(storage)->open && max > 0);
    return pick(once__mem_of(storage), consumer, 0, &token_a, false, max, out, n, err);
}

int once__mem_lapsed(once_storage *storage, once_bytes consumer, int64_t now_ms, size_t max, once_hash *out, size_t *n,
                     once_error *err)
{
    assert(once__mem_of(storage)->open && max > 0);
    return pick(once__mem_of(storage), consumer, now_ms, NULL, true, max, out, n, err);
}

int once__mem_sweep(once_backend *store, size_t limit, once_sweep_result *out, once_error *err)
{
    assert(!((once_mem *)store)->open);
    assert(limit > 0);
    (void)err;
    once_mem *m = (once_mem *)store;
    const int64_t now_ms = once_clock_step(&m->storage.clock, store->env);
    *out = (once_sweep_result){0};
    for (size_t i = 0; i < m->slots.n; i++) {
        once_mem_slot *s = &m->slots.at[i];
        if (!s->record || !once_entry_expired(&s->record->entry, now_ms)) continue;
        if (out->dropped == limit) {
            out->more = true;
            break;
        }
        once__mem_record_free(s->record);
        s->record = NULL;
        out->dropped++;
    }
    return ONCE_OK;
}

int once__mem_list(once_storage *storage, once_bytes consumer, once_state state, once_page *page,
                   once_entry_visit *visit, void *user, once_error *err)
{
    assert(once__mem_of(storage)->open && page->max > 0);
    (void)consumer, (void)state, (void)page, (void)err; /* the engine filters the entries */
    const once_mem *m = once__mem_of(storage);
    for (size_t i = 0; i < m->slots.n; i++)
        if (m->slots.at[i].record && !visit(user, &m->slots.at[i].record->entry)) break;
    return ONCE_OK;
}

int once__mem_stats(once_storage *storage, once_bytes consumer, once_stats *out, once_error *err)
{
    assert(once__mem_of(storage)->open && out->wait_ms >= 0);
    (void)err;
    const once_mem *m = once__mem_of(storage);
    for (size_t i = 0; i < m->slots.n; i++) {
        const once_entry *e = m->slots.at[i].record ? &m->slots.at[i].record->entry : NULL;
        if (!e || !once_bytes_equal(e->scope.consumer, consumer)) continue;
        const once_state state = once_entry_state_at(e, storage->now_ms);
        const bool comes_by_itself =
            state == ONCE_STATE_CLAIMED || (e->has_message && (state != ONCE_STATE_UNKNOWN || e->lookup));
        once__stats_add(out, state, 1, comes_by_itself ? e->due_ms : ONCE_NEVER);
    }
    for (size_t i = 0; i < m->letters.n; i++)
        if (m->letters.at[i] && once_bytes_equal(m->letters.at[i]->letter.scope.consumer, consumer)) out->dead++;
    return ONCE_OK;
}

int once__mem_waiting_size(once_storage *storage, once_bytes consumer, once_waiting_size *out, once_error *err)
{
    assert(once__mem_of(storage)->open);
    (void)err;
    const once_mem *m = once__mem_of(storage);
    for (size_t i = 0; i < m->slots.n; i++) {
        const once_mem_record *r = m->slots.at[i].record;
        if (!r || !r->entry.has_message || !once_bytes_equal(r->entry.scope.consumer, consumer)) continue;
        if (r->entry.state != ONCE_STATE_WAITING && r->entry.state != ONCE_STATE_CLAIMED) continue;
        out->messages++;
        out->bytes += r->entry.message.body.len;
    }
    return ONCE_OK;
}
