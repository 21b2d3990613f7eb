/* For tests of programs that use the library. */
#ifndef ONCE_TESTING_H
#define ONCE_TESTING_H

#include "once/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Failpoints: "NAME:ACTION[:N][,...]", the Nth time that NAME is reached do ACTION (kill, abort, stop, exit, error).
 * The command reads them from the environment variable ONCE_FAILPOINT; once_features lists the names. Call before
 * anything runs. */
ONCE_API int once_testing_failpoints(const char *spec, once_error *err);

#ifdef __cplusplus
}
#endif
#endif
