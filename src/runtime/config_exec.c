/* Commands in a pipeline file: their arguments and their environment. Values of the environment may be secrets: no message shows
 * one, nor a reference that is written wrongly, which may be a secret too. */
#include <assert.h>
#include <stdio.h>

#include "runtime/config_internal.h"

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
    /* What a shell or YAML would read differently is not taken apart here. */
    if (strpbrk(shown.text, "\"'\\|&;<>()$`*?~#{}[],:") == NULL && strlen(shown.text) == line.len && line.len > 0) {
        size_t len = 0;
        bool inside = false;
        for (const char *c = shown.text; *c; c++) {
            if (*c != ' ' && !inside) len += (size_t)snprintf(list.text + len, sizeof list.text - len, "%s", len == 0 ? "[" : ", ");
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
                          "'exec' must begin with a command that is the same for every message, not '%s'; write 'exec: [./charge, ...]'",
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

bool once__config_exec(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_exec_spec *exec = &((once__handler *)out)->spec.exec;
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
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "'exec' has %zu elements, and %d are the most; put the others into a script",
                          node->count, MAX_ARGUMENTS);
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
    exec->argv = argv;
    exec->n = n;
    return true;
}

void once__config_check_stream(once_config *config, const once_node *exec, const once_exec_spec *spec)
{
    const once_node *item = exec->first;
    for (size_t i = 0; i < spec->n; i++, item = item->next) {
        if (once_template_is_literal(spec->argv[i])) continue;
        once_config_wrong(config, ONCE_E_CONFIG, item->line,
                          "'exec' has the placeholder '%s', but with 'mode: stream' one process serves many messages; remove it, and read "
                          "the message from standard input",
                          once_config_show(item->text).text);
        return;
    }
}

/* --- environment -------------------------------------------------------------------------------------------------- */

static bool starts_with(once_bytes text, const char *prefix, once_bytes *rest)
{
    const size_t len = strlen(prefix);
    if (text.len < len || memcmp(text.data, prefix, len) != 0) return false;
    *rest = (once_bytes){text.data + len, text.len - len};
    return true;
}

static bool is_variable_name(once_bytes name)
{
    for (size_t i = 0; i < name.len; i++) {
        const char c = name.data[i];
        const bool letter = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
        if (!letter && (i == 0 || c < '0' || c > '9')) return false;
    }
    return name.len > 0;
}

bool once__config_reference(once_config *config, const char *what, const once_node *node)
{
    once_bytes rest;
    if (starts_with(node->text, "env:", &rest) && !is_variable_name(rest)) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "%s refers to a variable, but 'env:' is not followed by a name; write env:NAME", what);
        return false;
    }
    if (starts_with(node->text, "file:", &rest) && rest.len == 0) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "%s refers to a file, but 'file:' is not followed by a path; write file:PATH", what);
        return false;
    }
    return true;
}

static bool check_variable(once_config *config, const once_node *node)
{
    const once_config_shown name = once_config_show(node->name);
    once_bytes rest;
    if (!is_variable_name(node->name)) {
        once_config_wrong(config, ONCE_E_CONFIG, node->name_line,
                          "'env': '%s' cannot be the name of a variable; use letters, digits and _, and no digit at the beginning", name.text);
    } else if (starts_with(node->name, "ONCE_", &rest)) {
        once_config_wrong(config, ONCE_E_CONFIG, node->name_line, "'env': variables that begin with ONCE_ are set by once itself; rename '%s'",
                          name.text);
    } else if (node->kind != ONCE_NODE_SCALAR || node->none) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "'env': '%s' must be text, not %s; write a text, env:NAME or file:PATH", name.text,
                          once_node_kind_text(node));
    } else {
        char what[sizeof name.text + 10];
        (void)snprintf(what, sizeof what, "'env': '%s'", name.text);
        return once__config_reference(config, what, node);
    }
    return false;
}

bool once__config_env(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_exec_spec *exec = &((once__handler *)out)->spec.exec;
    if (node->kind != ONCE_NODE_MAP || node->count == 0) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "'env' must be a map of variables, not %s; write 'env: %s'",
                          node->kind == ONCE_NODE_MAP ? "an empty one" : once_node_kind_text(node), field->example);
        return false;
    }
    once_exec_variable *env = once_arena_new(config->arena, once_exec_variable, node->count);
    if (!env) {
        config->nomem = true;
        return false;
    }
    bool ok = true;
    size_t n = 0;
    for (const once_node *item = node->first; item; item = item->next) {
        ok = check_variable(config, item) && ok;
        env[n++] = (once_exec_variable){.name = item->name, .value = item->text, .line = item->line};
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

/* 0 stays done: whoever means something else by success would lose messages with every command that is replaced by another one. */
static bool read_exit(once_config *config, const once_node *node, once_outcome *exits)
{
    const once_config_shown name = once_config_show(node->name);
    const int code = read_code(node->name);
    if (once__is_text(node->name, "0"))
        once_config_wrong(config, ONCE_E_CONFIG, node->name_line, "'exit': 0 means done and cannot be changed; let the command end with another code");
    else if (code == 0)
        once_config_wrong(config, ONCE_E_CONFIG, node->name_line, "'exit': '%s' is no exit code; write a number from 1 to 255", name.text);
    else if (node->kind != ONCE_NODE_SCALAR || node->none)
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "'exit': %s must be an outcome, not %s; write '%s: retry'", name.text,
                          once_node_kind_text(node), name.text);
    else if (!read_outcome(node->text, &exits[code]))
        once_config_wrong(config, ONCE_E_CONFIG, node->line,
                          "'exit': '%s' is no outcome; write done, already, rejected, stale, retry, release, unknown or dead",
                          once_config_show(node->text).text);
    else
        return true;
    return false;
}

