/* Pipeline files: what is read, what is refused, and in which words. f67, f21, f17 and f18 are rows of the fault list.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "effect/effect.h"
#include "effect/exec.h"
#include "effect/sql.h"
#include "effect/then.h"
#include "runtime/config.h"
#include "source/file.h"
#include "store/store.h"

#define TEXT(bytes) (int)(bytes).len, (bytes).data

/* The parts of a small pipeline; tests replace one line. Lines are counted: the comments say which is which. */
#define HEAD                                                                                                           \
    "consumer: payments\n"             /* 1 */                                                                         \
    "store: sqlite:p.db\n"             /* 2 */                                                                         \
    "source: {file: {path: p.json}}\n" /* 3 */                                                                         \
    "key: \"${/id}\"\n"                /* 4 */
#define HANDLER "handler: {sql: [INSERT INTO t VALUES (:id)]}\n"

typedef struct lines {
    char text[8000];
    size_t n;
} lines;

static void collect(void *user, const char *line)
{
    lines *all = user;
    size_t len = strlen(all->text);
    assert_true(len + strlen(line) + 2 < sizeof all->text);
    (void)snprintf(all->text + len, sizeof all->text - len, "%s\n", line);
    all->n++;
}

static int parse(once_arena *arena, once_bytes text, lines *all, once_spec **out, once_error *err)
{
    return once_config_parse("p.yaml", text, arena, collect, all, out, err);
}

static void refused_as(once_bytes text, int status, const char *expected)
{
    once_arena arena = {0};
    lines all = {0};
    once_error err = {0};
    once_spec *spec = NULL;
    int rc = parse(&arena, text, &all, &spec, &err);
    if (rc != status || strcmp(err.text, expected) != 0)
        print_error("in:\n%.*s\nexpected: %s\ngot:      %s\nall:\n%s", TEXT(text), expected, err.text, all.text);
    assert_int_equal(rc, status);
    assert_string_equal(err.text, expected);
    assert_int_equal(err.status, status);
    assert_null(spec);
    assert_memory_equal(all.text, expected, strlen(expected)); /* the same is the first of the list */
    once_arena_release(&arena);
}

static void refused(const char *text, const char *expected)
{
    refused_as((once_bytes){text, strlen(text)}, ONCE_E_CONFIG, expected);
}

static void not_here(const char *text, const char *expected)
{
    refused_as((once_bytes){text, strlen(text)}, ONCE_E_UNSUPPORTED, expected);
}

/* One mistake and no follow-up. */
static void refused_once(const char *text, const char *expected)
{
    once_arena arena = {0};
    lines all = {0};
    once_spec *spec = NULL;
    assert_int_not_equal(parse(&arena, (once_bytes){text, strlen(text)}, &all, &spec, NULL), ONCE_OK);
    char with_newline[600];
    (void)snprintf(with_newline, sizeof with_newline, "%s\n", expected);
    assert_string_equal(all.text, with_newline);
    once_arena_release(&arena);
}

static once_spec *loaded(once_arena *arena, const char *text)
{
    lines all = {0};
    once_error err = {0};
    once_spec *spec = NULL;
    int rc = parse(arena, (once_bytes){text, strlen(text)}, &all, &spec, &err);
    if (rc != ONCE_OK) print_error("%s", all.text);
    assert_int_equal(rc, ONCE_OK);
    assert_string_equal(err.text, "");
    return spec;
}

static void is(once_bytes bytes, const char *text)
{
    assert_int_equal(bytes.len, strlen(text));
    assert_memory_equal(bytes.data, text, bytes.len);
}

/* --- what is read ------------------------------------------------------------------------------------------------- */

static const char full[] = "consumer: payments\n"
                           "tenant: \"${header:tenant}\"\n"
                           "store: sqlite:payments.db\n"
                           "source:\n"
                           "  file: {path: payments.ndjson, follow: true, headers: /headers}\n"
                           "key: \"${/payment_id}\"\n"
                           "fingerprint: [/order_id, /amount]\n"
                           "remember: forever\n"
                           "ack: after_effect\n"
                           "time: \"${/sent_at}\"\n"
                           "type: \"${/type}\"\n"
                           "handlers:\n"
                           "  payment.received:\n"
                           "    sql:\n"
                           "      - INSERT INTO payments(id, amount) VALUES (:payment_id, :amount)\n"
                           "      - {do: \"UPDATE o SET s = 1 WHERE id = :{/order/id?}\", rows: 1, else: stale}\n"
                           "    already: [payments.id, payments.order_id]\n"
                           "    rejected: balance_check\n"
                           "    remember: 30d\n"
                           "    lease: 1m\n"
                           "    retry: {attempts: 2}\n"
                           "  payment.refunded:\n"
                           "    operation: refund\n"
                           "    key: \"r:${/refund_id}\"\n"
                           "    fingerprint: none\n"
                           "    timeout: 3s\n"
                           "    sql: {do: [DELETE FROM payments WHERE id = :payment_id]}\n"
                           "  \"*\": {dead: unknown type}\n"
                           "lease: 20s\n"
                           "timeout: 5s\n"
                           "retry: {attempts: 7, backoff: 100ms..2m}\n"
                           "order: \"${/order_id}\"\n"
                           "version: \"${/version}\"\n"
                           "gap: {wait: 30s, then: run}\n"
                           "init: |\n"
                           "  CREATE TABLE payments(id);\n"
                           "batch: {max: 10, wait: 0ms}\n"
                           "workers: 8\n"
                           "message_max: 2MB\n"
                           "result_max: 0B\n";

static void a_full_pipeline_is_read(void **state)
{
    (void)state;
    once_arena arena = {0};
    once_spec *spec = loaded(&arena, full);
    is(spec->file, "p.yaml");
    is(spec->consumer, "payments");
    is(spec->store_url, "sqlite:payments.db");
    assert_int_equal(spec->store_line, 3);
    assert_int_equal(spec->source.line, 5);
    is(once_file_of(&spec->source)->path, "payments.ndjson");
    assert_true(once_file_of(&spec->source)->follow);
    is(spec->source.headers.text, "/headers");
    is(once_template_text(spec->tenant), "${header:tenant}");
    is(once_template_text(spec->time), "${/sent_at}");
    is(once_template_text(spec->type), "${/type}");
    is(once_template_text(spec->order), "${/order_id}");
    is(once_template_text(spec->version), "${/version}");
    assert_int_equal(spec->gap_ms, 30000);
    assert_false(spec->gap_dead);
    is(spec->init, "CREATE TABLE payments(id);\n");
    assert_int_equal(spec->batch_max, 10);
    assert_int_equal(spec->batch_wait_ms, 0);
    assert_int_equal(spec->workers, 8);
    assert_int_equal(spec->message_max, 2000000);
    assert_int_equal(spec->result_max, 0);
    assert_int_equal(spec->n_handlers, 3);
    once_arena_release(&arena);
}

static void handlers_inherit_and_override(void **state)
{
    (void)state;
    once_arena arena = {0};
    once_spec *spec = loaded(&arena, full);
    const once_handler_spec *received = &spec->handlers[0], *refunded = &spec->handlers[1], *other = &spec->handlers[2];
    is(received->type, "payment.received");
    is(received->operation, "payment.received");
    is(once_template_text(received->key), "${/payment_id}");
    assert_int_equal(received->fingerprint.kind, ONCE_FINGERPRINT_FIELDS);
    assert_int_equal(received->fingerprint.n, 2);
    assert_int_equal(received->remember_ms, INT64_C(30) * 86400000);
    assert_int_equal(received->lease_ms, 60000);
    assert_int_equal(received->timeout_ms, 5000);
    assert_int_equal(received->retry.attempts, 2);
    assert_int_equal(received->retry.min_ms, 100); /* a part that is not said is the pipeline's */
    assert_int_equal(received->retry.max_ms, 120000);
    assert_ptr_equal(received->effect, &once__effect_sql);
    assert_int_equal(once_sql_of(received)->does.n, 2);
    assert_int_equal(once_sql_of(received)->does.at[0].rows, -1);
    assert_int_equal(once_sql_of(received)->does.at[0].line, 15);
    is(once_sql_of(received)->does.at[0].sql, "INSERT INTO payments(id, amount) VALUES (?1, ?2)");
    assert_int_equal(once_sql_of(received)->does.at[1].rows, 1);
    assert_int_equal(once_sql_of(received)->does.at[1].unmet, ONCE_STALE);
    assert_true(once_sql_of(received)->does.at[1].params[0].optional);
    assert_int_equal(once_sql_of(received)->n_already, 2);
    is(once_sql_of(received)->already[1], "payments.order_id");
    assert_int_equal(once_sql_of(received)->n_rejected, 1);
    is(once_sql_of(received)->rejected[0], "balance_check");
    assert_int_equal(received->line, 13);

    is(refunded->operation, "refund");
    is(once_template_text(refunded->key), "r:${/refund_id}");
    assert_int_equal(refunded->fingerprint.kind, ONCE_FINGERPRINT_NONE);
    assert_true(refunded->remember_ms == ONCE_FOREVER);
    assert_int_equal(refunded->lease_ms, 20000);
    assert_int_equal(refunded->timeout_ms, 3000);
    assert_int_equal(refunded->retry.attempts, 7);
    assert_int_equal(once_sql_of(refunded)->does.n, 1);
    assert_int_equal(once_sql_of(refunded)->n_already, 0);

    is(other->operation, "*");
    assert_ptr_equal(other->effect, &once__effect_dead);
    is(other->dead_reason, "unknown type");
    once_arena_release(&arena);
}

static void defaults_are_the_documented_ones(void **state)
{
    (void)state;
    once_arena arena = {0};
    once_spec *spec = loaded(&arena, HEAD HANDLER);
    const once_handler_spec *handler = &spec->handlers[0];
    assert_int_equal(spec->n_handlers, 1);
    is(handler->operation, "handler");
    assert_int_equal(handler->type.len, 0);
    assert_int_equal(handler->fingerprint.kind, ONCE_FINGERPRINT_BODY);
    assert_int_equal(handler->remember_ms, INT64_C(7) * 86400000);
    assert_int_equal(handler->lease_ms, 30000);
    assert_int_equal(handler->timeout_ms, 10000);
    assert_int_equal(handler->retry.attempts, 12);
    assert_int_equal(handler->retry.for_ms, 0);
    assert_int_equal(handler->retry.min_ms, 200);
    assert_int_equal(handler->retry.max_ms, 60000);
    assert_int_equal(spec->gap_ms, -1);
    assert_true(spec->gap_dead);
    assert_int_equal(spec->batch_max, 1024);
    assert_int_equal(spec->batch_wait_ms, 20);
    assert_int_equal(spec->workers, 4);
    assert_int_equal(spec->drain_ms, 10000);
    assert_int_equal(spec->patience_ms, 30000);
    assert_int_equal(handler->slots, 0);
    assert_false(handler->hold);
    assert_false(handler->natural);
    assert_int_equal(spec->waiting_max.messages, 1000000);
    assert_int_equal(spec->waiting_max.bytes, INT64_C(4) << 30);
    assert_int_equal(spec->message_max, 1 << 20);
    assert_int_equal(spec->result_max, 64 << 10);
    assert_int_equal(spec->init.len, 0);
    assert_false(once_file_of(&spec->source)->follow);
    assert_int_equal(spec->source.headers.text.len, 0);
    assert_null(spec->tenant);
    assert_null(spec->type);
    assert_null(spec->time);
    assert_null(spec->order);
    assert_null(spec->version);
    once_arena_release(&arena);
}

static void a_handler_is_found_by_type_and_by_operation(void **state)
{
    (void)state;
    once_arena arena = {0};
    once_spec *spec = loaded(&arena, full);
    assert_ptr_equal(once_spec_handler(spec, ONCE_BYTES("payment.received")), &spec->handlers[0]);
    assert_ptr_equal(once_spec_handler(spec, ONCE_BYTES("payment.refunded")), &spec->handlers[1]);
    assert_ptr_equal(once_spec_handler(spec, ONCE_BYTES("payment.receiveD")), &spec->handlers[2]);
    assert_ptr_equal(once_spec_handler(spec, (once_bytes){0}), &spec->handlers[2]);
    assert_ptr_equal(once_spec_handler_by_operation(spec, ONCE_BYTES("refund")), &spec->handlers[1]);
    assert_null(once_spec_handler_by_operation(spec, ONCE_BYTES("payment.refunded")));
    spec = loaded(&arena, HEAD "type: \"${/t}\"\nhandlers: {a: {dead: no}}\n");
    assert_null(once_spec_handler(spec, ONCE_BYTES("b")));
    spec = loaded(&arena, HEAD HANDLER);
    assert_ptr_equal(once_spec_handler(spec, ONCE_BYTES("b")), &spec->handlers[0]);
    assert_ptr_equal(once_spec_handler(spec, (once_bytes){0}), &spec->handlers[0]);
    once_arena_release(&arena);
}

static void a_statement_may_stand_alone_and_durations_have_all_units(void **state)
{
    (void)state;
    once_arena arena = {0};
    once_spec *spec =
        loaded(&arena, HEAD
               "handler:\n  sql: |\n    DELETE FROM t\n    WHERE id = :id\nlease: 1h\ntimeout: 250ms\nremember: 2d\n");
    assert_int_equal(once_sql_of(&spec->handlers[0])->does.n, 1);
    is(once_sql_of(&spec->handlers[0])->does.at[0].sql, "DELETE FROM t\nWHERE id = ?1\n");
    assert_int_equal(spec->handlers[0].lease_ms, 3600000);
    assert_int_equal(spec->handlers[0].timeout_ms, 250);
    assert_int_equal(spec->handlers[0].remember_ms, 172800000);
    once_arena_release(&arena);
}

static void byte_order_mark_crlf_and_document_start_are_fine(void **state)
{
    (void)state;
    once_arena arena = {0};
    (void)loaded(&arena, "\xef\xbb\xbf" HEAD HANDLER);
    (void)loaded(&arena, "---\n" HEAD HANDLER "...\n");
    once_spec *spec = loaded(
        &arena, "consumer: p\r\nstore: \"memory:\"\r\nsource: {file: {path: \"-\"}}\r\nkey: \"${/id}\"\r\n" HANDLER);
    is(spec->store_url, "memory:");
    is(once_file_of(&spec->source)->path, "-");
    is(loaded(&arena, "consumer: p\nstore: memory\nsource: {file: {path: x}}\nkey: \"${/id}\"\n" HANDLER)->store_url,
       "memory:");
    once_arena_release(&arena);
}

