/* Command lines, signals, and safe printing of untrusted text. */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli.h"

static void help(const cli_option *options)
{
    printf("once %s %s\n  %s\n", cli_current->name, cli_current->arguments, cli_current->summary);
    for (const cli_option *o = options; o && o->name; o++) {
        char head[60];
        snprintf(head, sizeof head, "%s%s%s", o->name, o->value ? " " : "", o->value ? o->value : "");
        printf("  %-26s %s\n", head, o->help);
    }
    if (cli_current->help) printf("\n%s\n", cli_current->help);
}

static void print_safe(FILE *out, once_bytes text);

void cli_say(const char *format, ...)
{
    char *line = NULL;
    va_list args;
    va_start(args, format);
    const int n = vasprintf(&line, format, args);
    va_end(args);
    if (n < 0) return;
    print_safe(stderr, (once_bytes){line, (size_t)n});
    fputc('\n', stderr);
    free(line);
}

static int refuse(const char *what, const char *subject)
{
    cli_say("once %s: %s '%s'; usage: once %s %s", cli_current->name, what, subject, cli_current->name,
            cli_current->arguments);
    return -1;
}

static const cli_option *find(const cli_option *options, const char *name, size_t len)
{
    for (const cli_option *o = options; o && o->name; o++)
        if (strlen(o->name) == len && memcmp(o->name, name, len) == 0) return o;
    return NULL;
}

int cli_parse(int argc, char **argv, const cli_option *options, int min_args, int max_args, char **args, int *status)
{
    int n = 0;
    bool only_args = false;
    *status = CLI_USAGE;
    for (int i = 1; i < argc; i++) {
        char *arg = argv[i];
        if (only_args || arg[0] != '-' || arg[1] == 0) {
            if (n == max_args) return refuse("unexpected argument", arg);
            args[n++] = arg;
            continue;
        }
        if (strcmp(arg, "--") == 0) {
            only_args = true;
            continue;
        }
        if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0) {
            help(options);
            *status = CLI_OK;
            return -1;
        }
        const size_t len = strcspn(arg, "=");
        const cli_option *o = find(options, arg, len);
        if (!o) return refuse("unknown option", arg);
        if (o->flag) {
            if (arg[len]) return refuse("this option takes no value:", arg);
            *o->flag = true;
        } else {
            const char *value = arg[len] ? arg + len + 1 : i + 1 < argc ? argv[++i] : NULL;
            if (!value) return refuse("missing value after", arg);
            *o->text = value;
        }
    }
    if (n < min_args) {
        cli_say("once %s: missing argument; usage: once %s %s", cli_current->name, cli_current->name,
                cli_current->arguments);
        return -1;
    }
    return n;
}

int cli_fail(const once_error *err)
{
    cli_say("once: %s", err->text);
    if (err->status == ONCE_E_OTHER_STORE) return CLI_OTHER_STORE;
    return once_status_class(err->status) == ONCE_CLASS_USAGE ? CLI_USAGE : CLI_FAILED;
}

void cli_mistake(void *user, const char *text)
{
    (void)user;
    cli_say("once: %s", text);
}

int cli_load(const char *file, bool json, once_pipeline **out)
{
    once_error err = {0};
    if (once_pipeline_load(file, cli_mistake, NULL, out, &err) == ONCE_OK) return CLI_OK;
    if (json) {
        printf("{\"error\":");
        cli_json_cstring(stdout, err.text);
        printf("}\n");
    }
    return once_status_class(err.status) == ONCE_CLASS_USAGE ? CLI_USAGE : cli_fail(&err);
}

/* --- times, ids, signals --- */

const char *cli_when(int64_t ms, char out[40])
{
    const time_t s = (time_t)(ms / 1000);
    struct tm parts;
    if (!gmtime_r(&s, &parts)) return "?";
    const size_t n = strftime(out, 40, "%Y-%m-%d %H:%M:%S", &parts);
    snprintf(out + n, 40 - n, ".%03d UTC", (int)(ms % 1000));
    return out;
}

void cli_how_long(char *out, size_t len, double s)
{
    if (s < 100) snprintf(out, len, "%.0fs", s);
    else if (s < 6000) snprintf(out, len, "%.0fm", s / 60);
    else snprintf(out, len, "%.1fh", s / 3600);
}

once_bytes cli_bytes(const char *text) { return (once_bytes){text, strlen(text)}; }

bool cli_letter_ids(char **args, int n, uint64_t *out)
{
    for (int i = 0; i < n; i++) {
        char *end;
        errno = 0;
        out[i] = strtoull(args[i], &end, 10);
        if (args[i][0] >= '0' && args[i][0] <= '9' && !*end && !errno && out[i] > 0) continue;
        cli_say("once %s: '%s' is not the id of a letter; 'once list --dead' prints the ids", cli_current->name,
                args[i]);
        return false;
    }
    return true;
}

bool cli_time(const char *option, const char *text, int64_t *out_ms)
{
    once_error err;
    if (!text || once_parse_when(cli_bytes(text), out_ms, &err) == ONCE_OK) return true;
    cli_say("once %s: %s '%s': %s", cli_current->name, option, text, err.text);
    return false;
}

static _Atomic(once_pipeline *) stoppable;
static atomic_bool stop_requested;
static bool handlers_installed;

enum { SECOND_SIGNAL_MS = 1000 };

static int64_t mono_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* A second signal ends the process at once, but not within a second of the first: `timeout` signals its command and
 * then its whole group, and a terminal and a service manager may both send one. */
