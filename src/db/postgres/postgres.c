/* A PostgreSQL connection in pipeline mode: connecting, sending, reading, values in binary form, and what a SQLSTATE
 * means.
 *
 * Invariants
 *   - `pending` counts what was sent in this round and not read; between rounds it is 0.
 *   - What is presumed (`rides`) was sent before that, and is read before that.
 *   - A round that failed has been read to its Sync, so the connection can be used again (for ROLLBACK), or it was
 *   dropped. */
#include "db/postgres/postgres.h"

#include <assert.h>
#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"

#include "base/banned.h"

enum { ANSWER_MS_DEFAULT = 10000, UNSENT_MAX = 64 << 10, SOME = 128 };

/* ---- what a SQLSTATE means ---- */

static bool starts(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }

int once__pg_status(const char *state)
{
    static const struct {
        const char *state;
        int status;
    } known[] = {
        {"08", ONCE_E_UNAVAILABLE},
        {"57P", ONCE_E_UNAVAILABLE},   /* shut down, crashed, starting */
        {"57014", ONCE_E_ABORTED},     /* cancelled: statement_timeout, or an operator */
        {"25P03", ONCE_E_UNAVAILABLE}, /* idle_in_transaction_session_timeout */
        {"40", ONCE_E_ABORTED},        /* serialization, deadlock */
        {"25P02", ONCE_E_ABORTED},
        {"55P03", ONCE_E_BUSY},
        {"53100", ONCE_E_FULL},
        {"53200", ONCE_E_NOMEM},
        {"53", ONCE_E_UNAVAILABLE}, /* too many connections */
        {"42501", ONCE_E_DENIED},
        {"28", ONCE_E_DENIED},
        {"3D", ONCE_E_SCHEMA},
        {"3F", ONCE_E_SCHEMA},
        {"25006", ONCE_E_READONLY},
        {"26", ONCE_E_ABORTED},    /* a prepared statement that the server does not know: a pooler in between */
        {"42P05", ONCE_E_ABORTED}, /* or one that it knows, and nobody here has prepared */
        {"0A000", ONCE_E_ABORTED}, /* "cached plan must not change result type": prepared anew after a reconnect */
        {"42", ONCE_E_SCHEMA},
        {"22", ONCE_E_MESSAGE},
        {"23", ONCE_E_MESSAGE},
        {"44", ONCE_E_MESSAGE},
        {"P0", ONCE_E_MESSAGE}, /* RAISE EXCEPTION */
        {"21", ONCE_E_MESSAGE},
        {"58", ONCE_E_IO},
        {"XX001", ONCE_E_CORRUPT},
        {"XX002", ONCE_E_CORRUPT},
        {"XX", ONCE_E_IO},
    };
    if (!state || !state[0]) return ONCE_E_UNAVAILABLE;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (starts(state, known[i].state)) return known[i].status;
    return ONCE_E_MESSAGE;
}

static const char *advice(int status)
{
    switch (status) {
    case ONCE_E_FULL: return "free some space on the server";
    case ONCE_E_READONLY: return "connect to the primary; target_session_attrs=read-write finds it";
    case ONCE_E_DENIED: return "give this role what it needs";
    case ONCE_E_UNAVAILABLE: return "nothing is fetched or acknowledged until it is back";
    case ONCE_E_CORRUPT: return "restore it from a backup";
    case ONCE_E_IO: return "look into the server's log before going on";
    default: return NULL;
    }
}

/* One line; libpq's texts end with a newline and may have more. */
static void first_line(const char *from, char *out, size_t size)
{
    const size_t len = strcspn(from ? from : "", "\n");
    snprintf(out, size, "%.*s", (int)(len < 300 ? len : 300), from ? from : "");
}

/* A transaction that wants to write was refused before it did anything. Texts are translated, the name of the function
 * is not. */
static bool is_standby(const char *state, const PGresult *result)
{
    const char *function = result ? PQresultErrorField(result, PG_DIAG_SOURCE_FUNCTION) : NULL;
    return state && strcmp(state, "0A000") == 0 && function && strcmp(function, "call_bool_check_hook") == 0;
}

#define NO_TABLES                                                                                                      \
    "the store's tables are gone (dropped, another database in its place, or a restore that goes on); nothing is "     \
    "fetched or acknowledged"                                                                                          \
    " until they are back: restore them, or stop this worker"

