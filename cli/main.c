/* once: every message takes effect once. */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

const cli_verb cli_verbs[] = {
    {"run", "FILE",
     "process messages; ends at the end of a finite source (a file, standard input), otherwise at SIGTERM",
     "SIGTERM and SIGINT stop it cleanly: nothing more is fetched, and effects that have begun get the time `drain`.\n"
     "Exit status: 0 all settled, 1 something is dead or unknown, 2 usage or configuration, 3 store or source failed,\n"
     "4 the store is empty or not the one that this pipeline used before.",
     cli_run},
    {"check", "FILE", "test the pipeline file, store and source without reading a message; print what is guaranteed",
     "If the store does not exist and was never used, it is created and `init` is run, as `once run` would do.\n"
     "Exit status: 0, 2 usage or configuration, 3 the store or the source failed, 4 the store is empty or not the\n"
     "one that this pipeline used before.",
     cli_check},
    {"explain", "FILE [KEY]", "show everything stored about a key, or about the message at --message COORDINATES",
     "COORDINATES say where the source has a message: payments.ndjson:17 is line 17 of that file.", cli_explain},
    {"status", "FILE", "count messages by state, with the oldest of each, and list the workers",
     "A source with a broker (Kafka, SQS, RabbitMQ) is asked how many of its messages are not acked yet: 'lag', in all "
     "and\n"
     "of each stream. Of a file only what is in the store is counted.\n"
     "A worker is alive, late (its lease or that of one of its claims has expired: it died or hangs) or gone (a "
     "process\n"
     "of this host that no longer exists).\n"
     "The next run takes over the claims of a gone worker: at once, or after their leases if the pipeline runs "
     "commands.\n"
     "Exit status: 0, 1 when something is dead or unknown, 4 when this is not the store that the pipeline used before.",
     cli_status},
    {"list", "FILE", "list unfinished messages and dead letters; options choose which", NULL, cli_list},
    {"replay", "FILE [ID...]", "put dead letters back to work: by id, or all that match the options",
     "The current run, or the next one, processes them. A replay may be interrupted and started again. Each letter "
     "that is\n"
     "moved is recorded with time and user. TIME is RFC 3339, the form that 'once list' prints, epoch milliseconds, or "
     "a\n"
     "duration (that long ago). Exit status: 0, or 1 when a letter was not moved.",
     cli_replay},
    {"discard", "FILE [ID...]", "drop dead letters; their keys count as rejected from then on",
     "A discarded conflict, malformed or too old message does not become a dead letter again for as long as its "
     "handler\n"
     "remembers messages.",
     cli_discard},
    {"resolve", "FILE [KEY] done|retry|dead", "decide about one unknown message, or all that match the options",
     "done: its effect happened. dead: it becomes a dead letter. retry: it runs again, with failures set to 0 and the\n"
     "same idempotency key; the handler sees that an earlier attempt may have had its effect.",
     cli_resolve},
    {"forget", "FILE KEY", "remove a key; its next message runs again", NULL, cli_forget},
    {"sweep", "FILE", "remove what has expired, now", NULL, cli_sweep},
    {"schema", "URL", "print the SQL that creates a store", NULL, cli_schema},
    {"version", "", "print the version and what is built in", NULL, cli_version},
    {"help", "[VERB|config]", "print this text, the help of a verb, or the reference of the pipeline file", NULL,
     cli_help},
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
        fprintf(out, "  once %-8s %-27s %s\n", verb->name, verb->arguments, verb->summary);
    fputs("\n"
          "--json prints machine-readable output. See 'once help VERB' for details.\n",
          out);
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
    const cli_option options[] = {{"--json", NULL, "print the list of verbs as one JSON object", &json, NULL}, {0}};
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

/* Resets signals that the parent may have changed: with SIGCHLD ignored the kernel would discard the exit status of
 * commands, and a blocked SIGTERM could not stop us. */
static void reset_signals(void)
{
    sigset_t none;
    sigemptyset(&none);
    signal(SIGCHLD, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* As in `once list | head`. */
static bool reader_closed(void)
{
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&out, 1, 0) == 1 && (out.revents & POLLERR);
}

int main(int argc, char **argv)
{
    reset_signals();
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file at its size limit is like a full disk, and must not kill us */
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
    if ((fflush(stdout) == 0 && !ferror(stdout)) || reader_closed()) return status;
    fputs("once: cannot write to standard output\n", stderr);
    return status > CLI_DEAD ? status : CLI_FAILED; /* a result that was not written is a failure */
}
