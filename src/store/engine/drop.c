/* For the sweeps of drivers: drops unfinished entries that have expired, one by one. */
#include <assert.h>

#include "store/engine/parts.h"

#include "base/banned.h"

int once__engine_drop(once_storage *storage, const once_hash *ids, size_t n, uint64_t *dropped, once_error *err)
{
    assert(n == 0 || ids);
    int rc = ONCE_OK;
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        once_entry *entry;
        rc = once__pair_load_entry(storage, ids[i], &entry, err);
        if (rc != ONCE_OK || once_state_finished(entry->state) || !once_entry_expired(entry, storage->now_ms)) continue;
        (void)once_entry_forget(entry, NULL); /* an entry that expires has no lane */
        rc = storage->ops->save(storage, entry, err);
        ++*dropped;
    }
    return rc;
}
