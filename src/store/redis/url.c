#include "store/redis/url.h"

#include "base/beside.h"
#include "base/errno_text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/banned.h"

#define USUAL_PORT 6379

static int hex(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Copies a part of the URL, and decodes %XX. False: it is too long, or not allowed in a URL. */
static bool part(once_bytes from, char *out, size_t size)
{
    size_t n = 0;
    for (size_t i = 0; i < from.len; i++) {
        int c = (unsigned char)from.data[i];
        if (c == '%') {
            if (i + 2 >= from.len || hex(from.data[i + 1]) < 0 || hex(from.data[i + 2]) < 0) return false;
            c = hex(from.data[i + 1]) * 16 + hex(from.data[i + 2]);
            i += 2;
        }
        if (c == 0 || n + 1 >= size) return false;
        out[n++] = (char)c;
    }
    out[n] = 0;
    return true;
}

static bool number(once_bytes from, unsigned max, unsigned *out)
{
    unsigned value = 0;
    if (from.len == 0 || from.len > 6) return false;
    for (size_t i = 0; i < from.len; i++) {
        if (from.data[i] < '0' || from.data[i] > '9') return false;
        value = value * 10 + (unsigned)(from.data[i] - '0');
    }
    *out = value;
    return value <= max;
}

static bool starts(once_bytes text, const char *with)
{
    return text.len >= strlen(with) && memcmp(text.data, with, strlen(with)) == 0;
}

static once_bytes after(once_bytes text, size_t n) { return (once_bytes){text.data + n, text.len - n}; }

/* The part before the first `c`, or all of it; `rest` is what follows the `c`. */
static once_bytes cut(once_bytes *rest, char c)
{
    const char *at = rest->len ? memchr(rest->data, c, rest->len) : NULL;
    const once_bytes head = {rest->data, at ? (size_t)(at - rest->data) : rest->len};
    *rest = at ? after(*rest, head.len + 1) : (once_bytes){rest->data + rest->len, 0};
    return head;
}

/* Reads the first line, without its newline, as far as it fits. */
static bool read_line(int fd, char *out, size_t size)
{
    size_t len = 0;
    ssize_t got = 1;
    while (len < size - 1 && got != 0) {
        got = read(fd, out + len, size - 1 - len);
        if (got < 0 && errno != EINTR) return false;
        if (got > 0) len += (size_t)got;
    }
    out[len] = 0;
    out[strcspn(out, "\r\n")] = 0;
    return len > 0;
}

static int read_password(once_bytes reference, once_redis_url *out, once_error *err)
{
    char place[400];
    if (starts(reference, "env:") && part(after(reference, 4), place, sizeof place)) {
        const char *value = getenv(place);
        if (!value || !*value)
            return once_fail(err, ONCE_E_CONFIG, "the variable '%s' that 'password=env:%s' names is not set", place,
                             place);
        const size_t len = strlen(value);
        if (len >= sizeof out->password)
            return once_fail(err, ONCE_E_CONFIG, "the password in the variable '%s' is too long", place);
        memcpy(out->password, value, len + 1);
        return ONCE_OK;
    }
    if (starts(reference, "file:") && part(after(reference, 5), place, sizeof place)) {
        const int fd = open(place, O_RDONLY | O_CLOEXEC | O_NOCTTY);
        if (fd < 0)
            return once_fail(err, ONCE_E_CONFIG, "cannot read the password from '%s': %s", place,
                             once_errno_text(errno));
        const bool fine = read_line(fd, out->password, sizeof out->password);
        once_close_beside(NULL, fd);
        return fine && out->password[0] ? ONCE_OK
                                        : once_fail(err, ONCE_E_CONFIG, "the file '%s' holds no password", place);
    }
    return once_fail(
        err, ONCE_E_CONFIG,
        "'password=' of a redis URL must name a variable or a file; write 'password=env:NAME' or 'password=file:PATH'");
}

static int read_option(once_bytes option, once_redis_url *out, once_error *err)
{
    once_bytes value = option;
    const once_bytes name = cut(&value, '=');
    if (name.len == 8 && memcmp(name.data, "password", 8) == 0) return read_password(value, out, err);
    if (name.len == 4 && memcmp(name.data, "name", 4) == 0) {
        if (!part(value, out->name, sizeof out->name) || !out->name[0] || strpbrk(out->name, "{}"))
            return once_fail(err, ONCE_E_CONFIG, "'name=' of a redis URL must be 1 to %d bytes without braces",
                             ONCE_REDIS_NAME - 1);
        return ONCE_OK;
    }
    if (name.len == 4 && memcmp(name.data, "wait", 4) == 0) {
        if (!number(value, 100, &out->wait))
            return once_fail(err, ONCE_E_CONFIG, "'wait=' of a redis URL is a number of replicas, up to 100");
        return ONCE_OK;
    }
    if (name.len == 7 && memcmp(name.data, "timeout", 7) == 0) {
        if (!number(value, 3600, &out->timeout_ms) || out->timeout_ms == 0)
            return once_fail(err, ONCE_E_CONFIG, "'timeout=' of a redis URL is a number of seconds, 1 to 3600");
        out->timeout_ms *= 1000;
        return ONCE_OK;
    }
    static const char *const files[] = {"cacert", "cert", "key"};
    char *const places[] = {out->cacert, out->cert, out->key};
    for (size_t i = 0; i < 3; i++) {
        if (name.len != strlen(files[i]) || memcmp(name.data, files[i], name.len) != 0) continue;
        if (!out->tls) return once_fail(err, ONCE_E_CONFIG, "'%s=' is for TLS; write 'rediss://'", files[i]);
        if (!part(value, places[i], ONCE_REDIS_PATH))
            return once_fail(err, ONCE_E_CONFIG, "'%s=' of a redis URL is the path of a file", files[i]);
        return ONCE_OK;
    }
    return once_fail(err, ONCE_E_CONFIG,
                     "unknown option '%.*s' in a redis URL; there are 'name', 'password', 'wait', 'timeout', 'cacert', "
                     "'cert' and 'key'",
                     name.len < 40 ? (int)name.len : 40, name.data);
}

static int read_user(once_bytes user, once_redis_url *out, once_error *err)
{
    once_bytes password = user;
    const once_bytes name = cut(&password, ':');
    if (!part(name, out->user, sizeof out->user) || !part(password, out->password, sizeof out->password))
        return once_fail(err, ONCE_E_CONFIG,
                         "user or password of a redis URL cannot be read; write characters other than letters as %%XX");
    return ONCE_OK;
}

static int read_host(once_bytes host, once_redis_node *out, once_error *err)
{
    once_bytes name, port = {0};
    if (starts(host, "[")) { /* an IPv6 address */
        once_bytes rest = after(host, 1);
        name = cut(&rest, ']');
        if (starts(rest, ":")) port = after(rest, 1);
    } else {
        port = host;
        name = cut(&port, ':');
    }
    out->port = USUAL_PORT;
    if (!part(name, out->host, sizeof out->host) || (port.len && (!number(port, 65535, &out->port) || out->port == 0)))
        return once_fail(err, ONCE_E_CONFIG,
                         "host or port of a redis URL cannot be read; write 'redis://HOST:PORT/DB'");
    if (!out->host[0]) memcpy(out->host, "127.0.0.1", 10);
    return ONCE_OK;
}

static int read_hosts(once_bytes hosts, once_redis_url *out, once_error *err)
{
    int rc = ONCE_OK;
    do {
        if (out->n_nodes == ONCE_REDIS_HOSTS)
            return once_fail(err, ONCE_E_CONFIG, "a redis URL has %d hosts at most", ONCE_REDIS_HOSTS);
        rc = read_host(cut(&hosts, ','), &out->nodes[out->n_nodes++], err);
    } while (rc == ONCE_OK && hosts.len);
    return rc;
}

int once__redis_url_read(const char *rest, bool tls, once_redis_url *out, once_error *err)
{
    *out = (once_redis_url){.name = "once", .tls = tls};
    once_bytes text = {rest, strlen(rest)};
    if (!starts(text, "//"))
        return once_fail(err, ONCE_E_CONFIG, "a redis URL begins with 'redis://'; write 'redis://HOST:PORT/DB'");
    once_bytes options = after(text, 2);
    once_bytes db = cut(&options, '?');
    const char *at = memrchr(db.data, '@', db.len);
    int rc = ONCE_OK;
    if (at) {
        const once_bytes user = {db.data, (size_t)(at - db.data)};
        db = after(db, user.len + 1);
        rc = read_user(user, out, err);
    }
    const once_bytes host = cut(&db, '/');
    if (rc == ONCE_OK) rc = read_hosts(host, out, err);
    if (rc == ONCE_OK && db.len && !number(db, 100000, &out->db))
        rc = once_fail(err, ONCE_E_CONFIG, "the database of a redis URL is a number; write 'redis://HOST:PORT/0'");
    while (rc == ONCE_OK && options.len) rc = read_option(cut(&options, '&'), out, err);
    if (rc != ONCE_OK) explicit_bzero(out->password, sizeof out->password);
    return rc;
}
