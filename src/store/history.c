#include "store/history.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/banned.h"

enum { WHO = 100 };
enum { LINE_MAX_BYTES = 10 + 20 + 8 + WHO + ONCE_HISTORY_REASON_MAX + 5 };
_Static_assert((int)LINE_MAX_BYTES <= (int)ONCE_HISTORY_MAX, "one line always fits");

/* How many bytes of the reason are kept: whole characters. */
static size_t cut(once_bytes reason)
{
    if (reason.len <= ONCE_HISTORY_REASON_MAX) return reason.len;
    size_t len = ONCE_HISTORY_REASON_MAX;
    while (len > ONCE_HISTORY_REASON_MAX - 4 && ((unsigned char)reason.data[len] & 0xc0) == 0x80) len--;
    return len;
}

static size_t write_line(const once_attempt *a, char out[LINE_MAX_BYTES])
{
    once_bytes who = a->who.len ? a->who : ONCE_BYTES("-");
    if (who.len > WHO) who.len = WHO; /* not from once__store_sign: it was read from a store */
    assert(strlen(a->outcome) <= 8);
    const int head = snprintf(out, LINE_MAX_BYTES, "%" PRIu32 " %" PRId64 " %s %.*s ", a->attempt, a->ended_ms,
                              a->outcome, (int)who.len, who.data);
    assert(head > 0 && head < LINE_MAX_BYTES - ONCE_HISTORY_REASON_MAX);
    char *at = out + head;
    const size_t len = cut(a->reason);
    for (size_t i = 0; i < len; i++) *at++ = a->reason.data[i] == '\n' ? ' ' : a->reason.data[i];
    *at++ = '\n';
    return (size_t)(at - out);
}

static size_t count_lines(once_bytes text)
{
    size_t n = 0;
    for (size_t i = 0; i < text.len; i++) n += text.data[i] == '\n';
    return n;
}

static once_bytes without_first_line(once_bytes text)
{
    const char *end = memchr(text.data, '\n', text.len);
    const size_t len = end ? (size_t)(end - text.data) + 1 : text.len;
    return (once_bytes){text.data + len, text.len - len};
}

once_bytes once__history_add(once_bytes past, const once_attempt *attempt, char out[ONCE_HISTORY_MAX])
{
    char line[LINE_MAX_BYTES];
    const size_t len = write_line(attempt, line);
    size_t lines = count_lines(past);
    for (; past.len && (lines >= ONCE_HISTORY_ATTEMPTS || past.len + len > ONCE_HISTORY_MAX); lines--)
        past = without_first_line(past);
    if (past.len) memcpy(out, past.data, past.len);
    memcpy(out + past.len, line, len);
    return (once_bytes){out, past.len + len};
}

/* ---- reading ---- */

/* Takes the text before the next space off `rest`. */
static once_bytes word(once_bytes *rest)
{
    const char *space = rest->len ? memchr(rest->data, ' ', rest->len) : NULL;
    const once_bytes out = {rest->data, space ? (size_t)(space - rest->data) : rest->len};
    const size_t used = out.len + (space ? 1 : 0);
    *rest = (once_bytes){rest->data + used, rest->len - used};
    return out;
}

static bool number(once_bytes text, uint64_t max, uint64_t *out)
{
    *out = 0;
    for (size_t i = 0; i < text.len; i++) {
        const unsigned digit = (unsigned)(unsigned char)text.data[i] - '0';
        if (digit > 9 || *out > (max - digit) / 10) return false;
        *out = *out * 10 + digit;
    }
    return text.len > 0;
}

static const char *outcome_called(once_bytes name)
{
    static const char *const others[] = {ONCE_UNREPORTED, ONCE_REPLACED_LINE};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (name.len == strlen(others[i]) && memcmp(name.data, others[i], name.len) == 0) return others[i];
    for (int i = 0; i < ONCE_OUTCOMES; i++) {
        const char *known = once_outcome_name((once_outcome)i);
        if (strlen(known) == name.len && memcmp(known, name.data, name.len) == 0) return known;
    }
    return NULL;
}

static bool read_line(once_bytes line, once_attempt *out)
{
    uint64_t attempt, ended_ms;
    if (!number(word(&line), UINT32_MAX, &attempt) || !number(word(&line), INT64_MAX, &ended_ms)) return false;
    const char *outcome = outcome_called(word(&line));
    const once_bytes who = word(&line);
    if (!outcome || !who.len) return false;
    *out = (once_attempt){
        .attempt = (uint32_t)attempt,
        .ended_ms = (int64_t)ended_ms,
        .outcome = outcome,
        .who = who.len == 1 && who.data[0] == '-' ? (once_bytes){0} : who,
        .reason = line,
    };
    return true;
}

size_t once__history_read(once_bytes history, once_attempt out[ONCE_HISTORY_ATTEMPTS])
{
    size_t n = 0;
    while (history.len && n < ONCE_HISTORY_ATTEMPTS) {
        const once_bytes after = without_first_line(history);
        const once_bytes line = {history.data, history.len - after.len - (after.data[-1] == '\n')};
        if (read_line(line, &out[n])) n++;
        history = after;
    }
    return n;
}

/* Adds the attempt whose lease is over and that has no line yet. */
static size_t add_lost(const once_entry *entry, once_attempt out[ONCE_HISTORY_ATTEMPTS], size_t n)
{
    if (n == ONCE_HISTORY_ATTEMPTS) memmove(out, out + 1, --n * sizeof *out);
    out[n] = (once_attempt){
        .attempt = entry->attempt, .ended_ms = entry->changed_ms, .outcome = ONCE_UNREPORTED, .who = entry->worker};
    return n + 1;
}

size_t once__history_of(const once_entry *entry, once_attempt out[ONCE_HISTORY_ATTEMPTS])
{
    if (entry->worker.len && entry->state != ONCE_STATE_CLAIMED)
        return add_lost(entry, out, once__history_read(entry->history, out));
    if (entry->history.len || entry->attempt != 1 || !once_state_finished(entry->state))
        return once__history_read(entry->history, out);
    out[0] = (once_attempt){
        .attempt = 1,
        .ended_ms = entry->changed_ms,
        .outcome = once_state_name(entry->state),
        .who = entry->who,
        .reason = entry->reason,
    };
    return 1;
}
