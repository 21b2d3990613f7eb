/* `once replay`: puts dead letters back to work. A letter of a dead entry revives that entry. Every other letter is
 * treated as a new delivery, through intake and accept, so that it gets the same answer as one from the source. */
#include <assert.h>
#include <stdlib.h>

#include "base/duration.h"
#include "base/failpoint.h"
#include "base/no_memory.h"
#include "base/usage.h"
#include "core/intake.h"
#include "runtime/audit.h"
#include "runtime/choice.h"
#include "runtime/known_store.h"
#include "runtime/operate.h"
#include "runtime/replay_preview.h"
#include "store/engine.h"

#include "base/banned.h"

enum {
    BATCH = 4096,          /* letters in one transaction */
    BATCH_BYTES = 4 << 20, /* bytes of their messages: the letter that reaches this is the last of its transaction */
    PAGE = 16384           /* letters scanned in one go */
};

static const struct {
    const char *name, *text;
    bool leaves;
} verdicts[] = {
#define ROW(name, leaves, text) {#name, text, leaves},
    ONCE_REPLAY_MAP(ROW)
#undef ROW
};

const char *once_replay_verdict_name(once_replay_verdict verdict)
{
    return (unsigned)verdict < ONCE_REPLAY_VERDICTS ? verdicts[verdict].name : "?";
}

const char *once_replay_verdict_text(once_replay_verdict verdict)
{
    return (unsigned)verdict < ONCE_REPLAY_VERDICTS ? verdicts[verdict].text : "?";
}

bool once_replay_verdict_leaves(once_replay_verdict verdict)
{
    return (unsigned)verdict < ONCE_REPLAY_VERDICTS && verdicts[verdict].leaves;
}

typedef struct replaying {
    once_pipeline *pipeline;
    once_backend *store;
    once_keying keying;
    const once_replay_options *options;
    once_replay_counts *counts;
    once_intake intake;
    once_batch batch;             /* owns what belongs to one transaction */
    once_replayed results[BATCH]; /* reported after the commit */
    once_preview would[BATCH];    /* dry run: keys that they would put back; id 0: none */
    once_preview_table preview;   /* dry run: the same of earlier transactions */
    size_t n, bytes;

    once_reading letters;
    uint64_t ids[BATCH]; /* of the next transactions */
    size_t n_ids, max;
    uint64_t after, looked_at, total, paced;
    size_t scanned;
    int64_t begun_ns;
} replaying;

/* A file that a person wrote ends with a line end. JSON does not need it; where bodies are bytes, every byte counts. */
static once_bytes new_body(const replaying *r)
{
    once_bytes body = *r->options->body;
    if (!r->pipeline->spec->source.bytes && body.len && body.data[body.len - 1] == '\n') body.len--;
    return body;
}

/* Prepares the letter's message like a delivery that arrives now. */
static int take_in(replaying *r, const once_letter *letter, once_item *item, once_error *err)
{
    assert(!r->options->body || r->options->n_ids == 1);
    *item = (once_item){.batch = &r->batch, .message = letter->message};
    if (r->options->body) item->message.body = new_body(r);
    const int rc = once_intake_fetched(&r->intake, item, err);
    item->request.scope = &item->scope;
    item->request.old_key = letter->old_key;
    once_env_random(r->pipeline->env, &item->request.token, sizeof item->request.token);
    return rc;
}

static once_replay_verdict verdict_of(once_answer answer)
{
    switch (answer) {
    case ONCE_ANSWER_RUN:
    case ONCE_ANSWER_WAITING: return ONCE_REPLAY_run;
    case ONCE_ANSWER_DUPLICATE: return ONCE_REPLAY_duplicate;
    case ONCE_ANSWER_STALE: return ONCE_REPLAY_stale;
    case ONCE_ANSWER_CONFLICT: return ONCE_REPLAY_conflict;
    case ONCE_ANSWER_TOO_OLD: return ONCE_REPLAY_too_old;
    case ONCE_ANSWER_DEAD: return ONCE_REPLAY_still_dead;
    default: return ONCE_REPLAY_waiting; /* busy, later, gap, unknown: the store has the body */
    }
}

