/* Effects: what a message does.
 *
 * A new effect is one table, once_effect_ops, in a file of its own, and a line of ONCE_EFFECT_MAP below. Fields of the
 * pipeline file, help, mistakes, `once check` and the reference follow from the table. Code outside of this folder does
 * not ask which effect a handler has: it reads the handler's bits (core/spec.h) or calls the functions below.
 * callback.c is the model of an effect that runs in threads, exec_effect.c with exec.c that of one on the event loop.
 * tests/unit/test_effects.c wants an example of every effect.
 *
 * An effect has two steps. `prepare` makes its input out of a message; it keeps no state, and any thread calls it. Then
 * the effect is carried out:
 *   inside     SQL in the store's database, on the store's thread, in the transaction that settles the message
 *              (once_effects, below)
 *   outside    everything else, between two transactions, by a driver (effect/driver.h) of the runner
 *              (effect/runner.h); such handlers have ONCE_EFFECT_OUTSIDE */
#ifndef ONCE_EFFECT_EFFECT_H
#define ONCE_EFFECT_EFFECT_H

#include "base/config.h"
#include "base/value.h"
#include "core/intake.h"
#include "core/item.h"
#include "core/outward.h"
#include "db/db.h"

struct once_effect_driver;
struct once_runner;

/* A better error text for a field that belongs to another effect: "'already' WHY; remove it". Without it the error only
 * says which effect has the field. */
typedef struct once_effect_misfit {
    const char *field, *why;
} once_effect_misfit;

/* An effect as `once check` shows it: "command './charge'". */
typedef struct once_effect_shown {
    const char *what;
    once_bytes name;
    bool url; /* `name` is a URL: its password is not shown */
} once_effect_shown;

/* A sentence that warns, for `once check`. */
typedef void once_effect_warning(void *user, const char *text);

typedef int once_effect_open(struct once_runner *runner, const once_handler_spec *handler,
                             struct once_effect_driver **out, once_error *err);

/* The part "effect" of a module. The rest of an effect is always linked in, so that a pipeline file can be read and a
 * message prepared without the library that carries it out. */
typedef struct once_effect_part {
    once_effect_open *open;
} once_effect_part;

/* Functions may be NULL where that is said. One that takes a handler gets one that has this effect. */
typedef struct once_effect_ops {
    const char *name;    /* "exec": the field of a handler that chooses it */
    const char *summary; /* one line for `once version` */
    unsigned bits;       /* ONCE_EFFECT_, of every handler that has it; `conclude` may add others */

    /* --- its part of the pipeline file --- */

    /* `name` is the first. No other effect has a field of that name; the other fields may have names that other effects
     * use, too, but not those of a handler's own fields. */
    const once_config_field *fields;
    size_t n_fields;
    size_t size;                       /* of handler->own, the struct that they are read into */
    const void *standard;              /* its defaults; NULL: zeros */
    const once_effect_misfit *misfits; /* ends with a NULL field; or NULL */
    const char *section;               /* text for docs/configuration.md, behind the tables; or NULL */
    /* Sets what follows from its fields: more bits, `slots` (0: the pipeline's `workers`), `lookup`, `dead_reason`. Or
     * NULL. */
    void (*conclude)(once_handler_spec *handler);
    /* Reports each mistake between its fields. `map` is the handler's. Or NULL. */
    void (*check)(once_config *config, const once_node *map, const once_handler_spec *handler);

    /* --- messages --- */

    /* NULL: there is nothing to prepare. Not called without ONCE_EFFECT_RUNS. */
    once_prepare *prepare;
    /* OUTSIDE: the part of a result that `then` names as the result (effect/then.h). It is JSON, inside of `result`;
     * empty if there is none, without data if it was not kept. NULL: all of it. */
    once_bytes (*result)(once_bytes result);
    /* OUTSIDE: makes the driver of one handler (effect/driver.h). NULL: it is in a module ... */
    once_effect_open *open;
    const char *module; /* ... of this name, as its part "effect" with the name of the effect: a once_effect_part */

    /* --- for people --- */

    once_effect_shown (*describe)(const once_handler_spec *handler); /* OUTSIDE */
    /* Visits the texts of its fields that are references to secrets, or URLs. Or NULL: it has none. */
    void (*secrets)(const once_handler_spec *handler, once_secret_visit *visit, void *user);
    /* Warns about files that other users of this host can read, or can change and thereby have run. Or NULL. */
    void (*exposed)(const once_handler_spec *handler, once_effect_warning *warn, void *user);
    /* The name of the function that the program must register. NULL: it calls none. */
    once_bytes (*function)(const once_handler_spec *handler);
    /* The database that an open driver works in, for `once check`, while nothing runs. NULL: it has none. */
    once_db *(*db)(struct once_effect_driver *driver);
} once_effect_ops;

