/* The RabbitMQ source without a server: URLs, mistakes in its fields, and which acks are sent. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "runtime/config.h"
#include "source/rabbitmq_spec.h"
#include "source/source.h"

/* --- URLs --- */

static void expect_text(once_bytes found, const char *wanted)
{
    if (!wanted) {
        assert_null(found.data);
        return;
    }
    assert_int_equal(found.len, strlen(wanted));
    assert_memory_equal(found.data, wanted, found.len);
}

static void urls_are_taken_apart(void **state)
{
    (void)state;
    static const struct {
        const char *text, *scheme, *user, *password, *host, *path;
        int port;
    } cases[] = {
        {"amqp://h", "amqp", NULL, NULL, "h", NULL, 0},
        {"amqps://u@h.example:5671/shop", "amqps", "u", NULL, "h.example", "shop", 5671},
        {"amqp://a%40b:p%3a%2F%25@h:1/a%2Fb", "amqp", "a@b", "p:/%", "h", "a/b", 1},
        {"amqp://u:@h/", "amqp", "u", "", "h", "", 0},
        {"http://[::1]:15672/rabbit/x", "http", NULL, NULL, "::1", "rabbit/x", 15672},
        {"amqp://[fe80::1]", "amqp", NULL, NULL, "fe80::1", NULL, 0},
    };
    once_arena arena;
    once_arena_init(&arena);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        once_rabbitmq_url url;
        const char *why = NULL;
        if (!once__rabbitmq_url(once_bytes_of(cases[i].text), &arena, &url, &why))
            fail_msg("%s: %s", cases[i].text, why);
        expect_text(url.scheme, cases[i].scheme);
        expect_text(url.user, cases[i].user);
        expect_text(url.password, cases[i].password);
        expect_text(url.host, cases[i].host);
        expect_text(url.path, cases[i].path);
        assert_int_equal(url.port, cases[i].port);
    }
    once_arena_release(&arena);
}

static void what_is_no_url_is_refused(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "",
        "amqp",
        "amqp:h",
        "amqp:/h",
        "amqp://",
        "amqp://u@",
        "amqp://:1",
        "amqp://h:",
        "amqp://h:0",
        "amqp://h:65536",
        "amqp://h:99999999999",
        "amqp://h:x",
        "amqp://[::1",
        "amqp://[::1]x",
        "amqp://h/%2",
        "amqp://h/%zz",
        "amqp://h/%00",
        "amqp://u%@h",
        "amqp://h?heartbeat=1",
        "amqp://h/v#x",
    };
    once_arena arena;
    once_arena_init(&arena);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        once_rabbitmq_url url;
        const char *why = NULL;
        if (once__rabbitmq_url(once_bytes_of(cases[i]), &arena, &url, &why)) fail_msg("%s was accepted", cases[i]);
        assert_non_null(why);
    }
    once_arena_release(&arena);
}

/* --- the pipeline file --- */

static int parse(once_arena *arena, const char *fields, once_spec **out, once_error *err)
{
    char text[1000];
    (void)snprintf(text, sizeof text,
                   "consumer: c\nstore: memory\nkey: \"${/id}\"\nsource: {rabbitmq: {%s}}\nhandler: {dead: no}\n",
                   fields);
    return once_config_parse("p.yaml", once_bytes_of(text), arena, NULL, NULL, out, err);
}

