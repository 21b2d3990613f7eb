/* Commands, one process for each message: the body on stdin, what is known about the message in the environment, the
 * answer in the exit status, the result on stdout, the reason on stderr. A `lookup` is a command of the same kind.
 *
 * The end of the process that we started decides. Then its whole group is killed, and what is left in the pipes is read
 * without waiting: a grandchild that holds the pipes open delays nothing. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/duration.h"
#include "base/no_memory.h"
#include "core/call.h"
#include "effect/exec.h"
#include "effect/process.h"

#include "base/banned.h"

enum { ARGUMENT_MAX = 128 << 10 /* the kernel's limit, with the NUL */, CHUNK = 64 << 10, VARIABLES = 12 };

typedef struct exec_driver exec_driver;

typedef struct job {
    exec_driver *driver;
    once_item *item;
    once_child child;
    once_watch out, err, end;
    once_buf result; /* up to one byte more than result_max: that it is too long must be seen */
    once_tail tail;  /* of its stderr */
    int64_t deadline_ms;
    bool asks; /* it is the lookup, not the effect */
    bool late, killed;
    struct job *next, *prev; /* running ones, by deadline; spare ones, `next` only */
    struct job *next_of_all;
} job;

struct exec_driver {
    once_effect_driver driver;
    once_arena arena;
    char *file, *lookup_file; /* of the command; of the lookup, or NULL */
    char **fixed;             /* environment; in the arena */
    size_t n_fixed;
    char **envp;        /* n_fixed + VARIABLES + 1: for the start of one process */
    once_buf variables; /* their texts */
    job *first, *last, *spare, *all;
    char chunk[CHUNK];
};

/* What `prepare` makes of a message. */
typedef struct exec_input {
    char **argv, **lookup_argv; /* without `lookup`: NULL */
} exec_input;

/* ---- arguments ---- */

static bool has_nul(once_bytes text) { return text.len && memchr(text.data, '\0', text.len); }

static int check_argument(const once_template *t, once_bytes text, bool after_dashes, once_error *err)
{
    const once_bytes written = once_template_text(t);
    const int shown = written.len > 100 ? 100 : (int)written.len;
    if (has_nul(text)) return once_fail(err, ONCE_E_MESSAGE, "argument '%.*s' has a NUL byte", shown, written.data);
    if (text.len >= ARGUMENT_MAX)
        return once_fail(err, ONCE_E_MESSAGE, "argument '%.*s' is longer than 128 KiB", shown, written.data);
    if (text.len && text.data[0] == '-' && !once_template_begins_literal(t) && !after_dashes)
        return once_fail(err, ONCE_E_MESSAGE,
                         "argument '%.*s' begins with '-' and would be taken for an option; put \"--\" before it",
                         shown, written.data);
    return ONCE_OK;
}

static int render_arguments(const once_exec_command *command, const once_parsed *from, once_arena *arena, char ***out,
                            once_error *err)
{
    bool after_dashes = false;
    char **argv = once_arena_new(arena, char *, command->n + 1);
    if (!argv) return once_no_memory(err, "for a message");
    for (size_t i = 0; i < command->n; i++) {
        const once_template *t = command->argv[i];
        once_bytes text;
        int rc = once_template_render_plain(t, from, arena, &text, err);
        if (rc == ONCE_OK) rc = check_argument(t, text, after_dashes, err);
        if (rc != ONCE_OK) return rc;
        argv[i] = (char *)text.data;
        if (once_template_is_literal(t) && strcmp(text.data, "--") == 0) after_dashes = true;
    }
    *out = argv;
    return ONCE_OK;
}

/* The argument that fails may be one of two commands. */
static int name_lookup(int rc, once_error *err)
{
    if (rc == ONCE_OK || !err) return rc;
    const once_error why = *err;
    return once_fail(err, rc, "lookup: %s", why.text);
}

int once_exec_prepare(const once_handler_spec *handler, const once_parsed *from, once_arena *arena, void **input,
                      once_error *err)
{
    const once_exec_spec *exec = once_exec_of(handler);
    const once_message *message = from->message;
    if (has_nul(message->type))
        return once_fail(err, ONCE_E_MESSAGE, "the type has a NUL byte, which no variable of a command can carry");
    if (has_nul(message->at.place) || has_nul(message->at.point))
        return once_fail(err, ONCE_E_MESSAGE,
                         "the coordinates have a NUL byte, which no variable of a command can carry");
    exec_input *made = once_arena_new(arena, exec_input, 1);
    if (!made) return once_no_memory(err, "for a message");
    made->lookup_argv = NULL;
    int rc = render_arguments(&exec->command, from, arena, &made->argv, err);
    if (rc == ONCE_OK && once_handler_asks(handler))
        rc = name_lookup(render_arguments(&exec->lookup.command, from, arena, &made->lookup_argv, err), err);
    if (rc == ONCE_OK) *input = made;
    return rc;
}

