/* postgres/workers.h says what is measured. */
#include "postgres/workers.h"

#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "postgres/server.h"
#include "process.h"

#include "base/banned.h"

enum { A_ROWS, B_HOT_32, C_HOT_1024, D_NAMED, E_LANES, KINDS };
enum { DIRECT, POOLED, WAYS };
enum { ACCOUNTS = 50, LANES = 500, SIZES = 5, WORKERS_MAX = 8 };
static const unsigned sizes[SIZES] = {1, 2, 4, 6, WORKERS_MAX};

#define HOT                                                                                                            \
    "handler:\n  sql:\n    - UPDATE account SET n = n - 1 WHERE id = :from\n    - UPDATE account SET n = n + 1, "      \
    "moves = moves + 1 WHERE id = :to\n"

static const struct {
    const char *name, *label, *config;
    const char *effects; /* how many there were */
    unsigned share;      /* of the messages: one in so many */
    double required;     /* of one worker */
} kinds[KINDS] = {
    [A_ROWS] = {"rows", "a  a row of its own", "handler: {sql: [\"INSERT INTO t(id) VALUES (:id)\"]}\n",
                "SELECT count(*) FROM t", 1, 1.0},
    [B_HOT_32] = {"hot_32", "b  50 accounts, batches of 32", "batch: {max: 32}\n" HOT, "SELECT sum(moves) FROM account",
                  2, 0.8},
    [C_HOT_1024] = {"hot_1024", "c  50 accounts, batches of 1024", HOT, "SELECT sum(moves) FROM account", 1, 0.8},
    [D_NAMED] = {"hot_named", "d  c with locks", "locks: [\"${/from}\", \"${/to}\"]\n" HOT,
                 "SELECT sum(moves) FROM account", 1, 0.8},
    [E_LANES] = {"lanes", "e  500 lanes, 5 % fail once",
                 "order: \"${/lane}\"\nretry: {backoff: 1ms..20ms, on: [P0001]}\nhandler:\n  sql:\n    - INSERT INTO "
                 "t(id) VALUES (:id)\n"
                 "    - SELECT fail() WHERE :bad = 1 AND :once_attempt < 2\n",
                 "SELECT count(*) FROM t", 2, 0.8},
};

