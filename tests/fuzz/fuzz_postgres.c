/* Fault 93: a PostgreSQL server that answers with anything. A real one is asked, and a proxy changes some of its
 * messages as the input says; a store is opened, used and closed (play.h), or statements of a user are prepared and run
 * on a connection of their own.
 *
 * The input begins with which of the two (one byte). Then it is a list of changes: how many messages are right before
 * it (one byte), what is done (one byte), and what that needs. Behind the last change all messages are right. */
#include <dlfcn.h>
#include <endian.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "play.h"
#include "postgres.h"
#include "replyproxy.h"

#ifdef ONCE_WITH_POSTGRES
#include <libpq-fe.h>

#include "db/db.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);

static reply_proxy proxy;
static once_env env;
static char folder[32], schema[40], url[600];

/* --- memory --- */

/* libpq loses results that it has not handed out when a server says what it must not say then. That is not ours; what
 * it has handed out is. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:libpq.so\n"; }

static const PGresult *held[256];

static const PGresult **find_held(const PGresult *result)
{
    size_t i = 0;
    while (i < sizeof held / sizeof *held && held[i] != result) i++;
    CHECK(i < sizeof held / sizeof *held || result);
    return i < sizeof held / sizeof *held ? &held[i] : NULL;
}

PGresult *PQgetResult(PGconn *conn)
{
    static PGresult *(*real)(PGconn *);
    if (!real) real = (PGresult * (*)(PGconn *)) dlsym(RTLD_NEXT, "PQgetResult");
    PGresult *result = real(conn);
    if (result) *find_held(NULL) = result;
    return result;
}

void PQclear(PGresult *result)
{
    static void (*real)(PGresult *);
    if (!real) real = (void (*)(PGresult *))dlsym(RTLD_NEXT, "PQclear");
    const PGresult **at = result ? find_held(result) : NULL;
    if (at) *at = NULL;
    real(result);
}

static bool holds_results(void)
{
    for (size_t i = 0; i < sizeof held / sizeof *held; i++)
        if (held[i]) return true;
    return false;
}

/* --- what is done with the messages --- */

enum { MESSAGE_MAX = 8192, IDLE_MS = 40 }; /* who waits for what does not come any more, waits */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct {
    const uint8_t *at, *end;
    unsigned skip; /* right ones before the next change */
    bool lied;     /* a change may have been taken for right */
    char bytes[2 * MESSAGE_MAX], last[MESSAGE_MAX];
    size_t len, last_len;
} script;

static unsigned next_byte(void) { return script.at < script.end ? *script.at++ : 0; }

static void put(const void *data, size_t len)
{
    if (len > sizeof script.bytes - script.len) len = sizeof script.bytes - script.len;
    memcpy(script.bytes + script.len, data, len);
    script.len += len;
}

static void put_message(char type, const void *data, size_t len)
{
    const uint32_t size = htobe32((uint32_t)len + 4);
    put(&type, 1);
    put(&size, 4);
    put(data, len);
}

static void put_error(char type)
{
    static const char *const states[] = {"42P01", "40001", "57P01", "XX000", "23505", "0A000", "42501",
                                         "26000", "25P02", "53100", "22P02", "3F000", "08P01", "57014"};
    static const char *const severities[] = {"ERROR", "FATAL", "PANIC"};
    char fields[100];
    const int n = snprintf(fields, sizeof fields, "S%s%cV%s%cC%s%cMsaid%c", severities[next_byte() % 3], 0,
                           severities[next_byte() % 3], 0, states[next_byte() % 14], 0, 0);
    put_message(type, fields, (size_t)n + 1);
}

