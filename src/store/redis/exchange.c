/* An exchange: all commands of a pipe are sent and all replies are read, wherever in a cluster the keys are. */
#include <assert.h>
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"
#include "store/redis/link_parts.h"

#include "base/banned.h"

enum { REDIRECTS = 5, MOVING_NAP_MS = 100 };

int once__redis_talk(once_redis_link *link, once_redis_pipe *pipe, once_error *err)
{
    assert(pipe->n > 0 && link->fd >= 0);
    once__redis_pipe_free_replies(pipe);
    pipe->replies = calloc(pipe->n, sizeof(redisReply *));
    if (!pipe->replies) return once_no_memory(err, "for replies");
    int rc = once__redis_send(link, once_buf_bytes(&pipe->bytes), err);
    for (size_t i = 0; i < pipe->n && rc == ONCE_OK; i++) rc = once__redis_receive(link, &pipe->replies[i], err);
    return rc;
}

/* Commands behind a commit that ask about the node that the commit was made on. */
static bool is_about_the_node(const once_redis_pipe *pipe, size_t command)
{
    const once_bytes name = once__redis_pipe_argument(pipe, command, 0);
    return once__redis_pipe_is(name, "WAIT") || once__redis_pipe_is(name, "CONFIG");
}

/* Sends those commands again that were answered with ASK, to the node that ASK named, and the questions about that node
 * which follow them. Others have been answered already. */
static int talk_asking(once_redis_link *link, once_redis_pipe *pipe, once_error *err)
{
    assert(pipe->replies);
    static const char asking[] = "*1\r\n$6\r\nASKING\r\n";
    int rc = ONCE_OK;
    bool there = false;
    for (size_t i = 0; i < pipe->n && rc == ONCE_OK; i++) {
        const size_t from = pipe->asked[i].start, to = i + 1 < pipe->n ? pipe->asked[i + 1].start : pipe->bytes.len;
        const bool asked = once__redis_reply_says(pipe->replies[i], "ASK");
        if (!asked && !(there && is_about_the_node(pipe, i))) continue;
        there = true;
        redisReply *fine = NULL, *reply = NULL;
        rc = once__redis_send(link, (once_bytes){asking, sizeof asking - 1}, err);
        if (rc == ONCE_OK) rc = once__redis_send(link, (once_bytes){pipe->bytes.data + from, to - from}, err);
        if (rc == ONCE_OK) rc = once__redis_receive(link, &fine, err);
        if (rc == ONCE_OK) rc = once__redis_receive(link, &reply, err);
        const bool strange = rc == ONCE_OK && !once__reply_error(fine) &&
                             !once__reply_is(fine, ONCE_REPLY_DONE, 0); /* when ASKING is refused, so is the command */
        if (strange) rc = once__redis_wrong_reply(link, (once_bytes){"ASKING", 6}, fine, err);
        if (fine) freeReplyObject(fine);
        if (rc != ONCE_OK && reply) freeReplyObject(reply);
        if (rc != ONCE_OK) break;
        freeReplyObject(pipe->replies[i]);
        pipe->replies[i] = reply;
    }
    return rc;
}

/* Reads the node from "MOVED 3999 127.0.0.1:6381". */
static bool read_node(const redisReply *reply, const char *before, char host[ONCE_REDIS_HOST], unsigned *port)
{
    assert(once__reply_error(reply));
    const char *text = strchr(once__reply_error(reply), ' ');
    text = text ? strchr(text + 1, ' ') : NULL;
    const char *colon = text ? strrchr(++text, ':') : NULL;
    if (!colon) return false;
    const size_t len = (size_t)(colon - text);
    if (len >= ONCE_REDIS_HOST) return false;
    if (len == 0) (void)snprintf(host, ONCE_REDIS_HOST, "%s", before); /* the same host */
    else (void)snprintf(host, ONCE_REDIS_HOST, "%.*s", (int)len, text);
    *port = (unsigned)strtoul(colon + 1, NULL, 10);
    return *port > 0 && *port < 65536;
}

static void go(once_redis_link *link, const char host[ONCE_REDIS_HOST], unsigned port)
{
    (void)once__redis_link_lost(link, NULL, "leaving", "the slot is elsewhere");
    memmove(link->at.host, host, sizeof link->at.host);
    link->at.port = port;
}

