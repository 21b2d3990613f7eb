/* Signature Version 4 (aws.h).
 *
 *   canonical request   method, path, query, headers with sorted names, names of the headers, hash of the body; each on
 *                       lines of its own, in one spelling
 *   text to sign        algorithm, time, scope (date/region/service/aws4_request), hash of the canonical request
 *   signing key         HMAC over date, region, service and "aws4_request" in turn, beginning with the secret key
 *
 * The path is encoded once more than in the URL, as all services but S3 want it. */
#include "aws/aws_impl.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/ascii.h"
#include "base/buf.h"
#include "base/hash.h"
#include "base/no_memory.h"

#include "base/banned.h"

#define TEXT_MAX ((size_t)1 << 20) /* bytes of a canonical request */
#define HEADERS_MAX 32
#define PARAMETERS_MAX 128

typedef struct url_parts {
    once_bytes host; /* with its port, unless that belongs to the scheme */
    once_bytes path, query;
} url_parts;

typedef struct header {
    once_bytes name, value; /* the name as it was written */
} header;

typedef struct signing {
    const once_aws_keys *keys;
    const char *region, *service;
    char time[17]; /* 20150830T123600Z; its first 8 bytes are the date */
    header headers[HEADERS_MAX];
    size_t n_headers;
    once_buf text, names; /* the canonical request; the names of its headers */
} signing;

/* --- the URL ------------------------------------------------------------------------------------------------------ */

static bool ends_with(once_bytes text, const char *end)
{
    const size_t len = strlen(end);
    return text.len >= len && memcmp(text.data + text.len - len, end, len) == 0;
}

static bool split_url(const char *url, url_parts *out)
{
    const bool tls = strncmp(url, "https://", 8) == 0;
    if (!tls && strncmp(url, "http://", 7) != 0) return false;
    const char *host = url + (tls ? 8 : 7);
    const char *path = host + strcspn(host, "/?#");
    const char *query = path + strcspn(path, "?#");
    const char *end = query + strcspn(query, "#");
    const char *port = tls ? ":443" : ":80";
    out->host = (once_bytes){host, (size_t)(path - host)};
    out->path = (once_bytes){path, (size_t)(query - path)};
    out->query = query < end ? (once_bytes){query + 1, (size_t)(end - query) - 1} : (once_bytes){0};
    if (ends_with(out->host, port)) out->host.len -= strlen(port);
    return out->host.len > 0 && !memchr(out->host.data, '@', out->host.len);
}

static bool is_unreserved(char c)
{
    return once_ascii_is_letter(c) || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_' || c == '~';
}

void once__aws_put_encoded(once_buf *out, once_bytes text, char also)
{
    for (size_t i = 0; i < text.len; i++) {
        const char c = text.data[i];
        if (is_unreserved(c) || c == also) (void)once_buf_append(out, &c, 1);
        else (void)once_buf_printf(out, "%%%02X", (unsigned char)c);
    }
}

/* Without empty segments, "." and "..". */
static void put_path(once_buf *out, once_bytes path)
{
    const size_t begin = out->len;
    for (size_t i = 0; i < path.len;) {
        size_t end = i;
        while (end < path.len && path.data[end] != '/') end++;
        const once_bytes segment = {path.data + i, end - i};
        i = end + 1;
        if (once_bytes_equal(segment, ONCE_BYTES(".."))) {
            while (out->len > begin && out->data[--out->len] != '/') continue;
        } else if (segment.len && !once_bytes_equal(segment, ONCE_BYTES("."))) {
            (void)once_buf_puts(out, "/");
            once__aws_put_encoded(out, segment, 0);
        }
    }
    if (out->len == begin || path.data[path.len - 1] == '/') (void)once_buf_puts(out, "/");
}

static int compare_bytes(once_bytes a, once_bytes b)
{
    const size_t common = a.len < b.len ? a.len : b.len;
    const int order = common ? memcmp(a.data, b.data, common) : 0;
    return order ? order : (a.len > b.len) - (a.len < b.len);
}

static int compare_parameters(const void *a, const void *b)
{
    const header *x = a, *y = b;
    const int order = compare_bytes(x->name, y->name);
    return order ? order : compare_bytes(x->value, y->value);
}

/* Sorted by name, then by value. What is encoded in the URL stays so. False: too many. */
static bool put_query(once_buf *out, once_bytes query)
{
    header list[PARAMETERS_MAX];
    size_t n = 0;
    for (size_t i = 0; i < query.len;) {
        size_t end = i, equals;
        while (end < query.len && query.data[end] != '&') end++;
        for (equals = i; equals < end && query.data[equals] != '='; equals++) {
        }
        if (end > i) {
            if (n == PARAMETERS_MAX) return false;
            const size_t value = equals < end ? equals + 1 : end;
            list[n++] = (header){{query.data + i, equals - i}, {query.data + value, end - value}};
        }
        i = end + 1;
    }
    if (n) qsort(list, n, sizeof list[0], compare_parameters);
    for (size_t i = 0; i < n; i++) {
        (void)once_buf_puts(out, i ? "&" : "");
        once__aws_put_encoded(out, list[i].name, '%');
        (void)once_buf_puts(out, "=");
        once__aws_put_encoded(out, list[i].value, '%');
    }
    return true;
}

