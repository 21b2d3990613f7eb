/* libonce: every message takes effect once. Includes all public headers. */
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
