/* Log lines about messages, collected in the open transaction (E2 of runtime/executor.h). */
#include <assert.h>
#include <string.h>

#include "runtime/executor_impl.h"

#include "base/banned.h"

void once__note(once_executor *x, once_log_level level, const char *event, const once_item *item, once_bytes reason)
{
    assert(event && item);
    once_message_log_add(&x->log, level, event, item, reason, &x->keying);
}

/* Lookups have ended without an answer: an operator has to decide. */
static bool is_given_up(const once_item *item) { return item->decision.asks && item->delay_ms == ONCE_NEVER; }

/* An attempt that needs another one, or an operator. `known`: the entry was unknown before; then it was already logged,
 * unless we wrote it ourselves in a commit to which no answer came. */
void once__note_ending(once_executor *x, const once_item *item, bool known)
{
    if (item->outcome == ONCE_DEAD) once__note(x, ONCE_LOG_WARN, "dead", item, item->failure);
    else if (item->outcome == ONCE_UNKNOWN && (!known || x->log_in_doubt.n || is_given_up(item)))
        once__note(x, ONCE_LOG_WARN, "unknown", item, item->failure);
    else if (item->outcome == ONCE_RETRY) once__note(x, ONCE_LOG_INFO, "retry", item, item->failure);
    else if (item->outcome == ONCE_RELEASE) once__note(x, ONCE_LOG_INFO, "release", item, item->failure);
}

/* Written at once, because it stays true if the transaction is rolled back. */
void once__log_fenced(once_executor *x, const once_item *item, const char *what)
{
    assert(what[0]);
    once_message_log now;
    if (item->commit_unknown) return; /* perhaps we settled it ourselves, in a commit to which no answer came */
    once_message_log_init(&now);
    once_message_log_add(&now, ONCE_LOG_WARN, "fenced", item, (once_bytes){what, strlen(what)}, &x->keying);
    once_message_log_write(&now);
    once_message_log_release(&now);
}

/* The worker that writes it down logs it. If no answer to the commit comes, the next pass logs it: rather twice than
 * never. */
void once__note_lapsed(once_executor *x, once_item *item)
{
    const once_decision *d = &item->decision;
    const bool before = item->lapsed && item->commit_unknown && d->answer == ONCE_ANSWER_UNKNOWN;
    if (d->lapsed || before)
        once__note(
            x, ONCE_LOG_WARN, "unknown", item,
            d->lapsed
                ? d->reason
                : ONCE_BYTES("its lease expired, and its attempt reported no outcome: it may have had its effect"));
    item->lapsed = d->lapsed || before;
}

void once__note_replaced(once_executor *x, const once_action *a)
{
    assert(a->n == 0 || a->items);
    for (size_t i = 0; i < a->n; i++)
        if (a->items[i]->decision.replaced)
            once__note(
                x, ONCE_LOG_INFO, "replaced", a->items[i],
                ONCE_BYTES("it replaces a message with the same key and other content, whose effect had not happened"));
}
