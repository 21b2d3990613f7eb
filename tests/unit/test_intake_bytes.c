/* From a message to an item where bodies are bytes, and where there is no body. */
#include "intake_fixture.h"

#include "core/conflict.h"
#include "core/print.h"
#include "effect/sql.h"
#include "effect/stream_line.h"

/* `of_all`: the fields of the source's map, behind the source. */
static void open_with(const char *of_all, const char *key, const char *handler)
{
    char text[1000];
    once_error err = {0};
    (void)snprintf(text, sizeof text,
                   "consumer: c\nstore: memory\nsource: {file: {path: x}%s}\nkey: \"%s\"\nhandler: %s\n", of_all, key,
                   handler);
    open_intake(parse_pipeline(text, &err), &err);
}

static once_item take_in(once_message message)
{
    message.sent_ms = ONCE_NO_TIME;
    message.at = (once_coordinates){ONCE_BYTES("x"), ONCE_BYTES("1")};
    return take_in_message(message);
}

static once_item of_bytes(once_bytes body) { return take_in((once_message){.body = body}); }

static const once_bytes odd[] = {{0},
                                 ONCE_BYTES("\0"),
                                 ONCE_BYTES("\0\0"),
                                 ONCE_BYTES("\xff\xfe\x80"),
                                 ONCE_BYTES("{\"a\":1}"),
                                 ONCE_BYTES("{\"a\": 1}"),
                                 ONCE_BYTES("{"),
                                 ONCE_BYTES(" ")};
enum { ODD = sizeof odd / sizeof *odd };

#define SQL "{sql: [\"INSERT INTO t VALUES (:once_key, :once_body)\"]}"

static void any_bytes_are_a_message_and_each_has_its_own_key_and_fingerprint(void **state)
{
    (void)state;
    open_with(", body: bytes", "${hash}", SQL);
    assert_true(f.spec->source.bytes);
    once_item items[ODD];
    for (size_t i = 0; i < ODD; i++) {
        items[i] = of_bytes(odd[i]);
        assert_int_equal(items[i].reason.len, 0);
        const once_value *values = items[i].input;
        assert_int_equal(values[1].type, ONCE_VALUE_BYTES);
        assert_false(values[1].is_text);
        assert_true(once_bytes_equal(values[1].text, odd[i]));
        assert_int_equal(items[i].request.fields.n, 0);
        for (size_t k = 0; k < i; k++) {
            assert_false(once_hash_equal(items[i].request.id, items[k].request.id));
            assert_false(once_hash_equal(items[i].request.fingerprint, items[k].request.fingerprint));
        }
        assert_true(once_hash_equal(of_bytes(odd[i]).request.fingerprint, items[i].request.fingerprint));
    }
    assert_text(items[1].request.key, "6e340b9cffb37a989ca544e6bb780a2c"); /* sha256sum of one NUL */
}

static void the_bytes_of_json_are_not_its_meaning(void **state)
{
    (void)state;
    open_with("", "${coordinates}", SQL);
    once_item x = of_bytes(odd[4]), y = of_bytes(odd[5]);
    assert_true(once_hash_equal(x.request.fingerprint, y.request.fingerprint));
    const once_value *values = x.input;
    assert_true(values[1].type == ONCE_VALUE_BYTES && values[1].is_text);
    assert_text(values[1].text, "{\"a\":1}");
    assert_text(of_bytes(ONCE_BYTES("\xff")).reason, "malformed JSON at byte 1: value expected");
}

static void headers_make_the_key_of_bytes(void **state)
{
    (void)state;
    open_with(", body: bytes", "${header:id}", "{exec: [./effect, \"${header:id}\"]}");
    once_item item = take_in((once_message){.body = ONCE_BYTES("\xff"), .headers = ONCE_BYTES("{\"id\":\"h7\"}")});
    assert_text(item.request.key, "h7");
    assert_non_null(item.input);
    assert_text(of_bytes(ONCE_BYTES("\xff")).reason, "missing header 'id'");
    item = take_in((once_message){.body = ONCE_BYTES("\xff"), .headers = ONCE_BYTES("{")});
    assert_true(item.reason.len && once_hash_is_zero(item.request.id));
}

