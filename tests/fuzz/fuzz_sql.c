/* Any bytes as a user's statement. What is accepted differs from its text only where a parameter stood, and each number
 * stands for the parameter that was written there. Where SQLite can prepare the result it must see the same parameters.
 */
#include <sqlite3.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "effect/sql_params.h"

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) abort();                                                                                     \
    } while (0)

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c >= '0' && c <= '9');
}

/* The length of the parameter that `at` begins with; its pointer (without the '/' of a name) and whether it is
 * optional. */
static bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/* Cuts a word (in either case) and white space around it off the end. */
static bool cut(once_bytes *text, const char *word)
{
    once_bytes left = *text;
    while (left.len && is_blank(left.data[left.len - 1])) left.len--;
    for (size_t i = strlen(word); i > 0; i--, left.len--)
        if (!left.len || (left.data[left.len - 1] | 0x20) != word[i - 1]) return false;
    const size_t end = left.len;
    while (left.len && is_blank(left.data[left.len - 1])) left.len--;
    if (left.len == end) return false;
    *text = left;
    return true;
}

static size_t written(once_bytes at, once_bytes *pointer, bool *named, bool *optional, bool *as_text)
{
    CHECK(at.len >= 2 && at.data[0] == ':');
    *named = at.data[1] != '{';
    *optional = *as_text = false;
    size_t len = 1;
    if (*named) {
        while (len < at.len && is_name(at.data[len])) len++;
        *pointer = (once_bytes){at.data + 1, len - 1};
        return len;
    }
    const char *end = memchr(at.data, '}', at.len);
    CHECK(end);
    *pointer = (once_bytes){at.data + 2, (size_t)(end - at.data) - 2};
    *optional = pointer->len > 0 && end[-1] == '?';
    if (*optional) pointer->len--;
    once_bytes rest = *pointer;
    *as_text = cut(&rest, "text") && cut(&rest, "as");
    if (!*as_text) return (size_t)(end - at.data) + 1;
    *pointer = rest;
    if (!*optional && rest.len && rest.data[rest.len - 1] == '?') *optional = true, pointer->len--;
    return (size_t)(end - at.data) + 1;
}

static void check_parameter(const once_sql_statement *s, size_t number, once_bytes pointer, bool named, bool optional,
                            bool as_text)
{
    CHECK(number >= 1 && number <= s->n);
    const once_sql_param *param = &s->params[number - 1];
    CHECK(param->optional == optional && param->as_text == as_text);
    if (param->source == ONCE_SQL_RESULT) {
        CHECK(!named && pointer.len >= 6 && memcmp(pointer.data, "result", 6) == 0);
        return;
    }
    const bool ours = named && pointer.len >= 5 && memcmp(pointer.data, "once_", 5) == 0;
    CHECK(ours == (param->source != ONCE_SQL_PLACE));
    if (ours) return;
    once_bytes have = param->place.text;
    CHECK(have.len > 0 && (!named || have.data[0] == '/'));
    if (named) have = (once_bytes){have.data + 1, have.len - 1};
    CHECK(have.len == pointer.len && memcmp(have.data, pointer.data, have.len) == 0);
}

static bool has_mark(once_bytes text, size_t at)
{
    return text.len - at >= 3 && memcmp(text.data + at, "\xef\xbb\xbf", 3) == 0;
}

static void check_text(const once_sql_statement *s)
{
    size_t at = 0, highest = 0;
    for (size_t i = 0; i < s->text.len;) {
        if (has_mark(s->text, i) && !has_mark(s->sql, at)) { /* before the first word it is left out */
            i += 3;
            continue;
        }
        CHECK(at < s->sql.len);
        if (s->text.data[i] == s->sql.data[at]) {
            i++;
            at++;
            continue;
        }
        CHECK(s->sql.data[at] == '?');
        size_t number = 0;
        for (at++; at < s->sql.len && s->sql.data[at] >= '0' && s->sql.data[at] <= '9'; at++)
            number = number * 10 + (size_t)(s->sql.data[at] - '0');
        once_bytes pointer;
        bool named, optional, as_text;
        i += written((once_bytes){s->text.data + i, s->text.len - i}, &pointer, &named, &optional, &as_text);
        check_parameter(s, number, pointer, named, optional, as_text);
        CHECK(number <= highest + 1); /* in the order of their first use, none left out */
        if (number > highest) highest = number;
    }
    CHECK(at == s->sql.len && highest == s->n);
}

static void check_with_sqlite(const once_sql_statement *s)
{
    static sqlite3 *db;
    if (!db) {
        CHECK(sqlite3_open(":memory:", &db) == SQLITE_OK);
        CHECK(sqlite3_exec(db, "CREATE TABLE t(a, b, c, id)", NULL, NULL, NULL) == SQLITE_OK);
    }
    sqlite3_stmt *stmt = NULL;
    const char *tail = NULL;
    if (sqlite3_prepare_v2(db, s->sql.data, (int)s->sql.len, &stmt, &tail) == SQLITE_OK && stmt)
        CHECK(sqlite3_bind_parameter_count(stmt) == (int)s->n);
    sqlite3_finalize(stmt);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    once_arena arena = {0};
    once_sql_statement s = {0};
    once_error err = {0};
    once_bytes text = {(const char *)data, size};
    int rc = once_sql_parse(&arena, text, &s, &err);
    if (rc == ONCE_OK) {
        CHECK(s.text.len == size && memcmp(s.text.data, data, size) == 0);
        check_text(&s);
        check_with_sqlite(&s);
    } else {
        CHECK(rc == ONCE_E_USAGE && err.text[0] != '\0' && !s.sql.data);
    }
    once_arena_release(&arena);
    return 0;
}
