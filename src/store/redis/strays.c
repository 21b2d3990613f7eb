/* Finds keys of the store on another node of the cluster while no move is under way.
 *
 * A slot is moved key by key, and only the node that gives it away knows about the move. When that node fails, the
 * replica that takes its place does not know: it answers for keys that were already moved as if they had never existed.
 * (Redis 7.0 does this. An operator who interrupts a move leaves the same.) An entry that is not found would run again.
 * So a handle asks the other primaries whether they have keys of the slot when it has a new connection, has seen keys
 * move, or has not used the store for a while. It asks when a transaction begins, and again before its commit, because
 * a move may be interrupted between the two. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/redis/redis.h"

#include "base/banned.h"

/* One line of CLUSTER NODES: id, address, flags, and the rest. */
typedef struct line {
    once_bytes address, flags, all;
} line;

static once_bytes word_of(once_bytes text, size_t number)
{
    for (; number > 0; number--) {
        const char *space = memchr(text.data, ' ', text.len);
        if (!space) return (once_bytes){0};
        text.len -= (size_t)(space + 1 - text.data);
        text.data = space + 1;
    }
    const char *space = memchr(text.data, ' ', text.len);
    if (space) text.len = (size_t)(space - text.data);
    return text;
}

static bool next_line(once_bytes *rest, line *out)
{
    if (rest->len == 0) return false;
    const char *end = memchr(rest->data, '\n', rest->len);
    const size_t len = end ? (size_t)(end - rest->data) : rest->len;
    out->all = (once_bytes){rest->data, len};
    out->address = word_of(out->all, 1);
    out->flags = word_of(out->all, 2);
    rest->data += len + (end != NULL);
    rest->len -= len + (end != NULL);
    return true;
}

static bool has_flag(const line *l, const char *flag)
{
    const size_t len = strlen(flag);
    for (size_t at = 0; at + len <= l->flags.len; at++) {
        const bool begins = at == 0 || l->flags.data[at - 1] == ',',
                   ends = at + len == l->flags.len || l->flags.data[at + len] == ',';
        if (begins && ends && memcmp(l->flags.data + at, flag, len) == 0) return true;
    }
    return false;
}

/* Reads "10.0.0.1:7000@17000,name". A node without a host is on the host that we are connected to. */
static bool read_address(once_bytes address, const char *own_host, once_redis_node *out)
{
    const char *end = memchr(address.data, '@', address.len);
    if (end) address.len = (size_t)(end - address.data);
    const char *colon = memrchr(address.data, ':', address.len);
    if (!colon || (size_t)(colon - address.data) >= sizeof out->host) return false;
    const size_t len = (size_t)(colon - address.data);
    (void)snprintf(out->host, sizeof out->host, "%.*s", len ? (int)len : (int)strlen(own_host),
                   len ? address.data : own_host);
    out->port = (unsigned)strtoul(colon + 1, NULL, 10);
    return out->port > 0 && out->port < 65536;
}

typedef struct looking {
    long long slot;
    once_bytes nodes;           /* the reply to CLUSTER NODES, in the transaction's arena */
    bool allowed, ours, moving; /* our user may ask; the node has the slot; the node gives it away */
} looking;

/* Also asks for a key of the store, so that the node that has the slot answers. */
static int look(once_redis *r, looking *out, once_error *err)
{
    char refused[24], mark[32];
    once_redis_pipe pipe;
    *out = (looking){0};
    once__redis_pipe_init(&pipe);
    once__redis_command(&pipe, ONCE_REPLY_COUNT, 2);
    once__redis_text(&pipe, "EXISTS");
    char key[ONCE_REDIS_KEY];
    once__redis_arg(&pipe, key, once__redis_key(r, "head", NULL, 0, key));
    once__redis_command(&pipe, ONCE_REPLY_COUNT, 3);
    once__redis_text(&pipe, "CLUSTER");
    once__redis_text(&pipe, "KEYSLOT");
    once__redis_text(&pipe, r->prefix);
    once__redis_words(&pipe, ONCE_REPLY_TEXT, "CLUSTER NODES");
    int rc = once__redis_exchange(r->link, &pipe, refused, err);
    if (rc != ONCE_OK && (strcmp(refused, "NOPERM") == 0 || strcmp(refused, "ERR") == 0)) rc = ONCE_OK;
    else if (rc == ONCE_OK) {
        out->allowed = true;
        out->slot = (int64_t)once__reply_count(pipe.replies[1]);
        if (!once_arena_copy(&r->arena, once__reply_bytes(pipe.replies[2]), &out->nodes)) rc = once__redis_nomem(err);
    }
    once__redis_pipe_release(&pipe);
    (void)snprintf(mark, sizeof mark, "[%lld->-", out->slot);
    once_bytes rest = out->nodes;
    for (line l; next_line(&rest, &l);) {
        if (!has_flag(&l, "myself")) continue;
        out->ours = has_flag(&l, "master");
        out->moving = memmem(l.all.data, l.all.len, mark, strlen(mark)) != NULL;
    }
    return rc;
}

