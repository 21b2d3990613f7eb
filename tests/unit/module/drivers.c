/* A module with an effect and a source, for test_modules.c. Neither opens anything: that the call arrives is enough. It
 * uses none of our functions, so the test program need not export any. */
#include <string.h>

#include "base/module.h"
#include "effect/effect.h"
#include "source/source.h"

static int say(once_error *err, const char *text)
{
    err->status = ONCE_E_UNAVAILABLE;
    memcpy(err->text, text, strlen(text) + 1);
    return ONCE_E_UNAVAILABLE;
}

static int open_effect(struct once_runner *runner, const once_handler_spec *handler, struct once_effect_driver **out,
                       once_error *err)
{
    (void)runner, (void)handler, (void)out;
    return say(err, "the module's effect was opened");
}

static int open_source(const once_spec *spec, const once_env *env, once_source_purpose purpose, once_cancel cancel,
                       once_source **out, once_error *err)
{
    (void)spec, (void)env, (void)purpose, (void)cancel, (void)out;
    return say(err, "the module's source was opened");
}

static const once_effect_part effect = {.open = open_effect};
static const once_source_ops source = {.open = open_source};

static const once_module_part parts[] = {
    {"effect", "remote", &effect},
    {"source", "queue", &source},
    {NULL, NULL, NULL},
};

ONCE_MODULE(drivers, parts);
