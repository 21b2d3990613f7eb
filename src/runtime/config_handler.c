/* Reads the handlers of a pipeline: what each inherits, its one effect, which fields fit that effect, and which keys
 * handlers share. */
#include <assert.h>
#include <stdio.h>

#include "base/duration.h"
#include "core/flight.h"
#include "effect/effect.h"
#include "runtime/config_internal.h"
#include "store/store.h"

#include "base/banned.h"

/* "handler 'payment.received'", or "'handler'". */
typedef struct label {
    char text[160];
} label;

static label label_of(const once_handler_spec *handler)
{
    label made;
    if (handler->type.len == 0) (void)snprintf(made.text, sizeof made.text, "'handler'");
    else (void)snprintf(made.text, sizeof made.text, "handler '%s'", once_config_show(handler->type).text);
    return made;
}

/* --- the effect --------------------------------------------------------------------------------------------------- */

/* Appends the i-th of n names in a sentence: "'sql'", ", 'exec'", " or 'dead'". */
static void add_name(label *to, size_t i, size_t n, const char *last, const char *name)
{
    assert(i < n && name[0]);
    const size_t len = strlen(to->text);
    (void)snprintf(to->text + len, sizeof to->text - len, "%s'%s'", i == 0 ? "" : i + 1 < n ? ", " : last, name);
}

/* "write 'sql', 'exec' or 'dead' in it" */
static label write_effect(void)
{
    label made = {"write "};
    size_t n;
    const once_effect_ops *const *effects = once_effect_list(&n);
    for (size_t i = 0; i < n; i++) add_name(&made, i, n, " or ", effects[i]->name);
    const size_t len = strlen(made.text);
    (void)snprintf(made.text + len, sizeof made.text - len, " in it");
    return made;
}

/* From here on the fields of the effect are read, into `own`. */
static void choose_effect(once_config *config, once__handler *handler, const once_effect_ops *effect)
{
    assert(!handler->spec.effect && effect->size > 0);
    void *own = once_arena_alloc(config->arena, effect->size);
    if (!own) {
        config->nomem = true;
        return;
    }
    if (effect->standard) memcpy(own, effect->standard, effect->size);
    else memset(own, 0, effect->size);
    handler->own = own;
    handler->spec.own = own;
    handler->spec.effect = effect;
    handler->spec.bits = effect->bits;
}

/* The i-th effect that a pipeline file may name; *here is NULL when this build does not have it. NULL: no more. */
static const char *effect_name(size_t i, const once_effect_ops **here)
{
    size_t n;
    const once_effect_ops *const *effects = once_effect_list(&n);
    *here = i < n ? effects[i] : NULL;
    if (*here) return effects[i]->name;
    for (size_t k = 0; k < once__handler_section.n; k++) {
        const once_config_field *field = &once__handler_section.fields[k];
        const bool effect = field->type == ONCE_CONFIG_LATER && field->plural;
        if (effect && n++ == i) return field->name;
    }
    return NULL;
}

/* The fields of a handler that name an effect: there must be exactly one. */
typedef struct naming {
    const once_node *first, *second; /* NULL: there is none */
} naming;

/* With none, with two, or with one that this build does not have, the handler gets no effect, and no field of an effect
 * is read. */
static naming find_effect(once_config *config, const once_node *node, once__handler *handler)
{
    naming found = {NULL, NULL};
    const once_effect_ops *chosen = NULL, *here;
    const char *name;
    for (size_t i = 0; (name = effect_name(i, &here)); i++) {
        const once_node *member = once_node_member(node, name);
        if (!member) continue;
        if (found.first) found.second = member;
        else found.first = member, chosen = here;
    }
    if (chosen && !found.second) choose_effect(config, handler, chosen);
    return found;
}

static void check_one_effect(once_config *config, const once_node *node, const once_handler_spec *handler, naming found)
{
    const label who = label_of(handler);
    if (!found.first)
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "%s has no effect; %s", who.text, write_effect().text);
    if (found.second)
        once_config_wrong(config, ONCE_E_CONFIG, found.second->name_line, "%s has two effects, '%s' and '%s'; keep one",
                          who.text, found.first->name.data, found.second->name.data);
}

/* The line of a field that a handler has or inherits; 0: neither has it. */
static int line_of(const once_node *root, const once_node *node, const char *field)
{
    const once_node *own = node->kind == ONCE_NODE_MAP ? once_node_member(node, field) : NULL;
    const once_node *found = own ? own : once_node_member(root, field);
    return found ? found->name_line : 0;
}

