/* The rules of an entry; entry.h draws the picture. Nothing here allocates, blocks or looks at a clock. */
#include "core/entry.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/duration.h"
#include "base/plain.h"
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

/* --- what was read --- */

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

/* --- the one place where a state changes --- */

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

static void entry_move(once_entry *entry, once_state to, int64_t due_ms, int64_t now_ms)
{
    assert(may_become[entry->state] & (1u << to));
    /* What is still unknown has been so since then: how long it may be asked about is measured from there. */
    if (to != entry->state || to != ONCE_STATE_UNKNOWN) entry->changed_ms = now_ms;
    entry->state = to;
    entry->due_ms = due_ms;
}

/* --- helpers --- */

static int64_t later_than(int64_t now_ms, int64_t delay_ms)
{
    int64_t sum;
    assert(delay_ms >= 0);
    return __builtin_add_overflow(now_ms, delay_ms, &sum) ? ONCE_NEVER : sum;
}

static int64_t until(int64_t due_ms, int64_t now_ms)
{
    if (due_ms == ONCE_NEVER) return ONCE_NEVER;
    return due_ms > now_ms ? due_ms - now_ms : 0;
}

static once_outcome outcome_of(once_state state)
{
    switch (state) {
    case ONCE_STATE_ALREADY: return ONCE_ALREADY;
    case ONCE_STATE_REJECTED: return ONCE_REJECTED;
    case ONCE_STATE_STALE: return ONCE_STALE;
    default: assert(state == ONCE_STATE_DONE); return ONCE_DONE;
    }
}

static once_state state_after(once_outcome outcome)
{
    switch (outcome) {
    case ONCE_DONE: return ONCE_STATE_DONE;
    case ONCE_ALREADY: return ONCE_STATE_ALREADY;
    case ONCE_REJECTED: return ONCE_STATE_REJECTED;
    case ONCE_STALE: return ONCE_STATE_STALE;
    case ONCE_RETRY:
    case ONCE_RELEASE: return ONCE_STATE_WAITING;
    case ONCE_UNKNOWN: return ONCE_STATE_UNKNOWN;
    default: assert(outcome == ONCE_DEAD); return ONCE_STATE_DEAD;
    }
}

static bool is_absent(const once_entry *entry, int64_t now_ms)
{
    if (ONCE_PLANTED(dead_runs) && entry->state == ONCE_STATE_DEAD) return true;
    return entry->state == ONCE_STATE_ABSENT || once_entry_expired(entry, now_ms);
}

/* The fence. */
static bool same_claim(const once_entry *entry, const once_request *r)
{
    return ONCE_PLANTED(no_fence) || once_hash_equal(entry->token, r->token);
}

/* Some attempt failed, and somebody noted when the first one did. */
static int64_t failing_for(const once_entry *entry, int64_t now_ms)
{
    return entry->failures && entry->failing_ms ? now_ms - entry->failing_ms : -1;
}

static int64_t one_more(int64_t n) { return n < INT64_MAX ? n + 1 : INT64_MAX; }

/* The place of a message without a version: behind all others. */
static int64_t lane_end(const once_lane *lane)
{
    int64_t last = lane->tail;
    for (unsigned i = 0; i < lane->n_blockers; i++)
        if (lane->blockers[i].order > last) last = lane->blockers[i].order;
    return one_more(last);
}

/* Among equals the first one goes first, also when they came within a millisecond or the clock went back. */
static int64_t seen_behind_equals(const once_lane *lane, int64_t now_ms)
{
    return lane && lane->equal_ms >= now_ms ? one_more(lane->equal_ms) : now_ms;
}

/* A new life under this id, whatever was there before has expired. */
static void entry_begin(once_entry *entry, const once_lane *lane, const once_request *r, int64_t now_ms)
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
                                     : lane_end(lane),
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
static void unexpire(once_entry *entry)
{
    if (!once_state_finished(entry->state) && once_entry_expires(entry)) entry->expires_ms = 0;
}

static void attach(once_entry *entry, const once_message *message)
{
    if (!message || entry->has_message) return;
    entry->message = *message;
    entry->has_message = true;
}

static void detach(once_entry *entry)
{
    entry->message = (once_message){0};
    entry->has_message = false;
}

/* A message that is from the future is too old later than others. */
static int64_t expiry(int64_t remember_ms, int64_t sent_ms, int64_t now_ms)
{
    return remember_ms == ONCE_FOREVER ? ONCE_FOREVER : later_than(sent_ms > now_ms ? sent_ms : now_ms, remember_ms);
}

/* Whoever finishes a claimed entry without its body (once_entry_resolve) does not know when its message was sent. */
static void note_sent(once_entry *entry, const once_request *r, int64_t now_ms)
{
    if (r->sent_ms == ONCE_NO_TIME || r->sent_ms <= now_ms) return;
    const int64_t expires_ms = expiry(r->remember_ms, r->sent_ms, now_ms);
    if (expires_ms > entry->expires_ms) entry->expires_ms = expires_ms;
}

/* Remembered until its message is too old, also when the sender's clock is ahead of the store's. */
static void finish(once_entry *entry, once_state state, int64_t remember_ms, int64_t sent_ms, int64_t now_ms)
{
    entry_move(entry, state, ONCE_NEVER, now_ms);
    const int64_t expires_ms = expiry(remember_ms, sent_ms, now_ms);
    if (expires_ms > entry->expires_ms) entry->expires_ms = expires_ms; /* never forgotten earlier than once promised */
    entry->gap = false;
    detach(entry);
}

/* The budget counts failures, and the time since the first of them. */
static void count_failure(once_entry *entry, int64_t now_ms)
{
    entry->failures++;
    if (entry->failing_ms == 0) entry->failing_ms = now_ms;
}

static void reset_failures(once_entry *entry)
{
    entry->failures = 0;
    entry->failing_ms = 0;
}

/* An orphan's attempt ended without an outcome, and counts now. Any other one was counted, and its `unreported` said,
 * by whoever settled it. */
static void start(once_entry *entry, once_token token, int64_t lease_ms, bool orphan, int64_t now_ms)
{
    assert(!once_hash_is_zero(token) && lease_ms > 0);
    unexpire(entry);
    entry_move(entry, ONCE_STATE_CLAIMED, later_than(now_ms, lease_ms), now_ms);
    entry->token = token;
    entry->attempt++;
    if (!orphan) return;
    entry->unreported = entry->maybe = true;
    if (!ONCE_PLANTED(unreported_free)) count_failure(entry, now_ms);
}

/* --- what a lane has to say --- */

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

/* A name ends at its first zero: only people look at it here. */
static int text_length(once_bytes name)
{
    return (int)strnlen(name.data ? name.data : "", name.len < ONCE_LANE_NAME ? name.len : ONCE_LANE_NAME);
}

static once_bytes say_settled(once_lane *lane, const char *more)
{
    const long long version = (long long)lane->version;
    if (once_hash_is_zero(lane->by))
        return say(lane, "version %lld of this lane was settled before, by whom is not known%s", version, more);
    return say(lane, "version %lld of this lane was settled by key '%.*s'%s", version, text_length(lane->key),
               lane->key.len ? lane->key.data : "", more);
}

/* As much of a name as a lane keeps: no character is left without its end. */
static once_bytes cut(once_bytes name)
{
    if (name.len <= ONCE_LANE_NAME) return name;
    size_t len = ONCE_LANE_NAME;
    while (len > ONCE_LANE_NAME - 3 && ((unsigned char)name.data[len] & 0xc0) == 0x80) len--;
    return (once_bytes){name.data, ((unsigned char)name.data[len] & 0xc0) == 0x80 ? ONCE_LANE_NAME : len};
}

static bool is_same_operation(const once_lane *lane, const once_scope *scope)
{
    const once_bytes ours = cut(scope->operation);
    return once_bytes_equal(ours, lane->operation);
}