/* Accepts the message like a delivery from the source. */
static int accept_again(replaying *r, once_item *item, once_replayed *out, once_error *err)
{
    assert(item->reason.len == 0 && !once_hash_is_zero(item->request.id));
    const once_request *request = &item->request;
    const once_message *message = &item->message;
    once_decision decision;
    int rc = r->store->ops->accept(r->store, &request, &message, 1, &decision, &r->batch.arena, err);
    if (rc != ONCE_OK) return rc;
    out->verdict = verdict_of(decision.answer);
    if (decision.answer == ONCE_ANSWER_DUPLICATE && decision.outcome == ONCE_STALE)
        out->verdict = ONCE_REPLAY_stale; /* a stale message had no effect */
    if (decision.answer == ONCE_ANSWER_DUPLICATE) out->result = decision.result;
    if (decision.answer == ONCE_ANSWER_DEAD) out->reason = ONCE_BYTES("its key has another dead letter");
    if (decision.answer != ONCE_ANSWER_TOO_OLD || !r->options->force) return ONCE_OK;
    item->request.sent_ms = ONCE_NO_TIME;
    rc = r->store->ops->accept(r->store, &request, &message, 1, &decision, &r->batch.arena, err);
    if (rc == ONCE_OK)
        out->verdict =
            verdict_of(decision.answer) == ONCE_REPLAY_run ? ONCE_REPLAY_forced : verdict_of(decision.answer);
    return rc;
}

static once_preview preview_of(const once_request *r)
{
    return (once_preview){.id = r->id.a ? r->id.a : 1, .print = r->fingerprint.a};
}

/* In a dry run: an earlier letter of the same key would already have been moved. */
static int look_behind_another(const replaying *r, const once_preview *mine, once_replayed *out, bool *behind,
                               once_error *err)
{
    assert(mine->id != 0);
    once_preview other = {0};
    const int rc = r->preview.n ? once__preview_find(&r->preview, mine->id, &other, err) : ONCE_OK;
    *behind = rc == ONCE_OK && other.id;
    if (!*behind) return rc;
    out->verdict =
        mine->print && other.print && mine->print != other.print ? ONCE_REPLAY_conflict : ONCE_REPLAY_waiting;
    return rc;
}

/* A new body must not change the key of a letter that has one. */
static bool has_the_key(const once_letter *letter, const once_item *item)
{
    return letter->key.len == 0 || (once_bytes_equal(letter->key, item->request.key) &&
                                    once_bytes_equal(letter->scope.tenant, item->scope.tenant) &&
                                    once_bytes_equal(letter->scope.operation, item->scope.operation));
}

/* Revives the dead entry of the letter, with its own message or with the new body. */
static int back_to_work(replaying *r, const once_letter *letter, const once_item *item, once_replayed *out, bool *ended,
                        once_error *err)
{
    assert(!once_hash_is_zero(letter->entry));
    if (!r->options->body) return r->store->ops->replay_letter(r->store, letter->id, ended, err);
    const int rc = r->store->ops->replay_with_body(r->store, letter->id, &item->request, &item->message, ended, err);
    if (rc == ONCE_OK && !*ended) out->verdict = ONCE_REPLAY_other_key;
    return rc;
}

/* Whether the lane would end the message without running it. Then the letter must stay, because it has the only copy of
 * the body. Not asked for keys that a worker has claimed or that have an outcome: these decide. */
static int look_at_lane(replaying *r, const once_item *item, const once_entry *entry, bool back, bool again,
                        once_replayed *out, once_error *err)
{
    assert(!back || entry->state == ONCE_STATE_DEAD);
    once_decision lane;
    const bool versioned = back ? entry->versioned : item->request.lane.versioned;
    out->verdict = back ? ONCE_REPLAY_run : ONCE_REPLAY_forced;
    if (!versioned || (!back && !again && entry->state != ONCE_STATE_ABSENT)) return ONCE_OK;
    const int rc = r->store->ops->outlook(r->store, &item->request, &lane, &r->batch.arena, err);
    if (rc != ONCE_OK || lane.answer == ONCE_ANSWER_RUN) return rc;
    out->verdict = verdict_of(lane.answer);
    out->reason = lane.reason;
    return ONCE_OK;
}

