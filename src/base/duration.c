/* Durations and times (base/duration.h), in 64-bit integers; every overflow is checked. */
#include "base/duration.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/banned.h"

#define MS_PER_DAY INT64_C(86400000)
#define SHOWN(text) ((text).len > 60 ? 60 : (int)(text).len), ((text).data ? (text).data : "")

typedef struct unit {
    const char *name;
    int64_t ms;
} unit;

/* Largest first. */
static const unit units[] = {{"d", MS_PER_DAY}, {"h", 3600000}, {"m", 60000}, {"s", 1000}, {"ms", 1}};
#define UNITS (sizeof units / sizeof units[0])

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool is_word(once_bytes text, const char *word)
{
    return text.len == strlen(word) && memcmp(text.data, word, text.len) == 0;
}

/* Reads digits from the start of `text`. Returns how many; false in `fits` when the number needs more than 63 bits. */
static size_t read_digits(once_bytes text, int64_t *number, bool *fits)
{
    size_t i = 0;
    *number = 0;
    *fits = true;
    for (; i < text.len && is_digit(text.data[i]); i++) {
        if (__builtin_mul_overflow(*number, 10, number)) *fits = false;
        if (__builtin_add_overflow(*number, text.data[i] - '0', number)) *fits = false;
    }
    return i;
}

int once_duration_parse(once_bytes text, int64_t *ret_ms, once_error *err)
{
    assert(text.data || text.len == 0);
    assert(ret_ms);
    const char *example = "; write a whole number and a unit, as in 200ms, 10s, 5m, 1h or 7d, or forever";
    if (text.len == 0) return once_fail(err, ONCE_E_USAGE, "duration is empty%s", example);
    if (is_word(text, "forever")) {
        *ret_ms = ONCE_FOREVER;
        return ONCE_OK;
    }
    if (text.data[0] == '-') return once_fail(err, ONCE_E_USAGE, "duration '%.*s' is negative", SHOWN(text));

    int64_t number;
    bool fits;
    size_t digits = read_digits(text, &number, &fits);
    if (digits == 0) return once_fail(err, ONCE_E_USAGE, "'%.*s' is not a duration%s", SHOWN(text), example);
    once_bytes rest = {text.data + digits, text.len - digits};
    if (rest.len == 0) return once_fail(err, ONCE_E_USAGE, "duration '%.*s' has no unit%s", SHOWN(text), example);
    if (rest.data[0] == '.' || rest.data[0] == ',')
        return once_fail(err, ONCE_E_USAGE, "duration '%.*s' is not a whole number; use a smaller unit", SHOWN(text));

    for (size_t i = 0; i < UNITS; i++) {
        if (!is_word(rest, units[i].name)) continue;
        int64_t ms;
        if (!fits || __builtin_mul_overflow(number, units[i].ms, &ms) || ms == ONCE_FOREVER)
            return once_fail(err, ONCE_E_USAGE, "duration '%.*s' is too long; for no end write forever", SHOWN(text));
        *ret_ms = ms;
        return ONCE_OK;
    }
    return once_fail(err, ONCE_E_USAGE, "duration '%.*s' has the unknown unit '%.*s'; the units are ms, s, m, h, d",
                     SHOWN(text), SHOWN(rest));
}

const char *once_duration_format(int64_t ms, char out[ONCE_DURATION_TEXT])
{
    assert(ms >= 0);
    assert(out);
    size_t i = 0;
    while (i + 1 < UNITS && (ms == 0 || ms % units[i].ms != 0)) i++;
    if (ms == ONCE_FOREVER) (void)snprintf(out, ONCE_DURATION_TEXT, "forever");
    else (void)snprintf(out, ONCE_DURATION_TEXT, "%" PRId64 "%s", ms / units[i].ms, units[i].name);
    return out;
}

const char *once_duration_about(int64_t ms, char out[ONCE_DURATION_TEXT])
{
    const int64_t s = ms > 0 ? ms / 1000 : 0;
    if (s < 60) (void)snprintf(out, ONCE_DURATION_TEXT, "%" PRId64 "s", s);
    else if (s < 3600) (void)snprintf(out, ONCE_DURATION_TEXT, "%" PRId64 "m%02" PRId64 "s", s / 60, s % 60);
    else (void)snprintf(out, ONCE_DURATION_TEXT, "%" PRId64 "h%02" PRId64 "m", s / 3600, s / 60 % 60);
    return out;
}

/* Days since 1970-01-01 in the Gregorian calendar, counted in eras of 400 years that begin on March 1. */
static int64_t days_from_date(int64_t year, int64_t month, int64_t day)
{
    assert(month >= 1 && month <= 12 && day >= 1 && day <= 31);
    if (month <= 2) year--;
    int64_t era = (year >= 0 ? year : year - 399) / 400;
    int64_t year_of_era = year - era * 400;
    int64_t day_of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    return era * 146097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719468;
}

static void date_from_days(int64_t days, int64_t *year, int64_t *month, int64_t *day)
{
    days += 719468;
    int64_t era = (days >= 0 ? days : days - 146096) / 146097;
    int64_t day_of_era = days - era * 146097;
    int64_t year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
    int64_t day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    int64_t march_month = (5 * day_of_year + 2) / 153;
    *day = day_of_year - (153 * march_month + 2) / 5 + 1;
    *month = march_month < 10 ? march_month + 3 : march_month - 9;
    *year = year_of_era + era * 400 + (*month <= 2);
}

