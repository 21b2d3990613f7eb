/* Which duplicates a key catches, as `once check` says it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/config.h"
#include "runtime/runtime.h"

static const once_template *parse(once_arena *arena, const char *text)
{
    const once_template *key = NULL;
    once_error err;
    if (once_template_parse(arena, once_bytes_of(text), &key, &err) != ONCE_OK) fail_msg("%s: %s", text, err.text);
    return key;
}

static void each_kind_of_key_has_its_words(void **state)
{
    static const struct {
        const char *key, *words;
        once_event_form form;
        const char *unstable;
        const once_source_kind *kind; /* NULL: Kafka */
    } keys[] = {
        {"${coordinates}", "a redelivery only; it does not catch a second send"},
        {"${/id}:${coordinates}", "a redelivery only"},
        {"${source:topic}/${source:partition}/${source:offset}", "a redelivery only"},
        {"${source:timestamp}:${/id}", "two messages of the same millisecond"},
        {"${hash}", "two equal events that were both meant are taken for one"},
        {"${/id}-${hash}", "if the body is the same"},
        {"${header:message-id}", "if the producer gives it the same header"},
        {"${header:message-id}:${/id}", "if the producer gives it the same header"},
        {"${event:source}/${event:id}", "the same id, as CloudEvents asks for", ONCE_EVENT_CLOUDEVENTS},
        {"${event:source}/${event:id}", "which has the same MessageId", ONCE_EVENT_SNS},
        {"${event:source}/${event:id}", "has the coordinates for an id", ONCE_EVENT_SNS},
        {"${event:source}/${event:id}", "has no id, and becomes a dead letter", ONCE_EVENT_SNS, "why"},
        {"${event:source}/${event:id}", "a second send by the producer (PutEvents)", ONCE_EVENT_EVENTBRIDGE},
        {"${json:/Message:/payment_id}", "if its fields name that fact"},
        {"${/payment_id}", "a second event for the same fact, if its fields name that fact"},
        {"${/account}:${time:/at:5m}", "if its fields name that fact"},
        {"${source:key}", "its key is the record key"},
        {"${source:key_base64}", "its key is the record key"},
        {"${source:message_id}", "a redelivery only", .kind = &once__source_sqs},
        {"${source:sequence_number}", "a redelivery only", .kind = &once__source_sqs},
        {"${source:deduplication_id}", "the same deduplication id", .kind = &once__source_sqs},
        {"${source:message_id}", "if the producer gives it the same message id", .kind = &once__source_rabbitmq},
        {"${source:message_id}/${coordinates}", "a redelivery only", .kind = &once__source_rabbitmq},
        {"${source:topic}", "names no single message"},
        {"everything", "names no single message"},
    };
    (void)state;
    once_arena arena = {0};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const once_spec spec = {
            .events = keys[i].form,
            .source = {.unstable = keys[i].unstable, .kind = keys[i].kind ? keys[i].kind : &once__source_kafka}};
        const char *text = once__key_catches(&spec, parse(&arena, keys[i].key));
        if (!strstr(text, keys[i].words)) fail_msg("%s: %s", keys[i].key, text);
    }
    once_arena_release(&arena);
}

/* With a source of Kafka. `words`: of the doubt; NULL: there is none. */
static void doubted(once_arena *arena, const char *key, const char *more, const char *words)
{
    char file[500], text[600] = "";
    once_spec *spec;
    once_error err = {0};
    (void)snprintf(file, sizeof file,
                   "consumer: c\nstore: memory\nsource: {kafka: {brokers: b, topics: t}}\nkey: \"%s\"\n%s"
                   "handler: {dead: x}\n",
                   key, more);
    if (once_config_parse("p.yaml", once_bytes_of(file), arena, NULL, NULL, &spec, &err) != ONCE_OK)
        fail_msg("%s", err.text);
    assert_int_equal(once__key_doubt(spec, &spec->handlers[0], text, sizeof text), words != NULL);
    if (words && !strstr(text, words)) fail_msg("%s: %s", key, text);
}

/* An offset is not unique by itself. */
static void an_offset_without_its_partition_is_doubted(void **state)
{
    (void)state;
    once_arena arena = {0};
    doubted(&arena, "${source:offset}", "", "write ${coordinates}");
    doubted(&arena, "${source:partition}/${source:offset}", "", "write ${coordinates}");
    doubted(&arena, "${source:topic}/${source:partition}/${source:offset}", "", NULL);
    doubted(&arena, "${coordinates}", "", NULL);
    doubted(&arena, "${/id}", "", NULL);
    once_arena_release(&arena);
}

/* A topic that is made anew has other messages at the same places. */
static void places_without_content_are_doubted(void **state)
{
    (void)state;
    once_arena arena = {0};
    static const char none[] = "fingerprint: none\n",
                      words[] = "a topic that is deleted and made anew has other messages";
    doubted(&arena, "${coordinates}", none, words);
    doubted(&arena, "${/id}-${coordinates}", none, words);
    doubted(&arena, "${source:topic}/${source:partition}/${source:offset}", none, words);
    doubted(&arena, "${/id}", none, NULL);
    doubted(&arena, "${source:key}", none, NULL);
    doubted(&arena, "${coordinates}", "fingerprint: [/id]\n", NULL);
    once_arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_kind_of_key_has_its_words),
        cmocka_unit_test(an_offset_without_its_partition_is_doubted),
        cmocka_unit_test(places_without_content_are_doubted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
