/* Text that may have come from anybody, made fit for terminals and logs. */
#ifndef ONCE_BASE_PLAIN_H
#define ONCE_BASE_PLAIN_H

#include <stdbool.h>
#include <stddef.h>

/* Whether the character of `n` bytes at `at`, which is well-formed UTF-8, moves a terminal or turns the direction of a line: U+0000 to
 * U+001F, U+007F to U+009F, U+061C, U+200E, U+200F, U+2028 to U+202E, U+2066 to U+2069. */
bool once_steers(const unsigned char *at, int n);

/* In place: each such character, and what is not UTF-8, becomes `instead`. Returns the length, which only shrinks. */
size_t once_make_plain(char *text, size_t len, char instead);

#endif
