/* The public store: a guard around a backend, and the bare verbs. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/duration.h"
#include "base/json.h"
#include "base/no_memory.h"
#include "base/usage.h"
#include "core/fields.h"
#include "lib/lib.h"

#include "base/banned.h"

enum {
    LEASE_MS = 30000,
    ATTEMPTS = 12,
    BACKOFF_MIN_MS = 200,
    BACKOFF_MAX_MS = 60000,
    RESULT_MAX = 64 << 10,
    RESULT_MOST = 1 << 30
};
#define REMEMBER_MS (INT64_C(7) * 24 * 3600 * 1000)

/* ---- the guard ---- */

int once__store_guard(once_backend *inner, once_store **out, once_error *err)
{
    assert(inner && out);
    once_store *store = calloc(1, sizeof *store);
    if (!store || pthread_mutex_init(&store->lock, NULL) != 0) {
        free(store);
        once__store_close(inner);
        return once_no_memory(err, "for a store");
    }
    store->inner = inner;
    store->pid = getpid();
    *out = store;
    return ONCE_OK;
}

int once__guard_enter(once_store *store, once_backend **inner, once_error *err)
{
    assert(store->inner && inner);
    if (store->pid != getpid())
        return once_fail(err, ONCE_E_USAGE, "the store was opened before fork; open another one in this process");
    pthread_mutex_lock(&store->lock);
    *inner = store->inner;
    return ONCE_OK;
}

void once__guard_leave(once_store *store) { pthread_mutex_unlock(&store->lock); }

/* A dead letter or an unknown is the only copy of its message once the caller may ack it. */
static int check_owns(once_backend *inner, once_error *err)
{
    char kept[400] = "";
    if (inner->bits & ONCE_STORE_OWNS) return ONCE_OK;
    if (inner->ops->describe) inner->ops->describe(inner, kept, sizeof kept);
    return once_fail(err, ONCE_E_CONFIG, "store '%s:' could lose messages that it was given (%s)", inner->ops->scheme,
                     kept);
}

int once_store_open(const char *url, const once_open_options *options, once_store **out, once_error *err)
{
    once_open_options how;
    if (!url || !out) return once_fail(err, ONCE_E_USAGE, "once_store_open needs a URL and a place for the store");
    int rc = once_sized_read("once_open_options", options, &how, sizeof how, err);
    if (rc != ONCE_OK) return rc;
    if (how.busy_ms < 0) return once_fail(err, ONCE_E_USAGE, "busy_ms is negative");
    const once_store_options inside = {.size = sizeof inside, .create = !how.must_exist, .busy_ms = how.busy_ms};
    once_backend *inner;
    rc = once__store_open(url, &inside, &inner, err);
    if (rc != ONCE_OK) return rc;
    rc = check_owns(inner, err);
    if (rc == ONCE_OK) return once__store_guard(inner, out, err);
    once__store_close(inner);
    return rc;
}

void once_store_close(once_store *store)
{
    if (!store || store->pid != getpid()) return; /* closing the parent's file here would drop its locks */
    once__store_close(store->inner);
    pthread_mutex_destroy(&store->lock);
    free(store);
}

/* ---- from a delivery to a request ---- */

int once__terms_read(const once_terms *from, once_terms *out, once_error *err)
{
    assert(out);
    once_terms t;
    const int rc = once_sized_read("once_terms", from, &t, sizeof t, err);
    if (rc != ONCE_OK) return rc;
    if (t.lease_ms < 0 || t.remember_ms < 0 || t.backoff_min_ms < 0 || t.backoff_max_ms < 0 || t.retry_for_ms < 0)
        return once_fail(err, ONCE_E_USAGE, "once_terms holds a negative time");
    if (!t.lease_ms) t.lease_ms = LEASE_MS;
    if (!t.remember_ms) t.remember_ms = REMEMBER_MS;
    if (!t.attempts) t.attempts = t.retry_for_ms ? ONCE_ANY_ATTEMPTS : ATTEMPTS;
    if (!t.backoff_min_ms)
        t.backoff_min_ms = t.backoff_max_ms && t.backoff_max_ms < BACKOFF_MIN_MS ? t.backoff_max_ms : BACKOFF_MIN_MS;
    if (!t.backoff_max_ms) t.backoff_max_ms = t.backoff_min_ms > BACKOFF_MAX_MS ? t.backoff_min_ms : BACKOFF_MAX_MS;
    if (t.backoff_min_ms > t.backoff_max_ms)
        return once_fail(err, ONCE_E_USAGE, "backoff_min_ms is above backoff_max_ms");
    if (!t.result_max) t.result_max = RESULT_MAX;
    if (t.result_max > RESULT_MOST) return once_fail(err, ONCE_E_USAGE, "result_max is above 1 GiB");
    if (once_bytes_lie(t.idempotency_salt))
        return once_fail(err, ONCE_E_USAGE, "idempotency_salt has a length and no address");
    if (t.idempotency_salt.len && !once_salt_fits(t.idempotency_salt))
        return once_fail(err, ONCE_E_USAGE, "idempotency_salt is shorter than %u bytes, or only white space",
                         ONCE_SALT_MIN);
    *out = t;
    return ONCE_OK;
}

