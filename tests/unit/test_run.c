/* A run as an object, through the public headers: started, looked at, stopped and joined from any thread, and operators
 * on the store that it has open; runs under ThreadSanitizer too (pthread). */
#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "once/once.h"

enum { MESSAGES = 3000, KEYS = 2500, DEAD = KEYS / 50 };

typedef struct fixture {
    char dir[64];
    once_pipeline *pipeline, *other;
} fixture;

/* Where callbacks are held until the test lets them go. */
typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned inside;
    bool open;
} gate;

#define GATE                                                                                                           \
    {                                                                                                                  \
        PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, false                                                  \
    }

static once_outcome pass(void *user, const once_call *call, once_reply *reply)
{
    gate *g = user;
    (void)call, (void)reply;
    pthread_mutex_lock(&g->lock);
    g->inside++;
    pthread_cond_broadcast(&g->changed);
    while (!g->open) pthread_cond_wait(&g->changed, &g->lock);
    g->inside--;
    pthread_mutex_unlock(&g->lock);
    return ONCE_DONE;
}

static void wait_for_callbacks(gate *g, unsigned n)
{
    pthread_mutex_lock(&g->lock);
    while (g->inside < n) pthread_cond_wait(&g->changed, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

static void let_go(gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->open = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    memcpy(f->dir, "/tmp/once-run.XXXXXX", 21);
    assert_non_null(mkdtemp(f->dir));
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    char command[100];
    once_pipeline_free(f->pipeline);
    once_pipeline_free(f->other);
    snprintf(command, sizeof command, "rm -r %s", f->dir);
    const int removed = system(command);
    free(f);
    return removed;
}

static void write_messages(const fixture *f, int n)
{
    char path[100];
    snprintf(path, sizeof path, "%s/in.ndjson", f->dir);
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    for (int i = 0; i < n; i++) fprintf(out, "{\"id\": %d, \"n\": %d}\n", i % KEYS, i % KEYS % 50 == 49 ? -1 : 1);
    fclose(out);
}

/* A pipeline of the folder; `store` NULL: a file of that name. */
static once_pipeline *load(const fixture *f, const char *name, const char *store, bool follow, const char *more)
{
    char path[100];
    once_pipeline *pipeline = NULL;
    once_error err;
    snprintf(path, sizeof path, "%s/%s.yaml", f->dir, name);
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    fprintf(out, "consumer: %s\nkey: \"${/id}\"\nbatch: {max: 100}\n", name);
    if (store) fprintf(out, "store: %s\n", store);
    else fprintf(out, "store: sqlite:%s/%s.db\n", f->dir, name);
    fprintf(out, "source: {file: {path: %s/in.ndjson, follow: %s}}\n%s", f->dir, follow ? "true" : "false", more);
    fclose(out);
    if (once_pipeline_load(path, NULL, NULL, &pipeline, &err) != ONCE_OK) fail_msg("%s", err.text);
    return pipeline;
}

static const char sql[] = "init: CREATE TABLE IF NOT EXISTS seen(id INTEGER, n INTEGER CHECK (n >= 0))\n"
                          "handler: {sql: \"INSERT INTO seen(id, n) VALUES (:id, :n)\"}\n";
#define CALLBACK "handler: {callback: pass}\n"

static once_snapshot look(once_pipeline *pipeline)
{
    once_snapshot now = {.size = sizeof now};
    once_error err;
    if (once_pipeline_snapshot(pipeline, &now, &err) != ONCE_OK) fail_msg("%s", err.text);
    const once_counts *c = &now.counts;
    assert_int_equal(c->received + c->resumed, c->done + c->already + c->rejected + c->stale + c->skipped +
                                                   c->duplicates + c->waiting + c->unknown + c->dead);
    return now;
}

static void start(once_pipeline *pipeline)
{
    once_error err;
    if (once_pipeline_start(pipeline, NULL, &err) != ONCE_OK) fail_msg("%s", err.text);
}

static once_summary join(once_pipeline *pipeline)
{
    once_summary summary;
    once_error err;
    if (once_pipeline_join(pipeline, &summary, &err) != ONCE_OK) fail_msg("%s", err.text);
    return summary;
}

static void wait_for_state(once_pipeline *pipeline, once_run_state state)
{
    while (look(pipeline).state != state) usleep(1000);
}

/* --- the object --- */

static void a_run_is_started_looked_at_and_joined(void **state)
{
    fixture *f = *state;
    write_messages(f, MESSAGES);
    f->pipeline = load(f, "p", NULL, false, sql);
    assert_int_equal(look(f->pipeline).state, ONCE_RUN_NONE);
    start(f->pipeline);
    once_snapshot now = look(f->pipeline), last = now;
    while (now.state != ONCE_RUN_ENDED) {
        assert_true(now.state == ONCE_RUN_WORKING);
        assert_true(now.counts.received >= last.counts.received && now.counts.acked >= last.counts.acked);
        assert_true(now.seconds >= last.seconds && now.counts.acked <= now.counts.received);
        assert_int_equal(now.status, ONCE_OK);
        last = now;
        usleep(500);
        now = look(f->pipeline);
    }
    const once_summary summary = join(f->pipeline); /* it had ended by itself */
    assert_memory_equal(&summary.counts, &now.counts, sizeof now.counts);
    assert_int_equal(summary.counts.received, MESSAGES);
    assert_int_equal(summary.counts.dead, DEAD);
    assert_int_equal(summary.store_dead, DEAD);
    assert_false(summary.stopped);
    now = look(f->pipeline); /* after that, too */
    assert_int_equal(now.state, ONCE_RUN_ENDED);
    assert_int_equal(now.counts.received, MESSAGES);
    assert_int_equal(now.left, 0);
    assert_int_equal(now.open, 0);
}

static void a_snapshot_has_the_times_of_stages(void **state)
{
    fixture *f = *state;
    write_messages(f, MESSAGES);
    f->pipeline = load(f, "p", NULL, false, sql);
    start(f->pipeline);
    (void)join(f->pipeline);
    const once_snapshot now = look(f->pipeline);
    const once_timing *all[] = {&now.timings.claim, &now.timings.start, &now.timings.settle, &now.timings.ack};
    for (size_t i = 0; i < 4; i++) {
        uint64_t sum = 0;
        for (size_t b = 0; b < ONCE_TIMING_BUCKETS; b++) sum += all[i]->bucket[b];
        assert_int_equal(sum, all[i]->count);
        assert_true(all[i]->max_ms <= all[i]->sum_ms);
        assert_true((double)all[i]->max_ms <= now.seconds * 1000 + 1);
    }
    assert_int_equal(now.timings.claim.count, now.counts.received);
    assert_int_equal(now.timings.start.count, now.counts.done + now.counts.dead); /* duplicates are not started */
    assert_int_equal(now.timings.settle.count, now.timings.start.count);
    assert_int_equal(now.timings.ack.count, now.counts.acked);
}

static void a_snapshot_counts_what_is_not_over(void **state)
{
    fixture *f = *state;
    gate g = GATE;
    once_error err;
    write_messages(f, 40);
    f->pipeline = load(f, "p", "memory", false, CALLBACK);
    assert_int_equal(once_pipeline_callback(f->pipeline, "pass", pass, &g, &err), ONCE_OK);
    start(f->pipeline);
    wait_for_callbacks(&g, 4);
    assert_int_equal(look(f->pipeline).counts.received, 0);
    assert_int_equal(look(f->pipeline).open, 40);
    let_go(&g);
    assert_int_equal(join(f->pipeline).counts.done, 40);
    assert_int_equal(look(f->pipeline).open, 0);
    assert_int_equal(look(f->pipeline).timings.settle.count, 40);
}

static void *stop_it(void *arg)
{
    once_pipeline_stop(arg);
    once_pipeline_stop(arg); /* no more than once */
    return NULL;
}

static void *join_it(void *arg)
{
    static atomic_int statuses[2]; /* joined, refused */
    once_error err;
    if (!arg) return (void *)statuses;
    const int rc = once_pipeline_join(arg, NULL, &err);
    assert_true(rc == ONCE_OK || rc == ONCE_E_USAGE);
    atomic_fetch_add(&statuses[rc != ONCE_OK], 1);
    return NULL;
}

/* One thread starts, one stops, two join, one looks. */
static void every_thread_may_stop_and_one_may_join(void **state)
{
    fixture *f = *state;
    pthread_t stopper, joiners[2];
    atomic_int *statuses = join_it(NULL);
    write_messages(f, MESSAGES);
    f->pipeline = load(f, "p", NULL, true, sql);
    start(f->pipeline);
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&joiners[i], NULL, join_it, f->pipeline), 0);
    while (look(f->pipeline).counts.received < MESSAGES) usleep(1000);
    assert_int_equal(look(f->pipeline).state, ONCE_RUN_WORKING); /* a source that is followed has no end */
    assert_int_equal(pthread_create(&stopper, NULL, stop_it, f->pipeline), 0);
    pthread_join(stopper, NULL);
    for (int i = 0; i < 2; i++) pthread_join(joiners[i], NULL);
    assert_int_equal(atomic_load(&statuses[0]), 1);
    assert_int_equal(atomic_load(&statuses[1]), 1);
    const once_snapshot now = look(f->pipeline);
    assert_int_equal(now.state, ONCE_RUN_ENDED);
    assert_int_equal(now.counts.acked, MESSAGES);
}

