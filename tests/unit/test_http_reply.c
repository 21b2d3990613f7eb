/* Answers of HTTP/1 as their bytes come (effect/http/reply.h): each is read at once, and byte by byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "effect/http/reply.h"

#define MAX 20

typedef struct expected {
    const char *bytes;
    http_reply_state state;
    long status;
    bool keeps;
    const char *body, *rest; /* NULL: not looked at */
} expected;

static size_t feed(http_reply *reply, const char *bytes, size_t piece, once_buf *body)
{
    const size_t len = strlen(bytes);
    size_t from = 0, to = 0;
    once__http_reply_begin(reply);
    while (to < len && !once__http_reply_ended(reply)) {
        to += len - to < piece ? len - to : piece;
        from += once__http_reply_read(reply, bytes + from, to - from, body);
    }
    return from;
}

static void read_in_pieces(const expected *e, size_t piece)
{
    http_reply reply;
    once_buf body;
    once_buf_init(&body, MAX);
    const size_t n = feed(&reply, e->bytes, piece, &body);
    if (reply.state != e->state) fail_msg("state %d (%s) of:\n%s", reply.state, reply.wrong, e->bytes);
    if (e->state != HTTP_REPLY_BROKEN) assert_int_equal(reply.status, e->status);
    if (e->state == HTTP_REPLY_WHOLE) assert_int_equal(reply.keeps, e->keeps);
    if (e->body) assert_string_equal(body.data ? body.data : "", e->body);
    if (e->rest) assert_string_equal(e->bytes + n, e->rest);
    once_buf_release(&body);
}

static void check(const expected *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        read_in_pieces(&cases[i], SIZE_MAX / 2);
        read_in_pieces(&cases[i], 1);
        read_in_pieces(&cases[i], 7);
    }
}

static void answers_end_where_they_say(void **state)
{
    (void)state;
    static const expected cases[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", HTTP_REPLY_WHOLE, 200, true, "ok", ""},
        {"HTTP/1.1 200 OK\r\ncontent-LENGTH:2\r\n\r\nok", HTTP_REPLY_WHOLE, 200, true, "ok", ""},
        {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok", HTTP_REPLY_WHOLE, 200, true, "ok", ""},
        {"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", HTTP_REPLY_WHOLE, 200, true, "", ""},
        {"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", HTTP_REPLY_WHOLE, 200, true, "ok", ""},
        {"HTTP/1.1 204 No\r\n\r\n", HTTP_REPLY_WHOLE, 204, true, "", ""},
        {"HTTP/1.1 204 No\r\nContent-Length: 0\r\n\r\n", HTTP_REPLY_WHOLE, 204, true, "", ""},
        {"HTTP/1.1 204 No\r\nContent-Length: 9\r\n\r\n", HTTP_REPLY_WHOLE, 204, false, "", ""},
        {"HTTP/1.1 204 No\r\nTransfer-Encoding: chunked\r\n\r\n", HTTP_REPLY_WHOLE, 204, false, "", ""},
        {"HTTP/1.1 304 No\r\nTransfer-Encoding: chunked\r\n\r\n", HTTP_REPLY_WHOLE, 304, false, "", ""},
        {"HTTP/1.1 304 No\r\nContent-Length: 9\r\n\r\n", HTTP_REPLY_WHOLE, 304, true, "", ""},
        {"HTTP/1.1 999 No\r\nContent-Length: 0\r\n\r\n", HTTP_REPLY_WHOLE, 999, true, "", ""},
        {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200", HTTP_REPLY_WHOLE, 200, true, "ok", NULL},
        {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hint\r\nX: y\r\n\r\nHTTP/1.1 201 OK\r\nContent-Length: 1\r\n\r\nx",
         HTTP_REPLY_WHOLE, 201, true, "x", ""},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\nabc\r\n00A;x=y\r\n0123456789\r\n0\r\n\r\n",
         HTTP_REPLY_WHOLE, 200, true, "abc0123456789", ""},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-Sum: 1\r\nY: 2\r\n\r\n",
         HTTP_REPLY_WHOLE, 200, true, "a", ""},
        {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
         HTTP_REPLY_WHOLE, 200, false, "a", ""},
        {"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", HTTP_REPLY_WHOLE, 200, false, "", ""},
        {"HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 0\r\n\r\n", HTTP_REPLY_WHOLE, 200, false, "", ""},
        {"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n", HTTP_REPLY_WHOLE, 200, true, "", ""},
        {"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", HTTP_REPLY_WHOLE, 200, false, "", ""},
        {"HTTP/1.1 200 OK\r\nX: y\r\n z: Content-Length\r\nContent-Length: 0\r\n\r\n", HTTP_REPLY_WHOLE, 200, true, "",
         ""},
    };
    check(cases, sizeof cases / sizeof *cases);
}

