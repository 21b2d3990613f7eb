/* Events: the attributes of a message of a known form (id, source, type, time...), for ${event:NAME}.
 *
 *   CloudEvents   in the body or in headers (event_cloudevents.c); any name
 *   SNS           of the envelope around the message (event_sns.c)
 *   EventBridge   members of the body (event_eventbridge.c)
 *
 * Thread rule: the functions share no state. */
#ifndef ONCE_CORE_EVENT_H
#define ONCE_CORE_EVENT_H

#include "core/parsed.h"

#define ONCE_EVENT_NAME_MAX 40 /* bytes of the name of an attribute */

/* The member of the headers that has the attributes of an event whose envelope is gone, an object. It is kept with the
 * message, as ONCE_SOURCE_MEMBER is. */
#define ONCE_EVENT_MEMBER "once:event"

/* The names of the attributes, ends with NULL. NULL: there may be any. */
const char *const *once_event_names(once_event_form form);

/* The attribute of the event; ABSENT: it has none, or the message is no event. */
once_json_value once_event_attribute(const once_parsed *from, once_bytes name);

/* ONCE_OK, or ONCE_E_MESSAGE with the reason: it is no event, or lacks an attribute that every event has. */
int once_event_check(const once_parsed *from, once_error *err);

/* Takes the message out of its envelope, if it came in one: body and headers become those of the event, and the headers
 * get ONCE_EVENT_MEMBER. `from` has the body as it came, parsed. *opened says whether it was an envelope; otherwise the
 * message is untouched. What is new lives in the arena. ONCE_OK, ONCE_E_MESSAGE with the reason in `err`: it is an
 * envelope without an event; or ONCE_E_NOMEM. */
int once_event_open(const once_parsed *from, once_arena *arena, once_message *message, bool *opened, once_error *err);

/* Whether messages of this form come in envelopes. */
static inline bool once_event_is_wrapped(once_event_form form) { return form == ONCE_EVENT_SNS; }

#endif
