/* The sqlite store: a storage for the engine in an SQLite file. This file opens and closes it; each other file of this
 * folder has one task, and parts.h is the interface between them. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/failpoint.h"
#include "base/no_memory.h"
#include "store/sqlite/parts.h"
#include "store/sqlite/schema.h"

#include "base/banned.h"

enum { BUSY_MS_DEFAULT = 10000 };

static const once_storage_ops sqlite_storage = {
    .begin = once__sqlite_store_begin,
    .commit = once__sqlite_store_commit,
    .rollback = once__sqlite_store_rollback,
    .prefetch = once__live_prefetch,
    .load = once__live_load,
    .has_none = once__live_has_none,
    .save = once__live_save,
    .lane = once__live_lane,
    .save_lane = once__live_save_lane,
    .lane_head = once__live_lane_head,
    .lane_equals = once__live_lane_equals,
    .lane_before = once__live_lane_before,
    .due = once__sqlite_store_due,
    .due_of_operations = once__sqlite_store_due_of_operations,
    .by_token = once__sqlite_store_by_token,
    .lapsed = once__sqlite_store_lapsed,
    .letter_put = once__sqlite_store_letter_put,
    .letter_get = once__sqlite_store_letter_get,
    .letter_drop = once__sqlite_store_letter_drop,
    .audit_put = once__sqlite_store_audit_put,
    .list = once__sqlite_store_list,
    .letters = once__sqlite_store_letters,
    .audits = once__sqlite_store_audits,
    .stats = once__sqlite_store_stats,
    .waiting_size = once__sqlite_store_waiting_size,
    .fact_get = once__sqlite_store_fact_get,
    .fact_set = once__sqlite_store_fact_set,
    .facts = once__sqlite_store_facts,
};

static void sqlite_close(once_backend *store)
{
    once_sqlite *q = (once_sqlite *)store;
    once__settled_close(q->settled);
    once__names_close(q->names);
    for (size_t i = 0; i < SQL_STATEMENTS; i++) sqlite3_finalize(q->sql[i]);
    if (q->db && q->db->borrowed) {
        once__sum_unregister(q->db->handle);
        once__rows_unregister(q->db->handle);
    }
    once__sqlite_close(q->db);
    once_arena_release(&q->arena);
    once__kept_release(q);
    free(q->kept.at);
    free(q->slots.at);
    free(q->lanes.at);
    free(q->dirty);
    free(q);
}

static int prepare_all(once_sqlite *q, const once_settled_limits *limits, once_error *err)
{
    int rc = ONCE_OK;
    for (size_t i = 0; i < SQL_STATEMENTS && rc == ONCE_OK; i++) {
        const bool other = q->db->borrowed && once__sqlite_borrowed_sql[i];
        rc = once__sqlite_prepare(q->db, other ? once__sqlite_borrowed_sql[i] : once__sqlite_sql[i], &q->sql[i], err);
    }
    if (rc == ONCE_OK) rc = once__settled_open(q->db, limits, &q->settled, err);
    if (rc == ONCE_OK) rc = once__names_open(q->db, &q->names, err);
    return rc;
}

/* Writes the sums of the existing rows, for tables that were just made or come from version 4. */
static int sum_up(once_sqlite *q, once_error *err)
{
    assert(q->settled && !q->open);
    once_settled_head head;
    q->unsummed = true;
    int rc = once__sqlite_store_read_head(q, &head, err);
    if (rc == ONCE_OK) rc = once__settled_refresh(q->settled, &head, err);
    q->storage.clock = q->stored_clock;
    for (int i = 0; i < PRESENTS && rc == ONCE_OK; i++) {
        bool all;
        rc = once__present_count(q, (enum once_present)i, INT64_MAX - 1, &q->present[i], &all, err);
    }
    if (rc == ONCE_OK) rc = once__sqlite_store_write_head(q, err);
    memcpy(q->present_stored, q->present, sizeof q->present);
    if (rc == ONCE_OK) rc = once__sqlite_sum_meta(q->db, err);
    q->unsummed = false;
    return rc;
}

