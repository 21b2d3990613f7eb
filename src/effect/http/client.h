/* The driver of the effect `http`: many calls at a time, with libcurl's multi handle on the runner's event loop.
 *
 *   driver.c   the loop: sockets, time, calls that begin and end
 *   call.c     one call: the request, and what became of it
 *   direct.c   calls over http:// without proxy and redirects: sent by ourselves
 *   peer.c     their connections to an address that libcurl has found before
 *   reply.c    the answers to those
 *   secrets.c  credentials, and texts without them
 *   token.c    a token from a command
 *
 * libcurl sends a request again by itself when a connection that it had used before dies without an answer, whatever
 * the method is. That would be a second effect that nobody counts. It asks `once__http_may_send` before every request
 * that it sends; only the first one of a call is allowed. The same answer tells whether a byte of the request may have
 * left: if libcurl did not get as far as to ask, nothing was sent. A direct call is sent by ourselves, once.
 *
 * Thread rule: the runner's thread. */
#ifndef ONCE_EFFECT_HTTP_CLIENT_H
#define ONCE_EFFECT_HTTP_CLIENT_H

#include <curl/curl.h>
#include <sys/socket.h>

#include "effect/driver.h"
#include "effect/effect.h"
#include "effect/http.h"
#include "effect/http/reply.h"
#include "effect/process.h"

typedef struct http_driver http_driver;
typedef struct http_call http_call;

enum { HTTP_EFFECT, HTTP_LOOKUP, HTTP_REQUESTS };

#define HTTP_KEPT ((size_t)64 << 10) /* a call that is spare keeps so much memory for each of its buffers */

/* What is the same for all requests of a kind. */
typedef struct http_fixed {
    const once_http_request *request;
    struct curl_slist *headers; /* secrets included */
    int64_t timeout_ms;
    bool direct;            /* its calls are */
    const char *origin;     /* direct: scheme, host and port */
    once_bytes usual_lines; /* direct: "Host: ..." and others that all of its requests have */
} http_fixed;

/* An address to which a connection was made. */
typedef struct http_peer {
    struct sockaddr_storage address;
    socklen_t len;         /* 0: none is known */
    int64_t until_boot_ms; /* once__http_boot_ms */
    uint64_t notes;        /* how many times one was noted */
    bool away;             /* libcurl could not connect since then */
} http_peer;

struct http_call {
    http_driver *driver;
    once_item *item; /* NULL: the call is spare */
    CURL *easy;
    const http_fixed *fixed;
    bool asks;
    once_bytes body;          /* of the request */
    size_t token_at;          /* in `text` ... */
    size_t token_len;         /* ... 0: it carries none */
    once_buf text;            /* URL, header lines and body of the request, each with a NUL behind it */
    struct curl_slist *lines; /* the headers that differ; the last one leads to the fixed ones */
    const struct curl_slist *first_line;
    bool begun;    /* a byte of the request may have left */
    bool in_multi; /* libcurl has it */
    int64_t deadline_ms;
    uint32_t redirects;
    once_buf answer; /* the body */
    size_t head;     /* bytes of the answer's headers */
    bool headed;     /* all of them came: libcurl takes a connection that is closed inside of them for their end */
    bool too_large, unfit_address;
    bool waits;                /* for a token; in the list of those */
    bool refreshed;            /* a 401 was answered with a new token */
    uint64_t token_generation; /* of the token that it was sent with */
    bool reconnected;          /* a new connection was made for it, once */
    bool stale;                /* something waited on its connection before it was sent */
    int no_socket;             /* errno: none could be had here */
    char retry_after[64];
    char length[64]; /* the header Content-Length, of an answer that libcurl reads */
    long status;     /* of the same */
    char error[CURL_ERROR_SIZE];
    /* A direct call has its connection, and keeps it for the next one. */
    int fd;                       /* -1: none */
    const http_fixed *connection; /* what it leads to */
    int64_t idle_since_boot_ms;   /* once__http_boot_ms */
    bool used;                    /* a call before this one has used it */
    int64_t connect_by_ms;        /* a new one must be made until then, by whomever */
    bool connects;                /* we are connecting to a known address ... */
    uint64_t note;                /* ... with this number ... */
    int64_t head_start_ms;        /* ... until then; then libcurl is asked */
    bool queued;        /* made, and to be sent with the others that were started with it; then `next` is one of them */
    once_buf out, rest; /* the head of the request; a line of the answer that is not whole */
    size_t sent;
    bool reset; /* sending failed: the end of what can be read is not the end of the answer */
    http_reply reply;
    http_call *next, *next_of_all;
};

typedef struct http_token {
    http_driver *driver;
    char *file, **argv; /* NULL: there is no command */
    once_child child;
    once_watch out, err, end;
    bool runs, late;
    int64_t deadline_ms;
    once_buf texts[2]; /* the token, and the one before: answers to calls that carried them may still come */
    once_buf output;   /* what the command prints */
    int current;
    bool valid; /* there is one, and the last command did not fail */
    uint64_t generation;
    http_call *waiting, **last_waiting;
} http_token;

typedef struct http_socket {
    once_watch watch;
    http_driver *driver;
    int events; /* CURL_POLL_ */
    int port;   /* ours, of a connection; 0: not asked for yet */
    bool ours; /* of a connection; the resolver of libcurl has sockets of its own, and closes them without telling us */
    bool spoke_http1;  /* an answer of HTTP/1 came on it */
    bool left;         /* direct: libcurl let it go */
    http_call *direct; /* the call whose connection it is; libcurl has nothing to do with it any more */
} http_socket;