static void what_is_not_whole_is_not_taken_for_it(void **state)
{
    (void)state;
    static const expected cases[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok", HTTP_REPLY_LENGTH, 200, true, "ok", ""},
        {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n", HTTP_REPLY_HEADERS, 200, true, "", ""},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", HTTP_REPLY_CHUNK, 200, true, "abc", ""},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n", HTTP_REPLY_TRAILERS, 200, true,
         "abc", ""},
        {"HTTP/1.1 100 Continue\r\n\r\n", HTTP_REPLY_STATUS, 100, true, "", ""},
        {"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n012345678901234567890123456789", HTTP_REPLY_TOO_LARGE, 200, true,
         NULL, NULL},
        {"HTTP/1.1 200 OK\r\n\r\n012345678901234567890123456789", HTTP_REPLY_TOO_LARGE, 200, true, NULL, NULL},
    };
    check(cases, sizeof cases / sizeof *cases);
    for (size_t i = 0; i < 5; i++) { /* the connection is closed there */
        http_reply reply;
        once_buf body;
        once_buf_init(&body, MAX);
        (void)feed(&reply, cases[i].bytes, 100, &body);
        once__http_reply_close(&reply);
        assert_int_equal(reply.state, HTTP_REPLY_BROKEN);
        once_buf_release(&body);
    }
}

static void without_a_length_it_ends_with_the_connection(void **state)
{
    (void)state;
    http_reply reply;
    once_buf body;
    once_buf_init(&body, MAX);
    (void)feed(&reply, "HTTP/1.1 200 OK\r\nRetry-After: 7 \r\n\r\nall of it", 3, &body);
    assert_int_equal(reply.state, HTTP_REPLY_CLOSE);
    once__http_reply_close(&reply);
    assert_int_equal(reply.state, HTTP_REPLY_WHOLE);
    assert_false(reply.keeps);
    assert_string_equal(body.data, "all of it");
    assert_string_equal(reply.retry_after, "7");
    once_buf_release(&body);
}

/* Two readers could find two ends in each of these: then an answer is not believed. */
static void f81_what_can_be_read_in_two_ways_is_broken(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "SSH-2.0-OpenSSH\r\n",
        "HTTP/2 200\r\n\r\n",
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/1.1 2000\r\n\r\n",
        "HTTP/1.1  200 OK\r\n\r\n",
        "http/1.1 200 OK\r\n\r\n",
        "\r\nHTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.1 000 OK\r\n\r\n",
        "HTTP/1.1 101 Switching\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 0x1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\n",
        "HTTP/1.1 200 OK\r\nno header\r\n\r\n",
        "HTTP/1.1 200 OK\r\n: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1x\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check(&(expected){.bytes = cases[i], .state = HTTP_REPLY_BROKEN}, 1);
}

static void a_body_may_come_in_many_small_chunks(void **state)
{
    (void)state;
    enum { CHUNKS = 100000 };
    static const char head[] = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", chunk[] = "1\r\nx\r\n";
    char *text = malloc(sizeof head + CHUNKS * (sizeof chunk - 1) + 10), *at = stpcpy(text, head);
    http_reply reply;
    once_buf body;
    once_buf_init(&body, CHUNKS);
    for (int i = 0; i < CHUNKS; i++) at = stpcpy(at, chunk);
    (void)stpcpy(at, "0\r\n\r\n");
    (void)feed(&reply, text, 1000, &body);
    assert_int_equal(reply.state, HTTP_REPLY_WHOLE);
    assert_int_equal(body.len, CHUNKS);
    once_buf_release(&body);
    free(text);
}

static void lines_without_end_are_broken(void **state)
{
    (void)state;
    char *line = malloc(300001);
    http_reply reply;
    once_buf body;
    assert_non_null(line);
    once_buf_init(&body, MAX);
    memset(line, 'x', 300000);
    line[300000] = '\0';
    (void)feed(&reply, line, SIZE_MAX / 2, &body);
    assert_int_equal(reply.state, HTTP_REPLY_BROKEN);
    free(line);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_end_where_they_say),
        cmocka_unit_test(what_is_not_whole_is_not_taken_for_it),
        cmocka_unit_test(without_a_length_it_ends_with_the_connection),
        cmocka_unit_test(f81_what_can_be_read_in_two_ways_is_broken),
        cmocka_unit_test(a_body_may_come_in_many_small_chunks),
        cmocka_unit_test(lines_without_end_are_broken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
