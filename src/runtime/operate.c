/* What operators do: look at a store, replay and discard dead letters, resolve, forget, sweep.
 *
 * Nothing here decides about an entry: core/entry.c does, through the store's verbs. A letter that died with its entry is
 * exhumed; every other letter is a message that comes once more, through intake and accept, so that it gets the same answer as
 * a delivery from the source. The act, the end of the letter and the audit record are one transaction. A dry run does all of
 * it and rolls back. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/duration.h"
#include "base/failpoint.h"
#include "base/no_memory.h"
#include "base/usage.h"
#include "core/intake.h"
#include "once/operate.h"
#include "runtime/audit.h"
#include "runtime/choice.h"
#include "runtime/executor.h"
#include "runtime/known.h"
#include "runtime/lane_place.h"
#include "runtime/runtime.h"
#include "runtime/said.h"
#include "source/place.h"
#include "store/engine.h"
#include "store/history.h"
#include "store/takeover.h"

#include "base/banned.h"

enum {
    BATCH = 4096,          /* letters in one transaction */
    BATCH_BYTES = 4 << 20, /* of their messages: the letter that reaches it is the last of its transaction */
    AHEAD_FIRST = 16,      /* letters that a server is asked for at once, while nothing is known about their size */
    AHEAD = 1024,          /* the same, at most */
    AHEAD_BYTES = 1 << 20, /* and about so much of them */
    PAGE = 16384,          /* letters looked at in one go */
    SWEEP_STEP = 20000,    /* records dropped in one step */
    SWEEP_BUSY_MS = 100    /* how often to look whether somebody else has swept enough */
};

static once_bytes text_of(const char *text) { return (once_bytes){text, strlen(text)}; }
static int show(once_bytes text) { return text.len < 120 ? (int)text.len : 120; }

/* "2026-01-31 12:00:00.000 UTC", as times are shown, or the hour of a group, "2026-01-31 12:00 UTC". */
static bool parse_shown(once_bytes text, int64_t *ret_ms)
{
    static const char zone[] = " UTC";
    char rfc3339[40];
    const size_t end = sizeof zone - 1;
    if (text.len < 16 + end || text.len > 30 || text.data[10] != ' ' || memcmp(text.data + text.len - end, zone, end) != 0) return false;
    snprintf(rfc3339, sizeof rfc3339, "%.10sT%.*s%sZ", text.data, (int)(text.len - end - 11), text.data + 11, text.len == 16 + end ? ":00" : "");
    return once_time_parse(text_of(rfc3339), ret_ms, NULL) == ONCE_OK;
}

int once_parse_when(once_bytes text, int64_t *ret_ms, once_error *err)
{
    if (!ret_ms || once_bytes_lie(text)) return once_fail(err, ONCE_E_USAGE, "once_parse_when needs a text and a place for the time");
    int64_t ago_ms;
    if (once_time_parse(text, ret_ms, NULL) == ONCE_OK || parse_shown(text, ret_ms)) return ONCE_OK;
    if (once_duration_parse(text, &ago_ms, NULL) != ONCE_OK || ago_ms == ONCE_FOREVER)
        return once_fail(err, ONCE_E_USAGE, "neither a time (2026-01-31T12:00:00Z, epoch milliseconds) nor a duration (2h: that long ago)");
    *ret_ms = once_env_wall_ms(once_env_real()) - ago_ms;
    return ONCE_OK;
}

/* Whom the caller means. No letters with a count would be all of them. */
static int check_choice(const once_choice *choice, const uint64_t *ids, size_t n_ids, once_error *err)
{
    const once_bytes all[] = {choice->tenant, choice->operation, choice->type, choice->reason, choice->group};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (once_bytes_lie(all[i])) return once_fail(err, ONCE_E_USAGE, "a choice has bytes with a length and no address");
    return ids || n_ids == 0 ? ONCE_OK : once_fail(err, ONCE_E_USAGE, "n_ids is %zu, and there are no ids", n_ids);
}

/* --- the store --- */

/* For those who show or use idempotency keys. */
static int open_keyed(once_pipeline *pipeline, once_store **out, once_error *err)
{
    once_store *store;
    int rc = once__salt_read(pipeline, err);
    if (rc == ONCE_OK) rc = once__known_open_store(pipeline, &store, err);
    if (rc != ONCE_OK) return rc;
    rc = once__memory_check_salt(pipeline, store, err);
    if (rc == ONCE_OK) *out = store;
    else once__store_close(store);
    return rc;
}

static int finish_tx(once_store *store, int rc, once_error *err)
{
    if (rc == ONCE_OK) return store->ops->commit(store, err);
    store->ops->rollback(store);
    return rc;
}

/* --- standing --- */

typedef struct oldest {
    int64_t now_ms, oldest_ms;
    uint64_t n, due;
} oldest;

static bool look_at_entry(void *user, const once_entry *entry)
{
    oldest *o = user;
    o->n++;
    const int64_t since_ms = entry->state == ONCE_STATE_UNKNOWN ? entry->changed_ms : entry->seen_ms;
    if (o->oldest_ms == ONCE_NO_TIME || since_ms < o->oldest_ms) o->oldest_ms = since_ms;
    if (entry->due_ms <= o->now_ms && entry->has_message) o->due++;
    return true;
}

/* The dead that may hold up their lanes: each is asked about when the list is over. */
typedef struct suspects {
    once_hash *ids;
    size_t n, room;
    bool failed;
} suspects;

static bool look_at_dead(void *user, const once_entry *entry)
{
    suspects *s = user;
    if (!entry->block) return true;
    if (s->n == s->room) {
        const size_t room = s->room ? 2 * s->room : 64;
        once_hash *ids = reallocarray(s->ids, room, sizeof *ids);
        s->failed = !ids;
        if (!ids) return false;
        s->ids = ids;
        s->room = room;
    }
    s->ids[s->n++] = entry->id;
    return true;
}

/* Letters that their lanes wait for: those of which `list` says so. */
static int count_blocking(once_store *store, once_bytes consumer, uint64_t *out, once_error *err)
{
    suspects s = {0};
    once_arena arena = {0};
    int rc = store->ops->list(store, consumer, ONCE_STATE_DEAD, look_at_dead, &s, err);
    if (rc == ONCE_OK && s.failed) rc = once_no_memory(err, "for a list");
    for (size_t i = 0; i < s.n && rc == ONCE_OK; i++) {
        once_bytes words = {0};
        once_arena_reset(&arena);
        rc = store->ops->why(store, s.ids[i], &words, &arena, err);
        *out += rc == ONCE_OK && words.len > 0;
    }
    once_arena_release(&arena);
    free(s.ids);
    return rc;
}

static bool look_at_first_letter(void *user, const once_letter *letter)
{
    *(int64_t *)user = letter->buried_ms;
    return false;
}

static int count_finished(once_store *store, once_bytes consumer, once_standing *out, once_error *err)
{
    const struct {
        once_state state;
        uint64_t *n;
    } counts[] = {{ONCE_STATE_DONE, &out->done}, {ONCE_STATE_ALREADY, &out->already}, {ONCE_STATE_REJECTED, &out->rejected}, {ONCE_STATE_STALE, &out->stale}};
    int rc = ONCE_OK;
    for (size_t i = 0; i < sizeof counts / sizeof *counts && rc == ONCE_OK; i++) {
        oldest seen = {.oldest_ms = ONCE_NO_TIME};
        rc = store->ops->list(store, consumer, counts[i].state, look_at_entry, &seen, err);
        *counts[i].n = seen.n;
    }
    return rc;
}

static int read_counters(once_store *store, once_bytes consumer, once_standing *out, once_error *err)
{
    once_arena arena = {0};
    int64_t repeats = 0, given_up = 0;
    int rc = once_repeats_read(store, consumer, &arena, &repeats, err);
    if (rc == ONCE_OK) rc = once_given_up_read(store, consumer, &arena, &given_up, err);
    once_arena_release(&arena);
    out->repeats = (uint64_t)repeats;
    out->given_up = (uint64_t)given_up;
    return rc;
}

