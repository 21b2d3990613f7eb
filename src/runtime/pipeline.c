/* A pipeline from its file: loading, opening its parts, checking it, explaining a key. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/duration.h"
#include "base/failpoint.h"
#include "base/no_memory.h"
#include "base/usage.h"
#include "effect/value.h"
#include "once/version.h"
#include "runtime/audit.h"
#include "runtime/choice.h"
#include "runtime/config.h"
#include "runtime/known.h"
#include "runtime/lane_place.h"
#include "runtime/runtime.h"
#include "store/history.h"
#include "store/takeover.h"

#include "base/banned.h"

/* --- load, free --- */

int once_pipeline_load(const char *file, once_mistake *report, void *user, once_pipeline **out, once_error *err)
{
    if (!file || !out)
        return once_fail(err, ONCE_E_USAGE, "once_pipeline_load needs a file and a place for the pipeline");
    once_pipeline *pipeline = calloc(1, sizeof *pipeline);
    if (!pipeline) return once_no_memory(err, "for a pipeline");
    pipeline->env = once_env_real();
    atomic_init(&pipeline->stop, false);
    int rc = once_config_load_all(file, &pipeline->arena, report, user, &pipeline->spec, err);
    if (rc == ONCE_OK) {
        pipeline->store_url = strndup(pipeline->spec->store_url.data, pipeline->spec->store_url.len);
        if (!pipeline->store_url) rc = once_no_memory(err, "for a pipeline");
    }
    if (rc != ONCE_OK) {
        once_pipeline_free(pipeline);
        return rc;
    }
    *out = pipeline;
    return ONCE_OK;
}

void once_pipeline_free(once_pipeline *pipeline)
{
    if (!pipeline) return;
    once_arena_release(&pipeline->arena);
    for (size_t i = 0; i < pipeline->n_callbacks; i++) free((char *)pipeline->callbacks[i].name);
    free(pipeline->callbacks);
    free(pipeline->store_url);
    free(pipeline);
}

/* Something in it is not shown. */
static bool url_has_password(const char *url)
{
    once_buf shown;
    once_buf_init(&shown, SIZE_MAX / 4);
    const bool hidden = !once__store_show(url, &shown) || strcmp(shown.data, url) != 0;
    once_buf_release(&shown);
    return hidden;
}

/* A password in it, or in the variable that libpq reads. A password file is libpq's own. */
static bool url_has_secret(const char *url)
{
    return url_has_password(url) || (strncmp(url, "postgres", 8) == 0 && getenv("PGPASSWORD"));
}

/* What was found in the texts of a handler that are secrets or lead to one. */
typedef struct found_secrets {
    bool password; /* written out */
    bool secret;
} found_secrets;

static void look_for_secret(void *user, once_bytes text, bool url)
{
    found_secrets *found = user;
    if (once_is_reference(text)) {
        found->secret = true;
        return;
    }
    if (!url) return;
    char *copy = strndup(text.data, text.len);
    found->password |= copy && url_has_password(copy);
    found->secret |= !copy || url_has_secret(copy);
    free(copy);
}

static found_secrets secrets_of(const once_spec *spec)
{
    found_secrets found = {0};
    for (size_t i = 0; i < spec->n_handlers; i++) once_effect_secrets(&spec->handlers[i], look_for_secret, &found);
    return found;
}

bool once__file_has_password(const once_pipeline *pipeline)
{
    return url_has_password(pipeline->store_url) || secrets_of(pipeline->spec).password;
}

bool once_pipeline_has_secrets(const once_pipeline *pipeline)
{
    if (!pipeline) return false;
    if (pipeline->spec->salt.len || pipeline->salt.len) return true;
    return url_has_secret(pipeline->store_url) || secrets_of(pipeline->spec).secret;
}

static bool names_callback(const once_spec *spec, const char *name)
{
    for (size_t i = 0; i < spec->n_handlers; i++) {
        const once_bytes callback = once_effect_function(&spec->handlers[i]);
        if (callback.len == strlen(name) && memcmp(callback.data, name, callback.len) == 0) return true;
    }
    return false;
}

int once_pipeline_callback(once_pipeline *pipeline, const char *name, once_callback *function, void *user,
                           once_error *err)
{
    if (!pipeline || !name || !function)
        return once_fail(err, ONCE_E_USAGE, "once_pipeline_callback needs a pipeline, a name and a function");
    if (!names_callback(pipeline->spec, name))
        return once_fail(err, ONCE_E_USAGE, "no handler of '%.*s' says 'callback: %s'", (int)pipeline->spec->file.len,
                         pipeline->spec->file.data, name);
    for (size_t i = 0; i < pipeline->n_callbacks; i++)
        if (strcmp(pipeline->callbacks[i].name, name) == 0)
            return once_fail(err, ONCE_E_USAGE, "callback '%s' was registered before", name);
    once_hands_callback *callbacks = reallocarray(pipeline->callbacks, pipeline->n_callbacks + 1, sizeof *callbacks);
    if (callbacks) pipeline->callbacks = callbacks;
    char *copy = callbacks ? strdup(name) : NULL;
    if (!copy) return once_no_memory(err, "for a callback");
    callbacks[pipeline->n_callbacks++] = (once_hands_callback){.name = copy, .function = function, .user = user};
    return ONCE_OK;
}

/* --- the salt of idempotency keys --- */

int once_pipeline_idempotency_salt(once_pipeline *pipeline, once_bytes salt, once_error *err)
{
    if (!pipeline || once_bytes_lie(salt))
        return once_fail(err, ONCE_E_USAGE, "once_pipeline_idempotency_salt needs a pipeline and a salt");
    if (!once_salt_fits(salt))
        return once_fail(err, ONCE_E_USAGE,
                         "a salt of idempotency keys has at least %u bytes, and not only white space", ONCE_SALT_MIN);
    if (pipeline->spec->salt.len)
        return once_fail(err, ONCE_E_USAGE, "'%.*s' says 'idempotency_salt' itself", (int)pipeline->spec->file.len,
                         pipeline->spec->file.data);
    return once_arena_copy(&pipeline->arena, salt, &pipeline->salt) ? ONCE_OK : once_no_memory(err, "for a salt");
}

