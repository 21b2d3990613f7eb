/* A person with the verbs of `once`: each act is one transaction with its audit record, as in runtime/replay.c and
 * those beside it. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

/* --- the store, by the clock of somebody who knows the time --- */

typedef struct desk {
    once_backend *store;
    bool own;
} desk;

static bool is_reachable(const sim_world *world)
{
    return !world->tx_owner && world->store_down_until_ms <= world->now_ms;
}

static bool desk_open(sim_world *world, desk *out)
{
    world->memory_env.boot_ms = world->now_ms;
    world->memory_env.wall_ms = TEST_EPOCH_MS + (world->now_ms - world->start_ms);
    *out = (desk){.store = world->memory};
    if (!world->sqlite) return true;
    once_error err = {0};
    const once_store_options options = {.size = sizeof options, .env = &world->memory_env.env, .busy_ms = 1};
    out->own = true;
    if (once__store_open(world->url, &options, &out->store, &err) == ONCE_OK) return true;
    sim_violation(world, "an operator cannot open the store: %s", err.text);
    return false;
}

static void desk_close(desk *d)
{
    if (d->own) once__store_close(d->store);
}

/* --- what there is to decide about: any one of the first few --- */

typedef struct search {
    sim_world *world;
    uint64_t skip, letter;
    once_hash entry;
    int key; /* -1: nothing was found */
} search;

static int key_of(const search *s, const once_scope *scope, once_bytes key)
{
    return sim_key_of(s->world, &(once_request){.scope = scope, .key = key});
}

static bool look_at_letter(void *user, const once_letter *letter)
{
    search *s = user;
    if (once_hash_is_zero(letter->entry)) return true;
    s->letter = letter->id;
    s->key = key_of(s, &letter->scope, letter->key);
    return s->skip-- > 0;
}

static bool look_at_unknown(void *user, const once_entry *entry)
{
    search *s = user;
    s->entry = entry->id;
    s->key = key_of(s, &entry->scope, entry->key);
    return s->skip-- > 0;
}

static int audit(sim_world *world, once_backend *store, once_bytes what, once_error *err)
{
    const once_audit record = {.consumer = world->spec->consumer, .who = ONCE_BYTES("somebody"), .what = what};
    return store->ops->audit(store, &record, err);
}

/* --- acts --- */

static int do_resolve(sim_world *world, once_backend *store, const search *s, once_outcome verdict, bool *done,
                      once_error *err)
{
    int rc = store->ops->begin(store, err);
    if (rc != ONCE_OK) return rc;
    rc = store->ops->resolve(store, s->entry, verdict, ONCE_BYTES("a person looked"), done, err);
    if (rc == ONCE_OK && *done) rc = audit(world, store, ONCE_BYTES("resolve"), err);
    if (rc == ONCE_OK) return store->ops->commit(store, err);
    store->ops->rollback(store);
    return rc;
}

bool sim_operator_resolve(sim_world *world)
{
    static const struct {
        once_outcome verdict;
        sim_fault what;
    } choices[] = {{ONCE_DONE, SIM_resolved_done}, {ONCE_RETRY, SIM_resolved_retry}, {ONCE_DEAD, SIM_resolved_dead}};
    desk d;
    once_error err = {0};
    search s = {.world = world, .skip = sim_random(world, 3), .key = -1};
    bool done = false;
    if (!is_reachable(world) || !desk_open(world, &d)) return false;
    int rc = d.store->ops->list(d.store, world->spec->consumer, ONCE_STATE_UNKNOWN, look_at_unknown, &s, &err);
    const size_t which = sim_random(world, 3);
    if (rc == ONCE_OK && s.key >= 0) rc = do_resolve(world, d.store, &s, choices[which].verdict, &done, &err);
    desk_close(&d);
    if (rc != ONCE_OK) sim_violation(world, "an unknown cannot be resolved: %s", err.text);
    if (!done) return false;
    sim_fired(world, choices[which].what);
    sim_record_resolve(world, s.key, choices[which].verdict);
    return true;
}

static bool letter_act(sim_world *world, bool replay)
{
    desk d;
    once_error err = {0};
    search s = {.world = world, .skip = sim_random(world, 4), .key = -1};
    bool found = false;
    if (!is_reachable(world) || !desk_open(world, &d)) return false;
    once_backend *store = d.store;
    int rc = store->ops->letters(store, world->spec->consumer, 0, look_at_letter, &s, &err);
    if (rc == ONCE_OK && s.key >= 0) {
        rc = store->ops->begin(store, &err);
        if (rc == ONCE_OK)
            rc = replay ? store->ops->replay_letter(store, s.letter, &found, &err)
                        : store->ops->discard(store, s.letter, ONCE_FOREVER, &found, &err);
        if (rc == ONCE_OK) rc = audit(world, store, replay ? ONCE_BYTES("replay") : ONCE_BYTES("discard"), &err);
        if (rc == ONCE_OK) rc = store->ops->commit(store, &err);
        else store->ops->rollback(store);
    }
    desk_close(&d);
    if (rc != ONCE_OK)
        sim_violation(world, "a dead letter cannot be %s: %s", replay ? "replayed" : "discarded", err.text);
    if (!found) return false;
    sim_fired(world, replay ? SIM_replayed : SIM_discarded);
    if (replay) sim_record_replay(world, s.key);
    else sim_record_discard(world, s.key);
    return true;
}

