/* Finished entries: many (millions), with random ids, written once, looked up on every delivery, dropped by time.
 *
 * A B-tree row for each costs a random page per message. Here a commit appends one blob, and sorting is done later in
 * large pieces; so a record is written about once per level, always next to its neighbours. It is a small log-structured
 * merge tree, made of nothing but INSERT, UPDATE and DELETE inside the transaction that settles, so crash safety is SQLite's.
 *
 * Tables
 *   once_recent(id, records, tails)     one row per commit: what was settled in it, in that order (sqlite_record.h)
 *   once_run(id, level, state, cursor, records, min_keep_ms, max_keep_ms, created_ms, swept_ms)
 *   once_bucket(id = run << 32 | bucket, records, tails)    records sorted by id, one per id; no row: an empty bucket
 *   once_filter(id = run << 32 | chunk, blocks)             one Bloom block per bucket, CHUNK buckets a row
 *
 * Newest wins. The order from new to old is: recent rows by falling id, then runs by rising level and falling id.
 *
 * Recent records are also held in memory with a hash index. When there are enough of them they are flushed: sorted into a
 * run of level 0. A run of level L has 2^(level0_bits + 3L) buckets, chosen by the top bits of the id. Ids are a keyed hash,
 * so buckets fill evenly (about 16 records) and a lookup is one seek by rowid: no fences, no binary search.
 *
 * FANOUT runs of a level are merged into one of the next, a few bucket positions at a time. While that goes on
 *   inputs  (state INPUT)   own the positions from the cursor on; those before it have been deleted
 *   output  (state OUTPUT)  owns the positions before the cursor (in input positions; FANOUT output buckets each)
 * and the cursor is kept in the row of the output. There is at most one merge per level. How far a merge should be
 * follows from how full the level below is (merge_target), so every commit does a small share, nothing piles up, and no
 * bookkeeping survives outside the tables.
 *
 * Dropping by time. A record may go when keep_ms has passed. It is safe to drop it without looking at older records of its
 * id: keep_ms is at least that of every older record that may still be around (the caller sees to that; forgetting writes a
 * tombstone that is kept as long as what it hides). Merges and sweeps drop; a run whose max_keep_ms has passed is not read
 * any more, and deleted without being read.
 *
 * Filters: FILTER_BYTES per bucket, in memory up to limits.filter_bytes, newest and smallest runs first; buckets without
 * a filter in memory are probed on disk. Filters never miss a record; sweeping only leaves them too full.
 *
 * Other processes: rows of once_recent above `last seen` are new; a new `flushed` means that the recent records in memory
 * are in a run now; a new `generation` means that once_run changed. All three are read inside the transaction. A run's id is
 * never used again and its filters never change, so only what is new has to be loaded. */
#include "store/sqlite_settled.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/failpoint.h"

#include "base/banned.h"

enum {
    FANOUT = 8,
    FANOUT_BITS = 3,
    CHUNK = 64,          /* buckets whose filters share a row */
    FILTER_BYTES = 16,   /* per bucket: 8 bits a record */
    FILTER_PROBES = 5,
    STEP = 8,            /* positions of a merge step; STEP * FANOUT must be a multiple of CHUNK */
    LEVELS = 7,          /* the last one is not merged any more: 64 Ki * 8^6 records a run */
    RUNS_MAX = 256
};

#define BYTES_MAX ((size_t)1 << 40) /* of a buffer; the real bounds are recent_bytes, and the size of a transaction */

_Static_assert(1 << FANOUT_BITS == FANOUT, "the fanout is a power of two");
_Static_assert(STEP * FANOUT % CHUNK == 0, "a merge step completes rows of filters");

enum run_state { WHOLE = 0, INPUT = 1, OUTPUT = 2, DROPPING = 3 }; /* stored */

typedef struct run {
    int64_t id;
    unsigned level;
    enum run_state state;
    uint32_t cursor; /* OUTPUT: input positions merged; DROPPING: buckets deleted; WHOLE: buckets swept in this pass */
    uint64_t records;
    int64_t min_keep_ms, max_keep_ms, created_ms, swept_ms;
    uint32_t from, to;        /* buckets that count: set by arrange() */
    unsigned char **filters;  /* [buckets / CHUNK]; NULL: not in memory */
    uint32_t filters_high;    /* no filter in memory at or above this chunk */
} run;

enum statement {
    RECENT_INSERT, RECENT_SINCE, RECENT_DELETE,
    RUN_INSERT, RUN_UPDATE, RUN_DELETE, RUN_ALL,
    BUCKET_GET, BUCKET_RANGE, BUCKET_INSERT, BUCKET_UPDATE, BUCKET_DELETE, BUCKET_DELETE_RANGE,
    FILTER_INSERT, FILTER_RANGE, FILTER_DELETE_RANGE,
    STATEMENTS
};

static const char *const statement_sql[STATEMENTS] = {
    [RECENT_INSERT] = "INSERT INTO once_recent(id, records, tails) VALUES (?1, ?2, ?3)",
    [RECENT_SINCE] = "SELECT id, records, tails FROM once_recent WHERE id > ?1 ORDER BY id",
    [RECENT_DELETE] = "DELETE FROM once_recent WHERE id <= ?1",
    [RUN_INSERT] = "INSERT INTO once_run(id, level, state, cursor, records, min_keep_ms, max_keep_ms, created_ms, swept_ms)"
                   " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    [RUN_UPDATE] = "UPDATE once_run SET level = ?2, state = ?3, cursor = ?4, records = ?5, min_keep_ms = ?6,"
                   " max_keep_ms = ?7, created_ms = ?8, swept_ms = ?9 WHERE id = ?1",
    [RUN_DELETE] = "DELETE FROM once_run WHERE id = ?1",
    [RUN_ALL] = "SELECT id, level, state, cursor, records, min_keep_ms, max_keep_ms, created_ms, swept_ms FROM once_run",
    [BUCKET_GET] = "SELECT records, tails FROM once_bucket WHERE id = ?1",
    [BUCKET_RANGE] = "SELECT id, records, tails FROM once_bucket WHERE id >= ?1 AND id < ?2 ORDER BY id",
    [BUCKET_INSERT] = "INSERT INTO once_bucket(id, records, tails) VALUES (?1, ?2, ?3)",
    [BUCKET_UPDATE] = "UPDATE once_bucket SET records = ?2, tails = ?3 WHERE id = ?1",
    [BUCKET_DELETE] = "DELETE FROM once_bucket WHERE id = ?1",
    [BUCKET_DELETE_RANGE] = "DELETE FROM once_bucket WHERE id >= ?1 AND id < ?2",
    [FILTER_INSERT] = "INSERT INTO once_filter(id, blocks) VALUES (?1, ?2)",
    [FILTER_RANGE] = "SELECT id, blocks FROM once_filter WHERE id >= ?1 AND id < ?2 ORDER BY id",
    [FILTER_DELETE_RANGE] = "DELETE FROM once_filter WHERE id >= ?1 AND id < ?2",
};

/* Records in memory: their bytes, and where each one is. */
typedef struct pile {
    once_buf records, tails;
    once_record_ref *refs;
    size_t n, capacity;
} pile;

