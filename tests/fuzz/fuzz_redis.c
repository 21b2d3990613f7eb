/* Fault 93: a Redis server that answers with anything. A real one is asked, and a proxy changes some of its replies as
 * the input says; a store is opened, and used, and closed. Nothing crashes, leaks or hangs; an error has words; and no
 * key runs twice while its lease lasts, unless a changed reply was of the right type: who lies in the right form cannot
 * be found out.
 *
 * The input is a list of changes: how many replies are right before it (one byte), what is done (one byte), and for
 * bytes of the input's own how many (one byte) and these. Behind the last change all replies are right. */
#include <netdb.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "play.h"
#include "replyproxy.h"

#ifdef ONCE_WITH_REDIS
#include <hiredis/hiredis.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);

/* Nodes of a cluster that the input tells of are nobody: no name of theirs is asked for. */
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **res)
{
    (void)node, (void)service, (void)hints, (void)res;
    return EAI_NONAME;
}

static redis_server server;
static reply_proxy proxy;
static redisContext *direct;
static once_env env;
static char here[200]; /* "MOVED ..." to the proxy itself */

/* --- what is done with the replies --- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct {
    const uint8_t *at, *end;
    unsigned skip; /* right ones before the next change */
    bool lied;     /* a change may have been taken for right */
    char bytes[300], last[4096];
    size_t last_len;
} script;

static unsigned next_byte(void) { return script.at < script.end ? *script.at++ : 0; }

/* Whether one may stand where the other is right. */
static bool same_form(const char *a, const char *b)
{
    const bool text_a = a[0] == '$', text_b = b[0] == '$';
    return a[0] == b[0] || (text_a && text_b) || (memcmp(a, "$-1", 3) == 0 && text_b);
}

/* A server that promises an array of a billion makes hiredis ask for as much memory: that is not ours, and the fuzzer's
 * limit. No redirections, whose hosts would be paths of this machine. */
static size_t tame(char *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        size_t digits = 0;
        if (bytes[i] == '*')
            while (i + 1 + digits < len && bytes[i + 1 + digits] >= '0' && bytes[i + 1 + digits] <= '9') digits++;
        if (digits > 5) bytes[i] = '+';
        if (bytes[i] == '/') bytes[i] = '.';
    }
    return len;
}

static bool change(proxy_reply *reply, unsigned what)
{
    static const char *const answers[] = {":1\r\n",
                                          ":0\r\n",
                                          ":-1\r\n",
                                          "$-1\r\n",
                                          "*-1\r\n",
                                          "*0\r\n",
                                          "+OK\r\n",
                                          "$0\r\n\r\n",
                                          "*1\r\n:1\r\n",
                                          "*2\r\n$1\r\n0\r\n$-1\r\n",
                                          "-ERR no\r\n",
                                          "-TRYAGAIN wait\r\n",
                                          "-CLUSTERDOWN x\r\n",
                                          "-NOSCRIPT no\r\n",
                                          "-LOADING x\r\n",
                                          "-READONLY x\r\n",
                                          here};
    enum { ANSWERS = sizeof answers / sizeof *answers };
    const char *right = reply->data;
    bool goes_on = true;
    if (what < 100) {
        *reply = (proxy_reply){answers[what % ANSWERS], strlen(answers[what % ANSWERS])};
    } else if (what < 120) { /* what was right for the one before */
        *reply = (proxy_reply){script.last, script.last_len};
    } else if (what < 140) { /* half of it, and the end */
        reply->len /= 2;
        return false;
    } else {
        size_t len = next_byte();
        if (len > (size_t)(script.end - script.at)) len = (size_t)(script.end - script.at);
        memcpy(script.bytes, script.at, len);
        script.at += len;
        *reply = (proxy_reply){script.bytes, tame(script.bytes, len)};
        goes_on = len > 0 && redis_reply_len(script.bytes, len) == len; /* who waits for the rest, waits */
    }
    if (reply->len && (same_form(reply->data, right) || reply->data[0] == '-')) script.lied |= reply->data[0] != '-';
    return goes_on && reply->len > 0;
}

static void keep_last(const proxy_reply *reply)
{
    script.last_len = reply->len < sizeof script.last ? reply->len : 0;
    memcpy(script.last, reply->data, script.last_len);
}

/* The server is quick because it does not sync, and says that it does. */
static bool hook(void *user, proxy_reply *reply)
{
    static const char no[] = "*2\r\n$10\r\nappendonly\r\n$2\r\nno\r\n",
                      yes[] = "*2\r\n$10\r\nappendonly\r\n$3\r\nyes\r\n";
    bool goes_on = true;
    (void)user;
    pthread_mutex_lock(&lock);
    if (reply->len == sizeof no - 1 && memcmp(reply->data, no, reply->len) == 0)
        *reply = (proxy_reply){yes, sizeof yes - 1};
    const proxy_reply right = *reply;
    if (script.at < script.end && script.skip-- == 0) {
        goes_on = change(reply, next_byte());
        script.skip = next_byte() % 64;
    }
    keep_last(&right);
    pthread_mutex_unlock(&lock);
    return goes_on;
}

/* --- the store --- */

static bool lied(void)
{
    pthread_mutex_lock(&lock);
    const bool may = script.lied;
    pthread_mutex_unlock(&lock);
    return may;
}

static void no_sleep(void *self, int64_t ms) { (void)self, (void)ms; }

static void stop(void)
{
    redisFree(direct);
    reply_proxy_stop(&proxy);
    redis_server_stop(&server);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    char path[100];
    if (!redis_server_start(&server)) {
        fprintf(stderr, "no redis-server\n");
        exit(1);
    }
    redis_proxy_start(&proxy, &server, hook, NULL);
    snprintf(path, sizeof path, "%s/s", server.folder);
    snprintf(here, sizeof here, "-MOVED 1 %s:1\r\n", proxy.path);
    direct = redisConnectUnix(path);
    CHECK(direct && !direct->err);
    freeReplyObject(redisCommand(direct, "CONFIG SET appendonly no"));
    env = *once_env_real();
    env.sleep_ms = no_sleep;
    atexit(stop);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const once_store_options options = {.size = sizeof options, .create = true, .busy_ms = 100, .env = &env};
    char url[256];
    once_error err = {0};
    play p = play_of(&env, lied);
    freeReplyObject(redisCommand(direct, "FLUSHALL"));
    pthread_mutex_lock(&lock);
    script.at = data;
    script.end = data + (size < 600 ? size : 600);
    script.lied = false;
    script.last_len = 0;
    script.skip = next_byte() % 128;
    pthread_mutex_unlock(&lock);
    snprintf(url, sizeof url, "%s/0?name=f", proxy.url);
    if (play_note(&p, once__store_open(url, &options, &p.store, &err), &err)) {
        play_store(&p);
        once__store_close(p.store);
    }
    once_arena_release(&p.arena);
    pthread_mutex_lock(&lock);
    script.at = script.end = NULL;
    pthread_mutex_unlock(&lock);
    return 0;
}
#else
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { return (void)data, (void)size, 0; }
#endif
