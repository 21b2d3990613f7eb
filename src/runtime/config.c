/* Loading a pipeline: the file, the handlers with what they inherit, and the rules between fields. */
#include "runtime/config.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/config_internal.h"

#include "base/banned.h"

static bool same(once_bytes x, once_bytes y) { return x.len == y.len && (x.len == 0 || memcmp(x.data, y.data, x.len) == 0); }

static bool is_text(once_bytes text, const char *word) { return same(text, (once_bytes){word, strlen(word)}); }

static int line_of(const once_node *map, const char *name)
{
    const once_node *node = once_node_member(map, name);
    return node ? node->line : map->line;
}

/* --- handlers ----------------------------------------------------------------------------------------------------- */

/* "handler 'payment.received'", or "'handler'". */
typedef struct label {
    char text[100];
} label;

static label label_of(const once_handler_spec *handler)
{
    label made;
    if (handler->type.len == 0)
        (void)snprintf(made.text, sizeof made.text, "'handler'");
    else
        (void)snprintf(made.text, sizeof made.text, "handler '%s'", once_config_show(handler->type).text);
    return made;
}

static void check_effect(once_config *config, const once_node *node, once_handler_spec *handler)
{
    static const char *const effects[] = {"sql", "dead", "http", "exec", "forward", "callback"};
    const once_node *first = NULL, *second = NULL;
    for (size_t i = 0; i < sizeof effects / sizeof effects[0]; i++) {
        const once_node *found = once_node_member(node, effects[i]);
        if (found && first)
            second = found;
        else if (found)
            first = found;
    }
    if (!first)
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "%s has no effect; write 'sql' or 'dead' in it",
                          label_of(handler).text);
    if (second)
        once_config_wrong(config, ONCE_E_CONFIG, second->name_line, "%s has two effects, '%s' and '%s'; keep one",
                          label_of(handler).text, first->name.data, second->name.data);
    handler->effect = first && is_text(first->name, "dead") ? ONCE_EFFECT_DEAD : ONCE_EFFECT_SQL;
    static const char *const of_sql[] = {"already", "rejected"};
    for (size_t i = 0; i < 2; i++) {
        const once_node *found = once_node_member(node, of_sql[i]);
        if (found && first && handler->effect == ONCE_EFFECT_DEAD)
            once_config_wrong(config, ONCE_E_CONFIG, found->name_line, "'%s' has no meaning with 'dead'; remove it", of_sql[i]);
    }
}

static void read_handler(once_config *config, const once_node *root, const once_node *node, once_bytes type,
                         const once_handler_spec *common, once_handler_spec *out)
{
    *out = *common;
    out->type = type;
    out->line = node->name_line;
    if (out->operation.len == 0) out->operation = type.len > 0 ? type : ONCE_BYTES("handler");
    if (node->kind != ONCE_NODE_MAP) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "%s must be a map, not %s; write 'sql' or 'dead' in it",
                          label_of(out).text, once_node_kind_text(node));
        return;
    }
    config->inherit = true;
    (void)once_config_read(config, &once__handler_scope, node, out);
    config->inherit = false;
    check_effect(config, node, out);
    if (!out->key && !once_node_member(node, "key") && !once_node_member(root, "key"))
        once_config_wrong(config, ONCE_E_CONFIG, node->name_line,
                          "%s has no key; add 'key: \"${/id}\"' to it, or at the top for all handlers", label_of(out).text);
}

/* Whether the file says the operation of this handler, or it follows from the type. */
static bool says_operation(const once_node *root, const once_node *node)
{
    return once_node_member(root, "operation") || once_node_member(node, "operation");
}

static bool same_fingerprint(const once_fingerprint_spec *x, const once_fingerprint_spec *y)
{
    if (x->kind != y->kind || x->n != y->n) return false;
    for (size_t i = 0; i < x->n; i++) {
        size_t k = 0;
        while (k < y->n && !same(x->fields[i].text, y->fields[k].text)) k++;
        if (k == y->n) return false;
    }
    return true;
}

