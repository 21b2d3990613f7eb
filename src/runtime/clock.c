/* The store's time compared with other clocks, for `once check`, and `--confirm-clock`, which sets it. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/duration.h"
#include "once/operate.h"
#include "runtime/executor.h"
#include "runtime/known_store.h"
#include "runtime/operate.h"
#include "runtime/runtime.h"

#include "base/banned.h"

#define HOUR_MS (INT64_C(3600) * 1000)
#define DAY_MS (24 * HOUR_MS)

/* "400d", "7h": rounded down to the largest unit that still says something. */
static const char *distance(int64_t ms, char out[ONCE_DURATION_TEXT])
{
    if (ms < 0) ms = -ms;
    const int64_t unit_ms = ms >= 2 * DAY_MS ? DAY_MS : ms >= 2 * HOUR_MS ? HOUR_MS : ms >= 60000 ? 60000 : 1000;
    return once_duration_format(ms / unit_ms * unit_ms, out);
}

void once__clock_doubt(int64_t store_ms, int64_t wall_ms, char *out, size_t size)
{
    char ahead[ONCE_DURATION_TEXT], now[ONCE_TIME_TEXT];
    snprintf(out, size,
             "after a reboot the wall clock is %s ahead of the store's time (%s), which goes on from where it was, so "
             "that nothing expires early; correct the wall clock, or if it is right, run 'once check --confirm-clock'",
             distance(wall_ms - store_ms, ahead), once_time_format(store_ms, now));
}

/* The shortest `remember` of the handlers; ONCE_FOREVER: no message can be too old. */
static int64_t shortest_memory(const once_spec *spec)
{
    int64_t least_ms = ONCE_FOREVER;
    for (size_t i = 0; i < spec->n_handlers; i++) {
        const once_handler_spec *h = &spec->handlers[i];
        if (!once_handler_runs(h) || (h->natural && !spec->version)) continue;
        if (h->remember_ms < least_ms) least_ms = h->remember_ms;
    }
    return least_ms;
}

static void compare_wall(const once_backend *store, const once_store_time *time, int64_t wall_ms, once_finding *report,
                         void *user)
{
    char text[400], away[ONCE_DURATION_TEXT];
    const int64_t ahead_ms = time->now_ms - wall_ms;
    const char *what = store->ops->confirm_time ? "the store's time" : "the clock of the store's server";
    const char *act = store->ops->confirm_time
                          ? "if the wall clock is right, set the store's time to it with 'once check --confirm-clock'"
                          : "correct the clock that is wrong";
    if (time->doubted) {
        once__clock_doubt(time->now_ms, wall_ms, text, sizeof text);
        report(user, "clock", text, true);
    } else if (ahead_ms > HOUR_MS) {
        snprintf(
            text, sizeof text,
            "%s is %s ahead of the wall clock: messages look older than they are, and may be refused as too old; %s",
            what, distance(ahead_ms, away), act);
        report(user, "clock", text, true);
    } else if (-ahead_ms > HOUR_MS) {
        snprintf(text, sizeof text, "%s is %s behind the wall clock: finished messages are remembered longer; %s", what,
                 distance(ahead_ms, away), act);
        report(user, "clock", text, true);
    }
}

static void compare_messages(const once_spec *spec, int64_t newest_ms, int64_t now_ms, int64_t wall_ms,
                             once_finding *report, void *user)
{
    char text[400], away[ONCE_DURATION_TEXT], memory[ONCE_DURATION_TEXT];
    const int64_t remember_ms = shortest_memory(spec);
    if (newest_ms == ONCE_NO_TIME) return;
    if (remember_ms != ONCE_FOREVER && newest_ms < now_ms - remember_ms) {
        snprintf(text, sizeof text,
                 "the newest message seen is %s older than the store's time, and remember is %s: such a message is too "
                 "old and becomes a dead letter; check the store's time",
                 distance(now_ms - newest_ms, away), once_duration_format(remember_ms, memory));
        report(user, "clock", text, true);
    }
    if (newest_ms > wall_ms + DAY_MS) {
        snprintf(text, sizeof text,
                 "the newest message seen is %s ahead of the wall clock; its sender's clock or this one is wrong",
                 distance(newest_ms - wall_ms, away));
        report(user, "clock", text, true);
    }
}

int once__clock_check(once_pipeline *pipeline, once_backend *store, once_finding *report, void *user, once_error *err)
{
    char text[300], now[ONCE_TIME_TEXT], wall[ONCE_TIME_TEXT], newest[ONCE_TIME_TEXT];
    once_store_time time;
    int64_t newest_ms;
    int rc = store->ops->time(store, &time, err);
    if (rc == ONCE_OK) rc = once_newest_read(store, pipeline->spec->consumer, &newest_ms, err);
    if (rc != ONCE_OK) return rc;
    const int64_t wall_ms = once_env_wall_ms(pipeline->env);
    snprintf(text, sizeof text, "store %s, wall clock %s, newest message %s", once_time_format(time.now_ms, now),
             once_time_format(wall_ms, wall),
             newest_ms == ONCE_NO_TIME ? "not known" : once_time_format(newest_ms, newest));
    report(user, "clock", text, false);
    compare_wall(store, &time, wall_ms, report, user);
    compare_messages(pipeline->spec, newest_ms, time.now_ms, wall_ms, report, user);
    return ONCE_OK;
}

/* --- setting it --- */

static int confirm(once_pipeline *pipeline, once_backend *store, int64_t *before_ms, int64_t *after_ms, once_error *err)
{
    assert(store->ops->confirm_time);
    once_store_time time;
    char note[200], before[ONCE_TIME_TEXT], after[ONCE_TIME_TEXT];
    int rc = store->ops->time(store, &time, err);
    if (rc == ONCE_OK) rc = store->ops->begin(store, err);
    if (rc != ONCE_OK) return rc;
    rc = store->ops->confirm_time(store, err);
    *before_ms = time.now_ms;
    *after_ms = once_env_wall_ms(pipeline->env);
    snprintf(note, sizeof note, "store time %s -> %s", once_time_format(*before_ms, before),
             once_time_format(*after_ms, after));
    const once_audit record = {.consumer = pipeline->spec->consumer,
                               .who = {store->who, strlen(store->who)},
                               .what = ONCE_BYTES("confirm-clock"),
                               .note = {note, strlen(note)}};
    if (rc == ONCE_OK) rc = store->ops->audit(store, &record, err);
    if (rc == ONCE_OK) return store->ops->commit(store, err);
    store->ops->rollback(store);
    return rc;
}

int once_pipeline_confirm_clock(once_pipeline *pipeline, int64_t *before_ms, int64_t *after_ms, once_error *err)
{
    if (!pipeline || !before_ms || !after_ms)
        return once_fail(err, ONCE_E_USAGE, "once_pipeline_confirm_clock needs a pipeline and places for two times");
    once_backend *store;
    int rc = once__operator_open(pipeline, &store, err);
    if (rc != ONCE_OK) return rc;
    if (store->ops->confirm_time) rc = confirm(pipeline, store, before_ms, after_ms, err);
    else rc = once_fail(err, ONCE_E_USAGE, "store '%s:' has no clock of its own to set", store->ops->scheme);
    once__operator_close(pipeline, store);
    return rc;
}
