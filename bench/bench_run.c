/* `once run` against hand-written consumers on SQLite, for messages whose effect is one INSERT and one UPDATE.
 *
 *     bench_run [--messages N] [--rounds N] [--uuid4 | --uuid7] [--full] [--json] [--once PATH] [--folder DIR]
 *     [--keep]
 *
 *   a  a transaction per message             (peers.h: PEER_CLASSIC; on the first CLASSIC_MESSAGES only, for its rate)
 *   b  batches, a row per key                (PEER_BATCH)
 *   c  batches, the effects alone            (PEER_EFFECT)
 *   d  once run: file, JSON, keys, fingerprints, deduplication, acks
 *   e  only duplicates: parse, look up in b's table
 *   f  only duplicates: once run a second time, on d's store
 *   g  d with one message in a hundred that fails in its first statement; h, in its second
 *
 * They take turns, so that a noisy moment affects all of them; every figure is a median over the rounds, and every
 * ratio is the median of the ratios of each round. Times are whole: opening, schema, the last checkpoint and closing
 * included. Each database is checked afterwards. --full adds ten times as many messages, to see memory and cost grow.
 *
 * Ends with 0 whatever the figures are; 3 when something could not be measured. */
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "peers.h"
#include "scene.h"
#include "table.h"
#include "workload.h"

#include "base/banned.h"

#define CLASSIC_MESSAGES 50000
#define FULL_FACTOR 10
#define FAILING_PERMILLE 10
#define FLAT 1.25 /* a peak that grows by less than this is called flat */

enum { RANDOM, ORDERED, KEYS = TABLE_COLUMNS }; /* how keys are made */
enum { A_CLASSIC, B_BATCH, C_EFFECT, D_ONCE, E_LOOK_UP, F_ONCE_AGAIN, G_FAIL_FIRST, H_FAIL_SECOND, ENTRANTS };

typedef struct options {
    uint64_t messages;
    unsigned rounds;
    bool keys[KEYS], full, json;
    scene_options scene;
} options;

typedef struct column {
    double rate[ENTRANTS][SCENE_ROUNDS_MAX];
    double cpu_us[SCENE_ROUNDS_MAX], peak_mib[SCENE_ROUNDS_MAX], stored_once[SCENE_ROUNDS_MAX],
        stored_batch[SCENE_ROUNDS_MAX];
    workload_sums sums, failing_sums;
} column;

typedef struct growth {
    process_result once, batch, effect;
} growth;

static options opt = {.messages = 1000000, .rounds = 3, .keys = {true, true}};

static const char *file_of(int keys, const char *name)
{
    char full[64];
    snprintf(full, sizeof full, "%s-%s", keys == ORDERED ? "uuid7" : "uuid4", name);
    return scene_path(full);
}

/* ---- parts that run in a process of their own ---- */

typedef struct job {
    workload work;
    workload_sums sums;
    peer_kind kind;
    peer_check check;
    char database[PATH_MAX + 64], messages[PATH_MAX + 64], payments[PATH_MAX + 64];
    uint64_t n;
    volatile uint64_t done;
    double seconds;
    uint64_t expect_payments;
    int64_t expect_amount;
} job;

static void do_write(void *arg)
{
    job *j = arg;
    workload_write(&j->work, j->messages, j->payments, &j->sums);
}

static void do_tables(void *arg)
{
    job *j = arg;
    peer_make_tables(j->database, j->check);
}

static void do_peer(void *arg)
{
    job *j = arg;
    uint64_t n;
    const payment *payments = workload_map(j->payments, &n);
    j->seconds = peer_run(j->kind, j->database, payments, j->n < n ? j->n : n, &j->done);
}

static void do_look_up(void *arg)
{
    job *j = arg;
    j->seconds = peer_look_up(j->database, j->messages, &j->done);
}

static void do_verify(void *arg)
{
    job *j = arg;
    peer_verify(j->database, j->expect_payments, j->expect_amount);
}

static job *the_job; /* shared with the children */

static void set_paths(job *j, int keys, const char *database, const char *messages)
{
    *j = (job){0};
    snprintf(j->database, sizeof j->database, "%s", file_of(keys, database));
    snprintf(j->messages, sizeof j->messages, "%s", file_of(keys, messages));
    snprintf(j->payments, sizeof j->payments, "%s.payments", file_of(keys, messages));
}

