/* The file of a sqlite store, or of an effect, that is deleted, renamed or replaced while it is in use. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "once/once.h"
#include "store/sqlite/sqlite.h"
#include "testenv.h"

static const once_scope scope = {.consumer = {"c", 1}, .operation = {"op", 2}};

typedef struct fixture {
    char top[100], folder[150], path[200], other[200];
    test_env world;
    once_backend *store;
    once_arena arena;
    once_error err;
    uint64_t tokens;
} fixture;

static void open_at(fixture *f, const char *path)
{
    const once_store_options options = {.size = sizeof options, .env = &f->world.env, .create = true};
    if (once__sqlite_store_open(path, &options, NULL, &f->store, &f->err) != ONCE_OK) fail_msg("%s", f->err.text);
}

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    if (!f) return -1;
    test_env_init(&f->world, 3);
    snprintf(f->top, sizeof f->top, "/tmp/once-moved-XXXXXX");
    if (!mkdtemp(f->top)) return -1;
    snprintf(f->folder, sizeof f->folder, "%s/in", f->top);
    snprintf(f->path, sizeof f->path, "%s/once.db", f->folder);
    snprintf(f->other, sizeof f->other, "%s/other.db", f->folder);
    if (mkdir(f->folder, 0700) != 0) return -1;
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    char command[200];
    once__store_close(f->store);
    once_arena_release(&f->arena);
    snprintf(command, sizeof command, "rm -rf '%s'", f->top);
    free(f);
    return system(command) == 0 ? 0 : -1;
}

static once_request ask(fixture *f, uint64_t i)
{
    return (once_request){.scope = &scope,
                          .key = {"k", 1},
                          .id = {i, i},
                          .token = {++f->tokens, 1},
                          .lease_ms = 1000,
                          .remember_ms = 1000000,
                          .sent_ms = ONCE_NO_TIME,
                          .run = 1,
                          .at = {{"p", 1}, {"q", 1}}};
}

/* Claims and settles key i in one transaction, and says how that ended. */
static int do_one(fixture *f, uint64_t i, once_answer *answer)
{
    const once_request request = ask(f, i), *one = &request;
    once_decision decision = {0};
    bool applied;
    int rc = f->store->ops->begin(f->store, &f->err);
    if (rc != ONCE_OK) return rc;
    rc = f->store->ops->claim(f->store, &one, 1, &decision, &f->arena, &f->err);
    *answer = decision.answer;
    const once_settlement settlement = {.request = one, .outcome = ONCE_DONE};
    if (rc == ONCE_OK && *answer == ONCE_ANSWER_RUN)
        rc = f->store->ops->settle(f->store, &settlement, 1, &applied, &f->err);
    if (rc == ONCE_OK) return f->store->ops->commit(f->store, &f->err);
    f->store->ops->rollback(f->store);
    return rc;
}

static void fill(fixture *f, uint64_t n)
{
    once_answer answer;
    for (uint64_t i = 1; i <= n; i++) {
        if (do_one(f, i, &answer) != ONCE_OK) fail_msg("%s", f->err.text);
        assert_int_equal(answer, ONCE_ANSWER_RUN);
    }
}

static void stops_with(fixture *f, const char *text)
{
    once_answer answer;
    assert_int_equal(do_one(f, 100, &answer), ONCE_E_MOVED);
    assert_int_equal(once_status_class(ONCE_E_MOVED), ONCE_CLASS_FATAL);
    if (!strstr(f->err.text, text) || !strstr(f->err.text, f->path)) fail_msg("'%s' is not in: %s", text, f->err.text);
}

static void f83_untouched_it_works_and_others_may_come_and_go(void **state)
{
    fixture *f = *state;
    open_at(f, f->path);
    fill(f, 3);
    for (uint64_t i = 10; i < 15; i++) {
        once_answer answer;
        sqlite3 *other;
        assert_int_equal(sqlite3_open(f->path, &other), SQLITE_OK);
        assert_int_equal(
            sqlite3_exec(other, "SELECT count(*) FROM once_meta; PRAGMA wal_checkpoint(TRUNCATE)", NULL, NULL, NULL),
            SQLITE_OK);
        sqlite3_close(other);
        assert_int_equal(do_one(f, i, &answer), ONCE_OK);
    }
}

