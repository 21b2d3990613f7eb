/* The list of sources: each is complete, has names of its own, is chosen by its field, and is documented. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/config_values.h"
#include "runtime/config.h"
#include "source/source.h"

static const struct {
    const char *name, *yaml, *called; /* a source that is right, and what the store will know it by */
    const char *place, *other;        /* of coordinates: one of its own, one of another source */
} examples[] = {
    {"file", "{path: m.ndjson}", "m.ndjson", "m.ndjson/2", "n.ndjson"},
    {"kafka", "{brokers: h:1, topics: [pay, ship]}", "pay,ship", "ship/12", "other/12"},
    {"sqs", "{queue: \"https://sqs.eu-central-1.amazonaws.com/1/pay\"}", "pay", NULL, NULL},
    {"rabbitmq", "{url: \"amqp://h\", queue: pay}", "pay", NULL, NULL},
};

static int parse(once_arena *arena, const char *source, const char *key, once_spec **out, once_error *err)
{
    char text[1000];
    (void)snprintf(text, sizeof text, "consumer: c\nstore: memory\nkey: \"%s\"\nsource: %s\nhandler: {dead: no}\n", key,
                   source);
    return once_config_parse("p.yaml", (once_bytes){text, strlen(text)}, arena, NULL, NULL, out, err);
}

static const once_source_spec *source_of(once_arena *arena, const char *source)
{
    once_spec *spec = NULL;
    once_error err = {0};
    if (parse(arena, source, "${/id}", &spec, &err) != ONCE_OK) fail_msg("%s", err.text);
    return &spec->source;
}

static void each_is_complete(void **state)
{
    (void)state;
    size_t n;
    const once_source_kind *const *sources = once_source_list(&n);
    assert_true(n > 0);
    for (size_t i = 0; i < n; i++) {
        const once_source_kind *s = sources[i];
        assert_true(!s->ops == (s->module != NULL));
        const once_source_ops *o = s->ops;
        assert_string_equal(s->name, s->field.name);
        for (size_t k = 0; k < i; k++) assert_string_not_equal(s->name, sources[k]->name);
        assert_int_equal(s->field.type, ONCE_CONFIG_SECTION);
        assert_true(s->summary && s->field.text && s->field.example && s->field.section && s->conclude && s->size > 0);
        assert_false(s->field.required); /* of pipelines that have another source, too */
        assert_int_equal(s->field.offset, 0);
        if (o) { /* of a module this is for tests that load it */
            assert_true(o->open && o->close && o->bits && o->fetch && o->ack && o->wake && o->lag && o->stream_name);
            assert_int_equal(o->seek == NULL, o->keep == NULL);
            assert_int_equal(s->has == NULL, o->look == NULL);
        }
        for (size_t k = 0; k < s->field.section->n; k++) {
            const once_config_field *field = &s->field.section->fields[k];
            assert_non_null(field->text);
            assert_true(field->offset + field->size <= s->size);
            assert_true(field->count + (field->count ? sizeof(size_t) : 0) <= s->size);
        }
    }
    size_t announced = once_source_section.n;
    for (size_t k = 0; k < announced; k++) /* what has come is not announced any more */
        for (size_t i = 0; i < n; i++) assert_string_not_equal(once_source_section.fields[k].name, sources[i]->name);
}

/* --- one that is not --- */

static once_source_ops partial;
static once_source partial_source = {.ops = &partial};
static unsigned partial_has; /* bits of the open one */

static unsigned partial_bits(const once_source *source) { return source ? partial_has : 0; }

static int partial_open(const once_spec *spec, const once_env *env, once_source_purpose purpose, once_cancel cancel,
                        once_source **out, once_error *err)
{
    (void)env, (void)purpose, (void)cancel, (void)err;
    partial_source.spec = spec;
    *out = &partial_source;
    return ONCE_OK;
}

static int partial_seek(once_source *source, uint32_t stream, const once_facts *facts, once_error *err)
{
    (void)source, (void)stream, (void)facts, (void)err;
    return ONCE_OK;
}

