/* What an answer over HTTP means (http.h). All of it comes from the other side, so nothing in it is trusted. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/ascii.h"
#include "base/base64.h"
#include "effect/http.h"

#include "base/banned.h"

/* --- statuses ----------------------------------------------------------------------------------------------------- */

/* 500, 502, 504 and every status that is not here: whoever answered may have acted, or somebody behind it. */
static int usual_meaning(long status)
{
    switch (status) {
    case 307:
    case 308: return ONCE_DEAD; /* nothing was done there */
    case 401:
    case 403: return ONCE_HTTP_PAUSE;
    case 408:
    case 409:
    case 425:
    case 429:
    case 503: return ONCE_RETRY;
    default: break;
    }
    return status / 100 == 2 ? ONCE_DONE : status / 100 == 4 ? ONCE_DEAD : ONCE_UNKNOWN;
}

static int given_meaning(const once_http_statuses *statuses, long status)
{
    if (status < 100 || status >= ONCE_HTTP_STATUSES) return -1;
    if (statuses->exact[status]) return statuses->exact[status] - 1;
    return statuses->classes[status / 100] - 1;
}

int once_http_meaning(const once_http_statuses *statuses, long status)
{
    const int given = given_meaning(statuses, status);
    return given >= 0 ? given : usual_meaning(status);
}

int once_http_found(const once_http_statuses *statuses, long status)
{
    const int given = given_meaning(statuses, status);
    if (given >= 0) return given;
    return status / 100 == 2                ? ONCE_DONE
           : status == 404                  ? ONCE_HTTP_ABSENT
           : status == 401 || status == 403 ? ONCE_HTTP_PAUSE
                                            : ONCE_UNKNOWN;
}

bool once_http_listed(const once_http_statuses *statuses, long status) { return given_meaning(statuses, status) >= 0; }

/* --- conditions on the body --------------------------------------------------------------------------------------- */

static bool is_one_of(once_json_value value, const once_http_condition *condition)
{
    for (size_t i = 0; i < condition->n; i++) {
        const once_bytes wanted = condition->values[i];
        if (value.type == ONCE_JSON_STRING ? once_json_string_is(value, wanted) : once_bytes_equal(value.raw, wanted))
            return true;
    }
    return false;
}

bool once_http_meets(const once_http_conditions *conditions, const once_json *body)
{
    for (size_t i = 0; i < conditions->n; i++) {
        if (!body) return false;
        const once_json_value value = once_json_find(body, &conditions->list[i].at);
        const bool scalar =
            value.type != ONCE_JSON_ABSENT && value.type != ONCE_JSON_ARRAY && value.type != ONCE_JSON_OBJECT;
        if (!scalar || !is_one_of(value, &conditions->list[i])) return false;
    }
    return true;
}

/* --- Retry-After -------------------------------------------------------------------------------------------------- */

static bool read_digits(const char *at, size_t n, int *out)
{
    *out = 0;
    for (size_t i = 0; i < n; i++) {
        if (at[i] < '0' || at[i] > '9') return false;
        *out = 10 * *out + (at[i] - '0');
    }
    return true;
}

/* Days since 1970-01-01 of a date of the Gregorian calendar. */
static int64_t days_of(int year, int month, int day)
{
    static const int before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    const int64_t y = year - (month <= 2), leaps = y / 4 - y / 100 + y / 400;
    return INT64_C(365) * (year - 1970) + (leaps - 477) + before[month - 1] + day - 1;
}

