/* CloudEvents 1.0: where a message has the attributes of its event (id, source, type, time...).
 *
 *   structured   the body is a JSON object whose members are the attributes, and `data`
 *   binary       the attributes are headers, ce_NAME (Kafka) or ce-NAME (HTTP), and the body is the data
 *
 * A header content-type that begins with application/cloudevents says structured. Otherwise a header with the
 * specversion says binary, and a body with a specversion says structured. A message with neither is no event.
 *
 * Thread rule: the functions share no state. */
#ifndef ONCE_CORE_EVENT_H
#define ONCE_CORE_EVENT_H

#include "base/json.h"
#include "once/types.h"

#define ONCE_EVENT_NAME_MAX 40 /* bytes of the name of an attribute */

/* The attribute of the event; ABSENT: it has none, or the message is no event. Both documents may be NULL. */
once_json_value once_event_attribute(const once_json *body, const once_json *headers, once_bytes name);

/* ONCE_OK, or ONCE_E_MESSAGE with the reason: it is no event, or lacks an attribute that every event has. */
int once_event_check(const once_json *body, const once_json *headers, once_error *err);

#endif
