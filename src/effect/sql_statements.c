#include "effect/sql_statements.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"

#include "base/banned.h"

/* --- the statements --- */

/* Both we and the database decide where strings and comments end. If we disagreed, a value would be bound to
 * nothing, or nothing to a parameter. */
static int compare_params(const once_sql_statement *statement, const once_stmt *prepared, once_error *err)
{
    const int theirs = once_stmt_params(prepared);
    if ((size_t)theirs == statement->n) return ONCE_OK;
    return once_fail(err, ONCE_E_CONFIG,
                     "the database finds %d parameter%s in the statement, and once finds %zu; look at quotes, "
                     "backslashes and comments in it",
                     theirs, theirs == 1 ? "" : "s", statement->n);
}

int once_sql_open(const once_spec *spec, const once_sql_list *list, once_db *db, once_stmt ***out, once_error *err)
{
    assert(list->n > 0 && db && out);
    once_stmt **statements = calloc(list->n, sizeof *statements);
    if (!statements) return once_no_memory(err, "for the handlers");
    for (size_t i = 0; i < list->n; i++) {
        const once_sql_statement *statement = &list->at[i];
        once_error why;
        int rc = once_db_prepare(db, statement->sql, &statements[i], &why);
        if (rc == ONCE_OK) rc = compare_params(statement, statements[i], &why);
        if (rc == ONCE_OK) continue;
        once_sql_close(list, statements);
        return once_fail(err, rc, "%.*s:%d: %s", (int)spec->file.len, spec->file.data, statement->line, why.text);
    }
    *out = statements;
    return ONCE_OK;
}

void once_sql_close(const once_sql_list *list, once_stmt **statements)
{
    if (!statements) return;
    for (size_t i = 0; i < list->n; i++) once_stmt_free(statements[i]);
    free(statements);
}

/* --- the input: one value for each parameter of each statement, in order --- */

#define KEY_TEXT 33 /* of an idempotency key */

/* A JSON value that is written without quotes, and is not null. */
static bool is_bare(once_json_type type)
{
    return type == ONCE_JSON_INTEGER || type == ONCE_JSON_REAL || type == ONCE_JSON_FALSE || type == ONCE_JSON_TRUE;
}

/* What is no JSON value: the coordinates, a hash, a window of time. Also reports what is missing. */
static int read_text(const once_parsed *from, const once_sql_param *param, once_arena *arena, once_value *out,
                     once_error *err)
{
    out->type = ONCE_VALUE_NULL;
    if (param->optional && once_placeholder_is_absent(&param->place, from)) return ONCE_OK;
    out->type = ONCE_VALUE_TEXT;
    return once_placeholder_text(&param->place, from, arena, &out->text, err);
}

int once_sql_value(const once_parsed *from, const once_sql_param *param, once_arena *arena, once_value *out,
                   once_error *err)
{
    once_json_value value = {0};
    const int rc =
        param->place.kind == ONCE_PLACE_TIME ? ONCE_OK : once_placeholder_value(&param->place, from, &value, err);
    if (rc != ONCE_OK) return rc;
    if (param->as_text && is_bare(value.type)) {
        *out = (once_value){.type = ONCE_VALUE_TEXT, .text = value.raw};
        return ONCE_OK;
    }
    switch (value.type) {
    case ONCE_JSON_ABSENT: return read_text(from, param, arena, out, err);
    case ONCE_JSON_NULL: out->type = ONCE_VALUE_NULL; return ONCE_OK;
    case ONCE_JSON_FALSE:
    case ONCE_JSON_TRUE:
        out->type = ONCE_VALUE_INTEGER;
        out->integer = value.type == ONCE_JSON_TRUE;
        return ONCE_OK;
    case ONCE_JSON_INTEGER:
        out->type = ONCE_VALUE_INTEGER;
        if (!once_json_int64(value, &out->integer))
            *out = (once_value){.type = ONCE_VALUE_NUMBER, .number = {.text = value.raw}};
        return ONCE_OK;
    case ONCE_JSON_REAL:
        *out = (once_value){.type = ONCE_VALUE_NUMBER, .number = {.text = value.raw}};
        out->number.survives = once_json_survives_double(value, &out->number.real);
        return ONCE_OK;
    case ONCE_JSON_STRING:
        out->type = ONCE_VALUE_TEXT;
        if (once_json_string(value, arena, &out->text)) return ONCE_OK;
        return once_no_memory(err, "for a message");
    case ONCE_JSON_ARRAY:
    case ONCE_JSON_OBJECT:
        out->type = ONCE_VALUE_TEXT;
        out->text = value.raw;
        return ONCE_OK;
    }
    return once_fail(err, ONCE_E_BUG, "unknown kind of JSON value");
}

static once_value body_value(const once_parsed *from)
{
    if (from->message->no_body) return (once_value){.type = ONCE_VALUE_NULL};
    return (once_value){.type = ONCE_VALUE_BYTES, .is_text = from->body != NULL, .text = from->message->body};
}

static int read_value(const once_parsed *from, const once_sql_param *param, once_arena *arena, once_value *out,
                      once_error *err)
{
    if (param->source == ONCE_SQL_PLACE) return once_sql_value(from, param, arena, out, err);
    *out =
        param->source == ONCE_SQL_BODY ? body_value(from) : (once_value){.type = ONCE_VALUE_NULL}; /* until it runs */
    if (param->source != ONCE_SQL_IDEMPOTENCY_KEY) return ONCE_OK;
    out->text = (once_bytes){once_arena_alloc(arena, KEY_TEXT), KEY_TEXT - 1};
    return out->text.data ? ONCE_OK : once_no_memory(err, "for a message");
}

