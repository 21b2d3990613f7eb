/* Runs a command that prints something that we need, such as a token. Thread rule: any thread. */
#ifndef ONCE_BASE_CAPTURE_H
#define ONCE_BASE_CAPTURE_H

#include "base/buf.h"
#include "base/cancel.h"
#include "base/env.h"

/* Appends all that it writes to standard output. It has no input, its other output is dropped, and it is ended with all
 * that it started when the time is over, `cancel` is asked, or it writes more than `out` holds.
 *
 * ONCE_OK: it ended with status 0. ONCE_E_UNAVAILABLE otherwise; the text names argv[0], and no argument. */
int once_capture(char *const argv[], const once_env *env, int64_t timeout_ms, const once_cancel *cancel, once_buf *out,
                 once_error *err);

#endif
