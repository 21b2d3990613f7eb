/* Envelopes of Amazon: what `preset: sns` and `preset: eventbridge` make of a message. */
#include "intake_fixture.h"

#include "base/buf.h"
#include "core/event.h"
#include "runtime/runtime.h"

#define HEAD "consumer: c\nstore: memory\nsource: {file: {path: x}%s}\npreset: %s\n" /* 4 */
#define HANDLER "handler: {callback: f}\n"

static int load(const char *preset, const char *of_source, const char *rest, once_error *err)
{
    char text[1000];
    (void)snprintf(text, sizeof text, HEAD "%s", of_source, preset, rest);
    return parse_pipeline(text, err);
}

static void open_with(const char *preset, const char *of_source, const char *rest)
{
    once_error err = {0};
    open_intake(load(preset, of_source, rest, &err), &err);
}

static once_item take_in_bytes(once_bytes body, const char *headers)
{
    return take_in_message((once_message){
        .body = body, .headers = once_bytes_of(headers), .at = {ONCE_BYTES("queue"), ONCE_BYTES("m-1")}, .sent_ms = 5});
}

static once_item take_in(const char *body, const char *headers) { return take_in_bytes(once_bytes_of(body), headers); }

/* A notification with this Message, given as a JSON string, and these other members. */
#define NOTIFICATION(message, more)                                                                                    \
    "{\"Type\":\"Notification\",\"MessageId\":\"s-1\",\"TopicArn\":\"arn:aws:sns:eu-west-1:123:orders\","              \
    "\"Timestamp\":\"1970-01-01T00:00:01.500Z\",\"Message\":" message more "}"
#define KEY "arn:aws:sns:eu-west-1:123:orders#s-1"

/* --- SNS --- */

static void an_envelope_is_opened(void **state)
{
    (void)state;
    open_with("sns", "", "type: \"${/type}\"\nhandlers: {t: {callback: f}}\n");
    const once_item item = take_in(NOTIFICATION("\"{\\\"type\\\":\\\"t\\\",\\\"n\\\":1}\"", ""), "");
    assert_int_equal(item.reason.len, 0);
    assert_text(item.request.key, KEY);
    assert_text(item.message.body, "{\"type\":\"t\",\"n\":1}");
    assert_text(item.message.type, "t");
    assert_int_equal(item.message.sent_ms, 1500);
    assert_text(item.message.headers, "{\"once:event\":{\"id\":\"s-1\",\"source\":\"arn:aws:sns:eu-west-1:123:orders\","
                                      "\"time\":\"1970-01-01T00:00:01.500Z\"}}");
}

static void a_raw_message_has_its_coordinates_for_an_id(void **state)
{
    (void)state;
    open_with("sns", "", HANDLER);
    once_item item = take_in("{\"n\":1}", "{\"a\":\"b\"}");
    assert_int_equal(item.reason.len, 0);
    assert_text(item.request.key, "queue#m-1");
    assert_text(item.message.body, "{\"n\":1}");
    assert_text(item.message.headers, "{\"a\":\"b\"}");
    assert_int_equal(item.message.sent_ms, 5); /* the source's */
    f.spec->source.unstable = "a test says so";
    item = take_in("{\"n\":1}", "");
    assert_text(item.reason, "missing attribute 'source'");
    item = take_in(NOTIFICATION("\"{}\"", ""), "");
    assert_text(item.request.key, KEY);
}

/* What raw delivery and an envelope give the effect is the same, so the fingerprint is, too. */
static void raw_and_wrapped_are_one_content(void **state)
{
    (void)state;
    open_with("sns", "", HANDLER);
    const once_item raw = take_in("{\"a\":[1,2],\"b\":\"x\"}", "");
    const once_item wrapped = take_in(NOTIFICATION("\"{\\\"b\\\":\\\"x\\\",\\\"a\\\":[1,2.0]}\"", ""), "");
    assert_true(once_hash_equal(raw.request.fingerprint, wrapped.request.fingerprint));
}

