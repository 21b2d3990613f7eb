/* The SQS source's part of the pipeline file. Always linked in; the source itself (source/sqs/) is a module. */
#ifndef ONCE_SOURCE_SQS_SPEC_H
#define ONCE_SOURCE_SQS_SPEC_H

#include "core/spec.h"

typedef struct once_sqs_spec {
    once_bytes queue;                     /* a URL or a name, as it is written */
    once_bytes name;                      /* of the queue */
    bool fifo;                            /* its name ends with ".fifo" */
    once_bytes region, endpoint, profile; /* empty: as the environment says */
    int64_t wait_ms;                      /* how long a receive waits for a message */
    uint32_t receivers;                   /* receives at a time; 0: as many as fill a batch */
    int64_t visibility_ms;                /* how long a message is hidden from others; 0: as the queue says */
} once_sqs_spec;

/* Whether it is https://HOST[:PORT] and perhaps a path: no name, no password, no query. */
bool once_sqs_is_plain_url(once_bytes text);

static inline const once_sqs_spec *once_sqs_of(const once_source_spec *source) { return source->own; }

#endif
