/* once explain: everything stored about a key, in sentences. */
#include <string.h>

#include "cli.h"

static void json_letters(const once_explanation *e)
{
    printf(",\"letters\":[");
    for (size_t i = 0; i < e->n_letters; i++) {
        const once_key_letter *l = &e->letters[i];
        printf("%s{\"letter\":%llu,\"kind\":\"%s\",\"count\":%llu,\"buried_ms\":%lld,\"last_ms\":%lld,\"reason\":",
               i ? "," : "", (unsigned long long)l->letter, l->kind, (unsigned long long)l->count,
               (long long)l->buried_ms, (long long)l->last_ms);
        cli_json_string(stdout, l->reason);
        if (l->idempotency_key[0]) printf(",\"idempotency_key\":\"%s\"", l->idempotency_key);
        printf("}");
    }
    printf("],\"all_letters\":%llu", (unsigned long long)e->all_letters);
}

static void json_paused(const once_explanation *e)
{
    if (!e->paused_by.len) return;
    printf(",\"paused\":{\"worker\":");
    cli_json_string(stdout, e->paused_by);
    printf(",\"handler\":");
    cli_json_string(stdout, e->paused_handler);
    printf(",\"cause\":");
    cli_json_string(stdout, e->paused_cause);
    printf(",\"reason\":");
    cli_json_string(stdout, e->paused_reason);
    printf(",\"since_ms\":%lld}", (long long)e->paused_ms);
}

static void as_json(const once_explanation *e, bool first)
{
    printf("%s{\"tenant\":", first ? "" : ",");
    cli_json_string(stdout, e->scope.tenant);
    printf(",\"consumer\":");
    cli_json_string(stdout, e->scope.consumer);
    printf(",\"operation\":");
    cli_json_string(stdout, e->scope.operation);
    printf(",\"key\":");
    cli_json_string(stdout, e->key);
    printf(",\"state\":\"%s\"", e->state);
    if (strcmp(e->state, "absent") != 0) {
        printf(",\"idempotency_key\":\"%s\"", e->idempotency_key);
        printf(",\"attempt\":%u,\"failures\":%u,\"seen_ms\":%lld,\"changed_ms\":%lld,\"place\":", e->attempt,
               e->failures, (long long)e->seen_ms, (long long)e->changed_ms);
        cli_json_string(stdout, e->place);
        printf(",\"point\":");
        cli_json_string(stdout, e->point);
        printf(",\"who\":");
        cli_json_string(stdout, e->who);
        if (e->worker.len) {
            printf(",\"worker\":");
            cli_json_string(stdout, e->worker);
        }
        cli_json_attempts(e->attempts, e->n_attempts);
        if (e->due_ms != ONCE_NO_TIME) printf(",\"due_ms\":%lld", (long long)e->due_ms);
        printf(",\"has_body\":%s,\"maybe_done\":%s", e->has_body ? "true" : "false", e->maybe_done ? "true" : "false");
        if (e->expires_ms == ONCE_FOREVER) printf(",\"expires_ms\":null");
        else if (e->expires_ms != ONCE_NO_TIME) printf(",\"expires_ms\":%lld", (long long)e->expires_ms);
        printf(",\"discarded\":%s", e->discarded ? "true" : "false");
        if (e->discarded_ms != ONCE_NO_TIME) {
            printf(",\"discarded_ms\":%lld,\"discarded_by\":", (long long)e->discarded_ms);
            cli_json_string(stdout, e->discarded_by);
        }
        printf(",\"reason\":");
        cli_json_string(stdout, e->reason);
        printf(",\"result\":");
        cli_json_string(stdout, e->result);
        cli_json_lane(&e->lane);
        json_paused(e);
    }
    json_letters(e);
    printf("}");
}

static const struct {
    const char *state, *sentence;
} sentences[] = {
    {"absent", "Nothing is stored about this key: it was never seen here, or it was forgotten. A message with this key "
               "would run, unless its lane or its time prevents it; --message shows that."},
    {"claimed", "A worker is processing it. Further deliveries do not run."},
    {"waiting", "The store owns its message and will hand it to a worker again. Further deliveries are duplicates."},
    {"unknown", "An attempt may have had its effect. Further deliveries do not run."},
    {"dead", "It became a dead letter. Further deliveries are suppressed."},
    {"done", "Its effect happened. Further deliveries are duplicates and are suppressed."},
    {"already", "Its effect had already happened, through another message. Further deliveries are duplicates."},
    {"rejected", "A business rule rejected it. Further deliveries are duplicates."},
    {"stale",
     "It was superseded by a newer version, or its update changed nothing. Further deliveries are duplicates."},
};

