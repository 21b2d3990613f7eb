/* What expiry costs on PostgreSQL: eight `once run` at full speed, with and without a process that drops expired
 * entries beside them.
 *
 *     bench_postgres_sweep [--entries N] [--expired N] [--seconds N] [--full] [--scattered] [--inside] [--json]
 *     [--once PATH] [--folder DIR] [--keep]
 *
 * A server of its own (fsync on), a store with N finished entries of which some have expired, and windows of equal
 * length in turns:
 *
 *   a  no process sweeps (this one holds the lock that sweepers take)
 *   b  `once sweep` runs the whole time; with --inside one of the eight does it, as it does in every `once run`
 *
 * a comes first and last, and each b is compared with the mean of the a before and behind it: tables grow meanwhile. A
 * window begins with a checkpoint, so that all have the same part of its cost, and its first seconds do not count. It
 * ends when nothing expired is left, or after four of each; then the rest is swept alone. Messages have time-ordered
 * ids, so the user's own index is cheap, and what the store does is what is seen.
 *
 * Expired entries lie together, as in a store with one `remember`; --scattered: every n-th row, as with several of
 * them.
 *
 * Ends with 0 whatever the figures are, and when no server is available; 3 when something could not be measured. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <linux/magic.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "postgres/server.h"
#include "process.h"
#include "scene.h"
#include "store/store.h"
#include "table.h"

#include "base/banned.h"

enum { WORKERS = 8, ORDERS = 10000, ROUNDS = 4, WINDOWS_MAX = 1 + 2 * ROUNDS, SAMPLE_MS = 50, WARM_UP_MS = 8000 };
enum { TEMPLATES = 1000, FOUND = 1000, ARRIVALS = 5000, FULL_ENTRIES = 20000000, FULL_SECONDS = 60 };

/* What the postgres store locks while it sweeps. */
#define SWEEP_LOCK "1869505382, (SELECT oid FROM pg_namespace WHERE nspname = current_schema())::integer"
#define DATABASE "once"
#define REMEMBERED_MS (7 * 86400000LL) /* as the pipeline says */

static struct {
    uint64_t entries, expired;
    unsigned seconds;
    bool scattered, inside, json;
    scene_options scene;
} asked = {.entries = 1000000, .expired = 250000, .seconds = 8};

/* ---- the command line ---- */

static __attribute__((noreturn)) void usage(const char *program, int status)
{
    fprintf(status ? stderr : stdout,
            "usage: %s [OPTION...]\n"
            "  --entries N    finished entries in the store (1,000,000)\n"
            "  --expired N    of them have expired (250,000)\n"
            "  --seconds N    length of a window (8)\n"
            "  --full         20 million, 5 million, 60 seconds\n"
            "  --scattered    the expired ones lie between the others\n"
            "  --inside       one of the eight sweeps, and not `once sweep`\n"
            "  --json         one object on standard output instead of the table\n"
            "  --once PATH    the command to measure (the one of this build)\n"
            "  --folder DIR   where the temporary folder is made (TMPDIR, or /tmp)\n"
            "  --keep         leave that folder\n",
            program);
    exit(status);
}

static void parse(int argc, char **argv)
{
    enum { ENTRIES = 256, EXPIRED, SECONDS, FULL, SCATTERED, INSIDE, JSON, ONCE, FOLDER, KEEP, HELP };
    static const struct option known[] = {
        {"entries", required_argument, NULL, ENTRIES},
        {"expired", required_argument, NULL, EXPIRED},
        {"seconds", required_argument, NULL, SECONDS},
        {"full", no_argument, NULL, FULL},
        {"scattered", no_argument, NULL, SCATTERED},
        {"inside", no_argument, NULL, INSIDE},
        {"json", no_argument, NULL, JSON},
        {"once", required_argument, NULL, ONCE},
        {"folder", required_argument, NULL, FOLDER},
        {"keep", no_argument, NULL, KEEP},
        {"help", no_argument, NULL, HELP},
        {0},
    };
    int which;
    while ((which = getopt_long(argc, argv, "", known, NULL)) >= 0) {
        switch (which) {
        case ENTRIES: asked.entries = strtoull(optarg, NULL, 10); break;
        case EXPIRED: asked.expired = strtoull(optarg, NULL, 10); break;
        case SECONDS: asked.seconds = (unsigned)strtoul(optarg, NULL, 10); break;
        case FULL:
            asked.entries = FULL_ENTRIES;
            asked.expired = FULL_ENTRIES / 4;
            asked.seconds = FULL_SECONDS;
            break;
        case SCATTERED: asked.scattered = true; break;
        case INSIDE: asked.inside = true; break;
        case JSON: asked.json = true; break;
        case ONCE: asked.scene.once = optarg; break;
        case FOLDER: asked.scene.folder = optarg; break;
        case KEEP: asked.scene.keep = true; break;
        case HELP: usage(argv[0], 0);
        default: usage(argv[0], 2);
        }
    }
    const bool sensible =
        asked.expired >= 1000 && asked.entries >= asked.expired * 2 && asked.seconds >= 4 && asked.seconds <= 3600;
    if (optind < argc || !sensible) usage(argv[0], 2);
}

