/* Parameters in a user's SQL: found where they are, left alone where they only look like it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "effect/sql_params.h"

static once_arena arena;

static once_bytes bytes(const char *text) { return (once_bytes){text, strlen(text)}; }

static const char *const sources[] = {
    [ONCE_SQL_PLACE] = "",          [ONCE_SQL_KEY] = "key",   [ONCE_SQL_IDEMPOTENCY_KEY] = "idempotency",
    [ONCE_SQL_ATTEMPT] = "attempt", [ONCE_SQL_BODY] = "body", [ONCE_SQL_RESULT] = "of "};

/* `params` is the pointers, joined by spaces, with a '?' behind optional ones and a '"' behind those that are bound as
 * text; those that are ours by the names above. */
static void becomes(const char *text, const char *sql, const char *params)
{
    once_sql_statement out = {0};
    once_error err = {0};
    int rc = once_sql_parse(&arena, bytes(text), &out, &err);
    if (rc != ONCE_OK) print_error("%s: %s\n", text, err.text);
    assert_int_equal(rc, ONCE_OK);
    assert_string_equal(out.sql.data, sql);
    assert_int_equal(out.sql.len, strlen(sql));
    assert_string_equal(out.text.data, text);
    assert_int_equal(out.rows, -1);
    assert_int_equal(out.unmet, ONCE_DEAD);
    char list[1000] = "";
    for (size_t i = 0; i < out.n; i++)
        (void)snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s%.*s%s%s", i > 0 ? " " : "",
                       sources[out.params[i].source], (int)out.params[i].place.text.len, out.params[i].place.text.data,
                       out.params[i].optional ? "?" : "", out.params[i].as_text ? "\"" : "");
    assert_string_equal(list, params);
}

static void unchanged(const char *text) { becomes(text, text, ""); }

static void refused_bytes(once_bytes text, const char *expected)
{
    once_sql_statement out = {.line = 77};
    once_error err = {0};
    assert_int_equal(once_sql_parse(&arena, text, &out, &err), ONCE_E_USAGE);
    assert_string_equal(err.text, expected);
    assert_int_equal(out.line, 77);
    assert_null(out.sql.data);
}

#define ELSE(name)                                                                                                     \
    "a field of the body is ':{/" name "}', else there are :{json:/text:/field}, :{header:NAME}, :{coordinates}, "     \
    ":{hash} and :{time:/field:5m}"

static void refused(const char *text, const char *expected) { refused_bytes(bytes(text), expected); }

static void f87_a_field_is_bound_as_text(void **state)
{
    (void)state;
    becomes("SELECT :{/a as text}", "SELECT ?1", "/a\"");
    becomes("SELECT :{/a AS Text}, :{/a  as\ttext }", "SELECT ?1, ?1", "/a\"");
    becomes("SELECT :{/a}, :a, :{/a as text}, :{/a as text}::numeric", "SELECT ?1, ?1, ?2, ?2::numeric", "/a /a\"");
    becomes("SELECT :{/a? as text}, :{/a as text?}, :{/a as text}, :{/a?}", "SELECT ?1, ?1, ?2, ?3", "/a?\" /a\" /a?");
    becomes("SELECT :{/a/as/text}, :{/as text}, :{/has text}, :{/a b}, :{/text}", "SELECT ?1, ?2, ?3, ?4, ?5",
            "/a/as/text /as text /has text /a b /text");
    refused("SELECT :{/a as numeric}",
            "parameter ':{/a as numeric}': a field can be bound 'as text' only; write ':{/a as text}'");
    refused("SELECT :{/a as}", "parameter ':{/a as}': a field can be bound 'as text' only; write ':{/a as text}'");
    refused("SELECT :{/a as text as text}",
            "parameter ':{/a as text as text}' is bound as text twice; write ':{/a as text}'");
    becomes("SELECT :{result}, :{result?}, :{result as text}, :{result}", "SELECT ?1, ?2, ?3, ?1",
            "of result of result? of result\"");
    becomes("SELECT :{result:/a/b}, :{/a/b}, :{result:/a?}, :{result:json:/a:/b? as text}, :result",
            "SELECT ?1, ?2, ?3, ?4, ?5", "of /a/b /a/b of /a? of json:/a:/b?\" /result");
    refused("SELECT :{result:hash}", "parameter ':{result:hash}' names no field of the result; write ':{result:/id}'");
    refused("SELECT :{results}", "parameter ':{results}' is not understood; " ELSE("results"));
    refused("SELECT :{ as text}", "parameter ':{}' names no field; write a JSON pointer, as in ':{/id}'");
    refused("SELECT :{a as text}", "parameter ':{a}' is not understood; " ELSE("a"));
}

