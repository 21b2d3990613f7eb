/* How much waits: the indexes name the entries that have a body and are not finished, and STRLEN gives the length of a
 * value without reading it. So the bytes are those of the values, which are about 200 larger than their bodies. They
 * are asked for a page at a time, so that the server can serve others in between. An entry that changes in the meantime
 * may count twice, or not at all. */
#include "store/redis/redis.h"

#include "base/banned.h"

enum { PAGE = 2048 };

static void ask_page(once_redis *r, const char *kind, once_bytes consumer, int64_t first)
{
    once__redis_command(&r->pipe, ONCE_REPLY_TEXTS, 4);
    once__redis_text(&r->pipe, "ZRANGE");
    once__redis_put_key(r, kind, consumer.data, consumer.len);
    once__redis_number(&r->pipe, first);
    once__redis_number(&r->pipe, first + PAGE - 1);
}

/* The ids of the page that was asked for last. */
static int read_page(once_redis *r, once_hash ids[PAGE], size_t *n, once_error *err)
{
    const redisReply *page = r->pipe.replies[r->pipe.n - 1];
    *n = once__reply_n(page);
    if (*n > PAGE) return once__redis_damaged(r, "an index", err);
    for (size_t i = 0; i < *n; i++) {
        const once_bytes id = once__reply_at(page, i);
        if (id.len != 16) return once__redis_damaged(r, "an index", err);
        ids[i] = once__redis_id_read(id.data);
    }
    return ONCE_OK;
}

static void ask_card(once_redis *r, const char *kind, once_bytes consumer)
{
    once__redis_command(&r->pipe, ONCE_REPLY_COUNT, 2);
    once__redis_text(&r->pipe, "ZCARD");
    once__redis_put_key(r, kind, consumer.data, consumer.len);
}

static int add_bytes_of(once_redis *r, const char *kind, once_bytes consumer, once_waiting_size *out, once_error *err)
{
    once_hash ids[PAGE];
    size_t n = 0;
    int64_t first = 0;
    once__redis_pipe_clear(&r->pipe);
    ask_page(r, kind, consumer, first);
    int rc = once__redis_ask(r, err);
    if (rc == ONCE_OK) rc = read_page(r, ids, &n, err);
    while (rc == ONCE_OK && n) { /* the lengths of this page, and the next one */
        once__redis_pipe_clear(&r->pipe);
        for (size_t i = 0; i < n; i++) {
            once__redis_command(&r->pipe, ONCE_REPLY_COUNT, 2);
            once__redis_text(&r->pipe, "STRLEN");
            once__redis_put_id_key(r, "e", ids[i]);
        }
        ask_page(r, kind, consumer, first += PAGE);
        rc = once__redis_ask(r, err);
        for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
            out->bytes += once__reply_count(r->pipe.replies[i]); /* 0: it was deleted since */
        }
        if (rc == ONCE_OK) rc = read_page(r, ids, &n, err);
    }
    return rc;
}

int once__redis_waiting_size(once_storage *storage, once_bytes consumer, once_waiting_size *out, once_error *err)
{
    once_redis *r = once__redis_of(storage);
    once__redis_pipe_clear(&r->pipe);
    ask_card(r, "iW", consumer);
    ask_card(r, "iC", consumer);
    int rc = once__redis_ask(r, err);
    if (rc != ONCE_OK) return rc;
    out->messages = once__reply_count(r->pipe.replies[0]) + once__reply_count(r->pipe.replies[1]);
    rc = add_bytes_of(r, "iW", consumer, out, err);
    if (rc == ONCE_OK) rc = add_bytes_of(r, "iC", consumer, out, err);
    once__redis_pipe_clear(&r->pipe);
    return rc;
}
