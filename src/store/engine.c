/* The five verbs over a shelf; engine.h says what that is. Decisions are made in core/entry.c, kept by the shelf. */
#include "store/engine.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "base/no_memory.h"
#include "core/conflict.h"
#include "core/plant.h"
#include "store/history.h"
#include "base/table.h"

#include "base/banned.h"

static once_shelf *shelf_of(once_backend *store) { return (once_shelf *)store; }

/* --- transactions: the caller's, or one around each verb --- */

static int open_tx(once_shelf *shelf, bool write, once_error *err)
{
    const int rc = shelf->shelf->begin(shelf, write, err);
    if (rc == ONCE_OK && !shelf->own_clock) shelf->now_ms = once_clock_step(&shelf->clock, shelf->store.env);
    return rc;
}

static int verb_begin_for(once_shelf *shelf, bool write, const once_request *const *requests, size_t n,
                          once_purpose purpose, once_error *err)
{
    int rc = ONCE_OK;
    if (!shelf->in_tx) rc = open_tx(shelf, write, err);
    else if (shelf->broken)
        rc = once_fail(err, ONCE_E_ABORTED, "an earlier step of the transaction failed; roll it back");
    if (rc != ONCE_OK || !shelf->shelf->prefetch) return rc;
    rc = shelf->shelf->prefetch(shelf, requests, n, purpose, err);
    if (rc == ONCE_OK) return rc;
    if (shelf->in_tx) shelf->broken = true;
    else shelf->shelf->rollback(shelf);
    return rc;
}

static int verb_begin(once_shelf *shelf, bool write, once_error *err)
{
    return verb_begin_for(shelf, write, NULL, 0, ONCE_FOR_OTHERS, err);
}

static int verb_end(once_shelf *shelf, int rc, once_error *err)
{
    if (shelf->in_tx) {
        if (rc != ONCE_OK) shelf->broken = true;
        return rc;
    }
    if (rc == ONCE_OK) return shelf->shelf->commit(shelf, err);
    shelf->shelf->rollback(shelf);
    return rc;
}

int once__engine_begin(once_backend *store, once_error *err)
{
    once_shelf *shelf = shelf_of(store);
    assert(!shelf->in_tx);
    const int rc = open_tx(shelf, true, err);
    shelf->in_tx = rc == ONCE_OK;
    shelf->broken = false;
    return rc;
}

int once__engine_commit(once_backend *store, once_error *err)
{
    once_shelf *shelf = shelf_of(store);
    assert(shelf->in_tx);
    if (shelf->broken) {
        once__engine_rollback(store);
        return once_fail(err, ONCE_E_ABORTED, "an earlier step of the transaction failed; it was rolled back");
    }
    shelf->in_tx = false;
    return shelf->shelf->commit(shelf, err);
}

void once__engine_rollback(once_backend *store)
{
    once_shelf *shelf = shelf_of(store);
    if (!shelf->in_tx) return;
    shelf->in_tx = false;
    shelf->shelf->rollback(shelf);
}

/* --- one entry with its lane --- */

typedef struct seat {
    once_entry *entry;
    once_lane lane_view, *lane; /* lane: NULL, or &lane_view */
    once_hash lane_id;

    /* For its history: what it was before the rule. */
    once_state state; /* ABSENT also when it had expired */
    uint32_t attempt;
    int64_t changed_ms;
    once_bytes worker;
    const once_settlement *settlement; /* what the rule was told, if it was a settlement */
    once_answer letter;                /* of which kind its letter is */
    once_entry waited;                 /* what it was, when it waited: other content may take its place */
} seat;

const char *once__shown_key(once_bytes key, char out[ONCE_SHOWN_KEY])
{
    const size_t len = key.len < ONCE_SHOWN_KEY ? key.len : ONCE_SHOWN_KEY - 1;
    for (size_t i = 0; i < len; i++) out[i] = key.data[i] < 0x20 || key.data[i] > 0x7e ? '?' : key.data[i];
    out[len] = '\0';
    return out;
}

static int flawed(const once_entry *e, const char *flaw, once_error *err)
{
    char key[ONCE_SHOWN_KEY], whose[ONCE_SHOWN_KEY + 16] = "";
    if (e->key.len) snprintf(whose, sizeof whose, "of key '%s' ", once__shown_key(e->key, key));
    return once_fail(err, ONCE_E_CORRUPT,
                     "the entry %s(id %016llx%016llx) cannot be used: %s; somebody else wrote it, or it is damaged",
                     whose, (unsigned long long)e->id.a, (unsigned long long)e->id.b, flaw);
}

static int load(once_shelf *shelf, once_hash id, once_entry **out, once_error *err)
{
    const int rc = shelf->shelf->load(shelf, id, out, err);
    const char *flaw = rc == ONCE_OK ? once_entry_flaw(*out) : NULL;
    return flaw ? flawed(*out, flaw, err) : rc;
}

static int load_entry(once_shelf *shelf, once_hash id, seat *out, once_error *err)
{
    const int rc = load(shelf, id, &out->entry, err);
    if (rc != ONCE_OK) return rc;
    const once_entry *entry = out->entry;
    out->state = once_entry_expired(entry, shelf->now_ms) ? ONCE_STATE_ABSENT : entry->state;
    out->attempt = entry->attempt;
    out->changed_ms = entry->changed_ms;
    out->worker = entry->worker;
    out->settlement = NULL;
    out->letter = ONCE_ANSWER_DEAD;
    if (entry->state == ONCE_STATE_WAITING) out->waited = *entry;
    out->lane = NULL;
    return ONCE_OK;
}

static int take_seat(once_shelf *shelf, once_hash id, once_hash lane_of_request, seat *out, once_error *err)
{
    const int rc = load_entry(shelf, id, out, err);
    if (rc != ONCE_OK) return rc;
    const bool fresh = out->state == ONCE_STATE_ABSENT;
    out->lane_id = fresh ? lane_of_request : out->entry->lane;
    if (once_hash_is_zero(out->lane_id)) return ONCE_OK;
    if (!fresh && once_state_finished(out->entry->state)) return ONCE_OK; /* a duplicate never looks at its lane */
    out->lane = &out->lane_view;
    return shelf->shelf->lane(shelf, out->lane_id, id, out->lane, err);
}

/* A new one with a version that others of the lane may have: it comes behind them. */
static int stand_behind(once_shelf *shelf, seat *at, const once_request *r, once_error *err)
{
    once_lane *lane = at->lane;
    if (!lane || at->state != ONCE_STATE_ABSENT || !r->lane.versioned || r->lane.version < lane->head ||
        r->lane.version > lane->tail)
        return ONCE_OK;
    return shelf->shelf->lane_equals(shelf, at->lane_id, r->lane.version, &lane->equal_ms, err);
}

static int wake_next(once_shelf *shelf, once_hash lane_id, once_error *err)
{
    once_hash head;
    seat next;
    int rc = shelf->shelf->lane_head(shelf, lane_id, &head, err);
    if (rc != ONCE_OK || once_hash_is_zero(head)) return rc;
    rc = take_seat(shelf, head, lane_id, &next, err);
    if (rc != ONCE_OK) return rc;
    const int changed = once_entry_wake(next.entry, next.lane, shelf->now_ms);
    if (changed & ONCE_ENTRY_CHANGED) rc = shelf->shelf->save(shelf, next.entry, err);
    if (rc == ONCE_OK && (changed & ONCE_LANE_CHANGED)) rc = shelf->shelf->save_lane(shelf, lane_id, next.lane, err);
    return rc;
}

