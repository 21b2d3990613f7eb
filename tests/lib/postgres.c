#include "postgres.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef ONCE_WITH_POSTGRES

const char *test_postgres_url(const char **why)
{
    *why = "built without libpq";
    return NULL;
}
void test_postgres_run(const char *sql) { (void)sql; }
void test_postgres_make(const char *name, char *url, size_t size) { (void)name, (void)url, (void)size; }
void test_postgres_unmake(const char *name) { (void)name; }

#else

#include <libpq-fe.h>

static char server_url[200];
static pid_t server_pid;
static int server_stdin = -1;

static void end_server(void)
{
    if (!server_pid) return;
    close(server_stdin); /* which ends it */
    waitpid(server_pid, NULL, 0);
    server_pid = 0;
}

static bool start_server(void)
{
    int in[2], out[2];
    if (pipe(in) != 0 || pipe(out) != 0) return false;
    server_pid = fork();
    if (server_pid == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        for (int fd = 3; fd < 64; fd++) close(fd);
        execl("/usr/bin/python3", "python3", ONCE_SOURCE_ROOT "/tests/lib/postgres.py", "serve", (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    server_stdin = in[1];
    atexit(end_server);
    size_t len = 0;
    ssize_t n;
    while (len + 1 < sizeof server_url && (n = read(out[0], server_url + len, 1)) == 1 && server_url[len] != '\n') len++;
    server_url[len] = '\0';
    close(out[0]);
    return len > 0;
}

const char *test_postgres_url(const char **why)
{
    const char *given = getenv("ONCE_TEST_POSTGRES");
    *why = "no PostgreSQL server could be started";
    if (given && given[0]) return given;
    return server_url[0] || start_server() ? server_url : NULL;
}

void test_postgres_run(const char *sql)
{
    const char *why, *url = test_postgres_url(&why);
    char conninfo[300];
    snprintf(conninfo, sizeof conninfo, "postgresql%s", url + strlen("postgres"));
    PGconn *conn = PQconnectdb(conninfo);
    PGresult *result = PQexec(conn, sql);
    const ExecStatusType status = PQresultStatus(result);
    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK) {
        fprintf(stderr, "%s: %s", sql, PQerrorMessage(conn));
        abort();
    }
    PQclear(result);
    PQfinish(conn);
}

void test_postgres_make(const char *name, char *url, size_t size)
{
    char sql[200];
    const char *why, *server = test_postgres_url(&why);
    snprintf(sql, sizeof sql, "SET client_min_messages = error; DROP SCHEMA IF EXISTS \"%s\" CASCADE; CREATE SCHEMA \"%s\"", name, name);
    test_postgres_run(sql);
    snprintf(url, size, "%s&options=-csearch_path%%3D%%22%s%%22", server, name);
}

void test_postgres_unmake(const char *name)
{
    char sql[200];
    snprintf(sql, sizeof sql, "SET client_min_messages = error; DROP SCHEMA IF EXISTS \"%s\" CASCADE", name);
    test_postgres_run(sql);
}

#endif
