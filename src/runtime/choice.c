/* Which messages an operator means, and how reasons are grouped. List, replay, discard and resolve share this, so that
 * a filter chooses exactly what a list shows as a group. */
#include <assert.h>
#include <string.h>

#include "base/plain.h"
#include "base/usage.h"
#include "runtime/choice.h"
#include "store/history.h"

#include "base/banned.h"

enum { LONG_NUMBER = 4, LONG_HEX = 8 };

static bool contains(once_bytes text, once_bytes part)
{
    return part.len == 0 || (text.len >= part.len && memmem(text.data, text.len, part.data, part.len));
}

/* --- the group of a reason --- */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
static bool is_word(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || ((unsigned char)c & 0x80);
}

static size_t digits(const char *at, const char *end)
{
    size_t n = 0;
    while (at + n < end && is_digit(at[n])) n++;
    return n;
}

/* The length of a quoted value, with its quotes. An apostrophe inside a word does not begin one, and neither does a
 * quote that is never closed. */
static size_t quoted(const char *begin, const char *at, const char *end)
{
    assert(begin <= at && at < end);
    if ((*at != '\'' && *at != '"') || (at > begin && is_word(at[-1]))) return 0;
    for (const char *to = at + 1; to < end; to++)
        if (*to == *at && (to + 1 == end || !is_word(to[1]))) return (size_t)(to + 1 - at);
    return 0;
}

/* "2026-01-31T12:30:00Z", or only its date */
static size_t date(const char *at, const char *end)
{
    static const char shape[] = "0000-00-00";
    size_t len = 0;
    while (len < sizeof shape - 1 && at + len < end && (shape[len] == '0' ? is_digit(at[len]) : at[len] == shape[len]))
        len++;
    if (len < sizeof shape - 1) return 0;
    if (at + len + 1 < end && at[len] == 'T' && is_digit(at[len + 1])) len++;
    while (len > sizeof shape - 1 && at + len < end && (is_digit(at[len]) || at[len] == ':' || at[len] == '.')) len++;
    return len + (at + len < end && at[len] == 'Z');
}

/* "10.0.0.1", or "12:30:00.5" */
static size_t address_or_time(const char *at, const char *end)
{
    const size_t day = date(at, end);
    if (day) return day;
    const size_t first = digits(at, end);
    if (first == 0 || at + first == end) return 0;
    const char between = at[first];
    size_t len = first, parts = 1;
    while (at + len < end && at[len] == between && digits(at + len + 1, end)) {
        len += 1 + digits(at + len + 1, end);
        parts++;
    }
    if (between == '.') return parts == 4 ? len : 0;
    if (between != ':' || parts < 3) return 0;
    if (at + len < end && at[len] == '.') len += 1 + digits(at + len + 1, end);
    return len;
}

/* A UUID, a date or the id of a request: at least eight hexadecimal digits, with dashes, at least one of them
 * decimal. */
static size_t hex_id(const char *at, const char *end)
{
    size_t len = 0, hex = 0, decimal = 0;
    for (; at + len < end && (is_word(at[len]) || at[len] == '-'); len++) {
        if (at[len] == '-') continue;
        if (!is_hex(at[len])) return 0;
        hex++;
        decimal += is_digit(at[len]);
    }
    while (len && at[len - 1] == '-') len--;
    return hex >= LONG_HEX && decimal ? len : 0;
}

static bool is_behind(const char *begin, const char *at, const char *word)
{
    const size_t len = strlen(word);
    return (size_t)(at - begin) >= len && memcmp(at - len, word, len) == 0;
}

/* The length of the text at `at` that differs from message to message; 0: none. A small number may be an error code,
 * but not after "line", "column" and the like. A SQLSTATE is kept, although it is a long number. */
