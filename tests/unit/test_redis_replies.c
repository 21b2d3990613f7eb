/* What a server answers is looked at before it is read: a reply of another type is an error, for each command that a
 * store sends.
 *
 * A scene of every verb is played through a proxy once to count the replies, and then again and again, each time with
 * one of them changed. */
#include <setjmp.h>
#include <stdarg.h>
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
#include <hiredis/hiredis.h>
#include <math.h>

#include "store/redis/reply.h"

enum { LEASE = 30000, REMEMBER = 3600000 };

static redis_server server;
static bool there;
static unsigned stores;

/* --- one reply of many --- */

typedef struct change {
    long at;          /* which one; -1: none */
    long seen;        /* so many were there */
    const char *with; /* NULL: something of another type */
    char was[2];
} change;

/* Never what the command may be answered with, whatever it is: no command of ours takes an integer or a string. */
static bool change_one(void *user, proxy_reply *reply)
{
    change *c = user;
    if (c->seen++ != c->at) return true;
    c->was[0] = reply->data[0];
    const char *instead = c->with ? c->with : reply->data[0] == ':' ? "$1\r\nx\r\n" : ":7\r\n";
    *reply = (proxy_reply){instead, strlen(instead)};
    return true;
}

/* --- a scene --- */

typedef struct scene {
    once_backend *store;
    once_arena arena;
    once_scope scope;
    uint64_t tokens;
    int failures;
    once_error first; /* of them */
} scene;

static void note(scene *s, int rc, once_error *err)
{
    if (rc == ONCE_OK) return;
    assert_int_equal(rc, err->status);
    assert_true(err->text[0] != 0);
    if (s->failures++ == 0) s->first = *err;
    *err = (once_error){0};
}

static once_request ask(scene *s, const char *key, const char *lane)
{
    const once_bytes bytes = {key, strlen(key)};
    ++s->tokens;
    return (once_request){
        .scope = &s->scope,
        .key = bytes,
        .id = once_key_id(s->store->secret, &s->scope, bytes),
        .token = {s->tokens, ~s->tokens},
        .lane = {.id = lane ? once_lane_id(s->store->secret, &s->scope, (once_bytes){lane, strlen(lane)})
                            : (once_hash){0},
                 .gap_ms = -1},
        .lease_ms = LEASE,
        .remember_ms = REMEMBER,
        .sent_ms = ONCE_NO_TIME,
        .at = {ONCE_BYTES("place"), ONCE_BYTES("1")},
    };
}

static const once_message message = {.body = ONCE_BYTES("{\"a\":1}"), .type = ONCE_BYTES("t"), .sent_ms = ONCE_NO_TIME};

static bool claim(scene *s, const once_request *r)
{
    once_decision d = {0};
    once_error err = {0};
    const int rc = s->store->ops->claim(s->store, &r, 1, &d, &s->arena, &err);
    note(s, rc, &err);
    return rc == ONCE_OK && d.answer == ONCE_ANSWER_RUN;
}

static void settle(scene *s, const once_request *r, once_outcome outcome)
{
    const once_settlement settlement = {
        .request = r, .outcome = outcome, .reason = ONCE_BYTES("because"), .message = &message};
    once_error err = {0};
    bool applied;
    note(s, s->store->ops->settle(s->store, &settlement, 1, &applied, &err), &err);
}

static bool see_entry(void *user, const once_entry *entry) { return (void)user, entry->id.a | 1; }
static bool see_letter(void *user, const once_letter *letter) { return *(uint64_t *)user = letter->id, true; }
static bool see_audit(void *user, const once_audit *audit) { return (void)user, (void)audit, true; }
static bool see_fact(void *user, once_bytes name, once_bytes value)
{
    return (void)user, (void)name, (void)value, true;
}

