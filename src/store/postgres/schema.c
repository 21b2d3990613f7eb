/* The tables of the postgres store, and their versions.
 *
 *   version 1   the first one
 *   version 2   lanes have a record (lane_record.h); once_live has `marks` instead of `flags`, the time of the first
 *               failure and the fields of the fingerprint; entries that wait without a body expire; audit records
 *               keep a body that was replaced; dead letters count their deliveries
 *
 * `tables` below is the layout, with a comment for each column. `once schema postgres:` prints it.
 *
 * A schema holds a store when it has a table once_meta(name, value) in which format = 'once'. Creating the tables is
 * one transaction under an advisory lock, and so is upgrading them: of several processes that start at once one does
 * it, and the others wait. It needs the right to create tables in that schema and nothing else: no extension, no
 * superuser.
 *
 * Why the tables look like this (docs/postgres.md says more): nearly all rows are finished entries, so their row is
 * small: wide columns first, no padding, and everything that only operators ask for packed into `detail` (detail.h).
 * Unfinished entries have tables of their own, with indexes that only they need. The row in once_entry is the lock of a
 * key, the row in once_lane the lock of a lane. */
#include "store/postgres/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"
#include "store/states.h"

#include "base/banned.h"

#define TABLES_2                                                                                                       \
    "CREATE INDEX once_live_expires ON once_live(expires_ms) WHERE state = 2 AND NOT owned;  -- for the sweep\n"       \
    "ALTER TABLE once_audit ADD COLUMN body bytea NOT NULL DEFAULT '';  -- the body that was replaced\n"               \
    "ALTER TABLE once_letter ADD COLUMN count bigint NOT NULL DEFAULT 1;    -- deliveries\n"                           \
    "ALTER TABLE once_letter ADD COLUMN last_ms bigint NOT NULL DEFAULT 0;  -- the last delivery; 0: at buried_ms\n"

/* A view for operators. It is no part of the version: once never reads it, so it may be missing, and older programs do
 * not mind it. It shows states as they are now, like PG_STATS: a claim whose lease has ended is unknown (mark 4,
 * `hold`) or waiting. */
#define STATUS_VIEW                                                                                                    \
    "CREATE VIEW once_status AS     -- unfinished entries and dead letters, for monitoring: GRANT SELECT ON "          \
    "once_status TO ...\n"                                                                                             \
    "  SELECT encode(consumer, 'escape') AS consumer, is_now AS state, count(*), to_timestamp(min(since_ms) / "        \
    "1000.0) AS oldest FROM (\n"                                                                                       \
    "    SELECT consumer, seen_ms AS since_ms, (ARRAY['claimed', 'waiting', 'unknown'])[CASE WHEN state = 1 AND "      \
    "(due_ms <= now_ms OR marks & 1024 <> 0)\n"                                                                        \
    "      THEN CASE WHEN marks & 4 <> 0 THEN 3 ELSE 2 END ELSE state END] AS is_now\n"                                \
    "      FROM once_live, (SELECT (extract(epoch FROM now()) * 1000)::bigint AS now_ms) AS clock WHERE state < 4\n"   \
    "        AND NOT (state = 2 AND NOT owned AND lane IS NULL AND marks & 40 = 0 AND expires_ms <= now_ms)\n"         \
    "    UNION ALL SELECT consumer, buried_ms, 'dead' FROM once_letter) AS entries GROUP BY consumer, is_now;\n"

/* No part of the version either: letters are found without it as well. A hash index, because keys may be long. */
#define LETTER_KEYS "CREATE INDEX once_letter_key ON once_letter USING hash (key);\n"

