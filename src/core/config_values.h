/* Readers for values of a pipeline file that tables of several layers use: names, templates, references to secrets.
 *
 * Each reports its mistakes to the config (base/config.h). Thread rule: as the config, one thread at a time. */
#ifndef ONCE_CORE_CONFIG_VALUES_H
#define ONCE_CORE_CONFIG_VALUES_H

#include <string.h>

#include "base/config.h"
#include "core/spec.h"

/* Whether the text is a printable name of 1..ONCE_NAME_MAX bytes; otherwise reports a mistake about `what`. */
bool once__config_name(once_config *config, const char *what, int line, once_bytes text);

/* The same, as the reader of a field: into a once_bytes. */
once_config_reader once__config_read_name;

/* The compiled template; NULL after a mistake. */
const once_template *once__config_template(once_config *config, const once_config_field *field, const once_node *node);

/* Whether messages can have what is named: bodies that are bytes have no fields, and sources and presets have names of
 * their own. Otherwise reports a mistake of the field of the file. `mark`: the character before the brace. */
bool once__config_placeholder(once_config *config, const char *field, int line, char mark,
                              const once_placeholder *place);

/* Whether a reference (env:NAME, file:PATH) is complete; otherwise reports a mistake about `what`, without the value.
 * */
bool once__config_reference(once_config *config, const char *what, const once_node *node);

/* Whether an environment variable can have this name. */
bool once__config_is_variable(once_bytes name);

/* For readers: copies a value to the place of the field. */
void once__config_put(const once_config_field *field, void *out, const void *value, size_t size);

static inline bool once__is_text(once_bytes text, const char *word)
{
    return once_bytes_equal(text, (once_bytes){word, strlen(word)});
}

#endif
