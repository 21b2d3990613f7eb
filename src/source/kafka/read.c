/* Reads messages of all partitions that may be read now.
 *
 * Each partition has a queue of its own, which librdkafka fills ahead. Partitions take turns: each fetch begins with
 * the next one, so a partition with many messages holds up no other.
 *
 * When the queues of all partitions of a broker are full, librdkafka 2.0 sleeps, and does not notice for up to a second
 * that they were emptied: one partition of small messages would bring a few thousand a second. A question to the broker
 * wakes it (stir). */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/no_memory.h"
#include "source/kafka/kafka.h"

#include "base/banned.h"

#define IDLE_MS 100
#define EXPECTED 4           /* so far ahead the CPU is told which message comes: a thread of librdkafka made it */
#define EXPECTED_BYTES 512   /* of its body */
#define STIR_MS 20           /* how long the answer is waited for: it is not needed */
#define STIR_MESSAGES 1000   /* after so many, or ... */
#define STIR_BYTES (1 << 16) /* ... so much the queue may have been full */

static bool has_room(kafka_source *k, size_t max)
{
    if (max <= k->messages_max) return true;
    rd_kafka_message_t **messages = realloc(k->messages, max * sizeof *messages);
    if (messages) k->messages = messages;
    uint32_t *streams = messages ? realloc(k->streams, max * sizeof *streams) : NULL;
    if (!streams) return false;
    k->streams = streams;
    k->messages_max = max;
    return true;
}

static bool is_paused(const once_fetch *fetch, uint32_t stream)
{
    for (size_t i = 0; i < fetch->n_paused && fetch->paused[i] <= stream; i++)
        if (fetch->paused[i] == stream) return true;
    return false;
}

static bool may_read(kafka_source *k, const once_fetch *fetch, uint32_t stream)
{
    pthread_mutex_lock(&k->lock);
    const bool reading = k->partitions[stream]->state == KAFKA_READING;
    pthread_mutex_unlock(&k->lock);
    return reading && k->partitions[stream]->open && !is_paused(fetch, stream);
}

static void can_be_read(kafka_source *k, kafka_partition *p)
{
    if (!p->failing) return;
    p->failing = RD_KAFKA_RESP_ERR_NO_ERROR;
    once__kafka_failure_over(k);
}

/* What librdkafka reports about a partition in place of a message. */
static void take_report(kafka_source *k, kafka_partition *p, const rd_kafka_message_t *m)
{
    once_error failure;
    switch (m->err) {
    case RD_KAFKA_RESP_ERR__PARTITION_EOF:
        pthread_mutex_lock(&k->lock);
        p->end = m->offset;
        pthread_mutex_unlock(&k->lock);
        p->at_end = true;
        can_be_read(k, p);
        return;
    case RD_KAFKA_RESP_ERR__AUTO_OFFSET_RESET:
    case RD_KAFKA_RESP_ERR_OFFSET_OUT_OF_RANGE:
        if (once__kafka_out_of_range(k, p, &failure) != ONCE_OK) once__kafka_note(k, k->reader, &failure);
        return;
    default: break;
    }
    if (once__kafka_status(m->err) == ONCE_E_UNAVAILABLE) return; /* librdkafka tries again by itself */
    p->failing = m->err;
    (void)once__kafka_fail(&failure, m->err, "topic '%s' cannot be read", p->topic->name);
    once__kafka_note_part(k, &failure);
}

/* Takes what is in the queue of one partition, up to `max`, behind the `n` that are there. Returns how many there are
 * then. */
