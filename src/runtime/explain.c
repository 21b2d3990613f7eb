/* `once explain KEY`: everything that the store has about a key. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/no_memory.h"
#include "base/usage.h"
#include "runtime/audit.h"
#include "runtime/choice.h"
#include "runtime/executor.h"
#include "runtime/known_store.h"
#include "runtime/operate.h"
#include "runtime/lane_place.h"
#include "runtime/runtime.h"
#include "store/history.h"
#include "store/takeover.h"

#include "base/banned.h"

int once__entry_by_key(once_backend *store, const once_scope *scope, once_bytes key, once_entry *out, once_arena *arena,
                       once_error *err)
{
    const int rc = store->ops->get(store, once_key_id(store->secret, scope, key), out, arena, err);
    if (rc != ONCE_OK || out->state != ONCE_STATE_ABSENT || !once_key_looks_long(key)) return rc;
    return store->ops->get(store, once_long_key_id(store->secret, scope, key), out, arena, err);
}

/* Adds to the reason what the message waits for in its lane, or that its lane waits for it. */
static int explain_lane(once_backend *store, once_entry *entry, once_arena *arena, once_error *err)
{
    assert(entry->state == ONCE_STATE_WAITING || entry->state == ONCE_STATE_DEAD);
    once_bytes words;
    const int rc = store->ops->explain_lane(store, entry->id, &words, arena, err);
    if (rc != ONCE_OK || words.len == 0) return rc;
    if (entry->reason.len) {
        once_bytes parts[] = {entry->reason, ONCE_BYTES("; "), words};
        char *text = once_arena_alloc(arena, entry->reason.len + words.len + 2), *at = text;
        if (!text) return once_no_memory(err, "for a reason");
        for (size_t i = 0; i < 3; at += parts[i++].len) memcpy(at, parts[i].data, parts[i].len);
        words = (once_bytes){text, (size_t)(at - text)};
    }
    entry->reason = words;
    return ONCE_OK;
}

/* Collects the letters of a key. */
typedef struct letters_of_key {
    once_scope scope;
    bool any_operation;
    once_bytes key;
    const once_keying *keying;
    once_arena *arena;
    once_key_letter at[20]; /* the last ones, oldest first */
    size_t n;
    uint64_t all;
    bool failed;
} letters_of_key;

static bool note_letter(void *user, const once_letter *letter)
{
    letters_of_key *s = user;
    if (!once_bytes_equal(letter->key, s->key) || !once_bytes_equal(letter->scope.tenant, s->scope.tenant)) return true;
    if (!s->any_operation && !once_bytes_equal(letter->scope.operation, s->scope.operation)) return true;
    if (s->n == sizeof s->at / sizeof *s->at) memmove(s->at, s->at + 1, --s->n * sizeof *s->at);
    assert(s->n < sizeof s->at / sizeof *s->at);
    once_key_letter *kept = &s->at[s->n++];
    *kept = (once_key_letter){.letter = letter->id,
                              .kind = once__letter_kind(letter),
                              .count = letter->count,
                              .buried_ms = letter->buried_ms,
                              .last_ms = letter->last_ms};
    once__letter_outward_key(s->keying, letter, kept->idempotency_key);
    s->all++;
    s->failed = !once_arena_copy(s->arena, letter->reason, &kept->reason);
    return !s->failed;
}

static int find_letters(once_backend *store, letters_of_key *s, once_error *err)
{
    const int rc = store->ops->letters_of_key
                       ? store->ops->letters_of_key(store, s->scope.consumer, s->key, note_letter, s, err)
                       : store->ops->letters(store, s->scope.consumer, 0, note_letter, s, err);
    return rc == ONCE_OK && s->failed ? once_no_memory(err, "for a letter") : rc;
}

/* The message of a dead entry is in its letter. */
static int explain_place(once_lane_reader *reader, const once_entry *entry, once_lane_place *out, once_error *err)
{
    once_backend *store = reader->store;
    once_arena arena = {0};
    once_letter letter = {0};
    uint64_t id = 0;
    bool found = false;
    int rc = ONCE_OK;
    if (entry->state == ONCE_STATE_DEAD && reader->spec->order) rc = once__lane_dead_letter(reader, entry, &id, err);
    if (rc == ONCE_OK && id) rc = store->ops->letter_get(store, id, &letter, &found, &arena, err);
    const once_message *message = entry->has_message ? &entry->message : found ? &letter.message : NULL;
    if (rc == ONCE_OK) rc = once__lane_place_read(reader, entry->id, &entry->scope, message, out, err);
    once_arena_release(&arena);
    return rc;
}