struct once_settled {
    once_db *db;
    once_settled_limits limits;
    once_settled_head head;
    bool distrusted; /* what is in memory may differ from the tables */
    sqlite3_stmt *statements[STATEMENTS];

    pile recent;
    size_t written;                          /* how many of recent.refs are in the tables ... */
    size_t written_records, written_tails;   /* ... and of their bytes */
    uint32_t *index;                         /* open addressing by id: position in recent.refs + 1 */
    size_t index_size;

    run *runs[RUNS_MAX]; /* newest first */
    size_t n_runs;
    size_t filter_bytes;

    pile scratch;           /* what a merge step or a sweep reads */
    once_buf out, out_tails; /* a bucket being written */
    unsigned char *fresh_filters; /* of the buckets of one step or flush */
    size_t fresh_size;
    uint32_t *order; /* of a flush */
    size_t order_size;
};

const once_settled_limits once__settled_defaults = {
    .recent_records = 65536,
    .recent_bytes = 12u << 20,
    .level0_bits = 12,
    .filter_bytes = 8u << 20,
};

static int no_memory(once_error *err) { return once_fail(err, ONCE_E_NOMEM, "out of memory for settled entries"); }

static int damaged(once_settled *s, const char *what, once_error *err)
{
    return once_fail(err, ONCE_E_CORRUPT, "file '%s': %s is damaged; restore it from a backup", s->db->path, what);
}

/* ---- piles ---- */

static bool pile_push(pile *p, const once_record_ref *ref)
{
    if (p->n == p->capacity) {
        const size_t more = p->capacity ? p->capacity * 2 : 1024;
        void *grown = realloc(p->refs, more * sizeof *p->refs);
        if (!grown) return false;
        p->refs = grown;
        p->capacity = more;
    }
    p->refs[p->n++] = *ref;
    return true;
}

static void pile_clear(pile *p)
{
    once_buf_clear(&p->records);
    once_buf_clear(&p->tails);
    p->n = 0;
}

static void pile_release(pile *p)
{
    once_buf_release(&p->records);
    once_buf_release(&p->tails);
    free(p->refs);
    *p = (pile){0};
}

static once_bytes slice(const once_buf *buf, size_t at, size_t len)
{
    assert(at + len <= buf->len);
    return len ? (once_bytes){buf->data + at, len} : (once_bytes){0};
}

static once_bytes column(sqlite3_stmt *stmt, int at)
{
    const void *data = sqlite3_column_blob(stmt, at);
    return (once_bytes){data, (size_t)sqlite3_column_bytes(stmt, at)};
}

/* Appends all records of the two blobs. 0: fine; otherwise a status with `err` filled. */
static int pile_blob(once_settled *s, pile *p, once_bytes records, once_bytes tails, const char *what, once_error *err)
{
    const size_t base = p->records.len, tail_base = p->tails.len;
    if (records.len == 0) return damaged(s, what, err);
    if (!once_buf_append(&p->records, records.data, records.len) ||
        (tails.len && !once_buf_append(&p->tails, tails.data, tails.len)))
        return no_memory(err);
    size_t at = 0, tail_at = 0;
    while (at < records.len) {
        once_record_ref ref;
        if (!once__record_look(records, at, tail_at, &ref) || ref.tail_len > tails.len - tail_at) return damaged(s, what, err);
        at += ref.len;
        tail_at += ref.tail_len;
        ref.at += base;
        ref.tail_at += tail_base;
        if (!pile_push(p, &ref)) return no_memory(err);
    }
    return tail_at == tails.len ? ONCE_OK : damaged(s, what, err);
}

/* ---- statements ---- */

static sqlite3_stmt *bound(once_settled *s, enum statement which, int64_t first)
{
    sqlite3_bind_int64(s->statements[which], 1, first);
    return s->statements[which];
}

static sqlite3_stmt *bound_range(once_settled *s, enum statement which, const run *r, uint32_t from, uint32_t to)
{
    sqlite3_bind_int64(s->statements[which], 2, r->id << 32 | to);
    return bound(s, which, r->id << 32 | from);
}

static int run_statement(once_settled *s, enum statement which, once_error *err)
{
    return once__sqlite_step(s->db, s->statements[which], err);
}

static int bind_blob(sqlite3_stmt *stmt, int at, once_bytes bytes)
{
    if (bytes.len == 0) return sqlite3_bind_null(stmt, at);
    return sqlite3_bind_blob64(stmt, at, bytes.data, bytes.len, SQLITE_STATIC);
}

static int write_blobs(once_settled *s, enum statement which, int64_t id, once_bytes records, once_bytes tails, once_error *err)
{
    sqlite3_stmt *stmt = bound(s, which, id);
    const int code = bind_blob(stmt, 2, records);
    if (code != SQLITE_OK || bind_blob(stmt, 3, tails) != SQLITE_OK) return once__sqlite_fail(s->db, SQLITE_NOMEM, err);
    return run_statement(s, which, err);
}

/* ---- runs ---- */

static unsigned level_bits(const once_settled *s, unsigned level) { return s->limits.level0_bits + level * FANOUT_BITS; }
static uint32_t level_buckets(const once_settled *s, unsigned level) { return UINT32_C(1) << level_bits(s, level); }
static uint32_t bucket_of(const once_settled *s, unsigned level, once_hash id)
{
    return (uint32_t)(id.a >> (64 - level_bits(s, level)));
}

static void filter_drop(once_settled *s, run *r, uint32_t chunk)
{
    if (!r->filters[chunk]) return;
    free(r->filters[chunk]);
    r->filters[chunk] = NULL;
    s->filter_bytes -= CHUNK * FILTER_BYTES;
}

static void run_free(once_settled *s, run *r)
{
    if (!r) return;
    for (uint32_t i = 0; i < r->filters_high; i++) filter_drop(s, r, i);
    free(r->filters);
    free(r);
}

static run *run_new(const once_settled *s, int64_t id, unsigned level)
{
    run *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->id = id;
    r->level = level;
    r->min_keep_ms = INT64_MAX;
    r->filters = calloc(level_buckets(s, level) / CHUNK, sizeof *r->filters);
    if (r->filters) return r;
    free(r);
    return NULL;
}

static int run_order(const void *left, const void *right)
{
    const run *x = *(run *const *)left, *y = *(run *const *)right;
    if (x->level != y->level) return x->level < y->level ? -1 : 1;
    return x->id > y->id ? -1 : x->id < y->id;
}

/* Sorts the runs and sets the buckets that count in each. */
static void arrange(once_settled *s)
{
    uint32_t cursor[LEVELS + 1] = {0};
    qsort(s->runs, s->n_runs, sizeof *s->runs, run_order);
    for (size_t i = 0; i < s->n_runs; i++)
        if (s->runs[i]->state == OUTPUT) cursor[s->runs[i]->level] = s->runs[i]->cursor;
    for (size_t i = 0; i < s->n_runs; i++) {
        run *r = s->runs[i];
        r->from = r->state == INPUT ? cursor[r->level + 1] : 0;
        r->to = r->state == OUTPUT ? r->cursor * FANOUT : r->state == DROPPING ? 0 : level_buckets(s, r->level);
    }
}

