/* The log of the library: one line per event, to standard error. docs/logs.md lists the events.
 *
 * Guarantees
 *   - Until once_logging_start the library prints nothing.
 *   - Logging never blocks the work. When standard error does not take lines (a full pipe, a stopped terminal), the
 *     queue fills, further lines are dropped and counted, and the count is logged as `event=log_dropped` later.
 *   - A line contains neither a secret nor a message body.
 *
 * Thread rule: start and stop from one thread. Every thread of the library logs. Fork rule: the log does not survive
 * fork.
 *
 * Ownership: nothing is kept of what the caller passes.
 *
 * Errors: E_USAGE for an unknown format or level, or when the log is started already; E_NOMEM when the log's thread
 * cannot start. Without a log everything else works.
 *
 * Example
 *
 *     #include <stdio.h>
 *     #include <once/log.h>
 *
 *     int main(void)
 *     {
 *         once_error err;
 *         if (once_logging_start("json", "warn", &err) != ONCE_OK) fprintf(stderr, "%s\n", err.text);
 *         // ... run a pipeline ...
 *         return once_logging_stop() == 0 ? 0 : 1;
 *     }
 */
#ifndef ONCE_LOG_H
#define ONCE_LOG_H

#include "once/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Starts the log. `format`: "logfmt" or "json". `level`: "error", "warn", "info" or "debug"; lines of that level and
 * above are logged. */
ONCE_API int once_logging_start(const char *format, const char *level, once_error *err);

/* Waits up to about 200 ms for lines that are not written yet, and stops the log. Returns how many lines were lost
 * since the start, because standard error did not take them. Does nothing when the log is not started. */
ONCE_API uint64_t once_logging_stop(void);

#ifdef __cplusplus
}
#endif
#endif
