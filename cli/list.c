/* once list: unfinished messages, dead letters, and the audit. Bodies are shown only on request, except for malformed
 * lines, which have nothing else to identify them. */
#include <inttypes.h>
#include <string.h>

#include "choice.h"

enum { BEFORE = 1 }; /* messages shown before a waiting one; each has a line of its own */

typedef struct listing {
    bool json, body, first;
} listing;

static void json_field(const char *name, once_bytes text)
{
    printf(",\"%s\":", name);
    cli_json_string(stdout, text);
}

static void as_json(const listing *l, const once_listed *e)
{
    printf("%s{\"state\":\"%s\"", l->first ? "" : ",", e->state);
    if (e->letter) printf(",\"letter\":%" PRIu64 ",\"kind\":\"%s\"", e->letter, e->kind);
    json_field("tenant", e->scope.tenant);
    json_field("operation", e->scope.operation);
    json_field("key", e->key);
    if (e->idempotency_key[0]) printf(",\"idempotency_key\":\"%s\"", e->idempotency_key);
    json_field("type", e->type);
    json_field("place", e->place);
    json_field("point", e->point);
    printf(",\"attempt\":%u,\"failures\":%u,\"seen_ms\":%" PRId64 ",\"changed_ms\":%" PRId64, e->attempt, e->failures,
           e->seen_ms, e->changed_ms);
    if (e->letter) printf(",\"count\":%" PRIu64 ",\"last_ms\":%" PRId64, e->count, e->last_ms);
    if (e->due_ms != ONCE_NO_TIME) printf(",\"due_ms\":%" PRId64, e->due_ms);
    if (e->worker.len) json_field("worker", e->worker);
    if (e->maybe_done) printf(",\"maybe_done\":true");
    json_field("reason", e->reason);
    cli_json_lane(&e->lane);
    if (e->line.len) {
        json_field("line", e->line);
        if (e->column) printf(",\"column\":%" PRIu64, e->column);
    }
    cli_json_attempts(e->attempts, e->n_attempts);
    printf(",\"has_body\":%s", e->has_body ? "true" : "false");
    if (l->body && e->has_body) {
        cli_json_body(e->body, e->bytes);
        if (e->headers.len) json_field("headers", e->headers);
    }
    printf("}");
}

/* A message with other content replaced an earlier one under this key. */
static bool was_replaced(const once_listed *e)
{
    for (size_t i = 0; i < e->n_attempts; i++)
        if (strcmp(e->attempts[i].outcome, "replaced") == 0) return true;
    return false;
}

/* Names the worker whose attempt never reported; the reason says that it did not. */
static void print_silent(const once_listed *e)
{
    const once_attempt *last =
        e->n_attempts && e->state[0] != 'b' && !e->letter ? &e->attempts[e->n_attempts - 1] : NULL;
    if (!last || strcmp(last->outcome, "silent") != 0 || !last->who.len) return;
    printf("  (attempt %u, by ", last->attempt);
    cli_print_safe(last->who);
    putchar(')');
}

static void as_text(const listing *l, const once_listed *e)
{
    char time[40];
    printf("%s", e->letter ? e->kind : e->state);
    if (e->letter) printf(" %" PRIu64, e->letter);
    if (e->key.len) printf("  ");
    cli_print_key(e->key, &e->scope);
    if (e->idempotency_key[0]) printf(" (%s)", e->idempotency_key);
    if (e->place.len) {
        printf("  ");
        cli_print_safe(e->place);
        printf(":");
        cli_print_safe(e->point);
    }
    printf("  ");
    if (e->lane.id[0]) {
        cli_print_lane(&e->lane);
        printf("  ");
    }
    if (e->key.len) printf("%u attempt%s, ", e->attempt, e->attempt == 1 ? "" : "s");
    printf("%s", cli_when(e->changed_ms, time));
    if (e->letter && e->count > 1)
        printf("  delivered %" PRIu64 " times, last %s", e->count, cli_when(e->last_ms, time));
    if (e->due_ms != ONCE_NO_TIME)
        printf("  %s %s",
               e->state[0] == 'b'   ? "until"
               : e->state[0] == 'u' ? "next lookup not before"
                                    : "not before",
               cli_when(e->due_ms, time));
    if (e->worker.len && e->state[0] == 'b') {
        printf("  by ");
        cli_print_safe(e->worker);
    }
    if (e->state[0] == 'w' && !e->has_body) printf("  waits for its source to deliver it again");
    if (was_replaced(e)) printf("  replaced");
    if (e->letter && e->maybe_done) printf("  may have had its effect");
    if (e->reason.len) {
        printf("  ");
        cli_print_safe(e->reason);
    }
    print_silent(e);
    putchar('\n');
    cli_print_before(&e->lane, BEFORE);
    if (!l->body) cli_print_line(e->line, e->column);
    if (!l->body || !e->has_body) return;
    printf("    ");
    cli_print_body(e->body, e->bytes);
    putchar('\n');
}

