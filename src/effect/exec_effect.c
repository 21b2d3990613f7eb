/* The effect `exec`: its part of the pipeline file, and the driver of each mode. Values of `env` may be secrets: no
 * message shows one, nor a reference that is written wrongly, which may be a secret, too. */
#include <assert.h>
#include <stdio.h>

#include "core/config_values.h"
#include "effect/effect.h"
#include "effect/exec.h"
#include "effect/stream_line.h"

#include "base/banned.h"

#define MAX_ARGUMENTS 64

/* --- arguments ---------------------------------------------------------------------------------------------------- */

/* A command line as the list that it should have been: "[some, command]". */
typedef struct word_list {
    char text[200];
} word_list;

static word_list words_of(once_bytes line, bool more)
{
    word_list list = {"[COMMAND, ARGUMENT"};
    const once_config_shown shown = once_config_show(line);
    /* A line that a shell or YAML would read differently is not split into words here. */
    if (strpbrk(shown.text, "\"'\\|&;<>()$`*?~#{}[],:") == NULL && strlen(shown.text) == line.len && line.len > 0) {
        size_t len = 0;
        bool inside = false;
        for (const char *c = shown.text; *c; c++) {
            if (*c != ' ' && !inside)
                len += (size_t)snprintf(list.text + len, sizeof list.text - len, "%s", len == 0 ? "[" : ", ");
            inside = *c != ' ';
            if (inside) len += (size_t)snprintf(list.text + len, sizeof list.text - len, "%c", *c);
        }
    }
    const size_t len = strlen(list.text);
    (void)snprintf(list.text + len, sizeof list.text - len, "%s", more ? ", ...]" : "]");
    return list;
}

static bool check_command(once_config *config, const once_node *list, const once_template *command)
{
    const once_node *item = list->first;
    if (!once_template_is_literal(command)) {
        once_config_wrong(config, ONCE_E_CONFIG, item->line,
                          "'exec' must begin with a command that is the same for every message, not '%s'; write 'exec: "
                          "[./charge, ...]'",
                          once_config_show(item->text).text);
        return false;
    }
    if (memchr(item->text.data, ' ', item->text.len) && !memchr(item->text.data, '/', item->text.len)) {
        once_config_wrong(config, ONCE_E_CONFIG, item->line, "'exec': the command is one word, not '%s'; write %s",
                          once_config_show(item->text).text, words_of(item->text, item->next != NULL).text);
        return false;
    }
    return true;
}

static const once_template *read_argument(once_config *config, const once_config_field *field, const once_node *item)
{
    if (item->kind == ONCE_NODE_SCALAR && !item->none && item->text.len == 0) {
        once_config_wrong(config, ONCE_E_CONFIG, item->line, "'exec' has an empty element; remove it");
        return NULL;
    }
    return once__config_template(config, field, item);
}

static bool read_exec(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    if (node->kind == ONCE_NODE_SCALAR && !node->none) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "'exec' is not a command line; write a list: exec: %s",
                          words_of(node->text, false).text);
        return false;
    }
    if (node->kind != ONCE_NODE_LIST || node->count == 0) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "'exec' must be a list, not %s; write 'exec: %s'",
                          node->kind == ONCE_NODE_LIST ? "an empty one" : once_node_kind_text(node), field->example);
        return false;
    }
    if (node->count > MAX_ARGUMENTS) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line,
                          "'exec' has %zu elements, and %d are the most; put the others into a script", node->count,
                          MAX_ARGUMENTS);
        return false;
    }
    const once_template **argv = once_arena_new(config->arena, const once_template *, node->count);
    if (!argv) {
        config->nomem = true;
        return false;
    }
    bool ok = true;
    size_t n = 0;
    for (const once_node *item = node->first; item; item = item->next) {
        argv[n] = read_argument(config, field, item);
        ok = argv[n++] && ok;
    }
    if (!ok || !check_command(config, node, argv[0])) return false;
    const once_exec_command command = {argv, n};
    once__config_put(field, out, &command, sizeof command);
    return true;
}

