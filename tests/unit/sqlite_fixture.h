/* A sqlite store in a folder of its own, with a clock and random numbers of the test, and the verbs that most tests
 * need. */
#ifndef TESTS_UNIT_SQLITE_FIXTURE_H
#define TESTS_UNIT_SQLITE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "store/sqlite/sqlite.h"
#include "testenv.h"

static const once_settled_limits tiny __attribute__((unused)) = {
    .recent_records = 16, .recent_bytes = 1 << 20, .level0_bits = 6, .filter_bytes = 1 << 16};
static const once_scope scope = {.consumer = {"c", 1}, .operation = {"op", 2}};

typedef struct fixture {
    char folder[100], path[200];
    test_env world;
    once_backend *store;
    once_arena arena;
    once_error err;
    uint64_t tokens;
} fixture;

static inline void open_store(fixture *f, const once_settled_limits *limits)
{
    const once_store_options options = {.size = sizeof options, .env = &f->world.env, .create = true};
    if (once__sqlite_store_open(f->path, &options, limits, &f->store, &f->err) != ONCE_OK) fail_msg("%s", f->err.text);
}

static inline int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    if (!f) return -1;
    test_env_init(&f->world, 3);
    snprintf(f->folder, sizeof f->folder, "/tmp/once-store-XXXXXX");
    if (!mkdtemp(f->folder)) return -1;
    snprintf(f->path, sizeof f->path, "%s/once.db", f->folder);
    *state = f;
    return 0;
}

static inline int teardown(void **state)
{
    fixture *f = *state;
    char command[200];
    once__store_close(f->store);
    once_arena_release(&f->arena);
    snprintf(command, sizeof command, "rm -rf '%s'", f->folder);
    free(f);
    return system(command) == 0 ? 0 : -1;
}

static inline once_hash id_of(uint64_t i)
{
    const uint64_t a = test_random(&i);
    return (once_hash){a, test_random(&i)};
}

static inline once_request ask(fixture *f, uint64_t i, int64_t remember_ms)
{
    return (once_request){.scope = &scope,
                          .key = {"k", 1},
                          .id = id_of(i),
                          .token = {++f->tokens, 1},
                          .lease_ms = 1000,
                          .remember_ms = remember_ms,
                          .sent_ms = ONCE_NO_TIME,
                          .run = 1,
                          .at = {{"p", 1}, {"q", 1}}};
}

static inline once_answer claim(fixture *f, const once_request *request)
{
    once_decision decision;
    const int rc = f->store->ops->claim(f->store, &request, 1, &decision, &f->arena, &f->err);
    if (rc != ONCE_OK) fail_msg("%s", f->err.text);
    return decision.answer;
}

static inline void settle(fixture *f, const once_request *request, once_outcome outcome)
{
    const once_settlement settlement = {.request = request, .outcome = outcome};
    bool applied;
    assert_int_equal(f->store->ops->settle(f->store, &settlement, 1, &applied, &f->err), ONCE_OK);
    assert_true(applied);
}

static inline void begin(fixture *f) { assert_int_equal(f->store->ops->begin(f->store, &f->err), ONCE_OK); }
static inline void commit(fixture *f)
{
    if (f->store->ops->commit(f->store, &f->err) != ONCE_OK) fail_msg("%s", f->err.text);
}

/* n keys from `first` on, done in one transaction. */
static inline void fill(fixture *f, uint64_t first, uint64_t n, int64_t remember_ms)
{
    begin(f);
    for (uint64_t i = 0; i < n; i++) {
        const once_request r = ask(f, first + i, remember_ms);
        assert_int_equal(claim(f, &r), ONCE_ANSWER_RUN);
        settle(f, &r, ONCE_DONE);
    }
    commit(f);
}

static inline once_state state_of(fixture *f, uint64_t i)
{
    once_entry entry;
    assert_int_equal(f->store->ops->get(f->store, id_of(i), &entry, &f->arena, &f->err), ONCE_OK);
    return entry.state;
}

static inline sqlite3 *handle(fixture *f) { return ((once_sqlite *)f->store)->db->handle; }

#endif
