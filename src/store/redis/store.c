/* The Redis store: opening and closing it, facts, and what the server's settings guarantee. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "store/redis/redis.h"
#include "store/redis/verify.h"

#include "base/banned.h"

enum { FORMAT = 2, TIMEOUT_MS = 10000 };

_Static_assert(sizeof ONCE_REDIS_NO_SECRET == sizeof(once_secret) + 1, "as long as a secret");

#define MAKE_DURABLE                                                                                                   \
    "run 'CONFIG SET appendonly yes', 'CONFIG SET appendfsync always' and 'CONFIG SET no-appendfsync-on-rewrite no'"

enum { BITS = ONCE_STORE_SHARED | ONCE_STORE_LANES | ONCE_STORE_LIST | ONCE_STORE_CLOCK };

static once_redis *self(once_backend *store) { return (once_redis *)store; }

/* --- facts --- */

static once_redis_fact *find_fact(once_redis *r, const char *name)
{
    for (size_t i = 0; i < r->facts.n; i++)
        if (strcmp(r->facts.at[i].name, name) == 0) return &r->facts.at[i];
    once_bytes copy;
    if (!ONCE_REDIS_ROOM(r->facts) || !once_arena_copy(&r->arena, (once_bytes){name, strlen(name)}, &copy)) return NULL;
    r->facts.at[r->facts.n] = (once_redis_fact){.name = copy.data};
    return &r->facts.at[r->facts.n++];
}

static int read_fact(once_redis *r, const char *name, once_arena *arena, once_bytes *out, once_error *err)
{
    *out = (once_bytes){0};
    once__redis_pipe_clear(&r->pipe);
    once__redis_command(&r->pipe, ONCE_REPLY_VALUE, 3);
    once__redis_text(&r->pipe, "HGET");
    once__redis_put_key(r, "f", NULL, 0);
    once__redis_text(&r->pipe, name);
    const int rc = once__redis_ask(r, err);
    if (rc != ONCE_OK) return rc;
    const once_bytes value = once__reply_bytes(r->pipe.replies[0]);
    return value.len == 0 || once_arena_copy(arena, value, out) ? ONCE_OK : once__redis_nomem(err);
}

int once__redis_fact_get(once_storage *storage, const char *name, once_bytes *out, once_arena *arena, once_error *err)
{
    once_redis *r = once__redis_of(storage);
    assert(r->open);
    once_redis_fact *fact = find_fact(r, name);
    if (!fact) return once__redis_nomem(err);
    if (!fact->read && !fact->written) { /* the commit compares it: it must not change between reading and writing */
        const int rc = read_fact(r, name, &r->arena, &fact->was, err);
        if (rc != ONCE_OK) return rc;
        fact->read = true;
    }
    const once_bytes value = fact->written ? fact->value : fact->was;
    return value.len == 0 || once_arena_copy(arena, value, out) ? ONCE_OK : once__redis_nomem(err);
}

int once__redis_fact_set(once_storage *storage, const char *name, once_bytes value, once_error *err)
{
    once_redis *r = once__redis_of(storage);
    assert(r->writes && name[0]);
    once_redis_fact *fact = find_fact(r, name);
    once_bytes copy = {0};
    if (!fact || (value.len && !once_arena_copy(&r->arena, value, &copy))) return once__redis_nomem(err);
    fact->value = copy;
    fact->written = true;
    return ONCE_OK;
}

/* Setting a fact twice is the same as once, so it is repeated after a lost reply. */
static int redis_fact_set(once_backend *store, const char *name, once_bytes value, once_error *err)
{
    const bool mine = !self(store)->storage.in_tx;
    const int rc = once__engine_fact_set(store, name, value, err);
    if (rc != ONCE_E_UNAVAILABLE || !mine || once__redis_silent(self(store)->link)) return rc;
    return once__engine_fact_set(store, name, value, err);
}

/* Lost commits are noticed by the number of commits in the head, with every commit. So this number is compared only
 * once for each connection. */
int once__redis_fact_count(once_storage *storage, const char *name, uint64_t least, once_bytes value, once_error *err)
{
    once_redis *r = once__redis_of(storage);
    once_bytes there = {0};
    if (least && r->counted_on != once__redis_connections(r->link)) {
        const int rc = read_fact(r, name, &r->arena, &there, err);
        if (rc != ONCE_OK) return rc;
        if (!once__fact_may_follow(there, least)) return once__store_forgot(err);
        r->counted_on = once__redis_connections(r->link);
    }
    return once__redis_fact_set(storage, name, value, err);
}

