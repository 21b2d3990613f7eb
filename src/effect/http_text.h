/* Texts of an HTTP request that are made for each message: URL, header values, body.
 *
 * A text is compiled from the pipeline file into parts: literals, placeholders (core/placeholder.h), and three facts of
 * the attempt, ${key}, ${idempotency_key} and ${attempt}. Each part has an encoding, so that a value can never be more
 * than a value: in a path it is one segment or a piece of one, in a query one value, in a header one line, in JSON one
 * value or a piece of one string.
 *
 * The placeholders are read in `prepare`, where the message is parsed; the text is put together when the request is
 * sent, because only then the attempt is known.
 *
 * Thread rule: a compiled text may be shared; each rendering needs a buffer and an arena of its own. */
#ifndef ONCE_EFFECT_HTTP_TEXT_H
#define ONCE_EFFECT_HTTP_TEXT_H

#include "base/arena.h"
#include "base/buf.h"
#include "core/placeholder.h"

typedef enum once_http_encoding {
    ONCE_HTTP_PLAIN,  /* as it is */
    ONCE_HTTP_PATH,   /* of a URL: values percent-encoded and not empty; literals as they are. QUERY behind a '?' */
    ONCE_HTTP_QUERY,  /* of a URL: values percent-encoded; literals as they are */
    ONCE_HTTP_FORM,   /* values and literals percent-encoded: a value of a query or a form */
    ONCE_HTTP_HEADER, /* as it is; no control characters */
    ONCE_HTTP_JSON    /* a whole JSON value where the text is one placeholder, otherwise a JSON string */
} once_http_encoding;

typedef struct once_http_part once_http_part;

typedef struct once_http_text {
    const once_http_part *parts;
    size_t n;
    size_t fields; /* how many of them are read from the message */
} once_http_text;

/* Collects the parts of a text. After a failure the others fail, too. */
typedef struct once_http_writer {
    once_arena *arena;
    once_buf literal; /* what is not a part yet */
    once_http_part *parts;
    size_t n, capacity, fields;
    bool failed; /* out of memory */
} once_http_writer;

void once_http_write(once_http_writer *writer, once_arena *arena);
void once_http_write_literal(once_http_writer *writer, once_bytes literal);
/* A template. ONCE_OK, ONCE_E_USAGE with the mistake in `err`, or ONCE_E_NOMEM. */
int once_http_write_template(once_http_writer *writer, once_bytes text, once_http_encoding encoding, once_error *err);
/* Frees the writer, also after a failure. False: memory is out. */
bool once_http_written(once_http_writer *writer, once_http_text *out);

/* A text that is one template. */
int once_http_text_parse(once_arena *arena, once_bytes text, once_http_encoding encoding, once_http_text *out,
                         once_error *err);

/* Walks over its placeholders: begin with *at = 0. NULL: there are no more. */
const once_placeholder *once_http_text_next(const once_http_text *text, size_t *at);
bool once_http_text_is_literal(const once_http_text *text);

/* The values of its placeholders, encoded, in the arena. ONCE_E_MESSAGE: one is missing or cannot stand there. */
int once_http_text_values(const once_http_text *text, const once_parsed *from, once_arena *arena,
                          const once_bytes **values, once_error *err);

/* What is known of an attempt when it begins. */
typedef struct once_http_facts {
    once_bytes key, idempotency_key, attempt;
} once_http_facts;

/* Appends the text. ONCE_E_MESSAGE: the key cannot stand there. That memory is out shows in `out`. */
int once_http_text_render(const once_http_text *text, const once_bytes *values, const once_http_facts *facts,
                          once_buf *out, once_error *err);

/* Whether a URL has a segment "." or "..", however its dots and slashes are written: servers take it for a step in the
 * path. */
bool once_http_path_steps(once_bytes url);
/* Whether a value has nothing but blanks, or nothing. */
bool once_http_blank(once_bytes value);

#endif
