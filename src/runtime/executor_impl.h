/* What the files of the executor share; no other file includes this. */
#ifndef ONCE_RUNTIME_EXECUTOR_IMPL_H
#define ONCE_RUNTIME_EXECUTOR_IMPL_H

#include "base/log.h"
#include "runtime/executor.h"

/* A failpoint at which a test can make the action fail. */
#define CHECK_POINT(name, err)                                                                                         \
    do {                                                                                                               \
        if (ONCE_FAIL_AT(name)) return once_fail((err), ONCE_E_UNAVAILABLE, "failpoint '%s'", #name);                  \
    } while (0)

/* The requests of the action's items; NULL: out of memory. */
const once_request **once__requests_of(once_executor *x, const once_action *a);

/* executor_keep.c */
void once__note_times(once_executor *x, const once_request *const *requests, size_t n);
int once__keep_items(once_executor *x, const once_action *a, once_error *err);
int once__keep_facts(once_executor *x, const once_action *a, bool renews, once_error *err);
int once__do_renew(once_executor *x, const once_action *a, once_error *err);
void once__renewed(once_executor *x); /* the commit that renewed the worker's record has succeeded */

/* executor_log.c */
void once__note(once_executor *x, once_log_level level, const char *event, const once_item *item, once_bytes reason);
void once__note_ending(once_executor *x, const once_item *item, bool known);
void once__note_lapsed(once_executor *x, once_item *item);
void once__note_replaced(once_executor *x, const once_action *a);
void once__log_fenced(once_executor *x, const once_item *item, const char *what);

/* executor_due.c */
void once__look_for_lapsed(once_executor *x, bool now);
int once__do_find(once_executor *x, once_action *a, once_error *err);
int once__do_take(once_executor *x, once_action *a, once_error *err);
int once__do_stats(once_executor *x, once_action *a, once_error *err);

#endif