/* ---- the store ---- */

static void write_config(void)
{
    char text[1200], url[300];
    snprintf(text, sizeof text,
             "consumer: payments\nstore: \"%s\"\nsource: {file: {path: \"-\"}}\nkey: \"${/payment_id}\"\nremember: "
             "7d\nhandler:\n  sql:\n"
             "    - INSERT INTO payments(id, order_id, amount) VALUES (:payment_id, :order_id, :amount)\n"
             "    - UPDATE orders SET paid = paid + :amount, last_amount = :amount WHERE id = :order_id\n",
             server_url("postgres", DATABASE, url));
    scene_write_file(scene_path("pipeline.yaml"), text);
}

static void make_database(void)
{
    char sql[300];
    PGconn *conn = server_connect("postgres");
    server_say(conn, "CREATE DATABASE " DATABASE);
    PQfinish(conn);
    conn = server_connect(DATABASE);
    snprintf(sql, sizeof sql, "INSERT INTO orders SELECT g, 0, NULL FROM generate_series(1, %d) g", WORKERS * ORDERS);
    server_say(conn, "CREATE TABLE payments(id text PRIMARY KEY, order_id bigint NOT NULL, amount bigint NOT NULL,"
                     " at timestamptz NOT NULL DEFAULT now());"
                     "CREATE TABLE orders(id bigint PRIMARY KEY, paid bigint NOT NULL, last_amount bigint)");
    server_say(conn, sql);
    PQfinish(conn);
}

/* As many rows as asked for, like those that a real run has just left: with its details, and with ids and expiries of
 * their own. The key index is made afterwards, because that is fast, and two thirds full, as random keys leave it. */
static void fill(PGconn *conn)
{
    char sql[1200], expired[100];
    const unsigned long long every = asked.entries / asked.expired, stride = asked.entries / 100 + 1;
    if (asked.scattered)
        snprintf(expired, sizeof expired, "g %% %llu = 0 AND g <= %llu", every,
                 every * (unsigned long long)asked.expired);
    else snprintf(expired, sizeof expired, "g <= %llu", (unsigned long long)asked.expired);
    server_say(
        conn,
        "CREATE TEMP TABLE template AS SELECT row_number() OVER () AS n, expires_ms, detail FROM once_entry;"
        "CREATE UNIQUE INDEX ON template(n); ANALYZE template;"
        "ALTER TABLE once_entry DROP CONSTRAINT once_entry_pkey; DROP INDEX once_entry_expires; TRUNCATE once_entry;"
        "ALTER TABLE once_entry SET (autovacuum_enabled = off)");
    /* They came ARRIVALS a second, which decides how many share a place in the index of expiry. */
    for (unsigned long long from = 1; from <= asked.entries; from += stride) {
        const unsigned long long to = from + stride - 1 < asked.entries ? from + stride - 1 : asked.entries;
        snprintf(sql, sizeof sql,
                 "INSERT INTO once_entry(expires_ms, id, token, fingerprint, detail) SELECT t.expires_ms + (g - %llu) "
                 "* bigint '1000' / %d"
                 " - CASE WHEN %s THEN %lld ELSE 0 END, i, i, i, t.detail"
                 " FROM (SELECT g, gen_random_uuid() AS i FROM generate_series(%llu, %llu) g OFFSET 0) s JOIN template "
                 "t ON t.n = 1 + g %% %d",
                 (unsigned long long)asked.entries, ARRIVALS, expired, REMEMBERED_MS, from, to, TEMPLATES);
        server_say(conn, sql);
    }
    server_say(conn, "SET maintenance_work_mem = '1GB'; SET max_parallel_maintenance_workers = 1");
    server_say(conn, "ALTER TABLE once_entry ADD CONSTRAINT once_entry_pkey PRIMARY KEY (id) WITH (fillfactor = 67)");
    server_say(conn, "ALTER INDEX once_entry_pkey RESET (fillfactor)");
    server_say(
        conn,
        "CREATE INDEX once_entry_expires ON once_entry((expires_ms >> 16)) WHERE expires_ms < 4611686018427387904");
    server_say(conn, "ALTER TABLE once_entry RESET (autovacuum_enabled)");
    server_say(conn, "VACUUM ANALYZE");
    server_say(conn, "CHECKPOINT");
}