/* Somebody left the lane, or lets others go first: the next one is woken, and the last one closes the door. */
static int leave_lane(once_shelf *shelf, seat *at, once_error *err)
{
    if (at->lane->tail >= 0 || once_state_unfinished(at->entry->state)) return wake_next(shelf, at->lane_id, err);
    return once_lane_rest(at->lane, at->entry, shelf->now_ms)
               ? shelf->shelf->save_lane(shelf, at->lane_id, at->lane, err)
               : ONCE_OK;
}

/* `fresh` NULL: nobody asks. */
static int put_letters(once_shelf *shelf, const once_letter *letters, const once_hash *uniques, size_t n, bool *fresh,
                       once_error *err)
{
    if (shelf->shelf->letters_put) return shelf->shelf->letters_put(shelf, letters, uniques, n, fresh, err);
    int rc = ONCE_OK;
    bool ignored;
    for (size_t i = 0; i < n && rc == ONCE_OK; i++)
        rc = shelf->shelf->letter_put(shelf, &letters[i], uniques[i], fresh ? &fresh[i] : &ignored, err);
    return rc;
}

static int write_letter(once_shelf *shelf, const once_entry *entry, once_answer kind, const once_message *message,
                        once_error *err)
{
    const once_letter letter = {
        .entry = entry->id,
        .scope = entry->scope,
        .key = entry->key,
        .message = message ? *message : (once_message){.at = entry->at, .sent_ms = ONCE_NO_TIME},
        .reason = entry->reason,
        .kind = kind,
        .attempt = entry->attempt,
        .failures = entry->failures,
        .seen_ms = entry->seen_ms,
        .buried_ms = shelf->now_ms,
        .count = 1,
        .last_ms = shelf->now_ms,
        .history = entry->history,
        .old_key = entry->old_key,
        .maybe = entry->maybe,
    };
    /* One letter for each death: an entry that was forgotten and died anew must not lose its second body. */
    const once_hash unique = {entry->id.a ^ entry->token.a, entry->id.b ^ entry->token.b};
    return put_letters(shelf, &letter, &unique, 1, NULL, err);
}

/* Other content under a key is one letter, wherever and however often it comes. */
static once_hash conflict_identity(const once_backend *store, const once_letter *letter)
{
    const bool printed = !once_hash_is_zero(letter->fingerprint);
    const once_hash key =
        once_hash_is_zero(letter->key_id) ? once_key_id(store->secret, &letter->scope, letter->key) : letter->key_id;
    const once_bytes content = {(const char *)&letter->fingerprint, sizeof letter->fingerprint};
    const once_scope owner = {{(const char *)&key, sizeof key},
                              printed ? ONCE_BYTES("fingerprint") : ONCE_BYTES("body"),
                              ONCE_BYTES("conflict")};
    return once_key_id(store->secret, &owner, printed ? content : letter->message.body);
}

/* Any other letter without an entry is the same one when it was at the same place with the same body, for the same
 * consumer. Of one that is cut the length stands for the rest of the body. What has no place is told apart by its key,
 * if it has one. */
once_hash once__letter_identity(const once_backend *store, const once_letter *letter)
{
    if (letter->kind == ONCE_ANSWER_CONFLICT && letter->key.len) return conflict_identity(store, letter);
    const uint64_t whole = letter->message.cut_from;
    const once_scope source = {letter->message.at.place, letter->message.at.point, ONCE_BYTES("letter")};
    const once_scope cut = {letter->message.at.place, letter->message.at.point, {(const char *)&whole, sizeof whole}};
    const once_hash message = once_key_id(store->secret, whole ? &cut : &source, letter->message.body);
    const bool by_key = letter->key.len && !letter->message.at.place.len && !letter->message.at.point.len;
    const once_scope owner = {letter->scope.tenant, letter->scope.consumer,
                              by_key ? letter->key : ONCE_BYTES("letter")};
    return once_key_id(store->secret, &owner, (once_bytes){(const char *)&message, sizeof message});
}

/* --- letters without an entry --- */

/* A batch of letters; each is written once, however often it is in it. */
typedef struct burial {
    once_hash *uniques;
    once_letter *letters;
    size_t *of; /* which of the letters is asked for first by the i-th of the caller's; n: it is there already, or was
                   discarded */
    bool *fresh;
    size_t n;
} burial;

static bool gather(const once_shelf *shelf, const once_letter *letters, size_t n, once_table *known, burial *out)
{
    for (size_t i = 0; i < n; i++) {
        once_letter letter = letters[i];
        letter.buried_ms = letter.last_ms = shelf->now_ms;
        if (letter.seen_ms == 0) letter.seen_ms = shelf->now_ms;
        if (letter.count == 0) letter.count = 1;
        const once_hash unique = once__letter_identity(&shelf->store, &letter);
        size_t first;
        const bool again = once_table_position(known, unique, &first);
        out->of[i] = again ? n : out->n;
        if (again) {
            once__letter_again(&out->letters[first], &letter);
            continue;
        }
        if (!once_table_put_position(known, unique, out->n)) return false;
        out->uniques[out->n] = unique;
        out->letters[out->n++] = letter;
    }
    return true;
}

/* Those that were discarded, and are remembered to have been. */
static int find_discarded(once_shelf *shelf, const burial *all, bool *discarded, once_arena *arena, once_error *err)
{
    once_request *requests = once_arena_new(arena, once_request, all->n + 1);
    const once_request **asked = once_arena_alloc(arena, (all->n + 1) * sizeof *asked);
    if (!requests || !asked) return once_no_memory(err, "for letters");
    for (size_t i = 0; i < all->n; i++) {
        requests[i].id = all->uniques[i];
        asked[i] = &requests[i];
    }
    int rc = shelf->shelf->prefetch ? shelf->shelf->prefetch(shelf, asked, all->n, ONCE_FOR_EXTEND, err) : ONCE_OK;
    for (size_t i = 0; i < all->n && rc == ONCE_OK; i++) {
        once_entry *entry;
        rc = load(shelf, all->uniques[i], &entry, err);
        discarded[i] =
            rc == ONCE_OK && entry->state == ONCE_STATE_REJECTED && !once_entry_expired(entry, shelf->now_ms);
    }
    return rc;
}

/* Takes those out that nobody wants to see again. */
static int leave_out_discarded(once_shelf *shelf, burial *all, size_t n, once_arena *arena, once_error *err)
{
    bool *discarded = once_arena_new(arena, bool, all->n + 1);
    size_t *moved = once_arena_new(arena, size_t, all->n + 1), left = 0;
    if (!discarded || !moved) return once_no_memory(err, "for letters");
    const int rc = find_discarded(shelf, all, discarded, arena, err);
    if (rc != ONCE_OK) return rc;
    for (size_t i = 0; i < all->n; i++) {
        moved[i] = discarded[i] ? n : left;
        all->uniques[left] = all->uniques[i];
        all->letters[left] = all->letters[i];
        left += !discarded[i];
    }
    for (size_t i = 0; i < n; i++)
        if (all->of[i] < n) all->of[i] = moved[all->of[i]];
    all->n = left;
    return ONCE_OK;
}

