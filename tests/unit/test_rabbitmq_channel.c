/* The RabbitMQ source against a broker that the test plays, frame by frame, with a clock of its own: what no server
 * does on demand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef ONCE_WITH_RABBITMQ
#include <amqp_tcp_socket.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "source/rabbitmq/rabbitmq.h"

enum { HUNG_S = 90 };

typedef struct fixture {
    once_env env;
    int64_t now_ms;
    once_rabbitmq_spec own;
    once_spec spec;
    once_source *source;
    int broker; /* its end of the connection */
    once_batch batch;
    once_fetch fetch;
    once_error err;
} fixture;

static int64_t boot_ms(void *self) { return ((fixture *)self)->now_ms; }

static rabbitmq_source *source_of(const fixture *f) { return once__rabbitmq(f->source); }

/* A connection with a consumer that the broker has confirmed, or not. */
static void connect_to(fixture *f, bool confirmed)
{
    int ends[2];
    rabbitmq_source *r = source_of(f);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    amqp_connection_state_t connection = amqp_new_connection();
    amqp_socket_t *socket = amqp_tcp_socket_new(connection);
    assert_non_null(socket);
    amqp_tcp_socket_set_sockfd(socket, ends[0]);
    r->connection = connection;
    r->fd = ends[0];
    r->state = RABBITMQ_OURS;
    r->consumer = (rabbitmq_consumer){.state = confirmed ? RABBITMQ_CONSUMES : RABBITMQ_ASKED,
                                      .number = 1,
                                      .n = 1,
                                      .most = r->prefetch,
                                      .wanted_ms = f->now_ms};
    r->joined_ms = f->now_ms;
    f->broker = ends[1];
}

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->env = *once_env_real();
    f->env.self = f;
    f->env.boot_ms = boot_ms;
    f->now_ms = 1000000;
    f->own = (once_rabbitmq_spec){.url = {.name = ONCE_BYTES("url"), .value = ONCE_BYTES("amqp://localhost:1")},
                                  .queue = ONCE_BYTES("q"),
                                  .prefetch = 10,
                                  .heartbeat_ms = 20000,
                                  .consumer_timeout_ms = ONCE_FOREVER};
    f->spec = (once_spec){.file = ONCE_BYTES("p.yaml"),
                          .consumer = ONCE_BYTES("c"),
                          .message_max = 1000,
                          .batch_max = 10,
                          .source = {.kind = &once__source_rabbitmq, .own = &f->own}};
    assert_int_equal(once__rabbitmq_ops.open(&f->spec, &f->env, ONCE_OPEN_RUN, (once_cancel){0}, &f->source, &f->err),
                     ONCE_OK);
    connect_to(f, true);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    close(f->broker);
    if (f->source) f->source->ops->close(f->source);
    once_arena_release(&f->batch.arena);
    free(f);
    return 0;
}

/* --- what the broker says --- */

static void say_in(const fixture *f, uint8_t channel, uint8_t type, const void *payload, size_t len)
{
    uint8_t frame[300] = {type, 0, channel, 0, 0, (uint8_t)(len >> 8), (uint8_t)len};
    assert_true(len + 8 <= sizeof frame);
    memcpy(frame + 7, payload, len);
    frame[7 + len] = 0xce;
    assert_int_equal(write(f->broker, frame, len + 8), len + 8);
}

static void say(const fixture *f, uint8_t type, const void *payload, size_t len)
{
    say_in(f, ONCE_RABBITMQ_CHANNEL, type, payload, len);
}

static void say_delivery(const fixture *f, uint8_t tag)
{
    const uint8_t payload[] = {0, 60, 0, 60, 1, 'c', 0, 0, 0, 0, 0, 0, 0, tag, 0, 0, 1, 'q'};
    say(f, AMQP_FRAME_METHOD, payload, sizeof payload);
}

/* Of a message without a body; `flags` say what is in `properties`. */
static void say_header(const fixture *f, uint8_t class_id, uint16_t flags, const void *properties, size_t len)
{
    uint8_t payload[200] = {0, class_id, [12] = (uint8_t)(flags >> 8), (uint8_t)flags};
    memcpy(payload + 14, properties, len);
    say(f, AMQP_FRAME_HEADER, payload, 14 + len);
}

static void say_message(const fixture *f, uint8_t tag)
{
    say_delivery(f, tag);
    say_header(f, AMQP_BASIC_CLASS, 0, "", 0);
}

