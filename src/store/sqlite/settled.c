/* Finished entries: many (millions), with random ids, written once, looked up on every delivery, dropped by time.
 *
 * A B-tree row for each entry costs a random page per message. Instead, a commit appends one blob, and records are
 * sorted later in large pieces; so a record is written about once per level, always next to its neighbours. It is a
 * small log-structured merge tree, made only of INSERT, UPDATE and DELETE inside the transaction that settles, so crash
 * safety is SQLite's.
 *
 * Claims. A claim for an effect outside is written by one transaction and settled by a later one, often a few
 * milliseconds after it. As a row of once_entry it would be inserted into a table and its indexes, and deleted from all
 * of them. Instead the claim is a recent record, and the record of its outcome ends it: nothing is ever deleted. Claims
 * exist only among the recent records. What is not ended when these are flushed becomes a row of once_entry (save.c).
 *
 * Tables
 *   once_recent(id, records, tails)     one row per commit: the records that it made, in that order (record.h)
 *   once_run(id, level, state, cursor, records, min_keep_ms, max_keep_ms, created_ms, swept_ms)
 *                                       state: 0 WHOLE, 1 INPUT, 2 OUTPUT, 3 DROPPING
 *   once_bucket(id = run << 32 | bucket, records, tails)    records sorted by id, one per id
 *   once_filter(id = run << 32 | chunk, blocks)             one Bloom block per bucket, CHUNK buckets a row
 *
 * Sums (sum.h). Records, tails and blocks are sealed, unless they come from version 4. Rows of once_recent are numbered
 * without gaps, the rows of once_run have a sum of their own in once_store, and a bucket has a row exactly when its
 * filter block is not zero: so a missing row is detected like a changed one. (A bucket that a sweep emptied stays as a
 * seal without records.)
 *
 * Newest wins. The order from new to old is: recent rows by falling id, then runs by rising level and falling id.
 *
 * Recent records are also held in memory with a hash index. When there are enough of them they are flushed: sorted into
 * a run of level 0. A run of level L has 2^(level0_bits + 3L) buckets, chosen by the top bits of the id. Ids are a
 * keyed hash, so buckets fill evenly (about 16 records) and a lookup is one seek by rowid: no fences, no binary search.
 *
 * FANOUT runs of a level are merged into one run of the next level, a few bucket positions at a time. During a merge
 *   inputs  (state INPUT)   own the positions from the cursor on; the positions before it have been deleted
 *   output  (state OUTPUT)  owns the positions before the cursor (in input positions; FANOUT output buckets each)
 * and the row of the output has the cursor. There is at most one merge per level. How full the level below is decides
 * how far a merge should be (merge_target): so every commit does a small share, nothing piles up, and all state of a
 * merge is in the tables.
 *
 * Dropping by time. A record may go when keep_ms has passed. Dropping it is safe without reading older records of its
 * id: keep_ms is at least that of every older record that may still exist (the caller ensures that; forgetting writes a
 * tombstone that is kept as long as the records that it hides). Merges and sweeps drop records; a run whose max_keep_ms
 * has passed is no longer read, and is deleted without being read.
 *
 * Filters: FILTER_BYTES per bucket, in memory up to limits.filter_bytes, newest and smallest runs first; buckets
 * without a filter in memory are probed on disk. Filters never miss a record; sweeping only leaves them too full.
 *
 * Other processes: rows of once_recent above `last seen` are new; a new `flushed` means that the recent records in
 * memory are now in a run; a new `generation` means that once_run changed. All three are read inside the transaction. A
 * run's id is never used again and its filters never change, so only new runs have to be loaded. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"
#include "store/sqlite/settled_impl.h"

#include "base/banned.h"

static const char *const statement_sql[STATEMENTS] = {
    [RECENT_INSERT] = "INSERT INTO once_recent(id, records, tails) VALUES (?1, ?2, ?3)",
    [RECENT_SINCE] = "SELECT id, records, tails FROM once_recent WHERE id > ?1 ORDER BY id",
    [RECENT_DELETE] = "DELETE FROM once_recent WHERE id <= ?1",
    [RUN_INSERT] =
        "INSERT INTO once_run(id, level, state, cursor, records, min_keep_ms, max_keep_ms, created_ms, swept_ms)"
        " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    [RUN_UPDATE] = "UPDATE once_run SET level = ?2, state = ?3, cursor = ?4, records = ?5, min_keep_ms = ?6,"
                   " max_keep_ms = ?7, created_ms = ?8, swept_ms = ?9 WHERE id = ?1",
    [RUN_DELETE] = "DELETE FROM once_run WHERE id = ?1",
    [RUN_ALL] =
        "SELECT id, level, state, cursor, records, min_keep_ms, max_keep_ms, created_ms, swept_ms FROM once_run",
    [BUCKET_GET] = "SELECT records, tails FROM once_bucket WHERE id = ?1",
    [BUCKET_RANGE] = "SELECT id, records, tails FROM once_bucket WHERE id >= ?1 AND id < ?2 ORDER BY id",
    [BUCKET_INSERT] = "INSERT INTO once_bucket(id, records, tails) VALUES (?1, ?2, ?3)",
    [BUCKET_UPDATE] = "UPDATE once_bucket SET records = ?2, tails = ?3 WHERE id = ?1",
    [BUCKET_DELETE] = "DELETE FROM once_bucket WHERE id = ?1",
    [BUCKET_DELETE_RANGE] = "DELETE FROM once_bucket WHERE id >= ?1 AND id < ?2",
    [FILTER_INSERT] = "INSERT INTO once_filter(id, blocks) VALUES (?1, ?2)",
    [FILTER_GET] = "SELECT blocks FROM once_filter WHERE id = ?1",
    [FILTER_RANGE] = "SELECT id, blocks FROM once_filter WHERE id >= ?1 AND id < ?2 ORDER BY id",
    [FILTER_DELETE_RANGE] = "DELETE FROM once_filter WHERE id >= ?1 AND id < ?2",
};

const once_settled_limits once__settled_defaults = {
    .recent_records = 65536,
    .recent_bytes = 12u << 20,
    .level0_bits = 12,
    .filter_bytes = 8u << 20,
};

int once__settled_damaged(once_settled *s, const char *what, once_error *err)
{
    return once_fail(err, ONCE_E_CORRUPT, "file '%s': %s is damaged; restore it from a backup", s->db->path, what);
}

/* ---- piles ---- */