int once_pipeline_standing(once_pipeline *pipeline, bool finished, once_standing *out, once_error *err)
{
    if (!pipeline || !out) return once_fail(err, ONCE_E_USAGE, "once_pipeline_standing needs a pipeline and a place for the answer");
    once_store *store;
    int rc = once__known_open_store(pipeline, &store, err);
    if (rc != ONCE_OK) return rc;
    const once_bytes consumer = pipeline->spec->consumer;
    once_store_time time = {0};
    once_stats stats = {0};
    rc = store->ops->time(store, &time, err);
    oldest waiting = {.now_ms = time.now_ms, .oldest_ms = ONCE_NO_TIME}, unknown = waiting;
    *out = (once_standing){
        .now_ms = once_env_wall_ms(pipeline->env), .store_ms = time.now_ms, .clock_doubted = time.doubted, .oldest_dead_ms = ONCE_NO_TIME};
    if (rc == ONCE_OK) rc = store->ops->stats(store, consumer, &stats, err);
    if (rc == ONCE_OK) rc = store->ops->list(store, consumer, ONCE_STATE_WAITING, look_at_entry, &waiting, err);
    if (rc == ONCE_OK) rc = store->ops->list(store, consumer, ONCE_STATE_UNKNOWN, look_at_entry, &unknown, err);
    if (rc == ONCE_OK && pipeline->spec->order) rc = count_blocking(store, consumer, &out->blocking, err);
    if (rc == ONCE_OK) rc = store->ops->letters(store, consumer, 0, look_at_first_letter, &out->oldest_dead_ms, err);
    if (rc == ONCE_OK && finished) rc = count_finished(store, consumer, out, err);
    if (rc == ONCE_OK) rc = read_counters(store, consumer, out, err);
    out->waiting = stats.waiting;
    out->busy = stats.claimed;
    out->unknown = stats.unknown;
    out->dead = stats.dead;
    out->backlog = waiting.due;
    out->oldest_waiting_ms = waiting.oldest_ms;
    out->oldest_unknown_ms = unknown.oldest_ms;
    out->wait_ms = stats.wait_ms == ONCE_NEVER ? -1 : stats.wait_ms;
    once__store_close(store);
    return rc;
}

/* --- workers --- */

typedef struct holder {
    once_worker worker;
    once_worker_state state;
    uint64_t holds, lapsed;
} holder;

typedef struct holders {
    holder *at;
    size_t n;
    bool no_memory;
} holders;

static bool add_holder(void *user, const once_worker *worker, once_worker_state state)
{
    holders *all = user;
    holder *more = realloc(all->at, (all->n + 1) * sizeof *more);
    all->no_memory = !more;
    if (!more) return false;
    all->at = more;
    all->at[all->n++] = (holder){.worker = *worker, .state = state};
    return true;
}

static bool count_held(void *user, const once_entry *entry)
{
    holders *all = user;
    for (size_t i = 0; i < all->n; i++) all->at[i].holds += once_token_is_of_run(entry->token, all->at[i].worker.run);
    return true;
}

/* Its lease is over, as an entry that waits or is unknown says with its worker (once_entry_look); or somebody else wrote that down since. */
static bool count_lapsed(void *user, const once_entry *entry)
{
    holders *all = user;
    for (size_t i = 0; i < all->n; i++) {
        holder *h = &all->at[i];
        const bool left = entry->worker.len || (entry->state == ONCE_STATE_UNKNOWN && entry->changed_ms > h->worker.seen_ms);
        if (left && once_token_is_of_run(entry->token, h->worker.run)) h->lapsed++;
    }
    return true;
}

/* Claims may have a shorter lease than their worker: when one of them is over, so is the worker's word. All that waits is read for that,
 * so only where somebody was not seen for as long as that takes. */
static int find_lapsed(once_pipeline *pipeline, once_store *store, holders *all, once_error *err)
{
    static const once_state states[] = {ONCE_STATE_WAITING, ONCE_STATE_UNKNOWN};
    once_store_time time;
    int64_t shortest_ms = ONCE_NEVER;
    bool any = false;
    int rc = store->ops->time(store, &time, err);
    for (size_t i = 0; i < pipeline->spec->n_handlers; i++)
        if (pipeline->spec->handlers[i].lease_ms < shortest_ms) shortest_ms = pipeline->spec->handlers[i].lease_ms;
    for (size_t i = 0; i < all->n && rc == ONCE_OK; i++) any |= time.now_ms - all->at[i].worker.seen_ms >= shortest_ms;
    for (size_t i = 0; i < 2 && any && rc == ONCE_OK; i++) rc = store->ops->list(store, pipeline->spec->consumer, states[i], count_lapsed, all, err);
    for (size_t i = 0; i < all->n && rc == ONCE_OK; i++)
        if (all->at[i].lapsed && all->at[i].state == ONCE_WORKER_ALIVE) all->at[i].state = ONCE_WORKER_LATE;
    return rc;
}

static void tell_holders(const holders *all, once_running_visit *visit, void *user)
{
    static const char *const states[] = {[ONCE_WORKER_ALIVE] = "alive", [ONCE_WORKER_LATE] = "late", [ONCE_WORKER_GONE] = "gone"};
    for (size_t i = 0; i < all->n; i++) {
        const holder *h = &all->at[i];
        const once_running running = {
            .who = h->worker.who,
            .state = states[h->state],
            .begun_ms = h->worker.begun_ms,
            .seen_ms = h->worker.seen_ms,
            .done = h->worker.done,
            .rate = h->worker.rate,
            .holds = h->holds,
            .lapsed = h->lapsed,
        };
        if (!visit(user, &running)) return;
    }
}

int once_pipeline_workers(once_pipeline *pipeline, once_running_visit *visit, void *user, once_error *err)
{
    if (!pipeline || !visit) return once_fail(err, ONCE_E_USAGE, "once_pipeline_workers needs a pipeline and a function for its workers");
    once_store *store;
    holders all = {0};
    int rc = once__known_open_store(pipeline, &store, err);
    if (rc != ONCE_OK) return rc;
    rc = once_workers_each(store, pipeline->spec->consumer, add_holder, &all, err);
    if (rc == ONCE_OK && all.no_memory) rc = once_no_memory(err, "for a list of workers");
    if (rc == ONCE_OK && all.n) rc = store->ops->list(store, pipeline->spec->consumer, ONCE_STATE_CLAIMED, count_held, &all, err);
    if (rc == ONCE_OK && all.n) rc = find_lapsed(pipeline, store, &all, err);
    once__store_close(store);
    if (rc == ONCE_OK) tell_holders(&all, visit, user);
    free(all.at);
    return rc;
}

/* --- list --- */

typedef struct listing {
    once_list_visit *visit;
    void *user;
    once_keying keying;
    const once_spec *spec;
    bool over;
    once_gone gone;
    once_store *lanes; /* a handle of its own, to ask what lanes wait for; NULL: there are none */
    once_arena arena;
    once_json json; /* for what is malformed */
    once_lane_reader reader; /* where there are lanes */
    int rc; /* other than ONCE_OK: what ended the listing */
    once_error *err;
} listing;

static void place_in_lane(listing *l, once_hash entry, const once_scope *scope, const once_message *message, once_listed *item)
{
    if (l->lanes && l->rc == ONCE_OK) l->rc = once__lane_place_read(&l->reader, entry, scope, message, &item->lane, l->err);
}

/* The reason, and what the message waits for in its lane, or its lane for it. Empty with l->rc: that cannot be asked, and the message
 * must not be shown as if nothing held it. */
static once_bytes with_lane(listing *l, once_hash entry, once_bytes reason)
{
    once_bytes words = {0};
    once_arena_reset(&l->arena);
    if (!l->lanes || once_hash_is_zero(entry)) return reason;
    l->rc = l->lanes->ops->why(l->lanes, entry, &words, &l->arena, l->err);
    if (l->rc != ONCE_OK) return (once_bytes){0};
    if (words.len == 0) return reason;
    if (reason.len == 0) return words;
    char *text = once_arena_alloc(&l->arena, reason.len + words.len + 2);
    if (!text) {
        l->rc = once_no_memory(l->err, "for words");
        return (once_bytes){0};
    }
    memcpy(text, reason.data, reason.len);
    memcpy(text + reason.len, "; ", 2);
    memcpy(text + reason.len + 2, words.data, words.len);
    return (once_bytes){text, reason.len + words.len + 2};
}

static once_bytes reason_of(listing *l, const once_entry *e)
{
    const once_bytes gone = once_gone_says(&l->gone, e);
    if (gone.len) return gone;
    return e->state == ONCE_STATE_WAITING ? with_lane(l, e->id, once__reason_shown(e)) : once__reason_shown(e);
}

