/* What people write by hand: a consumer that polls one message, and for it runs
 *
 *     BEGIN; INSERT INTO processed_messages ... ON CONFLICT DO NOTHING; the effect if the row is new; COMMIT
 *
 * with prepared statements on one connection, and then commits its offset and waits for the answer. */
#ifndef BENCH_KAFKA_CLASSIC_H
#define BENCH_KAFKA_CLASSIC_H

#include "workload.h"

/* The key of a message is its number in `payments`, so nothing is parsed. The rate of the first `n` messages, from the
 * first one on: joining the group does not count. */
double classic_run(const char *database, const char *topic, const char *group, const payment *payments, uint64_t n);

#endif
