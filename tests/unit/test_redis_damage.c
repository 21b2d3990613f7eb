/* A damaged Redis store: each verb answers or fails with an error, and never ends the program.
 *
 *     test_redis_damage [SEED [ROUNDS]]
 *
 * A store with entries of every state is damaged at random: bytes are flipped, values cut, swapped and dropped, members
 * added to indexes that name nothing. Then every verb is tried. A failure prints its seed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "redisserver.h"
#include "store/store.h"

#ifdef ONCE_WITH_REDIS
#include <hiredis/hiredis.h>

#include "store/redis/link.h"
#include "store/redis/record.h"

enum { KEYS = 12, LANES = 3, LEASE = 30000, REMEMBER = 3600000 };

static redis_server server;
static bool there;
static unsigned stores;
static uint64_t seed = 1, chance;
static int rounds = 20;

static uint64_t draw(uint64_t below)
{
    chance += 0x9e3779b97f4a7c15;
    uint64_t x = chance;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return (x ^ x >> 31) % below;
}

typedef struct world {
    char name[24], url[256];
    once_backend *store;
    once_arena arena;
    once_scope scope;
    uint64_t tokens;
    redisContext *redis;
    char keys[KEYS][8];
} world;

static once_request ask(world *w, size_t key)
{
    const once_bytes bytes = {w->keys[key], strlen(w->keys[key])};
    const char lane[] = {'l', (char)('0' + key % (LANES + 1))};
    const bool in_lane = key % (LANES + 1) != 0, versioned = key % 2;
    ++w->tokens;
    return (once_request){
        .scope = &w->scope,
        .key = bytes,
        .id = once_key_id(w->store->secret, &w->scope, bytes),
        .fingerprint = {7, key},
        .token = {w->tokens, ~w->tokens},
        .lane = {.id = in_lane ? once_lane_id(w->store->secret, &w->scope, (once_bytes){lane, 2}) : (once_hash){0},
                 .gap_ms = versioned ? 50 : -1,
                 .versioned = in_lane && versioned,
                 .version = in_lane && versioned ? (int64_t)key + 1 : 0,
                 .block = draw(2)},
        .lease_ms = draw(3) ? LEASE : 1,
        .remember_ms = REMEMBER,
        .sent_ms = ONCE_NO_TIME,
        .hold = draw(2),
        .natural = draw(4) == 0,
        .at = {ONCE_BYTES("place"), ONCE_BYTES("1")},
    };
}

static const once_message message = {.body = ONCE_BYTES("{\"a\":1}"), .type = ONCE_BYTES("t"), .sent_ms = ONCE_NO_TIME};

/* --- one verb, whatever it says --- */

static void claim_and_settle(world *w, once_error *err)
{
    const once_request r = ask(w, draw(KEYS)), *requests = &r;
    once_decision d;
    bool applied;
    if (w->store->ops->claim(w->store, &requests, 1, &d, &w->arena, err) != ONCE_OK || d.answer != ONCE_ANSWER_RUN)
        return;
    const once_settlement s = {.request = &r,
                               .outcome = (once_outcome)draw(ONCE_OUTCOMES),
                               .reason = ONCE_BYTES("because"),
                               .delay_ms = draw(2) ? 0 : 100,
                               .message = draw(2) ? &message : NULL};
    if (draw(4)) (void)w->store->ops->settle(w->store, &s, 1, &applied, err);
    else (void)w->store->ops->extend(w->store, &requests, 1, &applied, err);
}

static void accept_one(world *w, once_error *err)
{
    const once_request r = ask(w, draw(KEYS)), *requests = &r;
    const once_message *messages = &message;
    once_decision d;
    (void)w->store->ops->accept(w->store, &requests, &messages, 1, &d, &w->arena, err);
}

static void take_some(world *w, once_error *err)
{
    enum { MOST = 4 };
    once_taken taken[MOST];
    once_settlement settlements[MOST];
    bool applied[MOST];
    size_t n = 0;
    const once_token token = {++w->tokens, 1};
    if (w->store->ops->take(w->store, w->scope.consumer, token, draw(2), LEASE, MOST, NULL, taken, &n, &w->arena,
                            err) != ONCE_OK)
        return;
    size_t running = 0;
    for (size_t i = 0; i < n; i++) {
        if (taken[i].decision.answer != ONCE_ANSWER_RUN) continue;
        taken[i].request.lease_ms = LEASE;
        settlements[running++] = (once_settlement){
            .request = &taken[i].request, .outcome = (once_outcome)draw(ONCE_OUTCOMES), .message = &taken[i].message};
    }
    if (running) (void)w->store->ops->settle(w->store, settlements, running, applied, err);
}

static bool see_entry(void *user, const once_entry *entry)
{
    (void)once_state_name(entry->state);
    *(size_t *)user += entry->key.len;
    return true;
}

static bool see_letter(void *user, const once_letter *letter)
{
    *(uint64_t *)user = letter->id;
    return draw(3) > 0;
}

static bool see_audit(void *user, const once_audit *audit)
{
    *(size_t *)user += audit->note.len;
    return true;
}