static bool list_entry(void *user, const once_entry *e)
{
    listing *l = user;
    once_attempt attempts[ONCE_HISTORY_ATTEMPTS];
    const size_t n = once__history_of(e, attempts);
    const bool due = e->state != ONCE_STATE_UNKNOWN && e->due_ms != ONCE_NEVER;
    once_listed item = {
        .state = e->state == ONCE_STATE_CLAIMED ? "busy" : once_state_name(e->state),
        .scope = e->scope,
        .key = e->key,
        .type = e->message.type,
        .place = e->at.place,
        .point = e->at.point,
        .attempt = e->attempt,
        .failures = e->failures,
        .seen_ms = e->seen_ms,
        .changed_ms = e->changed_ms,
        .due_ms = due ? e->due_ms : ONCE_NO_TIME,
        .worker = e->worker,
        .reason = reason_of(l, e),
        .own_reason = once__reason_shown(e),
        .has_body = e->has_message,
        .body = e->message.body,
        .headers = e->message.headers,
        .attempts = attempts,
        .n_attempts = n,
        .maybe_done = once_spec_maybe_done(l->spec, e->scope.operation, e->maybe || e->state == ONCE_STATE_UNKNOWN),
    };
    once_outward_key(&l->keying, &e->scope, e->key, e->id, e->old_key, item.idempotency_key);
    place_in_lane(l, e->id, &e->scope, e->has_message ? &e->message : NULL, &item);
    l->over = l->rc != ONCE_OK || !l->visit(l->user, &item);
    return !l->over;
}

const char *once__letter_kind(const once_letter *letter)
{
    if (letter->kind == ONCE_ANSWER_DEAD && letter->key.len == 0) return "malformed";
    return once_answer_name(letter->kind);
}

/* A letter without a handler has no operation, and was never given one. */
void once__letter_outward_key(const once_keying *keying, const once_letter *letter, char *out)
{
    if (letter->key.len && letter->scope.operation.len)
        once_outward_key(keying, &letter->scope, letter->key, letter->entry, letter->old_key, out);
}

/* Where it is no JSON any more, from 1; 0: it is. */
static uint64_t column_of(once_json *json, once_bytes body)
{
    once_json_error bad;
    const once_json_options options = {0};
    return once_json_parse(json, body, &options, &bad) == ONCE_E_MESSAGE ? bad.offset + 1 : 0;
}

static bool list_letter(void *user, const once_letter *letter)
{
    listing *l = user;
    const char *kind = once__letter_kind(letter);
    const bool line = strcmp(kind, "malformed") == 0 && !once_reason_is_no_handler(letter->reason);
    once_attempt attempts[ONCE_HISTORY_ATTEMPTS];
    const size_t n = once__history_read(letter->history, attempts);
    once_listed item = {
        .state = "dead",
        .letter = letter->id,
        .kind = kind,
        .scope = letter->scope,
        .key = letter->key,
        .type = letter->message.type,
        .place = letter->message.at.place,
        .point = letter->message.at.point,
        .attempt = letter->attempt,
        .failures = letter->failures,
        .seen_ms = letter->seen_ms,
        .changed_ms = letter->buried_ms,
        .count = letter->count,
        .last_ms = letter->last_ms,
        .due_ms = ONCE_NO_TIME,
        .reason = with_lane(l, letter->entry, letter->reason),
        .own_reason = letter->reason,
        .has_body = true,
        .body = letter->message.body,
        .headers = letter->message.headers,
        .attempts = attempts,
        .n_attempts = n,
        .line = line ? letter->message.body : (once_bytes){0},
        .column = line ? column_of(&l->json, letter->message.body) : 0,
        .maybe_done = once_spec_maybe_done(l->spec, letter->scope.operation, letter->maybe),
    };
    once__letter_outward_key(&l->keying, letter, item.idempotency_key);
    if (letter->key.len) place_in_lane(l, letter->entry, &letter->scope, &letter->message, &item);
    l->over = l->rc != ONCE_OK || !l->visit(l->user, &item);
    return !l->over;
}

int once_pipeline_list(once_pipeline *pipeline, unsigned what, once_list_visit *visit, void *user, once_error *err)
{
    if (!pipeline || !visit) return once_fail(err, ONCE_E_USAGE, "once_pipeline_list needs a pipeline and a function for its messages");
    static const struct {
        unsigned what;
        once_state state;
    } lists[] = {{ONCE_LIST_WAITING, ONCE_STATE_WAITING}, {ONCE_LIST_BUSY, ONCE_STATE_CLAIMED}, {ONCE_LIST_UNKNOWN, ONCE_STATE_UNKNOWN}};
    once_store *store;
    int rc = open_keyed(pipeline, &store, err);
    if (rc != ONCE_OK) return rc;
    listing l = {.visit = visit, .user = user, .keying = once__keying_of(pipeline, store), .spec = pipeline->spec, .err = err};
    once_json_init(&l.json);
    if (pipeline->spec->order) rc = once__known_open_store(pipeline, &l.lanes, err);
    if (l.lanes) once__lane_reader_init(&l.reader, pipeline, l.lanes);
    if (rc == ONCE_OK && (what & ONCE_LIST_BUSY)) rc = once_gone_read(store, pipeline->spec->consumer, &l.gone, err);
    for (size_t i = 0; i < sizeof lists / sizeof *lists && rc == ONCE_OK && !l.over; i++)
        if (what & lists[i].what) rc = store->ops->list(store, pipeline->spec->consumer, lists[i].state, list_entry, &l, err);
    if (rc == ONCE_OK && !l.over && (what & ONCE_LIST_DEAD))
        rc = store->ops->letters(store, pipeline->spec->consumer, 0, list_letter, &l, err);
    if (rc == ONCE_OK) rc = l.rc;
    once__lane_reader_release(&l.reader);
    once__store_close(l.lanes);
    once__store_close(store);
    once_json_release(&l.json);
    once_arena_release(&l.arena);
    return rc;
}

typedef struct auditing {
    once_audited_visit *visit;
    void *user;
    once_arena arena;
    once_json json;
    int rc;
    once_error *err;
} auditing;

static bool list_audit(void *user, const once_audit *a)
{
    auditing *l = user;
    once_audited record;
    once_arena_reset(&l->arena);
    l->rc = once__audit_read(a, &l->json, &l->arena, &record, l->err);
    return l->rc == ONCE_OK && l->visit(l->user, &record);
}

int once_pipeline_audits(once_pipeline *pipeline, once_audited_visit *visit, void *user, once_error *err)
{
    if (!pipeline || !visit) return once_fail(err, ONCE_E_USAGE, "once_pipeline_audits needs a pipeline and a function for its records");
    once_store *store;
    int rc = once__known_open_store(pipeline, &store, err);
    if (rc != ONCE_OK) return rc;
    auditing l = {.visit = visit, .user = user, .err = err};
    once_json_init(&l.json);
    rc = store->ops->audits(store, pipeline->spec->consumer, list_audit, &l, err);
    if (rc == ONCE_OK) rc = l.rc;
    once_json_release(&l.json);
    once_arena_release(&l.arena);
    once__store_close(store);
    return rc;
}

/* --- letters that are looked at one after the other --- */

typedef struct reading {
    size_t left;     /* read ahead in this transaction, and not looked at yet */
    size_t n, bytes; /* letters so far, and the size of their messages */
} reading;

/* Before each of ids[0 .. n-1]: the store reads the next ones in one go, as many as are likely to fit by the size of those before. */
static int read_ahead(reading *r, once_store *store, const uint64_t *ids, size_t n, once_error *err)
{
    if (!store->ops->letters_ahead || (r->left > 0 && --r->left > 0)) return ONCE_OK;
    const size_t each = r->n ? r->bytes / r->n + 1 : AHEAD_BYTES / AHEAD_FIRST;
    r->left = AHEAD_BYTES / each;
    if (r->left > AHEAD) r->left = AHEAD;
    if (r->left > n) r->left = n;
    if (r->left == 0) r->left = 1;
    return store->ops->letters_ahead(store, ids, r->left, err);
}

static void note_read(reading *r, const once_letter *letter)
{
    r->n++;
    r->bytes += letter->message.body.len + letter->message.headers.len;
}

/* --- replay --- */

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

/* How long a letter that is given up is remembered: as its handler says, or, where it has none, as long as any message is. */
static int64_t remember_of(const once_spec *spec, once_bytes operation)
{
    const once_handler_spec *handler = once_spec_handler_by_operation(spec, operation);
    int64_t longest_ms = handler ? handler->remember_ms : 0;
    for (size_t i = 0; i < spec->n_handlers && !handler; i++)
        if (spec->handlers[i].remember_ms > longest_ms) longest_ms = spec->handlers[i].remember_ms;
    return longest_ms;
}

typedef struct replaying {
    once_pipeline *pipeline;
    once_store *store;
    once_keying keying;
    const once_replay_options *options;
    once_replay_counts *counts;
    once_intake intake;
    once_batch batch;              /* owns what belongs to one transaction */
    once_replayed results[BATCH];  /* told after the commit */
    once_said would[BATCH];        /* dry run: what they would leave; id 0: nothing new */
    once_said_table said;          /* dry run: of the transactions before */
    size_t n, bytes;

    reading letters;
    uint64_t ids[BATCH]; /* of the next transactions */
    size_t n_ids, max;
    uint64_t after, looked_at, total, paced;
    size_t scanned;
    int64_t begun_ns;
} replaying;