/* How long it is kept, for states that do not expire. */
static const struct {
    const char *state, *sentence;
} kept[] = {
    {"claimed", "It is kept until it has finished."},
    {"waiting", "It is kept until it has finished."},
    {"unknown", "It is kept until an operator decides: once resolve FILE KEY done|retry|dead."}, /* no lookup is due */
    {"dead", "It is kept until an operator replays or discards its letter."},
};

static void say(const char *before, once_bytes text, const char *after)
{
    printf("%s", before);
    cli_print_safe(text);
    printf("%s", after);
}

static void tell_first(const once_explanation *e)
{
    char time[40];
    printf("  First seen %s", cli_when(e->seen_ms, time));
    if (e->place.len) {
        say(" at ", e->place, ":");
        cli_print_safe(e->point);
    }
    if (e->who.len) say(", by ", e->who, "");
    printf(".\n");
}

/* The last attempt, if its lease has expired and no worker has claimed it since. */
static bool is_lost(const once_explanation *e, const once_attempt *a)
{
    return e->worker.len && strcmp(e->state, "claimed") != 0 && a == &e->attempts[e->n_attempts - 1];
}

static bool is_replacement(const once_attempt *a) { return strcmp(a->outcome, "replaced") == 0; }

/* Names the worker if it is not the one that saw the message first. */
static void tell_attempt(const once_explanation *e, const once_attempt *a)
{
    char time[40];
    if (is_replacement(a)) {
        printf("  After attempt %u, %s, a message with other content replaced the earlier one, whose effect had not "
               "happened",
               a->attempt, cli_when(a->ended_ms, time));
        if (a->who.len && !once_bytes_equal(a->who, e->who)) say(", by ", a->who, "");
        printf(".\n");
        return;
    }
    printf("  Attempt %u", a->attempt);
    if (a->who.len && !once_bytes_equal(a->who, e->who)) say(", by ", a->who, ",");
    if (strcmp(a->outcome, "silent") == 0)
        printf(" ended without reporting an outcome; %s %s", is_lost(e, a) ? "its lease expired" : "it was noticed",
               cli_when(a->ended_ms, time));
    else printf(" ended %s as %s", cli_when(a->ended_ms, time), a->outcome);
    if (a->reason.len) say(": ", a->reason, "");
    printf(".\n");
}

static void tell_attempts(const once_explanation *e)
{
    char time[40];
    const bool running = strcmp(e->state, "claimed") == 0;
    const uint32_t ended = running && e->attempt ? e->attempt - 1 : e->attempt;
    const uint32_t gone = !e->n_attempts ? ended : e->attempts[0].attempt - !is_replacement(&e->attempts[0]);
    if (e->attempt == 0) printf("  No attempt has begun yet.\n");
    if (gone == 1) printf("  The outcome of attempt 1 is not kept.\n");
    if (gone > 1) printf("  The outcomes of attempts 1 to %u are not kept.\n", gone);
    for (size_t i = 0; i < e->n_attempts; i++) tell_attempt(e, &e->attempts[i]);
    if (running) {
        printf("  Attempt %u began %s", e->attempt, cli_when(e->changed_ms, time));
        if (e->worker.len) say(", by ", e->worker, "");
        printf(".\n");
    } else if (e->attempt && !e->discarded &&
               (!e->n_attempts || e->attempts[e->n_attempts - 1].ended_ms != e->changed_ms))
        printf("  It last changed %s.\n", cli_when(e->changed_ms, time)); /* by an operator, or its lane */
    if (e->failures) printf("  %u failure%s counted.\n", e->failures, e->failures == 1 ? " is" : "s are");
}

static void tell_discarded(const once_explanation *e)
{
    char time[40];
    printf("  Its dead letter was discarded");
    if (e->discarded_ms != ONCE_NO_TIME) printf(" %s", cli_when(e->discarded_ms, time));
    if (e->discarded_by.len) say(", by ", e->discarded_by, "");
    printf(". Further deliveries are duplicates.\n");
}

/* The current reason, unless the last attempt gave it. */
static void tell_reason(const once_explanation *e)
{
    const once_attempt *last = e->n_attempts ? &e->attempts[e->n_attempts - 1] : NULL;
    if (e->reason.len && !(last && once_bytes_equal(last->reason, e->reason))) say("  Reason: ", e->reason, ".\n");
}

static void tell_lane(const once_explanation *e)
{
    if (!e->lane.id[0]) return;
    printf("  It is in ");
    cli_print_lane(&e->lane);
    printf(".\n");
    if (e->lane.gap && e->lane.missing_from == e->lane.missing_to)
        printf("  It waits for version %lld.\n", (long long)e->lane.missing_from);
    else if (e->lane.gap)
        printf("  It waits for versions %lld to %lld.\n", (long long)e->lane.missing_from,
               (long long)e->lane.missing_to);
    cli_print_before(&e->lane, e->lane.n_before);
}

