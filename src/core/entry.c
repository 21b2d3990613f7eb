/* The states of an entry, and how its life begins, changes and ends (the one place that changes a state is once__entry_move). */
#include "core/entry.h"

#include <assert.h>

#include "core/entry_rules.h"
#include "core/plant.h"

#include "base/banned.h"

const char *once_state_name(once_state state)
{
    static const char *const names[] = {
#define NAME(name, text) text,
        ONCE_STATE_MAP(NAME)
#undef NAME
    };
    assert((unsigned)state < ONCE_STATES);
    return names[state];
}

const char *once_answer_name(once_answer answer)
{
    static const char *const names[] = {
#define NAME(name, text) text,
        ONCE_ANSWER_MAP(NAME)
#undef NAME
    };
    return (unsigned)answer < ONCE_ANSWERS ? names[answer] : "?";
}

const char *once_entry_flaw(const once_entry *e)
{
    if ((unsigned)e->state >= ONCE_STATES) return "its state is none";
    if (e->state == ONCE_STATE_ABSENT) return NULL;
    if (e->seen_ms < 0 || e->changed_ms < 0 || e->due_ms < 0 || e->expires_ms < 0 || e->failing_ms < 0)
        return "one of its times is before 1970";
    if (once_state_finished(e->state)) return NULL; /* of the rest it need not have anything */
    if (e->remember_ms <= 0) return "how long it is remembered is no time";
    if (e->gap_ms < -1) return "how long it waits for a missing version is no time";
    if (!once_hash_is_zero(e->lane) && e->order < 0) return "its place in the lane is none";
    return NULL;
}

#define TO(name) (1u << ONCE_STATE_##name)
#define TO_FINISHED (TO(DONE) | TO(ALREADY) | TO(REJECTED) | TO(STALE))

static const unsigned may_become[ONCE_STATES] = {
    [ONCE_STATE_ABSENT] = TO(CLAIMED) | TO(WAITING) | TO(STALE) | TO(ALREADY) | TO(REJECTED),
    [ONCE_STATE_CLAIMED] = TO(CLAIMED) | TO(WAITING) | TO(UNKNOWN) | TO(DEAD) | TO_FINISHED,
    [ONCE_STATE_WAITING] = TO(CLAIMED) | TO(WAITING) | TO(STALE) | TO(ALREADY) | TO(DEAD),
    [ONCE_STATE_UNKNOWN] = TO(WAITING) | TO(UNKNOWN) | TO(DEAD) | TO_FINISHED,
    [ONCE_STATE_DEAD] = TO(WAITING) | TO(REJECTED),
    /* Otherwise finished entries change only by expiring or being forgotten, which makes a new entry. */
    [ONCE_STATE_DONE] = TO(WAITING),
    [ONCE_STATE_ALREADY] = TO(WAITING),
    [ONCE_STATE_REJECTED] = TO(WAITING),
    [ONCE_STATE_STALE] = TO(WAITING),
};

void once__entry_move(once_entry *entry, once_state to, int64_t due_ms, int64_t now_ms)
{
    assert(may_become[entry->state] & (1u << to));
    /* What is still unknown has been so since then: how long it may be asked about is measured from there. */
    if (to != entry->state || to != ONCE_STATE_UNKNOWN) entry->changed_ms = now_ms;
    entry->state = to;
    entry->due_ms = due_ms;
}

bool once__entry_is_absent(const once_entry *entry, int64_t now_ms)
{
    if (ONCE_PLANTED(dead_runs) && entry->state == ONCE_STATE_DEAD) return true;
    return entry->state == ONCE_STATE_ABSENT || once_entry_expired(entry, now_ms);
}

/* Some attempt failed, and somebody noted when the first one did. */
int64_t once__entry_failing_for(const once_entry *entry, int64_t now_ms)
{
    return entry->failures && entry->failing_ms ? now_ms - entry->failing_ms : -1;
}

/* Among equals the first one goes first, also when they came within a millisecond or the clock went back. */
static int64_t seen_behind_equals(const once_lane *lane, int64_t now_ms)
{
    return lane && lane->equal_ms >= now_ms ? once__one_more(lane->equal_ms) : now_ms;
}

/* A new life under this id, whatever was there before has expired. */
void once__entry_begin(once_entry *entry, const once_lane *lane, const once_request *r, int64_t now_ms)
{
    *entry = (once_entry){
        .id = entry->id,
        .state = ONCE_STATE_ABSENT,
        .fingerprint = r->fingerprint,
        .fields = r->fields,
        .token = r->token,
        .lane = r->lane.id,
        .gap_ms = r->lane.gap_ms,
        .remember_ms = r->remember_ms,
        .versioned = r->lane.versioned,
        .order = !lane               ? 0
                 : r->lane.versioned ? r->lane.version
                                     : once__lane_end(lane),
        .hold = r->hold,
        .lookup = r->lookup,
        .natural = r->natural,
        .old_key = r->old_key,
        .block = r->lane.block,
        .run = r->run,
        .seen_ms = seen_behind_equals(lane, now_ms),
        .scope = *r->scope,
        .key = r->key,
        .at = r->at,
    };
}

/* It goes on, and time does not end it any more. */
void once__entry_unexpire(once_entry *entry)
{
    if (!once_state_finished(entry->state) && once_entry_expires(entry)) entry->expires_ms = 0;
}

