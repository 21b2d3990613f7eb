/* A handler's statements, wherever they run, in the store's database (sql.c) or in another one (sql_driver.c):
 * preparing them, the values that a message gives them, and what their answers mean for it. */
#ifndef ONCE_EFFECT_SQL_STATEMENTS_H
#define ONCE_EFFECT_SQL_STATEMENTS_H

#include "core/intake.h"
#include "core/outward.h"
#include "db/db.h"
#include "effect/driver.h"
#include "effect/sql.h"

once_prepare once_sql_prepare; /* the values of the parameters */

/* Prepares all of them: a mistake in one is FILE:LINE. */
int once_sql_open(const once_spec *spec, const once_handler_spec *handler, once_db *db, once_stmt ***out,
                  once_error *err);
void once_sql_close(const once_handler_spec *handler, once_stmt **statements); /* NULL is fine */

/* Puts into the item's input what is known only when it runs: its key and attempt, where a statement uses them. */
void once_sql_fill(once_item *item, const once_keying *keying);

/* Whether the database can keep every number of a message exactly. Otherwise `why` says which one it cannot, and
 * nothing may be run. */
bool once_sql_fits(const once_db *db, const once_handler_spec *handler, const once_value *values, char *why,
                   size_t size);

/* Whether a fault is an answer about the message: then it is its outcome. Otherwise no message is to blame. */
bool once_sql_judge(const once_handler_spec *handler, const once_fault *fault, once_outcome *outcome);

/* Whether the handler names a fault that is an answer about the message. */
bool once_sql_lists(const once_handler_spec *handler, const once_fault *fault);

/* Whether statement `i` changed or returned as many rows as it must. Otherwise `why` says so, and statement->unmet
 * is the outcome. */
bool once_sql_met(const once_sql_statement *statement, size_t i, int64_t rows, char *why, size_t size);

/* In another database (sql_driver.c). */
int once_effect_driver_open_sql(once_runner *runner, const once_handler_spec *handler, once_effect_driver **out,
                                once_error *err);
once_db *once_effect_driver_sql_db(once_effect_driver *driver); /* the connection that it was opened with */

#endif
