/* An entry with its lane: loads both, saves what a rule changed, and wakes the next entry of the lane.
 *
 * Invariant: an entry, its lane, its letter and its history change in one transaction. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/no_memory.h"
#include "store/engine/parts.h"
#include "store/history.h"

#include "base/banned.h"

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

int once__pair_load_entry(once_storage *storage, once_hash id, once_entry **out, once_error *err)
{
    const int rc = storage->ops->load(storage, id, out, err);
    const char *flaw = rc == ONCE_OK ? once_entry_flaw(*out) : NULL;
    return flaw ? flawed(*out, flaw, err) : rc;
}

int once__pair_load(once_storage *storage, once_hash id, once_entry_pair *out, once_error *err)
{
    const int rc = once__pair_load_entry(storage, id, &out->entry, err);
    if (rc != ONCE_OK) return rc;
    const once_entry *entry = out->entry;
    out->state = once_entry_expired(entry, storage->now_ms) ? ONCE_STATE_ABSENT : entry->state;
    out->attempt = entry->attempt;
    out->changed_ms = entry->changed_ms;
    out->worker = entry->worker;
    out->settlement = NULL;
    out->letter = ONCE_ANSWER_DEAD;
    if (entry->state == ONCE_STATE_WAITING) out->waited = *entry;
    out->lane = NULL;
    return ONCE_OK;
}

int once__pair_take(once_storage *storage, once_hash id, once_hash lane_of_request, once_entry_pair *out,
                    once_error *err)
{
    const int rc = once__pair_load(storage, id, out, err);
    if (rc != ONCE_OK) return rc;
    const bool fresh = out->state == ONCE_STATE_ABSENT;
    out->lane_id = fresh ? lane_of_request : out->entry->lane;
    if (once_hash_is_zero(out->lane_id)) return ONCE_OK;
    if (!fresh && once_state_finished(out->entry->state)) return ONCE_OK; /* a duplicate does not need its lane */
    out->lane = &out->lane_view;
    return storage->ops->lane(storage, out->lane_id, id, out->lane, err);
}

/* Loads a lane that the state of the entry does not require. */
int once__pair_load_lane(once_storage *storage, once_hash id, once_hash lane, once_entry_pair *at, once_error *err)
{
    assert(at->entry && !at->lane); /* after once__pair_load */
    at->lane_id = lane;
    if (once_hash_is_zero(lane)) return ONCE_OK;
    at->lane = &at->lane_view;
    return storage->ops->lane(storage, lane, id, at->lane, err);
}

static int wake_next(once_storage *storage, once_hash lane_id, once_error *err)
{
    assert(!once_hash_is_zero(lane_id));
    once_hash head;
    once_entry_pair next;
    int rc = storage->ops->lane_head(storage, lane_id, &head, err);
    if (rc != ONCE_OK || once_hash_is_zero(head)) return rc;
    rc = once__pair_take(storage, head, lane_id, &next, err);
    if (rc != ONCE_OK) return rc;
    const int changed = once_entry_wake(next.entry, next.lane, storage->now_ms);
    if (changed & ONCE_ENTRY_CHANGED) rc = storage->ops->save(storage, next.entry, err);
    if (rc == ONCE_OK && (changed & ONCE_LANE_CHANGED)) rc = storage->ops->save_lane(storage, lane_id, next.lane, err);
    return rc;
}

/* An entry left the lane, or lets others go first: wakes the next entry. When the last entry has left, the lane is
 * saved with its end. */
static int leave_lane(once_storage *storage, once_entry_pair *at, once_error *err)
{
    assert(at->lane && !once_hash_is_zero(at->lane_id));
    if (at->lane->tail >= 0 || once_state_unfinished(at->entry->state)) return wake_next(storage, at->lane_id, err);
    return once_lane_rest(at->lane, at->entry, storage->now_ms)
               ? storage->ops->save_lane(storage, at->lane_id, at->lane, err)
               : ONCE_OK;
}

/* --- processes, and how attempts ended --- */

static once_bytes self(const once_storage *storage)
{
    return (once_bytes){storage->store.who, strlen(storage->store.who)};
}

/* Whether the rule ended an attempt that needs its own line in the history. */
static bool attempt_ended(const once_storage *storage, const once_entry_pair *at, once_attempt *out)
{
    const once_entry *e = at->entry;
    const once_settlement *s = at->settlement;
    const bool first = at->attempt == 1 && e->history.len == 0;
    if (s) {
        if (s->asked && e->state == ONCE_STATE_UNKNOWN)
            return false; /* a lookup without a result: it must not push attempts out of the history */
        if (first && once_state_finished(e->state) && once_bytes_equal(e->who, self(storage)))
            return false; /* as in history.h: the entry contains all of it */
        *out = (once_attempt){e->attempt, storage->now_ms, once_outcome_name(s->outcome), self(storage), s->reason};
        return true;
    }
    if (at->state == ONCE_STATE_CLAIMED && (e->state != ONCE_STATE_CLAIMED || e->attempt != at->attempt)) {
        *out = (once_attempt){at->attempt, storage->now_ms, ONCE_UNREPORTED, at->worker, {0}};
        return true;
    }
    if (first && once_state_finished(at->state) && !once_state_finished(e->state)) { /* it goes on: add the line */
        *out = (once_attempt){1, at->changed_ms, once_state_name(at->state), e->who, e->reason};
        return true;
    }
    return false;
}

