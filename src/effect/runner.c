/* The event loop under all effect drivers: descriptors, time, and the items that ended. */
#include "effect/runner.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/errno_text.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/no_memory.h"
#include "base/plain.h"
#include "effect/effect.h"
#include "effect/driver.h"

#include "base/banned.h"

enum {
    EVENTS = 128, /* at once. A turn takes no more, and gives back what ended in it: nobody waits for the next ones */
    REASON_MAX = 400,
    EXPECTED = 8 /* so far ahead the CPU is told which item will be started */
};

struct once_runner {
    once_runner_options options;
    once_effect_driver **of; /* as spec->handlers; NULL: not external */
    int epoll;
    once_watch wake;
    bool woken;
    bool looked;                       /* a tick has handled events: other drivers may have something to do */
    struct epoll_event events[EVENTS]; /* of this turn; taken out when their watch goes */
    int n_events, next_event;
    once_item **finished; /* a ring; there are never more items here than slots */
    size_t first, n_finished, capacity;
};

bool once_runner_needed(const once_spec *spec)
{
    assert(spec && (spec->handlers || spec->n_handlers == 0));
    for (size_t i = 0; i < spec->n_handlers; i++)
        if (once_handler_external(&spec->handlers[i])) return true;
    return false;
}

/* ---- descriptors ---- */

int once_runner_watch(once_runner *runner, once_watch *watch, uint32_t events, once_error *err)
{
    assert(watch->fd >= 0 && watch->ready);
    struct epoll_event event = {.events = events, .data.ptr = watch};
    if (epoll_ctl(runner->epoll, watch->on ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, watch->fd, &event) != 0)
        return once_fail(err, ONCE_E_UNAVAILABLE, "cannot watch a descriptor: %s", once_errno_text(errno));
    watch->on = true;
    return ONCE_OK;
}

void once_runner_unwatch(once_runner *runner, once_watch *watch)
{
    assert(!watch->on || watch->fd >= 0);
    if (watch->on) {
        epoll_ctl(runner->epoll, EPOLL_CTL_DEL, watch->fd, NULL);
        for (int i = runner->next_event; i < runner->n_events; i++)
            if (runner->events[i].data.ptr == watch) runner->events[i].data.ptr = NULL;
    }
    watch->on = false;
    watch->fd = -1;
}

static void woken(once_watch *watch, uint32_t events)
{
    once_runner *runner = (once_runner *)((char *)watch - offsetof(once_runner, wake));
    uint64_t times;
    (void)events;
    if (read(watch->fd, &times, sizeof times) == sizeof times) runner->woken = true;
}

void once_runner_wake(once_runner *runner)
{
    assert(runner->wake.fd >= 0);
    const uint64_t one = 1;
    while (write(runner->wake.fd, &one, sizeof one) < 0 && errno == EINTR) continue; /* full: it is awake enough */
}

/* ---- time ---- */

const once_runner_options *once_runner_options_of(const once_runner *runner) { return &runner->options; }
int64_t once_runner_now_ms(const once_runner *runner) { return once_env_mono_ns(runner->options.env) / 1000000; }

static int64_t tick(once_runner *runner, int64_t now_ms)
{
    int64_t next_ms = ONCE_NEVER;
    for (size_t i = 0; i < runner->options.spec->n_handlers; i++) {
        once_effect_driver *driver = runner->of[i];
        const int64_t at_ms = driver ? driver->ops->tick(driver, now_ms) : ONCE_NEVER;
        assert(at_ms >= 0);
        if (at_ms < next_ms) next_ms = at_ms;
    }
    return next_ms;
}

/* Waits for up to `limit` ms until something is ready, and handles it. Returns how much there was; -1: a signal came
 * first, and nobody has looked. */
static int handle_ready(once_runner *runner, int limit)
{
    assert(runner->n_events == 0); /* not from inside a `ready` */
    const int n = epoll_wait(runner->epoll, runner->events, EVENTS, limit);
    assert(n >= 0 || errno == EINTR);
    runner->n_events = n > 0 ? n : 0;
    for (runner->next_event = 0; runner->next_event < runner->n_events;) {
        const struct epoll_event *event = &runner->events[runner->next_event++];
        once_watch *watch = event->data.ptr;
        if (watch) watch->ready(watch, event->events);
    }
    runner->n_events = 0;
    return n;
}

