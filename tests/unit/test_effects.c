/* The list of effects: each is complete for what its bits say, has names of its own, and is documented. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/config_values.h"
#include "effect/effect.h"
#include "effect/effect_list.h"
#include "runtime/config.h"
#include "runtime/config_internal.h"

#define HEAD "consumer: c\nstore: memory\nsource: {file: {path: m.ndjson}}\nkey: \"${/id}\"\n"

static const struct {
    const char *name, *yaml, *with; /* a handler that has it, and what makes it run outside where it is not already */
} examples[] = {
    {"sql", "sql: [SELECT 1]", "sql: {do: [SELECT 1], url: \"sqlite:other.db\"}"},
    {"exec", "exec: [./charge]", "exec: [./charge]\n  mode: stream"},
    {"http", "http: {post: \"http://localhost/\"}", NULL},
    {"callback", "callback: charge", NULL},
    {"dead", "dead: no such thing", NULL},
};

static const once_handler_spec *handler_of(once_arena *arena, const char *yaml)
{
    char text[1000];
    once_spec *spec = NULL;
    once_error err = {0};
    (void)snprintf(text, sizeof text, HEAD "handler:\n  %s\n", yaml);
    const int rc = once_config_parse("p.yaml", (once_bytes){text, strlen(text)}, arena, NULL, NULL, &spec, &err);
    if (rc != ONCE_OK) fail_msg("%s", err.text);
    return &spec->handlers[0];
}

/* A handler's own fields are read whatever its effect is, so no effect may have one of the same name. */
static bool is_of_every_handler(const char *name)
{
    for (size_t i = 0; i < once__handler_section.n; i++)
        if (strcmp(once__handler_section.fields[i].name, name) == 0) return true;
    return false;
}

static void an_effect_is_chosen_by_a_name_that_nothing_else_has(void **state)
{
    (void)state;
    size_t n;
    const once_effect_ops *const *effects = once_effect_list(&n);
    for (size_t i = 0; i < n; i++) {
        assert_true(effects[i]->n_fields > 0);
        assert_string_equal(effects[i]->name, effects[i]->fields[0].name);
        for (size_t other = 0; other < n; other++)
            for (size_t k = 0; k < effects[other]->n_fields; k++)
                if (other != i || k > 0) assert_string_not_equal(effects[i]->name, effects[other]->fields[k].name);
        for (size_t k = 0; k < effects[i]->n_fields; k++) {
            assert_false(is_of_every_handler(effects[i]->fields[k].name));
            for (size_t before = 0; before < k; before++)
                assert_string_not_equal(effects[i]->fields[before].name, effects[i]->fields[k].name);
        }
    }
}

static void check_field(const once_effect_ops *effect, const once_config_field *field)
{
    assert_non_null(field->text);
    assert_true(field->offset + field->size <= effect->size);
    assert_true(field->count + (field->count ? sizeof(size_t) : 0) <= effect->size);
}

static void each_has_what_its_bits_say(void **state)
{
    (void)state;
    size_t n;
    const once_effect_ops *const *effects = once_effect_list(&n);
    for (size_t i = 0; i < n; i++) {
        const once_effect_ops *effect = effects[i];
        const bool runs = effect->bits & ONCE_EFFECT_RUNS, outside = effect->bits & ONCE_EFFECT_OUTSIDE;
        assert_true(effect->size > 0 && effect->summary);
        for (size_t k = 0; k < effect->n_fields; k++) check_field(effect, &effect->fields[k]);
        if (!runs)
            assert_true(effect->bits == 0 && effect->conclude && !effect->prepare && !effect->open && !effect->module);
        assert_true(!effect->open || !effect->module);
        if (outside) assert_true((effect->open || effect->module) && effect->describe);
        if (runs && !outside) assert_non_null(effect->prepare);
        if (effect->bits & (ONCE_EFFECT_ISOLATED | ONCE_EFFECT_OUTLIVES)) assert_true(outside);
        for (const once_effect_misfit *m = effect->misfits; m && m->field; m++) {
            assert_non_null(m->why);
            for (size_t k = 0; k < effect->n_fields; k++) assert_string_not_equal(m->field, effect->fields[k].name);
        }
    }
}

