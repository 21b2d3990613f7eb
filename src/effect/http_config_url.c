/* The URL of a request: scheme, host and port stand in the file, and only path and query may have placeholders. */
#include <arpa/inet.h>
#include <string.h>

#include "base/ascii.h"
#include "core/config_values.h"
#include "effect/http_config.h"

#include "base/banned.h"

/* Where the path begins, or the text ends. */
static size_t origin_length(once_bytes url)
{
    const size_t scheme = once__http_starts_with(url, "https://") ? strlen("https://") : strlen("http://");
    size_t len = scheme;
    while (len < url.len && url.data[len] != '/' && url.data[len] != '?' && url.data[len] != '#') len++;
    return len;
}

static bool is_port(once_bytes text)
{
    int port = 0;
    if (text.len == 0 || text.len > 5) return false;
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] < '0' || text.data[i] > '9') return false;
        port = 10 * port + (text.data[i] - '0');
    }
    return port > 0 && port < 65536;
}

/* Takes "HOST" or "[ADDRESS]" off the beginning of what stands behind the scheme. False: it is neither. */
static bool take_host(once_bytes *rest, once_bytes *host)
{
    size_t len = 0;
    const bool brackets = rest->len && rest->data[0] == '[';
    if (brackets) {
        const char *end = memchr(rest->data, ']', rest->len);
        if (!end) return false;
        *host = (once_bytes){rest->data + 1, (size_t)(end - rest->data) - 1};
        len = host->len + 2;
    } else {
        while (len < rest->len && rest->data[len] != ':') len++;
        *host = (once_bytes){rest->data, len};
    }
    for (size_t i = 0; i < host->len; i++) {
        const char c = host->data[i];
        const bool digit = c >= '0' && c <= '9', letter = once_ascii_is_letter(c);
        if (!digit && !letter && !(brackets ? c == ':' || c == '.' : c == '-' || c == '.' || c == '_')) return false;
    }
    rest->data += len;
    rest->len -= len;
    return host->len > 0;
}

static void classify_host(once_bytes host, once_http_request *request)
{
    char text[INET6_ADDRSTRLEN];
    struct in_addr four;
    struct in6_addr six;
    request->loopback = once_ascii_is(host.data, host.len, "localhost");
    if (host.len >= sizeof text) return;
    memcpy(text, host.data, host.len);
    text[host.len] = '\0';
    if (inet_pton(AF_INET, text, &four) == 1) {
        request->loopback = ntohl(four.s_addr) >> 24 == 127;
        request->link_local = ntohl(four.s_addr) >> 16 == 0xa9fe;
    } else if (inet_pton(AF_INET6, text, &six) == 1) {
        request->loopback = IN6_IS_ADDR_LOOPBACK(&six);
        request->link_local = IN6_IS_ADDR_LINKLOCAL(&six);
    }
}

/* What is wrong with scheme, host and port; NULL: nothing. */
static const char *check_origin(once_bytes url, once_http_request *request)
{
    if (!once__http_starts_with(url, "https://") && !once__http_starts_with(url, "http://"))
        return "must begin with https:// or http://";
    request->tls = once__http_starts_with(url, "https://");
    request->origin = origin_length(url);
    const size_t scheme = strlen(request->tls ? "https://" : "http://");
    once_bytes rest = {url.data + scheme, request->origin - scheme}, host = {0};
    if (memmem(rest.data, rest.len, "${", 2))
        return "must have its scheme, host and port in the file, not from a message";
    if (memchr(rest.data, '@', rest.len)) return "must have no name or password; use 'basic'";
    if (!take_host(&rest, &host)) return "has no valid host";
    if (rest.len && (rest.data[0] != ':' || !is_port((once_bytes){rest.data + 1, rest.len - 1})))
        return "has no valid port";
    classify_host(host, request);
    return NULL;
}

/* What is wrong with path and query; placeholders are skipped. */
static const char *check_path(once_bytes path)
{
    if (path.len && path.data[0] == '#') return "must have no fragment ('#')";
    for (size_t i = 0; i < path.len; i++) {
        const unsigned char c = (unsigned char)path.data[i];
        if (c == '$' && i + 1 < path.len && path.data[i + 1] == '{') {
            const char *end = memchr(path.data + i, '}', path.len - i);
            if (!end) return NULL; /* the template says so */
            i = (size_t)(end - path.data);
            continue;
        }
        if (c == '#') return "must have no fragment ('#')";
        if (c <= ' ' || c >= 0x7f || strchr("\"<>\\^`{|}", c)) return "has a character that must be written as %XX";
    }
    return once_http_path_steps(path) ? "has a step '.' or '..' in its path; write the path without it" : NULL;
}

bool once__http_config_url(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    static const struct {
        const char *field, *method;
    } methods[] = {{"get", "GET"}, {"post", "POST"}, {"put", "PUT"}, {"patch", "PATCH"}, {"delete", "DELETE"}};
    once_http_request *request = out, made = *request;
    once_bytes url;
    if (!once_config_scalar(config, field, node, &url)) return false;
    const char *wrong = check_origin(url, &made);
    const once_bytes path = {url.data + made.origin, wrong ? 0 : url.len - made.origin};
    if (!wrong) wrong = check_path(path);
    if (wrong) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "'%s': the URL %s; write '%s: %s'", field->name, wrong,
                          field->name, field->example);
        return false;
    }
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (strcmp(methods[i].field, field->name) == 0) made.method = methods[i].method;
    made.written = url;
    made.line = node->line;
    if (!once__http_read_text(config, field->name, node, ONCE_HTTP_PATH, &made.url)) return false;
    if (request->method) {
        once_config_wrong(config, ONCE_E_CONFIG, node->name_line,
                          "a request has one of 'get', 'post', 'put', 'patch' and 'delete'; keep one");
        return false;
    }
    *request = made;
    return true;
}
