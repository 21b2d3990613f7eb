/* Reads a pipeline file into a once_spec, or reports its mistakes as "file:line: what is wrong; what to do".
 *
 * Only the file itself is read: nothing is opened or connected. Paths inside a pipeline (store, source) are relative to
 * the current directory of the process, not to the file.
 *
 * Every field is a row of a table (runtime/config_tables.h names their files; sources and effects have tables of their
 * own). Parsing, checks, `once help config` and docs/configuration.md follow from the rows.
 *
 * Thread rule: plain functions. A loaded spec is immutable and lives in the caller's arena.
 *
 *     once_arena arena = {0};
 *     once_spec *spec;
 *     if (once_config_load("payments.yaml", &arena, &spec, &err) != ONCE_OK) fprintf(stderr, "%s\n", err.text);
 *     ...
 *     once_arena_release(&arena); */
#ifndef ONCE_RUNTIME_CONFIG_H
#define ONCE_RUNTIME_CONFIG_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/config.h"
#include "core/spec.h"

/* ONCE_OK; ONCE_E_CONFIG or ONCE_E_UNSUPPORTED with the first mistake in `err`; ONCE_E_NOMEM. `out` is untouched on
 * failure. */
int once_config_load(const char *path, once_arena *arena, once_spec **out, once_error *err);

/* The same. Calls `report`, if it is not NULL, for every mistake, up to ONCE_CONFIG_MISTAKES. */
int once_config_load_all(const char *path, once_arena *arena, once_config_report *report, void *user, once_spec **out,
                         once_error *err);

/* The same from memory. `name` is shown as the file. */
int once_config_parse(const char *name, once_bytes text, once_arena *arena, once_config_report *report, void *user,
                      once_spec **out, once_error *err);

/* How keys are made, which must not change under a store: visits each operation of the pipeline once, with a canonical
 * text of its key, fingerprint and tenant. Equal texts make equal keys; the order of fingerprint fields does not
 * matter. Texts live in the arena. `visit` returns false to stop. ONCE_OK or ONCE_E_NOMEM. */
typedef bool once_config_operation_visit(void *user, once_bytes operation, once_bytes text);
int once_config_each_operation(const once_spec *spec, once_arena *arena, once_config_operation_visit *visit, void *user,
                               once_error *err);

/* The whole of docs/configuration.md. False: the buffer failed. */
bool once_config_reference(once_buf *out);

/* The tables as plain text, for a terminal. False: the buffer failed. */
bool once_config_help(once_buf *out);

#endif
