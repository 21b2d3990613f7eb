/* What this build is and contains. */
#ifndef ONCE_VERSION_H
#define ONCE_VERSION_H

#include "once/types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ONCE_VERSION "0.1.0"

/* Of the library that is loaded, which may differ from the header's. */
ONCE_API const char *once_version(void);

/* Calls `visit` for everything that is built in: kind "store", "source", "effect" or "failpoint"; its name; one line
 * about it. Strings are static. */
typedef void once_feature_visit(void *user, const char *kind, const char *name, const char *summary);
ONCE_API void once_features(once_feature_visit *visit, void *user);

/* Calls `visit` for each of those that is in a module: a file that is loaded when a pipeline or a store names it, and
 * whether it is there. What is not told is linked in. Strings live until `visit` returns. */
typedef void once_module_visit(void *user, const char *kind, const char *name, const char *path, bool there);
ONCE_API void once_modules(once_module_visit *visit, void *user);

/* Whether the module of one of those can be used: it is loaded, as by a pipeline that names it. ONCE_OK also for what
 * is linked in. ONCE_E_CONFIG: it is missing, damaged, or not of this build; `err` says which file, and what to do. */
ONCE_API int once_module_check(const char *kind, const char *name, once_error *err);

#ifdef __cplusplus
}
#endif
#endif
