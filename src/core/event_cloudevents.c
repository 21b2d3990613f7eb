/* CloudEvents 1.0 (core/event.h): where a message has the attributes of its event.
 *
 *   structured   the body is a JSON object whose members are the attributes, and `data`
 *   binary       the attributes are headers, ce_NAME (Kafka) or ce-NAME (HTTP), and the body is the data
 *
 * A header content-type that begins with application/cloudevents says structured. Otherwise a header with the
 * specversion says binary, and a body with a specversion says structured. A message with neither is no event. */
#include "core/event_forms.h"

#include <assert.h>
#include <string.h>

#include "base/ascii.h"

#include "base/banned.h"

typedef enum form { NO_EVENT, STRUCTURED, BINARY, BATCH } form;

static once_json_value header(const once_json *headers, const char *prefix, once_bytes name)
{
    char text[8 + ONCE_EVENT_NAME_MAX];
    const size_t len = strlen(prefix);
    assert(len < 8 && name.len <= ONCE_EVENT_NAME_MAX);
    memcpy(text, prefix, len);
    memcpy(text + len, name.data, name.len);
    return once_json_member(headers, once_json_root(headers), (once_bytes){text, len + name.len});
}

static once_json_value header_attribute(const once_json *headers, once_bytes name)
{
    static const char *const prefixes[] = {"ce_", "ce-"};
    once_json_value value = {0};
    for (size_t i = 0; headers && value.type == ONCE_JSON_ABSENT && i < sizeof prefixes / sizeof *prefixes; i++)
        value = header(headers, prefixes[i], name);
    return value;
}

static once_json_value body_attribute(const once_json *body, once_bytes name)
{
    return body ? once_json_member(body, once_json_root(body), name) : (once_json_value){0};
}

/* What the media type says. Its case, and that of the header's name, do not matter. */
static form form_of_type(const once_json *headers)
{
    once_json_iter it = headers ? once_json_each(headers, once_json_root(headers)) : (once_json_iter){0};
    while (headers && once_json_next(&it)) {
        const once_bytes type = it.value.raw;
        if (!once_ascii_is(it.key.raw.data, it.key.raw.len, "content-type") || it.value.type != ONCE_JSON_STRING)
            continue;
        if (once_ascii_begins(type.data, type.len, "application/cloudevents-batch")) return BATCH;
        if (once_ascii_begins(type.data, type.len, "application/cloudevents")) return STRUCTURED;
    }
    return NO_EVENT;
}

static form form_of(const once_json *body, const once_json *headers)
{
    static const once_bytes version = {"specversion", 11};
    const form said = form_of_type(headers);
    if (said != NO_EVENT) return said;
    if (header_attribute(headers, version).type != ONCE_JSON_ABSENT) return BINARY;
    return body_attribute(body, version).type != ONCE_JSON_ABSENT ? STRUCTURED : NO_EVENT;
}

static once_json_value attribute(form of, const once_json *body, const once_json *headers, once_bytes name)
{
    if (of == BINARY) return header_attribute(headers, name);
    return of == STRUCTURED ? body_attribute(body, name) : (once_json_value){0};
}

once_json_value once__cloudevent_attribute(const once_parsed *from, once_bytes name)
{
    return attribute(form_of(from->body, from->headers), from->body, from->headers, name);
}

int once__cloudevent_check(const once_parsed *from, once_error *err)
{
    static const char *const needed[] = {"specversion", "id", "source", "type"};
    const once_json *body = from->body, *headers = from->headers;
    const form of = form_of(body, headers);
    if (of == NO_EVENT)
        return once_fail(err, ONCE_E_MESSAGE,
                         "not a CloudEvent: there is neither a header 'ce_specversion' nor a field 'specversion'");
    if (of == BATCH)
        return once_fail(err, ONCE_E_MESSAGE, "a batch of CloudEvents; each event must be a message of its own");
    if (of == STRUCTURED && !body)
        return once_fail(err, ONCE_E_MESSAGE,
                         "a structured CloudEvent: its attributes are in the body, which is not read as JSON here");
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        const once_bytes name = {needed[i], strlen(needed[i])};
        const once_json_value value = attribute(of, body, headers, name);
        if (value.type == ONCE_JSON_ABSENT)
            return once_fail(err, ONCE_E_MESSAGE, "a CloudEvent without '%s%s'", of == BINARY ? "ce_" : "", needed[i]);
        if (value.type != ONCE_JSON_STRING || value.raw.len == 0)
            return once_fail(err, ONCE_E_MESSAGE, "a CloudEvent whose '%s%s' is empty, or not a text",
                             of == BINARY ? "ce_" : "", needed[i]);
    }
    return ONCE_OK;
}