/* ---- environment ---- */

static void variable(exec_driver *driver, const char *name, once_bytes first, const char *between, once_bytes second)
{
    once_buf *b = &driver->variables;
    once_buf_puts(b, name);
    once_buf_append(b, first.data, first.len);
    once_buf_puts(b, between);
    once_buf_append(b, second.data, second.len);
    once_buf_append(b, "", 1);
}

static void number(exec_driver *driver, const char *name, int64_t value)
{
    once_buf_printf(&driver->variables, "%s%lld", name, (long long)value);
    once_buf_append(&driver->variables, "", 1);
}

/* False: memory is out. */
static bool make_environment(exec_driver *driver, const once_item *item)
{
    const once_bytes none = {0};
    once_outward idempotency_key;
    once_buf_clear(&driver->variables);
    once_item_outward_key(&once_runner_options_of(driver->driver.runner)->keying, item, idempotency_key);
    variable(driver, "ONCE_KEY=", item->request.key, "", none);
    variable(driver, "ONCE_IDEMPOTENCY_KEY=", none, idempotency_key, none);
    number(driver, "ONCE_ATTEMPT=", item->decision.attempt);
    number(driver, "ONCE_FAILURES=", item->decision.failures);
    number(driver, "ONCE_MAYBE_DONE=", item->decision.maybe_done || item->decision.asks);
    variable(driver, "ONCE_TYPE=", item->message.type, "", none);
    variable(driver, "ONCE_TENANT=", item->scope.tenant, "", none);
    variable(driver, "ONCE_CONSUMER=", item->scope.consumer, "", none);
    variable(driver, "ONCE_OPERATION=", item->scope.operation, "", none);
    variable(driver, "ONCE_COORDINATES=", item->message.at.place, ":", item->message.at.point);
    if (item->message.sent_ms == ONCE_NO_TIME) variable(driver, "ONCE_SENT_MS=", none, "", none);
    else number(driver, "ONCE_SENT_MS=", item->message.sent_ms);
    number(driver, "ONCE_TOMBSTONE=", item->message.no_body);
    if (driver->variables.failed) return false;
    char *at = driver->variables.data;
    for (size_t i = 0; i < VARIABLES; i++, at += strlen(at) + 1) driver->envp[driver->n_fixed + i] = at;
    assert(at == driver->variables.data + driver->variables.len);
    return true;
}

/* ---- what its end means ---- */

once_outcome once_exec_exit_usual(int code)
{
    assert(code >= 0 && code <= 255);
    switch (code) {
    case 0: return ONCE_DONE;
    case 64: return ONCE_REJECTED;
    case 65: return ONCE_DEAD;
    case 66: return ONCE_ALREADY;
    case 67: return ONCE_STALE;
    case 69: return ONCE_RELEASE;
    case 75: return ONCE_RETRY;
    default: return ONCE_UNKNOWN; /* 70, and every other */
    }
}

once_outcome once_exec_found(int code)
{
    const once_outcome outcome = once_exec_exit_usual(code);
    return outcome == ONCE_RELEASE ? ONCE_UNKNOWN : outcome; /* 69: the other side is away, so nothing was found out */
}

static once_outcome outcome_of(const job *j, int status)
{
    const once_exec_spec *exec = once_exec_of(j->item->handler);
    if (!WIFEXITED(status)) return ONCE_UNKNOWN;
    const int code = WEXITSTATUS(status);
    if (j->asks) return once_exec_found(code); /* `exit` is about the other command */
    return exec->exits ? exec->exits[code] : once_exec_exit_usual(code);
}