static int partial_keep(once_source *source, const once_facts *facts, once_item *const *items, size_t n,
                        const once_item *const *last, size_t n_last, once_error *err)
{
    (void)source, (void)facts, (void)items, (void)n, (void)last, (void)n_last, (void)err;
    return ONCE_OK;
}

/* Whether one with these slots and bits is opened; otherwise the process ends. */
static bool opens(bool seek, bool keep, unsigned said, unsigned has)
{
    (void)fflush(stdout);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const once_source_kind kind = {.name = "partial", .ops = &partial};
        const once_spec spec = {.source = {.kind = &kind, .bits = said}};
        once_source *source;
        once_error err;
        partial = (once_source_ops){.open = partial_open,
                                    .bits = partial_bits,
                                    .seek = seek ? partial_seek : NULL,
                                    .keep = keep ? partial_keep : NULL};
        partial_has = has;
        (void)close(STDERR_FILENO);
        (void)signal(SIGABRT, SIG_DFL);
        _exit(once_source_open(&spec, once_env_real(), ONCE_OPEN_RUN, (once_cancel){0}, &source, &err) == ONCE_OK ? 0
                                                                                                                  : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    const bool refused = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
    assert_true(refused || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
    return !refused;
}

static void one_that_lacks_a_slot_is_not_opened(void **state)
{
    (void)state;
    enum { CURSOR = ONCE_SOURCE_CURSOR };
    assert_true(opens(false, false, 0, 0));
    assert_true(opens(true, true, 0, 0));
    assert_true(opens(true, true, CURSOR, CURSOR));
    assert_false(opens(true, false, 0, 0));
    assert_false(opens(false, true, 0, 0));
    assert_false(opens(false, false, CURSOR, CURSOR));
    assert_false(opens(true, true, 0, CURSOR)); /* the spec says it, too */
    assert_false(opens(true, true, CURSOR, 0));
    assert_false(opens(false, false, 0, ONCE_SOURCE_EXPIRES));
    assert_false(opens(false, false, 0, ONCE_SOURCE_ASSIGNS));
}

static void a_field_chooses_it(void **state)
{
    (void)state;
    size_t n;
    const once_source_kind *const *sources = once_source_list(&n);
    once_arena arena;
    once_arena_init(&arena);
    assert_int_equal(n, sizeof examples / sizeof *examples); /* a new one needs an example */
    for (size_t i = 0; i < n; i++) {
        char text[200];
        assert_string_equal(sources[i]->name, examples[i].name);
        (void)snprintf(text, sizeof text, "{%s: %s}", examples[i].name, examples[i].yaml);
        const once_source_spec *s = source_of(&arena, text);
        assert_ptr_equal(s->kind, sources[i]);
        assert_non_null(s->own);
        assert_int_equal(s->line, 4);
        assert_int_equal(s->name.len, strlen(examples[i].called));
        assert_memory_equal(s->name.data, examples[i].called, s->name.len);
        assert_int_equal(s->bits & ONCE_SOURCE_REDELIVERS, 0); /* known when it is open */
        if (!s->kind->has) continue;
        assert_true(s->kind->has(s, (once_bytes){examples[i].place, strlen(examples[i].place)}));
        assert_false(s->kind->has(s, (once_bytes){examples[i].other, strlen(examples[i].other)}));
    }
    once_arena_release(&arena);
}

static void note_warning(void *user, const char *text)
{
    assert_true(strlen(text) > 0);
    ++*(int *)user;
}

static void bits_and_doubts_are_known(void **state)
{
    (void)state;
    enum {
        FINITE = ONCE_SOURCE_FINITE,
        CURSOR = ONCE_SOURCE_CURSOR,
        LOG = ONCE_SOURCE_ASSIGNS | ONCE_SOURCE_TIMED,
        QUEUE = ONCE_SOURCE_SINGLE_ACKS | ONCE_SOURCE_EXPIRES | ONCE_SOURCE_TIMED
    };
    static const struct {
        const char *yaml;
        unsigned bits;
        bool stable;
        int doubts; /* without a shared store */
    } cases[] = {
        {"{file: {path: a}}", FINITE, true, 0},
        {"{file: {path: a, cursor: true}}", FINITE | CURSOR, true, 0},
        {"{file: {path: a, follow: true}}", 0, true, 1},
        {"{file: {path: a, follow: true, cursor: true}}", CURSOR, true, 0},
        {"{file: {path: \"-\"}}", FINITE, false, 0},
        {"{kafka: {brokers: h, topics: t}}", LOG, true, 0},
        {"{kafka: {brokers: h, topics: t, cursor: true}}", LOG | CURSOR, true, 0},
        {"{sqs: {queue: pay}}", QUEUE, true, 0},
        {"{sqs: {queue: pay.fifo}}", QUEUE, true, 0},
    };
    once_arena arena;
    once_arena_init(&arena);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const once_source_spec *s = source_of(&arena, cases[i].yaml);
        int doubts = 0, shared = 0;
        assert_int_equal(s->bits, cases[i].bits | (cases[i].stable ? ONCE_SOURCE_STABLE : 0u));
        assert_int_equal(s->unstable == NULL, cases[i].stable);
        once_source_doubts(s, false, note_warning, &doubts);
        once_source_doubts(s, true, note_warning, &shared);
        assert_int_equal(doubts, cases[i].doubts);
        assert_int_equal(shared, cases[i].doubts + 1);
    }
    once_arena_release(&arena);
}

/* A FIFO queue has lanes of its own; the file may say otherwise. */
static void the_group_of_a_fifo_queue_is_the_lane(void **state)
{
    (void)state;
    static const struct {
        const char *queue, *more, *order;
    } cases[] = {{"pay", "", NULL},
                 {"pay.fifo", "", "${source:group}"},
                 {"\"https://sqs.eu-central-1.amazonaws.com/1/pay.fifo\"", "", "${source:group}"},
                 {"pay.fifo", "order: \"${/account}\"\n", "${/account}"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[400];
        once_spec *spec = NULL;
        once_error err = {0};
        once_arena arena;
        once_arena_init(&arena);
        (void)snprintf(
            text, sizeof text,
            "consumer: c\nstore: memory\nkey: \"${/id}\"\n%ssource: {sqs: {queue: %s}}\nhandler: {dead: no}\n",
            cases[i].more, cases[i].queue);
        if (once_config_parse("p.yaml", (once_bytes){text, strlen(text)}, &arena, NULL, NULL, &spec, &err) != ONCE_OK)
            fail_msg("%s", err.text);
        assert_int_equal(spec->order != NULL, cases[i].order != NULL);
        if (cases[i].order)
            assert_true(once_bytes_equal(once_template_text(spec->order), once_bytes_of(cases[i].order)));
        assert_int_equal(spec->source.named, cases[i].order && strstr(cases[i].order, "source:") != NULL);
        once_arena_release(&arena);
    }
}

static void wrong_ones_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *yaml, *key, *text;
        int status;
    } cases[] = {
        {"{}", "${/id}", "p.yaml:4: 'source' is empty; write 'file: {path: payments.ndjson}'", ONCE_E_CONFIG},
        {"{nats: {}}", "${/id}", "p.yaml:4: 'nats' sources are not in this build; use 'file: {path: ...}'",
         ONCE_E_UNSUPPORTED},
        {"{sqs: {}}", "${/id}",
         "p.yaml:4: missing field 'queue' in an SQS source; add 'queue: "
         "https://sqs.eu-central-1.amazonaws.com/123456789012/payments'",
         ONCE_E_CONFIG},
        {"{sqs: {queue: a.b}}", "${/id}",
         "p.yaml:4: 'queue': 'a.b' is neither the URL nor the name of a queue (letters, digits, '-', '_'; 80 bytes at "
         "most; '.fifo' at the end of a FIFO queue); write 'queue: "
         "https://sqs.eu-central-1.amazonaws.com/123456789012/payments'",
         ONCE_E_CONFIG},
        {"{sqs: {queue: pay, endpoint: \"http://me:secret@h\"}}", "${/id}",
         "p.yaml:4: 'endpoint' must be a URL without a password; write 'endpoint: http://localhost:9324'",
         ONCE_E_CONFIG},
        {"{sqs: {queue: pay, wait: 1500ms}}", "${/id}", "p.yaml:4: 'wait' must be whole seconds; write 'wait: 20s'",
         ONCE_E_CONFIG},
        {"{sqs: {queue: pay}}", "${source:receive_count}",
         "p.yaml:3: 'key' uses ${source:receive_count}, which is not the same at each delivery; only effects may use "
         "it",
         ONCE_E_CONFIG},
        {"{kafka: {brokers: h}}", "${/id}",
         "p.yaml:4: missing field 'topics' in a Kafka source; add 'topics: [payments]'", ONCE_E_CONFIG},
        {"{kafka: {brokers: h, topics: [a/b]}}", "${/id}",
         "p.yaml:4: 'topics': 'a/b' is no name of a topic (letters, digits, '.', '_', '-'; 249 bytes at most); a "
         "pattern begins with '^'",
         ONCE_E_CONFIG},
        {"{kafka: {brokers: h, topics: ^}}", "${/id}",
         "p.yaml:4: 'topics': '^' is no pattern: it needs more than '^'; write '^payments-.*'", ONCE_E_CONFIG},
        {"{kafka: {brokers: h, topics: \"^(\"}}", "${/id}",
         "p.yaml:4: 'topics': '^(' is no pattern: Unmatched ( or \\(", ONCE_E_CONFIG},
        {"{kafka: {brokers: h, topics: [a, a]}}", "${/id}", "p.yaml:4: 'topics': 'a' is there twice; keep one",
         ONCE_E_CONFIG},
        {"{kafka: {brokers: h, topics: t, start: middle}}", "${/id}",
         "p.yaml:4: 'start' cannot be 'middle'; it is one of: earliest, latest, error", ONCE_E_CONFIG},
        {"{kafka: {brokers: h, topics: t, instance: one}}", "${/id}",
         "p.yaml:4: 'instance' is the same for every worker, but two members of a group cannot have one; write "
         "'instance: \"payments-${host}-${env:WORKER}\"'",
         ONCE_E_CONFIG},
        {"{kafka: {brokers: h, topics: t, instance: \"${pid}\"}}", "${/id}",
         "p.yaml:4: 'instance' has a placeholder that is not known; it may have ${host} and ${env:NAME}",
         ONCE_E_CONFIG},
        {"{kafka: {brokers: h, topics: t, config: {group.id: g}}}", "${/id}",
         "p.yaml:4: 'config': 'group.id' cannot be set here; use 'group'", ONCE_E_CONFIG},
        {"{kafka: {brokers: h, topics: t, config: {broker.version.fallback: 0.9.0}}}", "${/id}",
         "p.yaml:4: 'config': 'broker.version.fallback' cannot be set here; with it messages of aborted transactions "
         "could "
         "be read; remove it",
         ONCE_E_CONFIG},
        {"{kafka: {brokers: h, topics: t, config: {api.version.request: false}}}", "${/id}",
         "p.yaml:4: 'config': 'api.version.request' cannot be set here; without it messages of aborted transactions "
         "would be read; remove it",
         ONCE_E_CONFIG},
        {"{kafka: {brokers: h, topics: t, config: {api.version.fallback.ms: 1}}}", "${/id}",
         "p.yaml:4: 'config': 'api.version.fallback.ms' cannot be set here; with it messages of aborted transactions "
         "could be read; remove it",
         ONCE_E_CONFIG},
        {"{kafka: {brokers: h, topics: t, config: {sasl.password: x}}}", "${/id}",
         "p.yaml:4: 'config': 'sasl.password' is a secret and must not stand in this file; write env:NAME or file:PATH",
         ONCE_E_CONFIG},
        {"{kafka: {brokers: h, topics: t, config: []}}", "${/id}",
         "p.yaml:4: 'config' must be a map of properties, not a list; write 'config: {security.protocol: SASL_SSL, "
         "sasl.mechanism: PLAIN, sasl.username: once, sasl.password: env:KAFKA_PASSWORD}'",
         ONCE_E_CONFIG},
        {"{fil: {path: a}}", "${/id}", "p.yaml:4: unknown field 'fil'; did you mean 'file'?", ONCE_E_CONFIG},
        {"{file: a}", "${/id}", "p.yaml:4: 'file' must be a map, not a value; write 'file: {path: payments.ndjson}'",
         ONCE_E_CONFIG},
        {"{file: {path: \"-\", follow: true}}", "${/id}",
         "p.yaml:4: 'follow' is for files: standard input is read until it ends; remove it", ONCE_E_CONFIG},
        {"{file: {path: \"-\", cursor: true}}", "${/id}",
         "p.yaml:4: 'cursor' is for files: standard input has no place to go on from; remove it", ONCE_E_CONFIG},
        {"{file: {path: a}}", "${source:key}",
         "p.yaml:3: 'key': this source has no ${source:key}, nor any other; use ${/field}, "
         "${header:NAME} or ${coordinates}",
         ONCE_E_CONFIG},
        {"{file: {path: \"-\"}}", "${coordinates}",
         "p.yaml:3: 'key' uses ${coordinates}, but standard input has none that stay the same; use fields, or a file",
         ONCE_E_CONFIG},
    };
    once_arena arena;
    once_arena_init(&arena);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        once_spec *spec = NULL;
        once_error err = {0};
        assert_int_equal(parse(&arena, cases[i].yaml, cases[i].key, &spec, &err), cases[i].status);
        assert_string_equal(err.text, cases[i].text);
        assert_null(spec);
    }
    once_arena_release(&arena);
}

