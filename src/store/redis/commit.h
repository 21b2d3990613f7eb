/* Between the files that make a commit. write.c decides what is written, arguments.c encodes it as parts of the
 * script's keys and arguments, script.c puts the parts together behind the script, and commit.c sends it. */
#ifndef ONCE_STORE_REDIS_COMMIT_H
#define ONCE_STORE_REDIS_COMMIT_H

#include "store/redis/redis.h"

enum { ONCE_REDIS_SMALL = 1024, ONCE_REDIS_ARGS_MAX = 2000 }; /* bytes of a small value; arguments of one command */

/* --- arguments (arguments.c) --- */

/* Declares the key {NAME} kind rest of a part, and appends arguments to the part. */
void once__redis_declare(once_redis *r, once_redis_part *to, const char *kind, const void *rest, size_t len);
void once__redis_part_arg(once_redis_part *to, const void *data, size_t len);
void once__redis_part_count(once_redis_part *to, size_t n);

/* Put an argument of the command that once__redis_do or once__redis_undo has begun. */
void once__redis_put_text(once_redis *r, const char *text);
void once__redis_put_number(once_redis *r, int64_t number);
size_t once__redis_number_text(int64_t number, char out[24]); /* returns its length; writes no NUL */

/* The commit compares the key with `stored`, the value as it was read (only kind and stamp of a value that has one).
 * Then it keeps it, deletes it, or writes r->value. */
typedef enum once_redis_fate { ONCE_REDIS_KEEP, ONCE_REDIS_DELETE, ONCE_REDIS_WRITE } once_redis_fate;
void once__redis_put_value(once_redis *r, const char *kind, once_hash id, once_bytes stored, once_redis_fate what,
                           int64_t expires_ms);

void once__redis_expect_now(once_redis *r); /* the expected fields so far become a part */

/* --- decisions of the transaction (write.c); false: out of memory --- */

bool once__redis_write_changes(once_redis *r); /* everything that makes a commit necessary */
bool once__redis_write_around(once_redis *r);  /* what is written or compared only together with something else */

/* --- the script (script.c) --- */

void once__redis_build(once_redis *r, bool whole); /* into r->pipe: EVAL with its text, or EVALSHA with its hash */

#endif
