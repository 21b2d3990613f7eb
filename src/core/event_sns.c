/* Messages of Amazon SNS (core/event.h).
 *
 * SNS delivers to a queue in an envelope, a JSON object with Type, MessageId, TopicArn, Message, Timestamp and more, or
 * raw: the message itself. Which of the two is a setting of the subscription, so it is found out for each message. An
 * envelope is opened: the body becomes the text in Message, which is what raw delivery would have sent, and its message
 * attributes become headers. So a pipeline works with both. What is left of the envelope is in the headers:
 *
 *   "once:event": {"id": MessageId, "source": TopicArn, "time": Timestamp, "subject": Subject}
 *
 * A raw message has no id of SNS. Its coordinates take the place: `source` is the place and `id` the point.
 *
 * The signature of an envelope is not verified. Who may send to the queue is decided by its access policy; whoever may
 * can send anything, also without an envelope. */
#include "base/buf.h"
#include "base/no_memory.h"
#include "core/event_forms.h"

#include "base/banned.h"

#define HEADERS_MAX ((size_t)1 << 30) /* of a body that is itself limited */
/* Each header is searched for among them, so their number bounds the cost of a hostile message. SNS allows 10 where
 * delivery may be raw. */
#define ATTRIBUTES_MAX 256

const char *const once__sns_names[] = {"id", "source", "time", "subject", NULL};

/* --- reading ------------------------------------------------------------------------------------------------------ */

static once_json_value opened_member(const once_json *headers)
{
    return headers ? once_json_member(headers, once_json_root(headers), ONCE_BYTES(ONCE_EVENT_MEMBER))
                   : (once_json_value){0};
}

/* A text of our own as a value. */
static once_json_value text_value(once_bytes text)
{
    return text.len ? (once_json_value){.type = ONCE_JSON_STRING, .raw = text} : (once_json_value){0};
}

