/* once forget: removes a key; its next message runs again. */
#include <string.h>

#include "cli.h"

int cli_forget(int argc, char **argv)
{
    bool json = false;
    const char *tenant = NULL, *operation = NULL;
    const cli_option options[] = {
        {"--json", NULL, "print one JSON object", &json, NULL},
        {"--tenant", "NAME", "the tenant of the key", NULL, &tenant},
        {"--operation", "NAME", "the operation of the key, if several operations have it", NULL, &operation},
        {0},
    };
    char *args[2];
    int status;
    if (cli_parse(argc, argv, options, 2, 2, args, &status) < 0) return status;
    if (operation && !*operation) {
        cli_say("once forget: --operation has an empty value; give one, or leave the option out");
        return CLI_USAGE;
    }
    once_pipeline *pipeline;
    status = cli_load(args[0], json, &pipeline);
    if (status != CLI_OK) return status;
    once_error err = {0};
    const char *was = "absent";
    const int rc = once_pipeline_forget(pipeline, tenant ? cli_bytes(tenant) : (once_bytes){0},
                                        cli_bytes(operation ? operation : ""), cli_bytes(args[1]), &was, &err);
    const bool known = strcmp(was, "absent") != 0;
    if (json && rc == ONCE_OK) {
        printf("{\"key\":");
        cli_json_cstring(stdout, args[1]);
        printf(",\"forgotten\":%s,\"was\":\"%s\"}\n", known ? "true" : "false", was);
    } else if (json) {
        cli_json_failure(&err);
    } else if (rc == ONCE_OK) {
        printf("key '");
        cli_print_safe(cli_bytes(args[1]));
        if (known) printf("': forgotten; it was %s\n", was);
        else printf("': not in the store; nothing to forget\n");
    }
    once_pipeline_free(pipeline);
    return rc != ONCE_OK ? cli_fail(&err) : known ? CLI_OK : CLI_DEAD;
}