/* Two handlers with one operation share keys: that must be said, and the keys must be made alike. */
static void check_shared(once_config *config, const once_node *root, const once_node *nodes[2], const once_handler_spec *pair[2])
{
    if (!same(pair[0]->operation, pair[1]->operation)) return;
    label first = label_of(pair[0]), second = label_of(pair[1]);
    once_config_shown operation = once_config_show(pair[0]->operation);
    if (!says_operation(root, nodes[0]) || !says_operation(root, nodes[1])) {
        once_config_wrong(config, ONCE_E_CONFIG, pair[1]->line,
                          "%s and %s have the same operation '%s'; say 'operation: %s' in both to share their keys, or change one",
                          first.text, second.text, operation.text, operation.text);
        return;
    }
    if (!pair[0]->key || !pair[1]->key) return;
    if (!same(once_template_text(pair[0]->key), once_template_text(pair[1]->key)) ||
        !same_fingerprint(&pair[0]->fingerprint, &pair[1]->fingerprint))
        once_config_wrong(config, ONCE_E_CONFIG, pair[1]->line,
                          "%s and %s share the operation '%s' but not 'key' and 'fingerprint'; make them equal, or change the operation",
                          first.text, second.text, operation.text);
}

static void check_all_shared(once_config *config, const once_node *root, const once_node *map, const once_handler_spec *handlers)
{
    size_t i = 0;
    for (const once_node *x = map->first; x; x = x->next, i++) {
        size_t k = 0;
        for (const once_node *y = map->first; y != x; y = y->next, k++) {
            const once_node *nodes[2] = {y, x};
            const once_handler_spec *pair[2] = {&handlers[k], &handlers[i]};
            size_t before = config->total;
            check_shared(config, root, nodes, pair);
            if (config->total > before) break; /* one complaint per handler */
        }
    }
}

static void read_handlers(once_config *config, const once_node *root, once__pipeline *pipeline)
{
    const once_node *map = pipeline->handlers;
    if (map->kind != ONCE_NODE_MAP || map->count == 0) {
        once_config_wrong(config, ONCE_E_CONFIG, map->line, "'handlers' must be a map by type, not %s; write 'TYPE:' and an effect under it",
                          map->kind == ONCE_NODE_MAP ? "an empty one" : once_node_kind_text(map));
        return;
    }
    once_handler_spec *handlers = once_arena_new(config->arena, once_handler_spec, map->count);
    if (!handlers) {
        config->nomem = true;
        return;
    }
    size_t i = 0;
    for (const once_node *node = map->first; node; node = node->next, i++) {
        (void)once__config_name(config, "a type in 'handlers'", node->name_line, node->name);
        read_handler(config, root, node, node->name, &pipeline->common, &handlers[i]);
    }
    check_all_shared(config, root, map, handlers);
    pipeline->spec.handlers = handlers;
    pipeline->spec.n_handlers = map->count;
}

static void read_any_handlers(once_config *config, const once_node *root, once__pipeline *pipeline)
{
    if (pipeline->handler && pipeline->handlers) {
        once_config_wrong(config, ONCE_E_CONFIG, pipeline->handler->name_line, "'handler' and 'handlers' exclude each other; keep one");
    } else if (pipeline->handlers) {
        if (!once_node_member(root, "type"))
            once_config_wrong(config, ONCE_E_CONFIG, pipeline->handlers->name_line,
                              "'handlers' needs 'type' to choose by; add 'type: \"${/type}\"', or use 'handler'");
        read_handlers(config, root, pipeline);
    } else if (pipeline->handler) {
        once_handler_spec *handler = once_arena_new(config->arena, once_handler_spec, 1);
        if (!handler) {
            config->nomem = true;
            return;
        }
        read_handler(config, root, pipeline->handler, (once_bytes){0}, &pipeline->common, handler);
        pipeline->spec.handlers = handler;
        pipeline->spec.n_handlers = 1;
    } else {
        once_config_wrong(config, ONCE_E_CONFIG, root->line,
                          "missing field 'handlers' in a pipeline; add 'handlers:' with a handler for each type, or 'handler:'");
    }
}

/* --- rules between fields ----------------------------------------------------------------------------------------- */

static void check_needs(once_config *config, const once_node *root, const char *name, const char *needed, const char *example)
{
    const once_node *node = once_node_member(root, name);
    if (node && !once_node_member(root, needed))
        once_config_wrong(config, ONCE_E_CONFIG, node->name_line, "'%s' needs '%s'; add '%s: %s', or remove it", name, needed, needed,
                          example);
}

