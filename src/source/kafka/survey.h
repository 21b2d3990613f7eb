/* Inside of the Kafka source: what `once check` and `once status` ask the cluster. Nothing joins a group. */
#ifndef ONCE_SOURCE_KAFKA_SURVEY_H
#define ONCE_SOURCE_KAFKA_SURVEY_H

#include "base/arena.h"
#include "source/kafka/kafka.h"

/* A topic of the pipeline file, or one that a pattern matches. */
typedef struct kafka_surveyed {
    once_bytes written; /* as the file has it */
    const char *name;   /* NULL: `written` is a pattern that matches nothing */
    rd_kafka_resp_err_t error;
    int32_t partitions;
    int without_leader; /* of these */
} kafka_surveyed;

/* A partition; -1: there is none, or it is not known. */
typedef struct kafka_ends {
    const char *topic;
    int32_t number;
    int64_t committed, low, high; /* of the group; the first message; behind the last one that may be read */
    kafka_kept kept;              /* with the group's offset */
} kafka_ends;

/* Where a run goes on in a partition. */
typedef struct kafka_next {
    kafka_cursor_fate fate; /* COUNTS: the cursor decides; ALONE: a run does not go on there */
    int64_t offset;         /* -1: there is none */
    int64_t cursor;         /* of the store; -1: none, or `cursor` is not set */
} kafka_next;

/* All zero before; the caller releases the arena. */
typedef struct kafka_survey {
    once_arena arena;
    kafka_surveyed *topics;
    size_t n, room;
    kafka_ends *ends;
    size_t n_ends;
} kafka_survey;

/* What is left until then, at least 1 and at most a minute. */
int once__kafka_left_ms(const kafka_source *k, int64_t until_ns);
/* Fails with the names of the brokers, if none answers or they refuse. */
int once__kafka_survey_topics(kafka_source *k, int64_t until_ns, kafka_survey *out, once_error *err);
/* `denied`: why the group's offsets are not known; 0: they are. */
int once__kafka_survey_offsets(kafka_source *k, int64_t until_ns, kafka_survey *survey, rd_kafka_resp_err_t *denied,
                               once_error *err);
/* The group's offset or, with `cursor: true`, what the store has. */
int once__kafka_survey_next(const kafka_source *k, const once_facts *facts, const kafka_ends *e, kafka_next *out,
                            once_error *err);

#endif
