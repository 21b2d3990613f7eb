/* Asks the broker for `once check` and `once status`. AMQP tells how many messages are ready and how many consumers
 * there are. The rest comes from the management API; without it, the limits that were not read are findings, too. */
#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/duration.h"
#include "base/log.h"
#include "source/rabbitmq/management.h"

#include "base/banned.h"

#define ASK_MS 5000  /* for `once check` */
#define HOLD_MS 2000 /* for a run that begins */
#define TEXT_MAX 800
#define QUORUM_LIMIT 20 /* of a quorum queue since RabbitMQ 4, if nothing is set */

typedef enum weight { INFO, WARNING, ERROR } weight;

typedef struct asking {
    const rabbitmq_source *r;
    char of[300]; /* "queue 'payments'" */
    rabbitmq_queue queue;
    once_source_report *report;
    void *user;
} asking;

__attribute__((format(printf, 3, 4))) static void say(const asking *a, weight how, const char *format, ...)
{
    char text[TEXT_MAX], what[TEXT_MAX - sizeof a->of];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(what, sizeof what, format, args);
    va_end(args);
    (void)snprintf(text, sizeof text, "%s %s", a->of, what);
    a->report(a->user, &(once_source_finding){.text = text, .warning = how == WARNING, .error = how == ERROR});
}

static void say_limit(const asking *a, once_source_limit limit, const char *setting, int64_t value, const char *why)
{
    a->report(a->user,
              &(once_source_finding){.limit = limit, .value = value, .of = a->of, .setting = setting, .text = why});
}

/* --- what the management API tells -------------------------------------------------------------------------------- */

static bool is_stream(const rabbitmq_queue *q) { return strcmp(q->type, "stream") == 0; }

static int refuse_stream(const rabbitmq_source *r, once_error *err)
{
    return once_fail(err, ONCE_E_CONFIG,
                     "queue '%s' is a stream, from which an ack removes nothing; use a classic or quorum queue",
                     r->queue);
}

static bool remembers_forever(const once_spec *spec)
{
    for (size_t i = 0; i < spec->n_handlers; i++)
        if (once_handler_runs(&spec->handlers[i]) && spec->handlers[i].remember_ms != ONCE_FOREVER) return false;
    return true;
}

static void say_ttl(const asking *a)
{
    const rabbitmq_queue *q = &a->queue;
    if (q->ttl_ms >= 0) {
        say_limit(a, ONCE_LIMIT_RETENTION, "message-ttl", q->ttl_ms, NULL);
        if (!q->dead_letters)
            say(a, WARNING,
                "drops messages that wait longer than its message-ttl, because it has no dead-letter exchange; set "
                "dead-letter-exchange, or remove message-ttl");
    } else if (!remembers_forever(a->r->base.spec)) {
        say(a, WARNING,
            "keeps messages until they are acked (it has no message-ttl): if an ack is lost and no worker runs for "
            "longer than 'remember', the message runs again; set 'remember: forever', or a message-ttl that is "
            "shorter");
    }
}

static void say_deliveries(const asking *a, bool quorum)
{
    const rabbitmq_queue *q = &a->queue;
    if (q->delivery_limit < 0) {
        if (quorum) say(a, INFO, "has no delivery-limit");
        return;
    }
    say_limit(a, ONCE_LIMIT_DELIVERIES, "delivery-limit", q->delivery_limit + 1, NULL);
    if (!q->dead_letters)
        say(a, ERROR,
            "drops a message after %" PRId64
            " deliveries (delivery-limit), because it has no dead-letter exchange; a crash of a worker and a lost "
            "connection are deliveries, too; set dead-letter-exchange for it",
            q->delivery_limit + 1);
}

static void say_hold(const asking *a)
{
    const int64_t written_ms = a->r->rabbitmq->consumer_timeout_ms, queue_ms = a->queue.consumer_timeout_ms;
    char text[2][ONCE_DURATION_TEXT];
    const bool shorter = queue_ms > 0 && queue_ms < written_ms;
    say_limit(a, ONCE_LIMIT_HOLD, "consumer_timeout", shorter ? queue_ms : written_ms, NULL);
    if (shorter)
        say(a, ERROR,
            "has a consumer-timeout of %s, shorter than 'consumer_timeout' (%s): it would take messages back before "
            "they "
            "are given to the store; write 'consumer_timeout: %s'",
            once_duration_format(queue_ms, text[0]), once_duration_format(written_ms, text[1]), text[0]);
}

static void say_losses(const asking *a)
{
    const rabbitmq_queue *q = &a->queue;
    char text[ONCE_DURATION_TEXT];
    if (!q->durable) say(a, WARNING, "is not durable: its messages are lost when the broker restarts");
    if (q->auto_delete)
        say(a, WARNING, "is deleted with its messages when its last consumer goes (auto-delete); declare it without");
    if (q->expires_ms >= 0)
        say(a, WARNING, "is deleted with its messages when it has no consumer for %s (expires)",
            once_duration_format(q->expires_ms, text));
    if ((q->max_messages >= 0 || q->max_bytes >= 0) && q->drops)
        say(a, WARNING,
            "%s its oldest messages when it is full (max-length, overflow: drop-head); use overflow: reject-publish",
            q->dead_letters ? "moves away" : "drops");
    if (q->single_active) say(a, INFO, "has a single active consumer: one worker reads it, the others wait");
}

