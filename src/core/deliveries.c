/* Deliveries that are acked one by one (core/deliveries.h). */
#include "core/deliveries.h"

#include <assert.h>
#include <stdlib.h>

#include "base/banned.h"

enum { SMALLEST = 16 };

void once_deliveries_release(once_deliveries *open)
{
    free(open->at);
    *open = (once_deliveries){0};
}

once_open_delivery *once_deliveries_at(const once_deliveries *open, uint64_t tag)
{
    assert(tag > 0 && tag <= open->used);
    return &open->at[tag - 1];
}

bool once_deliveries_reserve(once_deliveries *open, size_t n)
{
    size_t size = open->size ? open->size : SMALLEST;
    while (size < open->n + n) size *= 2;
    if (size == open->size) return true;
    once_open_delivery *at = realloc(open->at, size * sizeof *at);
    if (!at) return false;
    open->at = at;
    open->size = size;
    return true;
}

static uint64_t free_tag(once_deliveries *open)
{
    const uint64_t tag = open->free;
    if (!tag) return ++open->used;
    open->free = once_deliveries_at(open, tag)->next;
    return tag;
}

uint64_t once_deliveries_begin(once_deliveries *open, uint64_t delivery, once_item *item)
{
    assert(open->n < open->size);
    const uint64_t tag = free_tag(open);
    *once_deliveries_at(open, tag) =
        (once_open_delivery){.state = {.delivery = delivery, .item = item}, .before = open->last};
    if (open->last) once_deliveries_at(open, open->last)->after = tag;
    else open->first = tag;
    open->last = tag;
    open->n++;
    return tag;
}

void once_deliveries_end(once_deliveries *open, uint64_t tag, int64_t now_ms)
{
    once_delivery_state *t = &once_deliveries_at(open, tag)->state;
    assert(!t->over);
    t->over = true;
    t->ended_ms = now_ms;
    open->over++;
}

void once_deliveries_list(once_deliveries *open, uint64_t tag)
{
    assert(once_deliveries_at(open, tag)->state.over);
    once_deliveries_at(open, tag)->next = 0;
    if (open->last_over) once_deliveries_at(open, open->last_over)->next = tag;
    else open->first_over = tag;
    open->last_over = tag;
}

uint64_t once_deliveries_unlist(once_deliveries *open)
{
    const uint64_t tag = open->first_over;
    if (!tag) return 0;
    open->first_over = once_deliveries_at(open, tag)->next;
    if (!open->first_over) open->last_over = 0;
    return tag;
}

void once_deliveries_forget(once_deliveries *open, uint64_t tag)
{
    once_open_delivery *d = once_deliveries_at(open, tag);
    assert(d->state.over && open->over > 0);
    if (d->before) once_deliveries_at(open, d->before)->after = d->after;
    else open->first = d->after;
    if (d->after) once_deliveries_at(open, d->after)->before = d->before;
    else open->last = d->before;
    assert(open->n >= open->over);
    d->next = open->free; /* `over` stays true, so that the tag leads to no item */
    open->free = tag;
    open->over--;
    open->n--;
}
