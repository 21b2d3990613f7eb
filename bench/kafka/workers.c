/* kafka/workers.h says what it does. */
#include "kafka/workers.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kafka/broker.h"
#include "process.h"
#include "scene.h"

#include "base/banned.h"

enum { LOOK_MS = 10 };

int workers_start(const char *once, const char *config, const char *log)
{
    const pid_t parent = getpid(), pid = fork();
    if (pid < 0) bench_die_errno("cannot fork");
    if (pid > 0) return pid;
    const int to = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || to < 0 || dup2(to, 1) < 0 || dup2(to, 2) < 0) _exit(126);
    execl(once, "once", "run", "--json", "--new-store", config, (char *)NULL);
    _exit(127);
}

static __attribute__((noreturn)) void die_with_log(const char *log)
{
    char text[2000];
    FILE *from = fopen(log, "re");
    if (from) fwrite(text, 1, fread(text, 1, sizeof text, from), stderr);
    bench_die("a worker ended");
}

void workers_alive(int pid, const char *log)
{
    if (waitpid(pid, NULL, WNOHANG) != 0) die_with_log(log);
}

void workers_stop(int pid, const char *log)
{
    int status = 0;
    kill(pid, SIGTERM);
    if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0) die_with_log(log);
}

typedef struct watch {
    const workers_job *job;
    workers_result *result;
} watch;

static void watch_workers(const watch *w, const int *pids, const char *const *logs, double from)
{
    const workers_job *job = w->job;
    double quarter_s = 0;
    uint64_t quarter = 0;
    rd_kafka_t *client = broker_client(
        RD_KAFKA_CONSUMER, (const char *const[]){"group.id", job->group, "enable.auto.commit", "false", NULL});
    for (uint64_t committed = 0; committed < job->messages; poll(NULL, 0, LOOK_MS)) {
        committed = broker_committed(client, job->topic);
        const double now = bench_now_s();
        w->result->progress = committed;
        if (quarter == 0 && committed * 4 >= job->messages) {
            quarter = committed;
            quarter_s = now;
        }
        if (w->result->third_mib == 0 && committed * 3 >= job->messages)
            w->result->third_mib = process_resident_mib(pids[0]);
        w->result->seconds = now - from;
        w->result->late_rate = (double)(committed - quarter) / (now - quarter_s);
        for (unsigned i = 0; i < job->workers; i++) workers_alive(pids[i], logs[i]);
    }
    w->result->end_mib = process_resident_mib(pids[0]);
    rd_kafka_destroy(client);
}

static void work(void *arg)
{
    static const char *const names[WORKERS_MAX] = {"worker-0.log", "worker-1.log"};
    const watch *w = arg;
    const char *logs[WORKERS_MAX];
    int pids[WORKERS_MAX];
    const double from = bench_now_s();
    for (unsigned i = 0; i < w->job->workers; i++) {
        logs[i] = scene_path(names[i]);
        pids[i] = workers_start(w->job->once, w->job->config, logs[i]);
    }
    watch_workers(w, pids, logs, from);
    for (unsigned i = 0; i < w->job->workers; i++) workers_stop(pids[i], logs[i]);
}

void workers_run(const workers_job *job, workers_result *result)
{
    process_result process;
    workers_result *shared = process_share(sizeof *shared);
    watch w = {job, shared};
    sync(); /* what went before is not to be paid by what comes now */
    process_run(job->label, work, &w, &shared->progress, job->messages, &process);
    *result = *shared;
}
