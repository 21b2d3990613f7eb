/* The field `callback`. */
#ifndef ONCE_EFFECT_CALLBACK_H
#define ONCE_EFFECT_CALLBACK_H

#include "core/spec.h"

typedef struct once_callback_spec {
    once_bytes name; /* under which the program registers its function */
} once_callback_spec;

#endif
