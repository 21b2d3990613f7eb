/* Where a partition begins.
 *
 *   1. with `cursor`: where the store says (cursor.c)
 *   2. at the group's offset
 *   3. if the group has none: as `start` says. A partition that was added to the topic after the group had begun with
 *      it begins at its first message: with `latest` everything that was sent to it before it was found would be lost.
 *      So does a topic that was made after the source was opened, or made anew since.
 *
 * That offset is committed before anything is read. So `latest` is the same place after a restart; and if the group has
 * no offset where we had one, the broker deleted it together with the topic.
 *
 * librdkafka never chooses an offset by itself (auto.offset.reset=error): if the message at an offset is gone, it
 * reports that, and range.c decides.
 *
 * Topics and partitions are decided one by one: one that has no leader, or may not be read, holds up no other. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/no_memory.h"
#include "source/kafka/kafka.h"

#include "base/banned.h"

#define AGAIN_NS INT64_C(200000000)    /* after a question that failed; it takes time in which nothing is read ... */
#define SELDOM_NS INT64_C(1000000000)  /* ... so that it is asked less often when that lasts */
#define PATIENT_NS INT64_C(5000000000) /* a leader is elected, a coordinator is found: that is no failure yet */
#define OPEN_AGAIN_NS INT64_C(5000000000)

static bool is_waiting(const kafka_partition *p) { return p->state == KAFKA_WAITING; }

/* --- topics that come later --------------------------------------------------------------------------------------- */

/* A topic that was made after the source was opened, or made anew since. */
static bool is_later_topic(const kafka_source *k, const kafka_topic *t)
{
    for (size_t i = 0; i < k->n_first_topics && !t->had_offset; i++)
        if (strcmp(k->first_topics[i], t->name) == 0) return false;
    return t->had_offset || k->listed_topics;
}

static bool copy_topics(kafka_source *k, const struct rd_kafka_metadata *about)
{
    assert(!k->first_topics && !k->n_first_topics);
    k->first_topics = about->topic_cnt ? calloc((size_t)about->topic_cnt, sizeof *k->first_topics) : NULL;
    if (about->topic_cnt && !k->first_topics) return false;
    for (int i = 0; i < about->topic_cnt; i++) {
        k->first_topics[k->n_first_topics] = strdup(about->topics[i].topic);
        if (!k->first_topics[k->n_first_topics++]) return false;
    }
    return true;
}

/* A topic that is gone now will be another one when it is there again. */
static void forget_gone(kafka_source *k, const struct rd_kafka_metadata *about)
{
    size_t kept = 0;
    for (size_t i = 0; i < k->n_first_topics; i++) {
        bool there = false;
        for (int j = 0; j < about->topic_cnt && !there; j++)
            there = strcmp(about->topics[j].topic, k->first_topics[i]) == 0;
        if (there) k->first_topics[kept++] = k->first_topics[i];
        else free(k->first_topics[i]);
    }
    k->n_first_topics = kept;
}

/* Which topics there are when the source is opened, and whenever one may be gone. Only `latest` asks. */
static int list_topics(kafka_source *k, once_error *err)
{
    const struct rd_kafka_metadata *about = NULL;
    if (k->kafka->start != ONCE_KAFKA_LATEST || (k->listed_topics && !k->topics_changed)) return ONCE_OK;
    const rd_kafka_resp_err_t error = rd_kafka_metadata(k->reader, 1, NULL, &about, once__kafka_ask_ms(k));
    if (error) return once__kafka_fail(err, error, "cannot list the topics");
    if (k->listed_topics) forget_gone(k, about);
    else k->listed_topics = copy_topics(k, about);
    k->topics_changed = false;
    rd_kafka_metadata_destroy(about);
    return k->listed_topics ? ONCE_OK : once_no_memory(err, "for the names of topics");
}

/* --- where a partition begins ------------------------------------------------------------------------------------- */

/* What the group's offsets tell about the number of partitions that the group began with. If only another program has
 * committed offsets, it is not known which partitions were added later. They begin at their first message, or nowhere:
 * neither can lose a message. */