static int run_write(once_settled *s, const run *r, enum statement which, once_error *err)
{
    sqlite3_stmt *stmt = bound(s, which, r->id);
    sqlite3_bind_int64(stmt, 2, r->level);
    sqlite3_bind_int64(stmt, 3, r->state);
    sqlite3_bind_int64(stmt, 4, r->cursor);
    sqlite3_bind_int64(stmt, 5, (int64_t)r->records);
    sqlite3_bind_int64(stmt, 6, r->min_keep_ms);
    sqlite3_bind_int64(stmt, 7, r->max_keep_ms);
    sqlite3_bind_int64(stmt, 8, r->created_ms);
    sqlite3_bind_int64(stmt, 9, r->swept_ms);
    return run_statement(s, which, err);
}

/* Adds a new run to the tables and to memory. */
static int run_start(once_settled *s, unsigned level, enum run_state state, int64_t now_ms, run **out, once_error *err)
{
    if (s->n_runs == RUNS_MAX) return once_fail(err, ONCE_E_BUG, "file '%s': too many runs", s->db->path);
    run *r = run_new(s, s->head.last_run + 1, level);
    if (!r) return no_memory(err);
    r->state = state;
    r->created_ms = r->swept_ms = now_ms;
    const int rc = run_write(s, r, RUN_INSERT, err);
    if (rc != ONCE_OK) {
        run_free(s, r);
        return rc;
    }
    s->head.last_run++;
    s->runs[s->n_runs++] = r;
    arrange(s);
    *out = r;
    return ONCE_OK;
}

static int run_remove(once_settled *s, run *r, once_error *err)
{
    bound(s, RUN_DELETE, r->id);
    const int rc = run_statement(s, RUN_DELETE, err);
    if (rc != ONCE_OK) return rc;
    size_t at = 0;
    while (s->runs[at] != r) at++;
    memmove(&s->runs[at], &s->runs[at + 1], (--s->n_runs - at) * sizeof *s->runs);
    run_free(s, r);
    return ONCE_OK;
}

static void run_count(run *r, int64_t keep_ms)
{
    r->records++;
    if (keep_ms < r->min_keep_ms) r->min_keep_ms = keep_ms;
    if (keep_ms > r->max_keep_ms) r->max_keep_ms = keep_ms;
}

/* ---- filters ---- */

static void filter_set(unsigned char *block, once_hash id)
{
    for (unsigned i = 0; i < FILTER_PROBES; i++, id.b >>= 8) {
        const unsigned bit = id.b & (FILTER_BYTES * 8 - 1);
        block[bit / 8] = (unsigned char)(block[bit / 8] | 1u << bit % 8);
    }
}

static bool filter_test(const unsigned char *block, once_hash id)
{
    for (unsigned i = 0; i < FILTER_PROBES; i++, id.b >>= 8) {
        const unsigned bit = id.b & (FILTER_BYTES * 8 - 1);
        if (!(block[bit / 8] >> bit % 8 & 1)) return false;
    }
    return true;
}

/* Makes room for one more chunk of `r` by dropping one of an older run. */
static bool filter_room(once_settled *s, const run *r)
{
    if (s->filter_bytes + CHUNK * FILTER_BYTES <= s->limits.filter_bytes) return true;
    for (size_t i = s->n_runs; i-- > 0 && s->runs[i] != r;) {
        run *old = s->runs[i];
        while (old->filters_high && !old->filters[old->filters_high - 1]) old->filters_high--;
        if (!old->filters_high) continue;
        filter_drop(s, old, --old->filters_high);
        return true;
    }
    return false;
}

/* Keeps a chunk of filters in memory if there is room; without it the buckets are probed on disk. */
static void filter_keep(once_settled *s, run *r, uint32_t chunk, const unsigned char *blocks)
{
    if (r->filters[chunk] || !filter_room(s, r)) return;
    unsigned char *copy = malloc(CHUNK * FILTER_BYTES);
    if (!copy) return;
    memcpy(copy, blocks, CHUNK * FILTER_BYTES);
    r->filters[chunk] = copy;
    if (chunk >= r->filters_high) r->filters_high = chunk + 1;
    s->filter_bytes += CHUNK * FILTER_BYTES;
}

/* Clears the scratch filters of `buckets` buckets. */
static bool fresh_filters(once_settled *s, uint32_t buckets)
{
    const size_t need = (size_t)buckets * FILTER_BYTES;
    if (need > s->fresh_size) {
        void *grown = realloc(s->fresh_filters, need);
        if (!grown) return false;
        s->fresh_filters = grown;
        s->fresh_size = need;
    }
    memset(s->fresh_filters, 0, need);
    return true;
}

/* Writes the scratch filters as those of the buckets from `first` on. */
static int filters_write(once_settled *s, run *r, uint32_t first, uint32_t buckets, once_error *err)
{
    assert(first % CHUNK == 0 && buckets % CHUNK == 0);
    for (uint32_t done = 0; done < buckets; done += CHUNK) {
        const uint32_t chunk = (first + done) / CHUNK;
        const unsigned char *blocks = s->fresh_filters + (size_t)done * FILTER_BYTES;
        sqlite3_stmt *stmt = bound(s, FILTER_INSERT, r->id << 32 | chunk);
        sqlite3_bind_blob(stmt, 2, blocks, CHUNK * FILTER_BYTES, SQLITE_STATIC);
        const int rc = run_statement(s, FILTER_INSERT, err);
        if (rc != ONCE_OK) return rc;
        filter_keep(s, r, chunk, blocks);
    }
    return ONCE_OK;
}

/* Loads what is missing of the filters of a run, newest runs being asked first, as far as there is room. */
static int filters_load(once_settled *s, run *r, once_error *err)
{
    const uint32_t from = r->from / CHUNK, to = (r->to + CHUNK - 1) / CHUNK;
    uint32_t first = from;
    while (first < to && r->filters[first]) first++;
    if (first == to || !filter_room(s, r)) return ONCE_OK;
    sqlite3_stmt *stmt = bound_range(s, FILTER_RANGE, r, first, to);
    int code;
    while ((code = sqlite3_step(stmt)) == SQLITE_ROW && filter_room(s, r)) {
        const uint32_t chunk = (uint32_t)sqlite3_column_int64(stmt, 0);
        const once_bytes blocks = column(stmt, 1);
        if (blocks.len != CHUNK * FILTER_BYTES || chunk >= to) {
            sqlite3_reset(stmt);
            return damaged(s, "table once_filter", err);
        }
        filter_keep(s, r, chunk, (const unsigned char *)blocks.data);
    }
    const int rc = code == SQLITE_ROW || code == SQLITE_DONE ? ONCE_OK : once__sqlite_fail(s->db, code, err);
    sqlite3_reset(stmt);
    return rc;
}

/* ---- recent records ---- */

static void index_put(once_settled *s, size_t position)
{
    const once_hash id = s->recent.refs[position].id;
    size_t at = id.b & (s->index_size - 1);
    while (s->index[at] && !once_hash_equal(s->recent.refs[s->index[at] - 1].id, id)) at = (at + 1) & (s->index_size - 1);
    s->index[at] = (uint32_t)position + 1;
}

