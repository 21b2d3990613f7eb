/* `once replay`: puts dead letters back to work. A letter of a dead entry revives that entry. Every other letter is
 * treated as a new delivery, through intake and accept, so that it gets the same answer as one from the source. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/duration.h"
#include "base/failpoint.h"
#include "base/no_memory.h"
#include "base/usage.h"
#include "core/intake.h"
#include "runtime/audit.h"
#include "runtime/choice.h"
#include "runtime/known_store.h"
#include "runtime/operate.h"
#include "runtime/replay_lot.h"
#include "store/engine.h"

#include "base/banned.h"

enum {
    LOT_BYTES = 4 << 20, /* bytes of the messages of a lot: the letter that reaches this is the last of it */
    PAGE = 16384         /* letters scanned in one go */
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
    once_keying keying;
    const once_replay_options *options;
    once_replay_counts *counts;
    once_intake intake;
    once_replay_lot lots[2];    /* the first has the operator's handle; the second may have none */
    once_replay_lot *lot;       /* the one that is filled */
    once_replay_lot *before;    /* the one that is committed meanwhile; NULL: none */
    once_preview_table preview; /* dry run: keys that earlier lots would put back */

    once_reading letters;
    uint64_t ids[ONCE_LOT]; /* of the next lots */
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
    *item = (once_item){.batch = &r->lot->batch, .message = letter->message};
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
    int rc = r->lot->store->ops->accept(r->lot->store, &request, &message, 1, &decision, &r->lot->batch.arena, err);
    if (rc != ONCE_OK) return rc;
    out->verdict = verdict_of(decision.answer);
    if (decision.answer == ONCE_ANSWER_DUPLICATE && decision.outcome == ONCE_STALE)
        out->verdict = ONCE_REPLAY_stale; /* a stale message had no effect */
    if (decision.answer == ONCE_ANSWER_DUPLICATE) out->result = decision.result;
    if (decision.answer == ONCE_ANSWER_DEAD) out->reason = ONCE_BYTES("its key has another dead letter");
    if (decision.answer != ONCE_ANSWER_TOO_OLD || !r->options->force) return ONCE_OK;
    item->request.sent_ms = ONCE_NO_TIME;
    rc = r->lot->store->ops->accept(r->lot->store, &request, &message, 1, &decision, &r->lot->batch.arena, err);
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
    if (!r->options->body) return r->lot->store->ops->replay_letter(r->lot->store, letter->id, ended, err);
    const int rc =
        r->lot->store->ops->replay_with_body(r->lot->store, letter->id, &item->request, &item->message, ended, err);
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
    const int rc = r->lot->store->ops->outlook(r->lot->store, &item->request, &lane, &r->lot->batch.arena, err);
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
    once_item *item = once_arena_new(&r->lot->batch.arena, once_item, 1);
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
    once_preview *mine = &r->lot->would[r->lot->n - 1];
    bool behind;
    *mine = preview_of(&item->request);
    rc = look_behind_another(r, mine, out, &behind, err);
    if (rc != ONCE_OK || behind) return rc;
    once_entry entry;
    rc = r->lot->store->ops->get(r->lot->store, item->request.id, &entry, &r->lot->batch.arena, err);
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
    r->lot->alone = true;
    if (!again) return accept_again(r, item, out, err);
    if (out->verdict == ONCE_REPLAY_duplicate) return ONCE_OK;
    bool done;
    rc = r->lot->store->ops->revive(r->lot->store, &item->request, &item->message, &done, err);
    assert(rc != ONCE_OK || done);
    return rc;
}

