/* Log lines of the library: one line each to standard error, never blocking the work. Silent until started. */
#ifndef ONCE_LOG_H
#define ONCE_LOG_H

#include "once/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* format "logfmt" or "json"; level "error", "warn", "info" or "debug". Thread rule: from one thread; no log survives
 * fork. */
ONCE_API int once_logging_start(const char *format, const char *level, once_error *err);
/* Waits a moment for the rest; harmless when not started. How many lines were lost since the start, because standard
 * error did not take them. */
ONCE_API uint64_t once_logging_stop(void);

#ifdef __cplusplus
}
#endif
#endif
