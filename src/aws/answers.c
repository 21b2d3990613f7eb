/* What providers answer: credentials as JSON (container, instance metadata, credential_process) or XML (STS). Nothing
 * of an answer gets into an error, since any part of it may be secret. */
#include "aws/aws_impl.h"

#include <assert.h>

#include "base/buf.h"
#include "base/duration.h"
#include "base/json.h"
#include "base/no_memory.h"

#include "base/banned.h"

#define ID_MAX 128
#define TOKEN_MAX ((size_t)16 << 10)
#define CODE_MAX 60

/* Visible ASCII: it fits into a header. */
static bool is_plain(once_bytes text, size_t max)
{
    for (size_t i = 0; i < text.len; i++)
        if (text.data[i] <= ' ' || text.data[i] > '~') return false;
    return text.len <= max;
}

int once__aws_check_keys(const once_aws_keys *keys, once_error *err)
{
    const char *what = NULL;
    if (!keys->id.len || !is_plain(keys->id, ID_MAX)) what = "access key id";
    else if (!keys->secret.len || !is_plain(keys->secret, ONCE_AWS_SECRET_MAX)) what = "secret access key";
    else if (!is_plain(keys->token, TOKEN_MAX)) what = "session token";
    if (!what) return ONCE_OK;
    return once_fail(err, ONCE_E_DENIED, "the %s is empty, too long, or has characters that are not visible ASCII",
                     what);
}

/* `expires`: as RFC 3339; empty: they do not end. */
static int finish(once_aws_found *found, once_bytes expires, int64_t now_ms, once_error *err)
{
    found->until_ms = ONCE_FOREVER;
    if (expires.len && once_time_parse(expires, &found->until_ms, NULL) != ONCE_OK)
        return once_fail(err, ONCE_E_DENIED, "the answer says in no known form when the credentials end");
    if (found->until_ms <= now_ms)
        return once_fail(err, ONCE_E_DENIED,
                         "the answer has credentials that have ended; is the clock of this host right?");
    return once__aws_check_keys(&found->keys, err);
}

/* --- JSON --------------------------------------------------------------------------------------------------------- */

/* An absent member is empty. False: it is no string, or memory is out. */
static bool member(const once_json *json, const char *name, once_arena *arena, once_bytes *out)
{
    const once_json_value value = once_json_member(json, once_json_root(json), once_bytes_of(name));
    once_bytes text = {0};
    if (value.type != ONCE_JSON_ABSENT && value.type != ONCE_JSON_NULL && !once_json_string(value, arena, &text))
        return false;
    return once_arena_copy(arena, text, out);
}

static int read_members(once_aws_answer_kind kind, const once_json *json, int64_t now_ms, once_arena *arena,
                        once_aws_found *out, once_error *err)
{
    once_bytes expires, code;
    int64_t version = 0;
    const char *token = kind == ONCE_AWS_PROCESS ? "SessionToken" : "Token";
    if (!member(json, "AccessKeyId", arena, &out->keys.id) ||
        !member(json, "SecretAccessKey", arena, &out->keys.secret) || !member(json, token, arena, &out->keys.token) ||
        !member(json, "Expiration", arena, &expires) || !member(json, "Code", arena, &code))
        return once_fail(err, ONCE_E_DENIED, "the answer has a member of the wrong type");
    if (kind == ONCE_AWS_INSTANCE && !once_bytes_equal(code, ONCE_BYTES("Success")))
        return once_fail(err, ONCE_E_DENIED, "the answer is not a success");
    if (kind == ONCE_AWS_PROCESS &&
        (!once_json_int64(once_json_member(json, once_json_root(json), ONCE_BYTES("Version")), &version) ||
         version != 1))
        return once_fail(err, ONCE_E_DENIED, "the output has no 'Version' 1");
    if (!out->keys.id.len || !out->keys.secret.len)
        return once_fail(err, ONCE_E_DENIED, "the answer has no 'AccessKeyId' or no 'SecretAccessKey'");
    if (kind != ONCE_AWS_PROCESS && (!expires.len || !out->keys.token.len))
        return once_fail(err, ONCE_E_DENIED, "the answer has no 'Token' or no 'Expiration'");
    return finish(out, expires, now_ms, err);
}

int once__aws_read_json(once_aws_answer_kind kind, once_bytes text, int64_t now_ms, once_arena *arena,
                        once_aws_found *out, once_error *err)
{
    assert(arena && out);
    const once_json_options options = {.object = true, .max_bytes = ONCE_AWS_ANSWER_MAX};
    once_json json;
    once_json_error why;
    once_json_init(&json);
    int rc = once_json_parse(&json, text, &options, &why);
    if (rc == ONCE_OK) rc = read_members(kind, &json, now_ms, arena, out, err);
    else if (rc == ONCE_E_NOMEM) rc = once_no_memory(err, "for credentials");
    else rc = once_fail(err, ONCE_E_DENIED, "the answer is not JSON: %s at byte %zu", why.reason, why.offset);
    once_json_release(&json);
    return rc;
}

/* --- XML ---------------------------------------------------------------------------------------------------------- */

int once__aws_read_xml(once_bytes text, int64_t now_ms, once_arena *arena, once_aws_found *out, once_error *err)
{
    assert(arena && out);
    once_bytes expires;
    const struct {
        const char *name;
        once_bytes *to;
    } wanted[] = {{"AccessKeyId", &out->keys.id},
                  {"SecretAccessKey", &out->keys.secret},
                  {"SessionToken", &out->keys.token},
                  {"Expiration", &expires}};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        const int found = once__aws_xml_find(text, "Credentials", wanted[i].name, arena, wanted[i].to);
        if (found < 0) return once_fail(err, ONCE_E_DENIED, "the answer is not well-formed XML");
        if (!found || !wanted[i].to->len)
            return once_fail(err, ONCE_E_DENIED, "the answer has no '%s'", wanted[i].name);
    }
    return finish(out, expires, now_ms, err);
}

once_bytes once__aws_read_xml_error(once_bytes text, once_arena *arena)
{
    once_bytes code;
    if (once__aws_xml_find(text, "Error", "Code", arena, &code) != 1 || !is_plain(code, CODE_MAX))
        return (once_bytes){0};
    return code;
}
