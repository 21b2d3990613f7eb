#include "store/redis/reply.h"

#include <assert.h>
#include <hiredis/hiredis.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"

#include "base/banned.h"

/* --- numbers --- */

bool once__reply_read_number(once_bytes text, uint64_t *out)
{
    uint64_t number = 0;
    if (text.len == 0 || text.len > 19)
        return false; /* Redis counts in signed 64-bit integers, so there are at most this many digits */
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] < '0' || text.data[i] > '9') return false;
        number = number * 10 + (uint64_t)(text.data[i] - '0');
    }
    *out = number;
    return true;
}

/* "1794763413433", "inf", or "9.2233720368547758e+18", which strtod would read as 9 in a locale with a decimal comma.
 */
bool once__reply_read_score(once_bytes text, double *out)
{
    uint64_t number;
    if (text.len <= 15 && once__reply_read_number(text, &number)) return *out = (double)number, true;
    if (text.len == 3 && memcmp(text.data, "inf", 3) == 0) return *out = INFINITY, true;
    once_json json = {0};
    const bool finite =
        once_json_parse(&json, text, NULL, NULL) == ONCE_OK && once_json_double(once_json_root(&json), out);
    once_json_release(&json);
    return finite;
}

/* --- checking a reply --- */

static bool is_text(const redisReply *reply) { return reply->type == REDIS_REPLY_STRING; }
static bool is_value(const redisReply *reply) { return reply->type == REDIS_REPLY_NIL || is_text(reply); }
static bool is_done(const redisReply *reply) { return reply->type == REDIS_REPLY_STATUS; }
static bool is_integer(const redisReply *reply, long long least)
{
    return reply->type == REDIS_REPLY_INTEGER && reply->integer >= least;
}

static bool is_number(const redisReply *reply, size_t digits)
{
    uint64_t number;
    return is_text(reply) && reply->len <= digits &&
           once__reply_read_number((once_bytes){reply->str, reply->len}, &number);
}

static bool all_are(const redisReply *reply, bool (*is)(const redisReply *reply))
{
    if (reply->type != REDIS_REPLY_ARRAY) return false;
    for (size_t i = 0; i < reply->elements; i++)
        if (!is(reply->element[i])) return false;
    return true;
}

static bool is_array_of(const redisReply *reply, size_t n)
{
    return reply->type == REDIS_REPLY_ARRAY && reply->elements == n;
}

/* Seconds and microseconds; few enough seconds that milliseconds do not overflow. */
static bool is_time(const redisReply *reply)
{
    return is_array_of(reply, 2) && is_number(reply->element[0], 12) && is_number(reply->element[1], 6);
}

/* A cursor is an unsigned 64-bit number: up to twenty digits. */
static bool is_cursor(const redisReply *reply)
{
    return is_text(reply) && reply->len > 0 && reply->len <= 20 && strspn(reply->str, "0123456789") == reply->len;
}
static bool is_page(const redisReply *reply)
{
    return is_array_of(reply, 2) && is_cursor(reply->element[0]) && all_are(reply->element[1], is_text);
}

/* A node is a host, a port, and more that is ignored. */
static bool is_node(const redisReply *reply)
{
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements < 2) return false;
    const redisReply *host = reply->element[0];
    return (is_text(host) || host->type == REDIS_REPLY_NIL) && is_integer(reply->element[1], 0);
}

static bool is_range(const redisReply *reply)
{
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements < 2 || !is_integer(reply->element[0], 0) ||
        !is_integer(reply->element[1], 0))
        return false;
    for (size_t i = 2; i < reply->elements; i++)
        if (!is_node(reply->element[i])) return false;
    return true;
}

static bool is_commit(const redisReply *reply)
{
    return is_integer(reply, 1) || (is_array_of(reply, 1) && is_text(reply->element[0]));
}

bool once__reply_is(const redisReply *reply, once_reply_kind kind, size_t n)
{
    switch (kind) {
    case ONCE_REPLY_DONE: return is_done(reply);
    case ONCE_REPLY_DONE_OR_NOT: return is_done(reply) || reply->type == REDIS_REPLY_NIL;
    case ONCE_REPLY_COUNT: return is_integer(reply, 0);
    case ONCE_REPLY_LEFT: return is_integer(reply, -2);
    case ONCE_REPLY_TEXT: return is_text(reply);
    case ONCE_REPLY_VALUE: return is_value(reply);
    case ONCE_REPLY_VALUES:
    case ONCE_REPLY_STRINGS: return is_array_of(reply, n) && all_are(reply, is_value);
    case ONCE_REPLY_TEXTS: return all_are(reply, is_text);
    case ONCE_REPLY_PAIRS: return all_are(reply, is_text) && reply->elements % 2 == 0;
    case ONCE_REPLY_TIME: return is_time(reply);
    case ONCE_REPLY_PAGE: return is_page(reply);
    case ONCE_REPLY_SLOTS: return all_are(reply, is_range);
    case ONCE_REPLY_COMMIT: return is_commit(reply);
    case ONCE_REPLY_ANY: return true;
    }
    return false;
}

