/* once list --by: how many there are of a kind, for whoever looks at thousands. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli.h"

enum { NAME_MAX_BYTES = 200, GROUPS_MAX = 1000 };

typedef struct group {
    char name[NAME_MAX_BYTES + 1];
    const char *state;
    uint64_t count, letter; /* the id of an example; 0: it is no letter */
    char key[NAME_MAX_BYTES + 1];
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
    if (len) memcpy(out, text.data, len);
    out[len] = 0;
}

/* What differs from message to message is left out: numbers, and what stands in quotes. */
static void without_details(char *text)
{
    char *to = text;
    for (const char *from = text; *from;) {
        const char quote = *from;
        const char *end = quote == '\'' || quote == '"' ? strchr(from + 1, quote) : NULL;
        if (end) {
            to = mempcpy(to, "...", (size_t)(end + 1 - from) < 3 ? (size_t)(end + 1 - from) : 3);
            from = end + 1;
        } else if (*from >= '0' && *from <= '9') {
            while (*from >= '0' && *from <= '9') from++;
            *to++ = '#';
        } else {
            *to++ = *from++;
        }
    }
    *to = 0;
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
        copy(out, item->reason);
        char *where = strstr(out, "; the first one came from "); /* of a conflict: another one each time */
        if (where) *where = 0;
        without_details(out);
    }
    if (!out[0]) copy(out, cli_bytes("(none)"));
}

static bool on_item(void *user, const once_listed *item)
{
    grouping *g = user;
    char name[NAME_MAX_BYTES + 1];
    name_of(g, item, name);
    size_t i = 0;
    while (i < g->n && i < GROUPS_MAX && (strcmp(g->at[i].name, name) != 0 || strcmp(g->at[i].state, item->state) != 0)) i++;
    const bool others = i == GROUPS_MAX;
    if (others) copy(name, cli_bytes("(others)"));
    group *found = &g->at[i];
    if (i == g->n) {
        *found = (group){.state = others ? "any" : item->state, .letter = item->letter, .first_ms = item->changed_ms, .last_ms = item->changed_ms};
        memcpy(found->name, name, sizeof name);
        copy(found->key, item->key);
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

static void as_json(const grouping *g)
{
    printf("{\"by\":\"%s\",\"groups\":[", g->by);
    for (size_t i = 0; i < g->n; i++) {
        const group *at = &g->at[i];
        printf("%s{\"state\":\"%s\",\"%s\":", i ? "," : "", at->state, g->by);
        cli_json_cstring(stdout, at->name);
        printf(",\"count\":%" PRIu64 ",\"first_ms\":%" PRId64 ",\"last_ms\":%" PRId64 ",\"example\":{", at->count, at->first_ms, at->last_ms);
        if (at->letter) printf("\"letter\":%" PRIu64 ",", at->letter);
        printf("\"key\":");
        cli_json_cstring(stdout, at->key);
        printf("}}");
    }
    printf("]");
}

static void as_text(const grouping *g)
{
    char time[40];
    for (size_t i = 0; i < g->n; i++) {
        const group *at = &g->at[i];
        printf("%8" PRIu64 "  %-7s  ", at->count, at->state);
        cli_print_safe(cli_bytes(at->name));
        printf("  since %s, for example", cli_when(at->first_ms, time));
        if (at->letter) printf(" letter %" PRIu64, at->letter);
        if (at->key[0]) {
            printf(" key '");
            cli_print_safe(cli_bytes(at->key));
            putchar('\'');
        }
        putchar('\n');
    }
}

int cli_list_groups(once_pipeline *pipeline, unsigned what, const char *by, bool json)
{
    once_error err = {0};
    grouping g = {.by = by, .at = calloc(GROUPS_MAX + 1, sizeof *g.at)};
    const int rc = g.at ? once_pipeline_list(pipeline, what, on_item, &g, &err) : once_fail(&err, ONCE_E_NOMEM, "out of memory for the groups");
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
