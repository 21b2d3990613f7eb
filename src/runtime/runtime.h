/* What the files of the runtime share: a loaded pipeline, its open parts, and small services around them.
 *
 * Ownership. A pipeline owns its spec (in its arena), its callbacks' names and its run (runtime/run.h). A run owns the
 * parts while it lasts. An operator verb (list, replay, ...) uses the run's store, or opens one of its own when there
 * is no run (runtime/operate.h).
 *
 * Threads. `spec` and `store_url` never change after loading. `stop` is atomic. `salt` is guarded by salt_lock.
 * `run_store` and `store_generation` are guarded by store_lock. `store_id`, `in_flight` and `stop_seen_ns` belong to
 * the thread that starts the run, then to the run's store thread; nobody else reads them.
 *
 * Invariants
 *   R1  run_store is not NULL only between the start and the end of a run, and is then that run's open store.
 *   R2  A transaction on run_store begins and ends under store_lock, whoever begins it.
 *   R3  store_generation grows with each run that opened a store: an equal pointer with another generation is another
 *       store. */
#ifndef ONCE_RUNTIME_RUNTIME_H
#define ONCE_RUNTIME_RUNTIME_H

#include <stdatomic.h>

#include "base/arena.h"
#include "core/outward.h"
#include "core/spec.h"
#include "effect/effect.h"
#include "effect/runner.h"
#include "once/operate.h"
#include "once/pipeline.h"
#include "runtime/fair_lock.h"
#include "source/source.h"
#include "store/store.h"
#include "store/worker.h"

typedef struct once_run once_run;

struct once_pipeline {
    once_arena arena; /* owns the spec */
    once_spec *spec;
    char *store_url;
    once_bytes salt; /* of idempotency keys, after once__salt_read; in the arena */
    const once_env *env;
    once_runner_callback *callbacks; /* registered by the program; their names are malloc'd */
    size_t n_callbacks;
    pthread_mutex_t salt_lock;
    atomic_bool stop; /* set once, never cleared */
    once_run *run;    /* made with the pipeline */
    once_fair_lock store_lock;
    once_backend *run_store;
    uint64_t store_generation;
    char store_id[ONCE_STORE_ID]; /* of the run's store; empty: no run has opened one yet */
    bool in_flight;               /* messages may be in flight: after a stop a server has `drain` to answer */
    int64_t stop_seen_ns;         /* when a wait for the store first saw the stop; 0: not yet */
};

/* --- parts.c: what a run or `once check` opens --- */

typedef struct once_parts {
    once_backend *store;
    bool created;       /* `once check` found no store and created this one */
    once_keying keying; /* makes idempotency keys */
    once_effects *effects;
    once_runner *runner; /* NULL: no effect is outside of the store */
    once_source *source;
} once_parts;

/* Opens store, effects, runner and source in this order; on failure nothing is left open. Creates a missing store,
 * unless this pipeline is known to have used one (runtime/known_store.h), and runs the `init` script. `run`: the
 * options of the run that opens them, which waits for servers that do not answer; NULL: `once check`, which does not
 * wait. */
int once__parts_open(once_pipeline *pipeline, const once_run_options *run, once_parts *out, once_error *err);
void once__parts_close(once_parts *parts);
once_db *once__store_db(once_backend *store); /* NULL: the store has no database for SQL effects */
/* Copies `why` to `err`, behind "FILE:LINE: ". Returns rc. */
int once__at_line(const once_pipeline *pipeline, int line, int rc, const once_error *why, once_error *err);

/* --- reconnect.c: servers that are away --- */

/* Repeats an attempt with growing pauses while it fails because the store's server is away or full: without limit, or
 * for `patience` when the source is finite. A stop ends it. Other failures are returned at once. */
typedef int once_try(void *user, once_error *err);
int once__retry_unavailable(once_pipeline *pipeline, once_try *attempt, void *user, once_error *err);
const char *once__store_event(int status);    /* the event of log lines about a store that failed with this status */
bool once__wait_is_cancelled(void *pipeline); /* for once_store_options.cancel: a stop, and `drain` has passed */

/* Throttles the log lines of failures in a row. All zero: nothing was logged. */
enum { ONCE_THROTTLE_REASONS = 4 };
typedef struct once_log_throttle {
    unsigned times;                           /* failures so far */
    int64_t logged_ms;                        /* when one was logged last */
    once_hash last;                           /* its reason ... */
    once_hash reasons[ONCE_THROTTLE_REASONS]; /* ... and the latest others, in a ring */
    unsigned next;
} once_log_throttle;
/* Counts a failure. True: log it, because its reason is new, it is one of the first, or a minute has passed. */
bool once__throttle_allows(once_log_throttle *throttle, const char *reason, int64_t now_ms);