/* With the header x-stream-offset. */
static void say_message_of_stream(const fixture *f, uint8_t tag)
{
    static const uint8_t table[] = "\0\0\0\x19\x0fx-stream-offsetl\0\0\0\0\0\0\0\x07";
    say_delivery(f, tag);
    say_header(f, AMQP_BASIC_CLASS, AMQP_BASIC_HEADERS_FLAG, table, sizeof table - 1);
}

static void say_counts(const fixture *f, uint8_t ready, uint8_t consumers)
{
    const uint8_t payload[] = {0, 50, 0, 11, 1, 'q', 0, 0, 0, ready, 0, 0, 0, consumers};
    say(f, AMQP_FRAME_METHOD, payload, sizeof payload);
}

static void say_confirmed(const fixture *f)
{
    const uint8_t payload[] = {0, 60, 0, 21, 1, 'c'};
    say(f, AMQP_FRAME_METHOD, payload, sizeof payload);
}

static void say_left(const fixture *f)
{
    const uint8_t payload[] = {0, 60, 0, 31, 1, 'c'};
    say(f, AMQP_FRAME_METHOD, payload, sizeof payload);
}

/* Each method that came since the last call, as "class.method" with an argument of those that these tests look at:
 * limits of messages, tags, and the number at the end of a consumer's name. Questions for counts are left out. */
static const char *all_heard(const fixture *f)
{
    static char text[4096];
    uint8_t data[16384];
    size_t used = 0;
    const ssize_t len = read(f->broker, data, sizeof data);
    text[0] = '\0';
    for (ssize_t at = 0; at + 11 <= len; at += 8 + (data[at + 5] << 8 | data[at + 6])) {
        const uint8_t *m = data + at + 8;
        if (data[at] != AMQP_FRAME_METHOD || m[0] == 50) continue;
        const int argument = m[2] == 10                  ? m[7] << 8 | m[8]
                             : m[2] == 80 || m[2] == 120 ? m[10]
                             : m[2] == 30                ? m[3 + m[3]] - '0'
                                                         : 0;
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%d.%d", used ? " " : "", m[0], m[2]);
        if (argument) used += (size_t)snprintf(text + used, sizeof text - used, "(%d)", argument);
    }
    return text;
}

/* How many methods of this number came since the last call. */
static int heard(const fixture *f, uint8_t class_id, uint8_t method)
{
    uint8_t data[4096];
    int n = 0;
    const ssize_t len = read(f->broker, data, sizeof data);
    for (ssize_t at = 0; at + 11 <= len; at += 8 + (data[at + 5] << 8 | data[at + 6]))
        n += data[at] == AMQP_FRAME_METHOD && data[at + 8] == class_id && data[at + 10] == method;
    return n;
}

/* --- what the source does --- */

static int fetch(fixture *f)
{
    once_arena_release(&f->batch.arena);
    f->batch = (once_batch){0};
    f->fetch = (once_fetch){.max = 10, .batch = &f->batch, .rest = true}; /* does not wait */
    return f->source->ops->fetch(f->source, &f->fetch, &f->err);
}

/* As the machine asks while it works: with `max` 0 it wants none. */
static void expect_given_of(fixture *f, size_t max, size_t n)
{
    once_arena_release(&f->batch.arena);
    f->batch = (once_batch){0};
    f->fetch = (once_fetch){.max = max, .batch = &f->batch};
    assert_int_equal(f->source->ops->fetch(f->source, &f->fetch, &f->err), ONCE_OK);
    assert_int_equal(f->fetch.n_news, 0);
    assert_int_equal(f->batch.n, n);
}

static void expect_given(fixture *f, size_t n)
{
    assert_int_equal(fetch(f), ONCE_OK);
    assert_int_equal(f->fetch.n_news, 0);
    assert_int_equal(f->batch.n, n);
}

static void expect_lost(fixture *f, const char *why)
{
    assert_int_equal(fetch(f), ONCE_OK);
    assert_int_equal(f->fetch.n_news, 1);
    assert_int_equal(f->fetch.news[0].change, ONCE_STREAM_LOST);
    assert_int_equal(f->batch.n, 0);
    if (!strstr(source_of(f)->why.text, why)) fail_msg("%s", source_of(f)->why.text);
}

static void ack(const fixture *f, uint64_t delivery, once_receipt_answer answer)
{
    once_receipt receipt = {.delivery = delivery};
    assert_int_equal(f->source->ops->ack(f->source, &receipt, 1, NULL), ONCE_OK);
    assert_int_equal(receipt.answer, answer);
}

