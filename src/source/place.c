#include "source/place.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"

#include "base/banned.h"

enum { FIELDS = 12 };

/* In the order of the text. */
static void fields_of(once_place *p, uint64_t *out[FIELDS])
{
    uint64_t *const fields[FIELDS] = {&p->number, &p->device,   &p->inode, &p->head_len, &p->head,      &p->offset,
                                      &p->line,   &p->tail_len, &p->tail,  &p->part_len, &p->part_kept, &p->part};
    memcpy(out, fields, sizeof fields);
}

void once_places_write(const once_places *places, once_buf *out)
{
    assert(places->n <= ONCE_FILES_MAX);
    once_buf_puts(out, "v2");
    for (size_t i = 0; i < places->n; i++) {
        once_place place = places->at[i];
        uint64_t *fields[FIELDS];
        fields_of(&place, fields);
        for (int k = 0; k < FIELDS; k++) once_buf_printf(out, " %llx", (unsigned long long)*fields[k]);
    }
}

static bool read_hex(once_bytes *text, uint64_t *out)
{
    size_t digits = 0;
    uint64_t number = 0;
    if (text->len == 0 || text->data[0] != ' ') return false;
    for (; digits + 1 < text->len && text->data[digits + 1] != ' '; digits++) {
        const char c = text->data[digits + 1];
        const int value = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (value < 0 || digits == 16) return false;
        number = number << 4 | (unsigned)value;
    }
    *text = (once_bytes){text->data + digits + 1, text->len - digits - 1};
    *out = number;
    return digits > 0;
}

static bool is_sane(const once_place *p, const once_place *before)
{
    return p->number > (before ? before->number : 0) && p->head_len <= ONCE_HEAD_BYTES &&
           p->tail_len <= ONCE_TAIL_BYTES && p->tail_len <= p->offset && p->offset <= INT64_MAX / 2 &&
           p->part_len <= INT64_MAX / 2 && p->part_kept <= p->part_len;
}

bool once_places_read(once_bytes text, once_places *out)
{
    *out = (once_places){0};
    if (text.len < 2 || memcmp(text.data, "v2", 2) != 0) return false;
    text = (once_bytes){text.data + 2, text.len - 2};
    while (text.len > 0) {
        uint64_t *fields[FIELDS];
        if (out->n == ONCE_FILES_MAX) return false;
        once_place *place = &out->at[out->n++];
        fields_of(place, fields);
        for (int k = 0; k < FIELDS; k++)
            if (!read_hex(&text, fields[k])) return false;
        if (!is_sane(place, out->n > 1 ? place - 1 : NULL)) return false;
    }
    return true;
}

void once_place_rewind(once_place *p)
{
    p->offset = p->line = p->tail_len = p->tail = p->part_len = p->part_kept = p->part = 0;
}

uint64_t once_place_hash(const void *data, size_t len) { return once_xxh128(0, data, len).a; }

/* --- the place behind a message --- */

static void behind_part(const once_message *m, once_place *out)
{
    out->tail_len = 0; /* the part is what is recognised */
    out->part_len = m->cut_from ? m->cut_from : m->body.len;
    out->part_kept = m->body.len;
    assert(out->part_kept <= out->part_len);
    out->part = once_place_hash(m->body.data, out->part_kept);
}

/* The bytes before the offset are the end of the message, and its newline. */
static void behind_line(const once_message *m, once_place *out)
{
    assert(m->body.len > 0 && !m->cut_from);
    char tail[ONCE_TAIL_BYTES];
    const size_t len = m->body.len < sizeof tail - 1 ? m->body.len : sizeof tail - 1;
    memcpy(tail, m->body.data + m->body.len - len, len);
    tail[len] = '\n';
    out->tail_len = len + 1;
    out->tail = once_place_hash(tail, len + 1);
}

void once_places_behind(const once_item *item, once_places *out)
{
    const once_resume *resume = item->resume;
    assert(resume && resume->origin->index < resume->origin->places.n);
    const once_origin *origin = resume->origin;
    assert(resume->offset >= 0);
    *out = origin->places;
    once_place *place = &out->at[origin->index];
    place->offset = (uint64_t)resume->offset;
    place->line = resume->line;
    place->part_len = place->part_kept = place->part = 0;
    if (resume->part) {
        behind_part(&item->message, place);
    } else if (item->message.cut_from) {
        place->tail_len = resume->tail_len;
        place->tail = resume->tail;
    } else {
        behind_line(&item->message, place);
    }
    assert(place->tail_len <= place->offset);
}

bool once_places_same_files(const once_places *a, const once_places *b)
{
    bool same = a->n == b->n;
    for (size_t i = 0; same && i < a->n; i++) {
        const once_place *x = &a->at[i], *y = &b->at[i];
        same = x->number == y->number && x->device == y->device && x->inode == y->inode && x->head_len == y->head_len &&
               x->head == y->head;
    }
    return same;
}

void once_places_add_known(once_places *to, const once_places *known)
{
    assert(to->n <= ONCE_FILES_MAX && known->n <= ONCE_FILES_MAX);
    for (size_t i = known->n; i > 0 && to->n < ONCE_FILES_MAX; i--) {
        const once_place *p = &known->at[i - 1];
        bool there = false;
        for (size_t k = 0; k < to->n; k++) there |= to->at[k].number == p->number;
        if (there) continue;
        size_t at = to->n++;
        for (; at > 0 && to->at[at - 1].number > p->number; at--) to->at[at] = to->at[at - 1];
        to->at[at] = *p;
    }
}

