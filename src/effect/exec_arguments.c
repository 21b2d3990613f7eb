/* Arguments of a command that would run text of a message as a program.
 *
 * There is no shell, so a value is bytes of one argument and nothing else, unless the command runs its arguments: an
 * interpreter, or a command that starts another one. Two rules:
 *
 * - For the commands in the table below, everything up to their program must be written without placeholders. When an
 *   option that is not in the table makes it uncertain which argument the program is, no placeholder may follow at all.
 * - Behind every other command, and behind a program, no placeholder may follow an option that announces a program to
 *   most commands (`-c`, `--eval`).
 *
 * No list can have all commands that run something, so this guards against mistakes only; `unsafe_arguments: true`
 * switches it off. */
#include <assert.h>

#include "core/config_values.h"
#include "effect/exec.h"

#include "base/banned.h"

typedef enum launcher_kind {
    RUNS_PROGRAM, /* the first operand is a program, or the file of one */
    RUNS_COMMAND, /* the first operand behind `operands` others is a command */
    RUNS_ALL,     /* any argument may be run, or be put into what is run */
    RUNS_OPTIONS, /* the values of some options */
} launcher_kind;

/* Letters of options, and words; words are separated by spaces. */
typedef struct launcher {
    const char *names; /* a version may follow: python3.11; and anything may follow a '*' */
    launcher_kind kind;
    unsigned operands;
    const char *flags;    /* letters without a value */
    const char *valued;   /* letters whose value is the rest of the argument, or the next one */
    const char *attached; /* letters whose value can only be the rest */
    const char *program;  /* letters whose value is a program */
    const char *flag_words, *valued_words, *program_words;
    bool
        shell; /* `-c` is a flag: the first operand is the program, with it or without; and `-oc` takes two arguments */
    bool repeats;  /* there may be more programs behind the first option with one */
    bool permutes; /* and behind operands */
    bool assigns;  /* NAME=VALUE comes before the command */
} launcher;

#define SHELL_WORDS "--norc --noprofile --login --posix --restricted --verbose --noediting --no-config --private"

