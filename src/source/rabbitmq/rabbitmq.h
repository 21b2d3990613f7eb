/* Inside of the RabbitMQ source: one struct, and the functions that its files call of each other.
 *
 * A worker has one connection with one channel and one consumer (connect.c, join.c). The queue is its only stream,
 * number 0. A message that is not acked belongs to the connection: when that breaks, the broker gives the message to
 * any consumer. So the stream is lost with the connection, and assigned anew with the next one. States, with the thread
 * that sets them (all under `lock`):
 *
 *   APART -> OURS    fetch    connected, and reported as ASSIGNED
 *   OURS  -> LOST    fetch    the connection broke, the broker closed the channel or cancelled the consumer; reported
 *   LOST  -> APART   ack      the machine has released the stream
 *   OURS  -> OVER    ack      the machine has released the stream because the run ends
 *
 * A connection of librabbitmq is not safe for two threads, so it is used under `lock`. Neither thread waits for the
 * network with the lock: fetch polls the socket first and then takes the frames that are there (receive.c), ack polls
 * until the socket takes bytes and then sends its frames (ack.c). Every frame is taken from the socket as it comes,
 * also while the machine wants no message: a broker closes a connection that does not read. What is not wanted yet
 * waits in `waiting`, which `prefetch` bounds; what is not wanted for long is given back (consumer.c).
 *
 * Deliveries: a tag of AMQP counts from 1 in each channel. A delivery's number is `before` + the tag, so it is not used
 * again by a later connection.
 *
 * Thread rule: that of source/source.h. Fields without a remark belong to the thread of fetch. */
#ifndef ONCE_SOURCE_RABBITMQ_RABBITMQ_H
#define ONCE_SOURCE_RABBITMQ_RABBITMQ_H

#include <amqp.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/buf.h"
#include "source/rabbitmq/tags.h"
#include "source/rabbitmq_spec.h"
#include "source/source.h"

#define ONCE_RABBITMQ_CHANNEL 1
#define ONCE_RABBITMQ_ANSWER_MS 5000  /* how long connecting, logging in, and each question may take */
#define ONCE_RABBITMQ_CONFIRM_MS 5000 /* a broker that can confirms a consumer in less time */

typedef enum rabbitmq_state { RABBITMQ_APART, RABBITMQ_OURS, RABBITMQ_LOST, RABBITMQ_OVER } rabbitmq_state;

/* A message that came and was not handed out yet; headers and body are behind the struct. */
typedef struct rabbitmq_message {
    struct rabbitmq_message *next;
    uint64_t tag;
    int64_t sent_ms;
    uint64_t size;                /* of the body, as it was sent */
    size_t headers_len, body_len; /* `body_len` grows up to message_max while frames come */
    char bytes[];
} rabbitmq_message;

/* Where the broker is, with values of references; texts have a NUL behind them. */
typedef struct rabbitmq_address {
    once_rabbitmq_url url; /* with user, password, port and path */
    bool tls;
    const char *ca, *certificate, *key; /* NULL: not given */
    const char *management;             /* its base URL, without user and password; NULL: not given */
    const char *management_user, *management_password;
} rabbitmq_address;

typedef struct rabbitmq_counts {
    uint32_t ready, consumers;
} rabbitmq_counts;

typedef enum rabbitmq_consumer_state {
    RABBITMQ_NO_CONSUMER,
    RABBITMQ_ASKED, /* for one, or for one more, and the broker has not confirmed it */
    RABBITMQ_CONSUMES,
    RABBITMQ_LEAVES /* the broker has not confirmed that all are left */
} rabbitmq_consumer_state;

/* The consumers of the channel (consumer.c): usually one. Zeroed: there is none. */
typedef struct rabbitmq_consumer {
    rabbitmq_consumer_state state;
    unsigned number;          /* of the last one, in this connection */
    unsigned n;               /* how many there are; they have the last numbers */
    unsigned cancelled, left; /* of them: we have told the broker, and it has confirmed that */
    size_t most;              /* messages that they may have and not ack */
    size_t came;              /* messages since the first of them was asked for */
    int64_t asked_ms;         /* when the last one was asked for */
    bool warned;              /* that it is not confirmed */
    bool gave_back;           /* messages were given back: the next one asks for few */
    int64_t wanted_ms;        /* when messages were last wanted */
} rabbitmq_consumer;

