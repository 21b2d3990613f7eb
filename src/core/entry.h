/* The rules of an entry.
 *
 * An entry is what a store keeps about one key. Each rule below is a pure function of (entry, lane, request, time): it
 * does no I/O, allocates nothing and reads no clock. Stores that keep entries themselves (memory, sqlite, postgres,
 * redis) call the rules through store/engine/. A store whose server decides natively must give the same answers and is
 * fuzzed against the memory store. core/lane.h has the rules of ordered messages, core/key_id.h the ids.
 *
 *   absent --claim--> claimed --settle--> done | already | rejected | stale --remember over--> absent
 *     |                |  |  lease over: the next claim or take runs it again (attempt + 1, failures + 1). With `hold`
 *     |                |  |  the entry becomes unknown instead; readers see it as unknown from that moment on
 *     |                |  +--settle unknown--> unknown --resolve--> done | waiting | dead
 *     |                |                       with `lookup`: --take (asks)--> unknown --settle--> any of these
 *     |                +--settle dead--> dead --replay--> waiting | --discard--> rejected
 *     +--accept--> waiting --take--> claimed
 *                     ^--settle retry / release; revive (an operator runs a finished entry again)
 *                     ^--claim or accept with other content, before any effect: see "Other content"
 *
 * Three numbers, on purpose. The token names one claim to the store; it is the fence. `attempt` (1, 2, 3... while the
 * entry lives) is shown to the outside. `failures` is what the retry budget counts.
 *
 * Invariants
 *   - Only once__entry_move (entry.c) changes a state, and its table says which change is allowed. Two exceptions end
 *     an entry: forget, and the finish of a natural effect, make it absent.
 *   - Only done, already, rejected, stale and dead suppress a delivery. Claimed never means "seen".
 *   - Finished entries expire. An entry that the store must still work on (waiting with a body, unknown, dead) or whose
 *     effect may have happened never ends by time.
 *   - A waiting entry without a body, whose attempts were all released or retried, can only go on when its source
 *     delivers the message again. Nothing has happened for it, so it expires after `remember`, as finished ones do.
 *
 * Other content. The same key with another fingerprint is a conflict: the new message becomes a dead letter, and the
 * entry stays as it is. There is one exception. A key whose only attempts were released or retried has had no effect,
 * so a corrected message takes the place of the first one. The entry goes on with failures 0, and the replaced body, if
 * the store has it, becomes the conflict letter. This does not happen
 *   - where an attempt may have had its effect (`unreported`, `maybe_done`), or the entry is claimed;
 *   - before the first attempt: nothing is known to be wrong with the first message, and who comes first is chance;
 *   - at another place of the lane, because others are ordered by it;
 *   - for a message that is too old: it may have been done and forgotten;
 *   - for an entry of an older version of once, which did not record whether an earlier attempt had an effect;
 *   - twice in the life of an entry (`fixed`): a broker delivers both messages again, and they must not take turns.
 *
 * Natural effects (`natural`) are idempotent and need no memory. Where the entry would become done, already, rejected
 * or stale it becomes absent, and only the version of its lane is kept. So an equal delivery runs again, in a versioned
 * lane too; an older one is still stale there. Until then, and when it fails, the entry is like all others, with
 * conflicts and a dead letter. Without a versioned lane a natural message is never too old, because no record of it
 * can have expired. With one, the lane's version can have expired, and an older message would run after a newer one; so
 * there it is too old like all others.
 *
 * Without a claim (`unclaimed`). Where a repeat does no harm and nothing is remembered, a claim of a new key protects
 * nothing. So a natural message without a lane, whose unknowns are tried again, may ask to run without one: the answer
 * is RUN, and the entry stays absent. An entry that exists answers as always: it is waiting, dead, or another's, and is
 * claimed as usual if it may run. When the effect has failed, the caller claims and settles in one transaction.
 *
 * Thread rule: the functions share no state; an entry and a lane belong to one thread at a time. */
#ifndef ONCE_CORE_ENTRY_H
#define ONCE_CORE_ENTRY_H

#include "base/hash.h"
#include "core/key_id.h"
#include "core/lane.h"
#include "core/message.h"
#include "once/types.h"

#define ONCE_NEVER INT64_MAX /* a due time: not by time; another rule wakes the entry */

