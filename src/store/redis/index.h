/* Where the entries of a consumer are found: its indexes and groups of claims (index.c), and the key space (scan.c). */
#ifndef ONCE_STORE_REDIS_INDEX_H
#define ONCE_STORE_REDIS_INDEX_H

#include "store/redis/redis.h"

enum { ONCE_REDIS_PAGE = 256 }; /* entries that are asked for at once */

/* How many values to read next where so many had so many bytes: twice as many while they are small, and no more than
 * fit into some mebibytes, nor than `most`. */
size_t once__redis_next_page(size_t page, size_t n, uint64_t bytes, size_t most);

typedef ONCE_REDIS_LIST(once_hash) once_redis_ids;

/* The list of that kind cannot be read. */
int once__redis_damaged_list(once_redis *r, const char *kind, once_bytes consumer, once_error *err);

/* Append a question to r->pipe: ids of an index by position; those that are due, with their times. */
void once__redis_ask_index(once_redis *r, char index, once_bytes consumer, int64_t first, int64_t last);
void once__redis_ask_due(once_redis *r, char index, once_bytes consumer, int64_t now_ms, size_t max);

/* Values of the entries, in the first reply of the pipe. */
int once__redis_ask_entries(once_redis *r, const once_hash *ids, size_t n, once_error *err);

/* The ids of a reply; and how many are left when each is there once. */
int once__redis_add_ids(once_redis *r, once_redis_ids *list, const redisReply *reply, once_error *err);
size_t once__redis_sort_ids(once_hash *ids, size_t n);

/* Entries that may be of the state at that time: groups of claims also name those that have left. Each once; free *out.
 * A claim whose lease is over is unknown or waiting, which only its value tells. */
int once__redis_open_ids(once_redis *r, once_bytes consumer, once_state state, int64_t now_ms, once_hash **out,
                         size_t *n, once_error *err);
/* Claims whose lease is over, with a body or without; free out->at, also after an error. */
int once__redis_lapsed_ids(once_redis *r, once_bytes consumer, int64_t now_ms, once_redis_ids *out, once_error *err);

/* A page of all keys of a kind, in the pipe's reply; of all entries, up to `max`. */
int once__redis_scan_keys(once_redis *r, const char *kind, char cursor[24], const redisReply **keys, once_error *err);
int once__redis_scan_entries(once_redis *r, char cursor[24], once_hash *ids, size_t max, size_t *n, once_error *err);

#endif