static bool has_no_tables(const char *state, const char *what)
{
    return strcmp(state, "3F000") == 0 || (strcmp(state, "42P01") == 0 && strstr(what, "once_"));
}

int once__pg_fail(once_pg *pg, const PGresult *result, once_error *err)
{
    char what[320];
    const char *state = result ? PQresultErrorField(result, PG_DIAG_SQLSTATE) : NULL;
    const char *message = result ? PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY) : NULL;
    int status = once__pg_status(state);
    once__pg_heed_state(pg, state);
    if (state && starts(state, "23505")) { /* two made the same row: the other one was faster */
        status = ONCE_E_ABORTED;
    } else if (status == ONCE_E_MESSAGE) { /* a statement of ours: its tables are not as they should be */
        status = ONCE_E_SCHEMA;
    }
    if (is_standby(state, result)) {
        status = ONCE_E_UNAVAILABLE;
        return once_fail(err, status, "%s: " ONCE_PG_STANDBY, pg->where);
    }
    if (pg->effects && state && (strcmp(state, "25P01") == 0 || strcmp(state, "3B001") == 0)) /* ours would be there */
        return once_fail(err, ONCE_E_UNSURE,
                         "%s: a statement of the effects has ended their transaction, and it is not known what of it "
                         "was committed; look at"
                         " the data, and let no statement or function end a transaction",
                         pg->where);
    if (!message)
        message = result           ? PQresultErrorMessage(result)
                  : pg->silence[0] ? pg->silence
                  : pg->conn       ? PQerrorMessage(pg->conn)
                                   : "";
    first_line(message, what, sizeof what);
    const char *refused = once__pg_pooler_refuses(what);
    if (refused) return once_fail(err, ONCE_E_CONFIG, "%s: %s; %s", pg->where, what, refused);
    const char *hint = pg->schema && state && has_no_tables(state, what) ? NO_TABLES : advice(status);
    return once_fail(err, status, "%s: %s%s%s", pg->where, what[0] ? what : "the connection was lost", hint ? "; " : "",
                     hint ? hint : "");
}

/* ---- connection ---- */

/* libpq refuses what it does not know, so our own words are taken out of the URL. False: it is not there; otherwise its
 * value, which is empty when it is too long. */
static bool cut_word(char *url, const char *word, char *out, size_t size)
{
    char *at = strchr(url, '?');
    while (at && !(starts(at + 1, word) && at[1 + strlen(word)] == '=')) at = strchr(at + 1, '&');
    if (!at) return false;
    const char *value = at + strlen(word) + 2;
    const size_t len = strcspn(value, "&");
    snprintf(out, size, "%.*s", len < size ? (int)len : 0, value);
    if (value[len]) memmove(at + 1, value + len + 1, strlen(value + len + 1) + 1);
    else *at = '\0';
    return true;
}

/* ?answer_timeout=SECONDS */
static bool cut_answer_timeout(char *url, int64_t *answer_ms)
{
    char text[12], *end;
    if (!cut_word(url, "answer_timeout", text, sizeof text)) return true;
    const long seconds = strtol(text, &end, 10);
    if (end == text || *end || seconds < 0 || seconds > 86400) return false;
    *answer_ms = seconds * 1000;
    return true;
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
}

/* ?schema=NAME, without anything that would have to be quoted in a URL. */
static bool cut_schema(char *url, char out[ONCE_PG_NAME])
{
    if (!cut_word(url, "schema", out, ONCE_PG_NAME)) return true;
    size_t n = 0;
    while (out[n] != '.' && (is_word(out[n]) || out[n] == '-')) n++;
    return n > 0 && out[n] == '\0';
}

/* A password with '@' or '/' in it, written as it is, ends up in the host, the port or the database: whatever libpq
 * says then shows it. */
static bool is_misread(const PQconninfoOption *options)
{
    bool misread = false;
    for (; options->keyword; options++) {
        const char *value = options->val ? options->val : "";
        if (strcmp(options->keyword, "port") == 0) misread |= value[strspn(value, "0123456789,")] != '\0';
        if (strcmp(options->keyword, "host") == 0 || strcmp(options->keyword, "dbname") == 0)
            misread |= strchr(value, '@') != NULL;
    }
    return misread;
}

