/* The module `sqs`: what AWS needs. With libcurl. */
#include "base/module.h"

#include "base/banned.h"

static const once_module_part parts[] = {
    {NULL, NULL, NULL},
};

ONCE_MODULE(sqs, parts);
