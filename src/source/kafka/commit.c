/* Acks: offsets that are committed to the group. An ack covers everything up to it in its partition.
 *
 * A broker deletes the offsets of a group together with a topic. If our last offset is gone when the next one is to be
 * committed, the topic was deleted and perhaps made anew, with other messages at the offsets that we passed: nothing is
 * committed, and the run ends.
 *
 * The answer to a commit comes to a queue of its own, so an ack does not wait for a fetch. A commit that was not
 * answered in time may still be carried out: that does no harm, because everything up to its offset is settled. */
#include <assert.h>
#include <inttypes.h>
#include <stdint.h>

#include "source/kafka/kafka.h"

#include "base/banned.h"

/* It is ours, so that its offset may be committed. With the lock. */
static bool is_ours(const kafka_partition *p)
{
    return p->state == KAFKA_ASSIGNED || p->state == KAFKA_READING || p->state == KAFKA_REVOKED;
}

/* An offset never goes back. With the lock. */
static void add(rd_kafka_topic_partition_list_t *offsets, const kafka_partition *p, uint64_t delivery)
{
    const int64_t behind = (int64_t)delivery + 1;
    rd_kafka_topic_partition_t *at = rd_kafka_topic_partition_list_find(offsets, p->topic->name, p->number);
    if (!at) once__kafka_add_commit(offsets, p, behind);
    else if (behind > at->offset) at->offset = behind;
}

/* Those that cannot be committed are answered, and the offsets of the others are listed. */
static rd_kafka_topic_partition_list_t *collect(kafka_source *k, once_receipt *list, size_t n)
{
    rd_kafka_topic_partition_list_t *offsets = rd_kafka_topic_partition_list_new(0);
    pthread_mutex_lock(&k->lock);
    for (size_t i = 0; i < n; i++) {
        const kafka_partition *p = list[i].stream < k->n_partitions ? k->partitions[list[i].stream] : NULL;
        if (!p || !is_ours(p)) list[i].answer = ONCE_RECEIPT_GONE;
        else if ((int64_t)list[i].delivery < p->committed) list[i].answer = ONCE_RECEIPT_DONE;
        else add(offsets, p, list[i].delivery);
    }
    pthread_mutex_unlock(&k->lock);
    return offsets;
}

/* We are no longer a member of the group, or another process has taken our place: nothing of ours can be committed. */
static bool means_gone(rd_kafka_resp_err_t error)
{
    return error == RD_KAFKA_RESP_ERR_ILLEGAL_GENERATION || error == RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID ||
           error == RD_KAFKA_RESP_ERR_FENCED_INSTANCE_ID;
}

/* The answer to this commit; answers to earlier ones, which came too late, are dropped. NULL: none came in time. */
static rd_kafka_event_t *wait_for_answer(kafka_source *k)
{
    const int64_t until_ns = once__kafka_now_ns(k) + ONCE_KAFKA_COMMIT_MS * INT64_C(1000000);
    for (;;) {
        const int64_t left_ms = (until_ns - once__kafka_now_ns(k)) / 1000000;
        rd_kafka_event_t *event = left_ms > 0 ? rd_kafka_queue_poll(k->commits, (int)left_ms) : NULL;
        if (!event) {
            if (left_ms > 0) continue;
            return NULL;
        }
        if (rd_kafka_event_type(event) == RD_KAFKA_EVENT_OFFSET_COMMIT &&
            (uintptr_t)rd_kafka_event_opaque(event) == k->commit)
            return event;
        rd_kafka_event_destroy(event);
    }
}

/* What the broker says about one partition. */
static rd_kafka_resp_err_t error_of(const rd_kafka_topic_partition_list_t *answered, const kafka_partition *p,
                                    rd_kafka_resp_err_t whole)
{
    rd_kafka_topic_partition_list_t *list = (rd_kafka_topic_partition_list_t *)answered; /* find changes nothing */
    const rd_kafka_topic_partition_t *at =
        list ? rd_kafka_topic_partition_list_find(list, p->topic->name, p->number) : NULL;
    return at && at->err ? at->err : whole;
}

static rd_kafka_resp_err_t apply(kafka_source *k, const rd_kafka_topic_partition_list_t *answered,
                                 rd_kafka_resp_err_t whole, once_receipt *list, size_t n)
{
    rd_kafka_resp_err_t failed = RD_KAFKA_RESP_ERR_NO_ERROR;
    pthread_mutex_lock(&k->lock);
    for (size_t i = 0; i < n; i++) {
        if (list[i].answer != ONCE_RECEIPT_OPEN) continue;
        kafka_partition *p = k->partitions[list[i].stream];
        const rd_kafka_resp_err_t error = error_of(answered, p, whole);
        if (!error) {
            list[i].answer = ONCE_RECEIPT_DONE;
            if (is_ours(p) && (int64_t)list[i].delivery >= p->committed) p->committed = (int64_t)list[i].delivery + 1;
        } else if (means_gone(error)) {
            list[i].answer = ONCE_RECEIPT_GONE;
        } else {
            failed = error;
        }
    }
    pthread_mutex_unlock(&k->lock);
    return failed;
}

