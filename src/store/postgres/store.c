/* The postgres store: a shelf for the engine in tables of a PostgreSQL schema. Transactions, letters, facts, lists,
 * sweep, opening and closing; entries and lanes are in live.c, which also says how keys are locked.  The
 * server's clock is the clock: the time of a transaction is its beginning as the server saw it. BEGIN is sent with
 * the first question, so that is a moment before the locks are taken. A transaction that had to wait for a lock is
 * then a little in the past, where leases of others have not ended yet: it errs to the safe side.  A verb outside of
 * a transaction is one by itself, and is repeated here when the database rolled it back (deadlock, or two made the
 * same row): it has the same tokens, so that is harmless. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/failpoint.h"
#include "base/no_memory.h"
#include "store/postgres/schema.h"
#include "store/postgres/postgres.h"
#include "store/states.h"

#include "base/banned.h"

enum {
    WAIT_MS_DEFAULT = 10000,
    TRIES = 10,
    LIST_STEP = 200,
    HEADS_STEP = 16,
    HEADS_STEP_MAX = 4096,
    SWEEP_LOCK_KEY = 1869505382,
    LETTERS_KEPT = 16 << 20
};
enum { IDENTITY_ROWS = 3 }; /* of once_meta: format, version, secret */
enum {
    SWEEP_STEP = 4000,
    SWEEP_LOOK = 10,
    SWEEP_PAUSE = 4
}; /* rows of a step; steps that one look serves; pause after a step, in its lengths */

/* SQL made of pieces: broken by hand. */
/* clang-format off */
#define NOW(param) "coalesce(" param "::bigint, (extract(epoch FROM now()) * 1000)::bigint)"
#define INT8_OF(bytes) "('x' || encode(" bytes ", 'hex'))::bit(64)::bigint"
#define UNTIL_MS(value) INT8_OF("substr(" value ", 1, 8)")
#define LENGTH_MS(value) INT8_OF("substr(" value ", 9, 8)")
#define LIVE_COLUMNS                                                                                                  \
    "id, token, fingerprint, lane, ord, gap_ms, remember_ms, run, seen_ms, changed_ms, due_ms, expires_ms, attempt,"   \
    " failures, state, marks, owned, tenant, consumer, operation, key, place, point, reason, who, worker, history,"  \
    " failing_ms, fields"
#define IS_BEFORE /* once__lane_before */                                                                              \
    "lane = $1::uuid AND state < 4 AND ord <= $2::bigint AND (ord < $2::bigint OR (seen_ms, id) < ($3::bigint,"        \
    " $4::uuid))"
#define LETTER_COLUMNS                                                                                                \
    "id, entry, attempt, failures, seen_ms, buried_ms, sent_ms, kind, tenant, consumer, operation, key, reason, type," \
    " headers, body, place, point, history, count, last_ms, same"
#define LETTER_HEAD /* without what is large */                                                                        \
    "id, entry, attempt, failures, seen_ms, buried_ms, sent_ms, kind, tenant, consumer, operation, key, reason, type," \
    " ''::bytea, ''::bytea, place, point, ''::bytea, count, last_ms, same"
/* Letters with entries are of one death each, and repeat nothing; the others are counted. */
#define LETTERS_INSERT                                                                                                \
    "INSERT INTO once_letter(same, entry, attempt, failures, seen_ms, buried_ms, sent_ms, kind, count, last_ms,"       \
    " tenant, consumer,"                                                                                               \
    " operation, key, reason, type, headers, body, place, point, history) SELECT * FROM unnest($1::uuid[],"            \
    " $2::uuid[],"                                                                                                     \
    " $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[],"               \
    " $10::bigint[],"                                                                                                  \
    " $11::bytea[], $12::bytea[], $13::bytea[], $14::bytea[], $15::bytea[], $16::bytea[], $17::bytea[], $18::bytea[]," \
    " $19::bytea[], $20::bytea[], $21::bytea[]) ON CONFLICT (same) "

#define ENTRIES_AHEAD                                                                                                 \
    "INSERT INTO once_entry(expires_ms, id, token, fingerprint, detail)"                                               \
    " SELECT " NOW("$6") " + k, i, t, f, d FROM unnest($1::uuid[], $2::bigint[], $3::uuid[], $4::uuid[], $5::bytea[])" \
    " AS u(i, k, t, f, d) ORDER BY i"

#define EXPIRES "state = 2 AND NOT owned AND lane IS NULL AND marks & 40 = 0"                                          \
    /* once_entry_expires; marks silent and maybe */
#define LOST_STATE "(CASE WHEN marks & 4 <> 0 THEN 3 ELSE 2 END)" /* what a claim is when its lease is over */