/* The newest recent record of an id, or NULL. */
static const once_record_ref *index_get(const once_settled *s, once_hash id)
{
    if (!s->index_size) return NULL;
    size_t at = id.b & (s->index_size - 1);
    for (; s->index[at]; at = (at + 1) & (s->index_size - 1)) {
        const once_record_ref *ref = &s->recent.refs[s->index[at] - 1];
        if (once_hash_equal(ref->id, id)) return ref;
    }
    return NULL;
}

/* Makes the index cover recent.refs from `first` on. */
static bool index_extend(once_settled *s, size_t first)
{
    if (s->recent.n * 2 > s->index_size) {
        size_t size = s->index_size ? s->index_size : 1024;
        while (s->recent.n * 2 > size) size *= 2;
        uint32_t *index = calloc(size, sizeof *index);
        if (!index) return false;
        free(s->index);
        s->index = index;
        s->index_size = size;
        first = 0;
    }
    for (size_t i = first; i < s->recent.n; i++) index_put(s, i);
    return true;
}

static void recent_clear(once_settled *s)
{
    pile_clear(&s->recent);
    s->written = s->written_records = s->written_tails = 0;
    if (s->index_size > 8 * s->limits.recent_records) { /* a giant transaction is over */
        free(s->index);
        s->index = NULL;
        s->index_size = 0;
        pile_release(&s->recent);
        once_buf_init(&s->recent.records, BYTES_MAX);
        once_buf_init(&s->recent.tails, BYTES_MAX);
    } else if (s->index) {
        memset(s->index, 0, s->index_size * sizeof *s->index);
    }
}

static int recent_load(once_settled *s, int64_t since, once_error *err)
{
    const size_t first = s->recent.n;
    sqlite3_stmt *stmt = bound(s, RECENT_SINCE, since);
    int code = SQLITE_DONE, rc = ONCE_OK;
    while (rc == ONCE_OK && (code = sqlite3_step(stmt)) == SQLITE_ROW)
        rc = pile_blob(s, &s->recent, column(stmt, 1), column(stmt, 2), "table once_recent", err);
    if (rc == ONCE_OK && code != SQLITE_DONE) rc = once__sqlite_fail(s->db, code, err);
    sqlite3_reset(stmt);
    if (rc == ONCE_OK && !index_extend(s, first)) rc = no_memory(err);
    s->written = s->recent.n;
    s->written_records = s->recent.records.len;
    s->written_tails = s->recent.tails.len;
    return rc;
}

/* ---- keeping up with the tables ---- */

static run *take_known(run **known, size_t n, int64_t id)
{
    for (size_t i = 0; i < n; i++) {
        run *r = known[i];
        if (!r || r->id != id) continue;
        known[i] = NULL;
        return r;
    }
    return NULL;
}

static int read_run(once_settled *s, sqlite3_stmt *stmt, run **known, size_t n_known, once_error *err)
{
    const int64_t id = sqlite3_column_int64(stmt, 0), level = sqlite3_column_int64(stmt, 1);
    const int64_t state = sqlite3_column_int64(stmt, 2), cursor = sqlite3_column_int64(stmt, 3);
    if (id <= 0 || id > s->head.last_run || level < 0 || level >= LEVELS || state < WHOLE || state > DROPPING || cursor < 0 ||
        cursor > level_buckets(s, (unsigned)level) || s->n_runs == RUNS_MAX || (state == OUTPUT && level == 0))
        return damaged(s, "table once_run", err);
    run *r = take_known(known, n_known, id);
    if (!r) r = run_new(s, id, (unsigned)level);
    if (!r) return no_memory(err);
    s->runs[s->n_runs++] = r;
    r->state = (enum run_state)state;
    r->cursor = (uint32_t)cursor;
    r->records = (uint64_t)sqlite3_column_int64(stmt, 4);
    r->min_keep_ms = sqlite3_column_int64(stmt, 5);
    r->max_keep_ms = sqlite3_column_int64(stmt, 6);
    r->created_ms = sqlite3_column_int64(stmt, 7);
    r->swept_ms = sqlite3_column_int64(stmt, 8);
    return ONCE_OK;
}

static int runs_load(once_settled *s, once_error *err)
{
    run *known[RUNS_MAX];
    const size_t n_known = s->n_runs;
    memcpy(known, s->runs, n_known * sizeof *known);
    s->n_runs = 0;
    sqlite3_stmt *stmt = s->statements[RUN_ALL];
    int code = SQLITE_DONE, rc = ONCE_OK;
    while (rc == ONCE_OK && (code = sqlite3_step(stmt)) == SQLITE_ROW) rc = read_run(s, stmt, known, n_known, err);
    if (rc == ONCE_OK && code != SQLITE_DONE) rc = once__sqlite_fail(s->db, code, err);
    sqlite3_reset(stmt);
    for (size_t i = 0; i < n_known; i++) run_free(s, known[i]);
    arrange(s);
    for (size_t i = 0; i < s->n_runs; i++) /* what a merge has passed is not needed any more */
        for (uint32_t chunk = 0; chunk < s->runs[i]->from / CHUNK && chunk < s->runs[i]->filters_high; chunk++)
            filter_drop(s, s->runs[i], chunk);
    for (size_t i = 0; i < s->n_runs && rc == ONCE_OK; i++) rc = filters_load(s, s->runs[i], err);
    return rc;
}

static void forget_everything(once_settled *s)
{
    recent_clear(s);
    for (size_t i = 0; i < s->n_runs; i++) run_free(s, s->runs[i]);
    s->n_runs = 0;
    s->head = (once_settled_head){.generation = -1, .flushed = -1};
}

int once__settled_refresh(once_settled *s, const once_settled_head *head, once_error *err)
{
    if (s->distrusted) forget_everything(s);
    s->distrusted = true; /* until we are through */
    const once_settled_head old = s->head;
    s->head = *head;
    int rc = ONCE_OK;
    if (old.flushed != head->flushed) recent_clear(s);
    if (old.flushed != head->flushed || old.last_recent != head->last_recent)
        rc = recent_load(s, old.flushed != head->flushed ? head->flushed : old.last_recent, err);
    if (rc == ONCE_OK && old.generation != head->generation) rc = runs_load(s, err);
    if (rc == ONCE_OK) s->distrusted = false;
    return rc;
}

void once__settled_distrust(once_settled *s) { s->distrusted = true; }

const once_settled_head *once__settled_head(const once_settled *s) { return &s->head; }

/* ---- lookup ---- */

static bool own(once_arena *arena, once_record *r)
{
    return (!r->point.len || once_arena_copy(arena, r->point, &r->point)) &&
           (!r->result.len || once_arena_copy(arena, r->result, &r->result)) &&
           (!r->reason.len || once_arena_copy(arena, r->reason, &r->reason));
}

/* Looks for id in a bucket whose row `stmt` stands on. */
static int search_bucket(once_settled *s, sqlite3_stmt *stmt, once_hash id, once_record *out, once_arena *arena, once_error *err)
{
    const once_bytes records = column(stmt, 0);
    once_record_ref ref;
    for (size_t at = 0, tail_at = 0; at < records.len; at += ref.len, tail_at += ref.tail_len) {
        if (!once__record_look(records, at, tail_at, &ref)) return damaged(s, "table once_bucket", err);
        const int order = once_hash_compare(ref.id, id);
        if (order > 0) break;
        if (order < 0) continue;
        once_bytes tail = {0};
        if (ref.tail_len) {
            const once_bytes tails = column(stmt, 1);
            if (ref.tail_len > tails.len || ref.tail_at > tails.len - ref.tail_len)
                return damaged(s, "table once_bucket", err);
            tail = (once_bytes){tails.data + ref.tail_at, ref.tail_len};
        }
        if (!once__record_read(records, &ref, tail, out)) return damaged(s, "table once_bucket", err);
        return own(arena, out) ? ONCE_OK : no_memory(err);
    }
    return ONCE_OK;
}

