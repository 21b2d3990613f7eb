/* `once check` of the source: what is doubtful about it, and the limits of its broker compared with the pipeline file.
 * A limit that could not be read is a warning, too: it is not known to be fine. What is too short is an error, because
 * messages would be lost, refused or handled again. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/duration.h"
#include "core/retry.h"
#include "runtime/runtime.h"

#include "base/banned.h"

#define KEPT                                                                                                           \
    "messages that wait for a retry, and dead letters, are in the store and are not dropped by time: how long the "    \
    "broker keeps messages does not matter for them"

typedef struct checked {
    const once_spec *spec;
    once_finding *report;
    void *user;
    bool kept; /* KEPT is said */
    int rc;    /* of the first error */
    once_error *err;
} checked;

static void warn(void *user, const char *text)
{
    const checked *c = user;
    c->report(c->user, "source", text, true);
}

/* What a field has, and where: "10s, FILE:LINE", or "10s by default". */
typedef struct said {
    char text[400];
} said;

static const char *say_value(const checked *c, const char *value, int line, said *out)
{
    once__place at;
    if (line > 0) (void)snprintf(out->text, sizeof out->text, "%s, %s", value, once__place_at(c->spec, line, &at));
    else (void)snprintf(out->text, sizeof out->text, "%s by default", value);
    return out->text;
}

static const char *say_time(const checked *c, int64_t ms, int line, said *out)
{
    char value[ONCE_DURATION_TEXT];
    return say_value(c, once_duration_format(ms, value), line, out);
}

/* The same in an error, which begins with the file: "10s, line 4". */
static const char *say_briefly(int64_t ms, int line, said *out)
{
    char value[ONCE_DURATION_TEXT];
    once_duration_format(ms, value);
    if (line > 0) (void)snprintf(out->text, sizeof out->text, "%s, line %d", value, line);
    else (void)snprintf(out->text, sizeof out->text, "%s by default", value);
    return out->text;
}

/* The first one ends the check, after all findings; others are told as warnings. */
static void wrong(checked *c, int line, const char *text)
{
    char whole[1800];
    once__place where;
    (void)snprintf(whole, sizeof whole, "%s: %s", once__place_at(c->spec, line, &where), text);
    if (c->rc == ONCE_OK) c->rc = once_fail(c->err, ONCE_E_CONFIG, "%s", whole);
    else warn(c, whole);
}

/* A message that is delivered again after its key was forgotten runs again or, if its time is known, becomes a
 * letter, even if it was never handled. */
static void compare_remembered(checked *c, const once_source_finding *f, const once_handler_spec *h)
{
    char text[900], kept[ONCE_DURATION_TEXT], remember[ONCE_DURATION_TEXT];
    if (!once__remembers(c->spec, h) || h->remember_ms == ONCE_FOREVER || f->value <= h->remember_ms) return;
    (void)snprintf(text, sizeof text,
                   "'remember' (%s%s) is shorter than %.200s keeps messages (%s, %.80s): a message that is delivered "
                   "after that time %s; raise 'remember' to %s%s%.80s",
                   once_duration_format(h->remember_ms, remember), h->remember_line ? "" : " by default", f->of,
                   once_duration_format(f->value, kept), f->setting,
                   once_spec_knows_times(c->spec) ? "becomes a dead letter, even if it was never handled"
                                                  : "runs again",
                   kept, f->value == ONCE_FOREVER ? "" : ", or lower ", f->value == ONCE_FOREVER ? "" : f->setting);
    wrong(c, once__remember_place(h), text);
}

/* A message that is in work is not acked, so that it comes again when its worker dies. It must still be there then.
 * The longer one of both times is the one to change: lowering the other one may not be enough. */
