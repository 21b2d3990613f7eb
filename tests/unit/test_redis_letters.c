/* A dead letter that another process removes while a replay reads it. A proxy lets it happen at the worst moment: after
 * the letter was read, and before its entry is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "replyproxy.h"
#include "store/store.h"

#ifdef ONCE_WITH_REDIS

enum { LETTERS = 3 };

static redis_server server;

typedef struct fixture {
    once_backend *replaying, *other; /* the first one behind the proxy */
    uint64_t ids[LETTERS];
    size_t n;
    atomic_bool armed, removed;
    once_error err;
} fixture;

#define assert_ok(call)                                                                                                \
    do {                                                                                                               \
        if ((call) != ONCE_OK) fail_msg("%s: %s", #call, f->err.text);                                                 \
    } while (0)

/* After the first reply, which is that with the letters, the second one is removed. */
static bool remove_second(void *user, proxy_reply *reply)
{
    fixture *f = user;
    bool found = false;
    once_error err;
    (void)reply;
    if (atomic_exchange(&f->armed, false))
        atomic_store(&f->removed, f->other->ops->letter_drop(f->other, f->ids[1], &found, &err) == ONCE_OK && found);
    return true;
}

static once_backend *open_store(fixture *f, const char *base)
{
    const once_store_options options = {.size = sizeof options, .create = true, .busy_ms = 5000};
    char url[256];
    once_backend *store;
    snprintf(url, sizeof url, "%s/0?name=letters", base);
    assert_ok(once__store_open(url, &options, &store, &f->err));
    return store;
}

static bool note_id(void *user, const once_letter *letter)
{
    fixture *f = user;
    assert_true(f->n < LETTERS);
    f->ids[f->n++] = letter->id;
    return true;
}

static void bury_letters(fixture *f, const once_scope *scope)
{
    static const char *const reasons[LETTERS] = {"first", "second", "third"};
    for (size_t i = 0; i < LETTERS; i++) {
        const once_bytes text = {reasons[i], strlen(reasons[i])};
        const once_letter letter = {.scope = *scope,
                                    .kind = ONCE_ANSWER_DEAD,
                                    .attempt = 1,
                                    .reason = text,
                                    .message = {.body = text, .sent_ms = ONCE_NO_TIME}};
        bool fresh;
        assert_ok(f->other->ops->bury(f->other, &letter, 1, &fresh, &f->err));
        assert_true(fresh);
    }
    assert_ok(f->other->ops->letters(f->other, scope->consumer, 0, note_id, f, &f->err));
    assert_int_equal(f->n, LETTERS);
}

static void a_letter_that_is_removed_before_its_entry_is_read_is_gone(void **state)
{
    (void)state;
    fixture at = {0}, *f = &at;
    reply_proxy proxy;
    once_arena arena = {0};
    const once_scope scope = {{0}, ONCE_BYTES("c"), ONCE_BYTES("op")};
    redis_proxy_start(&proxy, &server, remove_second, f);
    f->other = open_store(f, server.url);
    f->replaying = open_store(f, proxy.url);
    bury_letters(f, &scope);
    const once_store_ops *ops = f->replaying->ops;
    assert_ok(ops->begin(f->replaying, &f->err));
    atomic_store(&f->armed, true);
    assert_ok(ops->letters_ahead(f->replaying, f->ids, LETTERS, &f->err));
    assert_true(atomic_load(&f->removed));
    for (size_t i = 0; i < LETTERS; i++) {
        once_letter letter;
        bool found;
        assert_ok(ops->letter_get(f->replaying, f->ids[i], &letter, &found, &arena, &f->err));
        assert_int_equal(found, i != 1);
    }
    ops->rollback(f->replaying);
    once__store_close(f->replaying);
    once__store_close(f->other);
    reply_proxy_stop(&proxy);
    once_arena_release(&arena);
}

static void redis_server_is_missing(void **state)
{
    (void)state;
    print_message("no redis-server\n");
    skip();
}

int main(void)
{
    const bool there = redis_server_start(&server);
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_letter_that_is_removed_before_its_entry_is_read_is_gone)};
    const struct CMUnitTest none[] = {cmocka_unit_test(redis_server_is_missing)};
    const int failed = there ? cmocka_run_group_tests(tests, NULL, NULL) : cmocka_run_group_tests(none, NULL, NULL);
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
