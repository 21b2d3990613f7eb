/* `once run` on PostgreSQL.
 *
 *     bench_postgres [--only PART] [--messages N] [--rounds N] [--full] [--json] [--once PATH] [--folder DIR] [--keep]
 *
 * workers: several at the same time (postgres/workers.h).
 * classic: against a hand-written consumer, for messages whose effect is one INSERT and one UPDATE:
 *   a  the classic consumer on one connection: BEGIN; INSERT INTO processed_messages ON CONFLICT DO NOTHING; effect;
 *      COMMIT for each message, prepared statements (on the first CLASSIC_MESSAGES only, for its rate)
 *   b  the same on 16 connections at once
 *   c  once run
 *   d  only duplicates: once run a second time
 *   e  c with one message in a hundred that fails in its second statement
 *
 * All on one server, which is started for this with its usual settings (fsync on), each in a database of its own. They
 * take turns. What is compared runs next to what it is compared with: a, c and b, c in pairs, a and c PAIRS times in a
 * round, and in turns the one or the other first, because a machine is faster at one time than at another. Figures are
 * medians over all runs, ratios the medians of the ratios of pairs. The time of c is that of the whole command: it
 * makes its tables in it, which a has before.
 *
 * Ends with 0 whatever the figures are, and when no server is available; 3 when something could not be measured. */
#include <libpq-fe.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "postgres/server.h"
#include "postgres/workers.h"
#include "process.h"
#include "scene.h"
#include "table.h"
#include "workload.h"

#include "base/banned.h"

enum { A_CLASSIC, B_CLASSIC_16, C_ONCE, D_ONCE_AGAIN, E_FAILING, ENTRANTS };
enum { PAIRS = 2 }; /* of a and c in a round */
enum { CLASSIC_MESSAGES = 10000, CLASSIC_16_MESSAGES = 40000, CONNECTIONS = 16, FAILING_PERMILLE = 10 };

static scene_asked asked = {
    .messages = 200000, .full_messages = 2000000, .rounds = 3, .parts = "classic, " WORKERS_PARTS};

static void make_database(const char *name)
{
    char sql[200];
    PGconn *conn = server_connect("postgres");
    snprintf(sql, sizeof sql, "DROP DATABASE IF EXISTS %s", name);
    server_say(conn, "SET client_min_messages = error");
    server_say(conn, sql);
    snprintf(sql, sizeof sql, "CREATE DATABASE %s", name);
    server_say(conn, sql);
    PQfinish(conn);
    conn = server_connect(name);
    server_say(
        conn,
        "CREATE TABLE processed_messages(key text PRIMARY KEY, at timestamptz NOT NULL DEFAULT now());"
        "CREATE TABLE payments(id text PRIMARY KEY, order_id bigint NOT NULL, amount bigint NOT NULL);"
        "CREATE TABLE orders(id bigint PRIMARY KEY, paid bigint NOT NULL, last_amount bigint CHECK (last_amount > 0));"
        "INSERT INTO orders SELECT g, 0, NULL FROM generate_series(1, 10000) g");
    server_say(conn, "VACUUM ANALYZE");
    server_say(conn, "CHECKPOINT");
    PQfinish(conn);
    sync();
}

/* ---- the classic consumer ---- */

typedef struct classic {
    const char *database;
    const payment *payments;
    uint64_t n;
    atomic_uint_fast64_t next;
} classic;

static PGresult *run_prepared(PGconn *conn, const char *name, int n, const char *const *values)
{
    PGresult *result = PQexecPrepared(conn, name, n, values, NULL, NULL, 0);
    const ExecStatusType status = PQresultStatus(result);
    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK) bench_die(PQerrorMessage(conn));
    return result;
}

static void prepare(PGconn *conn, const char *name, const char *sql)
{
    PGresult *result = PQprepare(conn, name, sql, 0, NULL);
    if (PQresultStatus(result) != PGRES_COMMAND_OK) bench_die(PQerrorMessage(conn));
    PQclear(result);
}

static void handle(PGconn *conn, const payment *p)
{
    char id[37], order[16], amount[16];
    snprintf(id, sizeof id, "%.36s", p->id);
    snprintf(order, sizeof order, "%u", p->order_id);
    snprintf(amount, sizeof amount, "%d", p->amount);
    PQclear(run_prepared(conn, "begin", 0, NULL));
    PGresult *seen = run_prepared(conn, "see", 1, (const char *const[]){id});
    if (PQcmdTuples(seen)[0] == '1') {
        PQclear(run_prepared(conn, "pay", 3, (const char *const[]){id, order, amount}));
        PQclear(run_prepared(conn, "order", 2, (const char *const[]){order, amount}));
    }
    PQclear(seen);
    PQclear(run_prepared(conn, "commit", 0, NULL));
}

