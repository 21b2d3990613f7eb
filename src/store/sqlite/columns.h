/* Columns of the rows that have a sum (sum.h): all that it covers. A new column goes into its list here, and is
 * bound and read at that place. */
#ifndef ONCE_STORE_SQLITE_COLUMNS_H
#define ONCE_STORE_SQLITE_COLUMNS_H

/* Without n, which is not known when a row is inserted. */
#define ENTRY_SUMMED                                                                                                   \
    "id, state, owned, token, attempt, failures, fingerprint, lane, ord, gap_ms, remember_ms, flags, run, seen_ms,"    \
    " changed_ms, due_ms, expires_ms, keep_ms, tenant, consumer, operation, key, place, point, result, reason,"        \
    " who, worker, history, failing_ms"
#define BODY_SUMMED "n, type, headers, body, sent_ms, place, point"
#define LANE_SUMMED "id, version, expires_ms, record"
/* Without the id, likewise. */
#define LETTER_SUMMED                                                                                                  \
    "entry, tenant, consumer, operation, key, kind, reason, attempt, failures, seen_ms, buried_ms, type, headers,"     \
    " body, sent_ms, place, point, same, history, count, last_ms"
#define FACT_SUMMED "name, value"
#define NAME_SUMMED "id, name"
/* Without the id, likewise. */
#define AUDIT_SUMMED "time_ms, consumer, who, what, key, letter, note, body"

#define SUM_OF(letter, columns) "once_sum('" letter "', " columns ")"
#define ENTRY_SUM SUM_OF("e", ENTRY_SUMMED)
#define BODY_SUM SUM_OF("b", BODY_SUMMED)
#define LANE_SUM SUM_OF("l", LANE_SUMMED)
#define LETTER_SUM SUM_OF("d", LETTER_SUMMED)
#define FACT_SUM SUM_OF("f", FACT_SUMMED)
#define NAME_SUM SUM_OF("n", NAME_SUMMED)
#define AUDIT_SUM SUM_OF("a", AUDIT_SUMMED)

/* A row of once_entry as it is read. */
#define ENTRY_COLUMNS "n, " ENTRY_SUMMED ", sum = " ENTRY_SUM

#endif
