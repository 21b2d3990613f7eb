/* The rules of an entry, written once.
 *
 * An entry is what a store knows about a key. Every change of its state happens in `once__entry_move` (entry.c), and is
 * decided by one of the rules below: pure functions of (entry, lane, request, time) without I/O. Drivers that keep
 * entries themselves (memory, sqlite, postgres, redis, ledger) call these rules through store/engine.h; drivers with a
 * server that decides natively (dynamodb) must give the same answers and are fuzzed against the memory driver.
 *
 *   absent --claim--> claimed --settle--> done | already | rejected | stale --remember over--> absent
 *     |                |  |  lease over: the next claim or take continues (attempt + 1, failures + 1), or, when the
 *     |                |  |  request says `hold`, the entry becomes unknown; for whoever looks it is so at once
 *     |                |  +--settle unknown--> unknown --resolve--> done | waiting | dead
 *     |                |                       with `lookup`: --take (asks)--> unknown --settle--> all of these
 *     |                +--settle dead--> dead --replay--> waiting | --discard--> rejected
 *     +--accept--> waiting --take--> claimed
 *                     ^--settle retry / release; revive (a finished one, forced by an operator)
 *                     ^--claim or accept with other content, where nothing has been done yet: see below
 *
 * What was released or is to be retried, and whose body the store does not have, is waited for in vain unless its
 * source brings it again. Nothing has happened, so after `remember` it is absent, as what is finished. What may have
 * happened never ends by time.
 *
 * Other content under a key is a conflict: a letter, and the entry stays as it is. But a key whose only attempts were
 * released or retried has had no effect, so there a corrected message takes the place of the first one: it goes on
 * under the same entry, with failures 0, and the body that it replaced, if the store has it, becomes the conflict
 * letter. Not where an attempt may have had its effect (`unreported`, `maybe`), nor where somebody has the claim; not
 * before the first attempt (nothing is wrong with that message as far as anybody knows, and who of two comes first
 * would be chance); not at another place of its lane, which others are ordered by; not by a message that is too old,
 * which may have been done and forgotten; not where an older once may have forgotten what an attempt did. And once in a
 * life (`fixed`): a broker brings both again, and they must not take turns.
 *
 * An effect that is idempotent by nature (`natural`) needs no memory: what would become done, already, rejected or
 * stale becomes absent, and only its lane's version is kept. So an equal delivery runs again, in a versioned lane too,
 * where an older one stays stale. Until then, and when it fails, it is an entry like all others, with its conflicts and
 * its letter. It is never too old, because nothing of it could have expired; but where its lane has a version, that
 * could have, and an older message than that would run after a newer one: so there it is too old like all others.
 *
 * Versions of a lane. The lane keeps the highest version that settled, and who settled it with which content.
 *   older                        stale, recorded
 *   equal, under another key     waits while the one that came first is unfinished. Then: the same operation and
 *                                content is a duplicate of that version, recorded as `already` under its own key, with
 *                                a reason that names the key that settled it. Anything else is a conflict: a letter
 *                                that names the version and that key. `fingerprint: none` asks for no comparison, so
 *                                there the operation alone decides; where the content of the first one is not known
 *                                (its handler has no fingerprint, or an older once wrote the lane), it is a conflict,
 *                                too
 *   equal, under the same key    that key was forgotten: a duplicate, or a conflict where the content is another one
 *   next                         runs
 *   further ahead                runs, or with `gap` waits for the missing ones. A lane that has no version yet begins
 *                                with `first`; where that is not said, with the version that is seen first
 * The wait for missing versions is kept once for each lane, with its lowest message, which is looked at in steps. What
 * passed since the last look counts, but never more than two steps of it: a run that is alive looks after each step, so
 * the rest is time in which there was none. When the wait is over, the missing versions are given up: that message
 * runs, or dies without running (the caller is told `gap_over`, and decides), those that follow it follow it, and a
 * further hole is waited for anew. Given up means that nobody waits, no more: a version that was given up and comes now
 * is stale when a newer one has settled; until then it runs, and the lane goes on from there. So a message with a
 * wrong, high version that waits and dies costs the lane nothing; when its letter is discarded, its version does not
 * count either. A message that died has come: nobody waits for its version, but the lane's version is still the one
 * before.
 *
 * A message that dies leaves its lane, unless its request says `block`: then nothing behind it runs before its letter
 * is replayed or discarded, or its key forgotten. Older versions that come late are in front of it, so they run, and
 * may die and block as well; when ONCE_LANE_BLOCKERS have, they wait, too.
 *
 * token, attempt and failures are three things on purpose: the token (random) names one claim to the store and is the
 * fence; attempt (1, 2, 3... while the entry lives) is shown to the outside; failures is what the retry budget counts.
 */
