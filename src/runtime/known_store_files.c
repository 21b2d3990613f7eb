/* The files that remember which store a pipeline uses: where they are, what they are called, reading and writing them.
 *
 * Layout of a file, in lines: a comment, then
 *   store ID[ or another]    16 hex digits; " or another": --new-store was given when there was no store to use
 *   url URL                  without the password; the lines from here on are for people
 *   consumer NAME
 *   file PATH
 * A file is written beside its place, synced and renamed, so that a crash leaves the old one or the new one. */
#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/errno_text.h"
#include "runtime/known_store.h"
#include "runtime/operate.h"

#include "base/banned.h"

/* --- where --- */

static bool folder(char *out, size_t size)
{
    const char *said = getenv("STATE_DIRECTORY"), *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n = -1;
    if (said && *said) n = snprintf(out, size, "%.*s", (int)strcspn(said, ":"), said);
    else if (state && *state == '/') n = snprintf(out, size, "%s/once", state);
    else if (home && *home == '/') n = snprintf(out, size, "%s/.local/state/once", home);
    return n > 0 && (size_t)n < size;
}

bool once__known_absolute(once_bytes path, char *out, size_t size)
{
    char *here = path.len && path.data[0] == '/' ? NULL : get_current_dir_name(); /* $PWD, if it is right */
    const bool relative = path.len == 0 || path.data[0] != '/';
    if (relative && !here) return false;
    const int n = snprintf(out, size, "%s%s%.*s", relative ? here : "", relative ? "/" : "", (int)path.len, path.data);
    free(here);
    if (n < 0 || (size_t)n >= size) return false;
    char *to = out;
    for (const char *from = out; *from;) {
        while (from[0] == '/' && (from[1] == '/' || (from[1] == '.' && from[2] == '/'))) from += from[1] == '/' ? 1 : 2;
        *to++ = *from++;
    }
    *to = 0;
    return true;
}

/* The options of a URL that say where a store is; others say how it is used. */
static const char *const places[] = {"dbname", "host",   "hostaddr", "name", "options",
                                     "port",   "schema", "service",  "user"};

static void add_places(const char *query, once_buf *out)
{
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const size_t len = strlen(places[i]);
        for (const char *at = query; *at; at += strcspn(at, "&")) {
            at += *at == '?' || *at == '&';
            if (strncmp(at, places[i], len) != 0 || at[len] != '=') continue;
            once_buf_puts(out, "&");
            once_buf_append(out, at, strcspn(at, "&"));
        }
    }
}

/* The location of the store: its URL without password and other options, or an absolute path. With PostgreSQL the role
 * is part of it, because it may choose the schema ("$user"). */
static bool place_of(const char *url, once_buf *out)
{
    const once_store_driver *driver = once__store_find(url, strcspn(url, ":"));
    assert(driver); /* the configuration has checked the URL */
    char path[PATH_MAX];
    if (driver->bits & ONCE_DRIVER_FILE) {
        const char *rest = url + strcspn(url, ":") + 1;
        if (!once__known_absolute((once_bytes){rest, strlen(rest)}, path, sizeof path)) return false;
        return once_buf_printf(out, "%s:%s", driver->scheme, path);
    }
    const char *host = strstr(url, "://");
    if (!host) return once_buf_puts(out, url);
    host += 3;
    const size_t len = strcspn(host, "?");
    const char *at = memrchr(host, '@', len), *query = host + len;
    once_buf_printf(out, "%s://", driver->place ? driver->place : driver->scheme);
    if (at && driver->bits & ONCE_DRIVER_ROLE) {
        once_buf_append(out, host, strcspn(host, ":@"));
        once_buf_puts(out, "@");
    }
    if (at) host = at + 1;
    once_buf_append(out, host, (size_t)(query - host));
    add_places(query, out);
    return !out->failed;
}

static void name_by(once_known_by *by, once_bytes what, once_bytes consumer, once_buf *text)
{
    assert(consumer.len > 0);
    size_t n = 0;
    once_buf_clear(text);
    once_buf_append(text, what.data, what.len);
    once_buf_append(text, "", 1);
    once_buf_append(text, consumer.data, consumer.len);
    if (text->failed) return;
    for (size_t i = 0; i < consumer.len && n < 40; i++) {
        const unsigned char c = (unsigned char)consumer.data[i];
        by->name[n++] = (char)((c < 128 && isalnum(c)) || c == '-' || c == '_' ? c : '_');
    }
    (void)snprintf(by->name + n, sizeof by->name - n, "-%016llx.store",
                   (unsigned long long)once_xxh128(0, text->data, text->len).a);
}