/* One turn of the loop: ticks the drivers, then handles what is ready. Sleeps until `until_ms` when nothing is. */
static void turn(once_runner *runner, int64_t now_ms, int64_t until_ms)
{
    runner->looked = false;
    const int64_t due_ms = tick(runner, now_ms);
    if (due_ms < until_ms) until_ms = due_ms;
    int64_t wait_ms = until_ms > now_ms ? until_ms - now_ms : 0;
    if (runner->n_finished || runner->looked || runner->woken) wait_ms = 0; /* a look may have heard the call */
    const int limit = until_ms == ONCE_NEVER && wait_ms ? -1 : wait_ms > INT_MAX ? INT_MAX : (int)wait_ms;
    (void)handle_ready(runner, limit);
}

bool once_runner_look(once_runner *runner, int64_t *when_ns)
{
    /* There may be more than fit, and what is ready may stay so: as many rounds as there can be items, and one more. */
    int n = EVENTS;
    for (size_t rounds = 0; rounds <= runner->capacity / EVENTS + 1 && n == EVENTS; rounds++) {
        *when_ns = once_env_mono_ns(runner->options.env);
        n = handle_ready(runner, 0);
        runner->looked |= n > 0;
    }
    return n >= 0 && n < EVENTS;
}

/* ---- items ---- */

static void reset(once_item *item)
{
    item->outcome = ONCE_RELEASE;
    item->result = item->failure = (once_bytes){0};
    item->delay_ms = -1;
    item->maybe_done = item->started = item->result_lost = false;
    item->run_failure = ONCE_OK;
}

void once_runner_start(once_runner *runner, once_item *const *items, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        once_item *item = items[i];
        if (i + EXPECTED < n) once_item_expect(items[i + EXPECTED]);
        once_effect_driver *driver = runner->of[item->handler - runner->options.spec->handlers];
        assert(driver && item->input);
        assert(!item->driver); /* no driver has it */
        reset(item);
        item->driver = driver;
        if (ONCE_FAIL_AT(effect_before)) {
            item->run_failure = ONCE_E_UNAVAILABLE;
            once_runner_output(runner, item, (once_bytes){0}, ONCE_BYTES("failpoint 'effect_before'"));
            once_runner_finished(runner, item);
        } else if (item->decision.asks) {
            assert(once_handler_asks(item->handler) && driver->ops->ask);
            driver->ops->ask(driver, item);
        } else {
            driver->ops->start(driver, item);
        }
    }
    (void)tick(runner, once_runner_now_ms(runner)); /* drivers may have collected them */
}

void once_runner_kill(once_runner *runner, once_item *const *items, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!items[i]->driver) continue; /* back already */
        once_effect_driver *driver = runner->of[items[i]->handler - runner->options.spec->handlers];
        assert(driver);
        driver->ops->kill(driver, items[i]);
    }
}

void once_runner_finished(once_runner *runner, once_item *item)
{
    assert(item->driver); /* it was started, and is reported once */
    assert((unsigned)item->outcome < ONCE_OUTCOMES && item->delay_ms >= -1);
    assert(item->started || item->outcome == ONCE_RELEASE || item->outcome == ONCE_RETRY || item->outcome == ONCE_DEAD);
    if (item->started && ONCE_FAIL_AT(effect_after)) {
        item->outcome = ONCE_UNKNOWN;
        item->maybe_done = true;
        once_runner_output(runner, item, (once_bytes){0}, ONCE_BYTES("failpoint 'effect_after'"));
    }
    assert(runner->n_finished < runner->capacity);
    item->driver = NULL;
    runner->finished[(runner->first + runner->n_finished++) % runner->capacity] = item;
}

size_t once_runner_wait(once_runner *runner, int64_t wait_ms, once_item **out, size_t max)
{
    assert(wait_ms >= 0 && out && max > 0);
    int64_t now_ms = once_runner_now_ms(runner);
    const int64_t until_ms = wait_ms > ONCE_NEVER - now_ms ? ONCE_NEVER : now_ms + wait_ms;
    for (;;) {
        turn(runner, now_ms, until_ms);
        now_ms = once_runner_now_ms(runner);
        if (runner->n_finished || runner->woken || now_ms >= until_ms) break;
    }
    runner->woken = false;
    size_t n = 0;
    for (; n < max && runner->n_finished; n++) {
        out[n] = runner->finished[runner->first];
        runner->first = (runner->first + 1) % runner->capacity;
        runner->n_finished--;
    }
    return n;
}

