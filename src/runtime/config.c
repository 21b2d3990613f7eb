/* Loads a pipeline file, checks the rules between its fields, and describes how its keys are made. */
#include "runtime/config.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/beside.h"
#include "base/no_memory.h"
#include "runtime/config_internal.h"
#include "runtime/config_preset.h"

#include "base/banned.h"

/* --- rules between fields ----------------------------------------------------------------------------------------- */

static void check_needs(once_config *config, const once_node *root, const char *name, const char *needed,
                        const char *example)
{
    const once_node *node = once_node_member(root, name);
    if (node && !once_node_member(root, needed))
        once_config_wrong(config, ONCE_E_CONFIG, node->name_line, "'%s' needs '%s'; add '%s: %s', or remove '%s'", name,
                          needed, needed, example, name);
}

/* The first name of ${source:NAME} that may be another at the next delivery; NULL: none. */
static const char *varying_name(const once_source_kind *kind, const once_template *template)
{
    const once_placeholder *place;
    for (size_t at = 0; kind && kind->varying && (place = once_template_next(template, &at));)
        for (const char *const *each = kind->varying; place->kind == ONCE_PLACE_SOURCE && *each; each++)
            if (once_bytes_equal(place->name, once_bytes_of(*each))) return *each;
    return NULL;
}

/* What decides about a message must be the same at each delivery. */
static void check_use(once_config *config, const once_node *map, const char *name, const once_template *template,
                      const once_source_spec *source)
{
    if (!template || !once_node_member(map, name)) return;
    if (source->unstable && once_template_uses(template, ONCE_PLACE_COORDINATES))
        once_config_wrong(config, ONCE_E_CONFIG, once__line_of(map, name), "'%s' uses ${coordinates}, but %s", name,
                          source->unstable);
    const char *varying = varying_name(source->kind, template);
    if (varying)
        once_config_wrong(config, ONCE_E_CONFIG, once__line_of(map, name),
                          "'%s' uses ${source:%s}, which is not the same at each delivery; only effects may use it",
                          name, varying);
}

static void check_stable(once_config *config, const once_node *root, const once_config_pipeline *pipeline)
{
    const once_spec *spec = &pipeline->spec;
    const once_source_spec *source = &spec->source;
    check_use(config, root, "tenant", spec->tenant, source);
    check_use(config, root, "key", pipeline->common.spec.key, source);
    check_use(config, root, "type", spec->type, source);
    check_use(config, root, "order", spec->order, source);
    check_use(config, root, "version", spec->version, source);
    check_use(config, root, "time", spec->time, source);
    size_t i = 0;
    if (pipeline->handler && spec->n_handlers == 1)
        check_use(config, pipeline->handler, "key", spec->handlers[0].key, source);
    if (!pipeline->handlers || spec->n_handlers != pipeline->handlers->count) return;
    for (const once_node *node = pipeline->handlers->first; node; node = node->next, i++)
        check_use(config, node, "key", spec->handlers[i].key, source);
}

static void check_locks(once_config *config, const once_node *root, const once_spec *spec)
{
    const once_node *locks = once_node_member(root, "locks");
    for (size_t i = 0; i < spec->n_handlers && locks; i++)
        if (once_handler_inside(&spec->handlers[i])) return;
    if (locks && spec->n_handlers)
        once_config_wrong(config, ONCE_E_CONFIG, locks->name_line,
                          "'locks' is for 'sql' in the store's own database, and no handler has that; remove it");
}

/* The attributes of these events are fields of the body. */
static void check_preset(once_config *config, const once_node *root, const once_spec *spec)
{
    if (spec->events == ONCE_EVENT_EVENTBRIDGE && config->no_fields)
        once_config_wrong(config, ONCE_E_CONFIG, once__line_of(root, "preset"),
                          "'preset: eventbridge' reads the body, and with 'body: bytes' it has no fields; say "
                          "'body: json'");
}

static void check_rules(once_config *config, const once_node *root, const once_config_pipeline *pipeline)
{
    check_needs(config, root, "version", "order", "\"${/order_id}\"");
    check_needs(config, root, "gap", "version", "\"${/version}\"");
    check_needs(config, root, "on_dead", "order", "\"${/order_id}\"");
    check_locks(config, root, &pipeline->spec);
    check_stable(config, root, pipeline);
    check_preset(config, root, &pipeline->spec);
}

/* --- loading ------------------------------------------------------------------------------------------------------ */

/* The root with the `order` that goes with the source, if it has none itself. NULL: out of memory. */
static const once_node *add_order(once_config *config, const once_node *root, const once_node *source)
{
    const char *order = once_source_order(source);
    if (!order || once_node_member(root, "order")) return root;
    once_node *made = once_arena_new(config->arena, once_node, 2);
    if (made) {
        made[0] = *root;
        made[0].first = &made[1];
        made[0].count++;
        made[1] = (once_node){.kind = ONCE_NODE_SCALAR,
                              .line = source->line,
                              .name_line = source->line,
                              .name = ONCE_BYTES("order"),
                              .text = once_bytes_of(order),
                              .next = root->first};
    }
    config->nomem |= !made;
    return made;
}

