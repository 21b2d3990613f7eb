/* Fault 93: a Redis server that answers with anything. A real one is asked, and a proxy changes some of its replies as the input says; a store is opened,
 * and used, and closed. Nothing crashes, leaks or hangs; an error has words; and no key runs twice while its lease lasts, unless a changed reply was
 * of the right type: who lies in the right form cannot be found out.
 *
 * The input is a list of changes: how many replies are right before it (one byte), what is done (one byte), and for bytes of the input's own
 * how many (one byte) and these. Behind the last change all replies are right. */
#include <netdb.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "redisproxy.h"
#include "store/store.h"

#ifdef ONCE_WITH_REDIS
#include <hiredis/hiredis.h>

#define CHECK(condition)                                                                                              \
    do {                                                                                                              \
        if (!(condition)) abort();                                                                                    \
    } while (0)

int LLVMFuzzerInitialize(int *argc, char ***argv);

/* Nodes of a cluster that the input tells of are nobody: no name of theirs is asked for. */
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **res)
{
    (void)node, (void)service, (void)hints, (void)res;
    return EAI_NONAME;
}

static redis_server server;
static redis_proxy proxy;
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

/* A server that promises an array of a billion makes hiredis ask for as much memory: that is not ours, and the fuzzer's limit. No redirections, whose hosts would
 * be paths of this machine. */
static size_t tame(char *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        size_t digits = 0;
        if (bytes[i] == '*') while (i + 1 + digits < len && bytes[i + 1 + digits] >= '0' && bytes[i + 1 + digits] <= '9') digits++;
        if (digits > 5) bytes[i] = '+';
        if (bytes[i] == '/') bytes[i] = '.';
    }
    return len;
}

static bool change(redis_reply *reply, unsigned what)
{
    static const char *const answers[] = {":1\r\n",  ":0\r\n", ":-1\r\n", "$-1\r\n", "*-1\r\n", "*0\r\n", "+OK\r\n", "$0\r\n\r\n", "*1\r\n:1\r\n", "*2\r\n$1\r\n0\r\n$-1\r\n",
                                          "-ERR no\r\n", "-TRYAGAIN wait\r\n", "-CLUSTERDOWN x\r\n", "-NOSCRIPT no\r\n", "-LOADING x\r\n", "-READONLY x\r\n", here};
    enum { ANSWERS = sizeof answers / sizeof *answers };
    const char *right = reply->data;
    bool goes_on = true;
    if (what < 100) {
        *reply = (redis_reply){answers[what % ANSWERS], strlen(answers[what % ANSWERS])};
    } else if (what < 120) { /* what was right for the one before */
        *reply = (redis_reply){script.last, script.last_len};
    } else if (what < 140) { /* half of it, and the end */
        reply->len /= 2;
        return false;
    } else {
        size_t len = next_byte();
        if (len > (size_t)(script.end - script.at)) len = (size_t)(script.end - script.at);
        memcpy(script.bytes, script.at, len);
        script.at += len;
        *reply = (redis_reply){script.bytes, tame(script.bytes, len)};
        goes_on = len > 0 && redis_reply_len(script.bytes, len) == len; /* who waits for the rest, waits */
    }
    if (reply->len && (same_form(reply->data, right) || reply->data[0] == '-')) script.lied |= reply->data[0] != '-';
    return goes_on && reply->len > 0;
}

static void keep_last(const redis_reply *reply)
{
    script.last_len = reply->len < sizeof script.last ? reply->len : 0;
    memcpy(script.last, reply->data, script.last_len);
}

/* The server is quick because it does not sync, and says that it does. */
static bool hook(void *user, redis_reply *reply)
{
    static const char no[] = "*2\r\n$10\r\nappendonly\r\n$2\r\nno\r\n", yes[] = "*2\r\n$10\r\nappendonly\r\n$3\r\nyes\r\n";
    bool goes_on = true;
    (void)user;
    pthread_mutex_lock(&lock);
    if (reply->len == sizeof no - 1 && memcmp(reply->data, no, reply->len) == 0) *reply = (redis_reply){yes, sizeof yes - 1};
    const redis_reply right = *reply;
    if (script.at < script.end && script.skip-- == 0) {
        goes_on = change(reply, next_byte());
        script.skip = next_byte() % 64;
    }
    keep_last(&right);
    pthread_mutex_unlock(&lock);
    return goes_on;
}

/* --- the store --- */

enum { KEYS = 3, LEASE = 600000 };

typedef struct play {
    once_store *store;
    once_arena arena;
    once_scope scope;
    uint64_t tokens;
    int64_t begun_ns;
    bool runs[KEYS], told; /* granted and not settled; something failed since */
} play;

/* Who waits for a turn that was lost waits as long as it lasts, which is right, and too long for a fuzzer. */
static bool is_late(const play *p) { return once_env_mono_ns(&env) - p->begun_ns > INT64_C(1000000000); }

static once_request ask(play *p, int key)
{
    static const char *const keys[KEYS] = {"a", "b", "c"};
    const once_bytes bytes = {keys[key], 1};
    ++p->tokens;
    return (once_request){
        .scope = &p->scope,
        .key = bytes,
        .id = once_key_id(p->store->secret, &p->scope, bytes),
        .token = {p->tokens, ~p->tokens},
        .lane = {.id = key ? once_lane_id(p->store->secret, &p->scope, ONCE_BYTES("l")) : (once_hash){0}, .gap_ms = -1},
        .lease_ms = LEASE,
        .remember_ms = LEASE,
        .sent_ms = ONCE_NO_TIME,
        .at = {ONCE_BYTES("place"), ONCE_BYTES("1")},
    };
}

