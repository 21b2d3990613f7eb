/* Finished entries of the sqlite store, and claims that wait for their outcome: a log-structured merge tree in SQLite
 * tables. Layout and reasons: settled.c.
 *
 * All functions but open and close run inside a transaction of `db`. Memory mirrors the tables as this connection last
 * read them; once__settled_refresh brings it up to date at the beginning of a transaction. When a transaction that
 * called _add, _commit or _sweep does not commit, the caller calls once__settled_distrust.
 *
 * Thread rule: as the store. */
#ifndef ONCE_STORE_SQLITE_SETTLED_H
#define ONCE_STORE_SQLITE_SETTLED_H

#include "base/arena.h"
#include "db/sqlite/sqlite.h"
#include "store/sqlite/record.h"
#include "store/store.h"

typedef struct once_settled once_settled;

/* Sizes; tests make them tiny. */
typedef struct once_settled_limits {
    size_t recent_records; /* flush at so many records, without claims, ... */
    size_t recent_bytes;   /* ... or so many bytes */
    unsigned level0_bits;  /* a run of level 0 has 2^this buckets; at least 6 */
    size_t filter_bytes;   /* memory for all filters together */
} once_settled_limits;

extern const once_settled_limits once__settled_defaults;

/* The columns of the once_store row that belong to finished entries. The store reads them at begin and writes them at
 * commit. */
typedef struct once_settled_head {
    int64_t generation;  /* changes whenever once_run does */
    int64_t flushed;     /* once_recent rows up to this id have been flushed */
    int64_t last_recent; /* the highest id ever given to a row of once_recent */
    int64_t last_run;    /* and of once_run */
    int64_t
        unsealed_recent; /* rows of once_recent and runs up to these were written before there were seals (version 4) */
    int64_t unsealed_run;
    uint64_t runs_sum; /* of all rows of once_run, independent of their order */
    bool unsummed;     /* the tables come from version 4: runs_sum is not known yet */
} once_settled_head;

int once__settled_open(once_sqlite_db *db, const once_settled_limits *limits, once_settled **out, once_error *err);
void once__settled_close(once_settled *settled); /* NULL is fine */

/* `head` is the current row of the database. Cheap when nothing changed. */
int once__settled_refresh(once_settled *settled, const once_settled_head *head, once_error *err);
void once__settled_distrust(once_settled *settled);
const once_settled_head *once__settled_head(once_settled *settled); /* the head to write */

/* Looks for ids[n], which are sorted and distinct. out[i].keep_ms is 0 when there is no record; otherwise out[i] is the
 * newest one, which may have expired or be a tombstone. Bytes are in `arena`. Runs that have expired as a whole are not
 * read. */
int once__settled_find(once_settled *settled, const once_hash *ids, size_t n, int64_t now_ms, once_record *out,
                       once_arena *arena, once_error *err);

bool once__settled_has_none(const once_settled *settled); /* there are no records at all */

/* Adds a record, newer than all others. _commit writes the added records, and does its share of flushing and merging.
 * When it will flush, all claims that no later record ends must be rows of once_entry before: it drops their
 * records. */
int once__settled_add(once_settled *settled, const once_record *record, once_error *err);
bool once__settled_will_flush(const once_settled *settled);
int once__settled_commit(once_settled *settled, int64_t now_ms, once_error *err);

/* Shows the claims of earlier transactions that no later record ends, the oldest first. Bytes are valid until the next
 * _add. false from visit ends it. */
typedef bool once_record_visit(void *user, const once_record *record);
size_t once__settled_claims(const once_settled *settled); /* how many there are */
int once__settled_each_claim(once_settled *settled, once_record_visit *visit, void *user, once_error *err);

/* Drops expired records; reads about `limit` records at most. The caller commits after each call. */
int once__settled_sweep(once_settled *settled, size_t limit, int64_t now_ms, once_sweep_result *out, once_error *err);

/* Shows the newest record of every id, open claims included, without tombstones. Slow. false from visit ends it. */
int once__settled_each(once_settled *settled, int64_t now_ms, once_record_visit *visit, void *user, once_error *err);

/* For tests and `once status`. */
typedef struct once_settled_shape {
    size_t recent, runs, merging, levels;
    uint64_t records; /* in runs, shadowed ones and tombstones included */
    size_t filter_bytes;
} once_settled_shape;
void once__settled_shape(const once_settled *settled, once_settled_shape *out);

#endif
