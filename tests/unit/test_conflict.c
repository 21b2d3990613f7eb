/* What a conflict letter says, from what is kept of the first message. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "core/conflict.h"
#include "core/fields.h"

static const once_secret secret = {11, 22};

static once_bytes bytes_of(const char *text) { return (once_bytes){text, strlen(text)}; }

static once_fields fields_of(const char *body, const once_fingerprint_spec *spec)
{
    once_json json;
    once_fields fields;
    once_json_init(&json);
    assert_int_equal(once_json_parse(&json, bytes_of(body), &(once_json_options){0}, NULL), ONCE_OK);
    const bool chosen = spec && spec->kind == ONCE_FINGERPRINT_FIELDS;
    once_arena arena = {0};
    once_texts texts = {0};
    once_hash hash;
    once_texts_begin(&texts, &arena, 0);
    if (chosen)
        assert_int_equal(once_fields_of_paths(&json, &texts, spec->fields, spec->n, secret.k0, &fields, &hash, NULL),
                         ONCE_OK);
    else hash = once_fields_of_body(&json, secret.k0, &fields);
    if (!chosen) /* stores keep it: it must not depend on who asks */
        assert_true(once_hash_equal(hash, once_json_fingerprint(&json, once_json_root(&json), secret.k0)));
    once_texts_release(&texts);
    once_arena_release(&arena);
    once_json_release(&json);
    for (size_t i = 1; i < fields.n; i++) assert_true(fields.prints[i - 1] <= fields.prints[i]);
    return fields;
}

/* The reason without what it says of the first one's origin. */
static void assert_says(const char *first, const char *now, const once_fingerprint_spec *spec, const char *expected)
{
    once_arena arena = {0};
    once_bytes reason;
    char whole[700];
    const once_first met = {.fields = fields_of(first, spec), .seen_ms = 1000};
    const once_decision d = {.answer = ONCE_ANSWER_CONFLICT, .first = &met};
    assert_true(once_conflict_reason(&d, spec, bytes_of(now), secret, &arena, &reason));
    snprintf(whole, sizeof whole,
             "conflict: the key was used before with other content%s; the first one came at 1970-01-01T00:00:01.000Z",
             expected);
    char said[4200];
    snprintf(said, sizeof said, "%.*s", (int)reason.len, reason.data);
    assert_string_equal(said, whole);
    once_arena_release(&arena);
}

static void f26_fields_that_differ_are_named(void **state)
{
    (void)state;
    const char *first =
        "{\"id\":\"a\",\"amount\":10.0,\"currency\":\"EUR\",\"to\":{\"iban\":1,\"name\":\"x\"},\"tags\":[1,2]}";
    assert_says(first,
                "{\"currency\":\"EUR\",\"id\":\"a\",\"amount\":11,\"to\":{\"name\":\"x\",\"iban\":1},\"tags\":[1,2]}",
                NULL, ": 'amount' differs");
    assert_says(first,
                "{\"id\":\"a\",\"amount\":1e1,\"currency\":\"USD\",\"to\":{\"iban\":1,\"name\":\"y\"},\"tags\":[1,2]}",
                NULL, ": 'currency', 'to' differ");
    assert_says(first,
                "{\"id\":\"a\",\"amount\":10,\"currency\":\"EUR\",\"to\":{\"iban\":1,\"name\":\"x\"},\"tags\":[2,1],"
                "\"more\":1}",
                NULL, ": 'tags', 'more' differ");
    assert_says(first, "{\"id\":\"a\",\"amount\":10,\"currency\":\"EUR\",\"tags\":[1,2]}", NULL,
                ": 1 field of the first one is missing here");
    assert_says(first, "{\"id\":\"a\",\"\\u0061mount\":9,\"currency\":\"EUR\"}", NULL,
                ": 'amount' differs, and 2 fields of the first one are missing here");
    assert_says(first, "{}", NULL, ": 5 fields of the first one are missing here");
    assert_says(first, "[1]", NULL, "");
    assert_says("[1]", first, NULL, "");
    assert_says("\"text\"", first, NULL, "");
    assert_says("{}", first, NULL, "");
}

