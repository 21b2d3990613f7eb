/* Values of our own statements in binary form: single parameters, and columns of a batch as arrays. */
#include <assert.h>
#include <endian.h>
#include <string.h>

#include "db/postgres/postgres.h"

#include "base/banned.h"

enum { ARRAY_HEAD = 20 };

static void put_be32(once_buf *buf, uint32_t value)
{
    const uint32_t wire = htobe32(value);
    once_buf_append(buf, &wire, 4);
}

void once__pg_array_init(once_pg_array *array)
{
    *array = (once_pg_array){0};
    once_buf_init(&array->buf, (size_t)1 << 30);
}

void once__pg_array_release(once_pg_array *array) { once_buf_release(&array->buf); }

void once__pg_array_begin(once_pg_array *array, uint32_t type)
{
    if (array->buf.capacity > (size_t)8 << 20) once_buf_release(&array->buf);
    once_buf_clear(&array->buf);
    array->n = 0;
    array->has_null = false;
    put_be32(&array->buf, 1); /* dimensions */
    put_be32(&array->buf, 0); /* has NULLs */
    put_be32(&array->buf, type);
    put_be32(&array->buf, 0); /* length */
    put_be32(&array->buf, 1); /* lower bound */
}

static void put_value(once_pg_array *array, const void *data, size_t len)
{
    assert(array->buf.failed || array->buf.len >= ARRAY_HEAD); /* behind once__pg_array_begin */
    put_be32(&array->buf, (uint32_t)len);
    once_buf_append(&array->buf, data, len);
    array->n++;
}

void once__pg_put_int8(once_pg_array *array, int64_t value)
{
    const uint64_t wire = htobe64((uint64_t)value);
    put_value(array, &wire, 8);
}

void once__pg_put_int4(once_pg_array *array, int32_t value)
{
    const uint32_t wire = htobe32((uint32_t)value);
    put_value(array, &wire, 4);
}

void once__pg_put_int2(once_pg_array *array, int16_t value)
{
    const uint16_t wire = htobe16((uint16_t)value);
    put_value(array, &wire, 2);
}

void once__pg_put_bool(once_pg_array *array, bool value) { put_value(array, value ? "\1" : "\0", 1); }

static void id_bytes(once_hash id, unsigned char out[16])
{
    const uint64_t words[2] = {htobe64(id.a), htobe64(id.b)};
    memcpy(out, words, 16);
}

void once__pg_put_id(once_pg_array *array, once_hash id)
{
    unsigned char bytes[16];
    id_bytes(id, bytes);
    put_value(array, bytes, 16);
}

void once__pg_put_tid(once_pg_array *array, const unsigned char tid[PG_TID_SIZE])
{
    put_value(array, tid, PG_TID_SIZE);
}

void once__pg_put_bytes(once_pg_array *array, once_bytes bytes)
{
    put_value(array, bytes.len ? bytes.data : "", bytes.len);
}

void once__pg_put_null(once_pg_array *array)
{
    assert(array->buf.failed || array->buf.len >= ARRAY_HEAD);
    put_be32(&array->buf, UINT32_MAX);
    array->n++;
    array->has_null = true;
}

static int param(once_pg_params *params, const void *value, size_t len)
{
    assert(params->n < PG_PARAMS_MAX && len <= INT32_MAX);
    params->values[params->n] = value;
    params->lengths[params->n] = (int)len;
    return params->n++;
}

void once__pg_param_int8(once_pg_params *params, int64_t value)
{
    assert(params->n < PG_PARAMS_MAX);
    unsigned char *room = params->numbers[params->n];
    const uint64_t wire = htobe64((uint64_t)value);
    memcpy(room, &wire, 8);
    param(params, room, 8);
}

void once__pg_param_id(once_pg_params *params, once_hash id)
{
    assert(params->n < PG_PARAMS_MAX);
    unsigned char *room = params->numbers[params->n];
    id_bytes(id, room);
    param(params, room, 16);
}

void once__pg_param_bytes(once_pg_params *params, once_bytes bytes)
{
    param(params, bytes.len ? bytes.data : "", bytes.len);
}

void once__pg_param_null(once_pg_params *params) { param(params, NULL, 0); }

void once__pg_param_array(once_pg_params *params, once_pg_array *array)
{
    if (array->buf.failed || array->buf.len < ARRAY_HEAD) {
        params->failed = true;
        param(params, NULL, 0);
        return;
    }
    const uint32_t has_null = htobe32(array->has_null), n = htobe32(array->n);
    memcpy(array->buf.data + 4, &has_null, 4);
    memcpy(array->buf.data + 12, &n, 4);
    param(params, array->buf.data, array->buf.len);
}
