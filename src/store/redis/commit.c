/* The commit: sends everything that the transaction writes as one script, and checks what the server guarantees. */
#include <assert.h>
#include <string.h>

#include "store/redis/commit.h"

#include "base/banned.h"

enum { SCRIPT_MAX = 512 << 20 }; /* a server closes the connection at a gibibyte */

/* Asks behind a commit how many replicas have it, and whether the server still keeps what it acknowledges. */
static void ask_promises(once_redis *r)
{
    once_redis_pipe *pipe = &r->pipe;
    if (r->url.wait) {
        once__redis_command(pipe, ONCE_REPLY_COUNT, 3);
        once__redis_text(pipe, "WAIT");
        once__redis_number(pipe, r->url.wait);
        once__redis_number(pipe, r->wait_ms);
    }
    if (r->durable) once__redis_ask_settings(pipe);
}

static int read_promises(once_redis *r, redisReply *const *replies, uint64_t commits, once_error *err)
{
    const once_bytes secret = {(const char *)&r->storage.store.secret,
                               sizeof r->storage.store.secret}; /* the script has compared it */
    const uint64_t have = r->url.wait ? once__reply_count(*replies++) : 0;
    int rc = once__redis_check_head(r, secret, commits, have >= r->url.wait, err);
    if (rc == ONCE_OK && have < r->url.wait)
        rc = once_fail(err, ONCE_E_UNAVAILABLE, "only %llu of %u replicas of redis have the commit",
                       (unsigned long long)have, r->url.wait);
    bool durable;
    return rc == ONCE_OK && r->durable ? once__redis_read_settings(r, replies, &durable, err) : rc;
}

/* The transaction must commit on the connection that it read from: another one may lead to another node. If keys were
 * moving, no interrupted move may have hidden some of them from what was read. */
static int is_all_here(once_redis *r, once_error *err)
{
    assert(once__redis_clustered(r->link));
    const unsigned looked_at = r->looked_at;
    const int rc = once__redis_same(r->link, looked_at) && once__redis_saw_move(r->link)
                       ? once__redis_look_for_strays(r, err)
                       : ONCE_OK;
    return rc == ONCE_OK && !once__redis_same(r->link, looked_at) ? once__redis_conflict(r, err) : rc;
}

/* A decision that is based on one node is not sent to another. Nor is it sent again while keys move: a key that did not
 * exist when it was read may have been made since and moved, and the move interrupted. So the commit waits for the end
 * of the move, and the transaction runs again. */
static int decide(once_redis *r, char refused[24], once_error *err)
{
    assert(r->pipe.n > 0 && !r->pipe.replies);
    r->pipe.stays = true;
    r->pipe.guesses = r->assumed;
    const int rc = once__redis_exchange(r->link, &r->pipe, refused, err);
    if (rc == ONCE_OK) return rc;
    const bool moves = strcmp(refused, "TRYAGAIN") == 0;
    if (moves && !r->assumed && !once__redis_move_ends(r)) return rc;
    return moves || strcmp(refused, "MOVED") == 0 || (r->assumed && strcmp(refused, "ASK") == 0)
               ? once__redis_conflict(r, err)
               : rc;
}

static int send(once_redis *r, once_error *err)
{
    char refused[24];
    int rc = once__redis_clustered(r->link) ? is_all_here(r, err) : ONCE_OK;
    if (rc != ONCE_OK) return rc;
    once__redis_build(r, false);
    ask_promises(r);
    if (r->pipe.bytes.len > SCRIPT_MAX)
        return once_fail(
            err, ONCE_E_CONFIG,
            "a transaction of %zu MiB is more than redis takes at once; lower 'batch: {max: ...}' or 'message_max'",
            r->pipe.bytes.len >> 20);
    rc = decide(r, refused, err);
    if (rc != ONCE_OK &&
        strcmp(refused, "NOSCRIPT") == 0) { /* the server was restarted: EVAL gives it the script again */
        once__redis_build(r, true);
        ask_promises(r);
        rc = decide(r, refused, err);
    }
    if (rc != ONCE_OK) return rc;
    const redisReply *reply = r->pipe.replies[0];
    if (once__reply_n(reply)) return once__redis_damaged_key(r, once__reply_at(reply, 0), err);
    const uint64_t answer = once__reply_count(reply);
    if (answer == 1) return once__redis_conflict(r, err);
    if (answer == 2) return once__redis_replaced(r, err);
    rc = read_promises(r, r->pipe.replies + 1, answer - 2, err);
    if (rc != ONCE_OK) return rc;
    for (size_t i = 0; i < r->names.n; i++) r->names.at[i].written = true;
    return ONCE_OK;
}

/* The answer "duplicate" relies on what another worker wrote. With replicas to wait for, they must have that as
 * well. */
static int wait_for_what_was_read(once_redis *r, once_error *err)
{
    assert(r->url.wait > 0 && r->slots.n > 0);
    once__redis_pipe_clear(&r->pipe);
    once__redis_command(&r->pipe, ONCE_REPLY_COUNT, 4);
    once__redis_text(&r->pipe, "HINCRBY"); /* a write behind what was read, for WAIT to wait for */
    once__redis_put_key(r, "head", NULL, 0);
    once__redis_text(&r->pipe, "commits");
    once__redis_text(&r->pipe, "1");
    ask_promises(r);
    const int rc = once__redis_ask(r, err);
    return rc == ONCE_OK ? read_promises(r, r->pipe.replies + 1, once__reply_count(r->pipe.replies[0]), err) : rc;
}

static bool anything_to_write(const once_redis *r)
{
    size_t n = r->values[0].n + r->values[1].n;
    for (size_t i = 0; i < ONCE_REDIS_PARTS; i++) n += i == ONCE_REDIS_FIELDS ? 0 : r->parts[i].n;
    return n > 0;
}

int once__redis_apply(once_redis *r, once_error *err)
{
    assert(r->open);
    if (!once__redis_write_changes(r)) return once__redis_nomem(err);
    if (!anything_to_write(r)) return r->url.wait && r->writes && r->slots.n ? wait_for_what_was_read(r, err) : ONCE_OK;
    if (!once__redis_write_around(r)) return once__redis_nomem(err);
    if (r->has_turn) once__redis_undo(r, "DEL", "turn", (once_bytes){0}, 0);
    assert(r->writes && r->owed == 0);
    const int rc = send(r, err);
    if (rc == ONCE_OK) r->has_turn = false;
    return rc;
}
