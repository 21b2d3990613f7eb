/* Two handles are used by two threads here: worth a run under tsan. */
#include "conform.h"
#include "postgres.h"

int main(void)
{
    const char *why;
    if (!test_postgres_url(&why)) return test_postgres_missing(why);
    test_postgres_set_clock();
    return conform_run(&(conform_driver){"postgres", "postgres:", test_postgres_make, test_postgres_unmake});
}
