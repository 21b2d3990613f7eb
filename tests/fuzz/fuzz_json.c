/* The JSON scanner against jansson: the same verdict on every text and the same values in it, and fingerprints that
 * survive being written again in another order and spelling.
 *
 * Where the verdicts may differ (each line is a predicate below; anything else is a bug of ours):
 *
 *   too_deep        we refuse     nesting beyond 128; jansson stops at 2048
 *   stray_nul       we refuse     a raw NUL outside strings, which jansson overlooks behind some values
 *   integer_range   we accept     integers beyond 64 bits
 *   real_range      we accept     reals that overflow a double
 *   nul_in_key      we accept     \u0000 in a member name
 *
 * Values: reals are compared with what jansson got from strtod; integers, strings and structure exactly. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #what);                                       \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

#define FLAGS (JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL)
#define SEED 0x6F6E6365u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* --- the differences ---------------------------------------------------------------------------------------------- */

static bool too_deep(const once_json_error *err) { return err->fault == ONCE_JSON_FAULT_DEPTH; }

/* Everything before the offset was valid, so counting quotes says whether it is inside a string. */
static bool stray_nul(once_bytes text, const once_json_error *err)
{
    bool in_string = false;
    if (err->fault != ONCE_JSON_FAULT_NUL) return false;
    for (size_t i = 0; i < err->offset; i++) {
        if (text.data[i] == '"') in_string = !in_string;
        if (text.data[i] == '\\') i++;
    }
    return !in_string;
}

static bool is_key(const once_json *json, uint32_t token)
{
    /* names are the strings that a walk over the values does not reach; cheaper: a colon follows the closing quote */
    const char *p = json->text.data + json->tokens[token].offset + json->tokens[token].len + 1;
    const char *end = json->text.data + json->text.len;
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) p++;
    return p < end && *p == ':';
}

static once_json_value value_at(const once_json *json, uint32_t token)
{
    const once_json_token *t = &json->tokens[token];
    return (once_json_value){(once_json_type)t->type, t->escaped, {json->text.data + t->offset, t->len}, token};
}

static bool integer_range(const once_json *json)
{
    int64_t got;
    for (uint32_t i = 0; i < json->count; i++) {
        const once_json_value value = value_at(json, i);
        if (value.type == ONCE_JSON_INTEGER && !once_json_int64(value, &got)) return true;
    }
    return false;
}

static bool real_range(const once_json *json)
{
    double got;
    for (uint32_t i = 0; i < json->count; i++) {
        const once_json_value value = value_at(json, i);
        if (value.type == ONCE_JSON_REAL && !once_json_double(value, &got)) return true;
    }
    return false;
}

static bool nul_in_key(const once_json *json, once_arena *arena)
{
    for (uint32_t i = 0; i < json->count; i++) {
        const once_json_value value = value_at(json, i);
        once_bytes text;
        if (value.type != ONCE_JSON_STRING || !is_key(json, i)) continue;
        CHECK(once_json_string(value, arena, &text));
        if (memchr(text.data, 0, text.len)) return true;
    }
    return false;
}

/* The shortest text that reads as the double is the number itself, or the number does not survive. */
static void check_survival(once_json_value ours, double real)
{
    char shortest[64];
    double again;
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(shortest, sizeof shortest, "%.*e", digits - 1, real);
        if (strtod(shortest, NULL) == real) break;
    }
    once_decimal number, printed;
    const once_json_value value = {.type = ONCE_JSON_REAL, .raw = {shortest, strlen(shortest)}};
    const bool same = once_json_decimal(ours, &number) && once_json_decimal(value, &printed) &&
                      once_decimal_compare(&number, &printed) == 0;
    CHECK(once_json_survives_double(ours, &again) == same);
    CHECK(again == real);
}

/* --- the same values ---------------------------------------------------------------------------------------------- */

static void compare(once_json *json, once_arena *arena, once_json_value ours, json_t *theirs);

static void compare_object(once_json *json, once_arena *arena, once_json_value ours, json_t *theirs)
{
    size_t count = 0;
    once_json_iter it = once_json_each(json, ours);
    while (once_json_next(&it)) {
        once_bytes name;
        CHECK(once_json_string(it.key, arena, &name));
        char *copy = malloc(name.len + 1); /* jansson wants an end that the sanitizer knows */
        CHECK(copy);
        memcpy(copy, name.data, name.len);
        copy[name.len] = '\0';
        json_t *member = json_object_get(theirs, copy);
        free(copy);
        CHECK(member);
        CHECK(once_json_string_is(it.key, name));
        CHECK(once_json_member(json, ours, name).token == it.value.token);
        compare(json, arena, it.value, member);
        count++;
    }
    CHECK(count == json_object_size(theirs));
}

static void compare_array(once_json *json, once_arena *arena, once_json_value ours, json_t *theirs)
{
    uint32_t count = 0;
    once_json_iter it = once_json_each(json, ours);
    while (once_json_next(&it)) {
        if (count < 8) CHECK(once_json_element(json, ours, count).token == it.value.token);
        compare(json, arena, it.value, json_array_get(theirs, count++));
    }
    CHECK(count == json_array_size(theirs));
}

