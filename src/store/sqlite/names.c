/* Names of the sqlite store: rows of once_name, and the table of names in memory (store/name_table.h). */
#include "store/sqlite/names.h"

#include <assert.h>
#include <stdlib.h>

#include "base/no_memory.h"
#include "store/sqlite/columns.h"

#include "base/banned.h"

/* Inserts with the number that SQLite would assign, because the sum covers it. */
#define NAME_INSERT                                                                                                    \
    "INSERT INTO once_name(" NAME_SUMMED                                                                               \
    ", sum) SELECT id, ?1, " SUM_OF("n", "id, ?1") " FROM (SELECT coalesce(max(id), 0) + 1 AS id FROM once_name)"

struct once_names {
    once_sqlite_db *db;
    sqlite3_stmt *find, *insert, *get;
    once_name_table known;
    bool fresh; /* the open transaction inserted rows */
};

static int damaged(once_names *names, once_error *err)
{
    return once_fail(err, ONCE_E_CORRUPT, "file '%s': table once_name is damaged; restore it from a backup",
                     names->db->path);
}

once_name_table *once__names_known(once_names *names) { return &names->known; }

/* The number of the name's row; 0: there is no row. */
static int find_row(once_names *names, const once_name *name, int64_t *number, once_error *err)
{
    assert(name->len > 0);
    int rc = ONCE_OK;
    *number = 0;
    sqlite3_bind_blob64(names->find, 1, name->text, name->len, SQLITE_STATIC);
    const int code = sqlite3_step(names->find);
    if (code == SQLITE_ROW && !sqlite3_column_int(names->find, 1))
        rc = damaged(names, err); /* the index led to another row */
    else if (code == SQLITE_ROW) *number = sqlite3_column_int64(names->find, 0);
    else if (code != SQLITE_DONE) rc = once__sqlite_fail(names->db, code, err);
    sqlite3_reset(names->find);
    return rc;
}

static int insert_row(once_names *names, const once_name *name, int64_t *number, once_error *err)
{
    assert(name->len > 0 && !name->number);
    sqlite3_bind_blob64(names->insert, 1, name->text, name->len, SQLITE_STATIC);
    const int rc = once__sqlite_step(names->db, names->insert, err);
    if (rc != ONCE_OK) return rc;
    *number = sqlite3_last_insert_rowid(names->db->handle);
    names->fresh = true;
    return ONCE_OK;
}

int once__names_number(once_names *names, once_name *name, uint64_t *out, once_error *err)
{
    if (!name->number) {
        int64_t number;
        int rc = find_row(names, name, &number, err);
        if (rc == ONCE_OK && !number) rc = insert_row(names, name, &number, err);
        if (rc == ONCE_OK && !once__name_set_number(&names->known, name, number))
            rc = once_no_memory(err, "for a name");
        if (rc != ONCE_OK) return rc;
    }
    *out = (uint64_t)name->number;
    return ONCE_OK;
}

/* Reads the name from the row that was found into memory. */
static int learn(once_names *names, int64_t number, once_name **out, once_error *err)
{
    bool bad;
    if (!sqlite3_column_int(names->get, 1)) return damaged(names, err);
    const void *text = sqlite3_column_blob(names->get, 0);
    *out = once__name_read(&names->known, (once_bytes){text, (size_t)sqlite3_column_bytes(names->get, 0)}, &bad);
    if (bad) return damaged(names, err);
    return *out && once__name_set_number(&names->known, *out, number) ? ONCE_OK : once_no_memory(err, "for a name");
}

int once__names_find(once_names *names, uint64_t number, char kind, const once_name **out, once_error *err)
{
    assert(kind == 'S' || kind == 'P' || kind == 'R' || kind == 'W');
    once_name *name = once__name_numbered(&names->known, (int64_t)number);
    int rc = ONCE_OK;
    if (!name) {
        sqlite3_bind_int64(names->get, 1, (int64_t)number);
        const int code = sqlite3_step(names->get);
        if (code == SQLITE_ROW) rc = learn(names, (int64_t)number, &name, err);
        else if (code != SQLITE_DONE) rc = once__sqlite_fail(names->db, code, err);
        sqlite3_reset(names->get);
    }
    if (rc != ONCE_OK) return rc;
    if (!name || name->text[0] != kind) return damaged(names, err);
    *out = name;
    return ONCE_OK;
}

static void clear(once_names *names)
{
    once__names_clear(&names->known);
    names->fresh = false;
}

bool once__names_trim(once_names *names)
{
    if (names->known.n <= ONCE_NAMES_KEPT) return false;
    clear(names);
    return true;
}

void once__names_end(once_names *names, bool committed)
{
    if (!names->fresh) return;
    if (!committed) clear(names);
    names->fresh = false;
}

int once__names_open(once_sqlite_db *db, once_names **out, once_error *err)
{
    once_names *names = calloc(1, sizeof *names);
    if (!names) return once_no_memory(err, "for a name");
    names->db = db;
    int rc =
        once__sqlite_prepare(db, "SELECT id, sum = " NAME_SUM " FROM once_name WHERE name = ?1", &names->find, err);
    if (rc == ONCE_OK) rc = once__sqlite_prepare(db, NAME_INSERT, &names->insert, err);
    if (rc == ONCE_OK)
        rc = once__sqlite_prepare(db, "SELECT name, sum = " NAME_SUM " FROM once_name WHERE id = ?1", &names->get, err);
    if (rc != ONCE_OK) {
        once__names_close(names);
        return rc;
    }
    *out = names;
    return ONCE_OK;
}

void once__names_close(once_names *names)
{
    if (!names) return;
    clear(names);
    sqlite3_finalize(names->find);
    sqlite3_finalize(names->insert);
    sqlite3_finalize(names->get);
    free(names);
}
