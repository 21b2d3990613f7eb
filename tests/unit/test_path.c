/* Fields of JSON that is a text in the body. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "core/path.h"

static once_arena arena;
static once_json body;
static once_texts texts;

static once_path path_of(const char *text)
{
    once_path path = {0};
    once_error err = {0};
    if (once_path_parse(&arena, once_bytes_of(text), &path, &err) != ONCE_OK) fail_msg("%s: %s", text, err.text);
    assert_true(once_bytes_equal(path.text, once_bytes_of(text)));
    return path;
}

static void has_body(once_bytes text)
{
    assert_int_equal(once_json_parse(&body, text, NULL, NULL), ONCE_OK);
    once_texts_begin(&texts, &arena, 7);
}

static int find(const char *path, once_path_value *out, once_error *err)
{
    const once_path compiled = path_of(path);
    return once_path_find(&compiled, &body, &texts, out, err);
}

/* NULL: it is absent. */
static void finds(const char *path, const char *raw)
{
    once_path_value found;
    once_error err = {0};
    if (find(path, &found, &err) != ONCE_OK) fail_msg("%s: %s", path, err.text);
    if (!raw) assert_int_equal(found.value.type, ONCE_JSON_ABSENT);
    else assert_true(found.value.type != ONCE_JSON_ABSENT && once_bytes_equal(found.value.raw, once_bytes_of(raw)));
}

static void fails(const char *path, const char *why)
{
    once_path_value found;
    once_error err = {0};
    assert_int_equal(find(path, &found, &err), ONCE_E_MESSAGE);
    assert_string_equal(err.text, why);
}

static void refused(const char *text, const char *why)
{
    once_path path = {.n = 77};
    once_error err = {0};
    assert_int_equal(once_path_parse(&arena, once_bytes_of(text), &path, &err), ONCE_E_USAGE);
    assert_string_equal(err.text, why);
    assert_int_equal(path.n, 77);
}

#define THREE                                                                                                          \
    "{\"a\":\"{\\\"b\\\":\\\"{\\\\\\\"c\\\\\\\":17}\\\",\\\"x:\\\":{\\\"y\\\":\\\"[8]\\\"}}\",\"n\":null,\"i\":5,"     \
    "\"o\":{},\"bad\":\"{\",\"e\":\"\"}"

static void texts_are_entered_one_after_the_other(void **state)
{
    (void)state;
    has_body(ONCE_BYTES(THREE));
    finds("/i", "5");
    finds("json:/a:/b:/c", "17");
    finds("json:/a:/b:/none", NULL);
    finds("json:/a:/none:/c", NULL);
    finds("json:/none:/b", NULL);
    finds("json:/n:/b", NULL); /* null has nothing in it */
    finds("json:/a:/x~2/y:/0", "8");
    finds("json:/a:/x:/y", NULL); /* a field "x" that has a text */
}

static void what_is_no_json_is_named(void **state)
{
    (void)state;
    has_body(ONCE_BYTES(THREE));
    fails("json:/i:/b", "field '/i' is not a text, so there is no JSON in it for 'json:/i:/b'");
    fails("json:/o:/b", "field '/o' is not a text, so there is no JSON in it for 'json:/o:/b'");
    fails("json:/bad:/b",
          "the text in field '/bad' is not JSON, so it has no 'json:/bad:/b': byte 2: text ends inside a "
          "value");
    fails("json:/bad:/b",
          "the text in field '/bad' is not JSON, so it has no 'json:/bad:/b': byte 2: text ends inside a "
          "value"); /* nor is it the second time */
    fails("json:/e:/b", "the text in field '/e' is not JSON, so it has no 'json:/e:/b': byte 1: no value");
    fails("json:/a:/b:/c:/d", "field 'json:/a:/b:/c' is not a text, so there is no JSON in it for 'json:/a:/b:/c:/d'");
}

