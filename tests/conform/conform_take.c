/* Taking with a filter: an operation without room holds up no other one, and skipping its entries costs little. */
#include "conform.h"

#include <stdio.h>

enum { SLOW, FAST, OTHERS, SHARES, READ_MAX = 8, TAKES_MAX = 20 };

typedef struct filter {
    once_due_share shares[SHARES];
    once_due_filter is;
} filter;

static filter filter_of(size_t slow, size_t fast, size_t others)
{
    return (filter){.shares = {[SLOW] = {.operation = ONCE_BYTES("slow"), .room = slow},
                               [FAST] = {.operation = ONCE_BYTES("fast"), .room = fast},
                               [OTHERS] = {.others = true, .room = others}},
                    .is = {.n = SHARES, .read_max = READ_MAX}};
}

static size_t take_with(fixture *f, filter *with, once_token token, bool again, size_t max, once_taken *out)
{
    size_t n;
    with->is.shares = with->shares;
    const uint64_t before = with->is.read;
    assert_ok(f, f->store->ops->take(f->store, f->scope.consumer, token, again, LEASE, max, &with->is, out, &n,
                                     &f->arena, &f->err));
    assert_true(n <= max);
    assert_true(with->is.read - before <= (uint64_t)SHARES * READ_MAX);
    for (size_t i = 0; i < n; i++) {
        out[i].request.scope = &out[i].scope;
        out[i].request.lease_ms = LEASE;
        out[i].request.remember_ms = REMEMBER;
    }
    return n;
}

static size_t take_new(fixture *f, filter *with, size_t max, once_taken *out)
{
    return take_with(f, with, new_token(f), false, max, out);
}

/* Takes until something was found; *takes counts them. A search that does not get on would go on without end. */
static size_t take_some(fixture *f, filter *with, size_t max, once_taken *out, int *takes)
{
    for (*takes = 1;; ++*takes) {
        assert_in_range(*takes, 1, TAKES_MAX);
        const size_t n = take_new(f, with, max, out);
        bool more = false;
        for (int i = 0; i < SHARES; i++) more |= with->shares[i].room && with->shares[i].more;
        if (n || !more) return n;
    }
}

/* Keys are the operation and a number, in the order of their coming: "slow0", "slow1"... */
static void add_from(fixture *f, const char *operation, int from, int n, const char *lane)
{
    const once_scope scope = f->scope;
    f->scope.operation = text(operation);
    for (int i = from; i < from + n; i++) {
        char key[40];
        snprintf(key, sizeof key, "%s%d", operation, i);
        const once_request r = lane ? ask_lane(f, key, lane, -1, -1) : ask(f, key);
        assert_answer(do_accept(f, &r), WAITING);
        pass(f, 1);
    }
    f->scope = scope;
}

static void add(fixture *f, const char *operation, int n) { add_from(f, operation, 0, n, NULL); }

static int count_of(const once_taken *taken, size_t n, const char *operation)
{
    int count = 0;
    for (size_t i = 0; i < n; i++) count += once_bytes_equal(taken[i].scope.operation, text(operation));
    return count;
}

/* Those of one operation came in the order of their numbers, from `next` on. */
static void in_order(const once_taken *taken, size_t n, const char *operation, int next)
{
    for (size_t i = 0; i < n; i++) {
        char key[40];
        if (!once_bytes_equal(taken[i].scope.operation, text(operation))) continue;
        snprintf(key, sizeof key, "%s%d", operation, next++);
        assert_bytes(taken[i].request.key, key);
        assert_answer(taken[i].decision, RUN);
    }
}

static void an_operation_without_room_is_passed_over(fixture *f)
{
    once_taken taken[8];
    filter with = filter_of(0, 3, 0);
    int takes;
    add(f, "slow", 5 * READ_MAX);
    add(f, "fast", 5);
    assert_int_equal(take_some(f, &with, 8, taken, &takes), 3);
    assert_in_range(takes, 1, 6); /* the backlog is read once ... */
    in_order(taken, 3, "fast", 0);
    assert_int_equal(take_some(f, &with, 8, taken, &takes), 2);
    assert_int_equal(takes, 1); /* ... and not by each take */
    in_order(taken, 2, "fast", 3);
    assert_int_equal(take_some(f, &with, 8, taken, &takes), 0);
    assert_int_equal(do_stats(f).waiting, 5 * READ_MAX);
}