/* Finds in the audit who discarded the letter of an entry. */
typedef struct discard_search {
    const once_entry *entry;
    once_bytes key; /* as it is kept */
    once_json json;
    once_arena arena;
    bool discarded;
    int64_t time_ms;
    char who[200];
    int rc;
    once_error *err;
} discard_search;

/* Records of older versions have no scope. */
static bool is_of_scope(const once_audited *a, const once_scope *scope)
{
    return (!a->tenant.len && !a->operation.len) ||
           (once_bytes_equal(a->tenant, scope->tenant) && once_bytes_equal(a->operation, scope->operation));
}

static bool note_discard(void *user, const once_audit *record)
{
    discard_search *s = user;
    once_audited a;
    if (!once_bytes_equal(record->what, ONCE_BYTES("discard")) || !once_bytes_equal(record->key, s->key)) return true;
    once_arena_reset(&s->arena);
    s->rc = once__audit_read(record, &s->json, &s->arena, &a, s->err);
    if (s->rc != ONCE_OK) return false;
    if (!is_of_scope(&a, &s->entry->scope)) return true;
    s->time_ms = a.time_ms; /* the last one counts */
    snprintf(s->who, sizeof s->who, "%.*s", (int)(a.who.len < sizeof s->who ? a.who.len : sizeof s->who - 1),
             a.who.data ? a.who.data : "");
    return true;
}

/* A rejected entry whose last attempt did not end as rejected was discarded by an operator. If no attempt is kept, only
 * the audit can tell. */
static int find_discard(once_backend *store, discard_search *s, once_error *err)
{
    assert(s->entry && s->key.len > 0);
    once_attempt attempts[ONCE_HISTORY_ATTEMPTS];
    const size_t n = once__history_of(s->entry, attempts);
    s->time_ms = ONCE_NO_TIME;
    s->discarded = s->entry->state == ONCE_STATE_REJECTED &&
                   !(n && strcmp(attempts[n - 1].outcome, once_outcome_name(ONCE_REJECTED)) == 0);
    if (!s->discarded) return ONCE_OK;
    s->err = err;
    once_json_init(&s->json);
    const int rc = store->ops->audits(store, s->entry->scope.consumer, note_discard, s, err);
    once_json_release(&s->json);
    once_arena_release(&s->arena);
    if (n == 0 && s->time_ms < s->entry->seen_ms) s->discarded = false; /* ONCE_NO_TIME, too: no record was found */
    if (!s->discarded) s->time_ms = ONCE_NO_TIME;
    return rc == ONCE_OK ? s->rc : rc;
}

/* Finds a worker that has paused the handler of an entry. */
typedef struct pause_search {
    once_backend *store;
    const once_spec *spec;
    const once_entry *entry;
    char who[ONCE_WHO_MAX + 1];
    once_paused paused; /* of that worker */
    once_paused_line line;
    bool found;
    int rc;
    once_error *err;
} pause_search;

/* Handlers may share an operation; then its type tells which of them runs a message, if the store has it. */
static bool may_run(const once_spec *spec, const once_entry *entry, once_bytes handler)
{
    for (size_t i = 0; i < spec->n_handlers; i++) {
        const once_handler_spec *h = &spec->handlers[i];
        if (!once_bytes_equal(h->operation, entry->scope.operation) || !once_bytes_equal(once__paused_name(h), handler))
            continue;
        if (!entry->has_message || once_spec_handler(spec, entry->message.type) == h) return true;
    }
    return false;
}

static bool note_paused(void *user, const once_worker *worker, once_worker_state state)
{
    pause_search *s = user;
    if (state != ONCE_WORKER_ALIVE) return true;
    s->rc = once_worker_paused(worker, s->store, &s->paused, s->err);
    const char *at = s->paused.text;
    while (s->rc == ONCE_OK && !s->found && once__paused_next(&at, &s->line))
        s->found = may_run(s->spec, s->entry, s->line.handler);
    (void)snprintf(s->who, sizeof s->who, "%s", worker->who);
    return s->rc == ONCE_OK && !s->found;
}