static void a_text_is_parsed_once(void **state)
{
    (void)state;
    once_path_value x, y, z;
    has_body(ONCE_BYTES(THREE));
    assert_int_equal(find("json:/a:/b", &x, NULL), ONCE_OK);
    assert_int_equal(find("json:/a:/x~2", &y, NULL), ONCE_OK);
    assert_int_equal(find("json:/a:/b:/c", &z, NULL), ONCE_OK);
    assert_ptr_equal(x.json, y.json);
    assert_ptr_not_equal(x.json, z.json);
    assert_ptr_not_equal(x.json, &body);
    has_body(ONCE_BYTES("{\"a\":\"{\\\"b\\\":2}\"}")); /* the next message */
    finds("json:/a:/b", "2");
    assert_int_equal(find("json:/a:/b", &x, NULL), ONCE_OK);
    assert_ptr_not_equal(x.json, &body);
}

static void a_body_without_fields_has_none(void **state)
{
    (void)state;
    once_path_value found;
    const once_path path = path_of("json:/a:/b");
    once_texts_begin(&texts, &arena, 0);
    assert_int_equal(once_path_find(&path, NULL, &texts, &found, NULL), ONCE_OK);
    assert_int_equal(found.value.type, ONCE_JSON_ABSENT);
}

/* A text of a megabyte, one that is nested too deeply, one with a name twice, and one with NUL. */
static void hostile_texts_are_refused_or_read(void **state)
{
    (void)state;
    once_buf deep;
    once_buf_init(&deep, 1000000);
    once_buf_puts(&deep, "{\"t\":\"");
    for (int i = 0; i < 100000; i++) once_buf_puts(&deep, "[");
    once_buf_puts(&deep, "\"}");
    has_body(once_buf_bytes(&deep));
    fails("json:/t:/b",
          "the text in field '/t' is not JSON, so it has no 'json:/t:/b': byte 129: nesting deeper than 128");
    once_buf_release(&deep);

    once_buf large;
    once_buf_init(&large, 2000000);
    once_buf_puts(&large, "{\"t\":\"{\\\"k\\\":\\\"");
    for (int i = 0; i < 50000; i++) once_buf_puts(&large, "0123456789abcdefghi ");
    once_buf_puts(&large, "\\\",\\\"n\\\":12345678901234567890123}\"}");
    has_body(once_buf_bytes(&large));
    finds("json:/t:/n", "12345678901234567890123");
    once_buf_release(&large);

    has_body(ONCE_BYTES("{\"t\":\"{\\\"a\\\":1,\\\"\\\\u0061\\\":2}\",\"z\":\"{\\\"a\\\":\\u0000}\",\"s\":\"{\\\"a\\\":"
                        "\\\"\\\\u0000\\\"}\"}"));
    fails("json:/t:/a", "the text in field '/t' is not JSON, so it has no 'json:/t:/a': byte 8: duplicate key");
    fails("json:/z:/a", "the text in field '/z' is not JSON, so it has no 'json:/z:/a': byte 6: raw NUL byte");
    finds("json:/s:/a", "\\u0000");
}

static void mistakes_say_what_to_do(void **state)
{
    (void)state;
    refused("json:", "a pointer is missing; write json:/text:/field");
    refused("json:/a", "it names a text, and no field in it; write json:/text:/field, or the pointer alone");
    refused("json:/a:b", "it names a text, and no field in it; write json:/text:/field, or the pointer alone");
    refused("json:a:/b", "JSON pointer 'a' does not begin with '/'; write '/a'");
    refused("json:/a:/b~4", "JSON pointer '/b~4' has a '~' without 0, 1, 2 or 3 behind it; write '~0' for '~'");
    refused("json:/1:/2:/3:/4:/5:/6:/7:/8:/9:/10", "it goes through more than 8 texts");
    (void)path_of("json:/1:/2:/3:/4:/5:/6:/7:/8:/9");
    assert_int_equal(path_of("json:/a:/").n, 2); /* a member without a name */
    assert_int_equal(path_of("/json:/a").n, 1);  /* a field of the body */
}

static int end(void **state)
{
    (void)state;
    once_texts_release(&texts);
    once_json_release(&body);
    once_arena_release(&arena);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_entered_one_after_the_other),
        cmocka_unit_test(what_is_no_json_is_named),
        cmocka_unit_test(a_text_is_parsed_once),
        cmocka_unit_test(a_body_without_fields_has_none),
        cmocka_unit_test(hostile_texts_are_refused_or_read),
        cmocka_unit_test(mistakes_say_what_to_do),
    };
    return cmocka_run_group_tests(tests, NULL, end);
}