static int64_t lag(const fixture *f) { return f->source->ops->lag(f->source, 0); }

/* --- tests --- */

static void the_lag_is_what_is_ready_or_not_acked(void **state)
{
    fixture *f = *state;
    assert_int_equal(lag(f), -1);
    expect_given(f, 0);
    assert_int_equal(heard(f, 50, 10), 1);
    say_message(f, 1);
    say_message(f, 2);
    say_counts(f, 5, 1);
    expect_given(f, 2);
    assert_int_equal(lag(f), 7);
    ack(f, 2, ONCE_RECEIPT_DONE);
    expect_given(f, 0);
    assert_int_equal(heard(f, 50, 10), 0); /* it asks every two seconds, and has one question at a time */
    f->now_ms += 2000;
    expect_given(f, 0);
    f->now_ms += 2000;
    expect_given(f, 0);
    assert_int_equal(heard(f, 50, 10), 1);
    say_counts(f, 3, 1);
    expect_given(f, 0);
    assert_int_equal(lag(f), 4);
    f->now_ms += 2000;
    expect_given(f, 0);
    say_counts(f, 0, 0); /* a quorum queue without a leader */
    expect_given(f, 0);
    assert_int_equal(lag(f), -1);
}

static void a_channel_that_stands_still_is_given_up(void **state)
{
    fixture *f = *state;
    expect_given(f, 0);
    f->now_ms += HUNG_S * 1000 - 1;
    expect_given(f, 0);
    f->now_ms += 1;
    expect_lost(f, "for 90 s it has neither sent a message nor said how many there are");
}

/* It works if anything comes; and what handlers are busy with is not taken back from them. */
static void a_channel_that_works_is_not_given_up(void **state)
{
    fixture *f = *state;
    expect_given(f, 0);
    f->now_ms += HUNG_S * 1000 - 1;
    say_message(f, 1);
    expect_given(f, 1);
    f->now_ms += HUNG_S * 1000;
    expect_given(f, 0);
    ack(f, 1, ONCE_RECEIPT_DONE);
    say_message(f, 2);
    expect_given(f, 1);
    ack(f, 2, ONCE_RECEIPT_DONE);
    f->now_ms += HUNG_S * 1000 - 1;
    expect_given(f, 0);
    f->now_ms += 1;
    expect_lost(f, "for 90 s");
}

/* The broker keeps the request, and counts a delivery if we are gone: so there are few requests. */
static void a_consumer_that_is_not_confirmed_is_waited_for(void **state)
{
    fixture *f = *state;
    rabbitmq_source *r = source_of(f);
    r->consumer.state = RABBITMQ_ASKED;
    expect_given(f, 0);
    f->now_ms += 65000;
    expect_given(f, 0);
    for (int64_t pause_s = 10; pause_s < 1000; pause_s *= 2) {
        close(f->broker); /* it gives up */
        expect_lost(f, "connection");
        assert_int_equal(r->again_ms - f->now_ms, (pause_s < 300 ? pause_s : 300) * 1000);
        r->state = RABBITMQ_APART;
        connect_to(f, false);
    }
    say_confirmed(f);
    expect_given(f, 0);
    assert_int_equal(r->consumer.state, RABBITMQ_CONSUMES);
    f->now_ms += 5000;
    close(f->broker);
    expect_lost(f, "connection");
    assert_true(r->again_ms <= f->now_ms);
    connect_to(f, true);
}

/* It was a consumer before, and is one again in a moment: nothing is wrong with the queue. */
static void a_connection_that_is_lost_while_one_more_consumer_is_asked_for(void **state)
{
    fixture *f = *state;
    rabbitmq_source *r = source_of(f);
    f->now_ms += 60000;
    r->consumer.state = RABBITMQ_ASKED;
    r->consumer.asked_ms = f->now_ms;
    close(f->broker);
    expect_lost(f, "connection");
    assert_true(r->again_ms <= f->now_ms);
    connect_to(f, true);
}

static void a_connection_that_does_not_last_is_made_again_after_a_pause(void **state)
{
    fixture *f = *state;
    rabbitmq_source *r = source_of(f);
    for (int64_t pause_ms = 100; pause_ms < 10000; pause_ms *= 2) {
        close(f->broker);
        expect_lost(f, "connection");
        assert_int_equal(r->again_ms - f->now_ms, pause_ms < 1000 ? pause_ms : 1000);
        r->state = RABBITMQ_APART;
        connect_to(f, true);
    }
}

