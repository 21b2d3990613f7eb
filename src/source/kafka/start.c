/* Where a partition begins.
 *
 *   1. with `cursor`: where the store says (cursor.c)
 *   2. at the group's offset
 *   3. if the group has none: as `start` says. A partition that was added to the topic after the group had begun with
 *      it begins at its first message: with `latest` everything that was sent to it before it was found would be lost.
 *      So does a topic that was made after the source was opened.
 *
 * That offset is committed before anything is read. So `latest` is the same place after a restart; and if the group has
 * no offset where we had one, the broker deleted it together with the topic.
 *
 * librdkafka never chooses an offset by itself (auto.offset.reset=error): if the message at an offset is gone, it
 * reports that, and this file decides. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/no_memory.h"
#include "source/kafka/kafka.h"

#include "base/banned.h"

#define AGAIN_NS INT64_C(200000000)    /* after a question that failed */
#define PATIENT_NS INT64_C(5000000000) /* a leader is elected, a coordinator is found: that is no failure yet */

static bool is_waiting(const kafka_partition *p) { return p->state == KAFKA_WAITING; }

/* How many partitions the topic has now; -1: not known, `err` says why. */
static int32_t count_partitions(kafka_source *k, kafka_topic *t, once_error *err)
{
    const struct rd_kafka_metadata *about = NULL;
    const rd_kafka_resp_err_t error = rd_kafka_metadata(k->reader, 0, t->handle, &about, ONCE_KAFKA_ASK_MS);
    if (error) {
        (void)once__kafka_fail(err, error, "topic '%s'", t->name);
        return -1;
    }
    assert(about->topic_cnt == 1);
    const rd_kafka_resp_err_t why = about->topics[0].err;
    const int32_t n = about->topics[0].partition_cnt;
    rd_kafka_metadata_destroy(about);
    if (!why) return n;
    (void)once__kafka_fail(err, why, "topic '%s'", t->name);
    return -1;
}

/* All partitions of all topics of which one waits: the others tell what the group knows of the topic. */
static rd_kafka_topic_partition_list_t *list_partitions(kafka_source *k, once_error *err)
{
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(8);
    for (kafka_topic *t = k->topics; t; t = t->next) {
        bool waits = false;
        int32_t highest = -1;
        for (uint32_t i = 0; i < k->n_partitions; i++) {
            const kafka_partition *p = k->partitions[i];
            if (!is_waiting(p) || p->topic != t) continue;
            waits = true;
            if (p->number > highest) highest = p->number;
        }
        if (!waits) continue;
        int32_t n = count_partitions(k, t, err);
        if (n < 0) {
            rd_kafka_topic_partition_list_destroy(list);
            return NULL;
        }
        if (n <= highest) n = highest + 1; /* that answer was older than the group's */
        for (int32_t i = 0; i < n; i++) (void)rd_kafka_topic_partition_list_add(list, t->name, i);
    }
    return list;
}

/* --- topics that come later --------------------------------------------------------------------------------------- */

/* A topic that was made after the source was opened begins at its first message, too. */
static bool is_later_topic(const kafka_source *k, const char *name)
{
    for (size_t i = 0; i < k->n_first_topics; i++)
        if (strcmp(k->first_topics[i], name) == 0) return false;
    return k->listed_topics;
}

static bool copy_topics(kafka_source *k, const struct rd_kafka_metadata *about)
{
    k->first_topics = about->topic_cnt ? calloc((size_t)about->topic_cnt, sizeof *k->first_topics) : NULL;
    if (about->topic_cnt && !k->first_topics) return false;
    for (int i = 0; i < about->topic_cnt; i++) {
        k->first_topics[k->n_first_topics] = strdup(about->topics[i].topic);
        if (!k->first_topics[k->n_first_topics++]) return false;
    }
    return true;
}

/* Which topics there are when the source is opened. Only `latest` asks. */
static int list_topics(kafka_source *k, once_error *err)
{
    const struct rd_kafka_metadata *about = NULL;
    if (k->listed_topics || k->kafka->start != ONCE_KAFKA_LATEST) return ONCE_OK;
    const rd_kafka_resp_err_t error = rd_kafka_metadata(k->reader, 1, NULL, &about, ONCE_KAFKA_ASK_MS);
    if (error) return once__kafka_fail(err, error, "cannot list the topics");
    k->listed_topics = copy_topics(k, about);
    rd_kafka_metadata_destroy(about);
    return k->listed_topics ? ONCE_OK : once_no_memory(err, "for the names of topics");
}

/* --- where a partition begins ------------------------------------------------------------------------------------- */

