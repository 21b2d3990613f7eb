/* What operators decide: resolve, replay, discard, forget. A run leaves two unknown ones,
 * two letters and one that is done; each test begins there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "once/once.h"
#include "runtime/known_store.h"
#include "runtime/operate.h"

typedef struct fixture {
    char dir[40];
    once_pipeline *pipeline;
    once_error err;
    unsigned ran;     /* so many messages */
    once_outcome say; /* instead of what a message asks for; ONCE_OUTCOMES: that */
} fixture;

static once_outcome serve(void *user, const once_call *call, once_reply *reply)
{
    fixture *f = user;
    const char key = call->delivery->key.data[0];
    f->ran++;
    once_reply_reason(reply, "as it was told");
    if (f->say != ONCE_OUTCOMES) return f->say;
    return key == 'u' ? ONCE_UNKNOWN : key == 'd' ? ONCE_DEAD : ONCE_DONE;
}

static void write_file(const fixture *f, const char *name, const char *text)
{
    char path[80];
    snprintf(path, sizeof path, "%s/%s", f->dir, name);
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    fputs(text, out);
    fclose(out);
}

static void load(fixture *f)
{
    char path[80];
    once_pipeline_free(f->pipeline);
    f->pipeline = NULL;
    snprintf(path, sizeof path, "%s/p.yaml", f->dir);
    if (once_pipeline_load(path, NULL, NULL, &f->pipeline, &f->err) != ONCE_OK) fail_msg("%s", f->err.text);
    assert_int_equal(once_pipeline_callback(f->pipeline, "serve", serve, f, &f->err), ONCE_OK);
}

static once_summary run(fixture *f)
{
    once_summary summary;
    load(f);
    f->ran = 0;
    if (once_pipeline_run(f->pipeline, NULL, &summary, &f->err) != ONCE_OK) fail_msg("%s", f->err.text);
    return summary;
}

static int setup(void **state)
{
    fixture *f = *state = calloc(1, sizeof *f);
    char yaml[400];
    memcpy(f->dir, "/tmp/once-operators-XXXXXX", 27);
    assert_non_null(mkdtemp(f->dir));
    f->say = ONCE_OUTCOMES;
    snprintf(yaml, sizeof yaml,
             "consumer: c\nstore: sqlite:%s/s.db\nsource: {file: {path: %s/in.ndjson}}\nkey: \"${/id}\"\n"
             "handler: {callback: serve, unknown: hold}\n",
             f->dir, f->dir);
    write_file(f, "p.yaml", yaml);
    write_file(f, "in.ndjson", "{\"id\":\"u1\"}\n{\"id\":\"u2\"}\n{\"id\":\"d1\"}\n{\"id\":\"d2\"}\n{\"id\":\"ok\"}\n");
    const once_summary summary = run(f);
    assert_true(summary.counts.unknown == 2 && summary.counts.dead == 2 && summary.counts.done == 1);
    load(f);
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    char command[80];
    once_pipeline_free(f->pipeline);
    snprintf(command, sizeof command, "rm -rf '%s'", f->dir);
    free(f);
    return system(command) == 0 ? 0 : -1;
}

static bool count_listed(void *user, const once_listed *item)
{
    (void)item;
    ++*(unsigned *)user;
    return true;
}

static unsigned listed(fixture *f, unsigned what)
{
    unsigned n = 0;
    assert_int_equal(once_pipeline_list(f->pipeline, what, count_listed, &n, &f->err), ONCE_OK);
    return n;
}

static bool count_audit(void *user, const once_audited *record)
{
    assert_true(record->who.len > 0 && record->what.len > 0);
    ++*(unsigned *)user;
    return true;
}

static unsigned audits(fixture *f)
{
    unsigned n = 0;
    assert_int_equal(once_pipeline_audits(f->pipeline, count_audit, &n, &f->err), ONCE_OK);
    return n;
}

static int resolve(fixture *f, const char *key, once_outcome outcome, bool dry_run, uint64_t *n)
{
    const once_bytes bytes = {key, key ? strlen(key) : 0};
    const once_resolve_options options = {.size = sizeof options,
                                          .outcome = outcome,
                                          .key = key ? &bytes : NULL,
                                          .choice = {.since_ms = ONCE_NO_TIME, .until_ms = ONCE_NO_TIME},
                                          .dry_run = dry_run};
    return once_pipeline_resolve(f->pipeline, &options, n, &f->err);
}