static void compare_attempt(checked *c, const once_source_finding *f, const once_handler_spec *h)
{
    char text[1500], kept[ONCE_DURATION_TEXT], needed[ONCE_DURATION_TEXT];
    said timeout, lease;
    int64_t needed_ms;
    const bool leased = h->lease_ms > h->timeout_ms;
    const int line = leased ? h->lease_line : h->timeout_line;
    if (!once_handler_runs(h) || f->value == ONCE_FOREVER) return;
    if (__builtin_add_overflow(h->timeout_ms, h->lease_ms, &needed_ms)) needed_ms = ONCE_FOREVER;
    if (f->value >= needed_ms) return;
    (void)snprintf(text, sizeof text,
                   "%.200s keeps messages for %s (%.80s), less than 'timeout' (%s) and 'lease' (%s) together (%s): a "
                   "message whose worker dies may be gone before it is delivered again; raise %.80s to %s, or lower "
                   "'%s'",
                   f->of, once_duration_format(f->value, kept), f->setting,
                   say_briefly(h->timeout_ms, h->timeout_line, &timeout),
                   say_briefly(h->lease_ms, h->lease_line, &lease), once_duration_format(needed_ms, needed), f->setting,
                   needed, leased ? "lease" : "timeout");
    wrong(c, line ? line : h->line, text);
}

/* What is retried is in the store, and so are letters. But the store takes 'waiting_max' messages; when the other side
 * is away and these wait, the next ones stay at the broker. An outage that the retries survive may delete them. */
static void compare_retries(const checked *c, const once_source_finding *f, const once_handler_spec *h)
{
    char text[1200], kept[ONCE_DURATION_TEXT], horizon[ONCE_DURATION_TEXT];
    said retry;
    const once_waiting_size most = c->spec->waiting_max;
    const int64_t horizon_ms = once_retry_horizon_ms(&h->retry);
    if (!once_handler_runs(h) || f->value >= horizon_ms || !(most.messages || most.bytes)) return;
    (void)snprintf(text, sizeof text,
                   "%.200s keeps messages for %s (%.80s), less than all retries may take ('retry': %s): if effects "
                   "fail for that long and the store is full ('waiting_max'), messages that wait at the broker are "
                   "deleted before they are read; raise %.80s, or lower 'retry'",
                   f->of, once_duration_format(f->value, kept), f->setting,
                   say_value(c, once_duration_format(horizon_ms, horizon), h->retry_line, &retry), f->setting);
    warn((void *)c, text);
}

static void compare_retention(checked *c, const once_source_finding *f, const once_handler_spec *h)
{
    assert(f->limit == ONCE_LIMIT_RETENTION && f->setting);
    compare_remembered(c, f, h);
    compare_attempt(c, f, h);
    compare_retries(c, f, h);
}

/* What the broker gives up goes to its own dead letters, not to ours. Each crash and each lost lease is a delivery. */
static void compare_deliveries(const checked *c, const once_source_finding *f, const once_handler_spec *h)
{
    assert(f->limit == ONCE_LIMIT_DELIVERIES && f->setting);
    char text[1200], attempts[24];
    said where;
    if (!once_handler_runs(h) || h->retry.attempts == ONCE_ANY_ATTEMPTS || f->value >= (int64_t)h->retry.attempts)
        return;
    (void)snprintf(attempts, sizeof attempts, "%u", h->retry.attempts);
    (void)snprintf(text, sizeof text,
                   "%.200s gives a message up after %" PRId64
                   " deliveries (%.80s), fewer than 'retry.attempts' (%s): a message that kills its worker each "
                   "time would be lost without a dead letter here; raise %.80s, or lower 'attempts'",
                   f->of, f->value, f->setting, say_value(c, attempts, h->retry_line, &where), f->setting);
    warn((void *)c, text);
}

static void compare_hold(const checked *c, const once_source_finding *f, const once_handler_spec *h)
{
    assert(f->limit == ONCE_LIMIT_HOLD && f->setting);
    char text[1200], hold[ONCE_DURATION_TEXT];
    said timeout;
    if (!once_handler_external(h) || f->value == ONCE_FOREVER || f->value >= h->timeout_ms) return;
    (void)snprintf(text, sizeof text,
                   "%.200s lets a consumer hold a message for %s at most (%.80s), less than 'timeout' (%s): it is "
                   "delivered again while its effect runs, and waits for its end; raise %.80s, or lower 'timeout'",
                   f->of, once_duration_format(f->value, hold), f->setting,
                   say_time(c, h->timeout_ms, h->timeout_line, &timeout), f->setting);
    warn((void *)c, text);
}