/* --- environment -------------------------------------------------------------------------------------------------- */

static bool has_template(once_bytes text)
{
    for (size_t i = 0; i + 1 < text.len; i++)
        if (text.data[i] == '$' && text.data[i + 1] == '{') return true;
    return false;
}

static bool check_variable(once_config *config, const once_node *node)
{
    const once_config_shown name = once_config_show(node->name);
    if (!once__config_is_variable(node->name)) {
        once_config_wrong(
            config, ONCE_E_CONFIG, node->name_line,
            "'env': '%s' cannot be the name of a variable; use letters, digits and _, and no digit at the beginning",
            name.text);
    } else if (node->name.len >= 5 && memcmp(node->name.data, "ONCE_", 5) == 0) {
        once_config_wrong(config, ONCE_E_CONFIG, node->name_line,
                          "'env': variables that begin with ONCE_ are set by once itself; rename '%s'", name.text);
    } else if (node->kind != ONCE_NODE_SCALAR || node->none) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line,
                          "'env': '%s' must be text, not %s; write a text, env:NAME or file:PATH", name.text,
                          once_node_kind_text(node));
    } else if (has_template(node->text)) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line,
                          "'env': '%s' has ${, but env values are not templates; use an argument, or read the message "
                          "from standard input (a text that has it can stand in a file: file:PATH)",
                          name.text);
    } else {
        char what[sizeof name.text + 10];
        (void)snprintf(what, sizeof what, "'env': '%s'", name.text);
        return once__config_reference(config, what, node);
    }
    return false;
}

static bool read_env(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_exec_spec *exec = out;
    if (node->kind != ONCE_NODE_MAP || node->count == 0) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line,
                          "'env' must be a map of variables, not %s; write 'env: %s'",
                          node->kind == ONCE_NODE_MAP ? "an empty one" : once_node_kind_text(node), field->example);
        return false;
    }
    once_written *env = once_arena_new(config->arena, once_written, node->count);
    if (!env) {
        config->nomem = true;
        return false;
    }
    bool ok = true;
    size_t n = 0;
    for (const once_node *item = node->first; item; item = item->next) {
        ok = check_variable(config, item) && ok;
        env[n++] = (once_written){.name = item->name, .value = item->text, .line = item->line};
    }
    exec->env = env;
    exec->n_env = n;
    return ok;
}

/* --- exit codes --------------------------------------------------------------------------------------------------- */

enum { EXIT_CODES = 256 };

/* 1..255, written as one would; 0: it is none. */
static int read_code(once_bytes text)
{
    int code = 0;
    if (text.len == 0 || text.len > 3 || text.data[0] == '0') return 0;
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] < '0' || text.data[i] > '9') return 0;
        code = 10 * code + (text.data[i] - '0');
    }
    return code < EXIT_CODES ? code : 0;
}

static bool read_outcome(once_bytes text, once_outcome *out)
{
    for (int i = 0; i < ONCE_OUTCOMES; i++) {
        if (!once__is_text(text, once_outcome_name((once_outcome)i))) continue;
        *out = (once_outcome)i;
        return true;
    }
    return false;
}

/* 0 is always done: with another meaning of success, a command that is replaced by another one would lose messages. */
static bool read_exit(once_config *config, const once_node *node, once_outcome *exits)
{
    const once_config_shown name = once_config_show(node->name);
    const int code = read_code(node->name);
    if (once__is_text(node->name, "0"))
        once_config_wrong(config, ONCE_E_CONFIG, node->name_line,
                          "'exit': 0 means done and cannot be changed; let the command end with another code");
    else if (code == 0)
        once_config_wrong(config, ONCE_E_CONFIG, node->name_line,
                          "'exit': '%s' is no exit code; write a number from 1 to 255", name.text);
    else if (node->kind != ONCE_NODE_SCALAR || node->none)
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "'exit': %s must be an outcome, not %s; write '%s: retry'",
                          name.text, once_node_kind_text(node), name.text);
    else if (!read_outcome(node->text, &exits[code]))
        once_config_wrong(
            config, ONCE_E_CONFIG, node->line,
            "'exit': '%s' is no outcome; write done, already, rejected, stale, retry, release, unknown or dead",
            once_config_show(node->text).text);
    else return true;
    return false;
}

