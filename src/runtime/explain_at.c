/* `once explain --message`: reads the message at these coordinates again, judges it like a delivery, and compares it
 * with the store. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/duration.h"
#include "base/no_memory.h"
#include "base/usage.h"
#include "core/intake.h"
#include "runtime/operate.h"
#include "store/engine.h"

#include "base/banned.h"

#define LOOK_MS 10000 /* how long to wait for a server that sends nothing */

/* Reads the source until it finds the message, which `batch` then owns. */
static int read_until(once_source *source, once_bytes place, once_bytes point, once_batch *batch, once_item **out,
                      once_error *err)
{
    assert(!*out && source->ops->fetch);
    const int64_t until_ns = once_env_mono_ns(source->env) + LOOK_MS * INT64_C(1000000);
    bool at_end = false, late = false;
    int rc = ONCE_OK;
    while (rc == ONCE_OK && !at_end && !late && !*out) {
        once_arena_reset(&batch->arena);
        once_fetch fetch = {.max = 1024, .batch = batch};
        rc = source->ops->fetch(source, &fetch, err);
        at_end = fetch.at_end;
        for (size_t i = 0; rc == ONCE_OK && i < batch->n && !*out; i++)
            if (once_bytes_equal(batch->items[i].message.at.point, point) &&
                once_bytes_equal(batch->items[i].message.at.place, place))
                *out = &batch->items[i];
        late = batch->n == 0 && once_env_mono_ns(source->env) > until_ns;
    }
    if (rc == ONCE_OK && !*out && late)
        return once_fail(err, ONCE_E_UNAVAILABLE, "nothing was read from '%.*s' within %d s", once__shown_len(place),
                         place.data, LOOK_MS / 1000);
    if (rc == ONCE_OK && !*out)
        rc = once_fail(err, ONCE_E_USAGE, "'%.*s' has no message at '%.*s'", once__shown_len(place), place.data,
                       once__shown_len(point), point.data);
    return rc;
}

