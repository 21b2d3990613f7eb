/* The postgres store behind PgBouncer in transaction mode: every transaction may be in another session, which others
 * have used. Two handles are used by two threads here: worth a run under tsan. */
#include "conform.h"

#include <stdio.h>
#include <stdlib.h>

#include "postgres.h"

static void make(const char *name, char *url, size_t size)
{
    if (!test_pooler_make(name, url, size)) abort();
}

int main(void)
{
    char url[300];
#ifndef ONCE_WITH_POSTGRES
    return test_postgres_missing("built without libpq");
#endif
    if (!test_pooler_make("once_pooler_probe", url, sizeof url)) {
        printf("1..1\nnot ok 1 - conform: no PgBouncer could be started; tools/setup check installs one\n");
        return 1;
    }
    test_postgres_unmake("once_pooler_probe");
    test_postgres_set_clock();
    return conform_run(&(conform_driver){"pooler", "postgres:", make, test_postgres_unmake});
}
