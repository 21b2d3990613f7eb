/* Finished entries against a plain array: random records, tombstones, expiry, sweeps, crashes of the transaction, a
 * second connection, with limits so small that everything is flushed and merged all the time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "store/sqlite/schema.h"
#include "store/sqlite/sqlite.h"
#include "testenv.h"

enum { IDS = 3000 };

typedef struct known {
    bool there;
    once_state state; /* ABSENT: forgotten */
    int64_t keep_ms;
    uint64_t mark; /* in the token */
} known;

/* One connection with its own view of the records. */
typedef struct view {
    once_sqlite_db *db;
    once_settled *settled;
    once_backend *store; /* only to make the file and to own the connection */
} view;

typedef struct world {
    char folder[100];
    view views[2];
    known model[IDS], before[IDS];
    uint64_t random;
    uint64_t marks;
    int64_t now_ms;
} world;

static const once_settled_limits tiny = {
    .recent_records = 40, .recent_bytes = 20000, .level0_bits = 6, .filter_bytes = 40000};

static once_hash id_of(size_t i)
{
    uint64_t state = i * 977 + 5;
    const uint64_t a = test_random(&state);
    return (once_hash){a, test_random(&state)};
}

static void view_open(world *w, view *v)
{
    char path[200];
    once_error err = {0};
    snprintf(path, sizeof path, "%s/once.db", w->folder);
    const once_store_options options = {.size = sizeof options, .create = true};
    assert_int_equal(once__sqlite_store_open(path, &options, &tiny, &v->store, &err), ONCE_OK);
    v->db = (once_sqlite_db *)v->store->ops->db(v->store);
    v->settled = ((once_sqlite *)v->store)->settled;
    assert_int_equal(once__sqlite_exec(v->db, "PRAGMA synchronous = OFF", &err),
                     ONCE_OK); /* power cuts are tested elsewhere */
}

static void begin(view *v)
{
    once_error err = {0};
    sqlite3_stmt *stmt;
    once_settled_head head;
    assert_int_equal(once__sqlite_exec(v->db, "BEGIN IMMEDIATE", &err), ONCE_OK);
    assert_int_equal(once__sqlite_prepare(v->db,
                                          "SELECT generation, flushed, last_recent, last_run, runs_sum FROM once_store",
                                          &stmt, &err),
                     ONCE_OK);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    head =
        (once_settled_head){sqlite3_column_int64(stmt, 0), sqlite3_column_int64(stmt, 1), sqlite3_column_int64(stmt, 2),
                            sqlite3_column_int64(stmt, 3), .runs_sum = (uint64_t)sqlite3_column_int64(stmt, 4)};
    sqlite3_finalize(stmt);
    if (once__settled_refresh(v->settled, &head, &err) != ONCE_OK) fail_msg("%s", err.text);
}

static void end(world *w, view *v, bool commit)
{
    once_error err = {0};
    if (commit) {
        char sql[300];
        const once_settled_head *head = once__settled_head(v->settled);
        snprintf(sql, sizeof sql,
                 "UPDATE once_store SET generation = %lld, flushed = %lld, last_recent = %lld, last_run = %lld, "
                 "runs_sum = %lld",
                 (long long)head->generation, (long long)head->flushed, (long long)head->last_recent,
                 (long long)head->last_run, (long long)head->runs_sum);
        assert_int_equal(once__sqlite_exec(v->db, sql, &err), ONCE_OK);
        memcpy(w->before, w->model, sizeof w->model);
    } else {
        once__settled_distrust(v->settled);
        memcpy(w->model, w->before, sizeof w->model);
    }
    assert_int_equal(once__sqlite_exec(v->db, commit ? "COMMIT" : "ROLLBACK", &err), ONCE_OK);
}

static const char text[] =
    "some result that is long enough to be kept apart from the record, because it has more than 64 bytes";

