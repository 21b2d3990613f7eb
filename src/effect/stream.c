/* The driver of `mode: stream` (stream_impl.h): the queue is shared by its processes, and the one with the least to do
 * gets the next message. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/no_memory.h"
#include "effect/stream_impl.h"

#include "base/banned.h"

#define LINE_SLACK (64u << 10)

/* --- sending --- */

/* A failure that passes (no memory, no process) leaves the messages queued. One that needs an operator (the command is
 * gone) gives them back: the pipeline pauses, and starts them again later. */
static void start_failed(stream_process *p, const once_error *err)
{
    stream *s = p->stream;
    once__stream_back_off(p);
    once_log(ONCE_LOG_WARN, "handler_start", "operation '%.*s': %s; tried again in %" PRId64 " ms",
             (int)s->driver.handler->operation.len, s->driver.handler->operation.data, err->text, p->backoff_ms);
    if (once_status_class(err->status) == ONCE_CLASS_RETRY) return;
    while (s->queue.first) once__stream_finish_unstarted(s, s->queue.first, err->status, err->text);
}

/* The process with the fewest messages in flight. Of two that have none, one that runs comes before one that must be
 * started. */
static stream_process *least_busy(stream *s, int64_t now_ms)
{
    stream_process *best = NULL;
    for (stream_process *p = s->processes; p < s->processes + s->n_processes; p++) {
        if (p->state == PROCESS_NONE ? now_ms < p->restart_ms : !once__stream_has_room(p)) continue;
        if (!best || p->flight.n < best->flight.n || (p->flight.n == best->flight.n && p->state > best->state))
            best = p;
    }
    return best;
}

static void send_queued(stream *s, int64_t now_ms)
{
    stream_process *p;
    once_error err = {0};
    do {
        while (s->queue.first && (p = least_busy(s, now_ms))) {
            if (p->state == PROCESS_RUNS) once__stream_send(p);
            else if (once__stream_start_process(p, &err) != ONCE_OK) start_failed(p, &err);
        }
        for (p = s->processes; p < s->processes + s->n_processes; p++)
            if (p->in.fd < 0) once__stream_write_lines(p); /* otherwise the pipe is full, and the loop writes later */
    } while (s->queue.first && least_busy(s, now_ms));
}

/* --- the driver --- */

static stream *stream_of(once_effect_driver *driver) { return (stream *)driver; }

static void stream_start(once_effect_driver *driver, once_item *item)
{
    stream *s = stream_of(driver);
    assert(s->unused || s->calls_used < driver->handler->slots);
    stream_call *c = s->unused ? s->unused : &s->calls[s->calls_used++];
    if (c == s->unused) s->unused = c->next;
    *c = (stream_call){.item = item};
    item->driver = c;
    once__stream_insert(&s->queue, c, NULL);
}

static void stream_kill(once_effect_driver *driver, once_item *item)
{
    stream *s = stream_of(driver);
    stream_call *c = item->driver;
    assert(c->item == item);
    stream_process *p = c->process;
    if (p && c->begin >= p->sent) once__stream_requeue_unwritten(p);
    if (!c->process) {
        once__stream_finish_unstarted(s, c, ONCE_OK, "told to end before it began");
        return;
    }
    if (p->why[0] == '\0') snprintf(p->why, sizeof p->why, "was killed before it replied");
    p->kill_wanted = true;
    once__stream_kill_process(p);
}

static int64_t process_tick(stream_process *p, int64_t now_ms)
{
    const int64_t timeout_ms = p->stream->driver.handler->timeout_ms;
    if (p->state == PROCESS_RUNS && p->flight.first) {
        if (now_ms - p->oldest_ms < timeout_ms) return p->oldest_ms + timeout_ms;
        snprintf(p->why, sizeof p->why, "was killed: no reply to its oldest message for %" PRId64 " ms", timeout_ms);
        once__stream_kill_process(p);
    }
    if (p->state == PROCESS_ENDS && now_ms >= p->kill_ms) once__stream_kill_process(p);
    return p->state == PROCESS_ENDS                             ? p->kill_ms
           : p->state == PROCESS_NONE && p->stream->queue.first ? p->restart_ms
                                                                : ONCE_NEVER;
}

static int64_t stream_tick(once_effect_driver *driver, int64_t now_ms)
{
    stream *s = stream_of(driver);
    int64_t next_ms = ONCE_NEVER;
    send_queued(s, now_ms);
    for (stream_process *p = s->processes; p < s->processes + s->n_processes; p++) {
        const int64_t due_ms = process_tick(p, now_ms);
        if (due_ms < next_ms) next_ms = due_ms;
    }
    return next_ms;
}

