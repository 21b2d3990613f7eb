/* The URL of a Redis store:
 *
 *   redis://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]...][/DB]
 *       [?name=NAME&password=env:VARIABLE|file:PATH&wait=REPLICAS&timeout=SECONDS]
 *   rediss://... the same with TLS, and &cacert=PATH, &cert=PATH, &key=PATH
 *
 * All keys of the store begin with NAME ("once" unless given) in braces, so a store is in one slot of a cluster. A
 * password in the URL works, but a variable or a file keeps it out of files and process lists; once never prints it.
 * Several hosts are nodes of one cluster: any that answers names the node that has the slot. */
#ifndef ONCE_STORE_REDIS_URL_H
#define ONCE_STORE_REDIS_URL_H

#include "once/types.h"

enum {
    ONCE_REDIS_HOST = 256,
    ONCE_REDIS_NAME = 100,
    ONCE_REDIS_USER = 128,
    ONCE_REDIS_PASSWORD = 512,
    ONCE_REDIS_PATH = 400,
    ONCE_REDIS_HOSTS = 8
};

typedef struct once_redis_node {
    char host[ONCE_REDIS_HOST]; /* a name, an address, or the path of a unix socket */
    unsigned port;
} once_redis_node;

typedef struct once_redis_url {
    once_redis_node nodes[ONCE_REDIS_HOSTS];
    size_t n_nodes; /* 1 or more */
    unsigned db;
    char user[ONCE_REDIS_USER];         /* empty: the default user */
    char password[ONCE_REDIS_PASSWORD]; /* empty: none */
    char name[ONCE_REDIS_NAME];
    unsigned wait;       /* replicas that must have a commit */
    unsigned timeout_ms; /* how long a server may be silent before the connection is dropped; 0: the caller decides */
    bool tls;
    char cacert[ONCE_REDIS_PATH];                     /* empty: the system's authorities */
    char cert[ONCE_REDIS_PATH], key[ONCE_REDIS_PATH]; /* of this client, for servers that ask for it */
} once_redis_url;

/* `rest` is the URL behind "redis:", or with `tls` behind "rediss:". */
int once__redis_url_read(const char *rest, bool tls, once_redis_url *out, once_error *err);

#endif
