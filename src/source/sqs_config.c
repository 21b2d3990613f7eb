/* Reads and checks the SQS source's part of the pipeline file. Knows nothing of libcurl and of AWS: what credentials
 * there are is found out when the source is opened. */
#include <string.h>

#include "core/config_values.h"
#include "source/source.h"
#include "source/sqs_spec.h"

#include "base/banned.h"

#define NAME_MAX_BYTES 80 /* of a queue, as SQS allows */
#define FIFO ".fifo"

static bool starts_with(once_bytes text, const char *prefix)
{
    const size_t len = strlen(prefix);
    return text.len >= len && memcmp(text.data, prefix, len) == 0;
}

static bool is_fifo(once_bytes name)
{
    const size_t len = strlen(FIFO);
    return name.len > len && memcmp(name.data + name.len - len, FIFO, len) == 0;
}

static bool is_url(once_bytes text) { return starts_with(text, "https://") || starts_with(text, "http://"); }

static bool is_queue_name(once_bytes name)
{
    const size_t len = is_fifo(name) ? name.len - strlen(FIFO) : name.len;
    if (len == 0 || name.len > NAME_MAX_BYTES) return false;
    for (size_t i = 0; i < len; i++) {
        const char c = name.data[i];
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!letter && !(c >= '0' && c <= '9') && c != '-' && c != '_') return false;
    }
    return true;
}

/* What stands behind the last '/' of a text; a URL has some. */
static once_bytes last_part(once_bytes text)
{
    size_t at = text.len;
    while (at > 0 && text.data[at - 1] != '/') at--;
    return (once_bytes){text.data + at, text.len - at};
}

bool once_sqs_is_plain_url(once_bytes text)
{
    const size_t scheme = strlen(starts_with(text, "https://") ? "https://" : "http://");
    if (!is_url(text) || text.len == scheme) return false;
    for (size_t i = 0; i < text.len; i++)
        if (text.data[i] <= ' ' || text.data[i] == 0x7f || strchr("@?#\"\\<>", text.data[i])) return false;
    return text.data[scheme] != '/' && text.data[scheme] != ':';
}

static bool read_queue(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_sqs_spec *sqs = out;
    once_bytes text;
    if (!once_config_scalar(config, field, node, &text)) return false;
    const once_bytes name = last_part(text);
    const bool good = is_url(text) ? once_sqs_is_plain_url(text) : name.len == text.len;
    if (good && is_queue_name(name)) {
        sqs->queue = text;
        sqs->name = name;
        sqs->fifo = is_fifo(name);
        return true;
    }
    once_config_wrong(
        config, ONCE_E_CONFIG, node->line,
        "'queue': '%s' is neither the URL nor the name of a queue (letters, digits, '-', '_'; %d bytes at "
        "most; '.fifo' at the end of a FIFO queue)%s; write 'queue: %s'",
        once_config_show(text).text, NAME_MAX_BYTES, starts_with(text, "arn:") ? ", but an ARN" : "", field->example);
    return false;
}

static bool read_endpoint(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_sqs_spec *sqs = out;
    if (!once_config_scalar(config, field, node, &sqs->endpoint)) return false;
    if (once_sqs_is_plain_url(sqs->endpoint)) return true;
    once_config_wrong(config, ONCE_E_CONFIG, node->line,
                      "'endpoint' must be a URL without a password; write 'endpoint: %s'", field->example);
    return false;
}

/* A duration that SQS takes in whole seconds. */
static bool read_seconds(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_config_field duration = *field;
    duration.type = ONCE_CONFIG_DURATION;
    if (!once_config_read_field(config, &duration, node, out)) return false;
    if (*(const int64_t *)((const char *)out + field->offset) % 1000 == 0) return true;
    once_config_wrong(config, ONCE_E_CONFIG, node->line, "'%s' must be whole seconds; write '%s: %s'", field->name,
                      field->name, field->example);
    return false;
}

static const once_config_field fields[] = {
    {.name = "queue",
     .type = ONCE_CONFIG_CUSTOM,
     .required = true,
     .read = read_queue,
     .shape = "a URL or a name",
     .example = "https://sqs.eu-central-1.amazonaws.com/123456789012/payments",
     .text = "The queue. By its URL, it may be one of another account; by its name, it is one of the account of the "
             "credentials."},
    {.name = "region",
     .type = ONCE_CONFIG_STRING,
     ONCE_CONFIG_AT(once_sqs_spec, region),
     .min = 1,
     .max = 64,
     .example = "eu-central-1",
     .standard_text = "that of the queue's URL, or of the environment or profile",
     .text = "The region to sign for."},
    {.name = "endpoint",
     .type = ONCE_CONFIG_CUSTOM,
     .read = read_endpoint,
     .shape = "a URL",
     .example = "http://localhost:9324",
     .standard_text = "that of the environment (`AWS_ENDPOINT_URL_SQS`), the queue's URL, or the region",
     .text = "Where requests go: a VPC endpoint, or a server that speaks SQS's JSON protocol."},
    {.name = "profile",
     .type = ONCE_CONFIG_STRING,
     ONCE_CONFIG_AT(once_sqs_spec, profile),
     .min = 1,
     .max = 255,
     .example = "payments",
     .standard_text = "that of the environment",
     .text = "The profile of `~/.aws/config` that has the credentials; those of the environment do not count then."},
    {.name = "wait",
     .type = ONCE_CONFIG_CUSTOM,
     .read = read_seconds,
     ONCE_CONFIG_AT(once_sqs_spec, wait_ms),
     .shape = "duration in whole seconds, 0s to 20s",
     .min = 0,
     .max = 20000,
     .standard = "20s",
     .example = "20s",
     .text = "How long a receive waits for a message (long polling). Neither acks nor a stop wait for it."},
    {.name = "receivers",
     .type = ONCE_CONFIG_INTEGER,
     ONCE_CONFIG_AT(once_sqs_spec, receivers),
     .min = 1,
     .max = 50,
     .example = "4",
     .standard_text = "a tenth of `batch`, at most 10",
     .text = "How many receives may wait or run at a time; each gets up to 10 messages. As long as the queue is empty "
             "there is one."},
    {.name = "visibility",
     .type = ONCE_CONFIG_CUSTOM,
     .read = read_seconds,
     ONCE_CONFIG_AT(once_sqs_spec, visibility_ms),
     .shape = "duration in whole seconds, 1s to 12h",
     .min = 1000,
     .max = INT64_C(12) * 3600 * 1000,
     .example = "60s",
     .standard_text = "the queue's `VisibilityTimeout`, or 30s if it may not be read",
     .text = "How long a message stays hidden from other consumers without a sign of its worker. It is extended as "
             "long as the worker lives; so this is the time after which messages of a dead worker come again."},
};