static bool on_item(void *user, const once_listed *item)
{
    listing *l = user;
    if (l->json) as_json(l, item);
    else as_text(l, item);
    l->first = false;
    return !ferror(stdout);
}

static bool on_audit(void *user, const once_audited *a)
{
    listing *l = user;
    char time[40];
    if (l->json) {
        printf("%s{\"time_ms\":%" PRId64, l->first ? "" : ",", a->time_ms);
        json_field("who", a->who);
        json_field("what", a->what);
        json_field("tenant", a->tenant);
        json_field("operation", a->operation);
        json_field("key", a->key);
        json_field("idempotency_key", a->idempotency_key);
        printf(",\"letter\":%" PRIu64, a->letter);
        json_field("note", a->note);
        if (l->body && a->body.len) cli_json_body(a->body, a->bytes);
        printf("}");
    } else {
        printf("%s  ", cli_when(a->time_ms, time));
        cli_print_safe(a->who);
        printf("  ");
        cli_print_safe(a->what);
        if (a->letter) printf("  letter %" PRIu64, a->letter);
        if (a->key.len) printf("  ");
        cli_print_key(a->key, &(once_scope){.tenant = a->tenant, .operation = a->operation});
        if (a->idempotency_key.len) {
            printf(" (");
            cli_print_safe(a->idempotency_key);
            putchar(')');
        }
        if (a->note.len) printf("  ");
        cli_print_safe(a->note);
        putchar('\n');
        if (l->body && a->body.len) {
            printf("    replaced: ");
            cli_print_body(a->body, a->bytes);
            putchar('\n');
        }
    }
    l->first = false;
    return !ferror(stdout);
}

int cli_list(int argc, char **argv)
{
    listing l = {.first = true};
    const char *by = NULL;
    bool waiting = false, unknown = false, dead = false, busy = false, audit = false;
    const cli_option options[] = {
        {"--json", NULL, "print one JSON object", &l.json, NULL},
        {"--waiting", NULL, "messages that wait for a retry or behind another message", &waiting, NULL},
        {"--unknown", NULL, "messages whose effect may have happened", &unknown, NULL},
        {"--dead", NULL, "dead letters", &dead, NULL},
        {"--busy", NULL, "messages that a worker has claimed", &busy, NULL},
        {"--by", "WHAT", "print counts by reason, type, handler or hour, with an example of each", NULL, &by},
        {"--body", NULL, "include bodies, which may be secret; a malformed line is always shown", &l.body, NULL},
        {"--audit", NULL, "list the actions of operators instead", &audit, NULL},
        {0},
    };
    char *args[1];
    int status;
    if (cli_parse(argc, argv, options, 1, 1, args, &status) < 0) return status;
    unsigned what = (waiting ? ONCE_LIST_WAITING : 0u) | (unknown ? ONCE_LIST_UNKNOWN : 0u) |
                    (dead ? ONCE_LIST_DEAD : 0u) | (busy ? ONCE_LIST_BUSY : 0u);
    if (audit && (what || by)) {
        cli_say("once list: --audit cannot be combined with other options");
        return CLI_USAGE;
    }
    if (by && !cli_groups_know(by)) {
        cli_say("once list: --by must be reason, type, handler or hour, not '%s'", by);
        return CLI_USAGE;
    }
    if (!what) what = ONCE_LIST_WAITING | ONCE_LIST_UNKNOWN | ONCE_LIST_DEAD | ONCE_LIST_BUSY;
    once_pipeline *pipeline;
    status = cli_load(args[0], l.json, &pipeline);
    if (status != CLI_OK) return status;
    once_error err = {0};
    if (by) {
        status = cli_list_groups(pipeline, what, by, l.json);
        once_pipeline_free(pipeline);
        return status;
    }
    if (l.json) printf("{\"%s\":[", audit ? "audit" : "messages");
    const int rc = audit ? once_pipeline_audits(pipeline, on_audit, &l, &err)
                         : once_pipeline_list(pipeline, what, on_item, &l, &err);
    if (l.json) {
        printf("]");
        cli_json_error(rc, &err);
        printf("}\n");
    }
    once_pipeline_free(pipeline);
    return rc == ONCE_OK ? CLI_OK : cli_fail(&err);
}