static int32_t began_with(const kafka_source *k, const kafka_topic *t, const rd_kafka_topic_partition_list_t *list)
{
    bool any = false;
    for (int i = 0; i < list->cnt; i++) {
        if (list->elems[i].offset < 0) continue;
        any = true;
        const kafka_kept kept = once__kafka_read_kept(&list->elems[i]);
        if (kept.ours) return kept.partitions;
    }
    const bool may_begin = k->kafka->start != ONCE_KAFKA_ERROR;
    return may_begin && (any || is_later_topic(k, t)) ? 0 : list->cnt;
}

/* Takes what the group's offsets tell about the topic. */
static void learn(kafka_source *k, kafka_topic *t, const rd_kafka_topic_partition_list_t *list)
{
    bool any = false;
    for (int i = 0; i < list->cnt; i++) any = any || list->elems[i].offset >= 0;
    if (t->had_offset && !any && k->kafka->start != ONCE_KAFKA_ERROR && !k->kafka->cursor)
        once__kafka_warn(k, "kafka_out_of_range",
                         "group '%s' has no offset for topic '%s' any more: the topic was made anew, or the group was "
                         "deleted; it begins at the first message",
                         k->group, t->name);
    pthread_mutex_lock(&k->lock);
    t->began_with = began_with(k, t, list);
    t->had_offset = t->had_offset || any;
    pthread_mutex_unlock(&k->lock);
}

int once__kafka_ask_ends(kafka_source *k, const kafka_partition *p, int64_t *low, int64_t *high, once_error *err)
{
    rd_kafka_resp_err_t error =
        rd_kafka_query_watermark_offsets(k->reader, p->topic->name, p->number, low, high, once__kafka_ask_ms(k));
    if (!error && (*low < 0 || *high < *low)) error = RD_KAFKA_RESP_ERR__BAD_MSG; /* brokers may say anything */
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
    const int rc = once__kafka_ask_ends(k, p, &low, &high, err);
    if (rc != ONCE_OK) return rc;
    pthread_mutex_lock(&k->lock);
    p->next = start == ONCE_KAFKA_LATEST ? high : low;
    p->first = low;
    pthread_mutex_unlock(&k->lock);
    return ONCE_OK;
}

/* Sets p->next. `at` is the group's offset. */
static int decide(kafka_source *k, kafka_partition *p, const rd_kafka_topic_partition_t *at, bool has_leader,
                  once_error *err)
{
    assert(is_waiting(p) && at->partition == p->number);
    if (at->err)
        return once__kafka_fail(err, at->err, "cannot read the offset of group '%s' for '%s'", k->group, p->place);
    if (at->offset < 0 && !has_leader)
        return once_fail(err, ONCE_E_UNAVAILABLE, "'%s' has no leader now and cannot be read", p->place);
    pthread_mutex_lock(&k->lock);
    p->committed = at->offset >= 0 ? at->offset : -1;
    p->fresh = at->offset < 0;
    p->kept = once__kafka_read_kept(at);
    p->epoch = p->kept.epoch > 0 ? p->kept.epoch : 0;
    if (at->offset >= 0) p->next = at->offset;
    pthread_mutex_unlock(&k->lock);
    return p->fresh ? begin_without_offset(k, p, err) : ONCE_OK;
}

/* All partitions of the topic: those that are not ours tell what the group knows of it, too. */
static rd_kafka_topic_partition_list_t *list_partitions(const kafka_source *k, const kafka_topic *t,
                                                        const rd_kafka_metadata_topic_t *about)
{
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(8);
    int32_t n = about->partition_cnt;
    for (uint32_t i = 0; i < k->n_partitions; i++) { /* the group's answer may be newer */
        const kafka_partition *p = k->partitions[i];
        if (is_waiting(p) && p->topic == t && p->number >= n) n = p->number + 1;
    }
    for (int32_t i = 0; i < n; i++) (void)rd_kafka_topic_partition_list_add(list, t->name, i);
    return list;
}

