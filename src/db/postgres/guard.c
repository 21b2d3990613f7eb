/* The guard: notes what a transaction with effects is when it begins, and compares that before it commits: its role,
 * its search path, whether its commit waits for the disk, how texts, times and numbers are read, whether constraints
 * are checked, that no temporary table hides a table of the database, and that it is still the same transaction.
 *
 * The words of effects are checked (words.c), but a function that they call may run SET ROLE or SET synchronous_commit,
 * and a change that is committed stays in the session for the next messages. So a statement in front of every round
 * that follows effects compares, in the same round trip, and fails when something differs. Then nothing is committed.
 * The statement names the schema of everything it uses, because the search path may be what has changed.
 *
 * If it is another transaction, the one that was begun has ended in the middle. Then it is unknown what of it was
 * committed, and its outcomes were not: running the batch again could do everything twice. */
#include "base/no_memory.h"
#include "db/postgres/postgres.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/banned.h"

enum { GUARDED = 5 };

int once__pg_guard_keep(once_pg *pg, const PGresult *result, int column, once_error *err)
{
    assert(PQntuples(result) == 1 && column + GUARDED <= PQnfields(result));
    once_buf_clear(&pg->begun);
    for (int i = 0; i < GUARDED; i++) {
        const once_bytes text = once__pg_bytes(result, 0, column + i);
        once_buf_append(&pg->begun, text.data, text.len);
        once_buf_append(&pg->begun, "", 1);
    }
    return pg->begun.failed ? once_no_memory(err, "for PostgreSQL") : ONCE_OK;
}

void once__pg_guard_params(const once_pg *pg, once_pg_params *params)
{
    assert(pg->begun.len > 0); /* behind once__pg_guard_keep */
    const char *at = pg->begun.data;
    for (int i = 0; i < GUARDED; i++) {
        once__pg_param_bytes(params, (once_bytes){at, strlen(at)});
        at += strlen(at) + 1;
    }
    once__pg_param_bytes(params, pg->shared ? ONCE_BYTES("last")
                                            : ONCE_BYTES("first")); /* when temporary tables are searched */
}

int once__pg_guard_said(once_pg *pg, const char *state, const char *text, char *out, size_t size)
{
    static const char before[] = "once(", after[] = ")once";
    const char *from = state && strcmp(state, "22P02") == 0 && text ? strstr(text, before) : NULL;
    if (!from) return ONCE_OK;
    from += sizeof before - 1;
    const char *end = strstr(from, after);
    const char *consumer = strchr(pg->application, ':');
    const bool other = strncmp(from, ONCE_PG_OTHER_TX, strlen(ONCE_PG_OTHER_TX)) == 0;
    const bool hides = strncmp(from, ONCE_PG_HIDES, strlen(ONCE_PG_HIDES)) == 0;
    if (strncmp(from, ONCE_PG_TEMPS, strlen(ONCE_PG_TEMPS)) == 0) {
        pg->temps = true;
        snprintf(out, size,
                 "effects create temporary tables; the transaction is repeated to see whether they hide others");
        return ONCE_E_ABORTED;
    }
    const int len = (int)(other ? strlen(ONCE_PG_OTHER_TX) : end ? (size_t)(end - from) : strlen(from));
    snprintf(
        out, size, "effects of consumer '%s' have changed their transaction: %.*s; %s", consumer ? consumer + 1 : "",
        len, from,
        other ? "the one that was begun has ended, and it is not known what of it was committed; look at the data, and "
                "let no statement end a transaction"
        : hides
            ? "nothing was committed; give it another name, or let the function that creates it drop it"
            : "nothing was committed; let a function set such things for itself alone (ALTER FUNCTION ... SET ...)");
    return other ? ONCE_E_COMMIT_UNKNOWN : ONCE_E_SCHEMA;
}