static const char tables[] =
    "-- Tables of a once store, version 2. `once run` creates them; no other program may write to them.\n"
    "CREATE TABLE once_meta(         -- format, version, secret\n"
    "  name text PRIMARY KEY,\n"
    "  value bytea NOT NULL\n"
    ");\n"
    "CREATE TABLE once_entry(        -- one row for each key; also the lock of the key\n"
    "  expires_ms bigint,            -- finished: dropped then; from 2^62 on: never. NULL: not finished, see "
    "once_live\n"
    "  id uuid PRIMARY KEY,          -- keyed hash of tenant, consumer, operation and key\n"
    "  token uuid,                   -- the claim that settled it\n"
    "  fingerprint uuid,\n"
    "  detail bytea                  -- outcome, times, origin, result (packed)\n"
    ") WITH (autovacuum_vacuum_scale_factor = 0.1);  -- reuse the space of swept rows earlier than the default does\n"
    "CREATE INDEX once_entry_expires ON once_entry((expires_ms >> 16)) WHERE expires_ms < 4611686018427387904;\n"
    "CREATE TABLE once_live(         -- entries that are not finished, and dead entries\n"
    "  id uuid PRIMARY KEY,\n"
    "  token uuid NOT NULL, fingerprint uuid, lane uuid,\n"
    "  ord bigint NOT NULL, gap_ms bigint NOT NULL, remember_ms bigint NOT NULL, run bigint NOT NULL,\n"
    "  seen_ms bigint NOT NULL, changed_ms bigint NOT NULL, due_ms bigint NOT NULL, expires_ms bigint NOT NULL,\n"
    "  attempt bigint NOT NULL, failures bigint NOT NULL,\n"
    "  state smallint NOT NULL,      -- 1 claimed 2 waiting 3 unknown 4 dead\n"
    "  marks smallint NOT NULL,      -- 1 versioned 2 gap 4 hold 8 unreported 16 natural 32 maybe 64 new key 128 block "
    "256 "
    "fixed 512 lookup 1024 unknown with a due time, stored as claimed\n"
    "  owned boolean NOT NULL,       -- its body is in once_body\n"
    "  tenant bytea NOT NULL, consumer bytea NOT NULL, operation bytea NOT NULL, key bytea NOT NULL,\n"
    "  place bytea NOT NULL, point bytea NOT NULL, reason bytea NOT NULL,\n"
    "  who bytea NOT NULL,           -- the worker that saw it first\n"
    "  worker bytea NOT NULL,        -- the worker that has claimed it\n"
    "  history bytea NOT NULL,       -- how its attempts ended\n"
    "  failing_ms bigint NOT NULL DEFAULT 0, -- time of its first failure; 0: none, or unknown\n"
    "  fields bytea NOT NULL DEFAULT ''      -- two bytes of a hash of each field that the fingerprint covers\n"
    ");\n"
    "CREATE INDEX once_live_due ON once_live(consumer, due_ms, id) WHERE owned AND state < 3;\n"
    "CREATE INDEX once_live_state ON once_live(consumer, state, id);\n"
    "CREATE INDEX once_live_lane ON once_live(lane, ord, id) WHERE lane IS NOT NULL AND state < 4;\n"
    "CREATE INDEX once_live_running ON once_live(lane) WHERE lane IS NOT NULL AND state IN (1, 3);\n"
    "CREATE INDEX once_live_token ON once_live(token) WHERE state = 1;\n"
    "CREATE TABLE once_body(         -- messages of entries in once_live that are owned\n"
    "  id uuid PRIMARY KEY,          -- as in once_live\n"
    "  sent_ms bigint,\n"
    "  type bytea NOT NULL, headers bytea NOT NULL, body bytea NOT NULL, place bytea NOT NULL, point bytea NOT NULL\n"
    ");\n"
    "CREATE TABLE once_lane(         -- the highest version that settled in a lane; also the lock of the lane\n"
    "  id uuid PRIMARY KEY,\n"
    "  version bigint,               -- NULL: none has settled\n"
    "  expires_ms bigint NOT NULL,\n"
    "  record bytea NOT NULL DEFAULT ''  -- who settled the version, what the lane waits for (packed)\n"
    ");\n"
    "CREATE TABLE once_letter(       -- dead letters\n"
    "  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,\n"
    "  same uuid NOT NULL UNIQUE,\n"
    "  entry uuid,\n"
    "  attempt bigint NOT NULL, failures bigint NOT NULL, seen_ms bigint NOT NULL, buried_ms bigint NOT NULL, sent_ms "
    "bigint,\n"
    "  kind smallint NOT NULL,\n"
    "  tenant bytea NOT NULL, consumer bytea NOT NULL, operation bytea NOT NULL, key bytea NOT NULL, reason bytea NOT "
    "NULL,\n"
    "  type bytea NOT NULL, headers bytea NOT NULL, body bytea NOT NULL, place bytea NOT NULL, point bytea NOT NULL,\n"
    "  history bytea NOT NULL\n"
    ");\n"
    "CREATE INDEX once_letter_consumer ON once_letter(consumer, id);\n"
    "CREATE TABLE once_name(         -- scopes, places, runs and workers that finished entries refer to\n"
    "  id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,\n"
    "  name bytea NOT NULL UNIQUE\n"
    ");\n"
    "CREATE TABLE once_fact(         -- small named facts\n"
    "  name bytea PRIMARY KEY,\n"
    "  value bytea NOT NULL\n"
    ");\n"
    "CREATE TABLE once_audit(        -- actions of operators\n"
    "  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,\n"
    "  time_ms bigint NOT NULL, letter bigint,\n"
    "  consumer bytea NOT NULL, who bytea NOT NULL, what bytea NOT NULL, key bytea NOT NULL, note bytea NOT NULL\n"
    ");\n"
    "CREATE INDEX once_audit_consumer ON once_audit(consumer, id);\n" TABLES_2 LETTER_KEYS STATUS_VIEW
    "INSERT INTO once_meta VALUES ('format', 'once'), ('version', '" ONCE_POSTGRES_VERSION_TEXT
    "');  -- the first start adds the secret\n";

