#include "core/due_shares.h"

#include <assert.h>
#include <stdlib.h>

#include "base/banned.h"

#define READ_MAX 1024    /* entries that one search reads */
#define FRONT_MS 10000   /* how often searches begin at the front again ... */
#define READS_OF_A_MS 10 /* ... or rarer: reading takes a tenth of the time at most, where a read takes 10 us */
#define MUCH_LESS 4      /* a handler that has a fourth of another one's room has much less */

static size_t share_of(const once_due_shares *shares, once_bytes operation)
{
    size_t i = 0;
    while (i < shares->filter.n && !once_bytes_equal(shares->filter.shares[i].operation, operation)) i++;
    return i;
}

bool once_due_shares_init(once_due_shares *shares, const once_spec *spec)
{
    *shares = (once_due_shares){.filter.read_max = READ_MAX};
    if (spec->n_handlers < 2) return true;
    once_due_filter *filter = &shares->filter;
    filter->shares = calloc(spec->n_handlers + 1, sizeof *filter->shares);
    shares->wanted = calloc(spec->n_handlers + 1, sizeof *shares->wanted);
    if (!filter->shares || !shares->wanted) return false;
    for (size_t i = 0; i < spec->n_handlers; i++) {
        const once_handler_spec *handler = &spec->handlers[i];
        if (!once_handler_runs(handler)) shares->free_others = true;
        else if (share_of(shares, handler->operation) == filter->n)
            filter->shares[filter->n++].operation = handler->operation;
    }
    if (filter->n) filter->shares[filter->n++].others = true; /* the last one */
    return true;
}

void once_due_shares_release(once_due_shares *shares)
{
    free(shares->filter.shares);
    free(shares->wanted);
    *shares = (once_due_shares){0};
}

size_t once_due_shares_any(const once_room *room)
{
    const once_spec *spec = room->gates->spec;
    size_t least = SIZE_MAX, largest = 0;
    for (size_t i = 0; i < spec->n_handlers; i++) {
        if (!once_handler_runs(&spec->handlers[i])) continue;
        const size_t n = once_room_of(room, &spec->handlers[i]);
        if (n < least) least = n;
        if (n > largest && n != SIZE_MAX) largest = n;
    }
    return least >= largest / MUCH_LESS ? least : 0;
}

/* Handlers that share an operation: which of them an entry needs is not known before it is read. */
static size_t room_of(const once_room *room, once_bytes operation, size_t most)
{
    const once_spec *spec = room->gates->spec;
    size_t least = most;
    for (size_t i = 0; i < spec->n_handlers; i++) {
        const once_handler_spec *handler = &spec->handlers[i];
        if (!once_handler_runs(handler) || !once_bytes_equal(handler->operation, operation)) continue;
        const size_t n = once_room_of(room, handler);
        if (n < least) least = n;
    }
    return least;
}

/* Of share `i`, where those before it have `so_far`. Operations without a handler need no room, but where every handler
 * runs they wait until one has room: they are rare, and nobody looks for them alone. */
static size_t room_at(const once_due_shares *shares, const once_room *room, size_t i, bool all, size_t so_far,
                      size_t most)
{
    const once_due_share *share = &shares->filter.shares[i];
    if (!all && !shares->wanted[i]) return 0;
    if (share->others) return shares->free_others || so_far ? most : 0;
    return room_of(room, share->operation, most);
}

size_t once_due_shares_room(const once_due_shares *shares, const once_room *room, bool all, size_t most)
{
    size_t n = 0;
    for (size_t i = 0; i < shares->filter.n; i++) n += room_at(shares, room, i, all, n, most);
    return n < most ? n : most;
}

static void begin_at_front(once_due_shares *shares, int64_t now_ms)
{
    once_due_filter *filter = &shares->filter;
    const int64_t pause_ms = (int64_t)(filter->read / READS_OF_A_MS);
    for (size_t i = 0; i < filter->n; i++) filter->shares[i].from = (once_due_mark){0};
    shares->front_at_ms = now_ms + (pause_ms > FRONT_MS ? pause_ms : FRONT_MS);
    filter->read = 0;
}

bool once_due_shares_searched(const once_due_shares *shares, once_bytes operation)
{
    const size_t i = share_of(shares, operation);
    return i < shares->filter.n && shares->filter.shares[i].room > 0;
}

once_due_filter *once_due_shares_filter(once_due_shares *shares, const once_room *room, bool all, size_t most)
{
    size_t n = 0;
    assert(shares->filter.n > 0);
    if (room->now_ms >= shares->front_at_ms) begin_at_front(shares, room->now_ms);
    for (size_t i = 0; i < shares->filter.n; i++) {
        once_due_share *share = &shares->filter.shares[i];
        share->room = room_at(shares, room, i, all, n, most);
        share->more = false;
        if (all) shares->wanted[i] = true;
        n += share->room;
    }
    return &shares->filter;
}

void once_due_shares_took(once_due_shares *shares)
{
    for (size_t i = 0; i < shares->filter.n; i++)
        if (shares->filter.shares[i].room) shares->wanted[i] = shares->filter.shares[i].more;
}

void once_due_shares_took_any(once_due_shares *shares, size_t n)
{
    for (size_t i = 0; i < shares->filter.n; i++) shares->wanted[i] = n > 0;
}
