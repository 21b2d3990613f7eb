/* Files that had the path in between, and lost it before they were seen: found in the folder, by their names and times.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/beside.h"
#include "base/log.h"
#include "source/file_impl.h"

#include "base/banned.h"

/* A regular file of the folder that was rotated away. */
typedef struct rotated {
    int fd;
    struct stat st;
} rotated;

static bool is_before(struct timespec a, struct timespec b)
{
    return a.tv_sec != b.tv_sec ? a.tv_sec < b.tv_sec : a.tv_nsec < b.tv_nsec;
}

/* {0, 0}: the file system does not say. */
static struct timespec born(int fd)
{
    struct statx st;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_BTIME, &st) != 0 || !(st.stx_mask & STATX_BTIME))
        return (struct timespec){0};
    return (struct timespec){.tv_sec = st.stx_btime.tv_sec, .tv_nsec = (long)st.stx_btime.tv_nsec};
}

/* A number or a date: digits and what divides them. */
static bool is_number(const char *text, size_t len)
{
    size_t digits = 0, others = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] >= '0' && text[i] <= '9') digits++;
        else if (!strchr(".-_:TZ", text[i])) others++;
    }
    return digits > 0 && others == 0;
}

typedef enum rotation { ROTATION_NONE, ROTATION_READABLE, ROTATION_PACKED } rotation;

/* Whether a name is what rotation makes of that of the file: "in.ndjson.1", "in.ndjson-20260102", "in-2.ndjson",
 * "in.ndjson.old"; or of such a one that was compressed. */
static rotation kind_of_name(const char *name, const char *entry)
{
    static const char *const packed[] = {".gz", ".bz2", ".xz", ".zst", ".lz4", ".Z"};
    rotation kind = ROTATION_READABLE;
    size_t len = strlen(entry);
    const size_t size = strlen(name);
    for (size_t i = 0; i < sizeof packed / sizeof *packed && kind == ROTATION_READABLE; i++) {
        const size_t end = strlen(packed[i]);
        if (len <= end || memcmp(entry + len - end, packed[i], end) != 0) continue;
        kind = ROTATION_PACKED;
        len -= end;
    }
    if (len > size && memcmp(entry, name, size) == 0)
        return is_number(entry + size, len - size) || (len - size == 4 && memcmp(entry + size, ".old", 4) == 0)
                   ? kind
                   : ROTATION_NONE;
    const char *dot = strrchr(name, '.');
    const size_t stem = dot ? (size_t)(dot - name) : size, end = size - stem;
    if (stem == 0 || end == 0 || len <= size || memcmp(entry, name, stem) != 0 ||
        memcmp(entry + len - end, dot, end) != 0)
        return ROTATION_NONE;
    return is_number(entry + stem, len - size) ? kind : ROTATION_NONE;
}

static bool is_known_file(const file_source *f, const rotated *r)
{
    bool known = false;
    for (size_t i = 0; i < f->n && !known; i++)
        known = f->files[i].place.inode == r->st.st_ino && f->files[i].place.device == r->st.st_dev;
    for (size_t i = 0; i < f->known.n && !known; i++) /* an empty one tells nothing of what has its inode now */
        known = once__file_is(&f->known.at[i], r->st.st_dev, r->st.st_ino, r->fd) &&
                (f->known.at[i].head_len > 0 || r->st.st_size == 0);
    return known;
}

/* In the order in which they were written to for the last time; the newest of too many are found again later. */
static size_t insert_rotated(rotated list[ONCE_FILES_MAX], size_t n, const rotated *r)
{
    size_t at = n;
    while (at > 0 && is_before(r->st.st_mtim, list[at - 1].st.st_mtim)) at--;
    if (at == ONCE_FILES_MAX) {
        once_close_beside(NULL, r->fd);
        return n;
    }
    if (n == ONCE_FILES_MAX) once_close_beside(NULL, list[--n].fd);
    memmove(&list[at + 1], &list[at], (n - at) * sizeof *list);
    list[at] = *r;
    return n + 1;
}

/* Files of the folder that had the path after the file `old` and before the one that has it now: made, and written to,
 * after that, and never seen. */
static size_t find_between(const file_source *f, int old, const struct stat *now, rotated list[ONCE_FILES_MAX])
{
    struct stat st;
    size_t n = 0;
    DIR *dir = fstat(old, &st) == 0 ? once__file_folder(f) : NULL;
    if (!dir) return 0;
    const struct timespec old_born = born(old);
    for (struct dirent *entry; (entry = readdir(dir));) {
        const rotation kind = kind_of_name(once__file_name_in(f->path), entry->d_name);
        rotated r;
        if (kind == ROTATION_NONE || (r.fd = once__file_open_other(f, dir, entry->d_name, &r.st)) < 0) continue;
        const bool later = !is_before(r.st.st_mtim, st.st_mtim) && !is_before(born(r.fd), old_born);
        const bool other = (r.st.st_ino != st.st_ino || r.st.st_dev != st.st_dev) &&
                           (r.st.st_ino != now->st_ino || r.st.st_dev != now->st_dev);
        /* A compressed one keeps the time of what it was made of: with the same time it is `old`. */
        if (kind == ROTATION_PACKED && later && is_before(st.st_mtim, r.st.st_mtim))
            once_log(ONCE_LOG_WARN, "source_lost",
                     "source '%s': '%s' may have had the path in between, and is compressed; what it has is not read",
                     f->path, entry->d_name);
        if (kind == ROTATION_READABLE && later && other && !is_known_file(f, &r)) n = insert_rotated(list, n, &r);
        else once_close_beside(NULL, r.fd);
    }
    closedir(dir);
    return n;
}

/* Takes them in, up to the last one that there is room for. */
int once__file_take_between(file_source *f, int old, int now_fd, once_error *err)
{
    rotated list[ONCE_FILES_MAX];
    struct stat now;
    int rc = ONCE_OK;
    if (fstat(now_fd, &now) != 0) return once__file_bad(f, ONCE_E_IO, "cannot stat", errno, err);
    const size_t n = find_between(f, old, &now, list);
    for (size_t i = 0; i < n; i++) {
        if (rc == ONCE_OK && once__file_has_room(f)) rc = once__file_lock(f, list[i].fd, err);
        if (rc != ONCE_OK || !once__file_has_room(f)) {
            once_close_beside(NULL, list[i].fd);
            continue;
        }
        once_place place = {.number = once__file_next_number(f)};
        (void)once_place_look(list[i].fd, &place);
        once_log(ONCE_LOG_INFO, "source_rotated", "source '%s' had a file in between, which is read as '%s/%llu'",
                 f->path, f->path, (unsigned long long)place.number);
        once__file_add(f, list[i].fd, &place);
    }
    return rc;
}