const char *once__pg_schema(void) { return tables; }

/* The column is renamed so that programs of version 1 that still run fail: they would drop the mark of new idempotency
 * keys, and give messages old ones. */
static const char to_version_2[] =
    "ALTER TABLE once_lane ADD COLUMN record bytea NOT NULL DEFAULT '';\n"
    "ALTER TABLE once_live RENAME COLUMN flags TO marks;\n"
    "ALTER TABLE once_live ADD COLUMN failing_ms bigint NOT NULL DEFAULT 0;\n"
    "ALTER TABLE once_live ADD COLUMN fields bytea NOT NULL DEFAULT '';\n" TABLES_2
    /* Version 1 did not store that an earlier attempt may have had its effect, but the last ten attempts are in the
     * history. And it did not store when entries that wait without a body expire. */
    "UPDATE once_live SET marks = marks | 32 WHERE position(' silent '::bytea IN history) > 0 OR position(' unknown "
    "'::bytea IN history) > 0;"
    "UPDATE once_live SET expires_ms = CASE WHEN remember_ms < 9223372036854775807 - changed_ms THEN changed_ms + "
    "remember_ms"
    " ELSE 9223372036854775807 END WHERE state = 2 AND NOT owned AND expires_ms = 0";

/* Objects that a store does not need. */
static const struct {
    const char *name, *sql;
} extras[] = {{"once_status", STATUS_VIEW}, {"once_letter_key", LETTER_KEYS}};
enum { EXTRAS = sizeof extras / sizeof *extras };

/* ---- what is there ---- */

typedef struct found {
    bool ours;
    bool unused;     /* created by the script, and without a secret yet */
    bool has_extras; /* all extras exist */
    int version;
    char schema[64];  /* its name ... */
    char quoted[132]; /* ... and the name quoted for SQL */
} found;

/* Asks for one text; no row, and NULL, read as empty. */
static int ask(once_pg *pg, const char *sql, char *out, size_t size, once_error *err)
{
    PGresult *result;
    const int rc = once__pg_ask(pg, sql, "?T", &result, err);
    if (rc != ONCE_OK) return rc;
    snprintf(out, size, "%s", PQntuples(result) > 0 ? once__pg_text(result, 0, 0) : "");
    PQclear(result);
    return ONCE_OK;
}

/* Schemas of the server. Temporary ones are among them; they end with the session. */
#define IS_SYSTEMS(name) "(left(" name ", 3) = 'pg_' OR " name " = 'information_schema')"

