/* A pipeline: a YAML file that says where messages come from, what makes two of them the same, and what each one does.
 *
 *     once_pipeline *pipeline;
 *     once_error err;
 *     int rc = once_pipeline_load("payments.yaml", NULL, NULL, &pipeline, &err);
 *     if (rc == ONCE_OK) rc = once_pipeline_run(pipeline, NULL, &summary, &err);
 *     once_pipeline_free(pipeline);
 *
 * Promise, for SQL effects in the database of the store: effect and outcome commit in one transaction, so each key has
 * one effect, whatever crashes, for as long as the entry is remembered and the database keeps what it acknowledged. For
 * effects outside (commands, callbacks): never lost, every try with the same idempotency key; a try whose end is not
 * known is held, or with `unknown: retry` repeated and counted (`repeats`).
 *
 * Thread rule: once_pipeline_load, what is registered before a run (callbacks, a salt) and once_pipeline_free belong to
 * one thread. Everything else may be called from any thread at any time: looking and operating (once/operate.h) waits
 * for its turn, which it shares with the transactions of the run; once_pipeline_stop is safe in a signal handler, too.
 * A callback of a function that operates or explains has the turn, without which a run can neither begin nor end: it
 * may not start, run, join, operate or explain with the same pipeline (ONCE_E_USAGE). A callback of a handler may
 * look and operate, and must not join.
 * A run has threads of its own, which are gone when it was joined. No pipeline survives fork: when it was started
 * before, all that uses its store is ONCE_E_USAGE in the child. */
#ifndef ONCE_PIPELINE_H
#define ONCE_PIPELINE_H

#include "once/handle.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct once_pipeline once_pipeline;

/* Each message counts once, by where it stands at the end:
 * received + resumed = done + already + rejected + stale + duplicates + waiting + unknown + dead
 * Of the deliveries of a key that is unknown the first one of a run counts as that, and the others as duplicates: so
 * `unknown` is a number of keys, as in once_pipeline_state, but of those only that this run met, and as they were then.
 * summary.store_unknown is that of once_pipeline_state. */
#define ONCE_COUNT_MAP(X)                                                                                              \
    X(received, "came from the source")                                                                                \
    X(resumed, "taken from the store, received by an earlier run or another process")                                  \
    X(done, "the effect happened")                                                                                     \
    X(already, "the business itself said that it had happened")                                                        \
    X(rejected, "the business said no")                                                                                \
    X(stale, "superseded, or an update that met nothing")                                                              \
    X(duplicates, "suppressed: settled before, or another worker is processing it")                                    \
    X(waiting, "given to the store and not finished by this run")                                                      \
    X(unknown, "keys that this run met, and whose effect may have happened")                                           \
    X(dead, "dead letters")                                                                                            \
    X(conflicts, "of the dead: same key or version, other message")                                                    \
    X(too_old, "of the dead: older than what is remembered")                                                           \
    X(attempts, "effects started")                                                                                     \
    X(retries, "failures that are tried again")                                                                        \
    X(repeats, "effects started again after one that may have happened")                                               \
    X(fenced, "claims that ran out before their outcome was recorded; somebody else decides about them")               \
    X(given_up, "versions that did not come within gap.wait, and are not waited for any more")                         \
    X(acked, "acked to the source")

typedef struct once_counts {
#define ONCE_COUNT_FIELD(name, text) uint64_t name;
    ONCE_COUNT_MAP(ONCE_COUNT_FIELD)
#undef ONCE_COUNT_FIELD
} once_counts;

/* How long messages took from one stage to the next. */
#define ONCE_TIMING_MAP(X)                                                                                             \
    X(claim, "from its source or the store, until the store answered its claim")                                       \
    X(start, "from there, until its effect was started")                                                               \
    X(settle, "from there, until its outcome was durable")                                                             \
    X(ack, "from there, until the source was told")

/* Milliseconds by a clock that only moves forward. Messages that came to a stage together share the moment. */
enum { ONCE_TIMING_BUCKETS = 28 };
typedef struct once_timing {
    uint64_t count, sum_ms, max_ms;
    uint64_t bucket[ONCE_TIMING_BUCKETS]; /* [0]: less than 1 ms; [i]: from 2^(i-1) to less than 2^i; the last: more */
} once_timing;

typedef struct once_timings {
#define ONCE_TIMING_FIELD(name, text) once_timing name;
    ONCE_TIMING_MAP(ONCE_TIMING_FIELD)
#undef ONCE_TIMING_FIELD
} once_timings;