/* Judges the letter and moves its message. The letter itself stays, unless *ended. */
static int move(replaying *r, const once_letter *letter, once_replayed *out, bool *ended, once_error *err)
{
    if (letter->kind == ONCE_ANSWER_CUT) { /* only the beginning of the message is kept */
        out->verdict = ONCE_REPLAY_still_dead;
        out->reason = ONCE_BYTES(
            "it was longer than message_max, and only its beginning was kept; raise message_max and deliver it again");
        return ONCE_OK;
    }
    once_item *item = once_arena_new(&r->batch.arena, once_item, 1);
    if (!item) return once_no_memory(err, "for a letter");
    int rc = take_in(r, letter, item, err);
    if (rc != ONCE_OK) return rc;
    if (item->reason.len) { /* no key, or an effect that cannot run */
        out->verdict = item->no_handler ? ONCE_REPLAY_no_handler : ONCE_REPLAY_still_dead;
        out->reason = item->reason;
        return ONCE_OK;
    }
    if (r->options->body && !has_the_key(letter, item)) {
        out->verdict = ONCE_REPLAY_other_key;
        return ONCE_OK;
    }
    out->scope = item->scope;
    out->key = item->request.key;
    out->type = item->message.type;
    once_outward_key(&r->keying, &item->scope, item->request.key, item->request.id, letter->old_key,
                     out->idempotency_key);
    once_preview *mine = &r->would[r->n - 1];
    bool behind;
    *mine = preview_of(&item->request);
    rc = look_behind_another(r, mine, out, &behind, err);
    if (rc != ONCE_OK || behind) return rc;
    once_entry entry;
    rc = r->store->ops->get(r->store, item->request.id, &entry, &r->batch.arena, err);
    if (rc != ONCE_OK) return rc;
    if (entry.state != ONCE_STATE_ABSENT)
        once_outward_key(&r->keying, &item->scope, item->request.key, item->request.id, entry.old_key,
                         out->idempotency_key);
    out->maybe_done |= once_spec_maybe_done(r->pipeline->spec, item->scope.operation,
                                            entry.maybe_done); /* letters of older versions do not have it */
    const bool back = once__letter_is_of(letter, &entry), again = r->options->force && once_state_finished(entry.state);
    rc = look_at_lane(r, item, &entry, back, again, out, err);
    if (rc != ONCE_OK || out->verdict == ONCE_REPLAY_stale || out->verdict == ONCE_REPLAY_conflict) return rc;
    if (back) return back_to_work(r, letter, item, out, ended, err); /* a duplicate, too: its worker records that */
    if (!again) return accept_again(r, item, out, err);
    if (out->verdict == ONCE_REPLAY_duplicate) return ONCE_OK;
    bool done;
    rc = r->store->ops->revive(r->store, &item->request, &item->message, &done, err);
    assert(rc != ONCE_OK || done);
    return rc;
}

static int replay_one(replaying *r, uint64_t id, once_error *err)
{
    assert(r->n < BATCH);
    once_replayed *out = &r->results[r->n];
    once_letter letter;
    bool found, ended = false;
    *out = (once_replayed){.letter = id, .verdict = ONCE_REPLAY_gone};
    int rc = r->store->ops->letter_get(r->store, id, &letter, &found, &r->batch.arena, err);
    if (rc != ONCE_OK) return rc;
    r->would[r->n++] = (once_preview){0};
    if (!found || !once_bytes_equal(letter.scope.consumer, r->pipeline->spec->consumer)) return ONCE_OK;
    out->scope = letter.scope;
    out->key = letter.key;
    out->type = letter.message.type;
    out->maybe_done = once_spec_maybe_done(r->pipeline->spec, letter.scope.operation, letter.maybe_done);
    out->place = letter.message.at.place;
    out->point = letter.message.at.point;
    out->reason = letter.reason;
    once__letter_outward_key(&r->keying, &letter, out->idempotency_key);
    r->bytes += letter.message.body.len + letter.message.headers.len;
    once__letters_note(&r->letters, &letter);
    rc = move(r, &letter, out, &ended, err);
    assert(out->verdict < ONCE_REPLAY_VERDICTS);
    if (!ended && out->verdict != ONCE_REPLAY_run && out->verdict != ONCE_REPLAY_forced)
        r->would[r->n - 1].id = 0; /* it puts no key back */
    if (rc != ONCE_OK || !verdicts[out->verdict].leaves) return rc;
    /* If the old, wrong message is delivered again, it must stay discarded. */
    if (!ended && r->options->body)
        rc = r->store->ops->discard(r->store, id, once__letter_remember(r->pipeline->spec, letter.scope.operation),
                                    &found, err);
    else if (!ended) rc = r->store->ops->letter_drop(r->store, id, &found, err);
    const bool forced = out->verdict == ONCE_REPLAY_forced, body = r->options->body != NULL;
    const char *what = forced ? (body ? "replay --force --body" : "replay --force") : body ? "replay --body" : "replay";
    const once_act act = {.what = what,
                          .note = verdicts[out->verdict].text,
                          .scope = out->scope,
                          .key = out->key,
                          .letter = id,
                          .idempotency_key = out->idempotency_key,
                          .body = body ? letter.message.body : (once_bytes){0}};
    if (rc == ONCE_OK) rc = once__audit(r->pipeline, r->store, &act, err);
    if (rc == ONCE_OK && ONCE_FAIL_AT(replay_between)) rc = once_fail(err, ONCE_E_IO, "failpoint replay_between");
    return rc;
}

