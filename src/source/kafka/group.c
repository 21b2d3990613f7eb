/* The member of the group: partitions that come and go.
 *
 * librdkafka asks for an answer to each change: new partitions are answered at once, since they are read by the other
 * client. Partitions that are taken away are answered when the machine has released all of them, or when time is up;
 * until then the group gives them to nobody. Partitions that are lost already belong to another member.
 *
 * Every answer has an empty list: librdkafka then has nothing to read, and keeps the group's own list apart. */
#include <assert.h>
#include <string.h>

#include "source/kafka/kafka.h"

#include "base/banned.h"

bool once__kafka_report(kafka_news *news, once_stream_change change, uint32_t stream, int64_t within_ms)
{
    once_fetch *fetch = news->fetch;
    assert(change != ONCE_STREAM_REVOKED || within_ms > 0);
    if (fetch->n_news == news->room) {
        const size_t room = news->room ? 2 * news->room : 16;
        once_stream_news *more = once_arena_new(&fetch->batch->arena, once_stream_news, room);
        if (!more) return false;
        if (fetch->n_news) memcpy(more, fetch->news, fetch->n_news * sizeof *more);
        fetch->news = more;
        news->room = room;
    }
    fetch->news[fetch->n_news++] = (once_stream_news){.change = change, .stream = stream, .within_ms = within_ms};
    return true;
}

static void answer(kafka_source *k, bool assigned)
{
    rd_kafka_topic_partition_list_t *none = rd_kafka_topic_partition_list_new(0);
    rd_kafka_error_t *error = NULL;
    const bool cooperative = strcmp(rd_kafka_rebalance_protocol(k->member), "COOPERATIVE") == 0;
    if (!cooperative) (void)rd_kafka_assign(k->member, assigned ? none : NULL);
    else if (assigned) error = rd_kafka_incremental_assign(k->member, none);
    else error = rd_kafka_incremental_unassign(k->member, none);
    if (error) {
        once_error failure;
        (void)once__kafka_fail(&failure, rd_kafka_error_code(error), "group '%s'", k->group);
        once__kafka_note(k, NULL, &failure);
        rd_kafka_error_destroy(error);
    }
    rd_kafka_topic_partition_list_destroy(none);
}

static uint32_t stream_of(const kafka_source *k, const kafka_partition *p)
{
    uint32_t i = 0;
    while (i < k->n_partitions && k->partitions[i] != p) i++;
    assert(i < k->n_partitions);
    return i;
}

static void set_state(kafka_source *k, kafka_partition *p, kafka_state state)
{
    assert(state == KAFKA_REVOKED || state == KAFKA_LOST || state == KAFKA_RELEASED);
    pthread_mutex_lock(&k->lock);
    if (p->state != KAFKA_RELEASED) p->state = state; /* it may have been released meanwhile, as the run ends */
    pthread_mutex_unlock(&k->lock);
}

/* The machine does not know it: nobody will release it. */
static void drop(kafka_source *k, kafka_partition *p)
{
    assert(!p->reported);
    once__kafka_stop_partition(k, p);
    set_state(k, p, KAFKA_RELEASED);
}

static int64_t within_ms(const kafka_source *k) { return k->poll_max_ms / 2; }

static bool take_away(kafka_source *k, kafka_partition *p, bool lost, kafka_news *news)
{
    assert(p->state != KAFKA_FREE && p->state != KAFKA_LOST);
    once__kafka_stop_partition(k, p);
    if (!p->reported) {
        drop(k, p);
        return true;
    }
    set_state(k, p, lost ? KAFKA_LOST : KAFKA_REVOKED);
    return once__kafka_report(news, lost ? ONCE_STREAM_LOST : ONCE_STREAM_REVOKED, stream_of(k, p),
                              lost ? 0 : within_ms(k));
}

