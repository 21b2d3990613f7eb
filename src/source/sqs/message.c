/* Messages as SQS's JSON has them, and as items.
 *
 *   {"MessageId":"...","ReceiptHandle":"...","Body":"...","Attributes":{"SentTimestamp":"1700000000000",...},
 *    "MessageAttributes":{"NAME":{"DataType":"String","StringValue":"..."}}}
 *
 * Message attributes are the headers: the text of a String or a Number; {"base64":"..."} of a Binary. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "source/sqs/sqs.h"

#include "base/banned.h"

#define HEADERS_MAX ((size_t)64 << 20)
#define ATTRIBUTES_MAX 64 /* SQS allows 10 */

bool once__sqs_text(const once_json *json, once_json_value in, const char *name, once_arena *arena, once_bytes *out)
{
    return once_json_string(once_json_member(json, in, once_bytes_of(name)), arena, out);
}

int64_t once__sqs_number(once_json_value value, once_arena *arena)
{
    once_bytes text;
    int64_t number = 0;
    if (once_json_int64(value, &number)) return number < 0 ? -1 : number;
    if (!once_json_string(value, arena, &text) || text.len == 0 || text.len > 15) return -1;
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] < '0' || text.data[i] > '9') return -1;
        number = number * 10 + (text.data[i] - '0');
    }
    return number;
}

bool once__sqs_read_messages(const once_json *json, once_json_value *out, size_t *n)
{
    const once_json_value root = once_json_root(json);
    const once_json_value list = once_json_member(json, root, ONCE_BYTES("Messages"));
    *n = 0;
    if (root.type != ONCE_JSON_OBJECT) return false;
    if (list.type == ONCE_JSON_ABSENT || list.type == ONCE_JSON_NULL) return true;
    if (list.type != ONCE_JSON_ARRAY) return false;
    once_json_iter it = once_json_each(json, list);
    while (*n < ONCE_SQS_TEN && once_json_next(&it)) out[(*n)++] = it.value;
    return true;
}

/* --- headers ------------------------------------------------------------------------------------------------------ */

typedef struct attribute {
    once_bytes name;
    once_json_value value;
} attribute;

static int by_name(const void *a, const void *b)
{
    const attribute *x = a, *y = b;
    const size_t len = x->name.len < y->name.len ? x->name.len : y->name.len;
    const int order = len ? memcmp(x->name.data, y->name.data, len) : 0;
    return order ? order : x->name.len < y->name.len ? -1 : x->name.len > y->name.len;
}

static size_t list_attributes(const once_json *json, once_json_value message, once_arena *arena, attribute *out)
{
    size_t n = 0;
    once_json_iter it = once_json_each(json, once_json_member(json, message, ONCE_BYTES("MessageAttributes")));
    while (n < ATTRIBUTES_MAX && once_json_next(&it)) {
        if (it.value.type != ONCE_JSON_OBJECT || !once_json_string(it.key, arena, &out[n].name)) continue;
        if (once_header_is_ours(out[n].name)) continue;
        out[n++].value = it.value;
    }
    qsort(out, n, sizeof *out, by_name);
    return n;
}

static void put_attribute(const once_json *json, const attribute *a, once_arena *arena, once_buf *out)
{
    once_bytes text;
    once_buf_json(out, a->name);
    once_buf_puts(out, ":");
    if (once__sqs_text(json, a->value, "StringValue", arena, &text)) {
        once_buf_json(out, text);
    } else if (once__sqs_text(json, a->value, "BinaryValue", arena, &text)) {
        once_buf_puts(out, "{\"base64\":");
        once_buf_json(out, text);
        once_buf_puts(out, "}");
    } else {
        once_buf_puts(out, "null");
    }
}

/* SQS's names of its own attributes, and ours for ${source:NAME}. */
static const struct {
    const char *theirs, *ours;
} facts[] = {
    {"MessageGroupId", "group"},
    {"MessageDeduplicationId", "deduplication_id"},
    {"SequenceNumber", "sequence_number"},
    {"SenderId", "sender"},
    {"SentTimestamp", "sent"},
    {"AWSTraceHeader", "trace"},
    {"DeadLetterQueueSourceArn", "dead_letter_of"},
    {"ApproximateReceiveCount", "receive_count"},
};

