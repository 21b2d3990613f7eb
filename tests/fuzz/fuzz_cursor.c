/* Fault 84: the first line as what a store keeps of places in files, the rest as the file. Places that are read are
 * sane and are written as they were; a cursor of before is taken only where the file is the one that it tells of. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "source/place.h"

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) abort();                                                                                     \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static once_bytes to_text(const once_places *places, once_buf *buf)
{
    once_buf_clear(buf);
    once_places_write(places, buf);
    CHECK(!buf->failed);
    return once_buf_bytes(buf);
}

static void check_place(const once_place *p)
{
    CHECK(p->number > 0 && p->tail_len <= p->offset && p->tail_len <= ONCE_TAIL_BYTES &&
          p->head_len <= ONCE_HEAD_BYTES && p->part_kept <= p->part_len);
    CHECK(p->offset <= INT64_MAX / 2 && p->part_len <= INT64_MAX / 2);
}

static void check_places(const once_places *places, int fd)
{
    once_buf buf;
    once_places again, more = {0};
    once_buf_init(&buf, ONCE_PLACES_TEXT);
    for (size_t i = 0; i < places->n; i++) {
        check_place(&places->at[i]);
        if (i) CHECK(places->at[i - 1].number < places->at[i].number);
        (void)once_place_fits(fd, &places->at[i]);
    }
    CHECK(once_places_read(to_text(places, &buf), &again) && memcmp(&again, places, sizeof again) == 0);
    CHECK(once_places_same_files(places, &again) && once_places_agree(places, &again));
    once_places_add_known(&more, places);
    CHECK(more.n == places->n && once_places_same_files(&more, places));
    once_buf_release(&buf);
}

/* What it tells must be so: the file is the one of that place. */
static void check_old(const once_place *place, int fd)
{
    once_places one = {.n = 1, .at = {*place}}, again;
    once_buf buf;
    check_place(place);
    CHECK(once_place_fits(fd, place));
    once_buf_init(&buf, ONCE_PLACES_TEXT);
    CHECK(once_places_read(to_text(&one, &buf), &again) && memcmp(&again.at[0], place, sizeof *place) == 0);
    once_buf_release(&buf);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    const char *const end = size ? memchr(data, '\n', size) : NULL;
    const once_bytes text = {(const char *)data, end ? (size_t)(end - (const char *)data) : size};
    const size_t from = text.len + (end != NULL);
    once_places places;
    once_place place;
    if (fd < 0) fd = memfd_create("cursor", MFD_CLOEXEC);
    CHECK(fd >= 0 && ftruncate(fd, 0) == 0 && pwrite(fd, data + from, size - from, 0) == (ssize_t)(size - from));
    if (once_places_read(text, &places)) check_places(&places, fd);
    if (once_place_read_old(fd, text, &place)) check_old(&place, fd);
    return 0;
}