static void finish(job *j, int status)
{
    once_item *item = j->item;
    assert(item->started && item->driver == j && j->child.pid == 0); /* it was reaped */
    once_runner *runner = j->driver->driver.runner;
    const once_bytes line = once_tail_last_line(&j->tail);
    char how[80], limit[ONCE_DURATION_TEXT], text[sizeof how + sizeof j->tail.text + 12];
    int len = 0;
    item->outcome = outcome_of(j, status);
    item->maybe_done = item->outcome == ONCE_UNKNOWN;
    if (WIFEXITED(status)) snprintf(how, sizeof how, "exit status %d", WEXITSTATUS(status));
    else if (!WIFSIGNALED(status))
        snprintf(how, sizeof how, "its exit status was taken by another part of this program");
    else if (j->late)
        snprintf(how, sizeof how, "killed at its deadline of %s",
                 once_duration_format(item->handler->timeout_ms, limit));
    else if (j->killed) snprintf(how, sizeof how, "killed before it had ended");
    else snprintf(how, sizeof how, "ended by signal %d", WTERMSIG(status));
    if (item->outcome != ONCE_DONE)
        len = snprintf(text, sizeof text, "%s%s%s%.*s", j->asks ? "lookup: " : "", how, line.len ? ": " : "",
                       (int)line.len, line.data);
    else if (j->result.failed) len = snprintf(text, sizeof text, "out of memory for the result; not kept");
    const bool keep = item->outcome <= ONCE_STALE && !j->result.failed; /* duplicates get the whole result or none */
    once_runner_output(runner, item, keep ? once_buf_bytes(&j->result) : (once_bytes){0},
                       (once_bytes){text, (size_t)len});
    once_runner_finished(runner, item);
}

static_assert(ONCE_DONE < ONCE_STALE && ONCE_ALREADY < ONCE_STALE && ONCE_REJECTED < ONCE_STALE &&
                  ONCE_STALE < ONCE_RETRY,
              "the first four outcomes are final");

/* ---- its life ---- */

static void leave_deadlines(job *j)
{
    exec_driver *driver = j->driver;
    if (j->deadline_ms == ONCE_NEVER) return;
    *(j->prev ? &j->prev->next : &driver->first) = j->next;
    *(j->next ? &j->next->prev : &driver->last) = j->prev;
    j->next = j->prev = NULL;
    j->deadline_ms = ONCE_NEVER;
}

/* All of one handler have the same time, so the one that began last ends last. */
static void join_deadlines(job *j)
{
    exec_driver *driver = j->driver;
    assert(!driver->last || driver->last->deadline_ms <= j->deadline_ms);
    j->prev = driver->last;
    *(j->prev ? &j->prev->next : &driver->first) = j;
    driver->last = j;
}

