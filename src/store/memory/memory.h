/* The memory store: the readable reference. It keeps nothing after close, shares nothing with other processes, and
 * searches everything from front to back.
 *
 * Invariant: entries are immutable records. Saving an entry puts a new record in its slot, and keeps the old one until
 * the transaction ends: commit frees the old records, rollback puts them back. Lanes, letters and facts work the same
 * way. */
#ifndef ONCE_STORE_MEMORY_MEMORY_H
#define ONCE_STORE_MEMORY_MEMORY_H

#include "base/table.h"
#include "store/engine.h"
#include "store/lane_record.h"

/* A value with its own arena. */
typedef struct once_mem_record {
    once_arena arena;
    once_entry entry;
} once_mem_record;

typedef struct once_mem_slot {
    once_hash id;
    once_mem_record *record; /* NULL: absent */
    once_entry *working;     /* the copy that load returned in transaction `tx`; in tx_arena */
    uint64_t tx;
} once_mem_slot;

typedef struct once_mem_lane {
    once_hash id;
    int64_t version, expires_ms;
    size_t len;
    unsigned char record[ONCE_LANE_RECORD];
} once_mem_lane;

typedef struct once_mem_letter {
    once_arena arena;
    once_letter letter;
    once_hash unique;
} once_mem_letter;

typedef struct once_mem_audit {
    once_arena arena;
    once_audit audit;
} once_mem_audit;

typedef struct once_mem_fact {
    char name[ONCE_FACT_NAME];
    once_arena arena;
    once_bytes value;
} once_mem_fact;

/* How rollback takes one change back. */
typedef struct once_mem_undo {
    enum { UNDO_ENTRY, UNDO_LANE, UNDO_LETTER_PUT, UNDO_LETTER_DROP, UNDO_AUDIT, UNDO_FACT } what;
    size_t index;
    once_mem_record *record; /* entry: the old one */
    once_mem_lane lane;      /* lane: the old one; expires_ms 0: there was none */
    once_mem_letter *letter; /* dropped letter */
    once_mem_fact *fact;     /* the old one; NULL: there was none */
} once_mem_undo;

#define ONCE_MEM_LIST(type)                                                                                            \
    struct {                                                                                                           \
        type *at;                                                                                                      \
        size_t n, capacity;                                                                                            \
    }

typedef struct once_mem {
    once_storage storage;
    ONCE_MEM_LIST(once_mem_slot) slots;
    once_table by_id; /* positions in slots */
    ONCE_MEM_LIST(once_mem_lane) lanes;
    ONCE_MEM_LIST(once_mem_letter *) letters;
    ONCE_MEM_LIST(once_mem_audit *) audits;
    ONCE_MEM_LIST(once_mem_fact *) facts;
    ONCE_MEM_LIST(once_mem_undo) undos;
    once_arena tx_arena;
    uint64_t tx;      /* number of the current or last transaction ... */
    bool open, write; /* ... which is open, and may write */
    uint64_t next_letter;
} once_mem;

static inline once_mem *once__mem_of(once_storage *storage) { return (once_mem *)storage; }

/* Makes room for one more item. */
#define ONCE_MEM_ROOM(list) once__mem_grow(&(list).at, (list).n, &(list).capacity, sizeof *(list).at)
bool once__mem_grow(void *list_at, size_t n, size_t *capacity, size_t size);

void once__mem_record_free(once_mem_record *r); /* NULL is fine, here and below */
void once__mem_letter_free(once_mem_letter *box);
void once__mem_audit_free(once_mem_audit *box);
void once__mem_fact_free(once_mem_fact *fact);

/* Slots of the storage (store/engine.h): lanes.c */
int once__mem_lane(once_storage *storage, once_hash id, once_hash except, once_lane *out, once_error *err);
int once__mem_save_lane(once_storage *storage, once_hash id, const once_lane *kept, once_error *err);
int once__mem_lane_head(once_storage *storage, once_hash id, once_hash *out, once_error *err);
int once__mem_lane_equals(once_storage *storage, once_hash id, int64_t order, int64_t *seen_ms, once_error *err);
int once__mem_lane_before(once_storage *storage, const once_entry *entry, size_t max, once_hash *out, size_t *n,
                          uint64_t *count, once_error *err);
int once__mem_lanes_waiting(once_storage *storage, const once_hash *lanes, size_t n_lanes, size_t each, size_t max,
                            once_hash *out, size_t *n, once_error *err);

/* search.c */
int once__mem_due(once_storage *storage, once_bytes consumer, int64_t now_ms, size_t max, once_hash *out, size_t *n,
                  once_error *err);
int once__mem_due_of_operations(once_storage *storage, once_bytes consumer, int64_t now_ms, once_due_search *search,
                                once_hash *out, size_t *n, once_error *err);
int once__mem_by_token(once_storage *storage, once_bytes consumer, uint64_t token_a, size_t max, once_hash *out,
                       size_t *n, once_error *err);
int once__mem_lapsed(once_storage *storage, once_bytes consumer, int64_t now_ms, size_t max, once_hash *out, size_t *n,
                     once_error *err);
int once__mem_sweep(once_backend *store, size_t limit, once_sweep_result *out, once_error *err);
int once__mem_list(once_storage *storage, once_bytes consumer, once_state state, once_page *page,
                   once_entry_visit *visit, void *user, once_error *err);
int once__mem_stats(once_storage *storage, once_bytes consumer, once_stats *out, once_error *err);
int once__mem_waiting_size(once_storage *storage, once_bytes consumer, once_waiting_size *out, once_error *err);

/* letters.c */
int once__mem_letter_put(once_storage *storage, const once_letter *letter, once_hash unique, bool *fresh,
                         once_error *err);
int once__mem_letter_get(once_storage *storage, uint64_t id, once_letter *out, bool *found, once_arena *arena,
                         once_error *err);
int once__mem_letter_drop(once_storage *storage, uint64_t id, once_error *err);
int once__mem_audit_put(once_storage *storage, const once_audit *audit, once_error *err);
int once__mem_audits(once_storage *storage, once_bytes consumer, once_page *page, once_audit_visit *visit, void *user,
                     once_error *err);
int once__mem_letters(once_storage *storage, const once_letter_query *what, once_page *page, once_letter_visit *visit,
                      void *user, once_error *err);
int once__mem_fact_get(once_storage *storage, const char *name, once_bytes *out, once_arena *arena, once_error *err);
int once__mem_fact_set(once_storage *storage, const char *name, once_bytes value, once_error *err);
int once__mem_facts(once_storage *storage, const char *prefix, once_fact_visit *visit, void *user, once_error *err);

#endif
