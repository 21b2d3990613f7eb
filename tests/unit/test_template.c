/* Templates: what they render, that renderings cannot be confused (f63, f64), and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/template.h"

static once_arena arena;

static once_bytes bytes(const char *text) { return (once_bytes){text, strlen(text)}; }

static const once_template *parsed(const char *text)
{
    const once_template *t = NULL;
    once_error err = {0};
    int rc = once_template_parse(&arena, bytes(text), &t, &err);
    if (rc != ONCE_OK) print_error("%s: %s\n", text, err.text);
    assert_int_equal(rc, ONCE_OK);
    return t;
}

/* The last two documents stay parsed, because renderings may point into them. */
static once_json body, headers;

static once_texts texts;

static int render(const char *template, const char *json, const char *header_json, once_bytes *out, once_error *err)
{
    once_message message = {.at = {bytes("orders/3"), bytes("88")}};
    once_parsed input = {.message = &message, .texts = &texts};
    once_texts_begin(&texts, &arena, 0);
    if (json) {
        assert_int_equal(once_json_parse(&body, bytes(json), NULL, NULL), ONCE_OK);
        input.body = &body;
    }
    if (header_json) {
        assert_int_equal(once_json_parse(&headers, bytes(header_json), NULL, NULL), ONCE_OK);
        input.headers = &headers;
    }
    return once_template_render(parsed(template), &input, &arena, out, err);
}

static void renders(const char *template, const char *json, const char *expected)
{
    once_bytes out = {0};
    once_error err = {0};
    int rc = render(template, json, "{\"tenant\":\"acme\",\"n\":7,\"once:source\":{\"key\":\"k9\"}}", &out, &err);
    if (rc != ONCE_OK) print_error("%s: %s\n", template, err.text);
    assert_int_equal(rc, ONCE_OK);
    if (out.len != strlen(expected) || memcmp(out.data, expected, out.len) != 0)
        print_error("expected %s got %.*s\n", expected, (int)out.len, out.data);
    assert_int_equal(out.len, strlen(expected));
    assert_memory_equal(out.data, expected, out.len);
}

static void fails(const char *template, const char *json, const char *expected)
{
    once_bytes out = {0};
    once_error err = {0};
    assert_int_equal(render(template, json, "{\"o\":{}}", &out, &err), ONCE_E_MESSAGE);
    assert_string_equal(err.text, expected);
    assert_null(out.data);
}

static void refused(const char *text, const char *expected)
{
    const once_template *t = NULL;
    once_error err = {0};
    assert_int_equal(once_template_parse(&arena, bytes(text), &t, &err), ONCE_E_USAGE);
    assert_string_equal(err.text, expected);
    assert_null(t);
}

static void one_pointer_gives_the_value_as_it_is(void **state)
{
    (void)state;
    renders("${/id}", "{\"id\":\"p-1\"}", "p-1");
    renders("${/id}", "{\"id\":\"50% off: ${x}, {y}\"}", "50% off: ${x}, {y}");
    renders("${/id}", "{\"id\":\"\"}", "");
    renders("${/a/b/1}", "{\"a\":{\"b\":[1,\"x\"]}}", "x");
    renders("${/a~1b}", "{\"a/b\":\"x\"}", "x");
    renders("${/a~3~2/b~0}", "{\"a}:\":{\"b~\":\"x\"}}", "x"); /* what a placeholder could not have otherwise */
    renders("${/}", "{\"\":\"x\"}", "x");
    renders("${/id}", "{\"id\":\"\\u00e4\\n\"}", "\xc3\xa4\n");
    renders("${/ok}", "{\"ok\":true}", "true");
    renders("${/ok}", "{\"ok\":false}", "false");
}

static void numbers_have_one_spelling(void **state)
{
    (void)state;
    renders("${/n}", "{\"n\":42}", "42");
    renders("${/n}", "{\"n\":-7}", "-7");
    renders("${/n}", "{\"n\":-0}", "0");
    renders("${/n}", "{\"n\":42.0}", "42");
    renders("${/n}", "{\"n\":4.2e1}", "42");
    renders("${/n}", "{\"n\":0.50}", "0.5");
    renders("${/n}", "{\"n\":9007199254740993}", "9007199254740993");
    renders("${/n}", "{\"n\":123456789012345678901234567890}", "123456789012345678901234567890");
    fails("${/n}", "{\"n\":1e99999999999999999999999}", "field '/n' is a number out of range");
}

