/* Takes the URLs of a RabbitMQ source apart: SCHEME://USER:PASSWORD@HOST:PORT/PATH, with %XX in user, password and
 * path. */
#include <string.h>

#include "core/config_values.h"
#include "source/rabbitmq_spec.h"

#include "base/banned.h"

#define NO_PORT "behind the host must be a port, 1 to 65535"

/* The parts before and behind the first `c`. False: there is none. */
static bool find(once_bytes text, char c, once_bytes out[2])
{
    const char *at = text.len ? memchr(text.data, c, text.len) : NULL;
    if (!at) return false;
    const size_t before = (size_t)(at - text.data);
    out[0] = (once_bytes){text.data, before};
    out[1] = (once_bytes){at + 1, text.len - before - 1};
    return true;
}

static int hex(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* False: a '%' without two hexadecimal digits, a NUL, or out of memory (*why stays NULL). */
static bool decode(once_bytes text, once_arena *arena, once_bytes *out, const char **why)
{
    char *to = once_arena_alloc(arena, text.len + 1);
    if (!to) return false;
    size_t n = 0;
    for (size_t i = 0; i < text.len; i++) {
        char c = text.data[i];
        if (c == '%') {
            const bool whole = i + 2 < text.len;
            const int high = whole ? hex(text.data[i + 1]) : -1, low = whole ? hex(text.data[i + 2]) : -1;
            if (high < 0 || low < 0) {
                *why = "a '%' must be followed by two hexadecimal digits";
                return false;
            }
            c = (char)(high * 16 + low);
            i += 2;
        }
        if (c == '\0') {
            *why = "it has a NUL";
            return false;
        }
        to[n++] = c;
    }
    to[n] = '\0';
    *out = (once_bytes){to, n};
    return true;
}

/* The port behind the host; 0: it is none. */
static int read_port(once_bytes text)
{
    int port = 0;
    if (text.len == 0 || text.len > 5) return 0;
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] < '0' || text.data[i] > '9') return 0;
        port = port * 10 + (text.data[i] - '0');
    }
    return port <= 65535 ? port : 0;
}

/* HOST, HOST:PORT, [IPV6] or [IPV6]:PORT. */
static bool read_host(once_bytes text, once_arena *arena, once_rabbitmq_url *out, const char **why)
{
    once_bytes parts[2], host = text;
    if (text.len && text.data[0] == '[') {
        if (!find(text, ']', parts) || (parts[1].len && parts[1].data[0] != ':')) {
            *why = "the address in brackets has no end";
            return false;
        }
        host = (once_bytes){parts[0].data + 1, parts[0].len - 1};
        if (parts[1].len) {
            out->port = read_port((once_bytes){parts[1].data + 1, parts[1].len - 1});
            if (out->port == 0) *why = NO_PORT;
        }
    } else if (find(text, ':', parts)) {
        host = parts[0];
        out->port = read_port(parts[1]);
        if (out->port == 0) *why = NO_PORT;
    }
    if (!*why && host.len == 0) *why = "it has no host";
    return !*why && decode(host, arena, &out->host, why);
}

bool once__rabbitmq_url(once_bytes text, once_arena *arena, once_rabbitmq_url *out, const char **why)
{
    once_bytes parts[2], rest, authority, login[2];
    *out = (once_rabbitmq_url){0};
    *why = NULL;
    if (!find(text, ':', parts) || parts[1].len < 2 || memcmp(parts[1].data, "//", 2) != 0) {
        *why = "it does not begin with a scheme and '://'";
        return false;
    }
    out->scheme = parts[0];
    rest = (once_bytes){parts[1].data + 2, parts[1].len - 2};
    if (find(rest, '?', parts) || find(rest, '#', parts)) {
        *why = "it has parameters; use the fields of 'rabbitmq'";
        return false;
    }
    authority = rest;
    if (find(rest, '/', parts)) {
        authority = parts[0];
        if (!decode(parts[1], arena, &out->path, why)) return false;
    }
    if (find(authority, '@', parts)) {
        authority = parts[1];
        const bool both = find(parts[0], ':', login);
        if (!decode(both ? login[0] : parts[0], arena, &out->user, why)) return false;
        if (both && !decode(login[1], arena, &out->password, why)) return false;
    }
    return read_host(authority, arena, out, why);
}

const char *once__rabbitmq_url_fault(const once_rabbitmq_url *url, const char *scheme)
{
    const size_t len = strlen(scheme);
    const bool begins = url->scheme.len >= len && memcmp(url->scheme.data, scheme, len) == 0;
    if (begins && (url->scheme.len == len || (url->scheme.len == len + 1 && url->scheme.data[len] == 's'))) return NULL;
    return *scheme == 'a' ? "it must begin with amqp:// or amqps://" : "it must begin with http:// or https://";
}
