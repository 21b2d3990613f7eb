/* `once run` on topics of Apache Kafka.
 *
 *     bench_kafka [--only PART] [--messages N] [--rounds N] [--full] [--json] [--once PATH] [--folder DIR] [--keep]
 *
 * classic: into PostgreSQL, payments of 300 bytes (workload.h) whose effect is one INSERT and one UPDATE:
 *   a  the classic consumer (kafka/classic.h), on the first CLASSIC_MESSAGES only, for its rate
 *   b  once run, atomic. Its time is that of the whole command, from its start until the last offset is committed
 *   c  two once run that share the partitions; ratios are those of the rates after the first quarter of the messages,
 *      when both have their partitions
 * callback: a C function as the effect (kafka/callback.h), on CALLBACK_SHARE times --messages.
 * latency: from the producer to the durable effect (kafka/latency.h).
 * memory: resident memory of one worker when a third is done, and at the end: ten times --messages, small ones, into
 *   PostgreSQL; 5 M with --full.
 *
 * Broker and server are started for this; every topic has 8 partitions. Entrants that are compared run next to each
 * other; figures are medians over the rounds, ratios the medians of the ratios of each round.
 *
 * Ends with 0 whatever the figures are, and when no server is available; 3 when something could not be measured. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kafka/broker.h"
#include "kafka/callback.h"
#include "kafka/classic.h"
#include "kafka/latency.h"
#include "kafka/workers.h"
#include "postgres/server.h"
#include "process.h"
#include "scene.h"
#include "table.h"
#include "workload.h"

#include "base/banned.h"

enum {
    CLASSIC_MESSAGES = 3000,
    LATENCY_MESSAGES = 20000,
    MEMORY_SHARE = 10,
    CALLBACK_SHARE = 5,
    FULL_MESSAGES = 5000000
};

static scene_asked asked = {
    .messages = 200000, .full_messages = FULL_MESSAGES, .rounds = 3, .parts = "classic, callback, latency, memory"};
static const char *once;

typedef struct rates {
    double of[SCENE_ROUNDS_MAX];
    unsigned n;
} rates;

static void note(rates *to, double rate) { to->of[to->n++] = rate; }

static void add_rate(table *t, const rates *r, const char *name, const char *label)
{
    table_add(t, name, label, 0)->value[0] = scene_median(r->of, r->n);
}

static void add_time(table *t, const rates *r, const char *name, const char *label)
{
    table_add(t, name, label, 1)->value[0] = scene_median(r->of, r->n);
}

static void add_ratio(table *t, const rates *over, const rates *under, double required, const char *name,
                      const char *label)
{
    row *r = table_add(t, name, label, 2);
    r->relation = required > 0 ? 'g' : 0;
    r->required = required;
    r->value[0] = scene_median_ratio(over->of, under->of, under->n);
}

/* A name that was not used before: groups keep their offsets, and topics their messages. */
static const char *fresh_name(const char *kind)
{
    static char names[8][40];
    static unsigned n;
    char *name = names[n % 8];
    snprintf(name, sizeof names[0], "%s-%u", kind, ++n);
    return name;
}

/* ---- PostgreSQL ---- */

static void make_database(const char *name, const char *tables)
{
    char sql[200];
    PGconn *conn = server_connect("postgres");
    server_say(conn, "SET client_min_messages = error");
    snprintf(sql, sizeof sql, "DROP DATABASE IF EXISTS %s", name);
    server_say(conn, sql);
    snprintf(sql, sizeof sql, "CREATE DATABASE %s", name);
    server_say(conn, sql);
    PQfinish(conn);
    conn = server_connect(name);
    server_say(conn, tables);
    server_say(conn, "VACUUM ANALYZE");
    server_say(conn, "CHECKPOINT");
    PQfinish(conn);
}

