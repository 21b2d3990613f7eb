#include "peers.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "db/sqlite/sqlite.h"
#include "process.h"
#include "store/sqlite/schema.h"

#include "base/banned.h"

#define BUSY_MS 10000

enum { SQL_BEGIN, SQL_COMMIT, SQL_NOTE, SQL_INSERT, SQL_UPDATE, STATEMENTS };

/* No rowid: one B-tree instead of two, the better choice for the peer. */
#define NOTES_TABLE "CREATE TABLE processed_messages(id TEXT PRIMARY KEY, processed_ms INTEGER NOT NULL) WITHOUT ROWID"

static const char *const statement_sql[STATEMENTS] = {
    [SQL_BEGIN] = "BEGIN IMMEDIATE",
    [SQL_COMMIT] = "COMMIT",
    [SQL_NOTE] = "INSERT INTO processed_messages(id, processed_ms) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
    [SQL_INSERT] = "INSERT INTO payments(id, order_id, amount) VALUES (?1, ?2, ?3)",
    [SQL_UPDATE] = "UPDATE orders SET paid = paid + ?1, last_amount = ?1 WHERE id = ?2",
};

static once_sqlite_db *open_as_the_store_does(const char *path, bool create)
{
    once_sqlite_db *db;
    once_error err;
    const once_sqlite_options options = {.create = create, .busy_ms = BUSY_MS};
    if (once__sqlite_open(path, &options, &db, &err) != ONCE_OK) bench_die(err.text);
    if (once__sqlite_settings(db, once_env_real(), false, BUSY_MS, &err) != ONCE_OK) bench_die(err.text);
    return db;
}

static void exec(once_sqlite_db *db, const char *sql)
{
    once_error err;
    if (once__sqlite_exec(db, sql, &err) != ONCE_OK) bench_die(err.text);
}

static int64_t ask(once_sqlite_db *db, const char *sql)
{
    once_error err;
    int64_t answer;
    if (once__sqlite_integer(db, sql, 0, &answer, &err) != ONCE_OK) bench_die(err.text);
    return answer;
}

static void step(sqlite3_stmt *stmt)
{
    const int code = sqlite3_step(stmt);
    if (code != SQLITE_DONE && code != SQLITE_ROW) bench_die(sqlite3_errmsg(sqlite3_db_handle(stmt)));
    sqlite3_reset(stmt);
}

static sqlite3_stmt *prepare(once_sqlite_db *db, const char *sql)
{
    once_error err;
    sqlite3_stmt *stmt;
    if (once__sqlite_prepare(db, sql, &stmt, &err) != ONCE_OK) bench_die(err.text);
    return stmt;
}

void peer_make_tables(const char *path, peer_check check)
{
    char sql[1000];
    once_sqlite_db *db = open_as_the_store_does(path, true);
    snprintf(sql, sizeof sql,
             "BEGIN;"
             "CREATE TABLE payments(id TEXT PRIMARY KEY, order_id INTEGER NOT NULL, amount INTEGER NOT NULL%s);"
             "CREATE TABLE orders(id INTEGER PRIMARY KEY, status TEXT NOT NULL, paid INTEGER NOT NULL, last_amount "
             "INTEGER%s);"
             "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d)"
             " INSERT INTO orders SELECT i, 'open', 0, 0 FROM n;"
             "COMMIT",
             check == CHECK_FIRST ? " CHECK (amount >= 0)" : "",
             check == CHECK_SECOND ? " CHECK (last_amount >= 0)" : "", WORKLOAD_ORDERS);
    exec(db, sql);
    once__sqlite_close(db);
}

static void run_effect(sqlite3_stmt *const *sql, const payment *p)
{
    sqlite3_bind_text(sql[SQL_INSERT], 1, p->id, sizeof p->id, SQLITE_STATIC);
    sqlite3_bind_int64(sql[SQL_INSERT], 2, p->order_id);
    sqlite3_bind_int64(sql[SQL_INSERT], 3, p->amount);
    step(sql[SQL_INSERT]);
    sqlite3_bind_int64(sql[SQL_UPDATE], 1, p->amount);
    sqlite3_bind_int64(sql[SQL_UPDATE], 2, p->order_id);
    step(sql[SQL_UPDATE]);
}

/* True: it was new. */
static bool note(once_sqlite_db *db, sqlite3_stmt *const *sql, const payment *p, int64_t now_ms)
{
    sqlite3_bind_text(sql[SQL_NOTE], 1, p->id, sizeof p->id, SQLITE_STATIC);
    sqlite3_bind_int64(sql[SQL_NOTE], 2, now_ms);
    step(sql[SQL_NOTE]);
    return sqlite3_changes64(db->handle) > 0;
}