static void check_source(once_config *config, const once_node *root, const once_spec *spec)
{
    const once_node *source = once_node_member(root, "source");
    if (!source || source->kind != ONCE_NODE_MAP) return;
    if (source->count == 0)
        once_config_wrong(config, ONCE_E_CONFIG, source->line, "'source' is empty; write 'file: {path: payments.ndjson}'");
    const once_node *file = once_node_member(source, "file");
    if (file && spec->source.follow && is_text(spec->source.path, "-"))
        once_config_wrong(config, ONCE_E_CONFIG, line_of(file, "follow"),
                          "'follow' is for files: standard input is read until it ends; remove it");
    if (file && spec->source.cursor && is_text(spec->source.path, "-"))
        once_config_wrong(config, ONCE_E_CONFIG, line_of(file, "cursor"),
                          "'cursor' is for files: standard input has no place to go on from; remove it");
}

static void check_coordinates(once_config *config, const once_node *map, const char *name, const once_template *template)
{
    if (template && once_node_member(map, name) && once_template_uses_coordinates(template))
        once_config_wrong(config, ONCE_E_CONFIG, line_of(map, name),
                          "'%s' uses ${coordinates}, but standard input has none that stay the same; use fields, or a file", name);
}

static void check_stdin(once_config *config, const once_node *root, const once__pipeline *pipeline)
{
    const once_spec *spec = &pipeline->spec;
    if (!is_text(spec->source.path, "-")) return;
    check_coordinates(config, root, "tenant", spec->tenant);
    check_coordinates(config, root, "key", pipeline->common.key);
    check_coordinates(config, root, "type", spec->type);
    check_coordinates(config, root, "order", spec->order);
    size_t i = 0;
    if (pipeline->handler && spec->n_handlers == 1) check_coordinates(config, pipeline->handler, "key", spec->handlers[0].key);
    if (!pipeline->handlers || spec->n_handlers != pipeline->handlers->count) return;
    for (const once_node *node = pipeline->handlers->first; node; node = node->next, i++)
        check_coordinates(config, node, "key", spec->handlers[i].key);
}

static void check_rules(once_config *config, const once_node *root, const once__pipeline *pipeline)
{
    check_needs(config, root, "version", "order", "\"${/order_id}\"");
    check_needs(config, root, "gap", "version", "\"${/version}\"");
    check_source(config, root, &pipeline->spec);
    check_stdin(config, root, pipeline);
}

/* --- loading ------------------------------------------------------------------------------------------------------ */

static once_spec *load(once_config *config, once_bytes text)
{
    const once_node *root = once_config_yaml(config, text);
    if (!root) return NULL;
    once__pipeline pipeline = {.spec = {.gap_ms = -1}};
    (void)once_config_read(config, &once__pipeline_scope, root, &pipeline);
    read_any_handlers(config, root, &pipeline);
    check_rules(config, root, &pipeline);

    pipeline.spec.inbox = pipeline.ack == ONCE__ACK_ACCEPTED;
    pipeline.spec.gap_dead = pipeline.gap_then == ONCE__GAP_DEAD;
    pipeline.spec.store_line = line_of(root, "store");
    pipeline.spec.source_line = line_of(root, "source");
    once_spec *spec = once_arena_new(config->arena, once_spec, 1);
    if (!spec || !once_arena_copy(config->arena, (once_bytes){config->file, strlen(config->file)}, &pipeline.spec.file)) {
        config->nomem = true;
        return NULL;
    }
    *spec = pipeline.spec;
    return spec;
}

int once_config_parse(const char *name, once_bytes text, once_arena *arena, once_config_report *report, void *user,
                      once_spec **out, once_error *err)
{
    assert(name && arena && out);
    once_config config;
    once_config_init(&config, arena, name);
    once_spec *spec = load(&config, text);
    int rc = once_config_finish(&config, report, user, err);
    if (rc != ONCE_OK) return rc;
    assert(spec && spec->n_handlers > 0);
    *out = spec;
    return ONCE_OK;
}

static int report_one(const char *path, once_config_report *report, void *user, once_error *err, const char *what, int error)
{
    once_error made = {0};
    const char *why = error != 0 ? strerrordesc_np(error) : NULL;
    int rc = once_fail(&made, ONCE_E_CONFIG, "%s: %s%s%s; check the path of the pipeline file", path, what, why ? ": " : "",
                       why ? why : "");
    if (report) report(user, made.text);
    return once_fail(err, rc, "%s", made.text);
}