static void find_one(once_backend *store, const char *hex, bool lives)
{
    once_arena arena = {0};
    once_entry entry;
    once_error err;
    once_hash id = {0};
    char half[17] = "";
    memcpy(half, hex, 16);
    id.a = strtoull(half, NULL, 16);
    memcpy(half, hex + 16, 16);
    id.b = strtoull(half, NULL, 16);
    if (store->ops->get(store, id, &entry, &arena, &err) != ONCE_OK) bench_die(err.text);
    const once_state wanted = lives ? ONCE_STATE_DONE : ONCE_STATE_ABSENT;
    if (entry.state != wanted)
        bench_die(lives ? "the store does not find an entry that is there"
                        : "the store finds an entry that has expired");
    once_arena_release(&arena);
}

/* Some rows of every age, read through the driver. */
static void check_sample(PGconn *conn)
{
    char url[300], sql[300];
    once_backend *store;
    once_error err;
    const once_store_options options = {.size = sizeof options};
    if (once__store_open(server_url("postgres", DATABASE, url), &options, &store, &err) != ONCE_OK) bench_die(err.text);
    snprintf(sql, sizeof sql,
             "SELECT replace(id::text, '-', ''), expires_ms > extract(epoch FROM now()) * 1000 FROM once_entry"
             " TABLESAMPLE BERNOULLI (%f) LIMIT %d",
             100.0 * FOUND / (double)asked.entries, FOUND);
    PGresult *result = PQexec(conn, sql);
    if (PQresultStatus(result) != PGRES_TUPLES_OK || PQntuples(result) < FOUND / 2) bench_die("cannot take a sample");
    for (int i = 0; i < PQntuples(result); i++)
        find_one(store, PQgetvalue(result, i, 0), PQgetvalue(result, i, 1)[0] == 't');
    PQclear(result);
    once__store_close(store);
}

/* ---- the eight ---- */

typedef struct worker {
    unsigned number;
    pid_t pid;
    int to; /* its standard input */
    pthread_t feeder;
} worker;

static worker workers[WORKERS];
static atomic_bool enough;
static pid_t sweeper;

static pid_t start(const char *verb, int in)
{
    char output[64];
    const char *config = scene_path("pipeline.yaml");
    snprintf(output, sizeof output, "%s.out", verb);
    const char *path = scene_path(output), *log_path = scene_path("log");
    const pid_t pid = fork();
    if (pid < 0) bench_die_errno("cannot fork");
    if (pid > 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int out = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600),
              log = open(log_path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(log, 2) < 0) _exit(126);
    const char *once = asked.scene.once ? asked.scene.once : scene_built("once");
    execl(once, "once", verb, "--json", config, (char *)NULL);
    _exit(127);
}

static void expect_end(pid_t pid, int wanted, const char *what)
{
    int status;
    if (waitpid(pid, &status, 0) != pid) bench_die_errno("cannot wait for a child");
    if (WIFEXITED(status) && WEXITSTATUS(status) == wanted) return;
    FILE *log = fopen(scene_path("log"), "re");
    for (int c; log && (c = getc(log)) != EOF;) putc(c, stderr);
    bench_die(what);
}

