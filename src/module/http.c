/* The module `http`: the effect. With libcurl. */
#include "base/module.h"
#include "effect/effect.h"
#include "effect/http/client.h"

#include "base/banned.h"

static const once_effect_part effect = {.open = once__http_open};

static const once_module_part parts[] = {
    {"effect", "http", &effect},
    {NULL, NULL, NULL},
};

ONCE_MODULE(http, parts);
