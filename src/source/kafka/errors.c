/* Errors of librdkafka as statuses of ours. A status decides whether a run tries again, waits for an operator, or ends.
 */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "source/kafka/kafka.h"

#include "base/banned.h"

int once__kafka_status(rd_kafka_resp_err_t error)
{
    switch (error) {
    case RD_KAFKA_RESP_ERR_NO_ERROR: return ONCE_OK;
    case RD_KAFKA_RESP_ERR__AUTHENTICATION:
    case RD_KAFKA_RESP_ERR_SASL_AUTHENTICATION_FAILED:
    case RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED:
    case RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED:
    case RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED:
    case RD_KAFKA_RESP_ERR__SSL: return ONCE_E_DENIED;
    case RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART:
    case RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC:
    case RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION: return ONCE_E_MISSING;
    case RD_KAFKA_RESP_ERR_FENCED_INSTANCE_ID:
    case RD_KAFKA_RESP_ERR_INVALID_SESSION_TIMEOUT:
    case RD_KAFKA_RESP_ERR_INCONSISTENT_GROUP_PROTOCOL:
    case RD_KAFKA_RESP_ERR_INVALID_GROUP_ID:
    case RD_KAFKA_RESP_ERR__INVALID_ARG: return ONCE_E_CONFIG;
    case RD_KAFKA_RESP_ERR__FATAL: return ONCE_E_IO;
    default: return ONCE_E_UNAVAILABLE;
    }
}

rd_kafka_resp_err_t once__kafka_event_error(rd_kafka_event_t *event)
{
    const rd_kafka_resp_err_t error = rd_kafka_event_error(event);
    const char *text = rd_kafka_event_error_string(event);
    const bool alert = error == RD_KAFKA_RESP_ERR__TRANSPORT && text && strstr(text, "SSL alert number");
    return alert ? RD_KAFKA_RESP_ERR__SSL : error;
}

int once__kafka_fail(once_error *err, rd_kafka_resp_err_t error, const char *format, ...)
{
    char what[512];
    assert(error != RD_KAFKA_RESP_ERR_NO_ERROR);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return once_fail(err, once__kafka_status(error), "%s: %s", what, rd_kafka_err2str(error));
}

int once__kafka_fatal(const kafka_source *k, rd_kafka_t *client, once_error *err)
{
    char text[400] = "";
    const bool fenced = rd_kafka_fatal_error(client, text, sizeof text) == RD_KAFKA_RESP_ERR_FENCED_INSTANCE_ID;
    return once_fail(err, fenced ? ONCE_E_CONFIG : ONCE_E_IO, "group '%s': %s%s", k->group, text,
                     fenced ? "; another worker has the same 'instance'" : "");
}
