/* Asks the cluster for `once check`: topics, what they keep and for how long, the group and its offsets. What the
 * cluster does not tell, because a right is missing, is a finding, too. Bounded: brokers that are away are named after
 * ASK_ALL_MS. */
#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"
#include "source/kafka/survey.h"

#include "base/banned.h"

#define ASK_ALL_MS 8000
#define TEXT_MAX 800
#define BATCH_BYTES 68 /* around the body of a message that is alone in its batch: max.message.bytes counts them */

typedef struct asking {
    kafka_source *k;
    const once_facts *facts;
    kafka_survey survey;
    int64_t until_ns;
    once_source_report *report;
    void *user;
} asking;

__attribute__((format(printf, 3, 4))) static void say(const asking *a, bool warning, const char *format, ...)
{
    char text[TEXT_MAX];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    a->report(a->user, &(once_source_finding){.text = text, .warning = warning});
}

/* --- the admin API ------------------------------------------------------------------------------------------------ */

typedef struct question {
    rd_kafka_AdminOptions_t *options;
    rd_kafka_queue_t *queue;
} question;

static question ask_begin(const asking *a, rd_kafka_admin_op_t what)
{
    char why[200];
    const question q = {rd_kafka_AdminOptions_new(a->k->reader, what), rd_kafka_queue_new(a->k->reader)};
    (void)rd_kafka_AdminOptions_set_request_timeout(q.options, once__kafka_left_ms(a->k, a->until_ns), why, sizeof why);
    return q;
}

/* NULL: no answer came. */
static rd_kafka_event_t *ask_end(const asking *a, question q, rd_kafka_resp_err_t *error)
{
    rd_kafka_event_t *event = rd_kafka_queue_poll(q.queue, once__kafka_left_ms(a->k, a->until_ns) + 200);
    *error = event ? rd_kafka_event_error(event) : RD_KAFKA_RESP_ERR__TIMED_OUT;
    rd_kafka_queue_destroy(q.queue);
    rd_kafka_AdminOptions_destroy(q.options);
    return event;
}

/* --- topics ------------------------------------------------------------------------------------------------------- */

static void say_topics(const asking *a)
{
    for (size_t i = 0; i < a->survey.n; i++) {
        const kafka_surveyed *t = &a->survey.topics[i];
        if (!t->name)
            say(a, true, "no topic matches '%.*s'; nothing is read from it until there is one", (int)t->written.len,
                t->written.data);
        else if (t->error == RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED)
            say(a, true,
                "could not ask about topic '%s': the right DESCRIBE on it is missing; a run needs READ on it, which "
                "includes that",
                t->name);
        else if (t->error == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART)
            say(a, true, "topic '%s' does not exist; create it, or correct 'topics'", t->name);
        else if (t->error) say(a, true, "could not ask about topic '%s': %s", t->name, rd_kafka_err2str(t->error));
        else
            say(a, false, "topic '%s' has %d partition%s, read by %d worker%s at most", t->name, (int)t->partitions,
                t->partitions == 1 ? "" : "s", (int)t->partitions, t->partitions == 1 ? "" : "s");
        if (t->without_leader)
            say(a, true, "topic '%s': %d partition%s no leader now and cannot be read", t->name, t->without_leader,
                t->without_leader == 1 ? " has" : "s have");
    }
}

static const char *value_of(const rd_kafka_ConfigResource_t *about, const char *name)
{
    size_t n;
    const rd_kafka_ConfigEntry_t **entries = rd_kafka_ConfigResource_configs(about, &n);
    for (size_t i = 0; i < n; i++)
        if (strcmp(rd_kafka_ConfigEntry_name(entries[i]), name) == 0) return rd_kafka_ConfigEntry_value(entries[i]);
    return NULL;
}

/* -2: the topic does not say. */
static int64_t number_of(const rd_kafka_ConfigResource_t *about, const char *name)
{
    const char *text = value_of(about, name);
    char *end = NULL;
    const long long number = text ? strtoll(text, &end, 10) : -2;
    return text && (end == text || *end) ? -2 : (int64_t)number;
}

static void say_retention(const asking *a, const char *topic, const rd_kafka_ConfigResource_t *about, const char *why)
{
    char of[300];
    const char *policy = about ? value_of(about, "cleanup.policy") : NULL;
    const bool deletes = !policy || strstr(policy, "delete"); /* otherwise it is only compacted */
    const int64_t ms = about ? number_of(about, "retention.ms") : -2;
    (void)snprintf(of, sizeof of, "topic '%s'", topic);
    if (!why && ms == -2) why = "the broker does not tell it";
    a->report(a->user, &(once_source_finding){.limit = ONCE_LIMIT_RETENTION,
                                              .value = ms < 0 || !deletes ? ONCE_FOREVER : ms,
                                              .of = of,
                                              .setting = deletes ? "retention.ms" : "cleanup.policy=compact",
                                              .text = why});
}

