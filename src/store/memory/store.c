/* The memory store: the readable reference. Nothing is kept, nothing is shared, everything is searched from front to
 * back.
 *
 * Entries are immutable records; saving one puts a new record in its slot and remembers the old one until the
 * transaction ends: commit frees the old records, rollback puts them back. Lanes, letters and facts work the same
 * way. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"
#include "base/table.h"
#include "core/plant.h"
#include "store/engine.h"
#include "store/lane_record.h"

#include "base/banned.h"

/* A value with an arena of its own. */
typedef struct record {
    once_arena arena;
    once_entry entry;
} record;

typedef struct slot {
    once_hash id;
    record *record;      /* NULL: absent */
    once_entry *working; /* what load gave out in transaction `tx`; in tx_arena */
    uint64_t tx;
} slot;

typedef struct kept_lane {
    once_hash id;
    int64_t version, expires_ms;
    size_t len;
    unsigned char record[ONCE_LANE_RECORD];
} kept_lane;

typedef struct letter_box {
    once_arena arena;
    once_letter letter;
    once_hash unique;
} letter_box;

typedef struct audit_box {
    once_arena arena;
    once_audit audit;
} audit_box;

typedef struct fact {
    char name[ONCE_FACT_NAME];
    once_arena arena;
    once_bytes value;
} fact;

/* How to take one change back. */
typedef struct undo {
    enum { UNDO_ENTRY, UNDO_LANE, UNDO_LETTER_PUT, UNDO_LETTER_DROP, UNDO_AUDIT, UNDO_FACT } what;
    size_t index;
    record *record;     /* entry: the old one */
    kept_lane lane;     /* lane: the old one; expires_ms 0: there was none */
    letter_box *letter; /* dropped letter */
    fact *fact;         /* the old one; NULL: there was none */
} undo;

#define LIST(type)                                                                                                     \
    struct {                                                                                                           \
        type *at;                                                                                                      \
        size_t n, capacity;                                                                                            \
    }

typedef struct memory_store {
    once_shelf shelf;
    LIST(slot) slots;
    once_table by_id; /* positions in slots */
    LIST(kept_lane) lanes;
    LIST(letter_box *) letters;
    LIST(audit_box *) audits;
    LIST(fact *) facts;
    LIST(undo) undos;
    once_arena tx_arena;
    uint64_t tx;      /* number of the transaction ... */
    bool open, write; /* ... which there is, and may write */
    uint64_t next_letter;
} memory_store;

static memory_store *self(once_shelf *shelf) { return (memory_store *)shelf; }

static bool list_grow(void *list_at, size_t n, size_t *capacity, size_t size)
{
    if (n < *capacity) return true;
    const size_t more = *capacity ? *capacity * 2 : 16;
    void **at = list_at, *grown = realloc(*at, more * size);
    if (!grown) return false;
    *at = grown;
    *capacity = more;
    return true;
}
#define LIST_ROOM(list) list_grow(&(list).at, (list).n, &(list).capacity, sizeof *(list).at)

/* --- slots --- */

/* The slot of an id; made when there is none. NULL: out of memory. */
static slot *slot_of(memory_store *m, once_hash id)
{
    size_t at;
    if (once_table_position(&m->by_id, id, &at)) return &m->slots.at[at];
    if (!LIST_ROOM(m->slots) || !once_table_put_position(&m->by_id, id, m->slots.n)) return NULL;
    m->slots.at[m->slots.n] = (slot){.id = id};
    return &m->slots.at[m->slots.n++];
}

static void record_free(record *r)
{
    if (!r) return;
    once_arena_release(&r->arena);
    free(r);
}

static void letter_free(letter_box *box)
{
    if (!box) return;
    once_arena_release(&box->arena);
    free(box);
}

static void audit_free(audit_box *box)
{
    if (!box) return;
    once_arena_release(&box->arena);
    free(box);
}

static void fact_free(fact *f)
{
    if (!f) return;
    once_arena_release(&f->arena);
    free(f);
}

/* --- transactions --- */

static int mem_begin(once_shelf *shelf, bool write, once_error *err)
{
    (void)err;
    memory_store *m = self(shelf);
    assert(!m->open && m->undos.n == 0);
    m->open = true;
    m->write = write;
    return ONCE_OK;
}

static void tx_over(memory_store *m)
{
    m->tx++;
    m->open = m->write = false;
    m->undos.n = 0;
    once_arena_reset(&m->tx_arena);
}

