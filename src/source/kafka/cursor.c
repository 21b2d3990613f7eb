/* Offsets in the store (`cursor: true`): written in the transaction that settles the messages.
 *
 * The facts, each under the coordinates of a partition without the offset ("payments/3"):
 *
 *   cursor   the offset to read next, in decimal digits */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "source/kafka/kafka.h"

#include "base/banned.h"

static bool read_number(once_bytes text, int64_t *out)
{
    int64_t number = 0;
    if (text.len == 0 || text.len > 18) return false;
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] < '0' || text.data[i] > '9') return false;
        number = number * 10 + (text.data[i] - '0');
    }
    *out = number;
    return true;
}

/* Without a cursor it begins where the group is, or as `start` says. */
static int take_cursor(kafka_source *k, uint32_t stream, const char *place, int64_t next, once_error *err)
{
    int rc = ONCE_OK;
    pthread_mutex_lock(&k->lock);
    kafka_partition *p = k->partitions[stream];
    if (p->state == KAFKA_ASSIGNED && p->place == place && !p->sought) {
        const bool anew = next >= 0 && p->fresh;
        if (anew) rc = once__kafka_made_anew(k, p, next, err);
        if (next >= 0 && !p->past_cursor) p->next = anew ? p->first : next;
        p->sought = rc == ONCE_OK;
    }
    pthread_mutex_unlock(&k->lock);
    return rc;
}

/* @locality: the store's thread. The partition may be released meanwhile, and its number belong to another one. */
int once__kafka_seek(once_source *source, uint32_t stream, const once_facts *facts, once_error *err)
{
    kafka_source *k = once__kafka(source);
    once_arena arena = {0};
    once_bytes kept = {0};
    int64_t next = -1;
    pthread_mutex_lock(&k->lock);
    const bool there = stream < k->n_partitions && k->partitions[stream]->state == KAFKA_ASSIGNED;
    const char *place = there ? k->partitions[stream]->place : NULL; /* lives as long as the source */
    pthread_mutex_unlock(&k->lock);
    if (!there) return ONCE_OK;
    int rc = facts->get(facts, "cursor", (once_bytes){place, strlen(place)}, &kept, &arena, err);
    if (rc == ONCE_OK && kept.len && !read_number(kept, &next))
        rc = once_fail(err, ONCE_E_CORRUPT, "the cursor of '%s' in the store is no offset", place);
    once_arena_release(&arena);
    if (rc != ONCE_OK) return rc;
    rc = take_cursor(k, stream, place, next, err);
    source->ops->wake(source);
    return rc;
}

int once__kafka_keep(once_source *source, const once_facts *facts, once_item *const *items, size_t n,
                     const once_item *const *last, size_t n_last, once_error *err)
{
    char text[24];
    (void)source, (void)items, (void)n;
    int rc = ONCE_OK;
    for (size_t i = 0; i < n_last && rc == ONCE_OK; i++) {
        const int len = snprintf(text, sizeof text, "%" PRIu64, last[i]->delivery + 1);
        assert(len > 0 && last[i]->message.at.place.len > 0);
        rc = facts->set(facts, "cursor", last[i]->message.at.place, (once_bytes){text, (size_t)len}, err);
    }
    return rc;
}