int once__redis_facts(once_storage *storage, const char *prefix, once_fact_visit *visit, void *user, once_error *err)
{
    once_redis *r = once__redis_of(storage);
    once__redis_pipe_clear(&r->pipe);
    once__redis_command(&r->pipe, ONCE_REPLY_PAIRS, 2);
    once__redis_text(&r->pipe, "HGETALL");
    once__redis_put_key(r, "f", NULL, 0);
    const int rc = once__redis_ask(r, err);
    if (rc != ONCE_OK) return rc;
    const redisReply *reply = r->pipe.replies[0];
    for (size_t i = 0; i < once__reply_n(reply); i += 2) {
        const once_bytes name = once__reply_at(reply, i);
        if (name.len < strlen(prefix) || memcmp(name.data, prefix, strlen(prefix)) != 0) continue;
        if (!visit(user, name, once__reply_at(reply, i + 1))) break;
    }
    return ONCE_OK;
}

/* --- the server --- */

static bool is(once_bytes value, const char *text)
{
    return value.len == strlen(text) && memcmp(value.data, text, value.len) == 0;
}

static once_bytes setting(const redisReply *reply, const char *name)
{
    for (size_t i = 0; i < once__reply_n(reply); i += 2)
        if (is(once__reply_at(reply, i), name)) return once__reply_at(reply, i + 1);
    return (once_bytes){0};
}

static const char *const settings[ONCE_REDIS_SETTINGS] = {"appendonly", "appendfsync", "no-appendfsync-on-rewrite",
                                                          "maxmemory", "maxmemory-policy"};

void once__redis_ask_settings(once_redis_pipe *pipe)
{
    for (size_t i = 0; i < ONCE_REDIS_SETTINGS; i++) { /* one by one: servers before 7 cannot read several */
        once__redis_command(pipe, ONCE_REPLY_PAIRS, 3);
        once__redis_text(pipe, "CONFIG");
        once__redis_text(pipe, "GET");
        once__redis_text(pipe, settings[i]);
    }
}

int once__redis_read_settings(once_redis *r, redisReply *const *replies, bool *durable, once_error *err)
{
    once_bytes values[ONCE_REDIS_SETTINGS];
    for (size_t i = 0; i < ONCE_REDIS_SETTINGS; i++) values[i] = setting(replies[i], settings[i]);
    if (!is(values[3], "0") && !is(values[4], "noeviction"))
        return once_fail(err, ONCE_E_MISSING,
                         "redis would evict entries when its memory is full (maxmemory-policy %.*s);"
                         " run 'CONFIG SET maxmemory-policy noeviction'",
                         (int)values[4].len, values[4].data);
    const bool on = is(values[0], "yes"), always = is(values[1], "always"), rests = is(values[2], "yes");
    if (!on) (void)snprintf(r->durability, sizeof r->durability, "appendonly no");
    else
        (void)snprintf(r->durability, sizeof r->durability, "appendonly yes, appendfsync %.*s%s", (int)values[1].len,
                       values[1].data, rests ? ", no-appendfsync-on-rewrite yes" : "");
    *durable = on && always && !rests;
    if (*durable || !r->durable) return ONCE_OK;
    return once_fail(err, ONCE_E_MISSING, "redis no longer keeps what it acknowledges (%s); " MAKE_DURABLE,
                     r->durability);
}

/* A server that is not durable is used for less. A server that would evict entries is not used at all. */
static int look_at_server(once_redis *r, once_error *err)
{
    char refused[24];
    once_redis_pipe pipe;
    once__redis_pipe_init(&pipe);
    once__redis_ask_settings(&pipe);
    int rc = once__redis_exchange(r->link, &pipe, refused, err);
    if (rc != ONCE_OK &&
        (strcmp(refused, "NOPERM") == 0 || strcmp(refused, "ERR") == 0)) { /* not allowed, or the command was renamed */
        (void)snprintf(r->durability, sizeof r->durability,
                       "whether it is durable is not known: this user may not use CONFIG GET");
        rc = ONCE_OK;
    } else if (rc == ONCE_OK) {
        rc = once__redis_read_settings(r, pipe.replies, &r->durable, err);
    }
    once__redis_pipe_release(&pipe);
    return rc;
}