static void claim_and_settle(scene *s)
{
    const once_request a = ask(s, "a", NULL), b = ask(s, "b", "lane"), c = ask(s, "c", "lane"), d = ask(s, "d", NULL);
    const once_message *messages = &message;
    const once_request *third = &c;
    once_decision decision;
    once_error err = {0};
    if (claim(s, &a)) settle(s, &a, ONCE_DONE);
    const bool runs = claim(s, &b);
    note(s, s->store->ops->accept(s->store, &third, &messages, 1, &decision, &s->arena, &err), &err);
    if (runs) settle(s, &b, ONCE_DONE);
    if (claim(s, &d)) settle(s, &d, ONCE_DEAD);
    (void)claim(s, &a); /* a duplicate, with its names */
}

static void take_and_look(scene *s)
{
    const once_store_ops *ops = s->store->ops;
    once_taken taken[4];
    once_entry entry;
    once_stats stats;
    once_bytes why;
    once_error err = {0};
    size_t n = 0;
    note(s,
         ops->take(s->store, s->scope.consumer, (once_token){++s->tokens, 1}, false, LEASE, 4, NULL, taken, &n,
                   &s->arena, &err),
         &err);
    if (n) taken[0].request.lease_ms = LEASE;
    note(s, ops->stats(s->store, s->scope.consumer, &stats, &err), &err);
    for (int state = 1; state < ONCE_STATES; state++)
        note(s, ops->list(s->store, s->scope.consumer, (once_state)state, see_entry, NULL, &err), &err);
    note(s, ops->get(s->store, ask(s, "a", NULL).id, &entry, &s->arena, &err), &err);
    note(s, ops->explain_lane(s->store, ask(s, "d", NULL).id, &why, &s->arena, &err), &err);
}

static void operate(scene *s)
{
    const once_store_ops *ops = s->store->ops;
    const once_letter letter = {
        .scope = s->scope, .key = ONCE_BYTES("z"), .reason = ONCE_BYTES("odd"), .message = message};
    once_sweep_result swept;
    once_bytes fact;
    once_error err = {0};
    uint64_t last = 0;
    bool found, fresh;
    note(s, ops->bury(s->store, &letter, 1, &fresh, &err), &err);
    note(s, ops->letters(s->store, s->scope.consumer, 0, see_letter, &last, &err), &err);
    note(s, ops->replay_letter(s->store, 1, &found, &err), &err);
    note(s, ops->fact_set(s->store, "f", ONCE_BYTES("1"), &err), &err);
    note(s, ops->fact_get(s->store, "f", &fact, &s->arena, &err), &err);
    note(s, ops->facts(s->store, "f", see_fact, NULL, &err), &err);
    note(s, ops->audits(s->store, s->scope.consumer, see_audit, NULL, &err), &err);
    note(s, ops->forget(s->store, ask(s, "a", NULL).id, &found, &err), &err);
    note(s, ops->sweep(s->store, 10, &swept, &err), &err);
}

static void play(scene *s, const char *proxy_url)
{
    const once_store_options options = {.size = sizeof options, .create = true, .busy_ms = 5000};
    char url[256];
    once_error err = {0};
    *s = (scene){.scope = {{0}, ONCE_BYTES("c"), ONCE_BYTES("op")}};
    snprintf(url, sizeof url, "%s/0?name=r%u", proxy_url, ++stores);
    const int rc = once__store_open(url, &options, &s->store, &err);
    note(s, rc, &err);
    if (rc != ONCE_OK) return;
    claim_and_settle(s);
    take_and_look(s);
    operate(s);
    once__store_close(s->store);
    once_arena_release(&s->arena);
}

static void need_server(void)
{
    if (there) return;
    print_message("no redis-server\n");
    skip();
}