int once__pg_new(const char *rest, const once_env *env, once_bytes consumer, once_patience patience, once_pg **out,
                 once_error *err)
{
    once_pg *pg = calloc(1, sizeof *pg);
    if (!pg) return once_no_memory(err, "for PostgreSQL");
    pg->db.ops = &once__pg_ops;
    pg->env = env;
    pg->patience = patience;
    pg->answer_ms = ANSWER_MS_DEFAULT;
    snprintf(pg->application, sizeof pg->application, "once%s%.*s", consumer.len ? ":" : "",
             consumer.len < 58 ? (int)consumer.len : 58, consumer.len ? consumer.data : "");
    once_buf_init(&pg->values, (size_t)1 << 30);
    once_buf_init(&pg->begun, 1 << 20);
    const size_t size = strlen(rest) + sizeof "postgresql:";
    pg->conninfo = malloc(size);
    if (!pg->conninfo) {
        free(pg);
        return once_no_memory(err, "for PostgreSQL");
    }
    snprintf(pg->conninfo, size, "postgresql:%s", rest);
    snprintf(pg->where, sizeof pg->where, "postgres");
    if (!cut_answer_timeout(pg->conninfo, &pg->answer_ms)) {
        once__pg_free(pg);
        return once_fail(err, ONCE_E_CONFIG,
                         "store 'postgres:...': answer_timeout is a number of seconds, 0 to 86400; 0 waits for ever");
    }
    if (!cut_schema(pg->conninfo, pg->tables_in)) {
        once__pg_free(pg);
        return once_fail(err, ONCE_E_CONFIG,
                         "store 'postgres:...': schema=NAME has letters, digits, '_' and '-'; others can be named with "
                         "?options=-csearch_path%%3Dname");
    }
    char *why = NULL;
    PQconninfoOption *options = PQconninfoParse(pg->conninfo, &why);
    if (!options) {
        once_fail(err, ONCE_E_CONFIG, "'postgres:...' cannot be read; write postgres://user@host:port/database");
        PQfreemem(why); /* may show the password */
        once__pg_free(pg);
        return ONCE_E_CONFIG;
    }
    const bool misread = is_misread(options);
    PQconninfoFree(options);
    if (misread) {
        once__pg_free(pg);
        return once_fail(err, ONCE_E_CONFIG,
                         "'postgres:...' cannot be read; write '@', ':' and '/' in a user or password as %%40, %%3A "
                         "and %%2F, and a number as port");
    }
    *out = pg;
    return ONCE_OK;
}

void once__pg_say_where(once_pg *pg, PGconn *conn)
{
    const char *host = PQhost(conn), *database = PQdb(conn);
    snprintf(pg->where, sizeof pg->where, "postgres '%.80s/%.60s'", host ? host : "", database ? database : "");
}

int once__pg_borrow(PGconn *conn, const once_env *env, once_pg **out, once_error *err)
{
    once_pg *pg = calloc(1, sizeof *pg);
    if (!pg) return once_no_memory(err, "for PostgreSQL");
    *pg = (once_pg){.db.ops = &once__pg_ops, .env = env, .conn = conn, .borrowed = true, .connections = 1};
    once_buf_init(&pg->values, (size_t)1 << 30);
    once_buf_init(&pg->begun, 1 << 20);
    once__pg_say_where(pg, conn);
    *out = pg;
    return ONCE_OK;
}

int once__pg_enter(once_pg *pg, once_error *err)
{
    if (!once__pg_alive(pg)) return once_fail(err, ONCE_E_UNAVAILABLE, "%s: the connection was lost", pg->where);
    if (!pg->borrowed) return ONCE_OK;
    switch (PQtransactionStatus(pg->conn)) {
    case PQTRANS_IDLE:
    case PQTRANS_INTRANS: break;
    case PQTRANS_INERROR:
        return once_fail(err, ONCE_E_ABORTED, "%s: the transaction has failed; roll it back", pg->where);
    default: return once_fail(err, ONCE_E_USAGE, "%s: a statement is still running on the connection", pg->where);
    }
    if (!PQenterPipelineMode(pg->conn))
        return once_fail(err, ONCE_E_USAGE, "%s: results are still to be read on the connection", pg->where);
    return ONCE_OK;
}