/* The slots follow the eighth word: "5461-10922 12076 [93-<-ID]". */
static bool has_slot(const line *l, long long slot)
{
    for (size_t i = 8;; i++) {
        const once_bytes word = word_of(l->all, i);
        char text[32], *end;
        if (word.len == 0) return false;
        if (word.data[0] == '[' || word.len >= sizeof text) continue;
        memcpy(text, word.data, word.len);
        text[word.len] = 0;
        const long long first = strtoll(text, &end, 10), last = *end == '-' ? strtoll(end + 1, NULL, 10) : first;
        if (slot >= first && slot <= last) return true;
    }
}

/* Whether the node itself says that it is a primary without the slot. A replica has copies, and a primary that has just
 * come back may still claim the slot: neither has strays. */
static bool belongs_elsewhere(once_bytes nodes, long long slot)
{
    for (line l; next_line(&nodes, &l);)
        if (has_flag(&l, "myself")) return has_flag(&l, "master") && !has_slot(&l, slot);
    return false;
}

/* How many keys of the slot a node has that should have none. */
static int count_there(once_redis *r, const once_redis_node *node, long long slot, uint64_t *out, once_error *err)
{
    once_redis_url url = r->url;
    once_redis_link *link;
    once_redis_pipe pipe;
    url.nodes[0] = *node;
    url.n_nodes = 1;
    int rc = once__redis_link_open(&url, once__redis_test_clock(r) ? once_env_real() : r->storage.store.env, r->waiting,
                                   &link, err);
    explicit_bzero(&url, sizeof url);
    if (rc != ONCE_OK) return rc;
    once__redis_pipe_init(&pipe);
    once__redis_command(&pipe, ONCE_REPLY_COUNT, 3);
    once__redis_text(&pipe, "CLUSTER");
    once__redis_text(&pipe, "COUNTKEYSINSLOT");
    once__redis_number(&pipe, slot);
    once__redis_words(&pipe, ONCE_REPLY_TEXT, "CLUSTER NODES");
    rc = once__redis_exchange(link, &pipe, NULL, err);
    if (rc == ONCE_OK)
        *out = belongs_elsewhere(once__reply_bytes(pipe.replies[1]), slot) ? once__reply_count(pipe.replies[0]) : 0;
    once__redis_pipe_release(&pipe);
    once__redis_link_close(link);
    return rc;
}

/* Finds another primary that has keys of the slot; port 0: none has. */
static int find_stray(once_redis *r, const looking *about, once_redis_node *out, once_error *err)
{
    once_bytes rest = about->nodes;
    int rc = ONCE_OK;
    out->port = 0;
    for (line l; rc == ONCE_OK && next_line(&rest, &l);) {
        once_redis_node node;
        uint64_t keys = 0;
        if (has_flag(&l, "myself") || !has_flag(&l, "master") || has_flag(&l, "fail") || has_flag(&l, "handshake") ||
            has_flag(&l, "noaddr"))
            continue;
        if (!read_address(l.address, once__redis_host(r->link), &node)) continue;
        rc = count_there(r, &node, about->slot, &keys, err); /* a node that does not answer may have some */
        if (rc != ONCE_OK || keys == 0) continue;
        *out = node;
        break;
    }
    return rc;
}

/* A handle that is always busy sees keys move. One that was idle for so long may have missed a whole move. */
enum { UNSEEN_MS = 50 };

/* Keys move while this system is suspended. */
static int64_t clock_ms(const once_redis *r)
{
    return once_env_boot_ms(once__redis_test_clock(r) ? once_env_real() : r->storage.store.env);
}

void once__redis_was_asked(once_redis *r)
{
    if (once__redis_clustered(r->link)) r->asked_ms = clock_ms(r);
}

bool once__redis_may_be_astray(const once_redis *r)
{
    if (!once__redis_clustered(r->link)) return false;
    return clock_ms(r) - r->asked_ms >= UNSEEN_MS || !once__redis_same(r->link, r->looked_at) ||
           once__redis_saw_move(r->link);
}

