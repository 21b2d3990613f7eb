/* Two handles are used by two threads here: worth a run under tsan. */
#include "conform.h"
#include "redisserver.h"

#include <stdio.h>

static void redis_is_not_there(void **state)
{
    (void)state;
    print_message("no redis-server, or no hiredis\n");
    skip();
}

int main(void)
{
    redis_server server;
    if (!redis_server_start(&server)) {
        const struct CMUnitTest none[] = {cmocka_unit_test(redis_is_not_there)};
        return cmocka_run_group_tests_name("redis", none, NULL, NULL);
    }
    char url[160];
    snprintf(url, sizeof url, "%s/0?name=%%s", server.url);
    /* It has transactions, which conform; it does not grant TX because no effect of the user can be part of one. */
    const int failed = conform_run(&(conform_driver){.name = "redis", .url = url, .also = ONCE_STORE_TX});
    redis_server_stop(&server);
    return failed;
}
