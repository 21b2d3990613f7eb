/* Dead letters back to work: how fast, and in how much memory, at two sizes.
 *
 *     bench_replay [--messages N] [--full] [--rounds N] [--json] [--once PATH] [--folder DIR] [--keep]
 *
 *   r  once replay --all
 *   y  once replay --all --dry-run, on the same store before that
 *   w  once run, which takes what was replayed from the store and does it
 *
 * --messages is the larger size, the smaller one is a third of it; both should fill the page cache of SQLite (48 MiB), or the peak
 * grows with that. Letters are made by `once run` with an effect that fails for good, which is not measured; random keys of 32 bytes,
 * bodies of about 300. Figures are medians over the rounds. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "scene.h"
#include "table.h"

#include "base/banned.h"

enum { SMALL, LARGE, SIZES = TABLE_COLUMNS };
enum { R_REPLAY, Y_DRY, W_WORK, ENTRANTS };

#define FLAT 1.25 /* a peak that grows by less than this is called flat */

static scene_asked opt = {.messages = 300000, .full_messages = 1000000, .rounds = 3};

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
        fprintf(to, "{\"id\":\"%016llx%016llx\",\"amount\":%llu,\"note\":\"%0200llu\"}\n", (unsigned long long)((i + 1) * 0x9e3779b97f4a7c15u),
                (unsigned long long)(i * 0xbf58476d1ce4e5b9u), (unsigned long long)(i % 1000), (unsigned long long)i);
    if (fclose(to) != 0) bench_die_errno("cannot write messages");
}

static void write_config(void)
{
    char text[4 * PATH_MAX];
    snprintf(text, sizeof text,
             "consumer: payments\n"
             "store: \"sqlite:%s\"\n"
             "source: {file: {path: \"%s\"}}\n"
             "key: \"${/id}\"\n"
             "handler:\n"
             "  sql: [{do: \"INSERT INTO t(id, amount) SELECT :id, :amount FROM gate WHERE is_open\", rows: 1, else: dead}]\n",
             scene_path("replay.db"), scene_path("messages"));
    scene_write_file(scene_path("pipeline.yaml"), text);
}

/* Stores full of dead letters, one of each size, to be copied for each round. */
static void make_letters(int size)
{
    process_result result;
    uint64_t n = letters_of(size);
    const char *const arguments[] = {"run", "--json", scene_path("pipeline.yaml"), NULL};
    process_run("writing messages", write_messages, &n, NULL, 0, &result);
    scene_remove_database(scene_path("replay.db"));
    scene_execute(scene_path("replay.db"), "CREATE TABLE t(id TEXT, amount INTEGER); CREATE TABLE gate(is_open INTEGER); INSERT INTO gate VALUES (0)");
    scene_once("making letters", arguments, 1, NULL, 0, n, &result);
    if (scene_said("/dead") != (int64_t)n) bench_die("not every message became a dead letter");
    scene_copy_file(scene_path("replay.db"), scene_path(size == LARGE ? "large.db" : "small.db"));
}

static void measure(figures *f, unsigned round, int entrant, const char *label, const char *const *arguments, uint64_t n)
{
    process_result result;
    scene_once(label, arguments, 0, NULL, 0, n, &result);
    f->rate[entrant][round] = (double)n / result.seconds;
    f->peak_mib[entrant][round] = (double)result.peak_kib / 1024;
}

static void run_round(figures *f, unsigned round, int size)
{
    const char *config = scene_path("pipeline.yaml");
    const char *const dry[] = {"replay", config, "--all", "--dry-run", NULL}, *const replay[] = {"replay", config, "--all", NULL};
    const char *const run[] = {"run", "--json", config, NULL};
    const uint64_t n = letters_of(size);
    scene_remove_database(scene_path("replay.db"));
    scene_copy_file(scene_path(size == LARGE ? "large.db" : "small.db"), scene_path("replay.db"));
    scene_write_file(scene_path("messages"), "");
    scene_execute(scene_path("replay.db"), "UPDATE gate SET is_open = 1");
    measure(f, round, Y_DRY, "dry run", dry, n);
    measure(f, round, R_REPLAY, "replay", replay, n);
    measure(f, round, W_WORK, "working", run, n);
    if (scene_said("/done") != (int64_t)n || scene_said("/resumed") != (int64_t)n) bench_die("not every letter went back to work");
}

static void add(table *t, const figures *f, int entrant, const char *name, const char *label)
{
    row *r = table_add(t, name, label, 0);
    for (int k = 0; k < SIZES; k++) r->value[k] = scene_median(f[k].rate[entrant], opt.rounds);
}

static void add_peak(table *t, const figures *f, int entrant, const char *name, const char *label)
{
    row *r = table_add(t, name, label, 1);
    for (int k = 0; k < SIZES; k++) r->value[k] = scene_median(f[k].peak_mib[entrant], opt.rounds);
}

static void add_growth(table *t, const figures *f, int entrant, const char *name, const char *label)
{
    row *r = table_add(t, name, label, 2);
    r->relation = 'l';
    r->required = FLAT;
    r->value[LARGE] = scene_median_ratio(f[LARGE].peak_mib[entrant], f[SMALL].peak_mib[entrant], opt.rounds);
}

int main(int argc, char **argv)
{
    static figures f[SIZES];
    static char small[32], large[32], buffer[32];
    scene_parse(argc, argv, &opt);
    scene_open(&opt.scene);
    write_config();
    for (int size = 0; size < SIZES; size++) make_letters(size);
    for (unsigned round = 0; round < opt.rounds; round++)
        for (int size = 0; size < SIZES; size++) run_round(&f[size], round, size);
    snprintf(small, sizeof small, "%s", table_number((double)letters_of(SMALL), 0, buffer));
    snprintf(large, sizeof large, "%s", table_number((double)letters_of(LARGE), 0, buffer));
    table results = {.columns = {small, large}, .names = {"small", "large"}};
    add(&results, f, R_REPLAY, "replay", "r  once replay --all");
    add(&results, f, Y_DRY, "dry_run", "y  once replay --all --dry-run");
    add(&results, f, W_WORK, "work", "w  once run afterwards");
    add_peak(&results, f, R_REPLAY, "replay_peak_mib", "r  peak memory, MiB");
    add_peak(&results, f, Y_DRY, "dry_run_peak_mib", "y  peak memory, MiB");
    add_peak(&results, f, W_WORK, "work_peak_mib", "w  peak memory, MiB");
    add_growth(&results, f, R_REPLAY, "replay_peak_growth", "r  peak against that of the smaller size");
    add_growth(&results, f, Y_DRY, "dry_run_peak_growth", "y  the same");
    if (opt.json) {
        printf("{\"letters\":%llu,\"rounds\":%u", (unsigned long long)opt.messages, opt.rounds);
        table_print_json(&results);
        printf("}\n");
        return 0;
    }
    printf("\nreplay: dead letters per second and peak memory at two sizes; medians of %u interleaved rounds\n\n", opt.rounds);
    table_print(&results);
    return 0;
}