static void what_a_broker_must_not_say(void **state)
{
    fixture *f = *state;
    const char *why = "the broker sent a frame out of turn";
    say_message(f, 2);
    say_message(f, 2);
    expect_lost(f, why);
    source_of(f)->state = RABBITMQ_APART;
    close(f->broker);
    connect_to(f, true);
    say_delivery(f, 0);
    expect_lost(f, why);
    source_of(f)->state = RABBITMQ_APART;
    close(f->broker);
    connect_to(f, true);
    say_delivery(f, 3);
    say_header(f, AMQP_CONNECTION_CLASS, 0xff00, "", 0);
    expect_lost(f, why);
    assert_int_equal(source_of(f)->last_tag, 2);
}

/* Numbers go on with the next connection: an ack for a message of the last one must not ack another one. */
static void an_ack_of_an_earlier_connection_is_gone(void **state)
{
    fixture *f = *state;
    say_message(f, 1);
    say_message(f, 2);
    expect_given(f, 2);
    close(f->broker);
    expect_lost(f, "connection");
    source_of(f)->state = RABBITMQ_APART;
    source_of(f)->before += source_of(f)->last_tag; /* as a join does */
    source_of(f)->last_tag = 0;
    connect_to(f, true);
    say_message(f, 1);
    expect_given(f, 1);
    assert_int_equal(f->batch.items[0].delivery, 3);
    ack(f, 1, ONCE_RECEIPT_GONE);
    ack(f, 2, ONCE_RECEIPT_GONE);
    assert_int_equal(heard(f, 60, 80), 0);
    ack(f, 3, ONCE_RECEIPT_DONE);
    assert_int_equal(heard(f, 60, 80), 1);
    ack(f, 3, ONCE_RECEIPT_DONE); /* again: the broker would close the channel */
    assert_int_equal(heard(f, 60, 80), 0);
}

/* The connection is cut in the middle of a message: the next one begins with another one. */
static void half_a_message_is_forgotten(void **state)
{
    fixture *f = *state;
    static const uint8_t five_bytes_follow[14] = {0, AMQP_BASIC_CLASS, [11] = 5};
    for (int frames = 1; frames <= 3; frames++) {
        say_message(f, 1);
        say_delivery(f, 2);
        if (frames > 1) say(f, AMQP_FRAME_HEADER, five_bytes_follow, sizeof five_bytes_follow);
        if (frames > 2) say(f, AMQP_FRAME_BODY, "four", 4);
        close(f->broker);
        expect_lost(f, "connection");
        source_of(f)->state = RABBITMQ_APART;
        source_of(f)->last_tag = 0;
        connect_to(f, true);
        expect_given(f, 0);
        say_message(f, 1);
        expect_given(f, 1);
        ack(f, 1, ONCE_RECEIPT_DONE);
        source_of(f)->last_tag = 0;
    }
}

/* The broker did not get it, and delivers again. */
static void an_ack_that_cannot_be_sent_is_gone(void **state)
{
    fixture *f = *state;
    say_message(f, 1);
    say_message(f, 2);
    expect_given(f, 2);
    close(f->broker);
    ack(f, 1, ONCE_RECEIPT_GONE);
    ack(f, 2, ONCE_RECEIPT_GONE);
    expect_lost(f, "the connection of queue 'q' broke");
    connect_to(f, true);
}

/* The socket takes no bytes: an ack does not wait for it with the lock, because then nothing could be received. */
static void an_ack_waits_for_room_without_the_lock(void **state)
{
    fixture *f = *state;
    static const uint8_t filler[1 << 16];
    once_receipt receipt = {.delivery = 1};
    say_message(f, 1);
    expect_given(f, 1);
    while (write(source_of(f)->fd, filler, sizeof filler) > 0) continue;
    while (write(source_of(f)->fd, filler, 1) > 0) continue;
    assert_int_equal(f->source->ops->ack(f->source, &receipt, 1, &f->err), ONCE_E_UNAVAILABLE);
    assert_int_equal(receipt.answer, ONCE_RECEIPT_OPEN);
    assert_int_equal(source_of(f)->tags.open, 1);
}

