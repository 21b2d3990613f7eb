/* Credentials and other secrets of requests: read when the driver is opened, sent, and taken out of every text that
 * people see. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/ascii.h"
#include "base/base64.h"
#include "base/errno_text.h"
#include "base/no_memory.h"
#include "effect/http/client.h"
#include "effect/http_config.h"

#include "base/banned.h"

#define SHORTEST 4 /* a shorter secret would hide ordinary words */
/* Of both requests: headers, the token of one of them, `basic` in 3 forms. And the proxy. */
#define SECRETS_MAX (2 * (ONCE_HTTP_HEADERS_MAX + 4) + 4)
#define MASK "***"

typedef struct reader {
    http_driver *driver;
    const once_runner_options *options;
    once_bytes *secrets;
} reader;

static void note_secret(reader *r, once_bytes value)
{
    if (value.len < SHORTEST) return;
    assert(r->driver->n_secrets < SECRETS_MAX);
    r->secrets[r->driver->n_secrets++] = value;
}

static int read_secret(reader *r, const once_written *written, once_bytes *out, once_error *err)
{
    const once_bytes file = r->options->spec->file;
    const int rc = once_value_read(file, r->options->env, written, &r->driver->arena, out, err);
    if (rc != ONCE_OK) return rc;
    for (size_t i = 0; i < out->len; i++)
        if ((unsigned char)out->data[i] < 0x20 || out->data[i] == 0x7f)
            return once_fail(err, ONCE_E_CONFIG, "%.*s:%d: the value of '%.*s' has a control character", (int)file.len,
                             file.data, written->line, (int)written->name.len, written->name.data);
    note_secret(r, *out);
    return ONCE_OK;
}

static int no_memory(once_error *err) { return once_no_memory(err, "for the handlers"); }

static int add_line(reader *r, http_fixed *fixed, const char *name, const char *between, once_bytes value,
                    once_error *err)
{
    const size_t len = strlen(name) + strlen(between) + value.len;
    char *line = once_arena_alloc(&r->driver->arena, len + 1);
    struct curl_slist *node = once_arena_new(&r->driver->arena, struct curl_slist, 1);
    if (!line || !node) return no_memory(err);
    char *at = mempcpy(mempcpy(line, name, strlen(name)), between, strlen(between));
    if (value.len) at = mempcpy(at, value.data, value.len);
    *at = '\0';
    *node = (struct curl_slist){.data = line, .next = fixed->headers};
    fixed->headers = node;
    return ONCE_OK;
}

/* "Bearer TOKEN": a server may quote the token alone. */
static void note_token(reader *r, const once_http_header *header, once_bytes value)
{
    if (!once_ascii_is(header->name.data, header->name.len, "authorization") || value.len == 0) return;
    const char *blank = memchr(value.data, ' ', value.len), *end = value.data + value.len;
    while (blank && blank < end && *blank == ' ') blank++;
    if (blank) note_secret(r, (once_bytes){blank, (size_t)(end - blank)});
}

static int add_secret_headers(reader *r, http_fixed *fixed, once_error *err)
{
    const once_http_headers *headers = &fixed->request->headers;
    for (size_t i = 0; i < headers->n; i++) {
        const once_http_header *header = &headers->list[i];
        char name[ONCE_NAME_MAX + 1];
        once_bytes value, none = {0};
        if (header->secret.value.len == 0) continue;
        int rc = read_secret(r, &header->secret, &value, err);
        (void)snprintf(name, sizeof name, "%.*s", (int)header->name.len, header->name.data);
        if (rc == ONCE_OK) note_token(r, header, value);
        if (rc == ONCE_OK)
            rc = add_line(r, fixed, name, once_http_blank(value) ? ";" : ": ", once_http_blank(value) ? none : value,
                          err);
        if (rc != ONCE_OK) return rc;
    }
    return ONCE_OK;
}

static int encode_basic(reader *r, once_bytes plain, once_bytes *out, once_error *err)
{
    once_buf buf;
    once_buf_init(&buf, 4 * ONCE_VALUE_MAX);
    const bool fine = once_buf_base64(&buf, plain) && once_arena_copy(&r->driver->arena, once_buf_bytes(&buf), out);
    once_buf_release(&buf);
    if (!fine) return no_memory(err);
    const char *colon = plain.len ? memchr(plain.data, ':', plain.len) : NULL;
    if (colon) note_secret(r, (once_bytes){colon + 1, (size_t)(plain.data + plain.len - colon) - 1});
    note_secret(r, *out);
    return ONCE_OK;
}