static int bury_all(once_shelf *shelf, const once_letter *letters, size_t n, bool *fresh, once_arena *arena,
                    once_error *err)
{
    once_table known = {0};
    burial all = {
        .uniques = once_arena_new(arena, once_hash, n + 1),
        .letters = once_arena_new(arena, once_letter, n + 1),
        .of = once_arena_new(arena, size_t, n + 1),
        .fresh = once_arena_new(arena, bool, n + 1),
    };
    const bool room = all.uniques && all.letters && all.of && all.fresh && gather(shelf, letters, n, &known, &all);
    once_table_release(&known);
    if (!room) return once_no_memory(err, "for letters");
    int rc = leave_out_discarded(shelf, &all, n, arena, err);
    if (rc == ONCE_OK && all.n) rc = put_letters(shelf, all.letters, all.uniques, all.n, all.fresh, err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) fresh[i] = all.of[i] < n && all.fresh[all.of[i]];
    return rc;
}

/* What other content took the place of is a letter of that conflict, in the same transaction: nothing is lost without a
 * word. */
typedef struct replacements {
    once_letter *letters; /* with bytes of their own: those of the entry are gone as soon as it is saved */
    size_t *by;           /* by which of the requests */
    size_t n;
    once_arena arena;
} replacements;

static int note_replaced(const once_shelf *shelf, const once_entry *entry, const once_request *const *requests,
                         size_t n, size_t by, replacements *all, once_error *err)
{
    once_entry was;
    once_bytes reason;
    if (!entry->has_message || ONCE_PLANTED(replaced_lost)) return ONCE_OK; /* its source has it, and brings it again */
    if (!all->n) {
        all->letters = once_arena_new(&all->arena, once_letter, n);
        all->by = once_arena_new(&all->arena, size_t, n);
    }
    if (!all->letters || !all->by || !once__entry_copy(&all->arena, entry, &was) ||
        !once_conflict_replaced(&requests[by]->at, &all->arena, &reason))
        return once_no_memory(err, "for a letter");
    all->by[all->n] = by;
    all->letters[all->n++] = (once_letter){
        .scope = was.scope,
        .key = was.key,
        .message = was.message,
        .reason = reason,
        .kind = ONCE_ANSWER_CONFLICT,
        .attempt = was.attempt,
        .failures = was.failures,
        .seen_ms = was.seen_ms,
        .buried_ms = shelf->now_ms,
        .count = 1,
        .last_ms = shelf->now_ms,
        .history = was.history,
        .old_key = was.old_key,
        .key_id = was.id,
        .fingerprint = was.fingerprint,
    };
    return ONCE_OK;
}

/* All of a batch at once: whether they were discarded before is one question. */
static int bury_replaced(once_shelf *shelf, replacements *all, once_decision *out, int rc, once_error *err)
{
    bool *fresh = rc == ONCE_OK && all->n ? once_arena_new(&all->arena, bool, all->n) : NULL;
    if (rc == ONCE_OK && all->n)
        rc =
            fresh ? bury_all(shelf, all->letters, all->n, fresh, &all->arena, err) : once_no_memory(err, "for letters");
    for (size_t i = 0; i < all->n && rc == ONCE_OK; i++) out[all->by[i]].letter = fresh[i];
    once_arena_release(&all->arena);
    return rc;
}

/* --- who, and how attempts ended --- */

static once_bytes self(const once_shelf *shelf) { return (once_bytes){shelf->store.who, strlen(shelf->store.who)}; }

/* Whether the rule ended an attempt that needs a line of its own. */
static bool attempt_ended(const once_shelf *shelf, const seat *at, once_attempt *out)
{
    const once_entry *e = at->entry;
    const once_settlement *s = at->settlement;
    const bool first = at->attempt == 1 && e->history.len == 0;
    if (s) {
        if (first && once_state_finished(e->state) && once_bytes_equal(e->who, self(shelf)))
            return false; /* history.h says why */
        *out = (once_attempt){e->attempt, shelf->now_ms, once_outcome_name(s->outcome), self(shelf), s->reason};
        return true;
    }
    if (at->state == ONCE_STATE_CLAIMED && (e->state != ONCE_STATE_CLAIMED || e->attempt != at->attempt)) {
        *out = (once_attempt){at->attempt, shelf->now_ms, ONCE_SILENT, at->worker, {0}};
        return true;
    }
    if (first && once_state_finished(at->state) && !once_state_finished(e->state)) { /* it goes on, and needs one now */
        *out = (once_attempt){1, at->changed_ms, once_state_name(at->state), e->who, e->reason};
        return true;
    }
    return false;
}

/* Writes beside what the rule decided by whose hand it was. Returns with the history in `text`, if it grew. */
static void sign(const once_shelf *shelf, seat *at, bool replaced, char text[ONCE_HISTORY_MAX])
{
    once_entry *e = at->entry;
    once_attempt ended;
    if (e->state == ONCE_STATE_ABSENT) return;
    if (at->state == ONCE_STATE_ABSENT || replaced) e->who = self(shelf);
    if (replaced) {
        ended = (once_attempt){at->attempt, shelf->now_ms, ONCE_REPLACED_LINE, self(shelf), e->reason};
        e->history = once__history_add(e->history, &ended, text);
    } else if (attempt_ended(shelf, at, &ended)) e->history = once__history_add(e->history, &ended, text);
    if (e->state != ONCE_STATE_CLAIMED) e->worker = (once_bytes){0};
    else if (at->state != ONCE_STATE_CLAIMED || e->attempt != at->attempt) e->worker = self(shelf);
}

/* Keeps what a rule changed. */
static int keep(once_shelf *shelf, seat *at, int changed, once_error *err)
{
    char history[ONCE_HISTORY_MAX];
    int rc = ONCE_OK;
    sign(shelf, at, changed & ONCE_REPLACED, history);
    if (changed & ONCE_LETTER_NEEDED) {
        rc = write_letter(shelf, at->entry, at->letter, at->entry->has_message ? &at->entry->message : NULL, err);
        at->entry->message = (once_message){0}; /* the letter has it now */
        at->entry->has_message = false;
    }
    if (rc == ONCE_OK && (changed & ONCE_ENTRY_CHANGED)) rc = shelf->shelf->save(shelf, at->entry, err);
    if (rc == ONCE_OK && (changed & ONCE_LANE_CHANGED)) rc = shelf->shelf->save_lane(shelf, at->lane_id, at->lane, err);
    if (rc == ONCE_OK && (changed & ONCE_LANE_FREED)) rc = leave_lane(shelf, at, err);
    return rc;
}

/* What a decision says, and what a conflict met, must outlive the transaction. */
static int own_words(const once_entry *entry, once_decision *decision, once_arena *arena, once_error *err)
{
    once_first *first = &decision->first;
    if (decision->answer == ONCE_ANSWER_CONFLICT && !decision->lane)
        *first = (once_first){entry->at, entry->seen_ms, entry->who, entry->message.body};
    once_bytes *const owned[] = {&decision->result, &decision->reason, &decision->before, &first->at.place,
                                 &first->at.point,  &first->who,       &first->body};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) {
        if (owned[i]->len == 0) *owned[i] = (once_bytes){0};
        else if (!once_arena_copy(arena, *owned[i], owned[i])) return once_no_memory(err, "for what is answered");
    }
    return ONCE_OK;
}