static void the_largest_is_bounded_as_everywhere(void **state)
{
    (void)state;
    static const char body[9];
    open_with(", body: bytes", "${hash}", SQL);
    f.spec->message_max = 8;
    assert_int_equal(of_bytes((once_bytes){body, 8}).reason.len, 0);
    assert_text(of_bytes((once_bytes){body, 9}).reason, "message of 9 bytes is longer than message_max (8)");
}

/* Two bodies that happen to be JSON are not compared by their fields. */
static void a_conflict_of_bytes_names_no_fields(void **state)
{
    (void)state;
    open_with(", body: bytes", "${coordinates}", SQL);
    const once_first first = {.body = ONCE_BYTES("{\"a\":1}")};
    const once_decision decision = {.answer = ONCE_ANSWER_CONFLICT, .first = &first};
    once_bytes reason;
    assert_true(once_conflict_reason(&decision, &f.spec->handlers[0].fingerprint, ONCE_BYTES("{\"a\":2}"),
                                     (once_secret){1, 2}, &f.batch.arena, &reason));
    assert_text(reason, "conflict: the key was used before with other content; the first one came at "
                        "1970-01-01T00:00:00.000Z");
}

/* --- no body --- */

static once_item tombstone(const char *headers)
{
    return take_in((once_message){.no_body = true, .headers = {headers, strlen(headers)}});
}

static once_item taken(const once_item *from)
{
    once_item item = {.batch = &f.batch,
                      .message = {.body = from->message.body, .headers = from->message.headers},
                      .scope = from->scope,
                      .request = from->request};
    assert_int_equal(once_intake_taken(&f.intake, &item, NULL), ONCE_OK);
    return item;
}

static void a_tombstone_is_a_dead_letter_that_says_so(void **state)
{
    (void)state;
    static const char *const both[] = {"", ", body: bytes"};
    for (size_t i = 0; i < 2; i++) {
        open_with(both[i], "${coordinates}", SQL);
        once_item item = tombstone("");
        assert_text(item.reason, "the message has no body");
        assert_true(once_hash_is_zero(item.request.id) && !item.skipped);
        assert_false(once_bytes_equal(of_bytes((once_bytes){0}).reason, item.reason));
        once_intake_release(&f.intake);
    }
}

static void a_tombstone_may_be_skipped(void **state)
{
    (void)state;
    open_with(", tombstones: skip", "${/id}", SQL);
    once_item item = tombstone("");
    assert_true(item.skipped && once_hash_is_zero(item.request.id));
    assert_text(item.reason, "the message has no body, and is skipped");
    assert_false(of_bytes((once_bytes){0}).skipped);
    assert_false(of_bytes(ONCE_BYTES("{\"id\":1}")).skipped);
}

/* The store keeps a body and headers, so the headers say that there is none. */
static void a_tombstone_that_runs_stays_one_in_the_store(void **state)
{
    (void)state;
    static const char *const headers[] = {"", "{}", "{ }", "{\"a\":1}", " {\"a\":{\"b\":[]}} "};
    static const char *const kept[] = {"{\"once:no_body\":true}", "{\"once:no_body\":true}", "{\"once:no_body\":true}",
                                       "{\"once:no_body\":true,\"a\":1}", "{\"once:no_body\":true,\"a\":{\"b\":[]}}"};
    open_with(", tombstones: run", "${coordinates}",
              "{sql: [\"INSERT INTO t VALUES (:once_key, :once_body, :{/a?})\"]}");
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        once_item item = tombstone(headers[i]);
        assert_int_equal(item.reason.len, 0);
        assert_text(item.message.headers, kept[i]);
        const once_value *values = item.input;
        assert_true(values[1].type == ONCE_VALUE_NULL && values[2].type == ONCE_VALUE_NULL);
        once_item again = taken(&item);
        assert_true(again.message.no_body && again.input);
        assert_text(again.message.headers, kept[i]);
        assert_false(once_hash_is_zero(item.request.fingerprint));
    }
    const once_item fake =
        take_in((once_message){.body = ONCE_BYTES("{\"a\":1}"), .headers = ONCE_BYTES("{\"once:no_body\":true}")});
    assert_false(fake.message.no_body); /* it has one */
}

static void a_tombstone_is_no_empty_body(void **state)
{
    (void)state;
    open_with(", body: bytes, tombstones: run", "${coordinates}", SQL);
    once_item item = tombstone(""), empty = of_bytes((once_bytes){0});
    assert_false(once_hash_equal(item.request.fingerprint, empty.request.fingerprint));
    assert_int_equal(((const once_value *)item.input)[1].type, ONCE_VALUE_NULL);
    assert_int_equal(((const once_value *)empty.input)[1].type, ONCE_VALUE_BYTES);
}