/* What it had is in a copy that can take its place. */
static void f83_deleted_is_noticed_and_what_was_committed_is_kept(void **state)
{
    fixture *f = *state;
    char kept[300];
    struct stat info;
    once_answer answer;
    open_at(f, f->path);
    fill(f, 5);
    assert_int_equal(unlink(f->path), 0);
    snprintf(kept, sizeof kept, "%s.rescued-%ld", f->path, (long)getpid());
    stops_with(f, kept);
    assert_int_equal(stat(kept, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    stops_with(f, kept); /* one copy, however often it is said */
    assert_int_not_equal(stat(strrchr(kept, '/') + 1, &info), 0);
    once__store_close(f->store);
    f->store = NULL;
    assert_int_equal(rename(kept, f->path), 0);
    open_at(f, f->path);
    for (uint64_t i = 1; i <= 5; i++) {
        assert_int_equal(do_one(f, i, &answer), ONCE_OK);
        assert_int_equal(answer, ONCE_ANSWER_DUPLICATE);
    }
    assert_int_equal(do_one(f, 100, &answer), ONCE_OK);
    assert_int_equal(answer, ONCE_ANSWER_RUN);
}

/* The folder, too: then the copy is where we are. */
static void f83_deleted_with_its_folder(void **state)
{
    fixture *f = *state;
    char before[1000], command[300], kept[100];
    struct stat info;
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(f->top), 0);
    open_at(f, f->path);
    fill(f, 1);
    snprintf(command, sizeof command, "rm -rf '%s'", f->folder);
    assert_int_equal(system(command), 0);
    snprintf(kept, sizeof kept, "'once.db.rescued-%ld'", (long)getpid());
    stops_with(f, kept);
    kept[strlen(kept) - 1] = '\0';
    assert_int_equal(stat(kept + 1, &info), 0);
    assert_int_equal(chdir(before), 0);
}

static void f83_deleted_between_begin_and_commit_is_not_acknowledged(void **state)
{
    fixture *f = *state;
    once_decision decision;
    bool applied;
    open_at(f, f->path);
    fill(f, 1);
    const once_request request = ask(f, 50), *one = &request;
    const once_settlement settlement = {.request = one, .outcome = ONCE_DONE};
    assert_int_equal(f->store->ops->begin(f->store, &f->err), ONCE_OK);
    assert_int_equal(f->store->ops->claim(f->store, &one, 1, &decision, &f->arena, &f->err), ONCE_OK);
    assert_int_equal(f->store->ops->settle(f->store, &settlement, 1, &applied, &f->err), ONCE_OK);
    assert_int_equal(unlink(f->path), 0);
    assert_int_equal(f->store->ops->commit(f->store, &f->err), ONCE_E_MOVED);
}

static void f83_deleted_while_idle_is_noticed_by_whoever_looks(void **state)
{
    fixture *f = *state;
    once_stats stats;
    once_entry entry;
    open_at(f, f->path);
    fill(f, 1);
    assert_int_equal(unlink(f->path), 0);
    assert_int_equal(f->store->ops->stats(f->store, scope.consumer, &stats, &f->err), ONCE_E_MOVED);
    assert_int_equal(f->store->ops->get(f->store, (once_hash){1, 1}, &entry, &f->arena, &f->err), ONCE_E_MOVED);
}

static void f83_renamed_says_where_it_is(void **state)
{
    fixture *f = *state;
    open_at(f, f->path);
    fill(f, 1);
    assert_int_equal(rename(f->path, f->other), 0);
    stops_with(f, f->other);
}

static void f83_replaced_by_another_file(void **state)
{
    fixture *f = *state;
    once_backend *first;
    open_at(f, f->other);
    fill(f, 1);
    once__store_close(f->store);
    open_at(f, f->path);
    fill(f, 1);
    first = f->store;
    assert_int_equal(rename(f->other, f->path), 0);
    stops_with(f, "replaced");
    f->store = first;
}

static void f83_its_folder_is_renamed(void **state)
{
    fixture *f = *state;
    char folder[200];
    open_at(f, f->path);
    fill(f, 1);
    snprintf(folder, sizeof folder, "%s/out", f->top);
    assert_int_equal(rename(f->folder, folder), 0);
    stops_with(f, folder);
}

static void f83_its_symbolic_link_names_another_file(void **state)
{
    fixture *f = *state;
    char path[200];
    once_answer answer;
    snprintf(path, sizeof path, "%s/real.db", f->folder);
    assert_int_equal(symlink("real.db", f->path), 0);
    open_at(f, path);
    once__store_close(f->store);
    open_at(f, f->other);
    once__store_close(f->store);
    open_at(f, f->path);
    fill(f, 1);
    assert_int_equal(do_one(f, 2, &answer), ONCE_OK); /* a link is fine, as long as it stays */
    assert_int_equal(unlink(f->path), 0);
    assert_int_equal(symlink("other.db", f->path), 0);
    stops_with(f, "real.db");
}

static void a_path_from_the_current_folder_may_be_left(void **state)
{
    fixture *f = *state;
    char before[1000];
    once_answer answer;
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(f->folder), 0);
    open_at(f, "once.db");
    fill(f, 1);
    assert_int_equal(chdir("/"), 0);
    assert_int_equal(do_one(f, 2, &answer), ONCE_OK);
    assert_int_equal(unlink(f->path), 0);
    assert_int_equal(do_one(f, 3, &answer), ONCE_E_MOVED);
    assert_int_equal(chdir(before), 0);
}