bool once__pile_push(pile *p, const once_record_ref *ref)
{
    assert(p->n <= p->capacity);
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

void once__pile_clear(pile *p)
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

once_bytes once__pile_slice(const once_buf *buf, size_t at, size_t len)
{
    assert(at + len <= buf->len);
    return len ? (once_bytes){buf->data + at, len} : (once_bytes){0};
}

once_bytes once__settled_column(sqlite3_stmt *stmt, int at)
{
    const void *data = sqlite3_column_blob(stmt, at);
    return (once_bytes){data, (size_t)sqlite3_column_bytes(stmt, at)};
}

/* Appends all records of the two blobs. Returns ONCE_OK, or a status with `err` filled. */
int once__pile_blob(once_settled *s, pile *p, once_bytes records, once_bytes tails, const char *what, once_error *err)
{
    const size_t base = p->records.len, tail_base = p->tails.len;
    if (records.len == 0) return once__settled_damaged(s, what, err);
    if (!once_buf_append(&p->records, records.data, records.len) ||
        (tails.len && !once_buf_append(&p->tails, tails.data, tails.len)))
        return once_no_memory(err, "for settled entries");
    size_t at = 0, tail_at = 0;
    while (at < records.len) {
        once_record_ref ref;
        if (!once__record_look(records, at, tail_at, &ref) || ref.tail_len > tails.len - tail_at)
            return once__settled_damaged(s, what, err);
        at += ref.len;
        tail_at += ref.tail_len;
        ref.at += base;
        ref.tail_at += tail_base;
        if (!once__pile_push(p, &ref)) return once_no_memory(err, "for settled entries");
    }
    return tail_at == tails.len ? ONCE_OK : once__settled_damaged(s, what, err);
}

/* ---- statements ---- */

sqlite3_stmt *once__settled_bound(once_settled *s, enum statement which, int64_t first)
{
    sqlite3_bind_int64(s->statements[which], 1, first);
    return s->statements[which];
}

sqlite3_stmt *once__settled_bound_range(once_settled *s, enum statement which, const run *r, uint32_t from, uint32_t to)
{
    sqlite3_bind_int64(s->statements[which], 2, r->id << 32 | to);
    return once__settled_bound(s, which, r->id << 32 | from);
}

int once__settled_step(once_settled *s, enum statement which, once_error *err)
{
    return once__sqlite_step(s->db, s->statements[which], err);
}

static int bind_blob(sqlite3_stmt *stmt, int at, once_bytes bytes)
{
    if (bytes.len == 0) return sqlite3_bind_null(stmt, at);
    return sqlite3_bind_blob64(stmt, at, bytes.data, bytes.len, SQLITE_STATIC);
}

bool once__settled_sealed(const once_settled *s, char table, int64_t id)
{
    return table == RECENT ? id > s->head.unsealed_recent : id >> 32 > s->head.unsealed_run;
}

/* The sum of the records covers the length of the tails, so that lost tails are detected. */
bool once__settled_unseal(const once_settled *s, char table, int64_t id, once_bytes *records, once_bytes *tails)
{
    if (!once__settled_sealed(s, table, id)) return true;
    return once__unseal(table, (uint64_t)id, tails->len, records) &&
           (!tails->len || once__unseal(table, (uint64_t)id, UINT64_MAX, tails));
}

static bool seal(once_settled *s, char table, int64_t id, once_bytes *records, once_bytes *tails)
{
    once_buf_clear(&s->sealed);
    once_buf_clear(&s->sealed_tails);
    if (!once__settled_sealed(s, table, id)) return true;
    if (tails->len && !once__seal(&s->sealed_tails, table, (uint64_t)id, UINT64_MAX, *tails)) return false;
    *tails = once_buf_bytes(&s->sealed_tails);
    if (!once__seal(&s->sealed, table, (uint64_t)id, tails->len, *records)) return false;
    *records = once_buf_bytes(&s->sealed);
    return true;
}

int once__settled_write(once_settled *s, enum statement which, int64_t id, once_bytes records, once_bytes tails,
                        once_error *err)
{
    assert(which == RECENT_INSERT || which == BUCKET_INSERT || which == BUCKET_UPDATE);
    sqlite3_stmt *stmt = once__settled_bound(s, which, id);
    if (!seal(s, which == RECENT_INSERT ? RECENT : BUCKET, id, &records, &tails))
        return once_no_memory(err, "for settled entries");
    const int code = bind_blob(stmt, 2, records);
    if (code != SQLITE_OK || bind_blob(stmt, 3, tails) != SQLITE_OK) return once__sqlite_fail(s->db, SQLITE_NOMEM, err);
    return once__settled_step(s, which, err);
}

/* ---- recent records ---- */

/* The newest recent record of an id, or NULL. */
static const once_record_ref *index_get(const once_settled *s, once_hash id)
{
    size_t at;
    return once_table_position(&s->index, id, &at) ? &s->recent.refs[at] : NULL;
}

/* Makes the index cover recent.refs from `first` on. */
static bool index_extend(once_settled *s, size_t first)
{
    if (!once_table_reserve(&s->index, s->index.n + (s->recent.n - first))) return false;
    for (size_t i = first; i < s->recent.n; i++) {
        const once_record_ref *ref = &s->recent.refs[i];
        if (i + EXPECTED < s->recent.n) once_table_expect(&s->index, s->recent.refs[i + EXPECTED].id);
        (void)once_table_put_position(&s->index, ref->id, i);
        if (!ref->claim) (void)once_table_remove(&s->claims, ref->id);
        else if (!once_table_put_position(&s->claims, ref->id, i)) return false;
    }
    return true;
}

bool once__recent_is_open(const once_settled *s, const once_record_ref *ref)
{
    size_t at;
    return ref->claim && once_table_position(&s->claims, ref->id, &at) && &s->recent.refs[at] == ref;
}

void once__recent_clear(once_settled *s)
{
    once__pile_clear(&s->recent);
    s->written = s->written_records = s->written_tails = 0;
    const size_t kept = 8 * s->limits.recent_records;
    if (s->index.size > kept) { /* after a giant transaction */
        pile_release(&s->recent);
        once_buf_init(&s->recent.records, BYTES_MAX);
        once_buf_init(&s->recent.tails, BYTES_MAX);
    }
    once_table_clear(&s->index, kept);
    once_table_clear(&s->claims, ONCE_TABLE_KEPT);
    s->n_claims = 0;
}

static int recent_load(once_settled *s, int64_t since, once_error *err)
{
    const size_t first = s->recent.n;
    sqlite3_stmt *stmt = once__settled_bound(s, RECENT_SINCE, since);
    int code = SQLITE_DONE, rc = ONCE_OK;
    while (rc == ONCE_OK && (code = sqlite3_step(stmt)) == SQLITE_ROW) {
        const int64_t id = sqlite3_column_int64(stmt, 0);
        once_bytes records = once__settled_column(stmt, 1), tails = once__settled_column(stmt, 2);
        /* Each commit writes one row, numbered without gaps: a missing row is detected. */
        if (id != ++since || !once__settled_unseal(s, RECENT, id, &records, &tails))
            rc = once__settled_damaged(s, "table once_recent", err);
        else rc = once__pile_blob(s, &s->recent, records, tails, "table once_recent", err);
    }
    if (rc == ONCE_OK && code != SQLITE_DONE) rc = once__sqlite_fail(s->db, code, err);
    sqlite3_reset(stmt);
    if (rc == ONCE_OK && since != s->head.last_recent) rc = once__settled_damaged(s, "table once_recent", err);
    if (rc == ONCE_OK && !index_extend(s, first)) rc = once_no_memory(err, "for settled entries");
    for (size_t i = first; i < s->recent.n; i++) s->n_claims += s->recent.refs[i].claim;
    s->written = s->recent.n;
    s->written_records = s->recent.records.len;
    s->written_tails = s->recent.tails.len;
    return rc;
}

/* ---- keeping up with the tables ---- */

static void forget_everything(once_settled *s)
{
    once__recent_clear(s);
    for (size_t i = 0; i < s->n_runs; i++) once__run_free(s, s->runs[i]);
    s->n_runs = 0;
    s->head = (once_settled_head){.generation = -1, .flushed = -1};
}

int once__settled_refresh(once_settled *s, const once_settled_head *head, once_error *err)
{
    if (s->distrusted) forget_everything(s);
    s->distrusted = true; /* until this has succeeded */
    const once_settled_head old = s->head;
    s->head = *head;
    int rc = ONCE_OK;
    if (old.flushed != head->flushed) once__recent_clear(s);
    if (old.flushed != head->flushed || old.last_recent != head->last_recent)
        rc = recent_load(s, old.flushed != head->flushed ? head->flushed : old.last_recent, err);
    if (rc == ONCE_OK && old.generation != head->generation) rc = once__runs_load(s, err);
    if (rc == ONCE_OK) s->distrusted = false;
    return rc;
}

void once__settled_distrust(once_settled *s) { s->distrusted = true; }

const once_settled_head *once__settled_head(once_settled *s)
{
    s->head.runs_sum = once__runs_sum(s);
    s->head.unsummed = false;
    return &s->head;
}

/* ---- lookup ---- */

bool once__record_own(once_arena *arena, once_record *r)
{
    return (!r->point.len || once_arena_copy(arena, r->point, &r->point)) &&
           (!r->key.len || once_arena_copy(arena, r->key, &r->key)) &&
           (!r->result.len || once_arena_copy(arena, r->result, &r->result)) &&
           (!r->reason.len || once_arena_copy(arena, r->reason, &r->reason)) &&
           (!r->history.len || once_arena_copy(arena, r->history, &r->history));
}

static int find_recent(once_settled *s, once_hash id, once_record *out, once_arena *arena, once_error *err)
{
    const once_record_ref *ref = index_get(s, id);
    if (!ref) return ONCE_OK;
    if (!once__record_read(once__pile_slice(&s->recent.records, 0, s->recent.records.len), ref,
                           once__pile_slice(&s->recent.tails, ref->tail_at, ref->tail_len), out))
        return once__settled_damaged(s, "table once_recent", err);
    return once__record_own(arena, out) ? ONCE_OK : once_no_memory(err, "for settled entries");
}

bool once__settled_has_none(const once_settled *s)
{
    assert(!s->distrusted);
    return s->recent.n == 0 && s->n_runs == 0;
}

int once__settled_find(once_settled *s, const once_hash *ids, size_t n, int64_t now_ms, once_record *out,
                       once_arena *arena, once_error *err)
{
    assert(n > 0);
    assert(!s->distrusted);
    if (n == 0) return ONCE_OK;
    uint32_t few[256], *open = few; /* ids that are not found yet */
    if (n > sizeof few / sizeof *few && !(open = once_arena_alloc(arena, n * sizeof *open)))
        return once_no_memory(err, "for settled entries");
    size_t left = 0;
    for (size_t i = 0; i < n; i++) {
        assert(i == 0 || once_hash_compare(ids[i - 1], ids[i]) < 0);
        if (i + EXPECTED < n) once_table_expect(&s->index, ids[i + EXPECTED]);
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
            const int rc = once__run_find(s, s->runs[r], record->id, record, arena, err);
            if (rc != ONCE_OK) return rc;
            if (!record->keep_ms) open[still++] = open[i];
        }
        left = still;
    }
    return ONCE_OK;
}