/* The same; `http` may have it among its own fields. */
static int line_of_timeout(const once_node *root, const once_node *node, const once_effect_ops *effect)
{
    const once_node *own = effect ? once_node_member(node, effect->name) : NULL;
    const once_node *found = own && own->kind == ONCE_NODE_MAP ? once_node_member(own, "timeout") : NULL;
    return found ? found->name_line : line_of(root, node, "timeout");
}

static void misfit(once_config *config, const once_node *node, const char *field, const char *why)
{
    const once_node *found = once_node_member(node, field);
    if (found) once_config_wrong(config, ONCE_E_CONFIG, found->name_line, "'%s' %s; remove it", field, why);
}

static bool has_field(const once_effect_ops *effect, const char *name)
{
    for (size_t i = 1; i < effect->n_fields; i++)
        if (strcmp(effect->fields[i].name, name) == 0) return true;
    return false;
}

/* Why a field does not fit this effect: what the effect itself says, otherwise "is for 'sql' and 'exec'". Empty: no
 * other effect has the field. */
static label why_not(const once_effect_ops *effect, const char *name)
{
    label made = {""};
    size_t n, have = 0, i = 0;
    const once_effect_ops *const *effects = once_effect_list(&n);
    for (size_t k = 0; k < n; k++) have += has_field(effects[k], name);
    if (have == 0) return made;
    (void)snprintf(made.text, sizeof made.text, "is for ");
    for (size_t k = 0; k < n; k++)
        if (has_field(effects[k], name)) add_name(&made, i++, have, " and ", effects[k]->name);
    for (const once_effect_misfit *m = effect->misfits; m && m->field; m++)
        if (strcmp(m->field, name) == 0) (void)snprintf(made.text, sizeof made.text, "%s", m->why);
    return made;
}

/* Reports fields of other effects, and common fields that have no meaning with this one. */
static void check_fit(once_config *config, const once_node *node, const once_handler_spec *handler)
{
    char why[160];
    for (const once_node *member = node->first; member; member = member->next) {
        if (has_field(handler->effect, member->name.data)) continue;
        const label reason = why_not(handler->effect, member->name.data);
        if (reason.text[0]) misfit(config, node, member->name.data, reason.text);
    }
    if ((handler->effect->bits & (ONCE_EFFECT_RUNS | ONCE_EFFECT_OUTSIDE)) !=
        ONCE_EFFECT_RUNS) /* otherwise the effect itself checks it */
        misfit(config, node, "locks", "is for 'sql' in the store's own database");
    (void)snprintf(why, sizeof why, "has no meaning with '%s'%s", handler->effect->name,
                   once_handler_runs(handler) ? ": effects in the store's own database are never unknown" : "");
    if (!once_handler_runs(handler)) misfit(config, node, "natural", why);
    if (!once_handler_external(handler)) misfit(config, node, "unknown", why);
    if (!once_handler_external(handler))
        misfit(config, node, "then",
               once_handler_runs(handler)
                   ? "is for effects outside of the store: this one commits with its outcome, so "
                     "write these statements behind the others in 'sql'"
                   : "has no meaning without an effect");
    if (!once_handler_external(handler)) misfit(config, node, "breaker", "is for effects outside of the store");
    if (!once_handler_external(handler)) misfit(config, node, "workers", "is for effects outside of the store");
    if (!once_handler_runs(handler)) misfit(config, node, "dead_limit", why);
    if (!once_handler_runs(handler)) misfit(config, node, "rate", why);
    const once_node *retry = once_node_member(node, "retry");
    const once_node *on = retry && retry->kind == ONCE_NODE_MAP ? once_node_member(retry, "on") : NULL;
    if (on && once_handler_runs(handler) && !(handler->bits & ONCE_EFFECT_FAULTS))
        once_config_wrong(config, ONCE_E_CONFIG, on->name_line,
                          "'on' names faults of statements, and is for 'sql'; remove it");
}