static once_bytes say_conflict(once_lane *lane, const once_scope *scope)
{
    if (once_hash_is_zero(lane->by)) return say_settled(lane, " and with which content");
    if (!is_same_operation(lane, scope)) return say_settled(lane, " of another operation");
    return say_settled(lane,
                       once_hash_is_zero(lane->content) ? ", with which content is not known" : " with other content");
}

static once_bytes say_missing(once_lane *lane, int64_t from, int64_t to, const char *more)
{
    if (from >= to) return say(lane, "version %lld%s", (long long)to, more);
    return say(lane, "versions %lld to %lld%s", (long long)from, (long long)to, more);
}

/* --- the lane --- */

/* No version below it is waited for. False: nothing is known of the lane. */
static bool lane_next(const once_lane *lane, int64_t *next)
{
    *next = lane->has_next ? lane->next : 0;
    if (lane->has_version && one_more(lane->version) > *next) *next = one_more(lane->version);
    return lane->has_version || lane->has_next;
}

static bool has_gap(const once_lane *lane, int64_t order)
{
    int64_t next;
    return lane_next(lane, &next) && order > next && !ONCE_PLANTED(gap_ignored);
}

static bool blocks(const once_lane *lane, int64_t order)
{
    if (ONCE_PLANTED(block_ignored)) return false;
    bool behind = lane->n_blockers == ONCE_LANE_BLOCKERS; /* one more that dies could not be kept */
    for (unsigned i = 0; i < lane->n_blockers; i++) behind |= order >= lane->blockers[i].order;
    return behind;
}

/* Versions were given up, and this one is among them or before them: nobody waits for it. It may come nevertheless. */
static bool is_passed(const once_lane *lane, int64_t order) { return lane->has_lost && order <= lane->lost_to; }

/* The versions before it were given up for this one to go on, and it has not died since. */
static bool was_waited_for(const once_lane *lane, const once_entry *entry)
{
    return lane && entry->versioned && lane->has_lost && lane->lost_to == entry->order - 1 &&
           lane->next == entry->order;
}

static bool waits_for_missing(const once_lane *lane, const once_entry *entry)
{
    return entry->gap && !was_waited_for(lane, entry);
}

/* What the lane says to an entry of this order. RUN: nothing is in the way. DUPLICATE: its version is settled; by whom
 * must be looked at. A new one stands behind its equals (the same version under another key, or one that came back from
 * the dead); among known ones equals must not wait for each other. */
static once_answer lane_answer(const once_lane *lane, bool is_new, bool natural, bool versioned, int64_t order,
                               int64_t gap_ms)
{
    if (!lane || ONCE_PLANTED(lane_ignored)) return ONCE_ANSWER_RUN;
    if (versioned && lane->has_version) {
        if (order == lane->version && !natural) return ONCE_ANSWER_DUPLICATE;
        if (order < lane->version && !ONCE_PLANTED(stale_runs)) return ONCE_ANSWER_STALE;
    }
    const bool others = lane->tail >= 0;
    if (lane->claimed || blocks(lane, order) || (others && (lane->head < order || (is_new && lane->head == order))))
        return ONCE_ANSWER_LATER;
    return versioned && gap_ms >= 0 && has_gap(lane, order) ? ONCE_ANSWER_GAP : ONCE_ANSWER_RUN;
}

/* Somebody settled this version: is it the same message? */
static once_answer judge_equal(const once_lane *lane, once_hash id, const once_scope *scope, once_hash fingerprint)
{
    const bool known = !once_hash_is_zero(lane->content), asked = !once_hash_is_zero(fingerprint);
    if (ONCE_PLANTED(version_unjudged)) return ONCE_ANSWER_DUPLICATE;
    if (once_hash_is_zero(lane->by)) return ONCE_ANSWER_CONFLICT;
    if (once_hash_equal(lane->by, id))
        return known && asked && !once_hash_equal(lane->content, fingerprint) ? ONCE_ANSWER_CONFLICT
                                                                              : ONCE_ANSWER_DUPLICATE;
    if (!is_same_operation(lane, scope)) return ONCE_ANSWER_CONFLICT;
    if (!asked) return ONCE_ANSWER_DUPLICATE;
    return known && once_hash_equal(lane->content, fingerprint) ? ONCE_ANSWER_DUPLICATE : ONCE_ANSWER_CONFLICT;
}

/* Who was let in once does not wait for missing versions again: not when it is replayed or tried again, also when the
 * lane went back to a version that had been given up. Who was put back before it ran (`gap` stays) does. */
static int64_t gap_of(const once_entry *entry)
{
    const bool orphan = entry->state == ONCE_STATE_CLAIMED;
    return entry->attempt && (orphan || !entry->gap) ? -1 : entry->gap_ms;
}

/* What the lane says to an entry that it knows. An orphan was let in before and goes on before all others: whoever came
 * in front of it meanwhile is waiting for it to end. The one that settled the version is made to run once more. */
static once_answer lane_answer_to_known(const once_lane *lane, const once_entry *entry)
{
    const bool orphan = entry->state == ONCE_STATE_CLAIMED;
    const once_answer answer =
        lane_answer(lane, false, entry->natural || (lane && once_hash_equal(lane->by, entry->id)), entry->versioned,
                    entry->order, gap_of(entry));
    if (answer == ONCE_ANSWER_DUPLICATE) return judge_equal(lane, entry->id, &entry->scope, entry->fingerprint);
    if (answer == ONCE_ANSWER_LATER && orphan && !lane->claimed) return ONCE_ANSWER_RUN;
    return answer;
}

/* A lane without a version begins where the file says. The caller keeps that when somebody has to wait for it. */
static void begin_lane(once_lane *lane, const once_request *r)
{
    if (!r->lane.versioned || !r->lane.has_first || lane->has_version || lane->has_next || ONCE_PLANTED(first_ignored))
        return;
    lane->has_next = true;
    lane->next = r->lane.first;
}

/* What was known of it may have expired. */
static bool is_too_old(const once_lane *lane, const once_request *r, int64_t now_ms)
{
    const bool remembered = !r->natural || (lane && r->lane.versioned); /* something that has expired by then */
    /* An entry made at sent_ms has expired when now - remember reaches it, so that moment is already too old. */
    return remembered && r->sent_ms != ONCE_NO_TIME && r->remember_ms < now_ms &&
           r->sent_ms <= now_ms - r->remember_ms && !ONCE_PLANTED(too_old_runs);
}

static once_answer answer_to_new(once_lane *lane, const once_request *r, int64_t now_ms)
{
    if (is_too_old(lane, r, now_ms)) return ONCE_ANSWER_TOO_OLD;
    if (!lane) return ONCE_ANSWER_RUN;
    begin_lane(lane, r);
    const once_answer answer = lane_answer(lane, true, r->natural, r->lane.versioned,
                                           r->lane.versioned ? r->lane.version : lane_end(lane), r->lane.gap_ms);
    return answer == ONCE_ANSWER_DUPLICATE ? judge_equal(lane, r->id, r->scope, r->fingerprint) : answer;
}

static bool has_same_place(const once_entry *entry, const once_request *r)
{
    return once_hash_equal(entry->lane, r->lane.id) && entry->versioned == r->lane.versioned &&
           (!entry->versioned || entry->order == r->lane.version);
}

static bool has_other_content(const once_entry *entry, const once_request *r)
{
    return !once_hash_is_zero(entry->fingerprint) && !once_hash_is_zero(r->fingerprint) &&
           !once_hash_equal(entry->fingerprint, r->fingerprint) && !ONCE_PLANTED(conflict_ignored);
}

/* It has been tried, and nothing was done: other content may take its place. entry.h says why not otherwise. */
static bool gives_way(const once_entry *entry, const once_lane *lane, const once_request *r, int64_t now_ms)
{
    if (entry->state != ONCE_STATE_WAITING || entry->attempt == 0 || !has_other_content(entry, r)) return false;
    if ((entry->unreported || entry->maybe) && !ONCE_PLANTED(maybe_replaced)) return false;
    if (entry->old_key) return false; /* it may be from when only the last attempt was known */
    return (!entry->fixed || ONCE_PLANTED(takes_turns)) && has_same_place(entry, r) && !is_too_old(lane, r, now_ms);
}