int once__salt_read(once_pipeline *pipeline, once_error *err)
{
    const once_spec *spec = pipeline->spec;
    const once_written said = {.name = ONCE_BYTES("idempotency_salt"), .value = spec->salt, .line = spec->salt_line};
    once_bytes salt;
    if (spec->salt.len == 0 || pipeline->salt.len) return ONCE_OK;
    int rc = once_value_read(spec, pipeline->env, &said, &pipeline->arena, &salt, err);
    if (rc != ONCE_OK) return rc;
    if (!once_salt_fits(salt))
        return once_fail(err, ONCE_E_CONFIG,
                         "%.*s:%d: 'idempotency_salt' has fewer than %u bytes, or only white space; take random ones",
                         (int)spec->file.len, spec->file.data, spec->salt_line, ONCE_SALT_MIN);
    return once_arena_copy(&pipeline->arena, salt, &pipeline->salt) ? ONCE_OK : once_no_memory(err, "for a salt");
}

/* --- parts --- */

static int at_line(const once_pipeline *pipeline, int line, int rc, const once_error *why, once_error *err)
{
    return once_fail(err, rc, "%.*s:%d: %s", (int)pipeline->spec->file.len, pipeline->spec->file.data, line, why->text);
}

static once_db *store_db(once_store *store) { return store->ops->db ? store->ops->db(store) : NULL; }

static bool has_sql(const once_spec *spec)
{
    for (size_t i = 0; i < spec->n_handlers; i++)
        if (once_handler_inside(&spec->handlers[i])) return true;
    return false;
}

static int run_init(const once_spec *spec, once_db *db, once_error *err)
{
    once_error why;
    once_db_limit(db, spec->timeout_ms);
    const int rc = once_db_script(db, spec->init, &why);
    once_db_limit(db, 0);
    return rc == ONCE_OK ? rc
                         : once_fail(err, rc == ONCE_E_SCHEMA ? ONCE_E_CONFIG : rc, "%.*s: init: %s",
                                     (int)spec->file.len, spec->file.data, why.text);
}

/* A run always runs `init`. Who only looks does so when something is missing: it would have to wait for whoever writes.
 */
static int needs_init(const once_pipeline *pipeline, once_db *db, bool *needed, once_error *err)
{
    const once_spec *spec = pipeline->spec;
    once_error why;
    *needed = db && spec->init.len;
    if (!*needed || pipeline->running) return ONCE_OK;
    const int rc = once_db_script_look(db, spec->init, needed, &why);
    return rc == ONCE_OK ? rc : once_fail(err, rc, "%.*s: init: %s", (int)spec->file.len, spec->file.data, why.text);
}

static int open_effects(once_pipeline *pipeline, bool create, once_parts *parts, once_error *err)
{
    const once_spec *spec = pipeline->spec;
    once_db *db = store_db(parts->store);
    once_error why;
    if (!db && has_sql(spec))
        return once_fail(err, ONCE_E_CONFIG,
                         "%.*s:%d: store '%s:' has no database that SQL effects could run in; use 'sqlite:PATH', or "
                         "name a database in 'sql: {url: ...}'",
                         (int)spec->file.len, spec->file.data, spec->store_line, parts->store->ops->scheme);
    bool init = false;
    int rc = create ? needs_init(pipeline, db, &init, err) : ONCE_OK;
    if (rc == ONCE_OK && init) rc = run_init(spec, db, err);
    if (rc != ONCE_OK) return rc;
    rc = once_effects_open(spec, &parts->keying, db, &parts->effects, &why);
    if (rc == ONCE_E_SCHEMA && create && !init && spec->init.len) {
        rc = run_init(spec, db, err);
        if (rc != ONCE_OK) return rc;
        rc = once_effects_open(spec, &parts->keying, db, &parts->effects, &why);
    }
    /* Before the first message, a missing table is a mistake of the configuration. */
    return rc == ONCE_OK ? rc : once_fail(err, rc == ONCE_E_SCHEMA ? ONCE_E_CONFIG : rc, "%s", why.text);
}

/* Retries, parked followers and dead letters live in the store; the source is told that it may forget them. */
static int check_store(const once_pipeline *pipeline, once_store *store, once_error *err)
{
    char kept[400] = "";
    if (store->ops->batch_max && pipeline->spec->batch_max > store->ops->batch_max)
        return once_fail(err, ONCE_E_CONFIG,
                         "%.*s:%d: store '%s:' takes up to %u messages at once; write 'batch: {max: %u}' or less",
                         (int)pipeline->spec->file.len, pipeline->spec->file.data, pipeline->spec->store_line,
                         store->ops->scheme, store->ops->batch_max, store->ops->batch_max);
    if (store->ops->bits & ONCE_STORE_OWNS) return ONCE_OK;
    if (store->ops->describe) store->ops->describe(store, kept, sizeof kept);
    return once_fail(err, ONCE_E_CONFIG, "%.*s:%d: store '%s:' could lose messages that it was given (%s)",
                     (int)pipeline->spec->file.len, pipeline->spec->file.data, pipeline->spec->store_line,
                     store->ops->scheme, kept);
}

typedef struct opening {
    once_pipeline *pipeline;
    bool create;
    once_parts *parts;
} opening;

