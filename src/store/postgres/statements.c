/* All SQL of the postgres store: the text of each statement, and the shape of its result (once__pg_fits). */
#include "store/postgres/postgres.h"
#include "store/postgres/schema.h"
#include "store/states.h"

#include "base/banned.h"

/* SQL made of pieces: broken by hand. */
/* clang-format off */
#define NOW(param) "coalesce(" param "::bigint, (extract(epoch FROM now()) * 1000)::bigint)"
#define INT8_OF(bytes) "('x' || encode(" bytes ", 'hex'))::bit(64)::bigint"
#define UNTIL_MS(value) INT8_OF("substr(" value ", 1, 8)")
#define TURNS_ARE_TAKEN " FROM once_fact WHERE name = $1::bytea AND " UNTIL_MS("value") " > " NOW("$2")
/* A batch that queues waits for each lock as long as we say. The user's statements have his settings again. */
#define KEPT(name) "set_config('once." name "', current_setting('" name "'), true)"
#define WAITS(ms) KEPT("lock_timeout") " || set_config('lock_timeout', " ms "::text, true) || "                        \
    KEPT("statement_timeout") " || set_config('statement_timeout', '0', true)"
#define RESTORED(name) "set_config('" name "', current_setting('once." name "'), true)"
#define WAITED RESTORED("lock_timeout") " || " RESTORED("statement_timeout")
#define ARE_FREE "(NOT EXISTS (SELECT FROM unnest($1::bigint[]) AS u(k) WHERE NOT pg_try_advisory_xact_lock(k)))"
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
/* A letter with an entry is unique; deliveries of the others are counted. */
#define LETTERS_INSERT                                                                                                \
    "INSERT INTO once_letter(same, entry, attempt, failures, seen_ms, buried_ms, sent_ms, kind, count, last_ms,"       \
    " tenant, consumer,"                                                                                               \
    " operation, key, reason, type, headers, body, place, point, history) SELECT unnest($1::uuid[]),"                  \
    " unnest($2::uuid[]), unnest($3::bigint[]), unnest($4::bigint[]), unnest($5::bigint[]), unnest($6::bigint[]),"     \
    " unnest($7::bigint[]), unnest($8::bigint[]), unnest($9::bigint[]), unnest($10::bigint[]),"                        \
    " unnest($11::bytea[]), unnest($12::bytea[]), unnest($13::bytea[]), unnest($14::bytea[]), unnest($15::bytea[]),"   \
    " unnest($16::bytea[]), unnest($17::bytea[]), unnest($18::bytea[]), unnest($19::bytea[]), unnest($20::bytea[]),"   \
    " unnest($21::bytea[]) ON CONFLICT (same) "

/* The arrays are sorted by id (round.c), and rows are inserted in their order. So the server sorts nothing, and keeps
 * nothing in between, as it would with unnest in FROM. That saves a tenth of the cost. */
#define ENTRIES_AHEAD                                                                                                 \
    "INSERT INTO once_entry(expires_ms, id, token, fingerprint, detail)"                                               \
    " SELECT " NOW("$6") " + k, i, t, f, d FROM (SELECT unnest($1::uuid[]) AS i, unnest($2::bigint[]) AS k,"          \
    " unnest($3::uuid[]) AS t, unnest($4::uuid[]) AS f, unnest($5::bytea[]) AS d) u"

#define EXPIRES "state = 2 AND NOT owned AND lane IS NULL AND marks & 40 = 0"                                          \
    /* once_entry_expires; marks unreported and maybe */
#define LOST_STATE "(CASE WHEN marks & 4 <> 0 THEN 3 ELSE 2 END)" /* the state of a claim whose lease has ended */
/* The lease has ended; or it is an unknown that is stored as a claim (mark 1024): store/states.h. */
#define IS_LOST(now) "(state = 1 AND (due_ms <= " now " OR marks & 1024 <> 0))"
#define STATE_AT(now) "(CASE WHEN " IS_LOST(now) " THEN " LOST_STATE " ELSE state END)"
/* When an entry becomes due; NULL: never. An unknown is due when it is asked about, which needs its body. */
#define ASKED_AT "CASE WHEN owned AND marks & 512 <> 0 THEN due_ms END"
#define OTHERS_AT(now) "CASE WHEN owned OR (state = 1 AND due_ms > " now ") THEN due_ms END"
#define COMES_AT(now) "(CASE WHEN " STATE_AT(now) " = 3 THEN " ASKED_AT " ELSE " OTHERS_AT(now) " END)"

