/* `once check --deep`: reads every row of a store and reports those that do not fit: a row that cannot be read, a time
 * before 1970, a row without its counterpart. Rows have no checksums of ours: a value that was changed into another
 * valid one is not noticed. Pages are checked by the server (data_checksums). */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/no_memory.h"
#include "store/engine.h"
#include "store/lane_record.h"
#include "store/postgres/postgres.h"
#include "store/states.h"

#include "base/banned.h"

enum { STEP = 500, SAID_MAX = 20 }; /* rows that are read at once; findings of one kind that are reported */

typedef struct verifying {
    once_postgres *q;
    void (*damage)(void *user, const char *text);
    void *user;
    size_t said; /* of this kind */
} verifying;

__attribute__((format(printf, 2, 3))) static void say(verifying *v, const char *format, ...)
{
    char text[400];
    va_list args;
    if (++v->said > SAID_MAX) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    v->damage(v->user, text);
}

static int ask(once_postgres *q, const char *sql, PGresult **out, once_error *err)
{
    const int rc = once__pg_send_text(q->pg, sql, err);
    return rc == ONCE_OK ? once__pg_round(q->pg, out, 1, err) : rc;
}

/* ---- rows that belong together ---- */

static int verify_pairs(verifying *v, once_error *err)
{
    static const struct {
        const char *sql, *what;
    } pairs[] = {
        {"SELECT key FROM once_live l WHERE lane IS NOT NULL AND state < 4 AND NOT EXISTS (SELECT FROM once_lane a "
         "WHERE a.id = l.lane) ORDER BY id",
         "its lane has no row in once_lane, so no worker takes it; 'once check --repair' inserts one, "
         "without its last version"},
        {"SELECT key FROM once_live l WHERE NOT EXISTS (SELECT FROM once_entry e WHERE e.id = l.id) ORDER BY id",
         "it is in once_live and not in once_entry, so no worker takes it"},
        {"SELECT key FROM once_live l JOIN once_entry e USING (id) WHERE e.expires_ms IS NOT NULL ORDER BY id",
         "it is finished in once_entry, and not finished in once_live"},
        {"SELECT key FROM once_live l WHERE owned AND NOT EXISTS (SELECT FROM once_body b WHERE b.id = l.id) ORDER BY "
         "id",
         "its body is not in once_body"},
        {"SELECT key FROM once_live l WHERE state = 4 AND NOT EXISTS (SELECT FROM once_letter d WHERE d.entry = l.id) "
         "ORDER BY id",
         "it is dead, and its letter is not in once_letter"},
    };
    int rc = ONCE_OK;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs && rc == ONCE_OK; i++) {
        PGresult *rows;
        v->said = 0;
        rc = ask(v->q, pairs[i].sql, &rows, err);
        if (rc != ONCE_OK) break;
        for (int k = 0; k < PQntuples(rows); k++) {
            char key[ONCE_SHOWN_KEY];
            say(v, "key '%s': %s", once__shown_key(once__pg_bytes(rows, k, 0), key), pairs[i].what);
        }
        PQclear(rows);
    }
    return rc;
}

/* ---- row by row ---- */

typedef int look(verifying *v, const PGresult *rows, int row, once_arena *arena, once_error *err);

/* Visits rows, STEP at a time; `rows_where` ends before the condition on the id, which is the first column. */
static int each(verifying *v, const char *rows_where, const char *id, look *look_at, once_error *err)
{
    once_hash after = {0};
    once_arena arena = {0};
    int rc = ONCE_OK, n = STEP;
    v->said = 0;
    while (rc == ONCE_OK && n == STEP) {
        char text[1500];
        PGresult *rows;
        snprintf(text, sizeof text, "SELECT %s %s > '%016llx%016llx'::uuid ORDER BY %s LIMIT %d", rows_where, id,
                 (unsigned long long)after.a, (unsigned long long)after.b, id, STEP);
        rc = ask(v->q, text, &rows, err);
        if (rc != ONCE_OK) break;
        n = PQntuples(rows);
        once_arena_reset(&arena);
        for (int i = 0; i < n && rc == ONCE_OK; i++) rc = look_at(v, rows, i, &arena, err);
        if (n) after = once__pg_id(rows, n - 1, 0);
        PQclear(rows);
    }
    once_arena_release(&arena);
    return rc;
}

