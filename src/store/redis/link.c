#include "store/redis/link.h"

#include "base/errno_text.h"
#include "base/no_memory.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/banned.h"

enum {
    COMMAND_MAX = 1 << 30,
    REDIRECTS = 5,
    CONNECT_TRIES = 4,
    READ_STEP = 64 * 1024,
    NAP_MS = 50,
    MOVING_NAP_MS = 100,
    NODES_MAX = 32
};

struct once_redis_link {
    once_redis_url url;
    const once_env *env;
    once_redis_waiting waiting;
    int fd; /* -1: not connected */
    once_redis_tls *tls;
    bool clustered;
    bool saw_move; /* keys of ours were on their way to another node */
    bool silent; /* the last failure was that it did not answer at all: trying again at once would only take as long */
    redisReader *reader;
    unsigned connections;
    once_redis_node at; /* the node that has our slot; at first one of the URL */
    once_redis_node
        nodes[NODES_MAX]; /* those of the URL, then what the cluster told: any of them knows who has our slot */
    size_t n_nodes, next_node;
    char chunk[READ_STEP]; /* what was read last */
};

/* --- commands --- */

void once__redis_pipe_init(once_redis_pipe *pipe)
{
    *pipe = (once_redis_pipe){0};
    once_buf_init(&pipe->bytes, COMMAND_MAX);
}

static void free_replies(once_redis_pipe *pipe)
{
    for (size_t i = 0; pipe->replies && i < pipe->n; i++)
        if (pipe->replies[i]) freeReplyObject(pipe->replies[i]);
    free(pipe->replies);
    pipe->replies = NULL;
}

void once__redis_pipe_clear(once_redis_pipe *pipe)
{
    free_replies(pipe);
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

/* --- the socket --- */

static void hang_up(once_redis_link *link)
{
    once__redis_tls_free(link->tls);
    link->tls = NULL;
    if (link->fd >= 0) (void)close(link->fd);
    link->fd = -1;
}

static int lost(once_redis_link *link, once_error *err, const char *what, const char *why)
{
    hang_up(link);
    return once_fail(err, ONCE_E_UNAVAILABLE, "%s redis at '%s:%u' failed: %s", what, link->at.host, link->at.port,
                     why);
}

static int lost_by(once_redis_link *link, once_error *err, const char *what, int why)
{
    link->silent = why == ETIMEDOUT || why == ECANCELED;
    return lost(link, err, what, why == ECANCELED ? "told to stop while it was waited for" : once_errno_text(why));
}

int once__redis_wait_for(const once_redis_waiting *waiting, int fd, short events)
{
    assert(fd >= 0);
    struct pollfd poller = {.fd = fd, .events = events};
    for (int waited_ms = 0; waited_ms < waiting->timeout_ms; waited_ms += NAP_MS) {
        const int left_ms = waiting->timeout_ms - waited_ms;
        const int n = poll(&poller, 1, left_ms < NAP_MS ? left_ms : NAP_MS);
        if (n > 0) return 0;
        if (n < 0 && errno != EINTR) return errno;
        if (once_cancelled(&waiting->cancel)) return ECANCELED;
    }
    return ETIMEDOUT;
}

static int connect_socket(const once_redis_link *link, int fd, const struct sockaddr *to, socklen_t len)
{
    assert(fd >= 0);
    if (connect(fd, to, len) == 0) return 0;
    if (errno != EINPROGRESS) return errno;
    int why = once__redis_wait_for(&link->waiting, fd, POLLOUT);
    socklen_t size = sizeof why;
    if (why == 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &size) < 0) why = errno;
    return why;
}

static int dial_path(once_redis_link *link, int *why)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const size_t len = strlen(link->at.host);
    if (len >= sizeof to.sun_path) return *why = ENAMETOOLONG, -1;
    memcpy(to.sun_path, link->at.host, len + 1);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    *why = fd < 0 ? errno : connect_socket(link, fd, (const struct sockaddr *)&to, sizeof to);
    if (*why == 0) return fd;
    if (fd >= 0) (void)close(fd);
    return -1;
}