/* One that a server may say, whatever was asked. */
static void put_canned(unsigned which)
{
    static const struct {
        char type;
        const char *data;
        size_t len;
    } canned[] = {
        {'C', "SELECT 0", 9},
        {'C', "COMMIT", 7},
        {'C', "ROLLBACK", 9},
        {'C', "", 1},
        {'Z', "I", 1},
        {'Z', "T", 1},
        {'Z', "E", 1},
        {'I', "", 0},
        {'n', "", 0},
        {'1', "", 0},
        {'2', "", 0},
        {'3', "", 0},
        {'s', "", 0},
        {'D', "\0\0", 2},
        {'T', "\0\0", 2},
        {'t', "\0\0", 2},
        {'G', "\0\0\0", 3},
        {'H', "\0\0\0", 3},
        {'W', "\0\0\0", 3},
        {'c', "", 0},
        {'d', "x", 1},
        {'R', "\0\0\0\0", 4},
        {'R', "\0\0\0\3", 4},
        {'R', "\0\0\0\12", 4},
        {'K', "\0\0\0\1\0\0\0\2", 8},
        {'A', "\0\0\0\1x\0y", 8},
        {'S', "client_encoding\0LATIN1", 23},
        {'D', "\0\1\0\0\0\1x", 7},
        {'D', "\0\1\377\377\377\377", 6},
        {'S',
         "server_version\0"
         "7.3",
         19},
    };
    enum { CANNED = sizeof canned / sizeof *canned };
    put_message(canned[which % CANNED].type, canned[which % CANNED].data, canned[which % CANNED].len);
}

/* A row, or what it is like: one byte of it is another one, or some are not there. */
static void put_damaged(const proxy_reply *right)
{
    const size_t body = right->len - 5;
    char copy[MESSAGE_MAX];
    if (body == 0 || body > sizeof copy) return put(right->data, right->len);
    memcpy(copy, right->data + 5, body);
    const size_t at = (next_byte() << 8 | next_byte()) % body;
    const unsigned how = next_byte();
    size_t len = body;
    if (how % 3 == 0) copy[at] = (char)(how / 3);
    else if (how % 3 == 1) len = at;
    else copy[at] = (char)(copy[at] ^ (1 << (how / 3) % 8));
    put_message(right->data[0], copy, len);
}

static bool change(proxy_reply *reply, unsigned what)
{
    const proxy_reply right = *reply;
    bool goes_on = true;
    script.len = 0;
    atomic_store(&proxy.idle_ms, IDLE_MS);
    if (what < 80) put_canned(what);
    else if (what < 100) put_error(what < 96 ? 'E' : 'N');
    else if (what < 110) put(script.last, script.last_len);
    else if (what < 120) put(right.data, right.len), put(right.data, right.len);
    else if (what < 130) goes_on = right.data[0] != 'Z'; /* not at all; who waits for the end, waits */
    else if (what < 140) put(right.data, right.len / 2), goes_on = false;
    else if (what < 220) put_damaged(&right);
    else {
        const char type = (char)next_byte();
        size_t len = next_byte();
        if (len > (size_t)(script.end - script.at)) len = (size_t)(script.end - script.at);
        put_message(type, script.at, len);
        script.at += len;
    }
    *reply = (proxy_reply){script.bytes, script.len};
    script.lied |= goes_on && script.bytes[0] != 'E';
    return goes_on;
}

static bool hook(void *user, proxy_reply *reply)
{
    bool goes_on = true;
    (void)user;
    pthread_mutex_lock(&lock);
    const proxy_reply right = *reply;
    if (script.at < script.end && script.skip-- == 0) {
        goes_on = change(reply, next_byte());
        script.skip = next_byte() % 64;
    }
    script.last_len = right.len < sizeof script.last ? right.len : 0;
    memcpy(script.last, right.data, script.last_len);
    pthread_mutex_unlock(&lock);
    return goes_on;
}

static bool lied(void)
{
    pthread_mutex_lock(&lock);
    const bool may = script.lied;
    pthread_mutex_unlock(&lock);
    return may;
}

static void begin_script(const uint8_t *data, size_t size)
{
    atomic_store(&proxy.idle_ms, -1);
    pthread_mutex_lock(&lock);
    script.at = data;
    script.end = size ? data + (size < 600 ? size : 600) : data;
    script.lied = false;
    script.last_len = 0;
    script.skip = next_byte() << 1;
    pthread_mutex_unlock(&lock);
}

/* --- what is asked --- */

static bool use_store(play *p)
{
    const once_store_options options = {.size = sizeof options, .create = true, .busy_ms = 100, .env = &env};
    once_error err = {0};
    if (!play_note(p, once__store_open(url, &options, &p->store, &err), &err)) return false;
    play_store(p);
    once__store_close(p->store);
    return true;
}

static void say_fault(play *p, const once_fault *fault)
{
    p->told = true;
    CHECK(fault->kind != ONCE_FAULT_NONE && fault->text[0]);
}

