/* The verbs of a batch, and the actions on the source (runtime/executor.h). */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/failpoint.h"
#include "base/no_memory.h"
#include "core/policy.h"
#include "core/print.h"
#include "runtime/executor_impl.h"

#include "base/banned.h"

#define SWEEP_STEP 1000

void once_executor_init(once_executor *executor, once_backend *store, once_bytes consumer, once_run_effects *run,
                        void *user)
{
    assert(store && consumer.len > 0);
    *executor = (once_executor){.store = store,
                                .consumer = consumer,
                                .run = run,
                                .user = user,
                                .newest_ms = ONCE_NO_TIME,
                                .newest_kept_ms = ONCE_NO_TIME,
                                .newest_limit_ms = INT64_MAX};
    once_message_log_init(&executor->log);
    once_message_log_init(&executor->log_in_doubt);
}

void once_executor_release(once_executor *executor)
{
    once_message_log_write(&executor->log_in_doubt);
    once_unconfirmed_end(&executor->unconfirmed, &executor->keying);
    once_arena_release(&executor->arena);
    once_arena_release(&executor->scratch);
    once_message_log_release(&executor->log);
    once_message_log_release(&executor->log_in_doubt);
}

const once_request **once__requests_of(once_executor *x, const once_action *a)
{
    assert(a->n == 0 || a->items);
    const once_request **requests = once_arena_alloc(&x->scratch, (a->n + 1) * sizeof *requests);
    for (size_t i = 0; requests && i < a->n; i++) requests[i] = &a->items[i]->request;
    return requests;
}

static once_touch_kind touch_of(const once_item *item)
{
    const bool outside = item->handler && once_handler_external(item->handler);
    const bool runs = !outside || once_item_has_then(item);
    if (item->held || (item->returned && !item->unclaimed)) return runs ? ONCE_TOUCH_HELD : ONCE_TOUCH_KEEP;
    if (item->stage == ONCE_STAGE_ACCEPT) return ONCE_TOUCH_ACCEPT;
    return outside ? ONCE_TOUCH_LANE : ONCE_TOUCH_CLAIM;
}

