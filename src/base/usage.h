/* Whether a public function is called as its header says. A bad call gets ONCE_E_USAGE, never an abort. */
#ifndef ONCE_BASE_USAGE_H
#define ONCE_BASE_USAGE_H

#include "once/types.h"

/* A length without an address, or one that nothing in memory can have. */
static inline bool once_bytes_lie(once_bytes bytes)
{
    return bytes.len > 0 && (!bytes.data || bytes.len >= SIZE_MAX >> 1);
}

/* A struct that begins with its size, of a caller that may have been built with an older header, as one of today.
 * `from` may be NULL: none of its fields is set. `to` has `full` bytes. */
int once_sized_read(const char *name, const void *from, void *to, size_t full, once_error *err);
/* The other way: `full` bytes into a struct of such a caller, as much as it knows of. */
int once_sized_write(const char *name, const void *from, void *to, size_t full, once_error *err);

#endif