/* --- effects outside of the store --------------------------------------------------------------------------------- */

static const char external[] =
    HEAD "type: \"${/t}\"\n"
         "workers: 8\n"
         "unknown: retry\n"
         "natural: true\n"
         "drain: 0s\n"
         "lease: 200ms\n"
         "handlers:\n"
         "  command:\n"
         "    exec: [./charge, -x, \"--order=${/order_id}\", \"$${HOME} %\"]\n"
         "    env: {PATH: /bin, API_TOKEN: \"env:OTHER_TOKEN\", PIN: \"file:pin.txt\", EMPTY: \"\", _x1: hello world}\n"
         "    unknown: hold\n"
         "    natural: false\n"
         "    mode: message\n"
         "  stream: {exec: [python3, handler.py], mode: stream, window: 65536, processes: 64, timeout: 3s}\n"
         "  small: {mode: stream, exec: [/opt/my handler/run]}\n"
         "  function: {callback: ship, retry: {attempts: 2}}\n"
         "  table: {sql: [DELETE FROM t]}\n"
         "  \"*\": {dead: unknown type}\n";

static void commands_and_callbacks_are_read(void **state)
{
    (void)state;
    once_arena arena = {0};
    const once_spec *spec = loaded(&arena, external);
    const once_handler_spec *command = &spec->handlers[0], *stream = &spec->handlers[1], *small = &spec->handlers[2],
                            *function = &spec->handlers[3];
    assert_int_equal(spec->drain_ms, 0);
    assert_ptr_equal(command->effect, &once__effect_exec);
    assert_true(once_handler_external(command));
    assert_int_equal(once_exec_of(command)->command.n, 4);
    is(once_template_text(once_exec_of(command)->command.argv[0]), "./charge");
    is(once_template_text(once_exec_of(command)->command.argv[2]), "--order=${/order_id}");
    assert_false(once_template_is_literal(once_exec_of(command)->command.argv[2]));
    assert_true(once_template_is_literal(once_exec_of(command)->command.argv[3]));
    assert_false(once_exec_of(command)->mode == ONCE_EXEC_STREAM);
    assert_int_equal(command->slots, 8);
    assert_int_equal(once_exec_of(command)->n_env, 5);
    is(once_exec_of(command)->env[0].name, "PATH");
    is(once_exec_of(command)->env[0].value, "/bin");
    is(once_exec_of(command)->env[1].name, "API_TOKEN");
    is(once_exec_of(command)->env[1].value, "env:OTHER_TOKEN");
    assert_int_equal(once_exec_of(command)->env[1].line, 14);
    is(once_exec_of(command)->env[2].value, "file:pin.txt");
    is(once_exec_of(command)->env[3].value, "");
    is(once_exec_of(command)->env[4].value, "hello world");

    assert_int_equal(once_exec_of(stream)->mode, ONCE_EXEC_STREAM);
    assert_int_equal(once_exec_of(stream)->window, 65536);
    assert_int_equal(once_exec_of(stream)->processes, 64);
    assert_int_equal(stream->slots, 65536 * 64);
    assert_int_equal(stream->timeout_ms, 3000);
    assert_int_equal(once_exec_of(small)->window, 64);
    assert_int_equal(once_exec_of(small)->processes, 1);
    assert_int_equal(small->slots, 64);

    assert_ptr_equal(function->effect, &once__effect_callback);
    assert_true(once_handler_external(function));
    is(once_effect_function(function), "ship");
    assert_int_equal(function->slots, 8);
    once_arena_release(&arena);
}

static void hold_and_natural_are_inherited_where_they_mean_something(void **state)
{
    (void)state;
    once_arena arena = {0};
    const once_spec *spec = loaded(&arena, external);
    static const bool hold[] = {true, false, false, false, false, false};
    static const bool natural[] = {false, true, true, true, true, false};
    for (size_t i = 0; i < spec->n_handlers; i++) {
        assert_int_equal(spec->handlers[i].hold, hold[i]);
        assert_int_equal(spec->handlers[i].natural, natural[i]);
    }
    assert_int_equal(spec->handlers[4].slots, 0);
    assert_int_equal(spec->handlers[5].slots, 0);
    spec = loaded(&arena, HEAD "handler: {exec: [./charge]}\n");
    assert_true(spec->handlers[0].hold); /* the careful side is the default */
    assert_false(spec->handlers[0].natural);
    assert_int_equal(spec->handlers[0].slots, 4);
    (void)loaded(&arena, HEAD "ack: after_accept\nhandler: {callback: f}\n");
    once_arena_release(&arena);
}

static void f81_exit_codes_are_read(void **state)
{
    (void)state;
    once_arena arena = {0};
    const once_spec *spec =
        loaded(&arena,
               HEAD "handler:\n  exec: [./charge]\n  exit: {1: retry, 28: unknown, 75: dead, 255: done, 7: release}\n");
    const once_outcome *exits = once_exec_of(&spec->handlers[0])->exits;
    assert_int_equal(exits[0], ONCE_DONE);
    assert_int_equal(exits[1], ONCE_RETRY);
    assert_int_equal(exits[2], ONCE_UNKNOWN);
    assert_int_equal(exits[7], ONCE_RELEASE);
    assert_int_equal(exits[28], ONCE_UNKNOWN);
    assert_int_equal(exits[64], ONCE_REJECTED);
    assert_int_equal(exits[69], ONCE_RELEASE);
    assert_int_equal(exits[75], ONCE_DEAD);
    assert_int_equal(exits[255], ONCE_DONE);
    assert_null(once_exec_of(&loaded(&arena, HEAD "handler: {exec: [./charge]}\n")->handlers[0])->exits);
    once_arena_release(&arena);
#define EXEC HEAD "handler:\n  exec: [./charge]\n  exit:"
    refused_once(EXEC " {0: retry}\n",
                 "p.yaml:7: 'exit': 0 means done and cannot be changed; let the command end with another code");
    static const char *const codes[] = {"256", "1000", "-1", "01", "x", "1.0", "0x1", "'1 '"};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        char text[300], wrong[200];
        const bool quoted = codes[i][0] == '\'';
        snprintf(text, sizeof text, EXEC "\n    2: retry\n    %s: retry\n", codes[i]);
        snprintf(wrong, sizeof wrong, "p.yaml:9: 'exit': '%s' is no exit code; write a number from 1 to 255",
                 quoted ? "1 " : codes[i]);
        refused_once(text, wrong);
    }
    refused_once(EXEC "\n    1: again\n", "p.yaml:8: 'exit': 'again' is no outcome; write done, already, rejected, "
                                          "stale, retry, release, unknown or dead");
    refused_once(EXEC "\n    1:\n", "p.yaml:8: 'exit': 1 must be an outcome, not nothing; write '1: retry'");
    refused_once(EXEC "\n    1: [retry]\n", "p.yaml:8: 'exit': 1 must be an outcome, not a list; write '1: retry'");
    refused_once(
        EXEC " {}\n",
        "p.yaml:7: 'exit' must be a map of exit codes, not an empty one; write 'exit: {1: retry, 28: unknown}'");
    refused_once(EXEC " 1\n",
                 "p.yaml:7: 'exit' must be a map of exit codes, not a value; write 'exit: {1: retry, 28: unknown}'");
    refused_once(EXEC " {1: retry}\n  mode: stream\n",
                 "p.yaml:7: 'exit' is for 'mode: message': a process of 'mode: stream' answers each message with a "
                 "line; remove it");
    refused_once(HEAD "handler:\n  callback: charge\n  exit: {1: retry}\n",
                 "p.yaml:7: 'exit' is for 'exec'; remove it");
#undef EXEC
}

static void a_bound_on_what_waits(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t messages, bytes;
    } cases[] = {{"waiting_max: 100000\n", 100000, UINT64_C(4) << 30},
                 {"waiting_max: {messages: 5, bytes: 1GB}\n", 5, 1000000000},
                 {"waiting_max: {bytes: 2GiB}\n", 1000000, UINT64_C(2) << 30},
                 {"waiting_max: none\n", 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        once_arena arena = {0};
        char text[2000];
        (void)snprintf(text, sizeof text, "%s%s", HEAD HANDLER, cases[i].text);
        const once_spec *spec = loaded(&arena, text);
        assert_int_equal(spec->waiting_max.messages, cases[i].messages);
        assert_int_equal(spec->waiting_max.bytes, cases[i].bytes);
        once_arena_release(&arena);
    }
    refused(HEAD HANDLER "waiting_max: 0\n", "p.yaml:6: 'waiting_max' is 0; write a number from 1 to 1000000000000");
    refused(HEAD HANDLER "waiting_max: lots\n",
            "p.yaml:6: 'waiting_max' must be a whole number, not 'lots'; write 'waiting_max: 100000'");
    refused(HEAD HANDLER "waiting_max: {bytes: 5}\n",
            "p.yaml:6: 'bytes' is '5' without a unit; write 5B for bytes (B, KiB, MiB, GiB)");
    refused(HEAD HANDLER "waiting_max: [1]\n",
            "p.yaml:6: 'waiting_max' must be a whole number, not a list; write 'waiting_max: 100000'");
}

static void f67_exec_is_a_list_and_not_a_command_line(void **state)
{
    (void)state;
    refused_once(HEAD "handler:\n  exec: some command\n",
                 "p.yaml:6: 'exec' is not a command line; write a list: exec: [some, command]");
    refused_once(HEAD "handler:\n  exec: ./charge\n",
                 "p.yaml:6: 'exec' is not a command line; write a list: exec: [./charge]");
    refused_once(HEAD "handler:\n  exec: \" a  b \"\n",
                 "p.yaml:6: 'exec' is not a command line; write a list: exec: [a, b]");
    refused_once(HEAD "handler:\n  exec: a | b > c\n",
                 "p.yaml:6: 'exec' is not a command line; write a list: exec: [COMMAND, ARGUMENT]");
    refused_once(HEAD "handler:\n  exec: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\n",
                 "p.yaml:6: 'exec' is not a command line; write a list: exec: [COMMAND, ARGUMENT]");
    refused_once(HEAD "handler:\n  exec: \"\"\n",
                 "p.yaml:6: 'exec' is not a command line; write a list: exec: [COMMAND, ARGUMENT]");
    refused_once(HEAD "handler:\n  exec: \"  \"\n",
                 "p.yaml:6: 'exec' is not a command line; write a list: exec: [COMMAND, ARGUMENT]");
    refused_once(HEAD "handler:\n  exec: {command: [a]}\n",
                 "p.yaml:6: 'exec' must be a list, not a map; write 'exec: [./charge, \"${/payment_id}\"]'");
    refused_once(HEAD "handler:\n  exec:\n",
                 "p.yaml:6: 'exec' must be a list, not nothing; write 'exec: [./charge, \"${/payment_id}\"]'");
    refused_once(HEAD "handler:\n  exec: []\n",
                 "p.yaml:6: 'exec' must be a list, not an empty one; write 'exec: [./charge, \"${/payment_id}\"]'");
    refused_once(HEAD "handler:\n  exec:\n    - a\n    - [b]\n",
                 "p.yaml:8: 'exec' must be a list: command and arguments, not a list; write 'exec: [./charge, "
                 "\"${/payment_id}\"]'");
    refused_once(HEAD "handler:\n  exec:\n    - a\n    - \"\"\n", "p.yaml:8: 'exec' has an empty element; remove it");
    refused_once(HEAD "handler:\n  exec:\n    - a\n    - ~\n",
                 "p.yaml:8: 'exec' has no value; write 'exec: [./charge, \"${/payment_id}\"]'");
    refused_once(HEAD "handler:\n  exec:\n    - a\n    - \"${id}\"\n",
                 "p.yaml:8: 'exec': '${id}' is not understood; a field of the body is '${/id}', else there are "
                 "${json:/text:/field}, ${header:NAME}, ${coordinates}, "
                 "${hash} and ${time:/field:5m}");
    refused_once(HEAD "handler:\n  exec: [python3 charge.py]\n",
                 "p.yaml:6: 'exec': the command is one word, not 'python3 charge.py'; write [python3, charge.py]");
    refused_once(HEAD "handler:\n  exec: [\"charge it\", \"${/id}\"]\n",
                 "p.yaml:6: 'exec': the command is one word, not 'charge it'; write [charge, it, ...]");
    refused_once(HEAD "handler:\n  exec: [\"${/command}\", x]\n",
                 "p.yaml:6: 'exec' must begin with a command that is the same for every message, not '${/command}'; "
                 "write 'exec: [./charge, ...]'");

    char text[1000] = HEAD "handler:\n  exec: [c";
    for (int i = 0; i < 63; i++) (void)snprintf(text + strlen(text), sizeof text - strlen(text), ", x");
    once_arena arena = {0};
    char fits[1000];
    (void)snprintf(fits, sizeof fits, "%s]\n", text);
    assert_int_equal(once_exec_of(&loaded(&arena, fits)->handlers[0])->command.n, 64);
    (void)snprintf(text + strlen(text), sizeof text - strlen(text), ", x]\n");
    refused_once(text, "p.yaml:6: 'exec' has 65 elements, and 64 are the most; put the others into a script");
    once_arena_release(&arena);
}