/* What it waits for may be its handler. */
static int find_paused(pause_search *s, const once_entry *entry, once_error *err)
{
    const bool waits = entry->state == ONCE_STATE_WAITING || entry->state == ONCE_STATE_UNKNOWN;
    if (!waits || once__due_shown_ms(s->spec, entry) == ONCE_NO_TIME) return ONCE_OK;
    s->entry = entry;
    s->err = err;
    const int rc = once_workers_each(s->store, s->spec->consumer, note_paused, s, err);
    return rc == ONCE_OK ? s->rc : rc;
}

static void explain_paused(const pause_search *s, once_explanation *to)
{
    if (!s->found) return;
    to->paused_by = once__text_of(s->who);
    to->paused_handler = s->line.handler;
    to->paused_cause = s->line.cause;
    to->paused_reason = s->line.reason;
    to->paused_ms = s->line.since_ms;
}

static void explain_entry(const once_spec *spec, const once_keying *keying, const once_entry *entry, once_bytes shown,
                          const letters_of_key *letters, const once_lane_place *lane, const discard_search *discard,
                          const pause_search *pause, once_explain_visit *visit, void *user)
{
    assert(letters->n <= letters->all && (spec || entry->state == ONCE_STATE_ABSENT));
    once_attempt attempts[ONCE_HISTORY_ATTEMPTS];
    const size_t n = once__history_of(entry, attempts);
    once_explanation explanation = {
        .scope = entry->scope,
        .key = entry->key,
        .state = once_state_name(entry->state),
        .attempt = entry->attempt,
        .failures = entry->failures,
        .place = entry->at.place,
        .point = entry->at.point,
        .seen_ms = entry->seen_ms,
        .changed_ms = entry->changed_ms,
        .due_ms = once__due_shown_ms(spec, entry),
        .expires_ms = once_entry_expires(entry) ? entry->expires_ms : ONCE_NO_TIME,
        .has_body = entry->has_message,
        .reason = entry->reason,
        .result = entry->result,
        .who = entry->who,
        .worker = entry->worker,
        .attempts = attempts,
        .n_attempts = n,
        .letters = letters->at,
        .n_letters = letters->n,
        .all_letters = letters->all,
        .maybe_done =
            !once_state_finished(entry->state) && entry->state != ONCE_STATE_ABSENT &&
            once_spec_maybe_done(spec, entry->scope.operation, entry->maybe_done || entry->state == ONCE_STATE_UNKNOWN),
        .lane = *lane,
        .discarded = discard->discarded,
        .discarded_ms = discard->time_ms,
        .discarded_by = {discard->who, strlen(discard->who)},
    };
    explain_paused(pause, &explanation);
    if (entry->state != ONCE_STATE_ABSENT)
        once_outward_key(keying, &entry->scope, shown, entry->id, entry->old_key, explanation.idempotency_key);
    visit(user, &explanation);
}

/* There is no entry for the key. There may be letters: of messages that were refused before they got an entry (too old,
 * below the first version). */
static int explain_letter_or_nothing(once_backend *store, const once_keying *keying, once_scope scope, once_bytes key,
                                     once_arena *arena, once_explain_visit *visit, void *user, once_error *err)
{
    char reason[400];
    letters_of_key s = {.scope = scope, .any_operation = true, .key = key, .keying = keying, .arena = arena};
    once_entry absent = {.scope = scope, .key = key};
    const int rc = find_letters(store, &s, err);
    if (rc != ONCE_OK) return rc;
    if (s.n) {
        const once_key_letter *last = &s.at[s.n - 1];
        const int n =
            snprintf(reason, sizeof reason, "dead letter %llu has this key: %.*s", (unsigned long long)last->letter,
                     last->reason.len < 300 ? (int)last->reason.len : 300, last->reason.data ? last->reason.data : "");
        absent.reason = (once_bytes){reason, (size_t)n};
    }
    explain_entry(NULL, keying, &absent, key, &s, &(once_lane_place){0}, &(discard_search){.time_ms = ONCE_NO_TIME},
                  &(pause_search){0}, visit, user);
    return ONCE_OK;
}

