/* Names in memory: two hash tables (by text, by number) over the same malloc'ed names. */
#include "store/sqlite/names.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/no_memory.h"
#include "base/table.h"
#include "store/sqlite/columns.h"

#include "base/banned.h"

/* With the number that SQLite would give it, because the sum covers it. */
#define NAME_INSERT                                                                                                    \
    "INSERT INTO once_name(" NAME_SUMMED                                                                               \
    ", sum) SELECT id, ?1, " SUM_OF("n", "id, ?1") " FROM (SELECT coalesce(max(id), 0) + 1 AS id FROM once_name)"

enum { KEEP_MAX = 4096 }; /* names that may stay in memory between transactions */

struct once_names {
    once_sqlite_db *db;
    sqlite3_stmt *find, *insert, *get;
    once_table by_text, by_number; /* by the hash of the text: the first of a chain */
    size_t n;
    once_name *last_scope, *last_place, *last_who, *last_run; /* mostly the same again */
    bool fresh;                                               /* rows were inserted in the open transaction */
};

static once_name *by_text(const once_names *names, once_hash hash, const char *text, size_t len)
{
    once_name *name = once_table_get(&names->by_text, hash);
    while (name && (name->len != len || memcmp(name->text, text, len) != 0)) name = name->same_hash;
    return name;
}

static once_hash number_key(uint64_t number) { return (once_hash){0, number}; }

/* Reads the text of a name into its fields; false: damaged. */
static bool parse(once_name *name)
{
    if (name->len < 1) return false;
    switch (name->text[0]) {
    case 'S': {
        uint32_t lens[3];
        const size_t head = 1 + sizeof lens;
        if (name->len < head) return false;
        memcpy(lens, name->text + 1, sizeof lens);
        if ((uint64_t)lens[0] + lens[1] + lens[2] != name->len - head) return false;
        const char *at = name->text + head;
        name->scope = (once_scope){{at, lens[0]}, {at + lens[0], lens[1]}, {at + lens[0] + lens[1], lens[2]}};
        return true;
    }
    case 'P':
    case 'W': name->bytes = (once_bytes){name->text + 1, name->len - 1}; return true;
    case 'R':
        if (name->len != 9) return false;
        memcpy(&name->run, name->text + 1, 8);
        return true;
    default: return false;
    }
}

static once_name *name_new(size_t len)
{
    once_name *name = calloc(1, sizeof *name + len + 1);
    if (name) name->len = len;
    return name;
}

/* Finds the name that equals `made`, which is freed then, or adds `made`. */
static once_name *settle_on(once_names *names, once_name *made)
{
    const once_hash hash = once_xxh128(0, made->text, made->len);
    once_name *known = by_text(names, hash, made->text, made->len);
    made->same_hash = once_table_get(&names->by_text, hash);
    if (known || !parse(made) || !once_table_put(&names->by_text, hash, made)) {
        free(made);
        return known;
    }
    names->n++;
    return made;
}

once_name *once__names_scope(once_names *names, const once_scope *scope)
{
    once_name *last = names->last_scope;
    if (last && once_bytes_equal(last->scope.tenant, scope->tenant) &&
        once_bytes_equal(last->scope.consumer, scope->consumer) &&
        once_bytes_equal(last->scope.operation, scope->operation))
        return last;
    const once_bytes parts[3] = {scope->tenant, scope->consumer, scope->operation};
    uint32_t lens[3];
    size_t total = 1 + sizeof lens;
    for (int i = 0; i < 3; i++) {
        lens[i] = (uint32_t)parts[i].len;
        total += parts[i].len;
    }
    once_name *made = name_new(total);
    if (!made) return NULL;
    char *to = made->text;
    *to++ = 'S';
    memcpy(to, lens, sizeof lens);
    to += sizeof lens;
    for (int i = 0; i < 3; i++) {
        if (parts[i].len) memcpy(to, parts[i].data, parts[i].len);
        to += parts[i].len;
    }
    return names->last_scope = settle_on(names, made);
}