/* What a run leaves behind. */
typedef struct once_summary {
    once_counts counts;
    double seconds;
    bool stopped;           /* by once_pipeline_stop, before the source was at its end */
    uint64_t store_dead;    /* dead letters of this consumer in the store, of earlier runs too */
    uint64_t store_unknown; /* unknown keys, likewise: those that once_pipeline_state.unknown counts */
    bool clock_doubted; /* after a reboot the wall clock was too far ahead to be believed (once_pipeline_confirm_clock)
                         */
    uint64_t lost; /* read from a source that cannot deliver again (a pipe), and not known to be settled; then the run
                      has failed */
} once_summary;

/* Called about five times a second from the thread that runs the pipeline. `left`: what is still to read, as in
 * once_snapshot; -1 when that is not known. */
typedef void once_progress(void *user, const once_counts *counts, int64_t left, double seconds);

/* Called before `progress` each time. `text`: for whom the run waits and how long, in one short line ("waits 23s for
 * ann@host:4711, which is alive"), when nothing is left to do but what other workers have claimed; or that nothing is
 * fetched, because too much waits in the store (waiting_max); otherwise empty. */
typedef void once_waiting(void *user, const char *text);

typedef struct once_run_options {
    size_t size;               /* sizeof(once_run_options) */
    bool confirm_scope_change; /* go on although consumer, operation, key, fingerprint or salt changed on this store */
    once_progress *progress;   /* may be NULL */
    void *user;
    bool new_store; /* begin with an empty or another store although this pipeline has worked with one before; otherwise
                       ONCE_E_OTHER_STORE */
    once_waiting *waiting; /* may be NULL; only with `progress` */
} once_run_options;

/* One mistake in the file: "file:line: what; what to do". */
typedef void once_mistake(void *user, const char *text);

/* Reads and checks the file; connects to nothing. Every mistake goes to `report` (may be NULL), the first one also to
 * `err`. */
ONCE_API int once_pipeline_load(const char *file, once_mistake *report, void *user, once_pipeline **out,
                                once_error *err);
/* NULL is fine. A run that was not joined is stopped and joined. No other thread may use the pipeline any more. */
ONCE_API void once_pipeline_free(once_pipeline *pipeline);

/* The function for handlers that say `callback: NAME`; before once_pipeline_run, and for each such name. It is called
 * from threads of the pipeline, `workers` at a time at most, with a message that is claimed for it; what it returns is
 * settled as once_handle does it. While it runs, the lease is kept; once_call_extend says E_FENCED when that was not
 * possible: stop then. E_USAGE: no handler says that name, or it was registered before. */
ONCE_API int once_pipeline_callback(once_pipeline *pipeline, const char *name, once_callback *callback, void *user,
                                    once_error *err);

/* The salt of idempotency keys (docs/idempotency-keys.md), for a program that has it from elsewhere than
 * `idempotency_salt:` of the file; before everything else that is done with the pipeline, and each time. Copied.
 * E_USAGE: fewer than 16 bytes, or the file says one. */
ONCE_API int once_pipeline_idempotency_salt(once_pipeline *pipeline, once_bytes salt, once_error *err);

/* Whether the file refers to secrets (env:NAME, file:PATH), which are in memory while it runs: a program may then want
 * to leave no core (prctl PR_SET_DUMPABLE), as the command does. */
ONCE_API bool once_pipeline_has_secrets(const once_pipeline *pipeline);

/* Runs until a finite source is drained and everything is settled, or once_pipeline_stop. `options` may be NULL.
 * `summary` is filled in any case. ONCE_CLASS_USAGE: nothing was consumed. After a stop it is ONCE_OK, too, when a
 * server is away or refuses what it is asked, unless something was lost (summary.lost, or a store that is damaged);
 * where it has failed or a server was away, store_dead and store_unknown are of this run alone. */
ONCE_API int once_pipeline_run(once_pipeline *pipeline, const once_run_options *options, once_summary *summary,
                               once_error *err);

/* --- a run that goes on while the program does something else ---
 *
 *     int rc = once_pipeline_start(pipeline, NULL, &err);
 *     once_snapshot now = {.size = sizeof now};
 *     once_pipeline_snapshot(pipeline, &now, &err);          from any thread, whenever it wants to know
 *     once_pipeline_stop(pipeline);                          from any thread, and from a signal handler
 *     rc = once_pipeline_join(pipeline, &summary, &err);     exactly once
 *
 * once_pipeline_run is once_pipeline_start and once_pipeline_join. A pipeline has one run at a time; a process may have
 * any number of pipelines. After a run was joined, the pipeline may be started again, unless it was told to stop. */

