/* Parts of the SQS source that need no server: which deliveries are ours, what errors mean, and messages as JSON. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef ONCE_WITH_SQS
#include "source/sqs/sqs.h"

/* --- deliveries --- */

static uint64_t receive(sqs_deliveries *d, const char *id, const char *group)
{
    char handle[40];
    (void)snprintf(handle, sizeof handle, "handle of %s", id);
    const uint64_t number =
        once__sqs_received(d, once_bytes_of(id), once_bytes_of(handle), once_bytes_of(group ? group : ""), 7);
    assert_true(number > 0);
    return number;
}

static bool has_handle(sqs_deliveries *d, uint64_t number, const char *id)
{
    once_buf out;
    int64_t received_ns = 0;
    char wanted[60];
    once_buf_init(&out, 1000);
    const bool ours = once__sqs_put_handle(d, number, &out, &received_ns);
    (void)snprintf(wanted, sizeof wanted, "\"handle of %s\"", id);
    if (ours) assert_true(received_ns == 7 && strcmp(out.data, wanted) == 0);
    assert_int_equal(once__sqs_is_ours(d, number), ours);
    once_buf_release(&out);
    return ours;
}

static void a_delivery_is_ours_until_it_is_forgotten(void **state)
{
    (void)state;
    sqs_deliveries d;
    once__sqs_deliveries_init(&d);
    const uint64_t a = receive(&d, "a", NULL), b = receive(&d, "b", NULL);
    assert_true(a < b);
    assert_true(has_handle(&d, a, "a") && has_handle(&d, b, "b"));
    once__sqs_forget(&d, a);
    assert_false(has_handle(&d, a, "a"));
    once__sqs_forget(&d, a);                   /* an ack may be repeated */
    const uint64_t c = receive(&d, "c", NULL); /* in the same slot, under another number */
    assert_true(c > b);
    assert_false(has_handle(&d, a, "a"));
    assert_true(has_handle(&d, b, "b") && has_handle(&d, c, "c"));
    assert_false(has_handle(&d, 0, ""));
    once__sqs_deliveries_release(&d);
}

static void what_is_received_again_is_gone_under_its_old_number(void **state)
{
    (void)state;
    sqs_deliveries d;
    once__sqs_deliveries_init(&d);
    const uint64_t first = receive(&d, "a", NULL), second = receive(&d, "a", NULL);
    assert_false(has_handle(&d, first, "a"));
    assert_true(has_handle(&d, second, "a"));
    once__sqs_forget(&d, first); /* does not touch the second one */
    assert_true(has_handle(&d, second, "a"));
    const uint64_t third = receive(&d, "a", NULL);
    assert_false(has_handle(&d, second, "a"));
    assert_true(has_handle(&d, third, "a"));
    once__sqs_deliveries_release(&d);
}

static void what_follows_a_lost_one_in_its_group_is_gone(void **state)
{
    (void)state;
    sqs_deliveries d;
    once__sqs_deliveries_init(&d);
    const uint64_t before = receive(&d, "1", "g"), lost = receive(&d, "2", "g"), other = receive(&d, "3", "h"),
                   behind = receive(&d, "4", "g"), none = receive(&d, "5", NULL);
    once__sqs_lost(&d, lost);
    assert_true(has_handle(&d, before, "1") && has_handle(&d, other, "3") && has_handle(&d, none, "5"));
    assert_false(has_handle(&d, lost, "2") || has_handle(&d, behind, "4"));
    once__sqs_lost(&d, none); /* of no group: nothing else */
    assert_true(has_handle(&d, before, "1") && has_handle(&d, other, "3"));
    const uint64_t again = receive(&d, "4", "g");
    assert_true(has_handle(&d, again, "4"));
    once__sqs_lost(&d, behind); /* it was gone before: what came since is not touched */
    assert_true(has_handle(&d, again, "4"));
    const uint64_t first = receive(&d, "1", "g"); /* again: what came behind it before must not overtake it */
    assert_true(has_handle(&d, first, "1") && has_handle(&d, other, "3"));
    assert_false(has_handle(&d, before, "1") || has_handle(&d, again, "4"));
    once__sqs_deliveries_release(&d);
}

