/* Reads and checks the Kafka source's part of the pipeline file. Knows nothing of librdkafka: names and values of its
 * properties are checked by the library when the source is opened. */
#include <assert.h>
#include <regex.h>
#include <string.h>

#include "core/config_values.h"
#include "source/kafka_spec.h"
#include "source/source.h"

#include "base/banned.h"

/* --- topics ------------------------------------------------------------------------------------------------------- */

#define TOPIC_MAX 249 /* bytes, as Kafka allows */

static bool is_topic_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
}

static bool is_topic(once_bytes name)
{
    if (name.len == 0 || name.len > TOPIC_MAX || once__is_text(name, ".") || once__is_text(name, "..")) return false;
    for (size_t i = 0; i < name.len; i++)
        if (!is_topic_byte(name.data[i])) return false;
    return true;
}

bool once__kafka_place(once_bytes place, once_bytes *topic, int32_t *partition)
{
    size_t slash = place.len;
    int64_t number = 0;
    while (slash > 0 && place.data[slash - 1] != '/') slash--;
    if (slash == 0 || slash == place.len || place.len - slash > 10) return false;
    for (size_t i = slash; i < place.len; i++) {
        if (place.data[i] < '0' || place.data[i] > '9') return false;
        number = number * 10 + (place.data[i] - '0');
    }
    const bool padded = place.data[slash] == '0' && place.len > slash + 1;
    if (number > INT32_MAX || padded || !is_topic((once_bytes){place.data, slash - 1})) return false;
    *topic = (once_bytes){place.data, slash - 1};
    *partition = (int32_t)number;
    return true;
}

static bool check_topic(once_config *config, const once_node *node, once_bytes topic)
{
    const once_config_shown shown = once_config_show(topic);
    if (once_kafka_is_pattern(topic)) {
        regex_t compiled;
        char why[100] = "it needs more than '^'; write '^payments-.*'"; /* a text of the file has a NUL behind it */
        const int error = topic.len > 1 ? regcomp(&compiled, topic.data, REG_EXTENDED | REG_NOSUB) : 0;
        if (topic.len > 1 && error) (void)regerror(error, &compiled, why, sizeof why);
        else if (topic.len > 1) regfree(&compiled);
        if (topic.len > 1 && !error) return true;
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "'topics': '%s' is no pattern: %s", shown.text, why);
        return false;
    }
    if (is_topic(topic)) return true;
    once_config_wrong(config, ONCE_E_CONFIG, node->line,
                      "'topics': '%s' is no name of a topic (letters, digits, '.', '_', '-'; %d bytes at most); a "
                      "pattern begins with '^'",
                      shown.text, TOPIC_MAX);
    return false;
}

static bool join(once_config *config, const once_bytes *list, size_t n, once_bytes *out)
{
    size_t len = 0;
    for (size_t i = 0; i < n; i++) len += list[i].len + 1;
    char *text = once_arena_alloc(config->arena, len + 1);
    if (!text) {
        config->nomem = true;
        return false;
    }
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        if (i) text[at++] = ',';
        memcpy(text + at, list[i].data, list[i].len);
        at += list[i].len;
    }
    text[at] = '\0';
    *out = (once_bytes){text, at};
    return true;
}

static const once_config_field topic_list = {.name = "topics",
                                             .type = ONCE_CONFIG_STRINGS,
                                             ONCE_CONFIG_AT(once_kafka_spec, topics),
                                             .count = offsetof(once_kafka_spec, n_topics),
                                             .min = 1,
                                             .max = 1000,
                                             .example = "[payments]"};

static bool read_topics(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_kafka_spec *kafka = out;
    (void)field;
    if (!once_config_read_field(config, &topic_list, node, out)) return false;
    bool ok = true;
    const once_node *item = node->kind == ONCE_NODE_LIST ? node->first : node;
    for (size_t i = 0; i < kafka->n_topics; i++) {
        ok = check_topic(config, item ? item : node, kafka->topics[i]) && ok;
        for (size_t j = 0; j < i; j++) {
            if (!once_bytes_equal(kafka->topics[i], kafka->topics[j])) continue;
            once_config_wrong(config, ONCE_E_CONFIG, item ? item->line : node->line,
                              "'topics': '%s' is there twice; keep one", once_config_show(kafka->topics[i]).text);
            ok = false;
            break;
        }
        item = item ? item->next : NULL;
    }
    return ok && join(config, kafka->topics, kafka->n_topics, &kafka->joined);
}