int once__sqlite_store_edit(once_backend *store, const char *sql, once_error *err)
{
    once_sqlite *q = (once_sqlite *)store;
    once__kept_clear(q);
    int rc = once__sqlite_exec(q->db, "BEGIN IMMEDIATE", err);
    if (rc == ONCE_OK) rc = once__sqlite_exec(q->db, sql, err);
    if (rc == ONCE_OK) rc = once__sqlite_exec(q->db, once__sqlite_sum_rows(), err);
    if (rc == ONCE_OK) rc = sum_up(q, err);
    return once__sqlite_exec(q->db, rc == ONCE_OK ? "COMMIT" : "ROLLBACK", rc == ONCE_OK ? err : NULL) == ONCE_OK
               ? rc
               : ONCE_E_IO;
}

/* Everything that may make or change tables, in one transaction. */
static int make_ready(once_sqlite *q, const once_store_options *options, const once_settled_limits *limits,
                      once_error *err)
{
    assert(q->db && !q->settled);
    int64_t version;
    bool ready;
    int rc = once__sqlite_is_ready(q->db, &ready, &q->storage.store.secret, err);
    if (rc != ONCE_OK) return rc;
    if (ready && options->create && !options->readonly) once__sqlite_index_keys(q->db);
    if (ready) return prepare_all(q, limits, err);
    rc = once__sqlite_exec(q->db, options->readonly ? "BEGIN" : "BEGIN IMMEDIATE", err);
    if (rc != ONCE_OK) return rc;
    bool made = false;
    rc = once__sqlite_ready(q->db, q->storage.store.env, options->create, options->readonly, &version, &made,
                            &q->storage.store.secret, err);
    if (rc == ONCE_OK && made) rc = prepare_all(q, limits, err);
    if (rc == ONCE_OK && made) rc = sum_up(q, err);
    if (rc == ONCE_OK && version < ONCE_SQLITE_VERSION) {
        const bool summed = version >= ONCE_SQLITE_SUMMED;
        rc = once__sqlite_upgrade_tables(q->db, version, err);
        if (rc == ONCE_OK && summed) rc = once__sqlite_sum_meta(q->db, err);
        if (rc == ONCE_OK) rc = prepare_all(q, limits, err);
        if (!summed) q->unsummed = true;
        if (rc == ONCE_OK && version == 1) rc = once__sqlite_store_migrate_1_to_2(q, err);
        if (rc == ONCE_OK && !summed) rc = sum_up(q, err);
        if (rc == ONCE_OK && ONCE_FAIL_AT(migrate_between)) rc = once_fail(err, ONCE_E_IO, "failpoint migrate_between");
    }
    if (rc == ONCE_OK) rc = once__sqlite_exec(q->db, "COMMIT", err);
    if (rc != ONCE_OK && !sqlite3_get_autocommit(q->db->handle))
        sqlite3_exec(q->db->handle, "ROLLBACK", NULL, NULL, NULL);
    return rc == ONCE_OK && !q->settled ? prepare_all(q, limits, err) : rc;
}

static once_sqlite *new_store(const once_store_options *options)
{
    once_sqlite *q = calloc(1, sizeof *q);
    if (!q) return NULL;
    q->storage.store.ops = &once__store_sqlite;
    q->storage.store.bits = ONCE_STORE_DURABLE | ONCE_STORE_SHARED | ONCE_STORE_TX | ONCE_STORE_OWNS |
                            ONCE_STORE_LANES | ONCE_STORE_LIST | ONCE_STORE_CLOCK;
    q->storage.store.env = options->env ? options->env : once_env_real();
    q->storage.ops = &sqlite_storage;
    once__store_sign(&q->storage.store);
    q->fresh = true;
    return q;
}

