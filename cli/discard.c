/* once discard: drops dead letters. */
#include <inttypes.h>
#include <stdlib.h>

#include "choice.h"

typedef struct discarding {
    bool json, dry_run, first;
} discarding;

static void on_letter(void *user, const once_discarded *l)
{
    discarding *d = user;
    if (d->json) {
        printf("%s{\"letter\":%" PRIu64, d->first ? "" : ",", l->letter);
        printf(",\"discarded\":%s", l->found ? "true" : "false");
        if (l->found) {
            printf(",\"kind\":\"%s\"", l->kind);
            cli_json_key(l->key, &l->scope, l->idempotency_key);
            cli_json_origin(l->type, l->place, l->point, l->reason);
        }
        printf("}");
    } else if (l->found) {
        printf("letter %" PRIu64, l->letter);
        if (l->key.len) printf("  ");
        cli_print_key(l->key, &l->scope);
        printf(": %s", d->dry_run ? "would be discarded" : "discarded");
        cli_print_origin(l->place, l->point, l->reason);
        putchar('\n');
    } else {
        printf("letter %" PRIu64 ": there is no such letter\n", l->letter);
    }
    d->first = false;
}

static int discard(const char *file, discarding *d, const once_discard_options *options)
{
    once_pipeline *pipeline;
    int status = cli_load(file, d->json, &pipeline);
    if (status != CLI_OK) return status;
    once_error err = {0};
    uint64_t gone = 0;
    if (d->json) printf("{\"dry_run\":%s,\"letters\":[", d->dry_run ? "true" : "false");
    const int rc = once_pipeline_discard(pipeline, options, &gone, &err);
    if (d->json) {
        printf("],\"count\":%" PRIu64, gone);
        cli_json_error(rc, &err);
        printf("}\n");
    } else if (rc == ONCE_OK && !options->ids && gone == 0) {
        printf("no letter matches\n");
    } else if (rc == ONCE_OK && !options->ids) {
        printf("%" PRIu64 " letter%s %s\n", gone, gone == 1 ? "" : "s",
               d->dry_run ? "would be discarded" : "discarded");
    }
    once_pipeline_free(pipeline);
    return rc != ONCE_OK ? cli_fail(&err) : options->ids && gone < options->n_ids ? CLI_DEAD : CLI_OK;
}

int cli_discard(int argc, char **argv)
{
    discarding d = {.first = true};
    cli_choice choice = {0};
    const cli_option options[] = {
        {"--json", NULL, "print one JSON object", &d.json, NULL},
        CLI_CHOICE(choice, "letter", "were created"),
        {"--dry-run", NULL, "print which letters would be discarded; change nothing", &d.dry_run, NULL},
        {0},
    };
    char **args = calloc((size_t)argc, sizeof *args);
    uint64_t *ids = calloc((size_t)argc, sizeof *ids);
    int status = CLI_FAILED, n = -1;
    if (args && ids) n = cli_parse(argc, argv, options, 1, argc, args, &status);
    if (n > 0) {
        const bool named = n > 1;
        once_discard_options how = {.size = sizeof how,
                                    .ids = named ? ids : NULL,
                                    .n_ids = (size_t)n - 1,
                                    .dry_run = d.dry_run,
                                    .visit = on_letter,
                                    .user = &d};
        status = CLI_USAGE;
        if (cli_choice_read(&choice, named ? CLI_NAMED_IDS : CLI_NAMED_NOT, "letter ids", &how.choice) &&
            cli_letter_ids(args + 1, n - 1, ids))
            status = discard(args[0], &d, &how);
    }
    free(args);
    free(ids);
    return status;
}
