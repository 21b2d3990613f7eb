/* Internal header of the sqlite store: its handle, and the entries of the open transaction. Each file of this folder
 * has one task; parts.h is the interface between the files of the store itself.
 *
 * A transaction holds its entries as slots in an arena. `save` only marks a slot; rows and records are written when the
 * transaction commits, or when a query has to see them. So an entry that is claimed and settled in one transaction is
 * written once, as a record, and so is a claim for an effect outside. */
#ifndef ONCE_STORE_SQLITE_SQLITE_H
#define ONCE_STORE_SQLITE_SQLITE_H

#include "store/engine.h"
#include "base/table.h"
#include "store/sqlite/names.h"
#include "store/sqlite/settled.h"
#include "store/sqlite/sum.h"

/* Addresses of bytes of a slot's entry that are copied already and need no second copy. */
enum { OWN_KEY, OWN_POINT, OWN_RESULT, OWN_REASON, OWN_HISTORY, OWN_TYPE, OWN_HEADERS, OWN_BODY, OWN_BODY_POINT, OWNS };

typedef struct once_slot once_slot;
typedef struct once_lane_slot once_lane_slot;
struct once_slot {
    once_entry entry; /* first: load returns this, and save gets it back */
    const char *own[OWNS];
    int64_t row;          /* its row in once_entry; 0: none */
    int64_t keep_ms;      /* a record of this id may exist until then; 0: none does */
    bool listed;          /* in the list of changed slots, once */
    bool row_dirty;       /* once_entry must be brought up to date */
    bool recorded;        /* it was loaded from the record of an open claim (settled.h) */
    bool settle_dirty;    /* the record of its end, or a tombstone, must be written */
    bool body_stored;     /* there is a row in once_body ... */
    bool body_same;       /* ... and it is this entry's message */
    once_lane_slot *lane; /* the lane whose list has the slot; NULL: none */
    once_slot *lane_next;
};

struct once_lane_slot {
    once_hash id;
    bool dirty;
    bool stored;                 /* the lane has a row */
    int64_t version, expires_ms; /* ONCE_LANE_NO_VERSION, 0: there is no row */
    once_bytes record;           /* lane_record.h */
    once_slot *first;            /* slots of this lane */
};

enum once_sqlite_statement {
    SQL_BEGIN_READ,
    SQL_BEGIN_WRITE,
    SQL_COMMIT,
    SQL_ROLLBACK,
    SQL_DATA_VERSION,
    SQL_HEAD_GET,
    SQL_HEAD_SET,
    SQL_ENTRY_GET,
    SQL_ENTRY_INSERT,
    SQL_ENTRY_UPDATE,
    SQL_ENTRY_DELETE,
    SQL_ENTRY_DELETE_ONE,
    SQL_ENTRY_LAST,
    SQL_ENTRY_IDS,
    SQL_BODY_GET,
    SQL_BODY_PUT,
    SQL_BODY_DELETE,
    SQL_LANE_GET,
    SQL_LANE_PUT,
    SQL_LANE_UP,
    SQL_LANE_DOWN,
    SQL_LANE_HEAD,
    SQL_LANE_FIRST,
    SQL_LANE_EQUALS,
    SQL_LANE_RUNNING,
    SQL_LANE_BEFORE,
    SQL_LANE_BEFORE_COUNT,
    SQL_LANE_AFTER,
    SQL_LANE_DELETE,
    SQL_DUE,
    SQL_DUE_AFTER,
    SQL_BY_TOKEN,
    SQL_LAPSED,
    SQL_LETTER_PUT,
    SQL_LETTER_SAME,
    SQL_LETTER_AGAIN,
    SQL_LETTER_GET,
    SQL_LETTER_DROP,
    SQL_LETTERS,
    SQL_LETTER_IDS,
    SQL_LETTERS_OF_KEY,
    SQL_AUDIT_PUT,
    SQL_AUDITS,
    SQL_STATS,
    SQL_STATS_LETTERS,
    SQL_WAITING_SIZE,
    SQL_LIST,
    SQL_EXPIRED,
    SQL_FACT_GET,
    SQL_FACT_SET,
    SQL_FACT_ADD,
    SQL_FACT_DELETE,
    SQL_FACTS,
    SQL_STATEMENTS
};

/* A filter of the ids that may have a row in once_entry, so that a batch of new keys needs no query. */
typedef struct once_live_filter {
    bool known;   /* false: the filter must be built */
    bool many;    /* too many rows for a filter: query the table */
    size_t rows;  /* in the table, unless many */
    size_t added; /* ids added since it was built */
    size_t gone;  /* rows removed since then, if many */
    unsigned char bits[8192];
} once_live_filter;

/* Sums over the ids (or names) of the rows of a table: they show when a row can no longer be found. */
enum once_present { PRESENT_ENTRIES, PRESENT_LANES, PRESENT_FACTS, PRESENT_LETTERS, PRESENT_AUDITS, PRESENTS };
enum { PRESENT_LIMIT = 200000 }; /* how many rows the first check reads: a tenth of a second */

