/* Credentials of a profile: a role, keys, or a command that prints them. A role is taken with the credentials of
 * another profile, of another provider, or with a token of an identity provider. */
#include "aws/aws_impl.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/capture.h"
#include "base/no_memory.h"

#include "base/banned.h"

#define CHAIN_MAX 5 /* profiles, each of which takes its role with the next one */
#define PROCESS_MS 20000

typedef struct chain {
    const once_aws_search *search;
    once_aws_profiles files;
    once_bytes names[CHAIN_MAX];
    size_t n;
} chain;

#define NAME(profile) (int)(profile).len, (profile).data

static int find(chain *c, once_bytes profile, once_aws_found *out, once_error *err);

/* A property as a text with a NUL; empty: not set. False: out of memory. */
static bool get(const chain *c, once_bytes profile, const char *name, once_bytes *out)
{
    return once_arena_copy(c->search->arena, once__aws_property(&c->files, profile, name), out);
}

/* --- keys and commands -------------------------------------------------------------------------------------------- */

static int find_keys(const chain *c, once_bytes profile, once_aws_found *out, once_error *err)
{
    if (!get(c, profile, "aws_access_key_id", &out->keys.id) ||
        !get(c, profile, "aws_secret_access_key", &out->keys.secret) ||
        !get(c, profile, "aws_session_token", &out->keys.token))
        return once_no_memory(err, "for credentials");
    if (!out->keys.id.len) return ONCE_E_MISSING;
    if (!out->keys.secret.len)
        return once_fail(err, ONCE_E_CONFIG, "profile '%.*s' has aws_access_key_id, and no aws_secret_access_key",
                         NAME(profile));
    out->until_ms = ONCE_FOREVER;
    return once__aws_check_keys(&out->keys, err);
}

static int run_process(const chain *c, once_bytes command, once_aws_found *out, once_error *err)
{
    const once_aws_search *s = c->search;
    char *argv[] = {"/bin/sh", "-c", strndup(command.data, command.len), NULL};
    once_error why;
    once_buf text;
    if (!argv[2]) return once_no_memory(err, "for credential_process");
    int64_t left_ms = (s->until_ns - once_env_mono_ns(s->env)) / 1000000;
    if (left_ms > PROCESS_MS) left_ms = PROCESS_MS;
    once_buf_init(&text, ONCE_AWS_ANSWER_MAX);
    int rc = left_ms > 0 ? once_capture(argv, s->env, left_ms, &s->cancel, &text, &why)
                         : once_fail(&why, ONCE_E_UNAVAILABLE, "no time was left for it");
    if (rc == ONCE_OK)
        rc =
            once__aws_read_json(ONCE_AWS_PROCESS, once_buf_bytes(&text), once_env_wall_ms(s->env), s->arena, out, &why);
    if (text.data) explicit_bzero(text.data, text.len);
    once_buf_release(&text);
    free(argv[2]);
    return rc == ONCE_OK ? ONCE_OK : once_fail(err, rc, "credential_process: %s", why.text);
}

/* --- roles -------------------------------------------------------------------------------------------------------- */

/* The provider that `credential_source` names; NULL: there is none of that name. */
static once_aws_provider *source_of(once_bytes name)
{
    if (once_bytes_equal(name, ONCE_BYTES("Environment"))) return once__aws_environment;
    if (once_bytes_equal(name, ONCE_BYTES("EcsContainer"))) return once__aws_container;
    if (once_bytes_equal(name, ONCE_BYTES("Ec2InstanceMetadata"))) return once__aws_instance;
    return NULL;
}