static bool has_leader(const rd_kafka_metadata_topic_t *about, int32_t number)
{
    for (int i = 0; i < about->partition_cnt; i++)
        if (about->partitions[i].id == number) return about->partitions[i].leader >= 0;
    return true; /* it is not known */
}

/* Sets p->next of the partitions of this topic that wait. `err`: of the first one that could not be decided. */
static int decide_topic(kafka_source *k, kafka_topic *t, const rd_kafka_metadata_topic_t *about, once_error *err)
{
    rd_kafka_topic_partition_list_t *list = list_partitions(k, t, about);
    const rd_kafka_resp_err_t error = rd_kafka_committed(k->member, list, once__kafka_ask_ms(k));
    int rc = error ? once__kafka_fail(err, error, "cannot read the offsets of group '%s'", k->group) : ONCE_OK;
    if (!error) learn(k, t, list);
    for (uint32_t i = 0; i < k->n_partitions && !error; i++) {
        kafka_partition *p = k->partitions[i];
        once_error why;
        if (!is_waiting(p) || p->topic != t) continue;
        const rd_kafka_topic_partition_t *at = rd_kafka_topic_partition_list_find(list, t->name, p->number);
        assert(at);
        const int one = decide(k, p, at, has_leader(about, p->number), &why);
        if (one == ONCE_OK || rc != ONCE_OK) continue;
        rc = one;
        *err = why;
    }
    rd_kafka_topic_partition_list_destroy(list);
    return rc;
}

static int ask_topic(kafka_source *k, kafka_topic *t, once_error *err)
{
    const struct rd_kafka_metadata *about = NULL;
    rd_kafka_resp_err_t error = rd_kafka_metadata(k->reader, 0, t->handle, &about, once__kafka_ask_ms(k));
    if (!error && about->topic_cnt != 1) error = RD_KAFKA_RESP_ERR__BAD_MSG; /* brokers may say anything */
    if (!error) error = about->topics[0].err;
    const int rc =
        error ? once__kafka_fail(err, error, "topic '%s'", t->name) : decide_topic(k, t, &about->topics[0], err);
    if (about) rd_kafka_metadata_destroy(about);
    return rc;
}

static bool any_waits(const kafka_source *k, const kafka_topic *t)
{
    for (uint32_t i = 0; i < k->n_partitions; i++)
        if (is_waiting(k->partitions[i]) && k->partitions[i]->topic == t) return true;
    return false;
}

/* The questions to the brokers. `err`: of the first one that failed. */
static int decide_waiting(kafka_source *k, once_error *err)
{
    int rc = ONCE_OK;
    for (kafka_topic *t = k->topics; t; t = t->next) {
        once_error why;
        const int one = any_waits(k, t) ? ask_topic(k, t, &why) : ONCE_OK;
        if (one == ONCE_OK || rc != ONCE_OK) continue;
        rc = one;
        *err = why;
    }
    return rc;
}

/* --- partitions that know where to begin -------------------------------------------------------------------------- */

static bool is_ready(kafka_source *k, const kafka_partition *p)
{
    pthread_mutex_lock(&k->lock);
    const bool ready = p->state == KAFKA_ASSIGNED && (p->sought || !k->kafka->cursor);
    pthread_mutex_unlock(&k->lock);
    return ready && !p->open;
}

/* It must be durable where a partition begins before anything of it is read: for `latest`, and because the loss of an
 * offset is how a topic that was made anew is noticed. With `cursor` the group may also be elsewhere:
 * the last run ended between its transaction and the commit. A partition that is opened again has begun. */
static bool must_commit(const kafka_source *k, const kafka_partition *p)
{
    return p->began < 0 && p->committed != p->next && (k->kafka->cursor || p->fresh);
}

/* Takes the answers to a commit of starts. `err`: of the first one that failed. */
static int take_committed(kafka_source *k, const rd_kafka_topic_partition_list_t *starts, once_error *err)
{
    int rc = ONCE_OK;
    pthread_mutex_lock(&k->lock);
    for (int i = 0; i < starts->cnt; i++) {
        const rd_kafka_topic_partition_t *at = &starts->elems[i];
        kafka_partition *p = once__kafka_find(k, at->topic, at->partition);
        if (at->err && rc == ONCE_OK)
            rc = once__kafka_fail(err, at->err, "cannot commit where group '%s' begins in '%s/%d'", k->group, at->topic,
                                  (int)at->partition);
        if (at->err || !p) continue;
        p->committed = at->offset;
        p->fresh = false;
        p->topic->had_offset = true;
    }
    pthread_mutex_unlock(&k->lock);
    return rc;
}