static int mem_commit(once_shelf *shelf, once_error *err)
{
    (void)err;
    memory_store *m = self(shelf);
    assert(m->open && (m->write || m->undos.n == 0));
    for (size_t i = 0; i < m->undos.n; i++) {
        record_free(m->undos.at[i].record);
        letter_free(m->undos.at[i].letter);
        fact_free(m->undos.at[i].fact);
    }
    tx_over(m);
    return ONCE_OK;
}

static void mem_rollback(once_shelf *shelf)
{
    memory_store *m = self(shelf);
    while (m->undos.n) {
        undo *u = &m->undos.at[--m->undos.n];
        switch (u->what) {
        case UNDO_ENTRY:
            record_free(m->slots.at[u->index].record);
            m->slots.at[u->index].record = u->record;
            break;
        case UNDO_LANE: m->lanes.at[u->index] = u->lane; break;
        case UNDO_LETTER_PUT:
            letter_free(m->letters.at[u->index]);
            m->letters.n = u->index;
            break;
        case UNDO_LETTER_DROP: /* or counted: then there is one in its place */
            letter_free(m->letters.at[u->index]);
            m->letters.at[u->index] = u->letter;
            break;
        case UNDO_AUDIT: audit_free(m->audits.at[--m->audits.n]); break;
        case UNDO_FACT:
            fact_free(m->facts.at[u->index]);
            m->facts.at[u->index] = u->fact;
            break;
        }
    }
    tx_over(m);
}

/* --- entries --- */

static int mem_load(once_shelf *shelf, once_hash id, once_entry **out, once_error *err)
{
    memory_store *m = self(shelf);
    assert(m->open);
    slot *s = slot_of(m, id);
    if (!s) return once_no_memory(err, "in the memory store");
    if (!s->working || s->tx != m->tx) {
        s->working = once_arena_new(&m->tx_arena, once_entry, 1);
        if (!s->working) return once_no_memory(err, "in the memory store");
        s->tx = m->tx;
        if (s->record) *s->working = s->record->entry;
        else s->working->id = id;
    }
    *out = s->working;
    return ONCE_OK;
}

static int mem_save(once_shelf *shelf, once_entry *entry, once_error *err)
{
    memory_store *m = self(shelf);
    assert(m->write);
    slot *s = slot_of(m, entry->id);
    if (!s || !LIST_ROOM(m->undos)) return once_no_memory(err, "in the memory store");

    record *fresh = NULL;
    if (entry->state != ONCE_STATE_ABSENT) {
        fresh = calloc(1, sizeof *fresh);
        if (!fresh || !once__entry_copy(&fresh->arena, entry, &fresh->entry)) {
            record_free(fresh);
            return once_no_memory(err, "in the memory store");
        }
        *entry = fresh->entry; /* from here on the bytes are ours */
    }
    m->undos.at[m->undos.n++] = (undo){.what = UNDO_ENTRY, .index = (size_t)(s - m->slots.at), .record = s->record};
    s->record = fresh;
    return ONCE_OK;
}

/* --- lanes --- */

static kept_lane *find_lane(memory_store *m, once_hash id)
{
    for (size_t i = 0; i < m->lanes.n; i++)
        if (once_hash_equal(m->lanes.at[i].id, id)) return &m->lanes.at[i];
    return NULL;
}

static int mem_lane(once_shelf *shelf, once_hash id, once_hash except, once_lane *out, once_error *err)
{
    memory_store *m = self(shelf);
    assert(m->open && !once_hash_is_zero(id));
    const kept_lane *known = find_lane(m, id);
    const kept_lane lane = known ? *known : (kept_lane){0};
    if (!once__lane_read(lane.version, lane.expires_ms, (once_bytes){(const char *)lane.record, lane.len},
                         shelf->now_ms, out) ||
        !once_arena_copy(&m->tx_arena, out->operation, &out->operation) ||
        !once_arena_copy(&m->tx_arena, out->key, &out->key))
        return once_no_memory(err, "in the memory store");
    for (size_t i = 0; i < m->slots.n; i++) {
        if (!m->slots.at[i].record) continue;
        const once_entry *other = &m->slots.at[i].record->entry;
        if (!once_hash_equal(other->lane, id) || !once_state_unfinished(other->state)) continue;
        if (once_hash_equal(other->id, except)) continue;
        if (once_state_occupies(other->state)) out->claimed = true;
        if (other->order < out->head) out->head = other->order;
        if (other->order > out->tail) out->tail = other->order;
    }
    return ONCE_OK;
}