bool sim_operator_discard(sim_world *world) { return letter_act(world, false); }

/* --- what is shown --- */

typedef struct views {
    sim_world *world;
    const once_storage *storage;
    uint64_t n;
} views;

/* The lease of whatever is shown as under way is not over by the store's own clock. */
static bool look_at_claimed(void *user, const once_entry *entry)
{
    views *v = user;
    v->n++;
    if (entry->due_ms <= v->storage->clock.tenths / 10)
        sim_violation(v->world, "key %d: shown as under way, and its lease is over",
                      sim_key_of(v->world, &(once_request){.scope = &entry->scope, .key = entry->key}));
    return true;
}

static bool count_one(void *user, const once_entry *entry)
{
    (void)entry;
    ++*(uint64_t *)user;
    return true;
}

/* What is listed is what is counted. */
void sim_operator_look(sim_world *world)
{
    desk d;
    once_error err = {0};
    once_stats stats;
    uint64_t waiting = 0, unknown = 0;
    if (!is_reachable(world) || !desk_open(world, &d)) return;
    once_backend *store = d.store;
    views v = {world, (const once_storage *)store, 0};
    const once_bytes consumer = world->spec->consumer;
    int rc = store->ops->stats(store, consumer, &stats, &err);
    if (rc == ONCE_OK) rc = store->ops->list(store, consumer, ONCE_STATE_CLAIMED, look_at_claimed, &v, &err);
    if (rc == ONCE_OK) rc = store->ops->list(store, consumer, ONCE_STATE_WAITING, count_one, &waiting, &err);
    if (rc == ONCE_OK) rc = store->ops->list(store, consumer, ONCE_STATE_UNKNOWN, count_one, &unknown, &err);
    desk_close(&d);
    if (rc != ONCE_OK) sim_violation(world, "an operator cannot look: %s", err.text);
    else if (stats.claimed != v.n || stats.waiting != waiting || stats.unknown != unknown)
        sim_violation(world, "%llu claimed, %llu waiting and %llu unknown are counted, %llu, %llu and %llu listed",
                      (unsigned long long)stats.claimed, (unsigned long long)stats.waiting,
                      (unsigned long long)stats.unknown, (unsigned long long)v.n, (unsigned long long)waiting,
                      (unsigned long long)unknown);
}

void sim_operator_act(sim_world *world)
{
    sim_operator_look(world);
    switch (sim_random(world, 6)) {
    case 0:
    case 1: (void)letter_act(world, true); break;
    case 2: (void)letter_act(world, false); break;
    default: (void)sim_operator_resolve(world);
    }
}

/* --- at the end --- */

typedef struct found {
    sim_world *world;
    bool *has; /* by message */
} found;

static bool look_at_conflict(void *user, const once_letter *letter)
{
    found *f = user;
    if (letter->kind != ONCE_ANSWER_CONFLICT) return true;
    const sim_message *m = &f->world->messages[sim_message_of(f->world, &letter->message)];
    bool known = false; /* of those with this content, the last one that came is where the letter says */
    for (int i = 0; i < f->world->messages_n; i++) {
        const sim_message *same = &f->world->messages[i];
        if (same->key != m->key || same->variant != m->variant) continue;
        f->has[i] = true;
        known |= letter->message.body.len == same->body.len &&
                 memcmp(letter->message.body.data, same->body.data, same->body.len) == 0;
    }
    if (!known) sim_violation(f->world, "the letter of a conflict of key %d has a body that no message has", m->key);
    return true;
}

void sim_operator_conflicts(sim_world *world)
{
    desk d;
    once_error err = {0};
    found f = {world, calloc((size_t)world->messages_n + 1, sizeof *f.has)};
    if (!f.has) abort();
    if (desk_open(world, &d)) {
        if (d.store->ops->letters(d.store, world->spec->consumer, 0, look_at_conflict, &f, &err) != ONCE_OK)
            sim_violation(world, "the letters cannot be read: %s", err.text);
        desk_close(&d);
        for (int i = 0; i < world->messages_n; i++)
            if (world->messages[i].conflict && !f.has[i])
                sim_violation(world, "message %d (key %d): the letter of its conflict is gone", i,
                              world->messages[i].key);
    }
    free(f.has);
}

void sim_operator_counters(sim_world *world, uint64_t *repeats, uint64_t *given_up)
{
    desk d;
    once_error err = {0};
    once_arena arena = {0};
    int64_t n = 0, missing = 0;
    *repeats = *given_up = 0;
    if (!desk_open(world, &d)) return;
    if (once_repeats_read(d.store, world->spec->consumer, &arena, &n, &err) != ONCE_OK || n < 0 ||
        once_given_up_read(d.store, world->spec->consumer, &arena, &missing, &err) != ONCE_OK || missing < 0)
        sim_violation(world, "the permanent counts cannot be read: %s", err.text);
    desk_close(&d);
    once_arena_release(&arena);
    *repeats = (uint64_t)n;
    *given_up = (uint64_t)missing;
}