static const once_message message = {.body = ONCE_BYTES("{}"), .type = ONCE_BYTES("t"), .sent_ms = ONCE_NO_TIME};

static bool note(play *p, int rc, once_error *err)
{
    if (rc == ONCE_OK) return true;
    CHECK(err->status == rc && err->text[0]);
    *err = (once_error){0};
    p->told = true;
    return false;
}

/* A second RUN without an error before it would be an effect that happens twice. */
static void claim(play *p, int key, once_request *r)
{
    const once_request *requests = r;
    once_decision d = {0};
    once_error err = {0};
    *r = ask(p, key);
    if (is_late(p)) return;
    if (!note(p, p->store->ops->claim(p->store, &requests, 1, &d, &p->arena, &err), &err) || d.answer != ONCE_ANSWER_RUN) return;
    pthread_mutex_lock(&lock);
    CHECK(!p->runs[key] || p->told || script.lied);
    pthread_mutex_unlock(&lock);
    p->runs[key] = true;
}

static void settle(play *p, int key, const once_request *r, once_outcome outcome)
{
    const once_settlement s = {.request = r, .outcome = outcome, .reason = ONCE_BYTES("because"), .message = &message};
    once_error err = {0};
    bool applied = false;
    if (is_late(p)) return;
    if (note(p, p->store->ops->settle(p->store, &s, 1, &applied, &err), &err) && applied) p->runs[key] = outcome == ONCE_DONE; /* done: never again */
}

static bool see_entry(void *user, const once_entry *entry) { return ++*(int *)user, entry->state < ONCE_STATES && *(int *)user < 1000; }
static bool see_letter(void *user, const once_letter *letter) { return ++*(int *)user, letter->id > 0 && *(int *)user < 1000; }
static bool see_audit(void *user, const once_audit *audit) { return ++*(int *)user, audit->note.len < 100000 && *(int *)user < 1000; }

static void look(play *p)
{
    const once_store_ops *ops = p->store->ops;
    once_taken taken[4];
    once_stats stats;
    once_sweep_result swept;
    once_bytes fact;
    once_error err = {0};
    size_t n = 0;
    int seen = 0;
    bool found;
    if (!is_late(p)) (void)note(p, ops->take(p->store, p->scope.consumer, (once_token){++p->tokens, 1}, false, LEASE, 4, taken, &n, &p->arena, &err), &err);
    CHECK(n <= 4);
    if (!is_late(p)) (void)note(p, ops->stats(p->store, p->scope.consumer, &stats, &err), &err);
    for (int state = 1; state < ONCE_STATES && !is_late(p); state++) (void)note(p, ops->list(p->store, p->scope.consumer, (once_state)state, see_entry, &seen, &err), &err);
    if (!is_late(p)) (void)note(p, ops->letters(p->store, p->scope.consumer, 0, see_letter, &seen, &err), &err);
    if (!is_late(p)) (void)note(p, ops->audits(p->store, p->scope.consumer, see_audit, &seen, &err), &err);
    if (!is_late(p)) (void)note(p, ops->fact_set(p->store, "f", ONCE_BYTES("1"), &err), &err);
    if (!is_late(p)) (void)note(p, ops->fact_get(p->store, "f", &fact, &p->arena, &err), &err);
    if (!is_late(p)) (void)note(p, ops->sweep(p->store, 10, &swept, &err), &err);
    if (!is_late(p)) (void)note(p, ops->exhume(p->store, 1, &found, &err), &err);
}

static void use(play *p)
{
    once_request a, b, c, again;
    const once_message *messages = &message;
    once_decision d;
    once_error err = {0};
    claim(p, 0, &a);
    claim(p, 0, &again);
    if (p->runs[0]) settle(p, 0, &a, ONCE_DONE);
    claim(p, 0, &again);
    claim(p, 1, &b);
    c = ask(p, 2);
    const once_request *third = &c;
    if (!is_late(p)) (void)note(p, p->store->ops->accept(p->store, &third, &messages, 1, &d, &p->arena, &err), &err);
    if (p->runs[1]) settle(p, 1, &b, ONCE_DEAD);
    look(p);
}

static void no_sleep(void *self, int64_t ms) { (void)self, (void)ms; }

static void stop(void)
{
    redisFree(direct);
    redis_proxy_stop(&proxy);
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
    play p = {.begun_ns = once_env_mono_ns(&env), .scope = {{0}, ONCE_BYTES("c"), ONCE_BYTES("op")}};
    freeReplyObject(redisCommand(direct, "FLUSHALL"));
    pthread_mutex_lock(&lock);
    script.at = data;
    script.end = data + (size < 600 ? size : 600);
    script.lied = false;
    script.last_len = 0;
    script.skip = next_byte() % 128;
    pthread_mutex_unlock(&lock);
    snprintf(url, sizeof url, "%s/0?name=f", proxy.url);
    if (note(&p, once__store_open(url, &options, &p.store, &err), &err)) {
        use(&p);
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
