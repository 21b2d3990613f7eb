/* Small named facts of the sqlite store: rows of once_fact. */
#include <assert.h>
#include <string.h>

#include "base/no_memory.h"
#include "store/sqlite/parts.h"

#include "base/banned.h"

/* An empty value deletes the fact. */
int once__sqlite_store_put_fact(once_sqlite *q, const char *name, once_bytes value, once_error *err)
{
    assert(q->open && q->write && name[0]);
    int rc = once__present_check(q, PRESENT_FACTS, INT64_MAX - 1, err);
    sqlite3_stmt *stmt = q->sql[value.len ? SQL_FACT_SET : SQL_FACT_DELETE];
    sqlite3_bind_text(stmt, 1, name, -1, SQLITE_STATIC);
    if (value.len) once__bind_bytes(stmt, 2, value);
    if (rc == ONCE_OK) rc = once__sqlite_step(q->db, stmt, err);
    const bool met = rc == ONCE_OK && sqlite3_changes64(q->db->handle) > 0;
    if (rc != ONCE_OK || met != !value.len) return rc; /* the row was changed, or there was none to delete */
    if (value.len) {
        stmt = q->sql[SQL_FACT_ADD];
        sqlite3_bind_text(stmt, 1, name, -1, SQLITE_STATIC);
        once__bind_bytes(stmt, 2, value);
        rc = once__sqlite_step(q->db, stmt, err);
    }
    if (rc == ONCE_OK) once__present_change(q, PRESENT_FACTS, (once_bytes){name, strlen(name)}, !value.len);
    return rc;
}

int once__sqlite_store_fact_get(once_storage *storage, const char *name, once_bytes *out, once_arena *arena,
                                once_error *err)
{
    assert(once__sqlite_of(storage)->open && name[0]);
    once_sqlite *q = once__sqlite_of(storage);
    sqlite3_stmt *stmt = q->sql[SQL_FACT_GET];
    int rc = once__present_check(q, PRESENT_FACTS, INT64_MAX - 1, err);
    if (rc != ONCE_OK) return rc;
    sqlite3_bind_text(stmt, 1, name, -1, SQLITE_STATIC);
    const int code = sqlite3_step(stmt);
    if (code == SQLITE_ROW && !sqlite3_column_int(stmt, 1))
        rc = once_fail(err, ONCE_E_CORRUPT, "file '%s': the fact '%s' is damaged; restore it from a backup",
                       q->db->path, name);
    else if (code == SQLITE_ROW)
        rc = once__column_copy(stmt, 0, arena, out) ? ONCE_OK : once_no_memory(err, "in the sqlite store");
    else if (code != SQLITE_DONE) rc = once__sqlite_fail(q->db, code, err);
    sqlite3_reset(stmt);
    return rc;
}

int once__sqlite_store_fact_set(once_storage *storage, const char *name, once_bytes value, once_error *err)
{
    once_sqlite *q = once__sqlite_of(storage);
    q->wrote = true;
    return once__sqlite_store_put_fact(q, name, value, err);
}

int once__sqlite_store_facts(once_storage *storage, const char *prefix, once_fact_visit *visit, void *user,
                             once_error *err)
{
    assert(once__sqlite_of(storage)->open);
    once_sqlite *q = once__sqlite_of(storage);
    sqlite3_stmt *stmt = q->sql[SQL_FACTS];
    int rc = once__present_check(q, PRESENT_FACTS, INT64_MAX - 1, err);
    if (rc != ONCE_OK) return rc;
    sqlite3_bind_text(stmt, 1, prefix, -1, SQLITE_STATIC);
    int code;
    while (rc == ONCE_OK && (code = sqlite3_step(stmt)) != SQLITE_DONE) {
        const once_bytes name = {(const char *)sqlite3_column_text(stmt, 0), (size_t)sqlite3_column_bytes(stmt, 0)};
        if (code != SQLITE_ROW) rc = once__sqlite_fail(q->db, code, err);
        else if (!sqlite3_column_int(stmt, 2))
            rc = once_fail(err, ONCE_E_CORRUPT, "file '%s': the fact '%.*s' is damaged; restore it from a backup",
                           q->db->path, (int)name.len, name.data);
        else if (!visit(user, name, (once_bytes){sqlite3_column_blob(stmt, 1), (size_t)sqlite3_column_bytes(stmt, 1)}))
            break;
    }
    sqlite3_reset(stmt);
    return rc;
}
