/* Reads and checks the RabbitMQ source's part of the pipeline file. Knows nothing of librabbitmq. */
#include <stdio.h>
#include <string.h>

#include "core/config_values.h"
#include "source/rabbitmq_spec.h"
#include "source/source.h"

#include "base/banned.h"

/* --- texts that may be references --------------------------------------------------------------------------------- */

static bool read_written(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_written *to = (once_written *)((char *)out + field->offset);
    once_bytes text;
    if (!once_config_scalar(config, field, node, &text)) return false;
    if (text.len == 0) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "'%s' is empty; write '%s: %s'", field->name, field->name,
                          field->example);
        return false;
    }
    char what[40] = "";
    (void)snprintf(what, sizeof what, "'%s'", field->name);
    if (once_is_reference(text) && !once__config_reference(config, what, node)) return false;
    *to = (once_written){.name = once_bytes_of(field->name), .value = text, .line = node->line};
    return true;
}

static bool read_password(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    if (!read_written(config, field, node, out)) return false;
    once_rabbitmq_spec *rabbitmq = out;
    if (once_is_reference(rabbitmq->password.value)) return true;
    once_config_wrong(config, ONCE_E_CONFIG, node->line,
                      "'password' is a secret and must not stand in this file; write env:NAME or file:PATH");
    rabbitmq->password = (once_written){0};
    return false;
}

/* --- the section -------------------------------------------------------------------------------------------------- */

static const once_config_field tls_fields[] = {
    {.name = "ca",
     .type = ONCE_CONFIG_STRING,
     ONCE_CONFIG_AT(once_rabbitmq_tls, ca),
     .min = 1,
     .max = 4096,
     .example = "/etc/once/ca.pem",
     .standard_text = "those of the system",
     .text = "A file (PEM) with the certificates of authorities that are trusted."},
    {.name = "certificate",
     .type = ONCE_CONFIG_STRING,
     ONCE_CONFIG_AT(once_rabbitmq_tls, certificate),
     .min = 1,
     .max = 4096,
     .example = "/etc/once/client.pem",
     .standard_text = "none",
     .text = "A file (PEM) with the certificate of this client, and those up to its authority."},
    {.name = "key",
     .type = ONCE_CONFIG_STRING,
     ONCE_CONFIG_AT(once_rabbitmq_tls, key),
     .min = 1,
     .max = 4096,
     .example = "/etc/once/client.key",
     .standard_text = "none",
     .text = "A file (PEM) with the key of `certificate`, without a passphrase."},
};

static const once_config_section tls_section = {
    .name = "'tls'",
    .title = "tls of rabbitmq",
    .text = "For `amqps://`. The certificate of the server and the host name in it are always verified.",
    .fields = tls_fields,
    .n = sizeof tls_fields / sizeof *tls_fields,
};

static const once_config_word logins[] = {
    [ONCE_RABBITMQ_BY_PASSWORD] = {.name = "password"}, [ONCE_RABBITMQ_BY_CERTIFICATE] = {.name = "certificate"}, {0}};

static const once_config_field fields[] = {
    {.name = "url",
     .type = ONCE_CONFIG_CUSTOM,
     .required = true,
     .read = read_written,
     ONCE_CONFIG_AT(once_rabbitmq_spec, url),
     .shape = "a URL, `env:NAME` or `file:PATH`",
     .example = "amqps://orders@rabbit.example.com/shop",
     .text = "`amqp://USER@HOST:PORT/VHOST`, or `amqps://` for TLS. Without a user it is `guest`, without a virtual "
             "host `/`. A `/` in the name of a virtual host is written `%2F`. Only a URL that is a reference may have "
             "a password in it."},
    {.name = "password",
     .type = ONCE_CONFIG_CUSTOM,
     .read = read_password,
     ONCE_CONFIG_AT(once_rabbitmq_spec, password),
     .shape = "`env:NAME` or `file:PATH`",
     .example = "env:RABBITMQ_PASSWORD",
     .standard_text = "that of `url`",
     .text = "The password of the user."},
    {.name = "login",
     .type = ONCE_CONFIG_WORD,
     ONCE_CONFIG_AT(once_rabbitmq_spec, login),
     .words = logins,
     .standard = "password",
     .text = "With `certificate`, the certificate of `tls` proves who logs in (SASL EXTERNAL), and there is no "
             "password. The "
             "broker needs the plugin `rabbitmq_auth_mechanism_ssl`, and finds the user in the certificate."},
    {.name = "queue",
     .type = ONCE_CONFIG_STRING,
     .required = true,
     ONCE_CONFIG_AT(once_rabbitmq_spec, queue),
     .min = 1,
     .max = 255,
     .example = "payments",
     .text = "A classic or quorum queue. It must exist: once declares nothing."},
    {.name = "prefetch",
     .type = ONCE_CONFIG_INTEGER,
     ONCE_CONFIG_AT(once_rabbitmq_spec, prefetch),
     .min = 1,
     .max = 65535,
     .standard_text = "see below",
     .example = "200",
     .text = "How many messages that are not acked the broker gives to one worker. They are held in memory."},
    {.name = "heartbeat",
     .type = ONCE_CONFIG_DURATION,
     ONCE_CONFIG_AT(once_rabbitmq_spec, heartbeat_ms),
     .min = 1000,
     .max = 3600000,
     .standard = "20s",
     .text = "Both sides send something this often. A connection on which nothing came for twice this time is lost. "
             "In whole seconds; the broker may ask for less."},
    {.name = "consumer_timeout",
     .type = ONCE_CONFIG_DURATION,
     ONCE_CONFIG_AT(once_rabbitmq_spec, consumer_timeout_ms),
     .min = 1000,
     .max = ONCE_FOREVER,
     .standard = "30m",
     .text = "How long the broker waits for the ack of a message (`consumer_timeout` of its configuration, 30 minutes "
             "unless somebody changed it; `forever` if it is off). A message that is not over after half of this time "
             "is given to the store and acked."},
    {.name = "tls",
     .type = ONCE_CONFIG_SECTION,
     ONCE_CONFIG_AT(once_rabbitmq_spec, tls),
     .section = &tls_section,
     .example = "{ca: /etc/once/ca.pem}",
     .standard_text = "as below",
     .text = "Certificates."},
    {.name = "management",
     .type = ONCE_CONFIG_CUSTOM,
     .read = read_written,
     ONCE_CONFIG_AT(once_rabbitmq_spec, management),
     .shape = "a URL, `env:NAME` or `file:PATH`",
     .example = "https://rabbit.example.com:15671",
     .standard_text = "none",
     .text = "The HTTP API of the management plugin, for `once check` and `once status`, and for a `consumer-timeout` "
             "of the queue that is shorter. The user is that of `url` "
             "(it needs the tag `monitoring`), unless a reference has another one in it."},
};

