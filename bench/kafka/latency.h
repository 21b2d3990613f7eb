/* How long a message takes from its producer until its effect is durable, at 1,000 messages per second: `once run`
 * inserts a row for each one, and another connection to the same database looks for new rows all the time. A message
 * begins when it is given to the producer (with librdkafka's defaults, so it
 * waits up to 5 ms for others), and ends when that connection has seen its row: so a commit of
 * the store is part of it, and a pause of the observer (1 ms), too. Clocks are those of one process. */
#ifndef BENCH_KAFKA_LATENCY_H
#define BENCH_KAFKA_LATENCY_H

#include <stdint.h>

typedef struct latency {
    double p50_ms, p99_ms, max_ms;
    double broker_p50_ms, broker_p99_ms; /* of that: until the producer knew that the broker has it */
} latency;

/* `database`: an SQLite file; or a database of the PostgreSQL server (postgres/server.h), where `server` is true. It
 * has a table seen(n, id), where n grows, and the pipeline inserts the id of each message. */
typedef struct latency_job {
    const char *label, *once, *config, *topic, *database;
    int server;
    uint64_t messages;
} latency_job;

void latency_measure(const latency_job *job, latency *out);

#endif
