/* The first step of the intake: a message becomes documents. */
#ifndef ONCE_CORE_INTAKE_PARSE_H
#define ONCE_CORE_INTAKE_PARSE_H

#include "core/intake.h"

/* Parses headers and body, finds out whether there is a body, and takes the message out of an envelope: item->message
 * is then what was in it. Sets intake->document. ONCE_OK, ONCE_E_MESSAGE with the reason in `why`, or ONCE_E_NOMEM. */
int once__intake_parse(once_intake *intake, once_item *item, once_error *why);

#endif