/* ---- adding ---- */

int once__settled_add(once_settled *s, const once_record *record, once_error *err)
{
    assert(!s->distrusted);
    once_record_ref ref;
    if (!once__record_write(record, &s->recent.records, &s->recent.tails, &ref) || !once__pile_push(&s->recent, &ref))
        return once_no_memory(err, "for settled entries");
    s->n_claims += ref.claim;
    return ONCE_OK;
}

/* Writes one row with the records added since the last one. */
int once__recent_write(once_settled *s, once_error *err)
{
    pile *p = &s->recent;
    const once_bytes records = once__pile_slice(&p->records, s->written_records, p->records.len - s->written_records);
    const once_bytes tails = once__pile_slice(&p->tails, s->written_tails, p->tails.len - s->written_tails);
    const int rc = once__settled_write(s, RECENT_INSERT, s->head.last_recent + 1, records, tails, err);
    if (rc != ONCE_OK) return rc;
    s->head.last_recent++;
    if (!index_extend(s, s->written)) return once_no_memory(err, "for settled entries");
    s->written = p->n;
    s->written_records = p->records.len;
    s->written_tails = p->tails.len;
    return ONCE_OK;
}

bool once__settled_will_flush(const once_settled *s)
{
    assert(!s->distrusted);
    const pile *p = &s->recent;
    if (p->n == s->written) return false;
    return p->n - s->n_claims >= s->limits.recent_records || p->records.len + p->tails.len >= s->limits.recent_bytes;
}

