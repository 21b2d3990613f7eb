/* What a server says in place of SQS: messages, and errors. What is accepted can be used: headers are JSON, no text is
 * longer than it may be, and deliveries have numbers. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef ONCE_WITH_SQS
#include "source/sqs/sqs.h"

#define MESSAGE_MAX 100
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) abort();                                                                                     \
    } while (0)

static void check_item(const once_item *item)
{
    const once_message *m = &item->message;
    once_json headers;
    once_json_init(&headers);
    CHECK(m->body.len <= MESSAGE_MAX && (m->cut_from == 0 || m->cut_from > MESSAGE_MAX));
    CHECK(m->sent_ms == ONCE_NO_TIME || m->sent_ms >= 0);
    const once_json_options options = {.object = true};
    if (m->headers.len) CHECK(once_json_parse(&headers, m->headers, &options, NULL) == ONCE_OK);
    once_json_release(&headers);
}

static void read_messages(once_bytes text, bool named)
{
    const once_spec spec = {.message_max = MESSAGE_MAX, .source = {.named = named}};
    const sqs_source q = {.base = {.spec = &spec}};
    once_json_value list[ONCE_SQS_TEN];
    once_batch batch = {0};
    once_json json;
    size_t n = 0;
    once_json_init(&json);
    if (once_json_parse(&json, text, NULL, NULL) == ONCE_OK && once__sqs_read_messages(&json, list, &n)) {
        CHECK(n <= ONCE_SQS_TEN);
        for (size_t i = 0; i < n; i++) {
            once_item item = {0};
            if (once__sqs_make_item(&q, &json, list[i], &batch, &item)) check_item(&item);
        }
    }
    once_json_release(&json);
    once_arena_release(&batch.arena);
}

static void read_fault(once_bytes text, long http)
{
    once_error err = {0};
    const sqs_fault fault = once__sqs_read_fault(http, text, "ReceiveMessage", &err);
    CHECK((fault == SQS_FINE) == (http == 200));
    CHECK(err.status == once__sqs_status(fault) && strlen(err.text) < sizeof err.text);
}
#endif

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
#ifdef ONCE_WITH_SQS
    static const long statuses[] = {200, 400, 403, 429, 500, 503};
    if (size == 0) return 0;
    char *text = malloc(size);
    CHECK(text);
    memcpy(text, data + 1, size - 1);
    const once_bytes rest = {text, size - 1};
    if (data[0] % 8 < 2) read_messages(rest, data[0] % 2);
    else read_fault(rest, statuses[data[0] % 8 - 2]);
    free(text);
#else
    (void)data;
    (void)size;
#endif
    return 0;
}
