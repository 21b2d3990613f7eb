/* Effects: what a message does. Each kind is one table, once_effect_ops, in a file of its own, and one line of the list
 * below. Nobody else asks which kind a handler has: they ask for its bits (core/spec.h) or call its slots.
 *
 * Two halves: `prepare` makes the input out of a body (any thread, no state); then it is carried out. SQL in the
 * store's database runs on the store executor's thread and inside its transaction (once_effects, below); effects
 * outside of it are carried out by runner (effect/runner.h). */
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

/* What is said to whoever writes a field of another effect, where there is more to say than whose it is: "'already'
 * WHY; remove it". */
typedef struct once_effect_misfit {
    const char *field, *why;
} once_effect_misfit;

/* For `once check`: "command './charge'". */
typedef struct once_effect_shown {
    const char *what;
    once_bytes name;
    bool url; /* `name` is one; its password is not shown */
} once_effect_shown;

/* A sentence that warns, for `once check`. */
typedef void once_effect_warning(void *user, const char *text);

typedef int once_effect_open(struct once_runner *runner, const once_handler_spec *handler,
                             struct once_effect_driver **out, once_error *err);

/* What a module has of an effect. Everything else of it is always linked in, so that a pipeline file can be read, and a
 * message prepared, without the library that carries it out. */
typedef struct once_effect_part {
    once_effect_open *open;
} once_effect_part;

/* Slots that may be NULL say so. What is called with a handler is called with one whose effect this is. */
typedef struct once_effect_ops {
    const char *name;    /* "exec": the field of a handler that chooses it */
    const char *summary; /* one line for `once version` */
    unsigned bits;       /* ONCE_EFFECT_ of every handler with it; `conclude` may add others */

    /* --- its part of the pipeline file --- */

    /* `name` is the first. No other effect has a field of that name; the other fields may have names that other effects
     * use, too, but not those of a handler's own fields. */
    const once_config_field *fields;
    size_t n_fields;
    size_t size;                       /* of the struct that they are read into, which is handler->own */
    const void *standard;              /* that struct before anything is read; NULL: zeros */
    const once_effect_misfit *misfits; /* ends with a NULL field; or NULL */
    const char *section;               /* of docs/configuration.md, behind the tables; or NULL */
    /* What follows from its fields: more bits, `slots` (left 0 they are the pipeline's `workers`), `dead_reason`. Or
     * NULL. */
    void (*conclude)(once_handler_spec *handler);
    /* Rules between its fields, and those that only some handlers with it follow; it tells each mistake. `map` is the
     * handler's. Or NULL. */
    void (*check)(once_config *config, const once_node *map, const once_handler_spec *handler);

    /* --- messages --- */

    /* NULL: there is nothing to prepare. Not called where it does not run. */
    once_prepare *prepare;
    /* OUTSIDE: makes the driver that carries it out. The table of that driver (effect/driver.h) has `start`, `kill`,
     * `tick` and `close`; with ONCE_EFFECT_ASKS also `ask`. NULL: its module has it ... */
    once_effect_open *open;
    const char *module; /* ... which is this one, as the part "effect" of this name, a once_effect_part */

    /* --- for people --- */

    once_effect_shown (*describe)(const once_handler_spec *handler);                         /* OUTSIDE */
    void (*secrets)(const once_handler_spec *handler, once_secret_visit *visit, void *user); /* or NULL: it has none */
    /* What others of this machine may see, or put into what is run. Or NULL. */
    void (*exposed)(const once_handler_spec *handler, once_effect_warning *warn, void *user);
    /* The name of the function that the program must register. Or NULL: it calls none. */
    once_bytes (*function)(const once_handler_spec *handler);
    /* The database that an open driver works in, to ask about it while nothing runs. Or NULL: it has none. */
    once_db *(*db)(struct once_effect_driver *driver);
} once_effect_ops;

/* `lookup`: an effect that can ask the other side what became of an unknown gives its handlers ONCE_EFFECT_ASKS
 * and handler->lookup (in `conclude`), and its driver has `ask`. The rest is done elsewhere: the unknown has a due
 * time, `take` gives it out as one that `asks`, the driver gets it as a question, and the answer is settled
 * (core/policy.h). What could not be found out in its time is held or tried again, as `unknown` says.
 *
 * `then` (what is written in the store's database together with the outcome; no effect has it yet): a handler with
 * ONCE_EFFECT_THEN whose effect is done comes back to the transaction that settles it as EXTEND, RUN, SETTLE. `extend`
 * is the fence and holds until the commit; only what is still ours gets to RUN; what fails there makes the outcome
 * unknown, because the effect has happened. It fits the same table: fields of its own, and statements that RUN gets. */

/* The list, in the order in which they are named to people. */
#define ONCE_EFFECT_MAP(X)                                                                                             \
    X(sql)                                                                                                             \
    X(exec)                                                                                                            \
    X(callback)                                                                                                        \
    X(dead)

#define ONCE_EFFECT_DECLARE(name) extern const once_effect_ops once__effect_##name;
ONCE_EFFECT_MAP(ONCE_EFFECT_DECLARE)
#undef ONCE_EFFECT_DECLARE

const once_effect_ops *const *once_effect_list(size_t *n);

/* As core/intake.h wants it, for every effect that runs. */
int once_effect_prepare(const once_handler_spec *handler, const once_json *body, const once_message *message,
                        once_arena *arena, void **input, once_error *err);

/* The promise that the handler's effect carries: "atomic", "fenced", "natural", or "none" where nothing runs. */
const char *once_effect_mode(const once_handler_spec *handler);

/* Opens the driver of a handler with an external effect. Loads its module where it has one. */
int once_effect_driver_open(struct once_runner *runner, const once_handler_spec *handler,
                            struct once_effect_driver **out, once_error *err);

/* Each of these may be called for every handler; what the effect does not have is nothing. */
void once_effect_secrets(const once_handler_spec *handler, once_secret_visit *visit, void *user);
void once_effect_exposed(const once_handler_spec *handler, once_effect_warning *warn, void *user);
once_bytes once_effect_function(const once_handler_spec *handler);

/* --- SQL in the store's database (effect/sql.c) --- */

typedef struct once_effects
    once_effects; /* the SQL effects of all handlers, ready to run; handlers whose effect is outside are passed over */

/* Prepares every statement: a mistake in one is found before the first message, as file:line. The bytes of the salt
 * must live as long. */
int once_effects_open(const once_spec *spec, const once_keying *keying, once_db *db, once_effects **out,
                      once_error *err);
void once_effects_close(once_effects *effects);

/* Runs the effects of the items in order. Fills outcome, result and failure of each. When !careful it stops at the
 * first one that did something and did not end done, and sets *failed: nothing may then be committed. When careful,
 * what such a message did is undone. In both cases a message that ends the whole transaction (RAISE(ROLLBACK), a
 * timeout in SQLite) sets *failed and its item's ended_tx. Where the database allows it (once_db_presume), messages may
 * be taken for done before that is known; then the commit tells. A statement that has the database roll back (a
 * deadlock, a timeout) is a status, and its message is `suspect` where that is known; with `blame` such a message is to
 * be retried. A status other than ONCE_OK means that something is wrong that is not the messages' fault. */
int once_effects_run(once_effects *effects, once_item *const *items, size_t n, bool careful, bool blame,
                     once_arena *arena, bool *failed, once_error *err);

#endif