static void tell_paused(const once_explanation *e)
{
    char time[40];
    if (!e->paused_by.len) return;
    say("  Its handler '", e->paused_handler, "'");
    say(" is paused (", e->paused_cause, ")");
    say(" by ", e->paused_by, "");
    printf(", since %s", cli_when(e->paused_ms, time));
    if (e->paused_reason.len) say(": ", e->paused_reason, "");
    printf(".\n");
}

static void tell_result(once_bytes result)
{
    if (cli_print_result("  Its result is ", result)) printf(".\n");
}

static void tell_letters(const once_explanation *e)
{
    char time[40];
    if (e->all_letters > e->n_letters)
        printf("  %llu dead letters have this key; the last %zu of them:\n", (unsigned long long)e->all_letters,
               e->n_letters);
    for (size_t i = 0; i < e->n_letters; i++) {
        const once_key_letter *l = &e->letters[i];
        printf("  %s letter %llu has this key: %s", strcmp(e->state, "absent") == 0 ? "However, dead" : "Dead",
               (unsigned long long)l->letter, l->kind);
        if (l->count > 1)
            printf(", delivered %llu times, last %s", (unsigned long long)l->count, cli_when(l->last_ms, time));
        if (l->reason.len && !once_bytes_equal(l->reason, e->reason)) say("; ", l->reason, "");
        if (l->idempotency_key[0] && strcmp(l->idempotency_key, e->idempotency_key) != 0)
            printf("; idempotency key %s", l->idempotency_key);
        printf(".\n");
    }
}

static void as_text(const once_explanation *e)
{
    char time[40];
    say("key '", e->key, "'");
    say(" of consumer '", e->scope.consumer, "'");
    if (e->scope.operation.len) say(", operation '", e->scope.operation, "'");
    if (e->scope.tenant.len) say(", tenant '", e->scope.tenant, "'");
    printf(": %s\n", e->state);
    const bool source_has_it = strcmp(e->state, "waiting") == 0 && !e->has_body;
    if (source_has_it) printf("  Only its source has its message; it may run when the source delivers it again.\n");
    if (e->discarded) tell_discarded(e);
    for (size_t i = 0; i < sizeof sentences / sizeof *sentences && !source_has_it && !e->discarded; i++)
        if (strcmp(sentences[i].state, e->state) == 0) printf("  %s\n", sentences[i].sentence);
    if (strcmp(e->state, "absent") == 0) {
        tell_letters(e);
        return;
    }
    printf("  Its idempotency key is %s.\n", e->idempotency_key);
    tell_first(e);
    tell_attempts(e);
    if (e->maybe_done && strcmp(e->state, "unknown") != 0)
        printf("  An attempt may have had its effect; another attempt may repeat it.\n");
    tell_lane(e);
    tell_paused(e);
    tell_reason(e);
    tell_result(e->result);
    tell_letters(e);
    if (e->due_ms != ONCE_NO_TIME)
        printf("  %s %s.\n",
               strcmp(e->state, "claimed") == 0   ? "The claim ends"
               : strcmp(e->state, "unknown") == 0 ? "The next lookup is not before"
                                                  : "It does not run before",
               cli_when(e->due_ms, time));
    if (e->expires_ms == ONCE_FOREVER) printf("  It is never forgotten.\n");
    else if (e->expires_ms != ONCE_NO_TIME)
        printf("  It is forgotten after %s%s.\n", cli_when(e->expires_ms, time),
               source_has_it ? ", unless it is delivered before" : "");
    const bool asked_later = strcmp(e->state, "unknown") == 0 && e->due_ms != ONCE_NO_TIME;
    if (asked_later) return; /* an operator decides only if no lookup does */
    if (strcmp(e->state, "unknown") == 0 && !e->has_body) {
        printf("  It is kept until an operator decides: once resolve FILE KEY done; or retry or dead, after its source "
               "has delivered its message again.\n");
        return;
    }
    for (size_t i = 0; i < sizeof kept / sizeof *kept && e->expires_ms == ONCE_NO_TIME; i++)
        if (strcmp(kept[i].state, e->state) == 0) printf("  %s\n", kept[i].sentence);
}

typedef struct explaining {
    bool json, first;
    const char *message; /* coordinates, or NULL */
    bool told;           /* the message's fate is printed */
} explaining;

static void on_explanation(void *user, const once_explanation *e)
{
    explaining *x = user;
    if (x->json) as_json(e, x->first);
    else as_text(e);
    x->first = false;
}

