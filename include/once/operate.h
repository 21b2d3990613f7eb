/* What an operator does with the store of a pipeline: look, bring dead letters back to work, decide what is unknown.
 *
 * Every change is one transaction together with its audit record (when, who, what, which key or letter), so an act is
 * in the audit exactly when it happened. Processes that run the pipeline may go on meanwhile.
 *
 * Strings and bytes that callbacks get are the library's until the callback returns. No callback of these functions may
 * call one of them with the same pipeline, nor start, run or join it (ONCE_E_USAGE); once_pipeline_stop and
 * once_pipeline_snapshot it may.
 *
 * Thread rule: any thread, at any time (once/pipeline.h); calls wait for each other. While the pipeline runs in the
 * same process they use the store that it has open, between two of its transactions, and its transactions wait for
 * them: a callback should be quick then. What changes many messages lets the run go on after each step. Otherwise a
 * store is opened for the call.
 *
 * All functions: ONCE_E_OTHER_STORE when it is not the one that this pipeline has worked with; ONCE_CLASS_USAGE when
 * the store is missing or the call makes no sense, also in the child of a fork when the pipeline was started before;
 * other classes from the store. */
#ifndef ONCE_OPERATE_H
#define ONCE_OPERATE_H

#include "once/pipeline.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A moment as an operator writes it: RFC 3339, as lists show it (2026-01-31 12:00:00.000 UTC), epoch milliseconds, or a
 * duration (2h): that long ago. */
ONCE_API int once_parse_when(once_bytes text, int64_t *ret_ms, once_error *err);

/* --- looking --- */

/* Where the consumer's messages stand. Times in milliseconds UTC, ONCE_NO_TIME when there is none. */
typedef struct once_pipeline_state {
    uint64_t waiting, busy,
        unknown;      /* keys that are not finished; busy: until the lease is over, then one of the others */
    uint64_t dead;    /* dead letters */
    uint64_t backlog; /* of the waiting: due now */
    uint64_t repeats; /* ever: external effects started again after one that may have happened */
    uint64_t done, already, rejected, stale; /* remembered; counted only when asked for */
    int64_t now_ms;                          /* of this machine */
    int64_t store_ms;                        /* of the store */
    bool clock_doubted; /* after a reboot the wall clock is too far ahead to be believed: once_pipeline_confirm_clock */
    int64_t oldest_waiting_ms; /* first seen */
    int64_t oldest_unknown_ms; /* since when it is that, as once_listed.changed_ms */
    int64_t oldest_dead_ms;    /* buried */
    int64_t wait_ms;           /* until something is due by itself; 0: now; -1: nothing will be */
    uint64_t given_up;         /* ever: versions that did not come within gap.wait */
    uint64_t blocking; /* of the dead: those that hold up their lanes now (on_dead: block); once_pipeline_list says of
                          which */
} once_pipeline_state;

/* `finished`: count the finished entries too, which reads all of them. */
ONCE_API int once_pipeline_status(once_pipeline *pipeline, bool finished, once_pipeline_state *out, once_error *err);

/* The names of both before. */
typedef once_pipeline_state once_standing;
ONCE_API int once_pipeline_standing(once_pipeline *pipeline, bool finished, once_standing *out, once_error *err);

/* What the store keeps for the consumer to be worked on: messages with their bodies that wait or are claimed by a
 * worker. It is what `waiting_max` bounds. */
typedef struct once_stored {
    size_t size; /* sizeof(once_stored) */
    uint64_t messages;
    uint64_t bytes;                   /* of their bodies; in Redis of all that is kept of them */
    uint64_t messages_max, bytes_max; /* as the file says; 0: no bound */
} once_stored;

/* Counts them, which takes time where there are many. */
ONCE_API int once_pipeline_stored(once_pipeline *pipeline, once_stored *out, once_error *err);

/* A run of the consumer, as its store knows it. Times are the store's. */
typedef struct once_running {
    const char *who;   /* "user@host:pid" */
    const char *state; /* "alive"; "late": its lease is over, or that of a message that it has claimed: it died or
                          hangs; "gone": a process of this machine that is not there any more */
    int64_t begun_ms;
    int64_t seen_ms; /* it last said that it is alive, which it does at least every 10 s */
    uint64_t done;   /* messages that it decided: not those that it put back, nor unknowns */
    uint64_t rate;   /* of these, in a second, lately */
    uint64_t holds;  /* messages that it has claimed, and whose leases are not over */
    uint64_t lapsed; /* those whose leases are over, which nobody else has taken or decided since; counted where it may
                        be late */
} once_running;

/* Those that have not ended, by their begin; false ends the list. */
typedef bool once_running_visit(void *user, const once_running *running);
ONCE_API int once_pipeline_workers(once_pipeline *pipeline, once_running_visit *visit, void *user, once_error *err);