/* --- properties of librdkafka ------------------------------------------------------------------------------------- */

/* Properties that a user cannot set, and what to do instead. */
static const struct {
    const char *name, *instead;
} reserved[] = {
    {"bootstrap.servers", "use 'brokers'"},
    {"metadata.broker.list", "use 'brokers'"},
    {"group.id", "use 'group'"},
    {"group.instance.id", "use 'instance'"},
    {"auto.offset.reset", "use 'start' and 'out_of_range'"},
    {"enable.auto.commit", "once commits an offset when everything up to it is settled; remove it"},
    {"enable.auto.offset.store", "once commits an offset when everything up to it is settled; remove it"},
    {"auto.commit.enable", "once commits an offset when everything up to it is settled; remove it"},
    {"auto.commit.interval.ms", "once commits an offset when everything up to it is settled; remove it"},
    {"enable.partition.eof", "once sets it; remove it"},
    {"log_level", "use the log level of once"},
    {"isolation.level", "messages of aborted transactions must have no effect; remove it"},
    {"api.version.request", "without it messages of aborted transactions would be read; remove it"},
    {"api.version.fallback.ms", "with it messages of aborted transactions could be read; remove it"},
    {"broker.version.fallback", "with it messages of aborted transactions could be read; remove it"},
    {"topic.blacklist", "use 'topics'"},
};

/* Whether the value of the property is a secret. */
static bool is_secret(once_bytes name)
{
    static const char *const secrets[] = {"sasl.password", "ssl.key.password", "ssl.key.pem", "ssl.keystore.password",
                                          "sasl.oauthbearer.client.secret"};
    for (size_t i = 0; i < sizeof secrets / sizeof *secrets; i++)
        if (once__is_text(name, secrets[i])) return true;
    return false;
}

static const char *instead_of(once_bytes name)
{
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
        if (once__is_text(name, reserved[i].name)) return reserved[i].instead;
    return NULL;
}

static bool check_property(once_config *config, const once_node *node)
{
    const once_config_shown name = once_config_show(node->name);
    const char *instead = instead_of(node->name);
    if (instead) {
        once_config_wrong(config, ONCE_E_CONFIG, node->name_line, "'config': '%s' cannot be set here; %s", name.text,
                          instead);
    } else if (node->kind != ONCE_NODE_SCALAR || node->none) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line,
                          "'config': '%s' must be a value, not %s; write a text, env:NAME or file:PATH", name.text,
                          once_node_kind_text(node));
    } else if (is_secret(node->name) && !once_is_reference(node->text)) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line,
                          "'config': '%s' is a secret and must not stand in this file; write env:NAME or file:PATH",
                          name.text);
    } else {
        return true;
    }
    return false;
}

static bool read_config(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_kafka_spec *kafka = out;
    if (node->kind != ONCE_NODE_MAP || node->count == 0) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line,
                          "'config' must be a map of properties, not %s; write 'config: %s'",
                          node->kind == ONCE_NODE_MAP ? "an empty one" : once_node_kind_text(node), field->example);
        return false;
    }
    once_written *list = once_arena_new(config->arena, once_written, node->count);
    if (!list) {
        config->nomem = true;
        return false;
    }
    bool ok = true;
    size_t n = 0;
    for (const once_node *item = node->first; item; item = item->next) {
        ok = check_property(config, item) && ok;
        list[n++] = (once_written){.name = item->name, .value = item->text, .line = item->line};
    }
    kafka->config = list;
    kafka->n_config = n;
    return ok;
}

/* --- instance ----------------------------------------------------------------------------------------------------- */

/* The length of the placeholder at `at`; 0: there is none that is known. */
static size_t placeholder(once_bytes text, size_t at)
{
    static const once_bytes host = {"${host}", 7}, env = {"${env:", 6};
    assert(at < text.len);
    const once_bytes rest = {text.data + at, text.len - at};
    if (rest.len >= host.len && memcmp(rest.data, host.data, host.len) == 0) return host.len;
    if (rest.len <= env.len || memcmp(rest.data, env.data, env.len) != 0) return 0;
    const char *end = memchr(rest.data, '}', rest.len);
    if (!end || !once__config_is_variable((once_bytes){rest.data + env.len, (size_t)(end - rest.data) - env.len}))
        return 0;
    return (size_t)(end - rest.data) + 1;
}

