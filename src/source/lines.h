/* Cuts bytes into lines. Memory is bounded by the longest line that is kept whole: of a longer one the beginning is
 * kept, and the rest is counted.
 *
 * Thread rule: one thread at a time. */
#ifndef ONCE_SOURCE_LINES_H
#define ONCE_SOURCE_LINES_H

#include <stdint.h>

#include "once/types.h"

typedef struct once_line {
    const char *data; /* until the next once_lines_room */
    size_t kept;      /* bytes there */
    uint64_t len;     /* of the whole line, without its newline; more than `kept`: it is cut */
    bool ended;       /* by a newline, which is data that may be looked at, too: */
    const char *end;  /* behind its last byte */
    size_t ending;    /* so many bytes before `end` are its last ones; of a cut line that may be few */
} once_line;

typedef struct once_lines {
    size_t keep; /* bytes of a line at most */
    char *data;
    size_t from, to, capacity; /* fed and not taken: data[from, to) */
    size_t looked;             /* there is no newline in data[from, looked) */
    uint64_t dropped;          /* bytes of the first line, behind the first `keep`, that were fed and are not in data */
} once_lines;

void once_lines_init(once_lines *lines, size_t keep);
void once_lines_release(once_lines *lines); /* memory given back; empty, and usable again */

/* Space for the next bytes, `want` of them; NULL: out of memory, and nothing has changed. Take all whole lines before.
 */
char *once_lines_room(once_lines *lines, size_t want);
void once_lines_fed(once_lines *lines, size_t n);

/* The next line. `last`: nothing will follow, so the rest is a line without a newline. False: there is none (yet) */
bool once_lines_next(once_lines *lines, bool last, once_line *out);

/* Bytes that were fed and belong to no line that was taken. */
static inline uint64_t once_lines_held(const once_lines *lines) { return lines->to - lines->from + lines->dropped; }

#endif