static void *consume(void *arg)
{
    classic *c = arg;
    PGconn *conn = server_connect(c->database);
    prepare(conn, "begin", "BEGIN");
    prepare(conn, "see", "INSERT INTO processed_messages(key) VALUES ($1) ON CONFLICT DO NOTHING");
    prepare(conn, "pay", "INSERT INTO payments(id, order_id, amount) VALUES ($1, $2, $3)");
    prepare(conn, "order", "UPDATE orders SET paid = paid + $2, last_amount = $2 WHERE id = $1");
    prepare(conn, "commit", "COMMIT");
    for (uint64_t i; (i = atomic_fetch_add(&c->next, 1)) < c->n;) handle(conn, &c->payments[i]);
    PQfinish(conn);
    return NULL;
}

static double run_classic(const char *database, const payment *payments, uint64_t n, int connections)
{
    classic c = {.database = database, .payments = payments, .n = n};
    pthread_t threads[CONNECTIONS];
    make_database(database);
    const double from = bench_now_s();
    for (int i = 0; i < connections; i++)
        if (pthread_create(&threads[i], NULL, consume, &c) != 0) bench_die("cannot start a thread");
    for (int i = 0; i < connections; i++) pthread_join(threads[i], NULL);
    return (double)n / (bench_now_s() - from);
}

/* ---- once ---- */

static double run_once(const char *label, const char *database, const char *messages, const workload_sums *sums,
                       bool again)
{
    char text[1500], url[300];
    process_result result;
    const char *config = scene_path("pipeline.yaml");
    snprintf(
        text, sizeof text,
        "consumer: payments\nstore: \"%s\"\nsource: {file: {path: \"%s\"}}\nkey: \"${/payment_id}\"\nhandler:\n  sql:\n"
        "    - INSERT INTO payments(id, order_id, amount) VALUES (:payment_id, :order_id, :amount)\n"
        "    - UPDATE orders SET paid = paid + :amount, last_amount = :amount WHERE id = :order_id\n",
        server_url("postgres", database, url), messages);
    scene_write_file(config, text);
    scene_once(label, (const char *const[]){"run", "--json", config, NULL}, sums->failing ? 1 : 0, messages,
               WORKLOAD_BYTES + 1, asked.messages, &result);
    const int64_t fresh = again ? 0 : (int64_t)(sums->keys - sums->failing);
    if (scene_said("/received") != (int64_t)asked.messages || scene_said("/done") != fresh)
        bench_die("once did not count all messages");
    if (server_ask(database, "SELECT sum(amount) FROM payments") != (double)sums->amount)
        bench_die("the sum of the payments is wrong");
    return (double)asked.messages / result.seconds;
}

/* ---- figures ---- */

static double bytes_per_key(const char *database, const char *relation)
{
    char sql[200];
    snprintf(sql, sizeof sql, "SELECT pg_total_relation_size('%s')::float / count(*) FROM %s", relation, relation);
    return server_ask(database, sql);
}

typedef struct rates {
    double of[SCENE_ROUNDS_MAX];
    unsigned n;
} rates;

static void add_rate(table *t, const rates *r, const char *name, const char *label)
{
    table_add(t, name, label, 0)->value[0] = scene_median(r->of, r->n);
}

/* Of what ran next to each other. */
static void add_ratio(table *t, const rates *over, const rates *under, char relation, double required, const char *name,
                      const char *label)
{
    row *r = table_add(t, name, label, 2);
    r->relation = relation;
    r->required = required;
    r->value[0] = scene_median_ratio(over->of, under->of, under->n);
}

/* What all entrants have, and how fast they were. `beside`: c in the pairs with a. */
typedef struct contest {
    const char *messages, *failing;
    const payment *payments;
    uint64_t few, some;
    workload_sums sums, failing_sums;
    rates entrants[ENTRANTS], beside;
} contest;

static void note(rates *to, double rate) { to->of[to->n++] = rate; }

static double run_c(const contest *c)
{
    make_database("once");
    return run_once("c: once run", "once", c->messages, &c->sums, false);
}

/* a and c, or c and a. */
static void run_pair(contest *c, bool turned)
{
    const double first = turned ? run_c(c) : run_classic("classic", c->payments, c->few, 1);
    const double second = turned ? run_classic("classic", c->payments, c->few, 1) : run_c(c);
    note(&c->entrants[A_CLASSIC], turned ? second : first);
    note(&c->beside, turned ? first : second);
}

