/* The files of a file source that are open: oldest first, the last one has the path. */
#include <assert.h>
#include <string.h>
#include <unistd.h>

#include "base/beside.h"
#include "base/errno_text.h"
#include "source/file_impl.h"

#include "base/banned.h"

int once__file_bad(const file_source *f, int status, const char *what, int error, once_error *err)
{
    return once_fail(err, status, "source '%s': %s: %s", f->path, what, once_errno_text(error));
}

void once__file_drop(file_source *f, open_file *file)
{
    if (file->fd >= 0 && !f->is_stdin) once_close_beside(f->base.env, file->fd);
    once_lines_release(&file->lines);
    file->fd = -1;
}

/* So that it is not taken for a new one when it is seen again. */
static void remember_file(file_source *f, const once_place *place)
{
    once_places known = {.n = 1, .at[0] = *place};
    once_places_add_known(&known, &f->known);
    f->known = known;
}

void once__file_remove(file_source *f, size_t i)
{
    assert(i < f->n);
    remember_file(f, &f->files[i].place);
    once__file_drop(f, &f->files[i]);
    memmove(&f->files[i], &f->files[i + 1], (f->n - i - 1) * sizeof *f->files);
    f->n--;
    f->version++;
}

/* In the order of their numbers. There is room. */
open_file *once__file_add(file_source *f, int fd, const once_place *place)
{
    assert(f->n < ONCE_FILES_MAX && fd >= 0);
    assert(place->offset <= INT64_MAX);
    size_t i = f->n++;
    for (; i > 0 && f->files[i - 1].place.number > place->number; i--) f->files[i] = f->files[i - 1];
    assert(i == 0 || !f->sought || f->files[i - 1].place.number < place->number); /* each number once */
    open_file *file = &f->files[i];
    *file = (open_file){.place = *place, .fd = fd, .read = (int64_t)place->offset, .grown_ms = once__file_now_ms(f)};
    once_lines_init(&file->lines, f->base.spec->message_max);
    f->version++;
    return file;
}

/* Makes room by closing an old file that was read to its end: most likely nothing follows in it. */
bool once__file_has_room(file_source *f)
{
    for (size_t i = 0; f->n == ONCE_FILES_MAX && i + 1 < f->n; i++)
        if (f->files[i].at_eof && once_lines_held(&f->files[i].lines) == 0) once__file_remove(f, i);
    return f->n < ONCE_FILES_MAX;
}

uint64_t once__file_next_number(const file_source *f)
{
    uint64_t number = f->n ? f->files[f->n - 1].place.number : 0;
    for (size_t i = 0; i < f->known.n; i++)
        if (f->known.at[i].number > number) number = f->known.at[i].number;
    assert(number < UINT64_MAX);
    return number + 1;
}

int once__file_lock(file_source *f, int fd, once_error *err)
{
    once_error why;
    assert(fd >= 0);
    if (!f->locks) return ONCE_OK;
    const int rc = once_cursor_lock(f->base.env, fd, f->lock, &why);
    return rc == ONCE_OK ? rc : once_fail(err, rc, "source '%s': %s", f->path, why.text);
}