static int no_place(const once_pg *pg, const char *name, once_error *err)
{
    if (!pg->tables_in[0] && (!name[0] || strncmp(name, "pg_", 3) == 0))
        return once_fail(err, ONCE_E_CONFIG,
                         "%s: search_path names no schema that exists and that this role may use; create one (or GRANT "
                         "USAGE, CREATE ON SCHEMA), or name"
                         " another with ?schema=name",
                         pg->where);
    return once_fail(err, ONCE_E_CONFIG,
                     "%s: schema '%s' belongs to the server and cannot hold a store; name another with ?schema=name",
                     pg->where, name);
}

/* row: the schema, whether it is the server's, whether it exists, the SQL that its owner must run. */
static int judge_place(const once_pg *pg, const PGresult *row, once_error *err)
{
    const char *name = once__pg_text(row, 0, 0), *grant = once__pg_text(row, 0, 3);
    if (!name[0] || once__pg_text(row, 0, 1)[0] == 't') return no_place(pg, name, err);
    if (once__pg_text(row, 0, 2)[0] != 't')
        return once_fail(err, ONCE_E_NO_STORE, "%s: there is no schema '%s'; let the owner of the database run: %s",
                         pg->where, name, grant);
    return grant[0] ? once_fail(err, ONCE_E_DENIED, "%s: this role may not use schema '%s'; let its owner run: %s",
                                pg->where, name, grant)
                    : ONCE_OK;
}

/* Begins a transaction in which the schema of our tables is the current one. The URL names it; otherwise it is the
 * first schema of search_path that has the tables, or the first of all when none has. So a schema that is created later
 * in front of it ("$user") changes nothing. Temporary tables, which would be found first, are put last. */
static int begin_in_schema(once_pg *pg, bool write, once_error *err)
{
    static const char find[] = "SELECT s.name, " IS_SYSTEMS(
        "s.name") ", n.oid IS NOT NULL, CASE WHEN s.name IS NULL THEN NULL WHEN n.oid IS NULL THEN format('CREATE "
                  "SCHEMA %%I AUTHORIZATION %%I', s.name, current_user)"
                  " WHEN NOT has_schema_privilege(n.oid, 'USAGE') THEN format('GRANT USAGE%%s ON SCHEMA %%I TO %%I', "
                  "CASE WHEN EXISTS (SELECT FROM pg_class WHERE"
                  " relnamespace = n.oid AND relname = 'once_meta') THEN '' ELSE ', CREATE' END, s.name, current_user) "
                  "END,"
                  " CASE WHEN has_schema_privilege(n.oid, 'USAGE') AND NOT " IS_SYSTEMS(
                      "s.name") " THEN set_config('search_path', concat(quote_ident(s.name), ', pg_temp'), true) END"
                                " FROM (SELECT coalesce(nullif('%s', ''), (SELECT s.name FROM "
                                "unnest(current_schemas(false)) WITH ORDINALITY"
                                " AS s(name, at) JOIN pg_namespace n ON n.nspname = s.name JOIN pg_class c ON "
                                "c.relnamespace = n.oid AND c.relname = 'once_meta'"
                                " WHERE NOT " IS_SYSTEMS(
                                    "s.name") " ORDER BY s.at LIMIT 1), current_schema()) AS name) AS s LEFT JOIN "
                                              "pg_namespace n ON n.nspname = s.name";
    char name[2 * ONCE_PG_NAME] = "", sql[sizeof find + sizeof name];
    PGresult *row;
    size_t n = 0;
    int rc = once__pg_exec_begin(pg, write, err);
    if (rc != ONCE_OK) return rc;
    for (const char *at = pg->tables_in; *at; at++) {
        if (*at == '\'') name[n++] = '\'';
        name[n++] = *at;
    }
    snprintf(sql, sizeof sql, find, name);
    rc = once__pg_ask(pg, sql, "1TTtTT", &row, err);
    if (rc == ONCE_OK) {
        rc = judge_place(pg, row, err);
        PQclear(row);
    }
    return rc == ONCE_OK ? rc : once__pg_exec_end(pg, rc, err);
}

