/* Effects: what a message does. Two halves: `prepare` makes the input out of a body (any thread, no state); then it is carried
 * out. SQL in the store's database runs here, on the store executor's thread and inside its transaction; external effects (commands,
 * callbacks, SQL in another database) are in effect/hands.h. */
#ifndef ONCE_EFFECT_EFFECT_H
#define ONCE_EFFECT_EFFECT_H

#include "core/intake.h"
#include "core/item.h"
#include "core/outward.h"
#include "db/db.h"

/* As core/intake.h wants it, for every kind of effect but `dead`, which has no input. */
int once_effect_prepare(const once_handler_spec *handler, const once_json *body, const once_message *message,
                        once_arena *arena, void **input, once_error *err);

/* The promise that the handler's effect carries: "atomic", "fenced", "natural", or "none" for `dead`. */
const char *once_effect_mode(const once_handler_spec *handler);

/* --- SQL in the store's database (effect/sql.c) --- */

typedef struct once_effects once_effects; /* the SQL effects of all handlers, ready to run; other handlers are passed over */

/* The values of a handler's parameters, wherever they are used (effect/sql_statements.c). */
int once_sql_prepare(const once_handler_spec *handler, const once_json *body, const once_message *message, once_arena *arena,
                     void **input, once_error *err);

/* Prepares every statement: a mistake in one is found before the first message, as file:line. The bytes of the salt must live as long. */
int once_effects_open(const once_spec *spec, const once_keying *keying, once_db *db, once_effects **out, once_error *err);
void once_effects_close(once_effects *effects);

/* Runs the effects of the items in order. Fills outcome, result and failure of each. When !careful it stops at the first one
 * that did something and did not end done, and sets *failed: nothing may then be committed. When careful, what such a message did
 * is undone. In both cases a message that ends the whole transaction (RAISE(ROLLBACK),
 * a timeout in SQLite) sets *failed and its item's verdict.
 * Where the database allows it (once_db_presume), messages may be taken for done before that is known; then the commit tells.
 * A statement that has the database roll back (a deadlock, a timeout) is a status, and its message is `suspect` where that is known; with
 * `blame` such a message is to be retried.
 * A status other than ONCE_OK means that something is wrong that is not the messages' fault. */
int once_effects_run(once_effects *effects, once_item *const *items, size_t n, bool careful, bool blame, once_arena *arena, bool *failed,
                     once_error *err);

#endif