static const char *const statement_sql[PG_STATEMENTS] = {
    /* What the server has as its default may be off or local; stronger than on is left alone. */
    [PG_NOW] = "SELECT CASE WHEN current_setting('synchronous_commit') IN ('on', 'remote_apply') THEN NULL"
               " ELSE set_config('synchronous_commit', 'on', true) END, " NOW("$1") ", pg_backend_pid(),"
               " (SELECT name FROM once_name WHERE id = $2::bigint::integer),"
               " (SELECT count(*) FROM once_meta WHERE (name = 'format' AND value = 'once')"
               " OR (name = 'version' AND value = '" ONCE_POSTGRES_VERSION_TEXT
               "') OR (name = 'secret' AND value = $3::bytea)), " ONCE_PG_BEGUN,
    [PG_GUARD] = ONCE_PG_GUARD,
    [PG_GUARD_TEMP] = ONCE_PG_GUARD_TEMP,
    /* Until when turns are taken, and how long that is: two numbers. Whoever comes before then and finds somebody at
     * work fails (22012), or waits, where it says how long. */
    [PG_TURN_TRY] = "SELECT 1 / pg_try_advisory_xact_lock($2::bigint)::integer FROM once_fact WHERE name = $1::bytea"
                    " AND " UNTIL_MS("value") " > " NOW("$3"),
    [PG_TURN] = "SELECT set_config('once.lock_timeout', current_setting('lock_timeout'), true),"
                " set_config('lock_timeout', $4::bigint::text, true),"
                " pg_advisory_xact_lock($2::bigint) IS NULL, set_config('lock_timeout',"
                " current_setting('once.lock_timeout'), true)"
                " FROM once_fact WHERE name = $1::bytea AND " UNTIL_MS("value") " > " NOW("$3"),
    /* One after the other, and none behind the first that somebody else has. */
    [PG_LOCKS_TRY] = "SELECT 1 / (NOT EXISTS (SELECT FROM unnest($1::bigint[]) AS u(k)"
                     " WHERE NOT pg_try_advisory_xact_lock(k)))::integer",
    [PG_LOCKS] = "SELECT set_config('once.lock_timeout', current_setting('lock_timeout'), true),"
                 " set_config('lock_timeout', $2::bigint::text, true),"
                 " (SELECT count(pg_advisory_xact_lock(k) IS NULL) FROM unnest($1::bigint[]) AS u(k)),"
                 " set_config('lock_timeout', current_setting('once.lock_timeout'), true)",
    /* Longer than the last time when that was a short while ago. Several may deadlock at once: the first one says
     * it. */
    [PG_TURNS_BEGIN] = "INSERT INTO once_fact AS f (name, value) VALUES ($1::bytea,"
                       " int8send(" NOW("$4") " + $2::bigint) || int8send($2::bigint))"
                       " ON CONFLICT (name) DO UPDATE SET value = (SELECT int8send(" NOW("$4") " + t.ms)"
                       " || int8send(t.ms) FROM (SELECT CASE WHEN "
                       UNTIL_MS("f.value") " + " LENGTH_MS("f.value") " > " NOW("$4") " THEN least(2 * "
                       LENGTH_MS("f.value") ", $3::bigint)"
                       " ELSE $2::bigint END AS ms) t) WHERE " UNTIL_MS("f.value") " <= " NOW("$4"),
    /* A plan that was made while a table was small must not read all of it when it has grown. The user's statements
     * are not touched by that. */
    [PG_PLAN] = "SELECT set_config('once.seqscan', current_setting('enable_seqscan'), true),"
                " set_config('enable_seqscan', 'off', true)",
    [PG_PLAN_BATCH] = "SELECT set_config('once.seqscan', current_setting('enable_seqscan'), true),"
                      " set_config('enable_seqscan', 'off', true),"
                      " CASE WHEN current_setting('lock_timeout') = '0' AND NOT EXISTS (SELECT FROM once_fact WHERE"
                      " name = $1::bytea AND "
                      UNTIL_MS("value") " > " NOW("$2") ") THEN set_config('lock_timeout', $3::bigint::text, true) END",
    [PG_UNPLAN] = "SELECT set_config('enable_seqscan', current_setting('once.seqscan'), true)",
    [PG_ENTRY_AHEAD] = ENTRIES_AHEAD " ON CONFLICT (id) DO NOTHING RETURNING id",
    [PG_ENTRY_NEW] = ENTRIES_AHEAD " RETURNING id",
    [PG_ENTRY_LOCK] = "SELECT id, expires_ms, token, fingerprint, detail FROM once_entry WHERE id = ANY($1::uuid[])"
                      " AND xmin <> pg_current_xact_id()::xid ORDER BY id FOR UPDATE",
    [PG_ENTRY_READ] = "SELECT id, expires_ms, token, fingerprint, detail FROM once_entry WHERE id = ANY($1::uuid[])",
    [PG_ENTRY_INSERT] = "INSERT INTO once_entry(expires_ms, id, token, fingerprint, detail)"
                        " SELECT k, i, t, f, d FROM unnest($1::uuid[], $2::bigint[], $3::uuid[], $4::uuid[],"
                        " $5::bytea[])"
                        " AS u(i, k, t, f, d) ORDER BY i",
    [PG_ENTRY_UPDATE] = "UPDATE once_entry e SET expires_ms = k, token = t, fingerprint = f, detail = d"
                        " FROM unnest($1::uuid[], $2::bigint[], $3::uuid[], $4::uuid[], $5::bytea[]) AS u(i, k, t, f,"
                        " d) WHERE e.id = i",
    [PG_ENTRY_DELETE] = "DELETE FROM once_entry WHERE id = ANY($1::uuid[])",
    [PG_LIVE_READ] = "SELECT " ONCE_PG_LIVE_FULL " WHERE l.id = ANY($1::uuid[]) ORDER BY l.id",
    [PG_LIVE_LANES] = "SELECT lane FROM once_live WHERE id = ANY($1::uuid[]) AND lane IS NOT NULL ORDER BY id",
    [PG_LIVE_PUT] = "INSERT INTO once_live(" LIVE_COLUMNS ") SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[],"
                    " $4::uuid[],"
                    " $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[],"
                    " $11::bigint[], $12::bigint[],"
                    " $13::bigint[], $14::bigint[], $15::smallint[], $16::smallint[], $17::boolean[], $18::bytea[],"
                    " $19::bytea[],"
                    " $20::bytea[], $21::bytea[], $22::bytea[], $23::bytea[], $24::bytea[], $25::bytea[],"
                    " $26::bytea[], $27::bytea[],"
                    " $28::bigint[], $29::bytea[]) ON CONFLICT (id) DO UPDATE SET (token,"
                    " fingerprint, lane, ord, gap_ms, remember_ms, run, seen_ms, changed_ms, due_ms, expires_ms,"
                    " attempt, failures,"
                    " state, marks, owned, tenant, consumer, operation, key, place, point, reason, who, worker,"
                    " history, failing_ms,"
                    " fields) = (excluded.token,"
                    " excluded.fingerprint, excluded.lane, excluded.ord, excluded.gap_ms, excluded.remember_ms,"
                    " excluded.run,"
                    " excluded.seen_ms, excluded.changed_ms, excluded.due_ms, excluded.expires_ms, excluded.attempt,"
                    " excluded.failures, excluded.state, excluded.marks, excluded.owned, excluded.tenant,"
                    " excluded.consumer,"
                    " excluded.operation, excluded.key, excluded.place, excluded.point, excluded.reason, excluded.who,"
                    " excluded.worker,"
                    " excluded.history, excluded.failing_ms, excluded.fields)",
    [PG_LIVE_DELETE] = "DELETE FROM once_live WHERE ctid = ANY(ARRAY(SELECT ctid FROM once_live WHERE id ="
                       " ANY($1::uuid[]) ORDER BY id))",
    [PG_BODY_PUT] = "INSERT INTO once_body(id, sent_ms, type, headers, body, place, point)"
                    " SELECT * FROM unnest($1::uuid[],"
                    " $2::bigint[], $3::bytea[], $4::bytea[], $5::bytea[], $6::bytea[], $7::bytea[]) ON CONFLICT (id)"
                    " DO UPDATE SET"
                    " (sent_ms, type, headers, body, place, point) = (excluded.sent_ms, excluded.type,"
                    " excluded.headers,"
                    " excluded.body, excluded.place, excluded.point)",
    [PG_BODY_DELETE] = "DELETE FROM once_body WHERE id = ANY($1::uuid[])",
    /* The row of a lane without a version is there for the lock alone, and may go when nothing has happened for an
     * hour. */
    [PG_LANE_AHEAD] = "INSERT INTO once_lane(id, expires_ms) SELECT i, " NOW("$2") " + 3600000 FROM unnest($1::uuid[])"
                      " AS u(i)"
                      " ORDER BY i ON CONFLICT (id) DO NOTHING RETURNING id",
    [PG_LANE_LOCK] = "SELECT id FROM once_lane WHERE id = ANY($1::uuid[]) ORDER BY id FOR UPDATE",
    [PG_LANE_LOCK_FREE] = "SELECT id FROM once_lane WHERE id = ANY($1::uuid[]) ORDER BY id FOR UPDATE SKIP LOCKED",
    /* Among those with the lowest order the one that was seen first. What is settled is only judged: there some of
     * them will do. */
    [PG_LANE_READ] = "SELECT l.id, l.version, l.expires_ms, f.id, h.ord, t.ord, r.id IS NOT NULL, l.record,"
                     " f.seen_ms FROM once_lane l"
                     " LEFT JOIN LATERAL (SELECT e.ord FROM once_live e WHERE e.lane = l.id AND e.state < 4"
                     " AND e.id <> ALL($2::uuid[]) ORDER BY e.ord, e.id LIMIT 1) h ON true"
                     " LEFT JOIN LATERAL (SELECT q.id, q.seen_ms FROM (SELECT e.id,"
                     " e.seen_ms FROM once_live e WHERE e.lane = l.id"
                     " AND e.state < 4 AND e.ord = h.ord AND e.id <> ALL($2::uuid[]) ORDER BY e.id"
                     " LIMIT CASE WHEN h.ord <= l.version AND l.expires_ms > " NOW("$3") " THEN $4::bigint END) q"
                     " ORDER BY q.seen_ms, q.id LIMIT 1) f ON true"
                     " LEFT JOIN LATERAL (SELECT e.ord FROM once_live e WHERE e.lane = l.id AND e.state < 4 AND e.id"
                     " <> ALL($2::uuid[])"
                     " ORDER BY e.ord DESC, e.id DESC LIMIT 1) t ON true"
                     " LEFT JOIN LATERAL (SELECT e.id FROM once_live e WHERE e.lane = l.id AND e.state IN (1, 3)"
                     " AND e.id <> ALL($2::uuid[])"
                     " LIMIT 1) r ON true WHERE l.id = ANY($1::uuid[])",
    [PG_LANE_EQUALS] = "SELECT coalesce(max(seen_ms), 0)::bigint FROM (SELECT seen_ms FROM once_live WHERE lane ="
                       " $1::uuid AND state < 4"
                       " AND ord = $2::bigint LIMIT $3::bigint) e",
    [PG_LANE_BEFORE] = "SELECT u.id, (SELECT count(*) FROM (SELECT 1 FROM once_live WHERE " IS_BEFORE " LIMIT"
                       " $6::bigint) c)::bigint FROM"
                       " (SELECT id FROM (SELECT id FROM once_live WHERE " IS_BEFORE " ORDER BY ord, seen_ms,"
                       " id LIMIT $5::bigint) b UNION"
                       " SELECT id FROM (SELECT id FROM once_live WHERE lane = $1::uuid AND state IN (1, 3)"
                       " AND id <> $4::uuid LIMIT $5::bigint) o) u",
    [PG_LANE_PUT] = "UPDATE once_lane l SET version = v, expires_ms = x, record = r FROM unnest($1::uuid[],"
                    " $2::bigint[],"
                    " $3::bigint[], $4::bytea[]) AS u(i, v, x, r) WHERE l.id = i",
    [PG_NAME_FIND] = "SELECT id, name FROM once_name WHERE name = ANY($1::bytea[])",
    [PG_NAME_MAKE] = "INSERT INTO once_name(name) SELECT n FROM unnest($1::bytea[]) AS u(n)"
                     " ORDER BY n ON CONFLICT (name) DO NOTHING",
    /* Fails (22012) when a number stands for another text than we know, or for none: the store was restored. */
    [PG_NAME_CHECK] = "SELECT 1 / (count(*) = $3::bigint)::integer FROM unnest($1::integer[], $2::bytea[]) AS u(i, n)"
                      " JOIN once_name k ON k.id = u.i AND k.name = u.n",
    [PG_NAME_GET] = "SELECT id, name FROM once_name WHERE id = ANY($1::integer[])",
    /* One by one, a lane before its entry, until there are enough. So many may be locked by others that it looks
     * further than it wants. */
    /* A lane that is not there at all cannot be locked, and is damage; one that somebody else has is passed over. */
    [PG_DUE] = "SELECT w.id, w.lane, w.lane IS NOT NULL AND a.id IS NULL FROM (SELECT l.id,"
               " l.lane FROM once_live l WHERE l.consumer = $1::bytea AND l.owned AND l.state < 3"
               " AND l.due_ms <= $2::bigint ORDER BY l.due_ms, l.id LIMIT 8 * $3::bigint) w"
               " LEFT JOIN LATERAL (SELECT a.id FROM once_lane a WHERE a.id = w.lane FOR UPDATE SKIP LOCKED) a ON true"
               " CROSS JOIN LATERAL (SELECT e.id FROM once_entry e WHERE e.id = w.id AND (w.lane IS NULL OR a.id IS"
               " NOT NULL"
               " OR (SELECT x.id FROM once_lane x WHERE x.id = w.lane) IS NULL) FOR UPDATE SKIP LOCKED)"
               " e LIMIT $3::bigint",
    /* Of lanes that are locked, and that nobody else occupies: the head is the caller's claim, or due. */
    [PG_LANE_WAITING] = "SELECT w.id FROM unnest($1::uuid[]) WITH ORDINALITY AS u(lane, n)"
                        " CROSS JOIN LATERAL (SELECT h.state, h.due_ms FROM once_live h WHERE h.lane = u.lane AND"
                        " h.state < 4"
                        " ORDER BY h.ord, h.id LIMIT 1) h"
                        " CROSS JOIN LATERAL (SELECT e.id, e.ord FROM once_live e WHERE e.lane = u.lane AND e.state < 4"
                        " AND (h.state = 1 OR h.due_ms <= $4::bigint) ORDER BY e.ord, e.id LIMIT $2::bigint) w"
                        " ORDER BY u.n, w.ord, w.id LIMIT $3::bigint",
    [PG_BY_TOKEN] = "SELECT l.id, l.lane FROM once_live l WHERE l.token >= $1::uuid AND l.token <= $2::uuid"
                    " AND l.state = 1 AND l.consumer = $3::bytea ORDER BY l.token LIMIT $4::bigint",
    [PG_LAPSED] = "SELECT w.id, w.lane FROM (SELECT l.id, l.lane FROM once_live l WHERE l.consumer = $1::bytea AND"
                  " l.state = 1"
                  " AND l.due_ms <= $2::bigint AND l.marks & 4 <> 0 LIMIT 8 * $3::bigint) w"
                  " LEFT JOIN LATERAL (SELECT a.id FROM once_lane a WHERE a.id = w.lane FOR UPDATE SKIP LOCKED)"
                  " a ON true"
                  " CROSS JOIN LATERAL (SELECT e.id FROM once_entry e WHERE e.id = w.id AND (w.lane IS NULL OR a.id IS"
                  " NOT NULL)"
                  " FOR UPDATE SKIP LOCKED) e LIMIT $3::bigint",
    [PG_LETTERS_PUT] = LETTERS_INSERT "DO NOTHING",
    [PG_LETTERS_COUNT] = LETTERS_INSERT "DO UPDATE SET (count, last_ms, place, point)"
                         " = (once_letter.count + excluded.count, excluded.last_ms,"
                         " excluded.place, excluded.point) RETURNING same, count",
    [PG_LETTER_GET] = "SELECT " LETTER_COLUMNS " FROM once_letter WHERE id = $1::bigint",
    [PG_LETTERS_GET] = "SELECT " LETTER_COLUMNS " FROM once_letter WHERE id = ANY($1::bigint[]) ORDER BY id",
    [PG_LETTERS_DROP] = "DELETE FROM once_letter WHERE id = ANY($1::bigint[])",
    [PG_LETTERS] = "SELECT " LETTER_COLUMNS " FROM once_letter WHERE consumer = $1::bytea AND id > $2::bigint ORDER BY"
                   " id LIMIT $3::bigint",
    [PG_LETTER_HEADS] = "SELECT " LETTER_HEAD " FROM once_letter WHERE consumer = $1::bytea AND id > $2::bigint ORDER"
                        " BY id LIMIT $3::bigint",
    /* By the index of keys and no other, whatever the server thinks of them. */
    [PG_LETTERS_OF_KEY] = "SELECT " LETTER_HEAD " FROM once_letter WHERE key = $4::bytea AND consumer || ''::bytea ="
                          " $1::bytea AND id + 0 > $2::bigint"
                          " ORDER BY id + 0 LIMIT $3::bigint",
    [PG_AUDITS_PUT] = "INSERT INTO once_audit(time_ms, letter, consumer, who, what, key, note, body)"
                      " SELECT * FROM unnest($1::bigint[], $2::bigint[],"
                      " $3::bytea[], $4::bytea[], $5::bytea[], $6::bytea[], $7::bytea[], $8::bytea[])",
    [PG_AUDITS] = "SELECT id, time_ms, letter, consumer, who, what, key, note, body FROM once_audit WHERE consumer ="
                  " $1::bytea"
                  " AND id > $2::bigint ORDER BY id LIMIT $3::bigint",
    /* By what they are now, as once_entry_state_at says it: claimed until the lease is over, then unknown (mark 4,
     * `hold`) or waiting. */
    [PG_STATS] = "SELECT CASE WHEN state = 1 AND due_ms <= $2::bigint THEN " LOST_STATE " ELSE state END AS is_now,"
                 " count(*),"
                 " min(CASE WHEN owned OR (state = 1 AND due_ms > $2::bigint) THEN due_ms END)"
                 " FROM once_live WHERE consumer = $1::bytea"
                 " AND state < 4 AND NOT (" EXPIRES " AND expires_ms <= $2::bigint) GROUP BY is_now",
    [PG_STATS_LETTERS] = "SELECT count(*) FROM once_letter WHERE consumer = $1::bytea",
    [PG_LIST_LIVE] = "(SELECT " ONCE_PG_LIVE_FULL " WHERE l.consumer = $1::bytea AND l.state = $2::bigint AND NOT"
                     " (l.state = 1 AND l.due_ms <= $5::bigint)"
                     " AND NOT (" EXPIRES " AND expires_ms <= $5::bigint) AND l.id > $3::uuid ORDER BY l.id LIMIT"
                     " $4::bigint) UNION ALL (SELECT " ONCE_PG_LIVE_FULL " WHERE l.consumer = $1::bytea"
                     " AND l.state = 1 AND l.due_ms <= $5::bigint AND " LOST_STATE " = $2::bigint AND l.id > $3::uuid"
                     " ORDER BY l.id"
                     " LIMIT $4::bigint) ORDER BY 1 LIMIT $4::bigint",
    [PG_LIST_FINISHED] = "SELECT id, expires_ms, token, fingerprint, detail FROM once_entry WHERE id > $1::uuid AND"
                         " expires_ms > $2::bigint"
                         " ORDER BY id LIMIT $3::bigint",
    [PG_FACT_GET] = "SELECT value FROM once_fact WHERE name = $1::bytea",
    [PG_FACTS_SET] = "INSERT INTO once_fact(name, value) SELECT * FROM unnest($1::bytea[], $2::bytea[])"
                     " ORDER BY 1 ON CONFLICT (name) DO UPDATE"
                     " SET value = excluded.value",
    /* No row, no commit: 22012. */
    [PG_FACT_COUNT] = "WITH u AS (UPDATE once_fact SET value = $2::bytea WHERE name = $1::bytea AND substr(value, 1,"
                      " 8) >= $3::bytea RETURNING 1)"
                      " SELECT 1 / count(*) FROM u",
    [PG_FACTS] = "SELECT name, value FROM once_fact WHERE substr(name, 1, length($1::bytea)) = $1::bytea",
    [PG_FACTS_DELETE] = "DELETE FROM once_fact WHERE name = ANY($1::bytea[])",
    /* Of the session, and kept between the steps: otherwise somebody else would sweep in the pauses. */
    [PG_SWEEP_LOCK] = "SELECT pg_try_advisory_lock($1::bigint::integer, (SELECT c.relnamespace FROM pg_class c JOIN"
                      " once_meta m ON m.tableoid = c.oid LIMIT 1)::integer)",
    /* Where sessions are shared: of a step. */
    [PG_SWEEP_LOCK_TX] = "SELECT pg_try_advisory_xact_lock($1::bigint::integer, (SELECT c.relnamespace FROM pg_class c"
                         " JOIN once_meta m ON m.tableoid = c.oid LIMIT 1)::integer)",
    [PG_SWEEP_UNLOCK] = "SELECT pg_advisory_unlock($1::bigint::integer, (SELECT c.relnamespace FROM pg_class c JOIN"
                        " once_meta m ON m.tableoid = c.oid LIMIT 1)::integer)",
    /* What has a time before 1970 is damaged, and not over. The index knows minutes, not milliseconds: equal keys of
     * it share their space, and it needs a third less. */
    [PG_SWEEP_LOOK] = "SELECT ctid, expires_ms >> 16 FROM once_entry WHERE expires_ms >> 16 >= greatest($1::bigint, 0)"
                      " AND expires_ms >> 16 <= $2::bigint >> 16"
                      " AND expires_ms <= $2::bigint AND expires_ms < 4611686018427387904 ORDER BY expires_ms >> 16"
                      " LIMIT $3::bigint",
    /* Another row may be there by now. If it has expired too, it may go as well. */
    [PG_SWEEP] = "DELETE FROM once_entry WHERE ctid = ANY(ARRAY(SELECT ctid FROM once_entry WHERE ctid = ANY($1::tid[])"
                 " AND expires_ms <= $2::bigint FOR UPDATE SKIP LOCKED))",
    [PG_SWEEP_WAITING] = "SELECT l.id, l.lane FROM once_live l JOIN once_entry e ON e.id = l.id WHERE l.state = 2 AND"
                         " NOT l.owned AND l.lane IS NULL"
                         " AND l.marks & 40 = 0 AND l.expires_ms <= $1::bigint ORDER BY l.expires_ms LIMIT $2::bigint"
                         " FOR UPDATE OF e SKIP LOCKED",
    [PG_SWEEP_LANES_LOOK] = "SELECT id, expires_ms BETWEEN 0 AND $3::bigint FROM once_lane WHERE id > $1::uuid ORDER"
                            " BY id LIMIT $2::bigint",
    [PG_SWEEP_LANES_LOCK] = "SELECT id FROM once_lane WHERE id = ANY($1::uuid[])"
                            " AND expires_ms <= $2::bigint FOR UPDATE SKIP LOCKED",
    [PG_SWEEP_LANES] = "DELETE FROM once_lane l WHERE l.id = ANY($1::uuid[]) AND NOT EXISTS"
                       " (SELECT 1 FROM once_live e WHERE e.lane = l.id AND e.state < 4)",
    [PG_REPAIR_LOOK] = "SELECT id, expires_ms, detail FROM once_entry WHERE id > $1::uuid AND expires_ms IS NOT NULL"
                       " ORDER BY id LIMIT $2::bigint",
    /* Whoever has changed it meanwhile knew its names. */
    [PG_REPAIR] = "UPDATE once_entry e SET detail = d FROM unnest($1::uuid[], $2::bytea[], $3::bytea[]) AS u(i, o, d)"
                  " WHERE e.id = i AND e.detail = o",
};