/* The whole file, and one byte more than is allowed when it is too large. */
static int read_file(int fd, once_buf *buf)
{
    for (;;) {
        char chunk[16384];
        size_t room = ONCE_CONFIG_MAX + 1 - buf->len;
        ssize_t got = room == 0 ? 0 : read(fd, chunk, room < sizeof chunk ? room : sizeof chunk);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return errno;
        if (got == 0) return 0;
        if (!once_buf_append(buf, chunk, (size_t)got)) return ENOMEM;
    }
}

int once_config_load_all(const char *path, once_arena *arena, once_config_report *report, void *user, once_spec **out,
                         once_error *err)
{
    assert(path && arena && out);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) return report_one(path, report, user, err, "the file cannot be opened", errno);
    once_buf text;
    once_buf_init(&text, ONCE_CONFIG_MAX + 1);
    int error = read_file(fd, &text), rc;
    (void)close(fd);
    if (error == ENOMEM)
        rc = once_fail(err, ONCE_E_NOMEM, "out of memory while reading '%s'", path);
    else if (error != 0)
        rc = report_one(path, report, user, err, "the file cannot be read", error);
    else
        rc = once_config_parse(path, once_buf_bytes(&text), arena, report, user, out, err);
    once_buf_release(&text);
    return rc;
}

int once_config_load(const char *path, once_arena *arena, once_spec **out, once_error *err)
{
    return once_config_load_all(path, arena, NULL, NULL, out, err);
}

/* --- what must not change under a store --------------------------------------------------------------------------- */

static int compare_bytes(const void *a, const void *b)
{
    const once_bytes *x = a, *y = b;
    size_t len = x->len < y->len ? x->len : y->len;
    int order = len > 0 ? memcmp(x->data, y->data, len) : 0;
    if (order != 0) return order;
    return x->len == y->len ? 0 : x->len < y->len ? -1 : 1;
}

static bool fingerprint_text(const once_fingerprint_spec *fingerprint, once_arena *arena, once_buf *out)
{
    if (fingerprint->kind != ONCE_FINGERPRINT_FIELDS)
        return once_buf_puts(out, fingerprint->kind == ONCE_FINGERPRINT_BODY ? "\"body\"" : "\"none\"");
    once_bytes *fields = once_arena_new(arena, once_bytes, fingerprint->n);
    if (!fields) return false;
    for (size_t i = 0; i < fingerprint->n; i++) fields[i] = fingerprint->fields[i].text;
    if (fingerprint->n > 1) qsort(fields, fingerprint->n, sizeof *fields, compare_bytes);
    for (size_t i = 0; i < fingerprint->n; i++) {
        once_buf_puts(out, i == 0 ? "[" : ",");
        once_buf_json(out, fields[i]);
    }
    return once_buf_puts(out, "]");
}

/* {"key":"${/id}","fingerprint":"body","tenant":"${header:tenant}"} */
static bool scope_text(const once_spec *spec, const once_handler_spec *handler, once_arena *arena, once_bytes *out)
{
    once_buf text;
    once_buf_init(&text, (size_t)1 << 22);
    once_buf_puts(&text, "{\"key\":");
    once_buf_json(&text, once_template_text(handler->key));
    once_buf_puts(&text, ",\"fingerprint\":");
    bool ok = fingerprint_text(&handler->fingerprint, arena, &text);
    if (spec->tenant) {
        once_buf_puts(&text, ",\"tenant\":");
        once_buf_json(&text, once_template_text(spec->tenant));
    }
    once_buf_puts(&text, "}");
    ok = ok && !text.failed && once_arena_copy(arena, once_buf_bytes(&text), out);
    once_buf_release(&text);
    return ok;
}

int once_config_scope_each(const once_spec *spec, once_arena *arena, once_config_scope_visit *visit, void *user,
                           once_error *err)
{
    assert(spec && arena && visit);
    for (size_t i = 0; i < spec->n_handlers; i++) {
        const once_handler_spec *handler = &spec->handlers[i];
        if (once_spec_handler_by_operation(spec, handler->operation) != handler) continue; /* shared: said by the first */
        once_bytes text;
        if (!scope_text(spec, handler, arena, &text)) return once_fail(err, ONCE_E_NOMEM, "out of memory");
        if (!visit(user, handler->operation, text)) return ONCE_OK;
    }
    return ONCE_OK;
}
