/* The columns that the sum of a row covers (sum.h), one list for each table. A new column goes into its list here; the
 * code that binds and reads the row has it at the same position. */
#ifndef ONCE_STORE_SQLITE_COLUMNS_H
#define ONCE_STORE_SQLITE_COLUMNS_H

/* Without n. */
#define ENTRY_SUMMED "id, " ENTRY_CHANGING
#define ENTRY_CHANGING                                                                                                 \
    "state, owned, token, attempt, failures, fingerprint, lane, ord, gap_ms, remember_ms, flags, run, seen_ms,"        \
    " changed_ms, due_ms, expires_ms, keep_ms, tenant, consumer, operation, key, place, point, result, reason,"        \
    " who, worker, history, failing_ms"
#define BODY_SUMMED "n, type, headers, body, sent_ms, place, point"
#define LANE_SUMMED "id, version, expires_ms, record"
/* Without the id, which SQLite assigns when it inserts the row. */
#define LETTER_SUMMED                                                                                                  \
    "entry, tenant, consumer, operation, key, kind, reason, attempt, failures, seen_ms, buried_ms, type, headers,"     \
    " body, sent_ms, place, point, same, history, count, last_ms"
#define FACT_SUMMED "name, value"
#define NAME_SUMMED "id, name"
/* Without the id, which SQLite assigns when it inserts the row. */
#define AUDIT_SUMMED "time_ms, consumer, who, what, key, letter, note, body"

#define SUM_OF(letter, columns) "once_sum('" letter "', " columns ")"
#define ENTRY_SUM SUM_OF("e", ENTRY_SUMMED)
#define BODY_SUM SUM_OF("b", BODY_SUMMED)
#define LANE_SUM SUM_OF("l", LANE_SUMMED)
#define LETTER_SUM SUM_OF("d", LETTER_SUMMED)
#define FACT_SUM SUM_OF("f", FACT_SUMMED)
#define NAME_SUM SUM_OF("n", NAME_SUMMED)
#define AUDIT_SUM SUM_OF("a", AUDIT_SUMMED)

/* The columns of once_entry that a read selects: n, the summed columns, and whether the sum is right. */
#define ENTRY_COLUMNS "n, " ENTRY_SUMMED ", sum = " ENTRY_SUM

#endif
