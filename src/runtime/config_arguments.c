/* Arguments of a command that would run text of a message as a program.
 *
 * Without a shell between, a value is bytes of one argument and nothing else, until the command is one that runs its arguments: an
 * interpreter, or something that starts another command. There is no list of all of them, so options that announce a program are
 * looked for behind every command; who means something else by them says `unsafe_arguments: true`. */
#include "runtime/config_internal.h"

#include "base/banned.h"

static once_bytes base_name(once_bytes command)
{
    const char *slash = memrchr(command.data, '/', command.len);
    return slash ? (once_bytes){slash + 1, command.len - (size_t)(slash + 1 - command.data)} : command;
}

/* "python", "python3", "python3.11". */
static bool is_name_of(once_bytes word, const char *name)
{
    const size_t len = strlen(name);
    if (word.len < len || memcmp(word.data, name, len) != 0) return false;
    for (size_t i = len; i < word.len; i++)
        if ((word.data[i] < '0' || word.data[i] > '9') && word.data[i] != '.' && word.data[i] != '-') return false;
    return true;
}

static bool is_one_of(once_bytes word, const char *const *names)
{
    word = base_name(word);
    for (; *names; names++)
        if (is_name_of(word, *names)) return true;
    return false;
}

/* The first argument that is no option is a program, or the file of one. */
static bool is_interpreter(once_bytes word)
{
    static const char *const names[] = {"sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "fish", "busybox", "csh", "tcsh", "python", "pypy", "perl", "ruby", "node",
                                        "nodejs", "deno", "bun", "php", "lua", "luajit", "tclsh", "expect", "awk", "gawk", "mawk", "sed", "pwsh", "java", "make", NULL};
    return is_one_of(word, names);
}

/* The first argument that is no option, number or assignment is a command. */
static bool is_wrapper(once_bytes word)
{
    static const char *const names[] = {"env", "nice", "ionice", "nohup", "timeout", "xargs", "setsid", "stdbuf", "sudo", "doas", "time", "chrt", "taskset", "flock",
                                        "unshare", "nsenter", "chroot", "setarch", "setpriv", "runuser", "strace", "ltrace", "gdb", "exec", "command", NULL};
    return is_one_of(word, names);
}

/* All arguments are put together and given to a shell, here or on another machine. */
static bool is_shell_of_arguments(once_bytes word)
{
    static const char *const names[] = {"ssh", "rsh", "watch", "parallel", "script", "eval", "su", NULL};
    return is_one_of(word, names);
}

static bool is_option(once_bytes word) { return word.len > 0 && (word.data[0] == '-' || word.data[0] == '+'); }

static bool is_number_or_assignment(once_bytes word)
{
    return (word.len > 0 && word.data[0] >= '0' && word.data[0] <= '9') || memchr(word.data, '=', word.len);
}

/* "-c", "--eval", "-exec": the next argument is a program. In "-c..." and "--eval=..." it is the rest of this one. Interpreters take
 * several such letters as one argument: "-lc", "-ne". */
static bool announces_program(once_bytes word, bool to_interpreter)
{
    static const char *const words[] = {"-exec", "-execdir", "-ok", "-okdir", "--eval", "--exec", "--execute", "--expression", "--command", "--print", "--run"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const size_t len = strlen(words[i]);
        if (word.len >= len && memcmp(word.data, words[i], len) == 0 && (word.len == len || word.data[len] == '=')) return true;
    }
    if (word.len < 2 || word.data[0] != '-') return false;
    const char *end = memchr(word.data, '$', word.len); /* what comes before a placeholder */
    const size_t len = end ? (size_t)(end - word.data) : word.len;
    for (size_t i = 1; i < (to_interpreter ? len : 2) && word.data[1] != '-'; i++)
        if (strchr("ceEp", word.data[i]) && (to_interpreter || len == 2)) return true;
    return false;
}

typedef struct arguments {
    once_config *config;
    const once_template *const *argv;
    once_bytes runner;   /* the command that was named last */
    bool interprets;     /* it is an interpreter */
    bool program_known;  /* its program was there, and what follows is for that */
    bool behind;         /* an option that announces a program */
} arguments;

static bool refuse(const arguments *a, const once_node *item)
{
    const once_config_shown runner = once_config_show(a->runner);
    once_config_wrong(a->config, ONCE_E_CONFIG, item->line,
                      "'exec' would run a field of the message as a program of '%s'; write the program without placeholders and pass the field behind "
                      "it, as in [sh, -c, 'charge \"$1\"', sh, \"${/id}\"], or say 'unsafe_arguments: true' when that is not so",
                      runner.text);
    return false;
}

/* The program or command behind the runner: the first element that is no option. */
static bool check_program(const arguments *a, const once_node *item, size_t i)
{
    for (; item; item = item->next, i++) {
        if (!once_template_is_literal(a->argv[i])) return refuse(a, item);
        if (announces_program(item->text, a->interprets)) return true; /* what is behind it is looked at in its turn */
        if (!is_option(item->text) && (a->interprets || !is_number_or_assignment(item->text))) return true;
    }
    return true;
}

static bool check_all_literal(const arguments *a, const once_node *item, size_t i)
{
    for (; item; item = item->next, i++)
        if (!once_template_is_literal(a->argv[i])) return refuse(a, item);
    return true;
}

static bool check_one(arguments *a, const once_node *item, size_t i)
{
    const bool behind = a->behind;
    a->behind = announces_program(item->text, a->interprets && !a->program_known);
    if (!once_template_is_literal(a->argv[i])) return !behind && !a->behind ? true : refuse(a, item);
    if (a->program_known) return true;
    if (behind && a->interprets) { /* behind "-c" there is the program; behind "-exec" of others another command */
        a->program_known = true;
        return true;
    }
    if (is_shell_of_arguments(item->text)) {
        a->runner = item->text;
        return check_all_literal(a, item->next, i + 1);
    }
    if (is_interpreter(item->text) || is_wrapper(item->text)) {
        a->runner = item->text;
        a->interprets = is_interpreter(item->text);
        return check_program(a, item->next, i + 1);
    }
    if (a->interprets && !is_option(item->text)) a->program_known = true;
    return true;
}

bool once__config_check_arguments(once_config *config, const once_node *list, const once_exec_spec *spec)
{
    arguments a = {.config = config, .argv = spec->argv, .runner = list->first->text};
    bool ok = true;
    size_t i = 0;
    for (const once_node *item = list->first; item && ok; item = item->next, i++) ok = check_one(&a, item, i);
    return ok;
}
