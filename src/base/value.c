/* Reads values from the environment and from files (base/value.h). */
#include "base/value.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/beside.h"
#include "base/errno_text.h"
#include "base/no_memory.h"

#include "base/banned.h"

typedef struct reading {
    once_bytes file;
    const once_env *env;
    once_arena *arena;
} reading;

#define AT(r, line) (int)(r)->file.len, (r)->file.data, (line)

/* Only regular files: others may never end, or never begin. NULL, or why it cannot be read. */
static const char *read_whole(const once_env *world, int fd, char *to, size_t max, size_t *len)
{
    struct stat about;
    ssize_t got;
    *len = 0;
    if (fstat(fd, &about) != 0) return once_errno_text(errno);
    if (!S_ISREG(about.st_mode)) return S_ISDIR(about.st_mode) ? "it is a directory" : "it is not a regular file";
    do {
        got = world->read(world->self, fd, to + *len, max - *len);
        if (got > 0) *len += (size_t)got;
    } while (*len < max && (got > 0 || (got < 0 && errno == EINTR)));
    if (got < 0) return once_errno_text(errno);
    return *len == max ? "it has 128 KiB or more" : NULL;
}

const char *once_file_read(const once_env *env, const char *path, once_arena *arena, once_bytes *out)
{
    assert(env && path && arena && out);
    size_t len = 0;
    char *text = once_arena_alloc(arena, ONCE_VALUE_MAX);
    if (!text) {
        errno = ENOMEM;
        return "out of memory";
    }
    /* Without O_NONBLOCK, opening a FIFO would wait for its other end. */
    const int fd = env->open(env->self, path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0);
    if (fd < 0) return once_errno_text(errno);
    const char *why = read_whole(env, fd, text, ONCE_VALUE_MAX, &len);
    once_close_beside(env, fd);
    errno = 0;
    if (why) return why;
    if (len && text[len - 1] == '\n') {
        len--;
        if (len && text[len - 1] == '\r') len--;
    }
    text[len] = '\0';
    *out = (once_bytes){text, len};
    return NULL;
}

static int read_secret(const reading *r, const once_written *v, const char *path, once_bytes *out, once_error *err)
{
    const char *why = once_file_read(r->env, path, r->arena, out);
    if (!why) return ONCE_OK;
    if (errno == ENOMEM) return once_no_memory(err, "for a value");
    return once_fail(err, ONCE_E_CONFIG, "%.*s:%d: cannot read file '%s' for '%.*s': %s", AT(r, v->line), path,
                     (int)v->name.len, v->name.data, why);
}

static int read_value(const reading *r, const once_written *v, once_bytes *out, once_error *err)
{
    once_bytes text;
    if (!once_arena_copy(r->arena, v->value, &text)) return once_no_memory(err, "for a value");
    if (text.len >= 5 && memcmp(text.data, "file:", 5) == 0) return read_secret(r, v, text.data + 5, out, err);
    *out = text;
    if (text.len < 4 || memcmp(text.data, "env:", 4) != 0) return ONCE_OK;
    const char *found = getenv(text.data + 4);
    if (!found)
        return once_fail(err, ONCE_E_CONFIG, "%.*s:%d: variable '%s' is not set; '%.*s' is read from it",
                         AT(r, v->line), text.data + 4, (int)v->name.len, v->name.data);
    *out = (once_bytes){found, strlen(found)};
    return ONCE_OK;
}

int once_value_read(once_bytes file, const once_env *env, const once_written *written, once_arena *arena,
                    once_bytes *out, once_error *err)
{
    assert(env && written && arena && out);
    return read_value(&(reading){file, env, arena}, written, out, err);
}

bool once_is_reference(once_bytes value)
{
    return (value.len >= 4 && memcmp(value.data, "env:", 4) == 0) ||
           (value.len >= 5 && memcmp(value.data, "file:", 5) == 0);
}
