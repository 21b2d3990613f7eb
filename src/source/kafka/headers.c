/* The headers of a record, and what the source knows of it, as the JSON object that templates read (core/message.h).
 *
 * A header whose name is not UTF-8 is left out; librdkafka cuts a name at a NUL. A value that is not UTF-8 is
 * {"base64":"..."}: it is kept, but has no value as text. If a name occurs several times, the last one counts, as with
 * Kafka's own lastHeader. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/base64.h"
#include "base/buf.h"
#include "source/kafka/kafka.h"

#include "base/banned.h"

#define HEADERS_MAX ((size_t)1 << 30) /* bytes of the JSON text: more than Kafka can send */

typedef struct header {
    const char *name;
    once_bytes value; /* data NULL: null */
    size_t index;
} header;

static int by_name(const void *a, const void *b)
{
    const header *x = a, *y = b;
    const int order = strcmp(x->name, y->name);
    if (order) return order;
    return x->index < y->index ? -1 : x->index > y->index;
}

static bool is_utf8(once_bytes text)
{
    for (size_t i = 0; i < text.len;) {
        const int len = once_utf8_sequence((const unsigned char *)text.data + i, text.len - i);
        if (len <= 0) return false;
        i += (size_t)len;
    }
    return true;
}

static void put_value(once_buf *out, once_bytes value)
{
    if (!value.data) {
        once_buf_puts(out, "null");
    } else if (is_utf8(value)) {
        once_buf_json(out, value);
    } else {
        once_buf_puts(out, "{\"base64\":\"");
        once_buf_base64(out, value);
        once_buf_puts(out, "\"}");
    }
}

static void put_facts(once_buf *out, const rd_kafka_message_t *m)
{
    rd_kafka_timestamp_type_t type;
    const int64_t sent_ms = rd_kafka_message_timestamp(m, &type);
    assert(m->partition >= 0 && m->offset >= 0);
    once_buf_puts(out, "\"" ONCE_SOURCE_MEMBER "\":{\"topic\":");
    once_buf_json(out, once_bytes_of(rd_kafka_topic_name(m->rkt)));
    once_buf_printf(out, ",\"partition\":%" PRId32 ",\"offset\":%" PRId64, m->partition, m->offset);
    if (type != RD_KAFKA_TIMESTAMP_NOT_AVAILABLE) once_buf_printf(out, ",\"timestamp\":%" PRId64, sent_ms);
    once_buf_puts(out, ",\"key\":");
    put_value(out, (once_bytes){m->key, m->key_len});
    if (m->key) {
        once_buf_puts(out, ",\"key_base64\":\"");
        once_buf_base64(out, (once_bytes){m->key, m->key_len});
        once_buf_puts(out, "\"");
    }
    once_buf_puts(out, "}");
}

/* The headers by name; NULL with *n > 0: out of memory. */
static header *sort_headers(rd_kafka_headers_t *headers, size_t *n)
{
    *n = headers ? rd_kafka_header_cnt(headers) : 0;
    header *list = *n ? calloc(*n, sizeof *list) : NULL;
    for (size_t i = 0; list && i < *n; i++) {
        const void *value;
        size_t size;
        list[i].index = i;
        const rd_kafka_resp_err_t error = rd_kafka_header_get_all(headers, i, &list[i].name, &value, &size);
        assert(!error);
        (void)error;
        list[i].value = (once_bytes){value, size};
    }
    if (list) qsort(list, *n, sizeof *list, by_name);
    return list;
}

bool once__kafka_headers(const rd_kafka_message_t *m, bool named, once_arena *arena, once_bytes *out)
{
    rd_kafka_headers_t *headers = NULL;
    size_t n;
    (void)rd_kafka_message_headers(m, &headers);
    *out = (once_bytes){0};
    if (!headers && !named) return true;
    header *list = sort_headers(headers, &n);
    if (n && !list) return false;
    once_buf text;
    once_buf_init(&text, HEADERS_MAX);
    once_buf_puts(&text, "{");
    for (size_t i = 0; i < n; i++) {
        if (i + 1 < n && strcmp(list[i].name, list[i + 1].name) == 0) continue; /* a later one counts */
        if (once_header_is_ours(once_bytes_of(list[i].name))) continue;
        if (!is_utf8(once_bytes_of(list[i].name))) continue; /* JSON has no such name */
        if (text.len > 1) once_buf_puts(&text, ",");
        once_buf_json(&text, once_bytes_of(list[i].name));
        once_buf_puts(&text, ":");
        put_value(&text, list[i].value);
    }
    if (named && text.len > 1) once_buf_puts(&text, ",");
    if (named) put_facts(&text, m);
    once_buf_puts(&text, "}");
    const bool ok = !text.failed && once_arena_copy(arena, once_buf_bytes(&text), out);
    once_buf_release(&text);
    free(list);
    return ok;
}
