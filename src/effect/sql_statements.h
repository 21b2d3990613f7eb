/* Statements of a handler, wherever they run, in the store's database (sql.c) or in another one (sql_driver.c), and
 * whatever they are for, its effect, its `lookup` or its `then`: reading them, preparing them, the values that a
 * message gives them, and what their answers mean for it. */
#ifndef ONCE_EFFECT_SQL_STATEMENTS_H
#define ONCE_EFFECT_SQL_STATEMENTS_H

#include "base/config.h"
#include "core/intake.h"
#include "core/outward.h"
#include "db/db.h"
#include "effect/driver.h"
#include "effect/sql.h"

/* Reads a list of statements of the pipeline file, or one. `then`: they are those of a `then`, which can use the result
 * of the effect, and has no `else`. False: it reported mistakes. */
bool once_sql_read(once_config *config, const once_config_field *field, const once_node *node, bool then,
                   once_sql_list *out);
extern const once_config_section once_sql_statement_section;

/* Prepares all of them: a mistake in one is FILE:LINE. */
int once_sql_open(const once_spec *spec, const once_sql_list *list, once_db *db, once_stmt ***out, once_error *err);
void once_sql_close(const once_sql_list *list, once_stmt **statements); /* NULL is fine */

/* The values of the parameters: one for each parameter of each statement, in order. */
size_t once_sql_count(const once_sql_list *list);
int once_sql_values(const once_sql_list *list, const once_parsed *from, once_arena *arena, once_value *out,
                    once_error *err);
/* One of them, which is something of a message, or of what a once_parsed says in its place. */
int once_sql_value(const once_parsed *from, const once_sql_param *param, once_arena *arena, once_value *out,
                   once_error *err);

/* Puts into the values what is known only when a message runs: its key and attempt, where a statement uses them. */
void once_sql_fill(const once_sql_list *list, once_value *values, const once_item *item, const once_keying *keying);

/* Whether the database can keep every number of a message exactly. Otherwise `why` says which one it cannot, and
 * nothing may be run. */
bool once_sql_fits(const once_db *db, const once_sql_list *list, const once_value *values, char *why, size_t size);

/* Whether a fault is an answer about the message. Otherwise no message is to blame. */
bool once_sql_is_answer(const once_fault *fault);

/* The same, and what it means for the effect of this handler. */
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