/* "Sun, 06 Nov 1994 08:49:37 GMT", the one form that servers may send. */
static bool read_date(once_bytes text, int64_t *ms)
{
    static const char form[] = "aaa, 00 aaa 0000 00:00:00 GMT", months[] = "janfebmaraprmayjunjulaugsepoctnovdec";
    int day, year, hour, minute, second, month = 0;
    if (text.len != sizeof form - 1) return false;
    for (size_t i = 0; i < text.len; i++) {
        const char c = text.data[i];
        const bool fits = form[i] == 'a'   ? once_ascii_is_letter(c)
                          : form[i] == '0' ? c >= '0' && c <= '9'
                                           : c == form[i];
        if (!fits) return false;
    }
    while (month < 12 &&
           !once_ascii_begins(text.data + 8, 3,
                              (char[4]){months[3 * month], months[3 * month + 1], months[3 * month + 2], '\0'}))
        month++;
    if (month == 12 || !read_digits(text.data + 5, 2, &day) || !read_digits(text.data + 12, 4, &year) ||
        !read_digits(text.data + 17, 2, &hour) || !read_digits(text.data + 20, 2, &minute) ||
        !read_digits(text.data + 23, 2, &second))
        return false;
    if (day < 1 || day > 31 || year < 1970 || hour > 23 || minute > 59 || second > 60) return false;
    *ms = ((days_of(year, month + 1, day) * 24 + hour) * 60 + minute) * 60000 + second * INT64_C(1000);
    return true;
}

int64_t once_http_retry_after(once_bytes value, int64_t now_ms)
{
    int64_t ms = 0;
    while (value.len && once_ascii_is_space(value.data[0])) value.data++, value.len--;
    while (value.len && once_ascii_is_space(value.data[value.len - 1])) value.len--;
    if (value.len == 0) return -1;
    if (read_date(value, &ms)) {
        ms -= now_ms;
        return ms < 0 ? 0 : ms < ONCE_HTTP_RETRY_AFTER_MAX_MS ? ms : ONCE_HTTP_RETRY_AFTER_MAX_MS;
    }
    for (size_t i = 0; i < value.len; i++) {
        if (value.data[i] < '0' || value.data[i] > '9') return -1;
        if (ms < ONCE_HTTP_RETRY_AFTER_MAX_MS) ms = 10 * ms + 1000 * (value.data[i] - '0');
    }
    return ms < ONCE_HTTP_RETRY_AFTER_MAX_MS ? ms : ONCE_HTTP_RETRY_AFTER_MAX_MS;
}

/* --- results ------------------------------------------------------------------------------------------------------ */

static bool is_text(once_bytes body)
{
    for (size_t at = 0; at < body.len;) {
        const int len = once_utf8_sequence((const unsigned char *)body.data + at, body.len - at);
        if (len <= 0 || body.data[at] == '\0') return false;
        at += (size_t)len;
    }
    return true;
}

void once_http_result(once_buf *out, long status, once_bytes body, const once_json *json, bool whole, size_t max)
{
    assert(status >= 0);
    once_buf_puts(out, "{\"status\":");
    once_buf_number(out, (uint64_t)status);
    const size_t head = out->len;
    if (whole && body.len && body.len < max) {
        if (json) {
            once_buf_puts(out, ",\"body\":");
            once_buf_append(out, body.data, body.len);
        } else if (is_text(body)) {
            once_buf_puts(out, ",\"body\":");
            once_buf_json(out, body);
        } else {
            once_buf_puts(out, ",\"body_base64\":\"");
            once_buf_base64(out, body);
            once_buf_puts(out, "\"");
        }
    }
    const bool fits = whole && body.len < max && out->len + 1 <= max;
    if (!fits && !out->failed) {
        out->len = head;
        once_buf_puts(out, ",\"truncated\":true");
    }
    once_buf_puts(out, "}");
}

once_bytes once_http_result_body(once_bytes result)
{
    static const char head[] = "{\"status\":", member[] = ",\"body\":";
    size_t at = sizeof head - 1;
    if (result.len <= at || memcmp(result.data, head, at) != 0) return (once_bytes){0};
    while (at < result.len && result.data[at] >= '0' && result.data[at] <= '9') at++;
    const once_bytes rest = {result.data + at, result.len - at}; /* only the status stands before it */
    if (rest.len == 1 && rest.data[0] == '}') return ONCE_BYTES("");
    const size_t len = sizeof member - 1;
    if (rest.len <= len || memcmp(rest.data, member, len) != 0 || rest.data[rest.len - 1] != '}')
        return (once_bytes){0};
    return (once_bytes){rest.data + len, rest.len - len - 1};
}
