#include "postgres.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int test_postgres_missing(const char *why)
{
    printf("1..1\nok 1 - postgres # SKIP %s\n", why);
    return 0;
}

#ifndef ONCE_WITH_POSTGRES

const char *test_postgres_url(const char **why)
{
    *why = "built without libpq";
    return NULL;
}
void test_postgres_run(const char *sql) { (void)sql; }
void test_postgres_set_clock(void) {}
void test_postgres_make(const char *name, char *url, size_t size) { (void)name, (void)url, (void)size; }
void test_postgres_unmake(const char *name) { (void)name; }
bool test_pooler_make(const char *name, char *url, size_t size) { return (void)name, (void)url, (void)size, false; }

#else

#include <libpq-fe.h>

#include "store/postgres/postgres.h"
#include "testenv.h"

/* A program that prints a URL, and ends when its standard input does. */
typedef struct program {
    char url[300];
    pid_t pid;
    int input;
} program;

static program database, pooler;

static void end(program *s)
{
    if (!s->pid) return;
    close(s->input); /* which ends it */
    waitpid(s->pid, NULL, 0);
    s->pid = 0;
}

static void end_servers(void)
{
    end(&pooler);
    end(&database);
}

static bool start(program *s, const char *const argv[])
{
    int in[2], out[2];
    if (pipe(in) != 0 || pipe(out) != 0) return false;
    s->pid = fork();
    if (s->pid == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        for (int fd = 3; fd < 64; fd++) close(fd);
        execv("/usr/bin/python3", (char *const *)argv);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    s->input = in[1];
    static bool registered;
    if (!registered) atexit(end_servers);
    registered = true;
    size_t len = 0;
    ssize_t n;
    while (len + 1 < sizeof s->url && (n = read(out[0], s->url + len, 1)) == 1 && s->url[len] != '\n') len++;
    s->url[len] = '\0';
    close(out[0]);
    return len > 0;
}

const char *test_postgres_url(const char **why)
{
    const char *given = getenv("ONCE_TEST_POSTGRES");
    *why = "no PostgreSQL server could be started";
    if (given && given[0]) return given;
    static const char *const argv[] = {"python3", ONCE_SOURCE_ROOT "/tests/lib/postgres.py", "serve", NULL};
    return database.url[0] || start(&database, argv) ? database.url : NULL;
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

static int64_t passed(const once_env *env) { return TEST_EPOCH_MS + once_env_boot_ms(env) - TEST_BOOT_MS; }
void test_postgres_set_clock(void) { once__pg_test_clock = passed; }

void test_postgres_make(const char *name, char *url, size_t size)
{
    char sql[200];
    const char *why, *server = test_postgres_url(&why);
    snprintf(sql, sizeof sql,
             "SET client_min_messages = error; DROP SCHEMA IF EXISTS \"%s\" CASCADE; CREATE SCHEMA \"%s\"", name, name);
    test_postgres_run(sql);
    snprintf(url, size, "%s&options=-csearch_path%%3D%%22%s%%22", server, name);
}

bool test_pooler_make(const char *name, char *url, size_t size)
{
    const char *why, *server = test_postgres_url(&why);
    const char *const argv[] = {"python3", ONCE_SOURCE_ROOT "/tests/lib/pgbouncer.py", "serve", "transaction", server,
                                NULL};
    if (!server || (!pooler.url[0] && !start(&pooler, argv))) return false;
    test_postgres_make(name, url, size);
    snprintf(url, size, "%s&options=-csearch_path%%3D%%22%s%%22", pooler.url, name);
    return true;
}

void test_postgres_unmake(const char *name)
{
    char sql[200];
    snprintf(sql, sizeof sql, "SET client_min_messages = error; DROP SCHEMA IF EXISTS \"%s\" CASCADE", name);
    test_postgres_run(sql);
}

#endif