static void an_unknown_is_resolved_once(void **state)
{
    fixture *f = *state;
    uint64_t n = 9;
    assert_int_equal(resolve(f, "u1", ONCE_DONE, false, &n), ONCE_OK);
    assert_int_equal(n, 1);
    assert_int_equal(resolve(f, "u1", ONCE_RETRY, false, &n), ONCE_E_USAGE); /* it is done */
    assert_int_equal(resolve(f, "ok", ONCE_DONE, false, &n), ONCE_E_USAGE);
    assert_int_equal(resolve(f, "nobody", ONCE_DONE, false, &n), ONCE_E_USAGE);
    assert_int_equal(resolve(f, "u2", ONCE_UNKNOWN, false, &n), ONCE_E_USAGE);
    assert_int_equal(listed(f, ONCE_LIST_UNKNOWN), 1);
    assert_int_equal(audits(f), 1);
    const once_summary summary = run(f); /* the file once more: nothing runs */
    assert_true(summary.counts.duplicates == 4 && summary.counts.unknown == 1);
    assert_int_equal(f->ran, 0);
}

static void all_unknown_ones_are_tried_again_or_buried(void **state)
{
    fixture *f = *state;
    uint64_t n = 0;
    assert_int_equal(resolve(f, NULL, ONCE_RETRY, true, &n), ONCE_OK);
    assert_int_equal(n, 2);
    assert_int_equal(listed(f, ONCE_LIST_UNKNOWN), 2); /* it was a dry run */
    assert_int_equal(audits(f), 0);
    assert_int_equal(resolve(f, "u2", ONCE_DEAD, false, &n), ONCE_OK);
    assert_int_equal(listed(f, ONCE_LIST_DEAD), 3);
    assert_int_equal(resolve(f, NULL, ONCE_RETRY, false, &n), ONCE_OK);
    assert_int_equal(n, 1);
    f->say = ONCE_DONE;
    const once_summary summary = run(f);
    assert_int_equal(f->ran, 1);
    assert_int_equal(summary.counts.done, 1);
    assert_int_equal(summary.counts.repeats, 1); /* it may have happened before */
}

static int replay(fixture *f, bool dry_run, once_replay_counts *counts)
{
    const once_replay_options options = {
        .size = sizeof options, .choice = {.since_ms = ONCE_NO_TIME, .until_ms = ONCE_NO_TIME}, .dry_run = dry_run};
    return once_pipeline_replay(f->pipeline, &options, counts, &f->err);
}

static void letters_go_back_to_work(void **state)
{
    fixture *f = *state;
    once_replay_counts counts;
    assert_int_equal(replay(f, true, &counts), ONCE_OK);
    assert_int_equal(counts.verdicts[ONCE_REPLAY_run], 2);
    assert_true(listed(f, ONCE_LIST_DEAD) == 2 && audits(f) == 0);
    assert_int_equal(replay(f, false, &counts), ONCE_OK);
    assert_int_equal(counts.verdicts[ONCE_REPLAY_run], 2);
    assert_true(listed(f, ONCE_LIST_DEAD) == 0 && listed(f, ONCE_LIST_WAITING) == 2 && audits(f) == 2);
    assert_int_equal(replay(f, false, &counts), ONCE_OK); /* there is nothing left */
    assert_int_equal(counts.verdicts[ONCE_REPLAY_run], 0);
    f->say = ONCE_DONE;
    assert_int_equal(run(f).counts.done, 2);
    assert_int_equal(f->ran, 2);
}

static void a_letter_that_is_discarded_does_not_come_back(void **state)
{
    fixture *f = *state;
    uint64_t n = 0;
    once_discard_options options = {
        .size = sizeof options, .choice = {.since_ms = ONCE_NO_TIME, .until_ms = ONCE_NO_TIME}, .dry_run = true};
    assert_int_equal(once_pipeline_discard(f->pipeline, &options, &n, &f->err), ONCE_OK);
    assert_true(n == 2 && listed(f, ONCE_LIST_DEAD) == 2 && audits(f) == 0);
    const uint64_t ids[] = {1, 4711};
    options.ids = ids;
    options.n_ids = 2;
    options.dry_run = false;
    assert_int_equal(once_pipeline_discard(f->pipeline, &options, &n, &f->err), ONCE_OK);
    assert_true(n == 1 && listed(f, ONCE_LIST_DEAD) == 1 && audits(f) == 1);
    assert_int_equal(run(f).counts.dead, 0);
    assert_int_equal(f->ran, 0);
}

static void a_key_that_is_forgotten_runs_again(void **state)
{
    fixture *f = *state;
    const char *was = NULL;
    assert_int_equal(
        once_pipeline_forget(f->pipeline, (once_bytes){0}, ONCE_BYTES("handler"), ONCE_BYTES("ok"), &was, &f->err),
        ONCE_OK);
    assert_string_equal(was, "done");
    assert_int_equal(
        once_pipeline_forget(f->pipeline, (once_bytes){0}, ONCE_BYTES("handler"), ONCE_BYTES("ok"), &was, &f->err),
        ONCE_OK);
    assert_string_equal(was, "absent");
    assert_int_equal(audits(f), 1);
    assert_int_equal(run(f).counts.done, 1);
    assert_int_equal(f->ran, 1);
}

