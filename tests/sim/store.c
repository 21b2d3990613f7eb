/* A decorator between an executor and a real store. It passes every call on, unless a fault fires, and notes the real
 * answer, whether or not the caller receives it. */
#include <assert.h>
#include <stdlib.h>

#include "sim.h"

static sim_worker *worker_of(once_backend *store) { return ((sim_store *)store)->worker; }

static int lost(sim_worker *w, once_error *err)
{
    w->trouble_ms = w->world->now_ms;
    w->counted = false;
    return once_fail(err, ONCE_E_UNAVAILABLE, "simulated: the reply was lost");
}

/* The one memory store has the clocks of whoever calls. */
static void lend_clock(sim_worker *w)
{
    w->world->memory_env.wall_ms = w->env.wall_ms;
    w->world->memory_env.boot_ms = w->env.boot_ms;
}

/* What keeps a call from arriving. */
static int obstacle(sim_worker *w, sim_fault fault, once_error *err)
{
    sim_world *world = w->world;
    lend_clock(w);
    if (world->store_down_until_ms > world->now_ms || w->tx_lost || !w->real)
        return once_fail(err, ONCE_E_UNAVAILABLE, "simulated: the store is down");
    if (world->tx_owner && world->tx_owner != w) {
        sim_fired(world, SIM_store_busy);
        return once_fail(err, ONCE_E_BUSY, "simulated: another worker has the store");
    }
    if (w->disproved && (fault == SIM_commit_fails || sim_chance(world, 30))) {
        sim_fired(world, SIM_disproved);
        return once_fail(err, ONCE_E_MESSAGE, "simulated: an effect has failed");
    }
    if (!sim_fires(world, fault)) return ONCE_OK;
    static const int statuses[] = {ONCE_E_UNAVAILABLE, ONCE_E_UNAVAILABLE, ONCE_E_UNAVAILABLE, ONCE_E_ABORTED,
                                   ONCE_E_NOMEM,       ONCE_E_FULL,        ONCE_E_IO};
    return once_fail(err, statuses[sim_random(world, sizeof statuses / sizeof *statuses)], "simulated");
}

static int arrive(sim_worker *w, sim_fault fault, once_error *err)
{
    const int rc = obstacle(w, fault, err);
    if (rc != ONCE_OK && rc != ONCE_E_MESSAGE) w->trouble_ms = w->world->now_ms;
    return rc;
}

/* A commit whose fate is known has not failed in this sense. */
static void note_failed_commit(sim_worker *w, int rc)
{
    if (rc != ONCE_OK && rc != ONCE_E_MESSAGE) sim_record_commit_failed(w);
}

/* Facts are written on the way to a commit: when that fails, the commit has. */
static void note_failed_fact(sim_worker *w, int rc)
{
    if (w->in_tx) note_failed_commit(w, rc);
}

/* Outside of transactions an answer is a fact at once. */
static int leave(sim_worker *w, int rc, bool reply_lost, once_error *err)
{
    if (rc != ONCE_OK) {
        if (!w->in_tx) sim_notes_drop(w);
        return rc;
    }
    if (!w->in_tx) sim_notes_commit(w);
    return reply_lost ? lost(w, err) : ONCE_OK;
}

/* Nothing is claimed that cannot start now: its lease would run while it waits. */
static void check_slot(sim_worker *w, int key, const char *how)
{
    const int handler = w->world->keys[key].handler;
    const sim_handler *h = &w->world->handlers[handler];
    const size_t air = sim_flights_air(w, handler), claimed = sim_record_claimed(w, handler, key);
    if (h->external && air + claimed >= h->slots)
        sim_violation(w->world,
                      "key %d: %s while %zu effects are under way and %zu are claimed, and there are %u slots", key,
                      how, air, claimed, h->slots);
}

