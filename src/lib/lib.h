/* What the public store and handle functions share.
 *
 * The public once_store is a guard around a backend, which is for one thread: every verb of the public layer goes
 * through once__guard_enter and once__guard_leave. The secret and the environment of a backend never change, and may
 * be read without the lock. */
#ifndef ONCE_LIB_LIB_H
#define ONCE_LIB_LIB_H

#include <pthread.h>
#include <sys/types.h>

#include "core/call.h"
#include "core/outward.h"
#include "core/policy.h"
#include "once/handle.h"
#include "store/store.h"

struct once_store {
    once_backend *inner;
    pthread_mutex_t lock;
    pid_t pid; /* that opened it */
};

/* Takes over `inner`, which is closed with it, or at once when this fails. Tests guard a store that fails. */
int once__store_guard(once_backend *inner, once_store **out, once_error *err);
/* ONCE_E_USAGE in a process that has not opened it. */
int once__guard_enter(once_store *store, once_backend **inner, once_error *err);
void once__guard_leave(once_store *store);

/* A delivery that was checked, with everything that the verbs of a store need. Bytes are the caller's, or in the
 * arena. */
typedef struct once_plan {
    once_terms terms; /* without zeros */
    once_scope scope;
    once_request request; /* without a token */
    once_message message;
} once_plan;

int once__terms_read(const once_terms *from, once_terms *out, once_error *err);
int once__plan_make(const once_backend *store, const once_scope *scope, const once_delivery *delivery,
                    once_arena *arena, once_plan *out, once_error *err);
void once__plan_outward_key(const once_backend *store, const once_plan *plan, bool old_key, once_outward out);
once_message once__message_of(const once_delivery *delivery);
once_token once__token_new(const once_env *env);

/* ---- one delivery on its way (handle.c) ---- */

typedef struct once_work {
    const once_backend *store; /* secret and env */
    const once_scope *scope;   /* as the caller gave them */
    const once_delivery *delivery;
    once_arena arena;
    once_plan plan;
    once_decision decision;
    once_reply reply;
    bool called; /* the handler ran */
    once_settlement settlement;
} once_work;

/* Release `work` in any case. */
int once__work_begin(once_work *work, const once_backend *store, const once_scope *scope, const once_delivery *delivery,
                     once_error *err);
void once__work_release(once_work *work);
/* RUN: calls the handler, unless the budget is spent, and leaves in work->settlement what is to be written. */
void once__work_call(once_work *work, once_callback *callback, void *user, struct sqlite3 *db, struct pg_conn *pg,
                     once_keeper *keeper);
/* CONFLICT and TOO_OLD: the letter that is to be written; false for other answers. */
bool once__work_letter(once_work *work, once_letter *out);
/* UNKNOWN: attaches the body, which the operator who decides may need, and which a process that died has not left. */
int once__work_attach(once_backend *store, once_work *work, once_error *err);
/* Everything is written: fills the caller's result. E_NOMEM for the copy of a result. */
int once__work_report(once_work *work, once_verdict *out, once_error *err);

#endif