void once__pg_leave(once_pg *pg)
{
    if (pg->borrowed && once__pg_alive(pg)) PQexitPipelineMode(pg->conn);
}

void once__pg_drop(once_pg *pg)
{
    if (pg->conn && !pg->borrowed) PQfinish(pg->conn);
    pg->conn = NULL;
    pg->pending = pg->unsent = pg->rides = 0;
    pg->synced = false;
    pg->savepoints = 0;
    pg->local_at = 0;
    pg->session_lock = false;
}

void once__pg_free(once_pg *pg)
{
    if (!pg) return;
    assert(!pg->users);
    once__pg_drop(pg);
    once_buf_release(&pg->values);
    once_buf_release(&pg->begun);
    for (size_t i = 0; i < pg->n_sql; i++) free(pg->sql[i].sql);
    free(pg->sql);
    free(pg->local);
    free(pg->schema);
    free(pg->texts);
    free(pg->conninfo);
    free(pg);
}

bool once__pg_alive(const once_pg *pg) { return pg->conn && PQstatus(pg->conn) == CONNECTION_OK; }

/* Of all that a server says beside its answers one thing matters: that a COMMIT has returned although its standby does
 * not have it, because somebody cancelled the wait. Texts are translated, the name of the function is not. */
static void hear_notice(void *user, const PGresult *result)
{
    once_pg *pg = user;
    const char *function = PQresultErrorField(result, PG_DIAG_SOURCE_FUNCTION);
    if (function && strcmp(function, "SyncRepWaitForLSN") == 0) pg->unreplicated = true;
}

/* ---- statements by name ---- */

void once__pg_name(char out[PG_NAME_SIZE], const char *what, const char *sql)
{
    const once_hash hash = once_xxh128(0, sql, strlen(sql));
    snprintf(out, PG_NAME_SIZE, "once_%s_%016llx%016llx", what, (unsigned long long)hash.a, (unsigned long long)hash.b);
}

/* The schema before every once_...; our statements have no such word in quotes. */
static char *qualified(const char *sql, const char *schema)
{
    once_buf text;
    once_buf_init(&text, 1 << 20);
    for (const char *at = sql; *at; at++) {
        if (starts(at, "once_") && (at == sql || !is_word(at[-1]))) once_buf_printf(&text, "%s.", schema);
        once_buf_append(&text, at, 1);
    }
    char *copy = text.failed ? NULL : strdup(text.data);
    once_buf_release(&text);
    return copy;
}

int once__pg_statements(once_pg *pg, const char *const *sql, const char *const *shapes, size_t n, once_error *err)
{
    assert(n > 0);
    assert(pg->schema && !pg->sql);
    pg->sql = calloc(n, sizeof *pg->sql);
    if (!pg->sql) return once_no_memory(err, "for PostgreSQL");
    for (size_t i = 0; i < n; i++) {
        assert(shapes[i]);
        pg->sql[i].shape = shapes[i];
        pg->sql[i].sql = qualified(sql[i], pg->schema);
        pg->n_sql = i + 1;
        if (!pg->sql[i].sql) return once_no_memory(err, "for PostgreSQL");
        once__pg_name(pg->sql[i].name, "s", pg->sql[i].sql);
    }
    return ONCE_OK;
}

/* The caller of a borrowed connection may have had us here before: then our statements are there, under the names of
 * their texts. */
static int look_for_ours(once_pg *pg, PGresult **out, once_error *err)
{
    *out = NULL;
    if (!pg->borrowed) return ONCE_OK;
    return once__pg_ask(pg, "SELECT name FROM pg_catalog.pg_prepared_statements WHERE left(name, 5) = 'once_'", "*t",
                        out, err);
}

static bool has_name(const PGresult *names, const char *name)
{
    for (int i = 0; names && i < PQntuples(names); i++)
        if (strcmp(once__pg_text(names, i, 0), name) == 0) return true;
    return false;
}

static int send_prepares(once_pg *pg, const PGresult *there, once_error *err)
{
    for (size_t i = 0; i < pg->n_sql; i++) {
        if (has_name(there, pg->sql[i].name)) continue;
        if (!PQsendPrepare(pg->conn, pg->sql[i].name, pg->sql[i].sql, 0, NULL)) return once__pg_fail(pg, NULL, err);
        pg->pending++;
    }
    for (once_pg_stmt *user = pg->users; user; user = user->next) {
        if (!PQsendPrepare(pg->conn, user->name, user->sql, 0, NULL)) return once__pg_fail(pg, NULL, err);
        pg->pending++;
    }
    return ONCE_OK;
}