once_json_value once__sns_attribute(const once_parsed *from, once_bytes name)
{
    const once_json_value event = opened_member(from->headers);
    if (event.type == ONCE_JSON_OBJECT) return once_json_member(from->headers, event, name);
    if (!from->message || from->unstable) return (once_json_value){0};
    if (once_bytes_equal(name, ONCE_BYTES("id"))) return text_value(from->message->at.point);
    if (once_bytes_equal(name, ONCE_BYTES("source"))) return text_value(from->message->at.place);
    return (once_json_value){0};
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

/* The members of an envelope that count. */
typedef struct envelope {
    once_json_value id, topic, message, time, subject, attributes;
} envelope;

static once_json_value member(const once_json *json, const char *name)
{
    return once_json_member(json, once_json_root(json), once_bytes_of(name));
}

static bool is_text(once_json_value value) { return value.type == ONCE_JSON_STRING; }

/* Envelopes without an event: their types, and what an operator reads. Only a person may answer them. */
static const struct {
    const char *type, *reason;
} others[] = {
    {"SubscriptionConfirmation",
     "SNS asks to confirm a subscription (SubscriptionConfirmation), which is no event and which once never does: if "
     "you want the subscription, open the SubscribeURL in this letter; then discard the letter"},
    {"UnsubscribeConfirmation",
     "SNS says that a subscription has ended (UnsubscribeConfirmation), which is no event: to subscribe again, open "
     "the SubscribeURL in this letter; then discard the letter"},
};

static bool has_too_many(const once_json *json, once_json_value attributes)
{
    size_t n = 0;
    for (once_json_iter it = once_json_each(json, attributes); n <= ATTRIBUTES_MAX && once_json_next(&it);) n++;
    return n > ATTRIBUTES_MAX;
}

/* *found: it is an envelope. */
static int read_envelope(const once_json *json, envelope *out, bool *found, once_error *err)
{
    const once_json_value type = member(json, "Type");
    *out = (envelope){
        .id = member(json, "MessageId"),
        .topic = member(json, "TopicArn"),
        .message = member(json, "Message"),
        .time = member(json, "Timestamp"),
        .subject = member(json, "Subject"),
        .attributes = member(json, "MessageAttributes"),
    };
    *found = false;
    if (!is_text(type) || !is_text(out->id) || !is_text(out->topic)) return ONCE_OK;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (once_json_string_is(type, once_bytes_of(others[i].type)))
            return once_fail(err, ONCE_E_MESSAGE, "%s", others[i].reason);
    *found = once_json_string_is(type, ONCE_BYTES("Notification"));
    if (!*found) return ONCE_OK;
    if (!is_text(out->message))
        return once_fail(err, ONCE_E_MESSAGE, "an SNS notification whose 'Message' is missing, or not a text");
    if (out->id.raw.len == 0 || out->topic.raw.len == 0)
        return once_fail(err, ONCE_E_MESSAGE, "an SNS notification whose 'MessageId' or 'TopicArn' is empty");
    if (has_too_many(json, out->attributes))
        return once_fail(err, ONCE_E_MESSAGE, "an SNS notification with more than %d message attributes",
                         ATTRIBUTES_MAX);
    return ONCE_OK;
}

/* The value as it is written, escapes and all. */
static void put_value(once_buf *out, once_json_value value)
{
    if (is_text(value)) once_buf_puts(out, "\"");
    once_buf_append(out, value.raw.data, value.raw.len);
    if (is_text(value)) once_buf_puts(out, "\"");
}

static void put_text(once_buf *out, const char *name, once_json_value value)
{
    if (!is_text(value)) return;
    once_buf_puts(out, name);
    put_value(out, value);
}

static void put_name(once_buf *out, once_json_value name)
{
    once_buf_puts(out, ",");
    put_value(out, name);
    once_buf_puts(out, ":");
}

/* {"Type":"String","Value":"x"} is "x"; bytes are {"base64":"..."}, as other sources have them. */
static void put_attribute(once_buf *out, const once_json *json, once_json_value attribute)
{
    const once_json_value value = once_json_member(json, attribute, ONCE_BYTES("Value"));
    const bool bytes = once_json_string_is(once_json_member(json, attribute, ONCE_BYTES("Type")), ONCE_BYTES("Binary"));
    if (bytes) once_buf_puts(out, "{\"base64\":");
    if (is_text(value)) put_value(out, value);
    else once_buf_puts(out, "null");
    if (bytes) once_buf_puts(out, "}");
}

static bool put_attributes(once_buf *out, const once_json *json, once_json_value attributes, once_arena *arena)
{
    once_json_iter it = once_json_each(json, attributes);
    while (attributes.type == ONCE_JSON_OBJECT && once_json_next(&it)) {
        once_bytes name;
        if (!once_json_string(it.key, arena, &name)) return false;
        if (once_header_is_ours(name)) continue;
        put_name(out, it.key);
        put_attribute(out, json, it.value);
    }
    return true;
}

/* The headers that the message came with. An attribute of the same name counts instead. */
static bool put_headers(once_buf *out, const once_json *headers, const once_json *json, once_json_value attributes,
                        once_arena *arena)
{
    once_json_iter it = headers ? once_json_each(headers, once_json_root(headers)) : (once_json_iter){0};
    while (headers && once_json_next(&it)) {
        once_bytes name;
        if (!once_json_string(it.key, arena, &name)) return false;
        if (once_json_member(json, attributes, name).type != ONCE_JSON_ABSENT && !once_header_is_ours(name)) continue;
        if (once_bytes_equal(name, ONCE_BYTES(ONCE_EVENT_MEMBER))) continue;
        put_name(out, it.key);
        put_value(out, it.value);
    }
    return true;
}

static bool write_headers(const once_parsed *from, const envelope *e, once_arena *arena, once_bytes *out)
{
    once_buf text;
    once_buf_init(&text, HEADERS_MAX);
    once_buf_puts(&text, "{\"" ONCE_EVENT_MEMBER "\":{");
    put_text(&text, "\"id\":", e->id);
    put_text(&text, ",\"source\":", e->topic);
    put_text(&text, ",\"time\":", e->time);
    put_text(&text, ",\"subject\":", e->subject);
    once_buf_puts(&text, "}");
    bool ok = put_attributes(&text, from->body, e->attributes, arena) &&
              put_headers(&text, from->headers, from->body, e->attributes, arena);
    once_buf_puts(&text, "}");
    ok = ok && !text.failed && once_arena_copy(arena, once_buf_bytes(&text), out);
    once_buf_release(&text);
    return ok;
}

int once__sns_open(const once_parsed *from, once_arena *arena, once_message *message, bool *opened, once_error *err)
{
    envelope e;
    *opened = false;
    if (opened_member(from->headers).type == ONCE_JSON_OBJECT)
        return ONCE_OK; /* when it came; the store had it since */
    const int rc = read_envelope(from->body, &e, opened, err);
    if (rc != ONCE_OK || !*opened) return rc;
    once_bytes body, headers;
    if (!once_json_string(e.message, arena, &body) || !write_headers(from, &e, arena, &headers))
        return once_no_memory(err, "for a message");
    message->body = body;
    message->headers = headers;
    return ONCE_OK;
}
