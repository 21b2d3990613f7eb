/* once_handle: claim, call, settle. `once_work`, one delivery under way, is shared with once_sqlite_handle and
 * once_postgres_handle.
 *
 * A claim is durable before the handler is called, with `hold` unless the caller sets retry_unknown. So a process that
 * dies in the handler leaves a claim, which becomes unknown when its lease is over, and never a second effect. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"
#include "lib/lib.h"

#include "base/banned.h"

/* ---- one delivery on its way ---- */

int once__work_begin(once_work *work, const once_backend *store, const once_scope *scope, const once_delivery *delivery,
                     once_error *err)
{
    assert(work && store);
    *work = (once_work){.store = store, .scope = scope, .delivery = delivery};
    const int rc = once__plan_make(store, scope, delivery, &work->arena, &work->plan, err);
    if (rc != ONCE_OK) return rc;
    once__reply_init(&work->reply, work->plan.terms.result_max);
    work->plan.request.scope = &work->plan.scope;
    work->plan.request.token = once__token_new(store->env);
    return ONCE_OK;
}

void once__work_release(once_work *work)
{
    once__reply_release(&work->reply);
    once_arena_release(&work->arena);
}

static once_retry retry_of(const once_terms *t)
{
    return (once_retry){
        .attempts = t->attempts, .for_ms = t->retry_for_ms, .min_ms = t->backoff_min_ms, .max_ms = t->backoff_max_ms};
}

/* `retry` must live as long. A handler may have been outside also where this one is not: keys are shared. */
static once_policy policy_of(const once_work *work, const once_retry *retry)
{
    return (once_policy){
        .retry = retry, .hold = !work->plan.terms.retry_unknown, .outside = true, .env = work->store->env};
}

/* What the handler's outcome means for the entry. The broker keeps messages that come again; the body of the others is
 * kept for the operator who looks at it. */
static void conclude(once_work *work, const once_policy *policy, once_outcome outcome)
{
    assert(work->called && work->decision.answer == ONCE_ANSWER_RUN);
    once_settlement *s = &work->settlement;
    *s = (once_settlement){.request = &work->plan.request,
                           .outcome = once__reply_outcome(&work->reply, outcome),
                           .delay_ms = work->reply.delay_ms};
    once_policy_judge(policy, &work->decision, s);
    if (once_outcome_is_final(s->outcome)) s->result = once_buf_bytes(&work->reply.result);
    if (s->outcome != ONCE_DONE) s->reason = once__reply_why(&work->reply, s->outcome);
    if (s->outcome == ONCE_DEAD || s->outcome == ONCE_UNKNOWN) s->message = &work->plan.message;
    s->failed = s->outcome == ONCE_DEAD;
}

void once__work_call(once_work *work, once_callback *callback, void *user, struct sqlite3 *db, struct pg_conn *pg,
                     once_keeper *keeper)
{
    assert(work->decision.answer == ONCE_ANSWER_RUN);
    const once_retry retry = retry_of(&work->plan.terms);
    const once_policy policy = policy_of(work, &retry);
    if (once_policy_is_spent(&policy, &work->decision)) {
        work->settlement = once_policy_spend(&policy, &work->decision, &work->arena);
        work->settlement.request = &work->plan.request;
        work->settlement.message = &work->plan.message;
        return;
    }
    once_outward idempotency_key;
    once__plan_outward_key(work->store, &work->plan, work->decision.old_key, idempotency_key);
    const once_call call = {.scope = work->scope,
                            .delivery = work->delivery,
                            .idempotency_key = idempotency_key,
                            .attempt = work->decision.attempt,
                            .failures = work->decision.failures,
                            .maybe_done = work->decision.maybe_done,
                            .db = db,
                            .pg = pg,
                            .internal = keeper};
    work->called = true;
    conclude(work, &policy, callback(user, &call, &work->reply));
}

/* The store has the body of the first message; the comparison may have used something else. */
static once_bytes reason_of(once_work *work)
{
    once_decision met = work->decision;
    once_first first;
    const once_bytes content = work->delivery->content;
    if (content.len && met.first) {
        first = *met.first;
        first.body = (once_bytes){0};
        met.first = &first;
    }
    const once_refused what = {.request = &work->plan.request,
                               .content = content.len ? content : work->plan.message.body,
                               .sent_unit = ONCE_UNIT_MS};
    return once_policy_refusal(&met, &what, work->store->secret, &work->arena);
}

