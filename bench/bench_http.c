/* Effects over HTTP: `once run` against `wrk`, a client that does nothing but send requests, with as many calls in
 * flight, to a local server that only answers (http/answer.c).
 *
 *     bench_http [--messages N] [--full] [--rounds N] [--json] [--once PATH] [--folder DIR] [--keep]
 *
 *   a  wrk, one thread, 256 connections, the same request again and again
 *   b  once run, window 256: a file of messages, a claim and an outcome in SQLite (synchronous=FULL) for each
 *   c  the same with a server that never answers one request in a hundred: those calls end at their timeout and are
 *      held; the rate is that of the others, without the timeout of the last one, for which the end of the file waits.
 *      The timeout is such that 40 of the 256 calls wait for it at the rate of b: a fixed one would hold more of them,
 *      or all, the faster the machine is, and then the window decides, and nothing else
 *   d  as b, but through libcurl: redirects that are followed need it, as do TLS and proxies
 *
 * CPU is user and system time for each call, of the client alone; it says more than rates on a machine with other work.
 * Entrants take turns; figures are medians over the rounds, and ratios medians of the ratios of each round. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "scene.h"
#include "table.h"

#include "base/banned.h"

enum { A_WRK, B_ONCE, C_STALLED, D_LIBCURL, ENTRANTS };

#define WINDOW 256
#define SILENT_EVERY "100" /* of the requests is not answered: SILENT of them */
#define SILENT 0.01
#define WAITING 40 /* calls that wait for their timeout, on average */
#define WRK_S "4"

static scene_asked asked = {.messages = 200000, .full_messages = 2000000, .rounds = 3};

/* ---- messages ---- */

static void write_message(FILE *to, uint64_t i)
{
    fprintf(to, "{\"id\":\"%016llx\",\"amount\":%llu,\"currency\":\"EUR\",\"method\":\"card\",\"note\":\"%0180llu\"}",
            (unsigned long long)((i + 1) * 0x9e3779b97f4a7c15u), (unsigned long long)(i % 1000), (unsigned long long)i);
}

static void write_messages(void *arg)
{
    const uint64_t n = *(const uint64_t *)arg;
    FILE *to = fopen(scene_path("messages"), "we");
    if (!to) bench_die_errno("cannot write messages");
    for (uint64_t i = 0; i < n; i++) {
        write_message(to, i);
        fputc('\n', to);
    }
    if (fclose(to) != 0) bench_die_errno("cannot write messages");
}

/* ---- the server ---- */

typedef struct server {
    pid_t pid;
    int its_stdin;
    unsigned port;
} server;