int once__settled_commit(once_settled *s, int64_t now_ms, once_error *err)
{
    assert(!s->distrusted);
    if (s->recent.n == s->written) return ONCE_OK;
    const int rc = once__settled_will_flush(s) ? once__settled_flush(s, now_ms, err) : once__recent_write(s, err);
    return rc == ONCE_OK ? once__settled_merge(s, now_ms, err) : rc;
}

/* ---- claims ---- */

size_t once__settled_claims(const once_settled *s) { return s->claims.n; }

static int compare_positions(const void *a, const void *b)
{
    const uintptr_t x = (uintptr_t) * (void *const *)a, y = (uintptr_t) * (void *const *)b;
    return x < y ? -1 : x > y;
}

int once__settled_each_claim(once_settled *s, once_record_visit *visit, void *user, once_error *err)
{
    assert(!s->distrusted && visit);
    const size_t n = s->claims.n;
    if (n == 0) return ONCE_OK;
    void **order = malloc(n * sizeof *order);
    if (!order) return once_no_memory(err, "for settled entries");
    for (size_t i = 0, at = 0; i < n; i++) order[i] = once_table_next(&s->claims, &at);
    qsort(order, n, sizeof *order, compare_positions);
    int rc = ONCE_OK;
    bool go_on = true;
    for (size_t i = 0; i < n && go_on && rc == ONCE_OK; i++) {
        once_record record;
        const once_record_ref *ref = &s->recent.refs[(uintptr_t)order[i] - 1];
        assert(ref->claim);
        if (once__record_read(once_buf_bytes(&s->recent.records), ref, (once_bytes){0}, &record))
            go_on = visit(user, &record);
        else rc = once__settled_damaged(s, "table once_recent", err);
    }
    free(order);
    return rc;
}

