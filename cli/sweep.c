/* once sweep: removes everything that has expired. A run does the same in small steps. */
#include <inttypes.h>
#include <unistd.h>

#include "cli.h"

static void on_progress(void *user, uint64_t dropped, double seconds)
{
    (void)user;
    fprintf(stderr, "\r\033[K%" PRIu64 " dropped  %.0f/s", dropped, seconds > 0 ? (double)dropped / seconds : 0);
    fflush(stderr);
}

int cli_sweep(int argc, char **argv)
{
    bool json = false;
    const cli_option options[] = {{"--json", NULL, "print one JSON object", &json, NULL}, {0}};
    char *args[1];
    int status;
    if (cli_parse(argc, argv, options, 1, 1, args, &status) < 0) return status;
    once_pipeline *pipeline;
    status = cli_load(args[0], json, &pipeline);
    if (status != CLI_OK) return status;
    cli_stop_on_signals(pipeline);
    once_error err = {0};
    uint64_t dropped;
    const bool terminal = isatty(STDERR_FILENO) && !json;
    const int rc = once_pipeline_sweep(pipeline, terminal ? on_progress : NULL, NULL, &dropped, &err);
    if (terminal) fputs("\r\033[K", stderr);
    if (json) {
        printf("{\"dropped\":%" PRIu64, dropped);
        cli_json_error(rc, &err);
        printf("}\n");
    } else if (rc == ONCE_OK) {
        printf("%" PRIu64 " expired record%s dropped\n", dropped, dropped == 1 ? "" : "s");
    }
    cli_unload(pipeline);
    return rc == ONCE_OK ? CLI_OK : cli_fail(&err);
}
