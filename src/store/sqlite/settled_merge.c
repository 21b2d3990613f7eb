/* Moving and dropping finished entries: recent records into a run, runs into larger runs, expired records away. Layout
 * and rules: settled.c.
 *
 * Everything here runs inside the caller's transaction. When it fails, the caller calls once__settled_distrust. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/failpoint.h"
#include "base/no_memory.h"
#include "store/sqlite/settled_impl.h"

#include "base/banned.h"

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
    const int rc = once__settled_write(s, BUCKET_INSERT, w->run->id << 32 | w->bucket, once_buf_bytes(&s->out),
                                       once_buf_bytes(&s->out_tails), err);
    once_buf_clear(&s->out);
    once_buf_clear(&s->out_tails);
    return rc;
}

static int writer_put(once_settled *s, writer *w, const pile *from, const once_record_ref *ref, once_error *err)
{
    const uint32_t bucket = once__level_bucket(s, w->run->level, ref->id);
    assert(bucket >= w->first);
    if (bucket != w->bucket) {
        const int rc = writer_flush(s, w, err);
        if (rc != ONCE_OK) return rc;
        w->bucket = bucket;
    }
    if (!once_buf_append(&s->out, from->records.data + ref->at, ref->len) ||
        (ref->tail_len && !once_buf_append(&s->out_tails, from->tails.data + ref->tail_at, ref->tail_len)))
        return once_no_memory(err, "for settled entries");
    once__filter_set(s->fresh_filters + (size_t)(bucket - w->first) * FILTER_BYTES, ref->id);
    once__run_count(w->run, ref->keep_ms);
    return ONCE_OK;
}

/* ---- flush ---- */

/* The order of recent.refs[first, first + n): by id, and the newest first among equal ones. Ids are uniform, so it is
 * enough to deal them into 2^bits parts and to sort each part by insertion. */
static bool flush_order(once_settled *s, size_t first, size_t n)
{
    const unsigned bits = once__level_bits(s, 0);
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
    const uint32_t buckets = once__level_buckets(s, 0);
    run *r;
    if (!flush_order(s, first, n) || !once__filters_fresh(s, buckets))
        return once_no_memory(err, "for settled entries");
    int rc = once__run_start(s, 0, WHOLE, now_ms, &r, err);
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
    if (rc == ONCE_OK && r->records == 0) return once__run_remove(s, r, err);
    if (rc == ONCE_OK) rc = once__filters_write(s, r, 0, buckets, err);
    if (rc == ONCE_OK) rc = once__run_write(s, r, RUN_UPDATE, err);
    return rc;
}

/* Runs have no claims: those that are open are rows by now. */
static void drop_claims(once_settled *s)
{
    size_t left = 0;
    for (size_t i = 0; i < s->recent.n; i++)
        if (!s->recent.refs[i].claim) s->recent.refs[left++] = s->recent.refs[i];
    s->recent.n = left;
    s->n_claims = 0;
}

int once__settled_flush(once_settled *s, int64_t now_ms, once_error *err)
{
    drop_claims(s);
    for (size_t first = 0; first < s->recent.n; first += s->limits.recent_records) {
        const size_t left = s->recent.n - first;
        int rc = flush_run(s, first, left < s->limits.recent_records ? left : s->limits.recent_records, now_ms, err);
        if (rc == ONCE_OK)
            rc = once__settled_merge(s, now_ms, err); /* a giant transaction makes many runs, which are
                                                                      * merged at once */
        if (rc != ONCE_OK) return rc;
    }
    once__settled_bound(s, RECENT_DELETE, s->head.last_recent);
    const int rc = once__settled_step(s, RECENT_DELETE, err);
    if (rc != ONCE_OK) return rc;
    s->head.flushed = s->head.last_recent;
    s->head.generation++;
    once__recent_clear(s);
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
    int rc = once__run_start(s, level + 1, OUTPUT, now_ms, &output, err);
    size_t n = 0;
    for (size_t i = s->n_runs; i-- > 0 && n < FANOUT && rc == ONCE_OK;) {
        run *r = s->runs[i];
        if (r->level != level || r->state != WHOLE) continue;
        r->state = INPUT;
        r->cursor = 0;
        n++;
        rc = once__run_write(s, r, RUN_UPDATE, err);
    }
    once__runs_arrange(s);
    return rc;
}

/* Merges the sorted streams refs[at[i], end[i]) into the writer; stream 0 is the newest. */
static int merge_streams(once_settled *s, writer *w, size_t *at, const size_t *end, size_t n, int64_t now_ms,
                         once_error *err)
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
        const int rc = once__run_remove(s, m->inputs[i], err);
        if (rc != ONCE_OK) return rc;
    }
    m->output->state = WHOLE;
    m->output->cursor = 0;
    if (m->output->records) return once__run_write(s, m->output, RUN_UPDATE, err);
    once__settled_bound_range(s, FILTER_DELETE_RANGE, m->output, 0, UINT32_MAX);
    const int rc = once__settled_step(s, FILTER_DELETE_RANGE, err);
    return rc == ONCE_OK ? once__run_remove(s, m->output, err) : rc;
}