double peer_run(peer_kind kind, const char *path, const payment *payments, uint64_t n, volatile uint64_t *done)
{
    const double start = bench_now_s();
    const uint64_t batch = kind == PEER_CLASSIC ? 1 : PEER_BATCH_MESSAGES;
    sqlite3_stmt *sql[STATEMENTS] = {NULL};
    once_sqlite_db *db = open_as_the_store_does(path, false);
    if (kind != PEER_EFFECT) exec(db, NOTES_TABLE);
    for (int i = 0; i < STATEMENTS; i++)
        if (i != SQL_NOTE || kind != PEER_EFFECT) sql[i] = prepare(db, statement_sql[i]);

    for (uint64_t at = 0; at < n; at += batch) {
        const uint64_t end = at + batch < n ? at + batch : n;
        const int64_t now_ms = bench_wall_ms();
        step(sql[SQL_BEGIN]);
        for (uint64_t i = at; i < end; i++) {
            const bool fresh = kind == PEER_EFFECT ? !payments[i].duplicate : note(db, sql, &payments[i], now_ms);
            if (fresh) run_effect(sql, &payments[i]);
        }
        step(sql[SQL_COMMIT]);
        *done = end;
    }
    for (int i = 0; i < STATEMENTS; i++) sqlite3_finalize(sql[i]);
    once__sqlite_close(db);
    return bench_now_s() - start;
}

static once_bytes map_text(const char *path)
{
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0) bench_die_errno("cannot open the messages");
    const char *text = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
    if (text == MAP_FAILED) bench_die_errno("cannot map the messages");
    close(fd);
    return (once_bytes){text, (size_t)st.st_size};
}

/* Parses a line and looks for its key. */
static void look_up_line(once_json *json, const once_pointer *pointer, sqlite3_stmt *find, once_bytes line)
{
    if (once_json_parse(json, line, NULL, NULL) != ONCE_OK) bench_die("a message is malformed");
    const once_bytes key = once_json_find(json, pointer).raw;
    sqlite3_bind_text(find, 1, key.data, (int)key.len, SQLITE_STATIC);
    if (sqlite3_step(find) != SQLITE_ROW) bench_die("a key is missing that must be there");
    sqlite3_reset(find);
}

double peer_look_up(const char *path, const char *messages_path, volatile uint64_t *done)
{
    once_json json;
    once_arena arena;
    once_pointer pointer;
    once_json_init(&json);
    once_arena_init(&arena);
    if (once_pointer_parse(&arena, ONCE_BYTES("/payment_id"), &pointer, NULL) != ONCE_OK)
        bench_die("the pointer was refused");
    const once_bytes text = map_text(messages_path);

    const double start = bench_now_s();
    once_sqlite_db *db = open_as_the_store_does(path, false);
    sqlite3_stmt *begin = prepare(db, "BEGIN"), *commit = prepare(db, statement_sql[SQL_COMMIT]);
    sqlite3_stmt *find = prepare(db, "SELECT processed_ms FROM processed_messages WHERE id = ?1");
    const char *at = text.data, *end = text.data + text.len;
    for (uint64_t n = 0; at < end; n++) {
        if (n % PEER_BATCH_MESSAGES == 0) step(begin);
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        const char *stop = newline ? newline : end;
        look_up_line(&json, &pointer, find, (once_bytes){at, (size_t)(stop - at)});
        at = stop + 1;
        if (at >= end || n % PEER_BATCH_MESSAGES == PEER_BATCH_MESSAGES - 1) step(commit);
        *done = n + 1;
    }
    sqlite3_finalize(begin);
    sqlite3_finalize(commit);
    sqlite3_finalize(find);
    once__sqlite_close(db);
    const double seconds = bench_now_s() - start;
    once_json_release(&json);
    once_arena_release(&arena);
    munmap((void *)(uintptr_t)text.data, text.len);
    return seconds;
}

void peer_verify(const char *path, uint64_t payments, int64_t amount)
{
    once_sqlite_db *db = open_as_the_store_does(path, false);
    const int64_t rows = ask(db, "SELECT count(*) FROM payments");
    const int64_t paid = ask(db, "SELECT sum(paid) FROM orders"), sum = ask(db, "SELECT sum(amount) FROM payments");
    once__sqlite_close(db);
    char text[200];
    snprintf(text, sizeof text, "a database is wrong: %lld payments of %lld, orders hold %lld; expected %llu of %lld",
             (long long)rows, (long long)sum, (long long)paid, (unsigned long long)payments, (long long)amount);
    if (rows != (int64_t)payments || paid != amount || sum != amount) bench_die(text);
}

void peer_describe(const char *path, char *out, size_t len)
{
    once_error err;
    char journal[100];
    once_sqlite_db *db = open_as_the_store_does(path, true);
    if (once_db_describe(&db->db, journal, sizeof journal, &err) != ONCE_OK) bench_die(err.text);
    snprintf(out, len, "SQLite %s, page_size=%lld cache_size=%lld wal_autocheckpoint=%lld %s", sqlite3_libversion(),
             (long long)ask(db, "PRAGMA page_size"), (long long)ask(db, "PRAGMA cache_size"),
             (long long)ask(db, "PRAGMA wal_autocheckpoint"), journal);
    once__sqlite_close(db);
}
