/* Between the files of the engine. */
#ifndef ONCE_STORE_ENGINE_PARTS_H
#define ONCE_STORE_ENGINE_PARTS_H

#include "store/engine.h"

static inline once_storage *once__storage_of(once_backend *store) { return (once_storage *)store; }

/* One entry with its lane. */
typedef struct once_entry_pair {
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
} once_entry_pair;

/* What other content took the place of is a letter of that conflict, in the same transaction: nothing is lost without a
 * word. */
typedef struct once_replacements {
    once_letter *letters; /* with bytes of their own: those of the entry are gone as soon as it is saved */
    size_t *by;           /* by which of the requests */
    size_t n;
    once_arena arena;
} once_replacements;

/* --- tx.c --- */

/* As once__verb_begin, of a verb that says which requests it is about. */
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
int once__verb_lapse(once_backend *store, once_bytes consumer, uint64_t but, size_t max, once_taken *out, size_t *n,
                     once_arena *arena, once_error *err);
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

/* What the caller gets of an entry, with bytes in `arena`. False: out of memory. */
bool once__fill_taken(once_arena *arena, const once_entry *entry, const once_decision *decision, once_taken *out);

/* --- entry_pair.c --- */

/* The entry alone; one that no rule can work with is ONCE_E_CORRUPT. */
int once__pair_load_entry(once_storage *storage, once_hash id, once_entry **out, once_error *err);
/* The entry without its lane; with it; with a lane that its state does not ask for. */
int once__pair_load(once_storage *storage, once_hash id, once_entry_pair *out, once_error *err);
int once__pair_take(once_storage *storage, once_hash id, once_hash lane_of_request, once_entry_pair *out,
                    once_error *err);
int once__pair_load_lane(once_storage *storage, once_hash id, once_hash lane, once_entry_pair *at, once_error *err);
/* Keeps what a rule changed. */
int once__pair_keep(once_storage *storage, once_entry_pair *at, int changed, once_error *err);
/* What a decision says, and what a conflict met, must outlive the transaction. */
int once__own_words(const once_entry *entry, once_decision *decision, once_arena *arena, once_error *err);
/* For whoever tells people: whose attempt it was. */
int once__say_lapsed(const once_entry_pair *at, once_decision *decision, once_arena *arena, once_error *err);

/* --- letters.c --- */

int once__write_letter(once_storage *storage, const once_entry *entry, once_answer kind, const once_message *message,
                       once_error *err);
/* What a request has replaced; all of a batch are buried at once. */
int once__replaced_note(const once_storage *storage, const once_entry *entry, const once_request *const *requests,
                        size_t n, size_t by, once_replacements *all, once_error *err);
int once__replaced_bury(once_storage *storage, once_replacements *all, once_decision *out, int rc, once_error *err);
int once__bury_all(once_storage *storage, const once_letter *letters, size_t n, bool *fresh, once_arena *arena,
                   once_error *err);

#endif
