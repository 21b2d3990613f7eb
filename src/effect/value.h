/* Values of the file that may be references to where they stand. */
#ifndef ONCE_EFFECT_VALUE_H
#define ONCE_EFFECT_VALUE_H

#include "base/arena.h"
#include "base/env.h"
#include "core/spec.h"

#define ONCE_VALUE_MAX (128 << 10) /* of a file: the kernel's limit of an argument or a variable, with the NUL */

/* A value as written, or what a reference (env:NAME, file:PATH) leads to. A mistake is FILE:LINE. */
int once_value_read(const once_spec *spec, const once_env *env, const once_written *written, once_arena *arena,
                    once_bytes *out, once_error *err);

#endif
