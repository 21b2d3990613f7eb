/* The status that a SQLSTATE means, and the text of an error on a connection. */
#include <stdio.h>
#include <string.h>

#include "db/postgres/postgres.h"

#include "base/banned.h"

int once__pg_status(const char *state)
{
    static const struct {
        const char *state;
        int status;
    } known[] = {
        {"08", ONCE_E_UNAVAILABLE},
        {"57P", ONCE_E_UNAVAILABLE},   /* shut down, crashed, starting */
        {"57014", ONCE_E_ABORTED},     /* cancelled: statement_timeout, or an operator */
        {"25P03", ONCE_E_UNAVAILABLE}, /* idle_in_transaction_session_timeout */
        {"40", ONCE_E_ABORTED},        /* serialization, deadlock */
        {"25P02", ONCE_E_ABORTED},
        {"55P03", ONCE_E_BUSY},
        {"53100", ONCE_E_FULL},
        {"53200", ONCE_E_NOMEM},
        {"53", ONCE_E_UNAVAILABLE}, /* too many connections */
        {"42501", ONCE_E_DENIED},
        {"28", ONCE_E_DENIED},
        {"3D", ONCE_E_SCHEMA},
        {"3F", ONCE_E_SCHEMA},
        {"25006", ONCE_E_READONLY},
        {"26", ONCE_E_ABORTED},    /* a prepared statement is missing: a pooler is in between */
        {"42P05", ONCE_E_ABORTED}, /* a statement exists that we have not prepared: the same */
        {"0A000", ONCE_E_ABORTED}, /* "cached plan must not change result type": prepared again after a reconnect */
        {"42", ONCE_E_SCHEMA},
        {"22", ONCE_E_MESSAGE},
        {"23", ONCE_E_MESSAGE},
        {"44", ONCE_E_MESSAGE},
        {"P0", ONCE_E_MESSAGE}, /* RAISE EXCEPTION */
        {"21", ONCE_E_MESSAGE},
        {"58", ONCE_E_IO},
        {"XX001", ONCE_E_CORRUPT},
        {"XX002", ONCE_E_CORRUPT},
        {"XX", ONCE_E_IO},
    };
    if (!state || !state[0]) return ONCE_E_UNAVAILABLE;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (once__pg_begins(state, known[i].state)) return known[i].status;
    return ONCE_E_MESSAGE;
}

static const char *advice(int status)
{
    switch (status) {
    case ONCE_E_FULL: return "free some space on the server";
    case ONCE_E_READONLY: return "connect to the primary; target_session_attrs=read-write finds it";
    case ONCE_E_DENIED: return "give this role the rights that it needs";
    case ONCE_E_UNAVAILABLE: return "nothing is fetched or acknowledged until it is back";
    case ONCE_E_CORRUPT: return "restore it from a backup";
    case ONCE_E_IO: return "look into the server's log before going on";
    default: return NULL;
    }
}

/* The first line; texts of libpq end with a newline and may have several lines. */
static void first_line(const char *from, char *out, size_t size)
{
    const size_t len = strcspn(from ? from : "", "\n");
    snprintf(out, size, "%.*s", (int)(len < 300 ? len : 300), from ? from : "");
}

/* BEGIN READ WRITE was refused, because the server is a standby. Texts are translated; the name of the function in the
 * server is not. */
static bool is_standby(const char *state, const PGresult *result)
{
    const char *function = result ? PQresultErrorField(result, PG_DIAG_SOURCE_FUNCTION) : NULL;
    return state && strcmp(state, "0A000") == 0 && function && strcmp(function, "call_bool_check_hook") == 0;
}

#define NO_TABLES                                                                                                      \
    "the store's tables are gone (dropped, another database in its place, or a restore that goes on); nothing is "     \
    "fetched or acknowledged"                                                                                          \
    " until they are back: restore them, or stop this worker"

static bool has_no_tables(const char *state, const char *what)
{
    return strcmp(state, "3F000") == 0 || (strcmp(state, "42P01") == 0 && strstr(what, "once_"));
}

int once__pg_fail(once_pg *pg, const PGresult *result, once_error *err)
{
    char what[320];
    const char *state = result ? PQresultErrorField(result, PG_DIAG_SQLSTATE) : NULL;
    const char *message = result ? PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY) : NULL;
    int status = once__pg_status(state);
    once__pg_heed_state(pg, state);
    if (state && once__pg_begins(state, "23505")) { /* another transaction inserted the same row first */
        status = ONCE_E_ABORTED;
    } else if (status == ONCE_E_MESSAGE) { /* of a statement of ours: the tables have changed */
        status = ONCE_E_SCHEMA;
    }
    if (is_standby(state, result)) {
        status = ONCE_E_UNAVAILABLE;
        return once_fail(err, status, "%s: " ONCE_PG_STANDBY, pg->where);
    }
    if (pg->effects && state &&
        (strcmp(state, "25P01") == 0 || strcmp(state, "3B001") == 0)) /* our transaction should be open */
        return once_fail(err, ONCE_E_COMMIT_UNKNOWN,
                         "%s: a statement of the effects has ended their transaction, and it is not known what of it "
                         "was committed; check"
                         " the data, and let no statement or function end a transaction",
                         pg->where);
    if (!message)
        message = result           ? PQresultErrorMessage(result)
                  : pg->silence[0] ? pg->silence
                  : pg->conn       ? PQerrorMessage(pg->conn)
                                   : "";
    first_line(message, what, sizeof what);
    const char *refused = once__pg_pooler_refuses(what);
    if (refused) return once_fail(err, ONCE_E_CONFIG, "%s: %s; %s", pg->where, what, refused);
    const char *hint = pg->schema && state && has_no_tables(state, what) ? NO_TABLES : advice(status);
    return once_fail(err, status, "%s: %s%s%s", pg->where, what[0] ? what : "the connection was lost", hint ? "; " : "",
                     hint ? hint : "");
}