static void f78_a_field_of_the_message_is_no_program(void **state)
{
    (void)state;
    static const struct {
        const char *exec, *runner;
    } wrong[] = {
        {"[sh, -c, \"charge ${/id}\"]", "sh"},
        {"[/bin/bash, -ec, \"charge ${/id}\", x]", "/bin/bash"},
        {"[bash, -o, pipefail, -c, \"${/script}\"]", "bash"},
        {"[sh, \"${/script}\"]", "sh"},
        {"[python3, -c, \"print('${/id}')\"]", "python3"},
        {"[perl, -ne, \"${/id}\"]", "perl"},
        {"[sh, -e, -c, \"charge ${/id}\"]", "sh"},
        {"[sh, \"-c${/id}\"]", "sh"},
        {"[env, sh, -c, \"${/x}\"]", "sh"},
        {"[env, -i, A=1, sh, \"${/x}\"]", "sh"},
        {"[env, \"${/x}\"]", "env"},
        {"[timeout, \"5\", bash, -lc, \"${/x}\"]", "bash"},
        {"[nice, -n, \"5\", \"${/x}\"]", "nice"},
        {"[xargs, -n1, sh, -c, \"${/x}\"]", "sh"},
        {"[find, /tmp, -name, a, -exec, \"${/x}\", ;]", "find"},
        {"[find, /tmp, -exec, sh, -c, \"${/x}\", ;]", "sh"},
        {"[su, nobody, -c, \"${/x}\"]", "su"},
        {"[ssh, host, \"charge ${/x}\"]", "ssh"},
        {"[python3.11, -c, \"${/x}\"]", "python3.11"},
        {"[/usr/bin/perl5.36, -E, \"${/x}\"]", "/usr/bin/perl5.36"},
        {"[node, --eval, \"${/x}\"]", "node"},
        {"[node, \"--eval=${/x}\"]", "node"},
        {"[node, -p, \"${/x}\"]", "node"},
        {"[./mine, --eval, \"${/x}\"]", "./mine"},
        {"[./mine, a, -e, \"${/x}\"]", "./mine"},
        {"[./mine, \"-c${/x}\"]", "./mine"},
        {"[awk, \"${/x}\", file]", "awk"},
        {"[grep, -c, \"${/id}\"]", "grep"},
        {"[python3, charge.py, -e, \"${/id}\"]", "python3"},
        {"[gawk-5.1, \"${/x}\"]", "gawk-5.1"},
        {"[bash, +e, \"${/x}\"]", "bash"},
        {"[busybox, timeout, \"5\", \"${/x}\"]", "timeout"},
        {"[ssh, -p, \"22\", host, -v, \"${/x}\"]", "ssh"},
        /* options of an interpreter that have a value of their own */
        {"[bash, -o, pipefail, -ec, \"${/x}\"]", "bash"},
        {"[bash, -euo, pipefail, -lc, \"${/x}\"]", "bash"},
        {"[bash, -oc, pipefail, \"${/x}\"]", "bash"},
        {"[bash, -O, extglob, -xc, \"${/x}\"]", "bash"},
        {"[bash, --rcfile, f, -xc, \"${/x}\"]", "bash"},
        {"[bash, -c, -x, \"${/x}\"]", "bash"},
        {"[bash, -o, \"${/x}\", a.sh]", "bash"},
        {"[rbash, -ec, \"${/x}\"]", "rbash"},
        {"[sh, -s, \"${/x}\"]", "sh"},
        {"[awk, -F, \",\", \"${/x}\"]", "awk"},
        {"[mawk, -v, a=1, \"${/x}\"]", "mawk"},
        {"[gawk, -f, a, -e, b, \"-e${/x}\"]", "gawk"},
        {"[sed, -l, \"5\", \"${/x}\", f]", "sed"},
        {"[sed, --line-length, \"5\", \"${/x}\", f]", "sed"},
        {"[sed, p, -ne, \"${/x}\", f]", "sed"},
        {"[sed, -n, p, -nf, \"${/x}\"]", "sed"},
        {"[sed, p, \"--file=${/x}\"]", "sed"},
        {"[python3, -W, ignore, -Ic, \"${/x}\"]", "python3"},
        {"[python3, -X, utf8, -Bc, \"${/x}\"]", "python3"},
        {"[python3, -m, timeit, \"${/x}\"]", "python3"},
        {"[python3, -, \"${/x}\"]", "python3"},
        {"[perl, -I, lib, -wE, \"${/x}\"]", "perl"},
        {"[perl, -e, \"1\", -wE, \"${/x}\"]", "perl"},
        {"[perl, -I, lib, \"${/x}\"]", "perl"},
        {"[node, -r, fs, -pe, \"${/x}\"]", "node"},
        {"[node, --unheard-of, a.js, \"${/x}\"]", "node"},
        {"[lua, -e, x=1, \"${/x}\"]", "lua"},
        {"[php, -r, \"${/x}\"]", "php"},
        {"[deno, eval, \"${/x}\"]", "deno"},
        {"[deno, run, --allow-net, \"${/x}\"]", "deno"},
        /* and of what starts a command */
        {"[timeout, -s, KILL, \"5\", \"${/x}\", a]", "timeout"},
        {"[timeout, --signal, KILL, \"5\", \"${/x}\", a]", "timeout"},
        {"[env, -u, A, \"${/x}\"]", "env"},
        {"[env, \"A=${/x}\", \"${/y}\"]", "env"},
        {"[env, \"LD_PRELOAD=${/x}\", ./charge]", "env"},
        {"[env, \"${/x}=1\", ./charge]", "env"},
        {"[env, \"ID=${/x}\", make, charge]", "make"},
        {"[env, -S, \"sh -c ${/x}\"]", "env"},
        {"[flock, f, \"${/x}\"]", "flock"},
        {"[flock, f, -c, \"${/x}\"]", "flock"},
        {"[xargs, -I, \"{}\", \"${/x}\"]", "xargs"},
        {"[xargs, -a, f, \"${/x}\"]", "xargs"},
        {"[taskset, -c, \"0\", \"${/x}\"]", "taskset"},
        {"[chroot, /, \"${/x}\"]", "chroot"},
        {"[runuser, -u, root, \"${/x}\"]", "runuser"},
        {"[strace, -o, f, \"${/x}\"]", "strace"},
        {"[stdbuf, -o, L, \"${/x}\"]", "stdbuf"},
        {"[ionice, -c, best-effort, \"${/x}\"]", "ionice"},
        {"[setarch, x86_64, \"${/x}\"]", "setarch"},
        {"[setpriv, --reuid, \"0\", \"${/x}\"]", "setpriv"},
        {"[sudo, -u, root, \"${/x}\"]", "sudo"},
        {"[prlimit, --nofile=9, \"${/x}\"]", "prlimit"},
        {"[linux64, \"${/x}\"]", "linux64"},
        {"[dbus-run-session, --, \"${/x}\"]", "dbus-run-session"},
        {"[/lib64/ld-linux-x86-64.so.2, \"${/x}\"]", "/lib64/ld-linux-x86-64.so.2"},
        {"[nice, env, -u, A, timeout, -k, \"1\", \"5\", bash, -o, pipefail, -ec, \"${/x}\"]", "bash"},
        {"[find, /tmp, -exec, timeout, \"5\", \"${/x}\", ;]", "timeout"},
        {"[docker, exec, c, sh, -xc, \"${/x}\"]", "sh"},
        {"[docker, exec, c, bash, -o, pipefail, -ec, \"${/x}\"]", "bash"},
        {"[docker, exec, c, perl, -we, \"${/x}\"]", "docker"},
        {"[python3, -mtimeit, \"${/x}\"]", "python3"},
        {"[python3, -umtimeit, -s, \"${/x}\"]", "python3"},
        {"[fish, -C, init, \"${/x}\"]", "fish"},
        {"[npx, \"${/x}\"]", "npx"},
        {"[docker, exec, c, sh, -cx, \"${/x}\"]", "sh"},
        {"[python3, -Z, charge.py, \"${/x}\"]", "python3"},
        {"[env, \"-u=${/x}\", ./charge]", "env"},
        /* what may run any of its arguments, or some */
        {"[make, charge, \"ID=${/x}\"]", "make"},
        {"[sqlite3, a.db, \"${/x}\"]", "sqlite3"},
        {"[vim, -es, \"+${/x}\"]", "vim"},
        {"[ed, \"${/x}\"]", "ed"},
        {"[tar, cf, a, b, \"--checkpoint-action=exec=${/x}\"]", "tar"},
        {"[tar, -cf, a, -I, \"${/x}\", b]", "tar"},
        {"[tar, cf, a, --use-compress-program, \"${/x}\"]", "tar"},
        {"[split, \"--filter=${/x}\", f]", "split"},
        {"[scp, \"-oProxyCommand=${/x}\", a, b]", "scp"},
        {"[scp, -o, \"${/x}\", a, b]", "scp"},
        {"[git, ls-remote, \"--upload-pack=${/x}\", .]", "git"},
        {"[rsync, -ae, \"${/x}\", a, b]", "rsync"},
        {"[psql, -Atqc, \"${/x}\"]", "psql"},
        /* options that mean a program to most; of these the text must say no more than "may" */
        {"[mkdir, -p, \"${/x}\"]", "mkdir"},
        {"[cp, -p, \"${/x}\", b]", "cp"},
        {"[docker, run, -e, \"X=${/x}\", image]", "docker"},
    };
    char text[400], expected[600];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        (void)snprintf(text, sizeof text, HEAD "handler:\n  exec: %s\n", wrong[i].exec);
        (void)snprintf(expected, sizeof expected,
                       "p.yaml:6: 'exec': a field of the message may be run as a program here, by '%s'; pass it behind "
                       "a program that is written without placeholders, "
                       "as in [sh, -c, 'charge \"$1\"', sh, \"${/id}\"], or as a variable, as in [env, \"ID=${/id}\", "
                       "./charge], or read it from the body on "
                       "standard input; if it is not run, say 'unsafe_arguments: true'",
                       wrong[i].runner);
        refused_once(text, expected);
        (void)snprintf(text, sizeof text, HEAD "handler:\n  exec: %s\n  unsafe_arguments: true\n", wrong[i].exec);
        once_arena arena = {0};
        (void)loaded(&arena, text);
        once_arena_release(&arena);
    }
    refused_once(HEAD "handler:\n  callback: a\n  unsafe_arguments: true\n",
                 "p.yaml:7: 'unsafe_arguments' is for 'exec'; remove it");
    static const char *const fine[] = {
        "[sh, -c, 'charge \"$1\"', sh, \"${/id}\"]",
        "[python3, charge.py, \"${/id}\", \"--to=${/to}\"]",
        "[sh, -e, charge.sh, \"${/id}\"]",
        "[env, A=1, sh, -c, 'charge \"$1\"', sh, \"${/id}\"]",
        "[timeout, 5s, ./charge, \"${/id}\"]",
        "[nice, ./charge, -account, \"${/id}\"]",
        "[./charge, --price, \"${/id}\", -x, \"${/to}\"]",
        "[find, /tmp, -name, \"${/id}\"]",
        "[java, -jar, charge.jar, \"${/id}\"]",
        "[python3, charge.py, -ne, \"${/id}\"]",
        "[python3, 2.py, \"${/id}\"]",
        "[shell, \"${/id}\"]",
        "[./mine, --evaluate, \"${/id}\"]",
        "[bash, -euo, pipefail, -c, 'charge \"$1\"', sh, \"${/id}\"]",
        "[bash, -o, pipefail, a.sh, \"${/id}\"]",
        "[awk, -F, \",\", -f, a.awk, \"${/id}\"]",
        "[sed, -n, -e, p, \"${/file}\"]",
        "[sed, s/a/b/, \"${/file}\"]",
        "[python3, -W, ignore, -Bc, print(1), \"${/id}\"]",
        "[python3, -m, charge, \"${/id}\"]",
        "[perl, charge.pl, -ne, \"${/id}\"]",
        "[sh, --, -script, \"${/id}\"]",
        "[perl, -I, lib, -w, charge.pl, \"${/id}\"]",
        "[node, -r, ./a, charge.js, \"${/id}\"]",
        "[java, -Xmx1g, -cp, a.jar, Main, \"${/id}\"]",
        "[timeout, -s, KILL, -k1, \"5\", ./charge, \"${/id}\"]",
        "[env, -u, A, -i, B=1, ./charge, \"${/id}\"]",
        "[env, \"A=${/id}\", ./charge]",
        "[env, \"ID=${/id}\", sh, -c, 'charge \"$ID\"']",
        "[flock, f, ./charge, \"${/id}\"]",
        "[sudo, -u, bob, ./charge, \"${/id}\"]",
        "[taskset, -c, \"0\", nice, -n, \"5\", ./charge, \"${/id}\"]",
        "[/lib64/ld-linux-x86-64.so.2, ./charge, \"${/id}\"]",
        "[find, /tmp, -name, a, -exec, ./charge, \"${/id}\", ;]",
        "[deno, run, --allow-net, charge.ts, \"${/id}\"]",
        "[./charge, sh, \"${/id}\"]",
        "[./charge, --to, time, \"${/id}\"]",
        "[aws, s3, cp, script, \"${/id}\"]",
        "[./script, \"${/id}\"]",
        "[./notify, --kind, exec, --id, \"${/id}\"]",
        "[./notify, node, --id, \"${/id}\"]",
        "[sh, -c, 'charge \"$@\"', sh, -x, \"${/id}\"]",
        "[docker, exec, c, sh, -ec, 'charge \"$1\"', sh, \"${/id}\"]",
        "[make-charge, \"${/id}\"]",
        "[tar, -cf, a.tar, \"${/file}\"]",
        "[git, tag, \"${/id}\"]",
        "[psql, -v, \"x=${/x}\", -f, a.sql]",
        "[curl, -d, \"${/x}\", http://localhost/]",
    };
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
        once_arena arena = {0};
        (void)snprintf(text, sizeof text, HEAD "handler: {exec: %s}\n", fine[i]);
        (void)loaded(&arena, text);
        once_arena_release(&arena);
    }
}

static void refused_for(const char *text, const char *runner)
{
    once_arena arena = {0};
    lines all = {0};
    once_spec *spec = NULL;
    char expected[100];
    (void)snprintf(expected, sizeof expected, "may be run as a program here, by '%s'", runner);
    if (parse(&arena, (once_bytes){text, strlen(text)}, &all, &spec, NULL) == ONCE_OK || !strstr(all.text, expected))
        fail_msg("%s: %s", text, all.text);
    once_arena_release(&arena);
}