static void everything_that_a_template_names_is_bound(void **state)
{
    (void)state;
    becomes("SELECT :{json:/m:/a}, :{json:/m:/a?}, :{json:/m:/a as text}, :{json:/m:/a}", "SELECT ?1, ?2, ?3, ?1",
            "json:/m:/a json:/m:/a? json:/m:/a\"");
    becomes("SELECT :{header:x-id}, :{source:key?}, :{event:id}, :{coordinates}, :{hash}, :{time:/ts:5m}",
            "SELECT ?1, ?2, ?3, ?4, ?5, ?6", "header:x-id source:key? event:id coordinates hash time:/ts:5m");
    becomes("SELECT :{header:a b as text}", "SELECT ?1", "header:a b\"");
    refused("SELECT :{header:}", "parameter ':{header:}' names nothing; write a name, as in ':{header:tenant}'");
    refused("SELECT :{json:/m}", "parameter ':{json:/m}' is not a path: it names a text, and no field in it; write "
                                 "json:/text:/field, or the pointer alone");
    refused("SELECT :{time:/ts:0s}",
            "parameter ':{time:/ts:0s}' has a window of 0; write a length, as in ':{time:/ts:5m}'");
}

static void parameters_are_numbered(void **state)
{
    (void)state;
    becomes("INSERT INTO t VALUES (:a, :b)", "INSERT INTO t VALUES (?1, ?2)", "/a /b");
    becomes("UPDATE t SET a=:a WHERE b=:b AND c=:a", "UPDATE t SET a=?1 WHERE b=?2 AND c=?1", "/a /b");
    becomes("SELECT :{/a/b}, :{/a/0}", "SELECT ?1, ?2", "/a/b /a/0");
    becomes("SELECT :{/a?}, :{/a}, :a, :{/a?}", "SELECT ?1, ?2, ?2, ?1", "/a? /a");
    becomes("SELECT :_x1", "SELECT ?1", "/_x1");
    becomes("SELECT :{/a b~1c-\xc3\xa4}", "SELECT ?1", "/a b~1c-\xc3\xa4");
    becomes("SELECT :{/}", "SELECT ?1", "/");
    becomes("SELECT :a+:b,:c", "SELECT ?1+?2,?3", "/a /b /c");
    becomes(":a", "?1", "/a");
    becomes("SELECT :{/a};", "SELECT ?1;", "/a");
}

static void names_that_begin_with_once_are_ours(void **state)
{
    (void)state;
    becomes("INSERT INTO t VALUES (:once_key, :id, :once_idempotency_key, :once_attempt, :once_key)",
            "INSERT INTO t VALUES (?1, ?2, ?3, ?4, ?1)", "key /id idempotency attempt");
    becomes("SELECT :once_body, :{/once_body}, :once_body", "SELECT ?1, ?2, ?1", "body /once_body");
    becomes("SELECT :{/once_key}, :once_key, :oncekey", "SELECT ?1, ?2, ?3", "/once_key key /oncekey");
    refused("SELECT :once_x", "parameter ':once_x': names that begin with once_ are reserved: there are once_key, "
                              "once_idempotency_key, once_attempt and once_body; "
                              "write ':{/once_x}' for a field");
    refused("SELECT :once_", "parameter ':once_': names that begin with once_ are reserved: there are once_key, "
                             "once_idempotency_key, once_attempt and once_body; "
                             "write ':{/once_}' for a field");
}

static void casts_and_other_colons_stay(void **state)
{
    (void)state;
    becomes("SELECT :a::int, x::text", "SELECT ?1::int, x::text", "/a");
    unchanged("SELECT f(a := 1)");
    unchanged("SELECT a : b");
    unchanged("SELECT a:");
}