static once_name *name_of(once_names *names, char kind, once_bytes bytes, once_name **last)
{
    if (*last && once_bytes_equal((*last)->bytes, bytes)) return *last;
    once_name *made = name_new(1 + bytes.len);
    if (!made) return NULL;
    made->text[0] = kind;
    if (bytes.len) memcpy(made->text + 1, bytes.data, bytes.len);
    return *last = settle_on(names, made);
}

once_name *once__names_place(once_names *names, once_bytes place)
{
    return name_of(names, 'P', place, &names->last_place);
}
once_name *once__names_who(once_names *names, once_bytes who) { return name_of(names, 'W', who, &names->last_who); }

once_name *once__names_run(once_names *names, uint64_t run)
{
    if (names->last_run && names->last_run->run == run) return names->last_run;
    once_name *made = name_new(9);
    if (!made) return NULL;
    made->text[0] = 'R';
    memcpy(made->text + 1, &run, 8);
    return names->last_run = settle_on(names, made);
}

static int damaged(once_names *names, once_error *err)
{
    return once_fail(err, ONCE_E_CORRUPT, "file '%s': table once_name is damaged; restore it from a backup",
                     names->db->path);
}

int once__names_number(once_names *names, once_name *name, uint64_t *out, once_error *err)
{
    int rc = ONCE_OK;
    if (!name->number) {
        sqlite3_bind_blob64(names->find, 1, name->text, name->len, SQLITE_STATIC);
        const int code = sqlite3_step(names->find);
        if (code == SQLITE_ROW && !sqlite3_column_int(names->find, 1))
            rc = damaged(names, err); /* its index led to another row */
        else if (code == SQLITE_ROW) name->number = (uint64_t)sqlite3_column_int64(names->find, 0);
        else if (code != SQLITE_DONE) rc = once__sqlite_fail(names->db, code, err);
        sqlite3_reset(names->find);
        if (rc == ONCE_OK && !name->number) {
            sqlite3_bind_blob64(names->insert, 1, name->text, name->len, SQLITE_STATIC);
            rc = once__sqlite_step(names->db, names->insert, err);
            if (rc == ONCE_OK) {
                name->number = (uint64_t)sqlite3_last_insert_rowid(names->db->handle);
                names->fresh = true;
            }
        }
        if (rc == ONCE_OK && !once_table_put(&names->by_number, number_key(name->number), name))
            rc = once_no_memory(err, "for a name");
    }
    if (rc == ONCE_OK) *out = name->number;
    return rc;
}

int once__names_find(once_names *names, uint64_t number, char kind, const once_name **out, once_error *err)
{
    once_name *name = once_table_get(&names->by_number, number_key(number));
    int rc = ONCE_OK;
    if (!name) {
        sqlite3_bind_int64(names->get, 1, (int64_t)number);
        const int code = sqlite3_step(names->get);
        if (code == SQLITE_ROW) {
            const size_t len = (size_t)sqlite3_column_bytes(names->get, 0);
            if (!sqlite3_column_int(names->get, 1)) {
                sqlite3_reset(names->get);
                return damaged(names, err);
            }
            once_name *made = name_new(len);
            if (made && len) memcpy(made->text, sqlite3_column_blob(names->get, 0), len);
            name = made ? settle_on(names, made) : NULL;
            if (name) name->number = number;
            if (!name || !once_table_put(&names->by_number, number_key(number), name))
                rc = once_no_memory(err, "for a name");
        } else if (code != SQLITE_DONE) {
            rc = once__sqlite_fail(names->db, code, err);
        }
        sqlite3_reset(names->get);
    }
    if (rc != ONCE_OK) return rc;
    if (!name || name->text[0] != kind) return damaged(names, err);
    *out = name;
    return ONCE_OK;
}

static void clear(once_names *names)
{
    once_name *name;
    for (size_t at = 0; (name = once_table_next(&names->by_text, &at));)
        for (once_name *next; name; name = next) {
            next = name->same_hash;
            free(name);
        }
    once_table_release(&names->by_text);
    once_table_release(&names->by_number);
    names->n = 0;
    names->last_scope = names->last_place = names->last_who = names->last_run = NULL;
    names->fresh = false;
}

void once__names_trim(once_names *names)
{
    if (names->n > KEEP_MAX) clear(names);
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
