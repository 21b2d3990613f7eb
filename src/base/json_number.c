/* Numbers, exactly: a decimal is cut out of the text without copying, and everything else (64-bit integers, doubles,
 * comparison, the canonical spelling) starts from the decimal. Nothing here depends on the locale. */
#include "base/json_internal.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/banned.h"

#define EXPONENT_MAX (((int64_t)1 << 62) - 1) /* the fingerprint stores it beside a sign bit */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool is_number(once_json_value value) { return value.type == ONCE_JSON_INTEGER || value.type == ONCE_JSON_REAL; }

/* The exponent as written, behind the 'e'. Far beyond EXPONENT_MAX it sticks: no digits that a text can hold would
 * bring it back. */
static int64_t read_exponent(const char *p, const char *end)
{
    const int64_t enough = EXPONENT_MAX + (int64_t)2 * ONCE_JSON_MAX_BYTES;
    const bool negative = *p == '-';
    if (*p == '-' || *p == '+') p++;
    int64_t exponent = 0;
    for (; p < end; p++) {
        if (exponent > enough / 10) {
            exponent = enough;
            break;
        }
        exponent = exponent * 10 + (*p - '0');
    }
    return negative ? -exponent : exponent;
}

bool once_json_decimal(once_json_value value, once_decimal *out)
{
    if (!is_number(value)) return false;
    const char *p = value.raw.data, *end = p + value.raw.len;
    const bool negative = *p == '-';
    p += negative;

    const char *head = p;
    while (p < end && is_digit(*p)) p++;
    const char *head_end = p, *tail = p, *tail_end = p;
    if (p < end && *p == '.') {
        tail = ++p;
        while (p < end && is_digit(*p)) p++;
        tail_end = p;
    }
    int64_t exponent = p < end ? read_exponent(p + 1, end) : 0;

    while (tail_end > tail && tail_end[-1] == '0') tail_end--;
    exponent -= tail_end - tail;
    if (tail_end == tail) {
        while (head_end > head && head_end[-1] == '0') head_end--, exponent++;
    }
    if (head < head_end && *head == '0') head++; /* "0.5": the only leading zero that JSON has */
    if (head == head_end) {
        while (tail < tail_end && *tail == '0') tail++;
    }
    if (head == head_end && tail == tail_end) {
        *out = (once_decimal){.head = {value.raw.data, 0}, .tail = {value.raw.data, 0}};
        return true;
    }
    if (exponent > EXPONENT_MAX || exponent < -EXPONENT_MAX) return false;
    *out = (once_decimal){
        .negative = negative,
        .head = {head, (size_t)(head_end - head)},
        .tail = {tail, (size_t)(tail_end - tail)},
        .exponent = exponent,
    };
    return true;
}

static size_t digit_count(const once_decimal *d) { return d->head.len + d->tail.len; }

static char digit_at(const once_decimal *d, size_t i)
{
    return i < d->head.len ? d->head.data[i] : d->tail.data[i - d->head.len];
}

/* The first `len` digits. */
static void copy_digits(const once_decimal *d, char *out, size_t len)
{
    const size_t head = len < d->head.len ? len : d->head.len;
    memcpy(out, d->head.data, head);
    memcpy(out + head, d->tail.data, len - head);
}

/* By absolute value; neither is zero. */
static int compare_magnitude(const once_decimal *x, const once_decimal *y)
{
    const size_t nx = digit_count(x), ny = digit_count(y);
    const int64_t px = x->exponent + (int64_t)nx, py = y->exponent + (int64_t)ny; /* where the first digit stands */
    if (px != py) return px < py ? -1 : 1;
    for (size_t i = 0; i < nx && i < ny; i++) {
        const char a = digit_at(x, i), b = digit_at(y, i);
        if (a != b) return a < b ? -1 : 1;
    }
    return nx == ny ? 0 : nx < ny ? -1 : 1;
}

int once_decimal_compare(const once_decimal *x, const once_decimal *y)
{
    const int sx = digit_count(x) == 0 ? 0 : x->negative ? -1 : 1;
    const int sy = digit_count(y) == 0 ? 0 : y->negative ? -1 : 1;
    if (sx != sy) return sx < sy ? -1 : 1;
    if (sx == 0) return 0;
    return sx * compare_magnitude(x, y);
}

bool once_json_int64(once_json_value value, int64_t *out)
{
    once_decimal d;
    if (!once_json_decimal(value, &d)) return false;
    const size_t count = digit_count(&d);
    if (count == 0) {
        *out = 0;
        return true;
    }
    /* 19 digits fit 64 bits without a sign */
    if (d.exponent < 0 || count > 19 || d.exponent > 19 - (int64_t)count) return false;
    uint64_t magnitude = 0;
    for (size_t i = 0; i < count; i++) magnitude = magnitude * 10 + (uint64_t)(digit_at(&d, i) - '0');
    for (int64_t i = 0; i < d.exponent; i++) magnitude *= 10;
    if (magnitude > (uint64_t)INT64_MAX + d.negative) return false;
    *out = d.negative ? (int64_t)(0 - magnitude) : (int64_t)magnitude;
    return true;
}

/* A double is decided by at most 767 significant digits and by whether anything but zeros follows them. */
#define DOUBLE_DIGITS 780