/* Asks the node that is about to get the slot. The connection to the node that still has it stays open. */
static int ask_there(once_redis_link *link, once_redis_pipe *pipe, const char host[ONCE_REDIS_HOST], unsigned port,
                     once_error *err)
{
    const once_redis_node home = link->at;
    const unsigned connections = link->connections;
    const int fd = link->fd;
    once_redis_tls *tls = link->tls;
    redisReader *reader = link->reader;
    link->fd = -1;
    link->tls = NULL;
    link->reader = NULL;
    go(link, host, port);
    int rc = once__redis_connect(link, err);
    if (rc == ONCE_OK) rc = talk_asking(link, pipe, err);
    once__redis_hang_up(link);
    if (link->reader) redisReaderFree(link->reader);
    link->at = home;
    link->connections = connections;
    link->fd = fd;
    link->tls = tls;
    link->reader = reader;
    return rc;
}

bool once__redis_wait_while_it_moves(once_redis_link *link, int64_t *waited_ms)
{
    assert(*waited_ms >= 0);
    const int64_t nap_ms = *waited_ms < MOVING_NAP_MS ? *waited_ms + 1 : MOVING_NAP_MS;
    if (*waited_ms >= link->waiting.timeout_ms || once_cancelled(&link->waiting.cancel)) return false;
    once_env_sleep_ms(link->env, nap_ms / 2 + (int64_t)(once_env_random_u64(link->env) % (uint64_t)nap_ms));
    *waited_ms += nap_ms;
    return true;
}

int once__redis_exchange(once_redis_link *link, once_redis_pipe *pipe, char refused[24], once_error *err)
{
    if (refused) refused[0] = 0;
    if (pipe->failed || pipe->bytes.failed) return once_no_memory(err, "for a batch");
    if (pipe->n == 0) return ONCE_OK;
    int rc = once__redis_connect(link, err);
    int64_t waited_ms = 0;
    int down = 0;
    for (int i = 0; rc == ONCE_OK; i++) {
        char host[ONCE_REDIS_HOST];
        unsigned port;
        rc = once__redis_talk(link, pipe, err);
        const redisReply *error = rc == ONCE_OK ? once__redis_first_error(pipe, pipe->n) : NULL;
        if (!error) break;
        if (once__redis_reply_says(error, "ASK") || once__redis_says_moving(error)) {
            link->saw_move = true;
            if (pipe->guesses || (pipe->stays && once__redis_says_moving(error))) {
                rc = once__redis_refused(link, pipe, error, refused, err);
                if (refused && once__redis_says_moving(error))
                    (void)snprintf(refused, 24, "TRYAGAIN"); /* whatever its words were */
                break;
            }
        }
        if (once__redis_reply_says(error, "ASK") && read_node(error, link->at.host, host, &port)) {
            rc = ask_there(link, pipe, host, port, err);
            error = rc == ONCE_OK ? once__redis_first_error(pipe, pipe->n) : NULL;
            if (!error) break;
        }
        if ((once__redis_reply_says(error, "CLUSTERDOWN") || once__redis_reply_says(error, "MASTERDOWN")) &&
            (size_t)++down < link->n_nodes) { /* another node may know where the slot is */
            (void)once__redis_link_lost(link, NULL, "using", once__reply_error(error));
            once__redis_next_node(link);
            rc = once__redis_connect(link, err);
            i--;
            continue;
        }
        if (once__redis_says_moving(error) && once__redis_wait_while_it_moves(link, &waited_ms)) {
            rc = once__redis_connect(link, err);
            i--;
            continue;
        }
        if (!once__redis_reply_says(error, "MOVED") || i == REDIRECTS ||
            !read_node(error, link->at.host, host, &port)) {
            rc = once__redis_refused(link, pipe, error, refused, err);
            break;
        }
        go(link, host, port);
        if (pipe->stays) { /* its decisions are based on the old node */
            rc = once__redis_refused(link, pipe, error, refused, err);
            break;
        }
        rc = once__redis_connect(link, err);
    }
    return rc == ONCE_OK ? once__redis_check_replies(link, pipe, err) : rc;
}
