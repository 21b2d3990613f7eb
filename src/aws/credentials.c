/* Credentials: which provider is asked, and when (aws.h). */
#include "aws/aws_impl.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/no_memory.h"

#include "base/banned.h"

#define REFRESH_MS INT64_C(300000)     /* so long before they end they are fetched anew */
#define REFRESH_WITHIN_MS 5000         /* how long that may take, while the old ones are valid */
#define AGAIN_NS INT64_C(10000000000)  /* after a fetch, the pause before the next one, while the old ones are valid */
#define REFUSED_NS INT64_C(1000000000) /* credentials that are younger than this are not fetched anew when refused */
#define FAILED_NS INT64_C(1000000000)  /* a fetch that failed answers for others that come so soon after it */
#define CONNECT_MS 1000

struct once_aws_credentials {
    const once_env *env;
    once_cancel cancel;
    once_arena arena; /* of the settings */
    once_aws_settings settings;
    pthread_mutex_t lock;
    pthread_cond_t fetched;

    /* Under lock: */
    once_arena held; /* of `found` */
    once_aws_found found;
    bool have, refused;                      /* there are keys; the server has refused them */
    int64_t fetched_ns, again_ns, failed_ns; /* the last is 0 if the last fetch did not fail */
    bool fetching;                           /* a thread fetches; the clients are its own */
    once_error failure;                      /* of the last fetch that failed */

    once_aws_http *services, *metadata;
};

static const struct {
    const char *name;
    once_aws_provider *ask;
} providers[] = {{"environment", once__aws_environment},
                 {"web identity", once__aws_web_identity},
                 {"profile", once__aws_profile},
                 {"container", once__aws_container},
                 {"instance metadata", once__aws_instance}};

/* --- open and close ----------------------------------------------------------------------------------------------- */

static int set_up(once_aws_credentials *c, const once_aws_options *options, once_error *err)
{
    const int rc = once__aws_read_settings(options, c->env, &c->arena, &c->settings, err);
    if (rc != ONCE_OK || !c->settings.given.id.len) return rc;
    c->found = (once_aws_found){c->settings.given, ONCE_FOREVER};
    c->have = true;
    return ONCE_OK;
}

int once_aws_credentials_open(const once_aws_options *options, const once_env *env, once_aws_credentials **out,
                              once_error *err)
{
    assert(options && env && out);
    once_aws_credentials *c = calloc(1, sizeof *c);
    if (!c) return once_no_memory(err, "for credentials");
    c->env = env;
    c->cancel = options->cancel;
    (void)pthread_mutex_init(&c->lock, NULL);
    (void)pthread_cond_init(&c->fetched, NULL);
    const int rc = set_up(c, options, err);
    if (rc != ONCE_OK) {
        once_aws_credentials_close(c);
        return rc;
    }
    *out = c;
    return ONCE_OK;
}

void once_aws_credentials_close(once_aws_credentials *c)
{
    if (!c) return;
    assert(!c->fetching);
    once_aws_http_close(c->services);
    once_aws_http_close(c->metadata);
    once_arena_release(&c->held);
    once_arena_release(&c->arena);
    (void)pthread_cond_destroy(&c->fetched);
    (void)pthread_mutex_destroy(&c->lock);
    free(c);
}

const char *once_aws_region(const once_aws_credentials *c)
{
    assert(c);
    return c->settings.region.len ? c->settings.region.data : NULL;
}

const char *once_aws_ca_file(const once_aws_credentials *c)
{
    assert(c);
    return c->settings.ca_file.len ? c->settings.ca_file.data : NULL;
}

/* --- a fetch ------------------------------------------------------------------------------------------------------ */

int once__aws_ask(const once_aws_search *s, once_aws_http *http, const once_aws_call *call, int64_t timeout_ms,
                  once_buf *body, once_aws_answer *answer, once_error *err)
{
    const int64_t left_ms = (s->until_ns - once_env_mono_ns(s->env)) / 1000000;
    once_aws_call bounded = *call;
    if (left_ms <= 0) return once_fail(err, ONCE_E_UNAVAILABLE, "no time was left to ask");
    bounded.timeout_ms = timeout_ms < left_ms ? timeout_ms : left_ms;
    bounded.connect_ms = http == s->metadata ? CONNECT_MS : bounded.timeout_ms;
    bounded.cancel = s->cancel;
    return once_aws_http_call(http, &bounded, body, answer, err);
}

static int open_clients(once_aws_credentials *c, once_error *err)
{
    const once_aws_http_options services = {.ca_file = once_aws_ca_file(c)};
    const once_aws_http_options metadata = {.ca_file = once_aws_ca_file(c), .direct = true};
    int rc = ONCE_OK;
    if (!c->services) rc = once_aws_http_open(&services, &c->services, err);
    if (rc == ONCE_OK && !c->metadata) rc = once_aws_http_open(&metadata, &c->metadata, err);
    return rc;
}

