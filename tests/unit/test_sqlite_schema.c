/* Opening: new files, a user's own database, old, newer, foreign and damaged files, and two processes at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/failpoint.h"
#include "store/sqlite/record.h"
#include "store/sqlite/schema.h"
#include "store/sqlite/sqlite.h"
#include "testenv.h"

static char folder[100];

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/once-schema-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    char command[200];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command) == 0 ? 0 : -1;
}

static const char *path_of(const char *name)
{
    static char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int open_at(const char *path, bool create, bool readonly, once_backend **out, once_error *err)
{
    const once_store_options options = {.size = sizeof options, .create = create, .readonly = readonly};
    return once__sqlite_store_open(path, &options, NULL, out, err);
}

/* Opening fails with this status, and the error names the file. */
static void refused(const char *path, bool create, bool readonly, int status, const char *word)
{
    once_backend *store = NULL;
    once_error err = {0};
    const int rc = open_at(path, create, readonly, &store, &err);
    if (rc != status) fail_msg("%s: %s (%s), not %s", path, once_status_name(rc), err.text, once_status_name(status));
    assert_null(store);
    assert_non_null(strstr(err.text, path));
    if (!strstr(err.text, word)) fail_msg("'%s' lacks '%s'", err.text, word);
}

static void sql(const char *path, const char *text)
{
    sqlite3 *db;
    char *message = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_exec(db, text, NULL, NULL, &message) != SQLITE_OK) fail_msg("%s: %s", text, message);
    sqlite3_close(db);
}

static int64_t ask(const char *path, const char *text)
{
    sqlite3 *db;
    sqlite3_stmt *stmt;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, text, -1, &stmt, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    const int64_t value = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    sqlite3_close(db);
    return value;
}

static void copy_fixture(int version, const char *to)
{
    char from[500];
    snprintf(from, sizeof from, ONCE_SOURCE_ROOT "/tests/fixtures/version-%d.db", version);
    FILE *in = fopen(from, "rb");
    FILE *out = fopen(to, "wb");
    char block[4096];
    size_t n;
    assert_non_null(in);
    assert_non_null(out);
    while ((n = fread(block, 1, sizeof block, in)) > 0) assert_int_equal(fwrite(block, 1, n, out), n);
    fclose(in);
    assert_int_equal(fclose(out), 0);
}

/* ---- new files ---- */

static void test_new_file(void **state)
{
    (void)state;
    const char *path = path_of("new.db");
    once_backend *store;
    once_error err = {0};
    char text[100];
    refused(path, false, false, ONCE_E_NO_STORE, "does not exist");
    assert_int_equal(open_at(path, true, false, &store, &err), ONCE_OK);
    assert_int_equal(once_db_describe(store->ops->db(store), text, sizeof text, &err), ONCE_OK);
    assert_string_equal(text, "journal_mode=wal synchronous=full");
    const once_secret secret = store->secret;
    assert_true(secret.k0 && secret.k1);
    once__store_close(store);
    assert_int_equal(ask(path, "PRAGMA application_id"), ONCE_SQLITE_APPLICATION_ID);
    assert_int_equal(ask(path, "SELECT value FROM once_meta WHERE name = 'version'"), ONCE_SQLITE_VERSION);
    assert_int_equal(open_at(path, false, false, &store, &err), ONCE_OK);
    assert_int_equal(store->secret.k0, secret.k0);
    once__store_close(store);
    assert_int_equal(open_at(path, false, true, &store, &err), ONCE_OK); /* reading only */
    once_arena arena = {0};
    once_entry entry;
    assert_int_equal(store->ops->get(store, (once_hash){1, 2}, &entry, &arena, &err), ONCE_OK);
    assert_int_equal(entry.state, ONCE_STATE_ABSENT);
    assert_int_equal(store->ops->fact_set(store, "name", ONCE_BYTES("value"), &err), ONCE_E_READONLY);
    assert_int_equal(store->ops->get(store, (once_hash){1, 2}, &entry, &arena, &err), ONCE_OK); /* and goes on */
    once__store_close(store);
    once_arena_release(&arena);
}

static void test_users_own_file_is_left_as_it_is(void **state)
{
    (void)state;
    const char *path = path_of("user.db");
    once_backend *store;
    once_error err = {0};
    char text[100];
    sql(path,
        "PRAGMA application_id = 77; CREATE TABLE payments(id TEXT PRIMARY KEY); INSERT INTO payments VALUES ('p1')");
    refused(path, false, false, ONCE_E_NO_STORE, "no once tables");
    assert_int_equal(open_at(path, true, false, &store, &err), ONCE_OK);
    assert_int_equal(once_db_describe(store->ops->db(store), text, sizeof text, &err), ONCE_OK);
    assert_string_equal(text, "journal_mode=delete synchronous=full");
    once__store_close(store);
    assert_int_equal(ask(path, "PRAGMA application_id"), 77);
    assert_int_equal(ask(path, "SELECT count(*) FROM payments"), 1);
    assert_int_equal(open_at(path, false, false, &store, &err), ONCE_OK);
    once__store_close(store);
}

static void test_schema_text_is_the_schema(void **state)
{
    (void)state;
    const char *path = path_of("text.db"), *made;
    char other[200];
    once_backend *store;
    once_error err = {0};
    snprintf(other, sizeof other, "%s", path);
    sql(other, once__sqlite_schema());
    made = path_of("made.db");
    assert_int_equal(open_at(made, true, false, &store, &err), ONCE_OK);
    once__store_close(store);
    char query[400];
    snprintf(query, sizeof query,
             "ATTACH '%s' AS o; CREATE TABLE d(name, sql); INSERT INTO d SELECT name, sql FROM main.sqlite_schema "
             "WHERE name <> 'd' EXCEPT SELECT name, sql FROM o.sqlite_schema",
             other);
    sql(made, query);
    assert_int_equal(ask(made, "SELECT count(*) FROM d"), 0);
}

/* What is asked for with every claim, take or sweep is found by the index that is there for it, in a new file and in an
 * old one. */