static void write_workload(const char *label, int keys, const char *messages, uint64_t n, unsigned failing_permille,
                           workload_sums *sums)
{
    process_result result;
    job *j = the_job;
    set_paths(j, keys, "none", messages);
    j->work = (workload){.messages = n, .seed = 1, .uuid7 = keys == ORDERED, .failing_permille = failing_permille};
    process_run(label, do_write, j, NULL, 0, &result);
    *sums = j->sums;
}

static void make_tables(job *j, peer_check check)
{
    process_result result;
    scene_remove_database(j->database);
    j->check = check;
    process_run("making tables", do_tables, j, NULL, 0, &result);
    sync(); /* what went before is not to be paid by what comes now */
}

static void verify(job *j, uint64_t payments, int64_t amount)
{
    process_result result;
    j->expect_payments = payments;
    j->expect_amount = amount;
    process_run("checking", do_verify, j, NULL, 0, &result);
}

/* ---- peers ---- */

static double run_peer(const char *label, int keys, peer_kind kind, const char *database, const char *messages,
                       uint64_t n, const workload_sums *sums, process_result *result)
{
    job *j = the_job;
    set_paths(j, keys, database, messages);
    make_tables(j, CHECK_NONE);
    j->kind = kind;
    j->n = n;
    process_run(label, do_peer, j, &j->done, n, result);
    if (sums) verify(j, sums->keys, sums->amount);
    return (double)n / j->seconds;
}

static double run_look_up(int keys)
{
    process_result result;
    job *j = the_job;
    set_paths(j, keys, "b.db", "messages");
    sync();
    process_run("e: look up", do_look_up, j, &j->done, opt.messages, &result);
    return (double)opt.messages / j->seconds;
}

/* ---- once ---- */

static void write_config(const char *path, const char *database, const char *messages)
{
    FILE *to = fopen(path, "we");
    if (!to) bench_die_errno("cannot write the config");
    fprintf(to,
            "consumer: payments\n"
            "store: \"sqlite:%s\"\n"
            "source:\n"
            "  file: {path: \"%s\"}\n"
            "key: \"${/payment_id}\"\n"
            "type: \"${/type}\"\n"
            "handlers:\n"
            "  payment.received:\n"
            "    sql:\n"
            "      - INSERT INTO payments(id, order_id, amount) VALUES (:payment_id, :order_id, :amount)\n"
            "      - UPDATE orders SET paid = paid + :amount, last_amount = :amount WHERE id = :order_id\n"
            "  \"*\": {dead: unknown type}\n",
            database, messages);
    if (fclose(to) != 0) bench_die_errno("cannot write the config");
}

/* Runs it on a database that is there. `fresh`: how many messages must be new, `failing` of them dead. */
static double run_once(const char *label, const job *j, uint64_t n, uint64_t fresh, uint64_t failing,
                       process_result *result)
{
    const char *config = scene_path("pipeline.yaml");
    const char *const arguments[] = {"run", "--json", config, NULL};
    write_config(config, j->database, j->messages);
    scene_once(label, arguments, failing ? 1 : 0, j->messages, WORKLOAD_BYTES + 1, n, result);
    if (scene_said("/received") != (int64_t)n || scene_said("/done") != (int64_t)(fresh - failing) ||
        scene_said("/dead") != (int64_t)failing || scene_said("/duplicates") != (int64_t)(n - fresh))
        bench_die("once did not count all messages");
    return (double)n / result->seconds;
}

static double run_once_fresh(const char *label, int keys, const char *database, const char *messages, peer_check check,
                             uint64_t n, const workload_sums *sums, process_result *result)
{
    job *j = the_job;
    set_paths(j, keys, database, messages);
    make_tables(j, check);
    const double rate = run_once(label, j, n, sums->keys, sums->failing, result);
    verify(j, sums->keys - sums->failing, sums->amount);
    return rate;
}

/* ---- rounds ---- */

