/* The handle of a connection: opening, closing, and what others may ask it. */
#include <assert.h>
#include <hiredis/hiredis.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"
#include "store/redis/link_parts.h"

#include "base/banned.h"

int once__redis_link_open(const once_redis_url *url, const once_env *env, once_redis_waiting waiting,
                          once_redis_link **out, once_error *err)
{
    assert(url->n_nodes > 0 && url->n_nodes <= ONCE_REDIS_LINK_NODES);
    once_redis_link *link = calloc(1, sizeof *link);
    if (!link) return once_no_memory(err, "for a connection");
    link->url = *url;
    link->env = env;
    link->waiting = waiting;
    link->fd = -1;
    link->at = url->nodes[0];
    memcpy(link->nodes, url->nodes, url->n_nodes * sizeof *url->nodes);
    link->n_nodes = url->n_nodes;
    link->next_node = 1;
    const int rc = once__redis_connect(link, err);
    if (rc == ONCE_OK) *out = link;
    else once__redis_link_close(link);
    return rc;
}

void once__redis_link_close(once_redis_link *link)
{
    if (!link) return;
    once__redis_hang_up(link);
    if (link->reader) redisReaderFree(link->reader);
    explicit_bzero(&link->url, sizeof link->url);
    free(link);
}

bool once__redis_clustered(const once_redis_link *link) { return link->clustered; }
const char *once__redis_host(const once_redis_link *link) { return link->at.host; }
unsigned once__redis_port(const once_redis_link *link) { return link->at.port; }
bool once__redis_same(const once_redis_link *link, unsigned connections)
{
    return link->fd >= 0 && link->connections == connections;
}
bool once__redis_saw_move(const once_redis_link *link) { return link->saw_move; }
void once__redis_move_is_over(once_redis_link *link) { link->saw_move = false; }
bool once__redis_silent(const once_redis_link *link) { return link->silent; }
unsigned once__redis_connections(const once_redis_link *link) { return link->connections; }
