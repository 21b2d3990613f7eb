/* What only a store has that decides on copies and compares when it commits: races between two handles, long lanes of
 * which only the ends are read, servers that restart. The server's own clock decides here; the conformance suite has
 * one of its own. Threads race on handles of their own: worth a run under tsan. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "once/handle.h"
#include "redisserver.h"
#include "store/store.h"
#include "store/worker.h"
#include "testlocale.h"

#ifdef ONCE_WITH_REDIS
#include <hiredis/hiredis.h>

#include "store/redis/redis.h"
#include "store/redis/url.h"

#define LEASE 30000
#define REMEMBER 3600000

static redis_server server;
static bool there;
static unsigned names;

typedef struct fixture {
    char url[256];
    once_backend *a, *b;
    once_arena arena;
    once_error err;
    once_scope scope;
    uint64_t tokens;
} fixture;

static once_backend *open_store(const char *url)
{
    const once_store_options options = {.size = sizeof options, .create = true};
    once_backend *store = NULL;
    once_error err = {0};
    if (once__store_open(url, &options, &store, &err) != ONCE_OK) fail_msg("%s", err.text);
    return store;
}

static int set_up(void **state)
{
    if (!there) return 0;
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    snprintf(f->url, sizeof f->url, "%s/0?name=t%u", server.url, ++names);
    f->scope = (once_scope){{0}, ONCE_BYTES("c"), ONCE_BYTES("op")};
    f->a = open_store(f->url);
    f->b = open_store(f->url);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    if (!there) return 0;
    once__store_close(f->a);
    once__store_close(f->b);
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

static void nap(int ms) { nanosleep(&(struct timespec){.tv_nsec = ms * 1000000L}, NULL); }

/* --- one verb for one entry --- */

static once_request ask(fixture *f, const char *key, const char *lane)
{
    const once_bytes bytes = {key, strlen(key)};
    ++f->tokens;
    return (once_request){
        .scope = &f->scope,
        .key = bytes,
        .id = once_key_id(f->a->secret, &f->scope, bytes),
        .token = {f->tokens, ~f->tokens},
        .lane = {.id = lane ? once_lane_id(f->a->secret, &f->scope, (once_bytes){lane, strlen(lane)}) : (once_hash){0},
                 .gap_ms = -1},
        .lease_ms = LEASE,
        .remember_ms = REMEMBER,
        .sent_ms = ONCE_NO_TIME,
        .at = {ONCE_BYTES("place"), ONCE_BYTES("1")},
    };
}

#define assert_ok(f, call)                                                                                             \
    do {                                                                                                               \
        if ((call) != ONCE_OK) fail_msg("%s: %s", #call, (f)->err.text);                                               \
    } while (0)

static once_answer claim(fixture *f, once_backend *store, const once_request *request)
{
    once_decision d;
    assert_ok(f, store->ops->claim(store, &request, 1, &d, &f->arena, &f->err));
    return d.answer;
}

static once_answer accept(fixture *f, once_backend *store, const once_request *request)
{
    const once_message message = {.body = ONCE_BYTES("{}"), .sent_ms = ONCE_NO_TIME}, *messages = &message;
    once_decision d;
    assert_ok(f, store->ops->accept(store, &request, &messages, 1, &d, &f->arena, &f->err));
    return d.answer;
}

static bool settle(fixture *f, once_backend *store, const once_request *request, once_outcome outcome)
{
    const once_settlement settlement = {.request = request, .outcome = outcome};
    bool applied;
    assert_ok(f, store->ops->settle(store, &settlement, 1, &applied, &f->err));
    return applied;
}

static once_state state_of(fixture *f, once_hash id)
{
    once_entry entry;
    assert_ok(f, f->a->ops->get(f->a, id, &entry, &f->arena, &f->err));
    return entry.state;
}

static size_t take(fixture *f, once_backend *store, size_t max, once_taken *out)
{
    size_t n;
    f->tokens += 1000;
    const once_token token = {f->tokens, 1};
    assert_ok(f,
              store->ops->take(store, f->scope.consumer, token, false, LEASE, max, NULL, out, &n, &f->arena, &f->err));
    for (size_t i = 0; i < n; i++) out[i].request.lease_ms = LEASE, out[i].request.remember_ms = REMEMBER;
    return n;
}

static void begin(fixture *f, once_backend *store) { assert_ok(f, store->ops->begin(store, &f->err)); }

static void commit_is_refused(fixture *f, once_backend *store)
{
    const int rc = store->ops->commit(store, &f->err);
    assert_int_equal(rc, ONCE_E_ABORTED);
    assert_int_equal(once_status_class(rc), ONCE_CLASS_RETRY);
}

/* --- races --- */

static void f48_a_transaction_that_lost_a_race_writes_nothing(void **state)
{
    fixture *f = begun(state);
    const once_request mine = ask(f, "k", NULL), theirs = ask(f, "k", NULL), other = ask(f, "other", NULL);
    begin(f, f->a);
    assert_int_equal(claim(f, f->a, &mine), ONCE_ANSWER_RUN);
    assert_int_equal(claim(f, f->a, &other), ONCE_ANSWER_RUN);
    assert_int_equal(claim(f, f->b, &theirs), ONCE_ANSWER_RUN);
    commit_is_refused(f, f->a);
    assert_int_equal(state_of(f, other.id), ONCE_STATE_ABSENT);
    begin(f, f->a);
    assert_int_equal(claim(f, f->a, &mine), ONCE_ANSWER_BUSY);
    assert_int_equal(claim(f, f->a, &other), ONCE_ANSWER_RUN);
    assert_ok(f, f->a->ops->commit(f->a, &f->err));
    assert_true(settle(f, f->b, &theirs, ONCE_DONE));
}

static void f14_a_settlement_meets_whoever_came_between(void **state)
{
    fixture *f = begun(state);
    once_request mine = ask(f, "k", NULL);
    const once_request theirs = ask(f, "k", NULL);
    mine.lease_ms = 1;
    assert_int_equal(claim(f, f->a, &mine), ONCE_ANSWER_RUN);
    nap(5);
    begin(f, f->a);
    assert_true(settle(f, f->a, &mine, ONCE_DONE)); /* its lease is over, but nobody else has it */
    assert_int_equal(claim(f, f->b, &theirs), ONCE_ANSWER_RUN);
    commit_is_refused(f, f->a);
    assert_false(settle(f, f->a, &mine, ONCE_DONE));
    assert_true(settle(f, f->b, &theirs, ONCE_DONE));
}

static void f33_parked_while_the_lane_is_freed(void **state)
{
    fixture *f = begun(state);
    for (int order = 0; order < 2; order++) {
        const char *lane = order ? "one" : "two";
        const once_request first = ask(f, order ? "1" : "2", lane), next = ask(f, order ? "3" : "4", lane);
        once_backend *slow = order ? f->a : f->b;
        assert_int_equal(claim(f, f->a, &first), ONCE_ANSWER_RUN);
        begin(f, slow);
        if (order == 0) { /* b parks behind the first one, which a settles meanwhile: nobody would wake it */
            assert_int_equal(accept(f, f->b, &next), ONCE_ANSWER_WAITING);
            assert_true(settle(f, f->a, &first, ONCE_DONE));
        } else { /* a settles and sees nobody to wake, while b parks */
            assert_true(settle(f, f->a, &first, ONCE_DONE));
            assert_int_equal(accept(f, f->b, &next), ONCE_ANSWER_WAITING);
        }
        commit_is_refused(f, slow);
        if (order == 0) assert_int_equal(accept(f, f->b, &next), ONCE_ANSWER_WAITING);
        else assert_true(settle(f, f->a, &first, ONCE_DONE));
        once_taken taken[2];
        assert_int_equal(take(f, f->b, 2, taken), 1);
        assert_true(once_hash_equal(taken[0].request.id, next.id));
        assert_true(settle(f, f->b, &taken[0].request, ONCE_DONE));
    }
}

enum { THREADS = 4, INCREMENTS = 40 };

typedef struct counting {
    const char *url;
    int slow_ms;
    unsigned conflicts_in_a_row;
    bool failed;
} counting;

/* Reads a number in a transaction and writes the next one: conflicts by design. */
static void *count_up(void *user)
{
    counting *self = user;
    once_backend *store = open_store(self->url);
    once_arena arena = {0};
    once_error err;
    for (int i = 0; i < INCREMENTS && !self->failed; i++) {
        unsigned tries = 0;
        int rc;
        do {
            once_bytes was;
            char text[24];
            if (++tries > self->conflicts_in_a_row) self->conflicts_in_a_row = tries;
            rc = store->ops->begin(store, &err);
            if (rc == ONCE_OK) rc = store->ops->fact_get(store, "n", &was, &arena, &err);
            const int len =
                snprintf(text, sizeof text, "%ld", rc == ONCE_OK && was.len ? strtol(was.data, NULL, 10) + 1 : 1);
            if (self->slow_ms) nap(self->slow_ms);
            if (rc == ONCE_OK) rc = store->ops->fact_set(store, "n", (once_bytes){text, (size_t)len}, &err);
            if (rc == ONCE_OK) rc = store->ops->commit(store, &err);
            else store->ops->rollback(store);
        } while (rc == ONCE_E_ABORTED && tries < 100);
        if (rc != ONCE_OK) self->failed = true;
    }
    once_arena_release(&arena);
    once__store_close(store);
    return NULL;
}

static void f48_who_lost_goes_first(void **state)
{
    fixture *f = begun(state);
    pthread_t threads[THREADS];
    counting counts[THREADS];
    for (int i = 0; i < THREADS; i++) counts[i] = (counting){.url = f->url, .slow_ms = i == 0 ? 3 : 0};
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, count_up, &counts[i]), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++) {
        assert_false(counts[i].failed);
        assert_in_range(counts[i].conflicts_in_a_row, 1, 8); /* a slow one is not starved by quick ones */
    }
    once_bytes sum;
    assert_ok(f, f->a->ops->fact_get(f->a, "n", &sum, &f->arena, &f->err));
    assert_int_equal(strtol(sum.data, NULL, 10), THREADS * INCREMENTS);
}

enum { LANES = 6, IN_LANE = 20 };

typedef struct working {
    const char *url;
    uint64_t token;
    bool failed;
    int (*seen)[LANES * IN_LANE]; /* how often each was handed out; the order within a lane */
    int *next;                    /* of each lane */
    pthread_mutex_t *lock;
    bool disorder;
} working;