#define METADATA "once:partitions="

/* What the group's offsets tell about the number of partitions that the group began with. Offsets without a number were
 * committed by another program; then it is not known which partitions were added later. They begin at their first
 * message, or nowhere: neither can lose a message. */
static int32_t began_with(const kafka_source *k, const rd_kafka_topic_partition_list_t *list, const char *topic)
{
    int32_t n = 0;
    bool any = false;
    for (int i = 0; i < list->cnt; i++) {
        const rd_kafka_topic_partition_t *at = &list->elems[i];
        if (strcmp(at->topic, topic) != 0) continue;
        n++;
        if (at->offset < 0) continue;
        any = true;
        const size_t len = strlen(METADATA);
        if (!at->metadata || at->metadata_size <= len || memcmp(at->metadata, METADATA, len) != 0) continue;
        char text[12] = "";
        const size_t digits = at->metadata_size - len;
        if (digits >= sizeof text) continue;
        memcpy(text, (const char *)at->metadata + len, digits);
        return (int32_t)strtol(text, NULL, 10);
    }
    const bool may_begin = k->kafka->start != ONCE_KAFKA_ERROR;
    if (any) return may_begin ? 0 : n;
    return may_begin && is_later_topic(k, topic) ? 0 : n;
}

static int ask_ends(kafka_source *k, const kafka_partition *p, int64_t *low, int64_t *high, once_error *err)
{
    const rd_kafka_resp_err_t error =
        rd_kafka_query_watermark_offsets(k->reader, p->topic->name, p->number, low, high, ONCE_KAFKA_ASK_MS);
    return error ? once__kafka_fail(err, error, "'%s'", p->place) : ONCE_OK;
}

/* Sets p->next for a partition of which the group has no offset. */
static int begin_without_offset(kafka_source *k, kafka_partition *p, once_error *err)
{
    int64_t low = 0, high = 0;
    const bool later = p->number >= p->topic->began_with;
    const once_kafka_start start = later ? ONCE_KAFKA_EARLIEST : (once_kafka_start)k->kafka->start;
    const once_bytes file = k->base.spec->file;
    if (start == ONCE_KAFKA_ERROR)
        return once_fail(err, ONCE_E_CONFIG,
                         "%.*s:%d: group '%s' has no offset for '%s', and 'start' is 'error'; set the offsets of the "
                         "group, or write 'start: earliest'",
                         (int)file.len, file.data, k->base.spec->source.line, k->group, p->place);
    const int rc = ask_ends(k, p, &low, &high, err);
    if (rc == ONCE_OK) p->next = start == ONCE_KAFKA_LATEST ? high : low;
    if (rc == ONCE_OK) p->first = low;
    return rc;
}

/* Sets p->next of all that wait. */
static int decide(kafka_source *k, rd_kafka_topic_partition_list_t *list, once_error *err)
{
    const rd_kafka_resp_err_t error = rd_kafka_committed(k->member, list, ONCE_KAFKA_ASK_MS);
    if (error) return once__kafka_fail(err, error, "cannot read the offsets of group '%s'", k->group);
    int rc = ONCE_OK;
    for (uint32_t i = 0; i < k->n_partitions && rc == ONCE_OK; i++) {
        kafka_partition *p = k->partitions[i];
        if (!is_waiting(p)) continue;
        const rd_kafka_topic_partition_t *at = rd_kafka_topic_partition_list_find(list, p->topic->name, p->number);
        assert(at);
        if (at->err) {
            rc = once__kafka_fail(err, at->err, "cannot read the offset of group '%s' for '%s'", k->group, p->place);
            break;
        }
        pthread_mutex_lock(&k->lock);
        p->topic->began_with = began_with(k, list, p->topic->name);
        p->committed = at->offset >= 0 ? at->offset : -1;
        p->fresh = at->offset < 0;
        pthread_mutex_unlock(&k->lock);
        p->next = at->offset;
        if (at->offset < 0) rc = begin_without_offset(k, p, err);
    }
    return rc;
}

void once__kafka_add_commit(rd_kafka_topic_partition_list_t *list, const kafka_partition *p, int64_t offset)
{
    char *metadata = NULL;
    rd_kafka_topic_partition_t *at = rd_kafka_topic_partition_list_add(list, p->topic->name, p->number);
    at->offset = offset;
    const int len = asprintf(&metadata, METADATA "%d", (int)p->topic->began_with);
    if (len < 0) return;     /* out of memory: partitions that are added begin at their first message then, too */
    at->metadata = metadata; /* librdkafka frees it */
    at->metadata_size = (size_t)len;
}