/* 0 to 16 of them, some without a fingerprint. */
static once_fields fields_of(uint64_t mark)
{
    once_fields fields = {.n = mark % 3 ? (uint16_t)(mark % (ONCE_FIELDS_MAX + 1)) : 0};
    for (unsigned i = 0; i < fields.n; i++) fields.prints[i] = (uint16_t)(i * 4000 + mark % 4000);
    return fields;
}

static void add(world *w, view *v, size_t i)
{
    once_error err = {0};
    known *k = &w->model[i];
    const int64_t old_keep_ms = k->there ? k->keep_ms : 0;
    once_record r = {.id = id_of(i), .keep_ms = old_keep_ms, .expires_ms = old_keep_ms};
    const bool live = k->there && k->state != ONCE_STATE_ABSENT && k->keep_ms > w->now_ms;
    if (live) { /* may only be forgotten */
        *k = (known){.there = true, .state = ONCE_STATE_ABSENT, .keep_ms = old_keep_ms};
    } else {
        const uint64_t mark = ++w->marks;
        r.state = (once_state)(ONCE_STATE_DONE + mark % 4);
        r.token = (once_token){mark, 1};
        r.fingerprint = mark % 3 ? (once_hash){mark, 2} : (once_hash){0};
        r.fields = fields_of(mark);
        r.attempt = (uint32_t)mark;
        r.seen_ms = w->now_ms - (int64_t)(mark % 1000);
        r.changed_ms = w->now_ms;
        r.expires_ms = mark % 50 == 0 ? ONCE_FOREVER : w->now_ms + 1 + (int64_t)(test_random(&w->random) % 3000);
        r.keep_ms = r.expires_ms > old_keep_ms ? r.expires_ms : old_keep_ms;
        r.scope = mark % 300;
        r.place = 2;
        r.run = mark % 7;
        r.point = (once_bytes){"12345678", mark % 9};
        r.result = (once_bytes){text, mark % 11 ? mark % 5 : sizeof text - 1 - mark % 40};
        r.reason = (once_bytes){text, r.state == ONCE_STATE_DONE ? 0 : 10};
        r.history = (once_bytes){text, mark % 4};
        *k = (known){.there = true, .state = r.state, .keep_ms = r.keep_ms, .mark = mark};
    }
    assert_int_equal(once__settled_add(v->settled, &r, &err), ONCE_OK);
}

static int by_id(const void *left, const void *right)
{
    return once_hash_compare(id_of(*(const size_t *)left), id_of(*(const size_t *)right));
}

static void check(world *w, view *v, const size_t *which, size_t n)
{
    once_error err = {0};
    once_arena arena = {0};
    once_hash ids[IDS];
    static once_record found[IDS];
    for (size_t i = 0; i < n; i++) ids[i] = id_of(which[i]);
    if (once__settled_find(v->settled, ids, n, w->now_ms, found, &arena, &err) != ONCE_OK) fail_msg("%s", err.text);
    for (size_t i = 0; i < n; i++) {
        const known *k = &w->model[which[i]];
        const once_record *r = &found[i];
        assert_true(once_hash_equal(r->id, ids[i]));
        if (!k->there || k->keep_ms <= w->now_ms) { /* may be gone, or still be there and count as expired */
            assert_true(r->keep_ms == 0 || r->keep_ms <= w->now_ms);
            continue;
        }
        if (r->keep_ms != k->keep_ms)
            fail_msg("entry %zu: kept until %lld, not %lld", which[i], (long long)r->keep_ms, (long long)k->keep_ms);
        assert_int_equal(r->state, k->state);
        if (r->state == ONCE_STATE_ABSENT) continue;
        assert_int_equal(r->token.a, k->mark);
        assert_int_equal(r->attempt, (uint32_t)k->mark);
        assert_int_equal(r->scope, k->mark % 300);
        assert_int_equal(r->point.len, k->mark % 9);
        assert_int_equal(r->result.len, k->mark % 11 ? k->mark % 5 : sizeof text - 1 - k->mark % 40);
        if (r->result.len) assert_memory_equal(r->result.data, text, r->result.len);
        assert_int_equal(r->reason.len, r->state == ONCE_STATE_DONE ? 0 : 10);
        assert_int_equal(r->history.len, k->mark % 4);
        assert_int_equal(r->fingerprint.a, k->mark % 3 ? k->mark : 0);
        const once_fields fields = fields_of(k->mark);
        assert_memory_equal(&r->fields, &fields, sizeof fields);
        assert_true(r->expires_ms <= r->keep_ms);
    }
    once_arena_release(&arena);
}

