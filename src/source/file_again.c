/* Reading a message of a file again, for `once explain`: whether a place is a file of this source, and the start there.
 */
#include <string.h>

#include "base/no_memory.h"
#include "source/file.h"
#include "source/place.h"

#include "base/banned.h"

/* Of a place: the number of the file under the path; 0: it is of another source, or there is nothing to read again. */
static uint64_t number_of(once_bytes path, once_bytes place)
{
    uint64_t number = 0;
    if (once_bytes_equal(path, ONCE_BYTES("-"))) return 0;
    if (once_bytes_equal(place, path)) return 1;
    if (place.len <= path.len + 1 || place.len > path.len + 16 || memcmp(place.data, path.data, path.len) != 0 ||
        place.data[path.len] != '/')
        return 0;
    for (size_t i = path.len + 1; i < place.len; i++) {
        if (place.data[i] < '0' || place.data[i] > '9') return 0;
        number = number * 10 + (uint64_t)(place.data[i] - '0');
    }
    return number;
}

bool once__file_has(const once_source_spec *source, once_bytes place) { return number_of(source->name, place) > 0; }

/* Together with that file, where it is still known. */
static int start_at(once_source *source, uint64_t number, once_bytes files, once_error *err)
{
    once_places known, only = {0};
    once_buf text;
    once_buf_init(&text, ONCE_PLACES_TEXT);
    if (files.len && once_places_read(files, &known))
        for (size_t i = 0; i < known.n; i++)
            if (known.at[i].number == number) only.at[only.n++] = known.at[i];
    for (size_t i = 0; i < only.n; i++) once_place_rewind(&only.at[i]);
    if (only.n) once_places_write(&only, &text);
    const once_kept_places kept = {.files = files, .cursor = once_buf_bytes(&text)};
    const int rc = text.failed ? once_no_memory(err, "for the source") : once__file_start(source, &kept, err);
    once_buf_release(&text);
    return rc;
}

int once__file_look(once_source *source, once_coordinates at, const once_facts *facts, once_error *err)
{
    const once_bytes path = source->spec->source.name;
    once_arena arena = {0};
    once_bytes files;
    int rc = facts->get(facts, "files", path, &files, &arena, err);
    if (rc == ONCE_OK) rc = start_at(source, number_of(path, at.place), files, err);
    once_arena_release(&arena);
    once__file_looks(source);
    return rc;
}