static bool find_names(const once_pipeline *pipeline, once_known *out)
{
    const once_bytes consumer = pipeline->spec->consumer;
    char file[PATH_MAX], real[PATH_MAX];
    once_buf text, place;
    if (!once__known_absolute(pipeline->spec->file, file, sizeof file)) return false;
    once_buf_init(&text, (size_t)1 << 20);
    once_buf_init(&place, (size_t)1 << 20);
    name_by(&out->by[ONCE_KNOWN_BY_FILE], once_bytes_of(file), consumer, &text);
    bool fine = place_of(pipeline->store_url, &place);
    if (fine) name_by(&out->by[ONCE_KNOWN_BY_URL], once_buf_bytes(&place), consumer, &text);
    if (realpath(file, real) && strcmp(real, file) != 0)
        name_by(&out->by[ONCE_KNOWN_BY_LINK], once_bytes_of(real), consumer, &text);
    fine = fine && !text.failed;
    once_buf_release(&text);
    once_buf_release(&place);
    return fine;
}

/* --- reading --- */

#define ANOTHER " or another" /* after the id: --new-store was given, and there was no store */

static bool is_id(const char *text) { return strspn(text, "0123456789abcdef") == ONCE_STORE_ID - 1; }

void once__known_path(const once_known *known, const once_known_by *by, char out[PATH_MAX])
{
    assert(known->folder[0] && by->name[0]);
    (void)snprintf(out, PATH_MAX, "%s/%s", known->folder, by->name);
}

static void read_by(const once_known *known, once_known_by *by)
{
    assert(by->name[0] && known->folder[0]);
    char path[PATH_MAX], text[2000];
    once__known_path(known, by, path);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
        by->damaged = errno != ENOENT && errno != ENOTDIR; /* a file that cannot be read may name any store */
        return;
    }
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    const char *at = strncmp(text, "store ", 6) == 0 ? text : strstr(text, "\nstore ");
    if (at) at += *at == '\n' ? 7 : 6;
    by->damaged = !at || !is_id(at);
    if (by->damaged) return;
    memcpy(by->id, at, ONCE_STORE_ID - 1);
    by->accepts_any = strncmp(at + ONCE_STORE_ID - 1, ANOTHER, strlen(ANOTHER)) == 0;
}

int once__known_read(const once_pipeline *pipeline, once_known *out, once_error *err)
{
    const once_bytes said = pipeline->spec->store_id;
    *out = (once_known){0};
    if (once__store_driver_bits(once_bytes_of(pipeline->store_url)) & ONCE_DRIVER_NEW) return ONCE_OK;
    if (said.len) memcpy(out->pinned, said.data, ONCE_STORE_ID - 1); /* the configuration has checked its form */
    if (said.len || !folder(out->folder, sizeof out->folder)) return ONCE_OK;
    if (!find_names(pipeline, out))
        return once_fail(
            err, ONCE_E_NOMEM,
            "out of memory, or a path is too long, for the files that remember the store of this pipeline");
    for (size_t i = 0; i < ONCE_KNOWN_WAYS; i++)
        if (out->by[i].name[0]) read_by(out, &out->by[i]);
    return ONCE_OK;
}

/* --- writing --- */

static bool make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        const bool made = mkdir(path, 0700) == 0 || errno == EEXIST;
        *slash = '/';
        if (!made) return false;
    }
    return true;
}

/* A temporary file in the folder. If root creates it, it gets the owner of the folder, so that a unit can read it. */
static int make_beside(const char *folder, const char *path, char out[PATH_MAX])
{
    struct stat owner;
    if (snprintf(out, PATH_MAX, "%s.XXXXXX", path) >= PATH_MAX) {
        errno = ENAMETOOLONG;
        return -1;
    }
    const int fd = mkostemp(out, O_CLOEXEC);
    if (fd < 0 || geteuid() != 0 || stat(folder, &owner) != 0 || owner.st_uid == 0 ||
        fchown(fd, owner.st_uid, owner.st_gid) == 0)
        return fd;
    const int no = errno;
    close(fd);
    unlink(out);
    errno = no;
    return -1;
}

