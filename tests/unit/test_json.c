/* The JSON scanner: what it accepts and refuses and where it says so, pointers, text, exact numbers, fingerprints.
 * tests/fuzz/fuzz_json.c compares it with jansson on texts that nobody thought of. */
#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/json.h"
#include "testlocale.h"

#define COUNT(array) (sizeof(array) / sizeof(*(array)))
#define TEXT(literal) ((once_bytes){(literal), sizeof(literal) - 1})

struct fixture {
    once_json json;
    once_arena arena;
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    if (!f) return -1;
    once_json_init(&f->json);
    once_arena_init(&f->arena);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    once_json_release(&f->json);
    once_arena_release(&f->arena);
    free(f);
    return 0;
}

static once_bytes bytes_of(const char *text) { return (once_bytes){text, strlen(text)}; }

/* Parses a copy that ends exactly with its allocation, so that a sanitizer sees every byte read too far. The copy
 * lives as long as the fixture. */
static once_json_value parse(struct fixture *f, once_bytes text)
{
    char *copy = once_arena_alloc(&f->arena, text.len);
    once_json_error err = {0};
    assert_non_null(copy);
    if (text.len) memcpy(copy, text.data, text.len);
    const int rc = once_json_parse(&f->json, (once_bytes){copy, text.len}, NULL, &err);
    if (rc) print_message("'%.*s' refused at %zu: %s\n", (int)text.len, text.data, err.offset, err.reason);
    assert_int_equal(rc, ONCE_OK);
    return once_json_root(&f->json);
}

static once_json_value parse_text(struct fixture *f, const char *text) { return parse(f, bytes_of(text)); }

static once_json_value find(struct fixture *f, const char *text)
{
    once_pointer pointer;
    once_error err = {0};
    const int rc = once_pointer_parse(&f->arena, bytes_of(text), &pointer, &err);
    if (rc) print_message("pointer '%s': %s\n", text, err.text);
    assert_int_equal(rc, ONCE_OK);
    return once_json_find(&f->json, &pointer);
}

static void assert_raw(once_json_value value, const char *raw)
{
    if (value.raw.len != strlen(raw) || memcmp(value.raw.data, raw, value.raw.len) != 0) {
        fail_msg("'%.*s' instead of '%s'", (int)value.raw.len, value.raw.data, raw);
    }
}

/* --- accepting and refusing --------------------------------------------------------------------------------------- */

static void accepts_every_kind_of_value(void **state)
{
    static const struct {
        const char *text;
        once_json_type type;
        const char *raw;
    } cases[] = {
        {"null", ONCE_JSON_NULL, "null"},
        {"true", ONCE_JSON_TRUE, "true"},
        {"false", ONCE_JSON_FALSE, "false"},
        {"0", ONCE_JSON_INTEGER, "0"},
        {"-0", ONCE_JSON_INTEGER, "-0"},
        {" 12 ", ONCE_JSON_INTEGER, "12"},
        {"-12", ONCE_JSON_INTEGER, "-12"},
        {"0.0", ONCE_JSON_REAL, "0.0"},
        {"1e1", ONCE_JSON_REAL, "1e1"},
        {"1E+1", ONCE_JSON_REAL, "1E+1"},
        {"-1.25e-07", ONCE_JSON_REAL, "-1.25e-07"},
        {"1e00", ONCE_JSON_REAL, "1e00"},
        {"\"\"", ONCE_JSON_STRING, ""},
        {"\"a b\"", ONCE_JSON_STRING, "a b"},
        {"\"\x7f\"", ONCE_JSON_STRING, "\x7f"},
        {"\"\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80 \xEF\xBF\xBF\"", ONCE_JSON_STRING,
         "\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80 \xEF\xBF\xBF"},
        {"\"\xF4\x8F\xBF\xBF\xC2\x80\xE0\xA0\x80\xED\x9F\xBF\xEE\x80\x80\xF0\x90\x80\x80\"", ONCE_JSON_STRING,
         "\xF4\x8F\xBF\xBF\xC2\x80\xE0\xA0\x80\xED\x9F\xBF\xEE\x80\x80\xF0\x90\x80\x80"},
        {"[]", ONCE_JSON_ARRAY, "[]"},
        {"{}", ONCE_JSON_OBJECT, "{}"},
        {"\t\r\n [ \t\r\n ] \t\r\n", ONCE_JSON_ARRAY, "[ \t\r\n ]"},
        {"{ \"\" : 1 , \"a\" : [ 1 , { } ] }", ONCE_JSON_OBJECT, "{ \"\" : 1 , \"a\" : [ 1 , { } ] }"},
        {"[[[[]]]]", ONCE_JSON_ARRAY, "[[[[]]]]"},
        {"[\"\\u0000\\uD83D\\uDE00\\\"\\\\\\/\\b\\f\\n\\r\\t\"]", ONCE_JSON_ARRAY,
         "[\"\\u0000\\uD83D\\uDE00\\\"\\\\\\/\\b\\f\\n\\r\\t\"]"},
        {"{\"a\":{\"a\":1},\"b\":{\"a\":1}}", ONCE_JSON_OBJECT, "{\"a\":{\"a\":1},\"b\":{\"a\":1}}"},
    };
    struct fixture *f = *state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        const once_json_value root = parse_text(f, cases[i].text);
        assert_int_equal(root.type, cases[i].type);
        assert_raw(root, cases[i].raw);
    }
}

struct refusal {
    const char *text;
    once_json_fault fault;
    size_t offset;
};

static void refuse(struct fixture *f, once_bytes text, once_json_fault fault, size_t offset)
{
    once_json_error err = {0};
    char *copy = malloc(text.len + !text.len);
    assert_non_null(copy);
    if (text.len) memcpy(copy, text.data, text.len);
    const int rc = once_json_parse(&f->json, (once_bytes){copy, text.len}, NULL, &err);
    free(copy);
    if (rc != ONCE_E_MESSAGE || err.fault != fault || err.offset != offset) {
        fail_msg("'%.*s': status %d, '%s' at %zu; wanted fault %d at %zu", (int)text.len, text.data, rc, err.reason,
                 err.offset, (int)fault, offset);
    }
    assert_true(strlen(err.reason) > 0);
    assert_int_equal(once_json_root(&f->json).type, ONCE_JSON_ABSENT);
}

#define F(name) ONCE_JSON_FAULT_##name