static const char payment_tables[] =
    "CREATE TABLE processed_messages(key text PRIMARY KEY, at timestamptz NOT NULL DEFAULT now());"
    "CREATE TABLE payments(id text PRIMARY KEY, order_id bigint NOT NULL, amount bigint NOT NULL);"
    "CREATE TABLE orders(id bigint PRIMARY KEY, paid bigint NOT NULL, last_amount bigint CHECK (last_amount > 0));"
    "INSERT INTO orders SELECT g, 0, NULL FROM generate_series(1, 10000) g";

/* A pipeline file; `rest` has key and handler. */
static const char *write_pipeline(const char *store, const char *body, const char *topic, const char *group,
                                  const char *rest)
{
    char text[2000];
    const char *path = scene_path("pipeline.yaml");
    snprintf(text, sizeof text,
             "consumer: bench\nstore: \"%s\"\nsource: {kafka: {brokers: \"%s\", topics: %s, group: %s}, body: %s}\n%s",
             store, broker_address(), topic, group, body, rest);
    scene_write_file(path, text);
    return path;
}

/* ---- payments ---- */

typedef struct payments {
    const char *topic;
    const payment *list;
    workload_sums sums;
    uint64_t n;
} payments;

static size_t write_payment(const void *user, uint64_t i, char out[BROKER_MESSAGE_MAX])
{
    FILE *from = (FILE *)(uintptr_t)user; /* a child reads it, in order */
    if (fseek(from, (long)(i % asked.messages * (WORKLOAD_BYTES + 1)), SEEK_SET) != 0 ||
        fread(out, WORKLOAD_BYTES, 1, from) != 1)
        bench_die("cannot read the messages");
    return WORKLOAD_BYTES;
}

/* The payments, `times` over, in a topic. */
static payments payment_topic(const char *topic, uint64_t times)
{
    const char *messages = scene_path("messages"), *list = scene_path("payments");
    payments p = {.topic = topic};
    workload_write(&(workload){.messages = asked.messages, .seed = 1}, messages, list, &p.sums);
    p.list = workload_map(list, &p.n);
    FILE *from = fopen(messages, "re");
    if (!from) bench_die_errno("cannot open the messages");
    broker_fill(topic, times * p.n, write_payment, from);
    fclose(from);
    return p;
}

/* ---- classic ---- */

static void run_once(const payments *p, const char *label, unsigned workers, workers_result *result)
{
    char url[300];
    const char *group = fresh_name("once");
    make_database("once", payment_tables);
    const char *config =
        write_pipeline(server_url("postgres", "once", url), "json", p->topic, group,
                       "key: \"${/payment_id}\"\nhandler:\n  sql:\n"
                       "    - INSERT INTO payments(id, order_id, amount) VALUES (:payment_id, :order_id, :amount)\n"
                       "    - UPDATE orders SET paid = paid + :amount, last_amount = :amount WHERE id = :order_id\n");
    workers_run(&(workers_job){label, once, config, p->topic, group, p->n, workers}, result);
    if (server_ask("once", "SELECT sum(amount) FROM payments") != (double)p->sums.amount ||
        server_ask("once", "SELECT sum(paid) FROM orders") != (double)p->sums.amount)
        bench_die("the sum of the payments is wrong");
}

static void measure_classic(table *t)
{
    static rates classic, one, one_late, two_late;
    const payments filled = payment_topic("payments", 1), *p = &filled;
    const uint64_t few = p->n < CLASSIC_MESSAGES ? p->n : CLASSIC_MESSAGES;
    for (unsigned round = 0; round < asked.rounds; round++) {
        workers_result result;
        make_database("classic", payment_tables);
        note(&classic, classic_run("classic", p->topic, fresh_name("classic"), p->list, few));
        run_once(p, "b: once run", 1, &result);
        note(&one, (double)p->n / result.seconds);
        note(&one_late, result.late_rate);
        run_once(p, "c: two workers", 2, &result);
        note(&two_late, result.late_rate);
    }
    *t = (table){.columns = {"PostgreSQL"}, .names = {"postgres"}};
    add_rate(t, &classic, "classic", "a  a transaction and a commit per message");
    add_rate(t, &one, "once", "b  once run, with its start");
    add_ratio(t, &one, &classic, 10, "once_vs_classic", "b / a");
    add_rate(t, &one_late, "one_worker", "b  once run, last three quarters");
    add_rate(t, &two_late, "two_workers", "c  two workers, last three quarters");
    add_ratio(t, &two_late, &one_late, 0, "two_vs_one", "c / b");
}