bool once__http_authorized(const http_driver *driver, const http_fixed *fixed)
{
    return once_http_same_origin(fixed->request, &driver->http->request);
}

static int add_authorization(reader *r, http_fixed *fixed, once_error *err)
{
    const once_http_spec *http = r->driver->http;
    const once_written *written = http->bearer.value.len ? &http->bearer : &http->basic;
    const bool bearer = written == &http->bearer;
    once_bytes value;
    if (written->value.len == 0 || !once__http_authorized(r->driver, fixed)) return ONCE_OK;
    int rc = read_secret(r, written, &value, err);
    if (rc == ONCE_OK && value.len == 0) { /* every call would be refused, and an operator would look at the server */
        const once_bytes file = r->options->spec->file;
        rc = once_fail(err, ONCE_E_CONFIG, "%.*s:%d: the value of '%.*s' is empty", (int)file.len, file.data,
                       written->line, (int)written->name.len, written->name.data);
    }
    if (rc == ONCE_OK && !bearer) rc = encode_basic(r, value, &value, err);
    return rc == ONCE_OK ? add_line(r, fixed, "Authorization: ", bearer ? "Bearer " : "Basic ", value, err) : rc;
}

/* What libcurl would send by itself and must not, and the type of the body. */
static int add_usual(reader *r, http_fixed *fixed, once_error *err)
{
    static const char *const types[] = {[ONCE_HTTP_BODY_MESSAGE] = NULL,
                                        [ONCE_HTTP_BODY_NONE] = NULL,
                                        [ONCE_HTTP_BODY_TEXT] = "Content-Type: text/plain; charset=utf-8",
                                        [ONCE_HTTP_BODY_JSON] = "Content-Type: application/json",
                                        [ONCE_HTTP_BODY_FORM] = "Content-Type: application/x-www-form-urlencoded"};
    const once_bytes none = {0};
    int rc = add_line(r, fixed, "Expect:", "", none, err); /* it would wait for "100 Continue" before a large body */
    const char *type = fixed->request == &r->driver->http->request ? types[r->driver->http->body_kind] : NULL;
    if (rc == ONCE_OK && !fixed->request->headers.typed && type) rc = add_line(r, fixed, type, "", none, err);
    return rc;
}

static bool has_header(const once_http_request *request, const char *name)
{
    for (size_t i = 0; i < request->headers.n; i++)
        if (once_ascii_is(request->headers.list[i].name.data, request->headers.list[i].name.len, name)) return true;
    return false;
}

/* Requests over http:// need libcurl only to connect (direct.c). These are the lines that it would add. */
static int make_direct(reader *r, http_fixed *fixed, once_error *err)
{
    const once_http_request *request = fixed->request;
    const char *host = request->written.data + strlen("http://");
    once_bytes origin, lines;
    once_buf buf;
    size_t len = request->origin - strlen("http://");
    if (len > 3 && memcmp(host + len - 3, ":80", 3) == 0) len -= 3; /* the usual port is not named */
    once_buf_init(&buf, 8 << 10);
    once_buf_printf(&buf, "Host: %.*s\r\n", (int)len, host);
    if (!has_header(request, "user-agent")) once_buf_puts(&buf, "User-Agent: once/" ONCE_BUILD_VERSION "\r\n");
    if (!has_header(request, "accept")) once_buf_puts(&buf, "Accept: */*\r\n");
    const bool fine = !buf.failed && once_arena_copy(&r->driver->arena, once_buf_bytes(&buf), &lines) &&
                      once_arena_copy(&r->driver->arena, (once_bytes){request->written.data, request->origin}, &origin);
    once_buf_release(&buf);
    if (!fine) return no_memory(err);
    fixed->direct = true;
    fixed->origin = origin.data;
    fixed->usual_lines = lines;
    return ONCE_OK;
}

