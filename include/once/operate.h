/* What an operator does with the store of a pipeline: look at it, replay or discard dead letters, resolve unknowns,
 * forget keys, sweep.
 *
 * Guarantees
 *   - Every change commits together with its audit record (when, who, what, which key or letter). An act is in the
 *     audit exactly when it happened.
 *   - The rules that decide about a message here are those of a run.
 *   - Processes that run the pipeline may go on meanwhile.
 *
 * Thread rule: any thread, at any time (once/pipeline.h). Calls run one at a time. While the pipeline runs in the same
 * process, they use its open store between two of its transactions, and its transactions wait for them: keep callbacks
 * short then. A call that changes many messages lets the run go on after each step. Without a run, a call opens the
 * store and closes it.
 * Callbacks must not call a function of this header with the same pipeline, nor start, run or join it (E_USAGE). They
 * may call once_pipeline_stop and once_pipeline_snapshot.
 *
 * Ownership: strings and bytes that a callback gets are valid until it returns. Structs that the caller passes are read
 * during the call.
 *
 * Errors of all functions (classes: once/error.h)
 *   E_OTHER_STORE   not the store that this pipeline has used; once_pipeline_take_store accepts it
 *   class USAGE     there is no store, or the call is wrong; also in the child of a fork, when the pipeline was started
 *                   before. Nothing was changed
 *   class RETRY     call again. Steps that were reported before are durable
 *   others          the store failed, see once_store_open
 * On failure, results may be partly filled.
 *
 * Example (payments.yaml as in the README, after a run): replay all dead letters
 *
 *     #include <inttypes.h>
 *     #include <stdio.h>
 *     #include <once/operate.h>
 *
 *     static void show(void *user, const once_replayed *letter)
 *     {
 *         (void)user;
 *         printf("letter %" PRIu64 ": %s\n", letter->letter, once_replay_verdict_name(letter->verdict));
 *     }
 *
 *     int main(void)
 *     {
 *         once_pipeline *pipeline;
 *         once_replay_counts counts;
 *         once_error err;
 *         const once_replay_options options = {.size = sizeof options,
 *                                              .choice = {.since_ms = ONCE_NO_TIME, .until_ms = ONCE_NO_TIME},
 *                                              .visit = show};
 *         int rc = once_pipeline_load("payments.yaml", NULL, NULL, &pipeline, &err);
 *         if (rc != ONCE_OK) return fprintf(stderr, "%s\n", err.text), 2;
 *         rc = once_pipeline_replay(pipeline, &options, &counts, &err);
 *         if (rc != ONCE_OK) fprintf(stderr, "%s\n", err.text);
 *         once_pipeline_free(pipeline);
 *         return rc == ONCE_OK ? 0 : 3;
 *     }
 */
#ifndef ONCE_OPERATE_H
#define ONCE_OPERATE_H

#include "once/pipeline.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Parses a point in time as operators write it: RFC 3339; as lists show it (2026-01-31 12:00:00.000 UTC); epoch
 * milliseconds; or a duration, which means so long ago (2h). E_USAGE: it is none of these, and `*ret_ms` is
 * untouched. */
ONCE_API int once_parse_when(once_bytes text, int64_t *ret_ms, once_error *err);

/* --- looking --- */

/* Where the messages of the consumer are. Times are milliseconds UTC; ONCE_NO_TIME: there is none. */
typedef struct once_pipeline_state {
    uint64_t waiting;                        /* keys that wait for their time, or behind another of their lane */
    uint64_t busy;                           /* keys that are claimed, until their lease ends */
    uint64_t unknown;                        /* keys whose effect may have happened */
    uint64_t dead;                           /* dead letters */
    uint64_t backlog;                        /* of the waiting: those due now */
    uint64_t repeats;                        /* since the store was made: effects outside that were started
                                                 again after an attempt that may have had its effect */
    uint64_t done, already, rejected, stale; /* finished keys that are remembered; counted only with `finished` */
    int64_t now_ms;                          /* this host's clock */
    int64_t store_ms;                        /* the store's clock */
    bool clock_doubted; /* after a reboot the wall clock is too far ahead to be trusted: once_pipeline_confirm_clock */
    int64_t oldest_waiting_ms; /* when it was first seen */
    int64_t oldest_unknown_ms; /* since when it is unknown, as once_listed.changed_ms */
    int64_t oldest_dead_ms;    /* when it became a dead letter */
    int64_t wait_ms;           /* until the next message is due; 0: now; -1: none will be */
    uint64_t given_up;         /* since the store was made: versions that did not come within gap.wait */
    uint64_t blocking; /* of the dead: those that block their lanes now (on_dead: block); once_pipeline_list shows the
                          lanes */
} once_pipeline_state;

