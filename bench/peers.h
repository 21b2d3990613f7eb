/* What people write by hand instead of using once, on SQLite, written as well as we can.
 *
 * All of them open their file as the product's store does (the same function sets page cache, WAL, synchronous and
 * checkpoints) and get payments that need no parsing. */
#ifndef BENCH_PEERS_H
#define BENCH_PEERS_H

#include <stddef.h>

#include "workload.h"

typedef enum peer_kind {
    PEER_CLASSIC, /* a transaction per message: note the key, the effect if it was new, commit */
    PEER_BATCH,   /* the same statements, PEER_BATCH_MESSAGES messages a transaction */
    PEER_EFFECT   /* the effects alone, in the same batches. Duplicates are skipped without asking anybody: their INSERT
                   * would fail. They count as handled, so this is what no deduplication can beat. */
} peer_kind;

#define PEER_BATCH_MESSAGES 1024

/* Which check makes a failing message fail. */
typedef enum peer_check {
    CHECK_NONE,
    CHECK_FIRST, /* on payments: the first statement of a message fails, nothing has to be undone */
    CHECK_SECOND /* on orders: the second one fails, after the first one took effect */
} peer_check;

/* Makes a database with the tables of the effect. */
void peer_make_tables(const char *path, peer_check check);

/* Opening and closing (with its checkpoint) included. `done` is kept up to date, for the process that watches. */
double peer_run(peer_kind kind, const char *path, const payment *payments, uint64_t n, volatile uint64_t *done);

/* Only duplicates: parses each line of the messages for its key and looks for it in the table that PEER_BATCH left. */
double peer_look_up(const char *path, const char *messages_path, volatile uint64_t *done);

/* Ends the program unless the tables hold what the workload should have left. */
void peer_verify(const char *path, uint64_t payments, int64_t amount);

/* "cache_size=... wal_autocheckpoint=...", as found on a connection. */
void peer_describe(const char *path, char *out, size_t len);

#endif