/* For whoever tells people: whose attempt it was. */
static int say_lapsed(const seat *at, once_decision *decision, once_arena *arena, once_error *err)
{
    static const char text[] = "its claim ran out, and nobody said how its attempt ended: it may have had its effect";
    if (!decision->lapsed) return ONCE_OK;
    const size_t room = sizeof text + at->worker.len + 20;
    char *words = once_arena_alloc(arena, room);
    if (!words) return once_no_memory(err, "for what is answered");
    const int n = at->worker.len ? snprintf(words, room, "%s; worker %.*s", text, (int)at->worker.len, at->worker.data)
                                 : snprintf(words, room, "%s", text);
    decision->reason = (once_bytes){words, (size_t)n};
    return ONCE_OK;
}

/* --- the verbs --- */

int once__engine_claim(once_backend *store, const once_request *const *requests, size_t n, once_decision *out,
                       once_arena *arena, once_error *err)
{
    once_shelf *shelf = shelf_of(store);
    int rc = verb_begin_for(shelf, true, requests, n, ONCE_FOR_CLAIM, err);
    if (rc != ONCE_OK) return rc;
    seat at; /* for all of them: it is large */
    replacements gone = {0};
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        assert(!once_hash_is_zero(requests[i]->id) &&
               !once_hash_is_zero(requests[i]->token)); /* a message without a key is buried, not claimed */
        rc = take_seat(shelf, requests[i]->id, requests[i]->lane.id, &at, err);
        if (rc != ONCE_OK) break;
        const int changed = once_entry_claim(at.entry, at.lane, requests[i], shelf->now_ms, &out[i]);
        rc = own_words(at.entry, &out[i], arena, err);
        if (rc == ONCE_OK) rc = say_lapsed(&at, &out[i], arena, err);
        if (rc == ONCE_OK && (changed & ONCE_REPLACED))
            rc = note_replaced(shelf, &at.waited, requests, n, i, &gone, err);
        if (rc == ONCE_OK && changed) rc = keep(shelf, &at, changed, err);
    }
    rc = bury_replaced(shelf, &gone, out, rc, err);
    return verb_end(shelf, rc, err);
}

int once__engine_accept(once_backend *store, const once_request *const *requests, const once_message *const *messages,
                        size_t n, once_decision *out, once_arena *arena, once_error *err)
{
    once_shelf *shelf = shelf_of(store);
    int rc = verb_begin_for(shelf, true, requests, n, ONCE_FOR_ACCEPT, err);
    if (rc != ONCE_OK) return rc;
    seat at; /* for all of them: it is large */
    replacements gone = {0};
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        assert(!once_hash_is_zero(requests[i]->id) && messages[i]);
        rc = take_seat(shelf, requests[i]->id, requests[i]->lane.id, &at, err);
        if (rc == ONCE_OK) rc = stand_behind(shelf, &at, requests[i], err);
        if (rc != ONCE_OK) break;
        const int changed = once_entry_accept(at.entry, at.lane, requests[i], messages[i], shelf->now_ms, &out[i]);
        rc = own_words(at.entry, &out[i], arena, err);
        if (rc == ONCE_OK) rc = say_lapsed(&at, &out[i], arena, err);
        if (rc == ONCE_OK && (changed & ONCE_REPLACED))
            rc = note_replaced(shelf, &at.waited, requests, n, i, &gone, err);
        if (rc == ONCE_OK && changed) rc = keep(shelf, &at, changed, err);
    }
    rc = bury_replaced(shelf, &gone, out, rc, err);
    return verb_end(shelf, rc, err);
}

static int settle_begin(once_shelf *shelf, const once_settlement *settlements, size_t n, once_error *err)
{
    const once_request **requests = malloc((n + 1) * sizeof *requests);
    if (!requests) return once_no_memory(err, "for a batch");
    for (size_t i = 0; i < n; i++) requests[i] = settlements[i].request;
    const int rc = verb_begin_for(shelf, true, requests, n, ONCE_FOR_SETTLE, err);
    free(requests);
    return rc;
}

int once__engine_settle(once_backend *store, const once_settlement *settlements, size_t n, bool *applied,
                        once_error *err)
{
    once_shelf *shelf = shelf_of(store);
    int rc = settle_begin(shelf, settlements, n, err);
    if (rc != ONCE_OK) return rc;
    seat at; /* for all of them: it is large */
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        assert(!once_hash_is_zero(settlements[i].request->token) && settlements[i].outcome < ONCE_OUTCOMES);
        rc = take_seat(shelf, settlements[i].request->id, settlements[i].request->lane.id, &at, err);
        if (rc != ONCE_OK) break;
        const int changed = once_entry_settle(at.entry, at.lane, &settlements[i], shelf->now_ms, &applied[i]);
        if (settlements[i].was_unknown) *settlements[i].was_unknown = at.state == ONCE_STATE_UNKNOWN;
        at.settlement = &settlements[i];
        if (changed) rc = keep(shelf, &at, changed, err);
    }
    return verb_end(shelf, rc, err);
}

int once__engine_extend(once_backend *store, const once_request *const *requests, size_t n, bool *ours, once_error *err)
{
    once_shelf *shelf = shelf_of(store);
    int rc = verb_begin_for(shelf, true, requests, n, ONCE_FOR_EXTEND, err);
    if (rc != ONCE_OK) return rc;
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        once_entry *entry;
        rc = load(shelf, requests[i]->id, &entry, err);
        if (rc == ONCE_OK && once_entry_extend(entry, requests[i], shelf->now_ms, &ours[i]))
            rc = shelf->shelf->save(shelf, entry, err);
    }
    return verb_end(shelf, rc, err);
}

static bool fill_taken(once_arena *arena, const once_entry *entry, const once_decision *decision, once_taken *out)
{
    once_entry copy = *entry;
    once_decision said = *decision;
    copy.history = (once_bytes){0};
    if (!once__entry_copy(arena, &copy, &copy) || own_words(entry, &said, arena, NULL) != ONCE_OK) return false;
    *out = (once_taken){
        .scope = copy.scope,
        .message = copy.message,
        .decision = said,
        .request =
            {
                .key = copy.key,
                .id = copy.id,
                .fingerprint = copy.fingerprint,
                .fields = copy.fields,
                .token = copy.token,
                .lane = {.id = copy.lane,
                         .versioned = copy.versioned,
                         .version = copy.versioned ? copy.order : 0,
                         .gap_ms = copy.gap_ms,
                         .block = copy.block},
                .remember_ms = copy.remember_ms,
                .sent_ms = copy.message.sent_ms,
                .hold = copy.hold,
                .natural = copy.natural,
                .old_key = copy.old_key,
                .run = copy.run,
                .at = copy.at,
            },
    };
    out->request.scope = &out->scope;
    return true;
}

