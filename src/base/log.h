/* The log: one line per event to stderr, in logfmt or JSON. Logging never blocks the caller.
 *
 * The caller formats a line and puts it into a bounded queue; one thread writes the queue out. When stderr does not
 * accept lines (a full pipe, a stopped terminal, a full disk) the queue fills; further lines are dropped and counted,
 * and the count is logged as `event=log_dropped` once lines go out again. Closing waits about 200 ms for the rest.
 *
 * Before once_log_open and after once_log_close lines go nowhere, so a program that embeds the library stays silent.
 *
 * Thread rule: once_log from every thread, at any time; open and close from one. No log survives fork. */
#ifndef ONCE_BASE_LOG_H
#define ONCE_BASE_LOG_H

#include <stdint.h>

#include "once/types.h"

#define ONCE_LOG_LEVEL_MAP(X)                                                                                          \
    X(ERROR, "error") /* an operator must act */                                                                       \
    X(WARN, "warn")   /* an operator should know */                                                                    \
    X(INFO, "info")   /* start, stop, and what changed */                                                              \
    X(DEBUG, "debug") /* every step */

typedef enum once_log_level {
#define ONCE_LOG_LEVEL_ENUM(name, text) ONCE_LOG_##name,
    ONCE_LOG_LEVEL_MAP(ONCE_LOG_LEVEL_ENUM)
#undef ONCE_LOG_LEVEL_ENUM
        ONCE_LOG_LEVELS
} once_log_level;

typedef enum once_log_format {
    ONCE_LOG_LOGFMT, /* time=2026-01-31T12:00:00.000Z level=info event=store_open msg="..." */
    ONCE_LOG_JSON    /* {"time":"...","level":"info","event":"store_open","msg":"..."} */
} once_log_format;

/* Lines above `level` are not logged. False when no thread could be started; lines then go nowhere. */
bool once_log_open(once_log_format format, once_log_level level);
bool once_log_open_fd(int fd, once_log_format format, once_log_level level); /* for tests; `fd` stays the caller's */
void once_log_close(void);                                                   /* harmless when not open */

/* From now on each log line on a terminal first clears the current line, where a progress line may be. Until the log is
 * closed. */
void once_log_clears_line(void);

const char *once_log_level_name(once_log_level level);
bool once_log_level_parse(const char *name, once_log_level *ret_level); /* on false `ret_level` is untouched */

bool once_log_wants(once_log_level level); /* false: a line of this level would not be logged; spares its arguments */
/* Lines lost since open: the queue was full, the write failed, or they were not written when the log was closed. */
uint64_t once_log_dropped(void);

/* `event` is a word like "store_open", the same in every line of its kind; the rest is for people. Never log a secret
 * or a message body. A message longer than about 2000 bytes is cut. */
void once_log(once_log_level level, const char *event, const char *format, ...) __attribute__((format(printf, 3, 4)));

typedef struct once_log_field {
    const char *name;
    once_bytes value; /* empty: the field is left out */
    bool number;      /* written without quotes in JSON */
} once_log_field;

/* The same with more fields, between `event` and `msg`. */
void once_log_fields(once_log_level level, const char *event, const once_log_field *fields, size_t n,
                     const char *format, ...) __attribute__((format(printf, 5, 6)));

#endif