static int64_t days_in_month(int64_t year, int64_t month)
{
    assert(month >= 1 && month <= 12);
    static const int64_t days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    return days[month - 1] + (month == 2 && leap);
}

/* A cursor over the text; after a mismatch `bad` stays true. */
typedef struct reader {
    once_bytes left;
    bool bad;
} reader;

static int64_t read_number(reader *in, size_t digits, int64_t low, int64_t high)
{
    int64_t number = 0;
    for (size_t i = 0; i < digits; i++) {
        if (in->left.len <= i || !is_digit(in->left.data[i])) {
            in->bad = true;
            return low;
        }
        number = number * 10 + (in->left.data[i] - '0');
    }
    in->left.data += digits;
    in->left.len -= digits;
    if (number < low || number > high) {
        in->bad = true;
        return low;
    }
    return number;
}

static bool read_any(reader *in, const char *allowed, char *ret_found)
{
    if (in->left.len == 0 || in->left.data[0] == '\0' || !strchr(allowed, in->left.data[0])) return false;
    *ret_found = in->left.data[0];
    in->left.data++;
    in->left.len--;
    return true;
}

static void expect(reader *in, const char *allowed)
{
    char ignored;
    if (!read_any(in, allowed, &ignored)) in->bad = true;
}

/* The digits after a decimal point, as milliseconds. */
static int64_t read_fraction_ms(reader *in)
{
    int64_t ms = 0, worth = 100;
    size_t i = 0;
    for (; i < in->left.len && is_digit(in->left.data[i]); i++, worth /= 10) ms += (in->left.data[i] - '0') * worth;
    if (i == 0) in->bad = true;
    in->left.data += i;
    in->left.len -= i;
    return ms;
}

static int64_t read_offset_ms(reader *in)
{
    char sign;
    if (read_any(in, "Zz", &sign)) return 0;
    if (!read_any(in, "+-", &sign)) {
        in->bad = true;
        return 0;
    }
    int64_t minutes = read_number(in, 2, 0, 23) * 60;
    expect(in, ":");
    minutes += read_number(in, 2, 0, 59);
    return (sign == '-' ? -minutes : minutes) * 60000;
}

static bool parse_rfc3339(once_bytes text, int64_t *ret_ms)
{
    reader in = {text, false};
    char ignored;
    int64_t year = read_number(&in, 4, 0, 9999);
    expect(&in, "-");
    int64_t month = read_number(&in, 2, 1, 12);
    expect(&in, "-");
    int64_t day = read_number(&in, 2, 1, days_in_month(year, month));
    expect(&in, "Tt ");
    int64_t seconds = read_number(&in, 2, 0, 23) * 3600;
    expect(&in, ":");
    seconds += read_number(&in, 2, 0, 59) * 60;
    expect(&in, ":");
    int64_t second = read_number(&in, 2, 0, 60);
    int64_t ms = read_any(&in, ".", &ignored) ? read_fraction_ms(&in) : 0;
    int64_t offset_ms = read_offset_ms(&in);
    if (in.bad || in.left.len > 0) return false;
    *ret_ms = days_from_date(year, month, day) * MS_PER_DAY + (seconds + second) * 1000 + ms - offset_ms;
    return true;
}

int once_time_parse(once_bytes text, int64_t *ret_ms, once_error *err)
{
    assert(text.data || text.len == 0);
    assert(ret_ms);
    bool negative = text.len > 0 && text.data[0] == '-';
    once_bytes unsigned_text = {negative ? text.data + 1 : text.data, text.len - negative};
    int64_t number;
    bool fits;
    size_t digits = read_digits(unsigned_text, &number, &fits);
    if (digits > 0 && digits == unsigned_text.len) {
        if (!fits) return once_fail(err, ONCE_E_USAGE, "time '%.*s' does not fit into 64 bits", SHOWN(text));
        *ret_ms = negative ? -number : number;
        return ONCE_OK;
    }
    if (parse_rfc3339(text, ret_ms)) return ONCE_OK;
    return once_fail(err, ONCE_E_USAGE,
                     "'%.*s' is not a time; write RFC 3339 as in 2026-01-31T12:00:00Z, or milliseconds since 1970",
                     SHOWN(text));
}

const char *once_time_format(int64_t ms, char out[ONCE_TIME_TEXT])
{
    assert(out);
    int64_t days = ms / MS_PER_DAY, rest = ms % MS_PER_DAY;
    if (rest < 0) {
        days--;
        rest += MS_PER_DAY;
    }
    int64_t year, month, day;
    date_from_days(days, &year, &month, &day);
    if (ms == ONCE_NO_TIME) (void)snprintf(out, ONCE_TIME_TEXT, "-");
    else if (year < 0 || year > 9999) (void)snprintf(out, ONCE_TIME_TEXT, "%" PRId64, ms);
    else
        (void)snprintf(out, ONCE_TIME_TEXT, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", (int)year, (int)month, (int)day,
                       (int)(rest / 3600000), (int)(rest / 60000 % 60), (int)(rest / 1000 % 60), (int)(rest % 1000));
    return out;
}