static int read_again(once_pipeline *pipeline, once_backend *store, once_bytes place, once_bytes point,
                      once_batch *batch, once_item **out, once_error *err)
{
    once_source *source;
    once_store_facts facts;
    once__store_facts_init(&facts, store, pipeline->spec->consumer);
    *out = NULL;
    int rc = once_source_open(pipeline->spec, pipeline->env, ONCE_OPEN_LOOK, (once_cancel){0}, &source, err);
    if (rc != ONCE_OK) return rc;
    rc = source->ops->look(source, (once_coordinates){.place = place, .point = point}, &facts.base, err);
    if (rc == ONCE_OK) rc = read_until(source, place, point, batch, out, err);
    source->ops->close(source);
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

/* A letter that stands for several conflicts has the coordinates of the last one only. */
static bool in_that_conflict(const letter_search *s, const once_letter *letter)
{
    return letter->kind == ONCE_ANSWER_CONFLICT && letter->count > 1 &&
           once_bytes_equal(letter->key, s->item->request.key) &&
           once_bytes_equal(letter->scope.tenant, s->item->scope.tenant) &&
           once_bytes_equal(letter->scope.operation, s->item->scope.operation) &&
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
    assert(!once_hash_is_zero(item->request.id));
    item->request.scope = &item->scope;
    item->request.token = (once_token){1, 1};
    item->request.lease_ms = 1;
}

/* The answer that a message without an entry would get, and the same in words; no words: it would run. */
static int would_get(once_backend *store, once_item *item, once_arena *arena, once_answer *answer, once_bytes *out,
                     once_error *err)
{
    once_decision decision;
    prepare_look(item);
    const int rc = store->ops->look(store, &item->request, &decision, arena, err);
    if (rc != ONCE_OK) return rc;
    *answer = decision.answer;
    const char *would = NULL;
    if (decision.answer == ONCE_ANSWER_TOO_OLD &&
        !once_sent_too_old(item->message.sent_ms, item->sent_text, item->sent_unit, item->request.remember_ms, arena,
                           &decision.reason))
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

/* Whether a message with other content would replace the earlier one. */
static int would_replace(once_backend *store, once_item *item, once_arena *arena, bool *out, once_error *err)
{
    once_decision decision;
    prepare_look(item);
    const int rc = store->ops->look(store, &item->request, &decision, arena, err);
    *out = rc == ONCE_OK && decision.answer != ONCE_ANSWER_CONFLICT;
    return rc;
}

/* Whether an operator has discarded the letter that this message would become, and when. `answer`: what a delivery
 * would get. */
static int was_discarded(once_backend *store, const once_item *item, once_answer answer, once_arena *arena,
                         once_bytes *reason, once_error *err)
{
    assert(item->scope.consumer.len > 0);
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
    const int len = snprintf(text, ROOM, "its letter was discarded %s%s%.*s", once_time_format(mark.changed_ms, time),
                             mark.who.len ? " by " : "", mark.who.len < 60 ? (int)mark.who.len : 60,
                             mark.who.data ? mark.who.data : "");
    *reason = (once_bytes){text, (size_t)len};
    return ONCE_OK;
}

static const char *fate_of(const once_item *item, const once_entry *entry, const letter_search *letter, bool replaces,
                           bool discarded)
{
    if (letter->id) return "letter";
    if (discarded) return "discarded";
    if (item->skipped) return "skipped";
    if (once_hash_is_zero(item->request.id)) return "malformed";
    if (entry->state == ONCE_STATE_ABSENT) return "unseen";
    if (has_other_content(item, entry)) return replaces ? "replaces" : "conflict";
    return once_bytes_equal(entry->at.place, item->message.at.place) &&
                   once_bytes_equal(entry->at.point, item->message.at.point)
               ? "first"
               : "duplicate";
}

int once_pipeline_explain_message(once_pipeline *pipeline, once_bytes place, once_bytes point, once_fate_visit *fate,
                                  once_explain_visit *visit, void *user, once_error *err)
{
    if (!pipeline || !fate || !visit || once_bytes_lie(place) || once_bytes_lie(point))
        return once_fail(err, ONCE_E_USAGE,
                         "once_pipeline_explain_message needs a pipeline, coordinates and both callbacks");
    once_batch batch = {0};
    once_item *item = NULL;
    once_entry entry = {0};
    once_backend *store = NULL;
    uint64_t column = 0;
    letter_search letter = {.place = place, .point = point, .arena = &batch.arena};
    const once_source_spec *source = &pipeline->spec->source;
    if (!source->kind->has)
        return once_fail(err, ONCE_E_UNSUPPORTED,
                         "this pipeline reads from '%s', which cannot read a message again; explain its key instead",
                         source->kind->name);
    if (!source->kind->has(source, place))
        return once_fail(err, ONCE_E_USAGE, "'%.*s' is not the %s that this pipeline reads ('%.*s')",
                         once__shown_len(place), place.data, source->kind->name, once__shown_len(source->name),
                         source->name.data);
    int rc = once__open_keyed(pipeline, &store, err);
    if (rc == ONCE_OK) rc = read_again(pipeline, store, place, point, &batch, &item, err);
    if (rc == ONCE_OK) {
        once_intake intake;
        once_intake_init(&intake, pipeline->spec, store->secret, 0, once_effect_prepare);
        rc = once_intake_fetched(&intake, item, err);
        if (rc == ONCE_OK && once_hash_is_zero(item->request.id) && !item->message.cut_from && !source->bytes)
            column = once__json_column(&intake.body, item->message.body);
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
    if (rc == ONCE_OK && !letter.id && !item->scope.consumer.data)
        item->scope.consumer = pipeline->spec->consumer; /* it has no key */
    if (rc == ONCE_OK && !letter.id && !item->skipped)
        rc = was_discarded(store, item, answer, &batch.arena, &discarded, err);
    once__operator_close(pipeline, store);
    if (rc == ONCE_OK) {
        const once_fate told = {
            .fate = fate_of(item, &entry, &letter, replaces, discarded.len > 0),
            .scope = item->scope,
            .key = item->request.key,
            .reason = letter.id       ? letter.reason
                      : discarded.len ? discarded
                      : would.len     ? would
                                      : item->reason,
            .letter = letter.id,
            .count = letter.count,
            .line = has_key || item->no_handler || source->bytes ? (once_bytes){0} : item->message.body,
            .column = column,
        };
        fate(user, &told);
        if (has_key && !item->scope.tenant.data) item->scope.tenant = ONCE_BYTES("");
        if (has_key) rc = once_pipeline_explain(pipeline, item->scope.tenant, item->request.key, visit, user, err);
    }
    once_arena_release(&batch.arena);
    return rc;
}