#define SHAPE_ENTRY "*uQUUY"
#define SHAPE_LIVE "*uuUUqqqqqqqqqqhhbyyyyyyyyyyqyQYYYYY"
#define SHAPE_LETTER "qUqqqqQhyyyyyyyyyyyqqu"

/* What each of them returns (once__pg_fits). */
static const char *const statement_shape[PG_STATEMENTS] = {
    [PG_NOW] = "1TqiYqttttt",
    [PG_GUARD] = "1i",
    [PG_GUARD_TEMP] = "1i",
    [PG_TURN_TRY] = "?i",
    [PG_TURN] = "?ttbt",
    [PG_LOCKS_TRY] = "1i",
    [PG_LOCKS] = "1ttqt",
    [PG_TURNS_BEGIN] = "",
    [PG_PLAN] = "1tt",
    [PG_PLAN_BATCH] = "1ttT",
    [PG_UNPLAN] = "1t",
    [PG_ENTRY_AHEAD] = "*u",
    [PG_ENTRY_NEW] = "*u",
    [PG_ENTRY_LOCK] = SHAPE_ENTRY,
    [PG_ENTRY_READ] = SHAPE_ENTRY,
    [PG_ENTRY_INSERT] = "",
    [PG_ENTRY_UPDATE] = "",
    [PG_ENTRY_DELETE] = "",
    [PG_LIVE_READ] = SHAPE_LIVE,
    [PG_LIVE_LANES] = "*u",
    [PG_LIVE_PUT] = "",
    [PG_LIVE_DELETE] = "",
    [PG_BODY_PUT] = "",
    [PG_BODY_DELETE] = "",
    [PG_LANE_AHEAD] = "*u",
    [PG_LANE_LOCK] = "*u",
    [PG_LANE_LOCK_FREE] = "*u",
    [PG_LANE_READ] = "*uQqUQQbyQ",
    [PG_LANE_EQUALS] = "1q",
    [PG_LANE_BEFORE] = "*uq",
    [PG_LANE_PUT] = "",
    [PG_NAME_FIND] = "*iy",
    [PG_NAME_MAKE] = "",
    [PG_NAME_CHECK] = "1i",
    [PG_NAME_GET] = "*iy",
    [PG_DUE] = "*uUb",
    [PG_LANE_WAITING] = "*u",
    [PG_BY_TOKEN] = "*uU",
    [PG_LAPSED] = "*uU",
    [PG_LETTERS_PUT] = "",
    [PG_LETTERS_COUNT] = "*uq",
    [PG_LETTER_GET] = "?" SHAPE_LETTER,
    [PG_LETTERS_GET] = "*" SHAPE_LETTER,
    [PG_LETTERS_DROP] = "",
    [PG_LETTERS] = "*" SHAPE_LETTER,
    [PG_LETTER_HEADS] = "*" SHAPE_LETTER,
    [PG_LETTERS_OF_KEY] = "*" SHAPE_LETTER,
    [PG_AUDITS_PUT] = "",
    [PG_AUDITS] = "*qqQyyyyyy",
    [PG_STATS] = "*iqQ",
    [PG_STATS_LETTERS] = "1q",
    [PG_LIST_LIVE] = SHAPE_LIVE,
    [PG_LIST_FINISHED] = SHAPE_ENTRY,
    [PG_FACT_GET] = "?y",
    [PG_FACTS] = "*yy",
    [PG_FACTS_SET] = "",
    [PG_FACT_COUNT] = "1q",
    [PG_FACTS_DELETE] = "",
    [PG_SWEEP_LOCK] = "1b",
    [PG_SWEEP_LOCK_TX] = "1b",
    [PG_SWEEP_UNLOCK] = "1b",
    [PG_SWEEP_LOOK] = "*dq",
    [PG_SWEEP] = "",
    [PG_SWEEP_WAITING] = "*uU",
    [PG_SWEEP_LANES_LOOK] = "*ub",
    [PG_SWEEP_LANES_LOCK] = "*u",
    [PG_SWEEP_LANES] = "",
    [PG_REPAIR_LOOK] = "*uqY",
    [PG_REPAIR] = "",
};
/* clang-format on */

/* ---- time ---- */

#ifdef ONCE_TEST_BUILD
int64_t (*once__pg_test_clock)(const once_env *env);

int64_t once__pg_test_now(const once_postgres *q, bool *set)
{
    *set = once__pg_test_clock != NULL;
    return *set ? once__pg_test_clock(q->shelf.store.env) : 0;
}
#else
int64_t once__pg_test_now(const once_postgres *q, bool *set)
{
    (void)q;
    *set = false;
    return 0;
}
#endif

/* ---- transactions ---- */

static void undo(once_postgres *q)
{
    PGresult *results[2];
    const size_t n = q->nested ? 2 : 1;
    if (q->pg->pending || q->pg->synced) { /* half of a round was sent */
        once__pg_drop(q->pg);
        return;
    }
    (void)once__pg_confirm(q->pg, NULL);
    int rc = once__pg_send_text(q->pg, q->nested ? "ROLLBACK TO once_store" : "ROLLBACK", NULL);
    if (rc == ONCE_OK && q->nested) rc = once__pg_send_text(q->pg, "RELEASE once_store", NULL);
    if (rc == ONCE_OK) rc = once__pg_round(q->pg, results, n, NULL);
    if (rc == ONCE_OK) once__pg_clear(results, n);
    else once__pg_drop(q->pg);
}

static void tx_over(once_postgres *q, bool committed)
{
    if (q->begun && !committed && once__pg_alive(q->pg)) undo(q);
    if (q->open) once__pg_leave(q->pg);
    once__pg_names_end(&q->names, committed);
    once__pg_live_clear(q);
    if (q->batch && !committed && q->pg->collided) q->turns.due = true;
    q->pg->collided = q->batch = false;
    q->n_locks = 0;
    q->letters[0].n = q->dropped.n = q->audits[0].n = 0;
    q->n_ahead = 0;
    q->facts = NULL;
    once__pg_forget_session(q->pg);
    q->pg->savepoints = 0;
    q->pg->presumed = q->pg->effects = false;
    q->open = q->write = q->begun = q->nested = false;
}

void once__pg_begin_anew(once_postgres *q)
{
    const bool batch = q->batch, due = q->turns.due;
    const size_t n_locks = q->n_locks;
    assert(!q->nested && !q->pg->borrowed);
    tx_over(q, false);
    q->n_locks = n_locks;
    q->open = q->write = true;
    q->batch = batch;
    q->turns.due = due;
}

/* Behind a new connection may be another server, or an older state of the store: what was known of it goes with the
 * old one. */
static int know_again(once_postgres *q, once_error *err)
{
    once_secret secret;
    if (q->connection == q->pg->connections) return ONCE_OK;
    once__pg_names_clear(&q->names);
    const int rc = once__pg_ready(q->pg, false, &secret, err);
    if (rc == ONCE_E_NO_STORE && q->pg->unused)
        return once_fail(err, ONCE_E_OTHER_STORE,
                         "%s: the tables of the store were emptied while it was in use; bring back what was in them: "
                         "without it every message is new",
                         q->pg->where);
    if (rc == ONCE_E_NO_STORE)
        return once_fail(err, ONCE_E_MISSING, "%s: the tables of the store are gone; restore them", q->pg->where);
    if (rc != ONCE_OK) return rc;
    if (memcmp(&secret, &q->shelf.store.secret, sizeof secret) != 0)
        return once_fail(err, ONCE_E_OTHER_STORE,
                         "%s: this is another store than before, with another secret; bring that one back: here every "
                         "message is new",
                         q->pg->where);
    q->connection = q->pg->connections;
    return ONCE_OK;
}

static int pg_begin(once_shelf *shelf, bool write, once_error *err)
{
    once_postgres *q = once__pg_of(shelf);
    assert(!q->open);
    int connected = once__pg_connect(q->pg, q->wait_ms, err);
    if (connected == ONCE_OK) connected = know_again(q, err);
    if (connected != ONCE_OK) return connected;
    if (q->pg->borrowed) {
        q->nested = PQtransactionStatus(q->pg->conn) == PQTRANS_INTRANS;
        once__pg_names_clear(&q->names); /* the caller may have rolled back the transaction that made them */
        const int rc = once__pg_enter(q->pg, err);
        if (rc != ONCE_OK) return rc;
    }
    q->open = true;
    q->write = write;
    return ONCE_OK;
}