static void a_stop_is_seen_as_draining_until_effects_are_back(void **state)
{
    fixture *f = *state;
    gate g = GATE;
    once_error err;
    write_messages(f, 10);
    f->pipeline = load(f, "p", NULL, false, CALLBACK);
    assert_int_equal(once_pipeline_callback(f->pipeline, "pass", pass, &g, &err), ONCE_OK);
    start(f->pipeline);
    wait_for_callbacks(&g, 1);
    once_pipeline_stop(f->pipeline);
    wait_for_state(f->pipeline, ONCE_RUN_DRAINING);
    assert_in_range(look(f->pipeline).open, 1, 10);
    let_go(&g);
    const once_summary summary = join(f->pipeline);
    assert_true(summary.stopped);
    assert_int_equal(summary.store_unknown, 0);
}

static void one_that_was_stopped_before_ends_at_once(void **state)
{
    fixture *f = *state;
    write_messages(f, MESSAGES);
    f->pipeline = load(f, "p", NULL, true, sql);
    once_pipeline_stop(f->pipeline);
    start(f->pipeline);
    const once_summary summary = join(f->pipeline);
    assert_true(summary.stopped);
    assert_int_equal(summary.counts.acked, summary.counts.received);
}

/* Each run hears of the stop, not only the first one. */
static void one_that_was_stopped_and_joined_ends_at_once_when_it_is_started_again(void **state)
{
    fixture *f = *state;
    write_messages(f, MESSAGES);
    f->pipeline = load(f, "p", NULL, true, sql);
    start(f->pipeline);
    once_pipeline_stop(f->pipeline);
    for (int i = 0; i < 3; i++) {
        assert_true(join(f->pipeline).stopped);
        start(f->pipeline);
    }
    assert_true(join(f->pipeline).stopped);
}