static void a_delivery_is_extended_until_half_of_its_time_is_over(void **state)
{
    fixture *f = *state;
    once_receipt receipt = {.delivery = 1};
    source_of(f)->hold_ms = 10000;
    say_message(f, 1);
    expect_given(f, 1);
    f->now_ms += 4999;
    assert_int_equal(f->source->ops->extend(f->source, &receipt, 1, NULL), ONCE_OK);
    assert_int_equal(receipt.answer, ONCE_RECEIPT_DONE);
    f->now_ms += 1;
    assert_int_equal(f->source->ops->extend(f->source, &receipt, 1, NULL), ONCE_OK);
    assert_int_equal(receipt.answer, ONCE_RECEIPT_LAST);
    ack(f, 1, ONCE_RECEIPT_DONE);
    assert_int_equal(f->source->ops->extend(f->source, &receipt, 1, NULL), ONCE_OK);
    assert_int_equal(receipt.answer, ONCE_RECEIPT_GONE);
}

/* --- messages that are not wanted --- */

#define CANCEL(number) "60.30(" #number ")"
#define CONSUME "60.20"
#define QOS(n) "60.10(" #n ")"
#define NACK(tag) "60.120(" #tag ")"
#define ACK(tag) "60.80(" #tag ")"

/* Messages 1 to 4 are here; 1 and 2 were handed out. The others have not been wanted for a quarter of the time. */
static void wait_in_vain(fixture *f)
{
    source_of(f)->hold_ms = 10000;
    for (uint8_t tag = 1; tag <= 4; tag++) say_message(f, tag);
    expect_given_of(f, 2, 2);
    f->now_ms += 2499;
    expect_given_of(f, 0, 0);
    assert_string_equal(all_heard(f), "");
    f->now_ms += 1;
    expect_given_of(f, 0, 0);
    assert_string_equal(all_heard(f), CANCEL(1));
    say_message(f, 5); /* it was on its way */
    expect_given_of(f, 0, 0);
    assert_string_equal(all_heard(f), ""); /* given back now, they would come again at once */
}

/* After half of the time. Until then other workers have left, too, and do not get them. */
static void give_back(fixture *f)
{
    wait_in_vain(f);
    say_left(f);
    f->now_ms += 2499;
    expect_given_of(f, 0, 0);
    assert_string_equal(all_heard(f), "");
    f->now_ms += 1;
    expect_given_of(f, 0, 0);
    assert_string_equal(all_heard(f), NACK(3) " " NACK(4) " " NACK(5));
}

/* Those that were handed out stay, and are acked as before. */
static void what_is_not_wanted_is_given_back(void **state)
{
    fixture *f = *state;
    give_back(f);
    assert_int_equal(source_of(f)->tags.open, 2);
    ack(f, 2, ONCE_RECEIPT_DONE);
    assert_string_equal(all_heard(f), ACK(2));
    f->now_ms += 100000;
    expect_given_of(f, 0, 0);
    assert_string_equal(all_heard(f), "");
    ack(f, 1, ONCE_RECEIPT_DONE);
    assert_string_equal(all_heard(f), ACK(1));
}

static void what_comes_after_the_consumer_was_left_is_given_back(void **state)
{
    fixture *f = *state;
    give_back(f);
    say_message(f, 6);
    expect_given_of(f, 0, 0);
    f->now_ms += 5000;
    expect_given_of(f, 0, 0);
    assert_string_equal(all_heard(f), NACK(6));
}

/* What others give back comes to those who still consume: so a worker that wants nothing leaves, whatever it has. */
static void a_worker_that_wants_nothing_leaves_with_empty_hands(void **state)
{
    fixture *f = *state;
    source_of(f)->hold_ms = 10000;
    expect_given_of(f, 1, 0);
    f->now_ms += 2499;
    expect_given_of(f, 0, 0);
    assert_string_equal(all_heard(f), "");
    f->now_ms += 1;
    expect_given_of(f, 0, 0);
    assert_string_equal(all_heard(f), CANCEL(1));
    say_left(f);
    expect_given_of(f, 1, 0);
    assert_string_equal(all_heard(f), QOS(10) " " CONSUME); /* nothing was given back */
}

/* A message now and then is not enough for those that wait behind it. */
static void what_is_wanted_too_slowly_is_given_back(void **state)
{
    fixture *f = *state;
    source_of(f)->hold_ms = 10000;
    for (uint8_t tag = 1; tag <= 6; tag++) say_message(f, tag);
    expect_given_of(f, 1, 1);
    f->now_ms += 2000;
    expect_given_of(f, 1, 1);
    assert_string_equal(all_heard(f), "");
    f->now_ms += 500;
    expect_given_of(f, 1, 1);
    assert_string_equal(all_heard(f), CANCEL(1));
    say_left(f);
    f->now_ms += 2499;
    expect_given_of(f, 1, 1);
    assert_string_equal(all_heard(f), "");
    f->now_ms += 1;
    expect_given_of(f, 1, 0);
    assert_string_equal(all_heard(f), NACK(5) " " NACK(6));
    expect_given_of(f, 1, 0);
    assert_string_equal(all_heard(f), QOS(1) " " CONSUME);
}

