/* Deletes messages, extends or ends their time, ten in a request and many requests at a time.
 *
 * A request answers for each of its ten: one that failed does not spoil the others. The id of an entry is its place in
 * the list of receipts. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "source/sqs/sqs.h"

#include "base/banned.h"

#define NS INT64_C(1000000) /* of a millisecond */

typedef struct batching {
    sqs_batcher *b;
    sqs_source *q;
    sqs_deed deed;
    once_receipt *list;
    size_t n;
    bool last[ONCE_SQS_RECEIPTS]; /* of an extension: the next one would not be a whole one */
    int status;                   /* the first failure */
    once_error *err;
} batching;

static void fail(batching *b, int status, const char *text)
{
    assert(status != ONCE_OK);
    if (b->status == ONCE_OK) b->status = once_fail(b->err, status, "%s", text);
}

static void set_gone(batching *b, once_receipt *r)
{
    r->answer = ONCE_RECEIPT_GONE;
    if (b->deed == SQS_DELETE) once__sqs_forget(&b->q->deliveries, r->delivery);
    else once__sqs_lost(&b->q->deliveries, r->delivery);
}

static void set_done(batching *b, once_receipt *r)
{
    r->answer = b->last[r - b->list] ? ONCE_RECEIPT_LAST : ONCE_RECEIPT_DONE;
    if (b->deed == SQS_DELETE) once__sqs_forget(&b->q->deliveries, r->delivery);
}

/* --- requests ----------------------------------------------------------------------------------------------------- */

/* SQS counts its twelve hours from the receive on, and refuses a time that would pass them. The minute is for the way
 * of the answer, and for clocks that run apart. */
static int64_t left_to_hold_ms(const sqs_source *q, int64_t received_ns)
{
    const int64_t left_ms = ONCE_SQS_HELD_MS - 60000 - (once__sqs_now_ns(q) - received_ns) / NS;
    return left_ms < 0 ? 0 : left_ms;
}

/* Not before the receives that were given up have ended at the server: they would get it, and nobody would hear. */
static int64_t return_after_ms(const sqs_source *q)
{
    const int64_t left_ns = q->unheard_ns - once__sqs_now_ns(q);
    return left_ns > 0 ? left_ns / NS + 999 : 0;
}

static void write_timeout(batching *b, size_t at, int64_t received_ns, once_buf *out)
{
    const int64_t full_ms = atomic_load(&b->q->visibility_ms), left_ms = left_to_hold_ms(b->q, received_ns);
    const int64_t wanted_ms = b->deed == SQS_RETURN ? return_after_ms(b->q) : full_ms;
    once_buf_printf(out, ",\"VisibilityTimeout\":%" PRId64, (left_ms < wanted_ms ? left_ms : wanted_ms) / 1000);
    b->last[at] = b->deed == SQS_EXTEND && left_ms < 2 * full_ms;
}

/* Writes the entries from *at on, up to ten, and returns how many. Those that are known to be gone are answered. */
static size_t write_entries(batching *b, size_t *at, once_buf *out)
{
    size_t n = 0;
    once_buf_puts(out, "{\"QueueUrl\":");
    once_buf_json(out, once_bytes_of(b->q->url));
    once_buf_puts(out, ",\"Entries\":[");
    for (; *at < b->n && n < ONCE_SQS_TEN; ++*at) {
        const size_t before = out->len;
        int64_t received_ns = 0;
        once_buf_printf(out, "%s{\"Id\":\"%zu\",\"ReceiptHandle\":", n ? "," : "", *at);
        if (!once__sqs_put_handle(&b->q->deliveries, b->list[*at].delivery, out, &received_ns)) {
            out->len = before;
            set_gone(b, &b->list[*at]);
            continue;
        }
        if (b->deed != SQS_DELETE) write_timeout(b, *at, received_ns, out);
        once_buf_puts(out, "}");
        n++;
    }
    once_buf_puts(out, "]}");
    return n;
}

static bool is_out(const sqs_batcher *b)
{
    for (size_t i = 0; i < ONCE_SQS_BATCHES; i++)
        if (b->calls[i].out) return true;
    return false;
}

/* --- answers ------------------------------------------------------------------------------------------------------ */

/* The receipt that an entry of an answer is about; NULL: none of ours. */
static once_receipt *receipt_of(const batching *b, const once_json *json, once_json_value entry, once_arena *arena)
{
    once_bytes id;
    size_t at = 0;
    if (!once__sqs_text(json, entry, "Id", arena, &id) || id.len == 0 || id.len > 3) return NULL;
    for (size_t i = 0; i < id.len; i++) {
        if (id.data[i] < '0' || id.data[i] > '9') return NULL;
        at = at * 10 + (size_t)(id.data[i] - '0');
    }
    return at < b->n ? &b->list[at] : NULL;
}

