/* Whether a worker of this machine is gone, as another user sees it. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "store/worker.h"

enum { NOBODY = 65534 };
enum { IS_ALIVE = 10, IS_GONE, NOT_FOREIGN, BROKEN };

static bool note_state(void *user, const once_worker *worker, once_worker_state state)
{
    if (worker->run == 7) *(int *)user = state == ONCE_WORKER_ALIVE ? IS_ALIVE : IS_GONE;
    return true;
}

static uint64_t start_of(pid_t pid)
{
    char path[64], text[1024] = "";
    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    const size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    const char *at = n ? strrchr(text, ')') : NULL;
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

/* In a process of another user than that of process 1. */
static int look_at_process_1(void)
{
    const once_store_options options = {.size = sizeof options, .create = true};
    const once_bytes consumer = ONCE_BYTES("c");
    once_backend *store;
    once_worker worker;
    bool died = false;
    int seen = BROKEN;
    if (geteuid() == 0 && (setresgid(NOBODY, NOBODY, NOBODY) != 0 || setresuid(NOBODY, NOBODY, NOBODY) != 0))
        return BROKEN;
    prctl(PR_SET_DUMPABLE, 1); /* or what /proc has of us is not ours any more */
    if (kill(1, 0) == 0 || errno != EPERM) return NOT_FOREIGN;
    if (once__store_open("memory:", &options, &store, NULL) != ONCE_OK) return BROKEN;
    once_worker_init(&worker, store, consumer, 7, 0);
    if (!worker.machine || !worker.started) return BROKEN;
    worker.pid = 1;
    worker.started = start_of(1);
    if (!worker.started) return NOT_FOREIGN; /* hidden: then nothing is taken for gone anyway */
    if (once_worker_begin(&worker, store, &died, NULL) != ONCE_OK ||
        once_workers_each(store, consumer, note_state, &seen, NULL) != ONCE_OK)
        return BROKEN;
    once__store_close(store);
    return seen;
}

/* We may not send it a signal, and that is no sign of its death. */
static void f100_a_live_worker_of_another_user_is_alive(void **state)
{
    (void)state;
    int status;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) _exit(look_at_process_1());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == NOT_FOREIGN) {
        print_message("process 1 is not another user's here, or hidden\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), IS_ALIVE);
}

/* --- one that ends well while others look --- */

static pid_t ending;
static const once_store_ops *real_ops;
static char ending_record[100];

static bool is_ended;

/* Between the first reading and what comes next, that worker ends: its record first, then its process. */
static int facts_then_it_ends(once_backend *store, const char *prefix, once_fact_visit *visit, void *user,
                              once_error *err)
{
    const int rc = real_ops->facts(store, prefix, visit, user, err);
    if (is_ended) return rc;
    is_ended = true;
    assert_int_equal(real_ops->fact_set(store, ending_record, (once_bytes){0}, err), ONCE_OK);
    assert_int_equal(kill(ending, SIGKILL), 0);
    assert_int_equal(waitpid(ending, NULL, 0), ending);
    return rc;
}

static void f100_one_that_ends_well_meanwhile_did_not_die(void **state)
{
    const once_store_options options = {.size = sizeof options, .create = true};
    const once_bytes consumer = ONCE_BYTES("c");
    once_backend *store;
    once_worker other, self;
    bool died = false;
    int seen = BROKEN;
    (void)state;
    ending = fork();
    assert_true(ending >= 0);
    if (ending == 0)
        for (;;) pause();
    assert_int_equal(once__store_open("memory:", &options, &store, NULL), ONCE_OK);
    once_worker_init(&other, store, consumer, 7, 0);
    other.pid = (uint64_t)ending;
    other.started = start_of(ending);
    assert_true(other.machine && other.started);
    assert_int_equal(once_worker_begin(&other, store, &died, NULL), ONCE_OK);
    assert_false(died);
    memcpy(ending_record, other.name, sizeof ending_record);
    once_store_ops ops = *store->ops;
    real_ops = store->ops;
    ops.facts = facts_then_it_ends;
    store->ops = &ops;
    once_worker_init(&self, store, consumer, 8, 0);
    assert_int_equal(once_worker_begin(&self, store, &died, NULL), ONCE_OK);
    assert_true(is_ended);
    assert_false(died);
    assert_int_equal(once_workers_each(store, consumer, note_state, &seen, NULL), ONCE_OK);
    assert_int_equal(seen, BROKEN); /* it is not among them */
    store->ops = real_ops;
    once__store_close(store);
}

/* --- what is certain of a process --- */

/* A child that runs `life`; *out is which process it is, as it says itself. */
static pid_t beget(void (*life)(void), once_process *out)
{
    int pipe_ends[2];
    assert_int_equal(pipe(pipe_ends), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody behind */
        const once_process self = once_env_process(once_env_real());
        if (write(pipe_ends[1], &self, sizeof self) != sizeof self) _exit(1);
        close(pipe_ends[1]);
        life();
        _exit(0);
    }
    close(pipe_ends[1]);
    assert_int_equal(read(pipe_ends[0], out, sizeof *out), sizeof *out);
    close(pipe_ends[0]);
    assert_int_equal(out->pid, child);
    assert_true(out->machine && out->started);
    return child;
}

static bool is_gone(const once_process *process) { return once_env_is_gone(once_env_real(), process); }

static void live_on(void)
{
    for (;;) pause();
}

static void *live_on_in_a_thread(void *arg)
{
    (void)arg;
    live_on();
    return NULL;
}

/* The process goes on with another thread, and looks like a zombie. */
static void end_first_thread(void)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, live_on_in_a_thread, NULL) != 0) _exit(1);
    pthread_exit(NULL);
}