/* Structs of an older header are read as far as they go, and of a newer one not at all. */
static void options_say_their_size(void **state)
{
    fixture *f = *state;
    once_replay_counts counts;
    once_replay_options replay_options = {.size = sizeof replay_options + 8};
    once_discard_options discard_options = {.size = 3};
    uint64_t n;
    assert_int_equal(once_pipeline_replay(f->pipeline, &replay_options, &counts, &f->err), ONCE_E_USAGE);
    assert_int_equal(once_pipeline_discard(f->pipeline, &discard_options, &n, &f->err), ONCE_E_USAGE);
    const uint64_t id = 4711;
    replay_options.size = offsetof(once_replay_options, choice);
    replay_options.ids = &id;
    replay_options.n_ids = 1;
    assert_int_equal(once_pipeline_replay(f->pipeline, &replay_options, &counts, &f->err), ONCE_OK);
    assert_int_equal(counts.verdicts[ONCE_REPLAY_gone], 1);
}

/* --- whose turn it is --- */

static void a_salt_that_is_not_the_stores_is_refused_each_time(void **state)
{
    fixture *f = *state;
    unsigned n = 0;
    once_error first;
    assert_int_equal(once_pipeline_idempotency_salt(f->pipeline, ONCE_BYTES("another salt of 25 bytes."), &f->err),
                     ONCE_OK);
    const int rc = once_pipeline_list(f->pipeline, ONCE_LIST_DEAD, count_listed, &n, &first);
    assert_int_not_equal(rc, ONCE_OK);
    assert_false(f->pipeline->store_lock.held);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(once_pipeline_list(f->pipeline, ONCE_LIST_DEAD, count_listed, &n, &f->err), rc);
        assert_string_equal(f->err.text, first.text);
    }
    load(f);
    assert_int_equal(listed(f, ONCE_LIST_DEAD), 2);
}

/* An operator shares the store of a run, which ends while the operator pauses. */
static once_pipeline *runs;

static void end_run(void *self, int64_t ms)
{
    (void)self, (void)ms;
    once__store_close(runs->run_store);
    runs->run_store = NULL;
}

static once_backend *operate_beside_a_run(fixture *f)
{
    static once_env env;
    once_backend *at;
    runs = f->pipeline;
    assert_int_equal(once__known_open_store(runs, &runs->run_store, &f->err), ONCE_OK);
    runs->store_generation++;
    assert_int_equal(once__operator_open(runs, &at, &f->err), ONCE_OK);
    assert_ptr_equal(at, runs->run_store);
    env = *runs->env;
    env.sleep_ms = end_run;
    runs->env = &env;
    return at;
}

static void a_store_that_is_opened_again_in_a_pause_is_gone_on_with(void **state)
{
    fixture *f = *state;
    once_backend *at = operate_beside_a_run(f);
    assert_int_equal(once__operator_pause(f->pipeline, &at, 1, &f->err), ONCE_OK);
    assert_true(at && f->pipeline->store_lock.held);
    once__operator_close(f->pipeline, at);
    assert_false(f->pipeline->store_lock.held);
}

static void a_store_that_is_lost_in_a_pause_gives_the_turn_back(void **state)
{
    fixture *f = *state;
    char path[80], aside[80];
    snprintf(path, sizeof path, "%s/s.db", f->dir);
    snprintf(aside, sizeof aside, "%s/aside", f->dir);
    once_backend *at = operate_beside_a_run(f);
    assert_int_equal(rename(path, aside), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_not_equal(once__operator_pause(f->pipeline, &at, 1, &f->err), ONCE_OK);
    assert_null(at);
    assert_false(f->pipeline->store_lock.held);
    once__operator_close(f->pipeline, at);
    assert_true(rmdir(path) == 0 && rename(aside, path) == 0);
    assert_int_equal(listed(f, ONCE_LIST_DEAD), 2);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_unknown_is_resolved_once),
        TEST(all_unknown_ones_are_tried_again_or_buried),
        TEST(letters_go_back_to_work),
        TEST(a_letter_that_is_discarded_does_not_come_back),
        TEST(a_key_that_is_forgotten_runs_again),
        TEST(options_say_their_size),
        TEST(a_salt_that_is_not_the_stores_is_refused_each_time),
        TEST(a_store_that_is_opened_again_in_a_pause_is_gone_on_with),
        TEST(a_store_that_is_lost_in_a_pause_gives_the_turn_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