/* What the letter's message would get if it came now. Fills item. */
static int take_in(replaying *r, const once_letter *letter, once_item *item, once_error *err)
{
    *item = (once_item){.batch = &r->batch, .message = letter->message};
    if (r->options->body) item->message.body = *r->options->body;
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

/* As a delivery from the source, but into the store. */
static int come_again(replaying *r, once_item *item, once_replayed *out, once_error *err)
{
    const once_request *request = &item->request;
    const once_message *message = &item->message;
    once_decision decision;
    int rc = r->store->ops->accept(r->store, &request, &message, 1, &decision, &r->batch.arena, err);
    if (rc != ONCE_OK) return rc;
    out->verdict = verdict_of(decision.answer);
    if (decision.answer == ONCE_ANSWER_DUPLICATE && decision.outcome == ONCE_STALE) out->verdict = ONCE_REPLAY_stale; /* that is no effect */
    if (decision.answer == ONCE_ANSWER_DUPLICATE) out->result = decision.result;
    if (decision.answer == ONCE_ANSWER_DEAD) out->reason = ONCE_BYTES("its key has another dead letter");
    if (decision.answer != ONCE_ANSWER_TOO_OLD || !r->options->force) return ONCE_OK;
    item->request.sent_ms = ONCE_NO_TIME;
    rc = r->store->ops->accept(r->store, &request, &message, 1, &decision, &r->batch.arena, err);
    if (rc == ONCE_OK) out->verdict = verdict_of(decision.answer) == ONCE_REPLAY_run ? ONCE_REPLAY_forced : verdict_of(decision.answer);
    return rc;
}

static once_said said_of(const once_request *r) { return (once_said){.id = r->id.a ? r->id.a : 1, .print = r->fingerprint.a}; }

/* A letter of the same key that is before this one would have moved by then. */
static int look_behind_another(const replaying *r, const once_said *mine, once_replayed *out, bool *behind, once_error *err)
{
    once_said other = {0};
    const int rc = r->said.n ? once__said_find(&r->said, mine->id, &other, err) : ONCE_OK;
    *behind = rc == ONCE_OK && other.id;
    if (!*behind) return rc;
    out->verdict = mine->print && other.print && mine->print != other.print ? ONCE_REPLAY_conflict : ONCE_REPLAY_waiting;
    return rc;
}

/* A letter with a key stands for that key. */
static bool has_the_key(const once_letter *letter, const once_item *item)
{
    return letter->key.len == 0 || (once_bytes_equal(letter->key, item->request.key) && once_bytes_equal(letter->scope.tenant, item->scope.tenant) &&
                                    once_bytes_equal(letter->scope.operation, item->scope.operation));
}

/* It died with its entry: back to work, with its own message or with the one that was given for it. */
static int back_to_work(replaying *r, const once_letter *letter, const once_item *item, once_replayed *out, bool *ended, once_error *err)
{
    if (!r->options->body) return r->store->ops->exhume(r->store, letter->id, ended, err);
    const int rc = r->store->ops->correct(r->store, letter->id, &item->request, &item->message, ended, err);
    if (rc == ONCE_OK && !*ended) out->verdict = ONCE_REPLAY_other_key;
    return rc;
}

/* Whether the lane would end it without a run. Then it must not leave: nobody would have its body any more. Not asked of a key that somebody
 * works on or that has its outcome, which decide by themselves. */
static int look_at_lane(replaying *r, const once_item *item, const once_entry *entry, bool back, bool again, once_replayed *out, once_error *err)
{
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

/* Judges the letter and moves it, without ending the letter itself unless *ended. */
static int move(replaying *r, const once_letter *letter, once_replayed *out, bool *ended, once_error *err)
{
    if (letter->kind == ONCE_ANSWER_CUT) { /* whatever its beginning says, it is not the message */
        out->verdict = ONCE_REPLAY_still_dead;
        out->reason = ONCE_BYTES("it was longer than message_max and only its beginning is kept; raise message_max and deliver it again");
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
    once_outward_key(&r->keying, &item->scope, item->request.key, item->request.id, letter->old_key, out->idempotency_key);
    once_said *mine = &r->would[r->n - 1];
    bool behind;
    *mine = said_of(&item->request);
    rc = look_behind_another(r, mine, out, &behind, err);
    if (rc != ONCE_OK || behind) return rc;
    once_entry entry;
    rc = r->store->ops->get(r->store, item->request.id, &entry, &r->batch.arena, err);
    if (rc != ONCE_OK) return rc;
    if (entry.state != ONCE_STATE_ABSENT)
        once_outward_key(&r->keying, &item->scope, item->request.key, item->request.id, entry.old_key, out->idempotency_key);
    out->maybe_done |= once_spec_maybe_done(r->pipeline->spec, item->scope.operation, entry.maybe); /* a letter of an older once does not say it */
    const bool back = once__letter_is_of(letter, &entry), again = r->options->force && once_state_finished(entry.state);
    rc = look_at_lane(r, item, &entry, back, again, out, err);
    if (rc != ONCE_OK || out->verdict == ONCE_REPLAY_stale || out->verdict == ONCE_REPLAY_conflict) return rc;
    if (back) return back_to_work(r, letter, item, out, ended, err); /* also a duplicate: whoever takes it records that */
    if (!again) return come_again(r, item, out, err);
    if (out->verdict == ONCE_REPLAY_duplicate) return ONCE_OK;
    bool done;
    rc = r->store->ops->revive(r->store, &item->request, &item->message, &done, err);
    assert(rc != ONCE_OK || done);
    return rc;
}

static int replay_one(replaying *r, uint64_t id, once_error *err)
{
    once_replayed *out = &r->results[r->n];
    once_letter letter;
    bool found, ended = false;
    *out = (once_replayed){.letter = id, .verdict = ONCE_REPLAY_gone};
    int rc = r->store->ops->letter_get(r->store, id, &letter, &found, &r->batch.arena, err);
    if (rc != ONCE_OK) return rc;
    r->would[r->n++] = (once_said){0};
    if (!found || !once_bytes_equal(letter.scope.consumer, r->pipeline->spec->consumer)) return ONCE_OK;
    out->scope = letter.scope;
    out->key = letter.key;
    out->type = letter.message.type;
    out->maybe_done = once_spec_maybe_done(r->pipeline->spec, letter.scope.operation, letter.maybe);
    out->place = letter.message.at.place;
    out->point = letter.message.at.point;
    out->reason = letter.reason;
    once__letter_outward_key(&r->keying, &letter, out->idempotency_key);
    r->bytes += letter.message.body.len + letter.message.headers.len;
    note_read(&r->letters, &letter);
    rc = move(r, &letter, out, &ended, err);
    if (!ended && out->verdict != ONCE_REPLAY_run && out->verdict != ONCE_REPLAY_forced) r->would[r->n - 1].id = 0; /* nothing waits by that */
    if (rc != ONCE_OK || !verdicts[out->verdict].leaves) return rc;
    /* What was corrected is not wanted any more as it was, when it is delivered again. */
    if (!ended && r->options->body) rc = r->store->ops->discard(r->store, id, remember_of(r->pipeline->spec, letter.scope.operation), &found, err);
    else if (!ended) rc = r->store->ops->letter_drop(r->store, id, &found, err);
    const bool forced = out->verdict == ONCE_REPLAY_forced, body = r->options->body != NULL;
    const char *what = forced ? (body ? "replay --force --body" : "replay --force") : body ? "replay --body" : "replay";
    const once_act act = {.what = what, .note = verdicts[out->verdict].text, .scope = out->scope, .key = out->key, .letter = id,
                          .idempotency_key = out->idempotency_key, .body = body ? letter.message.body : (once_bytes){0}};
    if (rc == ONCE_OK) rc = once__audit(r->pipeline, r->store, &act, err);
    if (rc == ONCE_OK && ONCE_FAIL_AT(replay_between)) rc = once_fail(err, ONCE_E_IO, "failpoint replay_between");
    return rc;
}

static double seconds_since(const replaying *r) { return (double)(once_env_mono_ns(r->pipeline->env) - r->begun_ns) / 1e9; }

/* Keeps what the letters of this transaction would have left. */
static int remember_said(replaying *r, once_error *err)
{
    int rc = r->said.size ? ONCE_OK : once__said_open(&r->said, r->total, err);
    for (size_t i = 0; i < r->n && rc == ONCE_OK; i++) {
        if (r->would[i].id) rc = once__said_put(&r->said, &r->would[i], err);
    }
    return rc;
}

static void tell(replaying *r)
{
    for (size_t i = 0; i < r->n; i++) {
        r->counts->verdicts[r->results[i].verdict]++;
        r->paced += verdicts[r->results[i].verdict].leaves;
        if (r->options->visit) r->options->visit(r->options->user, &r->results[i]);
    }
    r->n = 0;
    if (r->options->progress) r->options->progress(r->options->user, r->looked_at, r->total, seconds_since(r));
}

/* Letters of ids[] from *at on, in one transaction. */
static int replay_some(replaying *r, size_t *at, once_error *err)
{
    if (ONCE_FAIL_AT(replay_before)) return once_fail(err, ONCE_E_IO, "failpoint replay_before");
    once_store *store = r->store;
    once_arena_reset(&r->batch.arena);
    r->n = r->bytes = r->letters.left = 0;
    int rc = store->ops->begin(store, err);
    if (rc != ONCE_OK) return rc;
    while (rc == ONCE_OK && *at < r->n_ids && r->bytes < BATCH_BYTES) {
        rc = read_ahead(&r->letters, store, r->ids + *at, r->n_ids - *at, err);
        if (rc == ONCE_OK) rc = replay_one(r, r->ids[(*at)++], err);
    }
    if (r->options->dry_run && rc == ONCE_OK) {
        store->ops->rollback(store);
        if (*at < r->n_ids || r->looked_at < r->total) rc = remember_said(r, err); /* there are more */
    } else {
        rc = finish_tx(store, rc, err);
    }
    if (rc == ONCE_OK) tell(r);
    return rc;
}

static int replay_batch(replaying *r, once_error *err)
{
    int rc = ONCE_OK;
    for (size_t at = 0; rc == ONCE_OK && at < r->n_ids;) rc = replay_some(r, &at, err);
    r->n_ids = 0;
    return rc;
}

/* Not faster than the rate that was asked for. */
static void keep_pace(replaying *r)
{
    if (!r->options->rate || r->options->dry_run) return;
    const double ahead_s = (double)r->paced / (double)r->options->rate - seconds_since(r);
    for (int64_t left_ms = (int64_t)(ahead_s * 1000); left_ms > 0 && !atomic_load(&r->pipeline->stop); left_ms -= 100)
        once_env_sleep_ms(r->pipeline->env, left_ms < 100 ? left_ms : 100);
}

static bool collect(void *user, const once_letter *letter)
{
    replaying *r = user;
    r->after = letter->id;
    r->scanned++;
    if (once__choice_has_letter(&r->options->choice, letter)) r->ids[r->n_ids++] = letter->id;
    return r->n_ids < r->max && r->scanned < PAGE;
}

/* Letters behind `after`, for `visit` to choose from; their messages are read when they are moved. */
static int look_through(const replaying *r, uint64_t after, bool only_ids, once_letter_visit *visit, void *user, once_error *err)
{
    const once_store_ops *ops = r->store->ops;
    const once_bytes consumer = r->pipeline->spec->consumer;
    return ops->letter_heads ? ops->letter_heads(r->store, consumer, after, only_ids, visit, user, err)
                             : ops->letters(r->store, consumer, after, visit, user, err);
}

static int replay_found(replaying *r, uint64_t last, once_error *err)
{
    int rc = ONCE_OK;
    do {
        r->scanned = 0;
        rc = look_through(r, r->after, once__choice_is_all(&r->options->choice), collect, r, err);
        while (r->n_ids && r->ids[r->n_ids - 1] > last) r->n_ids--; /* buried since: the next replay's */
        r->looked_at += r->scanned;
        if (rc == ONCE_OK) rc = replay_batch(r, err);
        if (rc == ONCE_OK) keep_pace(r);
    } while (rc == ONCE_OK && r->scanned && r->after < last && !atomic_load(&r->pipeline->stop));
    r->counts->stopped = r->scanned && r->after < last;
    return rc;
}

static int replay_named(replaying *r, once_error *err)
{
    const once_replay_options *o = r->options;
    int rc = ONCE_OK;
    size_t at = 0;
    while (at < o->n_ids && rc == ONCE_OK && !atomic_load(&r->pipeline->stop)) {
        while (at < o->n_ids && r->n_ids < r->max) r->ids[r->n_ids++] = o->ids[at++];
        r->looked_at = at;
        rc = replay_batch(r, err);
        if (rc == ONCE_OK) keep_pace(r);
    }
    r->counts->stopped = at < o->n_ids;
    return rc;
}

static bool note_id(void *user, const once_letter *letter)
{
    *(uint64_t *)user = letter->id;
    return false;
}

/* The last letter's id, by halving: reading all of them would take longer than moving some. */
static int find_last(replaying *r, uint64_t *last, once_error *err)
{
    uint64_t high = INT64_MAX; /* none is above it */
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
    /* Counted after that: there are not more up to the last one. */
    if (rc == ONCE_OK) rc = r->store->ops->stats(r->store, r->pipeline->spec->consumer, &stats, err);
    r->total = stats.dead;
    return rc == ONCE_OK ? replay_found(r, last, err) : rc;
}

int once_pipeline_replay(once_pipeline *pipeline, const once_replay_options *options, once_replay_counts *out, once_error *err)
{
    once_replay_options asked;
    if (!pipeline || !options || !out) return once_fail(err, ONCE_E_USAGE, "once_pipeline_replay needs a pipeline, options and a place for the counts");
    int rc = once_sized_read("once_replay_options", options, &asked, sizeof asked, err);
    if (rc == ONCE_OK) rc = check_choice(&asked.choice, asked.ids, asked.n_ids, err);
    if (rc != ONCE_OK) return rc;
    *out = (once_replay_counts){0};
    if (asked.body && (!asked.ids || asked.n_ids != 1)) return once_fail(err, ONCE_E_USAGE, "a body can be given for one letter only");
    if (asked.body && once_bytes_lie(*asked.body)) return once_fail(err, ONCE_E_USAGE, "the body has a length and no address");
    replaying *r = calloc(1, sizeof *r);
    if (!r) return once_no_memory(err, "for a replay");
    r->pipeline = pipeline;
    r->options = &asked;
    r->counts = out;
    rc = open_keyed(pipeline, &r->store, err);
    if (rc == ONCE_OK) {
        once_intake_init(&r->intake, pipeline->spec, r->store->secret, 0, once_effect_prepare);
        r->keying = once__keying_of(pipeline, r->store);
        /* With other keys than the messages had, what was done before would run again. */
        rc = once__memory_check_scope(pipeline, r->store, ONCE_SCOPE_LOOK, err);
        if (rc == ONCE_OK) rc = replay_all(r, err);
        once_intake_release(&r->intake);
        once_arena_release(&r->batch.arena);
        once__store_close(r->store);
    }
    once__said_close(&r->said);
    free(r);
    return rc;
}

/* --- discard --- */

enum { DISCARDS = 500 }; /* letters in a transaction: whoever ends it in between can say it again */

typedef struct discarding {
    once_pipeline *pipeline;
    once_store *store;
    once_keying keying;
    const once_discard_options *options;
    once_arena arena; /* of one transaction */
    reading letters;
    once_discarded told[DISCARDS];
    uint64_t *ids;
    size_t n, room;
    bool failed;
} discarding;

static bool want_letter(void *user, const once_letter *letter)
{
    discarding *d = user;
    if (!once__choice_has_letter(&d->options->choice, letter)) return true;
    if (d->n == d->room) {
        const size_t room = d->room ? 2 * d->room : 64;
        uint64_t *ids = reallocarray(d->ids, room, sizeof *ids);
        d->failed = !ids;
        if (!ids) return false;
        d->ids = ids;
        d->room = room;
    }
    d->ids[d->n++] = letter->id;
    return true;
}

static int find_letters(discarding *d, once_error *err)
{
    const once_store_ops *ops = d->store->ops;
    const once_bytes consumer = d->pipeline->spec->consumer;
    const int rc = ops->letter_heads ? ops->letter_heads(d->store, consumer, 0, once__choice_is_all(&d->options->choice), want_letter, d, err)
                                     : ops->letters(d->store, consumer, 0, want_letter, d, err);
    return rc == ONCE_OK && d->failed ? once_no_memory(err, "for the letters") : rc;
}

static int discard_one(discarding *d, uint64_t id, once_discarded *out, once_error *err)
{
    once_letter letter;
    *out = (once_discarded){.letter = id};
    int rc = d->store->ops->letter_get(d->store, id, &letter, &out->found, &d->arena, err);
    if (rc != ONCE_OK) return rc;
    if (out->found && !once_bytes_equal(letter.scope.consumer, d->pipeline->spec->consumer)) out->found = false;
    if (!out->found) return ONCE_OK;
    note_read(&d->letters, &letter);
    out->scope = letter.scope;
    out->kind = once__letter_kind(&letter);
    out->key = letter.key;
    out->type = letter.message.type;
    out->place = letter.message.at.place;
    out->point = letter.message.at.point;
    out->reason = letter.reason;
    once__letter_outward_key(&d->keying, &letter, out->idempotency_key);
    rc = d->store->ops->discard(d->store, id, remember_of(d->pipeline->spec, letter.scope.operation), &out->found, err);
    const once_act act = {.what = "discard", .note = "", .scope = letter.scope, .key = letter.key, .letter = id, .idempotency_key = out->idempotency_key};
    return rc == ONCE_OK ? once__audit(d->pipeline, d->store, &act, err) : rc;
}

/* In one transaction; a dry run does the same and takes it back. */
static int discard_some(discarding *d, const uint64_t *ids, size_t n, uint64_t *discarded, once_error *err)
{
    once_store *store = d->store;
    once_arena_reset(&d->arena);
    d->letters.left = 0;
    int rc = store->ops->begin(store, err);
    if (rc != ONCE_OK) return rc;
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        rc = read_ahead(&d->letters, store, ids + i, n - i, err);
        if (rc == ONCE_OK) rc = discard_one(d, ids[i], &d->told[i], err);
    }
    if (rc == ONCE_OK && d->options->dry_run) store->ops->rollback(store);
    else rc = finish_tx(store, rc, err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        *discarded += d->told[i].found;
        if (d->options->visit) d->options->visit(d->options->user, &d->told[i]);
    }
    return rc;
}

int once_pipeline_discard(once_pipeline *pipeline, const once_discard_options *options, uint64_t *discarded, once_error *err)
{
    once_discard_options asked;
    if (!pipeline || !options || !discarded) return once_fail(err, ONCE_E_USAGE, "once_pipeline_discard needs a pipeline, options and a place for the count");
    int rc = once_sized_read("once_discard_options", options, &asked, sizeof asked, err);
    if (rc == ONCE_OK) rc = check_choice(&asked.choice, asked.ids, asked.n_ids, err);
    if (rc != ONCE_OK) return rc;
    *discarded = 0;
    discarding *d = calloc(1, sizeof *d);
    if (!d) return once_no_memory(err, "for letters");
    d->pipeline = pipeline;
    d->options = &asked;
    rc = open_keyed(pipeline, &d->store, err);
    if (rc == ONCE_OK) {
        d->keying = once__keying_of(pipeline, d->store);
        if (!asked.ids) rc = find_letters(d, err);
        const uint64_t *ids = asked.ids ? asked.ids : d->ids;
        const size_t n = asked.ids ? asked.n_ids : d->n;
        for (size_t at = 0; at < n && rc == ONCE_OK; at += DISCARDS) rc = discard_some(d, ids + at, n - at < DISCARDS ? n - at : DISCARDS, discarded, err);
        once__store_close(d->store);
    }
    once_arena_release(&d->arena);
    free(d->ids);
    free(d);
    return rc;
}

/* --- resolve, forget --- */

/* The entry of a key in the operation that is meant. Inside a transaction. */
static int find_entry(once_pipeline *pipeline, once_store *store, once_bytes tenant, once_bytes operation, once_bytes key,
                      once_entry *out, once_arena *arena, once_error *err)
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
            return once_fail(err, ONCE_E_USAGE, "operations '%.*s' and '%.*s' both know key '%.*s'; say --operation NAME",
                             show(out->scope.operation), out->scope.operation.data, show(scope.operation), scope.operation.data, show(key), key.data);
        *out = entry;
        out->scope = scope;
    }
    return ONCE_OK;
}