struct http_driver {
    once_effect_driver driver;
    const once_http_spec *http;
    once_arena arena; /* what is fixed, secrets included */
    http_fixed fixed[HTTP_REQUESTS];
    http_token token;
    const once_bytes *secrets;
    size_t n_secrets;
    const char *proxy, *ca, *certificate, *key; /* NULL: none */
    CURLM *multi;
    int64_t timer_ms;      /* when libcurl wants to be called; ONCE_NEVER */
    http_socket **sockets; /* by descriptor */
    size_t n_sockets;
    http_call *spare, *all;
    int64_t direct_due_ms;              /* no direct call ends before */
    http_call *to_send, **last_to_send; /* direct calls that are queued */
    int64_t silent_ns;                  /* then the connections of these were (once_env_mono_ns) */
    http_peer peers[HTTP_REQUESTS];     /* of direct calls */
    once_json json;                     /* of an answer */
    once_buf result;
    char read[64 << 10]; /* what a direct call reads at once */
};

once_effect_open once__http_open;

/* The clock of what a server counts, too: it goes on while this system is suspended. Other times here are those of
 * once_runner_now_ms. */
static inline int64_t once__http_boot_ms(const http_driver *driver)
{
    return once_env_boot_ms(once_runner_options_of(driver->driver.runner)->env);
}

/* --- call.c --- */

http_call *once__http_call_new(http_driver *driver);
void once__http_call_free(http_call *call);
/* The call is for this item from now on. */
void once__http_call_take(http_call *call, once_item *item);
bool once__http_has_body(const http_call *call);
/* Makes the request. ONCE_E_MESSAGE: it cannot be made of this message. */
int once__http_call_make(http_call *call, once_error *err);
/* Tells libcurl to connect for a direct call, and to do nothing else. */
CURLcode once__http_call_connects(http_call *call);
/* What follows when libcurl is through with a call. */
typedef enum http_verdict {
    HTTP_ENDED,     /* outcome, result and reason of the item are filled */
    HTTP_FOLLOWS,   /* a redirect: it is sent elsewhere */
    HTTP_RENEWS,    /* it is sent again with a new token */
    HTTP_RECONNECTS /* nothing was sent: it is sent on a new connection */
} http_verdict;
http_verdict once__http_call_judge(http_call *call, CURLcode code, bool killed);
/* The same for one that was not handed to libcurl. `status`: why it could not begin; ONCE_OK: it was ended. */
void once__http_call_unsent(http_call *call, int status, const char *why);

/* --- driver.c --- */

/* Makes the request of call->item, and begins it. */
void once__http_begin(http_call *call);
/* Ends a call that waited: its message is not to blame. */
void once__http_fail(http_call *call, int status, const char *why);

/* The socket of a descriptor; NULL: out of memory. */
http_socket *once__http_socket(http_driver *driver, int fd);
void once__http_socket_close(http_driver *driver, int fd);
/* What became of a call: its outcome, or how it goes on. */
void once__http_end(http_call *call, CURLcode code, bool killed);
/* Notes in which version an answer came on the connection of the call. */
void once__http_note_version(http_call *call);
/* Hands the call to libcurl. */
void once__http_hand_over(http_call *call);

/* --- direct.c --- */

/* Makes the head of the request, of the lines that the call has. */
bool once__http_direct_make(http_call *call);
/* Queues it, to be sent with the next tick on the connection that the call has, or has one made. */
void once__http_direct_begin(http_call *call);
/* Sends those that are queued. */
void once__http_direct_send(http_driver *driver);
/* libcurl has connected. Takes the socket and sends. */
void once__http_direct_take_socket(http_call *call);
/* Something has happened on the connection of the call. */
void once__http_direct_ready(http_call *call, uint32_t events);
/* The call has ended: keeps its connection for the next one if the answer was whole, else closes it. */
void once__http_direct_leave(http_call *call);
void once__http_direct_close(http_call *call);
/* Whether only a part of the request was sent. */
bool once__http_direct_cut(const http_call *call);
/* Ends calls whose time is over, and asks libcurl where the known address takes too long. Returns when to call it
 * again. */
int64_t once__http_direct_tick(http_driver *driver, int64_t now_ms);

/* --- peer.c --- */

/* libcurl has connected this call. */
void once__http_peer_note(const http_call *call);
/* libcurl could not connect this call to any address of the name. */
void once__http_peer_none(const http_call *call);
/* For how many seconds libcurl may believe what it has found out about the name. */
long once__http_peer_name_s(const http_call *call);
/* Connects to the address that is known. False: none is, or it cannot be; libcurl must connect. */
bool once__http_peer_connect(http_call *call);
/* Whether a call that connects has done so. It does not any more. */
bool once__http_peer_works(http_call *call);
/* The address to which the call connects does not work. One that was noted meanwhile may. */
void once__http_peer_forget(const http_call *call);
void once__http_set_up_socket(const http_call *call, int fd);

/* --- secrets.c --- */

/* Reads the secrets, and makes what is the same for all requests. */
int once__http_read_secrets(http_driver *driver, once_error *err);
/* Whether requests of this kind carry the credentials of the handler: others do not get them. */
bool once__http_authorized(const http_driver *driver, const http_fixed *fixed);
/* Replaces each secret in the text, which is about this call, by "***". Returns the new length. */
size_t once__http_redact(const http_call *call, char *text, size_t len);

/* --- token.c --- */

int once__http_token_open(http_driver *driver, once_error *err);
void once__http_token_close(http_driver *driver);
/* Kills a command that takes too long. Returns when to call it again. */
int64_t once__http_token_tick(http_driver *driver, int64_t now_ms);
/* Whether there is a token. `refused`: another one than the call was sent with. False: the call waits, or has ended. */
bool once__http_token_ready(http_call *call, bool refused);
once_bytes once__http_token_text(http_call *call);
/* The call no longer waits. */
void once__http_token_forget(http_call *call);

#endif