/* `once check` says when it made one: where one was lost, that is a new one. */
static int open_or_make(const opening *o, const once_known *known, once_error *err)
{
    once_pipeline *pipeline = o->pipeline;
    const bool may_make = o->create && !once__known_requires(known);
    once_store_options options = {.size = sizeof options,
                                  .env = pipeline->env,
                                  .create = may_make && pipeline->running,
                                  .consumer = pipeline->spec->consumer};
    if (pipeline->running) options.patience = (once_patience){once__patience_over, pipeline};
    int rc = once__store_open(pipeline->store_url, &options, &o->parts->store, err);
    if (rc != ONCE_E_NO_STORE || !may_make || pipeline->running) return rc;
    options.create = true;
    rc = once__store_open(pipeline->store_url, &options, &o->parts->store, err);
    o->parts->made = rc == ONCE_OK;
    return rc;
}

/* The store, and what is prepared in it. */
static int open_store(void *user, once_error *err)
{
    const opening *o = user;
    once_pipeline *pipeline = o->pipeline;
    once_error why;
    once_known known;
    int rc = once__known_read(pipeline, &known, err);
    if (rc != ONCE_OK) return rc;
    if (pipeline->new_store) once__known_allow(&known);
    rc = open_or_make(o, &known, &why);
    if ((rc == ONCE_E_NO_STORE || rc == ONCE_E_NOT_OURS) && once__known_requires(&known))
        return once__known_missing(pipeline, &known, &why, err);
    if (rc != ONCE_OK) return at_line(pipeline, pipeline->spec->store_line, rc, &why, err);
    o->parts->keying = once__keying_of(pipeline, o->parts->store);
    rc = once__known_compare(pipeline, &known, o->parts->store, err);
    if (rc == ONCE_OK) rc = check_store(pipeline, o->parts->store, err);
    if (rc == ONCE_OK) rc = open_effects(pipeline, o->create, o->parts, err);
    if (rc == ONCE_OK) return rc;
    once__parts_close(o->parts);
    *o->parts = (once_parts){0};
    return rc;
}

/* What carries out effects elsewhere; a database there is waited for as that of the store. */
static int open_hands(void *user, once_error *err)
{
    const opening *o = user;
    once_pipeline *pipeline = o->pipeline;
    once_hands_options hands = {.spec = pipeline->spec,
                                .env = pipeline->env,
                                .keying = o->parts->keying,
                                .callbacks = pipeline->callbacks,
                                .n_callbacks = pipeline->n_callbacks};
    if (pipeline->running) hands.opening = (once_patience){once__patience_over, pipeline};
    return once_hands_open(&hands, &o->parts->hands, err);
}

int once__parts_open(once_pipeline *pipeline, bool create, once_parts *out, once_error *err)
{
    once_parts parts = {0};
    once_error why;
    opening opened = {pipeline, create, &parts};
    int rc = once__salt_read(pipeline, err);
    if (rc != ONCE_OK) return rc;
    rc = pipeline->running ? once__persist(pipeline, open_store, &opened, err) : open_store(&opened, err);
    if (rc != ONCE_OK) return rc;
    if (once_hands_needed(pipeline->spec))
        rc = pipeline->running ? once__persist(pipeline, open_hands, &opened, err) : open_hands(&opened, err);
    if (rc == ONCE_OK) {
        rc = once_source_file.open(pipeline->spec, pipeline->env, &parts.source, &why);
        if (rc != ONCE_OK) at_line(pipeline, pipeline->spec->source_line, rc, &why, err);
    }
    if (rc != ONCE_OK) {
        once__parts_close(&parts);
        return rc;
    }
    *out = parts;
    return ONCE_OK;
}

void once__parts_close(once_parts *parts)
{
    if (parts->source) parts->source->ops->close(parts->source);
    once_hands_close(parts->hands);
    once_effects_close(parts->effects);
    once__store_close(parts->store);
}

/* --- check --- */

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
        report(user, topic,
               "the server runs with fsync = off: a power cut may take back what was acknowledged; switch it on", true);
    if (strstr(settings, " standby="))
        report(user, topic,
               "this is a hot standby, where nothing can be written; connect to the primary; "
               "target_session_attrs=read-write finds it",
               true);
    if (strstr(settings, " pooler="))
        report(user, topic,
               "a pooler is in between (PgBouncer in any mode looks so): statements are sent as text and not prepared, "
               "and nothing depends"
               " on the session; without one the same work costs less",
               false);
    if (strstr(settings, "journal_mode=") && !strstr(settings, "journal_mode=wal"))
        report(user, topic,
               "the file is not in WAL mode; 'PRAGMA journal_mode=WAL' on it would make commits about twice as cheap "
               "and let readers go on",
               true);
}

static void find_identity(const once_pipeline *pipeline, const once_parts *parts, once_finding *report, void *user)
{
    char id[ONCE_STORE_ID], why[500], text[700];
    once_known known;
    once__store_id(parts->store, id);
    if (once__known_read(pipeline, &known, NULL) != ONCE_OK) return;
    const bool kept = once__known_requires(&known);
    (void)snprintf(text, sizeof text, "store_id %s%s%s%.300s%s", id,
                   known.said[0] ? ", as the file says"
                   : kept        ? ", remembered from its first run"
                                 : "",
                   !kept && known.folder[0] ? ", not known yet in '" : "", !kept ? known.folder : "",
                   !kept && known.folder[0] ? "'" : "");
    report(user, "store", text, false);
    if (parts->made)
        report(user, "store", "there was none here, and this one was made: every message is new in it", false);
    if (kept || once__known_try(&known, why, sizeof why)) return;
    (void)snprintf(text, sizeof text,
                   "%s: a store that is lost would be made anew without a word, and every message would run again; put "
                   "'store_id: \"%s\"'"
                   " into the file",
                   why, id);
    report(user, "store", text, true);
}