/* Counts what the store has. `finished`: count the finished keys, too, which reads all of them. */
ONCE_API int once_pipeline_status(once_pipeline *pipeline, bool finished, once_pipeline_state *out, once_error *err);

/* The former names of both. */
typedef once_pipeline_state once_standing;
ONCE_API int once_pipeline_standing(once_pipeline *pipeline, bool finished, once_standing *out, once_error *err);

/* The messages that the store keeps with their bodies, because they wait or are claimed. `waiting_max` bounds them. */
typedef struct once_stored {
    size_t size;                      /* sizeof(once_stored); set by the caller */
    uint64_t messages;                /* how many */
    uint64_t bytes;                   /* of their bodies; in Redis of everything that is kept of them */
    uint64_t messages_max, bytes_max; /* the bounds of the file; 0: none */
} once_stored;

/* Counts them, which takes time where there are many. */
ONCE_API int once_pipeline_stored(once_pipeline *pipeline, once_stored *out, once_error *err);

/* A handler of a worker that is paused: its messages wait, and it is tried with one of them at a time. */
typedef struct once_paused_handler {
    once_bytes handler; /* its type, or its operation */
    once_bytes
        cause; /* "pause": somebody must act; "unable": it cannot be started; "breaker" and "dead_limit": these */
    once_bytes reason;
    int64_t since_ms; /* by the wall clock of the worker */
    int64_t next_ms;  /* when it is tried next, by the same clock; in the past: now; 0: with its next message */
    uint64_t tries;   /* in vain, since then */
} once_paused_handler;

/* A worker of the consumer: one run, as the store has it. Times are the store's. */
typedef struct once_running {
    const char *who; /* "user@host:pid" */
    /* "alive"
     * "late"   its lease, or that of a message that it has claimed, has ended: it died or hangs
     * "gone"   a process of this host that no longer exists */
    const char *state;
    int64_t begun_ms; /* when its run began */
    int64_t seen_ms;  /* when it last reported that it is alive, which it does at least every 10 s */
    uint64_t done;    /* messages that it settled with a final outcome, dead ones included */
    uint64_t rate;    /* of these, how many per second, between its last reports */
    uint64_t holds;   /* messages that it has claimed, and whose leases have not ended */
    uint64_t lapsed;  /* its claims whose leases have ended, and that no other worker has taken or decided. Counted only
                         if some worker has not reported for as long as the shortest `lease`; otherwise 0 */
    const once_paused_handler *paused; /* as it last reported; the first 16 */
    size_t n_paused;
} once_running;

/* Gets one worker. False ends the list. */
typedef bool once_running_visit(void *user, const once_running *running);

/* Calls `visit` for each worker that has not ended, in the order in which they began. */
ONCE_API int once_pipeline_workers(once_pipeline *pipeline, once_running_visit *visit, void *user, once_error *err);

/* Gets how many messages of a stream are not acked yet, whoever reads it, or, if the store keeps how far it was read,
 * are behind that; -1: it is not known. */
typedef void once_lag_visit(void *user, const char *stream, int64_t left);

/* Asks the broker, for about 2 s at most, and calls `visit` for each stream of the source (a partition). It joins no
 * group, and no run is needed. E_UNSUPPORTED: the source has no broker. E_UNAVAILABLE: the broker does not answer.
 * E_DENIED: it refuses. Or a status of the store. */
ONCE_API int once_pipeline_lag(once_pipeline *pipeline, once_lag_visit *visit, void *user, once_error *err);

