/* A message with its documents parsed: what templates, the parameters of statements and fingerprints read.
 *
 * Thread rule: as the documents in it, one thread at a time. */
#ifndef ONCE_CORE_PARSED_H
#define ONCE_CORE_PARSED_H

#include "core/message.h"
#include "core/path.h"

/* What ${event:NAME} is, and what every message must be. */
typedef enum once_event_form {
    ONCE_EVENT_NONE, /* there is no ${event:NAME} */
    ONCE_EVENT_CLOUDEVENTS,
    ONCE_EVENT_SNS,
    ONCE_EVENT_EVENTBRIDGE
} once_event_form;

typedef struct once_parsed {
    const once_message *message;
    once_json *body;          /* NULL: the body is bytes or there is none, so it has no fields */
    const once_json *headers; /* an object; NULL: there are none */
    once_texts *texts;        /* NULL: no path goes into a text */
    once_event_form events;
    bool unstable; /* another delivery of the message may have other coordinates */
} once_parsed;

#endif
