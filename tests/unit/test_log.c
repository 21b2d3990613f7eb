/* The log: formats, levels, many threads, and a standard error that blocks. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/env.h"
#include "base/log.h"

static int64_t now_ms(void) { return once_env_mono_ns(once_env_real()) / 1000000; }

typedef struct log_pipe {
    int in, out; /* we read from `in`, the log writes to `out` */
    once_buf text;
} log_pipe;

/* `size` 0: as the system makes it. */
static void pipe_open(log_pipe *p, int size)
{
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    *p = (log_pipe){.in = ends[0], .out = ends[1]};
    once_buf_init(&p->text, 64 << 20);
    if (size > 0) assert_true(fcntl(p->out, F_SETPIPE_SZ, size) >= size);
}

/* Reads what is there; false when nothing came within `wait_ms`, or at the end. */
static bool pipe_read(log_pipe *p, int wait_ms)
{
    struct pollfd ready = {.fd = p->in, .events = POLLIN};
    if (poll(&ready, 1, wait_ms) <= 0) return false;
    char chunk[65536];
    ssize_t got = read(p->in, chunk, sizeof chunk);
    return got > 0 && once_buf_append(&p->text, chunk, (size_t)got);
}

static void pipe_close(log_pipe *p)
{
    if (p->in >= 0) close(p->in);
    close(p->out);
    once_buf_release(&p->text);
}

/* Reads until `last` has come, closes the log, and returns all that was written to it. */
static const char *pipe_finish(log_pipe *p, const char *last)
{
    while (!p->text.data || !strstr(p->text.data, last)) assert_true(pipe_read(p, 10000));
    once_log_close();
    while (pipe_read(p, 0)) continue;
    return p->text.data;
}

static void wait_for_dropped(uint64_t lines)
{
    int64_t start_ms = now_ms();
    while (once_log_dropped() < lines) {
        assert_true(now_ms() - start_ms < 10000);
        once_env_sleep_ms(once_env_real(), 1);
    }
}

/* ---- lines ---- */

static void logfmt_line(void **state)
{
    (void)state;
    log_pipe p;
    pipe_open(&p, 0);
    assert_true(once_log_open_fd(p.out, ONCE_LOG_LOGFMT, ONCE_LOG_INFO));
    once_log(ONCE_LOG_INFO, "store_open", "path '%s' has\n\"%d\" keys", "a.db", 7);
    once_log(ONCE_LOG_WARN, "plain", "bare");
    once_log(ONCE_LOG_ERROR, "no_text", "%s", "");
    const char *text = pipe_finish(&p, "event=no_text\n");
    assert_memory_equal(text, "time=2", 6);
    assert_non_null(strstr(text, "Z level=info event=store_open msg=\"path 'a.db' has\\n\\\"7\\\" keys\"\n"));
    assert_non_null(strstr(text, " level=warn event=plain msg=bare\n"));
    assert_non_null(strstr(text, " level=error event=no_text\n"));
    pipe_close(&p);
}

static void json_line(void **state)
{
    (void)state;
    log_pipe p;
    pipe_open(&p, 0);
    assert_true(once_log_open_fd(p.out, ONCE_LOG_JSON, ONCE_LOG_INFO));
    once_log(ONCE_LOG_INFO, "store_open", "bad \xff byte, \"quoted\"");
    const char *text = pipe_finish(&p, "}\n");
    assert_memory_equal(text, "{\"time\":\"2", 10);
    assert_non_null(strstr(text, "Z\",\"level\":\"info\",\"event\":\"store_open\","
                                 "\"msg\":\"bad \xef\xbf\xbd byte, \\\"quoted\\\"\"}\n"));
    pipe_close(&p);
}

static void levels_filter_and_have_names(void **state)
{
    (void)state;
    log_pipe p;
    pipe_open(&p, 0);
    assert_true(once_log_open_fd(p.out, ONCE_LOG_LOGFMT, ONCE_LOG_WARN));
    assert_true(once_log_wants(ONCE_LOG_ERROR));
    assert_false(once_log_wants(ONCE_LOG_INFO));
    once_log(ONCE_LOG_INFO, "quiet", "x");
    once_log(ONCE_LOG_DEBUG, "quiet", "x");
    once_log(ONCE_LOG_WARN, "loud", "x");
    const char *text = pipe_finish(&p, "loud");
    assert_null(strstr(text, "quiet"));
    assert_non_null(strstr(text, "loud"));
    pipe_close(&p);

    once_log_level level = ONCE_LOG_WARN;
    assert_false(once_log_level_parse("INFO", &level));
    assert_int_equal(level, ONCE_LOG_WARN);
    for (int i = 0; i < ONCE_LOG_LEVELS; i++) {
        assert_true(once_log_level_parse(once_log_level_name((once_log_level)i), &level));
        assert_int_equal(level, i);
    }
}

