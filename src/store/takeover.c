#include "store/takeover.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/no_memory.h"
#include "core/plant.h"
#include "store/engine.h"

#include "base/banned.h"

enum { AT_ONCE = 256 }; /* claims that are ended in one transaction */

const once_gone_worker *once_gone_holder(const once_gone *gone, const once_entry *entry)
{
    for (size_t i = 0; i < once_gone_count(gone); i++)
        if (once_token_is_of_run(entry->token, gone->at[i].run)) return &gone->at[i];
    return NULL;
}

static void note_gone(once_gone *gone, const once_worker *worker)
{
    assert(worker->gone || ONCE_PLANTED(live_claims_ended));
    for (size_t i = 0; i < once_gone_count(gone); i++)
        if (gone->at[i].run == worker->run) return;
    once_gone_worker *at = &gone->at[gone->n++ % ONCE_GONE_MAX];
    *at = (once_gone_worker){.run = worker->run, .contained = worker->contained};
    (void)snprintf(at->who, sizeof at->who, "%s", worker->who);
}

/* The gone workers from `from` on, at most as many as are remembered: a worker that is overwritten before its claims
 * were searched for would be forgotten. */
typedef struct some_gone {
    once_gone *gone;
    size_t from, i;
    bool more;
} some_gone;

static bool note_some(void *user, const once_worker *worker, once_worker_state state)
{
    some_gone *some = user;
    (void)state;
    some->more = some->i == some->from + ONCE_GONE_MAX;
    if (!some->more && some->i++ >= some->from) note_gone(some->gone, worker);
    return !some->more;
}

int once_gone_read(once_backend *store, once_bytes consumer, once_gone *out, once_error *err)
{
    once_worker nobody;
    *out = (once_gone){0};
    once_worker_init(&nobody, store, consumer, 0, 0);
    return once_workers_gone(store, &nobody, note_some, &(some_gone){.gone = out}, err);
}

once_bytes once_gone_says(const once_gone *gone, const once_entry *entry)
{
    const once_gone_worker *holder = entry->state == ONCE_STATE_CLAIMED ? once_gone_holder(gone, entry) : NULL;
    if (!holder) return (once_bytes){0};
    if (!holder->contained)
        return ONCE_BYTES("its worker is gone, but its commands may still run: the lease is waited for");
    return entry->hold ? ONCE_BYTES("its worker is gone: with the next run it is unknown at once")
                       : ONCE_BYTES("its worker is gone: the next run goes on with it at once");
}

static bool is_over(const once_gone_worker *gone) { return gone->contained || ONCE_PLANTED(children_ignored); }

/* Claims to end, as many as one transaction takes. */
typedef struct claims {
    once_gone *gone;
    once_arena arena;
    once_scope scopes[AT_ONCE];
    once_request requests[AT_ONCE];
    once_gone_worker *of[AT_ONCE];
    size_t n;
    bool more, no_memory;
} claims;

static bool find_claim(void *user, const once_entry *entry)
{
    assert(entry->state == ONCE_STATE_CLAIMED);
    claims *c = user;
    once_gone_worker *holder = (once_gone_worker *)once_gone_holder(c->gone, entry);
    if (!holder || !is_over(holder)) return true;
    c->more = c->n == AT_ONCE;
    if (c->more) return false;
    once_entry copy = {.scope = entry->scope, .key = entry->key};
    c->no_memory = !once__entry_copy(&c->arena, &copy, &copy);
    if (c->no_memory) return false;
    c->scopes[c->n] = copy.scope;
    c->requests[c->n] =
        (once_request){.scope = &c->scopes[c->n], .key = copy.key, .id = entry->id, .token = entry->token};
    c->of[c->n++] = holder;
    return true;
}

/* *more: claims are left, and the caller looks again. */
static int end_claims(once_backend *store, claims *c, bool *more, once_error *err)
{
    assert(c->n <= AT_ONCE);
    const once_request *requests[AT_ONCE];
    bool ours[AT_ONCE];
    for (size_t i = 0; i < c->n; i++) requests[i] = &c->requests[i];
    const int rc = c->n ? store->ops->extend(store, requests, c->n, ours, err) : ONCE_OK;
    *more = false;
    for (size_t i = 0; rc == ONCE_OK && i < c->n; i++) {
        c->of[i]->ended += ours[i];
        *more |= ours[i] && c->more;
    }
    return rc;
}

static bool any_over(const once_gone *gone)
{
    bool any = false;
    for (size_t i = 0; i < once_gone_count(gone); i++) any |= is_over(&gone->at[i]);
    return any;
}

int once_take_over(once_backend *store, once_bytes consumer, const once_worker *self, once_gone *gone, size_t *from,
                   once_error *err)
{
    assert(self->run != 0 && from);
    some_gone some = {.gone = gone, .from = *from};
    for (size_t i = 0; i < once_gone_count(gone); i++) gone->at[i].ended = 0;
    int rc = once_workers_gone(store, self, note_some, &some, err);
    *from = rc == ONCE_OK && some.more ? some.i : 0;
    if (rc != ONCE_OK || !any_over(gone)) return rc;
    bool more = false;
    claims *c = malloc(sizeof *c);
    if (!c) return once_no_memory(err, "for claims of workers that are gone");
    do {
        *c = (claims){.gone = gone};
        rc = store->ops->list(store, consumer, ONCE_STATE_CLAIMED, find_claim, c, err);
        if (rc == ONCE_OK && c->no_memory) rc = once_no_memory(err, "for claims of workers that are gone");
        if (rc == ONCE_OK) rc = end_claims(store, c, &more, err);
        once_arena_release(&c->arena);
    } while (rc == ONCE_OK && more);
    free(c);
    return rc;
}