/* ---- everything ---- */

typedef struct visitor {
    int64_t now_ms;
    once_record_visit *visit;
    void *user;
    once_arena arena;
    bool over;
} visitor;

/* Whether the id has a newer record, in the recent ones or in the first `newer` runs. The position of a record decides,
 * and not its content: two lives of an id may have ended alike, at the same moment. */
static int is_hidden(once_settled *s, const once_record_ref *ref, size_t newer, visitor *v, bool *out, once_error *err)
{
    once_record other = {0};
    const once_record_ref *recent = index_get(s, ref->id);
    int rc = ONCE_OK;
    for (size_t i = 0; i < newer && !recent && !other.keep_ms && rc == ONCE_OK; i++)
        if (s->runs[i]->max_keep_ms > v->now_ms) rc = once__run_find(s, s->runs[i], ref->id, &other, &v->arena, err);
    *out = other.keep_ms || (recent && recent != ref);
    once_arena_reset(&v->arena);
    return rc;
}

/* Shows the records of `p` that are the newest of their ids. */
static int show_pile(once_settled *s, const pile *p, size_t newer, visitor *v, once_error *err)
{
    for (size_t i = 0; i < p->n && !v->over; i++) {
        once_record record;
        bool hidden;
        const once_record_ref *ref = &p->refs[i];
        if (ref->tombstone) continue;
        const int rc = is_hidden(s, ref, newer, v, &hidden, err);
        if (rc != ONCE_OK) return rc;
        if (hidden) continue;
        if (!once__record_read(once__pile_slice(&p->records, 0, p->records.len), ref,
                               once__pile_slice(&p->tails, ref->tail_at, ref->tail_len), &record))
            return once__settled_damaged(s, "a record", err);
        v->over = !v->visit(v->user, &record);
    }
    return ONCE_OK;
}