#ifndef ONCE_CORE_ENTRY_H
#define ONCE_CORE_ENTRY_H

#include "base/hash.h"
#include "core/key_id.h"
#include "core/lane.h"
#include "core/message.h"
#include "once/types.h"

#define ONCE_NEVER INT64_MAX /* a due time: parked until somebody wakes it */

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

typedef enum once_state { /* stored as these numbers; append only */
#define ONCE_STATE_ENUM(name, text) ONCE_STATE_##name,
                          ONCE_STATE_MAP(ONCE_STATE_ENUM)
#undef ONCE_STATE_ENUM
                              ONCE_STATES
} once_state;

const char *once_state_name(once_state state);

/* Finished entries suppress duplicates and expire. */
static inline bool once_state_finished(once_state state) { return state >= ONCE_STATE_DONE; }
/* Unfinished entries hold their lane. */
static inline bool once_state_unfinished(once_state state)
{
    return state == ONCE_STATE_CLAIMED || state == ONCE_STATE_WAITING || state == ONCE_STATE_UNKNOWN;
}

/* Nobody else of the lane runs: it is at work, or nobody knows whether it has had its effect, so that an older version
 * must not come after it. */
static inline bool once_state_occupies(once_state state)
{
    return state == ONCE_STATE_CLAIMED || state == ONCE_STATE_UNKNOWN;
}

/* Random, zero is none. The second half of those of a run counts on from its number, so that a claim says whose it is.
 */
typedef once_hash once_token;
#define ONCE_TOKENS_AT_ONCE (1u << 20) /* more than a run claims with one random first half */

static inline once_token once_token_of_run(uint64_t run, uint64_t random, uint64_t i)
{
    return (once_token){random | 1, run + i};
}
/* A token of nobody we know, or of an older once, is so by chance once in 2^44 times. */
static inline bool once_token_is_of_run(once_token token, uint64_t run)
{
    return run && token.b - run < ONCE_TOKENS_AT_ONCE;
}

/* What is kept of the fields that a fingerprint covers (core/fields.h). */
#define ONCE_FIELDS_MAX 16
typedef struct once_fields {
    uint16_t n;                       /* 0: there are none, or too many of them, or an older once made the entry */
    uint16_t prints[ONCE_FIELDS_MAX]; /* ascending */
} once_fields;

/* One message's identity and terms; what claim and accept ask with, and what settle and extend refer to. */
typedef struct once_request {
    const once_scope *scope;
    once_bytes key;        /* 1..1024 bytes */
    once_hash id;          /* once_key_id(secret of the store, scope, key) */
    once_hash fingerprint; /* zero: none */
    once_fields fields;    /* none without a fingerprint */
    once_token token;      /* chosen by the caller, new for every claim; the same again when a reply was lost */
    once_lane_request lane;
    int64_t lease_ms;    /* > 0 */
    int64_t remember_ms; /* > 0, or ONCE_FOREVER */
    int64_t sent_ms;     /* the message's time, or ONCE_NO_TIME */
    bool hold;           /* a lease that runs out means unknown, not "go on" */
    bool lookup;         /* with `hold`: the other side can be asked, so an unknown has a due time (see `asks`), and
                          * whoever asks decides in the end whether it is held */
    bool asks;           /* extend: the claim is one to ask about an unknown (decision.asks), not one of an attempt */
    bool natural;        /* nothing is kept after success; an equal version of the lane runs again */
    bool old_key; /* a new entry keeps the idempotency key of before (core/outward.h): a letter of then comes again */
    uint64_t run; /* the run that received the message */
    once_coordinates at;
} once_request;