void once__entry_attach(once_entry *entry, const once_message *message)
{
    if (!message || entry->has_message) return;
    entry->message = *message;
    entry->has_message = true;
}

void once__entry_detach(once_entry *entry)
{
    entry->message = (once_message){0};
    entry->has_message = false;
}

/* A message that is from the future is too old later than others. */
static int64_t expiry(int64_t remember_ms, int64_t sent_ms, int64_t now_ms)
{
    return remember_ms == ONCE_FOREVER ? ONCE_FOREVER
                                       : once__later_than(sent_ms > now_ms ? sent_ms : now_ms, remember_ms);
}

/* Whoever finishes a claimed entry without its body (once_entry_resolve) does not know when its message was sent. */
void once__entry_note_sent(once_entry *entry, const once_request *r, int64_t now_ms)
{
    if (r->sent_ms == ONCE_NO_TIME || r->sent_ms <= now_ms) return;
    const int64_t expires_ms = expiry(r->remember_ms, r->sent_ms, now_ms);
    if (expires_ms > entry->expires_ms) entry->expires_ms = expires_ms;
}

/* Remembered until its message is too old, also when the sender's clock is ahead of the store's. */
void once__entry_finish(once_entry *entry, once_state state, int64_t remember_ms, int64_t sent_ms, int64_t now_ms)
{
    once__entry_move(entry, state, ONCE_NEVER, now_ms);
    const int64_t expires_ms = expiry(remember_ms, sent_ms, now_ms);
    if (expires_ms > entry->expires_ms) entry->expires_ms = expires_ms; /* never forgotten earlier than once promised */
    entry->gap = false;
    once__entry_detach(entry);
}

/* The budget counts failures, and the time since the first of them. */
void once__entry_count_failure(once_entry *entry, int64_t now_ms)
{
    entry->failures++;
    if (entry->failing_ms == 0) entry->failing_ms = now_ms;
}

void once__entry_reset_failures(once_entry *entry)
{
    entry->failures = 0;
    entry->failing_ms = 0;
}

/* An orphan's attempt ended without an outcome, and counts now. Any other one was counted, and its `unreported` said,
 * by whoever settled it. */
void once__entry_start(once_entry *entry, once_token token, int64_t lease_ms, bool orphan, int64_t now_ms)
{
    assert(!once_hash_is_zero(token) && lease_ms > 0);
    once__entry_unexpire(entry);
    once__entry_move(entry, ONCE_STATE_CLAIMED, once__later_than(now_ms, lease_ms), now_ms);
    entry->token = token;
    entry->attempt++;
    if (!orphan) return;
    entry->unreported = entry->maybe = true;
    if (!ONCE_PLANTED(unreported_free)) once__entry_count_failure(entry, now_ms);
}

/* Who asks must have the message. Without one it waits for its source to bring that. */
bool once__entry_may_be_asked(const once_entry *entry) { return entry->lookup && entry->has_message; }

int once__entry_frees_lane(const once_entry *entry) { return once_hash_is_zero(entry->lane) ? 0 : ONCE_LANE_FREED; }

/* Its lease is over, and nobody has said how it ended. */
int once__entry_become_unknown(once_entry *entry, int64_t now_ms, once_decision *out)
{
    once__entry_move(entry, ONCE_STATE_UNKNOWN, once__entry_may_be_asked(entry) ? now_ms : ONCE_NEVER, now_ms);
    out->lapsed = true;
    out->lapsed_ms = now_ms;
    out->attempt = entry->attempt;
    return ONCE_ENTRY_CHANGED | once__entry_frees_lane(entry);
}

/* What a finished entry leaves: itself, or, when it is idempotent by nature, its lane's version alone. */
int once__entry_leave(once_entry *entry, once_lane *lane, bool natural)
{
    assert(once_state_finished(entry->state));
    const int advanced = entry->state == ONCE_STATE_STALE ? ONCE_UNCHANGED : once__lane_advance(entry, lane);
    if (natural && !ONCE_PLANTED(natural_remembered)) entry->state = ONCE_STATE_ABSENT; /* as once_entry_forget */
    return ONCE_ENTRY_CHANGED | once__entry_frees_lane(entry) | advanced;
}

once_state once_entry_state_at(const once_entry *entry, int64_t now_ms)
{
    if (once_entry_expired(entry, now_ms)) return ONCE_STATE_ABSENT;
    const bool lost = entry->state == ONCE_STATE_CLAIMED && entry->due_ms <= now_ms;
    if (!lost || ONCE_PLANTED(lost_unseen)) return entry->state;
    return entry->hold ? ONCE_STATE_UNKNOWN : ONCE_STATE_WAITING;
}

void once_entry_look(once_entry *entry, int64_t now_ms)
{
    const once_state state = once_entry_state_at(entry, now_ms);
    if (state == entry->state) return;
    if (state == ONCE_STATE_ABSENT) {
        *entry = (once_entry){.id = entry->id};
        return;
    }
    entry->changed_ms = entry->due_ms;
    if (state == ONCE_STATE_UNKNOWN && !once__entry_may_be_asked(entry)) entry->due_ms = ONCE_NEVER;
    entry->state = state;
}
