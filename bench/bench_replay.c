/* Replay of dead letters: how fast, and in how much memory, at two sizes, on the stores that are available here:
 * SQLite, PostgreSQL and Redis.
 *
 *     bench_replay [--messages N] [--full] [--rounds N] [--json] [--once PATH] [--folder DIR] [--keep]
 *
 *   r  once replay --all
 *   y  once replay --all --dry-run, on the same store before that
 *   w  once run, which takes what was replayed from the store and does it
 *
 * --messages is the larger size, the smaller one is a third of it; both should fill the page cache of SQLite (48 MiB),
 * or its peak grows with that. Letters are made by `once run` with an effect that fails for good, which is not
 * measured; random keys of 32 bytes, bodies of about 300. The effect is an INSERT in the store's own database, on
 * Redis an answer of a kept process. Stores take turns, so that SQLite is measured in the same minutes and the others
 * are compared with it; figures are medians over the rounds, ratios the medians of each round's ratios. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "postgres/server.h"
#include "redis/server.h"
#include "scene.h"
#include "table.h"

#include "base/banned.h"

enum { SMALL, LARGE, SIZES = TABLE_COLUMNS };
enum { SQLITE, POSTGRES, REDIS, STORES };
enum { R_REPLAY, Y_DRY, W_WORK, ENTRANTS };

#define FLAT 1.25     /* a peak that grows by less than this is called flat */
#define QUICK 20000.0 /* letters a second that a server's store should move */

static scene_asked opt = {.messages = 300000, .full_messages = 1000000, .rounds = 3};
static bool is_there[STORES] = {[SQLITE] = true};

typedef struct figures {
    double rate[ENTRANTS][SCENE_ROUNDS_MAX], peak_mib[ENTRANTS][SCENE_ROUNDS_MAX];
} figures;

static uint64_t letters_of(int size) { return size == LARGE ? opt.messages : opt.messages / 3; }

static void write_messages(void *arg)
{
    const uint64_t n = *(const uint64_t *)arg;
    FILE *to = fopen(scene_path("messages"), "we");
    if (!to) bench_die_errno("cannot write messages");
    for (uint64_t i = 0; i < n; i++) /* odd factors: all different, and in no order */
        fprintf(to, "{\"id\":\"%016llx%016llx\",\"amount\":%llu,\"note\":\"%0200llu\"}\n",
                (unsigned long long)((i + 1) * 0x9e3779b97f4a7c15u), (unsigned long long)(i * 0xbf58476d1ce4e5b9u),
                (unsigned long long)(i % 1000), (unsigned long long)i);
    if (fclose(to) != 0) bench_die_errno("cannot write messages");
}

/* ---- stores ---- */

static const char *url_of(int store, char out[PATH_MAX])
{
    char text[300];
    if (store == SQLITE) snprintf(out, PATH_MAX, "sqlite:%s", scene_path("replay.db"));
    else if (store == POSTGRES) snprintf(out, PATH_MAX, "%s", server_url("postgres", "replay", text));
    else snprintf(out, PATH_MAX, "%s", redis_url());
    return out;
}

/* `works`: its effects succeed. */
static void write_config(int store, bool works)
{
    char text[6 * PATH_MAX], url[PATH_MAX], effect[2 * PATH_MAX];
    if (store == REDIS)
        snprintf(effect, sizeof effect, "  exec: [\"%s\", %s]\n  mode: stream\n  window: 1024\n",
                 scene_built("bench/echo_handler"), works ? "done" : "dead");
    else
        snprintf(effect, sizeof effect,
                 "  sql: [{do: \"INSERT INTO t(id, amount) SELECT :id, :amount FROM gate WHERE is_open\", rows: 1, "
                 "else: dead}]\n");
    snprintf(text, sizeof text,
             "consumer: payments\n"
             "store: \"%s\"\n"
             "source: {file: {path: \"%s\"}}\n"
             "key: \"${/id}\"\n"
             "dead_limit: off\nhandler:\n%s",
             url_of(store, url), scene_path("messages"), effect);
    scene_write_file(scene_path("pipeline.yaml"), text);
}

static void say(const char *database, const char *sql)
{
    PGconn *conn = server_connect(database);
    server_say(conn, "SET client_min_messages = error");
    server_say(conn, sql);
    PQfinish(conn);
}

static void tell(redisContext *to, const char *command)
{
    redisReply *reply = redisCommand(to, command);
    if (!reply || reply->type == REDIS_REPLY_ERROR) bench_die(reply ? reply->str : "redis-server does not answer");
    freeReplyObject(reply);
}