static int commit_ready(kafka_source *k, once_error *err)
{
    rd_kafka_topic_partition_list_t *starts = rd_kafka_topic_partition_list_new(0);
    for (uint32_t i = 0; i < k->n_partitions; i++) {
        const kafka_partition *p = k->partitions[i];
        if (!is_ready(k, p) || !must_commit(k, p)) continue;
        pthread_mutex_lock(&k->lock);
        const kafka_kept kept = once__kafka_kept(k, p);
        pthread_mutex_unlock(&k->lock);
        once__kafka_add_commit(starts, p, p->next, &kept);
    }
    int rc = starts->cnt ? once__kafka_commit_now(k, starts, err) : ONCE_OK;
    if (rc == ONCE_OK) rc = take_committed(k, starts, err);
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

static bool report_decided(kafka_source *k, kafka_news *news)
{
    for (uint32_t i = 0; i < k->n_partitions; i++) {
        kafka_partition *p = k->partitions[i];
        if (!is_waiting(p) || p->next < 0) continue;
        assert(!p->reported && !p->open);
        if (!once__kafka_report(news, ONCE_STREAM_ASSIGNED, i, 0)) return false;
        p->reported = true;
        pthread_mutex_lock(&k->lock);
        p->state = KAFKA_ASSIGNED;
        pthread_mutex_unlock(&k->lock);
    }
    return true;
}

void once__kafka_open_again(kafka_source *k, kafka_partition *p)
{
    assert(p->next >= 0);
    once__kafka_stop_partition(k, p);
    pthread_mutex_lock(&k->lock);
    p->sought = true;
    if (p->state == KAFKA_READING) p->state = KAFKA_ASSIGNED;
    pthread_mutex_unlock(&k->lock);
}

/* librdkafka reports only once that a partition cannot be read. When it is opened again, its messages or its end show
 * that it can. */
static void open_failing_again(kafka_source *k, int64_t now_ns)
{
    if (now_ns < k->open_again_ns) return;
    k->open_again_ns = now_ns + OPEN_AGAIN_NS;
    for (uint32_t i = 0; i < k->n_partitions; i++) {
        kafka_partition *p = k->partitions[i];
        once_error failure;
        if (!p->failing || p->state != KAFKA_READING) continue;
        (void)once__kafka_fail(&failure, p->failing, "topic '%s' cannot be read", p->topic->name);
        once__kafka_note_part(k, &failure);
        once__kafka_open_again(k, p);
    }
}

bool once__kafka_start(kafka_source *k, kafka_news *news)
{
    const int64_t now_ns = once__kafka_now_ns(k);
    once_error failure, later;
    open_failing_again(k, now_ns);
    if (now_ns < k->start_again_ns) return true;
    int rc = list_topics(k, &failure);
    if (rc == ONCE_OK) rc = decide_waiting(k, &failure);
    if (!report_decided(k, news)) return false;
    const int opened = open_ready(k, &later);
    if (rc == ONCE_OK && opened != ONCE_OK) failure = later;
    if (rc == ONCE_OK) rc = opened;
    if (rc == ONCE_OK) {
        if (k->start_fails_ns) once__kafka_failure_over(k);
        k->start_fails_ns = 0;
        return true;
    }
    if (!k->start_fails_ns) k->start_fails_ns = now_ns;
    const bool lasts = now_ns - k->start_fails_ns > PATIENT_NS;
    if (rc != ONCE_E_UNAVAILABLE || lasts) once__kafka_note_part(k, &failure);
    k->start_again_ns = once__kafka_now_ns(k) + (lasts ? SELDOM_NS : AGAIN_NS);
    return true;
}
