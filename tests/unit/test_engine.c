/* The engine over a storage that counts what it is asked for, and fails where it is told to: what a verb writes, when,
 * and what is left of one that could not be carried out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "store/engine.h"
#include "store/memory/memory.h"
#include "testenv.h"

enum { LEASE_MS = 1000 };

static const once_scope scope = {.consumer = {"c", 1}, .operation = {"op", 2}};
static const once_message message = {.body = {"{}", 2}, .sent_ms = ONCE_NO_TIME};

typedef struct fixture {
    test_env world;
    once_backend *store;
    once_arena arena;
    once_error err;
} fixture;

/* --- the storage --- */

static const once_storage_ops *inner;
static once_storage_ops watched;
static unsigned saves, begins, commits, rollbacks;
static unsigned fail_save; /* the so-manieth from now on; 0: none */
static bool fail_commit;

static int save(once_storage *storage, once_entry *entry, once_error *err)
{
    saves++;
    if (fail_save && --fail_save == 0) return once_fail(err, ONCE_E_IO, "not now");
    return inner->save(storage, entry, err);
}

static int begin(once_storage *storage, bool write, once_error *err)
{
    begins++;
    return inner->begin(storage, write, err);
}

static int commit(once_storage *storage, once_error *err)
{
    commits++;
    if (!fail_commit) return inner->commit(storage, err);
    fail_commit = false;
    inner->rollback(storage);
    return once_fail(err, ONCE_E_FULL, "no space is left");
}

static void rollback(once_storage *storage)
{
    rollbacks++;
    inner->rollback(storage);
}

static int setup(void **state)
{
    fixture *f = *state = calloc(1, sizeof *f);
    const once_store_options options = {.size = sizeof options, .env = &f->world.env, .create = true};
    test_env_init(&f->world, 1);
    if (once__store_open("memory:", &options, &f->store, &f->err) != ONCE_OK) return -1;
    once_storage *storage = (once_storage *)f->store;
    inner = storage->ops;
    watched = *inner;
    watched.save = save;
    watched.begin = begin;
    watched.commit = commit;
    watched.rollback = rollback;
    storage->ops = &watched;
    saves = begins = commits = rollbacks = fail_save = 0;
    fail_commit = false;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    once__store_close(f->store);
    once_arena_release(&f->arena);
    free(f);
    return 0;
}

/* --- requests --- */

static once_request request_for(uint64_t key, uint64_t token)
{
    return (once_request){.scope = &scope,
                          .key = {"k", 1},
                          .id = {key, key},
                          .token = {token, token},
                          .lane.gap_ms = -1,
                          .lease_ms = LEASE_MS,
                          .remember_ms = 1000000,
                          .sent_ms = ONCE_NO_TIME};
}

static int claim(fixture *f, const once_request *requests, size_t n, once_decision *out)
{
    const once_request *pointers[4];
    for (size_t i = 0; i < n; i++) pointers[i] = &requests[i];
    return f->store->ops->claim(f->store, pointers, n, out, &f->arena, &f->err);
}

static int settle(fixture *f, const once_request *request, once_outcome outcome, bool *applied)
{
    const once_settlement s = {.request = request, .outcome = outcome, .message = &message};
    return f->store->ops->settle(f->store, &s, 1, applied, &f->err);
}

static once_state state_of(fixture *f, uint64_t key)
{
    once_entry entry;
    assert_int_equal(f->store->ops->get(f->store, (once_hash){key, key}, &entry, &f->arena, &f->err), ONCE_OK);
    return entry.state;
}

/* --- tests --- */

static void a_verb_outside_of_a_transaction_is_one(void **state)
{
    fixture *f = *state;
    const once_request requests[2] = {request_for(1, 1), request_for(2, 2)};
    once_decision decisions[2];
    assert_int_equal(claim(f, requests, 2, decisions), ONCE_OK);
    assert_int_equal(begins, 1);
    assert_int_equal(commits, 1);
    assert_int_equal(saves, 2);
    assert_true(decisions[0].answer == ONCE_ANSWER_RUN && decisions[1].answer == ONCE_ANSWER_RUN);
    assert_int_equal(state_of(f, 2), ONCE_STATE_CLAIMED);
}

