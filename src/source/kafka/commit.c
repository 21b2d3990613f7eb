/* Acks: offsets that are committed to the group. An ack covers everything up to it in its partition.
 *
 * A broker deletes the offsets of a group together with a topic. If our last offset is gone when the next one is to be
 * committed, the topic was deleted and perhaps made anew, with other messages at the offsets that we passed: nothing is
 * committed, and the run ends.
 *
 * The answer to each commit comes to a queue of its own, so an ack does not wait for a fetch. A commit that was not
 * answered in time may still be carried out: that does no harm, because everything up to its offset is settled. */
#include <assert.h>
#include <string.h>

#include "source/kafka/kafka.h"

#include "base/banned.h"

#define TAILS_NS INT64_C(2000000000)
#define TICK_MS 50

/* --- commits ------------------------------------------------------------------------------------------------------ */

/* NULL: there was none in time. It looks often, to notice a stop. */
static rd_kafka_event_t *await_answer(const kafka_source *k, rd_kafka_queue_t *answers, int ms)
{
    const int64_t from_ns = once__kafka_now_ns(k);
    rd_kafka_event_t *event = NULL;
    while (!event && once__kafka_now_ns(k) < once__kafka_until_ns(k, from_ns, ms))
        event = rd_kafka_queue_poll(answers, TICK_MS);
    return event;
}

/* One request; its error becomes that of each partition. */
static rd_kafka_resp_err_t send_commit(kafka_source *k, rd_kafka_topic_partition_list_t *offsets, int ms)
{
    rd_kafka_queue_t *answers = rd_kafka_queue_new(k->member);
    rd_kafka_event_t *event = NULL;
    rd_kafka_resp_err_t error = rd_kafka_commit_queue(k->member, offsets, answers, NULL, NULL);
    if (!error) {
        event = await_answer(k, answers, ms);
        error = event ? rd_kafka_event_error(event) : RD_KAFKA_RESP_ERR__TIMED_OUT;
    }
    if (event) rd_kafka_event_destroy(event);
    rd_kafka_queue_destroy(answers); /* an answer that comes later is dropped */
    for (int i = 0; i < offsets->cnt; i++) offsets->elems[i].err = error;
    return error;
}

/* Those of the same topic as the one at `first`; NULL: that topic was before it. */
static rd_kafka_topic_partition_list_t *part_of(const rd_kafka_topic_partition_list_t *offsets, int first)
{
    const char *topic = offsets->elems[first].topic;
    for (int i = 0; i < first; i++)
        if (strcmp(offsets->elems[i].topic, topic) == 0) return NULL;
    rd_kafka_topic_partition_list_t *part = rd_kafka_topic_partition_list_copy(offsets);
    for (int i = part->cnt - 1; i >= 0; i--)
        if (strcmp(part->elems[i].topic, topic) != 0) (void)rd_kafka_topic_partition_list_del_by_idx(part, i);
    return part;
}

/* Sets the error of each partition in the list. librdkafka 2.0.2 says of all of them what the broker says of one. So
 * when a right or a topic is missing, each topic gets a request of its own. */
static void commit(kafka_source *k, rd_kafka_topic_partition_list_t *offsets, int ms)
{
    assert(offsets->cnt > 0);
    const int status = once__kafka_status(send_commit(k, offsets, ms));
    if (status != ONCE_E_DENIED && status != ONCE_E_MISSING) return;
    for (int i = 0; i < offsets->cnt; i++) {
        rd_kafka_topic_partition_list_t *part = part_of(offsets, i);
        if (!part) continue;
        if (part->cnt < offsets->cnt) {
            const rd_kafka_resp_err_t error = send_commit(k, part, ms);
            for (int j = i; j < offsets->cnt; j++)
                if (strcmp(offsets->elems[j].topic, part->elems[0].topic) == 0) offsets->elems[j].err = error;
        }
        rd_kafka_topic_partition_list_destroy(part);
    }
}

/* --- acks --------------------------------------------------------------------------------------------------------- */

/* It is ours, so that its offset may be committed. With the lock. */
static bool is_ours(const kafka_partition *p)
{
    return p->state == KAFKA_ASSIGNED || p->state == KAFKA_READING || p->state == KAFKA_REVOKED;
}

/* An offset never goes back. With the lock. */
static void add(const kafka_source *k, rd_kafka_topic_partition_list_t *offsets, const kafka_partition *p,
                uint64_t delivery)
{
    const int64_t behind = (int64_t)delivery + 1;
    const kafka_kept kept = once__kafka_kept(k, p);
    rd_kafka_topic_partition_t *at = rd_kafka_topic_partition_list_find(offsets, p->topic->name, p->number);
    assert(behind > 0 && p->began >= 0);
    if (!at) once__kafka_add_commit(offsets, p, behind, &kept);
    else if (behind > at->offset) at->offset = behind;
}