/* New messages without end: 300 bytes each, ids ordered by time, orders of this worker alone. */
static void *feed(void *arg)
{
    worker *w = arg;
    static const char padding[] =
        "bmVpdGhlciBzbm93IG5vciByYWluIG5vciBoZWF0IG5vciBnbG9vbSBvZiBuaWdodCBzdGF5cyB0aGVzZSBjb3VyaWVycyBmcm9t"
        "IHRoZSBzd2lmdCBjb21wbGV0aW9u";
    char lines[1 << 15];
    const uint64_t base = (uint64_t)bench_wall_ms() << 16;
    for (uint64_t i = 0; !atomic_load(&enough);) {
        size_t len = 0;
        for (; len < sizeof lines - 400; i++)
            len += (size_t)snprintf(
                lines + len, sizeof lines - len,
                "{\"payment_id\":\"%08x-%04x-7%03x-8%03x-%012llx\",\"order_id\":%u,\"amount\":%u,\"currency\":\"EUR\","
                "\"customer\":\"c-%08llu\",\"note\":\"%s\"}\n",
                (unsigned)((base + i) >> 32), (unsigned)((base + i) >> 16 & 0xffff), (unsigned)((base + i) & 0xfff),
                w->number, (unsigned long long)i, w->number * ORDERS + 1 + (unsigned)(i * 7919 % ORDERS),
                1 + (unsigned)(i % 1000), (unsigned long long)i % 100000000, padding);
        for (size_t at = 0; at < len;) {
            const ssize_t n = write(w->to, lines + at, len - at);
            if (n < 0 && errno != EINTR) bench_die_errno("a worker no longer reads its input");
            if (n > 0) at += (size_t)n;
        }
    }
    close(w->to);
    return NULL;
}

static void start_workers(void)
{
    atomic_store(&enough, false);
    for (unsigned i = 0; i < WORKERS; i++) {
        int in[2];
        if (pipe2(in, O_CLOEXEC) != 0) bench_die_errno("cannot make a pipe");
        workers[i] = (worker){.number = i, .pid = start("run", in[0]), .to = in[1]};
        close(in[0]);
    }
    for (unsigned i = 0; i < WORKERS; i++)
        if (pthread_create(&workers[i].feeder, NULL, feed, &workers[i]) != 0) bench_die("cannot start a thread");
}

static void end_workers(void)
{
    atomic_store(&enough, true);
    for (unsigned i = 0; i < WORKERS; i++) {
        pthread_join(workers[i].feeder, NULL);
        const pid_t pid = workers[i].pid;
        expect_end(pid, 0, "a run did not end well");
        workers[i].pid = 0;
    }
}

static void kill_all(void)
{
    for (unsigned i = 0; i < WORKERS; i++)
        if (workers[i].pid > 0) kill(workers[i].pid, SIGKILL);
    if (sweeper > 0) kill(sweeper, SIGKILL);
}

/* ---- windows ---- */

typedef struct window {
    bool sweeps;
    double from_s, to_s; /* wall clock, which is the server's too; what counts */
    double swept;        /* rows, and in how long */
    double swept_s;
    unsigned samples, waits, vacuums;
    double step_s; /* the longest seen */
    double rate;
} window;

static double wall_s(void) { return (double)bench_wall_ms() / 1e3; }

/* Takes the lock, so that no process sweeps. The server disconnects a run that is sweeping, which connects again. */
static void forbid_sweeping(PGconn *conn)
{
    while (server_number(conn, "SELECT pg_try_advisory_lock(" SWEEP_LOCK ")::integer") == 0) {
        server_say(conn, "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND classid = "
                         "1869505382 AND granted");
        process_pause(SAMPLE_MS);
    }
}

