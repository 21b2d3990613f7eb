/* CloudEvents: where their attributes are, which messages are none, and what `preset: cloudevents` makes of them. */
#include "intake_fixture.h"

#include "core/event.h"
#include "runtime/config_preset.h"

static once_json body, headers;

/* NULL: there is none, or it is not JSON. */
static once_json *parsed(once_json *json, const char *text)
{
    if (!text) return NULL;
    assert_int_equal(once_json_parse(json, (once_bytes){text, strlen(text)}, NULL, NULL), ONCE_OK);
    return json;
}

static once_parsed event(const char *in_body, const char *in_headers)
{
    return (once_parsed){
        .body = parsed(&body, in_body), .headers = parsed(&headers, in_headers), .events = ONCE_EVENT_CLOUDEVENTS};
}

#define STRUCTURED                                                                                                     \
    "{\"specversion\":\"1.0\",\"id\":\"b1\",\"source\":\"/body\",\"type\":\"t\",\"data\":{\"id\":\"no\"}}"
#define BINARY(sep)                                                                                                    \
    "{\"ce" sep "specversion\":\"1.0\",\"ce" sep "id\":\"h1\",\"ce" sep "source\":\"/header\",\"ce" sep "type\":"      \
    "\"t\"}"

static void attributes_are_where_the_form_says(void **state)
{
    (void)state;
    static const struct {
        const char *body, *headers, *id; /* NULL: no event */
    } cases[] = {
        {STRUCTURED, NULL, "b1"},
        {STRUCTURED, "{}", "b1"},
        {STRUCTURED, "{\"content-type\":\"application/json\"}", "b1"},
        {STRUCTURED,
         "{\"Content-Type\":\"Application/CloudEvents+json; "
         "charset=utf-8\",\"ce_specversion\":\"1.0\",\"ce_id\":\"h1\"}",
         "b1"},
        {"{\"id\":\"no\"}", BINARY("_"), "h1"},
        {"{\"id\":\"no\"}", BINARY("-"), "h1"},
        {STRUCTURED, BINARY("_"), "h1"}, /* the data is an event itself */
        {NULL, BINARY("_"), "h1"},
        {"{\"id\":\"no\"}", "{\"ce_id\":\"h1\"}", NULL},
        {"{\"id\":\"no\"}", NULL, NULL},
        {"[1]", "{}", NULL},
        {"3", NULL, NULL},
        {NULL, NULL, NULL},
        {STRUCTURED, "{\"content-type\":\"application/cloudevents-batch+json\"}", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const once_parsed from = event(cases[i].body, cases[i].headers);
        const once_json_value id = once_event_attribute(&from, ONCE_BYTES("id"));
        if (!cases[i].id) assert_int_equal(id.type, ONCE_JSON_ABSENT);
        else assert_true(once_json_string_is(id, (once_bytes){cases[i].id, strlen(cases[i].id)}));
    }
}

static void what_is_no_event_says_why(void **state)
{
    (void)state;
    static const struct {
        const char *body, *headers, *why; /* NULL: it is one */
    } cases[] = {
        {STRUCTURED, NULL, NULL},
        {"{}", BINARY("_"), NULL},
        {NULL, BINARY("-"), NULL},
        {"{\"id\":1}", "{\"h\":1}",
         "not a CloudEvent: there is neither a header 'ce_specversion' nor a field 'specversion'"},
        {NULL, NULL, "not a CloudEvent: there is neither a header 'ce_specversion' nor a field 'specversion'"},
        {"[]", "{\"content-type\":\"application/cloudevents-batch+json\"}",
         "a batch of CloudEvents; each event must be a message of its own"},
        {NULL, "{\"content-type\":\"application/cloudevents+json\"}",
         "a structured CloudEvent: its attributes are in the body, which is not read as JSON here"},
        {"{\"specversion\":\"1.0\",\"id\":\"1\",\"type\":\"t\"}", NULL, "a CloudEvent without 'source'"},
        {"{}", "{\"ce_specversion\":\"1.0\",\"ce_id\":\"1\",\"ce_source\":\"s\"}", "a CloudEvent without 'ce_type'"},
        {"{\"specversion\":\"1.0\",\"id\":7,\"source\":\"s\",\"type\":\"t\"}", NULL,
         "a CloudEvent whose 'id' is empty, or not a text"},
        {"{\"specversion\":\"1.0\",\"id\":\"\",\"source\":\"s\",\"type\":\"t\"}", NULL,
         "a CloudEvent whose 'id' is empty, or not a text"},
        {"{\"specversion\":null,\"id\":\"1\",\"source\":\"s\",\"type\":\"t\"}", NULL,
         "a CloudEvent whose 'specversion' is empty, or not a text"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        once_error err = {0};
        const once_parsed from = event(cases[i].body, cases[i].headers);
        const int rc = once_event_check(&from, &err);
        assert_int_equal(rc, cases[i].why ? ONCE_E_MESSAGE : ONCE_OK);
        if (cases[i].why) assert_string_equal(err.text, cases[i].why);
    }
}

/* --- the preset --- */

#define HEAD "consumer: c\nstore: memory\nsource: {file: {path: x}%s}\npreset: cloudevents\n" /* 4 */
#define HANDLERS "handlers:\n  t: {callback: f}\n  \"*\": {dead: other}\n"

static int load(const char *of_all, const char *rest, once_error *err)
{
    char text[1000];
    (void)snprintf(text, sizeof text, HEAD "%s", of_all, rest);
    return parse_pipeline(text, err);
}

static void open_with(const char *of_all, const char *rest)
{
    once_error err = {0};
    open_intake(load(of_all, rest, &err), &err);
}

static once_item take_in(once_bytes content, const char *header)
{
    return take_in_message((once_message){.body = content, .headers = once_bytes_of(header), .sent_ms = 5});
}

static void source_and_id_are_the_key_and_type_chooses(void **state)
{
    (void)state;
    open_with("", HANDLERS);
    assert_true(f.spec->events && f.spec->time_optional && f.spec->preset);
    once_item item = take_in(ONCE_BYTES(STRUCTURED), "");
    assert_int_equal(item.reason.len, 0);
    assert_text(item.request.key, "/body#b1");
    assert_text(item.message.type, "t");
    assert_ptr_equal(item.handler, &f.spec->handlers[0]);
    assert_int_equal(item.message.sent_ms, 5); /* without a time: the source's */
    item = take_in(ONCE_BYTES("{\"cents\":1}"), BINARY("_"));
    assert_text(item.request.key, "/header#h1");
    item = take_in(ONCE_BYTES("{\"cents\":1}"), BINARY("-"));
    assert_text(item.request.key, "/header#h1");
}

/* No two pairs of source and id have one key. */
static void the_key_is_unambiguous(void **state)
{
    (void)state;
    open_with("", HANDLERS);
    const once_item x =
        take_in(ONCE_BYTES("{\"specversion\":\"1.0\",\"id\":\"b\",\"source\":\"s#a\",\"type\":\"t\"}"), "");
    const once_item y =
        take_in(ONCE_BYTES("{\"specversion\":\"1.0\",\"id\":\"a#b\",\"source\":\"s\",\"type\":\"t\"}"), "");
    assert_text(x.request.key, "s%23a#b");
    assert_text(y.request.key, "s#a%23b");
}

static void the_time_of_the_event_counts(void **state)
{
    (void)state;
    open_with("", HANDLERS);
    once_item item = take_in(ONCE_BYTES("{\"specversion\":\"1.0\",\"id\":\"1\",\"source\":\"s\",\"type\":\"t\","
                                        "\"time\":\"1970-01-01T00:00:01.5Z\"}"),
                             "");
    assert_int_equal(item.message.sent_ms, 1500);
    item = take_in(
        ONCE_BYTES("{\"specversion\":\"1.0\",\"id\":\"1\",\"source\":\"s\",\"type\":\"t\",\"time\":\"noon\"}"), "");
    assert_true(item.reason.len > 0 && once_hash_is_zero(item.request.id)); /* a wrong one is no missing one */
}

static void what_is_no_event_is_a_dead_letter(void **state)
{
    (void)state;
    open_with("", "key: \"${/id}\"\ntype: \"${/t}\"\ntime: \"${/ts}\"\n" HANDLERS);
    const once_item item = take_in(ONCE_BYTES("{\"id\":1,\"t\":\"t\",\"ts\":1}"), ""); /* whatever the file says */
    assert_text(item.reason, "not a CloudEvent: there is neither a header 'ce_specversion' nor a field 'specversion'");
    assert_true(once_hash_is_zero(item.request.id));
}

static void binary_events_may_have_any_data(void **state)
{
    (void)state;
    open_with(", body: bytes", HANDLERS);
    once_item item = take_in(ONCE_BYTES("\xff\0"), BINARY("_"));
    assert_int_equal(item.reason.len, 0);
    assert_text(item.request.key, "/header#h1");
    assert_text(take_in(ONCE_BYTES(STRUCTURED), "").reason,
                "not a CloudEvent: there is neither a header 'ce_specversion' nor a field 'specversion'");
}

static void what_the_file_says_counts(void **state)
{
    (void)state;
    open_with(
        "",
        "type: \"x-${event:type}\"\ntime: \"${event:time}\"\nhandlers: {x-t: {callback: f, key: \"${event:id}\"}}\n");
    assert_false(f.spec->time_optional);
    assert_int_equal(f.spec->preset_own, 6); /* the second and the third line */
    const once_item item = take_in(ONCE_BYTES(STRUCTURED), "");
    assert_text(item.reason, "missing attribute 'time'");
    assert_text(item.request.key, "b1");
}

static void mistakes_have_their_line(void **state)
{
    (void)state;
    once_error err = {0};
    assert_int_equal(load("", "order: \"${event:Subject}\"\n" HANDLERS, &err), ONCE_E_CONFIG);
    assert_string_equal(err.text, "p.yaml:5: 'order': '${event:Subject}' names no attribute of an event; write "
                                  "lower-case letters and digits, as in '${event:subject}'");
    static const char none[] = "consumer: c\nstore: memory\nsource: {file: {path: x}}\nkey: \"${event:id}\"\n"
                               "handler: {dead: x}\n",
                      other[] = "consumer: c\nstore: memory\nsource: {file: {path: x}}\npreset: cloudevent\n"
                                "key: \"${/id}\"\nhandler: {dead: x}\n";
    assert_int_equal(once_config_parse("p.yaml", ONCE_BYTES(none), &f.arena, NULL, NULL, &f.spec, &err), ONCE_E_CONFIG);
    assert_string_equal(err.text, "p.yaml:4: 'key': ${event:...} is for messages that a preset describes; add 'preset: "
                                  "cloudevents', sns or eventbridge, or use ${/field}");
    assert_int_equal(once_config_parse("p.yaml", ONCE_BYTES(other), &f.arena, NULL, NULL, &f.spec, &err),
                     ONCE_E_CONFIG);
    assert_string_equal(err.text, "p.yaml:4: 'preset' cannot be 'cloudevent'; did you mean 'cloudevents'?");
}

/* Each line of the table is a pipeline file's, so it can be read where nothing else is said. */
static void every_preset_is_whole(void **state)
{
    (void)state;
    size_t n;
    const once_preset *presets = once__preset_list(&n);
    for (size_t i = 0; i < n; i++) {
        char text[1000];
        once_error err = {0};
        once_bytes line, name;
        (void)snprintf(text, sizeof text,
                       "consumer: c\nstore: memory\nsource: {file: {path: x}}\npreset: %s\nhandler: {dead: x}\n",
                       presets[i].name);
        if (once_config_parse("p.yaml", (once_bytes){text, strlen(text)}, &f.arena, NULL, NULL, &f.spec, &err) !=
            ONCE_OK)
            fail_msg("%s", err.text);
        assert_ptr_equal(f.spec->preset, &presets[i]);
        assert_true(f.spec->preset_own == 0 && f.spec->handlers[0].key && presets[i].text[0]);
        size_t lines = 0;
        while (once__preset_line(&presets[i], lines, &line, &name)) lines++;
        assert_true(lines > 0 && lines <= 8 * sizeof f.spec->preset_own);
        assert_string_equal(once__preset_words[i].name, presets[i].name);
    }
    assert_null(once__preset_words[n].name);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

static int release(void **state)
{
    (void)state;
    once_json_release(&body);
    once_json_release(&headers);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attributes_are_where_the_form_says),
        cmocka_unit_test(what_is_no_event_says_why),
        TEST(source_and_id_are_the_key_and_type_chooses),
        TEST(the_key_is_unambiguous),
        TEST(the_time_of_the_event_counts),
        TEST(what_is_no_event_is_a_dead_letter),
        TEST(binary_events_may_have_any_data),
        TEST(what_the_file_says_counts),
        TEST(mistakes_have_their_line),
        TEST(every_preset_is_whole),
    };
    return cmocka_run_group_tests(tests, NULL, release);
}
