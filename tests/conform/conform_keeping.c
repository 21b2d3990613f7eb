/* What is kept and who sees it: transactions, restarts, two handles on one store. */
#include <pthread.h>
#include <stdlib.h>

#include <stdio.h>

#include "conform.h"
#include "store/takeover.h"

/* --- transactions --- */

static void rollback_leaves_nothing(fixture *f)
{
    const once_request claimed = ask(f, "claimed"), settled = ask(f, "settled"), dead = ask(f, "dead"),
                       kept = ask(f, "kept"), accepted = ask(f, "accepted"), gone = ask(f, "gone");
    do_claim(f, &kept);
    do_claim(f, &gone);
    do_settle(f, &gone, ONCE_DEAD);
    once_letter letter;
    list_letters(f, &letter, 1);
    const once_entry before = do_get(f, kept.id);
    for (int round = 0; round < 2; round++) {
        do_begin(f);
        assert_answer(do_claim(f, &claimed), RUN);
        do_claim(f, &settled);
        assert_true(do_settle(f, &settled, ONCE_DONE));
        do_claim(f, &dead);
        assert_true(do_settle(f, &dead, ONCE_DEAD));
        assert_true(do_settle(f, &kept, ONCE_RETRY));
        assert_answer(do_accept(f, &accepted), WAITING);
        assert_true(do_forget(f, gone.id));
        do_rollback(f);
        assert_state(f, claimed, ABSENT);
        assert_state(f, settled, ABSENT);
        assert_state(f, dead, ABSENT);
        assert_state(f, accepted, ABSENT);
        assert_state(f, gone, DEAD);
        const once_entry after = do_get(f, kept.id);
        assert_true(after.state == before.state && after.failures == before.failures && after.due_ms == before.due_ms);
        assert_false(after.has_message);
        assert_int_equal(list_letters(f, NULL, 0), 1);
        assert_int_equal(do_stats(f).waiting, 0);
    }
    do_begin(f);
    assert_true(do_replay(f, letter.id));
    do_rollback(f);
    assert_state(f, gone, DEAD);
    assert_int_equal(list_letters(f, NULL, 0), 1);
    do_rollback(f); /* without a transaction: nothing */
}

static void f07_committed_then_duplicate(fixture *f)
{
    const once_request r = ask(f, "k"), again = ask(f, "k");
    do_begin(f);
    do_claim(f, &r);
    assert_true(do_settle(f, &r, ONCE_DONE));
    assert_answer(do_claim(f, &again), DUPLICATE); /* a transaction sees its own */
    do_commit(f);
    if (f->store->bits & ONCE_STORE_DURABLE) reopen(f);
    const once_decision d = do_claim(f, &again);
    assert_answer(d, DUPLICATE);
    assert_bytes(d.result, "result");
    const once_entry e = do_get(f, r.id);
    assert_int_equal(e.attempt, 1);
    assert_true(once_hash_equal(e.token, r.token)); /* f06: who committed it is known by its token */
}

static void f79_several_rounds_in_one_transaction(fixture *f)
{
    do_begin(f);
    const once_request a = ask(f, "k"), b = ask(f, "k"), c = ask(f, "k");
    assert_answer(do_claim(f, &a), RUN);
    assert_answer(do_claim(f, &b), BUSY);
    assert_true(do_extend(f, &a));
    assert_false(do_extend(f, &b));
    assert_false(do_settle(f, &b, ONCE_DONE));
    assert_true(do_settle(f, &a, ONCE_RELEASE));
    assert_answer(do_claim(f, &b), LATER);
    assert_true(do_forget(f, a.id));
    assert_answer(do_claim(f, &c), RUN); /* a second life in the same transaction */
    assert_true(do_settle(f, &c, ONCE_DONE));
    assert_true(do_settle(f, &c, ONCE_DONE));
    assert_state(f, a, DONE);
    do_commit(f);
    assert_state(f, a, DONE);
    assert_int_equal(do_get(f, a.id).attempt, 1);
}

/* One life ends and the next begins in one transaction: the first one must not be seen any more, anywhere. */
static void forgotten_and_begun_anew_in_one_transaction(fixture *f)
{
    for (int end = 0; end < 3; end++) {
        const once_request first = ask(f, "k"), second = ask(f, "k");
        do_claim(f, &first);
        assert_true(do_settle(f, &first, ONCE_ALREADY));
        do_begin(f);
        assert_true(do_forget(f, first.id));
        assert_answer(do_claim(f, &second), RUN);
        assert_true(do_settle(f, &second, end == 0 ? ONCE_RETRY : end == 1 ? ONCE_UNKNOWN : ONCE_REJECTED));
        do_commit(f);
        if (f->store->bits & ONCE_STORE_LIST) assert_int_equal(count_listed(f, ONCE_STATE_ALREADY), 0);
        assert_string_equal(once_state_name(do_get(f, first.id).state), end == 0   ? "waiting"
                                                                        : end == 1 ? "unknown"
                                                                                   : "rejected");
        assert_true(do_forget(f, first.id));
        assert_state(f, first, ABSENT);
        if (f->store->bits & ONCE_STORE_LIST) assert_int_equal(count_listed(f, ONCE_STATE_ALREADY), 0);
    }
}

/* Two lives that end alike, by one token, at one moment: what is listed is the second one, once. */
static void lives_that_ended_alike_are_one(fixture *f)
{
    const once_request r = ask(f, "k");
    for (int life = 0; life < 3; life++) {
        do_claim(f, &r);
        assert_true(do_settle(f, &r, ONCE_DONE));
        assert_int_equal(count_listed(f, ONCE_STATE_DONE), 1);
        assert_true(do_forget(f, r.id));
        assert_int_equal(count_listed(f, ONCE_STATE_DONE), 0);
    }
}

static void a_claim_alone_in_a_transaction_is_kept_or_harmless(fixture *f)
{
    const once_request r = ask(f, "k"), other = ask(f, "k");
    do_begin(f);
    do_claim(f, &r);
    do_commit(f);
    /* It need not be written; if it is, it is a claim like any other. */
    if (do_get(f, r.id).state == ONCE_STATE_ABSENT) assert_answer(do_claim(f, &other), RUN);
    else assert_answer(do_claim(f, &other), BUSY);
}

static void a_transaction_over_an_existing_claim(fixture *f)
{
    const once_request r = ask(f, "k"), other = ask(f, "k");
    do_claim(f, &r);
    do_begin(f);
    assert_answer(do_claim(f, &other), BUSY);
    assert_true(do_settle(f, &r, ONCE_DONE));
    do_commit(f);
    assert_state(f, r, DONE);
    const once_request failing = ask(f, "failing"), heir = ask(f, "failing");
    do_claim(f, &failing);
    pass(f, LEASE);
    do_begin(f); /* f14: what became an orphan is another's in this transaction */
    assert_answer(do_claim(f, &heir), RUN);
    assert_false(do_settle(f, &failing, ONCE_DONE));
    do_rollback(f);
    assert_true(do_settle(f, &failing, ONCE_DONE));
}

static void facts_belong_to_the_transaction(fixture *f)
{
    once_bytes value;
    assert_ok(f, f->store->ops->fact_set(f->store, "old", ONCE_BYTES("1"), &f->err));
    for (int committed = 0; committed < 2; committed++) {
        do_begin(f);
        assert_ok(f, f->store->ops->fact_set(f->store, "old", ONCE_BYTES("2"), &f->err));
        assert_ok(f, f->store->ops->fact_set(f->store, "new", ONCE_BYTES("3"), &f->err));
        assert_ok(f, f->store->ops->fact_set(f->store, "new", ONCE_BYTES("4"), &f->err));
        assert_ok(f, f->store->ops->fact_get(f->store, "new", &value, &f->arena, &f->err));
        assert_bytes(value, "4");
        if (committed) do_commit(f);
        else do_rollback(f);
        assert_ok(f, f->store->ops->fact_get(f->store, "old", &value, &f->arena, &f->err));
        assert_bytes(value, committed ? "2" : "1");
        assert_ok(f, f->store->ops->fact_get(f->store, "new", &value, &f->arena, &f->err));
        assert_bytes(value, committed ? "4" : "");
    }
}

/* --- facts that count, and workers --- */

static void reopen_if_kept(fixture *f)
{
    if ((f->store->bits | f->driver->also) & ONCE_STORE_DURABLE) reopen(f);
}

static int count_to(fixture *f, uint64_t least, uint64_t number)
{
    unsigned char value[ONCE_NUMBER_SIZE + 2];
    once__number_put(value, number);
    memcpy(value + ONCE_NUMBER_SIZE, "ab", 2);
    do_begin(f);
    const once_request r = ask(f, "beside it");
    do_claim(f, &r);
    int rc =
        f->store->ops->fact_count(f->store, "count", least, (once_bytes){(const char *)value, sizeof value}, &f->err);
    if (rc == ONCE_OK) rc = f->store->ops->commit(f->store, &f->err);
    else f->store->ops->rollback(f->store);
    return rc;
}

static uint64_t counted(fixture *f)
{
    once_bytes value;
    assert_ok(f, f->store->ops->fact_get(f->store, "count", &value, &f->arena, &f->err));
    assert_true(value.len == 0 || value.len == ONCE_NUMBER_SIZE + 2);
    return value.len ? once__number_get(value.data) : 0;
}