/* Whether the group still has the offsets that we committed. */
static int check_kept(kafka_source *k, const rd_kafka_topic_partition_list_t *offsets, once_error *err)
{
    rd_kafka_topic_partition_list_t *now = rd_kafka_topic_partition_list_new(offsets->cnt);
    for (int i = 0; i < offsets->cnt; i++)
        (void)rd_kafka_topic_partition_list_add(now, offsets->elems[i].topic, offsets->elems[i].partition);
    const rd_kafka_resp_err_t error = rd_kafka_committed(k->member, now, ONCE_KAFKA_ASK_MS);
    int rc = error == RD_KAFKA_RESP_ERR__FATAL ? once__kafka_fatal(k, k->member, err)
             : error ? once__kafka_fail(err, error, "cannot read the offsets of group '%s'", k->group)
                     : ONCE_OK;
    const rd_kafka_topic_partition_t *gone = NULL;
    pthread_mutex_lock(&k->lock);
    for (int i = 0; i < now->cnt && rc == ONCE_OK; i++) {
        const rd_kafka_topic_partition_t *at = &now->elems[i];
        const kafka_partition *p = once__kafka_find(k, at->topic, at->partition);
        if (at->err)
            rc = once__kafka_fail(err, at->err, "cannot read the offset of group '%s' for '%s/%d'", k->group, at->topic,
                                  (int)at->partition);
        if (rc != ONCE_OK || !p || p->committed < 0 || at->offset >= 0) continue;
        gone = at;
        rc = once_fail(
            err, ONCE_E_FORGOTTEN,
            "group '%s' has lost its offset %" PRId64
            " for '%s': the topic was deleted or made anew while it was read, or the group was deleted; start "
            "once again%s",
            k->group, p->committed, p->place,
            k->kafka->cursor ? ", with 'out_of_range: earliest'" : ": it begins at the first message");
    }
    pthread_mutex_unlock(&k->lock);
    if (gone) once__kafka_commit_first(k, gone->topic, gone->partition);
    rd_kafka_topic_partition_list_destroy(now);
    return rc;
}

int once__kafka_ack(once_source *source, once_receipt *list, size_t n, once_error *err)
{
    kafka_source *k = once__kafka(source);
    assert(k->member && k->commits);
    rd_kafka_topic_partition_list_t *offsets = collect(k, list, n);
    if (offsets->cnt == 0) {
        rd_kafka_topic_partition_list_destroy(offsets);
        return ONCE_OK;
    }
    once_error why = k->lost_how;
    const int rc = k->lost != ONCE_OK ? k->lost : check_kept(k, offsets, &why);
    if (rc == ONCE_E_FORGOTTEN) { /* also while the run ends: the offset that it leaves must stay */
        k->lost = rc;
        k->lost_how = why;
    }
    if (rc != ONCE_OK) {
        rd_kafka_topic_partition_list_destroy(offsets);
        if (err) *err = why;
        return rc;
    }
    rd_kafka_event_t *event = NULL;
    rd_kafka_resp_err_t error =
        rd_kafka_commit_queue(k->member, offsets, k->commits, NULL, (void *)(uintptr_t)++k->commit);
    if (!error) {
        event = wait_for_answer(k);
        error = event ? rd_kafka_event_error(event) : RD_KAFKA_RESP_ERR__TIMED_OUT;
    }
    error = apply(k, event ? rd_kafka_event_topic_partition_list(event) : NULL, error, list, n);
    if (event) rd_kafka_event_destroy(event);
    rd_kafka_topic_partition_list_destroy(offsets);
    if (error == RD_KAFKA_RESP_ERR__FATAL) return once__kafka_fatal(k, k->member, err);
    return error ? once__kafka_fail(err, error, "cannot commit offsets of group '%s'", k->group) : ONCE_OK;
}

/* The fetch that comes next answers the group, so it is woken. */
int once__kafka_release(once_source *source, uint32_t stream, once_error *err)
{
    kafka_source *k = once__kafka(source);
    (void)err;
    assert(stream < k->n_partitions);
    pthread_mutex_lock(&k->lock);
    kafka_partition *p = k->partitions[stream];
    assert(p->state != KAFKA_FREE && p->state != KAFKA_WAITING);
    p->state = KAFKA_RELEASED;
    pthread_mutex_unlock(&k->lock);
    source->ops->wake(source);
    return ONCE_OK;
}
