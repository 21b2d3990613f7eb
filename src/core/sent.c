/* Reading the time of a message (core/sent.h). */
#include "core/sent.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/duration.h"
#include "base/plain.h"

#include "base/banned.h"

static const struct {
    const char *name, *words;
    int shift; /* in powers of ten, to milliseconds */
} units[ONCE_UNITS] = {
    [ONCE_UNIT_MS] = {"ms", "milliseconds", 0},
    [ONCE_UNIT_S] = {"s", "seconds", 3},
    [ONCE_UNIT_US] = {"us", "microseconds", -3},
    [ONCE_UNIT_NS] = {"ns", "nanoseconds", -6},
};

/* Dates that messages are likely to have. A wrong unit is wrong by a factor of at least 1000, so no number is likely in
 * two units. */
#define LIKELY_FROM_MS INT64_C(978307200000) /* 2001 */
#define LIKELY_TO_MS INT64_C(4102444800000)  /* 2100 */
#define ODD_BEFORE_MS INT64_C(126230400000)  /* 1974: seconds that were read as milliseconds are still in 1970 */

enum { SHOWN = 40, DIGITS = 18 };

/* A decimal number: digits * 10^exponent; only the first DIGITS significant digits are kept. */
typedef struct number {
    int64_t digits;
    int64_t exponent;
    bool negative;
} number;

typedef struct reader {
    once_bytes left;
    unsigned kept; /* significant digits so far */
} reader;

static bool next_digit(reader *in, int *out)
{
    if (in->left.len == 0 || in->left.data[0] < '0' || in->left.data[0] > '9') return false;
    *out = in->left.data[0] - '0';
    in->left.data++;
    in->left.len--;
    return true;
}

static bool next_is(reader *in, const char *any)
{
    if (in->left.len == 0 || !in->left.data[0] || !strchr(any, in->left.data[0])) return false;
    in->left.data++;
    in->left.len--;
    return true;
}

/* At least one digit. `behind`: after the decimal point. */
static bool read_digits(reader *in, bool behind, number *n)
{
    int digit;
    bool any = false;
    for (; next_digit(in, &digit); any = true) {
        if (in->kept == DIGITS) {
            n->exponent += !behind;
            continue;
        }
        n->digits = n->digits * 10 + digit;
        in->kept += n->digits > 0;
        n->exponent -= behind;
    }
    return any;
}

static bool read_exponent(reader *in, number *n)
{
    const bool negative = in->left.len && in->left.data[0] == '-';
    int64_t exponent = 0;
    int digit;
    bool any = false;
    (void)next_is(in, "+-");
    for (; next_digit(in, &digit); any = true)
        if (exponent < 1000000) exponent = exponent * 10 + digit;
    n->exponent += negative ? -exponent : exponent;
    return any;
}

static bool read_number(once_bytes text, number *out)
{
    reader in = {.left = text};
    number n = {.negative = next_is(&in, "-")};
    if (!read_digits(&in, false, &n)) return false;
    if (next_is(&in, ".") && !read_digits(&in, true, &n)) return false;
    if (next_is(&in, "eE") && !read_exponent(&in, &n)) return false;
    *out = n;
    return in.left.len == 0;
}

/* False: not a time in the years 1 to 9999. */
static bool to_ms(const number *n, once_time_unit unit, int64_t *out)
{
    assert(unit < ONCE_UNITS && n->digits >= 0);
    int64_t ms = n->digits, shift = n->exponent + units[unit].shift;
    for (; shift < 0 && ms; shift++) ms /= 10;
    for (; shift > 0 && ms; shift--)
        if (__builtin_mul_overflow(ms, 10, &ms)) return false;
    if (n->negative) ms = -ms;
    if (!once_time_is_sane(ms)) return false;
    *out = ms;
    return true;
}