static int replay_one(replaying *r, uint64_t id, once_error *err)
{
    once_replay_lot *lot = r->lot;
    assert(lot->n < ONCE_LOT);
    once_replayed *out = &lot->results[lot->n];
    once_letter letter;
    bool found, ended = false;
    *out = (once_replayed){.letter = id, .verdict = ONCE_REPLAY_gone};
    int rc = r->lot->store->ops->letter_get(r->lot->store, id, &letter, &found, &r->lot->batch.arena, err);
    if (rc != ONCE_OK) return rc;
    lot->would[lot->n++] = (once_preview){0};
    if (!found || !once_bytes_equal(letter.scope.consumer, r->pipeline->spec->consumer)) return ONCE_OK;
    out->scope = letter.scope;
    out->key = letter.key;
    out->type = letter.message.type;
    out->maybe_done = once_spec_maybe_done(r->pipeline->spec, letter.scope.operation, letter.maybe_done);
    out->place = letter.message.at.place;
    out->point = letter.message.at.point;
    out->reason = letter.reason;
    once__letter_outward_key(&r->keying, &letter, out->idempotency_key);
    lot->bytes += letter.message.body.len + letter.message.headers.len;
    once__letters_note(&r->letters, &letter);
    rc = move(r, &letter, out, &ended, err);
    assert(out->verdict < ONCE_REPLAY_VERDICTS);
    if (!ended && out->verdict != ONCE_REPLAY_run && out->verdict != ONCE_REPLAY_forced)
        r->lot->would[r->lot->n - 1].id = 0; /* it puts no key back */
    if (rc != ONCE_OK || !verdicts[out->verdict].leaves) return rc;
    /* If the old, wrong message is delivered again, it must stay discarded. */
    if (!ended && r->options->body)
        rc = r->lot->store->ops->discard(r->lot->store, id,
                                         once__letter_remember(r->pipeline->spec, letter.scope.operation), &found, err);
    else if (!ended) rc = r->lot->store->ops->letter_drop(r->lot->store, id, &found, err);
    const bool forced = out->verdict == ONCE_REPLAY_forced, body = r->options->body != NULL;
    const char *what = forced ? (body ? "replay --force --body" : "replay --force") : body ? "replay --body" : "replay";
    const once_act act = {.what = what,
                          .note = verdicts[out->verdict].text,
                          .scope = out->scope,
                          .key = out->key,
                          .letter = id,
                          .idempotency_key = out->idempotency_key,
                          .body = body ? letter.message.body : (once_bytes){0}};
    if (rc == ONCE_OK) rc = once__audit(r->pipeline, lot->store, &act, err);
    if (rc == ONCE_OK && ONCE_FAIL_AT(replay_between)) rc = once_fail(err, ONCE_E_IO, "failpoint replay_between");
    return rc;
}

static double seconds_since(const replaying *r)
{
    return (double)(once_env_mono_ns(r->pipeline->env) - r->begun_ns) / 1e9;
}

/* Remembers the keys that this lot would have put back. */
static int remember_preview(replaying *r, once_error *err)
{
    assert(r->options->dry_run);
    const once_replay_lot *lot = r->lot;
    int rc = r->preview.size ? ONCE_OK : once__preview_open(&r->preview, r->total, err);
    for (size_t i = 0; i < lot->n && rc == ONCE_OK; i++) {
        if (lot->would[i].id) rc = once__preview_put(&r->preview, &lot->would[i], err);
    }
    return rc;
}

static void report(replaying *r, const once_replay_lot *lot)
{
    assert(lot->n <= ONCE_LOT);
    for (size_t i = 0; i < lot->n; i++) {
        r->counts->verdicts[lot->results[i].verdict]++;
        r->paced += verdicts[lot->results[i].verdict].leaves;
        if (r->options->visit) r->options->visit(r->options->user, &lot->results[i]);
    }
    if (r->options->progress) r->options->progress(r->options->user, lot->looked_at, r->total, seconds_since(r));
}

/* Waits for the lot whose commit has begun, and reports it. */
static int finish_before(replaying *r, once_error *err)
{
    once_replay_lot *before = r->before;
    if (!before) return ONCE_OK;
    r->before = NULL;
    const int rc = once__lot_committed(before, err);
    if (rc == ONCE_OK) report(r, before);
    return rc;
}

/* Commits the lot: now, or while the next one is filled. The lot before it is reported when the commit has begun: a
 * visitor may take its time (a person reads the output), and no transaction is open meanwhile. */