static int compare_locks(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* The locks of all messages whose effects may run in the transaction, sorted and without duplicates. */
static bool gather_locks(once_executor *x, const once_action *a, uint64_t **out, size_t *n)
{
    size_t all = 0, count = 0;
    for (size_t i = 0; i + a->n_extend < a->n; i++) all += a->items[i]->n_locks;
    uint64_t *locks = *out = once_arena_new(&x->scratch, uint64_t, all + 1);
    if (!locks) return false;
    for (size_t i = 0; i + a->n_extend < a->n; i++) {
        if (a->items[i]->n_locks) memcpy(locks + count, a->items[i]->locks, a->items[i]->n_locks * sizeof *locks);
        count += a->items[i]->n_locks;
    }
    if (count) qsort(locks, count, sizeof *locks, compare_locks);
    assert(count == all);
    *n = 0;
    for (size_t i = 0; i < count; i++)
        if (*n == 0 || locks[*n - 1] != locks[i]) locks[(*n)++] = locks[i];
    return true;
}

static int expect(once_executor *x, const once_action *a, once_error *err)
{
    once_touch *touched = once_arena_new(&x->scratch, once_touch, a->n + 1);
    uint64_t *locks;
    size_t n = 0, n_locks;
    if (!touched || !gather_locks(x, a, &locks, &n_locks)) return once_no_memory(err, "for a batch");
    for (size_t i = 0; i < a->n; i++) {
        const bool work = i + a->n_extend < a->n; /* of the extended ones only the request may be read here */
        if (work && once_hash_is_zero(a->items[i]->request.id)) continue;
        touched[n++] = (once_touch){&a->items[i]->request, work ? touch_of(a->items[i]) : ONCE_TOUCH_KEEP};
    }
    return x->store->ops->expect(x->store, touched, n, a->due, locks, n_locks, err);
}

static int do_begin(once_executor *x, once_action *a, once_error *err)
{
    assert(!x->in_tx && a->n_extend <= a->n); /* E1 */
    const int rc = x->store->ops->begin(x->store, err);
    a->tx_open = rc == ONCE_OK;
    return rc == ONCE_OK && x->store->ops->expect ? expect(x, a, err) : rc;
}

/* What a transaction begins with. */
static void forget_last(once_executor *x)
{
    x->waiting.n = 0;
    once_arena_reset(&x->arena);
    once_message_log_clear(&x->log);
    x->newest_ms = ONCE_NO_TIME;
    if (x->facts) x->facts->transaction++;
    x->wrote = false;
    x->settled = 0;
    x->denied = NULL;
}

/* Claims outside of a transaction commit by themselves; no answer came. */
static void add_unconfirmed(once_executor *x, const once_action *a, const once_decision *decisions)
{
    for (size_t i = 0; i < a->n && !x->in_tx; i++) {
        once_item item = *a->items[i];
        item.decision = decisions[i];
        if (item.decision.lapsed) once_unconfirmed_add(&x->unconfirmed, &item, &x->keying);
    }
}

static int do_claim(once_executor *x, once_action *a, once_error *err)
{
    assert(x->in_tx || a->n == 1); /* after a crash messages are claimed one by one, durably */
    const once_request **requests = once__requests_of(x, a);
    once_decision *decisions = once_arena_new(&x->scratch, once_decision, a->n);
    if (!requests || !decisions) return once_no_memory(err, "for a batch");
    CHECK_POINT(claim_before, err);
    int rc = x->store->ops->claim(x->store, requests, a->n, decisions, &x->arena, err);
    if (rc != ONCE_OK) add_unconfirmed(x, a, decisions);
    if (rc == ONCE_OK) rc = once__keep_items(x, a, err);
    if (rc != ONCE_OK) return rc;
    CHECK_POINT(claim_after, err);
    for (size_t i = 0; i < a->n; i++) {
        a->items[i]->decision = decisions[i];
        if (!decisions[i].unclaimed) once_request_print(&a->items[i]->request, x->store->secret);
        x->wrote |= decisions[i].answer == ONCE_ANSWER_RUN && !decisions[i].unclaimed;
        x->met_busy |= decisions[i].answer == ONCE_ANSWER_BUSY;
        once__note_lapsed(x, a->items[i]);
        if (decisions[i].own &&
            decisions[i].answer == ONCE_ANSWER_DEAD) /* we settled it, and lost the line with the commit's answer */
            once__note(x, ONCE_LOG_WARN, "dead", a->items[i], decisions[i].reason);
    }
    once__note_replaced(x, a);
    once__note_times(x, requests, a->n);
    if (!x->in_tx) once_message_log_write(&x->log); /* the claim itself has committed */
    return ONCE_OK;
}

static int do_extend(once_executor *x, once_action *a, once_error *err)
{
    assert(x->in_tx && (a->n_extend == 0 || a->n_extend == a->n));
    const once_request **requests = once__requests_of(x, a);
    bool *ours = once_arena_new(&x->scratch, bool, a->n);
    if (!requests || !ours) return once_no_memory(err, "for a batch");
    const int rc = x->store->ops->extend(x->store, requests, a->n, ours, err);
    for (size_t i = 0; rc == ONCE_OK && i < a->n; i++) {
        a->items[i]->granted = ours[i];
        if (!ours[i] && !a->n_extend && !a->items[i]->returned) /* of one that is back, its settlement tells more */
            once__log_fenced(x, a->items[i],
                             "its lease expired, and another worker may have claimed it; its effect is not committed");
    }
    return rc;
}

/* The items that the store must hear of. Of the others nothing is kept, so they count as settled. */
static size_t gather_told(once_executor *x, const once_action *a, once_item **told)
{
    size_t n = 0;
    for (size_t i = 0; i < a->n; i++) {
        once_item *item = a->items[i];
        if (!once_item_leaves_nothing(item)) {
            told[n++] = item;
            continue;
        }
        item->granted = true;
        x->settled++;
    }
    return n;
}

static void note_settled(once_executor *x, once_item *item, bool applied, bool known)
{
    item->granted = applied;
    x->settled += applied && once_outcome_is_decided(item->outcome);
    if (applied) once__note_ending(x, item, known);
    else if (once_item_may_be_settled(item)) return; /* it is settled once more, which tells */
    else if (!item->returned)
        once__log_fenced(x, item, "its lease expired before the outcome was recorded; its effect is not committed");
    else
        once__note(x, ONCE_LOG_WARN, "fenced", item,
                   ONCE_BYTES("its lease expired before the outcome was recorded; its effect has run, or was "
                              "ended, and the worker that has claimed it since decides"));
}

static int do_settle(once_executor *x, once_action *a, once_error *err)
{
    assert(x->in_tx);
    once_settlement *settlements = once_arena_new(&x->scratch, once_settlement, a->n);
    once_item **told = once_arena_alloc(&x->scratch, a->n * sizeof(*told));
    bool *applied = once_arena_new(&x->scratch, bool, a->n), *known = once_arena_new(&x->scratch, bool, a->n);
    if (!settlements || !told || !applied || !known) return once_no_memory(err, "for a batch");
    const size_t n = gather_told(x, a, told);
    for (size_t i = 0; i < n; i++) {
        const once_item *item = told[i];
        settlements[i] = (once_settlement){
            .request = &item->request,
            .outcome = item->outcome,
            .result = item->result,
            .reason = item->failure,
            .delay_ms = item->delay_ms,
            .failed = item->started,
            .maybe_done = item->maybe_done,
            .asked = item->decision.asks,
            .message = once_outcome_is_final(item->outcome) ? NULL : &item->message,
            .was_unknown = &known[i],
        };
    }
    CHECK_POINT(settle_before, err);
    const int rc = n ? x->store->ops->settle(x->store, settlements, n, applied, err) : ONCE_OK;
    if (rc != ONCE_OK) return rc;
    CHECK_POINT(settle_after, err);
    x->wrote |= n > 0;
    for (size_t i = 0; i < n; i++) note_settled(x, told[i], applied[i], known[i]);
    return ONCE_OK;
}

static int do_accept(once_executor *x, once_action *a, once_error *err)
{
    assert(x->in_tx);
    const once_request **requests = once__requests_of(x, a);
    const once_message **messages = once_arena_alloc(&x->scratch, a->n * sizeof *messages);
    once_decision *decisions = once_arena_new(&x->scratch, once_decision, a->n);
    if (!requests || !messages || !decisions) return once_no_memory(err, "for a batch");
    for (size_t i = 0; i < a->n; i++) messages[i] = &a->items[i]->message;
    CHECK_POINT(accept_before, err);
    int rc = x->store->ops->accept(x->store, requests, messages, a->n, decisions, &x->arena, err);
    if (rc == ONCE_OK) rc = once__keep_items(x, a, err);
    if (rc != ONCE_OK) return rc;
    CHECK_POINT(accept_after, err);
    x->wrote = true;
    for (size_t i = 0; i < a->n; i++) {
        const bool told = a->items[i]->decision.answer == ONCE_ANSWER_UNKNOWN; /* by its claim, in this transaction */
        a->items[i]->decision = decisions[i];
        x->met_busy |= decisions[i].answer == ONCE_ANSWER_BUSY;
        if (!told) once__note_lapsed(x, a->items[i]);
    }
    once__note_replaced(x, a);
    once__note_times(x, requests, a->n);
    return ONCE_OK;
}

/* The reason of a letter. That of a conflict or an age is put into words here, because only a letter shows it. */
static once_bytes reason_of(once_executor *x, const once_item *item)
{
    if (item->message.cut_from || !once_answer_is_refusal(item->decision.answer)) return item->reason;
    const once_refused what = {.request = &item->request,
                               .fingerprint = item->handler ? &item->handler->fingerprint : NULL,
                               .content = item->message.body,
                               .sent_text = item->sent_text,
                               .sent_unit = item->sent_unit};
    return once_policy_refusal(&item->decision, &what, x->store->secret, &x->scratch);
}

static int do_bury(once_executor *x, once_action *a, once_error *err)
{
    assert(x->in_tx);
    once_letter *letters = once_arena_new(&x->scratch, once_letter, a->n);
    bool *fresh = once_arena_new(&x->scratch, bool, a->n);
    if (!letters || !fresh) return once_no_memory(err, "for a batch");
    for (size_t i = 0; i < a->n; i++) {
        const once_item *item = a->items[i];
        letters[i] = (once_letter){
            .scope = {item->scope.tenant, x->consumer, item->scope.operation},
            .key = item->request.key,
            .message = item->message,
            .reason = reason_of(x, item),
            .kind = item->message.cut_from ? ONCE_ANSWER_CUT : item->decision.answer,
            .old_key = item->decision.old_key,
            .key_id = item->request.id,
            .fingerprint = item->request.fingerprint,
        };
    }
    CHECK_POINT(bury_before, err);
    int rc = x->store->ops->bury(x->store, letters, a->n, fresh, err);
    if (rc == ONCE_OK) rc = once__keep_items(x, a, err);
    if (rc != ONCE_OK) return rc;
    CHECK_POINT(bury_after, err);
    x->wrote = true;
    for (size_t i = 0; i < a->n; i++) {
        a->items[i]->granted = fresh[i];
        if (fresh[i] || a->items[i]->commit_unknown)
            once__note(x, ONCE_LOG_WARN, "dead", a->items[i], letters[i].reason);
    }
    return ONCE_OK;
}

static int do_count(once_executor *x, once_action *a, once_error *err)
{
    assert(!x->in_tx);
    const int rc = x->store->ops->waiting_size(x->store, x->consumer, &a->size, err);
    return rc == ONCE_OK && a->due ? once__do_stats(x, a, err) : rc;
}

static int do_sweep(once_executor *x, once_action *a, once_error *err)
{
    assert(!x->in_tx);
    once_sweep_result swept;
    const int rc = x->store->ops->sweep(x->store, SWEEP_STEP, &swept, err);
    if (rc != ONCE_OK) return rc;
    a->more = swept.more;
    a->wait_ms = swept.pause_ms;
    return ONCE_OK;
}

/* Keeps the lines for the next pass, which has the same messages (E2). */
static void keep_log_in_doubt(once_executor *x)
{
    assert(x->in_tx); /* E2: the commit of this transaction */
    const once_message_log said = x->log;
    once_message_log_clear(&x->log_in_doubt);
    x->log = x->log_in_doubt;
    x->log_in_doubt = said;
}

static int commit_batch(once_executor *x, once_action *a, bool renews, once_error *err)
{
    assert(x->in_tx && (!renews || x->worker));
    a->tx_open = true;
    int rc = once__keep_facts(x, a, renews, err);
    if (rc != ONCE_OK) return rc;
    CHECK_POINT(commit_before, err);
    a->tx_open = false;
    rc = x->store->ops->commit(x->store, err);
    if (rc == ONCE_E_UNAVAILABLE || rc == ONCE_E_COMMIT_UNKNOWN) keep_log_in_doubt(x);
    return rc;
}

static int do_commit(once_executor *x, once_action *a, once_error *err)
{
    /* What was settled and leaves nothing moves the cursor; that is written only beside a record that did not go back.
     */
    const bool renews = x->worker && (x->wrote || (x->settled && a->n_last));
    x->settled += a->ended;
    if (x->worker) x->worker->done += x->settled;
    const int rc = commit_batch(x, a, renews, err);
    if (rc != ONCE_OK) {
        assert(!x->worker || x->worker->done >= x->settled);
        if (x->worker) x->worker->done -= x->settled;
        return rc;
    }
    if (renews) once__renewed(x);
    once_message_log_write(&x->log);
    once_message_log_clear(&x->log_in_doubt);
    a->renewed = renews;
    CHECK_POINT(commit_after, err);
    return ONCE_OK;
}

static int ask_absent(once_executor *x, once_action *a, once_error *err)
{
    const once_request **requests = once__requests_of(x, a);
    bool *absent = once_arena_new(&x->scratch, bool, a->n);
    if (!requests || !absent) return once_no_memory(err, "for a batch");
    CHECK_POINT(claim_before, err);
    int rc = x->store->ops->absent(x->store, requests, a->n, absent, err);
    if (rc == ONCE_OK) rc = once__keep_items(x, a, err);
    if (rc != ONCE_OK) return rc;
    CHECK_POINT(claim_after, err);
    for (size_t i = 0; i < a->n; i++) a->items[i]->granted = absent[i];
    once__note_times(x, requests, a->n);
    rc = once__keep_facts(x, a, false, err);
    if (rc != ONCE_OK) return rc;
    CHECK_POINT(commit_before, err);
    a->tx_open = false;
    return x->store->ops->commit(x->store, err);
}

/* It writes nothing about the messages, so nothing has happened when it fails. */
static int do_absent(once_executor *x, once_action *a, once_error *err)
{
    assert(!x->in_tx && x->store->ops->absent); /* E1 */
    forget_last(x);
    int rc = x->store->ops->begin(x->store, err);
    if (rc != ONCE_OK) return rc;
    x->in_tx = a->tx_open = true;
    rc = ask_absent(x, a, err);
    if (a->tx_open) x->store->ops->rollback(x->store);
    x->in_tx = a->tx_open = false;
    return rc;
}

/* A permission was revoked: replaces the error by one that says which, as `once check` does. The transaction is lost
 * anyway. */
static void explain_denied(const once_executor *x, once_action *a)
{
    assert(a->kind != ONCE_ACT_NONE);
    once_error why;
    if (a->status != ONCE_E_DENIED || !x->store->ops->inspect) return;
    x->store->ops->rollback(x->store);
    if (x->store->ops->inspect(x->store, &why) == ONCE_E_DENIED) a->error = why;
}

static void note_denied(once_executor *x, const once_action *a)
{
    for (size_t i = 0; i < a->n && !x->denied; i++)
        if (a->items[i]->run_failure == ONCE_E_DENIED) x->denied = a->items[i];
}

/* Permission was denied to an effect of the transaction that was committed: its reason says in addition what the owner
 * can do, as `once check` says it. */
static void advise_denied(once_executor *x)
{
    static const char advice[] = "; let the owner run: ";
    once_item *item = x->denied;
    once_error why, whole;
    assert(!x->in_tx);
    x->denied = NULL;
    if (!item || !x->store->ops->inspect || x->store->ops->inspect(x->store, &why) != ONCE_E_DENIED) return;
    const char *from = strstr(why.text, advice);
    if (!from || !memmem(item->failure.data, item->failure.len, why.text, (size_t)(from - why.text))) return;
    (void)once_fail(&whole, ONCE_E_DENIED, "%.*s%s", (int)item->failure.len, item->failure.data, from);
    (void)once_arena_copy(&x->arena, (once_bytes){whole.text, strlen(whole.text)}, &item->failure);
}

void once_execute_store(once_executor *x, once_action *a)
{
    once_error *err = &a->error;
    err->text[0] = 0;
    once_arena_reset(&x->scratch);
    if (a->kind == ONCE_ACT_BEGIN || a->kind == ONCE_ACT_ABSENT || a->kind == ONCE_ACT_TAKE ||
        a->kind == ONCE_ACT_RENEW) {
        (void)once__look_for_gone(x, x->met_busy);
        once__look_for_lapsed(x, false);
    }
    switch (a->kind) {
    case ONCE_ACT_BEGIN:
        forget_last(x);
        a->status = do_begin(x, a, err);
        x->in_tx = a->tx_open;
        break;
    case ONCE_ACT_ABSENT: a->status = do_absent(x, a, err); break;
    case ONCE_ACT_FIND: a->status = once__do_find(x, a, err); break;
    case ONCE_ACT_CLAIM: a->status = do_claim(x, a, err); break;
    case ONCE_ACT_EXTEND: a->status = do_extend(x, a, err); break;
    case ONCE_ACT_RUN:
        assert(x->in_tx && a->n > 0);
        a->status = x->run(x->user, a->items, a->n, a->careful, a->blame, &x->arena, &a->failed, err);
        if (a->status == ONCE_OK) note_denied(x, a);
        break;
    case ONCE_ACT_SETTLE: a->status = do_settle(x, a, err); break;
    case ONCE_ACT_ACCEPT: a->status = do_accept(x, a, err); break;
    case ONCE_ACT_BURY: a->status = do_bury(x, a, err); break;
    case ONCE_ACT_COMMIT:
        a->status = do_commit(x, a, err);
        x->in_tx = a->tx_open;
        if (a->status == ONCE_OK) advise_denied(x);
        break;
    case ONCE_ACT_ROLLBACK:
        x->store->ops->rollback(x->store);
        x->in_tx = false;
        a->status = ONCE_OK;
        break;
    case ONCE_ACT_TAKE: a->status = once__do_take(x, a, err); break;
    case ONCE_ACT_COUNT: a->status = do_count(x, a, err); break;
    case ONCE_ACT_STATS: a->status = once__do_stats(x, a, err); break;
    case ONCE_ACT_RENEW: a->status = once__do_renew(x, a, err); break;
    case ONCE_ACT_SWEEP: a->status = do_sweep(x, a, err); break;
    case ONCE_ACT_SEEK:
        assert(x->source && x->source->ops->seek && x->facts);
        a->status = x->source->ops->seek(x->source, a->stream, x->facts, err);
        break;
    default: assert(false);
    }
    explain_denied(x, a);
}

static int do_fetch(once_source *source, once_action *a, once_error *err)
{
    assert(a->batch && (a->n_paused == 0 || a->paused));
    once_fetch fetch = {
        .max = a->max, .paused = a->paused, .n_paused = a->n_paused, .rest = a->rest, .batch = a->batch};
    const int rc = source->ops->fetch(source, &fetch, err);
    if (rc != ONCE_OK) {
        a->batch->n = 0;
        return rc;
    }
    a->at_end = fetch.at_end;
    a->news = fetch.news;
    a->n_news = fetch.n_news;
    (void)ONCE_FAIL_AT(fetch_after); /* what was read cannot be given back, so this failpoint only delays or crashes */
    if (a->intake)
        (void)once_intake_batch(a->intake, a->batch, err); /* without memory the machine tries again and reports it */
    return ONCE_OK;
}

void once_execute_source(once_source *source, once_action *a)
{
    assert(a->kind == ONCE_ACT_FETCH);
    a->error.text[0] = 0;
    a->status = do_fetch(source, a, &a->error);
}

static int do_ack(once_source *source, once_action *a, once_error *err)
{
    assert(a->n == 0 || a->receipts);
    CHECK_POINT(ack_before, err);
    const int rc = source->ops->ack(source, a->receipts, a->n, err);
    if (rc == ONCE_OK) CHECK_POINT(ack_after, err);
    return rc;
}

void once_execute_ack(once_source *source, once_action *a)
{
    once_error *err = &a->error;
    err->text[0] = 0;
    switch (a->kind) {
    case ONCE_ACT_ACK: a->status = do_ack(source, a, err); break;
    case ONCE_ACT_EXTEND_DELIVERIES: a->status = source->ops->extend(source, a->receipts, a->n, err); break;
    case ONCE_ACT_RELEASE: a->status = source->ops->release(source, a->stream, err); break;
    default: assert(false);
    }
}
