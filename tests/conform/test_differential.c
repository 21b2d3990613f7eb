/* The differential run with fixed seeds, and the proof that it finds planted bugs. With arguments it is the program
 * itself: test_differential [--seeds N] [--seed S] [--steps N] memory:|sqlite:|postgres:|redis://...?name= */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/plant.h"
#include "differential.h"
#include "postgres.h"
#include "redisserver.h"

static char report[16384];

static void agree(const char *url, uint64_t seeds, unsigned steps)
{
    differential_counts counts = {0};
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        const differential_options options = {.url = url, .seed = seed, .steps = steps};
        if (!differential_run(&options, &counts, report, sizeof report)) fail_msg("%s", report);
    }
    if (differential_print(&counts, false)) {
        differential_print(&counts, true);
        fail_msg("a possible answer never came");
    }
}

static void memory_agrees_with_itself(void **state)
{
    (void)state;
    agree("memory:", 20, 2000);
}

static void sqlite_agrees_with_memory(void **state)
{
    (void)state;
    agree("sqlite:", 12, 1000);
}

static void postgres_agrees_with_memory(void **state)
{
    (void)state;
    const char *why;
    if (!test_postgres_url(&why)) skip();
    agree("postgres:", 8, 800);
}

static void redis_agrees_with_memory(void **state)
{
    (void)state;
    redis_server server;
    char url[200];
    if (!redis_server_start(&server)) {
        print_message("no redis-server, or no hiredis\n");
        skip();
    }
    snprintf(url, sizeof url, "%s/0?name=", server.url);
    agree(url, 12, 1000);
    redis_server_stop(&server);
}

static void finds(enum once_plant bug)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        differential_counts counts = {0};
        const differential_options options = {.url = "memory:", .seed = seed, .steps = 2000, .plant = bug};
        if (!differential_run(&options, &counts, report, sizeof report)) return;
    }
    fail_msg("the planted bug was not found");
}

#define FINDS(bug)                                                                                                     \
    static void finds_##bug(void **state)                                                                              \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        finds(ONCE_PLANT_##bug);                                                                                       \
    }
FINDS(no_fence)
FINDS(release_blames)
FINDS(seen_first)
FINDS(orphan_lost)
FINDS(dead_runs)
FINDS(lane_ignored)
FINDS(natural_remembered)
FINDS(release_forgets)
FINDS(unknown_free)
FINDS(lost_unseen)

int main(int argc, char **argv)
{
    if (argc > 1) return differential_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_agrees_with_itself),
        cmocka_unit_test(sqlite_agrees_with_memory),
        cmocka_unit_test(postgres_agrees_with_memory),
        cmocka_unit_test(redis_agrees_with_memory),
        cmocka_unit_test(finds_no_fence),
        cmocka_unit_test(finds_release_blames),
        cmocka_unit_test(finds_seen_first),
        cmocka_unit_test(finds_orphan_lost),
        cmocka_unit_test(finds_dead_runs),
        cmocka_unit_test(finds_lane_ignored),
        cmocka_unit_test(finds_natural_remembered),
        cmocka_unit_test(finds_release_forgets),
        cmocka_unit_test(finds_unknown_free),
        cmocka_unit_test(finds_lost_unseen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
