/* Streams that come and go: assigned, revoked, lost, released, between two consumers. */
#include "source_conform.h"

static unsigned count(const source_fixture *f, int consumer, int state)
{
    unsigned n = 0;
    for (int i = 0; i < SRC_STREAMS; i++) n += (int)f->seats[consumer][i].state == state;
    return n;
}

static bool first_has_all(const source_fixture *f) { return count(f, 0, SRC_OURS) == src_streams(f); }
static bool first_must_leave(const source_fixture *f) { return count(f, 0, SRC_REVOKED) > 0; }
static bool first_has_lost(const source_fixture *f) { return count(f, 0, SRC_LOST) > 0; }
static bool second_has_some(const source_fixture *f) { return count(f, 1, SRC_OURS) > 0; }

static uint32_t number_in(const source_fixture *f, int consumer, int state)
{
    uint32_t i = 0;
    while (i < SRC_STREAMS && (int)f->seats[consumer][i].state != state) i++;
    assert_true(i < SRC_STREAMS);
    return i;
}

/* The first consumer has all streams and everything that is in them; a second one has come, so that it must leave one.
 */
static uint32_t begin_revoke(source_fixture *f, int messages)
{
    for (unsigned s = 0; s < src_streams(f); s++) src_put(f, s, messages);
    src_open(f, 0);
    src_wait_for(f, 0, first_has_all);
    src_fetch_until(f, 0, (size_t)messages * src_streams(f));
    src_open(f, 1);
    src_wait_for(f, 0, first_must_leave);
    return number_in(f, 0, SRC_REVOKED);
}

/* Both are asked in turn: a real one needs both to agree. */
static void wait_for_second(source_fixture *f)
{
    const int64_t until_ms = src_real_ms() + src_patience_ms(f);
    while (!second_has_some(f) && src_real_ms() < until_ms) {
        (void)src_fetch(f, 0, 0);
        (void)src_fetch(f, 1, 0);
        src_nap();
    }
    assert_true(second_has_some(f));
}

static void streams_are_assigned_by_news(source_fixture *f)
{
    for (unsigned s = 0; s < src_streams(f); s++) src_put(f, s, 2);
    src_open(f, 0);
    src_wait_for(f, 0, first_has_all); /* also when nothing is asked for */
    assert_int_equal(f->n, 0);
    bool seen[SRC_STREAMS] = {false};
    for (uint32_t i = 0; i < SRC_STREAMS; i++) {
        if (f->seats[0][i].state != SRC_OURS) continue;
        assert_false(seen[f->seats[0][i].stream]);
        seen[f->seats[0][i].stream] = true;
    }
    src_fetch_until(f, 0, 2 * src_streams(f));
}

static void a_revoked_stream_goes_to_another_with_what_was_not_acked(source_fixture *f)
{
    const uint32_t number = begin_revoke(f, 8);
    const unsigned stream = f->seats[0][number].stream;
    for (int n = 0; n < 3; n++)
        src_ack(f, src_find(f, stream, n)); /* until it is released, what is over may be acked */
    src_quiet(f, 0);
    src_release(f, 0, number);
    wait_for_second(f);
    src_forget(f);
    src_fetch_until(f, 1, 5 + 8 * (size_t)(count(f, 1, SRC_OURS) - 1));
    src_expect(f, stream, 3, 7);
    src_quiet(f, 1);
    src_quiet(f, 0);
}

static void a_revoked_stream_stays_until_it_is_released(source_fixture *f)
{
    const uint32_t number = begin_revoke(f, 4);
    const unsigned stream = f->seats[0][number].stream;
    src_forget(f);
    src_quiet(f, 1);
    for (uint32_t i = 0; i < SRC_STREAMS; i++)
        if (f->seats[1][i].state == SRC_OURS) assert_true(f->seats[1][i].stream != stream);
    src_release(f, 0, number);
    wait_for_second(f);
}

