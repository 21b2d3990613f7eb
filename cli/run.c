/* once run: consumes and settles messages. On a terminal a line shows the progress; otherwise it is quiet until the
 * end. */
#include <inttypes.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "cli.h"

/* Handlers that were paused when the run ended. */
static once_snapshot last_of(once_pipeline *pipeline)
{
    once_snapshot last = {.size = sizeof last};
    once_error err;
    if (once_pipeline_snapshot(pipeline, &last, &err) != ONCE_OK) last = (once_snapshot){0};
    return last;
}

static void print_json(const once_summary *summary, uint64_t paused, uint64_t log_dropped, int rc,
                       const once_error *err)
{
    printf("{");
#define PRINT(name, text) printf("\"%s\":%" PRIu64 ",", #name, summary->counts.name);
    ONCE_COUNT_MAP(PRINT)
#undef PRINT
    printf("\"clock_doubted\":%s,", summary->clock_doubted ? "true" : "false");
    printf("\"stopped\":%s,\"store_dead\":%" PRIu64 ",\"store_unknown\":%" PRIu64 ",\"lost\":%" PRIu64
           ",\"paused\":%" PRIu64 ",\"log_dropped\":%" PRIu64 ",\"seconds\":%.3f",
           summary->stopped ? "true" : "false", summary->store_dead, summary->store_unknown, summary->lost, paused,
           log_dropped, summary->seconds);
    cli_json_error(rc, err);
    printf("}\n");
}

static void print_line(const char *name, uint64_t count, const char *text)
{
    if (count) printf("  %-10s %12" PRIu64 "  %s\n", name, count, text);
}

static void print_text(const once_summary *summary, const once_snapshot *last, uint64_t log_dropped)
{
    const once_counts *c = &summary->counts;
    const double rate = summary->seconds > 0 ? (double)(c->received + c->resumed) / summary->seconds : 0;
    const uint64_t count = c->received + c->resumed;
    printf("%" PRIu64 " message%s in %.1f s (%.0f/s)%s\n", count, count == 1 ? "" : "s", summary->seconds, rate,
           summary->stopped ? ", stopped before the end" : "");
#define PRINT(name, text) print_line(#name, c->name, text);
    ONCE_COUNT_MAP(PRINT)
#undef PRINT
    print_line("lost", summary->lost, "read from a source that cannot deliver again, and not known to be settled");
    print_line("log_dropped", log_dropped, "log lines that could not be written to standard error");
    if (last->paused) {
        printf("  ");
        cli_print_safe(cli_bytes(last->paused_text));
        printf("\n");
    }
    /* Others are of earlier runs, or an operator has decided about some of this run. */
    if (summary->store_dead != c->dead)
        printf("  %" PRIu64 " dead letter%s of this consumer %s in the store\n", summary->store_dead,
               summary->store_dead == 1 ? "" : "s", summary->store_dead == 1 ? "is" : "are");
    if (summary->store_unknown != c->unknown)
        printf("  %" PRIu64 " key%s of this consumer with an unknown outcome %s in the store%s\n",
               summary->store_unknown, summary->store_unknown == 1 ? "" : "s",
               summary->store_unknown == 1 ? "is" : "are", summary->store_unknown ? "; see 'once list --unknown'" : "");
}

typedef struct live {
    once_pipeline *pipeline;
    int64_t total; /* bytes of the source when it was first seen */
    uint64_t last_count;
    double last_seconds, rate;
    char waiting[160]; /* for which worker, and how long */
} live;

static void on_waiting(void *user, const char *text)
{
    live *l = user;
    snprintf(l->waiting, sizeof l->waiting, "%s", text);
}

/* Cuts the line at the width of the terminal, because the rest of a wrapped line would stay. */
static void show_line(const char *text)
{
    struct winsize window;
    const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 1;
    fprintf(stderr, "\r\033[K%.*s", known ? window.ws_col - 1 : 500, text);
    fflush(stderr);
}

enum { LAGS_SHOWN = 3 };

/* The streams of a broker: how much is left in all, and those with the most. */
typedef struct lags {
    size_t n; /* that have something left */
    int64_t all;
    bool known;
    char texts[LAGS_SHOWN][200]; /* "payments/0 100", or "payments: 80 ready, 20 in flight, 0 delayed" */
    int64_t left[LAGS_SHOWN];    /* descending */
} lags;

static bool add_lag(void *user, const once_stream_shown *stream)
{
    lags *l = user;
    if (strcmp(stream->unit, "messages") != 0) return false;
    if (stream->left < 0) return true;
    l->known = true;
    l->all += stream->left;
    if (stream->left == 0) return true;
    size_t at = l->n < LAGS_SHOWN ? l->n : LAGS_SHOWN;
    l->n++;
    while (at > 0 && l->left[at - 1] < stream->left) at--;
    if (at == LAGS_SHOWN) return true;
    memmove(l->left + at + 1, l->left + at, (LAGS_SHOWN - 1 - at) * sizeof *l->left);
    memmove(l->texts + at + 1, l->texts + at, (LAGS_SHOWN - 1 - at) * sizeof *l->texts);
    l->left[at] = stream->left;
    char *text = l->texts[at];
    if (*stream->parts) snprintf(text, sizeof l->texts[at], "%s: %s", stream->name, stream->parts);
    else snprintf(text, sizeof l->texts[at], "%s %" PRId64, stream->name, stream->left);
    return true;
}

