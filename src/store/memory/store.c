/* The memory store: its entries and transactions, opening and closing. */
#include <assert.h>
#include <stdlib.h>

#include "base/no_memory.h"
#include "core/plant.h"
#include "store/memory/memory.h"

#include "base/banned.h"

bool once__mem_grow(void *list_at, size_t n, size_t *capacity, size_t size)
{
    assert(n <= *capacity && size > 0);
    if (n < *capacity) return true;
    const size_t more = *capacity ? *capacity * 2 : 16;
    void **at = list_at, *grown = realloc(*at, more * size);
    if (!grown) return false;
    *at = grown;
    *capacity = more;
    return true;
}

/* Finds the slot of an id, or makes it. NULL: out of memory. */
static once_mem_slot *slot_of(once_mem *m, once_hash id)
{
    size_t at;
    if (once_table_position(&m->by_id, id, &at)) return &m->slots.at[at];
    if (!ONCE_MEM_ROOM(m->slots) || !once_table_put_position(&m->by_id, id, m->slots.n)) return NULL;
    m->slots.at[m->slots.n] = (once_mem_slot){.id = id};
    return &m->slots.at[m->slots.n++];
}

void once__mem_record_free(once_mem_record *r)
{
    if (!r) return;
    once_arena_release(&r->arena);
    free(r);
}

/* --- transactions --- */

static int mem_begin(once_storage *storage, bool write, once_error *err)
{
    (void)err;
    once_mem *m = once__mem_of(storage);
    assert(!m->open && m->undos.n == 0);
    m->open = true;
    m->write = write;
    return ONCE_OK;
}

/* The last slots, if they are empty: of keys that were looked for and have no entry. */
static void drop_empty_slots(once_mem *m)
{
    for (; m->slots.n && !m->slots.at[m->slots.n - 1].record; m->slots.n--)
        (void)once_table_remove(&m->by_id, m->slots.at[m->slots.n - 1].id);
}

static void tx_over(once_mem *m)
{
    assert(m->open || m->undos.n == 0);
    drop_empty_slots(m);
    m->tx++;
    m->open = m->write = false;
    m->undos.n = 0;
    once_arena_reset(&m->tx_arena);
}

static int mem_commit(once_storage *storage, once_error *err)
{
    (void)err;
    once_mem *m = once__mem_of(storage);
    assert(m->open && (m->write || m->undos.n == 0));
    for (size_t i = 0; i < m->undos.n; i++) {
        once__mem_record_free(m->undos.at[i].record);
        once__mem_letter_free(m->undos.at[i].letter);
        once__mem_fact_free(m->undos.at[i].fact);
    }
    tx_over(m);
    return ONCE_OK;
}

static void mem_rollback(once_storage *storage)
{
    once_mem *m = once__mem_of(storage);
    while (m->undos.n) {
        once_mem_undo *u = &m->undos.at[--m->undos.n];
        switch (u->what) {
        case UNDO_ENTRY:
            once__mem_record_free(m->slots.at[u->index].record);
            m->slots.at[u->index].record = u->record;
            break;
        case UNDO_LANE: m->lanes.at[u->index] = u->lane; break;
        case UNDO_LETTER_PUT:
            once__mem_letter_free(m->letters.at[u->index]);
            m->letters.n = u->index;
            break;
        case UNDO_LETTER_DROP: /* or the letter was counted: then its new version is in its place */
            once__mem_letter_free(m->letters.at[u->index]);
            m->letters.at[u->index] = u->letter;
            break;
        case UNDO_AUDIT: once__mem_audit_free(m->audits.at[--m->audits.n]); break;
        case UNDO_FACT:
            once__mem_fact_free(m->facts.at[u->index]);
            m->facts.at[u->index] = u->fact;
            break;
        }
    }
    tx_over(m);
}

/* --- entries --- */