static int mem_save_lane(once_shelf *shelf, once_hash id, const once_lane *kept, once_error *err)
{
    memory_store *m = self(shelf);
    assert(m->write && !once_hash_is_zero(id));
    kept_lane *known = find_lane(m, id);
    if (!known) {
        if (!LIST_ROOM(m->lanes)) return once_no_memory(err, "in the memory store");
        known = &m->lanes.at[m->lanes.n++];
        *known = (kept_lane){.id = id};
    }
    if (!LIST_ROOM(m->undos)) return once_no_memory(err, "in the memory store");
    m->undos.at[m->undos.n++] = (undo){.what = UNDO_LANE, .index = (size_t)(known - m->lanes.at), .lane = *known};
    known->version = once__lane_version(kept);
    known->expires_ms = kept->expires_ms;
    known->len = once__lane_write(kept, known->record).len;
    return ONCE_OK;
}

static int mem_lane_head(once_shelf *shelf, once_hash id, once_hash *out, once_error *err)
{
    (void)err;
    memory_store *m = self(shelf);
    assert(m->open && !once_hash_is_zero(id));
    const once_entry *head = NULL;
    for (size_t i = 0; i < m->slots.n; i++) {
        if (!m->slots.at[i].record) continue;
        const once_entry *other = &m->slots.at[i].record->entry;
        if (!once_hash_equal(other->lane, id) || !once_state_unfinished(other->state)) continue;
        if (!head || once__lane_before(other->order, other->seen_ms, other->id, head)) head = other;
    }
    *out = head ? head->id : (once_hash){0};
    return ONCE_OK;
}

static int mem_lane_equals(once_shelf *shelf, once_hash id, int64_t order, int64_t *seen_ms, once_error *err)
{
    (void)err;
    const memory_store *m = self(shelf);
    *seen_ms = 0;
    for (size_t i = 0; i < m->slots.n; i++) {
        if (!m->slots.at[i].record) continue;
        const once_entry *other = &m->slots.at[i].record->entry;
        if (!once_hash_equal(other->lane, id) || !once_state_unfinished(other->state) || other->order != order)
            continue;
        if (other->seen_ms > *seen_ms) *seen_ms = other->seen_ms;
    }
    return ONCE_OK;
}

/* --- what find and take look for --- */

static int compare_places(const void *a, const void *b)
{
    const once_entry *const *x = a, *const *y = b;
    if ((*x)->order != (*y)->order) return (*x)->order < (*y)->order ? -1 : 1;
    return once_hash_compare((*x)->id, (*y)->id);
}

static int compare_turns(const void *a, const void *b)
{
    const once_entry *const *x = a, *const *y = b;
    if (*x == *y) return 0;
    return once__lane_before((*x)->order, (*x)->seen_ms, (*x)->id, *y) ? -1 : 1;
}

static int mem_lane_before(once_shelf *shelf, const once_entry *entry, size_t max, once_hash *out, size_t *n,
                           uint64_t *count, once_error *err)
{
    const memory_store *m = self(shelf);
    assert(self(shelf)->open && max > 0 && !once_hash_is_zero(entry->lane));
    const once_entry **found = calloc(m->slots.n + 1, sizeof *found);
    size_t before = 0;
    if (!found) return once_no_memory(err, "in the memory store");
    *n = 0;
    for (size_t i = 0; i < m->slots.n; i++) {
        const once_entry *e = m->slots.at[i].record ? &m->slots.at[i].record->entry : NULL;
        if (!e || !once_hash_equal(e->lane, entry->lane) || !once_state_unfinished(e->state) ||
            once_hash_equal(e->id, entry->id))
            continue;
        if (once__lane_before(e->order, e->seen_ms, e->id, entry)) found[before++] = e;
        else if (once_state_occupies(e->state) && *n < max) out[(*n)++] = e->id;
    }
    qsort(found, before, sizeof *found, compare_turns);
    for (size_t i = 0; i < before && i < max; i++) out[(*n)++] = found[i]->id;
    *count = before < ONCE_BEFORE_COUNTED ? before : ONCE_BEFORE_COUNTED;
    free(found);
    return ONCE_OK;
}