static void quotes_and_comments_stay(void **state)
{
    (void)state;
    unchanged("SELECT ':a', '?', '$1', 'it''s :b'");
    unchanged("SELECT \":a\"\":b\", `:c``?`, [:d ?]");
    unchanged("SELECT 1 -- :a ? don't\n");
    unchanged("SELECT 1 -- :a");
    unchanged("SELECT 1 -- :a\r\n + 2");
    unchanged("SELECT 1 -- :a\r");
    unchanged("SELECT 1 /* :a ? don't */ + 2");
    unchanged("SELECT '/* ' , '-- '");
    unchanged("SELECT 1 /**/ - /*/ :a */ 2");
    becomes("SELECT '--', :a", "SELECT '--', ?1", "/a");
    becomes("SELECT x'00', :a /* ' */, :b", "SELECT x'00', ?1 /* ' */, ?2", "/a /b");
    becomes("SELECT a-:a--:b\n,:c", "SELECT a-?1--:b\n,?2", "/a /c");
    unchanged("SELECT foo$1, a$b, 1 - -1, a / b, a * b, json -> '$.a' ->> 0");
    unchanged("SELECT E'it\\'s :v o\\'clock', e'\\\\'");
    becomes("SELECT E'it\\'s :v', :a", "SELECT E'it\\'s :v', ?1", "/a");
    becomes("SELECT e, 'x\\', :a", "SELECT e, 'x\\', ?1", "/a");
    becomes("\xef\xbb\xbfSELECT :a", "SELECT ?1", "/a");
    refused("SELECT E'it\\'", "string that begins with E' has no end; close it with '");
    refused("\xef\xbb\xbf"
            "COMMIT",
            "statement cannot be 'COMMIT': transaction and connection belong to once; remove it");
    refused("SELECT \xef\xbb\xbf$1", "byte order mark (U+FEFF) inside a statement; remove it");
    unchanged("SELECT '\xef\xbb\xbf', a\xef\xbb\xbf");
    unchanged("SELECT a @ b");
    unchanged("SELECT a # b");
    becomes("SELECT @:a", "SELECT @?1", "/a");
}

static void foreign_parameters_are_refused(void **state)
{
    (void)state;
    refused("SELECT ?", "parameter '?' is not bound by once; write ':name' or ':{/pointer}'");
    refused("SELECT ?1", "parameter '?1' is not bound by once; write ':name' or ':{/pointer}'");
    refused("SELECT $1", "parameter '$1' is not bound by once; write ':name' or ':{/pointer}'");
    refused("SELECT $name", "parameter '$name' is not bound by once; write ':name' or ':{/pointer}'");
    refused("SELECT @x", "parameter '@x' is not bound by once; write ':name' or ':{/pointer}'");
    refused("SELECT #::int", "parameter '#' is not bound by once; write ':name' or ':{/pointer}'");
    refused("SELECT @::int", "parameter '@' is not bound by once; write ':name' or ':{/pointer}'");
    refused("SELECT #x", "parameter '#x' is not bound by once; write ':name' or ':{/pointer}'");
    refused("SELECT :1", "parameter ':1' begins with a digit; write ':{/1}'");
    refused("SELECT :gr\xc3\xb6\xc3\x9f"
            "e",
            "parameter ':gr\xc3\xb6\xc3\x9f"
            "e' has other characters than letters, digits and _; write "
            "':{/gr\xc3\xb6\xc3\x9f"
            "e}'");
    refused("SELECT :a$b", "parameter ':a$b' has other characters than letters, digits and _; write ':{/a$b}'");
}

static void bad_pointers_are_refused(void **state)
{
    (void)state;
    refused("SELECT :{a}", "parameter ':{a}' is not understood; " ELSE("a"));
    refused("SELECT :{}", "parameter ':{}' names no field; write a JSON pointer, as in ':{/id}'");
    refused("SELECT :{?}", "parameter ':{?}' names no field; write a JSON pointer, as in ':{/id}'");
    refused("SELECT :{/a", "parameter ':{/a' has no closing '}'");
    refused("SELECT :{", "parameter ':{' has no closing '}'");
    refused("SELECT :{/a}5", "text touches the parameter ':{/a}'; put a space behind it");
    once_sql_statement out;
    once_error err = {0};
    assert_int_equal(once_sql_parse(&arena, bytes("SELECT :{/a~4}"), &out, &err), ONCE_E_USAGE);
    assert_non_null(strstr(err.text, "parameter ':{/a~4}' is not a JSON pointer: "));
}