static void *work(void *user)
{
    working *self = user;
    once_backend *store = open_store(self->url);
    once_arena arena = {0};
    once_error err;
    for (int idle = 0; idle < 300 && !self->failed;) {
        once_taken taken[3];
        size_t n = 0;
        bool applied;
        self->token += 10;
        if (store->ops->take(store, ONCE_BYTES("c"), (once_token){self->token, 1}, false, LEASE, 3, NULL, taken, &n,
                             &arena, &err) != ONCE_OK)
            self->failed = true;
        if (n == 0) idle++, nap(2);
        for (size_t i = 0; i < n && !self->failed; i++) {
            const int lane = taken[i].request.key.data[0] - 'a', at = taken[i].request.key.data[1] - 'A';
            pthread_mutex_lock(self->lock);
            (*self->seen)[lane * IN_LANE + at]++;
            if (self->next[lane]++ != at) self->disorder = true;
            pthread_mutex_unlock(self->lock);
            taken[i].request.remember_ms = REMEMBER;
            taken[i].request.lease_ms = LEASE;
            const once_settlement settlement = {.request = &taken[i].request, .outcome = ONCE_DONE};
            if (store->ops->settle(store, &settlement, 1, &applied, &err) != ONCE_OK || !applied) self->failed = true;
            idle = 0;
        }
        once_stats stats;
        if (store->ops->stats(store, ONCE_BYTES("c"), &stats, &err) == ONCE_OK && stats.waiting + stats.claimed == 0)
            break;
        once_arena_reset(&arena);
    }
    once_arena_release(&arena);
    once__store_close(store);
    return NULL;
}

static void f25_f33_workers_on_the_same_lanes(void **state)
{
    fixture *f = begun(state);
    static int seen[LANES * IN_LANE];
    int next[LANES] = {0};
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    memset(seen, 0, sizeof seen);
    for (int at = 0; at < IN_LANE; at++)
        for (int lane = 0; lane < LANES; lane++) {
            const char key[] = {(char)('a' + lane), (char)('A' + at), 0}, name[] = {(char)('a' + lane), 0};
            const once_request r = ask(f, key, name);
            assert_int_equal(accept(f, f->a, &r), ONCE_ANSWER_WAITING);
        }
    pthread_t threads[THREADS];
    working workers[THREADS];
    for (int i = 0; i < THREADS; i++)
        workers[i] =
            (working){.url = f->url, .token = (uint64_t)(i + 1) << 32, .seen = &seen, .next = next, .lock = &lock};
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++) assert_false(workers[i].failed || workers[i].disorder);
    for (int i = 0; i < LANES * IN_LANE; i++) assert_int_equal(seen[i], 1);
}

/* --- lanes of which only the ends are read --- */

static unsigned long long number_in(fixture *f, const char *words, const char *what);

static void a_long_lane_loses_its_front_in_one_transaction(void **state)
{
    enum { ALL = 300, GONE = 170 };
    fixture *f = begun(state);
    static char keys[ALL][8];
    static once_request requests[ALL];
    for (int i = 0; i < ALL; i++) {
        snprintf(keys[i], sizeof keys[i], "%d", i);
        requests[i] = ask(f, keys[i], "lane");
        assert_int_equal(accept(f, f->a, &requests[i]), ONCE_ANSWER_WAITING);
    }
    begin(f, f->a);
    for (int i = 0; i < GONE; i++) {
        bool found;
        assert_ok(f, f->a->ops->forget(f->a, requests[i].id, &found, &f->err));
        assert_true(found);
    }
    assert_ok(f, f->a->ops->commit(f->a, &f->err));
    for (int i = GONE; i < ALL; i++) {
        once_taken taken[2];
        assert_int_equal(take(f, f->b, 2, taken), 1);
        assert_true(once_hash_equal(taken[0].request.id, requests[i].id));
        assert_true(settle(f, f->b, &taken[0].request, ONCE_DONE));
    }
}

/* Of this store; those of other tests expire when they like. */
static unsigned long long keys_of(fixture *f)
{
    char words[40];
    snprintf(words, sizeof words, "KEYS *{t%u}*", names);
    return number_in(f, words, NULL);
}

/* However many leave: the next one is woken, and when all have left, nothing stays. */
static void a_lane_loses_any_number_in_one_transaction(void **state)
{
    enum { ALL = 40 };
    fixture *f = begun(state);
    const unsigned long long empty = keys_of(f);
    assert_int_not_equal(empty, 0);
    static char keys[ALL][8];
    static once_request requests[ALL];
    for (int gone = 1; gone <= ALL; gone++) {
        for (int i = 0; i < ALL; i++) {
            snprintf(keys[i], sizeof keys[i], "%d", i);
            requests[i] = ask(f, keys[i], "lane");
            assert_int_equal(accept(f, f->a, &requests[i]), ONCE_ANSWER_WAITING);
        }
        for (int from = 0, to = gone; from < ALL; from = to, to = ALL) { /* those, and then the rest */
            begin(f, f->a);
            for (int i = from; i < to; i++) {
                bool found;
                assert_ok(f, f->a->ops->forget(f->a, requests[i].id, &found, &f->err));
            }
            assert_ok(f, f->a->ops->commit(f->a, &f->err));
            if (to == ALL) break;
            once_taken taken[2];
            assert_int_equal(take(f, f->b, 2, taken), 1);
            assert_true(once_hash_equal(taken[0].request.id, requests[gone].id));
        }
        if (gone == 1) assert_int_equal(keys_of(f), empty);
    }
    assert_int_equal(keys_of(f), empty);
}

static void a_long_lane_loses_its_back_and_grows_again(void **state)
{
    enum { ALL = 80 };
    fixture *f = begun(state);
    static char keys[ALL + 1][8];
    static once_request requests[ALL + 1];
    for (int i = 0; i <= ALL; i++) {
        snprintf(keys[i], sizeof keys[i], "%d", i);
        requests[i] = ask(f, keys[i], "lane");
        if (i < ALL) assert_int_equal(accept(f, f->a, &requests[i]), ONCE_ANSWER_WAITING);
    }
    begin(f, f->a);
    for (int i = ALL - 1; i >= 30; i--) {
        bool found;
        assert_ok(f, f->a->ops->forget(f->a, requests[i].id, &found, &f->err));
    }
    assert_int_equal(accept(f, f->a, &requests[ALL]), ONCE_ANSWER_WAITING);
    once_entry entry;
    assert_ok(f, f->a->ops->get(f->a, requests[ALL].id, &entry, &f->arena, &f->err));
    assert_int_equal(entry.order, 30); /* behind the last that is left */
    assert_ok(f, f->a->ops->commit(f->a, &f->err));
    assert_ok(f, f->b->ops->get(f->b, requests[ALL].id, &entry, &f->arena, &f->err));
    assert_int_equal(entry.order, 30);
}

/* As an older once wrote it. */
static void make_old_member(fixture *f, const once_request *r)
{
    once_redis *raw = (once_redis *)f->b;
    once__redis_pipe_clear(&raw->pipe);
    once__redis_command(&raw->pipe, ONCE_REPLY_ANY, 4);
    once__redis_text(&raw->pipe, "ZRANGE");
    once__redis_put_id_key(raw, "o", r->lane.id);
    once__redis_number(&raw->pipe, 0);
    once__redis_number(&raw->pipe, -1);
    assert_ok(f, once__redis_ask(raw, &f->err));
    unsigned char id[16], member[ONCE_REDIS_MEMBER], old[ONCE_REDIS_OLD_MEMBER];
    bool found = false;
    once__redis_id_write(r->id, id);
    const redisReply *reply = raw->pipe.replies[0];
    for (size_t i = 0; i < reply->elements; i++) {
        if (reply->element[i]->len != sizeof member || memcmp(reply->element[i]->str + sizeof member - 16, id, 16) != 0)
            continue;
        memcpy(member, reply->element[i]->str, sizeof member);
        found = true;
    }
    assert_true(found);
    memcpy(old, member, 8);
    memcpy(old + 8, id, 16);
    once__redis_pipe_clear(&raw->pipe);
    once__redis_command(&raw->pipe, ONCE_REPLY_ANY, 3);
    once__redis_text(&raw->pipe, "ZREM");
    once__redis_put_id_key(raw, "o", r->lane.id);
    once__redis_arg(&raw->pipe, member, sizeof member);
    once__redis_command(&raw->pipe, ONCE_REPLY_ANY, 4);
    once__redis_text(&raw->pipe, "ZADD");
    once__redis_put_id_key(raw, "o", r->lane.id);
    once__redis_text(&raw->pipe, "0");
    once__redis_arg(&raw->pipe, old, sizeof old);
    assert_ok(f, once__redis_ask(raw, &f->err));
}

/* An older once parked some of them, as members that do not say when they came: they were first, and leave nothing
 * behind. */
static void f58_f86_members_of_an_older_once_go_first(void **state)
{
    enum { ROUNDS = 12 };
    fixture *f = begun(state);
    static const int64_t versions[] = {1, 5, 5, 9};
    static const char *const names_of[] = {"one", "old", "new", "nine"};
    for (int round = 0; round < ROUNDS; round++) {
        char keys[4][16], lane[16];
        once_request r[4];
        once_taken taken[2];
        bool found;
        snprintf(lane, sizeof lane, "lane %d", round);
        for (int i = 0; i < 4; i++) {
            snprintf(keys[i], sizeof keys[i], "%s-%d", names_of[i], round);
            r[i] = ask(f, keys[i], lane);
            r[i].lane.versioned = true;
            r[i].lane.version = versions[i];
        }
        assert_int_equal(accept(f, f->a, &r[0]), ONCE_ANSWER_WAITING);
        assert_int_equal(accept(f, f->a, &r[3]), ONCE_ANSWER_WAITING);
        assert_int_equal(accept(f, f->a, &r[1]), ONCE_ANSWER_WAITING);
        for (int i = 0; i < 4; i++)
            if (i == 1 || (i != 2 && round % 2)) make_old_member(f, &r[i]);
        assert_int_equal(accept(f, f->a, &r[2]), ONCE_ANSWER_WAITING);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(take(f, f->a, 2, taken), 1);
            assert_true(once_hash_equal(taken[0].request.id, r[i].id));
            assert_int_equal(taken[0].decision.answer, i == 2 ? ONCE_ANSWER_DUPLICATE : ONCE_ANSWER_RUN);
            if (i == 3) assert_ok(f, f->a->ops->forget(f->a, r[i].id, &found, &f->err));
            else if (i != 2) assert_true(settle(f, f->a, &taken[0].request, ONCE_DONE));
        }
        once_redis *raw = (once_redis *)f->b;
        once__redis_pipe_clear(&raw->pipe);
        once__redis_command(&raw->pipe, ONCE_REPLY_ANY, 2);
        once__redis_text(&raw->pipe, "ZCARD");
        once__redis_put_id_key(raw, "o", r[0].lane.id);
        assert_ok(f, once__redis_ask(raw, &f->err));
        assert_int_equal(raw->pipe.replies[0]->integer, 0);
    }
}

