/* The file source: NDJSON, one message in each line. "-" is standard input; with `follow` it waits at the end for more.
 *
 * Memory is bounded in bytes, for a batch and for a line: no more than message_max of a line is kept. A longer line is
 * delivered cut, with its length (once_message.cut_from).
 *
 * Coordinates are the path as it was written, and the line number. Blank lines count, so coordinates are the same on
 * every reading. When the path names another file than before (rotation), the second file is "PATH/2", and so on: no
 * file is below a file, so that cannot be another path. The numbers are kept in the store (source/place.h).
 *
 * A last line without a newline may not be complete. While a file is followed, that line waits for its newline. A
 * finite run delivers it, and the place that is kept stays before it: when the next run finds the line unchanged, it
 * does not deliver it again; when it has grown, the whole line is a message at the same coordinates.
 *
 * Rotation, while a file is followed:
 *
 * - Another file has the path (rename and create): the old file stays open and is read to its end, then the new one.
 *   Files are opened when they are seen, so none is missed while there is much to read. The old one is read for
 *   ROTATED_MS more, because its writer may still have it open; then its last line counts as complete, and it is
 *   closed.
 * - The file was truncated, or the bytes before the place have changed (copytruncate): the rest of the old content is
 *   looked for in the folder, in a copy whose name begins with that of the file. The truncated file is a new file, read
 *   from its beginning.
 * - The old file is gone, and the new one begins with all bytes that the old one had: a program wrote it anew as a
 *   whole, and it is the same file.
 * - Files had the path and lost it before they were seen: they are found in the folder, by their names and times.
 * - There is no file for a while: the source waits for it.
 *
 * At the start, the kept places are found again in the same ways. One change cannot be noticed: other content with
 * the same first ONCE_HEAD_BYTES and the same bytes before the place. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/no_memory.h"
#include "source/file_impl.h"

#include "base/banned.h"

#define IDLE_MS 100

once_file_keeping *once__file_keeping(once_source *source) { return &((file_source *)source)->keeping; }
void once__file_looks(once_source *source) { ((file_source *)source)->looks = true; }
bool once__file_has_places(const once_source *source) { return ((const file_source *)source)->regular; }

static void file_close(once_source *source)
{
    file_source *f = (file_source *)source;
    for (size_t i = 0; i < f->n; i++) once__file_drop(f, &f->files[i]);
    free(f->path);
    free(f);
}

/* The same for every purpose: reading a file takes no message from other consumers, and the cursor is locked later. */
static int file_open(const once_spec *spec, const once_env *env, once_source_purpose purpose, once_cancel cancel,
                     once_source **out, once_error *err)
{
    (void)purpose, (void)cancel;
    assert(spec->source.own && spec->source.name.len > 0);
    file_source *f = calloc(1, sizeof *f);
    if (!f || !(f->path = strndup(spec->source.name.data, spec->source.name.len))) {
        free(f);
        return once_no_memory(err, "for the source");
    }
    f->base = (once_source){.ops = &once__file_ops, .spec = spec, .env = env};
    f->is_stdin = strcmp(f->path, "-") == 0;
    const int rc = once__file_open_first(f, err);
    if (rc != ONCE_OK) {
        file_close(&f->base);
        return rc;
    }
    *out = &f->base;
    return ONCE_OK;
}

static unsigned file_bits(const once_source *source)
{
    const file_source *f = (const file_source *)source;
    return source->spec->source.bits | (f->regular ? ONCE_SOURCE_REDELIVERS | ONCE_SOURCE_STABLE : 0u);
}

/* The bytes before the place, when nothing was read behind it. */
static once_place place_now(const open_file *file)
{
    once_place place = file->place;
    const bool all = (int64_t)place.offset == file->read && place.part_len == 0;
    place.tail_len = all ? file->tail_len : 0;
    place.tail = all ? once_place_hash(file->tail, file->tail_len) : 0;
    return place;
}

/* Where the messages of the batch are, in words and for the cursor. `name` has room for the path and a number. */
static void set_origin(file_source *f, const filling *of, size_t index, char *name, once_origin *origin)
{
    once_batch *batch = of->batch;
    assert(index < f->n && batch->n > 0);
    once_bytes place = f->base.spec->source.name;
    const uint64_t number = f->files[index].place.number;
    if (number > 1) {
        memcpy(name, place.data, place.len);
        name[place.len] = '/';
        place = (once_bytes){name, place.len + 1 + once__file_write_number(number, name + place.len + 1)};
        name[place.len] = '\0';
    }
    for (size_t i = 0; i < batch->n; i++) {
        batch->items[i].message.at.place = place;
        batch->items[i].delivery = ++f->delivered;
    }
    if (!of->resumes) return;
    *origin = (once_origin){.index = index, .version = f->version, .places.n = f->n};
    for (size_t i = 0; i < f->n; i++) origin->places.at[i] = place_now(&f->files[i]);
    for (size_t i = 0; i < batch->n; i++) of->resumes[i].origin = origin;
}

