/* A PostgreSQL server for a measurement: started with its data in a temporary folder, fsync on, and stopped at the end;
 * and PgBouncer. */
#ifndef BENCH_POSTGRES_SERVER_H
#define BENCH_POSTGRES_SERVER_H

#include <libpq-fe.h>
#include <stdbool.h>

/* Settings ("name=value", NULL ends them) beside or instead of the usual ones. False: no server is available
 * here. */
bool server_start(const char *const *settings);

/* "postgres" or "postgresql" with the database's name instead of the server's own. */
const char *server_url(const char *scheme, const char *database, char out[300]);
/* PgBouncer before that server, in a `pool_mode`. False: it is not available here. */
bool pooler_start(const char *mode, const char *const *settings);
const char *pooler_url(const char *scheme, const char *database, char out[300]); /* as server_url */

PGconn *server_connect(const char *database);

/* What fails ends the program. */
void server_say(PGconn *conn, const char *sql);
double server_number(PGconn *conn, const char *sql);      /* the first column of the first row */
double server_ask(const char *database, const char *sql); /* the same on a connection for it alone */

#endif
