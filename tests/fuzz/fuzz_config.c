/* Any bytes as a pipeline file. Either a spec that keeps its promises, or mistakes that each say file, and in one line
 * what is wrong; and the same answer every time. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "effect/effect.h"
#include "effect/exec.h"
#include "effect/sql.h"
#include "runtime/config.h"

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) abort();                                                                                     \
    } while (0)

static const char name[] = "fuzz.yaml";

typedef struct answer {
    once_spec *spec;
    once_error err;
    int rc;
    size_t n;
    char first[sizeof(((once_error *)0)->text)];
} answer;

static void report(void *user, const char *line)
{
    answer *a = user;
    CHECK(line[0] != '\0' && !strchr(line, '\n'));
    if (a->n < ONCE_CONFIG_MISTAKES) CHECK(strncmp(line, name, strlen(name)) == 0 && line[strlen(name)] == ':');
    if (a->n == 0) memcpy(a->first, line, strlen(line) + 1);
    a->n++;
    CHECK(a->n <= ONCE_CONFIG_MISTAKES + 1);
}

static void check_statements(const once_sql_spec *sql)
{
    CHECK(sql->does.n > 0);
    for (size_t i = 0; i < sql->does.n; i++) CHECK(sql->does.at[i].sql.len > 0 && sql->does.at[i].line > 0);
}

static void check_handler(const once_spec *spec, const once_handler_spec *handler)
{
    CHECK(handler->key && !once_template_is_literal(handler->key));
    CHECK(handler->operation.len >= 1 && handler->operation.len <= 200);
    CHECK(handler->remember_ms == ONCE_FOREVER ||
          (handler->remember_ms > 0 && handler->remember_ms <= ONCE_CONFIG_LONGEST_MS));
    CHECK(handler->lease_ms > 0 && handler->timeout_ms > 0);
    CHECK(handler->retry.attempts > 0);
    CHECK(handler->retry.min_ms > 0 && handler->retry.min_ms <= handler->retry.max_ms);
    CHECK(handler->effect && handler->own && (handler->bits & handler->effect->bits) == handler->effect->bits);
    CHECK(once_handler_runs(handler) == (handler->dead_reason.len == 0));
    CHECK(once_handler_external(handler) == (handler->slots > 0));
    if (handler->effect == &once__effect_sql) check_statements(once_sql_of(handler));
    if (handler->effect == &once__effect_exec) CHECK(once_exec_of(handler)->command.n > 0);
    CHECK((handler->fingerprint.kind == ONCE_FINGERPRINT_FIELDS) == (handler->fingerprint.n > 0));
    if (handler->type.len > 0) CHECK(once_spec_handler(spec, handler->type) == handler);
    CHECK(once_spec_handler_by_operation(spec, handler->operation) != NULL);
}

static bool visit(void *user, once_bytes operation, once_bytes text)
{
    (void)user;
    CHECK(operation.len > 0 && text.len > 0);
    return true;
}

static void check_spec(const once_spec *spec, once_arena *arena)
{
    CHECK(spec->consumer.len >= 1 && spec->consumer.len <= 200);
    CHECK(spec->store_url.len > 0 && spec->source.name.len > 0);
    CHECK(spec->n_handlers > 0);
    CHECK(spec->gap_ms == -1 || (spec->gap_ms > 0 && spec->version));
    CHECK(!spec->version || spec->order);
    CHECK(spec->batch_max > 0 && spec->batch_wait_ms >= 0 && spec->workers > 0 && spec->message_max > 0);
    for (size_t i = 0; i < spec->n_handlers; i++) check_handler(spec, &spec->handlers[i]);
    CHECK(once_config_each_operation(spec, arena, visit, NULL, NULL) == ONCE_OK);
}

static void load(once_bytes text, once_arena *arena, answer *a)
{
    a->rc = once_config_parse(name, text, arena, report, a, &a->spec, &a->err);
    if (a->rc == ONCE_OK) {
        CHECK(a->n == 0 && a->spec && a->err.text[0] == '\0');
        check_spec(a->spec, arena);
    } else {
        CHECK(a->rc == ONCE_E_CONFIG || a->rc == ONCE_E_UNSUPPORTED);
        CHECK(a->n > 0 && !a->spec && strcmp(a->first, a->err.text) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    once_arena arena = {0};
    answer first = {0}, second = {0};
    once_bytes text = {(const char *)data, size};
    load(text, &arena, &first);
    load(text, &arena, &second);
    CHECK(first.rc == second.rc && first.n == second.n && strcmp(first.first, second.first) == 0);
    once_arena_release(&arena);
    return 0;
}
