/* The postgres store behind PgBouncer in transaction mode: every transaction may be in another session, which others have used.
 * Two handles are used by two threads here: worth a run under tsan. */
#include "conform.h"

#include <stdio.h>
#include <stdlib.h>

#include "postgres.h"

#ifdef ONCE_WITH_POSTGRES

#include "store/postgres_store.h"

static int64_t passed(const once_env *env) { return TEST_EPOCH_MS + once_env_boot_ms(env) - TEST_BOOT_MS; }

static void make(const char *name, char *url, size_t size)
{
    if (!test_pooler_make(name, url, size)) abort();
}

int main(void)
{
    const char *why = "no PgBouncer could be started; tools/setup check installs one";
    char url[300];
    if (!test_pooler_make("once_pooler_probe", url, sizeof url)) {
        printf("1..1\nnot ok 1 - conform: %s\n", why);
        return 1;
    }
    test_postgres_unmake("once_pooler_probe");
    once__pg_test_clock = passed;
    return conform_run(&(conform_driver){"pooler", "postgres:", make, test_postgres_unmake});
}

#else

int main(void)
{
    const char *why;
    test_postgres_url(&why);
    printf("1..1\nok 1 - conform # SKIP %s\n", why);
    return 0;
}

#endif