static void run_round(contest *c, unsigned round)
{
    for (unsigned i = 0; i < PAIRS; i++) run_pair(c, (round * PAIRS + i) % 2);
    note(&c->entrants[B_CLASSIC_16], run_classic("classic16", c->payments, c->some, CONNECTIONS));
    note(&c->entrants[C_ONCE], run_c(c));
    note(&c->entrants[D_ONCE_AGAIN], run_once("d: once run again", "once", c->messages, &c->sums, true));
    make_database("failing");
    note(&c->entrants[E_FAILING], run_once("e: once run, failures", "failing", c->failing, &c->failing_sums, false));
}

static void measure_classic(table *out)
{
    static contest c;
    const char *payments_path = scene_path("payments");
    c.messages = scene_path("messages");
    c.failing = scene_path("failing");
    workload_write(&(workload){.messages = asked.messages, .seed = 1}, c.messages, payments_path, &c.sums);
    workload_write(&(workload){.messages = asked.messages, .seed = 1, .failing_permille = FAILING_PERMILLE}, c.failing,
                   scene_path("failing.payments"), &c.failing_sums);
    uint64_t n;
    c.payments = workload_map(payments_path, &n);
    c.few = n < CLASSIC_MESSAGES ? n : CLASSIC_MESSAGES;
    c.some = n < CLASSIC_16_MESSAGES ? n : CLASSIC_16_MESSAGES;
    const unsigned most = SCENE_ROUNDS_MAX / PAIRS;
    for (unsigned round = 0; round < asked.rounds && round < most; round++) run_round(&c, round);
    /* The same keys in both tables, so that the sizes can be compared. */
    PGconn *conn = server_connect("once");
    server_say(conn, "INSERT INTO processed_messages(key) SELECT id FROM payments ORDER BY random()");
    PQfinish(conn);

    table t = {.columns = {"PostgreSQL"}, .names = {"postgres"}};
    add_rate(&t, &c.entrants[A_CLASSIC], "classic", "a  a transaction per message, one connection");
    add_rate(&t, &c.entrants[B_CLASSIC_16], "classic_16", "b  the same, 16 connections");
    add_rate(&t, &c.beside, "once", "c  once run");
    add_rate(&t, &c.entrants[D_ONCE_AGAIN], "once_again", "d  only duplicates: once run");
    add_rate(&t, &c.entrants[E_FAILING], "once_failing", "e  once run, 1 % fail in their second statement");
    add_ratio(&t, &c.beside, &c.entrants[A_CLASSIC], 'g', 20, "once_vs_classic", "c / a");
    add_ratio(&t, &c.entrants[C_ONCE], &c.entrants[B_CLASSIC_16], 'g', 2, "once_vs_classic_16", "c / b");
    add_ratio(&t, &c.entrants[C_ONCE], &c.entrants[E_FAILING], 'l', 2, "slower_failing", "c / e");
    row *ours = table_add(&t, "once_stored", "c  bytes per finished key, indexes included", 0);
    row *theirs = table_add(&t, "classic_stored", "a  the same (text key, timestamptz)", 0);
    row *ratio = table_add(&t, "stored_vs_classic", "   ours / theirs", 2);
    ours->value[0] = bytes_per_key("once", "once_entry");
    theirs->value[0] = bytes_per_key("once", "processed_messages");
    ratio->value[0] = ours->value[0] / theirs->value[0];
    ratio->relation = 'l';
    ratio->required = 1;
    *out = t;
}

static void show(const table *t)
{
    if (asked.json) table_print_json(t);
    else table_print(t);
    if (!asked.json) printf("\n");
}

int main(int argc, char **argv)
{
    static table t;
    scene_parse(argc, argv, &asked);
    process_prepare();
    if (!server_start((const char *const[]){NULL})) {
        fprintf(
            stderr,
            "bench_postgres: not measured: no PostgreSQL server is available here; tools/setup bench installs it\n");
        return 0;
    }
    scene_open(&asked.scene);
    if (asked.json) printf("{\"bench\":\"postgres\"");
    if (!asked.only || strcmp(asked.only, "classic") == 0) {
        measure_classic(&t);
        show(&t);
    }
    if (workers_wanted(&asked)) {
        workers_measure(&asked, &t);
        show(&t);
    }
    if (asked.json) printf("}\n");
    return 0;
}
