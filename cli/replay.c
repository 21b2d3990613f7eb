/* once replay: puts dead letters back to work. On a terminal a line shows the progress and the time left. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "choice.h"

typedef struct replaying {
    bool json, dry_run, terminal, first;
    uint64_t maybe_done; /* letters that move and may repeat an effect */
} replaying;

static void clear_line(const replaying *r)
{
    if (r->terminal) fputs("\r\033[K", stderr);
}

/* A dry run prints every letter; otherwise only letters that stay are printed, because millions may move. */
static void on_letter(void *user, const once_replayed *l)
{
    replaying *r = user;
    const bool leaves = once_replay_verdict_leaves(l->verdict);
    r->maybe_done += leaves && l->maybe_done;
    if (!r->dry_run && leaves && !r->json) return;
    if (r->json) {
        printf("%s{\"letter\":%" PRIu64, r->first ? "" : ",", l->letter);
        printf(",\"verdict\":\"%s\",\"leaves\":%s", once_replay_verdict_name(l->verdict), leaves ? "true" : "false");
        if (l->maybe_done) printf(",\"maybe_done\":true");
        cli_json_key(l->key, &l->scope, l->idempotency_key);
        cli_json_origin(l->type, l->place, l->point, l->reason);
        if (l->result.len) {
            printf(",\"result\":");
            cli_json_string(stdout, l->result);
        }
        printf("}");
    } else {
        clear_line(r);
        printf("letter %" PRIu64, l->letter);
        if (l->key.len) printf("  ");
        cli_print_key(l->key, &l->scope);
        printf("  %s: %s", once_replay_verdict_name(l->verdict), once_replay_verdict_text(l->verdict));
        if (l->maybe_done && leaves) printf("; it may repeat an effect");
        cli_print_origin(l->place, l->point, (once_bytes){0});
        if (l->idempotency_key[0]) printf("  idempotency key %s", l->idempotency_key);
        cli_print_origin((once_bytes){0}, (once_bytes){0}, l->reason);
        cli_print_result("  its result is ", l->result);
        putchar('\n');
    }
    r->first = false;
}

static void on_progress(void *user, uint64_t looked_at, uint64_t total, double seconds)
{
    const replaying *r = user;
    char left[20] = "";
    if (!r->terminal) return;
    if (looked_at && looked_at < total)
        cli_how_long(left, sizeof left, seconds * (double)(total - looked_at) / (double)looked_at);
    fprintf(stderr, "\r\033[K%" PRIu64 " of %" PRIu64 " letters  %.0f/s%s%s", looked_at, total,
            seconds > 0 ? (double)looked_at / seconds : 0, *left ? "  left: " : "", left);
    fflush(stderr);
}

static void print_counts(const replaying *r, const once_replay_counts *counts)
{
    uint64_t total = 0, left = 0;
    for (int i = 0; i < ONCE_REPLAY_VERDICTS; i++) {
        total += counts->verdicts[i];
        if (once_replay_verdict_leaves((once_replay_verdict)i)) left += counts->verdicts[i];
    }
    if (total == 0 && !counts->stopped) {
        printf("no letter matches\n");
        return;
    }
    printf("%" PRIu64 " letter%s%s, %" PRIu64 " %s%s\n", total, total == 1 ? "" : "s",
           r->dry_run ? " in a dry run" : "", left,
           r->dry_run ? "would be removed from the dead letters" : "removed from the dead letters",
           counts->stopped ? "; stopped before the end" : "");
    for (int i = 0; i < ONCE_REPLAY_VERDICTS; i++)
        if (counts->verdicts[i])
            printf("  %-10s %12" PRIu64 "  %s\n", once_replay_verdict_name((once_replay_verdict)i), counts->verdicts[i],
                   once_replay_verdict_text((once_replay_verdict)i));
    if (r->maybe_done)
        printf("%" PRIu64 " of these may repeat an effect: an earlier attempt may have had it\n", r->maybe_done);
}

static void json_counts(const replaying *r, const once_replay_counts *counts)
{
    printf(",\"counts\":{");
    for (int i = 0; i < ONCE_REPLAY_VERDICTS; i++)
        printf("%s\"%s\":%" PRIu64, i ? "," : "", once_replay_verdict_name((once_replay_verdict)i),
               counts->verdicts[i]);
    printf("},\"maybe_done\":%" PRIu64 ",\"stopped\":%s", r->maybe_done, counts->stopped ? "true" : "false");
}

static bool stayed(const once_replay_counts *counts)
{
    for (int i = 0; i < ONCE_REPLAY_VERDICTS; i++)
        if (counts->verdicts[i] && !once_replay_verdict_leaves((once_replay_verdict)i)) return true;
    return counts->stopped;
}

static bool read_rate(const char *text, uint32_t *out)
{
    char *end;
    if (!text) return true;
    errno = 0;
    const unsigned long n = strtoul(text, &end, 10);
    if (text[0] >= '0' && text[0] <= '9' && !*end && !errno && n > 0 && n <= 1000000000) {
        *out = (uint32_t)n;
        return true;
    }
    cli_say("once replay: --rate must be a number of letters per second, not '%s'", text);
    return false;
}

