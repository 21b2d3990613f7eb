/* `once check`: opens everything that a run would open, reads no message, and reports its findings. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/duration.h"
#include "core/retry.h"
#include "runtime/config_preset.h"
#include "runtime/known_store.h"
#include "runtime/runtime.h"

#include "base/banned.h"

static const struct {
    unsigned bit;
    const char *name;
} store_bits[] = {
    {ONCE_STORE_DURABLE, "durable"},  {ONCE_STORE_SHARED, "shared"}, {ONCE_STORE_TX, "transactions"},
    {ONCE_STORE_OWNS, "owns bodies"}, {ONCE_STORE_LANES, "lanes"},   {ONCE_STORE_CLOCK, "own clock"},
};

static void find_database(once_db *db, const char *topic, once_finding *report, void *user)
{
    char settings[200];
    if (once_db_describe(db, settings, sizeof settings, NULL) != ONCE_OK) return;
    report(user, topic, settings, false);
    if (strstr(settings, "fsync=off"))
        report(user, topic, "the server runs with fsync = off: a power cut may lose acknowledged commits; switch it on",
               true);
    if (strstr(settings, " standby="))
        report(user, topic,
               "this is a hot standby, which cannot be written to; connect to the primary; "
               "target_session_attrs=read-write finds it",
               true);
    if (strstr(settings, " pooler="))
        report(user, topic,
               "the connection goes through a pooler (such as PgBouncer, in any mode): statements are not prepared, "
               "and nothing depends on the session; a direct connection is faster",
               false);
    if (strstr(settings, "journal_mode=") && !strstr(settings, "journal_mode=wal"))
        report(user, topic,
               "the file is not in WAL mode; 'PRAGMA journal_mode=WAL' makes commits about twice as cheap and no "
               "longer blocks readers",
               true);
}

static void find_identity(const once_pipeline *pipeline, const once_parts *parts, once_finding *report, void *user)
{
    assert(once__store_lasts(parts->store));
    char id[ONCE_STORE_ID], why[500], text[700];
    once_known known;
    once__store_id(parts->store, id);
    if (once__known_read(pipeline, &known, NULL) != ONCE_OK) return;
    const bool kept = once__known_requires(&known);
    (void)snprintf(text, sizeof text, "store_id %s%s%s%.300s%s", id,
                   known.pinned[0] ? ", as 'store_id' in the file"
                   : kept          ? ", remembered from its first run"
                                   : "",
                   !kept && known.folder[0] ? ", not yet remembered in '" : "", !kept ? known.folder : "",
                   !kept && known.folder[0] ? "'" : "");
    report(user, "store", text, false);
    if (parts->created)
        report(user, "store", "there was no store here, so an empty one was created: every message is new", false);
    if (kept || once__known_try(&known, why, sizeof why)) return;
    (void)snprintf(text, sizeof text,
                   "%s: if the store is lost, a new one would silently replace it, and every message would run again; "
                   "put 'store_id: \"%s\"' into the file",
                   why, id);
    report(user, "store", text, true);
}

static void find_store(const once_pipeline *pipeline, const once_parts *parts, once_finding *report, void *user)
{
    assert(parts->store && pipeline->store_url[0]);
    once_backend *store = parts->store;
    once_buf text;
    char settings[400];
    once_buf_init(&text, 1000);
    once__store_show(pipeline->store_url, &text);
    if (pipeline->store_url[strlen(pipeline->store_url) - 1] != ':') once_buf_puts(&text, ":");
    for (size_t i = 0; i < sizeof store_bits / sizeof *store_bits; i++)
        if (store->bits & store_bits[i].bit) once_buf_printf(&text, " %s,", store_bits[i].name);
    if (text.len) text.data[text.len - 1] = 0;
    report(user, "store", text.data ? text.data : "", false);
    if (once__store_lasts(store)) find_identity(pipeline, parts, report, user);
    if (!(store->bits & ONCE_STORE_DURABLE))
        report(user, "store",
               "nothing is kept: after a restart every message is new again; use a durable store for real work", true);
    if (store->ops->describe) {
        store->ops->describe(store, settings, sizeof settings);
        report(user, "store", settings, false);
    }
    if (store->ops->doubt && store->ops->doubt(store, settings, sizeof settings)) report(user, "store", settings, true);
    if (once__store_db(store)) find_database(once__store_db(store), "database", report, user);
    once_buf_release(&text);
}

/* "fenced: never lost; ...": the mode of a handler, and what it promises. */
static void promise_of(const once_spec *spec, const once_handler_spec *h, bool durable, char *out, size_t size)
{
    assert(once_handler_runs(h) && size > 0);
    const bool external = once_handler_external(h);
    const char *kept = !durable   ? "everything is lost when the process ends"
                       : external ? "never lost"
                                  : "effect and outcome commit in one transaction";
    const char *end = "", *asks = "", *then = h->then ? "; its 'then' commits together with the outcome" : "";
    if (h->natural)
        kept = spec->version
                   ? "only the version of its lane is remembered: an older one is stale, an equal one runs again"
                   : "nothing is remembered: every delivery runs";
    if (external)
        end = h->hold      ? "; an attempt with an unknown outcome is held for 'once resolve'"
              : h->natural ? "; an attempt with an unknown outcome runs again"
                           : "; an attempt with an unknown outcome runs again with the same idempotency key";
    if (once_handler_asks(h)) asks = ", unless the lookup finds its effect";
    snprintf(out, size, "%s: %s%s%s%s", once_effect_mode(h), kept, then, end, asks);
}