static void a_revoked_stream_is_not_waited_for_longer_than_was_said(source_fixture *f)
{
    const uint32_t number = begin_revoke(f, 4);
    const unsigned stream = f->seats[0][number].stream;
    const src_got late = *src_find(f, stream, 0);
    src_pass(f, f->seats[0][number].within_ms + 1);
    const size_t before = f->n;
    wait_for_second(f);
    src_fetch_until(f, 1, before + 4 * count(f, 1, SRC_OURS));
    assert_int_equal(src_try_ack(f, 0, &late), ONCE_RECEIPT_GONE);
    src_release(f, 0, number); /* late, and no harm: the stream is the other's */
    for (int n = 0; n < 4; n++) src_ack(f, src_find(f, stream, n));
    src_quiet(f, 1);
}

static void of_a_revoked_stream_nothing_more_comes(source_fixture *f)
{
    const uint32_t number = begin_revoke(f, 2);
    src_put(f, f->seats[0][number].stream, 5);
    const size_t before = f->n;
    src_quiet(f, 0);
    assert_int_equal(f->n, before);
    src_release(f, 0, number);
}

static void the_other_streams_go_on(source_fixture *f)
{
    const uint32_t number = begin_revoke(f, 2);
    const unsigned left = f->seats[0][number].stream;
    unsigned kept = 0;
    for (uint32_t i = 0; i < SRC_STREAMS; i++)
        if (f->seats[0][i].state == SRC_OURS) kept = f->seats[0][i].stream;
    assert_int_equal(count(f, 0, SRC_REVOKED), 1);
    assert_true(kept != left);
    src_put(f, kept, 3);
    const size_t before = f->n;
    src_fetch_until(f, 0, before + 3);
    src_ack(f, src_find(f, kept, 4));
    src_release(f, 0, number);
    wait_for_second(f);
    assert_true(count(f, 0, SRC_OURS) > 0);
}

static void what_is_acked_after_the_release_is_not(source_fixture *f)
{
    const uint32_t number = begin_revoke(f, 4);
    const unsigned stream = f->seats[0][number].stream;
    const src_got late = *src_find(f, stream, 3);
    src_release(f, 0, number);
    assert_int_equal(src_try_ack(f, 0, &late), ONCE_RECEIPT_GONE);
    wait_for_second(f);
    src_forget(f);
    src_fetch_until(f, 1, 4 * count(f, 1, SRC_OURS));
    src_expect(f, stream, 0, 3);
}

static void a_lost_stream_cannot_be_acked(source_fixture *f)
{
    for (unsigned s = 0; s < src_streams(f); s++) src_put(f, s, 4);
    src_open(f, 0);
    src_wait_for(f, 0, first_has_all);
    src_fetch_until(f, 0, 4 * src_streams(f));
    for (int n = 0; n < 2; n++) src_ack(f, src_find(f, 0, n));
    const src_got late = *src_find(f, 0, 3);
    f->driver->lose(f->world, 0);
    src_open(f, 1);
    src_wait_for(f, 0, first_has_lost);
    const uint32_t number = number_in(f, 0, SRC_LOST);
    assert_int_equal(f->seats[0][number].stream, 0);
    assert_int_equal(src_try_ack(f, 0, &late), ONCE_RECEIPT_GONE);
    src_release(f, 0, number);
    wait_for_second(f);
    src_forget(f);
    while (src_count(f, 0) < 2) (void)src_fetch(f, 1, 10);
    src_expect(f, 0, 2, 3);
}

static void a_lost_stream_comes_back_with_what_was_not_acked(source_fixture *f)
{
    for (unsigned s = 0; s < src_streams(f); s++) src_put(f, s, 4);
    src_open(f, 0);
    src_wait_for(f, 0, first_has_all);
    src_fetch_until(f, 0, 4 * src_streams(f));
    for (int n = 0; n < 2; n++) src_ack(f, src_find(f, 0, n));
    const src_got late = *src_find(f, 0, 3);
    f->driver->lose(f->world, 0);
    src_wait_for(f, 0, first_has_lost);
    assert_int_equal(src_try_ack(f, 0, &late), ONCE_RECEIPT_GONE);
    for (uint32_t i = 0; i < SRC_STREAMS; i++)
        if (f->seats[0][i].state == SRC_LOST) src_release(f, 0, i);
    src_wait_for(f, 0, first_has_all);
    src_forget(f);
    while (src_count(f, 0) < 2) (void)src_fetch(f, 0, 10);
    src_expect(f, 0, 2, 3);
    for (int n = 2; n < 4; n++) src_ack(f, src_find(f, 0, n));
}

