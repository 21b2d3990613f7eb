/* Scopes, and bytes of any value and length: keys, results, bodies, facts. */
#include "conform.h"

#include <stdlib.h>

static void f27_tenants_consumers_and_operations_are_isolated(fixture *f)
{
    static const once_scope scopes[] = {
        {{"", 0}, {"payments", 8}, {"charge", 6}}, {{"t", 1}, {"payments", 8}, {"charge", 6}},
        {{"", 0}, {"shipping", 8}, {"charge", 6}}, {{"", 0}, {"payments", 8}, {"refund", 6}},
        {{"p", 1}, {"ayments", 7}, {"charge", 6}},
    };
    enum { N = sizeof scopes / sizeof *scopes };
    once_request r[N];
    for (int i = 0; i < N; i++) {
        f->scope = scopes[i];
        r[i] = ask(f, "same");
        r[i].scope = &scopes[i];
        r[i].fingerprint = (once_hash){(uint64_t)i + 1, 1};
        assert_answer(do_claim(f, &r[i]), RUN);
    }
    assert_true(do_settle(f, &r[0], ONCE_DONE));
    assert_true(do_settle(f, &r[1], ONCE_DEAD));
    assert_true(do_settle(f, &r[2], ONCE_RETRY));
    assert_state(f, r[0], DONE);
    assert_state(f, r[3], CLAIMED);
    assert_state(f, r[4], CLAIMED);
    for (int i = 0; i < N; i++)
        assert_false(do_settle(f,
                               &(once_request){.scope = &scopes[i],
                                               .id = r[i].id,
                                               .key = r[i].key,
                                               .token = r[(i + 1) % N].token,
                                               .remember_ms = 1,
                                               .lease_ms = 1},
                               ONCE_DONE));

    f->scope = scopes[0]; /* what is asked by consumer shows that consumer's */
    once_stats stats = do_stats(f);
    assert_true(stats.claimed == 1 && stats.waiting == 0 && stats.dead == 1);
    assert_int_equal(count_listed(f, ONCE_STATE_CLAIMED), 1);
    assert_int_equal(list_letters(f, NULL, 0), 1);
    pass(f, DELAY);
    once_taken taken[2];
    assert_int_equal(do_take(f, 2, taken), 0);
    f->scope = scopes[2];
    stats = do_stats(f);
    assert_true(stats.claimed == 0 && stats.waiting == 1 && stats.dead == 0);
    assert_int_equal(do_take(f, 2, taken), 1);
}

static void f63_keys_of_any_bytes(fixture *f)
{
    char long_key[1024];
    memset(long_key, 'k', sizeof long_key);
    const once_bytes keys[] = {ONCE_BYTES("a"),    ONCE_BYTES("a\0"),      ONCE_BYTES("a\0b"),     ONCE_BYTES("\0"),
                               ONCE_BYTES("\0\0"), ONCE_BYTES("\xff\xfe"), ONCE_BYTES("\xc3\x28"), {long_key, 1024},
                               {long_key, 1023},   ONCE_BYTES("'; --"),    ONCE_BYTES("A")};
    enum { N = sizeof keys / sizeof *keys };
    once_request r[N];
    for (int i = 0; i < N; i++) {
        r[i] = ask_bytes(f, keys[i]);
        assert_answer(do_claim(f, &r[i]), RUN);
    }
    for (int i = 0; i < N; i++) {
        const once_entry e = do_get(f, r[i].id);
        assert_int_equal(e.key.len, keys[i].len);
        assert_memory_equal(e.key.data, keys[i].data, keys[i].len);
        assert_true(do_settle(f, &r[i], i % 2 ? ONCE_RETRY : ONCE_DEAD));
    }
    for (int i = 0; i < N; i++)
        assert_string_equal(once_state_name(do_get(f, r[i].id).state), i % 2 ? "waiting" : "dead");
    pass(f, DELAY);
    once_taken taken[N];
    assert_int_equal(do_take(f, N, taken), N / 2);
    for (int i = 0; i < N / 2; i++)
        assert_true(
            once_hash_equal(taken[i].request.id, once_key_id(f->store->secret, &f->scope, taken[i].request.key)));
}

static void f07_results_are_binary_and_up_to_64_kib(fixture *f)
{
    static char result[65536];
    for (size_t i = 0; i < sizeof result; i++) result[i] = (char)(i * 7 % 256);
    static const size_t sizes[] = {0, 1, 255, 256, 65535, 65536};
    static const char *const keys[] = {"0", "1", "255", "256", "65535", "65536"};
    for (int i = 0; i < 6; i++) {
        const once_request r = ask(f, keys[i]), again = ask(f, keys[i]);
        do_claim(f, &r);
        const once_settlement s = {.request = &r, .outcome = ONCE_DONE, .result = {result, sizes[i]}};
        bool applied;
        assert_ok(f, f->store->ops->settle(f->store, &s, 1, &applied, &f->err));
        assert_true(applied);
        const once_decision d = do_claim(f, &again);
        assert_answer(d, DUPLICATE);
        assert_int_equal(d.result.len, sizes[i]);
        if (sizes[i]) assert_memory_equal(d.result.data, result, sizes[i]);
    }
}

static void large_bodies_come_back_whole(fixture *f)
{
    enum { SIZE = 3 << 20 };
    char *body = malloc(SIZE);
    assert_non_null(body);
    for (size_t i = 0; i < SIZE; i++) body[i] = (char)(i * 31 % 253);
    const once_request r = ask(f, "k"), *requests = &r;
    const once_message message = {.body = {body, SIZE}, .sent_ms = ONCE_NO_TIME}, *messages = &message;
    once_decision d;
    assert_ok(f, f->store->ops->accept(f->store, &requests, &messages, 1, &d, &f->arena, &f->err));
    const once_taken t = take_one(f);
    const bool same = t.message.body.len == SIZE && memcmp(t.message.body.data, body, SIZE) == 0;
    free(body);
    assert_true(same);
    assert_true(t.message.sent_ms == ONCE_NO_TIME && t.message.at.place.len == 0);
}

