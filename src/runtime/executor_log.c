/* What is said of the messages of a transaction: gathered while it is open, said when it is committed. */
#include <assert.h>
#include <string.h>

#include "runtime/executor_impl.h"

#include "base/banned.h"

void once__note(once_executor *x, once_log_level level, const char *event, const once_item *item, once_bytes reason)
{
    assert(event && item);
    once_message_log_add(&x->log, level, event, item, reason, &x->keying);
}

/* The other side was asked, nobody is asked any more, and a person has to look. */
static bool is_given_up(const once_item *item) { return item->decision.asks && item->delay_ms == ONCE_NEVER; }

/* How an attempt ended that needs another one, or a person. `known`: that it is unknown was written down before, by
 * somebody who said it; or by ourselves, in a commit of which no answer came, and then nobody has said it. */
void once__note_ending(once_executor *x, const once_item *item, bool known)
{
    if (item->outcome == ONCE_DEAD) once__note(x, ONCE_LOG_WARN, "dead", item, item->failure);
    else if (item->outcome == ONCE_UNKNOWN && (!known || x->log_in_doubt.n || is_given_up(item)))
        once__note(x, ONCE_LOG_WARN, "unknown", item, item->failure);
    else if (item->outcome == ONCE_RETRY) once__note(x, ONCE_LOG_INFO, "retry", item, item->failure);
    else if (item->outcome == ONCE_RELEASE) once__note(x, ONCE_LOG_INFO, "release", item, item->failure);
}

/* Said at once: it is so, whatever becomes of the transaction. */
void once__log_fenced(once_executor *x, const once_item *item, const char *what)
{
    assert(what[0]);
    once_message_log now;
    if (item->commit_unknown) return; /* perhaps it was settled by ourselves, in a commit of which no answer came */
    once_message_log_init(&now);
    once_message_log_add(&now, ONCE_LOG_WARN, "fenced", item, (once_bytes){what, strlen(what)}, &x->keying);
    once_message_log_write(&now);
    once_message_log_release(&now);
}

/* Whoever wrote it down says it. Should its commit have happened and no answer come, the next pass says it; rather
 * twice than not at all. */
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
                ONCE_BYTES("it replaces a message with the same key and other content, which had had no effect"));
}