static void say_config(const asking *a, const char *topic, const rd_kafka_ConfigResource_t *about)
{
    const char *policy = value_of(about, "cleanup.policy");
    const int64_t bytes = number_of(about, "retention.bytes"), largest = number_of(about, "max.message.bytes");
    const size_t message_max = a->k->base.spec->message_max;
    say_retention(a, topic, about, NULL);
    if (bytes >= 0)
        say(a, true,
            "topic '%s': retention.bytes %" PRId64
            " for each partition: a message may be deleted earlier than by time, when more bytes than that are behind "
            "it; a worker that is too slow or away for too long loses it",
            topic, bytes);
    if (policy && strstr(policy, "compact"))
        say(a, true,
            "topic '%s' is compacted (cleanup.policy=%s): a message may be gone before it is handled, when a newer one "
            "has the same record key; that is right for states, and not for events that must each take effect",
            topic, policy);
    if (largest > BATCH_BYTES && (uint64_t)(largest - BATCH_BYTES) > message_max)
        say(a, true,
            "topic '%s' takes messages of up to %" PRId64
            " bytes (max.message.bytes), more than 'message_max' (%zu): larger ones become dead letters; raise "
            "'message_max'",
            topic, largest, message_max);
}

static void say_not_told(const asking *a, const char *topic, rd_kafka_resp_err_t error)
{
    say_retention(a, topic, NULL,
                  error == RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED
                      ? "the right DESCRIBE_CONFIGS on the topic is missing, so compaction and sizes were not read "
                        "either"
                      : rd_kafka_err2str(error));
}

static void ask_configs(const asking *a)
{
    size_t n = 0, answered = 0;
    rd_kafka_ConfigResource_t **about = calloc(a->survey.n + 1, sizeof *about);
    if (!about) return;
    for (size_t i = 0; i < a->survey.n; i++)
        if (a->survey.topics[i].partitions)
            about[n++] = rd_kafka_ConfigResource_new(RD_KAFKA_RESOURCE_TOPIC, a->survey.topics[i].name);
    if (n > 0) {
        rd_kafka_resp_err_t error;
        const question q = ask_begin(a, RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS);
        rd_kafka_DescribeConfigs(a->k->reader, about, n, q.options, q.queue);
        rd_kafka_event_t *event = ask_end(a, q, &error);
        const rd_kafka_DescribeConfigs_result_t *result = event ? rd_kafka_event_DescribeConfigs_result(event) : NULL;
        const rd_kafka_ConfigResource_t **list =
            result && !error ? rd_kafka_DescribeConfigs_result_resources(result, &answered) : NULL;
        for (size_t i = 0; i < answered; i++) {
            const rd_kafka_resp_err_t why = rd_kafka_ConfigResource_error(list[i]);
            if (why) say_not_told(a, rd_kafka_ConfigResource_name(list[i]), why);
            else say_config(a, rd_kafka_ConfigResource_name(list[i]), list[i]);
        }
        for (size_t i = 0; error && i < n; i++) say_not_told(a, rd_kafka_ConfigResource_name(about[i]), error);
        if (event) rd_kafka_event_destroy(event);
    }
    rd_kafka_ConfigResource_destroy_array(about, n);
    free(about);
}

/* --- the group ---------------------------------------------------------------------------------------------------- */

/* How the clients are set up, by defaults or by `config`. */
static void setting_of(const asking *a, const char *name, char *out, size_t size)
{
    out[0] = '\0';
    if (rd_kafka_conf_get(rd_kafka_conf(a->k->member), name, out, &size) != RD_KAFKA_CONF_OK) out[0] = '\0';
}

static bool is_ours(const asking *a, const char *topic)
{
    for (size_t i = 0; i < a->survey.n; i++)
        if (a->survey.topics[i].name && strcmp(a->survey.topics[i].name, topic) == 0) return true;
    return false;
}

/* What one member reads: "payments/0, payments/1". */
static void write_assigned(const rd_kafka_topic_partition_list_t *list, char *out, size_t size)
{
    size_t len = 0;
    out[0] = '\0';
    for (int i = 0; i < list->cnt && len < size; i++) {
        const int more = i == 4 ? snprintf(out + len, size - len, " and %d more", list->cnt - i)
                                : snprintf(out + len, size - len, "%s'%s/%d'", i ? ", " : "", list->elems[i].topic,
                                           (int)list->elems[i].partition);
        if (more > 0) len += (size_t)more;
        if (i == 4) break;
    }
}

