/* Runs of finished entries: their rows, their filters, and lookups in them. Layout and rules: settled.c. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"
#include "store/sqlite/settled_impl.h"

#include "base/banned.h"

/* ---- runs ---- */

unsigned once__level_bits(const once_settled *s, unsigned level) { return s->limits.level0_bits + level * FANOUT_BITS; }
uint32_t once__level_buckets(const once_settled *s, unsigned level)
{
    return UINT32_C(1) << once__level_bits(s, level);
}
uint32_t once__level_bucket(const once_settled *s, unsigned level, once_hash id)
{
    return (uint32_t)(id.a >> (64 - once__level_bits(s, level)));
}

void once__filter_drop(once_settled *s, run *r, uint32_t chunk)
{
    if (!r->filters[chunk]) return;
    free(r->filters[chunk]);
    r->filters[chunk] = NULL;
    s->filter_bytes -= CHUNK * FILTER_BYTES;
}

void once__run_free(once_settled *s, run *r)
{
    if (!r) return;
    for (uint32_t i = 0; i < r->filters_high; i++) once__filter_drop(s, r, i);
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
    r->filters = calloc(once__level_buckets(s, level) / CHUNK, sizeof *r->filters);
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

/* Sorts the runs and sets the valid buckets of each. */
void once__runs_arrange(once_settled *s)
{
    uint32_t cursor[LEVELS + 1] = {0};
    qsort(s->runs, s->n_runs, sizeof *s->runs, run_order);
    for (size_t i = 0; i < s->n_runs; i++)
        if (s->runs[i]->state == OUTPUT) cursor[s->runs[i]->level] = s->runs[i]->cursor;
    for (size_t i = 0; i < s->n_runs; i++) {
        run *r = s->runs[i];
        r->from = r->state == INPUT ? cursor[r->level + 1] : 0;
        r->to = r->state == OUTPUT ? r->cursor * FANOUT : r->state == DROPPING ? 0 : once__level_buckets(s, r->level);
    }
}

/* The sum over all columns of one row of once_run. */
static uint64_t run_sum(const run *r)
{
    const int64_t columns[] = {r->level,       r->state,       r->cursor,     (int64_t)r->records,
                               r->min_keep_ms, r->max_keep_ms, r->created_ms, r->swept_ms};
    return once__sum(RUN, (uint64_t)r->id, 0, (once_bytes){(const char *)columns, sizeof columns});
}

uint64_t once__runs_sum(const once_settled *s)
{
    uint64_t sum = s->n_runs;
    for (size_t i = 0; i < s->n_runs; i++) sum += run_sum(s->runs[i]);
    return sum;
}

int once__run_write(once_settled *s, const run *r, enum statement which, once_error *err)
{
    sqlite3_stmt *stmt = once__settled_bound(s, which, r->id);
    sqlite3_bind_int64(stmt, 2, r->level);
    sqlite3_bind_int64(stmt, 3, r->state);
    sqlite3_bind_int64(stmt, 4, r->cursor);
    sqlite3_bind_int64(stmt, 5, (int64_t)r->records);
    sqlite3_bind_int64(stmt, 6, r->min_keep_ms);
    sqlite3_bind_int64(stmt, 7, r->max_keep_ms);
    sqlite3_bind_int64(stmt, 8, r->created_ms);
    sqlite3_bind_int64(stmt, 9, r->swept_ms);
    return once__settled_step(s, which, err);
}

/* Adds a new run to the tables and to memory. */
int once__run_start(once_settled *s, unsigned level, enum run_state state, int64_t now_ms, run **out, once_error *err)
{
    if (s->n_runs == RUNS_MAX) return once_fail(err, ONCE_E_BUG, "file '%s': too many runs", s->db->path);
    run *r = run_new(s, s->head.last_run + 1, level);
    if (!r) return once_no_memory(err, "for settled entries");
    r->state = state;
    r->created_ms = r->swept_ms = now_ms;
    const int rc = once__run_write(s, r, RUN_INSERT, err);
    if (rc != ONCE_OK) {
        once__run_free(s, r);
        return rc;
    }
    s->head.last_run++;
    s->runs[s->n_runs++] = r;
    once__runs_arrange(s);
    *out = r;
    return ONCE_OK;
}

int once__run_remove(once_settled *s, run *r, once_error *err)
{
    once__settled_bound(s, RUN_DELETE, r->id);
    const int rc = once__settled_step(s, RUN_DELETE, err);
    if (rc != ONCE_OK) return rc;
    size_t at = 0;
    while (s->runs[at] != r) at++;
    memmove(&s->runs[at], &s->runs[at + 1], (--s->n_runs - at) * sizeof *s->runs);
    once__run_free(s, r);
    return ONCE_OK;
}

void once__run_count(run *r, int64_t keep_ms)
{
    r->records++;
    if (keep_ms < r->min_keep_ms) r->min_keep_ms = keep_ms;
    if (keep_ms > r->max_keep_ms) r->max_keep_ms = keep_ms;
}

/* ---- filters ---- */

void once__filter_set(unsigned char *block, once_hash id)
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
        once__filter_drop(s, old, --old->filters_high);
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
bool once__filters_fresh(once_settled *s, uint32_t buckets)
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
int once__filters_write(once_settled *s, run *r, uint32_t first, uint32_t buckets, once_error *err)
{
    assert(first % CHUNK == 0 && buckets % CHUNK == 0);
    for (uint32_t done = 0; done < buckets; done += CHUNK) {
        const uint32_t chunk = (first + done) / CHUNK;
        const unsigned char *blocks = s->fresh_filters + (size_t)done * FILTER_BYTES;
        const int64_t id = r->id << 32 | chunk;
        sqlite3_stmt *stmt = once__settled_bound(s, FILTER_INSERT, id);
        once_bytes sealed = {(const char *)blocks, CHUNK * FILTER_BYTES};
        if (once__settled_sealed(s, FILTER, id)) {
            once_buf_clear(&s->sealed);
            if (!once__seal(&s->sealed, FILTER, (uint64_t)id, 0, sealed))
                return once_no_memory(err, "for settled entries");
            sealed = once_buf_bytes(&s->sealed);
        }
        sqlite3_bind_blob64(stmt, 2, sealed.data, sealed.len, SQLITE_STATIC);
        const int rc = once__settled_step(s, FILTER_INSERT, err);
        if (rc != ONCE_OK) return rc;
        filter_keep(s, r, chunk, blocks);
    }
    return ONCE_OK;
}

/* The blocks of a row of once_filter; false: damaged. */
static bool unseal_filter(const once_settled *s, int64_t id, once_bytes *blocks)
{
    return (!once__settled_sealed(s, FILTER, id) || once__unseal(FILTER, (uint64_t)id, 0, blocks)) &&
           blocks->len == CHUNK * FILTER_BYTES;
}

/* The filters of a chunk, from memory or from their table; a missing row is damage. Valid until the next call. */
static int filter_blocks(once_settled *s, const run *r, uint32_t chunk, const unsigned char **out, once_error *err)
{
    const int64_t id = r->id << 32 | chunk;
    *out = r->filters[chunk];
    if (*out) return ONCE_OK;
    sqlite3_stmt *stmt = once__settled_bound(s, FILTER_GET, id);
    const int code = sqlite3_step(stmt);
    int rc = ONCE_OK;
    if (code == SQLITE_ROW) {
        once_bytes blocks = once__settled_column(stmt, 0);
        if (unseal_filter(s, id, &blocks)) memcpy(s->filter, blocks.data, sizeof s->filter);
        else rc = once__settled_damaged(s, "table once_filter", err);
    } else {
        rc = code == SQLITE_DONE ? once__settled_damaged(s, "table once_filter", err)
                                 : once__sqlite_fail(s->db, code, err);
    }
    sqlite3_reset(stmt);
    *out = s->filter;
    return rc;
}

/* The bucket has no row: right only if nothing was ever written to it. */
static int check_no_bucket(once_settled *s, const run *r, uint32_t bucket, once_error *err)
{
    static const unsigned char empty[FILTER_BYTES];
    const unsigned char *blocks;
    if (!once__settled_sealed(s, BUCKET, r->id << 32))
        return ONCE_OK; /* version 4 deleted the rows that it swept empty */
    const int rc = filter_blocks(s, r, bucket / CHUNK, &blocks, err);
    if (rc != ONCE_OK) return rc;
    if (memcmp(blocks + bucket % CHUNK * FILTER_BYTES, empty, FILTER_BYTES) == 0) return ONCE_OK;
    return once__settled_damaged(s, "table once_bucket", err);
}

/* Loads the missing filters of a run as far as there is room; newer runs come first. */
static int filters_load(once_settled *s, run *r, once_error *err)
{
    const uint32_t from = r->from / CHUNK, to = (r->to + CHUNK - 1) / CHUNK;
    uint32_t first = from;
    while (first < to && r->filters[first]) first++;
    if (first == to || !filter_room(s, r)) return ONCE_OK;
    sqlite3_stmt *stmt = once__settled_bound_range(s, FILTER_RANGE, r, first, to);
    int code;
    while ((code = sqlite3_step(stmt)) == SQLITE_ROW && filter_room(s, r)) {
        const uint32_t chunk = (uint32_t)sqlite3_column_int64(stmt, 0);
        once_bytes blocks = once__settled_column(stmt, 1);
        if (chunk >= to || !unseal_filter(s, sqlite3_column_int64(stmt, 0), &blocks)) {
            sqlite3_reset(stmt);
            return once__settled_damaged(s, "table once_filter", err);
        }
        filter_keep(s, r, chunk, (const unsigned char *)blocks.data);
    }
    const int rc = code == SQLITE_ROW || code == SQLITE_DONE ? ONCE_OK : once__sqlite_fail(s->db, code, err);
    sqlite3_reset(stmt);
    return rc;
}

/* ---- loading ---- */

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
    if (id <= 0 || id > s->head.last_run || level < 0 || level >= LEVELS || state < WHOLE || state > DROPPING ||
        cursor < 0 || cursor > once__level_buckets(s, (unsigned)level) || s->n_runs == RUNS_MAX ||
        (state == OUTPUT && level == 0))
        return once__settled_damaged(s, "table once_run", err);
    run *r = take_known(known, n_known, id);
    if (!r) r = run_new(s, id, (unsigned)level);
    if (!r) return once_no_memory(err, "for settled entries");
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

int once__runs_load(once_settled *s, once_error *err)
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
    for (size_t i = 0; i < n_known; i++) once__run_free(s, known[i]);
    if (rc == ONCE_OK && !s->head.unsummed && once__runs_sum(s) != s->head.runs_sum)
        rc = once__settled_damaged(s, "table once_run", err);
    once__runs_arrange(s);
    for (size_t i = 0; i < s->n_runs; i++) /* filters of positions that a merge has passed are no longer needed */
        for (uint32_t chunk = 0; chunk < s->runs[i]->from / CHUNK && chunk < s->runs[i]->filters_high; chunk++)
            once__filter_drop(s, s->runs[i], chunk);
    for (size_t i = 0; i < s->n_runs && rc == ONCE_OK; i++) rc = filters_load(s, s->runs[i], err);
    return rc;
}

