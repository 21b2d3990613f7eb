/* SQL in the store's database: a handler's statements, run in the transaction of the store, so that effect and outcome
 * are one. The same for the statements that follow an effect outside (`then`, effect/then.h): they and its outcome are
 * one.
 *
 * A statement that fails is one of four things: an answer of the business (already, rejected, stale, retry, dead:
 * the message's outcome), a condition that no message of its handler will get past (a table is missing, permission is
 * denied: the message is released, and its handler paused), one that no message will get past (the disk is full: a
 * status for the whole pipeline), or the loss of the transaction (a status, too). Of a `then` the first two only say
 * that it was not written: what the message's outcome is, the machine decides. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/duration.h"
#include "base/failpoint.h"
#include "base/no_memory.h"
#include "base/plain.h"
#include "effect/effect.h"
#include "effect/sql_statements.h"
#include "effect/then.h"

#include "base/banned.h"

typedef struct sql_handler {
    const once_handler_spec *spec;
    const once_sql_list *sql; /* its effect, or its `then`; NULL: neither is here */
    once_stmt **statements;
} sql_handler;

struct once_effects {
    const once_spec *spec;
    once_keying keying;
    once_db *db;
    sql_handler *handlers; /* as spec->handlers */
    bool blame;            /* as in once_effects_run */
    once_result_reader results;
};

/* --- what an answer means --- */

enum { THEN_REASON = 700, RESULT_SHOWN = 200 };

/* Why a `then` was not written. The result of the effect is kept nowhere else: whoever does by hand what `then` does
 * needs it. In quotes, so that reasons that differ in it alone are one group (runtime/choice.c). */
static once_bytes reason_of_then(const once_item *item, const char *why, char out[THEN_REASON])
{
    const once_bytes result = item->came_with;
    const int shown = result.len < RESULT_SHOWN ? (int)result.len : RESULT_SHOWN;
    const int n = snprintf(out, THEN_REASON, "its effect has happened, and its 'then' was not written: %.300s%s%.*s%s",
                           why, shown ? "; its result: '" : "", shown, shown ? result.data : "", shown ? "'" : "");
    assert(n > 0 && n < THEN_REASON);
    return (once_bytes){out, once_make_plain(out, strlen(out), '?')};
}

static void fail_item(once_item *item, once_outcome outcome, once_arena *arena, const char *text)
{
    assert(outcome != ONCE_DONE && outcome != ONCE_UNKNOWN); /* inside of a transaction nothing is half done */
    char then[THEN_REASON];
    item->outcome = outcome;
    const once_bytes why = item->returned ? reason_of_then(item, text, then) : (once_bytes){text, strlen(text)};
    if (!once_arena_copy(arena, why, &item->failure)) item->failure = ONCE_BYTES("out of memory for the reason");
}

/* The whole transaction is gone with it; the message is not run again in this batch, and its outcome is settled with
 * the others. */
static void fail_all(once_item *item, once_outcome outcome, const char *text)
{
    item->ended_tx = true;
    fail_item(item, outcome, &item->batch->arena, text);
    item->reason = item->failure;
}

/* We ended its statement, and nothing that it did remains. A timeout is a failure of the message; a stop is not. */
static void was_ended(once_item *item, const once_fault *fault, once_arena *arena)
{
    const bool late = fault->kind == ONCE_FAULT_TIMEOUT;
    char text[80], limit[ONCE_DURATION_TEXT];
    snprintf(text, sizeof text, "rolled back %s%s", late ? "at its timeout of " : "before it had ended",
             late ? once_duration_format(item->handler->timeout_ms, limit) : "");
    if (fault->aborted) fail_all(item, late ? ONCE_RETRY : ONCE_RELEASE, text);
    else fail_item(item, late ? ONCE_RETRY : ONCE_RELEASE, arena, text);
}

/* Whether a fault is an answer about the message. The lists of a handler (`already`, `retry.on`) are about its
 * effect. */
static bool is_answer(const sql_handler *handler, const once_item *item, const once_fault *fault, once_outcome *outcome)
{
    if (!item->returned) return once_sql_judge(handler->spec, fault, outcome);
    *outcome = ONCE_DEAD;
    return once_sql_is_answer(fault);
}

/* No message of this handler gets past it until somebody acts. */
static bool pauses_handler(int rc, const once_fault *fault)
{
    const bool of_statement = rc == ONCE_E_SCHEMA || rc == ONCE_E_DENIED || rc == ONCE_E_MISSING;
    return fault->kind == ONCE_FAULT_PAUSE && of_statement && !fault->aborted;
}

