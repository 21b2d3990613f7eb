/* What the cluster knows of the topics of a pipeline: which there are, how far the group has come in them, and where
 * they begin and end. Questions only: nothing joins a group, and nothing is committed. */
#include <assert.h>
#include <regex.h>
#include <stdio.h>
#include <string.h>

#include "base/no_memory.h"
#include "source/kafka/survey.h"

#include "base/banned.h"

#define STEP_MS 500

int once__kafka_left_ms(const kafka_source *k, int64_t until_ns)
{
    const int64_t left_ms = (until_ns - once__kafka_now_ns(k)) / 1000000;
    return left_ms < 1 ? 1 : left_ms > 60000 ? 60000 : (int)left_ms;
}

/* --- brokers that do not answer ----------------------------------------------------------------------------------- */

/* What the client says while a question waits: it ends with its time, and the reason comes as an event. */
typedef struct trouble {
    bool refused; /* the password or the certificate */
    char why[300];
} trouble;

static void look_for_trouble(rd_kafka_queue_t *events, trouble *out)
{
    rd_kafka_event_t *event;
    while ((event = rd_kafka_queue_poll(events, 0))) {
        const rd_kafka_resp_err_t error =
            rd_kafka_event_type(event) == RD_KAFKA_EVENT_ERROR ? once__kafka_event_error(event) : 0;
        const bool refused = once__kafka_status(error) == ONCE_E_DENIED;
        if (error && error != RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN && (refused || !out->refused)) {
            const char *text = rd_kafka_event_error_string(event);
            (void)snprintf(out->why, sizeof out->why, "%s", text ? text : rd_kafka_err2str(error));
            out->refused = refused;
        }
        rd_kafka_event_destroy(event);
    }
}

/* Fails with the names of the brokers. */
static int fail_with_brokers(const kafka_source *k, rd_kafka_resp_err_t error, const trouble *said, once_error *err)
{
    char brokers[400] = "";
    size_t len = 0;
    for (size_t i = 0; i < k->kafka->n_brokers && len < sizeof brokers - 1; i++) {
        const once_bytes broker = k->kafka->brokers[i];
        const int more =
            snprintf(brokers + len, sizeof brokers - len, "%s%.*s", i ? ", " : "", (int)broker.len, broker.data);
        if (more > 0) len += (size_t)more;
    }
    if (said->refused)
        return once_fail(err, ONCE_E_DENIED, "the brokers (%s) refuse the connection: %s", brokers, said->why);
    return once_fail(err, once__kafka_status(error), "no broker answers (%s): %s", brokers,
                     said->why[0] ? said->why : rd_kafka_err2str(error));
}

/* `topic` is NULL for all topics. In steps, because a refused password is known long before the time is over. */
static int ask_metadata(kafka_source *k, rd_kafka_topic_t *topic, int64_t until_ns, const rd_kafka_metadata_t **out,
                        once_error *err)
{
    trouble said = {0};
    for (;;) {
        const int left_ms = once__kafka_left_ms(k, until_ns);
        const rd_kafka_resp_err_t error =
            rd_kafka_metadata(k->reader, !topic, topic, out, left_ms < STEP_MS ? left_ms : STEP_MS);
        if (!error) return ONCE_OK;
        look_for_trouble(k->reader_events, &said);
        if (said.refused || once__kafka_now_ns(k) >= until_ns || once__kafka_status(error) != ONCE_E_UNAVAILABLE)
            return fail_with_brokers(k, error, &said, err);
    }
}

/* --- topics ------------------------------------------------------------------------------------------------------- */

static bool is_listed(const kafka_survey *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->topics[i].name && strcmp(s->topics[i].name, name) == 0) return true;
    return false;
}

static kafka_surveyed *add(kafka_survey *s, once_bytes written)
{
    assert(written.len > 0);
    if (s->n == s->room) {
        const size_t room = s->room ? 2 * s->room : 16;
        kafka_surveyed *more = once_arena_new(&s->arena, kafka_surveyed, room);
        if (!more) return NULL;
        if (s->n) memcpy(more, s->topics, s->n * sizeof *more);
        s->topics = more;
        s->room = room;
    }
    s->topics[s->n] = (kafka_surveyed){.written = written};
    return &s->topics[s->n++];
}

static bool add_found(kafka_survey *s, once_bytes written, const rd_kafka_metadata_topic_t *about)
{
    once_bytes name;
    assert(about->partition_cnt >= 0);
    if (is_listed(s, about->topic)) return true;
    kafka_surveyed *t = add(s, written);
    if (!t || !once_arena_copy(&s->arena, (once_bytes){about->topic, strlen(about->topic)}, &name)) return false;
    t->name = name.data;
    t->error = about->err;
    t->partitions = about->err ? 0 : about->partition_cnt;
    for (int i = 0; i < about->partition_cnt; i++) t->without_leader += about->partitions[i].leader < 0;
    return true;
}