static void attributes_become_headers(void **state)
{
    (void)state;
    open_with("sns", "", "key: \"${header:id}\"\nhandler: {callback: f}\n");
    const once_item item =
        take_in(NOTIFICATION("\"{}\"", ",\"Subject\":\"a\\\"b\",\"MessageAttributes\":{\"id\":{\"Type\":\"String\","
                                       "\"Value\":\"x\\u0041\"},\"b\":{\"Type\":\"Binary\",\"Value\":\"AAE=\"},"
                                       "\"once:event\":{\"Type\":\"String\",\"Value\":\"no\"},\"bad\":7}"),
                "{\"id\":\"old\",\"once:event\":\"no\",\"once:source\":{\"q\":1},\"other\":[1]}");
    assert_text(item.request.key, "xA");
    assert_text(item.message.headers, "{\"once:event\":{\"id\":\"s-1\",\"source\":\"arn:aws:sns:eu-west-1:123:orders\","
                                      "\"time\":\"1970-01-01T00:00:01.500Z\",\"subject\":\"a\\\"b\"},"
                                      "\"id\":\"x\\u0041\",\"b\":{\"base64\":\"AAE=\"},\"bad\":null,"
                                      "\"once:source\":{\"q\":1},\"other\":[1]}");
}

/* As the store hands it out: an envelope within the envelope is the message. */
static void an_envelope_is_opened_once(void **state)
{
    (void)state;
    open_with("sns", "", HANDLER);
    static const char inner[] = NOTIFICATION("\"x\"", "");
    once_buf text;
    once_buf_init(&text, 10000);
    once_buf_puts(&text, "{\"Type\":\"Notification\",\"MessageId\":\"outer\",\"TopicArn\":\"t\",\"Message\":");
    once_buf_json(&text, ONCE_BYTES(inner));
    once_buf_puts(&text, "}");
    once_item item = take_in_bytes(once_buf_bytes(&text), "");
    assert_text(item.request.key, "t#outer");
    assert_text(item.message.body, inner);
    assert_int_equal(once_intake_taken(&f.intake, &item, NULL), ONCE_OK);
    assert_text(item.message.body, inner);
    assert_int_equal(item.reason.len, 0);
    once_item again = {.batch = &f.batch, .message = item.message}; /* a dead letter that is replayed */
    assert_int_equal(once_intake_fetched(&f.intake, &again, NULL), ONCE_OK);
    assert_text(again.request.key, "t#outer");
    assert_text(again.message.body, inner);
    once_buf_release(&text);
}

static void a_message_need_not_be_json(void **state)
{
    (void)state;
    open_with("sns", ", body: bytes", HANDLER);
    once_item item = take_in(NOTIFICATION("\"hello \\u00e4\"", ""), "");
    assert_text(item.request.key, KEY);
    assert_text(item.message.body, "hello \xc3\xa4");
    item = take_in_bytes(ONCE_BYTES("\xff\0{"), "");
    assert_text(item.request.key, "queue#m-1");
    assert_int_equal(item.message.body.len, 3);
}

static void a_message_that_is_not_json_says_so(void **state)
{
    (void)state;
    open_with("sns", "", HANDLER);
    assert_text(take_in(NOTIFICATION("\"hello\"", ""), "").reason, "malformed JSON at byte 1: unknown word");
    assert_text(take_in("hello", "").reason, "malformed JSON at byte 1: unknown word");
}