static bool revoke(kafka_source *k, const rd_kafka_topic_partition_list_t *list, kafka_news *news)
{
    const bool lost = rd_kafka_assignment_lost(k->member);
    bool ok = true;
    for (int i = 0; i < list->cnt && ok; i++) {
        kafka_partition *p = once__kafka_find(k, list->elems[i].topic, list->elems[i].partition);
        if (p) ok = take_away(k, p, lost, news);
    }
    if (lost) {
        answer(k, false);
    } else {
        k->revoking = true;
        k->revoke_until_ns = once__kafka_now_ns(k) + within_ms(k) * 1000000;
    }
    return ok;
}

static bool assign(kafka_source *k, const rd_kafka_topic_partition_list_t *list)
{
    bool ok = true;
    for (int i = 0; i < list->cnt && ok; i++)
        if (!once__kafka_find(k, list->elems[i].topic, list->elems[i].partition))
            ok = once__kafka_add(k, list->elems[i].topic, list->elems[i].partition);
    answer(k, true);
    k->was_assigned = k->topics_changed = true;
    k->start_again_ns = 0;
    return ok;
}

static bool rebalance(kafka_source *k, rd_kafka_event_t *event, kafka_news *news)
{
    const rd_kafka_topic_partition_list_t *list = rd_kafka_event_topic_partition_list(event);
    switch (rd_kafka_event_error(event)) {
    case RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS: return assign(k, list);
    case RD_KAFKA_RESP_ERR__REVOKE_PARTITIONS: return revoke(k, list, news);
    default: answer(k, false); return true;
    }
}

/* What an operator must know; what the client mends by itself is not an error. */
static void note_error(kafka_source *k, rd_kafka_t *client, rd_kafka_event_t *event)
{
    once_error failure;
    rd_kafka_t *probe = client == k->reader ? client : NULL;
    const rd_kafka_resp_err_t error = once__kafka_event_error(event);
    /* Brokers that refuse us are down for the client. That they refuse, and why, is what an operator must know. */
    if (error == RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN && k->failed == ONCE_E_DENIED && k->probe) return;
    if (rd_kafka_event_error_is_fatal(event)) {
        (void)once__kafka_fatal(k, client, &failure);
    } else {
        if (once__kafka_status(error) == ONCE_E_UNAVAILABLE && error != RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN) return;
        if (error == RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN || error == RD_KAFKA_RESP_ERR__AUTHENTICATION ||
            error == RD_KAFKA_RESP_ERR__SSL)
            probe = client;
        if (error == RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN)
            (void)once_fail(&failure, ONCE_E_UNAVAILABLE, "no broker answers (%.*s%s)", (int)k->kafka->brokers[0].len,
                            k->kafka->brokers[0].data, k->kafka->n_brokers > 1 ? ", ..." : "");
        else
            (void)once_fail(&failure, once__kafka_status(error), "%s",
                            rd_kafka_event_error_string(event) ? rd_kafka_event_error_string(event)
                                                               : rd_kafka_err2str(error));
    }
    const bool of_topic = error == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART ||
                          error == RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC ||
                          error == RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
    k->topics_changed = k->topics_changed || of_topic;
    if (of_topic) once__kafka_note_part(k, &failure);
    else once__kafka_note(k, probe, &failure);
}

/* The machine has released all that were taken away, or the time for that is over. */
static bool finish_revoke(kafka_source *k, kafka_news *news)
{
    const bool late = once__kafka_now_ns(k) >= k->revoke_until_ns;
    assert(k->revoking);
    bool open = false, ok = true;
    for (uint32_t i = 0; i < k->n_partitions && ok; i++) {
        kafka_partition *p = k->partitions[i];
        pthread_mutex_lock(&k->lock);
        const bool revoked = p->state == KAFKA_REVOKED;
        pthread_mutex_unlock(&k->lock);
        if (!revoked) continue;
        open = !late;
        if (late) ok = take_away(k, p, true, news);
    }
    if (open) return ok;
    k->revoking = false;
    answer(k, false);
    return ok;
}