static int find_in_run(once_settled *s, const run *r, once_hash id, once_record *out, once_arena *arena, once_error *err)
{
    const uint32_t bucket = bucket_of(s, r->level, id);
    if (bucket < r->from || bucket >= r->to) return ONCE_OK;
    const unsigned char *blocks = r->filters[bucket / CHUNK];
    if (blocks && !filter_test(blocks + bucket % CHUNK * FILTER_BYTES, id)) return ONCE_OK;
    sqlite3_stmt *stmt = bound(s, BUCKET_GET, r->id << 32 | bucket);
    const int code = sqlite3_step(stmt);
    int rc = ONCE_OK;
    if (code == SQLITE_ROW) rc = search_bucket(s, stmt, id, out, arena, err);
    else if (code != SQLITE_DONE) rc = once__sqlite_fail(s->db, code, err);
    sqlite3_reset(stmt);
    return rc;
}

static int find_recent(once_settled *s, once_hash id, once_record *out, once_arena *arena, once_error *err)
{
    const once_record_ref *ref = index_get(s, id);
    if (!ref) return ONCE_OK;
    if (!once__record_read(slice(&s->recent.records, 0, s->recent.records.len), ref,
                           slice(&s->recent.tails, ref->tail_at, ref->tail_len), out))
        return damaged(s, "table once_recent", err);
    return own(arena, out) ? ONCE_OK : no_memory(err);
}

int once__settled_find(once_settled *s, const once_hash *ids, size_t n, int64_t now_ms, once_record *out, once_arena *arena,
                       once_error *err)
{
    assert(!s->distrusted);
    if (n == 0) return ONCE_OK;
    uint32_t few[256], *open = few; /* those not found yet */
    if (n > sizeof few / sizeof *few && !(open = once_arena_alloc(arena, n * sizeof *open))) return no_memory(err);
    size_t left = 0;
    for (size_t i = 0; i < n; i++) {
        assert(i == 0 || once_hash_compare(ids[i - 1], ids[i]) < 0);
        out[i] = (once_record){.id = ids[i]};
        const int rc = find_recent(s, ids[i], &out[i], arena, err);
        if (rc != ONCE_OK) return rc;
        if (!out[i].keep_ms) open[left++] = (uint32_t)i;
    }
    for (size_t r = 0; r < s->n_runs && left; r++) {
        if (s->runs[r]->max_keep_ms <= now_ms) continue;
        size_t still = 0;
        for (size_t i = 0; i < left; i++) {
            once_record *record = &out[open[i]];
            const int rc = find_in_run(s, s->runs[r], record->id, record, arena, err);
            if (rc != ONCE_OK) return rc;
            if (!record->keep_ms) open[still++] = open[i];
        }
        left = still;
    }
    return ONCE_OK;
}

/* ---- writing buckets ---- */

/* A bucket that is being filled with records in order of their ids. */
typedef struct writer {
    run *run;
    uint32_t first;  /* bucket that the scratch filters begin with */
    uint32_t bucket; /* being filled */
} writer;

static int writer_flush(once_settled *s, writer *w, once_error *err)
{
    if (s->out.len == 0) return ONCE_OK;
    const int rc = write_blobs(s, BUCKET_INSERT, w->run->id << 32 | w->bucket, once_buf_bytes(&s->out),
                               once_buf_bytes(&s->out_tails), err);
    once_buf_clear(&s->out);
    once_buf_clear(&s->out_tails);
    return rc;
}

static int writer_put(once_settled *s, writer *w, const pile *from, const once_record_ref *ref, once_error *err)
{
    const uint32_t bucket = bucket_of(s, w->run->level, ref->id);
    assert(bucket >= w->first);
    if (bucket != w->bucket) {
        const int rc = writer_flush(s, w, err);
        if (rc != ONCE_OK) return rc;
        w->bucket = bucket;
    }
    if (!once_buf_append(&s->out, from->records.data + ref->at, ref->len) ||
        (ref->tail_len && !once_buf_append(&s->out_tails, from->tails.data + ref->tail_at, ref->tail_len)))
        return no_memory(err);
    filter_set(s->fresh_filters + (size_t)(bucket - w->first) * FILTER_BYTES, ref->id);
    run_count(w->run, ref->keep_ms);
    return ONCE_OK;
}

/* ---- flush ---- */

/* The order of recent.refs[first, first + n): by id, and the newest first among equal ones. Ids are uniform, so it is
 * enough to deal them into 2^bits parts and to sort each part by insertion. */
static bool flush_order(once_settled *s, size_t first, size_t n)
{
    const unsigned bits = level_bits(s, 0);
    const size_t parts = (size_t)1 << bits, need = n + parts + 1;
    if (need > s->order_size) {
        void *grown = realloc(s->order, need * sizeof *s->order);
        if (!grown) return false;
        s->order = grown;
        s->order_size = need;
    }
    uint32_t *order = s->order, *start = s->order + n;
    const once_record_ref *refs = s->recent.refs + first;
    memset(start, 0, (parts + 1) * sizeof *start);
    for (size_t i = 0; i < n; i++) start[(refs[i].id.a >> (64 - bits)) + 1]++;
    for (size_t i = 0; i < parts; i++) start[i + 1] += start[i];
    for (size_t i = n; i-- > 0;) { /* the newest first; insertion keeps the order of equals */
        const size_t part = refs[i].id.a >> (64 - bits);
        order[start[part]++] = (uint32_t)(first + i);
    }
    size_t from = 0;
    for (size_t part = 0; part < parts; part++) {
        const size_t to = start[part];
        for (size_t i = from + 1; i < to; i++) {
            const uint32_t moving = order[i];
            size_t at = i;
            while (at > from && once_hash_compare(s->recent.refs[order[at - 1]].id, s->recent.refs[moving].id) > 0) {
                order[at] = order[at - 1];
                at--;
            }
            order[at] = moving;
        }
        from = to;
    }
    return true;
}

/* Writes recent.refs[first, first + n) as a run of level 0. */
static int flush_run(once_settled *s, size_t first, size_t n, int64_t now_ms, once_error *err)
{
    const uint32_t buckets = level_buckets(s, 0);
    run *r;
    if (!flush_order(s, first, n) || !fresh_filters(s, buckets)) return no_memory(err);
    int rc = run_start(s, 0, WHOLE, now_ms, &r, err);
    if (rc != ONCE_OK) return rc;
    writer w = {.run = r};
    const once_record_ref *last = NULL;
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        const once_record_ref *ref = &s->recent.refs[s->order[i]];
        const bool shadowed = last && once_hash_equal(last->id, ref->id);
        last = ref;
        if (shadowed || ref->keep_ms <= now_ms) continue;
        rc = writer_put(s, &w, &s->recent, ref, err);
    }
    if (rc == ONCE_OK) rc = writer_flush(s, &w, err);
    if (rc == ONCE_OK && r->records == 0) return run_remove(s, r, err);
    if (rc == ONCE_OK) rc = filters_write(s, r, 0, buckets, err);
    if (rc == ONCE_OK) rc = run_write(s, r, RUN_UPDATE, err);
    return rc;
}