static void one_pointer_without_escapes_allocates_nothing(void **state)
{
    (void)state;
    const once_template *t = parsed("${/id}");
    once_message message = {0};
    once_parsed input = {.body = &body, .message = &message};
    once_arena untouched = {0};
    once_bytes out;
    assert_int_equal(once_json_parse(&body, bytes("{\"id\":\"p-1\",\"n\":17}"), NULL, NULL), ONCE_OK);
    assert_int_equal(once_template_render(t, &input, &untouched, &out, NULL), ONCE_OK);
    assert_null(untouched.block);
    assert_ptr_equal(out.data, body.text.data + 7);
    assert_int_equal(once_template_render(parsed("${/n}"), &input, &untouched, &out, NULL), ONCE_OK);
    assert_null(untouched.block);
}

static void headers_coordinates_and_literals(void **state)
{
    (void)state;
    renders("${header:tenant}", "{}", "acme");
    renders("${header:n}", "{}", "7");
    renders("${source:key}:${/a}", "{\"a\":1}", "k9:1");
    renders("${coordinates}", "{}", "orders/3:88");
    renders("order:${/id}", "{\"id\":7}", "order:7");
    renders("${/a}-${header:tenant}", "{\"a\":1}", "1-acme");
    renders("plain", "{}", "plain");
    renders("100%", "{}", "100%");
    renders("$${/id}", "{}", "${/id}");
    renders("$5", "{}", "$5");
    renders("a$", "{}", "a$");
    renders("$$${/id}", "{}", "$${/id}"); /* "$" and then "$${" */
    assert_true(once_template_is_literal(parsed("$${/id}")));
    assert_false(once_template_is_literal(parsed("${/id}")));
    assert_non_null(once_template_single(parsed("${hash}")));
    assert_null(once_template_single(parsed("x${hash}")));
    assert_null(once_template_single(parsed("x")));
    assert_null(once_template_single(parsed("${/a}${/b}")));
    assert_true(once_template_uses(parsed("a${coordinates}"), ONCE_PLACE_COORDINATES));
    assert_false(once_template_uses(parsed("a${/coordinates}"), ONCE_PLACE_COORDINATES));
}

static void a_field_of_json_in_a_text(void **state)
{
    (void)state;
    const char *wrapped =
        "{\"Message\":\"{\\\"detail\\\":{\\\"id\\\":\\\"p-1\\\",\\\"n\\\":1.50},\\\"ts\\\":0}\",\"a\":7}";
    renders("${json:/Message:/detail/id}", wrapped, "p-1");
    renders("${json:/Message:/detail/n}", wrapped, "1.5");
    renders("${/a}:${json:/Message:/detail/id}", wrapped, "7:p-1");
    renders("${time:json:/Message:/ts:1h}", wrapped, "1970-01-01T00:00:00.000Z");
    fails("${json:/Message:/detail}", wrapped, "field 'json:/Message:/detail' is an object");
    fails("${json:/Message:/none}", wrapped, "missing field 'json:/Message:/none'");
    fails("${json:/None:/id}", wrapped, "missing field 'json:/None:/id'");
    fails("x${json:/a:/id}", wrapped, "field '/a' is not a text, so there is no JSON in it for 'json:/a:/id'");
    fails("${json:/Message:/id}", "{\"Message\":\"{oops\"}",
          "the text in field '/Message' is not JSON, so it has no 'json:/Message:/id': byte 2: member name expected");
    refused("${json:/Message}", "'${json:/Message}' is not a path: it names a text, and no field in it; write "
                                "json:/text:/field, or the pointer alone");
}

static void windows_of_time(void **state)
{
    (void)state;
    renders("${time:/ts:5m}", "{\"ts\":\"2026-01-31T12:04:59.999Z\"}", "2026-01-31T12:00:00.000Z");
    renders("${time:/ts:5m}", "{\"ts\":\"2026-01-31T13:05:00+01:00\"}", "2026-01-31T12:05:00.000Z");
    renders("${time:/ts:1d}", "{\"ts\":0}", "1970-01-01T00:00:00.000Z");
    renders("${time:/ts:1d}", "{\"ts\":-1}", "1969-12-31T00:00:00.000Z");
    renders("${time:/a/ts:1h}", "{\"a\":{\"ts\":\"3600000\"}}", "1970-01-01T01:00:00.000Z");
    renders("u:${/u}@${time:/ts:1h}", "{\"u\":\"x\",\"ts\":3600000}", "u:x@1970-01-01T01%3A00%3A00.000Z");
    fails("${time:/ts:5m}", "{}", "missing field '/ts'");
    fails("${time:/ts:5m}", "{\"ts\":\"yesterday\"}",
          "field '/ts' is not a time (RFC 3339 or milliseconds since 1970)");
    fails("${time:/ts:5m}", "{\"ts\":null}", "field '/ts' is not a time (RFC 3339 or milliseconds since 1970)");
    fails("${time:/ts:7m}", "{\"ts\":-9223372036854775808}", "field '/ts' is a time out of range");
}

