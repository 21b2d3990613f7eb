/* Presets: fields of a pipeline file that go with a known form of messages. A preset is a line of ONCE_PRESET_MAP. */
#ifndef ONCE_RUNTIME_CONFIG_PRESET_H
#define ONCE_RUNTIME_CONFIG_PRESET_H

#include "base/config.h"
#include "core/spec.h"

/* name; its fields as a pipeline file would have them, a line each; what every message must be (core/event.h); what
 * such messages are, for people. */
#define ONCE_PRESET_MAP(X)                                                                                             \
    X(cloudevents,                                                                                                     \
      "key: \"${event:source}#${event:id}\"\n"                                                                         \
      "type: \"${event:type}\"\n"                                                                                      \
      "time: {from: \"${event:time}\", optional: true}\n",                                                             \
      ONCE_EVENT_CLOUDEVENTS,                                                                                          \
      "CloudEvents 1.0, structured (a JSON object) or binary (attributes in headers `ce_...` or `ce-...`)")            \
    X(sns,                                                                                                             \
      "key: \"${event:source}#${event:id}\"\n"                                                                         \
      "time: {from: \"${event:time}\", optional: true}\n",                                                             \
      ONCE_EVENT_SNS, "Amazon SNS: envelopes, and messages without one (raw delivery)")                                \
    X(eventbridge,                                                                                                     \
      "key: \"${event:source}#${event:id}\"\n"                                                                         \
      "type: \"${event:type}\"\n"                                                                                      \
      "time: {from: \"${event:time}\", optional: true}\n"                                                              \
      "fingerprint: [/detail-type, /detail]\n",                                                                        \
      ONCE_EVENT_EVENTBRIDGE, "Amazon EventBridge: the whole event as a JSON object")

typedef struct once_preset {
    const char *name, *fields;
    once_event_form events;
    const char *text;
} once_preset;

extern const once_config_word once__preset_words[];
const once_preset *once__preset_list(size_t *n);

/* The root with the fields of the preset that it names and does not have itself, on the line of `preset`. Sets what the
 * preset says of the spec, and of events in the config. Without a preset, or with one that is not known, the root
 * itself; then reading it reports that. NULL: out of memory. */
const once_node *once__preset_apply(once_config *config, const once_node *root, once_spec *spec);

/* The i-th line of its fields, without the line end, and the name at its beginning; false: there are no more. */
bool once__preset_line(const once_preset *preset, size_t i, once_bytes *line, once_bytes *name);

#endif