static void f26_names_are_limited_and_harmless(void **state)
{
    (void)state;
    char many[400] = "{", name[300];
    for (unsigned i = 0; i < 20; i++)
        snprintf(many + strlen(many), sizeof many - strlen(many), "%s\"m%u\":1", i ? "," : "", i);
    strcat(many, "}");
    assert_says(many, "{\"m0\":2}", NULL, ""); /* too many to be kept */
    assert_int_equal(fields_of("{\"a\":1,\"b\":2,\"c\":3,\"d\":4,\"e\":5,\"f\":6,\"g\":7,\"h\":8,\"i\":9,\"j\":10,"
                               "\"k\":11,\"l\":12,\"m\":13,\"n\":14,\"o\":15,\"p\":16}",
                               NULL)
                         .n,
                     ONCE_FIELDS_MAX);
    assert_says("{\"m3\":1,\"x\":1}", many, NULL, ": 'm0', 'm1', 'm2', 'm4', 'm5', 'm6', 'm7', 'm8' and others differ");
    assert_says("{\"x\":1}", "{\"a\\u001b\\n\\u007f'\":1}", NULL, ": 'a\?\?\?'' differs");
    snprintf(name, sizeof name, "{\"%063d\xc3\xa4\xc3\xa4\":1}", 0);
    char expected[200];
    snprintf(expected, sizeof expected, ": '%063d...' differs", 0); /* not cut within a character */
    assert_says("{\"x\":1}", name, NULL, expected);
}

static void f26_chosen_fields_are_named_by_their_pointer(void **state)
{
    (void)state;
    once_arena arena = {0};
    once_path paths[3];
    const char *const texts[] = {"/amount", "/to/iban", "/note"};
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(once_path_parse(&arena, bytes_of(texts[i]), &paths[i], NULL), ONCE_OK);
    const once_fingerprint_spec spec = {.kind = ONCE_FINGERPRINT_FIELDS, .fields = paths, .n = 3};
    const char *first = "{\"amount\":1,\"to\":{\"iban\":5},\"other\":1}";
    assert_int_equal(fields_of(first, &spec).n, 3);
    assert_says(first, "{\"amount\":1,\"to\":{\"iban\":6},\"other\":2}", &spec, ": '/to/iban' differs");
    assert_says(first, "{\"to\":{\"iban\":5},\"note\":null}", &spec, ": '/amount', '/note' differ");
    once_arena_release(&arena);
}

static void chosen_fields_may_be_in_a_text(void **state)
{
    (void)state;
    once_arena arena = {0};
    once_path paths[2];
    assert_int_equal(once_path_parse(&arena, bytes_of("json:/m:/a"), &paths[0], NULL), ONCE_OK);
    assert_int_equal(once_path_parse(&arena, bytes_of("json:/m:/b"), &paths[1], NULL), ONCE_OK);
    const once_fingerprint_spec spec = {.kind = ONCE_FINGERPRINT_FIELDS, .fields = paths, .n = 2};
    const char *first = "{\"m\":\"{\\\"a\\\":1,\\\"b\\\":[2]}\"}",
               *other = "{\"m\":\"{\\\"b\\\":[3], \\\"a\\\":1.0}\"}";
    assert_says(first, other, &spec, ": 'json:/m:/b' differs");
    assert_says(first, "{\"m\":\"no\"}", &spec, ": 'json:/m:/a', 'json:/m:/b' differ");
    /* the same with the body of the first one */
    once_bytes reason;
    const once_first met = {.body = bytes_of(first), .seen_ms = 1000};
    const once_decision d = {.answer = ONCE_ANSWER_CONFLICT, .first = &met};
    assert_true(once_conflict_reason(&d, &spec, bytes_of(other), secret, &arena, &reason));
    assert_non_null(memmem(reason.data, reason.len, ": 'json:/m:/b' differs;", 23));
    once_arena_release(&arena);
}

static void fields_are_read_as_they_were_written(void **state)
{
    (void)state;
    unsigned char bytes[ONCE_FIELDS_BYTES];
    const once_fields fields = {.n = 3, .prints = {1, 0x0203, 0xffff}};
    once_fields back;
    assert_int_equal(once_fields_write(&fields, bytes), 6);
    assert_memory_equal(bytes, "\x00\x01\x02\x03\xff\xff", 6);
    assert_true(once_fields_read((once_bytes){(char *)bytes, 6}, &back));
    assert_memory_equal(&back, &fields, sizeof fields);
    assert_true(once_fields_read((once_bytes){0}, &back));
    assert_int_equal(back.n, 0);
    assert_false(once_fields_read((once_bytes){(char *)bytes, 5}, &back));
    assert_false(once_fields_read((once_bytes){"\x00\x02\x00\x01", 4}, &back));
    char long_one[ONCE_FIELDS_BYTES + 2] = {0};
    assert_true(once_fields_read((once_bytes){long_one, ONCE_FIELDS_BYTES}, &back));
    assert_false(once_fields_read((once_bytes){long_one, sizeof long_one}, &back));
}

