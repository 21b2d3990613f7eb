/* A pipeline as its user wrote it, checked and compiled. Immutable after loading; lives in one arena; shared by threads. */
#ifndef ONCE_CORE_SPEC_H
#define ONCE_CORE_SPEC_H

#include "base/json.h"
#include "core/template.h"
#include "once/types.h"

typedef struct once_retry {
    uint32_t attempts;       /* failures that make a dead letter */
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

/* One parameter of a statement: ":name" is the pointer "/name". */
typedef struct once_sql_param {
    once_pointer pointer;
    bool optional; /* ":{/a?}": NULL when absent */
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

typedef enum once_effect_kind { ONCE_EFFECT_SQL, ONCE_EFFECT_DEAD } once_effect_kind;

typedef struct once_handler_spec {
    once_bytes type;      /* what chooses it: a type, "*", or empty for `handler:` */
    once_bytes operation;
    const once_template *key;
    once_fingerprint_spec fingerprint;
    int64_t remember_ms;  /* or ONCE_FOREVER */
    int64_t lease_ms, timeout_ms;
    once_retry retry;
    once_effect_kind effect;
    const once_sql_statement *statements;
    size_t n_statements;
    const once_bytes *already; /* constraints, as once_fault.constraint */
    size_t n_already;
    const once_bytes *rejected; /* extended result codes or constraint names */
    size_t n_rejected;
    once_bytes dead_reason;
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
    once_file_spec source;
    const once_template *tenant, *type, *time, *order, *version; /* NULL: not said */
    bool inbox;              /* ack: after_accept: the store takes the message, and the work is done from there */
    int64_t gap_ms;          /* -1: a jump runs */
    bool gap_dead;           /* then: dead; otherwise run */
    const once_handler_spec *handlers;
    size_t n_handlers;
    once_bytes init;         /* SQL, may be empty */
    uint32_t batch_max;      /* messages */
    int64_t batch_wait_ms;
    uint32_t workers;
    size_t message_max;      /* bytes */
    size_t result_max;
} once_spec;

/* The handler for a type: exact match, else "*", else NULL. With `handler:` there is one, for every type. */
const once_handler_spec *once_spec_handler(const once_spec *spec, once_bytes type);
const once_handler_spec *once_spec_handler_by_operation(const once_spec *spec, once_bytes operation);

#endif
