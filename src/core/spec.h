/* A pipeline file, checked and compiled: what the rules, the machine and the runtime read of it.
 *
 * Thread rule: immutable after loading, so threads may share it. All of it lives in one arena. */
#ifndef ONCE_CORE_SPEC_H
#define ONCE_CORE_SPEC_H

#include "base/json.h"
#include "base/value.h"
#include "core/sent.h"
#include "core/template.h"
#include "once/types.h"

#define ONCE_NAME_MAX 200 /* bytes of the name of a consumer, a handler or a type */

#define ONCE_ANY_ATTEMPTS UINT32_MAX /* no limit for the number of attempts */

typedef struct once_retry {
    uint32_t attempts;      /* so many failures make a dead letter; ONCE_ANY_ATTEMPTS: no limit */
    int64_t for_ms;         /* so much time since the first failure makes a dead letter; 0: no limit */
    int64_t min_ms, max_ms; /* backoff: full jitter below min(max, min * 2^(failures-1)) */
    const once_bytes *on;   /* database errors to retry: result codes or constraint names */
    size_t n_on;
} once_retry;

typedef enum once_fingerprint_kind {
    ONCE_FINGERPRINT_BODY,  /* the meaning of a JSON body */
    ONCE_FINGERPRINT_BYTES, /* `fingerprint: body` where bodies are bytes */
    ONCE_FINGERPRINT_NONE,
    ONCE_FINGERPRINT_FIELDS
} once_fingerprint_kind;

typedef struct once_fingerprint_spec {
    once_fingerprint_kind kind;
    const once_path *fields;
    size_t n;
} once_fingerprint_spec;

/* What the rules and the runtime know about the effect of a handler. They never ask which effect it is; effect/effect.h
 * has the list. */
enum {
    ONCE_EFFECT_RUNS = 1u << 0,     /* it does something. Without this bit every message becomes a dead letter */
    ONCE_EFFECT_OUTSIDE = 1u << 1,  /* outside of the store, between two transactions; otherwise inside of one */
    ONCE_EFFECT_ISOLATED = 1u << 2, /* it runs in another process or on another host, so it cannot crash ours */
    ONCE_EFFECT_OUTLIVES = 1u << 3, /* what it started may go on when our process is gone */
    ONCE_EFFECT_FAULTS = 1u << 4,   /* it fails with errors of a database, which `retry.on` names */
    ONCE_EFFECT_ASKS = 1u << 5,     /* OUTSIDE: the other side can be asked whether it has happened (`lookup`) */
    ONCE_EFFECT_THEN = 1u << 6, /* OUTSIDE: done or already, it writes something in the transaction that settles it */
};

#define ONCE_LOCKS_MAX 16 /* names that a message may lock */

/* The names of the things that a message changes (`locks`). Transactions with a common name run one after the other. */
typedef struct once_locks_spec {
    const once_template *const *names;
    size_t n;
} once_locks_spec;

#define ONCE_LOOKUP_TIMEOUT (-1) /* of `after_ms`, while a file is read: the timeout of the effect */

/* When to ask the other side about an unknown effect. Times are on the store's clock, from when the entry became
 * unknown. */
typedef struct once_lookup {
    int64_t after_ms; /* not before: the request may still be acted on */
    int64_t for_ms;   /* how long to ask without an answer; then it is held or tried again, as `unknown` says */
} once_lookup;

struct once_parsed;

/* `then`: what is written with the outcome of an effect outside. What it is, is up to the effects (effect/then.h). */
typedef struct once_then {
    /* Makes, in the arena, what it needs of the message; as once_prepare (core/intake.h). So a message that lacks
     * something is refused before its effect has happened. */
    int (*prepare)(const struct once_then *then, const struct once_parsed *from, once_arena *arena, void **input,
                   once_error *err);
    int line; /* in the pipeline file */
} once_then;

enum { ONCE_DEAD_OUTCOMES = 200, ONCE_BREAKER_MOST = 200 };

/* `breaker`: the handler is held when so many of its last outcomes were failures. */
typedef struct once_breaker {
    uint32_t share;    /* percent */
    uint32_t of;       /* so many outcomes; 0: there is no breaker */
    int64_t within_ms; /* they ended within this time */
} once_breaker;