/* What once_pipeline_list lists; a set. */
enum once_list_what { ONCE_LIST_WAITING = 1, ONCE_LIST_UNKNOWN = 2, ONCE_LIST_DEAD = 4, ONCE_LIST_BUSY = 8 };

/* One message of a list. */
typedef struct once_listed {
    const char *state; /* "waiting", "unknown", "dead" or "busy" */
    uint64_t letter;   /* dead: the id of its letter; otherwise 0 */
    /* dead: "dead", "conflict", "too_old", "cut" (longer than message_max, only its beginning is kept) or "malformed"
     * (it has no key); otherwise NULL. */
    const char *kind;
    once_scope scope;
    once_bytes key;             /* may be empty */
    once_bytes type;            /* may be empty */
    once_bytes place, point;    /* its coordinates */
    uint32_t attempt, failures; /* attempts so far; failures that are counted */
    int64_t seen_ms;            /* first seen */
    int64_t changed_ms;         /* since when it is in this state; dead: when it became a dead letter */
    uint64_t count; /* dead: how often this letter was delivered; a conflict counts every delivery of this content under
                        its key */
    int64_t last_ms;   /* dead: the last of these deliveries; `place` and `point` are those of that one */
    once_bytes worker; /* busy: the worker that has the claim; otherwise, if not empty: the one whose lease ended before
                          it reported */
    /* waiting: it does not run before this time; busy: when its lease ends; unknown: when the next lookup is due;
     * otherwise ONCE_NO_TIME, also when it waits behind another message. */
    int64_t due_ms;
    once_bytes reason;            /* why it is in this state */
    bool has_body;                /* the store has its body */
    once_bytes body, headers;     /* any bytes; a JSON object as text */
    const once_attempt *attempts; /* attempts that ended and are kept, oldest first */
    size_t n_attempts;
    char idempotency_key[33]; /* that its effects get; empty: it has no key */
    once_bytes line;          /* a letter without a key: the message as it was received. Empty for all others, with
                                 `bytes`, and when only a handler for its type is missing */
    uint64_t column;          /* of `line`: the byte, from 1, where it stops being JSON; 0: it is JSON */
    once_bytes own_reason;    /* the reason without what its lane adds; once_choice compares with this one */
    once_lane_place lane;     /* its place in its lane. Of a letter without an entry only `id`, `known` and `value` */
    bool maybe_done;          /* an attempt may have had its effect: running it again may repeat that */
    bool bytes;               /* the pipeline has `body: bytes`: `body` need not be text */
} once_listed;

/* Gets one message. False ends the list. */
typedef bool once_list_visit(void *user, const once_listed *item);

/* Calls `visit` for each message in one of the states `what`, a set of once_list_what. */
ONCE_API int once_pipeline_list(once_pipeline *pipeline, unsigned what, once_list_visit *visit, void *user,
                                once_error *err);

/* One record of the audit: what an operator did. */
typedef struct once_audited {
    int64_t time_ms;                               /* when, milliseconds UTC */
    once_bytes who;                                /* "user@host:pid" */
    once_bytes what, key, note;                    /* the act; its key, may be empty; what came of it */
    uint64_t letter;                               /* its dead letter; 0: none */
    once_bytes body;                               /* a body that was replaced; may be empty */
    once_bytes tenant, operation, idempotency_key; /* of the key; empty without one, and in older records */
    bool bytes;                                    /* as in once_listed, of `body` */
} once_audited;

/* Gets one record. False ends the list. */
typedef bool once_audited_visit(void *user, const once_audited *record);

/* Calls `visit` for each record of the audit. */
ONCE_API int once_pipeline_audits(once_pipeline *pipeline, once_audited_visit *visit, void *user, once_error *err);

