/* Several `once run` beside each other on one PostgreSQL store: do they help each other, or stand in each other's way?
 *
 *     bench_postgres_workers [--messages N] [--rounds N] [--full] [--json] [--once PATH] [--folder DIR] [--keep]
 *
 *   a  every message inserts a row of its own
 *   b  transfers between 50 accounts, which all workers update: batches of 32
 *   c  the same, batches of 1024
 *   d  c, where the accounts are named (`locks`)
 *   e  500 lanes that all workers have messages of; 5 % fail once, and their lane waits for them
 *
 * Each with 1, 2, 4 and 8 workers, which share the messages, in a database of its own on one server, which is started for this with its usual
 * settings (fsync on, deadlock_timeout 1 s). A rate counts from the start of the processes to the end of the last one; ratios are those to one
 * worker in the same round, medians over the rounds.
 *
 * Ends with 0 whatever the figures are, and when there is no server to be had; 3 when something could not be measured. */
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "postgres/server.h"
#include "process.h"
#include "scene.h"
#include "table.h"

#include "base/banned.h"

enum { A_ROWS, B_HOT_32, C_HOT_1024, D_NAMED, E_LANES, KINDS };
enum { ACCOUNTS = 50, LANES = 500, SIZES = 4, WORKERS_MAX = 8 };
static const unsigned sizes[SIZES] = {1, 2, 4, WORKERS_MAX};

static scene_asked asked = {.messages = 30000, .full_messages = 300000, .rounds = 1};

#define HOT "handler:\n  sql:\n    - UPDATE account SET n = n - 1 WHERE id = :from\n    - UPDATE account SET n = n + 1, moves = moves + 1 WHERE id = :to\n"

static const struct {
    const char *name, *label, *config;
    const char *effects; /* how many there were */
} kinds[KINDS] = {
    [A_ROWS] = {"rows", "a  a row of its own", "handler: {sql: [\"INSERT INTO t(id) VALUES (:id)\"]}\n", "SELECT count(*) FROM t"},
    [B_HOT_32] = {"hot_32", "b  50 accounts, batches of 32", "batch: {max: 32}\n" HOT, "SELECT sum(moves) FROM account"},
    [C_HOT_1024] = {"hot_1024", "c  50 accounts, batches of 1024", HOT, "SELECT sum(moves) FROM account"},
    [D_NAMED] = {"hot_named", "d  c with locks", "locks: [\"${/from}\", \"${/to}\"]\n" HOT, "SELECT sum(moves) FROM account"},
    [E_LANES] = {"lanes", "e  500 lanes, 5 % fail once",
                 "order: \"${/lane}\"\nretry: {backoff: 1ms..20ms, on: [P0001]}\nhandler:\n  sql:\n    - INSERT INTO t(id) VALUES (:id)\n"
                 "    - SELECT fail() WHERE :bad = 1 AND :once_attempt < 2\n",
                 "SELECT count(*) FROM t"},
};

static void make_database(void)
{
    PGconn *conn = server_connect("postgres");
    server_say(conn, "SET client_min_messages = error");
    server_say(conn, "DROP DATABASE IF EXISTS workers");
    server_say(conn, "CREATE DATABASE workers");
    PQfinish(conn);
    conn = server_connect("workers");
    server_say(conn, "CREATE TABLE t(id text); CREATE TABLE account(id int PRIMARY KEY, n bigint NOT NULL, moves bigint NOT NULL);"
                     "CREATE FUNCTION fail() RETURNS int LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'passing'; END $$");
    server_say(conn, "INSERT INTO account SELECT g, 0, 0 FROM generate_series(0, 49) g");
    PQfinish(conn);
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* The pipeline of worker `i` of `n`, and its share of the messages. Returns the file. */
static const char *write_share(int kind, unsigned i, unsigned n)
{
    char name[40], config[1200], url[300];
    uint64_t state = 88172645463325252;
    once_buf text;
    once_buf_init(&text, (size_t)1 << 30);
    for (uint64_t m = 0; m < asked.messages; m++) {
        const uint64_t dice = next_random(&state), from = dice % ACCOUNTS, to = (from + 1 + dice / 64 % (ACCOUNTS - 1)) % ACCOUNTS;
        if (m % n != i) continue;
        once_buf_printf(&text, "{\"id\":\"%llu\",\"from\":%llu,\"to\":%llu,\"lane\":%llu,\"bad\":%d}\n", (unsigned long long)m, (unsigned long long)from,
                        (unsigned long long)to, (unsigned long long)(dice / 4096 % LANES), dice / 4194304 % 20 == 0);
    }
    if (text.failed) bench_die("out of memory");
    snprintf(name, sizeof name, "in-%u", i);
    const char *input = scene_path(name);
    scene_write_file(input, text.data ? text.data : "");
    once_buf_release(&text);
    snprintf(config, sizeof config, "consumer: c\nstore: \"%s\"\nsource: {file: {path: \"%s\"}}\nkey: \"${/id}\"\n%s", server_url("postgres", "workers", url),
             input, kinds[kind].config);
    snprintf(name, sizeof name, "p-%u.yaml", i);
    const char *path = scene_path(name);
    scene_write_file(path, config);
    return path;
}

static double run(int kind, unsigned workers)
{
    once_buf line;
    process_result result;
    const char *once = asked.scene.once ? asked.scene.once : scene_built("once");
    once_buf_init(&line, 1 << 16);
    make_database();
    for (unsigned i = 0; i < workers; i++) once_buf_printf(&line, "'%s' run --json --new-store '%s' & ", once, write_share(kind, i, workers));
    once_buf_puts(&line, "wait");
    process_exec(kinds[kind].label, (char *const[]){"/bin/sh", "-c", line.data, NULL}, scene_path("out"), NULL, 1, 1, &result);
    once_buf_release(&line);
    if (server_ask("workers", kinds[kind].effects) != (double)asked.messages) bench_die("other effects than there are messages");
    return (double)asked.messages / result.seconds;
}

int main(int argc, char **argv)
{
    static double rates[KINDS][SIZES][SCENE_ROUNDS_MAX];
    static char names[KINDS][SIZES][40], labels[KINDS][SIZES][80];
    scene_parse(argc, argv, &asked);
    process_prepare();
    if (!server_start((const char *const[]){NULL})) {
        fprintf(stderr, "bench_postgres_workers: not measured: there is no PostgreSQL server to be had here\n");
        return 0;
    }
    scene_open(&asked.scene);
    for (unsigned round = 0; round < asked.rounds; round++)
        for (int kind = 0; kind < KINDS; kind++)
            for (int s = 0; s < SIZES; s++) rates[kind][s][round] = run(kind, sizes[s]);

    table t = {.columns = {"messages/s", "of one"}, .names = {"rate", "of_one"}};
    for (int kind = 0; kind < KINDS; kind++)
        for (int s = 0; s < SIZES; s++) {
            snprintf(names[kind][s], sizeof names[kind][s], "%s_%u", kinds[kind].name, sizes[s]);
            snprintf(labels[kind][s], sizeof labels[kind][s], "%s, %u worker%s", kinds[kind].label, sizes[s], sizes[s] > 1 ? "s" : "");
            row *r = table_add(&t, names[kind][s], labels[kind][s], 2);
            r->value[0] = scene_median(rates[kind][s], asked.rounds);
            r->value[1] = scene_median_ratio(rates[kind][s], rates[kind][0], asked.rounds);
        }
    if (asked.json) {
        printf("{\"bench\":\"postgres_workers\"");
        table_print_json(&t);
        printf("}\n");
    } else {
        table_print(&t);
    }
    return 0;
}
