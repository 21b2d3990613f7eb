/* once status: counts the messages of a consumer by state, and lists its workers. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static void json_time(const char *name, int64_t ms)
{
    if (ms == ONCE_NO_TIME) printf(",\"%s\":null", name);
    else printf(",\"%s\":%" PRId64, name, ms);
}

static void json_bound(const char *name, uint64_t most)
{
    if (most == 0) printf(",\"%s\":null", name);
    else printf(",\"%s\":%" PRIu64, name, most);
}

static void as_json(const once_pipeline_state *s, const once_stored *stored, bool finished)
{
    printf("\"waiting\":%" PRIu64 ",\"busy\":%" PRIu64 ",\"unknown\":%" PRIu64 ",\"dead\":%" PRIu64
           ",\"backlog\":%" PRIu64 ",\"repeats\":%" PRIu64 ",\"given_up\":%" PRIu64 ",\"blocking\":%" PRIu64,
           s->waiting, s->busy, s->unknown, s->dead, s->backlog, s->repeats, s->given_up, s->blocking);
    printf(",\"stored\":{\"messages\":%" PRIu64 ",\"bytes\":%" PRIu64, stored->messages, stored->bytes);
    json_bound("messages_max", stored->messages_max);
    json_bound("bytes_max", stored->bytes_max);
    printf("}");
    if (finished)
        printf(",\"done\":%" PRIu64 ",\"already\":%" PRIu64 ",\"rejected\":%" PRIu64 ",\"stale\":%" PRIu64, s->done,
               s->already, s->rejected, s->stale);
    json_time("oldest_waiting_ms", s->oldest_waiting_ms);
    json_time("oldest_unknown_ms", s->oldest_unknown_ms);
    json_time("oldest_dead_ms", s->oldest_dead_ms);
    json_time("wait_ms", s->wait_ms < 0 ? ONCE_NO_TIME : s->wait_ms);
    json_time("wall_ms", s->now_ms);
    json_time("store_ms", s->store_ms);
    printf(",\"clock_doubted\":%s", s->clock_doubted ? "true" : "false");
}

static void line(const char *name, uint64_t n, const char *text, const char *since, int64_t ms)
{
    char time[40];
    printf("  %-10s %12" PRIu64 "  %s", name, n, text);
    if (ms != ONCE_NO_TIME) printf("; %s %s", since, cli_when(ms, time));
    putchar('\n');
}

static bool is_full(const once_stored *s)
{
    return (s->messages_max && s->messages >= s->messages_max) || (s->bytes_max && s->bytes >= s->bytes_max);
}

static void as_text(const once_pipeline_state *s, const once_stored *stored, bool finished)
{
    char store[40], wall[40], kept[120];
    if (s->clock_doubted)
        printf("  after a reboot the wall clock (%s) is far ahead of the store's time (%s) and is not trusted; see "
               "'once check'\n",
               cli_when(s->now_ms, wall), cli_when(s->store_ms, store));
    line("waiting", s->waiting,
         "waiting for a retry, a paused handler, another message of their lane, or a redelivery by their source",
         "the oldest is from", s->oldest_waiting_ms);
    line("backlog", s->backlog, "waiting messages that are due now", "", ONCE_NO_TIME);
    snprintf(kept, sizeof kept, "waiting and busy messages whose bodies the store keeps, %" PRIu64 " bytes%s",
             stored->bytes, is_full(stored) ? "; waiting_max is reached, so nothing is fetched" : "");
    line("stored", stored->messages, kept, "", ONCE_NO_TIME);
    line("busy", s->busy, "claimed by a worker", "", ONCE_NO_TIME);
    line("unknown", s->unknown, "keys whose effect may have happened; 'once list --unknown' shows them",
         "the oldest since", s->oldest_unknown_ms);
    line("repeats", s->repeats, "effects started again after an attempt that may have had its effect, in total", "",
         ONCE_NO_TIME);
    if (s->given_up)
        line("given_up", s->given_up, "versions that did not arrive within gap.wait, in total", "", ONCE_NO_TIME);
    line("dead", s->dead, "dead letters", "the oldest is from", s->oldest_dead_ms);
    if (s->blocking)
        line("blocking", s->blocking,
             "dead letters that block their lanes until they are replayed or discarded; 'once list --dead' shows which",
             "", ONCE_NO_TIME);
    if (!finished) return;
    line("done", s->done, "remembered: the effect happened", "", ONCE_NO_TIME);
    line("already", s->already, "remembered: it had already happened", "", ONCE_NO_TIME);
    line("rejected", s->rejected, "remembered: a business rule rejected it, or the letter was discarded", "",
         ONCE_NO_TIME);
    line("stale", s->stale, "remembered: superseded, or it changed nothing", "", ONCE_NO_TIME);
}

typedef struct shown_workers {
    bool json;
    size_t n;
    int64_t store_ms, wall_ms;
} shown_workers;

static void json_paused(const once_running *w)
{
    for (size_t i = 0; i < w->n_paused; i++) {
        const once_paused_handler *h = &w->paused[i];
        printf("%s{\"handler\":", i ? "," : "");
        cli_json_string(stdout, h->handler);
        printf(",\"cause\":");
        cli_json_string(stdout, h->cause);
        printf(",\"reason\":");
        cli_json_string(stdout, h->reason);
        printf(",\"since_ms\":%" PRId64 ",\"next_ms\":", h->since_ms);
        if (h->next_ms) printf("%" PRId64, h->next_ms);
        else printf("null");
        printf(",\"tries\":%" PRIu64 "}", h->tries);
    }
}

/* ", tried 3 times in vain, next in 4s" */
static void text_tries(const once_paused_handler *h, int64_t now_ms)
{
    char next[32];
    printf(", tried %" PRIu64 " time%s in vain, next ", h->tries, h->tries == 1 ? "" : "s");
    cli_how_long(next, sizeof next, (double)((h->next_ms - now_ms + 999) / 1000));
    if (h->next_ms == 0) printf("with its next message, because none of it waits");
    else if (h->next_ms > now_ms) printf("in %s", next);
    else printf("now");
}