static void make_database(void)
{
    PGconn *conn = server_connect("postgres");
    server_say(conn, "SET client_min_messages = error");
    server_say(conn, "DROP DATABASE IF EXISTS workers WITH (FORCE)");
    server_say(conn, "CREATE DATABASE workers");
    PQfinish(conn);
    conn = server_connect("workers");
    server_say(
        conn,
        "CREATE TABLE t(id text); CREATE TABLE account(id int PRIMARY KEY, n bigint NOT NULL, moves bigint NOT NULL);"
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

static const char *write_pipeline(const char *name, const char *input, int kind, int way)
{
    char config[1200], url[300];
    const char *store = way == POOLED ? pooler_url("postgres", "workers", url) : server_url("postgres", "workers", url);
    snprintf(config, sizeof config, "consumer: c\nstore: \"%s\"\nsource: {file: {path: \"%s\"}}\nkey: \"${/id}\"\n%s",
             store, input, kinds[kind].config);
    const char *path = scene_path(name);
    scene_write_file(path, config);
    return path;
}

/* The pipeline of worker `i` of `n`, and its share of the messages. Returns the file. */
static const char *write_share(int kind, int way, uint64_t messages, unsigned i, unsigned n)
{
    char name[40];
    uint64_t state = 88172645463325252;
    once_buf text;
    once_buf_init(&text, (size_t)1 << 30);
    for (uint64_t m = 0; m < messages; m++) {
        const uint64_t dice = next_random(&state), from = dice % ACCOUNTS,
                       to = (from + 1 + dice / 64 % (ACCOUNTS - 1)) % ACCOUNTS;
        if (m % n != i) continue;
        once_buf_printf(&text, "{\"id\":\"%llu\",\"from\":%llu,\"to\":%llu,\"lane\":%llu,\"bad\":%d}\n",
                        (unsigned long long)m, (unsigned long long)from, (unsigned long long)to,
                        (unsigned long long)(dice / 4096 % LANES), dice / 4194304 % 20 == 0);
    }
    if (text.failed) bench_die("out of memory");
    snprintf(name, sizeof name, "in-%u", i);
    const char *input = scene_path(name);
    scene_write_file(input, text.data ? text.data : "");
    once_buf_release(&text);
    snprintf(name, sizeof name, "p-%u.yaml", i);
    return write_pipeline(name, input, kind, way);
}

static void make_store(int kind)
{
    process_result result;
    const char *input = scene_path("nothing");
    scene_write_file(input, "");
    scene_once("the store",
               (const char *const[]){"run", "--json", write_pipeline("nothing.yaml", input, kind, DIRECT), NULL}, 0,
               NULL, 1, 1, &result);
}

static double run(const scene_asked *asked, int kind, int way, unsigned workers)
{
    once_buf line;
    process_result result;
    const uint64_t messages = asked->messages / kinds[kind].share;
    const char *once = asked->scene.once ? asked->scene.once : scene_built("once");
    once_buf_init(&line, 1 << 16);
    make_database();
    make_store(kind);
    for (unsigned i = 0; i < workers; i++)
        once_buf_printf(&line, "'%s' run --json --new-store '%s' & ", once,
                        write_share(kind, way, messages, i, workers));
    once_buf_puts(&line, "wait");
    process_exec(kinds[kind].label, (char *const[]){"/bin/sh", "-c", line.data, NULL}, scene_path("out"), NULL, 1, 1,
                 &result);
    once_buf_release(&line);
    if (server_ask("workers", kinds[kind].effects) != (double)messages) {
        process_show_log(scene_path("out"));
        bench_die("other effects than there are messages");
    }
    return (double)messages / result.seconds;
}

static double rates[WAYS][KINDS][SIZES][SCENE_ROUNDS_MAX];
/* What one worker did just before and just after: the machine changes within a minute, and a round takes longer. */
static double one[WAYS][KINDS][SIZES][SCENE_ROUNDS_MAX];

static void add_rows(table *t, int kind, unsigned rounds, int ways)
{
    static char names[KINDS][SIZES][40], labels[KINDS][SIZES][80];
    for (int s = 0; s < SIZES; s++) {
        snprintf(names[kind][s], sizeof names[kind][s], "%s_%u", kinds[kind].name, sizes[s]);
        if (s == 0) snprintf(labels[kind][s], sizeof labels[kind][s], "%s, 1 worker, messages/s", kinds[kind].label);
        else snprintf(labels[kind][s], sizeof labels[kind][s], "   %u workers / 1", sizes[s]);
        row *r = table_add(t, names[kind][s], labels[kind][s], s ? 2 : 0);
        for (int way = 0; way < ways; way++)
            r->value[way] = s ? scene_median_ratio(rates[way][kind][s], one[way][kind][s], rounds)
                              : scene_median(rates[way][kind][0], rounds);
        if (!s) continue;
        r->relation = 'g';
        r->required = kinds[kind].required;
    }
}

static bool is_wanted(const scene_asked *asked, int kind)
{
    return !asked->only || strcmp(asked->only, "workers") == 0 || strcmp(asked->only, kinds[kind].name) == 0;
}

bool workers_wanted(const scene_asked *asked)
{
    for (int kind = 0; kind < KINDS; kind++)
        if (is_wanted(asked, kind)) return true;
    return false;
}

static void measure_round(const scene_asked *asked, int kind, int way, unsigned round)
{
    double before = rates[way][kind][0][round] = run(asked, kind, way, 1);
    for (int s = 1; s < SIZES; s++) {
        rates[way][kind][s][round] = run(asked, kind, way, sizes[s]);
        const double after = run(asked, kind, way, 1);
        one[way][kind][s][round] = (before + after) / 2;
        before = after;
    }
}

void workers_measure(const scene_asked *asked, table *t)
{
    int ways = WAYS;
    if (!pooler_start("transaction", (const char *const[]){"default_pool_size=20", NULL})) {
        fprintf(stderr, "bench_postgres: workers are measured without PgBouncer, which is not available here\n");
        ways = POOLED;
    }
    for (unsigned round = 0; round < asked->rounds; round++)
        for (int kind = 0; kind < KINDS; kind++)
            for (int way = 0; is_wanted(asked, kind) && way < ways; way++) measure_round(asked, kind, way, round);
    *t = (table){.columns = {"direct", "PgBouncer"}, .names = {"direct", "pooled"}};
    for (int kind = 0; kind < KINDS; kind++)
        if (is_wanted(asked, kind)) add_rows(t, kind, asked->rounds, ways);
}
