/* once: every message takes effect once. */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

const cli_verb cli_verbs[] = {
    {"run", "FILE", "consume and settle; ends when a finite source is drained, else at SIGTERM, draining",
     "Exit status: 0 all settled, 1 something is dead or unknown, 2 usage or configuration, 3 store or source failed,\n"
     "4 an empty or another store where one was known.",
     cli_run},
    {"check", "FILE", "try everything that can be tried without consuming, and say what it promises",
     "A store that is missing and was never known is made, and `init` is run, as `once run` would do; no message is "
     "read.\n"
     "Exit status: 0, 2 usage or configuration, 3 the store failed, 4 an empty or another store where one was known.",
     cli_check},
    {"explain", "FILE [KEY]", "everything known about a key, or about the message at --message COORDINATES",
     "COORDINATES are the place and the point of a message: payments.ndjson:17 is line 17 of that file.", cli_explain},
    {"status", "FILE", "how many messages wait, are in work, unknown or dead, and since when; and who works on them",
     "A worker is alive, late (its lease is over: it died, or hangs) or gone (a process of this machine that is not "
     "there any more).\n"
     "What one holds that is gone goes on with the next run, at once unless its pipeline runs commands.\n"
     "Exit status: 0, 1 when something is dead or unknown, or 4 when this is not the store that was known.",
     cli_status},
    {"list", "FILE", "the messages that are not finished, and dead letters; without options all of them", NULL,
     cli_list},
    {"replay", "FILE [ID...]", "dead letters back to work: those named, or all that fit the options",
     "The next run, or one that is running, works on them. It may be ended anywhere and started again. Every letter "
     "that moves is\n"
     "recorded with time and user. TIME is RFC 3339, as 'once list' prints it, epoch milliseconds, or a duration: that "
     "long ago.\n"
     "Exit status: 0, or 1 when a letter stayed.",
     cli_replay},
    {"discard", "FILE [ID...]", "give dead letters up: they are dropped, and their keys count as rejected", NULL,
     cli_discard},
    {"resolve", "FILE [KEY] done|retry|dead", "decide about an unknown message, or all that fit the options",
     "done: its effect happened. dead: it becomes a dead letter. retry: it runs again, at least once, with failures 0 "
     "as after a replay,\n"
     "and with the same idempotency key; it is told that an attempt before may have had its effect.",
     cli_resolve},
    {"forget", "FILE KEY", "know nothing about a key any more: its next message runs", NULL, cli_forget},
    {"sweep", "FILE", "drop what has expired now", NULL, cli_sweep},
    {"schema", "URL", "the SQL that a store needs", NULL, cli_schema},
    {"version", "", "what is built in", NULL, cli_version},
    {"help", "[VERB|config]", "this text, one verb, or the reference of the pipeline file", NULL, cli_help},
    {0},
};

const cli_verb *cli_current;

static const cli_verb *find_verb(const char *name)
{
    for (const cli_verb *verb = cli_verbs; verb->name; verb++)
        if (strcmp(verb->name, name) == 0) return verb;
    return NULL;
}

static void usage(FILE *out)
{
    fputs("once makes every message take effect once.\n\n", out);
    for (const cli_verb *verb = cli_verbs; verb->name; verb++)
        fprintf(out, "  once %-8s %-24s %s\n", verb->name, verb->arguments, verb->summary);
    fputs("\n--json gives every verb a machine's answer. 'once help VERB' tells more.\n", out);
}

static void verbs_json(void)
{
    printf("{\"verbs\":[");
    for (const cli_verb *verb = cli_verbs; verb->name; verb++) {
        printf("%s{\"name\":\"%s\",\"arguments\":\"%s\",\"summary\":", verb == cli_verbs ? "" : ",", verb->name,
               verb->arguments);
        cli_json_cstring(stdout, verb->summary);
        printf("}");
    }
    printf("]}\n");
}

int cli_help(int argc, char **argv)
{
    bool json = false;
    const cli_option options[] = {{"--json", NULL, "the list of verbs as one object", &json, NULL}, {0}};
    char *args[1];
    int status, n = cli_parse(argc, argv, options, 0, 1, args, &status);
    if (n < 0) return status;
    if (n == 0 || json) {
        if (json) verbs_json();
        else usage(stdout);
        return CLI_OK;
    }
    if (strcmp(args[0], "config") == 0) {
        char *text = once_config_reference_text(false);
        if (text) fputs(text, stdout);
        free(text);
        return text ? CLI_OK : CLI_FAILED;
    }
    if (strcmp(args[0], "configuration.md") == 0) { /* how docs/configuration.md is made */
        char *text = once_config_reference_text(true);
        if (text) fputs(text, stdout);
        free(text);
        return text ? CLI_OK : CLI_FAILED;
    }
    const cli_verb *verb = find_verb(args[0]);
    if (!verb) {
        cli_say("once: unknown verb '%s'; 'once help' lists them", args[0]);
        return CLI_USAGE;
    }
    char *ask[] = {args[0], "--help"};
    cli_current = verb;
    return verb->run(2, ask);
}

/* Of whoever started us. An ignored SIGCHLD would have the kernel throw away how a command ended, and a blocked SIGTERM
 * could not stop us. */
static void undo_what_was_inherited(void)
{
    sigset_t none;
    sigemptyset(&none);
    signal(SIGCHLD, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* As `once list | head` does, which has seen enough. */
static bool reader_went_away(void)
{
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&out, 1, 0) == 1 && (out.revents & POLLERR);
}

int main(int argc, char **argv)
{
    undo_what_was_inherited();
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file that may not become larger is a full disk, and no reason to die */
    const char *failpoints = getenv("ONCE_FAILPOINT");
    once_error err;
    if (failpoints && *failpoints && once_testing_failpoints(failpoints, &err) != ONCE_OK) return cli_fail(&err);
    if (argc < 2) {
        usage(stderr);
        return CLI_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        usage(stdout);
        return CLI_OK;
    }
    cli_current = find_verb(strcmp(argv[1], "--version") == 0 ? "version" : argv[1]);
    if (!cli_current) {
        cli_say("once: unknown verb '%s'; 'once help' lists them", argv[1]);
        return CLI_USAGE;
    }
    const int status = cli_current->run(argc - 1, argv + 1);
    if ((fflush(stdout) == 0 && !ferror(stdout)) || reader_went_away()) return status;
    fputs("once: cannot write to standard output\n", stderr);
    return status > CLI_DEAD ? status : CLI_FAILED; /* an answer that nobody got is none */
}