static size_t take(kafka_source *k, uint32_t stream, size_t n, size_t max)
{
    kafka_partition *p = k->partitions[stream];
    assert(n < max && max <= k->messages_max && p->queue && p->next >= 0);
    const ssize_t got = rd_kafka_consume_batch_queue(p->queue, 0, k->messages + n, max - n);
    const size_t end = n + (got > 0 ? (size_t)got : 0);
    int64_t next = p->next;
    for (size_t i = n; i < end; i++) {
        rd_kafka_message_t *m = k->messages[i];
        if (i + EXPECTED < end) __builtin_prefetch(k->messages[i + EXPECTED]);
        if (m->err == RD_KAFKA_RESP_ERR_NO_ERROR && p->open && m->offset < next) { /* brokers may say anything */
            once_error failure;
            (void)once_fail(&failure, ONCE_E_CORRUPT, "'%s': offset %" PRId64 " came behind offset %" PRId64, p->place,
                            m->offset, next - 1);
            once__kafka_note(k, NULL, &failure);
            rd_kafka_message_destroy(m);
            continue;
        }
        if (m->err == RD_KAFKA_RESP_ERR_NO_ERROR && p->open) {
            assert(m->partition == p->number);
            next = m->offset + 1;
            p->at_end = false;
            can_be_read(k, p);
            p->taken++;
            p->taken_bytes += m->len;
            k->messages[n] = m;
            k->streams[n++] = stream;
            continue;
        }
        pthread_mutex_lock(&k->lock);
        p->next = next;
        pthread_mutex_unlock(&k->lock);
        if (m->err != RD_KAFKA_RESP_ERR_NO_ERROR && p->open) take_report(k, p, m);
        next = p->next;
        rd_kafka_message_destroy(m);
    }
    pthread_mutex_lock(&k->lock);
    p->next = next;
    pthread_mutex_unlock(&k->lock);
    if (end == max) return n;
    if ((p->taken >= STIR_MESSAGES || p->taken_bytes >= STIR_BYTES) && !p->at_end) k->drained = p->drained = true;
    p->taken = p->taken_bytes = 0;
    return n;
}

/* Wakes librdkafka's threads of the brokers that lead partitions whose queues were emptied. */
static void stir(kafka_source *k)
{
    if (!k->drained) return;
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new((int)k->n_partitions);
    for (uint32_t i = 0; i < k->n_partitions; i++) {
        kafka_partition *p = k->partitions[i];
        if (p->drained && p->open)
            rd_kafka_topic_partition_list_add(list, p->topic->name, p->number)->offset = RD_KAFKA_OFFSET_END;
        p->drained = false;
    }
    k->drained = false;
    if (list->cnt > 0) (void)rd_kafka_offsets_for_times(k->reader, list, STIR_MS);
    rd_kafka_topic_partition_list_destroy(list);
}

static size_t take_all(kafka_source *k, const once_fetch *fetch, size_t n)
{
    for (uint32_t i = 0; i < k->n_partitions && n < fetch->max; i++) {
        const uint32_t stream = (k->first + i) % k->n_partitions;
        if (may_read(k, fetch, stream)) n = take(k, stream, n, fetch->max);
    }
    return n;
}

/* Until a queue gets something, wake is called, or the time is over. True: it was not the time. */
static bool wait_for_more(kafka_source *k, int64_t ms)
{
    struct pollfd fd = {.fd = k->wake_fd, .events = POLLIN};
    uint64_t count;
    stir(k);
    const int ready = poll(&fd, 1, (int)ms);
    return ready > 0 && read(k->wake_fd, &count, sizeof count) > 0;
}

/* --- items -------------------------------------------------------------------------------------------------------- */

/* A decimal number, at most 20 bytes; returns its length. */
static size_t write_offset(uint64_t offset, char *to)
{
    char digits[20];
    size_t n = 0;
    do digits[n++] = (char)('0' + offset % 10);
    while (offset /= 10);
    for (size_t i = 0; i < n; i++) to[i] = digits[n - 1 - i];
    return n;
}

static bool set_body(const once_spec *spec, const rd_kafka_message_t *m, once_arena *arena, once_message *out)
{
    const size_t len = m->len > spec->message_max ? spec->message_max : m->len;
    out->no_body = !m->payload;
    out->cut_from = m->len > len ? m->len : 0;
    return once_arena_copy(arena, (once_bytes){m->payload ? m->payload : "", m->payload ? len : 0}, &out->body);
}

