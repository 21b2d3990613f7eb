/* The machine step by step: streams that are assigned, revoked, lost and released. */
#include "machine_fixture.h"

static void a_revoked_stream_leaves_queue_and_parking_at_once(void **state)
{
    fixture *f = open_streams(state, true, 0, 2);
    once_item *flying, *behind, *other;
    fetch_of(f, 0, 1, 9, &flying);
    send_out(f, 1);
    fetch_of(f, 0, 1, 9, &behind); /* parked behind the first ... */
    fetch_of(f, 1, 1, 9, &other);  /* ... and one of another stream behind it */
    asks_nothing(f);
    assert_places(f, 0, 2, 0, 1, 0);
    fetch_of(f, 0, 1, 0, NULL);
    hears(f, ONCE_STREAM_REVOKED, 0);
    assert_places(f, 0, 1, 0, 1, 0);
    assert_int_equal(other->place, ONCE_AT_PARKED);
    assert_int_equal(once_machine_unfinished(f->machine), 2); /* what flies, and the other stream's */
    releases(f, 0);
    settle_back(f, flying); /* under its fence, and nobody is told */
    asks_no_acks(f);
    assert_int_equal(other->place, ONCE_AT_READY);
    assert_int_equal(once_machine_unfinished(f->machine), 1);
}

static void a_revoked_stream_is_acked_after_the_commit_and_released_then(void **state)
{
    fixture *f = open_streams(state, false, 0, 1);
    once_item *item;
    fetch_of(f, 0, 1, 0, &item);
    const once_item copy = *item;
    works_on(f, 1);
    once_action *commit = asks_store(f, ONCE_ACT_COMMIT);
    hears(f, ONCE_STREAM_REVOKED, 0);
    asks_no_acks(f); /* nor is it released */
    answer(f, commit, ONCE_OK);
    acks_of(f, 0, &copy);
    releases(f, 0);
    asks_no_acks(f);
    assert_int_equal(once_machine_counts(f->machine)->acked, 1);
}

static void what_is_rolled_back_of_a_revoked_stream_is_dropped(void **state)
{
    fixture *f = open_streams(state, false, 0, 2);
    once_item *kept;
    once_action *fetched = asks_source(f, ONCE_ACT_FETCH);
    (void)fill(f, fetched->batch, 1, 0);
    kept = fill(f, fetched->batch, 2, 0);
    kept->stream = 1;
    fetched->batch->taken_in = true;
    answer(f, fetched, ONCE_OK);
    store_does(f, ONCE_ACT_BEGIN);
    claims(f, 2);
    once_action *run = asks_store(f, ONCE_ACT_RUN);
    hears(f, ONCE_STREAM_REVOKED, 0);
    assert_places(f, 0, 0, 2, 0, 0);
    asks_no_acks(f);
    run->failed = true;
    answer(f, run, ONCE_OK);
    store_does(f, ONCE_ACT_ROLLBACK);
    assert_places(f, 0, 0, 1, 0, 0);
    releases(f, 0);
    store_does(f, ONCE_ACT_BEGIN);
    claims(f, 1);
    assert_int_equal(kept->place, ONCE_AT_WORK);
}

static void at_the_deadline_a_stream_is_released_and_nothing_of_it_is_acked(void **state)
{
    fixture *f = open_streams(state, false, 0, 1);
    fetch_of(f, 0, 1, 0, NULL);
    works_on(f, 1);
    once_action *commit = asks_store(f, ONCE_ACT_COMMIT);
    hears(f, ONCE_STREAM_REVOKED, 0);
    asks_no_acks(f);
    assert_in_range(once_machine_source_wait_ms(f->machine, f->now_ms), 1, WITHIN_MS);
    f->now_ms += WITHIN_MS;
    releases(f, 0);
    answer(f, commit, ONCE_OK);
    asks_no_acks(f);
    assert_places(f, 0, 0, 0, 0, 0);
    assert_int_equal(once_machine_counts(f->machine)->done, 1);
    assert_int_equal(once_machine_counts(f->machine)->acked, 0);
    assert_int_equal(once_machine_unfinished(f->machine), 0);
}

