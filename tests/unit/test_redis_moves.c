/* What a store does when a node of a cluster says that the keys are elsewhere, or on their way. One redis-server plays
 * all of them: a proxy answers in its place. That a real cluster answers so is shown by test_redis_cluster.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "replyproxy.h"
#include "store/store.h"

#ifdef ONCE_WITH_REDIS

static redis_server server;
static bool there;
static unsigned stores;

typedef struct fixture {
    _Atomic(const char *) instead; /* of the next reply; NULL: of none */
    atomic_uint spared;            /* so many replies before that one stay as they are */
    atomic_char next;              /* what the reply after that one begins with */
    bool greeted, replaced;        /* the reply before was that to PING; was such a one */
    _Atomic(const char *const *)
        cluster; /* what it says when it is asked about a cluster, one after the other; NULL: that there is none */
    atomic_uint replies, refusals; /* so many since `listen`, and of these errors */
    reply_proxy proxy;
    once_backend *store;
    once_arena arena;
    once_error err;
    once_scope scope;
    uint64_t tokens;
    unsigned keys;
} fixture;

/* Of a cluster of one node, whose name is that of whoever asks. */
static const char slots[] = "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$-1\r\n:0\r\n";

static const char no_cluster[] = "-ERR This instance has cluster support disabled";

static bool answer(void *user, proxy_reply *reply)
{
    fixture *f = user;
    if (f->replaced) atomic_store(&f->next, reply->data[0]);
    const bool spare = atomic_load(&f->spared) > 0;
    const char *instead = spare ? NULL : atomic_exchange(&f->instead, NULL);
    if (spare) atomic_fetch_sub(&f->spared, 1);
    f->replaced = instead != NULL;
    if (!instead && f->greeted) instead = slots;
    const char *const *cluster = atomic_load(&f->cluster);
    if (!instead && cluster && *cluster && reply->len > sizeof no_cluster &&
        memcmp(reply->data, no_cluster, sizeof no_cluster - 1) == 0) {
        instead = *cluster;
        atomic_store(&f->cluster, cluster + 1);
    }
    f->greeted = reply->len == 7 && memcmp(reply->data, "+PONG\r\n", 7) == 0;
    if (instead) *reply = (proxy_reply){instead, strlen(instead)};
    atomic_fetch_add(&f->replies, 1);
    atomic_fetch_add(&f->refusals, reply->data[0] == '-');
    return true;
}

static void listen_from_now(fixture *f)
{
    atomic_store(&f->replies, 0);
    atomic_store(&f->refusals, 0);
}

