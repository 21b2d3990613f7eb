/* Two handles are used by two threads here: worth a run under tsan. */
#include "conform.h"

#include <stdio.h>

#include "postgres.h"

#ifdef ONCE_WITH_POSTGRES

#include "store/postgres_store.h"

/* The server's time passes as it does in the worlds of the tests; what anybody does to a worker's wall clock does not reach it. */
static int64_t passed(const once_env *env) { return TEST_EPOCH_MS + once_env_boot_ms(env) - TEST_BOOT_MS; }

int main(void)
{
    const char *why;
    if (!test_postgres_url(&why)) {
        printf("1..1\nok 1 - conform # SKIP %s\n", why);
        return 0;
    }
    once__pg_test_clock = passed;
    return conform_run(&(conform_driver){"postgres", "postgres:", test_postgres_make, test_postgres_unmake});
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
