/* How a run ended, in words: what was lost, what comes again, of which effects nobody will know. */
#include <assert.h>
#include <inttypes.h>

#include "base/log.h"
#include "runtime/known_store.h"
#include "runtime/run.h"

#include "base/banned.h"

/* Sent again they do no harm: what was settled after all is a duplicate then. */
static int tell_lost(const once_run_ending *end, int rc, once_error *why)
{
    if (!end->lost) return rc;
    const once_error before = *why;
    once_fail(why, rc == ONCE_OK ? ONCE_E_IO : rc,
              "%" PRIu64
              " message%s read from a source that cannot deliver again, and perhaps not settled; send %s again%s%.300s",
              end->lost, end->lost == 1 ? " was" : "s were", end->lost == 1 ? "it" : "them", rc == ONCE_OK ? "" : ": ",
              rc == ONCE_OK ? "" : before.text);
    once_log(ONCE_LOG_ERROR, "lost", "%s", why->text);
    return why->status;
}

/* Whatever it is that does not work: nothing is damaged, and going on later is possible. */
static bool can_wait(int rc)
{
    const once_class class = once_status_class(rc);
    return class == ONCE_CLASS_RETRY || class == ONCE_CLASS_PAUSE;
}

/* Which messages are over when there was no space to go on, and which are not; and of which effects nobody will know,
 * whatever it was that ended it. */
static void tell_rest(const once_run_ending *end, int rc, const once_summary *summary, once_error *why)
{
    assert(rc != ONCE_OK && why->text[0]);
    once_error before = *why;
    const uint64_t acked = summary->counts.acked, open = end->open, unsettled = end->unsettled;
    if (rc == ONCE_E_FULL && !end->lost)
        once_fail(why, rc, "%.*s; %" PRIu64 " message%s acked; %" PRIu64 " %s read but not acked%s",
                  unsettled ? 240 : 300, before.text, acked, acked == 1 ? " is" : "s are", open,
                  open == 1 ? "was" : "were", open ? " and will be delivered again" : "");
    if (!unsettled) return;
    before = *why;
    once_fail(why, rc, "%.400s; the outcome of %" PRIu64 " started effect%s could not be recorded", before.text,
              unsettled, unsettled == 1 ? "" : "s");
}

/* Told to stop, and the server is away or refuses: what was not settled is the broker's or the store's, and comes
 * again. */
static int end_all_the_same(const once_pipeline *pipeline, const once_run_ending *end, int rc, once_summary *summary,
                            const once_error *why)
{
    assert(rc == ONCE_OK || why->text[0]);
    if (!can_wait(rc) || !atomic_load(&pipeline->stop) || end->lost) return rc;
    if (end->unsettled)
        once_log(ONCE_LOG_WARN, "stopped",
                 "%s; messages that were not acked are delivered again, but the outcome of %" PRIu64
                 " started effect%s could not be recorded",
                 why->text, end->unsettled, end->unsettled == 1 ? "" : "s");
    else
        once_log(ONCE_LOG_WARN, "stopped", "%s; nothing was lost: messages that were not acked are delivered again",
                 why->text);
    summary->stopped = true;
    return ONCE_OK;
}

/* What was read, and whether anybody delivers it again. */
once_run_ending once__run_ending(const once_machine *machine, const once_source *source)
{
    assert(once_machine_ended(machine) ||
           once_machine_status(machine, NULL) == ONCE_OK); /* or no thread could be started */
    const uint64_t open = once_machine_dropped(machine);
    once_run_ending end = {.unsettled = once_machine_unsettled(machine), .clean = once_machine_ended_at_bound(machine)};
    if (source->ops->bits(source) & ONCE_SOURCE_REDELIVERS) end.open = open;
    else end.lost = open + (source->ops->held ? source->ops->held(source) : 0);
    assert(end.lost == 0 || end.open == 0);
    return end;
}

int once__run_conclude(const once_pipeline *pipeline, const once_run_ending *end, int rc, once_summary *summary,
                       once_error *why)
{
    rc = once__known_lost(pipeline, rc, why);
    rc = tell_lost(end, rc, why);
    assert(rc == ONCE_OK || why->text[0]); /* what failed is said */
    rc = end_all_the_same(pipeline, end, rc, summary, why);
    if (rc == ONCE_OK) return rc;
    summary->stopped |= atomic_load(&pipeline->stop);
    tell_rest(end, rc, summary, why);
    return rc;
}