int once__redis_look_for_strays(once_redis *r, once_error *err)
{
    looking about;
    once_redis_node node;
    const bool doubt = !once__redis_same(r->link, r->looked_at) || once__redis_saw_move(r->link);
    int rc = look(r, &about, err);
    unsigned connections = once__redis_connections(r->link);
    r->looked_at = connections - 1; /* the search is repeated until it succeeds */
    if (rc != ONCE_OK) return rc;
    if (about.allowed && about.ours && !about.moving) {
        rc = find_stray(r, &about, &node, err);
        if (rc != ONCE_OK && !doubt) { /* most likely a node is down that never had the slot */
            rc = ONCE_OK;
            node.port = 0;
        }
        if (rc == ONCE_OK && node.port) { /* no damage if a move has begun or ended since */
            rc = look(r, &about, err);
            if (rc == ONCE_OK && about.ours && !about.moving && connections == once__redis_connections(r->link))
                return once_fail(err, ONCE_E_UNAVAILABLE,
                                 "keys of the redis store '%s' are on two nodes of the cluster, '%s:%u' has some: a "
                                 "move of its slot was"
                                 " interrupted, and moved keys would seem to be new; complete it with 'redis-cli "
                                 "--cluster fix %s:%u'",
                                 r->url.name, node.host, node.port, node.host, node.port);
        }
    }
    if (rc != ONCE_OK) return rc;
    r->looked_at = connections;
    if (!about.moving) once__redis_move_is_over(r->link);
    return ONCE_OK;
}

/* ---- while keys move ---- */

/* Where our user may not use CLUSTER, this finds a move: one command with a key that exists and one that does not. */
static bool is_refused(once_redis *r)
{
    char refused[24], key[ONCE_REDIS_KEY];
    once_error why;
    once_redis_pipe pipe;
    once__redis_pipe_init(&pipe);
    once__redis_command(&pipe, ONCE_REPLY_COUNT, 3);
    once__redis_text(&pipe, "EXISTS");
    once__redis_arg(&pipe, key, once__redis_key(r, "head", NULL, 0, key));
    once__redis_arg(&pipe, key, once__redis_key(r, "none", NULL, 0, key));
    const int rc = once__redis_exchange(r->link, &pipe, refused, &why);
    once__redis_pipe_release(&pipe);
    return rc != ONCE_OK && strcmp(refused, "TRYAGAIN") == 0;
}

bool once__redis_move_ends(once_redis *r)
{
    looking about;
    once_error why;
    int64_t waited_ms = 0;
    while (once__redis_wait_while_it_moves(r->link, &waited_ms)) {
        if (look(r, &about, &why) != ONCE_OK) return false;
        if (about.allowed ? !about.moving : !is_refused(r)) return true;
    }
    return false;
}

/* ---- for `once check` ---- */

#define STUCK                                                                                                          \
    "commits that need a new key are refused until that has ended, and a run waits; if no operator moves it now, the " \
    "move was interrupted, and"                                                                                        \
    " 'redis-cli --cluster fix %s:%u' ends it"

/* The node that gets the slot: "[93->-ID]" in the line of the node that has it. */
static bool gets_slot(const looking *about, once_redis_node *out, const char *own_host)
{
    char mark[32];
    once_bytes rest = about->nodes, id = {0};
    const int len = snprintf(mark, sizeof mark, "[%lld->-", about->slot);
    for (line l; next_line(&rest, &l);) {
        const char *at = has_flag(&l, "myself") ? memmem(l.all.data, l.all.len, mark, (size_t)len) : NULL;
        if (!at) continue;
        id.data = at + len;
        while (id.data + id.len < l.all.data + l.all.len && id.data[id.len] != ']') id.len++;
    }
    rest = about->nodes;
    for (line l; id.len && next_line(&rest, &l);)
        if (l.all.len > id.len && memcmp(l.all.data, id.data, id.len) == 0)
            return read_address(l.address, own_host, out);
    return false;
}

bool once__redis_doubt(once_backend *store, char *out, size_t size)
{
    once_redis *r = (once_redis *)store;
    looking about;
    once_error why;
    once_redis_node to;
    if (!once__redis_clustered(r->link)) return false;
    if (look(r, &about, &why) != ONCE_OK) {
        (void)snprintf(out, size, "whether its slot is being moved could not be asked: %.300s", why.text);
        return true;
    }
    const char *host = once__redis_host(r->link);
    if (about.allowed && about.moving) {
        const bool known = gets_slot(&about, &to, host);
        (void)snprintf(out, size, "slot %lld of the cluster, which has the store, is being moved to '%s:%u'; " STUCK,
                       about.slot, known ? to.host : "?", known ? to.port : 0, host, once__redis_port(r->link));
        return true;
    }
    if (about.allowed || !is_refused(r)) return false;
    (void)snprintf(out, size, "the slot of the cluster which has the store is being moved; " STUCK, host,
                   once__redis_port(r->link));
    return true;
}