static void find_store(const once_pipeline *pipeline, const once_parts *parts, once_finding *report, void *user)
{
    once_store *store = parts->store;
    once_buf text;
    char settings[400];
    once_buf_init(&text, 1000);
    once__store_show(pipeline->store_url, &text);
    if (strcmp(pipeline->store_url, "memory:") != 0) once_buf_puts(&text, ":");
    for (size_t i = 0; i < sizeof store_bits / sizeof *store_bits; i++)
        if (store->ops->bits & store_bits[i].bit) once_buf_printf(&text, " %s,", store_bits[i].name);
    if (text.len) text.data[text.len - 1] = 0;
    report(user, "store", text.data ? text.data : "", false);
    if (once__keeps(store)) find_identity(pipeline, parts, report, user);
    if (!(store->ops->bits & ONCE_STORE_DURABLE))
        report(user, "store",
               "nothing is kept: after a restart every message is new again; use a store that lasts for real work",
               true);
    if (store->ops->describe) {
        store->ops->describe(store, settings, sizeof settings);
        report(user, "store", settings, false);
    }
    if (store->ops->doubt && store->ops->doubt(store, settings, sizeof settings)) report(user, "store", settings, true);
    if (store_db(store)) find_database(store_db(store), "database", report, user);
    once_buf_release(&text);
}

/* "fenced: never lost; ...": the mode of a handler, and what it means. */
static void promise_of(const once_spec *spec, const once_handler_spec *h, bool durable, char *out, size_t size)
{
    const bool external = once_handler_external(h);
    const char *kept = !durable   ? "everything is forgotten with the process"
                       : external ? "never lost"
                                  : "effect and outcome commit in one transaction";
    const char *end = "";
    if (h->natural)
        kept = spec->version
                   ? "only the version of its lane is remembered: an older one is stale, an equal one runs again"
                   : "nothing is remembered: every delivery runs";
    if (external)
        end = h->hold      ? "; a try whose end is not known is held for 'once resolve'"
              : h->natural ? "; a try whose end is not known runs again"
                           : "; a try whose end is not known runs again with the same idempotency key";
    snprintf(out, size, "%s: %s%s", once_effect_mode(h), kept, end);
}

/* A URL as it may be shown: without its password, or as the reference that the file has. */
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
    once_buf_init(&url, 4096);
    const once_effect_shown shown = h->effect->describe(h);
    once_bytes name = shown.name;
    if (shown.url) name = show_url(shown.name, &url) ? once_buf_bytes(&url) : ONCE_BYTES("another database");
    snprintf(out, size, "%s '%.*s', up to %u at a time, timeout %s, ", shown.what, name.len < 120 ? (int)name.len : 120,
             name.data, h->slots, once_duration_format(h->timeout_ms, timeout));
    once_buf_release(&url);
}

