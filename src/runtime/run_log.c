/* Logs failures of a run: of the store and the source, and of handlers that are down. */
#include <assert.h>
#include <stdio.h>

#include "base/log.h"
#include "runtime/run.h"

#include "base/banned.h"

bool once__run_concerns_others(once_action_kind kind)
{
    switch (kind) {
    case ONCE_ACT_CLAIM:
    case ONCE_ACT_EXTEND:
    case ONCE_ACT_RUN:
    case ONCE_ACT_SETTLE:
    case ONCE_ACT_ACCEPT:
    case ONCE_ACT_BURY: return false;
    default: return true;
    }
}

/* Fewer lost races in a row than this are normal among several workers. */
enum { ROUTINE_RACES = 8 };

/* During a stop, seeks and releases are not repeated. */
static bool is_last_try(const once_run *r, once_action_kind kind) /* @locks: lock */
{
    return r->stop_seen && (kind == ONCE_ACT_SEEK || kind == ONCE_ACT_RELEASE);
}

/* Logs failures after which the run goes on; others are returned to the caller. A message's own fault is in its
 * outcome, even if the commit was the first to show it. */
void once__run_report(once_run_thread *w, const once_action *done) /* @locks: lock */
{
    once_run_failure *t = done->kind == ONCE_ACT_SEEK ? &w->r->seeks : &w->failure;
    assert(t->works && done->kind != ONCE_ACT_NONE);
    if (once_status_class(done->status) == ONCE_CLASS_MESSAGE && once_machine_status(w->r->machine, NULL) == ONCE_OK)
        return;
    if (done->status == ONCE_OK) {
        if (!once__run_concerns_others(done->kind) || done->kind == ONCE_ACT_BEGIN || done->kind == ONCE_ACT_ROLLBACK)
            return;
        if (t->throttle.times > 0) /* a warning is followed by its end */
            once_log(t->warned ? ONCE_LOG_WARN : ONCE_LOG_DEBUG, t->works, "%s: works again, after %u failure%s",
                     once_action_name(done->kind), t->throttle.times, t->throttle.times == 1 ? "" : "s");
        t->throttle = (once_log_throttle){0};
        t->warned = false;
    } else if (once__throttle_allows(&t->throttle, done->error.text, once__run_now_ms(w->r)) &&
               once_machine_status(w->r->machine, NULL) == ONCE_OK) {
        const bool routine = (done->status == ONCE_E_ABORTED || done->status == ONCE_E_BUSY) &&
                             t->throttle.times < ROUTINE_RACES && !t->warned;
        const char *event = t->event ? t->event : once__store_event(done->status);
        t->warned |= !routine;
        once_log(routine ? ONCE_LOG_DEBUG : ONCE_LOG_WARN, event, "%s: %s%s%s", once_action_name(done->kind),
                 done->error.text,
                 done->status == ONCE_E_FULL ? "; nothing is fetched or acked until there is space" : "",
                 is_last_try(w->r, done->kind) ? "" : "; trying again");
    }
}

/* The message had no effect, and will be tried without limit: no other log line would report it. */
static bool is_refused(const once_item *item)
{
    if (item->outcome == ONCE_RELEASE) return item->started && !item->told_to_end;
    return item->outcome == ONCE_RETRY && item->handler->retry.attempts == ONCE_ANY_ATTEMPTS;
}

/* Single refusals among successes are not reported. */
static bool is_down(const once_handler_state *h, int64_t now_ms)
{
    return h->refused >= 3 || h->worked_ms == 0 || now_ms - h->worked_ms >= 5000;
}

static once_bytes name_of(const once_handler_spec *handler)
{
    return handler->type.len ? handler->type : handler->operation;
}

/* Apart, because zeroing the text would cost more than all else that is done for a message that worked. */
static __attribute__((noinline)) void report_refused(once_handler_state *h, const once_item *item, int64_t at_ms)
{
    const once_bytes name = name_of(item->handler);
    char why[sizeof((once_error *)0)->text];
    h->refused++;
    snprintf(why, sizeof why, "%.*s", item->failure.len < 300 ? (int)item->failure.len : 300,
             item->failure.data ? item->failure.data : "");
    if (!is_down(h, at_ms) || !once__throttle_allows(&h->throttle, why, at_ms)) return;
    h->said = true;
    once_log(ONCE_LOG_WARN, "handler_down",
             "handler '%.*s' is down: %u messages in a row were released or failed, and wait: %s", (int)name.len,
             name.data, h->refused, why);
}

static void report_handler(once_run *r, const once_item *item, int64_t at_ms) /* @locks: lock */
{
    assert(once_handler_external(item->handler) && item->run_failure == ONCE_OK);
    assert(item->handler >= r->pipeline->spec->handlers &&
           item->handler < r->pipeline->spec->handlers + r->pipeline->spec->n_handlers);
    once_handler_state *h = &r->handlers[item->handler - r->pipeline->spec->handlers];
    if (is_refused(item)) {
        report_refused(h, item, at_ms);
    } else if (item->started && item->outcome != ONCE_RETRY && item->outcome != ONCE_UNKNOWN &&
               item->outcome != ONCE_RELEASE) {
        const once_bytes name = name_of(item->handler);
        if (h->said)
            once_log(ONCE_LOG_WARN, "handler_works", "handler '%.*s' works again, after %u failures", (int)name.len,
                     name.data, h->refused);
        h->said = false;
        h->refused = 0;
        h->worked_ms = at_ms;
    }
}

void once__run_report_effects(once_run *r, once_item *const *items, size_t n) /* @locks: lock */
{
    const int64_t at_ms = once__run_now_ms(r);
    for (size_t i = 0; i < n; i++)
        if (items[i]->run_failure == ONCE_OK && items[i]->handler && !items[i]->decision.asks)
            report_handler(r, items[i], at_ms);
}