/* The unit in which the number is a likely date, if it is an unlikely one in its own. */
static bool meant(const number *n, once_time_unit unit, once_time_unit *ret_unit, int64_t *ret_ms)
{
    int64_t ms;
    if (to_ms(n, unit, &ms) && ms >= ODD_BEFORE_MS) return false;
    for (once_time_unit other = 0; other < ONCE_UNITS; other++) {
        if (other == unit || !to_ms(n, other, ret_ms) || *ret_ms < LIKELY_FROM_MS || *ret_ms >= LIKELY_TO_MS) continue;
        *ret_unit = other;
        return true;
    }
    return false;
}

/* "; as seconds it would be 2026-...", or nothing. */
static void hint(const number *n, once_time_unit unit, char *out, size_t size)
{
    once_time_unit other;
    int64_t ms;
    char time[ONCE_TIME_TEXT];
    out[0] = 0;
    if (meant(n, unit, &other, &ms))
        snprintf(out, size, "; as %s it would be %s: say 'unit: %s' in 'time' if that is meant", units[other].words,
                 once_time_format(ms, time), units[other].name);
}

/* The text as it may be shown. */
static int shown(once_bytes text, char out[SHOWN + 1])
{
    const size_t len = text.len < SHOWN ? text.len : SHOWN;
    if (len) memcpy(out, text.data, len);
    return (int)once_make_plain(out, len, '?');
}

static int read_it(const number *n, once_bytes text, once_time_unit unit, int64_t *ret_ms, once_error *why)
{
    char words[160], raw[SHOWN + 1];
    if (to_ms(n, unit, ret_ms)) return ONCE_OK;
    hint(n, unit, words, sizeof words);
    const int len = shown(text, raw);
    return once_fail(why, ONCE_E_MESSAGE, "the time of the message, %.*s %s, is not in the years 1 to 9999%s", len, raw,
                     units[unit].name, words);
}

int once_sent_read(once_bytes text, once_time_unit unit, int64_t *ret_ms, once_error *why)
{
    number n;
    int64_t ms;
    char raw[SHOWN + 1];
    assert(unit < ONCE_UNITS);
    if (read_number(text, &n)) return read_it(&n, text, unit, ret_ms, why);
    const int len = shown(text, raw);
    if (once_time_parse(text, &ms, NULL) != ONCE_OK)
        return once_fail(why, ONCE_E_MESSAGE,
                         "the time of the message, '%.*s', is neither RFC 3339 nor a number of %s since 1970", len, raw,
                         units[unit].words);
    if (!once_time_is_sane(ms))
        return once_fail(why, ONCE_E_MESSAGE, "the time of the message, '%.*s', is not in the years 1 to 9999", len,
                         raw);
    *ret_ms = ms;
    return ONCE_OK;
}

int once_sent_read_number(int64_t value, once_time_unit unit, int64_t *ret_ms, once_error *why)
{
    char text[24];
    if (unit == ONCE_UNIT_MS && once_time_is_sane(value)) {
        *ret_ms = value;
        return ONCE_OK;
    }
    const int len = snprintf(text, sizeof text, "%" PRId64, value);
    return once_sent_read((once_bytes){text, (size_t)len}, unit, ret_ms, why);
}

bool once_sent_too_old(int64_t sent_ms, once_bytes text, once_time_unit unit, int64_t remember_ms, once_arena *arena,
                       once_bytes *out)
{
    enum { ROOM = 400 };
    char time[ONCE_TIME_TEXT], remembered[ONCE_DURATION_TEXT], raw[SHOWN + 1], from[SHOWN + 60] = "", words[160] = "";
    number n;
    char *to = once_arena_alloc(arena, ROOM);
    if (!to) return false;
    const int len = shown(text, raw);
    const bool counts = read_number(text, &n);
    if (text.len) snprintf(from, sizeof from, counts ? ", from %.*s %s" : ", from '%.*s'", len, raw, units[unit].words);
    if (counts) hint(&n, unit, words, sizeof words);
    const int written =
        snprintf(to, ROOM, "too old: sent %s%s, and messages are remembered for %s%s", once_time_format(sent_ms, time),
                 from, once_duration_format(remember_ms, remembered), words);
    *out = (once_bytes){to, (size_t)written};
    return true;
}
