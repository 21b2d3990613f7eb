/* Inside of src/aws: what its files call of each other.
 *
 * A provider is a function that looks for credentials in one place. ONCE_E_MISSING: it is not set up here, and the next
 * one is asked; any other failure decides. Its text says what was seen, without the name of the provider. */
#ifndef ONCE_AWS_AWS_IMPL_H
#define ONCE_AWS_AWS_IMPL_H

#include "aws/aws.h"
#include "aws/http.h"

#define ONCE_AWS_ANSWER_MAX ((size_t)64 << 10) /* bytes of an answer of a provider */

/* The environment and the options, read once. Paths and addresses end with a NUL; empty: not set. */
typedef struct once_aws_settings {
    once_aws_keys given;   /* by the options */
    once_aws_keys exports; /* by the environment */
    once_bytes profile;
    bool profile_named; /* by the options or by AWS_PROFILE: it must exist */
    bool profile_first; /* by the options: the environment's keys are not asked */
    once_bytes credentials_file, config_file;
    once_bytes role, role_session, identity_file; /* web identity */
    once_bytes container_relative, container_full, container_token, container_token_file;
    once_bytes metadata; /* the address of the instance metadata */
    bool metadata_off, metadata_v1;
    once_bytes sts; /* the address of STS; empty: that of the region */
    once_bytes region, ca_file;
} once_aws_settings;

/* One look for credentials. */
typedef struct once_aws_search {
    const once_aws_settings *settings;
    const once_env *env;
    once_arena *arena;                  /* for what is found, and for everything else */
    once_aws_http *services, *metadata; /* clients: the second never uses a proxy */
    int64_t until_ns;                   /* the end of the search, by the clock of `env` that only moves forward */
    once_cancel cancel;
} once_aws_search;

typedef struct once_aws_found {
    once_aws_keys keys;
    int64_t until_ms; /* by the wall clock; ONCE_FOREVER: they do not end */
} once_aws_found;

typedef int once_aws_provider(const once_aws_search *s, once_aws_found *out, once_error *err);

/* environment.c */
int once__aws_read_settings(const once_aws_options *options, const once_env *env, once_arena *arena,
                            once_aws_settings *out, once_error *err);

/* environment.c, profile.c, container.c, instance.c, sts.c */
once_aws_provider once__aws_environment;
once_aws_provider once__aws_web_identity;
once_aws_provider once__aws_profile;
once_aws_provider once__aws_container;
once_aws_provider once__aws_instance;

/* A role that is taken with a token of an identity provider (unsigned), or with keys. */
typedef struct once_aws_role {
    once_bytes arn, session, external_id, duration_s; /* empty: not set; the arn is */
    once_bytes identity_file;                         /* for the first */
    const once_aws_keys *keys;                        /* for the second */
} once_aws_role;

int once__aws_assume_role(const once_aws_search *s, const once_aws_role *role, once_aws_found *out, once_error *err);

/* profile_file.c: the properties of a profile. */
typedef struct once_aws_profiles {
    once_bytes credentials, config; /* the texts of the files; empty: there is none */
} once_aws_profiles;

/* ONCE_E_MISSING: a file may not be read, and nobody has asked for a profile. A service often has no right to the home
 * of its user, and gets its credentials from elsewhere. */
int once__aws_read_profiles(const once_aws_settings *settings, const once_env *env, once_arena *arena,
                            once_aws_profiles *out, once_error *err);
bool once__aws_has_profile(const once_aws_profiles *profiles, once_bytes name);
/* The last value in the file of credentials, otherwise in that of the configuration; empty: none. Not copied. */
once_bytes once__aws_property(const once_aws_profiles *profiles, once_bytes profile, const char *name);

/* answers.c: what providers answer. `now_ms` by the wall clock. The text of an error has nothing of the answer. */
typedef enum once_aws_answer_kind { ONCE_AWS_CONTAINER, ONCE_AWS_INSTANCE, ONCE_AWS_PROCESS } once_aws_answer_kind;

int once__aws_read_json(once_aws_answer_kind kind, once_bytes text, int64_t now_ms, once_arena *arena,
                        once_aws_found *out, once_error *err);
int once__aws_read_xml(once_bytes text, int64_t now_ms, once_arena *arena, once_aws_found *out, once_error *err);
/* The code of an error in an answer of STS, such as "AccessDenied"; empty: it has none. */
once_bytes once__aws_read_xml_error(once_bytes text, once_arena *arena);
/* Whether they can be used in headers. `err` says what cannot. */
int once__aws_check_keys(const once_aws_keys *keys, once_error *err);

/* xml.c. The text of an element without elements inside, by its name and that of the element around it. 1: found,
 * 0: the document is well-formed and has none, -1: it is not well-formed, or memory is out. */
int once__aws_xml_find(once_bytes text, const char *around, const char *name, once_arena *arena, once_bytes *out);

/* Makes a call within the time of the search, and at most `timeout_ms`. A status of HTTP other than 200 is no error. */
int once__aws_ask(const once_aws_search *s, once_aws_http *http, const once_aws_call *call, int64_t timeout_ms,
                  once_buf *body, once_aws_answer *answer, once_error *err);

/* Percent-encodes all but letters, digits, "-._~" and the character `also` (0: no other). */
void once__aws_put_encoded(once_buf *out, once_bytes text, char also);

/* A text in the arena, with a NUL behind it; NULL: out of memory. */
const char *once__aws_text(once_arena *arena, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