static void lose_sidecar(fixture *f, const char *end)
{
    char path[300];
    once_answer answer;
    open_at(f, f->path);
    fill(f, 3);
    snprintf(path, sizeof path, "%s%s", f->path, end);
    assert_int_equal(unlink(path), 0);
    stops_with(f, end);
    once__store_close(f->store); /* SQLite brings what is in the lost file into the database, when it ends */
    f->store = NULL;
    open_at(f, f->path);
    assert_int_equal(do_one(f, 3, &answer), ONCE_OK);
    assert_int_equal(answer, ONCE_ANSWER_DUPLICATE);
}

static void f83_its_wal_file_is_deleted(void **state) { lose_sidecar(*state, "-wal"); }
static void f83_its_shm_file_is_deleted(void **state) { lose_sidecar(*state, "-shm"); }

/* ---- on the caller's connection ---- */

static once_outcome count_call(void *user, const once_call *call, once_reply *reply)
{
    (void)call;
    (void)reply;
    ++*(int *)user;
    return ONCE_DONE;
}

static int handle(sqlite3 *db, const char *key, int *calls, once_error *err)
{
    const once_delivery delivery = {.size = sizeof delivery, .key = {key, strlen(key)}, .body = {"{}", 2}};
    once_verdict verdict = {0};
    const int rc = once_sqlite_handle(db, &scope, &delivery, count_call, calls, &verdict, err);
    if (rc == ONCE_OK) once_verdict_release(&verdict);
    return rc;
}

static void f83_on_the_callers_connection_the_handler_is_not_called(void **state)
{
    fixture *f = *state;
    sqlite3 *db;
    int calls = 0;
    assert_int_equal(sqlite3_open(f->path, &db), SQLITE_OK);
    assert_int_equal(once_sqlite_prepare(db, &f->err), ONCE_OK);
    assert_int_equal(handle(db, "a", &calls, &f->err), ONCE_OK);
    assert_int_equal(calls, 1);
    assert_int_equal(unlink(f->path), 0);
    assert_int_equal(handle(db, "b", &calls, &f->err), ONCE_E_MOVED);
    assert_int_equal(calls, 1);
    assert_non_null(strstr(f->err.text, "/proc/"));
    once_sqlite_release(db);
    sqlite3_close(db);
}

