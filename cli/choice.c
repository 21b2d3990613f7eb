#include "choice.h"

#include <string.h>

bool cli_choice_read(cli_choice *choice, bool named, const char *things)
{
    const bool filtered = choice->reason || choice->type || choice->since || choice->until;
    choice->since_ms = choice->until_ms = ONCE_NO_TIME;
    if (choice->all + named + filtered != 1) {
        fprintf(stderr, "once %s: say which %s, or --all, or some of --reason, --type, --since, --until\n", cli_current->name, things);
        return false;
    }
    return cli_time("--since", choice->since, &choice->since_ms) && cli_time("--until", choice->until, &choice->until_ms);
}

bool cli_choice_fits(const cli_choice *choice, const once_listed *item)
{
    if (choice->since_ms != ONCE_NO_TIME && item->changed_ms < choice->since_ms) return false;
    if (choice->until_ms != ONCE_NO_TIME && item->changed_ms >= choice->until_ms) return false;
    if (choice->type && (item->type.len != strlen(choice->type) || memcmp(item->type.data, choice->type, item->type.len) != 0)) return false;
    return !choice->reason || !*choice->reason || (item->reason.len && memmem(item->reason.data, item->reason.len, choice->reason, strlen(choice->reason)));
}