static bool is_new(const once_hash *lanes, size_t at)
{
    for (size_t i = 0; i < at; i++)
        if (once_hash_equal(lanes[i], lanes[at])) return false;
    return true;
}

static int mem_lanes_waiting(once_shelf *shelf, const once_hash *lanes, size_t n_lanes, size_t each, size_t max,
                             once_hash *out, size_t *n, once_error *err)
{
    const memory_store *m = self(shelf);
    assert(self(shelf)->open && each > 0 && max > 0);
    const once_entry **found = calloc(m->slots.n + 1, sizeof *found);
    if (!found) return once_no_memory(err, "in the memory store");
    *n = 0;
    for (size_t lane = 0; lane < n_lanes; lane++) {
        size_t count = 0;
        for (size_t i = 0; i < m->slots.n && is_new(lanes, lane); i++) {
            const once_entry *e = m->slots.at[i].record ? &m->slots.at[i].record->entry : NULL;
            if (e && once_hash_equal(e->lane, lanes[lane]) && once_state_unfinished(e->state)) found[count++] = e;
        }
        qsort(found, count, sizeof *found, compare_places);
        for (size_t i = 0; i < count && i < each && *n < max; i++) out[(*n)++] = found[i]->id;
    }
    free(found);
    return ONCE_OK;
}

/* Smallest first by (when, id); keeps the `max` smallest in out[]. */
typedef struct ranked {
    int64_t when;
    once_hash id;
} ranked;

static bool before(ranked x, ranked y)
{
    return x.when != y.when ? x.when < y.when : once_hash_compare(x.id, y.id) < 0;
}

/* Due ones; of a token; or `lapsed`: claimed, with `hold`, and due. */
static int pick(memory_store *m, once_bytes consumer, int64_t now_ms, const uint64_t *token_a, bool lapsed, size_t max,
                once_hash *out, size_t *n, once_error *err)
{
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
            mine.when = (int64_t)(e->token.b ^ (UINT64_C(1) << 63)); /* in the order of unsigned numbers */
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

static int mem_due(once_shelf *shelf, once_bytes consumer, int64_t now_ms, size_t max, once_hash *out, size_t *n,
                   once_error *err)
{
    assert(self(shelf)->open && max > 0);
    return pick(self(shelf), consumer, now_ms, NULL, false, max, out, n, err);
}

static int mem_by_token(once_shelf *shelf, once_bytes consumer, uint64_t token_a, size_t max, once_hash *out, size_t *n,
                        once_error *err)
{
    assert(self(shelf)->open && max > 0);
    return pick(self(shelf), consumer, 0, &token_a, false, max, out, n, err);
}

static int mem_lapsed(once_shelf *shelf, once_bytes consumer, int64_t now_ms, size_t max, once_hash *out, size_t *n,
                      once_error *err)
{
    assert(self(shelf)->open && max > 0);
    return pick(self(shelf), consumer, now_ms, NULL, true, max, out, n, err);
}

/* --- letters --- */

static int letter_again(memory_store *m, size_t at, const once_letter *again, once_error *err)
{
    letter_box *old = m->letters.at[at], *box = calloc(1, sizeof *box);
    once_letter raised = old->letter;
    once__letter_again(&raised, again);
    if (!box || !LIST_ROOM(m->undos) || !once__letter_copy(&box->arena, &raised, &box->letter)) {
        letter_free(box);
        return once_no_memory(err, "in the memory store");
    }
    box->unique = old->unique;
    m->undos.at[m->undos.n++] = (undo){.what = UNDO_LETTER_DROP, .index = at, .letter = old};
    m->letters.at[at] = box;
    return ONCE_OK;
}

static int mem_letter_put(once_shelf *shelf, const once_letter *letter, once_hash unique, bool *fresh, once_error *err)
{
    memory_store *m = self(shelf);
    assert(self(shelf)->write);
    for (size_t i = 0; i < m->letters.n; i++) {
        if (!m->letters.at[i] || !once_hash_equal(m->letters.at[i]->unique, unique)) continue;
        *fresh = false;
        return once_hash_is_zero(letter->entry) ? letter_again(m, i, letter, err) : ONCE_OK;
    }
    if (!LIST_ROOM(m->letters) || !LIST_ROOM(m->undos)) return once_no_memory(err, "in the memory store");
    letter_box *box = calloc(1, sizeof *box);
    if (!box || !once__letter_copy(&box->arena, letter, &box->letter)) {
        letter_free(box);
        return once_no_memory(err, "in the memory store");
    }
    box->letter.id = ++m->next_letter;
    box->unique = unique;
    m->undos.at[m->undos.n++] = (undo){.what = UNDO_LETTER_PUT, .index = m->letters.n};
    m->letters.at[m->letters.n++] = box;
    *fresh = true;
    return ONCE_OK;
}

static size_t find_letter(const memory_store *m, uint64_t id)
{
    size_t i = 0;
    while (i < m->letters.n && (!m->letters.at[i] || m->letters.at[i]->letter.id != id)) i++;
    return i;
}

static int mem_letter_get(once_shelf *shelf, uint64_t id, once_letter *out, bool *found, once_arena *arena,
                          once_error *err)
{
    memory_store *m = self(shelf);
    const size_t i = find_letter(m, id);
    *found = i < m->letters.n;
    if (!*found) return ONCE_OK;
    if (!once__letter_copy(arena, &m->letters.at[i]->letter, out)) return once_no_memory(err, "in the memory store");
    out->same = m->letters.at[i]->unique;
    return ONCE_OK;
}

static int mem_letter_drop(once_shelf *shelf, uint64_t id, once_error *err)
{
    memory_store *m = self(shelf);
    assert(self(shelf)->write);
    const size_t i = find_letter(m, id);
    if (i == m->letters.n) return ONCE_OK;
    if (!LIST_ROOM(m->undos)) return once_no_memory(err, "in the memory store");
    m->undos.at[m->undos.n++] = (undo){.what = UNDO_LETTER_DROP, .index = i, .letter = m->letters.at[i]};
    m->letters.at[i] = NULL;
    return ONCE_OK;
}

/* --- audit --- */

static int mem_audit_put(once_shelf *shelf, const once_audit *audit, once_error *err)
{
    memory_store *m = self(shelf);
    assert(self(shelf)->write);
    if (!LIST_ROOM(m->audits) || !LIST_ROOM(m->undos)) return once_no_memory(err, "in the memory store");
    audit_box *box = calloc(1, sizeof *box);
    if (!box) return once_no_memory(err, "in the memory store");
    box->audit = *audit;
    once_bytes *const fields[] = {&box->audit.consumer, &box->audit.who,  &box->audit.what,
                                  &box->audit.key,      &box->audit.note, &box->audit.body};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (once_arena_copy(&box->arena, *fields[i], fields[i])) continue;
        audit_free(box);
        return once_no_memory(err, "in the memory store");
    }
    m->undos.at[m->undos.n++] = (undo){.what = UNDO_AUDIT};
    m->audits.at[m->audits.n++] = box;
    return ONCE_OK;
}