static const launcher launchers[] = {
    {"sh bash rbash dash ash ksh mksh zsh fish csh tcsh", RUNS_PROGRAM, .flags = "abcefhiklmnpruvxBEHNPT",
     .valued = "oO", .program = "c", .flag_words = SHELL_WORDS, .shell = true},
    {"python pypy", RUNS_PROGRAM, .flags = "bBdEhiIOPqRsStuvx", .valued = "WX", .program = "cm"},
    {"perl", RUNS_PROGRAM, .flags = "acflnpsSTtuUwWX0123456789", .valued = "I", .attached = "iMmFCD", .program = "eE",
     .repeats = true},
    {"ruby", RUNS_PROGRAM, .flags = "aclnpsSUvwy0123456789", .valued = "CIr", .attached = "iFKTWx", .program = "e",
     .repeats = true},
    {"node nodejs", RUNS_PROGRAM, .flags = "ci", .valued = "rC", .program = "ep", .repeats = true,
     .valued_words = "--require --import --loader --env-file",
     .flag_words = "--enable-source-maps --use-strict --experimental-strip-types"},
    {"php", RUNS_PROGRAM, .flags = "aCeHnq", .valued = "cdgtz", .program = "fFrRBE", .repeats = true},
    {"lua luajit", RUNS_PROGRAM, .flags = "iEvW", .valued = "el"},
    {"tclsh wish", RUNS_PROGRAM, .flags = ""},
    {"expect", RUNS_PROGRAM, .flags = "inNbd", .program = "cf", .repeats = true},
    {"awk nawk mawk gawk original-awk", RUNS_PROGRAM, .flags = "bcCghIkMnNOPrsSt", .valued = "FvilW", .program = "fe",
     .repeats = true, .flag_words = "--posix --traditional --re-interval --sandbox --csv",
     .valued_words = "--assign --field-separator", .program_words = "--file --source"},
    {"sed", RUNS_PROGRAM, .flags = "nrsuzE", .valued = "l", .attached = "i", .program = "ef", .repeats = true,
     .permutes = true,
     .flag_words = "--quiet --silent --regexp-extended --null-data --unbuffered --separate --posix --sandbox",
     .program_words = "--expression --file"},
    {"java", RUNS_PROGRAM, .attached = "DX", .flag_words = "-ea -da -server",
     .valued_words = "-cp -classpath --class-path --module-path -p", .program_words = "-jar -m --module"},
    {"deno bun", RUNS_PROGRAM, 1, .flags = "Aq",
     .flag_words = "--allow-all --allow-net --allow-read --allow-write --allow-env --allow-run --quiet"},

    {"env", RUNS_COMMAND, .flags = "i0v", .valued = "uC", .flag_words = "- --ignore-environment --null --debug",
     .valued_words = "--unset --chdir", .assigns = true},
    {"nice", RUNS_COMMAND, .flags = "0123456789", .valued = "n", .valued_words = "--adjustment"},
    {"ionice", RUNS_COMMAND, .flags = "t", .valued = "cn", .flag_words = "--ignore",
     .valued_words = "--class --classdata"},
    {"nohup exec command npx bunx uvx busybox toybox unbuffer catchsegv fakeroot numactl valgrind prlimit "
     "dbus-run-session systemd-inhibit setpriv ld-linux* ld.so* ld-musl*",
     RUNS_COMMAND},
    {"linux32 linux64 i386 x86_64 uname26", RUNS_COMMAND, .flags = "vRFZLXBIST3"},
    {"setsid", RUNS_COMMAND, .flags = "cfw", .flag_words = "--ctty --fork --wait"},
    {"timeout", RUNS_COMMAND, 1, .flags = "fpv", .valued = "ks",
     .flag_words = "--foreground --preserve-status --verbose", .valued_words = "--kill-after --signal"},
    {"xargs", RUNS_COMMAND, .flags = "0rtxpo", .valued = "adEILnPs", .attached = "eil",
     .flag_words = "--null --no-run-if-empty --verbose --exit --open-tty",
     .valued_words = "--arg-file --delimiter --max-lines --max-args --max-procs --max-chars"},
    {"stdbuf", RUNS_COMMAND, .valued = "ioe", .valued_words = "--input --output --error"},
    {"sudo", RUNS_COMMAND, .flags = "AbBEHknNPS", .valued = "CDghprRtTuU", .assigns = true,
     .flag_words = "--non-interactive --preserve-env --set-home --stdin --background",
     .valued_words = "--user --group --host --chdir"},
    {"doas", RUNS_COMMAND, .flags = "n", .valued = "uC"},
    {"time", RUNS_COMMAND, .flags = "apqv", .valued = "fo", .flag_words = "--append --portability --quiet --verbose",
     .valued_words = "--format --output"},
    {"chrt", RUNS_COMMAND, 1, .flags = "abdfioRrv", .valued = "TPD",
     .flag_words = "--batch --fifo --idle --other --rr --deadline --reset-on-fork"},
    {"taskset", RUNS_COMMAND, 1, .flags = "ac", .flag_words = "--cpu-list --all-tasks"},
    {"flock", RUNS_COMMAND, 1, .flags = "eFnosuxv", .valued = "Ew", .program = "c", .program_words = "--command",
     .flag_words = "--shared --exclusive --unlock --nonblock --nb --close --no-fork --verbose",
     .valued_words = "--timeout --wait --conflict-exit-code"},
    {"unshare", RUNS_COMMAND, .flags = "cCfimnprTuU", .valued = "RSGw",
     .flag_words = "--fork --map-root-user --mount-proc --mount --net --pid --user --ipc --uts --cgroup"},
    {"nsenter", RUNS_COMMAND, .flags = "aCFimnpTuU", .valued = "GSt",
     .flag_words = "--all --mount --net --pid --user --ipc --uts --cgroup --preserve-credentials",
     .valued_words = "--target"},
    {"chroot", RUNS_COMMAND, 1},
    {"setarch", RUNS_COMMAND, 1, .flags = "vRFZLXBIST3"},
    {"gosu su-exec setuidgid", RUNS_COMMAND, 1},
    {"tini dumb-init catatonit", RUNS_COMMAND, .flags = "cgsvw"},
    {"strace ltrace", RUNS_COMMAND, .flags = "cCdfFhikqrtTvwxyYzZ", .valued = "aAbeEIoOPsSuX"},
    {"systemd-run systemd-cat", RUNS_COMMAND, .flags = "dGPqr", .valued = "EHMptu",
     .flag_words = "--user --system --scope --wait --pipe --pty --quiet --collect --no-block --same-dir",
     .valued_words =
         "--unit --property --uid --gid --setenv --slice --description --working-directory --identifier --priority"},

    {"ssh rsh su runuser watch parallel script eval make gmake vi vim nvim view ex ed emacs less more gdb lldb sqlite "
     "sqlite3 pwsh start-stop-daemon "
     "run-parts chpst cpulimit timeit pdb cProfile at batch crontab",
     RUNS_ALL},

    {"tar bsdtar", RUNS_OPTIONS, .program = "IF",
     .program_words = "--checkpoint-action --use-compress-program --to-command --info-script --new-volume-script "
                      "--rsh-command --rmt-command"},
    {"split", RUNS_OPTIONS, .program_words = "--filter"},
    {"sort", RUNS_OPTIONS, .program_words = "--compress-program"},
    {"cpio", RUNS_OPTIONS, .program_words = "--rsh-command"},
    {"zip", RUNS_OPTIONS, .program_words = "-TT --unzip-command"},
    {"man", RUNS_OPTIONS, .program = "PH", .program_words = "--pager --html"},
    {"scp sftp", RUNS_OPTIONS, .program = "FJoS"},
    {"rsync", RUNS_OPTIONS, .program = "e", .program_words = "--rsh --rsync-path"},
    {"git", RUNS_OPTIONS, .program = "cOux",
     .program_words = "--upload-pack --receive-pack --open-files-in-pager --config-env --config --extcmd --exec-path"},
    {"psql", RUNS_OPTIONS, .program = "cf", .program_words = "--command --file"},
    {"mysql mariadb", RUNS_OPTIONS, .program = "e", .program_words = "--execute --init-command --pager"},
};