static void run_round(int keys, unsigned round, column *c)
{
    process_result result;
    const uint64_t n = opt.messages, few = n < CLASSIC_MESSAGES ? n : CLASSIC_MESSAGES;
    c->rate[A_CLASSIC][round] = run_peer("a: classic", keys, PEER_CLASSIC, "a.db", "messages", few, NULL, &result);
    scene_remove_database(file_of(keys, "a.db"));
    c->rate[B_BATCH][round] =
        run_peer("b: batches and rows", keys, PEER_BATCH, "b.db", "messages", n, &c->sums, &result);
    c->rate[C_EFFECT][round] =
        run_peer("c: effects alone", keys, PEER_EFFECT, "c.db", "messages", n, &c->sums, &result);
    const double effect_size = (double)scene_size(file_of(keys, "c.db")),
                 batch_size = (double)scene_size(file_of(keys, "b.db"));
    scene_remove_database(file_of(keys, "c.db"));

    c->rate[D_ONCE][round] = run_once_fresh("d: once run", keys, "d.db", "messages", CHECK_NONE, n, &c->sums, &result);
    c->cpu_us[round] = (result.user_s + result.system_s) * 1e6 / (double)n;
    c->peak_mib[round] = (double)result.peak_kib / 1024;
    c->stored_once[round] = ((double)scene_size(file_of(keys, "d.db")) - effect_size) / (double)c->sums.keys;
    c->stored_batch[round] = (batch_size - effect_size) / (double)c->sums.keys;

    c->rate[E_LOOK_UP][round] = run_look_up(keys);
    scene_remove_database(file_of(keys, "b.db"));
    set_paths(the_job, keys, "d.db", "messages");
    c->rate[F_ONCE_AGAIN][round] = run_once("f: once run again", the_job, n, 0, 0, &result);
    scene_remove_database(file_of(keys, "d.db"));
    if (keys != RANDOM) return;

    c->rate[G_FAIL_FIRST][round] =
        run_once_fresh("g: first statement fails", keys, "g.db", "failing", CHECK_FIRST, n, &c->failing_sums, &result);
    scene_remove_database(file_of(keys, "g.db"));
    c->rate[H_FAIL_SECOND][round] = run_once_fresh("h: second statement fails", keys, "h.db", "failing", CHECK_SECOND,
                                                   n, &c->failing_sums, &result);
    scene_remove_database(file_of(keys, "h.db"));
}

static void run_full(growth *g)
{
    workload_sums sums;
    const uint64_t n = opt.messages * FULL_FACTOR;
    write_workload("writing many messages", RANDOM, "many", n, 0, &sums);
    run_once_fresh("once run, many messages", RANDOM, "many.db", "many", CHECK_NONE, n, &sums, &g->once);
    run_peer("effects alone, many messages", RANDOM, PEER_EFFECT, "many.db", "many", n, NULL, &g->effect);
    run_peer("batches and rows, many messages", RANDOM, PEER_BATCH, "many.db", "many", n, NULL, &g->batch);
    scene_remove_database(file_of(RANDOM, "many.db"));
}

/* ---- figures ---- */

static void add_rate(table *t, const column *columns, int entrant, const char *name, const char *label)
{
    row *r = table_add(t, name, label, 0);
    for (int k = 0; k < KEYS; k++)
        if (opt.keys[k] && columns[k].rate[entrant][0] > 0)
            r->value[k] = scene_median(columns[k].rate[entrant], opt.rounds);
}

static void add_ratio(table *t, const column *columns, int over, int under, char relation, double required,
                      const char *name, const char *label)
{
    row *r = table_add(t, name, label, 2);
    r->relation = relation;
    r->required = required;
    for (int k = 0; k < KEYS; k++)
        if (opt.keys[k] && columns[k].rate[over][0] > 0 && columns[k].rate[under][0] > 0)
            r->value[k] = scene_median_ratio(columns[k].rate[over], columns[k].rate[under], opt.rounds);
}