static bool is_swept(PGconn *conn)
{
    return server_number(
               conn, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 1869505382 AND granted") >
           0;
}

static double expired_left(PGconn *conn)
{
    return server_number(
        conn,
        "SELECT count(*) FROM once_entry WHERE expires_ms >> 16 <= (extract(epoch FROM now()) * 1000)::bigint >> 16"
        " AND expires_ms < 4611686018427387904 AND expires_ms <= (extract(epoch FROM now()) * 1000)::bigint");
}

static void take_sample(PGconn *conn, window *w)
{
    PGresult *r =
        PQexec(conn, "SELECT (SELECT count(*) FROM pg_stat_progress_vacuum WHERE relid = 'once_entry'::regclass),"
                     " count(*) FILTER (WHERE wait_event_type = 'Lock' AND wait_event <> 'extend'),"
                     " coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)) FILTER (WHERE query LIKE "
                     "'SELECT ctid, expires_ms%'"
                     " OR query LIKE 'DELETE FROM %once_entry WHERE ctid%'), 0)"
                     " FROM pg_stat_activity WHERE backend_type = 'client backend'");
    if (PQresultStatus(r) != PGRES_TUPLES_OK) bench_die(PQerrorMessage(conn));
    const double step_s = strtod(PQgetvalue(r, 0, 2), NULL);
    w->samples++;
    w->vacuums += PQgetvalue(r, 0, 0)[0] != '0';
    w->waits += PQgetvalue(r, 0, 1)[0] != '0';
    if (step_s > w->step_s) w->step_s = step_s;
    PQclear(r);
}

static void begin_sweeping(PGconn *conn)
{
    if (!asked.inside) {
        const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
        sweeper = start("sweep", null);
        close(null);
    }
    server_say(conn, "SELECT pg_advisory_unlock(" SWEEP_LOCK ")");
    const double until = wall_s() + 90;
    while (!is_swept(conn) && wall_s() < until) process_pause(SAMPLE_MS);
}

static bool sweeping_is_over(PGconn *conn)
{
    if (!sweeper) return !is_swept(conn);
    int status;
    if (waitpid(sweeper, &status, WNOHANG) != sweeper) return false;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) bench_die("once sweep failed");
    sweeper = 0;
    return true;
}

static void end_sweeping(PGconn *conn)
{
    if (sweeper) {
        kill(sweeper, SIGTERM);
        expect_end(sweeper, 0, "once sweep did not end well");
        sweeper = 0;
    }
    forbid_sweeping(conn);
}

static void one_window(PGconn *conn, window *w)
{
    const double skip_s = asked.seconds >= 30 ? 5 : 1;
    server_say(conn, "CHECKPOINT");
    const double before = w->sweeps ? expired_left(conn) : 0;
    if (w->sweeps) begin_sweeping(conn);
    const double begun_s = wall_s();
    bool over = false;
    double now_s = begun_s;
    w->from_s = begun_s + skip_s;
    for (; now_s < begun_s + skip_s + asked.seconds && !over; now_s = wall_s()) {
        process_pause(SAMPLE_MS);
        take_sample(conn, w);
        over = w->sweeps && sweeping_is_over(conn);
    }
    w->to_s = now_s;
    if (!w->sweeps) return;
    end_sweeping(conn);
    w->swept_s = now_s - begun_s;
    w->swept = before - expired_left(conn);
}

/* Sweeps the rest, with no other work on the server. */
static double sweep_the_rest(PGconn *conn)
{
    const double left = expired_left(conn), begun_s = bench_now_s();
    if (left == 0) return -1;
    server_say(conn, "SELECT pg_advisory_unlock(" SWEEP_LOCK ")");
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    sweeper = start("sweep", null);
    close(null);
    while (!sweeping_is_over(conn)) process_pause(SAMPLE_MS);
    const double seconds = bench_now_s() - begun_s;
    forbid_sweeping(conn);
    return left / seconds;
}

/* All windows in one pass over the table. */
static void count_messages(PGconn *conn, window *windows, unsigned n)
{
    char sql[200 + 100 * WINDOWS_MAX];
    size_t len = (size_t)snprintf(sql, sizeof sql, "SELECT 0");
    for (unsigned i = 0; i < n; i++)
        len += (size_t)snprintf(sql + len, sizeof sql - len,
                                ", count(*) FILTER (WHERE at >= to_timestamp(%.3f) AND at < to_timestamp(%.3f))",
                                windows[i].from_s, windows[i].to_s);
    snprintf(sql + len, sizeof sql - len, " FROM payments");
    PGresult *result = PQexec(conn, sql);
    if (PQresultStatus(result) != PGRES_TUPLES_OK) bench_die(PQerrorMessage(conn));
    for (unsigned i = 0; i < n; i++) {
        window *w = &windows[i];
        const double seconds = w->to_s - w->from_s;
        w->rate = seconds > 0 ? strtod(PQgetvalue(result, 0, (int)i + 1), NULL) / seconds : -1;
    }
    PQclear(result);
}

/* Windows a b a b ... a, as many as it takes. */
static unsigned measure(PGconn *conn, window *windows)
{
    unsigned n = 0;
    start_workers();
    process_pause(WARM_UP_MS); /* they begin one by one and with small batches */
    one_window(conn, &windows[n++]);
    do {
        windows[n].sweeps = true;
        one_window(conn, &windows[n++]);
        one_window(conn, &windows[n++]);
    } while (n < WINDOWS_MAX && expired_left(conn) > 0);
    end_workers();
    count_messages(conn, windows, n);
    return n;
}

