/* The list of sources, the field `source` of the pipeline file, and the calls that go to any source. */
#include "source/source.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
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

int once_source_open(const once_spec *spec, const once_env *env, once_source_purpose purpose, once_cancel cancel,
                     once_source **out, once_error *err)
{
    const once_source_kind *kind = spec->source.kind;
    assert(kind && !kind->ops == (kind->module != NULL));
    const void *part = kind->ops;
    const int rc = part ? ONCE_OK : once_module_part_get(kind->module, "source", kind->name, &part, err);
    if (rc != ONCE_OK) return rc;
    const int opened = ((const once_source_ops *)part)->open(spec, env, purpose, cancel, out, err);
    assert(opened != ONCE_OK || is_complete(*out));
    return opened;
}

/* --- the field `source` ------------------------------------------------------------------------------------------- */

#define LATER(field)                                                                                                   \
    {                                                                                                                  \
        .name = field, .type = ONCE_CONFIG_LATER, .plural = "sources", .instead = "use 'file: {path: ...}'"            \
    }

enum { BODY_JSON, BODY_BYTES };
static const once_config_word body_words[] = {[BODY_JSON] = {"json", NULL}, [BODY_BYTES] = {"bytes", NULL}, {0}};
static const once_config_word tombstones_words[] = {[ONCE_TOMBSTONES_DEAD] = {"dead", NULL},
                                                    [ONCE_TOMBSTONES_SKIP] = {"skip", NULL},
                                                    [ONCE_TOMBSTONES_RUN] = {"run", NULL},
                                                    {0}};