static void f89_a_number_that_went_back_is_forgotten_commits(fixture *f)
{
    assert_ok(f, count_to(f, 0, 1));
    assert_ok(f, count_to(f, 1, 255));
    assert_ok(f, count_to(f, 255, 256));
    assert_ok(f, count_to(f, 255, 257)); /* the one before may have been lost, and was not */
    assert_int_equal(counted(f), 257);
    reopen_if_kept(f);
    assert_int_equal(count_to(f, 258, 259), ONCE_E_FORGOTTEN);
    assert_int_equal(counted(f), 257);
    assert_ok(f, f->store->ops->fact_set(f->store, "count", (once_bytes){0}, &f->err));
    assert_int_equal(count_to(f, 1, 2), ONCE_E_FORGOTTEN);
    assert_int_equal(counted(f), 0);
    assert_int_equal(once_status_class(ONCE_E_FORGOTTEN), ONCE_CLASS_FATAL);
    assert_ok(f, count_to(f, 0, 3)); /* and the store works on */
}

static void f89_nothing_of_a_commit_happens_when_the_store_forgot(fixture *f)
{
    assert_ok(f, count_to(f, 0, 5));
    use(f, 1); /* what somebody else wrote is not known to us */
    const once_request r = ask(f, "k");
    unsigned char value[ONCE_NUMBER_SIZE];
    once__number_put(value, 9);
    do_begin(f);
    do_claim(f, &r);
    assert_true(do_settle(f, &r, ONCE_DONE));
    int rc = f->store->ops->fact_count(f->store, "count", 8, (once_bytes){(const char *)value, sizeof value}, &f->err);
    if (rc == ONCE_OK) rc = f->store->ops->commit(f->store, &f->err);
    else f->store->ops->rollback(f->store);
    assert_int_equal(rc, ONCE_E_FORGOTTEN);
    assert_int_equal(do_get(f, r.id).state, ONCE_STATE_ABSENT);
    assert_int_equal(counted(f), 5);
}

typedef struct found_facts {
    size_t n, bytes;
} found_facts;

static bool find_fact(void *user, once_bytes name, once_bytes value)
{
    found_facts *found = user;
    assert_true(name.len >= 2 && memcmp(name.data, "a/", 2) == 0);
    found->n++;
    found->bytes += value.len;
    return true;
}

static void facts_are_found_by_the_beginning_of_their_names(fixture *f)
{
    const char *const names[] = {"a", "a/1", "a/22", "a/3", "a0", "b/1"};
    found_facts found = {0};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_ok(f, f->store->ops->fact_set(f->store, names[i], ONCE_BYTES("xy"), &f->err));
    assert_ok(f, f->store->ops->fact_set(f->store, "a/3", (once_bytes){0}, &f->err));
    assert_ok(f, f->store->ops->facts(f->store, "a/", find_fact, &found, &f->err));
    assert_int_equal(found.n, 2);
    assert_int_equal(found.bytes, 4);
}

typedef struct seen_workers {
    size_t n, alive;
    uint64_t last;
} seen_workers;

static bool see_worker(void *user, const once_worker *worker, once_worker_state state)
{
    seen_workers *seen = user;
    seen->n++;
    seen->alive += state == ONCE_WORKER_ALIVE;
    seen->last = worker->run;
    assert_true(worker->who[0] != 0);
    return true;
}

static seen_workers workers_of(fixture *f, const char *consumer)
{
    seen_workers seen = {0};
    assert_ok(f, once_workers_each(f->store, text(consumer), see_worker, &seen, &f->err));
    return seen;
}

static once_worker new_worker(fixture *f, uint64_t run, bool *died)
{
    once_worker worker;
    once_worker_init(&worker, f->store, text("c"), run, 0);
    *died = false;
    assert_ok(f, once_worker_begin(&worker, f->store, died, &f->err));
    return worker;
}

static int renew(fixture *f, once_worker *worker)
{
    do_begin(f);
    int rc = once_worker_renew(worker, f->store, &f->err);
    if (rc == ONCE_OK) rc = f->store->ops->commit(f->store, &f->err);
    else f->store->ops->rollback(f->store);
    if (rc == ONCE_OK) once_worker_kept(worker);
    return rc;
}

static void f100_workers_are_alive_as_long_as_they_renew(fixture *f)
{
    bool died;
    once_worker first = new_worker(f, 11, &died);
    assert_false(died);
    pass(f, ONCE_WORKER_LEASE_MS / 2);
    once_worker second = new_worker(f, 22, &died);
    assert_false(died); /* it goes on: no alarm */
    assert_int_equal(workers_of(f, "c").n, 2);
    assert_int_equal(workers_of(f, "c").alive, 2);
    assert_int_equal(workers_of(f, "c").last, 22); /* by their begin */
    assert_int_equal(workers_of(f, "other").n, 0);
    pass(f, 1);
    assert_ok(f, renew(f, &first));
    pass(f, ONCE_WORKER_LEASE_MS - 1);
    assert_int_equal(workers_of(f, "c").alive, 1); /* the second one is late */
    assert_int_equal(workers_of(f, "c").n, 2);
    assert_ok(f, once_worker_end(&first, f->store, &f->err));
    assert_int_equal(workers_of(f, "c").n, 1);

    once_worker third = new_worker(f, 33, &died);
    assert_true(died); /* said once */
    once_worker fourth = new_worker(f, 44, &died);
    assert_false(died);
    assert_ok(f, renew(f, &second)); /* it was late, not dead: nothing was forgotten */
    assert_int_equal(workers_of(f, "c").alive, 3);
    assert_ok(f, once_worker_end(&second, f->store, &f->err));
    assert_ok(f, once_worker_end(&third, f->store, &f->err));
    assert_ok(f, once_worker_end(&fourth, f->store, &f->err));
    assert_int_equal(workers_of(f, "c").n, 0);
}

static void f100_each_death_is_noticed_whoever_lives(fixture *f)
{
    bool died;
    new_worker(f, 11, &died);
    pass(f, ONCE_WORKER_LEASE_MS / 2);
    new_worker(f, 22, &died);
    pass(f, ONCE_WORKER_LEASE_MS / 2);
    once_worker third = new_worker(f, 33, &died);
    assert_true(died); /* the first one, although the second one began after it and lives */
    assert_int_equal(workers_of(f, "c").alive, 2);
    pass(f, ONCE_WORKER_LEASE_MS / 4);
    assert_ok(f, renew(f, &third));
    pass(f, ONCE_WORKER_LEASE_MS / 4);
    new_worker(f, 44, &died);
    assert_true(died); /* the second one: seen last before the first death was noticed, and late only since */
    new_worker(f, 55, &died);
    assert_false(died);
}

/* A worker is not late while its claims may still be good. */
static void f100_a_worker_has_the_longest_lease_of_its_claims(fixture *f)
{
    once_worker worker;
    bool died = false;
    once_worker_init(&worker, f->store, text("c"), 11, 3 * ONCE_WORKER_LEASE_MS);
    assert_ok(f, once_worker_begin(&worker, f->store, &died, &f->err));
    pass(f, 3 * ONCE_WORKER_LEASE_MS - 1);
    new_worker(f, 22, &died);
    assert_false(died);
    assert_int_equal(workers_of(f, "c").alive, 2);
    pass(f, 1);
    new_worker(f, 33, &died);
    assert_true(died);
}

static void f100_a_process_that_is_not_there_is_dead_at_once(fixture *f)
{
    bool died;
    once_worker gone;
    once_worker_init(&gone, f->store, text("c"), 11, 0);
    gone.started++; /* another process has its number now */
    died = false;
    assert_ok(f, once_worker_begin(&gone, f->store, &died, &f->err));
    assert_int_equal(workers_of(f, "c").alive, 0);
    once_worker next = new_worker(f, 22, &died);
    assert_true(died);
    assert_int_equal(workers_of(f, "c").n, 1); /* its record is dropped */
    once_worker_init(&gone, f->store, text("c"), 33, 0);
    gone.machine++; /* of another container: its number says nothing, its lease does */
    gone.started++;
    died = false;
    assert_ok(f, once_worker_begin(&gone, f->store, &died, &f->err));
    assert_int_equal(workers_of(f, "c").alive, 2);
    new_worker(f, 44, &died);
    assert_false(died);
    assert_int_equal(workers_of(f, "c").n, 3);
    assert_ok(f, renew(f, &gone));
    assert_ok(f, renew(f, &next));
}

/* --- taking over from workers that are gone --- */

enum { LONG_LEASE = 10 * 60 * 1000 };
#define RUN(n) ((uint64_t)(n) << 40)

/* A record of a process that is not there any more. */
static once_worker leave_gone(fixture *f, uint64_t run, bool contained)
{
    bool died = false;
    once_worker gone;
    once_worker_init(&gone, f->store, text("c"), run, LONG_LEASE);
    gone.started++;
    gone.contained = contained;
    assert_ok(f, once_worker_begin(&gone, f->store, &died, &f->err));
    return gone;
}

