/* Characters and words in ASCII, whatever the locale of the host program is. Use these instead of isspace, isalpha and
 * strcasecmp, which depend on it. Thread rule: any thread. */
#ifndef ONCE_BASE_ASCII_H
#define ONCE_BASE_ASCII_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define ONCE_BOM "\xef\xbb\xbf" /* the byte order mark that some editors write at the start of a text */

static inline bool once_ascii_is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
static inline char once_ascii_lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c; }
static inline bool once_ascii_is_letter(char c) { return once_ascii_lower(c) >= 'a' && once_ascii_lower(c) <= 'z'; }

/* Whether `text` begins with `word`, which is in lower case. */
static inline bool once_ascii_begins(const char *text, size_t len, const char *word)
{
    size_t i = 0;
    while (i < len && word[i] && once_ascii_lower(text[i]) == word[i]) i++;
    return word[i] == '\0';
}

/* Whether `text` is `word`, which is in lower case. */
static inline bool once_ascii_is(const char *text, size_t len, const char *word)
{
    return strlen(word) == len && once_ascii_begins(text, len, word);
}

#endif