static void f65_refuses_malformed_text_and_says_where(void **state)
{
    static const struct refusal cases[] = {
        {"", F(EMPTY), 0},
        {" \n\t", F(EMPTY), 3},
        {"[", F(END), 1},
        {"{", F(END), 1},
        {"[1", F(END), 2},
        {"[1,", F(END), 3},
        {"{\"a\"", F(END), 4},
        {"{\"a\":", F(END), 5},
        {"{\"a\":1", F(END), 6},
        {"{\"a\":1,", F(END), 7},
        {"\"abc", F(END), 4},
        {"\"abc\\", F(END), 5},
        {"tru", F(END), 3},
        {"-", F(END), 1},
        {"1.", F(END), 2},
        {"1e", F(END), 2},
        {"1e+", F(END), 3},
        {"[[1] ", F(END), 5},
        {"[[]", F(END), 3},
        {"{\"a\":{}", F(END), 7},
        {"[\"abc]", F(END), 6},
        {"[\"abc] \n", F(CONTROL), 7},
        {"{\"a] ", F(END), 5},
        {"\"]", F(END), 2},
        {"1]", F(TRAILING), 1},
        {"-]", F(NUMBER), 1},
        {"t]", F(WORD), 0},
        {"[1e]", F(NUMBER), 3},
        {"[tru]", F(WORD), 1},
        {"[\"\\]", F(ESCAPE), 2},
        {"[\"\\u12]", F(ESCAPE), 2},
        {"[\"\xE2\x82]", F(UTF8), 2},
        {"{\"a\"]", F(COLON), 4},
        {"[-]", F(NUMBER), 2},
        {"{]", F(KEY), 1},
        {"[}", F(VALUE), 1},
        {"[,]", F(VALUE), 1},
        {"[1,]", F(VALUE), 3},
        {"[1,,2]", F(VALUE), 3},
        {"]", F(VALUE), 0},
        {"}", F(VALUE), 0},
        {",", F(VALUE), 0},
        {"+1", F(VALUE), 0},
        {".5", F(VALUE), 0},
        {"'a'", F(VALUE), 0},
        {"{\"a\":}", F(VALUE), 5},
        {"\xFF", F(VALUE), 0},
        {"// no\n1", F(VALUE), 0},
        {"{,}", F(KEY), 1},
        {"{1:2}", F(KEY), 1},
        {"{a:2}", F(KEY), 1},
        {"{\"a\":1,}", F(KEY), 7},
        {"{'a':1}", F(KEY), 1},
        {"{\"a\" 1}", F(COLON), 5},
        {"{\"a\"}", F(COLON), 4},
        {"{\"a\",1}", F(COLON), 4},
        {"[1 2]", F(ARRAY_NEXT), 3},
        {"[1}", F(ARRAY_NEXT), 2},
        {"[\"a\":1]", F(ARRAY_NEXT), 4},
        {"[1.2.3]", F(ARRAY_NEXT), 4},
        {"[truex]", F(ARRAY_NEXT), 5},
        {"{\"a\":1 \"b\":2}", F(OBJECT_NEXT), 7},
        {"{\"a\":1]", F(OBJECT_NEXT), 6},
        {"{\"a\":1:2}", F(OBJECT_NEXT), 6},
        {"nul1", F(WORD), 0},
        {"[True]", F(WORD), 1},
        {"NaN", F(WORD), 0},
        {"-Infinity", F(NUMBER), 1},
        {"[Infinity]", F(WORD), 1},
        {"fals]", F(WORD), 0},
        {"-a", F(NUMBER), 1},
        {"--1", F(NUMBER), 1},
        {"[1.]", F(NUMBER), 3},
        {"[1.e1]", F(NUMBER), 3},
        {"[1e]", F(NUMBER), 3},
        {"[1e+]", F(NUMBER), 4},
        {"[1eE1]", F(NUMBER), 3},
        {"01", F(ZERO), 0},
        {"[-01]", F(ZERO), 2},
        {"00", F(ZERO), 0},
        {"0x10", F(TRAILING), 1},
        {"\"\\x\"", F(ESCAPE), 1},
        {"\"ab\\u12\"", F(ESCAPE), 3},
        {"\"\\u12g4\"", F(ESCAPE), 1},
        {"\"\\U1234\"", F(ESCAPE), 1},
        {"\"\\u+123\"", F(ESCAPE), 1},
        {"\"\\'\"", F(ESCAPE), 1},
        {"\"\\ud800\\u12\"", F(ESCAPE), 7},
        {"\"\\ud800\"", F(SURROGATE), 1},
        {"\"a\\ud800x\"", F(SURROGATE), 2},
        {"\"\\udc00\"", F(SURROGATE), 1},
        {"\"\\ud800\\ud800\"", F(SURROGATE), 1},
        {"\"\\uDC00\\uD800\"", F(SURROGATE), 1},
        {"\"\\ud800\\n\"", F(SURROGATE), 1},
        {"\"a\nb\"", F(CONTROL), 2},
        {"\"a\tb\"", F(CONTROL), 2},
        {"\"\x1f\"", F(CONTROL), 1},
        {"{\"a\x01\":1}", F(CONTROL), 3},
        {"\"\x80\"", F(UTF8), 1},
        {"\"a\xC0\x80\"", F(UTF8), 2},
        {"\"\xC1\xBF\"", F(UTF8), 1},
        {"\"\xE0\x9F\xBF\"", F(UTF8), 1},
        {"\"\xED\xA0\x80\"", F(UTF8), 1},
        {"\"\xF0\x8F\xBF\xBF\"", F(UTF8), 1},
        {"\"\xF4\x90\x80\x80\"", F(UTF8), 1},
        {"\"\xF5\x80\x80\x80\"", F(UTF8), 1},
        {"\"\xFF\"", F(UTF8), 1},
        {"\"\xC3\"", F(UTF8), 1},
        {"\"\xE2\x82\"", F(UTF8), 1},
        {"\"\xC3\xA9\xE2\x82\"", F(UTF8), 3},
        {"\"\xF0\x9F\x98", F(UTF8), 1},
        {"{\"\xC3(\":1}", F(UTF8), 2},
        {"\xEF\xBB\xBF{}", F(BOM), 0},
        {"{\"a\":1,\"a\":2}", F(DUPLICATE), 7},
        {"1 2", F(TRAILING), 2},
        {"{} {}", F(TRAILING), 3},
        {"[]]", F(TRAILING), 2},
        {"\"a\"\"b\"", F(TRAILING), 3},
        {"true,", F(TRAILING), 4},
    };
    for (size_t i = 0; i < COUNT(cases); i++) refuse(*state, bytes_of(cases[i].text), cases[i].fault, cases[i].offset);
}

static void f65_refuses_raw_nul_everywhere(void **state)
{
    refuse(*state, TEXT("\"a\0b\""), F(NUL), 2);
    refuse(*state, TEXT("\0"), F(NUL), 0);
    refuse(*state, TEXT("[1\0]"), F(NUL), 2);
    refuse(*state, TEXT("{}\0"), F(NUL), 2);
    refuse(*state, TEXT("{\0}"), F(NUL), 1);
    refuse(*state, TEXT("{\"a\"\0:1}"), F(NUL), 4);
    refuse(*state, TEXT("{\"a\":1,\0\"b\":1}"), F(NUL), 7);
}

/* Every byte at every position of a string that is longer than a vector, and the text cut short everywhere. */
static void f65_sees_a_bad_byte_at_every_position(void **state)
{
    struct fixture *f = *state;
    char text[70];
    for (size_t len = 1; len <= 50; len++) {
        for (size_t at = 0; at < len; at++) {
            memset(text, 'x', sizeof(text));
            text[0] = '"';
            text[len + 1] = '"';
            text[at + 1] = '\x1f';
            refuse(f, (once_bytes){text, len + 2}, F(CONTROL), at + 1);
            text[at + 1] = '\xFF';
            refuse(f, (once_bytes){text, len + 2}, F(UTF8), at + 1);
            text[at + 1] = '\\';
            if (at + 1 < len) refuse(f, (once_bytes){text, len + 2}, F(ESCAPE), at + 1);
            text[at + 1] = '\x7f';
            parse(f, (once_bytes){text, len + 2});
            text[at + 1] = ' ';
            parse(f, (once_bytes){text, len + 2});
            text[at + 1] = '"';
            if (at + 1 < len) refuse(f, (once_bytes){text, len + 2}, F(TRAILING), at + 2);
        }
    }
}

static void f65_every_prefix_of_a_text_is_refused(void **state)
{
    static const char text[] =
        "{\"a\":[1,2.5e-3,\"x\\n\\ud83d\\ude00\xE2\x82\xAC\",true,false,null,{}],\"b\":{\"c\":-7}}";
    struct fixture *f = *state;
    once_json_error err;
    for (size_t len = 0; len < sizeof(text) - 1; len++) {
        char *copy = malloc(len + !len);
        assert_non_null(copy);
        if (len) memcpy(copy, text, len);
        assert_int_equal(once_json_parse(&f->json, (once_bytes){copy, len}, NULL, &err), ONCE_E_MESSAGE);
        assert_true(err.offset <= len);
        free(copy);
    }
    parse_text(f, text);
}

static void reasons_are_words(void **state)
{
    struct fixture *f = *state;
    const once_json_options options = {.max_depth = 2, .max_bytes = 10};
    once_json_error err = {0};
    assert_int_equal(once_json_parse(&f->json, TEXT("[[[]]]"), &options, &err), ONCE_E_MESSAGE);
    assert_string_equal(err.reason, "nesting deeper than 2");
    assert_int_equal(err.offset, 2);
    assert_int_equal(once_json_parse(&f->json, TEXT("[1,2,3,4,5]"), &options, &err), ONCE_E_MESSAGE);
    assert_string_equal(err.reason, "text is longer than 10 bytes");
    assert_int_equal(err.offset, 10);
    assert_int_equal(once_json_parse(&f->json, TEXT("{\"a\":1,\"a\":1}"), NULL, &err), ONCE_E_MESSAGE);
    assert_string_equal(err.reason, "duplicate key");
    assert_int_equal(once_json_parse(&f->json, TEXT("\"\xFF\""), NULL, &err), ONCE_E_MESSAGE);
    assert_string_equal(err.reason, "invalid UTF-8");
    assert_int_equal(once_json_parse(&f->json, TEXT("]"), NULL, NULL), ONCE_E_MESSAGE); /* nobody asks why */
}