/* Nothing of the message before it is taken for its own. */
static void a_tombstone_has_no_fields_and_no_hash(void **state)
{
    (void)state;
    open_with(", tombstones: run", "${/id}", SQL);
    assert_int_equal(of_bytes(ONCE_BYTES("{\"id\":1}")).reason.len, 0);
    assert_text(tombstone("").reason, "missing field '/id'");
    once_intake_release(&f.intake);
    open_with(", tombstones: run", "${hash}", SQL);
    assert_text(tombstone("").reason, "the message has no body, so it has no '${hash}'");
    once_intake_release(&f.intake);
    open_with(", tombstones: run", "${coordinates}", "{sql: [\"INSERT INTO t VALUES (:id)\"]}");
    (void)of_bytes(ONCE_BYTES("{\"id\":1}"));
    assert_text(tombstone("").reason, "missing field '/id'");
}

static void a_stream_is_told_what_the_body_is(void **state)
{
    (void)state;
    static const struct {
        const char *of_all, *line;
        once_message message;
    } cases[] = {
        {"", ",\"body\":{\"a\":1}}\n", {.body = ONCE_BYTES("{\"a\":1}")}},
        {", body: bytes", ",\"body_base64\":\"eyJhIjoxfQ==\"}\n", {.body = ONCE_BYTES("{\"a\":1}")}},
        {", body: bytes", ",\"body_base64\":\"AP8=\"}\n", {.body = ONCE_BYTES("\0\xff")}},
        {", body: bytes", ",\"body_base64\":\"\"}\n", {.body = {0}}},
        {", tombstones: run", ",\"tombstone\":true}\n", {.no_body = true}},
        {", body: bytes, tombstones: run", ",\"tombstone\":true}\n", {.no_body = true}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        open_with(cases[i].of_all, "${coordinates}", "{exec: [./effect], mode: stream}");
        once_item item = take_in(cases[i].message);
        once_buf line;
        once_buf_init(&line, 10000);
        assert_true(once_stream_write(&line, 1, &item, &(once_keying){0}));
        const size_t len = strlen(cases[i].line);
        assert_true(line.len > len);
        assert_string_equal(line.data + line.len - len, cases[i].line);
        once_buf_release(&line);
        once_intake_release(&f.intake);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

/* What may run without a claim gets its fingerprint when somebody asks for it. */
static void a_late_fingerprint_is_the_same(void **state)
{
    (void)state;
    for (int natural = 0; natural < 2; natural++) {
        open_with(", body: bytes", "${coordinates}", natural ? "{callback: x, natural: true}" : "{callback: x}");
        for (size_t i = 0; i < ODD; i++) {
            once_item late = {.batch = &f.batch, .message = {.body = odd[i], .sent_ms = ONCE_NO_TIME}};
            late.message.at = (once_coordinates){ONCE_BYTES("x"), ONCE_BYTES("1")};
            f.intake.prints_late = false;
            const once_hash print = of_bytes(odd[i]).request.fingerprint;
            assert_false(once_hash_is_zero(print));
            f.intake.prints_late = true;
            assert_int_equal(once_intake_fetched(&f.intake, &late, NULL), ONCE_OK);
            assert_int_equal(once_hash_is_zero(late.request.fingerprint), natural);
            once_request_print(&late.request, f.intake.secret);
            assert_true(once_hash_equal(late.request.fingerprint, print));
            assert_null(late.request.late);
        }
        teardown(NULL);
        setup(NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_late_fingerprint_is_the_same),
        TEST(any_bytes_are_a_message_and_each_has_its_own_key_and_fingerprint),
        TEST(the_bytes_of_json_are_not_its_meaning),
        TEST(headers_make_the_key_of_bytes),
        TEST(the_largest_is_bounded_as_everywhere),
        TEST(a_conflict_of_bytes_names_no_fields),
        TEST(a_tombstone_is_a_dead_letter_that_says_so),
        TEST(a_tombstone_may_be_skipped),
        TEST(a_tombstone_that_runs_stays_one_in_the_store),
        TEST(a_tombstone_is_no_empty_body),
        TEST(a_tombstone_has_no_fields_and_no_hash),
        TEST(a_stream_is_told_what_the_body_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