static void each_operation_gets_its_room(fixture *f)
{
    once_taken taken[8];
    filter with = filter_of(1, 2, 0);
    add(f, "slow", 3);
    add(f, "fast", 3); /* fewer than a search may read: only the room stops it */
    assert_int_equal(take_new(f, &with, 8, taken), 3);
    assert_int_equal(count_of(taken, 3, "slow"), 1);
    assert_int_equal(count_of(taken, 3, "fast"), 2);
    in_order(taken, 3, "slow", 0);
    in_order(taken, 3, "fast", 0);
    assert_true(with.shares[SLOW].more && with.shares[FAST].more);
    for (size_t i = 0; i < 3; i++) /* the claim is one like any other: it has its lease and its fence */
        assert_true(do_settle(f, &taken[i].request, ONCE_DONE));
    with.shares[SLOW].room = 9;
    assert_int_equal(take_new(f, &with, 8, taken), 3);
    in_order(taken, 3, "slow", 1);
    in_order(taken, 3, "fast", 2);
    assert_false(with.shares[SLOW].more || with.shares[FAST].more);
}

static void operations_that_no_share_names_are_the_others(fixture *f)
{
    once_taken taken[8];
    filter with = filter_of(0, 0, 4);
    int takes;
    add(f, "slow", 2 * READ_MAX);
    add(f, "this", 2);
    add(f, "fast", 2);
    add(f, "that", 2);
    assert_int_equal(take_some(f, &with, 8, taken, &takes) + take_some(f, &with, 8, taken + 4, &takes), 4);
    assert_int_equal(do_stats(f).waiting, 2 * READ_MAX + 2);
}

static void a_bound_that_is_smaller_than_the_rooms_loses_nothing(fixture *f)
{
    once_taken taken[8];
    filter with = filter_of(4, 4, 4);
    int seen = 0;
    add(f, "slow", 4);
    add(f, "this", 4);
    add(f, "fast", 4);
    seen += (int)take_new(f, &with, 2, taken);
    for (int i = 0; i < SHARES; i++) assert_true(with.shares[i].more); /* also of those that it did not get to */
    for (int i = 1; i < 6; i++) seen += (int)take_new(f, &with, 2, taken);
    assert_int_equal(seen, 12);
    assert_int_equal(do_stats(f).claimed, 12);
}

/* All are due at one time, so only their ids tell where a search has got to. */
static void entries_of_one_moment_are_found_one_by_one(fixture *f)
{
    enum { N = 5 * READ_MAX };
    static char names[N][16];
    once_request requests[N];
    once_message messages[N];
    const once_request *asked[N];
    const once_message *of[N];
    once_decision decisions[N];
    once_taken taken[N];
    once_scope scopes[2] = {f->scope, f->scope};
    scopes[0].operation = text("slow");
    scopes[1].operation = text("fast");
    for (int i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "k%d", i);
        f->scope = scopes[i % 8 == 5];
        requests[i] = ask(f, names[i]);
        requests[i].scope = &scopes[i % 8 == 5];
        messages[i] = message_of(&requests[i]);
        asked[i] = &requests[i];
        of[i] = &messages[i];
    }
    assert_ok(f, f->store->ops->accept(f->store, asked, of, N, decisions, &f->arena, &f->err));
    filter with = filter_of(0, 2, 0);
    size_t seen = 0;
    for (int takes = 0; takes < N; takes++) {
        const size_t n = take_new(f, &with, N, taken);
        assert_int_equal(count_of(taken, n, "fast"), (int)n);
        seen += n;
        if (!with.shares[FAST].more) break;
    }
    assert_int_equal(seen, N / 8);
}

static void a_search_that_is_at_the_end_finds_what_comes_later(fixture *f)
{
    once_taken taken[8];
    filter with = filter_of(0, 8, 0);
    int takes;
    add(f, "slow", 2 * READ_MAX);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(take_some(f, &with, 8, taken, &takes), 0);
        assert_false(with.shares[FAST].more);
        pass(f, 10000);
        add_from(f, "fast", i, 1, NULL);
        assert_int_equal(take_some(f, &with, 8, taken, &takes), 1);
        in_order(taken, 1, "fast", i);
    }
    with.shares[SLOW].room = 1; /* whose search has not begun */
    assert_int_equal(take_new(f, &with, 8, taken), 1);
    in_order(taken, 1, "slow", 0);
}