static once_request ask_as(fixture *f, const char *key, uint64_t run)
{
    once_request r = ask(f, key);
    r.token = once_token_of_run(run, 1000 + f->tokens++, 3);
    r.lease_ms = LONG_LEASE;
    r.run = run;
    return r;
}

static size_t take_over(fixture *f, const once_worker *self, once_gone *gone)
{
    size_t ended = 0, from = 0;
    do {
        assert_ok(f, once_take_over(f->store, f->scope.consumer, self, gone, &from, &f->err));
        for (size_t i = 0; i < once_gone_count(gone); i++) ended += gone->at[i].ended;
    } while (from);
    return ended;
}

static void f99_claims_of_a_worker_that_is_gone_end_at_once(fixture *f)
{
    bool died;
    once_gone gone = {0};
    (void)leave_gone(f, RUN(1), true);
    once_worker self = new_worker(f, RUN(2), &died);
    const once_request runs = ask_as(f, "runs", RUN(1)), own = ask_as(f, "own", RUN(2)),
                       done = ask_as(f, "done", RUN(1));
    once_request held = ask_as(f, "held", RUN(1));
    held.hold = true;
    assert_true(died);
    (void)leave_gone(f, RUN(1), true); /* the one that began has dropped it */
    assert_answer(do_claim(f, &runs), RUN);
    assert_answer(do_claim(f, &held), RUN);
    assert_answer(do_claim(f, &own), RUN);
    assert_answer(do_claim(f, &done), RUN);
    assert_true(do_settle(f, &done, ONCE_DONE));
    assert_int_equal(take_over(f, &self, &gone), 2);
    assert_state(f, runs, WAITING); /* as after the end of its lease: for whoever looks, too */
    assert_state(f, held, UNKNOWN);
    assert_state(f, own, CLAIMED);
    assert_state(f, done, DONE);
    assert_int_equal(do_stats(f).unknown, 1);
    assert_int_equal(take_over(f, &self, &gone), 0);

    const once_request again = ask_as(f, "runs", RUN(2)), asked = ask_as(f, "held", RUN(2));
    const once_decision d = do_claim(f, &again);
    assert_answer(d, RUN);
    assert_true(d.orphan && d.unreported && d.maybe_done && d.attempt == 2 &&
                d.failures == 1); /* the attempt counts, and may have happened */
    assert_answer(do_claim(f, &asked), UNKNOWN);
    assert_false(do_settle(f, &runs, ONCE_DONE)); /* fenced */
    assert_false(do_extend(f, &runs));
    assert_true(do_settle(f, &again, ONCE_DONE));
}

static void f99_what_was_taken_says_whose_it_is(fixture *f)
{
    bool died;
    once_gone gone = {0};
    once_taken taken;
    size_t n;
    once_worker self = new_worker(f, RUN(2), &died);
    const once_request r = ask_as(f, "k", RUN(2)); /* received by one that lives, taken by the one that is gone */
    assert_answer(do_accept(f, &r), WAITING);
    const once_token token = once_token_of_run(RUN(1), 77, 0);
    assert_ok(f, f->store->ops->take(f->store, f->scope.consumer, token, false, LONG_LEASE, 1, NULL, &taken, &n,
                                     &f->arena, &f->err));
    assert_int_equal(n, 1);
    (void)leave_gone(f, RUN(1), true);
    assert_int_equal(take_over(f, &self, &gone), 1);
    taken = take_one(f);
    assert_true(taken.decision.orphan && taken.decision.attempt == 2);
}

static void f99_whoever_may_live_keeps_its_claims(fixture *f)
{
    bool died;
    once_gone gone = {0};
    once_worker self = new_worker(f, RUN(9), &died);
    (void)leave_gone(f, RUN(1), false); /* its commands may go on */
    once_worker alive = new_worker(f, RUN(2), &died), elsewhere;
    alive.contained = true;
    assert_ok(f, renew(f, &alive));
    once_worker_init(&elsewhere, f->store, text("c"), RUN(3), LONG_LEASE);
    elsewhere.started++;
    elsewhere.machine++; /* another container has other process numbers */
    elsewhere.contained = true;
    died = false;
    assert_ok(f, once_worker_begin(&elsewhere, f->store, &died, &f->err));
    const char *const keys[] = {"commands", "alive", "elsewhere", "no record"};
    once_request claims[4];
    for (size_t i = 0; i < 4; i++) {
        claims[i] = ask_as(f, keys[i], RUN(1 + i));
        assert_answer(do_claim(f, &claims[i]), RUN);
    }
    (void)leave_gone(f, RUN(1), false); /* those that began have dropped it */
    assert_int_equal(take_over(f, &self, &gone), 0);
    for (size_t i = 0; i < 4; i++) {
        const once_request asked = ask_as(f, keys[i], RUN(9));
        assert_answer(do_claim(f, &asked), BUSY);
        assert_true(do_extend(f, &claims[i]));
    }
    const once_entry entry = do_get(f, claims[0].id);
    assert_ptr_equal(once_gone_holder(&gone, &entry), &gone.at[0]);
}

/* A commit of the dead one was on its way when others looked, and its record was dropped meanwhile. */
static void f99_a_claim_that_comes_after_its_worker_is_ended_too(fixture *f)
{
    bool died;
    once_gone gone = {0};
    once_worker self = new_worker(f, RUN(2), &died);
    const once_worker dead = leave_gone(f, RUN(1), true);
    const once_request r = ask_as(f, "k", RUN(1));
    assert_int_equal(take_over(f, &self, &gone), 0);
    assert_ok(f, once_worker_end(&dead, f->store, &f->err));
    assert_answer(do_claim(f, &r), RUN);
    assert_int_equal(take_over(f, &self, &gone), 1);
}

static void f99_many_claims_are_ended(fixture *f)
{
    enum { MANY = 600 };
    bool died;
    char keys[MANY][16];
    once_gone gone = {0};
    once_worker self = new_worker(f, RUN(2), &died);
    (void)leave_gone(f, RUN(1), true);
    for (int i = 0; i < MANY; i++) {
        (void)snprintf(keys[i], sizeof keys[i], "k%d", i);
        const once_request r = ask_as(f, keys[i], RUN(1));
        assert_answer(do_claim(f, &r), RUN);
    }
    assert_int_equal(take_over(f, &self, &gone), MANY);
    assert_int_equal(do_stats(f).claimed, 0);
}

static void f99_more_workers_are_gone_than_are_remembered(fixture *f)
{
    enum { MANY = 2 * ONCE_GONE_MAX + 3 };
    bool died;
    char keys[MANY][16];
    once_gone gone = {0};
    once_worker self = new_worker(f, RUN(100), &died);
    for (int i = 0; i < MANY; i++) {
        once_worker one;
        once_worker_init(&one, f->store, text("c"), RUN(i + 1), LONG_LEASE);
        one.started++;
        one.contained = true;
        assert_ok(f, renew(f, &one)); /* its begin would drop the records of those before */
        (void)snprintf(keys[i], sizeof keys[i], "k%d", i);
        const once_request r = ask_as(f, keys[i], RUN(i + 1));
        assert_answer(do_claim(f, &r), RUN);
    }
    assert_int_equal(take_over(f, &self, &gone), MANY);
    assert_int_equal(do_stats(f).claimed, 0);
    assert_int_equal(take_over(f, &self, &gone), 0);
}

/* Older programs wrote who they are at the end, and nothing behind it; newer ones may write more. */
static void f99_a_record_that_does_not_say_it_is_not_contained(fixture *f)
{
    bool died;
    once_bytes record;
    once_gone gone = {0};
    once_worker self = new_worker(f, RUN(2), &died);
    const once_worker old = leave_gone(f, RUN(1), true);
    const once_request r = ask_as(f, "k", RUN(1));
    assert_answer(do_claim(f, &r), RUN);
    assert_ok(f, f->store->ops->fact_get(f->store, old.name, &record, &f->arena, &f->err));
    assert_int_equal(record.data[record.len - 2], 0);
    assert_ok(f, f->store->ops->fact_set(f->store, old.name, (once_bytes){record.data, record.len - 2}, &f->err));
    assert_int_equal(take_over(f, &self, &gone), 0);
    assert_int_equal(gone.n, 1);
    assert_string_equal(gone.at[0].who, f->store->who);
    gone = (once_gone){0};
    assert_ok(f, f->store->ops->fact_set(f->store, old.name, record, &f->err));
    assert_int_equal(take_over(f, &self, &gone), 1);
}

static void f89_a_worker_whose_record_went_back_stops(fixture *f)
{
    bool died;
    once_bytes before;
    once_worker worker = new_worker(f, 11, &died);
    assert_ok(f, renew(f, &worker));
    assert_ok(f, f->store->ops->fact_get(f->store, worker.name, &before, &f->arena, &f->err));
    assert_ok(f, renew(f, &worker));
    once_worker lost = worker; /* a renewal whose commit nobody knows of: it is numbered all the same */
    lost.tried++;
    assert_ok(f, renew(f, &lost));
    assert_ok(f, f->store->ops->fact_set(f->store, worker.name, before, &f->err));
    reopen_if_kept(f);
    assert_int_equal(renew(f, &worker), ONCE_E_FORGOTTEN);
    assert_ok(f, f->store->ops->fact_set(f->store, worker.name, (once_bytes){0}, &f->err));
    assert_int_equal(renew(f, &worker), ONCE_E_FORGOTTEN);
}