static void operate(world *w, once_error *err)
{
    const once_request r = ask(w, draw(KEYS));
    const once_store_ops *ops = w->store->ops;
    const once_outcome ends[] = {ONCE_DONE, ONCE_RETRY, ONCE_DEAD};
    uint64_t letter = 1;
    bool found;
    (void)ops->letters(w->store, w->scope.consumer, draw(4), see_letter, &letter, err);
    switch (draw(6)) {
    case 0: (void)ops->replay_letter(w->store, letter, &found, err); break;
    case 1: (void)ops->discard(w->store, letter, 60000, &found, err); break;
    case 2: (void)ops->resolve(w->store, r.id, ends[draw(3)], ONCE_BYTES("said"), &found, err); break;
    case 3: (void)ops->revive(w->store, &r, &message, &found, err); break;
    case 4: (void)ops->forget(w->store, r.id, &found, err); break;
    default: (void)ops->letter_drop(w->store, letter, &found, err);
    }
}

static void look(world *w, once_error *err)
{
    const once_request r = ask(w, draw(KEYS));
    const once_store_ops *ops = w->store->ops;
    once_entry entry;
    once_decision d;
    once_bytes why;
    once_stats stats;
    once_sweep_result swept;
    size_t seen = 0;
    (void)ops->get(w->store, r.id, &entry, &w->arena, err);
    (void)ops->look(w->store, &r, &d, &w->arena, err);
    (void)ops->explain_lane(w->store, r.id, &why, &w->arena, err);
    (void)ops->stats(w->store, w->scope.consumer, &stats, err);
    (void)ops->list(w->store, w->scope.consumer, (once_state)(1 + draw(ONCE_STATES - 1)), see_entry, &seen, err);
    (void)ops->audits(w->store, w->scope.consumer, see_audit, &seen, err);
    (void)ops->sweep(w->store, 10, &swept, err);
}

static void any_verb(world *w)
{
    static void (*const verbs[])(world *, once_error *) = {claim_and_settle, claim_and_settle, accept_one, take_some,
                                                           take_some,        operate,          look};
    once_error err = {0};
    verbs[draw(sizeof verbs / sizeof *verbs)](w, &err);
    assert_true(err.status == ONCE_OK || err.text[0]);
}

/* --- all of it --- */

typedef struct findings {
    size_t n, mendable;
    char last[1200];
} findings;

static void on_finding(void *user, const char *text)
{
    findings *found = user;
    const bool mendable = strstr(text, "repairs that");
    if (strstr(text, "is dead, and its dead letter is gone"))
        return; /* a verb drops letters without a look at their entries */
    found->n++;
    found->mendable += mendable;
    if (mendable || found->mendable == 0) snprintf(found->last, sizeof found->last, "%s", text);
}

static int verify(world *w, findings *out, once_error *err)
{
    *out = (findings){0};
    return w->store->ops->verify(w->store, on_finding, out, err);
}

static int repair(world *w, uint64_t *n, once_error *err)
{
    const once_store_ops *ops = w->store->ops;
    once_hash after = {0};
    bool more = true;
    int rc = ONCE_OK;
    *n = 0;
    while (more && rc == ONCE_OK) {
        rc = ops->begin(w->store, err);
        if (rc != ONCE_OK) return rc;
        rc = ops->repair(w->store, &after, n, &more, err);
        const once_audit audit = {.consumer = w->scope.consumer, .what = ONCE_BYTES("repair")};
        if (rc == ONCE_OK && *n) rc = ops->audit(w->store, &audit, err);
        if (rc == ONCE_OK) rc = ops->commit(w->store, err);
        else ops->rollback(w->store);
    }
    return rc;
}

/* Nothing is left that could be mended. The second repair may find what the first one has laid bare. */
static void mend(world *w)
{
    findings found;
    once_error err = {0};
    uint64_t n = 1;
    for (int i = 0; i < 6 && n; i++)
        if (repair(w, &n, &err) != ONCE_OK) return; /* a key of another type, or the head */
    if (n) {
        (void)verify(w, &found, &err);
        fail_msg("repaired %llu again and again: %s", (unsigned long long)n, found.last);
    }
    /* What cannot be read may keep what belongs to it from being mended. */
    if (verify(w, &found, &err) == ONCE_OK && found.mendable && found.mendable == found.n) fail_msg("%s", found.last);
}

/* --- damage --- */

static redisReply *run(world *w, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    redisReply *reply = redisvCommand(w->redis, format, arguments);
    va_end(arguments);
    assert_non_null(reply);
    return reply;
}

static void run_free(redisReply *reply) { freeReplyObject(reply); }

static size_t noise(char out[64])
{
    const size_t n = 1 + (size_t)draw(40);
    for (size_t i = 0; i < n; i++) out[i] = (char)draw(256);
    return n;
}