bool once__work_letter(once_work *work, once_letter *out)
{
    const once_answer answer = work->decision.answer;
    if (!once_answer_is_refusal(answer)) return false;
    *out = (once_letter){
        .scope = work->plan.scope,
        .key = work->plan.request.key,
        .message = work->plan.message,
        .kind = answer,
        .old_key = work->decision.old_key,
        .key_id = work->plan.request.id,
        .fingerprint = work->plan.request.fingerprint,
        .reason = reason_of(work),
    };
    return true;
}

static void report_run(const once_work *work, once_verdict *v)
{
    assert(work->settlement.request == &work->plan.request);
    assert((unsigned)work->settlement.outcome < ONCE_OUTCOMES && work->settlement.delay_ms >= 0);
    const once_settlement *s = &work->settlement;
    v->answer = work->called ? ONCE_ANSWER_RUN : ONCE_ANSWER_DEAD;
    v->outcome = s->outcome;
    v->attempt = work->decision.attempt;
    v->failures = work->decision.failures;
    v->ack = once_outcome_is_decided(s->outcome);
    if (s->outcome == ONCE_UNKNOWN) v->wait_ms = -1;
    else if (!v->ack) v->wait_ms = s->delay_ms;
    v->result = s->result;
}

static void report_other(const once_decision *decision, once_verdict *v)
{
    assert(decision->answer != ONCE_ANSWER_RUN && decision->answer != ONCE_ANSWER_WAITING);
    v->answer = decision->answer;
    switch (decision->answer) {
    case ONCE_ANSWER_DUPLICATE:
        v->outcome = decision->outcome;
        v->was_duplicate = v->ack = true;
        v->result = decision->result;
        break;
    case ONCE_ANSWER_DEAD: /* suppressed, like every final outcome */
    case ONCE_ANSWER_CONFLICT:
    case ONCE_ANSWER_TOO_OLD: /* have a letter now */
        v->outcome = ONCE_DEAD;
        v->ack = true;
        break;
    case ONCE_ANSWER_UNKNOWN:
        v->outcome = ONCE_UNKNOWN;
        v->wait_ms = -1;
        break;
    default:
        v->outcome = ONCE_RELEASE;
        v->wait_ms = decision->wait_ms == ONCE_NEVER ? -1 : decision->wait_ms;
        break;
    }
}

int once__work_report(once_work *work, once_verdict *out, once_error *err)
{
    once_verdict v = {0};
    if (work->decision.answer == ONCE_ANSWER_RUN) report_run(work, &v);
    else report_other(&work->decision, &v);
    if (v.result.len) {
        char *copy = malloc(v.result.len);
        if (!copy) return once_no_memory(err, "for a result; it is stored, ask again");
        memcpy(copy, v.result.data, v.result.len);
        v.result.data = copy;
    } else {
        v.result = (once_bytes){0};
    }
    *out = v;
    return ONCE_OK;
}

void once_verdict_release(once_verdict *verdict)
{
    if (!verdict) return;
    free((char *)verdict->result.data);
    *verdict = (once_verdict){0};
}

/* ---- on a store ---- */

/* A passing failure (busy, a lost reply) is tried again for a moment: verbs repeated with their token are harmless, and
 * a settlement that is not written makes an unknown. */
typedef int once_verb(once_backend *inner, once_work *work, void *out, once_error *err);

static int persist(once_store *store, once_verb *verb, once_work *work, void *out, once_error *err)
{
    enum { TRIES = 8, PAUSE_MS = 2, PATIENCE_MS = 10000 };
    const once_env *env = store->inner->env;
    const int64_t began_ns = once_env_mono_ns(env);
    for (int try = 1;; try++) {
        once_backend *inner;
        int rc = once__guard_enter(store, &inner, err);
        if (rc != ONCE_OK) return rc;
        rc = verb(inner, work, out, err);
        once__guard_leave(store);
        const int64_t took_ms = (once_env_mono_ns(env) - began_ns) / 1000000;
        if (once_status_class(rc) != ONCE_CLASS_RETRY || try == TRIES || took_ms > PATIENCE_MS) return rc;
        once_env_sleep_ms(env, PAUSE_MS << (try - 1));
    }
}

static int claim(once_backend *inner, once_work *work, void *out, once_error *err)
{
    (void)out;
    const once_request *request = &work->plan.request;
    return inner->ops->claim(inner, &request, 1, &work->decision, &work->arena, err);
}

static int settle(once_backend *inner, once_work *work, void *applied, once_error *err)
{
    return inner->ops->settle(inner, &work->settlement, 1, applied, err);
}

