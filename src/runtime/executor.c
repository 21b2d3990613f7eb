#include "runtime/executor.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "base/no_memory.h"
#include "core/conflict.h"
#include "source/place.h"

#include "base/banned.h"

#define SWEEP_STEP 1000
#define LAPSED_NS (INT64_C(2) * 1000000000) /* how often claims are looked for whose lease is over */
enum { LAPSED_STEP = 256 };
#define NEWEST_STEP_MS (INT64_C(3600) * 1000)

void once_executor_init(once_executor *executor, once_store *store, once_bytes consumer, once_run_effects *run,
                        void *user)
{
    *executor = (once_executor){.store = store,
                                .consumer = consumer,
                                .run = run,
                                .user = user,
                                .newest_ms = ONCE_NO_TIME,
                                .newest_kept_ms = ONCE_NO_TIME,
                                .newest_most_ms = INT64_MAX};
    once_message_log_init(&executor->said);
    once_message_log_init(&executor->doubted);
}

/* What was to be said of a commit of which no answer came, and of which nobody asks any more, is said: rather twice
 * than not at all. */
void once_executor_release(once_executor *executor)
{
    once_message_log_say(&executor->doubted);
    once_untold_end(&executor->untold, &executor->keying);
    once_arena_release(&executor->arena);
    once_arena_release(&executor->scratch);
    once_message_log_release(&executor->said);
    once_message_log_release(&executor->doubted);
}