static bool sync_folder(const char *folder)
{
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return false;
    const bool synced = fsync(fd) == 0 || errno == EINVAL;
    close(fd);
    return synced;
}

static bool write_whole(const char *folder, const char *path, const once_buf *text)
{
    assert(text->len > 0 && !text->failed);
    char beside[PATH_MAX];
    const int fd = make_beside(folder, path, beside);
    if (fd < 0) return false;
    const bool written = write(fd, text->data, text->len) == (ssize_t)text->len && fsync(fd) == 0;
    const bool closed = close(fd) == 0;
    if (written && closed && rename(beside, path) == 0) return sync_folder(folder);
    const int no = errno;
    unlink(beside);
    errno = no;
    return false;
}

bool once__known_no_folder(char *why, size_t size)
{
    (void)snprintf(why, size,
                   "there is no folder in which to remember the store ($STATE_DIRECTORY, $XDG_STATE_HOME or $HOME)");
    return false;
}

static bool say_why(const once_known *known, char *why, size_t size)
{
    (void)snprintf(why, size, "the store cannot be remembered in folder '%.200s': %s", known->folder,
                   once_errno_text(errno));
    return false;
}

static bool write_by(const once_pipeline *pipeline, const once_known *known, const once_known_by *by, const char *id,
                     const char *mark)
{
    assert(known->folder[0]);
    char path[PATH_MAX];
    once_buf text;
    once__known_path(known, by, path);
    once_buf_init(&text, 8000);
    once_buf_printf(
        &text,
        "# The store that this pipeline uses. 'once run' refuses another one unless '--new-store' is given.\n"
        "store %s%s\n"
        "url ",
        id, mark);
    once__store_show(pipeline->store_url, &text);
    once_buf_printf(&text, "\nconsumer %.*s\nfile %.*s\n", once__shown_len(pipeline->spec->consumer),
                    pipeline->spec->consumer.data, once__shown_len(pipeline->spec->file), pipeline->spec->file.data);
    errno = ENOMEM;
    const bool kept = !text.failed && make_folders(path) && write_whole(known->folder, path, &text);
    once_buf_release(&text);
    return kept;
}

bool once__known_keep(const once_pipeline *pipeline, const once_known *known, const once_backend *store, char *why,
                      size_t size)
{
    assert(once__store_lasts(store));
    char id[ONCE_STORE_ID];
    once__store_id(store, id);
    if (known->pinned[0]) return true;
    if (!known->folder[0]) return once__known_no_folder(why, size);
    for (size_t i = 0; i < ONCE_KNOWN_WAYS; i++) {
        const once_known_by *by = &known->by[i];
        const bool there = by->damaged || by->id[0];
        if (!by->name[0] || (i == ONCE_KNOWN_BY_LINK && !there)) continue;
        if (!by->accepts_any && strcmp(by->id, id) == 0) continue;
        if (!write_by(pipeline, known, by, id, "")) return say_why(known, why, size);
    }
    return true;
}

bool once__known_try(const once_known *known, char *why, size_t size)
{
    char path[PATH_MAX], beside[PATH_MAX];
    if (known->pinned[0]) return true;
    if (!known->folder[0]) return once__known_no_folder(why, size);
    once__known_path(known, &known->by[0], path);
    const int fd = make_folders(path) ? make_beside(known->folder, path, beside) : -1;
    if (fd < 0) return say_why(known, why, size);
    close(fd);
    unlink(beside);
    return true;
}

bool once__known_keep_any(const once_pipeline *pipeline, const once_known *known, char *why, size_t size)
{
    assert(known->folder[0] && !known->pinned[0]);
    for (size_t i = 0; i < ONCE_KNOWN_WAYS; i++) {
        const once_known_by *by = &known->by[i];
        const bool whole = by->id[0] && !by->damaged;
        if (!by->id[0] && !by->damaged) continue;
        if (!write_by(pipeline, known, by, whole ? by->id : "0000000000000000", ANOTHER))
            return say_why(known, why, size);
    }
    return true;
}