static void handlers_have_what_their_bits_say(void **state)
{
    (void)state;
    size_t n;
    const once_effect_ops *const *effects = once_effect_list(&n);
    once_arena arena;
    once_arena_init(&arena);
    assert_int_equal(n, sizeof examples / sizeof *examples); /* a new one needs an example */
    for (size_t i = 0; i < n; i++) {
        assert_string_equal(effects[i]->name, examples[i].name);
        for (int way = 0; way < 2; way++) {
            const char *yaml = way ? examples[i].with : examples[i].yaml;
            if (!yaml) continue;
            const once_handler_spec *h = handler_of(&arena, yaml);
            assert_ptr_equal(h->effect, effects[i]);
            assert_non_null(h->own);
            assert_int_equal(h->bits & effects[i]->bits, effects[i]->bits);
            assert_int_equal(once_handler_external(h), h->slots > 0);
            assert_int_equal(once_handler_runs(h), h->dead_reason.len == 0);
            assert_false(once_handler_inside(h) && once_handler_external(h));
            if (once_handler_external(h)) {
                const once_effect_shown shown = h->effect->describe(h);
                assert_true(shown.what && shown.name.len > 0);
            }
        }
    }
    once_arena_release(&arena);
}

static void bits_and_promise_are_known(void **state)
{
    (void)state;
    enum {
        RUNS = ONCE_EFFECT_RUNS,
        OUTSIDE = ONCE_EFFECT_OUTSIDE,
        ISOLATED = ONCE_EFFECT_ISOLATED,
        OUTLIVES = ONCE_EFFECT_OUTLIVES,
        FAULTS = ONCE_EFFECT_FAULTS,
        ASKS = ONCE_EFFECT_ASKS
    };
    static const struct {
        const char *yaml, *mode;
        unsigned bits;
    } cases[] = {
        {"sql: [SELECT 1]", "atomic", RUNS | FAULTS},
        {"sql: {do: [SELECT 1], url: \"sqlite:other.db\"}", "fenced", RUNS | FAULTS | OUTSIDE},
        {"exec: [./charge]", "fenced", RUNS | OUTSIDE | ISOLATED | OUTLIVES},
        {"exec: [./charge]\n  mode: stream", "fenced", RUNS | OUTSIDE | ISOLATED | OUTLIVES},
        {"exec: [./charge]\n  lookup: {exec: [./ask]}", "fenced", RUNS | OUTSIDE | ISOLATED | OUTLIVES | ASKS},
        {"http: {post: \"http://localhost/\"}", "fenced", RUNS | OUTSIDE | ISOLATED | OUTLIVES},
        {"http: {post: \"http://localhost/\", lookup: {get: \"http://localhost/${key}\"}}", "fenced",
         RUNS | OUTSIDE | ISOLATED | OUTLIVES | ASKS},
        {"callback: charge", "fenced", RUNS | OUTSIDE},
        {"callback: charge\n  natural: true", "natural", RUNS | OUTSIDE},
        {"dead: no", "none", 0},
    };
    once_arena arena;
    once_arena_init(&arena);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const once_handler_spec *h = handler_of(&arena, cases[i].yaml);
        assert_string_equal(once_effect_mode(h), cases[i].mode);
        assert_int_equal(h->bits, cases[i].bits);
    }
    once_arena_release(&arena);
}

static void note_secret(void *user, once_bytes text, bool url)
{
    char *out = user;
    const size_t len = strlen(out);
    (void)snprintf(out + len, 200 - len, "%.*s%s ", (int)text.len, text.data, url ? " (url)" : "");
}

static void note_warning(void *user, const char *text)
{
    (void)text;
    ++*(int *)user;
}

static void secrets_are_told_and_only_they(void **state)
{
    (void)state;
    static const struct {
        const char *yaml, *secrets, *function;
        int warnings;
    } cases[] = {
        {"sql: [SELECT 1]", "", "", 0},
        {"sql: {do: [SELECT 1], url: \"env:LEDGER\"}", "env:LEDGER (url) ", "", 0},
        {"exec: [./charge, \"--id=${/id}\", x]\n  env: {A: \"file:token\", B: plain}", "file:token plain ", "", 1},
        {"http: {post: \"http://pay.example/\", bearer: env:T, proxy: env:P, headers: {A: env:B, C: d}}",
         "env:B env:T env:P (url) ", "", 2},
        {"http: {post: \"https://pay.example/\", basic: file:c, lookup: {get: \"http://127.1.2.3/${key}\"}}", "file:c ",
         "", 1},
        {"http: {post: \"https://pay.example/\", basic: file:c, lookup: {get: \"http://127.1.2.3/${key}\", absent_if: "
         "{/a: "
         "b}}}",
         "file:c ", "", 0},
        {"http: {post: \"https://pay.example/\", lookup: {get: \"http://127.1.2.3/${key}\", absent: [410], rejected: "
         "404}}",
         "", "", 0},
        {"http: {post: \"https://pay.example/\", certificate: c.pem, key: c.key}", "file:c.key ", "", 1},
        {"http: {post: \"https://pay.example/\", certificate: c.pem}\n  unknown: retry", "file:c.pem ", "", 0},
        {"callback: charge", "", "charge", 0},
        {"dead: no", "", "", 0},
    };
    once_arena arena;
    once_arena_init(&arena);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const once_handler_spec *h = handler_of(&arena, cases[i].yaml);
        char told[200] = "";
        int warnings = 0;
        once_effect_secrets(h, note_secret, told);
        once_effect_exposed(h, note_warning, &warnings);
        assert_string_equal(told, cases[i].secrets);
        assert_int_equal(warnings, cases[i].warnings);
        const once_bytes function = once_effect_function(h);
        assert_int_equal(function.len, strlen(cases[i].function));
        assert_memory_equal(function.len ? function.data : "", cases[i].function, function.len);
    }
    once_arena_release(&arena);
}