int once__settled_each(once_settled *s, int64_t now_ms, once_record_visit *visit, void *user, once_error *err)
{
    assert(!s->distrusted && visit);
    visitor v = {.now_ms = now_ms, .visit = visit, .user = user};
    int rc = show_pile(s, &s->recent, 0, &v, err);
    for (size_t i = 0; i < s->n_runs && rc == ONCE_OK && !v.over; i++) {
        const run *r = s->runs[i];
        if (r->max_keep_ms <= now_ms) continue;
        for (uint32_t bucket = r->from; bucket < r->to && rc == ONCE_OK && !v.over; bucket += CHUNK) {
            const uint32_t end = bucket / CHUNK * CHUNK + CHUNK;
            once__pile_clear(&s->scratch);
            rc = once__run_read(s, r, bucket, end < r->to ? end : r->to, err);
            if (rc == ONCE_OK) rc = show_pile(s, &s->scratch, i, &v, err);
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

int once__settled_open(once_sqlite_db *db, const once_settled_limits *limits, once_settled **out, once_error *err)
{
    assert(limits->level0_bits >= 6 && limits->level0_bits + (LEVELS - 1) * FANOUT_BITS <= 31);
    assert(limits->recent_records > 0 && limits->recent_records < UINT32_MAX);
    once_settled *s = calloc(1, sizeof *s);
    if (!s) return once_no_memory(err, "for settled entries");
    s->db = db;
    s->limits = *limits;
    s->distrusted = true;
    once_buf *const bufs[] = {&s->recent.records, &s->recent.tails, &s->scratch.records, &s->scratch.tails, &s->out,
                              &s->out_tails,      &s->sealed,       &s->sealed_tails};
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
    for (size_t i = 0; i < s->n_runs; i++) once__run_free(s, s->runs[i]);
    pile_release(&s->recent);
    pile_release(&s->scratch);
    once_buf_release(&s->out);
    once_buf_release(&s->out_tails);
    once_buf_release(&s->sealed);
    once_buf_release(&s->sealed_tails);
    once_table_release(&s->index);
    once_table_release(&s->claims);
    free(s->fresh_filters);
    free(s->order);
    free(s);
}