static once_bytes word_at(const char *words) { return (once_bytes){words, strcspn(words, " ")}; }

/* "python", "python3", "python3.11"; "ld-linux-x86-64.so.2" is "ld-linux*". */
static bool is_name_of(once_bytes word, once_bytes name)
{
    const bool open = name.data[name.len - 1] == '*';
    if (open) name.len--;
    if (word.len < name.len || memcmp(word.data, name.data, name.len) != 0) return false;
    for (size_t i = name.len; i < word.len && !open; i++)
        if ((word.data[i] < '0' || word.data[i] > '9') && word.data[i] != '.' && word.data[i] != '-') return false;
    return true;
}

/* "./script" is a command of the user's own, "/usr/bin/script" is not. */
static const launcher *launcher_of(once_bytes command)
{
    const char *slash = memrchr(command.data, '/', command.len);
    if (slash == command.data + 1 && command.data[0] == '.') return NULL;
    const once_bytes base = slash ? (once_bytes){slash + 1, command.len - (size_t)(slash + 1 - command.data)} : command;
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++)
        for (const char *at = launchers[i].names; *at; at += strspn(at, " ")) {
            const once_bytes name = word_at(at);
            if (is_name_of(base, name)) return &launchers[i];
            at += name.len;
        }
    return NULL;
}

/* "--eval", and "--eval=...". */
static bool is_listed(once_bytes option, const char *words)
{
    for (const char *at = words; at && *at; at += strspn(at, " ")) {
        const once_bytes word = word_at(at);
        if (option.len >= word.len && memcmp(option.data, word.data, word.len) == 0 &&
            (option.len == word.len || option.data[word.len] == '='))
            return true;
        at += word.len;
    }
    return false;
}

static bool has_letter(const char *letters, char letter) { return letters && letter && strchr(letters, letter); }

typedef enum part { OPERAND, FLAG, VALUED, PROGRAM, PROGRAM_HERE, END_OF_OPTIONS, UNKNOWN } part;

static part word_part(const launcher *r, once_bytes option)
{
    const bool whole = !memchr(option.data, '=', option.len);
    if (is_listed(option, r->program_words)) return whole ? PROGRAM : PROGRAM_HERE;
    if (is_listed(option, r->flag_words)) return FLAG;
    if (is_listed(option, r->valued_words)) return whole ? VALUED : FLAG;
    return UNKNOWN;
}

/* "-euo": several letters in one argument, where the last may have a value. */
static part letters_part(const launcher *r, once_bytes option)
{
    for (size_t i = 1; i < option.len; i++) {
        const char letter = option.data[i];
        const bool last = i + 1 == option.len;
        if (has_letter(r->program, letter) && !r->shell)
            return last || has_letter(r->program, option.data[i + 1]) ? PROGRAM : PROGRAM_HERE;
        if (has_letter(r->attached, letter)) return FLAG;
        if (has_letter(r->valued, letter)) return last ? VALUED : r->shell ? UNKNOWN : FLAG;
        if (!has_letter(r->flags, letter)) return UNKNOWN;
    }
    return FLAG;
}

