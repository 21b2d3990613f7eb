/* A check of every key of a store. verify.c reports what it finds, mend.c repairs it. Each kind of key has a file:
 * look_entries.c, look_indexes.c, look_lanes.c, look_letters.c; look_ask.c reads, and look.c goes over all keys.
 *
 * Workers go on during a check. Nothing is locked, and two round trips see different moments. But every change of the
 * place of an unfinished entry gives the entry a new stamp in the same commit, and its lane as well. So a value that is
 * the same before and after its surroundings were read did not change in between, and surroundings that disagree with
 * it are damage. A value that has changed is checked again. Groups, numbers of letters and stamps are never used twice.
 *
 * Values have no checksums: a value that was changed into another valid one is not noticed. */
#ifndef ONCE_STORE_REDIS_LOOK_H
#define ONCE_STORE_REDIS_LOOK_H

#include "store/redis/index.h"
#include "store/redis/verify.h"

enum {
    ONCE_LOOK_PAGE = 128,
    ONCE_LOOK_FEW = 4,
    ONCE_LOOK_TRIES = 5, /* for a key that changes during the check */
    ONCE_LOOK_PART_BYTES = 4 << 20
};

/* --- reading (look_ask.c) --- */

typedef struct once_look_key {
    char kind; /* the letter behind {NAME}; 0: no key of once */
    once_bytes whole;
    once_hash id;
    once_bytes consumer;
    uint64_t number;
} once_look_key;

once_look_key once__look_key(const once_redis *r, once_bytes whole);
bool once__look_is_type(char kind, once_bytes type); /* `type` is what the server says of a key of that kind */
bool once__look_one_of(const char *kinds, char kind);
bool once__look_is_word(once_bytes rest, const char *word);
bool once__look_letter_number(once_bytes text, uint64_t *out); /* as once writes it: 'L1', never 'L01' */

/* Copies into the arena; *fine becomes false when memory is out. */
once_bytes once__look_copy(once_redis_looking *l, once_bytes bytes, bool *fine);
once_bytes once__look_id_key(once_redis_looking *l, const char *kind, once_hash id);

int once__look_found(once_redis_looking *l, once_redis_flaw flaw, once_error *err);
int once__look_found_at(once_redis_looking *l, once_redis_flaw_kind kind, once_bytes key, once_bytes in_words,
                        once_error *err);

static inline once_redis_pipe *once__look_pipe(once_redis_looking *l) { return &l->r->pipe; }

/* Append a command to the pipe: about a key; for a field of a hash or a score of a sorted set (nil: none); for n
 * values, whose keys follow; for the first bytes of a value, up to `last`. once__look_ask exchanges it. */
void once__look_ask_key(once_redis_looking *l, once_reply_kind kind, const char *command, once_bytes key);
void once__look_ask_in(once_redis_looking *l, const char *command, const char *kind, once_bytes rest,
                       const void *member, size_t len);
void once__look_ask_id_in(once_redis_looking *l, const char *command, const char *kind, once_hash key,
                          const void *member, size_t len);
void once__look_begin_values(once_redis_looking *l, size_t n);
void once__look_ask_value(once_redis_looking *l, const char *kind, once_hash id);
void once__look_ask_range(once_redis_looking *l, once_bytes key, int64_t last);
int once__look_ask(once_redis_looking *l, once_error *err);

static inline once_bytes once__look_reply(once_redis_looking *l, size_t i)
{
    return once__reply_bytes(once__look_pipe(l)->replies[i]);
}

static inline once_bytes once__look_first(once_redis_looking *l, size_t i)
{
    return once__reply_at(once__look_pipe(l)->replies[i], 0);
}

/* The values of n ids, copied; empty: there is none, or it is no string. */
int once__look_read_ids(once_redis_looking *l, const char *kind, const once_hash *ids, size_t n, once_bytes *out,
                        once_error *err);
/* Reports those whose value was read as empty although the key exists. */
int once__look_for_empty(once_redis_looking *l, const char *kind, const once_hash *ids, const once_bytes *values,
                         size_t n, once_error *err);

/* A page of about `count` keys of the store, copied. */
int once__look_scan(once_redis_looking *l, char cursor[24], size_t count, once_bytes **keys, size_t *n,
                    once_error *err);

/* Visits all pairs of a sorted set or a hash, page by page; `in_parts`: the pairs of a page in parts, as many as the
 * entries that they name fit into memory. */
typedef int once_look_pairs(once_redis_looking *l, const once_look_key *key, const once_bytes *pairs, size_t n,
                            once_error *err);
int once__look_each_pair(once_redis_looking *l, const once_look_key *at, const char *command, once_look_pairs *look,
                         once_error *err);
int once__look_in_parts(once_redis_looking *l, const once_look_key *key, const once_bytes *pairs, size_t n,
                        once_look_pairs *look, once_error *err);

bool once__look_names_id(once_bytes ids, once_hash id); /* `ids` has 16 bytes for each id */
/* The time to live on the server is the one that the value says, or both have none. */
bool once__look_ends_well(const once_redis_looking *l, int64_t expires_ms, int64_t left_ms, int64_t now_ms);

/* --- kinds of keys --- */

int once__look_at_entries(once_redis_looking *l, once_hash *ids, size_t n, once_error *err);
/* Reads an entry that is valid and stored under its own id. False: the check of entries reports that, and what names
 * the entry is not reported as well. */
bool once__look_read_own(const once_redis_looking *l, once_bytes value, once_hash id, once_entry *out);
int once__look_for_letters(once_redis_looking *l, once_error *err); /* of dead entries; when all keys were seen */

once_look_pairs once__look_at_index, once__look_at_groups, once__look_at_claims;

once_look_pairs once__look_at_members;
int once__look_at_lanes(once_redis_looking *l, const once_hash *ids, size_t n, once_error *err);

once_look_pairs once__look_at_listed_letters, once__look_at_uniques;
int once__look_at_letter(once_redis_looking *l, const once_look_key *key, once_error *err);
int once__look_at_audits(once_redis_looking *l, const once_look_key *key, once_error *err);

#endif