static void check_all(world *w, view *v)
{
    size_t which[IDS];
    for (size_t i = 0; i < IDS; i++) which[i] = i;
    qsort(which, IDS, sizeof *which, by_id);
    check(w, v, which, IDS);
}

typedef struct listing {
    world *w;
    size_t n;
    bool seen[IDS];
} listing;

static bool show(void *user, const once_record *record)
{
    listing *l = user;
    for (size_t i = 0; i < IDS; i++) {
        if (l->w->model[i].mark != record->token.a || !once_hash_equal(id_of(i), record->id)) continue;
        assert_false(l->seen[i]);
        l->seen[i] = true;
        l->n++;
        return true;
    }
    assert_true(record->keep_ms <= l->w->now_ms); /* what is not known any more has at least expired */
    return true;
}

static void check_listing(world *w, view *v)
{
    once_error err = {0};
    listing l = {.w = w};
    assert_int_equal(once__settled_each(v->settled, w->now_ms, show, &l, &err), ONCE_OK);
    for (size_t i = 0; i < IDS; i++) {
        const known *k = &w->model[i];
        if (k->there && k->state != ONCE_STATE_ABSENT && k->keep_ms > w->now_ms) assert_true(l.seen[i]);
    }
}

static void world_open(world *w, uint64_t seed)
{
    memset(w, 0, sizeof *w);
    w->random = seed;
    w->now_ms = TEST_EPOCH_MS;
    snprintf(w->folder, sizeof w->folder, "/tmp/once-settled-XXXXXX");
    assert_non_null(mkdtemp(w->folder));
    for (int i = 0; i < 2; i++) view_open(w, &w->views[i]);
}

static void world_close(world *w)
{
    char command[200];
    for (int i = 0; i < 2; i++) once__store_close(w->views[i].store);
    snprintf(command, sizeof command, "rm -rf '%s'", w->folder);
    assert_int_equal(system(command), 0);
}

static void sweep_some(world *w, view *v)
{
    once_error err = {0};
    once_sweep_result result = {0};
    if (once__settled_sweep(v->settled, 1 + test_random(&w->random) % 200, w->now_ms, &result, &err) != ONCE_OK)
        fail_msg("%s", err.text);
}

/* Row 12: whatever is flushed, merged, swept or rolled back, no live record is lost and no forgotten one comes back. */
static void f12_random_work_against_a_map(void **state)
{
    (void)state;
    size_t most_runs = 0, most_levels = 0, most_merging = 0;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        static world w;
        world_open(&w, seed);
        for (int round = 0; round < 1200; round++) {
            view *v = &w.views[test_random(&w.random) % 4 == 0];
            if (round % 400 == 399) { /* and once in a while a process ends */
                once__store_close(v->store);
                view_open(&w, v);
            }
            begin(v);
            const uint64_t dice = test_random(&w.random) % 20;
            size_t touched[200], n = 0;
            once_error err = {0};
            if (dice == 0) {
                sweep_some(&w, v);
            } else {
                const size_t count = dice == 1 ? 150 : 1 + test_random(&w.random) % 15;
                for (size_t i = 0; i < count; i++) add(&w, v, touched[n++] = test_random(&w.random) % IDS);
                if (once__settled_commit(v->settled, w.now_ms, &err) != ONCE_OK) fail_msg("%s", err.text);
            }
            once_settled_shape shape;
            once__settled_shape(v->settled, &shape);
            if (shape.runs > most_runs) most_runs = shape.runs;
            if (shape.levels > most_levels) most_levels = shape.levels;
            if (shape.merging > most_merging) most_merging = shape.merging;
            assert_true(shape.filter_bytes <= tiny.filter_bytes);
            end(&w, v, test_random(&w.random) % 10 != 0);
            w.now_ms += (int64_t)(test_random(&w.random) % 30);
            if (round % 20 == 0) {
                view *other = &w.views[test_random(&w.random) % 2];
                begin(other);
                check_all(&w, other);
                if (round % 200 == 0) check_listing(&w, other);
                end(&w, other, true);
            }
        }
        world_close(&w);
    }
    assert_true(most_runs >= 12);
    assert_true(most_levels >= 3);
    assert_true(most_merging >= 1);
    assert_true(most_runs <= 40); /* merging keeps up */
}