/* `key` as the operator wrote it, or as it is kept. */
static int resolve_entry(once_pipeline *pipeline, once_store *store, const once_entry *entry, const once_resolved *what, once_outcome outcome, once_error *err)
{
    const once_bytes key = what->key;
    if (entry->state != ONCE_STATE_UNKNOWN)
        return once_fail(err, ONCE_E_USAGE, "key '%.*s' is %s, not unknown; there is nothing to resolve", show(key), key.data, once_state_name(entry->state));
    if (outcome != ONCE_DONE && !entry->has_message)
        return once_fail(err, ONCE_E_USAGE, "key '%.*s' has no message in the store to %s; its source has it: resolve it when it was brought again,"
                         " or 'forget' the key, then its next delivery runs", show(key), key.data, outcome == ONCE_RETRY ? "try again with" : "keep as a letter");
    char note[60], reason[700];
    bool done;
    snprintf(note, sizeof note, "resolved as %s by an operator", once_outcome_name(outcome));
    const int said = outcome == ONCE_DONE ? 0 : entry->reason.len < 600 ? (int)entry->reason.len : 600; /* why it is unknown stays known */
    snprintf(reason, sizeof reason, "%s%s%.*s", note, said ? "; said before: " : "", said, said ? entry->reason.data : "");
    const int rc = store->ops->resolve(store, entry->id, outcome, text_of(reason), &done, err);
    assert(rc != ONCE_OK || done);
    const once_act act = {.what = "resolve", .note = note, .scope = entry->scope, .key = key, .idempotency_key = what->idempotency_key};
    return rc == ONCE_OK ? once__audit(pipeline, store, &act, err) : rc;
}