static void read_failed(batching *b, const once_json *json, once_json_value entry, once_arena *arena)
{
    once_receipt *r = receipt_of(b, json, entry, arena);
    once_bytes code = {0}, text = {0};
    char why[300];
    if (!r || r->answer != ONCE_RECEIPT_OPEN) return;
    (void)once__sqs_text(json, entry, "Code", arena, &code);
    (void)once__sqs_text(json, entry, "Message", arena, &text);
    const sqs_fault fault = once__sqs_fault_of(code, text);
    if (fault == SQS_GONE || fault == SQS_NO_QUEUE) {
        set_gone(b, r);
        return;
    }
    (void)snprintf(why, sizeof why, "SQS fails for a message of a batch: %.*s: %.*s",
                   (int)(code.len < 80 ? code.len : 80), code.len ? code.data : "",
                   (int)(text.len < 150 ? text.len : 150), text.len ? text.data : "");
    fail(b, once__sqs_status(fault), why);
}

static void read_answer(batching *b, once_bytes text)
{
    once_json json;
    once_arena arena = {0};
    once_json_init(&json);
    if (once_json_parse(&json, text, NULL, NULL) == ONCE_OK) {
        const once_json_value root = once_json_root(&json);
        once_json_iter it = once_json_each(&json, once_json_member(&json, root, ONCE_BYTES("Successful")));
        while (once_json_next(&it)) {
            once_receipt *r = receipt_of(b, &json, it.value, &arena);
            if (r && r->answer == ONCE_RECEIPT_OPEN) set_done(b, r);
        }
        it = once_json_each(&json, once_json_member(&json, root, ONCE_BYTES("Failed")));
        while (once_json_next(&it)) read_failed(b, &json, it.value, &arena);
    }
    once_json_release(&json);
    once_arena_release(&arena);
}

/* A request has ended. With the queue all messages are gone, which is said when the others have ended, too. */
static void read_end(batching *b, const sqs_call *call)
{
    if (call->fault == SQS_FINE) read_answer(b, once_buf_bytes(&call->answer));
    else if (call->fault != SQS_NO_QUEUE) fail(b, call->error.status, call->error.text);
}

/* With the queue its messages are gone. */
static void lose_all(batching *b)
{
    for (size_t i = 0; i < b->n; i++)
        if (b->list[i].answer == ONCE_RECEIPT_OPEN) set_gone(b, &b->list[i]);
}

/* --- all of them -------------------------------------------------------------------------------------------------- */

static void send_all(batching *b, int64_t ms)
{
    const char *action = b->deed == SQS_DELETE ? "DeleteMessageBatch" : "ChangeMessageVisibilityBatch";
    size_t at = 0;
    for (size_t i = 0; at < b->n; i++) {
        assert(i < ONCE_SQS_BATCHES);
        sqs_call *call = &b->b->calls[i];
        once__sqs_new(call, action);
        if (write_entries(b, &at, &call->body) == 0) break; /* the rest is gone */
        if (!once__sqs_send(&b->b->client, call, ms)) fail(b, call->error.status, call->error.text);
    }
}

int once__sqs_do(sqs_batcher *batcher, sqs_deed deed, once_receipt *list, size_t n, int64_t ms, once_error *err)
{
    assert(n <= ONCE_SQS_RECEIPTS && ms > 0 && !is_out(batcher));
    once_error ignored;
    batching b = {
        .b = batcher, .q = batcher->client.q, .deed = deed, .list = list, .n = n, .err = err ? err : &ignored};
    const int64_t until_ns = once__sqs_now_ns(b.q) + ms * NS;
    bool no_queue = false;
    if (!b.q->url) return once_fail(err, ONCE_E_UNAVAILABLE, "the queue is not known yet");
    send_all(&b, ms);
    while (is_out(batcher)) {
        once__sqs_turn(&batcher->client, 50);
        for (sqs_call *call; (call = once__sqs_ended(&batcher->client));) {
            read_end(&b, call);
            no_queue |= call->fault == SQS_NO_QUEUE;
        }
        if (once__sqs_now_ns(b.q) < until_ns || !is_out(batcher)) continue;
        for (size_t i = 0; i < ONCE_SQS_BATCHES; i++) once__sqs_cancel(&batcher->client, &batcher->calls[i]);
        batcher->client.broken_ns = once__sqs_curl_ns(b.q);
        fail(&b, ONCE_E_UNAVAILABLE, "SQS did not answer in time");
    }
    if (no_queue) lose_all(&b);
    for (size_t i = 0; i < n && b.status == ONCE_OK; i++)
        if (list[i].answer == ONCE_RECEIPT_OPEN)
            fail(&b, ONCE_E_UNAVAILABLE, "SQS did not answer for a message of a batch");
    return b.status;
}

void once__sqs_return_all(sqs_batcher *batcher, int64_t ms)
{
    sqs_source *q = batcher->client.q;
    const int64_t until_ns = once__sqs_now_ns(q) + ms * NS;
    uint64_t numbers[ONCE_SQS_RECEIPTS];
    once_receipt list[ONCE_SQS_RECEIPTS];
    uint32_t at = 0;
    for (size_t n; q->url && (n = once__sqs_list(&q->deliveries, &at, numbers, ONCE_SQS_RECEIPTS)) > 0;) {
        const int64_t left_ms = (until_ns - once__sqs_now_ns(q)) / NS;
        for (size_t i = 0; i < n; i++) list[i] = (once_receipt){.delivery = numbers[i]};
        if (left_ms <= 0 || once__sqs_do(batcher, SQS_RETURN, list, n, left_ms, NULL) != ONCE_OK) return;
    }
}
