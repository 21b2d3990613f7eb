/* The error for lack of memory. */
#ifndef ONCE_BASE_NO_MEMORY_H
#define ONCE_BASE_NO_MEMORY_H

#include "once/error.h"

/* "out of memory " and what `format` makes ("for a batch"), with ONCE_E_NOMEM. */
int once_no_memory(once_error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
