/* A validating JSON scanner without copies: one pass over the text checks everything and leaves a tape of tokens that
 * point into it. Values, pointers (RFC 6901), exact numbers and the order-independent fingerprint are read from the
 * tape.
 *
 *     once_json json;
 *     once_json_init(&json);
 *     if (once_json_parse(&json, body, NULL, &err) == ONCE_OK) {
 *         once_json_value amount = once_json_find(&json, &pointer);
 *         ...
 *     }
 *     once_json_release(&json);
 *
 * What is accepted is RFC 8259, with the points that the RFC leaves open decided like this:
 *   - strings are valid UTF-8; surrogate escapes come in pairs; a raw NUL is malformed, \u0000 is a legal character
 *   - no object has two members of the same name, however the names are spelled ("a" is "\u0061")
 *   - nesting and size have limits; a byte order mark is not white space; any value may stand at the top
 *   - numbers may have any length. They are exact where they are used, and refused there when they do not fit
 *
 * Where jansson 2.14 (the oracle of tests/fuzz/fuzz_json.c, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL)
 * gives another verdict, each one a predicate of that name in the fuzzer:
 *   too_deep        we stop at max_depth (128), jansson at 2048 levels of its own counting
 *   stray_nul       jansson overlooks a raw NUL behind some values; we refuse it
 *   integer_range   jansson refuses integers beyond 64 bits; we keep their digits
 *   real_range      jansson refuses reals that overflow a double (1e400); we keep their digits
 *   nul_in_key      jansson refuses \u0000 in a member name
 *
 * Cost: linear in the text, also for hostile ones. Objects with more than 32 members are checked for duplicate names by
 * sorting, so names crafted to collide cost n log n. No recursion. A reused once_json allocates nothing while messages
 * are of similar size; after an unusually large one it gives the memory back with the next small one.
 *
 * Ownership: the text belongs to the caller and must stay unchanged while values of it are in use. Values die with the
 * next parse. Thread rule: one thread at a time; a parsed document may be read (not fingerprinted) by several. */
#ifndef ONCE_BASE_JSON_H
#define ONCE_BASE_JSON_H

#include <stdint.h>

#include "base/arena.h"
#include "base/hash.h"
#include "once/types.h"

#define ONCE_JSON_MAX_DEPTH 128u          /* when the options say nothing */
#define ONCE_JSON_MAX_BYTES (1024u << 20) /* of one text, whatever the options say */

/* What can be wrong with a text. DEPTH and SIZE add their limit. */
#define ONCE_JSON_FAULT_MAP(X)                                                                                         \
    X(NONE, "")                                                                                                        \
    X(EMPTY, "no value")                                                                                               \
    X(END, "text ends inside a value")                                                                                 \
    X(VALUE, "value expected")                                                                                         \
    X(KEY, "member name expected")                                                                                     \
    X(COLON, "':' expected")                                                                                           \
    X(ARRAY_NEXT, "',' or ']' expected")                                                                               \
    X(OBJECT_NEXT, "',' or '}' expected")                                                                              \
    X(WORD, "unknown word")                                                                                            \
    X(NUMBER, "digit expected")                                                                                        \
    X(ZERO, "number with a leading zero")                                                                              \
    X(ESCAPE, "invalid escape")                                                                                        \
    X(SURROGATE, "lone surrogate escape")                                                                              \
    X(CONTROL, "raw control character in a string")                                                                    \
    X(NUL, "raw NUL byte")                                                                                             \
    X(UTF8, "invalid UTF-8")                                                                                           \
    X(BOM, "byte order mark")                                                                                          \
    X(DUPLICATE, "duplicate key")                                                                                      \
    X(DEPTH, "nesting deeper than")                                                                                    \
    X(SIZE, "text is longer than")                                                                                     \
    X(TRAILING, "more text after the value")                                                                           \
    X(NOT_OBJECT, "not an object")                                                                                     \
    X(MEMORY, "out of memory")

typedef enum once_json_fault {
#define ONCE_JSON_FAULT_ENUM(name, text) ONCE_JSON_FAULT_##name,
    ONCE_JSON_FAULT_MAP(ONCE_JSON_FAULT_ENUM)
#undef ONCE_JSON_FAULT_ENUM
        ONCE_JSON_FAULTS
} once_json_fault;