/* What is due, and what of it is behind a mark; and their lanes and entries, locked unless another worker has them. */
#define IS_DUE "l.consumer = $1::bytea AND l.owned AND l.state < 3 AND l.due_ms <= $2::bigint"
#define IS_DUE_AFTER IS_DUE " AND (l.due_ms, l.id) > ($3::bigint, $4::uuid)"
#define LOCK_DUE                                                                                                       \
    " LEFT JOIN LATERAL (SELECT a.id FROM once_lane a WHERE a.id = w.lane FOR UPDATE SKIP LOCKED) a ON true"           \
    " CROSS JOIN LATERAL (SELECT e.id FROM once_entry e WHERE e.id = w.id AND (w.lane IS NULL OR a.id IS NOT NULL"     \
    " OR (SELECT x.id FROM once_lane x WHERE x.id = w.lane) IS NULL) FOR UPDATE SKIP LOCKED) e"

const char *const once__pg_sql[PG_STATEMENTS] = {
    /* The default of synchronous_commit may be off or local; a setting that is stronger than on stays. */
    [PG_NOW] = "SELECT CASE WHEN current_setting('synchronous_commit') IN ('on', 'remote_apply') THEN NULL"
               " ELSE set_config('synchronous_commit', 'on', true) END, " NOW("$1") ", pg_backend_pid(),"
               " (SELECT name FROM once_name WHERE id = $2::bigint::integer),"
               " (SELECT count(*) FROM once_meta WHERE (name = 'format' AND value = 'once')"
               " OR (name = 'version' AND value = '" ONCE_POSTGRES_VERSION_TEXT
               "') OR (name = 'secret' AND value = $3::bytea)), " ONCE_PG_BEGUN
               ", CASE WHEN $4::bigint IS NOT NULL THEN " WAITS("$4::bigint") " END", /* a batch that queues */
    [PG_GUARD] = ONCE_PG_GUARD,
    [PG_GUARD_TEMP] = ONCE_PG_GUARD_TEMP,
    /* The fact holds two numbers: until when turns are taken, and how long that period is. During it, TRY fails (22012)
     * when another batch has the turn. */
    [PG_TURN_TRY] = "SELECT 1 / pg_try_advisory_xact_lock($3::bigint)::integer" TURNS_ARE_TAKEN,
    [PG_TURN] = "SELECT CASE WHEN EXISTS (SELECT" TURNS_ARE_TAKEN ")"
                " THEN pg_advisory_xact_lock($3::bigint) IS NULL END,"
                " CASE WHEN $4::bigint IS NOT NULL THEN " WAITED " END",
    /* The same for the locks that the user has named. They are taken in their order, by TRY up to the first that
     * another batch has. */
    [PG_LOCKS_TRY] = "SELECT 1 / " ARE_FREE "::integer",
    [PG_LOCKS] = "SELECT (SELECT count(pg_advisory_xact_lock(k) IS NULL) FROM unnest($1::bigint[]) AS u(k)), " WAITED,
    /* The queue of the batches that wait. This mode is in nobody's way but that of others who ask for it, of VACUUM and
     * of DDL, and once_meta does not change. */
    [PG_QUEUE] = "LOCK TABLE once_meta IN SHARE UPDATE EXCLUSIVE MODE",
    /* A longer period than the last one, if that has ended recently. Several batches may deadlock at once: the first
     * one writes. */
    [PG_TURNS_BEGIN] = "INSERT INTO once_fact AS f (name, value) VALUES ($1::bytea,"
                       " int8send(" NOW("$4") " + $2::bigint) || int8send($2::bigint))"
                       " ON CONFLICT (name) DO UPDATE SET value = (SELECT int8send(" NOW("$4") " + t.ms)"
                       " || int8send(t.ms) FROM (SELECT CASE WHEN "
                       UNTIL_MS("f.value") " + " LENGTH_MS("f.value") " > " NOW("$4") " THEN least(2 * "
                       LENGTH_MS("f.value") ", $3::bigint)"
                       " ELSE $2::bigint END AS ms) t) WHERE " UNTIL_MS("f.value") " <= " NOW("$4"),
    /* A plan that was made for a small table must not scan it when it has grown. The user's statements keep their own
     * setting. */
    [PG_PLAN] = "SELECT set_config('once.seqscan', current_setting('enable_seqscan'), true),"
                " set_config('enable_seqscan', 'off', true)",
    [PG_PLAN_BATCH] = "SELECT set_config('once.seqscan', current_setting('enable_seqscan'), true),"
                      " set_config('enable_seqscan', 'off', true),"
                      " CASE WHEN current_setting('lock_timeout') = '0' AND NOT EXISTS (SELECT FROM once_fact WHERE"
                      " name = $1::bytea AND "
                      UNTIL_MS("value") " > " NOW("$2") ") THEN set_config('lock_timeout', $3::bigint::text, true) END",
    [PG_UNPLAN] = "SELECT set_config('enable_seqscan', current_setting('once.seqscan'), true)",
    [PG_ENTRY_AHEAD] = ENTRIES_AHEAD " ON CONFLICT (id) DO NOTHING RETURNING id",
    [PG_ENTRY_NEW] = ENTRIES_AHEAD,
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
    /* Scope and key of a row stay, because its id is made of them; to set them costs the server time. */
    [PG_LIVE_PUT] = "INSERT INTO once_live(" LIVE_COLUMNS ")"
                    " SELECT unnest($1::uuid[]), unnest($2::uuid[]), unnest($3::uuid[]), unnest($4::uuid[]),"
                    " unnest($5::bigint[]), unnest($6::bigint[]), unnest($7::bigint[]), unnest($8::bigint[]),"
                    " unnest($9::bigint[]), unnest($10::bigint[]), unnest($11::bigint[]), unnest($12::bigint[]),"
                    " unnest($13::bigint[]), unnest($14::bigint[]), unnest($15::smallint[]),"
                    " unnest($16::smallint[]), unnest($17::boolean[]), unnest($18::bytea[]), unnest($19::bytea[]),"
                    " unnest($20::bytea[]), unnest($21::bytea[]), unnest($22::bytea[]), unnest($23::bytea[]),"
                    " unnest($24::bytea[]), unnest($25::bytea[]), unnest($26::bytea[]), unnest($27::bytea[]),"
                    " unnest($28::bigint[]), unnest($29::bytea[]) ON CONFLICT (id) DO UPDATE SET"
                    " (token, fingerprint, lane, ord, gap_ms, remember_ms, run, seen_ms, changed_ms, due_ms,"
                    " expires_ms, attempt, failures, state, marks, owned, place, point, reason, who, worker,"
                    " history, failing_ms, fields) = (excluded.token, excluded.fingerprint, excluded.lane,"
                    " excluded.ord, excluded.gap_ms, excluded.remember_ms, excluded.run, excluded.seen_ms,"
                    " excluded.changed_ms, excluded.due_ms, excluded.expires_ms, excluded.attempt,"
                    " excluded.failures, excluded.state, excluded.marks, excluded.owned, excluded.place,"
                    " excluded.point, excluded.reason, excluded.who, excluded.worker, excluded.history,"
                    " excluded.failing_ms, excluded.fields)",
    [PG_LIVE_DELETE] = "DELETE FROM once_live WHERE ctid = ANY(ARRAY(SELECT ctid FROM once_live WHERE id ="
                       " ANY($1::uuid[]) ORDER BY id))",
    [PG_BODY_PUT] = "INSERT INTO once_body(id, sent_ms, type, headers, body, place, point)"
                    " SELECT unnest($1::uuid[]),"
                    " unnest($2::bigint[]), unnest($3::bytea[]), unnest($4::bytea[]), unnest($5::bytea[]),"
                    " unnest($6::bytea[]), unnest($7::bytea[]) ON CONFLICT (id) DO UPDATE SET"
                    " (sent_ms, type, headers, body, place, point) = (excluded.sent_ms, excluded.type,"
                    " excluded.headers,"
                    " excluded.body, excluded.place, excluded.point)",
    [PG_BODY_DELETE] = "DELETE FROM once_body WHERE id = ANY($1::uuid[])",
    /* The row of a lane without a version is only a lock. It may be dropped after an hour without use. */
    [PG_LANE_AHEAD] = "INSERT INTO once_lane(id, expires_ms) SELECT i, " NOW("$2") " + 3600000 FROM unnest($1::uuid[])"
                      " AS u(i)"
                      " ORDER BY i ON CONFLICT (id) DO NOTHING RETURNING id",
    [PG_LANE_LOCK] = "SELECT id FROM once_lane WHERE id = ANY($1::uuid[]) ORDER BY id FOR UPDATE",
    [PG_LANE_LOCK_FREE] = "SELECT id FROM once_lane WHERE id = ANY($1::uuid[]) ORDER BY id FOR UPDATE SKIP LOCKED",
    /* The head is the entry with the lowest order, and among equals the one that was seen first. Entries of a version
     * that has settled will only be judged stale, so any of them may be the head. */
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
    [PG_LANE_KEY] = "SELECT key FROM once_live WHERE lane = $1::uuid AND state < 4 ORDER BY ord, id LIMIT 1",
    [PG_LANE_PUT] = "UPDATE once_lane l SET version = v, expires_ms = x, record = r FROM unnest($1::uuid[],"
                    " $2::bigint[],"
                    " $3::bigint[], $4::bytea[]) AS u(i, v, x, r) WHERE l.id = i",
    [PG_NAME_FIND] = "SELECT id, name FROM once_name WHERE name = ANY($1::bytea[])",
    [PG_NAME_MAKE] = "INSERT INTO once_name(name) SELECT n FROM unnest($1::bytea[]) AS u(n)"
                     " ORDER BY n ON CONFLICT (name) DO NOTHING",
    /* Fails (22012) when a number has another text than we know, or none: the store was restored. */
    [PG_NAME_CHECK] = "SELECT 1 / (count(*) = $3::bigint)::integer FROM unnest($1::integer[], $2::bytea[]) AS u(i, n)"
                      " JOIN once_name k ON k.id = u.i AND k.name = u.n",
    [PG_NAME_GET] = "SELECT id, name FROM once_name WHERE id = ANY($1::integer[])",
    /* Locks one by one, a lane before its entry, until there are enough. Other workers may have locked many of them, so
     * it looks at eight times as many. A lane that another worker has locked is skipped; a lane without a row is
     * damage, and is returned. */
    [PG_DUE] = "SELECT w.id, w.lane, w.lane IS NOT NULL AND a.id IS NULL FROM (SELECT l.id,"
               " l.lane FROM once_live l WHERE " IS_DUE " ORDER BY l.due_ms, l.id LIMIT 8 * $3::bigint) w" LOCK_DUE
               " LIMIT $3::bigint",
    /* The last entry that a search may pass, whatever its operation. */
    [PG_DUE_WINDOW] = "SELECT l.due_ms, l.id FROM once_live l WHERE " IS_DUE_AFTER
                      " ORDER BY l.due_ms, l.id OFFSET $5::bigint - 1 LIMIT 1",
    /* Its window is twice as long, so that entries which are committed in between push none out of it. */
    [PG_DUE_AFTER] = "SELECT w.id, w.lane, w.lane IS NOT NULL AND a.id IS NULL, w.due_ms FROM (SELECT l.id, l.lane,"
                      " l.due_ms, l.operation FROM once_live l WHERE " IS_DUE_AFTER
                      " ORDER BY l.due_ms, l.id LIMIT 2 * $5::bigint) w" LOCK_DUE
                      " WHERE (w.operation = ANY($6::bytea[])) = ($7::bigint <> 0) LIMIT $8::bigint",
    /* The lanes are locked, and no other worker occupies them: the head is the caller's claim, or due. */
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
                  " AND l.due_ms <= $2::bigint AND l.marks & 1028 = 4 LIMIT 8 * $3::bigint) w"
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
    [PG_LETTERS_LEFT] = "SELECT id FROM once_letter WHERE id = ANY($1::bigint[]) ORDER BY id",
    [PG_LETTERS_LOCK] = "SELECT id FROM once_letter WHERE id = ANY($1::bigint[]) ORDER BY id FOR UPDATE",
    [PG_LETTERS_DROP] = "DELETE FROM once_letter WHERE id = ANY($1::bigint[])",
    [PG_LETTERS] = "SELECT " LETTER_COLUMNS " FROM once_letter WHERE consumer = $1::bytea AND id > $2::bigint ORDER BY"
                   " id LIMIT $3::bigint",
    [PG_LETTER_HEADS] = "SELECT " LETTER_HEAD " FROM once_letter WHERE consumer = $1::bytea AND id > $2::bigint ORDER"
                        " BY id LIMIT $3::bigint",
    [PG_LETTER_IDS] = "SELECT id FROM once_letter WHERE consumer = $1::bytea AND id > $2::bigint ORDER BY id LIMIT"
                      " $3::bigint",
    /* The expressions keep the server from using any index but the one of keys. */
    [PG_LETTERS_OF_KEY] = "SELECT " LETTER_HEAD " FROM once_letter WHERE key = $4::bytea AND consumer || ''::bytea ="
                          " $1::bytea AND id + 0 > $2::bigint"
                          " ORDER BY id + 0 LIMIT $3::bigint",
    [PG_AUDITS_PUT] = "INSERT INTO once_audit(time_ms, letter, consumer, who, what, key, note, body)"
                      " SELECT unnest($1::bigint[]), unnest($2::bigint[]), unnest($3::bytea[]), unnest($4::bytea[]),"
                      " unnest($5::bytea[]), unnest($6::bytea[]), unnest($7::bytea[]), unnest($8::bytea[])",
    [PG_AUDITS] = "SELECT id, time_ms, letter, consumer, who, what, key, note, body FROM once_audit WHERE consumer ="
                  " $1::bytea"
                  " AND id > $2::bigint ORDER BY id LIMIT $3::bigint",
    /* Counts states as they are now, like once_entry_state_at: claimed until the lease ends, then unknown (mark 4,
     * `hold`) or waiting. */
    [PG_STATS] = "SELECT " STATE_AT("$2::bigint") " AS is_now, count(*), min(" COMES_AT("$2::bigint") ")"
                 " FROM once_live WHERE consumer = $1::bytea"
                 " AND state < 4 AND NOT (" EXPIRES " AND expires_ms <= $2::bigint) GROUP BY is_now",
    [PG_STATS_LETTERS] = "SELECT count(*) FROM once_letter WHERE consumer = $1::bytea",
    /* Only the length of a body is read. */
    [PG_WAITING_SIZE] = "SELECT count(*), coalesce(sum(octet_length(b.body)), 0)::bigint FROM once_live l"
                        " JOIN once_body b ON b.id = l.id WHERE l.consumer = $1::bytea AND l.owned AND l.state < 3"
                        " AND l.marks & 1024 = 0",
    [PG_LIST_LIVE] = "(SELECT " ONCE_PG_LIVE_FULL " WHERE l.consumer = $1::bytea AND l.state = $2::bigint AND NOT"
                     " " IS_LOST("$5::bigint")
                     " AND NOT (" EXPIRES " AND expires_ms <= $5::bigint) AND l.id > $3::uuid ORDER BY l.id LIMIT"
                     " $4::bigint) UNION ALL (SELECT " ONCE_PG_LIVE_FULL " WHERE l.consumer = $1::bytea"
                     " AND l.state = 1 AND " IS_LOST("$5::bigint") " AND " LOST_STATE " = $2::bigint AND l.id"
                     " > $3::uuid ORDER BY l.id"
                     " LIMIT $4::bigint) ORDER BY 1 LIMIT $4::bigint",
    [PG_LIST_FINISHED] = "SELECT id, expires_ms, token, fingerprint, detail FROM once_entry WHERE id > $1::uuid AND"
                         " expires_ms > $2::bigint"
                         " ORDER BY id LIMIT $3::bigint",
    [PG_FACT_GET] = "SELECT value FROM once_fact WHERE name = $1::bytea",
    [PG_FACTS_SET] = "INSERT INTO once_fact(name, value) SELECT * FROM unnest($1::bytea[], $2::bytea[])"
                     " ORDER BY 1 ON CONFLICT (name) DO UPDATE"
                     " SET value = excluded.value",
    /* Without a row it fails (22012), and with it the commit. */
    [PG_FACT_COUNT] = "WITH u AS (UPDATE once_fact SET value = $2::bytea WHERE name = $1::bytea AND substr(value, 1,"
                      " 8) >= $3::bytea RETURNING 1)"
                      " SELECT 1 / count(*) FROM u",
    [PG_FACTS] = "SELECT name, value FROM once_fact WHERE substr(name, 1, length($1::bytea)) = $1::bytea",
    [PG_FACTS_DELETE] = "DELETE FROM once_fact WHERE name = ANY($1::bytea[])",
    /* A lock of the session, kept between steps: otherwise another worker would sweep in the pauses. */
    [PG_SWEEP_LOCK] = "SELECT pg_try_advisory_lock($1::bigint::integer, (SELECT c.relnamespace FROM pg_class c JOIN"
                      " once_meta m ON m.tableoid = c.oid LIMIT 1)::integer)",
    /* Behind a pooler: a lock of the transaction, for one step. */
    [PG_SWEEP_LOCK_TX] = "SELECT pg_try_advisory_xact_lock($1::bigint::integer, (SELECT c.relnamespace FROM pg_class c"
                         " JOIN once_meta m ON m.tableoid = c.oid LIMIT 1)::integer)",
    [PG_SWEEP_UNLOCK] = "SELECT pg_advisory_unlock($1::bigint::integer, (SELECT c.relnamespace FROM pg_class c JOIN"
                        " once_meta m ON m.tableoid = c.oid LIMIT 1)::integer)",
    /* A time before 1970 is damage, and does not mean expired. The index holds units of 65 seconds, not milliseconds:
     * equal keys share their space in the index, which makes it a third smaller. */
    [PG_SWEEP_LOOK] = "SELECT ctid, expires_ms >> 16 FROM once_entry WHERE expires_ms >> 16 >= greatest($1::bigint, 0)"
                      " AND expires_ms >> 16 <= $2::bigint >> 16"
                      " AND expires_ms <= $2::bigint AND expires_ms < 4611686018427387904 ORDER BY expires_ms >> 16"
                      " LIMIT $3::bigint",
    /* The place may hold another row by now. It is deleted only if that has expired as well. */
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
    /* An entry that was changed since has valid names. */
    [PG_REPAIR] = "UPDATE once_entry e SET detail = d FROM unnest($1::uuid[], $2::bytea[], $3::bytea[]) AS u(i, o, d)"
                  " WHERE e.id = i AND e.detail = o",
};

