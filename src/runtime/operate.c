/* What operator verbs share (runtime/operate.h): the store, its lock, and finding entries. */
#include <assert.h>
#include <string.h>

#include "base/usage.h"
#include "runtime/known_store.h"
#include "runtime/operate.h"

#include "base/banned.h"

#define PAUSE_STEP_MS 100 /* how soon a stop is noticed */

int once__check_choice(const once_choice *choice, const uint64_t *ids, size_t n_ids, once_error *err)
{
    const once_bytes all[] = {choice->tenant, choice->operation, choice->type, choice->reason, choice->group};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (once_bytes_lie(all[i]))
            return once_fail(err, ONCE_E_USAGE, "a field of once_choice has a length, but its data is NULL");
    return ids || n_ids == 0 ? ONCE_OK : once_fail(err, ONCE_E_USAGE, "n_ids is %zu, and there are no ids", n_ids);
}

static int open_now(once_pipeline *pipeline, once_backend **out, once_error *err) /* @locks: store_lock */
{
    assert(pipeline->store_lock.held);
    if (!pipeline->run_store) return once__known_open_store(pipeline, out, err);
    *out = pipeline->run_store;
    return ONCE_OK;
}

int once__operator_open(once_pipeline *pipeline, once_backend **out, once_error *err)
{
    const int forked = once__run_refuse_forked(pipeline->run, err);
    if (forked != ONCE_OK) return forked;
    if (!once_fair_lock_enter(&pipeline->store_lock))
        return once_fail(
            err, ONCE_E_USAGE,
            "a function of the pipeline was called from a callback of another function that is using its store");
    const int rc = open_now(pipeline, out, err);
    if (rc != ONCE_OK) once_fair_lock_leave(&pipeline->store_lock);
    return rc;
}

/* On the run's store, leaves no transaction open for the run. */
void once__operator_close(once_pipeline *pipeline, once_backend *store)
{
    if (!store) return; /* lost in a pause */
    assert(pipeline->store_lock.held);
    if (store == pipeline->run_store) store->ops->rollback(store);
    else once__store_close(store);
    once_fair_lock_leave(&pipeline->store_lock);
}

static void sleep_for(const once_pipeline *pipeline, int64_t ms)
{
    for (; ms > 0 && !atomic_load(&pipeline->stop); ms -= PAUSE_STEP_MS)
        once_env_sleep_ms(pipeline->env, ms < PAUSE_STEP_MS ? ms : PAUSE_STEP_MS);
}

int once__operator_pause(once_pipeline *pipeline, once_backend **store, int64_t ms, once_error *err)
{
    assert(*store && ms >= 0);
    const bool shared = *store == pipeline->run_store;
    const uint64_t opened = pipeline->store_generation; /* the next run's store may be at the same address (R3) */
    const once_secret secret = (*store)->secret;
    once_fair_lock_leave(&pipeline->store_lock);
    sleep_for(pipeline, ms);
    once_fair_lock_take(&pipeline->store_lock);
    if (!shared || (pipeline->run_store && pipeline->store_generation == opened)) return ONCE_OK;
    *store = NULL;
    int rc = open_now(pipeline, store, err);
    if (rc == ONCE_OK && memcmp(&(*store)->secret, &secret, sizeof secret) != 0) {
        once__operator_close(pipeline, *store);
        *store = NULL;
        return once_fail(
            err, ONCE_E_OTHER_STORE,
            "the run has ended, and the store that is opened now is not the one that it used; repeat the command");
    }
    if (rc != ONCE_OK) once_fair_lock_leave(&pipeline->store_lock);
    return rc;
}

int once__operator_beside(once_pipeline *pipeline, once_backend *store, once_backend **out, once_error *err)
{
    if (once__store_lasts(store)) return once__known_open_store(pipeline, out, err);
    *out = store;
    return ONCE_OK;
}

int once__open_keyed(once_pipeline *pipeline, once_backend **out, once_error *err)
{
    once_backend *store;
    int rc = once__salt_read(pipeline, err);
    if (rc == ONCE_OK) rc = once__operator_open(pipeline, &store, err);
    if (rc != ONCE_OK) return rc;
    rc = once__consumer_check_salt(pipeline, store, err);
    if (rc == ONCE_OK) *out = store;
    else once__operator_close(pipeline, store);
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
    assert(pipeline->store_lock.held);
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
                             "operations '%.*s' and '%.*s' both have key '%.*s'; add --operation NAME",
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

int64_t once__due_shown_ms(const once_spec *spec, const once_entry *entry)
{
    if (!once_state_unfinished(entry->state) || entry->due_ms == ONCE_NEVER) return ONCE_NO_TIME;
    if (entry->state != ONCE_STATE_UNKNOWN) return entry->due_ms;
    const once_handler_spec *handler = once_spec_handler_by_operation(spec, entry->scope.operation);
    return handler && once_handler_asks(handler) ? entry->due_ms : ONCE_NO_TIME;
}
