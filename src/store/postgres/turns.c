/* After a deadlock the batches of a consumer take turns for a while.
 *
 * Effects lock rows of the user's tables in the order of the messages, so two workers that update the same rows
 * deadlock. The server notices after a second (deadlock_timeout) and rolls one of them back, and then they meet again:
 * far slower than one worker alone. So a worker that was rolled back, or that gave up after waiting for a lock, writes
 * a fact: the batches of this consumer take turns until a time of the server's clock. If that did not help for long,
 * the next period is twice as long. During the period each batch first takes an advisory lock of the consumer, which
 * ends with its transaction, so a pooler does not matter. At all other times a batch only reads one row more.
 *
 * A batch that does not get its turn at once pauses outside of a transaction: mostly the worker that has the turn goes
 * on with its next batch then, as fast as one worker alone. After the pause it waits in the server, and is next.
 *
 * A transaction that waits for a lock holds a snapshot, and the server must keep all row versions that it might see:
 * hot rows get long version chains, and all workers become slow. A snapshot that is not older than the batch at work
 * costs nothing, because nobody sees the changes of that batch before its end. So few batches may wait in the server:
 * those that have a seat. That is an advisory lock, too, and is kept until the batch has ended. There are two seats:
 * mostly the batch at work has one, and the next batch the other. Whoever finds both taken pauses again. All that a
 * batch wants to do is sent behind its wait, so that the server goes on with it at once. Only a batch that has tried
 * often waits without a seat. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"
#include "store/postgres/postgres.h"

#include "base/banned.h"

enum { TURNS_MS = 5000, TURNS_MAX_MS = 60000 };
/* A batch that waits this long for a lock gives up: another batch has the same rows or lanes, and if it is a deadlock,
 * the server takes at least ten times as long to notice. The time is random up to a maximum, because all in a deadlock
 * begin to wait at the same time: when the first one gives up, the others need not. Not during a turn, where no other
 * batch of the consumer is in the way, and not where the user has set a lock_timeout. */
enum { PATIENT_MS = 50, PATIENT_MAX_MS = 100 };
enum { TURN_PAUSE_MS = 80, TURN_TRIES = 32, TURN_WAIT_MS = 320, TURN_LONGER = 3 };

int once__pg_turns_init(once_postgres *q, once_bytes consumer, once_error *err)
{
    assert(!q->turns.name && consumer.len > 0);
    static const char prefix[] = "turns/";
    const once_scope scope = {.consumer = consumer, .operation = ONCE_BYTES("turns")};
    q->turns.key = (int64_t)once_key_id(q->storage.store.secret, &scope, ONCE_BYTES("turns")).a;
    const size_t size = sizeof prefix + consumer.len;
    q->turns.name = malloc(size);
    if (!q->turns.name) return once_no_memory(err, "for the postgres store");
    (void)snprintf(q->turns.name, size, "%s%.*s", prefix, (int)consumer.len, consumer.data);
    return ONCE_OK;
}

static void param_name(const once_postgres *q, once_pg_params *params)
{
    once__pg_param_bytes(params, (once_bytes){q->turns.name, strlen(q->turns.name)});
}

int once__pg_turns_tell(once_postgres *q, once_error *err)
{
    once_pg_params params = {0};
    PGresult *results[4];
    size_t sent = 0;
    if (!q->turns.due) return ONCE_OK;
    assert(!q->begun && !q->pg->borrowed);
    param_name(q, &params);
    once__pg_param_int8(&params, TURNS_MS);
    once__pg_param_int8(&params, TURNS_MAX_MS);
    once__pg_param_now(q, &params);
    int rc = once__pg_begin_sql(q->pg, PG_BEGIN_WRITE, &sent, err);
    if (rc == ONCE_OK) rc = once__pg_send(q->pg, PG_TURNS_BEGIN, &params, err);
    if (rc == ONCE_OK) rc = once__pg_send_text(q->pg, "COMMIT", err);
    if (rc == ONCE_OK) rc = once__pg_round(q->pg, results, sent + 2, err);
    if (rc == ONCE_OK) once__pg_clear(results, sent + 2);
    else if (once__pg_alive(q->pg) && PQtransactionStatus(q->pg->conn) == PQTRANS_INERROR)
        (void)once__pg_exec(q->pg, "ROLLBACK", NULL, NULL);
    q->turns.due = rc != ONCE_OK;
    return rc;
}

