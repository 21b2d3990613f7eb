/* Modules: drivers with a library of their own. They are linked in, or each is a shared object, NAME.so, that is loaded
 * when something names it for the first time and stays until the process ends; so a program has only the libraries that
 * its pipelines need. Which of both, the build option `modules` says; who asks for a part of a module does not see it.
 *
 * A module is loaded from one folder by its whole path: that of the installation, which is compiled in; of a program or
 * a libonce.so that lies in its build folder, from there; or ONCE_MODULES, where a process has no more rights than who
 * started it. It uses the functions and structs of the program that loads it, so it must be of the same version and
 * have the same interface: a number that is made of all our headers (tools/interface), which nobody has to remember to
 * raise.
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

/* What a module has: a store, a database... Each kind says which struct it is. */
typedef struct once_module_part {
    const char *kind, *name;
    const void *is;
} once_module_part;

typedef struct once_module {
    uint32_t interface;            /* ONCE_MODULE_INTERFACE: these two stay at their places for ever */
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

/* The part of a module, which is loaded if it is not. ONCE_E_CONFIG: it is missing, cannot be loaded or does not fit;
 * `err` says which file, and what to do. */
int once_module_part_get(const char *module, const char *kind, const char *name, const void **out, once_error *err);

/* Where a module is, or would be. False: it is linked in. */
bool once_module_where(const char *module, char path[PATH_MAX], bool *there);

#endif
