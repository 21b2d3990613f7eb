/* A connection: socket, login, channel, and the consumer of the queue. Each step has a time limit. */
#include <amqp_tcp_socket.h>
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "source/rabbitmq/rabbitmq.h"

#include "base/banned.h"

#define FRAME_MAX 131072

static const struct timeval limit = {.tv_sec = ONCE_RABBITMQ_ANSWER_MS / 1000};

static int open_socket(const rabbitmq_source *r, amqp_connection_state_t connection, once_error *err)
{
    if (r->address.tls) return once__rabbitmq_open_tls(r, connection, err);
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
    const amqp_rpc_reply_t reply =
        amqp_login_with_properties(connection, url->path.data, 0, FRAME_MAX, (int)(r->rabbitmq->heartbeat_ms / 1000),
                                   &properties, AMQP_SASL_METHOD_PLAIN, url->user.data, url->password.data);
    if (reply.reply_type == AMQP_RESPONSE_NORMAL) return ONCE_OK;
    return once__rabbitmq_fail(err, reply, "cannot log in at '%s:%d' as '%s' to the virtual host '%s'", url->host.data,
                               url->port, url->user.data, url->path.data);
}

int once__rabbitmq_declared(const rabbitmq_source *r, amqp_connection_state_t connection, uint32_t *ready,
                            uint32_t *consumers, once_error *err)
{
    const amqp_queue_declare_ok_t *ok = amqp_queue_declare(connection, ONCE_RABBITMQ_CHANNEL,
                                                           amqp_cstring_bytes(r->queue), 1, 0, 0, 0, amqp_empty_table);
    if (ok) {
        *ready = ok->message_count;
        *consumers = ok->consumer_count;
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

/* Without `exclusive`, so that workers share the queue. */
static int consume(const rabbitmq_source *r, amqp_connection_state_t connection, once_error *err)
{
    uint32_t ready, consumers;
    const int rc = once__rabbitmq_declared(r, connection, &ready, &consumers, err);
    if (rc != ONCE_OK) return rc;
    if (!amqp_basic_qos(connection, ONCE_RABBITMQ_CHANNEL, 0, r->prefetch, 0))
        return once__rabbitmq_fail(err, amqp_get_rpc_reply(connection), "cannot set 'prefetch' (%d)", r->prefetch);
    if (!amqp_basic_consume(connection, ONCE_RABBITMQ_CHANNEL, amqp_cstring_bytes(r->queue), amqp_empty_bytes, 0, 0, 0,
                            amqp_empty_table))
        return once__rabbitmq_fail(err, amqp_get_rpc_reply(connection), "cannot consume queue '%s'", r->queue);
    return ONCE_OK;
}

int once__rabbitmq_connect(const rabbitmq_source *r, bool consumes, amqp_connection_state_t *out, once_error *err)
{
    assert(!consumes || r->prefetch > 0);
    amqp_connection_state_t connection = amqp_new_connection();
    if (!connection) return once_fail(err, ONCE_E_NOMEM, "out of memory for a connection");
    (void)amqp_set_handshake_timeout(connection, &limit);
    (void)amqp_set_rpc_timeout(connection, &limit);
    int rc = open_socket(r, connection, err);
    if (rc == ONCE_OK) rc = login(r, connection, err);
    if (rc == ONCE_OK && !amqp_channel_open(connection, ONCE_RABBITMQ_CHANNEL))
        rc = once__rabbitmq_fail(err, amqp_get_rpc_reply(connection), "cannot open a channel");
    if (rc == ONCE_OK && consumes) rc = consume(r, connection, err);
    if (rc == ONCE_OK) *out = connection;
    else (void)amqp_destroy_connection(connection);
    return rc;
}
