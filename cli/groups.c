/* once list --by: counts by reason, type, handler or hour, with an example of each. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "choice.h"

enum { NAME_MAX_BYTES = ONCE_REASON_GROUP_MAX, GROUPS_MAX = 1000 };

typedef struct group {
    char name[NAME_MAX_BYTES + 1];
    const char *state;
    uint64_t count, letter; /* the id of an example; 0: it is not a letter */
    char key[NAME_MAX_BYTES + 1], tenant[NAME_MAX_BYTES + 1], operation[NAME_MAX_BYTES + 1]; /* of the example */
    int64_t first_ms, last_ms;
} group;

typedef struct grouping {
    const char *by;
    group *at; /* one more than GROUPS_MAX, for all others */
    size_t n;
} grouping;

bool cli_groups_know(const char *by)
{
    static const char *const known[] = {"reason", "type", "handler", "hour"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(by, known[i]) == 0) return true;
    return false;
}

static void copy(char out[NAME_MAX_BYTES + 1], once_bytes text)
{
    size_t len = text.len < NAME_MAX_BYTES ? text.len : NAME_MAX_BYTES;
    while (len > 0 && len < text.len && ((unsigned char)text.data[len] & 0xc0) == 0x80) len--; /* whole characters */
    for (size_t i = 0; i < len; i++) out[i] = text.data[i] ? text.data[i] : '?'; /* a NUL would cut the name */
    out[len] = 0;
}

static void name_of(const grouping *g, const once_listed *item, char out[NAME_MAX_BYTES + 1])
{
    if (strcmp(g->by, "type") == 0) {
        copy(out, item->type);
    } else if (strcmp(g->by, "handler") == 0) {
        copy(out, item->scope.operation);
    } else if (strcmp(g->by, "hour") == 0) {
        const time_t s = item->changed_ms / 1000;
        struct tm parts;
        out[0] = 0;
        if (gmtime_r(&s, &parts)) strftime(out, NAME_MAX_BYTES, "%Y-%m-%d %H:00 UTC", &parts);
    } else {
        once_reason_group(item->own_reason, out);
    }
    if (!out[0]) copy(out, cli_bytes("(none)"));
}

static bool on_item(void *user, const once_listed *item)
{
    grouping *g = user;
    char name[NAME_MAX_BYTES + 1];
    name_of(g, item, name);
    size_t i = 0;
    while (i < g->n && i < GROUPS_MAX && (strcmp(g->at[i].name, name) != 0 || strcmp(g->at[i].state, item->state) != 0))
        i++;
    const bool others = i == GROUPS_MAX;
    if (others) copy(name, cli_bytes("(others)"));
    group *found = &g->at[i];
    if (i == g->n) {
        *found = (group){.state = others ? "any" : item->state,
                         .letter = item->letter,
                         .first_ms = item->changed_ms,
                         .last_ms = item->changed_ms};
        memcpy(found->name, name, sizeof name);
        copy(found->key, item->key);
        copy(found->tenant, item->scope.tenant);
        copy(found->operation, item->scope.operation);
        g->n++;
    }
    found->count++;
    if (item->changed_ms < found->first_ms) found->first_ms = item->changed_ms;
    if (item->changed_ms > found->last_ms) found->last_ms = item->changed_ms;
    return true;
}

static int more_first(const void *a, const void *b)
{
    const group *x = a, *y = b;
    return x->count != y->count ? (x->count > y->count ? -1 : 1) : strcmp(x->name, y->name);
}

