/* A broker of Apache Kafka for a measurement, and what is done with it beside the product.
 *
 * A client of librdkafka has threads, which a fork does not copy. So every function that needs one works in a process
 * of its own, or says that it must be called in one. */
#ifndef BENCH_KAFKA_BROKER_H
#define BENCH_KAFKA_BROKER_H

#include <librdkafka/rdkafka.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BROKER_PARTITIONS 8     /* of every topic */
#define BROKER_MESSAGE_MAX 1024 /* bytes */

bool broker_start(void); /* false: there is none here */
const char *broker_address(void);

/* Writes message `i` and returns its length. */
typedef size_t broker_write(const void *user, uint64_t i, char out[BROKER_MESSAGE_MAX]);

/* Makes the topic and fills it: message `i` is in partition i % BROKER_PARTITIONS, its key is `i` as text. */
void broker_fill(const char *topic, uint64_t messages, broker_write *write, const void *user);

/* --- in a child --- */

/* A client with these properties (pairs of name and value; NULL ends them) beside the address. What fails ends the
 * process. */
rd_kafka_t *broker_client(rd_kafka_type_t type, const char *const *properties);
/* A producer with the defaults of librdkafka, which calls `told` in rd_kafka_poll when a message is with the broker. */
typedef void broker_told(rd_kafka_t *client, const rd_kafka_message_t *message, void *user);
rd_kafka_t *broker_producer(broker_told *told);
void broker_make_topic(rd_kafka_t *client, const char *topic);

/* Up to where the group has committed, over all partitions. `client` has the group's id. */
uint64_t broker_committed(rd_kafka_t *client, const char *topic);

#endif
