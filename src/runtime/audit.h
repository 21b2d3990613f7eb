/* Audit records: what operators did, who, and when (once_audit of store/store.h). */
#ifndef ONCE_RUNTIME_AUDIT_H
#define ONCE_RUNTIME_AUDIT_H

#include "once/operate.h"
#include "runtime/runtime.h"
#include "store/store.h"

typedef struct once_act {
    const char *what;            /* "replay" */
    const char *note;            /* in words; may be empty */
    once_scope scope;            /* of the key; tenant and operation may be empty */
    once_bytes key;              /* may be empty */
    const char *idempotency_key; /* NULL or empty: none */
    uint64_t letter;             /* 0: none */
    once_bytes body;             /* the body that was replaced; may be empty */
} once_act;

/* Writes a record, in the transaction of the act. */
int once__audit(const once_pipeline *pipeline, once_backend *store, const once_act *act, once_error *err);
/* Converts a record for showing; texts live in the record or in `arena`. */
int once__audit_read(const once_audit *record, once_json *json, once_arena *arena, once_audited *out, once_error *err);

#endif