/* At first no more than is wanted, then twice as many: what is taken at once is not given back again. The queue always
 * has a consumer meanwhile: it might be deleted when the last one leaves. */
static void a_queue_is_consumed_again_by_and_by(void **state)
{
    fixture *f = *state;
    give_back(f);
    expect_given_of(f, 3, 0);
    assert_string_equal(all_heard(f), QOS(3) " " CONSUME);
    say_confirmed(f);
    say_message(f, 6);
    expect_given_of(f, 3, 1);
    expect_given_of(f, 3, 0);
    assert_string_equal(all_heard(f), ""); /* it may still have two more */
    say_message(f, 7);
    say_message(f, 8);
    expect_given_of(f, 3, 2);
    expect_given_of(f, 0, 0);
    assert_string_equal(all_heard(f), ""); /* no more is wanted */
    expect_given_of(f, 1, 0);
    assert_string_equal(all_heard(f), QOS(3) " " CONSUME); /* one more */
    say_confirmed(f);
    for (uint8_t tag = 9; tag <= 11; tag++) say_message(f, tag);
    expect_given_of(f, 10, 3);
    expect_given_of(f, 10, 0);
    assert_string_equal(all_heard(f), ""); /* 1, 2, 6 to 11 are not acked: with more, it were more than `prefetch` */
    for (uint8_t tag = 1; tag <= 11; tag++)
        if (tag < 3 || tag > 5) ack(f, tag, ONCE_RECEIPT_DONE);
    (void)all_heard(f);
    expect_given_of(f, 10, 0);
    assert_string_equal(all_heard(f), QOS(4) " " CONSUME);
    say_confirmed(f);
    for (uint8_t tag = 12; tag <= 21; tag++) say_message(f, tag);
    expect_given_of(f, 10, 10);
    expect_given_of(f, 10, 0);
    assert_string_equal(all_heard(f), ""); /* that is `prefetch` */
    for (uint8_t tag = 12; tag <= 21; tag++) ack(f, tag, ONCE_RECEIPT_DONE);
    (void)all_heard(f);
    f->now_ms += 2500;
    expect_given_of(f, 0, 0);
    assert_string_equal(all_heard(f), CANCEL(4) " " CANCEL(3) " " CANCEL(2));
    say_left(f);
    say_left(f);
    expect_given_of(f, 4, 0);
    assert_string_equal(all_heard(f), ""); /* one is still there */
    say_left(f);
    expect_given_of(f, 4, 0);
    assert_string_equal(all_heard(f), QOS(10) " " CONSUME); /* there was room for all of them since the last pause */
}

static void messages_that_are_wanted_again_meanwhile_are_not_given_back(void **state)
{
    fixture *f = *state;
    wait_in_vain(f);
    expect_given_of(f, 10, 3);
    say_left(f);
    expect_given_of(f, 0, 0);
    assert_string_equal(all_heard(f), "");
    assert_int_equal(source_of(f)->tags.open, 5);
    expect_given_of(f, 10, 0);
    assert_string_equal(all_heard(f), QOS(5) " " CONSUME); /* `prefetch` with those that are not acked */
}

/* Whether the queue is a stream is known as its consumer alone. */
static void a_message_that_may_be_of_a_stream_needs_a_consumer(void **state)
{
    fixture *f = *state;
    source_of(f)->consumer = (rabbitmq_consumer){0};
    say_message_of_stream(f, 1);
    expect_given_of(f, 10, 0);
    assert_non_null(strstr(all_heard(f), QOS(9) " " CONSUME));
}

/* The same where there is no room for another consumer. */
static void messages_that_may_be_of_a_stream_are_given_back_in_their_time(void **state)
{
    fixture *f = *state;
    source_of(f)->consumer = (rabbitmq_consumer){0};
    source_of(f)->hold_ms = 10000;
    for (uint8_t tag = 1; tag <= 10; tag++) say_message_of_stream(f, tag);
    expect_given_of(f, 10, 0);
    f->now_ms += 5000;
    expect_given_of(f, 10, 0);
    assert_int_equal(source_of(f)->tags.open, 0);
    expect_given_of(f, 10, 0);
    assert_non_null(strstr(all_heard(f), QOS(10) " " CONSUME));
}