/* --- the server --- */

/* The version of a lane is remembered for a time; who runs in it, until it ends. Only the server's own clock lets a key
 * end. */
static void f33_a_lane_outlives_its_version_while_somebody_runs_in_it(void **state)
{
    fixture *f = begun(state);
    once_request r[3];
    static const char *const keys[] = {"1", "3", "2"};
    for (int i = 0; i < 3; i++) {
        r[i] = ask(f, keys[i], "lane");
        r[i].remember_ms = 100;
        r[i].lane.versioned = true;
        r[i].lane.version = keys[i][0] - '0';
    }
    assert_int_equal(claim(f, f->a, &r[0]), ONCE_ANSWER_RUN);
    assert_true(settle(f, f->a, &r[0], ONCE_DONE));
    assert_int_equal(claim(f, f->a, &r[1]), ONCE_ANSWER_RUN);
    nap(150);
    assert_int_equal(claim(f, f->b, &r[2]), ONCE_ANSWER_LATER); /* older, but the newer one runs */
    assert_true(settle(f, f->a, &r[1], ONCE_DONE));
}

static void f20_leases_end_by_the_servers_clock(void **state)
{
    fixture *f = begun(state);
    once_request first = ask(f, "k", NULL);
    const once_request second = ask(f, "k", NULL), held = ask(f, "held", NULL), other = ask(f, "held", NULL);
    first.lease_ms = 60;
    assert_int_equal(claim(f, f->a, &held), ONCE_ANSWER_RUN);
    assert_int_equal(claim(f, f->a, &first), ONCE_ANSWER_RUN);
    nap(70);
    assert_int_equal(claim(f, f->b, &other), ONCE_ANSWER_BUSY);
    assert_int_equal(claim(f, f->b, &second), ONCE_ANSWER_RUN);
    once_entry entry;
    assert_ok(f, f->a->ops->get(f->a, first.id, &entry, &f->arena, &f->err));
    assert_in_range(entry.due_ms - LEASE, time(NULL) * INT64_C(1000) - 2000, time(NULL) * INT64_C(1000) + 2000);
}

static void f53_a_server_that_is_killed_has_everything(void **state)
{
    fixture *f = begun(state);
    const once_request done = ask(f, "done", NULL), open = ask(f, "open", NULL), late = ask(f, "late", NULL);
    assert_int_equal(claim(f, f->a, &done), ONCE_ANSWER_RUN);
    assert_true(settle(f, f->a, &done, ONCE_DONE));
    assert_int_equal(claim(f, f->a, &open), ONCE_ANSWER_RUN);
    assert_int_equal(accept(f, f->b, &late), ONCE_ANSWER_WAITING);
    redis_server_crash(&server); /* the script is gone, too */
    assert_true(settle(f, f->a, &open, ONCE_DONE));
    assert_int_equal(claim(f, f->a, &done), ONCE_ANSWER_DUPLICATE);
    once_entry entry;
    assert_ok(f, f->b->ops->get(f->b, open.id, &entry, &f->arena, &f->err));
    assert_int_equal(entry.state, ONCE_STATE_DONE);
    assert_int_equal(entry.scope.consumer.len, 1); /* names are written to the new server again */
    once_taken taken[2];
    assert_int_equal(take(f, f->b, 2, taken), 1);
}

static int renew(fixture *f, once_worker *worker)
{
    begin(f, f->a);
    int rc = once_worker_renew(worker, f->a, &f->err);
    if (rc == ONCE_OK) rc = f->a->ops->commit(f->a, &f->err);
    else f->a->ops->rollback(f->a);
    if (rc == ONCE_OK) once_worker_kept(worker);
    return rc;
}

/* Behind a new connection may be another server: the number is compared there, too, and not only by the first renewal
 * of all. */
static void f89_a_worker_is_looked_for_behind_each_new_connection(void **state)
{
    fixture *f = begun(state);
    once_worker worker;
    bool died = false;
    once_worker_init(&worker, f->a, ONCE_BYTES("c"), 11, 0);
    assert_ok(f, once_worker_begin(&worker, f->a, &died, &f->err));
    assert_ok(f, renew(f, &worker));
    assert_ok(f, renew(f, &worker));
    assert_ok(f, f->b->ops->fact_set(f->b, worker.name, (once_bytes){0}, &f->err));
    redis_server_crash(&server);
    int rc = renew(f, &worker);
    for (int i = 0; i < 20 && once_status_class(rc) == ONCE_CLASS_RETRY; i++)
        rc = renew(f, &worker); /* the old connection is found to be gone */
    assert_int_equal(rc, ONCE_E_FORGOTTEN);
}

static void f06_a_transaction_over_a_restart_is_not_assumed(void **state)
{
    fixture *f = begun(state);
    const once_request r = ask(f, "k", NULL);
    begin(f, f->a);
    assert_int_equal(claim(f, f->a, &r), ONCE_ANSWER_RUN);
    redis_server_crash(&server);
    const int rc = f->a->ops->commit(f->a, &f->err); /* sent on a dead connection: nobody knows */
    assert_int_equal(once_status_class(rc), rc == ONCE_OK ? ONCE_CLASS_OK : ONCE_CLASS_RETRY);
    assert_int_equal(claim(f, f->a, &r), ONCE_ANSWER_RUN); /* the same token: never busy against itself */
    assert_true(settle(f, f->a, &r, ONCE_DONE));
}

static void run_command(fixture *f, const char *words)
{
    once_redis_url url;
    once_redis_link *link;
    once_redis_pipe pipe;
    assert_ok(f, once__redis_url_read(f->url + strlen("redis:"), false, &url, &f->err));
    assert_ok(f,
              once__redis_link_open(&url, once_env_real(), (once_redis_waiting){.timeout_ms = 1000}, &link, &f->err));
    once__redis_pipe_init(&pipe);
    once__redis_words(&pipe, ONCE_REPLY_ANY, words);
    assert_ok(f, once__redis_exchange(link, &pipe, NULL, &f->err));
    once__redis_pipe_release(&pipe);
    once__redis_link_close(link);
}

static bool release_bare(fixture *f, const once_request *request)
{
    const once_settlement release = {.request = request, .outcome = ONCE_RELEASE};
    bool applied;
    assert_ok(f, f->a->ops->settle(f->a, &release, 1, &applied, &f->err));
    return applied;
}

static uint64_t waiting_of(fixture *f)
{
    once_stats stats;
    assert_ok(f, f->a->ops->stats(f->a, f->scope.consumer, &stats, &f->err));
    return stats.waiting;
}

/* By the server's own clock, which also takes it away; a sweep takes it out of the index. */
static void what_waits_without_a_body_is_forgotten_by_the_server(void **state)
{
    fixture *f = begun(state);
    once_request shortly = ask(f, "short", NULL), longer = ask(f, "long", NULL);
    shortly.remember_ms = 50;
    once_sweep_result swept = {0};
    assert_int_equal(claim(f, f->a, &shortly), ONCE_ANSWER_RUN);
    assert_int_equal(claim(f, f->a, &longer), ONCE_ANSWER_RUN);
    assert_true(release_bare(f, &longer));
    assert_true(release_bare(f, &shortly));
    nap(80);
    assert_int_equal(waiting_of(f), 1);
    assert_int_equal(state_of(f, shortly.id), ONCE_STATE_ABSENT);
    assert_int_equal(state_of(f, longer.id), ONCE_STATE_WAITING);
    assert_ok(f, f->a->ops->sweep(f->a, 10, &swept, &f->err));
    assert_int_equal(swept.dropped, 1);
    assert_ok(f, f->a->ops->sweep(f->a, 10, &swept, &f->err));
    assert_int_equal(swept.dropped, 0);
    shortly.token.a += 100;
    assert_int_equal(claim(f, f->b, &shortly), ONCE_ANSWER_RUN);
    assert_true(settle(f, f->b, &shortly, ONCE_DONE));
}

/* The head as programs of format 1 wrote it. */
static void make_format_1(fixture *f)
{
    once_redis *r = (once_redis *)f->a;
    once__redis_pipe_clear(&r->pipe);
    once__redis_command(&r->pipe, ONCE_REPLY_ANY, 6);
    once__redis_text(&r->pipe, "HSET");
    once__redis_put_key(r, "head", NULL, 0);
    once__redis_text(&r->pipe, "format");
    once__redis_text(&r->pipe, "1");
    once__redis_text(&r->pipe, "secret");
    once__redis_arg(&r->pipe, &f->a->secret, sizeof f->a->secret);
    once__redis_command(&r->pipe, ONCE_REPLY_ANY, 3);
    once__redis_text(&r->pipe, "HDEL");
    once__redis_put_key(r, "head", NULL, 0);
    once__redis_text(&r->pipe, "key_secret");
    assert_ok(f, once__redis_ask(r, &f->err));
}

/* The first thing that the commit and the begin of format 1 ask. */
static bool format_1_may_commit(fixture *f)
{
    once_redis *r = (once_redis *)f->a;
    once__redis_pipe_clear(&r->pipe);
    once__redis_command(&r->pipe, ONCE_REPLY_ANY, 5);
    once__redis_text(&r->pipe, "EVAL");
    once__redis_text(&r->pipe, "if redis.call('HGET', KEYS[1], 'secret') ~= ARGV[1] then return 2 end return 3");
    once__redis_text(&r->pipe, "1");
    once__redis_put_key(r, "head", NULL, 0);
    once__redis_arg(&r->pipe, &f->a->secret, sizeof f->a->secret);
    assert_ok(f, once__redis_ask(r, &f->err));
    return r->pipe.replies[0]->integer == 3;
}

static long field_of_head(fixture *f, const char *field, char *out, size_t size)
{
    once_redis *r = (once_redis *)f->a;
    once__redis_pipe_clear(&r->pipe);
    once__redis_command(&r->pipe, ONCE_REPLY_ANY, 3);
    once__redis_text(&r->pipe, "HGET");
    once__redis_put_key(r, "head", NULL, 0);
    once__redis_text(&r->pipe, field);
    assert_ok(f, once__redis_ask(r, &f->err));
    const once_bytes value = once__reply_bytes(r->pipe.replies[0]);
    snprintf(out, size, "%.*s", (int)value.len, value.len ? value.data : "");
    return (long)value.len;
}

/* A program of format 1 that still runs does nothing any more from the moment on in which another one brings the store
 * up to date. */