static void compare(once_json *json, once_arena *arena, once_json_value ours, json_t *theirs)
{
    int64_t integer;
    double real;
    once_bytes text;
    CHECK(theirs);
    switch (ours.type) {
    case ONCE_JSON_ABSENT: abort(); /* nothing of a document is absent */
    case ONCE_JSON_NULL: CHECK(json_is_null(theirs)); break;
    case ONCE_JSON_FALSE: CHECK(json_is_false(theirs)); break;
    case ONCE_JSON_TRUE: CHECK(json_is_true(theirs)); break;
    case ONCE_JSON_INTEGER:
        CHECK(json_is_integer(theirs) && once_json_int64(ours, &integer));
        CHECK(integer == json_integer_value(theirs));
        break;
    case ONCE_JSON_REAL:
        CHECK(json_is_real(theirs) && once_json_double(ours, &real));
        CHECK(real == json_real_value(theirs));
        check_survival(ours, real);
        break;
    case ONCE_JSON_STRING:
        CHECK(json_is_string(theirs) && once_json_string(ours, arena, &text));
        CHECK(text.len == json_string_length(theirs) && !memcmp(text.data, json_string_value(theirs), text.len));
        CHECK(once_json_string_is(ours, text));
        break;
    case ONCE_JSON_ARRAY:
        CHECK(json_is_array(theirs));
        compare_array(json, arena, ours, theirs);
        break;
    case ONCE_JSON_OBJECT:
        CHECK(json_is_object(theirs));
        compare_object(json, arena, ours, theirs);
        break;
    }
}

/* --- the same fingerprint ----------------------------------------------------------------------------------------- */

static bool has_reals(const once_json *json)
{
    for (uint32_t i = 0; i < json->count; i++) {
        if (json->tokens[i].type == ONCE_JSON_REAL) return true;
    }
    return false;
}

/* jansson writes the members in another order, escapes in another way, and indents. */
static void compare_rewritten(once_json *json, json_t *theirs)
{
    static const size_t styles[] = {JSON_SORT_KEYS | JSON_COMPACT, JSON_ENSURE_ASCII | JSON_INDENT(3)};
    const once_hash before = once_json_fingerprint(json, once_json_root(json), SEED);
    for (size_t i = 0; i < 2; i++) {
        char *text = json_dumps(theirs, styles[i] | JSON_ENCODE_ANY);
        CHECK(text);
        once_json again;
        once_json_init(&again);
        CHECK(once_json_parse(&again, (once_bytes){text, strlen(text)}, NULL, NULL) == ONCE_OK);
        CHECK(again.count == json->count);
        CHECK(once_hash_equal(before, once_json_fingerprint(&again, once_json_root(&again), SEED)));
        once_json_release(&again);
        free(text);
    }
}

/* Every number, spelled canonically, is the same number and has the same fingerprint. */
static void compare_numbers(once_json *json, once_arena *arena)
{
    once_json again;
    once_json_init(&again);
    for (uint32_t i = 0; i < json->count; i++) {
        const once_json_value value = value_at(json, i);
        once_decimal decimal, respelled;
        once_bytes text;
        if (!once_json_decimal(value, &decimal)) continue;
        CHECK(once_decimal_text(&decimal, arena, &text));
        CHECK(once_json_parse(&again, text, NULL, NULL) == ONCE_OK);
        const once_json_value root = once_json_root(&again);
        CHECK(once_json_decimal(root, &respelled));
        CHECK(once_decimal_compare(&decimal, &respelled) == 0);
        CHECK(once_hash_equal(once_json_fingerprint(json, value, SEED), once_json_fingerprint(&again, root, SEED)));
    }
    once_json_release(&again);
}

/* --- one input ---------------------------------------------------------------------------------------------------- */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static once_json json; /* reused, as in the product */
    static once_arena arena;
    once_json_error err = {0};
    json_error_t theirs_err;

    char *exact = malloc(size + !size); /* an allocation that ends with the text, so that reading on is seen */
    CHECK(exact);
    if (size) memcpy(exact, data, size);
    const int rc = once_json_parse(&json, (once_bytes){exact, size}, NULL, &err);
    json_t *theirs = json_loadb(exact, size, FLAGS, &theirs_err);

    CHECK(rc == ONCE_OK || once_json_root(&json).type == ONCE_JSON_ABSENT);
    if (rc == ONCE_OK && theirs) {
        compare(&json, &arena, once_json_root(&json), theirs);
        if (!has_reals(&json)) compare_rewritten(&json, theirs);
    } else if (rc == ONCE_OK) {
        if (!integer_range(&json) && !real_range(&json) && !nul_in_key(&json, &arena)) {
            fprintf(stderr, "only jansson refuses: %s at %d\n", theirs_err.text, theirs_err.position);
            abort();
        }
    } else if (theirs && !too_deep(&err) && !stray_nul((once_bytes){exact, size}, &err)) {
        fprintf(stderr, "only we refuse: %s at %zu\n", err.reason, err.offset);
        abort();
    }
    if (rc == ONCE_OK) {
        compare_numbers(&json, &arena);
        (void)once_json_fingerprint(&json, once_json_root(&json), SEED);
    } else {
        CHECK(rc == ONCE_E_MESSAGE && err.fault != ONCE_JSON_FAULT_NONE && err.reason[0] && err.offset <= size);
    }
    json_decref(theirs);
    free(exact);
    once_arena_reset(&arena);
    return 0;
}