enum once_list_what { ONCE_LIST_WAITING = 1, ONCE_LIST_UNKNOWN = 2, ONCE_LIST_DEAD = 4, ONCE_LIST_BUSY = 8 };

typedef struct once_listed {
    const char *state; /* "waiting", "unknown", "dead" or "busy" */
    uint64_t letter;   /* dead: its id; otherwise 0 */
    const char *kind;  /* dead: "dead", "conflict", "too_old", "cut" (longer than message_max, only its beginning is
                        * kept) or "malformed" (it has  no key); otherwise NULL */
    once_scope scope;
    once_bytes key; /* may be empty */
    once_bytes type;
    once_bytes place, point; /* coordinates */
    uint32_t attempt, failures;
    int64_t seen_ms;    /* first seen */
    int64_t changed_ms; /* last change of state, so: since when it is what it is; dead: buried */
    uint64_t count; /* dead: how often this letter was delivered; a conflict counts every delivery of this content under
                       its key */
    int64_t last_ms; /* dead: the last of these; place and point are those of that one */
    once_bytes
        worker; /* busy: whose claim it is; otherwise, if not empty: whose lease ran out, and who has not reported */
    int64_t
        due_ms; /* waiting: not before; busy: the claim ends; unknown: when the other side is asked about it; otherwise
                       ONCE_NO_TIME, also when parked */
    once_bytes reason;
    bool has_body;
    once_bytes body, headers;
    const once_attempt *attempts; /* that have ended and are kept, oldest first */
    size_t n_attempts;
    char idempotency_key[33]; /* that its effects are given; empty: it has no key */
    once_bytes line; /* malformed, and not only without a handler: the message, which has nothing else to be known by;
                        otherwise empty */
    uint64_t column; /* of that: the byte, from 1, at which it is no JSON any more; 0: it is */
    once_bytes own_reason; /* the reason without what its lane says: the one that once_choice looks at */
    once_lane_place lane;  /* of a letter that has no place in it: only its value */
    bool maybe_done;       /* an attempt may have had its effect: whoever has it run again may repeat that */
} once_listed;

typedef bool once_list_visit(void *user, const once_listed *item); /* false ends the listing */

/* `what`: a set of once_list_what. */
ONCE_API int once_pipeline_list(once_pipeline *pipeline, unsigned what, once_list_visit *visit, void *user,
                                once_error *err);

typedef struct once_audited {
    int64_t time_ms;
    once_bytes who; /* "user@host:pid" */
    once_bytes what, key, note;
    uint64_t letter;                               /* 0: none */
    once_bytes body;                               /* that was replaced; may be empty */
    once_bytes tenant, operation, idempotency_key; /* of the key; may be empty, and are in records of older versions */
} once_audited;

typedef bool once_audited_visit(void *user, const once_audited *record);
ONCE_API int once_pipeline_audits(once_pipeline *pipeline, once_audited_visit *visit, void *user, once_error *err);

/* Why a message at these coordinates was skipped, or what became of it. */
typedef struct once_fate {
    const char *fate; /* one of the words below */
    once_scope scope; /* empty when it has no key */
    once_bytes key;
    once_bytes reason; /* of a letter, or why it has no key; may be empty */
    uint64_t letter;   /* the dead letter of this very message; 0: none */
    uint64_t count;    /* how often that was delivered, here and elsewhere */
    once_bytes line;   /* as once_listed.line */
    uint64_t column;   /* of that: the byte, from 1, at which it is no JSON any more; 0: it is */
} once_fate;
/* "first"      the entry of its key was made by this message
 * "duplicate"  by another one with the same content
 * "conflict"   by another one with other content
 * "replaces"   by another one with other content, which has had no effect: this one would take its place
 * "letter"     it is a dead letter
 * "discarded"  it was one, which was discarded: it does not become one again while that is remembered
 * "malformed"  it has no key, and no letter either
 * "unseen"     nothing is known of its key: it was not delivered, or it is forgotten */

/* Reads the message again from its source, where that can (files, not standard input). `fate` is told first, then, when
 * there is a key, what is known of it as by once_pipeline_explain. ONCE_E_USAGE: no such place, or nothing is there. */
typedef void once_fate_visit(void *user, const once_fate *fate);
ONCE_API int once_pipeline_explain_message(once_pipeline *pipeline, once_bytes place, once_bytes point,
                                           once_fate_visit *fate, once_explain_visit *visit, void *user,
                                           once_error *err);

/* --- choosing --- */

/* The kind of a reason: without what differs from message to message, which is numbers of four digits and more,
 * addresses, times and long hexadecimal ids ("#"), and what stands in quotes ("..."). Exit statuses, HTTP codes and
 * SQLSTATEs stay. Plain text of one line; "(none)" of no reason. */