static void every_question_has_its_index(void **state)
{
    (void)state;
    static const struct {
        int statement;
        const char *index;
    } cases[] = {
        {SQL_LANE_RUNNING, "once_entry_running"}, {SQL_LANE_UP, "once_entry_lane"},
        {SQL_LANE_DOWN, "once_entry_lane"},       {SQL_DUE, "once_entry_due"},
        {SQL_BY_TOKEN, "once_entry_token"},       {SQL_EXPIRED, "once_entry_expires"},
        {SQL_LANE_HEAD, "once_entry_lane"},
    };
    static const int versions[] = {0, 3, 4, 5, ONCE_SQLITE_VERSION};
    for (size_t v = 0; v < sizeof versions / sizeof *versions; v++) {
        const int version = versions[v];
        char name[20], text[1000];
        snprintf(name, sizeof name, "plan-%d.db", version);
        const char *path = path_of(name);
        once_backend *store;
        once_error err = {0};
        if (version < ONCE_SQLITE_VERSION) copy_fixture(version, path);
        assert_int_equal(open_at(path, true, false, &store, &err), ONCE_OK);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            sqlite3_stmt *asked = ((once_sqlite *)store)->sql[cases[i].statement], *plan;
            snprintf(text, sizeof text, "EXPLAIN QUERY PLAN %s", sqlite3_sql(asked));
            assert_int_equal(sqlite3_prepare_v2(sqlite3_db_handle(asked), text, -1, &plan, NULL), SQLITE_OK);
            assert_int_equal(sqlite3_step(plan), SQLITE_ROW);
            const char *how = (const char *)sqlite3_column_text(plan, 3);
            char words[100];
            snprintf(words, sizeof words, "INDEX %s (", cases[i].index); /* it is searched, not read from end to end */
            if (strncmp(how, "SEARCH", 6) != 0 || !strstr(how, words))
                fail_msg("version %d, %s: %s", version, sqlite3_sql(asked), how);
            assert_int_equal(sqlite3_step(plan), SQLITE_DONE); /* and nothing is sorted */
            sqlite3_finalize(plan);
        }
        once__store_close(store);
    }
}

/* Those that wait in a lane with one version are found by it: however many others wait, they are neither read nor
 * sorted. */
static void equals_of_a_lane_are_found_by_their_index(void **state)
{
    (void)state;
    static const int statements[] = {SQL_LANE_FIRST, SQL_LANE_EQUALS};
    once_backend *store;
    once_error err = {0};
    assert_int_equal(open_at(path_of("plan-equals.db"), true, false, &store, &err), ONCE_OK);
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        sqlite3_stmt *asked = ((once_sqlite *)store)->sql[statements[i]], *plan;
        char text[1000];
        int reads = 0;
        snprintf(text, sizeof text, "EXPLAIN QUERY PLAN %s", sqlite3_sql(asked));
        assert_int_equal(sqlite3_prepare_v2(sqlite3_db_handle(asked), text, -1, &plan, NULL), SQLITE_OK);
        while (sqlite3_step(plan) == SQLITE_ROW) {
            const char *how = (const char *)sqlite3_column_text(plan, 3);
            if (!strstr(how, "once_entry")) continue; /* of what was found */
            reads++;
            if (!strstr(how, "SEARCH once_entry USING INDEX once_entry_lane (lane=? AND ord=?)"))
                fail_msg("%s: %s", sqlite3_sql(asked), how);
        }
        assert_int_equal(reads, 1);
        sqlite3_finalize(plan);
    }
    once__store_close(store);
}

/* ---- versions ---- */

static void check_migrated(const char *path)
{
    once_backend *store;
    once_error err = {0};
    once_arena arena = {0};
    once_entry entry;
    if (open_at(path, false, false, &store, &err) != ONCE_OK) fail_msg("%s", err.text);
    for (unsigned n = 1; n <= 100; n++) {
        unsigned char id[17], point[10];
        snprintf((char *)id, sizeof id, "%centry--%08u", (char)n, n);
        snprintf((char *)point, sizeof point, "%u", n);
        assert_int_equal(store->ops->get(store, once__id_read(id), &entry, &arena, &err), ONCE_OK);
        assert_int_equal(entry.state, ONCE_STATE_DONE + n % 4);
        assert_int_equal(entry.attempt, 1 + n % 3);
        assert_int_equal(entry.run, 3);
        assert_int_equal(entry.changed_ms, 1700000000000 - 4000 - n);
        assert_true(entry.expires_ms == (n % 10 ? 4102444800000 : ONCE_FOREVER));
        assert_int_equal(entry.result.len, n % 7 ? 0 : 200);
        assert_memory_equal(entry.scope.consumer.data, "pay", 3);
        assert_memory_equal(entry.at.point.data, point, entry.at.point.len);
    }
    assert_int_equal(store->ops->get(store, (once_hash){UINT64_C(0xff00000000000001), 1}, &entry, &arena, &err),
                     ONCE_OK);
    assert_int_equal(entry.state, ONCE_STATE_WAITING);
    assert_true(entry.has_message && entry.hold);
    assert_memory_equal(entry.message.body.data, "{\"id\":\"waits\"}", 14);
    assert_memory_equal(entry.message.at.point.data, "101", 3);
    once_stats stats;
    assert_int_equal(store->ops->stats(store, ONCE_BYTES("pay"), &stats, &err), ONCE_OK);
    assert_int_equal(stats.waiting, 1);
    assert_int_equal(stats.claimed, 1);
    assert_int_equal(stats.dead, 1);
    once_bytes fact;
    assert_int_equal(store->ops->fact_get(store, "consumer.pay", &fact, &arena, &err), ONCE_OK);
    assert_int_equal(fact.len, 7);
    once__store_close(store);
    once_arena_release(&arena);
    assert_int_equal(ask(path, "SELECT value FROM once_meta WHERE name = 'version'"), ONCE_SQLITE_VERSION);
    assert_int_equal(ask(path, "SELECT count(*) FROM once_entry"), 3);
    assert_int_equal(ask(path, "SELECT version FROM once_lane"), 41);
    assert_int_equal(ask(path, "SELECT count(*) FROM sqlite_schema WHERE name = 'once_old'"), 0);
}