/* A lease must be long enough to be extended while the effect runs; core/flight.h derives the limits. */
static void check_lease(once_config *config, const once_node *root, const once_node *node, once_bytes store_url,
                        const once_handler_spec *handler)
{
    char lease[ONCE_DURATION_TEXT], shortest[ONCE_DURATION_TEXT];
    const once_node *said = once_node_member(node, "lease") ? node : root;
    const bool here = once__store_driver_bits(store_url) & ONCE_DRIVER_HERE;
    const int64_t least_ms = here ? ONCE_LEASE_LEAST_HERE_MS : ONCE_LEASE_LEAST_SERVER_MS;
    if (handler->lease_ms <= 0 || handler->lease_ms >= least_ms) return; /* 0: wrong, and already reported */
    once_config_wrong(config, ONCE_E_CONFIG, once__line_of(said, "lease"),
                      "'lease' is %s, too short to be extended while the effect of %s runs%s; write %s or more",
                      once_duration_format(handler->lease_ms, lease), label_of(handler).text,
                      least_ms == ONCE_LEASE_LEAST_SERVER_MS ? " and the server answers" : "",
                      once_duration_format(least_ms, shortest));
}

static bool says_attempts(const once_node *map)
{
    const once_node *retry = once_node_member(map, "retry");
    return retry && retry->kind == ONCE_NODE_MAP && once_node_member(retry, "attempts");
}

/* Fills in what follows from the fields. An effect that is idempotent by nature may run again without an operator's
 * decision. */
static void conclude(const once_spec *spec, once__handler *handler, bool unknown_said)
{
    once_handler_spec *h = &handler->spec;
    if (!once_handler_runs(h)) h->natural = false;
    if (!once_handler_runs(h)) h->gate = (once_gate_spec){0};
    if (!once_handler_external(h)) h->gate.breaker = (once_breaker){0};
    if (!once_handler_external(h)) h->slots = 0;
    if (!once_handler_external(h)) return;
    if (h->lookup.after_ms == ONCE_LOOKUP_TIMEOUT) h->lookup.after_ms = h->timeout_ms;
    h->hold = handler->unknown == ONCE__UNKNOWN_HOLD && (unknown_said || !h->natural);
    if (h->slots == 0) h->slots = spec->workers;
}

static void read_handler(once_config *config, const once_node *root, const once_node *node, once_bytes type,
                         const once_config_pipeline *pipeline, once_handler_spec *out)
{
    assert(!config->inherit);
    once__handler handler = pipeline->common;
    once_handler_spec *h = &handler.spec;
    h->type = type;
    h->line = node->name_line;
    h->remember_line = line_of(root, node, "remember");
    h->lease_line = line_of(root, node, "lease");
    h->retry_line = line_of(root, node, "retry");
    if (h->operation.len == 0) h->operation = type.len > 0 ? type : ONCE_BYTES("handler");
    if (node->kind != ONCE_NODE_MAP) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "%s must be a map, not %s; %s", label_of(h).text,
                          once_node_kind_text(node), write_effect().text);
        *out = *h;
        return;
    }
    const naming found = find_effect(config, node, &handler);
    config->inherit = true;
    (void)once_config_read(config, &once__handler_section, node, &handler);
    config->inherit = false;
    h->timeout_line = line_of_timeout(root, node, h->effect);
    check_one_effect(config, node, h, found); /* after the fields: a misspelt name is reported first */
    if (h->effect) {
        if (h->effect->conclude) h->effect->conclude(h);
        if (h->then) h->bits |= ONCE_EFFECT_THEN;
        check_fit(config, node, h);
        if (h->effect->check) h->effect->check(config, node, h);
        if (once_handler_external(h)) check_lease(config, root, node, pipeline->spec.store_url, h);
    }
    if (!h->key && !once_node_member(node, "key") && !once_node_member(root, "key"))
        once_config_wrong(config, ONCE_E_CONFIG, node->name_line,
                          "%s has no key; add 'key: \"${/id}\"' to it, or at the top for all handlers",
                          label_of(h).text);
    const bool unknown_said = once_node_member(node, "unknown") || once_node_member(root, "unknown");
    conclude(&pipeline->spec, &handler, unknown_said);
    if (h->retry.for_ms > 0 && !says_attempts(root) && !says_attempts(node))
        h->retry.attempts = ONCE_ANY_ATTEMPTS; /* the time alone counts */
    *out = *h;
}

/* --- all of them -------------------------------------------------------------------------------------------------- */

/* Whether the file sets the operation of this handler; otherwise it follows from the type. */
static bool says_operation(const once_node *root, const once_node *node)
{
    return once_node_member(root, "operation") || once_node_member(node, "operation");
}

