#include "base/usage.h"

#include <string.h>

#include "base/banned.h"

int once_sized_read(const char *name, const void *from, void *to, size_t full, once_error *err)
{
    size_t size = full;
    if (from) memcpy(&size, from, sizeof size);
    if (size < sizeof size || size > full)
        return once_fail(
            err, ONCE_E_USAGE,
            "%s has a size of %zu; set it to sizeof(%s), and use headers that are not newer than the library", name,
            size, name);
    memset(to, 0, full);
    if (from) memcpy(to, from, size);
    memcpy(to, &full, sizeof full);
    return ONCE_OK;
}