/* What is to be known of the database of a handler with SQL elsewhere, if it is elsewhere. */
static void find_other_database(const once_handler_spec *h, const char *topic, once_parts *parts, once_finding *report,
                                void *user)
{
    once_db *other = parts->hands ? once_hands_db(parts->hands, h) : NULL, *own = store_db(parts->store);
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

/* Of a natural handler there is something to remember only when its lane has versions. */
static bool remembers(const once_spec *spec, const once_handler_spec *h)
{
    return once_handler_runs(h) && (!h->natural || spec->version);
}

/* "12 attempts", "attempts for 1h", or both. */
static const char *budget_of(const once_retry *retry, char *out, size_t size)
{
    char time[ONCE_DURATION_TEXT];
    if (retry->for_ms > 0) once_duration_format(retry->for_ms, time);
    if (retry->attempts == ONCE_ANY_ATTEMPTS) snprintf(out, size, "attempts for %s", time);
    else if (retry->for_ms > 0)
        snprintf(out, size, "%u attempt%s, for %s at most", retry->attempts, retry->attempts == 1 ? "" : "s", time);
    else snprintf(out, size, "%u attempt%s", retry->attempts, retry->attempts == 1 ? "" : "s");
    return out;
}

/* How long all retries of a message may take: until the number of attempts or their time is over, whichever comes
 * first. */
static int64_t horizon_of(const once_retry *retry)
{
    int64_t horizon_ms = 0, bound_ms = retry->min_ms, until_ms = INT64_MAX;
    if (retry->for_ms > 0 && __builtin_add_overflow(retry->for_ms, retry->max_ms, &until_ms)) until_ms = INT64_MAX;
    for (uint32_t k = 1; k < retry->attempts && horizon_ms < until_ms; k++) {
        if (__builtin_add_overflow(horizon_ms, bound_ms, &horizon_ms)) return INT64_MAX;
        bound_ms = bound_ms > retry->max_ms / 2 ? retry->max_ms : bound_ms * 2;
    }
    return horizon_ms < until_ms ? horizon_ms : until_ms;
}

static void find_handlers(const once_spec *spec, once_parts *parts, once_finding *report, void *user)
{
    for (size_t i = 0; i < spec->n_handlers; i++) {
        const once_handler_spec *h = &spec->handlers[i];
        char topic[120], text[900], promise[300], external[300], budget[80], lease[ONCE_DURATION_TEXT],
            remember[ONCE_DURATION_TEXT];
        const once_bytes name = h->type.len ? h->type : ONCE_BYTES("(all)");
        const once_bytes key = once_template_text(h->key);
        const bool kept = remembers(spec, h);
        snprintf(topic, sizeof topic, "handler %.*s", name.len < 80 ? (int)name.len : 80, name.data);
        if (!once_handler_runs(h)) {
            snprintf(text, sizeof text, "every message becomes a dead letter: %.*s", (int)h->dead_reason.len,
                     h->dead_reason.data);
        } else {
            promise_of(spec, h, parts->store->ops->bits & ONCE_STORE_DURABLE, promise, sizeof promise);
            describe_external(h, external, sizeof external);
            snprintf(text, sizeof text, "%s; %soperation %.*s, key %.*s, %s%s%slease %s, %s", promise, external,
                     (int)h->operation.len, h->operation.data, key.len < 120 ? (int)key.len : 120, key.data,
                     kept ? "remember " : "", kept ? once_duration_format(h->remember_ms, remember) : "",
                     kept ? ", " : "", once_duration_format(h->lease_ms, lease),
                     budget_of(&h->retry, budget, sizeof budget));
        }
        report(user, topic, text, false);
        find_other_database(h, topic, parts, report, user);
    }
}

/* Where a lane begins is not said, so that its first versions may be taken for old ones. */
static void find_lanes(const once_spec *spec, once_finding *report, void *user)
{
    if (spec->gap_ms >= 0 && !spec->has_first)
        report(user, "lanes",
               "'gap' does not know where a lane begins: the version that is seen first is accepted, and lower ones "
               "that come"
               " later are stale; say version: {from: ..., first: 1}",
               true);
    if (spec->block) report(user, "lanes", "a dead letter holds its lane until it is replayed or discarded", false);
}

/* A budget of retries that outlives what is remembered, or no time to enforce retention by. */
static void find_retention(const once_spec *spec, once_finding *report, void *user)
{
    char text[300], a[ONCE_DURATION_TEXT], b[ONCE_DURATION_TEXT];
    bool any = false;
    for (size_t i = 0; i < spec->n_handlers; i++) {
        const once_handler_spec *h = &spec->handlers[i];
        if (!remembers(spec, h) || h->remember_ms == ONCE_FOREVER) continue;
        any = true;
        const int64_t horizon = horizon_of(&h->retry);
        if (h->remember_ms < horizon) {
            snprintf(text, sizeof text,
                     "remember (%s) is shorter than all retries may take (%s); a redelivery after that would run again",
                     once_duration_format(h->remember_ms, a), once_duration_format(horizon, b));
            report(user, "retention", text, true);
        }
    }
    if (any && spec->time)
        report(user, "retention",
               "enforced: a message older than remember becomes a dead letter instead of running again", false);
    else if (any)
        report(user, "retention",
               "not enforced: no message time is known, so a message that comes back after remember would run again; "
               "say time: \"${/...}\"",
               true);
}

bool once__uses_coordinates(const once_spec *spec)
{
    const once_template *const common[] = {spec->tenant, spec->type, spec->order};
    bool uses = false;
    for (size_t i = 0; i < sizeof common / sizeof *common; i++)
        uses |= common[i] && once_template_uses_coordinates(common[i]);
    for (size_t i = 0; i < spec->n_handlers; i++)
        uses |= spec->handlers[i].key && once_template_uses_coordinates(spec->handlers[i].key);
    return uses;
}

static void find_source(const once_spec *spec, const once_parts *parts, once_finding *report, void *user)
{
    const unsigned bits = parts->store->ops->bits;
    const bool redelivers = parts->source->ops->bits(parts->source) & ONCE_SOURCE_REDELIVERS;
    if (!redelivers)
        report(user, "source", "cannot deliver again: what is in flight when the process is killed is lost", true);
    if (spec->source.follow && !spec->source.cursor)
        report(user, "source",
               "'follow' without 'cursor': a start reads only the file that has the path then, and not what was left "
               "of one that was"
               " rotated away; say 'cursor: true'",
               true);
    if (once__uses_coordinates(spec) && (bits & ONCE_STORE_SHARED) && strcmp(parts->store->ops->scheme, "sqlite") != 0)
        report(user, "source",
               "${coordinates} are the path as it is written and the line: if machines that share this store each have "
               "a file of that path,"
               " their lines are taken for the same; give each machine a consumer of its own, or a tenant or key with "
               "the host in it",
               true);
}

static int find_all(once_pipeline *pipeline, once_parts *parts, once_finding *report, void *user, once_error *err)
{
    find_store(pipeline, parts, report, user);
    find_handlers(pipeline->spec, parts, report, user);
    find_lanes(pipeline->spec, report, user);
    find_retention(pipeline->spec, report, user);
    find_source(pipeline->spec, parts, report, user);
    once__find_exposure(pipeline, report, user);
    if (!(parts->store->ops->bits & ONCE_STORE_LANES) && pipeline->spec->order)
        return once_fail(err, ONCE_E_CONFIG, "%.*s: 'order' needs a store with lanes", (int)pipeline->spec->file.len,
                         pipeline->spec->file.data);
    return ONCE_OK;
}

int once_pipeline_check(once_pipeline *pipeline, once_finding *report, void *user, once_error *err)
{
    if (!pipeline || !report)
        return once_fail(err, ONCE_E_USAGE, "once_pipeline_check needs a pipeline and a function for its findings");
    once_parts parts;
    int rc = once__parts_open(pipeline, true, &parts, err);
    if (rc != ONCE_OK) return rc;
    rc = find_all(pipeline, &parts, report, user, err);
    if (rc == ONCE_OK && parts.store->ops->inspect) {
        once_error why;
        rc = parts.store->ops->inspect(parts.store, &why);
        if (rc != ONCE_OK) at_line(pipeline, pipeline->spec->store_line, rc, &why, err);
    }
    if (rc == ONCE_OK) rc = once__clock_check(pipeline, parts.store, report, user, err);
    if (rc == ONCE_OK) rc = once__memory_check_scope(pipeline, parts.store, ONCE_SCOPE_LOOK, err);
    once__parts_close(&parts);
    return rc;
}

/* --- verify --- */

enum { PROGRESS_NS = 1000000000, ALL_TOLD = 20 }; /* of so many there may be more that no store tells */

typedef struct verifying {
    once_finding *report;
    void *user;
    size_t n;
    const once_env *env;
    int64_t told_ns;
} verifying;

static void on_read(void *user, uint64_t n)
{
    verifying *v = user;
    char text[60];
    const int64_t now_ns = once_env_mono_ns(v->env);
    if (now_ns - v->told_ns < PROGRESS_NS) return;
    v->told_ns = now_ns;
    snprintf(text, sizeof text, "%llu keys were read so far", (unsigned long long)n);
    v->report(v->user, "progress", text, false);
}

static void on_damage(void *user, const char *text)
{
    verifying *v = user;
    v->n++;
    v->report(v->user, "damage", text, true);
}

/* What may be said when nothing was found. */
static const char *verified(const once_store_ops *ops)
{
    if (ops->verify) return ops->verified ? ops->verified : "all of it was read and is whole";
    if (strcmp(ops->scheme, "memory") == 0) return "is in memory; there is nothing to read";
    return "was not read: it has no checksums of ours, its server checks its own pages";
}

int once_pipeline_verify(once_pipeline *pipeline, once_finding *report, void *user, once_error *err)
{
    if (!pipeline || !report)
        return once_fail(err, ONCE_E_USAGE, "once_pipeline_verify needs a pipeline and a function for its findings");
    verifying v = {.report = report, .user = user, .env = pipeline->env, .told_ns = once_env_mono_ns(pipeline->env)};
    once_store *store;
    int rc = once__known_open_store(pipeline, &store, err);
    if (rc != ONCE_OK) return rc;
    const once_store_ops *ops = store->ops;
    store->progress = on_read;
    store->progress_user = &v;
    if (ops->verify) rc = ops->verify(store, on_damage, &v, err);
    once__store_close(store);
    if (rc == ONCE_OK && v.n)
        return once_fail(err, ONCE_E_CORRUPT, "the store is damaged in %s%zu place%s; restore it from a backup%s",
                         v.n < ALL_TOLD ? "" : "at least ", v.n, v.n == 1 ? "" : "s",
                         ops->repair ? ", or let 'once check --repair' mend what it can" : "");
    if (rc == ONCE_OK) report(user, "store", verified(ops), false);
    return rc;
}

/* --- explain --- */

int once__entry_by_key(once_store *store, const once_scope *scope, once_bytes key, once_entry *out, once_arena *arena,
                       once_error *err)
{
    const int rc = store->ops->get(store, once_key_id(store->secret, scope, key), out, arena, err);
    if (rc != ONCE_OK || out->state != ONCE_STATE_ABSENT || !once_key_looks_long(key)) return rc;
    return store->ops->get(store, once_long_key_id(store->secret, scope, key), out, arena, err);
}

/* The reason of an entry: its own, and what it waits for in its lane, or its lane for it. */
static int explain_lane(once_store *store, once_entry *entry, once_arena *arena, once_error *err)
{
    once_bytes words;
    const int rc = store->ops->why(store, entry->id, &words, arena, err);
    if (rc != ONCE_OK || words.len == 0) return rc;
    if (entry->reason.len) {
        once_bytes parts[] = {entry->reason, ONCE_BYTES("; "), words};
        char *text = once_arena_alloc(arena, entry->reason.len + words.len + 2), *at = text;
        if (!text) return once_no_memory(err, "for a reason");
        for (size_t i = 0; i < 3; at += parts[i++].len) memcpy(at, parts[i].data, parts[i].len);
        words = (once_bytes){text, (size_t)(at - text)};
    }
    entry->reason = words;
    return ONCE_OK;
}

/* The letters of a key. */
typedef struct letters_of_key {
    once_scope scope;
    bool any_operation;
    once_bytes key;
    const once_keying *keying;
    once_arena *arena;
    once_key_letter at[20]; /* the last ones, oldest first */
    size_t n;
    uint64_t all;
    bool failed;
} letters_of_key;

static bool note_letter(void *user, const once_letter *letter)
{
    letters_of_key *s = user;
    if (!once_bytes_equal(letter->key, s->key) || !once_bytes_equal(letter->scope.tenant, s->scope.tenant)) return true;
    if (!s->any_operation && !once_bytes_equal(letter->scope.operation, s->scope.operation)) return true;
    if (s->n == sizeof s->at / sizeof *s->at) memmove(s->at, s->at + 1, --s->n * sizeof *s->at);
    once_key_letter *kept = &s->at[s->n++];
    *kept = (once_key_letter){.letter = letter->id,
                              .kind = once__letter_kind(letter),
                              .count = letter->count,
                              .buried_ms = letter->buried_ms,
                              .last_ms = letter->last_ms};
    once__letter_outward_key(s->keying, letter, kept->idempotency_key);
    s->all++;
    s->failed = !once_arena_copy(s->arena, letter->reason, &kept->reason);
    return !s->failed;
}

static int find_letters(once_store *store, letters_of_key *s, once_error *err)
{
    const int rc = store->ops->letters_of_key
                       ? store->ops->letters_of_key(store, s->scope.consumer, s->key, note_letter, s, err)
                       : store->ops->letters(store, s->scope.consumer, 0, note_letter, s, err);
    return rc == ONCE_OK && s->failed ? once_no_memory(err, "for a letter") : rc;
}

/* A dead one's message is in its letter. */
static int explain_place(once_lane_reader *reader, const once_entry *entry, once_lane_place *out, once_error *err)
{
    once_store *store = reader->store;
    once_arena arena = {0};
    once_letter letter = {0};
    uint64_t id = 0;
    bool found = false;
    int rc = ONCE_OK;
    if (entry->state == ONCE_STATE_DEAD && reader->spec->order) rc = once__lane_dead_letter(reader, entry, &id, err);
    if (rc == ONCE_OK && id) rc = store->ops->letter_get(store, id, &letter, &found, &arena, err);
    const once_message *message = entry->has_message ? &entry->message : found ? &letter.message : NULL;
    if (rc == ONCE_OK) rc = once__lane_place_read(reader, entry->id, &entry->scope, message, out, err);
    once_arena_release(&arena);
    return rc;
}

/* Who discarded the letter of an entry, by the audit. */
typedef struct discard_search {
    const once_entry *entry;
    once_bytes key; /* as it is kept */
    once_json json;
    once_arena arena;
    bool discarded;
    int64_t time_ms;
    char who[200];
    int rc;
    once_error *err;
} discard_search;

/* Records of older versions have no scope. */
static bool is_of_scope(const once_audited *a, const once_scope *scope)
{
    return (!a->tenant.len && !a->operation.len) ||
           (once_bytes_equal(a->tenant, scope->tenant) && once_bytes_equal(a->operation, scope->operation));
}

static bool note_discard(void *user, const once_audit *record)
{
    discard_search *s = user;
    once_audited a;
    if (!once_bytes_equal(record->what, ONCE_BYTES("discard")) || !once_bytes_equal(record->key, s->key)) return true;
    once_arena_reset(&s->arena);
    s->rc = once__audit_read(record, &s->json, &s->arena, &a, s->err);
    if (s->rc != ONCE_OK) return false;
    if (!is_of_scope(&a, &s->entry->scope)) return true;
    s->time_ms = a.time_ms; /* the last one counts */
    snprintf(s->who, sizeof s->who, "%.*s", (int)(a.who.len < sizeof s->who ? a.who.len : sizeof s->who - 1),
             a.who.data ? a.who.data : "");
    return true;
}

/* A rejected entry whose last attempt did not say so: an operator has given it up. Where no attempt is kept, the audit
 * must say so. */
static int find_discard(once_store *store, discard_search *s, once_error *err)
{
    once_attempt attempts[ONCE_HISTORY_ATTEMPTS];
    const size_t n = once__history_of(s->entry, attempts);
    s->time_ms = ONCE_NO_TIME;
    s->discarded = s->entry->state == ONCE_STATE_REJECTED &&
                   !(n && strcmp(attempts[n - 1].outcome, once_outcome_name(ONCE_REJECTED)) == 0);
    if (!s->discarded) return ONCE_OK;
    s->err = err;
    once_json_init(&s->json);
    const int rc = store->ops->audits(store, s->entry->scope.consumer, note_discard, s, err);
    once_json_release(&s->json);
    once_arena_release(&s->arena);
    if (n == 0 && s->time_ms < s->entry->seen_ms) s->discarded = false; /* also when none was found */
    if (!s->discarded) s->time_ms = ONCE_NO_TIME;
    return rc == ONCE_OK ? s->rc : rc;
}

static void explain_entry(const once_spec *spec, const once_keying *keying, const once_entry *entry, once_bytes shown,
                          const letters_of_key *letters, const once_lane_place *lane, const discard_search *discard,
                          once_explain_visit *visit, void *user)
{
    once_attempt attempts[ONCE_HISTORY_ATTEMPTS];
    const size_t n = once__history_of(entry, attempts);
    const bool due = entry->state == ONCE_STATE_CLAIMED || entry->state == ONCE_STATE_WAITING;
    once_explanation explanation = {
        .scope = entry->scope,
        .key = entry->key,
        .state = once_state_name(entry->state),
        .attempt = entry->attempt,
        .failures = entry->failures,
        .place = entry->at.place,
        .point = entry->at.point,
        .seen_ms = entry->seen_ms,
        .changed_ms = entry->changed_ms,
        .due_ms = due && entry->due_ms != ONCE_NEVER ? entry->due_ms : ONCE_NO_TIME,
        .expires_ms = once_entry_expires(entry) ? entry->expires_ms : ONCE_NO_TIME,
        .has_body = entry->has_message,
        .reason = entry->reason,
        .result = entry->result,
        .who = entry->who,
        .worker = entry->worker,
        .attempts = attempts,
        .n_attempts = n,
        .letters = letters->at,
        .n_letters = letters->n,
        .all_letters = letters->all,
        .maybe_done =
            !once_state_finished(entry->state) && entry->state != ONCE_STATE_ABSENT &&
            once_spec_maybe_done(spec, entry->scope.operation, entry->maybe || entry->state == ONCE_STATE_UNKNOWN),
        .lane = *lane,
        .discarded = discard->discarded,
        .discarded_ms = discard->time_ms,
        .discarded_by = {discard->who, strlen(discard->who)},
    };
    if (entry->state != ONCE_STATE_ABSENT)
        once_outward_key(keying, &entry->scope, shown, entry->id, entry->old_key, explanation.idempotency_key);
    visit(user, &explanation);
}

/* No entry knows the key. A letter may: of a message that was refused before it could have one (too old, below the
 * first version). */
static int explain_letter_or_nothing(once_store *store, const once_keying *keying, once_scope scope, once_bytes key,
                                     once_arena *arena, once_explain_visit *visit, void *user, once_error *err)
{
    char reason[400];
    letters_of_key s = {.scope = scope, .any_operation = true, .key = key, .keying = keying, .arena = arena};
    once_entry absent = {.scope = scope, .key = key};
    const int rc = find_letters(store, &s, err);
    if (rc != ONCE_OK) return rc;
    if (s.n) {
        const once_key_letter *last = &s.at[s.n - 1];
        const int n =
            snprintf(reason, sizeof reason, "dead letter %llu has this key: %.*s", (unsigned long long)last->letter,
                     last->reason.len < 300 ? (int)last->reason.len : 300, last->reason.data ? last->reason.data : "");
        absent.reason = (once_bytes){reason, (size_t)n};
    }
    explain_entry(NULL, keying, &absent, key, &s, &(once_lane_place){0}, &(discard_search){.time_ms = ONCE_NO_TIME},
                  visit, user);
    return ONCE_OK;
}

int once__want_tenant(const once_pipeline *pipeline, once_bytes tenant, once_error *err)
{
    if (!pipeline->spec->tenant || tenant.data) return ONCE_OK;
    return once_fail(err, ONCE_E_USAGE, "the keys of '%.*s' belong to tenants; say whose: --tenant NAME",
                     (int)pipeline->spec->file.len, pipeline->spec->file.data);
}

/* What the next run makes of it. */
static int explain_gone(once_store *store, once_entry *entry, once_error *err)
{
    once_gone gone;
    const int rc = once_gone_read(store, entry->scope.consumer, &gone, err);
    const once_bytes says = rc == ONCE_OK ? once_gone_says(&gone, entry) : (once_bytes){0};
    if (says.len) entry->reason = says;
    return rc;
}

int once_pipeline_explain(once_pipeline *pipeline, once_bytes tenant, once_bytes key, once_explain_visit *visit,
                          void *user, once_error *err)
{
    if (!pipeline || !visit || once_bytes_lie(tenant) || once_bytes_lie(key))
        return once_fail(err, ONCE_E_USAGE,
                         "once_pipeline_explain needs a pipeline, a key and a function for what is known of it");
    const once_spec *spec = pipeline->spec;
    once_store *store;
    int rc = once__want_tenant(pipeline, tenant, err);
    if (rc == ONCE_OK) rc = once__salt_read(pipeline, err);
    if (rc == ONCE_OK) rc = once__known_open_store(pipeline, &store, err);
    if (rc != ONCE_OK) return rc;

    once_arena arena = {0};
    const once_keying keying = once__keying_of(pipeline, store);
    once_bytes shown;
    size_t known = 0;
    once_lane_reader reader;
    once__lane_reader_init(&reader, pipeline, store);
    rc = once__memory_check_salt(pipeline, store, err);
    if (rc == ONCE_OK && !once_key_show(&arena, key, &shown)) rc = once_no_memory(err, "for a key");
    for (size_t i = 0; rc == ONCE_OK && i < spec->n_handlers; i++) {
        const once_scope scope = {tenant, spec->consumer, spec->handlers[i].operation};
        if (once_spec_handler_by_operation(spec, scope.operation) != &spec->handlers[i]) continue; /* shares its keys */
        once_entry entry;
        rc = once__entry_by_key(store, &scope, key, &entry, &arena, err);
        if (rc != ONCE_OK || entry.state == ONCE_STATE_ABSENT) continue;
        entry.scope = scope; /* finished entries may keep less than they were made with */
        entry.key = key;
        entry.reason = once__reason_shown(&entry);
        if (entry.state == ONCE_STATE_WAITING || entry.state == ONCE_STATE_DEAD)
            rc = explain_lane(store, &entry, &arena, err);
        if (entry.state == ONCE_STATE_CLAIMED) rc = explain_gone(store, &entry, err);
        letters_of_key letters = {.scope = scope, .key = shown, .keying = &keying, .arena = &arena};
        if (rc == ONCE_OK) rc = find_letters(store, &letters, err);
        once_lane_place lane = {0};
        if (rc == ONCE_OK && !once_state_finished(entry.state)) rc = explain_place(&reader, &entry, &lane, err);
        discard_search discard = {.entry = &entry, .key = shown};
        if (rc == ONCE_OK) rc = find_discard(store, &discard, err);
        if (rc == ONCE_OK) explain_entry(spec, &keying, &entry, shown, &letters, &lane, &discard, visit, user);
        known++;
    }
    if (rc == ONCE_OK && known == 0)
        rc = explain_letter_or_nothing(store, &keying, (once_scope){tenant, spec->consumer, {0}}, shown, &arena, visit,
                                       user, err);
    once__lane_reader_release(&reader);
    once_arena_release(&arena);
    once__store_close(store);
    return rc;
}

/* --- what is built in --- */

const char *once__sqlite_schema(void);
#ifdef ONCE_WITH_POSTGRES
const char *once__pg_schema(void);
#endif

int once_store_schema(const char *url, const char **out, once_error *err)
{
    if (!url || !out) return once_fail(err, ONCE_E_USAGE, "once_store_schema needs a URL and a place for the text");
    const size_t len = strcspn(url, ":");
    if (len == 6 && memcmp(url, "sqlite", 6) == 0) {
        *out = once__sqlite_schema();
        return ONCE_OK;
    }
#ifdef ONCE_WITH_POSTGRES
    if (once__store_find(url, len) == &once__store_postgres) {
        *out = once__pg_schema();
        return ONCE_OK;
    }
#endif
    if (len == 6 && memcmp(url, "memory", 6) == 0)
        return once_fail(err, ONCE_E_USAGE, "store 'memory:' needs no schema");
    if ((len == 5 || len == 6) && memcmp(url, "rediss", len) == 0)
        return once_fail(err, ONCE_E_USAGE, "store 'redis:' needs no schema");
    return once_fail(
        err, ONCE_E_UNSUPPORTED,
        "no schema for such a store in this build; it is 'sqlite:' or a postgres:// URL"); /* what was given may be a
                                                                                              password */
}

char *once_config_reference_text(bool markdown)
{
    once_buf text;
    once_buf_init(&text, 1 << 20);
    if (markdown ? once_config_reference(&text) : once_config_help(&text)) return text.data;
    once_buf_release(&text);
    return NULL;
}

const char *once_version(void) { return ONCE_VERSION; }

void once_features(once_feature_visit *visit, void *user)
{
    if (!visit) return;
    size_t n;
    const once_store_ops *const *stores = once__store_list(&n);
    for (size_t i = 0; i < n; i++) visit(user, "store", stores[i]->scheme, stores[i]->summary);
    const once_source_ops *const *sources = once_source_list(&n);
    for (size_t i = 0; i < n; i++) visit(user, "source", sources[i]->name, sources[i]->summary);
    visit(user, "effect", "sql", "statements in the store's own database; atomic");
    visit(user, "effect", "exec", "a command, one process per message or a kept one; fenced");
    visit(user, "effect", "callback", "a C function of the program that runs the pipeline; fenced");
    visit(user, "effect", "dead", "no effect: every message becomes a dead letter");
    for (int i = 0; i < ONCE_FAILPOINTS; i++)
        visit(user, "failpoint", once_failpoint_name((once_failpoint)i), once_failpoint_where((once_failpoint)i));
}