static const once_config_section section = {
    .name = "a RabbitMQ source",
    .title = "rabbitmq",
    .text =
        "A queue of RabbitMQ, with acks. A message has no coordinates that stay the same, so the key needs an id of\n"
        "the message or a business key. docs/rabbitmq.md says what is promised.\n"
        "\n"
        "Without `prefetch` it is twice `batch.max` (4,096 at most). If every effect is outside of the store, it is\n"
        "twice the number of effects that may run at a time (16 at least), so that workers share the queue.\n"
        "\n"
        "Templates may have `${source:message_id}`, `${source:correlation_id}`, `${source:type}`, `${source:app_id}`,\n"
        "`${source:user_id}`, `${source:reply_to}`, `${source:content_type}`, `${source:content_encoding}`,\n"
        "`${source:expiration}`, `${source:timestamp}` (seconds), `${source:priority}`, `${source:delivery_mode}`,\n"
        "`${source:exchange}`, `${source:routing_key}`, `${source:queue}`, and `${header:NAME}`. Effects may also "
        "have\n"
        "`${source:redelivered}` (true or false) and `${source:delivery_count}` (of a quorum queue), which are not "
        "the\n"
        "same at each delivery. A header that is a table or an array is JSON; one that is not UTF-8 has no value as\n"
        "text.",
    .fields = fields,
    .n = sizeof fields / sizeof *fields,
};

/* --- what follows from the fields --------------------------------------------------------------------------------- */

static void conclude(once_source_spec *source)
{
    const once_rabbitmq_spec *rabbitmq = once_rabbitmq_of(source);
    source->name = rabbitmq->queue;
    source->bits = ONCE_SOURCE_ASSIGNS | ONCE_SOURCE_SINGLE_ACKS |
                   (rabbitmq->consumer_timeout_ms == ONCE_FOREVER ? 0u : ONCE_SOURCE_EXPIRES);
    source->unstable = "RabbitMQ has none that stay the same; use an id of the message (${source:message_id}) or a "
                       "business key (${/payment_id})";
}

static void check_url(once_config *config, const once_node *map, const once_rabbitmq_spec *rabbitmq)
{
    const once_bytes text = rabbitmq->url.value;
    const int line = rabbitmq->url.line;
    const bool tls = once_node_member(map, "tls");
    once_rabbitmq_url url;
    const char *why;
    if (text.len == 0 || once_is_reference(text)) return;
    if (!once__rabbitmq_url(text, config->arena, &url, &why)) {
        if (!why) config->nomem = true;
        else once_config_wrong(config, ONCE_E_CONFIG, line, "'url' is not a URL: %s", why);
        return;
    }
    const char *fault = once__rabbitmq_url_fault(&url, "amqp");
    if (fault) once_config_wrong(config, ONCE_E_CONFIG, line, "'url' is not a URL: %s", fault);
    else if (url.password.data)
        once_config_wrong(config, ONCE_E_CONFIG, line,
                          "'url' has a password, which must not stand in this file; write 'password: env:NAME'");
    else if (url.user.len && rabbitmq->login == ONCE_RABBITMQ_BY_CERTIFICATE)
        once_config_wrong(config, ONCE_E_CONFIG, line,
                          "'url' has a user, but 'login: certificate' takes it from the certificate; remove it");
    else if (url.user.len && rabbitmq->password.value.len == 0 && !once_node_member(map, "password"))
        once_config_wrong(config, ONCE_E_CONFIG, line,
                          "'url' has a user and no password; add 'password: env:RABBITMQ_PASSWORD'");
    if (!fault && tls && !once__is_text(url.scheme, "amqps"))
        once_config_wrong(config, ONCE_E_CONFIG, line, "'tls' is for amqps://; change 'url', or remove 'tls'");
}

