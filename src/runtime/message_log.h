/* Log lines about messages, collected while a transaction is open and written after its commit, so that a batch that is
 * rolled back and runs again leaves no lines. */
#ifndef ONCE_RUNTIME_MESSAGE_LOG_H
#define ONCE_RUNTIME_MESSAGE_LOG_H

#include "base/buf.h"
#include "base/log.h"
#include "core/item.h"
#include "core/outward.h"

typedef struct once_message_line once_message_line;

typedef struct once_message_log {
    once_message_line *lines;
    size_t n, room;
    once_buf text; /* what the lines point into */
} once_message_log;

void once_message_log_init(once_message_log *log);
void once_message_log_release(once_message_log *log);

/* Copies what the line needs; `event` must live on. Costs nothing when the level is not logged. Without memory the line
 * is left out. */
void once_message_log_add(once_message_log *log, once_log_level level, const char *event, const once_item *item,
                          once_bytes reason, const once_keying *keying);
void once_message_log_write(once_message_log *log); /* after the commit: writes all lines, and drops them */
void once_message_log_clear(once_message_log *log); /* drops them */

#endif