static part part_of(const launcher *r, once_bytes word)
{
    if (word.len == 2 && memcmp(word.data, "--", 2) == 0) return END_OF_OPTIONS;
    const part listed = word_part(r, word);
    if (listed != UNKNOWN) return listed;
    if (word.len == 1 && word.data[0] == '-') return UNKNOWN; /* the program is what comes on standard input */
    if (word.len > 2 && memcmp(word.data, "--", 2) == 0)
        return memchr(word.data, '=', word.len) && !r->shell ? FLAG : UNKNOWN;
    if (word.len > 1 && (word.data[0] == '-' || (r->shell && word.data[0] == '+'))) return letters_part(r, word);
    return OPERAND;
}

typedef struct arguments {
    once_config *config;
    const once_template *const *argv; /* from `item` on */
    const once_node *item;
    once_bytes name; /* of the command that is looked at, and its row */
    const launcher *launcher;
    const once_node *assigned; /* a variable with a field of the message */
    bool more_programs;        /* options may announce more of them */
} arguments;

static bool refuse(const arguments *a, const once_node *item)
{
    const once_config_shown name = once_config_show(a->name);
    once_config_wrong(a->config, ONCE_E_CONFIG, item->line,
                      "'exec': a field of the message may be run as a program here, by '%s'; pass it behind a program "
                      "that is written without placeholders, as in "
                      "[sh, -c, 'charge \"$1\"', sh, \"${/id}\"], or as a variable, as in [env, \"ID=${/id}\", "
                      "./charge], or read it from the body on standard "
                      "input; if it is not run, say 'unsafe_arguments: true'",
                      name.text);
    return false;
}

static bool is_literal(const arguments *a) { return once_template_is_literal(a->argv[0]); }

static void advance(arguments *a)
{
    assert(a->item); /* each item has its template */
    a->item = a->item->next;
    a->argv++;
}

static bool check_all_literal(arguments *a)
{
    if (a->assigned) return refuse(a, a->assigned);
    for (; a->item; advance(a))
        if (!is_literal(a)) return refuse(a, a->item);
    return true;
}

/* NAME=${/field}, unless the variable names something that is run. */
static bool is_harmless_variable(once_bytes text)
{
    static const char telling[] = "PATH ENV BASH_ENV SHELL EDITOR VISUAL PAGER IFS PS4 PROMPT_COMMAND LD_* GCONV_PATH "
                                  "BASH_FUNC_* GIT_* SSH_* PYTHON* PERL* RUBY* NODE_* "
                                  "LUA_* PHP* JAVA_* _JAVA_* JDK_* MAKE*";
    const char *end = memchr(text.data, '=', text.len);
    if (!end || end == text.data || memchr(text.data, '$', (size_t)(end - text.data))) return false;
    const once_bytes name = {text.data, (size_t)(end - text.data)};
    if (name.data[0] == '-') return false;
    for (const char *at = telling; *at; at += strspn(at, " ")) {
        const once_bytes word = word_at(at);
        if (is_name_of(name, word)) return false;
        at += word.len;
    }
    return true;
}

typedef enum search { FOUND, NOT_FOUND, REFUSED } search;

static search check_rest(arguments *a) { return check_all_literal(a) ? NOT_FOUND : REFUSED; }

/* At an element before the program that has a placeholder. */
static bool check_variable(arguments *a)
{
    if (!a->launcher->assigns || !is_harmless_variable(a->item->text)) return refuse(a, a->item);
    a->assigned = a->item;
    return true;
}

/* Goes to the program or command of the launcher. `by_option`: it is the value of one. */
static search find_program(arguments *a, bool *by_option)
{
    const launcher *r = a->launcher;
    bool options = true;
    for (unsigned operands = r->operands; a->item; advance(a)) {
        if (!is_literal(a)) {
            if (!check_variable(a)) return REFUSED;
            continue;
        }
        switch (options ? part_of(r, a->item->text) : OPERAND) {
        case FLAG: break;
        case END_OF_OPTIONS: options = false; break;
        case VALUED:
            advance(a);
            if (!a->item) return NOT_FOUND;
            if (is_literal(a)) break;
            (void)refuse(a, a->item);
            return REFUSED;
        case PROGRAM:
            advance(a);
            *by_option = true;
            return a->item ? FOUND : NOT_FOUND;
        case PROGRAM_HERE: *by_option = true; return FOUND;
        case UNKNOWN: return check_rest(a);
        case OPERAND:
            if (r->assigns && memchr(a->item->text.data, '=', a->item->text.len)) break;
            if (operands == 0) return FOUND;
            operands--;
        }
    }
    return NOT_FOUND;
}

/* Whether this option announces a program, in the next argument or in the rest of this one (`here`). `text` ends
 * before a placeholder. */