/* Each of them, by itself. */
static void f78_whatever_runs_its_arguments_is_known(void **state)
{
    (void)state;
    static const char *const commands[] = {"sh",          "bash",    "dash",
                                           "ash",         "ksh",     "mksh",
                                           "zsh",         "fish",    "busybox",
                                           "csh",         "tcsh",    "python",
                                           "pypy",        "perl",    "ruby",
                                           "node",        "nodejs",  "deno",
                                           "bun",         "php",     "lua",
                                           "luajit",      "tclsh",   "expect",
                                           "awk",         "gawk",    "mawk",
                                           "sed",         "pwsh",    "java",
                                           "make",        "env",     "nice",
                                           "ionice",      "nohup",   "timeout",
                                           "xargs",       "setsid",  "stdbuf",
                                           "sudo",        "doas",    "time",
                                           "chrt",        "taskset", "flock",
                                           "unshare",     "nsenter", "chroot",
                                           "setarch",     "setpriv", "runuser",
                                           "strace",      "ltrace",  "gdb",
                                           "exec",        "command", "ssh",
                                           "rsh",         "watch",   "parallel",
                                           "script",      "eval",    "su",
                                           "rbash",       "nawk",    "toybox",
                                           "prlimit",     "linux64", "dbus-run-session",
                                           "systemd-run", "gosu",    "tini",
                                           "gmake",       "vi",      "vim",
                                           "ed",          "sqlite3", "/lib64/ld-linux-x86-64.so.2"};
    static const char *const options[] = {"-exec",     "-execdir",     "-ok",       "-okdir",  "--eval", "--exec",
                                          "--execute", "--expression", "--command", "--print", "--run"};
    char text[400];
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        (void)snprintf(text, sizeof text, HEAD "handler:\n  exec: [%s, \"${/x}\"]\n", commands[i]);
        refused_for(text, commands[i]);
    }
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        (void)snprintf(text, sizeof text, HEAD "handler:\n  exec: [./mine, %s, \"${/x}\"]\n", options[i]);
        refused_for(text, "./mine");
        (void)snprintf(text, sizeof text, HEAD "handler:\n  exec: [./mine, \"%s=${/x}\"]\n", options[i]);
        refused_for(text, "./mine");
    }
}

static void f78_a_variable_that_says_what_is_run_is_no_place_for_a_field(void **state)
{
    (void)state;
    static const char *const variables[] = {"PATH",          "ENV",
                                            "BASH_ENV",      "SHELL",
                                            "EDITOR",        "VISUAL",
                                            "PAGER",         "IFS",
                                            "PS4",           "PROMPT_COMMAND",
                                            "LD_PRELOAD",    "GCONV_PATH",
                                            "BASH_FUNC_x%%", "GIT_SSH",
                                            "SSH_ASKPASS",   "PYTHONPATH",
                                            "PERL5OPT",      "RUBYOPT",
                                            "NODE_OPTIONS",  "LUA_INIT",
                                            "PHPRC",         "JAVA_TOOL_OPTIONS",
                                            "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS",
                                            "MAKEFLAGS"};
    char text[400];
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        (void)snprintf(text, sizeof text, HEAD "handler:\n  exec: [env, \"%s=${/x}\", ./charge]\n", variables[i]);
        refused_for(text, "env");
    }
    once_arena arena = {0};
    (void)loaded(&arena, HEAD "handler:\n  exec: [env, \"MY_PATH=${/x}\", ./charge]\n");
    once_arena_release(&arena);
}

static void f67_streams(void **state)
{
    (void)state;
    refused_once(HEAD "handler:\n  mode: stream\n  exec:\n    - ./charge\n    - \"${/id}\"\n",
                 "p.yaml:9: 'exec' has the placeholder '${/id}', but with 'mode: stream' one process serves many "
                 "messages; remove it, and read "
                 "the message from standard input");
    refused_once(HEAD "handler:\n  exec: [a]\n  window: 5\n",
                 "p.yaml:7: 'window' is for 'mode: stream'; add that, or remove it");
    refused_once(HEAD "handler:\n  exec: [a]\n  mode: message\n  processes: 5\n",
                 "p.yaml:8: 'processes' is for 'mode: stream'; add that, or remove it");
    refused_once(HEAD "handler:\n  exec: [a]\n  mode: steam\n",
                 "p.yaml:7: 'mode' cannot be 'steam'; did you mean 'stream'?");
    refused_once(HEAD "handler:\n  exec: [a]\n  mode: once\n",
                 "p.yaml:7: 'mode' cannot be 'once'; it is one of: message, stream");
    refused_once(HEAD "handler: {exec: [a], mode: stream, window: 0}\n",
                 "p.yaml:5: 'window' is 0; write a number from 1 to 65536");
    refused_once(HEAD "handler: {exec: [a], mode: stream, window: 65537}\n",
                 "p.yaml:5: 'window' is 65537; write a number from 1 to 65536");
    refused_once(HEAD "handler: {exec: [a], mode: stream, processes: 65}\n",
                 "p.yaml:5: 'processes' is 65; write a number from 1 to 64");
}

static void f67_environment(void **state)
{
    (void)state;
    static const char words[] =
        " cannot be the name of a variable; use letters, digits and _, and no digit at the beginning";
    static const char *const names[] = {"MY-VAR", "1A", "\"\"", "\"A=B\"", "\"É\""};
    char text[300], expected[300];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const bool quoted = names[i][0] == '"';
        (void)snprintf(text, sizeof text, HEAD "handler:\n  exec: [a]\n  env:\n    A: b\n    %s: x\n", names[i]);
        (void)snprintf(expected, sizeof expected, "p.yaml:9: 'env': '%.*s'%s", (int)strlen(names[i]) - 2 * quoted,
                       names[i] + quoted, words);
        refused_once(text, expected);
    }
    refused_once(HEAD "handler:\n  exec: [a]\n  env: {ONCE_KEY: x}\n",
                 "p.yaml:7: 'env': variables that begin with ONCE_ are set by once itself; rename 'ONCE_KEY'");
    refused_once(HEAD "handler:\n  exec: [a]\n  env: [A=b]\n",
                 "p.yaml:7: 'env' must be a map of variables, not a list; write 'env: {API_TOKEN: \"env:API_TOKEN\"}'");
    refused_once(
        HEAD "handler:\n  exec: [a]\n  env: {}\n",
        "p.yaml:7: 'env' must be a map of variables, not an empty one; write 'env: {API_TOKEN: \"env:API_TOKEN\"}'");
    refused_once(HEAD "handler:\n  exec: [a]\n  env: {A: [x]}\n",
                 "p.yaml:7: 'env': 'A' must be text, not a list; write a text, env:NAME or file:PATH");
    refused_once(HEAD "handler:\n  exec: [a]\n  env:\n    A:\n",
                 "p.yaml:8: 'env': 'A' must be text, not nothing; write a text, env:NAME or file:PATH");
    static const char *const templates[] = {"${/id}", "a ${source:key}", "file:/run/${/id}", "${"};
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++) {
        (void)snprintf(text, sizeof text, HEAD "handler:\n  exec: [a]\n  env:\n    A: \"%s\"\n", templates[i]);
        refused_once(text,
                     "p.yaml:8: 'env': 'A' has ${, but env values are not templates; use an argument, or read the "
                     "message from standard input (a text that has it can stand in a file: file:PATH)");
    }
    refused_once(HEAD "handler:\n  exec: [a]\n  env: {A: x, A: y}\n",
                 "p.yaml:7: field 'A' is there twice: it is already on line 7; remove one");
    once_arena arena = {0};
    (void)loaded(&arena, HEAD "handler: {exec: [a], env: {ONCER: \"$x $\", once_key: \"$ {y}\"}}\n");
    once_arena_release(&arena);
}

/* Whatever is wrong around it: a value of `env` may be a secret. */
static void no_mistake_shows_a_value_of_the_environment(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "handler:\n  exec: [a]\n  env: s3cret\n",
        "handler:\n  exec: [a]\n  env: [s3cret]\n",
        "handler:\n  exec: [a]\n  env: {A: {s3cret: b}}\n",
        "handler:\n  exec: [a]\n  env: {A-: s3cret}\n",
        "handler:\n  exec: [a]\n  env: {A: \"env:s3cret x\"}\n",
        "handler:\n  exec: [a]\n  env: {A: \"s3cret${\"}\n",
        "handler:\n  exec: [a]\n  env: {ONCE_A: s3cret}\n",
        "handler:\n  sql: [DELETE FROM t]\n  env: {A: s3cret}\n",
        "handler:\n  exec: [a]\n  env: {A: s3cret, A: s3cret}\n",
        "handler:\n  exec: [a]\n  env:\n    A: s3cret: x\n",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char text[400];
        once_arena arena = {0};
        lines all = {0};
        once_error err = {0};
        once_spec *spec = NULL;
        (void)snprintf(text, sizeof text, HEAD "%s", wrong[i]);
        assert_int_equal(parse(&arena, (once_bytes){text, strlen(text)}, &all, &spec, &err), ONCE_E_CONFIG);
        assert_null(strstr(all.text, "s3cret"));
        assert_null(strstr(err.text, "s3cret"));
        once_arena_release(&arena);
    }
    refused_once(HEAD "handler:\n  exec: [a]\n  env: {A: \"env:\"}\n",
                 "p.yaml:7: 'env': 'A' refers to a variable, but 'env:' is not followed by a name; write env:NAME");
    refused_once(HEAD "handler:\n  exec: [a]\n  env: {A: \"file:\"}\n",
                 "p.yaml:7: 'env': 'A' refers to a file, but 'file:' is not followed by a path; write file:PATH");
}