static void f89_nothing_is_committed_beside_a_record_that_went_back(fixture *f)
{
    bool died;
    once_worker worker = new_worker(f, 11, &died);
    assert_ok(f, renew(f, &worker));
    const once_request r = ask(f, "k");
    assert_ok(f, f->store->ops->fact_set(f->store, worker.name, (once_bytes){0}, &f->err));
    reopen_if_kept(f);
    do_begin(f);
    assert_answer(do_claim(f, &r), RUN);
    assert_true(do_settle(f, &r, ONCE_DONE));
    int rc = once_worker_renew(&worker, f->store, &f->err); /* some tell now, others at the commit */
    assert_true(rc == ONCE_OK || rc == ONCE_E_FORGOTTEN);
    const int committed = f->store->ops->commit(f->store, &f->err);
    assert_int_not_equal(committed, ONCE_OK);
    assert_true(rc == ONCE_E_FORGOTTEN || committed == ONCE_E_FORGOTTEN);
    assert_state(f, r, ABSENT);
}

static void dead_workers_are_dropped_after_a_day(fixture *f)
{
    bool died;
    new_worker(f, 11, &died);
    pass(f, ONCE_WORKER_LEASE_MS + 86400000);
    new_worker(f, 22, &died);
    assert_true(died);
    assert_int_equal(workers_of(f, "c").n, 2);
    pass(f, 1);
    new_worker(f, 33, &died);
    assert_false(died);
    assert_int_equal(workers_of(f, "c").n, 2);
    assert_int_equal(workers_of(f, "c").last, 33);
}

/* A question between claim and settle must not make two records of one. */
static void asked_between_claim_and_settle_in_one_transaction(fixture *f)
{
    const once_request r = ask(f, "k");
    once_bytes value;
    do_begin(f);
    do_claim(f, &r);
    assert_ok(f, f->store->ops->fact_get(f->store, "spec", &value, &f->arena, &f->err));
    assert_int_equal(do_get(f, r.id).state, ONCE_STATE_CLAIMED);
    assert_true(do_settle(f, &r, ONCE_DONE));
    assert_ok(f, f->store->ops->fact_set(f->store, "spec", ONCE_BYTES("x"), &f->err));
    do_commit(f);
    assert_int_equal(count_listed(f, ONCE_STATE_DONE), 1);
    assert_int_equal(count_listed(f, ONCE_STATE_CLAIMED), 0);
}

static void bury_in_a_transaction(fixture *f)
{
    const once_letter letter = {
        .scope = f->scope, .message = {.body = ONCE_BYTES("x"), .sent_ms = ONCE_NO_TIME}, .kind = ONCE_ANSWER_TOO_OLD};
    for (int committed = 0; committed < 2; committed++) {
        bool fresh = false;
        do_begin(f);
        assert_ok(f, f->store->ops->bury(f->store, &letter, 1, &fresh, &f->err));
        assert_true(fresh);
        assert_ok(f, f->store->ops->bury(f->store, &letter, 1, &fresh, &f->err));
        assert_false(fresh);
        if (committed) do_commit(f);
        else do_rollback(f);
        assert_int_equal(list_letters(f, NULL, 0), committed);
    }
}

/* --- conflicts of one content --- */

enum { CONFLICTS = 2000 };

static once_letter conflict_of(fixture *f, const char *key, uint64_t content, const char *point)
{
    return (once_letter){
        .scope = f->scope,
        .key = text(key),
        .kind = ONCE_ANSWER_CONFLICT,
        .reason = ONCE_BYTES("other content"),
        .fingerprint = {content, content},
        .message = {.body = ONCE_BYTES("{}"), .sent_ms = ONCE_NO_TIME, .at = {ONCE_BYTES("in"), text(point)}}};
}

static bool bury_one(fixture *f, const once_letter *letter)
{
    bool fresh;
    assert_ok(f, f->store->ops->bury(f->store, letter, 1, &fresh, &f->err));
    return fresh;
}

static void f26_conflicts_of_one_content_are_one_letter(fixture *f)
{
    static once_letter letters[CONFLICTS + 1];
    static bool fresh[CONFLICTS + 1];
    once_letter kept[3], got;
    bool found;
    for (size_t i = 0; i < CONFLICTS; i++) letters[i] = conflict_of(f, "k", 7, i == CONFLICTS - 1 ? "last" : "17");
    letters[CONFLICTS] = conflict_of(f, "k", 8, "17"); /* other content */
    assert_ok(f, f->store->ops->bury(f->store, letters, CONFLICTS + 1, fresh, &f->err));
    for (size_t i = 0; i <= CONFLICTS; i++) assert_int_equal(fresh[i], i == 0 || i == CONFLICTS);
    pass(f, 1000);
    const once_letter again = conflict_of(f, "k", 7, "again");
    assert_false(bury_one(f, &again));
    assert_int_equal(list_letters(f, kept, 2), 2);
    assert_int_equal(kept[0].count, CONFLICTS + 1);
    assert_true(kept[0].buried_ms == TEST_EPOCH_MS && kept[0].last_ms == TEST_EPOCH_MS + 1000);
    assert_bytes(kept[0].message.at.point, "again");
    assert_int_equal(kept[1].count, 1);
    assert_true(kept[1].last_ms == TEST_EPOCH_MS);
    assert_ok(f, f->store->ops->letter_get(f->store, kept[0].id, &got, &found, &f->arena, &f->err));
    assert_int_equal(got.count, CONFLICTS + 1);
    assert_bytes(got.message.body, "{}");

    assert_ok(f, f->store->ops->letter_drop(f->store, kept[0].id, &found, &f->err)); /* what comes now is a new one */
    assert_true(bury_one(f, &again));
    assert_int_equal(list_letters(f, kept, 2), 2);
    assert_int_equal(kept[1].count, 1);
}

static bool has_letter(fixture *f, uint64_t id, const char *point)
{
    once_letter got;
    bool found;
    assert_ok(f, f->store->ops->letter_get(f->store, id, &got, &found, &f->arena, &f->err));
    if (found) assert_bytes(got.message.at.point, point);
    return found;
}

/* What is read before it is asked for is what would be read then, whatever the transaction does to it. */
static void f35_letters_that_are_read_ahead(fixture *f)
{
    static const char *const points[] = {"1", "2", "3", "4"};
    once_letter letters[4], kept[4];
    const once_audit audit = {.consumer = f->scope.consumer, .who = ONCE_BYTES("me"), .what = ONCE_BYTES("replay")};
    bool found;
    for (size_t i = 0; i < 4; i++) {
        letters[i] = conflict_of(f, "k", i + 1, points[i]);
        assert_true(bury_one(f, &letters[i]));
    }
    assert_int_equal(list_letters(f, kept, 4), 4);
    const uint64_t ids[] = {kept[0].id, kept[2].id, kept[3].id, kept[3].id + 100};
    assert_ok(f, f->store->ops->begin(f->store, &f->err));
    if (f->store->ops->letters_ahead) assert_ok(f, f->store->ops->letters_ahead(f->store, ids, 4, &f->err));
    for (size_t i = 0; i < 4; i++) assert_true(has_letter(f, kept[i].id, points[i]));
    assert_false(has_letter(f, ids[3], ""));
    for (size_t i = 1; i < 3; i++) {
        assert_ok(f, f->store->ops->letter_drop(f->store, kept[i].id, &found, &f->err));
        assert_true(found);
        assert_false(has_letter(f, kept[i].id, ""));
        assert_ok(f, f->store->ops->letter_drop(f->store, kept[i].id, &found, &f->err));
        assert_false(found);
        assert_ok(f, f->store->ops->audit(f->store, &audit, &f->err));
    }
    assert_true(bury_one(f, &letters[2])); /* the same once more is a new one */
    assert_ok(f, f->store->ops->commit(f->store, &f->err));
    assert_int_equal(list_letters(f, kept, 3), 3);
    assert_bytes(kept[0].message.at.point, "1");
    assert_bytes(kept[1].message.at.point, "4");
    assert_bytes(kept[2].message.at.point, "3");
}

typedef struct seen_heads {
    uint64_t ids[600];
    size_t n, enough;
    bool whole;
} seen_heads;

static bool see_head(void *user, const once_letter *head)
{
    seen_heads *seen = user;
    seen->ids[seen->n++] = head->id;
    if (seen->whole) {
        assert_bytes(head->reason, "other content");
        assert_true(head->buried_ms == TEST_EPOCH_MS);
    }
    return seen->n < seen->enough;
}

