/* Parameters in a user's statement. They are always bound, never pasted:
 *
 *   :name      the top-level field "name" (a letter or _, then letters, digits, _)
 *   :{/a/b}    any field, as a JSON pointer
 *   :{/a?}     the same, and NULL when the message has no such field (so a '?' that ends a name cannot be written)
 *   :{/a as text}  numbers, true and false as they are written, and never as a number: exact in every database. With
 *   '?': :{/a? as text}.
 *              (So a field whose name ends in " as " and a word cannot be written.)
 *   :{json:/a:/b}, :{header:NAME}, :{source:NAME}, :{event:NAME}, :{coordinates}, :{hash}, :{time:/ts:5m}
 *              everything else that a template can name (core/placeholder.h), also with '?' and "as text"
 *   :{result}, :{result:/a}    the result of the effect whose `then` the statement is, and a field of it; also with '?'
 *              and "as text". Everywhere else they are refused by who reads the statement
 *   :once_key, :once_idempotency_key, :once_attempt    what a command has as ONCE_KEY and so on
 *   :once_body the whole body, as it came
 *              All names that begin with once_ are ours; a field with such a name is written :{/once_...}
 *
 * They become ?1..?n in the order of their first use; the same parameter used again keeps its number. Strings ('..'),
 * quoted names ("..", `..`, [..]), comments and `::` are left alone, and so is every other byte of the statement.
 *
 * Refused, with the reason and what to do: the database's own parameters (?, ?1, $1, @x), strings, quoted names and
 * comments without an end, more than one statement, an empty one, a statement that begins with a word of transaction
 * control or administration (COMMIT, ATTACH, PRAGMA...; the database's authorizer refuses them again, wherever they
 * stand), NUL. */
#ifndef ONCE_EFFECT_SQL_PARAMS_H
#define ONCE_EFFECT_SQL_PARAMS_H

#include "base/arena.h"
#include "effect/sql.h"

/* Fills text, sql, params and n; rows is -1, unmet is DEAD, line is 0. Everything lives in the arena.
 * ONCE_E_USAGE with words for the user, or ONCE_E_NOMEM; `out` is then untouched. */
int once_sql_parse(once_arena *arena, once_bytes text, once_sql_statement *out, once_error *err);

#endif
