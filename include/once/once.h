/* libonce: every message takes effect once. Includes all public headers.
 *
 * A pointer may be NULL where its function says so. Elsewhere NULL, a struct whose `size` is not one that the library
 * knows, bytes with a length and no address, and an outcome that is none get ONCE_E_USAGE; a function without a status
 * does nothing then, and a name is "?". */
#ifndef ONCE_ONCE_H
#define ONCE_ONCE_H
#include "once/error.h"
#include "once/handle.h"
#include "once/log.h"
#include "once/operate.h"
#include "once/pipeline.h"
#include "once/store.h"
#include "once/testing.h"
#include "once/types.h"
#include "once/version.h"
#endif
