/* Checksums over what the sqlite store writes, verified whenever it is read: a flipped bit must be an error, and never
 * "not seen".
 *
 * A blob of records, tails or filters is sealed: eight bytes behind it are the sum of the bytes before them, of the
 * table, the row's id and one more number. A blob under another id is therefore damaged, too.
 *
 * A row of single columns has a column `sum`: once_sum(letter, column, ...), an SQL function of our connections. It is
 * written as once_sum('e', ?2, ?3 ...) and read as sum = once_sum('e', id, state ...), from the same list of columns:
 * whoever adds a column there has it covered. The id is in that list where it is known before the row is written; where
 * it is not, there is a sum over which ids there are (once_store). */
#ifndef ONCE_STORE_SQLITE_SUM_H
#define ONCE_STORE_SQLITE_SUM_H

#include <sqlite3.h>

#include "base/buf.h"
#include "base/hash.h"

enum { ONCE_SEAL = 8 };

/* `table` is a letter of its own for each kind of row. */
static inline uint64_t once__sum(char table, uint64_t id, uint64_t more, once_bytes bytes)
{
    const uint64_t seed = (id ^ (uint64_t)(unsigned char)table << 56) + more * UINT64_C(0x9e3779b97f4a7c15);
    return once_xxh128(seed, bytes.data, bytes.len).a;
}

/* Makes once_sum known to the connection. */
int once__sum_register(sqlite3 *handle);
void once__sum_unregister(sqlite3 *handle); /* when no statement uses it any more */

/* Appends the bytes and their seal; false: out of memory. */
bool once__seal(once_buf *out, char table, uint64_t id, uint64_t more, once_bytes bytes);
/* Takes the seal off; false: damaged. */
bool once__unseal(char table, uint64_t id, uint64_t more, once_bytes *bytes);

#endif
