/* A PostgreSQL server for tests in C: the one that ONCE_TEST_POSTGRES names, or one of the program's own, which ends
 * with it. Without libpq, or where no server can be had, there is none. */
#ifndef ONCE_TESTS_POSTGRES_H
#define ONCE_TESTS_POSTGRES_H

#include <stdbool.h>
#include <stddef.h>

/* NULL: there is none; `why` says why. */
const char *test_postgres_url(const char **why);
/* Runs statements on it; ends the program when they fail. */
void test_postgres_run(const char *sql);
/* A new schema, and the URL of a store in it. */
void test_postgres_make(const char *name, char *url, size_t size);
void test_postgres_unmake(const char *name);
/* The server's time passes as it does in the worlds of the tests; what anybody does to a worker's wall clock does not
 * reach it. */
void test_postgres_set_clock(void);
/* What a test program that needs a server says without one; its exit status. */
int test_postgres_missing(const char *why);
/* The same schema through PgBouncer in transaction mode, with two sessions for everybody. It ends with the program.
 * False: there is none to be had. */
bool test_pooler_make(const char *name, char *url, size_t size);

#endif
