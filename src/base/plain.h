/* Text that may have come from anybody, made fit for terminals and logs. */
#ifndef ONCE_BASE_PLAIN_H
#define ONCE_BASE_PLAIN_H

#include "once/types.h"

/* In place: each character that is not fit to be shown (once_character_first) becomes `instead`. Returns the length,
 * which only shrinks. */
size_t once_make_plain(char *text, size_t len, char instead);

#endif