static void f67_fields_that_do_not_fit_the_effect(void **state)
{
    (void)state;
    static const struct {
        const char *handler, *expected;
    } cases[] = {
        {"exec: [a]\n  already: [t.id]", "'already' is for 'sql': a command says it with exit code 66; remove it"},
        {"exec: [a]\n  rejected: [t.id]", "'rejected' is for 'sql': a command says it with exit code 64; remove it"},
        {"callback: f\n  already: [t.id]", "'already' is for 'sql': a callback returns it; remove it"},
        {"callback: f\n  rejected: [t.id]", "'rejected' is for 'sql': a callback returns it; remove it"},
        {"dead: x\n  rejected: [t.id]", "'rejected' has no meaning with 'dead'; remove it"},
        {"exec: [a]\n  retry: {on: [t.id]}", "'on' names faults of statements, and is for 'sql'; remove it"},
        {"callback: f\n  retry: {on: [t.id]}", "'on' names faults of statements, and is for 'sql'; remove it"},
        {"sql: [DELETE FROM t]\n  mode: stream", "'mode' is for 'exec'; remove it"},
        {"callback: f\n  mode: message", "'mode' is for 'exec'; remove it"},
        {"dead: x\n  mode: message", "'mode' is for 'exec'; remove it"},
        {"sql: [DELETE FROM t]\n  window: 1", "'window' is for 'exec'; remove it"},
        {"callback: f\n  processes: 1", "'processes' is for 'exec'; remove it"},
        {"callback: f\n  env: {A: b}", "'env' is for 'exec'; remove it"},
        {"dead: x\n  natural: true", "'natural' has no meaning with 'dead'; remove it"},
        {"dead: x\n  unknown: hold", "'unknown' has no meaning with 'dead'; remove it"},
        {"sql: [DELETE FROM t]\n  unknown: hold",
         "'unknown' has no meaning with 'sql': effects in the store's own database are never unknown; remove it"},
        {"exec: [a]\n  callback: f", "'handler' has two effects, 'exec' and 'callback'; keep one"},
        {"sql: [DELETE FROM t]\n  exec: [a]", "'handler' has two effects, 'sql' and 'exec'; keep one"},
        {"sql: [DELETE FROM t]\n  exec: [a]\n  mode: stream", "'handler' has two effects, 'sql' and 'exec'; keep one"},
        {"callback: f\n  dead: x", "'handler' has two effects, 'callback' and 'dead'; keep one"},
        {"exec: [a]\n  unknown: ask", "'unknown' cannot be 'ask'; it is one of: hold, retry"},
        {"exec: [a]\n  natural: yes", "'natural' must be true or false, not 'yes'"},
        {"exec: [a]\n  drain: 1s", "unknown field 'drain' in a handler; it belongs in a pipeline"},
        {"exec: [a]\n  lease: 199ms",
         "'lease' is 199ms, too short to be extended while the effect of 'handler' runs; write 200ms or more"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[400], expected[400];
        (void)snprintf(text, sizeof text, HEAD "handler:\n  %s\n", cases[i].handler);
        (void)snprintf(expected, sizeof expected, "p.yaml:7: %s", cases[i].expected);
        refused_once(text, expected);
    }
    refused(HEAD "handler: {callback: \"\"}\n", "p.yaml:5: 'callback' is empty; write a name");
}

static void f95_a_budget_by_time(void **state)
{
    (void)state;
    once_arena arena = {0};
    const once_retry *retry =
        &loaded(&arena, HEAD HANDLER "retry: {for: 1h}\n")->handlers[0].retry; /* the time alone counts */
    assert_int_equal(retry->for_ms, 3600000);
    assert_int_equal(retry->attempts, ONCE_ANY_ATTEMPTS);
    retry = &loaded(&arena, HEAD HANDLER "retry: {for: 1h, attempts: 12}\n")
                 ->handlers[0]
                 .retry; /* both: whichever comes first */
    assert_true(retry->for_ms == 3600000 && retry->attempts == 12);
    const once_spec *spec = loaded(
        &arena, HEAD
        "type: \"${/t}\"\nretry: {attempts: 3}\nhandlers:\n  a: {exec: [a], retry: {for: 5m}}\n  b: {exec: [b]}\n");
    assert_true(spec->handlers[0].retry.for_ms == 300000 &&
                spec->handlers[0].retry.attempts == 3); /* the number is the pipeline's */
    assert_true(spec->handlers[1].retry.for_ms == 0 && spec->handlers[1].retry.attempts == 3);
    spec = loaded(
        &arena, HEAD
        "type: \"${/t}\"\nretry: {for: 5m}\nhandlers:\n  a: {exec: [a], retry: {attempts: 2}}\n  b: {exec: [b]}\n");
    assert_true(spec->handlers[0].retry.for_ms == 300000 && spec->handlers[0].retry.attempts == 2);
    assert_true(spec->handlers[1].retry.for_ms == 300000 && spec->handlers[1].retry.attempts == ONCE_ANY_ATTEMPTS);
    spec = loaded(&arena, HEAD "handler: {exec: [a], retry: {for: 5m}}\n");
    assert_int_equal(spec->handlers[0].retry.attempts, ONCE_ANY_ATTEMPTS);
    refused_once(HEAD HANDLER "retry: {for: 0s}\n", "p.yaml:6: 'for' cannot be 0; write a duration such as 1h");
    refused_once(HEAD HANDLER "retry: {for: forever}\n", "p.yaml:6: 'for' cannot be forever; the longest is 36500d");
    once_arena_release(&arena);
}

/* What core/flight.h works out: a server needs longer than a file of ours. */
static void f95_the_shortest_lease_depends_on_the_store(void **state)
{
    (void)state;
    static const char *const servers[] = {"redis://127.0.0.1/0", "rediss://127.0.0.1", "postgres://h/db",
                                          "postgresql://h/db"};
    once_arena arena = {0};
    char text[400];
    for (size_t i = 0; i < sizeof servers / sizeof *servers; i++) {
        static const char form[] =
            "consumer: c\nstore: \"%s\"\nsource: {file: {path: f}}\nkey: \"${/id}\"\nlease: %s\nhandler: {exec: [a]}\n";
        (void)snprintf(text, sizeof text, form, servers[i], "999ms");
        refused_once(text, "p.yaml:5: 'lease' is 999ms, too short to be extended while the effect of 'handler' runs "
                           "and the server answers; write 1s or more");
        (void)snprintf(text, sizeof text, form, servers[i], "1s");
        assert_int_equal(loaded(&arena, text)->handlers[0].lease_ms, 1000);
    }
    assert_int_equal(loaded(&arena, HEAD "lease: 200ms\nhandler: {exec: [a]}\n")->handlers[0].lease_ms, 200);
    once_arena_release(&arena);
}

static void f67_defaults_that_do_not_fit(void **state)
{
    (void)state;
    once_arena arena = {0};
    refused_once(
        HEAD HANDLER "unknown: retry\n",
        "p.yaml:6: 'unknown' has no meaning here: effects in the store's own database are never unknown; remove it");
    refused_once(HEAD HANDLER "drain: 10\n",
                 "p.yaml:6: 'drain' is '10' without a unit; write 10s for seconds (ms, s, m, h, d)");
    refused_once(HEAD HANDLER "drain: forever\n", "p.yaml:6: 'drain' cannot be forever; the longest is 1d");
    refused_once(HEAD "lease: 50ms\ntype: \"${/t}\"\nhandlers:\n  a: {sql: [DELETE FROM t]}\n  b: {exec: [a]}\n",
                 "p.yaml:5: 'lease' is 50ms, too short to be extended while the effect of handler 'b' runs; write "
                 "200ms or more");
    refused_once(HEAD "lease: 50\nhandler: {exec: [a]}\n",
                 "p.yaml:5: 'lease' is '50' without a unit; write 50s for seconds (ms, s, m, h, d)");
    refused_once(HEAD "type: \"${/t}\"\noperation: o\nhandlers:\n  a: {exec: [a], natural: true}\n  b: {sql: [DELETE "
                      "FROM t]}\n  c: {dead: x}\n",
                 "p.yaml:9: handler 'a' and handler 'b' share the operation 'o', but only one is 'natural'; make them "
                 "equal, or change the operation");
    (void)loaded(&arena, HEAD "lease: 50ms\n" HANDLER);
    (void)loaded(&arena,
                 HEAD "type: \"${/t}\"\noperation: o\nnatural: true\nhandlers:\n  a: {exec: [a]}\n  c: {dead: x}\n");
    once_arena_release(&arena);
}

/* --- f67: mistakes ------------------------------------------------------------------------------------------------ */

static void f67_typo_in_a_field_name(void **state)
{
    (void)state;
    refused(HEAD HANDLER "retry: {atempts: 3}\n", "p.yaml:6: unknown field 'atempts'; did you mean 'attempts'?");
    refused(HEAD HANDLER "fingreprint: body\n", "p.yaml:6: unknown field 'fingreprint'; did you mean 'fingerprint'?");
    refused(HEAD HANDLER "Remember: 7d\n", "p.yaml:6: unknown field 'Remember'; did you mean 'remember'?");
    refused(HEAD "handler:\n  sqll: [x]\n", "p.yaml:6: unknown field 'sqll'; did you mean 'sql'?");
    refused(HEAD HANDLER "message-max: 1MB\n", "p.yaml:6: unknown field 'message-max'; did you mean 'message_max'?");
    refused_once("consumer: p\nstore: memory\nsource: {flie: {path: x}}\nkey: \"${/id}\"\n" HANDLER,
                 "p.yaml:3: unknown field 'flie'; did you mean 'file'?");
    refused(HEAD HANDLER "source2: {}\n", "p.yaml:6: unknown field 'source2'; did you mean 'source'?");
    refused(HEAD HANDLER "handlr:\n  sql: x\n", "p.yaml:6: unknown field 'handlr'; did you mean 'handler'?");
}

static void f67_field_that_is_like_no_other(void **state)
{
    (void)state;
    refused(HEAD HANDLER "retry: {jitter: full}\n",
            "p.yaml:6: unknown field 'jitter' in 'retry'; it has: attempts, for, backoff, on");
    refused(HEAD "handler: {sql: [{do: DELETE FROM t, zzzzzz: 1}]}\n",
            "p.yaml:5: unknown field 'zzzzzz' in a statement; it has: do, rows, else");
    refused(
        HEAD HANDLER "\"a\\nb\": 1\n",
        "p.yaml:6: unknown field 'a b' in a pipeline; it has: consumer, tenant, store, store_id, source, preset, key, "
        "fingerprint, idempotency_salt, remember, ack, "
        "time, type, handlers, handler, operation, lease, timeout, natural, unknown, drain, patience, retry, breaker, "
        "dead_limit, order, locks, on_dead, version, gap, init, batch, workers, waiting_max, "
        "message_max, result_max");
}

static void f67_field_in_the_wrong_place(void **state)
{
    (void)state;
    refused(HEAD HANDLER "attempts: 3\n", "p.yaml:6: unknown field 'attempts'; it belongs inside 'retry'");
    refused(HEAD "handler:\n  dead: no\n  order: \"${/a}\"\n",
            "p.yaml:7: unknown field 'order' in a handler; it belongs in a pipeline");
    refused(HEAD "handler: {sql: {do: DELETE FROM t, rows: 1}}\n",
            "p.yaml:5: 'rows' belongs to one statement; write the statement as an item: '- do: ...'");
}

static void f67_then_is_sql_behind_an_effect_outside(void **state)
{
    (void)state;
#define RUNS HEAD "handler:\n  exec: [\"true\"]\n"
    once_arena arena = {0};
    const once_spec *spec =
        loaded(&arena, RUNS "  then: {sql: [\"UPDATE t SET a = :{result:/id}, b = :{result? as text}\"]}\n");
    const once_handler_spec *h = &spec->handlers[0];
    assert_true(h->bits & ONCE_EFFECT_THEN);
    assert_int_equal(once_then_list(h)->n, 1);
    is(once_then_list(h)->at[0].sql, "UPDATE t SET a = ?1, b = ?2");
    assert_int_equal(once_then_list(h)->at[0].params[0].source, ONCE_SQL_RESULT);
    assert_int_equal(h->then->line, 7);
    refused(RUNS "  then: [DELETE FROM t]\n",
            "p.yaml:7: 'then' must be a map, not a list; write 'then: {sql: [STATEMENT, ...]}'");
    refused(RUNS "  then: {}\n", "p.yaml:7: missing field 'sql' in 'then'; add 'sql: [STATEMENT, ...]'");
    refused(RUNS "  then: {sql: {url: \"sqlite:x\", do: DELETE FROM t}}\n",
            "p.yaml:7: 'then' runs in the store's own database, in the transaction that records the outcome; remove "
            "'url', and write its statements as a list");
    refused(RUNS "  then: {sql: [{do: DELETE FROM t, rows: 1, else: stale}]}\n",
            "p.yaml:7: 'else' has no meaning in 'then': the effect has happened, so with another number of rows the "
            "message is held as unknown; remove it");
    refused(RUNS "  then: {sql: [\"DELETE FROM t WHERE a = :{result:id}\"]}\n",
            "p.yaml:7: 'sql': parameter ':{result:id}' names no field of the result; write ':{result:/id}'");
    refused(RUNS "  then: {sql: [\"DELETE FROM t WHERE a = :{result:hash}\"]}\n",
            "p.yaml:7: 'sql': parameter ':{result:hash}' names no field of the result; write ':{result:/id}'");
#undef RUNS
    refused(HEAD "handler: {sql: [\"DELETE FROM t WHERE a = :{result:/id}\"]}\n",
            "p.yaml:5: 'sql': a parameter names the result of the effect, which only 'then' has; move the statement "
            "there, or name a field of the message, as in ':{/id}'");
    refused(HEAD "handler:\n  sql: [DELETE FROM t]\n  then: {sql: [DELETE FROM u]}\n",
            "p.yaml:7: 'then' is for effects outside of the store: this one commits with its outcome, so write these "
            "statements behind the others in 'sql'; remove it");
    refused(HEAD "handler:\n  dead: no\n  then: {sql: [DELETE FROM u]}\n",
            "p.yaml:7: 'then' has no meaning without an effect; remove it");
    refused(HEAD "handler:\n  sql: {url: \"sqlite:x\", do: DELETE FROM t}\n  then: {sql: [\"DELETE FROM u WHERE a = "
                 ":{result}\"]}\n",
            "p.yaml:7: 'then' names the result of the effect, and 'sql' has none; bind a field of the message");
    once_arena_release(&arena);
}

static void f67_lookup_of_sql(void **state)
{
    (void)state;
#define ASKS(fields) HEAD "handler:\n  sql:\n    url: \"sqlite:x\"\n    do: DELETE FROM t\n    lookup: " fields "\n"
    once_arena arena = {0};
    const once_spec *spec =
        loaded(&arena, ASKS("{select: \"SELECT 1 FROM t WHERE k = :once_idempotency_key\", after: 5s, for: 2h}"));
    const once_handler_spec *h = &spec->handlers[0];
    assert_true(h->bits & ONCE_EFFECT_ASKS);
    assert_true(h->lookup.after_ms == 5000 && h->lookup.for_ms == 7200000);
    is(once_sql_of(h)->lookup.select.at[0].sql, "SELECT 1 FROM t WHERE k = ?1");
    spec = loaded(&arena, ASKS("{select: SELECT 1}"));
    assert_true(spec->handlers[0].lookup.after_ms == 10000 && spec->handlers[0].lookup.for_ms == 3600000);
    refused(
        ASKS("{select: DELETE FROM t}"),
        "p.yaml:9: 'select' must be a SELECT, not 'DELETE FROM t'; it asks whether the effect is there, and changes "
        "nothing");
    refused(ASKS("{after: 1s}"), "p.yaml:9: missing field 'select' in 'lookup'; add 'select: SELECT 1 FROM booked "
                                 "WHERE id = :once_idempotency_key'");
    refused(ASKS("{select: [SELECT 1, SELECT 2]}"), "p.yaml:9: 'select' must be a SELECT, not a list; write 'select: "
                                                    "SELECT 1 FROM booked WHERE id = :once_idempotency_key'");
    refused(ASKS("{select: \"SELECT :{result}\"}"),
            "p.yaml:9: 'sql': a parameter names the result of the effect, which only 'then' has; move the statement "
            "there, or name a field of the message, as in ':{/id}'");
#undef ASKS
    refused(HEAD "handler:\n  sql:\n    do: DELETE FROM t\n    lookup: {select: SELECT 1}\n",
            "p.yaml:8: 'lookup' needs 'url': in the store's own database the outcome is never unknown; remove it");
    once_arena_release(&arena);
}

/* What was sent before the timeout may still be acted on for as long again, whatever the effect is. */
static void f69_the_first_question_waits_for_the_timeout(void **state)
{
    (void)state;
    static const struct {
        const char *begin, *end;
    } effects[] = {
        {"  exec: [./charge]\n  lookup: {exec: [./status]", "}\n"},
        {"  sql: {url: \"sqlite:x\", do: DELETE FROM t, lookup: {select: SELECT 1", "}}\n"},
        {"  http: {post: \"https://pay.example/\", lookup: {get: \"https://pay.example/${key}\"", "}}\n"},
    };
    static const struct {
        const char *above, *handler, *after;
        int64_t wait_ms;
    } cases[] = {
        {"", "", "", 10000}, /* the default of `timeout` */
        {"timeout: 40s\n", "", "", 40000},
        {"timeout: 40s\n", "  timeout: 60s\n", "", 60000},
        {"timeout: 40s\n", "", ", after: 3s", 3000},
        {"timeout: 40s\n", "", ", after: 0s", 0},
    };
    for (size_t i = 0; i < sizeof effects / sizeof *effects; i++)
        for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
            once_arena arena = {0};
            char text[600];
            (void)snprintf(text, sizeof text, HEAD "lease: 5m\n%shandler:\n%s%s%s%s", cases[k].above, cases[k].handler,
                           effects[i].begin, cases[k].after, effects[i].end);
            const once_handler_spec *h = &loaded(&arena, text)->handlers[0];
            assert_true(h->bits & ONCE_EFFECT_ASKS);
            assert_int_equal(h->lookup.after_ms, cases[k].wait_ms);
            once_arena_release(&arena);
        }
}

static void f67_doubled_field(void **state)
{
    (void)state;
    refused_once(HEAD HANDLER "key: \"${/other}\"\n",
                 "p.yaml:6: field 'key' is there twice: it is already on line 4; remove one");
    refused(HEAD "type: \"${/t}\"\nhandlers:\n  a: {dead: x}\n  b: {dead: x}\n  a: {dead: y}\n",
            "p.yaml:9: field 'a' is there twice: it is already on line 7; remove one");
}

static void f67_missing_fields(void **state)
{
    (void)state;
    refused("store: memory\nsource: {file: {path: x}}\nkey: \"${/id}\"\n" HANDLER,
            "p.yaml:1: missing field 'consumer' in a pipeline; add 'consumer: payments'");
    refused("consumer: p\nsource: {file: {path: x}}\nkey: \"${/id}\"\n" HANDLER,
            "p.yaml:1: missing field 'store' in a pipeline; add 'store: sqlite:payments.db'");
    refused("consumer: p\nstore: memory\nkey: \"${/id}\"\n" HANDLER,
            "p.yaml:1: missing field 'source' in a pipeline; add 'source: {file: {path: payments.ndjson}}'");
    refused("consumer: p\nstore: memory\nsource: {}\nkey: \"${/id}\"\n" HANDLER,
            "p.yaml:3: 'source' is empty; write 'file: {path: payments.ndjson}'");
    refused("consumer: p\nstore: memory\nsource:\n  file: {follow: true}\nkey: \"${/id}\"\n" HANDLER,
            "p.yaml:4: missing field 'path' in a file source; add 'path: payments.ndjson'");
    refused("consumer: p\nstore: memory\nsource: {file: {path: x}}\n" HANDLER,
            "p.yaml:4: 'handler' has no key; add 'key: \"${/id}\"' to it, or at the top for all handlers");
    refused(HEAD, "p.yaml:1: missing field 'handlers' in a pipeline; add 'handlers:' with a handler for each type, or "
                  "'handler:'");
    refused(HEAD HANDLER "order: \"${/a}\"\nversion: \"${/v}\"\ngap: {then: run}\n",
            "p.yaml:8: missing field 'wait' in 'gap'; add 'wait: 30s'");
}

