/* Values of the pipeline file that may be references to where they stand, so that no secret is in the file. */
#ifndef ONCE_BASE_VALUE_H
#define ONCE_BASE_VALUE_H

#include "base/arena.h"
#include "base/env.h"
#include "once/types.h"

#define ONCE_VALUE_MAX (128 << 10) /* of a file: the kernel's limit of an argument or a variable, with the NUL */

/* A value as it was written: a text, or a reference (env:NAME, file:PATH) to where it is read from when the pipeline
 * starts, which is never shown. */
typedef struct once_written {
    once_bytes name; /* of what it is for, for messages */
    once_bytes value;
    int line;
} once_written;

/* Of a value: where it is to be read from, instead of what it is. */
bool once_is_reference(once_bytes value);

/* Is told of a text that is a secret, or leads to one. `url`: one that may have a password in it; otherwise only a
 * reference is a secret. */
typedef void once_secret_visit(void *user, once_bytes text, bool url);

/* A value as written, or what a reference leads to. A mistake is FILE:LINE, of the pipeline file `file`. */
int once_value_read(once_bytes file, const once_env *env, const once_written *written, once_arena *arena,
                    once_bytes *out, once_error *err);

#endif
