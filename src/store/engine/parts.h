/* Internal interface between the files of the engine. */
#ifndef ONCE_STORE_ENGINE_PARTS_H
#define ONCE_STORE_ENGINE_PARTS_H

#include "store/engine.h"

static inline once_storage *once__storage_of(once_backend *store) { return (once_storage *)store; }

/* An entry with its lane. */
typedef struct once_entry_pair {
    once_entry *entry;
    once_lane lane_view, *lane; /* lane: NULL, or &lane_view */
    once_hash lane_id;

    /* For its history: the entry before the rule. */
    once_state state; /* ABSENT also when the entry had expired */
    uint32_t attempt;
    int64_t changed_ms;
    once_bytes worker;
    const once_settlement *settlement; /* the settlement that the rule got; NULL: it was another rule */
    once_answer letter;                /* the kind of its letter */
    once_entry waited;                 /* a copy of the waiting entry, which other content may replace */
} once_entry_pair;

/* Messages that other content replaced. Each becomes a conflict letter in the same transaction, so that no message is
 * lost. */
typedef struct once_replacements {
    once_letter *letters; /* with their own bytes: saving an entry frees its bytes */
    size_t *by;           /* the request that replaced it */
    size_t n;
    once_arena arena;
} once_replacements;

/* --- tx.c --- */

/* As once__verb_begin, for a verb that announces its requests. */
int once__verb_begin_for(once_storage *storage, bool write, const once_request *const *requests, size_t n,
                         once_purpose purpose, once_error *err);

/* --- the verbs, done once (verbs.c, take.c, letters.c, operate.c); those of engine.h do them again (again.c) --- */

int once__verb_claim(once_backend *store, const once_request *const *requests, size_t n, once_decision *out,
                     once_arena *arena, once_error *err);
int once__verb_settle(once_backend *store, const once_settlement *settlements, size_t n, bool *applied,
                      once_error *err);
int once__verb_extend(once_backend *store, const once_request *const *requests, size_t n, bool *ours, once_error *err);
int once__verb_accept(once_backend *store, const once_request *const *requests, const once_message *const *messages,
                      size_t n, once_decision *out, once_arena *arena, once_error *err);
int once__verb_take(once_backend *store, once_bytes consumer, once_token token, bool again, int64_t lease_ms,
                    size_t max, once_due_filter *filter, once_taken *out, size_t *n, once_arena *arena,
                    once_error *err);
int once__verb_lapse(once_backend *store, once_bytes consumer, uint64_t except_run, size_t max, once_taken *out,
                     size_t *n, once_arena *arena, once_error *err);
int once__verb_bury(once_backend *store, const once_letter *letters, size_t n, bool *fresh, once_error *err);
int once__verb_replay(once_backend *store, uint64_t letter, bool *found, once_error *err);
int once__verb_forget(once_backend *store, once_hash id, bool *found, once_error *err);
int once__verb_letter_drop(once_backend *store, uint64_t letter, bool *found, once_error *err);
int once__verb_discard(once_backend *store, uint64_t letter, int64_t remember_ms, bool *found, once_error *err);
int once__verb_resolve(once_backend *store, once_hash id, once_outcome outcome, once_bytes reason, bool *done,
                       once_error *err);
int once__verb_revive(once_backend *store, const once_request *request, const once_message *message, bool *done,
                      once_error *err);

/* --- take.c --- */

/* Fills `out` with the parts of an entry that the caller gets, with bytes in `arena`. False: out of memory. */
bool once__fill_taken(once_arena *arena, const once_entry *entry, const once_decision *decision, once_taken *out);

/* --- entry_pair.c --- */

/* Loads the entry alone; ONCE_E_CORRUPT when no rule can work with it. */
int once__pair_load_entry(once_storage *storage, once_hash id, once_entry **out, once_error *err);
/* Loads the entry without its lane; with it; with a lane that its state does not require. */
int once__pair_load(once_storage *storage, once_hash id, once_entry_pair *out, once_error *err);
int once__pair_take(once_storage *storage, once_hash id, once_hash lane_of_request, once_entry_pair *out,
                    once_error *err);
int once__pair_load_lane(once_storage *storage, once_hash id, once_hash lane, once_entry_pair *at, once_error *err);
/* Saves what a rule changed. */
int once__pair_keep(once_storage *storage, once_entry_pair *at, int changed, once_error *err);
/* Copies the texts of a decision, and the entry that a conflict met, so that they outlive the transaction. */
int once__own_words(const once_entry *entry, once_decision *decision, once_arena *arena, once_error *err);
/* Sets whose attempt lapsed, for logs. */
int once__say_lapsed(const once_entry_pair *at, once_decision *decision, once_arena *arena, once_error *err);

/* --- letters.c --- */

int once__write_letter(once_storage *storage, const once_entry *entry, once_answer kind, const once_message *message,
                       once_error *err);
/* Notes a message that a request replaced; once__replaced_bury buries all of a batch at once. */
int once__replaced_note(const once_storage *storage, const once_entry *entry, const once_request *const *requests,
                        size_t n, size_t by, once_replacements *all, once_error *err);
int once__replaced_bury(once_storage *storage, once_replacements *all, once_decision *out, int rc, once_error *err);
int once__bury_all(once_storage *storage, const once_letter *letters, size_t n, bool *fresh, once_arena *arena,
                   once_error *err);

#endif