int once__pg_begin_send(once_postgres *q, size_t *sent, once_error *err)
{
    if (q->begun) return ONCE_OK;
    once_pg_params params = {0};
    bool set;
    const int64_t now_ms = once__pg_test_now(q, &set);
    if (set) once__pg_param_int8(&params, now_ms);
    else once__pg_param_null(&params);
    if (q->names.newest) once__pg_param_int8(&params, q->names.newest->number);
    else once__pg_param_null(&params);
    q->names.asked = q->names.newest;
    once__pg_param_bytes(&params, (once_bytes){(const char *)&q->shelf.store.secret, sizeof q->shelf.store.secret});
    int rc;
    if (q->nested) {
        rc = once__pg_send_text(q->pg, "SAVEPOINT once_store", err);
        *sent += rc == ONCE_OK;
    } else {
        rc = once__pg_begin_sql(q->pg, q->write ? PG_BEGIN_WRITE : PG_BEGIN_READ, sent, err);
    }
    q->now_at = *sent;
    if (rc == ONCE_OK) rc = once__pg_send(q->pg, PG_NOW, &params, err);
    *sent += rc == ONCE_OK;
    if (rc == ONCE_OK && q->batch) rc = once__pg_turn_send(q, sent, err);
    q->begun = true;
    return rc;
}

/* Format, version or secret are not what they were: the next transaction looks at them as a new connection does, and
 * says what it is. */
static int doubt(once_postgres *q, once_error *err)
{
    if (q->pg->borrowed)
        return once_fail(err, ONCE_E_MOVED,
                         "%s: the identity of the store in once_meta (format, version, secret) is not what it was; "
                         "start anew if that is meant",
                         q->pg->where);
    q->connection = q->pg->connections - 1;
    return once_fail(err, ONCE_E_ABORTED, "%s: the identity of the store in once_meta is not what it was",
                     q->pg->where);
}

int once__pg_begin_read(once_postgres *q, PGresult *const *results, size_t n, once_error *err)
{
    if (n == 0) return ONCE_OK;
    const PGresult *said = results[q->now_at];
    q->shelf.now_ms = once__pg_int(said, 0, 1);
    int rc = once__pg_same_session(q->pg, once__pg_int(said, 0, 2), err);
    if (rc == ONCE_OK && once__pg_int(said, 0, 4) != IDENTITY_ROWS) rc = doubt(q, err);
    if (rc == ONCE_OK) rc = once__pg_guard_keep(q->pg, said, 5, err);
    return rc == ONCE_OK ? once__pg_names_confirm(q, once__pg_bytes(said, 0, 3), err) : rc;
}

/* ---- what commit writes beside entries and lanes ---- */

/* Letters are kept column by column until somebody asks whether they are new, or commit. */
static void letter_keep(once_postgres *q, const once_letter *l, once_hash unique)
{
    once_pg_array *c = q->letters;
    for (size_t i = 0; i < PG_LETTER_COLUMNS && c[0].n == 0; i++)
        once__pg_array_begin(&c[i], i < 2 ? PG_UUID : i < 10 ? PG_INT8 : PG_BYTEA);
    once__pg_put_id(&c[0], unique);
    if (once_hash_is_zero(l->entry)) once__pg_put_null(&c[1]);
    else once__pg_put_id(&c[1], l->entry);
    once__pg_put_int8(&c[2], l->attempt);
    once__pg_put_int8(&c[3], l->failures);
    once__pg_put_int8(&c[4], l->seen_ms);
    once__pg_put_int8(&c[5], l->buried_ms);
    if (l->message.sent_ms == ONCE_NO_TIME) once__pg_put_null(&c[6]);
    else once__pg_put_int8(&c[6], l->message.sent_ms);
    once__pg_put_int8(&c[7], once__letter_kind_write(l));
    once__pg_put_int8(&c[8], (int64_t)l->count);
    once__pg_put_int8(&c[9], l->last_ms);
    const once_bytes texts[] = {l->scope.tenant,     l->scope.consumer,   l->scope.operation, l->key,
                                l->reason,           l->message.type,     l->message.headers, l->message.body,
                                l->message.at.place, l->message.at.point, l->history};
    for (size_t i = 0; i < 11; i++) once__pg_put_bytes(&c[10 + i], texts[i]);
}

static size_t letters_size(const once_postgres *q)
{
    size_t size = 0;
    for (size_t i = 0; i < PG_LETTER_COLUMNS; i++) size += q->letters[i].buf.len;
    return size;
}

static int letters_send(once_postgres *q, unsigned statement, once_error *err)
{
    once_pg_params params = {0};
    for (size_t i = 0; i < PG_LETTER_COLUMNS; i++) once__pg_param_array(&params, &q->letters[i]);
    q->letters[0].n = 0;
    return once__pg_send(q->pg, statement, &params, err);
}

/* Letters go before others come: one that takes the place of another one is the same by what makes it unique. */
static int dropped_send(once_postgres *q, size_t *sent, once_error *err)
{
    once_pg_params params = {0};
    if (q->dropped.n == 0) return ONCE_OK;
    once__pg_param_array(&params, &q->dropped);
    q->dropped.n = 0;
    ++*sent;
    return once__pg_send(q->pg, PG_LETTERS_DROP, &params, err);
}

static int audits_send(once_postgres *q, size_t *sent, once_error *err)
{
    once_pg_params params = {0};
    if (q->audits[0].n == 0) return ONCE_OK;
    for (size_t i = 0; i < PG_AUDIT_COLUMNS; i++) once__pg_param_array(&params, &q->audits[i]);
    q->audits[0].n = 0;
    ++*sent;
    return once__pg_send(q->pg, PG_AUDITS_PUT, &params, err);
}

static int facts_send_some(once_postgres *q, bool set, size_t *sent, once_error *err)
{
    once_pg_params params = {0};
    once__pg_array_begin(&q->columns[0], PG_BYTEA);
    once__pg_array_begin(&q->columns[1], PG_BYTEA);
    for (const once_pg_fact *fact = q->facts; fact; fact = fact->next) {
        if ((fact->value.len > 0) != set || fact->least) continue;
        once__pg_put_bytes(&q->columns[0], fact->name);
        once__pg_put_bytes(&q->columns[1], fact->value);
    }
    if (q->columns[0].n == 0) return ONCE_OK;
    once__pg_param_array(&params, &q->columns[0]);
    if (set) once__pg_param_array(&params, &q->columns[1]);
    ++*sent;
    return once__pg_send(q->pg, set ? PG_FACTS_SET : PG_FACTS_DELETE, &params, err);
}

static int facts_send(once_postgres *q, size_t *sent, once_error *err)
{
    q->count_at = SIZE_MAX;
    if (!q->facts) return ONCE_OK;
    int rc = facts_send_some(q, true, sent, err);
    if (rc == ONCE_OK) rc = facts_send_some(q, false, sent, err);
    for (const once_pg_fact *fact = q->facts; fact && rc == ONCE_OK; fact = fact->next) {
        unsigned char least[ONCE_NUMBER_SIZE];
        once_pg_params params = {0};
        if (!fact->least) continue;
        once__number_put(least, fact->least);
        once__pg_param_bytes(&params, fact->name);
        once__pg_param_bytes(&params, fact->value);
        once__pg_param_bytes(&params, (once_bytes){(const char *)least, sizeof least});
        assert(q->count_at == SIZE_MAX);
        q->count_at = (*sent)++;
        rc = once__pg_send(q->pg, PG_FACT_COUNT, &params, err);
    }
    return rc;
}

/* A constraint that is checked at the end is the fault of a message, and so is a trigger, when nobody has asked for
 * it before. */
static int commit_failed(once_postgres *q, int rc, size_t commit_at, const once_error *why, once_error *err)
{
    once_pg *pg = q->pg;
    char said[400];
    const int guarded = pg->failed_at == q->guard_at
                            ? once__pg_guard_said(pg, pg->failed_state, why->text, said, sizeof said)
                            : ONCE_OK;
    if (guarded == ONCE_E_UNSURE) once__pg_drop(pg); /* nobody knows what the session is now */
    if (guarded != ONCE_OK) return once_fail(err, guarded, "%s: %s", pg->where, said);
    if (pg->failed_at == q->count_at && strcmp(pg->failed_state, "22012") == 0) return once__store_forgot(err);
    const bool at_commit = pg->failed_state[0] && pg->failed_at == commit_at;
    const bool of_message =
        pg->presumed ? once__pg_status(pg->failed_state) == ONCE_E_MESSAGE : strncmp(pg->failed_state, "23", 2) == 0;
    if (!at_commit || !of_message) return rc;
    pg->deferrable = true; /* if it was not known: it was made after we looked */
    if (err) err->status = ONCE_E_MESSAGE;
    return ONCE_E_MESSAGE;
}

static int write_send(once_postgres *q, size_t *sent, once_error *err)
{
    int rc = once__pg_write_send(q, sent, err);
    if (rc == ONCE_OK) rc = dropped_send(q, sent, err);
    if (rc == ONCE_OK) rc = audits_send(q, sent, err);
    if (rc == ONCE_OK && q->letters[0].n) {
        rc = letters_send(q, PG_LETTERS_PUT, err);
        ++*sent;
    }
    return rc == ONCE_OK ? facts_send(q, sent, err) : rc;
}

static int pg_commit(once_shelf *shelf, once_error *err)
{
    enum { WRITES_MAX = 20 };
    once_postgres *q = once__pg_of(shelf);
    PGresult *results[WRITES_MAX + 1];
    size_t sent = 0;
    int rc = ONCE_OK;
    once_error why = {0};
    if (!q->begun) {
        tx_over(q, true);
        return ONCE_OK;
    }
    if (!once__pg_alive(q->pg)) rc = once_fail(err, ONCE_E_UNAVAILABLE, "%s: the connection was lost", q->pg->where);
    else if (PQtransactionStatus(q->pg->conn) == PQTRANS_INERROR)
        rc = once_fail(err, ONCE_E_ABORTED, "%s: a statement failed, and with it the transaction", q->pg->where);
    if (rc == ONCE_OK) rc = write_send(q, &sent, err);
    assert(sent <= WRITES_MAX);
    if (rc == ONCE_OK) rc = once__pg_send_text(q->pg, q->nested ? "RELEASE once_store" : "COMMIT", err);
    q->pg->unreplicated = false;
    if (rc == ONCE_OK) {
        rc = once__pg_round(q->pg, results, sent + 1, &why);
        if (rc != ONCE_OK) {
            once_fail(err, rc, "%s", why.text);
            rc = once__pg_names_failed(q, commit_failed(q, rc, sent, &why, err), err);
        }
        const char *tag = rc == ONCE_OK ? PQcmdStatus(results[sent]) : "";
        if (rc == ONCE_OK && strcmp(tag, "ROLLBACK") == 0)
            rc = once_fail(err, ONCE_E_ABORTED, "%s: the transaction had failed before", q->pg->where);
        else if (rc == ONCE_OK && strcmp(tag, q->nested ? "RELEASE" : "COMMIT") != 0)
            rc = once__pg_misfit(q->pg, "COMMIT", err);
        once__pg_clear(results, sent + 1);
    }
    tx_over(q, rc == ONCE_OK);
    if (rc == ONCE_OK && q->pg->unreplicated) /* a later commit that waits as it should has this one in front of it */
        rc = once_fail(err, ONCE_E_UNAVAILABLE,
                       "%s: a commit may not have reached its standby, because somebody cancelled the wait for it",
                       q->pg->where);
    return rc;
}

static void pg_rollback(once_shelf *shelf) { tx_over(once__pg_of(shelf), false); }

/* ---- a verb outside of a transaction, until the database does not roll it back ---- */

static bool once_more(once_backend *store, int rc, int *tries)
{
    if (rc != ONCE_E_ABORTED || ((once_shelf *)store)->in_tx || ++*tries >= TRIES) return false;
    once_env_sleep_ms(store->env,
                      (int64_t)(once_env_random_u64(store->env) % (uint64_t)(1 << (*tries < 6 ? *tries : 6))));
    return true;
}

#define REPEATED(call)                                                                                                 \
    int rc, tries = 0;                                                                                                 \
    do rc = (call);                                                                                                    \
    while (once_more(store, rc, &tries));                                                                              \
    return rc