static void f58_a_running_program_of_format_1_is_shut_out(void **state)
{
    fixture *f = begun(state);
    char text[64];
    assert_false(format_1_may_commit(f)); /* in a new store as well */
    const once_request r = ask(f, "k", NULL);
    assert_int_equal(claim(f, f->a, &r), ONCE_ANSWER_RUN);
    assert_true(settle(f, f->a, &r, ONCE_DONE));
    make_format_1(f);
    assert_true(format_1_may_commit(f));
    once__store_close(f->b);
    f->b = open_store(f->url);
    assert_false(format_1_may_commit(f));
    assert_int_equal(field_of_head(f, "secret", text, sizeof text),
                     sizeof(once_secret)); /* one that starts reads on to the format */
    field_of_head(f, "format", text, sizeof text);
    assert_string_equal(text, "2");
    assert_memory_equal(&f->a->secret, &f->b->secret, sizeof(once_secret));
    const once_request again = ask(f, "k", NULL);
    assert_int_equal(claim(f, f->b, &again), ONCE_ANSWER_DUPLICATE);
}

static void f58_an_upgrade_that_was_killed_is_done_by_the_next(void **state)
{
    fixture *f = begun(state);
    char words[120], text[64];
    snprintf(words, sizeof words, "HSET {%s}head upgrading 1", strrchr(f->url, '=') + 1);
    run_command(f, words);
    once__store_close(f->b);
    f->b = open_store(f->url);
    assert_int_equal(field_of_head(f, "upgrading", text, sizeof text), 0);
    /* A head of a newer format without its secret is not taken for an empty store. */
    snprintf(words, sizeof words, "HDEL {%s}head key_secret", strrchr(f->url, '=') + 1);
    run_command(f, words);
    once_backend *store = NULL;
    const once_store_options options = {.size = sizeof options, .create = true};
    assert_int_equal(once__store_open(f->url, &options, &store, &f->err), ONCE_E_CORRUPT);
    assert_non_null(strstr(f->err.text, "the head"));
}

/* How format 1 read a lane: everything behind the end was ids. */
static bool format_1_reads_lane(once_bytes value, size_t *n_claimed)
{
    enum { FIXED = 1 + 8 + 1 + 8 + 8 };
    if (value.len < FIXED || value.data[0] != 'N') return false;
    *n_claimed = (value.len - FIXED) / 16;
    return (value.len - FIXED) % 16 == 0;
}

static once_bytes stored_lane(fixture *f, once_hash id)
{
    once_redis *r = (once_redis *)f->a;
    once_bytes value;
    once__redis_pipe_clear(&r->pipe);
    once__redis_command(&r->pipe, ONCE_REPLY_ANY, 2);
    once__redis_text(&r->pipe, "GET");
    once__redis_put_id_key(r, "l", id);
    assert_ok(f, once__redis_ask(r, &f->err));
    assert_true(once_arena_copy(&f->arena, once__reply_bytes(r->pipe.replies[0]), &value));
    return value;
}

static void f58_format_1_refuses_a_lane_with_a_record(void **state)
{
    fixture *f = begun(state);
    size_t n;
    for (size_t len = 1; len <= 32; len++) { /* with every rest that a length may have */
        char key[33], lane[40];
        memset(key, 'k', len);
        key[len] = '\0';
        snprintf(lane, sizeof lane, "lane %zu", len);
        once_request r = ask(f, key, lane);
        r.lane.versioned = true;
        r.lane.version = 1;
        assert_int_equal(claim(f, f->a, &r), ONCE_ANSWER_RUN);
        assert_true(
            format_1_reads_lane(stored_lane(f, r.lane.id), &n)); /* nothing in it that they would not understand */
        assert_int_equal(n, 1);
        assert_true(settle(f, f->a, &r, ONCE_DONE));
        assert_false(format_1_reads_lane(stored_lane(f, r.lane.id), &n));
        once_request older = ask(f, "older", lane);
        older.lane.versioned = true;
        assert_int_equal(claim(f, f->b, &older), len == 1 ? ONCE_ANSWER_STALE : ONCE_ANSWER_DUPLICATE);
    }
}

/* Format 1 wrote a version, and nothing of who settled it. */
static void f58_a_lane_of_format_1_is_read(void **state)
{
    fixture *f = begun(state);
    once_request old = ask(f, "old", "lane"), equal = ask(f, "equal", "lane"), next = ask(f, "next", "lane");
    old.lane.versioned = equal.lane.versioned = next.lane.versioned = true;
    old.lane.version = 6;
    equal.lane.version = 7;
    next.lane.version = 8;
    once_buf value;
    once_buf_init(&value, 1000);
    const once_redis_lane_record record = {.stamp = 5, .has_version = true, .version = 7, .expires_ms = INT64_MAX};
    once__redis_write_lane(&value, &record);
    size_t n;
    assert_true(format_1_reads_lane(once_buf_bytes(&value), &n) && n == 0);
    once_redis *r = (once_redis *)f->a;
    once__redis_pipe_clear(&r->pipe);
    once__redis_command(&r->pipe, ONCE_REPLY_ANY, 3);
    once__redis_text(&r->pipe, "SET");
    once__redis_put_id_key(r, "l", old.lane.id);
    once__redis_arg(&r->pipe, value.data, value.len);
    assert_ok(f, once__redis_ask(r, &f->err));
    once_buf_release(&value);
    assert_int_equal(claim(f, f->a, &old), ONCE_ANSWER_STALE);
    assert_int_equal(claim(f, f->a, &equal), ONCE_ANSWER_CONFLICT);
    assert_int_equal(claim(f, f->a, &next), ONCE_ANSWER_RUN);
}

/* Format 1 had it in the index by its due time, and for ever. */
static void f58_format_1_is_brought_up_to_date(void **state)
{
    fixture *f = begun(state);
    const once_request r = ask(f, "old", NULL);
    char words[120];
    assert_int_equal(claim(f, f->a, &r), ONCE_ANSWER_RUN);
    assert_true(release_bare(f, &r));
    const char *name = strrchr(f->url, '=') + 1;
    snprintf(words, sizeof words, "DEL {%s}w", name);
    run_command(f, words);
    once_redis *old = (once_redis *)f->a;
    once__redis_pipe_clear(&old->pipe);
    once__redis_command(&old->pipe, ONCE_REPLY_ANY, 4);
    once__redis_text(&old->pipe, "ZADD");
    once__redis_put_key(old, "iw", f->scope.consumer.data, f->scope.consumer.len);
    once__redis_text(&old->pipe, "5");
    unsigned char id[16];
    once__redis_id_write(r.id, id);
    once__redis_arg(&old->pipe, id, sizeof id);
    once__redis_command(&old->pipe, ONCE_REPLY_ANY, 2);
    once__redis_text(&old->pipe, "PERSIST");
    once__redis_put_id_key(old, "e", r.id);
    assert_ok(f, once__redis_ask(old, &f->err));
    assert_int_equal(waiting_of(f), 0);
    make_format_1(f);
    once__store_close(f->b);
    f->b = open_store(f->url);
    assert_int_equal(waiting_of(f), 1);
    once__redis_pipe_clear(&old->pipe);
    once__redis_command(&old->pipe, ONCE_REPLY_ANY, 2);
    once__redis_text(&old->pipe, "PTTL");
    once__redis_put_id_key(old, "e", r.id);
    assert_ok(f, once__redis_ask(old, &f->err));
    assert_true(old->pipe.replies[0]->integer > 0 && old->pipe.replies[0]->integer <= REMEMBER);
}

static void a_script_that_the_server_forgot(void **state)
{
    fixture *f = begun(state);
    const once_request r = ask(f, "k", NULL);
    run_command(f, "SCRIPT FLUSH");
    assert_int_equal(claim(f, f->a, &r), ONCE_ANSWER_RUN);
    assert_true(settle(f, f->a, &r, ONCE_DONE));
}

static void f47_a_store_that_was_emptied(void **state)
{
    fixture *f = begun(state);
    const once_request r = ask(f, "k", NULL), *requests = &r;
    once_decision d;
    run_command(f, "FLUSHALL");
    const int rc = f->a->ops->claim(f->a, &requests, 1, &d, &f->arena, &f->err);
    assert_int_equal(once_status_class(rc), ONCE_CLASS_FATAL);
    assert_non_null(strstr(f->err.text, "emptied"));
}