static void f67_no_value(void **state)
{
    (void)state;
    refused("consumer:\nstore: memory\nsource: {file: {path: x}}\nkey: \"${/id}\"\n" HANDLER,
            "p.yaml:1: 'consumer' has no value; write 'consumer: payments'");
    refused("consumer: ~\nstore: memory\nsource: {file: {path: x}}\nkey: \"${/id}\"\n" HANDLER,
            "p.yaml:1: 'consumer' has no value; write 'consumer: payments'");
    refused("consumer: \"\"\nstore: memory\nsource: {file: {path: x}}\nkey: \"${/id}\"\n" HANDLER,
            "p.yaml:1: 'consumer' is empty; write a name");
    refused(HEAD "handler:\n",
            "p.yaml:5: 'handler' must be a map, not nothing; write 'sql', 'exec', 'http', 'callback' or 'dead' in it");
    refused(HEAD "handler: {}\n",
            "p.yaml:5: 'handler' has no effect; write 'sql', 'exec', 'http', 'callback' or 'dead' in it");
    refused(HEAD "type: \"${/t}\"\nhandlers: {}\n",
            "p.yaml:6: 'handlers' must be a map by type, not an empty one; write 'TYPE:' and an effect under it");
    refused(HEAD "handler: {sql: []}\n",
            "p.yaml:5: 'sql' must be a list of statements, not an empty list; write '- STATEMENT' lines under it");
    refused(HEAD "handler: {dead: \"\"}\n", "p.yaml:5: 'dead' is empty; write 'dead: unknown type'");
}

static void f67_wrong_type(void **state)
{
    (void)state;
    refused(HEAD HANDLER "retry: 5\n",
            "p.yaml:6: 'retry' must be a map, not a value; write 'retry: {attempts: 12, backoff: 200ms..1m}'");
    refused(HEAD HANDLER "retry: {attempts: five}\n",
            "p.yaml:6: 'attempts' must be a whole number, not 'five'; write 'attempts: 12'");
    refused(HEAD HANDLER "retry: {attempts: 1.5}\n",
            "p.yaml:6: 'attempts' must be a whole number, not '1.5'; write 'attempts: 12'");
    refused(HEAD HANDLER "workers: [4]\n",
            "p.yaml:6: 'workers' must be a whole number, not a list; write 'workers: 4'");
    refused(HEAD HANDLER "remember: {a: b}\n",
            "p.yaml:6: 'remember' must be a duration, not a map; write 'remember: 7d'");
    refused("consumer: p\nstore: memory\nsource: {file: {path: x, follow: yes}}\nkey: \"${/id}\"\n" HANDLER,
            "p.yaml:3: 'follow' must be true or false, not 'yes'");
    refused("consumer: p\nstore: memory\nsource: {file: payments.ndjson}\nkey: \"${/id}\"\n" HANDLER,
            "p.yaml:3: 'file' must be a map, not a value; write 'file: {path: payments.ndjson}'");
    refused(HEAD "handler: [sql]\n",
            "p.yaml:5: 'handler' must be a map, not a list; write 'sql', 'exec', 'http', 'callback' or 'dead' in it");
    refused(HEAD "type: \"${/t}\"\nhandlers: [a]\n",
            "p.yaml:6: 'handlers' must be a map by type, not a list; write 'TYPE:' and an effect under it");
    refused(
        HEAD "handler: {sql: [[DELETE FROM t]]}\n",
        "p.yaml:5: 'do' must be text, not a list; write 'do: UPDATE orders SET status = 'paid' WHERE id = :order_id'");
    refused(HEAD "handler: {sql: [SELECT 1], already: {a: b}}\n",
            "p.yaml:5: 'already' must be a list of texts, not a map; write 'already: [payments.id]'");
    refused("- a\n- b\n", "p.yaml:1: the file must be a map of fields; write 'field: value' lines");
    refused("hello\n", "p.yaml:1: the file must be a map of fields; write 'field: value' lines");
}

static void f67_numbers_out_of_range(void **state)
{
    (void)state;
    refused(HEAD HANDLER "workers: 0\n", "p.yaml:6: 'workers' is 0; write a number from 1 to 1024");
    refused(HEAD HANDLER "workers: -1\n", "p.yaml:6: 'workers' is -1; write a number from 1 to 1024");
    refused(HEAD HANDLER "workers: 99999999999999999999\n",
            "p.yaml:6: 'workers' is 99999999999999999999; write a number from 1 to 1024");
    refused(HEAD HANDLER "retry: {attempts: 0}\n", "p.yaml:6: 'attempts' is 0; write a number from 1 to 1000000");
    refused(HEAD HANDLER "batch: {max: 65537}\n", "p.yaml:6: 'max' is 65537; write a number from 1 to 65536");
    refused(HEAD "handler: {sql: [{do: DELETE FROM t, rows: -1}]}\n",
            "p.yaml:5: 'rows' is -1; write a number from 0 to 1000000000");
    refused(HEAD HANDLER "message_max: 0B\n", "p.yaml:6: 'message_max' is 0B; write a size from 1B to 1GiB");
    refused(HEAD HANDLER "message_max: 99999999999GiB\n",
            "p.yaml:6: 'message_max' is 99999999999GiB; write a size from 1B to 1GiB");
    refused(HEAD HANDLER "message_max: 1000\n",
            "p.yaml:6: 'message_max' is '1000' without a unit; write 1000B for bytes (B, KiB, MiB, GiB)");
    refused(HEAD HANDLER "message_max: big\n", "p.yaml:6: 'message_max' must be a size, not 'big'; write a whole "
                                               "number and a unit (B, KiB, MiB, GiB), as in 1MiB");
    refused(HEAD HANDLER "message_max: -1MiB\n", "p.yaml:6: 'message_max' must be a size, not '-1MiB'; write a whole "
                                                 "number and a unit (B, KiB, MiB, GiB), as in 1MiB");
}

static void f18_number_without_a_unit_is_no_duration(void **state)
{
    (void)state;
    refused(HEAD HANDLER "lease: 30\n",
            "p.yaml:6: 'lease' is '30' without a unit; write 30s for seconds (ms, s, m, h, d)");
    refused(HEAD HANDLER "remember: 0\n",
            "p.yaml:6: 'remember' is '0' without a unit; write 0s for seconds (ms, s, m, h, d)");
    refused(HEAD HANDLER "retry: {backoff: 200..1m}\n",
            "p.yaml:6: 'backoff' is '200' without a unit; write 200s for seconds (ms, s, m, h, d)");
    refused(HEAD HANDLER "timeout: 10 s\n",
            "p.yaml:6: 'timeout': duration '10 s' has the unknown unit ' s'; the units are ms, s, m, h, d");
    refused(HEAD HANDLER "timeout: 10sec\n",
            "p.yaml:6: 'timeout': duration '10sec' has the unknown unit 'sec'; the units are ms, s, m, h, d");
    refused(HEAD HANDLER "timeout: 1.5s\n",
            "p.yaml:6: 'timeout': duration '1.5s' is not a whole number; use a smaller unit");
    refused(HEAD HANDLER "timeout: soon\n", "p.yaml:6: 'timeout': 'soon' is not a duration; write a whole number and a "
                                            "unit, as in 200ms, 10s, 5m, 1h or 7d, or forever");
}

static void f21_negative_and_overflowing_durations(void **state)
{
    (void)state;
    refused(HEAD HANDLER "remember: -7d\n", "p.yaml:6: 'remember': duration '-7d' is negative; write 7d");
    refused(HEAD HANDLER "remember: 99999999999999999999d\n",
            "p.yaml:6: 'remember': duration '99999999999999999999d' is too long; for no end write forever");
    refused(HEAD HANDLER "remember: 106751991168d\n",
            "p.yaml:6: 'remember': duration '106751991168d' is too long; for no end write forever");
    refused(HEAD HANDLER "remember: 36501d\n",
            "p.yaml:6: 'remember' is 36501d; write a duration from 1ms to 36500d, or forever");
    refused(HEAD HANDLER "remember: 9223372036854775807ms\n",
            "p.yaml:6: 'remember': duration '9223372036854775807ms' is too long; for no end write forever");
    refused(HEAD HANDLER "lease: 2d\n", "p.yaml:6: 'lease' is 2d; write a duration from 1ms to 1d");
    refused(HEAD HANDLER "lease: forever\n", "p.yaml:6: 'lease' cannot be forever; the longest is 1d");
    refused(HEAD "handler: {dead: x, remember: -1s}\n", "p.yaml:5: 'remember': duration '-1s' is negative; write 7d");
    refused(HEAD HANDLER "retry: {backoff: 1s..9223372036854775807d}\n",
            "p.yaml:6: 'backoff': duration '9223372036854775807d' is too long; for no end write forever");
}

static void f17_zero_is_not_unset(void **state)
{
    (void)state;
    refused(HEAD HANDLER "lease: 0s\n", "p.yaml:6: 'lease' cannot be 0; write a duration such as 30s");
    refused(HEAD HANDLER "remember: 0d\n", "p.yaml:6: 'remember' cannot be 0; write a duration such as 7d");
    refused(HEAD HANDLER "timeout: 0ms\n", "p.yaml:6: 'timeout' cannot be 0; write a duration such as 10s");
    refused(HEAD HANDLER "retry: {backoff: 0s..1m}\n",
            "p.yaml:6: 'backoff' cannot be 0; write a duration such as 200ms..1m");
    refused(HEAD HANDLER "order: \"${/a}\"\nversion: \"${/v}\"\ngap: {wait: 0s}\n",
            "p.yaml:8: 'wait' cannot be 0; write a duration such as 30s");
    once_arena arena = {0};
    assert_int_equal(loaded(&arena, HEAD HANDLER "batch: {wait: 0s}\n")->batch_wait_ms, 0);
    once_arena_release(&arena);
}

static void f67_ranges(void **state)
{
    (void)state;
    refused(HEAD HANDLER "retry: {backoff: 5s}\n", "p.yaml:6: 'backoff' must be a range of durations, not '5s'; write "
                                                   "the shortest and the longest, as in 200ms..1m");
    refused(HEAD HANDLER "retry: {backoff: 1m..200ms}\n",
            "p.yaml:6: 'backoff' runs backwards; write 'backoff: 200ms..1m'");
    refused(HEAD HANDLER "retry: {backoff: ..1m}\n", "p.yaml:6: 'backoff': duration is empty; write a whole number and "
                                                     "a unit, as in 200ms, 10s, 5m, 1h or 7d, or forever");
    refused(HEAD HANDLER "retry: {backoff: 1s...1m}\n",
            "p.yaml:6: 'backoff': '.1m' is not a duration; write a whole number and a unit, as in 200ms, 10s, 5m, 1h "
            "or 7d, or forever");
}

static void f67_bad_references(void **state)
{
    (void)state;
    refused("consumer: p\nstore: memory\nsource: {file: {path: x}}\nkey: payment_id\n" HANDLER,
            "p.yaml:4: 'key' is the same for every message: 'payment_id'; write 'key: \"${/payment_id}\"'");
    refused(
        "consumer: p\nstore: memory\nsource: {file: {path: x}}\nkey: \"${payment_id}\"\n" HANDLER,
        "p.yaml:4: 'key': '${payment_id}' is not understood; a field of the body is '${/payment_id}', else there are "
        "${json:/text:/field}, ${header:NAME}, ${coordinates}, ${hash} and ${time:/field:5m}");
    refused("consumer: p\nstore: memory\nsource: {file: {path: x}}\nkey: \"${/id\"\n" HANDLER,
            "p.yaml:4: 'key': '${/id' has no closing '}'; a literal '${' is written '$${'");
    refused(HEAD HANDLER "fingerprint: [amount]\n",
            "p.yaml:6: 'fingerprint': 'amount' is not a JSON pointer; write /amount");
    refused(HEAD HANDLER "fingerprint: [/a, /b, /a]\n", "p.yaml:6: 'fingerprint' names '/a' twice; remove one");
    refused(HEAD HANDLER "fingerprint: []\n",
            "p.yaml:6: 'fingerprint' has an empty list; write body, none, or a list of up to 100 pointers");
    refused(HEAD HANDLER "fingerprint: amount\n",
            "p.yaml:6: 'fingerprint' cannot be 'amount'; write body, none, or a list as in [/amount]");
    refused(HEAD HANDLER "fingerprint:\n",
            "p.yaml:6: 'fingerprint' must be body, none or a list of pointers, not nothing; write 'fingerprint: body'");
    refused(HEAD HANDLER "time: \"at ${/ts}\"\n",
            "p.yaml:6: 'time' must be one placeholder and nothing else; write 'time: \"${/sent_at}\"'");
    refused(HEAD HANDLER "order: \"${/o}\"\nversion: \"7\"\n",
            "p.yaml:7: 'version' must be one placeholder and nothing else; write 'version: \"${/version}\"'");
    refused("consumer: p\nstore: memory\nsource: {file: {path: x, headers: h}}\nkey: \"${/id}\"\n" HANDLER,
            "p.yaml:3: 'headers': 'h' is not a JSON pointer; write /h");
    refused("consumer: p\nstore: payments.db\nsource: {file: {path: x}}\nkey: \"${/id}\"\n" HANDLER,
            "p.yaml:2: 'store' must be a URL, not 'payments.db'; write 'store: sqlite:payments.db'");
    refused("consumer: p\nstore: \"sqlite:\"\nsource: {file: {path: x}}\nkey: \"${/id}\"\n" HANDLER,
            "p.yaml:2: 'sqlite:' names no file; write 'store: sqlite:payments.db', or memory");
    refused("consumer: p\nstore: \"sqlite::memory:\"\nsource: {file: {path: x}}\nkey: \"${/id}\"\n" HANDLER,
            "p.yaml:2: 'sqlite::memory:' names no file; write 'store: sqlite:payments.db', or memory");
    refused("consumer: p\nstore: sqlit:x\nsource: {file: {path: x}}\nkey: \"${/id}\"\n" HANDLER,
            "p.yaml:2: unknown store 'sqlit:'; did you mean 'sqlite:'?");
    refused("consumer: p\nstore: ftp://x\nsource: {file: {path: x}}\nkey: \"${/id}\"\n" HANDLER,
            "p.yaml:2: unknown store 'ftp:'; write sqlite:PATH, postgres://HOST/DATABASE, redis://HOST, or memory for "
            "a try");
    refused_once("consumer: c\nstore: 'host=h password=hunter2'\nsource: {file: {path: in}}\nkey: \"${/id}\"\nhandler: "
                 "{exec: [a]}\n",
                 "p.yaml:2: 'store' must be a URL; write 'store: postgres://USER@HOST:PORT/DATABASE'");
    refused("consumer: p\nstore: memory:x\nsource: {file: {path: x}}\nkey: \"${/id}\"\n" HANDLER,
            "p.yaml:2: 'memory:' takes nothing after the colon; write 'store: memory'");
}