/* The group's own patterns are matched by librdkafka in the same way. */
static bool add_matches(kafka_survey *s, once_bytes pattern, const rd_kafka_metadata_t *all)
{
    once_bytes text;
    regex_t compiled;
    if (!once_arena_copy(&s->arena, pattern, &text)) return false;
    if (regcomp(&compiled, text.data, REG_EXTENDED | REG_NOSUB) != 0) return add(s, pattern);
    bool ok = true, any = false;
    for (int i = 0; i < all->topic_cnt && ok; i++) {
        if (regexec(&compiled, all->topics[i].topic, 0, NULL, 0) != 0) continue;
        any = true;
        ok = add_found(s, pattern, &all->topics[i]);
    }
    regfree(&compiled);
    return ok && (any || add(s, pattern));
}

static int ask_topic(kafka_source *k, kafka_survey *s, once_bytes written, int64_t until_ns, once_error *err)
{
    once_bytes name;
    const rd_kafka_metadata_t *about = NULL;
    kafka_topic *t = once_arena_copy(&s->arena, written, &name) ? once__kafka_topic(k, name.data) : NULL;
    if (!t) return once_no_memory(err, "for a topic");
    const int rc = ask_metadata(k, t->handle, until_ns, &about, err);
    if (rc != ONCE_OK) return rc;
    const bool told = about->topic_cnt == 1; /* brokers may say anything */
    const bool ok = told && add_found(s, written, &about->topics[0]);
    rd_kafka_metadata_destroy(about);
    if (!told) return once_fail(err, ONCE_E_UNAVAILABLE, "the brokers do not say what topic '%s' is", t->name);
    return ok ? ONCE_OK : once_no_memory(err, "for a topic");
}

int once__kafka_survey_topics(kafka_source *k, int64_t until_ns, kafka_survey *out, once_error *err)
{
    const rd_kafka_metadata_t *all = NULL;
    int rc = ONCE_OK;
    for (size_t i = 0; i < k->kafka->n_topics && rc == ONCE_OK; i++) {
        const once_bytes topic = k->kafka->topics[i];
        if (!once_kafka_is_pattern(topic)) {
            rc = ask_topic(k, out, topic, until_ns, err);
            continue;
        }
        if (!all) rc = ask_metadata(k, NULL, until_ns, &all, err);
        if (rc == ONCE_OK && !add_matches(out, topic, all)) rc = once_no_memory(err, "for topics");
    }
    if (all) rd_kafka_metadata_destroy(all);
    return rc;
}

/* --- offsets ------------------------------------------------------------------------------------------------------ */

static rd_kafka_topic_partition_list_t *list_all(const kafka_survey *s, int64_t offset)
{
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(16);
    for (size_t i = 0; i < s->n; i++)
        for (int32_t p = 0; p < s->topics[i].partitions; p++)
            rd_kafka_topic_partition_list_add(list, s->topics[i].name, p)->offset = offset;
    return list;
}

static rd_kafka_resp_err_t ask_ends(kafka_source *k, const kafka_survey *s, int64_t which, int64_t until_ns,
                                    rd_kafka_topic_partition_list_t **out)
{
    *out = list_all(s, which);
    return rd_kafka_offsets_for_times(k->reader, *out, once__kafka_left_ms(k, until_ns));
}

static int64_t offset_in(rd_kafka_topic_partition_list_t *list, const char *topic, int32_t number)
{
    const rd_kafka_topic_partition_t *at = rd_kafka_topic_partition_list_find(list, topic, number);
    return !at || at->err || at->offset < 0 ? -1 : at->offset;
}