static void who_closes_leaves_everything_at_once(source_fixture *f)
{
    for (unsigned s = 0; s < src_streams(f); s++) src_put(f, s, 4);
    src_open(f, 0);
    src_wait_for(f, 0, first_has_all);
    src_fetch_until(f, 0, 4 * src_streams(f));
    for (unsigned s = 0; s < src_streams(f); s++)
        for (int n = 0; n < 2; n++) src_ack(f, src_find(f, s, n));
    for (uint32_t i = 0; i < SRC_STREAMS; i++)
        if (f->seats[0][i].state == SRC_OURS) src_release(f, 0, i);
    src_close(f, 0);
    src_forget(f);
    src_open(f, 1);
    src_fetch_until(f, 1, 2 * src_streams(f));
    for (unsigned s = 0; s < src_streams(f); s++) src_expect(f, s, 2, 3);
    src_quiet(f, 1);
}

static void a_stream_can_come_back(source_fixture *f)
{
    const uint32_t number = begin_revoke(f, 4);
    const unsigned stream = f->seats[0][number].stream;
    src_release(f, 0, number);
    wait_for_second(f);
    src_close(f, 1);
    src_wait_for(f, 0, first_has_all); /* hear() asks that its number is free */
    src_forget(f);
    while (src_count(f, stream) < 4) (void)src_fetch(f, 0, 10);
    src_expect(f, stream, 0, 3);
    for (int n = 0; n < 4; n++) src_ack(f, src_find(f, stream, n));
}

static void who_fetches_often_enough_keeps_its_streams(source_fixture *f)
{
    for (unsigned s = 0; s < src_streams(f); s++) src_put(f, s, 1);
    src_open(f, 0);
    src_wait_for(f, 0, first_has_all);
    src_fetch_until(f, 0, src_streams(f));
    once_source *s = f->consumers[0];
    const int64_t beat_ms = s->ops->beat_ms ? s->ops->beat_ms(s) : 0;
    for (int i = 0; i < 4 && beat_ms; i++) {
        src_pass(f, beat_ms);
        assert_int_equal(src_fetch(f, 0, 0), 0);
    }
    assert_true(first_has_all(f));
    if (!src_has(f, ONCE_SOURCE_EXPIRES)) src_ack(f, src_find(f, 0, 0));
}

#define ASSIGNS (ONCE_SOURCE_ASSIGNS | ONCE_SOURCE_REDELIVERS)
#define KEPT (ASSIGNS | SRC_REMEMBERS | SRC_ENDLESS)
#define DIVIDED (KEPT | SRC_DIVIDES)

const source_test source_streams[] = {
    SRC_TEST(streams_are_assigned_by_news, ASSIGNS),
    SRC_TEST(a_revoked_stream_goes_to_another_with_what_was_not_acked, DIVIDED),
    SRC_TEST(a_revoked_stream_stays_until_it_is_released, DIVIDED),
    SRC_TEST(a_revoked_stream_is_not_waited_for_longer_than_was_said, DIVIDED),
    SRC_TEST(of_a_revoked_stream_nothing_more_comes, DIVIDED),
    SRC_TEST(the_other_streams_go_on, DIVIDED),
    SRC_TEST(what_is_acked_after_the_release_is_not, DIVIDED),
    SRC_TEST(a_lost_stream_cannot_be_acked, DIVIDED | SRC_LOSES),
    SRC_TEST(a_lost_stream_comes_back_with_what_was_not_acked, KEPT | SRC_SHARES | SRC_LOSES),
    SRC_TEST(who_closes_leaves_everything_at_once, KEPT),
    SRC_TEST(a_stream_can_come_back, DIVIDED),
    SRC_TEST(who_fetches_often_enough_keeps_its_streams, KEPT),
    {0},
};
