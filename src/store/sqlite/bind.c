/* Binds values to statements, and reads them from rows. */

#include "store/sqlite/parts.h"

#include "base/banned.h"

int once__live_damaged(once_sqlite *q, const char *what, once_error *err)
{
    return once_fail(err, ONCE_E_CORRUPT, "file '%s': %s is damaged; restore it from a backup", q->db->path, what);
}

void once__bind_bytes(sqlite3_stmt *stmt, int at, once_bytes bytes)
{
    if (bytes.len) sqlite3_bind_blob64(stmt, at, bytes.data, bytes.len, SQLITE_STATIC);
    else sqlite3_bind_zeroblob(stmt, at, 0);
}

void once__bind_id(sqlite3_stmt *stmt, int at, const unsigned char id[16])
{
    sqlite3_bind_blob(stmt, at, id, 16, SQLITE_STATIC);
}

bool once__column_copy(sqlite3_stmt *stmt, int at, once_arena *arena, once_bytes *out)
{
    const void *data = sqlite3_column_blob(stmt, at);
    const once_bytes bytes = {data, (size_t)sqlite3_column_bytes(stmt, at)};
    *out = (once_bytes){0};
    return bytes.len == 0 || once_arena_copy(arena, bytes, out);
}

bool once__column_id(sqlite3_stmt *stmt, int at, once_hash *out)
{
    *out = (once_hash){0};
    if (sqlite3_column_type(stmt, at) == SQLITE_NULL) return true;
    const void *data = sqlite3_column_blob(stmt, at);
    if (!data || sqlite3_column_bytes(stmt, at) != 16) return false;
    *out = once__id_read(data);
    return true;
}