/* Whoever looks for letters before it reads them finds the same ones in the same order, in pages of whatever size. */
static void heads_of_letters_are_those_of_the_letters(fixture *f)
{
    enum { LETTERS = 600 };
    static once_letter letters[LETTERS];
    static bool fresh[LETTERS];
    seen_heads all = {.enough = SIZE_MAX, .whole = true}, heads = all, ids = {.enough = SIZE_MAX}, few = {.enough = 20};
    if (!f->store->ops->letter_heads) return; /* there is nothing to gain */
    for (size_t i = 0; i < LETTERS; i++) letters[i] = conflict_of(f, "k", i + 1, "17");
    assert_ok(f, f->store->ops->bury(f->store, letters, LETTERS, fresh, &f->err));
    assert_ok(f, f->store->ops->letters(f->store, f->scope.consumer, 0, see_head, &all, &f->err));
    assert_ok(f, f->store->ops->letter_heads(f->store, f->scope.consumer, 0, false, see_head, &heads, &f->err));
    assert_ok(f, f->store->ops->letter_heads(f->store, f->scope.consumer, 0, true, see_head, &ids, &f->err));
    assert_ok(f, f->store->ops->letter_heads(f->store, f->scope.consumer, all.ids[2], true, see_head, &few, &f->err));
    assert_true(all.n == LETTERS && heads.n == LETTERS && ids.n == LETTERS && few.n == 20);
    assert_memory_equal(heads.ids, all.ids, sizeof all.ids);
    assert_memory_equal(ids.ids, all.ids, sizeof all.ids);
    assert_memory_equal(few.ids, all.ids + 3, 20 * sizeof *all.ids);
}

/* What a visitor saw: numbers, each of which has to be the next one. */
typedef struct seen_in_order {
    size_t n, enough;
} seen_in_order;

static bool see_audit(void *user, const once_audit *audit)
{
    seen_in_order *seen = user;
    assert_true(seen->n < seen->enough);
    assert_int_equal(audit->letter, ++seen->n);
    return seen->n < seen->enough;
}

typedef struct seen_entries {
    bool seen[600];
    size_t n, enough;
    fixture *reads; /* with the same handle, in the midst of the list; NULL: it does not */
} seen_entries;

static void read_it(fixture *f, const once_entry *entry)
{
    once_in_lane in_lane;
    once_entry same;
    once_bytes why;
    assert_ok(f, f->store->ops->get(f->store, entry->id, &same, &f->arena, &f->err));
    assert_int_equal(same.state, ONCE_STATE_WAITING);
    assert_ok(f, f->store->ops->explain_lane(f->store, entry->id, &why, &f->arena, &f->err));
    assert_ok(f, f->store->ops->in_lane(f->store, entry->id, 3, &in_lane, &f->arena, &f->err));
}

static bool see_entry(void *user, const once_entry *entry)
{
    seen_entries *all = user;
    char key[16] = "";
    assert_true(all->n < all->enough && entry->key.len < sizeof key);
    memcpy(key, entry->key.data, entry->key.len);
    const int number = atoi(key + 1);
    assert_in_range(number, 0, 599);
    assert_false(all->seen[number]);
    assert_int_equal(entry->message.body.len, 4);
    all->seen[number] = true;
    if (all->reads) read_it(all->reads, entry);
    return ++all->n < all->enough;
}

enum { MANY = 600 };

static void accept_many(fixture *f)
{
    static once_request requests[MANY];
    static once_message messages[MANY];
    static const once_request *asked[MANY];
    static const once_message *given[MANY];
    static once_decision decisions[MANY];
    static char keys[MANY][8];
    for (int i = 0; i < MANY; i++) {
        snprintf(keys[i], sizeof keys[i], "k%d", i);
        requests[i] = ask(f, keys[i]);
        messages[i] = (once_message){.body = ONCE_BYTES("body"), .sent_ms = ONCE_NO_TIME};
        asked[i] = &requests[i];
        given[i] = &messages[i];
    }
    assert_ok(f, f->store->ops->accept(f->store, asked, given, MANY, decisions, &f->arena, &f->err));
}

/* A list is as long as what is in it, whatever it is read by: everything once, in its order, until it is enough. */
static void long_lists_are_whole(fixture *f)
{
    static seen_entries whole, part;
    seen_in_order audits = {.enough = MANY + 1}, few = {.enough = 20};
    accept_many(f);
    do_begin(f);
    for (uint64_t i = 1; i <= MANY; i++) {
        const once_audit audit = {
            .consumer = f->scope.consumer, .who = ONCE_BYTES("a"), .what = ONCE_BYTES("b"), .letter = i};
        assert_ok(f, f->store->ops->audit(f->store, &audit, &f->err));
    }
    do_commit(f);
    whole = (seen_entries){.enough = MANY + 1};
    part = (seen_entries){.enough = 300};
    assert_ok(f, f->store->ops->list(f->store, f->scope.consumer, ONCE_STATE_WAITING, see_entry, &whole, &f->err));
    assert_ok(f, f->store->ops->list(f->store, f->scope.consumer, ONCE_STATE_WAITING, see_entry, &part, &f->err));
    assert_ok(f, f->store->ops->audits(f->store, f->scope.consumer, see_audit, &audits, &f->err));
    assert_ok(f, f->store->ops->audits(f->store, f->scope.consumer, see_audit, &few, &f->err));
    assert_true(whole.n == MANY && part.n == 300 && audits.n == MANY && few.n == 20);
}

/* Whoever is shown a list may ask about what it sees with the same handle: of a store in memory there is no other. */
static void a_visitor_may_read_what_it_is_shown(fixture *f)
{
    static seen_entries all;
    accept_many(f);
    all = (seen_entries){.enough = MANY + 1, .reads = f};
    assert_ok(f, f->store->ops->list(f->store, f->scope.consumer, ONCE_STATE_WAITING, see_entry, &all, &f->err));
    assert_int_equal(all.n, MANY);
    once_request more = ask(f, "more"); /* and the store can be written to as before */
    assert_int_equal(do_claim(f, &more).answer, ONCE_ANSWER_RUN);
}

typedef struct of_key {
    const char *key;
    size_t n;
    uint64_t ids[8];
} of_key;

static bool note_key(void *user, const once_letter *letter)
{
    of_key *found = user;
    if (letter->key.len != strlen(found->key) || memcmp(letter->key.data, found->key, letter->key.len) != 0)
        return true;
    assert_true(found->n < 8);
    found->ids[found->n++] = letter->id;
    return true;
}

/* Whatever finds them, they are those among all letters of the consumer that have the key. */
static void letters_of_a_key_are_found(fixture *f)
{
    of_key all = {.key = "k"}, found = all, none = {.key = "nothing"};
    once_letter letter = conflict_of(f, "k", 1, "17");
    if (!f->store->ops->letters_of_key) return; /* all of them are read there */
    assert_true(bury_one(f, &letter));
    letter = conflict_of(f, "l", 1, "18");
    assert_true(bury_one(f, &letter));
    letter = conflict_of(f, "k", 2, "19");
    assert_true(bury_one(f, &letter));
    letter.scope.operation = text("other");
    assert_true(bury_one(f, &letter));
    letter.scope.consumer = text("another");
    assert_true(bury_one(f, &letter));
    assert_ok(f, f->store->ops->letters(f->store, f->scope.consumer, 0, note_key, &all, &f->err));
    assert_ok(f, f->store->ops->letters_of_key(f->store, f->scope.consumer, text("k"), note_key, &found, &f->err));
    assert_ok(f, f->store->ops->letters_of_key(f->store, f->scope.consumer, text("nothing"), note_key, &none, &f->err));
    assert_true(all.n == 3 && found.n == 3 && none.n == 0);
    assert_memory_equal(found.ids, all.ids, sizeof all.ids);
}

static void f26_letters_of_other_keys_and_kinds_are_apart(fixture *f)
{
    once_letter letter = conflict_of(f, "k", 7, "17"), other = letter;
    assert_true(bury_one(f, &letter));
    other.key = text("l");
    assert_true(bury_one(f, &other));
    other = letter;
    other.scope.operation = text("other");
    assert_true(bury_one(f, &other));
    other = letter;
    other.key_id = (once_hash){1, 1}; /* a long key that is shown as this one */
    assert_true(bury_one(f, &other));
    other = letter;
    other.fingerprint = (once_hash){0}; /* none: the body is the content */
    assert_true(bury_one(f, &other));
    other.message.at.point = text("18");
    assert_false(bury_one(f, &other));
    other.message.body = text("{} ");
    assert_true(bury_one(f, &other));
    other = letter;
    other.kind = ONCE_ANSWER_TOO_OLD; /* of this kind each place has its own */
    assert_true(bury_one(f, &other));
    assert_false(bury_one(f, &other));
    other.message.at.point = text("18");
    assert_true(bury_one(f, &other));
}

static void f26_counts_belong_to_the_transaction(fixture *f)
{
    const once_letter letter = conflict_of(f, "k", 7, "17"), again = conflict_of(f, "k", 7, "18");
    once_letter kept;
    bool found;
    assert_true(bury_one(f, &letter));
    for (int committed = 0; committed < 2; committed++) {
        do_begin(f);
        for (int i = 0; i < 3; i++) assert_false(bury_one(f, &again));
        assert_int_equal(list_letters(f, NULL, 0), 1);
        if (committed) do_commit(f);
        else do_rollback(f);
        assert_int_equal(list_letters(f, &kept, 1), 1);
        assert_int_equal(kept.count, committed ? 4 : 1);
        assert_bytes(kept.message.at.point, committed ? "18" : "17");
    }
    do_begin(f);
    assert_false(bury_one(f, &again));
    assert_ok(f, f->store->ops->letter_drop(f->store, kept.id, &found, &f->err));
    assert_true(bury_one(f, &letter));
    assert_false(bury_one(f, &again));
    do_commit(f);
    assert_int_equal(list_letters(f, &kept, 1), 1);
    assert_int_equal(kept.count, 2);
}