once_message once__message_of(const once_delivery *d)
{
    return (once_message){.body = d->body,
                          .headers = d->headers,
                          .type = d->type,
                          .at = {d->place, d->point},
                          .sent_ms = d->sent_ms == 0 ? ONCE_NO_TIME : d->sent_ms};
}

/* By the same rule as a pipeline's `fingerprint: body`, so that both may work on one store. */
static int fingerprint(once_secret secret, once_bytes content, once_request *r, once_error *err)
{
    once_hash *out = &r->fingerprint;
    once_json json;
    once_json_error bad;
    const once_json_options options = {.seed = secret.k1};
    once_json_init(&json);
    const int rc = once_json_parse(&json, content, &options, &bad);
    if (rc == ONCE_OK) *out = once_fields_of_body(&json, secret.k0, &r->fields);
    else if (rc == ONCE_E_MESSAGE) *out = once_xxh128(secret.k0, content.data, content.len);
    once_json_release(&json);
    if (rc != ONCE_OK && rc != ONCE_E_MESSAGE) return once_no_memory(err, "for a delivery");
    if (once_hash_is_zero(*out)) out->b = 1; /* zero means none */
    return ONCE_OK;
}

static int check_bytes(const once_scope *scope, const once_delivery *d, once_error *err)
{
    const once_bytes all[] = {scope->consumer, scope->tenant, scope->operation, d->key,   d->body,
                              d->content,      d->type,       d->headers,       d->place, d->point};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (once_bytes_lie(all[i]))
            return once_fail(err, ONCE_E_USAGE,
                             "a field of the scope or the delivery has a length, but its data is NULL");
    return ONCE_OK;
}

int once__plan_make(const once_backend *store, const once_scope *scope, const once_delivery *delivery,
                    once_arena *arena, once_plan *out, once_error *err)
{
    once_delivery d;
    if (!scope || !delivery) return once_fail(err, ONCE_E_USAGE, "a scope and a delivery are needed");
    int rc = once_sized_read("once_delivery", delivery, &d, sizeof d, err);
    *out = (once_plan){.scope = *scope};
    if (rc == ONCE_OK) rc = check_bytes(scope, &d, err);
    if (rc == ONCE_OK) rc = once__terms_read(d.terms, &out->terms, err);
    if (rc != ONCE_OK) return rc;
    if (scope->consumer.len == 0) return once_fail(err, ONCE_E_USAGE, "the scope has no consumer");
    if (d.key.len == 0) return once_fail(err, ONCE_E_MESSAGE, "the key is empty");
    if (d.sent_ms != ONCE_NO_TIME && !once_time_is_sane(d.sent_ms))
        return once_fail(err, ONCE_E_MESSAGE, "sent_ms, %" PRId64 ", is not in the years 1 to 9999", d.sent_ms);
    if (out->scope.operation.len == 0) out->scope.operation = ONCE_BYTES("handler");
    out->message = once__message_of(&d);

    once_request *r = &out->request;
    r->lane.gap_ms = -1;
    r->id = once_key_id(store->secret, &out->scope, d.key);
    r->lease_ms = out->terms.lease_ms;
    r->remember_ms = out->terms.remember_ms;
    r->hold = !out->terms.retry_unknown;
    r->sent_ms = out->message.sent_ms;
    r->at = out->message.at;
    if (!once_key_show(arena, d.key, &r->key)) return once_no_memory(err, "for a delivery");
    const once_bytes content = d.content.len ? d.content : d.body;
    if (d.any_content || content.len == 0) return ONCE_OK;
    return fingerprint(store->secret, content, r, err);
}

void once__plan_outward_key(const once_backend *store, const once_plan *plan, bool old_key, once_outward out)
{
    const once_keying keying = {.secret = store->secret, .salt = plan->terms.idempotency_salt};
    once_outward_key(&keying, &plan->scope, plan->request.key, plan->request.id, old_key, out);
}

