/* Intake, its first step (core/intake_parse.h): headers, body, and an envelope around it. */
#include "core/intake_parse.h"

#include <assert.h>
#include <string.h>

#include "base/no_memory.h"
#include "core/event.h"

#include "base/banned.h"

static int parse_headers(once_intake *intake, const once_item *item, once_error *why)
{
    once_json_error bad;
    const once_json_options options = {.seed = intake->secret.k1};
    if (item->message.headers.len == 0) return ONCE_OK;
    const int rc = once_json_parse(&intake->headers, item->message.headers, &options, &bad);
    if (rc == ONCE_E_MESSAGE)
        return once_fail(why, rc, "malformed headers at byte %zu: %s", bad.offset + 1, bad.reason);
    return rc == ONCE_OK ? rc : once_fail(why, rc, "out of memory for a message");
}

static once_json_value header(const once_intake *intake, const once_item *item, const char *name)
{
    if (item->message.headers.len == 0) return (once_json_value){0};
    return once_json_member(&intake->headers, once_json_root(&intake->headers), (once_bytes){name, strlen(name)});
}

/* Puts into the headers that there is no body, because the store keeps only those. */
static int mark_no_body(once_intake *intake, once_item *item, once_error *why)
{
    static const char mark[] = "{\"" ONCE_NO_BODY_MEMBER "\":true";
    const once_bytes headers = item->message.headers;
    const once_json_value all = headers.len ? once_json_root(&intake->headers) : (once_json_value){0};
    once_json_iter any = once_json_each(&intake->headers, all);
    const bool more = all.type == ONCE_JSON_OBJECT && once_json_next(&any);
    const once_bytes rest = more ? (once_bytes){all.raw.data + 1, all.raw.len - 1} : ONCE_BYTES("}");
    char *text = once_arena_alloc(&item->batch->arena, sizeof mark + rest.len), *to = text;
    if (!text) return once_no_memory(why, "for a message");
    to = mempcpy(to, mark, sizeof mark - 1);
    if (more) *to++ = ',';
    to = mempcpy(to, rest.data, rest.len);
    item->message.headers = (once_bytes){text, (size_t)(to - text)};
    return parse_headers(intake, item, why);
}

/* Whether the message has a body, as it comes or as the store kept it. */
static int find_body(once_intake *intake, once_item *item, once_error *why)
{
    const bool marked = header(intake, item, ONCE_NO_BODY_MEMBER).type == ONCE_JSON_TRUE;
    item->message.no_body |= marked && item->message.body.len == 0;
    return item->message.no_body && !marked ? mark_no_body(intake, item, why) : ONCE_OK;
}

static int parse_json(once_intake *intake, const once_item *item, once_error *why)
{
    once_json_error bad;
    const once_json_options options = {.seed = intake->secret.k1};
    const int rc = once_json_parse(&intake->body, item->message.body, &options, &bad);
    if (rc == ONCE_E_MESSAGE) return once_fail(why, rc, "malformed JSON at byte %zu: %s", bad.offset + 1, bad.reason);
    return rc == ONCE_OK ? rc : once_fail(why, rc, "out of memory for a message");
}

/* Takes the message out of its envelope, if it has one. *parsed: the body is JSON, and was parsed. */
static int open_envelope(once_intake *intake, once_item *item, bool *parsed, once_error *why)
{
    bool opened;
    const int parse = parse_json(intake, item, why);
    *parsed = parse == ONCE_OK;
    if (!*parsed) return parse == ONCE_E_MESSAGE ? ONCE_OK : parse; /* what is not JSON is no envelope */
    const once_parsed outer = {.message = &item->message,
                               .body = &intake->body,
                               .headers = item->message.headers.len ? &intake->headers : NULL,
                               .events = intake->spec->events};
    const int rc = once_event_open(&outer, &item->batch->arena, &item->message, &opened, why);
    if (rc != ONCE_OK || !opened) return rc;
    *parsed = false; /* the envelope was */
    return parse_headers(intake, item, why);
}

/* Headers that the body has. Those of an envelope count instead. */
static int find_headers(once_intake *intake, once_item *item, once_error *why)
{
    const once_pointer *pointer = &intake->spec->source.headers;
    if (pointer->text.len == 0 || header(intake, item, ONCE_EVENT_MEMBER).type == ONCE_JSON_OBJECT) return ONCE_OK;
    const once_json_value headers = once_json_find(&intake->body, pointer);
    if (headers.type != ONCE_JSON_OBJECT) return ONCE_OK;
    item->message.headers = headers.raw;
    return parse_headers(intake, item, why);
}

int once__intake_parse(once_intake *intake, once_item *item, once_error *why)
{
    assert(item->batch);
    const once_spec *spec = intake->spec;
    intake->document = NULL;
    once_texts_begin(&intake->texts, &item->batch->arena, intake->secret.k1);
    if (item->message.fault.len)
        return once_fail(why, ONCE_E_MESSAGE, "%.*s", (int)item->message.fault.len, item->message.fault.data);
    if (item->message.cut_from)
        return once_fail(why, ONCE_E_MESSAGE,
                         "message of %llu bytes is longer than message_max (%zu); only its beginning is kept",
                         (unsigned long long)item->message.cut_from, spec->message_max);
    if (item->message.body.len > spec->message_max)
        return once_fail(why, ONCE_E_MESSAGE, "message of %zu bytes is longer than message_max (%zu)",
                         item->message.body.len, spec->message_max);
    bool parsed = false;
    int rc = parse_headers(intake, item, why);
    if (rc == ONCE_OK) rc = find_body(intake, item, why);
    if (rc != ONCE_OK || item->message.no_body) return rc;
    if (once_event_is_wrapped(spec->events)) rc = open_envelope(intake, item, &parsed, why);
    if (rc != ONCE_OK || spec->source.bytes) return rc;
    if (!parsed) rc = parse_json(intake, item, why);
    if (rc != ONCE_OK) return rc;
    intake->document = &intake->body;
    return find_headers(intake, item, why);
}
