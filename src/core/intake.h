/* Intake: makes of a message as it came an item with key, lane, fingerprint and the input of its effect. It uses no
 * store and no clock.
 *
 * A bad message stops nothing: item->reason says what is wrong, and the pipeline makes a dead letter of it. Only lack
 * of memory is an error.
 *
 * Thread rule: an intake belongs to one thread at a time. */
#ifndef ONCE_CORE_INTAKE_H
#define ONCE_CORE_INTAKE_H

#include "core/item.h"

/* Makes the input of an effect from a message, in the arena. ONCE_E_MESSAGE with the reason in `err` if the message
 * lacks something. */
typedef int once_prepare(const once_handler_spec *handler, const once_parsed *from, once_arena *arena, void **input,
                         once_error *err);

typedef struct once_intake {
    const once_spec *spec;
    once_secret secret; /* of the store */
    uint64_t run;
    once_prepare *prepare;
    bool prints_late;        /* fingerprints may be left to who needs them (once_request.late) */
    once_json body, headers; /* reused for every message */
    once_texts texts;
    once_json *document; /* the body of the current message, parsed; NULL: it is bytes, or there is none */
    once_error why;      /* what is wrong with the current message; here because zeroing one for each message costs */
} once_intake;

void once_intake_init(once_intake *intake, const once_spec *spec, once_secret secret, uint64_t run,
                      once_prepare *prepare);
void once_intake_release(once_intake *intake);

/* For an item from a source, with item->message set. Fills handler, scope, request (except the token), and input or
 * reason. */
int once_intake_fetched(once_intake *intake, once_item *item, once_error *err);
/* The lane that a message names, and its id; zero: it names none, or cannot be read. */
int once_intake_lane(once_intake *intake, once_batch *batch, const once_message *message, const once_scope *scope,
                     once_bytes *value, once_hash *id, once_error *err);
/* Whether the reason of a dead letter says that no handler takes its type. A letter keeps nothing but the words. */
bool once_reason_is_no_handler(once_bytes reason);
/* All items of a batch that came from a source; sets batch->taken_in. */
int once_intake_batch(once_intake *intake, once_batch *batch, once_error *err);
/* For an entry that was taken from the store. Key, lane and fingerprint stay as the store has them. */
int once_intake_taken(once_intake *intake, once_item *item, once_error *err);

#endif