/* --- headers ------------------------------------------------------------------------------------------------------ */

static int compare_names(once_bytes a, once_bytes b)
{
    for (size_t i = 0; i < a.len && i < b.len; i++) {
        const int order = once_ascii_lower(a.data[i]) - once_ascii_lower(b.data[i]);
        if (order) return order;
    }
    return (a.len > b.len) - (a.len < b.len);
}

/* Sorted by name; those of one name in the order in which they came. False: too many. */
static bool add_header(signing *s, once_bytes name, once_bytes value)
{
    if (s->n_headers == HEADERS_MAX) return false;
    size_t at = s->n_headers++;
    for (; at > 0 && compare_names(s->headers[at - 1].name, name) > 0; at--) s->headers[at] = s->headers[at - 1];
    s->headers[at] = (header){name, value};
    return true;
}

/* "Name: value". */
static bool add_line(signing *s, const char *line)
{
    const char *colon = strchr(line, ':');
    if (!colon || colon == line) return false;
    return add_header(s, (once_bytes){line, (size_t)(colon - line)}, once_bytes_of(colon + 1));
}

/* Without space around it, and with single spaces inside. */
static void put_value(once_buf *out, once_bytes value)
{
    bool space = false, any = false;
    for (size_t i = 0; i < value.len; i++) {
        if (once_ascii_is_space(value.data[i])) {
            space = any;
            continue;
        }
        if (space) (void)once_buf_puts(out, " ");
        (void)once_buf_append(out, &value.data[i], 1);
        space = false;
        any = true;
    }
}

static void put_headers(signing *s)
{
    for (size_t i = 0; i < s->n_headers; i++) {
        const header *h = &s->headers[i];
        if (i && compare_names(s->headers[i - 1].name, h->name) == 0) {
            (void)once_buf_puts(&s->text, ",");
        } else {
            (void)once_buf_puts(&s->text, i ? "\n" : "");
            (void)once_buf_puts(&s->names, i ? ";" : "");
            for (size_t k = 0; k < h->name.len; k++) {
                const char c = once_ascii_lower(h->name.data[k]);
                (void)once_buf_append(&s->text, &c, 1);
                (void)once_buf_append(&s->names, &c, 1);
            }
            (void)once_buf_puts(&s->text, ":");
        }
        put_value(&s->text, h->value);
    }
}

/* --- the signature ------------------------------------------------------------------------------------------------ */

static void hex(const unsigned char digest[32], char out[65])
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < 32; i++) {
        out[2 * i] = digits[digest[i] >> 4];
        out[2 * i + 1] = digits[digest[i] & 15];
    }
    out[64] = '\0';
}

static void hash_hex(once_bytes text, char out[65])
{
    unsigned char digest[32];
    once_sha256(text.data, text.len, digest);
    hex(digest, out);
}

/* Replaces the key by the HMAC of `text` under it. */
static void derive(unsigned char key[32], const void *text, size_t len)
{
    once_hmac_state state;
    once_hmac_begin(&state, key, 32);
    once_hmac_add(&state, text, len);
    once_hmac_end(&state, key);
    explicit_bzero(&state, sizeof state);
}

static void sign_text(const signing *s, const char *text, char out[65])
{
    unsigned char key[32];
    char first[4 + ONCE_AWS_SECRET_MAX] = "AWS4";
    once_hmac_state state;
    memcpy(first + 4, s->keys->secret.data, s->keys->secret.len);
    once_hmac_begin(&state, first, 4 + s->keys->secret.len);
    once_hmac_add(&state, s->time, 8);
    once_hmac_end(&state, key);
    derive(key, s->region, strlen(s->region));
    derive(key, s->service, strlen(s->service));
    derive(key, "aws4_request", 12);
    derive(key, text, strlen(text));
    hex(key, out);
    explicit_bzero(&state, sizeof state);
    explicit_bzero(first, sizeof first);
}

