/* Internal header of the records of the sqlite store. Only settled.c (layout, recent records, lookup),
 * settled_runs.c (runs and their filters) and settled_merge.c (flush, merge, sweep) include it. */
#ifndef ONCE_STORE_SQLITE_SETTLED_IMPL_H
#define ONCE_STORE_SQLITE_SETTLED_IMPL_H

#include "base/table.h"
#include "store/sqlite/settled.h"
#include "store/sqlite/sum.h"

enum {
    FANOUT = 8,
    FANOUT_BITS = 3,
    CHUNK = 64,        /* buckets whose filters share a row */
    FILTER_BYTES = 16, /* per bucket: 8 bits a record */
    FILTER_PROBES = 5,
    STEP = 8,   /* positions of a merge step; STEP * FANOUT must be a multiple of CHUNK */
    LEVELS = 7, /* the last level is not merged: 64 Ki * 8^6 records a run */
    RUNS_MAX = 256,
    EXPECTED = 8 /* so far ahead the CPU is told which part of the index will be read */
};

#define BYTES_MAX ((size_t)1 << 40) /* of a buffer; the real bounds are recent_bytes, and the size of a transaction */

_Static_assert(1 << FANOUT_BITS == FANOUT, "the fanout is a power of two");
_Static_assert(STEP *FANOUT % CHUNK == 0, "a merge step completes rows of filters");

enum { RECENT = 'r', BUCKET = 'b', FILTER = 'f', RUN = 'u' }; /* the letter of each table in its sums */

enum run_state { WHOLE = 0, INPUT = 1, OUTPUT = 2, DROPPING = 3 }; /* column once_run.state */

typedef struct run {
    int64_t id;
    unsigned level;
    enum run_state state;
    uint32_t cursor; /* OUTPUT: input positions merged; DROPPING: buckets deleted; WHOLE: buckets swept in this pass */
    uint64_t records;
    int64_t min_keep_ms, max_keep_ms, created_ms, swept_ms;
    uint32_t from, to;       /* buckets that are valid: set by arrange() */
    unsigned char **filters; /* [buckets / CHUNK]; NULL: not in memory */
    uint32_t filters_high;   /* no filter in memory at or above this chunk */
} run;

enum statement {
    RECENT_INSERT,
    RECENT_SINCE,
    RECENT_DELETE,
    RUN_INSERT,
    RUN_UPDATE,
    RUN_DELETE,
    RUN_ALL,
    BUCKET_GET,
    BUCKET_RANGE,
    BUCKET_INSERT,
    BUCKET_UPDATE,
    BUCKET_DELETE,
    BUCKET_DELETE_RANGE,
    FILTER_INSERT,
    FILTER_GET,
    FILTER_RANGE,
    FILTER_DELETE_RANGE,
    STATEMENTS
};

/* Records in memory: their bytes, and the position of each one. */
typedef struct pile {
    once_buf records, tails;
    once_record_ref *refs;
    size_t n, capacity;
} pile;

struct once_settled {
    once_sqlite_db *db;
    once_settled_limits limits;
    once_settled_head head;
    bool distrusted; /* memory may differ from the tables */
    sqlite3_stmt *statements[STATEMENTS];

    pile recent;
    size_t written;                        /* how many of recent.refs are in the tables ... */
    size_t written_records, written_tails; /* ... and of their bytes */
    once_table index;                      /* by id: positions in recent.refs */
    size_t n_claims;                       /* how many of recent.refs are claims ... */
    once_table claims;                     /* ... and which of these are the newest of their ids, as `index` */

    run *runs[RUNS_MAX]; /* newest first */
    size_t n_runs;
    size_t filter_bytes;

    pile scratch;                               /* what a merge step or a sweep reads */
    once_buf out, out_tails;                    /* a bucket being written */
    once_buf sealed, sealed_tails;              /* the same, as they go into the tables */
    unsigned char filter[CHUNK * FILTER_BYTES]; /* the last filter that was read from its table */
    unsigned char *fresh_filters;               /* of the buckets of one step or flush */
    size_t fresh_size;
    uint32_t *order; /* of a flush */
    size_t order_size;
};