static void f47_settings_that_change_are_noticed_by_the_next_commit(void **state)
{
    fixture *f = begun(state);
    static const char *const changes[][3] = {
        {"CONFIG SET appendfsync everysec", "CONFIG SET appendfsync always", "appendfsync everysec"},
        {"CONFIG SET no-appendfsync-on-rewrite yes", "CONFIG SET no-appendfsync-on-rewrite no",
         "no-appendfsync-on-rewrite yes"},
        {"CONFIG SET maxmemory 1gb maxmemory-policy allkeys-lru", "CONFIG SET maxmemory 0 maxmemory-policy noeviction",
         "allkeys-lru"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        const once_request r = ask(f, changes[i][0], NULL), *requests = &r;
        once_decision d;
        run_command(f, changes[i][0]);
        const int rc = f->a->ops->claim(f->a, &requests, 1, &d, &f->arena, &f->err);
        run_command(f, changes[i][1]);
        assert_int_equal(once_status_class(rc), ONCE_CLASS_PAUSE);
        assert_non_null(strstr(f->err.text, changes[i][2]));
        assert_int_equal(claim(f, f->a, &r), ONCE_ANSWER_RUN); /* with the same token */
    }
}

static void f47_forgotten_commits_are_noticed(void **state)
{
    fixture *f = begun(state);
    char words[128];
    const once_request r = ask(f, "k", NULL), *requests = &r;
    once_decision d;
    assert_int_equal(claim(f, f->a, &r), ONCE_ANSWER_RUN);
    assert_true(settle(f, f->a, &r, ONCE_DONE));
    snprintf(words, sizeof words, "HINCRBY {%s}head commits -1",
             strstr(f->url, "name=") + 5); /* as a replica that is behind has it */
    run_command(f, words);
    const int rc = f->a->ops->claim(f->a, &requests, 1, &d, &f->arena, &f->err);
    assert_int_equal(once_status_class(rc), ONCE_CLASS_FATAL);
    assert_non_null(strstr(f->err.text, "forgotten 1 commits"));
    once_backend *anew = open_store(f->url);
    assert_int_equal(claim(f, anew, &r), ONCE_ANSWER_DUPLICATE);
    once__store_close(anew);
}

static void f47_no_answer_before_the_replicas_have_it(void **state)
{
    fixture *f = begun(state);
    const once_request r = ask(f, "k", NULL), other = ask(f, "k", NULL);
    const once_store_options options = {.size = sizeof options, .busy_ms = 800};
    char url[sizeof f->url + 8];
    snprintf(url, sizeof url, "%s&wait=1", f->url);
    once_backend *waits;
    assert_ok(f, once__store_open(url, &options, &waits, &f->err));
    const once_request *both[] = {&r, &r, &other}; /* commit; repeat it, which writes nothing; be told of it */
    for (size_t i = 0; i < 3; i++) {
        once_decision d;
        assert_int_equal(waits->ops->claim(waits, &both[i], 1, &d, &f->arena, &f->err), ONCE_E_UNAVAILABLE);
        assert_non_null(strstr(f->err.text, "only 0 of 1 replicas"));
    }
    once__store_close(waits);
    assert_int_equal(claim(f, f->a, &other), ONCE_ANSWER_BUSY);
}

static once_outcome count_call(void *user, const once_call *call, once_reply *reply)
{
    (void)call;
    assert_int_equal(once_reply_result(reply, ONCE_BYTES("r")), ONCE_OK);
    ++*(int *)user;
    return ONCE_DONE;
}

static void f47_the_library_takes_it_only_when_it_is_durable(void **state)
{
    fixture *f = begun(state);
    const once_delivery delivery = {.size = sizeof delivery, .key = ONCE_BYTES("k"), .body = ONCE_BYTES("{}")};
    once_store *store;
    once_verdict verdict;
    int calls = 0;
    run_command(f, "CONFIG SET appendfsync everysec");
    const int rc = once_store_open(f->url, NULL, &store, &f->err);
    run_command(f, "CONFIG SET appendfsync always");
    assert_int_equal(rc, ONCE_E_CONFIG);
    assert_non_null(strstr(f->err.text, "could lose messages"));
    assert_ok(f, once_store_open(f->url, NULL, &store, &f->err));
    for (int i = 0; i < 2; i++) {
        assert_ok(f, once_handle(store, &f->scope, &delivery, count_call, &calls, &verdict, &f->err));
        assert_int_equal(verdict.answer, i == 0 ? ONCE_ANSWER_RUN : ONCE_ANSWER_DUPLICATE);
        assert_true(verdict.ack && verdict.result.len == 1);
        once_verdict_release(&verdict);
    }
    assert_int_equal(calls, 1);
    once_store_close(store);
}

/* One driver, two handles: what is granted is as the server was when each was opened. */
static void f47_what_is_granted_belongs_to_the_handle(void **state)
{
    fixture *f = begun(state);
    const unsigned kept = ONCE_STORE_DURABLE | ONCE_STORE_OWNS;
    run_command(f, "CONFIG SET appendfsync everysec");
    once_backend *loses = open_store(f->url);
    run_command(f, "CONFIG SET appendfsync always");
    assert_ptr_equal(loses->ops, f->a->ops);
    assert_int_equal(f->a->bits & kept, kept);
    assert_int_equal(loses->bits & kept, 0);
    assert_int_equal(loses->bits | kept, f->a->bits);
    once__store_close(loses);
}

static void f55_damaged_values_are_not_read_as_absent(void **state)
{
    fixture *f = begun(state);
    const once_request r = ask(f, "k", NULL), *requests = &r;
    once_decision d;
    assert_int_equal(claim(f, f->a, &r), ONCE_ANSWER_RUN);
    assert_true(settle(f, f->a, &r, ONCE_DONE));
    once_redis_url url;
    once_redis_link *link;
    once_redis_pipe pipe;
    assert_ok(f, once__redis_url_read(f->url + strlen("redis:"), false, &url, &f->err));
    assert_ok(f,
              once__redis_link_open(&url, once_env_real(), (once_redis_waiting){.timeout_ms = 1000}, &link, &f->err));
    once__redis_pipe_init(&pipe);
    char key[64];
    const uint64_t words[2] = {__builtin_bswap64(r.id.a), __builtin_bswap64(r.id.b)};
    const int len = snprintf(key, sizeof key, "{%s}e", url.name);
    memcpy(key + len, words, 16);
    once__redis_command(&pipe, ONCE_REPLY_ANY, 3);
    once__redis_text(&pipe, "APPEND");
    once__redis_arg(&pipe, key, (size_t)len + 16);
    once__redis_text(&pipe, "x");
    assert_ok(f, once__redis_exchange(link, &pipe, NULL, &f->err));
    once__redis_pipe_release(&pipe);
    once__redis_link_close(link);
    assert_int_equal(f->a->ops->claim(f->a, &requests, 1, &d, &f->arena, &f->err), ONCE_E_CORRUPT);
}

/* --- what need not be read --- */

enum { MANY = 8 };

static void claim_all(fixture *f, once_backend *store, const once_request *requests, size_t n, once_answer expected)
{
    const once_request *list[MANY];
    once_decision d[MANY];
    for (size_t i = 0; i < n; i++) list[i] = &requests[i];
    assert_ok(f, store->ops->claim(store, list, n, d, &f->arena, &f->err));
    for (size_t i = 0; i < n; i++) assert_int_equal(d[i].answer, expected);
}

static void settle_all(fixture *f, once_backend *store, const once_request *requests, size_t n, bool *applied)
{
    once_settlement settlements[MANY];
    for (size_t i = 0; i < n; i++) settlements[i] = (once_settlement){.request = &requests[i], .outcome = ONCE_DONE};
    assert_ok(f, store->ops->settle(store, settlements, n, applied, &f->err));
}

/* After a few batches of nothing but new entries the next are thought to be new. */
static void meet_new_ones(fixture *f, once_backend *store)
{
    for (int i = 0; i < 5; i++) {
        char key[32];
        snprintf(key, sizeof key, "new %llu", (unsigned long long)f->tokens);
        const once_request r = ask(f, key, NULL);
        assert_int_equal(claim(f, store, &r), ONCE_ANSWER_RUN);
        assert_true(settle(f, store, &r, ONCE_DONE));
    }
}

static void ask_all(fixture *f, once_request *out, size_t n, int64_t lease_ms)
{
    static const char *const keys[MANY] = {"k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"};
    for (size_t i = 0; i < n; i++) out[i] = ask(f, keys[i], NULL), out[i].lease_ms = lease_ms;
}

static uint64_t claimed(fixture *f)
{
    once_stats stats;
    assert_ok(f, f->b->ops->stats(f->b, f->scope.consumer, &stats, &f->err));
    return stats.claimed;
}

/* The number behind the first `what` in the reply to a command. */
static unsigned long long number_in(fixture *f, const char *words, const char *what)
{
    once_redis_url url;
    once_redis_link *link;
    once_redis_pipe pipe;
    assert_ok(f, once__redis_url_read(f->url + strlen("redis:"), false, &url, &f->err));
    assert_ok(f,
              once__redis_link_open(&url, once_env_real(), (once_redis_waiting){.timeout_ms = 1000}, &link, &f->err));
    once__redis_pipe_init(&pipe);
    once__redis_words(&pipe, ONCE_REPLY_ANY, words);
    assert_ok(f, once__redis_exchange(link, &pipe, NULL, &f->err));
    const redisReply *reply = pipe.replies[0];
    const char *at = what && reply->str ? strstr(reply->str, what) : NULL;
    const unsigned long long n =
        what ? at ? strtoull(at + strlen(what), NULL, 10) : 0 : reply->elements + (unsigned long long)reply->integer;
    once__redis_pipe_release(&pipe);
    once__redis_link_close(link);
    return n;
}

static unsigned long long groups(fixture *f)
{
    char words[80];
    snprintf(words, sizeof words, "ZCARD {t%u}cc", names);
    return number_in(f, words, NULL);
}

static void new_claims_and_their_settlements_are_not_read(void **state)
{
    fixture *f = begun(state);
    once_request r[MANY];
    bool applied[MANY];
    meet_new_ones(f, f->a);
    run_command(f, "CONFIG RESETSTAT");
    ask_all(f, r, MANY, LEASE);
    claim_all(f, f->a, r, MANY, ONCE_ANSWER_RUN);
    assert_int_equal(number_in(f, "INFO commandstats", "cmdstat_mget:calls="), 0);
    assert_int_equal(claimed(f), MANY);
    settle_all(f, f->a, r, 3, applied);
    assert_int_equal(claimed(f), MANY - 3);
    settle_all(f, f->a, r + 3, MANY - 3, applied);
    assert_int_equal(claimed(f), 0);
    assert_int_equal(groups(f), 0);
    assert_int_equal(number_in(f, "INFO commandstats", "cmdstat_mget:calls="),
                     2); /* the script's own, which compares */
    for (size_t i = 0; i < MANY; i++) assert_int_equal(state_of(f, r[i].id), ONCE_STATE_DONE);
    assert_int_equal(number_in(f, "INFO commandstats", "cmdstat_evalsha:calls="), 3);
}

static void f25_what_was_thought_to_be_new_is_not(void **state)
{
    fixture *f = begun(state);
    once_request r[3], theirs;
    once_decision d[3];
    meet_new_ones(f, f->a);
    ask_all(f, r, 3, LEASE);
    theirs = ask(f, "k1", NULL);
    assert_int_equal(claim(f, f->b, &theirs), ONCE_ANSWER_RUN);
    const once_request *list[] = {&r[0], &r[1], &r[2]};
    assert_ok(f, f->a->ops->claim(f->a, list, 3, d, &f->arena, &f->err));
    assert_int_equal(d[0].answer, ONCE_ANSWER_RUN);
    assert_int_equal(d[1].answer, ONCE_ANSWER_BUSY);
    assert_int_equal(d[2].answer, ONCE_ANSWER_RUN);
    assert_int_equal(claimed(f), 3);
    assert_int_equal(groups(f), 2); /* and none of the commit that was refused */
    assert_true(settle(f, f->b, &theirs, ONCE_DONE));
    assert_true(settle(f, f->a, &r[0], ONCE_DONE));
    assert_true(settle(f, f->a, &r[2], ONCE_DONE));
    assert_int_equal(groups(f), 0);
}

/* Also when nothing is written: "too old" is only for keys that nobody knows. */
static void f71_what_was_thought_to_be_new_is_compared_without_being_written(void **state)
{
    fixture *f = begun(state);
    meet_new_ones(f, f->a);
    const once_request theirs = ask(f, "k", NULL);
    assert_int_equal(claim(f, f->b, &theirs), ONCE_ANSWER_RUN);
    assert_true(settle(f, f->b, &theirs, ONCE_DONE));
    once_request old = ask(f, "k", NULL);
    old.sent_ms = 1;
    assert_int_equal(claim(f, f->a, &old), ONCE_ANSWER_DUPLICATE);
}

static void f14_a_group_of_claims_that_somebody_else_has_touched(void **state)
{
    fixture *f = begun(state);
    once_request r[4];
    bool applied[4];
    meet_new_ones(f, f->a);
    ask_all(f, r, 4, 1);
    claim_all(f, f->a, r, 4, ONCE_ANSWER_RUN);
    nap(5);
    const once_request theirs = ask(f, "k2", NULL), later = ask(f, "k3", NULL);
    assert_int_equal(claim(f, f->b, &theirs), ONCE_ANSWER_RUN);
    settle_all(f, f->a, r, 3, applied);
    assert_true(applied[0] && applied[1] && !applied[2]);
    begin(f, f->a);
    assert_true(settle(f, f->a, &r[3], ONCE_DONE));
    assert_int_equal(claim(f, f->b, &later), ONCE_ANSWER_RUN);
    commit_is_refused(f, f->a);
    assert_false(settle(f, f->a, &r[3], ONCE_DONE));
    assert_true(settle(f, f->b, &theirs, ONCE_DONE));
    assert_true(settle(f, f->b, &later, ONCE_DONE));
    assert_int_equal(groups(f), 0);
}

static void f14_a_group_that_is_touched_while_it_is_settled(void **state)
{
    fixture *f = begun(state);
    once_request r[2];
    bool applied[2];
    meet_new_ones(f, f->a);
    ask_all(f, r, 2, 1);
    claim_all(f, f->a, r, 2, ONCE_ANSWER_RUN);
    nap(5);
    const once_request theirs = ask(f, "k1", NULL);
    begin(f, f->a);
    settle_all(f, f->a, r, 2, applied);
    assert_true(applied[0] && applied[1]);
    assert_int_equal(claim(f, f->b, &theirs), ONCE_ANSWER_RUN);
    commit_is_refused(f, f->a);                                 /* as a whole */
    assert_int_equal(state_of(f, r[0].id), ONCE_STATE_WAITING); /* claimed, and the lease is over */
    settle_all(f, f->a, r, 2, applied);
    assert_true(applied[0] && !applied[1]);
    assert_true(settle(f, f->b, &theirs, ONCE_DONE));
}

static void f06_what_was_kept_is_compared_after_a_reconnect(void **state)
{
    fixture *f = begun(state);
    once_request r[2];
    bool applied[2];
    meet_new_ones(f, f->a);
    ask_all(f, r, 2, 1);
    claim_all(f, f->a, r, 2, ONCE_ANSWER_RUN);
    nap(5);
    const once_request theirs = ask(f, "k1", NULL);
    begin(f, f->a);
    settle_all(f, f->a, r, 2, applied);
    run_command(f, "CLIENT KILL TYPE normal SKIPME yes");
    assert_int_equal(claim(f, f->b, &theirs), ONCE_ANSWER_RUN);
    once_bytes fact;
    assert_ok(f, f->a->ops->fact_get(f->a, "any", &fact, &f->arena, &f->err)); /* it connects again */
    assert_int_equal(once_status_class(f->a->ops->commit(f->a, &f->err)), ONCE_CLASS_RETRY);
    assert_int_equal(state_of(f, r[0].id), ONCE_STATE_WAITING); /* claimed, and the lease is over */
    settle_all(f, f->a, r, 2, applied);
    assert_true(applied[0] && !applied[1]);
}

static void f47_emptied_between_the_beginning_and_the_commit(void **state)
{
    fixture *f = begun(state);
    meet_new_ones(f, f->a);
    const once_request r = ask(f, "k", NULL), *requests = &r;
    once_decision d;
    begin(f, f->a);
    assert_int_equal(claim(f, f->a, &r), ONCE_ANSWER_RUN);
    run_command(f, "FLUSHALL");
    assert_int_not_equal(f->a->ops->commit(f->a, &f->err), ONCE_OK);
    assert_int_equal(number_in(f, "DBSIZE", NULL), 0);
    assert_int_equal(once_status_class(f->a->ops->claim(f->a, &requests, 1, &d, &f->arena, &f->err)), ONCE_CLASS_FATAL);
}

/* --- keys that are not ours --- */

/* One transaction that writes to every kind of key: entries of all fates, a lane, a letter, an audit, a fact. */
static int touch_everything(fixture *f, const char *round)
{
    static const once_outcome fates[] = {ONCE_DONE, ONCE_DEAD, ONCE_RETRY, ONCE_RELEASE};
    enum { FATES = sizeof fates / sizeof *fates };
    char keys[FATES + 1][40];
    once_backend *store = f->a;
    const once_message message = {.body = ONCE_BYTES("{}"), .sent_ms = ONCE_NO_TIME};
    const once_audit audit = {.consumer = f->scope.consumer, .who = ONCE_BYTES("me"), .what = ONCE_BYTES("resolve")};
    int rc = store->ops->begin(store, &f->err);
    for (size_t i = 0; i <= FATES && rc == ONCE_OK; i++) {
        snprintf(keys[i], sizeof keys[i], "%s-%zu", round, i);
        const once_request r = ask(f, keys[i], i == 3 ? round : NULL), *requests = &r;
        once_decision d;
        rc = store->ops->claim(store, &requests, 1, &d, &f->arena, &f->err);
        if (rc != ONCE_OK || i == FATES) break; /* the last one stays claimed */
        const once_settlement s = {
            .request = &r, .outcome = fates[i], .message = i == 1 || i == 2 ? &message : NULL, .delay_ms = 60000};
        bool applied;
        rc = store->ops->settle(store, &s, 1, &applied, &f->err);
        assert_true(rc != ONCE_OK || applied);
    }
    if (rc == ONCE_OK) rc = store->ops->audit(store, &audit, &f->err);
    if (rc == ONCE_OK) rc = store->ops->fact_set(store, "some", ONCE_BYTES("fact"), &f->err);
    if (rc == ONCE_OK) return store->ops->commit(store, &f->err);
    store->ops->rollback(store);
    return rc;
}

/* A script that meets such a key ends there, and what it had written would stay. */
static void f90_a_key_of_another_type_is_named_and_nothing_is_written(void **state)
{
    fixture *f = begun(state);
    static const char *const kinds[] = {"n", "cc", "gc", "iWc", "iwc", "ixc", "w", "dc", "U", "ac", "f"};
    const char *name = strstr(f->url, "name=") + 5;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char words[128], round[24];
        snprintf(words, sizeof words, "RENAME {%s}%s {%s}aside", name, kinds[i], name);
        if (i > 0) run_command(f, words); /* what the rounds before wrote there */
        snprintf(words, sizeof words, "SET {%s}%s stranger", name, kinds[i]);
        run_command(f, words);
        const unsigned long long before = number_in(f, "DBSIZE", NULL);
        snprintf(round, sizeof round, "round%zu", i);
        assert_int_equal(touch_everything(f, round), ONCE_E_CORRUPT);
        snprintf(words, sizeof words, "\"{%s}%s\"", name, kinds[i]);
        assert_non_null(strstr(f->err.text, words));
        assert_int_equal(number_in(f, "DBSIZE", NULL), before);
        snprintf(words, sizeof words, "DEL {%s}%s", name, kinds[i]);
        run_command(f, words);
        snprintf(words, sizeof words, "RENAME {%s}aside {%s}%s", name, name, kinds[i]);
        if (i > 0) run_command(f, words);
        assert_ok(f, touch_everything(f, round));
    }
}

