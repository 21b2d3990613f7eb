/* The environment variables that the SDKs of AWS know, and the credentials among them. */
#include "aws/aws_impl.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/ascii.h"
#include "base/buf.h"
#include "base/no_memory.h"

#include "base/banned.h"

#define METADATA "http://169.254.169.254"
#define METADATA_6 "http://[fd00:ec2::254]"

const char *once__aws_text(once_arena *arena, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    const int len = vsnprintf(NULL, 0, format, args);
    assert(len >= 0);
    char *text = once_arena_alloc(arena, (size_t)len + 1);
    if (text) (void)vsnprintf(text, (size_t)len + 1, format, again);
    va_end(again);
    va_end(args);
    return text;
}

static bool is_true(const char *name)
{
    const char *value = getenv(name);
    return value && once_ascii_is(value, strlen(value), "true");
}

const char *once_aws_endpoint(const char *service)
{
    char name[64];
    if (is_true("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")) return NULL;
    (void)snprintf(name, sizeof name, "AWS_ENDPOINT_URL_%s", service);
    const char *url = getenv(name);
    if (!url || !*url) url = getenv("AWS_ENDPOINT_URL");
    return url && *url ? url : NULL;
}

/* Copies a variable; one that is empty counts as not set. */
static bool copy(once_arena *arena, const char *name, once_bytes *out)
{
    const char *value = name ? getenv(name) : NULL;
    return once_arena_copy(arena, value ? once_bytes_of(value) : (once_bytes){0}, out);
}

static bool copy_first(once_arena *arena, once_bytes option, const char *first, const char *second, once_bytes *out)
{
    if (option.len) return once_arena_copy(arena, option, out);
    return copy(arena, first, out) && (out->len || copy(arena, second, out));
}

static bool copy_keys(once_arena *arena, const once_aws_keys *from, once_aws_keys *out)
{
    return once_arena_copy(arena, from->id, &out->id) && once_arena_copy(arena, from->secret, &out->secret) &&
           once_arena_copy(arena, from->token, &out->token);
}

/* A file in ~/.aws, unless a variable names another one, perhaps as "~/file", which no shell has read; empty: there is
 * no home, either. */
static bool copy_file(once_arena *arena, const char *variable, const char *name, once_bytes *out)
{
    const char *home = getenv("HOME");
    if (!copy(arena, variable, out)) return false;
    const bool tilde = out->len >= 2 && memcmp(out->data, "~/", 2) == 0;
    if ((out->len && !tilde) || !home || !*home) return true;
    const char *path =
        tilde ? once__aws_text(arena, "%s%s", home, out->data + 1) : once__aws_text(arena, "%s/.aws/%s", home, name);
    if (path) *out = once_bytes_of(path);
    return path != NULL;
}

static bool copy_metadata(once_arena *arena, once_aws_settings *out)
{
    const char *mode = getenv("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE");
    const char *v1_off = getenv("AWS_EC2_METADATA_V1_DISABLED");
    out->metadata_off = is_true("AWS_EC2_METADATA_DISABLED");
    out->metadata_v1 = v1_off && once_ascii_is(v1_off, strlen(v1_off), "false");
    if (!copy(arena, "AWS_EC2_METADATA_SERVICE_ENDPOINT", &out->metadata)) return false;
    if (out->metadata.len) return true;
    const bool six = mode && once_ascii_is(mode, strlen(mode), "ipv6");
    out->metadata = six ? ONCE_BYTES(METADATA_6) : ONCE_BYTES(METADATA);
    return true;
}