static void note_answer(sim_worker *w, const once_request *request, const once_decision *d, bool taken, bool known)
{
    const int key = sim_key_of(w->world, request);
    if (d->answer != ONCE_ANSWER_RUN || d->unclaimed) return;
    sim_note_add(w, (sim_note){.what = NOTE_GRANT,
                               .key = key,
                               .message = -1,
                               .token = request->token,
                               .known = known,
                               .taken = taken,
                               .unreported = d->unreported});
}

/* Somebody asks about it. */
static void note_question(sim_worker *w, const once_request *request, bool known)
{
    sim_note_add(w, (sim_note){.what = NOTE_ASKED,
                               .key = sim_key_of(w->world, request),
                               .message = -1,
                               .token = request->token,
                               .known = known,
                               .taken = true});
}

/* Other content gave way. Outside of a transaction a worker that does not hear of it counts it as waiting for ever. */
static void note_replaced(sim_worker *w, const once_request *request, const once_decision *d, bool reply_lost)
{
    if (!d->replaced) return;
    sim_note_add(w, (sim_note){.what = NOTE_REPLACED,
                               .key = sim_key_of(w->world, request),
                               .message = sim_message_of(w->world, &(once_message){.at = request->at}),
                               .token = request->token,
                               .fresh = d->letter});
    if (reply_lost && !w->in_tx && d->letter) w->world->unheard++;
}

/* It had become a letter in a commit whose reply was lost, and a newer version has ended since. A letter without an
 * entry cannot answer for that commit, so the message is what the store says now: stale, and not counted as dead. */
static void note_stale(sim_worker *w, const once_coordinates *at, const once_decision *d)
{
    sim_message *m = &w->world->messages[sim_message_of(w->world, &(once_message){.at = *at})];
    if (d->answer != ONCE_ANSWER_STALE || m->in_doubt != w->incarnation) return;
    m->in_doubt = 0;
    w->world->letters--;
}

/* The worker counts a letter when it hears of its commit. */
static void note_letters_heard(sim_worker *w, bool reply_lost)
{
    sim_world *world = w->world;
    for (size_t i = 0; reply_lost && i < w->notes_n; i++)
        if (w->notes[i].what == NOTE_LETTER) world->messages[w->notes[i].message].in_doubt = w->incarnation;
    for (int i = 0; !reply_lost && i < world->messages_n; i++) {
        sim_message *m = &world->messages[i];
        if (m->in_doubt == w->incarnation && m->buried_again == w->transactions) m->in_doubt = 0;
    }
}

static void check_claim(sim_worker *w, const once_request *request, const once_decision *d)
{
    sim_world *world = w->world;
    const int key = sim_key_of(world, request);
    const sim_handler *h = &world->handlers[world->keys[key].handler];
    const bool ended = sim_flights_landed(world, request->token) >= 0; /* it is claimed to settle what became of it */
    if (d->answer == ONCE_ANSWER_RUN && !d->own && !ended) check_slot(w, key, "claimed");
    if (d->unclaimed && !request->unclaimed)
        sim_violation(world, "key %d: may run without a claim, and that was not asked for", key);
    /* What is taken from the store may find an equal one in the queue that was there before. What must go to the store,
     * because it cannot be extended any more, goes past an equal one; after a commit in doubt that is found out by a
     * claim. */
    if (d->answer == ONCE_ANSWER_BUSY && h->external && sim_record_own(w, key) && !world->keys[key].taken &&
        !sim_handouts_last(w, key))
        sim_violation(world, "key %d: asked for by the worker whose own effect of it is not over", key);
    if (d->lane && d->answer == ONCE_ANSWER_CONFLICT && world->keys[key].twin < 0)
        sim_violation(world, "key %d: a conflict with a version that nobody else has", key);
    if (d->answer == ONCE_ANSWER_DUPLICATE && d->outcome == ONCE_DONE && h->natural && !world->versioned)
        sim_violation(world, "key %d: remembered, although its effect is natural", key);
}