/* --- lists, counts, sweep --- */

static int mem_audits(once_shelf *shelf, once_bytes consumer, once_page *page, once_audit_visit *visit, void *user,
                      once_error *err)
{
    assert(self(shelf)->open && page->max > 0);
    (void)page, (void)err;
    const memory_store *m = self(shelf);
    for (size_t i = 0; i < m->audits.n; i++)
        if (once_bytes_equal(m->audits.at[i]->audit.consumer, consumer) && !visit(user, &m->audits.at[i]->audit)) break;
    return ONCE_OK;
}

static int mem_sweep(once_backend *store, size_t limit, once_sweep_result *out, once_error *err)
{
    assert(limit > 0);
    (void)err;
    memory_store *m = (memory_store *)store;
    const int64_t now_ms = once_clock_step(&m->shelf.clock, store->env);
    *out = (once_sweep_result){0};
    for (size_t i = 0; i < m->slots.n; i++) {
        slot *s = &m->slots.at[i];
        if (!s->record || !once_entry_expired(&s->record->entry, now_ms)) continue;
        if (out->dropped == limit) {
            out->more = true;
            break;
        }
        record_free(s->record);
        s->record = NULL;
        out->dropped++;
    }
    return ONCE_OK;
}

static int mem_list(once_shelf *shelf, once_bytes consumer, once_state state, once_page *page, once_entry_visit *visit,
                    void *user, once_error *err)
{
    assert(self(shelf)->open && page->max > 0);
    (void)consumer, (void)state, (void)page, (void)err; /* the engine leaves out what is not asked for */
    const memory_store *m = self(shelf);
    for (size_t i = 0; i < m->slots.n; i++)
        if (m->slots.at[i].record && !visit(user, &m->slots.at[i].record->entry)) break;
    return ONCE_OK;
}