/* Writes a URL without its password, or with the reference that the file has. */
static bool show_url(once_bytes written, once_buf *out)
{
    char *url = strndup(written.data, written.len);
    const bool fine = url && once__store_show(url, out);
    free(url);
    return fine;
}

/* "command './charge', up to 4 at a time, timeout 10s, ", or nothing for effects in the store. */
static void describe_external(const once_handler_spec *h, char *out, size_t size)
{
    char timeout[ONCE_DURATION_TEXT];
    once_buf url;
    out[0] = 0;
    if (!once_handler_external(h)) return;
    assert(h->slots > 0); /* the rules of a handler set it */
    once_buf_init(&url, 4096);
    const once_effect_shown shown = h->effect->describe(h);
    once_bytes name = shown.name;
    if (shown.url) name = show_url(shown.name, &url) ? once_buf_bytes(&url) : ONCE_BYTES("another database");
    snprintf(out, size, "%s '%.*s', up to %u at a time, timeout %s, ", shown.what, name.len < 120 ? (int)name.len : 120,
             name.data, h->slots, once_duration_format(h->timeout_ms, timeout));
    once_buf_release(&url);
}

/* The database of a handler with `sql: {url: ...}`: its settings, and whether it is the store's own database. */
static void find_other_database(const once_handler_spec *h, const char *topic, once_parts *parts, once_finding *report,
                                void *user)
{
    once_db *other = parts->runner ? once_runner_db(parts->runner, h) : NULL, *own = once__store_db(parts->store);
    char here[200], there[200];
    if (!other) return;
    find_database(other, topic, report, user);
    if (own && once_db_identity(own, here, sizeof here, NULL) == ONCE_OK &&
        once_db_identity(other, there, sizeof there, NULL) == ONCE_OK && strcmp(here, there) == 0)
        report(user, topic,
               "'url' names the database of the store; without 'url' the effect would be atomic, on the store's "
               "connection",
               true);
}

/* Of a natural handler only the versions of its lanes are remembered. */
bool once__remembers(const once_spec *spec, const once_handler_spec *h)
{
    return once_handler_runs(h) && (!h->natural || spec->version);
}

/* "12 attempts", "attempts for 1h", or both. */
static const char *budget_of(const once_retry *retry, char *out, size_t size)
{
    assert(retry->attempts > 0 && retry->for_ms >= 0);
    char time[ONCE_DURATION_TEXT];
    if (retry->for_ms > 0) once_duration_format(retry->for_ms, time);
    if (retry->attempts == ONCE_ANY_ATTEMPTS) snprintf(out, size, "attempts for %s", time);
    else if (retry->for_ms > 0)
        snprintf(out, size, "%u attempt%s within %s", retry->attempts, retry->attempts == 1 ? "" : "s", time);
    else snprintf(out, size, "%u attempt%s", retry->attempts, retry->attempts == 1 ? "" : "s");
    return out;
}

/* What pauses it (core/gate.h), and its rate. */
static void find_gate(const once_handler_spec *h, const char *topic, once_finding *report, void *user)
{
    const once_gate_spec *gate = &h->gate;
    char breaker[120] = "", dead[120] = "", rate[80] = "", time[ONCE_DURATION_TEXT], text[400];
    if (gate->breaker.of)
        snprintf(breaker, sizeof breaker,
                 ", or when %u%% of its last %u outcomes, all within %s, are failures (breaker)", gate->breaker.share,
                 gate->breaker.of, once_duration_format(gate->breaker.within_ms, time));
    if (gate->dead_share)
        snprintf(dead, sizeof dead, ", or when %u%% of its last %d are dead letters for one reason (dead_limit)",
                 gate->dead_share, ONCE_DEAD_OUTCOMES);
    if (gate->rate.n)
        snprintf(rate, sizeof rate, "; at most %u message%s begin%s in %s (rate)", gate->rate.n,
                 gate->rate.n == 1 ? "" : "s", gate->rate.n == 1 ? "s" : "",
                 once_duration_format(gate->rate.per_ms, time));
    snprintf(text, sizeof text, "paused when its effects cannot work%s%s%s", breaker, dead, rate);
    report(user, topic, text, false);
}