static void success_leaves_the_error_alone(void **state)
{
    struct fixture *f = *state;
    once_json_error err = {.offset = 77, .fault = F(BOM), .reason = "untouched"};
    assert_int_equal(once_json_parse(&f->json, TEXT("{}"), NULL, &err), ONCE_OK);
    assert_int_equal(err.offset, 77);
    assert_string_equal(err.reason, "untouched");
}

static void can_demand_an_object(void **state)
{
    struct fixture *f = *state;
    const once_json_options options = {.object = true};
    once_json_error err;
    assert_int_equal(once_json_parse(&f->json, TEXT(" {}"), &options, &err), ONCE_OK);
    assert_int_equal(once_json_parse(&f->json, TEXT(" []"), &options, &err), ONCE_E_MESSAGE);
    assert_int_equal(err.fault, F(NOT_OBJECT));
    assert_int_equal(err.offset, 1);
    assert_int_equal(once_json_parse(&f->json, TEXT("  \"a\""), &options, &err), ONCE_E_MESSAGE);
    assert_int_equal(err.offset, 2);
    assert_int_equal(once_json_parse(&f->json, TEXT("{} x"), &options, &err), ONCE_E_MESSAGE);
    assert_int_equal(err.fault, F(TRAILING));
}

static void f65_depth_has_a_limit_and_costs_no_stack(void **state)
{
    enum { DEEP = 10000 };
    struct fixture *f = *state;
    char *text = malloc(2 * DEEP);
    once_json_error err;
    assert_non_null(text);
    memset(text, '[', DEEP);
    memset(text + DEEP, ']', DEEP);
    assert_int_equal(once_json_parse(&f->json, (once_bytes){text, 2 * DEEP}, NULL, &err), ONCE_E_MESSAGE);
    assert_int_equal(err.fault, F(DEPTH));
    assert_int_equal(err.offset, 128);
    assert_string_equal(err.reason, "nesting deeper than 128");

    assert_int_equal(once_json_parse(&f->json, (once_bytes){text + DEEP - 128, 256}, NULL, &err), ONCE_OK);
    assert_int_equal(once_json_parse(&f->json, (once_bytes){text + DEEP - 129, 258}, NULL, &err), ONCE_E_MESSAGE);

    const once_json_options deeper = {.max_depth = DEEP};
    assert_int_equal(once_json_parse(&f->json, (once_bytes){text, 2 * DEEP}, &deeper, &err), ONCE_OK);
    once_json_fingerprint(&f->json, once_json_root(&f->json), 1);
    free(text);
}

static void f65_ten_megabytes_in_one_string(void **state)
{
    const size_t len = 10u << 20;
    struct fixture *f = *state;
    char *text = malloc(len + 2);
    once_json_error err;
    assert_non_null(text);
    memset(text, 'x', len + 2);
    text[0] = text[len + 1] = '"';
    assert_int_equal(once_json_parse(&f->json, (once_bytes){text, len + 2}, NULL, &err), ONCE_OK);
    assert_int_equal(once_json_root(&f->json).raw.len, len);
    const once_hash plain = once_json_fingerprint(&f->json, once_json_root(&f->json), 1);
    text[len] = 'y';
    assert_false(once_hash_equal(plain, once_json_fingerprint(&f->json, once_json_root(&f->json), 1)));

    const once_json_options small = {.max_bytes = len};
    assert_int_equal(once_json_parse(&f->json, (once_bytes){text, len + 2}, &small, &err), ONCE_E_MESSAGE);
    assert_int_equal(err.fault, F(SIZE));
    free(text);
}

static void reuse_keeps_memory_and_gives_a_lot_of_it_back(void **state)
{
    struct fixture *f = *state;
    parse_text(f, "{\"a\":[1,2,3]}");
    const once_json_token *tokens = f->json.tokens;
    const struct once_json_frame *frames = f->json.frames;
    for (int i = 0; i < 100; i++) parse_text(f, "{\"b\":[{\"c\":\"d\"},2,3],\"e\":null}");
    assert_ptr_equal(f->json.tokens, tokens);
    assert_ptr_equal(f->json.frames, frames);

    const size_t len = 1u << 20;
    char *text = malloc(len + 1);
    assert_non_null(text);
    for (size_t i = 0; i < len; i += 2) memcpy(text + i, ",1", 2);
    text[0] = '[';
    text[len] = ']';
    assert_int_equal(once_json_parse(&f->json, (once_bytes){text, len + 1}, NULL, NULL), ONCE_OK);
    assert_true(f->json.capacity >= len / 2);
    free(text);
    parse_text(f, "{}");
    assert_true(f->json.capacity < 1000);
}

static void empty_documents_find_nothing(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(once_json_root(&f->json).type, ONCE_JSON_ABSENT);
    assert_int_equal(find(f, "").type, ONCE_JSON_ABSENT);
    assert_int_equal(find(f, "/a").type, ONCE_JSON_ABSENT);
    parse_text(f, "{\"a\":1}");
    assert_int_equal(once_json_parse(&f->json, (once_bytes){NULL, 0}, NULL, NULL), ONCE_E_MESSAGE);
    assert_int_equal(find(f, "/a").type, ONCE_JSON_ABSENT);
}

/* --- duplicate names ---------------------------------------------------------------------------------------------- */

static void f65_duplicates_however_they_are_spelled(void **state)
{
    static const struct refusal cases[] = {
        {"{\"a\":1,\"\\u0061\":2}", F(DUPLICATE), 7},
        {"{\"\\u0061\":1,\"a\":2}", F(DUPLICATE), 12},
        {"{\"\":1,\"\":2}", F(DUPLICATE), 6},
        {"{\"\\/\":1,\"b\":2,\"/\":2}", F(DUPLICATE), 14},
        {"{\"\\u0000\":1,\"\\u0000\":2}", F(DUPLICATE), 12},
        {"{\"\\ud83d\\ude00\":1,\"\xF0\x9F\x98\x80\":2}", F(DUPLICATE), 18},
        {"{\"\\u00E9\":1,\"\\u00e9\":2}", F(DUPLICATE), 12},
        {"{\"x\":{\"k\":1,\"k\":1}}", F(DUPLICATE), 12},
        {"[{\"k\":1},{\"k\":1,\"l\":{\"k\":1},\"k\":0}]", F(DUPLICATE), 28},
        {"{\"a_name_longer_than_sixteen\":1,\"a_name_longer_than_sixteen\":2}", F(DUPLICATE), 32},
        {"{\"a_name_longer_than_sixteen\":1,\"a_name_longer_than_sixt\\u0065en\":2}", F(DUPLICATE), 32},
    };
    for (size_t i = 0; i < COUNT(cases); i++) refuse(*state, bytes_of(cases[i].text), cases[i].fault, cases[i].offset);
    parse_text(*state,
               "{\"a\":1,\"A\":2,\"aa\":3,\"\\u0061a\\u0000\":4,\"\":5,\" \":6,\"\\u0000\":7,\"\\u0000\\u0000\":8}");
}

/* A name that is repeated at every distance, in objects around the size where searching becomes sorting. */
static void f65_duplicates_in_objects_of_every_size(void **state)
{
    struct fixture *f = *state;
    for (int count = 1; count <= 80; count++) {
        for (int repeated = 0; repeated<count; repeated += count> 40 ? 7 : 1) {
            char text[4096];
            size_t len = 0, offset;
            text[len++] = '{';
            for (int i = 0; i < count; i++)
                len += (size_t)snprintf(text + len, sizeof(text) - len, "\"name%d\":[%d],", i, i);
            offset = len;
            snprintf(text + len, sizeof(text) - len, "\"nam\\u0065%d\":{}}", repeated);
            refuse(f, bytes_of(text), F(DUPLICATE), offset);
            snprintf(text + len, sizeof(text) - len, "\"other\":{}}");
            parse_text(f, text);
        }
    }
}