enum { ONCE_REASON_GROUP_MAX = 200 };
ONCE_API void once_reason_group(once_bytes reason, char out[ONCE_REASON_GROUP_MAX + 1]);

/* Messages that fit all of it. */
typedef struct once_choice {
    once_bytes tenant;          /* exactly; data NULL: any */
    once_bytes operation;       /* exactly; empty: any */
    once_bytes type;            /* exactly; empty: any */
    once_bytes reason;          /* a part of the reason; empty: any */
    once_bytes group;           /* exactly what once_reason_group makes of the reason; empty: any */
    int64_t since_ms, until_ms; /* buried, or unknown, since [since, until); ONCE_NO_TIME: no bound */
} once_choice;

/* --- dead letters --- */

/*    name, does the letter leave the dead letters, what it means */
#define ONCE_REPLAY_MAP(X)                                                                                             \
    X(run, true, "goes back to work")                                                                                  \
    X(forced, true, "goes back to work although its key is finished, or the message too old")                          \
    X(duplicate, true, "the same message is finished already: suppressed")                                             \
    X(waiting, true, "the same message is at work already")                                                            \
    X(stale, false, "a newer version came first, or is at work: it would not run")                                     \
    X(conflict, false, "its key or its version was used by another message")                                           \
    X(too_old, false, "older than what is remembered")                                                                 \
    X(no_handler, false, "nobody handles its type")                                                                    \
    X(other_key, false, "the body that was given has another key, or another place in its lane")                       \
    X(still_dead, false, "it would die again, or its key has another letter")                                          \
    X(gone, false, "there is no such letter any more")

typedef enum once_replay_verdict {
#define ONCE_REPLAY_ENUM(name, leaves, text) ONCE_REPLAY_##name,
    ONCE_REPLAY_MAP(ONCE_REPLAY_ENUM)
#undef ONCE_REPLAY_ENUM
        ONCE_REPLAY_VERDICTS
} once_replay_verdict;

ONCE_API const char *once_replay_verdict_name(once_replay_verdict verdict);
ONCE_API const char *once_replay_verdict_text(once_replay_verdict verdict);
ONCE_API bool once_replay_verdict_leaves(once_replay_verdict verdict);

typedef struct once_replayed {
    uint64_t letter;
    once_replay_verdict verdict;
    once_bytes key, type, place, point; /* may be empty */
    once_bytes reason; /* no_handler, still_dead, and what its lane says (stale, conflict, duplicate): why; otherwise
                          why it had died */
    char idempotency_key[33]; /* that its effects are given; empty: it has no key */
    once_scope scope;         /* of its key; may be empty */
    once_bytes result;        /* duplicate: what the finished one left; may be empty */
    bool maybe_done;          /* an attempt may have had its effect: running it again may repeat that */
} once_replayed;

/* How far it is: letters looked at, out of how many. */
typedef void once_replay_progress(void *user, uint64_t looked_at, uint64_t total, double seconds);

typedef struct once_replay_options {
    size_t size;         /* sizeof(once_replay_options) */
    const uint64_t *ids; /* only these; NULL: all that fit `choice` */
    size_t n_ids;
    once_choice choice;
    /* Instead of the letter's own body; of one letter. It goes the way of a delivery, and must have the same key, if
     * the letter has one. The body that it replaces is kept in the audit, and a letter without an entry is given up as
     * by once_pipeline_discard. NULL: none. */
    const once_bytes *body;
    bool dry_run; /* judge everything, change nothing */
    bool force; /* also what is finished or too old; never what somebody works on, nor what a newer version of its lane
                   has overtaken */
    uint32_t rate;                                          /* letters a second that may go back to work; 0: no limit */
    void (*visit)(void *user, const once_replayed *letter); /* each one, after it is durable; may be NULL */
    once_replay_progress *progress;                         /* may be NULL */
    void *user;
} once_replay_options;

typedef struct once_replay_counts {
    uint64_t verdicts[ONCE_REPLAY_VERDICTS];
    bool stopped; /* by once_pipeline_stop; what is left is still there */
} once_replay_counts;

/* Dead letters back to work: the next run, or one that is running, takes them. Letters move in small transactions, so
 * it may be ended anywhere and started again. A dry run judges with the same code, and takes it back. Memory does not
 * grow with the number of letters; a dry run of more than one transaction keeps 32 to 64 bytes of each in a temporary
 * file. */
ONCE_API int once_pipeline_replay(once_pipeline *pipeline, const once_replay_options *options, once_replay_counts *out,
                                  once_error *err);

typedef struct once_discarded {
    uint64_t letter;
    bool found;                                 /* false: there is no such letter, and the rest is empty */
    const char *kind;                           /* as in once_listed */
    once_scope scope;                           /* of its key; may be empty */
    once_bytes key, type, place, point, reason; /* may be empty */
    char idempotency_key[33];                   /* empty: it has no key */
} once_discarded;

