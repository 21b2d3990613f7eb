/* What the verbs share. Each verb is one file with one function; the table of verbs is in main.c. Verbs use the public
 * headers of the library and nothing else of it. */
#ifndef ONCE_CLI_CLI_H
#define ONCE_CLI_CLI_H

#include <stdio.h>

#include "once/once.h"

/* Exit statuses. */
enum { CLI_OK = 0, CLI_DEAD = 1, CLI_USAGE = 2, CLI_FAILED = 3, CLI_OTHER_STORE = 4 };

typedef struct cli_option {
    const char *name;  /* "--json" */
    const char *value; /* the name of its value in the help; NULL: it takes none */
    const char *help;
    bool *flag;
    const char **text;
} cli_option;

typedef struct cli_verb {
    const char *name, *arguments, *summary;
    const char *help; /* more lines of help, or NULL */
    int (*run)(int argc, char **argv);
} cli_verb;

extern const cli_verb *cli_current; /* for usage messages */

/* Parses argv after the verb. Options may be anywhere; "--" ends them. The other arguments go to `args`. Returns their
 * number, or -1 after printing what is wrong, or the help (then *status is CLI_OK). */
int cli_parse(int argc, char **argv, const cli_option *options, int min_args, int max_args, char **args, int *status);

/* Prints a line to standard error. Arguments may be untrusted text: it stays one line, without control characters. */
void cli_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
int cli_fail(const once_error *err);                            /* prints the error; returns the exit status for it */
void cli_mistake(void *user, const char *text);                 /* a once_mistake that prints to standard error */
int cli_load(const char *file, bool json, once_pipeline **out); /* CLI_OK, or the exit status after printing what is
                                                                   wrong */

void cli_json_string(FILE *out, once_bytes text);
void cli_json_cstring(FILE *out, const char *text);
void cli_json_attempts(const once_attempt *attempts, size_t n); /* ,"attempts":[...] inside an object */
void cli_json_error(int rc, const once_error *err);             /* ,"error":"..." inside an object, when there is one */

void cli_json_failure(const once_error *err); /* {"error":"..."} and nothing else */

const char *cli_when(int64_t ms, char out[40]);           /* "2026-01-31 12:00:00.000 UTC" */
void cli_how_long(char *out, size_t len, double seconds); /* "40s", "12m", "1.5h" */
void cli_print_safe(once_bytes text);                     /* to standard output, without control characters */
bool cli_is_plain(once_bytes text);                       /* it has no characters that cli_print_safe replaces */
/* Prints a body. `bytes`: it need not be text; what is not text is escaped (\xff), and so is a backslash. */
void cli_print_body(once_bytes body, bool bytes);
/* ,"body":TEXT inside an object; with `bytes`, or where it is not UTF-8, ,"body_base64":TEXT */
void cli_json_body(once_bytes body, bool bytes);
/* Prints the part of a malformed line around its mistake, with a mark under the column (from 1; 0: not known). */
void cli_print_line(once_bytes line, uint64_t column);
/* Prints the result that duplicates get: its first 200 bytes, without the line end that a command leaves. False: it is
 * empty. */
bool cli_print_result(const char *before, once_bytes result);
void cli_json_lane(const once_lane_place *lane);  /* ,"lane":... inside an object; nothing where there is none */
void cli_print_lane(const once_lane_place *lane); /* "lane 'o-17', version 3" */
void cli_print_before(const once_lane_place *lane, size_t most); /* one line each for the first messages that it
                                                                    waits for */
once_bytes cli_bytes(const char *text);
bool cli_letter_ids(char **args, int n, uint64_t *out); /* false after printing which one is not an id */
bool cli_time(const char *option, const char *text,
              int64_t *out_ms); /* as in a pipeline file, or a duration: that long ago */
/* SIGINT and SIGTERM stop the pipeline between two steps. NULL: a signal is kept until there is a pipeline. */
void cli_stop_on_signals(once_pipeline *pipeline);
/* Frees it. From then on signals do not interrupt, so that the output is complete. */
void cli_unload(once_pipeline *pipeline);

int cli_run(int argc, char **argv);
int cli_check(int argc, char **argv);
int cli_explain(int argc, char **argv);
int cli_status(int argc, char **argv);
int cli_list(int argc, char **argv);
int cli_replay(int argc, char **argv);
int cli_list_groups(once_pipeline *pipeline, unsigned what, const char *by, bool json); /* groups.c */
bool cli_groups_know(const char *by);
int cli_discard(int argc, char **argv);
int cli_resolve(int argc, char **argv);
int cli_forget(int argc, char **argv);
int cli_sweep(int argc, char **argv);
int cli_schema(int argc, char **argv);
int cli_version(int argc, char **argv);
int cli_help(int argc, char **argv);

extern const cli_verb cli_verbs[]; /* ends with a NULL name */

#endif