static int sim_claim(once_backend *store, const once_request *const *requests, size_t n, once_decision *out,
                     once_arena *arena, once_error *err)
{
    sim_worker *w = worker_of(store);
    int rc = arrive(w, SIM_store_fails, err);
    if (rc != ONCE_OK) return rc;
    rc = w->real->ops->claim(w->real, requests, n, out, arena, err);
    const bool reply_lost = rc == ONCE_OK && sim_fires(w->world, SIM_store_reply_lost);
    for (size_t i = 0; rc == ONCE_OK && i < n; i++) {
        sim_trace(w->world, w->index, "  claim of key answers", once_answer_name(out[i].answer),
                  sim_key_of(w->world, requests[i]), -1, ONCE_OK);
        check_claim(w, requests[i], &out[i]);
        note_stale(w, &requests[i]->at, &out[i]);
        note_replaced(w, requests[i], &out[i], reply_lost);
        note_answer(w, requests[i], &out[i], false, !reply_lost);
    }
    return leave(w, rc, reply_lost, err);
}

static int sim_settle(once_backend *store, const once_settlement *settlements, size_t n, bool *applied, once_error *err)
{
    sim_worker *w = worker_of(store);
    int rc = arrive(w, SIM_store_fails, err);
    if (rc != ONCE_OK) return rc;
    rc = w->real->ops->settle(w->real, settlements, n, applied, err);
    for (size_t i = 0; rc == ONCE_OK && i < n; i++) {
        const once_settlement *s = &settlements[i];
        const int key = sim_key_of(w->world, s->request);
        sim_trace(w->world, w->index, applied[i] ? "  settled:" : "  fenced off:", once_outcome_name(s->outcome), key,
                  -1, ONCE_OK);
        if (applied[i])
            sim_note_add(w, (sim_note){.what = NOTE_OUTCOME,
                                       .key = key,
                                       .message = s->message ? sim_message_of(w->world, s->message) : -1,
                                       .outcome = s->outcome,
                                       .token = s->request->token,
                                       .maybe_done = s->maybe_done,
                                       .delay_ms = s->delay_ms,
                                       .hung_up = s->reason.len >= 20 &&
                                                  memcmp(s->reason.data, "the database hung up", 20) == 0});
        else sim_record_dropped(w, s->request);
    }
    return leave(w, rc, rc == ONCE_OK && sim_fires(w->world, SIM_store_reply_lost), err);
}

static int sim_extend(once_backend *store, const once_request *const *requests, size_t n, bool *ours, once_error *err)
{
    sim_worker *w = worker_of(store);
    int rc = arrive(w, SIM_store_fails, err);
    if (rc != ONCE_OK) return rc;
    rc = w->real->ops->extend(w->real, requests, n, ours, err);
    for (size_t i = 0; rc == ONCE_OK && i < n; i++) {
        const int key = sim_key_of(w->world, requests[i]);
        const bool ends = requests[i]->lease_ms == 0;
        sim_trace(w->world, w->index,
                  ends      ? "  ends the claim of key"
                  : ours[i] ? "  still has key"
                            : "  has lost key",
                  NULL, key, ours[i], ONCE_OK);
        if (ends) {
            if (ours[i]) sim_record_ended(w, requests[i]);
        } else if (ours[i])
            sim_note_add(w, (sim_note){.what = NOTE_EXTENDED, .key = key, .message = -1, .token = requests[i]->token});
        else {
            sim_record_dropped(w, requests[i]);
            sim_record_then(w, key, false);
        }
    }
    return leave(w, rc, rc == ONCE_OK && sim_fires(w->world, SIM_store_reply_lost), err);
}

