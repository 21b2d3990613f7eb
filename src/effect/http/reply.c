/* Reads answers (reply.h). */
#include "effect/http/reply.h"

#include <string.h>

#include "base/ascii.h"

#include "base/banned.h"

#define HEAD_MAX ((size_t)256 << 10) /* bytes of all lines of an answer */
#define LENGTH_MAX (UINT64_MAX >> 8)

static void broken(http_reply *reply, const char *wrong)
{
    reply->state = HTTP_REPLY_BROKEN;
    reply->wrong = wrong;
}

void once__http_reply_begin(http_reply *reply) { *reply = (http_reply){.state = HTTP_REPLY_STATUS}; }

/* ---- lines ---- */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* "HTTP/1.1 200 OK" */
static void read_status(http_reply *reply, const char *line, size_t len)
{
    static const char version[] = "HTTP/1.";
    const size_t at = sizeof version - 1; /* the minor version, a space, three digits */
    const bool fits = len >= at + 5 && memcmp(line, version, at) == 0 && (line[at] == '0' || line[at] == '1') &&
                      line[at + 1] == ' ' && is_digit(line[at + 2]) && is_digit(line[at + 3]) &&
                      is_digit(line[at + 4]) && (len == at + 5 || line[at + 5] == ' ');
    if (!fits) {
        broken(reply, "it is no HTTP/1");
        return;
    }
    reply->status = 100 * (line[at + 2] - '0') + 10 * (line[at + 3] - '0') + (line[at + 4] - '0');
    reply->keeps = line[at] == '1';
    reply->sized = reply->chunked = reply->framing = false;
    reply->left = 0;
    reply->retry_after[0] = '\0';
    reply->state = HTTP_REPLY_HEADERS;
}

static void read_length(http_reply *reply, const char *value, size_t len)
{
    uint64_t length = 0;
    bool fits = len > 0;
    for (size_t i = 0; i < len && fits; i++) {
        fits = is_digit(value[i]) && length < LENGTH_MAX / 10;
        length = 10 * length + (uint64_t)(value[i] - '0');
    }
    if (!fits || (reply->sized && reply->left != length)) {
        broken(reply, "its Content-Length is none");
        return;
    }
    reply->sized = true;
    reply->left = length;
}

/* Whether a list such as "keep-alive, Upgrade" has the word. */
static bool has_word(const char *list, size_t len, const char *word)
{
    for (size_t at = 0; at < len;) {
        while (at < len && (once_ascii_is_space(list[at]) || list[at] == ',')) at++;
        size_t end = at;
        while (end < len && !once_ascii_is_space(list[end]) && list[end] != ',') end++;
        if (end > at && once_ascii_is(list + at, end - at, word)) return true;
        at = end;
    }
    return false;
}

static void keep_retry_after(http_reply *reply, const char *value, size_t len)
{
    if (len >= sizeof reply->retry_after) return;
    if (len) memcpy(reply->retry_after, value, len);
    reply->retry_after[len] = '\0';
}

static void read_header(http_reply *reply, const char *line, size_t len)
{
    if (once_ascii_is_space(line[0])) { /* the header before goes on; of one that matters, that is not believed */
        if (reply->framing) broken(reply, "a header that says where it ends has two lines");
        return;
    }
    const char *colon = memchr(line, ':', len);
    if (!colon || colon == line || once_ascii_is_space(colon[-1])) { /* "Content-Length :" is read in two ways */
        broken(reply, "it has a line that is no header");
        return;
    }
    const size_t name = (size_t)(colon - line);
    const char *value = colon + 1, *end = line + len;
    while (value < end && once_ascii_is_space(*value)) value++;
    while (end > value && once_ascii_is_space(end[-1])) end--;
    const size_t n = (size_t)(end - value);
    reply->framing = false;
    if (once_ascii_is(line, name, "content-length")) {
        reply->framing = true;
        read_length(reply, value, n);
    } else if (once_ascii_is(line, name, "transfer-encoding")) {
        reply->framing = true;
        if (reply->chunked || !once_ascii_is(value, n, "chunked")) broken(reply, "its Transfer-Encoding is not known");
        reply->chunked = true;
    } else if (once_ascii_is(line, name, "connection")) {
        if (has_word(value, n, "close")) reply->keeps = false;
    } else if (once_ascii_is(line, name, "retry-after")) {
        keep_retry_after(reply, value, n);
    }
}