/* How long a batch waits for one lock. Others may be faster to get a seat after that, so the wait grows. */
static int64_t wait_ms(const once_postgres *q)
{
    const unsigned longer = q->turns.tries / TURN_TRIES;
    return (int64_t)TURN_WAIT_MS << (longer < TURN_LONGER ? longer : TURN_LONGER);
}

static void param_seats(const once_postgres *q, once_pg_params *params)
{
    for (uint64_t i = 1; i <= PG_SEATS; i++) once__pg_param_int8(params, (int64_t)((uint64_t)q->turns.key + i));
}

static int turn_send(once_postgres *q, once_error *err)
{
    static const unsigned statements[] = {[PG_TRY] = PG_TURN_TRY, [PG_SIT] = PG_TURN_SEAT, [PG_WAIT] = PG_TURN};
    once_pg_params params = {0};
    param_name(q, &params);
    once__pg_param_now(q, &params);
    if (q->turns.how == PG_SIT) param_seats(q, &params);
    else once__pg_param_int8(&params, q->turns.key);
    if (q->turns.how == PG_WAIT) once__pg_param_int8(&params, wait_ms(q));
    return once__pg_send(q->pg, statements[q->turns.how], &params, err);
}

static int locks_send(once_postgres *q, once_error *err)
{
    assert(q->n_locks > 0 && q->locks);
    static const unsigned statements[] = {[PG_TRY] = PG_LOCKS_TRY, [PG_SIT] = PG_LOCKS_SEAT, [PG_WAIT] = PG_LOCKS};
    once_pg_params params = {0};
    once__pg_array_begin(&q->columns[0], PG_INT8);
    for (size_t i = 0; i < q->n_locks; i++) once__pg_put_int8(&q->columns[0], (int64_t)q->locks[i]);
    once__pg_param_array(&params, &q->columns[0]);
    if (q->turns.how == PG_SIT) param_seats(q, &params);
    if (q->turns.how == PG_WAIT) once__pg_param_int8(&params, wait_ms(q));
    return once__pg_send(q->pg, statements[q->turns.how], &params, err);
}

int once__pg_turn_send(once_postgres *q, size_t *sent, once_error *err)
{
    assert(q->batch); /* together with BEGIN, before anything is locked */
    q->turns.at = SIZE_MAX;
    if (!q->turns.name) return ONCE_OK;
    q->turns.at = *sent;
    int rc = turn_send(q, err);
    *sent += rc == ONCE_OK;
    if (rc == ONCE_OK && q->n_locks) {
        rc = locks_send(q, err);
        *sent += rc == ONCE_OK;
    }
    return rc;
}

void once__pg_turn_taken(once_postgres *q)
{
    q->turns.at = SIZE_MAX;
    q->turns.how = q->turns.how == PG_SIT ? PG_WAIT : PG_TRY;
}

bool once__pg_turn_missed(const once_postgres *q)
{
    const size_t at = q->pg->failed_at;
    if (q->turns.at == SIZE_MAX) return false;
    return (at == q->turns.at || (q->n_locks && at == q->turns.at + 1)) &&
           strcmp(q->pg->failed_state, q->turns.how == PG_WAIT ? "55P03" : "22012") == 0;
}

/* Pauses are random, and longer after more tries: each try also costs the batch that has the turn. */
void once__pg_turn_again(once_postgres *q)
{
    enum { EAGER = 8, LONGER = 1 };
    const once_env *env = q->storage.store.env;
    const unsigned longer = q->turns.tries / EAGER;
    if (q->turns.how != PG_WAIT)
        once_env_sleep_ms(env, 1 + (int64_t)(once_env_random_u64(env) %
                                             ((uint64_t)TURN_PAUSE_MS << (longer < LONGER ? longer : LONGER))));
    q->turns.tries++;
    q->turns.how = q->turns.tries < TURN_TRIES ? PG_SIT : PG_WAIT;
}

int once__pg_plan_send(once_postgres *q, once_error *err)
{
    once_pg_params params = {0};
    if (!q->batch || !q->turns.name) return once__pg_send(q->pg, PG_PLAN, NULL, err);
    param_name(q, &params);
    once__pg_param_now(q, &params);
    once__pg_param_int8(
        &params, PATIENT_MS + (int64_t)(once_env_random_u64(q->storage.store.env) % (PATIENT_MAX_MS - PATIENT_MS + 1)));
    return once__pg_send(q->pg, PG_PLAN_BATCH, &params, err);
}