int once__engine_take(once_backend *store, once_bytes consumer, once_token token, bool again, int64_t lease_ms,
                      size_t max, once_taken *out, size_t *n, once_arena *arena, once_error *err)
{
    once_shelf *shelf = shelf_of(store);
    assert(!shelf->in_tx && lease_ms > 0);
    *n = 0;
    if (max == 0) return ONCE_OK;
    once_hash *ids = once_arena_alloc(arena, max * sizeof *ids);
    if (!ids) return once_no_memory(err, "for a batch");

    int rc = verb_begin(shelf, true, err);
    if (rc != ONCE_OK) return rc;
    size_t found = 0, count = 0;
    uint64_t next = token.b;
    if (again) {
        rc = shelf->shelf->by_token(shelf, consumer, token.a, max, ids, &found, err);
        for (size_t i = 0; i < found && rc == ONCE_OK; i++) {
            seat at;
            rc = take_seat(shelf, ids[i], (once_hash){0}, &at, err);
            if (rc != ONCE_OK) break;
            once_entry *entry = at.entry;
            bool ours; /* the lease begins now, as for a claim whose reply was lost */
            const once_request renewal = {.token = entry->token, .lease_ms = lease_ms};
            if (once_entry_extend(entry, &renewal, shelf->now_ms, &ours)) rc = shelf->shelf->save(shelf, entry, err);
            if (rc != ONCE_OK) break;
            const once_decision decision = {
                .answer = ONCE_ANSWER_RUN,
                .attempt = entry->attempt,
                .failures = entry->failures,
                .failing_for_ms = entry->failures && entry->failing_ms ? shelf->now_ms - entry->failing_ms : -1,
                .silent = entry->silent,
                .maybe = entry->maybe,
                .old_key = entry->old_key,
                .gap_over = entry->gap,
                .reason = entry->gap ? entry->reason : (once_bytes){0},
                .before = entry->silent && !entry->gap ? entry->reason : (once_bytes){0},
                .given_up = entry->gap ? once_lane_given_up_again(at.lane, entry) : 0};
            if (entry->token.b >= next) next = entry->token.b + 1;
            if (!fill_taken(arena, entry, &decision, &out[count])) rc = once_no_memory(err, "for a batch");
            count++;
        }
    }
    if (rc == ONCE_OK && count < max)
        rc = shelf->shelf->due(shelf, consumer, shelf->now_ms, max - count, ids, &found, err);
    else found = 0;
    for (size_t i = 0; i < found && rc == ONCE_OK; i++) {
        seat at;
        once_decision decision;
        rc = take_seat(shelf, ids[i], (once_hash){0}, &at, err);
        if (rc != ONCE_OK) break;
        if (!once_entry_may_be_taken(at.entry, shelf->now_ms))
            continue; /* found by its token just now, or somebody was quicker */
        if (ONCE_PLANTED(orphan_lost) && at.entry->state == ONCE_STATE_CLAIMED) continue;
        const once_message message = at.entry->message; /* becoming stale drops it; the caller still counts it */
        const int changed =
            once_entry_take(at.entry, at.lane, (once_token){token.a, next}, lease_ms, shelf->now_ms, &decision);
        if (decision.answer == ONCE_ANSWER_CONFLICT) at.letter = ONCE_ANSWER_CONFLICT;
        if (decision.answer == ONCE_ANSWER_RUN || decision.answer == ONCE_ANSWER_STALE ||
            decision.answer == ONCE_ANSWER_DUPLICATE || decision.answer == ONCE_ANSWER_CONFLICT || decision.lapsed) {
            once_entry shown = *at.entry;
            shown.message = message;
            if (!fill_taken(arena, &shown, &decision, &out[count])) rc = once_no_memory(err, "for a batch");
            else rc = say_lapsed(&at, &out[count].decision, arena, err);
            count++;
            next++;
        }
        if (rc == ONCE_OK && changed) rc = keep(shelf, &at, changed, err);
    }
    if (rc == ONCE_OK) *n = count; /* also when the commit fails: it may have happened */
    return verb_end(shelf, rc, err);
}

int once__engine_lapse(once_backend *store, once_bytes consumer, uint64_t but, size_t max, once_taken *out, size_t *n,
                       once_arena *arena, once_error *err)
{
    once_shelf *shelf = shelf_of(store);
    assert(!shelf->in_tx && max > 0);
    size_t found = 0, count = 0;
    once_hash *ids = once_arena_alloc(arena, max * sizeof *ids);
    *n = 0;
    if (!ids) return once_no_memory(err, "for a batch");
    int rc = verb_begin(shelf, true, err);
    if (rc != ONCE_OK) return rc;
    rc = shelf->shelf->lapsed(shelf, consumer, shelf->now_ms, max, ids, &found, err);
    seat at; /* for all of them: it is large */
    for (size_t i = 0; i < found && rc == ONCE_OK; i++) {
        once_decision decision;
        rc = take_seat(shelf, ids[i], (once_hash){0}, &at, err);
        if (rc != ONCE_OK) break;
        if (once_token_is_of_run(at.entry->token, but)) continue;
        const int changed = once_entry_lapse(at.entry, shelf->now_ms, &decision);
        if (!changed) continue;
        if (!fill_taken(arena, at.entry, &decision, &out[count])) rc = once_no_memory(err, "for a batch");
        else rc = say_lapsed(&at, &out[count++].decision, arena, err);
        if (rc == ONCE_OK) rc = keep(shelf, &at, changed, err);
    }
    if (rc == ONCE_OK) *n = count; /* also when the commit fails: it may have happened */
    return verb_end(shelf, rc, err);
}

/* --- what waits, for whoever runs it in the same transaction --- */

enum { FOUND_IN_LANE = 64 }; /* of one lane at most: each more is another round */

typedef struct findings {
    once_taken *out;
    size_t n, max;
    once_hash *lanes; /* that are looked at */
    size_t n_lanes;
    once_table known; /* what was found */
    once_arena *arena;
} findings;

static int find_one(findings *f, const once_entry *entry, once_error *err)
{
    const once_decision waits = {.answer = ONCE_ANSWER_WAITING};
    once_taken *at = &f->out[f->n];
    if (!fill_taken(f->arena, entry, &waits, at)) return once_no_memory(err, "for a batch");
    if (!once_table_put_position(&f->known, entry->id, f->n)) return once_no_memory(err, "for a batch");
    f->n++;
    return ONCE_OK;
}

/* What take would hand out, and not more: to an orphan, or to what its lane has to judge, things happen that are not
 * undone with an effect. */
static int find_due(once_shelf *shelf, once_bytes consumer, findings *f, bool *rest, once_error *err)
{
    size_t found = 0;
    once_hash *ids = once_arena_new(f->arena, once_hash, f->max);
    if (!ids) return once_no_memory(err, "for a batch");
    int rc = shelf->shelf->due(shelf, consumer, shelf->now_ms, f->max, ids, &found, err);
    for (size_t i = 0; i < found && rc == ONCE_OK; i++) {
        seat at;
        once_decision decision;
        rc = take_seat(shelf, ids[i], (once_hash){0}, &at, err);
        if (rc != ONCE_OK || !once_entry_may_be_taken(at.entry, shelf->now_ms)) continue;
        once_entry tried = *at.entry;
        once_lane lane = at.lane_view;
        (void)once_entry_take(&tried, at.lane ? &lane : NULL, (once_token){1, 1}, 1, shelf->now_ms, &decision);
        if (at.entry->state != ONCE_STATE_WAITING || decision.answer != ONCE_ANSWER_RUN || decision.gap_over) {
            *rest = true;
            continue;
        }
        rc = find_one(f, at.entry, err);
        if (at.lane) f->lanes[f->n_lanes++] = at.lane_id;
    }
    return rc;
}

/* Whether the lane may go on with it. `first`: it is at the head, or behind one that the caller has claimed. */
static bool may_follow(const once_shelf *shelf, const once_entry *entry, bool first)
{
    if (entry->state != ONCE_STATE_WAITING || !entry->has_message || entry->gap) return false;
    return entry->due_ms <= shelf->now_ms || (!first && entry->due_ms == ONCE_NEVER);
}