/* The options that choose this group, in pairs of option and value. Returns their number; 0: no option chooses it. */
static int filter_of(const grouping *g, size_t at, const char *options[4], char times[2][24])
{
    const group *of = &g->at[at];
    const bool none = strcmp(of->name, "(none)") == 0;
    const bool cut = strcmp(g->by, "reason") != 0 && strlen(of->name) > NAME_MAX_BYTES - 4; /* it was cut, perhaps */
    if (cut || !cli_is_plain(cli_bytes(of->name)) || strcmp(of->name, "(others)") == 0) return 0;
    if (strcmp(g->by, "hour") == 0) {
        for (int i = 0; i < 2; i++) {
            const time_t s = of->first_ms / 3600000 * 3600 + 3600 * i;
            struct tm parts;
            if (!gmtime_r(&s, &parts)) return 0;
            strftime(times[i], sizeof times[i], "%Y-%m-%dT%H:%M:%SZ", &parts);
        }
        options[0] = "--since", options[1] = times[0], options[2] = "--until", options[3] = times[1];
        return 4;
    }
    options[0] = strcmp(g->by, "type") == 0 ? "--type" : strcmp(g->by, "handler") == 0 ? "--operation" : "--group";
    options[1] = of->name;
    return none && options[0][2] != 'g' ? 0 : 2;
}

static void json_example(const group *at)
{
    printf(",\"example\":{");
    if (at->letter) printf("\"letter\":%" PRIu64 ",", at->letter);
    printf("\"tenant\":");
    cli_json_cstring(stdout, at->tenant);
    printf(",\"operation\":");
    cli_json_cstring(stdout, at->operation);
    printf(",\"key\":");
    cli_json_cstring(stdout, at->key);
    printf("}");
}

static void as_json(const grouping *g)
{
    printf("{\"by\":\"%s\",\"groups\":[", g->by);
    for (size_t i = 0; i < g->n; i++) {
        const group *at = &g->at[i];
        const char *options[4];
        char times[2][24];
        const int n = filter_of(g, i, options, times);
        printf("%s{\"state\":\"%s\",\"%s\":", i ? "," : "", at->state, g->by);
        cli_json_cstring(stdout, at->name);
        printf(",\"filter\":[");
        for (int o = 0; o < n; o++) {
            if (o) putchar(',');
            cli_json_cstring(stdout, options[o]);
        }
        printf("],\"count\":%" PRIu64 ",\"first_ms\":%" PRId64 ",\"last_ms\":%" PRId64, at->count, at->first_ms,
               at->last_ms);
        json_example(at);
        printf("}");
    }
    printf("]");
}

/* For a shell. */
static void print_quoted(const char *text)
{
    putchar('\'');
    for (; *text; text++) {
        if (*text == '\'') fputs("'\\''", stdout);
        else putchar(*text);
    }
    putchar('\'');
}

/* Prints, under the group, the options for replay, discard or resolve. */
static void print_filter(const grouping *g, size_t at)
{
    const char *options[4];
    char times[2][24];
    const int n = filter_of(g, at, options, times);
    if (n) printf("         ");
    for (int i = 0; i < n; i += 2) {
        printf(" %s ", options[i]);
        print_quoted(options[i + 1]);
    }
    if (n) putchar('\n');
}

static void as_text(const grouping *g)
{
    char time[40];
    for (size_t i = 0; i < g->n; i++) {
        const group *at = &g->at[i];
        const once_scope scope = {.tenant = cli_bytes(at->tenant), .operation = cli_bytes(at->operation)};
        printf("%8" PRIu64 "  %-7s  ", at->count, at->state);
        cli_print_safe(cli_bytes(at->name));
        printf("  since %s, for example", cli_when(at->first_ms, time));
        if (at->letter) printf(" letter %" PRIu64, at->letter);
        if (at->key[0]) putchar(' ');
        cli_print_key(cli_bytes(at->key), &scope);
        putchar('\n');
        print_filter(g, i);
    }
}

int cli_list_groups(once_pipeline *pipeline, unsigned what, const char *by, bool json)
{
    once_error err = {0};
    grouping g = {.by = by, .at = calloc(GROUPS_MAX + 1, sizeof *g.at)};
    const int rc = g.at ? once_pipeline_list(pipeline, what, on_item, &g, &err)
                        : once_fail(&err, ONCE_E_NOMEM, "out of memory for the groups");
    if (g.n) qsort(g.at, g.n, sizeof *g.at, more_first);
    if (json) {
        as_json(&g);
        cli_json_error(rc, &err);
        printf("}\n");
    } else if (rc == ONCE_OK) {
        as_text(&g);
    }
    free(g.at);
    return rc == ONCE_OK ? CLI_OK : cli_fail(&err);
}
