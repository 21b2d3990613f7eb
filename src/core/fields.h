/* What an entry keeps of the fields that its fingerprint covers, so that a conflict letter can name those that differ
 * when the body of the first message is gone: two bytes (a print) of the keyed hash of each field's name and value.
 * Equal prints mean equal fields, except by chance (1 in 65,536). Then a letter names one field less; the fingerprint
 * alone decides whether there is a conflict.
 *
 * Stored as: two bytes for each field, big-endian, in ascending order; at most ONCE_FIELDS_MAX fields.
 *
 * Thread rule: the functions share no state. */
#ifndef ONCE_CORE_FIELDS_H
#define ONCE_CORE_FIELDS_H

#include "core/entry.h"
#include "core/path.h"

enum { ONCE_FIELDS_BYTES = 2 * ONCE_FIELDS_MAX };

/* The fingerprint of a document, or of the values at some paths (`count` may be 0), and the prints of its fields. If
 * there are more than ONCE_FIELDS_MAX, no prints are kept. Paths: ONCE_OK, ONCE_E_MESSAGE or ONCE_E_NOMEM, as
 * once_path_find. */
once_hash once_fields_of_body(once_json *json, uint64_t seed, once_fields *out);
int once_fields_of_paths(once_json *json, once_texts *texts, const once_path *paths, size_t count, uint64_t seed,
                         once_fields *out, once_hash *hash, once_error *err);

/* Writes them as stores keep them; returns the number of bytes. */
size_t once_fields_write(const once_fields *fields, unsigned char out[ONCE_FIELDS_BYTES]);
/* False: the bytes are not what once_fields_write writes. */
bool once_fields_read(once_bytes bytes, once_fields *out);

/* Removes one print; false: it is not there. */
bool once_fields_take(once_fields *fields, uint16_t print);

#endif
