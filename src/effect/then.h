/* `then`: SQL in the store's database that commits together with the outcome of an effect outside, which has happened.
 *
 *   the effect is back -> BEGIN, its claim is checked, `then`, its outcome, COMMIT
 *
 * When the claim was lost meanwhile, nothing of it commits. When a statement fails, the effect has happened
 * nevertheless: the message is held as unknown (core/machine_decide.c). once_effects_run (effect/effect.h) runs the
 * statements, with those of the effects in the store's database. */
#ifndef ONCE_EFFECT_THEN_H
#define ONCE_EFFECT_THEN_H

#include "base/config.h"
#include "core/item.h"
#include "db/db.h"
#include "effect/sql.h"

/* handler->then points to one. */
typedef struct once_sql_then {
    once_then then; /* first */
    once_sql_list does;
} once_sql_then;

static inline const once_sql_list *once_then_list(const once_handler_spec *handler)
{
    return &((const once_sql_then *)handler->then)->does;
}

extern const once_config_section once_then_section;

/* Reads the field. False: it reported mistakes. */
bool once_then_read(once_config *config, const once_config_field *field, const once_node *node, const once_then **out);

/* Whether a statement names the result of the effect. */
bool once_then_uses_result(const once_then *then);

/* What reads results. A zeroed struct is ready. Thread rule: one thread at a time. */
typedef struct once_result_reader {
    once_json json;
    once_texts texts;
} once_result_reader;

void once_result_reader_release(once_result_reader *reader);

/* Puts the result of an item that is back (came_with) into the values of its `then`, where a statement names it. Texts
 * are in the arena, or point into the result. ONCE_E_MESSAGE: the result lacks something; `err` says what. */
int once_then_bind(once_result_reader *reader, const once_item *item, once_arena *arena, once_error *err);

#endif
