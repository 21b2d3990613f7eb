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

#ifdef __cplusplus
}
#endif
#endif