static void check_management(once_config *config, const once_rabbitmq_spec *rabbitmq)
{
    const once_bytes text = rabbitmq->management.value;
    once_rabbitmq_url url;
    const char *why;
    if (text.len == 0 || once_is_reference(text)) return;
    if (!once__rabbitmq_url(text, config->arena, &url, &why)) {
        if (!why) config->nomem = true;
    } else {
        why = once__rabbitmq_url_fault(&url, "http");
        if (!why && rabbitmq->login == ONCE_RABBITMQ_BY_CERTIFICATE)
            why = "without a password in 'url' it needs a user of its own; write a reference to a URL that has one";
        if (!why && url.user.data) why = "the user is that of 'url'; write a reference to a URL that has another one";
    }
    if (why) once_config_wrong(config, ONCE_E_CONFIG, rabbitmq->management.line, "'management' is not a URL: %s", why);
}

static void check_login(once_config *config, const once_node *map, const once_rabbitmq_spec *rabbitmq)
{
    const once_node *login = once_node_member(map, "login");
    if (!login || rabbitmq->login != ONCE_RABBITMQ_BY_CERTIFICATE) return;
    if (rabbitmq->password.value.len)
        once_config_wrong(config, ONCE_E_CONFIG, login->line, "'login: certificate' needs no 'password'; remove one");
    if (!rabbitmq->tls.certificate.len)
        once_config_wrong(config, ONCE_E_CONFIG, login->line,
                          "'login: certificate' needs one; add 'tls: {certificate: FILE, key: FILE}'");
}

static void check(once_config *config, const once_node *map, const once_source_spec *source)
{
    const once_rabbitmq_spec *rabbitmq = once_rabbitmq_of(source);
    const once_node *tls = once_node_member(map, "tls");
    check_url(config, map, rabbitmq);
    check_login(config, map, rabbitmq);
    check_management(config, rabbitmq);
    if (tls && !rabbitmq->tls.certificate.len != !rabbitmq->tls.key.len)
        once_config_wrong(config, ONCE_E_CONFIG, tls->line, "'tls' has one of 'certificate' and 'key'; it needs both");
}

static void visit_secrets(const once_source_spec *source, once_secret_visit *visit, void *user)
{
    const once_rabbitmq_spec *rabbitmq = once_rabbitmq_of(source);
    visit(user, rabbitmq->url.value, false);
    visit(user, rabbitmq->password.value, false);
    visit(user, rabbitmq->management.value, false);
}

static bool is_here(once_bytes host)
{
    return once__is_text(host, "localhost") || once__is_text(host, "::1") ||
           (host.len >= 4 && memcmp(host.data, "127.", 4) == 0);
}

static void exposed(const once_source_spec *source, once_source_warning *warn, void *user)
{
    const once_rabbitmq_spec *rabbitmq = once_rabbitmq_of(source);
    once_arena arena = {0};
    once_rabbitmq_url url;
    const char *why;
    if (!once_is_reference(rabbitmq->url.value) && once__rabbitmq_url(rabbitmq->url.value, &arena, &url, &why) &&
        once__is_text(url.scheme, "amqp") && !is_here(url.host))
        warn(user, "'url' is amqp://: others on the network can read the password and the messages; use amqps://");
    once_arena_release(&arena);
}

static const char *const names[] = {
    "message_id",   "correlation_id",   "type",       "app_id",      "user_id",        "reply_to",
    "content_type", "content_encoding", "expiration", "timestamp",   "priority",       "delivery_mode",
    "exchange",     "routing_key",      "queue",      "redelivered", "delivery_count", NULL};
static const char *const varying[] = {"redelivered", "delivery_count", NULL};

const once_source_kind once__source_rabbitmq = {
    .name = "rabbitmq",
    .summary = "a queue of RabbitMQ",
    .unit = "messages",
    .module = "rabbitmq",
    .field = {.name = "rabbitmq",
              .type = ONCE_CONFIG_SECTION,
              .section = &section,
              .example = "{url: \"amqp://localhost\", queue: payments}",
              .text = "A queue of RabbitMQ."},
    .size = sizeof(once_rabbitmq_spec),
    .names = names,
    .varying = varying,
    .conclude = conclude,
    .check = check,
    .secrets = visit_secrets,
    .exposed = exposed,
};
