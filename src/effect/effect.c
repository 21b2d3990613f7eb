/* The list of effects, and the calls that go to any of them. */
#include "effect/effect.h"

#include <assert.h>

#include "base/module.h"
#include "effect/driver.h"
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

int once_effect_prepare(const once_handler_spec *handler, const once_parsed *from, once_arena *arena, void **input,
                        once_error *err)
{
    static char nothing; /* an item without input cannot run */
    assert(once_handler_runs(handler));
    if (handler->effect->prepare) return handler->effect->prepare(handler, from, arena, input, err);
    *input = &nothing;
    return ONCE_OK;
}

/* Every slot that may be called is there. */
static bool is_complete(const once_effect_driver *driver)
{
    const once_effect_driver_ops *ops = driver->ops;
    return ops->start && ops->kill && ops->tick && ops->close && (ops->ask || !once_handler_asks(driver->handler));
}

int once_effect_driver_open(struct once_runner *runner, const once_handler_spec *handler,
                            struct once_effect_driver **out, once_error *err)
{
    const once_effect_ops *effect = handler->effect;
    assert(once_handler_external(handler) && handler->slots > 0);
    assert(!effect->open == (effect->module != NULL));
    once_effect_open *open = effect->open;
    if (!open) {
        const void *part;
        const int rc = once_module_part_get(effect->module, "effect", effect->name, &part, err);
        if (rc != ONCE_OK) return rc;
        open = ((const once_effect_part *)part)->open;
    }
    const int rc = open(runner, handler, out, err);
    assert(rc != ONCE_OK || ((*out)->handler == handler && (*out)->runner == runner && is_complete(*out)));
    return rc;
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