static void find_handlers(const once_spec *spec, once_parts *parts, once_finding *report, void *user)
{
    for (size_t i = 0; i < spec->n_handlers; i++) {
        const once_handler_spec *h = &spec->handlers[i];
        char topic[120], text[900], promise[300], external[300], budget[80], lease[ONCE_DURATION_TEXT],
            remember[ONCE_DURATION_TEXT];
        const once_bytes name = h->type.len ? h->type : ONCE_BYTES("(all)");
        const once_bytes key = once_template_text(h->key);
        const bool kept = once__remembers(spec, h);
        snprintf(topic, sizeof topic, "handler %.*s", name.len < 80 ? (int)name.len : 80, name.data);
        if (!once_handler_runs(h)) {
            snprintf(text, sizeof text, "every message becomes a dead letter: %.*s", (int)h->dead_reason.len,
                     h->dead_reason.data);
        } else {
            promise_of(spec, h, parts->store->bits & ONCE_STORE_DURABLE, promise, sizeof promise);
            describe_external(h, external, sizeof external);
            snprintf(text, sizeof text, "%s; %soperation %.*s, key %.*s, %s%s%slease %s, %s", promise, external,
                     (int)h->operation.len, h->operation.data, key.len < 120 ? (int)key.len : 120, key.data,
                     kept ? "remember " : "", kept ? once_duration_format(h->remember_ms, remember) : "",
                     kept ? ", " : "", once_duration_format(h->lease_ms, lease),
                     budget_of(&h->retry, budget, sizeof budget));
        }
        report(user, topic, text, false);
        if (once_handler_runs(h)) find_gate(h, topic, report, user);
        if (once_handler_runs(h) && !h->natural) {
            report(user, topic, once__key_catches(spec, h->key), false);
            if (once__key_doubt(spec, h, text, sizeof text)) report(user, topic, text, true);
        }
        find_other_database(h, topic, parts, report, user);
    }
}

/* What the preset sets, and what the file says instead. */
static void find_preset(const once_spec *spec, once_finding *report, void *user)
{
    once_bytes line, name;
    char topic[60], text[300];
    if (!spec->preset) return;
    (void)snprintf(topic, sizeof topic, "preset %s", spec->preset->name);
    for (size_t i = 0; once__preset_line(spec->preset, i, &line, &name); i++) {
        const bool own = spec->preset_own >> i & 1;
        (void)snprintf(text, sizeof text, "%.*s%s%.*s%s", own ? (int)name.len : 0, name.data,
                       own ? " is set in the file; without that it would be " : "", (int)line.len, line.data,
                       own ? "" : " (write it in the file to change it)");
        report(user, topic, text, false);
    }
}

/* Without `first`, the early versions of a lane may be taken for old ones. */
static void find_lanes(const once_spec *spec, once_finding *report, void *user)
{
    if (spec->gap_ms >= 0 && !spec->has_first)
        report(user, "lanes",
               "with 'gap', but without 'first', a lane begins with the first version seen, and lower ones that come "
               "later are stale; write version: {from: ..., first: 1}",
               true);
    if (spec->block) report(user, "lanes", "a dead letter blocks its lane until it is replayed or discarded", false);
}

enum { FEW_BATCHES = 4 };

/* A `waiting_max` that does not go with the other sizes of the pipeline. */
static void find_room(const once_spec *spec, once_finding *report, void *user)
{
    const once_waiting_size most = spec->waiting_max;
    char text[300];
    if (most.messages && most.messages / FEW_BATCHES < spec->batch_max) {
        (void)snprintf(text, sizeof text,
                       "waiting_max (%" PRIu64 " messages) is less than %d batches (batch.max, %u): fetching pauses "
                       "and resumes all the time; raise it, or lower batch.max",
                       most.messages, FEW_BATCHES, spec->batch_max);
        report(user, "waiting_max", text, true);
    }
    if (most.bytes && most.bytes < spec->message_max) {
        (void)snprintf(text, sizeof text,
                       "waiting_max.bytes (%" PRIu64
                       " B) is less than the largest message (message_max, %zu B): one such message pauses fetching; "
                       "raise waiting_max.bytes, or lower message_max",
                       most.bytes, spec->message_max);
        report(user, "waiting_max", text, true);
    }
    if (spec->gap_ms >= 0 && most.messages && most.messages < spec->batch_max) {
        (void)snprintf(text, sizeof text,
                       "waiting_max (%" PRIu64
                       " messages) is less than a batch (%u): while lanes wait for a missing version (gap), that "
                       "version may not be fetched, and they wait for all of gap.wait; raise waiting_max",
                       most.messages, spec->batch_max);
        report(user, "waiting_max", text, true);
    }
}