static bool is_held(const once_entry *entry, const once_request *const *requests, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (once_hash_equal(requests[i]->id, entry->id)) return once_hash_equal(requests[i]->token, entry->token);
    return false;
}

/* Equal versions are in the order of their ids; the first one goes first. */
static void sort_equals(once_entry **entries, size_t n)
{
    for (size_t i = 1; i < n; i++)
        for (size_t k = i;
             k > 0 && once__lane_before(entries[k]->order, entries[k]->seen_ms, entries[k]->id, entries[k - 1]); k--) {
            once_entry *swap = entries[k];
            entries[k] = entries[k - 1];
            entries[k - 1] = swap;
        }
}

/* One lane: of equals that were not all read any one might be the first. */
static int find_in_lane(once_shelf *shelf, once_entry **entries, size_t n, bool whole,
                        const once_request *const *requests, size_t n_requests, findings *f, once_error *err)
{
    bool first = true;
    int rc = ONCE_OK;
    sort_equals(entries, n);
    for (size_t i = 0; i < n && rc == ONCE_OK && f->n < f->max; i++) {
        const once_entry *entry = entries[i];
        const bool claimed = entry->state == ONCE_STATE_CLAIMED && is_held(entry, requests, n_requests);
        if (!whole && entry->versioned && entry->order == entries[n - 1]->order) break;
        if (!claimed && !once_table_get(&f->known, entry->id)) {
            if (!may_follow(shelf, entry, first)) break;
            rc = find_one(f, entry, err);
        }
        first = false;
    }
    return rc;
}

static int find_behind(once_shelf *shelf, const once_request *const *requests, size_t n, findings *f, once_error *err)
{
    const size_t most = f->max + FOUND_IN_LANE;
    once_hash *ids = once_arena_new(f->arena, once_hash, most);
    once_entry **entries = once_arena_new(f->arena, once_entry *, most);
    size_t found = 0;
    if (!ids || !entries) return once_no_memory(err, "for a batch");
    int rc = shelf->shelf->lanes_waiting(shelf, f->lanes, f->n_lanes, FOUND_IN_LANE, most, ids, &found, err);
    for (size_t i = 0; i < found && rc == ONCE_OK; i++) rc = load(shelf, ids[i], &entries[i], err);
    for (size_t from = 0, to; from < found && rc == ONCE_OK; from = to) {
        for (to = from + 1; to < found && once_hash_equal(entries[to]->lane, entries[from]->lane);) to++;
        const bool whole = to - from < FOUND_IN_LANE && (to < found || found < most);
        rc = find_in_lane(shelf, entries + from, to - from, whole, requests, n, f, err);
    }
    return rc;
}

int once__engine_find(once_backend *store, once_bytes consumer, const once_request *const *requests, size_t n, bool due,
                      size_t max, once_taken *out, size_t *n_out, bool *rest, once_arena *arena, once_error *err)
{
    once_shelf *shelf = shelf_of(store);
    assert(shelf->in_tx);
    findings f = {.out = out, .max = max, .arena = arena, .lanes = once_arena_new(arena, once_hash, n + max + 1)};
    *n_out = 0;
    *rest = false;
    if (!f.lanes) return once_no_memory(err, "for a batch");
    int rc = verb_begin(shelf, true, err);
    if (rc != ONCE_OK) return rc;
    if (due) rc = find_due(shelf, consumer, &f, rest, err);
    for (size_t i = 0; i < n; i++)
        if (!once_hash_is_zero(requests[i]->lane.id)) f.lanes[f.n_lanes++] = requests[i]->lane.id;
    if (rc == ONCE_OK && f.n_lanes && f.n < max) rc = find_behind(shelf, requests, n, &f, err);
    once_table_release(&f.known);
    *n_out = f.n;
    return verb_end(shelf, rc, err);
}

/* --- letters and single entries --- */

int once__engine_bury(once_backend *store, const once_letter *letters, size_t n, bool *fresh, once_error *err)
{
    once_shelf *shelf = shelf_of(store);
    once_arena arena = {0};
    int rc = verb_begin(shelf, true, err);
    if (rc != ONCE_OK) return rc;
    rc = bury_all(shelf, letters, n, fresh, &arena, err);
    once_arena_release(&arena);
    return verb_end(shelf, rc, err);
}

int once__engine_exhume(once_backend *store, uint64_t id, bool *found, once_error *err)
{
    once_shelf *shelf = shelf_of(store);
    once_arena arena = {0};
    once_letter letter;
    int rc = verb_begin(shelf, true, err);
    if (rc != ONCE_OK) return rc;
    *found = false;
    rc = shelf->shelf->letter_get(shelf, id, &letter, found, &arena, err);
    if (rc == ONCE_OK && *found && once_hash_is_zero(letter.entry))
        rc = once_fail(err, ONCE_E_USAGE, "letter %llu has no key and cannot go back to work by itself",
                       (unsigned long long)id);
    if (rc == ONCE_OK && *found) {
        seat at;
        rc = take_seat(shelf, letter.entry, (once_hash){0}, &at, err);
        if (rc == ONCE_OK && (at.entry->state == ONCE_STATE_ABSENT || once_entry_expired(at.entry, shelf->now_ms)))
            rc = once_fail(err, ONCE_E_USAGE,
                           "letter %llu stays: its key was forgotten, so there is nothing to go on with",
                           (unsigned long long)id);
        if (rc == ONCE_OK) {
            const int changed = once_entry_exhume(at.entry, at.lane, shelf->now_ms, &letter.message);
            if (changed) rc = keep(shelf, &at, changed, err);
        }
        if (rc == ONCE_OK) rc = shelf->shelf->letter_drop(shelf, id, err);
    }
    rc = verb_end(shelf, rc, err);
    once_arena_release(&arena);
    return rc;
}

int once__engine_forget(once_backend *store, once_hash id, bool *found, once_error *err)
{
    once_shelf *shelf = shelf_of(store);
    int rc = verb_begin(shelf, true, err);
    if (rc != ONCE_OK) return rc;
    seat at;
    rc = take_seat(shelf, id, (once_hash){0}, &at, err);
    if (rc == ONCE_OK) {
        *found = at.entry->state != ONCE_STATE_ABSENT && !once_entry_expired(at.entry, shelf->now_ms);
        if (*found) rc = keep(shelf, &at, once_entry_forget(at.entry, at.lane), err);
    }
    return verb_end(shelf, rc, err);
}

int once__engine_get(once_backend *store, once_hash id, once_entry *out, once_arena *arena, once_error *err)
{
    once_shelf *shelf = shelf_of(store);
    int rc = verb_begin(shelf, false, err);
    if (rc != ONCE_OK) return rc;
    once_entry *entry;
    rc = load(shelf, id, &entry, err);
    if (rc == ONCE_OK) {
        once_entry seen = *entry;
        once_entry_look(&seen, shelf->now_ms);
        if (!once__entry_copy(arena, &seen, out)) rc = once_no_memory(err, "for an entry");
    }
    return verb_end(shelf, rc, err);
}

/* --- what people ask --- */

int once__engine_look(once_backend *store, const once_request *request, once_decision *out, once_arena *arena,
                      once_error *err)
{
    once_shelf *shelf = shelf_of(store);
    int rc = verb_begin(shelf, false, err);
    if (rc != ONCE_OK) return rc;
    seat at;
    rc = take_seat(shelf, request->id, request->lane.id, &at, err);
    if (rc == ONCE_OK) {
        once_entry copy = *at.entry;
        once_entry_claim(&copy, at.lane, request, shelf->now_ms, out);
        rc = own_words(at.entry, out, arena, err);
    }
    return verb_end(shelf, rc, err);
}