typedef struct resolving {
    once_pipeline *pipeline;
    once_store *store;
    once_keying keying;
    const once_resolve_options *options;
    once_arena arena;
    once_hash *ids; /* of those that fit */
    size_t n, room;
    bool failed;
} resolving;

static bool want_entry(void *user, const once_entry *entry)
{
    resolving *r = user;
    if (!once__choice_has_entry(&r->options->choice, entry)) return true;
    if (r->n == r->room) {
        const size_t room = r->room ? 2 * r->room : 64;
        once_hash *ids = reallocarray(r->ids, room, sizeof *ids);
        r->failed = !ids;
        if (!ids) return false;
        r->ids = ids;
        r->room = room;
    }
    r->ids[r->n++] = entry->id;
    return true;
}

static int describe(resolving *r, const once_entry *entry, once_bytes key, once_resolved *out, once_error *err)
{
    once_bytes shown;
    *out = (once_resolved){.scope = entry->scope, .key = key, .type = entry->message.type, .place = entry->at.place, .point = entry->at.point,
                           .reason = once__reason_shown(entry)};
    if (!r->options->key) shown = entry->key;
    else if (!once_key_show(&r->arena, key, &shown)) return once_no_memory(err, "for a key");
    if (entry->state != ONCE_STATE_ABSENT) once_outward_key(&r->keying, &entry->scope, shown, entry->id, entry->old_key, out->idempotency_key);
    return ONCE_OK;
}

/* One transaction: that of the key that was named, or of the entry with that id. A dry run does the same and takes it back. */
static int resolve_in_tx(resolving *r, const once_hash *id, once_resolved *out, once_error *err)
{
    const once_resolve_options *o = r->options;
    once_entry entry;
    once_arena_reset(&r->arena);
    int rc = r->store->ops->begin(r->store, err);
    if (rc != ONCE_OK) return rc;
    if (id) rc = r->store->ops->get(r->store, *id, &entry, &r->arena, err);
    else rc = find_entry(r->pipeline, r->store, o->choice.tenant, o->choice.operation, *o->key, &entry, &r->arena, err);
    if (rc == ONCE_OK) rc = describe(r, &entry, id ? entry.key : *o->key, out, err);
    if (rc == ONCE_OK) rc = resolve_entry(r->pipeline, r->store, &entry, out, o->outcome, err);
    if (rc != ONCE_OK || !o->dry_run) return finish_tx(r->store, rc, err);
    r->store->ops->rollback(r->store);
    return rc;
}

/* What somebody else has decided meanwhile, or what has no body to retry with, is left out and told. */
static int resolve_fitting(resolving *r, uint64_t *resolved, once_error *err)
{
    const once_resolve_options *o = r->options;
    int rc = r->store->ops->list(r->store, r->pipeline->spec->consumer, ONCE_STATE_UNKNOWN, want_entry, r, err);
    if (rc == ONCE_OK && r->failed) rc = once_no_memory(err, "for the messages");
    for (size_t i = 0; i < r->n && rc == ONCE_OK; i++) {
        once_resolved told = {0};
        once_error refused = {0};
        rc = resolve_in_tx(r, &r->ids[i], &told, &refused);
        if (rc == ONCE_E_USAGE) told.refused = refused.text;
        else if (rc != ONCE_OK) return once_fail(err, rc, "%s", refused.text);
        *resolved += !told.refused;
        if (o->visit) o->visit(o->user, &told);
        rc = ONCE_OK;
    }
    return rc;
}