static int pg_claim(once_backend *store, const once_request *const *requests, size_t n, once_decision *out,
                    once_arena *arena, once_error *err)
{
    REPEATED(once__engine_claim(store, requests, n, out, arena, err));
}

static int pg_settle(once_backend *store, const once_settlement *settlements, size_t n, bool *applied, once_error *err)
{
    REPEATED(once__engine_settle(store, settlements, n, applied, err));
}

static int pg_extend(once_backend *store, const once_request *const *requests, size_t n, bool *ours, once_error *err)
{
    REPEATED(once__engine_extend(store, requests, n, ours, err));
}

static int pg_accept(once_backend *store, const once_request *const *requests, const once_message *const *messages,
                     size_t n, once_decision *out, once_arena *arena, once_error *err)
{
    REPEATED(once__engine_accept(store, requests, messages, n, out, arena, err));
}

static int pg_take(once_backend *store, once_bytes consumer, once_token token, bool again, int64_t lease_ms, size_t max,
                   once_taken *out, size_t *n, once_arena *arena, once_error *err)
{
    REPEATED(once__engine_take(store, consumer, token, again, lease_ms, max, out, n, arena, err));
}

static int pg_lapse(once_backend *store, once_bytes consumer, uint64_t but, size_t max, once_taken *out, size_t *n,
                    once_arena *arena, once_error *err)
{
    REPEATED(once__engine_lapse(store, consumer, but, max, out, n, arena, err));
}

static int pg_bury(once_backend *store, const once_letter *letters, size_t n, bool *fresh, once_error *err)
{
    REPEATED(once__engine_bury(store, letters, n, fresh, err));
}

/* ---- questions ---- */

/* Around what is asked outside of the engine's verbs: joins the caller's transaction, or is one by itself. */
static int ask_begin(once_postgres *q, bool write, once_error *err)
{
    int rc = q->shelf.in_tx ? ONCE_OK : pg_begin(&q->shelf, write, err);
    if (rc != ONCE_OK) return rc;
    rc = once__pg_prefetch(&q->shelf, NULL, 0, ONCE_FOR_OTHERS, err);
    if (rc == ONCE_OK) return rc;
    if (q->shelf.in_tx) q->shelf.broken = true;
    else pg_rollback(&q->shelf);
    return rc;
}

static int ask_end(once_postgres *q, int rc, once_error *err)
{
    if (q->shelf.in_tx) {
        if (rc != ONCE_OK) q->shelf.broken = true;
        return rc;
    }
    if (rc == ONCE_OK) return pg_commit(&q->shelf, err);
    pg_rollback(&q->shelf);
    return rc;
}

/* One statement and its result. */
static int ask(once_postgres *q, unsigned statement, const once_pg_params *params, PGresult **out, once_error *err)
{
    *out = NULL;
    const int rc = once__pg_send(q->pg, statement, params, err);
    return rc == ONCE_OK ? once__pg_round(q->pg, out, 1, err) : rc;
}

static int tell(once_postgres *q, unsigned statement, const once_pg_params *params, once_error *err)
{
    PGresult *result;
    const int rc = ask(q, statement, params, &result, err);
    PQclear(result);
    return rc;
}

static bool copy_column(const PGresult *result, int row, int column, once_arena *arena, once_bytes *out)
{
    const once_bytes bytes = once__pg_bytes(result, row, column);
    *out = (once_bytes){0};
    return bytes.len == 0 || once_arena_copy(arena, bytes, out);
}

/* ---- what take looks for ---- */

/* `locked`: the statement has locked what it found. */
static int collect_ids(once_postgres *q, unsigned statement, const once_pg_params *params, bool locked, size_t max,
                       once_hash *out, size_t *n, once_error *err)
{
    PGresult *results[3];
    *n = 0;
    int rc = once__pg_send(q->pg, PG_PLAN, NULL, err);
    if (rc == ONCE_OK) rc = once__pg_send(q->pg, statement, params, err);
    if (rc == ONCE_OK) once__pg_must(q->pg, statement_sql[statement], statement_shape[statement], max);
    if (rc == ONCE_OK) rc = once__pg_send(q->pg, PG_UNPLAN, NULL, err);
    if (rc == ONCE_OK) rc = once__pg_round(q->pg, results, 3, err);
    if (rc != ONCE_OK) return rc;
    for (int i = 0; statement == PG_DUE && i < PQntuples(results[1]) && rc == ONCE_OK; i++)
        if (once__pg_int(results[1], i, 2)) rc = once__pg_lane_gone(q, once__pg_id(results[1], i, 1), err);
    if (rc == ONCE_OK) rc = once__pg_load_found(q, results[1], locked, out, n, err);
    once__pg_clear(results, 3);
    return rc;
}

static int pg_due(once_shelf *shelf, once_bytes consumer, int64_t now_ms, size_t max, once_hash *out, size_t *n,
                  once_error *err)
{
    once_pg_params params = {0};
    once__pg_param_bytes(&params, consumer);
    once__pg_param_int8(&params, now_ms);
    once__pg_param_int8(&params, (int64_t)max);
    return collect_ids(once__pg_of(shelf), PG_DUE, &params, true, max, out, n, err);
}

static int pg_by_token(once_shelf *shelf, once_bytes consumer, uint64_t token_a, size_t max, once_hash *out, size_t *n,
                       once_error *err)
{
    once_pg_params params = {0};
    once__pg_param_id(&params, (once_hash){token_a, 0});
    once__pg_param_id(&params, (once_hash){token_a, UINT64_MAX});
    once__pg_param_bytes(&params, consumer);
    once__pg_param_int8(&params, (int64_t)max);
    const int rc = collect_ids(once__pg_of(shelf), PG_BY_TOKEN, &params, false, max, out, n, err);
    size_t left = 0;
    for (size_t i = 0; i < *n && rc == ONCE_OK; i++) { /* it was looked for without a lock */
        const once_pg_slot *slot = once_table_get(&once__pg_of(shelf)->slots, out[i]);
        if (slot->entry.state == ONCE_STATE_CLAIMED && slot->entry.token.a == token_a) out[left++] = out[i];
    }
    *n = left;
    return rc;
}

static int pg_lapsed(once_shelf *shelf, once_bytes consumer, int64_t now_ms, size_t max, once_hash *out, size_t *n,
                     once_error *err)
{
    once_pg_params params = {0};
    once__pg_param_bytes(&params, consumer);
    once__pg_param_int8(&params, now_ms);
    once__pg_param_int8(&params, (int64_t)max);
    return collect_ids(once__pg_of(shelf), PG_LAPSED, &params, true, max, out, n, err);
}

/* ---- letters ---- */

typedef struct asked_letter {
    int64_t count;
    bool *fresh;
} asked_letter;

/* Writes what is kept of letters so far; whoever asked is told. One that was there has a higher count than it was
 * given. */
static int letters_write(once_postgres *q, unsigned statement, const once_table *asked, once_error *err)
{
    PGresult *results[2], *result;
    size_t sent = 0;
    if (q->letters[0].n == 0) return ONCE_OK;
    int rc = dropped_send(q, &sent, err);
    if (rc == ONCE_OK) rc = letters_send(q, statement, err);
    if (rc == ONCE_OK) rc = once__pg_round(q->pg, results, sent + 1, err);
    if (rc != ONCE_OK) return rc;
    result = results[sent];
    if (sent) PQclear(results[0]);
    for (int i = 0; i < PQntuples(result); i++) {
        const asked_letter *letter = once_table_get(asked, once__pg_id(result, i, 0));
        if (letter) *letter->fresh = once__pg_int(result, i, 1) == letter->count;
    }
    PQclear(result);
    return ONCE_OK;
}

static int letters_count(once_postgres *q, const once_letter *letters, const once_hash *uniques, size_t n, bool *fresh,
                         once_table *asked, once_error *err)
{
    asked_letter *list = once_arena_new(&q->arena, asked_letter, n + 1);
    if (!list) return once_no_memory(err, "in the postgres store");
    int rc = letters_write(q, PG_LETTERS_PUT, asked, err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        fresh[i] = false;
        list[i] = (asked_letter){(int64_t)letters[i].count, &fresh[i]};
        if (!once_table_put(asked, uniques[i], &list[i])) return once_no_memory(err, "in the postgres store");
        letter_keep(q, &letters[i], uniques[i]);
        if (letters_size(q) > LETTERS_KEPT) rc = letters_write(q, PG_LETTERS_COUNT, asked, err);
    }
    return rc == ONCE_OK ? letters_write(q, PG_LETTERS_COUNT, asked, err) : rc;
}

static int pg_letters_put(once_shelf *shelf, const once_letter *letters, const once_hash *uniques, size_t n,
                          bool *fresh, once_error *err)
{
    once_postgres *q = once__pg_of(shelf);
    if (q->pg->savepoints) return once_fail(err, ONCE_E_BUG, "a store verb between a savepoint and its end");
    once_table asked = {0};
    int rc = ONCE_OK;
    for (size_t i = 0; i < n && !fresh && rc == ONCE_OK; i++) {
        letter_keep(q, &letters[i], uniques[i]);
        if (letters_size(q) > LETTERS_KEPT) rc = letters_write(q, PG_LETTERS_PUT, &asked, err);
    }
    if (fresh) rc = letters_count(q, letters, uniques, n, fresh, &asked, err);
    once_table_release(&asked);
    return rc;
}

static int read_letter(const PGresult *r, int row, once_arena *arena, once_letter *l, once_error *err)
{
    *l = (once_letter){
        .id = (uint64_t)once__pg_int(r, row, 0),
        .entry = once__pg_id(r, row, 1),
        .attempt = (uint32_t)once__pg_int(r, row, 2),
        .failures = (uint32_t)once__pg_int(r, row, 3),
        .seen_ms = once__pg_int(r, row, 4),
        .buried_ms = once__pg_int(r, row, 5),
        .message.sent_ms = once__pg_null(r, row, 6) ? ONCE_NO_TIME : once__pg_int(r, row, 6),
    };
    if (!once__letter_kind_read(once__pg_int(r, row, 7), l))
        return once_fail(err, ONCE_E_CORRUPT, "table once_letter is damaged; restore it from a backup");
    once_bytes *const texts[] = {&l->scope.tenant,     &l->scope.consumer,   &l->scope.operation, &l->key,
                                 &l->reason,           &l->message.type,     &l->message.headers, &l->message.body,
                                 &l->message.at.place, &l->message.at.point, &l->history};
    for (int i = 0; i < (int)(sizeof texts / sizeof *texts); i++)
        if (!copy_column(r, row, 8 + i, arena, texts[i])) return once_no_memory(err, "in the postgres store");
    l->count = (uint64_t)once__pg_int(r, row, 19);
    l->last_ms = once__pg_int(r, row, 20) ? once__pg_int(r, row, 20) : l->buried_ms;
    l->same = once__pg_id(r, row, 21);
    return ONCE_OK;
}

static once_pg_ahead *find_ahead(once_postgres *q, uint64_t id)
{
    for (size_t i = 0; i < q->n_ahead; i++) { /* mostly they are asked for in their order */
        once_pg_ahead *ahead = &q->ahead[(q->ahead_at + i) % q->n_ahead];
        if (ahead->id != id) continue;
        q->ahead_at = (size_t)(ahead - q->ahead);
        return ahead;
    }
    return NULL;
}

/* The entry that died with the letter; of a letter without one, that of its key. */
static once_hash entry_of(const once_postgres *q, const once_letter *letter)
{
    if (!once_hash_is_zero(letter->entry) || letter->key.len == 0) return letter->entry;
    return once_key_id(q->shelf.store.secret, &letter->scope, letter->key);
}

static int load_ahead(once_postgres *q, once_error *err)
{
    once_hash *ids = once_arena_new(&q->arena, once_hash, 2 * q->n_ahead + 2);
    size_t n = 0;
    if (!ids) return once_no_memory(err, "in the postgres store");
    for (size_t i = 0; i < q->n_ahead; i++) {
        const once_letter *letter = &q->ahead[i].letter;
        ids[n] = letter->id ? entry_of(q, letter) : (once_hash){0};
        n += !once_hash_is_zero(ids[n]);
        ids[n] = letter->id && once_hash_is_zero(letter->entry)
                     ? letter->same
                     : (once_hash){0}; /* where it is noted that it was discarded */
        n += !once_hash_is_zero(ids[n]);
    }
    return once__pg_load_by_id(q, ids, n, err);
}

