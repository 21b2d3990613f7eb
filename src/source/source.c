/* The list of sources, the field `source` of the pipeline file, and the calls that go to any source. */
#include "source/source.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/module.h"
#include "source/source_list.h"

#include "base/banned.h"

#define ENTRY(name) &once__source_##name,
static const once_source_kind *const built_in[] = {ONCE_SOURCE_MAP(ENTRY)};

#ifdef ONCE_TEST_BUILD
static const once_source_kind *const *replaced;
static size_t n_replaced;

void once__source_list_replace(const once_source_kind *const *list, size_t n)
{
    assert(!list == (n == 0));
    replaced = list;
    n_replaced = n;
}
#endif

const once_source_kind *const *once_source_list(size_t *n)
{
#ifdef ONCE_TEST_BUILD
    *n = n_replaced;
    if (replaced) return replaced;
#endif
    *n = sizeof built_in / sizeof *built_in;
    return built_in;
}

/* What would be called is there. */
static bool is_complete(const once_source *source)
{
    const once_source_ops *ops = source->ops;
    const unsigned bits = ops->bits(source);
    const bool cursor = once_spec_keeps_cursor(source->spec);
    return !ops->seek == !ops->keep && (ops->seek || !cursor) && cursor == ((bits & ONCE_SOURCE_CURSOR) != 0) &&
           (ops->extend || !(bits & ONCE_SOURCE_EXPIRES)) && (ops->release || !(bits & ONCE_SOURCE_ASSIGNS));
}

int once_source_open(const once_spec *spec, const once_env *env, once_source_purpose purpose, once_source **out,
                     once_error *err)
{
    const once_source_kind *kind = spec->source.kind;
    assert(kind && !kind->ops == (kind->module != NULL));
    const void *part = kind->ops;
    const int rc = part ? ONCE_OK : once_module_part_get(kind->module, "source", kind->name, &part, err);
    if (rc != ONCE_OK) return rc;
    const int opened = ((const once_source_ops *)part)->open(spec, env, purpose, out, err);
    assert(opened != ONCE_OK || is_complete(*out));
    return opened;
}

/* --- the field `source` ------------------------------------------------------------------------------------------- */

#define LATER(field)                                                                                                   \
    {                                                                                                                  \
        .name = field, .type = ONCE_CONFIG_LATER, .plural = "sources", .instead = "use 'file: {path: ...}'"            \
    }

/* Sources that are announced. A driver that is built takes its name out of here. */
static const once_config_field later[] = {
    LATER("http"), LATER("rabbitmq"), LATER("sqs"), LATER("servicebus"), LATER("redis"), LATER("nats"),
};

static const once_config_field *field_of_source(size_t i, void *out, void **place)
{
    size_t n;
    const once_source_kind *const *sources = once_source_list(&n);
    if (i >= n) return NULL;
    if (out) *place = ((once_source_fields *)out)->own[i];
    return &sources[i]->field;
}

const once_config_section once_source_section = {
    .name = "'source'",
    .title = "source",
    .text = "Where messages come from: one of these.",
    .fields = later,
    .n = sizeof later / sizeof *later,
    .brought = field_of_source,
};

bool once_source_fields_make(once_config *config, once_source_fields *out)
{
    size_t n;
    const once_source_kind *const *sources = once_source_list(&n);
    void **own = once_arena_new(config->arena, void *, n);
    for (size_t i = 0; own && i < n; i++) {
        own[i] = once_arena_alloc(config->arena, sources[i]->size);
        if (own[i]) memset(own[i], 0, sources[i]->size);
        else own = NULL;
    }
    out->own = own;
    if (!own) config->nomem = true;
    return own;
}

/* The source that a node of the map names, and its place in the list; NULL: none. */
static const once_source_kind *named_by(const once_node *node, size_t *at)
{
    size_t n;
    const once_source_kind *const *sources = once_source_list(&n);
    for (*at = 0; node && *at < n; ++*at) {
        const char *name = sources[*at]->name;
        if (strlen(name) == node->name.len && memcmp(name, node->name.data, node->name.len) == 0) return sources[*at];
    }
    return NULL;
}

const char *const *once_source_names(const once_node *map)
{
    static const char *const none[] = {NULL};
    size_t at;
    const once_source_kind *source = named_by(map && map->kind == ONCE_NODE_MAP ? map->first : NULL, &at);
    if (!source) return NULL;
    return source->names ? source->names : none;
}

void once_source_choose(once_config *config, const once_node *map, const once_source_fields *fields,
                        once_source_spec *out)
{
    assert(map->kind == ONCE_NODE_MAP && fields->own);
    const once_node *node = map->first;
    size_t n, i, k;
    if (!node) {
        const once_source_kind *first = once_source_list(&n)[0];
        once_config_wrong(config, ONCE_E_CONFIG, map->line, "'source' is empty; write '%s: %s'", first->name,
                          first->field.example);
        return;
    }
    const once_source_kind *chosen = named_by(node, &i), *second = named_by(node->next, &k);
    if (chosen && second) {
        once_config_wrong(config, ONCE_E_CONFIG, node->next->name_line,
                          "'source' has two sources, '%s' and '%s'; keep one", chosen->name, second->name);
        return;
    }
    if (!chosen || node->kind != ONCE_NODE_MAP) return; /* reading the map has reported it */
    out->kind = chosen;
    out->own = fields->own[i];
    out->kind->conclude(out);
    if (!out->unstable) out->bits |= ONCE_SOURCE_STABLE;
    if (out->kind->check) out->kind->check(config, node, out);
}

void once_source_doubts(const once_source_spec *source, bool shared, once_source_warning *warn, void *user)
{
    if (source->kind->doubts) source->kind->doubts(source, shared, warn, user);
}

void once_source_secrets(const once_source_spec *source, once_secret_visit *visit, void *user)
{
    if (source->kind->secrets) source->kind->secrets(source, visit, user);
}

void once_source_exposed(const once_source_spec *source, once_source_warning *warn, void *user)
{
    if (source->kind->exposed) source->kind->exposed(source, warn, user);
}