static void f67_words(void **state)
{
    (void)state;
    refused(HEAD "handler: {sql: [{do: DELETE FROM t, rows: 1, else: stlae}]}\n",
            "p.yaml:5: 'else' cannot be 'stlae'; did you mean 'stale'?");
    refused(HEAD "handler: {sql: [{do: DELETE FROM t, rows: 1, else: nothing}]}\n",
            "p.yaml:5: 'else' cannot be 'nothing'; it is one of: dead, stale, rejected, retry");
    refused(HEAD "handler: {sql: [{do: DELETE FROM t, else: stale}]}\n",
            "p.yaml:5: 'else' needs 'rows'; add 'rows: 1', or remove it");
    refused(HEAD HANDLER "ack: never\n", "p.yaml:6: 'ack' cannot be 'never'; it is one of: after_effect, after_accept");
}

static void f67_rules_between_fields(void **state)
{
    (void)state;
    refused_once(HEAD HANDLER "version: \"${/v}\"\n",
                 "p.yaml:6: 'version' needs 'order'; add 'order: \"${/order_id}\"', or remove 'version'");
    refused_once(HEAD HANDLER "order: \"${/o}\"\ngap: {wait: 1s}\n",
                 "p.yaml:7: 'gap' needs 'version'; add 'version: \"${/version}\"', or remove 'gap'");
    refused_once(HEAD HANDLER "type: \"${/t}\"\nhandlers: {a: {dead: x}}\n",
                 "p.yaml:5: 'handler' and 'handlers' exclude each other; keep one");
    refused_once(HEAD "handlers: {a: {dead: x}}\n",
                 "p.yaml:5: 'handlers' needs 'type' to choose by; add 'type: \"${/type}\"', or use 'handler'");
    refused_once(HEAD "handler:\n  sql: [DELETE FROM t]\n  dead: no\n",
                 "p.yaml:7: 'handler' has two effects, 'sql' and 'dead'; keep one");
    refused_once(HEAD "type: \"${/t}\"\nhandlers:\n  a: {key: \"${/k}\"}\n",
                 "p.yaml:7: handler 'a' has no effect; write 'sql', 'exec', 'http', 'callback' or 'dead' in it");
    refused_once(HEAD "handler:\n  dead: no\n  already: [t.id]\n",
                 "p.yaml:7: 'already' has no meaning with 'dead'; remove it");
    refused_once("consumer: p\nstore: memory\nsource: {file: {path: \"-\", follow: true}}\nkey: \"${/id}\"\n" HANDLER,
                 "p.yaml:3: 'follow' is for files: standard input is read until it ends; remove it");
}

static void f67_coordinates_of_standard_input(void **state)
{
    (void)state;
    refused_once(
        "consumer: p\nstore: memory\nsource: {file: {path: \"-\"}}\nkey: \"${coordinates}\"\n" HANDLER,
        "p.yaml:4: 'key' uses ${coordinates}, but standard input has none that stay the same; use fields, or a file");
    refused_once(
        "consumer: p\nstore: memory\nsource: {file: {path: \"-\"}}\nkey: \"${/id}\"\ntype: \"${/t}\"\n"
        "handlers:\n  a: {dead: x}\n  b:\n    dead: x\n    key: \"x${coordinates}\"\n",
        "p.yaml:10: 'key' uses ${coordinates}, but standard input has none that stay the same; use fields, or a file");
    once_arena arena = {0};
    (void)loaded(&arena, "consumer: p\nstore: memory\nsource: {file: {path: x}}\nkey: \"${coordinates}\"\n" HANDLER);
    once_arena_release(&arena);
}

static void f67_operations_are_shared_only_when_said(void **state)
{
    (void)state;
    once_arena arena = {0};
    refused_once(HEAD "type: \"${/t}\"\nhandlers:\n  a: {dead: x}\n  b: {dead: x, operation: a}\n",
                 "p.yaml:8: handler 'a' and handler 'b' have the same operation 'a'; write 'operation: a' in both to "
                 "share their keys, or change one");
    refused_once(
        HEAD "type: \"${/t}\"\nhandlers:\n  a: {dead: x, operation: o}\n  b: {dead: x, operation: o, key: \"${/k}\"}\n",
        "p.yaml:8: handler 'a' and handler 'b' share the operation 'o' but not 'key' and 'fingerprint'; make them "
        "equal, or change "
        "the operation");
    once_spec *spec =
        loaded(&arena, HEAD "type: \"${/t}\"\nhandlers:\n  a: {dead: x, operation: o}\n  b: {dead: x, operation: o}\n");
    assert_ptr_equal(once_spec_handler_by_operation(spec, ONCE_BYTES("o")), &spec->handlers[0]);
    spec = loaded(&arena, HEAD "operation: o\ntype: \"${/t}\"\nhandlers:\n  a: {dead: x}\n  b: {dead: x}\n");
    is(spec->handlers[1].operation, "o");
    once_arena_release(&arena);
}

static void f67_names(void **state)
{
    (void)state;
    char text[1000], name[300];
    memset(name, 'x', sizeof name);
    (void)snprintf(text, sizeof text,
                   "consumer: %.*s\nstore: memory\nsource: {file: {path: x}}\nkey: \"${/id}\"\n" HANDLER, 201, name);
    refused(text, "p.yaml:1: 'consumer' is longer than 200 bytes; shorten it");
    (void)snprintf(text, sizeof text,
                   "consumer: %.*s\nstore: memory\nsource: {file: {path: x}}\nkey: \"${/id}\"\n" HANDLER, 200, name);
    once_arena arena = {0};
    assert_int_equal(loaded(&arena, text)->consumer.len, 200);
    once_arena_release(&arena);
    refused("consumer: \"a\\tb\"\nstore: memory\nsource: {file: {path: x}}\nkey: \"${/id}\"\n" HANDLER,
            "p.yaml:1: 'consumer' has a control character in it; use printable characters");
    refused(HEAD "type: \"${/t}\"\nhandlers:\n  \"\": {dead: x}\n",
            "p.yaml:7: a type in 'handlers' is empty; write a name");
    refused(HEAD "handler: {dead: x, operation: \"a\\x07\"}\n",
            "p.yaml:5: 'operation' has a control character in it; use printable characters");
}

static void f67_sql_mistakes_have_their_line(void **state)
{
    (void)state;
    refused(HEAD "handler:\n  sql:\n    - DELETE FROM t\n    - DELETE FROM t WHERE id = ?\n",
            "p.yaml:8: 'sql': parameter '?' is not bound by once; write ':name' or ':{/pointer}'");
    refused(HEAD "handler:\n  sql:\n    - rows: 1\n      do: \"DELETE FROM t WHERE id = 'x\"\n",
            "p.yaml:8: 'sql': string that begins with 'x has no end; close it with '");
}

static void f78_sql_that_is_not_the_users_to_say(void **state)
{
    (void)state;
    refused(HEAD "handler: {sql: [COMMIT]}\n",
            "p.yaml:5: 'sql': statement cannot be 'COMMIT': transaction and connection belong to once; remove it");
    refused(HEAD "handler: {sql: [DELETE FROM t; COMMIT]}\n",
            "p.yaml:5: 'sql': more than one statement; make each an item of its own in the list");
}

static void f67_several_mistakes_at_once(void **state)
{
    (void)state;
    once_arena arena = {0};
    lines all = {0};
    once_spec *spec = NULL;
    once_error err = {0};
    once_bytes text = ONCE_BYTES("retry: {atempts: 1, backoff: 5}\nlease: 30\nstore: x\nhandler: {forward: {to: x}}\n");
    assert_int_equal(parse(&arena, text, &all, &spec, &err), ONCE_E_CONFIG);
    assert_string_equal(
        all.text,
        "p.yaml:1: unknown field 'atempts'; did you mean 'attempts'?\n"
        "p.yaml:1: 'backoff' must be a range of durations, not '5'; write the shortest and the longest, as in "
        "200ms..1m\n"
        "p.yaml:1: missing field 'consumer' in a pipeline; add 'consumer: payments'\n"
        "p.yaml:1: missing field 'source' in a pipeline; add 'source: {file: {path: payments.ndjson}}'\n"
        "p.yaml:2: 'lease' is '30' without a unit; write 30s for seconds (ms, s, m, h, d)\n"
        "p.yaml:3: 'store' must be a URL, not 'x'; write 'store: sqlite:x'\n"
        "p.yaml:4: 'forward' effects are not in this build; use 'exec' or 'sql'\n"
        "p.yaml:4: 'handler' has no key; add 'key: \"${/id}\"' to it, or at the top for all handlers\n");
    once_arena_release(&arena);
}

static void f67_ten_mistakes_are_enough(void **state)
{
    (void)state;
    once_arena arena = {0};
    lines all = {0};
    once_spec *spec = NULL;
    char text[2000] = HEAD HANDLER;
    for (int i = 0; i < 14; i++)
        (void)snprintf(text + strlen(text), sizeof text - strlen(text), "qqqqqqqq%d: 1\n", 10 + i);
    assert_int_equal(parse(&arena, (once_bytes){text, strlen(text)}, &all, &spec, NULL), ONCE_E_CONFIG);
    assert_int_equal(all.n, 11);
    assert_non_null(strstr(all.text, "p.yaml:15: unknown field 'qqqqqqqq19'"));
    assert_null(strstr(all.text, "p.yaml:16:"));
    assert_non_null(strstr(all.text, "and 4 more\n"));
    once_arena_release(&arena);
}

/* --- what is not in this build ------------------------------------------------------------------------------------ */

static void f67_parts_that_come_later_are_refused_by_name(void **state)
{
    (void)state;
    static const char *const sources[] = {"http", "servicebus", "redis", "nats"};
    static const char *const effects[] = {"forward"};
    static const char *const fields[] = {"sinks", "saga", "sagas", "admin"};
    static const char *const inner[] = {"emit", "stale", "saga"};
    static const char *const stores[] = {"ledger:d",  "postgres://h", "postgresql://h",
                                         "redis://h", "rediss://h",   "dynamodb://r/t"};
    char text[1000], expected[300];
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        (void)snprintf(text, sizeof text, "consumer: p\nstore: memory\nsource: {%s: {a: b}}\nkey: \"${/id}\"\n" HANDLER,
                       sources[i]);
        (void)snprintf(expected, sizeof expected,
                       "p.yaml:3: '%s' sources are not in this build; use 'file: {path: ...}'", sources[i]);
        not_here(text, expected);
        refused_once(text, expected);
    }
    for (size_t i = 0; i < sizeof effects / sizeof *effects; i++) {
        (void)snprintf(text, sizeof text, HEAD "handler:\n  %s: {a: b}\n", effects[i]);
        (void)snprintf(expected, sizeof expected, "p.yaml:6: '%s' effects are not in this build; use 'exec' or 'sql'",
                       effects[i]);
        not_here(text, expected);
        refused_once(text, expected);
    }
    for (size_t i = 0; i < sizeof stores / sizeof *stores; i++) {
        if (once__store_find(stores[i], strcspn(stores[i], ":"))) continue; /* this build has it */
        (void)snprintf(text, sizeof text,
                       "consumer: p\nstore: %s\nsource: {file: {path: x}}\nkey: \"${/id}\"\n" HANDLER, stores[i]);
        (void)snprintf(expected, sizeof expected,
                       "p.yaml:2: '%.*s:' stores are not in this build; write sqlite:PATH, postgres://HOST/DATABASE, "
                       "redis://HOST, or memory for a try",
                       (int)strcspn(stores[i], ":"), stores[i]);
        not_here(text, expected);
    }
    for (size_t i = 0; i < sizeof fields / sizeof *fields + sizeof inner / sizeof *inner; i++) {
        bool top = i < sizeof fields / sizeof *fields;
        const char *name = top ? fields[i] : inner[i - sizeof fields / sizeof *fields];
        (void)snprintf(text, sizeof text, HEAD "%s%s: true\n", top ? HANDLER : "handler:\n  dead: x\n  ", name);
        (void)snprintf(expected, sizeof expected, "p.yaml:%d: '%s' is not in this build; ", top ? 6 : 7, name);
        once_arena arena = {0};
        once_error err = {0};
        once_spec *spec = NULL;
        lines all = {0};
        assert_int_equal(parse(&arena, (once_bytes){text, strlen(text)}, &all, &spec, &err), ONCE_E_UNSUPPORTED);
        assert_memory_equal(err.text, expected, strlen(expected));
        once_arena_release(&arena);
    }
}

/* --- YAML itself -------------------------------------------------------------------------------------------------- */

static void f67_tab_in_the_indentation(void **state)
{
    (void)state;
    refused(HEAD "handler:\n\tdead: x\n", "p.yaml:6: tab in the indentation; use spaces");
    refused(HEAD "handler:\n  \tdead: x\n", "p.yaml:6: tab in the indentation; use spaces");
    refused("\tconsumer: x\n", "p.yaml:1: tab in the indentation; use spaces");
}

static void f67_yaml_beyond_the_subset(void **state)
{
    (void)state;
    refused("consumer: &a payments\n", "p.yaml:1: anchors ('&name') are not used here; write the value out");
    refused("consumer: x\nstore: *a\n", "p.yaml:2: aliases ('*name') are not used here; write the value out");
    refused(HEAD "handlers:\n  *: {dead: x}\n",
            "p.yaml:6: aliases ('*name') are not used here; write \"*\" in quotes when the name is a star");
    refused("consumer: !!str x\n",
            "p.yaml:1: tags ('!name') are not used here; remove the tag, or put the value in quotes");
    refused("consumer: x\nretry: !map {attempts: 1}\n",
            "p.yaml:2: tags ('!name') are not used here; remove the tag, or put the value in quotes");
    refused("a: 1\n<<: {b: 1}\n", "p.yaml:2: merge keys ('<<') are not used here; write the fields out");
    refused("%YAML 1.1\n---\nconsumer: x\n", "p.yaml:1: directives ('%...') are not used here; remove the line");
    refused(HEAD HANDLER "---\nconsumer: y\n", "p.yaml:6: a second document begins here; write one pipeline per file");
    refused("? [a, b]\n: c\n", "p.yaml:1: a field name must be plain text; put it in quotes");
    refused("consumer: \"a\\0b\"\n", "p.yaml:1: NUL in a value; remove the escape");
}