/* --- open, close --- */

int once__redis_head_number(const once_redis *r, once_bytes text, uint64_t *out, once_error *err)
{
    *out = 0;
    return text.len == 0 || once__reply_read_number(text, out) ? ONCE_OK : once__redis_damaged(r, "the head", err);
}

static int read_head(once_redis *r, bool *there, once_error *err)
{
    once__redis_pipe_clear(&r->pipe);
    once__redis_command_for(&r->pipe, 5, 7);
    once__redis_text(&r->pipe, "HMGET");
    once__redis_put_key(r, "head", NULL, 0);
    once__redis_text(&r->pipe, "secret");
    once__redis_text(&r->pipe, "format");
    once__redis_text(&r->pipe, "commits");
    once__redis_text(&r->pipe, "key_secret");
    once__redis_text(&r->pipe, "upgrading");
    const int rc = once__redis_ask(r, err);
    if (rc != ONCE_OK) return rc;
    const redisReply *reply = r->pipe.replies[0];
    once_bytes secret = once__reply_at(reply, 0);
    const once_bytes format = once__reply_at(reply, 1), new_secret = once__reply_at(reply, 3);
    uint64_t number;
    *there = secret.len > 0 || new_secret.len > 0;
    if (!*there) return ONCE_OK;
    if (!once__reply_read_number(format, &number) || number == 0) return once__redis_damaged(r, "the head", err);
    r->format = number > FORMAT ? FORMAT + 1 : (int)number;
    r->upgrading = once__reply_at(reply, 4).len > 0;
    if (r->format > FORMAT)
        return once_fail(err, ONCE_E_NEWER, "the redis store '%s' has format %.*s, newer than this program's %d",
                         r->url.name, (int)format.len, format.data, FORMAT);
    if (r->format >= 2) secret = new_secret;
    if (secret.len != sizeof r->storage.store.secret) return once__redis_damaged(r, "the head", err);
    memcpy(&r->storage.store.secret, secret.data, secret.len);
    return once__redis_head_number(r, once__reply_at(reply, 2), &r->commits, err);
}

int once__redis_replaced(once_redis *r, once_error *err)
{
    return once_fail(
        err, ONCE_E_OTHER_STORE,
        "the redis store '%s' is not the one that was opened: it was emptied, created again, or lost in a failover;"
        " restore it: in another store every message is new",
        r->url.name);
}

int once__redis_check_head(once_redis *r, once_bytes secret, uint64_t commits, bool kept, once_error *err)
{
    if (secret.len != sizeof r->storage.store.secret || memcmp(secret.data, &r->storage.store.secret, secret.len) != 0)
        return once__redis_replaced(r, err);
    if (commits < r->commits)
        return once_fail(err, ONCE_E_CORRUPT,
                         "redis has forgotten %llu commits of the store '%s' that it had acknowledged: a failover to a"
                         " replica that was behind, or an old copy; messages of that time may be lost or run again; "
                         "start again to go on",
                         (unsigned long long)(r->commits - commits), r->url.name);
    if (kept) r->commits = commits;
    return ONCE_OK;
}

/* Runs a script on the head. KEYS: head, facts, names. ARGV: the format, the secret, and the text that older programs
 * find instead of the secret. */
static int change_head(once_redis *r, const char *script, once_secret secret, once_error *err)
{
    once__redis_pipe_clear(&r->pipe);
    once__redis_command(&r->pipe, ONCE_REPLY_COUNT, 9);
    once__redis_text(&r->pipe, "EVAL");
    once__redis_text(&r->pipe, script);
    once__redis_text(&r->pipe, "3");
    once__redis_put_key(r, "head", NULL, 0);
    once__redis_put_key(r, "f", NULL, 0);
    once__redis_put_key(r, "n", NULL, 0);
    once__redis_number(&r->pipe, FORMAT);
    once__redis_arg(&r->pipe, &secret, sizeof secret);
    once__redis_text(&r->pipe, ONCE_REDIS_NO_SECRET);
    return once__redis_ask(r, err);
}

/* Of two processes that create the store at the same time the first one's secret stays. Facts or names without a head
 * mean that the store has lost its secret: with another one every message would be new. */
