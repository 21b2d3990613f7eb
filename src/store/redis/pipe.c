/* Commands in the wire format of Redis (RESP), collected until an exchange sends them together. */
#include <assert.h>
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"
#include "store/redis/link_parts.h"

#include "base/banned.h"

enum { COMMAND_MAX = 1 << 30 };

void once__redis_pipe_init(once_redis_pipe *pipe)
{
    *pipe = (once_redis_pipe){0};
    once_buf_init(&pipe->bytes, COMMAND_MAX);
}

void once__redis_pipe_free_replies(once_redis_pipe *pipe)
{
    for (size_t i = 0; pipe->replies && i < pipe->n; i++)
        if (pipe->replies[i]) freeReplyObject(pipe->replies[i]);
    free(pipe->replies);
    pipe->replies = NULL;
}

void once__redis_pipe_clear(once_redis_pipe *pipe)
{
    once__redis_pipe_free_replies(pipe);
    once_buf_clear(&pipe->bytes);
    pipe->n = 0;
    pipe->failed = pipe->stays = pipe->guesses = false;
}

void once__redis_pipe_release(once_redis_pipe *pipe)
{
    once__redis_pipe_clear(pipe);
    once_buf_release(&pipe->bytes);
    free(pipe->asked);
    *pipe = (once_redis_pipe){0};
}

static void begin_command(once_redis_pipe *pipe, once_redis_asked asked, size_t args)
{
    assert(args > 0);
    assert(!pipe->replies);
    if (pipe->n == pipe->capacity) {
        const size_t more = pipe->capacity ? pipe->capacity * 2 : 16;
        once_redis_asked *grown = reallocarray(pipe->asked, more, sizeof *grown);
        if (!grown) {
            pipe->failed = true;
            return;
        }
        pipe->asked = grown;
        pipe->capacity = more;
    }
    asked.start = pipe->bytes.len;
    pipe->asked[pipe->n++] = asked;
    once_buf_printf(&pipe->bytes, "*%zu\r\n", args);
}

void once__redis_command(once_redis_pipe *pipe, once_reply_kind reply, size_t args)
{
    assert(reply != ONCE_REPLY_VALUES);
    begin_command(pipe, (once_redis_asked){.kind = reply}, args);
}

void once__redis_command_for(once_redis_pipe *pipe, size_t values, size_t args)
{
    assert(values > 0 && args > values);
    begin_command(pipe, (once_redis_asked){.kind = ONCE_REPLY_VALUES, .n = values}, args);
}

void once__redis_encode(once_buf *to, const void *data, size_t len)
{
    assert(len == 0 || data);
    char head[24];
    size_t at = sizeof head, rest = len;
    head[--at] = '\n';
    head[--at] = '\r';
    do head[--at] = (char)('0' + rest % 10);
    while (rest /= 10);
    head[--at] = '$';
    const size_t head_len = sizeof head - at;
    if (!once_buf_reserve(to, head_len + len + 2)) return;
    char *out = to->data + to->len; /* by hand: a batch has ten thousand of them */
    memcpy(out, head + at, head_len);
    if (len) memcpy(out + head_len, data, len);
    memcpy(out + head_len + len, "\r\n", 3);
    to->len += head_len + len + 2;
}

void once__redis_arg(once_redis_pipe *pipe, const void *data, size_t len)
{
    once__redis_encode(&pipe->bytes, data, len);
}
void once__redis_text(once_redis_pipe *pipe, const char *text) { once__redis_arg(pipe, text, strlen(text)); }
void once__redis_raw(once_redis_pipe *pipe, const once_buf *encoded)
{
    if (encoded->failed) pipe->failed = true;
    once_buf_append(&pipe->bytes, encoded->data, encoded->len);
}

void once__redis_number(once_redis_pipe *pipe, int64_t number)
{
    char text[24];
    const int len = snprintf(text, sizeof text, "%lld", (long long)number);
    once__redis_arg(pipe, text, (size_t)len);
}

void once__redis_words(once_redis_pipe *pipe, once_reply_kind reply, const char *words)
{
    size_t n = 1;
    for (const char *c = words; *c; c++) n += *c == ' ';
    once__redis_command(pipe, reply, n);
    while (n--) {
        const size_t len = strcspn(words, " ");
        once__redis_arg(pipe, words, len);
        words += len + 1;
    }
}

/* The argument of a command that stands in the pipe; empty: there is none. */
once_bytes once__redis_pipe_argument(const once_redis_pipe *pipe, size_t command, size_t number)
{
    assert(command < pipe->n);
    const char *at = pipe->bytes.data + pipe->asked[command].start, *end = pipe->bytes.data + pipe->bytes.len;
    at = memchr(at, '\n', (size_t)(end - at));
    for (size_t i = 0; at && ++at < end && *at == '$'; i++) {
        const size_t len = strtoul(at + 1, NULL, 10);
        at = memchr(at, '\n', (size_t)(end - at));
        if (!at || (size_t)(end - at) < len + 3) break;
        if (i == number) return (once_bytes){at + 1, len};
        at += len + 2;
    }
    return (once_bytes){0};
}

bool once__redis_pipe_is(once_bytes name, const char *text)
{
    return name.len == strlen(text) && memcmp(name.data, text, name.len) == 0;
}