static once_spec *load(once_config *config, once_bytes text)
{
    const once_node *root = once_config_yaml(config, text);
    if (!root) return NULL;
    once_config_pipeline pipeline = {.spec = {.gap_ms = -1},
                                     .common = {.spec = {.bits = ONCE_EFFECT_RUNS}}}; /* until the effect is known */
    root = once__preset_apply(config, root, &pipeline.spec);
    if (!root || !once_source_fields_make(config, &pipeline.source)) return NULL;
    const once_node *source = once_node_member(root, "source");
    config->source_names = once_source_names(source); /* before the first template is read */
    config->no_fields = once_source_gives_bytes(source);
    root = add_order(config, root, source);
    if (!root) return NULL;
    (void)once_config_read(config, &once__pipeline_section, root, &pipeline);
    if (source && source->kind == ONCE_NODE_MAP)
        once_source_choose(config, source, &pipeline.source, &pipeline.spec.source);
    once__config_handlers(config, root, &pipeline);
    check_rules(config, root, &pipeline);

    pipeline.spec.timeout_ms = pipeline.common.spec.timeout_ms;
    pipeline.spec.inbox = pipeline.ack == ONCE__ACK_ACCEPTED;
    pipeline.spec.block = pipeline.on_dead == ONCE__DEAD_BLOCK;
    pipeline.spec.time_unit = (once_time_unit)pipeline.time_unit;
    pipeline.spec.gap_dead = pipeline.gap_then == ONCE__GAP_DEAD;
    pipeline.spec.store_line = once__line_of(root, "store");
    pipeline.spec.source.line = once__line_of(root, "source");
    pipeline.spec.source.named = config->names_source;
    once_spec *spec = once_arena_new(config->arena, once_spec, 1);
    if (!spec ||
        !once_arena_copy(config->arena, (once_bytes){config->file, strlen(config->file)}, &pipeline.spec.file)) {
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
    assert(spec && spec->n_handlers > 0 && spec->source.kind);
    *out = spec;
    return ONCE_OK;
}

static int report_one(const char *path, once_config_report *report, void *user, once_error *err, const char *what,
                      int error)
{
    once_error made = {0};
    const char *why = error != 0 ? strerrordesc_np(error) : NULL;
    int rc = once_fail(&made, ONCE_E_CONFIG, "%s: %s%s%s; check the path of the pipeline file", path, what,
                       why ? ": " : "", why ? why : "");
    if (report) report(user, made.text);
    return once_fail(err, rc, "%s", made.text);
}

/* The whole file or, if it is too large, one byte more than is allowed. */
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
    once_close_beside(NULL, fd); /* the program may have a store open, and have named it here by mistake */
    if (error == ENOMEM) rc = once_no_memory(err, "while reading '%s'", path);
    else if (error != 0) rc = report_one(path, report, user, err, "the file cannot be read", error);
    else rc = once_config_parse(path, once_buf_bytes(&text), arena, report, user, out, err);
    once_buf_release(&text);
    return rc;
}

int once_config_load(const char *path, once_arena *arena, once_spec **out, once_error *err)
{
    return once_config_load_all(path, arena, NULL, NULL, out, err);
}

/* --- how keys are made, which must not change under a store --- */

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
        return once_buf_puts(out, fingerprint->kind == ONCE_FINGERPRINT_NONE ? "\"none\"" : "\"body\"");
    assert(fingerprint->n > 0);
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

/* Whether the preset decides what the key is made of. An SNS envelope is replaced by what is in it. Stores have the
 * texts of older versions, which knew CloudEvents only. */
static bool reads_events(const once_spec *spec, const once_handler_spec *handler)
{
    if (spec->events == ONCE_EVENT_NONE || spec->events == ONCE_EVENT_CLOUDEVENTS) return false;
    return spec->events == ONCE_EVENT_SNS || once_template_uses(handler->key, ONCE_PLACE_EVENT) ||
           (spec->tenant && once_template_uses(spec->tenant, ONCE_PLACE_EVENT));
}

/* {"key":"${/id}","fingerprint":"body","tenant":"${header:tenant}"}; where bodies are bytes, also "body":"bytes",
 * because ${hash} and the fingerprint are other ones then; and "preset":"sns", where a preset decides what they are. */
static bool operation_text(const once_spec *spec, const once_handler_spec *handler, once_arena *arena, once_bytes *out)
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
    if (spec->source.bytes) once_buf_puts(&text, ",\"body\":\"bytes\"");
    if (reads_events(spec, handler)) once_buf_printf(&text, ",\"preset\":\"%s\"", spec->preset->name);
    once_buf_puts(&text, "}");
    ok = ok && !text.failed && once_arena_copy(arena, once_buf_bytes(&text), out);
    once_buf_release(&text);
    return ok;
}

int once_config_each_operation(const once_spec *spec, once_arena *arena, once_config_operation_visit *visit, void *user,
                               once_error *err)
{
    assert(spec && arena && visit);
    for (size_t i = 0; i < spec->n_handlers; i++) {
        const once_handler_spec *handler = &spec->handlers[i];
        if (once_spec_handler_by_operation(spec, handler->operation) != handler)
            continue; /* shared with an earlier handler, which was visited */
        once_bytes text;
        if (!operation_text(spec, handler, arena, &text)) return once_no_memory(err, "for an operation");
        if (!visit(user, handler->operation, text)) return ONCE_OK;
    }
    return ONCE_OK;
}
