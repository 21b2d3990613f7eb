/* The states of an entry: how its life begins, changes and ends.
 *
 * once__entry_move is the one place where a state changes; `may_become` says which change is allowed. */
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
    if ((unsigned)e->state >= ONCE_STATES) return "its state is not valid";
    if (e->state == ONCE_STATE_ABSENT) return NULL;
    if (e->seen_ms < 0 || e->changed_ms < 0 || e->due_ms < 0 || e->expires_ms < 0 || e->failing_ms < 0)
        return "one of its times is before 1970";
    if (once_state_finished(e->state)) return NULL; /* a finished entry need not have the rest */
    if (e->remember_ms <= 0) return "its 'remember' time is not positive";
    if (e->gap_ms < -1) return "its wait for a missing version is negative";
    if (!once_hash_is_zero(e->lane) && e->order < 0) return "its place in the lane is negative";
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
    /* Waiting: an operator runs it again. Otherwise a finished entry only expires or is forgotten, and the next message
     * makes a new one. */
    [ONCE_STATE_DONE] = TO(WAITING),
    [ONCE_STATE_ALREADY] = TO(WAITING),
    [ONCE_STATE_REJECTED] = TO(WAITING),
    [ONCE_STATE_STALE] = TO(WAITING),
};

void once__entry_move(once_entry *entry, once_state to, int64_t due_ms, int64_t now_ms)
{
    assert((unsigned)entry->state < ONCE_STATES && (unsigned)to < ONCE_STATES);
    assert(may_become[entry->state] & (1u << to));
    assert(!once_state_finished(to) || due_ms == ONCE_NEVER); /* nothing is due in a finished entry */
    assert(to != ONCE_STATE_DEAD || due_ms == ONCE_NEVER);
    /* An entry that stays unknown keeps the time since when it is: the time of a lookup is measured from there. */
    if (to != entry->state || to != ONCE_STATE_UNKNOWN) entry->changed_ms = now_ms;
    entry->state = to;
    entry->due_ms = due_ms;
}

bool once__entry_is_absent(const once_entry *entry, int64_t now_ms)
{
    if (ONCE_PLANTED(dead_runs) && entry->state == ONCE_STATE_DEAD) return true;
    return entry->state == ONCE_STATE_ABSENT || once_entry_expired(entry, now_ms);
}

/* How long ago the first failure was; -1: none, or its time was not recorded. */
int64_t once__entry_failing_for(const once_entry *entry, int64_t now_ms)
{
    return entry->failures && entry->failing_ms ? now_ms - entry->failing_ms : -1;
}

/* Of equal versions the first one goes first, even when they came within a millisecond or the clock went back. */
static int64_t seen_behind_equals(const once_lane *lane, int64_t now_ms)
{
    return lane && lane->equal_ms >= now_ms ? once__one_more(lane->equal_ms) : now_ms;
}

/* A new entry under this id. Anything that was there has expired. */
void once__entry_begin(once_entry *entry, const once_lane *lane, const once_request *r, int64_t now_ms)
{
    assert(once__entry_is_absent(entry, now_ms));
    assert(r->scope && r->remember_ms > 0 && !r->late);
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

/* An entry that could expire goes on: from now on time does not end it. */
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

/* Counted from when the message was sent if that is in the future, because it becomes too old later than others. */
static int64_t expiry(int64_t remember_ms, int64_t sent_ms, int64_t now_ms)
{
    assert(remember_ms > 0);
    return remember_ms == ONCE_FOREVER ? ONCE_FOREVER
                                       : once__later_than(sent_ms > now_ms ? sent_ms : now_ms, remember_ms);
}

/* Keeps the expiry of a message from the future. An operator may finish the claimed entry without its body
 * (once_entry_resolve), and then nothing else says when the message was sent. */
void once__entry_note_sent(once_entry *entry, const once_request *r, int64_t now_ms)
{
    if (r->sent_ms == ONCE_NO_TIME || r->sent_ms <= now_ms) return;
    const int64_t expires_ms = expiry(r->remember_ms, r->sent_ms, now_ms);
    if (expires_ms > entry->expires_ms) entry->expires_ms = expires_ms;
}

/* Remembers the entry until its message is too old, also when the sender's clock is ahead of the store's. */
void once__entry_finish(once_entry *entry, once_state state, int64_t remember_ms, int64_t sent_ms, int64_t now_ms)
{
    assert(once_state_finished(state));
    once__entry_move(entry, state, ONCE_NEVER, now_ms);
    const int64_t expires_ms = expiry(remember_ms, sent_ms, now_ms);
    if (expires_ms > entry->expires_ms) entry->expires_ms = expires_ms; /* never earlier than promised before */
    entry->gap = false;
    once__entry_detach(entry);
}

/* The retry budget limits the number of failures and the time since the first one. */
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

/* Begins an attempt. `orphan`: the attempt before ended without reporting an outcome, so it counts as a failure now.
 * Every other attempt was counted by its settlement, which also set `unreported`. */
void once__entry_start(once_entry *entry, once_token token, int64_t lease_ms, bool orphan, int64_t now_ms)
{
    assert(!once_hash_is_zero(token) && lease_ms > 0);
    assert(orphan == (entry->state == ONCE_STATE_CLAIMED)); /* only an orphan is claimed and claimed again */
    once__entry_unexpire(entry);
    once__entry_move(entry, ONCE_STATE_CLAIMED, once__later_than(now_ms, lease_ms), now_ms);
    entry->token = token;
    entry->attempt++;
    if (!orphan) return;
    entry->unreported = entry->maybe_done = true;
    if (!ONCE_PLANTED(unreported_free)) once__entry_count_failure(entry, now_ms);
}

/* A worker needs the message to ask about it. Without one the entry waits until its source delivers it again. */
bool once__entry_may_be_asked(const once_entry *entry) { return entry->lookup && entry->has_message; }

int once__entry_frees_lane(const once_entry *entry) { return once_hash_is_zero(entry->lane) ? 0 : ONCE_LANE_FREED; }

/* The lease is over, and no worker reported an outcome. */
int once__entry_become_unknown(once_entry *entry, int64_t now_ms, once_decision *out)
{
    assert(entry->state == ONCE_STATE_CLAIMED && entry->hold && entry->due_ms <= now_ms);
    once__entry_move(entry, ONCE_STATE_UNKNOWN, once__entry_may_be_asked(entry) ? now_ms : ONCE_NEVER, now_ms);
    out->lapsed = true;
    out->lapsed_ms = now_ms;
    out->attempt = entry->attempt;
    return ONCE_ENTRY_CHANGED | once__entry_frees_lane(entry);
}

/* What a finished entry leaves behind: itself, or, if it is natural, only the version of its lane. */
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
    assert(entry->state == ONCE_STATE_CLAIMED); /* only a lease that is over makes a reader see another state */
    entry->changed_ms = entry->due_ms;
    if (state == ONCE_STATE_UNKNOWN && !once__entry_may_be_asked(entry)) entry->due_ms = ONCE_NEVER;
    entry->state = state;
}
