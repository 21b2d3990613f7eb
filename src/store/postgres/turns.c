/* After a deadlock the batches of a consumer take turns for a while.
 *
 * Effects lock rows of the user's tables in the order of the messages, so two workers that update the same rows
 * deadlock. The server notices after a second (deadlock_timeout) and rolls one of them back, and then they meet again:
 * far slower than one worker alone. So a worker that was rolled back, or that gave up after waiting for a lock, writes
 * a fact: the batches of this consumer take turns until a time of the server's clock. If that did not help for long,
 * the next period is twice as long. During the period each batch first takes an advisory lock of the consumer, which
 * ends with its transaction, so a pooler does not matter. At all other times a batch only reads one row more.
 *
 * A transaction that waits for a lock holds a snapshot, and the server must keep all row versions that it might see:
 * hot rows get long version chains, and all workers become slow. So a batch does not wait in the server: when it does
 * not get its turn at once, it pauses outside of a transaction and tries again. The worker that has the turn mostly
 * goes on with its next batch then, as fast as one worker alone, until another one gets in between. Only a batch that
 * has tried often waits in the server, and is next. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"
#include "store/postgres/postgres.h"

#include "base/banned.h"

enum { TURNS_MS = 5000, TURNS_MAX_MS = 60000 };
/* A batch that waits this long for a lock gives up: another batch has the same rows or lanes, and if it is a deadlock,
 * the server takes ten times as long to notice. Not during a turn, where no other batch of the consumer is in the way,
 * and not where the user has set a lock_timeout. */
enum { IMPATIENT_MS = 100, TURN_PAUSE_MS = 40, TURN_TRIES = 32, TURN_WAIT_MS = 20, TURN_LONGER = 7 };

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

/* How long a batch waits in the server; 0: not at all. A batch with many named locks may have to wait for several
 * others, so the wait grows. */
static int64_t wait_ms(const once_postgres *q)
{
    const unsigned longer = q->turns.tries / TURN_TRIES;
    return longer ? (int64_t)TURN_WAIT_MS << (longer < TURN_LONGER ? longer : TURN_LONGER) : 0;
}

static int locks_send(once_postgres *q, size_t *sent, once_error *err)
{
    assert(q->n_locks > 0 && q->locks);
    once_pg_params params = {0};
    once__pg_array_begin(&q->columns[0], PG_INT8);
    for (size_t i = 0; i < q->n_locks; i++) once__pg_put_int8(&q->columns[0], (int64_t)q->locks[i]);
    once__pg_param_array(&params, &q->columns[0]);
    if (wait_ms(q)) once__pg_param_int8(&params, wait_ms(q));
    const int rc = once__pg_send(q->pg, wait_ms(q) ? PG_LOCKS : PG_LOCKS_TRY, &params, err);
    *sent += rc == ONCE_OK;
    return rc;
}

int once__pg_turn_send(once_postgres *q, size_t *sent, once_error *err)
{
    assert(q->batch && !q->begun); /* together with BEGIN, before anything is locked */
    once_pg_params params = {0};
    if (!q->turns.name) return ONCE_OK;
    param_name(q, &params);
    once__pg_param_int8(&params, q->turns.key);
    once__pg_param_now(q, &params);
    if (wait_ms(q)) once__pg_param_int8(&params, wait_ms(q));
    q->turns.at = *sent;
    const int rc = once__pg_send(q->pg, wait_ms(q) ? PG_TURN : PG_TURN_TRY, &params, err);
    *sent += rc == ONCE_OK;
    return rc == ONCE_OK && q->n_locks ? locks_send(q, sent, err) : rc;
}

bool once__pg_turn_missed(const once_postgres *q)
{
    const size_t at = q->pg->failed_at;
    return (at == q->turns.at || (q->n_locks && at == q->turns.at + 1)) &&
           strcmp(q->pg->failed_state, wait_ms(q) ? "55P03" : "22012") == 0;
}

/* A random pause, longer after more tries: each try also costs the batch that has the turn. */
void once__pg_turn_pause(const once_postgres *q)
{
    enum { EAGER = 8, LONGER = 2 };
    const once_env *env = q->storage.store.env;
    const unsigned longer = q->turns.tries / EAGER;
    if (q->turns.tries == 0 || wait_ms(q)) return;
    once_env_sleep_ms(env, 1 + (int64_t)(once_env_random_u64(env) %
                                         ((uint64_t)TURN_PAUSE_MS << (longer < LONGER ? longer : LONGER))));
}

int once__pg_plan_send(once_postgres *q, once_error *err)
{
    once_pg_params params = {0};
    if (!q->batch || !q->turns.name) return once__pg_send(q->pg, PG_PLAN, NULL, err);
    param_name(q, &params);
    once__pg_param_now(q, &params);
    once__pg_param_int8(&params, IMPATIENT_MS);
    return once__pg_send(q->pg, PG_PLAN_BATCH, &params, err);
}
