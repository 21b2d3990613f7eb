/* `retry`: how often, for how long and how fast a message is retried. */
#include "runtime/config_tables.h"

#include "base/banned.h"

static_assert(offsetof(once_retry, max_ms) == offsetof(once_retry, min_ms) + sizeof(int64_t),
              "backoff is read as a pair");

static const once_config_field retry_fields[] = {
    {.name = "attempts",
     .type = ONCE_CONFIG_INTEGER,
     ONCE_CONFIG_AT(once_retry, attempts),
     .min = 1,
     .max = 1000000,
     .standard = "12",
     .text = "How many counted failures make a dead letter (releases do not count). 1: no second try. With `for` and"
             " without `attempts`, the number is unlimited."},
    {.name = "for",
     .type = ONCE_CONFIG_DURATION,
     ONCE_CONFIG_AT(once_retry, for_ms),
     .min = 1,
     .max = ONCE_CONFIG_LONGEST_MS,
     .example = "1h",
     .standard_text = "any time",
     .text = "A failure also makes a dead letter when the first failure is older than this. The limit that is reached "
             "first decides."},
    {.name = "backoff",
     .type = ONCE_CONFIG_RANGE,
     ONCE_CONFIG_AT(once_retry, min_ms),
     .min = 1,
     .max = 30 * DAY_MS,
     .standard = "200ms..1m",
     .text = "The wait before the next try: random, below a limit that starts at the first duration and doubles up "
             "to the second. If the waits so far were short by chance, the last two are longer, so that all attempts"
             " together take at least a third of the longest possible time, and a message is not dead sooner than "
             "others in the same outage."},
    {.name = "on",
     .type = ONCE_CONFIG_STRINGS,
     ONCE_CONFIG_AT(once_retry, on),
     .count = offsetof(once_retry, n_on),
     .max = 400,
     .example = "[SQLITE_CONSTRAINT_FOREIGNKEY]",
     .standard_text = "none",
     .text = "Errors of a statement that are worth a retry: names of constraints, extended result codes of SQLite, "
             "SQLSTATEs of PostgreSQL."},
};

const once_config_section once__retry_section = {
    .name = "'retry'",
    .title = "retry",
    .text = "What happens after a failure that may pass. The store counts failures across restarts and measures their "
            "time with its own clock.\n"
            "With the defaults the twelfth failure comes about two minutes after the first, and never within 74 "
            "seconds: an outage of a minute\n"
            "makes no dead letter. A replayed dead letter starts again with no failures.",
    .fields = retry_fields,
    .n = COUNT(retry_fields),
};
