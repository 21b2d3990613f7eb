/* The RabbitMQ source against a real server (ONCE_TEST_RABBITMQ=HOST:PORT), with a classic and a quorum queue. Each
 * test has a queue of its own. */
#include "source_conform.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "testenv.h"

#ifdef ONCE_WITH_RABBITMQ
#include <amqp.h>
#include <amqp_tcp_socket.h>

#include "source/rabbitmq/rabbitmq.h"

typedef struct rabbitmq_world {
    char queue[64], url[128];
    amqp_connection_state_t producer;
    once_source *consumer; /* the first one */
    once_spec spec;
    once_rabbitmq_spec rabbitmq;
} rabbitmq_world;

static const char *address;

static void expect_ok(amqp_connection_state_t connection)
{
    const amqp_rpc_reply_t reply = amqp_get_rpc_reply(connection);
    assert_int_equal(reply.reply_type, AMQP_RESPONSE_NORMAL);
}

static amqp_connection_state_t make_producer(void)
{
    char host[64];
    const char *colon = strchr(address, ':');
    assert_non_null(colon);
    (void)snprintf(host, sizeof host, "%.*s", (int)(colon - address), address);
    amqp_connection_state_t connection = amqp_new_connection();
    amqp_socket_t *socket = amqp_tcp_socket_new(connection);
    assert_non_null(socket);
    assert_int_equal(amqp_socket_open(socket, host, (int)strtol(colon + 1, NULL, 10)), AMQP_STATUS_OK);
    assert_int_equal(amqp_login(connection, "/", 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, "guest", "guest").reply_type,
                     AMQP_RESPONSE_NORMAL);
    assert_non_null(amqp_channel_open(connection, 1));
    (void)amqp_confirm_select(connection, 1);
    expect_ok(connection);
    return connection;
}

static void make_queue(const rabbitmq_world *w, const char *type)
{
    amqp_table_entry_t entry = {.key = amqp_cstring_bytes("x-queue-type"),
                                .value = {.kind = AMQP_FIELD_KIND_UTF8, .value.bytes = amqp_cstring_bytes(type)}};
    const amqp_table_t arguments = {.num_entries = 1, .entries = &entry};
    (void)amqp_queue_declare(w->producer, 1, amqp_cstring_bytes(w->queue), 0, 1, 0, 0, arguments);
    expect_ok(w->producer);
}

static void *make(const source_driver *driver)
{
    static unsigned count;
    rabbitmq_world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    (void)snprintf(w->queue, sizeof w->queue, "conform-%d-%ld-%u", (int)getpid(), (long)time(NULL), ++count);
    (void)snprintf(w->url, sizeof w->url, "amqp://%s", address);
    w->producer = make_producer();
    make_queue(w, driver->own);
    w->rabbitmq = (once_rabbitmq_spec){.url = {.name = ONCE_BYTES("url"), .value = {w->url, strlen(w->url)}},
                                       .queue = {w->queue, strlen(w->queue)},
                                       .prefetch = 500,
                                       .heartbeat_ms = 2000,
                                       .consumer_timeout_ms = ONCE_FOREVER};
    w->spec = (once_spec){.file = ONCE_BYTES("conform.yaml"),
                          .consumer = ONCE_BYTES("conform"),
                          .message_max = SRC_MESSAGE_MAX,
                          .batch_max = 100,
                          .source = {.kind = &once__source_rabbitmq, .own = &w->rabbitmq}};
    once__source_rabbitmq.conclude(&w->spec.source);
    return w;
}

static void unmake(void *world)
{
    rabbitmq_world *w = world;
    (void)amqp_queue_delete(w->producer, 1, amqp_cstring_bytes(w->queue), 0, 0);
    (void)amqp_connection_close(w->producer, AMQP_REPLY_SUCCESS);
    (void)amqp_destroy_connection(w->producer);
    free(w);
}

/* {"NAME":"VALUE","NAME":"VALUE"}, without escapes, which `text` keeps. */
static int read_headers(char *text, amqp_table_entry_t *entries)
{
    int n = 0;
    for (char *name, *at = text; (name = strchr(at, '"')); n++) {
        char *value = strstr(name, "\":\"") + 3, *end = strchr(value, '"');
        *strchr(++name, '"') = *end = '\0';
        entries[n] =
            (amqp_table_entry_t){.key = amqp_cstring_bytes(name),
                                 .value = {.kind = AMQP_FIELD_KIND_UTF8, .value.bytes = amqp_cstring_bytes(value)}};
        at = end + 1;
    }
    return n;
}