/* What happened to a message. */
static const struct {
    const char *fate, *sentence;
} fates[] = {
    {"first", "This message created the entry of its key."},
    {"duplicate", "Another message with the same key and the same content came first, so this one is a duplicate."},
    {"conflict", "Another message with the same key and other content came first."},
    {"replaces",
     "Another message with the same key and other content came first, but had no effect: this one would replace it."},
    {"letter", "It is a dead letter."},
    {"discarded",
     "It was a dead letter, which was discarded. While that is remembered, further deliveries are duplicates."},
    {"malformed", "No key can be made from it."},
    {"skipped", "It has no body, so it is skipped."},
    {"unseen", "Nothing is stored about its key: it was not delivered yet, or it was forgotten."},
};

static void on_fate(void *user, const once_fate *fate)
{
    explaining *x = user;
    if (x->json) {
        printf("\"message\":{\"fate\":\"%s\",\"key\":", fate->fate);
        cli_json_string(stdout, fate->key);
        printf(",\"operation\":");
        cli_json_string(stdout, fate->scope.operation);
        printf(",\"reason\":");
        cli_json_string(stdout, fate->reason);
        printf(",\"letter\":%llu,\"count\":%llu", (unsigned long long)fate->letter, (unsigned long long)fate->count);
        if (fate->line.len) {
            printf(",\"line\":");
            cli_json_string(stdout, fate->line);
        }
        if (fate->column) printf(",\"column\":%llu", (unsigned long long)fate->column);
        printf("},\"entries\":[");
        x->told = true;
        return;
    }
    printf("message %s: %s", x->message, fate->fate);
    if (fate->letter) printf(" %llu", (unsigned long long)fate->letter);
    if (fate->count > 1) printf(", delivered %llu times", (unsigned long long)fate->count);
    putchar('\n');
    for (size_t i = 0; i < sizeof fates / sizeof *fates; i++)
        if (strcmp(fates[i].fate, fate->fate) == 0) printf("  %s\n", fates[i].sentence);
    if (strcmp(fate->fate, "unseen") == 0)
        say("  It ", fate->reason.len ? fate->reason : cli_bytes("would run"), ".\n");
    else if (fate->reason.len) say("  Reason: ", fate->reason, ".\n");
    cli_print_line(fate->line, fate->column);
}

/* "in.ndjson:17": the point is after the last colon. "payments/3/88123": after the last slash, if that is a number. */
static const char *find_point(const char *coordinates)
{
    const char *colon = strrchr(coordinates, ':'), *slash = strrchr(coordinates, '/');
    if (colon) return colon;
    return slash && slash[1] && strspn(slash + 1, "0123456789") == strlen(slash + 1) ? slash : NULL;
}

static int explain_message(once_pipeline *pipeline, explaining *x, once_error *err)
{
    const char *colon = find_point(x->message);
    if (!colon || colon == x->message || !colon[1])
        return once_fail(
            err, ONCE_E_USAGE,
            "'%s' are not coordinates; write PLACE:POINT, as in 'payments.ndjson:17' or 'payments/3:88123'",
            x->message);
    return once_pipeline_explain_message(pipeline, (once_bytes){x->message, (size_t)(colon - x->message)},
                                         cli_bytes(colon + 1), on_fate, on_explanation, x, err);
}

int cli_explain(int argc, char **argv)
{
    explaining x = {.first = true};
    const char *tenant = NULL;
    const cli_option options[] = {
        {"--json", NULL, "print one JSON object", &x.json, NULL},
        {"--tenant", "NAME", "the tenant of the key", NULL, &tenant},
        {"--message", "COORDINATES", "explain the message at these coordinates instead of a KEY", NULL, &x.message},
        {0},
    };
    char *args[2];
    int status;
    const int n = cli_parse(argc, argv, options, 1, 2, args, &status);
    if (n < 0) return status;
    if ((n == 2) == (x.message != NULL)) {
        cli_say("once explain: give either a KEY or --message COORDINATES");
        return CLI_USAGE;
    }
    once_pipeline *pipeline;
    status = cli_load(args[0], x.json, &pipeline);
    if (status != CLI_OK) return status;
    once_error err = {0};
    if (x.json) printf(x.message ? "{" : "{\"entries\":[");
    const int rc = x.message ? explain_message(pipeline, &x, &err)
                             : once_pipeline_explain(pipeline, tenant ? cli_bytes(tenant) : (once_bytes){0},
                                                     cli_bytes(args[1]), on_explanation, &x, &err);
    if (x.json) {
        if (x.message && !x.told) printf("\"entries\":[");
        printf("]");
        cli_json_error(rc, &err);
        printf("}\n");
    }
    once_pipeline_free(pipeline);
    return rc == ONCE_OK ? CLI_OK : cli_fail(&err);
}