/* A statement of a message has failed. ONCE_OK: that is the message's outcome. */
static int judge(const once_effects *effects, const sql_handler *handler, const once_sql_statement *statement, int rc,
                 const once_fault *fault, once_item *item, once_arena *arena, once_error *err)
{
    once_outcome outcome = ONCE_DEAD;
    if (fault->kind == ONCE_FAULT_TIMEOUT || fault->kind == ONCE_FAULT_STOPPED) {
        was_ended(item, fault, arena);
        return ONCE_OK;
    }
    bool answers = is_answer(handler, item, fault, &outcome);
    if (fault->kind == ONCE_FAULT_RETRY && (rc == ONCE_E_ABORTED || rc == ONCE_E_BUSY)) {
        item->suspect = !answers;
        if (effects->blame && !answers) outcome = ONCE_RETRY;
        answers |= effects->blame;
    }
    /* RAISE(ROLLBACK): the transaction of all messages is gone */
    if (fault->aborted && fault->kind == ONCE_FAULT_CONSTRAINT) {
        fail_all(item, outcome, fault->text);
        return ONCE_OK;
    }
    if (fault->aborted || !answers) {
        once_error why;
        once_fail(&why, rc, "%.*s:%d: %s", (int)effects->spec->file.len, effects->spec->file.data, statement->line,
                  fault->text);
        if (!pauses_handler(rc, fault)) return once_fail(err, rc, "%s", why.text);
        item->run_failure = rc;
        fail_item(item, ONCE_RELEASE, arena, why.text);
        return ONCE_OK;
    }
    fail_item(item, outcome, arena, fault->text);
    return ONCE_OK;
}

/* Whether the statement changed or returned as many rows as `rows` says. */
static bool met(const once_sql_statement *statement, size_t i, int64_t rows, once_item *item, once_arena *arena)
{
    assert(rows >= 0);
    char text[120];
    if (once_sql_met(statement, i, rows, text, sizeof text)) return true;
    fail_item(item, statement->unmet, arena, text);
    return false;
}

static const sql_handler *handler_of(const once_effects *effects, const once_item *item)
{
    const sql_handler *handler = &effects->handlers[item->handler - effects->spec->handlers];
    assert(handler->statements);
    return handler;
}

static once_value *values_of(const once_item *item) { return item->returned ? item->then_input : item->input; }

static bool is_stopped_before(const once_item *item)
{
    return item->returned ? ONCE_FAIL_AT(then_before) : ONCE_FAIL_AT(effect_before);
}
static bool is_stopped_between(const once_item *item)
{
    return item->returned ? ONCE_FAIL_AT(then_between) : ONCE_FAIL_AT(effect_between);
}
static bool is_stopped_after(const once_item *item)
{
    return item->returned ? ONCE_FAIL_AT(then_after) : ONCE_FAIL_AT(effect_after);
}

static void begin_item(once_item *item)
{
    item->outcome = ONCE_DONE;
    item->run_failure = ONCE_OK;
    item->result = item->failure = (once_bytes){0};
}

/* Runs one message. *dirty: some of its statements took effect although the message did not succeed. `alone`: a
 * check that fails at the commit is this message's. */
static int run_one(once_effects *effects, once_item *item, bool alone, once_arena *arena, bool *dirty, once_error *err)
{
    const sql_handler *handler = handler_of(effects, item);
    const once_value *values = values_of(item);
    *dirty = false;
    begin_item(item);

    if (is_stopped_before(item)) {
        fail_item(item, ONCE_RETRY, arena, "failpoint 'effect_before'");
        return ONCE_OK;
    }
    char why[300];
    if (!once_sql_fits(effects->db, handler->sql, values, why, sizeof why)) {
        fail_item(item, ONCE_DEAD, arena, why);
        return ONCE_OK;
    }
    for (size_t i = 0; i < handler->sql->n; i++) {
        const once_sql_statement *statement = &handler->sql->at[i];
        once_fault fault;
        int64_t rows = 0;
        if (i > 0 && is_stopped_between(item)) {
            *dirty = true;
            fail_item(item, ONCE_RETRY, arena, "failpoint 'effect_between'");
            return ONCE_OK;
        }
        const int rc = once_stmt_run(handler->statements[i], values, statement->n, &rows, &fault);
        values += statement->n;
        if (rc != ONCE_OK) {
            *dirty = i > 0 || fault.changed;
            return judge(effects, handler, statement, rc, &fault, item, arena, err);
        }
        if (!met(statement, i, rows, item, arena)) {
            *dirty = i > 0 || rows > 0;
            return ONCE_OK;
        }
    }
    once_fault fault;
    const int deferred = alone ? once_db_check_deferred(effects->db, &fault) : ONCE_OK;
    if (deferred != ONCE_OK) {
        *dirty = true;
        return judge(effects, handler, &handler->sql->at[handler->sql->n - 1], deferred, &fault, item, arena, err);
    }
    if (is_stopped_after(item)) {
        *dirty = true;
        fail_item(item, ONCE_RETRY, arena, "failpoint 'effect_after'");
    }
    return ONCE_OK;
}

