#include "runtime/known.h"

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

/* By the file without links, so that it is one however it is reached, and the consumer, so that a renamed one is not taken for it. */
static once_hash name_of(const once_pipeline *pipeline)
{
    once_buf text;
    const once_bytes file = pipeline->spec->file, consumer = pipeline->spec->consumer;
    once_buf_init(&text, 2 * PATH_MAX);
    once_buf_append(&text, file.data, file.len);
    once_buf_append(&text, "", 1);
    char *real = text.failed ? NULL : realpath(text.data, NULL);
    once_buf_clear(&text);
    once_buf_append(&text, real ? real : file.data, real ? strlen(real) : file.len);
    once_buf_append(&text, "", 1);
    once_buf_append(&text, consumer.data, consumer.len);
    const once_hash hash = once_xxh128(0, text.data, text.len);
    free(real);
    once_buf_release(&text);
    return hash;
}

static void find_path(const once_pipeline *pipeline, char *out, size_t size)
{
    char where[PATH_MAX], consumer[41];
    const once_bytes name = pipeline->spec->consumer;
    size_t n = 0;
    out[0] = 0;
    if (!folder(where, sizeof where)) return;
    for (size_t i = 0; i < name.len && n + 1 < sizeof consumer; i++) {
        const unsigned char c = (unsigned char)name.data[i];
        consumer[n++] = (char)((c < 128 && isalnum(c)) || c == '-' || c == '_' ? c : '_');
    }
    consumer[n] = 0;
    (void)snprintf(out, size, "%s/%s-%016llx.store", where, consumer, (unsigned long long)name_of(pipeline).a);
}

/* --- reading --- */

static bool is_id(const char *text)
{
    return strspn(text, "0123456789abcdef") == ONCE_STORE_ID - 1;
}

static int show(once_bytes text) { return text.len < 120 ? (int)text.len : 120; }

int once__known_read(const once_pipeline *pipeline, once_known *out, once_error *err)
{
    const once_bytes said = pipeline->spec->store_id;
    char text[2000];
    *out = (once_known){0};
    find_path(pipeline, out->path, sizeof out->path);
    if (said.len) { /* its form was checked when the file was read */
        out->said = true;
        memcpy(out->id, said.data, ONCE_STORE_ID - 1);
        return ONCE_OK;
    }
    const int fd = out->path[0] ? open(out->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
    if (fd < 0) {
        if (!out->path[0] || errno == ENOENT || errno == ENOTDIR) return ONCE_OK;
        return once_fail(err, ONCE_E_IO, "file '%s': cannot be read: %s; it says which store this pipeline has met", out->path, once_errno_text(errno));
    }
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    const char *at = strncmp(text, "store ", 6) == 0 ? text : strstr(text, "\nstore ");
    if (at) at += *at == '\n' ? 7 : 6;
    if (!at || !is_id(at))
        return once_fail(err, ONCE_E_CORRUPT, "file '%s': does not say which store this pipeline has met; put 'store_id' into '%.*s', or remove that file",
                         out->path, show(pipeline->spec->file), pipeline->spec->file.data);
    memcpy(out->id, at, ONCE_STORE_ID - 1);
    return ONCE_OK;
}

/* --- comparing --- */

static int refuse(const once_pipeline *pipeline, const once_known *known, const char *what, once_error *err)
{
    const once_spec *spec = pipeline->spec;
    return once_fail(err, ONCE_E_OTHER_STORE, "%.*s:%d: %s; %s %s: every message would be new there and take effect again; %s",
                     show(spec->file), spec->file.data, spec->store_line, what, known->said ? "'store_id' says" : "this pipeline has worked with store", known->id,
                     known->said ? "bring that store back, or take 'store_id' out" : "bring that store back, or say 'once run --new-store'");
}

int once__known_missing(const once_pipeline *pipeline, const once_known *known, once_error *err)
{
    return refuse(pipeline, known, "there is no store here: it was lost, emptied or moved", err);
}

int once__known_compare(const once_pipeline *pipeline, const once_known *known, const once_store *store, once_error *err)
{
    char id[ONCE_STORE_ID], what[100];
    once__store_id(store, id);
    if (!known->id[0] || strcmp(id, known->id) == 0) return ONCE_OK;
    (void)snprintf(what, sizeof what, "this is another store, %s", id);
    return refuse(pipeline, known, what, err);
}

/* --- keeping --- */

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

static bool write_whole(const char *path, const once_buf *text)
{
    char beside[4300];
    (void)snprintf(beside, sizeof beside, "%s.%ld", path, (long)getpid());
    const int fd = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return false;
    const bool written = write(fd, text->data, text->len) == (ssize_t)text->len && fsync(fd) == 0;
    const bool closed = close(fd) == 0;
    if (written && closed && rename(beside, path) == 0) return true;
    const int no = errno;
    unlink(beside);
    errno = no;
    return false;
}

bool once__known_keep(const once_pipeline *pipeline, const once_known *known, const once_store *store, char *why, size_t size)
{
    char id[ONCE_STORE_ID], path[sizeof known->path];
    once_buf text;
    once__store_id(store, id);
    if (known->said || strcmp(id, known->id) == 0) return true;
    if (!known->path[0]) {
        (void)snprintf(why, size, "there is no folder to remember the store in ($STATE_DIRECTORY, $XDG_STATE_HOME or $HOME)");
        return false;
    }
    memcpy(path, known->path, sizeof path);
    once_buf_init(&text, 8000);
    once_buf_printf(&text, "# The store that this pipeline has met. 'once run' refuses another one, until '--new-store'.\nstore %s\nurl ", id);
    once__store_show(pipeline->store_url, &text);
    once_buf_printf(&text, "\nconsumer %.*s\nfile %.*s\n", show(pipeline->spec->consumer), pipeline->spec->consumer.data, show(pipeline->spec->file),
                    pipeline->spec->file.data);
    const bool kept = !text.failed && make_folders(path) && write_whole(path, &text);
    if (!kept) (void)snprintf(why, size, "file '%.300s': %s", path, once_errno_text(errno));
    once_buf_release(&text);
    return kept;
}
