/* Effects and sources whose working part is in a module: it is loaded when a pipeline that names it is opened, and not
 * before. base/module.c is compiled once more here, as a product with modules has it, and its functions take the place
 * of those that the test library has; the module is a real shared object, tests/unit/module/drivers.c. */
#define ONCE_MODULES 1
#include "base/module.c" // NOLINT

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "effect/effect_list.h"
#include "effect/runner.h"
#include "runtime/config.h"
#include "once/version.h"
#include "source/source_list.h"

typedef struct remote {
    once_bytes name;
} remote;

static const once_config_field remote_fields[] = {
    {.name = "remote",
     .type = ONCE_CONFIG_STRING,
     ONCE_CONFIG_AT(remote, name),
     .max = 100,
     .example = "x",
     .text = "Effect: a test."},
};

static once_effect_shown describe(const once_handler_spec *handler)
{
    return (once_effect_shown){.what = "remote", .name = ((const remote *)handler->own)->name};
}

static const once_effect_ops remote_effect = {.name = "remote",
                                              .summary = "a test",
                                              .bits = ONCE_EFFECT_RUNS | ONCE_EFFECT_OUTSIDE,
                                              .fields = remote_fields,
                                              .n_fields = sizeof remote_fields / sizeof *remote_fields,
                                              .size = sizeof(remote),
                                              .module = "drivers",
                                              .describe = describe};

typedef struct queue {
    once_bytes name;
} queue;

static const once_config_field queue_fields[] = {
    {.name = "name", .type = ONCE_CONFIG_STRING, ONCE_CONFIG_AT(queue, name), .max = 100, .text = "Of the test."},
};
static const once_config_section queue_section = {
    .name = "'queue'", .title = "queue", .fields = queue_fields, .n = sizeof queue_fields / sizeof *queue_fields};

static void conclude(once_source_spec *source) { source->name = ((const queue *)source->own)->name; }

static const once_source_kind queue_source = {.name = "queue",
                                              .unit = "messages",
                                              .summary = "a test",
                                              .module = "drivers",
                                              .field = {.name = "queue",
                                                        .type = ONCE_CONFIG_SECTION,
                                                        .section = &queue_section,
                                                        .example = "{name: q}",
                                                        .text = "A test."},
                                              .size = sizeof(queue),
                                              .conclude = conclude};

static int set_up(void **state)
{
    (void)state;
    static const once_effect_ops *const effects[] = {&remote_effect, &once__effect_dead};
    static const once_source_kind *const sources[] = {&queue_source, &once__source_file};
    once__effect_list_replace(effects, sizeof effects / sizeof *effects);
    once__source_list_replace(sources, sizeof sources / sizeof *sources);
    n_modules = 0; /* nothing counts as loaded */
    return setenv("ONCE_MODULES", ONCE_TEST_MODULES, 1);
}

static int tear_down(void **state)
{
    (void)state;
    once__effect_list_replace(NULL, 0);
    once__source_list_replace(NULL, 0);
    return unsetenv("ONCE_MODULES");
}

static const once_spec *read_pipeline(once_arena *arena, const char *source, const char *handler)
{
    char text[400];
    once_spec *spec = NULL;
    once_error err = {0};
    once_arena_init(arena);
    (void)snprintf(text, sizeof text, "consumer: c\nstore: memory\nkey: \"${/id}\"\nsource: {%s}\nhandler: {%s}\n",
                   source, handler);
    if (once_config_parse("p.yaml", (once_bytes){text, strlen(text)}, arena, NULL, NULL, &spec, &err) != ONCE_OK)
        fail_msg("%s", err.text);
    return spec;
}

static int open_runner(const once_spec *spec, once_error *err)
{
    const once_runner_options options = {.spec = spec, .env = once_env_real()};
    once_runner *runner = NULL;
    const int rc = once_runner_open(&options, &runner, err);
    once_runner_close(runner);
    return rc;
}