/* How many messages there are: asked again and again in the channel of the consumer (count.c). */
typedef struct rabbitmq_question {
    int64_t next_ms;        /* when it is asked again */
    int64_t asked_ms;       /* when it was asked; 0: it is answered */
    int64_t heard_ms;       /* when something came in the channel */
    bool answered;          /* there was an answer while we were a consumer, and the last one of these is ... */
    rabbitmq_counts counts; /* no consumer, while we are one: it is a stream, or a quorum queue without a leader */
} rabbitmq_question;

typedef struct rabbitmq_source {
    once_source base;
    const once_rabbitmq_spec *rabbitmq;
    once_source_purpose purpose;
    once_arena arena; /* of `address` and `queue` */
    rabbitmq_address address;
    const char *queue;
    uint16_t prefetch;
    int64_t hold_ms; /* consumer_timeout, or a shorter one of the queue; ONCE_FOREVER: none. Under lock */
    bool asked;      /* the management API was asked for it, since the last connection broke */
    int wake_fd;     /* an eventfd, written by wake */

    pthread_mutex_t lock;
    rabbitmq_state state;               /* under lock */
    amqp_connection_state_t connection; /* NULL: none; under lock, but only fetch sets it */
    int fd;                             /* of its socket; under lock */
    uint64_t before, last_tag;          /* under lock */
    rabbitmq_tags tags;                 /* deliveries that are not acked; under lock */
    bool broken;                        /* the connection cannot be used, because ...; under lock */
    once_error why;

    /* Connections (join.c). */
    int64_t joined_ms;          /* when the last one was made */
    rabbitmq_consumer consumer; /* of the present one */
    int64_t pause_ms, again_ms; /* none is tried before */
    once_error apart;           /* why the last try failed: fetches fail until the next one. ONCE_OK: it did not */
    once_error ended;           /* its status is not ONCE_OK: nothing is fetched any more */

    rabbitmq_question question; /* of this connection */
    bool offset_seen;           /* a message of it had the header of a stream */
    /* When the broker answered last: messages in the queue (-1: not known), and those here that are not acked. */
    _Atomic int64_t ready, here;

    bool in_message;               /* a message is being received: */
    amqp_basic_deliver_t *deliver; /* its first frame came; in the memory of the connection */
    rabbitmq_message *part;        /* its second frame came, too */
    uint64_t left;                 /* bytes of its body that are to come */
    rabbitmq_message *waiting, **waiting_end;
    size_t n_waiting;
    once_buf text; /* room for headers */
} rabbitmq_source;

static inline rabbitmq_source *once__rabbitmq(once_source *source) { return (rabbitmq_source *)source; }
/* The broker counts on while this system is suspended. */
static inline int64_t once__rabbitmq_now_ms(const rabbitmq_source *r) { return once_env_boot_ms(r->base.env); }

/* address.c: reads the references. */
int once__rabbitmq_address(rabbitmq_source *r, once_error *err);

/* connect.c. A connection with a channel, made within `ms`, and what the queue counts. The caller disconnects it.
 * ONCE_E_MISSING: there is no such queue. */
int once__rabbitmq_connect(const rabbitmq_source *r, int64_t ms, amqp_connection_state_t *out, rabbitmq_counts *counts,
                           once_error *err);
/* join.c. `in_order`: the broker handles the acks before it gives back the rest. */
void once__rabbitmq_disconnect(amqp_connection_state_t connection, bool in_order);
/* Consumes the queue, if it is time to try. Reports ASSIGNED. */
int once__rabbitmq_join(rabbitmq_source *r, once_fetch *fetch, once_error *err);
/* The connection is broken: whatever was not acked goes to any consumer. Reports LOST. */
int once__rabbitmq_lose(rabbitmq_source *r, once_fetch *fetch, once_error *err);
/* rabbitmq.c. Until a frame comes, wake is called, or the time is over. True: it was a frame alone. */
bool once__rabbitmq_wait(rabbitmq_source *r, int64_t ms);
bool once__rabbitmq_is_broken(rabbitmq_source *r);
/* consumer.c. Sends a method without waiting for an answer. False: the socket takes no bytes, or it is broken. With the
 * lock. */
