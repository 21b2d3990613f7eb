/* The claims that this handle has committed and that are rows (in a lane, mostly; others are records, settled.h), kept
 * in memory so that their settlement does not read them again: with effects outside, one transaction claims and a later
 * one settles.
 *
 * Invariant: what is kept is in the file as it is here. So everything is dropped when a transaction begins and another
 * connection has written, after a rollback, and when the names go away that the entries point to; and an entry is
 * dropped as soon as it is loaded, because its transaction may change it. Whoever writes the row again finds out that
 * it is still there (save.c). */
#include <stdlib.h>
#include <string.h>

#include "store/sqlite/parts.h"

#include "base/banned.h"

enum {
    KEPT_MAX = 4096,
    SPARE_MAX = 1024, /* claims whose memory stays for the next ones: the allocator is slow with so many of a size */
    SHORT = 128       /* bytes of key and point, for which every spare claim has room */
};

typedef struct kept_claim kept_claim;
struct kept_claim {
    once_entry entry; /* key and point follow the struct */
    int64_t row, keep_ms;
    bool is_short;
    kept_claim *next; /* of those that are spare */
};

static kept_claim *claim_new(once_sqlite *q, size_t bytes)
{
    kept_claim *claim = bytes <= SHORT ? q->kept_spare : NULL;
    if (!claim) return malloc(sizeof *claim + (bytes <= SHORT ? SHORT : bytes));
    q->kept_spare = claim->next;
    q->n_kept_spare--;
    return claim;
}

static void claim_free(once_sqlite *q, kept_claim *claim)
{
    if (!claim->is_short || q->n_kept_spare >= SPARE_MAX) {
        free(claim);
        return;
    }
    claim->next = q->kept_spare;
    q->kept_spare = claim;
    q->n_kept_spare++;
}

void once__kept_release(once_sqlite *q)
{
    once__kept_clear(q);
    for (kept_claim *next; q->kept_spare; q->kept_spare = next) {
        next = ((kept_claim *)q->kept_spare)->next;
        free(q->kept_spare);
    }
    q->n_kept_spare = 0;
}

/* Bodies are not kept, and neither is an entry that failed before: both are seldom, and may be large. */
static bool is_plain_claim(const once_slot *slot)
{
    const once_entry *e = &slot->entry;
    return slot->row && e->state == ONCE_STATE_CLAIMED && !e->has_message && !e->result.len && !e->reason.len &&
           !e->history.len;
}

void once__kept_clear(once_sqlite *q)
{
    kept_claim *claim;
    for (size_t at = 0; q->kept.n && (claim = once_table_next(&q->kept, &at));) claim_free(q, claim);
    once_table_clear(&q->kept, ONCE_TABLE_KEPT);
}

void once__kept_add(once_sqlite *q, const once_slot *slot)
{
    if (!is_plain_claim(slot)) return;
    if (q->kept.n >= KEPT_MAX) once__kept_clear(q); /* some may never be settled here */
    const once_entry *e = &slot->entry;
    const size_t len = e->key.len + e->at.point.len;
    kept_claim *claim = claim_new(q, len);
    if (!claim) return;
    char *bytes = (char *)(claim + 1);
    *claim = (kept_claim){.entry = *e, .row = slot->row, .keep_ms = slot->keep_ms, .is_short = len <= SHORT};
    if (e->key.len) memcpy(bytes, e->key.data, e->key.len);
    if (e->at.point.len) memcpy(bytes + e->key.len, e->at.point.data, e->at.point.len);
    claim->entry.key.data = bytes;
    claim->entry.at.point.data = bytes + e->key.len;
    if (!once_table_put(&q->kept, e->id, claim)) claim_free(q, claim);
}

bool once__kept_take(once_sqlite *q, once_slot *slot)
{
    if (!q->kept.n) return false;
    kept_claim *claim = once_table_remove(&q->kept, slot->entry.id);
    if (!claim) return false;
    once_entry *e = &claim->entry;
    const bool copied =
        once_arena_copy(&q->arena, e->key, &e->key) && once_arena_copy(&q->arena, e->at.point, &e->at.point);
    if (copied) {
        slot->entry = *e;
        slot->row = claim->row;
        slot->keep_ms = claim->keep_ms;
    }
    claim_free(q, claim);
    return copied;
}