/* `lookup`: an effect that can ask the other side what became of an unknown sets ONCE_EFFECT_ASKS and handler->lookup
 * in `conclude`, and its driver has `ask` (exec is the model). The first question waits for the handler's timeout where
 * `after_ms` is ONCE_LOOKUP_TIMEOUT. The machine does the rest: the unknown gets a due time, `take` returns it as a
 * question (decision.asks), the driver is asked, and the answer is settled (core/policy.h). An unknown about which
 * nothing was found out in time is held or tried again, as `unknown` says.
 *
 * `then` (effect/then.h): SQL in the store's database that commits together with the outcome. Every effect outside has
 * it, and need not know of it. When an effect with ONCE_EFFECT_THEN is done or already, its message goes through
 * EXTEND, RUN and SETTLE in the transaction that settles it. EXTEND is the fence, and holds until the commit: a message
 * gets to RUN only while its claim is ours. When RUN fails, the message is held as unknown, because its effect has
 * happened and must not be repeated. */

/* The list, in the order in which people see them. */
#define ONCE_EFFECT_MAP(X)                                                                                             \
    X(sql)                                                                                                             \
    X(exec)                                                                                                            \
    X(http)                                                                                                            \
    X(callback)                                                                                                        \
    X(dead)

#define ONCE_EFFECT_DECLARE(name) extern const once_effect_ops once__effect_##name;
ONCE_EFFECT_MAP(ONCE_EFFECT_DECLARE)
#undef ONCE_EFFECT_DECLARE

const once_effect_ops *const *once_effect_list(size_t *n);

/* once_prepare (core/intake.h), for every effect that runs. */
int once_effect_prepare(const once_handler_spec *handler, const once_parsed *from, once_arena *arena, void **input,
                        once_error *err);

/* What is promised for the handler's effect: "atomic", "fenced", "natural", or "none" where nothing runs. */
const char *once_effect_mode(const once_handler_spec *handler);

/* Opens the driver of a handler with ONCE_EFFECT_OUTSIDE. Loads the module of the effect where it has one. */
int once_effect_driver_open(struct once_runner *runner, const once_handler_spec *handler,
                            struct once_effect_driver **out, once_error *err);

/* For every handler; do nothing, or return nothing, where the function is NULL. */
void once_effect_secrets(const once_handler_spec *handler, once_secret_visit *visit, void *user);
void once_effect_exposed(const once_handler_spec *handler, once_effect_warning *warn, void *user);
once_bytes once_effect_function(const once_handler_spec *handler);

/* --- SQL in the store's database (effect/sql.c) --- */

/* The SQL that runs in the transaction of the store, with prepared statements: the effects of handlers that have them
 * inside, and what follows effects outside (`then`). */
typedef struct once_effects once_effects;

/* Prepares every statement, so that a mistake in one is reported before the first message, as file:line. The bytes of
 * the salt must live as long as *out. */
int once_effects_open(const once_spec *spec, const once_keying *keying, once_db *db, once_effects **out,
                      once_error *err);
void once_effects_close(once_effects *effects);

/* Runs the effects of the items in order, and fills outcome, result and failure of each. Of an item that is back from
 * an effect outside (item->returned) it runs the `then`; DONE means that it ran.
 *
 * Not careful: stops at the first message that changed something and did not end done, and sets *failed; then nothing
 * may be committed. Careful: undoes what such a message did, and goes on. A message that ends the whole transaction
 * (RAISE(ROLLBACK), a timeout in SQLite) sets *failed, and ended_tx of its item. Where the database allows it
 * (once_db_presume), messages count as done before that is known; the commit fails when one was not. A statement that
 * makes the database roll back (a deadlock, a timeout) is a status, and its message is `suspect` where that is known;
 * with `blame` such a message gets the outcome RETRY. A status other than ONCE_OK is a failure that is not the
 * messages' fault. */
int once_effects_run(once_effects *effects, once_item *const *items, size_t n, bool careful, bool blame,
                     once_arena *arena, bool *failed, once_error *err);

#endif
