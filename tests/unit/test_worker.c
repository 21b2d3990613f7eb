/* Whether a worker of this machine is gone, as another user sees it. */
#include <errno.h>
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
    once_store *store;
    once_worker worker;
    bool died = false;
    int seen = BROKEN;
    if (geteuid() == 0 && (setresgid(NOBODY, NOBODY, NOBODY) != 0 || setresuid(NOBODY, NOBODY, NOBODY) != 0)) return BROKEN;
    prctl(PR_SET_DUMPABLE, 1); /* or what /proc has of us is not ours any more */
    if (kill(1, 0) == 0 || errno != EPERM) return NOT_FOREIGN;
    if (once__store_open("memory:", &options, &store, NULL) != ONCE_OK) return BROKEN;
    once_worker_init(&worker, store, consumer, 7, 0);
    if (!worker.machine || !worker.started) return BROKEN;
    worker.pid = 1;
    worker.started = start_of(1);
    if (!worker.started) return NOT_FOREIGN; /* hidden: then nothing is taken for gone anyway */
    if (once_worker_begin(&worker, store, &died, NULL) != ONCE_OK || once_workers_each(store, consumer, note_state, &seen, NULL) != ONCE_OK) return BROKEN;
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
static int facts_then_it_ends(once_store *store, const char *prefix, once_fact_visit *visit, void *user, once_error *err)
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
    once_store *store;
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(f100_a_live_worker_of_another_user_is_alive),
        cmocka_unit_test(f100_one_that_ends_well_meanwhile_did_not_die)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
