/* A lane and its entries: which one may run, what a version that settled or died changes, and what blocks the lane. */
#include "core/entry_rules.h"

#include <assert.h>

#include "core/plant.h"

#include "base/banned.h"

/* As much of a name as a lane keeps, not cut inside a UTF-8 character. */
static once_bytes cut(once_bytes name)
{
    if (name.len <= ONCE_LANE_NAME) return name;
    size_t len = ONCE_LANE_NAME;
    while (len > ONCE_LANE_NAME - 3 && ((unsigned char)name.data[len] & 0xc0) == 0x80) len--;
    return (once_bytes){name.data, ((unsigned char)name.data[len] & 0xc0) == 0x80 ? ONCE_LANE_NAME : len};
}

bool once__lane_is_same_operation(const once_lane *lane, const once_scope *scope)
{
    const once_bytes ours = cut(scope->operation);
    return once_bytes_equal(ours, lane->operation);
}

/* The place of a message without a version: behind all others. */
int64_t once__lane_end(const once_lane *lane)
{
    int64_t last = lane->tail;
    for (unsigned i = 0; i < lane->n_blockers; i++)
        if (lane->blockers[i].order > last) last = lane->blockers[i].order;
    return once__one_more(last);
}

/* The lowest version that a message may still wait for. False: the lane has no version yet. */
bool once__lane_next(const once_lane *lane, int64_t *next)
{
    *next = lane->has_next ? lane->next : 0;
    if (lane->has_version && once__one_more(lane->version) > *next) *next = once__one_more(lane->version);
    return lane->has_version || lane->has_next;
}

static bool has_gap(const once_lane *lane, int64_t order)
{
    int64_t next;
    return once__lane_next(lane, &next) && order > next && !ONCE_PLANTED(gap_ignored);
}

/* A dead entry holds back a message of this order. */
bool once__lane_blocks(const once_lane *lane, int64_t order)
{
    assert(lane->n_blockers <= ONCE_LANE_BLOCKERS);
    if (ONCE_PLANTED(block_ignored)) return false;
    bool behind = lane->n_blockers == ONCE_LANE_BLOCKERS; /* full: no room for one more that might die */
    for (unsigned i = 0; i < lane->n_blockers; i++) behind |= order >= lane->blockers[i].order;
    return behind;
}

/* This version was given up, or is older than one that was. Nothing waits for it; it may still come. */
bool once__lane_is_passed(const once_lane *lane, int64_t order) { return lane->has_lost && order <= lane->lost_to; }

/* The versions before this entry were given up so that it could go on, and it has not died since. */
bool once__lane_was_waited_for(const once_lane *lane, const once_entry *entry)
{
    return lane && entry->versioned && lane->has_lost && lane->lost_to == entry->order - 1 &&
           lane->next == entry->order;
}

/* The entry waits for missing versions that are not given up. */
bool once__lane_waits_for_missing(const once_lane *lane, const once_entry *entry)
{
    return entry->gap && !once__lane_was_waited_for(lane, entry);
}

/* What the lane answers to an entry of this order. RUN: nothing is in the way. DUPLICATE: its version has settled;
 * once__lane_judge_equal compares the content. A new entry waits behind those with the same order (the same version
 * under another key, or a replayed dead letter). Stored entries with the same order must not wait for each other. */
once_answer once__lane_answer(const once_lane *lane, bool is_new, bool natural, bool versioned, int64_t order,
                              int64_t gap_ms)
{
    if (!lane || ONCE_PLANTED(lane_ignored)) return ONCE_ANSWER_RUN;
    if (versioned && lane->has_version) {
        if (order == lane->version && !natural) return ONCE_ANSWER_DUPLICATE;
        if (order < lane->version && !ONCE_PLANTED(stale_runs)) return ONCE_ANSWER_STALE;
    }
    const bool others = lane->tail >= 0;
    assert(!others || lane->head <= lane->tail);
    if (lane->claimed || once__lane_blocks(lane, order) ||
        (others && (lane->head < order || (is_new && lane->head == order))))
        return ONCE_ANSWER_LATER;
    return versioned && gap_ms >= 0 && has_gap(lane, order) ? ONCE_ANSWER_GAP : ONCE_ANSWER_RUN;
}

/* This version has settled: with the same content (DUPLICATE), or another one (CONFLICT)? */
once_answer once__lane_judge_equal(const once_lane *lane, once_hash id, const once_scope *scope, once_hash fingerprint)
{
    assert(lane->has_version);
    const bool known = !once_hash_is_zero(lane->content), asked = !once_hash_is_zero(fingerprint);
    if (ONCE_PLANTED(version_unjudged)) return ONCE_ANSWER_DUPLICATE;
    if (once_hash_is_zero(lane->by)) return ONCE_ANSWER_CONFLICT;
    if (once_hash_equal(lane->by, id))
        return known && asked && !once_hash_equal(lane->content, fingerprint) ? ONCE_ANSWER_CONFLICT
                                                                              : ONCE_ANSWER_DUPLICATE;
    if (!once__lane_is_same_operation(lane, scope)) return ONCE_ANSWER_CONFLICT;
    if (!asked) return ONCE_ANSWER_DUPLICATE;
    return known && once_hash_equal(lane->content, fingerprint) ? ONCE_ANSWER_DUPLICATE : ONCE_ANSWER_CONFLICT;
}

/* How long an entry waits for missing versions; -1: not at all. An entry that was let in once does not wait again, not
 * even after a replay or a retry, or when the lane went back to a version that had been given up. An entry that was put
 * back before it ran (`gap` stays set) does. */