static bool option_of_launcher(const launcher *r, once_bytes text, bool here)
{
    if (is_listed(text, r->program_words)) return here == (memchr(text.data, '=', text.len) != NULL);
    if (text.len < 2 || text.data[0] != '-' || text.data[1] == '-') return false;
    if (has_letter(r->program, text.data[text.len - 1])) return true;
    if (here) return has_letter(r->program, text.data[1]);
    for (size_t i = 1; i < text.len && r->shell; i++)
        if (has_letter(r->program, text.data[i])) return true;
    return false;
}

static bool option_of_any_command(once_bytes text, bool here)
{
    if (is_listed(
            text,
            "--eval --exec --execute --expression --command --print --run --split-string -exec -execdir -ok -okdir"))
        return here == (memchr(text.data, '=', text.len) != NULL);
    return text.len == 2 && text.data[0] == '-' && has_letter("ceEp", text.data[1]);
}

static once_bytes before_placeholder(const arguments *a)
{
    const once_bytes text = a->item->text;
    const char *end = is_literal(a) ? NULL : memchr(text.data, '$', text.len);
    return end ? (once_bytes){text.data, (size_t)(end - text.data)} : text;
}

static bool announces_program(const arguments *a, bool here)
{
    const once_bytes text = before_placeholder(a);
    return option_of_any_command(text, here) || (a->more_programs && option_of_launcher(a->launcher, text, here));
}

static bool check_command(arguments *a);

/* "docker exec NAME sh -xc ...": a shell is recognised by its option, because its name alone ("./charge sh ID") may
 * be data */
static bool begins_shell(const arguments *a)
{
    if (a->launcher && a->launcher->kind == RUNS_PROGRAM) return false; /* $0 of a shell's program may be anything */
    const launcher *r = launcher_of(a->item->text);
    const once_node *next = a->item->next;
    return r && r->shell && next && once_template_is_literal(a->argv[1]) && next->text.len > 1 &&
           next->text.data[0] == '-';
}

/* The arguments of a program are data, except behind options that announce another program. Other interpreters are
 * recognised by such an option. */
static bool check_data(arguments *a)
{
    bool behind = false;
    const launcher *named = NULL;
    for (; a->item; advance(a)) {
        const once_bytes text = a->item->text;
        if (!is_literal(a)) {
            if (behind || announces_program(a, true)) return refuse(a, a->item);
            behind = false;
            continue;
        }
        if (is_listed(text, "-exec -execdir -ok -okdir")) {
            advance(a);
            return check_command(a);
        }
        if (begins_shell(a)) return check_command(a);
        const bool option = text.len > 1 && text.data[0] == '-';
        behind = announces_program(a, false) || (named && option && option_of_launcher(named, text, false));
        if (option) continue;
        named = launcher_of(text);
        if (named && named->kind != RUNS_PROGRAM) named = NULL;
    }
    return true;
}

static bool check_program(arguments *a, bool by_option)
{
    if (!a->item) return true;
    if (!is_literal(a)) return refuse(a, a->item);
    const once_bytes text = a->item->text;
    const char *m = text.data[0] == '-' ? memchr(text.data, 'm', text.len) : NULL; /* python3 -m timeit, -mtimeit */
    const launcher *module = launcher_of(m ? (once_bytes){m + 1, text.len - (size_t)(m + 1 - text.data)} : text);
    a->more_programs = a->launcher->permutes || (a->launcher->repeats && by_option);
    advance(a);
    return by_option && module && module->kind == RUNS_ALL ? check_all_literal(a) : check_data(a);
}

/* At the name of a command. */
static bool check_command(arguments *a)
{
    while (a->item) {
        if (!is_literal(a)) return refuse(a, a->item);
        a->name = a->item->text;
        a->launcher = launcher_of(a->name);
        a->more_programs = a->launcher && a->launcher->kind == RUNS_OPTIONS;
        advance(a);
        if (!a->launcher || a->launcher->kind == RUNS_OPTIONS) return check_data(a);
        if (a->launcher->kind == RUNS_ALL) return check_all_literal(a);
        bool by_option = false;
        const search found = find_program(a, &by_option);
        if (found != FOUND) return found == NOT_FOUND;
        if (a->launcher->kind == RUNS_PROGRAM || by_option) return check_program(a, by_option);
    }
    return true;
}

bool once_exec_check_arguments(once_config *config, const once_node *list, const once_exec_command *command)
{
    assert(list->kind == ONCE_NODE_LIST && list->count == command->n);
    arguments a = {.config = config, .argv = command->argv, .item = list->first};
    return check_command(&a);
}