int once_pipeline_resolve(once_pipeline *pipeline, const once_resolve_options *options, uint64_t *resolved, once_error *err)
{
    once_resolve_options asked;
    if (!pipeline || !options || !resolved) return once_fail(err, ONCE_E_USAGE, "once_pipeline_resolve needs a pipeline, options and a place for the count");
    int rc = once_sized_read("once_resolve_options", options, &asked, sizeof asked, err);
    if (rc == ONCE_OK) rc = check_choice(&asked.choice, NULL, 0, err);
    if (rc != ONCE_OK) return rc;
    *resolved = 0;
    if (asked.key && once_bytes_lie(*asked.key)) return once_fail(err, ONCE_E_USAGE, "the key has a length and no address");
    if (asked.outcome != ONCE_DONE && asked.outcome != ONCE_RETRY && asked.outcome != ONCE_DEAD)
        return once_fail(err, ONCE_E_USAGE, "an unknown message can be resolved as done, retry or dead");
    resolving r = {.pipeline = pipeline, .options = &asked};
    rc = open_keyed(pipeline, &r.store, err);
    if (rc != ONCE_OK) return rc;
    r.keying = once__keying_of(pipeline, r.store);
    if (asked.key) {
        once_resolved told = {0};
        rc = resolve_in_tx(&r, NULL, &told, err);
        *resolved = rc == ONCE_OK;
        if (rc == ONCE_OK && asked.visit) asked.visit(asked.user, &told);
    } else {
        rc = resolve_fitting(&r, resolved, err);
    }
    once_arena_release(&r.arena);
    free(r.ids);
    once__store_close(r.store);
    return rc;
}

int once_pipeline_forget(once_pipeline *pipeline, once_bytes tenant, once_bytes operation, once_bytes key, const char **was, once_error *err)
{
    if (!pipeline || !was || once_bytes_lie(tenant) || once_bytes_lie(operation) || once_bytes_lie(key)) return once_fail(err, ONCE_E_USAGE, "once_pipeline_forget needs a pipeline, a key and a place for its state");
    once_store *store;
    once_arena arena = {0};
    once_entry entry = {0};
    int rc = once__known_open_store(pipeline, &store, err);
    if (rc != ONCE_OK) return rc;
    rc = store->ops->begin(store, err);
    if (rc == ONCE_OK) {
        rc = find_entry(pipeline, store, tenant, operation, key, &entry, &arena, err);
        if (rc == ONCE_OK && entry.state != ONCE_STATE_ABSENT) {
            char note[60];
            bool found;
            snprintf(note, sizeof note, "it was %s", once_state_name(entry.state));
            rc = store->ops->forget(store, entry.id, &found, err);
            const once_act act = {.what = "forget", .note = note, .scope = entry.scope, .key = key};
            if (rc == ONCE_OK) rc = once__audit(pipeline, store, &act, err);
        }
        rc = finish_tx(store, rc, err);
    }
    if (rc == ONCE_OK) *was = once_state_name(entry.state);
    once_arena_release(&arena);
    once__store_close(store);
    return rc;
}

/* --- sweep --- */

int once_pipeline_sweep(once_pipeline *pipeline, once_sweep_progress *progress, void *user, uint64_t *dropped, once_error *err)
{
    if (!pipeline || !dropped) return once_fail(err, ONCE_E_USAGE, "once_pipeline_sweep needs a pipeline and a place for the count");
    once_store *store;
    once_sweep_result step = {.more = true};
    const int64_t begun_ns = once_env_mono_ns(pipeline->env);
    *dropped = 0;
    int rc = once__known_open_store(pipeline, &store, err);
    if (rc != ONCE_OK) return rc;
    while (rc == ONCE_OK && (step.more || step.busy) && !atomic_load(&pipeline->stop)) {
        rc = store->ops->sweep(store, SWEEP_STEP, &step, err);
        if (rc != ONCE_OK) break;
        *dropped += step.dropped;
        if (progress) progress(user, *dropped, (double)(once_env_mono_ns(pipeline->env) - begun_ns) / 1e9);
        const int64_t pause_ms = step.busy ? SWEEP_BUSY_MS : step.more ? step.pause_ms : 0;
        if (pause_ms) once_env_sleep_ms(pipeline->env, pause_ms);
    }
    once__store_close(store);
    return rc;
}

/* --- explain by coordinates --- */

/* Of coordinates: the number of the file under the path; 0: they are of another source. */
static uint64_t number_of(once_bytes path, once_bytes place)
{
    uint64_t number = 0;
    if (once_bytes_equal(path, ONCE_BYTES("-"))) return 0;
    if (once_bytes_equal(place, path)) return 1;
    if (place.len <= path.len + 1 || place.len > path.len + 16 || memcmp(place.data, path.data, path.len) != 0 || place.data[path.len] != '/') return 0;
    for (size_t i = path.len + 1; i < place.len; i++) {
        if (place.data[i] < '0' || place.data[i] > '9') return 0;
        number = number * 10 + (uint64_t)(place.data[i] - '0');
    }
    return number;
}

/* Has the source begin with that file, where it is still known. */
static int go_to_file(once_source *source, uint64_t number, once_bytes files, once_error *err)
{
    once_places known, only = {0};
    once_buf text;
    once_buf_init(&text, ONCE_PLACES_TEXT);
    if (files.len && once_places_read(files, &known))
        for (size_t i = 0; i < known.n; i++)
            if (known.at[i].number == number) only.at[only.n++] = known.at[i];
    for (size_t i = 0; i < only.n; i++) once_place_rewind(&only.at[i]);
    if (only.n) once_places_write(&only, &text);
    const once_kept_places kept = {.files = files, .cursor = once_buf_bytes(&text)};
    const int rc = text.failed ? once_no_memory(err, "for the source") : source->ops->seek(source, &kept, err);
    once_buf_release(&text);
    return rc;
}

/* Reads the source until the message is found; the batch then holds it. */
static int read_until(once_source *source, once_bytes place, once_bytes point, once_batch *batch, once_item **out, once_error *err)
{
    bool at_end = false;
    int rc = ONCE_OK;
    while (rc == ONCE_OK && !at_end && !*out) {
        once_arena_reset(&batch->arena);
        rc = source->ops->fetch(source, 1024, batch, &at_end, err);
        for (size_t i = 0; rc == ONCE_OK && i < batch->n && !*out; i++)
            if (once_bytes_equal(batch->items[i].message.at.point, point) && once_bytes_equal(batch->items[i].message.at.place, place)) *out = &batch->items[i];
        if (batch->n == 0) break; /* a followed file has no end */
    }
    if (rc == ONCE_OK && !*out)
        rc = once_fail(err, ONCE_E_USAGE, "'%.*s' has no message at '%.*s'", show(place), place.data, show(point), point.data);
    return rc;
}

static int read_again(once_pipeline *pipeline, once_store *store, once_bytes place, once_bytes point, once_batch *batch, once_item **out, once_error *err)
{
    once_source *source;
    once_arena arena = {0};
    once_bytes files;
    *out = NULL;
    int rc = once_source_file.open(pipeline->spec, pipeline->env, &source, err);
    if (rc != ONCE_OK) return rc;
    rc = once__memory_files(pipeline, store, &files, &arena, err);
    if (rc == ONCE_OK) rc = go_to_file(source, number_of(pipeline->spec->source.path, place), files, err);
    if (rc == ONCE_OK) rc = read_until(source, place, point, batch, out, err);
    source->ops->close(source);
    once_arena_release(&arena);
    return rc;
}

typedef struct letter_search {
    once_bytes place, point;
    const once_item *item;
    once_arena *arena;
    once_bytes reason;
    uint64_t id, count;
    bool failed;
} letter_search;

static bool at_these_coordinates(const letter_search *s, const once_letter *letter)
{
    return once_bytes_equal(letter->message.at.place, s->place) && once_bytes_equal(letter->message.at.point, s->point);
}

/* Of conflicts that are one letter only the last one is where the letter says. */
static bool in_that_conflict(const letter_search *s, const once_letter *letter)
{
    return letter->kind == ONCE_ANSWER_CONFLICT && letter->count > 1 && once_bytes_equal(letter->key, s->item->request.key) &&
           once_bytes_equal(letter->scope.tenant, s->item->scope.tenant) && once_bytes_equal(letter->scope.operation, s->item->scope.operation) &&
           once_bytes_equal(letter->message.body, s->item->message.body);
}

