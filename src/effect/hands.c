/* The loop under all hands: descriptors, time, and the list of what ended. What a message does, the hand of its effect
 * knows. */
#include "effect/hands.h"

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
#include "effect/hand.h"

#include "base/banned.h"

enum { EVENTS = 64, REASON_MAX = 400 };

struct once_hands {
    once_hands_options options;
    once_hand **of; /* as spec->handlers; NULL: not external */
    int epoll;
    once_watch wake;
    bool woken;
    struct epoll_event events[EVENTS]; /* of this turn; taken out when their watch goes */
    int n_events, next_event;
    once_item **finished; /* a ring: no more can be in our hands than there are slots */
    size_t first, n_finished, capacity;
};

bool once_hands_needed(const once_spec *spec)
{
    assert(spec && (spec->handlers || spec->n_handlers == 0));
    for (size_t i = 0; i < spec->n_handlers; i++)
        if (once_handler_external(&spec->handlers[i])) return true;
    return false;
}

/* ---- descriptors ---- */

int once_hands_watch(once_hands *hands, once_watch *watch, uint32_t events, once_error *err)
{
    assert(watch->fd >= 0 && watch->ready);
    struct epoll_event event = {.events = events, .data.ptr = watch};
    if (epoll_ctl(hands->epoll, watch->on ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, watch->fd, &event) != 0)
        return once_fail(err, ONCE_E_UNAVAILABLE, "cannot watch a descriptor: %s", once_errno_text(errno));
    watch->on = true;
    return ONCE_OK;
}

void once_hands_unwatch(once_hands *hands, once_watch *watch)
{
    assert(!watch->on || watch->fd >= 0);
    if (watch->on) {
        epoll_ctl(hands->epoll, EPOLL_CTL_DEL, watch->fd, NULL);
        for (int i = hands->next_event; i < hands->n_events; i++)
            if (hands->events[i].data.ptr == watch) hands->events[i].data.ptr = NULL;
    }
    watch->on = false;
    watch->fd = -1;
}

static void woken(once_watch *watch, uint32_t events)
{
    once_hands *hands = (once_hands *)((char *)watch - offsetof(once_hands, wake));
    uint64_t times;
    (void)events;
    hands->woken = read(watch->fd, &times, sizeof times) == sizeof times;
}

void once_hands_wake(once_hands *hands)
{
    assert(hands->wake.fd >= 0);
    const uint64_t one = 1;
    while (write(hands->wake.fd, &one, sizeof one) < 0 && errno == EINTR) continue; /* full: it is awake enough */
}

/* ---- time ---- */

const once_hands_options *once_hands_options_of(const once_hands *hands) { return &hands->options; }
int64_t once_hands_now_ms(const once_hands *hands) { return once_env_mono_ns(hands->options.env) / 1000000; }

static int64_t tick(once_hands *hands, int64_t now_ms)
{
    int64_t next_ms = ONCE_NEVER;
    for (size_t i = 0; i < hands->options.spec->n_handlers; i++) {
        once_hand *hand = hands->of[i];
        const int64_t at_ms = hand ? hand->ops->tick(hand, now_ms) : ONCE_NEVER;
        if (at_ms < next_ms) next_ms = at_ms;
    }
    return next_ms;
}

/* One turn: what is due, then what is ready; sleeps until `until_ms` when nothing is. */
static void turn(once_hands *hands, int64_t now_ms, int64_t until_ms)
{
    const int64_t due_ms = tick(hands, now_ms);
    if (due_ms < until_ms) until_ms = due_ms;
    int64_t wait_ms = until_ms > now_ms ? until_ms - now_ms : 0;
    if (hands->n_finished) wait_ms = 0;
    const int limit = until_ms == ONCE_NEVER && wait_ms ? -1 : wait_ms > INT_MAX ? INT_MAX : (int)wait_ms;
    const int n = epoll_wait(hands->epoll, hands->events, EVENTS, limit);
    assert(n >= 0 || errno == EINTR);
    hands->n_events = n > 0 ? n : 0;
    for (hands->next_event = 0; hands->next_event < hands->n_events;) {
        const struct epoll_event *event = &hands->events[hands->next_event++];
        once_watch *watch = event->data.ptr;
        if (watch) watch->ready(watch, event->events);
    }
    hands->n_events = 0;
}

/* ---- items ---- */

static void reset(once_item *item)
{
    item->outcome = ONCE_RELEASE;
    item->result = item->failure = (once_bytes){0};
    item->delay_ms = -1;
    item->maybe = item->started = false;
    item->trouble = ONCE_OK;
}

void once_hands_start(once_hands *hands, once_item *const *items, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        once_item *item = items[i];
        once_hand *hand = hands->of[item->handler - hands->options.spec->handlers];
        assert(hand && item->input);
        reset(item);
        item->hand = hand;
        if (ONCE_FAIL_AT(effect_before)) {
            item->trouble = ONCE_E_UNAVAILABLE;
            once_hands_output(hands, item, (once_bytes){0}, ONCE_BYTES("failpoint 'effect_before'"));
            once_hands_finished(hands, item);
        } else if (item->decision.asks) {
            assert(once_handler_asks(item->handler) && hand->ops->ask);
            hand->ops->ask(hand, item);
        } else {
            hand->ops->start(hand, item);
        }
    }
}