bool once_places_agree(const once_places *a, const once_places *b)
{
    for (size_t i = 0; i < a->n; i++)
        for (size_t k = 0; k < b->n; k++)
            if (a->at[i].number == b->at[k].number &&
                (a->at[i].device != b->at[k].device || a->at[i].inode != b->at[k].inode))
                return false;
    return true;
}

/* --- is it that file? --- */

static bool read_at(int fd, void *out, size_t len, uint64_t at)
{
    char *to = out;
    while (len > 0) {
        const ssize_t n = pread(fd, to, len, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        to += n;
        at += (uint64_t)n;
        len -= (size_t)n;
    }
    return true;
}

static bool hash_fits(int fd, uint64_t at, uint64_t len, uint64_t hash)
{
    char bytes[ONCE_HEAD_BYTES];
    assert(len <= sizeof bytes);
    return len == 0 || (read_at(fd, bytes, len, at) && once_place_hash(bytes, len) == hash);
}

/* As long as a message may be: the line is read as a whole, because it was hashed as a whole. */
static bool part_fits(int fd, const once_place *p)
{
    if (p->part_kept <= ONCE_HEAD_BYTES) return hash_fits(fd, p->offset, p->part_kept, p->part);
    char *bytes = malloc(p->part_kept);
    const bool fits =
        bytes && read_at(fd, bytes, p->part_kept, p->offset) && once_place_hash(bytes, p->part_kept) == p->part;
    free(bytes);
    return fits;
}

bool once_place_head_fits(int fd, const once_place *p) { return hash_fits(fd, 0, p->head_len, p->head); }

bool once_place_fits(int fd, const once_place *p)
{
    assert(fd >= 0 && p->tail_len <= p->offset && p->part_kept <= p->part_len);
    struct stat st;
    if (fstat(fd, &st) != 0 || (uint64_t)st.st_size < p->offset + p->part_len) return false;
    return once_place_head_fits(fd, p) && hash_fits(fd, p->offset - p->tail_len, p->tail_len, p->tail) &&
           part_fits(fd, p);
}

bool once_place_look(int fd, once_place *place)
{
    assert(fd >= 0 && place->head_len <= ONCE_HEAD_BYTES);
    struct stat st;
    char bytes[ONCE_HEAD_BYTES];
    if (fstat(fd, &st) != 0) return false;
    place->device = st.st_dev;
    place->inode = st.st_ino;
    const size_t len = (uint64_t)st.st_size < sizeof bytes ? (size_t)st.st_size : sizeof bytes;
    if (len <= place->head_len || !read_at(fd, bytes, len, 0)) return true; /* as much as was recorded */
    place->head_len = len;
    place->head = once_place_hash(bytes, len);
    return true;
}

/* --- cursors as they were --- */

static bool read_old_cursor(once_bytes text, uint64_t *offset, uint64_t *line, uint64_t *len, once_hash *hash)
{
    char copy[128];
    unsigned long long o, l, n, a, b;
    int end = 0;
    if (text.len >= sizeof copy) return false;
    memcpy(copy, text.data, text.len);
    copy[text.len] = 0;
    if (sscanf(copy, "%llu %llu %llu %16llx%16llx%n", &o, &l, &n, &a, &b, &end) != 5 || (size_t)end != text.len)
        return false;
    *offset = o, *line = l, *len = n, *hash = (once_hash){a, b};
    return o > 0 && l > 0 && n <= o && o <= INT64_MAX / 2;
}

static bool bytes_are(int fd, uint64_t at, uint64_t len, once_hash hash)
{
    char *bytes = malloc(len + 1);
    const bool same =
        bytes && pread(fd, bytes, len, (off_t)at) == (ssize_t)len && once_hash_equal(once_xxh128(0, bytes, len), hash);
    free(bytes);
    return same;
}

/* An old cursor points behind a message, and has the hash of it. The message may have had no newline. If it was longer
 * than the buffers of that version, the hash does not cover its middle; then only the newline is checked. */
bool once_place_read_old(int fd, once_bytes text, once_place *out)
{
    enum { OLD_LINE_MAX = 64 << 20 };
    uint64_t offset, line, len;
    once_hash hash;
    char before = 0;
    if (!read_old_cursor(text, &offset, &line, &len, &hash)) return false;
    const bool newline = pread(fd, &before, 1, (off_t)offset - 1) == 1 && before == '\n';
    if (newline && (len >= OLD_LINE_MAX || (len < offset && bytes_are(fd, offset - 1 - len, len, hash)))) {
        *out =
            (once_place){.number = 1, .offset = offset, .line = line, .tail_len = 1, .tail = once_place_hash("\n", 1)};
    } else if (len > 0 && len < OLD_LINE_MAX && bytes_are(fd, offset - len, len, hash)) {
        char part[ONCE_HEAD_BYTES];
        const size_t kept = len < sizeof part ? (size_t)len : sizeof part;
        if (pread(fd, part, kept, (off_t)(offset - len)) != (ssize_t)kept) return false;
        *out = (once_place){.number = 1,
                            .offset = offset - len,
                            .line = line - 1,
                            .part_len = len,
                            .part_kept = kept,
                            .part = once_place_hash(part, kept)};
    } else {
        return false;
    }
    return once_place_look(fd, out);
}
