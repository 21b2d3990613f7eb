/* once explain: everything known about a key, in sentences. */
#include <string.h>
#include <time.h>

#include "cli.h"

static const char *when(int64_t ms, char out[40])
{
    const time_t s = (time_t)(ms / 1000);
    struct tm parts;
    if (!gmtime_r(&s, &parts)) return "?";
    const size_t n = strftime(out, 40, "%Y-%m-%d %H:%M:%S", &parts);
    snprintf(out + n, 40 - n, ".%03d UTC", (int)(ms % 1000));
    return out;
}

static void as_json(const once_explanation *e, bool first)
{
    printf("%s{\"tenant\":", first ? "" : ",");
    cli_json_string(stdout, e->scope.tenant);
    printf(",\"consumer\":");
    cli_json_string(stdout, e->scope.consumer);
    printf(",\"operation\":");
    cli_json_string(stdout, e->scope.operation);
    printf(",\"key\":");
    cli_json_string(stdout, e->key);
    printf(",\"state\":\"%s\"", e->state);
    if (strcmp(e->state, "absent") != 0) {
        printf(",\"attempt\":%u,\"failures\":%u,\"seen_ms\":%lld,\"changed_ms\":%lld,\"place\":", e->attempt, e->failures,
               (long long)e->seen_ms, (long long)e->changed_ms);
        cli_json_string(stdout, e->place);
        printf(",\"point\":");
        cli_json_string(stdout, e->point);
        if (e->due_ms != ONCE_NO_TIME) printf(",\"due_ms\":%lld", (long long)e->due_ms);
        if (e->expires_ms == ONCE_FOREVER) printf(",\"expires_ms\":null");
        else if (e->expires_ms != ONCE_NO_TIME) printf(",\"expires_ms\":%lld", (long long)e->expires_ms);
        printf(",\"reason\":");
        cli_json_string(stdout, e->reason);
        printf(",\"result\":");
        cli_json_string(stdout, e->result);
    }
    printf("}");
}

static const struct {
    const char *state, *sentence;
} sentences[] = {
    {"absent", "Nothing is known about it: it was never seen here, or it is forgotten. A message with this key would run."},
    {"claimed", "A worker is on it. Another delivery waits for that one's outcome."},
    {"waiting", "The store owns its message and will hand it out again. Another delivery is a duplicate."},
    {"unknown", "An attempt may have had its effect. Another delivery does not run."},
    {"dead", "It became a dead letter. Another delivery is suppressed."},
    {"done", "Its effect happened. Another delivery is a duplicate and is suppressed."},
    {"already", "The business said that it had happened before, under another message. Another delivery is a duplicate."},
    {"rejected", "The business said no. Another delivery is a duplicate."},
    {"stale", "It was superseded, or its update met nothing. Another delivery is a duplicate."},
};

static void as_text(const once_explanation *e)
{
    char time[40];
    printf("key '%.*s' of consumer '%.*s'", (int)e->key.len, e->key.data, (int)e->scope.consumer.len, e->scope.consumer.data);
    if (e->scope.operation.len) printf(", operation '%.*s'", (int)e->scope.operation.len, e->scope.operation.data);
    if (e->scope.tenant.len) printf(", tenant '%.*s'", (int)e->scope.tenant.len, e->scope.tenant.data);
    printf(": %s\n", e->state);
    for (size_t i = 0; i < sizeof sentences / sizeof *sentences; i++)
        if (strcmp(sentences[i].state, e->state) == 0) printf("  %s\n", sentences[i].sentence);
    if (strcmp(e->state, "absent") == 0) return;
    printf("  First seen %s", when(e->seen_ms, time));
    if (e->place.len) printf(" at %.*s:%.*s", (int)e->place.len, e->place.data, (int)e->point.len, e->point.data);
    printf(".\n  %u attempt%s", e->attempt, e->attempt == 1 ? "" : "s");
    if (e->failures) printf(", %u failed", e->failures);
    printf("; last change %s.\n", when(e->changed_ms, time));
    if (e->reason.len) printf("  Reason: %.*s.\n", (int)e->reason.len, e->reason.data);
    if (e->due_ms != ONCE_NO_TIME) printf("  %s %s.\n", strcmp(e->state, "claimed") == 0 ? "The claim ends" : "Not before", when(e->due_ms, time));
    if (e->expires_ms == ONCE_FOREVER) printf("  It is never forgotten.\n");
    else if (e->expires_ms != ONCE_NO_TIME) printf("  Forgotten after %s.\n", when(e->expires_ms, time));
}

typedef struct explaining {
    bool json, first;
} explaining;

static void on_explanation(void *user, const once_explanation *e)
{
    explaining *x = user;
    if (x->json) as_json(e, x->first);
    else as_text(e);
    x->first = false;
}

int cli_explain(int argc, char **argv)
{
    explaining x = {.first = true};
    const char *tenant = "";
    const cli_option options[] = {
        {"--json", NULL, "one object on standard output", &x.json, NULL},
        {"--tenant", "NAME", "the tenant of the key", NULL, &tenant},
        {0},
    };
    char *args[2];
    int status;
    if (cli_parse(argc, argv, options, 2, 2, args, &status) < 0) return status;
    once_pipeline *pipeline;
    status = cli_load(args[0], x.json, &pipeline);
    if (status != CLI_OK) return status;
    once_error err = {0};
    if (x.json) printf("{\"entries\":[");
    const int rc = once_pipeline_explain(pipeline, (once_bytes){tenant, strlen(tenant)}, (once_bytes){args[1], strlen(args[1])}, on_explanation, &x, &err);
    if (x.json) {
        printf("]");
        cli_json_error(rc, &err);
        printf("}\n");
    }
    once_pipeline_free(pipeline);
    return rc == ONCE_OK ? CLI_OK : cli_fail(&err);
}