/* An entry with a lane that its state does not ask for. */
static int take_lane(once_shelf *shelf, once_hash id, once_hash lane, seat *at, once_error *err)
{
    at->lane_id = lane;
    if (once_hash_is_zero(lane)) return ONCE_OK;
    at->lane = &at->lane_view;
    return shelf->shelf->lane(shelf, lane, id, at->lane, err);
}

int once__engine_outlook(once_backend *store, const once_request *request, once_decision *out, once_arena *arena,
                         once_error *err)
{
    once_shelf *shelf = shelf_of(store);
    int rc = verb_begin(shelf, false, err);
    if (rc != ONCE_OK) return rc;
    seat at;
    rc = load_entry(shelf, request->id, &at, err);
    if (rc == ONCE_OK)
        rc = take_lane(shelf, request->id, at.state == ONCE_STATE_DEAD ? at.entry->lane : request->lane.id, &at, err);
    if (rc == ONCE_OK) {
        once_entry seen = *at.entry;
        seen.state = at.state;
        once_entry_outlook(&seen, at.lane, request, out);
        rc = own_words(&seen, out, arena, err);
    }
    return verb_end(shelf, rc, err);
}

int once__engine_why(once_backend *store, once_hash id, once_bytes *out, once_arena *arena, once_error *err)
{
    once_shelf *shelf = shelf_of(store);
    int rc = verb_begin(shelf, false, err);
    if (rc != ONCE_OK) return rc;
    seat at;
    *out = (once_bytes){0};
    rc = take_seat(shelf, id, (once_hash){0}, &at, err);
    if (rc == ONCE_OK && at.lane) {
        const once_bytes words = once_lane_says(at.lane, at.entry);
        if (words.len && !once_arena_copy(arena, words, out)) rc = once_no_memory(err, "for words");
    }
    return verb_end(shelf, rc, err);
}

/* --- what stands before an entry --- */

typedef struct befores {
    once_entry *at;
    size_t n, max;
    uint64_t others; /* of them: not before it by their place */
} befores;

static int add_before(once_shelf *shelf, const once_entry *entry, once_hash id, befores *all, once_arena *arena,
                      once_error *err)
{
    once_entry *loaded;
    const int rc = load(shelf, id, &loaded, err);
    if (rc != ONCE_OK) return rc;
    once_entry other = *loaded;
    once_entry_look(&other, shelf->now_ms);
    if (other.state == ONCE_STATE_ABSENT || once_state_finished(other.state)) return ONCE_OK;
    other.message = (once_message){0};
    other.history = (once_bytes){0};
    if (!once__entry_copy(arena, &other, &all->at[all->n])) return once_no_memory(err, "for an entry");
    all->n++;
    all->others += !once__lane_before(other.order, other.seen_ms, other.id, entry) || other.state == ONCE_STATE_DEAD;
    return ONCE_OK;
}

static int compare_places(const void *x, const void *y)
{
    const once_entry *a = x, *b = y;
    return once__lane_before(a->order, a->seen_ms, a->id, b) ? -1 : 1;
}

static int find_before(once_shelf *shelf, const seat *at, size_t max, once_in_lane *out, once_arena *arena,
                       once_error *err)
{
    const size_t most = 2 * max + ONCE_LANE_BLOCKERS;
    once_hash *ids = once_arena_new(arena, once_hash, most);
    befores all = {.at = once_arena_new(arena, once_entry, most)};
    size_t n = 0;
    if (!ids || !all.at) return once_no_memory(err, "for entries");
    int rc = shelf->shelf->lane_before(shelf, at->entry, max, ids, &n, &out->count, err);
    for (unsigned i = 0; i < at->lane->n_blockers; i++)
        if (at->lane->blockers[i].order < at->entry->order) ids[n++] = at->lane->blockers[i].id;
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) rc = add_before(shelf, at->entry, ids[i], &all, arena, err);
    if (rc != ONCE_OK) return rc;
    qsort(all.at, all.n, sizeof *all.at, compare_places);
    out->before = all.at;
    out->n = all.n < max ? all.n : max;
    out->count += all.others;
    return ONCE_OK;
}

int once__engine_in_lane(once_backend *store, once_hash id, size_t max, once_in_lane *out, once_arena *arena,
                         once_error *err)
{
    once_shelf *shelf = shelf_of(store);
    assert(!shelf->in_tx);
    int rc = verb_begin(shelf, false, err);
    if (rc != ONCE_OK) return rc;
    seat at;
    *out = (once_in_lane){0};
    rc = take_seat(shelf, id, (once_hash){0}, &at, err);
    if (rc == ONCE_OK && at.lane) {
        out->lane = at.lane_id;
        out->versioned = at.entry->versioned;
        out->version = at.entry->order;
        out->gap = once_lane_missing(at.lane, at.entry, &out->missing_from, &out->missing_to);
        if (at.entry->state == ONCE_STATE_WAITING) rc = find_before(shelf, &at, max, out, arena, err);
    }
    return verb_end(shelf, rc, err);
}

/* --- what operators do --- */

bool once__letter_is_of(const once_letter *letter, const once_entry *entry)
{
    return entry->state == ONCE_STATE_DEAD && once_hash_equal(letter->entry, entry->id) &&
           letter->seen_ms == entry->seen_ms && letter->attempt == entry->attempt;
}

int once__engine_letters_ahead(once_backend *store, const uint64_t *ids, size_t n, once_error *err)
{
    once_shelf *shelf = shelf_of(store);
    assert(shelf->in_tx);
    const int rc = verb_begin(shelf, false, err);
    return rc == ONCE_OK ? verb_end(shelf, shelf->shelf->letters_ahead(shelf, ids, n, err), err) : rc;
}

int once__engine_letter_get(once_backend *store, uint64_t id, once_letter *out, bool *found, once_arena *arena,
                            once_error *err)
{
    once_shelf *shelf = shelf_of(store);
    int rc = verb_begin(shelf, false, err);
    if (rc != ONCE_OK) return rc;
    *found = false;
    rc = shelf->shelf->letter_get(shelf, id, out, found, arena, err);
    return verb_end(shelf, rc, err);
}

int once__engine_letter_drop(once_backend *store, uint64_t id, bool *found, once_error *err)
{
    once_shelf *shelf = shelf_of(store);
    once_arena arena = {0};
    once_letter letter;
    int rc = verb_begin(shelf, true, err);
    if (rc != ONCE_OK) return rc;
    *found = false;
    rc = shelf->shelf->letter_get(shelf, id, &letter, found, &arena, err);
    if (rc == ONCE_OK && *found) rc = shelf->shelf->letter_drop(shelf, id, err);
    once_arena_release(&arena);
    return verb_end(shelf, rc, err);
}

/* The same message at the same place is not to become this letter again. */
static int remember_discarded(once_shelf *shelf, const once_letter *letter, int64_t remember_ms, once_error *err)
{
    const once_request what = {.scope = &letter->scope,
                               .key = letter->key,
                               .id = letter->same,
                               .remember_ms = remember_ms,
                               .lane = {.gap_ms = -1},
                               .sent_ms = ONCE_NO_TIME,
                               .at = letter->message.at};
    seat at;
    const int rc = load_entry(shelf, letter->same, &at, err);
    if (rc != ONCE_OK) return rc;
    const int changed = once_entry_give_up(at.entry, &what, shelf->now_ms);
    return changed ? keep(shelf, &at, changed, err) : ONCE_OK;
}

