/* For tests: another list of sources in place of ONCE_SOURCE_MAP. */
#ifndef ONCE_SOURCE_SOURCE_LIST_H
#define ONCE_SOURCE_SOURCE_LIST_H

#ifdef ONCE_TEST_BUILD
#include "source/source.h"

/* `list` must live as long as it is in use; NULL and 0: the built-in list. Not while a pipeline is read or open. */
void once__source_list_replace(const once_source_kind *const *list, size_t n);
#endif

#endif