static void f65_the_first_of_many_duplicates_is_reported(void **state)
{
    char text[4096];
    size_t len = 0, offset = 0;
    text[len++] = '{';
    for (int i = 0; i < 100; i++) {
        if (i == 60) offset = len;
        len += (size_t)snprintf(text + len, sizeof(text) - len, "\"k%d\":%d,", i < 60 ? i : 119 - i, i);
    }
    text[len - 1] = '}';
    refuse(*state, (once_bytes){text, len}, F(DUPLICATE), offset);
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static size_t put_name(char *out, int i) { return (size_t)snprintf(out, 24, "\"name-%06d\":%d,", i, i % 10); }

static void f64_a_hundred_thousand_names_are_not_quadratic(void **state)
{
    enum { NAMES = 100000 };
    struct fixture *f = *state;
    char *text = malloc((size_t)NAMES * 24 + 64);
    size_t len = 0;
    assert_non_null(text);
    text[len++] = '{';
    for (int i = 0; i < NAMES; i++) len += put_name(text + len, i);
    text[len - 1] = '}';
    const double start = cpu_seconds();
    assert_int_equal(once_json_parse(&f->json, (once_bytes){text, len}, NULL, NULL), ONCE_OK);
    assert_true(cpu_seconds() - start < 3.0); /* 5 * 10^9 comparisons would take longer, sanitizers do not */

    once_json_error err;
    const size_t offset = len;
    text[len - 1] = ',';
    len += put_name(text + len, 5);
    text[len - 1] = '}';
    assert_int_equal(once_json_parse(&f->json, (once_bytes){text, len}, NULL, &err), ONCE_E_MESSAGE);
    assert_int_equal(err.fault, F(DUPLICATE));
    assert_int_equal(err.offset, offset);
    free(text);
}

/* Eight bytes that stand for themselves in a string? */
static bool is_plain(uint64_t bytes)
{
    for (int i = 0; i < 8; i++, bytes >>= 8) {
        const unsigned c = bytes & 0xFF;
        if (c < ' ' || c > '~' || c == '"' || c == '\\') return false;
    }
    return true;
}

/* The worst case: somebody knows the seed (0) and builds names that all have one hash. From random first halves, the
 * second half that leads to it is often enough made of printable characters. */
static void f64_names_crafted_to_collide_cost_n_log_n(void **state)
{
    enum { NAMES = 20000, EACH = 21 };
    struct fixture *f = *state;
    char *text = malloc((size_t)NAMES * EACH + 1);
    size_t len = 0;
    uint64_t tries = 0;
    assert_non_null(text);
    text[len++] = '{';
    while (len <= (size_t)(NAMES - 1) * EACH + 1) {
        uint64_t x = 0;
        tries++;
        for (int i = 0; i < 8; i++) x |= ('@' + (tries >> (4 * i) & 15)) << (8 * i);
        const uint64_t product = x * 0x9E3779B97F4A7C15u; /* as in json.c, hash_plain() */
        const uint64_t y = (product ^ product >> 32) ^ 0x5050505050505050u;
        if (!is_plain(y)) continue;
        memcpy(text + len, "\"xxxxxxxxyyyyyyyy\":0,", EACH);
        memcpy(text + len + 1, &x, 8);
        memcpy(text + len + 9, &y, 8);
        len += EACH;
    }
    text[len - 1] = '}';
    const double start = cpu_seconds();
    const int rc = once_json_parse(&f->json, (once_bytes){text, len}, NULL, NULL);
    const double took = cpu_seconds() - start;
    assert_int_equal(rc, ONCE_OK);
    assert_int_equal(f->json.tokens[1].next, f->json.tokens[3].next); /* they do collide; else follow hash_plain() */
    assert_true(took < 1.0);
    once_json_error err;
    memcpy(text + len - EACH, text + 1, EACH - 1); /* the last becomes the first again */
    assert_int_equal(once_json_parse(&f->json, (once_bytes){text, len}, NULL, &err), ONCE_E_MESSAGE);
    assert_int_equal(err.fault, F(DUPLICATE));
    assert_int_equal(err.offset, len - EACH);
    free(text);
}

/* --- walking and pointers ----------------------------------------------------------------------------------------- */

static void pointers_of_rfc_6901(void **state)
{
    static const struct {
        const char *pointer, *raw;
    } cases[] = {
        {"/foo", "[\"bar\", \"baz\"]"},
        {"/foo/0", "bar"},
        {"/foo/1", "baz"},
        {"/", "0"},
        {"/a~1b", "1"},
        {"/c%d", "2"},
        {"/e^f", "3"},
        {"/g|h", "4"},
        {"/i\\j", "5"},
        {"/k\"l", "6"},
        {"/ ", "7"},
        {"/m~0n", "8"},
        {"/deep/0/x/1", "10"},
        {"/deep/0/~01", "11"},
        {"/\xC3\xA9", "12"},
        {"/0", "13"},
    };
    static const char *const missing[] = {
        "/fo",
        "/fooo",
        "/foo/2",
        "/foo/-",
        "/foo/00",
        "/foo/01",
        "/foo/+1",
        "/foo/ 1",
        "/foo/1a",
        "/foo/",
        "/foo/0/0",
        "/foo/bar",
        "/foo/18446744073709551616",
        "/foo/4294967296",
        "/foo/4294967295",
        "//",
        "/deep/x",
        "/a",
        "/a/b",
        "/m~1n",
    };
    struct fixture *f = *state;
    const once_json_value root = parse_text(f, "{\"foo\": [\"bar\", \"baz\"], \"\": 0, \"a/b\": 1, \"c%d\": 2, "
                                               "\"e^f\": 3, \"g|h\": 4, \"i\\\\j\": 5, \"k\\\"l\": 6, "
                                               "\" \": 7, \"m~n\": 8, \"deep\": [{\"y\": {\"x\": []}, \"x\": [9, 10], "
                                               "\"~1\": 11}], \"\\u00e9\": 12, \"0\": 13}");
    for (size_t i = 0; i < COUNT(cases); i++) assert_raw(find(f, cases[i].pointer), cases[i].raw);
    for (size_t i = 0; i < COUNT(missing); i++) {
        if (find(f, missing[i]).type != ONCE_JSON_ABSENT) fail_msg("'%s' found something", missing[i]);
    }
    assert_int_equal(find(f, "").token, root.token);
    assert_int_equal(find(f, "").raw.len, root.raw.len);
}

static void pointers_that_are_none(void **state)
{
    static const char *const wrong[] = {"a", "a/b", "/~", "/~4", "/a~", "/a/~x/b", " /a", "#/a"};
    struct fixture *f = *state;
    for (size_t i = 0; i < COUNT(wrong); i++) {
        once_pointer pointer = {.count = 99};
        once_error err = {0};
        assert_int_equal(once_pointer_parse(&f->arena, bytes_of(wrong[i]), &pointer, &err), ONCE_E_USAGE);
        assert_int_equal(pointer.count, 99);
        assert_non_null(strstr(err.text, wrong[i]));
        assert_int_equal(once_pointer_parse(&f->arena, bytes_of(wrong[i]), &pointer, NULL), ONCE_E_USAGE);
    }
}

static void pointers_own_their_text(void **state)
{
    struct fixture *f = *state;
    char text[] = "/a~1b/7";
    once_pointer pointer;
    assert_int_equal(once_pointer_parse(&f->arena, bytes_of(text), &pointer, NULL), ONCE_OK);
    memset(text, '?', sizeof(text));
    assert_int_equal(pointer.count, 2);
    assert_memory_equal(pointer.text.data, "/a~1b/7", 7);
    assert_memory_equal(pointer.steps[0].name.data, "a/b", 3);
    assert_int_equal(pointer.steps[0].index, UINT32_MAX);
    assert_int_equal(pointer.steps[1].index, 7);
    assert_int_equal(once_pointer_parse(&f->arena, TEXT("/a\0b"), &pointer, NULL), ONCE_OK);
    parse_text(f, "{\"a\":1,\"a\\u0000b\":2}");
    assert_raw(once_json_find(&f->json, &pointer), "2");
}

static void walks_in_the_order_of_the_text(void **state)
{
    struct fixture *f = *state;
    const once_json_value root = parse_text(f, "{\"b\":1,\"a\":[10,[11],{\"z\":12},\"\"],\"\\u0063\":{}}");
    static const char *const keys[] = {"b", "a", "\\u0063"}, *const values[] = {"1", "[10,[11],{\"z\":12},\"\"]", "{}"};
    static const char *const elements[] = {"10", "[11]", "{\"z\":12}", ""};
    int i = 0;
    once_json_iter it = once_json_each(&f->json, root);
    for (; once_json_next(&it); i++) {
        assert_raw(it.key, keys[i]);
        assert_raw(it.value, values[i]);
    }
    assert_int_equal(i, 3);
    it = once_json_each(&f->json, find(f, "/a"));
    for (i = 0; once_json_next(&it); i++) {
        assert_int_equal(it.key.type, ONCE_JSON_ABSENT);
        assert_raw(it.value, elements[i]);
        assert_raw(once_json_element(&f->json, find(f, "/a"), (uint32_t)i), elements[i]);
    }
    assert_int_equal(i, 4);
    static const char *const nothing[] = {"/b", "/c", "/a/3", "/absent"};
    for (size_t n = 0; n < COUNT(nothing); n++) {
        it = once_json_each(&f->json, find(f, nothing[n]));
        assert_false(once_json_next(&it));
    }
    assert_raw(once_json_member(&f->json, root, TEXT("c")), "{}");
    assert_int_equal(once_json_member(&f->json, root, TEXT("z")).type, ONCE_JSON_ABSENT);
    assert_int_equal(once_json_member(&f->json, find(f, "/a"), TEXT("0")).type, ONCE_JSON_ABSENT);
    assert_int_equal(once_json_member(&f->json, root, (once_bytes){NULL, 0}).type, ONCE_JSON_ABSENT);
    assert_int_equal(once_json_element(&f->json, root, 0).type, ONCE_JSON_ABSENT);
    assert_int_equal(once_json_element(&f->json, find(f, "/a"), 4).type, ONCE_JSON_ABSENT);
}

/* --- text --------------------------------------------------------------------------------------------------------- */

static void unescapes(void **state)
{
    static const struct {
        const char *text;
        once_bytes plain;
    } cases[] = {
        {"\"\"", {"", 0}},
        {"\"plain\"", {"plain", 5}},
        {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", {"\"\\/\b\f\n\r\t", 8}},
        {"\"\\u0000\"", {"\0", 1}},
        {"\"a\\u0000b\"", {"a\0b", 3}},
        {"\"\\u0041\\u007f\\u0080\\u07FF\\u0800\\uffff\"", {"A\x7F\xC2\x80\xDF\xBF\xE0\xA0\x80\xEF\xBF\xBF", 12}},
        {"\"\\uD800\\uDC00\\uDBFF\\uDFFF\"", {"\xF0\x90\x80\x80\xF4\x8F\xBF\xBF", 8}},
        {"\"\\ud83d\\ude00 \xF0\x9F\x98\x80\"", {"\xF0\x9F\x98\x80 \xF0\x9F\x98\x80", 9}},
        {"\"\\\\u0041\"", {"\\u0041", 6}},
        {"\"\xE2\x82\xAC\\u20ac\"", {"\xE2\x82\xAC\xE2\x82\xAC", 6}},
    };
    struct fixture *f = *state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        const once_json_value value = parse_text(f, cases[i].text);
        once_bytes text;
        assert_true(once_json_string(value, &f->arena, &text));
        assert_int_equal(text.len, cases[i].plain.len);
        assert_memory_equal(text.data, cases[i].plain.data, text.len);
        assert_true(once_json_string_is(value, cases[i].plain));
        assert_false(once_json_string_is(value, TEXT("something else")));
        if (text.len) assert_false(once_json_string_is(value, (once_bytes){text.data, text.len - 1}));
        assert_int_equal(value.escaped, memchr(cases[i].text, '\\', strlen(cases[i].text)) != NULL);
        if (!value.escaped) assert_ptr_equal(text.data, value.raw.data); /* not copied */
    }
    once_bytes text = {"untouched", 9};
    assert_false(once_json_string(parse_text(f, "1"), &f->arena, &text));
    assert_false(once_json_string((once_json_value){0}, &f->arena, &text));
    assert_int_equal(text.len, 9);
    assert_false(once_json_string_is(parse_text(f, "null"), TEXT("null")));
}

