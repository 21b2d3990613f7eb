#include "store/sqlite_sum.h"

#include <string.h>

#include "base/banned.h"

bool once__seal(once_buf *out, char table, uint64_t id, uint64_t more, once_bytes bytes)
{
    const uint64_t sum = once__sum(table, id, more, bytes);
    return (!bytes.len || once_buf_append(out, bytes.data, bytes.len)) && once_buf_append(out, &sum, ONCE_SEAL);
}

bool once__unseal(char table, uint64_t id, uint64_t more, once_bytes *bytes)
{
    uint64_t sum;
    if (bytes->len < ONCE_SEAL) return false;
    bytes->len -= ONCE_SEAL;
    memcpy(&sum, bytes->data + bytes->len, ONCE_SEAL);
    return sum == once__sum(table, id, more, *bytes);
}