static void put(void *world, unsigned stream, once_bytes body, once_bytes headers)
{
    rabbitmq_world *w = world;
    char text[200] = "";
    amqp_table_entry_t entries[8];
    assert_true(stream == 0 && headers.len < sizeof text);
    if (headers.len) memcpy(text, headers.data, headers.len);
    amqp_basic_properties_t properties = {._flags = AMQP_BASIC_DELIVERY_MODE_FLAG, .delivery_mode = 2};
    properties.headers = (amqp_table_t){.num_entries = read_headers(text, entries), .entries = entries};
    if (properties.headers.num_entries) properties._flags |= AMQP_BASIC_HEADERS_FLAG;
    const amqp_bytes_t bytes = {.len = body.len, .bytes = (void *)(uintptr_t)body.data};
    assert_int_equal(
        amqp_basic_publish(w->producer, 1, amqp_empty_bytes, amqp_cstring_bytes(w->queue), 1, 0, &properties, bytes),
        AMQP_STATUS_OK);
    amqp_frame_t frame;
    assert_int_equal(amqp_simple_wait_frame(w->producer, &frame), AMQP_STATUS_OK);
    assert_true(frame.frame_type == AMQP_FRAME_METHOD && frame.payload.method.id == AMQP_BASIC_ACK_METHOD);
    amqp_maybe_release_buffers(w->producer);
}

static int open_consumer(void *world, once_source_purpose purpose, once_source **out, once_error *err)
{
    rabbitmq_world *w = world;
    const int rc = once_source_open(&w->spec, once_env_real(), purpose, (once_cancel){0}, out, err);
    if (rc == ONCE_OK) w->consumer = *out;
    return rc;
}

static const char *name_of(void *world, unsigned stream)
{
    assert_int_equal(stream, 0);
    return ((rabbitmq_world *)world)->queue;
}

static void pass(void *world, int64_t ms)
{
    (void)world;
    once_env_sleep_ms(once_env_real(), ms);
}

/* Its connection is cut behind all that was sent, so that no ack is lost with it, and the server has noticed. */
static void lose(void *world, unsigned stream)
{
    rabbitmq_world *w = world;
    (void)stream;
    once_env_sleep_ms(once_env_real(), 500); /* a quorum queue forgets acks that it has not yet replicated */
    assert_int_equal(shutdown(once__rabbitmq(w->consumer)->fd, SHUT_WR), 0);
    for (uint32_t consumers = 1; consumers; once_env_sleep_ms(once_env_real(), 10)) {
        const amqp_queue_declare_ok_t *ok =
            amqp_queue_declare(w->producer, 1, amqp_cstring_bytes(w->queue), 1, 0, 0, 0, amqp_empty_table);
        assert_non_null(ok);
        consumers = ok->consumer_count;
    }
}

static int run(const char *name, const char *type)
{
    const source_driver driver = {.name = name,
                                  .bits = SRC_HEADERS | SRC_TEXT | SRC_BINARY | SRC_EMPTY | SRC_REMEMBERS |
                                          ONCE_SOURCE_REDELIVERS | ONCE_SOURCE_SINGLE_ACKS | ONCE_SOURCE_ASSIGNS,
                                  .streams = 1,
                                  .own = type,
                                  .make = make,
                                  .unmake = unmake,
                                  .put = put,
                                  .open = open_consumer,
                                  .name_of = name_of,
                                  .pass = pass,
                                  .lose = lose};
    return source_conform_run(&driver);
}

int main(void)
{
    address = getenv("ONCE_TEST_RABBITMQ");
    if (!address) {
        fprintf(stderr, "missing: ONCE_TEST_RABBITMQ=HOST:PORT of a server\n");
        return 1;
    }
    return run("rabbitmq, a classic queue", "classic") + run("rabbitmq, a quorum queue", "quorum");
}
#else
int main(void)
{
    fprintf(stderr, "missing: librabbitmq\n");
    return 1;
}
#endif