static void one_that_cannot_begin_has_nothing_of_the_run_before(void **state)
{
    fixture *f = *state;
    char path[100], away[100];
    once_error err;
    const once_counts none = {0};
    const once_timings no_time = {0};
    snprintf(path, sizeof path, "%s/in.ndjson", f->dir);
    snprintf(away, sizeof away, "%s/away", f->dir);
    write_messages(f, 20);
    f->pipeline = load(f, "p", NULL, false, sql);
    start(f->pipeline);
    assert_int_equal(join(f->pipeline).counts.done, 20);
    assert_int_equal(rename(path, away), 0);
    const int rc = once_pipeline_start(f->pipeline, NULL, &err);
    assert_true(rc != ONCE_OK && rc != ONCE_E_USAGE);
    const once_snapshot now = look(f->pipeline);
    assert_int_equal(now.state, ONCE_RUN_ENDED);
    assert_int_equal(now.status, rc);
    assert_int_equal(now.left, -1);
    assert_true(now.seconds == 0);
    assert_memory_equal(&now.counts, &none, sizeof none);
    assert_memory_equal(&now.timings, &no_time, sizeof no_time);
    assert_int_equal(once_pipeline_join(f->pipeline, NULL, &err), ONCE_E_USAGE);
    assert_int_equal(rename(away, path), 0);
    start(f->pipeline);
    assert_int_equal(join(f->pipeline).counts.duplicates, 20);
    assert_int_equal(look(f->pipeline).status, ONCE_OK);
}

/* Looks until it is over, and then at once has no part in it: whoever starts it was told. */
static void *join_what_could_not_begin(void *arg)
{
    once_error err;
    while (look(arg).state != ONCE_RUN_ENDED) {
    }
    assert_int_equal(once_pipeline_join(arg, NULL, &err), ONCE_E_USAGE);
    return NULL;
}

static void one_that_could_not_begin_is_never_joined(void **state)
{
    fixture *f = *state;
    for (int i = 0; i < 50; i++) {
        once_error err;
        pthread_t joiner;
        once_pipeline_free(f->pipeline);
        f->pipeline = load(f, "p", "memory", false, CALLBACK); /* which is missing */
        assert_int_equal(pthread_create(&joiner, NULL, join_what_could_not_begin, f->pipeline), 0);
        usleep(500);
        assert_int_equal(once_pipeline_start(f->pipeline, NULL, &err), ONCE_E_CONFIG);
        pthread_join(joiner, NULL);
    }
}

typedef struct joining {
    once_pipeline *pipeline;
    once_summary summary;
} joining;

static void *join_for(void *arg)
{
    joining *j = arg;
    j->summary = join(j->pipeline);
    return NULL;
}

/* The messages of one run are done, and those of the next one dead. */
static once_outcome alternate(void *user, const once_call *call, once_reply *reply)
{
    (void)call;
    if (atomic_load((atomic_int *)user) % 2 == 0) return ONCE_DONE;
    once_reply_reason(reply, "no");
    return ONCE_DEAD;
}

/* Counted in the file itself. */
static uint64_t count_rows(const fixture *f, const char *name, const char *query)
{
    char path[100];
    sqlite3 *db;
    sqlite3_stmt *stmt;
    snprintf(path, sizeof path, "%s/%s.db", f->dir, name);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, query, -1, &stmt, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    const sqlite3_int64 n = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    sqlite3_close(db);
    return (uint64_t)n;
}

static once_outcome charge(void *user, const once_call *call, once_reply *reply)
{
    (void)user;
    (void)call;
    return once_reply_result(reply, ONCE_BYTES("{\"charge\": 7}")) == ONCE_OK ? ONCE_DONE : ONCE_UNKNOWN;
}

static void what_follows_a_callback_commits_with_its_outcome(void **state)
{
    fixture *f = *state;
    once_error err;
    write_messages(f, 20);
    f->pipeline = load(f, "p", NULL, false,
                       "init: CREATE TABLE IF NOT EXISTS charged(id INTEGER, charge INTEGER)\n"
                       "handler:\n"
                       "  callback: charge\n"
                       "  then: {sql: [\"INSERT INTO charged VALUES (:id, :{result:/charge})\"]}\n");
    assert_int_equal(once_pipeline_callback(f->pipeline, "charge", charge, NULL, &err), ONCE_OK);
    start(f->pipeline);
    const once_summary summary = join(f->pipeline);
    assert_int_equal(count_rows(f, "p", "SELECT count(*) FROM charged WHERE charge = 7"), summary.counts.done);
    assert_int_equal(summary.counts.done + summary.counts.duplicates, 20);
}