#define assert_ok(call)                                                                                                \
    do {                                                                                                               \
        if ((call) != ONCE_OK) fail_msg("%s: %s", #call, f->err.text);                                                 \
    } while (0)

static int set_up(void **state)
{
    const once_store_options options = {.size = sizeof options, .create = true, .busy_ms = 5000};
    char url[256];
    if (!there) return 0;
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->scope = (once_scope){{0}, ONCE_BYTES("c"), ONCE_BYTES("op")};
    redis_proxy_start(&f->proxy, &server, answer, f);
    snprintf(url, sizeof url, "%s/0?name=m%u", f->proxy.url, ++stores);
    assert_ok(once__store_open(url, &options, &f->store, &f->err));
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    if (!there) return 0;
    once__store_close(f->store);
    reply_proxy_stop(&f->proxy);
    once_arena_release(&f->arena);
    free(f);
    return 0;
}

static fixture *begun(void **state)
{
    if (!there) {
        print_message("no redis-server\n");
        skip();
    }
    return *state;
}

static once_answer claim_alone(fixture *f, const char *key)
{
    const once_bytes bytes = {key, strlen(key)};
    const once_request request = {.scope = &f->scope,
                                  .key = bytes,
                                  .id = once_key_id(f->store->secret, &f->scope, bytes),
                                  .token = {++f->tokens, 1},
                                  .lane.gap_ms = -1,
                                  .lease_ms = 30000,
                                  .remember_ms = 3600000,
                                  .sent_ms = ONCE_NO_TIME},
                       *requests = &request;
    once_decision d;
    assert_ok(f->store->ops->claim(f->store, &requests, 1, &d, &f->arena, &f->err));
    return d.answer;
}

/* In a transaction; `instead` is what its first reply is. */
static void claim(fixture *f, const char *key, const char *instead)
{
    assert_ok(f->store->ops->begin(f->store, &f->err));
    listen_from_now(f);
    atomic_store(&f->instead, instead);
    assert_int_equal(claim_alone(f, key), ONCE_ANSWER_RUN);
    assert_null(atomic_load(&f->instead));
}

static int commit(fixture *f, const char *instead)
{
    listen_from_now(f);
    atomic_store(&f->instead, instead);
    return f->store->ops->commit(f->store, &f->err);
}

static const char moved[] = "-MOVED 1 127.0.0.1:1\r\n"; /* where nobody answers, so that it comes back */
static const char again[] = "-TRYAGAIN Multiple keys request during rehashing of slot\r\n";
static const char torn[] = "-ERR Script attempted to access a non local key in a cluster node script: x\r\n";

static void f90_a_commit_does_not_follow_its_slot(void **state)
{
    fixture *f = begun(state);
    claim(f, "a", NULL);
    assert_ok(commit(f, NULL));
    const unsigned usual = atomic_load(&f->replies);
    claim(f, "b", NULL);
    assert_int_equal(commit(f, moved), ONCE_E_ABORTED);
    assert_int_equal(atomic_load(&f->replies),
                     usual); /* nobody else was asked to write what was decided by what the old node said */
    claim(f, "c", NULL);
    assert_ok(commit(f, NULL));
}

static void f90_what_was_read_from_two_nodes_is_not_committed(void **state)
{
    fixture *f = begun(state);
    claim(f, "k", moved);
    assert_true(atomic_load(&f->replies) > 2); /* it went, and came back */
    assert_int_equal(commit(f, NULL), ONCE_E_ABORTED);
    assert_int_equal(atomic_load(&f->replies), 0);
    claim(f, "k", NULL);
    assert_ok(commit(f, NULL));
}

/* It is tried again. The proxy has changed an answer and not the deed, so here the script finds that it was done
 * before. */
static void f90_a_commit_waits_while_its_keys_move(void **state)
{
    fixture *f = begun(state);
    static const char *const moving[] = {again, torn};
    for (size_t i = 0; i < sizeof moving / sizeof *moving; i++) {
        claim(f, i ? "a" : "b", NULL);
        assert_int_equal(commit(f, moving[i]), ONCE_E_ABORTED);
    }
}

/* Whoever has seen keys on their way looks for some that were left behind, once the move is over. */
static void f90_after_a_move_strays_are_looked_for(void **state)
{
    fixture *f = begun(state);
    claim(f, "k", again);
    f->store->ops->rollback(f->store);
    for (int i = 0; i < 2; i++) {
        listen_from_now(f);
        assert_ok(f->store->ops->begin(f->store, &f->err));
        assert_int_equal(atomic_load(&f->refusals) > 0, i == 0); /* a server without a cluster has no answer to that */
        f->store->ops->rollback(f->store);
    }
}

enum { SAID = 600 };

__attribute__((format(printf, 2, 3))) static void say(char out[SAID], const char *format, ...)
{
    char text[SAID - 20];
    va_list args;
    va_start(args, format);
    const int len = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    assert_in_range(len, 1, (int)sizeof text - 1);
    snprintf(out, SAID, "$%d\r\n%s\r\n", len, text);
}

/* A move that goes on when a transaction begins may be given up before it reads: what is not there then may be on the
 * other node. */
static void f90_a_move_that_is_given_up_meanwhile_is_noticed(void **state)
{
    fixture *f = begun(state);
    static const char *const ends[] = {"1", "0"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        char moving[SAID], over[SAID], other[SAID], there_too[8];
        say(moving, "a %s:1@1 myself,master - 0 0 1 connected 0-16383 [0->-b]\nb %s:1@1 master - 0 0 2 connected\n",
            f->proxy.path, f->proxy.path);
        say(over, "a %s:1@1 myself,master - 0 0 1 connected 0-16383\nb %s:1@1 master - 0 0 2 connected\n",
            f->proxy.path, f->proxy.path);
        say(other, "b %s:1@1 myself,master - 0 0 2 connected\n", f->proxy.path);
        snprintf(there_too, sizeof there_too, ":%s\r\n", ends[i]);
        const char *const slot = ":0\r\n", *const told[] = {slot,  moving, slot, over, there_too,
                                                            other, slot,   over, NULL};
        claim(f, i ? "a" : "b", again);
        f->store->ops->rollback(f->store); /* it knows that keys move */
        atomic_store(&f->cluster, told);
        claim(f, i ? "c" : "d", NULL);
        assert_ptr_equal(atomic_load(&f->cluster), told + 2);
        const int rc = commit(f, NULL);
        assert_int_equal(rc, i ? ONCE_OK : ONCE_E_UNAVAILABLE);
        if (rc != ONCE_OK) assert_non_null(strstr(f->err.text, "on two nodes of the cluster"));
        assert_ptr_equal(atomic_load(&f->cluster), told + (i ? 6 : 8));
        atomic_store(&f->cluster, NULL);
    }
}

/* Keys are new until new ones are not read any more. So many replies it gets then, the last ones to the commit. */
static unsigned claim_until_it_guesses(fixture *f)
{
    char key[16];
    for (int i = 0; i < 6; i++) {
        listen_from_now(f);
        snprintf(key, sizeof key, "new %u", ++f->keys);
        assert_int_equal(claim_alone(f, key), ONCE_ANSWER_RUN);
    }
    return atomic_load(&f->replies);
}

static void f90_no_key_is_assumed_to_be_new_while_keys_move(void **state)
{
    fixture *f = begun(state);
    const unsigned guessed = claim_until_it_guesses(f);
    listen_from_now(f);
    assert_ok(f->store->ops->begin(f->store, &f->err));
    const unsigned begin = atomic_load(&f->replies);
    f->store->ops->rollback(f->store);
    char moving[SAID];
    say(moving, "a %s:1@1 myself,master - 0 0 1 connected 0-16383 [0->-b]\n", f->proxy.path);
    const char *const slot = ":0\r\n", *const told[] = {slot, moving, slot, moving, NULL};
    atomic_store(&f->cluster, told);
    listen_from_now(f);
    atomic_store(&f->instead,
                 again); /* of the begin, which is sent again; then it looks, and looks again before the commit */
    assert_int_equal(claim_alone(f, "a"), ONCE_ANSWER_RUN);
    assert_ptr_equal(atomic_load(&f->cluster), told + 4);
    assert_true(atomic_load(&f->replies) > guessed + begin + 3 + 3); /* and it has read */
    atomic_store(&f->cluster, NULL);
}

/* What was not read is read after all. */
static void f90_a_commit_that_guessed_begins_anew_where_keys_move(void **state)
{
    fixture *f = begun(state);
    static const char *const moving[] = {again, torn, "-ASK 0 127.0.0.1:1\r\n"};
    char key[16];
    for (size_t i = 0; i < sizeof moving / sizeof *moving; i++) {
        const unsigned guessed = claim_until_it_guesses(f);
        snprintf(key, sizeof key, "%zu", i);
        atomic_store(&f->spared, guessed - 1); /* the last one is the commit's */
        atomic_store(&f->instead, moving[i]);
        assert_int_equal(claim_alone(f, key), ONCE_ANSWER_RUN);
        assert_null(atomic_load(&f->instead));
        assert_int_equal(atomic_load(&f->next),
                         '*'); /* the server's time: it was begun anew, and not committed again */
    }
}

int main(void)
{
    there = redis_server_start(&server);
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(f90_a_commit_does_not_follow_its_slot),
        TEST(f90_what_was_read_from_two_nodes_is_not_committed),
        TEST(f90_a_commit_waits_while_its_keys_move),
        TEST(f90_after_a_move_strays_are_looked_for),
        TEST(f90_a_move_that_is_given_up_meanwhile_is_noticed),
        TEST(f90_no_key_is_assumed_to_be_new_while_keys_move),
        TEST(f90_a_commit_that_guessed_begins_anew_where_keys_move),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (there) redis_server_stop(&server);
    return failed;
}
#else
static void redis_is_not_in_this_build(void **state)
{
    (void)state;
    print_message("no hiredis\n");
    skip();
}

int main(void)
{
    const struct CMUnitTest none[] = {cmocka_unit_test(redis_is_not_in_this_build)};
    return cmocka_run_group_tests(none, NULL, NULL);
}
#endif