static int sim_accept(once_backend *store, const once_request *const *requests, const once_message *const *messages,
                      size_t n, once_decision *out, once_arena *arena, once_error *err)
{
    sim_worker *w = worker_of(store);
    int rc = arrive(w, SIM_store_fails, err);
    if (rc != ONCE_OK) return rc;
    rc = w->real->ops->accept(w->real, requests, messages, n, out, arena, err);
    for (size_t i = 0; rc == ONCE_OK && i < n; i++) {
        const int key = sim_key_of(w->world, requests[i]);
        sim_trace(w->world, w->index, "  accept of key answers", once_answer_name(out[i].answer), key, -1, ONCE_OK);
        note_stale(w, &requests[i]->at, &out[i]);
        note_replaced(w, requests[i], &out[i], false);
        switch (out[i].answer) {
        case ONCE_ANSWER_WAITING:
        case ONCE_ANSWER_BUSY:
        case ONCE_ANSWER_LATER:
        case ONCE_ANSWER_UNKNOWN:
            sim_note_add(w,
                         (sim_note){.what = NOTE_OWNED, .key = key, .message = sim_message_of(w->world, messages[i])});
            break;
        default: break;
        }
    }
    return leave(w, rc, rc == ONCE_OK && sim_fires(w->world, SIM_store_reply_lost), err);
}

static int sim_take(once_backend *store, once_bytes consumer, once_token token, bool again, int64_t lease_ms,
                    size_t max, once_due_filter *filter, once_taken *out, size_t *n, once_arena *arena, once_error *err)
{
    sim_worker *w = worker_of(store);
    int rc = arrive(w, SIM_store_fails, err);
    if (rc != ONCE_OK) return rc;
    rc = w->real->ops->take(w->real, consumer, token, again, lease_ms, max, filter, out, n, arena, err);
    const bool reply_lost = rc == ONCE_OK && sim_fires(w->world, SIM_store_reply_lost);
    for (size_t i = 0; rc == ONCE_OK && i < *n; i++) {
        sim_trace(w->world, w->index, "  takes key", once_answer_name(out[i].decision.answer),
                  sim_key_of(w->world, &out[i].request), out[i].decision.failures, ONCE_OK);
        const bool fresh = out[i].decision.answer == ONCE_ANSWER_RUN && !again;
        if (fresh) check_slot(w, sim_key_of(w->world, &out[i].request), "taken");
        if (out[i].decision.asks) note_question(w, &out[i].request, !reply_lost);
        note_answer(w, &out[i].request, &out[i].decision, true, !reply_lost);
        if (out[i].decision.answer == ONCE_ANSWER_DUPLICATE || out[i].decision.answer == ONCE_ANSWER_CONFLICT)
            sim_note_add(w, (sim_note){.what = NOTE_JUDGED,
                                       .key = sim_key_of(w->world, &out[i].request),
                                       .message = -1,
                                       .answer = out[i].decision.answer});
        if (out[i].decision.lapsed) sim_record_lapsed(w, &out[i].request);
        if (reply_lost && out[i].decision.answer == ONCE_ANSWER_CONFLICT) w->world->unheard++;
    }
    return leave(w, rc, reply_lost, err);
}

/* What is over is unknown for whoever looks; that somebody writes it down changes nothing. */
static int sim_lapse(once_backend *store, once_bytes consumer, uint64_t except_run, size_t max, once_taken *out,
                     size_t *n, once_arena *arena, once_error *err)
{
    sim_worker *w = worker_of(store);
    int rc = arrive(w, SIM_store_fails, err);
    if (rc != ONCE_OK) return rc;
    rc = w->real->ops->lapse(w->real, consumer, except_run, max, out, n, arena, err);
    for (size_t i = 0; rc == ONCE_OK && i < *n; i++) sim_record_lapsed(w, &out[i].request);
    return leave(w, rc, rc == ONCE_OK && sim_fires(w->world, SIM_store_reply_lost), err);
}