static void an_effect_is_opened_by_its_module(void **state)
{
    (void)state;
    once_arena arena;
    once_error err = {0};
    const once_spec *spec = read_pipeline(&arena, "file: {path: m.ndjson}", "remote: x");
    assert_true(once_handler_external(&spec->handlers[0]));
    assert_int_equal(n_modules, 0); /* reading a file loads nothing */
    assert_int_equal(open_runner(spec, &err), ONCE_E_UNAVAILABLE);
    assert_string_equal(err.text, "the module's effect was opened");
    assert_int_equal(n_modules, 1);
    assert_int_equal(open_runner(spec, &err), ONCE_E_UNAVAILABLE); /* it stays loaded */
    assert_int_equal(n_modules, 1);
    once_arena_release(&arena);
}

static void a_source_is_opened_by_its_module(void **state)
{
    (void)state;
    once_arena arena;
    once_error err = {0};
    once_source *source = NULL;
    const once_spec *spec = read_pipeline(&arena, "queue: {name: q}", "dead: no");
    assert_int_equal(n_modules, 0);
    assert_int_equal(once_source_open(spec, once_env_real(), ONCE_OPEN_RUN, (once_cancel){0}, &source, &err),
                     ONCE_E_UNAVAILABLE);
    assert_string_equal(err.text, "the module's source was opened");
    assert_int_equal(n_modules, 1);
    once_arena_release(&arena);
}

static void a_pipeline_that_names_neither_loads_nothing(void **state)
{
    (void)state;
    once_arena arena;
    once_error err = {0};
    const once_spec *spec = read_pipeline(&arena, "file: {path: m.ndjson}", "dead: no");
    assert_int_equal(setenv("ONCE_MODULES", "/nowhere", 1), 0);
    assert_int_equal(open_runner(spec, &err), ONCE_OK);
    assert_int_equal(n_modules, 0);
    once_arena_release(&arena);
}

static void a_missing_module_is_named_with_what_to_do(void **state)
{
    (void)state;
    once_arena arena;
    once_error err = {0};
    once_source *source = NULL;
    const once_spec *spec = read_pipeline(&arena, "queue: {name: q}", "remote: x");
    assert_int_equal(setenv("ONCE_MODULES", "/nowhere", 1), 0);
    assert_int_equal(open_runner(spec, &err), ONCE_E_CONFIG);
    assert_non_null(strstr(err.text, "'/nowhere/drivers.so'"));
    assert_non_null(strstr(err.text, "; install "));
    err = (once_error){0};
    assert_int_equal(once_source_open(spec, once_env_real(), ONCE_OPEN_RUN, (once_cancel){0}, &source, &err),
                     ONCE_E_CONFIG);
    assert_non_null(strstr(err.text, "'/nowhere/drivers.so'"));
    once_arena_release(&arena);
}

typedef struct listed {
    int effects, sources, others;
    bool there;
} listed;

static void on_module(void *user, const char *kind, const char *name, const char *path, bool there)
{
    listed *l = user;
    if (strcmp(kind, "effect") == 0 && strcmp(name, "remote") == 0) l->effects++;
    else if (strcmp(kind, "source") == 0 && strcmp(name, "queue") == 0) l->sources++;
    else {
        l->others++; /* stores that this build has in modules */
        return;
    }
    assert_string_equal(path, ONCE_TEST_MODULES "/drivers.so");
    l->there = there;
}

/* What `once version` shows. */
static void modules_of_effects_and_sources_are_listed_and_checked(void **state)
{
    (void)state;
    listed l = {0};
    once_error err = {0};
    once_modules(on_module, &l);
    assert_true(l.effects == 1 && l.sources == 1 && l.there);
    assert_int_equal(once_module_check("effect", "remote", &err), ONCE_OK);
    assert_int_equal(once_module_check("source", "queue", &err), ONCE_OK);
    assert_int_equal(once_module_check("effect", "dead", &err), ONCE_OK); /* linked in */
    assert_int_equal(once_module_check("effect", "queue", &err), ONCE_E_USAGE);
    assert_int_equal(setenv("ONCE_MODULES", "/nowhere", 1), 0);
    n_modules = 0;
    assert_int_equal(once_module_check("effect", "remote", &err), ONCE_E_CONFIG);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_effect_is_opened_by_its_module),
        TEST(a_source_is_opened_by_its_module),
        TEST(a_pipeline_that_names_neither_loads_nothing),
        TEST(a_missing_module_is_named_with_what_to_do),
        TEST(modules_of_effects_and_sources_are_listed_and_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