static void inside_of_a_transaction_nothing_is_committed_by_a_verb(void **state)
{
    fixture *f = *state;
    const once_request request = request_for(1, 1);
    once_decision decision;
    bool applied;
    assert_int_equal(f->store->ops->begin(f->store, &f->err), ONCE_OK);
    assert_int_equal(claim(f, &request, 1, &decision), ONCE_OK);
    assert_int_equal(settle(f, &request, ONCE_DONE, &applied), ONCE_OK);
    assert_true(applied);
    assert_int_equal(begins, 1);
    assert_int_equal(commits, 0);
    f->store->ops->rollback(f->store);
    assert_int_equal(state_of(f, 1), ONCE_STATE_ABSENT);
}

/* Equal keys of one batch, in the caller's order: the second one meets the first. */
static void equal_keys_of_a_batch_see_each_other(void **state)
{
    fixture *f = *state;
    const once_request requests[3] = {request_for(1, 1), request_for(1, 2), request_for(1, 1)};
    once_decision decisions[3];
    assert_int_equal(claim(f, requests, 3, decisions), ONCE_OK);
    assert_int_equal(decisions[0].answer, ONCE_ANSWER_RUN);
    assert_int_equal(decisions[1].answer, ONCE_ANSWER_BUSY);
    assert_int_equal(decisions[2].answer, ONCE_ANSWER_RUN); /* the first one's token once more */
    assert_true(decisions[2].own && decisions[2].attempt == 1);
}

static void a_verb_that_fails_in_the_middle_leaves_nothing(void **state)
{
    fixture *f = *state;
    const once_request requests[3] = {request_for(1, 1), request_for(2, 2), request_for(3, 3)};
    once_decision decisions[3];
    fail_save = 2;
    assert_int_equal(claim(f, requests, 3, decisions), ONCE_E_IO);
    assert_int_equal(commits, 0);
    assert_int_equal(rollbacks, 1);
    for (uint64_t key = 1; key <= 3; key++) assert_int_equal(state_of(f, key), ONCE_STATE_ABSENT);
    assert_int_equal(claim(f, requests, 3, decisions), ONCE_OK); /* and can be repeated */
    assert_true(decisions[0].answer == ONCE_ANSWER_RUN && !decisions[0].own);
}

/* Half of a verb may be in the transaction: whoever did not heed the failure must not commit it. */
static void a_transaction_with_a_verb_that_failed_cannot_be_committed(void **state)
{
    fixture *f = *state;
    const once_request good = request_for(1, 1), bad = request_for(2, 2);
    once_decision decision;
    bool applied;
    assert_int_equal(f->store->ops->begin(f->store, &f->err), ONCE_OK);
    assert_int_equal(claim(f, &good, 1, &decision), ONCE_OK);
    assert_int_equal(settle(f, &good, ONCE_DONE, &applied), ONCE_OK);
    assert_int_equal(claim(f, &bad, 1, &decision), ONCE_OK);
    fail_save = 1;
    assert_int_equal(settle(f, &bad, ONCE_RETRY, &applied), ONCE_E_IO);
    assert_int_not_equal(f->store->ops->commit(f->store, &f->err), ONCE_OK);
    assert_int_equal(commits, 0);
    assert_int_equal(state_of(f, 1), ONCE_STATE_ABSENT);
    assert_int_equal(f->store->ops->begin(f->store, &f->err), ONCE_OK); /* the next one is not broken */
    assert_int_equal(claim(f, &good, 1, &decision), ONCE_OK);
    assert_int_equal(f->store->ops->commit(f->store, &f->err), ONCE_OK);
    assert_int_equal(state_of(f, 1), ONCE_STATE_CLAIMED);
}