static bool make_item(kafka_source *k, const rd_kafka_message_t *m, uint32_t stream, once_batch *batch, once_item *out)
{
    const once_spec *spec = k->base.spec;
    once_message *to = &out->message;
    rd_kafka_timestamp_type_t type;
    const int64_t sent_ms = rd_kafka_message_timestamp(m, &type);
    char *point = once_arena_alloc(&batch->arena, 20);
    *out = (once_item){0};
    if (!point || !set_body(spec, m, &batch->arena, to) ||
        !once__kafka_headers(m, spec->source.named, &batch->arena, &to->headers))
        return false;
    to->at.point = (once_bytes){point, write_offset((uint64_t)m->offset, point)};
    to->sent_ms = type == RD_KAFKA_TIMESTAMP_NOT_AVAILABLE || sent_ms < 0 ? ONCE_NO_TIME : sent_ms;
    out->batch = batch;
    out->stream = stream;
    out->delivery = (uint64_t)m->offset;
    return true;
}

/* The item's memory was written by another thread, too, when it was another message. */
static void expect_item(const rd_kafka_message_t *m, const once_item *item)
{
    for (size_t at = 0; at < m->len && at < EXPECTED_BYTES; at += 64) __builtin_prefetch((const char *)m->payload + at);
    once_item_expect(item);
}

/* Returns how many were made; fewer than `n`: memory is out. Their messages are destroyed one by one, while they are
 * still in the nearest cache. */
static size_t make_items(kafka_source *k, size_t n, once_batch *batch)
{
    once_bytes place = {0};
    assert(n > 0 && n <= k->messages_max);
    /* Each is zeroed just before it is filled: a batch of them does not fit into the nearest cache. */
    batch->items = once_arena_alloc(&batch->arena, n * sizeof *batch->items);
    if (!batch->items) return 0;
    for (size_t i = 0; i < n; i++) {
        once_item *item = &batch->items[i];
        if (i == 0 || k->streams[i] != k->streams[i - 1]) {
            const char *text = k->partitions[k->streams[i]]->place;
            if (!once_arena_copy(&batch->arena, (once_bytes){text, strlen(text)}, &place)) return i;
        }
        if (i + EXPECTED < n) expect_item(k->messages[i + EXPECTED], item + EXPECTED);
        if (!make_item(k, k->messages[i], k->streams[i], batch, item)) return i;
        item->message.at.place = place;
        rd_kafka_message_destroy(k->messages[i]);
    }
    return n;
}

/* Messages that cannot be given are read again, and so are those of which `made` items were made. */
static void put_back(kafka_source *k, const once_batch *batch, size_t made, size_t n)
{
    for (size_t i = n; i > 0; i--) {
        kafka_partition *p = k->partitions[k->streams[i - 1]];
        once__kafka_stop_partition(k, p);
        pthread_mutex_lock(&k->lock);
        p->next = i > made ? k->messages[i - 1]->offset : (int64_t)batch->items[i - 1].delivery;
        p->sought = true;
        if (p->state == KAFKA_READING) p->state = KAFKA_ASSIGNED;
        pthread_mutex_unlock(&k->lock);
        if (i > made) rd_kafka_message_destroy(k->messages[i - 1]);
    }
}

int once__kafka_read(kafka_source *k, once_fetch *fetch, once_error *err)
{
    assert(fetch->max > 0);
    if (!has_room(k, fetch->max)) return once_no_memory(err, "for a batch");
    if (k->n_partitions) k->first = (k->first + 1) % k->n_partitions;
    size_t n = take_all(k, fetch, 0);
    const bool may_wait = !fetch->rest && fetch->n_news == 0 && !once__kafka_has_ended(k);
    if (n == 0 && may_wait && wait_for_more(k, IDLE_MS)) n = take_all(k, fetch, 0);
    const int64_t until_ns = once__kafka_now_ns(k) + k->base.spec->batch_wait_ms * 1000000;
    while (n > 0 && n < fetch->max && may_wait && !atomic_exchange(&k->woken, false) && !once__kafka_has_ended(k)) {
        const int64_t left_ms = (until_ns - once__kafka_now_ns(k)) / 1000000;
        if (left_ms <= 0 || !wait_for_more(k, left_ms)) break;
        n = take_all(k, fetch, n);
    }
    const size_t made = n ? make_items(k, n, fetch->batch) : 0;
    fetch->batch->n = made == n ? n : 0;
    if (made == n) return ONCE_OK;
    put_back(k, fetch->batch, made, n);
    return once_no_memory(err, "for a batch");
}