/* Each reply in turn is of another type, and somebody is told. */
static void f93_a_reply_of_another_type_is_an_error(void **state)
{
    (void)state;
    need_server();
    change c = {.at = -1};
    reply_proxy proxy;
    scene s;
    redis_proxy_start(&proxy, &server, change_one, &c);
    play(&s, proxy.url);
    if (s.failures) fail_msg("without a change: %s", s.first.text);
    const long all = c.seen;
    assert_true(all > 100);
    for (long at = 0; at < all; at++) {
        c = (change){.at = at};
        play(&s, proxy.url);
        if (s.failures == 0 || s.first.status != ONCE_E_CORRUPT || !strstr(s.first.text, "which is no answer to it"))
            fail_msg("reply %ld of %ld, which was '%s': %s", at, all, c.was,
                     s.failures ? s.first.text : "nobody was told");
    }
    reply_proxy_stop(&proxy);
}

/* Nothing, an empty array, an error where a value is: a verb fails or does not, and nothing else happens. */
static void f93_whatever_is_answered_nothing_is_read_beyond_it(void **state)
{
    (void)state;
    need_server();
    static const char *const answers[] = {"*-1\r\n",
                                          "$-1\r\n",
                                          "*0\r\n",
                                          "$0\r\n\r\n",
                                          "*1\r\n:1\r\n",
                                          "*2\r\n$-1\r\n:5\r\n",
                                          "*1\r\n-ERR no\r\n",
                                          "+OK\r\n",
                                          ":-1\r\n",
                                          "*2\r\n$1\r\nx\r\n*0\r\n"};
    enum { ANSWERS = sizeof answers / sizeof *answers };
    change c = {.at = -1};
    reply_proxy proxy;
    scene s;
    redis_proxy_start(&proxy, &server, change_one, &c);
    play(&s, proxy.url);
    const long all = c.seen;
    for (long at = 0; at < all; at++) {
        c = (change){.at = at, .with = answers[at % ANSWERS]};
        play(&s, proxy.url);
        assert_true(s.failures == 0 || s.first.status != ONCE_E_NOMEM);
    }
    reply_proxy_stop(&proxy);
}

/* --- what stands in them --- */

static bool number_is(const char *text, uint64_t want)
{
    uint64_t got;
    return once__reply_read_number((once_bytes){text, strlen(text)}, &got) && got == want;
}

static bool score_is(const char *text, double want)
{
    double got;
    return once__reply_read_score((once_bytes){text, strlen(text)}, &got) && got == want;
}