/* The values are those of sha256sum, cut to 32 digits. */
static void the_hash_of_bytes_is_of_every_byte(void **state)
{
    (void)state;
    static const struct {
        once_bytes body;
        const char *hash;
    } cases[] = {
        {{0}, "e3b0c44298fc1c149afbf4c8996fb924"},
        {ONCE_BYTES("\0"), "6e340b9cffb37a989ca544e6bb780a2c"},
        {ONCE_BYTES("\xff\xfe"), "b3d510ef04275ca8e698e5b3cbb0ece3"},
        {ONCE_BYTES("{\"a\":1}"), "015abd7f5cc57a2dd94b7590f04ad808"},
        {ONCE_BYTES("{\"a\": 1}"), "f9d86028c6e0d64e225186f96acb6933"}, /* white space counts */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const once_message message = {.body = cases[i].body};
        const once_parsed input = {.message = &message};
        once_bytes out = {0};
        assert_int_equal(once_template_render(parsed("${hash}"), &input, &arena, &out, NULL), ONCE_OK);
        assert_int_equal(out.len, 32);
        assert_memory_equal(out.data, cases[i].hash, 32);
    }
}

static void it_knows_what_it_names(void **state)
{
    (void)state;
    static const struct {
        once_placeholder_kind kind;
        const char *name;
    } expected[] = {
        {ONCE_PLACE_HASH, ""},        {ONCE_PLACE_FIELD, "/a/b"},          {ONCE_PLACE_HEADER, "h"},
        {ONCE_PLACE_SOURCE, "key"},   {ONCE_PLACE_FIELD, "json:/m:/d/id"}, {ONCE_PLACE_TIME, "/ts"},
        {ONCE_PLACE_COORDINATES, ""},
    };
    const once_template *t =
        parsed("${hash}-${/a/b}$${/x}${header:h}${source:key}${json:/m:/d/id}${time:/ts:5m}${coordinates}");
    size_t at = 0;
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        const once_placeholder *place = once_template_next(t, &at);
        assert_non_null(place);
        assert_int_equal(place->kind, expected[i].kind);
        const once_bytes name = place->name.len ? place->name : place->path.text;
        assert_true(once_bytes_equal(name, bytes(expected[i].name)));
    }
    assert_null(once_template_next(t, &at));
    at = 0;
    assert_null(once_template_next(parsed("$${/id}"), &at));
}

static void the_hash_is_of_the_meaning(void **state)
{
    (void)state;
    static const char *const same[] = {"{\"a\":1,\"b\":[true,null,\"x\"]}",
                                       "{ \"b\" : [true, null, \"\\u0078\"], \"a\" : 1.0 }",
                                       "{\"\\u0061\":10e-1,\"b\":[true,null,\"x\"]}"};
    static const char *const others[] = {"{\"a\":\"1\",\"b\":[true,null,\"x\"]}",
                                         "{\"a\":1,\"b\":[null,true,\"x\"]}",
                                         "{\"a\":1}",
                                         "{}",
                                         "[]",
                                         "null",
                                         "{\"a\":1,\"b\":[true,null,\"x\"],\"c\":null}"};
    once_bytes first, next;
    assert_int_equal(render("${hash}", same[0], NULL, &first, NULL), ONCE_OK);
    assert_int_equal(first.len, 32);
    assert_int_equal(strspn(first.data, "0123456789abcdef"), 32);
    for (size_t i = 1; i < 3; i++) {
        assert_int_equal(render("${hash}", same[i], NULL, &next, NULL), ONCE_OK);
        assert_memory_equal(next.data, first.data, 32);
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        assert_int_equal(render("${hash}", others[i], NULL, &next, NULL), ONCE_OK);
        assert_memory_not_equal(next.data, first.data, 32);
    }
    /* it is stored: SHA-256 of {"a":1,"b":[true,null,"x"]}, cut */
    renders("${hash}", same[1], "eca8cfb31ab74533e1eb2f4c74d2d55d");
    once_error err = {0};
    const once_message none = {.no_body = true};
    const once_parsed input = {.message = &none};
    assert_int_equal(once_template_render(parsed("${hash}"), &input, &arena, &next, &err), ONCE_E_MESSAGE);
    assert_string_equal(err.text, "the message has no body, so it has no '${hash}'");
}

