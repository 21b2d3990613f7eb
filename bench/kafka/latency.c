/* kafka/latency.h says what is measured. */
#include "kafka/latency.h"

#include <libpq-fe.h>
#include <poll.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kafka/broker.h"
#include "kafka/workers.h"
#include "postgres/server.h"
#include "process.h"
#include "scene.h"

#include "base/banned.h"

/* The first message shows that the worker has its partitions. Those of the warm-up come next, and are not counted. */
enum { RATE = 1000, WARM_UP = 2000, LOOK_MS = 1, GIVE_UP_S = 60 };

typedef struct run {
    const latency_job *job;
    uint64_t n;        /* messages, with those of the warm-up */
    double *sent_s;    /* by number */
    double *taken_s;   /* when the producer knew that the broker has it */
    double *sorted;    /* room for percentiles */
    double *settled_s; /* 0: not yet */
    atomic_uint_fast64_t settled;
    uint64_t *progress;
    latency *out;
    sqlite3_stmt *select;
    PGconn *conn;
    long long last; /* n of the last row that was seen */
} run;

/* ---- the producer ---- */

static void take(rd_kafka_t *client, const rd_kafka_message_t *message, void *user)
{
    (void)client, (void)user;
    if (message->err) bench_die(rd_kafka_message_errstr(message));
    *(double *)message->_private = bench_now_s();
}

static void *produce(void *arg)
{
    run *r = arg;
    rd_kafka_t *client = broker_producer(take);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(client, r->job->topic, NULL);
    double from = 0;
    for (uint64_t i = 0; i < r->n; i++) {
        char body[100];
        while (i == 1 && r->settled == 0) poll(NULL, 0, LOOK_MS);
        if (i == 1) from = bench_now_s();
        const double due = from + (double)i / RATE;
        for (double now; (now = bench_now_s()) < due;) rd_kafka_poll(client, (int)((due - now) * 1000));
        const int len = snprintf(body, sizeof body, "{\"id\":%llu}", (unsigned long long)i);
        r->sent_s[i] = bench_now_s();
        if (rd_kafka_produce(topic, (int32_t)(i % BROKER_PARTITIONS), RD_KAFKA_MSG_F_COPY, body, (size_t)len, NULL, 0,
                             &r->taken_s[i]) != 0)
            bench_die(rd_kafka_err2str(rd_kafka_last_error()));
    }
    rd_kafka_flush(client, GIVE_UP_S * 1000);
    rd_kafka_topic_destroy(topic);
    rd_kafka_destroy(client);
    return NULL;
}

/* ---- the observer ---- */

static void see(run *r, long long n, long long id, double now)
{
    if (id < 0 || (uint64_t)id >= r->n || r->settled_s[id] != 0) bench_die("a row that nobody sent, or sent once");
    r->settled_s[id] = now;
    r->settled++;
    r->last = n;
}

static void open_database(run *r)
{
    sqlite3 *db;
    if (r->job->server) {
        r->conn = server_connect(r->job->database);
        PQclear(PQprepare(r->conn, "new", "SELECT n, id FROM seen WHERE n > $1 ORDER BY n", 0, NULL));
    } else if (sqlite3_open(r->job->database, &db) != SQLITE_OK || sqlite3_busy_timeout(db, 1000) != SQLITE_OK ||
               sqlite3_prepare_v2(db, "SELECT n, id FROM seen WHERE n > ? ORDER BY n", -1, &r->select, NULL) !=
                   SQLITE_OK) {
        bench_die("cannot look into the database");
    }
}

static void look_into_sqlite(run *r)
{
    long long rows[RATE][2];
    int n = 0;
    sqlite3_bind_int64(r->select, 1, r->last);
    for (; n < RATE && sqlite3_step(r->select) == SQLITE_ROW; n++)
        for (int c = 0; c < 2; c++) rows[n][c] = sqlite3_column_int64(r->select, c);
    sqlite3_reset(r->select);
    const double now = bench_now_s();
    for (int i = 0; i < n; i++) see(r, rows[i][0], rows[i][1], now);
}

static void look_into_server(run *r)
{
    char last[24];
    snprintf(last, sizeof last, "%lld", r->last);
    PGresult *result = PQexecPrepared(r->conn, "new", 1, (const char *const[]){last}, NULL, NULL, 0);
    const double now = bench_now_s();
    if (PQresultStatus(result) != PGRES_TUPLES_OK) bench_die(PQerrorMessage(r->conn));
    for (int i = 0; i < PQntuples(result); i++)
        see(r, strtoll(PQgetvalue(result, i, 0), NULL, 10), strtoll(PQgetvalue(result, i, 1), NULL, 10), now);
    PQclear(result);
}

/* ---- both ---- */

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts the times between two moments of the messages after the warm-up, and returns the one that `percent` of them do
 * not exceed. */
static double percentile(const run *r, const double *from, const double *to, unsigned percent)
{
    const uint64_t n = r->n - WARM_UP;
    for (uint64_t i = 0; i < n; i++) r->sorted[i] = (to[WARM_UP + i] - from[WARM_UP + i]) * 1000;
    qsort(r->sorted, n, sizeof *r->sorted, compare);
    return r->sorted[percent * (n - 1) / 100];
}

static void conclude(const run *r)
{
    *r->out = (latency){.p50_ms = percentile(r, r->sent_s, r->settled_s, 50),
                        .p99_ms = percentile(r, r->sent_s, r->settled_s, 99),
                        .max_ms = percentile(r, r->sent_s, r->settled_s, 100),
                        .broker_p50_ms = percentile(r, r->sent_s, r->taken_s, 50),
                        .broker_p99_ms = percentile(r, r->sent_s, r->taken_s, 99)};
}

static void make_topic(const char *name)
{
    rd_kafka_t *client = broker_client(RD_KAFKA_PRODUCER, (const char *const[]){NULL});
    broker_make_topic(client, name);
    rd_kafka_destroy(client);
}

static void work(void *arg)
{
    run *r = arg;
    pthread_t producer;
    const char *log = scene_path("worker-0.log");
    r->sent_s = calloc(r->n, sizeof *r->sent_s);
    r->settled_s = calloc(r->n, sizeof *r->settled_s);
    r->taken_s = calloc(r->n, sizeof *r->taken_s);
    r->sorted = calloc(r->n, sizeof *r->sorted);
    if (!r->sent_s || !r->settled_s || !r->taken_s || !r->sorted) bench_die("out of memory");
    make_topic(r->job->topic);
    const int pid = workers_start(r->job->once, r->job->config, log);
    open_database(r);
    if (pthread_create(&producer, NULL, produce, r) != 0) bench_die("cannot start a thread");
    const double until = bench_now_s() + (double)r->n / RATE + GIVE_UP_S;
    while (r->settled < r->n) {
        if (r->job->server) look_into_server(r);
        else look_into_sqlite(r);
        *r->progress = r->settled;
        workers_alive(pid, log);
        if (bench_now_s() > until) bench_die("messages are missing in the database");
        poll(NULL, 0, LOOK_MS);
    }
    pthread_join(producer, NULL);
    workers_stop(pid, log);
    conclude(r);
}

void latency_measure(const latency_job *job, latency *out)
{
    process_result result;
    struct {
        uint64_t progress;
        latency figures;
    } *shared = process_share(sizeof *shared);
    run r = {.job = job, .n = job->messages + WARM_UP, .progress = &shared->progress, .out = &shared->figures};
    process_run(job->label, work, &r, &shared->progress, r.n, &result);
    *out = shared->figures;
}