static void a_commit_in_doubt_of_a_revoked_stream_is_asked_for(void **state)
{
    fixture *f = open_streams(state, false, 0, 1);
    once_item *item;
    fetch_of(f, 0, 1, 0, &item);
    const once_item copy = *item;
    works_on(f, 1);
    answer(f, asks_store(f, ONCE_ACT_COMMIT), ONCE_E_UNAVAILABLE);
    hears(f, ONCE_STREAM_REVOKED, 0);
    assert_places(f, 0, 0, 1, 0, 0);
    f->now_ms += once_machine_wait_ms(f->machine, f->now_ms);
    store_does(f, ONCE_ACT_BEGIN);
    once_action *claim = asks_store(f, ONCE_ACT_CLAIM);
    item->decision = (once_decision){.answer = ONCE_ANSWER_DUPLICATE, .outcome = ONCE_DONE, .own = true};
    answer(f, claim, ONCE_OK);
    store_does(f, ONCE_ACT_COMMIT);
    acks_of(f, 0, &copy);
    releases(f, 0);
}

/* After an unclean end it is claimed before its transaction, and its stream is revoked meanwhile. */
static void what_could_not_be_claimed_of_a_revoked_stream_does_not_begin(void **state)
{
    fixture *f = *state;
    f->unclean = true;
    open_streams(state, false, 0, 1);
    once_item *item;
    fetch_of(f, 0, 1, 0, &item);
    once_action *claim = asks_store(f, ONCE_ACT_CLAIM);
    hears(f, ONCE_STREAM_REVOKED, 0);
    item->decision = (once_decision){.answer = ONCE_ANSWER_BUSY, .wait_ms = 1000};
    answer(f, claim, ONCE_OK);
    assert_places(f, 0, 0, 0, 0, 0);
    assert_int_equal(once_machine_unfinished(f->machine), 0);
    releases(f, 0);
}

static void nothing_of_a_lost_stream_is_acked(void **state)
{
    fixture *f = open_streams(state, true, 0, 1);
    once_item *items[2];
    fetch_of(f, 0, 2, 0, items);
    send_out(f, 2);
    settle_back(f, items[0]); /* it would be acked now */
    hears(f, ONCE_STREAM_LOST, 0);
    releases(f, 0);
    settle_back(f, items[1]);
    asks_no_acks(f);
    assert_int_equal(once_machine_counts(f->machine)->done, 2);
    assert_int_equal(once_machine_counts(f->machine)->acked, 0);
}

static void work_of_a_lost_stream_is_dropped_when_its_transaction_does_not_begin(void **state)
{
    fixture *f = open_streams(state, false, 0, 1);
    fetch_of(f, 0, 2, 0, NULL);
    answer(f, asks_store(f, ONCE_ACT_BEGIN), ONCE_E_UNAVAILABLE);
    assert_places(f, 0, 0, 2, 0, 0);
    hears(f, ONCE_STREAM_LOST, 0);
    assert_places(f, 0, 0, 0, 0, 0);
    releases(f, 0);
    assert_int_equal(once_machine_unfinished(f->machine), 0);
}

/* The source has released it, and gives its number away before the machine knows. */
static void a_number_is_free_as_soon_as_its_stream_is_released(void **state)
{
    fixture *f = open_streams(state, true, 0, 1);
    once_item *old, *young;
    fetch_of(f, 0, 1, 0, &old);
    send_out(f, 1);
    hears(f, ONCE_STREAM_REVOKED, 0);
    once_action *release = asks_acks(f, ONCE_ACT_RELEASE);
    hears(f, ONCE_STREAM_ASSIGNED, 0);
    fetch_of(f, 0, 1, 0, &young);
    answer(f, release, ONCE_OK);
    send_out(f, 1);
    settle_back(f, old);
    asks_no_acks(f);
    const once_item copy = *young;
    settle_back(f, young);
    acks_of(f, 0, &copy);
}

/* A claim outside of a transaction may have happened. Forgotten, it would run until its lease is over, and its message
 * would have one failure more. */
static void a_claim_without_an_answer_is_repeated_although_its_stream_is_lost(void **state)
{
    ((fixture *)*state)->unclean = true;
    fixture *f = open_streams(state, false, 0, 1);
    once_item *item;
    fetch_of(f, 0, 1, 0, &item);
    once_action *claim = asks_store(f, ONCE_ACT_CLAIM);
    const once_token token = item->request.token;
    answer(f, claim, ONCE_E_UNAVAILABLE);
    hears(f, ONCE_STREAM_LOST, 0);
    f->now_ms += 1000;
    claim = asks_store(f, ONCE_ACT_CLAIM);
    assert_true(once_hash_equal(claim->items[0]->request.token, token));
}