int once__pg_prepare(once_pg *pg, once_error *err)
{
    assert(!pg->pending && !pg->synced);
    PGresult *there;
    if (pg->shared) return ONCE_OK;
    int rc = look_for_ours(pg, &there, err);
    if (rc == ONCE_OK) rc = send_prepares(pg, there, err);
    PQclear(there);
    if (rc != ONCE_OK || !pg->pending) return rc;
    rc = once__pg_sync(pg, err);
    while (rc == ONCE_OK && pg->pending) {
        PGresult *result = NULL;
        rc = once__pg_next(pg, &result, err);
        if (rc == ONCE_OK && PQresultStatus(result) != PGRES_COMMAND_OK) rc = once__pg_fail(pg, result, err);
        PQclear(result);
    }
    const int end = pg->conn ? once__pg_synced(pg, rc == ONCE_OK ? err : NULL) : rc;
    return rc == ONCE_OK ? end : rc;
}

static int connect_once(once_pg *pg, once_error *err)
{
    const bool known = pg->found_out;
    once__pg_drop(pg);
    pg->silence[0] = '\0';
    int rc = once__pg_dial(pg, &pg->conn, err);
    if (rc != ONCE_OK) return rc;
    pg->connections++;
    PQsetNoticeReceiver(pg->conn, hear_notice, pg);
    if (PQserverVersion(pg->conn) < 130000) {
        const int version = PQserverVersion(pg->conn) / 10000;
        once__pg_drop(pg);
        return once_fail(err, ONCE_E_CONFIG, "%s: PostgreSQL %d is too old; 13 is the oldest that works", pg->where,
                         version);
    }
    pg->stale = false;
    if (PQsetnonblocking(pg->conn, 1) != 0 || !PQenterPipelineMode(pg->conn)) return once__pg_fail(pg, NULL, err);
    rc = once__pg_greet(pg, err);
    if (rc == ONCE_OK) rc = once__pg_prepare(pg, err);
    if (rc != ONCE_OK) once__pg_drop(pg);
    return rc != ONCE_OK && pg->found_out && !known ? connect_once(pg, err) : rc;
}

int once__pg_connect(once_pg *pg, int64_t wait_ms, once_error *err)
{
    assert(wait_ms >= 0);
    if (once__pg_alive(pg) && (!pg->stale || pg->borrowed)) return ONCE_OK;
    if (pg->borrowed) return once_fail(err, ONCE_E_UNAVAILABLE, "%s: the connection was lost", pg->where);
    int64_t pause_ms = 20, waited_ms = 0;
    for (;;) {
        const int rc = connect_once(pg, err);
        if (once_status_class(rc) != ONCE_CLASS_RETRY || waited_ms >= wait_ms) return rc;
        const int64_t nap_ms = pause_ms / 2 + (int64_t)(once_env_random_u64(pg->env) % (uint64_t)pause_ms);
        if (once_patience_over(&pg->patience)) return rc;
        once_env_sleep_ms(pg->env, nap_ms);
        waited_ms += nap_ms;
        if (pause_ms < 1000) pause_ms *= 2;
    }
}

/* ---- arrays and parameters ---- */

static void put_be32(once_buf *buf, uint32_t value)
{
    const uint32_t wire = htobe32(value);
    once_buf_append(buf, &wire, 4);
}

void once__pg_array_init(once_pg_array *array)
{
    *array = (once_pg_array){0};
    once_buf_init(&array->buf, (size_t)1 << 30);
}

void once__pg_array_release(once_pg_array *array) { once_buf_release(&array->buf); }

enum { ARRAY_HEAD = 20 };

void once__pg_array_begin(once_pg_array *array, uint32_t type)
{
    if (array->buf.capacity > (size_t)8 << 20) once_buf_release(&array->buf);
    once_buf_clear(&array->buf);
    array->n = 0;
    array->has_null = false;
    put_be32(&array->buf, 1); /* dimensions */
    put_be32(&array->buf, 0); /* has NULLs */
    put_be32(&array->buf, type);
    put_be32(&array->buf, 0); /* length */
    put_be32(&array->buf, 1); /* lower bound */
}

