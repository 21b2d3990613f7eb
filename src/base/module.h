/* Modules: drivers that need a library of their own. A module is either linked in, or a shared object NAME.so that is
 * loaded when it is first needed and stays until the process ends. So a program loads only the libraries that its
 * pipelines need. The build option `modules` decides; callers see no difference.
 *
 * A module is loaded by its absolute path from one folder: the installed one, which is compiled in; the build folder,
 * for a program or a libonce.so that is in its build folder; or ONCE_MODULES, if the process has no more rights than
 * the user who started it. A module uses the functions and structs of the program that loads it. So both must have the
 * same version and the same interface: a number that the build computes from all our headers (tools/interface), so that
 * no one has to remember to raise it.
 *
 * Thread rule: every function from any thread. */
#ifndef ONCE_BASE_MODULE_H
#define ONCE_BASE_MODULE_H

#include <limits.h>
#include <stdint.h>

#include "once/types.h"

#ifdef ONCE_MODULES
#include "module_interface.h" /* ONCE_MODULE_INTERFACE */
#else
#define ONCE_MODULE_INTERFACE 0 /* nothing is loaded */
#endif

/* A part of a module: a store, a database... The kind says which struct `is` points to. */
typedef struct once_module_part {
    const char *kind, *name;
    const void *is;
} once_module_part;

typedef struct once_module {
    uint32_t interface;            /* ONCE_MODULE_INTERFACE; this and the next field never move */
    const char *version;           /* of once */
    const once_module_part *parts; /* ends with a NULL kind */
} once_module;

/* In the file of a module: ONCE_MODULE(redis, parts); */
#ifdef ONCE_MODULES
#define ONCE_MODULE_SYMBOL "once_this_module"
#define ONCE_MODULE(name, list)                                                                                        \
    extern const once_module once_this_module;                                                                         \
    __attribute__((visibility("default")))                                                                             \
    const once_module once_this_module = {ONCE_MODULE_INTERFACE, ONCE_BUILD_VERSION, list}
#else
#define ONCE_MODULE(name, list)                                                                                        \
    extern const once_module once__module_##name;                                                                      \
    const once_module once__module_##name = {ONCE_MODULE_INTERFACE, ONCE_BUILD_VERSION, list}
#endif

/* A part of a module; loads the module if necessary. ONCE_E_CONFIG: it is missing, cannot be loaded or does not fit;
 * `err` says which file, and what to do. */
int once_module_part_get(const char *module, const char *kind, const char *name, const void **out, once_error *err);

/* The path of a module, and whether the file exists. False: it is linked in; the outputs are not set. */
bool once_module_where(const char *module, char path[PATH_MAX], bool *there);

#endif