static void f26_two_handles_count_one_letter(fixture *f)
{
    once_letter kept;
    for (int i = 0; i < 6; i++) {
        use(f, i % 2);
        const once_letter letter = conflict_of(f, "k", 7, "17");
        assert_int_equal(bury_one(f, &letter), i == 0);
    }
    use(f, 0);
    assert_int_equal(list_letters(f, &kept, 1), 1);
    assert_int_equal(kept.count, 6);
}

/* --- restarts --- */

static void f32_attempts_and_failures_survive_restarts(fixture *f)
{
    const once_request r = ask(f, "k");
    do_accept(f, &r);
    for (uint32_t i = 0; i < 6; i++) {
        reopen(f);
        once_taken t = take_one(f);
        assert_int_equal(t.decision.attempt, i + 1);
        assert_int_equal(t.decision.failures, i);
        assert_int_equal(t.decision.unreported, i > 0 && i % 2 == 0);
        reopen(f);
        if (i % 2 == 0) {
            assert_true(do_settle(f, &t.request, ONCE_RETRY)); /* the token outlives the process */
            pass(f, DELAY);
        } else {
            pass(f, LEASE); /* died without reporting an outcome */
        }
    }
}

/* Whatever becomes of an entry, its idempotency key is the one it began with, until its life is over. */
static void f82_the_idempotency_key_is_for_life(fixture *f)
{
    for (int old = 0; old < 2; old++) {
        once_request r = ask(f, old ? "from before" : "new");
        r.old_key = old;
        assert_int_equal(do_claim(f, &r).old_key, old);
        do_settle(f, &r, ONCE_RETRY);
        r.old_key = !old; /* a delivery does not know; the entry does */
        pass(f, DELAY);
        reopen(f);
        r.token = new_token(f);
        const once_decision again = do_claim(f, &r);
        assert_answer(again, RUN);
        assert_int_equal(again.old_key, old);
        do_settle(f, &r, ONCE_UNKNOWN);
        bool done;
        assert_ok(f, f->store->ops->resolve(f->store, r.id, ONCE_RETRY, ONCE_BYTES("tried"), &done, &f->err));
        once_taken t = take_one(f);
        assert_int_equal(t.decision.old_key, old);
        do_settle(f, &t.request, ONCE_DEAD);
        once_letter letter;
        assert_int_equal(list_letters(f, &letter, 1), 1);
        assert_int_equal(letter.old_key, old);
        assert_true(do_replay(f, letter.id));
        t = take_one(f);
        assert_int_equal(t.decision.old_key, old);
        do_settle(f, &t.request, ONCE_DONE);
        reopen(f);
        assert_int_equal(do_get(f, r.id).old_key, old);
        const once_message message = message_of(&r);
        assert_ok(f, f->store->ops->revive(f->store, &r, &message, &done, &f->err));
        assert_true(done);
        t = take_one(f);
        assert_int_equal(t.decision.old_key, old);
        do_settle(f, &t.request, ONCE_DONE);
        once_request other = ask(f, old ? "from before" : "new");
        other.fingerprint = (once_hash){9, 9};
        const once_decision conflict = do_claim(f, &other);
        assert_int_equal(conflict.old_key, old);
        pass(f, REMEMBER);
        r.token = new_token(f);
        r.old_key = false; /* a new life, and a new key */
        assert_false(do_claim(f, &r).old_key);
        do_settle(f, &r, ONCE_DONE);
        assert_true(do_forget(f, r.id));
    }
}

static void f82_a_letter_without_an_entry_keeps_its_key(fixture *f)
{
    for (int old = 0; old < 2; old++) {
        const once_request r = ask(f, old ? "from before" : "new");
        const once_letter buried = {
            .scope = *r.scope, .key = r.key, .message = message_of(&r), .kind = ONCE_ANSWER_TOO_OLD, .old_key = old};
        bool fresh, found;
        once_letter letter;
        assert_ok(f, f->store->ops->bury(f->store, &buried, 1, &fresh, &f->err));
        reopen(f);
        assert_int_equal(list_letters(f, &letter, 1), 1);
        assert_int_equal(letter.old_key, old);
        assert_int_equal(letter.kind, ONCE_ANSWER_TOO_OLD);
        assert_ok(f, f->store->ops->letter_get(f->store, letter.id, &letter, &found, &f->arena, &f->err));
        assert_int_equal(letter.old_key, old);
        assert_ok(f, f->store->ops->letter_drop(f->store, letter.id, &found, &f->err));
    }
}

static void everything_durable_is_there_after_a_restart(fixture *f)
{
    static const char *const names[] = {"done", "already", "rejected", "stale", "retry", "release", "unknown", "dead"};
    once_entry before[ONCE_OUTCOMES];
    once_request r[ONCE_OUTCOMES];
    for (int i = 0; i < ONCE_OUTCOMES; i++) {
        r[i] = ask(f, names[i]);
        r[i].run = UINT64_MAX - 1;
        r[i].fingerprint = (once_hash){UINT64_MAX, UINT64_C(1) << 63};
        do_claim(f, &r[i]);
        assert_true(do_settle(f, &r[i], (once_outcome)i));
        before[i] = do_get(f, r[i].id);
    }
    once_letter letter, again;
    assert_int_equal(list_letters(f, &letter, 1), 1);
    const once_stats stats = do_stats(f);
    reopen(f);
    for (int i = 0; i < ONCE_OUTCOMES; i++) {
        const once_entry after = do_get(f, r[i].id);
        assert_int_equal(after.state, before[i].state);
        assert_true(once_hash_equal(after.token, before[i].token) &&
                    once_hash_equal(after.fingerprint, r[i].fingerprint));
        assert_true(after.attempt == before[i].attempt && after.failures == before[i].failures);
        assert_true(after.run == before[i].run && after.seen_ms == before[i].seen_ms &&
                    after.changed_ms == before[i].changed_ms);
        assert_true(after.due_ms == before[i].due_ms && after.expires_ms == before[i].expires_ms);
        assert_int_equal(after.has_message, before[i].has_message);
        assert_int_equal(after.message.body.len, before[i].message.body.len);
        assert_int_equal(after.result.len, before[i].result.len);
        assert_int_equal(after.reason.len, before[i].reason.len);
    }
    assert_int_equal(list_letters(f, &again, 1), 1);
    assert_int_equal(letter.id, again.id);
    const once_stats after = do_stats(f);
    assert_memory_equal(&stats, &after, sizeof stats);
}

static void an_open_transaction_dies_with_its_handle(fixture *f)
{
    const once_request r = ask(f, "k");
    do_begin(f);
    do_claim(f, &r);
    do_settle(f, &r, ONCE_DONE);
    reopen(f);
    assert_state(f, r, ABSENT);
}

static void a_missing_store_is_made_only_when_asked(fixture *f)
{
    char url[300];
    const size_t len = strlen(f->url);
    memcpy(url, f->url, len);
    memcpy(url + len, ".missing", 9);
    once_backend *store = NULL;
    const once_store_options options = {.size = sizeof options, .env = &f->worlds[0].env, .create = false};
    assert_int_not_equal(once__store_open(url, &options, &store, &f->err), ONCE_OK);
    assert_null(store);
    assert_true(f->err.text[0] != '\0');
}

/* --- two handles --- */

static void f24_an_orphan_goes_to_exactly_one_of_two(fixture *f)
{
    const once_request r = ask(f, "k");
    do_accept(f, &r);
    take_one(f);
    pass(f, LEASE);
    use(f, 1);
    const once_taken winner = take_one(f);
    use(f, 0);
    once_taken none[1];
    assert_int_equal(do_take(f, 1, none), 0);
    const once_request delivery = ask(f, "k");
    assert_answer(do_claim(f, &delivery), BUSY);
    use(f, 1);
    assert_true(do_settle(f, &winner.request, ONCE_DONE));
    use(f, 0);
    assert_answer(do_claim(f, &delivery), DUPLICATE);
}

static void what_one_handle_did_the_other_sees_at_once(fixture *f)
{
    const once_request a = ask(f, "k"), b = ask(f, "k");
    use(f, 1);
    assert_answer(do_claim(f, &b), RUN);
    use(f, 0);
    assert_answer(do_claim(f, &a), BUSY);
    assert_true(do_settle(f, &b, ONCE_DONE)); /* the token is the right, not the handle */
    use(f, 1);
    assert_answer(do_claim(f, &a), DUPLICATE);
    assert_true(do_forget(f, a.id));
    use(f, 0);
    assert_answer(do_claim(f, &a), RUN);
    assert_true(do_settle(f, &a, ONCE_RETRY));
    use(f, 1);
    pass(f, DELAY);
    const once_request c = ask(f, "k");
    const once_decision d = do_claim(f, &c); /* f32: one count for all nodes */
    assert_int_equal(d.attempt, 2);
    assert_int_equal(d.failures, 1);
}

enum { RACE_KEYS = 150, RACERS = 2 };

typedef struct racer {
    fixture *f;
    int handle;
    uint64_t wins, losses;
    bool failed, won[RACE_KEYS];
    pthread_t thread;
} racer;

