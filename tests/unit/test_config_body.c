/* `body` and `tombstones` of a source: what they allow, what they refuse, and that a change of `body` changes what the
 * store remembers of the keys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/config.h"

typedef struct lines {
    char text[4000];
    size_t n;
} lines;

static void collect(void *user, const char *line)
{
    lines *all = user;
    const size_t len = strlen(all->text);
    assert_true(len + strlen(line) + 2 < sizeof all->text);
    (void)snprintf(all->text + len, sizeof all->text - len, "%s\n", line);
    all->n++;
}

static once_arena arena;

static const once_spec *loaded(const char *text)
{
    once_spec *spec = NULL;
    lines all = {0};
    if (once_config_parse("p.yaml", (once_bytes){text, strlen(text)}, &arena, collect, &all, &spec, NULL) != ONCE_OK)
        fail_msg("%s", all.text);
    return spec;
}

/* All of its mistakes. */
static void refused(const char *text, const char *expected)
{
    once_spec *spec = NULL;
    lines all = {0};
    assert_int_equal(once_config_parse("p.yaml", (once_bytes){text, strlen(text)}, &arena, collect, &all, &spec, NULL),
                     ONCE_E_CONFIG);
    assert_string_equal(all.text, expected);
    assert_null(spec);
}

#define HEAD "consumer: c\nstore: memory\n"
#define BYTES "source: {file: {path: x}, body: bytes}\n" /* 3 */
#define KEY "key: \"${hash}\"\n"                         /* 4 */
#define BODY_SQL "handler: {sql: [\"INSERT INTO t VALUES (:once_key, :once_body)\"]}\n"
#define NO_FIELDS_BUT(what, field, mark)                                                                               \
    what " names the field '" field "', and with 'body: bytes' a body has no fields; use " mark "{header:NAME}, " mark \
         "{source:NAME}, " mark "{coordinates} or " mark "{hash}, or say 'body: json'\n"
#define NO_FIELDS(what, field) NO_FIELDS_BUT(what, field, "$")
#define NO_FIELDS_IN_SQL(field) NO_FIELDS_BUT("'sql'", field, ":")

static void json_and_dead_are_the_defaults(void **state)
{
    (void)state;
    const once_spec *spec = loaded(HEAD "source: {file: {path: x}}\n" KEY BODY_SQL);
    assert_false(spec->source.bytes);
    assert_int_equal(spec->source.tombstones, ONCE_TOMBSTONES_DEAD);
    assert_int_equal(spec->handlers[0].fingerprint.kind, ONCE_FINGERPRINT_BODY);
    spec = loaded(HEAD "source: {file: {path: x}, body: json, tombstones: dead}\n" KEY BODY_SQL);
    assert_true(!spec->source.bytes && spec->source.tombstones == ONCE_TOMBSTONES_DEAD);
}

static void they_are_read_wherever_they_stand(void **state)
{
    (void)state;
    const once_spec *spec = loaded(KEY BODY_SQL "source: {tombstones: skip, body: bytes, file: {path: x}}\n" HEAD);
    assert_true(spec->source.bytes && spec->source.tombstones == ONCE_TOMBSTONES_SKIP);
    assert_int_equal(spec->handlers[0].fingerprint.kind, ONCE_FINGERPRINT_BYTES);
    assert_true(spec->source.kind && once_bytes_equal(spec->source.name, ONCE_BYTES("x")));
    spec = loaded(HEAD "source: {file: {path: x}, tombstones: run}\n" KEY "fingerprint: none\n" BODY_SQL);
    assert_int_equal(spec->source.tombstones, ONCE_TOMBSTONES_RUN);
    assert_int_equal(spec->handlers[0].fingerprint.kind, ONCE_FINGERPRINT_NONE);
    spec = loaded(HEAD BYTES KEY "fingerprint: none\nhandler: {sql: [\"SELECT :once_body\"], fingerprint: body}\n");
    assert_int_equal(spec->handlers[0].fingerprint.kind, ONCE_FINGERPRINT_BYTES);
}

static void a_source_is_needed_beside_them(void **state)
{
    (void)state;
    refused(HEAD "source: {body: bytes}\n" KEY BODY_SQL,
            "p.yaml:3: 'source' names no source; write 'file: {path: payments.ndjson}'\n");
    refused(HEAD "source: {body: bites, file: {path: x}}\n" KEY BODY_SQL,
            "p.yaml:3: 'body' cannot be 'bites'; did you mean 'bytes'?\n");
    refused(HEAD "source: {tombstones: drop, file: {path: x}}\n" KEY BODY_SQL,
            "p.yaml:3: 'tombstones' cannot be 'drop'; it is one of: dead, skip, run\n");
    refused(HEAD "source: {file: {path: x, body: bytes}}\n" KEY BODY_SQL,
            "p.yaml:3: unknown field 'body' in a file source; it has: path, follow, cursor, headers\n");
}