static bool read_exits(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_exec_spec *exec = out;
    if (node->kind != ONCE_NODE_MAP || node->count == 0) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line,
                          "'exit' must be a map of exit codes, not %s; write 'exit: %s'",
                          node->kind == ONCE_NODE_MAP ? "an empty one" : once_node_kind_text(node), field->example);
        return false;
    }
    once_outcome *exits = once_arena_new(config->arena, once_outcome, EXIT_CODES);
    if (!exits) {
        config->nomem = true;
        return false;
    }
    for (int code = 0; code < EXIT_CODES; code++) exits[code] = once_exec_exit_usual(code);
    bool ok = true;
    for (const once_node *item = node->first; item; item = item->next) ok = read_exit(config, item, exits) && ok;
    exec->exits = exits;
    return ok;
}

/* --- its fields, and rules between them --------------------------------------------------------------------------- */

static const once_config_word mode_words[] = {
    [ONCE_EXEC_MESSAGE] = {"message", NULL}, [ONCE_EXEC_STREAM] = {"stream", NULL}, {NULL, NULL}};

static const once_config_field lookup_fields[] = {
    {.name = "exec",
     .type = ONCE_CONFIG_CUSTOM,
     .required = true,
     .read = read_exec,
     ONCE_CONFIG_AT(once_exec_lookup, command),
     .shape = "a list: command and arguments",
     .example = "[./charge-status]",
     .text = "The command, written as the `exec` of a handler. The section Commands has its exit codes."},
    {.name = "after",
     .type = ONCE_CONFIG_DURATION,
     ONCE_CONFIG_AT(once_exec_lookup, when.after_ms),
     .min = 0,
     .max = ONCE_CONFIG_LONGEST_MS,
     .example = "10s",
     .standard_text = "the handler's `timeout`",
     .text = "How long to wait before the command is asked for the first time: a request that the attempt sent may "
             "still arrive."},
    {.name = "for",
     .type = ONCE_CONFIG_DURATION,
     ONCE_CONFIG_AT(once_exec_lookup, when.for_ms),
     .min = 1,
     .max = ONCE_CONFIG_LONGEST_MS,
     .example = "1h",
     .standard_text = "`1h`",
     .text = "How long the command is asked again while it does not know. Then `unknown` decides."},
};

static const once_config_section lookup_section = {
    .name = "'lookup'",
    .title = "lookup",
    .text = "A command that is asked what became of an attempt whose outcome is unknown. Its times are counted by\n"
            "the store's clock, from the moment at which the unknown was recorded.",
    .example = "exec: [./charge]\n"
               "lookup: {exec: [./charge-status], after: 30s, for: 2h}\n"
               "unknown: hold\n",
    .fields = lookup_fields,
    .n = sizeof lookup_fields / sizeof *lookup_fields,
};