static void damage_value(world *w, const redisReply *key, const redisReply *other)
{
    char bytes[64];
    redisReply *value = run(w, "GET %b", key->str, key->len);
    if (value->type == REDIS_REPLY_STRING && value->len > 0) {
        switch (draw(4)) {
        case 0: { /* a few bytes */
            for (uint64_t i = 1 + draw(4); i > 0; i--)
                value->str[draw(value->len)] = (char)(draw(2) ? draw(256) : draw(2) ? 0xff : 0x80);
            run_free(run(w, "SET %b %b", key->str, key->len, value->str, value->len));
            break;
        }
        case 1: run_free(run(w, "SET %b %b", key->str, key->len, value->str, (size_t)draw(value->len + 1))); break;
        case 2: run_free(run(w, "SET %b %b", key->str, key->len, bytes, noise(bytes))); break;
        default: run_free(run(w, "COPY %b %b REPLACE", other->str, other->len, key->str, key->len));
        }
    }
    run_free(value);
}

static void damage_collection(world *w, const redisReply *key, const char *type)
{
    char bytes[64], member[64];
    size_t n = noise(bytes);
    if (draw(2)) { /* the id of an entry, which need not belong there */
        once__redis_id_write(ask(w, draw(KEYS)).id, (unsigned char *)bytes);
        n = 16;
    }
    const size_t m = noise(member);
    if (strcmp(type, "zset") == 0)
        run_free(run(w, "ZADD %b %lld %b", key->str, key->len, (long long)draw(3) - 1, bytes, n));
    else if (strcmp(type, "hash") == 0 && draw(2))
        run_free(run(w, "HSET %b %b %b", key->str, key->len, bytes, n, member, m));
    else if (strcmp(type, "hash") == 0) run_free(run(w, "HDEL %b letters", key->str, key->len));
    else if (strcmp(type, "list") == 0) run_free(run(w, "RPUSH %b %b", key->str, key->len, bytes, n));
    else if (strcmp(type, "set") == 0) run_free(run(w, "SADD %b %b", key->str, key->len, bytes, n));
}

static void damage(world *w)
{
    redisReply *keys = run(w, "KEYS {%s}*", w->name);
    assert_true(keys->type == REDIS_REPLY_ARRAY);
    if (keys->elements) {
        const redisReply *key = keys->element[draw(keys->elements)], *other = keys->element[draw(keys->elements)];
        redisReply *type = run(w, "TYPE %b", key->str, key->len);
        if (draw(8) == 0) run_free(run(w, "DEL %b", key->str, key->len));
        else if (strcmp(type->str, "string") == 0) damage_value(w, key, other);
        else damage_collection(w, key, type->str);
        run_free(type);
    }
    freeReplyObject(keys);
}

/* --- rounds --- */

static bool open_again(world *w)
{
    const once_store_options options = {.size = sizeof options, .create = true};
    once_error err = {0};
    once__store_close(w->store);
    w->store = NULL;
    return once__store_open(w->url, &options, &w->store, &err) == ONCE_OK;
}

static void one_round(redisContext *redis)
{
    world w = {.redis = redis};
    snprintf(w.name, sizeof w.name, "d%u", ++stores);
    snprintf(w.url, sizeof w.url, "%s/0?name=%s", server.url, w.name);
    for (size_t i = 0; i < KEYS; i++) snprintf(w.keys[i], sizeof w.keys[i], "k%zu", i);
    w.scope = (once_scope){{0}, ONCE_BYTES("c"), ONCE_BYTES("op")};
    assert_true(open_again(&w));
    for (int i = 0; i < 40; i++) any_verb(&w);
    findings found;
    once_error err = {0};
    assert_int_equal(verify(&w, &found, &err), ONCE_OK);
    if (found.n) fail_msg("whatever the verbs did: %s", found.last);
    for (int i = 0; i < 20; i++) {
        damage(&w);
        (void)verify(&w, &found, &err);
        for (int k = 0; k < 6; k++) any_verb(&w);
        if (draw(4) == 0) mend(&w);
        once_arena_reset(&w.arena);
        if (draw(4) == 0 && !open_again(&w)) break; /* the head is damaged: refused */
    }
    once__store_close(w.store);
    once_arena_release(&w.arena);
}

static void f93_whatever_a_store_contains_nothing_is_asserted(void **state)
{
    (void)state;
    if (!there) {
        print_message("no redis-server\n");
        skip();
    }
    char path[128];
    snprintf(path, sizeof path, "%s/s", server.folder);
    redisContext *redis = redisConnectUnix(path);
    assert_true(redis && !redis->err);
    for (int i = 0; i < rounds; i++) {
        chance = seed + (uint64_t)i;
        print_message("seed %llu\n", (unsigned long long)chance);
        one_round(redis);
    }
    redisFree(redis);
}

int main(int argc, char **argv)
{
    if (argc > 1) seed = strtoull(argv[1], NULL, 10);
    if (argc > 2) rounds = (int)strtol(argv[2], NULL, 10);
    there = redis_server_start(&server);
    const struct CMUnitTest tests[] = {cmocka_unit_test(f93_whatever_a_store_contains_nothing_is_asserted)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (there) redis_server_stop(&server);
    return failed;
}
#else
int main(void) { return redis_is_missing(); }
#endif
