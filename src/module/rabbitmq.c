/* The module `rabbitmq`: the source. With librabbitmq, and libcurl for the management API. */
#include "base/module.h"
#include "source/rabbitmq/rabbitmq.h"

#include "base/banned.h"

static const once_module_part parts[] = {
    {"source", "rabbitmq", &once__rabbitmq_ops},
    {NULL, NULL, NULL},
};

ONCE_MODULE(rabbitmq, parts);