/* Between databases of the server: 0 is the one that is measured. */
static void copy_keys(int from, int to)
{
    char command[200];
    redisContext *conn = redis_connect();
    snprintf(command, sizeof command, "SELECT %d", to);
    tell(conn, command);
    tell(conn, "FLUSHDB SYNC");
    snprintf(command, sizeof command, "SELECT %d", from);
    tell(conn, command);
    redisReply *reply =
        redisCommand(conn, "EVAL %s 0 %d",
                     "for _, k in ipairs(redis.call('KEYS', '*')) do redis.call('COPY', k, k, 'DB', ARGV[1]) end", to);
    if (!reply || reply->type == REDIS_REPLY_ERROR) bench_die(reply ? reply->str : "redis-server does not answer");
    freeReplyObject(reply);
    redisFree(conn);
}

static void make_empty(int store)
{
    static const char tables[] =
        "CREATE TABLE t(id TEXT, amount INTEGER); CREATE TABLE gate(is_open BOOLEAN); INSERT INTO gate VALUES (false)";
    if (store == SQLITE) {
        scene_remove_database(scene_path("replay.db"));
        scene_execute(scene_path("replay.db"), tables);
    } else if (store == POSTGRES) {
        say("postgres", "DROP DATABASE IF EXISTS replay");
        say("postgres", "CREATE DATABASE replay");
        say("replay", tables);
    } else {
        redisContext *conn = redis_connect();
        tell(conn, "FLUSHDB SYNC");
        redisFree(conn);
    }
}

/* What is there now is that of this size. */
static void keep(int store, int size)
{
    if (store == SQLITE) scene_copy_file(scene_path("replay.db"), scene_path(size == LARGE ? "large.db" : "small.db"));
    if (store == POSTGRES)
        say("postgres",
            size == LARGE ? "ALTER DATABASE replay RENAME TO large" : "ALTER DATABASE replay RENAME TO small");
    if (store == REDIS) copy_keys(0, 1 + size);
}

/* It is what it was, but its effects succeed now. */
static void bring_back(int store, int size)
{
    write_config(store, true);
    if (store == SQLITE) {
        scene_remove_database(scene_path("replay.db"));
        scene_copy_file(scene_path(size == LARGE ? "large.db" : "small.db"), scene_path("replay.db"));
        scene_execute(scene_path("replay.db"), "UPDATE gate SET is_open = true");
    } else if (store == POSTGRES) {
        say("postgres", "DROP DATABASE IF EXISTS replay");
        say("postgres",
            size == LARGE ? "CREATE DATABASE replay TEMPLATE large" : "CREATE DATABASE replay TEMPLATE small");
        say("replay", "UPDATE gate SET is_open = true");
        say("replay", "VACUUM ANALYZE"); /* as autovacuum does before an operator replays */
        say("postgres", "CHECKPOINT");
    } else {
        copy_keys(1 + size, 0);
    }
}

/* ---- measuring ---- */

/* Letters of each size, to be copied for each round. */
static void make_letters(int store, int size)
{
    process_result result;
    uint64_t n = letters_of(size);
    const char *const arguments[] = {"run", "--json", scene_path("pipeline.yaml"), NULL};
    write_config(store, false);
    process_run("writing messages", write_messages, &n, NULL, 0, &result);
    make_empty(store);
    scene_once("making letters", arguments, 1, NULL, 0, n, &result);
    if (scene_said("/dead") != (int64_t)n) bench_die("not every message became a dead letter");
    keep(store, size);
}

static void measure(figures *f, unsigned round, int entrant, const char *label, const char *const *arguments,
                    uint64_t n)
{
    process_result result;
    scene_once(label, arguments, 0, NULL, 0, n, &result);
    f->rate[entrant][round] = (double)n / result.seconds;
    f->peak_mib[entrant][round] = (double)result.peak_kib / 1024;
}

static void run_round(figures *f, unsigned round, int store, int size)
{
    const char *config = scene_path("pipeline.yaml");
    const char *const dry[] = {"replay", config, "--all", "--dry-run", NULL}, *const replay[] = {"replay", config,
                                                                                                 "--all", NULL};
    const char *const run[] = {"run", "--json", config, NULL};
    const uint64_t n = letters_of(size);
    bring_back(store, size);
    scene_write_file(scene_path("messages"), "");
    measure(f, round, Y_DRY, "dry run", dry, n);
    measure(f, round, R_REPLAY, "replay", replay, n);
    measure(f, round, W_WORK, "working", run, n);
    if (scene_said("/done") != (int64_t)n || scene_said("/resumed") != (int64_t)n)
        bench_die("not every letter went back to work");
}