void once_hands_kill(once_hands *hands, once_item *const *items, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!items[i]->hand) continue; /* back already */
        once_hand *hand = hands->of[items[i]->handler - hands->options.spec->handlers];
        hand->ops->kill(hand, items[i]);
    }
}

void once_hands_finished(once_hands *hands, once_item *item)
{
    assert(item->hand); /* it was started, and is reported once */
    assert((unsigned)item->outcome < ONCE_OUTCOMES && item->delay_ms >= -1);
    assert(item->started || item->outcome == ONCE_RELEASE || item->outcome == ONCE_RETRY || item->outcome == ONCE_DEAD);
    if (item->started && ONCE_FAIL_AT(effect_after)) {
        item->outcome = ONCE_UNKNOWN;
        item->maybe = true;
        once_hands_output(hands, item, (once_bytes){0}, ONCE_BYTES("failpoint 'effect_after'"));
    }
    assert(hands->n_finished < hands->capacity);
    item->hand = NULL;
    hands->finished[(hands->first + hands->n_finished++) % hands->capacity] = item;
}

size_t once_hands_wait(once_hands *hands, int64_t wait_ms, once_item **out, size_t max)
{
    assert(wait_ms >= 0 && out && max > 0);
    int64_t now_ms = once_hands_now_ms(hands);
    const int64_t until_ms = wait_ms > ONCE_NEVER - now_ms ? ONCE_NEVER : now_ms + wait_ms;
    for (;;) {
        turn(hands, now_ms, until_ms);
        now_ms = once_hands_now_ms(hands);
        if (hands->n_finished || hands->woken || now_ms >= until_ms) break;
    }
    hands->woken = false;
    size_t n = 0;
    for (; n < max && hands->n_finished; n++) {
        out[n] = hands->finished[hands->first];
        hands->first = (hands->first + 1) % hands->capacity;
        hands->n_finished--;
    }
    return n;
}

bool once_hands_output(once_hands *hands, once_item *item, once_bytes result, once_bytes reason)
{
    assert(result.data || result.len == 0);
    assert(reason.data || reason.len == 0);
    const size_t result_max = hands->options.spec->result_max;
    char too_long[80];
    free(item->output);
    item->output = NULL;
    item->result = item->failure = (once_bytes){0};
    if (result.len > result_max) {
        const int len = snprintf(too_long, sizeof too_long, "result longer than %zu bytes; not kept", result_max);
        once_log(ONCE_LOG_WARN, "result_too_long", "%.*s:%d: %s; result_max allows more",
                 (int)hands->options.spec->file.len, hands->options.spec->file.data, item->handler->line, too_long);
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
    item->failure = (once_bytes){text, reason.len};
    return true;
}

/* ---- open, close ---- */

static int open_hand(once_hands *hands, const once_handler_spec *handler, once_hand **out, once_error *err)
{
    assert(handler->effect && ((handler->bits & ONCE_EFFECT_OUTSIDE) == 0 || handler->effect->open));
    if (!once_handler_external(handler)) return ONCE_OK;
    assert(handler->slots > 0);
    return handler->effect->open(hands, handler, out, err);
}

once_db *once_hands_db(once_hands *hands, const once_handler_spec *handler)
{
    once_hand *hand = hands->of[handler - hands->options.spec->handlers];
    return hand && handler->effect->db ? handler->effect->db(hand) : NULL;
}

static int open_loop(once_hands *hands, once_error *err)
{
    const once_spec *spec = hands->options.spec;
    hands->capacity = 1;
    for (size_t i = 0; i < spec->n_handlers; i++) hands->capacity += spec->handlers[i].slots;
    hands->of = calloc(spec->n_handlers + 1, sizeof *hands->of);
    hands->finished = calloc(hands->capacity, sizeof *hands->finished);
    if (!hands->of || !hands->finished) return once_no_memory(err, "for the handlers");
    hands->epoll = epoll_create1(EPOLL_CLOEXEC);
    hands->wake = (once_watch){.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .ready = woken};
    if (hands->epoll < 0 || hands->wake.fd < 0)
        return once_fail(err, ONCE_E_UNAVAILABLE, "cannot make an event loop: %s", once_errno_text(errno));
    return once_hands_watch(hands, &hands->wake, EPOLLIN, err);
}

int once_hands_open(const once_hands_options *options, once_hands **out, once_error *err)
{
    assert(options->spec && options->env && out);
    assert(options->n_callbacks == 0 || options->callbacks);
    once_hands *hands = calloc(1, sizeof *hands);
    if (!hands) return once_no_memory(err, "for the handlers");
    hands->options = *options;
    hands->epoll = hands->wake.fd = -1;
    int rc = open_loop(hands, err);
    for (size_t i = 0; i < options->spec->n_handlers && rc == ONCE_OK; i++)
        rc = open_hand(hands, &options->spec->handlers[i], &hands->of[i], err);
    if (rc == ONCE_OK) *out = hands;
    else once_hands_close(hands);
    return rc;
}

void once_hands_close(once_hands *hands)
{
    if (!hands) return;
    for (size_t i = 0; hands->of && i < hands->options.spec->n_handlers; i++)
        if (hands->of[i]) hands->of[i]->ops->close(hands->of[i]);
    if (hands->wake.fd >= 0) close(hands->wake.fd);
    if (hands->epoll >= 0) close(hands->epoll);
    free(hands->finished);
    free(hands->of);
    free(hands);
}