static void use_statement(play *p, once_db *db, once_stmt *stmt)
{
    const once_value values[] = {{.type = ONCE_VALUE_TEXT, .text = ONCE_BYTES("value")},
                                 {.type = ONCE_VALUE_INTEGER, .integer = 7}};
    once_error err = {0};
    once_fault fault = {0};
    int64_t rows = 0;
    bool maybe;
    if (play_is_late(p) || !play_note(p, once_db_begin(db, &err), &err)) return;
    if (once_stmt_params(stmt) > 2) return once_db_rollback(db); /* the server says so */
    if (once_stmt_run(stmt, values, (size_t)once_stmt_params(stmt), &rows, &fault) != ONCE_OK) say_fault(p, &fault);
    else if (once_db_commit(db, &maybe, &fault) != ONCE_OK) say_fault(p, &fault);
    once_db_rollback(db);
}

static void use_database(play *p)
{
    static const atomic_bool stop;
    const once_db_options options = {.env = &env, .consumer = ONCE_BYTES("c"), .stop = &stop};
    once_db *db;
    once_stmt *stmt;
    once_error err = {0};
    char text[400];
    if (!play_note(p, once_db_open(url, &options, &db, &err), &err)) return;
    if (play_note(p, once_db_prepare(db, ONCE_BYTES("INSERT INTO t VALUES (?1, ?2)"), &stmt, &err), &err)) {
        for (int i = 0; i < 3; i++) use_statement(p, db, stmt);
        once_stmt_free(stmt);
    }
    if (!play_is_late(p)) (void)play_note(p, once_db_describe(db, text, sizeof text, &err), &err);
    if (!play_is_late(p)) (void)play_note(p, once_db_identity(db, text, sizeof text, &err), &err);
    once_db_close(db);
}

/* --- the server --- */

static void no_sleep(void *self, int64_t ms) { (void)self, (void)ms; }

/* What a lie made of the tables stays there, and would be all that is met from then on. */
static void make_tables(void)
{
    char sql[300], made[600];
    test_postgres_make(schema, made, sizeof made);
    snprintf(sql, sizeof sql, "CREATE TABLE \"%s\".t(a text, b int)", schema);
    test_postgres_run(sql);
    bool opened = false;
    for (int tries = 0; tries < 3 && !opened; tries++) { /* the proxy may still be about to end what was idle */
        begin_script(NULL, 0);
        play p = play_of(&env, lied);
        opened = use_store(&p);
        once_arena_release(&p.arena);
    }
    CHECK(opened);
}

static void stop(void)
{
    reply_proxy_stop(&proxy);
    rmdir(folder);
    test_postgres_unmake(schema);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    const char *why, *server = test_postgres_url(&why), *host = server ? strstr(server, "host=/") : NULL;
    if (!host) {
        fprintf(stderr, "no PostgreSQL on a socket: %s\n", server ? server : why);
        exit(1);
    }
    host += strlen("host=");
    const int len = (int)strcspn(host, "&");
    snprintf(folder, sizeof folder, "/tmp/once-fuzz-XXXXXX");
    CHECK(mkdtemp(folder));
    proxy = (reply_proxy){.reply_len = postgres_reply_len, .hook = hook, .idle_ms = -1};
    CHECK((size_t)snprintf(proxy.server, sizeof proxy.server, "%.*s/.s.PGSQL.5432", len, host) < sizeof proxy.server);
    snprintf(proxy.path, sizeof proxy.path, "%s/.s.PGSQL.5432", folder);
    snprintf(schema, sizeof schema, "once_fuzz_%d", (int)getpid());
    snprintf(url, sizeof url, "%.*s%s%s&answer_timeout=1&options=-csearch_path%%3D%%22%s%%22", (int)(host - server),
             server, folder, host + len, schema);
    env = *once_env_real();
    env.sleep_ms = no_sleep;
    reply_proxy_start(&proxy);
    atexit(stop);
    make_tables();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { ENOUGH = 100 };
    static unsigned failed; /* in a row */
    if (size == 0) return 0;
    play p = play_of(&env, lied);
    begin_script(data + 1, size - 1);
    if (data[0] % 2) use_database(&p);
    else failed = use_store(&p) ? 0 : failed + 1;
    once_arena_release(&p.arena);
    CHECK(!holds_results());
    begin_script(NULL, 0);
    if (failed >= ENOUGH) make_tables();
    failed %= ENOUGH;
    return 0;
}
#else
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { return (void)data, (void)size, 0; }
#endif