static void start_server(server *s, const char *silent_every)
{
    int in[2], out[2];
    char said[16] = {0};
    char program[PATH_MAX];
    snprintf(program, sizeof program, "%s", scene_built("bench/http_answer"));
    if (pipe(in) != 0 || pipe(out) != 0) bench_die_errno("cannot make a pipe");
    s->pid = fork();
    if (s->pid < 0) bench_die_errno("cannot fork");
    if (s->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(in[0], STDIN_FILENO);
        dup2(out[1], STDOUT_FILENO);
        close(in[1]);
        execl(program, "http_answer", silent_every, (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    if (read(out[0], said, sizeof said - 1) <= 0) bench_die("the server did not start");
    close(out[0]);
    s->its_stdin = in[1];
    s->port = (unsigned)strtoul(said, NULL, 10);
}

static void end_server(server *s)
{
    close(s->its_stdin); /* which ends it */
    waitpid(s->pid, NULL, 0);
}

/* ---- a: wrk ---- */

static void write_script(void)
{
    FILE *to = fopen(scene_path("post.lua"), "we");
    if (!to) bench_die_errno("cannot write the script of wrk");
    fprintf(to, "wrk.method = 'POST'\nwrk.body = '");
    write_message(to, 1);
    fprintf(to,
            "'\nwrk.headers['Content-Type'] = 'application/json'\n"
            "wrk.headers['Idempotency-Key'] = '0123456789abcdef0123456789abcdef'\nwrk.headers['Once-Attempt'] = '1'\n");
    if (fclose(to) != 0) bench_die_errno("cannot write the script of wrk");
}

/* What one round tells of an entrant. */
typedef struct figure {
    double rate, cpu_us;
} figure;

static double cpu_us(const process_result *result, double calls)
{
    return (result->user_s + result->system_s) * 1e6 / calls;
}

static figure run_wrk(const server *s)
{
    char url[64], connections[16], program[] = "wrk", script[PATH_MAX], line[300];
    char thread[] = "-t1", seconds[] = "-d" WRK_S, with[] = "-s";
    double rate = -1, requests = -1;
    process_result result;
    snprintf(url, sizeof url, "http://127.0.0.1:%u/charges", s->port);
    snprintf(connections, sizeof connections, "-c%d", WINDOW);
    snprintf(script, sizeof script, "%s", scene_path("post.lua"));
    char *const argv[] = {program, thread, connections, seconds, with, script, url, NULL};
    process_exec("a: wrk", argv, scene_path("wrk"), NULL, 0, 0, &result);
    FILE *said = fopen(scene_path("wrk"), "re");
    if (result.status != 0 || !said) bench_die("cannot run wrk; tools/setup bench installs it");
    while (fgets(line, sizeof line, said)) {
        if (strncmp(line, "Requests/sec:", 13) == 0) rate = strtod(line + 13, NULL);
        if (strstr(line, " requests in ")) requests = strtod(line, NULL);
        if (strstr(line, "Non-2xx") || strstr(line, "Socket errors")) bench_die("wrk met errors");
    }
    fclose(said);
    if (rate <= 0 || requests <= 0) bench_die("wrk did not say how fast it was");
    return (figure){rate, cpu_us(&result, requests)};
}

/* ---- b, c, d: once run ---- */

/* So long do stalled calls wait, if calls end at `rate` by the second. */
static int timeout_ms(double rate)
{
    const int ms = (int)(WAITING / (SILENT * rate) * 1000);
    return ms < 1 ? 1 : ms;
}

static figure run_once(int entrant, const server *s, int stalled_ms)
{
    char text[4 * PATH_MAX];
    static const char *const labels[] = {
        [B_ONCE] = "b: once run", [C_STALLED] = "c: once run, 1 % stalled", [D_LIBCURL] = "d: once run, libcurl"};
    process_result result;
    const char *const arguments[] = {"run", "--json", scene_path("pipeline.yaml"), NULL};
    snprintf(text, sizeof text,
             "consumer: payments\n"
             "store: \"sqlite:%s\"\n"
             "source: {file: {path: \"%s\"}}\n"
             "key: \"${/id}\"\n"
             "handler: {http: {post: \"http://127.0.0.1:%u/charges\", window: %d, timeout: %dms, redirects: %d}}\n",
             scene_path("http.db"), scene_path("messages"), s->port, WINDOW, entrant == C_STALLED ? stalled_ms : 10000,
             entrant == D_LIBCURL);
    scene_write_file(scene_path("pipeline.yaml"), text);
    scene_remove_database(scene_path("http.db"));
    scene_once(labels[entrant], arguments, entrant == C_STALLED, NULL, 0, asked.messages, &result);
    const double done = (double)scene_said("/done");
    if (done < 0.98 * (double)asked.messages || (entrant != C_STALLED && done < (double)asked.messages))
        bench_die("not every message is done");
    const double waited_s = entrant == C_STALLED ? stalled_ms / 1000.0 : 0;
    return (figure){done / (result.seconds - waited_s), cpu_us(&result, (double)asked.messages)};
}

/* ---- figures ---- */

/* `before`: the rate of b in this round. */
static figure run(int entrant, double before)
{
    server s;
    start_server(&s, entrant == C_STALLED ? SILENT_EVERY : NULL);
    const figure told =
        entrant == A_WRK ? run_wrk(&s) : run_once(entrant, &s, entrant == C_STALLED ? timeout_ms(before) : 0);
    end_server(&s);
    return told;
}

static void add_ratio(table *t, double rate[ENTRANTS][SCENE_ROUNDS_MAX], int over, int under, double at_least,
                      const char *name, const char *label)
{
    row *r = table_add(t, name, label, 2);
    r->relation = 'g';
    r->required = at_least;
    r->value[0] = scene_median_ratio(rate[over], rate[under], asked.rounds);
    r->value[1] = -1;
}

int main(int argc, char **argv)
{
    static double rate[ENTRANTS][SCENE_ROUNDS_MAX], cpu[ENTRANTS][SCENE_ROUNDS_MAX];
    static table results = {.columns = {"rate", "CPU us"}, .names = {"rate", "cpu_us"}};
    static const char *const names[] = {"wrk", "once", "once_stalled", "once_libcurl"};
    static const char *const texts[] = {"a  wrk", "b  once run", "c  once run, 1 % of the calls stalled",
                                        "d  once run, through libcurl"};
    process_result result;
    char count[32];
    scene_parse(argc, argv, &asked);
    scene_open(&asked.scene);
    write_script();
    process_run("writing messages", write_messages, &asked.messages, NULL, 0, &result);
    for (unsigned round = 0; round < asked.rounds; round++)
        for (int entrant = 0; entrant < ENTRANTS; entrant++) {
            const figure told = run(entrant, rate[B_ONCE][round]);
            rate[entrant][round] = told.rate;
            cpu[entrant][round] = told.cpu_us;
        }
    for (int entrant = 0; entrant < ENTRANTS; entrant++) {
        row *r = table_add(&results, names[entrant], texts[entrant], 0);
        r->value[0] = scene_median(rate[entrant], asked.rounds);
        r->value[1] = scene_median(cpu[entrant], asked.rounds);
    }
    add_ratio(&results, rate, B_ONCE, A_WRK, 0.6, "once_vs_wrk", "b / a");
    add_ratio(&results, rate, C_STALLED, B_ONCE, 0.9, "stalled_vs_once", "c / b");
    if (asked.json) {
        printf("{\"bench\":\"http\",\"messages\":%llu,\"rounds\":%u", (unsigned long long)asked.messages, asked.rounds);
        table_print_json(&results);
        printf("}\n");
        return 0;
    }
    printf("\nhttp: %s messages of about 300 bytes, %d calls in flight; medians of %u interleaved rounds; calls per "
           "second\n\n",
           table_number((double)asked.messages, 0, count), WINDOW, asked.rounds);
    table_print(&results);
    return 0;
}