/* Who made the entry that a delivery met. */
typedef struct once_first {
    once_coordinates at;
    int64_t seen_ms;
    once_bytes who;  /* "user@host:pid"; may be empty */
    once_bytes body; /* empty: the store does not have it any more */
} once_first;

typedef struct once_decision {
    once_answer answer;
    uint32_t attempt;  /* RUN: which one this is; lapsed; asks: whose end nobody knows */
    uint32_t failures; /* RUN, asks: how many failed before */
    int64_t
        failing_for_ms; /* RUN, asks: how long ago the first of them did, on the store's clock; -1: none has, or nobody
                               noted it */
    /* RUN: this claim took over from one that ended without an outcome, and counted that. Not said once more when the
     * reply was lost. */
    bool orphan;
    /* RUN: the attempt before may have had its effect: it ended without an outcome, or its settlement said so
     * (`maybe`), or an unknown is tried again. */
    bool unreported;
    bool maybe;   /* RUN: any attempt before may have had its effect, not only the last one; what the effect is told */
    bool old_key; /* the entry keeps the idempotency key of before (core/outward.h) */
    bool asks;    /* UNKNOWN, to a take: the token is ours to ask the other side about it, and to settle what that says.
                   * Nothing may be run. When nobody answers in time, it is handed out again */
    int64_t unknown_for_ms; /* asks: how long it has been unknown, on the store's clock */
    bool gap_over;          /* RUN: it waited for a missing version that did not come in time */
    int64_t given_up;       /* RUN, gap_over: so many versions were given up for it, which its settlement counts; 0: an
                             earlier one has */
    bool lane;              /* DUPLICATE, CONFLICT: with the version of its lane, not with its key */
    once_outcome outcome;   /* DUPLICATE: how it ended */
    bool lapsed; /* UNKNOWN: this very call found its lease over and wrote it down; `attempt` is whose it was. Not said
                  * once more when the reply was lost */
    int64_t lapsed_ms; /* lapsed: when that was, on the store's clock; its history has it, too */
    bool own; /* DUPLICATE, DEAD: settled by this very token; RUN to a claim: claimed by it. The reply to that had been
               * lost. A natural one that has finished left no trace and is simply RUN */
    once_bytes result; /* DUPLICATE: what it left */
    once_bytes reason; /* STALE, gap_over, what `lane` says, and, from a store, `lapsed`: in words; otherwise empty */
    once_bytes before; /* RUN and silent, asks: the last that was said of it, of an earlier attempt perhaps; or empty */
    once_first first;  /* CONFLICT: the message with the other content; set by the store */
    once_fields fields; /* CONFLICT with its key: of that message */
    bool replaced;    /* RUN, WAITING: other content waited here, had had no effect, and gave way to this. Not said once
                       * more when the    reply was lost */
    bool letter;      /* replaced: a new conflict letter has its body; set by the store */
    uint64_t left_by; /* `replaced`, and to a claim: RUN, STALE, and DUPLICATE and CONFLICT by its lane: the run that
                       * had left it waiting and counts it so; 0: none */
    int64_t wait_ms;  /* BUSY, LATER, GAP: when asking again may help; ONCE_NEVER: when somebody wakes it */
} once_decision;

typedef struct once_settlement {
    const once_request *request; /* the token in it is the fence; remember_ms counts from now */
    once_outcome outcome;
    once_bytes result;           /* done, already, rejected, stale */
    once_bytes reason;           /* in words; for all but done */
    int64_t delay_ms;            /* retry, release; unknown with `lookup`: when to ask, ONCE_NEVER: a person decides */
    const once_message *message; /* retry, release, unknown, dead: the body to keep; NULL when the entry has it */
    bool failed;                 /* dead: the attempt itself failed, and counts */
    bool maybe;        /* retry, dead: the effect may have happened; the next attempt is told so (decision.unreported).
                        * A release leaves what was known before its claim */
    bool asked;        /* of a question, not of an attempt: its history has no line of one that was in vain */
    bool *was_unknown; /* not NULL: set to whether it had been written down as unknown before */
} once_settlement;

