#include "source/lines.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/banned.h"

void once_lines_init(once_lines *lines, size_t keep)
{
    assert(keep > 0);
    *lines = (once_lines){.keep = keep};
}

void once_lines_release(once_lines *lines)
{
    free(lines->data);
    *lines = (once_lines){.keep = lines->keep};
}

static void move_to_front(once_lines *lines)
{
    assert(lines->from <= lines->looked);
    if (lines->from == 0) return;
    if (lines->to > lines->from) memmove(lines->data, lines->data + lines->from, lines->to - lines->from);
    lines->to -= lines->from;
    lines->looked -= lines->from;
    lines->from = 0;
}

char *once_lines_room(once_lines *lines, size_t want)
{
    assert(want > 0 && lines->from <= lines->to && lines->to <= lines->capacity);
    if (lines->capacity - lines->to >= want && lines->data) return lines->data + lines->to;
    move_to_front(lines);
    if (lines->capacity - lines->to < want || !lines->data) {
        size_t capacity = lines->capacity < lines->keep ? 2 * lines->capacity : lines->capacity;
        if (capacity > lines->keep + want) capacity = lines->keep + want;
        if (capacity < lines->to + want) capacity = lines->to + want;
        char *data = realloc(lines->data, capacity);
        if (!data) return NULL;
        lines->data = data;
        lines->capacity = capacity;
    }
    return lines->data + lines->to;
}

void once_lines_fed(once_lines *lines, size_t n)
{
    assert(n <= lines->capacity - lines->to);
    lines->to += n;
}

/* The line has not ended: bytes beyond its bound need not be kept. */
static void drop_excess(once_lines *lines)
{
    assert(lines->from <= lines->to);
    if (lines->to - lines->from > lines->keep) {
        lines->dropped += lines->to - lines->from - lines->keep;
        lines->to = lines->from + lines->keep;
    }
    lines->looked = lines->to;
}

bool once_lines_next(once_lines *lines, bool last, once_line *out)
{
    assert(lines->from <= lines->looked && lines->looked <= lines->to);
    const char *end =
        lines->looked < lines->to ? memchr(lines->data + lines->looked, '\n', lines->to - lines->looked) : NULL;
    if (!end && (!last || once_lines_held(lines) == 0)) {
        drop_excess(lines);
        return false;
    }
    const size_t to = end ? (size_t)(end - lines->data) : lines->to, here = to - lines->from;
    *out = (once_line){.data = lines->data + lines->from,
                       .kept = here < lines->keep ? here : lines->keep,
                       .len = here + lines->dropped,
                       .ended = end != NULL};
    assert(out->kept <= out->len && (!lines->dropped || here >= lines->keep));
    out->end = lines->data + to;
    out->ending = lines->dropped ? here - lines->keep : here;
    lines->from = lines->looked = to + (end != NULL);
    lines->dropped = 0;
    return true;
}
