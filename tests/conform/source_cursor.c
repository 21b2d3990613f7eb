/* Where a source goes on: what it keeps in the transactions of a store, and begins with. The store is the fixture's
 * (src_facts), whose transactions commit or do not. */
#include "source_conform.h"

#include <stdlib.h>

/* In one transaction: all that came so far, of which everything up to `last` is over, in its stream. */
static void keep(source_fixture *f, const src_got *const *last, size_t n, bool commits)
{
    once_source *s = f->consumers[0];
    once_item *items[64];
    const once_item *over[SRC_STREAMS];
    assert_true(f->n <= sizeof items / sizeof *items && n <= SRC_STREAMS);
    for (size_t i = 0; i < f->n; i++) items[i] = f->got[i].item;
    for (size_t i = 0; i < n; i++) over[i] = last[i]->item;
    src_begin(f);
    src_ok(f, s->ops->keep(s, &f->facts.base, items, f->n, NULL, 0, &f->err));
    src_ok(f, s->ops->keep(s, &f->facts.base, NULL, 0, over, n, &f->err));
    src_end(f, commits);
}

static void keep_at(source_fixture *f, unsigned stream, int n, bool commits)
{
    const src_got *last = src_find(f, stream, n);
    keep(f, &last, 1, commits);
}

static void begin(source_fixture *f, int messages)
{
    src_put(f, 0, messages);
    src_open(f, 0);
    src_fetch_until(f, 0, (size_t)messages);
}

static void again(source_fixture *f)
{
    src_forget(f);
    src_reopen(f);
}

static void a_source_goes_on_behind_what_was_kept(source_fixture *f)
{
    begin(f, 6);
    keep_at(f, 0, 2, true); /* nothing was acked */
    again(f);
    src_fetch_until(f, 0, 3);
    src_expect(f, 0, 3, 5);
    keep_at(f, 0, 5, true);
    src_put(f, 0, 2);
    again(f);
    src_fetch_until(f, 0, 2);
    src_expect(f, 0, 6, 7);
}

static void what_was_not_committed_comes_again(source_fixture *f)
{
    begin(f, 6);
    keep_at(f, 0, 1, true);
    keep_at(f, 0, 4, false);
    again(f);
    src_fetch_until(f, 0, 4);
    src_expect(f, 0, 2, 5);
    keep_at(f, 0, 4, false); /* and nothing is taken for kept because it was tried before */
    keep_at(f, 0, 4, true);
    again(f);
    src_fetch_until(f, 0, 1);
    src_expect(f, 0, 5, 5);
}

static void a_transaction_without_an_end_moves_nothing(source_fixture *f)
{
    begin(f, 4);
    keep(f, NULL, 0, true);
    again(f);
    src_fetch_until(f, 0, 4);
    src_expect(f, 0, 0, 3);
}

/* What was acked and is not in the store was never settled there. */
static void the_store_counts_and_not_the_broker(source_fixture *f)
{
    begin(f, 5);
    keep_at(f, 0, 3, true);
    src_ack(f, src_find(f, 0, 4));
    again(f);
    src_fetch_until(f, 0, 1);
    src_expect(f, 0, 4, 4);
}

static void each_stream_has_a_cursor_of_its_own(source_fixture *f)
{
    const src_got *last[SRC_STREAMS];
    for (unsigned s = 0; s < src_streams(f); s++) src_put(f, s, 6);
    src_open(f, 0);
    src_fetch_until(f, 0, 6 * src_streams(f));
    for (unsigned s = 0; s < src_streams(f); s++) last[s] = src_find(f, s, (int)s + 1);
    keep(f, last, src_streams(f), true);
    again(f);
    size_t left = 0;
    for (unsigned s = 0; s < src_streams(f); s++) left += 4 - s;
    src_fetch_until(f, 0, left);
    for (unsigned s = 0; s < src_streams(f); s++) src_expect(f, s, (int)s + 2, 5);
}

static bool has_all(const source_fixture *f)
{
    unsigned n = 0;
    for (int i = 0; i < SRC_STREAMS; i++) n += f->seats[0][i].state == SRC_OURS;
    return n == src_streams(f);
}

static void nothing_comes_before_it_is_known_where_to_go_on(source_fixture *f)
{
    f->no_seek = true;
    src_put(f, 0, 3);
    src_open(f, 0);
    src_wait_for(f, 0, has_all);
    src_quiet(f, 0);
    once_source *s = f->consumers[0];
    for (uint32_t i = 0; i < SRC_STREAMS; i++)
        if (f->seats[0][i].state == SRC_OURS && f->seats[0][i].stream == 0)
            src_ok(f, s->ops->seek(s, i, &f->facts.base, &f->err));
    src_fetch_until(f, 0, 3);
    src_expect(f, 0, 0, 2);
}

static void a_seek_that_fails_is_repeated(source_fixture *f)
{
    f->no_seek = true;
    src_put(f, 0, 2);
    src_open(f, 0);
    src_wait_for(f, 0, has_all);
    once_source *s = f->consumers[0];
    f->facts.fails = true;
    uint32_t number = 0;
    while (f->seats[0][number].state != SRC_OURS || f->seats[0][number].stream != 0) number++;
    assert_int_equal(s->ops->seek(s, number, &f->facts.base, &f->err), ONCE_E_UNAVAILABLE);
    f->facts.fails = false;
    src_quiet(f, 0);
    src_ok(f, s->ops->seek(s, number, &f->facts.base, &f->err));
    src_fetch_until(f, 0, 2);
}

#define KEPT (ONCE_SOURCE_CURSOR | ONCE_SOURCE_STABLE)
const source_test source_cursor[] = {
    SRC_TEST(a_source_goes_on_behind_what_was_kept, KEPT),
    SRC_TEST(what_was_not_committed_comes_again, KEPT),
    SRC_TEST(a_transaction_without_an_end_moves_nothing, KEPT),
    SRC_TEST(the_store_counts_and_not_the_broker, KEPT),
    SRC_TEST(each_stream_has_a_cursor_of_its_own, KEPT | ONCE_SOURCE_ASSIGNS),
    SRC_TEST(nothing_comes_before_it_is_known_where_to_go_on, KEPT | ONCE_SOURCE_ASSIGNS),
    SRC_TEST(a_seek_that_fails_is_repeated, KEPT | ONCE_SOURCE_ASSIGNS),
    {0},
};