bool once_runner_output(once_runner *runner, once_item *item, once_bytes result, once_bytes reason)
{
    assert(result.data || result.len == 0);
    assert(reason.data || reason.len == 0);
    const size_t result_max = runner->options.spec->result_max;
    char too_long[80];
    free(item->output);
    item->output = NULL;
    item->result = item->failure = (once_bytes){0};
    item->result_lost = result.len > 0;
    if (result.len > result_max) {
        const int len = snprintf(too_long, sizeof too_long, "result longer than %zu bytes; not kept", result_max);
        once_log(ONCE_LOG_WARN, "result_too_long", "%.*s:%d: %s; result_max allows more",
                 (int)runner->options.spec->file.len, runner->options.spec->file.data, item->handler->line, too_long);
        if (reason.len == 0) reason = (once_bytes){too_long, (size_t)len};
        result.len = 0;
    }
    if (reason.len > REASON_MAX) reason.len = REASON_MAX;
    if (result.len + reason.len == 0) return true;
    char *copy = malloc(result.len + reason.len);
    if (!copy) return false;
    char *text = result.len ? mempcpy(copy, result.data, result.len) : copy;
    if (reason.len) memcpy(text, reason.data, reason.len);
    reason.len = once_make_plain(text, reason.len, '?');
    item->output = copy;
    item->result = (once_bytes){copy, result.len};
    item->result_lost &= result.len == 0;
    item->failure = (once_bytes){text, reason.len};
    return true;
}

/* ---- open, close ---- */

once_db *once_runner_db(once_runner *runner, const once_handler_spec *handler)
{
    assert((size_t)(handler - runner->options.spec->handlers) < runner->options.spec->n_handlers);
    once_effect_driver *driver = runner->of[handler - runner->options.spec->handlers];
    return driver && handler->effect->db ? handler->effect->db(driver) : NULL;
}

static int open_loop(once_runner *runner, once_error *err)
{
    const once_spec *spec = runner->options.spec;
    runner->capacity = 1;
    for (size_t i = 0; i < spec->n_handlers; i++) runner->capacity += spec->handlers[i].slots;
    runner->of = calloc(spec->n_handlers + 1, sizeof *runner->of);
    runner->finished = calloc(runner->capacity, sizeof *runner->finished);
    if (!runner->of || !runner->finished) return once_no_memory(err, "for the handlers");
    runner->epoll = epoll_create1(EPOLL_CLOEXEC);
    runner->wake = (once_watch){.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .ready = woken};
    if (runner->epoll < 0 || runner->wake.fd < 0)
        return once_fail(err, ONCE_E_UNAVAILABLE, "cannot make an event loop: %s", once_errno_text(errno));
    return once_runner_watch(runner, &runner->wake, EPOLLIN, err);
}

int once_runner_open(const once_runner_options *options, once_runner **out, once_error *err)
{
    assert(options->spec && options->env && out);
    assert(options->n_callbacks == 0 || options->callbacks);
    once_runner *runner = calloc(1, sizeof *runner);
    if (!runner) return once_no_memory(err, "for the handlers");
    runner->options = *options;
    runner->epoll = runner->wake.fd = -1;
    int rc = open_loop(runner, err);
    for (size_t i = 0; i < options->spec->n_handlers && rc == ONCE_OK; i++)
        if (once_handler_external(&options->spec->handlers[i]))
            rc = once_effect_driver_open(runner, &options->spec->handlers[i], &runner->of[i], err);
    if (rc == ONCE_OK) *out = runner;
    else once_runner_close(runner);
    return rc;
}

void once_runner_close(once_runner *runner)
{
    if (!runner) return;
    for (size_t i = 0; runner->of && i < runner->options.spec->n_handlers; i++)
        if (runner->of[i]) runner->of[i]->ops->close(runner->of[i]);
    if (runner->wake.fd >= 0) close(runner->wake.fd);
    if (runner->epoll >= 0) close(runner->epoll);
    free(runner->finished);
    free(runner->of);
    free(runner);
}
