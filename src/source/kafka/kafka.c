/* The Kafka source: its life, and what an open one does. kafka.h has the overview. */
#include "source/kafka/kafka.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/errno_text.h"
#include "base/no_memory.h"

#include "base/banned.h"

#define ACK_PAUSE_MS 50 /* an ack asks the broker twice (commit.c) */

/* --- open and close ----------------------------------------------------------------------------------------------- */

static void kafka_close(once_source *source)
{
    kafka_source *k = once__kafka(source);
    atomic_store(&k->closing, true);
    const bool left = !k->member || !k->events || k->purpose != ONCE_OPEN_RUN || once__kafka_leave(k);
    once__kafka_free_all(k);
    if (k->events) {
        rd_kafka_queue_io_event_enable(k->events, -1, NULL, 0);
        rd_kafka_queue_destroy(k->events);
    }
    if (k->reader_events) rd_kafka_queue_destroy(k->reader_events);
    if (k->reader) rd_kafka_destroy(k->reader);
    if (k->wake_fd >= 0) close(k->wake_fd);
    free(k->messages);
    free(k->streams);
    for (size_t i = 0; i < k->n_first_topics; i++) free(k->first_topics[i]);
    free(k->first_topics);
    free(k->group);
    /* Destroying a client that is not closed would wait for brokers that do not answer, perhaps for ever. It stays, and
     * so does what its threads look at. */
    if (!left) return;
    if (k->member) rd_kafka_destroy_flags(k->member, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
    pthread_mutex_destroy(&k->lock);
    free(k);
}

static int subscribe(kafka_source *k, once_error *err)
{
    assert(k->member && k->kafka->n_topics > 0);
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new((int)k->kafka->n_topics);
    once_arena arena = {0};
    once_bytes name;
    bool ok = true;
    for (size_t i = 0; i < k->kafka->n_topics && ok; i++) {
        ok = once_arena_copy(&arena, k->kafka->topics[i], &name);
        if (ok) (void)rd_kafka_topic_partition_list_add(list, name.data, RD_KAFKA_PARTITION_UA);
    }
    const rd_kafka_resp_err_t error = ok ? rd_kafka_subscribe(k->member, list) : RD_KAFKA_RESP_ERR_NO_ERROR;
    rd_kafka_topic_partition_list_destroy(list);
    once_arena_release(&arena);
    if (!ok) return once_no_memory(err, "for the topics");
    return error ? once__kafka_fail(err, error, "cannot subscribe to '%.*s'", (int)k->kafka->joined.len,
                                    k->kafka->joined.data)
                 : ONCE_OK;
}

/* Queues of the clients wake a fetch that waits. */
static void connect_queues(kafka_source *k)
{
    static const uint64_t one = 1;
    assert(k->reader && k->wake_fd >= 0);
    k->reader_events = rd_kafka_queue_get_main(k->reader);
    rd_kafka_queue_io_event_enable(k->reader_events, k->wake_fd, &one, sizeof one);
    if (!k->member) return;
    (void)rd_kafka_poll_set_consumer(k->member);
    k->events = rd_kafka_queue_get_consumer(k->member);
    rd_kafka_queue_io_event_enable(k->events, k->wake_fd, &one, sizeof one);
}

static int kafka_open(const once_spec *spec, const once_env *env, once_source_purpose purpose, once_cancel cancel,
                      once_source **out, once_error *err)
{
    (void)cancel; /* only fetch waits for brokers */
    assert(spec->source.own && spec->message_max > 0);
    kafka_source *k = calloc(1, sizeof *k);
    if (!k) return once_no_memory(err, "for the source");
    k->base = (once_source){.ops = &once__kafka_ops, .spec = spec, .env = env};
    k->kafka = once_kafka_of(&spec->source);
    k->purpose = purpose;
    k->look_for = -1;
    pthread_mutex_init(&k->lock, NULL);
    const once_bytes group = k->kafka->group.len ? k->kafka->group : spec->consumer;
    k->group = strndup(group.data, group.len);
    k->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = !k->group        ? once_no_memory(err, "for the source")
             : k->wake_fd < 0 ? once_fail(err, ONCE_E_IO, "cannot make an eventfd: %s", once_errno_text(errno))
                              : once__kafka_make_clients(k, err);
    if (rc == ONCE_OK) connect_queues(k);
    if (rc == ONCE_OK && purpose == ONCE_OPEN_RUN) rc = subscribe(k, err);
    if (rc == ONCE_OK) *out = &k->base;
    else kafka_close(&k->base);
    return rc;
}

/* --- fetch -------------------------------------------------------------------------------------------------------- */

static bool is_found(const kafka_source *k, const once_batch *batch)
{
    return batch->n > 0 && batch->items[batch->n - 1].delivery >= (uint64_t)k->look_for;
}

static int kafka_fetch(once_source *source, once_fetch *fetch, once_error *err)
{
    kafka_source *k = once__kafka(source);
    kafka_news news = {.fetch = fetch};
    assert(k->purpose != ONCE_OPEN_CHECK && fetch->batch);
    fetch->at_end = false;
    fetch->n_news = 0;
    fetch->batch->n = 0;
    if (once__kafka_has_ended(k)) return once__kafka_failing(k, err);
    once__kafka_free_released(k);
    if (!once__kafka_serve_group(k, &news) || (k->purpose == ONCE_OPEN_RUN && !once__kafka_start(k, &news))) {
        fetch->n_news = 0; /* news that were lost cannot be told again */
        return once_fail(err, ONCE_E_IO, "out of memory for the partitions of group '%s'", k->group);
    }
    int rc = ONCE_OK;
    if (fetch->max > 0) rc = once__kafka_read(k, fetch, err);
    if (rc != ONCE_OK && fetch->n_news == 0) return rc;
    if (fetch->batch->n == 0 && k->purpose == ONCE_OPEN_RUN) once__kafka_look_after_offsets(k);
    if (k->purpose == ONCE_OPEN_LOOK)
        fetch->at_end = k->look_for < 0 || is_found(k, fetch->batch) || k->partitions[0]->at_end;
    if (fetch->n_news == 0 && fetch->batch->n == 0) return once__kafka_failing(k, err);
    once__kafka_failure_over(k);
    return ONCE_OK;
}

static void kafka_wake(once_source *source)
{
    const uint64_t one = 1;
    kafka_source *k = once__kafka(source);
    atomic_store(&k->woken, true);
    if (write(k->wake_fd, &one, sizeof one) < 0) return; /* it is full: a fetch is woken anyway */
}

/* --- what is known without the network ---------------------------------------------------------------------------- */

static unsigned kafka_bits(const once_source *source) { return source->spec->source.bits | ONCE_SOURCE_REDELIVERS; }

/* As Kafka's own tools count: from the group's offset, or from where it began, to the end. At the end, markers of
 * transactions do not count. */
static int64_t kafka_lag(once_source *source, uint32_t stream)
{
    kafka_source *k = once__kafka(source);
    int64_t low = -1, high = -1;
    pthread_mutex_lock(&k->lock);
    const kafka_partition *p = stream < k->n_partitions ? k->partitions[stream] : NULL;
    const bool reading = p && p->state == KAFKA_READING;
    const kafka_topic *topic = reading ? p->topic : NULL;
    const int32_t number = reading ? p->number : 0;
    const int64_t from = !reading ? 0 : p->committed >= 0 ? p->committed : p->began;
    const bool all = reading && p->at_end && from >= p->next;
    pthread_mutex_unlock(&k->lock);
    if (!reading) return -1;
    if (all) return 0;
    if (rd_kafka_get_watermark_offsets(k->reader, topic->name, number, &low, &high) || high < 0) return -1;
    return high > from ? high - from : 0;
}

static const char *kafka_stream_name(once_source *source, uint32_t stream)
{
    kafka_source *k = once__kafka(source);
    pthread_mutex_lock(&k->lock);
    const char *name = stream < k->n_partitions ? k->partitions[stream]->place : NULL;
    pthread_mutex_unlock(&k->lock);
    return name;
}

static int64_t kafka_beat_ms(const once_source *source) { return ((const kafka_source *)source)->poll_max_ms / 3; }

const once_source_ops once__kafka_ops = {
    .open = kafka_open,
    .close = kafka_close,
    .bits = kafka_bits,
    .seek = once__kafka_seek,
    .keep = once__kafka_keep,
    .look = once__kafka_look,
    .ask = once__kafka_ask,
    .backlog = once__kafka_backlog,
    .fetch = kafka_fetch,
    .ack = once__kafka_ack,
    .ack_pause_ms = ACK_PAUSE_MS,
    .release = once__kafka_release,
    .wake = kafka_wake,
    .lag = kafka_lag,
    .stream_name = kafka_stream_name,
    .beat_ms = kafka_beat_ms,
};
