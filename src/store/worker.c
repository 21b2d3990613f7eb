#include "store/worker.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"
#include "core/plant.h"

#include "base/banned.h"

#define DROP_AFTER_MS INT64_C(86400000)

static bool is_gone(const once_backend *store, const once_worker *worker)
{
    const once_process process = {worker->machine, worker->pid, worker->started};
    return once_env_is_gone(store->env, &process);
}

void once_worker_init(once_worker *worker, const once_backend *store, once_bytes consumer, uint64_t run,
                      int64_t lease_ms)
{
    const once_scope scope = {.consumer = consumer, .operation = ONCE_BYTES("worker")};
    const once_hash hash = once_key_id(store->secret, &scope, (once_bytes){0});
    const once_process process = once_env_process(store->env);
    *worker = (once_worker){.run = run,
                            .machine = process.machine,
                            .pid = process.pid,
                            .started = process.started,
                            .lease_ms = lease_ms > ONCE_WORKER_LEASE_MS ? lease_ms : ONCE_WORKER_LEASE_MS};
    (void)snprintf(worker->who, sizeof worker->who, "%s", store->who);
    (void)snprintf(worker->name, sizeof worker->name, "worker/%016llx%016llx/%016llx", (unsigned long long)hash.a,
                   (unsigned long long)hash.b, (unsigned long long)run);
}

/* --- records --- */

#define NUMBERS(X) X(tried) X(run) X(lease_ms) X(begun_ms) X(seen_ms) X(machine) X(pid) X(started) X(done) X(rate)
enum {
#define COUNT(field) NUMBER_##field,
    NUMBERS(COUNT) N_NUMBERS
#undef COUNT
};
/* Layout of a record: the NUMBERS, 8 bytes each; the name of the process; a zero; a byte of bits (1 contained). Older
 * programs read the zero and the byte as a part of the name, which ends at the zero for them; so name, zero and byte
 * together must not be longer than the longest name was. */
enum { RECORD_MAX = N_NUMBERS * ONCE_NUMBER_SIZE + ONCE_WHO_MAX, WHO_KEPT = ONCE_WHO_MAX - 2 };
enum { BIT_CONTAINED = 1 };
_Static_assert(NUMBER_tried == 0, "a fact that counts begins with its number");

static size_t record_write(const once_worker *worker, unsigned char out[RECORD_MAX])
{
#define PUT(field) once__number_put(out + NUMBER_##field * ONCE_NUMBER_SIZE, (uint64_t)worker->field);
    NUMBERS(PUT)
#undef PUT
    unsigned char *text = out + N_NUMBERS * ONCE_NUMBER_SIZE;
    assert(worker->lease_ms >= ONCE_WORKER_LEASE_MS && worker->run != 0); /* run 0 has no claims to search for */
    const size_t who = strnlen(worker->who, WHO_KEPT);
    memcpy(text, worker->who, who);
    text[who] = 0;
    text[who + 1] = worker->contained ? BIT_CONTAINED : 0;
    return N_NUMBERS * ONCE_NUMBER_SIZE + who + 2;
}