static bool is_empty(const redisReply *reply) { return is_text(reply) && reply->len == 0; }

bool once__reply_has_empty(const redisReply *reply, once_reply_kind kind, size_t *which)
{
    *which = 0;
    if (kind == ONCE_REPLY_VALUE) return is_empty(reply);
    if (kind != ONCE_REPLY_VALUES) return false;
    while (*which < reply->elements && !is_empty(reply->element[*which])) ++*which;
    return *which < reply->elements;
}

const char *once__reply_words(const redisReply *reply, char out[ONCE_REPLY_WORDS])
{
    switch (reply->type) {
    case REDIS_REPLY_STRING: (void)snprintf(out, ONCE_REPLY_WORDS, "a string of %zu bytes", (size_t)reply->len); break;
    case REDIS_REPLY_STATUS: (void)snprintf(out, ONCE_REPLY_WORDS, "a status"); break;
    case REDIS_REPLY_INTEGER: (void)snprintf(out, ONCE_REPLY_WORDS, "the integer %lld", reply->integer); break;
    case REDIS_REPLY_NIL: (void)snprintf(out, ONCE_REPLY_WORDS, "nil"); break;
    case REDIS_REPLY_ERROR: (void)snprintf(out, ONCE_REPLY_WORDS, "an error"); break;
    case REDIS_REPLY_ARRAY: {
        char first[ONCE_REPLY_WORDS];
        const bool nested = reply->elements && reply->element[0]->type != REDIS_REPLY_ARRAY;
        if (nested)
            (void)snprintf(out, ONCE_REPLY_WORDS, "an array of %zu that begins with %.40s", reply->elements,
                           once__reply_words(reply->element[0], first));
        else (void)snprintf(out, ONCE_REPLY_WORDS, "an array of %zu", reply->elements);
        break;
    }
    default: (void)snprintf(out, ONCE_REPLY_WORDS, "something of type %d", reply->type);
    }
    return out;
}

const char *once__reply_error(const redisReply *reply) { return reply->type == REDIS_REPLY_ERROR ? reply->str : NULL; }

/* --- reading it --- */

uint64_t once__reply_count(const redisReply *reply)
{
    assert(is_integer(reply, 0));
    return (uint64_t)reply->integer;
}

int64_t once__reply_left(const redisReply *reply)
{
    assert(is_integer(reply, -2));
    return reply->integer;
}

once_bytes once__reply_bytes(const redisReply *reply)
{
    assert(reply->type == REDIS_REPLY_STRING || reply->type == REDIS_REPLY_STATUS || reply->type == REDIS_REPLY_NIL);
    return reply->type == REDIS_REPLY_NIL ? (once_bytes){0} : (once_bytes){reply->str, reply->len};
}

size_t once__reply_n(const redisReply *reply)
{
    assert(reply->type == REDIS_REPLY_ARRAY || reply->type == REDIS_REPLY_INTEGER);
    return reply->type == REDIS_REPLY_ARRAY ? reply->elements : 0;
}

once_bytes once__reply_at(const redisReply *reply, size_t i)
{
    assert(reply->type == REDIS_REPLY_ARRAY && i < reply->elements);
    return once__reply_bytes(reply->element[i]);
}

int64_t once__reply_time_ms(const redisReply *reply)
{
    uint64_t seconds = 0, microseconds = 0;
    (void)once__reply_read_number(once__reply_at(reply, 0), &seconds);
    (void)once__reply_read_number(once__reply_at(reply, 1), &microseconds);
    return (int64_t)(seconds * 1000 + microseconds / 1000);
}

void once__reply_cursor(const redisReply *page, char out[24])
{
    const once_bytes cursor = once__reply_at(page, 0);
    (void)snprintf(out, 24, "%.*s", (int)cursor.len, cursor.data);
}

const redisReply *once__reply_keys(const redisReply *page)
{
    assert(is_array_of(page, 2));
    return page->element[1];
}

size_t once__reply_nodes(const redisReply *slots, once_reply_node_visit *visit, void *user)
{
    assert(slots->type == REDIS_REPLY_ARRAY);
    for (size_t i = 0; i < slots->elements; i++)
        for (size_t k = 2; k < slots->element[i]->elements; k++) {
            const redisReply *node = slots->element[i]->element[k];
            visit(user, once__reply_at(node, 0), node->element[1]->integer);
        }
    return slots->elements;
}
