/* Open addressing, at most half full. A slot that was never written reads as zeros, which means empty. */
#include "runtime/replay_preview.h"

#include "base/errno_text.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/banned.h"

static int cannot(const char *what, once_error *err)
{
    return once_fail(err, ONCE_E_IO, "cannot %s the temporary file of a dry run: %s", what, once_errno_text(errno));
}

int once__preview_open(once_preview_table *table, uint64_t most, once_error *err)
{
    const char *asked = getenv("TMPDIR"), *folder = asked && *asked ? asked : "/var/tmp";
    char path[PATH_MAX];
    uint64_t size = 1024;
    while (size / 2 < most) size *= 2;
    assert((size & (size - 1)) == 0 && size / 2 >= most);
    snprintf(path, sizeof path, "%s/once-XXXXXX", folder);
    const int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0)
        return once_fail(err, ONCE_E_IO, "cannot create a temporary file in '%s': %s; set TMPDIR", folder,
                         once_errno_text(errno));
    unlink(path);
    *table = (once_preview_table){.fd = fd, .size = size};
    if (ftruncate(fd, (off_t)(size * sizeof(once_preview))) == 0) return ONCE_OK;
    const int rc = cannot("size", err);
    once__preview_close(table);
    return rc;
}

void once__preview_close(once_preview_table *table)
{
    if (table->size) close(table->fd);
    *table = (once_preview_table){0};
}

/* Finds the slot of this id, or the empty slot where it belongs. */
static int find_slot(const once_preview_table *table, uint64_t id, uint64_t *slot, once_preview *out, once_error *err)
{
    assert(id != 0 && table->size > 0 && table->n <= table->size / 2); /* so that there is a free slot */
    for (*slot = id & (table->size - 1);; *slot = (*slot + 1) & (table->size - 1)) {
        const ssize_t got = pread(table->fd, out, sizeof *out, (off_t)(*slot * sizeof *out));
        if (got != sizeof *out) return cannot("read", err);
        if (out->id == 0 || out->id == id) return ONCE_OK;
    }
}

int once__preview_find(const once_preview_table *table, uint64_t id, once_preview *out, once_error *err)
{
    uint64_t slot;
    return find_slot(table, id, &slot, out, err);
}

int once__preview_put(once_preview_table *table, const once_preview *what, once_error *err)
{
    uint64_t slot;
    once_preview old;
    const int rc = find_slot(table, what->id, &slot, &old, err);
    if (rc != ONCE_OK) return rc;
    table->n += old.id == 0;
    assert(table->n <= table->size / 2);
    if (pwrite(table->fd, what, sizeof *what, (off_t)(slot * sizeof *what)) != sizeof *what)
        return cannot("write", err);
    return ONCE_OK;
}