static int make_head(once_redis *r, once_error *err)
{
    static const char script[] =
        "if redis.call('HEXISTS', KEYS[1], 'secret') == 0 and redis.call('HEXISTS', KEYS[1], 'key_secret') == 0 then\n"
        "  if redis.call('EXISTS', KEYS[2], KEYS[3]) > 0 then return 1 end\n"
        "  redis.call('HSET', KEYS[1], 'format', ARGV[1], 'key_secret', ARGV[2], 'secret', ARGV[3])\n"
        "end\n"
        "return 0\n";
    once_secret secret;
    once_env_random(r->storage.store.env, &secret, sizeof secret);
    const int rc = change_head(r, script, secret, err);
    if (rc != ONCE_OK || once__reply_count(r->pipe.replies[0]) == 0) return rc;
    return once_fail(err, ONCE_E_CORRUPT,
                     "the key '{%s}head' of the redis store '%s' is gone, and other keys of it are there: every "
                     "message would be new; restore it"
                     " from a backup, or delete all keys that begin with '{%s}'",
                     r->url.name, r->url.name, r->url.name);
}

/* Values of format 1 stay as they are, and are read. Programs of format 1 would misread newer values, and write entries
 * that nobody finds. So they are locked out first: those that start, those that run, and their open transactions. */
static int raise_format(once_redis *r, once_error *err)
{
    static const char script[] =
        "if redis.call('HEXISTS', KEYS[1], 'key_secret') == 0 then\n"
        "  redis.call('HSET', KEYS[1], 'format', ARGV[1], 'key_secret', ARGV[2], 'secret', ARGV[3], 'upgrading', '1')\n"
        "end\n"
        "return 0\n";
    const int rc = change_head(r, script, r->storage.store.secret, err);
    if (rc != ONCE_OK) return rc;
    r->format = FORMAT;
    r->upgrading = true;
    return ONCE_OK;
}

/* If this process is killed before the end, the next one goes on. */
static int upgrade(once_redis *r, once_error *err)
{
    int rc = r->format < FORMAT ? raise_format(r, err) : ONCE_OK;
    if (rc == ONCE_OK) rc = once__redis_upgrade(r, err);
    if (rc != ONCE_OK) return rc;
    once__redis_pipe_clear(&r->pipe);
    once__redis_command(&r->pipe, ONCE_REPLY_COUNT, 3);
    once__redis_text(&r->pipe, "HDEL");
    once__redis_put_key(r, "head", NULL, 0);
    once__redis_text(&r->pipe, "upgrading");
    return once__redis_ask(r, err);
}

static void redis_close(once_backend *store)
{
    once_redis *r = self(store);
    once__redis_link_close(r->link);
    once__redis_pipe_release(&r->pipe);
    once_arena_release(&r->arena);
    once_arena_release(&r->name_arena);
    once_arena_release(&r->cached_arena);
    once__redis_commit_each(r, once_buf_release);
    once_buf_release(&r->value);
    once_buf_release(&r->key);
    void *const lists[] = {r->slots.at, r->lanes.at,  r->facts.at, r->puts.at,  r->dropped.at,
                           r->ahead.at, r->audits.at, r->names.at, r->cached.at};
    once_table *const maps[] = {&r->slot_map,        &r->lane_map, &r->dropped_map,
                                &r->dropped_uniques, &r->name_map, &r->cached_map};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) free(lists[i]);
    for (size_t i = 0; i < sizeof maps / sizeof *maps; i++) once_table_release(maps[i]);
    explicit_bzero(&r->url, sizeof r->url);
    free(r);
}