/* --- many messages in one round trip --- */

/* The part of a message that was sent. */
typedef struct sent_item {
    size_t statements;  /* of its handler's */
    const char *broken; /* why no more was sent, for a failpoint; NULL: all of it was */
    once_fault fault;   /* kind DATA or PAUSE: a value cannot be sent, either */
    int status;         /* of that */
} sent_item;

/* ONCE_OK unless the connection fails. */
static int send_one(once_effects *effects, const once_item *item, bool careful, sent_item *out, once_error *err)
{
    const sql_handler *handler = handler_of(effects, item);
    const once_value *values = values_of(item);
    *out = (sent_item){0};
    int rc = careful ? once_db_savepoint_send(effects->db, err) : ONCE_OK;
    if (rc != ONCE_OK) return rc;
    if (is_stopped_before(item)) out->broken = "failpoint 'effect_before'";
    for (size_t i = 0; i < handler->sql->n && !out->broken; i++) {
        const once_sql_statement *statement = &handler->sql->at[i];
        if (i > 0 && is_stopped_between(item)) out->broken = "failpoint 'effect_between'";
        if (out->broken) break;
        rc = once_stmt_send(handler->statements[i], values, statement->n, &out->fault);
        values += statement->n;
        if (rc != ONCE_OK && out->fault.kind != ONCE_FAULT_DATA && !pauses_handler(rc, &out->fault))
            return once_fail(err, rc, "%.*s:%d: %s", (int)effects->spec->file.len, effects->spec->file.data,
                             statement->line, out->fault.text);
        out->status = rc;
        if (rc != ONCE_OK) return ONCE_OK;
        out->statements++;
    }
    if (!out->broken && is_stopped_after(item)) out->broken = "failpoint 'effect_after'";
    return careful && !out->broken ? once_db_savepoint_release_send(effects->db, err) : ONCE_OK;
}

static bool is_whole(const sent_item *sent) { return !sent->broken && sent->fault.kind == ONCE_FAULT_NONE; }

/* *failed: the message has not succeeded; its outcome says why. */
static int gather_one(once_effects *effects, once_item *item, bool careful, const sent_item *sent, once_arena *arena,
                      bool *failed, once_error *err)
{
    assert(sent->statements <= handler_of(effects, item)->sql->n);
    assert(!*failed);
    const sql_handler *handler = handler_of(effects, item);
    const once_value *values = values_of(item);
    begin_item(item);
    int rc = careful ? once_db_savepoint_gather(effects->db, err) : ONCE_OK;
    if (rc != ONCE_OK) return rc;
    for (size_t i = 0; i < sent->statements; i++) {
        const once_sql_statement *statement = &handler->sql->at[i];
        once_fault fault;
        int64_t rows = 0;
        rc = once_stmt_gather(handler->statements[i], values, statement->n, &rows, &fault);
        values += statement->n;
        *failed = rc != ONCE_OK || !met(statement, i, rows, item, arena);
        if (rc != ONCE_OK) return judge(effects, handler, statement, rc, &fault, item, arena, err);
        if (*failed) return ONCE_OK;
    }
    if (is_whole(sent)) return careful ? once_db_savepoint_gather(effects->db, err) : ONCE_OK;
    *failed = true;
    if (sent->broken) fail_item(item, ONCE_RETRY, arena, sent->broken);
    else
        return judge(effects, handler, &handler->sql->at[sent->statements], sent->status, &sent->fault, item, arena,
                     err);
    return ONCE_OK;
}

/* Sends up to n messages and reads their answers. *done: how many succeeded; with *failed the one behind them has
 * failed, and what was sent behind that one has not run. */