static int merge_some(once_settled *s, int64_t now_ms, once_error *err);

static int flush(once_settled *s, int64_t now_ms, once_error *err)
{
    for (size_t first = 0; first < s->recent.n; first += s->limits.recent_records) {
        const size_t left = s->recent.n - first;
        int rc = flush_run(s, first, left < s->limits.recent_records ? left : s->limits.recent_records, now_ms, err);
        if (rc == ONCE_OK) rc = merge_some(s, now_ms, err); /* a giant transaction makes many runs */
        if (rc != ONCE_OK) return rc;
    }
    bound(s, RECENT_DELETE, s->head.last_recent);
    const int rc = run_statement(s, RECENT_DELETE, err);
    if (rc != ONCE_OK) return rc;
    s->head.flushed = s->head.last_recent;
    s->head.generation++;
    recent_clear(s);
    return ONCE_OK;
}

/* ---- merge ---- */

typedef struct merge {
    run *output;
    run *inputs[FANOUT]; /* newest first */
    size_t n;
} merge;

static bool merge_find(const once_settled *s, unsigned level, merge *out)
{
    *out = (merge){0};
    for (size_t i = 0; i < s->n_runs; i++) {
        run *r = s->runs[i];
        if (r->state == OUTPUT && r->level == level + 1) out->output = r;
        if (r->state == INPUT && r->level == level && out->n < FANOUT) out->inputs[out->n++] = r;
    }
    return out->output != NULL;
}

static size_t whole_runs(const once_settled *s, unsigned level)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_runs; i++) n += s->runs[i]->level == level && s->runs[i]->state == WHOLE;
    return n;
}

/* The oldest FANOUT runs of the level become inputs. */
static int merge_start(once_settled *s, unsigned level, int64_t now_ms, once_error *err)
{
    run *output;
    int rc = run_start(s, level + 1, OUTPUT, now_ms, &output, err);
    size_t n = 0;
    for (size_t i = s->n_runs; i-- > 0 && n < FANOUT && rc == ONCE_OK;) {
        run *r = s->runs[i];
        if (r->level != level || r->state != WHOLE) continue;
        r->state = INPUT;
        r->cursor = 0;
        n++;
        rc = run_write(s, r, RUN_UPDATE, err);
    }
    arrange(s);
    return rc;
}

static int read_buckets(once_settled *s, const run *r, uint32_t from, uint32_t to, once_error *err)
{
    sqlite3_stmt *stmt = bound_range(s, BUCKET_RANGE, r, from, to);
    int code = SQLITE_DONE, rc = ONCE_OK;
    while (rc == ONCE_OK && (code = sqlite3_step(stmt)) == SQLITE_ROW)
        rc = pile_blob(s, &s->scratch, column(stmt, 1), column(stmt, 2), "table once_bucket", err);
    if (rc == ONCE_OK && code != SQLITE_DONE) rc = once__sqlite_fail(s->db, code, err);
    sqlite3_reset(stmt);
    return rc;
}

/* Merges the sorted streams refs[at[i], end[i]) into the writer; stream 0 is the newest. */
static int merge_streams(once_settled *s, writer *w, size_t *at, const size_t *end, size_t n, int64_t now_ms, once_error *err)
{
    const once_record_ref *refs = s->scratch.refs;
    for (;;) {
        size_t least = n;
        for (size_t i = 0; i < n; i++)
            if (at[i] < end[i] && (least == n || once_hash_compare(refs[at[i]].id, refs[at[least]].id) < 0)) least = i;
        if (least == n) return ONCE_OK;
        const once_record_ref *ref = &refs[at[least]];
        for (size_t i = least; i < n; i++) /* newer streams come first, so `least` is the newest of equal ids */
            if (at[i] < end[i] && once_hash_equal(refs[at[i]].id, ref->id)) at[i]++;
        if (ref->keep_ms <= now_ms) continue;
        const int rc = writer_put(s, w, &s->scratch, ref, err);
        if (rc != ONCE_OK) return rc;
    }
}

static int merge_end(once_settled *s, merge *m, once_error *err)
{
    for (size_t i = 0; i < m->n; i++) {
        const int rc = run_remove(s, m->inputs[i], err);
        if (rc != ONCE_OK) return rc;
    }
    m->output->state = WHOLE;
    m->output->cursor = 0;
    if (m->output->records) return run_write(s, m->output, RUN_UPDATE, err);
    bound_range(s, FILTER_DELETE_RANGE, m->output, 0, UINT32_MAX);
    const int rc = run_statement(s, FILTER_DELETE_RANGE, err);
    return rc == ONCE_OK ? run_remove(s, m->output, err) : rc;
}

/* Merges STEP positions. */
static int merge_step(once_settled *s, merge *m, int64_t now_ms, once_error *err)
{
    run *output = m->output;
    const uint32_t positions = level_buckets(s, output->level - 1);
    const uint32_t from = output->cursor, to = from + STEP;
    assert(to <= positions);
    size_t at[FANOUT], end[FANOUT];
    int rc = ONCE_OK;
    pile_clear(&s->scratch);
    for (size_t i = 0; i < m->n && rc == ONCE_OK; i++) {
        at[i] = s->scratch.n;
        if (m->inputs[i]->max_keep_ms > now_ms) rc = read_buckets(s, m->inputs[i], from, to, err);
        end[i] = s->scratch.n;
    }
    if (rc == ONCE_OK && !fresh_filters(s, STEP * FANOUT)) rc = no_memory(err);
    writer w = {.run = output, .first = from * FANOUT, .bucket = from * FANOUT};
    if (rc == ONCE_OK) rc = merge_streams(s, &w, at, end, m->n, now_ms, err);
    if (rc == ONCE_OK) rc = writer_flush(s, &w, err);
    if (rc == ONCE_OK) rc = filters_write(s, output, from * FANOUT, STEP * FANOUT, err);
    if (rc == ONCE_OK && ONCE_FAIL_AT(merge_between)) rc = once_fail(err, ONCE_E_IO, "failpoint merge_between");
    for (size_t i = 0; i < m->n && rc == ONCE_OK; i++) {
        bound_range(s, BUCKET_DELETE_RANGE, m->inputs[i], from, to);
        rc = run_statement(s, BUCKET_DELETE_RANGE, err);
        if (rc != ONCE_OK || to % CHUNK) continue;
        filter_drop(s, m->inputs[i], from / CHUNK);
        bound_range(s, FILTER_DELETE_RANGE, m->inputs[i], from / CHUNK, from / CHUNK + 1);
        rc = run_statement(s, FILTER_DELETE_RANGE, err);
    }
    if (rc != ONCE_OK) return rc;
    output->cursor = to;
    rc = to == positions ? merge_end(s, m, err) : run_write(s, output, RUN_UPDATE, err);
    arrange(s);
    return rc;
}

