/* Faults 55 and 93: any bytes as what the stores keep. A reader refuses, or gives something that its writer can write;
 * and what was written is read and written again as the same bytes. The first byte says which record it is, the next
 * eight are a number that stands beside it. */
#include <endian.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "store/history.h"
#include "store/lane_record.h"
#include "store/sqlite/record.h"
#include "store/worker.h"

#ifdef ONCE_WITH_POSTGRES
#include "store/postgres/detail.h"
#endif
#ifdef ONCE_WITH_REDIS
#include "store/redis/record.h"
#endif

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) abort();                                                                                     \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WRITTEN_MAX = 1 << 24 };

static bool same(once_bytes a, once_bytes b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

/* --- sqlite --- */

/* All records of a blob, and behind each what it names of the tails: here, the blob once more. */
static void sqlite_records(once_bytes blob, int64_t beside)
{
    once_buf records, tails, again, again_tails;
    once_record_ref ref, written;
    once_record record, twice;
    (void)beside;
    once_buf_init(&records, WRITTEN_MAX);
    once_buf_init(&tails, WRITTEN_MAX);
    once_buf_init(&again, WRITTEN_MAX);
    once_buf_init(&again_tails, WRITTEN_MAX);
    for (size_t at = 0, tail_at = 0; at < blob.len && once__record_look(blob, at, tail_at, &ref);
         at += ref.len, tail_at += ref.tail_len) {
        CHECK(ref.len > 0 && ref.at == at && ref.len <= blob.len - at);
        if (ref.tail_len > blob.len) continue;
        if (!once__record_read(blob, &ref, (once_bytes){blob.data, ref.tail_len}, &record)) continue;
        once_buf_clear(&records);
        once_buf_clear(&tails);
        CHECK(once__record_write(&record, &records, &tails, &written));
        once_record_ref seen;
        CHECK(once__record_look(once_buf_bytes(&records), 0, 0, &seen) && seen.len == written.len &&
              seen.tail_len == written.tail_len);
        CHECK(once__record_read(once_buf_bytes(&records), &seen, once_buf_bytes(&tails), &twice));
        once_buf_clear(&again);
        once_buf_clear(&again_tails);
        CHECK(once__record_write(&twice, &again, &again_tails, &written));
        CHECK(same(once_buf_bytes(&records), once_buf_bytes(&again)) &&
              same(once_buf_bytes(&tails), once_buf_bytes(&again_tails)));
    }
    once_buf_release(&records);
    once_buf_release(&tails);
    once_buf_release(&again);
    once_buf_release(&again_tails);
}

/* --- postgres --- */

#ifdef ONCE_WITH_POSTGRES
static bool pg_write(once_bytes detail, int64_t expires_ms, once_buf *out, int64_t *kept_ms)
{
    once_entry entry = {0};
    once_pg_names_of names;
    once_buf_clear(out);
    if (!once__pg_detail_read(detail, expires_ms, &entry, &names)) return false;
    CHECK(once__pg_detail_write(&entry, names, out, kept_ms));
    return true;
}

static void postgres_detail(once_bytes detail, int64_t expires_ms)
{
    once_buf one, two;
    int64_t kept_ms, again_ms;
    once_buf_init(&one, WRITTEN_MAX);
    once_buf_init(&two, WRITTEN_MAX);
    if (pg_write(detail, expires_ms, &one, &kept_ms))
        CHECK(pg_write(once_buf_bytes(&one), expires_ms, &two, &again_ms) &&
              same(once_buf_bytes(&one), once_buf_bytes(&two)) && kept_ms == again_ms);
    once_buf_release(&one);
    once_buf_release(&two);
}
#else
static void postgres_detail(once_bytes detail, int64_t expires_ms) { (void)detail, (void)expires_ms; }
#endif

/* --- redis --- */

#ifdef ONCE_WITH_REDIS
typedef bool rewrite(once_bytes value, int64_t beside, once_buf *out); /* reads, and writes what it read */

static bool redis_entry(once_bytes value, int64_t beside, once_buf *out)
{
    once_entry entry;
    once_redis_finished names = {0};
    if (!once__redis_read_entry(value, (once_hash){1, (uint64_t)beside}, &entry, &names)) return false;
    if (once_state_finished(entry.state)) once__redis_write_finished(out, &entry, names);
    else once__redis_write_open(out, &entry, (uint64_t)beside);
    return true;
}

static bool redis_lane(once_bytes value, int64_t beside, once_buf *out)
{
    once_redis_lane_record lane;
    once_lane view;
    if (!once__redis_read_lane(value, &lane)) return false;
    (void)once__lane_read(lane.has_version ? lane.version : ONCE_LANE_NO_VERSION, lane.expires_ms, lane.kept, beside,
                          &view);
    once__redis_write_lane(out, &lane);
    return true;
}

static bool redis_letter(once_bytes value, int64_t beside, once_buf *out)
{
    once_letter letter;
    once_hash unique;
    if (!once__redis_read_letter(value, (uint64_t)beside, &letter, &unique)) return false;
    once__redis_write_letter(out, &letter, unique);
    return true;
}

static bool redis_audit(once_bytes value, int64_t beside, once_buf *out)
{
    once_audit audit;
    (void)beside;
    if (!once__redis_read_audit(value, &audit)) return false;
    once__redis_write_audit(out, &audit);
    return true;
}

static bool redis_scope(once_bytes value, int64_t beside, once_buf *out)
{
    once_scope scope;
    (void)beside;
    if (!once__redis_read_scope(value, &scope)) return false;
    once__redis_write_scope(out, &scope);
    return true;
}

static bool redis_origin(once_bytes value, int64_t beside, once_buf *out)
{
    once_bytes place, who;
    uint64_t run;
    (void)beside;
    if (!once__redis_read_origin(value, &place, &run, &who)) return false;
    once__redis_write_origin(out, place, run, who);
    return true;
}

static void redis_record(once_bytes value, int64_t beside, rewrite *how)
{
    once_buf one, two;
    once_redis_open_head head;
    once_buf_init(&one, WRITTEN_MAX);
    once_buf_init(&two, WRITTEN_MAX);
    if (once__redis_read_head(value, &head)) CHECK(!once__redis_is_finished(value));
    if (how(value, beside, &one))
        CHECK(!one.failed && how(once_buf_bytes(&one), beside, &two) &&
              same(once_buf_bytes(&one), once_buf_bytes(&two)));
    once_buf_release(&one);
    once_buf_release(&two);
}

static void redis_records(unsigned kind, once_bytes value, int64_t beside)
{
    static rewrite *const all[] = {redis_entry, redis_lane, redis_letter, redis_audit, redis_scope, redis_origin};
    redis_record(value, beside, all[kind % (sizeof all / sizeof *all)]);
}
#else
static void redis_records(unsigned kind, once_bytes value, int64_t beside) { (void)kind, (void)value, (void)beside; }
#endif

/* --- lanes --- */

static void lane_record(once_bytes record, int64_t beside)
{
    once_lane lane, again;
    unsigned char one[ONCE_LANE_RECORD], two[ONCE_LANE_RECORD];
    const int64_t now_ms = beside / 2;
    if (!once__lane_read(beside, now_ms < INT64_MAX ? now_ms + 1 : now_ms, record, now_ms, &lane)) return;
    const once_bytes written = once__lane_write(&lane, one);
    CHECK(written.len <= sizeof one &&
          once__lane_read(once__lane_version(&lane), lane.expires_ms, written, now_ms, &again));
    CHECK(same(written, once__lane_write(&again, two)));
}

/* --- workers --- */

static once_bytes worker_fact;

static int one_fact(once_backend *store, const char *prefix, once_fact_visit *visit, void *user, once_error *err)
{
    (void)store, (void)prefix, (void)err;
    (void)visit(user, ONCE_BYTES("worker/1/2"), worker_fact);
    return ONCE_OK;
}

static int64_t worker_now;

static int what_time(once_backend *store, once_store_time *out, once_error *err)
{
    (void)store, (void)err;
    *out = (once_store_time){.now_ms = worker_now};
    return ONCE_OK;
}

static bool see_worker(void *user, const once_worker *worker, once_worker_state state)
{
    CHECK(memchr(worker->who, 0, sizeof worker->who) && memchr(worker->name, 0, sizeof worker->name));
    CHECK(worker->lease_ms > 0 && state <= ONCE_WORKER_GONE);
    ++*(int *)user;
    return true;
}

static void worker(once_bytes value, int64_t beside)
{
    static const once_store_ops ops = {.facts = one_fact, .time = what_time};
    once_backend store = {.ops = &ops, .env = once_env_real()};
    once_error err = {0};
    int seen = 0;
    worker_fact = value;
    worker_now = beside;
    CHECK(once_workers_each(&store, ONCE_BYTES("c"), see_worker, &seen, &err) == ONCE_OK && seen <= 1);
}

/* --- histories --- */

static void history(once_bytes text, int64_t beside)
{
    once_attempt attempts[ONCE_HISTORY_ATTEMPTS];
    char out[ONCE_HISTORY_MAX];
    const size_t n = once__history_read(text, attempts);
    CHECK(n <= ONCE_HISTORY_ATTEMPTS);
    for (size_t i = 0; i < n; i++) CHECK(attempts[i].reason.len <= text.len && attempts[i].who.len <= text.len);
    const once_attempt next = {
        .attempt = (uint32_t)beside, .ended_ms = beside, .outcome = "retry", .who = ONCE_BYTES("w"), .reason = text};
    const once_bytes longer = once__history_add(text, &next, out);
    CHECK(longer.len <= ONCE_HISTORY_MAX && once__history_read(longer, attempts) <= ONCE_HISTORY_ATTEMPTS);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int64_t beside;
    if (size < 9) return 0;
    memcpy(&beside, data + 1, 8);
    beside = (int64_t)(le64toh((uint64_t)beside) & INT64_MAX);
    char *copy = malloc(size - 9 + 1); /* of its own, so that reading beyond it is seen */
    CHECK(copy);
    memcpy(copy, data + 9, size - 9);
    const once_bytes value = {copy, size - 9};
    switch (data[0] % 11) {
    case 0: sqlite_records(value, beside); break;
    case 1: postgres_detail(value, beside); break;
    case 2: lane_record(value, beside); break;
    case 3: worker(value, beside); break;
    case 4: history(value, beside); break;
    default: redis_records(data[0] % 11u - 5, value, beside);
    }
    free(copy);
    return 0;
}
