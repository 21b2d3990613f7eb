/* What the files of the runtime share: a loaded pipeline, and its parts when they are open. */
#ifndef ONCE_RUNTIME_RUNTIME_H
#define ONCE_RUNTIME_RUNTIME_H

#include <stdatomic.h>

#include "base/arena.h"
#include "core/outward.h"
#include "core/spec.h"
#include "effect/effect.h"
#include "effect/runner.h"
#include "once/pipeline.h"
#include "runtime/fair_lock.h"
#include "source/source.h"
#include "store/store.h"
#include "store/worker.h"

typedef struct once_run once_run;

struct once_pipeline {
    once_arena arena; /* the spec lives in it */
    once_spec *spec;
    char *store_url;
    once_bytes salt; /* of idempotency keys, once it was read; in the arena */
    const once_env *env;
    once_runner_callback *callbacks; /* registered by the program; names are malloc'd */
    size_t n_callbacks;
    pthread_mutex_t salt_lock;    /* of what was read of it */
    atomic_bool stop;             /* for good */
    once_run *run;                /* runtime/run.h */
    once_fair_lock turn;          /* of transactions of the run and of operators, which use its store */
    once_backend *run_store;      /* whose turn it is looks at it: the store of the run; NULL: there is none */
    uint64_t n_opened;            /* how many runs had one, this one included; likewise */
    char store_id[ONCE_STORE_ID]; /* the store of this run; empty: none yet */
    bool working;    /* there may be work in flight: told to stop, the store's server has `drain` to answer */
    int64_t told_ns; /* when whoever waits for the store has first seen the stop; 0: not yet */
};

/* The parts of a pipeline that is about to run or to be checked. */
typedef struct once_parts {
    once_backend *store;
    bool made;          /* by `once check`: there was none */
    once_keying keying; /* of its idempotency keys */
    once_effects *effects;
    once_runner *runner; /* NULL: no effect is outside of the store */
    once_source *source;
} once_parts;

/* Opens store, effects, runner and source in this order; on failure nothing is left open. A store that is missing is
 * made, and the `init` script run. `run`: for this run, which tries again by itself what a server does not answer;
 * NULL: to be checked. */
int once__parts_open(once_pipeline *pipeline, const once_run_options *run, once_parts *out, once_error *err);
void once__parts_close(once_parts *parts);
once_db *once__store_db(once_backend *store); /* NULL: it has no database that SQL effects could run in */
/* `why`, behind the line of the file that it is about. */
int once__at_line(const once_pipeline *pipeline, int line, int rc, const once_error *why, once_error *err);

/* Repeats an attempt that failed because the store's server is away, with growing pauses: for ever, or when the source
 * has an end, for `patience`. A stop ends it. What will not pass by itself is not repeated. */
typedef int once_try(void *user, once_error *err);
int once__retry_unavailable(once_pipeline *pipeline, once_try *attempt, void *user, once_error *err);
/* The event of a log's line about a store that failed with this status, at whatever time: alerts go by it. */
const char *once__store_event(int status);
bool once__wait_is_cancelled(void *pipeline); /* for once_store_options.cancel */

/* Failures in a row: what was said of them. All zero: nothing yet. */
enum { ONCE_THROTTLE_REASONS = 4 };
typedef struct once_log_throttle {
    unsigned times;
    int64_t said_ms;
    once_hash last, reasons[ONCE_THROTTLE_REASONS]; /* that were said */
    unsigned next;
} once_log_throttle;
/* Whether to say this one: a reason that was not said before, at once; otherwise the first ones, and then one a minute.
 */
bool once__throttle_allows(once_log_throttle *throttle, const char *reason, int64_t now_ms);

/* ONCE_E_USAGE: the run was started before a fork. Its threads are somewhere else, and what they hold can neither be
 * waited for here nor used. */
int once__run_refuse_forked(const once_run *run, once_error *err);

/* Reads the salt that the file refers to, where it does and that was not done before. Before anything that shows or
 * gives away a key. */
int once__salt_read(once_pipeline *pipeline, once_error *err);
static inline once_keying once__keying_of(const once_pipeline *pipeline, const once_backend *store)
{
    return (once_keying){.secret = store->secret, .salt = pipeline->salt};
}

/* What the store remembers of the consumer between runs: how keys are made, and whether the last run ended cleanly. */
typedef enum once_keys_check {
    ONCE_KEYS_LOOK,   /* a change is refused, nothing is written */
    ONCE_KEYS_KEEP,   /* a change is refused, what is new is remembered */
    ONCE_KEYS_CONFIRM /* a change is remembered */
} once_keys_check;

int once__consumer_check_keys(once_pipeline *pipeline, once_backend *store, once_keys_check how, once_error *err);
/* Of that only the salt, for those who show keys: with another one they would show keys that nobody was given. */
int once__consumer_check_salt(once_pipeline *pipeline, once_backend *store, once_error *err);
/* *unclean is set when another run died and nobody has noticed; it is never cleared, so that this can be repeated. */
int once__consumer_run_begins(once_pipeline *pipeline, once_backend *store, once_worker *worker, bool *unclean,
                              once_error *err);
/* facts.c: what the store keeps for the source. Facts have short names; consumers, paths and types may be long and
 * binary: a name is made of the kind and a hash, which is returned. */
typedef struct once_store_facts {
    once_facts base;
    once_backend *store;
    once_bytes consumer;
} once_store_facts;
void once__store_facts_init(once_store_facts *facts, once_backend *store, once_bytes consumer);
once_hash once__fact_name(const once_backend *store, const char *kind, once_bytes consumer, once_bytes of,
                          char out[64]);
int once__want_tenant(const once_pipeline *pipeline, once_bytes tenant,
                      once_error *err); /* ONCE_E_USAGE: its keys have tenants, and none was said */
bool once__file_has_password(const once_pipeline *pipeline); /* written out, not as a reference */

/* check.c */
bool once__remembers(const once_spec *spec, const once_handler_spec *handler); /* what has ended */
int64_t once__retry_horizon_ms(const once_retry *retry); /* how long all retries of a message may take */
/* check_source.c: for `once check`, what there is to say about the source, and what it says itself. */
void once__find_source(const once_pipeline *pipeline, const once_parts *parts, once_finding *report, void *user);
/* exposure.c: for `once check`, what others may change, read or put among the arguments of commands. */
void once__find_exposure(const once_pipeline *pipeline, once_finding *report, void *user);
/* Compares the time of the store, the wall clock and the newest messages (clock.c): for `check`, and in one sentence
 * when the time of the store is in doubt. */
int once__clock_check(once_pipeline *pipeline, once_backend *store, once_finding *report, void *user, once_error *err);
void once__clock_doubt(int64_t store_ms, int64_t wall_ms, char *out, size_t size);

/* The entry of a key as an operator names it: whole, or, when it is a long one, as it is shown. */
int once__entry_by_key(once_backend *store, const once_scope *scope, once_bytes key, once_entry *out, once_arena *arena,
                       once_error *err);
const char *once__letter_kind(const once_letter *letter); /* as once_listed says it */
void once__letter_outward_key(const once_keying *keying, const once_letter *letter,
                              char *out); /* nothing when it has no key */

#endif