static void what_is_no_event_is_a_dead_letter(void **state)
{
    (void)state;
    static const struct {
        const char *body, *reason;
    } cases[] = {
        {"{\"Type\":\"SubscriptionConfirmation\",\"MessageId\":\"1\",\"TopicArn\":\"t\",\"Token\":\"x\"}",
         "SNS asks to confirm a subscription (SubscriptionConfirmation), which is no event and which once never does: "
         "if you want the subscription, open the SubscribeURL in this letter; then discard the letter"},
        {"{\"Type\":\"UnsubscribeConfirmation\",\"MessageId\":\"1\",\"TopicArn\":\"t\",\"Message\":\"{}\"}",
         "SNS says that a subscription has ended (UnsubscribeConfirmation), which is no event: to subscribe again, "
         "open "
         "the SubscribeURL in this letter; then discard the letter"},
        {"{\"Type\":\"Notification\",\"MessageId\":\"1\",\"TopicArn\":\"t\"}",
         "an SNS notification whose 'Message' is missing, or not a text"},
        {"{\"Type\":\"Notification\",\"MessageId\":\"1\",\"TopicArn\":\"t\",\"Message\":{\"a\":1}}",
         "an SNS notification whose 'Message' is missing, or not a text"},
        {"{\"Type\":\"Notification\",\"MessageId\":\"\",\"TopicArn\":\"t\",\"Message\":\"{}\"}",
         "an SNS notification whose 'MessageId' or 'TopicArn' is empty"},
        {"{\"Type\":\"Notification\",\"MessageId\":\"1\",\"TopicArn\":\"\",\"Message\":\"{}\"}",
         "an SNS notification whose 'MessageId' or 'TopicArn' is empty"},
    };
    open_with("sns", "", HANDLER);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const once_item item = take_in(cases[i].body, "");
        assert_text(item.reason, cases[i].reason);
        assert_true(once_hash_is_zero(item.request.id));
        assert_text(item.message.body, cases[i].body); /* the letter has it as it came */
    }
}

/* A header is searched for among the attributes, so there are not very many of them. */
static void the_number_of_attributes_is_bounded(void **state)
{
    (void)state;
    open_with("sns", "", HANDLER);
    for (int n = 256; n <= 257; n++) {
        once_buf text;
        once_buf_init(&text, 100000);
        once_buf_puts(&text, "{\"Type\":\"Notification\",\"MessageId\":\"1\",\"TopicArn\":\"t\",\"Message\":\"{}\","
                             "\"MessageAttributes\":{");
        for (int i = 0; i < n; i++)
            once_buf_printf(&text, "%s\"a%d\":{\"Type\":\"String\",\"Value\":\"%d\"}", i ? "," : "", i, i);
        once_buf_puts(&text, "}}");
        assert_text(take_in_bytes(once_buf_bytes(&text), "").reason,
                    n == 256 ? "" : "an SNS notification with more than 256 message attributes");
        once_buf_release(&text);
    }
}

/* It looks like an envelope and is none: a raw message. */
static void what_only_looks_like_an_envelope_is_raw(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "{\"Type\":\"Order\",\"MessageId\":\"1\",\"TopicArn\":\"t\",\"Message\":\"{}\"}",
        "{\"Type\":\"Notification\",\"MessageId\":1,\"TopicArn\":\"t\",\"Message\":\"{}\"}",
        "{\"Type\":\"Notification\",\"MessageId\":\"1\",\"Message\":\"{}\"}",
        "{\"MessageId\":\"1\",\"TopicArn\":\"t\",\"Message\":\"{}\"}",
        "{\"type\":\"Notification\",\"MessageId\":\"1\",\"TopicArn\":\"t\",\"Message\":\"{}\"}",
        "[{\"Type\":\"Notification\",\"MessageId\":\"1\",\"TopicArn\":\"t\",\"Message\":\"{}\"}]",
        "\"Notification\"",
    };
    open_with("sns", "", HANDLER);
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        const once_item item = take_in(bodies[i], "");
        assert_int_equal(item.reason.len, 0);
        assert_text(item.request.key, "queue#m-1");
        assert_text(item.message.body, bodies[i]);
    }
}