static int say_queue(const asking *a, once_error *err)
{
    const rabbitmq_queue *q = &a->queue;
    const bool quorum = strcmp(q->type, "quorum") == 0;
    if (is_stream(q)) return refuse_stream(a->r, err);
    say(a, INFO, "is a %s queue%s", q->type[0] ? q->type : "classic",
        q->dead_letters ? ", and has a dead-letter exchange" : "");
    if (q->unacked >= 0) say(a, INFO, "has %" PRId64 " messages that are delivered and not acked", q->unacked);
    say_ttl(a);
    say_deliveries(a, quorum);
    say_losses(a);
    return ONCE_OK;
}

/* --- what AMQP tells ---------------------------------------------------------------------------------------------- */

static bool is_version_4(amqp_connection_state_t connection)
{
    const amqp_field_value_t *version = once__rabbitmq_header(amqp_get_server_properties(connection), "version");
    return version && version->kind == AMQP_FIELD_KIND_UTF8 && version->value.bytes.len > 1 &&
           memcmp(version->value.bytes.bytes, "4.", 2) == 0;
}

static int ask_amqp(const rabbitmq_source *r, int64_t ms, rabbitmq_counts *counts, bool *version_4, once_error *err)
{
    amqp_connection_state_t connection;
    const int rc = once__rabbitmq_connect(r, ms, &connection, counts, err);
    if (rc != ONCE_OK) return rc;
    *version_4 = is_version_4(connection);
    once__rabbitmq_disconnect(connection, true);
    return ONCE_OK;
}

/* Limits that are not known. */
static void say_not_told(const asking *a, const char *why)
{
    say_limit(a, ONCE_LIMIT_RETENTION, "message-ttl", 0, why);
    say_limit(a, ONCE_LIMIT_DELIVERIES, "delivery-limit", 0, why);
    say(a, WARNING, "may be a stream, or drop messages (expires, max-length, auto-delete): that was not asked either");
}

int once__rabbitmq_ask(once_source *source, const once_facts *facts, once_source_report *report, void *user,
                       once_error *err)
{
    (void)facts;
    rabbitmq_source *r = once__rabbitmq(source);
    asking a = {.r = r, .report = report, .user = user};
    rabbitmq_counts counts;
    bool version_4;
    assert(r->purpose == ONCE_OPEN_CHECK);
    (void)snprintf(a.of, sizeof a.of, "queue '%s'", r->queue);
    int rc = ask_amqp(r, ASK_MS, &counts, &version_4, err);
    if (rc != ONCE_OK) return rc;
    say(&a, INFO, "has %" PRIu32 " messages ready and %" PRIu32 " consumer%s; workers share it", counts.ready,
        counts.consumers, counts.consumers == 1 ? "" : "s");
    once_error why;
    a.queue.consumer_timeout_ms = -1;
    if (!r->address.management) say_not_told(&a, "'management' is not set");
    else if (once__rabbitmq_queue(r, ASK_MS, &a.queue, &why) != ONCE_OK) {
        a.queue.consumer_timeout_ms = -1;
        say_not_told(&a, why.text);
    } else {
        if (a.queue.delivery_limit < 0 && version_4 && strcmp(a.queue.type, "quorum") == 0)
            a.queue.delivery_limit = QUORUM_LIMIT;
        rc = say_queue(&a, err);
    }
    if (rc == ONCE_OK) say_hold(&a);
    return rc;
}

int once__rabbitmq_ask_hold(rabbitmq_source *r, once_error *err)
{
    rabbitmq_queue queue;
    once_error why;
    if (r->asked || !r->address.management) return ONCE_OK;
    const int rc = once__rabbitmq_queue(r, HOLD_MS, &queue, &why);
    r->asked = rc == ONCE_OK || once_status_class(rc) != ONCE_CLASS_RETRY;
    if (rc != ONCE_OK) {
        once_log(ONCE_LOG_WARN, "rabbitmq_not_told", "%s; a consumer-timeout of the queue is not known", why.text);
        return ONCE_OK;
    }
    if (is_stream(&queue)) return refuse_stream(r, err);
    const int64_t written_ms = r->rabbitmq->consumer_timeout_ms, queue_ms = queue.consumer_timeout_ms;
    pthread_mutex_lock(&r->lock);
    r->hold_ms = written_ms != ONCE_FOREVER && queue_ms > 0 && queue_ms < written_ms ? queue_ms : written_ms;
    pthread_mutex_unlock(&r->lock);
    return ONCE_OK;
}

/* Messages that are ready, and those that are delivered and not acked, where the management API tells them. */
int once__rabbitmq_backlog(once_source *source, const once_facts *facts, int64_t ms, once_source_left *visit,
                           void *user, once_error *err)
{
    (void)facts;
    rabbitmq_source *r = once__rabbitmq(source);
    rabbitmq_counts counts;
    bool version_4;
    char name[300];
    rabbitmq_queue queue = {.unacked = -1};
    const int rc = ask_amqp(r, ms, &counts, &version_4, err);
    if (rc != ONCE_OK) return rc;
    if (r->address.management && once__rabbitmq_queue(r, ms, &queue, NULL) != ONCE_OK) queue.unacked = -1;
    visit(user, r->queue, counts.ready);
    (void)snprintf(name, sizeof name, "%s (delivered, not acked)", r->queue);
    if (r->address.management) visit(user, name, queue.unacked);
    return ONCE_OK;
}