static void run_on_entry(fixture *f, once_hash id, const char *command, const char *more)
{
    once_redis_url url;
    once_redis_link *link;
    once_redis_pipe pipe;
    char key[64];
    const int len = snprintf(key, sizeof key, "{%s}e", strstr(f->url, "name=") + 5);
    once__redis_id_write(id, (unsigned char *)key + len);
    assert_ok(f, once__redis_url_read(f->url + strlen("redis:"), false, &url, &f->err));
    assert_ok(f,
              once__redis_link_open(&url, once_env_real(), (once_redis_waiting){.timeout_ms = 1000}, &link, &f->err));
    once__redis_pipe_init(&pipe);
    once__redis_command(&pipe, ONCE_REPLY_ANY, more ? 4 : 2);
    once__redis_text(&pipe, command);
    once__redis_arg(&pipe, key, (size_t)len + 16);
    for (int i = 0; i < 2 && more; i++) once__redis_text(&pipe, more);
    assert_ok(f, once__redis_exchange(link, &pipe, NULL, &f->err));
    once__redis_pipe_release(&pipe);
    once__redis_link_close(link);
}

/* An entry that is gone, with a body that nobody will see again, is not passed over: the index still names it. */
static void f93_an_index_that_names_nothing_is_told(void **state)
{
    fixture *f = begun(state);
    const once_request r = ask(f, "k", NULL);
    once_taken taken;
    size_t n;
    assert_int_equal(accept(f, f->a, &r), ONCE_ANSWER_WAITING);
    run_on_entry(f, r.id, "DEL", NULL);
    assert_int_equal(f->a->ops->take(f->a, f->scope.consumer, (once_token){99, 1}, false, LEASE, 1, NULL, &taken, &n,
                                     &f->arena, &f->err),
                     ONCE_E_CORRUPT);
    assert_non_null(strstr(f->err.text, "}iWc\" of the redis store"));
    assert_int_equal(accept(f, f->a, &r), ONCE_ANSWER_WAITING);
    assert_int_equal(take(f, f->a, 1, &taken), 1);
}

/* The same at the front of a lane, where it would hold up those behind it. */
static void f93_a_lane_that_names_nothing_is_told(void **state)
{
    fixture *f = begun(state);
    const once_request first = ask(f, "first", "lane"), second = ask(f, "second", "lane");
    const once_settlement done = {.request = &first, .outcome = ONCE_DONE};
    bool applied;
    assert_int_equal(claim(f, f->a, &first), ONCE_ANSWER_RUN);
    assert_int_equal(accept(f, f->a, &second), ONCE_ANSWER_WAITING);
    run_on_entry(f, second.id, "DEL", NULL);
    assert_int_equal(f->a->ops->settle(f->a, &done, 1, &applied, &f->err), ONCE_E_CORRUPT);
    assert_non_null(strstr(f->err.text, "}o"));
}

/* MGET says of such a key that it is not there. */
static void f90_an_entry_of_another_type_is_named(void **state)
{
    fixture *f = begun(state);
    const once_request r = ask(f, "k", NULL), *requests = &r;
    once_decision d;
    run_on_entry(f, r.id, "HSET", "stranger");
    assert_int_equal(f->a->ops->claim(f->a, &requests, 1, &d, &f->arena, &f->err), ONCE_E_CORRUPT);
    assert_non_null(strstr(f->err.text, "}e"));
    run_on_entry(f, r.id, "DEL", NULL);
    assert_int_equal(claim(f, f->a, &r), ONCE_ANSWER_RUN);
}