/* Escapes at every position around the size of the chunks that hashing unescapes into. */
static void long_escaped_text_is_the_same_text(void **state)
{
    struct fixture *f = *state;
    for (size_t len = 1; len < 1200; len += len < 40 ? 1 : 61) {
        for (size_t at = 0; at < len; at += 1 + len / 7) {
            char plain[1300], escaped[1400];
            memset(plain, 'p', sizeof(plain));
            memset(escaped, 'p', sizeof(escaped));
            plain[0] = escaped[0] = '"';
            memcpy(plain + 1 + at, "\xE2\x82\xAC", 3);
            memcpy(escaped + 1 + at, "\\u20aC", 6);
            plain[len + 4] = escaped[len + 7] = '"';
            const once_json_value x = parse(f, (once_bytes){plain, len + 5});
            const once_hash hash = once_json_fingerprint(&f->json, x, 3);
            once_bytes text;
            const once_json_value y = parse(f, (once_bytes){escaped, len + 8});
            assert_true(y.escaped);
            assert_true(once_json_string(y, &f->arena, &text));
            assert_int_equal(text.len, len + 3);
            assert_memory_equal(text.data, plain + 1, text.len);
            assert_true(once_hash_equal(hash, once_json_fingerprint(&f->json, y, 3)));
        }
        once_arena_reset(&f->arena);
    }
}

/* --- numbers ------------------------------------------------------------------------------------------------------ */

static void integers_are_exact_to_64_bits(void **state)
{
    static const struct {
        const char *text;
        int64_t value;
    } good[] = {
        {"0", 0},
        {"-0", 0},
        {"0.000", 0},
        {"-0e5", 0},
        {"0e99999999999999999999999", 0},
        {"7", 7},
        {"-7", -7},
        {"1000", 1000},
        {"9007199254740993", 9007199254740993},
        {"9223372036854775807", INT64_MAX},
        {"-9223372036854775808", INT64_MIN},
        {"-9223372036854775807", -INT64_MAX},
        {"9223372036854775807.000", INT64_MAX},
        {"92233720368547758.07e2", INT64_MAX},
        {"1.0", 1},
        {"1e3", 1000},
        {"1E+3", 1000},
        {"1.5e1", 15},
        {"1200e-2", 12},
        {"10e-1", 1},
        {"1e18", 1000000000000000000},
        {"9e18", 9000000000000000000},
        {"0.001e3", 1},
        {"100000000000000000000000000e-26", 1},
    };
    static const char *const bad[] = {
        "9223372036854775808",
        "-9223372036854775809",
        "9223372036854775807.1",
        "1.5",
        "1e-1",
        "0.1",
        "1e19",
        "1e20",
        "18446744073709551615",
        "18446744073709551616",
        "99999999999999999999",
        "1e400",
        "1e99999999999999999999",
        "1e-99999999999999999999",
        "\"1\"",
        "null",
        "true",
        "[]",
    };
    struct fixture *f = *state;
    int64_t got;
    for (size_t i = 0; i < COUNT(good); i++) {
        got = 42;
        if (!once_json_int64(parse_text(f, good[i].text), &got) || got != good[i].value)
            fail_msg("%s gave %lld", good[i].text, (long long)got);
    }
    got = 42;
    for (size_t i = 0; i < COUNT(bad); i++) {
        if (once_json_int64(parse_text(f, bad[i]), &got)) fail_msg("%s gave %lld", bad[i], (long long)got);
    }
    assert_false(once_json_int64((once_json_value){0}, &got));
    assert_int_equal(got, 42);
}

static void doubles_are_rounded_correctly(void **state)
{
    static const char *const good[] = {
        "0",
        "1",
        "-1.5",
        "0.1",
        "3.141592653589793238462643383279",
        "1e308",
        "-1.7976931348623157e308",
        "5e-324",
        "2.2250738585072011e-308",
        "9007199254740993",
        "123456789012345678901234567890",
        "1e23",
        "8.41e21",
        "1e-400",
        "179769313486231580793e288",
    };
    struct fixture *f = *state;
    for (size_t i = 0; i < COUNT(good); i++) {
        double got = -42;
        assert_true(once_json_double(parse_text(f, good[i]), &got));
        assert_true(got == strtod(good[i], NULL));
    }
    double got = -42;
    static const char *const bad[] = {"1e400", "-1e400", "1e309", "1.8e308", "1e99999999999999999999999",
                                      "\"1\"", "true",   "{}"};
    for (size_t i = 0; i < COUNT(bad); i++) assert_false(once_json_double(parse_text(f, bad[i]), &got));
    assert_true(got == -42);
    assert_true(once_json_double(parse_text(f, "1e-99999999999999999999999"), &got) && got == 0);
    assert_true(once_json_double(parse_text(f, "0e99999999999999999999999"), &got) && got == 0);
}

/* Half way between two doubles, and just above it only a thousand digits later. */
static void doubles_look_at_every_digit(void **state)
{
    struct fixture *f = *state;
    char text[1400];
    double tie, above;
    assert_true(once_json_double(parse_text(f, "9007199254740993.0"), &tie)); /* 2^53 + 1 */
    assert_true(tie == 9007199254740992.0);
    memset(text, '0', sizeof(text));
    memcpy(text, "9007199254740993.", 17);
    text[1200] = '1';
    assert_true(once_json_double(parse(f, (once_bytes){text, 1201}), &above));
    assert_true(above == 9007199254740994.0);
    assert_true(once_json_double(parse(f, (once_bytes){text, 1200}), &above));
    assert_true(above == 9007199254740992.0);
}