/* Fails when a crash of the server would empty some of the tables. */
static int look_for_unlogged(once_pg *pg, const found *there, once_error *err)
{
    char names[300], sql[300];
    int rc = ask(pg,
                 "SELECT string_agg(format('ALTER TABLE %I.%I SET LOGGED', current_schema(), relname), '; ' ORDER BY "
                 "relname) FROM pg_class"
                 " WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema()) AND "
                 "left(relname, 5) = 'once_'"
                 " AND relkind = 'r' AND relpersistence <> 'p'",
                 sql, sizeof sql, err);
    if (rc != ONCE_OK || !sql[0]) return rc;
    rc = ask(pg,
             "SELECT string_agg(relname, ', ' ORDER BY relname) FROM pg_class WHERE relnamespace = (SELECT oid FROM "
             "pg_namespace WHERE"
             " nspname = current_schema()) AND left(relname, 5) = 'once_' AND relkind = 'r' AND relpersistence <> 'p'",
             names, sizeof names, err);
    if (rc != ONCE_OK) return rc;
    return once_fail(
        err, ONCE_E_CONFIG,
        "%s: in schema '%s' these tables are UNLOGGED, and empty after a crash of the server: %s; if it has not "
        "crashed since, let the owner"
        " run: %s; else restore it from a backup",
        pg->where, there->schema, names, sql);
}

/* The value in once_meta under this name; *there: there is one. */
static int meta(once_pg *pg, const char *name, char *out, size_t size, bool *there, once_error *err)
{
    char sql[120];
    PGresult *result;
    snprintf(sql, sizeof sql, "SELECT encode(value, 'escape') FROM once_meta WHERE name = '%s'", name);
    const int rc = once__pg_ask(pg, sql, "?t", &result, err);
    if (rc != ONCE_OK) return rc;
    *there = PQntuples(result) > 0;
    snprintf(out, size, "%s", *there ? once__pg_text(result, 0, 0) : "");
    PQclear(result);
    return ONCE_OK;
}

/* Whether the script that `once schema` prints was run here, and the tables have never been used: the secret is
 * missing, and all tables are empty. Older scripts did not write format and version. */
static int look_for_unused(once_pg *pg, found *out, once_error *err)
{
    static const char *const ours[] = {"once_entry",  "once_live", "once_body", "once_lane",
                                       "once_letter", "once_name", "once_fact", "once_audit"};
    char text[40], sql[700];
    bool secret = true;
    int rc = meta(pg, "secret", text, sizeof text, &secret, err);
    if (rc != ONCE_OK || secret) return rc;
    rc = ask(pg,
             "SELECT count(*) FROM pg_class WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = "
             "current_schema()) AND relkind = 'r'"
             " AND relname IN ('once_entry', 'once_live', 'once_body', 'once_lane', 'once_letter', 'once_name', "
             "'once_fact', 'once_audit')",
             text, sizeof text, err);
    if (rc != ONCE_OK || strtoul(text, NULL, 10) != sizeof ours / sizeof *ours) return rc;
    size_t n = (size_t)snprintf(sql, sizeof sql,
                                "SELECT NOT (EXISTS (SELECT FROM once_meta WHERE name NOT IN ('format', 'version'))");
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        n += (size_t)snprintf(sql + n, sizeof sql - n, " OR EXISTS (SELECT FROM %s)", ours[i]);
    snprintf(sql + n, sizeof sql - n, ")");
    rc = ask(pg, sql, text, sizeof text, err);
    out->unused = rc == ONCE_OK && text[0] == 't';
    return rc;
}

static int read_version(once_pg *pg, found *out, once_error *err)
{
    char text[80], *end;
    bool there;
    const int rc = meta(pg, "version", text, sizeof text, &there, err);
    if (rc != ONCE_OK) return rc;
    const long version = strtol(text, &end, 10);
    if (end == text || *end || version < 1 || version > 1000000)
        return once_fail(err, ONCE_E_CORRUPT, "%s: schema '%s' has no version in once_meta; restore it from a backup",
                         pg->where, out->schema);
    if (version > ONCE_POSTGRES_VERSION)
        return once_fail(err, ONCE_E_NEWER,
                         "%s: written by a newer once (tables of version %ld, this one supports %d); upgrade once",
                         pg->where, version, ONCE_POSTGRES_VERSION);
    out->version = (int)version;
    return ONCE_OK;
}

