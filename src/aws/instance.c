/* Credentials of an EC2 instance, from its metadata server: a session token first (version 2), then the name of the
 * role, then its credentials. Version 1, without a token, is only used if AWS_EC2_METADATA_V1_DISABLED is false. */
#include "aws/aws_impl.h"

#include "base/ascii.h"
#include "base/buf.h"
#include "base/no_memory.h"

#include "base/banned.h"

#define TIMEOUT_MS 2000
#define ROLES "/latest/meta-data/iam/security-credentials/"
#define LINE_MAX 1000 /* bytes of a session token, or of the name of a role */

/* One line of visible ASCII. */
static bool is_line(once_bytes text)
{
    for (size_t i = 0; i < text.len; i++)
        if (text.data[i] <= ' ' || text.data[i] > '~') return false;
    return text.len > 0 && text.len <= LINE_MAX;
}

static const char *address(const once_aws_search *s, const char *path, const char *name)
{
    once_bytes base = s->settings->metadata;
    while (base.len && base.data[base.len - 1] == '/') base.len--;
    return once__aws_text(s->arena, "%.*s%s%s", (int)base.len, base.data, path, name);
}

/* Asks, and gives the body without a line end behind it. */
static int ask(const once_aws_search *s, const char *method, const char *url, const char *header, once_buf *body,
               long *status, once_error *err)
{
    const char *lines[2] = {header, NULL};
    once_aws_answer answer;
    if (!url) return once_no_memory(err, "for a request");
    const once_aws_call call = {.method = method, .url = url, .headers = lines};
    const int rc = once__aws_ask(s, s->metadata, &call, TIMEOUT_MS, body, &answer, err);
    if (rc != ONCE_OK) return rc;
    while (body->len && once_ascii_is_space(body->data[body->len - 1])) body->data[--body->len] = '\0';
    *status = answer.status;
    return ONCE_OK;
}

static int refused(const char *what, long status, once_error *err)
{
    return once_fail(err, status >= 500 ? ONCE_E_UNAVAILABLE : ONCE_E_DENIED, "%s: status %ld", what, status);
}

/* The header with a session token; NULL: none, by version 1. */
static int get_token(const once_aws_search *s, once_buf *body, const char **header, once_error *err)
{
    long status;
    once_error why;
    *header = NULL;
    int rc = ask(s, "PUT", address(s, "/latest/api/token", ""), "X-aws-ec2-metadata-token-ttl-seconds: 21600", body,
                 &status, &why);
    if (rc != ONCE_OK) /* there is no such server on hosts that are no instances */
        return once_fail(err, rc == ONCE_E_UNAVAILABLE ? ONCE_E_MISSING : rc, "%s", why.text);
    if (status != 200) {
        if (s->settings->metadata_v1 && (status == 403 || status == 404 || status == 405)) return ONCE_OK;
        return refused("no session token", status, err);
    }
    if (!is_line(once_buf_bytes(body))) return once_fail(err, ONCE_E_DENIED, "the session token is malformed");
    *header = once__aws_text(s->arena, "X-aws-ec2-metadata-token: %s", body->data);
    return *header ? ONCE_OK : once_no_memory(err, "for a request");
}

static int get_role(const once_aws_search *s, const char *header, once_buf *body, const char **role, once_error *err)
{
    long status;
    const int rc = ask(s, "GET", address(s, ROLES, ""), header, body, &status, err);
    if (rc != ONCE_OK) return rc;
    if (status == 404) return once_fail(err, ONCE_E_MISSING, "the instance has no role");
    if (status != 200) return refused("no name of a role", status, err);
    if (!is_line(once_buf_bytes(body))) return once_fail(err, ONCE_E_DENIED, "the name of the role is malformed");
    *role = once__aws_text(s->arena, "%s", body->data);
    return *role ? ONCE_OK : once_no_memory(err, "for a request");
}

static int get_keys(const once_aws_search *s, once_buf *body, once_aws_found *out, once_error *err)
{
    const char *header, *role;
    long status;
    int rc = get_token(s, body, &header, err);
    if (rc == ONCE_OK) rc = get_role(s, header, body, &role, err);
    if (rc == ONCE_OK) rc = ask(s, "GET", address(s, ROLES, role), header, body, &status, err);
    if (rc != ONCE_OK) return rc;
    if (status != 200) return refused("no credentials of the role", status, err);
    return once__aws_read_json(ONCE_AWS_INSTANCE, once_buf_bytes(body), once_env_wall_ms(s->env), s->arena, out, err);
}

int once__aws_instance(const once_aws_search *s, once_aws_found *out, once_error *err)
{
    once_buf body;
    if (s->settings->metadata_off) return once_fail(err, ONCE_E_MISSING, "AWS_EC2_METADATA_DISABLED is true");
    once_buf_init(&body, ONCE_AWS_ANSWER_MAX);
    const int rc = get_keys(s, &body, out, err);
    once_buf_release(&body);
    return rc;
}