static void f87_numbers_that_survive_a_double(void **state)
{
    struct fixture *f = *state;
    static const char *const good[] = {
        "0.0",
        "-0.0",
        "0e5",
        "0.1",
        "-0.1",
        "12.75",
        "1.10",
        "1e3",
        "1E+3",
        "100.00",
        "1e22",
        "1e23",
        "123456789012345.6",
        "0.30000000000000004",
        "1.7976931348623157e308",
        "2.2250738585072014e-308",
        "5e-324",
        "1e-323",
        "9007199254740992.0",
        "4503599627370495.5",
        "1e300",
        "9.5367431640625e-7",
    };
    static const char *const bad[] = {
        "12345678901234567.89",
        "0.1000000000000000055",
        "0.10000000000000001",
        "9007199254740993.0",
        "0.30000000000000003",
        "1e400",
        "-1e400",
        "1e-400",
        "4.9e-324",
        "4e-324",
        "1.7976931348623159e308",
        "123456789012345678.0",
        "3.14159265358979323846",
        "1e99999999999999999999999",
        "1e-99999999999999999999999",
    };
    double got;
    for (size_t i = 0; i < COUNT(good); i++)
        if (!once_json_survives_double(parse_text(f, good[i]), &got) || got != strtod(good[i], NULL))
            fail_msg("%s does not survive", good[i]);
    for (size_t i = 0; i < COUNT(bad); i++)
        if (once_json_survives_double(parse_text(f, bad[i]), &got)) fail_msg("%s survives", bad[i]);
}

static void f97_numbers_do_not_care_about_the_locale(void **state)
{
    struct fixture *f = *state;
    double got, long_one;
    test_locale_enter();
    const bool comma = strcmp(localeconv()->decimal_point, ",") == 0;
    const bool read = once_json_double(parse_text(f, "1.5"), &got);
    const bool survives = once_json_survives_double(parse_text(f, "0.30000000000000004"), &long_one);
    const bool rounded = once_json_survives_double(parse_text(f, "0.30000000000000003"), &long_one);
    test_locale_leave();
    assert_true(comma);
    assert_true(read && got == 1.5);
    assert_true(survives);
    assert_false(rounded);
}

static void canonical_spellings(void **state)
{
    static const struct {
        const char *text, *canonical;
    } cases[] = {
        {"0", "0"},
        {"-0", "0"},
        {"-0.0e7", "0"},
        {"0e99999999999999999999", "0"},
        {"1", "1"},
        {"1.0", "1"},
        {"10e-1", "1"},
        {"0.1e1", "1"},
        {"1000", "1000"},
        {"1e3", "1000"},
        {"-12.50", "-12.5"},
        {"0.05", "0.05"},
        {"5e-2", "0.05"},
        {"-0.5", "-0.5"},
        {"100.001", "100.001"},
        {"100001e-3", "100.001"},
        {"0.00100", "0.001"},
        {"10.0100e2", "1001"},
        {"123456789012345678901234567890", "123456789012345678901234567890"},
        {"1e63", "1000000000000000000000000000000000000000000000000000000000000000"},
        {"1e64", "1e64"},
        {"12e98", "12e98"},
        {"1200e96", "12e98"},
        {"1e-64", "0.0000000000000000000000000000000000000000000000000000000000000001"},
        {"1e-65", "1e-65"},
        {"-1.5e-100", "-15e-101"},
        {"1e4611686018427387903", "1e4611686018427387903"},
        {"0.1e4611686018427387904", "1e4611686018427387903"},
        {"10e-4611686018427387904", "1e-4611686018427387903"},
    };
    static const char *const beyond[] = {"1e4611686018427387904",   "10e4611686018427387903",
                                         "1e-4611686018427387904",  "1e9223372036854775807",
                                         "-1e-9223372036854775808", "1e99999999999999999999999999999"};
    struct fixture *f = *state;
    once_decimal decimal;
    for (size_t i = 0; i < COUNT(cases); i++) {
        once_bytes text;
        assert_true(once_json_decimal(parse_text(f, cases[i].text), &decimal));
        assert_true(once_decimal_text(&decimal, &f->arena, &text));
        assert_string_equal(text.data, cases[i].canonical);
        assert_int_equal(text.len, strlen(cases[i].canonical));
    }
    for (size_t i = 0; i < COUNT(beyond); i++) {
        if (once_json_decimal(parse_text(f, beyond[i]), &decimal)) fail_msg("%s has a decimal", beyond[i]);
    }
    assert_false(once_json_decimal(parse_text(f, "\"1\""), &decimal));
    assert_false(once_json_decimal((once_json_value){0}, &decimal));
}

static void decimals_are_ordered_by_value(void **state)
{
    /* ascending, equal ones separated by = */
    static const char *const order[] = {
        "-1e100",
        "-12",
        "-1.5",
        "-1.49999999999999999999999",
        "-1",
        "=",
        "-1.0",
        "-1e-9999",
        "0",
        "=",
        "-0",
        "=",
        "0.000",
        "1e-9999",
        "0.1",
        "=",
        "1e-1",
        "0.11",
        "1",
        "=",
        "10e-1",
        "1.5",
        "=",
        "150e-2",
        "9",
        "10",
        "=",
        "1e1",
        "11",
        "9007199254740992",
        "9007199254740993",
        "=",
        "9007199254740993.000",
        "18446744073709551616",
        "=",
        "18446744073709551616e0",
        "99e98",
        "1e100",
        "=",
        "10e99",
        "1e4611686018427387903",
    };
    struct fixture *f = *state;
    once_decimal decimals[COUNT(order)];
    int rank[COUNT(order)], at = 0;
    size_t count = 0;
    for (size_t i = 0; i < COUNT(order); i++) {
        if (order[i][0] == '=') {
            at--;
            continue;
        }
        assert_true(once_json_decimal(parse_text(f, order[i]), &decimals[count])); /* the copies stay in the arena */
        rank[count++] = at++;
    }
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < count; j++) {
            const int wanted = (rank[i] > rank[j]) - (rank[i] < rank[j]);
            assert_int_equal(once_decimal_compare(&decimals[i], &decimals[j]), wanted);
        }
    }
}

/* --- fingerprints ------------------------------------------------------------------------------------------------- */

static once_hash fingerprint(struct fixture *f, const char *text)
{
    const once_json_value root = parse_text(f, text);
    return once_json_fingerprint(&f->json, root, 42);
}

static void fingerprints_of_equal_meanings_are_equal(void **state)
{
    static const char *const pairs[][2] = {
        {"{\"a\":1,\"b\":2}", "{\"b\":2,\"a\":1}"},
        {"{\"a\":1,\"b\":[1,2]}", " {\n\t\"b\" : [ 1 , 2 ] ,\r\"a\" : 1 } "},
        {"\"A\"", "\"\\u0041\""},
        {"\"\xF0\x9F\x98\x80\"", "\"\\ud83d\\ude00\""},
        {"{\"a/b\":1}", "{\"\\u0061\\/b\":1}"},
        {"\"\\u0000\"", "\"\\u0000\""},
        {"1", "1.0"},
        {"1", "10e-1"},
        {"1", "0.1E+1"},
        {"-0", "0"},
        {"0", "0.000e-5"},
        {"0", "0e99999999999999999999"},
        {"1000", "1e3"},
        {"-1250", "-12.50e2"},
        {"0.35", "35e-2"},
        {"12345678901234567890123", "1234567890123456789012.3e1"},
        {"12345678901234567890123", "12345678901234567890123.000"},
        {"123456789012345678000", "123456789012345678e3"},
        {"123456789012345678", "1234567890123456780e-1"},
        {"999999999999999999", "999999999999999999.0"},
        {"{\"x\":{\"a\":1,\"b\":{\"c\":[],\"d\":{}}},\"y\":0}",
         "{\"y\":0.0,\"x\":{\"b\":{\"d\":{ },\"c\":[ ]},\"a\":1}}"},
        {"[{\"a\":1,\"b\":2},{\"c\":3}]", "[{\"b\":2,\"a\":1},{\"c\":3}]"},
        {"1e99999999999999999999", "1e99999999999999999999"},
    };
    struct fixture *f = *state;
    for (size_t i = 0; i < COUNT(pairs); i++) {
        if (!once_hash_equal(fingerprint(f, pairs[i][0]), fingerprint(f, pairs[i][1])))
            fail_msg("%s and %s differ", pairs[i][0], pairs[i][1]);
    }
}