static void put_facts(const once_json *json, once_json_value message, once_bytes id, once_arena *arena, once_buf *out)
{
    const once_json_value attributes = once_json_member(json, message, ONCE_BYTES("Attributes"));
    once_bytes text;
    once_buf_puts(out, "\"" ONCE_SOURCE_MEMBER "\":{\"message_id\":");
    once_buf_json(out, id);
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) {
        if (!once__sqs_text(json, attributes, facts[i].theirs, arena, &text)) continue;
        once_buf_printf(out, ",\"%s\":", facts[i].ours);
        once_buf_json(out, text);
    }
    once_buf_puts(out, "}");
}

static bool make_headers(const once_json *json, once_json_value message, once_bytes id, bool named, once_arena *arena,
                         once_bytes *out)
{
    attribute list[ATTRIBUTES_MAX];
    const size_t n = list_attributes(json, message, arena, list);
    *out = (once_bytes){0};
    if (n == 0 && !named) return true;
    once_buf text;
    once_buf_init(&text, HEADERS_MAX);
    once_buf_puts(&text, "{");
    for (size_t i = 0; i < n; i++) {
        if (i) once_buf_puts(&text, ",");
        put_attribute(json, &list[i], arena, &text);
    }
    if (named && n) once_buf_puts(&text, ",");
    if (named) put_facts(json, message, id, arena, &text);
    once_buf_puts(&text, "}");
    const bool ok = !text.failed && once_arena_copy(arena, once_buf_bytes(&text), out);
    once_buf_release(&text);
    return ok;
}

/* --- items -------------------------------------------------------------------------------------------------------- */

static int64_t sent_ms(const once_json *json, once_json_value message, once_arena *arena)
{
    const once_json_value attributes = once_json_member(json, message, ONCE_BYTES("Attributes"));
    once_bytes text;
    int64_t ms = 0;
    if (!once__sqs_text(json, attributes, "SentTimestamp", arena, &text) || text.len == 0) return ONCE_NO_TIME;
    for (size_t i = 0; i < text.len; i++)
        if (text.data[i] < '0' || text.data[i] > '9' || __builtin_mul_overflow(ms, 10, &ms) ||
            __builtin_add_overflow(ms, text.data[i] - '0', &ms))
            return ONCE_NO_TIME;
    return ms;
}

/* A text of the page as bytes of the batch: a page ends before its messages do. */
static bool copy_text(const once_json *json, once_json_value message, const char *name, once_arena *arena,
                      once_bytes *out)
{
    const once_json_value value = once_json_member(json, message, once_bytes_of(name));
    return once_json_string(value, arena, out) && (value.escaped || once_arena_copy(arena, *out, out));
}

/* The extended client libraries put a large body into S3, and send where it is. Without the body there is nothing that
 * could take effect. */
static bool is_in_s3(const once_json *json, once_json_value message, once_bytes body)
{
    static const char *const beginnings[] = {"[\"software.amazon.payloadoffloading.PayloadS3Pointer\"",
                                             "[\"com.amazon.sqs.javamessaging.MessageS3Pointer\""};
    static const char *const marks[] = {"ExtendedPayloadSize", "SQSLargePayloadSize"};
    const once_json_value attributes = once_json_member(json, message, ONCE_BYTES("MessageAttributes"));
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (once_json_member(json, attributes, once_bytes_of(marks[i])).type != ONCE_JSON_ABSENT) return true;
    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++) {
        const size_t len = strlen(beginnings[i]);
        if (body.len > len && memcmp(body.data, beginnings[i], len) == 0) return true;
    }
    return false;
}

bool once__sqs_make_item(const sqs_source *q, const once_json *json, once_json_value message, once_batch *batch,
                         once_item *out)
{
    const once_spec *spec = q->base.spec;
    once_message *to = &out->message;
    once_arena *arena = &batch->arena;
    if (!copy_text(json, message, "MessageId", arena, &to->at.point) ||
        !copy_text(json, message, "Body", arena, &to->body) ||
        !make_headers(json, message, to->at.point, spec->source.named, arena, &to->headers))
        return false;
    if (is_in_s3(json, message, to->body))
        to->fault =
            ONCE_BYTES("the body is in S3 (a pointer of the SQS extended client), and is not fetched from there; "
                       "send it in the message, or handle the pointer by another program");
    to->cut_from = to->body.len > spec->message_max ? to->body.len : 0;
    if (to->cut_from) to->body.len = spec->message_max;
    to->sent_ms = sent_ms(json, message, arena);
    out->batch = batch;
    out->stream = 0;
    return true;
}