/* What a delivery gets for an entry that exists, before anything is changed. RUN: it may be claimed now. *by_lane: the
 * entry itself would say so to whoever takes it. */
static once_answer answer_to_known(const once_entry *entry, const once_lane *lane, const once_request *r,
                                   int64_t now_ms, bool *by_lane)
{
    *by_lane = false;
    if (has_other_content(entry, r)) return ONCE_ANSWER_CONFLICT;
    if (once_state_finished(entry->state)) return ONCE_ANSWER_DUPLICATE;
    switch (entry->state) {
    case ONCE_STATE_DEAD: return ONCE_ANSWER_DEAD;
    case ONCE_STATE_UNKNOWN: return ONCE_ANSWER_UNKNOWN;
    case ONCE_STATE_CLAIMED:
        if (ONCE_PLANTED(seen_first)) return ONCE_ANSWER_DUPLICATE;
        if (entry->due_ms > now_ms) return ONCE_ANSWER_BUSY;
        if (entry->hold) return ONCE_ANSWER_UNKNOWN;
        break;
    default:
        assert(entry->state == ONCE_STATE_WAITING);
        if (entry->due_ms > now_ms) return ONCE_ANSWER_LATER;
    }
    *by_lane = true;
    return lane_answer_to_known(lane, entry);
}

static void describe(const once_entry *entry, once_answer answer, int64_t now_ms, once_decision *out)
{
    out->answer = answer;
    out->old_key = entry->old_key;
    switch (answer) {
    case ONCE_ANSWER_RUN:
        out->attempt = entry->attempt;
        out->failures = entry->failures;
        out->failing_for_ms = failing_for(entry, now_ms);
        out->unreported = entry->unreported;
        out->maybe = entry->maybe;
        out->gap_over = entry->gap;
        if (entry->unreported && !entry->gap) out->before = entry->reason;
        break;
    case ONCE_ANSWER_DUPLICATE:
        out->outcome = once_state_finished(entry->state) ? outcome_of(entry->state) : ONCE_DONE;
        out->result = entry->result;
        break;
    case ONCE_ANSWER_BUSY:
    case ONCE_ANSWER_LATER:
    case ONCE_ANSWER_GAP: out->wait_ms = until(entry->due_ms, now_ms); break;
    case ONCE_ANSWER_CONFLICT: out->fields = entry->fields; break;
    default: break;
    }
}

static int lane_freed(const once_entry *entry) { return once_hash_is_zero(entry->lane) ? 0 : ONCE_LANE_FREED; }

/* Who asks must have the message. Without one it waits for its source to bring that. */
static bool may_be_asked(const once_entry *entry) { return entry->lookup && entry->has_message; }

/* Its lease is over, and nobody has said how it ended. */
static int become_unknown(once_entry *entry, int64_t now_ms, once_decision *out)
{
    entry_move(entry, ONCE_STATE_UNKNOWN, may_be_asked(entry) ? now_ms : ONCE_NEVER, now_ms);
    out->lapsed = true;
    out->lapsed_ms = now_ms;
    out->attempt = entry->attempt;
    return ONCE_ENTRY_CHANGED | lane_freed(entry);
}

/* What the lane says now is kept so long at least; and while somebody waits in it, or it for a letter, as long as that.
 */
static void promise(once_lane *lane, int64_t until_ms)
{
    if (until_ms > lane->until_ms) lane->until_ms = until_ms;
    if (lane->expires_ms != ONCE_FOREVER || (lane->tail < 0 && !lane->n_blockers)) lane->expires_ms = lane->until_ms;
}

static void stop_waiting(once_lane *lane)
{
    lane->waits = false;
    lane->waited_ms = lane->counted_ms = 0;
}

/* A version that was given up came after all, before any newer one settled: the lane goes on from there, and waits
 * again for those between. */
static void go_back(once_lane *lane, int64_t order)
{
    if (!is_passed(lane, order)) return;
    lane->next = one_more(order);
    lane->lost_to = order - 1;
    lane->has_lost = lane->lost_to >= lane->lost_from;
    stop_waiting(lane);
}

/* After it finished, with whatever but stale: later versions need not wait for this one any more. */
static int advance_lane(const once_entry *entry, once_lane *lane)
{
    if (!lane || !entry->versioned || (lane->has_version && entry->order < lane->version)) return ONCE_UNCHANGED;
    if (lane->has_version && entry->order == lane->version && /* forced once more, it may have another content */
        (!once_hash_equal(lane->by, entry->id) || once_hash_equal(lane->content, entry->fingerprint)))
        return ONCE_UNCHANGED;
    go_back(lane, entry->order);
    lane->has_version = true;
    lane->version = entry->order;
    lane->by = entry->id;
    lane->content = entry->fingerprint;
    lane->operation = cut(entry->scope.operation);
    lane->key = cut(entry->key);
    promise(lane, entry->expires_ms);
    return ONCE_LANE_CHANGED;
}

/* Where it is among the dead that the lane waits for; n_blockers: it is not. */
static unsigned find_blocker(const once_lane *lane, once_hash id)
{
    unsigned at = 0;
    while (at < lane->n_blockers && !once_hash_equal(lane->blockers[at].id, id)) at++;
    return at;
}

static void block_lane(const once_entry *entry, once_lane *lane)
{
    const unsigned at = find_blocker(lane, entry->id);
    lane->expires_ms = ONCE_FOREVER;
    if (at == ONCE_LANE_BLOCKERS)
        return; /* in a full lane nothing runs that could die; only a planted bug comes here */
    if (at == lane->n_blockers) lane->n_blockers++;
    lane->blockers[at] = (once_blocker){entry->id, entry->order};
}

static int unblock_lane(const once_entry *entry, once_lane *lane)
{
    const unsigned at = lane ? find_blocker(lane, entry->id) : 0;
    if (!lane || at == lane->n_blockers) return ONCE_UNCHANGED;
    lane->blockers[at] = lane->blockers[--lane->n_blockers];
    return ONCE_LANE_CHANGED | lane_freed(entry);
}

/* A version that died has come: nobody waits for it any more. */
static int pass_dead(const once_entry *entry, once_lane *lane, int64_t now_ms)
{
    int64_t next;
    const bool known = lane_next(lane, &next);
    if (!entry->versioned || entry->gap_ms < 0 || (known && entry->order != next) || ONCE_PLANTED(gap_anew))
        return ONCE_UNCHANGED;
    lane->has_next = true;
    lane->next = one_more(entry->order);
    promise(lane, later_than(now_ms, entry->remember_ms));
    return ONCE_LANE_CHANGED;
}

static int lane_after_death(const once_entry *entry, once_lane *lane, int64_t now_ms)
{
    if (!lane) return ONCE_UNCHANGED;
    const int passed = pass_dead(entry, lane, now_ms);
    if (!entry->block) return passed;
    block_lane(entry, lane);
    return ONCE_LANE_CHANGED;
}

/* What a finished entry leaves: itself, or, when it is idempotent by nature, its lane's version alone. */
static int leave(once_entry *entry, once_lane *lane, bool natural)
{
    assert(once_state_finished(entry->state));
    const int advanced = entry->state == ONCE_STATE_STALE ? ONCE_UNCHANGED : advance_lane(entry, lane);
    if (natural && !ONCE_PLANTED(natural_remembered)) entry->state = ONCE_STATE_ABSENT; /* as once_entry_forget */
    return ONCE_ENTRY_CHANGED | lane_freed(entry) | advanced;
}

static once_bytes say_stale(once_lane *lane, int64_t order)
{
    if (lane && is_passed(lane, order) && order >= lane->lost_from)
        return say(lane, "version %lld was given up before it came", (long long)order);
    return ONCE_BYTES("a newer version came first");
}