typedef struct once_sqlite {
    once_storage storage;
    uint64_t present[PRESENTS];        /* of the tables now ... */
    uint64_t present_stored[PRESENTS]; /* ... and in once_store */
    bool present_checked[PRESENTS];    /* since the file was opened */
    once_sqlite_db *db;
    sqlite3_stmt *sql[SQL_STATEMENTS];
    once_settled *settled;
    once_names *names;
    once_clock stored_clock; /* as in once_backend */
    int64_t data_version;    /* of the last transaction; another value: another connection has written */
    bool unsummed;           /* the tables have no sums yet: they are being made, or brought up to date */
    bool fresh;              /* nothing has been read yet, or memory cannot be trusted */
    char mark_name[16];      /* borrowed connection: the fact that tells whether the caller rolled back ... */
    uint64_t mark;           /* ... and its value in the state that memory mirrors; 0: none yet */
    once_live_filter live;
    once_table kept;  /* committed claims of this handle that are rows (kept.c) */
    void *kept_spare; /* the memory of such claims, for the next ones */
    size_t n_kept_spare;
    unsigned char lane_cursor[16]; /* where the sweep of lanes continues */

    /* the open transaction */
    bool open, write;
    int64_t changes_before;
    bool rows_written; /* once_entry was changed */
    bool wrote;        /* a table of ours was changed */
    bool settled_touched;
    once_arena arena;
    once_table slots, lanes;
    once_slot **dirty; /* in the order of their first change */
    size_t n_dirty, dirty_size;
} once_sqlite;

static inline once_sqlite *once__sqlite_of(once_storage *storage) { return (once_sqlite *)storage; }

/* Entries and lanes (load.c, save.c, lanes.c); all inside a transaction. */
int once__live_prefetch(once_storage *storage, const once_request *const *requests, size_t n, once_purpose purpose,
                        once_error *err);
int once__live_load(once_storage *storage, once_hash id, once_entry **out, once_error *err);
bool once__live_has_none(const once_storage *storage, once_hash id);
int once__live_save(once_storage *storage, once_entry *entry, once_error *err);
int once__live_lane(once_storage *storage, once_hash lane, once_hash except, once_lane *out, once_error *err);
int once__live_save_lane(once_storage *storage, once_hash lane, const once_lane *kept, once_error *err);
int once__live_lane_head(once_storage *storage, once_hash lane, once_hash *out, once_error *err);
int once__live_lane_equals(once_storage *storage, once_hash lane, int64_t order, int64_t *seen_ms, once_error *err);
int once__live_lane_before(once_storage *storage, const once_entry *entry, size_t max, once_hash *out, size_t *n,
                           uint64_t *count, once_error *err);

/* Brings once_entry up to date with the slots, claims included, so that a query sees them. */
int once__live_write_rows(once_sqlite *q, once_error *err);
/* Writes everything that commit has to write. */
int once__live_write_all(once_sqlite *q, once_error *err);
/* Forgets the slots. */
void once__live_clear(once_sqlite *q);
/* Reads an entry from a row of SQL_ENTRY_GET or SQL_LIST; bytes in the arena. */
int once__live_read_row(once_sqlite *q, sqlite3_stmt *stmt, once_arena *arena, once_entry *out, int64_t *row,
                        int64_t *keep_ms, once_error *err);
/* Whether this transaction, or a row of once_entry, overrides a record of this id. */
int once__live_is_newer(once_sqlite *q, once_hash id, bool *out, once_error *err);
int once__live_from_record(once_sqlite *q, const once_record *record, once_entry *out, once_error *err);
/* Shows the claims that are records, except those that this transaction has saved: these are rows
 * (once__live_write_rows). Bytes of the entry are valid during the visit. `keep_ms` is that of the slot it would have.
 * false from visit ends it. */
typedef bool once_claim_visit(void *user, const once_entry *entry, int64_t keep_ms);
int once__live_each_claim(once_sqlite *q, once_claim_visit *visit, void *user, once_error *err);
int once__live_to_record(once_sqlite *q, const once_entry *entry, int64_t keep_ms, once_record *out, once_error *err);

/* Notes that a row was added (or removed). Compares all ids of the table with the sum, once per handle: at most `limit`
 * rows; `verify` compares larger tables. */
void once__present_change(once_sqlite *q, enum once_present which, once_bytes id, bool gone);
void once__present_change_row(once_sqlite *q, enum once_present which, int64_t id, bool gone);
int once__present_check(once_sqlite *q, enum once_present which, int64_t limit, once_error *err);
int once__present_count(once_sqlite *q, enum once_present which, int64_t limit, uint64_t *out, bool *all,
                        once_error *err);

/* Small helpers for binding and reading. */
void once__bind_bytes(sqlite3_stmt *stmt, int at, once_bytes bytes); /* an empty blob when there are no bytes */
void once__bind_id(sqlite3_stmt *stmt, int at, const unsigned char id[16]);
bool once__column_copy(sqlite3_stmt *stmt, int at, once_arena *arena, once_bytes *out);
bool once__column_id(sqlite3_stmt *stmt, int at, once_hash *out); /* false: not 16 bytes; NULL reads as zero */

/* A store on a connection of the caller, outside of any transaction of it; makes missing tables. Closing the store
 * leaves the connection open, and must happen before the connection is closed. Between begin and commit the caller may
 * run its own statements. NULL limits: the defaults. */
int once__sqlite_store_borrow(sqlite3 *handle, const once_store_options *options, const once_settled_limits *limits,
                              once_backend **out, once_error *err);

/* For tests: runs statements on our own tables, and writes all sums again. */
int once__sqlite_store_edit(once_backend *store, const char *sql, once_error *err);

/* For tests: opens with other sizes. NULL: the defaults. */
int once__sqlite_store_open(const char *path, const once_store_options *options, const once_settled_limits *limits,
                            once_backend **out, once_error *err);

#endif