#define ONCE_STATE_MAP(X)                                                                                              \
    X(ABSENT, "absent")                                                                                                \
    X(CLAIMED, "claimed")                                                                                              \
    X(WAITING, "waiting")                                                                                              \
    X(UNKNOWN, "unknown")                                                                                              \
    X(DEAD, "dead")                                                                                                    \
    X(DONE, "done")                                                                                                    \
    X(ALREADY, "already")                                                                                              \
    X(REJECTED, "rejected")                                                                                            \
    X(STALE, "stale")

typedef enum once_state { /* stores keep these numbers; append only */
#define ONCE_STATE_ENUM(name, text) ONCE_STATE_##name,
                          ONCE_STATE_MAP(ONCE_STATE_ENUM)
#undef ONCE_STATE_ENUM
                              ONCE_STATES
} once_state;

const char *once_state_name(once_state state);

/* Finished entries suppress duplicates and expire. */
static inline bool once_state_finished(once_state state) { return state >= ONCE_STATE_DONE; }
/* Unfinished entries keep their place in their lane. */
static inline bool once_state_unfinished(once_state state)
{
    return state == ONCE_STATE_CLAIMED || state == ONCE_STATE_WAITING || state == ONCE_STATE_UNKNOWN;
}

/* No other message of the lane may run: this one is running, or its effect may have happened, and an older version must
 * not come after it. */
static inline bool once_state_occupies(once_state state)
{
    return state == ONCE_STATE_CLAIMED || state == ONCE_STATE_UNKNOWN;
}

/* Names one claim; the store refuses to settle or extend it under another token. Zero means none. The first half is
 * random. The second half is the number of the run plus a counter, so that a claim tells which run made it. */
typedef once_hash once_token;
#define ONCE_TOKENS_AT_ONCE (1u << 20) /* more than a run claims with one random first half */

static inline once_token once_token_of_run(uint64_t run, uint64_t random, uint64_t i)
{
    return (once_token){random | 1, run + i};
}
/* Wrong by chance once in 2^44 times, for a token of an unknown run or of an older version of once. */
static inline bool once_token_is_of_run(once_token token, uint64_t run)
{
    return run && token.b - run < ONCE_TOKENS_AT_ONCE;
}

/* Short hashes of the fields that a fingerprint covers (core/fields.h). */
#define ONCE_FIELDS_MAX 16
typedef struct once_fields {
    uint16_t n;                       /* 0: no fields, too many, or the entry is from an older version of once */
    uint16_t prints[ONCE_FIELDS_MAX]; /* ascending */
} once_fields;

/* The identity and the terms of one message. claim and accept ask with it; settle and extend refer to it. */
typedef struct once_request {
    const once_scope *scope;
    once_bytes key;        /* 1..1024 bytes */
    once_hash id;          /* once_key_id(secret of the store, scope, key) */
    once_hash fingerprint; /* zero: none, or it is `late` */
    /* Not NULL: the fingerprint is that of the bytes of this message, and is not computed yet. Most messages that run
     * without a claim leave no entry, so nobody asks for it. once_request_print (core/print.h) computes it. */
    const once_message *late;
    once_token token; /* chosen by the caller, new for every claim; the same again after a lost reply */
    once_lane_request lane;
    int64_t lease_ms;    /* > 0 */
    int64_t remember_ms; /* > 0, or ONCE_FOREVER */
    int64_t sent_ms;     /* when the message was sent, or ONCE_NO_TIME */
    uint64_t run;        /* the run that received the message */
    once_coordinates at;
    once_fields fields; /* empty without a fingerprint */
    bool hold;          /* when the lease runs out, the entry becomes unknown; otherwise it runs again */
    bool lookup;    /* with `hold`: the other side can be asked about an unknown, so it has a due time (decision.asks);
                   * the worker that asks decides in the end whether the entry is held */
    bool asks;      /* extend: this claim asks about an unknown (decision.asks); it is not an attempt */
    bool natural;   /* nothing is kept after success; an equal version of the lane runs again */
    bool unclaimed; /* claim, `natural`, no lane, no `hold`: a new key runs without a claim */
    bool old_key;   /* a new entry keeps the old form of the idempotency key (core/outward.h), because the dead letter
                   * that comes back had it */
} once_request;

/* The message that an entry was made by, and that a conflict met. */
typedef struct once_first {
    once_coordinates at;
    int64_t seen_ms;
    once_bytes who;     /* "user@host:pid"; may be empty */
    once_bytes body;    /* empty: the store no longer has it */
    once_fields fields; /* of its content */
} once_first;

/* What a rule decided for a delivery or a take. The capital words are the answers for which a field is set; a `name`
 * in quotes means "when that field is true". Fields are zero otherwise. Every message has one, so it is kept small. */
