/* The module `sqs`: the source. With libcurl. */
#include "base/module.h"
#include "source/sqs/sqs.h"

#include "base/banned.h"

static const once_module_part parts[] = {
    {"source", "sqs", &once__sqs_ops},
    {NULL, NULL, NULL},
};

ONCE_MODULE(sqs, parts);