static void f58_older_is_migrated(void **state)
{
    (void)state;
    const char *path = path_of("old.db");
    copy_fixture(0, path);
    refused(path, false, true, ONCE_E_READONLY, "version 0");
    check_migrated(path);
    check_migrated(path);
}

static void f58_newer_is_refused(void **state)
{
    (void)state;
    const char *path = path_of("newer.db");
    once_backend *store;
    once_error err = {0};
    assert_int_equal(open_at(path, true, false, &store, &err), ONCE_OK);
    once__store_close(store);
    sql(path, "UPDATE once_meta SET value = value + 1 WHERE name = 'version'");
    refused(path, true, false, ONCE_E_NEWER, "newer");
    refused(path, false, true, ONCE_E_NEWER, "upgrade once");
}

static void f58_version_2_gets_its_audit(void **state)
{
    (void)state;
    const char *path = path_of("two.db");
    once_backend *store;
    once_error err = {0};
    copy_fixture(3, path);
    sql(path, "DROP TABLE once_audit; INSERT INTO once_fact VALUES ('kept', x'01'); UPDATE once_meta SET value = 2 "
              "WHERE name = 'version'");
    refused(path, false, true, ONCE_E_READONLY, "version 2");
    assert_int_equal(open_at(path, false, false, &store, &err), ONCE_OK);
    const once_audit act = {.consumer = ONCE_BYTES("c"), .who = ONCE_BYTES("me"), .what = ONCE_BYTES("forget")};
    assert_int_equal(store->ops->audit(store, &act, &err), ONCE_OK);
    once__store_close(store);
    assert_int_equal(ask(path, "SELECT value FROM once_meta WHERE name = 'version'"), ONCE_SQLITE_VERSION);
    assert_int_equal(ask(path, "SELECT count(*) FROM once_audit WHERE who = 'me' AND letter IS NULL"), 1);
    assert_int_equal(ask(path, "SELECT count(*) FROM once_fact WHERE name = 'kept'"), 1);
}

/* Lanes of version 4 have nothing but their version: an equal one is neither a duplicate nor new. */
static void f58_f86_lanes_of_version_4_do_not_know_who_settled(void **state)
{
    (void)state;
    const char *path = path_of("four.db");
    once_backend *store;
    once_error err = {0};
    once_arena arena = {0};
    const once_scope whose = {.consumer = ONCE_BYTES("pay"), .operation = ONCE_BYTES("run")};
    copy_fixture(4, path);
    assert_int_equal(open_at(path, false, false, &store, &err), ONCE_OK);
    once_request q = {.scope = &whose,
                      .key = ONCE_BYTES("second"),
                      .fingerprint = {1, 2},
                      .token = {3, 4},
                      .lease_ms = 1000,
                      .remember_ms = 60000,
                      .sent_ms = ONCE_NO_TIME};
    q.id = once_key_id(store->secret, &whose, q.key);
    q.lane = (once_lane_request){
        .id = once_lane_id(store->secret, &whose, ONCE_BYTES("lane")), .versioned = true, .version = 3, .gap_ms = -1};
    once__store_close(store);

    copy_fixture(4, path); /* once more, and now with that lane in it */
    unsigned char id[16];
    char text[200], hex[33];
    once__id_write(q.lane.id, id);
    for (size_t i = 0; i < sizeof id; i++) snprintf(hex + 2 * i, 3, "%02x", id[i]);
    snprintf(text, sizeof text, "INSERT INTO once_lane(id, version, expires_ms) VALUES (x'%s', 3, 1 << 62)", hex);
    sql(path, text);
    refused(path, false, true, ONCE_E_READONLY, "version 4");

    const once_request *list = &q;
    once_decision d;
    assert_int_equal(open_at(path, false, false, &store, &err), ONCE_OK);
    assert_int_equal(store->ops->claim(store, &list, 1, &d, &arena, &err), ONCE_OK);
    assert_int_equal(d.answer, ONCE_ANSWER_CONFLICT);
    q.lane.version = 2;
    assert_int_equal(store->ops->claim(store, &list, 1, &d, &arena, &err), ONCE_OK);
    assert_int_equal(d.answer, ONCE_ANSWER_STALE);
    once__store_close(store);
    once_arena_release(&arena);
}

static once_entry entry_of(once_backend *store, const char *operation, const char *key, once_arena *arena)
{
    once_entry entry;
    once_error err = {0};
    const once_scope whose = {.consumer = ONCE_BYTES("pay"), .operation = {operation, strlen(operation)}};
    const int rc =
        store->ops->get(store, once_key_id(store->secret, &whose, (once_bytes){key, strlen(key)}), &entry, arena, &err);
    if (rc != ONCE_OK) fail_msg("%s", err.text);
    return entry;
}

/* What version 3 or 4 wrote: everything that it knew is there; in version 3 who and how it came about are not known. */
typedef struct known_entry {
    const char *operation, *key;
    once_state state;
    uint32_t attempt, failures;
    const char *reason, *point;
    size_t result;
} known_entry;