#define CHECK_POINT(name, err)                                                                                         \
    do {                                                                                                               \
        if (ONCE_FAIL_AT(name)) return once_fail((err), ONCE_E_UNAVAILABLE, "failpoint '%s'", #name);                  \
    } while (0)

static const once_request **requests_of(once_executor *x, const once_action *a)
{
    const once_request **requests = once_arena_alloc(&x->scratch, (a->n + 1) * sizeof *requests);
    for (size_t i = 0; requests && i < a->n; i++) requests[i] = &a->items[i]->request;
    return requests;
}

static void note_times(once_executor *x, const once_request *const *requests, size_t n)
{
    static const int64_t sane_ms = INT64_C(1) << 50; /* 35,000 years: whatever is compared with it does not overflow */
    for (size_t i = 0; i < n; i++) {
        const int64_t sent_ms = requests[i]->sent_ms;
        if (sent_ms > -sane_ms && sent_ms < sane_ms && (x->newest_ms == ONCE_NO_TIME || sent_ms > x->newest_ms))
            x->newest_ms = sent_ms;
    }
}

static int keep_places(once_executor *x, const char *name, const once_places *places, once_error *err)
{
    once_buf text;
    once_buf_init(&text, ONCE_PLACES_TEXT);
    once_places_write(places, &text);
    const int rc = text.failed ? once_no_memory(err, "for a batch")
                               : x->store->ops->fact_set(x->store, name, once_buf_bytes(&text), err);
    if (name == x->files) x->files_seen = once_xxh128(0, text.data, text.len);
    once_buf_release(&text);
    return rc;
}

/* The files of a source have numbers, which are part of coordinates. They are kept before, or with, the first message
 * that has them. Another process that follows the same path counts as we do, or one of us has missed a file. After the
 * verb: a store may have things to do before its transaction begins on the server. */
static int keep_files(once_executor *x, once_item *const *items, size_t n, once_error *err)
{
    const once_origin *newest = NULL;
    for (size_t i = 0; i < n && x->files; i++) {
        const once_origin *origin = items[i]->batch->origin;
        if (origin && origin->version > x->files_written && (!newest || origin->version > newest->version))
            newest = origin;
    }
    if (!newest) return ONCE_OK;
    once_bytes text;
    once_places stored, all = newest->places;
    int rc = x->store->ops->fact_get(x->store, x->files, &text, &x->scratch, err);
    if (rc != ONCE_OK) return rc;
    const bool others = !x->cursor && text.len && !once_hash_equal(once_xxh128(0, text.data, text.len), x->files_seen);
    const bool readable = text.len && once_places_read(text, &stored);
    const bool disagree = others && readable && !once_places_agree(&stored, &newest->places);
    if (disagree && x->by_coordinates)
        return once_fail(
            err, ONCE_E_CORRUPT,
            "another process reads the same source and numbers its files otherwise; start again, with one process, "
            "or with another consumer for each machine that has a file of this path");
    if (readable) once_places_add_known(&all, &stored);
    if (disagree || (readable && once_places_same_files(&stored, &all))) { /* and others are not held up by it */
        x->files_written = newest->version;
        return ONCE_OK;
    }
    rc = keep_places(x, x->files, &all, err);
    if (rc == ONCE_OK) x->files_written = newest->version;
    return rc;
}

static void note(once_executor *x, once_log_level level, const char *event, const once_item *item, once_bytes reason)
{
    once_message_log_add(&x->said, level, event, item, reason, &x->keying);
}

/* How an attempt ended that needs another one, or a person. `known`: that it is unknown was written down before, by
 * somebody who said it; or by ourselves, in a commit of which no answer came, and then nobody has said it. */
static void note_ending(once_executor *x, const once_item *item, bool known)
{
    if (item->outcome == ONCE_DEAD) note(x, ONCE_LOG_WARN, "dead", item, item->failure);
    else if (item->outcome == ONCE_UNKNOWN && (!known || x->doubted.n))
        note(x, ONCE_LOG_WARN, "unknown", item, item->failure);
    else if (item->outcome == ONCE_RETRY) note(x, ONCE_LOG_INFO, "retry", item, item->failure);
    else if (item->outcome == ONCE_RELEASE) note(x, ONCE_LOG_INFO, "release", item, item->failure);
}

/* Said at once: it is so, whatever becomes of the transaction. */
static void say_fenced(once_executor *x, const once_item *item, const char *what)
{
    once_message_log now;
    if (item->unsure) return; /* perhaps it was settled by ourselves, in a commit of which no answer came */
    once_message_log_init(&now);
    once_message_log_add(&now, ONCE_LOG_WARN, "fenced", item, (once_bytes){what, strlen(what)}, &x->keying);
    once_message_log_say(&now);
    once_message_log_release(&now);
}

/* Whoever wrote it down says it. Should its commit have happened and no answer come, the next pass says it; rather
 * twice than not at all. */
static void note_lapsed(once_executor *x, once_item *item)
{
    const once_decision *d = &item->decision;
    const bool before = item->lapsed && item->unsure && d->answer == ONCE_ANSWER_UNKNOWN;
    if (d->lapsed || before)
        note(x, ONCE_LOG_WARN, "unknown", item,
             d->lapsed
                 ? d->reason
                 : ONCE_BYTES("its claim ran out, and nobody said how its attempt ended: it may have had its effect"));
    item->lapsed = d->lapsed || before;
}

static void note_replaced(once_executor *x, const once_action *a)
{
    for (size_t i = 0; i < a->n; i++)
        if (a->items[i]->decision.replaced)
            note(x, ONCE_LOG_INFO, "replaced", a->items[i],
                 ONCE_BYTES("it takes the place of other content under its key, which had had no effect"));
}

static once_touch_kind touch_of(const once_item *item)
{
    if (item->held || item->returned) return ONCE_TOUCH_KEEP;
    if (item->stage == ONCE_STAGE_ACCEPT) return ONCE_TOUCH_ACCEPT;
    return item->handler && once_handler_external(item->handler) ? ONCE_TOUCH_LANE : ONCE_TOUCH_CLAIM;
}

static int compare_locks(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Of all messages whose effects may run in the transaction: sorted, each once. */
static bool gather_locks(once_executor *x, const once_action *a, uint64_t **out, size_t *n)
{
    size_t all = 0, count = 0;
    for (size_t i = 0; i + a->kept < a->n; i++) all += a->items[i]->n_locks;
    uint64_t *locks = *out = once_arena_new(&x->scratch, uint64_t, all + 1);
    if (!locks) return false;
    for (size_t i = 0; i + a->kept < a->n; i++) {
        if (a->items[i]->n_locks) memcpy(locks + count, a->items[i]->locks, a->items[i]->n_locks * sizeof *locks);
        count += a->items[i]->n_locks;
    }
    if (count) qsort(locks, count, sizeof *locks, compare_locks);
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
        const bool work = i + a->kept < a->n; /* of the others nothing but the request is ours to read */
        if (work && once_hash_is_zero(a->items[i]->request.id)) continue;
        touched[n++] = (once_touch){&a->items[i]->request, work ? touch_of(a->items[i]) : ONCE_TOUCH_KEEP};
    }
    return x->store->ops->expect(x->store, touched, n, a->due, locks, n_locks, err);
}

static int do_begin(once_executor *x, once_action *a, once_error *err)
{
    const int rc = x->store->ops->begin(x->store, err);
    a->open = rc == ONCE_OK;
    return rc == ONCE_OK && x->store->ops->expect ? expect(x, a, err) : rc;
}

/* Claimed one by one, durably, and no answer came. */
static void doubt_claims(once_executor *x, const once_action *a, const once_decision *decisions)
{
    for (size_t i = 0; i < a->n && !x->in_tx; i++) {
        once_item item = *a->items[i];
        item.decision = decisions[i];
        if (item.decision.lapsed) once_untold_add(&x->untold, &item, &x->keying);
    }
}

static int do_claim(once_executor *x, once_action *a, once_error *err)
{
    const once_request **requests = requests_of(x, a);
    once_decision *decisions = once_arena_new(&x->scratch, once_decision, a->n);
    if (!requests || !decisions) return once_no_memory(err, "for a batch");
    CHECK_POINT(claim_before, err);
    int rc = x->store->ops->claim(x->store, requests, a->n, decisions, &x->arena, err);
    if (rc != ONCE_OK) doubt_claims(x, a, decisions);
    if (rc == ONCE_OK) rc = keep_files(x, a->items, a->n, err);
    if (rc != ONCE_OK) return rc;
    CHECK_POINT(claim_after, err);
    for (size_t i = 0; i < a->n; i++) {
        a->items[i]->decision = decisions[i];
        x->wrote |= decisions[i].answer == ONCE_ANSWER_RUN;
        x->met_busy |= decisions[i].answer == ONCE_ANSWER_BUSY;
        note_lapsed(x, a->items[i]);
        if (decisions[i].own &&
            decisions[i].answer == ONCE_ANSWER_DEAD) /* what was to be said of it went with the reply to its commit */
            note(x, ONCE_LOG_WARN, "dead", a->items[i], decisions[i].reason);
    }
    note_replaced(x, a);
    note_times(x, requests, a->n);
    if (!x->in_tx) once_message_log_say(&x->said); /* claimed one by one, durably */
    return ONCE_OK;
}

static int do_extend(once_executor *x, once_action *a, once_error *err)
{
    const once_request **requests = requests_of(x, a);
    bool *ours = once_arena_new(&x->scratch, bool, a->n);
    if (!requests || !ours) return once_no_memory(err, "for a batch");
    const int rc = x->store->ops->extend(x->store, requests, a->n, ours, err);
    for (size_t i = 0; rc == ONCE_OK && i < a->n; i++) {
        a->items[i]->yes = ours[i];
        if (!ours[i] && !a->kept)
            say_fenced(x, a->items[i], "its claim ran out and somebody else may have it; its effect is not committed");
    }
    return rc;
}

/* What was put back comes again, and what may have happened is for somebody to decide. */
static bool is_decided(once_outcome outcome)
{
    return outcome != ONCE_RETRY && outcome != ONCE_RELEASE && outcome != ONCE_UNKNOWN;
}

static int do_settle(once_executor *x, once_action *a, once_error *err)
{
    once_settlement *settlements = once_arena_new(&x->scratch, once_settlement, a->n);
    bool *applied = once_arena_new(&x->scratch, bool, a->n), *known = once_arena_new(&x->scratch, bool, a->n);
    if (!settlements || !applied || !known) return once_no_memory(err, "for a batch");
    for (size_t i = 0; i < a->n; i++) {
        once_item *item = a->items[i];
        const bool keeps_body = item->outcome == ONCE_RETRY || item->outcome == ONCE_RELEASE ||
                                item->outcome == ONCE_UNKNOWN || item->outcome == ONCE_DEAD;
        settlements[i] = (once_settlement){
            .request = &item->request,
            .outcome = item->outcome,
            .result = item->result,
            .reason = item->failure,
            .delay_ms = item->delay_ms,
            .failed = item->started,
            .maybe = item->maybe,
            .message = keeps_body ? &item->message : NULL,
            .was_unknown = &known[i],
        };
    }
    CHECK_POINT(settle_before, err);
    const int rc = x->store->ops->settle(x->store, settlements, a->n, applied, err);
    if (rc != ONCE_OK) return rc;
    CHECK_POINT(settle_after, err);
    x->wrote = true;
    for (size_t i = 0; i < a->n; i++) {
        a->items[i]->yes = applied[i];
        x->settled += applied[i] && is_decided(a->items[i]->outcome);
        if (applied[i]) note_ending(x, a->items[i], known[i]);
        else if (!a->items[i]->returned)
            say_fenced(x, a->items[i],
                       "its claim ran out before the outcome was recorded; its effect is not committed");
        else
            note(x, ONCE_LOG_WARN, "fenced", a->items[i],
                 ONCE_BYTES("its claim ran out before the outcome was recorded; its effect has run, or was ended, and "
                            "whoever has it now decides"));
    }
    return ONCE_OK;
}

static int do_accept(once_executor *x, once_action *a, once_error *err)
{
    const once_request **requests = requests_of(x, a);
    const once_message **messages = once_arena_alloc(&x->scratch, a->n * sizeof *messages);
    once_decision *decisions = once_arena_new(&x->scratch, once_decision, a->n);
    if (!requests || !messages || !decisions) return once_no_memory(err, "for a batch");
    for (size_t i = 0; i < a->n; i++) messages[i] = &a->items[i]->message;
    CHECK_POINT(accept_before, err);
    int rc = x->store->ops->accept(x->store, requests, messages, a->n, decisions, &x->arena, err);
    if (rc == ONCE_OK) rc = keep_files(x, a->items, a->n, err);
    if (rc != ONCE_OK) return rc;
    CHECK_POINT(accept_after, err);
    x->wrote = true;
    for (size_t i = 0; i < a->n; i++) {
        const bool told = a->items[i]->decision.answer == ONCE_ANSWER_UNKNOWN; /* by its claim, in this transaction */
        a->items[i]->decision = decisions[i];
        x->met_busy |= decisions[i].answer == ONCE_ANSWER_BUSY;
        if (!told) note_lapsed(x, a->items[i]);
    }
    note_replaced(x, a);
    note_times(x, requests, a->n);
    return ONCE_OK;
}

/* In words; what a conflict or an age is, is told here, because here somebody reads it. */
static bool reason_of(once_executor *x, const once_item *item, once_bytes *out)
{
    *out = item->reason;
    if (item->message.cut_from) return true;
    if (item->decision.answer == ONCE_ANSWER_CONFLICT && !item->decision.lane)
        return once_conflict_reason(&item->decision, &item->handler->fingerprint, item->message.body, x->store->secret,
                                    &x->scratch, out);
    if (item->decision.answer == ONCE_ANSWER_TOO_OLD)
        return once_sent_too_old(item->message.sent_ms, item->sent_text, item->sent_unit, item->request.remember_ms,
                                 &x->scratch, out);
    return true;
}

static int do_bury(once_executor *x, once_action *a, once_error *err)
{
    once_letter *letters = once_arena_new(&x->scratch, once_letter, a->n);
    bool *fresh = once_arena_new(&x->scratch, bool, a->n);
    if (!letters || !fresh) return once_no_memory(err, "for a batch");
    for (size_t i = 0; i < a->n; i++) {
        const once_item *item = a->items[i];
        once_bytes reason;
        if (!reason_of(x, item, &reason)) return once_no_memory(err, "for a batch");
        letters[i] = (once_letter){
            .scope = {item->scope.tenant, x->consumer, item->scope.operation},
            .key = item->request.key,
            .message = item->message,
            .reason = reason,
            .kind = item->message.cut_from ? ONCE_ANSWER_CUT : item->decision.answer,
            .old_key = item->decision.old_key,
            .key_id = item->request.id,
            .fingerprint = item->request.fingerprint,
        };
    }
    CHECK_POINT(bury_before, err);
    int rc = x->store->ops->bury(x->store, letters, a->n, fresh, err);
    if (rc == ONCE_OK) rc = keep_files(x, a->items, a->n, err);
    if (rc != ONCE_OK) return rc;
    CHECK_POINT(bury_after, err);
    x->wrote = true;
    for (size_t i = 0; i < a->n; i++) {
        a->items[i]->yes = fresh[i];
        if (fresh[i] || a->items[i]->unsure) note(x, ONCE_LOG_WARN, "dead", a->items[i], letters[i].reason);
    }
    return ONCE_OK;
}

static once_item item_of(const once_taken *taken)
{
    once_item item = {
        .message = taken->message, .scope = taken->scope, .request = taken->request, .decision = taken->decision};
    item.request.scope = &taken->scope;
    if (item.message.at.place.len == 0)
        item.message.at = taken->request.at; /* it has no body, and is known by where it was first seen */
    return item;
}

/* What a verb of the store has found and written by itself; so it is said at once. When no answer came, as soon as that
 * is known. */
static void say_found(once_executor *x, const once_taken *taken, size_t n, int rc)
{
    once_message_log now;
    once_message_log_init(&now);
    for (size_t i = 0; i < n; i++) {
        const once_item item = item_of(&taken[i]);
        const char *event = once_untold_event(&item.decision);
        if (rc != ONCE_OK) once_untold_add(&x->untold, &item, &x->keying);
        else if (event) once_message_log_add(&now, ONCE_LOG_WARN, event, &item, item.decision.reason, &x->keying);
    }
    once_message_log_say(&now);
    once_message_log_release(&now);
}

/* Claims whose lease is over are unknown for everybody who looks (once_entry_look); here somebody writes that down and
 * says it, whether or not the message comes again. What fails is found out by whatever comes next. */
static void look_for_lapsed(once_executor *x, bool now)
{
    const int64_t now_ns = once_env_mono_ns(x->store->env);
    size_t n = LAPSED_STEP;
    if (once_untold_ask(&x->untold, x->store, &x->keying, NULL) != ONCE_OK) return;
    if (!x->store->ops->lapse || (!now && x->lapsed_at_ns && now_ns - x->lapsed_at_ns < LAPSED_NS)) return;
    x->lapsed_at_ns = now_ns;
    while (n == LAPSED_STEP) {
        once_arena arena = {0};
        once_taken *lapsed = once_arena_new(&arena, once_taken, LAPSED_STEP);
        n = 0;
        const int rc = lapsed ? x->store->ops->lapse(x->store, x->consumer, x->worker ? x->worker->run : 0, LAPSED_STEP,
                                                     lapsed, &n, &arena, NULL)
                              : ONCE_E_NOMEM;
        say_found(x, lapsed, n, rc);
        if (rc != ONCE_OK) n = 0;
        once_arena_release(&arena);
    }
}

static int fill_batch(const once_action *a, const once_taken *taken, size_t n, once_error *err)
{
    once_batch *batch = a->batch;
    batch->items = once_arena_new(&batch->arena, once_item, n);
    if (!batch->items) return once_no_memory(err, "for a batch");
    for (size_t i = 0; i < n; i++) {
        once_item *item = &batch->items[i];
        item->batch = batch;
        item->message = taken[i].message;
        item->scope = taken[i].scope;
        item->request = taken[i].request;
        item->request.lease_ms = a->lease_ms; /* of a handler that is gone nobody knows another one */
        item->decision = taken[i].decision;
    }
    batch->n = n;
    return ONCE_OK;
}

static int do_find(once_executor *x, once_action *a, once_error *err)
{
    const once_request **requests = requests_of(x, a);
    once_taken *waiting = once_arena_new(&a->batch->arena, once_taken, a->max);
    size_t n = 0;
    if (!requests || !waiting) return once_no_memory(err, "for a batch");
    if (a->due) CHECK_POINT(take_before, err);
    const int rc = x->store->ops->find(x->store, x->consumer, requests, a->n, a->due, a->max, waiting, &n, &a->more,
                                       &a->batch->arena, err);
    if (rc != ONCE_OK) return rc;
    if (a->due) CHECK_POINT(take_after, err);
    return fill_batch(a, waiting, n, err);
}

static int do_take(once_executor *x, once_action *a, once_error *err)
{
    once_batch *batch = a->batch;
    once_arena_reset(&batch->arena); /* a repeated take starts anew */
    batch->n = 0;
    once_taken *taken = once_arena_new(&batch->arena, once_taken, a->max);
    if (!taken) return once_no_memory(err, "for a batch");
    size_t n = 0;
    CHECK_POINT(take_before, err);
    const int rc = x->store->ops->take(x->store, x->consumer, a->token, a->again, a->lease_ms, a->max, taken, &n,
                                       &batch->arena, err);
    say_found(x, taken, n, rc);
    if (rc != ONCE_OK) return rc;
    CHECK_POINT(take_after, err);
    return fill_batch(a, taken, n, err);
}

static int do_stats(once_executor *x, once_action *a, once_error *err)
{
    once_stats stats;
    int rc = x->store->ops->stats(x->store, x->consumer, &stats, err);
    if (rc == ONCE_OK && stats.claimed && once__look_for_gone(x, true))
        rc = x->store->ops->stats(x->store, x->consumer, &stats, err);
    if (rc != ONCE_OK) return rc;
    if (stats.unknown) look_for_lapsed(x, true); /* it may be the last thing that is asked before the run ends */
    a->waiting = stats.waiting;
    a->claimed = stats.claimed;
    a->wait_ms = stats.wait_ms;
    once__say_waiting(x, &stats);
    return ONCE_OK;
}

static int do_sweep(once_executor *x, once_action *a, once_error *err)
{
    once_sweep_result swept;
    const int rc = x->store->ops->sweep(x->store, SWEEP_STEP, &swept, err);
    if (rc != ONCE_OK) return rc;
    a->more = swept.more;
    a->wait_ms = swept.pause_ms;
    return ONCE_OK;
}

/* In the transaction that settles the messages before it, so it is never ahead of them. */
static int keep_place(once_executor *x, const once_item *last, once_error *err)
{
    once_places places;
    once_places_behind(last, &places);
    return keep_places(x, x->cursor, &places, err);
}

static const char *newest_name(once_bytes consumer, char out[ONCE_COUNTER_NAME])
{
    (void)snprintf(out, ONCE_COUNTER_NAME, "newest/%.*s", (int)consumer.len, consumer.data);
    return out;
}

int once_newest_read(once_store *store, once_bytes consumer, int64_t *out, once_error *err)
{
    char name[ONCE_COUNTER_NAME], digits[24] = "";
    once_arena arena = {0};
    once_bytes text = {0};
    const int rc = store->ops->fact_get(store, newest_name(consumer, name), &text, &arena, err);
    if (rc == ONCE_OK && text.len < sizeof digits && text.len) memcpy(digits, text.data, text.len);
    *out = digits[0] ? strtoll(digits, NULL, 10) : ONCE_NO_TIME;
    once_arena_release(&arena);
    return rc;
}

/* Seldom enough to cost nothing, often enough that a wrong clock shows. Never to an older time: old messages come after
 * new ones when a file from before is read, or another process is behind. */
static int keep_newest(once_executor *x, once_error *err)
{
    const int64_t newest_ms = x->newest_ms;
    if (newest_ms == ONCE_NO_TIME ||
        (x->newest_kept_ms != ONCE_NO_TIME && newest_ms - x->newest_kept_ms < NEWEST_STEP_MS))
        return ONCE_OK;
    int64_t stored_ms;
    int rc = once_newest_read(x->store, x->consumer, &stored_ms, err);
    if (rc != ONCE_OK) return rc;
    const bool possible = x->newest_kept_ms != ONCE_NO_TIME || stored_ms <= x->newest_most_ms;
    if (stored_ms != ONCE_NO_TIME && possible && newest_ms <= stored_ms) {
        x->newest_kept_ms = stored_ms;
        return ONCE_OK;
    }
    char name[ONCE_COUNTER_NAME], text[24];
    const int len = snprintf(text, sizeof text, "%" PRId64, newest_ms);
    rc = x->store->ops->fact_set(x->store, newest_name(x->consumer, name), (once_bytes){text, (size_t)len}, err);
    if (rc == ONCE_OK)
        x->newest_kept_ms = newest_ms; /* should the commit fail, the next hour's message says it again */
    return rc;
}

/* --- the worker's own record --- */

static void take_rate(once_executor *x)
{
    const int64_t now_ns = once_env_mono_ns(x->store->env);
    const double seconds = (double)(now_ns - x->rate_at_ns) / 1e9;
    if (x->rate_at_ns && seconds < 1) return;
    const uint64_t more = x->worker->done > x->rate_done ? x->worker->done - x->rate_done
                                                         : 0; /* a commit that failed takes its part back */
    if (x->rate_at_ns) x->worker->rate = (uint64_t)((double)more / seconds + 0.5);
    x->rate_at_ns = now_ns;
    x->rate_done = x->worker->done;
}

static int renew(once_executor *x, once_error *err)
{
    take_rate(x);
    return once_worker_renew(x->worker, x->store, err);
}

static int do_renew(once_executor *x, once_error *err)
{
    if (!x->worker) return ONCE_OK;
    int rc = x->store->ops->begin(x->store, err);
    if (rc != ONCE_OK) return rc;
    rc = renew(x, err);
    if (rc == ONCE_OK) rc = x->store->ops->commit(x->store, err);
    else x->store->ops->rollback(x->store);
    if (rc == ONCE_OK) once_worker_kept(x->worker);
    return rc;
}

/* What goes with the batch: the place in the source, what is counted for ever, and that we are alive. */
static int keep_beside(once_executor *x, const once_action *a, bool renews, once_error *err)
{
    int rc = ONCE_OK;
    if (x->cursor && a->last && a->last->batch->origin) rc = keep_place(x, a->last, err);
    /* For ever, in the transaction of the claims that repeat: a run that is killed cannot hide them. */
    if (rc == ONCE_OK && a->repeats) rc = once_repeats_add(x->store, x->consumer, a->repeats, &x->scratch, err);
    if (rc == ONCE_OK && a->given_up) rc = once_given_up_add(x->store, x->consumer, a->given_up, &x->scratch, err);
    if (rc == ONCE_OK) rc = keep_newest(x, err);
    return rc == ONCE_OK && renews ? renew(x, err) : rc;
}

/* The next pass has the same messages. */
static void doubt_said(once_executor *x)
{
    const once_message_log said = x->said;
    once_message_log_forget(&x->doubted);
    x->said = x->doubted;
    x->doubted = said;
}

static int commit_batch(once_executor *x, once_action *a, bool renews, once_error *err)
{
    a->open = true;
    int rc = keep_beside(x, a, renews, err);
    if (rc != ONCE_OK) return rc;
    CHECK_POINT(commit_before, err);
    a->open = false;
    rc = x->store->ops->commit(x->store, err);
    if (rc == ONCE_E_UNAVAILABLE || rc == ONCE_E_UNSURE) doubt_said(x);
    return rc;
}

static int do_commit(once_executor *x, once_action *a, once_error *err)
{
    const bool renews = x->worker && x->wrote;
    if (renews) x->worker->done += x->settled;
    const int rc = commit_batch(x, a, renews, err);
    if (rc != ONCE_OK) {
        if (renews) x->worker->done -= x->settled;
        return rc;
    }
    if (renews) once_worker_kept(x->worker);
    once_message_log_say(&x->said);
    once_message_log_forget(&x->doubted);
    a->renewed = renews;
    x->files_kept = x->files_written;
    CHECK_POINT(commit_after, err);
    return ONCE_OK;
}

/* A right was taken away: which one, and what its owner has to say. Nothing of the transaction is left anyway. */
static void explain_denied(const once_executor *x, once_action *a)
{
    once_error why;
    if (a->status != ONCE_E_DENIED || !x->store->ops->inspect) return;
    x->store->ops->rollback(x->store);
    if (x->store->ops->inspect(x->store, &why) == ONCE_E_DENIED) a->error = why;
}

void once_execute_store(once_executor *x, once_action *a)
{
    once_error *err = &a->error;
    err->text[0] = 0;
    once_arena_reset(&x->scratch);
    if (a->kind == ONCE_ACT_BEGIN || a->kind == ONCE_ACT_TAKE || a->kind == ONCE_ACT_RENEW) {
        (void)once__look_for_gone(x, x->met_busy);
        look_for_lapsed(x, false);
    }
    switch (a->kind) {
    case ONCE_ACT_BEGIN:
        x->waiting.n = 0;
        once_arena_reset(&x->arena);
        once_message_log_forget(&x->said);
        x->newest_ms = ONCE_NO_TIME;
        x->files_written = x->files_kept;
        x->wrote = false;
        x->settled = 0;
        a->status = do_begin(x, a, err);
        x->in_tx = a->open;
        break;
    case ONCE_ACT_FIND: a->status = do_find(x, a, err); break;
    case ONCE_ACT_CLAIM: a->status = do_claim(x, a, err); break;
    case ONCE_ACT_EXTEND: a->status = do_extend(x, a, err); break;
    case ONCE_ACT_RUN:
        a->status = x->run(x->user, a->items, a->n, a->careful, a->blame, &x->arena, &a->failed, err);
        break;
    case ONCE_ACT_SETTLE: a->status = do_settle(x, a, err); break;
    case ONCE_ACT_ACCEPT: a->status = do_accept(x, a, err); break;
    case ONCE_ACT_BURY: a->status = do_bury(x, a, err); break;
    case ONCE_ACT_COMMIT:
        a->status = do_commit(x, a, err);
        x->in_tx = a->open;
        break;
    case ONCE_ACT_ROLLBACK:
        x->store->ops->rollback(x->store);
        x->in_tx = false;
        a->status = ONCE_OK;
        break;
    case ONCE_ACT_TAKE: a->status = do_take(x, a, err); break;
    case ONCE_ACT_STATS: a->status = do_stats(x, a, err); break;
    case ONCE_ACT_RENEW: a->status = do_renew(x, err); break;
    case ONCE_ACT_SWEEP: a->status = do_sweep(x, a, err); break;
    default: assert(false);
    }
    explain_denied(x, a);
}

static int do_fetch(once_source *source, once_action *a, once_error *err)
{
    if (a->rest) source->ops->wake(source);
    const int rc = source->ops->fetch(source, a->max, a->batch, &a->at_end, err);
    if (rc != ONCE_OK) {
        a->batch->n = 0;
        return rc;
    }
    (void)ONCE_FAIL_AT(fetch_after); /* what was read cannot be given back, so this one cannot fail */
    if (a->intake)
        (void)once_intake_batch(a->intake, a->batch, err); /* when memory is out, the machine tries again and says so */
    return ONCE_OK;
}

static int do_ack(once_source *source, once_action *a, once_error *err)
{
    CHECK_POINT(ack_before, err);
    const int rc = source->ops->ack(source, a->upto, err);
    if (rc == ONCE_OK) CHECK_POINT(ack_after, err);
    return rc;
}

void once_execute_source(once_source *source, once_action *a)
{
    a->error.text[0] = 0;
    a->status = a->kind == ONCE_ACT_FETCH ? do_fetch(source, a, &a->error) : do_ack(source, a, &a->error);
}
