/* Reading files: bytes into lines, lines into the items of a batch. */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <string.h>

#include "base/no_memory.h"
#include "source/file_impl.h"

#include "base/banned.h"

#define CHUNK (256u << 10)
#define BATCH_BYTES (4u << 20) /* a batch is delivered when it has so many bytes, or `max` messages */
#define IDLE_MS 100
#define ROTATED_MS 30000 /* how long a file that lost its path may stand still before it is over */

/* Waits until the descriptor has something, at most `ms`. Files always have. */
static bool wait_readable(file_source *f, int64_t ms)
{
    if (f->regular) return true;
    struct pollfd p = {.fd = f->files[0].fd, .events = POLLIN};
    while (ms >= 0 && !atomic_load(&f->woken)) {
        const int step = ms > IDLE_MS ? IDLE_MS : (int)ms;
        if (poll(&p, 1, step) != 0) return true; /* data, end, or an error that read() will name */
        ms -= step ? step : 1;
    }
    return false;
}

static void remember_tail(open_file *file, const char *data, size_t n)
{
    assert(file->tail_len <= sizeof file->tail);
    const size_t room = sizeof file->tail;
    if (n >= room) {
        memcpy(file->tail, data + n - room, room);
        file->tail_len = room;
        return;
    }
    const size_t keep = file->tail_len + n > room ? room - n : file->tail_len;
    memmove(file->tail, file->tail + file->tail_len - keep, keep);
    memcpy(file->tail + keep, data, n);
    file->tail_len = keep + n;
    assert(file->tail_len <= room);
}

/* Reads more behind the bytes that are there. at_eof: there was nothing, for now. `changed`: the bytes before are
 * not those that were read */
static int read_more(file_source *f, open_file *file, bool *changed, once_error *err)
{
    assert(file->fd >= 0 && file->read >= 0);
    const once_env *env = f->base.env;
    char *room = once_lines_room(&file->lines, CHUNK);
    *changed = false;
    if (!room) return once_no_memory(err, "for a line of '%s'", f->path);
    ssize_t n;
    do n = env->read(env->self, file->fd, room, CHUNK);
    while (n < 0 && errno == EINTR);
    if (n < 0) return errno == EAGAIN ? ONCE_OK : once__file_bad(f, ONCE_E_IO, "cannot read", errno, err);
    /* Checked after reading: if the file was changed before that, these bytes are not what follows. */
    if (f->regular && (once__file_follows(f) || n == 0) && once__file_is_changed(file)) {
        *changed = true;
        return once__file_follows(f)
                   ? ONCE_OK
                   : once_fail(err, ONCE_E_CORRUPT,
                               "source '%s' was truncated or written anew while it was read; run again", f->path);
    }
    assert((size_t)n <= CHUNK);
    *(n > 0 ? &file->grown_ms : &file->ended_ms) = once__file_now_ms(f);
    file->at_eof = n == 0;
    remember_tail(file, room, (size_t)n);
    once_lines_fed(&file->lines, (size_t)n);
    file->read += n;
    if (f->regular && file->place.head_len < ONCE_HEAD_BYTES && (uint64_t)file->read > file->place.head_len) {
        (void)once_place_look(file->fd, &file->place);
        f->version++;
    }
    return ONCE_OK;
}

/* --- lines into items --- */

bool once__file_is_blank(const file_source *f, const once_line *line)
{
    if (line->len > line->kept || f->base.spec->source.bytes) return false; /* white space is bytes, too */
    for (size_t i = 0; i < line->kept; i++)
        if (line->data[i] != ' ' && line->data[i] != '\t' && line->data[i] != '\r') return false;
    return true;
}

size_t once__file_write_number(uint64_t number, char out[20])
{
    char text[20], *at = text + sizeof text;
    do *--at = (char)('0' + number % 10);
    while (number /= 10);
    const size_t len = (size_t)(text + sizeof text - at);
    memcpy(out, at, len);
    return len;
}

static bool is_full(const filling *to) { return to->batch->n == to->max || to->bytes >= BATCH_BYTES; }

/* The end of a line that is cut is not in its body. */
static void keep_tail(const once_line *line, once_resume *resume)
{
    assert(line->ended && line->len > line->kept);
    const size_t len = line->ending < ONCE_TAIL_BYTES - 1 ? line->ending : ONCE_TAIL_BYTES - 1;
    resume->tail_len = len + 1;
    resume->tail = once_place_hash(line->end - len, len + 1);
}

static void add_item(const open_file *file, filling *to, const once_line *line, uint64_t number)
{
    assert(to->batch->n < to->max && number > 0);
    assert(line->kept <= line->len);
    const size_t i = to->batch->n++;
    once_item *item = &to->batch->items[i];
    *item = (once_item){.batch = to->batch, .message = {.body = {line->data, line->kept}, .sent_ms = ONCE_NO_TIME}};
    item->message.cut_from = line->len > line->kept ? line->len : 0;
    item->message.at.point.len = (size_t)number; /* until it is written */
    to->bytes += line->kept;
    if (!to->resumes) return;
    once_resume *resume = &to->resumes[i];
    *resume = (once_resume){.offset = (int64_t)file->place.offset, .line = file->place.line, .part = !line->ended};
    if (item->message.cut_from && line->ended) keep_tail(line, resume);
    item->resume = resume;
}

