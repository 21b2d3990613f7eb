/* The headers of a message, and what the source knows of it, as the JSON object that templates read (core/message.h).
 *
 * Numbers, booleans, tables and arrays of AMQP are those of JSON. A text that is not UTF-8 is {"base64":"..."}: it is
 * kept, but has no value as text. A timestamp is its number of seconds. A header whose name is not UTF-8 is left out,
 * and so is x-delivery-count, which is not the same at each delivery. If a name occurs several times, the last one
 * counts. What is nested more deeply than DEPTH_MAX is null. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base64.h"
#include "base/json.h"
#include "source/rabbitmq/rabbitmq.h"

#include "base/banned.h"

#define DEPTH_MAX 16
#define COUNT_HEADER "x-delivery-count"

static once_bytes of(amqp_bytes_t text) { return (once_bytes){text.bytes ? text.bytes : "", text.len}; }

static bool is_utf8(once_bytes text)
{
    for (size_t i = 0; i < text.len;) {
        const int len = once_utf8_sequence((const unsigned char *)text.data + i, text.len - i);
        if (len <= 0) return false;
        i += (size_t)len;
    }
    return true;
}

static void put_text(once_buf *out, once_bytes text)
{
    if (is_utf8(text)) {
        once_buf_json(out, text);
        return;
    }
    once_buf_puts(out, "{\"base64\":\"");
    once_buf_base64(out, text);
    once_buf_puts(out, "\"}");
}

/* The shortest text that is this number again. JSON has no infinity. */
static void put_real(once_buf *out, double value, int digits)
{
    char text[40];
    if (!isfinite(value)) {
        once_buf_puts(out, "null");
        return;
    }
    (void)snprintf(text, sizeof text, "%.*g", digits, value);
    const size_t before = strspn(text, "0123456789-"), after = before + strcspn(text + before, "0123456789e");
    once_buf_append(out, text, before);
    if (after > before) once_buf_puts(out, "."); /* whatever the locale of the host program writes */
    once_buf_puts(out, text + after);
}

/* As text, because its scale is part of it. AMQP's number is signed, librabbitmq's is not. */
static void put_decimal(once_buf *out, amqp_decimal_t value)
{
    char digits[300] = "";
    const size_t scale = value.decimals;
    const int64_t number = (int32_t)value.value;
    (void)snprintf(digits, sizeof digits, "%0*" PRId64, (int)scale + 1, number < 0 ? -number : number);
    const size_t whole = strlen(digits) - scale;
    once_buf_printf(out, "\"%s%.*s%s%s\"", number < 0 ? "-" : "", (int)whole, digits, scale ? "." : "", digits + whole);
}

static bool put_table(once_buf *out, const amqp_table_t *table, bool own, int depth);

static bool put_array(once_buf *out, const amqp_array_t *array, int depth);

/* False: out of memory. */
static bool put_value(once_buf *out, const amqp_field_value_t *v, int depth)
{
    switch ((amqp_field_value_kind_t)v->kind) {
    case AMQP_FIELD_KIND_BOOLEAN: once_buf_puts(out, v->value.boolean ? "true" : "false"); break;
    case AMQP_FIELD_KIND_I8: once_buf_printf(out, "%d", v->value.i8); break;
    case AMQP_FIELD_KIND_U8: once_buf_printf(out, "%d", v->value.u8); break;
    case AMQP_FIELD_KIND_I16: once_buf_printf(out, "%d", v->value.i16); break;
    case AMQP_FIELD_KIND_U16: once_buf_printf(out, "%d", v->value.u16); break;
    case AMQP_FIELD_KIND_I32: once_buf_printf(out, "%" PRId32, v->value.i32); break;
    case AMQP_FIELD_KIND_U32: once_buf_printf(out, "%" PRIu32, v->value.u32); break;
    case AMQP_FIELD_KIND_I64: once_buf_printf(out, "%" PRId64, v->value.i64); break;
    case AMQP_FIELD_KIND_U64:
    case AMQP_FIELD_KIND_TIMESTAMP: once_buf_printf(out, "%" PRIu64, v->value.u64); break;
    case AMQP_FIELD_KIND_F32: put_real(out, (double)v->value.f32, 9); break;
    case AMQP_FIELD_KIND_F64: put_real(out, v->value.f64, 17); break;
    case AMQP_FIELD_KIND_DECIMAL: put_decimal(out, v->value.decimal); break;
    case AMQP_FIELD_KIND_UTF8:
    case AMQP_FIELD_KIND_BYTES: put_text(out, of(v->value.bytes)); break;
    case AMQP_FIELD_KIND_ARRAY: return put_array(out, &v->value.array, depth);
    case AMQP_FIELD_KIND_TABLE:
        if (depth < DEPTH_MAX) return put_table(out, &v->value.table, false, depth + 1);
        once_buf_puts(out, "null");
        break;
    case AMQP_FIELD_KIND_VOID:
    default: once_buf_puts(out, "null"); break;
    }
    return true;
}