static const once_config_field fields[] = {
    {.name = "exec",
     .type = ONCE_CONFIG_CUSTOM,
     .read = read_exec,
     ONCE_CONFIG_AT(once_exec_spec, command),
     .shape = "a list: command and arguments",
     .example = "[./charge, \"${/payment_id}\"]",
     .text = "Effect: a command. The message is its standard input, the exit code the outcome. Arguments are "
             "templates; no shell is involved."},
    {.name = "mode",
     .type = ONCE_CONFIG_WORD,
     ONCE_CONFIG_AT(once_exec_spec, mode),
     .words = mode_words,
     .example = "stream",
     .standard_text = "`message`",
     .text = "Of `exec`: `message` starts a process for each message; `stream` keeps processes, which get one line "
             "of JSON per message."},
    {.name = "window",
     .type = ONCE_CONFIG_INTEGER,
     ONCE_CONFIG_AT(once_exec_spec, window),
     .min = 1,
     .max = 65536,
     .example = "64",
     .standard_text = "`64`",
     .text = "Of `mode: stream`: messages that one process may have at a time."},
    {.name = "processes",
     .type = ONCE_CONFIG_INTEGER,
     ONCE_CONFIG_AT(once_exec_spec, processes),
     .min = 1,
     .max = 64,
     .example = "1",
     .standard_text = "`1`",
     .text = "Of `mode: stream`: how many processes are kept."},
    {.name = "unsafe_arguments",
     .type = ONCE_CONFIG_BOOL,
     ONCE_CONFIG_AT(once_exec_spec, unsafe),
     .standard = "false",
     .text = "Of `exec`: allows fields of the message behind `-c`, `-e`, `-E`, `-p`, `--eval`, `-exec` and where an "
             "interpreter or a command that starts others may expect its program. Whoever writes the messages may "
             "then be able to run commands here, if the command executes such an argument."},
    {.name = "exit",
     .type = ONCE_CONFIG_CUSTOM,
     .read = read_exits,
     .shape = "a map of exit codes",
     .example = "{1: retry, 28: unknown}",
     .standard_text = "the table below",
     .text = "Of `exec` with `mode: message`: the meaning of this command's exit codes where it differs from the "
             "table. 0 is always done."},
    {.name = "lookup",
     .type = ONCE_CONFIG_SECTION,
     ONCE_CONFIG_AT(once_exec_spec, lookup),
     .section = &lookup_section,
     .example = "{exec: [./charge-status]}",
     .standard_text = "none",
     .text = "Of `exec` with `mode: message`: a command that is asked what became of an attempt whose outcome is "
             "unknown, before `unknown` decides."},
    {.name = "env",
     .type = ONCE_CONFIG_CUSTOM,
     .read = read_env,
     .shape = "a map of variables",
     .example = "{API_TOKEN: \"env:API_TOKEN\"}",
     .standard_text = "none",
     .text = "Of `exec`: variables of the command besides the fixed ones. A value is a text, or a reference that is "
             "read at the start and never shown: `env:NAME` is a variable of once's own environment, `file:PATH` the"
             " content of a regular file, without one line end at its end. Values are not templates: pass data that "
             "differs between messages in an argument, or read it from standard input."},
};

static const once_exec_spec standard = {.mode = ONCE_EXEC_MESSAGE,
                                        .window = 64,
                                        .processes = 1,
                                        .lookup.when = {.after_ms = ONCE_LOOKUP_TIMEOUT, .for_ms = 3600000}};

static const once_effect_misfit misfits[] = {
    {"already", "is for 'sql': a command says it with exit code 66"},
    {"rejected", "is for 'sql': a command says it with exit code 64"},
    {NULL, NULL},
};

static void check_stream(once_config *config, const once_node *map, const once_exec_spec *exec)
{
    const once_node *workers = once_node_member(map, "workers");
    if (workers)
        once_config_wrong(config, ONCE_E_CONFIG, workers->name_line,
                          "'workers' has no meaning with 'mode: stream': 'window' and 'processes' decide; remove it");
    const once_node *lookup = once_node_member(map, "lookup");
    if (lookup)
        once_config_wrong(config, ONCE_E_CONFIG, lookup->name_line,
                          "'lookup' is for 'mode: message': a process of 'mode: stream' cannot be asked; remove it");
    const once_node *exits = once_node_member(map, "exit"), *item = once_node_member(map, "exec")->first;
    if (exits)
        once_config_wrong(config, ONCE_E_CONFIG, exits->name_line,
                          "'exit' is for 'mode: message': a process of 'mode: stream' answers each message with a "
                          "line; remove it");
    for (size_t i = 0; i < exec->command.n; i++, item = item->next) {
        if (once_template_is_literal(exec->command.argv[i])) continue;
        once_config_wrong(config, ONCE_E_CONFIG, item->line,
                          "'exec' has the placeholder '%s', but with 'mode: stream' one process serves many messages; "
                          "remove it, and read "
                          "the message from standard input",
                          once_config_show(item->text).text);
        return;
    }
}