static void headers_of_the_body_are_those_of_raw_messages(void **state)
{
    (void)state;
    once_error err = {0};
    static const char file[] =
        "consumer: c\nstore: memory\nsource: {file: {path: x, headers: /h}}\npreset: sns\n" HANDLER;
    if (once_config_parse("p.yaml", ONCE_BYTES(file), &f.arena, NULL, NULL, &f.spec, &err) != ONCE_OK)
        fail_msg("%s", err.text);
    once_intake_init(&f.intake, f.spec, (once_secret){1, 2}, 7, once_effect_prepare);
    assert_text(take_in("{\"h\":{\"x\":1}}", "").message.headers, "{\"x\":1}");
    const once_item item = take_in(NOTIFICATION("\"{\\\"h\\\":{\\\"x\\\":1}}\"", ""), "");
    assert_text(item.request.key, KEY);
    assert_non_null(memmem(item.message.headers.data, item.message.headers.len, "once:event", 10));
}

/* --- EventBridge --- */

#define EVENT(more)                                                                                                    \
    "{\"version\":\"0\",\"id\":\"e-1\",\"detail-type\":\"Order Placed\",\"source\":\"com.example.shop\","              \
    "\"account\":\"123456789012\",\"time\":\"1970-01-01T00:00:02Z\",\"region\":\"eu-west-1\",\"resources\":[],"        \
    "\"detail\":{\"order\":7}" more "}"

static void an_event_has_its_own_key_type_and_time(void **state)
{
    (void)state;
    open_with("eventbridge", "", "handlers: {Order Placed: {callback: f}}\n");
    const once_item item = take_in(EVENT(""), "");
    assert_int_equal(item.reason.len, 0);
    assert_text(item.request.key, "com.example.shop#e-1");
    assert_text(item.message.type, "Order Placed");
    assert_int_equal(item.message.sent_ms, 2000);
    assert_text(item.message.body, EVENT(""));
    /* A replay from an archive adds a member; that is no other content. */
    const once_item replayed = take_in(EVENT(",\"replay-name\":\"r\""), "");
    assert_true(once_hash_equal(item.request.fingerprint, replayed.request.fingerprint));
    assert_true(once_hash_equal(item.request.id, replayed.request.id));
}

static void what_is_no_eventbridge_event_says_why(void **state)
{
    (void)state;
    static const struct {
        const char *body, *reason;
    } cases[] = {
        {"{\"id\":\"1\",\"source\":\"s\",\"detail\":{}}",
         "not an EventBridge event: there is no field 'detail-type'; a rule with an input transformer or an input path "
         "sends something else"},
        {"{\"id\":\"1\",\"source\":\"s\",\"detail-type\":\"t\"}",
         "not an EventBridge event: there is no field 'detail'; a rule with an input transformer or an input path "
         "sends "
         "something else"},
        {"{\"order\":7}", "not an EventBridge event: there is no field 'id'; a rule with an input transformer or an "
                          "input path sends something else"},
        {"[]", "not an EventBridge event: there is no field 'id'; a rule with an input transformer or an input path "
               "sends something else"},
        {"{\"id\":7,\"source\":\"s\",\"detail-type\":\"t\",\"detail\":{}}",
         "an EventBridge event whose 'id' is empty, or not a text"},
        {"{\"id\":\"\",\"source\":\"s\",\"detail-type\":\"t\",\"detail\":{}}",
         "an EventBridge event whose 'id' is empty, or not a text"},
    };
    open_with("eventbridge", "", HANDLER);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_text(take_in(cases[i].body, "").reason, cases[i].reason);
}

/* --- both --- */

