/* What tests of the way from a message to an item share: a pipeline file, its intake, and a batch that items live in.
 * Each program has one of them, made anew for each test. */
#ifndef ONCE_TESTS_INTAKE_FIXTURE_H
#define ONCE_TESTS_INTAKE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/intake.h"
#include "effect/effect.h"
#include "runtime/config.h"

typedef struct intake_fixture {
    once_arena arena;
    once_spec *spec;
    once_intake intake;
    once_batch batch;
} intake_fixture;

static intake_fixture f;

static int setup(void **state)
{
    (void)state;
    f = (intake_fixture){0};
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    once_intake_release(&f.intake);
    once_arena_release(&f.batch.arena);
    once_arena_release(&f.arena);
    return 0;
}

static int parse_pipeline(const char *text, once_error *err)
{
    return once_config_parse("p.yaml", once_bytes_of(text), &f.arena, NULL, NULL, &f.spec, err);
}

/* After a pipeline file was read, which must have worked. */
static void open_intake(int parsed, const once_error *err)
{
    if (parsed != ONCE_OK) fail_msg("%s", err->text);
    once_intake_init(&f.intake, f.spec, (once_secret){1, 2}, 7, once_effect_prepare);
}

static once_item take_in_message(once_message message)
{
    once_item item = {.batch = &f.batch, .message = message};
    assert_int_equal(once_intake_fetched(&f.intake, &item, NULL), ONCE_OK);
    return item;
}

static void assert_text(once_bytes text, const char *expected)
{
    if (!once_bytes_equal(text, once_bytes_of(expected)))
        fail_msg("'%.*s' is not '%s'", (int)text.len, text.data ? text.data : "", expected);
}

#endif