static int pg_letters_ahead(once_shelf *shelf, const uint64_t *ids, size_t n, once_error *err)
{
    once_postgres *q = once__pg_of(shelf);
    once_pg_params params = {0};
    PGresult *result;
    q->n_ahead = q->ahead_at = 0;
    if (n == 0) return ONCE_OK;
    q->ahead = once_arena_new(&q->arena, once_pg_ahead, n);
    if (!q->ahead) return once_no_memory(err, "in the postgres store");
    once__pg_array_begin(&q->columns[0], PG_INT8);
    for (size_t i = 0; i < n; i++) {
        q->ahead[i].id = ids[i];
        once__pg_put_int8(&q->columns[0], (int64_t)ids[i]);
    }
    once__pg_param_array(&params, &q->columns[0]);
    int rc = ask(q, PG_LETTERS_GET, &params, &result, err);
    if (rc != ONCE_OK) return rc;
    q->n_ahead = n;
    for (int i = 0; i < PQntuples(result) && rc == ONCE_OK; i++) {
        once_letter letter;
        rc = read_letter(result, i, &q->arena, &letter, err);
        once_pg_ahead *ahead = rc == ONCE_OK ? find_ahead(q, letter.id) : NULL;
        if (ahead) ahead->letter = letter;
    }
    q->ahead_at = 0; /* of two with one id the first has it */
    PQclear(result);
    return rc == ONCE_OK ? load_ahead(q, err) : rc;
}

static int pg_letter_get(once_shelf *shelf, uint64_t id, once_letter *out, bool *found, once_arena *arena,
                         once_error *err)
{
    once_postgres *q = once__pg_of(shelf);
    const once_pg_ahead *ahead = find_ahead(q, id);
    if (ahead) {
        *found = ahead->letter.id != 0;
        return !*found || once__letter_copy(arena, &ahead->letter, out) ? ONCE_OK
                                                                        : once_no_memory(err, "in the postgres store");
    }
    once_pg_params params = {0};
    PGresult *result;
    once__pg_param_int8(&params, (int64_t)id);
    int rc = ask(q, PG_LETTER_GET, &params, &result, err);
    if (rc != ONCE_OK) return rc;
    *found = PQntuples(result) > 0;
    if (*found) rc = read_letter(result, 0, arena, out, err);
    PQclear(result);
    return rc;
}

/* One that was read ahead goes with the others when the transaction ends. */
static int pg_letter_drop(once_shelf *shelf, uint64_t id, once_error *err)
{
    once_postgres *q = once__pg_of(shelf);
    once_pg_ahead *ahead = find_ahead(q, id);
    once_pg_array alone = {0};
    once_pg_array *list = ahead ? &q->dropped : &alone;
    if (!ahead) once__pg_array_init(&alone);
    if (list->n == 0) once__pg_array_begin(list, PG_INT8);
    once__pg_put_int8(list, (int64_t)id);
    if (ahead) {
        ahead->letter.id = 0;
        return ONCE_OK;
    }
    once_pg_params params = {0};
    once__pg_param_array(&params, &alone);
    const int rc = tell(q, PG_LETTERS_DROP, &params, err);
    once__pg_array_release(&alone);
    return rc;
}

/* A list is asked for in steps, each a transaction of its own: so that memory is bounded and nothing is held open
 * meanwhile. */
typedef int list_row(once_postgres *q, const PGresult *result, int row, once_arena *arena, void *user, bool *go_on,
                     once_error *err);

static int list_step(once_postgres *q, unsigned statement, const once_pg_params *params, list_row *show, void *user,
                     bool *go_on, int *rows, once_error *err)
{
    PGresult *result = NULL;
    once_arena arena = {0};
    int rc = ask_begin(q, false, err);
    if (rc != ONCE_OK) return rc;
    rc = ask(q, statement, params, &result, err);
    *rows = rc == ONCE_OK ? PQntuples(result) : 0;
    rc = ask_end(q, rc, err);
    for (int i = 0; i < *rows && rc == ONCE_OK && *go_on; i++) {
        once_arena_reset(&arena);
        rc = show(q, result, i, &arena, user, go_on, err);
    }
    PQclear(result);
    once_arena_release(&arena);
    return rc;
}

typedef struct letter_list {
    once_letter_visit *visit;
    void *user;
    uint64_t last;
    once_bytes key; /* of PG_LETTERS_OF_KEY */
} letter_list;

static int show_letter(once_postgres *q, const PGresult *result, int row, once_arena *arena, void *user, bool *go_on,
                       once_error *err)
{
    (void)q;
    letter_list *list = user;
    once_letter letter;
    const int rc = read_letter(result, row, arena, &letter, err);
    if (rc != ONCE_OK) return rc;
    list->last = letter.id;
    *go_on = list->visit(list->user, &letter);
    return ONCE_OK;
}

/* Steps grow from `step` to `step_max`: who ends the list at once did not ask for many. */
static int list_letters(once_postgres *q, unsigned statement, once_bytes consumer, letter_list *list, int step,
                        int step_max, once_error *err)
{
    bool go_on = true;
    int rc = ONCE_OK, rows = step;
    for (int asked = 0; rc == ONCE_OK && go_on && rows >= asked; step = 4 * step < step_max ? 4 * step : step_max) {
        once_pg_params params = {0};
        once__pg_param_bytes(&params, consumer);
        once__pg_param_int8(&params, (int64_t)list->last);
        once__pg_param_int8(&params, asked = step);
        if (statement == PG_LETTERS_OF_KEY) once__pg_param_bytes(&params, list->key);
        rc = list_step(q, statement, &params, show_letter, list, &go_on, &rows, err);
    }
    return rc;
}

static int pg_letters(once_backend *store, once_bytes consumer, uint64_t after, once_letter_visit *visit, void *user,
                      once_error *err)
{
    letter_list list = {.visit = visit, .user = user, .last = after};
    return list_letters((once_postgres *)store, PG_LETTERS, consumer, &list, LIST_STEP, LIST_STEP, err);
}

static int pg_letter_heads(once_backend *store, once_bytes consumer, uint64_t after, bool only_ids,
                           once_letter_visit *visit, void *user, once_error *err)
{
    (void)only_ids; /* the rest is small */
    letter_list list = {.visit = visit, .user = user, .last = after};
    return list_letters((once_postgres *)store, PG_LETTER_HEADS, consumer, &list, HEADS_STEP, HEADS_STEP_MAX, err);
}

static int pg_letters_of_key(once_backend *store, once_bytes consumer, once_bytes key, once_letter_visit *visit,
                             void *user, once_error *err)
{
    letter_list list = {.visit = visit, .user = user, .key = key};
    return list_letters((once_postgres *)store, PG_LETTERS_OF_KEY, consumer, &list, HEADS_STEP_MAX, HEADS_STEP_MAX,
                        err);
}

/* ---- audit ---- */

/* Kept column by column until commit. */
static int pg_audit_put(once_shelf *shelf, const once_audit *audit, once_error *err)
{
    (void)err;
    once_pg_array *c = once__pg_of(shelf)->audits;
    for (size_t i = 0; i < PG_AUDIT_COLUMNS && c[0].n == 0; i++)
        once__pg_array_begin(&c[i], i < 2 ? PG_INT8 : PG_BYTEA);
    once__pg_put_int8(&c[0], audit->time_ms);
    if (audit->letter) once__pg_put_int8(&c[1], (int64_t)audit->letter);
    else once__pg_put_null(&c[1]);
    const once_bytes texts[] = {audit->consumer, audit->who, audit->what, audit->key, audit->note, audit->body};
    for (size_t i = 0; i < 6; i++) once__pg_put_bytes(&c[2 + i], texts[i]);
    return ONCE_OK;
}

typedef struct audit_list {
    once_audit_visit *visit;
    void *user;
    int64_t last;
} audit_list;

static int show_audit(once_postgres *q, const PGresult *r, int row, once_arena *arena, void *user, bool *go_on,
                      once_error *err)
{
    (void)q;
    audit_list *list = user;
    once_audit audit = {.time_ms = once__pg_int(r, row, 1), .letter = (uint64_t)once__pg_int(r, row, 2)};
    once_bytes *const texts[] = {&audit.consumer, &audit.who, &audit.what, &audit.key, &audit.note, &audit.body};
    for (int i = 0; i < 6; i++)
        if (!copy_column(r, row, 3 + i, arena, texts[i])) return once_no_memory(err, "in the postgres store");
    list->last = once__pg_int(r, row, 0);
    *go_on = list->visit(list->user, &audit);
    return ONCE_OK;
}

static int pg_audits(once_backend *store, once_bytes consumer, once_audit_visit *visit, void *user, once_error *err)
{
    audit_list list = {visit, user, 0};
    bool go_on = true;
    for (int rows = LIST_STEP, rc; rows == LIST_STEP && go_on;) {
        once_pg_params params = {0};
        once__pg_param_bytes(&params, consumer);
        once__pg_param_int8(&params, list.last);
        once__pg_param_int8(&params, LIST_STEP);
        rc = list_step((once_postgres *)store, PG_AUDITS, &params, show_audit, &list, &go_on, &rows, err);
        if (rc != ONCE_OK) return rc;
    }
    return ONCE_OK;
}

/* ---- lists and counts ---- */

typedef struct entry_list {
    once_bytes consumer;
    once_state state;
    once_entry_visit *visit;
    void *user;
    once_hash last;
    int64_t now_ms;
} entry_list;

static int show_live(once_postgres *q, const PGresult *result, int row, once_arena *arena, void *user, bool *go_on,
                     once_error *err)
{
    entry_list *list = user;
    once_entry entry;
    const int rc = once__pg_read_live(q, result, row, arena, &entry, err);
    if (rc != ONCE_OK) return rc;
    list->last = entry.id;
    once_entry_look(&entry, list->now_ms);
    *go_on = list->visit(list->user, &entry);
    return ONCE_OK;
}

/* Names are asked for entry by entry, but they are few and stay known. */
static int show_finished(once_postgres *q, const PGresult *result, int row, once_arena *arena, void *user, bool *go_on,
                         once_error *err)
{
    entry_list *list = user;
    once_entry entry;
    once_pg_names_of names;
    int rc = once__pg_read_finished(q, result, row, arena, &entry, &names, err);
    if (rc == ONCE_OK) rc = once__pg_names_fetch(q, err);
    if (rc == ONCE_OK) rc = once__pg_name_finished(q, &names, &entry, err);
    if (rc != ONCE_OK) return rc;
    list->last = entry.id;
    if (entry.state == list->state && once_bytes_equal(entry.scope.consumer, list->consumer))
        *go_on = list->visit(list->user, &entry);
    return ONCE_OK;
}

static int pg_list(once_backend *store, once_bytes consumer, once_state state, once_entry_visit *visit, void *user,
                   once_error *err)
{
    once_postgres *q = (once_postgres *)store;
    entry_list list = {consumer, state, visit, user, {0}, 0};
    const bool finished = once_state_finished(state);
    int rc = ask_begin(q, false, err); /* for the time */
    rc = rc == ONCE_OK ? ask_end(q, rc, err) : rc;
    list.now_ms = q->shelf.now_ms;
    bool go_on = true;
    for (int rows = LIST_STEP; rc == ONCE_OK && rows == LIST_STEP && go_on;) {
        once_pg_params params = {0};
        if (!finished) {
            once__pg_param_bytes(&params, consumer);
            once__pg_param_int8(&params, (int64_t)state);
        }
        once__pg_param_id(&params, list.last);
        if (finished) once__pg_param_int8(&params, list.now_ms);
        once__pg_param_int8(&params, LIST_STEP);
        if (!finished) once__pg_param_int8(&params, list.now_ms);
        rc = list_step(q, finished ? PG_LIST_FINISHED : PG_LIST_LIVE, &params, finished ? show_finished : show_live,
                       &list, &go_on, &rows, err);
    }
    return rc;
}

