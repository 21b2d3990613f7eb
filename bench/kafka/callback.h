/* A C function as the effect, against a consumer that does nothing:
 *
 *   bare   librdkafka alone, with the properties and the calls of the source (rd_kafka_consume_batch_queue of 1024, a
 *          queue for each partition); every message is dropped
 *   once   libonce in this process: a `natural` callback that only counts, `body: bytes`, ${coordinates} as key
 *
 * Both read a whole topic. The rate is that of the last three quarters: when a quarter of the messages is dropped, or
 * settled with its offset committed, both have all partitions and have started their threads. For bare the clock runs
 * until the last message was dropped, for once until every message is settled and its offset committed. */
#ifndef BENCH_KAFKA_CALLBACK_H
#define BENCH_KAFKA_CALLBACK_H

#include <stdint.h>

typedef struct callback_figures {
    double rate;   /* messages per second */
    double cpu_us; /* microseconds of CPU time per message, of the whole process from its start to its end */
} callback_figures;

callback_figures callback_bare(const char *topic, uint64_t messages);
/* `config`: a pipeline file with the handler `callback: count`. */
callback_figures callback_once(const char *label, const char *config, uint64_t messages);

#endif
