/* The text of each statement of the sqlite store. Numbers of states and flags are those of store/states.h. */
#include "store/sqlite/columns.h"
#include "store/sqlite/parts.h"
#include "store/states.h"

#include "base/banned.h"

#define LETTER_COLUMNS                                                                                                 \
    "id, entry, tenant, consumer, operation, key, kind, reason, attempt, failures, seen_ms, buried_ms, type, headers," \
    " body, sent_ms, place, point, history, sum = " LETTER_SUM ", count, last_ms, same"
#define IS_BEFORE "ord <= ?2 AND (ord < ?2 OR seen_ms < ?3 OR (seen_ms = ?3 AND id < ?4))" /* once__lane_before */
#define LETTER_BOUND "?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21"
#define LETTER_AGAIN                                                                                                   \
    "entry, tenant, consumer, operation, key, kind, reason, attempt, failures, seen_ms, buried_ms, type, headers,"     \
    " body, sent_ms, ?2, ?3, same, history, ?4, ?5"
#define AUDIT_BOUND "?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8"

/* The state of a row at a time, as once_entry_state_at: claimed until its lease is over, then unknown (flag 4, `hold`)
 * or waiting. With flag 1024 it is unknown already (store/states.h). */
#define EXPIRES                                                                                                        \
    "state = 2 AND owned = 0 AND lane IS NULL AND flags & 40 = 0" /* once_entry_expires; flags unreported and maybe */
#define LIVE_AT(now) "NOT (" EXPIRES " AND expires_ms <= " now ")"
#define STATE_AT(now)                                                                                                  \
    "CASE WHEN state = 1 AND (due_ms <= " now                                                                          \
    " OR flags & 1024) THEN CASE WHEN flags & 4 THEN 3 ELSE 2 END ELSE state "                                         \
    "END"
/* When the entry becomes due without a delivery; NULL: never. An unknown entry does when it is looked up, which needs
 * its body. */
#define COMES_AT(now)                                                                                                  \
    "CASE WHEN " STATE_AT(now) " = 3 THEN CASE WHEN owned = 1 AND flags & 512 THEN due_ms END"                         \
                               " WHEN owned = 1 OR (state = 1 AND due_ms > " now ") THEN due_ms END"