static int make_fixed(reader *r, http_fixed *fixed, const once_http_request *request, once_error *err)
{
    *fixed = (http_fixed){.request = request};
    if (!request->method) return ONCE_OK;
    fixed->timeout_ms = request->timeout_ms ? request->timeout_ms : r->driver->driver.handler->timeout_ms;
    int rc = add_usual(r, fixed, err);
    if (rc == ONCE_OK) rc = add_secret_headers(r, fixed, err);
    if (rc == ONCE_OK) rc = add_authorization(r, fixed, err);
    const once_http_spec *http = r->driver->http;
    const bool direct = !request->tls && http->proxy.value.len == 0 && http->redirects == 0;
    return rc == ONCE_OK && direct ? make_direct(r, fixed, err) : rc;
}

static int copy_path(reader *r, const char *field, once_bytes path, const char **out, once_error *err)
{
    const once_bytes file = r->options->spec->file;
    once_bytes copy;
    if (path.len == 0) return ONCE_OK;
    if (!once_arena_copy(&r->driver->arena, path, &copy)) return no_memory(err);
    *out = copy.data;
    if (access(copy.data, R_OK) == 0) return ONCE_OK;
    return once_fail(err, ONCE_E_CONFIG, "%.*s:%d: '%s': cannot read '%s': %s", (int)file.len, file.data,
                     r->driver->http->request.line, field, copy.data, once_errno_text(errno));
}

/* "user:password" as it stands in a URL: the proxy gets it decoded, and in base64. */
static int note_login(reader *r, once_bytes login, once_error *err)
{
    int len = 0;
    char *plain = curl_easy_unescape(NULL, login.data, (int)login.len, &len);
    once_bytes copy, encoded;
    const bool fine = plain && once_arena_copy(&r->driver->arena, (once_bytes){plain, (size_t)len}, &copy);
    curl_free(plain);
    return fine ? encode_basic(r, copy, &encoded, err) : no_memory(err);
}

static int read_proxy(reader *r, once_error *err)
{
    once_bytes value;
    if (r->driver->http->proxy.value.len == 0) return ONCE_OK;
    const int rc = read_secret(r, &r->driver->http->proxy, &value, err);
    if (rc != ONCE_OK) return rc;
    const char *at = value.len ? memrchr(value.data, '@', value.len) : NULL;
    const char *slashes = at ? memmem(value.data, (size_t)(at - value.data), "//", 2) : NULL;
    const char *from = slashes ? slashes + 2 : value.data;
    r->driver->proxy = value.data;
    if (!at || !memchr(from, ':', (size_t)(at - from))) return ONCE_OK;
    const char *password = (const char *)memchr(from, ':', (size_t)(at - from)) + 1;
    note_secret(r, (once_bytes){password, (size_t)(at - password)});
    return note_login(r, (once_bytes){from, (size_t)(at - from)}, err);
}

/* Long ones first: what is left of a secret when a part of it was replaced is not found any more. */
static int by_length(const void *a, const void *b)
{
    const size_t x = ((const once_bytes *)a)->len, y = ((const once_bytes *)b)->len;
    return (x < y) - (x > y);
}

int once__http_read_secrets(http_driver *driver, once_error *err)
{
    const once_http_spec *http = driver->http;
    reader r = {.driver = driver, .options = once_runner_options_of(driver->driver.runner)};
    r.secrets = once_arena_new(&driver->arena, once_bytes, SECRETS_MAX);
    driver->secrets = r.secrets;
    int rc = r.secrets ? ONCE_OK : no_memory(err);
    if (rc == ONCE_OK) rc = make_fixed(&r, &driver->fixed[HTTP_EFFECT], &http->request, err);
    if (rc == ONCE_OK) rc = make_fixed(&r, &driver->fixed[HTTP_LOOKUP], &http->lookup.request, err);
    if (rc == ONCE_OK) rc = read_proxy(&r, err);
    if (rc == ONCE_OK) qsort(r.secrets, driver->n_secrets, sizeof *r.secrets, by_length);
    if (rc == ONCE_OK) rc = copy_path(&r, "ca", http->ca, &driver->ca, err);
    if (rc == ONCE_OK) rc = copy_path(&r, "certificate", http->certificate, &driver->certificate, err);
    if (rc == ONCE_OK) rc = copy_path(&r, "key", http->key, &driver->key, err);
    return rc;
}

/* ---- texts without them ---- */

/* How a string of JSON may write a character otherwise than it is: "\\/", or "\\u002f". Returns how many bytes of the
 * text that takes; 0: the text does not begin so. `used` is how many bytes of the secret the character has. */
