/* An environment that a test controls: clocks that move only when the test moves them, random bytes from a seed, real
 * files.
 *
 * `wall_ms` and `boot_ms` may also be set directly. Two worlds with the same seed give the same random bytes.
 *
 * Thread rule: one thread at a time. */
#ifndef ONCE_TESTS_TESTENV_H
#define ONCE_TESTS_TESTENV_H

#include "base/env.h"

#define TEST_EPOCH_MS INT64_C(1700000000000) /* where the wall clock begins */
#define TEST_BOOT_MS 60000                   /* and the boot clock */

typedef struct test_env {
    once_env env; /* hand out &world->env; its `self` is this struct, which must not move */
    int64_t wall_ms, boot_ms;
    uint64_t boot_id;
    uint64_t state;  /* of the random generator */
    const char *who; /* what a handle that is opened from now on says that it is */
} test_env;

void test_env_init(test_env *world, uint64_t seed);
void test_env_pass(test_env *world, int64_t ms);       /* time passes on all clocks */
void test_env_jump(test_env *world, int64_t ms);       /* somebody sets the wall clock, forward or back */
void test_env_reboot(test_env *world, int64_t off_ms); /* switched off for so long; the boot clock begins again */

/* A generator for the test's own choices: splitmix64, every seed is good. */
uint64_t test_random(uint64_t *state);

#endif