int once__kafka_survey_offsets(kafka_source *k, int64_t until_ns, kafka_survey *s, rd_kafka_resp_err_t *denied,
                               once_error *err)
{
    assert(k->member);
    rd_kafka_topic_partition_list_t *low = NULL, *high = NULL, *done = list_all(s, RD_KAFKA_OFFSET_INVALID);
    *denied = RD_KAFKA_RESP_ERR_NO_ERROR;
    int rc = ONCE_OK;
    if (done->cnt > 0) {
        rd_kafka_resp_err_t error = ask_ends(k, s, RD_KAFKA_OFFSET_BEGINNING, until_ns, &low);
        if (!error) error = ask_ends(k, s, RD_KAFKA_OFFSET_END, until_ns, &high);
        if (error) rc = once__kafka_fail(err, error, "cannot read where the topics begin and end");
        /* The last question: if the group is closed for us, librdkafka asks until the time is over. */
        else *denied = rd_kafka_committed(k->member, done, once__kafka_left_ms(k, until_ns));
    }
    s->ends = rc == ONCE_OK ? once_arena_new(&s->arena, kafka_ends, (size_t)done->cnt + 1) : NULL;
    if (rc == ONCE_OK && !s->ends) rc = once_no_memory(err, "for partitions");
    for (size_t i = 0; rc == ONCE_OK && i < s->n; i++)
        for (int32_t number = 0; number < s->topics[i].partitions; number++) {
            const char *topic = s->topics[i].name;
            const rd_kafka_topic_partition_t *c = rd_kafka_topic_partition_list_find(done, topic, number);
            if (!*denied && c->err) *denied = c->err;
            s->ends[s->n_ends++] = (kafka_ends){.topic = topic,
                                                .number = number,
                                                .committed = c->offset >= 0 ? c->offset : -1,
                                                .kept = once__kafka_read_kept(c),
                                                .low = offset_in(low, topic, number),
                                                .high = offset_in(high, topic, number)};
        }
    assert(rc != ONCE_OK || s->n_ends == (size_t)done->cnt);
    if (low) rd_kafka_topic_partition_list_destroy(low);
    if (high) rd_kafka_topic_partition_list_destroy(high);
    rd_kafka_topic_partition_list_destroy(done);
    return rc;
}

int once__kafka_survey_next(const kafka_source *k, const once_facts *facts, const kafka_ends *e, kafka_next *out,
                            once_error *err)
{
    char place[300];
    kafka_cursor cursor;
    *out = (kafka_next){.fate = KAFKA_CURSOR_VOID, .offset = e->committed, .cursor = -1};
    if (!k->kafka->cursor) return ONCE_OK;
    (void)snprintf(place, sizeof place, "%s/%d", e->topic, (int)e->number);
    const int rc = once__kafka_read_cursor(facts, place, &cursor, err);
    if (rc != ONCE_OK) return rc;
    out->fate = once__kafka_judge_cursor(&cursor, e->committed, &e->kept);
    out->cursor = cursor.next;
    if (out->fate == KAFKA_CURSOR_COUNTS) out->offset = cursor.next;
    return ONCE_OK;
}

/* -1: it is not known where a run begins, or one would end with an error. */
static int64_t left_of(const kafka_source *k, const kafka_ends *e, const kafka_next *next)
{
    const bool first = next->fate == KAFKA_CURSOR_ALONE ? k->kafka->out_of_range != ONCE_KAFKA_STOP
                                                        : k->kafka->start == ONCE_KAFKA_EARLIEST;
    const int64_t from = next->offset >= 0 ? next->offset : first ? e->low : -1;
    return e->high < 0 || from < 0 ? -1 : e->high > from ? e->high - from : 0;
}

int once__kafka_backlog(once_source *source, const once_facts *facts, int64_t ms, once_source_left *visit, void *user,
                        once_error *err)
{
    kafka_source *k = once__kafka(source);
    assert(k->purpose == ONCE_OPEN_CHECK && ms > 0);
    const int64_t until_ns = once__kafka_now_ns(k) + ms * 1000000;
    rd_kafka_resp_err_t denied = RD_KAFKA_RESP_ERR_NO_ERROR;
    kafka_survey s = {0};
    int rc = once__kafka_survey_topics(k, until_ns, &s, err);
    if (rc == ONCE_OK) rc = once__kafka_survey_offsets(k, until_ns, &s, &denied, err);
    if (rc == ONCE_OK && denied) rc = once__kafka_fail(err, denied, "cannot read the offsets of group '%s'", k->group);
    int64_t *left = rc == ONCE_OK ? once_arena_new(&s.arena, int64_t, s.n_ends + 1) : NULL;
    if (rc == ONCE_OK && !left) rc = once_no_memory(err, "for partitions");
    for (size_t i = 0; rc == ONCE_OK && i < s.n_ends; i++) {
        kafka_next next;
        rc = once__kafka_survey_next(k, facts, &s.ends[i], &next, err);
        left[i] = rc == ONCE_OK ? left_of(k, &s.ends[i], &next) : -1;
    }
    for (size_t i = 0; rc == ONCE_OK && i < s.n_ends; i++) {
        char place[300];
        (void)snprintf(place, sizeof place, "%s/%d", s.ends[i].topic, (int)s.ends[i].number);
        visit(user, place, left[i]);
    }
    once_arena_release(&s.arena);
    return rc;
}