/* False: the request has too many headers or parameters. */
static bool put_request(signing *s, const once_aws_request *request, const url_parts *url)
{
    char body[65];
    hash_hex(request->body, body);
    if (!add_header(s, ONCE_BYTES("host"), url->host) ||
        !add_header(s, ONCE_BYTES("x-amz-date"), once_bytes_of(s->time)))
        return false;
    if (s->keys->token.len && !add_header(s, ONCE_BYTES("x-amz-security-token"), s->keys->token)) return false;
    for (const char *const *line = request->headers; line && *line; line++)
        if (!add_line(s, *line)) return false;
    (void)once_buf_printf(&s->text, "%s\n", request->method);
    put_path(&s->text, url->path);
    (void)once_buf_puts(&s->text, "\n");
    if (!put_query(&s->text, url->query)) return false;
    (void)once_buf_puts(&s->text, "\n");
    put_headers(s);
    (void)once_buf_puts(&s->text, "\n\n");
    (void)once_buf_append(&s->text, s->names.data, s->names.len);
    (void)once_buf_printf(&s->text, "\n%s", body);
    return true;
}

static const char *make_line(once_arena *arena, once_buf *line)
{
    once_bytes copy;
    return !line->failed && once_arena_copy(arena, once_buf_bytes(line), &copy) ? copy.data : NULL;
}

static const char *authorization(signing *s, once_arena *arena)
{
    char request[65], signature[65], text[300];
    once_buf line;
    hash_hex(once_buf_bytes(&s->text), request);
    (void)snprintf(text, sizeof text, "AWS4-HMAC-SHA256\n%s\n%.8s/%s/%s/aws4_request\n%s", s->time, s->time, s->region,
                   s->service, request);
    sign_text(s, text, signature);
    once_buf_init(&line, TEXT_MAX);
    (void)once_buf_puts(&line, "Authorization: AWS4-HMAC-SHA256 Credential=");
    (void)once_buf_append(&line, s->keys->id.data, s->keys->id.len);
    (void)once_buf_printf(&line, "/%.8s/%s/%s/aws4_request, SignedHeaders=%s, Signature=%s", s->time, s->region,
                          s->service, s->names.data, signature);
    const char *made = make_line(arena, &line);
    once_buf_release(&line);
    return made;
}

/* The lines of the request, then ours. False: out of memory. */
static bool make_lines(signing *s, const once_aws_request *request, once_arena *arena, const char ***out)
{
    size_t n = 0;
    once_buf line;
    while (request->headers && request->headers[n]) n++;
    const char **lines = once_arena_new(arena, const char *, n + 4);
    if (!lines) return false;
    bool ok = true;
    once_buf_init(&line, TEXT_MAX);
    for (size_t i = 0; i < n; i++) {
        once_bytes copy = {0};
        ok = once_arena_copy(arena, once_bytes_of(request->headers[i]), &copy) && ok;
        lines[i] = copy.data;
    }
    (void)once_buf_printf(&line, "X-Amz-Date: %s", s->time);
    lines[n] = make_line(arena, &line);
    ok = lines[n++] && ok;
    if (s->keys->token.len) {
        once_buf_clear(&line);
        (void)once_buf_puts(&line, "X-Amz-Security-Token: ");
        (void)once_buf_append(&line, s->keys->token.data, s->keys->token.len);
        lines[n] = make_line(arena, &line);
        ok = lines[n++] && ok;
    }
    once_buf_release(&line);
    lines[n] = authorization(s, arena);
    *out = lines;
    return ok && lines[n];
}

int once_aws_sign(const once_aws_request *request, const once_aws_keys *keys, const char *region, const char *service,
                  int64_t now_s, once_arena *arena, const char ***headers, once_error *err)
{
    assert(request && request->method && request->url && keys && region && service && arena && headers);
    assert(keys->id.len && keys->secret.len && keys->secret.len <= ONCE_AWS_SECRET_MAX);
    assert(strlen(region) <= ONCE_AWS_REGION_MAX && strlen(service) <= ONCE_AWS_REGION_MAX);
    signing s = {.keys = keys, .region = region, .service = service};
    const time_t now = (time_t)now_s;
    struct tm utc;
    url_parts url;
    if (!gmtime_r(&now, &utc) || strftime(s.time, sizeof s.time, "%Y%m%dT%H%M%SZ", &utc) != 16)
        return once_fail(err, ONCE_E_CONFIG, "cannot sign a request: the clock is outside of the years 1000 to 9999");
    if (!split_url(request->url, &url))
        return once_fail(err, ONCE_E_CONFIG, "cannot sign a request: its address is not http(s)://host/path");
    once_buf_init(&s.text, TEXT_MAX);
    once_buf_init(&s.names, TEXT_MAX);
    int rc = ONCE_OK;
    if (!put_request(&s, request, &url))
        rc = once_fail(err, ONCE_E_CONFIG, "cannot sign a request with so many headers or parameters");
    else if (s.names.failed || s.text.failed || !make_lines(&s, request, arena, headers))
        rc = once_no_memory(err, "for a signature");
    if (s.text.data) explicit_bzero(s.text.data, s.text.len); /* it has the session's token */
    once_buf_release(&s.text);
    once_buf_release(&s.names);
    return rc;
}