static void fingerprints_of_different_meanings_differ(void **state)
{
    static const char *const texts[] = {
        "null",
        "true",
        "false",
        "0",
        "1",
        "-1",
        "10",
        "100",
        "0.1",
        "1.5",
        "\"\"",
        "\"0\"",
        "\"1\"",
        "\"null\"",
        "\"true\"",
        "\" \"",
        "\"\\u0000\"",
        "\"\\u0000\\u0000\"",
        "\"a\"",
        "\"A\"",
        "\"a\\u0000\"",
        "\"ab\"",
        "[]",
        "{}",
        "[[]]",
        "[{}]",
        "[null]",
        "[[],[]]",
        "[[[]]]",
        "[0]",
        "[1]",
        "[1,2]",
        "[2,1]",
        "[12]",
        "[1,[2]]",
        "[[1],2]",
        "[[1,2]]",
        "[\"a\",\"b\"]",
        "[\"ab\"]",
        "[\"a\",\"b\",\"\"]",
        "[\"\",\"a\",\"b\"]",
        "[1,1]",
        "[1,1,1]",
        "[null,null]",
        "{\"a\":1}",
        "{\"a\":\"1\"}",
        "{\"a\":null}",
        "{\"a\":{}}",
        "{\"a\":[]}",
        "{\"a\":\"\"}",
        "{\"\":\"a\"}",
        "{\"\":{}}",
        "{\"a\":{\"b\":1}}",
        "{\"a\":1,\"b\":1}",
        "{\"a\":{},\"b\":1}",
        "{\"b\":{\"a\":1}}",
        "{\"a\":{\"b\":{\"c\":1}}}",
        "{\"a\":{\"c\":{\"b\":1}}}",
        "{\"a\":\"b\",\"b\":\"a\"}",
        "{\"a\":\"a\",\"b\":\"b\"}",
        "{\"a\":\"b\"}",
        "{\"b\":\"a\"}",
        "{\"ab\":\"\"}",
        "{\"a\":{\"b\":1},\"c\":{\"d\":2}}",
        "{\"a\":{\"d\":2},\"c\":{\"b\":1}}",
        "{\"a\":{\"b\":2},\"c\":{\"d\":1}}",
        "{\"a\":[1,2]}",
        "{\"a\":[2,1]}",
        "{\"a\":[{\"b\":1},{\"c\":2}]}",
        "{\"a\":[{\"b\":1,\"c\":2}]}",
        "{\"a\":[{\"b\":2},{\"c\":1}]}",
        "[\"a\",1]",
        "[[\"a\",1]]",
        "9007199254740992",
        "9007199254740993",
        "123456789012345678901",
        "123456789012345678902",
        "-123456789012345678901",
        "12345678901234567890.1",
        "1e18",
        "1e19",
        "1e400",
        "1e401",
        "1e-400",
        "1e4611686018427387903",
        "1e-4611686018427387903",
        "1e4611686018427387904",
        "1e99999999999999999999",
        "-1e99999999999999999999",
        "1e-99999999999999999999",
        "0.3",
        "0.30000000000000004",
        "0.1000000000000000055511151231257827",
        "\"aaaaaaaaaaaaaaa\"",
        "\"aaaaaaaaaaaaaaaa\"",
        "\"aaaaaaaaaaaaaaaaa\"",
        "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"",
        "{\"aaaaaaaaaaaaaaaa\":\"b\"}",
        "{\"aaaaaaaaaaaaaaaab\":\"\"}",
        "{\"a\":\"aaaaaaaaaaaaaaaab\"}",
        "{\"0\":1}",
        "{\"a\":1,\"b\":2,\"c\":3}",
        "{\"a\":1,\"b\":3,\"c\":2}",
    };
    struct fixture *f = *state;
    once_hash hashes[COUNT(texts)];
    for (size_t i = 0; i < COUNT(texts); i++) {
        hashes[i] = fingerprint(f, texts[i]);
        for (size_t j = 0; j < i; j++) {
            if (hashes[i].a == hashes[j].a || hashes[i].b == hashes[j].b)
                fail_msg("%s and %s are equal", texts[i], texts[j]);
        }
    }
}

static void fingerprints_depend_on_the_seed(void **state)
{
    struct fixture *f = *state;
    static const char *const texts[] = {"null",
                                        "1",
                                        "\"\"",
                                        "{}",
                                        "[]",
                                        "{\"a\":[1]}",
                                        "[[]]",
                                        "[0]",
                                        "[{}]",
                                        "12345678901234567890.5",
                                        "1e99999999999999999999"};
    for (size_t i = 0; i < COUNT(texts); i++) {
        const once_json_value root = parse_text(f, texts[i]);
        const once_hash x = once_json_fingerprint(&f->json, root, 1), y = once_json_fingerprint(&f->json, root, 2);
        assert_true(x.a != y.a && x.b != y.b);
        assert_true(once_hash_equal(x, once_json_fingerprint(&f->json, root, 1)));
    }
}

/* Stores keep fingerprints, so these numbers may never change. */
static void fingerprints_never_change(void **state)
{
    static const struct {
        const char *text;
        once_hash hash;
    } golden[] = {
        {"null", {0xca557800bb40e52eu, 0x89097f209a0895c3u}},
        {"[true,false]", {0xee96abcc8a46088cu, 0x27d7e4da787091f2u}},
        {"0", {0x1abe22fe7010f4e7u, 0x92a1c3e8732af30eu}},
        {"-12.50", {0x92f7c5a30e868e0fu, 0xcffbf10223647834u}},
        {"123456789012345678901234567890", {0x83116a0f0e3e9f5au, 0xf18b021139cbb592u}},
        {"1e99999999999999999999", {0xad5d960f6d82222fu, 0x7975a29e7163fa6bu}},
        {"\"\"", {0x2f9357c8f65018d7u, 0x223acd29b8f6800bu}},
        {"\"exactly sixteen.\"", {0x79fc0d9d662decfeu, 0xcb534dedd8992e7au}},
        {"\"more than sixteen bytes, in two blocks or more\"", {0x0f5db7c1791a11ebu, 0x930a2adf16b61f18u}},
        {"\"0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
         "0123456789012345678901234567890123456789\\n\"",
         {0x3dde1bf41d7761cdu, 0x59d5130a6fe22597u}},
        {"{}", {0x4954676f00ecab55u, 0x923d94565e113e9fu}},
        {"[]", {0x51ed2dd0da261c5du, 0x2d281781abf25e20u}},
        {"{\"payment_id\":\"pay-1\",\"amount\":12500,\"lines\":[{\"sku\":\"a\",\"n\":2},{}],\"\\u00e9\":null}",
         {0x5316e66f787ff599u, 0x939399384fa01780u}},
    };
    struct fixture *f = *state;
    for (size_t i = 0; i < COUNT(golden); i++) {
        const once_hash got = fingerprint(f, golden[i].text);
        if (!once_hash_equal(got, golden[i].hash)) {
            fail_msg("%s: {0x%016llx, 0x%016llx}", golden[i].text, (unsigned long long)got.a,
                     (unsigned long long)got.b);
        }
    }
}

static void fingerprints_of_parts_are_those_of_the_parts(void **state)
{
    struct fixture *f = *state;
    const once_hash alone = fingerprint(f, "{\"x\":[1,{\"y\":null}]}");
    parse_text(f, "[0,{\"deep\":{\"x\":[1,{\"y\":null}]},\"more\":1}]");
    assert_true(once_hash_equal(alone, once_json_fingerprint(&f->json, find(f, "/1/deep"), 42)));
}

/* A text that ends in its allocation is hashed like the same text in the middle of one. */
static void fingerprints_do_not_see_what_follows(void **state)
{
    struct fixture *f = *state;
    char text[64];
    for (int len = 0; len < 40; len++) {
        snprintf(text, sizeof(text), "\"%.*s\"", len, "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz");
        const once_hash tight = fingerprint(f, text);
        snprintf(text, sizeof(text), "\"%.*s\"                    ", len,
                 "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz");
        assert_true(once_hash_equal(tight, fingerprint(f, text)));
        snprintf(text, sizeof(text), "[\"%.*s\"]", len, "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz");
        parse_text(f, text);
        assert_true(once_hash_equal(tight, once_json_fingerprint(&f->json, find(f, "/0"), 42)));
    }
}