static void a_release_that_fails_delays_no_other(void **state)
{
    fixture *f = open_streams(state, false, 0, 2);
    hears(f, ONCE_STREAM_LOST, 0);
    answer(f, asks_acks(f, ONCE_ACT_RELEASE), ONCE_E_UNAVAILABLE);
    hears(f, ONCE_STREAM_REVOKED, 1);
    releases(f, 1);
    const int64_t wait_ms = once_machine_source_wait_ms(f->machine, f->now_ms);
    asks_no_acks(f);
    f->now_ms += wait_ms;
    releases(f, 0);
    asks_no_acks(f);
}

/* The source says that it is lost before it is asked to release it, and the machine hears of both the other way round.
 */
static void a_stream_may_be_lost_while_it_is_released(void **state)
{
    fixture *f = open_streams(state, false, 0, 2);
    hears(f, ONCE_STREAM_REVOKED, 0);
    once_action *fetched = asks_source(f, ONCE_ACT_FETCH);
    releases(f, 0);
    tells(f, fetched, ONCE_STREAM_LOST, 0);
    assert_int_equal(once_machine_status(f->machine, NULL), ONCE_OK);
    asks_no_acks(f);
    fetch_of(f, 1, 1, 0, NULL);
    store_does(f, ONCE_ACT_BEGIN);
}

static void news_that_cannot_be_end_the_run(void **state)
{
    fixture *f = open_streams(state, false, 0, 1);
    hears(f, ONCE_STREAM_REVOKED, 7);
    assert_int_equal(once_machine_status(f->machine, NULL), ONCE_E_BUG);
}

/* Its one stream is there from the start, and stays. */
static void a_source_without_assignments_cannot_revoke(void **state)
{
    fixture *f = open_pipe(state, false);
    hears(f, ONCE_STREAM_ASSIGNED, 0); /* for how long deliveries are ours; here they do not run out */
    assert_int_equal(once_machine_status(f->machine, NULL), ONCE_OK);
    assert_int_equal(f->machine->streams.at[0]->expires_ms, 0);
    hears(f, ONCE_STREAM_REVOKED, 0);
    assert_int_equal(once_machine_status(f->machine, NULL), ONCE_E_BUG);
}

static void a_message_of_no_stream_ends_the_run(void **state)
{
    fixture *f = open_streams(state, false, 0, 1);
    fetch_of(f, 3, 1, 0, NULL);
    assert_int_equal(once_machine_status(f->machine, NULL), ONCE_E_BUG);
    assert_int_equal(once_machine_unfinished(f->machine), 1);
}

static void a_stop_releases_all_streams_after_the_last_acks(void **state)
{
    fixture *f = open_streams(state, true, 0, 2);
    once_item *flying;
    fetch_of(f, 1, 1, 0, &flying);
    send_out(f, 1);
    fetch_of(f, 0, 1, 0, NULL);
    once_machine_stop(f->machine);
    asks_nothing(f);
    asks_no_acks(f);
    const once_item copy = *flying;
    settle_back(f, flying);
    acks_of(f, 1, &copy);
    asks_nothing(f);
    assert_false(once_machine_ended(f->machine));
    once_action *first = asks_acks(f, ONCE_ACT_RELEASE);
    answer(f, first, ONCE_E_UNAVAILABLE); /* it finds out by itself */
    answer(f, asks_acks(f, ONCE_ACT_RELEASE), ONCE_OK);
    asks_nothing(f);
    assert_true(once_machine_ended(f->machine));
    assert_int_equal(once_machine_status(f->machine, NULL), ONCE_OK);
    assert_int_equal(once_machine_unfinished(f->machine), 1);
}