static void silent_while_not_open(void **state)
{
    (void)state;
    once_log_close();
    once_log(ONCE_LOG_ERROR, "nobody", "listens");
    log_pipe p;
    pipe_open(&p, 0);
    assert_true(once_log_open_fd(p.out, ONCE_LOG_LOGFMT, ONCE_LOG_DEBUG));
    once_log_close();
    once_log(ONCE_LOG_ERROR, "nobody", "listens");
    while (pipe_read(&p, 0)) continue;
    assert_int_equal(p.text.len, 0);
    pipe_close(&p);
}

static void errno_and_long_messages(void **state)
{
    (void)state;
    log_pipe p;
    pipe_open(&p, 4096);
    assert_true(once_log_open_fd(p.out, ONCE_LOG_JSON, ONCE_LOG_DEBUG));
    char *text = malloc(100001);
    memset(text, '\x01', 100000); /* each byte takes six in JSON: more than the pipe holds */
    text[100000] = '\0';
    errno = ERANGE;
    once_log(ONCE_LOG_INFO, "long", "%s", text);
    assert_int_equal(errno, ERANGE);
    once_log(ONCE_LOG_INFO, "next", "x");
    pipe_finish(&p, "next");
    assert_in_range(p.text.len, 6 * 2000, 6 * 2100);
    assert_int_equal(once_log_dropped(), 0);
    free(text);
    pipe_close(&p);
}

/* ---- many threads (tsan) ---- */

enum { THREADS = 4, LINES_EACH = 300 };

static void *log_some(void *argument)
{
    int thread = (int)(intptr_t)argument;
    for (int i = 0; i < LINES_EACH; i++) once_log(ONCE_LOG_INFO, "work", "thread %d line %d", thread, i);
    return NULL;
}

static void lines_of_many_threads_stay_whole_and_in_order(void **state)
{
    (void)state;
    log_pipe p;
    pipe_open(&p, 0);
    assert_true(once_log_open_fd(p.out, ONCE_LOG_LOGFMT, ONCE_LOG_INFO));
    pthread_t threads[THREADS];
    for (intptr_t i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, log_some, (void *)i), 0);
    int seen = 0, next[THREADS] = {0};
    size_t at = 0;
    while (seen < THREADS * LINES_EACH) {
        assert_true(pipe_read(&p, 10000));
        for (char *end; (end = memchr(p.text.data + at, '\n', p.text.len - at)); at = (size_t)(end - p.text.data) + 1) {
            int thread = -1, line = -1;
            const char *message = strstr(p.text.data + at, "msg=");
            assert_int_equal(sscanf(message, "msg=\"thread %d line %d\"\n", &thread, &line), 2);
            assert_in_range(thread, 0, THREADS - 1);
            assert_int_equal(line, next[thread]++);
            seen++;
        }
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    assert_int_equal(once_log_dropped(), 0);
    once_log_close();
    pipe_close(&p);
}

/* ---- fault 68: stderr blocked, its disk full, its reader gone ---- */

/* Goes through the whole lines from `*at` on and adds up those that came and those that were reported as dropped. */
static void count_lines(const once_buf *text, size_t *at, long *came, long *dropped)
{
    const char *mark = "event=log_dropped msg=\"";
    for (char *end; (end = memchr(text->data + *at, '\n', text->len - *at)); *at = (size_t)(end - text->data) + 1) {
        const char *line = text->data + *at;
        const char *report = memmem(line, (size_t)(end - line), mark, strlen(mark));
        if (report) *dropped += strtol(report + strlen(mark), NULL, 10);
        else (*came)++;
    }
}

static void f68_a_blocked_stderr_does_not_slow_the_caller(void **state)
{
    (void)state;
    enum { LINES = 20000 };
    log_pipe p;
    pipe_open(&p, 4096);
    assert_true(once_log_open_fd(p.out, ONCE_LOG_LOGFMT, ONCE_LOG_INFO));
    int64_t start_ms = now_ms();
    for (int i = 0; i < LINES; i++) once_log(ONCE_LOG_INFO, "work", "line %d of a flood that nobody reads", i);
    assert_true(now_ms() - start_ms < 5000);
    assert_true(once_log_dropped() > LINES / 2);

    /* Now somebody reads: every line comes or is reported, the last ones too although no line follows them. */
    long came = 0, dropped = 0;
    size_t at = 0;
    while (came + dropped < LINES) {
        assert_true(pipe_read(&p, 10000));
        count_lines(&p.text, &at, &came, &dropped);
    }
    assert_int_equal(came + dropped, LINES);
    assert_true(came > 100);
    assert_int_equal(dropped, once_log_dropped());

    once_log(ONCE_LOG_INFO, "after", "all is well");
    pipe_finish(&p, "event=after");
    pipe_close(&p);
}