/* Partitions that begin anew (range.c) are lost to the machine, and come again as other streams. */
static bool assign_anew(kafka_source *k, kafka_news *news)
{
    const uint32_t n = k->n_partitions;
    for (uint32_t i = 0; i < n; i++) {
        kafka_partition *p = k->partitions[i];
        if (!p->anew) continue;
        p->anew = false;
        if (p->state != KAFKA_READING && p->state != KAFKA_ASSIGNED) continue; /* it was taken away meanwhile */
        if (!take_away(k, p, true, news) || !once__kafka_add(k, p->topic->name, p->number)) return false;
    }
    return true;
}

bool once__kafka_serve_group(kafka_source *k, kafka_news *news)
{
    bool ok = true;
    rd_kafka_event_t *event;
    while ((event = rd_kafka_queue_poll(k->reader_events, 0))) {
        if (rd_kafka_event_type(event) == RD_KAFKA_EVENT_ERROR) note_error(k, k->reader, event);
        rd_kafka_event_destroy(event);
    }
    if (!k->events) return true;
    ok = assign_anew(k, news);
    /* While a revoke is not answered, no other rebalance comes. */
    while (ok && (event = rd_kafka_queue_poll(k->events, 0))) {
        if (rd_kafka_event_type(event) == RD_KAFKA_EVENT_REBALANCE) ok = rebalance(k, event, news);
        else if (rd_kafka_event_type(event) == RD_KAFKA_EVENT_ERROR) note_error(k, k->member, event);
        rd_kafka_event_destroy(event);
    }
    if (ok && k->revoking) ok = finish_revoke(k, news);
    return ok;
}

/* Answers all rebalances that are asked for. */
static void answer_all(kafka_source *k, rd_kafka_queue_t *queue, int wait_ms)
{
    rd_kafka_event_t *event;
    while ((event = rd_kafka_queue_poll(queue, wait_ms))) {
        if (rd_kafka_event_type(event) == RD_KAFKA_EVENT_REBALANCE) {
            const bool assigned = rd_kafka_event_error(event) == RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
            k->was_assigned |= assigned;
            answer(k, assigned);
        }
        rd_kafka_event_destroy(event);
    }
}

/* It is a member of the group, or on its way to be one. */
static bool is_member(kafka_source *k)
{
    const char *protocol = rd_kafka_rebalance_protocol(k->member);
    char *id = rd_kafka_memberid(k->member);
    const bool named = id && *id;
    if (id) rd_kafka_mem_free(k->member, id);
    return named || !protocol || strcmp(protocol, "NONE") != 0;
}

/* Gives back all partitions and leaves the group. Bounded: a broker that does not answer finds out by the session's
 * timeout. A client of librdkafka 2.0.2 that is closed while it waits for the answer to an assignment of no partitions
 * waits for ever; without a subscription there is no such assignment. A static member does not leave: it may be back
 * before the session ends.
 *
 * False: the client must not be destroyed: it is not closed, or it became a member and was never assigned anything,
 * which librdkafka 2.0.2 answers with an assertion. Whoever is no member after unsubscribe does not become one. */
bool once__kafka_leave(kafka_source *k)
{
    const int64_t until_ns = once__kafka_until_ns(k, once__kafka_now_ns(k), ONCE_KAFKA_COMMIT_MS);
    assert(k->purpose == ONCE_OPEN_RUN && k->member && k->events);
    if (k->revoking) answer(k, false);
    k->revoking = false;
    answer_all(k, k->events, 0);
    const bool stays = k->kafka->instance.len > 0 && is_member(k);
    if (!stays) {
        (void)rd_kafka_unsubscribe(k->member);
        answer_all(k, k->events, 0);
    }
    const bool joins = stays || is_member(k);
    rd_kafka_queue_t *last = rd_kafka_queue_new(k->member); /* not `events`: that would be forwarded to itself */
    rd_kafka_error_t *error = rd_kafka_consumer_close_queue(k->member, last);
    if (error) rd_kafka_error_destroy(error);
    while (!rd_kafka_consumer_closed(k->member) && once__kafka_now_ns(k) < until_ns) answer_all(k, last, 20);
    rd_kafka_queue_destroy(last);
    return rd_kafka_consumer_closed(k->member) && (k->was_assigned || !joins);
}
