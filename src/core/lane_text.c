/* The reasons that the rules give about a lane, in words for people. The text is in lane->words, and is valid until the
 * next one. */
#include "core/entry_rules.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/duration.h"
#include "base/plain.h"

#include "base/banned.h"

__attribute__((format(printf, 2, 3))) static once_bytes say(once_lane *lane, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(lane->words, sizeof lane->words, format, args);
    va_end(args);
    size_t len = n < 0 ? 0 : (size_t)n < sizeof lane->words ? (size_t)n : sizeof lane->words - 1;
    len = once_make_plain(lane->words, len, '?'); /* keys are any bytes */
    lane->words[len] = '\0';
    return (once_bytes){lane->words, len};
}

/* A name is shown up to its first NUL. */
static int text_length(once_bytes name)
{
    return (int)strnlen(name.data ? name.data : "", name.len < ONCE_LANE_NAME ? name.len : ONCE_LANE_NAME);
}

once_bytes once__lane_say_settled(once_lane *lane, const char *more)
{
    const long long version = (long long)lane->version;
    if (once_hash_is_zero(lane->by))
        return say(lane, "version %lld of this lane was settled before; by which key%s is not known", version, more);
    return say(lane, "version %lld of this lane was settled by key '%.*s'%s", version, text_length(lane->key),
               lane->key.len ? lane->key.data : "", more);
}

once_bytes once__lane_say_conflict(once_lane *lane, const once_scope *scope)
{
    if (once_hash_is_zero(lane->by)) return once__lane_say_settled(lane, " and with which content");
    if (!once__lane_is_same_operation(lane, scope)) return once__lane_say_settled(lane, " of another operation");
    return once__lane_say_settled(lane, once_hash_is_zero(lane->content) ? "; with which content is not known"
                                                                         : " with other content");
}

static once_bytes say_missing(once_lane *lane, int64_t from, int64_t to, const char *more)
{
    if (from >= to) return say(lane, "version %lld%s", (long long)to, more);
    return say(lane, "versions %lld to %lld%s", (long long)from, (long long)to, more);
}

once_bytes once__lane_say_stale(once_lane *lane, int64_t order)
{
    if (lane && once__lane_is_passed(lane, order) && order >= lane->lost_from)
        return say(lane, "version %lld was given up before it came", (long long)order);
    return ONCE_BYTES("a newer version came first");
}

/* For the effect that runs now, for its dead letter and for `once explain`. */
once_bytes once__lane_say_gap_over(once_lane *lane, const once_entry *entry)
{
    char wait[ONCE_DURATION_TEXT], more[64];
    if (!once__lane_was_waited_for(lane, entry))
        return ONCE_BYTES("an earlier version did not come in time"); /* claimed by an older version of once */
    snprintf(more, sizeof more, " did not come within %s",
             once_duration_format(entry->gap_ms < 0 ? 0 : entry->gap_ms, wait));
    return say_missing(lane, lane->lost_from, lane->lost_to, more);
}

/* For its dead letter: the gap, and what follows from it. */
once_bytes once__lane_say_gap_death(once_lane *lane, const once_entry *entry, once_bytes reason)
{
    assert(reason.len && entry->gap);
    return say(lane, "%.*s; this one was not run, those behind it %s", text_length(reason), reason.data,
               entry->block ? "wait for this letter" : "go on");
}

once_bytes once_lane_explain(once_lane *lane, const once_entry *entry)
{
    int64_t next;
    if (entry->state == ONCE_STATE_DEAD && once__lane_find_blocker(lane, entry->id) < lane->n_blockers)
        return ONCE_BYTES("its lane waits for this letter");
    if (entry->state != ONCE_STATE_WAITING) return (once_bytes){0};
    if (once__lane_blocks(lane, entry->order))
        return ONCE_BYTES("it waits for a dead letter of its lane to be replayed or discarded");
    switch (once__lane_answer(lane, false, entry->natural, entry->versioned, entry->order, once__entry_gap_of(entry))) {
    case ONCE_ANSWER_LATER: return ONCE_BYTES("it waits behind another message of its lane");
    case ONCE_ANSWER_GAP: {
        char waited[ONCE_DURATION_TEXT], wait[ONCE_DURATION_TEXT], more[100];
        once__lane_next(lane, &next);
        snprintf(more, sizeof more,
                 entry->order - next > 1 ? " are missing; %s of %s have passed" : " is missing; %s of %s have passed",
                 once_duration_format(lane->waited_ms, waited), once_duration_format(entry->gap_ms, wait));
        return say_missing(lane, next, entry->order - 1, more);
    }
    default: return (once_bytes){0};
    }
}