/* Fails when once_meta was emptied in a schema that has the other tables. Another schema would be a second store. */
static int is_emptied(once_pg *pg, const char *schema, once_error *err)
{
    char rows[24], tables_there[24];
    int rc = ask(pg, "SELECT count(*) FROM once_meta", rows, sizeof rows, err);
    if (rc == ONCE_OK)
        rc = ask(pg,
                 "SELECT count(*) FROM pg_class WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = "
                 "current_schema())"
                 " AND relkind = 'r' AND relname IN ('once_entry', 'once_live')",
                 tables_there, sizeof tables_there, err);
    if (rc != ONCE_OK || strcmp(rows, "0") != 0 || strcmp(tables_there, "2") != 0) return rc;
    return once_fail(err, ONCE_E_OTHER_STORE,
                     "%s: the tables of the store in schema '%s' were emptied: once_meta has no row; restore them from "
                     "a backup. To begin"
                     " a new store, in which every message is new, drop them ('once schema postgres:' names them) and "
                     "run 'once check --new-store'",
                     pg->where, schema);
}

static int look(once_pg *pg, found *out, once_error *err)
{
    char text[80];
    bool there = false;
    *out = (found){0};
    int rc = ask(pg, "SELECT current_schema()", out->schema, sizeof out->schema, err);
    if (rc != ONCE_OK) return rc;
    rc = ask(pg, "SELECT quote_ident(current_schema())", out->quoted, sizeof out->quoted, err);
    if (rc != ONCE_OK) return rc;
    /* Not with to_regclass: after a wait for a lock it may still see the catalog as it was before. */
    rc = ask(
        pg,
        "SELECT string_agg(a.attname, ',' ORDER BY a.attnum) FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid"
        " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = current_schema() AND c.relname = 'once_meta'"
        " AND a.attnum > 0 AND NOT a.attisdropped",
        text, sizeof text, err);
    if (rc != ONCE_OK || !text[0]) return rc;
    const bool shaped = strcmp(text, "name,value") == 0;
    if (shaped) rc = meta(pg, "format", text, sizeof text, &there, err);
    if (rc == ONCE_OK && shaped) rc = look_for_unused(pg, out, err);
    if (rc != ONCE_OK) return rc;
    if (shaped && !there && !out->unused) {
        rc = is_emptied(pg, out->schema, err);
        if (rc != ONCE_OK) return rc;
    }
    if (!shaped || (strcmp(text, "once") != 0 && !(out->unused && !there)))
        return once_fail(err, ONCE_E_NOT_OURS,
                         "%s: schema '%s' has a table 'once_meta' that is not ours; use another schema", pg->where,
                         out->schema);
    rc = look_for_unlogged(pg, out, err);
    if (rc == ONCE_OK && there) rc = read_version(pg, out, err);
    if (rc != ONCE_OK) return rc;
    out->ours = true;
    rc = ask(pg,
             "SELECT count(*) FROM pg_class WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = "
             "current_schema())"
             " AND relname IN ('once_status', 'once_letter_key')",
             text, sizeof text, err);
    out->has_extras = strtol(text, NULL, 10) == EXTRAS;
    return rc;
}

static int read_secret(once_pg *pg, once_secret *secret, once_error *err)
{
    char hex[80];
    int rc = ask(pg, "SELECT encode(value, 'hex') FROM once_meta WHERE name = 'secret'", hex, sizeof hex, err);
    if (rc != ONCE_OK) return rc;
    if (strlen(hex) != 32)
        return once_fail(err, ONCE_E_CORRUPT, "%s: the secret of the store is missing; restore it from a backup",
                         pg->where);
    unsigned char bytes[16];
    for (size_t i = 0; i < 16; i++) {
        const char pair[3] = {hex[2 * i], hex[2 * i + 1], 0};
        bytes[i] = (unsigned char)strtoul(pair, NULL, 16);
    }
    memcpy(secret, bytes, sizeof bytes);
    return ONCE_OK;
}
_Static_assert(sizeof(once_secret) == 16, "a secret is stored as 16 bytes");

