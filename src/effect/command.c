/* What commands have in common, one process for each message or kept: the environment, and the file that is run. */
#include <assert.h>
#include <string.h>

#include "base/no_memory.h"
#include "effect/exec.h"
#include "effect/process.h"

#include "base/banned.h"

typedef struct environment {
    const once_runner_options *options;
    once_arena *arena;
    char **list;
    size_t n;
} environment;

#define AT(env, line) (int)(env)->options->spec->file.len, (env)->options->spec->file.data, (line)

static bool same_name(const char *entry, once_bytes name)
{
    return strncmp(entry, name.data, name.len) == 0 && entry[name.len] == '=';
}

static int put(environment *env, once_bytes name, once_bytes value, once_error *err)
{
    assert(name.len > 0 && !memchr(name.data, '=', name.len));
    char *entry = once_arena_alloc(env->arena, name.len + value.len + 2);
    if (!entry) return once_no_memory(err, "for the handlers");
    char *at = mempcpy(entry, name.data, name.len);
    *at++ = '=';
    if (value.len) at = mempcpy(at, value.data, value.len);
    *at = '\0';
    size_t i = 0;
    while (i < env->n && !same_name(env->list[i], name)) i++;
    env->list[i] = entry;
    if (i == env->n) env->n++;
    return ONCE_OK;
}

static int put_variable(environment *env, const once_written *v, once_error *err)
{
    const once_bytes name = v->name;
    once_bytes value = {0};
    if (name.len == 0 || memchr(name.data, '=', name.len) || memchr(name.data, '\0', name.len))
        return once_fail(err, ONCE_E_CONFIG,
                         "%.*s:%d: the name of a variable cannot be empty nor have '=' or NUL in it", AT(env, v->line));
    if (name.len >= 5 && memcmp(name.data, "ONCE_", 5) == 0)
        return once_fail(err, ONCE_E_CONFIG,
                         "%.*s:%d: variable '%.*s': once sets the variables that begin with ONCE_; choose another name",
                         AT(env, v->line), (int)name.len, name.data);
    const int rc = once_value_read(env->options->spec->file, env->options->env, v, env->arena, &value, err);
    if (rc != ONCE_OK) return rc;
    if ((value.len && memchr(value.data, '\0', value.len)) || name.len + value.len + 2 > ONCE_VALUE_MAX)
        return once_fail(err, ONCE_E_CONFIG, "%.*s:%d: the value of '%.*s' has a NUL byte or is longer than 128 KiB",
                         AT(env, v->line), (int)name.len, name.data);
    return put(env, name, value, err);
}

int once_exec_environment(once_runner *runner, const once_exec_spec *exec, once_arena *arena, char ***out,
                          once_error *err)
{
    environment env = {.options = once_runner_options_of(runner), .arena = arena};
    env.list = once_arena_new(arena, char *, 2 + exec->n_env + 1);
    if (!env.list) return once_no_memory(err, "for the handlers");
    int rc =
        put(&env, ONCE_BYTES("PATH"), ONCE_BYTES("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), err);
    if (rc == ONCE_OK) rc = put(&env, ONCE_BYTES("LANG"), ONCE_BYTES("C.UTF-8"), err);
    for (size_t i = 0; i < exec->n_env && rc == ONCE_OK; i++) rc = put_variable(&env, &exec->env[i], err);
    assert(rc != ONCE_OK || !env.list[env.n]);
    if (rc == ONCE_OK) *out = env.list;
    return rc;
}

static const char *path_of(char *const *envp)
{
    while (*envp && strncmp(*envp, "PATH=", 5) != 0) envp++;
    return *envp ? *envp + 5 : "";
}

int once_exec_find(once_runner *runner, const once_handler_spec *handler, const char *command, char *const *envp,
                   char **out, once_error *err)
{
    const once_spec *spec = once_runner_options_of(runner)->spec;
    once_error why;
    int rc = once_process_find(command, path_of(envp), out, &why);
    if (rc == ONCE_OK) return ONCE_OK;
    if (once_status_class(rc) == ONCE_CLASS_PAUSE)
        rc = ONCE_E_CONFIG; /* before the first message it is a mistake in the file */
    return once_fail(err, rc, "%.*s:%d: %s", (int)spec->file.len, spec->file.data, handler->line, why.text);
}