static void compare(checked *c, const once_source_finding *f)
{
    for (size_t i = 0; i < c->spec->n_handlers; i++) {
        const once_handler_spec *h = &c->spec->handlers[i];
        switch (f->limit) {
        case ONCE_LIMIT_RETENTION: compare_retention(c, f, h); break;
        case ONCE_LIMIT_DELIVERIES: compare_deliveries(c, f, h); break;
        case ONCE_LIMIT_HOLD: compare_hold(c, f, h); break;
        case ONCE_LIMIT_NONE: break;
        }
    }
}

static const char *compared_with(once_source_limit limit)
{
    switch (limit) {
    case ONCE_LIMIT_RETENTION: return "'remember', 'timeout', 'lease' and 'retry'";
    case ONCE_LIMIT_DELIVERIES: return "'retry.attempts'";
    case ONCE_LIMIT_HOLD: return "'timeout'";
    case ONCE_LIMIT_NONE: break;
    }
    return "anything";
}

static void say(const checked *c, const once_source_finding *f)
{
    assert(f->limit != ONCE_LIMIT_NONE && f->of);
    char text[600], value[ONCE_DURATION_TEXT];
    if (f->limit == ONCE_LIMIT_DELIVERIES) (void)snprintf(value, sizeof value, "%" PRId64, f->value);
    else once_duration_format(f->value, value);
    (void)snprintf(text, sizeof text, "%.200s: %.80s %s", f->of, f->setting, value);
    c->report(c->user, "source", text, false);
}

static void on_limit(void *user, const once_source_finding *f)
{
    checked *c = user;
    char text[900];
    if (f->limit == ONCE_LIMIT_NONE) {
        assert(f->text);
        if (f->error) wrong(c, c->spec->source.line, f->text);
        else c->report(c->user, "source", f->text, f->warning);
    } else if (f->text) {
        (void)snprintf(text, sizeof text, "could not read %.80s of %.200s: %.300s; it was not compared with %s",
                       f->setting, f->of, f->text, compared_with(f->limit));
        warn(user, text);
    } else {
        say(c, f);
        const bool bounded = f->limit == ONCE_LIMIT_RETENTION && f->value != ONCE_FOREVER;
        if (bounded && !c->kept) c->report(c->user, "source", KEPT, false);
        c->kept = c->kept || bounded;
        compare(c, f);
    }
}

int once__find_source(const once_pipeline *pipeline, const once_parts *parts, once_finding *report, void *user,
                      once_error *err)
{
    const once_spec *spec = pipeline->spec;
    once_source *source = parts->source;
    checked c = {.spec = spec, .report = report, .user = user, .err = err};
    once_error why;
    if (!(source->ops->bits(source) & ONCE_SOURCE_REDELIVERS))
        report(user, "source", "cannot deliver again: if the process is killed, messages in flight are lost", true);
    if (spec->source.bytes)
        report(user, "source", "bodies are bytes: they reach the effect as they came, and have no fields", false);
    const bool here = once__store_driver_bits(once_bytes_of(parts->store->ops->scheme)) & ONCE_DRIVER_HERE,
               shared = (parts->store->bits & ONCE_STORE_SHARED) && !here;
    once_source_doubts(&spec->source, shared && once_spec_uses_coordinates(spec), warn, &c);
    once_store_facts facts;
    once__store_facts_init(&facts, parts->store, spec->consumer);
    const int rc = source->ops->ask ? source->ops->ask(source, &facts.base, on_limit, &c, &why) : ONCE_OK;
    return rc == ONCE_OK ? c.rc : once__at_line(pipeline, spec->source.line, rc, &why, err);
}