typedef struct once_discard_options {
    size_t size;         /* sizeof(once_discard_options) */
    const uint64_t *ids; /* only these; NULL: all that fit `choice` */
    size_t n_ids;
    once_choice choice;
    bool dry_run;                                            /* do it and take it back */
    void (*visit)(void *user, const once_discarded *letter); /* each one, after it is durable; may be NULL */
    void *user;
} once_discard_options;

/* The letters are given up: their bodies are dropped, and the keys that died with them are rejected. Those without such
 * a key (malformed, too old, cut, conflict) are remembered as long as a message of their handler is: the same message
 * at the same place, and the same conflict anywhere, is a duplicate then. In transactions of some hundred letters;
 * `discarded`: how many were found. */
ONCE_API int once_pipeline_discard(once_pipeline *pipeline, const once_discard_options *options, uint64_t *discarded,
                                   once_error *err);

/* --- keys --- */

/* A pipeline with tenants wants one: ONCE_E_USAGE when `tenant.data` is NULL; an empty one has an address.
 * `operation` may be empty when only one operation of the pipeline knows the key; otherwise ONCE_E_USAGE says which do.
 */

typedef struct once_resolved {
    once_scope scope;
    once_bytes key, type, place, point, reason; /* may be empty, but for the key; the reason: why it was unknown */
    char idempotency_key[33];                   /* that its effect was given */
    const char *refused;                        /* of all that fit: why this one stays; NULL: it was resolved */
} once_resolved;

typedef struct once_resolve_options {
    size_t size;          /* sizeof(once_resolve_options) */
    once_outcome outcome; /* ONCE_DONE, ONCE_RETRY or ONCE_DEAD */
    const once_bytes
        *key; /* this one, of choice.tenant and choice.operation; NULL: all unknown ones that fit `choice` */
    once_choice choice;
    bool dry_run;                                            /* do it and take it back */
    void (*visit)(void *user, const once_resolved *message); /* each one, after it is durable; may be NULL */
    void *user;
} once_resolve_options;

/* Unknown ones, each in a transaction; `resolved`: how many. Of a key, ONCE_E_USAGE: it is not unknown, or there is no
 * body to retry with or to keep in a letter: then its source has it, and brings it again. An attempt whose lease is
 * over is unknown where its end matters, and a late report of it changes nothing any more after this. */
ONCE_API int once_pipeline_resolve(once_pipeline *pipeline, const once_resolve_options *options, uint64_t *resolved,
                                   once_error *err);

/* Nothing is known of the key any more: the next message with it runs. `was` gets the state it had; "absent" when
 * nothing was known. A body that the store owned for it is dropped. */
ONCE_API int once_pipeline_forget(once_pipeline *pipeline, once_bytes tenant, once_bytes operation, once_bytes key,
                                  const char **was, once_error *err);

/* --- the time of the store --- */

/* The wall clock of this machine is right: it is the time of the store from now on, whether that goes ahead or back.
 * Ahead: what was to be remembered until then is forgotten. Back: unfinished messages keep their delays, and what is
 * finished is remembered longer by the difference. Audited. ONCE_E_USAGE: the store has no time of its own (a server's
 * clock decides). */
ONCE_API int once_pipeline_confirm_clock(once_pipeline *pipeline, int64_t *before_ms, int64_t *after_ms,
                                         once_error *err);

/* Takes the store that is there for the one that this pipeline has worked with, or, where there is none (`*ret_there`
 * false), lets the next run make or take one; nothing is consumed or made. Audited in the store, now or by that run.
 * ONCE_E_USAGE: the file says `store_id`. ONCE_E_IO: it cannot be remembered in this process's state folder.
 * ONCE_E_OTHER_STORE: the tables of one are there, emptied. */
ONCE_API int once_pipeline_take_store(once_pipeline *pipeline, bool *ret_there, once_error *err);

/* Mends entries of a PostgreSQL store that refer to names which it does not have, because it was restored, or a
 * failover lost its last commits, under a worker of a version that did not notice. They suppress as before; what they
 * show of tenant, consumer, operation, place and worker is "(lost)" where it is. Each step leaves an audit record.
 * E_USAGE: this cannot happen in this store. */
ONCE_API int once_pipeline_repair(once_pipeline *pipeline, uint64_t *repaired, once_error *err);

/* --- expired entries --- */

/* Drops everything that has expired, step by step; `progress` (may be NULL) hears what was dropped so far. */
typedef void once_sweep_progress(void *user, uint64_t dropped, double seconds);
ONCE_API int once_pipeline_sweep(once_pipeline *pipeline, once_sweep_progress *progress, void *user, uint64_t *dropped,
                                 once_error *err);

#ifdef __cplusplus
}
#endif
#endif
