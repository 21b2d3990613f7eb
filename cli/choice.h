/* How an operator chooses messages, by id, by key or by filters, and how they are printed. */
#ifndef ONCE_CLI_CHOICE_H
#define ONCE_CLI_CHOICE_H

#include "cli.h"

typedef struct cli_choice {
    bool all;
    const char *tenant, *operation, *reason, *group, *type, *since, *until;
} cli_choice;

#define CLI_CHOICE(c, things, began)                                                                                   \
    {"--all", NULL, "every " things "; other options narrow the choice", &(c).all, NULL},                              \
        {"--tenant", "NAME", things "s of this tenant", NULL, &(c).tenant},                                            \
        {"--operation", "NAME", things "s of this operation", NULL, &(c).operation},                                   \
        {"--reason", "TEXT", things "s whose reason contains this text", NULL, &(c).reason},                           \
        {"--group", "GROUP", things "s of this reason group, as printed by 'once list --by reason'", NULL,             \
         &(c).group},                                                                                                  \
        {"--type", "TYPE", things "s of this type", NULL, &(c).type},                                                  \
        {"--since", "TIME", things "s that " began " at TIME or later", NULL, &(c).since},                             \
    {                                                                                                                  \
        "--until", "TIME", things "s that " began " before TIME", NULL, &(c).until                                     \
    }

/* How messages are named: ids need nothing else, a key may need its tenant and its operation. */
typedef enum cli_named { CLI_NAMED_NOT, CLI_NAMED_IDS, CLI_NAMED_KEY } cli_named;

/* Accepts names, or --all, or filters, and refuses what would be ignored. False: it has printed what is wrong.
 * `things`: what may be named, "letter ids". */
bool cli_choice_read(const cli_choice *given, cli_named named, const char *things, once_choice *out);

/* "key 'p7' of tenant 'berlin', operation 'charge'"; nothing without a key. The operation of a single handler is left
 * out. */
void cli_print_key(once_bytes key, const once_scope *scope);
/* "  in.ndjson:17", and the reason in brackets; empty parts are left out */
void cli_print_origin(once_bytes place, once_bytes point, once_bytes reason);
/* ,"tenant":...,"operation":...,"key":..., and the idempotency key when there is one */
void cli_json_key(once_bytes key, const once_scope *scope, const char *idempotency_key);
/* ,"type":...,"place":...,"point":...,"reason":... */
void cli_json_origin(once_bytes type, once_bytes place, once_bytes point, once_bytes reason);

#endif
