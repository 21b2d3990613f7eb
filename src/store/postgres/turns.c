/* After a deadlock the batches of a consumer take turns for a while.
 *
 * Effects lock rows of the user's tables in the order of the messages, so two workers that update the same rows
 * deadlock. The server notices after a second (deadlock_timeout) and rolls one of them back, and then they meet again:
 * far slower than one worker alone. So a worker that was rolled back, or that gave up after waiting for a lock, writes
 * a fact: the batches of this consumer take turns until a time of the server's clock. If that did not help for long,
 * the next period is twice as long. During the period each batch first takes an advisory lock of the consumer, which
 * ends with its transaction, so a pooler does not matter. At all other times a batch only reads one row more.
 *
 * A batch in which no effect runs needs no turn, and must not wait for one: it settles what has run outside, and
 * extends leases, which would end meanwhile.
 *
 * A batch first tries to get its turn without waiting. If another batch has it, this one and the next ones queue in the
 * server. All that a batch wants to do is sent behind its wait, so the server goes on with it at once.
 *
 * A statement that waits for an advisory lock or for a row holds a snapshot, and the server must keep all row versions
 * that it might see: hot rows get long version chains, and all workers become slow. LOCK TABLE waits without a
 * snapshot. So the queue is a table lock, and its head alone waits for the turn. There is one queue for all consumers
 * of a store. A batch that has queued for long tries its turn in between, so that a slow consumer does not keep the
 * others from theirs. It then queues again at the end, and for twice as long: otherwise those who were served would
 * always be ahead of it. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"
#include "store/postgres/live.h"

#include "base/banned.h"

enum { TURNS_MS = 5000, TURNS_MAX_MS = 60000 };
/* A batch that waits this long for a lock gives up: another batch has the same rows or lanes, and if it is a deadlock,
 * the server takes a second to notice. The time is random up to a maximum, because all in a deadlock begin to wait at
 * the same time: when the first one gives up, the others need not. Turns cost little, so that it may be short. Not
 * during a turn, where no other batch of the consumer is in the way, and not where the user has set a lock_timeout. */
enum { PATIENT_MS = 20, PATIENT_MAX_MS = 40 };
/* A batch queues for so long before it tries its turn; twice as long the next time. */
enum { QUEUE_MS = 1000, QUEUE_MAX_MS = 16000 };
/* After a batch had to wait, so many queue at once: each try in vain costs a round trip. Not after one that has queued
 * in vain: the queue is that of another consumer, and costs more. */
enum { CROWDED = 32 };

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

static int turn_send(once_postgres *q, once_error *err)
{
    once_pg_params params = {0};
    param_name(q, &params);
    once__pg_param_now(q, &params);
    once__pg_param_int8(&params, q->turns.key);
    if (q->turns.queues && q->n_locks) once__pg_param_null(&params); /* PG_LOCKS follows, and waits as long */
    else if (q->turns.queues) once__pg_param_int8(&params, 1);
    return once__pg_send(q->pg, q->turns.queues ? PG_TURN : PG_TURN_TRY, &params, err);
}

static int locks_send(once_postgres *q, once_error *err)
{
    assert(q->n_locks > 0 && q->locks);
    once_pg_params params = {0};
    once__pg_array_begin(&q->columns[0], PG_INT8);
    for (size_t i = 0; i < q->n_locks; i++) once__pg_put_int8(&q->columns[0], (int64_t)q->locks[i]);
    once__pg_param_array(&params, &q->columns[0]);
    return once__pg_send(q->pg, q->turns.queues ? PG_LOCKS : PG_LOCKS_TRY, &params, err);
}

void once__pg_param_queue(const once_postgres *q, once_pg_params *params)
{
    if (q->batch && q->turns.needed && q->turns.queues) once__pg_param_int8(params, q->turns.queue_ms);
    else once__pg_param_null(params);
}

int once__pg_turn_send(once_postgres *q, size_t *n, once_error *err)
{
    assert(q->batch); /* together with BEGIN, before anything is locked */
    size_t sent = *n;
    int rc = ONCE_OK;
    if (!q->turns.needed) return ONCE_OK;
    q->turns.at = sent;
    if (q->turns.queues) SEND(once__pg_send(q->pg, PG_QUEUE, NULL, err));
    SEND(turn_send(q, err));
    if (q->n_locks) SEND(locks_send(q, err));
    *n = q->turns.at_end = sent;
    return rc;
}

void once__pg_turn_plan(once_postgres *q, bool effects)
{
    q->turns.needed = effects && q->turns.name;
    q->turns.queues = q->turns.needed && q->turns.crowded > 0;
    q->turns.queue_ms = QUEUE_MS;
    if (q->turns.queues) q->turns.crowded--;
    once__pg_turn_taken(q);
}

void once__pg_turn_taken(once_postgres *q) { q->turns.at = q->turns.at_end = 0; }

bool once__pg_turn_missed(const once_postgres *q)
{
    const size_t at = q->pg->failed_at;
    return at >= q->turns.at && at < q->turns.at_end &&
           strcmp(q->pg->failed_state, q->turns.queues ? "55P03" : "22012") == 0;
}

void once__pg_turn_again(once_postgres *q)
{
    q->turns.queues = !q->turns.queues;
    q->turns.crowded = q->turns.queues ? CROWDED : 0;
    if (!q->turns.queues && q->turns.queue_ms < QUEUE_MAX_MS) q->turns.queue_ms *= 2;
    once__pg_turn_taken(q);
}

int once__pg_plan_send(once_postgres *q, once_error *err)
{
    once_pg_params params = {0};
    if (!q->batch || !q->turns.needed) return once__pg_send(q->pg, PG_PLAN, NULL, err);
    param_name(q, &params);
    once__pg_param_now(q, &params);
    once__pg_param_int8(
        &params, PATIENT_MS + (int64_t)(once_env_random_u64(q->storage.store.env) % (PATIENT_MAX_MS - PATIENT_MS + 1)));
    return once__pg_send(q->pg, PG_PLAN_BATCH, &params, err);
}