bool once__config_exit(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_exec_spec *exec = &((once__handler *)out)->spec.exec;
    if (node->kind != ONCE_NODE_MAP || node->count == 0) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "'exit' must be a map of exit codes, not %s; write 'exit: %s'",
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

/* --- the page ----------------------------------------------------------------------------------------------------- */

const char once__config_commands[] =
    "\n"
    "## Commands\n"
    "\n"
    "`exec` names a command and its arguments, each an element of the list. No shell stands between: spaces, quotes, `*` and `;` in a\n"
    "value are nothing but bytes of one argument. A command without a `/` is looked up in `PATH`. Placeholders are filled with the\n"
    "values as they are, without the escapes of keys. A value at the beginning of an argument that begins with `-` would turn into\n"
    "an option, and makes a dead letter: write `--order=${/order_id}`.\n"
    "\n"
    "A field inside a program (`sh -c`, `python3 -c`...) would run as code. So behind an interpreter, and behind a command that starts others\n"
    "(`env`, `timeout`, `xargs`, `sudo`...), everything up to the program is written without placeholders, and the fields follow it, as in\n"
    "`[sh, -c, 'charge \"$1\"', sh, \"${/id}\"]` or `[timeout, 5s, ./charge, \"${/id}\"]`; where an option makes it unsure which argument the program is,\n"
    "there are none. A variable is fine, `[env, \"ID=${/id}\", ./charge]`, unless it says what is run, as `PATH` does. `make`, `ssh`, `su`, `sqlite3`,\n"
    "`vim` and their like get no fields at all. Wherever else it stands, a field is refused behind `-c`, `-e`, `-E`, `-p`, `--eval`, `-exec` and their\n"
    "like, because that is where most commands expect something to run; to some these options mean something else (`mkdir -p`), and for those\n"
    "there is `unsafe_arguments: true`, which allows everything. This is a guard against mistakes: a command of\n"
    "your own that evaluates its arguments is not noticed. `once check` names each argument that carries text of a message. Other users\n"
    "of the machine can see the arguments of a command; the body and `env` they cannot.\n"
    "\n"
    "With `mode: message` a process is started for each message. The body is its standard input, what it writes to standard output is\n"
    "the result that duplicates get (up to `result_max`), what it writes to standard error is shown to people as the reason when it\n"
    "was not done, and its exit code says how it ended:\n"
    "\n"
    "| exit code | outcome |\n"
    "|---|---|\n"
    "| 0 | done: the effect happened |\n"
    "| 64 | rejected: the business says no; not tried again |\n"
    "| 65 | dead: will never work; a dead letter |\n"
    "| 66 | already: it had happened before |\n"
    "| 67 | stale: something newer has been there |\n"
    "| 69 | release: nothing happened, and nobody is to blame (the other side is away); tried again after `retry.backoff`, no attempt is spent |\n"
    "| 75 | retry: nothing happened; tried again after `retry.backoff`, until `retry` says dead |\n"
    "| 70 and every other | unknown: the effect may have happened; `unknown` says what follows |\n"
    "| ended by a signal, killed at `timeout` or while stopping | unknown |\n"
    "\n"
    "A program that nobody told about this table ends with 1 or 2 for whatever goes wrong, before its effect or after it, and `curl` with 28\n"
    "for a charge whose answer did not come in time: that is why a code that is not listed is unknown, and so is 126 or 127 of a shell that\n"
    "could not run one of its commands. Where you know better, say so: `exit: {1: retry, 7: release, 28: unknown}`. With `retry` and\n"
    "`release` you promise that nothing has happened.\n"
    "\n"
    "A command that is not there, or cannot be executed, is the fault of no message: the pipeline does not start, or waits.\n"
    "\n"
    "The environment has `PATH`, `LANG`, what `env` says, and nothing else of ours but these:\n"
    "\n"
    "| variable | is |\n"
    "|---|---|\n"
    "| `ONCE_KEY` | the key, as `once explain` wants it |\n"
    "| `ONCE_IDEMPOTENCY_KEY` | 32 hexadecimal digits, the same for every attempt at this key: pass it to the other side |\n"
    "| `ONCE_ATTEMPT` | 1, 2, 3...: higher each time; a fence for those who compare it |\n"
    "| `ONCE_FAILURES` | attempts that failed before |\n"
    "| `ONCE_MAYBE_DONE` | 1: an attempt before this one may have had its effect; otherwise 0 |\n"
    "| `ONCE_TYPE`, `ONCE_TENANT`, `ONCE_CONSUMER`, `ONCE_OPERATION` | what the message was handled as |\n"
    "| `ONCE_COORDINATES` | where the source had the message |\n"
    "| `ONCE_SENT_MS` | when it was sent, in milliseconds since 1970; empty when that is not known |\n"
    "\n"
    "With `mode: stream` processes are kept, and each message is one line of JSON to them and one line back:\n"
    "[stream.md](stream.md) has the protocol. What the variables above say is in that line; their environment is\n"
    "`PATH`, `LANG` and `env`.\n";