static void check_message(once_config *config, const once_node *map, const once_exec_spec *exec)
{
    static const char *const of_stream[] = {"window", "processes"};
    for (size_t i = 0; i < sizeof of_stream / sizeof *of_stream; i++) {
        const once_node *found = once_node_member(map, of_stream[i]);
        if (found)
            once_config_wrong(config, ONCE_E_CONFIG, found->name_line,
                              "'%s' is for 'mode: stream'; add that, or remove it", of_stream[i]);
    }
    const once_exec_command *asked = &exec->lookup.command;
    if (!exec->unsafe && exec->command.n > 0)
        (void)once_exec_check_arguments(config, once_node_member(map, "exec"), &exec->command);
    if (!exec->unsafe && asked->n > 0)
        (void)once_exec_check_arguments(config, once_node_member(once_node_member(map, "lookup"), "exec"), asked);
}

static void check(once_config *config, const once_node *map, const once_handler_spec *handler)
{
    const once_exec_spec *exec = once_exec_of(handler);
    (exec->mode == ONCE_EXEC_STREAM ? check_stream : check_message)(config, map, exec);
}

static void conclude(once_handler_spec *handler)
{
    const once_exec_spec *exec = once_exec_of(handler);
    if (exec->mode == ONCE_EXEC_STREAM) handler->slots = exec->window * exec->processes; /* `workers` was refused */
    if (exec->mode == ONCE_EXEC_STREAM || exec->lookup.command.n == 0) return;
    assert(exec->lookup.when.for_ms > 0);
    handler->bits |= ONCE_EFFECT_ASKS;
    handler->lookup = exec->lookup.when;
}

/* --- the page ----------------------------------------------------------------------------------------------------- */

