/* Between the file source (file.c), its part of the pipeline file (file_config.c) and reading again (file_again.c). */
#ifndef ONCE_SOURCE_FILE_H
#define ONCE_SOURCE_FILE_H

#include "source/source.h"

typedef struct once_file_spec {
    once_bytes path; /* "-": stdin */
    bool follow;
    bool cursor;          /* go on where the last run had got to */
    once_pointer headers; /* text empty: none */
} once_file_spec;

static inline const once_file_spec *once_file_of(const once_source_spec *source) { return source->own; }

extern const once_config_scope once__file_scope;

void once__file_conclude(once_source_spec *source);
void once__file_check(once_config *config, const once_node *map, const once_source_spec *source);
void once__file_doubts(const once_source_spec *source, bool shared, once_source_warning *warn, void *user);
bool once__file_has(const once_source_spec *source, once_bytes place);
int once__file_look(once_source *source, once_bytes place, once_bytes files, once_error *err);

#endif