/* Merges STEP positions. */
static int merge_step(once_settled *s, merge *m, int64_t now_ms, once_error *err)
{
    run *output = m->output;
    const uint32_t positions = once__level_buckets(s, output->level - 1);
    const uint32_t from = output->cursor, to = from + STEP;
    assert(to <= positions);
    size_t at[FANOUT], end[FANOUT];
    int rc = ONCE_OK;
    once__pile_clear(&s->scratch);
    for (size_t i = 0; i < m->n && rc == ONCE_OK; i++) {
        at[i] = s->scratch.n;
        if (m->inputs[i]->max_keep_ms > now_ms) rc = once__run_read(s, m->inputs[i], from, to, err);
        end[i] = s->scratch.n;
    }
    if (rc == ONCE_OK && !once__filters_fresh(s, STEP * FANOUT)) rc = once_no_memory(err, "for settled entries");
    writer w = {.run = output, .first = from * FANOUT, .bucket = from * FANOUT};
    if (rc == ONCE_OK) rc = merge_streams(s, &w, at, end, m->n, now_ms, err);
    if (rc == ONCE_OK) rc = writer_flush(s, &w, err);
    if (rc == ONCE_OK) rc = once__filters_write(s, output, from * FANOUT, STEP * FANOUT, err);
    if (rc == ONCE_OK && ONCE_FAIL_AT(merge_between)) rc = once_fail(err, ONCE_E_IO, "failpoint merge_between");
    for (size_t i = 0; i < m->n && rc == ONCE_OK; i++) {
        once__settled_bound_range(s, BUCKET_DELETE_RANGE, m->inputs[i], from, to);
        rc = once__settled_step(s, BUCKET_DELETE_RANGE, err);
        if (rc != ONCE_OK || to % CHUNK) continue;
        once__filter_drop(s, m->inputs[i], from / CHUNK);
        once__settled_bound_range(s, FILTER_DELETE_RANGE, m->inputs[i], from / CHUNK, from / CHUNK + 1);
        rc = once__settled_step(s, FILTER_DELETE_RANGE, err);
    }
    if (rc != ONCE_OK) return rc;
    output->cursor = to;
    rc = to == positions ? merge_end(s, m, err) : once__run_write(s, output, RUN_UPDATE, err);
    once__runs_arrange(s);
    return rc;
}

/* How many positions the merge of this level should have done: the fuller the level, the more, so that it ends (with a
 * quarter to spare) before the next FANOUT runs exist. */
static uint32_t merge_target(const once_settled *s, unsigned level)
{
    double filled = (double)whole_runs(s, level);
    if (level == 0) {
        filled += (double)(s->recent.n - s->n_claims) / (double)s->limits.recent_records;
    } else {
        merge below;
        if (merge_find(s, level - 1, &below))
            filled += (double)below.output->cursor / once__level_buckets(s, level - 1);
    }
    const uint32_t positions = once__level_buckets(s, level);
    const double target = (double)positions * filled * 1.25 / FANOUT;
    return target < positions ? (uint32_t)target : positions;
}

int once__settled_merge(once_settled *s, int64_t now_ms, once_error *err)
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

/* ---- dropping by time ---- */

/* A claim that is ended goes with, or before, the record that ended it: otherwise it would be open again. */
static bool is_over(const once_settled *s, const once_record_ref *ref, int64_t now_ms)
{
    return ref->claim ? !once__recent_is_open(s, ref) : ref->keep_ms <= now_ms;
}

/* Whether it is worth writing the recent records again. Usually half of them are claims that are ended, which is no
 * reason; an effect that takes long leaves one for each time that its lease was extended. */
static bool worth_a_sweep(const once_settled *s, int64_t now_ms)
{
    const pile *p = &s->recent;
    const size_t ended = s->n_claims - s->claims.n;
    size_t expired = 0;
    for (size_t i = 0; i < p->n; i++) expired += !p->refs[i].claim && p->refs[i].keep_ms <= now_ms;
    return (expired && (expired * 8 >= p->n || p->n <= 1024)) || (ended > 1024 && ended > p->n / 4 * 3);
}

/* Recent records are one or more rows of blobs. When enough of them are over, the others are written again as one
 * row. */
