/* A pipeline file becomes a once_spec, or a list of mistakes. Nothing is opened or connected here; the file is the only
 * thing read. Paths inside a pipeline (store, source) are relative to the current directory of the process, not to the
 * file.
 *
 * Thread rule: plain functions; a loaded spec is immutable and lives in the arena. */
#ifndef ONCE_RUNTIME_CONFIG_H
#define ONCE_RUNTIME_CONFIG_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/config.h"
#include "core/spec.h"

/* ONCE_OK; ONCE_E_CONFIG or ONCE_E_UNSUPPORTED with the first mistake ("file:line: what; what to do") in `err`;
 * ONCE_E_NOMEM. `out` is untouched on failure. */
int once_config_load(const char *path, once_arena *arena, once_spec **out, once_error *err);

/* The same, and all mistakes (up to ONCE_CONFIG_MISTAKES) go to `report`, which may be NULL. */
int once_config_load_all(const char *path, once_arena *arena, once_config_report *report, void *user, once_spec **out,
                         once_error *err);

/* The same from memory. `name` is shown as the file. */
int once_config_parse(const char *name, once_bytes text, once_arena *arena, once_config_report *report, void *user,
                      once_spec **out, once_error *err);

/* What must not change under a store: for each operation of the pipeline, once, a canonical text of its key,
 * fingerprint and tenant. Equal texts mean equal keys; the order of fingerprint fields does not matter. Texts live in
 * the arena. `visit` returns false to stop. ONCE_OK or ONCE_E_NOMEM. */
typedef bool once_config_section_visit(void *user, once_bytes operation, once_bytes text);
int once_config_section_each(const once_spec *spec, once_arena *arena, once_config_section_visit *visit, void *user,
                             once_error *err);

/* docs/configuration.md in full. False when the buffer failed. */
bool once_config_reference(once_buf *out);

/* The tables as plain text, for a terminal. */
bool once_config_help(once_buf *out);

#endif