static int count_rows(once_postgres *q, once_bytes consumer, once_stats *out, once_error *err)
{
    once_pg_params params = {0};
    PGresult *results[2];
    int64_t next_ms = ONCE_NEVER;
    once__pg_param_bytes(&params, consumer);
    int rc = once__pg_send(q->pg, PG_STATS_LETTERS, &params, err);
    once__pg_param_int8(&params, q->shelf.now_ms);
    if (rc == ONCE_OK) rc = once__pg_send(q->pg, PG_STATS, &params, err);
    if (rc == ONCE_OK) rc = once__pg_round(q->pg, results, 2, err);
    if (rc != ONCE_OK) return rc;
    out->dead = (uint64_t)once__pg_int(results[0], 0, 0);
    for (int i = 0; i < PQntuples(results[1]); i++) {
        const int64_t state = once__pg_int(results[1], i, 0);
        const uint64_t n = (uint64_t)once__pg_int(results[1], i, 1);
        if (state == ONCE_STATE_UNKNOWN) out->unknown = n;
        if (state == ONCE_STATE_WAITING) out->waiting = n;
        if (state == ONCE_STATE_CLAIMED) out->claimed = n;
        if (state == ONCE_STATE_UNKNOWN || once__pg_null(results[1], i, 2)) continue;
        if (once__pg_int(results[1], i, 2) < next_ms) next_ms = once__pg_int(results[1], i, 2);
    }
    once__pg_clear(results, 2);
    if (next_ms != ONCE_NEVER) out->wait_ms = next_ms > q->shelf.now_ms ? next_ms - q->shelf.now_ms : 0;
    return ONCE_OK;
}

static int pg_stats(once_backend *store, once_bytes consumer, once_stats *out, once_error *err)
{
    once_postgres *q = (once_postgres *)store;
    int rc = ask_begin(q, false, err);
    if (rc != ONCE_OK) return rc;
    *out = (once_stats){.wait_ms = ONCE_NEVER};
    rc = count_rows(q, consumer, out, err);
    return ask_end(q, rc, err);
}

/* ---- sweep ---- */

/* Finished entries that have expired, oldest first: looked for without a lock, then dropped a step at a time,
 * wherever they are. The index has dead entries at its old end until a vacuum takes them away, and to pass over them
 * again for every step is what makes sweeping slow. So one look serves many steps, and the next look begins where
 * the last one ended. When nothing more is found from there, the next sweep begins at the front again: a row may
 * have been locked, or come late. */
static int sweep_look(once_postgres *q, size_t step, once_error *err)
{
    once_pg_sweep *sweep = &q->sweep;
    once_pg_params params = {0};
    PGresult *result;
    once__pg_param_int8(&params, sweep->from);
    once__pg_param_int8(&params, q->shelf.now_ms);
    once__pg_param_int8(&params, (int64_t)(step * SWEEP_LOOK));
    int rc = tell(q, PG_PLAN, NULL, err);
    if (rc == ONCE_OK) rc = ask(q, PG_SWEEP_LOOK, &params, &result, err);
    if (rc != ONCE_OK) return rc;
    const int n = PQntuples(result);
    once_buf_clear(&sweep->found);
    for (int i = 0; i < n; i++) once_buf_append(&sweep->found, once__pg_bytes(result, i, 0).data, PG_TID_SIZE);
    sweep->at = 0;
    sweep->full = (size_t)n == step * SWEEP_LOOK;
    sweep->useful = false;
    sweep->from = sweep->full ? once__pg_int(result, n - 1, 1) : INT64_MIN;
    PQclear(result);
    return sweep->found.failed ? once_no_memory(err, "in the postgres store") : ONCE_OK;
}

/* Lanes whose version has expired and that nobody stands in: each step looks at the next ones, and begins anew at
 * the end. Those that have expired are locked before it is seen whether somebody stands there: whoever does has held
 * that lock. */
static int sweep_lanes(once_postgres *q, size_t step, const PGresult *seen, once_error *err)
{
    once_pg_params params = {0};
    PGresult *result;
    const int rows = PQntuples(seen);
    once__pg_array_begin(&q->columns[0], PG_UUID);
    for (int i = 0; i < rows; i++)
        if (once__pg_int(seen, i, 1)) once__pg_put_id(&q->columns[0], once__pg_id(seen, i, 0));
    q->sweep.lane = (size_t)rows < step ? (once_hash){0} : once__pg_id(seen, rows - 1, 0);
    if (q->columns[0].n == 0) return ONCE_OK;
    once__pg_param_array(&params, &q->columns[0]);
    once__pg_param_int8(&params, q->shelf.now_ms);
    const int rc = ask(q, PG_SWEEP_LANES_LOCK, &params, &result, err);
    if (rc != ONCE_OK) return rc;
    once__pg_array_begin(&q->columns[0], PG_UUID);
    for (int i = 0; i < PQntuples(result); i++) once__pg_put_id(&q->columns[0], once__pg_id(result, i, 0));
    PQclear(result);
    params = (once_pg_params){0};
    once__pg_param_array(&params, &q->columns[0]);
    return tell(q, PG_SWEEP_LANES, &params, err);
}

/* Drops entries and looks at lanes, in one round trip. */
static int sweep_step(once_postgres *q, size_t step, uint64_t *dropped, once_error *err)
{
    once_pg_sweep *sweep = &q->sweep;
    once_pg_params lanes = {0}, rows = {0};
    PGresult *results[3];
    once__pg_param_id(&lanes, sweep->lane);
    once__pg_param_int8(&lanes, (int64_t)step);
    once__pg_param_int8(&lanes, q->shelf.now_ms);
    once__pg_array_begin(&q->columns[0], PG_TID);
    for (size_t i = 0; i < step && sweep->at < sweep->found.len; i++, sweep->at += PG_TID_SIZE)
        once__pg_put_tid(&q->columns[0], (const unsigned char *)sweep->found.data + sweep->at);
    once__pg_param_array(&rows, &q->columns[0]);
    once__pg_param_int8(&rows, q->shelf.now_ms);
    int rc = once__pg_send(q->pg, PG_PLAN, NULL, err);
    if (rc == ONCE_OK) rc = once__pg_send(q->pg, PG_SWEEP, &rows, err);
    if (rc == ONCE_OK) rc = once__pg_send(q->pg, PG_SWEEP_LANES_LOOK, &lanes, err);
    if (rc == ONCE_OK) rc = once__pg_round(q->pg, results, 3, err);
    if (rc != ONCE_OK) return rc;
    *dropped = strtoull(PQcmdTuples(results[1]), NULL, 10);
    sweep->useful |= *dropped > 0;
    rc = sweep_lanes(q, step, results[2], err);
    once__pg_clear(results, 3);
    return rc;
}

/* What waits without a body and has expired: few, and each of them is locked and looked at as by a verb. */
static int sweep_waiting(once_postgres *q, size_t step, once_sweep_result *out, once_error *err)
{
    once_pg_params params = {0};
    once_hash *ids = once_arena_alloc(&q->arena, step * sizeof *ids);
    size_t n;
    if (!ids) return once_no_memory(err, "in the postgres store");
    once__pg_param_int8(&params, q->shelf.now_ms);
    once__pg_param_int8(&params, (int64_t)step);
    const uint64_t before = out->dropped;
    int rc = collect_ids(q, PG_SWEEP_WAITING, &params, true, step, ids, &n, err);
    if (rc == ONCE_OK) rc = once__engine_drop(&q->shelf, ids, n, &out->dropped, err);
    if (n == step && out->dropped > before) out->more = true;
    return rc;
}

static int sweep_some(once_postgres *q, size_t step, once_sweep_result *out, once_error *err)
{
    once_pg_sweep *sweep = &q->sweep;
    int rc = ONCE_OK;
    if (sweep->at == sweep->found.len) {
        const bool at_front = sweep->from == INT64_MIN;
        rc = sweep_look(q, step, err);
        if (rc == ONCE_OK && !sweep->found.len && !at_front) rc = sweep_look(q, step, err);
    }
    if (rc == ONCE_OK) rc = sweep_step(q, step, &out->dropped, err);
    if (rc == ONCE_OK && ONCE_FAIL_AT(sweep_between)) rc = once_fail(err, ONCE_E_IO, "failpoint sweep_between");
    /* When all that was found is held by others, there is nothing to do now. */
    out->more = sweep->at < sweep->found.len || (sweep->full && sweep->useful);
    if (rc == ONCE_OK) rc = sweep_waiting(q, step, out, err);
    return rc;
}

static void sweep_anew(once_pg_sweep *sweep)
{
    once_buf_clear(&sweep->found);
    sweep->at = 0;
    sweep->from = INT64_MIN;
}

static int sweep_try_lock(once_postgres *q, unsigned statement, bool *alone, once_error *err)
{
    once_pg_params params = {0};
    PGresult *result;
    once__pg_param_int8(&params, SWEEP_LOCK_KEY);
    const int rc = ask(q, statement, &params, &result, err);
    if (rc != ONCE_OK) return rc;
    *alone = once__pg_int(result, 0, 0) != 0;
    PQclear(result);
    return ONCE_OK;
}

/* One sweeper at a time, from its first step to its last. Whoever is not the one learns so in one round trip. The
 * lock is the session's, so a sweeper that dies leaves nothing behind. A session that is shared is not ours to keep:
 * there it is the lock of a step, and others may come in between. */
static int sweep_lock(once_postgres *q, bool *alone, once_error *err)
{
    int rc = once__pg_connect(q->pg, q->wait_ms, err);
    *alone = rc == ONCE_OK && (q->pg->session_lock || q->pg->shared);
    if (rc != ONCE_OK || *alone) return rc;
    rc = sweep_try_lock(q, PG_SWEEP_LOCK, alone, err);
    q->pg->session_lock = rc == ONCE_OK && *alone;
    sweep_anew(&q->sweep); /* from the last time */
    return rc;
}

static void sweep_unlock(once_postgres *q)
{
    once_pg_params params = {0};
    if (!q->pg || !q->pg->session_lock) return;
    once__pg_param_int8(&params, SWEEP_LOCK_KEY);
    if (q->pg->pending || q->pg->synced || tell(q, PG_SWEEP_UNLOCK, &params, NULL) != ONCE_OK) once__pg_drop(q->pg);
    q->pg->session_lock = false;
}

static int sweep_alone(once_postgres *q, size_t step, once_sweep_result *out, once_error *err)
{
    bool alone = true;
    const int rc = q->pg->shared ? sweep_try_lock(q, PG_SWEEP_LOCK_TX, &alone, err) : ONCE_OK;
    out->busy = rc == ONCE_OK && !alone;
    return rc == ONCE_OK && alone ? sweep_some(q, step, out, err) : rc;
}

static int pg_sweep(once_backend *store, size_t limit, once_sweep_result *out, once_error *err)
{
    once_postgres *q = (once_postgres *)store;
    const size_t step = limit < SWEEP_STEP ? limit : SWEEP_STEP;
    bool alone;
    assert(!q->pg->borrowed);
    if (q->shelf.in_tx) return once_fail(err, ONCE_E_USAGE, "sweep runs in a transaction of its own");
    *out = (once_sweep_result){0};
    int rc = sweep_lock(q, &alone, err);
    out->busy = rc == ONCE_OK && !alone;
    if (!alone) return rc;
    const int64_t begun_ns = once_env_mono_ns(store->env);
    rc = ask_begin(q, true, err);
    if (rc == ONCE_OK) rc = ask_end(q, sweep_alone(q, step, out, err), err);
    if (rc == ONCE_OK && ONCE_FAIL_AT(sweep_between)) rc = once_fail(err, ONCE_E_IO, "failpoint sweep_between");
    if (out->more) out->pause_ms = 1 + SWEEP_PAUSE * (once_env_mono_ns(store->env) - begun_ns) / 1000000;
    if (rc != ONCE_OK || !out->more) {
        sweep_unlock(q);
        sweep_anew(&q->sweep);
    }
    return rc;
}

/* ---- facts ---- */

static once_pg_fact *fact_of(once_postgres *q, once_bytes name)
{
    once_pg_fact *fact = q->facts;
    while (fact && !once_bytes_equal(fact->name, name)) fact = fact->next;
    return fact;
}

static int fact_read(once_postgres *q, once_bytes name, once_bytes *out, once_arena *arena, once_error *err)
{
    once_pg_params params = {0};
    PGresult *result;
    once__pg_param_bytes(&params, name);
    int rc = ask(q, PG_FACT_GET, &params, &result, err);
    if (rc == ONCE_OK && PQntuples(result) > 0 && !copy_column(result, 0, 0, arena, out))
        rc = once_no_memory(err, "in the postgres store");
    PQclear(result);
    return rc;
}

