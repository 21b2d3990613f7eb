/* The partitions of the source, and the topics that they belong to. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"
#include "source/kafka/kafka.h"

#include "base/banned.h"

kafka_topic *once__kafka_topic(kafka_source *k, const char *name)
{
    for (kafka_topic *t = k->topics; t; t = t->next)
        if (strcmp(t->name, name) == 0) return t;
    kafka_topic *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->name = strdup(name);
    t->handle = t->name ? rd_kafka_topic_new(k->reader, name, NULL) : NULL;
    t->began_with = -1;
    if (!t->handle) {
        free(t->name);
        free(t);
        return NULL;
    }
    pthread_mutex_lock(&k->lock);
    t->next = k->topics;
    k->topics = t;
    pthread_mutex_unlock(&k->lock);
    return t;
}

/* "payments/3"; NULL: out of memory. */
static const char *place_of(kafka_topic *t, int32_t number)
{
    assert(number >= 0);
    if (number >= t->n_places) {
        char **more = realloc(t->places, ((size_t)number + 1) * sizeof *more);
        if (!more) return NULL;
        memset(more + t->n_places, 0, ((size_t)number + 1 - (size_t)t->n_places) * sizeof *more);
        t->places = more;
        t->n_places = number + 1;
    }
    if (!t->places[number] && asprintf(&t->places[number], "%s/%d", t->name, (int)number) < 0) t->places[number] = NULL;
    return t->places[number];
}

kafka_partition *once__kafka_find(kafka_source *k, const char *topic, int32_t number)
{
    for (uint32_t i = 0; i < k->n_partitions; i++) {
        kafka_partition *p = k->partitions[i];
        if (p->state == KAFKA_FREE || p->state == KAFKA_RELEASED || p->state == KAFKA_LOST) continue;
        if (p->number == number && strcmp(p->topic->name, topic) == 0) return p;
    }
    return NULL;
}

/* The first that is free, or one more. NULL: out of memory. */
static kafka_partition *free_place(kafka_source *k)
{
    for (uint32_t i = 0; i < k->n_partitions; i++)
        if (k->partitions[i]->state == KAFKA_FREE) return k->partitions[i];
    kafka_partition *p = calloc(1, sizeof *p);
    kafka_partition **more = p ? malloc((k->n_partitions + 1) * sizeof *more) : NULL;
    if (!more) {
        free(p);
        return NULL;
    }
    if (k->n_partitions) memcpy(more, k->partitions, k->n_partitions * sizeof *more);
    more[k->n_partitions] = p;
    pthread_mutex_lock(&k->lock);
    kafka_partition **before = k->partitions;
    k->partitions = more;
    k->n_partitions++;
    pthread_mutex_unlock(&k->lock);
    free(before);
    return p;
}

bool once__kafka_add(kafka_source *k, const char *topic, int32_t number)
{
    assert(number >= 0 && !once__kafka_find(k, topic, number));
    kafka_topic *t = once__kafka_topic(k, topic);
    const char *place = t ? place_of(t, number) : NULL;
    kafka_partition *p = place ? free_place(k) : NULL;
    if (!p) return false;
    assert(!p->open && !p->queue);
    pthread_mutex_lock(&k->lock);
    *p = (kafka_partition){
        .state = KAFKA_WAITING, .topic = t, .number = number, .place = place, .next = -1, .committed = -1, .began = -1};
    pthread_mutex_unlock(&k->lock);
    return true;
}

int once__kafka_open_partition(kafka_source *k, kafka_partition *p, once_error *err)
{
    static const uint64_t one = 1;
    assert(!p->open && p->next >= 0);
    p->queue = rd_kafka_queue_new(k->reader);
    rd_kafka_queue_io_event_enable(p->queue, k->wake_fd, &one, sizeof one);
    p->open = rd_kafka_consume_start_queue(p->topic->handle, p->number, p->next, p->queue) == 0;
    if (p->open) {
        pthread_mutex_lock(&k->lock);
        if (p->began < 0) p->began = p->next;
        pthread_mutex_unlock(&k->lock);
        return ONCE_OK;
    }
    const rd_kafka_resp_err_t why = rd_kafka_last_error();
    rd_kafka_queue_destroy(p->queue);
    p->queue = NULL;
    return once__kafka_fail(err, why, "cannot read '%s'", p->place);
}

void once__kafka_stop_partition(kafka_source *k, kafka_partition *p)
{
    (void)k;
    assert(p->open == (p->queue != NULL));
    if (!p->open) return;
    p->open = false;
    rd_kafka_queue_io_event_enable(p->queue, -1, NULL, 0);
    (void)rd_kafka_consume_stop(p->topic->handle, p->number);
    rd_kafka_queue_destroy(p->queue);
    p->queue = NULL;
}

void once__kafka_free_released(kafka_source *k)
{
    for (uint32_t i = 0; i < k->n_partitions; i++) {
        kafka_partition *p = k->partitions[i];
        pthread_mutex_lock(&k->lock);
        const bool released = p->state == KAFKA_RELEASED;
        pthread_mutex_unlock(&k->lock);
        if (!released) continue;
        once__kafka_stop_partition(k, p);
        pthread_mutex_lock(&k->lock);
        p->state = KAFKA_FREE;
        p->reported = false;
        pthread_mutex_unlock(&k->lock);
    }
}

void once__kafka_free_all(kafka_source *k)
{
    for (uint32_t i = 0; i < k->n_partitions; i++) {
        once__kafka_stop_partition(k, k->partitions[i]);
        free(k->partitions[i]);
    }
    free(k->partitions);
    k->partitions = NULL;
    k->n_partitions = 0;
    while (k->topics) {
        kafka_topic *t = k->topics;
        k->topics = t->next;
        for (int32_t i = 0; i < t->n_places; i++) free(t->places[i]);
        free(t->places);
        rd_kafka_topic_destroy(t->handle);
        free(t->name);
        free(t);
    }
}
