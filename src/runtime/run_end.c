/* Puts the end of a run into words: messages that were lost, messages that are delivered again, effects whose outcome
 * is not recorded. */
#include <assert.h>
#include <inttypes.h>

#include "base/log.h"
#include "runtime/known_store.h"
#include "runtime/run.h"

#include "base/banned.h"

/* Sending them again does no harm: those that were settled are duplicates. */
static int add_lost(const once_run_ending *end, int rc, once_error *why)
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

/* The failure may pass, and nothing is damaged. */
static bool can_wait(int rc)
{
    const once_class class = once_status_class(rc);
    return class == ONCE_CLASS_RETRY || class == ONCE_CLASS_PAUSE;
}

/* Adds which messages were acked when the disk was full, and how many effects have no recorded outcome. */
static void add_rest(const once_run_ending *end, int rc, const once_summary *summary, once_error *why)
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

/* A stop while the server is away or refuses is a clean end: messages that were not settled belong to the broker or the
 * store, and are delivered again. */
static int excuse_stop(const once_pipeline *pipeline, const once_run_ending *end, int rc, once_summary *summary,
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

/* Counts the messages that were read and not settled. */
once_run_ending once__run_ending(const once_machine *machine, const once_source *source)
{
    assert(once_machine_ended(machine) ||
           once_machine_status(machine, NULL) == ONCE_OK); /* or no thread could be started */
    const uint64_t open = once_machine_unfinished(machine);
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
    rc = add_lost(end, rc, why);
    assert(rc == ONCE_OK || why->text[0]); /* a failure has a text */
    rc = excuse_stop(pipeline, end, rc, summary, why);
    if (rc == ONCE_OK) return rc;
    summary->stopped |= atomic_load(&pipeline->stop);
    add_rest(end, rc, summary, why);
    return rc;
}