static void each_preset_has_its_names(void **state)
{
    (void)state;
    once_error err = {0};
    assert_int_equal(load("sns", "", "order: \"${event:region}\"\n" HANDLER, &err), ONCE_E_CONFIG);
    assert_string_equal(err.text, "p.yaml:5: 'order': the preset has no 'region' for ${event:...}; it has id, source, "
                                  "time, subject");
    assert_int_equal(load("eventbridge", "", "handler:\n  sql: [\"SELECT :{event:subject}\"]\n", &err), ONCE_E_CONFIG);
    assert_string_equal(err.text, "p.yaml:6: 'sql': the preset has no 'subject' for :{event:...}; it has id, source, "
                                  "type, time, account, region");
    assert_int_equal(load("eventbridge", ", body: bytes", "fingerprint: none\n" HANDLER, &err), ONCE_E_CONFIG);
    assert_string_equal(err.text, "p.yaml:4: 'preset: eventbridge' reads the body, and with 'body: bytes' it has no "
                                  "fields; say 'body: json'");
}

static bool keep_text(void *user, once_bytes operation, once_bytes text)
{
    (void)operation;
    (void)snprintf(user, 300, "%.*s", (int)text.len, text.data);
    return true;
}

/* The texts of the templates are the same for all presets, and their meaning is not. */
static void the_preset_is_part_of_how_keys_are_made(void **state)
{
    (void)state;
    char text[300];
    open_with("sns", "", "key: \"${/id}\"\n" HANDLER);
    assert_int_equal(once_config_each_operation(f.spec, &f.arena, keep_text, text, NULL), ONCE_OK);
    assert_string_equal(text, "{\"key\":\"${/id}\",\"fingerprint\":\"body\",\"preset\":\"sns\"}");
    open_with("eventbridge", "", HANDLER);
    assert_int_equal(once_config_each_operation(f.spec, &f.arena, keep_text, text, NULL), ONCE_OK);
    assert_string_equal(text, "{\"key\":\"${event:source}#${event:id}\",\"fingerprint\":[\"/detail\",\"/detail-type\"],"
                              "\"preset\":\"eventbridge\"}");
    open_with("eventbridge", "", "key: \"${/id}\"\n" HANDLER);
    assert_int_equal(once_config_each_operation(f.spec, &f.arena, keep_text, text, NULL), ONCE_OK);
    assert_string_equal(text, "{\"key\":\"${/id}\",\"fingerprint\":[\"/detail\",\"/detail-type\"]}");
    open_with("cloudevents", "", HANDLER); /* as older versions wrote it */
    assert_int_equal(once_config_each_operation(f.spec, &f.arena, keep_text, text, NULL), ONCE_OK);
    assert_string_equal(text, "{\"key\":\"${event:source}#${event:id}\",\"fingerprint\":\"body\"}");
}

static void check_says_what_each_key_catches(void **state)
{
    (void)state;
    open_with("sns", "", HANDLER);
    assert_non_null(strstr(once__key_catches(f.spec, f.spec->handlers[0].key), "the same MessageId"));
    assert_true(once_spec_uses_coordinates(f.spec)); /* of raw messages */
    open_with("eventbridge", "", HANDLER);
    assert_non_null(strstr(once__key_catches(f.spec, f.spec->handlers[0].key), "PutEvents"));
    assert_false(once_spec_uses_coordinates(f.spec));
    open_with("cloudevents", "", HANDLER);
    assert_non_null(strstr(once__key_catches(f.spec, f.spec->handlers[0].key), "as CloudEvents asks for"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_envelope_is_opened),
        TEST(a_raw_message_has_its_coordinates_for_an_id),
        TEST(raw_and_wrapped_are_one_content),
        TEST(attributes_become_headers),
        TEST(an_envelope_is_opened_once),
        TEST(a_message_need_not_be_json),
        TEST(a_message_that_is_not_json_says_so),
        TEST(what_is_no_event_is_a_dead_letter),
        TEST(the_number_of_attributes_is_bounded),
        TEST(what_only_looks_like_an_envelope_is_raw),
        TEST(headers_of_the_body_are_those_of_raw_messages),
        TEST(an_event_has_its_own_key_type_and_time),
        TEST(what_is_no_eventbridge_event_says_why),
        TEST(each_preset_has_its_names),
        TEST(the_preset_is_part_of_how_keys_are_made),
        TEST(check_says_what_each_key_catches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
