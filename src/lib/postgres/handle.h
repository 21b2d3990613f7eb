/* Between the public functions (lib/postgres.c) and those of the module. */
#ifndef ONCE_LIB_POSTGRES_HANDLE_H
#define ONCE_LIB_POSTGRES_HANDLE_H

#include "once/handle.h"

/* A part of kind "handle". As include/once/handle.h has them. */
typedef struct once_pg_handle {
    int (*prepare)(struct pg_conn *pg, once_error *err);
    void (*release)(struct pg_conn *pg);
    int (*handle)(struct pg_conn *pg, const once_scope *scope, const once_delivery *delivery, once_callback *callback,
                  void *user, once_verdict *out, once_error *err);
} once_pg_handle;

extern const once_pg_handle once__pg_handle;

#endif