static int run_together(once_effects *effects, once_item *const *items, size_t n, bool careful, once_arena *arena,
                        size_t *done, bool *failed, once_error *err)
{
    assert(n > 0 && !*failed);
    sent_item *sent = once_arena_new(arena, sent_item, n);
    size_t count = 0;
    *done = 0;
    if (!sent) return once_no_memory(err, "for a batch");
    int rc = ONCE_OK;
    while (count < n && rc == ONCE_OK && (count == 0 || is_whole(&sent[count - 1]))) {
        rc = send_one(effects, items[count], careful, &sent[count], err);
        count++;
    }
    while (*done < count && rc == ONCE_OK && !*failed) {
        rc = gather_one(effects, items[*done], careful, &sent[*done], arena, failed, err);
        if (rc == ONCE_OK && !*failed) ++*done;
    }
    if (rc != ONCE_OK || *failed) once_db_drop(effects->db);
    return rc;
}

/* Checks that the database makes at the commit, for a batch. *failed: a message violates one, or nothing will work
 * until an operator acts; a careful pass finds out which message it is. Any other failure passes, and is no
 * message's fault. */
static int check_deferred(once_effects *effects, bool *failed, once_error *err)
{
    once_fault fault;
    const int rc = once_db_check_deferred(effects->db, &fault);
    *failed = rc == ONCE_E_MESSAGE || (rc != ONCE_OK && fault.kind == ONCE_FAULT_PAUSE);
    return rc == ONCE_OK || *failed ? ONCE_OK : once_fail(err, rc, "%s", fault.text);
}

static int run_sent(once_effects *effects, once_item *const *items, size_t n, once_arena *arena, bool *failed,
                    once_error *err)
{
    size_t done;
    int rc = once_db_confirm(effects->db, err);
    if (rc == ONCE_OK) rc = run_together(effects, items, n, false, arena, &done, failed, err);
    return rc == ONCE_OK && !*failed ? check_deferred(effects, failed, err) : rc;
}

/* Whether a message has succeeded when none of its statements fails. */
static bool is_unconditional(const once_effects *effects, const once_item *item)
{
    const sql_handler *handler = handler_of(effects, item);
    for (size_t i = 0; i < handler->sql->n; i++)
        if (handler->sql->at[i].rows >= 0) return false;
    return true;
}

static bool all_unconditional(const once_effects *effects, once_item *const *items, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!is_unconditional(effects, items[i])) return false;
    return true;
}

/* Sends the statements and takes all of them for done, so that the commit shares their round trip: it cannot succeed
 * when one of them failed, or when it finds that a deferred check fails. A careful pass then finds the message. */
static int run_presumed(once_effects *effects, once_item *const *items, size_t n, bool *failed, once_error *err)
{
    assert(all_unconditional(effects, items, n)); /* rows that were not counted cannot be missing */
    for (size_t i = 0; i < n; i++) {
        sent_item sent;
        const int rc = send_one(effects, items[i], false, &sent, err);
        if (rc != ONCE_OK) return rc;
        begin_item(items[i]);
        if (is_whole(&sent)) continue;
        once_db_drop(effects->db);
        *failed = true;
        return ONCE_OK;
    }
    return once_db_presume(effects->db, err);
}

/* Whether a message is known to have succeeded as soon as its statements have run. */
static bool is_plain(once_effects *effects, const once_item *item)
{
    return is_unconditional(effects, item) && !once_db_may_defer(effects->db);
}

/* From `items` on, as many plain ones as there are; the others are run one by one. */
static int run_plain(once_effects *effects, once_item *const *items, size_t n, once_arena *arena, size_t *used,
                     once_error *err)
{
    enum { MESSAGES_AT_A_TIME = 64 };
    size_t count = 0;
    bool failed = false;
    *used = 0;
    while (count < n && count < MESSAGES_AT_A_TIME && is_plain(effects, items[count])) count++;
    if (count == 0) return ONCE_OK;
    int rc = run_together(effects, items, count, true, arena, used, &failed, err);
    if (rc != ONCE_OK || !failed) return rc;
    ++*used;
    return once_db_savepoint_undo(effects->db, err);
}

/* Completes the values of all items, and puts those that can run into `out`. A `then` whose result lacks something has
 * failed: nothing of it was written. */
static int fill_items(once_effects *effects, once_item *const *items, size_t n, once_arena *arena, once_item **out,
                      size_t *n_out, once_error *err)
{
    *n_out = 0;
    for (size_t i = 0; i < n; i++) {
        once_item *item = items[i];
        once_error why;
        once_sql_fill(handler_of(effects, item)->sql, values_of(item), item, &effects->keying);
        const int rc = item->returned ? once_then_bind(&effects->results, item, arena, &why) : ONCE_OK;
        if (rc == ONCE_OK) out[(*n_out)++] = item;
        else if (rc == ONCE_E_MESSAGE) fail_item(item, ONCE_DEAD, arena, why.text);
        else return once_fail(err, rc, "%s", why.text);
    }
    return ONCE_OK;
}

