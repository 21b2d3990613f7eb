/* Makes text from any source safe for terminals and logs. Thread rule: any thread. */
#ifndef ONCE_BASE_PLAIN_H
#define ONCE_BASE_PLAIN_H

#include "once/types.h"

/* Replaces, in place, each character that must not be shown (once_character_first) by `instead`. Returns the new
 * length, which is never larger. */
size_t once_make_plain(char *text, size_t len, char instead);

#endif
