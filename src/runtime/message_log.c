#include "runtime/message_log.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/banned.h"

enum { TEXT_KEPT = 1 << 20, VALUE_MAX = 300, REASON_MOST = 1000 };

typedef struct span {
    size_t at, len;
} span;

struct once_message_line {
    once_log_level level;
    const char *event;
    span place, key, tenant, operation, reason;
    uint32_t attempt;
    once_outward idempotency_key;
};

void once_message_log_init(once_message_log *log)
{
    *log = (once_message_log){0};
    once_buf_init(&log->text, TEXT_KEPT);
}

void once_message_log_release(once_message_log *log)
{
    free(log->lines);
    once_buf_release(&log->text);
}

void once_message_log_clear(once_message_log *log)
{
    log->n = 0;
    once_buf_clear(&log->text);
}

static once_message_line *add_line(once_message_log *log)
{
    if (log->n == log->room) {
        const size_t room = log->room ? 2 * log->room : 16;
        once_message_line *lines = reallocarray(log->lines, room, sizeof *lines);
        if (!lines) return NULL;
        log->lines = lines;
        log->room = room;
    }
    return &log->lines[log->n++];
}

static span keep(once_message_log *log, once_bytes text, size_t most)
{
    const span kept = {log->text.len, text.len < most ? text.len : most};
    if (kept.len) once_buf_append(&log->text, text.data, kept.len);
    return kept;
}

void once_message_log_add(once_message_log *log, once_log_level level, const char *event, const once_item *item,
                          once_bytes reason, const once_keying *keying)
{
    assert(event && item);
    if (!once_log_wants(level)) return;
    once_message_line *line = add_line(log);
    if (!line) return;
    assert(log->n <= log->room);
    const once_coordinates *at = &item->message.at;
    *line = (once_message_line){.level = level, .event = event, .attempt = item->decision.attempt};
    line->place = keep(log, at->place, VALUE_MAX);
    if (once_buf_puts(&log->text, ":")) line->place.len++;
    line->place.len += keep(log, at->point, VALUE_MAX).len;
    line->key = keep(log, item->request.key, VALUE_MAX);
    line->tenant = keep(log, item->scope.tenant, VALUE_MAX);
    line->operation = keep(log, item->scope.operation, VALUE_MAX);
    line->reason = keep(log, reason, REASON_MOST);
    if (!once_hash_is_zero(item->request.id)) once_item_outward_key(keying, item, line->idempotency_key);
    if (!log->text.failed) return;
    once_buf_clear(&log->text); /* too much text: the lines are written without it */
    for (size_t i = 0; i < log->n; i++)
        log->lines[i].place = log->lines[i].key = log->lines[i].tenant = log->lines[i].operation =
            log->lines[i].reason = (span){0};
}

static once_bytes text_of(const once_message_log *log, span s)
{
    assert(s.len == 0 || s.at + s.len <= log->text.len);
    return (once_bytes){s.len ? log->text.data + s.at : "", s.len};
}

static void say(const once_message_log *log, const once_message_line *line)
{
    char attempt[16];
    const int len = snprintf(attempt, sizeof attempt, "%" PRIu32, line->attempt);
    const once_bytes reason = text_of(log, line->reason);
    const once_log_field fields[] = {
        {"at", text_of(log, line->place)},
        {"tenant", text_of(log, line->tenant)},
        {"operation", text_of(log, line->operation)},
        {"key", text_of(log, line->key)},
        {"attempt", {attempt, line->attempt ? (size_t)len : 0}, .number = true},
        {"idempotency_key", {line->idempotency_key, strlen(line->idempotency_key)}},
    };
    once_log_fields(line->level, line->event, fields, sizeof fields / sizeof *fields, "%.*s", (int)reason.len,
                    reason.data);
}

void once_message_log_write(once_message_log *log)
{
    for (size_t i = 0; i < log->n; i++) say(log, &log->lines[i]);
    once_message_log_clear(log);
}
