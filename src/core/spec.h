/* A pipeline as its user wrote it, checked and compiled. Immutable after loading; lives in one arena; shared by threads. */
#ifndef ONCE_CORE_SPEC_H
#define ONCE_CORE_SPEC_H

#include "base/json.h"
#include "core/sent.h"
#include "core/template.h"
#include "once/types.h"

#define ONCE_ANY_ATTEMPTS UINT32_MAX

typedef struct once_retry {
    uint32_t attempts;       /* failures that make a dead letter; ONCE_ANY_ATTEMPTS: their number does not matter */
    int64_t for_ms;          /* the time since the first failure that does; 0: it does not matter */
    int64_t min_ms, max_ms;  /* backoff: full jitter below min(max, min * 2^(failures-1)) */
    const once_bytes *on;    /* faults that are worth another try: extended result codes or constraint names */
    size_t n_on;
} once_retry;

typedef enum once_fingerprint_kind { ONCE_FINGERPRINT_BODY, ONCE_FINGERPRINT_NONE, ONCE_FINGERPRINT_FIELDS } once_fingerprint_kind;

typedef struct once_fingerprint_spec {
    once_fingerprint_kind kind;
    const once_pointer *fields;
    size_t n;
} once_fingerprint_spec;

/* What a parameter of a statement stands for. */
typedef enum once_sql_source {
    ONCE_SQL_FIELD,
    ONCE_SQL_KEY,             /* :once_key, as ONCE_KEY of a command */
    ONCE_SQL_IDEMPOTENCY_KEY, /* :once_idempotency_key */
    ONCE_SQL_ATTEMPT          /* :once_attempt */
} once_sql_source;

/* One parameter of a statement: ":name" is the pointer "/name". */
typedef struct once_sql_param {
    once_sql_source source;
    once_pointer pointer; /* FIELD */
    bool optional; /* ":{/a?}": NULL when absent */
    bool as_text;  /* ":{/a as text}": numbers, true and false as they are written */
} once_sql_param;

typedef struct once_sql_statement {
    once_bytes text;      /* as written */
    once_bytes sql;       /* with ?1..?n */
    const once_sql_param *params;
    size_t n;
    int64_t rows;         /* required number of rows, -1: any */
    once_outcome unmet;   /* what it means when that was not met: STALE, REJECTED, RETRY or DEAD */
    int line;
} once_sql_statement;

/* A variable of a command's environment. */
typedef struct once_exec_variable {
    once_bytes name;
    once_bytes value; /* as written: a text, or a reference (env:NAME, file:PATH) that is read when the pipeline starts and is never shown */
    int line;
} once_exec_variable;

typedef struct once_exec_spec {
    const once_template *const *argv; /* rendered for each message; argv[0], and with `stream` all of them, are literals */
    size_t n;
    const once_exec_variable *env; /* besides the fixed ones */
    size_t n_env;
    const once_outcome *exits; /* what each of the 256 exit codes means; NULL: once_exec_exit_usual */
    bool unsafe;        /* a field of the message may stand where commands expect a program */
    bool stream;        /* a kept process that speaks one JSON line per message */
    uint32_t window;    /* stream: messages in flight in one process */
    uint32_t processes; /* stream: how many are kept */
} once_exec_spec;

typedef enum once_effect_kind { ONCE_EFFECT_SQL, ONCE_EFFECT_DEAD, ONCE_EFFECT_EXEC, ONCE_EFFECT_CALLBACK } once_effect_kind;

#define ONCE_LOCKS_MAX 16 /* names that a message may lock */

/* What a message will touch, as its user names it. */
typedef struct once_locks_spec {
    const once_template *const *names;
    size_t n;
} once_locks_spec;