/* Started again as soon as it has ended, while another thread joins it: that one gets its own run, not the next. */
static void it_is_not_started_while_it_is_being_joined(void **state)
{
    enum { ROUNDS = 100 };
    static joining joined[ROUNDS];
    pthread_t joiners[ROUNDS];
    fixture *f = *state;
    atomic_int round = 0;
    once_error err;
    write_messages(f, 3);
    f->pipeline = load(f, "p", "memory", false, "handler: {callback: alternate}\n");
    assert_int_equal(once_pipeline_callback(f->pipeline, "alternate", alternate, &round, &err), ONCE_OK);
    for (int i = 0; i < ROUNDS; i++) {
        int rc;
        atomic_store(&round, i);
        while ((rc = once_pipeline_start(f->pipeline, NULL, &err)) == ONCE_E_USAGE) {
        }
        assert_int_equal(rc, ONCE_OK);
        joined[i] = (joining){.pipeline = f->pipeline};
        assert_int_equal(pthread_create(&joiners[i], NULL, join_for, &joined[i]), 0);
        usleep(200); /* so it likely waits already */
        while (look(f->pipeline).state != ONCE_RUN_ENDED) {
        }
    }
    for (int i = 0; i < ROUNDS; i++) {
        pthread_join(joiners[i], NULL);
        assert_int_equal(joined[i].summary.counts.done, i % 2 ? 0 : 3);
        assert_int_equal(joined[i].summary.counts.dead, i % 2 ? 3 : 0);
    }
}

#ifdef ONCE_WITH_POSTGRES
static void *start_it(void *arg)
{
    start(arg);
    return NULL;
}

/* Nobody listens there: start waits, and is told to stop by another thread. A third one had begun to join it. */
static void a_stop_ends_a_start_that_waits_for_a_server(void **state)
{
    fixture *f = *state;
    pthread_t starter;
    once_error err;
    write_messages(f, 1);
    f->pipeline =
        load(f, "p", "\"postgres://x@127.0.0.1:1/x\"", false, "handler: {sql: \"SELECT 1\"}\npatience: 10m\n");
    assert_int_equal(pthread_create(&starter, NULL, start_it, f->pipeline), 0);
    wait_for_state(f->pipeline, ONCE_RUN_OPENING);
    assert_int_equal(once_pipeline_start(f->pipeline, NULL, &err), ONCE_E_USAGE);
    assert_true(once_pipeline_status(f->pipeline, false, &(once_pipeline_state){0}, &err) !=
                ONCE_OK); /* and does not wait */
    once_pipeline_stop(f->pipeline);
    const once_summary summary = join(f->pipeline);
    assert_true(summary.stopped);
    assert_int_equal(summary.counts.received, 0);
    pthread_join(starter, NULL);
}
#endif

static void what_makes_no_sense_is_refused(void **state)
{
    fixture *f = *state;
    once_error err;
    once_summary summary;
    once_snapshot now = {0};
    gate g = GATE;
    write_messages(f, 3);
    f->pipeline = load(f, "p", NULL, false, CALLBACK);
    assert_int_equal(once_pipeline_join(f->pipeline, NULL, &err), ONCE_E_USAGE);
    assert_int_equal(once_pipeline_snapshot(f->pipeline, &now, &err), ONCE_E_USAGE); /* no size */
    now.size = sizeof now + 8;
    assert_int_equal(once_pipeline_snapshot(f->pipeline, &now, &err), ONCE_E_USAGE);
    assert_int_equal(once_pipeline_start(f->pipeline, NULL, &err), ONCE_E_CONFIG); /* its callback is missing */
    assert_int_equal(look(f->pipeline).state, ONCE_RUN_ENDED);
    assert_int_equal(look(f->pipeline).status, ONCE_E_CONFIG);
    assert_int_equal(once_pipeline_join(f->pipeline, NULL, &err), ONCE_E_USAGE);
    assert_int_equal(once_pipeline_callback(f->pipeline, "pass", pass, &g, &err), ONCE_OK);
    const once_run_options asks = {.size = sizeof asks, .waiting = (once_waiting *)abort};
    assert_int_equal(once_pipeline_start(f->pipeline, &asks, &err), ONCE_E_USAGE);
    start(f->pipeline);
    assert_int_equal(once_pipeline_start(f->pipeline, NULL, &err), ONCE_E_USAGE);
    assert_int_equal(once_pipeline_run(f->pipeline, NULL, &summary, &err), ONCE_E_USAGE);
    let_go(&g);
    wait_for_state(f->pipeline, ONCE_RUN_ENDED);
    assert_int_equal(once_pipeline_start(f->pipeline, NULL, &err), ONCE_E_USAGE); /* not joined */
    assert_int_equal(join(f->pipeline).counts.done, 3);
    assert_int_equal(once_pipeline_join(f->pipeline, &summary, &err), ONCE_E_USAGE);
    assert_int_equal(summary.counts.done, 0);
    start(f->pipeline); /* once more */
    assert_int_equal(join(f->pipeline).counts.duplicates, 3);
}

/* Of a program that was built with an older header: what it does not know of is not written. */
static void a_snapshot_is_as_large_as_its_caller_says(void **state)
{
    fixture *f = *state;
    once_snapshot now;
    once_error err;
    f->pipeline = load(f, "p", NULL, false, sql);
    memset(&now, 0x55, sizeof now);
    now.size = offsetof(once_snapshot, seconds);
    assert_int_equal(once_pipeline_snapshot(f->pipeline, &now, &err), ONCE_OK);
    assert_int_equal(now.size, offsetof(once_snapshot, seconds));
    assert_int_equal(now.state, ONCE_RUN_NONE);
    const unsigned char *rest = (const unsigned char *)&now.seconds;
    for (size_t i = 0; i < sizeof now - now.size; i++) assert_int_equal(rest[i], 0x55);
}

