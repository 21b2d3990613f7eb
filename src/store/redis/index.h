/* Finds the entries of a consumer: by its indexes and groups of claims (index.c), or in the key space (scan.c). */
#ifndef ONCE_STORE_REDIS_INDEX_H
#define ONCE_STORE_REDIS_INDEX_H

#include "store/redis/redis.h"

enum { ONCE_REDIS_PAGE = 256 }; /* entries that are read at once */

/* How many values to read next, after the last n had so many bytes: twice as many while they are small, but never more
 * than fit into a few mebibytes, nor more than `most`. */
size_t once__redis_next_page(size_t page, size_t n, uint64_t bytes, size_t most);

typedef ONCE_REDIS_LIST(once_hash) once_redis_ids;

/* ONCE_E_CORRUPT: the list of this kind cannot be read. */
int once__redis_damaged_list(once_redis *r, const char *kind, once_bytes consumer, once_error *err);

/* Append a command to r->pipe: ids of an index by position; ids that became due at `from_ms` or later (0: all), with
 * their times. */
void once__redis_ask_index(once_redis *r, char index, once_bytes consumer, int64_t first, int64_t last);
void once__redis_ask_due(once_redis *r, char index, once_bytes consumer, int64_t from_ms, int64_t now_ms, size_t max);

/* Reads the values of entries into the first reply of the pipe. */
int once__redis_ask_entries(once_redis *r, const once_hash *ids, size_t n, once_error *err);

/* Adds the ids of a reply to the list; sorts ids, removes duplicates, and returns how many are left. */
int once__redis_add_ids(once_redis *r, once_redis_ids *list, const redisReply *reply, once_error *err);
size_t once__redis_sort_ids(once_hash *ids, size_t n);

/* Ids of entries that may be in the state at that time, without duplicates; free *out. The caller reads the entries:
 * groups of claims also name entries that have left, and whether a claim whose lease has ended is unknown or waiting is
 * only in its value. */
int once__redis_open_ids(once_redis *r, once_bytes consumer, once_state state, int64_t now_ms, once_hash **out,
                         size_t *n, once_error *err);
/* Ids of claims whose lease has ended, with a body or without; free out->at, also after an error. */
int once__redis_lapsed_ids(once_redis *r, once_bytes consumer, int64_t now_ms, once_redis_ids *out, once_error *err);

/* A page of all keys of a kind, in the reply of the pipe; the ids of a page of all entries, up to `max`. */
int once__redis_scan_keys(once_redis *r, const char *kind, char cursor[24], const redisReply **keys, once_error *err);
int once__redis_scan_entries(once_redis *r, char cursor[24], once_hash *ids, size_t max, size_t *n, once_error *err);

#endif