static void end_at_once(void) {}

/* The state letter of /proc. */
static char state_letter(pid_t pid)
{
    char path[64], text[512] = "";
    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    const size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    const char *at = n ? strrchr(text, ')') : NULL;
    return at && at[1] ? at[2] : 0;
}

static void await_state(pid_t pid, char letter)
{
    for (int i = 0; i < 20000 && state_letter(pid) != letter; i++) usleep(1000);
    assert_int_equal(state_letter(pid), letter);
}

static void end_child(pid_t child)
{
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
}

static void f99_a_process_that_lives_is_not_gone(void **state)
{
    (void)state;
    once_process process;
    pid_t child = beget(live_on, &process);
    assert_false(is_gone(&process));
    kill(child, SIGSTOP);
    await_state(child, 'T');
    assert_false(is_gone(&process));
    once_process other = process;
    other.machine++; /* of another container, another boot, another host: nothing is known */
    assert_false(is_gone(&other));
    other = process;
    other.started = 0;
    assert_false(is_gone(&other));
    end_child(child);
    assert_true(is_gone(&process));
    other = process;
    other.machine++;
    assert_false(is_gone(&other));
    other.machine = 0;
    assert_false(is_gone(&other));
    const once_process self = once_env_process(once_env_real());
    assert_false(is_gone(&self));
}

static void f99_a_number_that_is_used_again_is_another_process(void **state)
{
    (void)state;
    once_process process;
    const pid_t child = beget(live_on, &process);
    process.started--;
    assert_true(is_gone(&process));
    end_child(child);
}

static void f99_a_zombie_is_gone_when_all_of_it_is(void **state)
{
    (void)state;
    once_process process;
    pid_t child = beget(end_at_once, &process);
    await_state(child, 'Z');
    for (int i = 0; i < 20000 && !is_gone(&process); i++)
        usleep(1000); /* threads of a sanitizer end after the first one */
    assert_true(is_gone(&process));
    end_child(child);
    child = beget(end_first_thread, &process);
    await_state(child, 'Z');
    assert_false(is_gone(&process)); /* it still works, in another thread */
    end_child(child);
}

static void f99_an_impossible_number_is_nobody(void **state)
{
    (void)state;
    once_process process = once_env_process(once_env_real());
    process.pid = 0; /* would be our own group */
    assert_false(is_gone(&process));
    process.pid = UINT64_MAX; /* would be everybody */
    assert_false(is_gone(&process));
    process.pid = (uint64_t)INT32_MAX + 1;
    assert_false(is_gone(&process));
}

/* In a namespace of process numbers of its own, but with the /proc of ours: what it says there is of others. */
static int look_from_inside(void)
{
    int status;
    if (unshare(CLONE_NEWPID) != 0) return NOT_FOREIGN;
    const pid_t child = fork();
    if (child < 0) return BROKEN;
    if (child == 0) _exit(once_env_process(once_env_real()).machine ? IS_ALIVE : IS_GONE);
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) return BROKEN;
    return WEXITSTATUS(status);
}

static void f99_a_foreign_proc_proves_nothing(void **state)
{
    (void)state;
    int status;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) _exit(look_from_inside());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == NOT_FOREIGN) {
        print_message("not allowed here: a namespace of processes\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), IS_GONE); /* of the machine nothing is said */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f100_a_live_worker_of_another_user_is_alive),
        cmocka_unit_test(f100_one_that_ends_well_meanwhile_did_not_die),
        cmocka_unit_test(f99_a_process_that_lives_is_not_gone),
        cmocka_unit_test(f99_a_number_that_is_used_again_is_another_process),
        cmocka_unit_test(f99_a_zombie_is_gone_when_all_of_it_is),
        cmocka_unit_test(f99_an_impossible_number_is_nobody),
        cmocka_unit_test(f99_a_foreign_proc_proves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