typedef struct once_decision {
    once_answer answer;
    once_outcome outcome; /* DUPLICATE: how the first one ended */
    uint32_t attempt;     /* RUN: the number of this attempt; `lapsed`, `asks`: of the attempt whose end is unknown */
    uint32_t failures;    /* RUN, `asks`: how many attempts failed before */
    /* RUN, `asks`: time since the first failure, on the store's clock; -1: none, or its time was not recorded */
    int64_t failing_for_ms;
    int64_t unknown_for_ms; /* `asks`: how long the entry has been unknown, on the store's clock */
    /* RUN with `gap_over`: how many versions were given up so that it can run. Its settlement adds them to the count;
     * 0: an earlier settlement did. */
    int64_t given_up;
    int64_t lapsed_ms; /* `lapsed`: when it was recorded, on the store's clock; the history has it, too */
    /* The run that left the entry waiting and counts it so; 0: none. Set with `replaced`, and in answers to a claim:
     * RUN, STALE, and DUPLICATE or CONFLICT by its lane. */
    uint64_t left_by;
    int64_t wait_ms;   /* BUSY, LATER, GAP: when to ask again; ONCE_NEVER: when another rule has woken the entry */
    once_bytes result; /* DUPLICATE: the stored result */
    once_bytes reason; /* STALE, `gap_over`, `lane` and, from a store, `lapsed`: why, in words; otherwise empty */
    /* RUN with `unreported`, and `asks`: the last recorded reason, perhaps of an earlier attempt; may be empty */
    once_bytes before;
    const once_first *first; /* CONFLICT with its key: the message with the other content; set by the store */
    /* RUN: this claim took over from an attempt that ended without reporting an outcome, and counted that as a failure.
     * False when the same answer is given again after a lost reply. */
    bool orphan;
    /* RUN: the attempt before this one may have had its effect: it ended without reporting an outcome, its settlement
     * said so (`maybe_done`), or an unknown is tried again. */
    bool unreported;
    bool maybe_done; /* RUN: some earlier attempt may have had its effect, not only the last; the effect is told this */
    bool unclaimed;  /* RUN: there is no claim, and nothing was recorded; the request asked for that */
    bool old_key;    /* the entry keeps the old form of the idempotency key (core/outward.h) */
    /* UNKNOWN, from take: the caller has a claim to ask the other side about it and to settle the answer. It must run
     * nothing. When the lease ends without an answer, the entry is handed out again. */
    bool asks;
    bool gap_over; /* RUN: the entry waited for a missing version that did not come in time */
    bool lane;     /* DUPLICATE, CONFLICT: with the version of its lane, not with its key */
    /* UNKNOWN: this call found the lease over and recorded it. False when the answer is given again after a lost reply.
     */
    bool lapsed;
    /* The reply to an earlier call with the same token was lost. DUPLICATE, DEAD: that token settled the entry. RUN:
     * it claimed it. A natural entry that has finished left no trace, so that answer is a plain RUN. */
    bool own;
    /* RUN, WAITING: other content waited here without any effect, and this message took its place. False when the
     * answer is given again after a lost reply. */
    bool replaced;
    bool letter; /* `replaced`: a new conflict letter has the replaced body; set by the store */
} once_decision;

typedef struct once_settlement {
    const once_request *request; /* its token is the fence; its remember_ms counts from now */
    once_outcome outcome;
    once_bytes result;           /* done, already, rejected, stale */
    once_bytes reason;           /* in words; for all but done */
    int64_t delay_ms;            /* retry, release: the wait; unknown with `lookup`: when to ask, ONCE_NEVER: never */
    const once_message *message; /* retry, release, unknown, dead: the body to keep; NULL when the entry has it */
    bool failed;                 /* dead: the attempt itself failed, and counts */
    /* retry, dead: the effect may have happened; the next attempt learns it (decision.unreported). A release keeps what
     * was known before its claim. */
    bool maybe_done;
    bool asked;        /* the answer to a question, not the end of an attempt; the history gets no line if in vain */
    bool *was_unknown; /* may be NULL; set to whether the entry was recorded as unknown before */
} once_settlement;