/* Opens store, effects and source in the calling thread, which is waited for as once_pipeline_run does it; from then on
 * threads of the pipeline do the work, and start returns. `options` may be NULL; its `progress` and `waiting` must be
 * (ask for snapshots). Of callbacks each must be registered before.
 * ONCE_E_USAGE: it runs already, or its last run was not joined, or is being joined by another thread, whose join has
 * not returned; or this is a callback of once/operate.h, or the child of a fork. Any other status is that of a run
 * which could not begin: nothing was consumed, and there is nothing to join. ONCE_OK, too, when it was told to stop
 * meanwhile; then join says so. */
ONCE_API int once_pipeline_start(once_pipeline *pipeline, const once_run_options *options, once_error *err);

/* Drains: what is in a transaction is finished, effects outside have `drain` to end, the rest is put back. Returns at
 * once; asked for again it changes nothing. Async-signal-safe. For good: a run that is started later ends at once.
 * It also ends once_pipeline_replay and once_pipeline_sweep between two steps. NULL is fine. */
ONCE_API void once_pipeline_stop(once_pipeline *pipeline);

typedef enum once_run_state {
    ONCE_RUN_NONE,    /* never started */
    ONCE_RUN_OPENING, /* once_pipeline_start opens its parts, or waits for a server */
    ONCE_RUN_WORKING,
    ONCE_RUN_DRAINING, /* it was told to stop, and knows it */
    ONCE_RUN_ENDED     /* also after it was joined, until it is started again */
} once_run_state;

/* How a run stands, or how the last one ended. */
typedef struct once_snapshot {
    size_t size; /* sizeof(once_snapshot); set by the caller */
    once_run_state state;
    int status;        /* ENDED: what once_pipeline_join says; otherwise ONCE_OK */
    double seconds;    /* since its threads began; ENDED: until it ended */
    int64_t left;      /* still to read: bytes of a file, messages of a broker, of all streams together of which it is
                        * known; -1: of none */
    uint64_t open;     /* messages that were received and are not over: they wait here, are worked on, or away */
    char waiting[320]; /* for whom or what it waits, as once_waiting has it; otherwise empty. Known from the second
                        * snapshot on
                        */
    once_counts counts;
    once_timings timings;
    uint64_t streams;        /* that the source has given to this run (once_pipeline_streams) */
    uint64_t streams_paused; /* of them, those of which enough is here: nothing more is fetched for now */
} once_snapshot;

/* At any time, from any thread, also from a callback. Counts and timings are of one moment; the sum of once_counts
 * holds in each snapshot. What it costs is copying them. ONCE_E_USAGE: `out->size` is not set, or the pipeline was
 * started before a fork; then `out` is as it was. */
ONCE_API int once_pipeline_snapshot(once_pipeline *pipeline, once_snapshot *out, once_error *err);

/* A stream of the source: a file, a partition, a queue. Its messages come in order, and it holds up no other one. */
typedef struct once_stream_shown {
    const char *name;  /* as the source calls it, "payments-3" */
    const char *state; /* "assigned"; "revoked": another worker gets it; "lost": another worker has it already */
    int64_t left;      /* still to read of it, as in once_snapshot; -1: not known */
    uint64_t open;     /* messages of it that were received and are not acked */
    int64_t paused_ms; /* for how long nothing more is fetched, because enough of it is here; 0: it is fetched */
} once_stream_shown;

/* Those that a run has, at any time, from any thread; of one that does not work there are none. False ends the list.
 * ONCE_E_USAGE: the pipeline was started before a fork. */
typedef bool once_stream_visit(void *user, const once_stream_shown *stream);
ONCE_API int once_pipeline_streams(once_pipeline *pipeline, once_stream_visit *visit, void *user, once_error *err);

/* Waits for the end of the run, and gives its status and `summary` (may be NULL), as once_pipeline_run does. It does
 * not stop it. From any thread but those of the pipeline (a callback would wait for itself), once for each run.
 * ONCE_E_USAGE: it was not started, or was joined, or is being joined by another thread; or this is a callback of
 * once/operate.h, or the child of a fork. */
ONCE_API int once_pipeline_join(once_pipeline *pipeline, once_summary *summary, once_error *err);

/* Tries everything that can be tried without consuming: store, schema, statements, source. Tells what it found, line by
 * line: topic ("store", "handler payment.received", "retention"...), text, and whether it is a warning. */
typedef void once_finding(void *user, const char *topic, const char *text, bool warning);
ONCE_API int once_pipeline_check(once_pipeline *pipeline, once_finding *report, void *user, once_error *err);

