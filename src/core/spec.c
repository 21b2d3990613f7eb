/* Finding the handler of a type or an operation. A pipeline has a handful of handlers, so comparing is faster than
 * hashing. */
#include "core/spec.h"

#include <assert.h>
#include <string.h>

#include "base/banned.h"

const once_handler_spec *once_spec_handler(const once_spec *spec, once_bytes type)
{
    assert(spec);
    const once_handler_spec *other = NULL;
    for (size_t i = 0; i < spec->n_handlers; i++) {
        const once_handler_spec *handler = &spec->handlers[i];
        if (handler->type.len == 0) return handler; /* `handler:` */
        if (once_bytes_equal(handler->type, type)) return handler;
        if (handler->type.len == 1 && handler->type.data[0] == '*') other = handler;
    }
    return other;
}

const once_handler_spec *once_spec_handler_by_operation(const once_spec *spec, once_bytes operation)
{
    assert(spec);
    for (size_t i = 0; i < spec->n_handlers; i++)
        if (once_bytes_equal(spec->handlers[i].operation, operation)) return &spec->handlers[i];
    return NULL;
}

/* An SNS message without an envelope has no other id. */
static bool uses_coordinates(const once_spec *spec, const once_template *t)
{
    return once_template_uses(t, ONCE_PLACE_COORDINATES) ||
           (spec->events == ONCE_EVENT_SNS && once_template_uses(t, ONCE_PLACE_EVENT));
}

bool once_spec_uses_coordinates(const once_spec *spec)
{
    const once_template *const common[] = {spec->tenant, spec->type, spec->order};
    bool uses = false;
    for (size_t i = 0; i < sizeof common / sizeof *common; i++) uses |= common[i] && uses_coordinates(spec, common[i]);
    for (size_t i = 0; i < spec->n_handlers; i++)
        uses |= spec->handlers[i].key && uses_coordinates(spec, spec->handlers[i].key);
    return uses;
}