/* While an effect in flight is waited for: the broker may be away, and each call would try to reach it. */
static void a_stop_asks_a_source_without_streams_for_nothing(void **state)
{
    fixture *f = open_streams(state, true, 0, 1);
    once_item *flying;
    fetch_of(f, 0, 1, 9, &flying);
    send_out(f, 1);
    once_machine_stop(f->machine);
    f->now_ms += BEAT_MS / 2;
    once_action *beat = asks_source(f, ONCE_ACT_FETCH);
    assert_int_equal(beat->max, 0);
    answer(f, beat, ONCE_OK);
    hears(f, ONCE_STREAM_LOST, 0);
    releases(f, 0);
    f->now_ms += BEAT_MS;
    assert_null(once_machine_source_action(f->machine, f->now_ms));
    settle_back(f, flying);
}

static void a_stream_that_comes_while_the_run_ends_is_released(void **state)
{
    fixture *f = open_streams(state, false, 0, 1);
    once_action *fetched = asks_source(f, ONCE_ACT_FETCH);
    once_machine_stop(f->machine);
    asks_nothing(f);
    once_action *first = asks_acks(f, ONCE_ACT_RELEASE);
    tells(f, fetched, ONCE_STREAM_ASSIGNED, 1);
    answer(f, first, ONCE_OK);
    asks_nothing(f);
    assert_false(once_machine_ended(f->machine));
    releases(f, 1);
    asks_nothing(f);
    assert_true(once_machine_ended(f->machine));
}

/* Its number was another one's, which was released: it goes with the source, which is closed then. */
static void a_stream_that_comes_with_the_number_of_one_that_was_released_at_the_end_is_not_asked_for(void **state)
{
    fixture *f = open_streams(state, false, 0, 1);
    once_action *fetched = asks_source(f, ONCE_ACT_FETCH);
    once_machine_stop(f->machine);
    asks_nothing(f);
    releases(f, 0);
    tells(f, fetched, ONCE_STREAM_ASSIGNED, 0);
    asks_no_acks(f);
    asks_nothing(f);
    assert_true(once_machine_ended(f->machine));
    assert_int_equal(once_machine_status(f->machine, NULL), ONCE_OK);
}

/* Its effect was over, and nobody had settled it. */
static void what_came_back_of_a_lost_stream_is_settled_and_not_acked(void **state)
{
    fixture *f = open_streams(state, true, 0, 1);
    once_item *item;
    fetch_of(f, 0, 1, 0, &item);
    send_out(f, 1);
    finishes(f, item, ONCE_DONE);
    hears(f, ONCE_STREAM_LOST, 0);
    assert_places(f, 0, 0, 0, 0, 1);
    releases(f, 0);
    store_does(f, ONCE_ACT_BEGIN);
    settles(f, 1, ONCE_DONE);
    store_does(f, ONCE_ACT_COMMIT);
    asks_no_acks(f);
    assert_int_equal(once_machine_counts(f->machine)->done, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_claim_without_an_answer_is_repeated_although_its_stream_is_lost),
        TEST(a_revoked_stream_leaves_queue_and_parking_at_once),
        TEST(a_revoked_stream_is_acked_after_the_commit_and_released_then),
        TEST(what_is_rolled_back_of_a_revoked_stream_is_dropped),
        TEST(at_the_deadline_a_stream_is_released_and_nothing_of_it_is_acked),
        TEST(a_commit_in_doubt_of_a_revoked_stream_is_asked_for),
        TEST(what_could_not_be_claimed_of_a_revoked_stream_does_not_begin),
        TEST(nothing_of_a_lost_stream_is_acked),
        TEST(what_came_back_of_a_lost_stream_is_settled_and_not_acked),
        TEST(work_of_a_lost_stream_is_dropped_when_its_transaction_does_not_begin),
        TEST(a_number_is_free_as_soon_as_its_stream_is_released),
        TEST(news_that_cannot_be_end_the_run),
        TEST(a_source_without_assignments_cannot_revoke),
        TEST(a_message_of_no_stream_ends_the_run),
        TEST(a_stop_releases_all_streams_after_the_last_acks),
        TEST(a_release_that_fails_delays_no_other),
        TEST(a_stream_may_be_lost_while_it_is_released),
        TEST(a_stop_asks_a_source_without_streams_for_nothing),
        TEST(a_stream_that_comes_while_the_run_ends_is_released),
        TEST(a_stream_that_comes_with_the_number_of_one_that_was_released_at_the_end_is_not_asked_for),
    };
    return cmocka_run_group_tests_name("machine_assignments", tests, NULL, NULL);
}