static int mem_load(once_storage *storage, once_hash id, once_entry **out, once_error *err)
{
    once_mem *m = once__mem_of(storage);
    assert(m->open);
    once_mem_slot *s = slot_of(m, id);
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

static bool mem_has_none(const once_storage *storage, once_hash id)
{
    const once_mem *m = (const once_mem *)storage;
    return !once_table_get(&m->by_id, id);
}

static int mem_save(once_storage *storage, once_entry *entry, once_error *err)
{
    once_mem *m = once__mem_of(storage);
    assert(m->write);
    once_mem_slot *s = slot_of(m, entry->id);
    if (!s || !ONCE_MEM_ROOM(m->undos)) return once_no_memory(err, "in the memory store");

    once_mem_record *fresh = NULL;
    if (entry->state != ONCE_STATE_ABSENT) {
        fresh = calloc(1, sizeof *fresh);
        if (!fresh || !once__entry_copy(&fresh->arena, entry, &fresh->entry)) {
            once__mem_record_free(fresh);
            return once_no_memory(err, "in the memory store");
        }
        *entry = fresh->entry; /* from here on the store owns the bytes */
    }
    m->undos.at[m->undos.n++] =
        (once_mem_undo){.what = UNDO_ENTRY, .index = (size_t)(s - m->slots.at), .record = s->record};
    s->record = fresh;
    return ONCE_OK;
}

/* --- open, close --- */

static const once_storage_ops memory_storage = {
    .begin = mem_begin,
    .commit = mem_commit,
    .rollback = mem_rollback,
    .load = mem_load,
    .has_none = mem_has_none,
    .save = mem_save,
    .lane = once__mem_lane,
    .save_lane = once__mem_save_lane,
    .lane_head = once__mem_lane_head,
    .lane_equals = once__mem_lane_equals,
    .due = once__mem_due,
    .due_of_operations = once__mem_due_of_operations,
    .by_token = once__mem_by_token,
    .lapsed = once__mem_lapsed,
    .lanes_waiting = once__mem_lanes_waiting,
    .lane_before = once__mem_lane_before,
    .letter_put = once__mem_letter_put,
    .letter_get = once__mem_letter_get,
    .letter_drop = once__mem_letter_drop,
    .audit_put = once__mem_audit_put,
    .list = once__mem_list,
    .letters = once__mem_letters,
    .audits = once__mem_audits,
    .stats = once__mem_stats,
    .waiting_size = once__mem_waiting_size,
    .fact_get = once__mem_fact_get,
    .fact_set = once__mem_fact_set,
    .facts = once__mem_facts,
};

static int mem_open(const char *rest, const once_store_options *options, once_backend **out, once_error *err)
{
    if (*rest) return once_fail(err, ONCE_E_USAGE, "store 'memory:%s' has a path; write 'memory:'", rest);
    once_mem *m = calloc(1, sizeof *m);
    if (!m) return once_no_memory(err, "in the memory store");
    m->storage.store.ops = &once__store_memory;
    m->storage.store.bits = ONCE_STORE_TX | ONCE_STORE_OWNS | ONCE_STORE_LANES | ONCE_STORE_LIST | ONCE_STORE_CLOCK;
    m->storage.store.env = options && options->env ? options->env : once_env_real();
    m->storage.ops = &memory_storage;
    once__store_sign(&m->storage.store);
    once_env_random(m->storage.store.env, &m->storage.store.secret, sizeof m->storage.store.secret);
    *out = &m->storage.store;
    return ONCE_OK;
}

static void mem_close(once_backend *store)
{
    once_mem *m = (once_mem *)store;
    assert(!m->open && m->undos.n == 0); /* the caller has ended its transaction */
    for (size_t i = 0; i < m->slots.n; i++) once__mem_record_free(m->slots.at[i].record);
    for (size_t i = 0; i < m->letters.n; i++) once__mem_letter_free(m->letters.at[i]);
    for (size_t i = 0; i < m->audits.n; i++) once__mem_audit_free(m->audits.at[i]);
    for (size_t i = 0; i < m->facts.n; i++) once__mem_fact_free(m->facts.at[i]);
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
    .absent = once__engine_absent,
    .find = once__engine_find,
    .sweep = once__mem_sweep,
    .verified = "is in memory; there is nothing to read",
    .fact_set = once__engine_fact_set,
    ONCE_ENGINE_OPS,
};