/* The empty line: what follows? */
static void end_head(http_reply *reply)
{
    if (reply->status == 101 || reply->status < 100) {
        broken(reply, "it changes the protocol");
    } else if (reply->status < 200) {
        reply->state = HTTP_REPLY_STATUS; /* an interim answer says nothing */
    } else if (reply->status == 204 || reply->status == 304) {
        /* They have no body. One that comes all the same would be read as the next answer. */
        if (reply->chunked || (reply->status == 204 && reply->left)) reply->keeps = false;
        reply->state = HTTP_REPLY_WHOLE;
    } else if (reply->chunked) {
        if (reply->sized) reply->keeps = false; /* somebody between may have read it in the other way */
        reply->state = HTTP_REPLY_CHUNK;
    } else if (reply->sized) {
        reply->state = reply->left ? HTTP_REPLY_LENGTH : HTTP_REPLY_WHOLE;
    } else {
        reply->keeps = false;
        reply->state = HTTP_REPLY_CLOSE;
    }
}

/* "1f;name=value": hexadecimal digits. */
static void read_chunk_size(http_reply *reply, const char *line, size_t len)
{
    uint64_t size = 0;
    size_t digits = 0;
    for (; digits < len; digits++) {
        const char c = once_ascii_lower(line[digits]);
        const int value = is_digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (value < 0) break;
        if (size > LENGTH_MAX / 16) {
            digits = 0;
            break;
        }
        size = 16 * size + (uint64_t)value;
    }
    const bool ends = digits == len || line[digits] == ';' || once_ascii_is_space(line[digits]);
    if (digits == 0 || !ends) {
        broken(reply, "it has a chunk without a size");
        return;
    }
    reply->left = size;
    if (size) reply->head = 0; /* the body has a limit of its own, however small its chunks are */
    reply->state = size ? HTTP_REPLY_DATA : HTTP_REPLY_TRAILERS;
}

static void read_line(http_reply *reply, const char *line, size_t len)
{
    switch (reply->state) {
    case HTTP_REPLY_STATUS: read_status(reply, line, len); break;
    case HTTP_REPLY_HEADERS:
        if (len) read_header(reply, line, len);
        else end_head(reply);
        break;
    case HTTP_REPLY_CHUNK: read_chunk_size(reply, line, len); break;
    case HTTP_REPLY_BEHIND:
        if (len) broken(reply, "a chunk has another size than it says");
        else reply->state = HTTP_REPLY_CHUNK;
        break;
    default: /* trailers say nothing */
        if (len == 0) reply->state = HTTP_REPLY_WHOLE;
    }
}

/* ---- bytes ---- */

static bool is_body(http_reply_state state)
{
    return state == HTTP_REPLY_LENGTH || state == HTTP_REPLY_CLOSE || state == HTTP_REPLY_DATA;
}

static size_t read_body(http_reply *reply, const char *data, size_t len, once_buf *body)
{
    const size_t n = reply->state == HTTP_REPLY_CLOSE || len < reply->left ? len : (size_t)reply->left;
    if (!once_buf_append(body, data, n)) {
        const bool fits = n <= body->max && body->len <= body->max - n;
        if (fits) broken(reply, "memory is out");
        else reply->state = HTTP_REPLY_TOO_LARGE;
        return n;
    }
    if (reply->state == HTTP_REPLY_CLOSE) return n;
    reply->left -= n;
    if (reply->left == 0) reply->state = reply->state == HTTP_REPLY_DATA ? HTTP_REPLY_BEHIND : HTTP_REPLY_WHOLE;
    return n;
}

size_t once__http_reply_read(http_reply *reply, const char *data, size_t len, once_buf *body)
{
    size_t at = 0;
    reply->any = reply->any || len > 0;
    while (at < len && !once__http_reply_ended(reply)) {
        if (is_body(reply->state)) {
            at += read_body(reply, data + at, len - at, body);
            continue;
        }
        const char *end = memchr(data + at, '\n', len - at);
        const size_t n = end ? (size_t)(end - (data + at)) + 1 : len - at;
        if (reply->head + n > HEAD_MAX) {
            broken(reply, "its headers are too large");
            break;
        }
        if (!end) break;
        reply->head += n;
        const size_t line = n >= 2 && end[-1] == '\r' ? n - 2 : n - 1;
        read_line(reply, data + at, line);
        at += n;
    }
    return at;
}

void once__http_reply_close(http_reply *reply)
{
    if (once__http_reply_ended(reply)) return;
    if (reply->state == HTTP_REPLY_CLOSE) reply->state = HTTP_REPLY_WHOLE;
    else broken(reply, "the connection was closed in the middle of it");
}