/* `offset` is the first byte that cannot be right: the second of two equal keys (its opening quote), the backslash of
 * a bad escape, the bracket that is too deep, the length of the text where it ends too soon. `reason` never quotes the
 * text, so it may be logged. */
typedef struct once_json_error {
    size_t offset;
    once_json_fault fault;
    char reason[60];
} once_json_error;

typedef enum once_json_type {
    ONCE_JSON_ABSENT, /* no such value */
    ONCE_JSON_NULL,
    ONCE_JSON_FALSE,
    ONCE_JSON_TRUE,
    ONCE_JSON_INTEGER, /* a number written without fraction or exponent */
    ONCE_JSON_REAL,    /* any other number; 1.0 and 1e3 too */
    ONCE_JSON_STRING,
    ONCE_JSON_ARRAY,
    ONCE_JSON_OBJECT
} once_json_type;

typedef struct once_json_value {
    once_json_type type;
    bool escaped;   /* a string with escapes: `raw` is not its text, once_json_string() gives it */
    once_bytes raw; /* into the text; of a string, what stands between the quotes */
    uint32_t token; /* position on the tape */
} once_json_value;

/* One value, or one member name, on the tape. In an object, names and values alternate. Private. */
typedef struct once_json_token {
    uint32_t offset, len;
    uint32_t next; /* of a value: the token behind it and everything inside it; of a name: its 32-bit hash */
    uint8_t type;  /* once_json_type */
    bool escaped;
} once_json_token;

struct once_json_frame;

/* Private inside. */
typedef struct once_json {
    once_bytes text;
    once_json_token *tokens;
    uint32_t count, capacity;
    struct once_json_frame *frames; /* open containers; while parsing and while fingerprinting */
    uint32_t frames_capacity;
    uint64_t *names; /* for sorting the names of a large object */
    uint32_t names_capacity;
} once_json;

/* Zero means the default, for each. */
typedef struct once_json_options {
    size_t max_bytes;   /* ONCE_JSON_MAX_BYTES */
    uint32_t max_depth; /* ONCE_JSON_MAX_DEPTH; a bare scalar has depth 0, [] has 1 */
    bool object;        /* demand an object at the top */
    uint64_t seed;      /* for the hash that finds duplicate names; does not show anywhere */
} once_json_options;

/* A zeroed struct is an empty document, in which every pointer finds ABSENT; this makes one explicit. */
void once_json_init(once_json *json);
void once_json_release(once_json *json);

/* ONCE_OK; ONCE_E_MESSAGE when the text is malformed or too large, with the reason in `err`; ONCE_E_NOMEM. After a
 * failure the document is empty. `options` and `err` may be NULL; success leaves `err` untouched. */
int once_json_parse(once_json *json, once_bytes text, const once_json_options *options, once_json_error *err);

/* --- walking ------------------------------------------------------------------------------------------------------ */

once_json_value once_json_root(const once_json *json); /* ABSENT before the first successful parse */

/* The member of an object by its (unescaped) name, the element of an array; ABSENT if there is none or `in` is
 * something else. */
once_json_value once_json_member(const once_json *json, once_json_value in, once_bytes name);
once_json_value once_json_element(const once_json *json, once_json_value in, uint32_t index);

/* In the order of the text:
 *     once_json_iter it = once_json_each(&json, value);
 *     while (once_json_next(&it)) use(it.key, it.value);
 * Anything but a container has no members. In an array `key` is ABSENT. */
typedef struct once_json_iter {
    once_json_value key, value;
    const once_json *json;
    uint32_t at, end;
    bool object;
} once_json_iter;

once_json_iter once_json_each(const once_json *json, once_json_value in);
bool once_json_next(once_json_iter *it);

/* --- pointers ----------------------------------------------------------------------------------------------------- */

typedef struct once_pointer_step {
    once_bytes name; /* unescaped */
    uint32_t index;  /* UINT32_MAX: not an index */
} once_pointer_step;

typedef struct once_pointer {
    once_bytes text; /* as written */
    const once_pointer_step *steps;
    uint32_t count; /* 0: the whole document */
} once_pointer;