/* What is empty was there: it is no key that was never seen, whether or not somebody writes it. */
static void f93_an_empty_value_is_damage(void **state)
{
    fixture *f = begun(state);
    once_redis *raw = (once_redis *)f->b;
    const once_request r = ask(f, "k", NULL), *requests = &r;
    once_decision d;
    once_entry entry;
    assert_int_equal(claim(f, f->a, &r), ONCE_ANSWER_RUN);
    once__redis_pipe_clear(&raw->pipe);
    once__redis_command(&raw->pipe, ONCE_REPLY_DONE, 3);
    once__redis_text(&raw->pipe, "SET");
    once__redis_put_id_key(raw, "e", r.id);
    once__redis_text(&raw->pipe, "");
    assert_ok(f, once__redis_ask(raw, &f->err));
    once__redis_pipe_clear(&raw->pipe);
    assert_int_equal(f->b->ops->get(f->b, r.id, &entry, &f->arena, &f->err), ONCE_E_CORRUPT);
    assert_non_null(strstr(f->err.text, "}e"));
    assert_int_equal(f->b->ops->claim(f->b, &requests, 1, &d, &f->arena, &f->err), ONCE_E_CORRUPT);
    assert_non_null(strstr(f->err.text, "}e"));
}

/* --- what the script compares --- */

static const char *name_of(const fixture *f) { return strstr(f->url, "name=") + 5; }

/* Without the turn of who lost a race, which ends by itself. */
static unsigned long long kept_keys(fixture *f)
{
    char words[80];
    snprintf(words, sizeof words, "KEYS {%s}[^t]*", name_of(f));
    return number_in(f, words, NULL);
}

/* The transaction of a is refused, and nothing of it is there. */
static void commit_writes_nothing(fixture *f)
{
    const unsigned long long before = kept_keys(f);
    commit_is_refused(f, f->a);
    assert_int_equal(kept_keys(f), before);
}

enum { SHORT = 2, LONG = 2000 }; /* values of more than 1 KiB are compared by themselves */
static const size_t lengths[] = {SHORT, LONG};
enum { LENGTHS = sizeof lengths / sizeof *lengths };

static once_bytes text_of(size_t len)
{
    static char text[LONG];
    memset(text, 'x', sizeof text);
    return (once_bytes){text, len};
}

static void accept_body(fixture *f, const once_request *request, once_bytes body)
{
    const once_message message = {.body = body, .sent_ms = ONCE_NO_TIME}, *messages = &message;
    once_decision d;
    assert_ok(f, f->a->ops->accept(f->a, &request, &messages, 1, &d, &f->arena, &f->err));
    assert_int_equal(d.answer, ONCE_ANSWER_WAITING);
}

static void f25_an_entry_is_claimed_once_however_long_its_body(void **state)
{
    fixture *f = begun(state);
    for (size_t i = 0; i < LENGTHS; i++) {
        const char *key = i ? "long" : "short";
        const once_request sent = ask(f, key, NULL), mine = ask(f, key, NULL), theirs = ask(f, key, NULL);
        accept_body(f, &sent, text_of(lengths[i]));
        begin(f, f->a);
        assert_int_equal(claim(f, f->a, &mine), ONCE_ANSWER_RUN);
        assert_int_equal(claim(f, f->b, &theirs), ONCE_ANSWER_RUN);
        commit_writes_nothing(f);
        assert_int_equal(claim(f, f->a, &mine), ONCE_ANSWER_BUSY);
        assert_true(settle(f, f->b, &theirs, ONCE_DONE));
    }
}

static void settle_with_result(fixture *f, once_backend *store, const char *key, once_bytes result)
{
    const once_request r = ask(f, key, NULL);
    const once_settlement done = {.request = &r, .outcome = ONCE_DONE, .result = result};
    bool applied;
    assert_int_equal(claim(f, store, &r), ONCE_ANSWER_RUN);
    assert_ok(f, store->ops->settle(store, &done, 1, &applied, &f->err));
    assert_true(applied);
}

static void f14_a_result_is_compared_however_long_it_is(void **state)
{
    fixture *f = begun(state);
    for (size_t i = 0; i < LENGTHS; i++) {
        const char *key = i ? "long" : "short";
        const once_request r = ask(f, key, NULL);
        bool found;
        settle_with_result(f, f->a, key, text_of(lengths[i]));
        begin(f, f->a);
        assert_ok(f, f->a->ops->forget(f->a, r.id, &found, &f->err));
        assert_true(found);
        assert_ok(f, f->b->ops->forget(f->b, r.id, &found, &f->err));
        settle_with_result(f, f->b, key, text_of(lengths[i] - 1));
        commit_writes_nothing(f);
        assert_int_equal(claim(f, f->a, &r), ONCE_ANSWER_DUPLICATE);
    }
}

/* Without an entry: what came again is counted in the letter itself. */
static once_letter letter_of(fixture *f, const char *reason, once_bytes body)
{
    return (once_letter){.scope = f->scope,
                         .message = {.body = body, .sent_ms = ONCE_NO_TIME},
                         .reason = {reason, strlen(reason)},
                         .kind = ONCE_ANSWER_DEAD,
                         .attempt = 1};
}

static void bury(fixture *f, once_backend *store, const once_letter *letter, bool is_fresh)
{
    bool fresh;
    assert_ok(f, store->ops->bury(store, letter, 1, &fresh, &f->err));
    assert_int_equal(fresh, is_fresh);
}

static bool count_letter(void *user, const once_letter *letter)
{
    unsigned long long *counts = user;
    counts[0]++;
    counts[1] += letter->count;
    assert_true(letter->id > counts[2]);
    counts[2] = letter->id;
    return true;
}

/* Letters, and how often they came. */
static void letters_are(fixture *f, unsigned long long letters, unsigned long long deliveries)
{
    unsigned long long counts[3] = {0};
    assert_ok(f, f->b->ops->letters(f->b, f->scope.consumer, 0, count_letter, counts, &f->err));
    assert_int_equal(counts[0], letters);
    assert_int_equal(counts[1], deliveries);
}

static void f31_deliveries_of_a_letter_are_counted_however_long_it_is(void **state)
{
    fixture *f = begun(state);
    for (size_t i = 0; i < LENGTHS; i++) {
        const once_letter letter = letter_of(f, "malformed", text_of(lengths[i]));
        bury(f, f->a, &letter, true);
        begin(f, f->a);
        bury(f, f->a, &letter, false);
        bury(f, f->b, &letter, false);
        commit_writes_nothing(f);
        bury(f, f->a, &letter, false);
        letters_are(f, i + 1, 3 * (i + 1));
    }
}

/* More than one MSETNX takes: what the earlier ones wrote is taken back. */
static void f48_one_of_thousands_of_new_keys_is_somebody_elses(void **state)
{
    enum { NEW = 4096 };
    fixture *f = begun(state);
    static char keys[NEW][8];
    static once_request requests[NEW];
    static const once_request *list[NEW];
    static once_decision decisions[NEW];
    for (size_t i = 0; i < NEW; i++) {
        snprintf(keys[i], sizeof keys[i], "%zu", i);
        requests[i] = ask(f, keys[i], NULL);
        list[i] = &requests[i];
    }
    begin(f, f->a);
    assert_ok(f, f->a->ops->claim(f->a, list, NEW, decisions, &f->arena, &f->err));
    for (size_t i = 0; i < NEW; i++) assert_int_equal(decisions[i].answer, ONCE_ANSWER_RUN);
    const once_request theirs = ask(f, keys[NEW - 1], NULL);
    assert_int_equal(claim(f, f->b, &theirs), ONCE_ANSWER_RUN);
    commit_writes_nothing(f);
    assert_int_equal(claimed(f), 1);
    assert_ok(f, f->a->ops->claim(f->a, list, NEW, decisions, &f->arena, &f->err));
    for (size_t i = 0; i < NEW; i++)
        assert_int_equal(decisions[i].answer, i < NEW - 1 ? ONCE_ANSWER_RUN : ONCE_ANSWER_BUSY);
}

/* A letter and an entry in one transaction of a. */
static void begin_with_a_letter(fixture *f, const once_request *r, const once_letter *letter)
{
    begin(f, f->a);
    assert_int_equal(claim(f, f->a, r), ONCE_ANSWER_RUN);
    bury(f, f->a, letter, true);
}

static void bury_many(fixture *f, once_backend *store, size_t from, size_t n)
{
    begin(f, store);
    for (size_t i = from; i < from + n; i++) {
        char reason[16];
        snprintf(reason, sizeof reason, "%zu", i);
        const once_letter letter = letter_of(f, reason, (once_bytes){reason, strlen(reason)});
        bury(f, store, &letter, true);
    }
    assert_ok(f, store->ops->commit(store, &f->err));
}

/* The keys of the next letters are declared before it is known how many others write meanwhile. */
static void f90_others_write_more_letters_than_keys_were_declared_for(void **state)
{
    enum { AHEAD = 64 };
    fixture *f = begun(state);
    const once_letter mine = letter_of(f, "mine", ONCE_BYTES("mine")), last = letter_of(f, "last", ONCE_BYTES("last"));
    const once_request r = ask(f, "k", NULL), next = ask(f, "next", NULL);
    begin_with_a_letter(f, &r, &mine);
    bury_many(f, f->b, 0, AHEAD);
    assert_ok(f, f->a->ops->commit(f->a, &f->err));
    letters_are(f, AHEAD + 1, AHEAD + 1);
    begin_with_a_letter(f, &next, &last);
    bury_many(f, f->b, AHEAD, AHEAD + 1);
    commit_writes_nothing(f);
    letters_are(f, 2 * AHEAD + 2, 2 * AHEAD + 2);
    assert_int_equal(state_of(f, next.id), ONCE_STATE_ABSENT);
    begin_with_a_letter(f, &next, &last);
    assert_ok(f, f->a->ops->commit(f->a, &f->err));
    letters_are(f, 2 * AHEAD + 3, 2 * AHEAD + 3);
}

static void set_head(fixture *f, const char *field, const char *value)
{
    once_redis *r = (once_redis *)f->b;
    once__redis_pipe_clear(&r->pipe);
    once__redis_command(&r->pipe, ONCE_REPLY_COUNT, 4);
    once__redis_text(&r->pipe, "HSET");
    once__redis_put_key(r, "head", NULL, 0);
    once__redis_text(&r->pipe, field);
    once__redis_text(&r->pipe, value);
    assert_ok(f, once__redis_ask(r, &f->err));
}

/* As when an older copy is served: keys of letters that are there were not declared, and would be written over. */
static void f47_the_number_of_letters_has_gone_back(void **state)
{
    fixture *f = begun(state);
    const once_letter mine = letter_of(f, "mine", ONCE_BYTES("mine"));
    const once_request r = ask(f, "k", NULL);
    bury_many(f, f->b, 0, 3);
    for (int gone = 1; gone <= 3; gone++) {
        const char text[] = {(char)('3' - gone), 0};
        set_head(f, "letters", "3");
        begin_with_a_letter(f, &r, &mine);
        set_head(f, "letters", text);
        commit_writes_nothing(f);
        letters_are(f, 3, 3);
        assert_int_equal(state_of(f, r.id), ONCE_STATE_ABSENT);
    }
}

