/* The Kafka source's part of the pipeline file. Always linked in; the source itself (source/kafka/) is a module. */
#ifndef ONCE_SOURCE_KAFKA_SPEC_H
#define ONCE_SOURCE_KAFKA_SPEC_H

#include "core/spec.h"

/* Where a partition begins of which the group has no offset. */
typedef enum once_kafka_start {
    ONCE_KAFKA_EARLIEST, /* at the first message that the broker has */
    ONCE_KAFKA_LATEST,   /* behind the last one */
    ONCE_KAFKA_ERROR     /* nowhere: the run ends with an error */
} once_kafka_start;

/* What happens if the messages at an offset are gone, or not there yet. */
typedef enum once_kafka_out_of_range { ONCE_KAFKA_STOP, ONCE_KAFKA_GO_ON } once_kafka_out_of_range;

typedef struct once_kafka_spec {
    const once_bytes *brokers;
    size_t n_brokers;
    const once_bytes *topics; /* names, or patterns that begin with '^' */
    size_t n_topics;
    once_bytes joined;   /* the topics, with commas */
    once_bytes group;    /* empty: the name of the consumer */
    once_bytes instance; /* group.instance.id, with ${host} and ${env:NAME}; empty: membership is not static */
    int instance_line;
    int start;        /* once_kafka_start */
    int out_of_range; /* once_kafka_out_of_range */
    bool cursor;
    const once_bytes *token; /* the command that writes a token for OAUTHBEARER, and its arguments */
    size_t n_token;
    const once_written *config; /* properties of librdkafka */
    size_t n_config;
} once_kafka_spec;

static inline const once_kafka_spec *once_kafka_of(const once_source_spec *source) { return source->own; }

static inline bool once_kafka_is_pattern(once_bytes topic) { return topic.len > 0 && topic.data[0] == '^'; }

/* Splits "payments/3" into topic and partition. False: it is no place of a Kafka source. */
bool once__kafka_place(once_bytes place, once_bytes *topic, int32_t *partition);

#endif