static int sim_find(once_backend *store, once_bytes consumer, const once_request *const *requests, size_t n, bool due,
                    size_t max, once_taken *out, size_t *n_out, bool *rest, once_arena *arena, once_error *err)
{
    sim_worker *w = worker_of(store);
    const int rc = arrive(w, SIM_store_fails, err);
    if (rc != ONCE_OK) return rc;
    const int found = w->real->ops->find(w->real, consumer, requests, n, due, max, out, n_out, rest, arena, err);
    for (size_t i = 0; found == ONCE_OK && i < *n_out; i++)
        sim_trace(w->world, w->index, "  finds key", NULL, sim_key_of(w->world, &out[i].request), -1, ONCE_OK);
    return found;
}

static int sim_bury(once_backend *store, const once_letter *letters, size_t n, bool *fresh, once_error *err)
{
    sim_worker *w = worker_of(store);
    int rc = arrive(w, SIM_store_fails, err);
    if (rc != ONCE_OK) return rc;
    rc = w->real->ops->bury(w->real, letters, n, fresh, err);
    for (size_t i = 0; rc == ONCE_OK && i < n; i++) {
        const int message = sim_message_of(w->world, &letters[i].message);
        sim_trace(w->world, w->index, fresh[i] ? "  buries message" : "  had buried message",
                  once_answer_name(letters[i].kind), message, -1, ONCE_OK);
        w->world->messages[message].buried_again = w->transactions;
        if (fresh[i])
            sim_note_add(w, (sim_note){.what = NOTE_LETTER, .key = -1, .message = message, .answer = letters[i].kind});
    }
    return leave(w, rc, rc == ONCE_OK && sim_fires(w->world, SIM_store_reply_lost), err);
}

static int sim_stats(once_backend *store, once_bytes consumer, once_stats *out, once_error *err)
{
    sim_worker *w = worker_of(store);
    const int rc = arrive(w, SIM_store_fails, err);
    return rc == ONCE_OK ? w->real->ops->stats(w->real, consumer, out, err) : rc;
}

static int sim_waiting_size(once_backend *store, once_bytes consumer, once_waiting_size *out, once_error *err)
{
    sim_worker *w = worker_of(store);
    int rc = arrive(w, SIM_store_fails, err);
    if (rc == ONCE_OK) rc = w->real->ops->waiting_size(w->real, consumer, out, err);
    w->counted = rc == ONCE_OK;
    return rc;
}

static int sim_get(once_backend *store, once_hash id, once_entry *out, once_arena *arena, once_error *err)
{
    sim_worker *w = worker_of(store);
    const int rc = arrive(w, SIM_store_fails, err);
    return rc == ONCE_OK ? w->real->ops->get(w->real, id, out, arena, err) : rc;
}

static int sim_sweep(once_backend *store, size_t limit, once_sweep_result *out, once_error *err)
{
    sim_worker *w = worker_of(store);
    int rc = arrive(w, SIM_store_fails, err);
    if (rc != ONCE_OK) return rc;
    if (w->world->now_ms < w->sweep_not_before_ms)
        sim_violation(w->world, "worker %d sweeps %lld ms before the store wants it to", w->index,
                      (long long)(w->sweep_not_before_ms - w->world->now_ms));
    rc = w->real->ops->sweep(w->real, limit, out, err);
    if (rc == ONCE_OK) sim_fired(w->world, SIM_swept);
    const bool reply_lost = rc == ONCE_OK && sim_fires(w->world, SIM_store_reply_lost);
    if (rc == ONCE_OK && !reply_lost && !out->more && sim_random(w->world, 2)) { /* a store may always say so */
        out->more = true;
        out->pause_ms = 1 + (int64_t)sim_random(w->world, 2000);
        w->sweep_not_before_ms = w->world->now_ms + out->pause_ms;
    }
    return leave(w, rc, reply_lost, err);
}

static int sim_fact_get(once_backend *store, const char *name, once_bytes *out, once_arena *arena, once_error *err)
{
    sim_worker *w = worker_of(store);
    const int rc = arrive(w, SIM_store_fails, err);
    note_failed_fact(w, rc);
    return rc == ONCE_OK ? w->real->ops->fact_get(w->real, name, out, arena, err) : rc;
}

