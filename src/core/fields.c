/* Prints of fields: made, sorted, written and read (core/fields.h). */
#include "core/fields.h"

#include <assert.h>

#include "base/banned.h"

/* Insertion sort: there are at most ONCE_FIELDS_MAX. */
static void sort(once_fields *fields)
{
    for (size_t i = 1; i < fields->n; i++) {
        const uint16_t print = fields->prints[i];
        size_t at = i;
        for (; at > 0 && fields->prints[at - 1] > print; at--) fields->prints[at] = fields->prints[at - 1];
        fields->prints[at] = print;
    }
}

static void keep(once_fields *fields, size_t n)
{
    if (n > ONCE_FIELDS_MAX) *fields = (once_fields){0};
    else fields->n = (uint16_t)n;
    sort(fields);
}

once_hash once_fields_of_body(once_json *json, uint64_t seed, once_fields *out)
{
    *out = (once_fields){0};
    once_json_prints prints = {.at = out->prints, .capacity = ONCE_FIELDS_MAX};
    const once_hash hash = once_json_fingerprint_fields(json, once_json_root(json), seed, &prints);
    keep(out, prints.n);
    return hash;
}

int once_fields_of_paths(once_json *json, once_texts *texts, const once_path *paths, size_t count, uint64_t seed,
                         once_fields *out, once_hash *hash, once_error *err)
{
    *out = (once_fields){0};
    once_json_chosen chosen = {.seed = seed, .prints = {.at = out->prints, .capacity = ONCE_FIELDS_MAX}};
    for (size_t i = 0; i < count; i++) {
        once_path_value found;
        const int rc = once_path_find(&paths[i], json, texts, &found, err);
        if (rc != ONCE_OK) return rc;
        once_json_choose(&chosen, paths[i].text, found.json, found.value);
    }
    keep(out, chosen.prints.n);
    *hash = once_json_chosen_fingerprint(&chosen);
    return ONCE_OK;
}

size_t once_fields_write(const once_fields *fields, unsigned char out[ONCE_FIELDS_BYTES])
{
    assert(fields->n <= ONCE_FIELDS_MAX);
    for (size_t i = 0; i < fields->n; i++) {
        assert(i == 0 || fields->prints[i - 1] <= fields->prints[i]); /* once_fields_read refuses anything else */
        out[2 * i] = (unsigned char)(fields->prints[i] >> 8);
        out[2 * i + 1] = (unsigned char)fields->prints[i];
    }
    return 2 * (size_t)fields->n;
}

bool once_fields_read(once_bytes bytes, once_fields *out)
{
    *out = (once_fields){0};
    if (bytes.len % 2 || bytes.len > ONCE_FIELDS_BYTES) return false;
    const unsigned char *in = (const unsigned char *)bytes.data;
    for (size_t i = 0; i < bytes.len / 2; i++) {
        out->prints[i] = (uint16_t)(in[2 * i] << 8 | in[2 * i + 1]);
        if (i && out->prints[i] < out->prints[i - 1]) return false;
    }
    out->n = (uint16_t)(bytes.len / 2);
    return true;
}

bool once_fields_take(once_fields *fields, uint16_t print)
{
    for (size_t i = 0; i < fields->n; i++) {
        if (fields->prints[i] != print) continue;
        fields->n--;
        for (; i < fields->n; i++) fields->prints[i] = fields->prints[i + 1];
        return true;
    }
    return false;
}