static void mistakes_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *fields, *text;
    } cases[] = {
        {"queue: q", "missing field 'url' in a RabbitMQ source; add 'url: amqps://orders@rabbit.example.com/shop'"},
        {"url: \"amqp://h\"", "missing field 'queue' in a RabbitMQ source; add 'queue: payments'"},
        {"url: \"http://h\", queue: q", "'url' is not a URL: it must begin with amqp:// or amqps://"},
        {"url: \"amqp://h:0\", queue: q", "'url' is not a URL: behind the host must be a port, 1 to 65535"},
        {"url: \"amqp://u:p@h\", queue: q",
         "'url' has a password, which must not stand in this file; write 'password: env:NAME'"},
        {"url: \"amqp://u@h\", queue: q", "'url' has a user and no password; add 'password: env:RABBITMQ_PASSWORD'"},
        {"url: \"amqp://u@h\", password: hunter2, queue: q",
         "'password' is a secret and must not stand in this file; write env:NAME or file:PATH"},
        {"url: \"amqp://h\", queue: q, tls: {ca: c}", "'tls' is for amqps://; change 'url', or remove 'tls'"},
        {"url: \"amqps://h\", queue: q, tls: {certificate: c}",
         "'tls' has one of 'certificate' and 'key'; it needs both"},
        {"url: \"amqp://h\", queue: q, management: \"ftp://h\"",
         "'management' is not a URL: it must begin with http:// or https://"},
        {"url: \"amqp://h\", queue: q, management: \"http://u@h\"",
         "'management' is not a URL: the user is that of 'url'; write a reference to a URL that has another one"},
        {"url: \"amqps://h\", queue: q, login: certificate",
         "'login: certificate' needs one; add 'tls: {certificate: FILE, key: FILE}'"},
        {"url: \"amqps://u@h\", queue: q, login: certificate, tls: {certificate: c, key: k}",
         "'url' has a user, but 'login: certificate' takes it from the certificate; remove it"},
        {"url: \"amqps://h\", password: env:P, queue: q, login: certificate, tls: {certificate: c, key: k}",
         "'login: certificate' needs no 'password'; remove one"},
        {"url: \"amqps://h\", queue: q, login: certificate, tls: {certificate: c, key: k}, management: \"http://h\"",
         "'management' is not a URL: without a password in 'url' it needs a user of its own; write a reference to a "
         "URL "
         "that has one"},
        {"url: \"amqp://h\", queue: q, prefetch: 0", "'prefetch' is 0; write a number from 1 to 65535"},
        {"url: \"amqp://h\", queue: q, heartbeat: 500ms", NULL},
        {"url: \"amqp://h\", queue: \"\"", NULL},
    };
    once_arena arena;
    once_arena_init(&arena);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        once_spec *spec;
        once_error err = {0};
        char wanted[400];
        assert_int_equal(parse(&arena, cases[i].fields, &spec, &err), ONCE_E_CONFIG);
        assert_null(strstr(err.text, "hunter2"));
        if (!cases[i].text) continue;
        (void)snprintf(wanted, sizeof wanted, "p.yaml:4: %s", cases[i].text);
        assert_string_equal(err.text, wanted);
    }
    once_arena_release(&arena);
}

static void count_secret(void *user, once_bytes text, bool url)
{
    assert_false(url);
    *(int *)user += once_is_reference(text);
}

static void note(void *user, const char *text)
{
    assert_true(strlen(text) > 0);
    ++*(int *)user;
}

static void what_follows_from_the_fields(void **state)
{
    (void)state;
    enum { QUEUE = ONCE_SOURCE_ASSIGNS | ONCE_SOURCE_SINGLE_ACKS };
    static const struct {
        const char *fields;
        unsigned bits;
        int secrets, exposed;
    } cases[] = {
        {"url: \"amqp://localhost\", queue: q", QUEUE | ONCE_SOURCE_EXPIRES, 0, 0},
        {"url: \"amqp://127.0.0.2\", queue: q, consumer_timeout: forever", QUEUE, 0, 0},
        {"url: \"amqp://h.example\", queue: q", QUEUE | ONCE_SOURCE_EXPIRES, 0, 1},
        {"url: \"amqps://u@h.example\", password: env:P, queue: q", QUEUE | ONCE_SOURCE_EXPIRES, 1, 0},
        {"url: env:URL, queue: q, management: env:M", QUEUE | ONCE_SOURCE_EXPIRES, 2, 0},
    };
    once_arena arena;
    once_arena_init(&arena);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        once_spec *spec;
        once_error err = {0};
        int secrets = 0, exposed = 0;
        if (parse(&arena, cases[i].fields, &spec, &err) != ONCE_OK) fail_msg("%s", err.text);
        const once_source_spec *s = &spec->source;
        assert_int_equal(s->bits, cases[i].bits);
        assert_non_null(s->unstable);
        once_source_secrets(s, count_secret, &secrets);
        once_source_exposed(s, note, &exposed);
        assert_int_equal(secrets, cases[i].secrets);
        assert_int_equal(exposed, cases[i].exposed);
    }
    once_arena_release(&arena);
}

/* --- acks --- */

#ifdef ONCE_WITH_RABBITMQ
#include "source/rabbitmq/tags.h"