/* ---- callback ---- */

#define CALLBACK "workers: 1024\nkey: \"${coordinates}\"\nhandler: {callback: count, natural: true}\n"

static void measure_callback(table *t)
{
    static rates rate[3], cpu[3];
    char store[200];
    const payments p = payment_topic("calls", CALLBACK_SHARE);
    const uint64_t n = CALLBACK_SHARE * p.n;
    const char *database = scene_path("callback.db");
    snprintf(store, sizeof store, "sqlite:%s", database);
    for (unsigned round = 0; round < asked.rounds; round++) {
        callback_figures got[3];
        got[0] = callback_bare(p.topic, n);
        scene_remove_database(database);
        const char *config = write_pipeline(store, "bytes", p.topic, fresh_name("callback"), CALLBACK);
        got[1] = callback_once("e: a callback, SQLite", config, n);
        config = write_pipeline("memory:", "bytes", p.topic, fresh_name("callback"), CALLBACK);
        got[2] = callback_once("f: a callback, memory", config, n);
        for (int i = 0; i < 3; i++) note(&rate[i], got[i].rate), note(&cpu[i], got[i].cpu_us);
    }
    *t = (table){.columns = {"rate"}, .names = {"rate"}};
    add_rate(t, &rate[0], "bare", "d  librdkafka alone, nothing is done");
    add_rate(t, &rate[1], "callback_sqlite", "e  a natural callback, SQLite");
    add_rate(t, &rate[2], "callback_memory", "f  a natural callback, store in memory");
    add_ratio(t, &rate[1], &rate[0], 0.5, "sqlite_vs_bare", "e / d");
    add_ratio(t, &rate[2], &rate[0], 0.5, "memory_vs_bare", "f / d");
    add_time(t, &cpu[0], "bare_cpu_us", "d  CPU per message, microseconds");
    add_time(t, &cpu[1], "sqlite_cpu_us", "e  the same");
    add_time(t, &cpu[2], "memory_cpu_us", "f  the same");
}

/* ---- latency ---- */

#define SEEN "key: \"${/id}\"\nhandler: {sql: [\"INSERT INTO seen(id) VALUES (:id)\"]}\n"

static void measure_one_latency(bool server, latency *out)
{
    char store[300];
    const char *topic = fresh_name("latency"), *database = server ? "latency" : scene_path("latency.db");
    if (server) {
        make_database(database, "CREATE TABLE seen(n bigserial PRIMARY KEY, id bigint NOT NULL)");
        server_url("postgres", database, store);
    } else {
        scene_remove_database(database);
        scene_execute(database, "CREATE TABLE seen(n INTEGER PRIMARY KEY AUTOINCREMENT, id INTEGER NOT NULL)");
        snprintf(store, sizeof store, "sqlite:%s", database);
    }
    const char *config = write_pipeline(store, "json", topic, fresh_name("latency"), SEEN);
    const uint64_t n = asked.messages < LATENCY_MESSAGES ? asked.messages : LATENCY_MESSAGES;
    latency_measure(&(latency_job){"g: latency", once, config, topic, database, server, n}, out);
}

enum { P50, P99, LONGEST, BROKER_P50, BROKER_P99, MOMENTS };