/* An entry as stores keep it. Bytes belong to the store or to the request; a rule copies none. */
struct once_entry {
    once_hash id;
    once_state state;
    once_token token; /* of the last claim; zero: none */
    uint32_t attempt, failures;
    int64_t failing_ms;          /* when the first of the failures was counted; 0: none, or its time is not recorded */
    once_hash fingerprint;       /* zero: none */
    once_fields fields;          /* empty without a fingerprint */
    once_hash lane;              /* zero: none */
    int64_t order;               /* in the lane: the version, or the order of arrival */
    int64_t gap_ms, remember_ms; /* as in the request */
    bool versioned;
    bool gap;         /* waiting: for a missing version; claimed: it did not come in time; dead: so this did not run */
    bool hold;        /* as in the request */
    bool lookup;      /* as in the request */
    bool natural;     /* as in the request */
    bool old_key;     /* made before idempotency keys were independent of the store; keeps that key for life */
    bool block;       /* as in the request */
    bool unreported;  /* the last attempt may have had its effect; while claimed: the attempt before this claim */
    bool maybe_done;  /* some attempt may have had its effect; later attempts never clear it */
    bool fixed;       /* no other content may take its place: it took another's, or an operator chose this content */
    bool has_message; /* false for a dead entry: its letter has the message */
    uint64_t run;     /* the run that counts it as waiting; 0: none */
    int64_t seen_ms;  /* first seen. In a lane later than equal versions before it, so that their order is known */
    int64_t changed_ms; /* last change of state; a question without an answer is none */
    /* claimed: when the lease ends. waiting: not before. unknown: when to ask about it, or when the lease of the worker
     * that asks ends. Otherwise ONCE_NEVER. */
    int64_t due_ms;
    /* When time ends it, for those that expire (once_entry_expires). For others: the earliest time at which it may
     * expire after it finished. */
    int64_t expires_ms;
    once_scope scope;
    once_bytes key;
    once_coordinates at; /* where it was first seen */
    once_message message;
    once_bytes result, reason;

    /* Kept by the store for people; no rule reads it. */
    once_bytes who;     /* first saw it: "user@host:pid" */
    once_bytes worker;  /* claimed: the worker that has the claim; after once_entry_look: the one whose lease ran out */
    once_bytes history; /* how its attempts ended (store/history.h); empty when the first one finished it */
};

/* What a rule did, as a set. The caller saves what changed. */
typedef enum once_change {
    ONCE_UNCHANGED = 0,
    ONCE_ENTRY_CHANGED = 1,
    ONCE_LANE_CHANGED = 2,  /* the stored part of the lane */
    ONCE_LANE_FREED = 4,    /* the next entry of the lane may be woken: once_entry_wake */
    ONCE_LETTER_NEEDED = 8, /* the entry died: write its dead letter in the same transaction */
    ONCE_REPLACED = 16      /* other content took its place: keep the old body, if it had one, as a conflict letter */
} once_change;

/* Why the rules cannot work with an entry that was read, in words; NULL: they can. Stores are edited, restored and
 * damaged, so every reader of a store asks this before it passes an entry to a rule. */
const char *once_entry_flaw(const once_entry *entry);

/* --- what workers ask ---
 *
 * For all rules: `entry` is the stored one, or blank with state ABSENT and its id. `lane` is NULL when there is none.
 * Bytes are not copied: a changed entry points to the bytes of the request. The result is a set of once_change. */

/* The answer to a request that runs without a claim and has no entry. */
once_decision once_decision_unclaimed(const once_request *request);
/* Asks to run the effect of a message. RUN: claimed with the request's token. The same token again after a lost reply
 * gives the same answer. */
int once_entry_claim(once_entry *entry, once_lane *lane, const once_request *request, int64_t now_ms,
                     once_decision *out);
/* Gives the body to the store instead of running it. WAITING: the store has it. The body is also attached to an
 * unfinished entry that has none. */
int once_entry_accept(once_entry *entry, once_lane *lane, const once_request *request, const once_message *message,
                      int64_t now_ms, once_decision *out);
/* Writes an outcome. *applied = false: fenced, the claim was lost. A natural entry that finishes although the store no
 * longer has it is `applied`: it may be the same settlement again, and nothing would be kept of it. */
int once_entry_settle(once_entry *entry, once_lane *lane, const once_settlement *settlement, int64_t now_ms,
                      bool *applied);
/* Renews a lease. *ours = false: the claim was lost. lease_ms 0 ends the lease now, as if it had run out. */
int once_entry_extend(once_entry *entry, const once_request *request, int64_t now_ms, bool *ours);

/* Whether take may hand it out: waiting, claimed or unknown, due, and with a message. */
bool once_entry_may_be_taken(const once_entry *entry, int64_t now_ms);
/* For such an entry. Sets out->answer to
 *   RUN                                  claimed with `token`
 *   UNKNOWN and `asks`                   claimed with `token`, to ask the other side
 *   STALE, DUPLICATE, CONFLICT, UNKNOWN  now settled, dead or unknown; hand it out to be counted
 *   LATER                                do not hand it out */
