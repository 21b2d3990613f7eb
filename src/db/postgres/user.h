/* Statements of the user, from the inside: looked at (words.c), prepared (prepare.c), run (user.c), and what their
 * failures mean (fault.c). */
#ifndef ONCE_DB_POSTGRES_USER_H
#define ONCE_DB_POSTGRES_USER_H

#include "db/postgres/postgres.h"

static inline once_pg *once__pg_of(once_db *db) { return (once_pg *)db; }

/* The text with ?1 as $1. It was looked at before. */
int once__pg_number_params(once_bytes sql, once_buf *out, once_error *err);

int once__pg_user_prepare(once_db *db, once_bytes sql, once_stmt **out, once_error *err);
void once__pg_user_free(once_stmt *stmt);
int once__pg_prepare_failed(once_pg *pg, const PGresult *result, once_error *err); /* a mistake in it, in words */

/* What failed, of a statement with its values; stmt NULL: of something else. */
int once__pg_fault_given(once_pg *pg, const PGresult *result, once_pg_stmt *stmt, const once_value *values, size_t n,
                         once_fault *fault);

#endif
