/* Inside the runner: one driver for each handler with an external effect, and the loop they share. All on the loop's
 * thread. */
#ifndef ONCE_EFFECT_DRIVER_H
#define ONCE_EFFECT_DRIVER_H

#include <stdint.h>

#include "db/db.h"
#include "effect/runner.h"

typedef struct once_effect_driver once_effect_driver;

typedef struct once_effect_driver_ops {
    /* Never more than handler->slots at a time. item->driver is not NULL from here until once_runner_finished; each
     * kind may keep in it what it needs to find the item again. Outcome, delay_ms (-1), maybe, started, not_started are
     * set as for one that was not begun. */
    void (*start)(once_effect_driver *driver, once_item *item);
    /* Instead of `start`, of an item that asks (decision.asks): nothing is done but asking the other side what became
     * of this key; outcome, delay_ms, result and reason say what it answered (once_found, core/policy.h), and `started`
     * that it was asked. What is not known for certain is UNKNOWN. `kill` ends it like an effect. NULL: no handler of
     * this kind has ONCE_EFFECT_ASKS. */
    void (*ask)(once_effect_driver *driver, once_item *item);
    void (*kill)(once_effect_driver *driver, once_item *item); /* of one that was started and is not finished */
    /* What is due: deadlines, restarts. Returns when to call again (loop's clock), ONCE_NEVER: not by itself. Also
     * called once before every sleep of the loop: what `start` and `ready` left for one large write goes out here. */
    int64_t (*tick)(once_effect_driver *driver, int64_t now_ms);
    void (*close)(once_effect_driver *driver); /* ends everything; items that were not back are not reported any more */
} once_effect_driver_ops;

struct once_effect_driver { /* first member of each kind */
    const once_effect_driver_ops *ops;
    const once_handler_spec *handler;
    once_runner *runner;
};

const once_runner_options *once_runner_options_of(const once_runner *runner);
int64_t once_runner_now_ms(const once_runner *runner); /* monotonic */

/* The item is over; once_runner_wait will give it out. Its fields are set. */
void once_runner_finished(once_runner *runner, once_item *item);

/* Result and reason of an item, copied into item->output (what was there is freed). A result longer than result_max is
 * not kept, because a cut result is a wrong result: it is left empty, logged, and said in the reason when that is
 * empty. A reason is cut after 400 bytes; control characters in it become '?'. False: memory is out; then both are
 * empty. */
bool once_runner_output(once_runner *runner, once_item *item, once_bytes result, once_bytes reason);

/* File descriptors (epoll, level-triggered). `events`: EPOLLIN, EPOLLOUT; 0 keeps it registered but asks for nothing
 * but errors. */
typedef struct once_watch {
    int fd;  /* set it before once_runner_watch; -1 after once_runner_unwatch */
    bool on; /* the loop's own: registered */
    void (*ready)(struct once_watch *watch, uint32_t events);
} once_watch;

int once_runner_watch(once_runner *runner, once_watch *watch, uint32_t events, once_error *err); /* adds or changes */
void once_runner_unwatch(
    once_runner *runner,
    once_watch *watch); /* also from inside a `ready`; a pending event is not delivered any more. Does not close */

#endif