static void one_that_is_freed_is_stopped_and_joined(void **state)
{
    fixture *f = *state;
    write_messages(f, MESSAGES);
    once_pipeline *pipeline = load(f, "p", NULL, true, sql);
    start(pipeline);
    while (look(pipeline).counts.received == 0) usleep(1000);
    once_pipeline_free(pipeline);
    f->pipeline = load(f, "p", NULL, false, sql);
    start(f->pipeline);
    assert_int_equal(join(f->pipeline).counts.received, MESSAGES);
    once_error err;
    once_pipeline_state status;
    assert_int_equal(once_pipeline_status(f->pipeline, true, &status, &err), ONCE_OK);
    assert_int_equal(status.done, KEYS - DEAD);
}

static void two_pipelines_run_beside_each_other(void **state)
{
    fixture *f = *state;
    write_messages(f, MESSAGES);
    f->pipeline = load(f, "one", NULL, true, sql);
    f->other = load(f, "two", NULL, false, sql);
    start(f->pipeline);
    start(f->other);
    assert_int_equal(join(f->other).counts.received, MESSAGES);
    while (look(f->pipeline).counts.received < MESSAGES) usleep(1000);
    assert_int_equal(look(f->pipeline).state, ONCE_RUN_WORKING); /* the end of the other one is not its own */
    once_pipeline_stop(f->pipeline);
    assert_int_equal(join(f->pipeline).counts.dead, DEAD);
}

static void no_finding(void *user, const char *topic, const char *text, bool warning)
{
    (void)user, (void)topic, (void)text, (void)warning;
}

/* The first status that is not ONCE_E_USAGE, of functions that use the store; ONCE_E_USAGE: they all say so. */
static int use_store(once_pipeline *pipeline)
{
    once_error err;
    once_pipeline_state status;
    bool there;
    uint64_t n;
    int rc = once_pipeline_status(pipeline, true, &status, &err);
    if (rc == ONCE_E_USAGE) rc = once_pipeline_sweep(pipeline, NULL, NULL, &n, &err);
    if (rc == ONCE_E_USAGE) rc = once_pipeline_check(pipeline, no_finding, NULL, &err);
    if (rc == ONCE_E_USAGE) rc = once_pipeline_verify(pipeline, no_finding, NULL, &err);
    if (rc == ONCE_E_USAGE) rc = once_pipeline_take_store(pipeline, &there, &err);
    return rc;
}