/* ---- creating and upgrading ---- */

static int make_secret(once_pg *pg, once_error *err)
{
    unsigned char secret[16];
    char hex[33], sql[300];
    once_env_random(pg->env, secret, sizeof secret);
    for (size_t i = 0; i < sizeof secret; i++) snprintf(hex + 2 * i, 3, "%02x", secret[i]);
    snprintf(sql, sizeof sql, "INSERT INTO once_meta VALUES ('secret', decode('%s', 'hex'))", hex);
    return once__pg_exec(pg, sql, NULL, err);
}

static int make(once_pg *pg, once_error *err)
{
    const int rc = once__pg_exec(pg, tables, NULL, err);
    return rc == ONCE_OK ? make_secret(pg, err) : rc;
}

/* Makes a store of tables that the owner's script has created. A script that wrote no version made version 2. */
static int complete(once_pg *pg, found *there, once_error *err)
{
    int rc = there->version
                 ? ONCE_OK
                 : once__pg_exec(pg, "INSERT INTO once_meta VALUES ('format', 'once'), ('version', '2')", NULL, err);
    if (!there->version) there->version = 2;
    return rc == ONCE_OK ? make_secret(pg, err) : rc;
}

static int upgrade(once_pg *pg, int version, once_error *err)
{
    char sql[100];
    int rc = version < 2 ? once__pg_exec(pg, to_version_2, NULL, err) : ONCE_OK;
    if (rc != ONCE_OK) return rc;
    snprintf(sql, sizeof sql, "UPDATE once_meta SET value = '%d' WHERE name = 'version'", ONCE_POSTGRES_VERSION);
    return once__pg_exec(pg, sql, NULL, err);
}

#define LOCK_TABLES                                                                                                    \
    "SELECT pg_advisory_xact_lock(1869505381, (SELECT oid FROM pg_namespace WHERE nspname = "                          \
    "current_schema())::integer)"

static int make_locked(once_pg *pg, once_error *err)
{
    found there;
    int rc = begin_in_schema(pg, true, err);
    if (rc != ONCE_OK) return rc;
    rc = once__pg_exec(pg, LOCK_TABLES, NULL, err);
    if (rc == ONCE_OK) rc = look(pg, &there, err);
    if (rc == ONCE_OK && !there.ours) rc = make(pg, err);
    else if (rc == ONCE_OK && there.unused) rc = complete(pg, &there, err);
    if (rc == ONCE_OK && there.ours && there.version < ONCE_POSTGRES_VERSION) rc = upgrade(pg, there.version, err);
    return once__pg_exec_end(pg, rc, err);
}

/* Reads what the schema holds, and the secret. */
static int look_whole(once_pg *pg, found *there, once_secret *secret, once_error *err)
{
    int rc = begin_in_schema(pg, false, err);
    if (rc != ONCE_OK) return rc;
    rc = look(pg, there, err);
    if (rc == ONCE_OK && there->ours && !there->unused) rc = read_secret(pg, secret, err);
    return once__pg_exec_end(pg, rc, err);
}

/* ---- rights ---- */

/* The GRANTs that this role lacks on our tables; empty: none. Rights that effects need are checked when they are
 * prepared. */
static int missing_rights(once_pg *pg, char *out, size_t size, once_error *err)
{
    int rc = begin_in_schema(pg, false, err);
    if (rc != ONCE_OK) return rc;
    rc = ask(pg,
             "SELECT string_agg(g, '; ') FROM ("
             "SELECT format('GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO %I', CASE WHEN sum(length(current_schema()) "
             "+ length(relname)) < 200"
             " THEN string_agg(format('%I.%I', current_schema(), relname), ', ' ORDER BY relname) ELSE format('ALL "
             "TABLES IN SCHEMA %I', current_schema()) END,"
             " current_user) AS g FROM pg_class WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = "
             "current_schema()) AND relkind = 'r'"
             " AND left(relname, 5) = 'once_' AND NOT (has_table_privilege(oid, 'SELECT') AND has_table_privilege(oid, "
             "'INSERT')"
             " AND has_table_privilege(oid, 'UPDATE') AND has_table_privilege(oid, 'DELETE')) HAVING count(*) > 0"
             " UNION ALL SELECT format('GRANT USAGE, CREATE ON SCHEMA %I TO %I', current_schema(), current_user)"
             " WHERE NOT has_schema_privilege(current_schema(), 'CREATE') AND NOT EXISTS (SELECT FROM pg_class WHERE "
             "relname = 'once_meta'"
             " AND relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema()))) AS missing",
             out, size, err);
    return once__pg_exec_end(pg, rc, err);
}