static void put_value(once_pg_array *array, const void *data, size_t len)
{
    assert(array->buf.failed || array->buf.len >= ARRAY_HEAD); /* behind once__pg_array_begin */
    put_be32(&array->buf, (uint32_t)len);
    once_buf_append(&array->buf, data, len);
    array->n++;
}

void once__pg_put_int8(once_pg_array *array, int64_t value)
{
    const uint64_t wire = htobe64((uint64_t)value);
    put_value(array, &wire, 8);
}

void once__pg_put_int4(once_pg_array *array, int32_t value)
{
    const uint32_t wire = htobe32((uint32_t)value);
    put_value(array, &wire, 4);
}

void once__pg_put_int2(once_pg_array *array, int16_t value)
{
    const uint16_t wire = htobe16((uint16_t)value);
    put_value(array, &wire, 2);
}

void once__pg_put_bool(once_pg_array *array, bool value) { put_value(array, value ? "\1" : "\0", 1); }

static void id_bytes(once_hash id, unsigned char out[16])
{
    const uint64_t words[2] = {htobe64(id.a), htobe64(id.b)};
    memcpy(out, words, 16);
}

void once__pg_put_id(once_pg_array *array, once_hash id)
{
    unsigned char bytes[16];
    id_bytes(id, bytes);
    put_value(array, bytes, 16);
}

void once__pg_put_tid(once_pg_array *array, const unsigned char tid[PG_TID_SIZE])
{
    put_value(array, tid, PG_TID_SIZE);
}

void once__pg_put_bytes(once_pg_array *array, once_bytes bytes)
{
    put_value(array, bytes.len ? bytes.data : "", bytes.len);
}

void once__pg_put_null(once_pg_array *array)
{
    put_be32(&array->buf, UINT32_MAX);
    array->n++;
    array->has_null = true;
}

static int param(once_pg_params *params, const void *value, size_t len)
{
    assert(params->n < PG_PARAMS_MAX && len <= INT32_MAX);
    params->values[params->n] = value;
    params->lengths[params->n] = (int)len;
    return params->n++;
}

void once__pg_param_int8(once_pg_params *params, int64_t value)
{
    assert(params->n < PG_PARAMS_MAX);
    unsigned char *room = params->numbers[params->n];
    const uint64_t wire = htobe64((uint64_t)value);
    memcpy(room, &wire, 8);
    param(params, room, 8);
}

void once__pg_param_id(once_pg_params *params, once_hash id)
{
    assert(params->n < PG_PARAMS_MAX);
    unsigned char *room = params->numbers[params->n];
    id_bytes(id, room);
    param(params, room, 16);
}

void once__pg_param_bytes(once_pg_params *params, once_bytes bytes)
{
    param(params, bytes.len ? bytes.data : "", bytes.len);
}

void once__pg_param_null(once_pg_params *params) { param(params, NULL, 0); }

void once__pg_param_array(once_pg_params *params, once_pg_array *array)
{
    if (array->buf.failed || array->buf.len < ARRAY_HEAD) {
        params->failed = true;
        param(params, NULL, 0);
        return;
    }
    const uint32_t has_null = htobe32(array->has_null), n = htobe32(array->n);
    memcpy(array->buf.data + 4, &has_null, 4);
    memcpy(array->buf.data + 12, &n, 4);
    param(params, array->buf.data, array->buf.len);
}

/* ---- sending and reading ---- */

int once__pg_lost(once_pg *pg, once_error *err)
{
    const int rc = once__pg_fail(pg, NULL, err);
    once__pg_drop(pg);
    return once_status_class(rc) == ONCE_CLASS_RETRY ? rc : ONCE_E_UNAVAILABLE;
}

int once__pg_push(once_pg *pg, once_error *err)
{
    if (pg->borrowed) return ONCE_OK;
    pg->unsent = 0;
    return once__pg_wait(pg, false) && once__pg_alive(pg) ? ONCE_OK : once__pg_lost(pg, err);
}