typedef struct once_handler_spec {
    once_bytes type;      /* what chooses it: a type, "*", or empty for `handler:` */
    once_bytes operation;
    const once_template *key;
    once_fingerprint_spec fingerprint;
    int64_t remember_ms;  /* or ONCE_FOREVER */
    int64_t lease_ms, timeout_ms;
    once_retry retry;
    once_locks_spec locks; /* of effects in the store's own database */
    once_effect_kind effect;
    const once_sql_statement *statements;
    size_t n_statements;
    once_bytes sql_url;   /* where they run, as written: a URL or a reference to one, never shown as it is; empty: in the store's database */
    int sql_url_line;
    const once_bytes *already; /* constraints, as once_fault.constraint */
    size_t n_already;
    const once_bytes *rejected; /* extended result codes or constraint names */
    size_t n_rejected;
    once_bytes dead_reason;
    once_exec_spec exec;
    once_bytes callback; /* the name under which the program registers its function */
    uint32_t slots;      /* external effects: how many may be in flight at a time; 0 for all others */
    bool hold;           /* external effects: an unknown is kept for a person; otherwise tried again */
    bool natural;        /* idempotent by nature: nothing is remembered after success */
    int line;
} once_handler_spec;

typedef struct once_file_spec {
    once_bytes path; /* "-": stdin */
    bool follow;
    bool cursor; /* go on where the last run had got to */
    once_pointer headers; /* text empty: none */
} once_file_spec;

typedef struct once_spec {
    once_bytes file; /* where it was read from, for messages */
    once_bytes consumer, store_url;
    int store_line, source_line;
    once_bytes store_id;     /* which store it must be; empty: not said */
    once_bytes salt;         /* of idempotency keys: where it is to be read from (once_exec_is_reference); empty: none */
    int salt_line;
    once_file_spec source;
    const once_template *tenant, *type, *time, *order, *version; /* NULL: not said */
    once_time_unit time_unit;
    bool inbox;              /* ack: after_accept: the store takes the message, and the work is done from there */
    bool has_first;          /* version.first: where a lane begins */
    int64_t first;
    bool block;              /* on_dead: block: a dead message holds its lane */
    int64_t gap_ms;          /* -1: a jump runs */
    bool gap_dead;           /* then: dead; otherwise run */
    const once_handler_spec *handlers;
    size_t n_handlers;
    once_bytes init;         /* SQL, may be empty */
    int64_t timeout_ms;      /* of `init`; handlers have their own */
    uint32_t batch_max;      /* messages */
    int64_t batch_wait_ms;
    uint32_t workers;        /* processes, threads or connections that run external effects of one handler at a time */
    int64_t drain_ms;        /* told to stop: how long effects in flight may go on before they are killed */
    int64_t patience_ms;     /* for how long a finite source tries again when the store is away or full, or effects cannot be started */
    size_t message_max;      /* bytes */
    size_t result_max;
} once_spec;

/* What an exit code means where `exit:` says nothing. A code that nobody listed is unknown: only the program knows whether its effect
 * happened before it, so that neither "nothing happened" nor "done" may be assumed. */
once_outcome once_exec_exit_usual(int code);

/* Of a value: where it is to be read from, instead of what it is. */
bool once_exec_is_reference(once_bytes value);

/* The effect is outside of the store, so its promise is fenced: it runs between two transactions, not in one. */
static inline bool once_handler_external(const once_handler_spec *handler)
{
    if (handler->effect == ONCE_EFFECT_SQL) return handler->sql_url.len > 0;
    return handler->effect == ONCE_EFFECT_EXEC || handler->effect == ONCE_EFFECT_CALLBACK;
}

/* The handler for a type: exact match, else "*", else NULL. With `handler:` there is one, for every type. */
const once_handler_spec *once_spec_handler(const once_spec *spec, once_bytes type);
const once_handler_spec *once_spec_handler_by_operation(const once_spec *spec, once_bytes operation);
/* An attempt that ended without a word may have had its effect only where that is outside of the store's database; of a handler that is gone nobody knows. */
static inline bool once_spec_maybe_done(const once_spec *spec, once_bytes operation, bool maybe)
{
    const once_handler_spec *handler = maybe ? once_spec_handler_by_operation(spec, operation) : NULL;
    return maybe && (!handler || once_handler_external(handler));
}

#endif
