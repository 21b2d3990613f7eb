/* For tests: another list of effects in place of ONCE_EFFECT_MAP. */
#ifndef ONCE_EFFECT_EFFECT_LIST_H
#define ONCE_EFFECT_EFFECT_LIST_H

#ifdef ONCE_TEST_BUILD
#include "effect/effect.h"

/* `list` must live as long as it is in use; NULL and 0: the built-in list. Not while a pipeline is read or open. */
void once__effect_list_replace(const once_effect_ops *const *list, size_t n);
#endif

#endif