static int become_stale(once_entry *entry, once_lane *lane, once_token token, bool natural, int64_t remember_ms,
                        int64_t sent_ms, int64_t now_ms, once_decision *out)
{
    finish(entry, ONCE_STATE_STALE, remember_ms, sent_ms, now_ms);
    entry->token = token;
    entry->reason = out->reason = say_stale(lane, entry->order);
    out->answer = ONCE_ANSWER_STALE;
    return leave(entry, NULL, natural);
}

/* A new message that is too late: recorded, unless nothing is kept of it anyway. */
static int begin_stale(once_entry *entry, once_lane *lane, const once_request *r, int64_t now_ms, once_decision *out)
{
    if (r->natural) {
        out->answer = ONCE_ANSWER_STALE;
        out->reason = say_stale(lane, r->lane.version);
        return ONCE_UNCHANGED;
    }
    entry_begin(entry, lane, r, now_ms);
    return become_stale(entry, lane, r->token, false, r->remember_ms, r->sent_ms, now_ms, out);
}

/* Its version settled under another key, with the same content: recorded, so that everybody can see why it did not run.
 */
static int become_already(once_entry *entry, once_lane *lane, int64_t remember_ms, int64_t sent_ms, int64_t now_ms,
                          once_decision *out)
{
    finish(entry, ONCE_STATE_ALREADY, remember_ms, sent_ms, now_ms);
    entry->token =
        (once_token){0}; /* its lane settled it, no claim did: whoever asks again is told a duplicate again */
    const bool compared = !once_hash_is_zero(entry->fingerprint);
    entry->reason = out->reason = say_settled(lane, compared ? "" : "; contents are not compared");
    out->answer = ONCE_ANSWER_DUPLICATE;
    out->outcome = ONCE_ALREADY;
    out->lane = true;
    return ONCE_ENTRY_CHANGED | lane_freed(entry);
}

static int begin_already(once_entry *entry, once_lane *lane, const once_request *r, int64_t now_ms, once_decision *out)
{
    entry_begin(entry, lane, r, now_ms);
    return become_already(entry, lane, r->remember_ms, r->sent_ms, now_ms, out);
}

static void refuse(once_lane *lane, const once_scope *scope, once_decision *out)
{
    out->answer = ONCE_ANSWER_CONFLICT;
    out->reason = say_conflict(lane, scope);
    out->lane = true;
}

/* --- waiting for a missing version --- */

enum { GAP_LOOKS = 16, GAP_STEP_MIN_MS = 250, GAP_STEP_MAX_MS = 2000 };

static int64_t gap_step_ms(int64_t gap_ms)
{
    const int64_t step_ms = gap_ms / GAP_LOOKS;
    return step_ms < GAP_STEP_MIN_MS ? GAP_STEP_MIN_MS : step_ms > GAP_STEP_MAX_MS ? GAP_STEP_MAX_MS : step_ms;
}

/* Counts what has passed since the last look. A run that is alive looks after each step; more than two are time without
 * one. */
static void count_wait(once_lane *lane, int64_t gap_ms, int64_t now_ms)
{
    const int64_t most_ms = 2 * gap_step_ms(gap_ms), passed_ms = now_ms - lane->counted_ms;
    if (!lane->waits) lane->waited_ms = 0;
    else if (passed_ms > 0)
        lane->waited_ms += passed_ms < most_ms || ONCE_PLANTED(gap_while_down) ? passed_ms : most_ms;
    lane->waits = true;
    lane->counted_ms = now_ms;
    lane->expires_ms = ONCE_FOREVER; /* the wait and the version must be there when it is over; once_lane_rest */
}

/* The entry is the lowest of its lane, and waits. It is looked at again after a step. */
static void wait_for_missing(once_entry *entry, once_lane *lane, int64_t now_ms)
{
    count_wait(lane, entry->gap_ms, now_ms);
    const int64_t left_ms = entry->gap_ms > lane->waited_ms ? entry->gap_ms - lane->waited_ms : 0,
                  step_ms = gap_step_ms(entry->gap_ms);
    entry->gap = true;
    entry->due_ms = later_than(now_ms, left_ms < step_ms ? left_ms : step_ms);
}

static void give_up_missing(const once_entry *entry, once_lane *lane)
{
    int64_t next;
    lane_next(lane, &next);
    lane->has_lost = true;
    lane->lost_from = next;
    lane->lost_to = entry->order - 1;
    lane->has_next = true;
    lane->next = entry->order;
    stop_waiting(lane);
}

/* The entry is due, and a version before it is missing. GAP: it goes on waiting. */
static once_answer wait_or_give_up(once_entry *entry, once_lane *lane, int64_t now_ms)
{
    wait_for_missing(entry, lane, now_ms);
    if (lane->waited_ms < entry->gap_ms) return ONCE_ANSWER_GAP;
    give_up_missing(entry, lane);
    return ONCE_ANSWER_RUN;
}

int64_t once_lane_given_up(const once_lane *lane, const once_entry *entry)
{
    if (!was_waited_for(lane, entry) || entry->attempt > 1) return 0;
    const int64_t before_last = lane->lost_to - lane->lost_from;
    return before_last < ONCE_GAP_COUNTED ? before_last + 1 : ONCE_GAP_COUNTED;
}

int64_t once_lane_given_up_again(const once_lane *lane, const once_entry *entry)
{
    once_entry before = *entry;
    if (before.unreported && before.attempt == 2)
        before.attempt = 1; /* it took over from the first one, which did not settle it */
    return once_lane_given_up(lane, &before);
}

/* What whoever runs it is told, and its letter or `explain`. */
static once_bytes say_gap_over(once_lane *lane, const once_entry *entry)
{
    char wait[ONCE_DURATION_TEXT], more[64];
    if (!was_waited_for(lane, entry))
        return ONCE_BYTES("an earlier version did not come in time"); /* claimed by an older once */
    snprintf(more, sizeof more, " did not come within %s",
             once_duration_format(entry->gap_ms < 0 ? 0 : entry->gap_ms, wait));
    return say_missing(lane, lane->lost_from, lane->lost_to, more);
}

int once_lane_rest(once_lane *lane, const once_entry *entry, int64_t now_ms)
{
    if (lane->expires_ms != ONCE_FOREVER || lane->n_blockers || lane->until_ms == ONCE_FOREVER) return ONCE_UNCHANGED;
    stop_waiting(lane);
    promise(lane, entry->expires_ms > now_ms ? entry->expires_ms : later_than(now_ms, entry->remember_ms));
    return ONCE_LANE_CHANGED;
}

once_bytes once_lane_says(once_lane *lane, const once_entry *entry)
{
    int64_t next;
    if (entry->state == ONCE_STATE_DEAD && find_blocker(lane, entry->id) < lane->n_blockers)
        return ONCE_BYTES("its lane waits for this letter");
    if (entry->state != ONCE_STATE_WAITING) return (once_bytes){0};
    if (blocks(lane, entry->order))
        return ONCE_BYTES("it waits for a dead letter of its lane to be replayed or discarded");
    switch (lane_answer(lane, false, entry->natural, entry->versioned, entry->order, gap_of(entry))) {
    case ONCE_ANSWER_LATER: return ONCE_BYTES("it waits behind another message of its lane");
    case ONCE_ANSWER_GAP: {
        char waited[ONCE_DURATION_TEXT], wait[ONCE_DURATION_TEXT], more[100];
        lane_next(lane, &next);
        snprintf(more, sizeof more,
                 entry->order - next > 1 ? " are missing; %s of %s have passed" : " is missing; %s of %s have passed",
                 once_duration_format(lane->waited_ms, waited), once_duration_format(entry->gap_ms, wait));
        return say_missing(lane, next, entry->order - 1, more);
    }
    default: return (once_bytes){0};
    }
}

bool once_lane_missing(const once_lane *lane, const once_entry *entry, int64_t *from, int64_t *to)
{
    if (entry->state != ONCE_STATE_WAITING || !entry->versioned || blocks(lane, entry->order) || !lane_next(lane, from))
        return false;
    if (lane_answer(lane, false, entry->natural, true, entry->order, gap_of(entry)) != ONCE_ANSWER_GAP) return false;
    *to = entry->order - 1;
    return true;
}

