/* Which duplicates a key catches, as `once check` says it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

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
    } keys[] = {
        {"${coordinates}", "a redelivery only; it does not catch a second send"},
        {"${/id}:${coordinates}", "a redelivery only"},
        {"${source:topic}/${source:partition}/${source:offset}", "a redelivery only"},
        {"${source:timestamp}:${/id}", "two messages of the same millisecond"},
        {"${hash}", "two equal events that were both meant are taken for one"},
        {"${/id}-${hash}", "if the body is the same"},
        {"${header:message-id}", "if the producer gives it the same header"},
        {"${header:message-id}:${/id}", "if the producer gives it the same header"},
        {"${event:source}/${event:id}", "the same id, as CloudEvents asks for"},
        {"${/payment_id}", "a second event for the same fact, if its fields name that fact"},
        {"${/account}:${time:/at:5m}", "if its fields name that fact"},
        {"${source:key}", "its key is the record key"},
        {"${source:key_base64}", "its key is the record key"},
        {"${source:topic}", "names no single message"},
        {"everything", "names no single message"},
    };
    (void)state;
    once_arena arena = {0};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *text = once__key_catches(parse(&arena, keys[i].key));
        if (!strstr(text, keys[i].words)) fail_msg("%s: %s", keys[i].key, text);
    }
    once_arena_release(&arena);
}

/* An offset is not unique by itself. */
static void an_offset_without_its_partition_is_doubted(void **state)
{
    (void)state;
    once_arena arena = {0};
    assert_non_null(strstr(once__key_doubt(parse(&arena, "${source:offset}")), "write ${coordinates}"));
    assert_non_null(once__key_doubt(parse(&arena, "${source:partition}/${source:offset}")));
    assert_null(once__key_doubt(parse(&arena, "${source:topic}/${source:partition}/${source:offset}")));
    assert_null(once__key_doubt(parse(&arena, "${coordinates}")));
    assert_null(once__key_doubt(parse(&arena, "${/id}")));
    once_arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_kind_of_key_has_its_words),
        cmocka_unit_test(an_offset_without_its_partition_is_doubted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