int64_t once__entry_gap_of(const once_entry *entry)
{
    const bool orphan = entry->state == ONCE_STATE_CLAIMED;
    return entry->attempt && (orphan || !entry->gap) ? -1 : entry->gap_ms;
}

/* What the lane answers to a stored entry. An orphan was let in before and goes before all others: messages that came
 * in front of it since then wait for it to end. The entry that settled the version itself may run again (revive). */
once_answer once__lane_answer_to_known(const once_lane *lane, const once_entry *entry)
{
    const bool orphan = entry->state == ONCE_STATE_CLAIMED;
    const once_answer answer =
        once__lane_answer(lane, false, entry->natural || (lane && once_hash_equal(lane->by, entry->id)),
                          entry->versioned, entry->order, once__entry_gap_of(entry));
    if (answer == ONCE_ANSWER_DUPLICATE)
        return once__lane_judge_equal(lane, entry->id, &entry->scope, entry->fingerprint);
    if (answer == ONCE_ANSWER_LATER && orphan && !lane->claimed) return ONCE_ANSWER_RUN;
    return answer;
}

/* A lane without a version begins with `first` of the pipeline file. The caller saves this only if a message has to
 * wait because of it. */
void once__lane_begin(once_lane *lane, const once_request *r)
{
    if (!r->lane.versioned || !r->lane.has_first || lane->has_version || lane->has_next || ONCE_PLANTED(first_ignored))
        return;
    lane->has_next = true;
    lane->next = r->lane.first;
}

/* The lane is kept at least until then; and for as long as a message waits in it or a dead letter blocks it. */
void once__lane_promise(once_lane *lane, int64_t until_ms)
{
    if (until_ms > lane->until_ms) lane->until_ms = until_ms;
    if (lane->expires_ms != ONCE_FOREVER || (lane->tail < 0 && !lane->n_blockers)) lane->expires_ms = lane->until_ms;
}

/* The entry finished, with any outcome but stale: its version becomes the lane's, and later ones need not wait for it.
 */
int once__lane_advance(const once_entry *entry, once_lane *lane)
{
    if (!lane || !entry->versioned || (lane->has_version && entry->order < lane->version)) return ONCE_UNCHANGED;
    if (lane->has_version && entry->order == lane->version && /* run again by an operator: the content may differ */
        (!once_hash_equal(lane->by, entry->id) || once_hash_equal(lane->content, entry->fingerprint)))
        return ONCE_UNCHANGED;
    once__lane_go_back(lane, entry->order);
    lane->has_version = true;
    lane->version = entry->order;
    lane->by = entry->id;
    lane->content = entry->fingerprint;
    lane->operation = cut(entry->scope.operation);
    lane->key = cut(entry->key);
    once__lane_promise(lane, entry->expires_ms);
    return ONCE_LANE_CHANGED;
}

/* The index of an entry among the blockers; n_blockers: it is none. */
unsigned once__lane_find_blocker(const once_lane *lane, once_hash id)
{
    unsigned at = 0;
    while (at < lane->n_blockers && !once_hash_equal(lane->blockers[at].id, id)) at++;
    return at;
}

static void block_lane(const once_entry *entry, once_lane *lane)
{
    const unsigned at = once__lane_find_blocker(lane, entry->id);
    assert(entry->state == ONCE_STATE_DEAD);
    lane->expires_ms = ONCE_FOREVER;
    if (at == ONCE_LANE_BLOCKERS) return; /* only a planted bug: in a full lane nothing runs that could die */
    if (at == lane->n_blockers) lane->n_blockers++;
    lane->blockers[at] = (once_blocker){entry->id, entry->order};
}

int once__lane_unblock(const once_entry *entry, once_lane *lane)
{
    const unsigned at = lane ? once__lane_find_blocker(lane, entry->id) : 0;
    if (!lane || at == lane->n_blockers) return ONCE_UNCHANGED;
    lane->blockers[at] = lane->blockers[--lane->n_blockers];
    return ONCE_LANE_CHANGED | once__entry_frees_lane(entry);
}

/* A version that died has come, so nothing waits for it. */
static int pass_dead(const once_entry *entry, once_lane *lane, int64_t now_ms)
{
    int64_t next;
    const bool known = once__lane_next(lane, &next);
    if (!entry->versioned || entry->gap_ms < 0 || (known && entry->order != next) || ONCE_PLANTED(gap_anew))
        return ONCE_UNCHANGED;
    lane->has_next = true;
    lane->next = once__one_more(entry->order);
    once__lane_promise(lane, once__later_than(now_ms, entry->remember_ms));
    return ONCE_LANE_CHANGED;
}

int once__lane_after_death(const once_entry *entry, once_lane *lane, int64_t now_ms)
{
    if (!lane) return ONCE_UNCHANGED;
    const int passed = pass_dead(entry, lane, now_ms);
    if (!entry->block) return passed;
    block_lane(entry, lane);
    return ONCE_LANE_CHANGED;
}

int once_lane_rest(once_lane *lane, const once_entry *entry, int64_t now_ms)
{
    if (lane->expires_ms != ONCE_FOREVER || lane->n_blockers || lane->until_ms == ONCE_FOREVER) return ONCE_UNCHANGED;
    once__lane_stop_waiting(lane);
    once__lane_promise(lane,
                       entry->expires_ms > now_ms ? entry->expires_ms : once__later_than(now_ms, entry->remember_ms));
    return ONCE_LANE_CHANGED;
}