/* --- what it is at a time --- */

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
    if (state == ONCE_STATE_UNKNOWN && !may_be_asked(entry)) entry->due_ms = ONCE_NEVER;
    entry->state = state;
}

/* --- the rules --- */

static bool lane_holds(const once_lane *lane, const once_entry *entry)
{
    return entry->due_ms == ONCE_NEVER || waits_for_missing(lane, entry);
}

/* The content of the request takes the place of what waits here. It need not wait for the next try of that one, but for
 * its lane it does. */
static int replace(once_entry *entry, const once_lane *lane, const once_request *r, int64_t now_ms, once_decision *out)
{
    out->replaced = true;
    out->left_by = entry->run;
    unexpire(entry);
    entry_move(entry, ONCE_STATE_WAITING, lane_holds(lane, entry) ? entry->due_ms : now_ms, now_ms);
    reset_failures(entry);
    detach(entry);
    entry->fixed = true;
    entry->token = r->token;
    entry->fingerprint = r->fingerprint;
    entry->fields = r->fields;
    entry->at = r->at;
    if (!lane) entry->seen_ms = now_ms; /* in a lane that is its place among its equals */
    entry->run = r->run;
    entry->remember_ms = r->remember_ms;
    entry->gap_ms = r->lane.gap_ms;
    entry->block = r->lane.block;
    entry->hold = r->hold;
    entry->lookup = r->lookup;
    entry->natural = r->natural;
    entry->reason = ONCE_BYTES("it took the place of other content, which had had no effect");
    return ONCE_ENTRY_CHANGED | ONCE_REPLACED;
}

/* A claim replaces only what it may run now. Otherwise nothing is changed: accept, which has the body, does it. */
static int claim_replacing(once_entry *entry, once_lane *lane, const once_request *r, int64_t now_ms,
                           once_decision *out)
{
    if (lane_holds(lane, entry) || lane_answer_to_known(lane, entry) != ONCE_ANSWER_RUN) {
        describe(entry, ONCE_ANSWER_LATER, now_ms, out);
        return ONCE_UNCHANGED;
    }
    const int changed = replace(entry, lane, r, now_ms, out);
    entry->gap = was_waited_for(lane, entry);
    start(entry, r->token, r->lease_ms, false, now_ms);
    note_sent(entry, r, now_ms);
    describe(entry, ONCE_ANSWER_RUN, now_ms, out);
    if (entry->gap) entry->reason = out->reason = say_gap_over(lane, entry);
    return changed;
}

int once_entry_claim(once_entry *entry, once_lane *lane, const once_request *r, int64_t now_ms, once_decision *out)
{
    assert(r->remember_ms > 0 && r->lease_ms > 0 && !once_hash_is_zero(r->token));
    *out = (once_decision){0};
    const bool again = !once_hash_is_zero(entry->token) && once_hash_equal(entry->token, r->token);

    if (is_absent(entry, now_ms)) {
        const once_answer answer = answer_to_new(lane, r, now_ms);
        if (answer == ONCE_ANSWER_STALE) return begin_stale(entry, lane, r, now_ms, out);
        if (answer == ONCE_ANSWER_DUPLICATE) return begin_already(entry, lane, r, now_ms, out);
        if (answer != ONCE_ANSWER_RUN) {
            out->answer = answer;
            if (answer == ONCE_ANSWER_CONFLICT) refuse(lane, r->scope, out);
            if (answer == ONCE_ANSWER_GAP) out->wait_ms = r->lane.gap_ms;
            if (answer == ONCE_ANSWER_LATER) out->wait_ms = ONCE_NEVER;
            return ONCE_UNCHANGED;
        }
        entry_begin(entry, lane, r, now_ms);
        start(entry, r->token, r->lease_ms, false, now_ms);
        note_sent(entry, r, now_ms);
        describe(entry, answer, now_ms, out);
        return ONCE_ENTRY_CHANGED;
    }

    /* The reply to this very claim was lost: the same answer once more. */
    if (again && entry->state == ONCE_STATE_CLAIMED) {
        entry->due_ms = later_than(now_ms, r->lease_ms);
        describe(entry, ONCE_ANSWER_RUN, now_ms, out);
        if (entry->gap) out->given_up = once_lane_given_up_again(lane, entry);
        out->own = true;
        return ONCE_ENTRY_CHANGED;
    }
    if (again && entry->state == ONCE_STATE_STALE) {
        out->answer = ONCE_ANSWER_STALE;
        return ONCE_UNCHANGED;
    }

    if (gives_way(entry, lane, r, now_ms)) return claim_replacing(entry, lane, r, now_ms, out);

    bool by_lane;
    once_answer answer = answer_to_known(entry, lane, r, now_ms, &by_lane);
    if (answer == ONCE_ANSWER_CONFLICT && by_lane && entry->has_message)
        answer = ONCE_ANSWER_LATER; /* take makes it a letter */
    out->own = again && (answer == ONCE_ANSWER_DUPLICATE || answer == ONCE_ANSWER_DEAD) && !by_lane;
    const bool claimed = entry->state == ONCE_STATE_CLAIMED;
    int changed = ONCE_UNCHANGED;
    if (answer == ONCE_ANSWER_GAP) {
        answer = wait_or_give_up(entry, lane, now_ms);
        changed = ONCE_ENTRY_CHANGED | ONCE_LANE_CHANGED;
    }
    if (entry->state == ONCE_STATE_WAITING && !again && answer != ONCE_ANSWER_LATER && answer != ONCE_ANSWER_GAP &&
        by_lane)
        out->left_by = entry->run;
    if (answer == ONCE_ANSWER_STALE)
        return become_stale(entry, lane, r->token, r->natural, r->remember_ms, r->sent_ms, now_ms, out);
    if (answer == ONCE_ANSWER_DUPLICATE && by_lane)
        return become_already(entry, lane, r->remember_ms, r->sent_ms, now_ms, out);
    if (answer == ONCE_ANSWER_CONFLICT && by_lane) { /* without a body: what was delivered now becomes the letter */
        refuse(lane, r->scope, out);
        return once_entry_forget(entry, lane);
    }
    if (answer == ONCE_ANSWER_RUN) {
        if (changed || (claimed && entry->gap)) out->given_up = once_lane_given_up(lane, entry);
        entry->gap = was_waited_for(lane, entry) || (claimed && entry->gap);
        start(entry, r->token, r->lease_ms, claimed, now_ms);
        note_sent(entry, r, now_ms);
        out->orphan = claimed;
        entry->hold = r->hold;
        entry->lookup = r->lookup;
        entry->natural = r->natural;
        changed |= ONCE_ENTRY_CHANGED;
        if (entry->gap) entry->reason = out->reason = say_gap_over(lane, entry);
    } else if (answer == ONCE_ANSWER_UNKNOWN && claimed) {
        changed = become_unknown(entry, now_ms, out);
    }
    describe(entry, answer, now_ms, out);
    return changed;
}

/* The body of a new message finds its owner. */
static int begin_waiting(once_entry *entry, once_lane *lane, const once_request *r, once_answer answer,
                         const once_message *message, int64_t now_ms, once_decision *out)
{
    int changed = ONCE_ENTRY_CHANGED;
    entry_begin(entry, lane, r, now_ms);
    entry_move(entry, ONCE_STATE_WAITING, answer == ONCE_ANSWER_RUN ? now_ms : ONCE_NEVER, now_ms);
    if (lane && lane->has_next && !lane->has_version && lane->expires_ms != ONCE_FOREVER) { /* it has just begun */
        lane->expires_ms = ONCE_FOREVER;
        changed |= ONCE_LANE_CHANGED;
    }
    if (answer == ONCE_ANSWER_GAP) {
        if (lane->tail < 0) stop_waiting(lane); /* of somebody who has gone */
        wait_for_missing(entry, lane, now_ms);
        changed |= ONCE_LANE_CHANGED;
    }
    attach(entry, message);
    out->answer = ONCE_ANSWER_WAITING;
    out->wait_ms = until(entry->due_ms, now_ms);
    return changed;
}

