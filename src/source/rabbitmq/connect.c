/* A connection: socket, login, and a channel for the queue. Each step has a time limit, and all together. */
#include <amqp_tcp_socket.h>
#include <stdio.h>
#include <string.h>

#include "source/rabbitmq/rabbitmq.h"

#include "base/banned.h"

#define FRAME_MAX 131072

/* The next step may take so long: all of them together must end in time. */
static struct timeval limit_of(const rabbitmq_source *r, int64_t until_ms)
{
    const int64_t left_ms = until_ms - once__rabbitmq_now_ms(r);
    const int64_t ms = left_ms < 1 ? 1 : left_ms < ONCE_RABBITMQ_ANSWER_MS ? left_ms : ONCE_RABBITMQ_ANSWER_MS;
    return (struct timeval){.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
}

static void limit_next(const rabbitmq_source *r, amqp_connection_state_t connection, int64_t until_ms)
{
    const struct timeval limit = limit_of(r, until_ms);
    (void)amqp_set_handshake_timeout(connection, &limit);
    (void)amqp_set_rpc_timeout(connection, &limit);
}

static int open_socket(const rabbitmq_source *r, amqp_connection_state_t connection, int64_t until_ms, once_error *err)
{
    const struct timeval limit = limit_of(r, until_ms);
    if (r->address.tls) return once__rabbitmq_open_tls(r, connection, &limit, err);
    const char *host = r->address.url.host.data;
    amqp_socket_t *socket = amqp_tcp_socket_new(connection); /* the connection owns it */
    if (!socket) return once_fail(err, ONCE_E_NOMEM, "out of memory for a connection");
    const int status = amqp_socket_open_noblock(socket, host, r->address.url.port, &limit);
    return status == AMQP_STATUS_OK
               ? ONCE_OK
               : once__rabbitmq_broke(err, status, "cannot connect to '%s:%d'", host, r->address.url.port);
}

static amqp_table_entry_t text_entry(const char *name, const char *text)
{
    return (amqp_table_entry_t){.key = amqp_cstring_bytes(name),
                                .value = {.kind = AMQP_FIELD_KIND_UTF8, .value.bytes = amqp_cstring_bytes(text)}};
}

static amqp_table_entry_t true_entry(const char *name)
{
    return (amqp_table_entry_t){.key = amqp_cstring_bytes(name),
                                .value = {.kind = AMQP_FIELD_KIND_BOOLEAN, .value.boolean = 1}};
}

/* The name is what operators see in the list of connections. */
static int login(const rabbitmq_source *r, amqp_connection_state_t connection, once_error *err)
{
    const once_rabbitmq_url *url = &r->address.url;
    char name[300];
    (void)snprintf(name, sizeof name, "once: %.*s", (int)r->base.spec->consumer.len, r->base.spec->consumer.data);
    /* Without the first one the broker does not say that it has cancelled a consumer. */
    amqp_table_entry_t can[] = {true_entry("consumer_cancel_notify"), true_entry("connection.blocked")};
    amqp_table_entry_t entries[] = {
        text_entry("product", "once"),
        text_entry("connection_name", name),
        {.key = amqp_cstring_bytes("capabilities"),
         .value = {.kind = AMQP_FIELD_KIND_TABLE, .value.table = {.num_entries = 2, .entries = can}}}};
    const amqp_table_t properties = {.num_entries = sizeof entries / sizeof *entries, .entries = entries};
    const int heartbeat_s = (int)(r->rabbitmq->heartbeat_ms / 1000);
    const bool by_certificate = r->rabbitmq->login == ONCE_RABBITMQ_BY_CERTIFICATE;
    const amqp_rpc_reply_t reply =
        by_certificate
            ? amqp_login_with_properties(connection, url->path.data, 0, FRAME_MAX, heartbeat_s, &properties,
                                         AMQP_SASL_METHOD_EXTERNAL, url->user.data) /* the broker does not read it */
            : amqp_login_with_properties(connection, url->path.data, 0, FRAME_MAX, heartbeat_s, &properties,
                                         AMQP_SASL_METHOD_PLAIN, url->user.data, url->password.data);
    if (reply.reply_type == AMQP_RESPONSE_NORMAL) return ONCE_OK;
    if (by_certificate)
        return once__rabbitmq_fail(err, reply, "cannot log in at '%s:%d' by certificate to the virtual host '%s'",
                                   url->host.data, url->port, url->path.data);
    return once__rabbitmq_fail(err, reply, "cannot log in at '%s:%d' as '%s' to the virtual host '%s'", url->host.data,
                               url->port, url->user.data, url->path.data);
}

static int declared(const rabbitmq_source *r, amqp_connection_state_t connection, rabbitmq_counts *counts,
                    once_error *err)
{
    const amqp_queue_declare_ok_t *ok = amqp_queue_declare(connection, ONCE_RABBITMQ_CHANNEL,
                                                           amqp_cstring_bytes(r->queue), 1, 0, 0, 0, amqp_empty_table);
    if (ok) {
        *counts = (rabbitmq_counts){.ready = ok->message_count, .consumers = ok->consumer_count};
        return ONCE_OK;
    }
    once_error why = {0};
    const int rc = once__rabbitmq_fail(&why, amqp_get_rpc_reply(connection), "queue '%s' cannot be used", r->queue);
    if (rc != ONCE_E_MISSING) {
        if (err) *err = why;
        return rc;
    }
    return once_fail(err, rc, "there is no queue '%s' in the virtual host '%s'; declare it, or correct 'queue'",
                     r->queue, r->address.url.path.data);
}

int once__rabbitmq_connect(const rabbitmq_source *r, int64_t ms, amqp_connection_state_t *out, rabbitmq_counts *counts,
                           once_error *err)
{
    const int64_t until_ms = once__rabbitmq_now_ms(r) + ms;
    amqp_connection_state_t connection = amqp_new_connection();
    if (!connection) return once_fail(err, ONCE_E_NOMEM, "out of memory for a connection");
    int rc = open_socket(r, connection, until_ms, err);
    limit_next(r, connection, until_ms);
    if (rc == ONCE_OK) rc = login(r, connection, err);
    limit_next(r, connection, until_ms);
    if (rc == ONCE_OK && !amqp_channel_open(connection, ONCE_RABBITMQ_CHANNEL))
        rc = once__rabbitmq_fail(err, amqp_get_rpc_reply(connection), "cannot open a channel");
    limit_next(r, connection, until_ms);
    if (rc == ONCE_OK) rc = declared(r, connection, counts, err);
    if (rc == ONCE_OK) *out = connection;
    else (void)amqp_destroy_connection(connection);
    return rc;
}