static int commit(replaying *r, once_error *err)
{
    once_replay_lot *lot = r->lot, *before = r->before;
    const bool beside = r->lots[1].store && !lot->alone;
    const int rc = before ? once__lot_committed(before, err) : ONCE_OK;
    r->before = NULL;
    if (rc != ONCE_OK) {
        lot->store->ops->rollback(lot->store);
        return rc;
    }
    lot->looked_at = r->looked_at;
    once__lot_commit(lot, beside);
    if (before) report(r, before);
    r->before = lot;
    if (!beside) return finish_before(r, err);
    r->lot = lot == &r->lots[0] ? &r->lots[1] : &r->lots[0];
    return ONCE_OK;
}

static int end_dry_run(replaying *r, bool more, once_error *err)
{
    r->lot->store->ops->rollback(r->lot->store);
    const int rc = more ? remember_preview(r, err) : ONCE_OK;
    r->lot->looked_at = r->looked_at;
    if (rc == ONCE_OK) report(r, r->lot);
    return rc;
}

/* Replays letters from ids[*at] on, in one transaction. */
static int replay_lot(replaying *r, size_t *at, once_error *err)
{
    assert(*at < r->n_ids && r->n_ids <= ONCE_LOT);
    if (ONCE_FAIL_AT(replay_before)) return once_fail(err, ONCE_E_IO, "failpoint replay_before");
    once_backend *store = r->lot->store;
    r->letters.left = 0;
    int rc = once__lot_begin(r->lot, err);
    if (rc != ONCE_OK) return rc;
    while (rc == ONCE_OK && *at < r->n_ids && r->lot->bytes < LOT_BYTES) {
        rc = once__letters_ahead(&r->letters, store, r->ids + *at, r->n_ids - *at, err);
        if (rc == ONCE_OK) rc = replay_one(r, r->ids[(*at)++], err);
    }
    if (rc == ONCE_OK && r->options->dry_run) return end_dry_run(r, *at < r->n_ids || r->looked_at < r->total, err);
    if (rc == ONCE_OK) return commit(r, err);
    store->ops->rollback(store);
    return rc;
}

static int replay_ids(replaying *r, once_error *err)
{
    int rc = ONCE_OK;
    for (size_t at = 0; rc == ONCE_OK && at < r->n_ids;) rc = replay_lot(r, &at, err);
    r->n_ids = 0;
    return rc;
}

/* Waits if it is ahead of the rate; lets a run that uses the same store work in between. (With a second handle the
 * first one may be in its commit; then both are ours alone, and nobody else uses them meanwhile.) */
static int keep_pace(replaying *r, once_error *err)
{
    assert(r->n_ids == 0);
    const bool paced = r->options->rate && !r->options->dry_run;
    const double ahead_s = paced ? (double)r->paced / (double)r->options->rate - seconds_since(r) : 0;
    return once__operator_pause(r->pipeline, &r->lots[0].store, ahead_s > 0 ? (int64_t)(ahead_s * 1000) : 0, err);
}

static bool collect(void *user, const once_letter *letter)
{
    replaying *r = user;
    assert(r->n_ids < ONCE_LOT);
    r->after = letter->id;
    r->scanned++;
    if (once__choice_has_letter(&r->options->choice, letter)) r->ids[r->n_ids++] = letter->id;
    return r->n_ids < r->max && r->scanned < PAGE;
}

/* Visits the letters after `after`; their messages are read when they are moved. */
static int look_through(const replaying *r, uint64_t after, bool only_ids, once_letter_visit *visit, void *user,
                        once_error *err)
{
    const once_store_ops *ops = r->lot->store->ops;
    const once_bytes consumer = r->pipeline->spec->consumer;
    return ops->letter_heads ? ops->letter_heads(r->lot->store, consumer, after, only_ids, visit, user, err)
                             : ops->letters(r->lot->store, consumer, after, visit, user, err);
}