int once_entry_accept(once_entry *entry, once_lane *lane, const once_request *r, const once_message *message,
                      int64_t now_ms, once_decision *out)
{
    assert(message && r->remember_ms > 0 && !once_hash_is_zero(r->token));
    *out = (once_decision){0};

    if (is_absent(entry, now_ms)) {
        const once_answer answer = answer_to_new(lane, r, now_ms);
        switch (answer) {
        case ONCE_ANSWER_RUN:
        case ONCE_ANSWER_LATER:
        case ONCE_ANSWER_GAP: return begin_waiting(entry, lane, r, answer, message, now_ms, out);
        case ONCE_ANSWER_STALE: return begin_stale(entry, lane, r, now_ms, out);
        case ONCE_ANSWER_DUPLICATE: return begin_already(entry, lane, r, now_ms, out);
        case ONCE_ANSWER_CONFLICT: refuse(lane, r->scope, out); return ONCE_UNCHANGED;
        default: out->answer = answer; return ONCE_UNCHANGED;
        }
    }

    if (!once_hash_is_zero(entry->token) && once_hash_equal(entry->token, r->token)) { /* a lost reply, repeated */
        if (entry->state ==
            ONCE_STATE_WAITING) { /* accepted, or settled by this very claim; either way the body is here */
            out->answer = ONCE_ANSWER_WAITING;
            out->wait_ms = until(entry->due_ms, now_ms);
            return ONCE_UNCHANGED;
        }
        if (entry->state == ONCE_STATE_STALE) {
            out->answer = ONCE_ANSWER_STALE;
            return ONCE_UNCHANGED;
        }
    }

    if (gives_way(entry, lane, r, now_ms)) {
        const int replaced = replace(entry, lane, r, now_ms, out);
        attach(entry, message);
        out->answer = ONCE_ANSWER_WAITING;
        out->wait_ms = until(entry->due_ms, now_ms);
        return replaced;
    }

    bool by_lane;
    once_answer answer = answer_to_known(entry, lane, r, now_ms, &by_lane);
    int changed = ONCE_UNCHANGED;
    if (answer == ONCE_ANSWER_UNKNOWN && entry->state == ONCE_STATE_CLAIMED)
        changed = become_unknown(entry, now_ms, out);
    if (once_state_unfinished(entry->state)) {
        /* Due, superseded, settled under another key or behind a gap: take finds that out. Here the body only finds its
         * owner. */
        if (by_lane && answer != ONCE_ANSWER_LATER)
            answer = entry->state == ONCE_STATE_CLAIMED ? ONCE_ANSWER_BUSY : ONCE_ANSWER_LATER;
        if (answer != ONCE_ANSWER_CONFLICT && !entry->has_message) {
            unexpire(entry);
            attach(entry, message);
            if (entry->state == ONCE_STATE_UNKNOWN && may_be_asked(entry)) entry->due_ms = now_ms;
            changed |= ONCE_ENTRY_CHANGED;
        }
    }
    describe(entry, answer, now_ms, out);
    return changed;
}

/* What a settlement says about its attempt. A release says that there was none, so what is known of the one before
 * stays. */
static void note_attempt(once_entry *entry, const once_settlement *s, int64_t now_ms)
{
    const bool release = s->outcome == ONCE_RELEASE, retry = s->outcome == ONCE_RETRY, dead = s->outcome == ONCE_DEAD;
    if (retry || dead || (release && ONCE_PLANTED(release_forgets))) entry->unreported = s->maybe;
    if (retry || dead) entry->maybe |= s->maybe;
    if (retry && s->maybe && ONCE_PLANTED(unknown_free)) return;
    if (retry || (dead && s->failed) || (release && ONCE_PLANTED(release_blames))) count_failure(entry, now_ms);
}

/* What its letter says: the gap, and what came of it. */
static once_bytes say_gap_death(once_lane *lane, const once_entry *entry, once_bytes reason)
{
    return say(lane, "%.*s; this one was not run, those behind it %s", text_length(reason), reason.data,
               entry->block ? "wait for this letter" : "go on");
}

static bool may_have_run(const once_entry *entry, const once_settlement *s)
{
    return s->failed || s->maybe || entry->maybe || entry->failures;
}

int once_entry_settle(once_entry *entry, once_lane *lane, const once_settlement *s, int64_t now_ms, bool *applied)
{
    const once_request *r = s->request;
    const once_state to = state_after(s->outcome);
    assert(!once_hash_is_zero(r->token) && s->delay_ms >= 0);

    *applied = false;
    if (is_absent(entry, now_ms)) {
        /* Nothing tells whether the reply to this was lost, or somebody else was here; neither asks for anything to be
         * done. */
        *applied = r->natural && once_state_finished(to);
        return ONCE_UNCHANGED;
    }
    if (!same_claim(entry, r)) return ONCE_UNCHANGED;
    if (entry->state != ONCE_STATE_CLAIMED && entry->state != ONCE_STATE_UNKNOWN) {
        *applied = entry->state == to; /* the reply was lost, and this is the settlement once more */
        return ONCE_UNCHANGED;
    }

    *applied = true;
    if (s->reason.len || !entry->gap || to != ONCE_STATE_DONE)
        entry->reason = s->reason; /* done after a gap: it says which */
    if (once_state_finished(to)) {
        finish(entry, to, r->remember_ms, r->sent_ms, now_ms);
        entry->result = s->result;
        return leave(entry, lane, r->natural);
    }

    attach(entry, s->message);
    entry->run = r->run; /* whose count of waiting ones it is in now */
    note_attempt(entry, s, now_ms);
    if (to == ONCE_STATE_UNKNOWN || (to == ONCE_STATE_DEAD && may_have_run(entry, s))) entry->gap = false;
    if (to == ONCE_STATE_DEAD && entry->gap && lane && s->reason.len)
        entry->reason = say_gap_death(lane, entry, s->reason);
    entry->lookup = r->lookup;
    const bool comes_again = to == ONCE_STATE_WAITING || (to == ONCE_STATE_UNKNOWN && may_be_asked(entry));
    entry_move(entry, to, comes_again ? later_than(now_ms, s->delay_ms) : ONCE_NEVER, now_ms);
    if (once_entry_expires(entry)) entry->expires_ms = later_than(now_ms, r->remember_ms); /* ONCE_FOREVER: never */
    const int died = to == ONCE_STATE_DEAD ? ONCE_LETTER_NEEDED | lane_after_death(entry, lane, now_ms) : 0;
    return ONCE_ENTRY_CHANGED | lane_freed(entry) | died;
}

int once_entry_extend(once_entry *entry, const once_request *r, int64_t now_ms, bool *ours)
{
    assert(r->lease_ms >= 0);
    /* An attempt whose lease ran out has lost its claim, although its token is there until somebody asks. */
    const bool asked = entry->state == ONCE_STATE_UNKNOWN && entry->due_ms != ONCE_NEVER;
    const bool attempted = entry->state == ONCE_STATE_CLAIMED || (asked && ONCE_PLANTED(lapsed_begins));
    *ours = (r->asks ? asked : attempted) && same_claim(entry, r);
    if (!*ours) return ONCE_UNCHANGED;
    entry->due_ms = later_than(now_ms, r->lease_ms);
    return ONCE_ENTRY_CHANGED;
}

bool once_entry_may_be_taken(const once_entry *entry, int64_t now_ms)
{
    return once_state_unfinished(entry->state) && entry->due_ms <= now_ms && entry->has_message;
}