/* Copies all it needs into the arena. ONCE_OK, ONCE_E_USAGE with the mistake in `err`, or ONCE_E_NOMEM; on failure
 * `out` is untouched. "-" (the element behind the last) is legal and finds nothing. Beside ~0 and ~1 of the RFC, ~2 is
 * ':' and ~3 is '}', because pointers stand where these have a meaning of their own (core/path.h, templates). */
int once_pointer_parse(once_arena *arena, once_bytes text, once_pointer *out, once_error *err);

once_json_value once_json_find(const once_json *json, const once_pointer *pointer);

/* --- values ------------------------------------------------------------------------------------------------------- */

/* These return false, and leave `out` alone, when the value is not of the kind they want or does not fit. */

/* The text of a string or of a member name. Not copied when nothing is escaped; otherwise it lives in the arena.
 * May contain NUL. Also false when memory is out. */
bool once_json_string(once_json_value value, once_arena *arena, once_bytes *out);

/* Compares without copying. False for anything but a string. */
bool once_json_string_is(once_json_value value, once_bytes text);

/* Exact. 1.0 and 1e3 are integers too; 1.5 and 2^63 are not 64-bit integers. */
bool once_json_int64(once_json_value value, int64_t *out);

/* Correctly rounded, whatever the locale. False when the result is not finite (1e400); 1e-400 is 0. */
bool once_json_double(once_json_value value, double *out);

/* The same, and true only if no precision is lost: the shortest decimal that reads as that double is the number itself.
 * True for 0.1 and 12.75, and for every number with up to 15 digits and no extreme exponent; false for
 * 12345678901234567.89, 1e400 and 1e-400. */
bool once_json_survives_double(once_json_value value, double *out);

/* --- exact decimals ----------------------------------------------------------------------------------------------- */

/* A number as (-1)^negative * digits * 10^exponent, where `digits` is `head` followed by `tail` (both point into the
 * text), has no leading and no trailing zeros, and is empty for zero. So 1, 1.0 and 10e-1 are the same decimal, and -0
 * is 0. */
typedef struct once_decimal {
    bool negative;
    once_bytes head, tail;
    int64_t exponent;
} once_decimal;

/* False for anything but a number, and when the exponent reaches +-2^62. */
bool once_json_decimal(once_json_value value, once_decimal *out);

/* -1, 0, 1 by value. Exact. */
int once_decimal_compare(const once_decimal *x, const once_decimal *y);

/* The one spelling of a value: 1200, -0.5, and 12e98 where plain digits would take more than 64 places. False when
 * memory is out. */
bool once_decimal_text(const once_decimal *decimal, once_arena *arena, once_bytes *out);

/* --- fingerprints ------------------------------------------------------------------------------------------------- */

/* 128 bits over the meaning of a value: white space, the order of members, escapes and the spelling of numbers do not
 * matter; everything else does, the order of array elements and the difference between 1 and "1" included. Stored by
 * stores, so what it gives for a seed and a value never changes; it is the same on every machine.
 *
 * A number whose exponent reaches +-2^62 counts as it is written. */
once_hash once_json_fingerprint(once_json *json, once_json_value value, uint64_t seed);

/* Prints: two bytes of the hash of each field that a fingerprint covers. They tell later which fields differ, when the
 * values are gone. */
typedef struct once_json_prints {
    uint16_t *at; /* in the order of the members, or of the pointers */
    size_t capacity;
    size_t n; /* may be more than there is room for */
} once_json_prints;

/* The same fingerprint; `out` also gets the prints of the members of an object (none for other values). */
once_hash once_json_fingerprint_fields(once_json *json, once_json_value value, uint64_t seed, once_json_prints *out);

/* Over chosen values, which may be in several documents: (name, value) pairs, whatever their order. A missing value
 * counts as missing, which differs from null. Never equal to the fingerprint of a document, except by chance.
 *     once_json_chosen chosen = {.seed = seed};
 *     once_json_choose(&chosen, name, &json, value);    for each, in the order of the prints
 *     hash = once_json_chosen_fingerprint(&chosen); */
typedef struct once_json_chosen {
    uint64_t seed;
    once_json_prints prints;
    once_hash sum; /* private */
} once_json_chosen;

void once_json_choose(once_json_chosen *chosen, once_bytes name, once_json *json, once_json_value value);
once_hash once_json_chosen_fingerprint(const once_json_chosen *chosen);

#endif
