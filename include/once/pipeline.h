/* A pipeline: a YAML file that says where messages come from, what makes two of them the same, and what each one does.
 * Load it, run it, look at it while it runs, stop it. once/operate.h has what operators do with its store.
 *
 * Guarantees
 *   - SQL effects in the database of the store: effect and outcome commit in one transaction. So each key has one
 *     effect, at whatever moment a process crashes, for as long as the key is remembered and the database keeps what it
 *     acknowledged.
 *   - Effects outside (commands, callbacks, another database): never lost, and every attempt has the same idempotency
 *     key. An attempt whose outcome is unknown is held for an operator, or, with `unknown: retry`, repeated and counted
 *     (`repeats`).
 *   - A message is acked to its source after its outcome is durable, never before.
 *   - Loading a file connects to nothing and changes nothing.
 *
 * Thread rule: one thread loads the pipeline, registers callbacks and a salt, and frees it. Everything else may be
 * called from any thread at any time. once_pipeline_stop may be called from a signal handler, too. A run has threads of
 * its own, which have ended when it is joined. Operating and explaining share the store with the run, one call or one
 * transaction at a time.
 * Callbacks: a callback of once_pipeline_explain or of once/operate.h holds the store while it runs. It must not start,
 * run, join, operate or explain with the same pipeline (E_USAGE). A handler (once_pipeline_callback) may take
 * snapshots, explain, and call once/operate.h, but must not join.
 * Fork rule: no pipeline survives fork. If it was started before, everything that uses its store returns E_USAGE in the
 * child.
 *
 * Ownership: the caller owns the pipeline from once_pipeline_load to once_pipeline_free. What a callback gets is valid
 * until it returns. `user` is passed on as it is.
 *
 * Errors (classes: once/error.h). USAGE: the file or the call is wrong, and no message was consumed. FATAL, PAUSE and
 * RETRY from a run: it could not go on; messages without an outcome stay with their source or in the store, and the
 * next run continues.
 *
 * Example (payments.yaml as in the README)
 *
 *     #include <inttypes.h>
 *     #include <stdio.h>
 *     #include <once/pipeline.h>
 *
 *     static void mistake(void *user, const char *text)
 *     {
 *         (void)user;
 *         fprintf(stderr, "%s\n", text);
 *     }
 *
 *     int main(void)
 *     {
 *         once_pipeline *pipeline;
 *         once_summary summary;
 *         once_error err;
 *         int rc = once_pipeline_load("payments.yaml", mistake, NULL, &pipeline, &err);
 *         if (rc != ONCE_OK) return 2;
 *         rc = once_pipeline_run(pipeline, NULL, &summary, &err);
 *         if (rc != ONCE_OK) fprintf(stderr, "%s\n", err.text);
 *         else printf("%" PRIu64 " done, %" PRIu64 " dead\n", summary.counts.done, summary.counts.dead);
 *         once_pipeline_free(pipeline);
 *         return rc == ONCE_OK ? 0 : 3;
 *     }
 */
#ifndef ONCE_PIPELINE_H
#define ONCE_PIPELINE_H

#include "once/handle.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A pipeline that was loaded, with its run. */
typedef struct once_pipeline once_pipeline;

/* The counts of a run. Each message counts once, by its state at the end:
 *   received + resumed = done + already + rejected + stale + skipped + duplicates + waiting + unknown + dead
 * The first delivery of a key whose outcome is unknown counts as `unknown`, its other deliveries in this run as
 * duplicates. So `unknown` counts keys, not messages: those whose outcome was unknown when this run met them. Some may
 * be resolved since. once_summary.store_unknown counts all whose outcome is unknown now. A message is counted when it
 * is finished or given to the store; until then a snapshot has it in `open`. */
#define ONCE_COUNT_MAP(X)                                                                                              \
    X(received, "came from the source")                                                                                \
    X(resumed, "taken from the store, received by an earlier run or another process")                                  \
    X(done, "the effect happened")                                                                                     \
    X(already, "the effect had happened before: the handler or a constraint found it")                                 \
    X(rejected, "refused by a business rule")                                                                          \
    X(stale, "superseded by a newer version, or an update that matched no row")                                        \
    X(skipped, "messages without a body (tombstones: skip)")                                                           \
    X(duplicates, "suppressed: settled before, or another worker is processing it")                                    \
    X(waiting, "given to the store and not finished by this run")                                                      \
    X(unknown, "keys whose effect may have happened, met by this run")                                                 \
    X(dead, "dead letters")                                                                                            \
    X(conflicts, "of the dead: key or version used before, with other content")                                        \
    X(too_old, "of the dead: older than what is remembered")                                                           \
    X(attempts, "effects started")                                                                                     \
    X(retries, "failures that are tried again")                                                                        \
    X(repeats, "effects started again after one that may have happened")                                               \
    X(fenced, "claims that ended before their outcome was recorded; another worker decides about them")                \
    X(given_up, "versions that did not come within gap.wait, and are no longer waited for")                            \
    X(acked, "acked to the source")

