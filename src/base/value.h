/* Values of the pipeline file that may be references (env:NAME, file:PATH), so that no secret is in the file.
 *
 * Thread rule: the functions share no state but the environment variables of the process. */
#ifndef ONCE_BASE_VALUE_H
#define ONCE_BASE_VALUE_H

#include "base/arena.h"
#include "base/env.h"
#include "once/types.h"

#define ONCE_VALUE_MAX (128 << 10) /* bytes of a file: the kernel's limit of an argument or a variable, with the NUL */

/* A value as it is in the file: a text, or a reference to a value that is read when the pipeline starts and is never
 * shown. */
typedef struct once_written {
    once_bytes name; /* of the field, for messages */
    once_bytes value;
    int line;
} once_written;

/* Whether it is a reference, and not the value itself. */
bool once_is_reference(once_bytes value);

/* Called with each text that may be a secret or lead to one. `url`: a URL, which may have a password in it; otherwise
 * only a reference is secret. */
typedef void once_secret_visit(void *user, once_bytes text, bool url);

/* The bytes of a regular file of less than ONCE_VALUE_MAX, in the arena with a NUL behind them. A line end at its end,
 * which editors add, is left out. NULL, or why it cannot be read; errno is ENOENT only if there is no such file. */
const char *once_file_read(const once_env *env, const char *path, once_arena *arena, once_bytes *out);

/* The text itself, or the value that a reference leads to. Errors begin with FILE:LINE of the pipeline file `file`. */
int once_value_read(once_bytes file, const once_env *env, const once_written *written, once_arena *arena,
                    once_bytes *out, once_error *err);

#endif