static void check_known(const char *path, const known_entry *known, size_t n_known, bool who)
{
    once_backend *store;
    once_error err = {0};
    once_arena arena = {0};
    if (open_at(path, false, false, &store, &err) != ONCE_OK) fail_msg("%s", err.text);
    for (size_t i = 0; i < n_known; i++) {
        const once_entry e = entry_of(store, known[i].operation, known[i].key, &arena);
        assert_string_equal(once_state_name(e.state), once_state_name(known[i].state));
        assert_true(e.attempt == known[i].attempt && e.failures == known[i].failures);
        assert_int_equal(e.reason.len, strlen(known[i].reason));
        if (e.reason.len) assert_memory_equal(e.reason.data, known[i].reason, e.reason.len);
        assert_int_equal(e.result.len, known[i].result);
        if (e.result.len) assert_memory_equal(e.result.data, e.result.len > 3 ? "xx" : "ok", 2);
        assert_memory_equal(e.at.point.data, known[i].point, strlen(known[i].point));
        assert_int_equal(e.who.len > 0, who);
        if (!who) assert_int_equal(e.worker.len + e.history.len, 0);
    }
    once__store_close(store);
    once_arena_release(&arena);
    assert_int_equal(ask(path, "SELECT value FROM once_meta WHERE name = 'version'"), ONCE_SQLITE_VERSION);
    assert_int_equal(ask(path, "SELECT count(*) FROM once_letter WHERE key = CAST('dead' AS BLOB) AND history = x''"),
                     !who);
}

static void check_version_3(const char *path)
{
    static const known_entry known[] = {
        {"run", "done", ONCE_STATE_DONE, 1, 0, "", "1", 3},
        {"run", "done-long", ONCE_STATE_DONE, 1, 0, "", "2", 300},
        {"run", "done-third", ONCE_STATE_DONE, 3, 2, "", "3", 0},
        {"run", "rejected", ONCE_STATE_REJECTED, 1, 0, "exit status 64: limit exceeded", "4", 0},
        {"run", "already", ONCE_STATE_ALREADY, 1, 0, "exit status 66", "5", 0},
        {"run", "dead", ONCE_STATE_DEAD, 1, 1, "exit status 65: no such account", "6", 0},
        {"hang", "unknown", ONCE_STATE_UNKNOWN, 1, 0, "ended by signal 9", "7", 0},
        {"slow", "waits", ONCE_STATE_WAITING, 1, 1, "exit status 75: come back later", "8", 0},
    };
    check_known(path, known, sizeof known / sizeof *known, false);
}

static void check_version_4(const char *path)
{
    static const known_entry known[] = {
        {"run", "done", ONCE_STATE_DONE, 1, 0, "", "1", 3},
        {"run", "done-third", ONCE_STATE_DONE, 3, 2, "", "2", 0},
        {"run", "rejected", ONCE_STATE_REJECTED, 1, 0, "exit status 64: limit exceeded", "3", 0},
        {"run", "already", ONCE_STATE_ALREADY, 1, 0, "exit status 66", "4", 0},
        {"run", "dead", ONCE_STATE_DEAD, 1, 1, "exit status 65: no such account", "5", 0},
        {"hang", "unknown", ONCE_STATE_UNKNOWN, 1, 0, "ended by signal 9", "8", 0},
        {"slow", "waits", ONCE_STATE_WAITING, 1, 1, "exit status 75: come back later", "12", 0},
    };
    check_known(path, known, sizeof known / sizeof *known, true);
}

/* What programs of version 4 execute in a transaction between its begin and its end, word for word. */
#define HEAD_GET_4                                                                                                     \
    "SELECT clock_tenths, boot_ms, boot_id, generation, flushed, last_recent, last_run FROM once_head WHERE id = 1"
#define HEAD_SET_4                                                                                                     \
    "UPDATE once_head SET clock_tenths = ?1, boot_ms = ?2, boot_id = ?3, generation = ?4, flushed = ?5, last_recent "  \
    "= ?6, last_run = ?7 WHERE id = 1"
static const char *const writes_4[] = {
    "INSERT INTO once_entry(n, id, state, owned, token, attempt, failures, fingerprint, lane, ord, gap_ms, "
    "remember_ms, flags, run, seen_ms,"
    " changed_ms, due_ms, expires_ms, keep_ms, tenant, consumer, operation, key, place, point, result, reason, who, "
    "worker, history)"
    " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12,"
    " ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28, ?29, ?30)",
    "UPDATE once_entry SET (state, owned, token, attempt, failures, fingerprint, lane, ord, gap_ms,"
    " remember_ms, flags, run, seen_ms, changed_ms, due_ms, expires_ms, keep_ms, tenant, consumer, operation,"
    " key, place, point, result, reason, who, worker, history) = (?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11,"
    " ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28, ?29, ?30) WHERE n = ?1",
    "DELETE FROM once_entry WHERE n = ?1",
    "INSERT OR REPLACE INTO once_body(n, type, headers, body, sent_ms, place, point) VALUES (?1, ?2, ?3, ?4, ?5, ?6, "
    "?7)",
    "DELETE FROM once_body WHERE n = ?1",
    "INSERT INTO once_lane(id, version, expires_ms) VALUES (?1, ?2, ?3) ON CONFLICT(id) DO UPDATE SET"
    " version = excluded.version, expires_ms = excluded.expires_ms",
    "DELETE FROM once_lane WHERE id = ?1",
    "INSERT OR IGNORE INTO once_letter(entry, tenant, consumer, operation, key, kind, reason, attempt, failures,"
    " seen_ms, buried_ms, type, headers, body, sent_ms, place, point, same, history)"
    " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)",
    "DELETE FROM once_letter WHERE id = ?1",
    "INSERT INTO once_audit(time_ms, consumer, who, what, key, letter, note) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    "INSERT INTO once_fact(name, value) VALUES (?1, ?2) ON CONFLICT(name) DO UPDATE SET value = excluded.value",
    "DELETE FROM once_fact WHERE name = ?1",
    "INSERT INTO once_recent(id, records, tails) VALUES (?1, ?2, ?3)",
    "DELETE FROM once_recent WHERE id <= ?1",
    "INSERT INTO once_run(id, level, state, cursor, records, min_keep_ms, max_keep_ms, created_ms, swept_ms)"
    " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    "UPDATE once_run SET level = ?2, state = ?3, cursor = ?4, records = ?5, min_keep_ms = ?6,"
    " max_keep_ms = ?7, created_ms = ?8, swept_ms = ?9 WHERE id = ?1",
    "DELETE FROM once_run WHERE id = ?1",
    "INSERT INTO once_bucket(id, records, tails) VALUES (?1, ?2, ?3)",
    "UPDATE once_bucket SET records = ?2, tails = ?3 WHERE id = ?1",
    "DELETE FROM once_bucket WHERE id = ?1",
    "DELETE FROM once_bucket WHERE id >= ?1 AND id < ?2",
    "INSERT INTO once_filter(id, blocks) VALUES (?1, ?2)",
    "DELETE FROM once_filter WHERE id >= ?1 AND id < ?2",
    "INSERT INTO once_name(name) VALUES (?1)",
};
enum { WRITES_4 = sizeof writes_4 / sizeof *writes_4 };