static void measure_latency(table *t)
{
    static const struct {
        const char *name, *label;
    } shown[MOMENTS] = {[P50] = {"p50_ms", "g  1,000 messages/s: p50, ms"},
                        [P99] = {"p99_ms", "   p99, ms"},
                        [LONGEST] = {"max_ms", "   the longest, ms"},
                        [BROKER_P50] = {"broker_p50_ms", "   until the broker has it: p50, ms"},
                        [BROKER_P99] = {"broker_p99_ms", "   p99, ms"}};
    static double of[MOMENTS][2][SCENE_ROUNDS_MAX];
    for (unsigned round = 0; round < asked.rounds; round++)
        for (int server = 0; server < 2; server++) {
            latency l;
            measure_one_latency(server, &l);
            const double values[MOMENTS] = {l.p50_ms, l.p99_ms, l.max_ms, l.broker_p50_ms, l.broker_p99_ms};
            for (int m = 0; m < MOMENTS; m++) of[m][server][round] = values[m];
        }
    *t = (table){.columns = {"SQLite", "PostgreSQL"}, .names = {"sqlite", "postgres"}};
    for (int m = 0; m < MOMENTS; m++) {
        row *r = table_add(t, shown[m].name, shown[m].label, 1);
        r->relation = m == P99 ? 'l' : 0;
        r->required = 100;
        for (int server = 0; server < 2; server++) r->value[server] = scene_median(of[m][server], asked.rounds);
    }
}

/* ---- memory ---- */

static size_t write_small(const void *user, uint64_t i, char out[BROKER_MESSAGE_MAX])
{
    (void)user;
    return (size_t)snprintf(out, BROKER_MESSAGE_MAX, "{\"id\":%llu}", (unsigned long long)i);
}

static void measure_memory(table *t)
{
    char url[300];
    workers_result result;
    const uint64_t n = asked.messages < FULL_MESSAGES ? asked.messages * MEMORY_SHARE : asked.messages;
    const char *topic = "memory", *group = "memory";
    broker_fill(topic, n, write_small, NULL);
    make_database("memory", "CREATE TABLE seen(id bigint)");
    const char *config = write_pipeline(server_url("postgres", "memory", url), "json", topic, group, SEEN);
    workers_run(&(workers_job){"h: memory", once, config, topic, group, n, 1}, &result);
    if (server_ask("memory", "SELECT count(*) FROM seen") != (double)n) bench_die("other effects than messages");
    *t = (table){.columns = {"PostgreSQL"}, .names = {"postgres"}};
    table_add(t, "memory_messages", "h  messages", 0)->value[0] = (double)n;
    table_add(t, "memory_third", "   resident memory after a third, MiB", 1)->value[0] = result.third_mib;
    table_add(t, "memory_end", "   at the end, MiB", 1)->value[0] = result.end_mib;
    row *ratio = table_add(t, "memory_growth", "   end / third", 2);
    ratio->relation = 'l';
    ratio->required = 1.1;
    ratio->value[0] = result.end_mib / result.third_mib;
}

/* ---- all ---- */

static const struct {
    const char *name;
    void (*measure)(table *t);
} parts[] = {{"classic", measure_classic},
             {"callback", measure_callback},
             {"latency", measure_latency},
             {"memory", measure_memory}};

int main(int argc, char **argv)
{
    static table t;
    scene_parse(argc, argv, &asked);
    process_prepare();
    if (!server_start((const char *const[]){NULL}) || !broker_start()) {
        fprintf(stderr,
                "bench_kafka: not measured: no PostgreSQL server or no Kafka is available here; tools/setup bench "
                "installs them\n");
        return 0;
    }
    scene_open(&asked.scene);
    once = asked.scene.once ? asked.scene.once : strdup(scene_built("once"));
    if (asked.json) printf("{\"bench\":\"kafka\"");
    else
        printf("kafka: 8 partitions, %llu messages, %u rounds; messages per second\n\n",
               (unsigned long long)asked.messages, asked.rounds);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (asked.only && strcmp(asked.only, parts[i].name) != 0) continue;
        parts[i].measure(&t);
        if (asked.json) table_print_json(&t);
        else table_print(&t), printf("\n");
        fflush(stdout);
    }
    if (asked.json) printf("}\n");
    return 0;
}