/* The first ones of many are sent at once, so that the server works while the others come. */
int once__pg_sent(once_pg *pg, size_t bytes, once_error *err)
{
    pg->pending++;
    pg->unsent += bytes;
    return pg->unsent < UNSENT_MAX && pg->pending != SOME ? ONCE_OK : once__pg_push(pg, err);
}

int once__pg_send(once_pg *pg, unsigned number, const once_pg_params *params, once_error *err)
{
    static const int binary[PG_PARAMS_MAX] = {[0 ... PG_PARAMS_MAX - 1] = 1};
    assert(number < pg->n_sql && !pg->synced);
    if (params && params->failed) return once_no_memory(err, "for PostgreSQL");
    if (!once__pg_alive(pg)) return once__pg_fail(pg, NULL, err);
    const once_pg_text *text = &pg->sql[number];
    const int n = params ? params->n : 0;
    const char *const *values = params ? params->values : NULL;
    const int *lengths = params ? params->lengths : NULL;
    const bool sent = pg->shared ? PQsendQueryParams(pg->conn, text->sql, n, NULL, values, lengths, binary, 1)
                                 : PQsendQueryPrepared(pg->conn, text->name, n, values, lengths, binary, 1);
    if (!sent) return once__pg_fail(pg, NULL, err);
    size_t bytes = pg->shared ? strlen(text->sql) : 0;
    for (int i = 0; params && i < params->n; i++) bytes += (size_t)params->lengths[i];
    const int rc = once__pg_sent(pg, bytes, err);
    if (rc == ONCE_OK) once__pg_must(pg, text->sql, text->shape, 0);
    return rc;
}

int once__pg_send_text(once_pg *pg, const char *sql, once_error *err)
{
    assert(!pg->synced);
    if (!once__pg_alive(pg) || !PQsendQueryParams(pg->conn, sql, 0, NULL, NULL, NULL, NULL, 1))
        return once__pg_fail(pg, NULL, err);
    const int rc = once__pg_sent(pg, strlen(sql), err);
    if (rc == ONCE_OK) once__pg_must(pg, sql, NULL, 0);
    return rc;
}

int once__pg_sync(once_pg *pg, once_error *err)
{
    assert(!pg->synced);
    if (!once__pg_alive(pg) || !PQpipelineSync(pg->conn)) return once__pg_lost(pg, err);
    pg->synced = pg->asked = true;
    pg->unsent = 0;
    return ONCE_OK;
}

PGresult *once__pg_read(once_pg *pg)
{
    if (!once__pg_alive(pg) || !once__pg_wait(pg, true)) return NULL;
    pg->trips += pg->asked;
    pg->asked = false;
    return once__pg_result(pg);
}

int once__pg_next(once_pg *pg, PGresult **out, once_error *err)
{
    assert(pg->pending && pg->synced && !pg->rides);
    PGresult *result = once__pg_read(pg);
    if (!result || !once__pg_alive(pg)) {
        if (result && PQstatus(pg->conn) != CONNECTION_OK) PQclear(result);
        return once__pg_lost(pg, err);
    }
    PGresult *rest;
    while ((rest = once__pg_read(pg))) PQclear(rest); /* a statement has one result, and then the NULL that ends it */
    if (pg->silence[0]) {
        PQclear(result);
        return once__pg_lost(pg, err);
    }
    pg->pending--;
    *out = result;
    return ONCE_OK;
}

int once__pg_synced(once_pg *pg, once_error *err)
{
    while (pg->pending) {
        PGresult *result;
        const int rc = once__pg_next(pg, &result, err);
        if (rc != ONCE_OK) return rc;
        PQclear(result);
    }
    if (!pg->synced) return ONCE_OK;
    PGresult *end = once__pg_read(pg);
    const bool fine = end && PQresultStatus(end) == PGRES_PIPELINE_SYNC;
    PQclear(end);
    if (!fine) return once__pg_lost(pg, err);
    pg->synced = false;
    return ONCE_OK;
}

void once__pg_clear(PGresult **results, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        PQclear(results[i]);
        results[i] = NULL;
    }
}

static bool is_answer(ExecStatusType status) { return status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK; }

