/* Roles, from the Security Token Service: with a token of an identity provider, which is not signed, or with keys. The
 * query protocol: a form is sent, XML comes back. */
#include "aws/aws_impl.h"

#include "base/buf.h"
#include "base/no_memory.h"
#include "base/value.h"

#include "base/banned.h"

#define TIMEOUT_MS 10000
#define FORM_MAX ((size_t)64 << 10)

/* An empty value is left out. */
static void put(once_buf *form, const char *name, once_bytes value)
{
    if (!value.len) return;
    (void)once_buf_printf(form, "&%s=", name);
    once__aws_put_encoded(form, value, 0);
}

static int make_form(const once_aws_search *s, const once_aws_role *role, once_buf *form, once_error *err)
{
    const bool web = role->identity_file.len > 0;
    once_bytes token = {0};
    if (web) {
        const char *why = once_file_read(s->env, role->identity_file.data, s->arena, &token);
        if (why)
            return once_fail(err, ONCE_E_DENIED, "cannot read the token in '%s': %s", role->identity_file.data, why);
        if (!token.len)
            return once_fail(err, ONCE_E_DENIED, "the file of the token '%s' is empty", role->identity_file.data);
    }
    (void)once_buf_printf(form, "Action=%s&Version=2011-06-15", web ? "AssumeRoleWithWebIdentity" : "AssumeRole");
    put(form, "RoleArn", role->arn);
    put(form, "RoleSessionName", role->session.len ? role->session : ONCE_BYTES("once"));
    put(form, "ExternalId", web ? (once_bytes){0} : role->external_id);
    put(form, "DurationSeconds", role->duration_s);
    put(form, "WebIdentityToken", token);
    return form->failed ? once_fail(err, ONCE_E_DENIED, "the token is too large") : ONCE_OK;
}

/* The address, and the region that it is signed for. */
static const char *address(const once_aws_search *s, const char **region)
{
    const once_aws_settings *settings = s->settings;
    *region = settings->region.len ? settings->region.data : "us-east-1";
    if (settings->sts.len) return settings->sts.data;
    if (!settings->region.len) return "https://sts.amazonaws.com/";
    const bool china = strncmp(*region, "cn-", 3) == 0;
    return once__aws_text(s->arena, "https://sts.%s.amazonaws.com%s/", *region, china ? ".cn" : "");
}

/* Only the code: the text of a wrong signature has headers of the request. */
static int refused(const once_aws_search *s, long status, once_bytes body, once_error *err)
{
    const once_bytes code = once__aws_read_xml_error(body, s->arena);
    return once_fail(err, status >= 500 || status == 429 ? ONCE_E_UNAVAILABLE : ONCE_E_DENIED,
                     "STS answered with status %ld%s%.*s", status, code.len ? ", " : "", (int)code.len,
                     code.len ? code.data : "");
}

static int ask(const once_aws_search *s, const once_aws_role *role, once_bytes form, once_buf *body,
               once_aws_answer *answer, once_error *err)
{
    static const char *const plain[] = {"Content-Type: application/x-www-form-urlencoded", NULL};
    const char *region, **lines = NULL;
    const char *url = address(s, &region);
    if (!url) return once_no_memory(err, "for a request");
    if (role->keys) {
        const once_aws_request request = {.method = "POST", .url = url, .headers = plain, .body = form};
        const int rc =
            once_aws_sign(&request, role->keys, region, "sts", once_env_wall_ms(s->env) / 1000, s->arena, &lines, err);
        if (rc != ONCE_OK) return rc;
    }
    const once_aws_call call = {.method = "POST", .url = url, .headers = lines ? lines : plain, .body = form};
    return once__aws_ask(s, s->services, &call, TIMEOUT_MS, body, answer, err);
}

int once__aws_assume_role(const once_aws_search *s, const once_aws_role *role, once_aws_found *out, once_error *err)
{
    once_aws_answer answer;
    once_buf form, body;
    once_buf_init(&form, FORM_MAX);
    once_buf_init(&body, ONCE_AWS_ANSWER_MAX);
    int rc = make_form(s, role, &form, err);
    if (rc == ONCE_OK) rc = ask(s, role, once_buf_bytes(&form), &body, &answer, err);
    if (rc == ONCE_OK && answer.status != 200) rc = refused(s, answer.status, once_buf_bytes(&body), err);
    if (rc == ONCE_OK) rc = once__aws_read_xml(once_buf_bytes(&body), once_env_wall_ms(s->env), s->arena, out, err);
    once_buf_release(&form);
    once_buf_release(&body);
    return rc;
}

int once__aws_web_identity(const once_aws_search *s, once_aws_found *out, once_error *err)
{
    const once_aws_settings *settings = s->settings;
    if (settings->profile_first) return once_fail(err, ONCE_E_MISSING, "not asked, as a profile is given");
    if (!settings->identity_file.len) return once_fail(err, ONCE_E_MISSING, "AWS_WEB_IDENTITY_TOKEN_FILE is not set");
    if (!settings->role.len)
        return once_fail(err, ONCE_E_DENIED, "AWS_WEB_IDENTITY_TOKEN_FILE is set, and AWS_ROLE_ARN is not");
    const once_aws_role role = {
        .arn = settings->role, .session = settings->role_session, .identity_file = settings->identity_file};
    return once__aws_assume_role(s, &role, out, err);
}