/* The child has a copy of the object and none of its threads. */
static void after_a_fork_it_is_refused(void **state)
{
    fixture *f = *state;
    write_messages(f, 3);
    f->pipeline = load(f, "p", NULL, true, sql);
    start(f->pipeline);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        once_error err;
        once_snapshot now = {.size = sizeof now};
        const bool refused = once_pipeline_snapshot(f->pipeline, &now, &err) == ONCE_E_USAGE &&
                             once_pipeline_join(f->pipeline, NULL, &err) == ONCE_E_USAGE &&
                             once_pipeline_start(f->pipeline, NULL, &err) == ONCE_E_USAGE;
        const bool unused = use_store(f->pipeline) == ONCE_E_USAGE;
        once_pipeline_free(f->pipeline); /* leaves what is the parent's */
        _exit(refused && unused ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    while (look(f->pipeline).counts.acked < 3) usleep(1000);
    once_pipeline_stop(f->pipeline);
    assert_int_equal(join(f->pipeline).counts.done, 3);
}

/* --- operators on the open store --- */

typedef struct listed {
    once_pipeline *pipeline;
    unsigned n;
    int inside; /* what another function of the same pipeline said in between */
} listed;

static bool note_listed(void *user, const once_listed *item)
{
    listed *l = user;
    once_error err;
    once_pipeline_state status;
    assert_string_equal(item->state, "busy");
    l->n++;
    l->inside = once_pipeline_status(l->pipeline, false, &status, &err);
    assert_int_equal(look(l->pipeline).state, ONCE_RUN_WORKING);
    return true;
}

static void note_state(void *user, const once_explanation *e) { *(const char **)user = e->state; }

/* A store in memory is nobody else's: only its own handle knows anything. */
static void operators_see_the_store_of_the_run(void **state)
{
    fixture *f = *state;
    gate g = GATE;
    once_error err;
    once_pipeline_state status;
    const char *key_state = NULL, *was;
    write_messages(f, 20);
    f->pipeline = load(f, "p", "memory", false, CALLBACK "order: \"${/id}\"\n");
    assert_int_equal(once_pipeline_callback(f->pipeline, "pass", pass, &g, &err), ONCE_OK);
    start(f->pipeline);
    wait_for_callbacks(&g, 4);
    assert_int_equal(once_pipeline_status(f->pipeline, false, &status, &err), ONCE_OK);
    assert_int_equal(status.busy, 4);
    listed busy = {.pipeline = f->pipeline};
    assert_int_equal(once_pipeline_list(f->pipeline, ONCE_LIST_BUSY, note_listed, &busy, &err), ONCE_OK);
    assert_int_equal(busy.n, 4);
    assert_int_equal(busy.inside, ONCE_E_USAGE);
    assert_int_equal(once_pipeline_explain(f->pipeline, (once_bytes){0}, ONCE_BYTES("0"), note_state, &key_state, &err),
                     ONCE_OK);
    assert_string_equal(key_state, "claimed");
    assert_int_equal(once_pipeline_forget(f->pipeline, (once_bytes){0}, (once_bytes){0}, ONCE_BYTES("17"), &was, &err),
                     ONCE_OK);
    assert_string_equal(was, "absent");
    let_go(&g);
    assert_int_equal(join(f->pipeline).counts.done, 20);
}

typedef struct operating {
    once_pipeline *pipeline;
    atomic_bool enough;
    unsigned rounds;
    uint64_t replayed, discarded;
} operating;

static bool no_more(void *user, const once_listed *item)
{
    (void)user, (void)item;
    return true;
}

static bool note_worker(void *user, const once_running *running)
{
    *(unsigned *)user += strcmp(running->state, "alive") == 0;
    return true;
}

static void *operate(void *arg)
{
    operating *o = arg;
    while (!atomic_load(&o->enough)) {
        once_error err = {0};
        once_pipeline_state status;
        once_replay_counts counts;
        uint64_t n = 0;
        unsigned alive = 0;
        const once_replay_options replay = {.size = sizeof replay,
                                            .choice = {.since_ms = ONCE_NO_TIME, .until_ms = ONCE_NO_TIME}};
        const once_discard_options discard = {.size = sizeof discard,
                                              .choice = {.since_ms = ONCE_NO_TIME, .until_ms = ONCE_NO_TIME}};
        int rc = once_pipeline_status(o->pipeline, false, &status, &err);
        if (rc == ONCE_OK) rc = once_pipeline_workers(o->pipeline, note_worker, &alive, &err);
        assert_int_equal(alive, 1);
        if (rc == ONCE_OK)
            rc = once_pipeline_list(o->pipeline, ONCE_LIST_DEAD | ONCE_LIST_WAITING, no_more, NULL, &err);
        if (rc == ONCE_OK && o->rounds % 2) rc = once_pipeline_replay(o->pipeline, &replay, &counts, &err);
        if (rc == ONCE_OK && o->rounds % 2) o->replayed += counts.verdicts[ONCE_REPLAY_run];
        if (rc == ONCE_OK && o->rounds % 8 == 4) rc = once_pipeline_discard(o->pipeline, &discard, &n, &err);
        o->discarded += n;
        if (rc == ONCE_OK) rc = once_pipeline_sweep(o->pipeline, NULL, NULL, &n, &err);
        if (rc != ONCE_OK) fail_msg("%s", err.text);
        o->rounds++;
    }
    return NULL;
}

/* Dead letters are replayed, and die again, and are discarded, while the run goes on. Two threads do that. */
static void operators_work_beside_the_run(void **state)
{
    fixture *f = *state;
    write_messages(f, MESSAGES);
    f->pipeline = load(f, "p", NULL, true, sql);
    start(f->pipeline);
    operating o[2] = {{.pipeline = f->pipeline}, {.pipeline = f->pipeline}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, operate, &o[i]), 0);
    while (look(f->pipeline).counts.received < MESSAGES) usleep(1000);
    for (int i = 0; i < 2; i++) {
        atomic_store(&o[i].enough, true);
        pthread_join(threads[i], NULL);
        assert_true(o[i].rounds > 0);
    }
    once_pipeline_stop(f->pipeline);
    const once_summary summary = join(f->pipeline);
    assert_int_equal(summary.counts.done, KEYS - DEAD);
    once_pipeline_state status;
    once_error err;
    assert_int_equal(once_pipeline_status(f->pipeline, true, &status, &err), ONCE_OK); /* on a store of its own now */
    assert_int_equal(status.done, KEYS - DEAD);
    assert_int_equal(status.dead + status.rejected + status.waiting, DEAD);
    assert_int_equal(status.rejected, o[0].discarded + o[1].discarded);
}

/* Lets the run come to its end while a replay goes on, which takes turns with it, and then ends that. */
typedef struct outlasting {
    once_pipeline *pipeline;
    gate *gate;
    bool ended;
} outlasting;

static void outlast(void *user, uint64_t looked_at, uint64_t total, double seconds)
{
    outlasting *o = user;
    (void)looked_at, (void)total, (void)seconds;
    let_go(o->gate);
    if (o->ended) once_pipeline_stop(o->pipeline); /* there was a step after the end */
    o->ended = look(o->pipeline).state == ONCE_RUN_ENDED;
    usleep(500);
}

static int replay_beyond_the_end(fixture *f, const char *store, once_error *err)
{
    static uint64_t ids[20000]; /* of letters that are not there; more than it takes */
    gate g = GATE;
    once_replay_counts counts;
    write_messages(f, 20);
    f->pipeline = load(f, "p", store, false, CALLBACK);
    outlasting o = {.pipeline = f->pipeline, .gate = &g};
    assert_int_equal(once_pipeline_callback(f->pipeline, "pass", pass, &g, err), ONCE_OK);
    start(f->pipeline);
    wait_for_callbacks(&g, 1);
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) ids[i] = i + 1;
    const once_replay_options options = {.size = sizeof options,
                                         .ids = ids,
                                         .n_ids = sizeof ids / sizeof *ids,
                                         .rate = 1, /* so each is a step of its own */
                                         .progress = outlast,
                                         .user = &o};
    const int rc = once_pipeline_replay(f->pipeline, &options, &counts, err);
    assert_int_equal(join(f->pipeline).counts.done, 20);
    assert_true(rc != ONCE_OK || o.ended);
    return rc;
}

