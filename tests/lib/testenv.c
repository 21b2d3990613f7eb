#include "testenv.h"

#include <assert.h>
#include <string.h>

uint64_t test_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static int64_t fake_wall_ms(void *self) { return ((test_env *)self)->wall_ms; }
static int64_t fake_boot_ms(void *self) { return ((test_env *)self)->boot_ms; }
static uint64_t fake_boot_id(void *self) { return ((test_env *)self)->boot_id; }
static int64_t fake_mono_ns(void *self) { return ((test_env *)self)->boot_ms * 1000000; }
static void fake_sleep_ms(void *self, int64_t ms) { test_env_pass(self, ms > 0 ? ms : 0); }

static void fake_random(void *self, void *out, size_t len)
{
    test_env *world = self;
    unsigned char *at = out;
    while (len > 0) {
        const uint64_t bits = test_random(&world->state);
        const size_t n = len < sizeof bits ? len : sizeof bits;
        memcpy(at, &bits, n);
        at += n;
        len -= n;
    }
}

static void fake_who(void *self, char out[ONCE_WHO_MAX + 1])
{
    const test_env *world = self;
    assert(strlen(world->who) <= ONCE_WHO_MAX);
    memcpy(out, world->who, strlen(world->who) + 1);
}

void test_env_init(test_env *world, uint64_t seed)
{
    const once_env *real = once_env_real();
    *world = (test_env){.env = *real, .wall_ms = TEST_EPOCH_MS, .boot_ms = TEST_BOOT_MS, .boot_id = 1, .state = seed};
    assert(!real->self); /* the functions for files do without it */
    world->who = "tester@world:1";
    world->env.self = world;
    world->env.wall_ms = fake_wall_ms;
    world->env.boot_ms = fake_boot_ms;
    world->env.boot_id = fake_boot_id;
    world->env.mono_ns = fake_mono_ns;
    world->env.random = fake_random;
    world->env.sleep_ms = fake_sleep_ms;
    world->env.who = fake_who;
}

void test_env_pass(test_env *world, int64_t ms)
{
    assert(ms >= 0);
    world->wall_ms += ms;
    world->boot_ms += ms;
}

void test_env_jump(test_env *world, int64_t ms) { world->wall_ms += ms; }

void test_env_reboot(test_env *world, int64_t off_ms)
{
    assert(off_ms >= 0);
    world->wall_ms += off_ms;
    world->boot_ms = 5000;
    world->boot_id++;
}