static int look_at_live(verifying *v, const PGresult *rows, int row, once_arena *arena, once_error *err)
{
    once_entry e;
    once_error why;
    char key[ONCE_SHOWN_KEY];
    (void)err;
    if (once__pg_null(rows, row, 32) && once__pg_int(rows, row, 16))
        return ONCE_OK; /* its body is missing, which was reported already */
    const int rc = once__pg_read_live(v->q, rows, row, arena, &e, &why);
    const char *flaw = rc == ONCE_OK ? once_entry_flaw(&e) : why.text;
    if (flaw)
        say(v, "key '%s': its row in once_live cannot be used: %s", once__shown_key(once__pg_bytes(rows, row, 20), key),
            flaw);
    return ONCE_OK;
}

/* A finished entry does not have the text of its key, so it is reported by its id. */
static int look_at_finished(verifying *v, const PGresult *rows, int row, once_arena *arena, once_error *err)
{
    once_entry e = {.id = once__pg_id(rows, row, 0)};
    once_pg_names_of names;
    const char *flaw = "it cannot be read";
    (void)arena;
    if (once__pg_detail_read(once__pg_bytes(rows, row, 2), once__pg_int(rows, row, 1), &e, &names)) {
        if (!once__pg_names_want(&v->q->names, names.scope) || !once__pg_names_want(&v->q->names, names.place) ||
            !once__pg_names_want(&v->q->names, names.run) || !once__pg_names_want(&v->q->names, names.who))
            return once_no_memory(err, "for a check");
        const int rc = once__pg_names_fetch(v->q, err);
        if (rc != ONCE_OK) return rc;
        flaw = once_entry_flaw(&e);
        if (flaw && once__pg_int(rows, row, 1) < 0)
            flaw = "one of its times is before 1970; 'once check --repair' repairs that";
        if (!flaw && !once__pg_names_whole(v->q, &names))
            flaw = "a name that it refers to is not in once_name; 'once check --repair' repairs that";
    }
    if (flaw)
        say(v, "table once_entry, id %016llx%016llx: %s", (unsigned long long)e.id.a, (unsigned long long)e.id.b, flaw);
    return ONCE_OK;
}

static int look_at_lane(verifying *v, const PGresult *rows, int row, once_arena *arena, once_error *err)
{
    once_lane lane;
    const once_hash id = once__pg_id(rows, row, 0);
    const int64_t version = once__pg_null(rows, row, 1) ? ONCE_LANE_NO_VERSION : once__pg_int(rows, row, 1),
                  expires_ms = once__pg_int(rows, row, 2);
    (void)arena, (void)err;
    const bool whole =
        version >= ONCE_LANE_NO_VERSION && once__lane_read(version, expires_ms, once__pg_bytes(rows, row, 3), 0, &lane);
    const char *flaw = expires_ms < 0 ? "its time is before 1970; 'once check --repair' repairs that"
                       : whole        ? NULL
                                      : "it cannot be read";
    if (flaw)
        say(v, "table once_lane, id %016llx%016llx: %s", (unsigned long long)id.a, (unsigned long long)id.b, flaw);
    return ONCE_OK;
}

static int verify_letters(verifying *v, once_error *err)
{
    PGresult *rows;
    v->said = 0;
    const int rc = ask(v->q,
                       "SELECT key, id FROM once_letter WHERE attempt < 0 OR failures < 0 OR seen_ms < 0 OR buried_ms "
                       "< 0 OR last_ms < 0 OR count < 1 ORDER BY id",
                       &rows, err);
    if (rc != ONCE_OK) return rc;
    for (int i = 0; i < PQntuples(rows); i++) {
        char key[ONCE_SHOWN_KEY];
        say(v, "key '%s': a count or a time of its dead letter %lld is negative",
            once__shown_key(once__pg_bytes(rows, i, 0), key), (long long)once__pg_int(rows, i, 1));
    }
    PQclear(rows);
    return ONCE_OK;
}

int once__pg_verify(once_postgres *q, void (*damage)(void *user, const char *text), void *user, once_error *err)
{
    verifying v = {.q = q, .damage = damage, .user = user};
    int rc = verify_pairs(&v, err);
    if (rc == ONCE_OK) rc = each(&v, ONCE_PG_LIVE_FULL " WHERE", "l.id", look_at_live, err);
    if (rc == ONCE_OK)
        rc = each(&v, "id, expires_ms, detail FROM once_entry WHERE expires_ms IS NOT NULL AND", "id", look_at_finished,
                  err);
    if (rc == ONCE_OK) rc = each(&v, "id, version, expires_ms, record FROM once_lane WHERE", "id", look_at_lane, err);
    return rc == ONCE_OK ? verify_letters(&v, err) : rc;
}