static int bury(once_backend *inner, once_work *work, void *letter, once_error *err)
{
    bool fresh;
    (void)work;
    return inner->ops->bury(inner, letter, 1, &fresh, err);
}

int once__work_attach(once_backend *store, once_work *work, once_error *err)
{
    assert(work->decision.answer == ONCE_ANSWER_UNKNOWN);
    const once_request *request = &work->plan.request;
    const once_message *message = &work->plan.message;
    once_decision ignored;
    return store->ops->accept(store, &request, &message, 1, &ignored, &work->arena, err);
}

static int attach(once_backend *inner, once_work *work, void *out, once_error *err)
{
    (void)out;
    return once__work_attach(inner, work, err);
}

static int extend(once_backend *inner, once_work *work, void *out, once_error *err)
{
    once_request request = work->plan.request;
    bool *ours = out;
    const once_request *pointer = &request;
    return inner->ops->extend(inner, &pointer, 1, ours, err);
}

/* Whether an effect is about to begin after one that may have happened. */
static bool is_repeat(const once_work *work)
{
    assert(work->decision.answer == ONCE_ANSWER_RUN);
    const once_retry retry = retry_of(&work->plan.terms);
    const once_policy policy = policy_of(work, &retry);
    return work->decision.unreported && !once_policy_is_spent(&policy, &work->decision);
}

/* For `once status`, which shows consumers that a pipeline file can name; others are not counted. After a lost reply
 * it may be counted twice, but it is always counted. */
static int count_repeat(once_backend *inner, once_work *work, void *n, once_error *err)
{
    const once_bytes consumer = work->plan.scope.consumer;
    if (consumer.len > ONCE_NAME_MAX || memchr(consumer.data, 0, consumer.len)) return ONCE_OK;
    int rc = inner->ops->begin(inner, err);
    if (rc != ONCE_OK) return rc;
    rc = once_repeats_add(inner, consumer, *(const int64_t *)n, &work->arena, err);
    if (rc == ONCE_OK) return inner->ops->commit(inner, err);
    inner->ops->rollback(inner);
    return rc;
}

typedef struct store_keeper {
    once_keeper keeper;
    once_store *store;
    once_work *work;
} store_keeper;

static int keep(once_keeper *keeper, int64_t lease_ms, once_error *err)
{
    assert(lease_ms >= 0);
    const store_keeper *in = (const store_keeper *)keeper;
    bool ours = false;
    in->work->plan.request.lease_ms = lease_ms ? lease_ms : in->work->plan.terms.lease_ms;
    const int rc = persist(in->store, extend, in->work, &ours, err);
    return rc != ONCE_OK || ours ? rc : once__keeper_lost(err);
}

static int handle(once_store *store, once_work *work, once_callback *callback, void *user, once_error *err)
{
    once_letter letter;
    int rc = persist(store, claim, work, NULL, err);
    if (rc != ONCE_OK) return rc;
    if (once__work_letter(work, &letter)) return persist(store, bury, work, &letter, err);
    if (work->decision.answer == ONCE_ANSWER_UNKNOWN) return persist(store, attach, work, NULL, err);
    if (work->decision.answer != ONCE_ANSWER_RUN) return ONCE_OK;
    store_keeper keeper = {{keep}, store, work};
    bool applied = false, repeat = is_repeat(work);
    int64_t n = 1;
    if (repeat) /* before it begins, so that a process that dies in it is counted */
        rc = persist(store, count_repeat, work, &n, err);
    if (rc != ONCE_OK) return rc;
    once__work_call(work, callback, user, NULL, NULL, &keeper.keeper);
    rc = persist(store, settle, work, &applied, err);
    if (rc != ONCE_OK) return rc;
    if (!applied) return once__keeper_lost(err);
    n = -1; /* a release means that nothing began; when that cannot be written, the count is one too high */
    if (repeat && work->settlement.outcome == ONCE_RELEASE) (void)persist(store, count_repeat, work, &n, NULL);
    return ONCE_OK;
}

int once_handle(once_store *store, const once_scope *scope, const once_delivery *delivery, once_callback *callback,
                void *user, once_verdict *out, once_error *err)
{
    if (!store || !callback || !out)
        return once_fail(err, ONCE_E_USAGE, "once_handle needs a store, a callback and a place for the verdict");
    once_work work;
    int rc = once__work_begin(&work, store->inner, scope, delivery, err);
    if (rc == ONCE_OK) rc = handle(store, &work, callback, user, err);
    if (rc == ONCE_OK) rc = once__work_report(&work, out, err);
    once__work_release(&work);
    return rc;
}