static size_t escape_length(once_bytes secret, once_bytes text, size_t *used)
{
    const unsigned char *at = (const unsigned char *)secret.data;
    char units[24] = "";
    if (text.len < 2 || text.data[0] != '\\') return 0;
    *used = 1;
    if (text.data[1] == at[0] && strchr("/\"\\", at[0])) return 2;
    const int len = once_utf8_sequence(at, secret.len);
    if (len <= 0) return 0;
    uint32_t c = len == 1 ? at[0] : at[0] & (0x7fu >> len);
    for (int i = 1; i < len; i++) c = c << 6 | (at[i] & 0x3f);
    if (c < 0x10000) (void)snprintf(units, sizeof units, "\\u%04x", c);
    else (void)snprintf(units, sizeof units, "\\u%04x\\u%04x", 0xd7c0 + (c >> 10), 0xdc00 + (c & 0x3ff));
    *used = (size_t)len;
    return once_ascii_begins(text.data, text.len, units) ? strlen(units) : 0;
}

/* How many bytes of the text are the secret as it stands in a string of JSON; 0: the text does not begin with it. */
static size_t escaped_length(once_bytes secret, once_bytes text)
{
    size_t at = 0;
    for (size_t i = 0, used; i < secret.len; i += used) {
        const size_t n = escape_length((once_bytes){secret.data + i, secret.len - i},
                                       (once_bytes){text.data + at, text.len - at}, &used);
        if (!n && (at >= text.len || text.data[at] != secret.data[i])) return 0;
        if (!n) used = 1;
        at += n ? n : 1;
    }
    return at;
}

/* Where the secret is, as it is or escaped; `end`: nowhere. `plain`: where it next is as it is, or `end`. */
static const char *find_secret(once_bytes secret, const char *from, const char *end, const char *plain, size_t *length)
{
    const char *escape = memchr(from, '\\', (size_t)(plain - from));
    for (const char *at = from; escape && at < plain; at++) { /* it may begin before the first backslash */
        if (*at != secret.data[0] && *at != '\\') continue;
        *length = escaped_length(secret, (once_bytes){at, (size_t)(end - at)});
        if (*length) return at;
    }
    *length = secret.len;
    return plain;
}

static const char *find_plain(once_bytes secret, const char *from, const char *end)
{
    const char *found = from < end ? memmem(from, (size_t)(end - from), secret.data, secret.len) : NULL;
    return found ? found : end;
}

/* In one pass: a server may say a secret a million times. */
static size_t redact(once_bytes secret, char *text, size_t len)
{
    const char *from = text, *end = text + len;
    char *to = text;
    if (secret.len < SHORTEST) return len;
    static_assert(SHORTEST > sizeof MASK - 1, "a mask fits in the place of a secret");
    const char *plain = find_plain(secret, from, end);
    while (from < end) {
        size_t n;
        if (plain < from) plain = find_plain(secret, from, end);
        const char *at = find_secret(secret, from, end, plain, &n);
        memmove(to, from, (size_t)(at - from));
        to += at - from;
        if (at == end) break;
        to = mempcpy(to, MASK, sizeof MASK - 1);
        from = at + n;
    }
    return (size_t)(to - text);
}

size_t once__http_redact(const http_call *call, char *text, size_t len)
{
    const http_driver *driver = call->driver;
    if (driver->n_secrets == 0 && !driver->token.file) return len; /* there is nothing to hide */
    once_bytes tokens[] = {once_buf_bytes(&driver->token.texts[0]),
                           once_buf_bytes(&driver->token.texts[1]),
                           {call->text.data + call->token_at, call->token_len}}; /* perhaps older than both */
    const size_t n_tokens = sizeof tokens / sizeof *tokens;
    size_t k = 0;
    if (!call->token_len) tokens[2] = (once_bytes){0};
    qsort(tokens, n_tokens, sizeof *tokens, by_length);
    for (size_t i = 0; i < driver->n_secrets; i++) {
        for (; k < n_tokens && tokens[k].len >= driver->secrets[i].len; k++) len = redact(tokens[k], text, len);
        len = redact(driver->secrets[i], text, len);
    }
    for (; k < n_tokens; k++) len = redact(tokens[k], text, len);
    return len;
}