static bool read_instance(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_kafka_spec *kafka = out;
    if (!once_config_scalar(config, field, node, &kafka->instance)) return false;
    kafka->instance_line = node->line;
    bool varies = false;
    for (size_t i = 0; i < kafka->instance.len; i++) {
        if (i + 1 >= kafka->instance.len || memcmp(kafka->instance.data + i, "${", 2) != 0) continue;
        if (!placeholder(kafka->instance, i)) {
            once_config_wrong(config, ONCE_E_CONFIG, node->line,
                              "'instance' has a placeholder that is not known; it may have ${host} and ${env:NAME}");
            return false;
        }
        varies = true;
    }
    if (varies) return true;
    once_config_wrong(config, ONCE_E_CONFIG, node->line,
                      "'instance' is the same for every worker, but two members of a group cannot have one; write "
                      "'instance: %s'",
                      field->example);
    return false;
}

/* --- the section -------------------------------------------------------------------------------------------------- */

static const once_config_word start_words[] = {[ONCE_KAFKA_EARLIEST] = {"earliest", NULL},
                                               [ONCE_KAFKA_LATEST] = {"latest", NULL},
                                               [ONCE_KAFKA_ERROR] = {"error", NULL},
                                               {NULL, NULL}};
static const once_config_word range_words[] = {
    [ONCE_KAFKA_STOP] = {"error", NULL}, [ONCE_KAFKA_GO_ON] = {"earliest", NULL}, {NULL, NULL}};

static const once_config_field fields[] = {
    {.name = "brokers",
     .type = ONCE_CONFIG_STRINGS,
     .required = true,
     ONCE_CONFIG_AT(once_kafka_spec, brokers),
     .count = offsetof(once_kafka_spec, n_brokers),
     .min = 1,
     .max = 1000,
     .example = "[kafka-1:9092, kafka-2:9092]",
     .text = "Brokers to ask first, as HOST:PORT."},
    {.name = "topics",
     .type = ONCE_CONFIG_CUSTOM,
     .required = true,
     .read = read_topics,
     .shape = "a topic, a pattern, or a list of them",
     .example = "[payments]",
     .text = "Names of topics. A text that begins with `^` is a pattern (a POSIX extended regular expression)."},
    {.name = "group",
     .type = ONCE_CONFIG_STRING,
     ONCE_CONFIG_AT(once_kafka_spec, group),
     .min = 1,
     .max = 255,
     .example = "payments",
     .standard_text = "the name of the consumer",
     .text = "The consumer group. Its members share the partitions."},
    {.name = "start",
     .type = ONCE_CONFIG_WORD,
     ONCE_CONFIG_AT(once_kafka_spec, start),
     .words = start_words,
     .standard = "earliest",
     .text = "Where to begin in a partition if the group has no offset for it. A partition that was added to the topic "
             "later, and a topic that was made while once runs, begin at their first message, whatever this says. If "
             "another program committed offsets of the topic, it is not known which partitions were added later: then "
             "`latest` begins at the first message, too. `error`: the run ends."},
    {.name = "out_of_range",
     .type = ONCE_CONFIG_WORD,
     ONCE_CONFIG_AT(once_kafka_spec, out_of_range),
     .words = range_words,
     .standard = "error",
     .text = "What to do if the broker no longer has the message at the group's offset, or does not have it yet. "
             "`error`: the run ends and says what is lost. `earliest`: it logs what is lost, and goes on at the "
             "first message that the broker has."},
    {.name = "cursor",
     .type = ONCE_CONFIG_BOOL,
     ONCE_CONFIG_AT(once_kafka_spec, cursor),
     .standard = "false",
     .text = "Keep the offsets in the store, in the transaction that settles the messages, and go on from there. "
             "They are committed to the group, too, but only for tools that show its lag."},
    {.name = "instance",
     .type = ONCE_CONFIG_CUSTOM,
     .read = read_instance,
     .shape = "a text with `${host}` or `${env:NAME}`",
     .example = "\"payments-${host}-${env:WORKER}\"",
     .standard_text = "none",
     .text = "Static membership (`group.instance.id`): a worker that comes back within `session.timeout.ms` gets its "
             "partitions again without a rebalance. Each worker needs its own."},
    {.name = "token",
     .type = ONCE_CONFIG_STRINGS,
     ONCE_CONFIG_AT(once_kafka_spec, token),
     .count = offsetof(once_kafka_spec, n_token),
     .min = 1,
     .max = 4096,
     .example = "[./kafka-token, --audience, kafka]",
     .standard_text = "none",
     .text = "With `sasl.mechanism: OAUTHBEARER`: a command that writes a JSON Web Token with `exp` and `sub` to "
             "standard output. It is run again before the token expires."},
    {.name = "config",
     .type = ONCE_CONFIG_CUSTOM,
     .read = read_config,
     .shape = "a map",
     .example = "{security.protocol: SASL_SSL, sasl.mechanism: PLAIN, sasl.username: once, sasl.password: "
                "env:KAFKA_PASSWORD}",
     .standard_text = "none",
     .text = "Properties of librdkafka. A secret must be `env:NAME` or `file:PATH`; every value may be."},
};

