/* The field `exec` and those that belong to it, and what its two modes share: a process for each message (exec.c), and
 * kept processes (stream.c). */
#ifndef ONCE_EFFECT_EXEC_H
#define ONCE_EFFECT_EXEC_H

#include "base/config.h"
#include "effect/driver.h"

enum { ONCE_EXEC_MESSAGE, ONCE_EXEC_STREAM }; /* modes */

/* A command and its arguments, rendered for each message. The first one is a literal; in mode STREAM all of them
 * are. */
typedef struct once_exec_command {
    const once_template *const *argv;
    size_t n; /* 0: there is none */
} once_exec_command;

/* `lookup`: a command that is asked what became of an attempt whose outcome is unknown. */
typedef struct once_exec_lookup {
    once_exec_command command; /* n 0: there is no lookup */
    once_lookup when;
} once_exec_lookup;

typedef struct once_exec_spec {
    once_exec_command command;
    once_exec_lookup lookup; /* MESSAGE */
    const once_written *env; /* besides the fixed ones */
    size_t n_env;
    const once_outcome *exits; /* what each of the 256 exit codes means; NULL: once_exec_exit_usual */
    bool unsafe;               /* a field of the message may stand where commands expect a program */
    int mode;                  /* MESSAGE: a process for each; STREAM: kept ones that speak one JSON line per message */
    uint32_t window;           /* STREAM: messages in flight in one process */
    uint32_t processes;        /* STREAM: how many are kept */
} once_exec_spec;

static inline const once_exec_spec *once_exec_of(const once_handler_spec *handler) { return handler->own; }

/* The outcome of an exit code that `exit` does not name. A code that is not in the table is unknown: only the
 * program knows whether its effect happened before it ended, so neither "nothing happened" nor "done" may be
 * assumed. */
once_outcome once_exec_exit_usual(int code);

/* What the exit code of a lookup says about the attempt in question (once_found, core/policy.h). RETRY: it did not
 * happen, and will not. A code that is not in the table is UNKNOWN. */
once_outcome once_exec_found(int code);

int once_effect_driver_open_exec(once_runner *runner, const once_handler_spec *handler, once_effect_driver **out,
                                 once_error *err);
int once_effect_driver_open_stream(once_runner *runner, const once_handler_spec *handler, once_effect_driver **out,
                                   once_error *err);

/* Renders the arguments, where a process is started for each message. ONCE_E_MESSAGE: a field is missing, has a NUL
 * byte, or would turn into an option. */
int once_exec_prepare(const once_handler_spec *handler, const once_parsed *from, once_arena *arena, void **input,
                      once_error *err);

/* The environment of a command: PATH, LANG and what `env` names, secrets read; NULL-terminated, in `arena`. */
int once_exec_environment(once_runner *runner, const once_exec_spec *exec, once_arena *arena, char ***out,
                          once_error *err);

/* The file of a handler's command, looked up in the PATH of its environment; malloc'd. Not there: ONCE_E_CONFIG as
 * FILE:LINE. */
int once_exec_find(once_runner *runner, const once_handler_spec *handler, const char *command, char *const *envp,
                   char **out, once_error *err);

/* Whether a field of the message stands where commands expect a program: then a mistake, and false (exec_arguments.c).
 */
bool once_exec_check_arguments(once_config *config, const once_node *list, const once_exec_command *command);

#endif