static bool copy_all(const once_aws_options *options, once_arena *arena, once_aws_settings *out)
{
    const char *sts = once_aws_endpoint("STS");
    out->profile_first = options->profile.len > 0;
    if (!copy_keys(arena, &options->keys, &out->given) ||
        !copy_first(arena, options->profile, "AWS_PROFILE", "AWS_DEFAULT_PROFILE", &out->profile))
        return false;
    out->profile_named = out->profile.len > 0;
    if (!out->profile_named) out->profile = ONCE_BYTES("default");
    return copy_first(arena, options->region, "AWS_REGION", "AWS_DEFAULT_REGION", &out->region) &&
           copy_first(arena, options->ca_file, "AWS_CA_BUNDLE", NULL, &out->ca_file) &&
           copy(arena, "AWS_ACCESS_KEY_ID", &out->exports.id) &&
           copy(arena, "AWS_SECRET_ACCESS_KEY", &out->exports.secret) &&
           copy(arena, "AWS_SESSION_TOKEN", &out->exports.token) &&
           copy_file(arena, "AWS_SHARED_CREDENTIALS_FILE", "credentials", &out->credentials_file) &&
           copy_file(arena, "AWS_CONFIG_FILE", "config", &out->config_file) &&
           copy(arena, "AWS_ROLE_ARN", &out->role) && copy(arena, "AWS_ROLE_SESSION_NAME", &out->role_session) &&
           copy(arena, "AWS_WEB_IDENTITY_TOKEN_FILE", &out->identity_file) &&
           copy(arena, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", &out->container_relative) &&
           copy(arena, "AWS_CONTAINER_CREDENTIALS_FULL_URI", &out->container_full) &&
           copy(arena, "AWS_CONTAINER_AUTHORIZATION_TOKEN", &out->container_token) &&
           copy(arena, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", &out->container_token_file) &&
           copy_metadata(arena, out) && once_arena_copy(arena, sts ? once_bytes_of(sts) : (once_bytes){0}, &out->sts);
}

/* It becomes part of a host name. */
static bool is_region(once_bytes text)
{
    for (size_t i = 0; i < text.len; i++) {
        const char c = text.data[i];
        if (!once_ascii_is_letter(c) && !(c >= '0' && c <= '9') && c != '-') return false;
    }
    return text.len <= ONCE_AWS_REGION_MAX;
}

int once__aws_read_settings(const once_aws_options *options, const once_env *env, once_arena *arena,
                            once_aws_settings *out, once_error *err)
{
    once_aws_profiles profiles;
    if (!copy_all(options, arena, out)) return once_no_memory(err, "for the settings of AWS");
    const int rc = once__aws_read_profiles(out, env, arena, &profiles, err);
    if (rc != ONCE_OK && rc != ONCE_E_MISSING) return rc;
    if (out->profile_named && !once__aws_has_profile(&profiles, out->profile))
        return once_fail(err, ONCE_E_CONFIG, "profile '%s' is neither in '%s' nor in '%s'; see AWS_PROFILE",
                         out->profile.data, out->credentials_file.data, out->config_file.data);
    if (!out->region.len &&
        !once_arena_copy(arena, once__aws_property(&profiles, out->profile, "region"), &out->region))
        return once_no_memory(err, "for the settings of AWS");
    if (!is_region(out->region))
        return once_fail(err, ONCE_E_CONFIG, "'%s' is not the name of a region", out->region.data);
    return out->given.id.len ? once__aws_check_keys(&out->given, err) : ONCE_OK;
}

int once__aws_environment(const once_aws_search *s, once_aws_found *out, once_error *err)
{
    const once_aws_settings *settings = s->settings;
    if (settings->profile_first) return once_fail(err, ONCE_E_MISSING, "not asked, as a profile is given");
    if (!settings->exports.id.len) return once_fail(err, ONCE_E_MISSING, "AWS_ACCESS_KEY_ID is not set");
    if (!settings->exports.secret.len)
        return once_fail(err, ONCE_E_DENIED, "AWS_ACCESS_KEY_ID is set, and AWS_SECRET_ACCESS_KEY is not");
    *out = (once_aws_found){settings->exports, ONCE_FOREVER};
    return once__aws_check_keys(&out->keys, err);
}