static void text_paused(const once_running *w, int64_t now_ms)
{
    char since[40];
    for (size_t i = 0; i < w->n_paused; i++) {
        const once_paused_handler *h = &w->paused[i];
        printf("  paused     handler '");
        cli_print_safe(h->handler);
        printf("' of that worker (");
        cli_print_safe(h->cause);
        printf("), since %s", cli_when(h->since_ms, since));
        if (strcmp(w->state, "alive") == 0) text_tries(h, now_ms);
        printf(": ");
        cli_print_safe(h->reason);
        printf("\n");
    }
}

static bool show_worker(void *user, const once_running *w)
{
    shown_workers *shown = user;
    char since[40], ago[32];
    if (shown->json) {
        printf("%s{\"who\":", shown->n++ ? "," : "");
        cli_json_cstring(stdout, w->who);
        printf(",\"state\":\"%s\",\"begun_ms\":%" PRId64 ",\"seen_ms\":%" PRId64 ",\"done\":%" PRIu64
               ",\"rate\":%" PRIu64 ",\"holds\":%" PRIu64 ",\"lapsed\":%" PRIu64 ",\"paused\":[",
               w->state, w->begun_ms, w->seen_ms, w->done, w->rate, w->holds, w->lapsed);
        json_paused(w);
        printf("]}");
        return true;
    }
    shown->n++;
    cli_how_long(ago, sizeof ago, (double)(shown->store_ms > w->seen_ms ? shown->store_ms - w->seen_ms : 0) / 1000);
    printf("  worker     ");
    cli_print_safe(cli_bytes(w->who));
    printf(", %s, since %s, seen %s ago; settled %" PRIu64 ", %" PRIu64 " a second; holds %" PRIu64 " claim%s",
           w->state, cli_when(w->begun_ms, since), ago, w->done, w->rate, w->holds, w->holds == 1 ? "" : "s");
    if (w->lapsed) printf("; %" PRIu64 " further claim%s expired", w->lapsed, w->lapsed == 1 ? " has" : "s have");
    printf("\n");
    text_paused(w, shown->wall_ms);
    return true;
}

