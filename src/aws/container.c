/* Credentials of a task in a container (ECS, EKS Pod Identity): a server beside the container gives them. Unless https
 * is spoken, it must be on this host or one of the addresses that AWS uses for it: whoever gets the request learns the
 * token. */
#include "aws/aws_impl.h"

#include "base/ascii.h"
#include "base/buf.h"
#include "base/no_memory.h"
#include "base/value.h"

#include "base/banned.h"

#define RELATIVE_TO "http://169.254.170.2"
#define TIMEOUT_MS 5000

static bool is_host(once_bytes host, const char *name) { return once_bytes_equal(host, once_bytes_of(name)); }

/* 127.x.x.x in digits. */
static bool is_loopback(once_bytes host)
{
    size_t dots = 0;
    if (host.len < 9 || memcmp(host.data, "127.", 4) != 0) return is_host(host, "localhost") || is_host(host, "[::1]");
    for (size_t i = 0; i < host.len; i++) {
        if (host.data[i] == '.') dots++;
        else if (host.data[i] < '0' || host.data[i] > '9') return false;
    }
    return dots == 3;
}

static bool is_allowed(const char *url)
{
    if (strncmp(url, "https://", 8) == 0) return true;
    if (strncmp(url, "http://", 7) != 0) return false;
    const char *host = url + 7;
    size_t len = strcspn(host, "/?#");
    if (memchr(host, '@', len)) return false;
    if (host[0] == '[') {
        const char *end = memchr(host, ']', len);
        if (!end || (end + 1 < host + len && end[1] != ':')) return false;
        len = (size_t)(end + 1 - host);
    } else {
        len = strcspn(host, ":/?#");
    }
    const once_bytes name = {host, len};
    return is_loopback(name) || is_host(name, "169.254.170.2") || is_host(name, "169.254.170.23") ||
           is_host(name, "[fd00:ec2::23]");
}

/* The line of the header, or NULL if no token is set. A file is read each time: its token changes. */
static int token_line(const once_aws_search *s, const char **out, once_error *err)
{
    once_bytes token = s->settings->container_token;
    *out = NULL;
    if (s->settings->container_token_file.len) {
        const char *why = once_file_read(s->env, s->settings->container_token_file.data, s->arena, &token);
        if (why)
            return once_fail(err, ONCE_E_DENIED, "cannot read the file of AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE: %s",
                             why);
    }
    if (!token.len) return ONCE_OK;
    for (size_t i = 0; i < token.len; i++)
        if ((unsigned char)token.data[i] < ' ' || token.data[i] == 0x7f)
            return once_fail(err, ONCE_E_DENIED, "the authorization token has control characters");
    *out = once__aws_text(s->arena, "Authorization: %s", token.data);
    return *out ? ONCE_OK : once_no_memory(err, "for a request");
}

static int ask(const once_aws_search *s, const char *url, once_aws_found *out, once_error *err)
{
    const char *lines[2] = {NULL, NULL};
    once_aws_answer answer;
    once_buf body;
    int rc = token_line(s, &lines[0], err);
    if (rc != ONCE_OK) return rc;
    const once_aws_call call = {.method = "GET", .url = url, .headers = lines};
    once_buf_init(&body, ONCE_AWS_ANSWER_MAX);
    rc = once__aws_ask(s, s->metadata, &call, TIMEOUT_MS, &body, &answer, err);
    if (rc == ONCE_OK && answer.status != 200)
        rc = once_fail(err, answer.status >= 500 || answer.status == 429 ? ONCE_E_UNAVAILABLE : ONCE_E_DENIED,
                       "the server answered with status %ld", answer.status);
    if (rc == ONCE_OK)
        rc = once__aws_read_json(ONCE_AWS_CONTAINER, once_buf_bytes(&body), once_env_wall_ms(s->env), s->arena, out,
                                 err);
    once_buf_release(&body);
    return rc;
}

int once__aws_container(const once_aws_search *s, once_aws_found *out, once_error *err)
{
    const once_aws_settings *settings = s->settings;
    const char *url = settings->container_full.data;
    if (settings->container_relative.len) {
        if (settings->container_relative.data[0] != '/')
            return once_fail(err, ONCE_E_CONFIG, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI does not begin with '/'");
        url = once__aws_text(s->arena, RELATIVE_TO "%s", settings->container_relative.data);
        if (!url) return once_no_memory(err, "for a request");
    } else if (!settings->container_full.len) {
        return once_fail(err, ONCE_E_MISSING, "AWS_CONTAINER_CREDENTIALS_FULL_URI is not set");
    }
    if (!is_allowed(url))
        return once_fail(err, ONCE_E_CONFIG, "AWS_CONTAINER_CREDENTIALS_FULL_URI is neither https nor on this host");
    return ask(s, url, out, err);
}