const char *const once__sqlite_sql[SQL_STATEMENTS] = {
    [SQL_BEGIN_READ] = "BEGIN",
    [SQL_BEGIN_WRITE] = "BEGIN IMMEDIATE",
    [SQL_COMMIT] = "COMMIT",
    [SQL_ROLLBACK] = "ROLLBACK",
    [SQL_DATA_VERSION] = "PRAGMA data_version",
    [SQL_HEAD_GET] = "SELECT clock_tenths, boot_ms, boot_id, generation, flushed, last_recent, last_run, doubted,"
                     " unsealed_recent, unsealed_run, runs_sum, entries_sum, lanes_sum, facts_sum,"
                     " letters_sum, audits_sum, sum,"
                     " (SELECT value FROM once_meta WHERE name = 'version') FROM once_store WHERE id = 1",
    [SQL_HEAD_SET] =
        "UPDATE once_store SET clock_tenths = ?1, boot_ms = ?2, boot_id = ?3, generation = ?4, flushed = ?5,"
        " last_recent = ?6, last_run = ?7, doubted = ?8, unsealed_recent = ?9, unsealed_run = ?10, runs_sum = ?11,"
        " entries_sum = ?12, lanes_sum = ?13, facts_sum = ?14, letters_sum = ?15, audits_sum = ?16, sum = ?17 WHERE id "
        "= 1",
    [SQL_ENTRY_GET] = "SELECT " ENTRY_COLUMNS " FROM once_entry WHERE id = ?1",
    /* once_rows has the entries to write (rows.c): all new ones, one that has changed, all that have left. `main`:
     * a table of that name in another database of the connection is not meant. */
    [SQL_ENTRY_INSERT] =
        "INSERT INTO once_entry(n, " ENTRY_SUMMED ", sum) SELECT n, " ENTRY_SUMMED ", sum FROM main.once_rows(?1)",
    /* Without the id, which never changes: setting it would rewrite a page of its index. */
    [SQL_ENTRY_UPDATE] = "UPDATE once_entry SET (" ENTRY_CHANGING ", sum) = (SELECT " ENTRY_CHANGING
                         ", sum FROM main.once_rows(?1)) WHERE n = ?2 AND id = ?3",
    [SQL_ENTRY_DELETE] = "DELETE FROM once_entry WHERE (n, id) IN (SELECT n, id FROM main.once_rows(?1))",
    [SQL_ENTRY_DELETE_ONE] = "DELETE FROM once_entry WHERE n = ?2 AND id = ?3", /* half of what the other takes */
    [SQL_ENTRY_LAST] = "SELECT max(n) FROM once_entry",
    [SQL_ENTRY_IDS] = "SELECT id FROM once_entry LIMIT ?1",
    [SQL_BODY_GET] =
        "SELECT type, headers, body, sent_ms, place, point, sum = " BODY_SUM " FROM once_body WHERE n = ?1",
    [SQL_BODY_PUT] = "INSERT OR REPLACE INTO once_body(" BODY_SUMMED
                     ", sum) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7," SUM_OF("b", "?1, ?2, ?3, ?4, ?5, ?6, ?7") ")",
    [SQL_BODY_DELETE] = "DELETE FROM once_body WHERE n = ?1",
    [SQL_LANE_GET] = "SELECT version, expires_ms, record, sum = " LANE_SUM " FROM once_lane WHERE id = ?1",
    [SQL_LANE_PUT] = "INSERT INTO once_lane(" LANE_SUMMED ", sum) VALUES (?1, ?2, ?3, ?4, " SUM_OF(
        "l", "?1, ?2, ?3, ?4") ") ON CONFLICT(id)"
                               " DO UPDATE SET version = excluded.version, expires_ms = excluded.expires_ms, record = "
                               "excluded.record, sum = excluded.sum",
    [SQL_LANE_UP] = "SELECT id, ord FROM once_entry WHERE lane = ?1 AND state < 4 ORDER BY ord, id",
    [SQL_LANE_DOWN] = "SELECT id, ord FROM once_entry WHERE lane = ?1 AND state < 4 ORDER BY ord DESC, id DESC",
    [SQL_LANE_HEAD] = "SELECT id, ord, seen_ms FROM once_entry WHERE lane = ?1 AND state < 4 ORDER BY ord, id",
    [SQL_LANE_FIRST] = "SELECT id, ord, seen_ms FROM (SELECT id, ord, seen_ms FROM once_entry WHERE lane = ?1 AND "
                       "state < 4 AND ord = ?2"
                       " ORDER BY id LIMIT ?3) ORDER BY seen_ms, id",
    [SQL_LANE_EQUALS] =
        "SELECT max(seen_ms) FROM (SELECT seen_ms FROM once_entry WHERE lane = ?1 AND state < 4 AND ord = ?2 LIMIT ?3)",
    [SQL_LANE_RUNNING] = "SELECT id, 0 FROM once_entry WHERE lane = ?1 AND state IN (1, 3)",
    [SQL_LANE_BEFORE] =
        "SELECT id FROM (SELECT id FROM once_entry WHERE lane = ?1 AND state < 4 AND " IS_BEFORE
        " ORDER BY ord, seen_ms, id LIMIT ?5)"
        " UNION SELECT id FROM (SELECT id FROM once_entry WHERE lane = ?1 AND state IN (1, 3) AND id <> ?4 LIMIT ?5)",
    [SQL_LANE_BEFORE_COUNT] =
        "SELECT count(*) FROM (SELECT 1 FROM once_entry WHERE lane = ?1 AND state < 4 AND " IS_BEFORE " LIMIT ?5)",
    [SQL_LANE_AFTER] = "SELECT id, expires_ms FROM once_lane WHERE id > ?1 ORDER BY id LIMIT ?2",
    [SQL_LANE_DELETE] = "DELETE FROM once_lane WHERE id = ?1",
    [SQL_DUE] = "SELECT id FROM once_entry WHERE consumer = ?1 AND owned = 1 AND state < 3 AND due_ms <= ?2"
                " ORDER BY due_ms, id LIMIT ?3",
    [SQL_DUE_AFTER] = "SELECT id, operation, due_ms FROM once_entry WHERE consumer = ?1 AND owned = 1 AND state < 3"
                      " AND due_ms <= ?2 AND (due_ms, id) > (?4, ?5) ORDER BY due_ms, id LIMIT ?3",
    [SQL_BY_TOKEN] = "SELECT id FROM once_entry WHERE token >= ?1 AND token <= ?2 AND state = 1 AND consumer = ?3"
                     " ORDER BY token LIMIT ?4",
    /* By the index of claims, which are few. */
    [SQL_LAPSED] = "SELECT id FROM once_entry INDEXED BY once_entry_token WHERE state = 1 AND +consumer = ?1 AND "
                   "due_ms <= ?2 AND flags & 4 AND flags & 1024 = 0 LIMIT ?3",
    [SQL_LETTER_PUT] = "INSERT OR IGNORE INTO once_letter(" LETTER_SUMMED ", sum) VALUES (" LETTER_BOUND
                       ", " SUM_OF("d", LETTER_BOUND) ")",
    [SQL_LETTER_SAME] = "SELECT " LETTER_COLUMNS " FROM once_letter WHERE same = ?1",
    [SQL_LETTER_AGAIN] = "UPDATE once_letter SET place = ?2, point = ?3, count = ?4, last_ms = ?5, sum = " SUM_OF(
        "d", LETTER_AGAIN) " WHERE id = ?1",
    [SQL_LETTER_GET] = "SELECT " LETTER_COLUMNS " FROM once_letter WHERE id = ?1",
    [SQL_LETTER_DROP] = "DELETE FROM once_letter WHERE id = ?1",
    [SQL_LETTERS] = "SELECT " LETTER_COLUMNS " FROM once_letter WHERE consumer = ?1 AND id > ?2 ORDER BY id",
    [SQL_LETTER_IDS] =
        "SELECT id FROM once_letter WHERE consumer = ?1 AND id > ?2 ORDER BY id", /* by its index alone */
    [SQL_LETTERS_OF_KEY] = "SELECT " LETTER_COLUMNS " FROM once_letter WHERE key = ?2 AND +consumer = ?1 ORDER BY id",
    [SQL_AUDIT_PUT] =
        "INSERT INTO once_audit(" AUDIT_SUMMED ", sum) VALUES (" AUDIT_BOUND ", " SUM_OF("a", AUDIT_BOUND) ")",
    [SQL_AUDITS] = "SELECT " AUDIT_SUMMED ", sum = " AUDIT_SUM " FROM once_audit WHERE consumer = ?1 ORDER BY id",
    [SQL_STATS] = "SELECT " STATE_AT("?2") " AS is_now, count(*), min(" COMES_AT(
        "?2") ") FROM once_entry WHERE consumer = ?1 AND state < 4 AND " LIVE_AT("?2") " GROUP BY is_now",
    [SQL_STATS_LETTERS] = "SELECT count(*) FROM once_letter WHERE consumer = ?1",
    /* By the index of due entries; of a body only its length is read. */
    [SQL_WAITING_SIZE] =
        "SELECT count(*), coalesce(sum(length(b.body)), 0) FROM once_entry AS e INDEXED BY once_entry_due"
        " CROSS JOIN once_body AS b ON b.n = e.n WHERE e.consumer = ?1 AND e.owned = 1 AND e.state < 3"
        " AND e.flags & 1024 = 0",
    [SQL_LIST] = "SELECT " ENTRY_COLUMNS
                 " FROM once_entry WHERE consumer = ?1 AND " STATE_AT("?3") " = ?2 AND " LIVE_AT("?3") " ORDER BY n",
    [SQL_EXPIRED] = "SELECT id FROM once_entry WHERE " EXPIRES " AND expires_ms <= ?1 ORDER BY expires_ms LIMIT ?2",
    [SQL_FACT_GET] = "SELECT value, sum = " FACT_SUM " FROM once_fact WHERE name = ?1",
    [SQL_FACT_SET] = "UPDATE once_fact SET value = ?2, sum = " SUM_OF("f", "?1, ?2") " WHERE name = ?1",
    [SQL_FACT_ADD] = "INSERT INTO once_fact(" FACT_SUMMED ", sum) VALUES (?1, ?2, " SUM_OF("f", "?1, ?2") ")",
    [SQL_FACT_DELETE] = "DELETE FROM once_fact WHERE name = ?1",
    [SQL_FACTS] = "SELECT name, value, sum = " FACT_SUM " FROM once_fact WHERE substr(name, 1, length(?1)) = ?1",
};

/* Statements that differ on a borrowed connection. SQL_ROLLBACK is followed by SQL_COMMIT there. */
const char *const once__sqlite_borrowed_sql[SQL_STATEMENTS] = {
    [SQL_BEGIN_READ] = "SAVEPOINT once_store",
    [SQL_BEGIN_WRITE] = "SAVEPOINT once_store",
    [SQL_COMMIT] = "RELEASE once_store",
    [SQL_ROLLBACK] = "ROLLBACK TO once_store",
};
