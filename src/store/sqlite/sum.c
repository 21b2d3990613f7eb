#include "store/sqlite/sum.h"

#include <string.h>

#include "base/banned.h"

/* The type is a part of the sum: NULL differs from an empty blob, and 1 from '1'. */
static uint64_t add_value(uint64_t sum, const once_sql_value *value)
{
    const uint64_t seed = sum + (uint64_t)value->type;
    if (value->type == SQLITE_NULL) return once_xxh128(seed, NULL, 0).a;
    if (value->type == SQLITE_INTEGER) return once_xxh128(seed, &value->integer, sizeof value->integer).a;
    return once_xxh128(seed, value->bytes.data, value->bytes.len).a;
}

static once_sql_value read_value(sqlite3_value *from)
{
    once_sql_value value = {.type = sqlite3_value_type(from)};
    if (value.type == SQLITE_NULL) return value;
    if (value.type == SQLITE_INTEGER) {
        value.integer = sqlite3_value_int64(from);
        return value;
    }
    const void *bytes = value.type == SQLITE_TEXT ? (const void *)sqlite3_value_text(from)
                                                  : sqlite3_value_blob(from); /* the same in any encoding */
    value.bytes = (once_bytes){bytes, (size_t)sqlite3_value_bytes(from)};
    return value;
}

static void sum_function(sqlite3_context *context, int n, sqlite3_value **values)
{
    uint64_t sum = (uint64_t)n;
    for (int i = 0; i < n; i++) {
        const once_sql_value value = read_value(values[i]);
        sum = add_value(sum, &value);
    }
    sqlite3_result_int64(context, (int64_t)sum);
}

int64_t once__sum_of_row(char table, const once_sql_value *values, size_t n)
{
    uint64_t sum = add_value((uint64_t)n + 1, &(once_sql_value){.type = SQLITE_TEXT, .bytes = {&table, 1}});
    for (size_t i = 0; i < n; i++) sum = add_value(sum, &values[i]);
    return (int64_t)sum;
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