static void f67_yaml_syntax(void **state)
{
    (void)state;
    refused("consumer: a: b\n", "p.yaml:1: ':' inside a value; put the value in quotes, or write it as a block with |");
    refused("consumer: x\nstore: memory:\n",
            "p.yaml:2: ':' inside a value; put the value in quotes, or write it as a block with |");
    refused("consumer: x\nstore\nkey: 1\n",
            "p.yaml:3: a line without ':'; write 'field: value', and check indentation and quotes");
    refused("consumer: \"x\nstore: 1\n", "p.yaml:3: a quoted text has no end; close the quote");
    refused("source: {file: {path: x}\nkey: 1\n",
            "p.yaml:2: '{' is not closed; write '}', and put templates inside {} in quotes");
    refused("source: [a\nkey: 1\n", "p.yaml:2: '[' is not closed; write ']', and put templates inside [] in quotes");
    refused("consumer: x\n store: y\n",
            "p.yaml:2: ':' inside a value; put the value in quotes, or write it as a block with |");
    refused("consumer: @x\n", "p.yaml:1: a character that cannot begin a value; put the value in quotes");
    refused("consumer: a\x01z\n",
            "p.yaml:1: a control character; remove it, or write it as an escape in double quotes");
}

static void f67_empty_files(void **state)
{
    (void)state;
    const char *words = "p.yaml:1: the file is empty; a pipeline begins with 'consumer: NAME'";
    refused("", words);
    refused("\n\n", words);
    refused("# only a comment\n", words);
    refused("---\n", words);
    refused("~\n", words);
}

static void f67_bytes_that_are_no_text(void **state)
{
    (void)state;
    refused_as(ONCE_BYTES("consumer: x\nstore: a\0b\n"), ONCE_E_CONFIG,
               "p.yaml:2: NUL byte in the file; it must be UTF-8 text");
    refused("consumer: x\n\nstore: \xff\xfe\n", "p.yaml:3: the file is not UTF-8; save it as UTF-8");
    refused("consumer: \xc3\n", "p.yaml:1: the file is not UTF-8; save it as UTF-8");
    refused("consumer: \xed\xa0\x80\n", "p.yaml:1: the file is not UTF-8; save it as UTF-8");
    refused("consumer: \xc0\x80\n", "p.yaml:1: the file is not UTF-8; save it as UTF-8");
    refused("consumer: \xf5\x80\x80\x80\n", "p.yaml:1: the file is not UTF-8; save it as UTF-8");
}

static void f67_deep_nesting(void **state)
{
    (void)state;
    char text[400000] = "consumer: x\nkey: ";
    size_t len = strlen(text);
    memset(text + len, '[', 300000);
    refused(text, "p.yaml:2: nesting deeper than 32 levels; make it flatter");
    len = 0;
    for (int depth = 0; depth < 200; depth++)
        len += (size_t)snprintf(text + len, sizeof text - len, "%*sa:\n", depth, "");
    refused(text, "p.yaml:33: nesting deeper than 32 levels; make it flatter");
}

static void f67_huge_file(void **state)
{
    (void)state;
    once_bytes text = {malloc((1 << 20) + 1), (1 << 20) + 1};
    assert_non_null(text.data);
    memset((char *)(uintptr_t)text.data, '#', text.len);
    refused_as(text, ONCE_E_CONFIG, "p.yaml: the file is larger than 1 MiB; is it a pipeline?");
    text.len--;
    refused_as(text, ONCE_E_CONFIG, "p.yaml:1: the file is empty; a pipeline begins with 'consumer: NAME'");
    free((char *)(uintptr_t)text.data);
}

/* --- files -------------------------------------------------------------------------------------------------------- */

static void f67_file_missing_or_unreadable(void **state)
{
    (void)state;
    char path[] = "/tmp/once-config-XXXXXX", expected[200];
    once_arena arena = {0};
    once_error err = {0};
    once_spec *spec = NULL;
    assert_int_equal(once_config_load("/nonexistent/p.yaml", &arena, &spec, &err), ONCE_E_CONFIG);
    assert_string_equal(err.text, "/nonexistent/p.yaml: the file cannot be opened: No such file or directory; check "
                                  "the path of the pipeline file");
    assert_int_equal(once_config_load("/", &arena, &spec, &err), ONCE_E_CONFIG);
    assert_string_equal(err.text, "/: the file cannot be read: Is a directory; check the path of the pipeline file");
    assert_null(spec);

    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, full, strlen(full)), (ssize_t)strlen(full));
    assert_int_equal(once_config_load(path, &arena, &spec, &err), ONCE_OK);
    is(spec->file, path);
    spec = NULL;
    assert_int_equal(ftruncate(fd, 5 << 20), 0);
    assert_int_equal(once_config_load(path, &arena, &spec, &err), ONCE_E_CONFIG);
    (void)snprintf(expected, sizeof expected, "%s: the file is larger than 1 MiB; is it a pipeline?", path);
    assert_string_equal(err.text, expected);
    if (geteuid() != 0) {
        assert_int_equal(fchmod(fd, 0), 0);
        assert_int_equal(once_config_load(path, &arena, &spec, &err), ONCE_E_CONFIG);
        (void)snprintf(expected, sizeof expected,
                       "%s: the file cannot be opened: Permission denied; check the path of the pipeline file", path);
        assert_string_equal(err.text, expected);
    }
    (void)close(fd);
    (void)unlink(path);
    once_arena_release(&arena);
}

/* --- the text that a store remembers ------------------------------------------------------------------------------ */

static bool add_operation(void *user, once_bytes operation, once_bytes text)
{
    lines *all = user;
    char line[400];
    (void)snprintf(line, sizeof line, "%.*s %.*s", TEXT(operation), TEXT(text));
    collect(all, line);
    return true;
}

static void the_text_of_an_operation_changes_with_key_and_fingerprint_only(void **state)
{
    (void)state;
    once_arena arena = {0};
    lines all = {0}, other = {0};
    assert_int_equal(once_config_each_operation(loaded(&arena, full), &arena, add_operation, &all, NULL), ONCE_OK);
    assert_string_equal(
        all.text,
        "payment.received "
        "{\"key\":\"${/payment_id}\",\"fingerprint\":[\"/amount\",\"/order_id\"],\"tenant\":\"${header:tenant}\"}\n"
        "refund {\"key\":\"r:${/refund_id}\",\"fingerprint\":\"none\",\"tenant\":\"${header:tenant}\"}\n"
        "* {\"key\":\"${/payment_id}\",\"fingerprint\":[\"/amount\",\"/order_id\"],\"tenant\":\"${header:tenant}\"}\n");
    const char *shared =
        HEAD "operation: o\ntype: \"${/t}\"\nfingerprint: none\nhandlers: {a: {dead: x}, b: {dead: x}}\nworkers: 2\n";
    assert_int_equal(once_config_each_operation(loaded(&arena, shared), &arena, add_operation, &other, NULL), ONCE_OK);
    assert_string_equal(other.text, "o {\"key\":\"${/id}\",\"fingerprint\":\"none\"}\n");
    const char *natural = HEAD "operation: o\nfingerprint: none\nnatural: true\nunknown: retry\nhandler: {exec: [a]}\n";
    memset(&other, 0, sizeof other);
    assert_int_equal(once_config_each_operation(loaded(&arena, natural), &arena, add_operation, &other, NULL), ONCE_OK);
    assert_string_equal(other.text, "o {\"key\":\"${/id}\",\"fingerprint\":\"none\"}\n");
    once_arena_release(&arena);
}

/* --- the tables as text ------------------------------------------------------------------------------------------- */

/* ONCE_UPDATE_DOCS=1 writes the page instead of comparing it. */
static void the_committed_reference_is_what_the_tables_print(void **state)
{
    (void)state;
    char path[4096];
    once_buf page;
    once_buf_init(&page, 1 << 20);
    assert_true(once_config_reference(&page));
    (void)snprintf(path, sizeof path, "%s/docs/configuration.md", ONCE_SOURCE_ROOT);
    if (getenv("ONCE_UPDATE_DOCS")) {
        FILE *out = fopen(path, "w");
        assert_non_null(out);
        assert_int_equal(fwrite(page.data, 1, page.len, out), page.len);
        assert_int_equal(fclose(out), 0);
    }
    FILE *file = fopen(path, "r");
    if (!file) fail_msg("%s cannot be opened", path);
    char *committed = calloc(1, (1 << 20) + 1);
    assert_non_null(committed);
    size_t len = fread(committed, 1, 1 << 20, file);
    (void)fclose(file);
    if (len != page.len || memcmp(committed, page.data, len) != 0)
        fail_msg("%s is not what the tables say; run this test with ONCE_UPDATE_DOCS=1", path);
    free(committed);
    once_buf_release(&page);
}

static void every_field_has_a_description_and_examples_load(void **state)
{
    (void)state;
    once_buf help;
    once_buf_init(&help, 1 << 20);
    assert_true(once_config_help(&help));
    assert_non_null(
        strstr(help.data, "\n  backoff        The wait before the next try: random, below a limit that starts"));
    assert_null(strchr(help.data, '`'));
    assert_null(strstr(help.data, "(null)"));
    once_buf_clear(&help);
    assert_true(once_config_reference(&help));
    assert_null(strstr(help.data, "(null)"));
    /* the first example of the page is a whole pipeline */
    char *start = strstr(help.data, "```yaml\n");
    assert_non_null(start);
    char *end = strstr(start + 8, "```");
    assert_non_null(end);
    *end = '\0';
    once_arena arena = {0};
    (void)loaded(&arena, start + 8);
    /* and the one of handlers is a part of one */
    start = strstr(end + 1, "```yaml\nhandlers:\n");
    assert_non_null(start);
    end = strstr(start + 8, "```");
    assert_non_null(end);
    *end = '\0';
    char with_head[4000];
    (void)snprintf(with_head, sizeof with_head, HEAD "type: \"${/t}\"\n%s", start + 8);
    const once_spec *spec = loaded(&arena, with_head);
    assert_ptr_equal(spec->handlers[1].effect, &once__effect_exec);
    assert_int_equal(once_exec_of(&spec->handlers[2])->mode, ONCE_EXEC_STREAM);
    once_arena_release(&arena);
    once_buf_release(&help);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_pipeline_is_read),
        cmocka_unit_test(handlers_inherit_and_override),
        cmocka_unit_test(defaults_are_the_documented_ones),
        cmocka_unit_test(a_handler_is_found_by_type_and_by_operation),
        cmocka_unit_test(a_statement_may_stand_alone_and_durations_have_all_units),
        cmocka_unit_test(byte_order_mark_crlf_and_document_start_are_fine),
        cmocka_unit_test(commands_and_callbacks_are_read),
        cmocka_unit_test(hold_and_natural_are_inherited_where_they_mean_something),
        cmocka_unit_test(f81_exit_codes_are_read),
        cmocka_unit_test(a_bound_on_what_waits),
        cmocka_unit_test(f67_exec_is_a_list_and_not_a_command_line),
        cmocka_unit_test(f78_a_field_of_the_message_is_no_program),
        cmocka_unit_test(f78_whatever_runs_its_arguments_is_known),
        cmocka_unit_test(f78_a_variable_that_says_what_is_run_is_no_place_for_a_field),
        cmocka_unit_test(f67_streams),
        cmocka_unit_test(f67_environment),
        cmocka_unit_test(no_mistake_shows_a_value_of_the_environment),
        cmocka_unit_test(f67_fields_that_do_not_fit_the_effect),
        cmocka_unit_test(f67_defaults_that_do_not_fit),
        cmocka_unit_test(f95_a_budget_by_time),
        cmocka_unit_test(f95_the_shortest_lease_depends_on_the_store),
        cmocka_unit_test(f67_typo_in_a_field_name),
        cmocka_unit_test(f67_field_that_is_like_no_other),
        cmocka_unit_test(f67_field_in_the_wrong_place),
        cmocka_unit_test(f67_then_is_sql_behind_an_effect_outside),
        cmocka_unit_test(f67_lookup_of_sql),
        cmocka_unit_test(f69_the_first_question_waits_for_the_timeout),
        cmocka_unit_test(f67_doubled_field),
        cmocka_unit_test(f67_missing_fields),
        cmocka_unit_test(f67_no_value),
        cmocka_unit_test(f67_wrong_type),
        cmocka_unit_test(f67_numbers_out_of_range),
        cmocka_unit_test(f18_number_without_a_unit_is_no_duration),
        cmocka_unit_test(f21_negative_and_overflowing_durations),
        cmocka_unit_test(f17_zero_is_not_unset),
        cmocka_unit_test(f67_ranges),
        cmocka_unit_test(f67_bad_references),
        cmocka_unit_test(f67_words),
        cmocka_unit_test(f67_rules_between_fields),
        cmocka_unit_test(f67_coordinates_of_standard_input),
        cmocka_unit_test(f67_operations_are_shared_only_when_said),
        cmocka_unit_test(f67_names),
        cmocka_unit_test(f67_sql_mistakes_have_their_line),
        cmocka_unit_test(f78_sql_that_is_not_the_users_to_say),
        cmocka_unit_test(f67_several_mistakes_at_once),
        cmocka_unit_test(f67_ten_mistakes_are_enough),
        cmocka_unit_test(f67_parts_that_come_later_are_refused_by_name),
        cmocka_unit_test(f67_tab_in_the_indentation),
        cmocka_unit_test(f67_yaml_beyond_the_subset),
        cmocka_unit_test(f67_yaml_syntax),
        cmocka_unit_test(f67_empty_files),
        cmocka_unit_test(f67_bytes_that_are_no_text),
        cmocka_unit_test(f67_deep_nesting),
        cmocka_unit_test(f67_huge_file),
        cmocka_unit_test(f67_file_missing_or_unreadable),
        cmocka_unit_test(the_text_of_an_operation_changes_with_key_and_fingerprint_only),
        cmocka_unit_test(the_committed_reference_is_what_the_tables_print),
        cmocka_unit_test(every_field_has_a_description_and_examples_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