/* ---- figures ---- */

static figures f[STORES][SIZES];

static void add(table *t, int store, int entrant, const char *name, const char *label)
{
    row *r = table_add(t, name, label, 0);
    for (int k = 0; k < SIZES; k++) r->value[k] = scene_median(f[store][k].rate[entrant], opt.rounds);
    if (store == SQLITE || entrant != R_REPLAY) return;
    r->relation = 'g';
    r->required = QUICK;
}

static void add_ratio(table *t, int store, const char *name, const char *label)
{
    row *r = table_add(t, name, label, 2);
    for (int k = 0; k < SIZES; k++)
        r->value[k] = scene_median_ratio(f[store][k].rate[R_REPLAY], f[SQLITE][k].rate[R_REPLAY], opt.rounds);
}

static void add_peak(table *t, int store, int entrant, const char *name, const char *label)
{
    row *r = table_add(t, name, label, 1);
    for (int k = 0; k < SIZES; k++) r->value[k] = scene_median(f[store][k].peak_mib[entrant], opt.rounds);
}

static void add_growth(table *t, int store, int entrant, const char *name, const char *label)
{
    row *r = table_add(t, name, label, 2);
    r->relation = 'l';
    r->required = FLAT;
    r->value[LARGE] =
        scene_median_ratio(f[store][LARGE].peak_mib[entrant], f[store][SMALL].peak_mib[entrant], opt.rounds);
}

static void add_store(table *t, int store)
{
#define NAMES(n)                                                                                                       \
    {                                                                                                                  \
        n "_replay", n "_dry_run", n "_work", n "_to_sqlite", n "_replay_peak_mib", n "_dry_run_peak_mib",             \
            n "_replay_peak_growth", n "_dry_run_peak_growth"                                                          \
    }
#define LABELS(n)                                                                                                      \
    {                                                                                                                  \
        n "  r  once replay --all", n "  y  once replay --all --dry-run", n "  w  once run afterwards",                \
            n "  r  against that of SQLite", n "  r  peak memory, MiB", n "  y  peak memory, MiB",                     \
            n "  r  peak against that of the smaller size", n "  y  the same"                                          \
    }
    static const char *const names[STORES][8] = {NAMES("sqlite"), NAMES("postgres"), NAMES("redis")};
    static const char *const labels[STORES][8] = {LABELS("SQLite"), LABELS("PostgreSQL"), LABELS("Redis")};
    for (int i = 0; i < ENTRANTS; i++) add(t, store, i, names[store][i], labels[store][i]);
    if (store != SQLITE) add_ratio(t, store, names[store][3], labels[store][3]);
    add_peak(t, store, R_REPLAY, names[store][4], labels[store][4]);
    add_peak(t, store, Y_DRY, names[store][5], labels[store][5]);
    add_growth(t, store, R_REPLAY, names[store][6], labels[store][6]);
    add_growth(t, store, Y_DRY, names[store][7], labels[store][7]);
}

int main(int argc, char **argv)
{
    static const char *const usual[] = {NULL};
    static char small[32], large[32], buffer[32];
    scene_parse(argc, argv, &opt);
    scene_open(&opt.scene);
    is_there[POSTGRES] = server_start(usual);
    is_there[REDIS] = redis_start();
    for (int store = 0; store < STORES; store++)
        for (int size = 0; size < SIZES && is_there[store]; size++) make_letters(store, size);
    for (unsigned round = 0; round < opt.rounds; round++)
        for (int size = 0; size < SIZES; size++)
            for (int store = 0; store < STORES; store++)
                if (is_there[store]) run_round(&f[store][size], round, store, size);
    snprintf(small, sizeof small, "%s", table_number((double)letters_of(SMALL), 0, buffer));
    snprintf(large, sizeof large, "%s", table_number((double)letters_of(LARGE), 0, buffer));
    table results = {.columns = {small, large}, .names = {"small", "large"}};
    for (int store = 0; store < STORES; store++)
        if (is_there[store]) add_store(&results, store);
    if (opt.json) {
        printf("{\"letters\":%llu,\"rounds\":%u", (unsigned long long)opt.messages, opt.rounds);
        table_print_json(&results);
        printf("}\n");
        return 0;
    }
    printf("\nreplay: dead letters per second and peak memory at two sizes; medians of %u interleaved rounds\n\n",
           opt.rounds);
    table_print(&results);
    return 0;
}
