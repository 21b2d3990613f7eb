/* A growing byte buffer with a maximum that is set when it is made. After an append failed (memory, or the maximum),
 * every later append fails, too, and `failed` stays true. So a writer needs to check only once, at the end.
 *
 * Thread rule: one thread at a time. */
#ifndef ONCE_BASE_BUF_H
#define ONCE_BASE_BUF_H

#include <stdint.h>
#include <string.h>

#include "once/types.h"

typedef struct once_buf {
    char *data; /* NULL while empty; otherwise a NUL stands behind the last byte */
    size_t len, capacity, max;
    bool failed;
} once_buf;

void once_buf_init(once_buf *buf, size_t max);
void once_buf_clear(once_buf *buf);   /* empty and not failed, memory kept */
void once_buf_release(once_buf *buf); /* memory given back; usable again */

bool once_buf_reserve(once_buf *buf, size_t more);
bool once_buf_append(once_buf *buf, const void *data, size_t len);
bool once_buf_puts(once_buf *buf, const char *text);
bool once_buf_printf(once_buf *buf, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool once_buf_number(once_buf *buf, uint64_t number); /* in decimal digits */

/* The decimal digits of the number, in `room`, and a NUL behind them. A request over HTTP has several numbers, and
 * printf takes ten times as long. */
enum { ONCE_DIGITS = 21 };
once_bytes once_digits(uint64_t number, char room[ONCE_DIGITS]);

/* The length of the well-formed UTF-8 sequence at `at`. If it is not well-formed: minus the number of bytes to replace
 * by one U+FFFD, which is the longest valid start, as Unicode recommends. `left` > 0. */
int once_utf8_sequence(const unsigned char *at, size_t left);

/* Appends a JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD. */
bool once_buf_json(once_buf *buf, once_bytes text);

static inline once_bytes once_bytes_of(const char *text) { return (once_bytes){text, strlen(text)}; }
static inline once_bytes once_buf_bytes(const once_buf *buf) { return (once_bytes){buf->data, buf->len}; }

#endif