/* One uint64_t for each row of the map. */
typedef struct once_counts {
#define ONCE_COUNT_FIELD(name, text) uint64_t name;
    ONCE_COUNT_MAP(ONCE_COUNT_FIELD)
#undef ONCE_COUNT_FIELD
} once_counts;

/* The stages of a message, and what the time of each measures. */
#define ONCE_TIMING_MAP(X)                                                                                             \
    X(claim, "from its arrival, from its source or the store, until the store answered its claim")                     \
    X(start, "from the answer to its claim until its effect was started")                                              \
    X(settle, "from the start of its effect until its outcome was durable")                                            \
    X(ack, "from its durable outcome until the source was acked")

/* How long one stage took, in milliseconds of a clock that does not jump. Messages that reach a stage together share
 * the moment. */
enum { ONCE_TIMING_BUCKETS = 28 };
typedef struct once_timing {
    uint64_t count, sum_ms, max_ms;       /* messages; the sum of their times; the longest */
    uint64_t bucket[ONCE_TIMING_BUCKETS]; /* [0]: under 1 ms; [i]: from 2^(i-1) to under 2^i; the last: longer, too */
} once_timing;

/* One once_timing for each row of the map. */
typedef struct once_timings {
#define ONCE_TIMING_FIELD(name, text) once_timing name;
    ONCE_TIMING_MAP(ONCE_TIMING_FIELD)
#undef ONCE_TIMING_FIELD
} once_timings;

/* How a run ended. */
typedef struct once_summary {
    once_counts counts;
    double seconds;         /* how long it ran */
    bool stopped;           /* by once_pipeline_stop, before the source was at its end */
    uint64_t store_dead;    /* dead letters of this consumer in the store, also of earlier runs */
    uint64_t store_unknown; /* keys of this consumer in the store whose outcome is unknown, also of earlier runs */
    bool clock_doubted; /* after a reboot the wall clock is too far ahead to be trusted: once_pipeline_confirm_clock */
    /* Messages that were read from a source that cannot deliver them again (a pipe), and that are not known to be
     * settled. More than 0: the run has failed. */
    uint64_t lost;
} once_summary;

/* Called about five times a second, in the thread that called once_pipeline_run. `left`: as once_snapshot.left. */
typedef void once_progress(void *user, const once_counts *counts, int64_t left, double seconds);

/* Called before each `progress`. `text` is one short line while the run can only wait: for claims of other workers
 * ("waits 23s for ann@host:4711, which is alive"), or because too much waits in the store to fetch more (waiting_max).
 * Otherwise it is empty. */
typedef void once_waiting(void *user, const char *text);

/* How a pipeline is run. A zeroed struct with its size means the defaults. */
typedef struct once_run_options {
    size_t size;               /* sizeof(once_run_options) */
    bool confirm_scope_change; /* go on although consumer, operation, key, fingerprint or salt changed on this store */
    once_progress *progress;   /* may be NULL */
    void *user;                /* for both callbacks */
    /* Begin with an empty or another store although this pipeline has used one before. Otherwise that is
     * E_OTHER_STORE. */
    bool new_store;
    once_waiting *waiting; /* may be NULL; called only with `progress` */
} once_run_options;

/* Gets one mistake of the file: "file:line: what is wrong; what to do". */
typedef void once_mistake(void *user, const char *text);

/* Reads and checks the file. Every mistake goes to `report` (may be NULL), the first one also to `err`. On ONCE_OK the
 * caller owns `*out`; otherwise it is untouched. Errors: E_CONFIG (mistakes in the file, or it cannot be read),
 * E_UNSUPPORTED (it names something that this build does not have), E_USAGE, E_NOMEM. */
ONCE_API int once_pipeline_load(const char *file, once_mistake *report, void *user, once_pipeline **out,
                                once_error *err);

/* Frees the pipeline. A run that was not joined is stopped and joined first. No other thread may use the pipeline.
 * NULL is accepted. */