static int pg_fact_get(once_backend *store, const char *name, once_bytes *out, once_arena *arena, once_error *err)
{
    once_postgres *q = (once_postgres *)store;
    const once_bytes bytes = {name, strlen(name)};
    int rc = ask_begin(q, false, err);
    if (rc != ONCE_OK) return rc;
    *out = (once_bytes){0};
    const once_pg_fact *fact = fact_of(q, bytes);
    if (!fact) rc = fact_read(q, bytes, out, arena, err);
    else if (fact->value.len && !once_arena_copy(arena, fact->value, out))
        rc = once_no_memory(err, "in the postgres store");
    return ask_end(q, rc, err);
}

/* Kept for the commit. */
static int fact_keep(once_postgres *q, once_bytes name, uint64_t least, once_bytes value, once_error *err)
{
    once_pg_fact *fact = fact_of(q, name);
    if (!fact) {
        fact = once_arena_new(&q->arena, once_pg_fact, 1);
        if (!fact || !once_arena_copy(&q->arena, name, &fact->name))
            return once_no_memory(err, "in the postgres store");
        fact->next = q->facts;
        q->facts = fact;
    }
    fact->value = (once_bytes){0};
    fact->least = least;
    return value.len == 0 || once_arena_copy(&q->arena, value, &fact->value)
               ? ONCE_OK
               : once_no_memory(err, "in the postgres store");
}

static int pg_fact_set(once_backend *store, const char *name, once_bytes value, once_error *err)
{
    once_postgres *q = (once_postgres *)store;
    int rc = ask_begin(q, true, err);
    if (rc != ONCE_OK) return rc;
    rc = fact_keep(q, (once_bytes){name, strlen(name)}, 0, value, err);
    return ask_end(q, rc, err);
}

static int pg_fact_count(once_backend *store, const char *name, uint64_t least, once_bytes value, once_error *err)
{
    once_postgres *q = (once_postgres *)store;
    assert(q->shelf.in_tx && value.len);
    int rc = ask_begin(q, true, err);
    if (rc != ONCE_OK) return rc;
    rc = fact_keep(q, (once_bytes){name, strlen(name)}, least, value, err);
    return ask_end(q, rc, err);
}

static int pg_facts(once_backend *store, const char *prefix, once_fact_visit *visit, void *user, once_error *err)
{
    once_postgres *q = (once_postgres *)store;
    once_pg_params params = {0};
    PGresult *result = NULL;
    int rc = ask_begin(q, false, err);
    if (rc != ONCE_OK) return rc;
    once__pg_param_bytes(&params, (once_bytes){prefix, strlen(prefix)});
    rc = ask_end(q, ask(q, PG_FACTS, &params, &result, err), err);
    for (int i = 0; rc == ONCE_OK && i < PQntuples(result); i++)
        if (!visit(user, once__pg_bytes(result, i, 0), once__pg_bytes(result, i, 1))) break;
    PQclear(result);
    return rc;
}

/* ---- open, close ---- */

static const once_shelf_ops postgres_shelf = {
    .begin = pg_begin,
    .commit = pg_commit,
    .rollback = pg_rollback,
    .prefetch = once__pg_prefetch,
    .load = once__pg_load,
    .save = once__pg_save,
    .lane = once__pg_lane,
    .save_lane = once__pg_save_lane,
    .lane_head = once__pg_lane_head,
    .lane_equals = once__pg_lane_equals,
    .due = pg_due,
    .by_token = pg_by_token,
    .lapsed = pg_lapsed,
    .lanes_waiting = once__pg_lanes_waiting,
    .lane_before = once__pg_lane_before,
    .letters_put = pg_letters_put,
    .letters_ahead = pg_letters_ahead,
    .letter_get = pg_letter_get,
    .letter_drop = pg_letter_drop,
    .audit_put = pg_audit_put,
};

static void pg_close(once_backend *store)
{
    once_postgres *q = (once_postgres *)store;
    sweep_unlock(q);
    once__pg_names_clear(&q->names);
    once__pg_free(q->pg);
    once_buf_release(&q->sweep.found);
    once_table_release(&q->slots);
    once_table_release(&q->lanes);
    once_arena_release(&q->arena);
    for (size_t i = 0; i < PG_COLUMNS; i++) once__pg_array_release(&q->columns[i]);
    for (size_t i = 0; i < PG_LETTER_COLUMNS; i++) once__pg_array_release(&q->letters[i]);
    for (size_t i = 0; i < PG_AUDIT_COLUMNS; i++) once__pg_array_release(&q->audits[i]);
    once__pg_array_release(&q->dropped);
    once_buf_release(&q->detail);
    free(q->all);
    free(q->lane_list);
    free(q->turns.name);
    free(q);
}

static once_postgres *new_store(const once_store_options *options)
{
    once_postgres *q = calloc(1, sizeof *q);
    if (!q) return NULL;
    q->shelf.store.ops = &once__store_postgres;
    q->shelf.store.bits = ONCE_STORE_DURABLE | ONCE_STORE_SHARED | ONCE_STORE_TX | ONCE_STORE_OWNS | ONCE_STORE_LANES |
                          ONCE_STORE_LIST | ONCE_STORE_CLOCK;
    q->shelf.store.env = options->env ? options->env : once_env_real();
    q->shelf.shelf = &postgres_shelf;
    q->shelf.own_clock = true;
    once__store_sign(&q->shelf.store);
    once_buf_init(&q->sweep.found, SWEEP_STEP * SWEEP_LOOK * PG_TID_SIZE);
    q->wait_ms = options->patience.over ? 0 : options->busy_ms ? options->busy_ms : WAIT_MS_DEFAULT;
    for (size_t i = 0; i < PG_COLUMNS; i++) once__pg_array_init(&q->columns[i]);
    for (size_t i = 0; i < PG_LETTER_COLUMNS; i++) once__pg_array_init(&q->letters[i]);
    for (size_t i = 0; i < PG_AUDIT_COLUMNS; i++) once__pg_array_init(&q->audits[i]);
    once__pg_array_init(&q->dropped);
    once_buf_init(&q->detail, (size_t)1 << 30);
    return q;
}

/* On a connection that is there. */
static int make_ready(once_postgres *q, const once_store_options *options, once_error *err)
{
    int rc = once__pg_ready(q->pg, options->create && !options->readonly, &q->shelf.store.secret, err);
    if (rc == ONCE_OK && !q->pg->sql)
        rc = once__pg_statements(q->pg, statement_sql, statement_shape, PG_STATEMENTS, err);
    if (rc == ONCE_OK) rc = once__pg_prepare(q->pg, err);
    q->connection = q->pg->connections;
    return rc;
}

/* A pooler may show itself only now; then once more, without relying on a session. */
static int open_on(once_postgres *q, const once_store_options *options, once_error *err)
{
    const bool known = q->pg->found_out;
    int rc = make_ready(q, options, err);
    if (rc == ONCE_OK || known || !q->pg->found_out) return rc;
    rc = once__pg_connect(q->pg, 0, err);
    return rc == ONCE_OK ? make_ready(q, options, err) : rc;
}

static int pg_open(const char *rest, const once_store_options *options, once_backend **out, once_error *err)
{
    const once_store_options none = {.size = sizeof none};
    if (!options) options = &none;
    once_postgres *q = new_store(options);
    if (!q) return once_no_memory(err, "in the postgres store");
    int rc = once__pg_new(rest, q->shelf.store.env, options->consumer, options->patience, &q->pg, err);
    if (rc == ONCE_OK) rc = once__pg_connect(q->pg, 0, err);
    if (rc == ONCE_OK) rc = open_on(q, options, err);
    if (rc == ONCE_OK && options->consumer.len) rc = once__pg_turns_init(q, options->consumer, err);
    if (rc != ONCE_OK) {
        pg_close(&q->shelf.store);
        return rc;
    }
    *out = &q->shelf.store;
    return ONCE_OK;
}

int once__pg_store_borrow(PGconn *conn, const once_store_options *options, once_backend **out, once_error *err)
{
    assert(PQtransactionStatus(conn) == PQTRANS_IDLE);
    once_postgres *q = new_store(options);
    if (!q) return once_no_memory(err, "in the postgres store");
    int rc = once__pg_borrow(conn, q->shelf.store.env, &q->pg, err);
    if (rc == ONCE_OK) rc = once__pg_enter(q->pg, err);
    if (rc == ONCE_OK) rc = once__pg_greet(q->pg, err);
    if (rc == ONCE_OK) rc = open_on(q, options, err);
    if (q->pg) once__pg_leave(q->pg);
    if (rc != ONCE_OK) {
        pg_close(&q->shelf.store);
        return rc;
    }
    *out = &q->shelf.store;
    return ONCE_OK;
}

void once__pg_pause(once_backend *store) { once__pg_leave(((once_postgres *)store)->pg); }

int once__pg_resume(once_backend *store, once_error *err)
{
    once_pg *pg = ((once_postgres *)store)->pg;
    if (once__pg_alive(pg) && PQenterPipelineMode(pg->conn)) return ONCE_OK;
    return once_fail(err, ONCE_E_UNAVAILABLE, "%s: the connection was lost, or has results that were not read",
                     pg->where);
}

void once__pg_abandon(once_backend *store) { ((once_postgres *)store)->begun = false; }

static once_db *pg_db(once_backend *store) { return &((once_postgres *)store)->pg->db; }

/* Whether the replicas that may become the next primary have what was acknowledged is a setting of the server. */
static void pg_describe(once_backend *store, char *out, size_t size)
{
    PGresult *result;
    const int rc = once__pg_ask(once__pg_of((once_shelf *)store)->pg,
                                "SELECT current_setting('synchronous_standby_names') <> ''", "1t", &result, NULL);
    const bool waits = rc == ONCE_OK && strcmp(once__pg_text(result, 0, 0), "t") == 0;
    if (rc == ONCE_OK) PQclear(result);
    snprintf(out, size, "%s",
             waits ? "commits wait for the replicas in synchronous_standby_names: a failover to one of them loses "
                     "nothing that was acknowledged"
                   : "commits do not wait for replicas: a failover to one loses what it had not received, outcomes "
                     "together with their atomic"
                     " effects; synchronous_standby_names prevents that");
}

static int pg_verify(once_backend *store, void (*damage)(void *user, const char *text), void *user, once_error *err)
{
    once_postgres *q = (once_postgres *)store;
    int rc = ask_begin(q, false, err);
    if (rc != ONCE_OK) return rc;
    return ask_end(q, once__pg_verify(q, damage, user, err), err);
}

static int pg_inspect(once_backend *store, once_error *err)
{
    return once__pg_inspect(((once_postgres *)store)->pg, err);
}

const once_store_ops once__store_postgres = {
    .scheme = "postgres",
    .summary = "a PostgreSQL schema; any number of workers; SQL effects in the same database are atomic",
    .open = pg_open,
    .close = pg_close,
    .claim = pg_claim,
    .settle = pg_settle,
    .extend = pg_extend,
    .accept = pg_accept,
    .take = pg_take,
    .lapse = pg_lapse,
    .find = once__engine_find,
    .begin = once__engine_begin,
    .expect = once__pg_expect,
    .commit = once__engine_commit,
    .rollback = once__engine_rollback,
    .db = pg_db,
    .describe = pg_describe,
    .inspect = pg_inspect,
    .bury = pg_bury,
    .exhume = once__engine_exhume,
    .forget = once__engine_forget,
    .letters_ahead = once__engine_letters_ahead,
    .letter_get = once__engine_letter_get,
    .letter_drop = once__engine_letter_drop,
    .discard = once__engine_discard,
    .correct = once__engine_correct,
    .resolve = once__engine_resolve,
    .revive = once__engine_revive,
    .audit = once__engine_audit,
    .audits = pg_audits,
    .sweep = pg_sweep,
    .get = once__engine_get,
    .look = once__engine_look,
    .outlook = once__engine_outlook,
    .why = once__engine_why,
    .in_lane = once__engine_in_lane,
    .list = pg_list,
    .letters = pg_letters,
    .letter_heads = pg_letter_heads,
    .letters_of_key = pg_letters_of_key,
    .stats = pg_stats,
    .verify = pg_verify,
    .verified = "every row was read and fits to the others; there are no checksums of ours, so a value that was "
                "changed into another possible one is not noticed,"
                " and its server checks its own pages",
    .repair = once__pg_repair,
    .time = once__engine_time,
    .fact_get = pg_fact_get,
    .fact_set = pg_fact_set,
    .fact_count = pg_fact_count,
    .facts = pg_facts,
};