/* ---- reading ---- */

int once__run_read(once_settled *s, const run *r, uint32_t from, uint32_t to, once_error *err)
{
    assert(from <= to);
    sqlite3_stmt *stmt = once__settled_bound_range(s, BUCKET_RANGE, r, from, to);
    int code = SQLITE_DONE, rc = ONCE_OK;
    while (rc == ONCE_OK && (code = sqlite3_step(stmt)) == SQLITE_ROW) {
        const int64_t id = sqlite3_column_int64(stmt, 0);
        const uint32_t bucket = (uint32_t)id;
        once_bytes records = once__settled_column(stmt, 1), tails = once__settled_column(stmt, 2);
        for (; from < bucket && rc == ONCE_OK; from++) rc = check_no_bucket(s, r, from, err);
        from = bucket + 1;
        if (rc != ONCE_OK) break;
        if (!once__settled_unseal(s, BUCKET, id, &records, &tails))
            rc = once__settled_damaged(s, "table once_bucket", err);
        else if (records.len || !once__settled_sealed(s, BUCKET, id))
            rc = once__pile_blob(s, &s->scratch, records, tails, "table once_bucket", err);
    }
    if (rc == ONCE_OK && code != SQLITE_DONE) rc = once__sqlite_fail(s->db, code, err);
    sqlite3_reset(stmt);
    for (; from < to && rc == ONCE_OK; from++) rc = check_no_bucket(s, r, from, err);
    return rc;
}