ONCE_API void once_pipeline_free(once_pipeline *pipeline);

/* Registers the function for handlers with `callback: NAME`. Every such name needs one before the pipeline runs. It is
 * called from threads of the pipeline, at most `workers` at a time, with a message that is claimed for it; what it
 * returns is settled as by once_handle. The pipeline extends the lease while it runs; when that fails, once_call_extend
 * returns E_FENCED: stop then. Errors: E_USAGE (no handler has that name, or it is registered already), E_NOMEM. */
ONCE_API int once_pipeline_callback(once_pipeline *pipeline, const char *name, once_callback *callback, void *user,
                                    once_error *err);

/* Sets the salt of idempotency keys (docs/idempotency-keys.md), for a program that has it from elsewhere than
 * `idempotency_salt:` of the file. Call it after every load, before anything else. Copied. Errors: E_USAGE (fewer than
 * 16 bytes, or only white space; or the file has one), E_NOMEM. */
ONCE_API int once_pipeline_idempotency_salt(once_pipeline *pipeline, once_bytes salt, once_error *err);

/* True when the file refers to secrets (env:NAME, file:PATH, a password in a URL): they are in memory while it runs. A
 * program may then want to leave no core dump (prctl PR_SET_DUMPABLE), as the command does. */
ONCE_API bool once_pipeline_has_secrets(const once_pipeline *pipeline);

/* Runs the pipeline until a finite source is at its end and everything is settled, or until once_pipeline_stop. Returns
 * when the run has ended. `options` may be NULL. `summary` is filled in any case. Class USAGE: no message was consumed.
 *
 * After a stop the function returns ONCE_OK even if a server is unreachable or refuses requests, unless something was
 * lost (summary.lost, or a damaged store). If the run failed or a server was unreachable, store_dead and store_unknown
 * count this run alone. */
ONCE_API int once_pipeline_run(once_pipeline *pipeline, const once_run_options *options, once_summary *summary,
                               once_error *err);

/* --- a run in the background ---
 *
 *     rc = once_pipeline_start(pipeline, NULL, &err);
 *     once_snapshot now = {.size = sizeof now};
 *     once_pipeline_snapshot(pipeline, &now, &err);          from any thread, at any time
 *     once_pipeline_stop(pipeline);                          from any thread, or from a signal handler
 *     rc = once_pipeline_join(pipeline, &summary, &err);     exactly once
 *
 * examples/library/run_beside.c is a whole program. once_pipeline_run is start and join. A pipeline has one run at a
 * time; a process may have any number of pipelines. After a join the pipeline may be started again, unless it was
 * stopped. */

/* Opens store, effects and source in the calling thread, waiting for a server as once_pipeline_run does. Then threads
 * of the pipeline do the work, and start returns. `options` may be NULL; its `progress` and `waiting` must be NULL
 * (take snapshots instead). Callbacks must be registered before.
 *
 * E_USAGE: the pipeline runs already, its last run was not joined, or another thread is still joining it; or this is a
 * callback of once/operate.h, or the child of a fork. Any other failure means that the run could not begin: no message
 * was consumed, and there is nothing to join. When it is stopped meanwhile, start still returns ONCE_OK, and join
 * reports the stop. */
ONCE_API int once_pipeline_start(once_pipeline *pipeline, const once_run_options *options, once_error *err);

/* Asks the run to stop, and returns at once. The run finishes its transaction, waits up to `drain` for the effects
 * outside of the store, and puts the other messages back. Async-signal-safe. A stop is final: a run that is started
 * later ends at once. It also ends once_pipeline_replay and once_pipeline_sweep between two steps. A second call
 * changes nothing. NULL is accepted. */
ONCE_API void once_pipeline_stop(once_pipeline *pipeline);

/* Where a run is. */
typedef enum once_run_state {
    ONCE_RUN_NONE,     /* never started */
    ONCE_RUN_OPENING,  /* once_pipeline_start opens its parts, or waits for a server */
    ONCE_RUN_WORKING,  /* its threads work */
    ONCE_RUN_DRAINING, /* it has seen the stop, and finishes what it began */
    ONCE_RUN_ENDED     /* also after a join, until it is started again */
} once_run_state;