/* When "slow0" to "slowN" became due, in the time of the store. */
static int64_t due_of_slow(fixture *f, const char *key)
{
    const once_scope scope = f->scope;
    f->scope.operation = text("slow");
    const once_request r = ask(f, key);
    f->scope = scope;
    return do_get(f, r.id).due_ms;
}

/* A transaction that began before the search may commit an entry that was due by then. */
static void a_search_that_is_at_the_end_goes_back_by_a_second(fixture *f)
{
    once_taken taken[8];
    filter with = filter_of(0, 8, 0);
    add(f, "slow", 3);
    const int64_t last_ms = due_of_slow(f, "slow2");
    assert_int_equal(take_new(f, &with, 8, taken), 0);
    assert_false(with.shares[FAST].more);
    assert_true(with.shares[FAST].from.due_ms == last_ms + 1 - ONCE_DUE_OVERLAP_MS);
    pass(f, 10 * ONCE_DUE_OVERLAP_MS); /* what is older is not read again and again */
    assert_int_equal(take_new(f, &with, 8, taken), 0);
    /* behind the last one that it read, or where the second begins */
    assert_in_range(with.shares[FAST].from.due_ms, last_ms, last_ms + 1 + 9 * ONCE_DUE_OVERLAP_MS);
    const uint64_t read = with.is.read;
    assert_int_equal(take_new(f, &with, 8, taken), 0);
    assert_true(with.is.read == read);
}

/* Of the millisecond at which the second begins, all entries are met again: one with a lower id may be late. */
static void a_search_goes_back_to_the_beginning_of_a_millisecond(fixture *f)
{
    once_taken taken[8];
    filter with = filter_of(0, 8, 0);
    add(f, "slow", 1);
    const int64_t last_ms = due_of_slow(f, "slow0");
    pass(f, ONCE_DUE_OVERLAP_MS - 1);
    assert_int_equal(take_new(f, &with, 8, taken), 0);
    assert_true(with.shares[FAST].from.due_ms == last_ms && once_hash_is_zero(with.shares[FAST].from.id));
}

static void a_search_that_finds_exactly_its_bound_goes_on(fixture *f)
{
    once_taken taken[8];
    filter with = filter_of(0, 8, 0);
    add(f, "slow", READ_MAX);
    assert_int_equal(take_new(f, &with, 8, taken), 0);
    assert_true(with.is.read == READ_MAX);
    assert_true(with.shares[FAST].more); /* it has not seen the end */
    assert_int_equal(take_new(f, &with, 8, taken), 0);
    assert_true(with.is.read == READ_MAX);
    assert_false(with.shares[FAST].more);
}

static void f76_a_take_with_a_filter_is_repeated_within_its_room(fixture *f)
{
    once_taken first[8], second[8];
    filter with = filter_of(2, 1, 0);
    add(f, "slow", 4);
    add(f, "fast", 1);
    const once_token token = new_token(f);
    filter lost = with;
    assert_int_equal(take_with(f, &lost, token, false, 8, first), 3);
    add_from(f, "fast", 1, 1, NULL); /* it is due, but its handler's slot is the first one's */
    assert_int_equal(take_with(f, &with, token, true, 8, second), 3);
    for (int i = 0; i < 3; i++) {
        assert_true(once_hash_equal(first[i].request.id, second[i].request.id));
        assert_true(once_hash_equal(first[i].request.token, second[i].request.token));
    }
    /* The reply was lost before anything was claimed, or when the commit failed. */
    with = filter_of(1, 1, 0);
    assert_int_equal(take_with(f, &with, new_token(f), true, 3, second), 2);
    in_order(second, 2, "slow", 2);
    in_order(second, 2, "fast", 1);
}

/* What came since then is claimed, too, and by tokens of its own: a settlement names one entry. */
static void f76_a_take_that_is_repeated_and_finds_more_gives_no_token_twice(fixture *f)
{
    once_taken first[8], second[8];
    filter with = filter_of(2, 2, 1);
    add(f, "slow", 2);
    add(f, "this", 1);
    const once_token token = new_token(f);
    filter lost = with;
    assert_int_equal(take_with(f, &lost, token, false, 8, first), 3);
    add(f, "fast", 2);
    add(f, "that", 1); /* its share has no room any more */
    assert_int_equal(take_with(f, &with, token, true, 8, second), 5);
    assert_int_equal(count_of(second, 5, "slow"), 2);
    assert_int_equal(count_of(second, 5, "this"), 1);
    assert_int_equal(count_of(second, 5, "fast"), 2);
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < i; k++) assert_false(once_hash_equal(second[i].request.token, second[k].request.token));
    pass(f, LEASE - 1); /* the leases of all of them have begun with the second reply */
    for (int i = 0; i < 5; i++) assert_true(do_extend(f, &second[i].request));
    for (int i = 0; i < 5; i++) assert_true(do_settle(f, &second[i].request, ONCE_DONE));
    assert_int_equal(do_stats(f).waiting, 1);
}

