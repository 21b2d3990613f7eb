/* The queues of keys and lanes, compared with a model that walks a list. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "core/key_queue.h"

enum { ITEMS = 200 };

typedef struct model {
    once_item items[ITEMS];
    int order[ITEMS]; /* joined, oldest first */
    size_t n;
} model;

static uint64_t state = 88172645463325252u;
static uint64_t random_u64(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static bool same_key(const once_item *a, const once_item *b) { return once_hash_equal(a->request.id, b->request.id); }
static bool same_lane(const once_item *a, const once_item *b)
{
    return !once_hash_is_zero(a->request.lane.id) && once_hash_equal(a->request.lane.id, b->request.lane.id);
}

/* It waits for the one before it of its key and for the one before it of its lane, where there is one. */
static unsigned waits_for(const model *m, size_t at)
{
    const once_item *item = &m->items[m->order[at]];
    bool key = false, lane = false;
    for (size_t i = 0; i < at; i++) {
        key |= same_key(&m->items[m->order[i]], item);
        lane |= same_lane(&m->items[m->order[i]], item);
    }
    return (unsigned)key + (unsigned)lane;
}

static void check_all(const model *m)
{
    for (size_t i = 0; i < m->n; i++) assert_int_equal(m->items[m->order[i]].waits_for, waits_for(m, i));
}

static bool in_use(const model *m, const once_item *item)
{
    for (size_t i = 0; i < m->n; i++) {
        const once_item *other = &m->items[m->order[i]];
        if (same_key(other, item) || same_lane(other, item)) return true;
    }
    return false;
}

static void leave(model *m, once_key_queue *waiting, size_t at)
{
    once_item *freed[2], *item = &m->items[m->order[at]];
    unsigned before[ITEMS] = {0};
    for (size_t i = 0; i < m->n; i++) before[m->order[i]] = m->items[m->order[i]].waits_for;
    const size_t n = once_key_queue_leave(waiting, item, freed);
    for (size_t i = at; i + 1 < m->n; i++) m->order[i] = m->order[i + 1];
    m->n--;
    size_t expected = 0;
    for (size_t i = 0; i < m->n; i++) expected += before[m->order[i]] > 0 && m->items[m->order[i]].waits_for == 0;
    assert_int_equal(n, expected);
    for (size_t i = 0; i < n; i++) assert_int_equal(freed[i]->waits_for, 0);
}

static void as_a_list_would(void **unused)
{
    (void)unused;
    for (int round = 0; round < 80; round++) {
        model m = {0};
        once_key_queue waiting;
        assert_true(once_key_queue_init(&waiting, 2 * ITEMS));
        const uint64_t keys = 1 + random_u64() % 40, lanes = 1 + random_u64() % 10;
        for (int step = 0; step < 600; step++) {
            once_item *item = &m.items[random_u64() % ITEMS];
            if (!item->joined && random_u64() % 2) {
                const uint64_t key = random_u64() % keys, lane = random_u64() % (2 * lanes);
                /* Ids that start at few places around the end of the table, so that they crowd each other, on both
                 * sides of it. */
                item->request.id = (once_hash){0 - key % 3, key + 1};
                item->request.lane.id = lane < lanes ? (once_hash){0 - lane % 2, 1000 + lane} : (once_hash){0, 0};
                assert_int_equal(once_key_queue_in_use(&waiting, item), in_use(&m, item));
                if (random_u64() % 2 && once_key_queue_join_first(&waiting, item)) assert_false(in_use(&m, item));
                else once_key_queue_join(&waiting, item);
                m.order[m.n++] = (int)(item - m.items);
            } else if (m.n) {
                const size_t at = random_u64() % m.n;
                /* Some are dropped while they wait. */
                if (m.items[m.order[at]].waits_for == 0 || random_u64() % 4 == 0) leave(&m, &waiting, at);
            }
            check_all(&m);
        }
        while (m.n) leave(&m, &waiting, 0); /* the oldest never waits */
        assert_int_equal(waiting.last.n, 0);
        once_key_queue_release(&waiting);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_a_list_would)};
    return cmocka_run_group_tests_name("waits", tests, NULL, NULL);
}
