/* What operators do: look at a store, replay and discard dead letters, resolve, forget, sweep; here is what these
 * share.
 *
 * Nothing in any of them decides about an entry: core/entry.c does, through the store's verbs. The act, the end of a
 * letter and the audit record are one transaction. A dry run does all of it and rolls back. */
#include "base/usage.h"
#include "runtime/known.h"
#include "runtime/operate.h"

#include "base/banned.h"

int once__check_choice(const once_choice *choice, const uint64_t *ids, size_t n_ids, once_error *err)
{
    const once_bytes all[] = {choice->tenant, choice->operation, choice->type, choice->reason, choice->group};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (once_bytes_lie(all[i]))
            return once_fail(err, ONCE_E_USAGE, "a choice has bytes with a length and no address");
    return ids || n_ids == 0 ? ONCE_OK : once_fail(err, ONCE_E_USAGE, "n_ids is %zu, and there are no ids", n_ids);
}

int once__open_keyed(once_pipeline *pipeline, once_backend **out, once_error *err)
{
    once_backend *store;
    int rc = once__salt_read(pipeline, err);
    if (rc == ONCE_OK) rc = once__known_open_store(pipeline, &store, err);
    if (rc != ONCE_OK) return rc;
    rc = once__memory_check_salt(pipeline, store, err);
    if (rc == ONCE_OK) *out = store;
    else once__store_close(store);
    return rc;
}

int once__finish_tx(once_backend *store, int rc, once_error *err)
{
    if (rc == ONCE_OK) return store->ops->commit(store, err);
    store->ops->rollback(store);
    return rc;
}

int once__find_entry(once_pipeline *pipeline, once_backend *store, once_bytes tenant, once_bytes operation,
                     once_bytes key, once_entry *out, once_arena *arena, once_error *err)
{
    const once_spec *spec = pipeline->spec;
    size_t known = 0;
    *out = (once_entry){.state = ONCE_STATE_ABSENT};
    const int told = once__want_tenant(pipeline, tenant, err);
    if (told != ONCE_OK) return told;
    for (size_t i = 0; i < spec->n_handlers; i++) {
        const once_scope scope = {tenant, spec->consumer, spec->handlers[i].operation};
        if (once_spec_handler_by_operation(spec, scope.operation) != &spec->handlers[i]) continue; /* shares its keys */
        if (operation.len && !once_bytes_equal(operation, scope.operation)) continue;
        once_entry entry;
        const int rc = once__entry_by_key(store, &scope, key, &entry, arena, err);
        if (rc != ONCE_OK) return rc;
        if (entry.state == ONCE_STATE_ABSENT) continue;
        if (known++)
            return once_fail(err, ONCE_E_USAGE,
                             "operations '%.*s' and '%.*s' both know key '%.*s'; say --operation NAME",
                             once__shown_len(out->scope.operation), out->scope.operation.data,
                             once__shown_len(scope.operation), scope.operation.data, once__shown_len(key), key.data);
        *out = entry;
        out->scope = scope;
    }
    return ONCE_OK;
}

uint64_t once__json_column(once_json *json, once_bytes body)
{
    once_json_error bad;
    const once_json_options options = {0};
    return once_json_parse(json, body, &options, &bad) == ONCE_E_MESSAGE ? bad.offset + 1 : 0;
}