/* ONCE_E_USAGE: the run was started before a fork. Its threads did not survive the fork, so that nothing it holds can
 * be waited for or used here. */
int once__run_refuse_forked(const once_run *run, once_error *err);

/* --- idempotency keys --- */

/* Reads the salt that the pipeline file refers to, once. Call it before anything that shows or sends a key. */
int once__salt_read(once_pipeline *pipeline, once_error *err);
static inline once_keying once__keying_of(const once_pipeline *pipeline, const once_backend *store)
{
    return (once_keying){.secret = store->secret, .salt = pipeline->salt};
}

/* --- consumer_facts.c: what the store remembers of a consumer between runs --- */

typedef enum once_keys_check {
    ONCE_KEYS_LOOK,   /* refuse a change, write nothing */
    ONCE_KEYS_KEEP,   /* refuse a change, remember what is new */
    ONCE_KEYS_CONFIRM /* remember a change */
} once_keys_check;

/* ONCE_E_SCOPE: keys are made in another way than before. */
int once__consumer_check_keys(once_pipeline *pipeline, once_backend *store, once_keys_check how, once_error *err);
/* Checks only the salt, for verbs that show keys: with another salt they would show keys that no receiver ever got. */
int once__consumer_check_salt(once_pipeline *pipeline, once_backend *store, once_error *err);
/* Records that a run begins. Sets *unclean when another run died and no run has noticed yet; never clears it, so that
 * the call can be repeated. */
int once__consumer_run_begins(once_pipeline *pipeline, once_backend *store, once_worker *worker, bool *unclean,
                              once_error *err);

/* --- facts.c: facts of the store for the source --- */

/* Facts have short names. Consumers, paths and types may be long and binary, so that the name of a fact is its kind and
 * a hash of them: "kind/32 hex digits". */
typedef struct once_store_facts {
    once_facts base;
    once_backend *store;
    once_bytes consumer;
} once_store_facts;
void once__store_facts_init(once_store_facts *facts, once_backend *store, once_bytes consumer);
/* Returns the hash in the name. */
once_hash once__fact_name(const once_backend *store, const char *kind, once_bytes consumer, once_bytes of,
                          char out[64]);

/* --- the findings of `once check` --- */

/* check.c */
bool once__remembers(const once_spec *spec, const once_handler_spec *handler); /* its finished messages */
/* "FILE:LINE". Returns out->text. */
typedef struct once__place {
    char text[300];
} once__place;
const char *once__place_at(const once_spec *spec, int line, once__place *out);
/* Of `remember`, or of the handler where it can be written. */
static inline int once__remember_place(const once_handler_spec *h)
{
    return h->remember_line ? h->remember_line : h->line;
}
/* check_key.c: which duplicates a key catches and which not, in a sentence; and what is probably not meant. */
const char *once__key_catches(const once_spec *spec, const once_template *key);
bool once__key_doubt(const once_spec *spec, const once_handler_spec *handler, char *out, size_t size);
/* check_source.c: what is doubtful about the source, and the limits of its broker compared with the pipeline file.
 * Fails if the broker does not answer, or if something in the file is too short for it. */
int once__find_source(const once_pipeline *pipeline, const once_parts *parts, once_finding *report, void *user,
                      once_error *err);
/* exposure.c: files that other users can change or read, and message text in the arguments of commands. */
void once__find_exposure(const once_pipeline *pipeline, once_finding *report, void *user);
/* clock.c: compares the store's time with the wall clock and the newest message. */
int once__clock_check(once_pipeline *pipeline, once_backend *store, once_finding *report, void *user, once_error *err);
/* One sentence for a store whose time is in doubt after a reboot. */
void once__clock_doubt(int64_t store_ms, int64_t wall_ms, char *out, size_t size);

/* --- keys and letters, as users name and see them --- */

/* ONCE_E_USAGE: the keys of this pipeline belong to tenants, and `tenant` is empty. */
int once__want_tenant(const once_pipeline *pipeline, once_bytes tenant, once_error *err);
/* A password is in the pipeline file itself, and not a reference (env:NAME, file:PATH). */
bool once__file_has_password(const once_pipeline *pipeline);
/* Finds an entry by the whole key or, for a long key, by the form in which it is shown. */
int once__entry_by_key(once_backend *store, const once_scope *scope, once_bytes key, once_entry *out, once_arena *arena,
                       once_error *err);
const char *once__letter_kind(const once_letter *letter); /* the word in once_listed.kind */
/* The idempotency key of a letter. Leaves `out` untouched when the letter has no key. */
void once__letter_outward_key(const once_keying *keying, const once_letter *letter, char *out);

#endif
