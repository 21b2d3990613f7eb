/* Events of Amazon EventBridge (core/event.h): a JSON object with version, id, detail-type, source, account, time,
 * region, resources and detail. The body stays as it is; `detail` is the data. */
#include "base/buf.h"
#include "core/event_forms.h"

#include "base/banned.h"

/* An attribute, and the member that has it, where the names differ. */
static const struct {
    const char *name, *member;
} attributes[] = {
    {"id", "id"},     {"source", "source"},   {"type", "detail-type"},
    {"time", "time"}, {"account", "account"}, {"region", "region"},
};

const char *const once__eventbridge_names[] = {"id", "source", "type", "time", "account", "region", NULL};

static once_json_value member(const once_json *body, const char *name)
{
    return body ? once_json_member(body, once_json_root(body), once_bytes_of(name)) : (once_json_value){0};
}

once_json_value once__eventbridge_attribute(const once_parsed *from, once_bytes name)
{
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        if (once_bytes_equal(name, once_bytes_of(attributes[i].name))) return member(from->body, attributes[i].member);
    return (once_json_value){0};
}

int once__eventbridge_check(const once_parsed *from, once_error *err)
{
    static const char *const needed[] = {"id", "source", "detail-type"};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        const once_json_value value = member(from->body, needed[i]);
        if (value.type == ONCE_JSON_ABSENT)
            return once_fail(err, ONCE_E_MESSAGE,
                             "not an EventBridge event: there is no field '%s'; a rule with an input transformer or an "
                             "input path sends something else",
                             needed[i]);
        if (value.type != ONCE_JSON_STRING || value.raw.len == 0)
            return once_fail(err, ONCE_E_MESSAGE, "an EventBridge event whose '%s' is empty, or not a text", needed[i]);
    }
    if (member(from->body, "detail").type == ONCE_JSON_ABSENT)
        return once_fail(err, ONCE_E_MESSAGE,
                         "not an EventBridge event: there is no field 'detail'; a rule with an input transformer or an "
                         "input path sends something else");
    return ONCE_OK;
}
