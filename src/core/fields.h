/* What an entry keeps of the fields that its fingerprint covers, so that a conflict can name those that differ when the
 * body of the first message is gone: two bytes of the keyed hash of each (name and value). Equal ones are equal fields,
 * except by chance (1 in 65,536), and that only makes a letter say less; whether there is a conflict is the
 * fingerprint's to say. */
#ifndef ONCE_CORE_FIELDS_H
#define ONCE_CORE_FIELDS_H

#include "base/json.h"
#include "core/entry.h"

enum { ONCE_FIELDS_BYTES = 2 * ONCE_FIELDS_MAX };

/* Of a document, or of the values at some pointers; `count` may be 0. More fields than are kept: none are. */
once_hash once_fields_of_body(once_json *json, uint64_t seed, once_fields *out);
once_hash once_fields_of_pointers(once_json *json, const once_pointer *pointers, size_t count, uint64_t seed,
                                  once_fields *out);

/* As stores keep them: two bytes each, in ascending order. */
size_t once_fields_write(const once_fields *fields, unsigned char out[ONCE_FIELDS_BYTES]);
/* False: nothing that was written by that. */
bool once_fields_read(once_bytes bytes, once_fields *out);

/* Takes one print out, if it is there. */
bool once_fields_take(once_fields *fields, uint16_t print);

#endif
