/* How many entries of a consumer are in each state, and when the next one is due. The server counts; only claims whose
 * lease has ended are read one by one. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "store/redis/index.h"

#include "base/banned.h"

static void ask_card(once_redis *r, const char *kind, once_bytes consumer)
{
    once__redis_command(&r->pipe, ONCE_REPLY_COUNT, 2);
    once__redis_text(&r->pipe, "ZCARD");
    once__redis_put_key(r, kind, consumer.data, consumer.len);
}

static void ask_count_above(once_redis *r, const char *kind, once_bytes consumer, int64_t score)
{
    assert(score >= 0);
    char above[32];
    (void)snprintf(above, sizeof above, "(%lld", (long long)score);
    once__redis_command(&r->pipe, ONCE_REPLY_COUNT, 4);
    once__redis_text(&r->pipe, "ZCOUNT");
    once__redis_put_key(r, kind, consumer.data, consumer.len);
    once__redis_text(&r->pipe, above);
    once__redis_text(&r->pipe, "+inf");
}

/* Asks for the first entry that is due after `above_ms`; ONCE_NO_TIME: at any time. */
static void ask_first(once_redis *r, const char *kind, once_bytes consumer, int64_t above_ms)
{
    char above[32] = "-inf";
    if (above_ms != ONCE_NO_TIME) (void)snprintf(above, sizeof above, "(%lld", (long long)above_ms);
    once__redis_command(&r->pipe, ONCE_REPLY_PAIRS, 8);
    once__redis_text(&r->pipe, "ZRANGEBYSCORE");
    once__redis_put_key(r, kind, consumer.data, consumer.len);
    once__redis_text(&r->pipe, above);
    once__redis_text(&r->pipe, "+inf");
    once__redis_text(&r->pipe, "WITHSCORES");
    once__redis_text(&r->pipe, "LIMIT");
    once__redis_number(&r->pipe, 0);
    once__redis_number(&r->pipe, 1);
}

/* Lowers *due_ms to the due time in the reply, if that is sooner. */
static int sooner(once_redis *r, const redisReply *reply, int64_t *due_ms, once_error *err)
{
    double due;
    if (once__reply_n(reply) == 0) return ONCE_OK;
    if (!once__reply_read_score(once__reply_at(reply, 1), &due) || due < 0)
        return once__redis_damaged(r, "an index", err);
    if (due < 9.2e18 && (int64_t)due < *due_ms) *due_ms = (int64_t)due;
    return ONCE_OK;
}

/* A claim whose lease has ended; it counts only while it has this stamp. 0: any stamp. */
typedef struct lost_claim {
    once_hash id;
    uint64_t stamp;
} lost_claim;

typedef ONCE_REDIS_LIST(lost_claim) lost_list;

static int add_lost(once_redis *r, lost_list *list, once_bytes ids, uint64_t stamp, once_error *err)
{
    if (ids.len == 0 || ids.len % 16) return once__redis_damaged(r, "an index", err);
    for (size_t at = 0; at < ids.len; at += 16) {
        if (!ONCE_REDIS_ROOM(*list)) return once__redis_nomem(err);
        list->at[list->n++] = (lost_claim){once__redis_id_read(ids.data + at), stamp};
    }
    return ONCE_OK;
}

/* Whether each is waiting or unknown is in the first bytes of its value. They are few: a worker that is alive extends
 * its leases. */
static int count_lost(once_redis *r, const lost_list *list, once_stats *out, once_error *err)
{
    assert(r->open);
    int rc = ONCE_OK;
    for (size_t from = 0; from < list->n && rc == ONCE_OK; from += ONCE_REDIS_PAGE) {
        const size_t n = list->n - from < ONCE_REDIS_PAGE ? list->n - from : ONCE_REDIS_PAGE;
        once__redis_pipe_clear(&r->pipe);
        for (size_t i = from; i < from + n; i++) {
            once__redis_command(&r->pipe, ONCE_REPLY_TEXT, 4);
            once__redis_text(&r->pipe, "GETRANGE");
            once__redis_put_id_key(r, "e", list->at[i].id);
            once__redis_number(&r->pipe, 0);
            once__redis_number(&r->pipe, ONCE_REDIS_HEAD - 1);
        }
        rc = once__redis_ask(r, err);
        for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
            once_redis_open_head head;
            const uint64_t stamp = list->at[from + i].stamp;
            if (!once__redis_read_head(once__reply_bytes(r->pipe.replies[i]), &head) ||
                head.state != ONCE_STATE_CLAIMED)
                continue;
            if (stamp && head.stamp != stamp) continue; /* claimed again, in another group */
            if (head.hold) out->unknown++;
            else out->waiting++;
            if ((!head.hold || head.lookup) && head.has_message) out->wait_ms = 0; /* it is due already */
        }
    }
    return rc;
}