static bool is_ready(kafka_source *k, const kafka_partition *p)
{
    pthread_mutex_lock(&k->lock);
    const bool ready = p->state == KAFKA_ASSIGNED && (p->sought || !k->kafka->cursor);
    pthread_mutex_unlock(&k->lock);
    return ready && !p->open;
}

/* It must be durable where a partition begins before anything of it is read: for `latest`, and because the loss of an
 * offset is how a topic that was made anew is noticed. With `cursor` the group may also be elsewhere:
 * the last run ended between its transaction and the commit. */
static bool must_commit(const kafka_source *k, const kafka_partition *p)
{
    return p->committed != p->next && (k->kafka->cursor || p->fresh);
}

int once__kafka_commit_now(kafka_source *k, const rd_kafka_topic_partition_list_t *offsets, once_error *err)
{
    rd_kafka_queue_t *answers = rd_kafka_queue_new(k->member);
    rd_kafka_resp_err_t error = rd_kafka_commit_queue(k->member, offsets, answers, NULL, NULL);
    if (!error) {
        rd_kafka_event_t *event = rd_kafka_queue_poll(answers, ONCE_KAFKA_ASK_MS);
        error = event ? rd_kafka_event_error(event) : RD_KAFKA_RESP_ERR__TIMED_OUT;
        if (event) rd_kafka_event_destroy(event);
    }
    rd_kafka_queue_destroy(answers);
    return error ? once__kafka_fail(err, error, "cannot commit where group '%s' begins", k->group) : ONCE_OK;
}

static int commit_ready(kafka_source *k, once_error *err)
{
    rd_kafka_topic_partition_list_t *starts = rd_kafka_topic_partition_list_new(0);
    for (uint32_t i = 0; i < k->n_partitions; i++) {
        const kafka_partition *p = k->partitions[i];
        if (is_ready(k, p) && must_commit(k, p)) once__kafka_add_commit(starts, p, p->next);
    }
    const int rc = starts->cnt ? once__kafka_commit_now(k, starts, err) : ONCE_OK;
    for (int i = 0; i < starts->cnt && rc == ONCE_OK; i++) {
        pthread_mutex_lock(&k->lock);
        kafka_partition *p = once__kafka_find(k, starts->elems[i].topic, starts->elems[i].partition);
        if (p) p->committed = starts->elems[i].offset;
        if (p) p->fresh = false;
        pthread_mutex_unlock(&k->lock);
    }
    rd_kafka_topic_partition_list_destroy(starts);
    return rc;
}

static void open_or_note(kafka_source *k, kafka_partition *p)
{
    once_error failure;
    if (once__kafka_open_partition(k, p, &failure) != ONCE_OK) {
        once__kafka_note(k, NULL, &failure);
        return;
    }
    pthread_mutex_lock(&k->lock);
    if (p->state == KAFKA_ASSIGNED) p->state = KAFKA_READING;
    pthread_mutex_unlock(&k->lock);
}

/* Those that know where to begin are read. */
static int open_ready(kafka_source *k, once_error *err)
{
    const int rc = commit_ready(k, err);
    for (uint32_t i = 0; i < k->n_partitions; i++) {
        kafka_partition *p = k->partitions[i];
        if (is_ready(k, p) && !must_commit(k, p)) open_or_note(k, p);
    }
    return rc;
}

static bool any_waits(const kafka_source *k)
{
    for (uint32_t i = 0; i < k->n_partitions; i++)
        if (is_waiting(k->partitions[i])) return true;
    return false;
}

static bool report_decided(kafka_source *k, kafka_news *news)
{
    for (uint32_t i = 0; i < k->n_partitions; i++) {
        kafka_partition *p = k->partitions[i];
        if (!is_waiting(p)) continue;
        assert(p->next >= 0);
        if (!once__kafka_report(news, ONCE_STREAM_ASSIGNED, i, 0)) return false;
        p->reported = true;
        pthread_mutex_lock(&k->lock);
        p->state = KAFKA_ASSIGNED;
        pthread_mutex_unlock(&k->lock);
    }
    return true;
}

/* The questions to the broker; `err` if one failed. */
static int decide_waiting(kafka_source *k, once_error *err)
{
    rd_kafka_topic_partition_list_t *list = list_partitions(k, err);
    if (!list) return err->status;
    const int rc = decide(k, list, err);
    rd_kafka_topic_partition_list_destroy(list);
    return rc;
}

