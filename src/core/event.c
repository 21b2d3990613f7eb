#include "core/event.h"

#include <assert.h>

#include "core/event_forms.h"

#include "base/banned.h"

const char *const *once_event_names(once_event_form form)
{
    if (form == ONCE_EVENT_SNS) return once__sns_names;
    return form == ONCE_EVENT_EVENTBRIDGE ? once__eventbridge_names : NULL;
}

once_json_value once_event_attribute(const once_parsed *from, once_bytes name)
{
    switch (from->events) {
    case ONCE_EVENT_NONE: break;
    case ONCE_EVENT_CLOUDEVENTS: return once__cloudevent_attribute(from, name);
    case ONCE_EVENT_SNS: return once__sns_attribute(from, name);
    case ONCE_EVENT_EVENTBRIDGE: return once__eventbridge_attribute(from, name);
    }
    return (once_json_value){0};
}

int once_event_check(const once_parsed *from, once_error *err)
{
    if (from->events == ONCE_EVENT_CLOUDEVENTS) return once__cloudevent_check(from, err);
    if (from->events == ONCE_EVENT_EVENTBRIDGE) return once__eventbridge_check(from, err);
    return ONCE_OK; /* any message may come from SNS, without an envelope */
}

int once_event_open(const once_parsed *from, once_arena *arena, once_message *message, bool *opened, once_error *err)
{
    assert(from->body && once_event_is_wrapped(from->events));
    return once__sns_open(from, arena, message, opened, err);
}