static void a_commit_that_fails_leaves_nothing(void **state)
{
    fixture *f = *state;
    const once_request request = request_for(1, 1);
    once_decision decision;
    fail_commit = true;
    assert_int_equal(claim(f, &request, 1, &decision), ONCE_E_FULL);
    assert_int_equal(state_of(f, 1), ONCE_STATE_ABSENT);
}

/* What was not changed is not written: a duplicate, a busy key, a settlement that is fenced off. */
static void what_changes_nothing_is_not_saved(void **state)
{
    fixture *f = *state;
    const once_request first = request_for(1, 1), second = request_for(1, 2);
    once_decision decision;
    bool applied;
    assert_int_equal(claim(f, &first, 1, &decision), ONCE_OK);
    const unsigned before = saves;
    assert_int_equal(claim(f, &second, 1, &decision), ONCE_OK);
    assert_int_equal(decision.answer, ONCE_ANSWER_BUSY);
    assert_int_equal(settle(f, &second, ONCE_DONE, &applied), ONCE_OK);
    assert_false(applied);
    assert_int_equal(saves, before);
    assert_int_equal(settle(f, &first, ONCE_DONE, &applied), ONCE_OK);
    assert_true(applied);
    assert_int_equal(saves, before + 1);
    assert_int_equal(claim(f, &second, 1, &decision), ONCE_OK);
    assert_int_equal(decision.answer, ONCE_ANSWER_DUPLICATE);
    assert_int_equal(settle(f, &first, ONCE_DONE, &applied), ONCE_OK); /* the reply was lost */
    assert_true(applied);
    assert_int_equal(saves, before + 1);
}

/* Otherwise the next search would begin behind what this one has not claimed. */
static void a_take_whose_commit_fails_moves_no_search(void **state)
{
    fixture *f = *state;
    once_taken taken[4];
    once_decision ignored;
    const once_message *messages = &message;
    once_due_share shares[2] = {{.operation = scope.operation, .room = 2}, {.others = true, .room = 1}};
    once_due_filter filter = {.shares = shares, .n = 2, .read_max = 8};
    size_t n = 0;
    for (uint64_t key = 1; key <= 3; key++) {
        const once_request request = request_for(key, 100 + key), *pointer = &request;
        assert_int_equal(f->store->ops->accept(f->store, &pointer, &messages, 1, &ignored, &f->arena, &f->err),
                         ONCE_OK);
    }
    fail_commit = true;
    assert_int_equal(f->store->ops->take(f->store, scope.consumer, (once_token){7, 0}, false, LEASE_MS, 4, &filter,
                                         taken, &n, &f->arena, &f->err),
                     ONCE_E_FULL);
    for (int i = 0; i < 2; i++)
        assert_true(shares[i].from.due_ms == 0 && once_hash_is_zero(shares[i].from.id) && !shares[i].more);
    assert_true(filter.read == 0);
    assert_int_equal(f->store->ops->take(f->store, scope.consumer, (once_token){7, 0}, true, LEASE_MS, 4, &filter,
                                         taken, &n, &f->arena, &f->err),
                     ONCE_OK);
    assert_int_equal(n, 2);
    assert_true(shares[0].from.due_ms > 0 && shares[0].more && filter.read > 0);
    for (uint64_t key = 1; key <= 2; key++) assert_int_equal(state_of(f, key), ONCE_STATE_CLAIMED);
}