/* Those that cannot be committed are answered, and the offsets of the others are listed. */
static rd_kafka_topic_partition_list_t *collect(kafka_source *k, once_receipt *list, size_t n)
{
    rd_kafka_topic_partition_list_t *offsets = rd_kafka_topic_partition_list_new(0);
    pthread_mutex_lock(&k->lock);
    for (size_t i = 0; i < n; i++) {
        const kafka_partition *p = list[i].stream < k->n_partitions ? k->partitions[list[i].stream] : NULL;
        assert(list[i].answer == ONCE_RECEIPT_OPEN);
        if (!p || !is_ours(p)) list[i].answer = ONCE_RECEIPT_GONE;
        else if ((int64_t)list[i].delivery < p->committed) list[i].answer = ONCE_RECEIPT_DONE;
        else add(k, offsets, p, list[i].delivery);
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

/* `offsets` were answered. Returns an error of those that are to be tried again. */
static rd_kafka_resp_err_t apply(kafka_source *k, rd_kafka_topic_partition_list_t *offsets, once_receipt *list,
                                 size_t n)
{
    rd_kafka_resp_err_t failed = RD_KAFKA_RESP_ERR_NO_ERROR;
    pthread_mutex_lock(&k->lock);
    for (size_t i = 0; i < n; i++) {
        if (list[i].answer != ONCE_RECEIPT_OPEN) continue;
        kafka_partition *p = k->partitions[list[i].stream];
        const rd_kafka_topic_partition_t *at = rd_kafka_topic_partition_list_find(offsets, p->topic->name, p->number);
        assert(at);
        const rd_kafka_resp_err_t error = at->err;
        if (!error) {
            list[i].answer = ONCE_RECEIPT_DONE;
            p->topic->had_offset = true;
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

/* The group's offsets of the partitions in the list. */
static int ask_offsets(kafka_source *k, const rd_kafka_topic_partition_list_t *of,
                       rd_kafka_topic_partition_list_t **out, once_error *err)
{
    *out = rd_kafka_topic_partition_list_new(of->cnt);
    for (int i = 0; i < of->cnt; i++)
        (void)rd_kafka_topic_partition_list_add(*out, of->elems[i].topic, of->elems[i].partition);
    const rd_kafka_resp_err_t error = rd_kafka_committed(k->member, *out, once__kafka_ask_ms(k));
    if (error == RD_KAFKA_RESP_ERR__FATAL) return once__kafka_fatal(k, k->member, err);
    return error ? once__kafka_fail(err, error, "cannot read the offsets of group '%s'", k->group) : ONCE_OK;
}

/* Whether the group still has the offsets that we committed. If not, a failure that can pass means that the first
 * offset could not be committed instead. */
static int check_kept(kafka_source *k, const rd_kafka_topic_partition_list_t *offsets, once_error *err)
{
    rd_kafka_topic_partition_list_t *now;
    int rc = ask_offsets(k, offsets, &now, err);
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
        rc = once__kafka_say_lost(k, p, err);
    }
    pthread_mutex_unlock(&k->lock);
    once_error why;
    const int first = gone ? once__kafka_commit_first(k, gone->topic, gone->partition, &why) : ONCE_OK;
    rd_kafka_topic_partition_list_destroy(now);
    if (first == ONCE_OK || once_status_class(first) != ONCE_CLASS_RETRY) return rc;
    *err = why;
    return first;
}

int once__kafka_ack(once_source *source, once_receipt *list, size_t n, once_error *err)
{
    kafka_source *k = once__kafka(source);
    assert(k->member && n > 0);
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
    commit(k, offsets, ONCE_KAFKA_COMMIT_MS);
    const rd_kafka_resp_err_t error = apply(k, offsets, list, n);
    rd_kafka_topic_partition_list_destroy(offsets);
    if (error == RD_KAFKA_RESP_ERR__FATAL) return once__kafka_fatal(k, k->member, err);
    return error ? once__kafka_fail(err, error, "cannot commit offsets of group '%s'", k->group) : ONCE_OK;
}

/* --- commits of the thread of fetch ------------------------------------------------------------------------------- */

int once__kafka_commit_now(kafka_source *k, rd_kafka_topic_partition_list_t *offsets, once_error *err)
{
    assert(offsets->cnt > 0);
    commit(k, offsets, once__kafka_ask_ms(k));
    for (int i = 0; i < offsets->cnt; i++)
        if (!offsets->elems[i].err) return ONCE_OK;
    return once__kafka_fail(err, offsets->elems[0].err, "cannot commit where group '%s' begins", k->group);
}

/* The partitions whose offset the group must have. */
static rd_kafka_topic_partition_list_t *list_read(kafka_source *k)
{
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(0);
    pthread_mutex_lock(&k->lock);
    for (uint32_t i = 0; i < k->n_partitions; i++) {
        const kafka_partition *p = k->partitions[i];
        if (p->state == KAFKA_READING && p->committed >= 0 && !p->anew)
            (void)rd_kafka_topic_partition_list_add(list, p->topic->name, p->number);
    }
    pthread_mutex_unlock(&k->lock);
    return list;
}

/* Acks notice that an offset is lost. This is for partitions in which there is nothing to ack: a topic that was made
 * anew may have just as many messages as the old one. */
static void find_lost(kafka_source *k)
{
    rd_kafka_topic_partition_list_t *list = list_read(k), *now = NULL;
    once_error failure;
    if (list->cnt && ask_offsets(k, list, &now, &failure) == ONCE_OK) {
        for (int i = 0; i < now->cnt; i++) {
            kafka_partition *p = once__kafka_find(k, now->elems[i].topic, now->elems[i].partition);
            if (!p || now->elems[i].err || now->elems[i].offset >= 0) continue;
            if (once__kafka_offset_lost(k, p, &failure) != ONCE_OK) once__kafka_note(k, NULL, &failure);
        }
    }
    if (now) rd_kafka_topic_partition_list_destroy(now);
    rd_kafka_topic_partition_list_destroy(list);
}

/* All that was read of it is acked, and behind that there are only markers. With the lock. */
static bool has_tail(const kafka_partition *p)
{
    return p->state == KAFKA_READING && p->at_end && p->committed >= 0 && p->committed == p->next && p->end > p->next;
}

static rd_kafka_topic_partition_list_t *list_tails(kafka_source *k)
{
    rd_kafka_topic_partition_list_t *tails = rd_kafka_topic_partition_list_new(0);
    pthread_mutex_lock(&k->lock);
    for (uint32_t i = 0; i < k->n_partitions; i++) {
        const kafka_partition *p = k->partitions[i];
        if (!has_tail(p)) continue;
        kafka_kept kept = once__kafka_kept(k, p);
        kept.after = p->next;
        once__kafka_add_commit(tails, p, p->end, &kept);
    }
    pthread_mutex_unlock(&k->lock);
    return tails;
}

/* Whether the group has the offsets that we know. */
static bool has_kept_all(kafka_source *k, const rd_kafka_topic_partition_list_t *offsets)
{
    rd_kafka_topic_partition_list_t *now;
    once_error ignored; /* an ack finds it, too, and tells it */
    bool ok = ask_offsets(k, offsets, &now, &ignored) == ONCE_OK;
    pthread_mutex_lock(&k->lock);
    for (int i = 0; i < now->cnt && ok; i++) {
        const kafka_partition *p = once__kafka_find(k, now->elems[i].topic, now->elems[i].partition);
        ok = p && !now->elems[i].err && now->elems[i].offset == p->committed;
    }
    pthread_mutex_unlock(&k->lock);
    rd_kafka_topic_partition_list_destroy(now);
    return ok;
}

/* Without it, when the broker deletes old messages, the group's offset would be before the first one, as if messages
 * were lost. Nothing is open in such a partition, so no ack runs beside this. */
static void commit_tails(kafka_source *k)
{
    once_error ignored; /* tried again */
    rd_kafka_topic_partition_list_t *tails = list_tails(k);
    if (tails->cnt && has_kept_all(k, tails) && once__kafka_commit_now(k, tails, &ignored) == ONCE_OK) {
        pthread_mutex_lock(&k->lock);
        for (int i = 0; i < tails->cnt; i++) {
            kafka_partition *p = once__kafka_find(k, tails->elems[i].topic, tails->elems[i].partition);
            if (p && !tails->elems[i].err) p->committed = tails->elems[i].offset;
        }
        pthread_mutex_unlock(&k->lock);
    }
    rd_kafka_topic_partition_list_destroy(tails);
}

void once__kafka_look_after_offsets(kafka_source *k)
{
    const int64_t now_ns = once__kafka_now_ns(k);
    assert(k->member && k->refresh_ms > 0);
    if (now_ns >= k->tails_again_ns) {
        k->tails_again_ns = now_ns + TAILS_NS;
        commit_tails(k);
    }
    if (now_ns >= k->lost_again_ns) {
        k->lost_again_ns = now_ns + k->refresh_ms * 1000000;
        find_lost(k);
    }
}

/* --- release ------------------------------------------------------------------------------------------------------ */

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
