/* Replies that are not what a command asked for, and errors that the server replies with: each becomes a status
 * and a text that says what to do. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "store/redis/link_parts.h"

#include "base/banned.h"

bool once__redis_reply_says(const redisReply *reply, const char *word)
{
    const size_t len = strlen(word);
    const char *text = once__reply_error(reply);
    return text && strncmp(text, word, len) == 0 && (text[len] == ' ' || text[len] == ':');
}

/* Ends the connection: the replies behind a wrong one cannot be trusted either. */
int once__redis_wrong_reply(once_redis_link *link, once_bytes command, const redisReply *reply, once_error *err)
{
    char words[ONCE_REPLY_WORDS];
    const int rc =
        once_fail(err, ONCE_E_CORRUPT,
                  "redis at '%s:%u' answers '%.*s' with %s, which is no answer to it: something in between changes"
                  " replies, or this is no redis server",
                  link->at.host, link->at.port, (int)(command.len < 20 ? command.len : 20), command.data,
                  once__reply_words(reply, words));
    once__redis_hang_up(link);
    return rc;
}

/* The key of a command, or of the values that it asks for. */
static once_bytes key_of(const once_redis_pipe *pipe, size_t command, size_t value)
{
    const once_bytes name = once__redis_pipe_argument(pipe, command, 0);
    return once__redis_pipe_argument(pipe, command,
                                     once__redis_pipe_is(name, "MGET")   ? 1 + value
                                     : once__redis_pipe_is(name, "EVAL") ? 3 + value
                                                                         : 1);
}

static int not_ours(const once_redis_link *link, once_bytes key, once_error *err)
{
    char text[ONCE_REDIS_QUOTED];
    return once_fail(
        err, ONCE_E_CORRUPT,
        "the key \"%s\" in redis at '%s:%u' is not what once writes there: another program wrote it, or it is damaged",
        once__redis_quote(key, text), link->at.host, link->at.port);
}

/* Error replies are passed over: the exchange has looked at them. */
int once__redis_check_replies(once_redis_link *link, const once_redis_pipe *pipe, once_error *err)
{
    assert(pipe->replies);
    for (size_t i = 0; i < pipe->n; i++) {
        const redisReply *reply = pipe->replies[i];
        if (!once__reply_error(reply) && !once__reply_is(reply, pipe->asked[i].kind, pipe->asked[i].n))
            return once__redis_wrong_reply(link, once__redis_pipe_argument(pipe, i, 0), reply, err);
        size_t which;
        if (once__reply_has_empty(reply, pipe->asked[i].kind, &which))
            return not_ours(link, key_of(pipe, i, which), err);
    }
    return ONCE_OK;
}

static const struct {
    const char *word;
    int status;
    bool elsewhere; /* the connection ends: the next one may reach a server that can do it */
} refusals[] = {
    {"NOAUTH", ONCE_E_DENIED, false},         {"WRONGPASS", ONCE_E_DENIED, false},
    {"NOPERM", ONCE_E_DENIED, false},         {"OOM", ONCE_E_FULL, false},
    {"MISCONF", ONCE_E_FULL, false},          {"READONLY", ONCE_E_UNAVAILABLE, true},
    {"LOADING", ONCE_E_UNAVAILABLE, false},   {"BUSY", ONCE_E_BUSY, false},
    {"MOVED", ONCE_E_UNAVAILABLE, false},     {"CLUSTERDOWN", ONCE_E_UNAVAILABLE, true},
    {"MASTERDOWN", ONCE_E_UNAVAILABLE, true}, {"NOREPLICAS", ONCE_E_UNAVAILABLE, false},
    {"NOSCRIPT", ONCE_E_ABORTED, false},      {"UNKILLABLE", ONCE_E_BUSY, false},
    {"ASK", ONCE_E_UNAVAILABLE, false}, /* the node that ASK named says ASK, too */
};

/* The slot is moving, and the keys of the command are on both nodes, or are new. The command has changed nothing. A
 * script that fails in this way has only read: it may write only keys that are declared, and those were all here when
 * it began (script.c). */
bool once__redis_says_moving(const redisReply *reply)
{
    return once__redis_reply_says(reply, "TRYAGAIN") || strstr(once__reply_error(reply), "non local key");
}

const char *once__redis_quote(once_bytes key, char out[ONCE_REDIS_QUOTED])
{
    size_t n = 0;
    for (size_t i = 0; i < key.len && n + 5 < ONCE_REDIS_QUOTED; i++) {
        const unsigned char c = (unsigned char)key.data[i];
        if (c < 0x20 || c > 0x7e || c == '"' || c == '\\')
            n += (size_t)snprintf(out + n, ONCE_REDIS_QUOTED - n, "\\x%02x", c);
        else out[n++] = (char)c;
    }
    out[n] = 0;
    return out;
}

/* The key of the command has a type that once does not give it. */
static int wrong_type(const once_redis_link *link, const once_redis_pipe *pipe, const redisReply *reply,
                      once_error *err)
{
    once_bytes key = {0};
    for (size_t i = 0; pipe && i < pipe->n; i++)
        if (pipe->replies[i] == reply) key = once__redis_pipe_argument(pipe, i, 1);
    return not_ours(link, key, err);
}

int once__redis_refused(once_redis_link *link, const once_redis_pipe *pipe, const redisReply *reply, char refused[24],
                        once_error *err)
{
    const char *text = once__reply_error(reply);
    const size_t len = strcspn(text, " ");
    if (refused) (void)snprintf(refused, 24, "%.*s", (int)len, text);
    if (once__redis_reply_says(reply, "WRONGTYPE")) return wrong_type(link, pipe, reply, err);
    int status = ONCE_E_SCHEMA; /* an operator must act: a command is disabled or unknown */
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        if (!once__redis_reply_says(reply, refusals[i].word)) continue;
        status = refusals[i].status;
        if (refusals[i].elsewhere) (void)once__redis_link_lost(link, NULL, "using", text);
    }
    if (once__redis_says_moving(reply)) {
        link->silent = true;
        return once_fail(
            err, ONCE_E_UNAVAILABLE,
            "redis at '%s:%u' moves the keys of the store to another node of its cluster; if no operator does that now,"
            " 'redis-cli --cluster fix %s:%u' ends it",
            link->at.host, link->at.port, link->at.host, link->at.port);
    }
    return once_fail(err, status, "redis at '%s:%u' says: %.200s%s", link->at.host, link->at.port, text,
                     status == ONCE_E_FULL ? "; give it more memory or disk space, or free some" : "");
}

const redisReply *once__redis_first_error(const once_redis_pipe *pipe, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (once__reply_error(pipe->replies[i])) return pipe->replies[i];
    return NULL;
}