/* Sets the processes of the entry (who, worker), and adds to its history, which is then in `text`, what the rule
 * ended. */
static void sign(const once_storage *storage, once_entry_pair *at, bool replaced, char text[ONCE_HISTORY_MAX])
{
    once_entry *e = at->entry;
    once_attempt ended;
    if (e->state == ONCE_STATE_ABSENT) return;
    if (at->state == ONCE_STATE_ABSENT || replaced) e->who = self(storage);
    if (replaced) {
        ended = (once_attempt){at->attempt, storage->now_ms, ONCE_REPLACED_LINE, self(storage), e->reason};
        e->history = once__history_add(e->history, &ended, text);
    } else if (attempt_ended(storage, at, &ended)) e->history = once__history_add(e->history, &ended, text);
    if (e->state != ONCE_STATE_CLAIMED) e->worker = (once_bytes){0};
    else if (at->state != ONCE_STATE_CLAIMED || e->attempt != at->attempt) e->worker = self(storage);
}

/* Saves what a rule changed. */
int once__pair_keep(once_storage *storage, once_entry_pair *at, int changed, once_error *err)
{
    assert(changed && at->entry);
    assert(at->lane || !(changed & (ONCE_LANE_CHANGED | ONCE_LANE_FREED))); /* a rule without a lane changes none */
    __attribute__((uninitialized)) char history[ONCE_HISTORY_MAX];          /* most entries have none */
    int rc = ONCE_OK;
    sign(storage, at, changed & ONCE_REPLACED, history);
    if (changed & ONCE_LETTER_NEEDED) {
        rc = once__write_letter(storage, at->entry, at->letter, at->entry->has_message ? &at->entry->message : NULL,
                                err);
        at->entry->message = (once_message){0}; /* the letter has it now */
        at->entry->has_message = false;
    }
    if (rc == ONCE_OK && (changed & ONCE_ENTRY_CHANGED)) rc = storage->ops->save(storage, at->entry, err);
    if (rc == ONCE_OK && (changed & ONCE_LANE_CHANGED))
        rc = storage->ops->save_lane(storage, at->lane_id, at->lane, err);
    if (rc == ONCE_OK && (changed & ONCE_LANE_FREED)) rc = leave_lane(storage, at, err);
    return rc;
}

/* --- answers --- */

static bool own(once_arena *arena, once_bytes *words)
{
    if (words->len) return once_arena_copy(arena, *words, words);
    *words = (once_bytes){0};
    return true;
}

static const once_first *copy_first(once_arena *arena, const once_entry *entry)
{
    once_first *first = once_arena_alloc(arena, sizeof *first);
    if (!first) return NULL;
    *first = (once_first){entry->at, entry->seen_ms, entry->who, entry->message.body, entry->fields};
    const bool owned = own(arena, &first->at.place) && own(arena, &first->at.point) && own(arena, &first->who) &&
                       own(arena, &first->body);
    return owned ? first : NULL;
}

/* Copies the texts of a decision, and the entry that a conflict met, so that they outlive the transaction. */
int once__own_words(const once_entry *entry, once_decision *decision, once_arena *arena, once_error *err)
{
    const bool met = decision->answer == ONCE_ANSWER_CONFLICT && !decision->lane;
    if (met) decision->first = copy_first(arena, entry);
    const bool owned = (!met || decision->first) && own(arena, &decision->result) && own(arena, &decision->reason) &&
                       own(arena, &decision->before);
    return owned ? ONCE_OK : once_no_memory(err, "for what is answered");
}

/* Sets whose attempt lapsed, for logs. */
int once__say_lapsed(const once_entry_pair *at, once_decision *decision, once_arena *arena, once_error *err)
{
    static const char text[] = "its lease expired, and its attempt reported no outcome: it may have had its effect";
    if (!decision->lapsed) return ONCE_OK;
    const size_t room = sizeof text + at->worker.len + 20;
    char *words = once_arena_alloc(arena, room);
    if (!words) return once_no_memory(err, "for what is answered");
    const int n = at->worker.len ? snprintf(words, room, "%s; worker %.*s", text, (int)at->worker.len, at->worker.data)
                                 : snprintf(words, room, "%s", text);
    decision->reason = (once_bytes){words, (size_t)n};
    return ONCE_OK;
}