bool once_json_double(once_json_value value, double *out)
{
    if (!is_number(value)) return false;
    once_decimal d;
    if (!once_json_decimal(value, &d)) { /* an exponent beyond all measure: the sign of it decides */
        const char *e = memchr(value.raw.data, 'e', value.raw.len);
        if (!e) e = memchr(value.raw.data, 'E', value.raw.len);
        assert(e);
        if (e[1] != '-') return false;
        *out = value.raw.data[0] == '-' ? -0.0 : 0.0;
        return true;
    }
    size_t count = digit_count(&d);
    if (count == 0) {
        *out = 0.0;
        return true;
    }
    /* digits and exponent without a decimal point, which is what locales disagree about */
    char text[DOUBLE_DIGITS + 32];
    int64_t exponent = d.exponent;
    size_t len = 0;
    if (d.negative) text[len++] = '-';
    if (count <= DOUBLE_DIGITS) {
        copy_digits(&d, text + len, count);
        len += count;
    } else {
        copy_digits(&d, text + len, DOUBLE_DIGITS - 1);
        len += DOUBLE_DIGITS - 1;
        text[len++] = '1'; /* stands for the rest, which is not zero */
        exponent += (int64_t)(count - DOUBLE_DIGITS);
    }
    const int64_t far = 100000; /* beyond it everything is 0 or infinite */
    exponent = exponent > far ? far : exponent < -far ? -far : exponent;
    snprintf(text + len, sizeof(text) - len, "e%d", (int)exponent);
    const double result = strtod(text, NULL);
    if (!isfinite(result)) return false;
    *out = result;
    return true;
}

/* --- from a double back to a decimal --- */

enum { DIGITS_MAX = 17 }; /* so many tell any two doubles apart */

typedef struct printed {
    char digits[DIGITS_MAX + 1]; /* without trailing zeros */
    size_t count;
    int exponent; /* of the last digit */
} printed;

/* Rounded to `places` digits. Whatever printf writes between the first digit and the others is the locale's, and is
 * passed over. */
static printed print_double(double positive, int places)
{
    char text[80];
    printed out = {0};
    snprintf(text, sizeof text, "%.*e", places - 1, positive);
    const char *p = text;
    for (; *p && *p != 'e'; p++)
        if (is_digit(*p) && out.count < DIGITS_MAX) out.digits[out.count++] = *p;
    for (const char *e = p + 2; *p && *e; e++) out.exponent = out.exponent * 10 + (*e - '0');
    if (p[1] == '-') out.exponent = -out.exponent;
    out.exponent -= (int)out.count - 1;
    while (out.count > 1 && out.digits[out.count - 1] == '0') out.count--, out.exponent++;
    return out;
}

static bool reads_as(const printed *p, double positive)
{
    char text[DIGITS_MAX + 16];
    snprintf(text, sizeof text, "%.*se%d", (int)p->count, p->digits, p->exponent);
    return strtod(text, NULL) == positive;
}

static bool is_decimal(const printed *p, const once_decimal *d)
{
    if (p->count != digit_count(d) || p->exponent != d->exponent) return false;
    for (size_t i = 0; i < p->count; i++)
        if (p->digits[i] != digit_at(d, i)) return false;
    return true;
}

bool once_json_survives_double(once_json_value value, double *out)
{
    once_decimal d;
    *out = 0;
    if (!once_json_double(value, out) || !once_json_decimal(value, &d)) return false;
    const int count = digit_count(&d) <= DIGITS_MAX ? (int)digit_count(&d) : DIGITS_MAX + 1;
    const double positive = fabs(*out);
    if (count == 0) return true;
    if (positive == 0 || count > DIGITS_MAX) return false;
    const bool precise = positive >= DBL_MIN; /* below, a double has fewer digits */
    if (precise && count <= DBL_DIG) return true;
    for (int places = precise ? DBL_DIG : 1; places < count; places++) {
        const printed shorter = print_double(positive, places);
        if (reads_as(&shorter, positive)) return false;
    }
    const printed same = print_double(positive, count);
    return is_decimal(&same, &d);
}

#define PLAIN_PLACES 64

static bool is_plain(const once_decimal *d, size_t count)
{
    if (count > PLAIN_PLACES) return false;
    return d->exponent >= 0 ? d->exponent <= PLAIN_PLACES - (int64_t)count : d->exponent >= -PLAIN_PLACES;
}

bool once_decimal_text(const once_decimal *decimal, once_arena *arena, once_bytes *out)
{
    const size_t count = digit_count(decimal);
    char *text = once_arena_alloc(arena, count + PLAIN_PLACES + 32);
    if (!text) return false;
    size_t len = 0;
    if (decimal->negative) text[len++] = '-';
    if (!is_plain(decimal, count)) {
        copy_digits(decimal, text + len, count);
        len += count;
        len += (size_t)snprintf(text + len, 24, "e%lld", (long long)decimal->exponent);
    } else if (decimal->exponent >= 0) {
        copy_digits(decimal, text + len, count);
        len += count;
        if (count == 0) text[len++] = '0';
        for (int64_t i = 0; i < decimal->exponent; i++) text[len++] = '0';
    } else {
        const int64_t point = (int64_t)count + decimal->exponent; /* digits before it; negative: zeros behind it */
        if (point <= 0) {
            text[len++] = '0';
            text[len++] = '.';
            for (int64_t i = point; i < 0; i++) text[len++] = '0';
        }
        for (size_t i = 0; i < count; i++) {
            if (i > 0 && (int64_t)i == point) text[len++] = '.';
            text[len++] = digit_at(decimal, i);
        }
    }
    text[len] = '\0';
    *out = (once_bytes){text, len};
    return true;
}