#define SHAPE_ENTRY "*uQUUY"
#define SHAPE_LIVE "*uuUUqqqqqqqqqqhhbyyyyyyyyyyqyQYYYYY"
#define SHAPE_LETTER "qUqqqqQhyyyyyyyyyyyqqu"

/* The shape of each result (once__pg_fits). */
const char *const once__pg_shapes[PG_STATEMENTS] = {
    [PG_NOW] = "1TqiYqtttttT",
    [PG_GUARD] = "1i",
    [PG_GUARD_TEMP] = "1i",
    [PG_TURN_TRY] = "?i",
    [PG_TURN] = "1BT",
    [PG_LOCKS_TRY] = "1i",
    [PG_LOCKS] = "1qt",
    [PG_QUEUE] = "",
    [PG_TURNS_BEGIN] = "",
    [PG_PLAN] = "1tt",
    [PG_PLAN_BATCH] = "1ttT",
    [PG_UNPLAN] = "1t",
    [PG_ENTRY_AHEAD] = "*u",
    [PG_ENTRY_NEW] = "",
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
    [PG_LANE_KEY] = "?y",
    [PG_LANE_PUT] = "",
    [PG_NAME_FIND] = "*iy",
    [PG_NAME_MAKE] = "",
    [PG_NAME_CHECK] = "1i",
    [PG_NAME_GET] = "*iy",
    [PG_DUE] = "*uUb",
    [PG_DUE_WINDOW] = "?qu",
    [PG_DUE_AFTER] = "*uUbq",
    [PG_LANE_WAITING] = "*u",
    [PG_BY_TOKEN] = "*uU",
    [PG_LAPSED] = "*uU",
    [PG_LETTERS_PUT] = "",
    [PG_LETTERS_COUNT] = "*uq",
    [PG_LETTER_GET] = "?" SHAPE_LETTER,
    [PG_LETTERS_GET] = "*" SHAPE_LETTER,
    [PG_LETTERS_LEFT] = "*q",
    [PG_LETTERS_LOCK] = "*q",
    [PG_LETTERS_DROP] = "",
    [PG_LETTERS] = "*" SHAPE_LETTER,
    [PG_LETTER_HEADS] = "*" SHAPE_LETTER,
    [PG_LETTER_IDS] = "*q",
    [PG_LETTERS_OF_KEY] = "*" SHAPE_LETTER,
    [PG_AUDITS_PUT] = "",
    [PG_AUDITS] = "*qqQyyyyyy",
    [PG_STATS] = "*iqQ",
    [PG_STATS_LETTERS] = "1q",
    [PG_WAITING_SIZE] = "1qq",
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