/* Row 23, and the end of everything: what expired is dropped, and the file does not keep it. */
static void f23_expired_is_dropped_in_bounded_steps(void **state)
{
    (void)state;
    static world w;
    world_open(&w, 9);
    view *v = &w.views[0];
    once_error err = {0};
    uint64_t added = 0;
    for (int round = 0; round < 60; round++) {
        begin(v);
        for (int i = 0; i < 20; i++, added++) {
            const once_record r = {.id = id_of(added),
                                   .state = ONCE_STATE_DONE,
                                   .token = {added + 1, 1},
                                   .expires_ms = w.now_ms + 1000,
                                   .keep_ms = w.now_ms + 1000,
                                   .changed_ms = w.now_ms,
                                   .seen_ms = w.now_ms};
            assert_int_equal(once__settled_add(v->settled, &r, &err), ONCE_OK);
        }
        assert_int_equal(once__settled_commit(v->settled, w.now_ms, &err), ONCE_OK);
        end(&w, v, true);
    }
    w.now_ms += 1000;
    uint64_t dropped = 0;
    int steps = 0;
    for (bool more = true; more; steps++) {
        once_sweep_result result = {0};
        begin(v);
        assert_int_equal(once__settled_sweep(v->settled, 100, w.now_ms, &result, &err), ONCE_OK);
        end(&w, v, true);
        dropped += result.dropped;
        more = result.more;
    }
    once_settled_shape shape;
    once__settled_shape(v->settled, &shape);
    assert_true(steps > 5);
    int64_t rows;
    assert_int_equal(once__sqlite_integer(v->db, "SELECT count(*) FROM once_run WHERE state = 0", 0, &rows, &err),
                     ONCE_OK);
    assert_int_equal(rows, 0);
    assert_true(dropped >= added - 400); /* inputs of a merge under way are dropped by the merge */
    assert_int_equal(shape.recent, 0);
    world_close(&w);
}

/* Flushed, merged and swept in the last millisecond before they expire: all are still there. */
static void f23_a_record_is_kept_until_its_last_millisecond(void **state)
{
    (void)state;
    enum { N = 1200, EACH = 20 };
    static world w;
    static once_record found[N];
    once_hash ids[N];
    size_t order[N];
    once_error err = {0};
    once_arena arena = {0};
    once_settled_shape shape;
    world_open(&w, 11);
    view *v = &w.views[0];
    for (size_t i = 0; i < N; i++) {
        if (i % EACH == 0) begin(v);
        const once_record r = {.id = id_of(i),
                               .state = ONCE_STATE_DONE,
                               .token = {i + 1, 1},
                               .expires_ms = w.now_ms + 1,
                               .keep_ms = w.now_ms + 1,
                               .changed_ms = w.now_ms,
                               .seen_ms = w.now_ms};
        assert_int_equal(once__settled_add(v->settled, &r, &err), ONCE_OK);
        if (i % EACH < EACH - 1) continue;
        assert_int_equal(once__settled_commit(v->settled, w.now_ms, &err), ONCE_OK);
        if (i % (5 * EACH) == EACH - 1) sweep_some(&w, v);
        end(&w, v, true);
    }
    once__settled_shape(v->settled, &shape);
    assert_true(shape.levels >= 2);
    for (size_t i = 0; i < N; i++) order[i] = i;
    qsort(order, N, sizeof *order, by_id);
    for (size_t i = 0; i < N; i++) ids[i] = id_of(order[i]);
    begin(v);
    assert_int_equal(once__settled_find(v->settled, ids, N, w.now_ms, found, &arena, &err), ONCE_OK);
    for (size_t i = 0; i < N; i++) assert_true(found[i].keep_ms == w.now_ms + 1 && found[i].token.a == order[i] + 1);
    end(&w, v, true);
    once_arena_release(&arena);
    world_close(&w);
}