static int mem_letters(once_shelf *shelf, const once_letter_query *what, once_page *page, once_letter_visit *visit,
                       void *user, once_error *err)
{
    assert(self(shelf)->open && page->max > 0);
    (void)err;
    const memory_store *m = self(shelf);
    for (size_t i = 0; i < m->letters.n; i++) {
        const letter_box *box = m->letters.at[i];
        if (!box || box->letter.id <= page->number || !once_bytes_equal(box->letter.scope.consumer, what->consumer))
            continue;
        if (!visit(user, &box->letter)) break;
    }
    return ONCE_OK;
}

static int mem_stats(once_shelf *shelf, once_bytes consumer, once_stats *out, once_error *err)
{
    (void)err;
    const memory_store *m = self(shelf);
    for (size_t i = 0; i < m->slots.n; i++) {
        const once_entry *e = m->slots.at[i].record ? &m->slots.at[i].record->entry : NULL;
        if (!e || !once_bytes_equal(e->scope.consumer, consumer)) continue;
        const once_state state = once_entry_state_at(e, shelf->now_ms);
        const bool comes_by_itself =
            state == ONCE_STATE_CLAIMED || (e->has_message && (state != ONCE_STATE_UNKNOWN || e->lookup));
        once__stats_add(out, state, 1, comes_by_itself ? e->due_ms : ONCE_NEVER);
    }
    for (size_t i = 0; i < m->letters.n; i++)
        if (m->letters.at[i] && once_bytes_equal(m->letters.at[i]->letter.scope.consumer, consumer)) out->dead++;
    return ONCE_OK;
}

static int mem_waiting_size(once_shelf *shelf, once_bytes consumer, once_waiting_size *out, once_error *err)
{
    (void)err;
    const memory_store *m = self(shelf);
    for (size_t i = 0; i < m->slots.n; i++) {
        const record *r = m->slots.at[i].record;
        if (!r || !r->entry.has_message || !once_bytes_equal(r->entry.scope.consumer, consumer)) continue;
        if (r->entry.state != ONCE_STATE_WAITING && r->entry.state != ONCE_STATE_CLAIMED) continue;
        out->messages++;
        out->bytes += r->entry.message.body.len;
    }
    return ONCE_OK;
}

/* Where the fact is, or would be put. */
static size_t find_fact(const memory_store *m, const char *name)
{
    size_t i = 0;
    while (i < m->facts.n && (!m->facts.at[i] || strcmp(m->facts.at[i]->name, name) != 0)) i++;
    return i;
}

static int mem_fact_get(once_shelf *shelf, const char *name, once_bytes *out, once_arena *arena, once_error *err)
{
    const memory_store *m = self(shelf);
    const size_t i = find_fact(m, name);
    if (i == m->facts.n || m->facts.at[i]->value.len == 0) return ONCE_OK;
    return once_arena_copy(arena, m->facts.at[i]->value, out) ? ONCE_OK : once_no_memory(err, "in the memory store");
}

static int mem_fact_set(once_shelf *shelf, const char *name, once_bytes value, once_error *err)
{
    memory_store *m = self(shelf);
    assert(self(shelf)->write);
    const size_t i = find_fact(m, name);
    if ((i == m->facts.n && !LIST_ROOM(m->facts)) || !LIST_ROOM(m->undos))
        return once_no_memory(err, "in the memory store");
    fact *fresh = calloc(1, sizeof *fresh);
    if (!fresh || (value.len > 0 && !once_arena_copy(&fresh->arena, value, &fresh->value))) {
        fact_free(fresh);
        return once_no_memory(err, "in the memory store");
    }
    assert(strlen(name) < sizeof fresh->name);
    memcpy(fresh->name, name, strlen(name) + 1);
    if (i == m->facts.n) m->facts.at[m->facts.n++] = NULL;
    m->undos.at[m->undos.n++] = (undo){.what = UNDO_FACT, .index = i, .fact = m->facts.at[i]};
    m->facts.at[i] = fresh;
    return ONCE_OK;
}

static int mem_facts(once_shelf *shelf, const char *prefix, once_fact_visit *visit, void *user, once_error *err)
{
    const memory_store *m = self(shelf);
    (void)err;
    for (size_t i = 0; i < m->facts.n; i++) {
        const fact *f = m->facts.at[i];
        if (!f || f->value.len == 0 || strncmp(f->name, prefix, strlen(prefix)) != 0) continue;
        if (!visit(user, (once_bytes){f->name, strlen(f->name)}, f->value)) break;
    }
    return ONCE_OK;
}