static void missing_values_are_the_messages_fault(void **state)
{
    (void)state;
    fails("${/payment_id}", "{}", "missing field '/payment_id'");
    fails("x:${/payment_id}", "{\"payment_id\":null}", "field '/payment_id' is null");
    fails("${/p}", "{\"p\":{}}", "field '/p' is an object");
    fails("${/p}", "{\"p\":[1]}", "field '/p' is an array");
    fails("${header:x}", "{}", "missing header 'x'");
    fails("${source:x}", "{}", "missing source 'x'");
    fails("${header:o}", "{}", "header 'o' is an object");
    once_bytes out;
    once_error err = {0};
    assert_int_equal(render("${/a}", NULL, NULL, &out, &err), ONCE_E_MESSAGE);
    assert_string_equal(err.text, "missing field '/a'");
    assert_int_equal(render("${header:a}", NULL, NULL, &out, &err), ONCE_E_MESSAGE);
    assert_string_equal(err.text, "missing header 'a'");
    once_parsed nowhere = {0};
    assert_int_equal(once_template_render(parsed("${coordinates}"), &nowhere, &arena, &out, &err), ONCE_E_MESSAGE);
    assert_string_equal(err.text, "the message has no coordinates");
}

static void f64_values_cannot_be_confused(void **state)
{
    (void)state;
    renders("a:${/x}:${/y}", "{\"x\":\"1:2\",\"y\":\"3\"}", "a:1%3A2:3");
    renders("a:${/x}:${/y}", "{\"x\":\"1\",\"y\":\"2:3\"}", "a:1:2%3A3");
    renders("${/x}${/y}", "{\"x\":\"1\",\"y\":\"23\"}", "1,23");
    renders("${/x}${/y}", "{\"x\":\"12\",\"y\":\"3\"}", "12,3");
    renders("${/x}${/y}", "{\"x\":\"1,\",\"y\":\"\"}", "1%2C,");
    renders("${/x}-${/y}", "{\"x\":\"%2D\",\"y\":\"-\"}", "%252D-%2D");
    /* a '%' of a literal is not the beginning of an escape */
    renders("${/x}%25${/y}", "{\"x\":\"%\",\"y\":\"\"}", "%25%%25");
    renders("${/x}%25${/y}", "{\"x\":\"\",\"y\":\"%\"}", "%%25%25");
}

static void f63_binary_values(void **state)
{
    (void)state;
    once_bytes out;
    assert_int_equal(render("${/x}", "{\"x\":\"a\\u0000b\"}", NULL, &out, NULL), ONCE_OK);
    assert_int_equal(out.len, 3);
    assert_memory_equal(out.data, "a\0b", 3);
    assert_int_equal(render("k:${/x}", "{\"x\":\"a\\u0000:\"}", NULL, &out, NULL), ONCE_OK);
    assert_int_equal(out.len, 7);
    assert_memory_equal(out.data, "k:a\0%3A", 7);
    /* 10 MB, every byte of it escaped */
    size_t len = 10u << 20;
    char *json = malloc(len + 9);
    assert_non_null(json);
    memset(json, ':', len + 8);
    memcpy(json, "{\"x\":\"", 6);
    memcpy(json + len + 6, "\"}", 3);
    assert_int_equal(render("k:${/x}", json, NULL, &out, NULL), ONCE_OK);
    assert_int_equal(out.len, 2 + 3 * len);
    free(json);
}

static void renders_plain(const char *template, const char *json, const char *expected, size_t len)
{
    once_bytes out = {0};
    once_parsed input = {.body = &body, .headers = &headers};
    assert_int_equal(once_json_parse(&body, bytes(json), NULL, NULL), ONCE_OK);
    assert_int_equal(once_json_parse(&headers, bytes("{\"tenant\":\"acme\"}"), NULL, NULL), ONCE_OK);
    assert_int_equal(once_template_render_plain(parsed(template), &input, &arena, &out, NULL), ONCE_OK);
    assert_int_equal(out.len, len);
    assert_memory_equal(out.data, expected, len + 1);
}