/* The number is lost, the letters are not. */
static void f47_no_letter_is_written_over(void **state)
{
    fixture *f = begun(state);
    const once_letter mine = letter_of(f, "mine", ONCE_BYTES("mine"));
    bool fresh;
    bury_many(f, f->b, 0, 3);
    set_head(f, "letters", "2");
    const unsigned long long before = kept_keys(f);
    assert_int_equal(f->a->ops->bury(f->a, &mine, 1, &fresh, &f->err), ONCE_E_CORRUPT);
    assert_non_null(strstr(f->err.text, "}L3\" of the redis store"));
    assert_int_equal(kept_keys(f), before);
    letters_are(f, 3, 3);
    set_head(f, "letters", "3");
    bury(f, f->a, &mine, true);
    letters_are(f, 4, 4);
}

/* HINCRBY would refuse them when all else is written. */
static void f90_counters_that_are_no_numbers_are_found_before_the_first_write(void **state)
{
    static const char *const fields[] = {"letters", "commits"};
    static const char *const values[] = {"abc", "-1", "1.5", "1e3", " 1", "007", "00", "", "1234567890123456"};
    fixture *f = begun(state);
    char was[24], key[64];
    snprintf(key, sizeof key, "\"{%s}head\"", name_of(f));
    for (size_t i = 0; i < 2; i++) {
        for (size_t k = 0; k < sizeof values / sizeof *values; k++) {
            const once_letter mine = letter_of(f, "mine", ONCE_BYTES("mine"));
            const once_request r = ask(f, "k", NULL);
            field_of_head(f, fields[i], was, sizeof was);
            begin_with_a_letter(f, &r, &mine);
            set_head(f, fields[i], values[k]);
            const unsigned long long before = kept_keys(f);
            assert_int_equal(f->a->ops->commit(f->a, &f->err), ONCE_E_CORRUPT);
            assert_non_null(strstr(f->err.text, key));
            assert_int_equal(kept_keys(f), before);
            set_head(f, fields[i], *was ? was : "0");
            letters_are(f, 0, 0);
        }
    }
}

/* What is removed last may be gone already while keys move to another node; every other refusal is one. */
static void f90_a_removal_that_is_refused_is_told(void **state)
{
    static const char *const commands[] = {"zrem", "hdel", "zscore"};
    fixture *f = begun(state);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        const once_request r = ask(f, commands[i], NULL);
        const once_settlement done = {.request = &r, .outcome = ONCE_DONE};
        char words[64];
        bool applied;
        assert_int_equal(claim(f, f->a, &r), ONCE_ANSWER_RUN);
        snprintf(words, sizeof words, "ACL SETUSER default -%s", commands[i]);
        run_command(f, words);
        const int rc = f->a->ops->settle(f->a, &done, 1, &applied, &f->err);
        snprintf(words, sizeof words, "ACL SETUSER default +%s", commands[i]);
        run_command(f, words);
        assert_int_equal(once_status_class(rc), ONCE_CLASS_PAUSE);
        assert_non_null(strstr(f->err.text, "can't run this command"));
    }
}

/* --- the URL --- */

static void urls(void **state)
{
    (void)state;
    once_redis_url url;
    once_error err;
    assert_int_equal(once__redis_url_read("//", false, &url, &err), ONCE_OK);
    assert_string_equal(url.nodes[0].host, "127.0.0.1");
    assert_int_equal(url.nodes[0].port, 6379);
    assert_string_equal(url.name, "once");
    assert_int_equal(once__redis_url_read("//u%40x:p%3a:@[::1]:7000/3?name=pay&wait=2", false, &url, &err), ONCE_OK);
    assert_string_equal(url.user, "u@x");
    assert_string_equal(url.password, "p::");
    assert_string_equal(url.nodes[0].host, "::1");
    assert_true(url.nodes[0].port == 7000 && url.db == 3 && url.wait == 2);
    assert_int_equal(url.n_nodes, 1);
    assert_int_equal(once__redis_url_read("//a:1,b,[::2]:3/0?name=x", false, &url, &err), ONCE_OK);
    assert_int_equal(url.n_nodes, 3);
    assert_string_equal(url.nodes[1].host, "b");
    assert_true(url.nodes[1].port == 6379 && url.nodes[2].port == 3 && strcmp(url.nodes[2].host, "::2") == 0);
    static const char *const wrong[] = {"h",
                                        "//1,2,3,4,5,6,7,8,9",
                                        "//h:0",
                                        "//h:99999",
                                        "//h:x",
                                        "//h/x",
                                        "//h?name=",
                                        "//h?name=a{b",
                                        "//h?wait=x",
                                        "//h?nam=x",
                                        "//h?cacert=x",
                                        "//h?timeout=0",
                                        "//h?timeout=1s",
                                        "//h?password=secret",
                                        "//h?password=env:NO_SUCH_VARIABLE",
                                        "//h?password=file:/no/such/file",
                                        "//%zz"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(once__redis_url_read(wrong[i], false, &url, &err), ONCE_E_CONFIG);
        assert_null(strstr(err.text, "secret"));
    }
}

static void passwords_are_not_shown(void **state)
{
    (void)state;
    static const char *const urls_shown[][2] = {
        {"redis://u:secret@h:1/0?x=y@z", "redis://u:***@h:1/0?x=y@z"},
        {"redis://:se@cret@h", "redis://:***@h"},
        {"redis://u@h?password=secret&wait=1", "redis://u@h?password=***&wait=1"},
        {"sqlite:a:b@c.db", "sqlite:a:b@c.db"},
        {"postgres://u:se?cret@h/db", "postgres://u:***@h/db"},
        {"redis://h:1/0?name=x", "redis://h:1/0?name=x"},
    };
    for (size_t i = 0; i < sizeof urls_shown / sizeof *urls_shown; i++) {
        once_buf shown;
        once_buf_init(&shown, 200);
        assert_true(once__store_show(urls_shown[i][0], &shown));
        assert_string_equal(shown.data, urls_shown[i][1]);
        once_buf_release(&shown);
    }
}

/* Redis writes large numbers as 1.0000017947634135e+18; a host program may have a locale in which that is 1. */
static void f97_times_are_read_whatever_the_locale(void **state)
{
    fixture *f = begun(state);
    const int64_t far_ms = 1000000000000000000;
    const once_request request = ask(f, "far", NULL);
    const once_message message = {.body = ONCE_BYTES("{}"), .sent_ms = ONCE_NO_TIME};
    const once_settlement later = {.request = &request, .outcome = ONCE_RETRY, .delay_ms = far_ms, .message = &message};
    once_stats stats;
    bool applied;
    assert_int_equal(claim(f, f->a, &request), ONCE_ANSWER_RUN);
    assert_ok(f, f->a->ops->settle(f->a, &later, 1, &applied, &f->err));
    assert_true(applied);
    test_locale_enter();
    const int rc = f->a->ops->stats(f->a, f->scope.consumer, &stats, &f->err);
    test_locale_leave();
    assert_ok(f, rc);
    assert_int_equal(stats.waiting, 1);
    assert_true(stats.wait_ms > far_ms / 2 && stats.wait_ms <= far_ms + 1000);
}

#define WITH(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    there = redis_server_start(&server);
    const struct CMUnitTest tests[] = {
        WITH(f48_a_transaction_that_lost_a_race_writes_nothing),
        WITH(f14_a_settlement_meets_whoever_came_between),
        WITH(f33_parked_while_the_lane_is_freed),
        WITH(f48_who_lost_goes_first),
        WITH(f25_f33_workers_on_the_same_lanes),
        WITH(a_long_lane_loses_its_front_in_one_transaction),
        WITH(a_lane_loses_any_number_in_one_transaction),
        WITH(a_long_lane_loses_its_back_and_grows_again),
        WITH(f58_f86_members_of_an_older_once_go_first),
        WITH(f33_a_lane_outlives_its_version_while_somebody_runs_in_it),
        WITH(f20_leases_end_by_the_servers_clock),
        WITH(f53_a_server_that_is_killed_has_everything),
        WITH(f06_a_transaction_over_a_restart_is_not_assumed),
        WITH(a_script_that_the_server_forgot),
        WITH(what_waits_without_a_body_is_forgotten_by_the_server),
        WITH(f58_format_1_is_brought_up_to_date),
        WITH(f58_a_running_program_of_format_1_is_shut_out),
        WITH(f58_an_upgrade_that_was_killed_is_done_by_the_next),
        WITH(f58_format_1_refuses_a_lane_with_a_record),
        WITH(f58_a_lane_of_format_1_is_read),
        WITH(f47_a_store_that_was_emptied),
        WITH(f89_a_worker_is_looked_for_behind_each_new_connection),
        WITH(f47_settings_that_change_are_noticed_by_the_next_commit),
        WITH(f47_forgotten_commits_are_noticed),
        WITH(f47_no_answer_before_the_replicas_have_it),
        WITH(f47_the_library_takes_it_only_when_it_is_durable),
        WITH(f47_what_is_granted_belongs_to_the_handle),
        WITH(f55_damaged_values_are_not_read_as_absent),
        WITH(new_claims_and_their_settlements_are_not_read),
        WITH(f25_what_was_thought_to_be_new_is_not),
        WITH(f71_what_was_thought_to_be_new_is_compared_without_being_written),
        WITH(f14_a_group_of_claims_that_somebody_else_has_touched),
        WITH(f14_a_group_that_is_touched_while_it_is_settled),
        WITH(f06_what_was_kept_is_compared_after_a_reconnect),
        WITH(f47_emptied_between_the_beginning_and_the_commit),
        WITH(f97_times_are_read_whatever_the_locale),
        WITH(f90_a_key_of_another_type_is_named_and_nothing_is_written),
        WITH(f90_an_entry_of_another_type_is_named),
        WITH(f93_an_empty_value_is_damage),
        WITH(f93_an_index_that_names_nothing_is_told),
        WITH(f93_a_lane_that_names_nothing_is_told),
        WITH(f25_an_entry_is_claimed_once_however_long_its_body),
        WITH(f14_a_result_is_compared_however_long_it_is),
        WITH(f31_deliveries_of_a_letter_are_counted_however_long_it_is),
        WITH(f48_one_of_thousands_of_new_keys_is_somebody_elses),
        WITH(f90_others_write_more_letters_than_keys_were_declared_for),
        WITH(f47_the_number_of_letters_has_gone_back),
        WITH(f47_no_letter_is_written_over),
        WITH(f90_counters_that_are_no_numbers_are_found_before_the_first_write),
        WITH(f90_a_removal_that_is_refused_is_told),
        cmocka_unit_test(urls),
        cmocka_unit_test(passwords_are_not_shown),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (there) redis_server_stop(&server);
    return failed;
}
#else
int main(void) { return redis_is_missing(); }
#endif