/* What is sent when these are settled: "5* 7 9", with a star for an ack of several. */
static const char *acks_for(rabbitmq_tags *tags, const int *settled, size_t n)
{
    static char out[1000];
    size_t at = 0, len = 0;
    uint64_t tag;
    bool multiple;
    for (size_t i = 0; i < n; i++) {
        rabbitmq_tag *found = once__rabbitmq_tags_find(tags, (uint64_t)settled[i]);
        assert_non_null(found);
        found->state = RABBITMQ_TAG_SETTLED;
    }
    out[0] = '\0';
    while (once__rabbitmq_tags_next(tags, &at, &tag, &multiple))
        len += (size_t)snprintf(out + len, sizeof out - len, "%s%d%s", len ? " " : "", (int)tag, multiple ? "*" : "");
    return out;
}
#define ACKS(tags, ...) acks_for(tags, (int[]){__VA_ARGS__}, sizeof((int[]){__VA_ARGS__}) / sizeof(int))

static void few_acks_are_sent_and_none_too_early(void **state)
{
    (void)state;
    rabbitmq_tags tags = {0};
    for (uint64_t i = 1; i <= 20; i++) assert_true(once__rabbitmq_tags_add(&tags, i, 0));
    assert_string_equal(ACKS(&tags, 3, 1, 2), "3*");
    assert_string_equal(ACKS(&tags, 4), "4");
    assert_string_equal(ACKS(&tags, 7, 9), "7 9"); /* 5 is open */
    assert_null(once__rabbitmq_tags_find(&tags, 7));
    assert_string_equal(ACKS(&tags, 5), "5");
    assert_string_equal(ACKS(&tags, 6, 8, 12), "8* 12"); /* 7 was acked before, 9 too: 9 cannot be acked again */
    assert_string_equal(ACKS(&tags, 10, 11), "11*");
    assert_int_equal(tags.open, 8);
    assert_string_equal(ACKS(&tags, 13, 14, 15, 16, 17, 18, 19, 20), "20*");
    assert_int_equal(tags.open, 0);
    assert_true(once__rabbitmq_tags_add(&tags, 21, 0));
    assert_string_equal(ACKS(&tags, 21), "21");
    once__rabbitmq_tags_free(&tags);
}

/* One is never settled while a million pass: the list stays as short as what is open. */
static void a_stuck_one_costs_no_memory(void **state)
{
    (void)state;
    rabbitmq_tags tags = {0};
    assert_true(once__rabbitmq_tags_add(&tags, 1, 7));
    for (int i = 2; i < 100000; i++) {
        assert_true(once__rabbitmq_tags_add(&tags, (uint64_t)i, 0));
        char wanted[20];
        (void)snprintf(wanted, sizeof wanted, "%d", i);
        assert_string_equal(ACKS(&tags, i), wanted);
    }
    assert_true(tags.size <= 1024);
    assert_int_equal(once__rabbitmq_tags_find(&tags, 1)->came_ms, 7);
    assert_string_equal(ACKS(&tags, 1), "1");
    once__rabbitmq_tags_free(&tags);
}

/* At random: each is acked once, none is acked before it is settled, and an ack of several covers settled ones only. */
static void acks_at_random(void **state)
{
    (void)state;
    enum { N = 3000 };
    static bool settled[N + 1], acked[N + 1];
    rabbitmq_tags tags = {0};
    unsigned seed = 1;
    int next = 1, done = 0;
    while (done < N) {
        for (int i = 0; i < 20 && next <= N; i++) assert_true(once__rabbitmq_tags_add(&tags, (uint64_t)next++, 0));
        for (int i = 0; i < 40; i++) {
            seed = seed * 1103515245u + 12345u;
            const int tag = 1 + (int)(seed >> 8) % (next - 1);
            rabbitmq_tag *found = once__rabbitmq_tags_find(&tags, (uint64_t)tag);
            assert_int_equal(!found, acked[tag]);
            if (found) found->state = RABBITMQ_TAG_SETTLED, settled[tag] = true;
        }
        size_t at = 0;
        uint64_t tag;
        bool multiple;
        while (once__rabbitmq_tags_next(&tags, &at, &tag, &multiple)) {
            assert_false(acked[tag]); /* the broker closes the channel otherwise */
            for (int i = multiple ? 1 : (int)tag; i <= (int)tag; i++) {
                assert_true(settled[i]);
                done += !acked[i];
                acked[i] = true;
            }
        }
        for (int i = 1; i < next; i++) assert_int_equal(settled[i], acked[i]);
    }
    assert_int_equal(tags.open, 0);
    once__rabbitmq_tags_free(&tags);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(urls_are_taken_apart),
        cmocka_unit_test(what_is_no_url_is_refused),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(what_follows_from_the_fields),
#ifdef ONCE_WITH_RABBITMQ
        cmocka_unit_test(few_acks_are_sent_and_none_too_early),
        cmocka_unit_test(a_stuck_one_costs_no_memory),
        cmocka_unit_test(acks_at_random),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