static int replay_found(replaying *r, uint64_t last, once_error *err)
{
    assert(r->n_ids == 0 && r->max > 0 && r->max <= ONCE_LOT);
    int rc = ONCE_OK;
    do {
        r->scanned = 0;
        rc = look_through(r, r->after, once__choice_is_all(&r->options->choice), collect, r, err);
        while (r->n_ids && r->ids[r->n_ids - 1] > last) r->n_ids--; /* created since: for the next replay */
        r->looked_at += r->scanned;
        if (rc == ONCE_OK) rc = replay_ids(r, err);
        if (rc == ONCE_OK) rc = keep_pace(r, err);
    } while (rc == ONCE_OK && r->scanned && r->after < last && !atomic_load(&r->pipeline->stop));
    r->counts->stopped = r->scanned && r->after < last;
    return rc;
}

static int replay_named(replaying *r, once_error *err)
{
    assert(r->n_ids == 0 && r->max > 0 && r->max <= ONCE_LOT);
    const once_replay_options *o = r->options;
    int rc = ONCE_OK;
    size_t at = 0;
    while (at < o->n_ids && rc == ONCE_OK && !atomic_load(&r->pipeline->stop)) {
        while (at < o->n_ids && r->n_ids < r->max) r->ids[r->n_ids++] = o->ids[at++];
        r->looked_at = at;
        rc = replay_ids(r, err);
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

/* Opens a second handle, if it saves time: not for a single lot, not at a given rate, and not beside a run, whose
 * handle is lent to us between two of its transactions. Not for letters that were named: one may be named twice, and
 * the second lot would read it while the first one removes it. Without a second handle (the server has no connection
 * left), lots are moved one after the other. */
static void open_second(replaying *r)
{
    const once_backend *first = r->lots[0].store;
    once_backend *second;
    if (!(first->bits & ONCE_STORE_PARALLEL) || first == r->pipeline->run_store) return;
    if (r->total <= r->max || r->options->rate || r->options->dry_run || r->options->ids) return;
    if (once__known_open_store(r->pipeline, &second, NULL) != ONCE_OK) return;
    if (memcmp(&second->secret, &first->secret, sizeof second->secret) == 0) r->lots[1].store = second;
    else once__store_close(second); /* another store is there now: the first handle will find out */
}

/* The letters up to `last`, or those that were named. */
static int replay_chosen(replaying *r, uint64_t last, once_error *err)
{
    once_error first;
    open_second(r);
    const int rc = r->options->ids ? replay_named(r, err) : replay_found(r, last, err), end = finish_before(r, &first);
    if (end != ONCE_OK && err) *err = first; /* it came before what may have happened to the next lot */
    return end != ONCE_OK ? end : rc;
}

static int replay_all(replaying *r, once_error *err)
{
    const once_replay_options *o = r->options;
    r->max = o->rate && o->rate / 4 < ONCE_LOT ? (o->rate < 4 ? 1 : o->rate / 4) : ONCE_LOT;
    r->begun_ns = once_env_mono_ns(r->pipeline->env);
    if (o->ids) {
        r->total = o->n_ids;
        return replay_chosen(r, 0, err);
    }
    uint64_t last;
    once_stats stats = {0};
    int rc = find_last(r, &last, err);
    /* after find_last: no more letters can appear up to `last` */
    if (rc == ONCE_OK) rc = r->lot->store->ops->stats(r->lot->store, r->pipeline->spec->consumer, &stats, err);
    r->total = stats.dead;
    return rc == ONCE_OK ? replay_chosen(r, last, err) : rc;
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
    r->lot = &r->lots[0];
    rc = once__open_keyed(pipeline, &r->lot->store, err);
    if (rc == ONCE_OK) {
        once_intake_init(&r->intake, pipeline->spec, r->lot->store->secret, 0, once_effect_prepare);
        r->keying = once__keying_of(pipeline, r->lot->store);
        /* with keys made in another way, finished messages would run again */
        rc = once__consumer_check_keys(pipeline, r->lot->store, ONCE_KEYS_LOOK, err);
        if (rc == ONCE_OK) rc = replay_all(r, err);
        once_intake_release(&r->intake);
        for (size_t i = 0; i < 2; i++) once_arena_release(&r->lots[i].batch.arena);
        if (r->lots[1].store) once__store_close(r->lots[1].store);
        once__operator_close(pipeline, r->lots[0].store);
    }
    once__preview_close(&r->preview);
    free(r);
    return rc;
}