/* How many positions the merge at this level should have behind it: the fuller the level, the further, so that it ends
 * (with a quarter to spare) before the next FANOUT runs are there. */
static uint32_t merge_target(const once_settled *s, unsigned level)
{
    double filled = (double)whole_runs(s, level);
    if (level == 0) {
        filled += (double)s->recent.n / (double)s->limits.recent_records;
    } else {
        merge below;
        if (merge_find(s, level - 1, &below)) filled += (double)below.output->cursor / level_buckets(s, level - 1);
    }
    const uint32_t positions = level_buckets(s, level);
    const double target = (double)positions * filled * 1.25 / FANOUT;
    return target < positions ? (uint32_t)target : positions;
}

static int merge_some(once_settled *s, int64_t now_ms, once_error *err)
{
    bool changed = false;
    for (unsigned level = 0; level + 1 < LEVELS; level++) {
        merge m;
        for (;;) {
            int rc = ONCE_OK;
            if (!merge_find(s, level, &m)) {
                if (whole_runs(s, level) < FANOUT) break;
                rc = merge_start(s, level, now_ms, err);
            } else if (m.output->cursor + STEP <= merge_target(s, level)) {
                rc = merge_step(s, &m, now_ms, err);
            } else {
                break;
            }
            if (rc != ONCE_OK) return rc;
            changed = true;
        }
    }
    if (changed) s->head.generation++;
    return ONCE_OK;
}

/* ---- adding ---- */

int once__settled_add(once_settled *s, const once_record *record, once_error *err)
{
    assert(!s->distrusted);
    once_record_ref ref;
    if (!once__record_write(record, &s->recent.records, &s->recent.tails, &ref) || !pile_push(&s->recent, &ref))
        return no_memory(err);
    return ONCE_OK;
}

/* One row for what was added since the last one. */
static int recent_write(once_settled *s, once_error *err)
{
    pile *p = &s->recent;
    const once_bytes records = slice(&p->records, s->written_records, p->records.len - s->written_records);
    const once_bytes tails = slice(&p->tails, s->written_tails, p->tails.len - s->written_tails);
    const int rc = write_blobs(s, RECENT_INSERT, s->head.last_recent + 1, records, tails, err);
    if (rc != ONCE_OK) return rc;
    s->head.last_recent++;
    if (!index_extend(s, s->written)) return no_memory(err);
    s->written = p->n;
    s->written_records = p->records.len;
    s->written_tails = p->tails.len;
    return ONCE_OK;
}

int once__settled_commit(once_settled *s, int64_t now_ms, once_error *err)
{
    assert(!s->distrusted);
    if (s->recent.n == s->written) return ONCE_OK;
    const bool full = s->recent.n >= s->limits.recent_records ||
                      s->recent.records.len + s->recent.tails.len >= s->limits.recent_bytes;
    const int rc = full ? flush(s, now_ms, err) : recent_write(s, err);
    return rc == ONCE_OK ? merge_some(s, now_ms, err) : rc;
}

/* ---- dropping by time ---- */

/* Recent records are one or more rows of blobs: when enough of them have expired, the rest is written anew as one row. */
static int sweep_recent(once_settled *s, int64_t now_ms, once_sweep_result *out, once_error *err)
{
    pile *p = &s->recent, *kept = &s->scratch;
    size_t expired = 0;
    for (size_t i = 0; i < p->n; i++) expired += p->refs[i].keep_ms <= now_ms;
    if (expired == 0 || (expired * 8 < p->n && p->n > 1024)) return ONCE_OK;

    pile_clear(kept);
    for (size_t i = 0; i < p->n; i++) {
        once_record_ref ref = p->refs[i];
        if (ref.keep_ms <= now_ms) {
            out->dropped += !ref.tombstone;
            continue;
        }
        const size_t at = kept->records.len, tail_at = kept->tails.len;
        if (!once_buf_append(&kept->records, p->records.data + ref.at, ref.len) ||
            (ref.tail_len && !once_buf_append(&kept->tails, p->tails.data + ref.tail_at, ref.tail_len)))
            return no_memory(err);
        ref.at = at;
        ref.tail_at = tail_at;
        if (!pile_push(kept, &ref)) return no_memory(err);
    }
    bound(s, RECENT_DELETE, s->head.last_recent);
    int rc = run_statement(s, RECENT_DELETE, err);
    if (rc != ONCE_OK) return rc;
    if (ONCE_FAIL_AT(sweep_between)) return once_fail(err, ONCE_E_IO, "failpoint sweep_between");
    s->head.flushed = s->head.last_recent;
    const pile swap = *p;
    *p = *kept;
    *kept = swap;
    s->written = s->written_records = s->written_tails = 0;
    if (s->index) memset(s->index, 0, s->index_size * sizeof *s->index);
    return p->n ? recent_write(s, err) : ONCE_OK;
}

/* Deletes buckets of a run that has expired as a whole, without reading them. */
static int sweep_expired_run(once_settled *s, run *r, size_t limit, once_sweep_result *out, once_error *err)
{
    const uint32_t buckets = level_buckets(s, r->level);
    if (r->state != DROPPING) {
        r->state = DROPPING;
        r->cursor = 0;
        out->dropped += r->records;
    }
    const size_t per_bucket = (size_t)(r->records / buckets) + 1;
    uint32_t step = (uint32_t)(limit / per_bucket < CHUNK ? CHUNK : limit / per_bucket) / CHUNK * CHUNK;
    if (step > buckets - r->cursor) step = buckets - r->cursor;
    bound_range(s, BUCKET_DELETE_RANGE, r, r->cursor, r->cursor + step);
    int rc = run_statement(s, BUCKET_DELETE_RANGE, err);
    if (rc == ONCE_OK && ONCE_FAIL_AT(sweep_between)) rc = once_fail(err, ONCE_E_IO, "failpoint sweep_between");
    if (rc == ONCE_OK) {
        bound_range(s, FILTER_DELETE_RANGE, r, r->cursor / CHUNK, (r->cursor + step) / CHUNK);
        rc = run_statement(s, FILTER_DELETE_RANGE, err);
    }
    if (rc != ONCE_OK) return rc;
    r->cursor += step;
    return r->cursor == buckets ? run_remove(s, r, err) : run_write(s, r, RUN_UPDATE, err);
}

/* Rewrites one bucket without its expired records. The pile holds its records. */
static int sweep_bucket(once_settled *s, run *r, uint32_t bucket, int64_t now_ms, once_sweep_result *out, once_error *err)
{
    const pile *p = &s->scratch;
    size_t expired = 0;
    once_buf_clear(&s->out);
    once_buf_clear(&s->out_tails);
    for (size_t i = 0; i < p->n; i++) {
        const once_record_ref *ref = &p->refs[i];
        if (ref->keep_ms <= now_ms) {
            expired++;
            r->records--;
            out->dropped += !ref->tombstone;
            continue;
        }
        if (!once_buf_append(&s->out, p->records.data + ref->at, ref->len) ||
            (ref->tail_len && !once_buf_append(&s->out_tails, p->tails.data + ref->tail_at, ref->tail_len)))
            return no_memory(err);
    }
    int rc = ONCE_OK;
    const int64_t id = r->id << 32 | bucket;
    if (expired && s->out.len == 0) {
        bound(s, BUCKET_DELETE, id);
        rc = run_statement(s, BUCKET_DELETE, err);
    } else if (expired) {
        rc = write_blobs(s, BUCKET_UPDATE, id, once_buf_bytes(&s->out), once_buf_bytes(&s->out_tails), err);
    }
    once_buf_clear(&s->out);
    once_buf_clear(&s->out_tails);
    return rc;
}

