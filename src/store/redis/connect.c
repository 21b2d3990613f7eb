/* Connecting: authentication, the nodes of a cluster, and which node to try next. */
#include <assert.h>
#include <errno.h>
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <string.h>

#include "base/no_memory.h"
#include "store/redis/link_parts.h"

#include "base/banned.h"

enum { CONNECT_TRIES = 4 };

/* The current node does not answer, or does not know where the slot is: another node may. */
void once__redis_next_node(once_redis_link *link)
{
    for (size_t i = 0; i < link->n_nodes; i++) {
        const once_redis_node *node = &link->nodes[link->next_node++ % link->n_nodes];
        if (node->port == link->at.port && strcmp(node->host, link->at.host) == 0) continue;
        link->at = *node;
        return;
    }
}

static void add_node(void *user, once_bytes host, int64_t port)
{
    once_redis_link *link = user;
    const bool named = host.len > 0 && host.len < ONCE_REDIS_HOST;
    once_redis_node node = {.port = (unsigned)port};
    if (named) (void)snprintf(node.host, sizeof node.host, "%.*s", (int)host.len, host.data);
    else (void)snprintf(node.host, sizeof node.host, "%s", link->at.host); /* no name: the node that we asked */
    if (link->n_nodes == ONCE_REDIS_LINK_NODES || port <= 0 || port > 65535 || strcmp(node.host, "?") == 0) return;
    for (size_t i = 0; i < link->n_nodes; i++)
        if (link->nodes[i].port == node.port && strcmp(link->nodes[i].host, node.host) == 0) return;
    link->nodes[link->n_nodes++] = node;
}

/* Reads CLUSTER SLOTS. An error: the server is in no cluster, or our user may not ask. */
static void learn_nodes(once_redis_link *link, const redisReply *told)
{
    const size_t before = link->n_nodes;
    link->n_nodes = link->url.n_nodes;
    link->clustered = !once__reply_error(told) && once__reply_nodes(told, add_node, link) > 0;
    if (!link->clustered) link->n_nodes = before;
}

static int greet(once_redis_link *link, once_error *err)
{
    once_redis_pipe pipe;
    once__redis_pipe_init(&pipe);
    if (link->url.password[0] || link->url.user[0]) { /* a user may have no password */
        once__redis_command(&pipe, ONCE_REPLY_DONE, link->url.user[0] ? 3 : 2);
        once__redis_text(&pipe, "AUTH");
        if (link->url.user[0]) once__redis_text(&pipe, link->url.user);
        once__redis_text(&pipe, link->url.password);
    }
    if (link->url.db) {
        once__redis_command(&pipe, ONCE_REPLY_DONE, 2);
        once__redis_text(&pipe, "SELECT");
        once__redis_number(&pipe, link->url.db);
    }
    once__redis_words(&pipe, ONCE_REPLY_DONE, "PING");
    once__redis_words(&pipe, ONCE_REPLY_SLOTS, "CLUSTER SLOTS"); /* may fail, see learn_nodes */
    int rc =
        pipe.failed || pipe.bytes.failed ? once_no_memory(err, "for a connection") : once__redis_talk(link, &pipe, err);
    const redisReply *error = rc == ONCE_OK ? once__redis_first_error(&pipe, pipe.n - 1) : NULL;
    if (error) rc = once__redis_refused(link, NULL, error, NULL, err);
    if (rc == ONCE_OK) rc = once__redis_check_replies(link, &pipe, err);
    if (rc == ONCE_OK) learn_nodes(link, pipe.replies[pipe.n - 1]);
    if (rc != ONCE_OK && link->fd >= 0) (void)once__redis_link_lost(link, NULL, "greeting", "refused");
    if (pipe.bytes.data) explicit_bzero(pipe.bytes.data, pipe.bytes.len); /* the password */
    once__redis_pipe_release(&pipe);
    return rc;
}

static int connect_once(once_redis_link *link, once_error *err)
{
    if (link->reader) redisReaderFree(link->reader);
    link->reader = redisReaderCreate();
    if (!link->reader) return once_no_memory(err, "for a connection");
    int rc = once__redis_dial(link, err);
    if (rc == ONCE_OK && link->url.tls) {
        once_error why = {0};
        link->tls = once__redis_tls_start(link->fd, &link->url, link->at.host, &link->waiting, &why);
        if (!link->tls) {
            link->silent = errno == ETIMEDOUT;
            once__redis_hang_up(link);
            return once_fail(err, why.status, "%s", why.text);
        }
    }
    if (rc == ONCE_OK) rc = greet(link, err);
    if (rc == ONCE_OK) link->connections++;
    return rc;
}

/* A server that restarts is back in a moment, so the same node is tried first. A node that did not answer in time is
 * not tried again. */
int once__redis_connect(once_redis_link *link, once_error *err)
{
    int rc = ONCE_OK;
    const int tries = CONNECT_TRIES + (int)link->n_nodes - 1;
    link->silent = false;
    for (int i = 0; link->fd < 0 && i < tries && !link->silent; i++) {
        const int64_t pause_ms = i && i < CONNECT_TRIES ? INT64_C(10) << (2 * i) : 0;
        if (pause_ms)
            once_env_sleep_ms(link->env, pause_ms / 2 + (int64_t)(once_env_random_u64(link->env) % (uint64_t)pause_ms));
        rc = connect_once(link, err);
        if (rc != ONCE_OK && once_status_class(rc) != ONCE_CLASS_RETRY) break;
        if (rc != ONCE_OK && (i > 0 || link->silent)) once__redis_next_node(link);
    }
    return rc;
}
