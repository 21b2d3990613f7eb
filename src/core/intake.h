/* From a message as it came to an item with key, lane, fingerprint and the input of its effect. Pure: no store, no
 * clock.
 *
 * What is wrong with a message never stops anything: it ends in item->reason, and the pipeline makes a dead letter of
 * it. */
#ifndef ONCE_CORE_INTAKE_H
#define ONCE_CORE_INTAKE_H

#include "core/item.h"

/* Makes the input of an effect out of a parsed body, in the arena. ONCE_E_MESSAGE with the reason in `err` when the
 * body lacks something. */
typedef int once_prepare(const once_handler_spec *handler, const once_json *body, const once_message *message,
                         once_arena *arena, void **input, once_error *err);

typedef struct once_intake {
    const once_spec *spec;
    once_secret secret; /* of the store */
    uint64_t run;
    once_prepare *prepare;
    once_json body, headers; /* reused for every message */
} once_intake;

void once_intake_init(once_intake *intake, const once_spec *spec, once_secret secret, uint64_t run,
                      once_prepare *prepare);
void once_intake_release(once_intake *intake);

/* item->message is set; fills handler, scope, request (but for the token), input or reason. Only lack of memory fails.
 */
int once_intake_fetched(once_intake *intake, once_item *item, once_error *err);
/* The lane that a message names, and its id; zero: it names none, or is not one that could. */
int once_intake_lane(once_intake *intake, once_batch *batch, const once_message *message, const once_scope *scope,
                     once_bytes *value, once_hash *id, once_error *err);
/* Of a letter, which keeps no more than the words: what is wrong is that nobody handles its type. */
bool once_reason_is_no_handler(once_bytes reason);
/* All items of a batch that came from a source; sets batch->taken_in. */
int once_intake_batch(once_intake *intake, once_batch *batch, once_error *err);
/* The same for an entry that was taken: key, lane and fingerprint are what the store says. */
int once_intake_taken(once_intake *intake, once_item *item, once_error *err);

#endif