static void plain_is_what_was_written(void **state)
{
    (void)state;
    renders_plain("${/x}", "{\"x\":\"50%\"}", "50%", 3);
    renders_plain("a:${/x}:${/y}", "{\"x\":\"1:2\",\"y\":\"%3A\"}", "a:1:2:%3A", 9);
    renders_plain("${/x}${/y}", "{\"x\":\"1\",\"y\":\"2\"}", "12", 2);
    renders_plain("${/x},${/y}", "{\"x\":\"1\",\"y\":\"\"}", "1,", 2);
    renders_plain("100%", "{}", "100%", 4);
    renders_plain("${/x}%25${/y}", "{\"x\":\"%\",\"y\":\"\"}", "%%25", 4);
    renders_plain("$${x}", "{}", "${x}", 4);
    renders_plain("${/x}", "{\"x\":\"a\\u0000b\"}", "a\0b", 3);
    renders_plain("${header:tenant}=${/n}", "{\"n\":1.50}", "acme=1.5", 8);
    renders_plain("${/x}", "{\"x\":\"\"}", "", 0);

    once_bytes out = {0};
    once_error err = {0};
    once_parsed input = {.body = &body};
    assert_int_equal(once_template_render_plain(parsed("a${/none}"), &input, &arena, &out, &err), ONCE_E_MESSAGE);
    assert_string_equal(err.text, "missing field '/none'");

    assert_true(once_template_begins_literal(parsed("-${/x}")));
    assert_true(once_template_begins_literal(parsed("$${x}")));
    assert_false(once_template_begins_literal(parsed("${/x}-")));
}

static void refusals_say_what_to_do(void **state)
{
    (void)state;
    char text[6000];
    refused("", "a template cannot be empty; name a field, as in '${/id}'");
    refused("${}", "'${}' is empty; name a field, as in '${/id}'");
    refused("a${/id", "'${/id' has no closing '}'; a literal '${' is written '$${'");
    refused("${id}", "'${id}' is not understood; a field of the body is '${/id}', else there are ${json:/text:/field}, "
                     "${header:NAME}, ${coordinates}, ${hash} and ${time:/field:5m}");
    refused("${source:}", "'${source:}' names nothing; write a name, as in '${source:key}'");
    refused("${header:}", "'${header:}' names nothing; write a name, as in '${header:tenant}'");
    refused("${time:/ts}", "'${time:/ts}' is incomplete; write a field and a window, as in '${time:/ts:5m}'");
    refused("${time:}", "'${time:}' is incomplete; write a field and a window, as in '${time:/ts:5m}'");
    refused("${time:ts:5m}", "'${time:ts:5m}' is incomplete; write a field and a window, as in '${time:/ts:5m}'");
    refused("${time:/ts:0s}", "'${time:/ts:0s}' has a window of 0; write a length, as in '${time:/ts:5m}'");
    refused("${time:/ts:forever}",
            "'${time:/ts:forever}' has a window of forever; write a length, as in '${time:/ts:5m}'");
    once_error err = {0};
    const once_template *t = NULL;
    assert_int_equal(once_template_parse(&arena, bytes("${time:/ts:5}"), &t, &err), ONCE_E_USAGE);
    assert_non_null(strstr(err.text, "'${time:/ts:5}' has no window: duration '5' has no unit"));
    assert_int_equal(once_template_parse(&arena, bytes("${/a~4}"), &t, &err), ONCE_E_USAGE);
    assert_non_null(strstr(err.text, "'${/a~4}' is not a JSON pointer: "));
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    refused(text, "a template cannot be longer than 4096 bytes");
    text[0] = '\0';
    for (int i = 0; i < 65; i++) memcpy(text + 5 * i, "${/a}", 6);
    refused(text, "more than 64 placeholders");
    text[5 * 64] = '\0';
    (void)parsed(text);
}

static int end(void **state)
{
    (void)state;
    once_texts_release(&texts);
    once_arena_release(&arena);
    once_json_release(&body);
    once_json_release(&headers);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_pointer_gives_the_value_as_it_is),
        cmocka_unit_test(numbers_have_one_spelling),
        cmocka_unit_test(one_pointer_without_escapes_allocates_nothing),
        cmocka_unit_test(headers_coordinates_and_literals),
        cmocka_unit_test(a_field_of_json_in_a_text),
        cmocka_unit_test(windows_of_time),
        cmocka_unit_test(the_hash_is_of_the_meaning),
        cmocka_unit_test(the_hash_of_bytes_is_of_every_byte),
        cmocka_unit_test(it_knows_what_it_names),
        cmocka_unit_test(missing_values_are_the_messages_fault),
        cmocka_unit_test(f64_values_cannot_be_confused),
        cmocka_unit_test(f63_binary_values),
        cmocka_unit_test(plain_is_what_was_written),
        cmocka_unit_test(refusals_say_what_to_do),
    };
    return cmocka_run_group_tests(tests, NULL, end);
}
