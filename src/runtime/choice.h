/* Which messages an operator means (once_choice of once/operate.h). */
#ifndef ONCE_RUNTIME_CHOICE_H
#define ONCE_RUNTIME_CHOICE_H

#include "core/entry.h"
#include "once/operate.h"
#include "store/store.h"

#define ONCE_NEVER_REPORTED "its attempt never reported"
#define ONCE_NO_REASON "(none)"

/* The reason that verbs show. If the last attempt reported no outcome, it is ONCE_NEVER_REPORTED, not the reason of the
 * attempt before. Reasons of the lane are not included. */
once_bytes once__reason_shown(const once_entry *entry);

bool once__choice_is_all(const once_choice *choice); /* it has no filter */
bool once__choice_has_letter(const once_choice *choice, const once_letter *letter);
bool once__choice_has_entry(const once_choice *choice, const once_entry *entry);

#endif
