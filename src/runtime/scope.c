/* What a store remembers about a consumer between runs.
 *
 * How its keys are made: when the key template, the fingerprint, the operation of a type or the consumer of a source changes,
 * every old message looks new and would run again. So each is kept as a fact, and a change is refused until it is confirmed.
 *
 * Whether its last run ended: a mark is set when a run begins and removed when it ends. A mark that is found at the start means
 * that the last run was killed, perhaps by a message. */
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/config.h"
#include "runtime/runtime.h"

#include "base/banned.h"

/* Facts have short names; consumers and types may be long and binary. */
static void fact_name(const once_store *store, const char *kind, once_bytes consumer, once_bytes of, char out[64])
{
    const once_scope scope = {.consumer = consumer, .operation = {kind, strlen(kind)}};
    const once_hash hash = once_key_id(store->secret, &scope, of);
    snprintf(out, 64, "%s/%016llx%016llx", kind, (unsigned long long)hash.a, (unsigned long long)hash.b);
}

typedef struct checking {
    once_pipeline *pipeline;
    once_store *store;
    once_scope_check how;
    once_arena arena;
    once_error *err;
    int rc;
} checking;

static int show(once_bytes text) { return text.len < 120 ? (int)text.len : 120; }

/* The fact must be what it was, or new. `of` names it to the user. */
static int check_fact(checking *c, const char *kind, once_bytes consumer, once_bytes of, once_bytes now, const char *what,
                      const char *effect)
{
    char name[64];
    once_bytes was;
    fact_name(c->store, kind, consumer, of, name);
    int rc = c->store->ops->fact_get(c->store, name, &was, &c->arena, c->err);
    if (rc != ONCE_OK) return rc;
    if (was.len == now.len && memcmp(was.data, now.data, now.len) == 0) return ONCE_OK;
    if (was.len && c->how != ONCE_SCOPE_CONFIRM)
        return once_fail(c->err, ONCE_E_SCOPE, "%.*s: %s '%.*s' was '%.*s' in this store and is '%.*s' now; %s; put it back, or confirm with --confirm-scope-change",
                         show(c->pipeline->spec->file), c->pipeline->spec->file.data, what, show(of), of.data, show(was), was.data, show(now), now.data, effect);
    return c->how == ONCE_SCOPE_LOOK ? ONCE_OK : c->store->ops->fact_set(c->store, name, now, c->err);
}

static bool check_operation(void *user, once_bytes operation, once_bytes text)
{
    checking *c = user;
    c->rc = check_fact(c, "scope", c->pipeline->spec->consumer, operation, text, "the key of operation", "messages that were settled would run again");
    return c->rc == ONCE_OK;
}

int once__memory_check_scope(once_pipeline *pipeline, once_store *store, once_scope_check how, once_error *err)
{
    const once_spec *spec = pipeline->spec;
    checking c = {.pipeline = pipeline, .store = store, .how = how, .err = err};
    int rc = once_config_scope_each(spec, &c.arena, check_operation, &c, err);
    if (rc == ONCE_OK) rc = c.rc;
    for (size_t i = 0; rc == ONCE_OK && i < spec->n_handlers; i++) {
        const once_handler_spec *handler = &spec->handlers[i];
        const once_bytes type = handler->type.len ? handler->type : ONCE_BYTES("handler");
        rc = check_fact(&c, "operation", spec->consumer, type, handler->operation, "the operation of type", "messages that were settled would run again");
    }
    if (rc == ONCE_OK && !(spec->source.path.len == 1 && spec->source.path.data[0] == '-'))
        rc = check_fact(&c, "consumer", (once_bytes){0}, spec->source.path, spec->consumer, "the consumer of source", "a new consumer starts from nothing");
    once_arena_release(&c.arena);
    return rc;
}

int once__memory_take_cursor(once_pipeline *pipeline, const once_parts *parts, char name[64], once_error *err)
{
    const once_spec *spec = pipeline->spec;
    once_store *store = parts->store;
    once_arena arena = {0};
    once_bytes kept, owner;
    once_cursor cursor;
    once_error why;
    char owner_name[64], host[64] = "?", mine[100];
    fact_name(store, "cursor", spec->consumer, spec->source.path, name);
    fact_name(store, "holder", spec->consumer, spec->source.path, owner_name);
    gethostname(host, sizeof host - 1);
    const int n = snprintf(mine, sizeof mine, "process %ld on %s", (long)getpid(), host);

    int rc = store->ops->fact_get(store, name, &kept, &arena, err);
    if (rc == ONCE_OK) rc = store->ops->fact_get(store, owner_name, &owner, &arena, err);
    if (rc == ONCE_OK && kept.len && !once_cursor_read(kept, &cursor))
        rc = once_fail(err, ONCE_E_CORRUPT, "the cursor of source '%.*s' in the store cannot be read", show(spec->source.path), spec->source.path.data);
    if (rc == ONCE_OK) {
        rc = parts->source->ops->seek(parts->source, kept.len ? &cursor : NULL, &why);
        if (rc == ONCE_E_BUSY) once_fail(err, rc, "%s (%.*s); stop that one, or take 'cursor' out", why.text, show(owner), owner.data);
        else if (rc != ONCE_OK) once_fail(err, rc, "%s", why.text);
    }
    if (rc == ONCE_OK) rc = store->ops->fact_set(store, owner_name, (once_bytes){mine, (size_t)n}, err);
    once_arena_release(&arena);
    return rc;
}

int once__memory_run_begins(once_pipeline *pipeline, once_store *store, uint64_t run, bool *unclean, once_error *err)
{
    char name[64], mark[32];
    once_arena arena = {0};
    once_bytes was;
    fact_name(store, "run", pipeline->spec->consumer, (once_bytes){0}, name);
    int rc = store->ops->fact_get(store, name, &was, &arena, err);
    snprintf(mark, sizeof mark, "%016llx", (unsigned long long)run);
    const bool ours = rc == ONCE_OK && was.len == strlen(mark) && memcmp(was.data, mark, was.len) == 0; /* the reply was lost, and this is repeated */
    *unclean = rc == ONCE_OK && was.len > 0 && !ours;
    once_arena_release(&arena);
    if (rc != ONCE_OK) return rc;
    return store->ops->fact_set(store, name, (once_bytes){mark, strlen(mark)}, err);
}

int once__memory_run_ended(once_pipeline *pipeline, once_store *store, uint64_t run, once_error *err)
{
    char name[64], mark[32];
    once_arena arena = {0};
    once_bytes was;
    fact_name(store, "run", pipeline->spec->consumer, (once_bytes){0}, name);
    snprintf(mark, sizeof mark, "%016llx", (unsigned long long)run);
    int rc = store->ops->fact_get(store, name, &was, &arena, err);
    /* Another process may have begun since; its mark stays. */
    if (rc == ONCE_OK && was.len == strlen(mark) && memcmp(was.data, mark, was.len) == 0)
        rc = store->ops->fact_set(store, name, (once_bytes){0}, err);
    once_arena_release(&arena);
    return rc;
}
