/* Between the files of the postgres store that hold the entries and lanes of the open transaction, and write them.
 * postgres.h explains the words. */
#ifndef ONCE_STORE_POSTGRES_LIVE_H
#define ONCE_STORE_POSTGRES_LIVE_H

#include "store/postgres/postgres.h"

/* What a round trip locks and loads. */
typedef struct once_pg_round {
    once_pg_slot **slots;    /* n entries to load */
    once_pg_names_of *names; /* of the finished ones */
    size_t n;
    once_pg_lane **lanes;
    size_t n_lanes;
    size_t n_ahead; /* how many of the entries are inserted */
    bool locked;    /* the entries are locked already */
    bool guessed;   /* the inserted entries are guessed to be new, and only the others read; a wrong guess fails */
    size_t begun;   /* statements that were sent before the rest of the round was ready */
    size_t n_begin; /* the first statements of the round: BEGIN and what belongs to it */
} once_pg_round;

/* Sends the next statement of a round; `sent` counts them. */
#define SEND(call)                                                                                                     \
    do {                                                                                                               \
        if (rc == ONCE_OK && (rc = (call)) == ONCE_OK) sent++;                                                         \
    } while (0)

/* ---- tx.c ---- */

int once__pg_begin(once_storage *storage, bool write, once_error *err);
int once__pg_commit(once_storage *storage, once_error *err);
void once__pg_rollback(once_storage *storage);
/* Sends the guard (db/postgres/guard.c): the first statement of every round that follows effects. Without it, after SET
 * ROLE in a function of the user, the next statement would fail for a missing right. *sent counts it. Sends nothing
 * when no effect has run in this transaction. */
int once__pg_guard_send(once_postgres *q, size_t *sent, once_error *err);
/* The status of a round with the guard that has failed with `rc` and `why`. */
int once__pg_guard_failed(once_postgres *q, int rc, const once_error *why, once_error *err);
/* Ends a round that began with once__pg_guard_send, and reads its results: `sent` of them, the guard's among them. */
int once__pg_guarded_round(once_postgres *q, PGresult **results, size_t sent, once_error *err);
/* A round trip of one statement, behind the guard: `tell` drops its result. `by_index` keeps the server from reading
 * whole tables for it (PG_PLAN), and takes more rows than `most` for a wrong answer; 0: any number is right. */
int once__pg_answer_by_index(once_postgres *q, unsigned statement, const once_pg_params *params, size_t most,
                             PGresult **out, once_error *err);
int once__pg_answer(once_postgres *q, unsigned statement, const once_pg_params *params, PGresult **out,
                    once_error *err);
int once__pg_tell(once_postgres *q, unsigned statement, const once_pg_params *params, once_error *err);

/* ---- letters.c ---- */

/* What the commit writes; *sent counts the statements. */
int once__pg_letters_send(once_postgres *q, unsigned statement, once_error *err);
int once__pg_dropped_send(once_postgres *q, size_t *sent, once_error *err);
int once__pg_letters_put(once_storage *storage, const once_letter *letters, const once_hash *uniques, size_t n,
                         bool *fresh, once_error *err);
int once__pg_letters_ahead(once_storage *storage, const uint64_t *ids, size_t n, once_error *err);
int once__pg_letter_get(once_storage *storage, uint64_t id, once_letter *out, bool *found, once_arena *arena,
                        once_error *err);
int once__pg_letter_drop(once_storage *storage, uint64_t id, once_error *err);
int once__pg_letters(once_storage *storage, const once_letter_query *what, once_page *page, once_letter_visit *visit,
                     void *user, once_error *err);

/* ---- audit.c ---- */

int once__pg_audits_send(once_postgres *q, size_t *sent, once_error *err);
int once__pg_audit_put(once_storage *storage, const once_audit *audit, once_error *err);
int once__pg_audits(once_storage *storage, once_bytes consumer, once_page *page, once_audit_visit *visit, void *user,
                    once_error *err);

/* ---- lists.c ---- */

int once__pg_list(once_storage *storage, once_bytes consumer, once_state state, once_page *page,
                  once_entry_visit *visit, void *user, once_error *err);
int once__pg_stats(once_storage *storage, once_bytes consumer, once_stats *out, once_error *err);
int once__pg_waiting_size(once_storage *storage, once_bytes consumer, once_waiting_size *out, once_error *err);

