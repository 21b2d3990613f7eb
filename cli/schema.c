/* once schema: prints the SQL that creates a store. */
#include "cli.h"

int cli_schema(int argc, char **argv)
{
    bool json = false;
    const cli_option options[] = {{"--json", NULL, "print one JSON object", &json, NULL}, {0}};
    char *args[1];
    int status;
    if (cli_parse(argc, argv, options, 1, 1, args, &status) < 0) return status;
    const char *sql;
    once_error err = {0};
    if (once_store_schema(args[0], &sql, &err) != ONCE_OK) return cli_fail(&err);
    if (json) {
        printf("{\"sql\":");
        cli_json_cstring(stdout, sql);
        printf("}\n");
    } else {
        fputs(sql, stdout);
    }
    return CLI_OK;
}