/* The fields of every source, and sources that are announced. A driver that is built takes its name out of here. */
static const once_config_field fields_of_all[] = {
    {.name = "body",
     .type = ONCE_CONFIG_WORD,
     ONCE_CONFIG_AT(once_source_fields, body),
     .words = body_words,
     .standard = "json",
     .text = "What the body of a message is. `json`: anything else becomes a dead letter. `bytes`: any bytes, which "
             "reach the effect unchanged; see below."},
    {.name = "tombstones",
     .type = ONCE_CONFIG_WORD,
     ONCE_CONFIG_AT(once_source_fields, tombstones),
     .words = tombstones_words,
     .standard = "dead",
     .text = "What happens to a message without a body, such as a Kafka tombstone (a message with an empty body is "
             "none). `dead`: it becomes a dead letter. `skip`: it is acked and counted as skipped. `run`: it is "
             "handled like any other, without a body; see below."},
    LATER("http"),
    LATER("servicebus"),
    LATER("redis"),
    LATER("nats"),
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
    .text =
        "Where messages come from: one source, and what holds for every source.\n"
        "\n"
        "With `body: bytes` a body has no fields. So templates and statements that name one, a `fingerprint` with\n"
        "fields and a `headers` pointer are refused. The key is made of `${header:NAME}`, `${source:NAME}`,\n"
        "`${coordinates}` or `${hash}`; see idempotency-keys.md. `${hash}` and the fingerprint are those of the "
        "bytes.\n"
        "The effect gets the bytes as they came: `sql` as the parameter `:once_body` (a BLOB in SQLite, `bytea` in\n"
        "PostgreSQL), a command on its standard input, a process of `mode: stream` as base64 in `body_base64`,\n"
        "a C function as they are. Changing `body` changes what is compared, so it is refused in a store that was\n"
        "used before, until it is confirmed (`--confirm-scope-change`).\n"
        "\n"
        "With `tombstones: run`, a message without a body has no fields either: a template or parameter that needs "
        "one\n"
        "makes it a dead letter, and `${hash}` does, too. `:once_body` is NULL, `:{/field?}` is NULL, a command gets "
        "an\n"
        "empty standard input and `ONCE_TOMBSTONE=1`, a process of `mode: stream` `\"tombstone\":true` and no body,\n"
        "a C function `no_body`.",
    .example = "source:\n"
               "  file: {path: frames.txt}\n"
               "  body: bytes\n",
    .fields = fields_of_all,
    .n = sizeof fields_of_all / sizeof *fields_of_all,
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

/* The members of the map that name a source: the first two, and how many there are. */
typedef struct naming {
    const once_node *node[2];
    size_t at[2]; /* in the list */
    size_t n;
    bool others; /* the map also has members that are neither a source nor a field of every source */
} naming;

static bool is_of_all(const once_node *node)
{
    const char *name = node->name.data;
    return strcmp(name, "body") == 0 || strcmp(name, "tombstones") == 0;
}

static naming find_named(const once_node *map)
{
    naming found = {0};
    for (const once_node *node = map && map->kind == ONCE_NODE_MAP ? map->first : NULL; node; node = node->next) {
        size_t at;
        if (!named_by(node, &at)) {
            found.others |= !is_of_all(node);
            continue;
        }
        if (found.n < 2) found.node[found.n] = node, found.at[found.n] = at;
        found.n++;
    }
    return found;
}

const char *const *once_source_names(const once_node *map)
{
    static const char *const none[] = {NULL};
    size_t n;
    const naming found = find_named(map);
    if (found.n == 0) return NULL;
    const once_source_kind *source = once_source_list(&n)[found.at[0]];
    return source->names ? source->names : none;
}

const char *once_source_order(const once_node *map)
{
    size_t n;
    const naming found = find_named(map);
    const once_source_kind *source = found.n ? once_source_list(&n)[found.at[0]] : NULL;
    return source && source->order && found.node[0]->kind == ONCE_NODE_MAP ? source->order(found.node[0]) : NULL;
}

bool once_source_gives_bytes(const once_node *map)
{
    const once_node *body = map && map->kind == ONCE_NODE_MAP ? once_node_member(map, "body") : NULL;
    return body && body->kind == ONCE_NODE_SCALAR &&
           once_bytes_equal(body->text, once_bytes_of(body_words[BODY_BYTES].name));
}

/* The chosen source knows its own fields. What follows for it from the fields of every source is said here. */
static void check_bytes(once_config *config, const once_node *own, const once_source_spec *source)
{
    const once_node *headers = once_node_member(own, "headers");
    if (!source->bytes || !headers || source->headers.text.len == 0) return;
    once_config_wrong(config, ONCE_E_CONFIG, headers->name_line,
                      "'headers' names a field of the body, and with 'body: bytes' a body has no fields; remove it");
}

void once_source_choose(once_config *config, const once_node *map, const once_source_fields *fields,
                        once_source_spec *out)
{
    assert(map->kind == ONCE_NODE_MAP && fields->own);
    size_t n;
    const once_source_kind *const *sources = once_source_list(&n);
    const naming found = find_named(map);
    if (found.n == 0 && !found.others) {
        once_config_wrong(config, ONCE_E_CONFIG, map->line, "'source' %s; write '%s: %s'",
                          map->first ? "names no source" : "is empty", sources[0]->name, sources[0]->field.example);
        return;
    }
    if (found.n > 1) {
        once_config_wrong(config, ONCE_E_CONFIG, found.node[1]->name_line,
                          "'source' has two sources, '%s' and '%s'; keep one", sources[found.at[0]]->name,
                          sources[found.at[1]]->name);
        return;
    }
    if (found.n == 0 || found.node[0]->kind != ONCE_NODE_MAP) return; /* reading the map has reported it */
    out->kind = sources[found.at[0]];
    out->own = fields->own[found.at[0]];
    out->bytes = fields->body == BODY_BYTES;
    out->tombstones = (once_tombstones)fields->tombstones;
    out->kind->conclude(out);
    if (!out->unstable) out->bits |= ONCE_SOURCE_STABLE;
    check_bytes(config, found.node[0], out);
    if (out->kind->check) out->kind->check(config, found.node[0], out);
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