int once__want_tenant(const once_pipeline *pipeline, once_bytes tenant, once_error *err)
{
    if (!pipeline->spec->tenant || tenant.data) return ONCE_OK;
    return once_fail(err, ONCE_E_USAGE, "the keys of '%.*s' belong to tenants; add --tenant NAME",
                     (int)pipeline->spec->file.len, pipeline->spec->file.data);
}

/* The worker of the claim is gone: says what the next run will do. */
static int explain_gone(once_backend *store, once_entry *entry, once_error *err)
{
    assert(entry->state == ONCE_STATE_CLAIMED);
    once_gone gone;
    const int rc = once_gone_read(store, entry->scope.consumer, &gone, err);
    const once_bytes says = rc == ONCE_OK ? once_gone_says(&gone, entry) : (once_bytes){0};
    if (says.len) entry->reason = says;
    return rc;
}

int once_pipeline_explain(once_pipeline *pipeline, once_bytes tenant, once_bytes key, once_explain_visit *visit,
                          void *user, once_error *err)
{
    if (!pipeline || !visit || once_bytes_lie(tenant) || once_bytes_lie(key))
        return once_fail(err, ONCE_E_USAGE, "once_pipeline_explain needs a pipeline, a key and a callback");
    const once_spec *spec = pipeline->spec;
    once_backend *store;
    int rc = once__want_tenant(pipeline, tenant, err);
    if (rc == ONCE_OK) rc = once__salt_read(pipeline, err);
    if (rc == ONCE_OK) rc = once__operator_open(pipeline, &store, err);
    if (rc != ONCE_OK) return rc;

    once_arena arena = {0};
    const once_keying keying = once__keying_of(pipeline, store);
    once_bytes shown;
    size_t known = 0;
    once_lane_reader reader;
    once__lane_reader_init(&reader, pipeline, store);
    rc = once__consumer_check_salt(pipeline, store, err);
    if (rc == ONCE_OK && !once_key_show(&arena, key, &shown)) rc = once_no_memory(err, "for a key");
    for (size_t i = 0; rc == ONCE_OK && i < spec->n_handlers; i++) {
        const once_scope scope = {tenant, spec->consumer, spec->handlers[i].operation};
        if (once_spec_handler_by_operation(spec, scope.operation) != &spec->handlers[i]) continue; /* shares its keys */
        once_entry entry;
        rc = once__entry_by_key(store, &scope, key, &entry, &arena, err);
        if (rc != ONCE_OK || entry.state == ONCE_STATE_ABSENT) continue;
        entry.scope = scope; /* finished entries may be stored without it */
        entry.key = key;
        entry.reason = once__reason_shown(&entry);
        if (entry.state == ONCE_STATE_WAITING || entry.state == ONCE_STATE_DEAD)
            rc = explain_lane(store, &entry, &arena, err);
        if (entry.state == ONCE_STATE_CLAIMED) rc = explain_gone(store, &entry, err);
        letters_of_key letters = {.scope = scope, .key = shown, .keying = &keying, .arena = &arena};
        if (rc == ONCE_OK) rc = find_letters(store, &letters, err);
        once_lane_place lane = {0};
        if (rc == ONCE_OK && !once_state_finished(entry.state)) rc = explain_place(&reader, &entry, &lane, err);
        discard_search discard = {.entry = &entry, .key = shown};
        if (rc == ONCE_OK) rc = find_discard(store, &discard, err);
        pause_search pause = {.store = store, .spec = spec};
        if (rc == ONCE_OK) rc = find_paused(&pause, &entry, err);
        if (rc == ONCE_OK) explain_entry(spec, &keying, &entry, shown, &letters, &lane, &discard, &pause, visit, user);
        known++;
    }
    if (rc == ONCE_OK && known == 0)
        rc = explain_letter_or_nothing(store, &keying, (once_scope){tenant, spec->consumer, {0}}, shown, &arena, visit,
                                       user, err);
    once__lane_reader_release(&reader);
    once_arena_release(&arena);
    once__operator_close(pipeline, store);
    return rc;
}