static int sweep_recent(once_settled *s, int64_t now_ms, once_sweep_result *out, once_error *err)
{
    pile *p = &s->recent, *kept = &s->scratch;
    if (!worth_a_sweep(s, now_ms)) return ONCE_OK;

    once__pile_clear(kept);
    for (size_t i = 0; i < p->n; i++) {
        once_record_ref ref = p->refs[i];
        if (is_over(s, &p->refs[i], now_ms)) {
            out->dropped += !ref.tombstone && !ref.claim;
            continue;
        }
        const size_t at = kept->records.len, tail_at = kept->tails.len;
        if (!once_buf_append(&kept->records, p->records.data + ref.at, ref.len) ||
            (ref.tail_len && !once_buf_append(&kept->tails, p->tails.data + ref.tail_at, ref.tail_len)))
            return once_no_memory(err, "for settled entries");
        ref.at = at;
        ref.tail_at = tail_at;
        if (!once__pile_push(kept, &ref)) return once_no_memory(err, "for settled entries");
    }
    once__settled_bound(s, RECENT_DELETE, s->head.last_recent);
    int rc = once__settled_step(s, RECENT_DELETE, err);
    if (rc != ONCE_OK) return rc;
    if (ONCE_FAIL_AT(sweep_between)) return once_fail(err, ONCE_E_IO, "failpoint sweep_between");
    s->head.flushed = s->head.last_recent;
    const pile swap = *p;
    *p = *kept;
    *kept = swap;
    s->written = s->written_records = s->written_tails = 0;
    once_table_clear(&s->index, SIZE_MAX);
    s->n_claims = s->claims.n; /* the others were over */
    once_table_clear(&s->claims, SIZE_MAX);
    return p->n ? once__recent_write(s, err) : ONCE_OK;
}

/* Deletes buckets of a run that has expired as a whole, without reading them. */
static int sweep_expired_run(once_settled *s, run *r, size_t limit, once_sweep_result *out, once_error *err)
{
    const uint32_t buckets = once__level_buckets(s, r->level);
    if (r->state != DROPPING) {
        r->state = DROPPING;
        r->cursor = 0;
        out->dropped += r->records;
    }
    const size_t per_bucket = (size_t)(r->records / buckets) + 1;
    uint32_t step = (uint32_t)(limit / per_bucket < CHUNK ? CHUNK : limit / per_bucket) / CHUNK * CHUNK;
    if (step > buckets - r->cursor) step = buckets - r->cursor;
    once__settled_bound_range(s, BUCKET_DELETE_RANGE, r, r->cursor, r->cursor + step);
    int rc = once__settled_step(s, BUCKET_DELETE_RANGE, err);
    if (rc == ONCE_OK && ONCE_FAIL_AT(sweep_between)) rc = once_fail(err, ONCE_E_IO, "failpoint sweep_between");
    if (rc == ONCE_OK) {
        once__settled_bound_range(s, FILTER_DELETE_RANGE, r, r->cursor / CHUNK, (r->cursor + step) / CHUNK);
        rc = once__settled_step(s, FILTER_DELETE_RANGE, err);
    }
    if (rc != ONCE_OK) return rc;
    r->cursor += step;
    return r->cursor == buckets ? once__run_remove(s, r, err) : once__run_write(s, r, RUN_UPDATE, err);
}

/* Rewrites one bucket without its expired records. The pile holds its records. */
static int sweep_bucket(once_settled *s, run *r, uint32_t bucket, int64_t now_ms, once_sweep_result *out,
                        once_error *err)
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
            return once_no_memory(err, "for settled entries");
    }
    int rc = ONCE_OK;
    const int64_t id = r->id << 32 | bucket;
    if (expired && s->out.len == 0 && !once__settled_sealed(s, BUCKET, id)) {
        once__settled_bound(s, BUCKET_DELETE, id);
        rc = once__settled_step(s, BUCKET_DELETE, err);
    } else if (expired) {
        rc = once__settled_write(s, BUCKET_UPDATE, id, once_buf_bytes(&s->out), once_buf_bytes(&s->out_tails), err);
    }
    once_buf_clear(&s->out);
    once_buf_clear(&s->out_tails);
    return rc;
}

/* Some records of this run have expired: continues the pass over the run. */
static int sweep_run(once_settled *s, run *r, size_t limit, int64_t now_ms, once_sweep_result *out, once_error *err)
{
    const uint32_t buckets = once__level_buckets(s, r->level);
    int rc = ONCE_OK;
    for (size_t seen = 0; seen < limit && r->cursor < buckets && rc == ONCE_OK; r->cursor++) {
        once__pile_clear(&s->scratch);
        rc = once__run_read(s, r, r->cursor, r->cursor + 1, err);
        if (rc == ONCE_OK) rc = sweep_bucket(s, r, r->cursor, now_ms, out, err);
        seen += s->scratch.n + 1;
        if (rc == ONCE_OK && ONCE_FAIL_AT(sweep_between)) rc = once_fail(err, ONCE_E_IO, "failpoint sweep_between");
    }
    if (rc != ONCE_OK) return rc;
    if (r->cursor == buckets) {
        r->cursor = 0;
        r->swept_ms = now_ms;
        /* The exact value would need a second read of the run; all records that expired before now are gone. */
        r->min_keep_ms = now_ms + 1;
    }
    return r->records || r->cursor ? once__run_write(s, r, RUN_UPDATE, err) : sweep_expired_run(s, r, limit, out, err);
}

/* A pass reads the whole run. So a run gets another pass only when its age has grown by an eighth since the last one: a
 * few times in its life, however often sweep is called. */
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
        once__runs_arrange(s);
        out->more = true; /* one run per call; the next call finds the rest, or nothing */
        return ONCE_OK;
    }
    return ONCE_OK;
}
