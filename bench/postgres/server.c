#include "postgres/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "process.h"
#include "served.h"

#include "base/banned.h"

#define SETTINGS_MAX 16

static served server, pooler;

bool server_start(const char *const *settings)
{
    enum { USUAL = 9 };
    const char *argv[USUAL + SETTINGS_MAX + 1] = {"python3",
                                                  ONCE_SOURCE_ROOT "/tests/lib/postgres.py",
                                                  "serve",
                                                  "fsync=on",
                                                  "full_page_writes=on",
                                                  "shared_buffers=512MB",
                                                  "max_wal_size=4GB",
                                                  "autovacuum_naptime=60s",
                                                  "deadlock_timeout=1s"};
    for (size_t i = 0; i < SETTINGS_MAX && settings[i]; i++) argv[USUAL + i] = settings[i];
    return served_start(&server, argv);
}

bool pooler_start(const char *mode, const char *const *settings)
{
    enum { USUAL = 5 };
    const char *argv[USUAL + SETTINGS_MAX + 1] = {"python3", ONCE_SOURCE_ROOT "/tests/lib/pgbouncer.py", "serve", mode,
                                                  server.said};
    for (size_t i = 0; i < SETTINGS_MAX && settings[i]; i++) argv[USUAL + i] = settings[i];
    return served_start(&pooler, argv);
}

static const char *url_of(const char *url, const char *scheme, const char *database, char out[300])
{
    const char *rest = strstr(url, "://"), *query = strchr(url, '?'), *slash = memrchr(url, '/', (size_t)(query - url));
    snprintf(out, 300, "%s%.*s/%s%s", scheme, (int)(slash - rest), rest, database, query);
    return out;
}

const char *server_url(const char *scheme, const char *database, char out[300])
{
    return url_of(server.said, scheme, database, out);
}

const char *pooler_url(const char *scheme, const char *database, char out[300])
{
    return url_of(pooler.said, scheme, database, out);
}

PGconn *server_connect(const char *database)
{
    char text[300];
    PGconn *conn = PQconnectdb(server_url("postgresql", database, text));
    if (PQstatus(conn) != CONNECTION_OK) bench_die(PQerrorMessage(conn));
    return conn;
}

void server_say(PGconn *conn, const char *sql)
{
    PGresult *result = PQexec(conn, sql);
    const ExecStatusType status = PQresultStatus(result);
    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK) bench_die(PQerrorMessage(conn));
    PQclear(result);
}

double server_number(PGconn *conn, const char *sql)
{
    PGresult *result = PQexec(conn, sql);
    if (PQresultStatus(result) != PGRES_TUPLES_OK || PQntuples(result) < 1) bench_die(PQerrorMessage(conn));
    const double value = strtod(PQgetvalue(result, 0, 0), NULL);
    PQclear(result);
    return value;
}

double server_ask(const char *database, const char *sql)
{
    PGconn *conn = server_connect(database);
    const double value = server_number(conn, sql);
    PQfinish(conn);
    return value;
}
