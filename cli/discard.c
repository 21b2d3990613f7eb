/* once discard: dead letters that nobody will work on. */
#include <inttypes.h>
#include <stdlib.h>

#include "cli.h"

static int discard(const char *file, bool json, const uint64_t *ids, size_t n, bool *found)
{
    once_pipeline *pipeline;
    int status = cli_load(file, json, &pipeline);
    if (status != CLI_OK) return status;
    once_error err = {0};
    const int rc = once_pipeline_discard(pipeline, ids, n, found, &err);
    bool missing = false;
    if (json) printf("{\"letters\":[");
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        missing = missing || !found[i];
        if (json) printf("%s{\"letter\":%" PRIu64 ",\"discarded\":%s}", i ? "," : "", ids[i], found[i] ? "true" : "false");
        else printf("letter %" PRIu64 ": %s\n", ids[i], found[i] ? "discarded" : "there is no such letter");
    }
    if (json) {
        printf("]");
        cli_json_error(rc, &err);
        printf("}\n");
    }
    once_pipeline_free(pipeline);
    return rc != ONCE_OK ? cli_fail(&err) : missing ? CLI_DEAD : CLI_OK;
}

int cli_discard(int argc, char **argv)
{
    bool json = false;
    const cli_option options[] = {{"--json", NULL, "one object on standard output", &json, NULL}, {0}};
    char **args = calloc((size_t)argc, sizeof *args);
    uint64_t *ids = calloc((size_t)argc, sizeof *ids);
    bool *found = calloc((size_t)argc, sizeof *found);
    int status = CLI_FAILED, n = -1;
    if (args && ids && found) n = cli_parse(argc, argv, options, 2, argc, args, &status);
    if (n > 0) status = cli_letter_ids(args + 1, n - 1, ids) ? discard(args[0], json, ids, (size_t)n - 1, found) : CLI_USAGE;
    free(args);
    free(ids);
    free(found);
    return status;
}