struct once_entry {
    once_hash id;
    once_state state;
    once_token token;
    uint32_t attempt, failures;
    int64_t failing_ms; /* when the first of the failures was counted; 0: there is none, or it was before anybody noted
                           that */
    once_hash fingerprint;
    once_fields fields;          /* none without a fingerprint */
    once_hash lane;              /* zero: none */
    int64_t order;               /* in the lane: the version, or the order of arrival */
    int64_t gap_ms, remember_ms; /* as in the request */
    bool versioned;
    bool gap;         /* waiting for a missing version; claimed: it did not come in time; dead: so it did not run */
    bool hold;        /* as in the request */
    bool lookup;      /* as in the request */
    bool natural;     /* as in the request */
    bool old_key;     /* made before idempotency keys were independent of the store: it keeps its own for life */
    bool block;       /* as in the request */
    bool unreported;  /* the last attempt may have had its effect; claimed: the one before this claim's */
    bool maybe;       /* some attempt may have had its effect: stays, whatever later ones say of themselves */
    bool fixed;       /* no other content takes its place: it has taken another's, or a person had it run again */
    bool has_message; /* a dead entry has none: its letter has it */
    uint64_t run;
    int64_t
        seen_ms; /* first seen; in a lane always after its equals that were there, so that the first of them is known */
    int64_t changed_ms; /* last change of state; being asked about in vain is none */
    int64_t due_ms;     /* claimed: when the lease ends; waiting: not before; unknown: when to ask about it, or that of
                         * who asks ends; otherwise ONCE_NEVER */
    int64_t expires_ms; /* if time ends it (once_entry_expires): forgotten then; before that, what a finish must not
                           fall short of */
    once_scope scope;
    once_bytes key;
    once_coordinates at; /* where it was first seen */
    once_message message;
    once_bytes result, reason;

    /* Kept by the store beside what the rules decide, which do not look at it. */
    once_bytes who;     /* first saw it: "user@host:pid" */
    once_bytes worker;  /* claimed: whose claim it is; otherwise (once_entry_look): whose lease ran out */
    once_bytes history; /* how its attempts ended (store/history.h); empty when the first one finished it */
};

/* What a rule did. The caller saves what changed. */
typedef enum once_change {
    ONCE_UNCHANGED = 0,
    ONCE_ENTRY_CHANGED = 1,
    ONCE_LANE_CHANGED = 2,  /* something of the lane that is kept */
    ONCE_LANE_FREED = 4,    /* the next of the lane may be woken: once_entry_wake */
    ONCE_LETTER_NEEDED = 8, /* the entry died: its dead letter must be written with it */
    ONCE_REPLACED =
        16 /* other content took its place: what it was must be kept as a conflict letter, if it had a body */
} once_change;

/* What is wrong with an entry that was read, in words; NULL: the rules can work with it. Stores are edited, restored
 * and damaged: whoever reads one asks here before a rule may rely on what it says. */
const char *once_entry_flaw(const once_entry *entry);

/* All rules: `entry` is the stored one, or blank with state ABSENT and its id set. `lane` is NULL when there is none.
 * Bytes are not copied: an entry then points to the request's bytes. The return value is a set of once_change. */
int once_entry_claim(once_entry *entry, once_lane *lane, const once_request *request, int64_t now_ms,
                     once_decision *out);
int once_entry_accept(once_entry *entry, once_lane *lane, const once_request *request, const once_message *message,
                      int64_t now_ms, once_decision *out);
/* *applied = false: fenced. A natural one that finishes where nothing is known any more is `applied`: it may be its own
 * settlement once more, and nothing would have been kept of it. */
int once_entry_settle(once_entry *entry, once_lane *lane, const once_settlement *settlement, int64_t now_ms,
                      bool *applied);
/* lease_ms 0 ends it: from now on it is as any other lease that is over. */
int once_entry_extend(once_entry *entry, const once_request *request, int64_t now_ms, bool *ours);

/* Whether there is something to hand out: waiting, claimed or unknown, due, and with a message. */
bool once_entry_may_be_taken(const once_entry *entry, int64_t now_ms);
/* For such an entry. Sets out->answer to RUN (claimed with `token`), to UNKNOWN and `asks` (the same, to be asked
 * about), to STALE, DUPLICATE, CONFLICT or UNKNOWN (it is settled, dead, or unknown now; hand it out for counting), or
 * to LATER when it must not be handed out after all. */
int once_entry_take(once_entry *entry, once_lane *lane, once_token token, int64_t lease_ms, int64_t now_ms,
                    once_decision *out);