static void what_has_no_end_is_refused(void **state)
{
    (void)state;
    refused("SELECT 'abc", "string that begins with 'abc has no end; close it with '");
    refused("SELECT 'it''s", "string that begins with 's has no end; close it with '");
    refused("SELECT \"abc", "quoted name that begins with \"abc has no end; close it with \"");
    refused("SELECT `abc", "quoted name that begins with `abc has no end; close it with `");
    refused("SELECT [abc", "quoted name that begins with [abc has no end; close it with ]");
    refused(
        "-- a\rCOMMIT /*\nSELECT 1 */",
        "a comment (--) has a carriage return in it, where some databases end it and others do not; write a line feed");
    refused(
        "SELECT 1 -- a\r\r\n",
        "a comment (--) has a carriage return in it, where some databases end it and others do not; write a line feed");
    refused("SELECT 1 /* abc", "comment has no end; close it with */");
    refused("SELECT 1 /*/", "comment has no end; close it with */");
    refused("SELECT '", "string that begins with ' has no end; close it with '");
}

static void empty_statements_are_refused(void **state)
{
    (void)state;
    const char *words = "empty statement; write one, or remove the item";
    refused("", words);
    refused(" \n\t", words);
    refused("-- nothing", words);
    refused("/* nothing */ ;", words);
    refused_bytes((once_bytes){NULL, 0}, words);
    refused_bytes(ONCE_BYTES("SELECT 1\0"), "NUL byte in a statement");
}

static void f78_transaction_control_and_administration_are_refused(void **state)
{
    (void)state;
    static const char *const words[] = {"BEGIN",  "COMMIT", "END",    "ROLLBACK", "SAVEPOINT", "RELEASE", "START",
                                        "ATTACH", "DETACH", "PRAGMA", "VACUUM",   "commit",    "Rollback"};
    char text[100], expected[200];
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        static const char *const before[] = {"", "  \n", "/* x */ ", "-- x\n", ";"};
        (void)snprintf(expected, sizeof expected,
                       "statement cannot be '%s': transaction and connection belong to once; remove it", words[i]);
        for (size_t k = 0; k < sizeof before / sizeof *before; k++) {
            (void)snprintf(text, sizeof text, "%s%s x", before[k], words[i]);
            refused(text, expected);
        }
    }
    unchanged("SELECT commit FROM t");
    unchanged("INSERT OR ROLLBACK INTO t VALUES (1)");
    unchanged("committed");
}

static void f78_one_statement_per_item(void **state)
{
    (void)state;
    const char *words = "more than one statement; make each an item of its own in the list";
    refused("SELECT 1; COMMIT", words);
    refused("SELECT 1;;:a", words);
    refused("SELECT 1; 'x'", words);
    unchanged("SELECT 1; -- :a\n ; /* x */ ;");
    unchanged("SELECT ';'");
}

static void many_parameters(void **state)
{
    (void)state;
    static char text[20000], sql[20000];
    size_t a = 0, b = 0;
    for (int i = 0; i < 1000; i++) {
        a += (size_t)snprintf(text + a, sizeof text - a, "%s:p%d", i == 0 ? "SELECT " : ",", i);
        b += (size_t)snprintf(sql + b, sizeof sql - b, "%s?%d", i == 0 ? "SELECT " : ",", i + 1);
    }
    once_sql_statement out;
    assert_int_equal(once_sql_parse(&arena, bytes(text), &out, NULL), ONCE_OK);
    assert_int_equal(out.n, 1000);
    assert_string_equal(out.sql.data, sql);
    (void)snprintf(text + a, sizeof text - a, ",:one_more");
    refused(text, "more than 1000 parameters in a statement");
}

static int end(void **state)
{
    (void)state;
    once_arena_release(&arena);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f87_a_field_is_bound_as_text),
        cmocka_unit_test(everything_that_a_template_names_is_bound),
        cmocka_unit_test(parameters_are_numbered),
        cmocka_unit_test(names_that_begin_with_once_are_ours),
        cmocka_unit_test(casts_and_other_colons_stay),
        cmocka_unit_test(quotes_and_comments_stay),
        cmocka_unit_test(foreign_parameters_are_refused),
        cmocka_unit_test(bad_pointers_are_refused),
        cmocka_unit_test(what_has_no_end_is_refused),
        cmocka_unit_test(empty_statements_are_refused),
        cmocka_unit_test(f78_transaction_control_and_administration_are_refused),
        cmocka_unit_test(f78_one_statement_per_item),
        cmocka_unit_test(many_parameters),
    };
    return cmocka_run_group_tests(tests, NULL, end);
}
