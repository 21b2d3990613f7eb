/* Fault 84: whatever comes in whatever pieces, lines are those of a naive splitter, and memory is bounded. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "source/lines.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_line(const once_line *line, const char **at, const char *end, size_t keep)
{
    const char *newline = memchr(*at, '\n', (size_t)(end - *at));
    const size_t len = (size_t)((newline ? newline : end) - *at);
    if (line->len != len || line->kept != (len < keep ? len : keep) || line->ended != (newline != NULL)) abort();
    if (memcmp(line->data, *at, line->kept) != 0) abort();
    *at += len + line->ended;
}

/* The first two bytes are the bounds: of a line, and of a piece. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3) return 0;
    const size_t keep = 1u + data[0], chunk = 1u + data[1] % 64;
    const char *at = (const char *)data + 2, *end = (const char *)data + size, *fed = at;
    once_lines lines;
    once_line line;
    once_lines_init(&lines, keep);
    for (bool last = false; !last;) {
        const size_t n = (size_t)(end - fed) < chunk ? (size_t)(end - fed) : chunk;
        char *room = once_lines_room(&lines, chunk);
        if (!room) abort();
        memcpy(room, fed, n);
        once_lines_fed(&lines, n);
        fed += n;
        last = n == 0;
        if (lines.capacity > keep + chunk) abort();
        while (once_lines_next(&lines, last, &line)) check_line(&line, &at, fed, keep);
    }
    if (at != end) abort();
    once_lines_release(&lines);
    return 0;
}