/* A run at one moment, or how the last one ended. */
typedef struct once_snapshot {
    size_t size; /* sizeof(once_snapshot); set by the caller */
    once_run_state state;
    int status;     /* ENDED: what once_pipeline_join returns; otherwise ONCE_OK */
    double seconds; /* since its threads began; ENDED: until it ended */
    /* Still to read: bytes of a file, messages of a broker; the sum over streams that report it; -1: none does. */
    int64_t left;
    uint64_t open; /* messages in memory that are in none of the counts yet: queued, in a transaction, or in flight */
    /* What the run waits for, as once_waiting gets it; otherwise empty. It is computed only after a
     * snapshot has been taken, so it is empty in the first snapshot of a run. */
    char waiting[320];
    once_counts counts;
    once_timings timings;
    uint64_t streams;        /* streams of the source that this run has (once_pipeline_streams) */
    uint64_t streams_paused; /* of these: nothing is fetched from them now, because enough of their messages are here */
    uint64_t paused;         /* handlers that are paused; ENDED: that were when it ended */
    char paused_text[320];   /* "paused: payment.requested for 12s, next try in 4s (permission denied)"; empty: none */
} once_snapshot;

/* Fills `out`. From any thread, at any time, also from a callback. Counts and timings are of one moment, and the sum
 * above once_counts holds in every snapshot. It costs a copy. E_USAGE: `out->size` is not set, or the pipeline was
 * started before a fork; then `out` is untouched. */
ONCE_API int once_pipeline_snapshot(once_pipeline *pipeline, once_snapshot *out, once_error *err);

/* A stream of the source: a file, a partition, a queue. Its messages come in order. A slow stream does not hold up the
 * others. */
typedef struct once_stream_shown {
    const char *name;  /* as the source names it, "payments/3" */
    const char *state; /* "assigned"; "revoked": another worker will get it; "lost": another worker has it */
    int64_t left;      /* still to read of it, as in once_snapshot; -1: not known */
    uint64_t open;     /* its messages that were received and are not acked */
    int64_t paused_ms; /* for how long nothing was fetched, because enough of its messages are here; 0: it is fetched */
    const char *unit;  /* what `left` counts: "bytes" or "messages" */
    const char *parts; /* what `left` is made of: "80 ready, 40 in flight, 0 delayed"; empty: that is not known */
} once_stream_shown;

/* Gets one stream. False ends the list. */
typedef bool once_stream_visit(void *user, const once_stream_shown *stream);

/* Calls `visit` for each stream that the run has. From any thread, at any time; without a working run there is none.
 * E_USAGE: the pipeline was started before a fork. */
ONCE_API int once_pipeline_streams(once_pipeline *pipeline, once_stream_visit *visit, void *user, once_error *err);

/* Waits for the end of the run, and returns its status and `summary` (may be NULL), as once_pipeline_run does. It does
 * not stop the run. Once for each run, from any thread but those of the pipeline: a callback would wait for itself.
 * E_USAGE: it was not started, was joined already, or another thread joins it; or this is a callback of
 * once/operate.h, or the child of a fork. */
ONCE_API int once_pipeline_join(once_pipeline *pipeline, once_summary *summary, once_error *err);

/* --- checking and explaining --- */

/* Gets one finding. `topic`: "store", "handler payment.received", "retention"... */
typedef void once_finding(void *user, const char *topic, const char *text, bool warning);

/* Tries everything that can be tried without consuming a message: store, schema, statements, source. Each finding goes
 * to `report`. Returns ONCE_OK, also with warnings, or the first failure. */
ONCE_API int once_pipeline_check(once_pipeline *pipeline, once_finding *report, void *user, once_error *err);

/* Reads the whole store, and compares it with its checksums where it has some. E_CORRUPT: something is damaged; each
 * damaged part goes to `report` as a warning. Long work reports now and then under the topic "progress". */
ONCE_API int once_pipeline_verify(once_pipeline *pipeline, once_finding *report, void *user, once_error *err);

/* A dead letter of a key. */
typedef struct once_key_letter {
    uint64_t letter;            /* its id */
    const char *kind;           /* as in once_listed */
    uint64_t count;             /* how often it was delivered, as in once_listed */
    int64_t buried_ms, last_ms; /* the first of these deliveries, and the last */
    once_bytes reason;          /* why it is a dead letter */
    char idempotency_key[33];   /* that its effects got, or would get; empty: it has no handler */
} once_key_letter;

/* A message that comes before another one in its lane, which waits for it. */
typedef struct once_before {
    once_bytes operation, key;
    const char *state;  /* "waiting", "busy", "unknown" or "dead" */
    bool versioned;     /* it has a version */
    int64_t version;    /* versioned: which */
    int64_t changed_ms; /* since when it is in this state */
    /* waiting: it does not run before this time; busy: when its lease ends; unknown: when the next lookup is due;
     * otherwise ONCE_NO_TIME, also when it waits for another message. */
    int64_t due_ms;
    once_bytes worker; /* busy: the worker that has claimed it */
    uint64_t letter;   /* dead: its dead letter */
} once_before;