/* ---- sizes ---- */

typedef struct sizes {
    double heap, key, expiry; /* MiB */
    double rows, dead, vacuums;
} sizes;

static sizes size_now(PGconn *conn)
{
    server_say(conn, "SELECT pg_stat_force_next_flush()");
    const double mib = 1 << 20;
    return (sizes){
        .heap = server_number(conn, "SELECT pg_relation_size('once_entry')") / mib,
        .key = server_number(conn, "SELECT pg_relation_size('once_entry_pkey')") / mib,
        .expiry = server_number(conn, "SELECT pg_relation_size('once_entry_expires')") / mib,
        .rows = server_number(conn, "SELECT n_tup_ins FROM pg_stat_user_tables WHERE relname = 'once_entry'"),
        .dead = server_number(conn, "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'once_entry'"),
        .vacuums = server_number(conn, "SELECT autovacuum_count FROM pg_stat_user_tables WHERE relname = 'once_entry'"),
    };
}

static void print_sizes(const char *when, const sizes *s)
{
    printf("  %-42s heap %7.0f MiB  key index %6.0f  expiry index %5.0f  dead %9.0f\n", when, s->heap, s->key,
           s->expiry, s->dead);
}

/* ---- figures ---- */

static double share(unsigned part, unsigned whole) { return whole ? 100.0 * part / whole : 0; }

static void print_windows(const window *windows, unsigned n)
{
    printf("postgres sweep: %llu entries, %llu expired%s, windows of %u s, %d workers; b: %s\n\n",
           (unsigned long long)asked.entries, (unsigned long long)asked.expired, asked.scattered ? " (scattered)" : "",
           asked.seconds, WORKERS, asked.inside ? "one of the eight sweeps" : "once sweep");
    printf("%-10s %12s %12s %14s %14s %12s\n", "window", "messages/s", "swept/s", "longest step s", "lock waits %",
           "vacuum %");
    for (unsigned i = 0; i < n; i++) {
        const window *w = &windows[i];
        printf("%-2u %-7s %12.0f %12.0f %14.3f %14.1f %12.0f\n", i + 1, w->sweeps ? "b" : "a", w->rate,
               w->swept_s > 0 ? w->swept / w->swept_s : 0, w->step_s, share(w->waits, w->samples),
               share(w->vacuums, w->samples));
    }
    printf("\n");
}

static void print_figures(const window *windows, unsigned n, double rest, const sizes s[4])
{
    double ratios[WINDOWS_MAX], quiet[WINDOWS_MAX], beside[WINDOWS_MAX], swept = 0, swept_s = 0, step_s = 0;
    unsigned n_ratios = 0, n_quiet = 0;
    for (unsigned i = 0; i < n; i++) {
        const window *w = &windows[i];
        if (!w->sweeps) quiet[n_quiet++] = w->rate;
        if (!w->sweeps || w->swept_s <= 0) continue;
        swept += w->swept;
        swept_s += w->swept_s;
        step_s = w->step_s > step_s ? w->step_s : step_s;
        if (w->to_s - w->from_s < asked.seconds / 4.0) continue; /* it was over too soon */
        beside[n_ratios] = w->rate;
        ratios[n_ratios++] = w->rate / ((windows[i - 1].rate + windows[i + 1].rate) / 2);
    }
    table t = {.columns = {"PostgreSQL"}, .names = {"postgres"}};
    table_add(&t, "alone", "a  messages per second, without a sweep", 0)->value[0] = scene_median(quiet, n_quiet);
    table_add(&t, "beside", "b  the same beside the sweep", 0)->value[0] =
        n_ratios ? scene_median(beside, n_ratios) : -1;
    row *r = table_add(&t, "beside_vs_alone", "b / a, median", 2);
    r->relation = 'g';
    r->required = 0.8;
    r->value[0] = n_ratios ? scene_median(ratios, n_ratios) : -1;
    r = table_add(&t, "beside_vs_first", "b / the first a, before any vacuum, median", 2);
    r->value[0] = n_ratios ? scene_median(beside, n_ratios) / quiet[0] : -1;
    table_add(&t, "swept", "b  rows swept per second", 0)->value[0] = swept_s > 0 ? swept / swept_s : -1;
    table_add(&t, "swept_alone", "   the rest, with no other work", 0)->value[0] = rest;
    table_add(&t, "step_ms", "b  longest step seen, ms", 0)->value[0] = step_s * 1e3;
    table_add(&t, "autovacuums", "   autovacuums of once_entry meanwhile", 0)->value[0] = s[1].vacuums - s[0].vacuums;
    table_add(&t, "came", "   entries that came meanwhile", 0)->value[0] = s[1].rows - s[0].rows;
    table_add(&t, "grown", "   and by how many MiB the table grew", 0)->value[0] = s[1].heap - s[0].heap;
    table_add(&t, "came_after", "   entries that came after the vacuum", 0)->value[0] = s[3].rows - s[2].rows;
    table_add(&t, "grown_after", "   and by how many MiB the table grew", 0)->value[0] = s[3].heap - s[2].heap;
    if (asked.json) {
        printf("{\"bench\":\"postgres_sweep\"");
        table_print_json(&t);
        printf("}\n");
        return;
    }
    print_windows(windows, n);
    table_print(&t);
    printf("\n");
    static const char *const when[] = {"before", "after the sweep, as autovacuum left it", "after a VACUUM",
                                       "after some more messages"};
    for (int i = 0; i < 4; i++) print_sizes(when[i], &s[i]);
}

