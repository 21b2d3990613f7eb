/* once_rows: the entries that a transaction writes, as a table of SQLite (a virtual one). So one statement writes all
 * of them; a statement for each costs twice as much, because SQLite opens and closes the table and its indexes for
 * each.
 *
 *   INSERT INTO once_entry(...) SELECT ... FROM once_rows(?1)      ?1: a once_rows, as a pointer
 *
 * A statement of the user cannot make such a pointer, and sees an empty table. */
#include <stddef.h>
#include <string.h>

#include "core/fields.h"
#include "store/sqlite/columns.h"
#include "store/sqlite/parts.h"
#include "store/states.h"

#include "base/banned.h"

static const char pointer_type[] = "once_rows";

/* Positions of once_rows: n, the columns of ENTRY_SUMMED, the sum, and the hidden argument. */
enum { ROW_N, ROW_SUMMED, ROW_SUM = ROW_SUMMED + 30, ROW_VALUES, ROW_ARGUMENT = ROW_VALUES };

typedef struct rows_cursor {
    sqlite3_vtab_cursor base; /* first: SQLite knows this part */
    const once_rows *rows;    /* NULL: none were given */
    size_t at;
    bool shown;                        /* `values` are those of the current row */
    once_sql_value values[ROW_VALUES]; /* a statement that only removes rows does not ask for them */
    unsigned char id[16], token[16], fingerprint[NEW_PRINT + ONCE_FIELDS_BYTES], lane[16];
} rows_cursor;

static once_sql_value of_integer(int64_t integer)
{
    return (once_sql_value){.type = SQLITE_INTEGER, .integer = integer};
}

static once_sql_value of_bytes(once_bytes bytes) { return (once_sql_value){.type = SQLITE_BLOB, .bytes = bytes}; }

static once_sql_value of_id(once_hash id, unsigned char room[16])
{
    once__id_write(id, room);
    return of_bytes((once_bytes){(const char *)room, 16});
}

static once_sql_value of_print(const once_entry *e, rows_cursor *c)
{
    const size_t fixed = e->old_key ? PRINT : NEW_PRINT;
    c->fingerprint[PRINT] = 0;
    once__id_write(e->fingerprint, c->fingerprint);
    return of_bytes(
        (once_bytes){(const char *)c->fingerprint, fixed + once_fields_write(&e->fields, c->fingerprint + fixed)});
}

/* Sets the values of the row, in the order of ENTRY_SUMMED. */
static void show_row(rows_cursor *c)
{
    const once_slot *slot = c->rows->slots[c->at];
    const once_entry *e = &slot->entry;
    const once_sql_value values[] = {
        of_id(e->id, c->id),
        of_integer(once__state_write(e)),
        of_integer(e->has_message),
        of_id(e->token, c->token),
        of_integer(e->attempt),
        of_integer(e->failures),
        of_print(e, c),
        once_hash_is_zero(e->lane) ? (once_sql_value){.type = SQLITE_NULL} : of_id(e->lane, c->lane),
        of_integer(e->order),
        of_integer(e->gap_ms),
        of_integer(e->remember_ms),
        of_integer(once__flags_write(e)),
        of_integer((int64_t)e->run),
        of_integer(e->seen_ms),
        of_integer(e->changed_ms),
        of_integer(e->due_ms),
        of_integer(e->expires_ms),
        of_integer(slot->keep_ms),
        of_bytes(e->scope.tenant),
        of_bytes(e->scope.consumer),
        of_bytes(e->scope.operation),
        of_bytes(e->key),
        of_bytes(e->at.place),
        of_bytes(e->at.point),
        of_bytes(e->result),
        of_bytes(e->reason),
        of_bytes(e->who),
        of_bytes(e->worker),
        of_bytes(e->history),
        of_integer(e->failing_ms),
    };
    _Static_assert(sizeof values / sizeof *values == ROW_SUM - ROW_SUMMED, "as many as the columns of ENTRY_SUMMED");
    memcpy(c->values + ROW_SUMMED, values, sizeof values);
    c->values[ROW_SUM] = of_integer(once__sum_of_row('e', values, sizeof values / sizeof *values));
    c->shown = true;
}

/* ---- what SQLite asks ---- */