static int replay(const char *file, replaying *r, once_replay_options *how)
{
    once_pipeline *pipeline;
    int status = cli_load(file, r->json, &pipeline);
    if (status != CLI_OK) return status;
    cli_stop_on_signals(pipeline);
    once_error err = {0};
    once_replay_counts counts;
    r->terminal = isatty(STDERR_FILENO) && !r->json;
    if (r->json) printf("{\"dry_run\":%s,\"letters\":[", r->dry_run ? "true" : "false");
    const int rc = once_pipeline_replay(pipeline, how, &counts, &err);
    clear_line(r);
    if (r->json) {
        printf("]");
        json_counts(r, &counts);
        cli_json_error(rc, &err);
        printf("}\n");
    } else if (rc == ONCE_OK) {
        print_counts(r, &counts);
    }
    cli_unload(pipeline);
    return rc != ONCE_OK ? cli_fail(&err) : stayed(&counts) ? CLI_DEAD : CLI_OK;
}

/* Refuses a FIFO, a device or a socket, which may never end; '-' reads standard input instead. NULL: see errno, which
 * is 0 for these. */
static FILE *open_regular(const char *path)
{
    struct stat about;
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) return NULL;
    FILE *file = NULL;
    if (fstat(fd, &about) == 0) {
        errno = 0;
        if (S_ISREG(about.st_mode)) file = fdopen(fd, "rb");
    }
    const int why = errno;
    if (!file) close(fd);
    errno = why;
    return file;
}

/* Reads the whole file, or standard input. NULL: it has printed why. */
static char *read_body(const char *path, size_t *len)
{
    enum { MOST = 1 << 30, STEP = 1 << 16 };
    FILE *file = strcmp(path, "-") == 0 ? stdin : open_regular(path);
    char *body = NULL;
    size_t room = 0;
    *len = 0;
    bool fine = file != NULL;
    while (fine && !feof(file) && *len < MOST) {
        if (room - *len < STEP) {
            room = room ? 2 * room : STEP;
            char *grown = realloc(body, room);
            if (!grown) break;
            body = grown;
        }
        *len += fread(body + *len, 1, room - *len, file);
        fine = !ferror(file);
    }
    fine = fine && feof(file);
    const char *why = file && !ferror(file) ? "it is too large"
                      : errno               ? strerror(errno)
                                            : "it is not a regular file; pass it on standard input with --body -";
    if (!fine) cli_say("once replay: cannot read the body from '%s': %s", path, why);
    if (file && file != stdin) fclose(file);
    if (!fine) {
        free(body);
        return NULL;
    }
    return body;
}

int cli_replay(int argc, char **argv)
{
    replaying r = {.first = true};
    once_replay_options how = {.size = sizeof how, .visit = on_letter, .progress = on_progress, .user = &r};
    const char *rate = NULL, *body_file = NULL;
    cli_choice choice = {0};
    char *body = NULL;
    once_bytes given = {0};
    const cli_option options[] = {
        {"--json", NULL, "print one JSON object", &r.json, NULL},
        CLI_CHOICE(choice, "letter", "were created"),
        {"--body", "FILE",
         "replay one letter with the body in FILE ('-': standard input); the audit keeps the old body", NULL,
         &body_file},
        {"--dry-run", NULL, "print what would happen to each letter; change nothing", &r.dry_run, NULL},
        {"--rate", "N", "replay at most N letters per second", NULL, &rate},
        {"--force", NULL, "replay even if the key has finished or the message is too old: the effect happens again",
         &how.force, NULL},
        {0},
    };
    char **args = calloc((size_t)argc, sizeof *args);
    uint64_t *ids = calloc((size_t)argc, sizeof *ids);
    int status = CLI_FAILED, n = -1;
    if (args && ids) n = cli_parse(argc, argv, options, 1, argc, args, &status);
    if (n > 0 && !cli_choice_read(&choice, n > 1 ? CLI_NAMED_IDS : CLI_NAMED_NOT, "letter ids", &how.choice)) {
        status = CLI_USAGE;
    } else if (n > 0 && body_file && n != 2) {
        cli_say("once replay: --body needs the id of exactly one letter");
        status = CLI_USAGE;
    } else if (n > 0 && body_file && !(body = read_body(body_file, &given.len))) {
        status = CLI_USAGE;
    } else if (n > 0) {
        given.data = body;
        if (body_file) how.body = &given;
        how.ids = n > 1 ? ids : NULL;
        how.n_ids = (size_t)n - 1;
        how.dry_run = r.dry_run;
        status = CLI_USAGE;
        if (cli_letter_ids(args + 1, n - 1, ids) && read_rate(rate, &how.rate)) status = replay(args[0], &r, &how);
    }
    free(args);
    free(ids);
    free(body);
    return status;
}
