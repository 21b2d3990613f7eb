/* The runner carries out external effects (commands, callbacks, SQL in another database), many at a time, beside the
 * store's transactions.
 *
 *   once_runner_start   begins effects; never blocks
 *   once_runner_wait    returns effects that ended, in any order
 *
 * An item comes back with its outcome and `started`. Unknown is an outcome here: the machine decides whether it is held
 * or tried again. Result and reason are in item->output (malloc; once_runner_output).
 *
 * Thread rule: one thread owns the runner and calls everything but once_runner_wake. It is an event loop over the pipes
 * of all children, without a thread for each process. Callbacks and SQL run in threads of their own. */
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
    once_cancel opening; /* ends once_runner_open while it waits for a server */
} once_runner_options;

/* Whether a handler of the spec has an external effect. */
bool once_runner_needed(const once_spec *spec);

/* Loads the modules of effects, looks up every command, reads every secret and connects to every database. So a missing
 * command, a variable that cannot be read, a callback that is not registered and a wrong statement are reported before
 * the first message, as file:line. Starts no process. */
int once_runner_open(const once_runner_options *options, once_runner **out, once_error *err);
/* Kills the commands that still run, and waits for callbacks to return. NULL is fine. */
void once_runner_close(once_runner *runner);

/* The database of a handler with SQL in another database, for `once check`, while nothing runs; NULL for all others. */
once_db *once_runner_db(once_runner *runner, const once_handler_spec *handler);

void once_runner_start(once_runner *runner, once_item *const *items, size_t n);
/* Ends effects. A command is killed with its process group: the item comes back as unknown, or as release when it
 * had not begun. A callback cannot be killed: its once_call_extend returns ONCE_E_FENCED from now on, and the
 * outcome that it returns counts. SQL is rolled back: the item comes back as release, or as unknown when its COMMIT
 * had been sent. Items that are back already are ignored. */
void once_runner_kill(once_runner *runner, once_item *const *items, size_t n);
/* Waits for up to wait_ms (ONCE_NEVER: no limit) until an effect ended or once_runner_wake was called. Puts up to `max`
 * items that ended into `out`, and returns how many. */
size_t once_runner_wait(once_runner *runner, int64_t wait_ms, once_item **out, size_t max);
/* A once_runner_wait returns, or the next one does not wait. Any thread. */
void once_runner_wake(once_runner *runner);

#endif