static void on_signal(int number)
{
    static _Atomic int64_t first_ms;
    const int64_t now_ms = mono_ms();
    if (!atomic_load(&stop_requested)) {
        atomic_store(&first_ms, now_ms);
    } else if (now_ms - atomic_load(&first_ms) >= SECOND_SIGNAL_MS) {
        signal(number, SIG_DFL);
        raise(number);
        return;
    }
    atomic_store(&stop_requested, true);
    once_pipeline *pipeline = atomic_load(&stoppable);
    if (pipeline) once_pipeline_stop(pipeline);
}

/* Without SA_RESTART a signal interrupts blocking calls. */
static void install_handlers(int flags)
{
    const struct sigaction action = {.sa_handler = on_signal, .sa_flags = flags};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
}

void cli_stop_on_signals(once_pipeline *pipeline)
{
    atomic_store(&stoppable, pipeline);
    if (pipeline && atomic_load(&stop_requested)) once_pipeline_stop(pipeline);
    if (!handlers_installed) install_handlers(0);
    handlers_installed = true;
}

void cli_unload(once_pipeline *pipeline)
{
    atomic_store(&stoppable, NULL);
    if (handlers_installed) install_handlers(SA_RESTART);
    once_pipeline_free(pipeline);
}

/* --- untrusted text --- */

static once_character first(once_bytes text, size_t from)
{
    return once_character_first((once_bytes){text.data + from, text.len - from});
}

static void print_safe(FILE *out, once_bytes text)
{
    once_character c;
    for (size_t i = 0; i < text.len; i += c.len) {
        c = first(text, i);
        if (c.fit) fwrite(text.data + i, 1, c.len, out);
        else fputc('?', out);
    }
}

void cli_print_safe(once_bytes text) { print_safe(stdout, text); }

bool cli_print_result(const char *before, once_bytes result)
{
    enum { MOST = 200 };
    while (result.len && (result.data[result.len - 1] == '\n' || result.data[result.len - 1] == '\r')) result.len--;
    if (result.len == 0) return false;
    size_t len = result.len < MOST ? result.len : MOST;
    while (len > 0 && len < result.len && ((unsigned char)result.data[len] & 0xc0) == 0x80)
        len--; /* whole characters */
    printf("%s'", before);
    cli_print_safe((once_bytes){result.data, len});
    printf("'%s", len < result.len ? "...; --json prints all of it" : "");
    return true;
}

bool cli_is_plain(once_bytes text)
{
    once_character c;
    for (size_t i = 0; i < text.len; i += c.len) {
        c = first(text, i);
        if (!c.fit) return false;
    }
    return true;
}

/* How many characters are printed for it. */
static size_t width(once_bytes text)
{
    size_t count = 0;
    for (size_t i = 0; i < text.len; count++) i += first(text, i).len;
    return count;
}

void cli_print_line(once_bytes line, uint64_t column)
{
    enum { MOST = 120, BEFORE = 60 };
    while (line.len && (line.data[line.len - 1] == '\n' || line.data[line.len - 1] == '\r')) line.len--;
    size_t at = column ? (size_t)column - 1 : 0;
    if (at > line.len) at = line.len;
    size_t from = at > MOST - 20 ? at - BEFORE : 0, to = line.len - from > MOST ? from + MOST : line.len;
    while (from > 0 && from < line.len && ((unsigned char)line.data[from] & 0xc0) == 0x80)
        from--; /* whole characters */
    while (to > at && to < line.len && ((unsigned char)line.data[to] & 0xc0) == 0x80) to--;
    if (to == from) return;
    printf("    %s", from ? "..." : "");
    cli_print_safe((once_bytes){line.data + from, to - from});
    puts(to < line.len ? "..." : "");
    const size_t before = (from ? 7u : 4u) + width((once_bytes){line.data + from, at - from});
    if (column) printf("%*s^\n", (int)before, "");
}

/* --- JSON --- */

void cli_json_string(FILE *out, once_bytes text)
{
    once_character c;
    fputc('"', out);
    for (size_t i = 0; i < text.len; i += c.len) {
        c = first(text, i);
        if (!c.fit) fprintf(out, "\\u%04x", (unsigned)c.code);
        else if (c.code == '"' || c.code == '\\') fprintf(out, "\\%c", text.data[i]);
        else fwrite(text.data + i, 1, c.len, out);
    }
    fputc('"', out);
}

void cli_json_cstring(FILE *out, const char *text) { cli_json_string(out, (once_bytes){text, strlen(text)}); }

void cli_json_attempts(const once_attempt *attempts, size_t n)
{
    printf(",\"attempts\":[");
    for (size_t i = 0; i < n; i++) {
        const once_attempt *a = &attempts[i];
        printf("%s{\"attempt\":%u,\"ended_ms\":%lld,", i ? "," : "", a->attempt, (long long)a->ended_ms);
        printf("\"outcome\":\"%s\",\"who\":", a->outcome);
        cli_json_string(stdout, a->who);
        printf(",\"reason\":");
        cli_json_string(stdout, a->reason);
        printf("}");
    }
    printf("]");
}

void cli_json_error(int rc, const once_error *err)
{
    if (rc == ONCE_OK) return;
    printf(",\"error\":");
    cli_json_cstring(stdout, err->text);
}

void cli_json_failure(const once_error *err)
{
    printf("{\"error\":");
    cli_json_cstring(stdout, err->text);
    printf("}\n");
}