static int sim_fact_set(once_backend *store, const char *name, once_bytes value, once_error *err)
{
    sim_worker *w = worker_of(store);
    const int rc = arrive(w, SIM_store_fails, err);
    note_failed_fact(w, rc);
    return rc == ONCE_OK ? w->real->ops->fact_set(w->real, name, value, err) : rc;
}

static int sim_fact_count(once_backend *store, const char *name, uint64_t least, once_bytes value, once_error *err)
{
    sim_worker *w = worker_of(store);
    const int rc = arrive(w, SIM_store_fails, err);
    note_failed_fact(w, rc);
    return rc == ONCE_OK ? w->real->ops->fact_count(w->real, name, least, value, err) : rc;
}

static int sim_facts(once_backend *store, const char *prefix, once_fact_visit *visit, void *user, once_error *err)
{
    sim_worker *w = worker_of(store);
    const int rc = arrive(w, SIM_store_fails, err);
    return rc == ONCE_OK ? w->real->ops->facts(w->real, prefix, visit, user, err) : rc;
}

static int sim_list(once_backend *store, once_bytes consumer, once_state state, once_entry_visit *visit, void *user,
                    once_error *err)
{
    sim_worker *w = worker_of(store);
    const int rc = arrive(w, SIM_store_fails, err);
    return rc == ONCE_OK ? w->real->ops->list(w->real, consumer, state, visit, user, err) : rc;
}

static int sim_time(once_backend *store, once_store_time *out, once_error *err)
{
    sim_worker *w = worker_of(store);
    return w->real->ops->time(w->real, out, err);
}

/* --- transactions --- */

static int sim_begin(once_backend *store, once_error *err)
{
    sim_worker *w = worker_of(store);
    w->tx_lost = false;
    int rc = arrive(w, SIM_store_fails, err);
    if (rc != ONCE_OK) return rc;
    assert(!w->in_tx && w->notes_n == 0);
    rc = w->real->ops->begin(w->real, err);
    if (rc != ONCE_OK) return rc;
    w->in_tx = true;
    w->transactions++;
    w->tx_ms = w->world->now_ms;
    w->tx_paused_ms = w->paused_ms;
    w->world->tx_owner = w;
    return ONCE_OK;
}

static void tx_over(sim_worker *w)
{
    w->in_tx = w->tx_lost = w->holds = w->disproved = false;
    if (w->world->tx_owner == w) w->world->tx_owner = NULL;
}

static int sim_commit(once_backend *store, once_error *err)
{
    sim_worker *w = worker_of(store);
    int rc = arrive(w, SIM_commit_fails, err);
    if (rc != ONCE_OK) {
        if (w->in_tx && !w->tx_lost && w->real) w->real->ops->rollback(w->real);
    } else {
        rc = w->real->ops->commit(w->real, err);
        tx_over(w);
        if (rc == ONCE_OK) {
            const bool reply_lost = sim_fires(w->world, SIM_commit_reply_lost);
            for (size_t i = 0; reply_lost && i < w->notes_n; i++) w->notes[i].known = false;
            note_letters_heard(w, reply_lost);
            sim_notes_commit(w);
            if (reply_lost) sim_record_commit_failed(w);
            return reply_lost ? lost(w, err) : ONCE_OK;
        }
    }
    note_failed_commit(w, rc);
    tx_over(w);
    sim_notes_drop(w);
    return rc;
}

static void sim_rollback(once_backend *store)
{
    sim_worker *w = worker_of(store);
    if (w->in_tx && !w->tx_lost && w->real) w->real->ops->rollback(w->real);
    tx_over(w);
    sim_notes_drop(w);
}