/* An ack for several covers none that is not settled, whatever lies between. */
static void an_ack_for_several_goes_over_what_was_given_back(void **state)
{
    fixture *f = *state;
    give_back(f);
    expect_given_of(f, 10, 0);
    say_confirmed(f);
    say_message(f, 6);
    expect_given_of(f, 10, 1);
    (void)all_heard(f);
    once_receipt receipts[] = {{.delivery = 1}, {.delivery = 6}};
    assert_int_equal(f->source->ops->ack(f->source, receipts, 2, NULL), ONCE_OK);
    assert_string_equal(all_heard(f), ACK(1) " " ACK(6)); /* 2 is not settled */
    ack(f, 2, ONCE_RECEIPT_DONE);
    assert_string_equal(all_heard(f), ACK(2));
    assert_int_equal(source_of(f)->tags.open, 0);
}

static void a_connection_that_is_lost_without_a_consumer(void **state)
{
    fixture *f = *state;
    give_back(f);
    close(f->broker);
    expect_lost(f, "connection");
    assert_true(source_of(f)->again_ms <= f->now_ms); /* it had lasted */
    connect_to(f, true);
}

/* Without a consumer the queue has none, and is no stream for that reason. */
static void a_queue_without_a_consumer_is_no_stream(void **state)
{
    fixture *f = *state;
    give_back(f);
    say_counts(f, 7, 0);
    expect_given_of(f, 0, 0);
    assert_int_equal(lag(f), 7 + 2);
    f->now_ms += 2000;
    expect_given_of(f, 10, 0);
    say_counts(f, 10, 0); /* it was asked before */
    say_confirmed(f);
    say_message_of_stream(f, 6);
    expect_given_of(f, 10, 0);
    f->now_ms += 2000;
    expect_given_of(f, 10, 0);
    say_counts(f, 9, 1);
    expect_given_of(f, 10, 1);
}

static void a_broker_that_cancels_the_consumer(void **state)
{
    fixture *f = *state;
    static const uint8_t cancel[] = {0, 60, 0, 30, 1, 'c', 0};
    say(f, AMQP_FRAME_METHOD, cancel, sizeof cancel);
    expect_lost(f, "the broker cancelled the consumer");
    source_of(f)->state = RABBITMQ_APART;
    close(f->broker);
    connect_to(f, true);
    say_left(f); /* nobody has asked for that */
    expect_lost(f, "out of turn");
}

/* Otherwise a run would use a whole core from then on. */
static void a_wake_counts_once(void **state)
{
    fixture *f = *state;
    f->source->ops->wake(f->source);
    assert_false(once__rabbitmq_wait(source_of(f), 20000));
    const int64_t began_ns = once_env_mono_ns(once_env_real());
    assert_false(once__rabbitmq_wait(source_of(f), 50));
    assert_true(once_env_mono_ns(once_env_real()) - began_ns >= 50 * 1000000 / 2);
}

/* The broker handles the acks before it gives back the rest. */
static void a_connection_is_closed_in_order(void **state)
{
    fixture *f = *state;
    static const uint8_t close_ok[] = {0, 10, 0, 51};
    say_message(f, 1);
    expect_given(f, 1);
    ack(f, 1, ONCE_RECEIPT_DONE);
    say_in(f, 0, AMQP_FRAME_METHOD, close_ok, sizeof close_ok);
    f->source->ops->close(f->source);
    f->source = NULL;
    assert_int_equal(heard(f, 10, 50), 1);
}

/* Many producers write milliseconds. */
static void timestamps_in_seconds_and_in_milliseconds(void **state)
{
    fixture *f = *state;
    static const struct {
        uint64_t written;
        int64_t sent_ms;
    } cases[] = {{1700000000, 1700000000000}, {1700000000123, 1700000000123}, {UINT64_MAX, ONCE_NO_TIME}, {0, 0}};
    for (uint8_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t bytes[8];
        for (int at = 0; at < 8; at++) bytes[at] = (uint8_t)(cases[i].written >> (56 - 8 * at));
        say_delivery(f, (uint8_t)(i + 1));
        say_header(f, AMQP_BASIC_CLASS, AMQP_BASIC_TIMESTAMP_FLAG, bytes, sizeof bytes);
        expect_given(f, 1);
        assert_int_equal(f->batch.items[0].message.sent_ms, cases[i].sent_ms);
    }
}