/* Looks for an id in the bucket of the current row of `stmt`. */
static int search_bucket(once_settled *s, int64_t row, sqlite3_stmt *stmt, once_hash id, once_record *out,
                         once_arena *arena, once_error *err)
{
    once_bytes records = once__settled_column(stmt, 0), tails = once__settled_column(stmt, 1);
    once_record_ref ref;
    if (!once__settled_unseal(s, BUCKET, row, &records, &tails))
        return once__settled_damaged(s, "table once_bucket", err);
    for (size_t at = 0, tail_at = 0; at < records.len; at += ref.len, tail_at += ref.tail_len) {
        if (!once__record_look(records, at, tail_at, &ref)) return once__settled_damaged(s, "table once_bucket", err);
        const int order = once_hash_compare(ref.id, id);
        if (order > 0) break;
        if (order < 0) continue;
        once_bytes tail = {0};
        if (ref.tail_len) {
            if (ref.tail_len > tails.len || ref.tail_at > tails.len - ref.tail_len)
                return once__settled_damaged(s, "table once_bucket", err);
            tail = (once_bytes){tails.data + ref.tail_at, ref.tail_len};
        }
        if (!once__record_read(records, &ref, tail, out)) return once__settled_damaged(s, "table once_bucket", err);
        return once__record_own(arena, out) ? ONCE_OK : once_no_memory(err, "for settled entries");
    }
    return ONCE_OK;
}

int once__run_find(once_settled *s, const run *r, once_hash id, once_record *out, once_arena *arena, once_error *err)
{
    const uint32_t bucket = once__level_bucket(s, r->level, id);
    if (bucket < r->from || bucket >= r->to) return ONCE_OK;
    const unsigned char *blocks = r->filters[bucket / CHUNK];
    if (blocks && !filter_test(blocks + bucket % CHUNK * FILTER_BYTES, id)) return ONCE_OK;
    sqlite3_stmt *stmt = once__settled_bound(s, BUCKET_GET, r->id << 32 | bucket);
    const int code = sqlite3_step(stmt);
    int rc = ONCE_OK;
    if (code == SQLITE_ROW) rc = search_bucket(s, r->id << 32 | bucket, stmt, id, out, arena, err);
    else rc = code == SQLITE_DONE ? check_no_bucket(s, r, bucket, err) : once__sqlite_fail(s->db, code, err);
    sqlite3_reset(stmt);
    return rc;
}
