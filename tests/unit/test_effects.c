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

#include "effect/effect.h"
#include "runtime/config.h"

#define HEAD "consumer: c\nstore: memory\nsource: {file: {path: m.ndjson}}\nkey: \"${/id}\"\n"

static const struct {
    const char *name, *yaml, *with; /* a handler that has it, and what makes it run outside where it is not already */
} examples[] = {
    {"sql", "sql: [SELECT 1]", "sql: {do: [SELECT 1], url: \"sqlite:other.db\"}"},
    {"exec", "exec: [./charge]", "exec: [./charge]\n  mode: stream"},
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

static void names_are_those_of_one_effect_alone(void **state)
{
    (void)state;
    size_t n;
    const once_effect_ops *const *effects = once_effect_list(&n);
    const char *seen[100];
    size_t fields = 0;
    for (size_t i = 0; i < n; i++) {
        assert_true(effects[i]->n_fields > 0);
        assert_string_equal(effects[i]->name, effects[i]->fields[0].name);
        for (size_t k = 0; k < effects[i]->n_fields; k++) {
            for (size_t j = 0; j < fields; j++) assert_string_not_equal(seen[j], effects[i]->fields[k].name);
            assert_true(fields < 100);
            seen[fields++] = effects[i]->fields[k].name;
        }
    }
}

static void check_field(const once_effect_ops *effect, const once_config_field *field)
{
    assert_non_null(field->text);
    assert_false(field->required); /* of handlers that have another effect, too */
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
        if (!runs) assert_true(effect->bits == 0 && effect->conclude && !effect->prepare && !effect->open);
        if (outside) assert_true(effect->open && effect->describe);
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
                assert_true(h->effect->open && shown.what && shown.name.len > 0);
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
        FAULTS = ONCE_EFFECT_FAULTS
    };
    static const struct {
        const char *yaml, *mode;
        unsigned bits;
    } cases[] = {
        {"sql: [SELECT 1]", "atomic", RUNS | FAULTS},
        {"sql: {do: [SELECT 1], url: \"sqlite:other.db\"}", "fenced", RUNS | FAULTS | OUTSIDE},
        {"exec: [./charge]", "fenced", RUNS | OUTSIDE | ISOLATED | OUTLIVES},
        {"exec: [./charge]\n  mode: stream", "fenced", RUNS | OUTSIDE | ISOLATED | OUTLIVES},
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
                                         "exit: {1: retry}", "env: {A: b}"};
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
        cmocka_unit_test(names_are_those_of_one_effect_alone),
        cmocka_unit_test(each_has_what_its_bits_say),
        cmocka_unit_test(handlers_have_what_their_bits_say),
        cmocka_unit_test(bits_and_promise_are_known),
        cmocka_unit_test(secrets_are_told_and_only_they),
        cmocka_unit_test(fields_of_one_are_refused_with_another),
        cmocka_unit_test(each_is_documented),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