int once__engine_discard(once_backend *store, uint64_t id, int64_t remember_ms, bool *found, once_error *err)
{
    once_shelf *shelf = shelf_of(store);
    once_arena arena = {0};
    once_letter letter;
    int rc = verb_begin(shelf, true, err);
    if (rc != ONCE_OK) return rc;
    *found = false;
    rc = shelf->shelf->letter_get(shelf, id, &letter, found, &arena, err);
    if (rc == ONCE_OK && *found && !once_hash_is_zero(letter.entry)) {
        seat at;
        rc = take_seat(shelf, letter.entry, (once_hash){0}, &at, err);
        if (rc == ONCE_OK && once__letter_is_of(&letter, at.entry))
            rc = keep(shelf, &at, once_entry_discard(at.entry, at.lane, letter.message.sent_ms, shelf->now_ms), err);
    } else if (rc == ONCE_OK && *found) {
        rc = remember_discarded(shelf, &letter, remember_ms, err);
    }
    if (rc == ONCE_OK && *found) rc = shelf->shelf->letter_drop(shelf, id, err);
    rc = verb_end(shelf, rc, err);
    once_arena_release(&arena);
    return rc;
}

int once__engine_correct(once_backend *store, uint64_t id, const once_request *request, const once_message *message,
                         bool *done, once_error *err)
{
    once_shelf *shelf = shelf_of(store);
    once_arena arena = {0};
    once_letter letter;
    seat at;
    bool found = false;
    int rc = verb_begin(shelf, true, err);
    if (rc != ONCE_OK) return rc;
    *done = false;
    rc = shelf->shelf->letter_get(shelf, id, &letter, &found, &arena, err);
    if (rc == ONCE_OK && found && once_hash_equal(letter.entry, request->id)) {
        rc = take_seat(shelf, letter.entry, (once_hash){0}, &at, err);
        if (rc == ONCE_OK && once__letter_is_of(&letter, at.entry)) {
            const int changed = once_entry_correct(at.entry, at.lane, request, message, shelf->now_ms);
            *done = changed != ONCE_UNCHANGED;
            if (changed) rc = keep(shelf, &at, changed, err);
        }
        if (rc == ONCE_OK && *done) rc = shelf->shelf->letter_drop(shelf, id, err);
    }
    rc = verb_end(shelf, rc, err);
    once_arena_release(&arena);
    return rc;
}

int once__engine_resolve(once_backend *store, once_hash id, once_outcome outcome, once_bytes reason, bool *done,
                         once_error *err)
{
    once_shelf *shelf = shelf_of(store);
    int rc = verb_begin(shelf, true, err);
    if (rc != ONCE_OK) return rc;
    seat at;
    rc = take_seat(shelf, id, (once_hash){0}, &at, err);
    if (rc == ONCE_OK) {
        const int changed = once_entry_resolve(at.entry, at.lane, outcome, reason, shelf->now_ms);
        *done = changed != ONCE_UNCHANGED;
        if (changed) rc = keep(shelf, &at, changed, err);
    }
    return verb_end(shelf, rc, err);
}

int once__engine_revive(once_backend *store, const once_request *request, const once_message *message, bool *done,
                        once_error *err)
{
    once_shelf *shelf = shelf_of(store);
    int rc = verb_begin(shelf, true, err);
    if (rc != ONCE_OK) return rc;
    seat at;
    rc = load_entry(shelf, request->id, &at, err);
    if (rc == ONCE_OK)
        rc = take_lane(shelf, request->id, request->lane.id, &at,
                       err); /* a finished entry need not know its own any more */
    if (rc == ONCE_OK) {
        const int changed = once_entry_revive(at.entry, at.lane, request, message, shelf->now_ms);
        *done = changed != ONCE_UNCHANGED;
        if (changed) rc = keep(shelf, &at, changed, err);
    }
    return verb_end(shelf, rc, err);
}

/* Whoever is asked how things stand asks for the time first. */
int once__engine_time(once_backend *store, once_store_time *out, once_error *err)
{
    once_shelf *shelf = shelf_of(store);
    once_stats stats;
    const int rc =
        shelf->in_tx ? verb_begin(shelf, false, err) : store->ops->stats(store, (once_bytes){0}, &stats, err);
    if (rc == ONCE_OK)
        *out = (once_store_time){.now_ms = shelf->now_ms, .doubted = !shelf->own_clock && shelf->clock.doubted};
    return rc;
}

int once__engine_audit(once_backend *store, const once_audit *audit, once_error *err)
{
    once_shelf *shelf = shelf_of(store);
    int rc = verb_begin(shelf, true, err);
    if (rc != ONCE_OK) return rc;
    once_audit stamped = *audit;
    stamped.time_ms = shelf->now_ms;
    rc = shelf->shelf->audit_put(shelf, &stamped, err);
    return verb_end(shelf, rc, err);
}

/* --- sweep --- */

int once__engine_drop(once_shelf *shelf, const once_hash *ids, size_t n, uint64_t *dropped, once_error *err)
{
    int rc = ONCE_OK;
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        once_entry *entry;
        rc = load(shelf, ids[i], &entry, err);
        if (rc != ONCE_OK || once_state_finished(entry->state) || !once_entry_expired(entry, shelf->now_ms)) continue;
        (void)once_entry_forget(entry, NULL); /* it stands in no lane */
        rc = shelf->shelf->save(shelf, entry, err);
        ++*dropped;
    }
    return rc;
}

/* --- copies --- */

static bool copy_all(once_arena *arena, once_bytes *const *fields, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (fields[i]->len == 0) *fields[i] = (once_bytes){0};
        else if (!once_arena_copy(arena, *fields[i], fields[i])) return false;
    }
    return true;
}

bool once__entry_copy(once_arena *arena, const once_entry *from, once_entry *to)
{
    once_entry copy = *from;
    once_bytes *const fields[] = {
        &copy.scope.tenant, &copy.scope.consumer,   &copy.scope.operation,  &copy.key,          &copy.at.place,
        &copy.at.point,     &copy.result,           &copy.reason,           &copy.message.body, &copy.message.headers,
        &copy.message.type, &copy.message.at.place, &copy.message.at.point, &copy.who,          &copy.worker,
        &copy.history};
    if (!copy_all(arena, fields, sizeof fields / sizeof *fields)) return false;
    *to = copy;
    return true;
}

void once__letter_again(once_letter *kept, const once_letter *again)
{
    kept->count += again->count;
    kept->last_ms = again->last_ms;
    kept->message.at = again->message.at;
}

bool once__letter_copy(once_arena *arena, const once_letter *from, once_letter *to)
{
    once_letter copy = *from;
    once_bytes *const fields[] = {
        &copy.scope.tenant,     &copy.scope.consumer,   &copy.scope.operation, &copy.key,
        &copy.reason,           &copy.message.body,     &copy.message.headers, &copy.message.type,
        &copy.message.at.place, &copy.message.at.point, &copy.history};
    if (!copy_all(arena, fields, sizeof fields / sizeof *fields)) return false;
    *to = copy;
    return true;
}