/* It stays unknown, also when whoever asks does not come back. Those who had it before have no say any more. */
static int hand_out_question(once_entry *entry, once_token token, int64_t lease_ms, int64_t now_ms, once_decision *out)
{
    assert(entry->state == ONCE_STATE_UNKNOWN && !once_hash_is_zero(token) && lease_ms > 0);
    describe(entry, ONCE_ANSWER_UNKNOWN, now_ms, out);
    out->asks = true;
    out->attempt = entry->attempt;
    out->failures = entry->failures;
    out->failing_for_ms = failing_for(entry, now_ms);
    out->unknown_for_ms = now_ms > entry->changed_ms ? now_ms - entry->changed_ms : 0; /* clocks of servers go back */
    out->before = entry->reason;
    entry->token = token;
    entry->due_ms = later_than(now_ms, lease_ms);
    return ONCE_ENTRY_CHANGED;
}

bool once_entry_question(const once_entry *entry, int64_t now_ms, once_decision *out)
{
    if (entry->state != ONCE_STATE_UNKNOWN || entry->due_ms == ONCE_NEVER) return false;
    once_entry copy = *entry; /* its claim stays as it is */
    *out = (once_decision){0};
    (void)hand_out_question(&copy, entry->token, 1, now_ms, out);
    return true;
}

int once_entry_take(once_entry *entry, once_lane *lane, once_token token, int64_t lease_ms, int64_t now_ms,
                    once_decision *out)
{
    *out = (once_decision){0};
    assert(once_entry_may_be_taken(entry, now_ms));
    if (entry->state == ONCE_STATE_UNKNOWN) return hand_out_question(entry, token, lease_ms, now_ms, out);

    const bool orphan = entry->state == ONCE_STATE_CLAIMED;
    if (orphan && entry->hold) {
        describe(entry, ONCE_ANSWER_UNKNOWN, now_ms, out);
        return become_unknown(entry, now_ms, out);
    }

    int changed = ONCE_ENTRY_CHANGED;
    once_answer answer = lane_answer_to_known(lane, entry);
    if (answer == ONCE_ANSWER_GAP) {
        answer = wait_or_give_up(entry, lane, now_ms);
        changed |= ONCE_LANE_CHANGED;
    }
    switch (answer) {
    case ONCE_ANSWER_RUN:
        if ((changed & ONCE_LANE_CHANGED) || (orphan && entry->gap)) out->given_up = once_lane_given_up(lane, entry);
        entry->gap = was_waited_for(lane, entry) || (orphan && entry->gap);
        start(entry, token, ONCE_PLANTED(no_lease) ? 1 : lease_ms, orphan, now_ms);
        out->orphan = orphan;
        describe(entry, answer, now_ms, out);
        if (entry->gap) entry->reason = out->reason = say_gap_over(lane, entry);
        return changed;
    case ONCE_ANSWER_STALE:
        return become_stale(entry, lane, token, entry->natural, entry->remember_ms, entry->message.sent_ms, now_ms,
                            out);
    case ONCE_ANSWER_DUPLICATE:
        return become_already(entry, lane, entry->remember_ms, entry->message.sent_ms, now_ms, out);
    case ONCE_ANSWER_CONFLICT:
        refuse(lane, &entry->scope, out);
        entry_move(entry, ONCE_STATE_DEAD, ONCE_NEVER, now_ms);
        entry->token = token;
        entry->gap = entry->block = false; /* it never ran: nobody waits for it */
        entry->reason = out->reason;
        return ONCE_ENTRY_CHANGED | lane_freed(entry) | ONCE_LETTER_NEEDED;
    case ONCE_ANSWER_GAP: break;
    default:
        assert(answer == ONCE_ANSWER_LATER);
        if (!orphan) entry->due_ms = ONCE_NEVER; /* parked: once_entry_wake brings it back */
    }
    describe(entry, ONCE_ANSWER_LATER, now_ms, out);
    return changed;
}

int once_entry_lapse(once_entry *entry, int64_t now_ms, once_decision *out)
{
    *out = (once_decision){0};
    if (entry->state != ONCE_STATE_CLAIMED || !entry->hold || entry->due_ms > now_ms) return ONCE_UNCHANGED;
    describe(entry, ONCE_ANSWER_UNKNOWN, now_ms, out);
    return become_unknown(entry, now_ms, out);
}

int once_entry_forget(once_entry *entry, once_lane *lane)
{
    const int freed = once_state_unfinished(entry->state) ? lane_freed(entry) : unblock_lane(entry, lane);
    entry->state = ONCE_STATE_ABSENT; /* the end of the entry, not a change of state: nothing of it is kept */
    return ONCE_ENTRY_CHANGED | freed;
}

int once_entry_replay(once_entry *entry, once_lane *lane, int64_t now_ms, const once_message *message)
{
    if (entry->state != ONCE_STATE_DEAD) return ONCE_UNCHANGED;
    entry_move(entry, ONCE_STATE_WAITING, now_ms, now_ms);
    reset_failures(entry);
    entry->gap = false;
    entry->fixed = true; /* a person chose this content */
    entry->run = 0;      /* no run counts it as waiting: whoever takes it resumes it */
    entry->token = (once_token){0};
    attach(entry, message);
    return ONCE_ENTRY_CHANGED | unblock_lane(entry, lane);
}

int once_entry_correct(once_entry *entry, once_lane *lane, const once_request *r, const once_message *message,
                       int64_t now_ms)
{
    if (!has_same_place(entry, r)) return ONCE_UNCHANGED;
    const int changed = once_entry_replay(entry, lane, now_ms, message);
    if (!changed) return changed;
    entry->fingerprint = r->fingerprint;
    entry->fields = r->fields;
    return changed;
}

int once_entry_discard(once_entry *entry, once_lane *lane, int64_t sent_ms, int64_t now_ms)
{
    if (entry->state != ONCE_STATE_DEAD) return ONCE_UNCHANGED;
    const bool never_came_in = entry->gap; /* a gap ended it: what it waited for may still come */
    finish(entry, ONCE_STATE_REJECTED, entry->remember_ms, sent_ms, now_ms);
    entry->token = (once_token){0};
    const int unblocked = unblock_lane(entry, lane);
    return leave(entry, never_came_in ? NULL : lane, entry->natural) | unblocked;
}

int once_entry_give_up(once_entry *entry, const once_request *r, int64_t now_ms)
{
    if (!is_absent(entry, now_ms)) return ONCE_UNCHANGED;
    entry_begin(entry, NULL, r, now_ms);
    finish(entry, ONCE_STATE_REJECTED, r->remember_ms, ONCE_NO_TIME, now_ms);
    entry->token = (once_token){0};
    entry->reason = ONCE_BYTES("its letter was discarded");
    return ONCE_ENTRY_CHANGED;
}

int once_entry_resolve(once_entry *entry, once_lane *lane, once_outcome outcome, once_bytes reason, int64_t now_ms)
{
    assert(outcome == ONCE_DONE || outcome == ONCE_RETRY || outcome == ONCE_DEAD);
    if (once_entry_state_at(entry, now_ms) != ONCE_STATE_UNKNOWN) return ONCE_UNCHANGED;
    if (outcome != ONCE_DONE && !entry->has_message)
        return ONCE_UNCHANGED; /* nothing to hand out, nor to keep in a letter */
    if (entry->state == ONCE_STATE_CLAIMED)
        entry_move(entry, ONCE_STATE_UNKNOWN, ONCE_NEVER, now_ms); /* its lease is over */
    entry->reason = reason;
    entry->gap = false;
    if (outcome != ONCE_DONE) entry->unreported = entry->maybe = true; /* nobody said that nothing happened */
    if (outcome == ONCE_DEAD) { /* the token stays: it tells the letter of this death from others */
        entry_move(entry, ONCE_STATE_DEAD, ONCE_NEVER, now_ms);
        return ONCE_ENTRY_CHANGED | lane_freed(entry) | ONCE_LETTER_NEEDED | lane_after_death(entry, lane, now_ms);
    }
    entry->token = (once_token){0}; /* whoever left it unknown has no say any more */
    if (outcome == ONCE_RETRY) {
        entry_move(entry, ONCE_STATE_WAITING, now_ms, now_ms);
        if (!ONCE_PLANTED(resolve_spent))
            reset_failures(entry); /* a person asks for it: it is tried however often it was, as after a replay */
        entry->run = 0;
        return ONCE_ENTRY_CHANGED | lane_freed(entry);
    }
    finish(entry, ONCE_STATE_DONE, entry->remember_ms, entry->has_message ? entry->message.sent_ms : ONCE_NO_TIME,
           now_ms);
    return leave(entry, lane, entry->natural);
}