static void race_key(int number, char out[3])
{
    const char key[] = {'k', (char)('a' + number / 26), (char)('a' + number % 26)};
    memcpy(out, key, sizeof key);
}

static void *race(void *user)
{
    racer *self = user;
    fixture *f = self->f;
    once_backend *store = f->handles[self->handle];
    once_arena arena = {0};
    for (int i = 0; i < RACE_KEYS && !self->failed; i++) {
        const int number = self->handle ? RACE_KEYS - 1 - i : i; /* they meet in the middle */
        char key[3];
        race_key(number, key);
        const once_request r = {
            .scope = &f->scope,
            .key = {key, sizeof key},
            .id = once_key_id(store->secret, &f->scope, (once_bytes){key, sizeof key}),
            .token = {100 + (uint64_t)self->handle, (uint64_t)i},
            .lane = {.gap_ms = -1},
            .lease_ms = LEASE,
            .remember_ms = REMEMBER,
            .sent_ms = ONCE_NO_TIME,
        };
        const once_request *requests = &r;
        once_decision d;
        once_error err;
        if (store->ops->claim(store, &requests, 1, &d, &arena, &err) != ONCE_OK) self->failed = true;
        else if (d.answer == ONCE_ANSWER_RUN) self->wins++, self->won[number] = true;
        else if (d.answer == ONCE_ANSWER_BUSY) self->losses++;
        else self->failed = true;
    }
    once_arena_release(&arena);
    return NULL;
}

static void f25_concurrent_claims_have_one_winner_each(fixture *f)
{
    use(f, 1);
    use(f, 0);
    racer racers[RACERS] = {{.f = f, .handle = 0}, {.f = f, .handle = 1}};
    for (int i = 0; i < RACERS; i++) assert_int_equal(pthread_create(&racers[i].thread, NULL, race, &racers[i]), 0);
    for (int i = 0; i < RACERS; i++) pthread_join(racers[i].thread, NULL);
    assert_false(racers[0].failed || racers[1].failed);
    assert_int_equal(racers[0].wins + racers[1].wins, RACE_KEYS);
    for (int i = 0; i < RACE_KEYS; i++) assert_true(racers[0].won[i] != racers[1].won[i]);
}

enum { RACE_BODY = 2000, RACE_TAKE = 7 };

typedef struct taker {
    fixture *f;
    int handle;
    bool failed;
    unsigned got[RACE_KEYS];
    pthread_t thread;
} taker;

static void count_taken(taker *self, const once_taken *taken)
{
    char key[3];
    for (int i = 0; i < RACE_KEYS; i++) {
        race_key(i, key);
        if (taken->request.key.len != sizeof key || memcmp(taken->request.key.data, key, sizeof key) != 0) continue;
        self->got[i]++;
        if (taken->message.body.len != RACE_BODY) self->failed = true;
    }
}

/* Until there is nothing more: those that the other one is about to take are its own. */
static void *race_to_take(void *user)
{
    taker *self = user;
    once_backend *store = self->f->handles[self->handle];
    once_arena arena = {0};
    once_taken taken[RACE_TAKE];
    once_error err;
    size_t n = 1;
    for (uint64_t i = 1; n > 0 && !self->failed; i++) {
        const once_token token = {100 + (uint64_t)self->handle, i * RACE_TAKE};
        const int rc = store->ops->take(store, self->f->scope.consumer, token, false, LEASE, RACE_TAKE, NULL, taken, &n,
                                        &arena, &err);
        if (once_status_class(rc) == ONCE_CLASS_RETRY) n = 1;
        else if (rc != ONCE_OK) self->failed = true;
        for (size_t k = 0; rc == ONCE_OK && k < n; k++) count_taken(self, &taken[k]);
    }
    once_arena_release(&arena);
    return NULL;
}

/* With bodies that are longer than most: a store may have another place for those, and another way to compare them. */
static void f24_concurrent_takes_have_one_winner_each(fixture *f)
{
    static char body[RACE_BODY];
    memset(body, 'x', sizeof body);
    use(f, 1);
    use(f, 0);
    for (int i = 0; i < RACE_KEYS; i++) {
        char key[3];
        race_key(i, key);
        const once_request r = ask_bytes(f, (once_bytes){key, sizeof key}), *requests = &r;
        const once_message message = {.body = {body, sizeof body}, .sent_ms = ONCE_NO_TIME}, *messages = &message;
        once_decision d;
        assert_ok(f, f->store->ops->accept(f->store, &requests, &messages, 1, &d, &f->arena, &f->err));
        assert_answer(d, WAITING);
    }
    taker takers[RACERS] = {{.f = f, .handle = 0}, {.f = f, .handle = 1}};
    for (int i = 0; i < RACERS; i++)
        assert_int_equal(pthread_create(&takers[i].thread, NULL, race_to_take, &takers[i]), 0);
    for (int i = 0; i < RACERS; i++) pthread_join(takers[i].thread, NULL);
    assert_false(takers[0].failed || takers[1].failed);
    for (int i = 0; i < RACE_KEYS; i++) assert_int_equal(takers[0].got[i] + takers[1].got[i], 1);
}

static bool settle_bare(fixture *f, const once_request *request, once_outcome outcome, bool maybe)
{
    const once_settlement settlement = {.request = request, .outcome = outcome, .delay_ms = DELAY, .maybe_done = maybe};
    bool applied;
    assert_ok(f, f->store->ops->settle(f->store, &settlement, 1, &applied, &f->err));
    return applied;
}

/* Nothing happened, the store has no body, and its source does not bring it again: nobody would ever finish it. */
static void what_waits_without_a_body_is_forgotten(fixture *f)
{
    static const once_outcome outcomes[] = {ONCE_RELEASE, ONCE_RETRY};
    once_request r[2] = {ask(f, "released"), ask(f, "retried")};
    for (int i = 0; i < 2; i++) {
        do_claim(f, &r[i]);
        assert_true(settle_bare(f, &r[i], outcomes[i], false));
        assert_true(do_get(f, r[i].id).expires_ms == TEST_EPOCH_MS + REMEMBER);
    }
    pass(f, REMEMBER - 1);
    assert_int_equal(do_stats(f).waiting, 2);
    assert_int_equal(sweep_all(f, 10), 0);
    pass(f, 1);
    assert_int_equal(do_stats(f).waiting, 0);
    if (f->store->bits & ONCE_STORE_LIST) assert_int_equal(count_listed(f, ONCE_STATE_WAITING), 0);
    assert_state(f, r[0], ABSENT);
    assert_false(do_forget(f, r[0].id));
    assert_false(do_settle(f, &r[0], ONCE_DONE));
    const once_request again = ask(f, "retried");
    const once_decision d = do_claim(f, &again);
    assert_answer(d, RUN);
    assert_int_equal(d.attempt, 1); /* of a new life */
    assert_int_equal(d.failures, 0);
    assert_true(sweep_all(f, 10) >= 1);
    assert_int_equal(sweep_all(f, 10), 0);
    assert_state(f, again, CLAIMED);
    assert_true(do_settle(f, &again, ONCE_DONE));
}

/* Claimed again in time, it is what it was. */
static void what_waits_without_a_body_goes_on_when_it_comes_in_time(fixture *f)
{
    const once_request r = ask(f, "k"), again = ask(f, "k");
    do_claim(f, &r);
    assert_true(settle_bare(f, &r, ONCE_RETRY, false));
    pass(f, REMEMBER - 1);
    const once_decision d = do_claim(f, &again);
    assert_answer(d, RUN);
    assert_int_equal(d.attempt, 2);
    assert_int_equal(d.failures, 1);
    pass(f, LEASE);
    assert_state(f, r, WAITING); /* its lease is over: nobody knows what happened */
    pass(f, INT64_C(10) * REMEMBER);
    assert_int_equal(sweep_all(f, 10), 0);
    assert_state(f, r, WAITING);
    assert_int_equal(do_stats(f).waiting, 1);
}

static void what_may_have_happened_or_has_a_body_is_never_forgotten_by_time(fixture *f)
{
    const once_request maybe = ask(f, "maybe"), since = ask(f, "maybe, then a retry"), unknown = ask(f, "unknown"),
                       body = ask(f, "body"), attached = ask(f, "attached"), other = ask(f, "attached"),
                       dead = ask(f, "dead");
    do_claim(f, &maybe), settle_bare(f, &maybe, ONCE_RETRY, true);
    do_claim(f, &since), settle_bare(f, &since, ONCE_RETRY, true);
    do_claim(f, &unknown), settle_bare(f, &unknown, ONCE_UNKNOWN, false);
    do_claim(f, &body), do_settle(f, &body, ONCE_RETRY);
    do_claim(f, &attached), settle_bare(f, &attached, ONCE_RELEASE, false);
    do_claim(f, &dead), settle_bare(f, &dead, ONCE_DEAD, false);
    do_accept(f, &other);
    pass(f, DELAY);
    once_request second = ask(f, "maybe, then a retry");
    assert_answer(do_claim(f, &second), RUN);
    assert_true(settle_bare(f, &second, ONCE_RETRY, false));
    pass(f, INT64_C(10) * REMEMBER);
    assert_int_equal(sweep_all(f, 10), 0);
    assert_state(f, maybe, WAITING);
    assert_state(f, since, WAITING);
    assert_state(f, unknown, UNKNOWN);
    assert_state(f, body, WAITING);
    assert_state(f, attached, WAITING);
    assert_state(f, dead, DEAD);
    assert_int_equal(do_stats(f).waiting, 4);
}