static const char section[] =
    "\n"
    "## Commands\n"
    "\n"
    "`exec` names a command and its arguments, each an element of the list. No shell is involved: spaces, quotes,\n"
    "`*` and `;` in a value are only bytes of one argument. A command without a `/` is looked up in `PATH`.\n"
    "Placeholders are replaced by the values as they are, without the escapes of keys. If a value is at the\n"
    "beginning of an argument and begins with `-`, the command would read it as an option, so the message becomes\n"
    "a dead letter: write `--order=${/order_id}`.\n"
    "\n"
    "A field inside a program (`sh -c`, `python3 -c`...) would run as code. So an interpreter, and a\n"
    "command that starts others (`env`, `timeout`, `xargs`, `sudo`...), must have no placeholder in its\n"
    "arguments up to the program; fields may follow the program, as in\n"
    "`[sh, -c, 'charge \"$1\"', sh, \"${/id}\"]` or `[timeout, 5s, ./charge, \"${/id}\"]`. If an option\n"
    "leaves open which argument is the program, no field is allowed. A field in a variable is fine,\n"
    "`[env, \"ID=${/id}\", ./charge]`, unless the variable decides what is run, as `PATH` does. `make`,\n"
    "`ssh`, `su`, `sqlite3`, `vim` and similar commands get no fields at all. In every other place a\n"
    "field is refused behind `-c`, `-e`, `-E`, `-p`, `--eval`, `-exec` and similar options, because\n"
    "most commands expect something to run there. Where such an option means something else\n"
    "(`mkdir -p`), write `unsafe_arguments: true`, which allows everything. This is a guard against\n"
    "mistakes: it does not notice a command of your own that evaluates its arguments. `once check`\n"
    "names each argument that contains text of a message. Other users of the host can see the arguments\n"
    "of a command, but not the body and not `env`.\n"
    "\n"
    "With `mode: message` a process is started for each message. The body is its standard input. Its standard\n"
    "output is the result that duplicates get (up to `result_max`). Its standard error is shown to operators as\n"
    "the reason if the effect was not done. Its exit code is the outcome:\n"
    "\n"
    "| exit code | outcome |\n"
    "|---|---|\n"
    "| 0 | done: the effect happened |\n"
    "| 64 | rejected: the business says no; not tried again |\n"
    "| 65 | dead: it can never succeed; a dead letter |\n"
    "| 66 | already: the effect had happened before |\n"
    "| 67 | stale: a newer message has been handled |\n"
    "| 69 | release: nothing happened, and the message is not at fault (the other side is away); tried again "
    "after `retry.backoff`, no failure is counted |\n"
    "| 75 | retry: nothing happened; a failure is counted; tried again after `retry.backoff`, within the limits "
    "of `retry` |\n"
    "| 70 and every other | unknown: the effect may have happened; `unknown` decides |\n"
    "| ended by a signal, killed at `timeout` or while stopping | unknown |\n"
    "\n"
    "A program that does not use this table ends with 1 or 2 for any failure, before its effect or after it, and\n"
    "`curl` with 28 for a charge whose answer did not come in time. That is why a code that is not listed is\n"
    "unknown; so is 126 or 127 of a shell that could not run one of its commands. If you know more about your\n"
    "command, write it down: `exit: {1: retry, 7: release, 28: unknown}`. With `retry` and `release` you promise\n"
    "that nothing has happened.\n"
    "\n"
    "With `lookup` a second command is asked what became of an attempt whose outcome is unknown, before the\n"
    "message is held or tried again. It gets the same standard input and the same variables;\n"
    "`ONCE_IDEMPOTENCY_KEY` is that of the attempt, so it can ask the other side for it. It must not change\n"
    "anything. `exit` does not apply to it; its exit code is its answer:\n"
    "\n"
    "| exit code of the lookup | what follows |\n"
    "|---|---|\n"
    "| 0 | done: it happened. Standard output is the result that duplicates get |\n"
    "| 64, 65, 66, 67 | it ended as rejected, dead, already, stale |\n"
    "| 75 | it did not happen, and will not: the attempt counts as failed, and the message is tried again after "
    "`retry.backoff` |\n"
    "| every other, ended by a signal, killed at `timeout` | not known: asked again |\n"
    "\n"
    "The lookup is asked `after` the unknown was recorded, then again with growing pauses, up to the longest of\n"
    "`retry.backoff`. If it still does not know after `for`, the message is held or tried again, as `unknown`\n"
    "says. It must exit with 75 only if nothing can arrive late: a request that is still on its way would then be\n"
    "a second effect. The times of an unknown are set when it is recorded: later changes of `after` and `for` do\n"
    "not apply to it, and if `lookup` is removed it waits for an operator.\n"
    "\n"
    "A command that does not exist, or cannot be executed, is no message's fault: the pipeline does not start.\n"
    "If it disappears later, a run that follows its source waits for it, and a run whose source ends stops with\n"
    "status 3.\n"
    "\n"
    "The environment of a command has `PATH`, `LANG`, the variables in `env`, and these:\n"
    "\n"
    "| variable | is |\n"
    "|---|---|\n"
    "| `ONCE_KEY` | the key, as `once explain` expects it |\n"
    "| `ONCE_IDEMPOTENCY_KEY` | 32 hexadecimal digits, the same for every attempt at this key: pass it to the "
    "other side |\n"
    "| `ONCE_ATTEMPT` | 1, 2, 3...: higher for each attempt; the other side can use it as a fence |\n"
    "| `ONCE_FAILURES` | attempts that failed before |\n"
    "| `ONCE_MAYBE_DONE` | 1: an attempt before this one may have had its effect; otherwise 0 |\n"
    "| `ONCE_TYPE`, `ONCE_TENANT`, `ONCE_CONSUMER`, `ONCE_OPERATION` | what the message was handled as |\n"
    "| `ONCE_COORDINATES` | where the source had the message |\n"
    "| `ONCE_SENT_MS` | when it was sent, in milliseconds since 1970; empty if that is not known |\n"
    "| `ONCE_TOMBSTONE` | 1: the message has no body (`tombstones: run`); otherwise 0 |\n"
    "\n"
    "With `mode: stream` processes are kept. Each gets a line of JSON per message and answers with a line:\n"
    "[stream.md](stream.md) has the protocol. That line has the values of the variables above; the environment of\n"
    "the process has only `PATH`, `LANG` and `env`.\n";