static void a_replay_goes_on_when_the_run_has_ended(void **state)
{
    once_error err = {0};
    assert_int_equal(replay_beyond_the_end(*state, NULL, &err), ONCE_OK);
}

/* A store in memory is gone with its run; another one is not taken for it. */
static void a_replay_notices_that_the_store_is_gone_with_the_run(void **state)
{
    once_error err = {0};
    assert_int_equal(replay_beyond_the_end(*state, "memory", &err), ONCE_E_OTHER_STORE);
}

/* --- callbacks of operators, and the run --- */

typedef struct inside {
    once_pipeline *pipeline;
    const char *path;
    int start, run, join; /* what these said */
    unsigned n, handles;
} inside;

static bool call_inside(void *user, const once_listed *item)
{
    inside *in = user;
    once_error err;
    once_summary summary;
    (void)item;
    in->n++;
    in->start = once_pipeline_start(in->pipeline, NULL, &err);
    in->run = once_pipeline_run(in->pipeline, NULL, &summary, &err);
    once_pipeline_stop(in->pipeline);
    in->join = once_pipeline_join(in->pipeline, NULL, &err);
    return false;
}

static void list_and_call(once_pipeline *pipeline)
{
    once_error err;
    inside in = {.pipeline = pipeline};
    assert_int_equal(once_pipeline_list(pipeline, ONCE_LIST_DEAD, call_inside, &in, &err), ONCE_OK);
    assert_int_equal(in.n, 1);
    assert_int_equal(in.start, ONCE_E_USAGE);
    assert_int_equal(in.run, ONCE_E_USAGE);
    assert_int_equal(in.join, ONCE_E_USAGE);
}

static void a_callback_of_an_operator_neither_starts_nor_joins(void **state)
{
    fixture *f = *state;
    write_messages(f, 50);
    f->pipeline = load(f, "p", NULL, true, sql);
    start(f->pipeline);
    while (look(f->pipeline).counts.acked < 50) usleep(1000);
    list_and_call(f->pipeline); /* on the store of the run, which it stops */
    assert_true(join(f->pipeline).stopped);
    list_and_call(f->pipeline); /* on one of its own */
    start(f->pipeline);
    assert_true(join(f->pipeline).stopped);
}

static unsigned count_handles(const char *path)
{
    unsigned n = 0;
    DIR *dir = opendir("/proc/self/fd");
    assert_non_null(dir);
    for (const struct dirent *d; (d = readdir(dir));) {
        char target[200];
        const ssize_t len = readlinkat(dirfd(dir), d->d_name, target, sizeof target - 1);
        if (len < 0) continue;
        target[len] = 0;
        n += strcmp(target, path) == 0;
    }
    closedir(dir);
    return n;
}

static bool count_inside(void *user, const once_listed *item)
{
    inside *in = user;
    (void)item;
    in->handles = count_handles(in->path);
    return false;
}

static void operators_open_no_second_store_beside_the_run(void **state)
{
    fixture *f = *state;
    once_error err;
    char path[100];
    snprintf(path, sizeof path, "%s/p.db", f->dir);
    write_messages(f, 50);
    f->pipeline = load(f, "p", NULL, true, sql);
    start(f->pipeline);
    while (look(f->pipeline).counts.acked < 50) usleep(1000);
    const unsigned before = count_handles(path);
    assert_true(before > 0);
    inside in = {.path = path};
    assert_int_equal(once_pipeline_list(f->pipeline, ONCE_LIST_DEAD, count_inside, &in, &err), ONCE_OK);
    assert_int_equal(in.handles, before);
    once_pipeline_stop(f->pipeline);
    (void)join(f->pipeline);
    assert_int_equal(count_handles(path), 0);
}

/* It fails between begin and commit, on the connection of the run. */
static void the_run_goes_on_when_an_operator_has_failed(void **state)
{
    fixture *f = *state;
    once_error err;
    uint64_t n;
    const once_bytes key = ONCE_BYTES("0");
    const once_resolve_options resolve = {.size = sizeof resolve,
                                          .choice = {.since_ms = ONCE_NO_TIME, .until_ms = ONCE_NO_TIME},
                                          .key = &key,
                                          .outcome = ONCE_DONE};
    write_messages(f, 20);
    f->pipeline = load(f, "p", NULL, true, sql);
    start(f->pipeline);
    while (look(f->pipeline).counts.acked < 20) usleep(1000);
    assert_int_equal(once_pipeline_resolve(f->pipeline, &resolve, &n, &err),
                     ONCE_E_USAGE); /* it is done, not unknown */
    char path[100];
    snprintf(path, sizeof path, "%s/in.ndjson", f->dir);
    FILE *more = fopen(path, "a");
    assert_non_null(more);
    for (int i = 100; i < 120; i++) fprintf(more, "{\"id\": %d, \"n\": 1}\n", i);
    fclose(more);
    while (look(f->pipeline).counts.acked < 40) usleep(1000);
    once_pipeline_stop(f->pipeline);
    assert_int_equal(join(f->pipeline).counts.done, 40);
}