static void numbers_are_digits_alone(void **state)
{
    (void)state;
    uint64_t got;
    assert_true(number_is("0", 0) && number_is("9223372036854775807", INT64_MAX));
    static const char *const others[] = {"", "-1", "+1", " 1", "1 ", "1x", "0x1", "1.5", "99999999999999999999"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_false(once__reply_read_number((once_bytes){others[i], strlen(others[i])}, &got));
}

static void f97_scores_are_numbers_or_nothing(void **state)
{
    (void)state;
    double got;
    assert_true(score_is("12", 12) && score_is("inf", INFINITY) &&
                score_is("9.2233720368547758e+18", 9.2233720368547758e+18) && score_is("-3", -3));
    static const char *const others[] = {"", "nan", "infinity", "1,5", "1x", "true", "\"1\"", "1e999"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_false(once__reply_read_score((once_bytes){others[i], strlen(others[i])}, &got));
}

/* As it comes over the wire. */
static redisReply *reply_of(const char *wire)
{
    redisReader *reader = redisReaderCreate();
    void *reply = NULL;
    assert_int_equal(redisReaderFeed(reader, wire, strlen(wire)), REDIS_OK);
    if (redisReaderGetReply(reader, &reply) != REDIS_OK || !reply) fail_msg("no reply: %s", wire);
    redisReaderFree(reader);
    return reply;
}

static void f93_each_kind_of_reply_is_what_it_says(void **state)
{
    (void)state;
    static const struct {
        const char *wire;
        once_reply_kind kind;
        size_t n;
        bool is;
    } cases[] = {
        {"+OK\r\n", ONCE_REPLY_DONE, 0, true},
        {"$2\r\nOK\r\n", ONCE_REPLY_DONE, 0, false},
        {"$-1\r\n", ONCE_REPLY_DONE, 0, false},
        {"$-1\r\n", ONCE_REPLY_DONE_OR_NOT, 0, true},
        {":0\r\n", ONCE_REPLY_COUNT, 0, true},
        {":-1\r\n", ONCE_REPLY_COUNT, 0, false},
        {"$0\r\n\r\n", ONCE_REPLY_TEXT, 0, true},
        {"$-1\r\n", ONCE_REPLY_TEXT, 0, false},
        {"$-1\r\n", ONCE_REPLY_VALUE, 0, true},
        {"+OK\r\n", ONCE_REPLY_VALUE, 0, false},
        {"*2\r\n$1\r\na\r\n$-1\r\n", ONCE_REPLY_VALUES, 2, true},
        {"*2\r\n$1\r\na\r\n$-1\r\n", ONCE_REPLY_VALUES, 1, false},
        {"*2\r\n$1\r\na\r\n$-1\r\n", ONCE_REPLY_VALUES, 3, false},
        {"*1\r\n:1\r\n", ONCE_REPLY_VALUES, 1, false},
        {"*0\r\n", ONCE_REPLY_TEXTS, 0, true},
        {"*1\r\n$-1\r\n", ONCE_REPLY_TEXTS, 0, false},
        {"*2\r\n$1\r\na\r\n$1\r\nb\r\n", ONCE_REPLY_PAIRS, 0, true},
        {"*1\r\n$1\r\na\r\n", ONCE_REPLY_PAIRS, 0, false},
        {"*2\r\n$12\r\n179476341343\r\n$6\r\n433999\r\n", ONCE_REPLY_TIME, 0, true},
        {"*2\r\n$13\r\n1794763413433\r\n$6\r\n433999\r\n", ONCE_REPLY_TIME, 0, false},
        {"*2\r\n$10\r\n1794763413\r\n$7\r\n4339999\r\n", ONCE_REPLY_TIME, 0, false},
        {"*2\r\n$1\r\n1\r\n$1\r\nx\r\n", ONCE_REPLY_TIME, 0, false},
        {"*1\r\n$1\r\n1\r\n", ONCE_REPLY_TIME, 0, false},
        {"*2\r\n$20\r\n18446744073709551615\r\n*1\r\n$1\r\nk\r\n", ONCE_REPLY_PAGE, 0, true},
        {"*2\r\n$21\r\n184467440737095516150\r\n*0\r\n", ONCE_REPLY_PAGE, 0, false},
        {"*2\r\n$0\r\n\r\n*0\r\n", ONCE_REPLY_PAGE, 0, false},
        {"*2\r\n$2\r\n1x\r\n*0\r\n", ONCE_REPLY_PAGE, 0, false},
        {"*2\r\n$1\r\n0\r\n*1\r\n$-1\r\n", ONCE_REPLY_PAGE, 0, false},
        {"*3\r\n$1\r\n0\r\n*0\r\n:1\r\n", ONCE_REPLY_PAGE, 0, false},
        {"*1\r\n*3\r\n:0\r\n:5\r\n*3\r\n$1\r\nh\r\n:6379\r\n$2\r\nid\r\n", ONCE_REPLY_SLOTS, 0, true},
        {"*1\r\n*3\r\n:0\r\n:5\r\n*2\r\n$-1\r\n:6379\r\n", ONCE_REPLY_SLOTS, 0, true},
        {"*1\r\n*2\r\n:0\r\n:5\r\n", ONCE_REPLY_SLOTS, 0, true},
        {"*1\r\n*1\r\n:0\r\n", ONCE_REPLY_SLOTS, 0, false},
        {"*1\r\n*2\r\n:0\r\n:-1\r\n", ONCE_REPLY_SLOTS, 0, false},
        {"*1\r\n*3\r\n:0\r\n:5\r\n*1\r\n$1\r\nh\r\n", ONCE_REPLY_SLOTS, 0, false},
        {"*1\r\n*3\r\n:0\r\n:5\r\n*2\r\n:1\r\n:6379\r\n", ONCE_REPLY_SLOTS, 0, false},
        {"*1\r\n*3\r\n:0\r\n:5\r\n*2\r\n$1\r\nh\r\n:-1\r\n", ONCE_REPLY_SLOTS, 0, false},
        {":1\r\n", ONCE_REPLY_COMMIT, 0, true},
        {":0\r\n", ONCE_REPLY_COMMIT, 0, false},
        {"*1\r\n$1\r\nk\r\n", ONCE_REPLY_COMMIT, 0, true},
        {"*1\r\n:1\r\n", ONCE_REPLY_COMMIT, 0, false},
        {"*2\r\n$1\r\nk\r\n$1\r\nk\r\n", ONCE_REPLY_COMMIT, 0, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        redisReply *reply = reply_of(cases[i].wire);
        if (once__reply_is(reply, cases[i].kind, cases[i].n) != cases[i].is)
            fail_msg("kind %d: %s", (int)cases[i].kind, cases[i].wire);
        freeReplyObject(reply);
    }
}

static void f93_an_empty_value_is_found_wherever_it_stands(void **state)
{
    (void)state;
    static const struct {
        const char *wire;
        once_reply_kind kind;
        int at; /* -1: there is none */
    } cases[] = {
        {"$0\r\n\r\n", ONCE_REPLY_VALUE, 0},
        {"$1\r\nx\r\n", ONCE_REPLY_VALUE, -1},
        {"$-1\r\n", ONCE_REPLY_VALUE, -1},
        {"$0\r\n\r\n", ONCE_REPLY_TEXT, -1},
        {"*2\r\n$0\r\n\r\n$1\r\na\r\n", ONCE_REPLY_VALUES, 0},
        {"*3\r\n$1\r\na\r\n$-1\r\n$0\r\n\r\n", ONCE_REPLY_VALUES, 2},
        {"*2\r\n$1\r\na\r\n$-1\r\n", ONCE_REPLY_VALUES, -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        redisReply *reply = reply_of(cases[i].wire);
        size_t at = 99;
        assert_int_equal(once__reply_has_empty(reply, cases[i].kind, &at), cases[i].at >= 0);
        if (cases[i].at >= 0) assert_int_equal(at, cases[i].at);
        freeReplyObject(reply);
    }
}

static void f93_replies_are_read_and_put_into_words(void **state)
{
    (void)state;
    static const struct {
        const char *wire, *words;
    } cases[] = {{"$3\r\nabc\r\n", "a string of 3 bytes"},
                 {":-7\r\n", "the integer -7"},
                 {"$-1\r\n", "nil"},
                 {"-ERR x\r\n", "an error"},
                 {"+OK\r\n", "a status"},
                 {"*0\r\n", "an array of 0"},
                 {"*2\r\n:1\r\n:2\r\n", "an array of 2 that begins with the integer 1"},
                 {"*1\r\n*1\r\n:1\r\n", "an array of 1"}};
    char words[ONCE_REPLY_WORDS];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        redisReply *reply = reply_of(cases[i].wire);
        assert_string_equal(once__reply_words(reply, words), cases[i].words);
        freeReplyObject(reply);
    }
    redisReply *time = reply_of("*2\r\n$10\r\n1794763413\r\n$6\r\n433999\r\n");
    assert_int_equal(once__reply_time_ms(time), INT64_C(1794763413433));
    freeReplyObject(time);
}

int main(void)
{
    if (access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", 1); /* many commits, each synced */
    there = redis_server_start(&server);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f93_a_reply_of_another_type_is_an_error),
        cmocka_unit_test(f93_whatever_is_answered_nothing_is_read_beyond_it),
        cmocka_unit_test(numbers_are_digits_alone),
        cmocka_unit_test(f97_scores_are_numbers_or_nothing),
        cmocka_unit_test(f93_each_kind_of_reply_is_what_it_says),
        cmocka_unit_test(f93_an_empty_value_is_found_wherever_it_stands),
        cmocka_unit_test(f93_replies_are_read_and_put_into_words),
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
