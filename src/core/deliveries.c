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

once_open_delivery *once_deliveries_at(const once_deliveries *open, uint64_t ticket)
{
    assert(ticket > 0 && ticket <= open->used);
    return &open->at[ticket - 1];
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

static uint64_t free_ticket(once_deliveries *open)
{
    const uint64_t ticket = open->free;
    if (!ticket) return ++open->used;
    open->free = once_deliveries_at(open, ticket)->next;
    return ticket;
}

uint64_t once_deliveries_begin(once_deliveries *open, uint64_t delivery, once_item *item)
{
    assert(open->n < open->size);
    const uint64_t ticket = free_ticket(open);
    *once_deliveries_at(open, ticket) =
        (once_open_delivery){.state = {.delivery = delivery, .item = item}, .before = open->last};
    if (open->last) once_deliveries_at(open, open->last)->after = ticket;
    else open->first = ticket;
    open->last = ticket;
    open->n++;
    return ticket;
}

void once_deliveries_end(once_deliveries *open, uint64_t ticket, int64_t now_ms)
{
    once_ticket_state *t = &once_deliveries_at(open, ticket)->state;
    assert(!t->over);
    t->over = true;
    t->ended_ms = now_ms;
    open->over++;
}

void once_deliveries_list(once_deliveries *open, uint64_t ticket)
{
    assert(once_deliveries_at(open, ticket)->state.over);
    once_deliveries_at(open, ticket)->next = 0;
    if (open->last_over) once_deliveries_at(open, open->last_over)->next = ticket;
    else open->first_over = ticket;
    open->last_over = ticket;
}

uint64_t once_deliveries_unlist(once_deliveries *open)
{
    const uint64_t ticket = open->first_over;
    if (!ticket) return 0;
    open->first_over = once_deliveries_at(open, ticket)->next;
    if (!open->first_over) open->last_over = 0;
    return ticket;
}

void once_deliveries_forget(once_deliveries *open, uint64_t ticket)
{
    once_open_delivery *d = once_deliveries_at(open, ticket);
    assert(d->state.over && open->over > 0);
    if (d->before) once_deliveries_at(open, d->before)->after = d->after;
    else open->first = d->after;
    if (d->after) once_deliveries_at(open, d->after)->before = d->before;
    else open->last = d->before;
    d->next = open->free; /* and it stays over: nobody finds an item by it */
    open->free = ticket;
    open->over--;
    open->n--;
}