/* What became of the message at given coordinates. */
typedef struct once_fate {
    /* "first"      this message created the entry of its key
     * "duplicate"  another message with the same key and the same content came first
     * "conflict"   another message with the same key and other content came first
     * "replaces"   another message with the same key and other content came first, but had no effect: this one would
     *              replace it
     * "letter"     it is a dead letter
     * "discarded"  it was a dead letter, and an operator discarded it: it does not become one again while that is
     *              remembered
     * "malformed"  it has no key, and there is no letter of it
     * "skipped"    it has no body, and such messages are skipped
     * "unseen"     the store has nothing about its key: it was not delivered, or it is forgotten */
    const char *fate;
    once_scope scope;  /* empty: it has no key */
    once_bytes key;    /* may be empty */
    once_bytes reason; /* of its letter, or why it has no key; may be empty */
    uint64_t letter;   /* the dead letter of this very message; 0: none */
    uint64_t count;    /* how often the message of this letter was delivered, at these coordinates and at others */
    once_bytes line;   /* as once_listed.line */
    uint64_t column;   /* as once_listed.column */
} once_fate;

/* Gets the fate of a message. */
typedef void once_fate_visit(void *user, const once_fate *fate);

/* Reads one message again from its source, where the source can do that (files and Kafka, not standard input), and
 * explains it: `fate` is called first, then, if the message has a key, `visit` as by once_pipeline_explain. E_USAGE: no
 * such place, or no message there. */
ONCE_API int once_pipeline_explain_message(once_pipeline *pipeline, once_bytes place, once_bytes point,
                                           once_fate_visit *fate, once_explain_visit *visit, void *user,
                                           once_error *err);

/* --- choosing --- */

/* Writes the group of a reason to `out`: the reason without what differs from message to message. Numbers of four
 * digits and more, addresses, times and long hexadecimal ids become "#"; what stands in quotes becomes "...". Exit
 * statuses, HTTP codes and SQLSTATEs stay. Plain text of one line; "(none)" for an empty reason. */
enum { ONCE_REASON_GROUP_MAX = 200 };
ONCE_API void once_reason_group(once_bytes reason, char out[ONCE_REASON_GROUP_MAX + 1]);

/* Which messages an act is about: those that fit every field. */
typedef struct once_choice {
    once_bytes tenant;          /* exactly this; data NULL: any */
    once_bytes operation;       /* exactly this; empty: any */
    once_bytes type;            /* exactly this; empty: any */
    once_bytes reason;          /* a part of the reason; empty: any */
    once_bytes group;           /* exactly what once_reason_group makes of the reason; empty: any */
    int64_t since_ms, until_ms; /* dead or unknown since a time in [since, until); ONCE_NO_TIME: no bound */
} once_choice;

/* --- dead letters --- */

/* What a replay makes of a letter: name, whether the letter leaves the dead letters, and why. */
#define ONCE_REPLAY_MAP(X)                                                                                             \
    X(run, true, "goes back to work")                                                                                  \
    X(forced, true, "goes back to work although its key is finished, or the message too old")                          \
    X(duplicate, true, "the same message is finished already: suppressed")                                             \
    X(waiting, true, "the same message is at work already")                                                            \
    X(stale, false, "a newer version came first, or is at work: it would not run")                                     \
    X(conflict, false, "its key or its version was used by another message")                                           \
    X(too_old, false, "older than what is remembered")                                                                 \
    X(no_handler, false, "no handler takes its type")                                                                  \
    X(other_key, false, "the body that was given has another key, or another place in its lane")                       \
    X(still_dead, false, "it would become a dead letter again, or its key has another letter")                         \
    X(gone, false, "the letter no longer exists")

/* ONCE_REPLAY_run, ONCE_REPLAY_forced... */
typedef enum once_replay_verdict {
#define ONCE_REPLAY_ENUM(name, leaves, text) ONCE_REPLAY_##name,
    ONCE_REPLAY_MAP(ONCE_REPLAY_ENUM)
#undef ONCE_REPLAY_ENUM
        ONCE_REPLAY_VERDICTS
} once_replay_verdict;

/* "run"; "?" for a number that is not a verdict. */
ONCE_API const char *once_replay_verdict_name(once_replay_verdict verdict);
/* What it means, "goes back to work"; "?" for a number that is not a verdict. */
ONCE_API const char *once_replay_verdict_text(once_replay_verdict verdict);
/* Whether the letter leaves the dead letters. */
ONCE_API bool once_replay_verdict_leaves(once_replay_verdict verdict);