static const once_config_section section = {
    .name = "an SQS source",
    .title = "sqs",
    .text =
        "A queue of Amazon SQS, standard or FIFO. Coordinates are the queue and the message id, as in\n"
        "`123456789012/payments:5fea7756-0ea4-451a-a703-a558b933e274`. docs/sqs.md says what is promised.\n"
        "\n"
        "Credentials are never in this file: they come from where AWS's own tools find them (environment,\n"
        "profile, web identity, container, instance).\n"
        "\n"
        "Templates may have `${source:message_id}`, `${source:group}`, `${source:deduplication_id}`,\n"
        "`${source:sequence_number}`, `${source:sender}`, `${source:sent}` (milliseconds), `${source:trace}`\n"
        "and `${source:dead_letter_of}` (the ARN of the queue that a message of a dead-letter queue comes from),\n"
        "where the message has them, and `${header:NAME}` for message attributes. An attribute of type Binary has "
        "no\n"
        "value as text. `${source:receive_count}` says how often SQS has delivered the message; it differs at each\n"
        "delivery, so only effects may use it. For a FIFO queue, `order` is `${source:group}` unless the file says "
        "otherwise.",
    .fields = fields,
    .n = sizeof fields / sizeof *fields,
};

/* A group of a FIFO queue is a lane: its messages take effect in order, one at a time. */
static const char *order(const once_node *own)
{
    const once_node *queue = once_node_member(own, "queue");
    return queue && queue->kind == ONCE_NODE_SCALAR && is_fifo(queue->text) ? "${source:group}" : NULL;
}

static void doubts(const once_source_spec *source, bool shared, once_source_warning *warn, void *user)
{
    (void)source;
    if (shared)
        warn(user, "${coordinates} are the queue and the message id: a message that its producer sends again, or that "
                   "is moved back from a dead-letter queue, has another id and takes effect again; use a field that "
                   "names the event");
}

static void conclude(once_source_spec *source)
{
    source->name = once_sqs_of(source)->name;
    source->bits = ONCE_SOURCE_SINGLE_ACKS | ONCE_SOURCE_EXPIRES | ONCE_SOURCE_TIMED;
}

static bool is_of_this_host(once_bytes url)
{
    const once_bytes host = {url.data + strlen("http://"), url.len - strlen("http://")};
    static const char *const hosts[] = {"localhost", "127.", "[::1]"};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++)
        if (starts_with(host, hosts[i])) return true;
    return false;
}

static void exposed(const once_source_spec *source, once_source_warning *warn, void *user)
{
    const once_sqs_spec *sqs = once_sqs_of(source);
    const once_bytes url = sqs->endpoint.len ? sqs->endpoint : sqs->queue;
    if (starts_with(url, "http://") && !is_of_this_host(url))
        warn(user, "messages are received without TLS, so others in the network may read them and answer in place of "
                   "the server; write https://");
}

/* Credentials are never in the file, but a process that reads a queue has some, so it must leave no core. */
static void visit_secrets(const once_source_spec *source, once_secret_visit *visit, void *user)
{
    (void)source;
    visit(user, ONCE_BYTES("env:AWS_SECRET_ACCESS_KEY"), false);
}

static const char *const names[] = {"message_id", "group", "deduplication_id", "sequence_number", "sender",
                                    "sent",       "trace", "dead_letter_of",   "receive_count",   NULL};
static const char *const varying[] = {"receive_count", NULL};
static const char *const numbered[] = {"message_id", "sequence_number", NULL};

const once_source_kind once__source_sqs = {
    .name = "sqs",
    .summary = "a queue of Amazon SQS, standard or FIFO",
    .unit = "messages",
    .module = "sqs",
    .field = {.name = "sqs",
              .type = ONCE_CONFIG_SECTION,
              .section = &section,
              .example = "{queue: payments, region: eu-central-1}",
              .text = "A queue of Amazon SQS."},
    .size = sizeof(once_sqs_spec),
    .names = names,
    .varying = varying,
    .numbered = numbered,
    .order = order,
    .conclude = conclude,
    .doubts = doubts,
    .exposed = exposed,
    .secrets = visit_secrets,
};