static bool put_array(once_buf *out, const amqp_array_t *array, int depth)
{
    if (depth >= DEPTH_MAX) return once_buf_puts(out, "null");
    once_buf_puts(out, "[");
    for (int i = 0; i < array->num_entries; i++) {
        if (i) once_buf_puts(out, ",");
        if (!put_value(out, &array->entries[i], depth + 1)) return false;
    }
    once_buf_puts(out, "]");
    return true;
}

/* By name; of one name in the order of the table. */
static int by_name(const void *a, const void *b)
{
    const amqp_table_entry_t *x = *(const amqp_table_entry_t *const *)a, *y = *(const amqp_table_entry_t *const *)b;
    const size_t len = x->key.len < y->key.len ? x->key.len : y->key.len;
    const int order = len ? memcmp(x->key.bytes, y->key.bytes, len) : 0;
    if (order) return order;
    if (x->key.len != y->key.len) return x->key.len < y->key.len ? -1 : 1;
    return x < y ? -1 : x > y;
}

static bool is_named(const amqp_table_entry_t *entry, const char *name)
{
    return entry->key.len == strlen(name) && memcmp(entry->key.bytes, name, entry->key.len) == 0;
}

/* `own`: the headers of the message, of which some are not given on, and the object is left open. False: out of memory.
 */
static bool put_table(once_buf *out, const amqp_table_t *table, bool own, int depth)
{
    const size_t n = table->num_entries > 0 ? (size_t)table->num_entries : 0;
    const amqp_table_entry_t **list = n ? malloc(n * sizeof *list) : NULL;
    if (n && !list) return false;
    for (size_t i = 0; i < n; i++) list[i] = &table->entries[i];
    if (n) qsort(list, n, sizeof *list, by_name);
    bool ok = once_buf_puts(out, "{");
    const size_t begin = out->len;
    for (size_t i = 0; i < n && ok; i++) {
        const once_bytes name = of(list[i]->key);
        if (i + 1 < n && once_bytes_equal(name, of(list[i + 1]->key))) continue; /* a later one counts */
        if (own && (once_header_is_ours(name) || is_named(list[i], COUNT_HEADER))) continue;
        if (!is_utf8(name)) continue; /* JSON has no such name */
        if (out->len > begin) once_buf_puts(out, ",");
        once_buf_json(out, name);
        once_buf_puts(out, ":");
        ok = put_value(out, &list[i]->value, depth);
    }
    free(list);
    if (!own) once_buf_puts(out, "}");
    return ok && !out->failed;
}

/* --- what the source knows ---------------------------------------------------------------------------------------- */

static void put_fact(once_buf *out, const char *name, amqp_bytes_t value)
{
    once_buf_printf(out, ",\"%s\":", name);
    put_text(out, of(value));
}

