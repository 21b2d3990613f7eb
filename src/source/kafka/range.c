/* An offset that the broker does not have: its message was deleted before it was read, or is not there yet. The second
 * means that the topic was made anew, or that the broker has lost messages. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/log.h"
#include "source/kafka/kafka.h"

#include "base/banned.h"

int once__kafka_commit_first(kafka_source *k, const char *topic, int32_t number, once_error *err)
{
    int64_t low = 0, high = 0;
    if (k->kafka->cursor) return ONCE_OK; /* a cursor is noticed without an offset of the group */
    const rd_kafka_resp_err_t error =
        rd_kafka_query_watermark_offsets(k->reader, topic, number, &low, &high, once__kafka_ask_ms(k));
    if (error) {
        const int rc = once__kafka_fail(err, error, "'%s/%d'", topic, (int)number);
        return rc == ONCE_E_MISSING ? ONCE_OK : rc; /* it is gone */
    }
    rd_kafka_topic_partition_list_t *first = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(first, topic, number)->offset = low;
    const int rc = once__kafka_commit_now(k, first, err);
    rd_kafka_topic_partition_list_destroy(first);
    return rc;
}

/* Whether the group has lost its offset. */
static int ask_offset(kafka_source *k, const kafka_partition *p, bool *lost, once_error *err)
{
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    (void)rd_kafka_topic_partition_list_add(list, p->topic->name, p->number);
    rd_kafka_resp_err_t error = rd_kafka_committed(k->member, list, once__kafka_ask_ms(k));
    if (!error) error = list->elems[0].err;
    *lost = !error && list->elems[0].offset < 0;
    rd_kafka_topic_partition_list_destroy(list);
    return error ? once__kafka_fail(err, error, "cannot read the offset of group '%s' for '%s'", k->group, p->place)
                 : ONCE_OK;
}

/* Its messages are others than those that the machine knows by these offsets, and than those of the store's cursor: the
 * stream is given up, and the partition is assigned again. */
static int begin_anew(kafka_source *k, kafka_partition *p, int64_t low, once_error *err)
{
    rd_kafka_topic_partition_list_t *first = rd_kafka_topic_partition_list_new(1);
    pthread_mutex_lock(&k->lock);
    kafka_kept kept = once__kafka_kept(k, p);
    pthread_mutex_unlock(&k->lock);
    if (kept.epoch >= 0) kept.epoch++; /* not p->epoch: transactions with messages of the old one may still commit */
    once__kafka_add_commit(first, p, low, &kept);
    const int rc = once__kafka_commit_now(k, first, err);
    rd_kafka_topic_partition_list_destroy(first);
    once__kafka_stop_partition(k, p);
    if (rc == ONCE_OK) p->anew = true;
    else once__kafka_open_again(k, p);
    return rc;
}

/* The messages before `low` are lost; those that were read before them go on. */
static int go_on_at(kafka_source *k, kafka_partition *p, int64_t low)
{
    assert(low > p->next);
    pthread_mutex_lock(&k->lock);
    p->next = low;
    pthread_mutex_unlock(&k->lock);
    once__kafka_open_again(k, p);
    return ONCE_OK;
}

int once__kafka_say_lost(const kafka_source *k, const kafka_partition *p, once_error *err)
{
    assert(p->committed >= 0);
    return once_fail(err, ONCE_E_FORGOTTEN,
                     "group '%s' has lost its offset %" PRId64
                     " for '%s': the topic was deleted or made anew while it was read, or the group was deleted; start "
                     "once again%s",
                     k->group, p->committed, p->place,
                     k->kafka->cursor ? ", with 'out_of_range: earliest'" : ": it begins at the first message");
}

int once__kafka_offset_lost(kafka_source *k, kafka_partition *p, once_error *err)
{
    int64_t low = 0, high = 0;
    assert(p->state == KAFKA_READING && !p->anew);
    int rc = once__kafka_ask_ends(k, p, &low, &high, err);
    if (rc == ONCE_E_MISSING) return ONCE_OK; /* the topic is gone, and the group takes the partition away */
    if (rc == ONCE_OK && k->kafka->out_of_range == ONCE_KAFKA_STOP) {
        rc = once__kafka_commit_first(k, p->topic->name, p->number, err);
        if (rc == ONCE_OK) rc = once__kafka_say_lost(k, p, err);
    }
    if (rc != ONCE_OK) return rc;
    once_log(ONCE_LOG_WARN, "kafka_out_of_range",
             "group '%s' has lost its offset %" PRId64
             " for '%s': the topic was made anew, or the group was deleted; it goes on at the first message (%" PRId64
             ")",
             k->group, p->committed, p->place, low);
    return begin_anew(k, p, low, err);
}

int once__kafka_out_of_range(kafka_source *k, kafka_partition *p, once_error *err)
{
    int64_t low = 0, high = 0;
    bool lost = false;
    assert(k->purpose == ONCE_OPEN_RUN && p->next >= 0);
    int rc = once__kafka_ask_ends(k, p, &low, &high, err);
    const bool inside = rc == ONCE_OK && p->next >= low && p->next <= high;
    if (rc == ONCE_OK && !inside) rc = ask_offset(k, p, &lost, err);
    if (rc == ONCE_OK && lost && k->kafka->out_of_range == ONCE_KAFKA_STOP)
        rc = once__kafka_commit_first(k, p->topic->name, p->number, err);
    if (rc != ONCE_OK || inside) { /* asked again when it is opened again */
        once__kafka_open_again(k, p);
        return rc;
    }
    char what[200];
    if (p->next < low)
        (void)snprintf(what, sizeof what,
                       "%" PRId64 " messages or fewer are lost: the broker deleted them before they were read",
                       low - p->next);
    else (void)snprintf(what, sizeof what, "the topic was made anew, or the broker lost its last messages");
    if (k->kafka->out_of_range == ONCE_KAFKA_STOP)
        return once_fail(err, ONCE_E_FORGOTTEN,
                         "'%s' goes on at offset %" PRId64 ", but the broker has %" PRId64 " to %" PRId64
                         "; %s. To go on at the first message, write 'out_of_range: earliest'",
                         p->place, p->next, low, high, what);
    once_log(ONCE_LOG_WARN, "kafka_out_of_range",
             "'%s' goes on at offset %" PRId64 " instead of %" PRId64 "; the broker has %" PRId64 " to %" PRId64 "; %s",
             p->place, low, p->next, low, high, what);
    return lost || p->next > high ? begin_anew(k, p, low, err) : go_on_at(k, p, low);
}

int once__kafka_made_anew(const kafka_source *k, const kafka_partition *p, int64_t offset, once_error *err)
{
    static const char why[] = "the topic was made anew, or the group was deleted or has expired";
    if (k->kafka->out_of_range == ONCE_KAFKA_STOP)
        return once_fail(err, ONCE_E_FORGOTTEN,
                         "'%s' was read up to offset %" PRId64
                         ", but group '%s' has no offset for it any more: %s. To go "
                         "on at the first message, write 'out_of_range: earliest'",
                         p->place, offset, k->group, why);
    once_log(ONCE_LOG_WARN, "kafka_out_of_range",
             "'%s' was read up to offset %" PRId64
             ", but group '%s' has no offset for it any more: %s; it goes on at the "
             "first message",
             p->place, offset, k->group, why);
    return ONCE_OK;
}