int once__pg_round(once_pg *pg, PGresult **results, size_t n, once_error *err)
{
    for (size_t i = 0; i < n; i++) results[i] = NULL;
    pg->failed_state[0] = '\0';
    if (n == 0) return ONCE_OK;
    assert(pg->pending == n || !once__pg_alive(pg));
    int rc = once__pg_sync(pg, err);
    if (rc != ONCE_OK) return rc;
    rc = once__pg_confirm(pg, err);
    if (!pg->conn) return rc;
    for (size_t i = 0; i < n; i++) {
        const int read = once__pg_next(pg, &results[i], rc == ONCE_OK ? err : NULL);
        if (read != ONCE_OK) { /* that is worse than what failed before */
            once__pg_clear(results, i);
            return rc == ONCE_OK ? read : rc;
        }
        const ExecStatusType status = PQresultStatus(results[i]);
        const once_pg_expected *expected = i < PG_ROUND_MAX ? &pg->expected[i] : NULL;
        if (rc == ONCE_OK && expected && is_answer(status) &&
            !once__pg_fits(results[i], expected->shape, expected->most)) {
            once__pg_clear(results, i + 1);
            return once__pg_misfit(pg, expected->sql, err);
        }
        if (i + 1 == pg->local_at) {
            const int told = once__pg_told_local(pg, results[i], rc == ONCE_OK ? err : NULL);
            if (rc == ONCE_OK) rc = told;
        }
        if (rc != ONCE_OK || is_answer(status)) continue;
        const char *state = PQresultErrorField(results[i], PG_DIAG_SQLSTATE);
        rc = once__pg_fail(pg, results[i], err);
        pg->failed_at = i;
        snprintf(pg->failed_state, sizeof pg->failed_state, "%s", state ? state : "");
    }
    const int end = once__pg_synced(pg, rc == ONCE_OK ? err : NULL);
    if (rc == ONCE_OK) rc = end;
    if (rc != ONCE_OK) once__pg_clear(results, n);
    return rc;
}

int once__pg_exec(once_pg *pg, const char *sql, PGresult **out, once_error *err)
{
    assert(!pg->pending && !pg->synced && !pg->rides);
    if (out) *out = NULL;
    if (!once__pg_alive(pg) || !PQexitPipelineMode(pg->conn)) return once__pg_lost(pg, err);
    PGresult *result = once__pg_simple(pg, sql);
    if (!result) return once__pg_lost(pg, err);
    const ExecStatusType status = PQresultStatus(result);
    int rc = ONCE_OK;
    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK && status != PGRES_EMPTY_QUERY)
        rc = once__pg_fail(pg, result, err);
    if (out && rc == ONCE_OK) *out = result;
    else PQclear(result);
    if (!once__pg_alive(pg)) {
        once__pg_drop(pg);
        return rc == ONCE_OK ? once_fail(err, ONCE_E_UNAVAILABLE, "%s: the connection was lost", pg->where) : rc;
    }
    if (!PQenterPipelineMode(pg->conn)) return once__pg_lost(pg, err);
    return rc;
}

int once__pg_exec_begin(once_pg *pg, bool write, once_error *err)
{
    once_buf sql;
    PGresult *result = NULL;
    once_buf_init(&sql, 1 << 20);
    once_buf_printf(&sql, "BEGIN ISOLATION LEVEL READ COMMITTED READ %s;",
                    write ? "WRITE; SET LOCAL synchronous_commit = on" : "ONLY");
    once_buf_puts(&sql, pg->local ? pg->local : "SELECT '', pg_backend_pid()");
    int rc = sql.failed ? once_no_memory(err, "for PostgreSQL") : once__pg_ask(pg, sql.data, "1tt+", &result, err);
    once_buf_release(&sql);
    if (rc == ONCE_OK && pg->local) rc = once__pg_told_local(pg, result, err);
    if (rc == ONCE_OK) rc = once__pg_same_session(pg, strtol(once__pg_text(result, 0, 1), NULL, 10), err);
    PQclear(result);
    return rc == ONCE_OK ? rc : once__pg_exec_end(pg, rc, err);
}

int once__pg_exec_end(once_pg *pg, int rc, once_error *err)
{
    if (rc == ONCE_OK) rc = once__pg_exec(pg, "COMMIT", NULL, err);
    else if (once__pg_alive(pg) && PQtransactionStatus(pg->conn) != PQTRANS_IDLE)
        once__pg_exec(pg, "ROLLBACK", NULL, NULL);
    once__pg_forget_session(pg);
    return rc;
}