static int compare_u32(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Any 32 bits of the fingerprints of similar messages collide about as often as random numbers do. */
static void fingerprints_of_similar_messages_are_spread(void **state)
{
    enum { MESSAGES = 100000, CUTS = 4 };
    struct fixture *f = *state;
    uint32_t *cuts[CUTS];
    for (int c = 0; c < CUTS; c++) assert_non_null(cuts[c] = malloc(MESSAGES * sizeof(uint32_t)));
    for (int i = 0; i < MESSAGES; i++) {
        char text[100];
        const int len = snprintf(text, sizeof(text), "{\"id\":%d,\"to\":\"%d\",\"n\":[%d,%d]}", i % 10, i / 10 % 100,
                                 i / 1000 % 10, i / 10000);
        assert_int_equal(once_json_parse(&f->json, (once_bytes){text, (size_t)len}, NULL, NULL), ONCE_OK);
        const once_hash hash = once_json_fingerprint(&f->json, once_json_root(&f->json), 7);
        cuts[0][i] = (uint32_t)hash.a;
        cuts[1][i] = (uint32_t)(hash.a >> 32);
        cuts[2][i] = (uint32_t)hash.b;
        cuts[3][i] = (uint32_t)(hash.b >> 32);
    }
    for (int c = 0; c < CUTS; c++) {
        int collisions = 0;
        qsort(cuts[c], MESSAGES, sizeof(uint32_t), compare_u32);
        for (int i = 1; i < MESSAGES; i++) collisions += cuts[c][i] == cuts[c][i - 1];
        assert_true(collisions < 12); /* 1.2 are expected */
        free(cuts[c]);
    }
}

/* Changing one character of a value changes about half of the bits. */
static void fingerprints_avalanche(void **state)
{
    struct fixture *f = *state;
    char text[] = "{\"a\":\"0123456789\",\"b\":100000,\"c\":[1,2]}";
    const once_hash base = fingerprint(f, text);
    int total = 0, changes = 0;
    for (size_t at = 0; text[at]; at++) {
        if (text[at] < '0' || text[at] > '9') continue;
        const char before = text[at];
        text[at] = before == '9' ? '1' : (char)(before + 1);
        const once_hash hash = fingerprint(f, text);
        const int flipped = __builtin_popcountll(hash.a ^ base.a) + __builtin_popcountll(hash.b ^ base.b);
        assert_in_range(flipped, 34, 94); /* 64 +- 5.3 standard deviations */
        text[at] = before;
        total += flipped;
        changes++;
    }
    assert_in_range(total / changes, 58, 70);
}

/* Values that differ in kind or length only, where nothing else is hashed that could help. */
static void fingerprints_avalanche_in_each_lane(void **state)
{
    static const char *const texts[] = {"null",
                                        "true",
                                        "false",
                                        "\"\"",
                                        "0",
                                        "{}",
                                        "[]",
                                        "\"\\u0000\"",
                                        "\"\\u0000\\u0000\"",
                                        "{\"\":null}",
                                        "{\"\":true}",
                                        "{\"\":\"\"}",
                                        "{\"\\u0000\":null}",
                                        "{\"\":{}}"};
    struct fixture *f = *state;
    once_hash hashes[COUNT(texts)];
    for (size_t i = 0; i < COUNT(texts); i++) {
        hashes[i] = fingerprint(f, texts[i]);
        for (size_t j = 0; j < i; j++) {
            assert_in_range(__builtin_popcountll(hashes[i].a ^ hashes[j].a), 14, 50);
            assert_in_range(__builtin_popcountll(hashes[i].b ^ hashes[j].b), 14, 50);
        }
    }
}

static once_hash chosen(struct fixture *f, const char *const *texts, size_t count)
{
    once_pointer pointers[4];
    assert_true(count <= COUNT(pointers));
    for (size_t i = 0; i < count; i++)
        assert_int_equal(once_pointer_parse(&f->arena, bytes_of(texts[i]), &pointers[i], NULL), ONCE_OK);
    once_json_chosen chosen = {.seed = 42};
    for (size_t i = 0; i < count; i++)
        once_json_choose(&chosen, pointers[i].text, &f->json, once_json_find(&f->json, &pointers[i]));
    return once_json_chosen_fingerprint(&chosen);
}

static void fingerprints_of_chosen_values(void **state)
{
    static const char *const ab[] = {"/a", "/b"}, *const ba[] = {"/b", "/a"}, *const a[] = {"/a"}, *const b[] = {"/b"};
    struct fixture *f = *state;
    parse_text(f, "{\"a\":1,\"b\":{\"x\":[2],\"y\":3},\"other\":1}");
    const once_hash x = chosen(f, ab, 2), only_a = chosen(f, a, 1), only_b = chosen(f, b, 1), none = chosen(f, NULL, 0);
    assert_true(once_hash_equal(x, chosen(f, ba, 2)));
    assert_false(once_hash_equal(x, only_a));
    assert_false(once_hash_equal(only_a, only_b));
    assert_false(once_hash_equal(only_a, none));

    parse_text(f, "{\"other\":99, \"b\":{\"y\":3.0,\"x\":[2]},\"\\u0061\":1}");
    assert_true(once_hash_equal(x, chosen(f, ab, 2)));
    parse_text(f, "{\"a\":1,\"b\":{\"x\":[3],\"y\":2}}");
    assert_false(once_hash_equal(x, chosen(f, ab, 2)));
    assert_true(once_hash_equal(only_a, chosen(f, a, 1)));

    parse_text(f, "{\"a\":null}");
    const once_hash null = chosen(f, a, 1), absent = chosen(f, b, 1);
    parse_text(f, "{\"b\":null}");
    assert_false(once_hash_equal(null, chosen(f, a, 1))); /* absent is not null */
    assert_false(once_hash_equal(absent, chosen(f, b, 1)));
    assert_false(once_hash_equal(null, chosen(f, b, 1))); /* and the pointer matters */
    parse_text(f, "{}");
    assert_true(once_hash_equal(absent, chosen(f, b, 1)));

    /* a choice is not a document that looks like it */
    parse_text(f, "{\"/a\":1}");
    const once_hash document = once_json_fingerprint(&f->json, once_json_root(&f->json), 42);
    parse_text(f, "{\"a\":1}");
    assert_false(once_hash_equal(document, chosen(f, a, 1)));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(accepts_every_kind_of_value),
        TEST(f65_refuses_malformed_text_and_says_where),
        TEST(f65_refuses_raw_nul_everywhere),
        TEST(f65_sees_a_bad_byte_at_every_position),
        TEST(f65_every_prefix_of_a_text_is_refused),
        TEST(reasons_are_words),
        TEST(success_leaves_the_error_alone),
        TEST(can_demand_an_object),
        TEST(f65_depth_has_a_limit_and_costs_no_stack),
        TEST(f65_ten_megabytes_in_one_string),
        TEST(reuse_keeps_memory_and_gives_a_lot_of_it_back),
        TEST(empty_documents_find_nothing),
        TEST(f65_duplicates_however_they_are_spelled),
        TEST(f65_duplicates_in_objects_of_every_size),
        TEST(f65_the_first_of_many_duplicates_is_reported),
        TEST(f64_a_hundred_thousand_names_are_not_quadratic),
        TEST(f64_names_crafted_to_collide_cost_n_log_n),
        TEST(pointers_of_rfc_6901),
        TEST(pointers_that_are_none),
        TEST(pointers_own_their_text),
        TEST(walks_in_the_order_of_the_text),
        TEST(unescapes),
        TEST(long_escaped_text_is_the_same_text),
        TEST(integers_are_exact_to_64_bits),
        TEST(doubles_are_rounded_correctly),
        TEST(doubles_look_at_every_digit),
        TEST(f87_numbers_that_survive_a_double),
        TEST(f97_numbers_do_not_care_about_the_locale),
        TEST(canonical_spellings),
        TEST(decimals_are_ordered_by_value),
        TEST(fingerprints_of_equal_meanings_are_equal),
        TEST(fingerprints_of_different_meanings_differ),
        TEST(fingerprints_depend_on_the_seed),
        TEST(fingerprints_never_change),
        TEST(fingerprints_of_parts_are_those_of_the_parts),
        TEST(fingerprints_do_not_see_what_follows),
        TEST(fingerprints_of_similar_messages_are_spread),
        TEST(fingerprints_avalanche),
        TEST(fingerprints_avalanche_in_each_lane),
        TEST(fingerprints_of_chosen_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