/* What another effect brings is refused by name with each of them, and leaves its own fields alone. */
static void fields_of_one_are_refused_with_another(void **state)
{
    (void)state;
    static const char *const values[] = {"already: [t.id]",  "rejected: [t.id]", "mode: message",
                                         "window: 3",        "processes: 2",     "unsafe_arguments: true",
                                         "exit: {1: retry}", "env: {A: b}",      "lookup: {exec: [./ask]}"};
    size_t n, found = 0;
    const once_effect_ops *const *effects = once_effect_list(&n);
    once_arena arena;
    once_arena_init(&arena);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 1; k < effects[i]->n_fields; k++)
            for (size_t other = 0; other < n; other++) {
                char text[1000];
                const char *field = effects[i]->fields[k].name;
                size_t v = 0;
                while (v < sizeof values / sizeof *values &&
                       (strncmp(values[v], field, strlen(field)) != 0 || values[v][strlen(field)] != ':'))
                    v++;
                assert_true(v < sizeof values / sizeof *values); /* a new field needs a value here */
                if (other == i) continue;
                once_spec *spec = NULL;
                once_error err = {0};
                (void)snprintf(text, sizeof text, HEAD "handler:\n  %s\n  %s\n", examples[other].yaml, values[v]);
                assert_int_equal(
                    once_config_parse("p.yaml", (once_bytes){text, strlen(text)}, &arena, NULL, NULL, &spec, &err),
                    ONCE_E_CONFIG);
                (void)snprintf(text, sizeof text, "p.yaml:7: '%s' ", field);
                assert_int_equal(strncmp(err.text, text, strlen(text)), 0);
                assert_non_null(strstr(err.text, "; remove it"));
                found++;
            }
    assert_int_equal(found, (sizeof values / sizeof *values) * (n - 1));
    once_arena_release(&arena);
}

/* --- two effects that have a field of the same name --- */

typedef struct post {
    once_bytes post, url;
    int64_t wait_ms;
} post;

typedef struct publish {
    once_bytes publish;
    uint32_t url; /* another type under the same name */
} publish;

static const once_config_field post_fields[] = {
    {.name = "post", .type = ONCE_CONFIG_STRING, ONCE_CONFIG_AT(post, post), .max = 100, .text = "Effect: a test."},
    {.name = "wait",
     .type = ONCE_CONFIG_DURATION,
     ONCE_CONFIG_AT(post, wait_ms),
     .min = 1,
     .max = 60000,
     .example = "1s",
     .text = "Of the test."},
    {.name = "url", .type = ONCE_CONFIG_STRING, ONCE_CONFIG_AT(post, url), .max = 100, .text = "Of the test."},
};

static const once_config_field publish_fields[] = {
    {.name = "publish",
     .type = ONCE_CONFIG_STRING,
     ONCE_CONFIG_AT(publish, publish),
     .max = 100,
     .text = "Effect: a test."},
    {.name = "url",
     .type = ONCE_CONFIG_INTEGER,
     .required = true,
     ONCE_CONFIG_AT(publish, url),
     .min = 1,
     .max = 9,
     .example = "1",
     .text = "Of the test."},
};

static void conclude_dead(once_handler_spec *handler) { handler->dead_reason = ONCE_BYTES("a test"); }

static const once_effect_ops post_effect = {.name = "post",
                                            .summary = "a test",
                                            .fields = post_fields,
                                            .n_fields = sizeof post_fields / sizeof *post_fields,
                                            .size = sizeof(post),
                                            .conclude = conclude_dead};
static const once_effect_ops publish_effect = {.name = "publish",
                                               .summary = "a test",
                                               .fields = publish_fields,
                                               .n_fields = sizeof publish_fields / sizeof *publish_fields,
                                               .size = sizeof(publish),
                                               .conclude = conclude_dead};

static int take_test_effects(void **state)
{
    (void)state;
    static const once_effect_ops *const list[] = {&post_effect, &publish_effect, &once__effect_dead};
    once__effect_list_replace(list, sizeof list / sizeof *list);
    return 0;
}

static int take_all_effects(void **state)
{
    (void)state;
    once__effect_list_replace(NULL, 0);
    return 0;
}