/* They see the end of their input, and have a moment to end by themselves. */
static void end_all(stream *s)
{
    const int64_t kill_ms = once_runner_now_ms(s->driver.runner) + ONCE_STREAM_GRACE_MS;
    int status;
    for (stream_process *p = s->processes; p < s->processes + s->n_processes; p++) {
        if (p->state == PROCESS_NONE) continue;
        once__stream_unwatch(p, &p->in);
        if (p->child.in >= 0) close(p->child.in);
        p->child.in = -1;
    }
    for (stream_process *p = s->processes; p < s->processes + s->n_processes; p++) {
        if (p->state == PROCESS_NONE) continue;
        struct pollfd end = {.fd = p->child.pidfd, .events = POLLIN};
        int64_t left_ms;
        while ((left_ms = kill_ms - once_runner_now_ms(s->driver.runner)) > 0 && poll(&end, 1, (int)left_ms) < 0 &&
               errno == EINTR) {
        }
        once_process_kill(&p->child);
        once_process_reap(&p->child, true, &status);
        once__stream_reset_process(p);
    }
}

static void stream_free(stream *s)
{
    for (stream_process *p = s->processes; p && p < s->processes + s->n_processes; p++) {
        once_buf_release(&p->lines);
        free(p->replies);
        free(p->by_id);
    }
    free(s->processes);
    free(s->calls);
    free(s->file);
    once_json_release(&s->json);
    once_arena_release(&s->scratch);
    once_arena_release(&s->arena);
    free(s);
}

static void stream_close(once_effect_driver *driver)
{
    stream *s = stream_of(driver);
    end_all(s);
    stream_free(s);
}

static const once_effect_driver_ops stream_ops = {
    .start = stream_start, .kill = stream_kill, .tick = stream_tick, .close = stream_close};

/* --- opening --- */

static int read_command(stream *s, once_error *err)
{
    const once_exec_spec *exec = once_exec_of(s->driver.handler);
    const once_parsed nothing = {0};
    const once_exec_command *command = &exec->command;
    s->argv = once_arena_new(&s->arena, char *, command->n + 1);
    if (!s->argv) return once_no_memory(err, "for the handlers");
    int rc = once_exec_environment(s->driver.runner, exec, &s->arena, &s->envp, err);
    for (size_t i = 0; i < command->n && rc == ONCE_OK; i++) {
        once_bytes argument;
        assert(once_template_is_literal(command->argv[i]));
        rc = once_template_render_plain(command->argv[i], &nothing, &s->arena, &argument, err);
        if (rc == ONCE_OK) s->argv[i] = (char *)argument.data;
    }
    return rc == ONCE_OK ? once_exec_find(s->driver.runner, s->driver.handler, s->argv[0], s->envp, &s->file, err) : rc;
}

static bool make_process(stream *s, stream_process *p)
{
    *p = (stream_process){
        .stream = s, .child = {.pidfd = -1, .in = -1, .out = -1, .err = -1}, .next_id = 1, .width = s->window};
    p->in = (once_watch){.fd = -1, .ready = once__stream_on_in};
    p->out = (once_watch){.fd = -1, .ready = once__stream_on_out};
    p->err = (once_watch){.fd = -1, .ready = once__stream_on_err};
    p->end = (once_watch){.fd = -1, .ready = once__stream_on_end};
    once_buf_init(&p->lines, SIZE_MAX / 4);
    p->by_id = calloc((size_t)s->mask + 1, sizeof(stream_call *));
    return p->by_id;
}

static bool make_processes(stream *s)
{
    const once_handler_spec *handler = s->driver.handler;
    const uint32_t processes = once_exec_of(handler)->processes;
    s->calls = calloc(handler->slots, sizeof *s->calls);
    s->processes = calloc(processes, sizeof *s->processes);
    if (!s->calls || !s->processes) return false;
    for (; s->n_processes < processes; s->n_processes++)
        if (!make_process(s, &s->processes[s->n_processes])) return false;
    return true;
}

int once_effect_driver_open_stream(once_runner *runner, const once_handler_spec *handler, once_effect_driver **out,
                                   once_error *err)
{
    const once_exec_spec *exec = once_exec_of(handler);
    assert(exec->mode == ONCE_EXEC_STREAM && exec->window > 0 && exec->processes > 0 && handler->slots > 0);
    stream *s = calloc(1, sizeof *s);
    if (!s) return once_no_memory(err, "for the handlers");
    s->driver = (once_effect_driver){.ops = &stream_ops, .handler = handler, .runner = runner};
    s->window = exec->window;
    s->line_max = 6 * once_runner_options_of(runner)->spec->result_max + LINE_SLACK;
    for (s->mask = 1; s->mask < s->window; s->mask = 2 * s->mask + 1) {
    }
    once_json_init(&s->json);
    once_arena_init(&s->arena);
    once_arena_init(&s->scratch);
    int rc = read_command(s, err);
    if (rc == ONCE_OK && !make_processes(s)) rc = once_no_memory(err, "for the handlers");
    if (rc != ONCE_OK) {
        stream_free(s);
        return rc;
    }
    *out = &s->driver;
    return ONCE_OK;
}
