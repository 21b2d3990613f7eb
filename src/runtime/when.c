/* Reads times as operators write them. */
#include <stdio.h>
#include <string.h>

#include "base/duration.h"
#include "base/usage.h"
#include "runtime/operate.h"

#include "base/banned.h"

/* "2026-01-31 12:00:00.000 UTC", as times are shown, or the hour of a group, "2026-01-31 12:00 UTC". */
static bool parse_shown(once_bytes text, int64_t *ret_ms)
{
    static const char zone[] = " UTC";
    char rfc3339[40];
    const size_t end = sizeof zone - 1;
    if (text.len < 16 + end || text.len > 30 || text.data[10] != ' ' ||
        memcmp(text.data + text.len - end, zone, end) != 0)
        return false;
    snprintf(rfc3339, sizeof rfc3339, "%.10sT%.*s%sZ", text.data, (int)(text.len - end - 11), text.data + 11,
             text.len == 16 + end ? ":00" : "");
    return once_time_parse(once__text_of(rfc3339), ret_ms, NULL) == ONCE_OK;
}

int once_parse_when(once_bytes text, int64_t *ret_ms, once_error *err)
{
    if (!ret_ms || once_bytes_lie(text))
        return once_fail(err, ONCE_E_USAGE, "once_parse_when needs a text and a place for the time");
    int64_t ago_ms;
    if (once_time_parse(text, ret_ms, NULL) == ONCE_OK || parse_shown(text, ret_ms)) return ONCE_OK;
    if (once_duration_parse(text, &ago_ms, NULL) != ONCE_OK || ago_ms == ONCE_FOREVER)
        return once_fail(
            err, ONCE_E_USAGE,
            "neither a time (2026-01-31T12:00:00Z, epoch milliseconds) nor a duration (2h: two hours ago)");
    *ret_ms = once_env_wall_ms(once_env_real()) - ago_ms;
    return ONCE_OK;
}
