/* A commit is made in three steps: write.c says what becomes of the store, arguments.c encodes that as parts of the
 * script's keys and arguments, script.c puts these together behind the script, and commit.c sends it. */
#ifndef ONCE_STORE_REDIS_COMMIT_H
#define ONCE_STORE_REDIS_COMMIT_H

#include "store/redis/redis.h"

enum { ONCE_REDIS_SMALL = 1024, ONCE_REDIS_ARGS_MAX = 2000 }; /* bytes of a value; arguments of one command */

/* --- arguments (arguments.c) --- */

/* A key of the script: its kind and the rest, behind the store's name. Then what belongs to it. */
void once__redis_declare(once_redis *r, once_redis_part *to, const char *kind, const void *rest, size_t len);
void once__redis_part_arg(once_redis_part *to, const void *data, size_t len);
void once__redis_part_count(once_redis_part *to, size_t n);

/* An argument of the command that was begun last (once__redis_do). */
void once__redis_put_text(once_redis *r, const char *text);
void once__redis_put_number(once_redis *r, int64_t number);
size_t once__redis_number_text(int64_t number, char out[24]); /* its length; no 0 behind it */

/* The value must be the one that was read; a stamp stands for it where there is one. Then it becomes r->value. */
typedef enum once_redis_fate { ONCE_REDIS_KEEP, ONCE_REDIS_DELETE, ONCE_REDIS_WRITE } once_redis_fate;
void once__redis_put_value(once_redis *r, const char *kind, once_hash id, once_bytes stored, once_redis_fate what,
                           int64_t expires_ms);

void once__redis_expect_now(once_redis *r); /* the fields that are expected so far become a part */

/* --- what is written (write.c); false: out of memory --- */

bool once__redis_write_changes(once_redis *r); /* everything that the transaction decided */
bool once__redis_write_around(once_redis *r);  /* what is only written, or compared, with something else */

/* --- the script (script.c) --- */

void once__redis_build(once_redis *r, bool whole); /* the pipe has it: its text, or only its name */

#endif
