/* Payments to measure with: a file of messages, and the same payments as plain values for peers that do not parse.
 *
 * A message is one JSON object of WORKLOAD_BYTES bytes and a newline. One in five is a duplicate, byte for byte: three
 * quarters of those repeat any earlier message, the others the message just before. Everything follows from the seed.
 * */
#ifndef BENCH_WORKLOAD_H
#define BENCH_WORKLOAD_H

#include <stdbool.h>
#include <stdint.h>

#define WORKLOAD_BYTES 300
#define WORKLOAD_ORDERS 10000

typedef struct payment {
    char id[36];
    uint32_t order_id; /* 1 .. WORKLOAD_ORDERS */
    int32_t amount;    /* below 0 in a failing message */
    uint32_t duplicate;
} payment;

typedef struct workload {
    uint64_t messages, seed;
    bool uuid7;                /* keys ordered by time instead of random */
    unsigned failing_permille; /* of the messages that are no duplicates */
} workload;

typedef struct workload_sums {
    uint64_t keys;    /* different ones */
    uint64_t failing; /* of them */
    int64_t amount;   /* of those that do not fail */
} workload_sums;

/* Writes both files. Ends the program when it cannot. */
void workload_write(const workload *w, const char *messages_path, const char *payments_path, workload_sums *sums);

/* The payments of a file that workload_write made, in memory and touched, so that no page of them is missing later. */
const payment *workload_map(const char *payments_path, uint64_t *n);

#endif