/* Claims without a body whose lease has not ended. */
static int count_groups(once_redis *r, once_bytes consumer, const redisReply *groups, int64_t now_ms, once_stats *out,
                        lost_list *lost, once_error *err)
{
    ONCE_REDIS_LIST(once_bytes) over = {0};
    int rc = ONCE_OK;
    for (size_t i = 0; i < once__reply_n(groups) && rc == ONCE_OK; i += 2) {
        once_bytes group = once__reply_at(groups, i);
        double left;
        if (group.len != 16 || !once__reply_read_score(once__reply_at(groups, i + 1), &left) || left < 0 ||
            left > UINT32_MAX) {
            rc = once__redis_damaged(r, "an index", err);
            break;
        }
        const int64_t due_ms = once__redis_group_due(group.data);
        if (due_ms <= now_ms) {
            if (!ONCE_REDIS_ROOM(over) || !once_arena_copy(&r->arena, group, &group)) rc = once__redis_nomem(err);
            else over.at[over.n++] = group;
            continue;
        }
        out->claimed += (uint64_t)left;
        if (due_ms < out->wait_ms) out->wait_ms = due_ms;
    }
    if (rc == ONCE_OK && over.n) {
        once__redis_pipe_clear(&r->pipe);
        once__redis_command_for(&r->pipe, over.n, over.n + 2);
        once__redis_text(&r->pipe, "HMGET");
        once__redis_put_key(r, "g", consumer.data, consumer.len);
        for (size_t i = 0; i < over.n; i++) once__redis_arg(&r->pipe, over.at[i].data, over.at[i].len);
        rc = once__redis_ask(r, err);
        for (size_t i = 0; i < over.n && rc == ONCE_OK; i++) {
            const once_bytes ids = once__reply_at(r->pipe.replies[0], i);
            if (ids.len) rc = add_lost(r, lost, ids, once__redis_group_stamp(over.at[i].data), err);
        }
    }
    free(over.at);
    return rc;
}

int once__redis_stats(once_storage *storage, once_bytes consumer, once_stats *out, once_error *err)
{
    once_redis *r = once__redis_of(storage);
    assert(r->open);
    const int64_t now_ms = storage->now_ms;
    once__redis_pipe_clear(&r->pipe);
    ask_card(r, "iW", consumer);
    ask_count_above(r, "iw", consumer, now_ms);
    ask_count_above(r, "iC", consumer, now_ms);
    ask_card(r, "iu", consumer);
    ask_card(r, "d", consumer);
    ask_first(r, "iW", consumer, ONCE_NO_TIME);
    ask_first(r, "iC", consumer, now_ms);
    ask_first(r, "iu", consumer, ONCE_NO_TIME);
    once__redis_ask_due(r, ONCE_REDIS_CLAIMED, consumer, 0, now_ms, INT32_MAX);
    once__redis_command(&r->pipe, ONCE_REPLY_PAIRS, 5);
    once__redis_text(&r->pipe, "ZRANGE");
    once__redis_put_key(r, "c", consumer.data, consumer.len);
    once__redis_text(&r->pipe, "0");
    once__redis_text(&r->pipe, "-1");
    once__redis_text(&r->pipe, "WITHSCORES");
    int rc = once__redis_ask(r, err);
    if (rc != ONCE_OK) return rc;
    redisReply *const *reply = r->pipe.replies;
    *out = (once_stats){
        .waiting = once__reply_count(reply[0]) + once__reply_count(reply[1]),
        .claimed = once__reply_count(reply[2]),
        .unknown = once__reply_count(reply[3]),
        .dead = once__reply_count(reply[4]),
        .wait_ms = ONCE_NEVER,
    };
    for (size_t i = 5; i < 8 && rc == ONCE_OK; i++) rc = sooner(r, reply[i], &out->wait_ms, err);
    lost_list lost = {0};
    for (size_t i = 0; rc == ONCE_OK && i < once__reply_n(reply[8]); i += 2)
        rc = add_lost(r, &lost, once__reply_at(reply[8], i), 0, err);
    if (rc == ONCE_OK) rc = count_groups(r, consumer, reply[9], now_ms, out, &lost, err);
    if (rc == ONCE_OK) rc = count_lost(r, &lost, out, err);
    free(lost.at);
    return rc;
}