static bool find_its_letter(void *user, const once_letter *letter)
{
    letter_search *s = user;
    if (!at_these_coordinates(s, letter) && !in_that_conflict(s, letter)) return true;
    s->id = letter->id;
    s->count = letter->count;
    s->failed = !once_arena_copy(s->arena, letter->reason, &s->reason);
    return false;
}

static void prepare_look(once_item *item)
{
    item->request.scope = &item->scope;
    item->request.token = (once_token){1, 1};
    item->request.lease_ms = 1;
}

/* What a message whose key is not known would get, also in words; empty: it would run. */
static int would_get(once_store *store, once_item *item, once_arena *arena, once_answer *answer, once_bytes *out, once_error *err)
{
    once_decision decision;
    prepare_look(item);
    const int rc = store->ops->look(store, &item->request, &decision, arena, err);
    if (rc != ONCE_OK) return rc;
    *answer = decision.answer;
    const char *would = NULL;
    if (decision.answer == ONCE_ANSWER_TOO_OLD &&
        !once_sent_too_old(item->message.sent_ms, item->sent_text, item->sent_unit, item->request.remember_ms, arena, &decision.reason))
        return once_no_memory(err, "for words");
    switch (decision.answer) {
    case ONCE_ANSWER_DUPLICATE: would = "would be a duplicate: "; break;
    case ONCE_ANSWER_CONFLICT: would = "would be a conflict: "; break;
    case ONCE_ANSWER_STALE: would = "would be stale: "; break;
    case ONCE_ANSWER_TOO_OLD: would = "would be "; break;
    case ONCE_ANSWER_GAP: would = "would wait: a version before it is missing"; break;
    case ONCE_ANSWER_LATER: would = "would wait behind another message of its lane"; break;
    default: return ONCE_OK;
    }
    char *text = once_arena_alloc(arena, strlen(would) + decision.reason.len + 1);
    if (!text) return once_no_memory(err, "for words");
    memcpy(text, would, strlen(would));
    if (decision.reason.len) memcpy(text + strlen(would), decision.reason.data, decision.reason.len);
    *out = (once_bytes){text, strlen(would) + decision.reason.len};
    return ONCE_OK;
}

static bool has_other_content(const once_item *item, const once_entry *entry)
{
    return !once_hash_is_zero(entry->fingerprint) && !once_hash_is_zero(item->request.fingerprint) &&
           !once_hash_equal(entry->fingerprint, item->request.fingerprint);
}

/* Whether a message with other content would take the place of the one that is known. */
static int would_replace(once_store *store, once_item *item, once_arena *arena, bool *out, once_error *err)
{
    once_decision decision;
    prepare_look(item);
    const int rc = store->ops->look(store, &item->request, &decision, arena, err);
    *out = rc == ONCE_OK && decision.answer != ONCE_ANSWER_CONFLICT;
    return rc;
}

/* Whether an operator has discarded the letter that it would become, and when. `answer`: what it would get. */
static int was_discarded(once_store *store, const once_item *item, once_answer answer, once_arena *arena, once_bytes *reason, once_error *err)
{
    if (answer != ONCE_ANSWER_DEAD && answer != ONCE_ANSWER_CONFLICT && answer != ONCE_ANSWER_TOO_OLD) return ONCE_OK;
    const once_letter letter = {
        .scope = {item->scope.tenant, item->scope.consumer, item->scope.operation},
        .key = item->request.key,
        .message = item->message,
        .kind = item->message.cut_from ? ONCE_ANSWER_CUT : answer,
        .key_id = item->request.id,
        .fingerprint = item->request.fingerprint,
    };
    once_entry mark;
    const int rc = store->ops->get(store, once__letter_identity(store, &letter), &mark, arena, err);
    if (rc != ONCE_OK || mark.state != ONCE_STATE_REJECTED) return rc;
    enum { ROOM = 120 };
    char *text = once_arena_alloc(arena, ROOM), time[ONCE_TIME_TEXT];
    if (!text) return once_no_memory(err, "for words");
    const int len = snprintf(text, ROOM, "its letter was discarded %s%s%.*s", once_time_format(mark.changed_ms, time), mark.who.len ? " by " : "",
                             mark.who.len < 60 ? (int)mark.who.len : 60, mark.who.data ? mark.who.data : "");
    *reason = (once_bytes){text, (size_t)len};
    return ONCE_OK;
}

static const char *fate_of(const once_item *item, const once_entry *entry, const letter_search *letter, bool replaces, bool discarded)
{
    if (letter->id) return "letter";
    if (discarded) return "discarded";
    if (once_hash_is_zero(item->request.id)) return "malformed";
    if (entry->state == ONCE_STATE_ABSENT) return "unseen";
    if (has_other_content(item, entry)) return replaces ? "replaces" : "conflict";
    return once_bytes_equal(entry->at.place, item->message.at.place) && once_bytes_equal(entry->at.point, item->message.at.point) ? "first" : "duplicate";
}

int once_pipeline_explain_message(once_pipeline *pipeline, once_bytes place, once_bytes point, once_fate_visit *fate,
                                  once_explain_visit *visit, void *user, once_error *err)
{
    if (!pipeline || !fate || !visit || once_bytes_lie(place) || once_bytes_lie(point)) return once_fail(err, ONCE_E_USAGE, "once_pipeline_explain_message needs a pipeline, a place and functions for what is known");
    once_batch batch = {0};
    once_item *item = NULL;
    once_entry entry = {0};
    once_store *store = NULL;
    uint64_t column = 0;
    letter_search letter = {.place = place, .point = point, .arena = &batch.arena};
    const once_bytes path = pipeline->spec->source.path;
    if (!number_of(path, place))
        return once_fail(err, ONCE_E_USAGE, "'%.*s' is not the file that this pipeline reads ('%.*s')", show(place), place.data, show(path), path.data);
    int rc = open_keyed(pipeline, &store, err);
    if (rc == ONCE_OK) rc = read_again(pipeline, store, place, point, &batch, &item, err);
    if (rc == ONCE_OK) {
        once_intake intake;
        once_intake_init(&intake, pipeline->spec, store->secret, 0, once_effect_prepare);
        rc = once_intake_fetched(&intake, item, err);
        if (rc == ONCE_OK && once_hash_is_zero(item->request.id) && !item->message.cut_from) column = column_of(&intake.body, item->message.body);
        once_intake_release(&intake);
    }
    letter.item = item;
    if (rc == ONCE_OK) rc = store->ops->letters(store, pipeline->spec->consumer, 0, find_its_letter, &letter, err);
    if (rc == ONCE_OK && letter.failed) rc = once_no_memory(err, "for a letter");
    const bool has_key = rc == ONCE_OK && !once_hash_is_zero(item->request.id);
    if (has_key) rc = store->ops->get(store, item->request.id, &entry, &batch.arena, err);
    once_bytes would = {0};
    bool replaces = false;
    once_answer answer = has_key ? ONCE_ANSWER_DUPLICATE : ONCE_ANSWER_DEAD;
    if (rc == ONCE_OK && has_key && !letter.id && entry.state == ONCE_STATE_ABSENT) {
        rc = would_get(store, item, &batch.arena, &answer, &would, err);
    } else if (rc == ONCE_OK && has_key && !letter.id && has_other_content(item, &entry)) {
        rc = would_replace(store, item, &batch.arena, &replaces, err);
        if (!replaces) answer = ONCE_ANSWER_CONFLICT;
    }
    once_bytes discarded = {0};
    if (rc == ONCE_OK && !letter.id && !item->scope.consumer.data) item->scope.consumer = pipeline->spec->consumer; /* it has no key */
    if (rc == ONCE_OK && !letter.id) rc = was_discarded(store, item, answer, &batch.arena, &discarded, err);
    once__store_close(store);
    if (rc == ONCE_OK) {
        const once_fate told = {
            .fate = fate_of(item, &entry, &letter, replaces, discarded.len > 0),
            .scope = item->scope,
            .key = item->request.key,
            .reason = letter.id ? letter.reason : discarded.len ? discarded : would.len ? would : item->reason,
            .letter = letter.id,
            .count = letter.count,
            .line = has_key || item->no_handler ? (once_bytes){0} : item->message.body,
            .column = column,
        };
        fate(user, &told);
        if (has_key && !item->scope.tenant.data) item->scope.tenant = ONCE_BYTES("");
        if (has_key) rc = once_pipeline_explain(pipeline, item->scope.tenant, item->request.key, visit, user, err);
    }
    once_arena_release(&batch.arena);
    return rc;
}