const char *once__place_at(const once_spec *spec, int line, once__place *out)
{
    assert(line > 0);
    (void)snprintf(out->text, sizeof out->text, "%.*s:%d", spec->file.len < 200 ? (int)spec->file.len : 200,
                   spec->file.data, line);
    return out->text;
}

/* `remember` is shorter than an outage that the retries are meant to survive. What is retried is in the store, and is
 * not forgotten. But what waits in the source meanwhile, or comes again, is then older than `remember`. */
static void find_short_memory(const once_spec *spec, const once_handler_spec *h, once_finding *report, void *user)
{
    char text[900], remember[ONCE_DURATION_TEXT], horizon[ONCE_DURATION_TEXT];
    once__place where, retry;
    const int64_t horizon_ms = once_retry_horizon_ms(&h->retry);
    if (h->remember_ms >= horizon_ms) return;
    once_duration_format(horizon_ms, horizon);
    const char *then = spec->time_optional && !(spec->source.bits & ONCE_SOURCE_TIMED)
                           ? "runs again or, if it has a time, becomes a dead letter"
                       : once_spec_knows_times(spec) ? "becomes a dead letter, even if it was never handled"
                                                     : "runs again if it was handled before";
    (void)snprintf(text, sizeof text,
                   "%s: 'remember' (%s%s) is shorter than all retries may take (%s, 'retry' %s%s): a message that is "
                   "delivered after that time %s; raise 'remember' to %s, or lower 'retry'",
                   once__place_at(spec, once__remember_place(h), &where),
                   once_duration_format(h->remember_ms, remember), h->remember_line ? "" : " by default", horizon,
                   h->retry_line ? "of " : "by default",
                   h->retry_line ? once__place_at(spec, h->retry_line, &retry) : "", then, horizon);
    report(user, "retention", text, true);
}

/* Retries that may go on for longer than messages are remembered, and messages without a time, so that retention cannot
 * be enforced. */
static void find_retention(const once_spec *spec, once_finding *report, void *user)
{
    bool any = false;
    for (size_t i = 0; i < spec->n_handlers; i++) {
        const once_handler_spec *h = &spec->handlers[i];
        if (!once__remembers(spec, h) || h->remember_ms == ONCE_FOREVER) continue;
        any = true;
        find_short_memory(spec, h, report, user);
    }
    const bool some = spec->time_optional && !(spec->source.bits & ONCE_SOURCE_TIMED);
    if (any && once_spec_knows_times(spec))
        report(user, "retention",
               some
                   ? "enforced for messages that have a time: an older one than remember becomes a dead letter instead "
                     "of running again"
                   : "enforced: a message older than remember becomes a dead letter instead of running again",
               false);
    else if (any)
        report(user, "retention",
               "not enforced: messages have no time, so a message delivered again after remember would run again; add "
               "time: \"${/...}\"",
               true);
}

static int find_all(once_pipeline *pipeline, once_parts *parts, once_finding *report, void *user, once_error *err)
{
    find_store(pipeline, parts, report, user);
    find_preset(pipeline->spec, report, user);
    find_handlers(pipeline->spec, parts, report, user);
    find_lanes(pipeline->spec, report, user);
    find_room(pipeline->spec, report, user);
    find_retention(pipeline->spec, report, user);
    const int rc = once__find_source(pipeline, parts, report, user, err);
    once__find_exposure(pipeline, report, user);
    if (rc != ONCE_OK) return rc;
    if (!(parts->store->bits & ONCE_STORE_LANES) && pipeline->spec->order)
        return once_fail(err, ONCE_E_CONFIG, "%.*s: 'order' needs a store with lanes", (int)pipeline->spec->file.len,
                         pipeline->spec->file.data);
    return ONCE_OK;
}

int once_pipeline_check(once_pipeline *pipeline, once_finding *report, void *user, once_error *err)
{
    if (!pipeline || !report)
        return once_fail(err, ONCE_E_USAGE, "once_pipeline_check needs a pipeline and a function for its findings");
    once_parts parts;
    int rc = once__parts_open(pipeline, NULL, &parts, err);
    if (rc != ONCE_OK) return rc;
    rc = find_all(pipeline, &parts, report, user, err);
    if (rc == ONCE_OK && parts.store->ops->inspect) {
        once_error why;
        rc = parts.store->ops->inspect(parts.store, &why);
        if (rc != ONCE_OK) once__at_line(pipeline, pipeline->spec->store_line, rc, &why, err);
    }
    if (rc == ONCE_OK) rc = once__clock_check(pipeline, parts.store, report, user, err);
    if (rc == ONCE_OK) rc = once__consumer_check_keys(pipeline, parts.store, ONCE_KEYS_LOOK, err);
    once__parts_close(&parts);
    return rc;
}