static void close_end(job *j, once_watch *watch, int *fd)
{
    once_runner_unwatch(j->driver->driver.runner, watch);
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static void give_back(job *j)
{
    assert(j->child.pid == 0);
    leave_deadlines(j);
    close_end(j, &j->out, &j->child.out);
    close_end(j, &j->err, &j->child.err);
    close_end(j, &j->end, &j->child.pidfd);
    once_buf_release(&j->result);
    j->item = NULL;
    j->next = j->driver->spare;
    j->driver->spare = j;
}

static void keep_result(job *j, size_t n)
{
    assert(j->result.len <= j->result.max);
    const size_t room = j->result.max - j->result.len;
    once_buf_append(&j->result, j->driver->chunk, n < room ? n : room);
}

static void keep_tail(job *j, size_t n) { once_tail_keep(&j->tail, j->driver->chunk, n); }

/* Reads once, so that a command that floods its output does not delay the others. False: the pipe is closed. */
static bool read_some(job *j, int fd, void (*keep)(job *, size_t), size_t max)
{
    ssize_t n;
    do n = read(fd, j->driver->chunk, max < CHUNK ? max : CHUNK);
    while (n < 0 && errno == EINTR);
    if (n > 0) keep(j, (size_t)n);
    return n > 0 || (n < 0 && errno == EAGAIN);
}

/* Reads what is in the pipe now, without waiting for processes that still write. */
static void drain(job *j, int fd, void (*keep)(job *, size_t))
{
    int left = 0;
    if (fd < 0 || ioctl(fd, FIONREAD, &left) != 0) return;
    for (; left > 0; left -= CHUNK)
        if (!read_some(j, fd, keep, (size_t)left)) return;
}

#define JOB_OF(watch, member) ((job *)((char *)(watch)-offsetof(job, member)))

static void out_ready(once_watch *watch, uint32_t events)
{
    job *j = JOB_OF(watch, out);
    (void)events;
    if (!read_some(j, j->child.out, keep_result, CHUNK)) close_end(j, &j->out, &j->child.out);
}

static void err_ready(once_watch *watch, uint32_t events)
{
    job *j = JOB_OF(watch, err);
    (void)events;
    if (!read_some(j, j->child.err, keep_tail, CHUNK)) close_end(j, &j->err, &j->child.err);
}

static void end_ready(once_watch *watch, uint32_t events)
{
    job *j = JOB_OF(watch, end);
    int status;
    (void)events;
    if (!once_process_reap(&j->child, false, &status)) return;
    drain(j, j->child.out, keep_result);
    drain(j, j->child.err, keep_tail);
    finish(j, status);
    give_back(j);
}

static int watch_end(job *j, once_watch *watch, int fd, uint32_t events, void (*ready)(once_watch *, uint32_t),
                     once_error *err)
{
    *watch = (once_watch){.fd = fd, .ready = ready};
    return once_runner_watch(j->driver->driver.runner, watch, events, err);
}

static int watch_all(job *j, once_error *err)
{
    int rc = watch_end(j, &j->end, j->child.pidfd, EPOLLIN, end_ready, err);
    if (rc == ONCE_OK) rc = watch_end(j, &j->out, j->child.out, EPOLLIN, out_ready, err);
    if (rc == ONCE_OK) rc = watch_end(j, &j->err, j->child.err, EPOLLIN, err_ready, err);
    return rc;
}

static job *new_job(exec_driver *driver, once_item *item)
{
    job *j = driver->spare;
    if (j) {
        driver->spare = j->next;
    } else {
        j = calloc(1, sizeof *j);
        if (!j) return NULL;
        j->next_of_all = driver->all;
        driver->all = j;
    }
    *j = (job){.driver = driver,
               .item = item,
               .asks = item->decision.asks,
               .deadline_ms = ONCE_NEVER,
               .next_of_all = j->next_of_all};
    j->child = (once_child){.pidfd = -1, .in = -1, .out = -1, .err = -1};
    j->out.fd = j->err.fd = j->end.fd = -1;
    once_buf_init(&j->result, once_runner_options_of(driver->driver.runner)->spec->result_max + 1);
    return j;
}

/* Whether a question about this message can be started will not change, so it counts as one that found out nothing:
 * otherwise it would be asked again without end. */
static void run_failure(exec_driver *driver, once_item *item, int rc, const char *why)
{
    assert(rc != ONCE_OK);
    const bool of_message = once_status_class(rc) == ONCE_CLASS_MESSAGE, asks = item->decision.asks;
    once_error said;
    (void)once_fail(&said, rc, "%s%s", asks ? "lookup: " : "", why);
    if (!of_message) item->run_failure = rc;
    else item->outcome = asks ? ONCE_UNKNOWN : ONCE_DEAD;
    item->started = item->maybe_done = of_message && asks;
    once_runner_output(driver->driver.runner, item, (once_bytes){0}, (once_bytes){said.text, strlen(said.text)});
    once_runner_finished(driver->driver.runner, item);
}

static void started(job *j)
{
    once_error why;
    int status;
    j->item->started = true;
    j->item->driver = j;
    if (watch_all(j, &why) == ONCE_OK) {
        j->deadline_ms = once_runner_now_ms(j->driver->driver.runner) + j->item->handler->timeout_ms;
        join_deadlines(j);
        return;
    }
    j->killed = true; /* it runs, and its end could not be noticed */
    once_process_kill(&j->child);
    once_process_reap(&j->child, true, &status);
    finish(j, status);
    give_back(j);
}

static void start_command(exec_driver *driver, once_item *item, const char *file, char *const *argv)
{
    once_error why = {0};
    assert(file && argv && argv[0]);
    if (has_nul(item->request.key) || has_nul(item->scope.tenant)) {
        run_failure(driver, item, ONCE_E_MESSAGE,
                    "the key or the tenant has a NUL byte, which no variable of a command can carry");
        return;
    }
    job *j = new_job(driver, item);
    int rc = j && make_environment(driver, item) ? ONCE_OK : once_no_memory(&why, "for a command");
    if (rc == ONCE_OK) rc = once_process_start(file, argv, driver->envp, &item->message.body, &j->child, &why);
    if (rc == ONCE_OK) {
        started(j);
        return;
    }
    if (j) give_back(j);
    run_failure(driver, item, rc, why.text);
}

static void exec_start(once_effect_driver *base, once_item *item)
{
    exec_driver *driver = (exec_driver *)base;
    start_command(driver, item, driver->file, ((const exec_input *)item->input)->argv);
}

static void exec_ask(once_effect_driver *base, once_item *item)
{
    exec_driver *driver = (exec_driver *)base;
    assert(item->decision.asks && once_handler_asks(item->handler));
    start_command(driver, item, driver->lookup_file, ((const exec_input *)item->input)->lookup_argv);
}

static void exec_kill(once_effect_driver *base, once_item *item)
{
    job *j = item->driver;
    assert(j->item == item);
    (void)base;
    j->killed = true;
    once_process_kill(&j->child);
}

static int64_t exec_tick(once_effect_driver *base, int64_t now_ms)
{
    exec_driver *driver = (exec_driver *)base;
    while (driver->first && driver->first->deadline_ms <= now_ms) {
        job *j = driver->first;
        leave_deadlines(j);
        j->late = !j->killed;
        once_process_kill(&j->child);
    }
    return driver->first ? driver->first->deadline_ms : ONCE_NEVER;
}

/* ---- open, close ---- */

static void exec_close(once_effect_driver *base)
{
    exec_driver *driver = (exec_driver *)base;
    for (job *j = driver->all; j; j = j->next_of_all) once_process_kill(&j->child);
    for (job *j = driver->all, *next; j; j = next) {
        int status;
        next = j->next_of_all;
        if (j->child.pid) once_process_reap(&j->child, true, &status);
        if (j->item) give_back(j);
        free(j);
    }
    once_buf_release(&driver->variables);
    once_arena_release(&driver->arena);
    free(driver->file);
    free(driver->lookup_file);
    free(driver);
}

static const once_effect_driver_ops exec_ops = {
    .start = exec_start, .ask = exec_ask, .kill = exec_kill, .tick = exec_tick, .close = exec_close};

static int find_file(exec_driver *driver, const once_exec_command *command, char **out, once_error *err)
{
    const once_parsed nothing = {0};
    once_bytes name;
    assert(command->n > 0 && once_template_is_literal(command->argv[0]));
    const int rc = once_template_render_plain(command->argv[0], &nothing, &driver->arena, &name, err);
    if (rc != ONCE_OK) return rc;
    return once_exec_find(driver->driver.runner, driver->driver.handler, name.data, driver->fixed, out, err);
}

/* Everything that does not depend on the message. */
static int make_ready(exec_driver *driver, once_error *err)
{
    const once_handler_spec *handler = driver->driver.handler;
    const once_exec_spec *exec = once_exec_of(handler);
    const once_spec *spec = once_runner_options_of(driver->driver.runner)->spec;
    if (has_nul(spec->consumer) || has_nul(handler->operation))
        return once_fail(err, ONCE_E_CONFIG, "%.*s:%d: consumer and operation of a command cannot have a NUL byte",
                         (int)spec->file.len, spec->file.data, handler->line);
    int rc = once_exec_environment(driver->driver.runner, exec, &driver->arena, &driver->fixed, err);
    if (rc != ONCE_OK) return rc;
    while (driver->fixed[driver->n_fixed]) driver->n_fixed++;
    driver->envp = once_arena_new(&driver->arena, char *, driver->n_fixed + VARIABLES + 1);
    if (!driver->envp) return once_no_memory(err, "for the handlers");
    memcpy(driver->envp, driver->fixed, driver->n_fixed * sizeof *driver->envp);
    rc = find_file(driver, &exec->command, &driver->file, err);
    if (rc == ONCE_OK && once_handler_asks(handler))
        rc = find_file(driver, &exec->lookup.command, &driver->lookup_file, err);
    return rc;
}

int once_effect_driver_open_exec(once_runner *runner, const once_handler_spec *handler, once_effect_driver **out,
                                 once_error *err)
{
    assert(once_exec_of(handler)->mode == ONCE_EXEC_MESSAGE && handler->slots > 0);
    exec_driver *driver = calloc(1, sizeof *driver);
    if (!driver) return once_no_memory(err, "for the handlers");
    driver->driver = (once_effect_driver){.ops = &exec_ops, .handler = handler, .runner = runner};
    once_buf_init(&driver->variables, SIZE_MAX / 4);
    const int rc = make_ready(driver, err);
    if (rc == ONCE_OK) *out = &driver->driver;
    else exec_close(&driver->driver);
    return rc;
}