static bool record_read(once_bytes name, once_bytes value, once_worker *out)
{
    *out = (once_worker){0};
    if (value.len < N_NUMBERS * ONCE_NUMBER_SIZE || value.len > RECORD_MAX || name.len >= sizeof out->name)
        return false;
#define GET(field)                                                                                                     \
    out->field = (__typeof__(out->field))once__number_get(value.data + NUMBER_##field * ONCE_NUMBER_SIZE);
    NUMBERS(GET)
#undef GET
    const once_bytes text = {value.data + N_NUMBERS * ONCE_NUMBER_SIZE, value.len - N_NUMBERS * ONCE_NUMBER_SIZE};
    memcpy(out->who, text.data, text.len);
    const size_t who = strlen(out->who);
    out->contained = text.len >= who + 2 && (text.data[who + 1] & BIT_CONTAINED);
    memcpy(out->name, name.data, name.len);
    out->number = out->tried;
    return out->lease_ms > 0 && out->lease_ms < ONCE_NEVER / 2 && out->seen_ms >= 0 && out->seen_ms < ONCE_NEVER / 2;
}

/* --- all of a consumer --- */

typedef struct workers {
    once_worker *at;
    size_t n, size;
    bool no_memory;
} workers;

static bool collect(void *user, once_bytes name, once_bytes value)
{
    workers *all = user;
    if (all->n == all->size) {
        once_worker *more = realloc(all->at, (all->size + 16) * sizeof *more);
        all->no_memory = !more;
        if (!more) return false;
        all->at = more;
        all->size += 16;
    }
    all->n += record_read(name, value,
                          &all->at[all->n]); /* an unreadable record may be of a newer version: nothing depends on the
                                              * records of others */
    return true;
}

static int by_begin(const void *a, const void *b)
{
    const once_worker *x = a, *y = b;
    return x->begun_ms != y->begun_ms ? (x->begun_ms < y->begun_ms ? -1 : 1) : (x->run > y->run) - (x->run < y->run);
}

static int read_records(once_backend *store, const once_worker *self, workers *out, once_error *err)
{
    assert(strncmp(self->name, "worker/", 7) == 0); /* after once_worker_init */
    char prefix[sizeof self->name];
    *out = (workers){0};
    (void)snprintf(prefix, sizeof prefix, "%.*s", (int)(strrchr(self->name, '/') + 1 - self->name), self->name);
    const int rc = store->ops->facts(store, prefix, collect, out, err);
    return rc == ONCE_OK && out->no_memory ? once_no_memory(err, "for a list of workers") : rc;
}

static bool has_record(const workers *all, const once_worker *worker)
{
    for (size_t i = 0; i < all->n; i++)
        if (strcmp(all->at[i].name, worker->name) == 0) return true;
    return false;
}

/* Finds the workers whose processes are gone. A worker that ends normally drops its record and then its process ends:
 * perhaps after we read the record and before we look for the process. So the records of gone workers are read again,
 * and a worker without a record is left out. */
static int find_gone(once_backend *store, const once_worker *self, workers *all, once_error *err)
{
    workers again;
    size_t n = 0;
    bool any = false;
    for (size_t i = 0; i < all->n; i++) any |= all->at[i].gone = is_gone(store, &all->at[i]);
    if (!any) return ONCE_OK;
    const int rc = read_records(store, self, &again, err);
    for (size_t i = 0; rc == ONCE_OK && i < all->n; i++)
        if (!all->at[i].gone || has_record(&again, &all->at[i])) all->at[n++] = all->at[i];
    if (rc == ONCE_OK) all->n = n;
    free(again.at);
    return rc;
}

static int read_all(once_backend *store, const once_worker *self, workers *out, int64_t *now_ms, once_error *err)
{
    once_store_time time;
    int rc = read_records(store, self, out, err);
    if (rc == ONCE_OK) rc = find_gone(store, self, out, err);
    if (rc == ONCE_OK)
        rc = store->ops->time(store, &time, err); /* after the records: so no worker looks late because reading was
                                                   * slow */
    if (rc == ONCE_OK) *now_ms = time.now_ms;
    if (rc == ONCE_OK && out->n) qsort(out->at, out->n, sizeof *out->at, by_begin);
    return rc;
}

static once_worker_state state_at(const once_worker *worker, int64_t now_ms)
{
    if (worker->gone) return ONCE_WORKER_GONE;
    return worker->seen_ms + worker->lease_ms <= now_ms ? ONCE_WORKER_LATE : ONCE_WORKER_ALIVE;
}

int once_workers_each(once_backend *store, once_bytes consumer, once_worker_visit *visit, void *user, once_error *err)
{
    workers all;
    once_worker self;
    int64_t now_ms;
    once_worker_init(&self, store, consumer, 0, 0);
    const int rc = read_all(store, &self, &all, &now_ms, err);
    for (size_t i = 0; rc == ONCE_OK && i < all.n; i++)
        if (!visit(user, &all.at[i], state_at(&all.at[i], now_ms))) break;
    free(all.at);
    return rc;
}

int once_workers_gone(once_backend *store, const once_worker *self, once_worker_visit *visit, void *user,
                      once_error *err)
{
    workers all;
    int rc = read_records(store, self, &all, err);
    if (rc == ONCE_OK) rc = find_gone(store, self, &all, err);
    for (size_t i = 0; rc == ONCE_OK && i < all.n; i++) {
        const bool gone = all.at[i].gone || ONCE_PLANTED(live_claims_ended);
        if (gone && all.at[i].run != self->run && !visit(user, &all.at[i], ONCE_WORKER_GONE)) break;
    }
    free(all.at);
    return rc;
}

/* --- one --- */

int once_worker_renew(once_worker *worker, once_backend *store, once_error *err)
{
    assert(worker->run != 0 && worker->number <= worker->tried);
    unsigned char record[RECORD_MAX];
    once_store_time time;
    int rc = store->ops->time(store, &time, err);
    if (rc != ONCE_OK) return rc;
    worker->seen_ms = time.now_ms;
    if (!worker->begun_ms) worker->begun_ms = time.now_ms;
    worker->tried++;
    const size_t len = record_write(worker, record);
    return store->ops->fact_count(store, worker->name, worker->number, (once_bytes){(const char *)record, len}, err);
}

/* The name of the fact that holds the time up to which deaths were noticed. */
static void noticed_name(const once_worker *worker, char out[sizeof worker->name])
{
    const char *slash = strrchr(worker->name, '/');
    (void)snprintf(out, sizeof worker->name, "workers%.*s", (int)(slash - worker->name) - (int)strlen("worker"),
                   worker->name + strlen("worker"));
}

static int read_noticed(const once_worker *worker, once_backend *store, int64_t *out, once_error *err)
{
    char name[sizeof worker->name];
    once_arena arena = {0};
    once_bytes value;
    noticed_name(worker, name);
    const int rc = store->ops->fact_get(store, name, &value, &arena, err);
    *out = rc == ONCE_OK && value.len == ONCE_NUMBER_SIZE ? (int64_t)once__number_get(value.data) : 0;
    once_arena_release(&arena);
    return rc;
}

static int notice(const once_worker *worker, once_backend *store, int64_t now_ms, once_error *err)
{
    assert(now_ms > 0);
    char name[sizeof worker->name];
    unsigned char value[ONCE_NUMBER_SIZE];
    noticed_name(worker, name);
    once__number_put(value, (uint64_t)now_ms);
    return store->ops->fact_set(store, name, (once_bytes){(const char *)value, sizeof value}, err);
}

/* The name of the fact that tells which handlers of the worker are held up. */
static void paused_name(const once_worker *worker, char out[sizeof worker->name])
{
    assert(strncmp(worker->name, "worker/", 7) == 0);
    (void)snprintf(out, sizeof worker->name, "paused%s", worker->name + strlen("worker"));
}

static int set_paused(const once_worker *worker, once_backend *store, const once_paused *paused, once_error *err)
{
    char name[sizeof worker->name];
    paused_name(worker, name);
    return store->ops->fact_set(store, name, (once_bytes){paused->text, paused->len}, err);
}

int once_worker_pauses(once_worker *worker, once_backend *store, const once_paused *paused, once_error *err)
{
    worker->says_paused = true;
    return set_paused(worker, store, paused, err);
}

int once_worker_paused(const once_worker *worker, once_backend *store, once_paused *out, once_error *err)
{
    char name[sizeof worker->name];
    once_arena arena = {0};
    once_bytes value = {0};
    *out = (once_paused){0};
    paused_name(worker, name);
    const int rc = store->ops->fact_get(store, name, &value, &arena, err);
    if (rc == ONCE_OK && value.len && value.len < sizeof out->text) {
        out->len = value.len;
        memcpy(out->text, value.data, value.len);
        for (size_t i = 0; i < value.len; i++) out->n += value.data[i] == '\n';
    }
    once_arena_release(&arena);
    return rc;
}

/* Its record, and what else the store has of it. */
static int drop(const once_worker *worker, once_backend *store, once_error *err)
{
    const int rc = store->ops->fact_set(store, worker->name, (once_bytes){0}, err);
    return rc == ONCE_OK ? set_paused(worker, store, &(once_paused){0}, err) : rc;
}

static int begin(once_worker *worker, once_backend *store, const workers *all, int64_t now_ms, bool died,
                 once_error *err)
{
    int rc = store->ops->begin(store, err);
    if (rc != ONCE_OK) return rc;
    rc = once_worker_renew(worker, store, err); /* first: it reads the time, with which a transaction of a server
                                                 * begins */
    for (size_t i = 0; rc == ONCE_OK && i < all->n; i++) {
        const once_worker *other = &all->at[i];
        const once_worker_state state = state_at(other, now_ms);
        const bool long_ago = state == ONCE_WORKER_LATE && now_ms - other->seen_ms > other->lease_ms + DROP_AFTER_MS;
        if (other->run != worker->run && (state == ONCE_WORKER_GONE || long_ago)) rc = drop(other, store, err);
    }
    if (rc == ONCE_OK && died) rc = notice(worker, store, now_ms, err);
    if (rc == ONCE_OK) return store->ops->commit(store, err);
    store->ops->rollback(store);
    return rc;
}

int once_worker_begin(once_worker *worker, once_backend *store, bool *died, once_error *err)
{
    assert(worker->run != 0 && died);
    workers all;
    int64_t now_ms = 0, noticed_ms = 0;
    int rc = read_all(store, worker, &all, &now_ms, err);
    if (rc == ONCE_OK) rc = read_noticed(worker, store, &noticed_ms, err);
    for (size_t i = 0; rc == ONCE_OK && i < all.n; i++) {
        const once_worker *other = &all.at[i];
        const once_worker_state state = state_at(other, now_ms);
        if (other->run == worker->run) continue; /* the first reply was lost, and this call repeats it */
        const bool late = state == ONCE_WORKER_LATE && other->seen_ms + other->lease_ms > noticed_ms;
        *died |= late || state == ONCE_WORKER_GONE;
    }
    if (rc == ONCE_OK) rc = begin(worker, store, &all, now_ms, *died, err);
    if (rc == ONCE_OK) once_worker_kept(worker);
    free(all.at);
    return rc;
}

int once_worker_end(const once_worker *worker, once_backend *store, once_error *err)
{
    assert(worker->run != 0);
    return worker->says_paused ? drop(worker, store, err)
                               : store->ops->fact_set(store, worker->name, (once_bytes){0}, err);
}
