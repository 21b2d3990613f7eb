/* The field `sql` and those that belong to it, and its statements, which `then` has, too. */
#ifndef ONCE_EFFECT_SQL_H
#define ONCE_EFFECT_SQL_H

#include "core/spec.h"

/* What a parameter of a statement is bound to. */
typedef enum once_sql_source {
    ONCE_SQL_PLACE,           /* something of the message: a field, a header... */
    ONCE_SQL_KEY,             /* :once_key, as ONCE_KEY of a command */
    ONCE_SQL_IDEMPOTENCY_KEY, /* :once_idempotency_key */
    ONCE_SQL_ATTEMPT,         /* :once_attempt */
    ONCE_SQL_BODY,            /* :once_body: text where bodies are JSON, else bytes; NULL: there is none */
    ONCE_SQL_RESULT           /* :{result}, :{result:/a}: of the effect whose `then` this is */
} once_sql_source;

/* One parameter of a statement: ":name" is the field "/name". */
typedef struct once_sql_param {
    once_sql_source source;
    once_placeholder place; /* PLACE; RESULT: a field of it, or nothing (path.n is 0): all of it */
    bool optional;          /* ":{/a?}": NULL when absent */
    bool as_text;           /* ":{/a as text}": numbers, true and false as they are written */
} once_sql_param;

typedef struct once_sql_statement {
    once_bytes text; /* as written */
    once_bytes sql;  /* with ?1..?n */
    const once_sql_param *params;
    size_t n;
    int64_t rows;       /* required number of rows, -1: any */
    once_outcome unmet; /* the outcome when it is not met: STALE, REJECTED, RETRY or DEAD */
    int line;
} once_sql_statement;

/* Statements that run one after the other. */
typedef struct once_sql_list {
    const once_sql_statement *at;
    size_t n;
} once_sql_list;

/* `lookup`: a SELECT that is asked what became of an attempt whose outcome is unknown. */
typedef struct once_sql_lookup {
    once_sql_list select; /* one statement; n 0: there is no lookup */
    once_lookup when;
} once_sql_lookup;

typedef struct once_sql_spec {
    once_sql_list does;
    once_sql_lookup lookup;
    once_bytes url; /* where they run, as written: a URL or a reference to one, never shown as it is; empty: in the
                       store's database */
    int url_line;
    const once_bytes *already; /* constraints, as once_fault.constraint */
    size_t n_already;
    const once_bytes *rejected; /* extended result codes or constraint names */
    size_t n_rejected;
} once_sql_spec;

static inline const once_sql_spec *once_sql_of(const once_handler_spec *handler) { return handler->own; }

#endif
