/* The forms of events, for core/event.c. */
#ifndef ONCE_CORE_EVENT_FORMS_H
#define ONCE_CORE_EVENT_FORMS_H

#include "core/event.h"

once_json_value once__cloudevent_attribute(const once_parsed *from, once_bytes name);
int once__cloudevent_check(const once_parsed *from, once_error *err);

extern const char *const once__eventbridge_names[];
once_json_value once__eventbridge_attribute(const once_parsed *from, once_bytes name);
int once__eventbridge_check(const once_parsed *from, once_error *err);

extern const char *const once__sns_names[];
once_json_value once__sns_attribute(const once_parsed *from, once_bytes name);
int once__sns_open(const once_parsed *from, once_arena *arena, once_message *message, bool *opened, once_error *err);

#endif