static double seconds_since(const replaying *r)
{
    return (double)(once_env_mono_ns(r->pipeline->env) - r->begun_ns) / 1e9;
}

/* Remembers the keys that this transaction would have put back. */
static int remember_preview(replaying *r, once_error *err)
{
    assert(r->options->dry_run);
    int rc = r->preview.size ? ONCE_OK : once__preview_open(&r->preview, r->total, err);
    for (size_t i = 0; i < r->n && rc == ONCE_OK; i++) {
        if (r->would[i].id) rc = once__preview_put(&r->preview, &r->would[i], err);
    }
    return rc;
}

static void report(replaying *r)
{
    assert(r->n <= BATCH);
    for (size_t i = 0; i < r->n; i++) {
        r->counts->verdicts[r->results[i].verdict]++;
        r->paced += verdicts[r->results[i].verdict].leaves;
        if (r->options->visit) r->options->visit(r->options->user, &r->results[i]);
    }
    r->n = 0;
    if (r->options->progress) r->options->progress(r->options->user, r->looked_at, r->total, seconds_since(r));
}

/* Replays letters from ids[*at] on, in one transaction. */
static int replay_some(replaying *r, size_t *at, once_error *err)
{
    assert(*at < r->n_ids && r->n_ids <= BATCH);
    if (ONCE_FAIL_AT(replay_before)) return once_fail(err, ONCE_E_IO, "failpoint replay_before");
    once_backend *store = r->store;
    once_arena_reset(&r->batch.arena);
    r->n = r->bytes = r->letters.left = 0;
    int rc = store->ops->begin(store, err);
    if (rc != ONCE_OK) return rc;
    while (rc == ONCE_OK && *at < r->n_ids && r->bytes < BATCH_BYTES) {
        rc = once__letters_ahead(&r->letters, store, r->ids + *at, r->n_ids - *at, err);
        if (rc == ONCE_OK) rc = replay_one(r, r->ids[(*at)++], err);
    }
    if (r->options->dry_run && rc == ONCE_OK) {
        store->ops->rollback(store);
        if (*at < r->n_ids || r->looked_at < r->total) rc = remember_preview(r, err); /* there are more */
    } else {
        rc = once__finish_tx(store, rc, err);
    }
    if (rc == ONCE_OK) report(r);
    return rc;
}

static int replay_batch(replaying *r, once_error *err)
{
    int rc = ONCE_OK;
    for (size_t at = 0; rc == ONCE_OK && at < r->n_ids;) rc = replay_some(r, &at, err);
    r->n_ids = 0;
    return rc;
}

/* Waits if it is ahead of the rate; lets a run that uses the same store work in between. */
static int keep_pace(replaying *r, once_error *err)
{
    assert(r->n_ids == 0 && r->n == 0);
    const bool paced = r->options->rate && !r->options->dry_run;
    const double ahead_s = paced ? (double)r->paced / (double)r->options->rate - seconds_since(r) : 0;
    return once__operator_pause(r->pipeline, &r->store, ahead_s > 0 ? (int64_t)(ahead_s * 1000) : 0, err);
}

static bool collect(void *user, const once_letter *letter)
{
    replaying *r = user;
    assert(r->n_ids < BATCH);
    r->after = letter->id;
    r->scanned++;
    if (once__choice_has_letter(&r->options->choice, letter)) r->ids[r->n_ids++] = letter->id;
    return r->n_ids < r->max && r->scanned < PAGE;
}

/* Visits the letters after `after`; their messages are read when they are moved. */
static int look_through(const replaying *r, uint64_t after, bool only_ids, once_letter_visit *visit, void *user,
                        once_error *err)
{
    const once_store_ops *ops = r->store->ops;
    const once_bytes consumer = r->pipeline->spec->consumer;
    return ops->letter_heads ? ops->letter_heads(r->store, consumer, after, only_ids, visit, user, err)
                             : ops->letters(r->store, consumer, after, visit, user, err);
}

