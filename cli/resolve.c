/* once resolve: a person has found out what became of an unknown message. */
#include <string.h>

#include "cli.h"

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

int cli_resolve(int argc, char **argv)
{
    bool json = false;
    const char *tenant = "", *operation = "";
    const cli_option options[] = {
        {"--json", NULL, "one object on standard output", &json, NULL},
        {"--tenant", "NAME", "the tenant of the key", NULL, &tenant},
        {"--operation", "NAME", "the operation of the key, when several know it", NULL, &operation},
        {0},
    };
    char *args[3];
    int status;
    once_outcome outcome;
    if (cli_parse(argc, argv, options, 3, 3, args, &status) < 0) return status;
    if (!read_outcome(args[2], &outcome)) return CLI_USAGE;
    once_pipeline *pipeline;
    status = cli_load(args[0], json, &pipeline);
    if (status != CLI_OK) return status;
    once_error err = {0};
    char idempotency_key[33] = "";
    const int rc = once_pipeline_resolve(pipeline, cli_bytes(tenant), cli_bytes(operation), cli_bytes(args[1]), outcome, idempotency_key, &err);
    if (json && rc == ONCE_OK) {
        printf("{\"key\":");
        cli_json_cstring(stdout, args[1]);
        printf(",\"idempotency_key\":\"%s\",\"resolved\":\"%s\"}\n", idempotency_key, args[2]);
    } else if (json) {
        cli_json_failure(&err);
    } else if (rc == ONCE_OK) {
        printf("key '%s': resolved as %s; its idempotency key is %s\n", args[1], args[2], idempotency_key);
    }
    once_pipeline_free(pipeline);
    return rc == ONCE_OK ? CLI_OK : cli_fail(&err);
}
