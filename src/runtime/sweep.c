/* `once sweep`: removes expired records, step by step. */
#include "base/duration.h"
#include "runtime/known_store.h"
#include "runtime/operate.h"

#include "base/banned.h"

enum {
    SWEEP_STEP = 20000, /* records dropped in one step */
    SWEEP_BUSY_MS = 100 /* how often to look while another process sweeps */
};

int once_pipeline_sweep(once_pipeline *pipeline, once_sweep_progress *progress, void *user, uint64_t *dropped,
                        once_error *err)
{
    if (!pipeline || !dropped)
        return once_fail(err, ONCE_E_USAGE, "once_pipeline_sweep needs a pipeline and a place for the count");
    once_backend *store;
    once_sweep_result step = {.more = true};
    const int64_t begun_ns = once_env_mono_ns(pipeline->env);
    *dropped = 0;
    int rc = once__operator_open(pipeline, &store, err);
    if (rc != ONCE_OK) return rc;
    while (rc == ONCE_OK && (step.more || step.busy) && !atomic_load(&pipeline->stop)) {
        rc = store->ops->sweep(store, SWEEP_STEP, &step, err);
        if (rc != ONCE_OK) break;
        *dropped += step.dropped;
        if (progress) progress(user, *dropped, (double)(once_env_mono_ns(pipeline->env) - begun_ns) / 1e9);
        const int64_t pause_ms = step.busy ? SWEEP_BUSY_MS : step.more ? step.pause_ms : 0;
        rc = once__operator_pause(pipeline, &store, pause_ms, err);
    }
    once__operator_close(pipeline, store);
    return rc;
}