static void need_a_disk(PGconn *conn)
{
    struct statfs fs;
    PGresult *result = PQexec(
        conn, "SHOW unix_socket_directories"); /* the data is in the same folder, which only its owner may read */
    if (PQresultStatus(result) != PGRES_TUPLES_OK) bench_die(PQerrorMessage(conn));
    if (statfs(PQgetvalue(result, 0, 0), &fs) != 0) bench_die_errno("cannot look at the server's folder");
    if (fs.f_type == TMPFS_MAGIC) bench_die("the server's folder is in memory; this needs a disk");
    PQclear(result);
}

/* A thousand messages of a real run, whose details are then used for all. */
static void leave_templates(void)
{
    process_result result;
    FILE *to = fopen(scene_path("templates"), "we");
    if (!to) bench_die_errno("cannot write messages");
    for (int i = 0; i < TEMPLATES; i++) fprintf(to, "{\"payment_id\":\"t%d\",\"order_id\":1,\"amount\":1}\n", i);
    if (fclose(to) != 0) bench_die_errno("cannot write messages");
    char line[2 * PATH_MAX];
    snprintf(line, sizeof line, "exec '%s' run --json '%s' < '%s'",
             asked.scene.once ? asked.scene.once : scene_built("once"), scene_path("pipeline.yaml"),
             scene_path("templates"));
    process_exec("templates", (char *const[]){"/bin/sh", "-c", line, NULL}, scene_path("templates.out"), NULL, 1, 1,
                 &result);
    if (result.status == 0) return;
    process_show_log(scene_path("templates.out"));
    bench_die("once run failed");
}

int main(int argc, char **argv)
{
    static window windows[WINDOWS_MAX];
    sizes s[4];
    parse(argc, argv);
    if (!server_start((const char *const[]){NULL})) {
        fprintf(stderr, "bench_postgres_sweep: not measured: no PostgreSQL server is available here; tools/setup bench "
                        "installs it\n");
        return 0;
    }
    scene_open(&asked.scene);
    atexit(kill_all);
    signal(SIGPIPE, SIG_IGN);
    make_database();
    write_config();
    leave_templates();
    PGconn *conn = server_connect(DATABASE);
    need_a_disk(conn);
    forbid_sweeping(conn);
    const double begun_s = bench_now_s();
    fill(conn);
    check_sample(conn);
    fprintf(stderr, "bench_postgres_sweep: filled in %.0f s\n", bench_now_s() - begun_s);

    s[0] = size_now(conn);
    const unsigned n = measure(conn, windows);
    const double rest = sweep_the_rest(conn);
    s[1] = size_now(conn);
    server_say(conn, "VACUUM once_entry");
    s[2] = size_now(conn);
    start_workers();
    process_pause((int)asked.seconds * 1000);
    end_workers();
    s[3] = size_now(conn);
    PQfinish(conn);
    print_figures(windows, n, rest, s);
    return 0;
}