static const once_config_section section = {
    .name = "a Kafka source",
    .title = "kafka",
    .text = "Topics of Apache Kafka, read as a member of a consumer group. Coordinates are topic, partition and\n"
            "offset, as in `payments/3:88123`. docs/kafka.md says what is promised.\n"
            "\n"
            "Templates may have `${source:topic}`, `${source:partition}`, `${source:offset}`,\n"
            "`${source:timestamp}` (milliseconds), `${source:key}` (the record key, if it is UTF-8),\n"
            "`${source:key_base64}`, and `${header:NAME}`. If a header has several values, the last one counts. A\n"
            "header or a key that is not UTF-8 has no value as text, and a header whose name is not UTF-8 is left out.",
    .fields = fields,
    .n = sizeof fields / sizeof *fields,
};

static void conclude(once_source_spec *source)
{
    const once_kafka_spec *kafka = once_kafka_of(source);
    source->name = kafka->joined;
    source->bits = ONCE_SOURCE_ASSIGNS | ONCE_SOURCE_TIMED | (kafka->cursor ? ONCE_SOURCE_CURSOR : 0u);
}

static void doubts(const once_source_spec *source, bool shared, once_source_warning *warn, void *user)
{
    (void)source;
    if (shared)
        warn(user,
             "${coordinates} are topic, partition and offset: if pipelines of two Kafka clusters share this store, "
             "their "
             "messages are taken for the same, and so are those of a topic that was deleted and made anew; give each "
             "cluster a consumer of its own");
}

static void visit_secrets(const once_source_spec *source, once_secret_visit *visit, void *user)
{
    const once_kafka_spec *kafka = once_kafka_of(source);
    for (size_t i = 0; i < kafka->n_config; i++) visit(user, kafka->config[i].value, false);
}

static bool has(const once_source_spec *source, once_bytes place)
{
    const once_kafka_spec *kafka = once_kafka_of(source);
    once_bytes topic;
    int32_t partition;
    if (!once__kafka_place(place, &topic, &partition)) return false;
    for (size_t i = 0; i < kafka->n_topics; i++)
        if (once_kafka_is_pattern(kafka->topics[i]) || once_bytes_equal(kafka->topics[i], topic)) return true;
    return false;
}

static const char *const names[] = {"topic", "partition", "offset", "timestamp", "key", "key_base64", NULL};
static const char *const numbered[] = {"offset", NULL};

const once_source_kind once__source_kafka = {
    .name = "kafka",
    .summary = "topics of Apache Kafka, as a member of a consumer group",
    .unit = "messages",
    .module = "kafka",
    .field = {.name = "kafka",
              .type = ONCE_CONFIG_SECTION,
              .section = &section,
              .example = "{brokers: localhost:9092, topics: payments}",
              .text = "Topics of Apache Kafka."},
    .size = sizeof(once_kafka_spec),
    .names = names,
    .numbered = numbered,
    .conclude = conclude,
    .doubts = doubts,
    .repeats = "a topic that is deleted and made anew",
    .secrets = visit_secrets,
    .has = has,
};
