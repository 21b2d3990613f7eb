/* What is common to all kinds of effects: which half of which kind a handler needs, and what it promises. */
#include "effect/effect.h"

#include <assert.h>

#include "effect/hands.h"

#include "base/banned.h"

int once_effect_prepare(const once_handler_spec *handler, const once_json *body, const once_message *message,
                        once_arena *arena, void **input, once_error *err)
{
    assert(handler->effect != ONCE_EFFECT_DEAD);
    if (once_handler_external(handler)) return once_hands_prepare(handler, body, message, arena, input, err);
    return once_sql_prepare(handler, body, message, arena, input, err);
}

const char *once_effect_mode(const once_handler_spec *handler)
{
    if (handler->effect == ONCE_EFFECT_DEAD) return "none";
    if (handler->natural) return "natural";
    return once_handler_external(handler) ? "fenced" : "atomic";
}
