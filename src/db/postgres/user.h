/* Statements of the user: checked (words.c), prepared (prepare.c), run (user.c); what their failures mean (fault.c). */
#ifndef ONCE_DB_POSTGRES_USER_H
#define ONCE_DB_POSTGRES_USER_H

#include "db/postgres/postgres.h"

static inline once_pg *once__pg_of(once_db *db) { return (once_pg *)db; }

/* Replaces ?1 by $1. The statement was checked before. */
int once__pg_number_params(once_bytes sql, once_buf *out, once_error *err);

int once__pg_user_prepare(once_db *db, once_bytes sql, once_stmt **out, once_error *err);
void once__pg_user_free(once_stmt *stmt);
int once__pg_prepare_failed(once_pg *pg, const PGresult *result,
                            once_error *err); /* the status and text of a mistake in it */

/* The fault of a statement with its values; stmt NULL: of another statement. */
int once__pg_fault_given(once_pg *pg, const PGresult *result, once_pg_stmt *stmt, const once_value *values, size_t n,
                         once_fault *fault);

#endif