static void say_member(const asking *a, const rd_kafka_MemberDescription_t *m)
{
    const rd_kafka_MemberAssignment_t *assigned = rd_kafka_MemberDescription_assignment(m);
    const rd_kafka_topic_partition_list_t *list = assigned ? rd_kafka_MemberAssignment_partitions(assigned) : NULL;
    const char *client = rd_kafka_MemberDescription_client_id(m), *host = rd_kafka_MemberDescription_host(m);
    char own[100], reads[400] = "";
    bool other_topics = false;
    setting_of(a, "client.id", own, sizeof own);
    const bool foreign = client && strcmp(client, own) != 0;
    for (int i = 0; list && i < list->cnt; i++) other_topics = other_topics || !is_ours(a, list->elems[i].topic);
    if (list) write_assigned(list, reads, sizeof reads);
    const char *text = foreign
                           ? "; by its client.id it is another consumer, and what it reads does not come here; give "
                             "this pipeline a 'group' of its own"
                       : other_topics ? "; it reads other topics than this pipeline; give each pipeline a 'group' of "
                                        "its own"
                                      : "";
    say(a, foreign || other_topics, "group '%s' has member '%s' at %s, which reads %s%s", a->k->group,
        client ? client : "?", host ? host : "?", reads[0] ? reads : "nothing", text);
}

/* Whether one of ours, which are written with commas, is theirs. */
static bool has_assignor(const char *ours, const char *theirs)
{
    const size_t len = strlen(theirs);
    for (const char *at = ours; (at = strstr(at, theirs)); at++)
        if ((at == ours || at[-1] == ',') && (at[len] == '\0' || at[len] == ',')) return true;
    return false;
}

static bool say_group_not_told(const asking *a, rd_kafka_resp_err_t error)
{
    say(a, true, "could not ask for the members and offsets of group '%s': %s", a->k->group,
        error == RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED
            ? "the right DESCRIBE on it is missing; a run needs READ on it, which includes that"
            : rd_kafka_err2str(error));
    return false;
}

/* False: the cluster does not tell. */
static bool say_group(const asking *a, const rd_kafka_ConsumerGroupDescription_t *g)
{
    const rd_kafka_error_t *error = rd_kafka_ConsumerGroupDescription_error(g);
    if (error) return say_group_not_told(a, rd_kafka_error_code(error));
    const size_t n = rd_kafka_ConsumerGroupDescription_member_count(g);
    const char *theirs = rd_kafka_ConsumerGroupDescription_partition_assignor(g);
    char ours[200];
    setting_of(a, "partition.assignment.strategy", ours, sizeof ours);
    const rd_kafka_consumer_group_state_t state = rd_kafka_ConsumerGroupDescription_state(g);
    if (state == RD_KAFKA_CONSUMER_GROUP_STATE_DEAD) say(a, false, "group '%s' does not exist yet", a->k->group);
    else
        say(a, false, "group '%s' is %s and has %zu member%s", a->k->group, rd_kafka_consumer_group_state_name(state),
            n, n == 1 ? "" : "s");
    if (n > 0 && theirs && *theirs && !has_assignor(ours, theirs))
        say(a, true,
            "the members of group '%s' share partitions by '%s', this pipeline by '%s': it cannot join them; give it a "
            "'group' of its own, or set 'partition.assignment.strategy' in 'config'",
            a->k->group, theirs, ours);
    for (size_t i = 0; i < n; i++) say_member(a, rd_kafka_ConsumerGroupDescription_member(g, i));
    return true;
}

static bool ask_group(const asking *a)
{
    rd_kafka_resp_err_t error;
    const char *group = a->k->group;
    size_t n = 0;
    const question q = ask_begin(a, RD_KAFKA_ADMIN_OP_DESCRIBECONSUMERGROUPS);
    rd_kafka_DescribeConsumerGroups(a->k->reader, &group, 1, q.options, q.queue);
    rd_kafka_event_t *event = ask_end(a, q, &error);
    const rd_kafka_DescribeConsumerGroups_result_t *result =
        event && !error ? rd_kafka_event_DescribeConsumerGroups_result(event) : NULL;
    const rd_kafka_ConsumerGroupDescription_t **groups =
        result ? rd_kafka_DescribeConsumerGroups_result_groups(result, &n) : NULL;
    const bool told = n > 0 ? say_group(a, groups[0]) : say_group_not_told(a, error);
    if (event) rd_kafka_event_destroy(event);
    return told;
}

/* --- offsets ------------------------------------------------------------------------------------------------------ */