static void test_records_survive_writing_and_reading(void **state)
{
    (void)state;
    once_buf records, tails;
    once_buf_init(&records, 1 << 20);
    once_buf_init(&tails, 1 << 20);
    once_record r = {.id = {1, 2},
                     .state = ONCE_STATE_DONE,
                     .token = {3, 4},
                     .fingerprint = {5, 6},
                     .attempt = 1,
                     .seen_ms = TEST_EPOCH_MS - 3,
                     .changed_ms = TEST_EPOCH_MS,
                     .expires_ms = TEST_EPOCH_MS + 604800000,
                     .keep_ms = TEST_EPOCH_MS + 604800000,
                     .scope = 1,
                     .place = 2,
                     .run = 3,
                     .who = 4,
                     .point = ONCE_BYTES("1234567")};
    once_record_ref ref, seen;
    assert_true(once__record_write(&r, &records, &tails, &ref));
    assert_int_equal(records.len, 77);
    /* Cut anywhere, it is never read as something else. */
    for (size_t len = 0; len < records.len; len++)
        assert_false(len && once__record_look((once_bytes){records.data, len}, 0, 0, &seen));
    /* Every flipped bit in its structure is either noticed or changes a value; it never reads beyond the end. */
    for (size_t bit = 0; bit < records.len * 8; bit++) {
        char copy[200];
        once_record read;
        memcpy(copy, records.data, records.len);
        copy[bit / 8] = (char)(copy[bit / 8] ^ 1 << bit % 8);
        const once_bytes damaged = {copy, records.len};
        if (once__record_look(damaged, 0, 0, &seen)) (void)once__record_read(damaged, &seen, (once_bytes){0}, &read);
    }
    once_buf_release(&records);
    once_buf_release(&tails);
}

/* Records that nobody writes, with sizes that are right. */
static void test_records_with_impossible_values_are_damaged(void **state)
{
    (void)state;
    enum { HEAD_AT = 1 + 16, LIVED_AT = HEAD_AT + 1 + 6 + 16 + 6, REST = 7 };
    once_record read;
    once_record_ref seen;
    char bytes[100] = {0};
    const once_bytes records = {bytes, LIVED_AT + 10 + REST};
    bytes[0] = (char)(records.len - 1);
    bytes[HEAD_AT] = ONCE_STATE_DONE - 4;
    bytes[HEAD_AT + 1] = 1;            /* kept until the first millisecond */
    memset(bytes + LIVED_AT, 0xff, 9); /* lived since before the beginning of 64 bits */
    bytes[LIVED_AT] = (char)0xff;
    bytes[LIVED_AT + 9] = 1;
    assert_true(once__record_look(records, 0, 0, &seen));
    assert_false(once__record_read(records, &seen, (once_bytes){0}, &read));
    bytes[LIVED_AT] = (char)0xfe; /* changed - INT64_MAX, which is a number */
    assert_true(once__record_read(records, &seen, (once_bytes){0}, &read));

    bytes[LIVED_AT] = 0;
    bytes[HEAD_AT] = (char)((ONCE_STATE_DONE - 4) | 0x40 | 0x80); /* a text apart that has no bytes */
    memset(bytes + LIVED_AT, 0, sizeof bytes - LIVED_AT);
    const once_bytes apart = {bytes, LIVED_AT + 1 + REST + 1};
    bytes[0] = (char)(apart.len - 1);
    assert_false(once__record_look(apart, 0, 0, &seen));
    seen = (once_record_ref){.len = apart.len};
    assert_false(once__record_read(apart, &seen, (once_bytes){0}, &read));
    bytes[apart.len - 1] = 3;
    assert_true(once__record_look(apart, 0, 0, &seen));
    assert_int_equal(seen.tail_len, 3);

    const char never[24] = {23}; /* a tombstone that is kept until 0, which means that there is none */
    const once_bytes tombstone = {never, sizeof never};
    assert_true(once__record_look(tombstone, 0, 0, &seen));
    assert_false(once__record_read(tombstone, &seen, (once_bytes){0}, &read));
}