once_token once__token_new(const once_env *env)
{
    once_token token;
    do {
        token.a = once_env_random_u64(env);
        token.b = once_env_random_u64(env);
    } while (once_hash_is_zero(token));
    return token;
}

/* ---- the verbs ---- */

static once_request request_of(const once_ticket *ticket)
{
    return (once_request){.id = {ticket->id[0], ticket->id[1]},
                          .token = {ticket->token[0], ticket->token[1]},
                          .lane = {.gap_ms = -1},
                          .lease_ms = ticket->lease_ms,
                          .remember_ms = ticket->remember_ms,
                          .sent_ms = ticket->sent_ms};
}

static int fill_ticket(const once_backend *store, once_ticket *ticket, const once_plan *plan,
                       const once_decision *decision, once_error *err)
{
    assert(ticket->token[0] | ticket->token[1]);
    assert(decision->answer != ONCE_ANSWER_WAITING && (unsigned)decision->answer < ONCE_ANSWERS);
    char *copy = NULL;
    if (decision->result.len) {
        copy = malloc(decision->result.len);
        if (!copy) return once_no_memory(err, "for a delivery");
        memcpy(copy, decision->result.data, decision->result.len);
    }
    free((char *)ticket->result.data); /* of an earlier answer to the same ticket */
    ticket->result = (once_bytes){copy, decision->result.len};
    ticket->answer = decision->answer;
    ticket->outcome = decision->outcome;
    ticket->attempt = decision->attempt;
    ticket->failures = decision->failures;
    ticket->failing_for_ms = decision->answer == ONCE_ANSWER_RUN ? decision->failing_for_ms : -1;
    ticket->maybe_done = decision->maybe_done;
    ticket->wait_ms = decision->wait_ms == ONCE_NEVER ? -1 : decision->wait_ms;
    ticket->remember_ms = plan->terms.remember_ms;
    ticket->lease_ms = plan->terms.lease_ms;
    ticket->sent_ms = plan->message.sent_ms;
    once__plan_outward_key(store, plan, decision->old_key, ticket->idempotency_key);
    return ONCE_OK;
}

static int claim_in(once_store *store, const once_scope *scope, const once_delivery *deliveries, size_t n,
                    once_ticket *tickets, once_arena *arena, once_error *err)
{
    once_plan *plans = once_arena_new(arena, once_plan, n);
    const once_request **requests = once_arena_alloc(arena, n * sizeof *requests);
    once_decision *decisions = once_arena_new(arena, once_decision, n);
    if (!plans || !requests || !decisions) return once_no_memory(err, "for a delivery");
    for (size_t i = 0; i < n; i++) {
        const int rc = once__plan_make(store->inner, scope, &deliveries[i], arena, &plans[i], err);
        if (rc != ONCE_OK) return rc;
        once_ticket *t = &tickets[i];
        if (!(t->token[0] | t->token[1])) {
            const once_token token = once__token_new(store->inner->env);
            t->token[0] = token.a;
            t->token[1] = token.b;
        }
        once_request *r = &plans[i].request;
        r->scope = &plans[i].scope;
        r->token = (once_token){t->token[0], t->token[1]};
        t->id[0] = r->id.a;
        t->id[1] = r->id.b;
        requests[i] = r;
    }
    once_backend *inner;
    int rc = once__guard_enter(store, &inner, err);
    if (rc != ONCE_OK) return rc;
    rc = inner->ops->claim(inner, requests, n, decisions, arena, err);
    once__guard_leave(store);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++)
        rc = fill_ticket(store->inner, &tickets[i], &plans[i], &decisions[i], err);
    return rc;
}

int once_claim(once_store *store, const once_scope *scope, const once_delivery *deliveries, size_t n,
               once_ticket *tickets, once_error *err)
{
    once_arena arena = {0};
    if (!store || (n && (!deliveries || !tickets)))
        return once_fail(err, ONCE_E_USAGE, "once_claim needs a store, deliveries and tickets");
    if (n == 0) return ONCE_OK;
    const int rc = claim_in(store, scope, deliveries, n, tickets, &arena, err);
    once_arena_release(&arena);
    return rc;
}