static int dial(once_redis_link *link, once_error *err)
{
    assert(link->fd < 0 && !link->tls);
    if (link->at.host[0] == '/') {
        int why;
        link->fd = dial_path(link, &why);
        return link->fd >= 0 ? ONCE_OK : lost_by(link, err, "connecting to", why);
    }
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char port[8];
    (void)snprintf(port, sizeof port, "%u", link->at.port & 0xffffu);
    const int resolved = getaddrinfo(link->at.host, port, &hints, &found);
    if (resolved != 0) return lost(link, err, "finding", gai_strerror(resolved));
    int why = EADDRNOTAVAIL;
    for (const struct addrinfo *to = found; to && link->fd < 0; to = to->ai_next) {
        const int fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        why = fd < 0 ? errno : connect_socket(link, fd, to->ai_addr, to->ai_addrlen);
        if (why == 0) link->fd = fd;
        else if (fd >= 0) (void)close(fd);
    }
    freeaddrinfo(found);
    if (link->fd < 0) return lost_by(link, err, "connecting to", why);
    const int on = 1;
    (void)setsockopt(link->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(link->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    return ONCE_OK;
}

static int send_all(once_redis_link *link, once_bytes bytes, once_error *err)
{
    assert(link->fd >= 0);
    while (bytes.len > 0) {
        const ssize_t n = link->tls ? once__redis_tls_send(link->tls, bytes.data, bytes.len)
                                    : send(link->fd, bytes.data, bytes.len, MSG_NOSIGNAL);
        if (n >= 0) {
            bytes.data += n;
            bytes.len -= (size_t)n;
        } else if (errno == EAGAIN) {
            const int why = once__redis_wait_for(&link->waiting, link->fd, POLLOUT);
            if (why) return lost_by(link, err, "talking to", why);
        } else if (errno != EINTR) {
            return lost_by(link, err, "talking to", errno);
        }
    }
    return ONCE_OK;
}

static int receive(once_redis_link *link, redisReply **out, once_error *err)
{
    assert(link->fd >= 0 && link->reader);
    for (;;) {
        void *reply = NULL;
        if (redisReaderGetReply(link->reader, &reply) != REDIS_OK)
            return lost(link, err, "listening to", link->reader->errstr);
        if (reply) {
            *out = reply;
            return ONCE_OK;
        }
        const ssize_t n = link->tls ? once__redis_tls_receive(link->tls, link->chunk, sizeof link->chunk)
                                    : recv(link->fd, link->chunk, sizeof link->chunk, 0);
        if (n > 0) {
            if (redisReaderFeed(link->reader, link->chunk, (size_t)n) != REDIS_OK)
                return lost(link, err, "listening to", link->reader->errstr);
        } else if (n == 0) {
            return lost(link, err, "listening to", "it closed the connection");
        } else if (errno == EAGAIN) {
            const int why = once__redis_wait_for(&link->waiting, link->fd, POLLIN);
            if (why) return lost_by(link, err, "listening to", why);
        } else if (errno != EINTR) {
            return lost_by(link, err, "listening to", errno);
        }
    }
}

static int talk(once_redis_link *link, once_redis_pipe *pipe, once_error *err)
{
    assert(pipe->n > 0 && link->fd >= 0);
    free_replies(pipe);
    pipe->replies = calloc(pipe->n, sizeof(redisReply *));
    if (!pipe->replies) return once_no_memory(err, "for replies");
    int rc = send_all(link, once_buf_bytes(&pipe->bytes), err);
    for (size_t i = 0; i < pipe->n && rc == ONCE_OK; i++) rc = receive(link, &pipe->replies[i], err);
    return rc;
}

static bool says(const redisReply *reply, const char *word)
{
    const size_t len = strlen(word);
    const char *text = once__reply_error(reply);
    return text && strncmp(text, word, len) == 0 && (text[len] == ' ' || text[len] == ':');
}

/* The argument of a command that stands in the pipe; empty: there is none. */
static once_bytes argument(const once_redis_pipe *pipe, size_t command, size_t number)
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

/* --- what is no answer --- */

/* Whatever else is on that connection is not what we take it for, either. */
static int wrong_reply(once_redis_link *link, once_bytes command, const redisReply *reply, once_error *err)
{
    char words[ONCE_REPLY_WORDS];
    const int rc = once_fail(
        err, ONCE_E_CORRUPT,
        "redis at '%s:%u' answers '%.*s' with %s, which is no answer to it: something between here and there changes"
        " replies, or that is no redis",
        link->at.host, link->at.port, (int)(command.len < 20 ? command.len : 20), command.data,
        once__reply_words(reply, words));
    hang_up(link);
    return rc;
}

static bool is_command(once_bytes name, const char *text)
{
    return name.len == strlen(text) && memcmp(name.data, text, name.len) == 0;
}

/* The key of a command, or of the values that it asks for. */
static once_bytes key_of(const once_redis_pipe *pipe, size_t command, size_t value)
{
    const once_bytes name = argument(pipe, command, 0);
    return argument(pipe, command, is_command(name, "MGET") ? 1 + value : is_command(name, "EVAL") ? 3 + value : 1);
}

static int not_ours(const once_redis_link *link, once_bytes key, once_error *err)
{
    char text[ONCE_REDIS_QUOTED];
    return once_fail(
        err, ONCE_E_CORRUPT,
        "the key \"%s\" in redis at '%s:%u' is not what once writes there: somebody else wrote it, or it is damaged",
        once__redis_quote(key, text), link->at.host, link->at.port);
}

/* Each must be what its command said. An error is none here: one that matters was found before. */
static int look_at_replies(once_redis_link *link, const once_redis_pipe *pipe, once_error *err)
{
    assert(pipe->replies);
    for (size_t i = 0; i < pipe->n; i++) {
        const redisReply *reply = pipe->replies[i];
        if (!once__reply_error(reply) && !once__reply_is(reply, pipe->asked[i].kind, pipe->asked[i].n))
            return wrong_reply(link, argument(pipe, i, 0), reply, err);
        size_t which;
        if (once__reply_has_empty(reply, pipe->asked[i].kind, &which))
            return not_ours(link, key_of(pipe, i, which), err);
    }
    return ONCE_OK;
}

/* --- moving --- */

/* Behind a commit: about the node that it was made on. */
static bool is_about_the_node(const once_redis_pipe *pipe, size_t command)
{
    const once_bytes name = argument(pipe, command, 0);
    return is_command(name, "WAIT") || is_command(name, "CONFIG");
}

/* While a slot moves each key is here or there: those commands that were sent there, with what they promise, and no
 * others. */
static int talk_asking(once_redis_link *link, once_redis_pipe *pipe, once_error *err)
{
    assert(pipe->replies);
    static const char asking[] = "*1\r\n$6\r\nASKING\r\n";
    int rc = ONCE_OK;
    bool there = false;
    for (size_t i = 0; i < pipe->n && rc == ONCE_OK; i++) {
        const size_t from = pipe->asked[i].start, to = i + 1 < pipe->n ? pipe->asked[i + 1].start : pipe->bytes.len;
        const bool asked = says(pipe->replies[i], "ASK");
        if (!asked && !(there && is_about_the_node(pipe, i))) continue;
        there = true;
        redisReply *fine = NULL, *reply = NULL;
        rc = send_all(link, (once_bytes){asking, sizeof asking - 1}, err);
        if (rc == ONCE_OK) rc = send_all(link, (once_bytes){pipe->bytes.data + from, to - from}, err);
        if (rc == ONCE_OK) rc = receive(link, &fine, err);
        if (rc == ONCE_OK) rc = receive(link, &reply, err);
        const bool strange = rc == ONCE_OK && !once__reply_error(fine) &&
                             !once__reply_is(fine, ONCE_REPLY_DONE, 0); /* refused: so is the command */
        if (strange) rc = wrong_reply(link, (once_bytes){"ASKING", 6}, fine, err);
        if (fine) freeReplyObject(fine);
        if (rc != ONCE_OK && reply) freeReplyObject(reply);
        if (rc != ONCE_OK) break;
        freeReplyObject(pipe->replies[i]);
        pipe->replies[i] = reply;
    }
    return rc;
}

/* --- what the server refused --- */

static const struct {
    const char *word;
    int status;
    bool elsewhere; /* another connection may have an answer */
} refusals[] = {
    {"NOAUTH", ONCE_E_DENIED, false},         {"WRONGPASS", ONCE_E_DENIED, false},
    {"NOPERM", ONCE_E_DENIED, false},         {"OOM", ONCE_E_FULL, false},
    {"MISCONF", ONCE_E_FULL, false},          {"READONLY", ONCE_E_UNAVAILABLE, true},
    {"LOADING", ONCE_E_UNAVAILABLE, false},   {"BUSY", ONCE_E_BUSY, false},
    {"MOVED", ONCE_E_UNAVAILABLE, false},     {"CLUSTERDOWN", ONCE_E_UNAVAILABLE, true},
    {"MASTERDOWN", ONCE_E_UNAVAILABLE, true}, {"NOREPLICAS", ONCE_E_UNAVAILABLE, false},
    {"NOSCRIPT", ONCE_E_ABORTED, false},      {"UNKILLABLE", ONCE_E_BUSY, false},
    {"ASK", ONCE_E_UNAVAILABLE, false}, /* again, by the one we were sent to */
};

/* The node that we would talk to does not answer, or knows less than others: somebody else is asked where our slot is
 * now. */
static void ask_another_node(once_redis_link *link)
{
    for (size_t i = 0; i < link->n_nodes; i++) {
        const once_redis_node *node = &link->nodes[link->next_node++ % link->n_nodes];
        if (node->port == link->at.port && strcmp(node->host, link->at.host) == 0) continue;
        link->at = *node;
        return;
    }
}

/* Nothing of it has happened: our slot moves, and some of the keys are here and some there, or are new; soon all are
 * there. A script that says so has only looked: whatever it may write is one of its keys, and was here when it began.
 */
static bool is_moving(const redisReply *reply)
{
    return says(reply, "TRYAGAIN") || strstr(once__reply_error(reply), "non local key");
}

const char *once__redis_quote(once_bytes key, char out[ONCE_REDIS_QUOTED])
{
    size_t n = 0;
    for (size_t i = 0; i < key.len && n + 5 < ONCE_REDIS_QUOTED; i++) {
        const unsigned char c = (unsigned char)key.data[i];
        if (c < 0x20 || c > 0x7e || c == '"' || c == '\\')
            n += (size_t)snprintf(out + n, ONCE_REDIS_QUOTED - n, "\\x%02x", c);
        else out[n++] = (char)c;
    }
    out[n] = 0;
    return out;
}

/* Somebody else's: the command's key has another type. */
static int wrong_type(const once_redis_link *link, const once_redis_pipe *pipe, const redisReply *reply,
                      once_error *err)
{
    once_bytes key = {0};
    for (size_t i = 0; pipe && i < pipe->n; i++)
        if (pipe->replies[i] == reply) key = argument(pipe, i, 1);
    return not_ours(link, key, err);
}

static int refused_by(once_redis_link *link, const once_redis_pipe *pipe, const redisReply *reply, char refused[24],
                      once_error *err)
{
    const char *text = once__reply_error(reply);
    const size_t len = strcspn(text, " ");
    if (refused) (void)snprintf(refused, 24, "%.*s", (int)len, text);
    if (says(reply, "WRONGTYPE")) return wrong_type(link, pipe, reply, err);
    int status = ONCE_E_SCHEMA; /* somebody must look: a command that is disabled, or not there */
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        if (!says(reply, refusals[i].word)) continue;
        status = refusals[i].status;
        if (refusals[i].elsewhere) (void)lost(link, NULL, "using", text);
    }
    if (is_moving(reply)) {
        link->silent = true;
        return once_fail(
            err, ONCE_E_UNAVAILABLE,
            "redis at '%s:%u' moves the keys of the store to another node of its cluster; if nobody does that now,"
            " 'redis-cli --cluster fix %s:%u' ends it",
            link->at.host, link->at.port, link->at.host, link->at.port);
    }
    return once_fail(err, status, "redis at '%s:%u' says: %.200s%s", link->at.host, link->at.port, text,
                     status == ONCE_E_FULL ? "; give it more memory or disk space, or free some" : "");
}

static const redisReply *first_error_of(const once_redis_pipe *pipe, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (once__reply_error(pipe->replies[i])) return pipe->replies[i];
    return NULL;
}

static const redisReply *first_error(const once_redis_pipe *pipe) { return first_error_of(pipe, pipe->n); }

/* --- the nodes of a cluster --- */

static void add_node(void *user, once_bytes host, int64_t port)
{
    once_redis_link *link = user;
    const bool named = host.len > 0 && host.len < ONCE_REDIS_HOST;
    once_redis_node node = {.port = (unsigned)port};
    if (named) (void)snprintf(node.host, sizeof node.host, "%.*s", (int)host.len, host.data);
    else (void)snprintf(node.host, sizeof node.host, "%s", link->at.host); /* unnamed: the one that tells */
    if (link->n_nodes == NODES_MAX || port <= 0 || port > 65535 || strcmp(node.host, "?") == 0) return;
    for (size_t i = 0; i < link->n_nodes; i++)
        if (link->nodes[i].port == node.port && strcmp(link->nodes[i].host, node.host) == 0) return;
    link->nodes[link->n_nodes++] = node;
}

/* Ranges of slots, each with the nodes that have it; an error: it is no node of a cluster, or we may not ask. */
static void learn_nodes(once_redis_link *link, const redisReply *told)
{
    const size_t before = link->n_nodes;
    link->n_nodes = link->url.n_nodes;
    link->clustered = !once__reply_error(told) && once__reply_nodes(told, add_node, link) > 0;
    if (!link->clustered) link->n_nodes = before;
}

/* --- connecting --- */

static int greet(once_redis_link *link, once_error *err)
{
    once_redis_pipe pipe;
    once__redis_pipe_init(&pipe);
    if (link->url.password[0] || link->url.user[0]) { /* a user may have none */
        once__redis_command(&pipe, ONCE_REPLY_DONE, link->url.user[0] ? 3 : 2);
        once__redis_text(&pipe, "AUTH");
        if (link->url.user[0]) once__redis_text(&pipe, link->url.user);
        once__redis_text(&pipe, link->url.password);
    }
    if (link->url.db) {
        once__redis_command(&pipe, ONCE_REPLY_DONE, 2);
        once__redis_text(&pipe, "SELECT");
        once__redis_number(&pipe, link->url.db);
    }
    once__redis_words(&pipe, ONCE_REPLY_DONE, "PING");
    once__redis_words(&pipe, ONCE_REPLY_SLOTS,
                      "CLUSTER SLOTS"); /* there need not be one, nor need we be allowed to ask */
    int rc = pipe.failed || pipe.bytes.failed ? once_no_memory(err, "for a connection") : talk(link, &pipe, err);
    const redisReply *error = rc == ONCE_OK ? first_error_of(&pipe, pipe.n - 1) : NULL;
    if (error) rc = refused_by(link, NULL, error, NULL, err);
    if (rc == ONCE_OK) rc = look_at_replies(link, &pipe, err);
    if (rc == ONCE_OK) learn_nodes(link, pipe.replies[pipe.n - 1]);
    if (rc != ONCE_OK && link->fd >= 0) (void)lost(link, NULL, "greeting", "refused");
    if (pipe.bytes.data) explicit_bzero(pipe.bytes.data, pipe.bytes.len); /* the password */
    once__redis_pipe_release(&pipe);
    return rc;
}

static int connect_once(once_redis_link *link, once_error *err)
{
    if (link->reader) redisReaderFree(link->reader);
    link->reader = redisReaderCreate();
    if (!link->reader) return once_no_memory(err, "for a connection");
    int rc = dial(link, err);
    if (rc == ONCE_OK && link->url.tls) {
        once_error why = {0};
        link->tls = once__redis_tls_start(link->fd, &link->url, link->at.host, &link->waiting, &why);
        if (!link->tls) {
            link->silent = errno == ETIMEDOUT;
            hang_up(link);
            return once_fail(err, why.status, "%s", why.text);
        }
    }
    if (rc == ONCE_OK) rc = greet(link, err);
    if (rc == ONCE_OK) link->connections++;
    return rc;
}

/* A few tries with growing, jittered pauses: a server that restarts is back in a moment. Then the other nodes, if there
 * are any. */
static int ensure(once_redis_link *link, once_error *err)
{
    int rc = ONCE_OK;
    const int tries = CONNECT_TRIES + (int)link->n_nodes - 1;
    link->silent = false;
    for (int i = 0; link->fd < 0 && i < tries && !link->silent; i++) {
        const int64_t pause_ms = i && i < CONNECT_TRIES ? INT64_C(10) << (2 * i) : 0;
        if (pause_ms)
            once_env_sleep_ms(link->env, pause_ms / 2 + (int64_t)(once_env_random_u64(link->env) % (uint64_t)pause_ms));
        rc = connect_once(link, err);
        if (rc != ONCE_OK && once_status_class(rc) != ONCE_CLASS_RETRY) break;
        if (rc != ONCE_OK && (i > 0 || link->silent)) ask_another_node(link);
    }
    return rc;
}

/* "MOVED 3999 127.0.0.1:6381": where to go. */
static bool read_node(const redisReply *reply, const char *before, char host[ONCE_REDIS_HOST], unsigned *port)
{
    assert(once__reply_error(reply));
    const char *text = strchr(once__reply_error(reply), ' ');
    text = text ? strchr(text + 1, ' ') : NULL;
    const char *colon = text ? strrchr(++text, ':') : NULL;
    if (!colon) return false;
    const size_t len = (size_t)(colon - text);
    if (len >= ONCE_REDIS_HOST) return false;
    if (len == 0) (void)snprintf(host, ONCE_REDIS_HOST, "%s", before); /* the same host */
    else (void)snprintf(host, ONCE_REDIS_HOST, "%.*s", (int)len, text);
    *port = (unsigned)strtoul(colon + 1, NULL, 10);
    return *port > 0 && *port < 65536;
}

static void go(once_redis_link *link, const char host[ONCE_REDIS_HOST], unsigned port)
{
    (void)lost(link, NULL, "leaving", "the slot is elsewhere");
    memmove(link->at.host, host, sizeof link->at.host);
    link->at.port = port;
}

/* What the node that is about to have our slot says. Our connection to the one that still has it stays. */
static int ask_there(once_redis_link *link, once_redis_pipe *pipe, const char host[ONCE_REDIS_HOST], unsigned port,
                     once_error *err)
{
    const once_redis_node home = link->at;
    const unsigned connections = link->connections;
    const int fd = link->fd;
    once_redis_tls *tls = link->tls;
    redisReader *reader = link->reader;
    link->fd = -1;
    link->tls = NULL;
    link->reader = NULL;
    go(link, host, port);
    int rc = ensure(link, err);
    if (rc == ONCE_OK) rc = talk_asking(link, pipe, err);
    hang_up(link);
    if (link->reader) redisReaderFree(link->reader);
    link->at = home;
    link->connections = connections;
    link->fd = fd;
    link->tls = tls;
    link->reader = reader;
    return rc;
}

bool once__redis_wait_while_it_moves(once_redis_link *link, int64_t *waited_ms)
{
    assert(*waited_ms >= 0);
    const int64_t nap_ms = *waited_ms < MOVING_NAP_MS ? *waited_ms + 1 : MOVING_NAP_MS;
    if (*waited_ms >= link->waiting.timeout_ms || once_cancelled(&link->waiting.cancel)) return false;
    once_env_sleep_ms(link->env, nap_ms / 2 + (int64_t)(once_env_random_u64(link->env) % (uint64_t)nap_ms));
    *waited_ms += nap_ms;
    return true;
}

int once__redis_exchange(once_redis_link *link, once_redis_pipe *pipe, char refused[24], once_error *err)
{
    if (refused) refused[0] = 0;
    if (pipe->failed || pipe->bytes.failed) return once_no_memory(err, "for a batch");
    if (pipe->n == 0) return ONCE_OK;
    int rc = ensure(link, err);
    int64_t waited_ms = 0;
    int down = 0;
    for (int i = 0; rc == ONCE_OK; i++) {
        char host[ONCE_REDIS_HOST];
        unsigned port;
        rc = talk(link, pipe, err);
        const redisReply *error = rc == ONCE_OK ? first_error(pipe) : NULL;
        if (!error) break;
        if (says(error, "ASK") || is_moving(error)) {
            link->saw_move = true;
            if (pipe->guesses || (pipe->stays && is_moving(error))) {
                rc = refused_by(link, pipe, error, refused, err);
                if (refused && is_moving(error)) (void)snprintf(refused, 24, "TRYAGAIN"); /* whatever it says */
                break;
            }
        }
        if (says(error, "ASK") && read_node(error, link->at.host, host, &port)) {
            rc = ask_there(link, pipe, host, port, err);
            error = rc == ONCE_OK ? first_error(pipe) : NULL;
            if (!error) break;
        }
        if ((says(error, "CLUSTERDOWN") || says(error, "MASTERDOWN")) &&
            (size_t)++down < link->n_nodes) { /* others may know more */
            (void)lost(link, NULL, "using", once__reply_error(error));
            ask_another_node(link);
            rc = ensure(link, err);
            i--;
            continue;
        }
        if (is_moving(error) && once__redis_wait_while_it_moves(link, &waited_ms)) {
            rc = ensure(link, err);
            i--;
            continue;
        }
        if (!says(error, "MOVED") || i == REDIRECTS || !read_node(error, link->at.host, host, &port)) {
            rc = refused_by(link, pipe, error, refused, err);
            break;
        }
        go(link, host, port);
        if (pipe->stays) { /* who has decided by what the old node said decides anew */
            rc = refused_by(link, pipe, error, refused, err);
            break;
        }
        rc = ensure(link, err);
    }
    return rc == ONCE_OK ? look_at_replies(link, pipe, err) : rc;
}

int once__redis_link_open(const once_redis_url *url, const once_env *env, once_redis_waiting waiting,
                          once_redis_link **out, once_error *err)
{
    assert(url->n_nodes > 0 && url->n_nodes <= NODES_MAX);
    once_redis_link *link = calloc(1, sizeof *link);
    if (!link) return once_no_memory(err, "for a connection");
    link->url = *url;
    link->env = env;
    link->waiting = waiting;
    link->fd = -1;
    link->at = url->nodes[0];
    memcpy(link->nodes, url->nodes, url->n_nodes * sizeof *url->nodes);
    link->n_nodes = url->n_nodes;
    link->next_node = 1;
    const int rc = ensure(link, err);
    if (rc == ONCE_OK) *out = link;
    else once__redis_link_close(link);
    return rc;
}

void once__redis_link_close(once_redis_link *link)
{
    if (!link) return;
    hang_up(link);
    if (link->reader) redisReaderFree(link->reader);
    explicit_bzero(&link->url, sizeof link->url);
    free(link);
}

bool once__redis_clustered(const once_redis_link *link) { return link->clustered; }
const char *once__redis_host(const once_redis_link *link) { return link->at.host; }
unsigned once__redis_port(const once_redis_link *link) { return link->at.port; }
bool once__redis_same(const once_redis_link *link, unsigned connections)
{
    return link->fd >= 0 && link->connections == connections;
}
bool once__redis_saw_move(const once_redis_link *link) { return link->saw_move; }
void once__redis_move_is_over(once_redis_link *link) { link->saw_move = false; }
bool once__redis_silent(const once_redis_link *link) { return link->silent; }
unsigned once__redis_connections(const once_redis_link *link) { return link->connections; }