static void one_that_has_ended_waits_for_nobody(void **state)
{
    fixture *f = *state;
    gate g = GATE;
    once_error err;
    write_messages(f, 1);
    f->pipeline = load(f, "p", NULL, false, CALLBACK);
    f->other = load(f, "p", NULL, false, CALLBACK); /* the same consumer and store */
    assert_int_equal(once_pipeline_callback(f->pipeline, "pass", pass, &g, &err), ONCE_OK);
    assert_int_equal(once_pipeline_callback(f->other, "pass", pass, &g, &err), ONCE_OK);
    start(f->pipeline);
    wait_for_callbacks(&g, 1);
    start(f->other);
    while (!look(f->other).waiting[0]) usleep(1000);
    once_pipeline_stop(f->other);
    wait_for_state(f->other, ONCE_RUN_ENDED);
    const once_snapshot ended = look(f->other);
    let_go(&g);
    assert_string_equal(ended.waiting, "");
    assert_true(join(f->other).stopped);
    assert_int_equal(join(f->pipeline).counts.done, 1);
}

/* --- a replay that pauses, and the next run --- */

typedef struct replaying {
    once_pipeline *pipeline;
    atomic_bool begun, open;
    int status;
    once_replay_counts counts;
} replaying;

/* All but one die; that one keeps the run going. */
static once_outcome die(void *user, const once_call *call, once_reply *reply)
{
    replaying *r = user;
    once_reply_reason(reply, "no");
    if (call->delivery->key.data[0] != '4') return ONCE_DEAD;
    while (!atomic_load(&r->open)) usleep(1000);
    return ONCE_DONE;
}

static void note_replayed(void *user, const once_replayed *replayed)
{
    replaying *r = user;
    (void)replayed;
    atomic_store(&r->begun, true);
}

static void *replay_slowly(void *arg)
{
    replaying *r = arg;
    once_error err;
    const once_replay_options options = {.size = sizeof options,
                                         .rate = 1,
                                         .visit = note_replayed,
                                         .user = r,
                                         .choice = {.since_ms = ONCE_NO_TIME, .until_ms = ONCE_NO_TIME}};
    r->status = once_pipeline_replay(r->pipeline, &options, &r->counts, &err);
    return NULL;
}

/* In memory the next run has another store with letters of the same numbers, often at the same address. */
static void a_replay_does_not_go_on_in_the_store_of_the_next_run(void **state)
{
    fixture *f = *state;
    once_error err;
    pthread_t thread;
    replaying r = {0};
    write_messages(f, 40);
    f->pipeline = r.pipeline = load(f, "p", "memory", false, "handler: {callback: die}\n");
    assert_int_equal(once_pipeline_callback(f->pipeline, "die", die, &r, &err), ONCE_OK);
    start(f->pipeline);
    while (look(f->pipeline).counts.dead < 39) usleep(1000);
    assert_int_equal(pthread_create(&thread, NULL, replay_slowly, &r), 0);
    while (!atomic_load(&r.begun)) usleep(1000);
    atomic_store(&r.open, true);
    (void)join(f->pipeline);
    atomic_store(&r.open, false);
    start(f->pipeline);
    while (look(f->pipeline).counts.dead < 39) usleep(1000);
    pthread_join(thread, NULL);
    assert_int_equal(r.status, ONCE_E_OTHER_STORE);
    atomic_store(&r.open, true);
    const once_summary summary = join(f->pipeline);
    assert_int_equal(summary.counts.resumed, 0); /* nothing of it was run again */
    assert_int_equal(summary.store_dead, 39);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_run_is_started_looked_at_and_joined),
        TEST(a_snapshot_has_the_times_of_stages),
        TEST(a_snapshot_counts_what_is_not_over),
        TEST(every_thread_may_stop_and_one_may_join),
        TEST(a_stop_is_seen_as_draining_until_effects_are_back),
        TEST(one_that_was_stopped_before_ends_at_once),
        TEST(one_that_was_stopped_and_joined_ends_at_once_when_it_is_started_again),
        TEST(one_that_cannot_begin_has_nothing_of_the_run_before),
        TEST(one_that_could_not_begin_is_never_joined),
        TEST(what_follows_a_callback_commits_with_its_outcome),
        TEST(it_is_not_started_while_it_is_being_joined),
#ifdef ONCE_WITH_POSTGRES
        TEST(a_stop_ends_a_start_that_waits_for_a_server),
#endif
        TEST(what_makes_no_sense_is_refused),
        TEST(a_snapshot_is_as_large_as_its_caller_says),
        TEST(one_that_is_freed_is_stopped_and_joined),
        TEST(two_pipelines_run_beside_each_other),
        TEST(after_a_fork_it_is_refused),
        TEST(operators_see_the_store_of_the_run),
        TEST(operators_work_beside_the_run),
        TEST(a_replay_goes_on_when_the_run_has_ended),
        TEST(a_replay_notices_that_the_store_is_gone_with_the_run),
        TEST(a_callback_of_an_operator_neither_starts_nor_joins),
        TEST(operators_open_no_second_store_beside_the_run),
        TEST(the_run_goes_on_when_an_operator_has_failed),
        TEST(one_that_has_ended_waits_for_nobody),
        TEST(a_replay_does_not_go_on_in_the_store_of_the_next_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