static size_t detail(const char *begin, const char *at, const char *end)
{
    assert(begin <= at && at < end);
    static const char *const places[] = {"byte ", "column ", "line ", "offset ", "position "};
    const bool in_word = at > begin && is_word(at[-1]);
    const size_t number = digits(at, end);
    size_t len = in_word ? 0 : address_or_time(at, end);
    if (!len && !in_word) len = hex_id(at, end);
    if (len || !number) return len;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (is_behind(begin, at, places[i])) return number;
    return number < LONG_NUMBER || is_behind(begin, at, "SQLSTATE ") ? 0 : number;
}

void once_reason_group(once_bytes reason, char out[ONCE_REASON_GROUP_MAX + 1])
{
    if (!out) return;
    if (once_bytes_lie(reason)) reason.len = 0;
    static const char first_one[] = "; the first one came from "; /* of a conflict: differs each time */
    const char *other = reason.len ? memmem(reason.data, reason.len, first_one, sizeof first_one - 1) : NULL;
    const char *begin = reason.data, *at = begin, *end = other ? other : begin + reason.len;
    size_t n = 0;
    while (at < end && n < ONCE_REASON_GROUP_MAX) {
        const size_t quote = quoted(begin, at, end), len = quote ? 0 : detail(begin, at, end);
        if (quote || len) {
            const char *instead = quote ? "..." : "#";
            while (*instead && n < ONCE_REASON_GROUP_MAX) out[n++] = *instead++;
            at += quote + len;
            continue;
        }
        /* A number is copied whole: its last digits must not be judged alone. */
        const size_t whole = digits(at, end);
        for (size_t i = 0; i < (whole ? whole : 1) && n < ONCE_REASON_GROUP_MAX; i++) out[n++] = at[i];
        at += whole ? whole : 1;
    }
    assert(n <= ONCE_REASON_GROUP_MAX);
    if (at < end)
        while (n > 0 && ((unsigned char)*at & 0xc0) == 0x80) at--, n--; /* whole characters */
    out[once_make_plain(out, n, '?')] = '\0';                           /* so that it prints as it is compared */
    if (out[0] == '\0') memcpy(out, ONCE_NO_REASON, sizeof ONCE_NO_REASON);
}

once_bytes once__reason_shown(const once_entry *entry)
{
    if (entry->state != ONCE_STATE_UNKNOWN && (entry->state != ONCE_STATE_WAITING || entry->reason.len))
        return entry->reason;
    once_attempt attempts[ONCE_HISTORY_ATTEMPTS];
    const size_t n = once__history_of(entry, attempts);
    return n && strcmp(attempts[n - 1].outcome, ONCE_UNREPORTED) == 0 ? ONCE_BYTES(ONCE_NEVER_REPORTED) : entry->reason;
}

/* --- choosing --- */

static bool fits(const once_choice *c, const once_scope *scope, once_bytes type, once_bytes reason, int64_t changed_ms)
{
    if (c->tenant.data && !once_bytes_equal(scope->tenant, c->tenant)) return false;
    if (c->operation.len && !once_bytes_equal(scope->operation, c->operation)) return false;
    if (c->type.len && !once_bytes_equal(type, c->type)) return false;
    if (!contains(reason, c->reason)) return false;
    if (c->since_ms != ONCE_NO_TIME && changed_ms < c->since_ms) return false;
    if (c->until_ms != ONCE_NO_TIME && changed_ms >= c->until_ms) return false;
    if (!c->group.len) return true;
    char group[ONCE_REASON_GROUP_MAX + 1];
    once_reason_group(reason, group);
    return once_bytes_equal(c->group, (once_bytes){group, strlen(group)});
}

bool once__choice_is_all(const once_choice *c)
{
    return !c->tenant.data && !c->operation.len && !c->type.len && !c->reason.len && !c->group.len &&
           c->since_ms == ONCE_NO_TIME && c->until_ms == ONCE_NO_TIME;
}

bool once__choice_has_letter(const once_choice *choice, const once_letter *letter)
{
    return fits(choice, &letter->scope, letter->message.type, letter->reason, letter->buried_ms);
}

bool once__choice_has_entry(const once_choice *choice, const once_entry *entry)
{
    return fits(choice, &entry->scope, entry->message.type, once__reason_shown(entry), entry->changed_ms);
}