/* One letter of a replay. */
typedef struct once_replayed {
    uint64_t letter; /* its id */
    once_replay_verdict verdict;
    once_bytes key, type, place, point; /* may be empty */
    /* no_handler, still_dead, and where its lane decides (stale, conflict, duplicate): why; otherwise why it had become
     * a dead letter. */
    once_bytes reason;
    char idempotency_key[33]; /* that its effects get; empty: it has no key */
    once_scope scope;         /* of its key; may be empty */
    once_bytes result;        /* duplicate: the stored result; may be empty */
    bool maybe_done;          /* an attempt may have had its effect: running it again may repeat that */
} once_replayed;

/* Gets the progress of a replay: letters looked at, out of how many. */
typedef void once_replay_progress(void *user, uint64_t looked_at, uint64_t total, double seconds);

/* Which letters to replay, and how. Zero it, set `size`, and both times of `choice` to ONCE_NO_TIME. */
typedef struct once_replay_options {
    size_t size;         /* sizeof(once_replay_options) */
    const uint64_t *ids; /* only these letters; NULL: all that fit `choice` */
    size_t n_ids;
    once_choice choice;
    /* A body instead of the letter's own, for one letter; NULL: none. It is treated as a delivery, and must have the
     * letter's key, if that has one. The body that it replaces is kept in the audit. If the letter has no entry of
     * its own, the old letter is discarded, and the new body is treated as a new delivery. */
    const once_bytes *body;
    bool dry_run;  /* judge everything, change nothing */
    bool force;    /* also replay letters whose key is finished or whose message is too old. A message that a worker is
                     processing, or that a newer version of its lane has overtaken, is never replayed */
    uint32_t rate; /* letters per second that may go back to work; 0: no limit */
    void (*visit)(void *user, const once_replayed *letter); /* each letter, after its change is durable; may be NULL */
    once_replay_progress *progress;                         /* may be NULL */
    void *user;                                             /* for both callbacks */
} once_replay_options;

/* What a replay did. */
typedef struct once_replay_counts {
    uint64_t verdicts[ONCE_REPLAY_VERDICTS]; /* letters by verdict */
    bool stopped;                            /* by once_pipeline_stop; the letters that are left are still there */
} once_replay_counts;

/* Replays dead letters: their messages wait in the store, and the next run, or one that is running, takes them. Letters
 * move in small transactions, so a replay may end anywhere and be started again. A dry run judges with the same code,
 * and rolls back. Memory does not grow with the number of letters; a dry run of more than one transaction keeps 32 to
 * 64 bytes of each in a temporary file. */
ONCE_API int once_pipeline_replay(once_pipeline *pipeline, const once_replay_options *options, once_replay_counts *out,
                                  once_error *err);

/* One letter that was discarded. */
typedef struct once_discarded {
    uint64_t letter;                            /* its id */
    bool found;                                 /* false: there is no such letter, and the rest is empty */
    const char *kind;                           /* as in once_listed */
    once_scope scope;                           /* of its key; may be empty */
    once_bytes key, type, place, point, reason; /* may be empty */
    char idempotency_key[33];                   /* empty: it has no key */
} once_discarded;

/* Which letters to discard. Zero it, set `size`, and both times of `choice` to ONCE_NO_TIME. */
typedef struct once_discard_options {
    size_t size;         /* sizeof(once_discard_options) */
    const uint64_t *ids; /* only these letters; NULL: all that fit `choice` */
    size_t n_ids;
    once_choice choice;
    bool dry_run; /* do it, then roll back */
    void (*visit)(void *user,
                  const once_discarded *letter); /* each letter, after its discard is durable; may be NULL */
    void *user;
} once_discard_options;

/* Gives up dead letters: drops their bodies, and marks the keys that died with them as rejected. Letters without an
 * entry of their own (malformed, too old, cut, conflict) are remembered for `remember` of their handler. In that time
 * the same message at the same coordinates, and for a conflict the same content under the same key at any coordinates,
 * is a duplicate. In transactions of some hundred letters. `discarded`: how many were found. */
ONCE_API int once_pipeline_discard(once_pipeline *pipeline, const once_discard_options *options, uint64_t *discarded,
                                   once_error *err);