/* `rate`: `n` messages begin in `per_ms`; n is 0: any number. */
typedef struct once_rate {
    uint32_t n;
    int64_t per_ms;
} once_rate;

/* How many messages of a handler may begin (core/gate.h). */
typedef struct once_gate_spec {
    once_breaker breaker;
    uint32_t dead_share; /* `dead_limit`: percent of the last ONCE_DEAD_OUTCOMES outcomes; 0: no limit */
    once_rate rate;
} once_gate_spec;

typedef struct once_handler_spec {
    once_bytes type; /* the type that chooses it, "*", or empty for `handler:` */
    once_bytes operation;
    const once_template *key;
    once_fingerprint_spec fingerprint;
    int64_t remember_ms; /* or ONCE_FOREVER */
    int64_t lease_ms, timeout_ms;
    once_retry retry;
    once_locks_spec locks;                /* of effects in the store's own database */
    const struct once_effect_ops *effect; /* prepares it and carries it out; nothing in core looks into it */
    const void *own;                      /* the fields of that effect, in a struct of its own */
    const once_then *then;                /* with ONCE_EFFECT_THEN; otherwise NULL */
    unsigned bits;                        /* ONCE_EFFECT_ */
    once_bytes dead_reason;               /* of an effect that does not run */
    uint32_t slots;                       /* external effects: how many may be in flight at a time; 0 for all others */
    once_gate_spec gate;
    bool hold;          /* external effects: an unknown is held for an operator; otherwise tried again */
    once_lookup lookup; /* with ONCE_EFFECT_ASKS: the other side is asked before that */
    bool natural;       /* idempotent by nature: nothing is remembered after success */
    int line;           /* in the pipeline file */
    int remember_line, lease_line, timeout_line, retry_line; /* where these are written; 0: they are not */
} once_handler_spec;

/* What the rules and the runtime know about a source. They never ask which source it is; source/source.h has the list.
 */
enum {
    ONCE_SOURCE_FINITE = 1u << 0,     /* it ends */
    ONCE_SOURCE_CURSOR = 1u << 1,     /* the store keeps how far it was read, and it goes on from there */
    ONCE_SOURCE_REDELIVERS = 1u << 2, /* a message that was not acked is delivered again; known when it is open */
    ONCE_SOURCE_STABLE = 1u << 3,     /* a message has the same coordinates at each delivery */
    /* Each delivery is acked for itself; otherwise an ack covers everything up to it in its stream. Not with CURSOR. */
    ONCE_SOURCE_SINGLE_ACKS = 1u << 4,
    ONCE_SOURCE_EXPIRES = 1u << 5, /* a delivery that is neither acked nor extended in time goes to another consumer */
    ONCE_SOURCE_ASSIGNS = 1u << 6, /* streams come and go, by news; otherwise there is one, number 0, from the start */
    ONCE_SOURCE_TIMED = 1u << 7,   /* a message comes with the time when it was sent, the same at each delivery */
};

/* What happens to a message without a body. */
typedef enum once_tombstones {
    ONCE_TOMBSTONES_DEAD, /* it becomes a dead letter */
    ONCE_TOMBSTONES_SKIP, /* it is acked and counted, and nothing else */
    ONCE_TOMBSTONES_RUN   /* it is handled like any other; its effect gets no body */
} once_tombstones;

typedef struct once_source_spec {
    const struct once_source_kind *kind; /* which source it is; nothing in core looks into it */
    const void *own;                     /* its fields, in a struct of its own */
    unsigned bits;                       /* ONCE_SOURCE_ */
    once_bytes name;      /* the path, the topic, the queue; the store keeps the state of the source under it */
    once_pointer headers; /* where in a body the headers are; empty text: those that come with the message count */
    bool bytes;           /* `body: bytes`: a body is any bytes, and has no fields; otherwise it is JSON */
    once_tombstones tombstones;
    bool named;           /* a template has ${source:NAME}: fetch puts the source's facts into the headers */
    const char *unstable; /* why a message may have other coordinates when it comes again; NULL: it has the same */
    int line;             /* in the pipeline file */
} once_source_spec;

/* How many messages wait in the store with their bodies, and the bytes of these. As a bound: 0 means no limit. */
typedef struct once_waiting_size {
    uint64_t messages, bytes;
} once_waiting_size;

