/* A function of the user changes the role in the middle of a batch. Whatever the postgres store asks next must report
 * that change. Without the guard in front of its question it would report a missing right of another role. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "postgres.h"

#ifndef ONCE_WITH_POSTGRES

int main(void) { return test_postgres_missing("built without libpq"); }

#else

#include "core/entry.h"
#include "store/postgres/live.h"

enum { ENTRIES = 4, LANE_ENTRIES = 3 };

static char url[400], schema[40];
static once_error err;
static const once_scope scope = {.consumer = ONCE_BYTES("payer")};
static once_backend *store;
static once_request requests[ENTRIES]; /* three of one version in a lane, and one without a lane */

#define assert_ok(call)                                                                                                \
    do {                                                                                                               \
        if ((call) != ONCE_OK) fail_msg("%s: %s", #call, err.text);                                                    \
    } while (0)

static void accept_all(void)
{
    static const char *const keys[ENTRIES] = {"a", "b", "c", "alone"};
    const once_message message = {.body = ONCE_BYTES("{}"), .sent_ms = ONCE_NO_TIME}, *messages = &message;
    once_arena arena = {0};
    for (size_t i = 0; i < ENTRIES; i++) {
        const once_bytes key = {keys[i], strlen(keys[i])};
        requests[i] = (once_request){.scope = &scope,
                                     .key = key,
                                     .id = once_key_id(store->secret, &scope, key),
                                     .token = {7, i + 1},
                                     .lane = {.gap_ms = -1},
                                     .lease_ms = 60000,
                                     .remember_ms = 60000,
                                     .sent_ms = ONCE_NO_TIME,
                                     .run = 7};
        if (i < LANE_ENTRIES)
            requests[i].lane = (once_lane_request){.id = once_lane_id(store->secret, &scope, ONCE_BYTES("lane")),
                                                   .versioned = true,
                                                   .version = 5,
                                                   .gap_ms = -1};
        const once_request *request = &requests[i];
        once_decision decision;
        assert_ok(store->ops->accept(store, &request, &messages, 1, &decision, &arena, &err));
    }
    once_arena_release(&arena);
}

static int setup(void **state)
{
    (void)state;
    char sql[400];
    snprintf(schema, sizeof schema, "once_guard_%d", (int)getpid());
    test_postgres_make(schema, url, sizeof url);
    snprintf(sql, sizeof sql,
             "CREATE ROLE %s; CREATE FUNCTION %s.become(n text) RETURNS text LANGUAGE plpgsql AS"
             " $$ BEGIN SET LOCAL ROLE %s; RETURN n; END $$",
             schema, schema, schema);
    test_postgres_run(sql);
    const once_store_options options = {.size = sizeof options, .consumer = scope.consumer, .create = true};
    assert_ok(once__store_open(url, &options, &store, &err));
    accept_all();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    char sql[100];
    once__store_close(store);
    test_postgres_unmake(schema);
    snprintf(sql, sizeof sql, "DROP ROLE %s", schema);
    test_postgres_run(sql);
    return 0;
}

/* What the store asks first behind the function. The lane and its first entry were loaded before. */
typedef int question(once_storage *storage);

static once_hash found[16];
static size_t n_found;

static int ask_equals(once_storage *storage)
{
    int64_t seen_ms;
    return storage->ops->lane_equals(storage, requests[0].lane.id, 5, &seen_ms, &err);
}

static int ask_due(once_storage *storage)
{
    return storage->ops->due(storage, scope.consumer, storage->now_ms, 8, found, &n_found, &err);
}

static int ask_due_of_operations(once_storage *storage)
{
    once_due_search search = {.operation = ONCE_BYTES("op"), .max = 4, .read_max = 16};
    return storage->ops->due_of_operations(storage, scope.consumer, storage->now_ms, &search, found, &n_found, &err);
}

static int ask_token(once_storage *storage)
{
    return storage->ops->by_token(storage, scope.consumer, 7, 8, found, &n_found, &err);
}

static int ask_lapsed(once_storage *storage)
{
    return storage->ops->lapsed(storage, scope.consumer, storage->now_ms, 8, found, &n_found, &err);
}

static int ask_waiting(once_storage *storage)
{
    return storage->ops->lanes_waiting(storage, &requests[0].lane.id, 1, 4, 4, found, &n_found, &err);
}

static int ask_before(once_storage *storage)
{
    once_entry *entry;
    uint64_t count;
    assert_ok(storage->ops->load(storage, requests[0].id, &entry, &err)); /* loaded before: asks nothing */
    return storage->ops->lane_before(storage, entry, 4, found, &n_found, &count, &err);
}

static int ask_entry(once_storage *storage)
{
    once_entry *entry;
    return storage->ops->load(storage, requests[ENTRIES - 1].id, &entry, &err);
}

static int ask_key_of_lane(once_storage *storage)
{
    return once__pg_lane_gone(once__pg_of(storage), requests[0].lane.id, &err);
}

static int ask_stats(once_storage *storage)
{
    once_stats stats = {0};
    return storage->ops->stats(storage, scope.consumer, &stats, &err);
}

static int ask_free_lanes(once_storage *storage)
{
    once_pg_lane *lane = once_table_get(&once__pg_of(storage)->lanes, requests[0].lane.id);
    once_pg_round round = {.lanes = &lane, .n_lanes = 1};
    return once__pg_lock_free_lanes(once__pg_of(storage), &round, &err);
}

static const struct {
    const char *name;
    question *ask;
} questions[] = {{"equals", ask_equals},
                 {"due", ask_due},
                 {"due of an operation", ask_due_of_operations},
                 {"token", ask_token},
                 {"lapsed", ask_lapsed},
                 {"waiting", ask_waiting},
                 {"before", ask_before},
                 {"entry", ask_entry},
                 {"key of a lane", ask_key_of_lane},
                 {"stats", ask_stats},
                 {"free lanes", ask_free_lanes}};

static void change_role(void)
{
    static const once_value value = {.type = ONCE_VALUE_TEXT, .text = ONCE_BYTES("x")};
    once_db *db = store->ops->db(store);
    once_stmt *stmt;
    once_fault fault = {0};
    int64_t rows;
    assert_ok(once_db_prepare(db, ONCE_BYTES("SELECT become(?1)"), &stmt, &err));
    const once_touch touches[] = {{&requests[0], ONCE_TOUCH_KEEP}};
    assert_ok(store->ops->begin(store, &err));
    assert_ok(store->ops->expect(store, touches, 1, true, NULL, 0, &err));
    if (once_stmt_run(stmt, &value, 1, &rows, &fault) != ONCE_OK) fail_msg("%s", fault.text);
    once_stmt_free(stmt);
}

static void f78_every_question_behind_effects_reports_a_changed_role(void **state)
{
    (void)state;
    char told[120];
    snprintf(told, sizeof told, "and is %s", schema);
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++) {
        change_role();
        err = (once_error){0};
        const int rc = questions[i].ask((once_storage *)store);
        if (rc != ONCE_E_SCHEMA || !strstr(err.text, told))
            fail_msg("%s: status %d: %s", questions[i].name, rc, err.text);
        store->ops->rollback(store);
    }
}

int main(void)
{
    const char *why;
    if (!test_postgres_url(&why)) return test_postgres_missing(why);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f78_every_question_behind_effects_reports_a_changed_role),
    };
    return cmocka_run_group_tests_name("postgres_guard", tests, setup, teardown);
}

#endif
