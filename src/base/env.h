/* The environment: clocks, random numbers, sleep, files, and the identity of this process. Tests and the simulator
 * replace it.
 *
 * Nothing below src/runtime and cli/ reads a clock, a random device or a file except through an environment.
 *
 * Which clock: others count on while this system is suspended. So what they count (a lease, the visibility of a
 * delivery, the timeout of a broker, how long a server keeps a connection) is compared with `boot_ms`. What this system
 * does itself (how long a command or a statement runs, how long a file has not grown) is measured with `mono_ns`.
 *
 * Thread rule: the real environment may be used from every thread. */
#ifndef ONCE_BASE_ENV_H
#define ONCE_BASE_ENV_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "once/types.h"

typedef struct once_env once_env;

/* The identity of a process, by which other processes can tell whether it still runs. */
typedef struct once_process {
    uint64_t machine;      /* the boot of the system, and its pid and time namespaces; 0: not known */
    uint64_t pid, started; /* its number there, and when it started, in ticks of that system; 0: not known */
} once_process;

#define ONCE_WHO_MAX 100 /* bytes of "user@host:pid" */

struct once_env {
    void *self;

    int64_t (*wall_ms)(void *self);  /* UTC; may jump either way */
    int64_t (*boot_ms)(void *self);  /* since the boot, suspended or not; never jumps, the same for all processes */
    uint64_t (*boot_id)(void *self); /* another one after a reboot */
    int64_t (*mono_ns)(void *self);  /* stands still while the system is suspended */
    void (*random)(void *self, void *out, size_t len); /* unpredictable; cannot fail */
    void (*sleep_ms)(void *self, int64_t ms);

    /* Files, with the semantics of the system calls; -1 and errno on failure. `read` and `write` may be short. */
    int (*open)(void *self, const char *path, int flags, int mode);
    ssize_t (*read)(void *self, int fd, void *out, size_t len);
    ssize_t (*write)(void *self, int fd, const void *data, size_t len);
    int (*close)(void *self, int fd);

    void (*who)(void *self, char out[ONCE_WHO_MAX + 1]);      /* "user@host:pid" of this process */
    void (*process)(void *self, once_process *out);           /* the identity of this process */
    bool (*is_gone)(void *self, const once_process *process); /* it has certainly ended; false if that is not known */
};

const once_env *once_env_real(void);

static inline int64_t once_env_wall_ms(const once_env *env) { return env->wall_ms(env->self); }
static inline int64_t once_env_boot_ms(const once_env *env) { return env->boot_ms(env->self); }
static inline uint64_t once_env_boot_id(const once_env *env) { return env->boot_id(env->self); }
static inline int64_t once_env_mono_ns(const once_env *env) { return env->mono_ns(env->self); }
static inline void once_env_random(const once_env *env, void *out, size_t len) { env->random(env->self, out, len); }
static inline void once_env_sleep_ms(const once_env *env, int64_t ms) { env->sleep_ms(env->self, ms); }
static inline void once_env_who(const once_env *env, char out[ONCE_WHO_MAX + 1]) { env->who(env->self, out); }
static inline once_process once_env_process(const once_env *env)
{
    once_process process;
    env->process(env->self, &process);
    return process;
}
static inline bool once_env_is_gone(const once_env *env, const once_process *process)
{
    return env->is_gone(env->self, process);
}
uint64_t once_env_random_u64(const once_env *env);

#endif
