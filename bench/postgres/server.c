#include "postgres/server.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "process.h"

#include "base/banned.h"

#define SETTINGS_MAX 16

/* A script that starts something, says its URL, and stops it at the end of its standard input. */
typedef struct served {
    char url[300];
    pid_t pid;
    int its_stdin;
} served;

static served server, pooler;
static pid_t owner;

static void end_one(served *s)
{
    if (!s->pid) return;
    close(s->its_stdin); /* which ends it */
    waitpid(s->pid, NULL, 0);
    s->pid = 0;
}

static void end(void)
{
    if (getpid() != owner) return;
    end_one(&pooler);
    end_one(&server);
}

static bool start(served *s, const char *const *argv)
{
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) bench_die_errno("cannot make a pipe");
    if (!owner) atexit(end);
    owner = getpid();
    s->pid = fork();
    if (s->pid < 0) bench_die_errno("cannot fork");
    if (s->pid == 0) {
        setpgid(0, 0); /* an interrupt from the keyboard is not for the server, which ends after us */
        dup2(in[0], 0);
        dup2(out[1], 1);
        execv("/usr/bin/python3", (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    s->its_stdin = in[1];
    size_t len = 0;
    while (len + 1 < sizeof s->url && read(out[0], s->url + len, 1) == 1 && s->url[len] != '\n') len++;
    s->url[len] = '\0';
    close(out[0]);
    return len > 0;
}

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
    return start(&server, argv);
}

bool pooler_start(const char *mode, const char *const *settings)
{
    enum { USUAL = 5 };
    const char *argv[USUAL + SETTINGS_MAX + 1] = {"python3", ONCE_SOURCE_ROOT "/tests/lib/pgbouncer.py", "serve", mode,
                                                  server.url};
    for (size_t i = 0; i < SETTINGS_MAX && settings[i]; i++) argv[USUAL + i] = settings[i];
    return start(&pooler, argv);
}

static const char *url_of(const char *url, const char *scheme, const char *database, char out[300])
{
    const char *rest = strstr(url, "://"), *query = strchr(url, '?'), *slash = memrchr(url, '/', (size_t)(query - url));
    snprintf(out, 300, "%s%.*s/%s%s", scheme, (int)(slash - rest), rest, database, query);
    return out;
}

const char *server_url(const char *scheme, const char *database, char out[300])
{
    return url_of(server.url, scheme, database, out);
}

const char *pooler_url(const char *scheme, const char *database, char out[300])
{
    return url_of(pooler.url, scheme, database, out);
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