bool once__rabbitmq_send(rabbitmq_source *r, amqp_method_number_t method, void *decoded);
void once__rabbitmq_cork(const rabbitmq_source *r, int on); /* what is sent goes out together. With the lock */
/* Asks to be a consumer, or one more, for so many messages, if `prefetch` allows them. */
void once__rabbitmq_consume(rabbitmq_source *r, size_t wanted);
/* The broker confirms that one was left. False: it was not asked for that. */
bool once__rabbitmq_left(rabbitmq_source *r);
/* rabbitmq.c. Before it is known that this is no stream, a message that may be of one is not given. */
bool once__rabbitmq_can_give(const rabbitmq_source *r);
/* Leaves, consumes again, gives back: what is due. `wanted`: messages that could be handed out now. */
void once__rabbitmq_tend(rabbitmq_source *r, size_t wanted);
/* count.c: asks how many messages there are, if it is time to, without waiting. If no answer comes, the connection is
 * given up, unless it would take back messages from handlers. */
void once__rabbitmq_count(rabbitmq_source *r);
void once__rabbitmq_counted(rabbitmq_source *r, rabbitmq_counts counts); /* an answer came. With the lock */
/* ask.c: takes over a limit of the queue that is shorter than the pipeline file says. ONCE_E_CONFIG: it is a stream. If
 * nobody can be asked, the pipeline file counts. */
int once__rabbitmq_ask_hold(rabbitmq_source *r, once_error *err);
/* tls.c: makes the socket of a connection, and connects it within the limit. */
int once__rabbitmq_open_tls(const rabbitmq_source *r, amqp_connection_state_t connection, const struct timeval *limit,
                            once_error *err);

/* errors.c: what an answer or a status of the library means, with what was done in front. */
int once__rabbitmq_fail(once_error *err, amqp_rpc_reply_t reply, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
int once__rabbitmq_closed(once_error *err, uint16_t code, amqp_bytes_t text, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
int once__rabbitmq_broke(once_error *err, int library_status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* receive.c: takes the frames that are there, without waiting. The connection may be broken afterwards. */
void once__rabbitmq_receive(rabbitmq_source *r);
void once__rabbitmq_forget(rabbitmq_source *r); /* all messages that came and were not handed out */
/* Remembers why the connection cannot be used. With the lock. */
void once__rabbitmq_note(rabbitmq_source *r, const once_error *why);

/* headers.c: the JSON text of headers and of the source's facts, in r->text; empty: neither. */
bool once__rabbitmq_headers(rabbitmq_source *r, const amqp_basic_deliver_t *deliver,
                            const amqp_basic_properties_t *properties);
/* The value of a header in a table; NULL: it has none. */
const amqp_field_value_t *once__rabbitmq_header(const amqp_table_t *table, const char *name);

/* ack.c, ask.c, count.c: functions of once_source_ops. */
int once__rabbitmq_ack(once_source *source, once_receipt *list, size_t n, once_error *err);
int once__rabbitmq_extend(once_source *source, once_receipt *list, size_t n, once_error *err);
int once__rabbitmq_release(once_source *source, uint32_t stream, once_error *err);
int once__rabbitmq_ask(once_source *source, const once_facts *facts, once_source_report *report, void *user,
                       once_error *err);
int64_t once__rabbitmq_lag(once_source *source, uint32_t stream);
void once__rabbitmq_lag_parts(once_source *source, uint32_t stream, char out[ONCE_LAG_PARTS]);
int once__rabbitmq_backlog(once_source *source, const once_facts *facts, int64_t ms, once_source_left *visit,
                           void *user, once_error *err);

extern const once_source_ops once__rabbitmq_ops;

#endif