/* Reads the whole store, and compares it with its checksums where it has some. ONCE_E_CORRUPT when something is
 * damaged; each part is told as a warning. What takes long is told now and then under the topic "progress". */
ONCE_API int once_pipeline_verify(once_pipeline *pipeline, once_finding *report, void *user, once_error *err);

/* A dead letter of a key. */
typedef struct once_key_letter {
    uint64_t letter;            /* its id */
    const char *kind;           /* as in once_listed */
    uint64_t count;             /* deliveries, as in once_listed */
    int64_t buried_ms, last_ms; /* the first of these, and the last */
    once_bytes reason;
    char idempotency_key[33]; /* that its effects were given, or would be; empty: it has no handler */
} once_key_letter;

/* A message that another one of its lane waits for. */
typedef struct once_before {
    once_bytes operation, key;
    const char *state; /* "waiting", "busy", "unknown" or "dead" */
    bool versioned;
    int64_t version;
    int64_t changed_ms; /* since when it is that */
    int64_t
        due_ms; /* waiting: not before; busy: the claim ends; unknown: when the other side is asked about it; otherwise
                       ONCE_NO_TIME, also when it waits for another
                       one */
    once_bytes worker; /* busy: whose claim it is */
    uint64_t letter;   /* dead: its letter */
} once_before;

/* Where a message stands in its lane (`order`). */
typedef struct once_lane_place {
    char id[33]; /* what the store knows the lane by, the same for all messages in it; empty: there is no lane, or
                    nothing is known of it */
    bool known;
    once_bytes value; /* known: of `order`, as the message gives it. Otherwise only its source has the message, or
                         `order` has changed since */
    bool versioned;
    int64_t version;
    bool gap; /* it waits for these versions, which have not come */
    int64_t missing_from, missing_to;
    const once_before *before; /* waiting: the first of those that it waits for, in their order */
    size_t n_before;
    uint64_t all_before; /* so many there are; 1000 are so many or more */
} once_lane_place;

/* What the store knows of a key, for `explain`. Times in milliseconds UTC, ONCE_NO_TIME when they do not apply. */
typedef struct once_explanation {
    once_scope scope;
    once_bytes key;
    const char *state; /* "absent", "claimed", "waiting", "unknown", "dead", "done", "already", "rejected", "stale" */
    uint32_t attempt, failures;
    once_bytes place, point; /* where it was first seen */
    int64_t seen_ms, changed_ms;
    int64_t due_ms;     /* claimed: end of the lease; waiting: not before; unknown: the other side is asked then */
    int64_t expires_ms; /* forgotten then; ONCE_FOREVER: never; ONCE_NO_TIME: not by time */
    bool has_body;      /* the store has its message: it can hand it out again, or keeps it for a person */
    once_bytes reason, result; /* reason of an absent one, if not empty: which dead letter has the key */
    once_bytes who;            /* first saw it: "user@host:pid"; empty when that is not known */
    once_bytes
        worker; /* claimed: whose claim it is; otherwise, if not empty: whose lease ran out, and who has not reported */
    const once_attempt *attempts; /* that have ended and are kept, oldest first: the last ten or so */
    size_t n_attempts;
    char idempotency_key[33];       /* that its effects are given; empty when it is absent */
    const once_key_letter *letters; /* with this key and operation (absent: any operation), oldest first: the last 20 */
    size_t n_letters;
    uint64_t all_letters; /* so many there are */
    once_lane_place lane;
    bool discarded;          /* rejected by an operator, who discarded its letter; the business has not said no */
    int64_t discarded_ms;    /* when; ONCE_NO_TIME: not known */
    once_bytes discarded_by; /* "user@host:pid"; may be empty */
    bool maybe_done;         /* not finished, or dead: an attempt may have had its effect */
} once_explanation;

/* `explanation` and its bytes are the library's until the callback returns. Called once for each operation of the
 * pipeline that knows the key, or once with "absent". */
typedef void once_explain_visit(void *user, const once_explanation *explanation);
ONCE_API int once_pipeline_explain(once_pipeline *pipeline, once_bytes tenant, once_bytes key,
                                   once_explain_visit *visit, void *user, once_error *err);

/* The SQL that a store of this URL needs; static. */
ONCE_API int once_store_schema(const char *url, const char **out, once_error *err);

/* The reference of the pipeline file, as Markdown (docs/configuration.md) or as plain text for a terminal. The text is
 * the caller's; free() it. NULL when memory is out. */
ONCE_API char *once_config_reference_text(bool markdown);

#ifdef __cplusplus
}
#endif
#endif
