/* What every service of AWS needs: credentials, the region, and Signature Version 4. Nothing here knows a service.
 *
 * Credentials are looked for where users of AWS expect them, in this order. The first provider that is set up decides;
 * if it fails, no later one is asked:
 *
 *   environment        AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN. Not asked if `profile` is given
 *   web identity       AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN. Not asked if `profile` is given
 *   profile            of ~/.aws/credentials and ~/.aws/config: keys, a role (role_arn with source_profile,
 *                      credential_source or web_identity_token_file), credential_process
 *   container          AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or _FULL_URI
 *   instance metadata  version 2, with a session token. Not asked if AWS_EC2_METADATA_DISABLED is true
 *
 * Guarantees
 *   - Credentials that are known to have ended are never given out.
 *   - No text of an error or of the log has a key, a token, or what a provider answered.
 *   - A call to a provider ends after at most ONCE_AWS_GET_MS, whatever the provider does.
 *   - An answer that is malformed, cut off or too large is an error.
 *
 * Ownership: what is given out is copied into the arena of the caller. */
#ifndef ONCE_AWS_AWS_H
#define ONCE_AWS_AWS_H

#include "base/arena.h"
#include "base/cancel.h"
#include "base/env.h"
#include "once/types.h"

#define ONCE_AWS_GET_MS 30000   /* how long once_aws_credentials_get may take */
#define ONCE_AWS_SECRET_MAX 256 /* bytes of a secret key */
#define ONCE_AWS_REGION_MAX 64  /* bytes of the name of a region, or of a service */

/* --- credentials -------------------------------------------------------------------------------------------------- */

typedef struct once_aws_keys {
    once_bytes id, secret;
    once_bytes token; /* of a session; empty: they are not those of a session */
} once_aws_keys;

/* What the pipeline file says. Empty fields: as the environment says. */
typedef struct once_aws_options {
    once_bytes profile; /* instead of AWS_PROFILE, and before the environment's keys */
    once_bytes region;  /* instead of AWS_REGION and AWS_DEFAULT_REGION */
    once_bytes ca_file; /* certificates that are trusted for https, instead of AWS_CA_BUNDLE; see once_aws_ca_file */
    once_aws_keys keys; /* given directly, instead of all providers; an empty `id`: none are given */
    once_cancel cancel; /* a call to a provider under way ends soon when it is asked; must outlive the credentials */
} once_aws_options;

typedef struct once_aws_credentials once_aws_credentials;

/* Reads the environment variables and the region; calls no provider. `env` must outlive the credentials; the options
 * are copied. ONCE_E_CONFIG: what is set up contradicts itself, or a profile that is named does not exist. */
int once_aws_credentials_open(const once_aws_options *options, const once_env *env, once_aws_credentials **out,
                              once_error *err);
void once_aws_credentials_close(once_aws_credentials *c); /* NULL is allowed. Nobody may be in a call */

/* The keys to sign with now. They are fetched by the first call, and again five minutes before they end, or at once
 * after once_aws_credentials_refused. One thread fetches; others get the old keys as long as these are valid, and wait
 * for it otherwise. If fetching fails, the old keys are given out while they are valid; without any, the failure is
 * that of all calls of the next second.
 *
 * ONCE_E_DENIED: no provider has credentials, or one refused; the text names each provider with what it said.
 * ONCE_E_UNAVAILABLE: a provider is not reachable. ONCE_E_CONFIG: a mistake in the profile files. ONCE_E_BUSY: it was
 * cancelled.
 *
 * Thread rule: any thread. It may block for ONCE_AWS_GET_MS. */
int once_aws_credentials_get(once_aws_credentials *c, once_arena *arena, once_aws_keys *out, once_error *err);

/* A server has said that the keys with this id are expired or invalid: the next get fetches anew. Nothing happens if
 * they were already replaced. Keys that cannot be fetched anew (environment) stay. Thread rule: any thread. */
void once_aws_credentials_refused(once_aws_credentials *c, once_bytes id);

/* The region from the options, the environment or the profile; NULL: none is set. Lives as long as `c`. */
const char *once_aws_region(const once_aws_credentials *c);

/* The file of certificates for https; NULL: those of the system. Lives as long as `c`. */
const char *once_aws_ca_file(const once_aws_credentials *c);

/* The address that AWS_ENDPOINT_URL_<SERVICE> or AWS_ENDPOINT_URL gives, as the SDKs know them; `service` in capital
 * letters ("SQS"). NULL: neither is set, or AWS_IGNORE_CONFIGURED_ENDPOINT_URLS is true. Reads the environment. */
const char *once_aws_endpoint(const char *service);

/* --- Signature Version 4 ------------------------------------------------------------------------------------------ */

typedef struct once_aws_request {
    const char *method;         /* "POST" */
    const char *url;            /* as it is sent: "https://host[:port]/path?query" */
    const char *const *headers; /* "Name: value", all of which are signed; a NULL ends the list; NULL: none */
    once_bytes body;
} once_aws_request;

/* Gives all header lines to send, in the arena, with a NULL at the end: those of the request, then X-Amz-Date,
 * X-Amz-Security-Token (if the keys have a token) and Authorization. The host is signed, too: the client must send it
 * as it is in the URL, without the port that belongs to the scheme. `now_s`: seconds since 1970 in UTC.
 * ONCE_E_CONFIG: the URL is not one. ONCE_E_NOMEM. The keys are those of once_aws_credentials_get: not empty, no longer
 * than the limits above, and without spaces and control characters.
 *
 * Pure: depends on nothing but its arguments. Thread rule: any thread. */
int once_aws_sign(const once_aws_request *request, const once_aws_keys *keys, const char *region, const char *service,
                  int64_t now_s, once_arena *arena, const char ***headers, once_error *err);

#endif
