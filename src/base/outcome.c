/* The names of outcomes, as in settlements, configuration, JSON and metrics. */
#include "once/types.h"

#include "base/banned.h"

const char *once_outcome_name(once_outcome outcome)
{
    static const char *const names[ONCE_OUTCOMES] = {
#define ONCE_OUTCOME_NAME(name, text) [ONCE_##name] = text,
        ONCE_OUTCOME_MAP(ONCE_OUTCOME_NAME)
#undef ONCE_OUTCOME_NAME
    };
    return (unsigned)outcome < ONCE_OUTCOMES ? names[outcome] : "?";
}
