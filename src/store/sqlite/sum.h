/* Checksums over everything that the sqlite store writes, verified whenever it is read: a flipped bit must be an error,
 * and never "not seen".
 *
 * A blob of records, tails or filters is sealed: the last eight bytes are a sum over the bytes before them, the table,
 * the row's id and one more number. So a blob under another id is damaged, too.
 *
 * A row of single columns has a column `sum`: once_sum(letter, column, ...), an SQL function of our connections. It is
 * written as once_sum('d', ?1, ?2 ...) and read as sum = once_sum('d', entry, tenant ...), from the same list of
 * columns: a column added to the list is covered. The list has the id where it is known before the row is written;
 * otherwise once_store has a sum over the ids that exist. Of rows of once_entry, rows.c computes the same sum. */
#ifndef ONCE_STORE_SQLITE_SUM_H
#define ONCE_STORE_SQLITE_SUM_H

#include <sqlite3.h>

#include "base/buf.h"
#include "base/hash.h"

enum { ONCE_SEAL = 8 };

/* `table` is a letter, another one for each kind of row. */
static inline uint64_t once__sum(char table, uint64_t id, uint64_t more, once_bytes bytes)
{
    const uint64_t seed = (id ^ (uint64_t)(unsigned char)table << 56) + more * UINT64_C(0x9e3779b97f4a7c15);
    return once_xxh128(seed, bytes.data, bytes.len).a;
}

/* A value as SQLite has it: SQLITE_NULL, SQLITE_INTEGER, SQLITE_TEXT or SQLITE_BLOB. */
typedef struct once_sql_value {
    int type;
    int64_t integer;
    once_bytes bytes;
} once_sql_value;

/* What once_sum gives for the letter and these values. */
int64_t once__sum_of_row(char table, const once_sql_value *values, size_t n);

/* Registers once_sum with the connection. */
int once__sum_register(sqlite3 *handle);
void once__sum_unregister(sqlite3 *handle); /* after the last statement that uses it is gone */

/* Appends the bytes and their seal; false: out of memory. */
bool once__seal(once_buf *out, char table, uint64_t id, uint64_t more, once_bytes bytes);
/* Takes the seal off; false: damaged. */
bool once__unseal(char table, uint64_t id, uint64_t more, once_bytes *bytes);

#endif
