/* once discard: dead letters that nobody will work on. */
#include <inttypes.h>
#include <stdlib.h>

#include "choice.h"

enum { AT_ONCE = 500 }; /* letters in a transaction */

typedef struct discarding {
    bool json, dry_run, failed;
    cli_choice choice;
    uint64_t *ids;
    size_t n, room;
} discarding;

static bool add(discarding *d, uint64_t id)
{
    if (d->n == d->room) {
        const size_t room = d->room ? 2 * d->room : 64;
        uint64_t *ids = realloc(d->ids, room * sizeof *ids);
        if (!ids) return false;
        d->ids = ids;
        d->room = room;
    }
    d->ids[d->n++] = id;
    return true;
}

static bool on_letter(void *user, const once_listed *item)
{
    discarding *d = user;
    if (!cli_choice_fits(&d->choice, item)) return true;
    d->failed = !add(d, item->letter);
    return !d->failed;
}

static void tell(const discarding *d, bool first, uint64_t id, bool found)
{
    const char *done = d->dry_run ? "would be discarded" : "discarded";
    if (d->json) printf("%s{\"letter\":%" PRIu64 ",\"discarded\":%s}", first ? "" : ",", id, found && !d->dry_run ? "true" : "false");
    else printf("letter %" PRIu64 ": %s\n", id, found ? done : "there is no such letter");
}

/* In transactions of some letters: whoever ends it in between can say it again. */
static int discard_all(discarding *d, once_pipeline *pipeline, size_t *gone, once_error *err)
{
    int rc = ONCE_OK;
    for (size_t at = 0; at < d->n && rc == ONCE_OK; at += AT_ONCE) {
        bool found[AT_ONCE] = {false};
        const size_t n = d->n - at < AT_ONCE ? d->n - at : AT_ONCE;
        if (!d->dry_run) rc = once_pipeline_discard(pipeline, d->ids + at, n, found, err);
        for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
            tell(d, at + i == 0, d->ids[at + i], found[i] || d->dry_run);
            *gone += found[i] || d->dry_run;
        }
    }
    return rc;
}

static int discard(const char *file, discarding *d, bool named)
{
    once_pipeline *pipeline;
    int status = cli_load(file, d->json, &pipeline);
    if (status != CLI_OK) return status;
    once_error err = {0};
    size_t gone = 0;
    int rc = named ? ONCE_OK : once_pipeline_list(pipeline, ONCE_LIST_DEAD, on_letter, d, &err);
    if (rc == ONCE_OK && d->failed) rc = once_fail(&err, ONCE_E_NOMEM, "out of memory for the letters");
    if (d->json) printf("{\"dry_run\":%s,\"letters\":[", d->dry_run ? "true" : "false");
    if (rc == ONCE_OK) rc = discard_all(d, pipeline, &gone, &err);
    if (d->json) {
        printf("],\"count\":%zu", gone);
        cli_json_error(rc, &err);
        printf("}\n");
    } else if (rc == ONCE_OK && !named) {
        printf("%zu letter%s %s\n", gone, gone == 1 ? "" : "s", d->dry_run ? "would be discarded" : "discarded");
    }
    once_pipeline_free(pipeline);
    return rc != ONCE_OK ? cli_fail(&err) : gone < d->n ? CLI_DEAD : CLI_OK;
}

int cli_discard(int argc, char **argv)
{
    discarding d = {0};
    const cli_option options[] = {
        {"--json", NULL, "one object on standard output", &d.json, NULL},
        CLI_CHOICE(d.choice, "letter", "were buried"),
        {"--dry-run", NULL, "say which letters it would be, and change nothing", &d.dry_run, NULL},
        {0},
    };
    char **args = calloc((size_t)argc, sizeof *args);
    int status = CLI_FAILED, n = -1;
    d.ids = calloc((size_t)argc, sizeof *d.ids);
    d.room = (size_t)argc;
    if (args && d.ids) n = cli_parse(argc, argv, options, 1, argc, args, &status);
    if (n > 0) {
        const bool named = n > 1;
        status = CLI_USAGE;
        if (cli_choice_read(&d.choice, named, "letters: ids") && cli_letter_ids(args + 1, n - 1, d.ids)) {
            d.n = named ? (size_t)n - 1 : 0;
            status = discard(args[0], &d, named);
        }
    }
    free(args);
    free(d.ids);
    return status;
}
