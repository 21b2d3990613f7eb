/* Parts of the SQS source that need no server: which deliveries are ours, what errors mean, and messages as JSON. */
#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

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

/* --- the server --- */

static void region_and_server_follow_from_the_queue(void **state)
{
    (void)state;
    static const struct {
        const char *queue, *region, *server;
    } cases[] = {
        {"https://sqs.eu-central-1.amazonaws.com/1/q", "eu-central-1", "https://sqs.eu-central-1.amazonaws.com/"},
        {"https://eu-west-1.queue.amazonaws.com/1/q", "eu-west-1", "https://eu-west-1.queue.amazonaws.com/"},
        {"https://sqs-fips.us-east-1.amazonaws.com/1/q", "us-east-1", "https://sqs-fips.us-east-1.amazonaws.com/"},
        {"https://sqs.eu-west-1.api.aws/1/q", "eu-west-1", "https://sqs.eu-west-1.api.aws/"},
        {"https://vpce-1-2.sqs.eu-west-2.vpce.amazonaws.com/1/q", "eu-west-2",
         "https://vpce-1-2.sqs.eu-west-2.vpce.amazonaws.com/"},
        {"http://localhost:9324/1/q", "sa-east-1", "http://localhost:9324/"}, /* the region of the environment */
        {"q", "sa-east-1", "https://sqs.sa-east-1.amazonaws.com/"},
    };
    assert_int_equal(setenv("AWS_REGION", "sa-east-1", 1), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const once_spec spec = {.file = ONCE_BYTES("p.yaml")};
        const once_sqs_spec own = {.queue = once_bytes_of(cases[i].queue)};
        sqs_source q = {.base = {.spec = &spec}, .sqs = &own};
        const once_aws_options options = {.region = {0}};
        once_error err;
        assert_int_equal(once_aws_credentials_open(&options, once_env_real(), &q.credentials, &err), ONCE_OK);
        assert_int_equal(once__sqs_find_server(&q, &err), ONCE_OK);
        assert_string_equal(q.region, cases[i].region);
        assert_string_equal(q.server, cases[i].server);
        once_aws_credentials_close(q.credentials);
        free(q.region);
        free(q.server);
    }
}

static void an_endpoint_of_the_environment_must_be_a_url(void **state)
{
    (void)state;
    static const char *const bad[] = {"localhost:4566", "http://", "ftp://x", "http://u:hunter2@x", "http://x?a"};
    const once_spec spec = {.file = ONCE_BYTES("p.yaml"), .source.line = 4};
    const once_sqs_spec own = {.queue = ONCE_BYTES("q"), .region = ONCE_BYTES("r")};
    once_error err;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        sqs_source q = {.base = {.spec = &spec}, .sqs = &own};
        const once_aws_options options = {.region = {0}};
        assert_int_equal(setenv("AWS_ENDPOINT_URL_SQS", bad[i], 1), 0);
        assert_int_equal(once_aws_credentials_open(&options, once_env_real(), &q.credentials, &err), ONCE_OK);
        assert_int_equal(once__sqs_find_server(&q, &err), ONCE_E_CONFIG);
        assert_true(strstr(err.text, "p.yaml:4: 'sqs': the variable AWS_ENDPOINT_URL_SQS") == err.text);
        assert_null(strstr(err.text, "hunter2"));
        once_aws_credentials_close(q.credentials);
        free(q.region);
    }
    assert_int_equal(unsetenv("AWS_ENDPOINT_URL_SQS"), 0);
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

/* --- a server that does not answer --- */

typedef struct mute {
    int fd;
    char address[40];
    once_sqs_spec sqs;
    once_spec spec;
} mute;

/* It refuses connections until listen() is called; then it takes them, and says nothing. */
static void make_mute(mute *m)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    m->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(m->fd >= 0 && bind(m->fd, (struct sockaddr *)&at, len) == 0);
    assert_int_equal(getsockname(m->fd, (struct sockaddr *)&at, &len), 0);
    (void)snprintf(m->address, sizeof m->address, "http://127.0.0.1:%u/", (unsigned)ntohs(at.sin_port));
    m->sqs = (once_sqs_spec){.queue = ONCE_BYTES("q"),
                             .name = ONCE_BYTES("q"),
                             .region = ONCE_BYTES("r"),
                             .endpoint = once_bytes_of(m->address)};
    m->spec = (once_spec){.file = ONCE_BYTES("file"),
                          .message_max = 100,
                          .batch_max = 1,
                          .source = {.kind = &once__source_sqs, .own = &m->sqs}};
    (void)setenv("AWS_ACCESS_KEY_ID", "id", 1);
    (void)setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
}

static bool is_asked(void *user)
{
    ++*(unsigned *)user;
    return true;
}

static void assert_open_is_cancelled(const mute *m)
{
    unsigned asked = 0;
    once_source *source;
    once_error err;
    const int rc =
        once__sqs_ops.open(&m->spec, once_env_real(), ONCE_OPEN_RUN, (once_cancel){is_asked, &asked}, &source, &err);
    assert_true(rc != ONCE_OK && asked > 0);
    assert_int_equal(once_status_class(rc), ONCE_CLASS_RETRY);
    assert_null(strstr(err.text, "no answer"));
}

/* Otherwise it would wait for the answer: a request has a time limit, and then it would go on without it. */
static void a_stop_ends_an_open_that_waits_for_an_answer(void **state)
{
    mute m;
    (void)state;
    make_mute(&m);
    assert_int_equal(listen(m.fd, 5), 0);
    assert_open_is_cancelled(&m);
    (void)unsetenv("AWS_ACCESS_KEY_ID");
    (void)setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", m.address, 1);
    assert_open_is_cancelled(&m);
    (void)unsetenv("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    close(m.fd);
}

static void a_stop_ends_a_fetch_that_looks_for_the_queue(void **state)
{
    mute m;
    once_batch batch = {0};
    once_fetch fetch = {.max = 1, .batch = &batch};
    once_source *source;
    once_error err;
    (void)state;
    make_mute(&m);
    const int rc = once__sqs_ops.open(&m.spec, once_env_real(), ONCE_OPEN_RUN, (once_cancel){0}, &source, &err);
    assert_int_equal(rc, ONCE_OK); /* it is away, and may come back */
    assert_int_equal(listen(m.fd, 5), 0);
    source->ops->wake(source);
    assert_int_equal(source->ops->fetch(source, &fetch, &err), ONCE_OK);
    assert_int_equal(batch.n, 0);
    source->ops->close(source);
    once_arena_release(&batch.arena);
    close(m.fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_delivery_is_ours_until_it_is_forgotten),
        cmocka_unit_test(what_is_received_again_is_gone_under_its_old_number),
        cmocka_unit_test(what_follows_a_lost_one_in_its_group_is_gone),
        cmocka_unit_test(all_that_are_ours_are_listed),
        cmocka_unit_test(errors_of_sqs_are_known),
        cmocka_unit_test(region_and_server_follow_from_the_queue),
        cmocka_unit_test(an_endpoint_of_the_environment_must_be_a_url),
        cmocka_unit_test(a_message_has_its_attributes_as_headers),
        cmocka_unit_test(what_is_too_long_is_cut_and_what_is_in_s3_is_told),
        cmocka_unit_test(a_stop_ends_an_open_that_waits_for_an_answer),
        cmocka_unit_test(a_stop_ends_a_fetch_that_looks_for_the_queue),
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
