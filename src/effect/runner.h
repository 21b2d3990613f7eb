/* The runner: they carry out external effects (commands, callbacks, SQL in another database), many at a time, beside
 * the store's transactions.
 *
 *   once_runner_start   items begin; nothing blocks
 *   once_runner_wait    items that ended, in any order
 *
 * What comes back has its outcome, and `started`. Unknown is an outcome here: whether that means hold or retry is the
 * machine's to decide. Results and reasons are in item->output (malloc; once_runner_output).
 *
 * One thread owns the runner and calls everything but once_runner_wake: an event loop over the pipes of all children,
 * without a thread per process. Callbacks and SQL run in threads of their own. */
#ifndef ONCE_EFFECT_RUNNER_H
#define ONCE_EFFECT_RUNNER_H

#include "base/cancel.h"
#include "base/env.h"
#include "core/item.h"
#include "core/outward.h"
#include "db/db.h"
#include "once/handle.h"

typedef struct once_runner once_runner;

/* A C function that the program registered for `callback: NAME`. */
typedef struct once_runner_callback {
    const char *name;
    once_callback *function;
    void *user;
} once_runner_callback;

typedef struct once_runner_options {
    const once_spec *spec;
    const once_env *env;
    once_keying keying; /* the bytes of the salt live as long as the runner */
    const once_runner_callback *callbacks;
    size_t n_callbacks;
    once_cancel opening; /* of whoever opens them, while a server is waited for */
} once_runner_options;

/* Whether the spec has an external effect at all. */
bool once_runner_needed(const once_spec *spec);

/* Looks up every command, reads every secret, connects to every database: a command that is not there, a variable that
 * cannot be read, a callback that nobody registered and a statement that cannot be prepared are found before the first
 * message, as file:line. Starts no process. */
int once_runner_open(const once_runner_options *options, once_runner **out, once_error *err);
void once_runner_close(
    once_runner *runner); /* kills the commands that still run, waits for the callbacks; NULL is fine */

/* The database of a handler with SQL elsewhere, to ask about it while nothing runs; NULL for all others. */
once_db *once_runner_db(once_runner *runner, const once_handler_spec *handler);

void once_runner_start(once_runner *runner, once_item *const *items, size_t n);
/* The process group of each is killed: it comes back as unknown, or as release when it had not begun. A callback cannot
 * be killed; its once_call_extend answers E_FENCED from now on, and what it says when it returns counts. SQL is rolled
 * back and comes back as release; when its COMMIT had been sent, as unknown. Items that are back already are ignored.
 */
void once_runner_kill(once_runner *runner, once_item *const *items, size_t n);
/* Waits for up to wait_ms (ONCE_NEVER: no limit) until something ended or somebody woke us, and returns how many of
 * `max` items are in `out`. */
size_t once_runner_wait(once_runner *runner, int64_t wait_ms, once_item **out, size_t max);
void once_runner_wake(once_runner *runner); /* any thread */

#endif