/* Asks the providers in turn, until one decides. `had`: one of them had credentials before, so it may again. */
static int ask_providers(const once_aws_search *search, bool had, once_aws_found *out, once_error *err)
{
    once_buf said;
    once_error why;
    once_buf_init(&said, sizeof why.text);
    for (size_t i = 0; i < sizeof providers / sizeof providers[0]; i++) {
        *out = (once_aws_found){0};
        const int rc = providers[i].ask(search, out, &why);
        (void)once_buf_printf(&said, "%s%s: %s", said.len ? "; " : "", providers[i].name,
                              rc == ONCE_OK ? "" : why.text);
        if (rc == ONCE_E_MISSING) continue;
        if (rc == ONCE_OK) assert(out->keys.id.len && out->keys.secret.len && out->until_ms > 0);
        else (void)once_fail(err, rc, "AWS credentials: %s", said.data ? said.data : why.text);
        once_buf_release(&said);
        return rc;
    }
    const int rc =
        once_fail(err, had ? ONCE_E_UNAVAILABLE : ONCE_E_DENIED, "no AWS credentials; %s", said.data ? said.data : "");
    once_buf_release(&said);
    return rc;
}

/* @locks none; only the thread that has set `fetching` */
static int fetch(once_aws_credentials *c, bool valid, once_arena *arena, once_aws_found *out, once_error *err)
{
    assert(c->fetching);
    const int rc = open_clients(c, err);
    if (rc != ONCE_OK) return rc;
    const int64_t within_ms = valid ? REFRESH_WITHIN_MS : ONCE_AWS_GET_MS;
    const once_aws_search search = {.settings = &c->settings,
                                    .env = c->env,
                                    .arena = arena,
                                    .services = c->services,
                                    .metadata = c->metadata,
                                    .until_ns = once_env_mono_ns(c->env) + within_ms * 1000000,
                                    .cancel = c->cancel};
    return ask_providers(&search, c->have, out, err);
}

/* --- get ---------------------------------------------------------------------------------------------------------- */

/* @locks c->lock, for all below */
static bool is_valid(const once_aws_credentials *c)
{
    return c->have && !c->refused &&
           (c->found.until_ms == ONCE_FOREVER || c->found.until_ms > once_env_wall_ms(c->env));
}

static bool is_fresh(const once_aws_credentials *c)
{
    if (!is_valid(c)) return false;
    if (c->found.until_ms == ONCE_FOREVER) return true;
    return c->found.until_ms - once_env_wall_ms(c->env) > REFRESH_MS || once_env_mono_ns(c->env) < c->again_ns;
}

static int copy(const once_aws_credentials *c, once_arena *arena, once_aws_keys *out, once_error *err)
{
    assert(c->have);
    once_aws_keys keys;
    if (!once_arena_copy(arena, c->found.keys.id, &keys.id) ||
        !once_arena_copy(arena, c->found.keys.secret, &keys.secret) ||
        !once_arena_copy(arena, c->found.keys.token, &keys.token))
        return once_no_memory(err, "for credentials");
    *out = keys;
    return ONCE_OK;
}

/* Fetches, with the lock released meanwhile. */
static void renew(once_aws_credentials *c)
{
    once_arena arena = {0};
    once_aws_found found;
    once_error why;
    const bool valid = is_valid(c);
    c->fetching = true;
    (void)pthread_mutex_unlock(&c->lock);
    const int rc = fetch(c, valid, &arena, &found, &why);
    (void)pthread_mutex_lock(&c->lock);
    c->fetching = false;
    c->fetched_ns = once_env_mono_ns(c->env);
    c->again_ns = c->fetched_ns + AGAIN_NS;
    c->failed_ns = rc == ONCE_OK ? 0 : c->fetched_ns;
    if (rc == ONCE_OK) {
        once_arena_release(&c->held);
        c->held = arena;
        c->found = found;
        c->have = true;
        c->refused = false;
    } else {
        once_arena_release(&arena);
        c->failure = why;
        if (is_valid(c))
            once_log(ONCE_LOG_WARN, "aws_credentials", "cannot be renewed, the old ones are used until they end: %s",
                     why.text);
    }
    (void)pthread_cond_broadcast(&c->fetched);
}

int once_aws_credentials_get(once_aws_credentials *c, once_arena *arena, once_aws_keys *out, once_error *err)
{
    assert(c && arena && out);
    int rc = ONCE_OK;
    (void)pthread_mutex_lock(&c->lock);
    for (;;) {
        const bool valid = is_valid(c);
        const bool failed = c->failed_ns && once_env_mono_ns(c->env) - c->failed_ns < FAILED_NS;
        if (valid && (failed || c->fetching || is_fresh(c))) {
            rc = copy(c, arena, out, err);
            break;
        }
        if (failed) {
            rc = once_fail(err, c->failure.status, "%s", c->failure.text);
            break;
        }
        if (c->fetching) (void)pthread_cond_wait(&c->fetched, &c->lock);
        else renew(c);
    }
    (void)pthread_mutex_unlock(&c->lock);
    return rc;
}

void once_aws_credentials_refused(once_aws_credentials *c, once_bytes id)
{
    assert(c);
    (void)pthread_mutex_lock(&c->lock);
    if (c->have && !c->settings.given.id.len && once_bytes_equal(c->found.keys.id, id) &&
        once_env_mono_ns(c->env) - c->fetched_ns >= REFUSED_NS)
        c->refused = true;
    (void)pthread_mutex_unlock(&c->lock);
}