/* --- open, close --- */

static const once_shelf_ops memory_shelf = {
    .begin = mem_begin,
    .commit = mem_commit,
    .rollback = mem_rollback,
    .load = mem_load,
    .save = mem_save,
    .lane = mem_lane,
    .save_lane = mem_save_lane,
    .lane_head = mem_lane_head,
    .lane_equals = mem_lane_equals,
    .due = mem_due,
    .by_token = mem_by_token,
    .lapsed = mem_lapsed,
    .lanes_waiting = mem_lanes_waiting,
    .lane_before = mem_lane_before,
    .letter_put = mem_letter_put,
    .letter_get = mem_letter_get,
    .letter_drop = mem_letter_drop,
    .audit_put = mem_audit_put,
    .list = mem_list,
    .letters = mem_letters,
    .audits = mem_audits,
    .stats = mem_stats,
    .waiting_size = mem_waiting_size,
    .fact_get = mem_fact_get,
    .fact_set = mem_fact_set,
    .facts = mem_facts,
};

static int mem_open(const char *rest, const once_store_options *options, once_backend **out, once_error *err)
{
    if (*rest) return once_fail(err, ONCE_E_USAGE, "store 'memory:%s' has a path; write 'memory:'", rest);
    memory_store *m = calloc(1, sizeof *m);
    if (!m) return once_no_memory(err, "in the memory store");
    m->shelf.store.ops = &once__store_memory;
    m->shelf.store.bits = ONCE_STORE_TX | ONCE_STORE_OWNS | ONCE_STORE_LANES | ONCE_STORE_LIST | ONCE_STORE_CLOCK;
    m->shelf.store.env = options && options->env ? options->env : once_env_real();
    m->shelf.shelf = &memory_shelf;
    once__store_sign(&m->shelf.store);
    once_env_random(m->shelf.store.env, &m->shelf.store.secret, sizeof m->shelf.store.secret);
    *out = &m->shelf.store;
    return ONCE_OK;
}

static void mem_close(once_backend *store)
{
    memory_store *m = (memory_store *)store;
    for (size_t i = 0; i < m->slots.n; i++) record_free(m->slots.at[i].record);
    for (size_t i = 0; i < m->letters.n; i++) letter_free(m->letters.at[i]);
    for (size_t i = 0; i < m->audits.n; i++) audit_free(m->audits.at[i]);
    for (size_t i = 0; i < m->facts.n; i++) fact_free(m->facts.at[i]);
    once_arena_release(&m->tx_arena);
    free(m->slots.at);
    once_table_release(&m->by_id);
    free(m->lanes.at);
    free(m->letters.at);
    free(m->audits.at);
    free(m->facts.at);
    free(m->undos.at);
    free(m);
}

const once_store_ops once__store_memory = {
    .scheme = "memory",
    .open = mem_open,
    .close = mem_close,
    .claim = once__engine_claim,
    .settle = once__engine_settle,
    .extend = once__engine_extend,
    .accept = once__engine_accept,
    .take = once__engine_take,
    .lapse = once__engine_lapse,
    .find = once__engine_find,
    .begin = once__engine_begin,
    .commit = once__engine_commit,
    .rollback = once__engine_rollback,
    .bury = once__engine_bury,
    .exhume = once__engine_exhume,
    .forget = once__engine_forget,
    .letter_get = once__engine_letter_get,
    .letter_drop = once__engine_letter_drop,
    .discard = once__engine_discard,
    .correct = once__engine_correct,
    .resolve = once__engine_resolve,
    .revive = once__engine_revive,
    .audit = once__engine_audit,
    .audits = once__engine_audits,
    .sweep = mem_sweep,
    .get = once__engine_get,
    .look = once__engine_look,
    .outlook = once__engine_outlook,
    .why = once__engine_why,
    .in_lane = once__engine_in_lane,
    .list = once__engine_list,
    .letters = once__engine_letters,
    .stats = once__engine_stats,
    .waiting_size = once__engine_waiting_size,
    .time = once__engine_time,
    .fact_get = once__engine_fact_get,
    .fact_set = once__engine_fact_set,
    .fact_count = once__engine_fact_count,
    .facts = once__engine_facts,
};
