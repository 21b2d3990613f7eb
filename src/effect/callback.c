/* Callbacks: C functions of the program that links libonce, in threads. A function that should stop learns it from
 * once_call_extend. */
#include <assert.h>
#include <stdlib.h>

#include "base/duration.h"
#include "base/log.h"
#include "base/no_memory.h"
#include "core/config_values.h"
#include "effect/callback.h"
#include "effect/effect.h"
#include "effect/threads.h"

#include "base/banned.h"

typedef struct callback_driver {
    once_threads threads;
    const once_runner_callback *callback;
} callback_driver;

typedef struct lease {
    once_keeper keeper;
    const once_job *job;
} lease;

static int keep(once_keeper *keeper, int64_t lease_ms, once_error *err)
{
    (void)lease_ms; /* the pipeline extends the lease while the function runs */
    return atomic_load(&((const lease *)keeper)->job->killed) ? once__keeper_lost(err) : ONCE_OK;
}

static void callback_run(once_threads *threads, once_job *job)
{
    const once_runner_callback *callback = ((callback_driver *)threads)->callback;
    const once_item *item = job->item;
    assert(callback->function && item->decision.answer == ONCE_ANSWER_RUN); /* it cannot be asked about unknowns */
    const once_message *m = &item->message;
    lease held = {.keeper.extend = keep, .job = job};
    once_outward idempotency_key;
    once_item_outward_key(&once_runner_options_of(threads->driver.runner)->keying, item, idempotency_key);
    const once_delivery delivery = {.size = sizeof delivery,
                                    .key = item->request.key,
                                    .body = m->body,
                                    .sent_ms = m->sent_ms,
                                    .type = m->type,
                                    .headers = m->headers,
                                    .place = m->at.place,
                                    .point = m->at.point,
                                    .no_body = m->no_body};
    const once_call told = {.scope = &item->scope,
                            .delivery = &delivery,
                            .idempotency_key = idempotency_key,
                            .attempt = item->decision.attempt,
                            .failures = item->decision.failures,
                            .maybe_done = item->decision.maybe_done,
                            .internal = &held.keeper};
    job->outcome = callback->function(callback->user, &told, job->reply);
}

static int64_t callback_end(once_threads *threads, once_job *job, int64_t now_ms)
{
    char limit[ONCE_DURATION_TEXT];
    (void)now_ms;
    if (!atomic_load(&job->killed))
        once_log(ONCE_LOG_WARN, "callback_late",
                 "callback '%s' runs longer than its timeout of %s; a thread cannot be killed, it goes on",
                 ((callback_driver *)threads)->callback->name,
                 once_duration_format(threads->driver.handler->timeout_ms, limit));
    return ONCE_NEVER;
}

static void callback_close(once_threads *threads) { free(threads); }

static const once_threads_ops callback_ops = {
    .what = "the callback", .groups = true, .run = callback_run, .end = callback_end, .close = callback_close};

static int open_named(once_runner *runner, const once_handler_spec *handler, const once_runner_callback *callback,
                      once_effect_driver **out, once_error *err)
{
    callback_driver *driver = calloc(1, sizeof *driver);
    if (!driver) return once_no_memory(err, "for the handlers");
    driver->callback = callback;
    const int rc = once_threads_open(&driver->threads, &callback_ops, runner, handler, err);
    if (rc == ONCE_OK) *out = &driver->threads.driver;
    return rc;
}

static once_bytes callback_function(const once_handler_spec *handler)
{
    return ((const once_callback_spec *)handler->own)->name;
}

static int callback_open(once_runner *runner, const once_handler_spec *handler, once_effect_driver **out,
                         once_error *err)
{
    const once_runner_options *o = once_runner_options_of(runner);
    const once_bytes name = callback_function(handler);
    for (size_t i = 0; i < o->n_callbacks; i++)
        if (once__is_text(name, o->callbacks[i].name)) return open_named(runner, handler, &o->callbacks[i], out, err);
    return once_fail(
        err, ONCE_E_CONFIG,
        "%.*s:%d: callback '%.*s' is not registered; run it from a program that calls once_pipeline_callback",
        (int)o->spec->file.len, o->spec->file.data, handler->line, (int)name.len, name.data);
}

static once_effect_shown callback_describe(const once_handler_spec *handler)
{
    return (once_effect_shown){.what = "callback", .name = callback_function(handler)};
}

static const once_config_field callback_fields[] = {
    {.name = "callback",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__config_read_name,
     ONCE_CONFIG_AT(once_callback_spec, name),
     .shape = "name, 1 to 200 bytes",
     .example = "charge",
     .text = "Effect: a C function that the program which runs the pipeline registered under this name."},
};

static const once_effect_misfit callback_misfits[] = {
    {"already", "is for 'sql': a callback returns it"},
    {"rejected", "is for 'sql': a callback returns it"},
    {NULL, NULL},
};

const once_effect_ops once__effect_callback = {
    .name = "callback",
    .summary = "a C function of the program that runs the pipeline; fenced",
    .bits = ONCE_EFFECT_RUNS | ONCE_EFFECT_OUTSIDE,
    .fields = callback_fields,
    .n_fields = sizeof callback_fields / sizeof *callback_fields,
    .size = sizeof(once_callback_spec),
    .misfits = callback_misfits,
    .open = callback_open,
    .describe = callback_describe,
    .function = callback_function,
};
