/* What is asked of all effects. */
#include "effect/effect.h"

#include <assert.h>

#include "effect/effect_list.h"

#include "base/banned.h"

#define ENTRY(name) &once__effect_##name,
static const once_effect_ops *const effects[] = {ONCE_EFFECT_MAP(ENTRY)};

#ifdef ONCE_TEST_BUILD
static const once_effect_ops *const *replaced;
static size_t n_replaced;

void once__effect_list_replace(const once_effect_ops *const *list, size_t n)
{
    assert(!list == (n == 0));
    replaced = list;
    n_replaced = n;
}
#endif

const once_effect_ops *const *once_effect_list(size_t *n)
{
#ifdef ONCE_TEST_BUILD
    *n = n_replaced;
    if (replaced) return replaced;
#endif
    *n = sizeof effects / sizeof *effects;
    return effects;
}

int once_effect_prepare(const once_handler_spec *handler, const once_json *body, const once_message *message,
                        once_arena *arena, void **input, once_error *err)
{
    static char nothing; /* an item without input cannot run */
    assert(once_handler_runs(handler));
    if (handler->effect->prepare) return handler->effect->prepare(handler, body, message, arena, input, err);
    *input = &nothing;
    return ONCE_OK;
}

const char *once_effect_mode(const once_handler_spec *handler)
{
    if (!once_handler_runs(handler)) return "none";
    if (handler->natural) return "natural";
    return once_handler_external(handler) ? "fenced" : "atomic";
}

void once_effect_secrets(const once_handler_spec *handler, once_secret_visit *visit, void *user)
{
    if (handler->effect->secrets) handler->effect->secrets(handler, visit, user);
}

void once_effect_exposed(const once_handler_spec *handler, once_effect_warning *warn, void *user)
{
    if (handler->effect->exposed) handler->effect->exposed(handler, warn, user);
}

once_bytes once_effect_function(const once_handler_spec *handler)
{
    return handler->effect->function ? handler->effect->function(handler) : (once_bytes){0};
}
