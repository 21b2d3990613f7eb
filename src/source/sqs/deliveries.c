/* The deliveries that are ours: what was received and not deleted (sqs.h).
 *
 * The number of a delivery is SERIAL * 2^24 + SLOT. Serials count upwards, so a number is never used again, and the
 * slot is found without a search. A slot keeps its memory for the next handle. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "source/sqs/sqs.h"

#include "base/banned.h"

#define SLOT_BITS 24
#define SLOTS_MAX ((UINT32_C(1) << SLOT_BITS) - 1)
#define ID_SEED 1
#define GROUP_SEED 2

void once__sqs_deliveries_init(sqs_deliveries *d)
{
    *d = (sqs_deliveries){0};
    pthread_mutex_init(&d->lock, NULL);
}

void once__sqs_deliveries_release(sqs_deliveries *d)
{
    for (uint32_t i = 0; i < d->used; i++) free(d->at[i].handle);
    free(d->at);
    once_table_release(&d->ids);
    pthread_mutex_destroy(&d->lock);
}

static sqs_delivery *find(const sqs_deliveries *d, uint64_t number)
{
    const uint32_t slot = (uint32_t)(number & SLOTS_MAX);
    return number && slot < d->used && d->at[slot].number == number ? &d->at[slot] : NULL;
}

/* A free slot; NULL: out of memory. */
static sqs_delivery *take_slot(sqs_deliveries *d)
{
    if (d->free) {
        sqs_delivery *slot = &d->at[d->free - 1];
        d->free = slot->free;
        return slot;
    }
    if (d->used == d->size) {
        const uint32_t size = d->size ? 2 * d->size : 256;
        sqs_delivery *at = size <= SLOTS_MAX ? realloc(d->at, size * sizeof *at) : NULL;
        if (!at) return NULL;
        memset(at + d->size, 0, (size - d->size) * sizeof *at);
        d->at = at;
        d->size = size;
    }
    return &d->at[d->used++];
}

static void give_slot(sqs_deliveries *d, sqs_delivery *slot)
{
    slot->number = 0;
    slot->free = d->free;
    d->free = (uint32_t)(slot - d->at) + 1;
}

static bool copy_handle(sqs_delivery *to, once_bytes handle)
{
    if (handle.len > to->handle_room) {
        char *more = realloc(to->handle, handle.len);
        if (!more) return false;
        to->handle = more;
        to->handle_room = handle.len;
    }
    memcpy(to->handle, handle.data, handle.len);
    to->handle_len = handle.len;
    return true;
}

/* The message has no delivery in the table that is not gone. */
static void unlist(sqs_deliveries *d, sqs_delivery *old)
{
    size_t slot;
    if (once_table_position(&d->ids, old->id, &slot) && &d->at[slot] == old) (void)once_table_remove(&d->ids, old->id);
    old->gone = true;
}

/* What was received behind `number` in its group is gone with it: it must not overtake it. */
static void lose_behind(sqs_deliveries *d, once_hash group, uint64_t number)
{
    for (uint32_t i = 0; i < d->used && !once_hash_is_zero(group); i++)
        if (d->at[i].number > number && once_hash_equal(d->at[i].group, group)) unlist(d, &d->at[i]);
}

static void lose(sqs_deliveries *d, sqs_delivery *lost)
{
    if (lost->gone) return; /* then those behind it are, too, or were received again after it */
    lose_behind(d, lost->group, lost->number);
    unlist(d, lost);
}

uint64_t once__sqs_received(sqs_deliveries *d, once_bytes id, once_bytes handle, once_bytes group, int64_t now_ns)
{
    assert(id.len && handle.len);
    const once_hash hash = once_xxh128(ID_SEED, id.data, id.len);
    uint64_t number = 0;
    size_t before;
    pthread_mutex_lock(&d->lock);
    if (once_table_position(&d->ids, hash, &before)) lose(d, &d->at[before]);
    sqs_delivery *slot = take_slot(d);
    if (slot) {
        const size_t at = (size_t)(slot - d->at);
        slot->id = hash;
        slot->group = group.len ? once_xxh128(GROUP_SEED, group.data, group.len) : (once_hash){0, 0};
        slot->received_ns = now_ns;
        slot->gone = false;
        if (copy_handle(slot, handle) && once_table_put_position(&d->ids, slot->id, at))
            number = slot->number = ++d->last << SLOT_BITS | at;
        else give_slot(d, slot);
    }
    pthread_mutex_unlock(&d->lock);
    return number;
}

bool once__sqs_put_handle(sqs_deliveries *d, uint64_t number, once_buf *out, int64_t *received_ns)
{
    pthread_mutex_lock(&d->lock);
    const sqs_delivery *slot = find(d, number);
    const bool ours = slot && !slot->gone;
    if (ours) {
        once_buf_json(out, (once_bytes){slot->handle, slot->handle_len});
        *received_ns = slot->received_ns;
    }
    pthread_mutex_unlock(&d->lock);
    return ours;
}

void once__sqs_forget(sqs_deliveries *d, uint64_t number)
{
    pthread_mutex_lock(&d->lock);
    sqs_delivery *slot = find(d, number);
    if (slot) {
        unlist(d, slot);
        give_slot(d, slot);
    }
    pthread_mutex_unlock(&d->lock);
}

void once__sqs_lost(sqs_deliveries *d, uint64_t number)
{
    pthread_mutex_lock(&d->lock);
    sqs_delivery *slot = find(d, number);
    if (slot) {
        lose(d, slot);
        give_slot(d, slot);
    }
    pthread_mutex_unlock(&d->lock);
}

bool once__sqs_is_ours(sqs_deliveries *d, uint64_t number)
{
    pthread_mutex_lock(&d->lock);
    const sqs_delivery *slot = find(d, number);
    const bool ours = slot && !slot->gone;
    pthread_mutex_unlock(&d->lock);
    return ours;
}

size_t once__sqs_list(sqs_deliveries *d, uint32_t *at, uint64_t *out, size_t max)
{
    size_t n = 0;
    pthread_mutex_lock(&d->lock);
    for (; *at < d->used && n < max; ++*at)
        if (d->at[*at].number && !d->at[*at].gone) out[n++] = d->at[*at].number;
    pthread_mutex_unlock(&d->lock);
    return n;
}
