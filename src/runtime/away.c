/* A store whose server is away, before the first message and after the last one, when there is no pipeline machine that could wait
 * (in between it does; core/pipeline.h). And for how long anybody waits for a server that does not answer. */
#include <string.h>

#include "base/duration.h"
#include "base/log.h"
#include "core/retry.h"
#include "runtime/runtime.h"

#include "base/banned.h"

#define TICK_MS 50 /* how soon a stop is noticed */

bool once__worth_saying(unsigned times)
{
    return times <= 64 ? (times & (times - 1)) == 0 : times % 64 == 0;
}

bool once__patience_over(void *user)
{
    once_pipeline *pipeline = user;
    if (!atomic_load(&pipeline->stop)) return false;
    const int64_t now_ns = once_env_mono_ns(pipeline->env);
    if (pipeline->told_ns == 0) pipeline->told_ns = now_ns;
    return !pipeline->working || (now_ns - pipeline->told_ns) / 1000000 >= pipeline->spec->drain_ms;
}

/* Sleeps, but not longer than until the stop. */
static void pause_for(once_pipeline *pipeline, int64_t ms)
{
    for (; ms > 0 && !atomic_load(&pipeline->stop); ms -= TICK_MS) once_env_sleep_ms(pipeline->env, ms < TICK_MS ? ms : TICK_MS);
}

int once__persist(once_pipeline *pipeline, once_try *attempt, void *user, once_error *err)
{
    static const once_retry pace = {.min_ms = 100, .max_ms = 10000};
    const bool finite = !pipeline->spec->source.follow;
    const int64_t begun_ns = once_env_mono_ns(pipeline->env);
    for (unsigned tries = 1;; tries++) {
        once_error why = {0};
        const int rc = attempt(user, &why);
        if (rc == ONCE_OK) return rc;
        if (rc != ONCE_E_UNAVAILABLE && rc != ONCE_E_ABORTED) return once_fail(err, rc, "%s", why.text);
        const int64_t away_ms = (once_env_mono_ns(pipeline->env) - begun_ns) / 1000000;
        char patience[ONCE_DURATION_TEXT];
        if (atomic_load(&pipeline->stop)) return once_fail(err, rc, "%.400s; stopped while it was waited for", why.text);
        if (finite && away_ms >= pipeline->spec->patience_ms)
            return once_fail(err, rc, "%.350s; gave up: start it and run again, or raise 'patience' (%s)", why.text,
                             once_duration_format(pipeline->spec->patience_ms, patience));
        if (once__worth_saying(tries)) once_log(ONCE_LOG_WARN, "store_away", "%s; trying again, nothing is fetched or acked meanwhile", why.text);
        int64_t delay_ms = once_retry_delay_ms(&pace, tries, pipeline->env);
        if (finite && delay_ms > pipeline->spec->patience_ms - away_ms) delay_ms = pipeline->spec->patience_ms - away_ms;
        pause_for(pipeline, delay_ms);
    }
}