static void what_waits_without_a_body_is_swept_in_bounded_steps(fixture *f)
{
    enum { N = 300, STEP = 64 };
    char keys[N][8];
    for (int i = 0; i < N; i++) {
        snprintf(keys[i], sizeof keys[i], "k%d", i);
        const once_request r = ask(f, keys[i]);
        do_claim(f, &r);
        settle_bare(f, &r, ONCE_RELEASE, false);
    }
    assert_int_equal(do_stats(f).waiting, N);
    pass(f, REMEMBER);
    assert_int_equal(do_stats(f).waiting, 0);
    once_sweep_result step = {.more = true};
    uint64_t dropped = 0;
    while (step.more) {
        assert_ok(f, f->store->ops->sweep(f->store, STEP, &step, &f->err));
        assert_true(step.dropped <= STEP);
        dropped += step.dropped;
    }
    assert_int_equal(dropped, N);
}

static once_waiting_size do_waiting_size(fixture *f, const char *consumer)
{
    once_waiting_size size;
    assert_ok(f, f->store->ops->waiting_size(f->store, text(consumer), &size, &f->err));
    return size;
}

/* What has a body and is not finished: it waits, or somebody has it. Some stores count more than the bodies. */
static void what_the_store_keeps_to_be_worked_on_is_counted(fixture *f)
{
    char consumer[64];
    (void)snprintf(consumer, sizeof consumer, "%.*s", (int)f->scope.consumer.len, f->scope.consumer.data);
    const once_request bare = ask(f, "bare"), done = ask(f, "done");
    assert_int_equal(do_waiting_size(f, consumer).messages, 0);
    do_claim(f, &bare);
    do_claim(f, &done);
    do_settle(f, &done, ONCE_DONE);
    assert_int_equal(do_waiting_size(f, consumer).messages, 0);
    once_waiting_size before = do_waiting_size(f, consumer), first = {0};
    for (int i = 0; i < 5; i++) {
        char key[16];
        (void)snprintf(key, sizeof key, "w%d", i);
        const once_request r = ask(f, key);
        assert_answer(do_accept(f, &r), WAITING);
        const once_waiting_size size = do_waiting_size(f, consumer);
        assert_int_equal(size.messages, before.messages + 1);
        assert_in_range(size.bytes - before.bytes, strlen("{'a':'..'}"), 1000);
        if (i == 0) first.bytes = size.bytes - before.bytes;
        assert_int_equal(size.bytes - before.bytes, first.bytes);
        before = size;
    }
    assert_int_equal(do_waiting_size(f, "another").messages, 0);
    assert_int_equal(do_waiting_size(f, "another").bytes, 0);
    once_taken taken[16];
    const size_t n = do_take(f, 16, taken);
    assert_int_equal(n, before.messages);
    assert_int_equal(do_waiting_size(f, consumer).messages, before.messages);
    for (size_t i = 0; i < n; i++) {
        taken[i].request.scope = &f->scope;
        assert_true(do_settle(f, &taken[i].request, i == 0 ? ONCE_DEAD : i == 1 ? ONCE_UNKNOWN : ONCE_DONE));
        assert_int_equal(do_waiting_size(f, consumer).messages, before.messages - i - 1);
    }
    assert_int_equal(do_waiting_size(f, consumer).bytes, 0);
}

const conform_test conform_keeping[] = {
    CONFORM_WITH(what_the_store_keeps_to_be_worked_on_is_counted, ONCE_STORE_OWNS),
    CONFORM_WITH(what_waits_without_a_body_is_forgotten, ONCE_STORE_OWNS),
    CONFORM_WITH(what_waits_without_a_body_goes_on_when_it_comes_in_time, ONCE_STORE_OWNS),
    CONFORM_WITH(what_may_have_happened_or_has_a_body_is_never_forgotten_by_time, ONCE_STORE_OWNS),
    CONFORM_WITH(what_waits_without_a_body_is_swept_in_bounded_steps, ONCE_STORE_OWNS),
    CONFORM_WITH(rollback_leaves_nothing, ONCE_STORE_TX),
    CONFORM_WITH(f07_committed_then_duplicate, ONCE_STORE_TX),
    CONFORM_WITH(f79_several_rounds_in_one_transaction, ONCE_STORE_TX),
    CONFORM_WITH(forgotten_and_begun_anew_in_one_transaction, ONCE_STORE_TX),
    CONFORM_WITH(lives_that_ended_alike_are_one, ONCE_STORE_LIST),
    CONFORM_WITH(a_claim_alone_in_a_transaction_is_kept_or_harmless, ONCE_STORE_TX),
    CONFORM_WITH(a_transaction_over_an_existing_claim, ONCE_STORE_TX),
    CONFORM_WITH(facts_belong_to_the_transaction, ONCE_STORE_TX),
    CONFORM(f89_a_number_that_went_back_is_forgotten_commits),
    CONFORM_WITH(f89_nothing_of_a_commit_happens_when_the_store_forgot, ONCE_STORE_SHARED),
    CONFORM(facts_are_found_by_the_beginning_of_their_names),
    CONFORM(f100_workers_are_alive_as_long_as_they_renew),
    CONFORM(f100_a_process_that_is_not_there_is_dead_at_once),
    CONFORM(f99_claims_of_a_worker_that_is_gone_end_at_once),
    CONFORM(f99_more_workers_are_gone_than_are_remembered),
    CONFORM(f99_what_was_taken_says_whose_it_is),
    CONFORM(f99_whoever_may_live_keeps_its_claims),
    CONFORM(f99_a_claim_that_comes_after_its_worker_is_ended_too),
    CONFORM(f99_many_claims_are_ended),
    CONFORM(f99_a_record_that_does_not_say_it_is_not_contained),
    CONFORM(f89_a_worker_whose_record_went_back_stops),
    CONFORM(f89_nothing_is_committed_beside_a_record_that_went_back),
    CONFORM(f100_each_death_is_noticed_whoever_lives),
    CONFORM(f100_a_worker_has_the_longest_lease_of_its_claims),
    CONFORM(dead_workers_are_dropped_after_a_day),
    CONFORM_WITH(asked_between_claim_and_settle_in_one_transaction, ONCE_STORE_TX | ONCE_STORE_LIST),
    CONFORM_WITH(bury_in_a_transaction, ONCE_STORE_TX),
    CONFORM_WITH(f26_conflicts_of_one_content_are_one_letter, ONCE_STORE_OWNS | ONCE_STORE_LIST),
    CONFORM_WITH(f35_letters_that_are_read_ahead, ONCE_STORE_OWNS),
    CONFORM_WITH(heads_of_letters_are_those_of_the_letters, ONCE_STORE_OWNS),
    CONFORM_WITH(letters_of_a_key_are_found, ONCE_STORE_OWNS),
    CONFORM_WITH(long_lists_are_whole, ONCE_STORE_OWNS | ONCE_STORE_LIST | ONCE_STORE_TX),
    CONFORM_WITH(a_visitor_may_read_what_it_is_shown, ONCE_STORE_OWNS | ONCE_STORE_LIST | ONCE_STORE_TX),
    CONFORM_WITH(f26_letters_of_other_keys_and_kinds_are_apart, ONCE_STORE_OWNS),
    CONFORM_WITH(f26_counts_belong_to_the_transaction, ONCE_STORE_TX | ONCE_STORE_LIST),
    CONFORM_WITH(f26_two_handles_count_one_letter, ONCE_STORE_SHARED | ONCE_STORE_LIST),
    CONFORM_WITH(f32_attempts_and_failures_survive_restarts, ONCE_STORE_DURABLE | ONCE_STORE_OWNS),
    CONFORM_WITH(f82_the_idempotency_key_is_for_life, ONCE_STORE_DURABLE | ONCE_STORE_OWNS | ONCE_STORE_LIST),
    CONFORM_WITH(f82_a_letter_without_an_entry_keeps_its_key, ONCE_STORE_DURABLE | ONCE_STORE_OWNS | ONCE_STORE_LIST),
    CONFORM_WITH(everything_durable_is_there_after_a_restart, ONCE_STORE_DURABLE | ONCE_STORE_OWNS),
    CONFORM_WITH(an_open_transaction_dies_with_its_handle, ONCE_STORE_DURABLE | ONCE_STORE_TX),
    CONFORM_WITH(a_missing_store_is_made_only_when_asked, ONCE_STORE_DURABLE),
    CONFORM_WITH(f24_an_orphan_goes_to_exactly_one_of_two, ONCE_STORE_SHARED | ONCE_STORE_OWNS),
    CONFORM_WITH(what_one_handle_did_the_other_sees_at_once, ONCE_STORE_SHARED),
    CONFORM_WITH(f25_concurrent_claims_have_one_winner_each, ONCE_STORE_SHARED),
    CONFORM_WITH(f24_concurrent_takes_have_one_winner_each, ONCE_STORE_SHARED | ONCE_STORE_OWNS),
    {0},
};