int once_extend(once_store *store, const once_ticket *tickets, size_t n, int64_t lease_ms, bool *ours, once_error *err)
{
    if (!store || (n && (!tickets || !ours)))
        return once_fail(err, ONCE_E_USAGE, "once_extend needs a store, tickets and a place for answers");
    if (lease_ms <= 0) return once_fail(err, ONCE_E_USAGE, "a lease must be longer than 0 ms");
    if (n == 0) return ONCE_OK;
    once_arena arena = {0};
    once_request *requests = once_arena_new(&arena, once_request, n);
    const once_request **pointers = once_arena_alloc(&arena, n * sizeof *pointers);
    bool *answers = once_arena_new(&arena, bool, n);
    size_t *at = once_arena_new(&arena, size_t, n), count = 0;
    int rc = requests && pointers && answers && at ? ONCE_OK : once_no_memory(err, "for a delivery");
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        if (tickets[i].answer != ONCE_ANSWER_RUN || !(tickets[i].token[0] | tickets[i].token[1])) continue;
        requests[count] = request_of(&tickets[i]);
        requests[count].lease_ms = lease_ms;
        pointers[count] = &requests[count];
        at[count++] = i;
    }
    once_backend *inner;
    if (rc == ONCE_OK) rc = once__guard_enter(store, &inner, err);
    if (rc == ONCE_OK) {
        rc = inner->ops->extend(inner, pointers, count, answers, err);
        once__guard_leave(store);
    }
    if (rc == ONCE_OK) {
        memset(ours, 0, n * sizeof *ours);
        for (size_t i = 0; i < count; i++) ours[at[i]] = answers[i];
    }
    once_arena_release(&arena);
    return rc;
}

static int read_ending(const once_ticket *ticket, const once_ending *ending, once_message *message,
                       once_settlement *out, once_error *err)
{
    assert(ticket && ending && out);
    if (ticket->answer != ONCE_ANSWER_RUN || !(ticket->token[0] | ticket->token[1]))
        return once_fail(err, ONCE_E_USAGE, "a ticket that did not answer RUN cannot be settled");
    if ((unsigned)ending->outcome >= ONCE_OUTCOMES || ending->delay_ms < 0)
        return once_fail(err, ONCE_E_USAGE, "an ending with an unknown outcome or a negative delay");
    if (once_bytes_lie(ending->result) || once_bytes_lie(ending->reason))
        return once_fail(err, ONCE_E_USAGE, "a field of the ending has a length, but its data is NULL");
    *out = (once_settlement){.outcome = ending->outcome,
                             .result = ending->result,
                             .reason = ending->reason,
                             .delay_ms = ending->delay_ms,
                             .failed = ending->outcome == ONCE_DEAD};
    if (!ending->message || (ending->outcome != ONCE_DEAD && ending->outcome != ONCE_UNKNOWN)) return ONCE_OK;
    once_delivery d;
    const int rc = once_sized_read("once_delivery", ending->message, &d, sizeof d, err);
    if (rc != ONCE_OK) return rc;
    if (once_bytes_lie(d.body) || once_bytes_lie(d.headers) || once_bytes_lie(d.type) || once_bytes_lie(d.place) ||
        once_bytes_lie(d.point))
        return once_fail(err, ONCE_E_USAGE, "a field of the message of the ending has a length, but its data is NULL");
    *message = once__message_of(&d);
    out->message = message;
    return ONCE_OK;
}

int once_settle(once_store *store, const once_ticket *tickets, const once_ending *endings, size_t n, bool *applied,
                once_error *err)
{
    if (!store || (n && (!tickets || !endings || !applied)))
        return once_fail(err, ONCE_E_USAGE, "once_settle needs a store, tickets, endings and a place for answers");
    if (n == 0) return ONCE_OK;
    once_arena arena = {0};
    once_request *requests = once_arena_new(&arena, once_request, n);
    once_settlement *settlements = once_arena_new(&arena, once_settlement, n);
    once_message *messages = once_arena_new(&arena, once_message, n);
    bool *answers = once_arena_new(&arena, bool, n);
    int rc = requests && settlements && messages && answers ? ONCE_OK : once_no_memory(err, "for a delivery");
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        rc = read_ending(&tickets[i], &endings[i], &messages[i], &settlements[i], err);
        requests[i] = request_of(&tickets[i]);
        settlements[i].request = &requests[i];
    }
    once_backend *inner;
    if (rc == ONCE_OK) rc = once__guard_enter(store, &inner, err);
    if (rc == ONCE_OK) {
        rc = inner->ops->settle(inner, settlements, n, answers, err);
        once__guard_leave(store);
    }
    if (rc == ONCE_OK && n) memcpy(applied, answers, n * sizeof *applied);
    once_arena_release(&arena);
    return rc;
}

void once_ticket_release(once_ticket *tickets, size_t n)
{
    for (size_t i = 0; tickets && i < n; i++) {
        free((char *)tickets[i].result.data);
        tickets[i] = (once_ticket){0};
    }
}