/* --- the effect --------------------------------------------------------------------------------------------------- */

static int prepare(const once_handler_spec *handler, const once_parsed *from, once_arena *arena, void **input,
                   once_error *err)
{
    static once_stream_body json = ONCE_STREAM_JSON, bytes = ONCE_STREAM_BYTES, none = ONCE_STREAM_NO_BODY;
    if (once_exec_of(handler)->mode == ONCE_EXEC_MESSAGE) return once_exec_prepare(handler, from, arena, input, err);
    *input = from->message->no_body ? &none : from->body ? &json : &bytes; /* the line is made when it is sent */
    return ONCE_OK;
}

static int open_driver(once_runner *runner, const once_handler_spec *handler, once_effect_driver **out, once_error *err)
{
    return (once_exec_of(handler)->mode == ONCE_EXEC_STREAM ? once_effect_driver_open_stream
                                                            : once_effect_driver_open_exec)(runner, handler, out, err);
}

static once_effect_shown describe(const once_handler_spec *handler)
{
    const once_exec_spec *exec = once_exec_of(handler);
    assert(exec->command.n > 0);
    return (once_effect_shown){.what = exec->mode == ONCE_EXEC_STREAM ? "stream command" : "command",
                               .name = once_template_text(exec->command.argv[0])};
}

static void secrets(const once_handler_spec *handler, once_secret_visit *visit, void *user)
{
    const once_exec_spec *exec = once_exec_of(handler);
    for (size_t i = 0; i < exec->n_env; i++) visit(user, exec->env[i].value, false);
}

static void expose_arguments(const once_exec_command *command, const char *what, once_effect_warning *warn, void *user)
{
    char text[700];
    for (size_t i = 0; i < command->n; i++) {
        const once_bytes argument = once_template_text(command->argv[i]);
        if (once_template_is_literal(command->argv[i])) continue;
        (void)snprintf(text, sizeof text,
                       "%s %zu, '%.*s', carries text of the message: the command must not take it for a program, "
                       "a path or an option, and"
                       " other users of the machine can see it; standard input is safer",
                       what, i, argument.len < 200 ? (int)argument.len : 200, argument.data);
        warn(user, text);
    }
}

static void exposed(const once_handler_spec *handler, once_effect_warning *warn, void *user)
{
    const once_exec_spec *exec = once_exec_of(handler);
    expose_arguments(&exec->command, "argument", warn, user);
    expose_arguments(&exec->lookup.command, "'lookup': argument", warn, user);
}

const once_effect_ops once__effect_exec = {
    .name = "exec",
    .summary = "a command, one process per message or a kept one; fenced",
    .bits = ONCE_EFFECT_RUNS | ONCE_EFFECT_OUTSIDE | ONCE_EFFECT_ISOLATED | ONCE_EFFECT_OUTLIVES,
    .fields = fields,
    .n_fields = sizeof fields / sizeof *fields,
    .size = sizeof(once_exec_spec),
    .standard = &standard,
    .misfits = misfits,
    .section = section,
    .conclude = conclude,
    .check = check,
    .prepare = prepare,
    .open = open_driver,
    .describe = describe,
    .secrets = secrets,
    .exposed = exposed,
};