static void a_field_of_two_effects_is_read_as_the_chosen_one_has_it(void **state)
{
    (void)state;
    once_arena arena;
    once_arena_init(&arena);
    const once_handler_spec *h = handler_of(&arena, "url: here\n  post: x\n  wait: 5s"); /* in any order */
    assert_ptr_equal(h->effect, &post_effect);
    const post *posted = h->own;
    assert_memory_equal(posted->url.data, "here", 5);
    assert_int_equal(posted->wait_ms, 5000);
    h = handler_of(&arena, "url: 7\n  publish: x");
    assert_ptr_equal(h->effect, &publish_effect);
    assert_int_equal(((const publish *)h->own)->url, 7);
    once_arena_release(&arena);
}

static void assert_refused(const char *yaml, const char *words)
{
    once_arena arena;
    char text[1000];
    once_spec *spec = NULL;
    once_error err = {0};
    once_arena_init(&arena);
    (void)snprintf(text, sizeof text, HEAD "handler:\n  %s\n", yaml);
    assert_int_equal(once_config_parse("p.yaml", (once_bytes){text, strlen(text)}, &arena, NULL, NULL, &spec, &err),
                     ONCE_E_CONFIG);
    assert_string_equal(err.text, words);
    once_arena_release(&arena);
}

static void a_field_of_other_effects_is_refused_with_all_that_have_it(void **state)
{
    (void)state;
    assert_refused("dead: no\n  url: here", "p.yaml:7: 'url' is for 'post' and 'publish'; remove it");
    assert_refused("publish: x\n  url: 1\n  wait: 5s", "p.yaml:8: 'wait' is for 'post'; remove it");
    /* Its value is not read, so nothing is said about that. */
    assert_refused("publish: x\n  url: 1\n  wait: soon", "p.yaml:8: 'wait' is for 'post'; remove it");
    assert_refused("publish: x\n  url: here", "p.yaml:7: 'url' must be a whole number, not 'here'; write 'url: 1'");
    assert_refused("publish: x",
                   "p.yaml:6: missing field 'url' in a handler; add 'url: 1'"); /* of its own effect only */
    assert_refused("post: x\n  publish: y", "p.yaml:7: 'handler' has two effects, 'post' and 'publish'; keep one");
}

static char *page(const char *path)
{
    char name[300];
    char *text = calloc(1, 200000);
    (void)snprintf(name, sizeof name, "%s/%s", ONCE_SOURCE_ROOT, path);
    const int fd = open(name, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0 && text);
    const ssize_t len = read(fd, text, 199999);
    assert_true(len > 0 && len < 199999);
    close(fd);
    return text;
}

static void each_is_documented(void **state)
{
    (void)state;
    size_t n;
    const once_effect_ops *const *effects = once_effect_list(&n);
    char *configuration = page("docs/configuration.md"), *architecture = page("docs/ARCHITECTURE.md");
    char *sentence = strstr(configuration, "exactly one effect (");
    assert_non_null(sentence);
    *strchr(sentence, ')') = '\0';
    char wanted[300] = "exactly one effect (";
    for (size_t i = 0; i < n; i++) {
        const size_t len = strlen(wanted);
        (void)snprintf(wanted + len, sizeof wanted - len, "%s`%s`",
                       i == 0      ? ""
                       : i + 1 < n ? ", "
                                   : " or ",
                       effects[i]->name);
    }
    assert_string_equal(sentence, wanted);
    *strchr(sentence, '\0') = ')';
    for (size_t i = 0; i < n; i++) {
        char text[100];
        for (size_t k = 0; k < effects[i]->n_fields; k++) {
            (void)snprintf(text, sizeof text, "\n| `%s` | ", effects[i]->fields[k].name);
            assert_non_null(strstr(configuration, text));
        }
        (void)snprintf(text, sizeof text, "`%s`", effects[i]->name);
        assert_non_null(strstr(architecture, text));
        if (effects[i]->section) assert_non_null(strstr(configuration, effects[i]->section));
    }
    free(configuration);
    free(architecture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_effect_is_chosen_by_a_name_that_nothing_else_has),
        cmocka_unit_test(each_has_what_its_bits_say),
        cmocka_unit_test(handlers_have_what_their_bits_say),
        cmocka_unit_test(bits_and_promise_are_known),
        cmocka_unit_test(secrets_are_told_and_only_they),
        cmocka_unit_test(fields_of_one_are_refused_with_another),
        cmocka_unit_test_setup_teardown(a_field_of_two_effects_is_read_as_the_chosen_one_has_it, take_test_effects,
                                        take_all_effects),
        cmocka_unit_test_setup_teardown(a_field_of_other_effects_is_refused_with_all_that_have_it, take_test_effects,
                                        take_all_effects),
        cmocka_unit_test(each_is_documented),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