/* The same token base again gives what it had claimed, and then what else is due, without a token twice. */
static void a_take_that_is_repeated_goes_on_behind_what_it_had(void **state)
{
    fixture *f = *state;
    once_taken taken[4];
    once_decision ignored;
    const once_message *messages = &message;
    size_t n = 0;
    for (uint64_t key = 1; key <= 3; key++) {
        const once_request request = request_for(key, 100 + key), *pointer = &request;
        assert_int_equal(f->store->ops->accept(f->store, &pointer, &messages, 1, &ignored, &f->arena, &f->err),
                         ONCE_OK);
    }
    const once_token token = {7, 0};
    assert_int_equal(
        f->store->ops->take(f->store, scope.consumer, token, false, LEASE_MS, 2, NULL, taken, &n, &f->arena, &f->err),
        ONCE_OK);
    assert_int_equal(n, 2);
    assert_int_equal(
        f->store->ops->take(f->store, scope.consumer, token, true, LEASE_MS, 4, NULL, taken, &n, &f->arena, &f->err),
        ONCE_OK);
    assert_int_equal(n, 3);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(taken[i].decision.answer, ONCE_ANSWER_RUN);
        assert_int_equal(taken[i].decision.attempt, 1);
        for (size_t k = 0; k < i; k++) assert_false(once_hash_equal(taken[i].request.token, taken[k].request.token));
    }
    assert_int_equal(
        f->store->ops->take(f->store, scope.consumer, token, true, LEASE_MS, 4, NULL, taken, &n, &f->arena, &f->err),
        ONCE_OK);
    assert_int_equal(n, 3);
}

/* A dead entry and its letter are one: neither is there without the other. */
static void a_letter_is_written_with_the_death_of_its_entry(void **state)
{
    fixture *f = *state;
    const once_request request = request_for(1, 1);
    once_decision decision;
    once_stats stats;
    bool applied;
    assert_int_equal(claim(f, &request, 1, &decision), ONCE_OK);
    fail_commit = true;
    assert_int_equal(settle(f, &request, ONCE_DEAD, &applied), ONCE_E_FULL);
    assert_int_equal(f->store->ops->stats(f->store, scope.consumer, &stats, &f->err), ONCE_OK);
    assert_int_equal(stats.dead, 0);
    assert_int_equal(state_of(f, 1), ONCE_STATE_CLAIMED);
    assert_int_equal(settle(f, &request, ONCE_DEAD, &applied), ONCE_OK);
    assert_int_equal(settle(f, &request, ONCE_DEAD, &applied), ONCE_OK);
    assert_true(applied);
    assert_int_equal(f->store->ops->stats(f->store, scope.consumer, &stats, &f->err), ONCE_OK);
    assert_int_equal(stats.dead, 1);
    assert_int_equal(state_of(f, 1), ONCE_STATE_DEAD);
}

/* What a storage reads first may fail: outside of a transaction nothing is left open, inside of one it is broken. */
static int fail_prefetch(once_storage *storage, const once_request *const *requests, size_t n, once_purpose purpose,
                         once_error *err)
{
    (void)storage, (void)requests, (void)n, (void)purpose;
    return once_fail(err, ONCE_E_IO, "not now");
}

static void a_prefetch_that_fails_is_rolled_back(void **state)
{
    fixture *f = *state;
    const once_request request = request_for(1, 1);
    once_decision decision;
    watched.prefetch = fail_prefetch;
    assert_int_equal(claim(f, &request, 1, &decision), ONCE_E_IO);
    assert_int_equal(rollbacks, 1);
    assert_int_equal(f->store->ops->begin(f->store, &f->err), ONCE_OK);
    assert_int_equal(claim(f, &request, 1, &decision), ONCE_E_IO);
    watched.prefetch = NULL;
    assert_int_equal(claim(f, &request, 1, &decision), ONCE_E_ABORTED);
    assert_int_not_equal(f->store->ops->commit(f->store, &f->err), ONCE_OK);
    assert_int_equal(claim(f, &request, 1, &decision), ONCE_OK);
}

/* --- lists in pages --- */

typedef struct listing {
    unsigned pages, fail_page; /* so many with two entries each; this one fails behind its first */
    size_t body_len;
    unsigned shown, shown_within; /* to the visitor; before the page was over */
} listing;

static listing list;
static char body[400 << 10];

static int list_pages(once_storage *storage, once_bytes consumer, once_state wanted, once_page *page,
                      once_entry_visit *visit, void *user, once_error *err)
{
    once_entry entry = {.state = wanted,
                        .scope = {.consumer = consumer, .operation = scope.operation},
                        .message = {.body = {body, list.body_len}, .sent_ms = ONCE_NO_TIME},
                        .has_message = true,
                        .due_ms = storage->now_ms};
    page->number++;
    for (int i = 0; i < 2; i++) {
        if (!visit(user, &entry)) return ONCE_OK;
        if (page->number == list.fail_page) return once_fail(err, ONCE_E_IO, "not now");
    }
    list.shown_within = list.shown;
    page->more = page->number < list.pages;
    return ONCE_OK;
}