/* ---- settled.c ---- */

int once__settled_damaged(once_settled *s, const char *what, once_error *err);

bool once__pile_push(pile *p, const once_record_ref *ref);
void once__pile_clear(pile *p);
once_bytes once__pile_slice(const once_buf *buf, size_t at, size_t len);
/* Appends all records of a row; `what` names the table in the error when they cannot be read. */
int once__pile_blob(once_settled *s, pile *p, once_bytes records, once_bytes tails, const char *what, once_error *err);

/* Statements: bind the first parameter (and a range of buckets or chunks of a run), then step. */
sqlite3_stmt *once__settled_bound(once_settled *s, enum statement which, int64_t first);
sqlite3_stmt *once__settled_bound_range(once_settled *s, enum statement which, const run *r, uint32_t from,
                                        uint32_t to);
int once__settled_step(once_settled *s, enum statement which, once_error *err);
/* Writes a row (id, records, tails) of once_recent or once_bucket, and reads one; damage is an error. */
int once__settled_write(once_settled *s, enum statement which, int64_t id, once_bytes records, once_bytes tails,
                        once_error *err);
bool once__settled_unseal(const once_settled *s, char table, int64_t id, once_bytes *records, once_bytes *tails);
/* Whether a row of this table and id has seals. */
bool once__settled_sealed(const once_settled *s, char table, int64_t id);
once_bytes once__settled_column(sqlite3_stmt *stmt, int at);

void once__recent_clear(once_settled *s);
/* Whether this record is a claim that no later record ends. */
bool once__recent_is_open(const once_settled *s, const once_record_ref *ref);
/* Writes one row of once_recent with the records added since the last one. */
int once__recent_write(once_settled *s, once_error *err);
/* Copies the bytes of a record into the arena. */
bool once__record_own(once_arena *arena, once_record *r);

/* ---- settled_runs.c ---- */

unsigned once__level_bits(const once_settled *s, unsigned level);
uint32_t once__level_buckets(const once_settled *s, unsigned level);
uint32_t once__level_bucket(const once_settled *s, unsigned level, once_hash id);

uint64_t once__runs_sum(const once_settled *s);
/* Sorts the runs and sets the valid buckets of each; called after every change of a state or a cursor. */
void once__runs_arrange(once_settled *s);
/* Brings the runs in memory up to date with once_run. */
int once__runs_load(once_settled *s, once_error *err);
/* Adds a new run to the tables and to memory; takes one out of both. */
int once__run_start(once_settled *s, unsigned level, enum run_state state, int64_t now_ms, run **out, once_error *err);
int once__run_remove(once_settled *s, run *r, once_error *err);
int once__run_write(once_settled *s, const run *r, enum statement which, once_error *err);
void once__run_free(once_settled *s, run *r);
void once__run_count(run *r, int64_t keep_ms);
/* Looks for an id in one run. */
int once__run_find(once_settled *s, const run *r, once_hash id, once_record *out, once_arena *arena, once_error *err);
/* Appends the records of some buckets to the scratch pile. */
int once__run_read(once_settled *s, const run *r, uint32_t from, uint32_t to, once_error *err);

/* Scratch filters for the buckets that are being written, and keeping them. */
bool once__filters_fresh(once_settled *s, uint32_t buckets);
void once__filter_set(unsigned char *block, once_hash id);
int once__filters_write(once_settled *s, run *r, uint32_t first, uint32_t buckets, once_error *err);
void once__filter_drop(once_settled *s, run *r, uint32_t chunk);

/* ---- settled_merge.c ---- */

/* Turns all recent records but claims into a run of level 0, or several after a giant transaction. */
int once__settled_flush(once_settled *s, int64_t now_ms, once_error *err);
/* Does as much merging as is due. */
int once__settled_merge(once_settled *s, int64_t now_ms, once_error *err);

#endif
