/* A filter of the ids that may have a row in once_entry, so that a batch of new keys needs no query. It never misses a
 * row of the table. */
#include <assert.h>
#include <string.h>

#include "store/sqlite/parts.h"

#include "base/banned.h"

enum { LIVE_KNOWN_MAX = 4096, LIVE_GONE_MAX = 1024 };

int once__live_filter_build(once_sqlite *q, once_error *err)
{
    assert(!q->live.known);
    once_live_filter *live = &q->live;
    const int checked = once__present_check(q, PRESENT_ENTRIES, PRESENT_LIMIT, err);
    if (checked != ONCE_OK) return checked;
    memset(live, 0, sizeof *live);
    sqlite3_stmt *stmt = q->sql[SQL_ENTRY_IDS];
    int code;
    sqlite3_bind_int(stmt, 1, LIVE_KNOWN_MAX + 1);
    while ((code = sqlite3_step(stmt)) == SQLITE_ROW) {
        once_hash id;
        if (!once__column_id(stmt, 0, &id)) {
            sqlite3_reset(stmt);
            return once__live_damaged(q, "table once_entry", err);
        }
        const unsigned bit = id.b & (8 * sizeof live->bits - 1);
        live->bits[bit / 8] = (unsigned char)(live->bits[bit / 8] | 1u << bit % 8);
        live->rows++;
    }
    const int rc = code == SQLITE_DONE ? ONCE_OK : once__sqlite_fail(q->db, code, err);
    sqlite3_reset(stmt);
    live->many = live->rows > LIVE_KNOWN_MAX;
    live->known = rc == ONCE_OK;
    return rc;
}

bool once__live_filter_may_have(const once_live_filter *live, once_hash id)
{
    assert(live->known);
    const unsigned bit = id.b & (8 * sizeof live->bits - 1);
    return live->many || (live->bits[bit / 8] >> bit % 8 & 1);
}

void once__live_filter_add(once_live_filter *live, once_hash id)
{
    const unsigned bit = id.b & (8 * sizeof live->bits - 1);
    live->bits[bit / 8] = (unsigned char)(live->bits[bit / 8] | 1u << bit % 8);
    live->rows++;
    if (++live->added > LIVE_KNOWN_MAX) live->known = false; /* most of these rows are gone: build the filter anew */
}

void once__live_filter_remove(once_live_filter *live)
{
    if (live->many) { /* then "may have" is right in any case; now and then look whether they are still so many */
        if (++live->gone > LIVE_GONE_MAX) live->known = false;
    } else if (--live->rows == 0) {
        memset(live->bits, 0, sizeof live->bits);
        live->added = 0;
    }
}

/* Whether the table is certainly empty. */
bool once__live_no_rows(const once_sqlite *q) { return q->live.known && !q->live.many && q->live.rows == 0; }