int once__sqlite_store_borrow(sqlite3 *handle, const once_store_options *options, const once_settled_limits *limits,
                              once_backend **out, once_error *err)
{
    assert(sqlite3_get_autocommit(handle));
    once_sqlite *q = new_store(options);
    if (!q) return once_no_memory(err, "in the sqlite store");
    snprintf(q->mark_name, sizeof q->mark_name, "borrowed.%u",
             (unsigned)(once_env_random_u64(q->storage.store.env) % 64));
    int rc = once__sqlite_borrow(handle, &q->db, err);
    if (rc == ONCE_OK && (once__sum_register(handle) != SQLITE_OK || once__rows_register(handle) != SQLITE_OK))
        rc = once__sqlite_fail(q->db, sqlite3_extended_errcode(handle), err);
    if (rc == ONCE_OK) rc = make_ready(q, options, limits ? limits : &once__settled_defaults, err);
    if (rc != ONCE_OK) {
        sqlite_close(&q->storage.store);
        return rc;
    }
    *out = &q->storage.store;
    return ONCE_OK;
}

/* Makes the file readable by its owner only, because of bodies and results. SQLite gives its other files the mode of
 * this one. When the file exists already, or cannot be made, SQLite reports it. */
static int make_private(const once_env *env, const char *path, once_error *err)
{
    struct stat st;
    if (strcmp(path, ":memory:") == 0) return ONCE_OK;
    const int fd = env->open(env->self, path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0 && errno == EEXIST && stat(path, &st) != 0 && errno == ENOENT)
        return once_fail(
            err, ONCE_E_CONFIG,
            "file '%s': is a symbolic link to nothing; name the file that is to be made, or remove the link", path);
    if (fd < 0) return ONCE_OK;
    (void)fchmod(fd, 0600); /* the umask may have removed even these bits */
    env->close(env->self, fd);
    return ONCE_OK;
}

int once__sqlite_store_open(const char *path, const once_store_options *options, const once_settled_limits *limits,
                            once_backend **out, once_error *err)
{
    const once_store_options none = {.size = sizeof none};
    if (!options) options = &none;
    if (!limits) limits = &once__settled_defaults;
    once_sqlite *q = new_store(options);
    if (!q) return once_no_memory(err, "in the sqlite store");

    const once_sqlite_options how = {.create = options->create,
                                     .readonly = options->readonly,
                                     .vfs = options->sqlite_vfs,
                                     .busy_ms = options->busy_ms ? options->busy_ms : BUSY_MS_DEFAULT};
    int rc = how.create && !how.readonly && !how.vfs ? make_private(q->storage.store.env, path, err) : ONCE_OK;
    if (rc == ONCE_OK) rc = once__sqlite_open(path, &how, &q->db, err);
    if (rc == ONCE_OK) once__sqlite_watch(q->db, options->cancel);
    if (rc == ONCE_OK)
        rc = once__sqlite_settings(q->db, q->storage.store.env, how.create && !how.readonly, how.busy_ms, err);
    if (rc == ONCE_OK &&
        (once__sum_register(q->db->handle) != SQLITE_OK || once__rows_register(q->db->handle) != SQLITE_OK))
        rc = once__sqlite_fail(q->db, SQLITE_NOMEM, err);
    if (rc == ONCE_OK) rc = make_ready(q, options, limits, err);
    if (rc != ONCE_OK) {
        sqlite_close(&q->storage.store);
        return rc;
    }
    *out = &q->storage.store;
    return ONCE_OK;
}

static int sqlite_open(const char *rest, const once_store_options *options, once_backend **out, once_error *err)
{
    return once__sqlite_store_open(rest, options, NULL, out, err);
}

static once_db *sqlite_db(once_backend *store) { return &((once_sqlite *)store)->db->db; }

const once_store_ops once__store_sqlite = {
    .scheme = "sqlite",
    .schema = once__sqlite_schema,
    .open = sqlite_open,
    .close = sqlite_close,
    .db = sqlite_db,
    .sweep = once__sqlite_store_sweep,
    .letter_heads = once__engine_letter_heads,
    .letters_of_key = once__engine_letters_of_key,
    .verify = once__sqlite_store_verify,
    .confirm_time = once__sqlite_store_confirm_time,
    .fact_set = once__engine_fact_set,
    .absent = once__engine_absent,
    ONCE_ENGINE_OPS,
};
