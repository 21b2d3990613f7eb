/* What this build is and contains: its version, its stores, sources, effects, failpoints and modules.
 *
 * A store or source with a library of its own (PostgreSQL, Redis) may be a module: a file that is loaded when a
 * pipeline or a store names it. libonce.a has all of them linked in.
 *
 * Guarantee: nothing here opens a store or connects to anything. Only once_module_check loads a module.
 *
 * Thread rule: any thread. Callbacks are called before the function returns, in the same thread.
 *
 * Ownership: strings are static, except the path that once_module_visit gets.
 *
 * Errors: only once_module_check has some.
 *
 * Example
 *
 *     #include <stdio.h>
 *     #include <string.h>
 *     #include <once/version.h>
 *
 *     static void show(void *user, const char *kind, const char *name, const char *summary)
 *     {
 *         (void)user;
 *         if (strcmp(kind, "effect") == 0) printf("%s: %s\n", name, summary);
 *     }
 *
 *     int main(void)
 *     {
 *         printf("once %s\n", once_version());
 *         once_features(show, NULL);
 *         return strcmp(once_version(), ONCE_VERSION) == 0 ? 0 : 1;
 *     }
 */
#ifndef ONCE_VERSION_H
#define ONCE_VERSION_H

#include "once/types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ONCE_VERSION "0.1.0" /* of this header */

/* The version of the library that is loaded, which may differ from the header's. */
ONCE_API const char *once_version(void);

/* One thing that is built in. `kind`: "store", "source", "effect" or "failpoint". `summary`: one line about it. */
typedef void once_feature_visit(void *user, const char *kind, const char *name, const char *summary);

/* Calls `visit` for everything that is built in. */
ONCE_API void once_features(once_feature_visit *visit, void *user);

/* One store or source that is in a module. `path`: the module's file, valid until the callback returns. `there`: the
 * file exists. */
typedef void once_module_visit(void *user, const char *kind, const char *name, const char *path, bool there);

/* Calls `visit` for each store and source that is in a module; the others are linked in. */
ONCE_API void once_modules(once_module_visit *visit, void *user);

/* Loads the module of a store or source, as a pipeline that names it does. ONCE_OK: it can be used, or is linked in.
 * E_CONFIG: the module is missing, damaged, or of another build; `err` says which file, and what to do. E_USAGE: this
 * build has no such store or source. */
ONCE_API int once_module_check(const char *kind, const char *name, once_error *err);

#ifdef __cplusplus
}
#endif
#endif