static void fill(table *t, const column *columns)
{
    add_rate(t, columns, A_CLASSIC, "classic", "a  a transaction per message");
    add_rate(t, columns, B_BATCH, "batch", "b  batches of 1024, a row per key");
    add_rate(t, columns, C_EFFECT, "effect", "c  batches of 1024, the effects alone");
    add_rate(t, columns, D_ONCE, "once", "d  once run");
    add_rate(t, columns, E_LOOK_UP, "look_up", "e  only duplicates: parse and look up in b's table");
    add_rate(t, columns, F_ONCE_AGAIN, "once_again", "f  only duplicates: once run");
    add_rate(t, columns, G_FAIL_FIRST, "once_fail_first", "g  once run, 1 % fail in their first statement");
    add_rate(t, columns, H_FAIL_SECOND, "once_fail_second", "h  once run, 1 % fail in their second statement");
    add_ratio(t, columns, D_ONCE, A_CLASSIC, 'g', 8, "once_vs_classic", "d / a");
    add_ratio(t, columns, D_ONCE, B_BATCH, 'g', 0.9, "once_vs_batch", "d / b");
    add_ratio(t, columns, D_ONCE, C_EFFECT, 'g', 0.55, "once_vs_effect", "d / c");
    add_ratio(t, columns, F_ONCE_AGAIN, E_LOOK_UP, 'g', 0.5, "once_again_vs_look_up", "f / e");
    add_ratio(t, columns, D_ONCE, G_FAIL_FIRST, 'l', 2, "slower_fail_first", "d / g");
    add_ratio(t, columns, D_ONCE, H_FAIL_SECOND, 'l', 2, "slower_fail_second", "d / h");
    row *cpu = table_add(t, "once_cpu_us", "d  CPU per message, microseconds", 1),
        *peak = table_add(t, "once_peak_mib", "d  peak memory, MiB", 1);
    row *stored = table_add(t, "once_stored", "d  bytes in the file per finished key, beyond c", 0);
    row *batch = table_add(t, "batch_stored", "b  the same", 0);
    for (int k = 0; k < KEYS; k++) {
        if (!opt.keys[k]) continue;
        cpu->value[k] = scene_median(columns[k].cpu_us, opt.rounds);
        peak->value[k] = scene_median(columns[k].peak_mib, opt.rounds);
        stored->value[k] = scene_median(columns[k].stored_once, opt.rounds);
        batch->value[k] = scene_median(columns[k].stored_batch, opt.rounds);
    }
}

/* What ten times as many messages add. */
static void fill_full(table *t, const column *columns, const growth *g)
{
    row *many = table_add(t, "once_peak_many_mib", "d  peak memory for 10 x as many messages, MiB", 1);
    row *flat = table_add(t, "once_peak_growth", "   against the peak above", 2);
    many->value[RANDOM] = (double)g->once.peak_kib / 1024;
    flat->value[RANDOM] = many->value[RANDOM] / scene_median(columns[RANDOM].peak_mib, opt.rounds);
    flat->relation = 'l';
    flat->required = FLAT;
}

static double rate_between(const process_result *r, unsigned point)
{
    return 1e6 / (r->point_s[point] - (point ? r->point_s[point - 1] : 0));
}

static void print_growth(const growth *g)
{
    char a[32], b[32], c[32];
    unsigned points = g->once.points;
    if (g->batch.points < points) points = g->batch.points;
    if (g->effect.points < points) points = g->effect.points;
    if (!points) return;
    printf("\n%-12s %12s %24s %24s\n", "million", "d once run", "b batches, a row per key", "c the effects alone");
    for (unsigned i = 0; i < points; i++)
        printf("%-12u %12s %24s %24s\n", i + 1, table_number(rate_between(&g->once, i), 0, a),
               table_number(rate_between(&g->batch, i), 0, b), table_number(rate_between(&g->effect, i), 0, c));
}

static void print_points(const char *name, const process_result *r)
{
    printf(",\"%s\":[", name);
    for (unsigned i = 0; i < r->points; i++) printf("%s%.0f", i ? "," : "", rate_between(r, i));
    printf("]");
}

static void print_settings(const char *settings)
{
    char buffer[32];
    if (opt.json) {
        printf("{\"messages\":%llu,\"rounds\":%u,\"settings\":\"%s\"", (unsigned long long)opt.messages, opt.rounds,
               settings);
        return;
    }
    printf("\nonce run: %s messages of %d bytes, 20 %% duplicates, one INSERT and one UPDATE each\n",
           table_number((double)opt.messages, 0, buffer), WORKLOAD_BYTES);
    printf("%s; medians of %u interleaved rounds; a to h in messages per second\n\n", settings, opt.rounds);
}

