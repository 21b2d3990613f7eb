/* Writing and listing audit records.
 *
 * A stored record has a key, but no tenant, operation or idempotency key, because the tables are older than these. So
 * they are in the note, as a JSON object after its words:
 *
 *   goes back to work {"tenant":"berlin","operation":"charge","idempotency_key":"4f0c..."}
 *
 * Empty members are left out, and so is an empty object. Notes written before had none. */
#include <assert.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/no_memory.h"
#include "runtime/audit.h"
#include "runtime/known_store.h"
#include "runtime/operate.h"

#include "base/banned.h"

enum { NOTE_MAX = 1 << 20 };

static void put(once_buf *note, const char *name, once_bytes text, bool *first)
{
    if (text.len == 0) return;
    once_buf_puts(note, *first ? (note->len ? " {\"" : "{\"") : ",\"");
    once_buf_puts(note, name);
    once_buf_puts(note, "\":");
    once_buf_json(note, text);
    *first = false;
}

int once__audit(const once_pipeline *pipeline, once_backend *store, const once_act *act, once_error *err)
{
    assert(pipeline->spec->consumer.len > 0 && act->what[0]);
    assert(act->what && act->note);
    once_buf note;
    bool first = true;
    once_buf_init(&note, NOTE_MAX);
    once_buf_puts(&note, act->note);
    put(&note, "tenant", act->scope.tenant, &first);
    put(&note, "operation", act->scope.operation, &first);
    if (act->idempotency_key)
        put(&note, "idempotency_key", (once_bytes){act->idempotency_key, strlen(act->idempotency_key)}, &first);
    if (!first) once_buf_puts(&note, "}");
    const once_audit record = {
        .consumer = pipeline->spec->consumer,
        .who = {store->who, strlen(store->who)},
        .what = {act->what, strlen(act->what)},
        .key = act->key,
        .letter = act->letter,
        .note = once_buf_bytes(&note),
        .body = act->body,
    };
    const int rc = note.failed ? once_no_memory(err, "for an audit record") : store->ops->audit(store, &record, err);
    once_buf_release(&note);
    return rc;
}

static bool get(const once_json *json, once_bytes name, once_arena *arena, once_bytes *out)
{
    const once_json_value value = once_json_member(json, once_json_root(json), name);
    return value.type == ONCE_JSON_ABSENT || once_json_string(value, arena, out);
}

int once__audit_read(const once_audit *a, once_json *json, once_arena *arena, once_audited *out, once_error *err)
{
    *out = (once_audited){.time_ms = a->time_ms,
                          .who = a->who,
                          .what = a->what,
                          .key = a->key,
                          .note = a->note,
                          .letter = a->letter,
                          .body = a->body};
    const char *from = a->note.len ? memmem(a->note.data, a->note.len, "{\"", 2) : NULL;
    if (!from) return ONCE_OK;
    const size_t words = (size_t)(from - a->note.data);
    const int rc = once_json_parse(json, (once_bytes){from, a->note.len - words}, NULL, NULL);
    if (rc == ONCE_E_MESSAGE) return ONCE_OK; /* not our object: part of the words */
    if (rc != ONCE_OK || !get(json, ONCE_BYTES("tenant"), arena, &out->tenant) ||
        !get(json, ONCE_BYTES("operation"), arena, &out->operation) ||
        !get(json, ONCE_BYTES("idempotency_key"), arena, &out->idempotency_key))
        return once_no_memory(err, "for an audit record");
    assert(words <= a->note.len);
    out->note.len = words && a->note.data[words - 1] == ' ' ? words - 1 : words;
    return ONCE_OK;
}

typedef struct auditing {
    const once_spec *spec;
    once_audited_visit *visit;
    void *user;
    once_arena arena;
    once_json json;
    int rc;
    once_error *err;
} auditing;

static bool list_audit(void *user, const once_audit *a)
{
    auditing *l = user;
    once_audited record;
    once_arena_reset(&l->arena);
    l->rc = once__audit_read(a, &l->json, &l->arena, &record, l->err);
    record.bytes = l->spec->source.bytes;
    return l->rc == ONCE_OK && l->visit(l->user, &record);
}

int once_pipeline_audits(once_pipeline *pipeline, once_audited_visit *visit, void *user, once_error *err)
{
    if (!pipeline || !visit)
        return once_fail(err, ONCE_E_USAGE, "once_pipeline_audits needs a pipeline and a function for its records");
    once_backend *store;
    int rc = once__operator_open(pipeline, &store, err);
    if (rc != ONCE_OK) return rc;
    auditing l = {.spec = pipeline->spec, .visit = visit, .user = user, .err = err};
    once_json_init(&l.json);
    rc = store->ops->audits(store, pipeline->spec->consumer, list_audit, &l, err);
    if (rc == ONCE_OK) rc = l.rc;
    once_json_release(&l.json);
    once_arena_release(&l.arena);
    once__operator_close(pipeline, store);
    return rc;
}
