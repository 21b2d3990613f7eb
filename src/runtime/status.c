/* `once status`: counts what is in the store. */
#include <assert.h>
#include <stdlib.h>

#include "base/duration.h"
#include "base/no_memory.h"
#include "runtime/known_store.h"
#include "runtime/operate.h"

#include "base/banned.h"

typedef struct oldest {
    int64_t now_ms, oldest_ms;
    uint64_t n, due;
} oldest;

static bool look_at_entry(void *user, const once_entry *entry)
{
    oldest *o = user;
    o->n++;
    const int64_t since_ms = entry->state == ONCE_STATE_UNKNOWN ? entry->changed_ms : entry->seen_ms;
    if (o->oldest_ms == ONCE_NO_TIME || since_ms < o->oldest_ms) o->oldest_ms = since_ms;
    if (entry->due_ms <= o->now_ms && entry->has_message) o->due++;
    return true;
}

/* Dead entries that may block their lanes; each is checked after the list. */
typedef struct suspects {
    once_hash *ids;
    size_t n, room;
    bool failed;
} suspects;

static bool look_at_dead(void *user, const once_entry *entry)
{
    suspects *s = user;
    assert(entry->state == ONCE_STATE_DEAD && s->n <= s->room);
    if (!entry->block) return true;
    if (s->n == s->room) {
        const size_t room = s->room ? 2 * s->room : 64;
        once_hash *ids = reallocarray(s->ids, room, sizeof *ids);
        s->failed = !ids;
        if (!ids) return false;
        s->ids = ids;
        s->room = room;
    }
    s->ids[s->n++] = entry->id;
    return true;
}

/* Counts the letters that block their lanes, as `once list` shows them. */
static int count_blocking(once_backend *store, once_bytes consumer, uint64_t *out, once_error *err)
{
    suspects s = {0};
    once_arena arena = {0};
    int rc = store->ops->list(store, consumer, ONCE_STATE_DEAD, look_at_dead, &s, err);
    if (rc == ONCE_OK && s.failed) rc = once_no_memory(err, "for a list");
    for (size_t i = 0; i < s.n && rc == ONCE_OK; i++) {
        once_bytes words = {0};
        once_arena_reset(&arena);
        rc = store->ops->explain_lane(store, s.ids[i], &words, &arena, err);
        *out += rc == ONCE_OK && words.len > 0;
    }
    once_arena_release(&arena);
    free(s.ids);
    return rc;
}

static bool look_at_first_letter(void *user, const once_letter *letter)
{
    *(int64_t *)user = letter->buried_ms;
    return false;
}

static int count_finished(once_backend *store, once_bytes consumer, once_pipeline_state *out, once_error *err)
{
    const struct {
        once_state state;
        uint64_t *n;
    } counts[] = {{ONCE_STATE_DONE, &out->done},
                  {ONCE_STATE_ALREADY, &out->already},
                  {ONCE_STATE_REJECTED, &out->rejected},
                  {ONCE_STATE_STALE, &out->stale}};
    int rc = ONCE_OK;
    for (size_t i = 0; i < sizeof counts / sizeof *counts && rc == ONCE_OK; i++) {
        oldest seen = {.oldest_ms = ONCE_NO_TIME};
        rc = store->ops->list(store, consumer, counts[i].state, look_at_entry, &seen, err);
        *counts[i].n = seen.n;
    }
    return rc;
}

static int read_counters(once_backend *store, once_bytes consumer, once_pipeline_state *out, once_error *err)
{
    once_arena arena = {0};
    int64_t repeats = 0, given_up = 0;
    int rc = once_repeats_read(store, consumer, &arena, &repeats, err);
    if (rc == ONCE_OK) rc = once_given_up_read(store, consumer, &arena, &given_up, err);
    once_arena_release(&arena);
    out->repeats = (uint64_t)repeats;
    out->given_up = (uint64_t)given_up;
    return rc;
}

int once_pipeline_stored(once_pipeline *pipeline, once_stored *out, once_error *err)
{
    if (!pipeline || !out || out->size < sizeof *out)
        return once_fail(err, ONCE_E_USAGE, "once_pipeline_stored needs a pipeline, and a once_stored with its size");
    once_backend *store;
    once_waiting_size size = {0};
    int rc = once__operator_open(pipeline, &store, err);
    if (rc != ONCE_OK) return rc;
    rc = store->ops->waiting_size(store, pipeline->spec->consumer, &size, err);
    once__operator_close(pipeline, store);
    if (rc != ONCE_OK) return rc;
    const once_waiting_size most = pipeline->spec->waiting_max;
    *out = (once_stored){out->size, size.messages, size.bytes, most.messages, most.bytes};
    return ONCE_OK;
}

int once_pipeline_status(once_pipeline *pipeline, bool finished, once_pipeline_state *out, once_error *err)
{
    if (!pipeline || !out)
        return once_fail(err, ONCE_E_USAGE, "once_pipeline_status needs a pipeline and a place for the answer");
    once_backend *store;
    int rc = once__operator_open(pipeline, &store, err);
    if (rc != ONCE_OK) return rc;
    const once_bytes consumer = pipeline->spec->consumer;
    once_store_time time = {0};
    once_stats stats = {0};
    rc = store->ops->time(store, &time, err);
    oldest waiting = {.now_ms = time.now_ms, .oldest_ms = ONCE_NO_TIME}, unknown = waiting;
    *out = (once_pipeline_state){.now_ms = once_env_wall_ms(pipeline->env),
                                 .store_ms = time.now_ms,
                                 .clock_doubted = time.doubted,
                                 .oldest_dead_ms = ONCE_NO_TIME};
    if (rc == ONCE_OK) rc = store->ops->stats(store, consumer, &stats, err);
    if (rc == ONCE_OK) rc = store->ops->list(store, consumer, ONCE_STATE_WAITING, look_at_entry, &waiting, err);
    if (rc == ONCE_OK) rc = store->ops->list(store, consumer, ONCE_STATE_UNKNOWN, look_at_entry, &unknown, err);
    if (rc == ONCE_OK && pipeline->spec->order) rc = count_blocking(store, consumer, &out->blocking, err);
    if (rc == ONCE_OK) rc = store->ops->letters(store, consumer, 0, look_at_first_letter, &out->oldest_dead_ms, err);
    if (rc == ONCE_OK && finished) rc = count_finished(store, consumer, out, err);
    if (rc == ONCE_OK) rc = read_counters(store, consumer, out, err);
    assert(rc != ONCE_OK || (stats.wait_ms >= 0 && waiting.due <= waiting.n));
    out->waiting = stats.waiting;
    out->busy = stats.claimed;
    out->unknown = stats.unknown;
    out->dead = stats.dead;
    out->backlog = waiting.due;
    out->oldest_waiting_ms = waiting.oldest_ms;
    out->oldest_unknown_ms = unknown.oldest_ms;
    out->wait_ms = stats.wait_ms == ONCE_NEVER ? -1 : stats.wait_ms;
    once__operator_close(pipeline, store);
    return rc;
}

int once_pipeline_standing(once_pipeline *pipeline, bool finished, once_standing *out, once_error *err)
{
    return once_pipeline_status(pipeline, finished, out, err);
}