/* Another consumer's claim with such a token is none of ours. */
static void f76_a_repeated_take_is_of_its_consumer(fixture *f)
{
    once_taken taken[8];
    filter with = filter_of(8, 8, 8);
    add(f, "slow", 2);
    const once_token token = new_token(f);
    assert_int_equal(take_with(f, &with, token, false, 8, taken), 2);
    f->scope.consumer = text("another");
    with = filter_of(8, 8, 8);
    assert_int_equal(take_with(f, &with, token, true, 8, taken), 0);
}

static void a_lane_keeps_its_order_when_its_head_has_no_room(fixture *f)
{
    once_taken taken[8];
    filter with = filter_of(0, 8, 8);
    int takes;
    add_from(f, "slow", 0, 1, "lane");
    add_from(f, "fast", 0, 2, "lane");
    assert_int_equal(take_some(f, &with, 8, taken, &takes), 0);
    with = filter_of(1, 8, 8);
    assert_int_equal(take_some(f, &with, 8, taken, &takes), 1);
    in_order(taken, 1, "slow", 0);
    assert_true(do_settle(f, &taken[0].request, ONCE_DONE));
    pass(f, 1);
    assert_int_equal(take_some(f, &with, 8, taken, &takes), 1);
    in_order(taken, 1, "fast", 0);
}

static void f73_a_filter_finds_work_whose_worker_died(fixture *f)
{
    once_taken taken[8];
    filter with = filter_of(0, 8, 0);
    int takes;
    add(f, "slow", READ_MAX + 1);
    add(f, "fast", 1);
    assert_int_equal(take_some(f, &with, 8, taken, &takes), 1);
    assert_int_equal(take_some(f, &with, 8, taken, &takes), 0);
    pass(f, LEASE + 1);
    assert_int_equal(take_some(f, &with, 8, taken, &takes), 1);
    assert_int_equal(taken[0].decision.attempt, 2);
    assert_true(taken[0].decision.unreported);
}

const conform_test conform_take[] = {
    CONFORM_WITH(an_operation_without_room_is_passed_over, ONCE_STORE_OWNS),
    CONFORM_WITH(each_operation_gets_its_room, ONCE_STORE_OWNS),
    CONFORM_WITH(operations_that_no_share_names_are_the_others, ONCE_STORE_OWNS),
    CONFORM_WITH(a_bound_that_is_smaller_than_the_rooms_loses_nothing, ONCE_STORE_OWNS),
    CONFORM_WITH(entries_of_one_moment_are_found_one_by_one, ONCE_STORE_OWNS),
    CONFORM_WITH(a_search_that_is_at_the_end_finds_what_comes_later, ONCE_STORE_OWNS),
    CONFORM_WITH(a_search_that_is_at_the_end_goes_back_by_a_second, ONCE_STORE_OWNS),
    CONFORM_WITH(a_search_goes_back_to_the_beginning_of_a_millisecond, ONCE_STORE_OWNS),
    CONFORM_WITH(a_search_that_finds_exactly_its_bound_goes_on, ONCE_STORE_OWNS),
    CONFORM_WITH(f76_a_take_with_a_filter_is_repeated_within_its_room, ONCE_STORE_OWNS),
    CONFORM_WITH(f76_a_take_that_is_repeated_and_finds_more_gives_no_token_twice, ONCE_STORE_OWNS),
    CONFORM_WITH(f76_a_repeated_take_is_of_its_consumer, ONCE_STORE_OWNS),
    CONFORM_WITH(a_lane_keeps_its_order_when_its_head_has_no_room, ONCE_STORE_OWNS | ONCE_STORE_LANES),
    CONFORM_WITH(f73_a_filter_finds_work_whose_worker_died, ONCE_STORE_OWNS),
    {0},
};
