/* verify: compares everything in the sqlite store with its sums. */
#include <stdio.h>
#include <string.h>

#include "store/sqlite/columns.h"
#include "store/sqlite/parts.h"
#include "store/states.h"

#include "base/banned.h"

/* Checks SQLite's own pages. */
static int verify_pages(once_sqlite *q, once_damage_told *damage, void *user, once_error *err)
{
    sqlite3_stmt *stmt;
    int code, rc = once__sqlite_prepare(q->db, "PRAGMA integrity_check(20)", &stmt, err);
    if (rc != ONCE_OK) return rc;
    while ((code = sqlite3_step(stmt)) == SQLITE_ROW) {
        const char *text = (const char *)sqlite3_column_text(stmt, 0);
        if (text && strcmp(text, "ok") != 0) damage(user, text);
    }
    if (code != SQLITE_DONE) damage(user, sqlite3_errmsg(q->db->handle));
    sqlite3_finalize(stmt);
    return ONCE_OK;
}

static void verify_rows(once_sqlite *q, once_damage_told *damage, void *user)
{
    static const struct {
        const char *what, *where;
    } bad[] = {
        {"damaged", "once_entry WHERE sum IS NOT " ENTRY_SUM},
        {"damaged", "once_body WHERE sum IS NOT " BODY_SUM},
        {"damaged", "once_lane WHERE sum IS NOT " LANE_SUM},
        {"damaged", "once_letter WHERE sum IS NOT " LETTER_SUM},
        {"damaged", "once_fact WHERE sum IS NOT " FACT_SUM},
        {"damaged", "once_name WHERE sum IS NOT " NAME_SUM},
        {"damaged", "once_audit WHERE sum IS NOT " AUDIT_SUM},
        {"without its row in once_body", "once_entry WHERE owned = 1 AND n NOT IN (SELECT n FROM once_body)"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char sql[1500], text[200];
        once_error why = {0};
        int64_t n = 0;
        snprintf(sql, sizeof sql, "SELECT count(*) FROM %s", bad[i].where);
        if (once__sqlite_integer(q->db, sql, 0, &n, &why) != ONCE_OK) damage(user, why.text);
        snprintf(text, sizeof text, "table %.*s: %lld row%s %s", (int)strcspn(bad[i].where, " "), bad[i].where,
                 (long long)n, n == 1 ? " is" : "s are", bad[i].what);
        if (n) damage(user, text);
    }
}

typedef struct names_seen {
    once_sqlite *q;
    int rc;
    once_error *err;
} names_seen;

/* Whether the names that a record refers to exist; without them it is damaged. */
static bool has_its_names(void *user, const once_record *record)
{
    names_seen *seen = user;
    once_entry entry;
    seen->rc = once__live_from_record(seen->q, record, &entry, seen->err);
    return seen->rc == ONCE_OK;
}

int once__sqlite_store_verify(once_backend *store, once_damage_told *damage, void *user, once_error *err)
{
    once_sqlite *q = (once_sqlite *)store;
    once_error why = {0};
    int rc = once__verb_begin(&q->storage, false,
                              &why); /* reads the head, the recent records, and the runs with their filters */
    if (rc == ONCE_E_CORRUPT) {
        damage(user, why.text);
        return ONCE_OK;
    }
    if (rc != ONCE_OK) return once_fail(err, rc, "%s", why.text);
    rc = verify_pages(q, damage, user, err);
    if (rc != ONCE_OK) return once__verb_end(&q->storage, rc, err);
    verify_rows(q, damage, user);
    for (int i = 0; i < PRESENTS; i++) {
        q->present_checked[i] = false;
        if (once__present_check(q, (enum once_present)i, INT64_MAX - 1, &why) != ONCE_OK) damage(user, why.text);
    }
    names_seen seen = {.q = q, .err = &why};
    if (once__settled_each(q->settled, INT64_MIN, has_its_names, &seen, &why) != ONCE_OK || seen.rc != ONCE_OK)
        damage(user, why.text);
    return once__verb_end(&q->storage, ONCE_OK, err);
}