/* Where the file has it, which may be before the source. */
static void names_of_a_source_are_known_by_it(void **state)
{
    (void)state;
    static const char *const names[] = {"key", "partition", NULL};
    const once_config_field field = {.name = "key"};
    once_arena arena;
    once_config config;
    once_error err = {0};
    once_arena_init(&arena);
    once_config_init(&config, &arena, "p.yaml");
    config.source_names = names;
    const once_node *root = once_config_yaml(&config, ONCE_BYTES("a: x\nkey: \"${source:partition}/${source:key}\"\n"
                                                                 "b: \"${source:offset}\"\nc: \"${/id}\"\n"));
    assert_non_null(root);
    assert_non_null(once__config_template(&config, &field, once_node_member(root, "c")));
    assert_false(config.names_source);
    assert_non_null(once__config_template(&config, &field, once_node_member(root, "key")));
    assert_true(config.names_source);
    assert_null(once__config_template(&config, &field, once_node_member(root, "b")));
    assert_int_equal(once_config_finish(&config, NULL, NULL, &err), ONCE_E_CONFIG);
    assert_string_equal(err.text,
                        "p.yaml:3: 'key': the source has no 'offset' for ${source:...}; it has key, partition");
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
    const once_source_kind *const *sources = once_source_list(&n);
    char *configuration = page("docs/configuration.md"), *architecture = page("docs/ARCHITECTURE.md");
    for (size_t i = 0; i < n; i++) {
        char text[100];
        (void)snprintf(text, sizeof text, "\n| `%s` | map: [%s](#", sources[i]->name, sources[i]->field.section->title);
        assert_non_null(strstr(configuration, text));
        for (size_t k = 0; k < sources[i]->field.section->n; k++) {
            (void)snprintf(text, sizeof text, "\n| `%s` | ", sources[i]->field.section->fields[k].name);
            assert_non_null(strstr(configuration, text));
        }
        (void)snprintf(text, sizeof text, "`%s`", sources[i]->name);
        assert_non_null(strstr(architecture, text));
    }
    free(configuration);
    free(architecture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_is_complete),
        cmocka_unit_test(one_that_lacks_a_slot_is_not_opened),
        cmocka_unit_test(a_field_chooses_it),
        cmocka_unit_test(bits_and_doubts_are_known),
        cmocka_unit_test(the_group_of_a_fifo_queue_is_the_lane),
        cmocka_unit_test(wrong_ones_are_refused),
        cmocka_unit_test(names_of_a_source_are_known_by_it),
        cmocka_unit_test(each_is_documented),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
