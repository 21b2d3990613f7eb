/* A pipeline as its user wrote it, checked and compiled. Immutable after loading; lives in one arena; shared by
 * threads. */
#ifndef ONCE_CORE_SPEC_H
#define ONCE_CORE_SPEC_H

#include "base/json.h"
#include "base/value.h"
#include "core/sent.h"
#include "core/template.h"
#include "once/types.h"

#define ONCE_NAME_MAX 200 /* bytes of a consumer, a handler, a type in a pipeline file */

#define ONCE_ANY_ATTEMPTS UINT32_MAX

typedef struct once_retry {
    uint32_t attempts;      /* failures that make a dead letter; ONCE_ANY_ATTEMPTS: their number does not matter */
    int64_t for_ms;         /* the time since the first failure that does; 0: it does not matter */
    int64_t min_ms, max_ms; /* backoff: full jitter below min(max, min * 2^(failures-1)) */
    const once_bytes *on;   /* faults that are worth another try: extended result codes or constraint names */
    size_t n_on;
} once_retry;

typedef enum once_fingerprint_kind {
    ONCE_FINGERPRINT_BODY,
    ONCE_FINGERPRINT_NONE,
    ONCE_FINGERPRINT_FIELDS
} once_fingerprint_kind;

typedef struct once_fingerprint_spec {
    once_fingerprint_kind kind;
    const once_pointer *fields;
    size_t n;
} once_fingerprint_spec;

/* What the rules and the runtime ask of a handler's effect. Which effect it is they do not ask: effect/effect.h has the
 * list. */
enum {
    ONCE_EFFECT_RUNS = 1u << 0,    /* something is done for a message. Without it every message becomes a dead letter */
    ONCE_EFFECT_OUTSIDE = 1u << 1, /* outside of the store, between two transactions; otherwise inside of one */
    /* No message can end our process with it: it happens in another one, of this machine or of the other side. */
    ONCE_EFFECT_ISOLATED = 1u << 2,
    ONCE_EFFECT_OUTLIVES = 1u << 3, /* what it has started may go on when our process is gone */
    ONCE_EFFECT_FAULTS = 1u << 4,   /* it fails with faults of a database, which `retry.on` names */
    ONCE_EFFECT_ASKS = 1u << 5,     /* OUTSIDE: the other side can be asked whether it has happened (`lookup`) */
    ONCE_EFFECT_THEN = 1u << 6, /* OUTSIDE: when it is done, something is written in the transaction that settles it */
};

#define ONCE_LOCKS_MAX 16 /* names that a message may lock */

/* What a message will touch, as its user names it. */
typedef struct once_locks_spec {
    const once_template *const *names;
    size_t n;
} once_locks_spec;

/* When the other side is asked what became of an effect whose end nobody knows. On the store's clock, from when that
 * was written down. */
typedef struct once_lookup {
    int64_t after_ms; /* not before: what was sent may still act */
    int64_t for_ms;   /* in vain, it is asked again for so long; then it is held or tried again, as `unknown` says */
} once_lookup;

typedef struct once_handler_spec {
    once_bytes type; /* what chooses it: a type, "*", or empty for `handler:` */
    once_bytes operation;
    const once_template *key;
    once_fingerprint_spec fingerprint;
    int64_t remember_ms; /* or ONCE_FOREVER */
    int64_t lease_ms, timeout_ms;
    once_retry retry;
    once_locks_spec locks;                /* of effects in the store's own database */
    const struct once_effect_ops *effect; /* who prepares it and carries it out; nothing in core looks into it */
    const void *own;                      /* what the fields of that effect say, in a struct of its own */
    unsigned bits;                        /* ONCE_EFFECT_ */
    once_bytes dead_reason;               /* of an effect that does not run */
    uint32_t slots;                       /* external effects: how many may be in flight at a time; 0 for all others */
    bool hold;                            /* external effects: an unknown is kept for a person; otherwise tried again */
    once_lookup lookup;                   /* with ONCE_EFFECT_ASKS: it is asked about before either */
    bool natural;                         /* idempotent by nature: nothing is remembered after success */
    int line;
} once_handler_spec;

/* What the rules and the runtime ask of a source. Which source it is they do not ask: source/source.h has the list. */
enum {
    ONCE_SOURCE_FINITE = 1u << 0,     /* it ends */
    ONCE_SOURCE_CURSOR = 1u << 1,     /* the store keeps how far it was read, and it goes on from there */
    ONCE_SOURCE_REDELIVERS = 1u << 2, /* what was not acked comes again; known when it is open */
    ONCE_SOURCE_STABLE = 1u << 3,     /* a message has the same coordinates at each delivery */
    /* Each delivery is acked for itself; otherwise an ack is of everything up to it, in its stream. Not with CURSOR. */
    ONCE_SOURCE_SINGLE_ACKS = 1u << 4,
    ONCE_SOURCE_EXPIRES = 1u << 5, /* a delivery that is neither acked nor extended in time goes to somebody else */
    ONCE_SOURCE_ASSIGNS = 1u << 6, /* streams come and go, by news; otherwise there is one, number 0, from the start */
    ONCE_SOURCE_TIMED = 1u << 7,   /* a message comes with the time when it was sent, the same at each delivery */
};

