/* Effect drivers: each carries out the external effect of one handler, inside the runner and on its event loop.
 *
 * Life of a message: `start` (or `ask`) takes the item; it is the driver's until once_runner_finished gives it back,
 * once. Until then item->driver is not NULL, and the driver may keep there what it needs to find the message again.
 *
 * What a driver must report
 *   outcome      how it ended. When that is not certain: ONCE_UNKNOWN, never a guess
 *   started      true as soon as the effect may have begun, and whenever the other side was asked
 *   maybe        the effect may have happened: true with UNKNOWN
 *   run_failure  a status: the effect could not be started, or the next one would end in the same way. The message is
 *                not to blame, and is started again later
 *   delay_ms     RETRY, RELEASE: when to try again; UNKNOWN: not before this; -1: the retry policy decides
 *   result, failure   once_runner_output
 *
 * Thread rule: all of it on the loop's thread. Nothing here may block; effects that block run in threads of their
 * own (effect/threads.h). */
#ifndef ONCE_EFFECT_DRIVER_H
#define ONCE_EFFECT_DRIVER_H

#include <stdint.h>

#include "db/db.h"
#include "effect/runner.h"

typedef struct once_effect_driver once_effect_driver;

typedef struct once_effect_driver_ops {
    /* Begins the effect. There are never more than handler->slots messages at a time. The fields above are set as
     * for an effect that was not begun: RELEASE, not started, delay_ms -1. May finish the item at once. */
    void (*start)(once_effect_driver *driver, once_item *item);
    /* In place of `start` for a question (decision.asks): asks the other side what became of this key, and does nothing
     * else. outcome, delay_ms, result and failure are its answer (once_found, core/policy.h), `started` that it was
     * asked. What is not known for certain is UNKNOWN. `kill` ends a question, too. NULL: no handler of this effect has
     * ONCE_EFFECT_ASKS. */
    void (*ask)(once_effect_driver *driver, once_item *item);
    /* Ends an effect that was started and is not finished. It is finished as always, then or later. */
    void (*kill)(once_effect_driver *driver, once_item *item);
    /* Does what is due: deadlines, restarts. Returns when to call it again (once_runner_now_ms), or ONCE_NEVER. It is
     * called after every group of starts and before every sleep of the loop, so `start` and `ready` may collect what
     * `tick` sends in one write. */
    int64_t (*tick)(once_effect_driver *driver, int64_t now_ms);
    /* Ends everything and frees the driver. Items that were not finished are not reported. */
    void (*close)(once_effect_driver *driver);
} once_effect_driver_ops;

/* Drivers embed this as their first member. */
struct once_effect_driver {
    const once_effect_driver_ops *ops;
    const once_handler_spec *handler;
    once_runner *runner;
};

const once_runner_options *once_runner_options_of(const once_runner *runner);
int64_t once_runner_now_ms(const once_runner *runner); /* stands still while the system is suspended, as commands do */

/* Gives the item back, with its fields set; once_runner_wait returns it. */
void once_runner_finished(once_runner *runner, once_item *item);

/* Copies the result and the reason into item->output (what was there is freed), and sets item->result and
 * item->failure. A result longer than result_max is not kept, because a cut result is a wrong result: it is left empty
 * and logged, and the reason says so when it is empty. A reason is cut after 400 bytes, and its control characters
 * become '?'. False: out of memory; then both are empty. */
bool once_runner_output(once_runner *runner, once_item *item, once_bytes result, once_bytes reason);

/* Handles what is ready now, and does not wait. For `tick` alone. True: on a watch that was not handled nothing had
 * come at *when_ns (once_env_mono_ns), which is set before anything is handled; that may take long. False: something
 * may be left. */
bool once_runner_look(once_runner *runner, int64_t *when_ns);

/* A file descriptor that the loop watches (epoll, level-triggered). */
typedef struct once_watch {
    int fd;  /* set it before once_runner_watch; -1 after once_runner_unwatch */
    bool on; /* the loop's own: registered */
    void (*ready)(struct once_watch *watch, uint32_t events);
} once_watch;

/* Adds the descriptor, or changes its events: EPOLLIN, EPOLLOUT; 0: only errors. */
int once_runner_watch(once_runner *runner, once_watch *watch, uint32_t events, once_error *err);
/* Also from inside a `ready`; an event that is pending is not delivered. Does not close the descriptor. */
void once_runner_unwatch(once_runner *runner, once_watch *watch);

#endif
