/* What lanes cost, and whether their number matters: the same messages in 10 lanes and in 100,000, in order of arrival
 * (`order`) and with versions (`order` and `version`), through `once run`.
 *
 *     bench_lanes [--messages N] [--full] [--rounds N] [--json] [--once PATH] [--folder DIR] [--keep]
 *
 * The effect is the one of bench_run: an INSERT into a table with a random primary key and an UPDATE in a table of
 * 10,000 rows, whatever the number of lanes. Messages of all lanes are mixed at random. Runs take turns; figures are
 * medians over the rounds, and ratios medians of the ratios of each round. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "peers.h"
#include "scene.h"
#include "table.h"
#include "workload.h"

#include "base/banned.h"

enum { NO_LANES, FEW, MANY, ENTRANTS };
enum { ARRIVAL, VERSIONED, KINDS = TABLE_COLUMNS };

#define MANY_LANES 100000

static const uint64_t lanes_of[ENTRANTS] = {0, 10, MANY_LANES};

static scene_asked opt = {.messages = 200000, .full_messages = 1000000, .rounds = 3};

/* SplitMix64: the same messages in every run. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void write_messages(void *arg)
{
    const uint64_t lanes = *(const uint64_t *)arg;
    uint64_t *version = calloc(lanes, sizeof *version), state = lanes;
    FILE *to = fopen(scene_path("messages"), "we");
    if (!to || !version) bench_die_errno("cannot write messages");
    for (uint64_t i = 0; i < opt.messages; i++) {
        const uint64_t a = next_random(&state), b = next_random(&state), lane = next_random(&state) % lanes;
        fprintf(to,
                "{\"payment_id\":\"%016llx%016llx\",\"customer\":\"customer-%llu\",\"version\":%llu,\"order_id\":%llu,"
                "\"amount\":%llu,"
                "\"currency\":\"EUR\",\"method\":\"card\",\"note\":\"one of many payments of this customer\"}\n",
                (unsigned long long)a, (unsigned long long)b, (unsigned long long)lane,
                (unsigned long long)++version[lane], (unsigned long long)(a % WORKLOAD_ORDERS + 1),
                (unsigned long long)(b % 10000));
    }
    free(version);
    if (fclose(to) != 0) bench_die_errno("cannot write messages");
}

static void make_tables(void *arg) { peer_make_tables(arg, CHECK_NONE); }

static void write_config(const char *path, int kind, int entrant)
{
    char text[4 * PATH_MAX];
    snprintf(text, sizeof text,
             "consumer: payments\n"
             "store: \"sqlite:%s\"\n"
             "source: {file: {path: \"%s\"}}\n"
             "key: \"${/payment_id}\"\n"
             "%s%s"
             "handler:\n"
             "  sql:\n"
             "    - INSERT INTO payments(id, order_id, amount) VALUES (:payment_id, :order_id, :amount)\n"
             "    - UPDATE orders SET paid = paid + :amount, last_amount = :amount WHERE id = :order_id\n",
             scene_path("lanes.db"), scene_path("messages"), entrant == NO_LANES ? "" : "order: \"${/customer}\"\n",
             kind == VERSIONED && entrant != NO_LANES ? "version: \"${/version}\"\n" : "");
    scene_write_file(path, text);
}

static double run(int kind, int entrant)
{
    process_result result;
    char *database = (char *)(uintptr_t)scene_path("lanes.db");
    const char *const arguments[] = {"run", "--json", scene_path("pipeline.yaml"), NULL};
    uint64_t lanes = entrant == NO_LANES ? MANY_LANES : lanes_of[entrant];
    process_run("writing messages", write_messages, &lanes, NULL, 0, &result);
    scene_remove_database(database);
    process_run("making tables", make_tables, database, NULL, 0, &result);
    write_config(arguments[2], kind, entrant);
    scene_once(entrant == NO_LANES ? "no lanes"
               : entrant == FEW    ? "10 lanes"
                                   : "100,000 lanes",
               arguments, 0, NULL, 0, opt.messages, &result);
    if (scene_said("/done") != (int64_t)opt.messages) bench_die("not every message took effect");
    return (double)opt.messages / result.seconds;
}

static void add(table *t, double rate[KINDS][ENTRANTS][SCENE_ROUNDS_MAX], int entrant, const char *name,
                const char *label)
{
    row *r = table_add(t, name, label, 0);
    for (int k = 0; k < KINDS; k++) r->value[k] = scene_median(rate[k][entrant], opt.rounds);
}

static void add_ratio(table *t, double rate[KINDS][ENTRANTS][SCENE_ROUNDS_MAX], int over, int under, double at_most,
                      const char *name, const char *label)
{
    row *r = table_add(t, name, label, 2);
    if (at_most > 0) r->relation = 'l';
    r->required = at_most;
    for (int k = 0; k < KINDS; k++) r->value[k] = scene_median_ratio(rate[k][over], rate[k][under], opt.rounds);
}

int main(int argc, char **argv)
{
    static double rate[KINDS][ENTRANTS][SCENE_ROUNDS_MAX];
    static table results = {.columns = {"by arrival", "versioned"}, .names = {"arrival", "versioned"}};
    char count[32];
    scene_parse(argc, argv, &opt);
    scene_open(&opt.scene);
    for (unsigned round = 0; round < opt.rounds; round++)
        for (int kind = 0; kind < KINDS; kind++)
            for (int entrant = 0; entrant < ENTRANTS; entrant++) rate[kind][entrant][round] = run(kind, entrant);
    add(&results, rate, NO_LANES, "no_lanes", "n  without lanes");
    add(&results, rate, FEW, "few", "f  in 10 lanes");
    add(&results, rate, MANY, "many", "m  in 100,000 lanes");
    add_ratio(&results, rate, FEW, MANY, 1.5, "few_vs_many", "f / m");
    add_ratio(&results, rate, NO_LANES, FEW, 0, "none_vs_few", "n / f");
    if (opt.json) {
        printf("{\"messages\":%llu,\"rounds\":%u", (unsigned long long)opt.messages, opt.rounds);
        table_print_json(&results);
        printf("}\n");
        return 0;
    }
    printf("\nlanes: %s messages, one INSERT and one UPDATE each; medians of %u interleaved rounds; messages per "
           "second\n\n",
           table_number((double)opt.messages, 0, count), opt.rounds);
    table_print(&results);
    return 0;
}