/* Whether it waits, is tried again, dies or is replayed: every byte of the body and the headers stays. */
static void bodies_of_any_bytes_come_back_exactly(fixture *f)
{
    char all[256];
    for (size_t i = 0; i < sizeof all; i++) all[i] = (char)(255 - i);
    static const char marked[] = "{\"once:no_body\":true}";
    const once_bytes bodies[] = {{0},
                                 ONCE_BYTES("\0"),
                                 ONCE_BYTES("\0\0a\0"),
                                 ONCE_BYTES("\xff\xfe"),
                                 ONCE_BYTES("\xc3\x28"),
                                 ONCE_BYTES("\\x4142"),
                                 ONCE_BYTES("'; DROP TABLE t; --"),
                                 ONCE_BYTES("line\r\nline\n"),
                                 ONCE_BYTES("{\"a\": 1}"),
                                 {all, sizeof all}};
    static const char *const keys[] = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"};
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        const once_request r = ask(f, keys[i]), *requests = &r;
        const once_bytes headers = bodies[i].len ? (once_bytes){0} : ONCE_BYTES(marked);
        const once_message message = {.body = bodies[i], .headers = headers, .at = r.at, .sent_ms = ONCE_NO_TIME},
                           *messages = &message;
        once_decision d;
        assert_ok(f, f->store->ops->accept(f->store, &requests, &messages, 1, &d, &f->arena, &f->err));
        if (f->store->bits & ONCE_STORE_DURABLE) reopen(f);
        once_taken t = take_one(f);
        assert_true(once_bytes_equal(t.message.body, bodies[i]) && once_bytes_equal(t.message.headers, headers));
        bool applied;
        const once_settlement again = {.request = &t.request, .outcome = ONCE_RETRY, .message = &t.message};
        assert_ok(f, f->store->ops->settle(f->store, &again, 1, &applied, &f->err));
        assert_true(applied);
        t = take_one(f);
        assert_true(once_bytes_equal(t.message.body, bodies[i]) && once_bytes_equal(t.message.headers, headers));
        const once_settlement dead = {.request = &t.request, .outcome = ONCE_DEAD, .message = &t.message};
        assert_ok(f, f->store->ops->settle(f->store, &dead, 1, &applied, &f->err));
        assert_true(applied);
        once_letter letter;
        assert_int_equal(list_letters(f, &letter, 1), 1);
        assert_true(once_bytes_equal(letter.message.body, bodies[i]));
        assert_true(once_bytes_equal(letter.message.headers, headers));
        assert_true(do_replay(f, letter.id));
        t = take_one(f);
        assert_true(once_bytes_equal(t.message.body, bodies[i]) && once_bytes_equal(t.message.headers, headers));
        assert_true(do_settle(f, &t.request, ONCE_DONE));
    }
}

static void facts_are_kept_replaced_and_deleted(fixture *f)
{
    once_bytes value = {"x", 1};
    assert_ok(f, f->store->ops->fact_get(f->store, "spec", &value, &f->arena, &f->err));
    assert_int_equal(value.len, 0);
    assert_ok(f, f->store->ops->fact_set(f->store, "spec", ONCE_BYTES("first"), &f->err));
    assert_ok(f, f->store->ops->fact_set(f->store, "spec2", ONCE_BYTES("other"), &f->err));
    assert_ok(f, f->store->ops->fact_set(f->store, "spec", ONCE_BYTES("a\0\xff"), &f->err));
    if (f->store->bits & ONCE_STORE_DURABLE) reopen(f);
    assert_ok(f, f->store->ops->fact_get(f->store, "spec", &value, &f->arena, &f->err));
    assert_int_equal(value.len, 3);
    assert_memory_equal(value.data, "a\0\xff", 3);
    assert_ok(f, f->store->ops->fact_set(f->store, "spec", (once_bytes){0}, &f->err));
    assert_ok(f, f->store->ops->fact_get(f->store, "spec", &value, &f->arena, &f->err));
    assert_int_equal(value.len, 0);
    assert_ok(f, f->store->ops->fact_get(f->store, "spec2", &value, &f->arena, &f->err));
    assert_bytes(value, "other");
}

/* A consumer may have 200 bytes, and its counters have a word before that. */
static void facts_may_have_long_names(fixture *f)
{
    char name[ONCE_FACT_NAME];
    once_bytes value = {0};
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    assert_ok(f, f->store->ops->fact_set(f->store, name, ONCE_BYTES("kept"), &f->err));
    assert_ok(f, f->store->ops->fact_get(f->store, name, &value, &f->arena, &f->err));
    assert_bytes(value, "kept");
}

const conform_test conform_bytes[] = {
    CONFORM(f27_tenants_consumers_and_operations_are_isolated),
    CONFORM(f63_keys_of_any_bytes),
    CONFORM(f07_results_are_binary_and_up_to_64_kib),
    CONFORM_WITH(large_bodies_come_back_whole, ONCE_STORE_OWNS),
    CONFORM_WITH(bodies_of_any_bytes_come_back_exactly, ONCE_STORE_OWNS),
    CONFORM(facts_are_kept_replaced_and_deleted),
    CONFORM(facts_may_have_long_names),
    {0},
};