bool once__kafka_start(kafka_source *k, kafka_news *news)
{
    const int64_t now_ns = once__kafka_now_ns(k);
    once_error failure;
    if (now_ns < k->start_again_ns) return true;
    int rc = list_topics(k, &failure);
    if (rc == ONCE_OK && any_waits(k)) rc = decide_waiting(k, &failure);
    if (rc == ONCE_OK && !report_decided(k, news)) return false;
    if (rc == ONCE_OK) rc = open_ready(k, &failure);
    if (rc == ONCE_OK) {
        if (k->start_fails_ns) once__kafka_failure_over(k);
        k->start_fails_ns = 0;
        return true;
    }
    if (!k->start_fails_ns) k->start_fails_ns = now_ns;
    if (rc != ONCE_E_UNAVAILABLE || now_ns - k->start_fails_ns > PATIENT_NS) once__kafka_note(k, NULL, &failure);
    k->start_again_ns = once__kafka_now_ns(k) + AGAIN_NS;
    return true;
}

/* --- an offset that the broker does not have ---------------------------------------------------------------------- */

static void read_again(kafka_source *k, kafka_partition *p)
{
    once__kafka_stop_partition(k, p);
    pthread_mutex_lock(&k->lock);
    p->sought = true;
    if (p->state == KAFKA_READING) p->state = KAFKA_ASSIGNED;
    pthread_mutex_unlock(&k->lock);
}

void once__kafka_commit_first(kafka_source *k, const char *topic, int32_t number)
{
    int64_t low = 0, high = 0;
    once_error
        ignored; /* then the next start begins as `start` says, and the error told that the topic was made anew */
    if (k->kafka->cursor) return; /* a cursor is noticed without an offset of the group */
    if (rd_kafka_query_watermark_offsets(k->reader, topic, number, &low, &high, ONCE_KAFKA_ASK_MS)) return;
    rd_kafka_topic_partition_list_t *first = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(first, topic, number)->offset = low;
    (void)once__kafka_commit_now(k, first, &ignored);
    rd_kafka_topic_partition_list_destroy(first);
}

/* Whether the group has lost its offset. */
static bool has_no_offset(kafka_source *k, const kafka_partition *p)
{
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    (void)rd_kafka_topic_partition_list_add(list, p->topic->name, p->number);
    const bool none =
        !rd_kafka_committed(k->member, list, ONCE_KAFKA_ASK_MS) && !list->elems[0].err && list->elems[0].offset < 0;
    rd_kafka_topic_partition_list_destroy(list);
    return none;
}

/* Its messages are others than those that the machine knows by these offsets: the stream is given up, and the partition
 * is assigned again. */
static int begin_anew(kafka_source *k, kafka_partition *p, int64_t low, once_error *err)
{
    rd_kafka_topic_partition_list_t *first = rd_kafka_topic_partition_list_new(1);
    once__kafka_add_commit(first, p, low);
    const int rc = once__kafka_commit_now(k, first, err);
    rd_kafka_topic_partition_list_destroy(first);
    once__kafka_stop_partition(k, p);
    if (rc == ONCE_OK) p->anew = true;
    else read_again(k, p);
    return rc;
}

int once__kafka_out_of_range(kafka_source *k, kafka_partition *p, once_error *err)
{
    int64_t low = 0, high = 0;
    const int rc = ask_ends(k, p, &low, &high, err);
    if (rc != ONCE_OK || (p->next >= low && p->next <= high)) { /* asked again when it is read again */
        read_again(k, p);
        return rc;
    }
    char what[200];
    if (p->next < low)
        (void)snprintf(what, sizeof what,
                       "%" PRId64 " messages or fewer are lost: the broker deleted them before they were read",
                       low - p->next);
    else (void)snprintf(what, sizeof what, "the topic was made anew, or the broker lost its last messages");
    if (k->kafka->out_of_range == ONCE_KAFKA_STOP) {
        if (has_no_offset(k, p)) once__kafka_commit_first(k, p->topic->name, p->number);
        return once_fail(err, ONCE_E_FORGOTTEN,
                         "'%s' goes on at offset %" PRId64 ", but the broker has %" PRId64 " to %" PRId64
                         "; %s. To go on at the first message, write 'out_of_range: earliest'",
                         p->place, p->next, low, high, what);
    }
    once_log(ONCE_LOG_WARN, "kafka_out_of_range",
             "'%s' goes on at offset %" PRId64 " instead of %" PRId64 "; the broker has %" PRId64 " to %" PRId64 "; %s",
             p->place, low, p->next, low, high, what);
    return begin_anew(k, p, low, err);
}

int once__kafka_made_anew(const kafka_source *k, const kafka_partition *p, int64_t offset, once_error *err)
{
    static const char why[] = "the topic was made anew, or the group was deleted";
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
