/* Which messages a verb of operators means: those that were named, or all that fit. */
#ifndef ONCE_CLI_CHOICE_H
#define ONCE_CLI_CHOICE_H

#include "cli.h"

typedef struct cli_choice {
    bool all;
    const char *reason, *type, *since, *until;
    int64_t since_ms, until_ms;
} cli_choice;

#define CLI_CHOICE(c, things, began)                                                                                  \
    {"--all", NULL, "every " things, &(c).all, NULL},                                                                 \
    {"--reason", "TEXT", things "s with this text in their reason", NULL, &(c).reason},                               \
    {"--type", "TYPE", things "s of this type", NULL, &(c).type},                                                     \
    {"--since", "TIME", things "s that " began " then or later", NULL, &(c).since},                                   \
    {"--until", "TIME", things "s that " began " before", NULL, &(c).until}

/* Exactly one of: names, --all, filters. False: it was said what is wrong. `things`: "letters: ids". */
bool cli_choice_read(cli_choice *choice, bool named, const char *things);
bool cli_choice_fits(const cli_choice *choice, const once_listed *item);

#endif
