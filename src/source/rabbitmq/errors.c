/* Errors of the broker and of librabbitmq as statuses of ours. A status decides whether a run tries again, waits for an
 * operator, or ends. */
#include <stdarg.h>
#include <stdio.h>

#include "source/rabbitmq/rabbitmq.h"

#include "base/banned.h"

#define WHAT_MAX 300

/* Reply codes of AMQP that are not a matter of time. */
enum { REFUSED = 403, NOT_FOUND = 404, LOCKED = 405, NOT_ALLOWED = 530 };

static int status_of(uint16_t code)
{
    switch (code) {
    case REFUSED:
    case NOT_ALLOWED: return ONCE_E_DENIED;
    case NOT_FOUND: return ONCE_E_MISSING;
    case LOCKED: return ONCE_E_BUSY;
    default: return ONCE_E_UNAVAILABLE;
    }
}

/* Texts of a broker are for people, and come from outside. */
static void clean(const void *data, size_t len, char *out, size_t size)
{
    size_t n = 0;
    for (size_t i = 0; i < len && n + 1 < size; i++) {
        const char c = ((const char *)data)[i];
        out[n++] = (unsigned char)c < 0x20 || c == 0x7f ? ' ' : c;
    }
    out[n] = '\0';
}

static int say_closed(once_error *err, uint16_t code, amqp_bytes_t text, const char *what)
{
    char said[256];
    clean(text.bytes, text.len, said, sizeof said);
    return once_fail(err, status_of(code), "%s: the broker says: %s", what, said);
}

static int say_broke(once_error *err, int status, const char *what)
{
    if (status == AMQP_STATUS_NO_MEMORY) return once_fail(err, ONCE_E_NOMEM, "%s: out of memory", what);
    const char *text = status == AMQP_STATUS_HEARTBEAT_TIMEOUT
                           ? "nothing came for two heartbeats"
                           : amqp_error_string2(status); /* static texts, without a secret */
    return once_fail(err, ONCE_E_UNAVAILABLE, "%s: %s", what, text);
}

#define WRITE_WHAT(what, format)                                                                                       \
    char what[WHAT_MAX];                                                                                               \
    va_list args;                                                                                                      \
    va_start(args, format);                                                                                            \
    (void)vsnprintf(what, sizeof(what), format, args);                                                                 \
    va_end(args)

int once__rabbitmq_closed(once_error *err, uint16_t code, amqp_bytes_t text, const char *format, ...)
{
    WRITE_WHAT(what, format);
    return say_closed(err, code, text, what);
}

int once__rabbitmq_broke(once_error *err, int library_status, const char *format, ...)
{
    WRITE_WHAT(what, format);
    return say_broke(err, library_status, what);
}

int once__rabbitmq_fail(once_error *err, amqp_rpc_reply_t reply, const char *format, ...)
{
    WRITE_WHAT(what, format);
    if (reply.reply_type == AMQP_RESPONSE_SERVER_EXCEPTION && reply.reply.id == AMQP_CONNECTION_CLOSE_METHOD) {
        const amqp_connection_close_t *m = reply.reply.decoded;
        return say_closed(err, m->reply_code, m->reply_text, what);
    }
    if (reply.reply_type == AMQP_RESPONSE_SERVER_EXCEPTION && reply.reply.id == AMQP_CHANNEL_CLOSE_METHOD) {
        const amqp_channel_close_t *m = reply.reply.decoded;
        return say_closed(err, m->reply_code, m->reply_text, what);
    }
    const bool library = reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION;
    return say_broke(err, library ? reply.library_error : AMQP_STATUS_WRONG_METHOD, what);
}