static void a_database_without_a_file_never_moves(void **state)
{
    fixture *f = *state;
    static const char *const names[] = {":memory:", ""};
    for (size_t i = 0; i < 2; i++) {
        sqlite3 *db;
        int calls = 0;
        assert_int_equal(sqlite3_open(names[i], &db), SQLITE_OK);
        assert_int_equal(once_sqlite_prepare(db, &f->err), ONCE_OK);
        if (handle(db, "a", &calls, &f->err) != ONCE_OK || handle(db, "b", &calls, &f->err) != ONCE_OK)
            fail_msg("%s", f->err.text);
        assert_int_equal(calls, 2);
        once_sqlite_release(db);
        sqlite3_close(db);
    }
}

/* ---- an effect in another database ---- */

static once_db *open_other(fixture *f, const atomic_bool *stop)
{
    const once_db_options options = {.env = &f->world.env, .busy_ms = 1000, .stop = stop};
    sqlite3 *made;
    once_db *db;
    char url[300];
    assert_int_equal(sqlite3_open(f->path, &made), SQLITE_OK);
    assert_int_equal(sqlite3_exec(made, "PRAGMA journal_mode = WAL; CREATE TABLE t(n)", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(made);
    snprintf(url, sizeof url, "sqlite:%s", f->path);
    if (once_db_open(url, &options, &db, &f->err) != ONCE_OK) fail_msg("%s", f->err.text);
    return db;
}

static void f83_an_effect_elsewhere_does_not_begin_in_a_deleted_file(void **state)
{
    fixture *f = *state;
    atomic_bool stop = false;
    bool maybe;
    once_fault fault;
    once_db *db = open_other(f, &stop);
    assert_int_equal(once_db_begin(db, &f->err), ONCE_OK);
    assert_int_equal(once_db_commit(db, &maybe, &fault), ONCE_OK);
    assert_int_equal(unlink(f->path), 0);
    assert_int_equal(once_db_begin(db, &f->err), ONCE_E_MOVED);
    once_db_rollback(db);
    once_db_close(db);
}

static void f83_an_effect_elsewhere_that_was_committed_to_a_deleted_file_is_unknown(void **state)
{
    fixture *f = *state;
    atomic_bool stop = false;
    bool maybe = false;
    once_fault fault;
    once_stmt *insert;
    int64_t rows;
    once_db *db = open_other(f, &stop);
    assert_int_equal(once_db_prepare(db, ONCE_BYTES("INSERT INTO t VALUES (1)"), &insert, &f->err), ONCE_OK);
    assert_int_equal(once_db_begin(db, &f->err), ONCE_OK);
    assert_int_equal(once_stmt_run(insert, NULL, 0, &rows, &fault), ONCE_OK);
    assert_int_equal(unlink(f->path), 0);
    assert_int_equal(once_db_commit(db, &maybe, &fault), ONCE_E_MOVED);
    assert_true(maybe);
    assert_int_equal(fault.kind, ONCE_FAULT_FATAL);
    once_db_rollback(db);
    once_stmt_free(insert);
    once_db_close(db);
}

#define EACH(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        EACH(f83_untouched_it_works_and_others_may_come_and_go),
        EACH(f83_deleted_is_noticed_and_what_was_committed_is_kept),
        EACH(f83_deleted_with_its_folder),
        EACH(f83_deleted_between_begin_and_commit_is_not_acknowledged),
        EACH(f83_deleted_while_idle_is_noticed_by_whoever_looks),
        EACH(f83_renamed_says_where_it_is),
        EACH(f83_replaced_by_another_file),
        EACH(f83_its_folder_is_renamed),
        EACH(f83_its_symbolic_link_names_another_file),
        EACH(a_path_from_the_current_folder_may_be_left),
        EACH(f83_its_wal_file_is_deleted),
        EACH(f83_its_shm_file_is_deleted),
        EACH(f83_on_the_callers_connection_the_handler_is_not_called),
        EACH(a_database_without_a_file_never_moves),
        EACH(f83_an_effect_elsewhere_does_not_begin_in_a_deleted_file),
        EACH(f83_an_effect_elsewhere_that_was_committed_to_a_deleted_file_is_unknown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