/* "lag 120 (payments/0 100, payments/1 20)". False: the source is no broker. */
static bool write_lag(once_pipeline *pipeline, char *out, size_t size)
{
    lags all = {0};
    once_error err;
    if (once_pipeline_streams(pipeline, add_lag, &all, &err) != ONCE_OK || !all.known) return false;
    size_t len = (size_t)snprintf(out, size, "  lag %" PRId64, all.all);
    const size_t shown = all.n < LAGS_SHOWN ? all.n : LAGS_SHOWN;
    for (size_t i = 0; i < shown && len < size; i++)
        len += (size_t)snprintf(out + len, size - len, "%s%s", i ? ", " : " (", all.texts[i]);
    if (all.n > shown && len < size) len += (size_t)snprintf(out + len, size - len, ", %zu more", all.n - shown);
    if (shown && len < size) snprintf(out + len, size - len, ")");
    return true;
}

static void on_progress(void *user, const once_counts *c, int64_t left, double seconds)
{
    live *l = user;
    const uint64_t count = c->received + c->resumed;
    if (left > l->total) l->total = left;
    if (seconds > l->last_seconds) l->rate = (double)(count - l->last_count) / (seconds - l->last_seconds);
    l->last_count = count;
    l->last_seconds = seconds;
    char tail[400] = "", line[800];
    if (!write_lag(l->pipeline, tail, sizeof tail) && l->total > 0 && left >= 0) {
        const double read = (double)(l->total - left) / (double)l->total;
        char eta[20] = "";
        if (read > 0.01 && left > 0) cli_how_long(eta, sizeof eta, seconds * (1 - read) / read);
        snprintf(tail, sizeof tail, "  %.0f %% read%s%s", read * 100, *eta ? ", " : "", eta);
    }
    const uint64_t done = c->done + c->already + c->rejected + c->stale + c->skipped;
    if (l->waiting[0])
        snprintf(line, sizeof line, "%" PRIu64 " messages  %" PRIu64 " done  %" PRIu64 " dead  %s", count, done,
                 c->dead, l->waiting);
    else
        snprintf(line, sizeof line,
                 "%" PRIu64 " messages  %.0f/s  %" PRIu64 " done  %" PRIu64 " duplicates  %" PRIu64 " waiting  %" PRIu64
                 " dead%s",
                 count, l->rate, done, c->duplicates, c->waiting, c->dead, tail);
    show_line(line);
}

int cli_run(int argc, char **argv)
{
    bool json = false, confirm = false, new_store = false;
    const char *log_level = "warn", *log_format = "logfmt";
    const cli_option options[] = {
        {"--json", NULL, "print one JSON object at the end", &json, NULL},
        {"--confirm-scope-change", NULL, "accept a changed consumer, operation, key, fingerprint or salt", &confirm,
         NULL},
        {"--new-store", NULL, "accept an empty or different store although this pipeline used one before", &new_store,
         NULL},
        {"--log-level", "LEVEL", "error, warn (default), info or debug", NULL, &log_level},
        {"--log-format", "FORMAT", "logfmt (default) or json", NULL, &log_format},
        {0},
    };
    char *args[1];
    int status;
    cli_stop_on_signals(NULL); /* before anything that takes time */
    if (cli_parse(argc, argv, options, 1, 1, args, &status) < 0) return status;
    once_error err = {0};
    once_pipeline *running;
    if (once_logging_start(log_format, log_level, &err) != ONCE_OK) return cli_fail(&err);
    status = cli_load(args[0], json, &running);
    if (status != CLI_OK) {
        once_logging_stop();
        return status;
    }

    if (once_pipeline_has_secrets(running)) prctl(PR_SET_DUMPABLE, 0); /* no core dump, no debugger */
    cli_stop_on_signals(running);
    const bool terminal = isatty(STDERR_FILENO) && !json;
    live progress = {.pipeline = running};
    const once_run_options run_options = {
        .size = sizeof run_options,
        .confirm_scope_change = confirm,
        .progress = terminal ? on_progress : NULL,
        .user = &progress,
        .new_store = new_store,
        .waiting = terminal ? on_waiting : NULL,
    };
    once_summary summary;
    const int rc = once_pipeline_run(running, &run_options, &summary, &err);
    if (terminal) fputs("\r\033[K", stderr);
    const uint64_t log_dropped = once_logging_stop();
    if (rc != ONCE_OK) status = cli_fail(&err);
    else status = summary.store_dead || summary.store_unknown ? CLI_DEAD : CLI_OK;
    const once_snapshot last = last_of(running);
    if (json) print_json(&summary, last.paused, log_dropped, rc, &err);
    else if (rc == ONCE_OK || summary.counts.received || summary.counts.resumed || summary.lost || log_dropped)
        print_text(&summary, &last, log_dropped);
    cli_unload(running);
    return status;
}
