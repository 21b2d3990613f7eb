/* The module `kafka`: the source. With librdkafka. */
#include "base/module.h"
#include "source/kafka/kafka.h"

#include "base/banned.h"

static const once_module_part parts[] = {
    {"source", "kafka", &once__kafka_ops},
    {NULL, NULL, NULL},
};

ONCE_MODULE(kafka, parts);
