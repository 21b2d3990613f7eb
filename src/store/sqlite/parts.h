/* Internal interface between the files of the sqlite store. */
#ifndef ONCE_STORE_SQLITE_PARTS_H
#define ONCE_STORE_SQLITE_PARTS_H

#include "store/sqlite/sqlite.h"

/* The text of each statement. On a borrowed connection, the second list replaces the statements that it has
 * (statements.c). */
extern const char *const once__sqlite_sql[SQL_STATEMENTS], *const once__sqlite_borrowed_sql[SQL_STATEMENTS];

/* Length of the column fingerprint. In the row of an entry with a new idempotency key it is one byte longer, and its
 * fields follow (core/fields.h). Programs from before version 5 that still run then refuse the row: they would give its
 * message an old key. */
enum { PRINT = 16, NEW_PRINT = 17 };

typedef void once_damage_told(void *user, const char *text);

/* ---- tx.c ---- */

/* The row of once_store. */
int once__sqlite_store_read_head(once_sqlite *q, once_settled_head *head, once_error *err);
int once__sqlite_store_write_head(once_sqlite *q, once_error *err);
int once__sqlite_store_begin(once_storage *storage, bool write, once_error *err);
int once__sqlite_store_commit(once_storage *storage, once_error *err);
void once__sqlite_store_rollback(once_storage *storage);

/* ---- find.c ---- */

/* Collects the ids that the bound statement finds. */
int once__sqlite_store_collect_ids(once_sqlite *q, sqlite3_stmt *stmt, once_hash *out, size_t *n, once_error *err);
int once__sqlite_store_due_of_operations(once_storage *storage, once_bytes consumer, int64_t now_ms,
                                         once_due_search *search, once_hash *out, size_t *n, once_error *err);
int once__sqlite_store_due(once_storage *storage, once_bytes consumer, int64_t now_ms, size_t max, once_hash *out,
                           size_t *n, once_error *err);
int once__sqlite_store_by_token(once_storage *storage, once_bytes consumer, uint64_t token_a, size_t max,
                                once_hash *out, size_t *n, once_error *err);
int once__sqlite_store_lapsed(once_storage *storage, once_bytes consumer, int64_t now_ms, size_t max, once_hash *out,
                              size_t *n, once_error *err);

/* ---- letters.c ---- */

int once__sqlite_store_letter_put(once_storage *storage, const once_letter *l, once_hash unique, bool *fresh,
                                  once_error *err);
int once__sqlite_store_letter_get(once_storage *storage, uint64_t id, once_letter *out, bool *found, once_arena *arena,
                                  once_error *err);
int once__sqlite_store_letter_drop(once_storage *storage, uint64_t id, once_error *err);
int once__sqlite_store_letters(once_storage *storage, const once_letter_query *what, once_page *page,
                               once_letter_visit *visit, void *user, once_error *err);

/* ---- audit.c ---- */

int once__sqlite_store_audit_put(once_storage *storage, const once_audit *audit, once_error *err);
int once__sqlite_store_audits(once_storage *storage, once_bytes consumer, once_page *page, once_audit_visit *visit,
                              void *user, once_error *err);

/* ---- lists.c ---- */

int once__sqlite_store_list(once_storage *storage, once_bytes consumer, once_state state, once_page *page,
                            once_entry_visit *visit, void *user, once_error *err);
int once__sqlite_store_stats(once_storage *storage, once_bytes consumer, once_stats *out, once_error *err);
int once__sqlite_store_waiting_size(once_storage *storage, once_bytes consumer, once_waiting_size *out,
                                    once_error *err);

/* ---- sweep.c ---- */

int once__sqlite_store_sweep(once_backend *store, size_t limit, once_sweep_result *out, once_error *err);

/* ---- facts.c ---- */

/* In a transaction; an empty value deletes. */
int once__sqlite_store_put_fact(once_sqlite *q, const char *name, once_bytes value, once_error *err);
int once__sqlite_store_fact_get(once_storage *storage, const char *name, once_bytes *out, once_arena *arena,
                                once_error *err);
int once__sqlite_store_fact_set(once_storage *storage, const char *name, once_bytes value, once_error *err);
int once__sqlite_store_facts(once_storage *storage, const char *prefix, once_fact_visit *visit, void *user,
                             once_error *err);

/* ---- confirm.c ---- */

int once__sqlite_store_confirm_time(once_backend *store, once_error *err);

/* ---- verify.c ---- */

int once__sqlite_store_verify(once_backend *store, once_damage_told *damage, void *user, once_error *err);

/* ---- upgrade.c ---- */

int once__sqlite_store_migrate_1_to_2(once_sqlite *q, once_error *err);

/* ---- bind.c ---- */

/* ONCE_E_CORRUPT, in words. */
int once__live_damaged(once_sqlite *q, const char *what, once_error *err);

/* ---- filter.c ---- */

int once__live_filter_build(once_sqlite *q, once_error *err);
bool once__live_filter_may_have(const once_live_filter *live, once_hash id);
void once__live_filter_add(once_live_filter *live, once_hash id);
void once__live_filter_remove(once_live_filter *live);
bool once__live_no_rows(const once_sqlite *q);

/* ---- rows.c ---- */

/* The entries that once_rows has while a statement runs. */
typedef struct once_rows {
    once_slot *const *slots;
    size_t n;
} once_rows;

/* Registers once_rows with the connection. */
int once__rows_register(sqlite3 *handle);
void once__rows_unregister(sqlite3 *handle); /* after the last statement that uses it is gone */
/* Sets ?1 of a statement that reads once_rows(?1). */
void once__rows_bind(sqlite3_stmt *stmt, const once_rows *rows);

/* ---- kept.c ---- */

/* Keeps a slot of the transaction that has just been committed, if it is a claim that is a row. */
void once__kept_add(once_sqlite *q, const once_slot *slot);
/* Fills the new slot from memory. False: it is not kept. */
bool once__kept_take(once_sqlite *q, once_slot *slot);
void once__kept_clear(once_sqlite *q);
void once__kept_release(once_sqlite *q);

/* ---- lanes.c ---- */

int once__live_join_lane(once_sqlite *q, once_slot *slot, once_error *err);

#endif