/* -1: the broker does not count. */
static int64_t delivery_count(const amqp_basic_properties_t *p)
{
    const amqp_field_value_t *v =
        p->_flags & AMQP_BASIC_HEADERS_FLAG ? once__rabbitmq_header(&p->headers, COUNT_HEADER) : NULL;
    if (v && v->kind == AMQP_FIELD_KIND_I64) return v->value.i64;
    if (v && v->kind == AMQP_FIELD_KIND_I32) return v->value.i32;
    return -1;
}

static void put_facts(once_buf *out, const char *queue, const amqp_basic_deliver_t *d, const amqp_basic_properties_t *p)
{
    once_buf_puts(out, "\"" ONCE_SOURCE_MEMBER "\":{\"queue\":");
    once_buf_json(out, once_bytes_of(queue));
    put_fact(out, "exchange", d->exchange);
    put_fact(out, "routing_key", d->routing_key);
    if (p->_flags & AMQP_BASIC_MESSAGE_ID_FLAG) put_fact(out, "message_id", p->message_id);
    if (p->_flags & AMQP_BASIC_CORRELATION_ID_FLAG) put_fact(out, "correlation_id", p->correlation_id);
    if (p->_flags & AMQP_BASIC_TYPE_FLAG) put_fact(out, "type", p->type);
    if (p->_flags & AMQP_BASIC_APP_ID_FLAG) put_fact(out, "app_id", p->app_id);
    if (p->_flags & AMQP_BASIC_USER_ID_FLAG) put_fact(out, "user_id", p->user_id);
    if (p->_flags & AMQP_BASIC_REPLY_TO_FLAG) put_fact(out, "reply_to", p->reply_to);
    if (p->_flags & AMQP_BASIC_CONTENT_TYPE_FLAG) put_fact(out, "content_type", p->content_type);
    if (p->_flags & AMQP_BASIC_CONTENT_ENCODING_FLAG) put_fact(out, "content_encoding", p->content_encoding);
    if (p->_flags & AMQP_BASIC_EXPIRATION_FLAG) put_fact(out, "expiration", p->expiration);
    if (p->_flags & AMQP_BASIC_TIMESTAMP_FLAG) once_buf_printf(out, ",\"timestamp\":%" PRIu64, p->timestamp);
    if (p->_flags & AMQP_BASIC_PRIORITY_FLAG) once_buf_printf(out, ",\"priority\":%d", p->priority);
    if (p->_flags & AMQP_BASIC_DELIVERY_MODE_FLAG) once_buf_printf(out, ",\"delivery_mode\":%d", p->delivery_mode);
    once_buf_printf(out, ",\"redelivered\":%s", d->redelivered ? "true" : "false");
    const int64_t count = delivery_count(p);
    if (count >= 0) once_buf_printf(out, ",\"delivery_count\":%" PRId64, count);
    once_buf_puts(out, "}");
}

const amqp_field_value_t *once__rabbitmq_header(const amqp_table_t *table, const char *name)
{
    const amqp_field_value_t *found = NULL;
    for (int i = 0; i < table->num_entries; i++)
        if (is_named(&table->entries[i], name)) found = &table->entries[i].value;
    return found;
}

bool once__rabbitmq_headers(rabbitmq_source *r, const amqp_basic_deliver_t *deliver,
                            const amqp_basic_properties_t *properties)
{
    static const amqp_table_t none = {0};
    const bool named = r->base.spec->source.named;
    const bool has_table = (properties->_flags & AMQP_BASIC_HEADERS_FLAG) && properties->headers.num_entries > 0;
    once_buf *out = &r->text;
    once_buf_clear(out);
    if (!has_table && !named) return true;
    if (!put_table(out, has_table ? &properties->headers : &none, true, 0)) return false;
    if (out->len == 1 && !named) { /* nothing of it is given on */
        once_buf_clear(out);
        return true;
    }
    if (named && out->len > 1) once_buf_puts(out, ",");
    if (named) put_facts(out, r->queue, deliver, properties);
    once_buf_puts(out, "}");
    return !out->failed;
}