/* What has an entry waits, is dead, or is another worker's: it must not run without a claim. */
static void check_absent(sim_worker *w, const once_request *request)
{
    once_arena arena = {0};
    once_entry entry;
    if (w->real->ops->get(w->real, request->id, &entry, &arena, NULL) == ONCE_OK && entry.state != ONCE_STATE_ABSENT)
        sim_violation(w->world, "key %d: it has an entry (%s), and may run without a claim",
                      sim_key_of(w->world, request), once_state_name(entry.state));
    once_arena_release(&arena);
}

static int sim_absent(once_backend *store, const once_request *const *requests, size_t n, bool *out, once_error *err)
{
    sim_worker *w = worker_of(store);
    int rc = arrive(w, SIM_store_fails, err);
    if (rc != ONCE_OK) return rc;
    rc = w->real->ops->absent(w->real, requests, n, out, err);
    for (size_t i = 0; rc == ONCE_OK && i < n; i++) {
        sim_trace(w->world, w->index, "  asks for key", out[i] ? "absent" : "not absent",
                  sim_key_of(w->world, requests[i]), -1, ONCE_OK);
        if (out[i]) check_absent(w, requests[i]);
    }
    return leave(w, rc, rc == ONCE_OK && sim_fires(w->world, SIM_store_reply_lost), err);
}

static const once_store_ops store_ops = {
    .scheme = "sim",
    .claim = sim_claim,
    .absent = sim_absent,
    .settle = sim_settle,
    .extend = sim_extend,
    .accept = sim_accept,
    .take = sim_take,
    .lapse = sim_lapse,
    .find = sim_find,
    .begin = sim_begin,
    .commit = sim_commit,
    .rollback = sim_rollback,
    .bury = sim_bury,
    .get = sim_get,
    .stats = sim_stats,
    .waiting_size = sim_waiting_size,
    .sweep = sim_sweep,
    .fact_get = sim_fact_get,
    .fact_set = sim_fact_set,
    .fact_count = sim_fact_count,
    .time = sim_time,
    .facts = sim_facts,
    .list = sim_list,
};

/* --- life --- */

int sim_store_open(sim_worker *worker)
{
    sim_world *world = worker->world;
    assert(!worker->real);
    if (world->sqlite) {
        once_error err = {0};
        const once_store_options options = {
            .size = sizeof options, .env = &worker->env.env, .create = true, .busy_ms = 1};
        const int rc = once__store_open(world->url, &options, &worker->real, &err);
        if (rc != ONCE_OK) {
            worker->real = NULL;
            return rc;
        }
    } else {
        worker->real = world->memory;
    }
    return ONCE_OK;
}

void sim_store_init(sim_worker *worker)
{
    worker->store = (sim_store){.store = {.ops = &store_ops,
                                          .env = &worker->env.env,
                                          .secret = worker->real->secret,
                                          .bits = worker->real->bits},
                                .worker = worker};
}

void sim_store_close(sim_worker *worker)
{
    sim_rollback(&worker->store.store);
    if (worker->real && worker->world->sqlite) once__store_close(worker->real);
    worker->real = NULL;
}

void sim_store_crash(sim_world *world)
{
    world->store_down_until_ms = world->now_ms + (int64_t)sim_random(world, 4000);
    sim_trace(world, -1, "the store crashes", NULL, -1, -1, ONCE_OK);
    if (world->kind == BROKER_LOG) sim_group_shaken(world);
    for (int i = 0; i < world->workers_n; i++) {
        sim_worker *w = &world->workers[i];
        if (!w->real) continue;
        if (w->in_tx) {
            w->real->ops->rollback(w->real);
            sim_notes_drop(w);
            w->tx_lost = true; /* until its owner notices */
            world->tx_owner = NULL;
        }
        if (world->sqlite) once__store_close(w->real);
        w->real = NULL;
    }
    for (int i = 0; i < world->workers_n; i++)
        if (world->workers[i].machine && sim_store_open(&world->workers[i]) != ONCE_OK)
            sim_violation(world, "the store does not open after a crash");
}
