/* Structs with a size, from and to callers that may have an older header (base/usage.h). */
#include "base/usage.h"

#include <assert.h>
#include <string.h>

#include "base/banned.h"

static int check_size(const char *name, size_t size, size_t full, once_error *err)
{
    if (size >= sizeof size && size <= full) return ONCE_OK;
    return once_fail(err, ONCE_E_USAGE,
                     "%s has a size of %zu; set it to sizeof(%s), and use headers that are not newer than the library",
                     name, size, name);
}

int once_sized_read(const char *name, const void *from, void *to, size_t full, once_error *err)
{
    assert(name && to && full >= sizeof(size_t));
    size_t size = full;
    if (from) memcpy(&size, from, sizeof size);
    const int rc = check_size(name, size, full, err);
    if (rc != ONCE_OK) return rc;
    memset(to, 0, full);
    if (from) memcpy(to, from, size);
    memcpy(to, &full, sizeof full);
    return ONCE_OK;
}

int once_sized_write(const char *name, const void *from, void *to, size_t full, once_error *err)
{
    assert(name && from && to && full >= sizeof(size_t));
    size_t size;
    memcpy(&size, to, sizeof size);
    const int rc = check_size(name, size, full, err);
    if (rc != ONCE_OK) return rc;
    memcpy(to, from, size);
    memcpy(to, &size, sizeof size);
    return ONCE_OK;
}