/* It was delivered without its newline, and has not grown. */
static bool is_known_part(const once_place *p, const once_line *line)
{
    return p->part_len && p->part_len == line->len && line->kept >= p->part_kept &&
           once_place_hash(line->data, p->part_kept) == p->part;
}

static void deliver_line(const file_source *f, open_file *file, filling *to, const once_line *line)
{
    once_place *p = &file->place;
    assert(p->part_kept <= p->part_len);
    const uint64_t number = p->line + 1;
    const bool again = is_known_part(p, line);
    if (line->ended) {
        p->offset += line->len + 1;
        p->line = number;
        p->part_len = p->part_kept = p->part = p->tail_len = 0;
    } else if (f->regular) { /* perhaps it goes on: then it is a message again */
        p->part_len = line->len;
        p->part_kept = line->kept;
        p->part = once_place_hash(line->data, p->part_kept);
    }
    if (!again && !once__file_is_blank(f, line)) add_item(file, to, line, number);
}

/* Bodies and line numbers of items[from...] into the arena, in two pieces. */
static bool copy_items(once_batch *batch, size_t from)
{
    assert(from <= batch->n);
    const size_t n = batch->n - from;
    if (n == 0) return true;
    const once_message *last = &batch->items[batch->n - 1].message;
    const char *base = batch->items[from].message.body.data;
    const size_t size = (size_t)(last->body.data - base) + last->body.len;
    char *bodies = once_arena_alloc(&batch->arena, size + 1), *points = once_arena_alloc(&batch->arena, n * 21);
    if (!bodies || !points) return false;
    memcpy(bodies, base, size);
    for (size_t i = from; i < batch->n; i++) {
        once_message *m = &batch->items[i].message;
        assert(m->body.data >= base && (size_t)(m->body.data - base) + m->body.len <= size); /* all in one buffer */
        m->body.data = bodies + (m->body.data - base);
        m->at.point = (once_bytes){points, once__file_write_number(m->at.point.len, points)};
        points[m->at.point.len] = '\0';
        points += m->at.point.len + 1;
    }
    return true;
}

/* Takes what lines there are, up to the bounds of the batch. All or nothing. */
static int take_lines(file_source *f, open_file *file, bool last, filling *to, once_error *err)
{
    assert(!is_full(to));
    const once_lines lines = file->lines; /* to go back to: taking a line changes no bytes */
    const once_place place = file->place;
    const filling was = *to;
    const size_t n = to->batch->n;
    once_line line;
    while (!is_full(to) && once_lines_next(&file->lines, last, &line)) deliver_line(f, file, to, &line);
    if (copy_items(to->batch, n)) return ONCE_OK;
    file->lines = lines;
    file->place = place;
    *to = was;
    to->batch->n = n;
    return once_no_memory(err, "for a batch of '%s'", f->path);
}

/* Nothing will follow the bytes in it. */
static bool is_over(const file_source *f, const open_file *file)
{
    if (!file->at_eof) return false;
    if (!once__file_follows(f)) return true;
    return file != &f->files[f->n - 1] && file->ended_ms - file->grown_ms >= ROTATED_MS;
}

/* One step: takes what there is, or reads. */
static int fill_some(file_source *f, size_t i, filling *to, bool *more, once_error *err)
{
    assert(i < f->n);
    open_file *file = &f->files[i];
    const bool over = is_over(f, file);
    bool changed;
    int rc = take_lines(f, file, over, to, err);
    *more = false;
    if (rc != ONCE_OK || is_full(to) || over) return rc;
    if (atomic_load(&f->woken) || !wait_readable(f, to->batch->n ? f->base.spec->batch_wait_ms : IDLE_MS))
        return ONCE_OK;
    rc = read_more(f, file, &changed, err);
    if (rc == ONCE_OK && changed) {
        const uint64_t number = file->place.number;
        rc = once__file_was_truncated(f, i, err);
        *more = rc == ONCE_OK && i < f->n && f->files[i].place.number == number; /* a copy goes on */
        return rc;
    }
    *more = rc == ONCE_OK && (!file->at_eof || is_over(f, file));
    return rc;
}

static int fill_from(file_source *f, size_t i, filling *to, once_error *err)
{
    int rc = ONCE_OK;
    for (bool more = true; more && rc == ONCE_OK;) rc = fill_some(f, i, to, &more, err);
    return rc;
}

/* From the first file that has something: a batch is of one file. */
int once__file_fill(file_source *f, filling *to, size_t *index, once_error *err)
{
    assert(to->batch->n == 0 && to->max > 0);
    int rc = f->regular && once__file_follows(f) ? once__file_look_at_path(f, err) : ONCE_OK;
    for (size_t i = 0; rc == ONCE_OK && i < f->n && (i == 0 || !atomic_load(&f->woken));) {
        const uint64_t number = f->files[i].place.number;
        rc = fill_from(f, i, to, err);
        if (to->batch->n) {
            for (*index = 0; *index + 1 < f->n && f->files[*index].place.number != number;) ++*index;
            return rc;
        }
        if (rc != ONCE_OK || i >= f->n || f->files[i].place.number != number) continue; /* it is gone */
        if (i + 1 < f->n && is_over(f, &f->files[i]) && once_lines_held(&f->files[i].lines) == 0)
            once__file_remove(f, i);
        else i++;
    }
    return rc;
}
