/* once resolve: a person has found out what became of unknown messages. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "choice.h"

typedef struct resolving {
    bool json, dry_run;
    const char *tenant, *operation, *how;
    once_outcome outcome;
    cli_choice choice;
    struct found {
        char *text; /* tenant, operation and key, one behind the other */
        size_t tenant, operation, key;
        char idempotency_key[33];
    } *found;
    size_t n, room;
    bool failed;
} resolving;

static bool read_outcome(const char *text, once_outcome *out)
{
    static const once_outcome outcomes[] = {ONCE_DONE, ONCE_RETRY, ONCE_DEAD};
    for (size_t i = 0; i < sizeof outcomes / sizeof *outcomes; i++) {
        if (strcmp(text, once_outcome_name(outcomes[i])) != 0) continue;
        *out = outcomes[i];
        return true;
    }
    fprintf(stderr, "once resolve: '%s' is none of done, retry, dead\n", text);
    return false;
}

static void append(char **to, once_bytes text)
{
    if (text.len) memcpy(*to, text.data, text.len);
    *to += text.len;
}

static bool add(resolving *r, const once_listed *item)
{
    if (r->n == r->room) {
        const size_t room = r->room ? 2 * r->room : 64;
        struct found *found = realloc(r->found, room * sizeof *found);
        if (!found) return false;
        r->found = found;
        r->room = room;
    }
    char *text = malloc(item->scope.tenant.len + item->scope.operation.len + item->key.len + 1), *at = text;
    if (!text) return false;
    append(&at, item->scope.tenant);
    append(&at, item->scope.operation);
    append(&at, item->key);
    struct found *f = &r->found[r->n++];
    *f = (struct found){.text = text, .tenant = item->scope.tenant.len, .operation = item->scope.operation.len, .key = item->key.len};
    memcpy(f->idempotency_key, item->idempotency_key, sizeof f->idempotency_key);
    return true;
}

static bool on_unknown(void *user, const once_listed *item)
{
    resolving *r = user;
    if (strcmp(item->state, "unknown") != 0 || !cli_choice_fits(&r->choice, item)) return true;
    r->failed = !add(r, item);
    return !r->failed;
}

static void tell(const resolving *r, bool first, once_bytes key, const char *idempotency_key)
{
    if (r->json) {
        printf("%s{\"key\":", first ? "" : ",");
        cli_json_string(stdout, key);
        printf(",\"idempotency_key\":\"%s\",\"resolved\":\"%s\"}", idempotency_key, r->how);
        return;
    }
    printf("key '");
    cli_print_safe(key);
    printf("': %s as %s; its idempotency key is %s\n", r->dry_run ? "would be resolved" : "resolved", r->how, idempotency_key);
}

static int resolve_one(resolving *r, once_pipeline *pipeline, const char *key)
{
    once_error err = {0};
    char idempotency_key[33] = "";
    const once_bytes tenant = r->tenant ? cli_bytes(r->tenant) : (once_bytes){0};
    const int rc = once_pipeline_resolve(pipeline, tenant, cli_bytes(r->operation), cli_bytes(key), r->outcome, idempotency_key, &err);
    if (rc == ONCE_OK) tell(r, true, cli_bytes(key), idempotency_key);
    if (rc == ONCE_OK && r->json) putchar('\n');
    if (rc != ONCE_OK && r->json) cli_json_failure(&err);
    return rc == ONCE_OK ? CLI_OK : cli_fail(&err);
}

/* One transaction each: what somebody else has decided meanwhile is left out. */
static int resolve_found(resolving *r, once_pipeline *pipeline)
{
    once_error err = {0};
    size_t done = 0, left = 0;
    int rc = once_pipeline_list(pipeline, ONCE_LIST_UNKNOWN, on_unknown, r, &err);
    if (rc == ONCE_OK && r->failed) rc = once_fail(&err, ONCE_E_NOMEM, "out of memory for the messages");
    if (r->json) printf("{\"dry_run\":%s,\"messages\":[", r->dry_run ? "true" : "false");
    for (size_t i = 0; i < r->n && rc == ONCE_OK; i++) {
        struct found *f = &r->found[i];
        const once_bytes tenant = {f->text, f->tenant}, operation = {f->text + f->tenant, f->operation}, key = {f->text + f->tenant + f->operation, f->key};
        if (!r->dry_run) rc = once_pipeline_resolve(pipeline, tenant, operation, key, r->outcome, f->idempotency_key, &err);
        if (rc == ONCE_E_USAGE) { /* no longer unknown, or it has no body to retry with */
            fprintf(stderr, "once resolve: not resolved: %s\n", err.text);
            left++;
            rc = ONCE_OK;
        } else if (rc == ONCE_OK) {
            tell(r, done++ == 0, key, f->idempotency_key);
        }
    }
    if (r->json) {
        printf("],\"count\":%zu", done);
        cli_json_error(rc, &err);
        printf("}\n");
    } else if (rc == ONCE_OK) {
        printf("%zu message%s %s as %s\n", done, done == 1 ? "" : "s", r->dry_run ? "would be resolved" : "resolved", r->how);
    }
    return rc != ONCE_OK ? cli_fail(&err) : left ? CLI_DEAD : CLI_OK;
}

int cli_resolve(int argc, char **argv)
{
    resolving r = {.operation = ""};
    const cli_option options[] = {
        {"--json", NULL, "one object on standard output", &r.json, NULL},
        {"--tenant", "NAME", "the tenant of the key", NULL, &r.tenant},
        {"--operation", "NAME", "the operation of the key, when several know it", NULL, &r.operation},
        CLI_CHOICE(r.choice, "unknown message", "became so"),
        {"--dry-run", NULL, "say which messages it would be, and change nothing", &r.dry_run, NULL},
        {0},
    };
    char *args[3];
    int status;
    const int n = cli_parse(argc, argv, options, 2, 3, args, &status);
    if (n < 0) return status;
    const bool named = n == 3;
    r.how = args[n - 1];
    if (!read_outcome(r.how, &r.outcome) || !cli_choice_read(&r.choice, named, "messages: a key")) return CLI_USAGE;
    if (named && r.dry_run) {
        fprintf(stderr, "once resolve: --dry-run goes with --all or filters; 'once explain' tells of one key\n");
        return CLI_USAGE;
    }
    once_pipeline *pipeline;
    status = cli_load(args[0], r.json, &pipeline);
    if (status != CLI_OK) return status;
    status = named ? resolve_one(&r, pipeline, args[1]) : resolve_found(&r, pipeline);
    for (size_t i = 0; i < r.n; i++) free(r.found[i].text);
    free(r.found);
    once_pipeline_free(pipeline);
    return status;
}