static int open_store(once_redis *r, bool tls, const char *rest, const once_store_options *options, once_error *err)
{
    const bool create = !options || options->create;
    bool there = false;
    int rc = once__redis_url_read(rest, tls, &r->url, err);
    if (rc != ONCE_OK) return rc;
    (void)snprintf(r->prefix, sizeof r->prefix, "{%s}", r->url.name);
    const int timeout_ms = r->url.timeout_ms             ? (int)r->url.timeout_ms
                           : options && options->busy_ms ? options->busy_ms
                                                         : TIMEOUT_MS;
    r->wait_ms = timeout_ms / 2;
    r->waiting = (once_redis_waiting){timeout_ms, options ? options->cancel : (once_cancel){0}};
    rc = once__redis_link_open(&r->url, once__redis_test_clock(r) ? once_env_real() : r->storage.store.env, r->waiting,
                               &r->link, err);
    if (rc == ONCE_OK) rc = look_at_server(r, err);
    if (rc == ONCE_OK) rc = read_head(r, &there, err);
    if (rc == ONCE_OK && !there && once__redis_clustered(r->link)) rc = once__redis_look_for_strays(r, err);
    if (rc == ONCE_OK && !there && !create)
        rc = once_fail(err, ONCE_E_NO_STORE, "there is no store '%s' in this redis; 'once run' makes one", r->url.name);
    if (rc == ONCE_OK && !there) {
        rc = make_head(r, err);
        if (rc == ONCE_OK) rc = read_head(r, &there, err);
    }
    if (rc == ONCE_OK) rc = once__redis_load_script(r, err);
    if (rc == ONCE_OK && !(options && options->readonly)) rc = once__redis_try_commands(r, err);
    if (rc == ONCE_OK && (r->format < FORMAT || r->upgrading) && !(options && options->readonly)) rc = upgrade(r, err);
    r->connections = r->link ? once__redis_connections(r->link) : 0;
    return rc;
}

static void make_buf(once_buf *buf) { once_buf_init(buf, 1 << 30); }

static int open_any(bool tls, const char *rest, const once_store_options *options, once_backend **out, once_error *err)
{
    if (ONCE_FAIL_AT(open_before)) return once_fail(err, ONCE_E_UNAVAILABLE, "failpoint 'open_before'");
    once_redis *r = calloc(1, sizeof *r);
    if (!r) return once__redis_nomem(err);
    once__redis_commit_each(r, make_buf);
    make_buf(&r->value);
    make_buf(&r->key);
    once__redis_pipe_init(&r->pipe);
    r->storage.store.env = options && options->env ? options->env : once_env_real();
    r->storage.ops = &once__redis_storage;
    r->storage.own_clock = true;
    once__store_sign(&r->storage.store);
#ifdef ONCE_TEST_BUILD
    r->test_clock = r->storage.store.env->wall_ms != once_env_real()->wall_ms;
#endif
    const int rc = open_store(r, tls, rest, options, err);
    r->storage.store.ops = tls ? &once__store_rediss : &once__store_redis;
    /* Without durable settings the store does not offer durability, and does not own bodies. */
    r->storage.store.bits = BITS | (r->durable ? ONCE_STORE_DURABLE | ONCE_STORE_OWNS : 0);
    if (rc != ONCE_OK) {
        redis_close(&r->storage.store);
        return rc;
    }
    *out = &r->storage.store;
    return ONCE_OK;
}

static int redis_open(const char *rest, const once_store_options *options, once_backend **out, once_error *err)
{
    return open_any(false, rest, options, out, err);
}

static int rediss_open(const char *rest, const once_store_options *options, once_backend **out, once_error *err)
{
    return open_any(true, rest, options, out, err);
}

static void redis_describe(once_backend *store, char *out, size_t size)
{
    const once_redis *r = (const once_redis *)store;
    if (!r->durable) (void)snprintf(out, size, "%s; " MAKE_DURABLE, r->durability);
    else
        (void)snprintf(
            out, size,
            "%s; a failover to a replica that was behind loses the last commits: messages that redis had accepted"
            " are lost then, and effects may run again%s",
            r->durability, r->url.wait ? "; waiting for replicas makes that rare, not impossible" : "");
}

#define REDIS_OPS(name, open_it)                                                                                       \
    {                                                                                                                  \
        .scheme = name, .batch_max = 8192, .open = open_it, .close = redis_close, .describe = redis_describe,          \
        .doubt = once__redis_doubt, .letters_ahead = once__engine_letters_ahead, .sweep = once__redis_sweep,           \
        .verify = once__redis_verify,                                                                                  \
        .verified = "every key was read and fits to the others; there are no checksums of ours, so a value that was "  \
                    "changed into another valid one is not noticed",                                                   \
        .repair = once__redis_repair, .letter_heads = once__engine_letter_heads, .fact_set = redis_fact_set,           \
        ONCE_ENGINE_OPS,                                                                                               \
    }

const once_store_ops once__store_redis = REDIS_OPS("redis", redis_open);
const once_store_ops once__store_rediss = REDIS_OPS("rediss", rediss_open);
