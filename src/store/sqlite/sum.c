#include "store/sqlite/sum.h"

#include <string.h>

#include "base/banned.h"

/* The type is a part of the sum: NULL differs from an empty blob, and 1 from '1'. */
static uint64_t add_value(uint64_t sum, sqlite3_value *value)
{
    const int type = sqlite3_value_type(value);
    const uint64_t seed = sum + (uint64_t)type;
    if (type == SQLITE_NULL) return once_xxh128(seed, NULL, 0).a;
    if (type == SQLITE_INTEGER) {
        const int64_t integer = sqlite3_value_int64(value);
        return once_xxh128(seed, &integer, sizeof integer).a;
    }
    const void *bytes = type == SQLITE_TEXT ? (const void *)sqlite3_value_text(value)
                                            : sqlite3_value_blob(value); /* the same in any encoding */
    return once_xxh128(seed, bytes, (size_t)sqlite3_value_bytes(value)).a;
}

static void sum_function(sqlite3_context *context, int n, sqlite3_value **values)
{
    uint64_t sum = (uint64_t)n;
    for (int i = 0; i < n; i++) sum = add_value(sum, values[i]);
    sqlite3_result_int64(context, (int64_t)sum);
}

int once__sum_register(sqlite3 *handle)
{
    return sqlite3_create_function_v2(handle, "once_sum", -1, SQLITE_UTF8 | SQLITE_DETERMINISTIC, NULL, sum_function,
                                      NULL, NULL, NULL);
}

void once__sum_unregister(sqlite3 *handle)
{
    sqlite3_create_function_v2(handle, "once_sum", -1, SQLITE_UTF8, NULL, NULL, NULL, NULL, NULL);
}

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
