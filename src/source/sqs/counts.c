/* How many messages the queue has: for `once status`, and for the live line of `once run`.
 *
 * A run asks only as long as somebody looks at its lag, and every few seconds: each request costs. It is one more
 * request beside the polls, and nobody waits for its answer. */
#include <inttypes.h>
#include <stdio.h>

#include "source/sqs/sqs.h"

#include "base/banned.h"

#define NS INT64_C(1000000) /* of a millisecond */
#define LOOKED_MS 10000     /* who has not looked for so long has gone */
#define AGAIN_MS 5000
#define REFUSED_MS 300000 /* a right that is missing is not given soon */

static const struct {
    const char *attribute, *of_status, *of_run;
} counts[ONCE_SQS_COUNTS] = {{"ApproximateNumberOfMessages", "", "ready"},
                             {"ApproximateNumberOfMessagesNotVisible", " (in flight)", "in flight"},
                             {"ApproximateNumberOfMessagesDelayed", " (delayed)", "delayed"}};

static void write_request(const sqs_source *q, sqs_call *call)
{
    once__sqs_new(call, "GetQueueAttributes");
    once_buf_puts(&call->body, "{\"QueueUrl\":");
    once_buf_json(&call->body, once_bytes_of(q->url));
    once_buf_puts(&call->body, ",\"AttributeNames\":[");
    for (size_t i = 0; i < ONCE_SQS_COUNTS; i++)
        once_buf_printf(&call->body, "%s\"%s\"", i ? "," : "", counts[i].attribute);
    once_buf_puts(&call->body, "]}");
}

/* -1 for what the answer does not tell. */
static void read_answer(const sqs_call *call, int64_t out[ONCE_SQS_COUNTS])
{
    once_json json;
    once_arena arena = {0};
    once_json_init(&json);
    const bool good = once_json_parse(&json, once_buf_bytes(&call->answer), NULL, NULL) == ONCE_OK;
    for (size_t i = 0; i < ONCE_SQS_COUNTS; i++) {
        out[i] = -1;
        if (!good) continue;
        const once_json_value all = once_json_member(&json, once_json_root(&json), ONCE_BYTES("Attributes"));
        out[i] = once__sqs_number(once_json_member(&json, all, once_bytes_of(counts[i].attribute)), &arena);
    }
    once_json_release(&json);
    once_arena_release(&arena);
}

/* --- for `once status` -------------------------------------------------------------------------------------------- */

int once__sqs_backlog(once_source *source, const once_facts *facts, int64_t ms, once_source_left *visit, void *user,
                      once_error *err)
{
    (void)facts;
    sqs_source *q = once__sqs(source);
    sqs_call *call = &q->aside->calls[0];
    int64_t now[ONCE_SQS_COUNTS];
    int rc = once__sqs_find_url(q, ms, err);
    if (rc != ONCE_OK) return rc;
    write_request(q, call);
    rc = once__sqs_ask(&q->aside->client, call, ms, err);
    if (rc != ONCE_OK) return rc;
    read_answer(call, now);
    for (size_t i = 0; i < ONCE_SQS_COUNTS; i++) {
        char name[200];
        (void)snprintf(name, sizeof name, "%.*s%s", (int)q->sqs->name.len, q->sqs->name.data, counts[i].of_status);
        visit(user, name, now[i]);
    }
    return ONCE_OK;
}

/* --- for a run ---------------------------------------------------------------------------------------------------- */

static void set_counts(sqs_counting *c, const int64_t now[ONCE_SQS_COUNTS])
{
    for (size_t i = 0; i < ONCE_SQS_COUNTS; i++) atomic_store(&c->n[i], now ? now[i] : -1);
}

void once__sqs_counting_init(sqs_counting *c) { set_counts(c, NULL); }

void once__sqs_count(sqs_source *q)
{
    sqs_counting *c = &q->counting;
    const int64_t now_ns = once__sqs_now_ns(q), looked_ns = atomic_load(&c->looked_ns);
    if (c->call.out) return;
    if (!looked_ns || now_ns - looked_ns > LOOKED_MS * NS) {
        set_counts(c, NULL); /* the next one who looks must not see them */
        return;
    }
    if (now_ns < c->again_ns) return;
    c->again_ns = now_ns + AGAIN_MS * NS;
    write_request(q, &c->call);
    if (!once__sqs_send(&q->polls, &c->call, ONCE_SQS_CALL_MS)) set_counts(c, NULL);
}

void once__sqs_counted(sqs_source *q)
{
    sqs_counting *c = &q->counting;
    int64_t now[ONCE_SQS_COUNTS];
    if (c->call.fault == SQS_REFUSED) c->again_ns = once__sqs_now_ns(q) + REFUSED_MS * NS;
    if (c->call.fault == SQS_FINE) read_answer(&c->call, now);
    set_counts(c, c->call.fault == SQS_FINE ? now : NULL);
}

int64_t once__sqs_lag(once_source *source, uint32_t stream)
{
    sqs_source *q = once__sqs(source);
    int64_t sum = 0;
    (void)stream;
    atomic_store(&q->counting.looked_ns, once__sqs_now_ns(q));
    for (size_t i = 0; i < ONCE_SQS_COUNTS; i++) {
        const int64_t n = atomic_load(&q->counting.n[i]);
        if (n < 0) return -1;
        sum += n;
    }
    return sum;
}

void once__sqs_lag_parts(once_source *source, uint32_t stream, char out[ONCE_LAG_PARTS])
{
    sqs_source *q = once__sqs(source);
    size_t len = 0;
    (void)stream;
    *out = '\0';
    for (size_t i = 0; i < ONCE_SQS_COUNTS; i++) {
        const int64_t n = atomic_load(&q->counting.n[i]);
        if (n >= 0 && len < ONCE_LAG_PARTS)
            len += (size_t)snprintf(out + len, ONCE_LAG_PARTS - len, "%s%" PRId64 " %s", len ? ", " : "", n,
                                    counts[i].of_run);
    }
}