static int is_denied(once_pg *pg, int rc, once_error *err)
{
    char grants[380];
    if (rc != ONCE_E_DENIED || missing_rights(pg, grants, sizeof grants, NULL) != ONCE_OK || !grants[0]) return rc;
    return once_fail(err, rc, "%s: this role lacks rights; let the owner run: %s", pg->where, grants);
}

int once__pg_inspect(once_pg *pg, once_error *err)
{
    char text[380];
    int rc = ask(pg, "SELECT pg_is_in_recovery()", text, sizeof text, err);
    if (rc == ONCE_OK && text[0] == 't') return once_fail(err, ONCE_E_READONLY, "%s: " ONCE_PG_STANDBY, pg->where);
    if (rc == ONCE_OK) rc = missing_rights(pg, text, sizeof text, err);
    if (rc == ONCE_OK && text[0])
        rc = once_fail(err, ONCE_E_DENIED, "%s: this role lacks rights; let the owner run: %s", pg->where, text);
    return rc == ONCE_OK ? once__pg_user_rights(pg, err) : rc;
}

/* An older store gets the extra at the first start whose role may create it; other roles go on without it. */
static void make_extra(once_pg *pg, const char *name, const char *extra)
{
    char sql[200], there[16] = "";
    snprintf(sql, sizeof sql,
             "SELECT count(*) FROM pg_class WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = "
             "current_schema())"
             " AND relname = '%s'",
             name);
    int rc = begin_in_schema(pg, true, NULL);
    if (rc != ONCE_OK) return;
    rc = once__pg_exec(pg, LOCK_TABLES, NULL, NULL);
    if (rc == ONCE_OK) rc = ask(pg, sql, there, sizeof there, NULL);
    if (rc == ONCE_OK && strcmp(there, "0") == 0) rc = once__pg_exec(pg, extra, NULL, NULL);
    (void)once__pg_exec_end(pg, rc, NULL);
}

int once__pg_ready(once_pg *pg, bool create, once_secret *secret, once_error *err)
{
    found there;
    int rc = is_denied(pg, look_whole(pg, &there, secret, err), err);
    pg->unused = rc == ONCE_OK && there.unused;
    if (rc == ONCE_OK && there.unused && !create)
        rc = once_fail(err, ONCE_E_NO_STORE,
                       "%s: the tables in schema '%s' have not been used yet; `once run` makes a store of them",
                       pg->where, there.schema);
    if (rc == ONCE_OK && !there.ours && !create)
        rc = once_fail(err, ONCE_E_NO_STORE, "%s: schema '%s' has no once tables yet; let `once run` create them",
                       pg->where, there.schema);
    if (rc == ONCE_OK && (!there.ours || there.unused || there.version < ONCE_POSTGRES_VERSION)) {
        rc = is_denied(pg, make_locked(pg, err), err);
        if (rc == ONCE_OK) rc = look_whole(pg, &there, secret, err);
    }
    for (size_t i = 0; rc == ONCE_OK && create && !there.has_extras && i < EXTRAS; i++)
        make_extra(pg, extras[i].name, extras[i].sql);
    if (rc != ONCE_OK || pg->schema) return rc;
    pg->schema = strdup(there.quoted);
    snprintf(pg->tables_in, sizeof pg->tables_in, "%s", there.schema);
    return pg->schema ? ONCE_OK : once_no_memory(err, "for PostgreSQL");
}
