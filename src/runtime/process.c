/* What belongs to the process, not to one pipeline: the log and the failpoints. */
#include <stdatomic.h>
#include <string.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "once/log.h"
#include "once/testing.h"

#include "base/banned.h"

static atomic_bool logging;

int once_logging_start(const char *format, const char *level, once_error *err)
{
    if (!format || !level) return once_fail(err, ONCE_E_USAGE, "once_logging_start needs a format and a level");
    once_log_level parsed;
    const bool json = strcmp(format, "json") == 0;
    if (!json && strcmp(format, "logfmt") != 0)
        return once_fail(err, ONCE_E_USAGE, "unknown log format '%s'; use 'logfmt' or 'json'", format);
    if (!once_log_level_parse(level, &parsed))
        return once_fail(err, ONCE_E_USAGE, "unknown log level '%s'; use 'error', 'warn', 'info' or 'debug'", level);
    if (atomic_exchange(&logging, true))
        return once_fail(err, ONCE_E_USAGE, "the log is started already; call once_logging_stop first");
    if (once_log_open(json ? ONCE_LOG_JSON : ONCE_LOG_LOGFMT, parsed)) return ONCE_OK;
    atomic_store(&logging, false);
    return once_fail(err, ONCE_E_NOMEM, "cannot start the log's thread");
}

uint64_t once_logging_stop(void)
{
    once_log_close();
    atomic_store(&logging, false);
    return once_log_dropped();
}

int once_testing_failpoints(const char *spec, once_error *err)
{
    char why[200];
    return once_failpoints_arm(spec, why, sizeof why) ? ONCE_OK
                                                      : once_fail(err, ONCE_E_USAGE, "ONCE_FAILPOINT: %s", why);
}
