/* `once check` of a handler's key: which messages it takes for one. There are three kinds of duplicates, and a key
 * catches a kind if it is the same in both messages:
 *
 *   redelivery   the same message comes again, after a crash or a rebalance
 *   second send  the producer sends the message again, because it did not see that the first one arrived
 *   second event another message is about the same fact, such as a payment that two systems report
 *
 * A key of several parts is the same only if all of them are, so the part that differs most often decides. */
#include <assert.h>
#include <stdio.h>

#include "base/buf.h"
#include "runtime/runtime.h"
#include "source/source.h"

#include "base/banned.h"

static bool has_source(const once_template *key, const char *name)
{
    const once_placeholder *place;
    for (size_t at = 0; (place = once_template_next(key, &at));)
        if (place->kind == ONCE_PLACE_SOURCE && once_bytes_equal(place->name, once_bytes_of(name))) return true;
    return false;
}

/* It has what the broker makes anew for each send. */
static bool is_numbered(const once_spec *spec, const once_template *key)
{
    for (const char *const *name = spec->source.kind->numbered; name && *name; name++)
        if (has_source(key, *name)) return true;
    return false;
}

#define SNS_CATCHES                                                                                                    \
    "its key catches a redelivery, also a second delivery by SNS, which has the same MessageId; a second publish by "  \
    "the producer and a second event for the same fact have another one and are not caught; a message without an "     \
    "envelope (raw delivery) "

static const char *event_catches(const once_spec *spec)
{
    if (spec->events == ONCE_EVENT_SNS)
        return spec->source.unstable ? SNS_CATCHES "has no id, and becomes a dead letter"
                                     : SNS_CATCHES
                   "has the coordinates for an id, which catch a redelivery by the queue only";
    if (spec->events == ONCE_EVENT_EVENTBRIDGE)
        return "its key catches a redelivery, also a second delivery by EventBridge or by another rule, which has the "
               "same id; a second send by the producer (PutEvents) and a second event for the same fact have another "
               "id and are not caught";
    return "its key catches a redelivery, and a second send if the producer gives it the same id, as CloudEvents asks "
           "for; a second event for the same fact has another id and is not caught";
}

const char *once__key_catches(const once_spec *spec, const once_template *key)
{
    assert(key);
    if (once_template_uses(key, ONCE_PLACE_COORDINATES) || is_numbered(spec, key))
        return "its key catches a redelivery only; it does not catch a second send by the producer, nor a second event "
               "for the same fact, because these have other coordinates";
    if (has_source(key, "timestamp") || has_source(key, "sent"))
        return "its key catches a redelivery only; a second send by the producer and a second event for the same fact "
               "have other timestamps, and two messages of the same millisecond may be taken for one";
    if (once_template_uses(key, ONCE_PLACE_HASH))
        return "its key catches a redelivery, and a second send by the producer if the body is the same; two equal "
               "events that were both meant are taken for one, and a second event for the same fact is not caught if "
               "anything in it differs";
    if (once_template_uses(key, ONCE_PLACE_EVENT)) return event_catches(spec);
    if (has_source(key, "deduplication_id"))
        return "its key catches a redelivery, and a second send if the producer gives it the same deduplication id; it "
               "catches a second event for the same fact only if that id names the fact";
    if (has_source(key, "message_id")) /* a property that the producer sets */
        return "its key catches a redelivery, and a second send if the producer gives it the same message id; a second "
               "event for the same fact is not caught, unless that id names the fact";
    if (once_template_uses(key, ONCE_PLACE_HEADER))
        return "its key catches a redelivery, and a second send if the producer gives it the same header; it catches a "
               "second event for the same fact only if the header names that fact";
    if (once_template_uses(key, ONCE_PLACE_FIELD) || once_template_uses(key, ONCE_PLACE_TIME))
        return "its key catches a redelivery, a second send by the producer, and a second event for the same fact, if "
               "its fields name that fact; a field that is made anew for each send catches a redelivery only";
    if (has_source(key, "key") || has_source(key, "key_base64"))
        return "its key is the record key: it catches a redelivery, a second send by the producer, and every later "
               "message with that record key; that is right only if each event has a record key of its own";
    return "its key names no single message: all messages with the same value are taken for one";
}

/* Offsets are numbers of their partition only. */
static bool mixes_partitions(const once_template *key)
{
    if (once_template_uses(key, ONCE_PLACE_COORDINATES) || !has_source(key, "offset")) return false;
    return !has_source(key, "topic") || !has_source(key, "partition");
}

bool once__key_doubt(const once_spec *spec, const once_handler_spec *handler, char *out, size_t size)
{
    const once_template *key = handler->key;
    const char *repeats = spec->source.kind->repeats;
    const bool placed = once_template_uses(key, ONCE_PLACE_COORDINATES) || has_source(key, "offset");
    if (mixes_partitions(key)) {
        (void)snprintf(out, size,
                       "its key has ${source:offset}, which repeats in other partitions and topics: messages of two "
                       "partitions are taken for one; write ${coordinates}, or add ${source:topic} and "
                       "${source:partition}");
        return true;
    }
    if (!placed || !repeats || handler->fingerprint.kind != ONCE_FINGERPRINT_NONE) return false;
    (void)snprintf(
        out, size,
        "its key is the place of a message in the source, and 'fingerprint: none' compares no content: %s has "
        "other messages at the same places, and they are taken for duplicates without a word while the old "
        "ones are remembered; remove 'fingerprint: none', so that they become conflicts",
        repeats);
    return true;
}
