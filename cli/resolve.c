/* once resolve: an operator decides about unknown messages. */
#include <inttypes.h>
#include <string.h>

#include "choice.h"

typedef struct resolving {
    bool json, dry_run, named, first;
    const char *how;
    uint64_t left;
} resolving;

static bool read_outcome(const char *text, once_outcome *out)
{
    static const once_outcome outcomes[] = {ONCE_DONE, ONCE_RETRY, ONCE_DEAD};
    for (size_t i = 0; i < sizeof outcomes / sizeof *outcomes; i++) {
        if (strcmp(text, once_outcome_name(outcomes[i])) != 0) continue;
        *out = outcomes[i];
        return true;
    }
    cli_say("once resolve: the outcome must be done, retry or dead, not '%s'", text);
    return false;
}

static void as_json(const resolving *r, const once_resolved *m)
{
    printf("%s{", r->first ? "" : ",");
    if (r->named) printf("\"dry_run\":%s,", r->dry_run ? "true" : "false");
    if (m->refused) printf("\"resolved\":null,\"refused\":");
    else printf("\"resolved\":\"%s\"", r->how);
    if (m->refused) cli_json_cstring(stdout, m->refused);
    cli_json_key(m->key, &m->scope, m->idempotency_key);
    cli_json_origin(m->type, m->place, m->point, m->reason);
    if (m->then && !m->refused) printf(",\"then\":\"not run\"");
    printf("}");
}

static void on_message(void *user, const once_resolved *m)
{
    resolving *r = user;
    r->left += m->refused != NULL;
    if (m->refused) cli_say("once resolve: not resolved: %s", m->refused);
    if (r->json) {
        as_json(r, m);
    } else if (!m->refused) {
        cli_print_key(m->key, &m->scope);
        printf(": %s as %s; its idempotency key is %s", r->dry_run ? "would be resolved" : "resolved", r->how,
               m->idempotency_key);
        cli_print_origin(m->place, m->point, m->reason);
        if (m->then) printf("; its 'then' is not run by this: do by hand what it does");
        putchar('\n');
    }
    r->first = false;
}

/* Prints one object for a key, a list for a choice. */
static int resolve(resolving *r, once_pipeline *pipeline, const once_resolve_options *options)
{
    once_error err = {0};
    uint64_t done = 0;
    const bool named = r->named;
    if (r->json && !named) printf("{\"dry_run\":%s,\"messages\":[", r->dry_run ? "true" : "false");
    const int rc = once_pipeline_resolve(pipeline, options, &done, &err);
    if (r->json && named) {
        if (rc == ONCE_OK) putchar('\n');
        else cli_json_failure(&err);
    } else if (r->json) {
        printf("],\"count\":%" PRIu64, done);
        cli_json_error(rc, &err);
        printf("}\n");
    } else if (rc == ONCE_OK && !named && done + r->left == 0) {
        printf("no unknown message matches\n");
    } else if (rc == ONCE_OK && !named) {
        printf("%" PRIu64 " message%s %s as %s\n", done, done == 1 ? "" : "s",
               r->dry_run ? "would be resolved" : "resolved", r->how);
    }
    return rc != ONCE_OK ? cli_fail(&err) : r->left ? CLI_DEAD : CLI_OK;
}

int cli_resolve(int argc, char **argv)
{
    resolving r = {.first = true};
    cli_choice choice = {0};
    const cli_option options[] = {
        {"--json", NULL, "print one JSON object", &r.json, NULL},
        CLI_CHOICE(choice, "unknown message", "became unknown"),
        {"--dry-run", NULL, "print which messages would be resolved; change nothing", &r.dry_run, NULL},
        {0},
    };
    char *args[3];
    int status;
    const int n = cli_parse(argc, argv, options, 2, 3, args, &status);
    if (n < 0) return status;
    const bool named = r.named = n == 3;
    const once_bytes key = named ? cli_bytes(args[1]) : (once_bytes){0};
    once_resolve_options how = {
        .size = sizeof how, .key = named ? &key : NULL, .dry_run = r.dry_run, .visit = on_message, .user = &r};
    r.how = args[n - 1];
    if (!read_outcome(r.how, &how.outcome) ||
        !cli_choice_read(&choice, named ? CLI_NAMED_KEY : CLI_NAMED_NOT, "a key", &how.choice))
        return CLI_USAGE;
    once_pipeline *pipeline;
    status = cli_load(args[0], r.json, &pipeline);
    if (status != CLI_OK) return status;
    status = resolve(&r, pipeline, &how);
    once_pipeline_free(pipeline);
    return status;
}