static void print_figures(const table *t)
{
    if (opt.json) table_print_json(t);
    else table_print(t);
    fflush(stdout);
}

static void print_full(const table *t, const growth *g)
{
    if (!opt.json) printf("\n");
    print_figures(t);
    if (!opt.json) {
        print_growth(g);
        return;
    }
    print_points("growth_once", &g->once);
    print_points("growth_batch", &g->batch);
    print_points("growth_effect", &g->effect);
}

/* ---- command line ---- */

static __attribute__((noreturn)) void usage(int status)
{
    fprintf(status ? stderr : stdout,
            "usage: bench_run [OPTION...]\n"
            "  --messages N   messages of a run (1000000)\n"
            "  --rounds N     rounds, at most %d (3)\n"
            "  --uuid4        random keys only; --uuid7: time-ordered keys only (both, side by side)\n"
            "  --full         also ten times as many messages (random keys), to see memory and cost grow\n"
            "  --json         one object on standard output instead of the table\n"
            "  --once PATH    the command to measure (the one of this build)\n"
            "  --folder DIR   where the temporary folder is made (TMPDIR, or /tmp)\n"
            "  --keep         leave that folder\n",
            SCENE_ROUNDS_MAX);
    exit(status);
}

static void parse_options(int argc, char **argv)
{
    enum { MESSAGES = 256, ROUNDS, UUID4, UUID7, FULL, JSON, ONCE, FOLDER, KEEP, HELP };
    static const struct option known[] = {
        {"messages", required_argument, NULL, MESSAGES},
        {"rounds", required_argument, NULL, ROUNDS},
        {"uuid4", no_argument, NULL, UUID4},
        {"uuid7", no_argument, NULL, UUID7},
        {"full", no_argument, NULL, FULL},
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
        case MESSAGES: opt.messages = strtoull(optarg, NULL, 10); break;
        case ROUNDS: opt.rounds = (unsigned)strtoul(optarg, NULL, 10); break;
        case UUID4: opt.keys[ORDERED] = false; break;
        case UUID7: opt.keys[RANDOM] = false; break;
        case FULL: opt.full = true; break;
        case JSON: opt.json = true; break;
        case ONCE: opt.scene.once = optarg; break;
        case FOLDER: opt.scene.folder = optarg; break;
        case KEEP: opt.scene.keep = true; break;
        case HELP: usage(0);
        default: usage(2);
        }
    }
    if (opt.full && !opt.keys[RANDOM]) usage(2); /* that part has random keys */
    if (optind < argc || opt.messages < 1000 || opt.rounds < 1 || opt.rounds > SCENE_ROUNDS_MAX ||
        !(opt.keys[RANDOM] || opt.keys[ORDERED]))
        usage(2);
}

static void do_describe(void *arg) { peer_describe(scene_path("describe.db"), arg, 200); }

int main(int argc, char **argv)
{
    static column columns[KEYS];
    static growth grown;
    static table results = {.columns = {"random keys", "time-ordered"}, .names = {"uuid4", "uuid7"}};
    static table more = {.columns = {"random keys", "time-ordered"}, .names = {"uuid4", "uuid7"}};
    process_result result;
    parse_options(argc, argv);
    scene_open(&opt.scene);
    the_job = process_share(sizeof *the_job);
    char *settings = process_share(200);
    process_run("looking around", do_describe, settings, NULL, 0, &result);
    for (int k = 0; k < KEYS; k++)
        if (opt.keys[k]) write_workload("writing messages", k, "messages", opt.messages, 0, &columns[k].sums);
    if (opt.keys[RANDOM])
        write_workload("writing failing messages", RANDOM, "failing", opt.messages, FAILING_PERMILLE,
                       &columns[RANDOM].failing_sums);
    for (unsigned round = 0; round < opt.rounds; round++)
        for (int k = 0; k < KEYS; k++)
            if (opt.keys[k]) run_round(k, round, &columns[k]);
    print_settings(settings);
    fill(&results, columns);
    print_figures(&results);
    if (opt.full) {
        run_full(&grown);
        fill_full(&more, columns, &grown);
        print_full(&more, &grown);
    }
    if (opt.json) printf("}\n");
    return 0;
}