/* Some records of this run have expired: goes on with its pass over the run. */
static int sweep_run(once_settled *s, run *r, size_t limit, int64_t now_ms, once_sweep_result *out, once_error *err)
{
    const uint32_t buckets = level_buckets(s, r->level);
    int rc = ONCE_OK;
    for (size_t seen = 0; seen < limit && r->cursor < buckets && rc == ONCE_OK; r->cursor++) {
        pile_clear(&s->scratch);
        rc = read_buckets(s, r, r->cursor, r->cursor + 1, err);
        if (rc == ONCE_OK) rc = sweep_bucket(s, r, r->cursor, now_ms, out, err);
        seen += s->scratch.n + 1;
        if (rc == ONCE_OK && ONCE_FAIL_AT(sweep_between)) rc = once_fail(err, ONCE_E_IO, "failpoint sweep_between");
    }
    if (rc != ONCE_OK) return rc;
    if (r->cursor == buckets) {
        r->cursor = 0;
        r->swept_ms = now_ms;
        /* Not known exactly without reading the run twice; everything that expired before this moment is gone. */
        r->min_keep_ms = now_ms + 1;
    }
    return r->records || r->cursor ? run_write(s, r, RUN_UPDATE, err) : sweep_expired_run(s, r, limit, out, err);
}

/* Going over a run costs reading it. So a run is gone over again only when its age has grown by an eighth since the last
 * time: a few times in its life, however often sweep is called. */
static bool worth_a_pass(const run *r, int64_t now_ms)
{
    if (r->state != WHOLE || r->min_keep_ms > now_ms) return false;
    return r->cursor > 0 || r->swept_ms == r->created_ms || now_ms - r->swept_ms >= (now_ms - r->created_ms) / 8;
}

int once__settled_sweep(once_settled *s, size_t limit, int64_t now_ms, once_sweep_result *out, once_error *err)
{
    assert(!s->distrusted && s->recent.n == s->written);
    int rc = sweep_recent(s, now_ms, out, err);
    if (rc != ONCE_OK) return rc;
    for (size_t i = s->n_runs; i-- > 0;) {
        run *r = s->runs[i];
        const bool gone = r->state == DROPPING || (r->state == WHOLE && r->max_keep_ms <= now_ms);
        if (!gone && !worth_a_pass(r, now_ms)) continue;
        rc = gone ? sweep_expired_run(s, r, limit, out, err) : sweep_run(s, r, limit, now_ms, out, err);
        if (rc != ONCE_OK) return rc;
        s->head.generation++;
        arrange(s);
        out->more = true; /* one run a call; the next call finds the rest, or nothing */
        return ONCE_OK;
    }
    return ONCE_OK;
}

/* ---- everything ---- */

typedef struct visitor {
    int64_t now_ms;
    once_record_visit *visit;
    void *user;
    once_arena arena;
    bool over;
} visitor;

/* Shows the records of `p` unless a newer one of the same id exists: lookup then finds that one. */
static int show_pile(once_settled *s, const pile *p, visitor *v, once_error *err)
{
    for (size_t i = 0; i < p->n && !v->over; i++) {
        once_record record, newest;
        const once_record_ref *ref = &p->refs[i];
        if (ref->tombstone) continue;
        if (!once__record_read(slice(&p->records, 0, p->records.len), ref, slice(&p->tails, ref->tail_at, ref->tail_len), &record))
            return damaged(s, "a record", err);
        const int rc = once__settled_find(s, &record.id, 1, v->now_ms, &newest, &v->arena, err);
        if (rc != ONCE_OK) return rc;
        if (newest.state == record.state && newest.changed_ms == record.changed_ms && once_hash_equal(newest.token, record.token))
            v->over = !v->visit(v->user, &record);
        once_arena_reset(&v->arena);
    }
    return ONCE_OK;
}

int once__settled_each(once_settled *s, int64_t now_ms, once_record_visit *visit, void *user, once_error *err)
{
    visitor v = {.now_ms = now_ms, .visit = visit, .user = user};
    int rc = show_pile(s, &s->recent, &v, err);
    for (size_t i = 0; i < s->n_runs && rc == ONCE_OK && !v.over; i++) {
        const run *r = s->runs[i];
        for (uint32_t bucket = r->from; bucket < r->to && rc == ONCE_OK && !v.over; bucket += CHUNK) {
            const uint32_t end = bucket / CHUNK * CHUNK + CHUNK;
            pile_clear(&s->scratch);
            rc = read_buckets(s, r, bucket, end < r->to ? end : r->to, err);
            if (rc == ONCE_OK) rc = show_pile(s, &s->scratch, &v, err);
            bucket = bucket / CHUNK * CHUNK;
        }
    }
    once_arena_release(&v.arena);
    return rc;
}

void once__settled_shape(const once_settled *s, once_settled_shape *out)
{
    *out = (once_settled_shape){.recent = s->recent.n, .runs = s->n_runs, .filter_bytes = s->filter_bytes};
    for (size_t i = 0; i < s->n_runs; i++) {
        out->records += s->runs[i]->records;
        out->merging += s->runs[i]->state == OUTPUT;
        if (s->runs[i]->level + 1 > out->levels) out->levels = s->runs[i]->level + 1;
    }
}

/* ---- open, close ---- */

int once__settled_open(once_db *db, const once_settled_limits *limits, once_settled **out, once_error *err)
{
    assert(limits->level0_bits >= 6 && limits->level0_bits + (LEVELS - 1) * FANOUT_BITS <= 31);
    assert(limits->recent_records > 0 && limits->recent_records < UINT32_MAX);
    once_settled *s = calloc(1, sizeof *s);
    if (!s) return no_memory(err);
    s->db = db;
    s->limits = *limits;
    s->distrusted = true;
    once_buf *const bufs[] = {&s->recent.records, &s->recent.tails, &s->scratch.records, &s->scratch.tails, &s->out, &s->out_tails};
    for (size_t i = 0; i < sizeof bufs / sizeof *bufs; i++) once_buf_init(bufs[i], BYTES_MAX);
    for (size_t i = 0; i < STATEMENTS; i++) {
        const int rc = once__sqlite_prepare(db, statement_sql[i], &s->statements[i], err);
        if (rc == ONCE_OK) continue;
        once__settled_close(s);
        return rc;
    }
    *out = s;
    return ONCE_OK;
}

void once__settled_close(once_settled *s)
{
    if (!s) return;
    for (size_t i = 0; i < STATEMENTS; i++) sqlite3_finalize(s->statements[i]);
    for (size_t i = 0; i < s->n_runs; i++) run_free(s, s->runs[i]);
    pile_release(&s->recent);
    pile_release(&s->scratch);
    once_buf_release(&s->out);
    once_buf_release(&s->out_tails);
    free(s->index);
    free(s->fresh_filters);
    free(s->order);
    free(s);
}