typedef struct shown_lag {
    bool json;
    size_t n, unknown;
    int64_t all;
    char *text; /* lines, or a JSON list */
    size_t len;
    FILE *to;
} shown_lag;

static void add_lag(void *user, const char *stream, int64_t left)
{
    shown_lag *l = user;
    if (left < 0) l->unknown++;
    else l->all += left;
    if (l->json) {
        fprintf(l->to, "%s{\"name\":", l->n ? "," : "");
        cli_json_cstring(l->to, stream);
        if (left < 0) fprintf(l->to, ",\"left\":null}");
        else fprintf(l->to, ",\"left\":%" PRId64 "}", left);
    } else if (left < 0) {
        fprintf(l->to, "  stream     %12s  %s\n", "?", stream);
    } else {
        fprintf(l->to, "  stream     %12" PRId64 "  %s\n", left, stream);
    }
    l->n++;
}

/* What is left in the source. A broker that does not answer is no failure of this verb. */
static void show_lag(once_pipeline *pipeline, bool json)
{
    shown_lag l = {.json = json};
    once_error why;
    l.to = open_memstream(&l.text, &l.len);
    if (!l.to) return;
    const int rc = once_pipeline_lag(pipeline, add_lag, &l, &why);
    fclose(l.to);
    if (json && rc == ONCE_OK) {
        printf(",\"lag\":{\"left\":%" PRId64 ",\"not_known\":%zu,\"streams\":[%s]}", l.all, l.unknown, l.text);
    } else if (json && rc == ONCE_E_UNSUPPORTED) {
        printf(",\"lag\":null");
    } else if (json) {
        printf(",\"lag\":{\"error\":");
        cli_json_cstring(stdout, why.text);
        printf("}");
    } else if (rc == ONCE_OK) {
        printf("  %-10s %12" PRId64 "  messages in the source that are not acked yet%s\n%s", "lag", l.all,
               l.unknown ? "; not known of all streams" : "", l.text);
    } else if (rc != ONCE_E_UNSUPPORTED) {
        printf("  %-10s %12s  could not be read: ", "lag", "?");
        cli_print_safe(cli_bytes(why.text));
        printf("\n");
    }
    free(l.text);
}

static int show(once_pipeline *pipeline, const once_pipeline_state *state, const once_stored *stored, bool json,
                bool finished, once_error *err)
{
    shown_workers shown = {.json = json, .store_ms = state->store_ms, .wall_ms = state->now_ms};
    if (!json) {
        as_text(state, stored, finished);
        show_lag(pipeline, false);
        return once_pipeline_workers(pipeline, show_worker, &shown, err);
    }
    printf("{");
    as_json(state, stored, finished);
    show_lag(pipeline, true);
    printf(",\"workers\":[");
    const int rc = once_pipeline_workers(pipeline, show_worker, &shown, err);
    printf("]");
    cli_json_error(rc, err);
    printf("}\n");
    return rc;
}

int cli_status(int argc, char **argv)
{
    bool json = false, finished = false;
    const cli_option options[] = {
        {"--json", NULL, "print one JSON object", &json, NULL},
        {"--finished", NULL, "also count remembered messages; reads all of them", &finished, NULL},
        {0},
    };
    char *args[1];
    int status;
    if (cli_parse(argc, argv, options, 1, 1, args, &status) < 0) return status;
    once_pipeline *pipeline;
    status = cli_load(args[0], json, &pipeline);
    if (status != CLI_OK) return status;
    once_error err = {0};
    once_pipeline_state state = {0};
    once_stored stored = {.size = sizeof stored};
    int rc = once_pipeline_status(pipeline, finished, &state, &err);
    if (rc == ONCE_OK) rc = once_pipeline_stored(pipeline, &stored, &err);
    if (rc == ONCE_OK) {
        status = state.dead || state.unknown ? CLI_DEAD : CLI_OK;
        rc = show(pipeline, &state, &stored, json, finished, &err);
    } else if (json) {
        cli_json_failure(&err);
    }
    if (rc != ONCE_OK) status = cli_fail(&err);
    once_pipeline_free(pipeline);
    return status;
}
