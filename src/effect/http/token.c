/* `bearer: {exec: [...]}`: a token from a command.
 *
 * The command is run when the first call needs a token, and again when the server answers 401 to one. Calls wait
 * meanwhile. One command runs at a time, however many calls wait for it. Its standard output is the token, and its
 * standard error is not shown. If it fails, or takes longer than a call may, the handler stops as for refused
 * credentials. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/ascii.h"
#include "base/duration.h"
#include "base/no_memory.h"
#include "effect/http/client.h"

#include "base/banned.h"

#define TOKEN_MAX ((size_t)64 << 10)
#define COMMAND_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

/* ---- calls that wait ---- */

static void wait_for_token(http_call *call)
{
    http_token *token = &call->driver->token;
    assert(!call->waits);
    call->waits = true;
    call->next = NULL;
    *token->last_waiting = call;
    token->last_waiting = &call->next;
}

void once__http_token_forget(http_call *call)
{
    http_token *token = &call->driver->token;
    http_call **at = &token->waiting;
    assert(call->waits);
    while (*at != call) at = &(*at)->next;
    *at = call->next;
    if (token->last_waiting == &call->next) token->last_waiting = at;
    call->waits = false;
}

/* Lets all of them go on, or fails them. `why`: NULL if there is a token now. */
static void wake(http_driver *driver, int status, const char *why)
{
    http_token *token = &driver->token;
    http_call *call = token->waiting;
    token->waiting = NULL;
    token->last_waiting = &token->waiting;
    for (http_call *next; call; call = next) {
        next = call->next;
        call->waits = false;
        if (why) once__http_fail(call, status, why);
        else once__http_begin(call);
    }
}

/* ---- the command ---- */

static void end_command(http_token *token)
{
    http_driver *driver = token->driver;
    once_runner_unwatch(driver->driver.runner, &token->out);
    once_runner_unwatch(driver->driver.runner, &token->err);
    once_runner_unwatch(driver->driver.runner, &token->end);
    once_process_close(&token->child);
    token->runs = false;
}

static bool is_token(once_bytes text)
{
    for (size_t i = 0; i < text.len; i++)
        if ((unsigned char)text.data[i] <= ' ' || (unsigned char)text.data[i] >= 0x7f) return false;
    return text.len > 0;
}

/* The output becomes the token. The one before is kept, because texts of calls that used it must not show it either. */
static bool take_token(http_token *token)
{
    once_buf *made = &token->output;
    while (made->len > 0 && once_ascii_is_space(made->data[made->len - 1])) made->len--;
    if (made->failed || !is_token(once_buf_bytes(made))) return false;
    token->current = 1 - token->current;
    const once_buf oldest = token->texts[token->current];
    token->texts[token->current] = token->output;
    token->output = oldest;
    token->generation++;
    token->valid = true;
    return true;
}

static void keep_output(http_token *token, const char *data, size_t n) { once_buf_append(&token->output, data, n); }

/* What it says may have a secret in it, so nobody is shown it. */
static void drop_error(http_token *token, const char *data, size_t n) { (void)token, (void)data, (void)n; }

/* False: the pipe is closed, or empty for now. */
static bool read_some(http_token *token, int fd, void (*keep)(http_token *, const char *, size_t))
{
    char data[4096];
    const ssize_t n = fd >= 0 ? read(fd, data, sizeof data) : 0;
    if (n > 0) keep(token, data, (size_t)n);
    return n > 0;
}

static void command_ended(http_token *token, int status)
{
    http_driver *driver = token->driver;
    const bool fine = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    char why[600], limit[ONCE_DURATION_TEXT];
    end_command(token);
    if (fine && take_token(token)) {
        wake(driver, ONCE_OK, NULL);
        return;
    }
    if (fine) (void)snprintf(why, sizeof why, "the command of 'bearer' printed no token");
    else if (token->late)
        (void)snprintf(why, sizeof why, "the command of 'bearer' was killed after %s",
                       once_duration_format(driver->driver.handler->timeout_ms, limit));
    else if (WIFEXITED(status))
        (void)snprintf(why, sizeof why, "the command of 'bearer' ended with status %d; run it by hand to see why",
                       WEXITSTATUS(status));
    else (void)snprintf(why, sizeof why, "the command of 'bearer' was ended by a signal");
    token->generation++; /* the next call asks again */
    token->valid = false;
    wake(driver, ONCE_E_DENIED, why);
}

#define TOKEN_OF(watch, member) ((http_token *)((char *)(watch)-offsetof(http_token, member)))

static void pipe_ready(http_token *token, once_watch *watch, int fd, void (*keep)(http_token *, const char *, size_t))
{
    if (!read_some(token, fd, keep)) once_runner_unwatch(token->driver->driver.runner, watch);
}

static void out_ready(once_watch *watch, uint32_t events)
{
    http_token *token = TOKEN_OF(watch, out);
    (void)events;
    pipe_ready(token, watch, token->child.out, keep_output);
}