/* --- keys ---
 *
 * A pipeline with tenants needs a tenant: E_USAGE when `tenant.data` is NULL; for the empty tenant pass
 * {"", 0}. `operation` may be empty when only one operation of the pipeline has the key; otherwise E_USAGE names those
 * that have it. */

/* One message that was resolved. */
typedef struct once_resolved {
    once_scope scope;
    once_bytes key;                        /* never empty */
    once_bytes type, place, point, reason; /* may be empty; the reason: why it was unknown */
    char idempotency_key[33];              /* that its effect got */
    const char *refused;                   /* with `choice`: why this one stays unknown; NULL: it was resolved */
    bool then; /* resolved as done, and its handler has a `then`, which was not run: do by hand what it does */
} once_resolved;

/* Which unknowns to resolve, and as what. Zero it, set `size` and `outcome`, and both times of `choice` to
 * ONCE_NO_TIME. */
typedef struct once_resolve_options {
    size_t size;           /* sizeof(once_resolve_options) */
    once_outcome outcome;  /* ONCE_DONE, ONCE_RETRY or ONCE_DEAD */
    const once_bytes *key; /* this key, of choice.tenant and choice.operation; NULL: all unknowns that fit `choice` */
    once_choice choice;
    bool dry_run;                                            /* do it, then roll back */
    void (*visit)(void *user, const once_resolved *message); /* each message, after that is durable; may be NULL */
    void *user;
} once_resolve_options;

/* Decides what unknowns are, each in a transaction of its own. `resolved`: how many. An attempt with
 * `unknown: hold` whose lease has ended counts as unknown, too; if its worker reports an outcome after this call, the
 * report is refused. With a key, E_USAGE means that the key is not unknown; or that RETRY or DEAD was asked for, and
 * the store has no body: then wait until the source delivers the message again. */
ONCE_API int once_pipeline_resolve(once_pipeline *pipeline, const once_resolve_options *options, uint64_t *resolved,
                                   once_error *err);

/* Removes a key; its next message runs again. A body that the store kept for it is dropped. `*was` is set to the state
 * that it had, "absent" if the store had nothing about it; static. */
ONCE_API int once_pipeline_forget(once_pipeline *pipeline, once_bytes tenant, once_bytes operation, once_bytes key,
                                  const char **was, once_error *err);

/* --- the store itself --- */

/* Confirms that the wall clock of this host is right: it becomes the store's clock, ahead or back. Ahead: everything
 * that expires until then is forgotten. Back: unfinished messages keep their delays, and finished ones are remembered
 * longer by the difference. Audited. E_USAGE: the store has no clock of its own (a server's clock decides). */
ONCE_API int once_pipeline_confirm_clock(once_pipeline *pipeline, int64_t *before_ms, int64_t *after_ms,
                                         once_error *err);

/* Accepts the store that is there as this pipeline's store. If there is none (`*ret_there` is false), the next run may
 * create or accept one. No message is consumed, and no store is created. Audited in the store, now or by that run.
 * E_USAGE: the file has a `store_id`. E_IO: it cannot be recorded in this process's state folder. E_OTHER_STORE: the
 * tables of a store are there, but were emptied. */
ONCE_API int once_pipeline_take_store(once_pipeline *pipeline, bool *ret_there, once_error *err);

/* Restores lost rows that can be derived from the remaining entries, lanes and letters.
 * PostgreSQL: names of finished entries, which are shown as "(lost)", and rows of lanes. Redis: places in indexes,
 * groups and lanes, records of lanes, lists of letters. Repaired entries suppress duplicates as before. Each step
 * leaves an audit record. `repaired`: how many. E_USAGE: this kind of store cannot be repaired so. */
ONCE_API int once_pipeline_repair(once_pipeline *pipeline, uint64_t *repaired, once_error *err);

/* Gets the progress of a sweep: entries dropped so far. */
typedef void once_sweep_progress(void *user, uint64_t dropped, double seconds);

/* Drops everything that has expired, step by step. `progress` may be NULL. `dropped`: how many entries. */
ONCE_API int once_pipeline_sweep(once_pipeline *pipeline, once_sweep_progress *progress, void *user, uint64_t *dropped,
                                 once_error *err);

#ifdef __cplusplus
}
#endif
#endif