size_t once_sql_count(const once_sql_list *list)
{
    size_t n = 0;
    for (size_t i = 0; i < list->n; i++) n += list->at[i].n;
    return n;
}

int once_sql_values(const once_sql_list *list, const once_parsed *from, once_arena *arena, once_value *out,
                    once_error *err)
{
    assert(from->message && arena);
    for (size_t i = 0; i < list->n; i++) {
        const once_sql_statement *statement = &list->at[i];
        for (size_t k = 0; k < statement->n; k++) {
            const int rc = read_value(from, &statement->params[k], arena, out++, err);
            if (rc != ONCE_OK) return rc;
        }
    }
    return ONCE_OK;
}

static void fill_value(const once_item *item, const once_keying *keying, once_sql_source source, once_value *value)
{
    switch (source) {
    case ONCE_SQL_PLACE:
    case ONCE_SQL_RESULT: /* effect/then.c */
    case ONCE_SQL_BODY: break;
    case ONCE_SQL_KEY: *value = (once_value){.type = ONCE_VALUE_TEXT, .text = item->request.key}; break;
    case ONCE_SQL_IDEMPOTENCY_KEY:
        value->type = ONCE_VALUE_TEXT;
        once_item_outward_key(keying, item, (char *)value->text.data); /* once_sql_values made room for it */
        break;
    case ONCE_SQL_ATTEMPT: *value = (once_value){.type = ONCE_VALUE_INTEGER, .integer = item->decision.attempt}; break;
    }
}

void once_sql_fill(const once_sql_list *list, once_value *values, const once_item *item, const once_keying *keying)
{
    assert(values && item->decision.attempt > 0);
    for (size_t i = 0; i < list->n; i++) {
        const once_sql_statement *statement = &list->at[i];
        for (size_t k = 0; k < statement->n; k++) fill_value(item, keying, statement->params[k].source, values++);
    }
}

bool once_sql_fits(const once_db *db, const once_sql_list *list, const once_value *values, char *why, size_t size)
{
    if (once_db_reads_numbers(db)) return true;
    for (size_t i = 0; i < list->n; i++) {
        const once_sql_statement *statement = &list->at[i];
        for (size_t k = 0; k < statement->n; k++, values++) {
            if (values->type != ONCE_VALUE_NUMBER || values->number.survives) continue;
            const once_sql_param *param = &statement->params[k];
            const once_bytes name = param->place.text;
            const int len = name.len < 80 ? (int)name.len : 80;
            snprintf(why, size,
                     "the number in field '%.*s' does not fit in SQLite without being rounded; bind its text with "
                     "':{%s%.*s%s as text}'",
                     len, name.data, param->source == ONCE_SQL_RESULT ? "result:" : "", len, name.data,
                     param->optional ? "?" : "");
            return false;
        }
    }
    return true;
}

/* --- what an answer means --- */

static bool listed(const once_bytes *list, size_t n, const once_fault *fault)
{
    char code[16];
    const int code_len = snprintf(code, sizeof code, "%d", fault->code);
    const size_t len = strlen(fault->constraint);
    for (size_t i = 0; i < n; i++) {
        if (len && list[i].len == len && memcmp(list[i].data, fault->constraint, len) == 0) return true;
        if (fault->code && list[i].len == (size_t)code_len && memcmp(list[i].data, code, list[i].len) == 0) return true;
        if (fault->state[0] && list[i].len == strlen(fault->state) &&
            memcmp(list[i].data, fault->state, list[i].len) == 0)
            return true;
    }
    return false;
}

bool once_sql_is_answer(const once_fault *fault)
{
    return fault->kind == ONCE_FAULT_CONSTRAINT || fault->kind == ONCE_FAULT_DATA || fault->kind == ONCE_FAULT_INTERNAL;
}

bool once_sql_lists(const once_handler_spec *handler, const once_fault *fault)
{
    const once_sql_spec *sql = once_sql_of(handler);
    if (!once_sql_is_answer(fault)) return false;
    return listed(sql->already, sql->n_already, fault) || listed(sql->rejected, sql->n_rejected, fault) ||
           listed(handler->retry.on, handler->retry.n_on, fault);
}

bool once_sql_judge(const once_handler_spec *handler, const once_fault *fault, once_outcome *outcome)
{
    assert(fault->kind != ONCE_FAULT_NONE && outcome);
    const once_sql_spec *sql = once_sql_of(handler);
    if (!once_sql_is_answer(fault)) return false;
    if (listed(sql->already, sql->n_already, fault)) *outcome = ONCE_ALREADY;
    else if (listed(sql->rejected, sql->n_rejected, fault)) *outcome = ONCE_REJECTED;
    else if (listed(handler->retry.on, handler->retry.n_on, fault) || fault->kind == ONCE_FAULT_INTERNAL)
        *outcome = ONCE_RETRY;
    else *outcome = ONCE_DEAD;
    return true;
}

bool once_sql_met(const once_sql_statement *statement, size_t i, int64_t rows, char *why, size_t size)
{
    assert(statement->rows >= -1 && rows >= 0);
    if (statement->rows < 0 || rows == statement->rows) return true;
    snprintf(why, size, "statement %zu changed or returned %lld rows, and 'rows' says %lld", i + 1, (long long)rows,
             (long long)statement->rows);
    return false;
}