/* Writes it and reads it back. */
static size_t size_with(unsigned fields, once_hash fingerprint, once_bytes result)
{
    once_buf records, tails;
    once_record_ref ref, seen;
    once_record read, r = {.id = {1, 2},
                           .state = ONCE_STATE_DONE,
                           .token = {3, 4},
                           .fingerprint = fingerprint,
                           .changed_ms = 5,
                           .expires_ms = 6,
                           .keep_ms = 6,
                           .result = result,
                           .fields = {.n = (uint16_t)fields}};
    for (unsigned i = 0; i < fields; i++) r.fields.prints[i] = (uint16_t)(0xff00 + i);
    once_buf_init(&records, 1 << 20);
    once_buf_init(&tails, 1 << 20);
    assert_true(once__record_write(&r, &records, &tails, &ref));
    assert_true(once__record_look(once_buf_bytes(&records), 0, 0, &seen));
    assert_int_equal(seen.tail_len, tails.len);
    assert_true(once__record_read(once_buf_bytes(&records), &seen, once_buf_bytes(&tails), &read));
    assert_int_equal(read.fields.n, once_hash_is_zero(fingerprint) ? 0 : fields);
    assert_memory_equal(read.fields.prints, r.fields.prints, 2 * (size_t)read.fields.n);
    assert_int_equal(read.result.len, result.len);
    /* One field more than fits, half a one, or two in the wrong order are not read. */
    const size_t len = records.len;
    if (fields == 5) {
        char *at = (char *)records.data;
        at[0] = (char)(at[0] - 1);
        seen.len--;
        assert_false(once__record_read((once_bytes){records.data, len - 1}, &seen, once_buf_bytes(&tails), &read));
        at[0] = (char)(at[0] + 1);
        seen.len++;
        at[len - 3] = (char)0xff;
        assert_false(once__record_read(once_buf_bytes(&records), &seen, once_buf_bytes(&tails), &read));
    }
    once_buf_release(&records);
    once_buf_release(&tails);
    return len;
}

static void fields_take_two_bytes_each(void **state)
{
    (void)state;
    const once_bytes results[] = {ONCE_BYTES(""), ONCE_BYTES("short"), {text, sizeof text - 1}};
    for (size_t i = 0; i < 3; i++) {
        const size_t none = size_with(0, (once_hash){1, 1}, results[i]);
        assert_int_equal(size_with(5, (once_hash){1, 1}, results[i]), none + 10);
        assert_int_equal(size_with(ONCE_FIELDS_MAX, (once_hash){1, 1}, results[i]), none + 32);
        assert_int_equal(size_with(3, (once_hash){0}, results[i]), none - 16);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_take_two_bytes_each),
        cmocka_unit_test(f12_random_work_against_a_map),
        cmocka_unit_test(f23_expired_is_dropped_in_bounded_steps),
        cmocka_unit_test(f23_a_record_is_kept_until_its_last_millisecond),
        cmocka_unit_test(test_records_survive_writing_and_reading),
        cmocka_unit_test(test_records_with_impossible_values_are_damaged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