static void err_ready(once_watch *watch, uint32_t events)
{
    http_token *token = TOKEN_OF(watch, err);
    (void)events;
    pipe_ready(token, watch, token->child.err, drop_error);
}

static void end_ready(once_watch *watch, uint32_t events)
{
    http_token *token = TOKEN_OF(watch, end);
    int status;
    (void)events;
    if (!once_process_reap(&token->child, false, &status)) return;
    while (read_some(token, token->child.out, keep_output)) continue;
    while (read_some(token, token->child.err, drop_error)) continue;
    command_ended(token, status);
}

static int start_command(http_token *token, once_error *err)
{
    static char *const environment[] = {(char *)(uintptr_t) "PATH=" COMMAND_PATH, (char *)(uintptr_t) "LANG=C.UTF-8",
                                        NULL};
    const once_bytes nothing = {0};
    once_runner *runner = token->driver->driver.runner;
    int rc = once_process_start(token->file, token->argv, environment, &nothing, &token->child, err);
    if (rc != ONCE_OK) return rc;
    token->runs = true;
    token->late = false;
    token->deadline_ms = once_runner_now_ms(runner) + token->driver->driver.handler->timeout_ms;
    once_buf_clear(&token->output);
    token->out = (once_watch){.fd = token->child.out, .ready = out_ready};
    token->err = (once_watch){.fd = token->child.err, .ready = err_ready};
    token->end = (once_watch){.fd = token->child.pidfd, .ready = end_ready};
    rc = once_runner_watch(runner, &token->end, EPOLLIN, err);
    if (rc == ONCE_OK) rc = once_runner_watch(runner, &token->out, EPOLLIN, err);
    if (rc == ONCE_OK) rc = once_runner_watch(runner, &token->err, EPOLLIN, err);
    if (rc == ONCE_OK) return rc;
    int status;
    once_process_kill(&token->child);
    (void)once_process_reap(&token->child, true, &status);
    end_command(token);
    return rc;
}

/* ---- for the calls ---- */

bool once__http_token_ready(http_call *call, bool refused)
{
    http_token *token = &call->driver->token;
    if (token->valid && !token->runs && !(refused && call->token_generation == token->generation)) return true;
    wait_for_token(call);
    if (token->runs) return false;
    once_error why = {0};
    const int rc = start_command(token, &why);
    if (rc != ONCE_OK) wake(call->driver, rc, why.text);
    return false;
}

once_bytes once__http_token_text(http_call *call)
{
    http_token *token = &call->driver->token;
    call->token_generation = token->generation;
    return once_buf_bytes(&token->texts[token->current]);
}

int64_t once__http_token_tick(http_driver *driver, int64_t now_ms)
{
    http_token *token = &driver->token;
    if (!token->runs) return ONCE_NEVER;
    if (now_ms < token->deadline_ms) return token->deadline_ms;
    token->late = true;
    token->deadline_ms = ONCE_NEVER;
    once_process_kill(&token->child);
    return ONCE_NEVER;
}

int once__http_token_open(http_driver *driver, once_error *err)
{
    const once_http_spec *http = driver->http;
    const once_spec *spec = once_runner_options_of(driver->driver.runner)->spec;
    http_token *token = &driver->token;
    once_error why = {0};
    token->driver = driver;
    token->last_waiting = &token->waiting;
    token->child = (once_child){.pidfd = -1, .in = -1, .out = -1, .err = -1};
    token->out.fd = token->err.fd = token->end.fd = -1;
    once_buf_init(&token->texts[0], TOKEN_MAX);
    once_buf_init(&token->texts[1], TOKEN_MAX);
    once_buf_init(&token->output, TOKEN_MAX);
    if (http->n_token_command == 0) return ONCE_OK;
    token->argv = once_arena_new(&driver->arena, char *, http->n_token_command + 1);
    if (!token->argv) return once_no_memory(err, "for the handlers");
    for (size_t i = 0; i < http->n_token_command; i++) token->argv[i] = (char *)(uintptr_t)http->token_command[i].data;
    const int rc = once_process_find(token->argv[0], COMMAND_PATH, &token->file, &why);
    if (rc == ONCE_OK) return rc;
    return once_fail(err, once_status_class(rc) == ONCE_CLASS_PAUSE ? ONCE_E_CONFIG : rc, "%.*s:%d: 'bearer': %s",
                     (int)spec->file.len, spec->file.data, http->bearer.line, why.text);
}

void once__http_token_close(http_driver *driver)
{
    http_token *token = &driver->token;
    int status;
    if (token->runs) {
        once_process_kill(&token->child);
        (void)once_process_reap(&token->child, true, &status);
        end_command(token);
    }
    once_buf_release(&token->texts[0]);
    once_buf_release(&token->texts[1]);
    once_buf_release(&token->output);
    free(token->file);
}
