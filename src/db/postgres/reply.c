/* Checks that a result is what its statement returns: rows, columns, their types, which of them may be NULL, and their
 * sizes.
 *
 * libpq hands out what came over the wire. A value of a missing row reads as NULL, a value that is too short reads past
 * its end, and more rows than a LIMIT allows overflow the caller's memory. So a result is checked as a whole before it
 * is used; then the accessors (once__pg_int and others) may rely on it. A server that answers otherwise is not trusted,
 * and the connection is closed. */
#include <assert.h>
#include <endian.h>
#include <string.h>

#include "base/ascii.h"
#include "db/postgres/postgres.h"

#include "base/banned.h"

static const struct {
    char letter;
    unsigned type; /* 0: any */
    int size;      /* -1: any */
} kinds[] = {{'q', PG_INT8, 8},  {'i', PG_INT4, 4},          {'h', PG_INT2, 2},   {'b', PG_BOOL, 1},
             {'u', PG_UUID, 16}, {'d', PG_TID, PG_TID_SIZE}, {'y', PG_BYTEA, -1}, {'t', 0, -1}};

static size_t kind_of(char letter)
{
    size_t i = 0;
    while (i < sizeof kinds / sizeof *kinds && kinds[i].letter != once_ascii_lower(letter)) i++;
    assert(i < sizeof kinds / sizeof *kinds);
    return i;
}

static bool rows_fit(const PGresult *result, char rows, size_t most)
{
    const int n = PQntuples(result);
    if (most && (size_t)n > most) return false;
    return rows == '*' || (rows == '1' && n == 1) || (rows == '?' && n <= 1);
}

static bool column_fits(const PGresult *result, int column, char letter)
{
    const size_t kind = kind_of(letter);
    const bool null = letter != once_ascii_lower(letter), any = kinds[kind].type == 0;
    if (!any && (PQftype(result, column) != kinds[kind].type || PQfformat(result, column) != 1)) return false;
    for (int row = 0; row < PQntuples(result); row++) {
        if (PQgetisnull(result, row, column)
                ? !null
                : kinds[kind].size >= 0 && PQgetlength(result, row, column) != kinds[kind].size)
            return false;
    }
    return true;
}

bool once__pg_fits(const PGresult *result, const char *shape, size_t most)
{
    if (!shape) return true;
    if (shape[0] == '\0') return PQresultStatus(result) == PGRES_COMMAND_OK && PQntuples(result) == 0;
    if (PQresultStatus(result) != PGRES_TUPLES_OK || !rows_fit(result, shape[0], most)) return false;
    const size_t n = strlen(shape + 1);
    const bool more = n && shape[n] == '+';
    const int columns = (int)(more ? n - 1 : n);
    if (more ? PQnfields(result) < columns : PQnfields(result) != columns) return false;
    for (int i = 0; i < columns; i++)
        if (!column_fits(result, i, shape[1 + i])) return false;
    return true;
}

void once__pg_must(once_pg *pg, const char *sql, const char *shape, size_t most)
{
    assert(pg->pending > 0);
    const size_t at = pg->pending - 1;
    if (at < PG_ROUND_MAX) pg->expected[at] = (once_pg_expected){sql, shape, most};
}

int once__pg_misfit(once_pg *pg, const char *sql, once_error *err)
{
    const int rc = once_fail(err, ONCE_E_UNAVAILABLE,
                             "%s: the answer to '%.80s' does not have the rows and columns that it must have; is this "
                             "a PostgreSQL server, and is"
                             " something in between?",
                             pg->where, sql ? sql : "a statement");
    once__pg_drop(pg);
    return rc;
}

int once__pg_ask(once_pg *pg, const char *sql, const char *shape, PGresult **out, once_error *err)
{
    assert(sql[0] && shape);
    int rc = once__pg_exec(pg, sql, out, err);
    if (rc != ONCE_OK || once__pg_fits(*out, shape, 0)) return rc;
    PQclear(*out);
    *out = NULL;
    return once__pg_misfit(pg, sql, err);
}

const char *once__pg_text(const PGresult *result, int row, int column)
{
    assert(row < PQntuples(result) && column < PQnfields(result)); /* checked by once__pg_fits */
    const char *text = PQgetvalue(result, row, column);
    return text ? text : "";
}

bool once__pg_null(const PGresult *result, int row, int column) { return PQgetisnull(result, row, column) != 0; }

int64_t once__pg_int(const PGresult *result, int row, int column)
{
    assert(row < PQntuples(result) && column < PQnfields(result)); /* checked by once__pg_fits */
    const void *data = PQgetvalue(result, row, column);
    uint64_t eight;
    uint32_t four;
    uint16_t two;
    switch (once__pg_null(result, row, column) ? 0 : PQgetlength(result, row, column)) {
    case 8: memcpy(&eight, data, 8); return (int64_t)be64toh(eight);
    case 4: memcpy(&four, data, 4); return (int32_t)be32toh(four);
    case 2: memcpy(&two, data, 2); return (int16_t)be16toh(two);
    case 1: return *(const unsigned char *)data;
    default: return 0;
    }
}

once_hash once__pg_id(const PGresult *result, int row, int column)
{
    assert(row < PQntuples(result) && column < PQnfields(result)); /* checked by once__pg_fits */
    uint64_t words[2];
    if (PQgetlength(result, row, column) != 16) return (once_hash){0};
    memcpy(words, PQgetvalue(result, row, column), 16);
    return (once_hash){be64toh(words[0]), be64toh(words[1])};
}

once_bytes once__pg_bytes(const PGresult *result, int row, int column)
{
    assert(row < PQntuples(result) && column < PQnfields(result)); /* checked by once__pg_fits */
    return (once_bytes){PQgetvalue(result, row, column), (size_t)PQgetlength(result, row, column)};
}
