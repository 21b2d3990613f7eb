/* What a server says in place of RabbitMQ: frames of a consumer's connection, well formed but for their contents, or
 * any bytes. What comes out can be used: headers are JSON, no body is longer than it may be, deliveries have numbers
 * that grow, and can be acked. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef ONCE_WITH_RABBITMQ
#include <amqp_tcp_socket.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/json.h"
#include "source/rabbitmq/rabbitmq.h"

#define MESSAGE_MAX 100
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) abort();                                                                                     \
    } while (0)

enum { HEADER_SIZE = 7, FRAME_END = 0xce, SENT_MAX = 1 << 16 };

/* Writes frames: each is a type, a channel, two bytes with the length of the payload, and the payload. */
static size_t write_frames(const uint8_t *data, size_t size, uint8_t *out)
{
    size_t n = 0;
    while (size >= 4 && n + HEADER_SIZE + 1 < SENT_MAX) {
        const size_t wanted = (size_t)data[2] << 8 | data[3], here = size - 4;
        size_t len = wanted < here ? wanted : here;
        if (len > SENT_MAX - n - HEADER_SIZE - 1) len = SENT_MAX - n - HEADER_SIZE - 1;
        const uint8_t header[HEADER_SIZE] = {data[0], 0, data[1], 0, 0, (uint8_t)(len >> 8), (uint8_t)len};
        memcpy(out + n, header, sizeof header);
        memcpy(out + n + HEADER_SIZE, data + 4, len);
        out[n + HEADER_SIZE + len] = FRAME_END;
        n += HEADER_SIZE + len + 1;
        data += 4 + len;
        size -= 4 + len;
    }
    return n;
}

static void check_item(const once_item *item, uint64_t before)
{
    const once_message *m = &item->message;
    const once_json_options options = {.object = true};
    once_json headers;
    once_json_init(&headers);
    CHECK(m->body.len <= MESSAGE_MAX && (m->cut_from == 0 || m->cut_from > MESSAGE_MAX));
    CHECK(m->sent_ms == ONCE_NO_TIME || m->sent_ms >= 0);
    CHECK(item->delivery > before);
    if (m->headers.len) CHECK(once_json_parse(&headers, m->headers, &options, NULL) == ONCE_OK);
    once_json_release(&headers);
}

static uint64_t check_batch(once_source *source, once_batch *batch, uint64_t before)
{
    for (size_t i = 0; i < batch->n; i++) {
        check_item(&batch->items[i], before);
        before = batch->items[i].delivery;
        once_receipt receipt = {.delivery = before};
        if (i % 3 == 2) continue; /* stays open */
        CHECK(source->ops->ack(source, &receipt, 1, NULL) == ONCE_OK);
        CHECK(receipt.answer == ONCE_RECEIPT_DONE || receipt.answer == ONCE_RECEIPT_GONE);
    }
    return before;
}

/* A connection to `fd`, as if it had been made with a server there. */
static void join(rabbitmq_source *r, int fd, uint32_t consumers)
{
    amqp_connection_state_t connection = amqp_new_connection();
    amqp_socket_t *socket = connection ? amqp_tcp_socket_new(connection) : NULL;
    CHECK(socket);
    amqp_tcp_socket_set_sockfd(socket, fd);
    r->connection = connection;
    r->fd = fd;
    r->state = RABBITMQ_OURS;
    r->question.answered = true;
    r->question.counts = (rabbitmq_counts){.ready = 1, .consumers = consumers};
}

static void consume(const uint8_t *frames, size_t size, bool named, uint32_t consumers)
{
    static const once_rabbitmq_spec own = {.url = {.name = ONCE_BYTES("url"), .value = ONCE_BYTES("amqp://localhost")},
                                           .queue = ONCE_BYTES("q"),
                                           .prefetch = 1000,
                                           .heartbeat_ms = 20000,
                                           .consumer_timeout_ms = ONCE_FOREVER};
    const once_spec spec = {.message_max = MESSAGE_MAX,
                            .batch_max = 100,
                            .source = {.kind = &once__source_rabbitmq, .named = named, .own = (void *)(uintptr_t)&own}};
    int fds[2];
    once_source *source;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0);
    CHECK(once__rabbitmq_ops.open(&spec, once_env_real(), ONCE_OPEN_RUN, (once_cancel){0}, &source, NULL) == ONCE_OK);
    join(once__rabbitmq(source), fds[0], consumers);
    CHECK(write(fds[1], frames, size) == (ssize_t)size);
    CHECK(shutdown(fds[1], SHUT_WR) == 0);
    uint64_t before = 0;
    for (bool more = true; more;) {
        once_batch batch = {0};
        once_fetch fetch = {.max = 10, .rest = true, .batch = &batch};
        const int rc = source->ops->fetch(source, &fetch, NULL);
        CHECK(rc == ONCE_OK || batch.n == 0);
        before = check_batch(source, &batch, before);
        more = rc == ONCE_OK && batch.n > 0;
        once_arena_release(&batch.arena);
    }
    close(fds[1]);
    source->ops->close(source);
}
#endif

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
#ifdef ONCE_WITH_RABBITMQ
    static uint8_t frames[SENT_MAX];
    if (size == 0 || size > SENT_MAX / 2) return 0;
    const bool named = data[0] & 1, raw = data[0] & 2, counted = data[0] & 4;
    if (raw) consume(data + 1, size - 1, named, counted);
    else consume(frames, write_frames(data + 1, size - 1, frames), named, counted);
#else
    (void)data;
    (void)size;
#endif
    return 0;
}
