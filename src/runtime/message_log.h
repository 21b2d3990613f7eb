/* What became of messages, for the log: gathered while a transaction is open and said when it has committed, so that
 * nothing is said of a batch that was rolled back and runs again. */
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
    once_buf text;
} once_message_log;

void once_message_log_init(once_message_log *log);
void once_message_log_release(once_message_log *log);

/* Costs nothing where nobody wants the level. Without memory the line is left out. */
void once_message_log_add(once_message_log *log, once_log_level level, const char *event, const once_item *item,
                          once_bytes reason, const once_keying *keying);
void once_message_log_write(once_message_log *log); /* the transaction has committed */
void once_message_log_clear(once_message_log *log);

#endif