static void f68_close_does_not_hang_on_a_blocked_stderr(void **state)
{
    (void)state;
    log_pipe p;
    pipe_open(&p, 4096);
    assert_true(once_log_open_fd(p.out, ONCE_LOG_JSON, ONCE_LOG_INFO));
    for (int i = 0; i < 1000; i++) once_log(ONCE_LOG_INFO, "work", "line %d", i);
    int64_t start_ms = now_ms();
    once_log_close();
    assert_in_range(now_ms() - start_ms, 150, 2000);

    log_pipe other; /* the log can be opened again, although the old writer may still hang */
    pipe_open(&other, 0);
    assert_true(once_log_open_fd(other.out, ONCE_LOG_LOGFMT, ONCE_LOG_INFO));
    once_log(ONCE_LOG_INFO, "again", "x");
    pipe_finish(&other, "event=again");
    pipe_close(&other);
    once_env_sleep_ms(once_env_real(), 200); /* until the old writer has seen that it is alone */
    pipe_close(&p);
}

static void f68_a_full_disk_costs_lines_and_nothing_else(void **state)
{
    (void)state;
    int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    if (full < 0) skip();
    assert_true(once_log_open_fd(full, ONCE_LOG_LOGFMT, ONCE_LOG_INFO));
    int64_t start_ms = now_ms();
    for (int i = 0; i < 1000; i++) once_log(ONCE_LOG_INFO, "work", "line %d", i);
    assert_true(now_ms() - start_ms < 5000);
    wait_for_dropped(1000);
    start_ms = now_ms();
    once_log_close();
    assert_true(now_ms() - start_ms < 1000);
    assert_int_equal(once_log_dropped(), 1000);
    close(full);
}

static void f68_the_gap_is_reported_when_the_disk_has_room_again(void **state)
{
    (void)state;
    log_pipe p;
    pipe_open(&p, 0);
    int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    if (full < 0) skip();
    int target = dup(full);
    assert_true(once_log_open_fd(target, ONCE_LOG_LOGFMT, ONCE_LOG_INFO));
    for (int i = 0; i < 5; i++) once_log(ONCE_LOG_INFO, "lost", "line %d", i);
    wait_for_dropped(5);
    assert_int_equal(dup2(p.out, target), target); /* room again */
    once_log(ONCE_LOG_INFO, "after", "x");
    const char *text = pipe_finish(&p, "event=after");
    const char *report = strstr(text, "event=log_dropped msg=\"5 lines were not logged\"");
    assert_non_null(report);
    assert_non_null(strstr(report, "event=after"));
    close(full);
    close(target);
    pipe_close(&p);
}

static void f68_a_closed_stderr_does_not_kill_us(void **state)
{
    (void)state;
    log_pipe p;
    pipe_open(&p, 0);
    close(p.in);
    p.in = -1;
    assert_true(once_log_open_fd(p.out, ONCE_LOG_LOGFMT, ONCE_LOG_INFO));
    for (int i = 0; i < 100; i++) once_log(ONCE_LOG_INFO, "work", "line %d", i);
    wait_for_dropped(100);
    once_log_close(); /* SIGPIPE would have ended the process */
    assert_int_equal(once_log_dropped(), 100);
    pipe_close(&p);
}

/* What still waits when the log is closed is lost, and counted as that. */
static void f68_what_is_not_taken_until_the_end_is_counted(void **state)
{
    enum { LINES = 500 };
    (void)state;
    log_pipe p;
    pipe_open(&p, 4096);
    assert_true(once_log_open_fd(p.out, ONCE_LOG_LOGFMT, ONCE_LOG_INFO));
    for (int i = 0; i < LINES; i++) once_log(ONCE_LOG_INFO, "work", "line %d", i);
    once_log_close(); /* nobody reads */
    const uint64_t lost = once_log_dropped();
    while (pipe_read(&p, 0)) continue;
    long came = 0;
    for (size_t i = 0; i < p.text.len; i++) came += p.text.data[i] == '\n';
    assert_true(came > 0);
    assert_int_equal(came + (long)lost, LINES);
    pipe_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logfmt_line),
        cmocka_unit_test(json_line),
        cmocka_unit_test(levels_filter_and_have_names),
        cmocka_unit_test(silent_while_not_open),
        cmocka_unit_test(errno_and_long_messages),
        cmocka_unit_test(lines_of_many_threads_stay_whole_and_in_order),
        cmocka_unit_test(f68_a_blocked_stderr_does_not_slow_the_caller),
        cmocka_unit_test(f68_close_does_not_hang_on_a_blocked_stderr),
        cmocka_unit_test(f68_a_full_disk_costs_lines_and_nothing_else),
        cmocka_unit_test(f68_the_gap_is_reported_when_the_disk_has_room_again),
        cmocka_unit_test(f68_a_closed_stderr_does_not_kill_us),
        cmocka_unit_test(f68_what_is_not_taken_until_the_end_is_counted),
    };
    return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