int once_entry_revive(once_entry *entry, const once_lane *lane, const once_request *r, const once_message *message,
                      int64_t now_ms)
{
    assert(message && r->remember_ms > 0);
    if (!once_state_finished(entry->state) || once_entry_expired(entry, now_ms)) return ONCE_UNCHANGED;
    entry_move(entry, ONCE_STATE_WAITING, now_ms, now_ms);
    entry->token = (once_token){0};
    reset_failures(entry);
    entry->run = 0;
    entry->unreported = entry->maybe = entry->gap = false;
    entry->fixed = true; /* it has had its effect, and a person chose this content */
    entry->result = (once_bytes){0};
    /* A finished entry need not keep what it was made with; and the content may be another one now. */
    entry->fingerprint = r->fingerprint;
    entry->fields = r->fields;
    entry->scope = *r->scope;
    entry->key = r->key;
    entry->lane = r->lane.id;
    entry->versioned = r->lane.versioned;
    entry->gap_ms = r->lane.gap_ms;
    entry->order = !lane ? 0 : r->lane.versioned ? r->lane.version : lane_end(lane);
    entry->remember_ms = r->remember_ms;
    entry->hold = r->hold;
    entry->lookup = r->lookup;
    entry->natural = r->natural;
    entry->block = r->lane.block;
    attach(entry, message);
    return ONCE_ENTRY_CHANGED;
}

/* A newer version that is at work, or may have had its effect, makes it stale when it settles. Which of those that are
 * there is at work the lane does not say, so any newer one counts. */
static bool may_be_overtaken(const once_lane *lane, int64_t order) { return lane->claimed && lane->tail > order; }

void once_entry_outlook(const once_entry *entry, once_lane *lane, const once_request *r, once_decision *out)
{
    const bool dead = entry->state == ONCE_STATE_DEAD, versioned = dead ? entry->versioned : r->lane.versioned;
    const int64_t order = dead ? entry->order : r->lane.version;
    *out = (once_decision){.answer = ONCE_ANSWER_RUN};
    if (!lane || !versioned) return;
    const bool own =
        entry->state != ONCE_STATE_ABSENT && once_hash_equal(lane->by, entry->id); /* as lane_answer_to_known */
    switch (lane_answer(lane, false, own || (dead ? entry->natural : r->natural), true, order, -1)) {
    case ONCE_ANSWER_STALE:
        out->answer = ONCE_ANSWER_STALE;
        out->reason = say_settled(lane, "");
        return;
    case ONCE_ANSWER_DUPLICATE:
        if (judge_equal(lane, r->id, r->scope, r->fingerprint) == ONCE_ANSWER_CONFLICT) {
            refuse(lane, r->scope, out);
            return;
        }
        out->answer = ONCE_ANSWER_DUPLICATE;
        out->reason = say_settled(lane, "");
        out->lane = true;
        return;
    default: break;
    }
    if (!may_be_overtaken(lane, order)) return;
    out->answer = ONCE_ANSWER_STALE;
    out->reason = ONCE_BYTES(
        "a newer version of its lane is at work, or nobody knows how that ended; ask again when it has settled");
}

int once_entry_wake(once_entry *entry, once_lane *lane, int64_t now_ms)
{
    const bool waits = waits_for_missing(lane, entry);
    if (entry->state != ONCE_STATE_WAITING || (entry->due_ms != ONCE_NEVER && !waits)) return ONCE_UNCHANGED;
    if (ONCE_PLANTED(no_wake)) return ONCE_UNCHANGED;
    switch (lane_answer(lane, false, entry->natural, entry->versioned, entry->order, gap_of(entry))) {
    case ONCE_ANSWER_LATER: return ONCE_UNCHANGED;
    case ONCE_ANSWER_GAP:
        if (waits && entry->due_ms != ONCE_NEVER && lane->waits) return ONCE_UNCHANGED; /* it is looked at already */
        wait_for_missing(entry, lane, now_ms);
        return ONCE_ENTRY_CHANGED | ONCE_LANE_CHANGED;
    default: break; /* next, or superseded: take decides which */
    }
    const int changed = lane->waits ? ONCE_ENTRY_CHANGED | ONCE_LANE_CHANGED : ONCE_ENTRY_CHANGED;
    stop_waiting(lane);
    entry->gap = false;
    entry->due_ms = now_ms;
    return changed;
}

/* --- identities --- */

/* Lengths stand before the parts, so no choice of bytes makes two different lists equal. Small inputs are hashed in one
 * go from the stack; larger ones (only keys of the C API get that large) are hashed part by part and those hashes
 * together. */
static once_hash identity(once_secret secret, char what, const once_bytes *parts, size_t n)
{
    unsigned char text[1600];
    size_t at = 0, total = 1;
    for (size_t i = 0; i < n; i++) total += 4 + parts[i].len;

    once_hash hashes[4];
    const bool direct = total <= sizeof text;
    text[at++] = (unsigned char)(direct ? what : what ^ 0x20);
    for (size_t i = 0; i < n; i++) {
        const uint32_t len = (uint32_t)parts[i].len;
        const void *data = parts[i].data;
        size_t size = len;
        if (!direct) {
            hashes[i] = once_siphash128(secret, data, parts[i].len);
            data = &hashes[i];
            size = sizeof hashes[i];
        }
        memcpy(text + at, &len, 4);
        if (size) memcpy(text + at + 4, data, size);
        at += 4 + size;
    }
    return once_siphash128(secret, text, at);
}

static void show_long(once_bytes key, char out[71])
{
    static const char hex[] = "0123456789abcdef";
    unsigned char digest[32];
    once_sha256(key.data, key.len, digest);
    memcpy(out, "sha256:", 7);
    for (size_t i = 0; i < sizeof digest; i++) {
        out[7 + 2 * i] = hex[digest[i] >> 4];
        out[8 + 2 * i] = hex[digest[i] & 15];
    }
}

bool once_key_looks_long(once_bytes shown)
{
    if (shown.len != 71 || memcmp(shown.data, "sha256:", 7) != 0) return false;
    for (size_t i = 7; i < shown.len; i++)
        if (!((shown.data[i] >= '0' && shown.data[i] <= '9') || (shown.data[i] >= 'a' && shown.data[i] <= 'f')))
            return false;
    return true;
}

once_hash once_long_key_id(once_secret secret, const once_scope *scope, once_bytes shown)
{
    return identity(secret, 'H', (const once_bytes[]){scope->tenant, scope->consumer, scope->operation, shown}, 4);
}

once_hash once_key_id(once_secret secret, const once_scope *scope, once_bytes key)
{
    if (key.len > ONCE_KEY_MAX) {
        char shown[71];
        show_long(key, shown);
        return once_long_key_id(secret, scope, (once_bytes){shown, sizeof shown});
    }
    return identity(secret, 'K', (const once_bytes[]){scope->tenant, scope->consumer, scope->operation, key}, 4);
}

bool once_key_show(once_arena *arena, once_bytes key, once_bytes *out)
{
    if (key.len <= ONCE_KEY_MAX) {
        *out = key;
        return true;
    }
    char shown[71];
    show_long(key, shown);
    return once_arena_copy(arena, (once_bytes){shown, sizeof shown}, out);
}

once_hash once_lane_id(once_secret secret, const once_scope *scope, once_bytes lane)
{
    return identity(secret, 'L', (const once_bytes[]){scope->tenant, scope->consumer, lane}, 3);
}