static void decimals_are_signed(void **state)
{
    fixture *f = *state;
    static const struct {
        uint8_t bytes[5];
        const char *text;
    } cases[] = {{{2, 0, 0, 0x04, 0xe2}, "12.50"},
                 {{2, 0xff, 0xff, 0xfb, 0x1e}, "-12.50"},
                 {{3, 0xff, 0xff, 0xff, 0xff}, "-0.001"},
                 {{0, 0x80, 0, 0, 0}, "-2147483648"},
                 {{0, 0, 0, 0, 0}, "0"}};
    for (uint8_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t table[12] = {0, 0, 0, 8, 1, 'd', 'D'};
        char wanted[40];
        memcpy(table + 7, cases[i].bytes, 5);
        say_delivery(f, (uint8_t)(i + 1));
        say_header(f, AMQP_BASIC_CLASS, AMQP_BASIC_HEADERS_FLAG, table, sizeof table);
        expect_given(f, 1);
        const once_bytes headers = f->batch.items[0].message.headers;
        const int len = snprintf(wanted, sizeof wanted, "{\"d\":\"%s\"}", cases[i].text);
        assert_int_equal(headers.len, len);
        assert_memory_equal(headers.data, wanted, headers.len);
    }
}

/* --- is it a stream? --- */

static void a_header_of_a_stream_in_a_queue(void **state)
{
    fixture *f = *state;
    say_message_of_stream(f, 1);
    expect_given(f, 0); /* it is not known yet */
    say_counts(f, 0, 1);
    expect_given(f, 1);
    say_message_of_stream(f, 2);
    expect_given(f, 1);
}

static void a_stream_counts_no_consumers(void **state)
{
    fixture *f = *state;
    say_message_of_stream(f, 1);
    expect_given(f, 0);
    say_counts(f, 1, 0);
    expect_lost(f, "it is a stream, from which an ack removes nothing");
    assert_int_equal(fetch(f), ONCE_E_CONFIG);
}

static void a_stream_that_was_empty(void **state)
{
    fixture *f = *state;
    say_counts(f, 0, 0);
    expect_given(f, 0);
    say_message_of_stream(f, 1);
    expect_lost(f, "it may be a stream, and must be asked again");
}
#endif

int main(void)
{
#ifdef ONCE_WITH_RABBITMQ
#define EACH(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        EACH(the_lag_is_what_is_ready_or_not_acked),
        EACH(a_channel_that_stands_still_is_given_up),
        EACH(a_channel_that_works_is_not_given_up),
        EACH(a_consumer_that_is_not_confirmed_is_waited_for),
        EACH(a_connection_that_is_lost_while_one_more_consumer_is_asked_for),
        EACH(a_connection_that_does_not_last_is_made_again_after_a_pause),
        EACH(what_a_broker_must_not_say),
        EACH(an_ack_of_an_earlier_connection_is_gone),
        EACH(half_a_message_is_forgotten),
        EACH(an_ack_that_cannot_be_sent_is_gone),
        EACH(an_ack_waits_for_room_without_the_lock),
        EACH(a_delivery_is_extended_until_half_of_its_time_is_over),
        EACH(what_is_not_wanted_is_given_back),
        EACH(what_comes_after_the_consumer_was_left_is_given_back),
        EACH(a_queue_is_consumed_again_by_and_by),
        EACH(what_is_wanted_too_slowly_is_given_back),
        EACH(a_worker_that_wants_nothing_leaves_with_empty_hands),
        EACH(a_message_that_may_be_of_a_stream_needs_a_consumer),
        EACH(messages_that_may_be_of_a_stream_are_given_back_in_their_time),
        EACH(messages_that_are_wanted_again_meanwhile_are_not_given_back),
        EACH(an_ack_for_several_goes_over_what_was_given_back),
        EACH(a_connection_that_is_lost_without_a_consumer),
        EACH(a_queue_without_a_consumer_is_no_stream),
        EACH(a_broker_that_cancels_the_consumer),
        EACH(a_wake_counts_once),
        EACH(a_connection_is_closed_in_order),
        EACH(timestamps_in_seconds_and_in_milliseconds),
        EACH(decimals_are_signed),
        EACH(a_header_of_a_stream_in_a_queue),
        EACH(a_stream_counts_no_consumers),
        EACH(a_stream_that_was_empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
#else
    return 0;
#endif
}