static bool same_fingerprint(const once_fingerprint_spec *x, const once_fingerprint_spec *y)
{
    if (x->kind != y->kind || x->n != y->n) return false;
    for (size_t i = 0; i < x->n; i++) {
        size_t k = 0;
        while (k < y->n && !once_bytes_equal(x->fields[i].text, y->fields[k].text)) k++;
        if (k == y->n) return false;
    }
    return true;
}

/* Two handlers with one operation share their keys: both must set the operation, and make their keys alike. */
static void check_shared(once_config *config, const once_node *root, const once_node *nodes[2],
                         const once_handler_spec *pair[2])
{
    assert(pair[0] != pair[1] && nodes[0] != nodes[1]);
    if (!once_bytes_equal(pair[0]->operation, pair[1]->operation)) return;
    label first = label_of(pair[0]), second = label_of(pair[1]);
    once_config_shown operation = once_config_show(pair[0]->operation);
    if (!says_operation(root, nodes[0]) || !says_operation(root, nodes[1])) {
        once_config_wrong(
            config, ONCE_E_CONFIG, pair[1]->line,
            "%s and %s have the same operation '%s'; write 'operation: %s' in both to share their keys, or change one",
            first.text, second.text, operation.text, operation.text);
        return;
    }
    if (!pair[0]->key || !pair[1]->key) return;
    if (!once_bytes_equal(once_template_text(pair[0]->key), once_template_text(pair[1]->key)) ||
        !same_fingerprint(&pair[0]->fingerprint, &pair[1]->fingerprint))
        once_config_wrong(config, ONCE_E_CONFIG, pair[1]->line,
                          "%s and %s share the operation '%s' but not 'key' and 'fingerprint'; make them equal, or "
                          "change the operation",
                          first.text, second.text, operation.text);
    else if (pair[0]->natural != pair[1]->natural && once_handler_runs(pair[0]) && once_handler_runs(pair[1]))
        once_config_wrong(
            config, ONCE_E_CONFIG, pair[1]->line,
            "%s and %s share the operation '%s', but only one is 'natural'; make them equal, or change the operation",
            first.text, second.text, operation.text);
}

static void check_all_shared(once_config *config, const once_node *root, const once_node *map,
                             const once_handler_spec *handlers)
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

static void read_handlers(once_config *config, const once_node *root, once_config_pipeline *pipeline)
{
    const once_node *map = pipeline->handlers;
    if (map->kind != ONCE_NODE_MAP || map->count == 0) {
        once_config_wrong(config, ONCE_E_CONFIG, map->line,
                          "'handlers' must be a map by type, not %s; write 'TYPE:' and an effect under it",
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
        read_handler(config, root, node, node->name, pipeline, &handlers[i]);
    }
    check_all_shared(config, root, map, handlers);
    pipeline->spec.handlers = handlers;
    pipeline->spec.n_handlers = map->count;
}

static void read_all(once_config *config, const once_node *root, once_config_pipeline *pipeline)
{
    if (pipeline->handler && pipeline->handlers) {
        once_config_wrong(config, ONCE_E_CONFIG, pipeline->handler->name_line,
                          "'handler' and 'handlers' exclude each other; keep one");
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
        read_handler(config, root, pipeline->handler, (once_bytes){0}, pipeline, handler);
        pipeline->spec.handlers = handler;
        pipeline->spec.n_handlers = 1;
    } else {
        once_config_wrong(
            config, ONCE_E_CONFIG, root->line,
            "missing field 'handlers' in a pipeline; add 'handlers:' with a handler for each type, or 'handler:'");
    }
}

/* A default that no handler can use. Checked only if everything else is right: otherwise it may be meant for a handler
 * that could not be read. */
static void check_unknown(once_config *config, const once_node *root, const once_spec *spec)
{
    const once_node *unknown = once_node_member(root, "unknown");
    if (!unknown || config->total > 0) return;
    for (size_t i = 0; i < spec->n_handlers; i++)
        if (once_handler_external(&spec->handlers[i])) return;
    once_config_wrong(
        config, ONCE_E_CONFIG, unknown->name_line,
        "'unknown' has no meaning here: effects in the store's own database are never unknown; remove it");
}

void once__config_handlers(once_config *config, const once_node *root, once_config_pipeline *pipeline)
{
    read_all(config, root, pipeline);
    check_unknown(config, root, &pipeline->spec);
}