static void reason_of_conflict(once_bytes first, once_bytes now, char *out, size_t size)
{
    once_arena arena = {0};
    const once_first earlier = {.body = first};
    const once_decision met = {.answer = ONCE_ANSWER_CONFLICT, .first = &earlier};
    once_bytes reason;
    assert_true(once_conflict_reason(&met, NULL, now, (once_secret){1, 2}, &arena, &reason));
    assert_true(reason.len < size);
    memcpy(out, reason.data, reason.len);
    out[reason.len] = 0;
    once_arena_release(&arena);
}

/* {"m0":0,"m1":1,...}, or from the last to the first; the value of one member is another. */
static void wide_object(once_buf *to, unsigned n, bool backward, unsigned other)
{
    once_buf_init(to, 10u << 20);
    for (unsigned i = 0; i < n; i++) {
        const unsigned member = backward ? n - 1 - i : i;
        once_buf_printf(to, "%c\"m%u\":%u", i ? ',' : '{', member, member == other ? 7 : 0);
    }
    once_buf_puts(to, "}");
}

/* Searching for each member of one object in the other took minutes, inside the lock of the store. */
static void f26_f65_a_conflict_of_wide_objects_is_bounded(void **state)
{
    (void)state;
    enum { MEMBERS = 300000 };
    char text[5000];
    once_buf first, now, turned;
    wide_object(&first, MEMBERS, false, MEMBERS);
    wide_object(&now, MEMBERS, false, MEMBERS - 2);
    wide_object(&turned, MEMBERS, true, MEMBERS - 1);
    reason_of_conflict(once_buf_bytes(&first), once_buf_bytes(&now), text, sizeof text);
    assert_non_null(strstr(text, ": 'm299998' differs;")); /* in the same order: all of it is compared */
    reason_of_conflict(once_buf_bytes(&first), once_buf_bytes(&turned), text, sizeof text);
    assert_non_null(strstr(text, ": 'm299999' and perhaps others differ;"));
    once_buf_release(&first);
    once_buf_release(&now);
    once_buf_release(&turned);
    wide_object(&first, 300, false, 300);
    wide_object(&turned, 300, true, 17);
    reason_of_conflict(once_buf_bytes(&first), once_buf_bytes(&turned), text, sizeof text);
    assert_non_null(strstr(text, ": 'm17' differs;"));
    once_buf_release(&first);
    once_buf_release(&turned);
}

static void f26_f65_names_in_a_conflict_are_whole_characters_that_steer_nothing(void **state)
{
    (void)state;
    char text[5000], object[200], wanted[200];
    reason_of_conflict(ONCE_BYTES("{\"a\xc2\x9b\xe2\x80\xae\xe2\x81\xa6z\": 1}"), ONCE_BYTES("{\"\\u001b\": 1}"), text,
                       sizeof text);
    assert_non_null(strstr(text, ": '?', 'a\?\?\?z' differ;"));
    for (size_t pad = 60; pad < 66; pad++) { /* the limit of 64 bytes falls on each byte of a character */
        char name[100];
        memset(name, 'x', pad);
        snprintf(name + pad, sizeof name - pad, "\xf0\x9f\x98\x80");
        snprintf(object, sizeof object, "{\"%s\": 1}", name);
        reason_of_conflict((once_bytes){object, strlen(object)}, ONCE_BYTES("{}"), text, sizeof text);
        snprintf(wanted, sizeof wanted, ": '%.*s%s' differs;",
                 (int)(pad == 60  ? 64
                       : pad < 64 ? pad
                                  : 64),
                 name, pad == 60 ? "" : "...");
        assert_non_null(strstr(text, wanted));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f26_f65_a_conflict_of_wide_objects_is_bounded),
        cmocka_unit_test(f26_f65_names_in_a_conflict_are_whole_characters_that_steer_nothing),
        cmocka_unit_test(f26_fields_that_differ_are_named),
        cmocka_unit_test(f26_names_are_limited_and_harmless),
        cmocka_unit_test(f26_chosen_fields_are_named_by_their_pointer),
        cmocka_unit_test(chosen_fields_may_be_in_a_text),
        cmocka_unit_test(fields_are_read_as_they_were_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