typedef struct once_spec {
    once_bytes file; /* the path of the pipeline file, for messages */
    once_bytes consumer, store_url;
    int store_line;
    once_bytes store_id; /* the store must have this id; empty: any */
    once_bytes salt;     /* of idempotency keys: a reference to it (once_is_reference); empty: none */
    int salt_line;
    once_source_spec source;
    const once_template *tenant, *type, *time, *order, *version; /* NULL: not given */
    once_time_unit time_unit;
    bool time_optional;               /* a message without it has the time of the source, if there is one */
    once_event_form events;           /* what every message must be (core/event.h) */
    const struct once_preset *preset; /* NULL: none; nothing in core looks into it */
    unsigned preset_own;              /* bits of its lines that the file has a field of its own for */
    bool inbox;     /* `ack: after_accept`: the store takes each message, and it is worked on from there */
    bool has_first; /* `version.first`: the version that a lane begins with */
    int64_t first;
    bool block;     /* `on_dead: block`: a dead message blocks its lane */
    int64_t gap_ms; /* `gap.wait`: how long to wait for missing versions; -1: not at all */
    bool gap_dead;  /* `gap.then: dead`; otherwise run */
    const once_handler_spec *handlers;
    size_t n_handlers;
    once_bytes init;    /* SQL, may be empty */
    int64_t timeout_ms; /* of `init`; handlers have their own */
    uint32_t batch_max; /* messages */
    int64_t batch_wait_ms;
    uint32_t workers;    /* processes, threads or connections that run external effects of one handler at a time */
    int64_t drain_ms;    /* after a stop: how long effects in flight may go on before they are killed */
    int64_t patience_ms; /* how long a run with a finite source tries again when the store is away or full, or effects
                          * cannot be started */
    once_waiting_size waiting_max; /* nothing is fetched while so much waits in the store */
    size_t message_max;            /* bytes of a body */
    size_t result_max;             /* bytes of a result */
} once_spec;

/* Whether a template that decides the key, the lane or the scope has ${coordinates}. */
bool once_spec_uses_coordinates(const once_spec *spec);

/* Whether messages have the time when they were sent, of their own or from the broker. */
static inline bool once_spec_knows_times(const once_spec *spec)
{
    return spec->time || (spec->source.bits & ONCE_SOURCE_TIMED);
}

/* Whether the store keeps how far the source was read. */
static inline bool once_spec_keeps_cursor(const once_spec *spec) { return spec->source.bits & ONCE_SOURCE_CURSOR; }

static inline bool once_handler_runs(const once_handler_spec *handler) { return handler->bits & ONCE_EFFECT_RUNS; }
/* The effect is outside of the store, so its promise is fenced: it runs between two transactions, not in one. */
static inline bool once_handler_external(const once_handler_spec *handler)
{
    return handler->bits & ONCE_EFFECT_OUTSIDE;
}
static inline bool once_handler_asks(const once_handler_spec *handler) { return handler->bits & ONCE_EFFECT_ASKS; }
/* Its effect may begin without a claim: it is outside, a repeat does no harm, what it started does not go on without us
 * while another worker begins it again, and nothing is written with its outcome. */
static inline bool once_handler_unclaimed(const once_handler_spec *handler)
{
    const unsigned claimed = ONCE_EFFECT_OUTLIVES | ONCE_EFFECT_THEN;
    return handler->natural && once_handler_external(handler) && !(handler->bits & claimed);
}
/* It runs in the transaction of the store, so effect and outcome are one. */
static inline bool once_handler_inside(const once_handler_spec *handler)
{
    return once_handler_runs(handler) && !once_handler_external(handler);
}

/* The handler for a type: exact match, else "*", else NULL. With `handler:` there is one, for every type. */
const once_handler_spec *once_spec_handler(const once_spec *spec, once_bytes type);
const once_handler_spec *once_spec_handler_by_operation(const once_spec *spec, once_bytes operation);
/* Whether an attempt that ended without reporting an outcome may have had its effect. In the store's database it
 * cannot: it was rolled back. For a handler that is gone it is not known where its effect was, so it may have. */
static inline bool once_spec_maybe_done(const once_spec *spec, once_bytes operation, bool maybe)
{
    const once_handler_spec *handler = maybe ? once_spec_handler_by_operation(spec, operation) : NULL;
    return maybe && (!handler || once_handler_external(handler));
}

#endif