static int replay_found(replaying *r, uint64_t last, once_error *err)
{
    assert(r->n_ids == 0 && r->max > 0 && r->max <= BATCH);
    int rc = ONCE_OK;
    do {
        r->scanned = 0;
        rc = look_through(r, r->after, once__choice_is_all(&r->options->choice), collect, r, err);
        while (r->n_ids && r->ids[r->n_ids - 1] > last) r->n_ids--; /* created since: for the next replay */
        r->looked_at += r->scanned;
        if (rc == ONCE_OK) rc = replay_batch(r, err);
        if (rc == ONCE_OK) rc = keep_pace(r, err);
    } while (rc == ONCE_OK && r->scanned && r->after < last && !atomic_load(&r->pipeline->stop));
    r->counts->stopped = r->scanned && r->after < last;
    return rc;
}

static int replay_named(replaying *r, once_error *err)
{
    assert(r->n_ids == 0 && r->max > 0 && r->max <= BATCH);
    const once_replay_options *o = r->options;
    int rc = ONCE_OK;
    size_t at = 0;
    while (at < o->n_ids && rc == ONCE_OK && !atomic_load(&r->pipeline->stop)) {
        while (at < o->n_ids && r->n_ids < r->max) r->ids[r->n_ids++] = o->ids[at++];
        r->looked_at = at;
        rc = replay_batch(r, err);
        if (rc == ONCE_OK) rc = keep_pace(r, err);
    }
    r->counts->stopped = at < o->n_ids;
    return rc;
}

static bool note_id(void *user, const once_letter *letter)
{
    *(uint64_t *)user = letter->id;
    return false;
}

/* Finds the id of the last letter by bisection: reading all letters would take longer than moving some. */
static int find_last(replaying *r, uint64_t *last, once_error *err)
{
    uint64_t high = INT64_MAX; /* no id is larger */
    *last = 0;
    while (*last < high) {
        const uint64_t middle = *last + (high - *last) / 2;
        uint64_t id = 0;
        const int rc = look_through(r, middle, true, note_id, &id, err);
        if (rc != ONCE_OK) return rc;
        if (id) *last = id;
        else high = middle;
    }
    return ONCE_OK;
}

static int replay_all(replaying *r, once_error *err)
{
    const once_replay_options *o = r->options;
    r->max = o->rate && o->rate / 4 < BATCH ? (o->rate < 4 ? 1 : o->rate / 4) : BATCH;
    r->begun_ns = once_env_mono_ns(r->pipeline->env);
    if (o->ids) {
        r->total = o->n_ids;
        return replay_named(r, err);
    }
    uint64_t last;
    once_stats stats = {0};
    int rc = find_last(r, &last, err);
    /* after find_last: no more letters can appear up to `last` */
    if (rc == ONCE_OK) rc = r->store->ops->stats(r->store, r->pipeline->spec->consumer, &stats, err);
    r->total = stats.dead;
    return rc == ONCE_OK ? replay_found(r, last, err) : rc;
}

int once_pipeline_replay(once_pipeline *pipeline, const once_replay_options *options, once_replay_counts *out,
                         once_error *err)
{
    once_replay_options asked;
    if (!pipeline || !options || !out)
        return once_fail(err, ONCE_E_USAGE,
                         "once_pipeline_replay needs a pipeline, options and a place for the counts");
    int rc = once_sized_read("once_replay_options", options, &asked, sizeof asked, err);
    if (rc == ONCE_OK) rc = once__check_choice(&asked.choice, asked.ids, asked.n_ids, err);
    if (rc != ONCE_OK) return rc;
    *out = (once_replay_counts){0};
    if (asked.body && (!asked.ids || asked.n_ids != 1))
        return once_fail(err, ONCE_E_USAGE, "a new body needs exactly one letter");
    if (asked.body && once_bytes_lie(*asked.body))
        return once_fail(err, ONCE_E_USAGE, "the body has a length, but its data is NULL");
    replaying *r = calloc(1, sizeof *r);
    if (!r) return once_no_memory(err, "for a replay");
    r->pipeline = pipeline;
    r->options = &asked;
    r->counts = out;
    rc = once__open_keyed(pipeline, &r->store, err);
    if (rc == ONCE_OK) {
        once_intake_init(&r->intake, pipeline->spec, r->store->secret, 0, once_effect_prepare);
        r->keying = once__keying_of(pipeline, r->store);
        /* with keys made in another way, finished messages would run again */
        rc = once__consumer_check_keys(pipeline, r->store, ONCE_KEYS_LOOK, err);
        if (rc == ONCE_OK) rc = replay_all(r, err);
        once_intake_release(&r->intake);
        once_arena_release(&r->batch.arena);
        once__operator_close(pipeline, r->store);
    }
    once__preview_close(&r->preview);
    free(r);
    return rc;
}