/* For an unknown that may be asked about, or is: what `take` has said to whoever has its claim, to say it once more.
 * False: it is none. */
bool once_entry_question(const once_entry *entry, int64_t now_ms, once_decision *out);

/* What a claim is whose lease is over, written down: UNKNOWN, and `lapsed`, where that is to be held. Nothing changes
 * otherwise. */
int once_entry_lapse(once_entry *entry, int64_t now_ms, once_decision *out);

/* Nothing is known about the key any more; expires_ms stays, for drivers that must cover an older record. */
int once_entry_forget(once_entry *entry, once_lane *lane);
/* A dead entry goes back to work: waiting, failures 0, the attempt goes on; so do `unreported` and `maybe`. */
int once_entry_replay(once_entry *entry, once_lane *lane, int64_t now_ms, const once_message *message);

/* The same with a message that was corrected: its content may be another one, its key and its place in the lane may
 * not. */
int once_entry_correct(once_entry *entry, once_lane *lane, const once_request *request, const once_message *message,
                       int64_t now_ms);

/* What operators decide. Each leaves an entry in another state alone.
 * A dead entry is given up: rejected, remembered as others are. `sent_ms`: of its message, or ONCE_NO_TIME. */
int once_entry_discard(once_entry *entry, once_lane *lane, int64_t sent_ms, int64_t now_ms);
/* A letter without an entry is given up: what it was (its identity is the id of this entry, which no key has) is
 * rejected, and remembered. */
int once_entry_give_up(once_entry *entry, const once_request *request, int64_t now_ms);
/* An unknown one was looked up by a person: DONE, or, unless its body is missing, RETRY (back to work, failures 0) or
 * DEAD. The next attempt after RETRY or DEAD is `unreported`. One that is claimed by whoever did not come back in time
 * is unknown, too. */
int once_entry_resolve(once_entry *entry, once_lane *lane, once_outcome outcome, once_bytes reason, int64_t now_ms);
/* A finished one is made to run once more, with this message: waiting, failures 0, the attempt goes on. It is never
 * forgotten earlier than it was promised before, unless it is natural now. A lane that has gone past its version still
 * makes it stale. */
int once_entry_revive(once_entry *entry, const once_lane *lane, const once_request *request,
                      const once_message *message, int64_t now_ms);
/* What its lane would make of a message that comes back from its letter, whatever became of its key. A dead entry keeps
 * its place, otherwise that of the request counts. RUN: the lane lets it in, now or when it is its turn. STALE: a newer
 * version has settled, or is at work, or nobody knows how that ended. DUPLICATE, CONFLICT: its version was settled, by
 * whom and with what the reason says. */
void once_entry_outlook(const once_entry *entry, once_lane *lane, const once_request *request, once_decision *out);
/* The entry of a lane that may be next after another one left it: due now when nothing holds it back any more. */
int once_entry_wake(once_entry *entry, once_lane *lane, int64_t now_ms);
/* What an entry is at a time, for everybody who looks. An attempt whose lease is over has ended, although nobody has
 * come to write that down: the entry is unknown then when it says `hold`, and waiting otherwise. What has expired is
 * absent, swept or not. */
once_state once_entry_state_at(const once_entry *entry, int64_t now_ms);
/* The same for the whole entry: `changed_ms` is when that lease ended, and `worker` still says whose it was. Not to be
 * saved: its worker may come back in time and extend or settle it. */
void once_entry_look(once_entry *entry, int64_t now_ms);

/* Whether time alone ends it: what is finished, and what waits without a body and without an attempt that may have had
 * its effect. One that stands in a lane keeps its place; whoever leaves such entries (the C API) has no lanes. */
static inline bool once_entry_expires(const once_entry *entry)
{
    if (once_state_finished(entry->state)) return true;
    return entry->state == ONCE_STATE_WAITING && !entry->has_message && !entry->maybe && !entry->unreported &&
           once_hash_is_zero(entry->lane);
}

/* An entry that has expired counts as absent, whether or not it was swept. */
static inline bool once_entry_expired(const once_entry *entry, int64_t now_ms)
{
    return once_entry_expires(entry) && entry->expires_ms <= now_ms;
}

#endif
