/* `once check` of the source: what is doubtful about it, and the limits of its broker compared with the pipeline file.
 * A limit that could not be read is a warning, too: it is not known to be fine. */
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
} checked;

static void warn(void *user, const char *text)
{
    const checked *c = user;
    c->report(c->user, "source", text, true);
}

/* "FILE:LINE" of a handler. */
typedef struct place {
    char text[300];
} place;

static const char *at(const checked *c, const once_handler_spec *h, place *out)
{
    (void)snprintf(out->text, sizeof out->text, "%.*s:%d", c->spec->file.len < 200 ? (int)c->spec->file.len : 200,
                   c->spec->file.data, h->line);
    return out->text;
}

/* A message that is delivered again after its key was forgotten runs again or, if its time is known, becomes a
 * letter. */
static void compare_retention(const checked *c, const once_source_finding *f, const once_handler_spec *h)
{
    assert(f->limit == ONCE_LIMIT_RETENTION && f->setting);
    char text[900], kept[ONCE_DURATION_TEXT], remember[ONCE_DURATION_TEXT];
    place where;
    if (!once__remembers(c->spec, h) || h->remember_ms == ONCE_FOREVER || f->value <= h->remember_ms) return;
    (void)snprintf(text, sizeof text,
                   "%.200s keeps messages for %s (%.80s), longer than 'remember' (%s, %s): a message delivered again "
                   "after that time %s; raise 'remember', or lower %.80s",
                   f->of, once_duration_format(f->value, kept), f->setting,
                   once_duration_format(h->remember_ms, remember), at(c, h, &where),
                   once_spec_knows_times(c->spec) ? "becomes a dead letter" : "runs again", f->setting);
    warn((void *)c, text);
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

static void compare(const checked *c, const once_source_finding *f)
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
    case ONCE_LIMIT_RETENTION: return "'remember'";
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
    const checked *c = user;
    char text[900];
    if (f->limit == ONCE_LIMIT_NONE) {
        assert(f->text);
        c->report(c->user, "source", f->text, f->warning);
    } else if (f->text) {
        (void)snprintf(text, sizeof text, "could not read %.80s of %.200s: %.300s; it was not compared with %s",
                       f->setting, f->of, f->text, compared_with(f->limit));
        warn(user, text);
    } else {
        say(c, f);
        compare(c, f);
    }
}

void once__find_source(const once_pipeline *pipeline, const once_parts *parts, once_finding *report, void *user)
{
    const once_spec *spec = pipeline->spec;
    once_source *source = parts->source;
    checked c = {spec, report, user};
    once_error why;
    if (!(source->ops->bits(source) & ONCE_SOURCE_REDELIVERS))
        report(user, "source", "cannot deliver again: if the process is killed, messages in flight are lost", true);
    if (spec->source.bytes)
        report(user, "source", "bodies are bytes: they reach the effect as they came, and have no fields", false);
    const bool here = once__store_driver_bits(once_bytes_of(parts->store->ops->scheme)) & ONCE_DRIVER_HERE,
               shared = (parts->store->bits & ONCE_STORE_SHARED) && !here;
    once_source_doubts(&spec->source, shared && once_spec_uses_coordinates(spec), warn, &c);
    if (!source->ops->ask || source->ops->ask(source, on_limit, &c, &why) == ONCE_OK) return;
    char text[700];
    (void)snprintf(text, sizeof text, "could not read its limits, which were not compared with this file: %.500s",
                   why.text);
    warn(&c, text);
}