int once_entry_take(once_entry *entry, once_lane *lane, once_token token, int64_t lease_ms, int64_t now_ms,
                    once_decision *out);

/* For an unknown that has a due time: gives again what take answered to the worker that has the claim. False: the entry
 * is not such an unknown. */
bool once_entry_question(const once_entry *entry, int64_t now_ms, once_decision *out);

/* Records a lease that ran out: with `hold`, the entry becomes UNKNOWN and `lapsed` is set. Otherwise nothing changes.
 */
int once_entry_lapse(once_entry *entry, int64_t now_ms, once_decision *out);

/* --- what operators decide ---
 *
 * Each leaves an entry in an unsuitable state alone and returns ONCE_UNCHANGED. */

/* Removes the key; its next message runs again. expires_ms stays, for drivers that must cover an older record. */
int once_entry_forget(once_entry *entry, once_lane *lane);
/* A dead entry waits to run again, with failures 0. `attempt` goes on counting; `unreported` and `maybe_done` stay. */
int once_entry_replay(once_entry *entry, once_lane *lane, int64_t now_ms, const once_message *message);
/* The same with a corrected message. Its content may differ; its key and its place in the lane may not. */
int once_entry_replay_with_body(once_entry *entry, once_lane *lane, const once_request *request,
                                const once_message *message, int64_t now_ms);
/* A dead entry becomes rejected, and is remembered as others are. `sent_ms`: of its message, or ONCE_NO_TIME. */
int once_entry_discard(once_entry *entry, once_lane *lane, int64_t sent_ms, int64_t now_ms);
/* The same for a letter that has no entry: makes one that is rejected. Its id is the identity of the letter, which no
 * key has. */
int once_entry_give_up(once_entry *entry, const once_request *request, int64_t now_ms);
/* An operator found out what became of an unknown: DONE; or RETRY (waits to run again, failures 0) or DEAD, which both
 * need the body. The next attempt after RETRY or DEAD is `unreported`. An entry that is claimed with `hold` and whose
 * lease is over counts as unknown. */
int once_entry_resolve(once_entry *entry, once_lane *lane, once_outcome outcome, once_bytes reason, int64_t now_ms);
/* Runs a finished entry again with this message: waiting, failures 0, `attempt` goes on counting. It is never forgotten
 * earlier than was promised before, unless it is natural now. A lane with a newer version still makes it stale. */
int once_entry_revive(once_entry *entry, const once_lane *lane, const once_request *request,
                      const once_message *message, int64_t now_ms);
/* What the lane would answer to a message that comes back from its dead letter. The place in the lane is that of a dead
 * entry, otherwise that of the request. Changes nothing.
 *   RUN                  the lane lets it in, now or at its turn
 *   STALE                a newer version has settled, is running, or is unknown
 *   DUPLICATE, CONFLICT  its version was settled; the reason says by which key and with which content */
void once_entry_outlook(const once_entry *entry, once_lane *lane, const once_request *request, once_decision *out);

/* --- what the store asks --- */

/* For the entry of a lane that may be next after another one left: makes it due now if nothing holds it back. */
int once_entry_wake(once_entry *entry, once_lane *lane, int64_t now_ms);

/* The state that readers see at a time. A lease that is over ends the attempt, even before a store records it: the
 * entry is unknown with `hold`, otherwise waiting. An expired entry is absent, swept or not. */
once_state once_entry_state_at(const once_entry *entry, int64_t now_ms);
/* The same for the whole entry: `changed_ms` becomes the end of that lease, and `worker` still names its worker. Do not
 * save the result: that worker may still extend or settle its claim in time. */
void once_entry_look(once_entry *entry, int64_t now_ms);

/* Whether time alone ends it: finished entries, and entries that wait without a body and without an attempt that may
 * have had its effect. An entry in a lane keeps its place; only the C API leaves such entries, and it has no lanes. */
static inline bool once_entry_expires(const once_entry *entry)
{
    if (once_state_finished(entry->state)) return true;
    return entry->state == ONCE_STATE_WAITING && !entry->has_message && !entry->maybe_done && !entry->unreported &&
           once_hash_is_zero(entry->lane);
}

/* An expired entry counts as absent, swept or not. */
static inline bool once_entry_expired(const once_entry *entry, int64_t now_ms)
{
    return once_entry_expires(entry) && entry->expires_ms <= now_ms;
}

#endif
