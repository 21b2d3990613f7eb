/* From a message to an item: what its handler says about claims, and which handler a taken one gets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/intake.h"
#include "runtime/config.h"

static const char pipeline[] = "consumer: c\n"
                               "store: memory\n"
                               "source: {file: {path: x}}\n"
                               "key: \"${/id}\"\n"
                               "type: \"${/t}\"\n"
                               "handlers:\n"
                               "  sql: {sql: [DELETE FROM t WHERE id = :id], operation: shared}\n"
                               "  held: {exec: [./effect], operation: shared}\n"
                               "  retried: {exec: [./effect], unknown: retry}\n"
                               "  natural: {callback: f, natural: true}\n"
                               "  \"*\": {dead: unknown type}\n";

static int prepare(const once_handler_spec *handler, const once_parsed *from, once_arena *arena, void **input,
                   once_error *err)
{
    (void)from, (void)arena, (void)err;
    *input = (void *)(uintptr_t)handler;
    return ONCE_OK;
}

typedef struct fixture {
    once_arena arena;
    once_spec *spec;
    once_intake intake;
    once_batch batch;
} fixture;

static int setup(void **state)
{
    static fixture f;
    f = (fixture){0};
    once_error err;
    assert_int_equal(once_config_parse("p.yaml", ONCE_BYTES(pipeline), &f.arena, NULL, NULL, &f.spec, &err), ONCE_OK);
    once_intake_init(&f.intake, f.spec, (once_secret){1, 2}, 7, prepare);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    once_intake_release(&f->intake);
    once_arena_release(&f->batch.arena);
    once_arena_release(&f->arena);
    return 0;
}

static once_item fetched(fixture *f, const char *body)
{
    once_item item = {.batch = &f->batch, .message = {.body = {body, strlen(body)}, .sent_ms = ONCE_NO_TIME}};
    assert_int_equal(once_intake_fetched(&f->intake, &item, NULL), ONCE_OK);
    return item;
}

static void the_handler_says_what_follows_from_a_lost_claim(void **state)
{
    fixture *f = *state;
    once_item item = fetched(f, "{\"id\": 1, \"t\": \"sql\"}");
    assert_false(item.request.hold);
    assert_false(item.request.natural);
    item = fetched(f, "{\"id\": 1, \"t\": \"held\"}");
    assert_true(item.request.hold);
    assert_false(item.request.natural);
    item = fetched(f, "{\"id\": 1, \"t\": \"retried\"}");
    assert_false(item.request.hold);
    item = fetched(f, "{\"id\": 1, \"t\": \"natural\"}");
    assert_true(item.request.natural);
    assert_false(item.request.hold); /* it may run again, so nobody needs to decide */
}

/* A type may be called as the reason begins: it is the item that says what is wrong, not its words. */
static void nobody_for_a_type_is_said_apart_from_the_words(void **state)
{
    fixture *f = *state;
    assert_false(fetched(f, "{\"id\": 1, \"t\": \"stranger\"}").no_handler);
    f->spec->n_handlers--; /* "*" */
    once_item item = fetched(f, "{\"id\": 1, \"t\": \"stranger\"}");
    assert_null(item.handler);
    assert_true(item.no_handler);
    assert_true(once_reason_is_no_handler(item.reason));
    assert_false(fetched(f, "{\"id\": 1, \"t\": \"sql\"}").no_handler);
    assert_false(fetched(f, "no handler for type 'x'").no_handler);
    assert_false(fetched(f, "{\"t\": \"sql\"}").no_handler); /* no key */
}

static once_item taken(fixture *f, const char *type, const char *operation)
{
    once_item item = {
        .batch = &f->batch,
        .message = {.body = ONCE_BYTES("{\"id\": 1}"), .type = {type, strlen(type)}, .sent_ms = ONCE_NO_TIME},
        .scope = {.consumer = f->spec->consumer, .operation = {operation, strlen(operation)}},
        .request = {.id = {1, 1}, .run = 3}};
    assert_int_equal(once_intake_taken(&f->intake, &item, NULL), ONCE_OK);
    assert_int_equal(item.request.run, 3);
    return item;
}

/* A retry of a command must not become the SQL of another handler that shares its keys. */
static void a_taken_message_gets_the_handler_of_its_type(void **state)
{
    fixture *f = *state;
    once_item item = taken(f, "held", "shared");
    assert_ptr_equal(item.handler, &f->spec->handlers[1]);
    assert_ptr_equal(item.input, item.handler);
    assert_true(item.request.hold);
    assert_ptr_equal(taken(f, "sql", "shared").handler, &f->spec->handlers[0]);
    assert_ptr_equal(taken(f, "retried", "retried").handler, &f->spec->handlers[2]);
}

/* The pipeline was changed since: the key is the operation's, so the operation decides. */
static void a_taken_message_whose_type_went_elsewhere_stays_with_its_operation(void **state)
{
    fixture *f = *state;
    assert_ptr_equal(taken(f, "retried", "shared").handler, &f->spec->handlers[0]);
    assert_ptr_equal(taken(f, "no such type", "retried").handler, &f->spec->handlers[2]);
    once_item item = taken(f, "retried", "gone");
    assert_null(item.handler);
    assert_int_equal(item.reason.len, strlen("operation 'gone' no longer has a handler"));
}

/* Also where an empty body is one. */
static void a_message_without_a_body_is_said_to_have_none(void **state)
{
    fixture *f = *state;
    once_item item = {.batch = &f->batch, .message = {.no_body = true, .sent_ms = ONCE_NO_TIME}};
    assert_int_equal(once_intake_fetched(&f->intake, &item, NULL), ONCE_OK);
    assert_true(once_bytes_equal(item.reason, ONCE_BYTES("the message has no body")));
    assert_false(once_bytes_equal(fetched(f, "").reason, item.reason));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_handler_says_what_follows_from_a_lost_claim, setup, teardown),
        cmocka_unit_test_setup_teardown(a_message_without_a_body_is_said_to_have_none, setup, teardown),
        cmocka_unit_test_setup_teardown(nobody_for_a_type_is_said_apart_from_the_words, setup, teardown),
        cmocka_unit_test_setup_teardown(a_taken_message_gets_the_handler_of_its_type, setup, teardown),
        cmocka_unit_test_setup_teardown(a_taken_message_whose_type_went_elsewhere_stays_with_its_operation, setup,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
