/* `once list`: unfinished messages and dead letters, one by one. */
#include <assert.h>
#include <string.h>

#include "base/no_memory.h"
#include "core/intake.h"
#include "runtime/choice.h"
#include "runtime/known_store.h"
#include "runtime/lane_place.h"
#include "runtime/operate.h"
#include "store/engine.h"
#include "store/history.h"
#include "store/takeover.h"

#include "base/banned.h"

typedef struct listing {
    once_list_visit *visit;
    void *user;
    once_keying keying;
    const once_spec *spec;
    bool over;
    once_gone gone;
    once_backend *lanes; /* a second handle, to read lanes while `store` lists; NULL: the pipeline has none */
    once_arena arena;
    once_json json;          /* finds the mistake in a malformed line */
    once_lane_reader reader; /* when the pipeline has lanes */
    int rc;                  /* other than ONCE_OK: what ended the listing */
    once_error *err;
} listing;

static void place_in_lane(listing *l, once_hash entry, const once_scope *scope, const once_message *message,
                          once_listed *item)
{
    if (l->lanes && l->rc == ONCE_OK)
        l->rc = once__lane_place_read(&l->reader, entry, scope, message, &item->lane, l->err);
}

/* Adds to the reason what the message waits for in its lane, or that its lane waits for it. If that cannot be read,
 * sets l->rc: the message must not be shown as if nothing blocked it. */
static once_bytes with_lane(listing *l, once_hash entry, once_bytes reason)
{
    once_bytes words = {0};
    once_arena_reset(&l->arena);
    if (!l->lanes || once_hash_is_zero(entry)) return reason;
    l->rc = l->lanes->ops->explain_lane(l->lanes, entry, &words, &l->arena, l->err);
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
    assert(l->rc == ONCE_OK && !l->over);
    once_attempt attempts[ONCE_HISTORY_ATTEMPTS];
    const size_t n = once__history_of(e, attempts);
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
        .due_ms = once__due_shown_ms(l->spec, e),
        .worker = e->worker,
        .reason = reason_of(l, e),
        .own_reason = once__reason_shown(e),
        .has_body = e->has_message,
        .body = e->message.body,
        .headers = e->message.headers,
        .bytes = l->spec->source.bytes,
        .attempts = attempts,
        .n_attempts = n,
        .maybe_done =
            once_spec_maybe_done(l->spec, e->scope.operation, e->maybe_done || e->state == ONCE_STATE_UNKNOWN),
    };
    once_outward_key(&l->keying, &e->scope, e->key, e->id, e->old_key, item.idempotency_key);
    place_in_lane(l, e->id, &e->scope, e->has_message ? &e->message : NULL, &item);
    l->over = l->rc != ONCE_OK || !l->visit(l->user, &item);
    return !l->over;
}

static bool list_letter(void *user, const once_letter *letter)
{
    listing *l = user;
    assert(l->rc == ONCE_OK && !l->over && letter->id > 0);
    const char *kind = once__letter_kind(letter);
    const bool line = strcmp(kind, "malformed") == 0 && !once_reason_is_no_handler(letter->reason) &&
                      !l->spec->source.bytes; /* bytes are shown on request only */
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
        .bytes = l->spec->source.bytes,
        .attempts = attempts,
        .n_attempts = n,
        .line = line ? letter->message.body : (once_bytes){0},
        .column = line ? once__json_column(&l->json, letter->message.body) : 0,
        .maybe_done = once_spec_maybe_done(l->spec, letter->scope.operation, letter->maybe_done),
    };
    once__letter_outward_key(&l->keying, letter, item.idempotency_key);
    if (letter->key.len) place_in_lane(l, letter->entry, &letter->scope, &letter->message, &item);
    l->over = l->rc != ONCE_OK || !l->visit(l->user, &item);
    return !l->over;
}

int once_pipeline_list(once_pipeline *pipeline, unsigned what, once_list_visit *visit, void *user, once_error *err)
{
    if (!pipeline || !visit)
        return once_fail(err, ONCE_E_USAGE, "once_pipeline_list needs a pipeline and a function for its messages");
    static const struct {
        unsigned what;
        once_state state;
    } lists[] = {{ONCE_LIST_WAITING, ONCE_STATE_WAITING},
                 {ONCE_LIST_BUSY, ONCE_STATE_CLAIMED},
                 {ONCE_LIST_UNKNOWN, ONCE_STATE_UNKNOWN}};
    once_backend *store;
    int rc = once__open_keyed(pipeline, &store, err);
    if (rc != ONCE_OK) return rc;
    listing l = {
        .visit = visit, .user = user, .keying = once__keying_of(pipeline, store), .spec = pipeline->spec, .err = err};
    once_json_init(&l.json);
    if (pipeline->spec->order) rc = once__operator_beside(pipeline, store, &l.lanes, err);
    if (l.lanes) once__lane_reader_init(&l.reader, pipeline, l.lanes);
    if (rc == ONCE_OK && (what & ONCE_LIST_BUSY)) rc = once_gone_read(store, pipeline->spec->consumer, &l.gone, err);
    for (size_t i = 0; i < sizeof lists / sizeof *lists && rc == ONCE_OK && !l.over; i++)
        if (what & lists[i].what)
            rc = store->ops->list(store, pipeline->spec->consumer, lists[i].state, list_entry, &l, err);
    if (rc == ONCE_OK && !l.over && (what & ONCE_LIST_DEAD))
        rc = store->ops->letters(store, pipeline->spec->consumer, 0, list_letter, &l, err);
    if (rc == ONCE_OK) rc = l.rc;
    once__lane_reader_release(&l.reader);
    if (l.lanes != store) once__store_close(l.lanes);
    once__operator_close(pipeline, store);
    once_json_release(&l.json);
    once_arena_release(&l.arena);
    return rc;
}
