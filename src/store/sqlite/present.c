/* A sum over the ids of the rows of a table: it shows when a row can no longer be found. */
#include <assert.h>

#include "store/sqlite/parts.h"

#include "base/banned.h"

static const char *const present_tables[PRESENTS] = {"once_entry", "once_lane", "once_fact", "once_letter",
                                                     "once_audit"};

static uint64_t present_sum(enum once_present which, once_bytes id) { return once__sum('p', which, 0, id) | 1; }

void once__present_change(once_sqlite *q, enum once_present which, once_bytes id, bool gone)
{
    assert(which < PRESENTS && id.len > 0);
    const uint64_t sum = present_sum(which, id);
    q->present[which] += gone ? -sum : sum;
}

void once__present_change_row(once_sqlite *q, enum once_present which, int64_t id, bool gone)
{
    once__present_change(q, which, (once_bytes){(const char *)&id, sizeof id}, gone);
}

/* The identity of a row: a number, an id or a text, read as UTF-8 even from a user's UTF-16 file. */
static once_bytes column_name(sqlite3_stmt *stmt, int64_t *row)
{
    const int type = sqlite3_column_type(stmt, 0);
    *row = type == SQLITE_INTEGER ? sqlite3_column_int64(stmt, 0) : 0;
    if (type == SQLITE_INTEGER) return (once_bytes){(const char *)row, sizeof *row};
    const void *name = type == SQLITE_TEXT ? (const void *)sqlite3_column_text(stmt, 0) : sqlite3_column_blob(stmt, 0);
    return (once_bytes){name, (size_t)sqlite3_column_bytes(stmt, 0)};
}

/* Reads the rows by the index that lookups use, because that index must find them. */
int once__present_count(once_sqlite *q, enum once_present which, int64_t limit, uint64_t *out, bool *all,
                        once_error *err)
{
    assert(which < PRESENTS && limit > 0);
    static const char *const sql[PRESENTS] = {
        "SELECT id FROM once_entry ORDER BY id LIMIT ?1", "SELECT id FROM once_lane LIMIT ?1",
        "SELECT name FROM once_fact LIMIT ?1", "SELECT id FROM once_letter ORDER BY consumer, id LIMIT ?1",
        "SELECT id FROM once_audit LIMIT ?1"};
    sqlite3_stmt *stmt;
    int code, rc = once__sqlite_prepare(q->db, sql[which], &stmt, err);
    if (rc != ONCE_OK) return rc;
    int64_t n = 0, row;
    *out = 0;
    sqlite3_bind_int64(stmt, 1, limit + 1);
    while ((code = sqlite3_step(stmt)) == SQLITE_ROW && ++n <= limit) {
        *out += present_sum(which, column_name(stmt, &row));
    }
    *all = code == SQLITE_DONE;
    if (code != SQLITE_DONE && code != SQLITE_ROW) rc = once__sqlite_fail(q->db, code, err);
    sqlite3_finalize(stmt);
    return rc;
}

int once__present_check(once_sqlite *q, enum once_present which, int64_t limit, once_error *err)
{
    assert(which < PRESENTS && limit > 0);
    uint64_t sum;
    bool all;
    if (q->present_checked[which]) return ONCE_OK;
    const int rc = once__present_count(q, which, limit, &sum, &all, err);
    if (rc != ONCE_OK) return rc;
    if (all && sum != q->present[which])
        return once_fail(err, ONCE_E_CORRUPT,
                         "file '%s': table %s is damaged: rows are missing or have changed; restore it from a backup",
                         q->db->path, present_tables[which]);
    q->present_checked[which] = true;
    return ONCE_OK;
}