/* ---- facts.c ---- */

int once__pg_facts_send(once_postgres *q, size_t *sent, once_error *err);
int once__pg_fact_get(once_storage *storage, const char *name, once_bytes *out, once_arena *arena, once_error *err);
int once__pg_fact_set(once_storage *storage, const char *name, once_bytes value, once_error *err);
int once__pg_fact_count(once_storage *storage, const char *name, uint64_t least, once_bytes value, once_error *err);
int once__pg_facts(once_storage *storage, const char *prefix, once_fact_visit *visit, void *user, once_error *err);

/* ---- sweep.c ---- */

void once__pg_sweep_unlock(once_postgres *q);
int once__pg_sweep(once_backend *store, size_t limit, once_sweep_result *out, once_error *err);

/* ---- slots.c ---- */

/* ONCE_E_CORRUPT, with a text. `bad_lane` names the key of the first entry in the lane. */
int once__pg_damaged(const once_postgres *q, const char *table, once_error *err);
int once__pg_bad_lane(once_postgres *q, once_hash lane, const char *flaw, once_error *err);
/* NULL or false: memory is out. */
once_pg_slot *once__pg_slot_new(once_postgres *q, once_hash id);
once_pg_lane *once__pg_lane_of(once_postgres *q, once_hash id);
bool once__pg_join_lane(once_postgres *q, once_pg_slot *slot);
void once__pg_note_own(once_pg_slot *slot);
bool once__pg_copy_column(const PGresult *result, int row, int column, once_arena *arena, once_bytes *out);

/* ---- round.c ---- */

void once__pg_put_id_or_null(once_pg_array *column, once_hash id);
/* The ids of the round's lanes, as the parameter of a statement. */
void once__pg_param_lanes(once_postgres *q, const once_pg_round *round, once_pg_params *params);
void once__pg_mark_locked(once_postgres *q, const PGresult *result);
/* Sends BEGIN and the other statements that come before any lock, so that the server works while the rest is built. */
int once__pg_begin_round(once_postgres *q, once_pg_round *round, once_error *err);
int once__pg_load_round(once_postgres *q, once_pg_round *round, once_error *err);
int once__pg_round_begin(once_postgres *q, size_t n, once_pg_round *round,
                         once_error *err); /* with room for n entries and n lanes */

/* Reads the result of the insert that was not waited for. Must be called before anything is committed. */
int once__pg_presumed(once_postgres *q, once_error *err);

/* ---- expect.c ---- */

void once__pg_guess_wrong(once_postgres *q); /* the guess about new keys was wrong */

/* Add a lane or an entry to the round, unless it was loaded before. */
int once__pg_want_lane(once_postgres *q, once_pg_round *round, const once_request *r, once_error *err);
int once__pg_want_entry(once_postgres *q, once_pg_round *round, const once_request *r, once_purpose purpose,
                        once_error *err);

/* ---- find.c ---- */

/* Locks those of the round's lanes that no other transaction has locked, without waiting; only these stay in it. */
int once__pg_lock_free_lanes(once_postgres *q, once_pg_round *round, once_error *err);
/* Loads the entries that the statement finds (rows of an id and its lane). `locked`: the statement locks them. */
int once__pg_collect_ids(once_postgres *q, unsigned statement, const once_pg_params *params, bool locked, size_t max,
                         once_hash *out, size_t *n, once_error *err);
int once__pg_due_of_operations(once_storage *storage, once_bytes consumer, int64_t now_ms, once_due_search *search,
                               once_hash *out, size_t *n, once_error *err);
int once__pg_due(once_storage *storage, once_bytes consumer, int64_t now_ms, size_t max, once_hash *out, size_t *n,
                 once_error *err);
int once__pg_by_token(once_storage *storage, once_bytes consumer, uint64_t token_a, size_t max, once_hash *out,
                      size_t *n, once_error *err);
int once__pg_lapsed(once_storage *storage, once_bytes consumer, int64_t now_ms, size_t max, once_hash *out, size_t *n,
                    once_error *err);

/* ---- lanes.c ---- */

/* Locks and reads the lane, unless it was before. */
int once__pg_know_lane(once_postgres *q, once_hash id, once_pg_lane **out, once_error *err);

#endif