typedef struct once_source_spec {
    const struct once_source_kind *kind; /* which it is; nothing in core looks into it */
    const void *own;                     /* what its fields say, in a struct of its own */
    unsigned bits;                       /* ONCE_SOURCE_ */
    once_bytes name;      /* of the path, the topic, the queue: what the store keeps of it is kept under it */
    once_pointer headers; /* where in a body headers are; text empty: a message has those that come with it */
    bool named;           /* a template has ${source:NAME}: fetch puts what is known of a message into its headers */
    const char *unstable; /* why a message may have other coordinates when it comes again; NULL: it has the same */
    int line;
} once_source_spec;

/* Of messages that wait in the store with their bodies: how many, and the bytes of the bodies. As a bound: 0 is none.
 */
typedef struct once_waiting_size {
    uint64_t messages, bytes;
} once_waiting_size;

typedef struct once_spec {
    once_bytes file; /* where it was read from, for messages */
    once_bytes consumer, store_url;
    int store_line;
    once_bytes store_id; /* which store it must be; empty: not said */
    once_bytes salt;     /* of idempotency keys: where it is to be read from (once_is_reference); empty: none */
    int salt_line;
    once_source_spec source;
    const once_template *tenant, *type, *time, *order, *version; /* NULL: not said */
    once_time_unit time_unit;
    bool inbox;     /* ack: after_accept: the store takes the message, and the work is done from there */
    bool has_first; /* version.first: where a lane begins */
    int64_t first;
    bool block;     /* on_dead: block: a dead message holds its lane */
    int64_t gap_ms; /* -1: a jump runs */
    bool gap_dead;  /* then: dead; otherwise run */
    const once_handler_spec *handlers;
    size_t n_handlers;
    once_bytes init;    /* SQL, may be empty */
    int64_t timeout_ms; /* of `init`; handlers have their own */
    uint32_t batch_max; /* messages */
    int64_t batch_wait_ms;
    uint32_t workers;    /* processes, threads or connections that run external effects of one handler at a time */
    int64_t drain_ms;    /* told to stop: how long effects in flight may go on before they are killed */
    int64_t patience_ms; /* for how long a finite source tries again when the store is away or full, or effects cannot
                            be started */
    once_waiting_size waiting_max; /* in the store; then nothing is fetched */
    size_t message_max;            /* bytes */
    size_t result_max;
} once_spec;

/* Whether a template that tells messages apart has ${coordinates}. */
bool once_spec_uses_coordinates(const once_spec *spec);

/* It is known when a message was sent: it says so, or its broker does. */
static inline bool once_spec_knows_times(const once_spec *spec)
{
    return spec->time || (spec->source.bits & ONCE_SOURCE_TIMED);
}

/* The store keeps how far the source was read. */
static inline bool once_spec_keeps_cursor(const once_spec *spec) { return spec->source.bits & ONCE_SOURCE_CURSOR; }

static inline bool once_handler_runs(const once_handler_spec *handler) { return handler->bits & ONCE_EFFECT_RUNS; }
/* The effect is outside of the store, so its promise is fenced: it runs between two transactions, not in one. */
static inline bool once_handler_external(const once_handler_spec *handler)
{
    return handler->bits & ONCE_EFFECT_OUTSIDE;
}
static inline bool once_handler_asks(const once_handler_spec *handler) { return handler->bits & ONCE_EFFECT_ASKS; }
/* It runs in the transaction of the store, so effect and outcome are one. */
static inline bool once_handler_inside(const once_handler_spec *handler)
{
    return once_handler_runs(handler) && !once_handler_external(handler);
}

/* The handler for a type: exact match, else "*", else NULL. With `handler:` there is one, for every type. */
const once_handler_spec *once_spec_handler(const once_spec *spec, once_bytes type);
const once_handler_spec *once_spec_handler_by_operation(const once_spec *spec, once_bytes operation);
/* An attempt that ended without an outcome may have had its effect only where that is outside of the store's database;
 * of a handler that is gone nobody knows. */
static inline bool once_spec_maybe_done(const once_spec *spec, once_bytes operation, bool maybe)
{
    const once_handler_spec *handler = maybe ? once_spec_handler_by_operation(spec, operation) : NULL;
    return maybe && (!handler || once_handler_external(handler));
}

#endif