/* The place of a message in its lane (`order`). */
typedef struct once_lane_place {
    char id[33]; /* the id of the lane, the same for all its messages; empty: there is no lane, or it is not known */
    bool known;  /* `value` is known. Otherwise only the source has the message, or `order` was changed since */
    once_bytes value; /* known: the value of `order` for this message */
    bool versioned;   /* it has a version */
    int64_t version;  /* versioned: which */
    bool gap;         /* it waits for the versions missing_from to missing_to, which have not come */
    int64_t missing_from, missing_to;
    const once_before *before; /* waiting: the first messages that it waits for, in their order */
    size_t n_before;           /* how many of them are in `before` */
    uint64_t all_before;       /* how many there are; 1000: that many or more */
} once_lane_place;

/* What the store has about a key. Times are milliseconds UTC; ONCE_NO_TIME: it does not apply. */
typedef struct once_explanation {
    once_scope scope;
    once_bytes key;
    /* "absent", "claimed" (called "busy" in lists and in once_before), "waiting", "unknown", "dead", "done", "already",
     * "rejected", "stale" */
    const char *state;
    uint32_t attempt, failures;  /* attempts so far; failures that are counted */
    once_bytes place, point;     /* where the first delivery came from */
    int64_t seen_ms, changed_ms; /* first seen; last change of state */
    int64_t due_ms; /* claimed: when its lease ends; waiting: it does not run before; unknown: the next lookup */
    /* When it is forgotten. ONCE_FOREVER: never. ONCE_NO_TIME: when it has finished, or an operator decides. */
    int64_t expires_ms;
    bool has_body;     /* the store has its message, to hand it out again or to show it to an operator */
    once_bytes reason; /* why it is in this state; absent: which dead letter has the key, if there is one */
    once_bytes result; /* what duplicates get */
    once_bytes who;    /* the worker that saw it first, "user@host:pid"; empty: not known */
    once_bytes worker; /* claimed: the worker that has the claim; otherwise, if not empty: the one whose lease ended
                         * before it reported */
    const once_attempt *attempts; /* attempts that ended, oldest first: about the last ten */
    size_t n_attempts;
    char idempotency_key[33];       /* that its effects get; empty: absent */
    const once_key_letter *letters; /* dead letters of this key and operation (absent: of any operation), oldest first:
                                     * the last 20 */
    size_t n_letters;
    uint64_t all_letters; /* how many there are */
    once_lane_place lane;
    bool discarded;          /* rejected because an operator discarded its letter, not by a business rule */
    int64_t discarded_ms;    /* when; ONCE_NO_TIME: not known */
    once_bytes discarded_by; /* "user@host:pid"; may be empty */
    bool maybe_done;         /* not finished, or dead: an attempt may have had its effect */
    /* Waiting, or unknown with a lookup: the first worker alive that has paused a handler of its operation (once
     * status). */
    once_bytes paused_by; /* "user@host:pid"; empty: none has */
    once_bytes paused_handler, paused_cause, paused_reason;
    int64_t paused_ms; /* since then, by the wall clock of that worker */
} once_explanation;

/* Gets what the store has about a key; valid until the callback returns. */
typedef void once_explain_visit(void *user, const once_explanation *explanation);

/* Explains a key: calls `visit` once for each operation of the pipeline that has it, or once with the state "absent". A
 * pipeline with tenants needs `tenant` (E_USAGE). Other errors: those of once/operate.h. */
ONCE_API int once_pipeline_explain(once_pipeline *pipeline, once_bytes tenant, once_bytes key,
                                   once_explain_visit *visit, void *user, once_error *err);

/* Sets `*out` to the SQL that a store of this URL needs; static. Errors: E_USAGE (it needs none),
 * E_UNSUPPORTED (no such store in this build), E_CONFIG (its module is missing). */
ONCE_API int once_store_schema(const char *url, const char **out, once_error *err);

/* Returns the reference of the pipeline file, as Markdown (docs/configuration.md) or as plain text for a terminal. The
 * caller owns the text and frees it with free(). NULL: out of memory. */
ONCE_API char *once_config_reference_text(bool markdown);

#ifdef __cplusplus
}
#endif
#endif