/* What a run does that would go on at an offset that the broker does not have. */
static const char *then(const asking *a)
{
    return a->k->kafka->out_of_range == ONCE_KAFKA_STOP
               ? "a run ends with that; 'out_of_range: earliest' goes on at the first message"
               : "a run goes on at the first message ('out_of_range')";
}

static void say_out_of_range(const asking *a, const kafka_ends *e, const char *who, int64_t next)
{
    char what[200];
    if (next < e->low)
        (void)snprintf(what, sizeof what, "%" PRId64 " messages or fewer were deleted before they were read",
                       e->low - next);
    else (void)snprintf(what, sizeof what, "the topic was made anew, or the broker lost its last messages");
    say(a, true, "%s goes on in '%s/%d' at offset %" PRId64 ", but the broker has %" PRId64 " to %" PRId64 ": %s; %s",
        who, e->topic, (int)e->number, next, e->low, e->high, what, then(a));
}

/* Where a run goes on; -1: there is no place, or it is said why not. */
static int find_next(const asking *a, const kafka_ends *e, int64_t *next, const char **who, once_error *err)
{
    kafka_next found;
    const int rc = once__kafka_survey_next(a->k, a->facts, e, &found, err);
    if (rc != ONCE_OK) return rc;
    *next = found.offset;
    if (found.fate == KAFKA_CURSOR_COUNTS) *who = "the cursor in the store";
    if (found.fate != KAFKA_CURSOR_ALONE) return ONCE_OK;
    say(a, true,
        "the store has read '%s/%d' up to offset %" PRId64
        ", but group '%s' has no offset for it any more: the topic was made anew, or the group was deleted or has "
        "expired; %s",
        e->topic, (int)e->number, found.cursor, a->k->group, then(a));
    *next = -1;
    *who = NULL;
    return ONCE_OK;
}

static int say_offsets(const asking *a, once_error *err)
{
    int64_t left = 0;
    size_t without = 0, within = 0;
    char group[300];
    (void)snprintf(group, sizeof group, "group '%.255s'", a->k->group);
    for (size_t i = 0; i < a->survey.n_ends; i++) {
        const kafka_ends *e = &a->survey.ends[i];
        const char *who = group;
        int64_t next;
        if (e->low < 0 || e->high < 0) continue;
        const int rc = find_next(a, e, &next, &who, err);
        if (rc != ONCE_OK) return rc;
        if (!who) continue;
        if (next < 0) without++;
        else if (next < e->low || next > e->high) say_out_of_range(a, e, who, next);
        else left += e->high - next;
        within += next >= 0;
    }
    static const char later[] =
        "they begin behind the last message (start: latest), or at the first one if they were added later";
    static const char *const begins[] = {[ONCE_KAFKA_EARLIEST] = "they begin at the first message (start: earliest)",
                                         [ONCE_KAFKA_LATEST] = later,
                                         [ONCE_KAFKA_ERROR] = "a run ends with that (start: error)"};
    if (without)
        say(a, a->k->kafka->start == ONCE_KAFKA_ERROR, "group '%s' has no offset for %zu of %zu partitions: %s",
            a->k->group, without, a->survey.n_ends, begins[a->k->kafka->start]);
    if (within)
        say(a, false, "%" PRId64 " message%s behind the offsets of %s", left, left == 1 ? " is" : "s are",
            a->k->kafka->cursor ? "the store" : group);
    return ONCE_OK;
}

static int ask_offsets(asking *a, once_error *err)
{
    rd_kafka_resp_err_t denied;
    const int rc = once__kafka_survey_offsets(a->k, a->until_ns, &a->survey, &denied, err);
    if (rc != ONCE_OK) return rc;
    if (!denied) return say_offsets(a, err);
    say(a, true, "could not read the offsets of group '%s': %s", a->k->group, rd_kafka_err2str(denied));
    return ONCE_OK;
}

int once__kafka_ask(once_source *source, const once_facts *facts, once_source_report *report, void *user,
                    once_error *err)
{
    kafka_source *k = once__kafka(source);
    assert(k->purpose == ONCE_OPEN_CHECK && k->member && facts);
    asking a = {.k = k,
                .facts = facts,
                .until_ns = once__kafka_now_ns(k) + ASK_ALL_MS * INT64_C(1000000),
                .report = report,
                .user = user};
    int rc = once__kafka_survey_topics(k, a.until_ns, &a.survey, err);
    if (rc == ONCE_OK) {
        say_topics(&a);
        ask_configs(&a);
        if (ask_group(&a)) rc = ask_offsets(&a, err);
        say(&a, false, "messages of transactions that were aborted are not read (read_committed)");
    }
    once_arena_release(&a.survey.arena);
    return rc;
}
