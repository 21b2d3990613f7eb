/* once check: tests a pipeline without reading a message, and prints the findings. */
#include "cli.h"

#include <string.h>
#include <unistd.h>

typedef struct checking {
    bool json, first;
    bool progress; /* a progress line is on the terminal */
} checking;

/* Overwrites the progress line. */
static void show_progress(checking *c, const char *text)
{
    if (c->json || !isatty(STDERR_FILENO)) return;
    fprintf(stderr, "\r\033[K%s", text);
    fflush(stderr);
    c->progress = true;
}

static void end_progress(checking *c)
{
    if (c->progress) fprintf(stderr, "\r\033[K");
    c->progress = false;
}

static void on_finding(void *user, const char *topic, const char *text, bool warning)
{
    checking *c = user;
    if (strcmp(topic, "progress") == 0) {
        show_progress(c, text);
        return;
    }
    end_progress(c);
    if (!c->json) {
        printf("%s", warning ? "warning: " : "");
        cli_print_safe(cli_bytes(topic));
        printf(": ");
        cli_print_safe(cli_bytes(text));
        printf("\n");
        return;
    }
    printf("%s{\"topic\":", c->first ? "" : ",");
    cli_json_cstring(stdout, topic);
    printf(",\"text\":");
    cli_json_cstring(stdout, text);
    printf(",\"warning\":%s}", warning ? "true" : "false");
    c->first = false;
}

/* Done first: the operator's confirmation counts even if the check fails. */
static int confirm_clock(once_pipeline *pipeline, checking *c, once_error *err)
{
    int64_t before_ms, after_ms;
    char text[200], before[40], after[40];
    const int rc = once_pipeline_confirm_clock(pipeline, &before_ms, &after_ms, err);
    if (rc != ONCE_OK) return rc;
    snprintf(text, sizeof text, "the store's time was %s; it is now set to the wall clock, %s",
             cli_when(before_ms, before), cli_when(after_ms, after));
    on_finding(c, "clock", text, false);
    return ONCE_OK;
}

/* If there is no store, the check ends here, because it would create one. */
static int take_store(once_pipeline *pipeline, checking *c, bool *there, once_error *err)
{
    const int rc = once_pipeline_take_store(pipeline, there, err);
    if (rc != ONCE_OK) return rc;
    on_finding(c, "new-store",
               *there ? "from now on this pipeline uses the store at this URL"
                      : "no store exists at this URL, and none was created; the next run creates one, or accepts the "
                        "one that exists "
                        "by then",
               false);
    return ONCE_OK;
}

static int repair(once_pipeline *pipeline, checking *c, once_error *err)
{
    uint64_t n;
    char text[260];
    const int rc = once_pipeline_repair(pipeline, &n, err);
    if (rc != ONCE_OK) return rc;
    snprintf(text, sizeof text,
             "%llu entries, lanes or letters were repaired and count as before; lost names show as '(lost)', and a "
             "lane whose record was lost no longer knows its last version, so an older version may run",
             (unsigned long long)n);
    on_finding(c, "repair", n ? text : "nothing had to be repaired", false);
    return ONCE_OK;
}

int cli_check(int argc, char **argv)
{
    checking c = {.first = true};
    bool confirm = false, deep = false, mend = false, new_store = false, there = true;
    const cli_option options[] = {
        {"--json", NULL, "print one JSON object", &c.json, NULL},
        {"--confirm-clock", NULL, "the wall clock is right: set the store's time to it, forward or back (audited)",
         &confirm, NULL},
        {"--new-store", NULL,
         "accept the store at this URL, or the next one created, in place of the one used before (audited)", &new_store,
         NULL},
        {"--repair", NULL,
         "restore lost names, places in lanes and indexes, and times of a PostgreSQL or Redis store from its remaining "
         "entries (audited)",
         &mend, NULL},
        {"--deep", NULL,
         "read the whole store and report what is inconsistent or, where the store has checksums, does not match them",
         &deep, NULL},
        {0},
    };
    char *args[1];
    int status;
    if (cli_parse(argc, argv, options, 1, 1, args, &status) < 0) return status;
    once_pipeline *pipeline;
    status = cli_load(args[0], c.json, &pipeline);
    if (status != CLI_OK) return status;
    once_error err = {0};
    if (c.json) printf("{\"findings\":[");
    int rc = new_store ? take_store(pipeline, &c, &there, &err) : ONCE_OK;
    if (rc == ONCE_OK && confirm) rc = confirm_clock(pipeline, &c, &err);
    if (rc == ONCE_OK && mend) rc = repair(pipeline, &c, &err);
    if (rc == ONCE_OK && deep) rc = once_pipeline_verify(pipeline, on_finding, &c, &err);
    end_progress(&c);
    if (rc == ONCE_OK && there) rc = once_pipeline_check(pipeline, on_finding, &c, &err);
    if (c.json) {
        printf("],\"ok\":%s", rc == ONCE_OK ? "true" : "false");
        cli_json_error(rc, &err);
        printf("}\n");
    } else if (rc == ONCE_OK) {
        printf("ok: ");
        cli_print_safe(cli_bytes(args[0]));
        printf("\n");
    }
    once_pipeline_free(pipeline);
    return rc == ONCE_OK ? CLI_OK : cli_fail(&err);
}