static void what_names_a_field_is_refused_with_its_line(void **state)
{
    (void)state;
    refused(HEAD BYTES "key: \"a-${/id}\"\n" BODY_SQL, "p.yaml:4: " NO_FIELDS("'key'", "/id"));
    refused(HEAD BYTES KEY "tenant: \"${/t}\"\n" BODY_SQL, "p.yaml:5: " NO_FIELDS("'tenant'", "/t"));
    refused(HEAD BYTES KEY "order: \"${/o}\"\nversion: \"${/v}\"\n" BODY_SQL,
            "p.yaml:5: " NO_FIELDS("'order'", "/o") "p.yaml:6: " NO_FIELDS("'version'", "/v"));
    refused(HEAD BYTES KEY "time: \"${/ts}\"\n" BODY_SQL, "p.yaml:5: " NO_FIELDS("'time'", "/ts"));
    refused(HEAD BYTES "key: \"${time:/ts:5m}\"\n" BODY_SQL, "p.yaml:4: " NO_FIELDS("'key'", "/ts"));
    refused(HEAD BYTES KEY "type: \"${/t}\"\nhandlers: {a: {dead: x}}\n", "p.yaml:5: " NO_FIELDS("'type'", "/t"));
    refused(HEAD BYTES KEY "locks: [\"a/${/from}\"]\n" BODY_SQL, "p.yaml:5: " NO_FIELDS("'locks'", "/from"));
    refused(HEAD BYTES KEY "handler:\n  exec: [./a, \"${/id}\"]\n", "p.yaml:6: " NO_FIELDS("'exec'", "/id"));
    refused(HEAD BYTES KEY "handler:\n  exec: [./a]\n  lookup: {exec: [./b, \"${/id}\"]}\n",
            "p.yaml:7: " NO_FIELDS("'exec'", "/id"));
    refused(HEAD BYTES KEY "handler:\n  sql:\n    - SELECT :once_body\n    - SELECT :{/a/b}\n",
            "p.yaml:8: " NO_FIELDS_IN_SQL("/a/b"));
    refused(HEAD BYTES KEY "handler: {sql: [\"SELECT :id\"]}\n", "p.yaml:5: " NO_FIELDS_IN_SQL("/id"));
    refused(HEAD BYTES KEY "handler: {sql: [\"SELECT :{/a?}\"]}\n", "p.yaml:5: " NO_FIELDS_IN_SQL("/a"));
    refused(HEAD BYTES KEY "fingerprint: [/a]\n" BODY_SQL,
            "p.yaml:5: 'fingerprint' names fields, and with 'body: bytes' a body has none; write body or none\n");
    refused(HEAD "source: {file: {path: x, headers: /h}, body: bytes}\n" KEY BODY_SQL,
            "p.yaml:3: 'headers' names a field of the body, and with 'body: bytes' a body has no fields; remove it\n");
}

static void what_needs_no_field_is_allowed(void **state)
{
    (void)state;
    static const char *const keys[] = {"${hash}", "${coordinates}", "${header:id}", "${header:a}/${hash}"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char text[600];
        (void)snprintf(text, sizeof text,
                       HEAD BYTES "key: \"%s\"\ntenant: \"${header:t}\"\ntype: \"${header:type}\"\n"
                                  "time: \"${header:time}\"\norder: \"${header:o}\"\n"
                                  "handlers:\n  a: {exec: [./a, \"${header:id}\"]}\n  b: {exec: [./b], mode: stream}\n"
                                  "  c: {callback: f}\n  d: {dead: x}\n",
                       keys[i]);
        assert_int_equal(loaded(text)->n_handlers, 4);
    }
}

static bool keep_text(void *user, once_bytes operation, once_bytes text)
{
    (void)operation;
    *(once_bytes *)user = text;
    return true;
}

/* ${hash} and the fingerprint are others, so every message would look new, or like a conflict. */
static void a_change_of_the_body_is_a_change_of_the_keys(void **state)
{
    (void)state;
    once_bytes json, bytes;
    const once_spec *as_json = loaded(HEAD "source: {file: {path: x}, body: json}\n" KEY BODY_SQL);
    assert_int_equal(once_config_each_operation(as_json, &arena, keep_text, &json, NULL), ONCE_OK);
    assert_int_equal(once_config_each_operation(loaded(HEAD BYTES KEY BODY_SQL), &arena, keep_text, &bytes, NULL),
                     ONCE_OK);
    assert_true(once_bytes_equal(json, ONCE_BYTES("{\"key\":\"${hash}\",\"fingerprint\":\"body\"}")));
    assert_true(
        once_bytes_equal(bytes, ONCE_BYTES("{\"key\":\"${hash}\",\"fingerprint\":\"body\",\"body\":\"bytes\"}")));
}

static int release(void **state)
{
    (void)state;
    once_arena_release(&arena);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_and_dead_are_the_defaults),
        cmocka_unit_test(they_are_read_wherever_they_stand),
        cmocka_unit_test(a_source_is_needed_beside_them),
        cmocka_unit_test(what_names_a_field_is_refused_with_its_line),
        cmocka_unit_test(what_needs_no_field_is_allowed),
        cmocka_unit_test(a_change_of_the_body_is_a_change_of_the_keys),
    };
    return cmocka_run_group_tests(tests, NULL, release);
}
