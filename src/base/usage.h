/* Checks of the arguments of public functions. A bad call returns ONCE_E_USAGE; it never aborts. Thread rule: any
 * thread. */
#ifndef ONCE_BASE_USAGE_H
#define ONCE_BASE_USAGE_H

#include "once/types.h"

/* A length without an address, or a length that nothing in memory can have. */
static inline bool once_bytes_lie(once_bytes bytes)
{
    return bytes.len > 0 && (!bytes.data || bytes.len >= SIZE_MAX >> 1);
}

/* Reads a struct that begins with its size, from a caller that may have been built with an older header: fields that it
 * does not have are zero. `from` may be NULL: all fields are zero. `to` has `full` bytes. */
int once_sized_read(const char *name, const void *from, void *to, size_t full, once_error *err);
/* The other way: writes as much of a struct with `full` bytes as the struct of such a caller has. */
int once_sized_write(const char *name, const void *from, void *to, size_t full, once_error *err);

#endif