static int run_filled(once_effects *effects, once_item *const *items, size_t n, bool careful, once_arena *arena,
                      bool *failed, once_error *err)
{
    if (!careful && once_db_sends(effects->db))
        return all_unconditional(effects, items, n) ? run_presumed(effects, items, n, failed, err)
                                                    : run_sent(effects, items, n, arena, failed, err);
    const int known = once_db_sends(effects->db) ? once_db_confirm(effects->db, err) : ONCE_OK;
    if (known != ONCE_OK) return known;
    for (size_t i = 0; i < n; i++) {
        bool dirty;
        if (once_db_sends(effects->db)) {
            size_t used;
            const int plain = run_plain(effects, items + i, n - i, arena, &used, err);
            if (plain != ONCE_OK) return plain;
            if (used) {
                i += used - 1;
                continue;
            }
        }
        int rc = careful ? once_db_savepoint(effects->db, err) : ONCE_OK;
        if (rc != ONCE_OK) return rc;
        once_db_limit(effects->db, items[i]->handler->timeout_ms);
        rc = run_one(effects, items[i], careful, arena, &dirty, err);
        once_db_limit(effects->db, 0);
        if (rc != ONCE_OK) {
            if (careful) once_db_savepoint_undo(effects->db, NULL); /* the transaction is lost anyway */
            return rc;
        }
        if (items[i]->ended_tx) {
            if (careful) once_db_savepoint_undo(effects->db, NULL); /* went with the transaction */
            *failed = true;
            return ONCE_OK;
        }
        if (careful) {
            rc = dirty ? once_db_savepoint_undo(effects->db, err) : once_db_savepoint_release(effects->db, err);
            if (rc != ONCE_OK) return rc;
        } else if (dirty) {
            *failed = true; /* what this message did cannot be undone alone */
            return ONCE_OK;
        }
    }
    return careful ? ONCE_OK : check_deferred(effects, failed, err);
}

int once_effects_run(once_effects *effects, once_item *const *items, size_t n, bool careful, bool blame,
                     once_arena *arena, bool *failed, once_error *err)
{
    assert(items && failed);
    assert(!blame || (careful && n == 1));
    *failed = false;
    effects->blame = blame;
    once_item **filled = once_arena_new(arena, once_item *, n);
    if (!filled) return once_no_memory(err, "for a batch");
    const int rc = fill_items(effects, items, n, arena, filled, &n, err);
    return rc == ONCE_OK && n > 0 ? run_filled(effects, filled, n, careful, arena, failed, err) : rc;
}

/* --- open, close --- */

/* What of a handler runs in the transaction of the store; NULL: nothing. */
static const once_sql_list *list_of(const once_handler_spec *handler)
{
    if (handler->then) return once_then_list(handler);
    return once_handler_inside(handler) ? &once_sql_of(handler)->does : NULL;
}

int once_effects_open(const once_spec *spec, const once_keying *keying, once_db *db, once_effects **out,
                      once_error *err)
{
    once_effects *effects = calloc(1, sizeof *effects);
    if (!effects || !(effects->handlers = calloc(spec->n_handlers, sizeof *effects->handlers))) {
        free(effects);
        return once_no_memory(err, "for the handlers");
    }
    effects->spec = spec;
    effects->keying = *keying;
    effects->db = db;
    for (size_t i = 0; i < spec->n_handlers; i++) {
        sql_handler *handler = &effects->handlers[i];
        handler->spec = &spec->handlers[i];
        handler->sql = list_of(handler->spec);
        if (!handler->sql) continue;
        assert(db); /* a pipeline whose store has none was refused */
        const int rc = once_sql_open(spec, handler->sql, db, &handler->statements, err);
        if (rc != ONCE_OK) {
            once_effects_close(effects);
            return rc;
        }
    }
    *out = effects;
    return ONCE_OK;
}

void once_effects_close(once_effects *effects)
{
    if (!effects) return;
    for (size_t i = 0; i < effects->spec->n_handlers; i++) {
        const sql_handler *handler = &effects->handlers[i];
        once_sql_close(handler->sql, handler->statements);
    }
    once_result_reader_release(&effects->results);
    free(effects->handlers);
    free(effects);
}