static void all_that_are_ours_are_listed(void **state)
{
    (void)state;
    enum { N = 1000 };
    sqs_deliveries d;
    uint64_t numbers[N], found[N];
    size_t n = 0, got;
    uint32_t at = 0;
    char id[20];
    once__sqs_deliveries_init(&d);
    for (int i = 0; i < N; i++) {
        (void)snprintf(id, sizeof id, "%d", i % 900); /* the last hundred come again */
        numbers[i] = receive(&d, id, NULL);
        if (i % 3 == 1) once__sqs_forget(&d, numbers[i]);
    }
    while ((got = once__sqs_list(&d, &at, found + n, 7)) > 0) n += got;
    size_t ours = 0;
    for (int i = 0; i < N; i++) ours += once__sqs_is_ours(&d, numbers[i]);
    assert_int_equal(n, ours);
    for (size_t i = 0; i < n; i++) assert_true(once__sqs_is_ours(&d, found[i]));
    once__sqs_deliveries_release(&d);
}

/* --- errors --- */

static void errors_of_sqs_are_known(void **state)
{
    (void)state;
    static const struct {
        long http;
        const char *body;
        sqs_fault fault;
        int status;
        const char *says;
    } cases[] = {
        {200, "{}", SQS_FINE, ONCE_OK, NULL},
        {400, "{\"__type\":\"com.amazonaws.sqs#QueueDoesNotExist\",\"message\":\"No.\"}", SQS_NO_QUEUE, ONCE_E_MISSING,
         "Act: SQS answers 400 QueueDoesNotExist: No.; create the queue, or correct 'queue', 'region' or the account"},
        {400, "{\"__type\":\"AWS.SimpleQueueService.NonExistentQueue\"}", SQS_NO_QUEUE, ONCE_E_MISSING, NULL},
        {400, "{\"__type\":\"com.amazonaws.sqs#ReceiptHandleIsInvalid\"}", SQS_GONE, ONCE_E_DENIED, NULL},
        {400, "{\"__type\":\"InvalidParameterValue\",\"message\":\"Reason: The receipt handle has expired.\"}",
         SQS_GONE, ONCE_E_DENIED, NULL},
        {400, "{\"__type\":\"InvalidParameterValue\",\"Message\":\"something else\"}", SQS_REFUSED, ONCE_E_DENIED,
         "Act: SQS answers 400 InvalidParameterValue: something else; grant the right, or correct the pipeline file"},
        {400, "{\"__type\":\"com.amazon.coral.availability#ThrottlingException\"}", SQS_THROTTLED, ONCE_E_UNAVAILABLE,
         NULL},
        {400, "{\"__type\":\"com.amazonaws.sqs#OverLimit\"}", SQS_THROTTLED, ONCE_E_UNAVAILABLE, NULL},
        {503, "<html>", SQS_THROTTLED, ONCE_E_UNAVAILABLE, "Act: SQS answers 503"},
        {500, "", SQS_THROTTLED, ONCE_E_UNAVAILABLE, NULL},
        {429, "", SQS_THROTTLED, ONCE_E_UNAVAILABLE, NULL},
        {403, "{\"__type\":\"com.amazon.coral.service#ExpiredTokenException\"}", SQS_BAD_KEYS, ONCE_E_DENIED, NULL},
        {403, "{\"__type\":\"InvalidClientTokenId\"}", SQS_BAD_KEYS, ONCE_E_DENIED, NULL},
        {403, "{\"__type\":\"com.amazon.coral.service#InvalidSignatureException\"}", SQS_BAD_TIME, ONCE_E_DENIED, NULL},
        {403, "{\"__type\":\"com.amazon.coral.service#AccessDeniedException\",\"Message\":\"User is not allowed\"}",
         SQS_REFUSED, ONCE_E_DENIED, NULL},
        {404, "[1", SQS_REFUSED, ONCE_E_DENIED, NULL},
        {400, "{\"__type\":7}", SQS_REFUSED, ONCE_E_DENIED, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        once_error err = {0};
        assert_int_equal(once__sqs_read_fault(cases[i].http, once_bytes_of(cases[i].body), "Act", &err),
                         cases[i].fault);
        assert_int_equal(err.status, cases[i].status);
        if (cases[i].says) assert_string_equal(err.text, cases[i].says);
    }
}

/* --- messages --- */

static void make(const char *text, bool named, once_batch *batch, once_item *item)
{
    const once_spec spec = {.message_max = 40, .source = {.named = named}};
    const sqs_source q = {.base = {.spec = &spec}};
    once_json json;
    once_json_init(&json);
    assert_int_equal(once_json_parse(&json, once_bytes_of(text), NULL, NULL), ONCE_OK);
    *item = (once_item){0};
    assert_true(once__sqs_make_item(&q, &json, once_json_root(&json), batch, item));
    once_json_release(&json);
}

static void assert_text(once_bytes is, const char *text)
{
    assert_int_equal(is.len, strlen(text));
    assert_memory_equal(is.data, text, is.len);
}

static void a_message_has_its_attributes_as_headers(void **state)
{
    (void)state;
    once_batch batch = {0};
    once_item item;
    static const char *const text =
        "{\"MessageId\":\"i\",\"ReceiptHandle\":\"r\",\"Body\":\"{\\\"a\\\":1}\",\"Attributes\":{\"SentTimestamp\":"
        "\"1700000000123\",\"MessageGroupId\":\"g\",\"ApproximateReceiveCount\":\"2\"},\"MessageAttributes\":{"
        "\"z\":{\"DataType\":\"Number\",\"StringValue\":\"1.5\"},\"once:source\":{\"StringValue\":\"mine\"},"
        "\"b\":{\"DataType\":\"Binary\",\"BinaryValue\":\"AAEC\"},\"odd\":{}}}";
    make(text, false, &batch, &item);
    assert_text(item.message.body, "{\"a\":1}");
    assert_text(item.message.at.point, "i");
    assert_text(item.message.headers, "{\"b\":{\"base64\":\"AAEC\"},\"odd\":null,\"z\":\"1.5\"}");
    assert_true(item.message.sent_ms == INT64_C(1700000000123));
    assert_true(item.message.cut_from == 0 && item.message.fault.len == 0);
    make(text, true, &batch, &item);
    assert_text(item.message.headers, "{\"b\":{\"base64\":\"AAEC\"},\"odd\":null,\"z\":\"1.5\",\"once:source\":{"
                                      "\"message_id\":\"i\",\"group\":\"g\",\"sent\":\"1700000000123\","
                                      "\"receive_count\":\"2\"}}");
    make("{\"MessageId\":\"i\",\"Body\":\"plain\"}", false, &batch, &item);
    assert_true(item.message.headers.len == 0 && item.message.sent_ms == ONCE_NO_TIME);
    once_arena_release(&batch.arena);
}

static void what_is_too_long_is_cut_and_what_is_in_s3_is_told(void **state)
{
    (void)state;
    once_batch batch = {0};
    once_item item;
    make("{\"MessageId\":\"i\",\"Body\":\"0123456789012345678901234567890123456789x\"}", false, &batch, &item);
    assert_true(item.message.cut_from == 41 && item.message.body.len == 40 && item.message.fault.len == 0);
    make("{\"MessageId\":\"i\",\"Body\":\"[\\\"software.amazon.payloadoffloading.PayloadS3Pointer\\\",{}]\"}", false,
         &batch, &item);
    assert_true(item.message.fault.len > 0);
    make("{\"MessageId\":\"i\",\"Body\":\"x\",\"MessageAttributes\":{\"SQSLargePayloadSize\":{\"DataType\":\"Number\","
         "\"StringValue\":\"9\"}}}",
         false, &batch, &item);
    assert_true(item.message.fault.len > 0);
    once_arena_release(&batch.arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_delivery_is_ours_until_it_is_forgotten),
        cmocka_unit_test(what_is_received_again_is_gone_under_its_old_number),
        cmocka_unit_test(what_follows_a_lost_one_in_its_group_is_gone),
        cmocka_unit_test(all_that_are_ours_are_listed),
        cmocka_unit_test(errors_of_sqs_are_known),
        cmocka_unit_test(a_message_has_its_attributes_as_headers),
        cmocka_unit_test(what_is_too_long_is_cut_and_what_is_in_s3_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void)
{
    fprintf(stderr, "missing: libcurl\n");
    return 1;
}
#endif
