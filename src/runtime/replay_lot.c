#include "runtime/replay_lot.h"

#include <assert.h>

#include "base/banned.h"

int once__lot_begin(once_replay_lot *lot, once_error *err)
{
    assert(lot->store && !lot->has_thread);
    once_arena_reset(&lot->batch.arena);
    lot->n = lot->bytes = 0;
    lot->alone = false;
    return lot->store->ops->begin(lot->store, err);
}

static void *commit_main(void *user)
{
    once_replay_lot *lot = user;
    lot->rc = lot->store->ops->commit(lot->store, &lot->err);
    return NULL;
}

void once__lot_commit(once_replay_lot *lot, bool beside)
{
    assert(!lot->has_thread);
    lot->err = (once_error){0};
    lot->has_thread = beside && pthread_create(&lot->thread, NULL, commit_main, lot) == 0;
    if (!lot->has_thread) commit_main(lot); /* there may be no thread to be had */
}

int once__lot_committed(once_replay_lot *lot, once_error *err)
{
    if (lot->has_thread) (void)pthread_join(lot->thread, NULL);
    lot->has_thread = false;
    if (lot->rc != ONCE_OK && err) *err = lot->err;
    return lot->rc;
}