/* The keys that the role is taken with. */
static int find_source(chain *c, once_bytes profile, once_aws_found *out, once_error *err)
{
    once_bytes from, provider;
    if (!get(c, profile, "source_profile", &from) || !get(c, profile, "credential_source", &provider))
        return once_no_memory(err, "for credentials");
    if (from.len && provider.len)
        return once_fail(err, ONCE_E_CONFIG, "profile '%.*s' has source_profile and credential_source; remove one",
                         NAME(profile));
    if (provider.len) {
        once_aws_provider *ask = source_of(provider);
        once_aws_search search = *c->search;
        once_aws_settings settings = *search.settings;
        settings.profile_first = false; /* the profile itself asks for the environment */
        search.settings = &settings;
        if (ask) return ask(&search, out, err);
        return once_fail(err, ONCE_E_CONFIG,
                         "credential_source '%s' is none of Environment, EcsContainer and "
                         "Ec2InstanceMetadata",
                         provider.data);
    }
    if (!from.len)
        return once_fail(err, ONCE_E_CONFIG,
                         "profile '%.*s' has role_arn, and neither source_profile nor "
                         "credential_source nor web_identity_token_file",
                         NAME(profile));
    /* A profile that is its own source has keys beside its role. */
    return once_bytes_equal(from, profile) ? find_keys(c, profile, out, err) : find(c, from, out, err);
}

static int take_role(chain *c, once_bytes profile, once_bytes arn, once_aws_found *out, once_error *err)
{
    once_aws_role role = {.arn = arn};
    once_aws_found source = {0};
    once_bytes mfa;
    if (!get(c, profile, "role_session_name", &role.session) || !get(c, profile, "external_id", &role.external_id) ||
        !get(c, profile, "duration_seconds", &role.duration_s) || !get(c, profile, "mfa_serial", &mfa) ||
        !get(c, profile, "web_identity_token_file", &role.identity_file))
        return once_no_memory(err, "for credentials");
    if (mfa.len)
        return once_fail(err, ONCE_E_CONFIG,
                         "profile '%.*s' has mfa_serial: nobody is there to type a code; use a role "
                         "that needs none",
                         NAME(profile));
    if (!role.identity_file.len) {
        const int rc = find_source(c, profile, &source, err);
        if (rc == ONCE_E_MISSING)
            return once_fail(err, ONCE_E_DENIED, "the source of profile '%.*s' has no credentials", NAME(profile));
        if (rc != ONCE_OK) return rc;
        role.keys = &source.keys;
    }
    return once__aws_assume_role(c->search, &role, out, err);
}

/* --- a profile ---------------------------------------------------------------------------------------------------- */

/* ONCE_E_MISSING without a text: it has no credentials. */
static int find(chain *c, once_bytes profile, once_aws_found *out, once_error *err)
{
    once_bytes arn, command;
    for (size_t i = 0; i < c->n; i++)
        if (once_bytes_equal(c->names[i], profile))
            return once_fail(err, ONCE_E_CONFIG, "source_profile of '%.*s' leads back to itself", NAME(profile));
    if (c->n == CHAIN_MAX)
        return once_fail(err, ONCE_E_CONFIG, "more than %d profiles are linked by source_profile", CHAIN_MAX);
    c->names[c->n++] = profile;
    if (!once__aws_has_profile(&c->files, profile)) {
        if (c->n == 1) return ONCE_E_MISSING;
        return once_fail(err, ONCE_E_CONFIG, "profile '%.*s' does not exist, and is a source_profile", NAME(profile));
    }
    if (!get(c, profile, "role_arn", &arn) || !get(c, profile, "credential_process", &command))
        return once_no_memory(err, "for credentials");
    if (arn.len) return take_role(c, profile, arn, out, err);
    const int rc = find_keys(c, profile, out, err);
    if (rc != ONCE_E_MISSING) return rc;
    if (command.len) return run_process(c, command, out, err);
    if (once__aws_property(&c->files, profile, "sso_session").len ||
        once__aws_property(&c->files, profile, "sso_start_url").len)
        return once_fail(err, ONCE_E_CONFIG,
                         "profile '%.*s' signs in with SSO, which needs a browser; use a profile with "
                         "'credential_process = aws configure export-credentials --profile %.*s'",
                         NAME(profile), NAME(profile));
    return ONCE_E_MISSING;
}

int once__aws_profile(const once_aws_search *s, once_aws_found *out, once_error *err)
{
    chain c = {.search = s};
    assert(s->settings->profile.len);
    int rc = once__aws_read_profiles(s->settings, s->env, s->arena, &c.files, err);
    if (rc != ONCE_OK) return rc;
    rc = find(&c, s->settings->profile, out, err);
    if (rc == ONCE_E_MISSING) return once_fail(err, rc, "'%s' has no credentials", s->settings->profile.data);
    return rc;
}