static bool count_shown(void *user, const once_entry *entry)
{
    (void)user;
    assert_int_equal(entry->message.body.len, list.body_len);
    list.shown++;
    return true;
}

static int shown_by(fixture *f, listing what)
{
    list = what;
    watched.list = list_pages;
    begins = rollbacks = 0;
    return f->store->ops->list(f->store, scope.consumer, ONCE_STATE_WAITING, count_shown, NULL, &f->err);
}

static void a_list_whose_second_page_fails_says_so(void **state)
{
    fixture *f = *state;
    assert_int_equal(shown_by(f, (listing){.pages = 3}), ONCE_OK);
    assert_true(list.shown == 6 && begins == 3 && rollbacks == 0);
    assert_int_equal(shown_by(f, (listing){.pages = 3, .fail_page = 2}), ONCE_E_IO);
    assert_int_equal(list.shown, 3); /* what came before the failure is shown */
    assert_true(begins == 2 && rollbacks == 1);
}

/* A megabyte is kept at most: the rest is shown before more is read. */
static int list_large(once_storage *storage, once_bytes consumer, once_state wanted, once_page *page,
                      once_entry_visit *visit, void *user, once_error *err)
{
    for (int i = 0; i < 4; i++) {
        page->number = 0;
        const int rc = list_pages(storage, consumer, wanted, page, visit, user, err);
        if (rc != ONCE_OK) return rc;
    }
    page->more = false;
    return ONCE_OK;
}

static void a_list_of_large_messages_keeps_few_of_them(void **state)
{
    fixture *f = *state;
    list = (listing){.pages = 1, .body_len = sizeof body};
    watched.list = list_large;
    assert_int_equal(f->store->ops->list(f->store, scope.consumer, ONCE_STATE_WAITING, count_shown, NULL, &f->err),
                     ONCE_OK);
    assert_int_equal(list.shown, 8);
    assert_in_range(list.shown_within, 6, 8); /* two of them are a megabyte */
}

/* A natural effect that runs without a claim: nothing is saved, and memory does not grow with the keys. */
static void a_key_that_runs_without_a_claim_leaves_nothing(void **state)
{
    fixture *f = *state;
    const once_mem *m = (const once_mem *)f->store;
    for (uint64_t key = 1; key <= 100; key++) {
        once_request r = request_for(key, key);
        once_decision d;
        r.natural = r.unclaimed = true;
        assert_int_equal(claim(f, &r, 1, &d), ONCE_OK);
        assert_true(d.answer == ONCE_ANSWER_RUN && d.unclaimed);
    }
    assert_int_equal(saves, 0);
    assert_int_equal(m->slots.n, 0);
    assert_int_equal(m->by_id.n, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_verb_outside_of_a_transaction_is_one),
        TEST(inside_of_a_transaction_nothing_is_committed_by_a_verb),
        TEST(equal_keys_of_a_batch_see_each_other),
        TEST(a_verb_that_fails_in_the_middle_leaves_nothing),
        TEST(a_transaction_with_a_verb_that_failed_cannot_be_committed),
        TEST(a_commit_that_fails_leaves_nothing),
        TEST(what_changes_nothing_is_not_saved),
        TEST(a_key_that_runs_without_a_claim_leaves_nothing),
        TEST(a_take_whose_commit_fails_moves_no_search),
        TEST(a_take_that_is_repeated_goes_on_behind_what_it_had),
        TEST(a_letter_is_written_with_the_death_of_its_entry),
        TEST(a_prefetch_that_fails_is_rolled_back),
        TEST(a_list_whose_second_page_fails_says_so),
        TEST(a_list_of_large_messages_keeps_few_of_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
