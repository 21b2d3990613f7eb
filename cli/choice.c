#include "choice.h"

#include <string.h>

enum { TENANT, OPERATION, FILTERS = 7 };

typedef struct filter {
    const char *option, *value;
} filter;

/* The first two may also belong to a key. */
static void list_filters(const cli_choice *c, filter out[FILTERS])
{
    const filter all[FILTERS] = {{"--tenant", c->tenant}, {"--operation", c->operation}, {"--reason", c->reason},
                                 {"--group", c->group},   {"--type", c->type},           {"--since", c->since},
                                 {"--until", c->until}};
    memcpy(out, all, sizeof all);
}

/* An empty value is usually an unset variable, and would choose everything. But a named key may have an empty
 * tenant. */
static bool refuse_empty(const filter *filters, cli_named named)
{
    for (int i = 0; i < FILTERS; i++) {
        if (!filters[i].value || *filters[i].value || (i == TENANT && named == CLI_NAMED_KEY)) continue;
        cli_say("once %s: %s has an empty value; give one, or leave the option out", cli_current->name,
                filters[i].option);
        return false;
    }
    return true;
}

static bool refuse_both(const char *option, cli_named named)
{
    cli_say("once %s: %s and %s exclude each other; use one of them", cli_current->name, option,
            named == CLI_NAMED_KEY ? "a key" : "ids");
    return false;
}

static once_bytes text_of(const char *text) { return text ? cli_bytes(text) : (once_bytes){0}; }

bool cli_choice_read(const cli_choice *given, cli_named named, const char *things, once_choice *out)
{
    filter filters[FILTERS];
    bool filtered = false;
    list_filters(given, filters);
    if (!refuse_empty(filters, named)) return false;
    if (named && given->all) return refuse_both("--all", named);
    for (int i = 0; i < FILTERS; i++) {
        if (!filters[i].value) continue;
        if (named == CLI_NAMED_IDS || (named == CLI_NAMED_KEY && i > OPERATION))
            return refuse_both(filters[i].option, named);
        filtered = true;
    }
    if (!named && !given->all && !filtered) {
        fprintf(stderr, "once %s: nothing is chosen; give %s, --all, or one or more of", cli_current->name, things);
        for (int i = 0; i < FILTERS; i++) fprintf(stderr, "%s %s", i ? "," : "", filters[i].option);
        fprintf(stderr, "\n");
        return false;
    }
    *out = (once_choice){
        .tenant = text_of(given->tenant),
        .operation = text_of(given->operation),
        .type = text_of(given->type),
        .reason = text_of(given->reason),
        .group = text_of(given->group),
        .since_ms = ONCE_NO_TIME,
        .until_ms = ONCE_NO_TIME,
    };
    return cli_time("--since", given->since, &out->since_ms) && cli_time("--until", given->until, &out->until_ms);
}

/* --- telling --- */

static bool is_lone_handler(once_bytes operation)
{
    return operation.len == 7 && memcmp(operation.data, "handler", 7) == 0;
}

static void print_quoted(const char *before, once_bytes text)
{
    printf("%s'", before);
    cli_print_safe(text);
    putchar('\'');
}

void cli_print_key(once_bytes key, const once_scope *scope)
{
    if (!key.len) return;
    print_quoted("key ", key);
    if (scope->tenant.len) print_quoted(" of tenant ", scope->tenant);
    if (scope->operation.len && !is_lone_handler(scope->operation))
        print_quoted(scope->tenant.len ? ", operation " : " of operation ", scope->operation);
}

void cli_print_origin(once_bytes place, once_bytes point, once_bytes reason)
{
    if (place.len) {
        printf("  ");
        cli_print_safe(place);
        putchar(':');
        cli_print_safe(point);
    }
    if (reason.len) {
        printf("  (");
        cli_print_safe(reason);
        putchar(')');
    }
}

static void json_field(const char *name, once_bytes text)
{
    printf(",\"%s\":", name);
    cli_json_string(stdout, text);
}

void cli_json_key(once_bytes key, const once_scope *scope, const char *idempotency_key)
{
    json_field("tenant", scope->tenant);
    json_field("operation", scope->operation);
    json_field("key", key);
    if (idempotency_key[0]) json_field("idempotency_key", cli_bytes(idempotency_key));
}

void cli_json_origin(once_bytes type, once_bytes place, once_bytes point, once_bytes reason)
{
    json_field("type", type);
    json_field("place", place);
    json_field("point", point);
    json_field("reason", reason);
}