/* A program of version 4, its statements prepared and used when the tables were its own. */
typedef struct old_program {
    sqlite3 *db;
    sqlite3_stmt *head_get, *head_set, *writes[WRITES_4];
} old_program;

static int step(sqlite3_stmt *stmt)
{
    const int code = sqlite3_step(stmt);
    sqlite3_reset(stmt);
    return code;
}

static void bind_all(sqlite3_stmt *stmt) /* whatever goes into any column */
{
    for (int i = 1; i <= sqlite3_bind_parameter_count(stmt); i++) sqlite3_bind_int(stmt, i, 1000 + i);
}

/* A transaction of it: what it writes, and the head that every one of them writes at last. Whether it could commit. */
static bool old_transaction(old_program *old, sqlite3_stmt *write)
{
    assert_int_equal(sqlite3_exec(old->db, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    const bool wrote = step(write) == SQLITE_DONE && step(old->head_set) == SQLITE_DONE;
    assert_int_equal(sqlite3_exec(old->db, "ROLLBACK", NULL, NULL, NULL), SQLITE_OK);
    return wrote;
}

static void old_open(old_program *old, const char *path)
{
    assert_int_equal(sqlite3_open(path, &old->db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(old->db, HEAD_GET_4, -1, &old->head_get, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(old->db, HEAD_SET_4, -1, &old->head_set, NULL), SQLITE_OK);
    bind_all(old->head_set);
    assert_int_equal(step(old->head_get), SQLITE_ROW);
    for (int i = 0; i < WRITES_4; i++) {
        if (sqlite3_prepare_v2(old->db, writes_4[i], -1, &old->writes[i], NULL) != SQLITE_OK)
            fail_msg("%s: %s", writes_4[i], sqlite3_errmsg(old->db));
        bind_all(old->writes[i]);
        if (!old_transaction(old, old->writes[i])) fail_msg("%s: %s", writes_4[i], sqlite3_errmsg(old->db));
    }
}

static void old_close(old_program *old)
{
    sqlite3_finalize(old->head_get);
    sqlite3_finalize(old->head_set);
    for (int i = 0; i < WRITES_4; i++) sqlite3_finalize(old->writes[i]);
    assert_int_equal(sqlite3_close(old->db), SQLITE_OK);
}

/* A program of version 4 never looks at the version again. One that still runs while the tables are brought up to date
 * must not write another byte: it knows no sums. SQLite prepares its statements anew, and they fail. */
static void f58_a_program_of_version_4_that_still_runs_is_fenced_out(void **state)
{
    (void)state;
    const char *path = path_of("four.db");
    once_backend *store;
    once_error err = {0};
    old_program old;
    copy_fixture(4, path);
    old_open(&old, path);
    assert_int_equal(open_at(path, false, false, &store, &err), ONCE_OK);
    assert_int_equal(step(old.head_get), SQLITE_ERROR); /* so it does not even begin */
    assert_string_equal(sqlite3_errmsg(old.db), "no such table: once_head");
    assert_int_equal(step(old.head_set), SQLITE_ERROR);
    for (int i = 0; i < WRITES_4; i++)
        if (old_transaction(&old, old.writes[i])) fail_msg("it could commit: %s", writes_4[i]);
    old_close(&old);
    once_stats stats;
    assert_int_equal(store->ops->stats(store, ONCE_BYTES("pay"), &stats, &err), ONCE_OK);
    once__store_close(store);
    check_version_4(path);
}

/* And this one looks, as soon as somebody else has written. */
static void f58_a_program_that_still_runs_stops_when_the_tables_are_newer(void **state)
{
    (void)state;
    const char *path = path_of("newer.db");
    once_backend *store;
    once_error err = {0};
    assert_int_equal(open_at(path, true, false, &store, &err), ONCE_OK);
    assert_int_equal(store->ops->fact_set(store, "name", ONCE_BYTES("before"), &err), ONCE_OK);
    sql(path, "UPDATE once_meta SET value = value + 1 WHERE name = 'version'");
    assert_int_equal(store->ops->fact_set(store, "name", ONCE_BYTES("after"), &err), ONCE_E_NEWER);
    assert_non_null(strstr(err.text, path));
    assert_non_null(strstr(err.text, "upgrade once"));
    once__store_close(store);
    assert_int_equal(ask(path, "SELECT value = CAST('before' AS BLOB) FROM once_fact WHERE name = 'name'"), 1);
}

static void count_damage(void *user, const char *text)
{
    (void)text;
    ++*(int *)user;
}

static void f58_version_4_keeps_what_it_knew(void **state)
{
    (void)state;
    const char *path = path_of("four.db");
    copy_fixture(4, path);
    refused(path, false, true, ONCE_E_READONLY, "version 4");
    check_version_4(path);
    check_version_4(path);
}

static void f58_version_5_keeps_what_it_knew(void **state)
{
    (void)state;
    const char *path = path_of("five.db");
    copy_fixture(5, path);
    refused(path, false, true, ONCE_E_READONLY, "version 5");
    check_version_4(path);
    check_version_4(path);
}

/* Its tables have sums, which are not made anew for what was changed. */
static void f55_f58_version_5_is_not_trusted_more_than_before(void **state)
{
    (void)state;
    static const char *const harms[] = {"UPDATE once_meta SET value = zeroblob(16) WHERE name = 'secret'",
                                        "UPDATE once_store SET flushed = flushed + 1",
                                        "UPDATE once_entry SET failures = 7", "DELETE FROM once_entry",
                                        "DELETE FROM once_recent"};
    for (size_t i = 0; i < sizeof harms / sizeof *harms; i++) {
        const char *path = path_of("five.db");
        once_backend *store;
        once_error err = {0};
        once_stats stats;
        int damages = 0;
        copy_fixture(5, path);
        sql(path, harms[i]);
        int rc = open_at(path, false, false, &store, &err);
        if (rc == ONCE_OK) {
            rc = store->ops->stats(store, ONCE_BYTES("pay"), &stats, &err);
            if (rc == ONCE_OK) rc = store->ops->verify(store, count_damage, &damages, &err);
            if (damages) rc = ONCE_E_CORRUPT;
            once__store_close(store);
        }
        if (rc != ONCE_E_CORRUPT) fail_msg("not noticed: %s", harms[i]);
    }
}

/* What version 4 wrote. Rows that wait without a body get the moment when they are forgotten; attempts that may have
 * happened are seen in the history. */
static void f58_version_4_expires_what_waits_without_a_body(void **state)
{
    (void)state;
    const char *path = path_of("four.db");
    once_backend *store;
    once_error err = {0};
    once_arena arena = {0};
    copy_fixture(4, path);
    refused(path, false, true, ONCE_E_READONLY, "version 4");
    sql(path, "UPDATE once_entry SET owned = 0, lane = NULL, remember_ms = 1000, changed_ms = 5000 WHERE key = "
              "CAST('waits' AS BLOB);"
              "DELETE FROM once_body WHERE n = (SELECT n FROM once_entry WHERE key = CAST('waits' AS BLOB))");
    assert_int_equal(open_at(path, false, false, &store, &err), ONCE_OK);
    once__store_close(store);
    assert_int_equal(ask(path, "SELECT value FROM once_meta WHERE name = 'version'"), ONCE_SQLITE_VERSION);
    assert_int_equal(ask(path, "SELECT expires_ms FROM once_entry WHERE key = CAST('waits' AS BLOB)"), 6000);
    assert_int_equal(ask(path, "SELECT flags & 32 FROM once_entry WHERE key = CAST('waits' AS BLOB)"), 0);
    assert_int_equal(ask(path, "SELECT flags & 32 FROM once_entry WHERE key = CAST('unknown' AS BLOB)"), 32);
    assert_int_equal(open_at(path, false, false, &store, &err), ONCE_OK);
    assert_int_equal(entry_of(store, "slow", "waits", &arena).state, ONCE_STATE_ABSENT);
    assert_int_equal(entry_of(store, "run", "done-third", &arena).attempt, 3);
    once_sweep_result swept;
    assert_int_equal(store->ops->sweep(store, 100, &swept, &err), ONCE_OK);
    once__store_close(store);
    once_arena_release(&arena);
    assert_int_equal(ask(path, "SELECT count(*) FROM once_entry WHERE key = CAST('waits' AS BLOB)"), 0);
}

static void f58_version_3_gets_who_and_history(void **state)
{
    (void)state;
    const char *path = path_of("three.db");
    copy_fixture(3, path);
    refused(path, false, true, ONCE_E_READONLY, "version 3");
    check_version_3(path);
    check_version_3(path);

    /* From here on both are kept, in rows and in records, beside records of the old form. */
    once_backend *store;
    once_error err = {0};
    once_arena arena = {0};
    bool done = false;
    assert_int_equal(open_at(path, false, false, &store, &err), ONCE_OK);
    const once_entry unknown = entry_of(store, "hang", "unknown", &arena);
    assert_int_equal(store->ops->resolve(store, unknown.id, ONCE_RETRY, ONCE_BYTES("again"), &done, &err), ONCE_OK);
    once_taken both[2];
    size_t n, i = 0;
    assert_int_equal(
        store->ops->take(store, ONCE_BYTES("pay"), (once_token){1, 1}, false, 1000, 2, NULL, both, &n, &arena, &err),
        ONCE_OK);
    while (i < n && !once_hash_equal(both[i].request.id, unknown.id))
        i++; /* the other one that waits is due by now, or not */
    assert_true(i < n);
    both[i].request.remember_ms = ONCE_FOREVER;
    const once_settlement settlement = {.request = &both[i].request, .outcome = ONCE_DONE};
    assert_int_equal(store->ops->settle(store, &settlement, 1, &done, &err), ONCE_OK);
    assert_true(done);
    once__store_close(store);
    assert_int_equal(open_at(path, false, false, &store, &err), ONCE_OK);
    const once_entry after = entry_of(store, "hang", "unknown", &arena);
    assert_int_equal(after.state, ONCE_STATE_DONE);
    assert_int_equal(after.who.len, 0); /* nobody knows, and nobody pretends to */
    assert_true(after.history.len > 2);
    assert_memory_equal(after.history.data, "2 ", 2);
    assert_int_equal(entry_of(store, "run", "done-long", &arena).result.len, 300);
    once__store_close(store);
    once_arena_release(&arena);
}

/* Row 13: killed in the middle of a migration, at each of its failpoints. */
static void kill_during_migration(int version, int64_t rows, void (*check)(const char *), int failpoints)
{
    int killed = 0;
    for (int n = 1; n <= 5; n++) {
        const char *path = path_of("kill.db");
        copy_fixture(version, path);
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            char spec[50], why[100];
            once_backend *store;
            snprintf(spec, sizeof spec, "migrate_between:kill:%d", n);
            if (!once_failpoints_arm(spec, why, sizeof why)) _exit(9);
            _exit(open_at(path, false, false, &store, NULL) == ONCE_OK ? 0 : 8);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        if (WIFSIGNALED(status)) {
            killed++;
            assert_int_equal(ask(path, "SELECT value FROM once_meta WHERE name = 'version'"),
                             version); /* the old one, whole */
            assert_int_equal(ask(path, "SELECT count(*) FROM once_entry"), rows);
        }
        check(path);
        unlink(path);
    }
    assert_true(killed >= failpoints);
}

static void f13_kill_during_migration(void **state)
{
    (void)state;
    kill_during_migration(0, 103, check_migrated, 3);
    kill_during_migration(3, 3, check_version_3, 1);
    kill_during_migration(4, 4, check_version_4, 1);
}

/* ---- files that are not what they should be ---- */

static void write_file(const char *path, const void *data, size_t len)
{
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(data, 1, len, out), len);
    assert_int_equal(fclose(out), 0);
}

static void f52_not_ours(void **state)
{
    (void)state;
    char text[8192];
    memset(text, 'x', sizeof text);
    write_file(path_of("text.txt"), text, sizeof text);
    refused(path_of("text.txt"), true, false, ONCE_E_NOT_OURS, "not an SQLite database");
    sql(path_of("foreign.db"), "CREATE TABLE once_meta(id INTEGER PRIMARY KEY, thing TEXT)");
    refused(path_of("foreign.db"), true, false, ONCE_E_NOT_OURS, "not ours");
    sql(path_of("foreign2.db"),
        "CREATE TABLE once_meta(name, value); INSERT INTO once_meta VALUES ('format', 'twice')");
    refused(path_of("foreign2.db"), true, false, ONCE_E_NOT_OURS, "not ours");
}

static void f52_paths(void **state)
{
    (void)state;
    refused(path_of("no/such/folder/x.db"), true, false, ONCE_E_CONFIG, "folder");
    refused(folder, true, false, ONCE_E_CONFIG, "folder");
    once_backend *store;
    once_error err = {0};
    assert_int_equal(open_at("", true, false, &store, &err), ONCE_E_CONFIG);
    assert_int_equal(open_at(":memory:", true, false, &store, &err), ONCE_E_CONFIG);
    assert_non_null(strstr(err.text, "memory:"));
}

/* Root may write everywhere, so a child gives its rights away. */
static void f52_permissions(void **state)
{
    (void)state;
    const char *path = path_of("mine.db");
    once_backend *store;
    once_error err = {0};
    assert_int_equal(open_at(path, true, false, &store, &err), ONCE_OK);
    once__store_close(store);
    chmod(folder, 0755);
    for (int mode = 0; mode <= 0444; mode += 0444) {
        chmod(path, (mode_t)mode);
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            if (geteuid() == 0 && (setgid(65534) || setuid(65534))) _exit(0);
            const int rc = open_at(path, true, false, &store, &err);
            _exit(rc == (mode ? ONCE_E_READONLY : ONCE_E_DENIED) && strstr(err.text, path) ? 0 : 1);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
}

/* Row 55: a page of garbage or a missing tail is an error, never "not seen". */
static void f55_damage_is_noticed(void **state)
{
    (void)state;
    const char *path = path_of("damaged.db");
    copy_fixture(0, path);
    check_migrated(path);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(truncate(path, info.st_size / 2 / 4096 * 4096), 0);
    once_backend *store = NULL;
    once_error err = {0};
    int rc = open_at(path, false, false, &store, &err);
    for (unsigned n = 1; rc == ONCE_OK && n <= 100; n++) {
        unsigned char id[17];
        once_arena arena = {0};
        once_entry entry = {.state = ONCE_STATE_ABSENT};
        snprintf((char *)id, sizeof id, "%centry--%08u", (char)n, n);
        rc = store->ops->get(store, once__id_read(id), &entry, &arena, &err);
        if (rc == ONCE_OK) assert_int_not_equal(entry.state, ONCE_STATE_ABSENT);
        once_arena_release(&arena);
    }
    assert_int_equal(rc, ONCE_E_CORRUPT);
    assert_non_null(strstr(err.text, path));
    once__store_close(rc == ONCE_OK ? NULL : store);

    write_file(path, "SQLite format 3", 16);
    refused(path, false, false, ONCE_E_NOT_OURS, "not an SQLite database");
}

/* ---- two processes ---- */

/* Each child opens at the same moment; the file is new, or old. */
static void open_together(const char *path, bool create)
{
    enum { CHILDREN = 4 };
    pid_t children[CHILDREN];
    int gate[2];
    assert_int_equal(pipe(gate), 0);
    for (int i = 0; i < CHILDREN; i++) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] == 0) {
            char byte;
            once_backend *store;
            once_error err = {0};
            close(gate[1]);
            if (read(gate[0], &byte, 1) != 0) _exit(3); /* ends when the parent closes its end */
            const int rc = open_at(path, create, false, &store, &err);
            if (rc != ONCE_OK) fprintf(stderr, "child: %s\n", err.text);
            _exit(rc == ONCE_OK ? 0 : 1);
        }
    }
    close(gate[0]);
    close(gate[1]);
    for (int i = 0; i < CHILDREN; i++) {
        int status;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_int_equal(status, 0);
    }
}

static void f57_two_make_or_migrate_one_file(void **state)
{
    (void)state;
    for (int round = 0; round < 10; round++) {
        open_together(path_of("together.db"), true);
        assert_int_equal(ask(path_of("together.db"), "SELECT count(*) FROM once_meta"), 4);
        unlink(path_of("together.db"));
        unlink(path_of("together.db-wal"));
        unlink(path_of("together.db-shm"));
        copy_fixture(0, path_of("both.db"));
        open_together(path_of("both.db"), false);
        check_migrated(path_of("both.db"));
    }
}

static const once_scope scope = {.consumer = {"c", 1}, .operation = {"op", 2}};

enum { KEYS = 4000, PER_BATCH = 20 };

/* Claims and settles all keys in batches; every key that it may run makes one row in `effects`. */
static int worker(const char *path, uint64_t who)
{
    static const once_settled_limits tiny = {
        .recent_records = 200, .recent_bytes = 1 << 20, .level0_bits = 6, .filter_bytes = 1 << 14};
    const once_store_options options = {.size = sizeof options};
    once_backend *store;
    once_error err = {0};
    once_stmt *insert;
    if (once__sqlite_store_open(path, &options, &tiny, &store, &err) != ONCE_OK) goto failed;
    if (once_db_prepare(store->ops->db(store), ONCE_BYTES("INSERT INTO effects VALUES (?1, ?2)"), &insert, &err) !=
        ONCE_OK)
        goto failed;
    once_arena arena = {0};
    for (uint64_t turn = 0; turn < KEYS; turn += PER_BATCH) {
        const uint64_t first = (turn + who * KEYS / 3) % KEYS / PER_BATCH * PER_BATCH; /* each begins elsewhere */
        once_request requests[PER_BATCH];
        const once_request *list[PER_BATCH];
        once_decision decisions[PER_BATCH];
        once_settlement settlements[PER_BATCH];
        bool applied[PER_BATCH];
        size_t n = 0;
        once_arena_reset(&arena);
        for (uint64_t i = 0; i < PER_BATCH; i++) {
            uint64_t seed = first + i;
            const uint64_t a = test_random(&seed);
            requests[i] = (once_request){.scope = &scope,
                                         .key = {"k", 1},
                                         .id = {a, test_random(&seed)},
                                         .token = {who, first + i + 1},
                                         .lease_ms = 60000,
                                         .remember_ms = ONCE_FOREVER,
                                         .sent_ms = ONCE_NO_TIME,
                                         .run = who,
                                         .at = {{"p", 1}, {"q", 1}}};
            list[i] = &requests[i];
        }
        if (store->ops->begin(store, &err) != ONCE_OK) goto failed;
        if (store->ops->claim(store, list, PER_BATCH, decisions, &arena, &err) != ONCE_OK) goto failed;
        for (uint64_t i = 0; i < PER_BATCH; i++) {
            if (decisions[i].answer == ONCE_ANSWER_DUPLICATE) continue;
            if (decisions[i].answer != ONCE_ANSWER_RUN) goto failed;
            int64_t rows;
            const once_value values[] = {{.type = ONCE_VALUE_INTEGER, .integer = (int64_t)(first + i)},
                                         {.type = ONCE_VALUE_INTEGER, .integer = (int64_t)who}};
            if (once_stmt_run(insert, values, 2, &rows, NULL) != ONCE_OK) goto failed;
            settlements[n++] = (once_settlement){.request = &requests[i], .outcome = ONCE_DONE};
        }
        if (n && store->ops->settle(store, settlements, n, applied, &err) != ONCE_OK) goto failed;
        if (store->ops->commit(store, &err) != ONCE_OK) goto failed;
        usleep(500); /* let the others in */
    }
    once_arena_release(&arena);
    once_stmt_free(insert);
    once__store_close(store);
    return 0;
failed:
    fprintf(stderr, "worker %d: %s\n", (int)who, err.text);
    return 1;
}

static void f57_two_processes_one_effect_each(void **state)
{
    (void)state;
    const char *path = path_of("shared.db");
    once_backend *store;
    once_error err = {0};
    assert_int_equal(open_at(path, true, false, &store, &err), ONCE_OK);
    assert_int_equal(
        once_db_script(store->ops->db(store), ONCE_BYTES("CREATE TABLE effects(n INTEGER, who INTEGER)"), &err),
        ONCE_OK);
    once__store_close(store);
    pid_t children[3];
    for (int i = 0; i < 3; i++) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] == 0) _exit(worker(path, (uint64_t)i + 1));
    }
    for (int i = 0; i < 3; i++) {
        int status;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(ask(path, "SELECT count(*) FROM effects"), KEYS);
    assert_int_equal(ask(path, "SELECT count(DISTINCT n) FROM effects"), KEYS);
    assert_int_equal(ask(path, "SELECT count(DISTINCT who) FROM effects"), 3); /* they did work at the same time */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_new_file, setup, teardown),
        cmocka_unit_test_setup_teardown(test_users_own_file_is_left_as_it_is, setup, teardown),
        cmocka_unit_test_setup_teardown(test_schema_text_is_the_schema, setup, teardown),
        cmocka_unit_test_setup_teardown(every_question_has_its_index, setup, teardown),
        cmocka_unit_test_setup_teardown(equals_of_a_lane_are_found_by_their_index, setup, teardown),
        cmocka_unit_test_setup_teardown(f58_older_is_migrated, setup, teardown),
        cmocka_unit_test_setup_teardown(f58_newer_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(f58_version_5_keeps_what_it_knew, setup, teardown),
        cmocka_unit_test_setup_teardown(f55_f58_version_5_is_not_trusted_more_than_before, setup, teardown),
        cmocka_unit_test_setup_teardown(f58_version_2_gets_its_audit, setup, teardown),
        cmocka_unit_test_setup_teardown(f58_f86_lanes_of_version_4_do_not_know_who_settled, setup, teardown),
        cmocka_unit_test_setup_teardown(f58_version_3_gets_who_and_history, setup, teardown),
        cmocka_unit_test_setup_teardown(f58_version_4_keeps_what_it_knew, setup, teardown),
        cmocka_unit_test_setup_teardown(f58_a_program_of_version_4_that_still_runs_is_fenced_out, setup, teardown),
        cmocka_unit_test_setup_teardown(f58_a_program_that_still_runs_stops_when_the_tables_are_newer, setup, teardown),
        cmocka_unit_test_setup_teardown(f58_version_4_expires_what_waits_without_a_body, setup, teardown),
        cmocka_unit_test_setup_teardown(f13_kill_during_migration, setup, teardown),
        cmocka_unit_test_setup_teardown(f52_not_ours, setup, teardown),
        cmocka_unit_test_setup_teardown(f52_paths, setup, teardown),
        cmocka_unit_test_setup_teardown(f52_permissions, setup, teardown),
        cmocka_unit_test_setup_teardown(f55_damage_is_noticed, setup, teardown),
        cmocka_unit_test_setup_teardown(f57_two_make_or_migrate_one_file, setup, teardown),
        cmocka_unit_test_setup_teardown(f57_two_processes_one_effect_each, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
