/* Offsets in the store (`cursor: true`): written in the transaction that settles the messages.
 *
 * The facts, each under the coordinates of a partition without the offset ("payments/3"):
 *
 *   cursor   the offset to read next, and behind a space the epoch (kept.c) if it is not 0: "88", "88 1" */
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

static bool read_cursor(once_bytes text, kafka_cursor *out)
{
    const char *space = text.len ? memchr(text.data, ' ', text.len) : NULL;
    const size_t len = space ? (size_t)(space - text.data) : text.len;
    int64_t epoch = 0;
    if (!read_number((once_bytes){text.data, len}, &out->next)) return false;
    if (space && !read_number((once_bytes){space + 1, text.len - len - 1}, &epoch)) return false;
    out->epoch = (int32_t)epoch;
    return epoch < INT32_MAX; /* there may be one behind it */
}

int once__kafka_read_cursor(const once_facts *facts, const char *place, kafka_cursor *out, once_error *err)
{
    once_arena arena = {0};
    once_bytes kept = {0};
    *out = (kafka_cursor){.next = -1};
    int rc = facts->get(facts, "cursor", (once_bytes){place, strlen(place)}, &kept, &arena, err);
    if (rc == ONCE_OK && kept.len && !read_cursor(kept, out))
        rc = once_fail(err, ONCE_E_CORRUPT, "the cursor of '%s' in the store is no offset", place);
    once_arena_release(&arena);
    return rc;
}

kafka_cursor_fate once__kafka_judge_cursor(const kafka_cursor *cursor, int64_t committed, const kafka_kept *kept)
{
    if (cursor->next < 0) return KAFKA_CURSOR_VOID;
    if (committed < 0) return KAFKA_CURSOR_ALONE;
    if (!kept->ours) return KAFKA_CURSOR_COUNTS; /* somebody has set the offset, for tools */
    if (kept->epoch < 0 || kept->epoch > cursor->epoch) return KAFKA_CURSOR_VOID;
    return kept->after == cursor->next && kept->epoch == cursor->epoch ? KAFKA_CURSOR_VOID : KAFKA_CURSOR_COUNTS;
}

/* Where it goes on, and the epoch of the cursors that it will write. With the lock. */
static int apply(const kafka_source *k, kafka_partition *p, const kafka_cursor *cursor, once_error *err)
{
    const kafka_cursor_fate fate = once__kafka_judge_cursor(cursor, p->fresh ? -1 : p->committed, &p->kept);
    const bool new_epoch = fate == KAFKA_CURSOR_ALONE || (p->kept.ours && p->kept.epoch < 0);
    const int rc = fate == KAFKA_CURSOR_ALONE ? once__kafka_made_anew(k, p, cursor->next, err) : ONCE_OK;
    if (rc != ONCE_OK) return rc;
    if (fate == KAFKA_CURSOR_ALONE) p->next = p->first;
    if (fate == KAFKA_CURSOR_COUNTS) p->next = cursor->next;
    const int32_t epoch = cursor->epoch + new_epoch;
    if (cursor->next >= 0 && epoch > p->epoch) p->epoch = epoch;
    p->sought = true;
    return ONCE_OK;
}

/* @locality: the store's thread. The partition may be released meanwhile, and its number belong to another one. */
int once__kafka_seek(once_source *source, uint32_t stream, const once_facts *facts, once_error *err)
{
    kafka_source *k = once__kafka(source);
    kafka_cursor cursor;
    assert(k->kafka->cursor && k->purpose == ONCE_OPEN_RUN);
    pthread_mutex_lock(&k->lock);
    const bool there = stream < k->n_partitions && k->partitions[stream]->state == KAFKA_ASSIGNED;
    const char *place = there ? k->partitions[stream]->place : NULL; /* lives as long as the source */
    pthread_mutex_unlock(&k->lock);
    if (!there) return ONCE_OK;
    int rc = once__kafka_read_cursor(facts, place, &cursor, err);
    if (rc != ONCE_OK) return rc;
    pthread_mutex_lock(&k->lock);
    kafka_partition *p = k->partitions[stream];
    if (p->state == KAFKA_ASSIGNED && p->place == place && !p->sought) rc = apply(k, p, &cursor, err);
    pthread_mutex_unlock(&k->lock);
    source->ops->wake(source);
    return rc;
}

/* The epoch of the partition that this message was read from. False: its number belongs to another one meanwhile. */
static bool epoch_of(kafka_source *k, const once_item *item, int32_t *out)
{
    const once_bytes place = item->message.at.place;
    pthread_mutex_lock(&k->lock);
    assert(item->stream < k->n_partitions && place.len > 0);
    const kafka_partition *p = k->partitions[item->stream];
    const bool same = strlen(p->place) == place.len && memcmp(p->place, place.data, place.len) == 0;
    *out = p->epoch;
    pthread_mutex_unlock(&k->lock);
    return same;
}

int once__kafka_keep(once_source *source, const once_facts *facts, once_item *const *items, size_t n,
                     const once_item *const *last, size_t n_last, once_error *err)
{
    kafka_source *k = once__kafka(source);
    char text[40];
    (void)items, (void)n;
    assert(n_last == 0 || k->kafka->cursor);
    int rc = ONCE_OK;
    for (size_t i = 0; i < n_last && rc == ONCE_OK; i++) {
        int32_t epoch;
        if (!epoch_of(k, last[i], &epoch)) continue; /* they are delivered again */
        int len = snprintf(text, sizeof text, "%" PRIu64, last[i]->delivery + 1);
        if (epoch) len += snprintf(text + len, sizeof text - (size_t)len, " %d", (int)epoch);
        assert(len > 0 && len < (int)sizeof text);
        rc = facts->set(facts, "cursor", last[i]->message.at.place, (once_bytes){text, (size_t)len}, err);
    }
    return rc;
}
