/* `once check` of a handler's key: which messages it takes for one. There are three kinds of duplicates, and a key
 * catches a kind if it is the same in both messages:
 *
 *   redelivery   the same message comes again, after a crash or a rebalance
 *   second send  the producer sends the message again, because it did not see that the first one arrived
 *   second event another message is about the same fact, such as a payment that two systems report
 *
 * A key of several parts is the same only if all of them are, so the part that differs most often decides. */
#include <assert.h>
#include <string.h>

#include "runtime/runtime.h"

#include "base/banned.h"

static bool has_source(const once_template *key, const char *name)
{
    once_bytes found;
    for (size_t at = 0; once_template_source_name(key, &at, &found);)
        if (found.len == strlen(name) && memcmp(found.data, name, found.len) == 0) return true;
    return false;
}

const char *once__key_catches(const once_template *key)
{
    assert(key);
    const unsigned parts = once_template_parts(key);
    if ((parts & ONCE_PART_COORDINATES) || has_source(key, "offset"))
        return "its key catches a redelivery only; it does not catch a second send by the producer, nor a second event "
               "for the same fact, because these have other coordinates";
    if (has_source(key, "timestamp"))
        return "its key catches a redelivery only; a second send by the producer and a second event for the same fact "
               "have other timestamps, and two messages of the same millisecond may be taken for one";
    if (parts & ONCE_PART_HASH)
        return "its key catches a redelivery, and a second send by the producer if the body is the same; two equal "
               "events that were both meant are taken for one, and a second event for the same fact is not caught if "
               "anything in it differs";
    if (parts & ONCE_PART_EVENT)
        return "its key catches a redelivery, and a second send if the producer gives it the same id, as CloudEvents "
               "asks for; a second event for the same fact has another id and is not caught";
    if (parts & ONCE_PART_HEADER)
        return "its key catches a redelivery, and a second send if the producer gives it the same header; it catches a "
               "second event for the same fact only if the header names that fact";
    if (parts & ONCE_PART_POINTER)
        return "its key catches a redelivery, a second send by the producer, and a second event for the same fact, if "
               "its fields name that fact; a field that is made anew for each send catches a redelivery only";
    if (has_source(key, "key") || has_source(key, "key_base64"))
        return "its key is the record key: it catches a redelivery, a second send by the producer, and every later "
               "message with that record key; that is right only if each event has a record key of its own";
    return "its key names no single message: all messages with the same value are taken for one";
}

const char *once__key_doubt(const once_template *key)
{
    assert(key);
    if ((once_template_parts(key) & ONCE_PART_COORDINATES) || !has_source(key, "offset")) return NULL;
    if (has_source(key, "topic") && has_source(key, "partition")) return NULL;
    return "its key has ${source:offset}, which repeats in other partitions and topics: messages of two partitions are "
           "taken for one; write ${coordinates}, or add ${source:topic} and ${source:partition}";
}