static void note_left(file_source *f)
{
    int64_t left = f->regular ? 0 : -1;
    for (size_t i = 0; i < f->n && f->regular; i++) {
        struct stat st;
        if (fstat(f->files[i].fd, &st) == 0 && st.st_size > f->files[i].read) left += st.st_size - f->files[i].read;
    }
    atomic_store(&f->left, left);
}

static bool all_over(const file_source *f)
{
    return !once__file_follows(f) && f->n == 1 && f->files[0].at_eof && once_lines_held(&f->files[0].lines) == 0;
}

static int file_fetch(once_source *source, once_fetch *fetch, once_error *err)
{
    file_source *f = (file_source *)source;
    once_batch *batch = fetch->batch;
    size_t index = 0;
    fetch->at_end = false;
    batch->n = 0;
    if (f->failed != ONCE_OK) {
        if (err) *err = f->failure;
        const int rc = f->failed;
        f->failed = ONCE_OK;
        return rc;
    }
    if (fetch->max == 0 || fetch->n_paused) return ONCE_OK; /* it has one stream, and needs no heartbeat */
    if (fetch->rest) atomic_store(&f->woken, true);
    batch->items = once_arena_new(&batch->arena, once_item, fetch->max);
    once_origin *origin = once_arena_new(&batch->arena, once_origin, 1);
    char *name = once_arena_alloc(&batch->arena, source->spec->source.name.len + 22);
    once_resume *resumes = f->regular ? once_arena_new(&batch->arena, once_resume, fetch->max) : NULL;
    if (!batch->items || !origin || !name || (f->regular && !resumes))
        return once_no_memory(err, "for a batch of '%s'", f->path);
    filling to = {.batch = batch, .max = fetch->max, .resumes = resumes};
    int rc = once__file_fill(f, &to, &index, &f->failure);
    atomic_store(&f->woken, false);
    note_left(f);
    if (batch->n) { /* messages that were read come first; the next fetch reports what failed behind them */
        f->failed = rc;
        rc = ONCE_OK;
        set_origin(f, &to, index, name, origin);
    } else if (rc == ONCE_OK && once__file_follows(f)) {
        once_env_sleep_ms(source->env, IDLE_MS);
    }
    if (rc != ONCE_OK && err) *err = f->failure;
    fetch->at_end = rc == ONCE_OK && (all_over(f) || (f->looks && batch->n == 0));
    return rc;
}

/* A file needs no ack. The next run reads again what was not settled, and what was settled is suppressed. */
static int file_ack(once_source *source, once_receipt *list, size_t n, once_error *err)
{
    (void)source, (void)list, (void)n, (void)err;
    return ONCE_OK;
}

static void file_wake(once_source *source) { atomic_store(&((file_source *)source)->woken, true); }
/* Of a pipe: whole lines, and the part of one without its newline. */
static uint64_t file_held(const once_source *source)
{
    const file_source *f = (const file_source *)source;
    if (f->regular || f->n == 0) return 0;
    once_lines lines = f->files[0].lines; /* taking a line changes no bytes */
    once_line line;
    uint64_t n = 0;
    while (once_lines_next(&lines, true, &line)) n += !once__file_is_blank(f, &line);
    return n;
}

static const char *file_stream_name(once_source *source, uint32_t stream)
{
    const file_source *f = (const file_source *)source;
    (void)stream; /* it has one */
    return f->is_stdin ? "standard input" : f->path;
}

static int64_t file_lag(once_source *source, uint32_t stream)
{
    (void)stream; /* it has one */
    return atomic_load(&((file_source *)source)->left);
}

const once_source_ops once__file_ops = {
    .open = file_open,
    .close = file_close,
    .bits = file_bits,
    .seek = once__file_seek,
    .keep = once__file_keep,
    .look = once__file_look,
    .fetch = file_fetch,
    .ack = file_ack,
    .wake = file_wake,
    .held = file_held,
    .lag = file_lag,
    .stream_name = file_stream_name,
};
