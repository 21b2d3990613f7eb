/* Waits for a store whose server is away or whose disk is full, before the first message and after the last one, when
 * there is no machine to wait (in between core/machine.h does). Also decides when a stop ends such a wait, and
 * throttles the log lines about it. */
#include <assert.h>
#include <string.h>

#include "base/duration.h"
#include "base/hash.h"
#include "base/log.h"
#include "core/retry.h"
#include "runtime/runtime.h"

#include "base/banned.h"

#define TICK_MS 50         /* how soon a stop is noticed */
#define SAY_FIRST 64       /* the 1st, 2nd, 4th... failure up to this one is logged */
#define SAY_MS 50000       /* then one after this time: with the pause between two tries, at least one a minute */
#define SAY_CHANGE_MS 5000 /* the same for a reason that alternates with others */

/* Texts that differ only in numbers (counts, ports) are one reason. */
static once_hash reason_of(const char *text)
{
    char words[sizeof((once_error *)0)->text];
    size_t n = 0;
    for (; *text && n < sizeof words; text++)
        if (*text < '0' || *text > '9') words[n++] = *text;
    return once_xxh128(0, words, n);
}

static bool is_known(const once_log_throttle *s, once_hash reason)
{
    for (size_t i = 0; i < ONCE_THROTTLE_REASONS; i++)
        if (once_hash_equal(s->reasons[i], reason)) return true;
    return false;
}

bool once__throttle_allows(once_log_throttle *s, const char *text, int64_t now_ms)
{
    const once_hash reason = reason_of(text);
    const bool known = is_known(s, reason), changed = !once_hash_equal(s->last, reason);
    const bool early = ++s->times <= SAY_FIRST && (s->times & (s->times - 1)) == 0;
    const int64_t silent_ms = now_ms - s->logged_ms;
    if (known && !early && silent_ms < (changed ? SAY_CHANGE_MS : SAY_MS)) return false;
    if (!known) s->reasons[s->next++ % ONCE_THROTTLE_REASONS] = reason;
    s->last = reason;
    s->logged_ms = now_ms;
    return true;
}

const char *once__store_event(int status)
{
    return status == ONCE_E_FULL ? "store_full" : status == ONCE_E_UNAVAILABLE ? "store_away" : "store_failed";
}

bool once__wait_is_cancelled(void *user)
{
    once_pipeline *pipeline = user;
    if (!atomic_load(&pipeline->stop)) return false;
    const int64_t now_ns = once_env_mono_ns(pipeline->env);
    if (pipeline->stop_seen_ns == 0) pipeline->stop_seen_ns = now_ns;
    return !pipeline->in_flight || (now_ns - pipeline->stop_seen_ns) / 1000000 >= pipeline->spec->drain_ms;
}

/* Sleeps, at most until a stop. */
static void pause_for(once_pipeline *pipeline, int64_t ms)
{
    for (; ms > 0 && !atomic_load(&pipeline->stop); ms -= TICK_MS)
        once_env_sleep_ms(pipeline->env, ms < TICK_MS ? ms : TICK_MS);
}

/* Says why it gives up, and what to do. */
static int give_up(const once_pipeline *pipeline, int rc, const once_error *why, once_error *err)
{
    assert(once_status_class(rc) != ONCE_CLASS_USAGE && why->text[0]);
    char patience[ONCE_DURATION_TEXT];
    return once_fail(err, rc, "%.350s; gave up: %s and run again, or raise 'patience' (%s)", why->text,
                     rc == ONCE_E_FULL ? "make room" : "start it",
                     once_duration_format(pipeline->spec->patience_ms, patience));
}

int once__retry_unavailable(once_pipeline *pipeline, once_try *attempt, void *user, once_error *err)
{
    static const once_retry pace = {.min_ms = 100, .max_ms = 10000};
    const bool finite = pipeline->spec->source.bits & ONCE_SOURCE_FINITE;
    const int64_t begun_ns = once_env_mono_ns(pipeline->env);
    once_log_throttle throttle = {0};
    for (unsigned tries = 1;; tries++) {
        once_error why = {0};
        const int rc = attempt(user, &why);
        if (rc == ONCE_OK && tries > 1)
            once_log(ONCE_LOG_WARN, "store_works", "works again, after %u failure%s", tries - 1, tries == 2 ? "" : "s");
        if (rc == ONCE_OK) return rc;
        if (rc != ONCE_E_UNAVAILABLE && rc != ONCE_E_ABORTED && rc != ONCE_E_FULL)
            return once_fail(err, rc, "%s", why.text);
        const int64_t now_ms = once_env_mono_ns(pipeline->env) / 1000000, away_ms = now_ms - begun_ns / 1000000;
        if (atomic_load(&pipeline->stop)) return once_fail(err, rc, "%.400s; stopped while waiting for it", why.text);
        if (finite && away_ms >= pipeline->spec->patience_ms) return give_up(pipeline, rc, &why, err);
        if (once__throttle_allows(&throttle, why.text, now_ms)) {
            const char *event = once__store_event(rc);
            once_log(ONCE_LOG_WARN, event, "%s; trying again; nothing is fetched or acked until it works", why.text);
        }
        int64_t delay_ms = once_retry_delay_ms(&pace, tries, pipeline->env);
        assert(delay_ms >= 0 && delay_ms <= pace.max_ms);
        if (finite && delay_ms > pipeline->spec->patience_ms - away_ms)
            delay_ms = pipeline->spec->patience_ms - away_ms;
        pause_for(pipeline, delay_ms);
    }
}
