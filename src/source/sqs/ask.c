/* What `once check` asks the queue: its limits, and its dead-letter queue. */
#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/duration.h"
#include "source/sqs/sqs.h"

#include "base/banned.h"

typedef struct asking {
    sqs_source *q;
    once_source_report *report;
    void *user;
    char of[200]; /* "queue 'payments'" */
    once_arena arena;
    once_json json; /* of the attributes */
    once_json_value attributes;
} asking;

static void say(const asking *a, bool warning, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void say(const asking *a, bool warning, const char *format, ...)
{
    char text[900];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(text, sizeof text, format, list);
    va_end(list);
    const once_source_finding finding = {.text = text, .warning = warning};
    a->report(a->user, &finding);
}

static void tell_limit(const asking *a, once_source_limit limit, const char *setting, int64_t value, const char *why)
{
    const once_source_finding finding = {
        .limit = limit, .value = value, .of = a->of, .setting = setting, .text = value < 0 ? why : NULL};
    a->report(a->user, &finding);
}

/* --- attributes --------------------------------------------------------------------------------------------------- */

static int64_t attribute(asking *a, const char *name)
{
    return once__sqs_number(once_json_member(&a->json, a->attributes, once_bytes_of(name)), &a->arena);
}

static bool is_true(asking *a, const char *name)
{
    return once_json_string_is(once_json_member(&a->json, a->attributes, once_bytes_of(name)), ONCE_BYTES("true"));
}

/* Asks for all attributes of a queue. */
static int ask_attributes(asking *a, once_bytes url, int64_t ms, once_error *err)
{
    sqs_call *call = &a->q->aside->calls[0];
    once__sqs_new(call, "GetQueueAttributes");
    once_buf_puts(&call->body, "{\"QueueUrl\":");
    once_buf_json(&call->body, url);
    once_buf_puts(&call->body, ",\"AttributeNames\":[\"All\"]}");
    const int rc = once__sqs_ask(&a->q->aside->client, call, ms, err);
    if (rc != ONCE_OK) return rc;
    once_bytes text;
    if (!once_arena_copy(&a->arena, once_buf_bytes(&call->answer), &text) ||
        once_json_parse(&a->json, text, NULL, NULL) != ONCE_OK)
        return once_fail(err, ONCE_E_UNAVAILABLE, "GetQueueAttributes: the answer of '%s' cannot be used",
                         a->q->server);
    a->attributes = once_json_member(&a->json, once_json_root(&a->json), ONCE_BYTES("Attributes"));
    return ONCE_OK;
}

static void begin(asking *a, sqs_source *q, once_source_report *report, void *user)
{
    *a = (asking){.q = q, .report = report, .user = user};
    (void)snprintf(a->of, sizeof a->of, "queue '%.*s'", (int)q->sqs->name.len, q->sqs->name.data);
    once_json_init(&a->json);
}

static void end(asking *a)
{
    once_json_release(&a->json);
    once_arena_release(&a->arena);
}

/* --- the dead-letter queue ---------------------------------------------------------------------------------------- */

typedef struct policy {
    char account[32], name[100]; /* of the dead-letter queue */
    int64_t deliveries;          /* -1: there is no policy */
} policy;

/* {"deadLetterTargetArn":"arn:aws:sqs:REGION:ACCOUNT:NAME","maxReceiveCount":3} */
static policy read_policy(asking *a)
{
    policy p = {.deliveries = -1};
    once_bytes text, arn;
    once_json json;
    once_json_init(&json);
    if (once__sqs_text(&a->json, a->attributes, "RedrivePolicy", &a->arena, &text) &&
        once_json_parse(&json, text, NULL, NULL) == ONCE_OK) {
        const once_json_value root = once_json_root(&json);
        p.deliveries = once__sqs_number(once_json_member(&json, root, ONCE_BYTES("maxReceiveCount")), &a->arena);
        char copy[300] = "";
        if (once__sqs_text(&json, root, "deadLetterTargetArn", &a->arena, &arn) && arn.len < sizeof copy)
            memcpy(copy, arn.data, arn.len);
        char *name = strrchr(copy, ':');
        if (name) *name++ = '\0';
        const char *account = name ? strrchr(copy, ':') : NULL;
        if (account) {
            (void)snprintf(p.name, sizeof p.name, "%s", name);
            (void)snprintf(p.account, sizeof p.account, "%s", account + 1);
        }
    }
    once_json_release(&json);
    return p;
}

/* How long it keeps messages, in seconds; -1: it does not say, and `err` why. */
static int64_t ask_dead_letters(asking *a, const policy *p, once_error *err)
{
    sqs_call *call = &a->q->aside->calls[0];
    once_json json;
    once_bytes url;
    once__sqs_new(call, "GetQueueUrl");
    once_buf_puts(&call->body, "{\"QueueName\":");
    once_buf_json(&call->body, once_bytes_of(p->name));
    once_buf_puts(&call->body, ",\"QueueOwnerAWSAccountId\":");
    once_buf_json(&call->body, once_bytes_of(p->account));
    once_buf_puts(&call->body, "}");
    if (once__sqs_ask(&a->q->aside->client, call, ONCE_SQS_CALL_MS, err) != ONCE_OK) return -1;
    once_json_init(&json);
    const bool found = once_json_parse(&json, once_buf_bytes(&call->answer), NULL, NULL) == ONCE_OK &&
                       once__sqs_text(&json, once_json_root(&json), "QueueUrl", &a->arena, &url) &&
                       once_arena_copy(&a->arena, url, &url);
    once_json_release(&json);
    (void)once_fail(err, ONCE_E_UNAVAILABLE, "the server does not tell it");
    return found && ask_attributes(a, url, ONCE_SQS_CALL_MS, err) == ONCE_OK ? attribute(a, "MessageRetentionPeriod")
                                                                             : -1;
}

/* Of a standard queue a message keeps the time when it was first sent: in the dead-letter queue it is deleted when that
 * one's retention is over, counted from there. */
static void say_dead_letters(asking *a, const policy *p, int64_t retention_s)
{
    once_error why;
    char kept[ONCE_DURATION_TEXT], there[ONCE_DURATION_TEXT];
    const int64_t dead_s = ask_dead_letters(a, p, &why);
    if (dead_s < 0) {
        say(a, true, "could not ask how long the dead-letter queue '%s' keeps messages: %s", p->name, why.text);
        return;
    }
    (void)once_duration_format(dead_s * 1000, there);
    say(a, false, "after %" PRId64 " deliveries a message goes to the dead-letter queue '%s', which keeps it for %s",
        p->deliveries, p->name, there);
    if (a->q->sqs->fifo || retention_s < 0 || dead_s > retention_s) return;
    say(a, true,
        "the dead-letter queue '%s' keeps messages for %s, not longer than the queue (%s), and counts from when a "
        "message was first sent: one that goes there late is deleted soon after; raise its MessageRetentionPeriod",
        p->name, there, once_duration_format(retention_s * 1000, kept));
}

/* --- for `once check` --------------------------------------------------------------------------------------------- */

static void say_kind(asking *a)
{
    char visible[ONCE_DURATION_TEXT];
    (void)once_duration_format(atomic_load(&a->q->visibility_ms), visible);
    say(a, false, "%s is a %s queue at '%s'; messages of a worker that dies come again after %s", a->of,
        a->q->sqs->fifo ? "FIFO" : "standard", a->q->server, visible);
    if (is_true(a, "ContentBasedDeduplication"))
        say(a, false, "%s drops a second message with the same body within 5 minutes (ContentBasedDeduplication)",
            a->of);
}

static void say_all(asking *a)
{
    const int64_t retention_s = attribute(a, "MessageRetentionPeriod");
    const policy p = read_policy(a);
    say_kind(a);
    tell_limit(a, ONCE_LIMIT_RETENTION, "MessageRetentionPeriod", retention_s < 0 ? -1 : retention_s * 1000,
               "the server does not tell it");
    tell_limit(a, ONCE_LIMIT_HOLD, "the time from receive to delete", ONCE_SQS_HELD_MS, NULL);
    if (p.deliveries < 0) {
        say(a, false, "%s has no dead-letter queue: what is never settled comes again until it is too old", a->of);
        return;
    }
    tell_limit(a, ONCE_LIMIT_DELIVERIES, "maxReceiveCount", p.deliveries, NULL);
    if (p.deliveries < 3)
        say(a, true,
            "%s gives a message up after %" PRId64 " deliveries (maxReceiveCount), and a crash or a restart of a "
            "worker spends one: good messages may go to the dead-letter queue; raise it to 5 or more",
            a->of, p.deliveries);
    say_dead_letters(a, &p, retention_s);
}

int once__sqs_report(once_source *source, const once_facts *facts, once_source_report *report, void *user,
                     once_error *err)
{
    (void)facts;
    sqs_source *q = once__sqs(source);
    assert(q->purpose == ONCE_OPEN_CHECK && q->aside);
    asking a;
    once_error why;
    int rc = once__sqs_find_queue(q, err);
    if (rc != ONCE_OK) return rc;
    begin(&a, q, report, user);
    if (ask_attributes(&a, once_bytes_of(q->url), ONCE_SQS_CALL_MS, &why) == ONCE_OK) {
        say_all(&a);
    } else {
        tell_limit(&a, ONCE_LIMIT_RETENTION, "MessageRetentionPeriod", -1, why.text);
        tell_limit(&a, ONCE_LIMIT_DELIVERIES, "maxReceiveCount", -1, "the same");
    }
    end(&a);
    return rc;
}