static int rows_connect(sqlite3 *handle, void *user, int argc, const char *const *argv, sqlite3_vtab **out, char **why)
{
    (void)user, (void)argc, (void)argv, (void)why;
    const int code = sqlite3_declare_vtab(handle, "CREATE TABLE once_rows(n, " ENTRY_SUMMED ", sum, argument HIDDEN)");
    if (code != SQLITE_OK) return code;
    sqlite3_vtab_config(handle, SQLITE_VTAB_DIRECTONLY); /* not from views and triggers */
    *out = sqlite3_malloc(sizeof **out);
    if (!*out) return SQLITE_NOMEM;
    **out = (sqlite3_vtab){0};
    return SQLITE_OK;
}

static int rows_disconnect(sqlite3_vtab *table)
{
    sqlite3_free(table);
    return SQLITE_OK;
}

/* The only plan: the rows of the argument, all of them in their order. */
static int rows_plan(sqlite3_vtab *table, sqlite3_index_info *plan)
{
    (void)table;
    for (int i = 0; i < plan->nConstraint; i++) {
        const struct sqlite3_index_constraint *constraint = &plan->aConstraint[i];
        if (constraint->iColumn != ROW_ARGUMENT || constraint->op != SQLITE_INDEX_CONSTRAINT_EQ) continue;
        if (!constraint->usable) return SQLITE_CONSTRAINT;
        plan->aConstraintUsage[i].argvIndex = 1;
        plan->aConstraintUsage[i].omit = 1;
    }
    return SQLITE_OK;
}

static int rows_open(sqlite3_vtab *table, sqlite3_vtab_cursor **out)
{
    (void)table;
    rows_cursor *c = sqlite3_malloc(sizeof *c);
    if (!c) return SQLITE_NOMEM;
    *c = (rows_cursor){0};
    *out = &c->base;
    return SQLITE_OK;
}

static int rows_close(sqlite3_vtab_cursor *cursor)
{
    sqlite3_free(cursor);
    return SQLITE_OK;
}

static int rows_filter(sqlite3_vtab_cursor *cursor, int plan, const char *text, int argc, sqlite3_value **argv)
{
    (void)plan, (void)text;
    rows_cursor *c = (rows_cursor *)cursor;
    c->rows = argc ? sqlite3_value_pointer(argv[0], pointer_type) : NULL;
    c->at = 0;
    c->shown = false;
    return SQLITE_OK;
}

static int rows_next(sqlite3_vtab_cursor *cursor)
{
    rows_cursor *c = (rows_cursor *)cursor;
    c->at++;
    c->shown = false;
    return SQLITE_OK;
}

static int rows_end(sqlite3_vtab_cursor *cursor)
{
    const rows_cursor *c = (const rows_cursor *)cursor;
    return !c->rows || c->at >= c->rows->n;
}

static int rows_column(sqlite3_vtab_cursor *cursor, sqlite3_context *out, int at)
{
    if (at >= ROW_VALUES) return SQLITE_OK; /* the argument: NULL */
    rows_cursor *c = (rows_cursor *)cursor;
    const once_slot *slot = c->rows->slots[c->at];
    if (!c->shown && at > ROW_SUMMED) show_row(c);
    const once_sql_value value = at == ROW_N        ? of_integer(slot->row)
                                 : at == ROW_SUMMED ? of_id(slot->entry.id, c->id)
                                                    : c->values[at];
    if (value.type == SQLITE_INTEGER) sqlite3_result_int64(out, value.integer);
    else if (value.type == SQLITE_BLOB) /* an empty one has no address */
        sqlite3_result_blob64(out, value.bytes.len ? value.bytes.data : "", value.bytes.len, SQLITE_STATIC);
    return SQLITE_OK;
}

static int rows_id(sqlite3_vtab_cursor *cursor, sqlite3_int64 *out)
{
    *out = (sqlite3_int64)((rows_cursor *)cursor)->at;
    return SQLITE_OK;
}

static const sqlite3_module module = {
    .xConnect = rows_connect,
    .xBestIndex = rows_plan,
    .xDisconnect = rows_disconnect,
    .xOpen = rows_open,
    .xClose = rows_close,
    .xFilter = rows_filter,
    .xNext = rows_next,
    .xEof = rows_end,
    .xColumn = rows_column,
    .xRowid = rows_id,
};

int once__rows_register(sqlite3 *handle) { return sqlite3_create_module_v2(handle, "once_rows", &module, NULL, NULL); }

void once__rows_unregister(sqlite3 *handle) { sqlite3_create_module_v2(handle, "once_rows", NULL, NULL, NULL); }

void once__rows_bind(sqlite3_stmt *stmt, const once_rows *rows)
{
    /* SQLite takes a pointer that is not const; once_rows only reads it. */
    sqlite3_bind_pointer(stmt, 1, (void *)(uintptr_t)rows, pointer_type, NULL);
}
