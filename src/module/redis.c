/* The module `redis`: the store, plain and over TLS. With hiredis and OpenSSL. */
#include "base/module.h"
#include "store/store.h"

#include "base/banned.h"

static const once_module_part parts[] = {
    {"store", "redis", &once__store_redis},
    {"store", "rediss", &once__store_rediss},
    {NULL, NULL, NULL},
};

ONCE_MODULE(redis, parts);
