/* `once check` of the source: what is doubtful about it, and the limits of its broker compared with the pipeline file.
 * A limit that could not be read is a warning, too: it is not known to be fine. What is too short is an error, because
 * messages would be lost, refused or handled again. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/duration.h"
#include "runtime/runtime.h"

#include "base/banned.h"

typedef struct checked {
    const once_spec *spec;
    once_finding *report;
    void *user;
    int rc; /* of the first error */
    once_error *err;
} checked;

static void warn(void *user, const char *text)
{
    const checked *c = user;
    c->report(c->user, "source", text, true);
}

/* "FILE:LINE". */
typedef struct place {
    char text[300];
} place;

static const char *at_line(const checked *c, int line, place *out)
{
    (void)snprintf(out->text, sizeof out->text, "%.*s:%d", c->spec->file.len < 200 ? (int)c->spec->file.len : 200,
                   c->spec->file.data, line);
    return out->text;
}

static const char *at(const checked *c, const once_handler_spec *h, place *out) { return at_line(c, h->line, out); }

/* The first one ends the check, after all findings; others are told as warnings. */
static void wrong(checked *c, int line, const char *text)
{
    char whole[1200];
    place where;
    (void)snprintf(whole, sizeof whole, "%s: %s", at_line(c, line, &where), text);
    if (c->rc == ONCE_OK) c->rc = once_fail(c->err, ONCE_E_CONFIG, "%s", whole);
    else warn(c, whole);
}

/* A message that is delivered again after its key was forgotten runs again or, if its time is known, becomes a
 * letter, even if it was never handled. */
static void compare_remembered(checked *c, const once_source_finding *f, const once_handler_spec *h)
{
    char text[900], kept[ONCE_DURATION_TEXT], remember[ONCE_DURATION_TEXT];
    if (!once__remembers(c->spec, h) || h->remember_ms == ONCE_FOREVER || f->value <= h->remember_ms) return;
    (void)snprintf(
        text, sizeof text,
        "'remember' (%s) is shorter than %.200s keeps messages (%s, %.80s): a message that is delivered "
        "after that time %s; raise 'remember' to %s%s%.80s",
        once_duration_format(h->remember_ms, remember), f->of, once_duration_format(f->value, kept), f->setting,
        once_spec_knows_times(c->spec) ? "becomes a dead letter, even if it was never handled" : "runs again", kept,
        f->value == ONCE_FOREVER ? "" : ", or lower ", f->value == ONCE_FOREVER ? "" : f->setting);
    wrong(c, h->remember_line, text);
}

/* A message that is in work is not acked, so that it comes again when its worker dies. It must still be there then.
 * Retries and letters do not need it: the store keeps their bodies. */
static void compare_attempt(checked *c, const once_source_finding *f, const once_handler_spec *h)
{
    char text[900], kept[ONCE_DURATION_TEXT], needed[ONCE_DURATION_TEXT];
    int64_t needed_ms;
    if (!once_handler_runs(h) || f->value == ONCE_FOREVER) return;
    if (__builtin_add_overflow(h->timeout_ms, h->lease_ms, &needed_ms)) needed_ms = ONCE_FOREVER;
    if (f->value >= needed_ms) return;
    (void)snprintf(text, sizeof text,
                   "%.200s keeps messages for %s (%.80s), less than 'timeout' and 'lease' together (%s): a message "
                   "whose worker dies may be gone before it is delivered again; raise %.80s, or lower 'timeout'",
                   f->of, once_duration_format(f->value, kept), f->setting, once_duration_format(needed_ms, needed),
                   f->setting);
    wrong(c, h->line, text);
}

static void compare_retention(checked *c, const once_source_finding *f, const once_handler_spec *h)
{
    assert(f->limit == ONCE_LIMIT_RETENTION && f->setting);
    compare_remembered(c, f, h);
    compare_attempt(c, f, h);
}

/* What the broker gives up goes to its own dead letters, not to ours. Each crash and each lost lease is a delivery. */
static void compare_deliveries(const checked *c, const once_source_finding *f, const once_handler_spec *h)
{
    assert(f->limit == ONCE_LIMIT_DELIVERIES && f->setting);
    char text[900];
    place where;
    if (!once_handler_runs(h) || h->retry.attempts == ONCE_ANY_ATTEMPTS || f->value >= (int64_t)h->retry.attempts)
        return;
    (void)snprintf(text, sizeof text,
                   "%.200s gives a message up after %" PRId64
                   " deliveries (%.80s), fewer than 'retry.attempts' (%u, %s): a message that kills its worker each "
                   "time would be lost without a dead letter here; raise %.80s, or lower 'attempts'",
                   f->of, f->value, f->setting, h->retry.attempts, at(c, h, &where), f->setting);
    warn((void *)c, text);
}

static void compare_hold(const checked *c, const once_source_finding *f, const once_handler_spec *h)
{
    assert(f->limit == ONCE_LIMIT_HOLD && f->setting);
    char text[900], hold[ONCE_DURATION_TEXT], timeout[ONCE_DURATION_TEXT];
    place where;
    if (!once_handler_external(h) || f->value == ONCE_FOREVER || f->value >= h->timeout_ms) return;
    (void)snprintf(text, sizeof text,
                   "%.200s lets a consumer hold a message for %s at most (%.80s), less than 'timeout' (%s, %s): it is "
                   "delivered again while its effect runs, and waits for its end; raise %.80s, or lower 'timeout'",
                   f->of, once_duration_format(f->value, hold), f->setting,
                   once_duration_format(h->timeout_ms, timeout), at(c, h, &where), f->setting);
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
    case ONCE_LIMIT_RETENTION: return "'remember' and 'timeout'";
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
