/* Inside of the SQS source: one struct, and the functions that its files call of each other.
 *
 *   fetch thread   long polls, several at a time (receive.c), by the client `polls`. What an answer brings is handed
 *                  out by later fetches; until then it waits in pages, and is extended from here by the client `aside`
 *   ack thread     deletes, extensions and returns in batches of ten (batch.c), many at a time, by the client `acks`.
 *                  They never wait for a long poll
 *
 * Each client has connections of its own (client.c). A message that was received and not deleted is in the table of
 * deliveries (deliveries.c), whether it was handed out or not.
 *
 * What libcurl may repeat by itself: a request on a kept connection that turns out to be closed, before any byte of an
 * answer. Nothing that matters happens twice by that. A delete, an extension and a return have the same effect when
 * they are repeated. A receive that is repeated may have hidden messages of which we never learn: they come again when
 * their visibility timeout is over. For a FIFO queue it gets the same messages (ReceiveRequestAttemptId).
 *
 * What a receive that is given up may hide: the server goes on waiting for messages until its wait is over, and hands
 * them to nobody. So close returns messages only after that time.
 *
 * Thread rule: that of source/source.h. Fields without a remark belong to the thread of fetch. */
#ifndef ONCE_SOURCE_SQS_SQS_H
#define ONCE_SOURCE_SQS_SQS_H

#include <curl/curl.h>
#include <pthread.h>
#include <stdatomic.h>

#include "aws/aws.h"
#include "base/buf.h"
#include "base/table.h"
#include "source/source.h"
#include "source/sqs_spec.h"

#define ONCE_SQS_TEN 10       /* messages of one request, as SQS allows */
#define ONCE_SQS_CALL_MS 5000 /* how long a request without a wait may take */
#define ONCE_SQS_VISIBILITY_MS 30000
#define ONCE_SQS_HELD_MS (INT64_C(12) * 3600 * 1000) /* how long SQS lets a message be held, from its receive on */

typedef struct sqs_source sqs_source;

/* --- requests (client.c) ------------------------------------------------------------------------------------------ */

/* What an answer of SQS means here. */
typedef enum sqs_fault {
    SQS_FINE,
    SQS_NO_ANSWER, /* none, or a part of one: it is not known whether the request was carried out */
    SQS_THROTTLED, /* come back later */
    SQS_BAD_KEYS,  /* expired or unknown credentials */
    SQS_BAD_TIME,  /* the signature is refused: the clock may be wrong */
    SQS_REFUSED,   /* a right or a key of KMS is missing, or the request is not understood */
    SQS_NO_QUEUE,
    SQS_GONE /* the receipt handle is expired or unknown */
} sqs_fault;

/* A request and its answer. Zeroed before its first use; its memory is kept from one use to the next. */
typedef struct sqs_call {
    CURL *easy;
    struct curl_slist *headers;
    once_buf body;   /* of the request; the caller fills it after once__sqs_new */
    once_buf answer; /* whole, if `fault` is FINE */
    once_arena arena;
    const char *action;
    char target[80];                      /* its header */
    int64_t timeout_ms, signed_s, date_s; /* the clock that it was signed with; the server's clock */
    once_bytes key_id;
    bool out, too_large, tried_keys, tried_time;
    sqs_fault fault; /* and what follows from it: */
    once_error error;
} sqs_call;

typedef struct sqs_client {
    sqs_source *q;
    CURLM *multi;
    int64_t broken_ns; /* when a request last got no answer in time: older connections are not used again; 0: never */
} sqs_client;

int once__sqs_client_open(sqs_client *client, sqs_source *q, long connections, once_error *err);
void once__sqs_client_close(sqs_client *client);
/* Begins a request: `call->body` is empty then, and is filled by the caller. */
void once__sqs_new(sqs_call *call, const char *action);
/* Sends it. When that is not possible the call has failed: false, and its `fault` and `error` are set. */
bool once__sqs_send(sqs_client *client, sqs_call *call, int64_t timeout_ms);
/* Waits up to `ms` for something to happen, then does what can be done; `ms` 0: without waiting. */
void once__sqs_turn(sqs_client *client, int64_t ms);
/* The next call that has ended, with its `fault` and `error`; NULL: none. Requests that were refused for their keys or
 * their time are signed anew and sent again, once. */
sqs_call *once__sqs_ended(sqs_client *client);
void once__sqs_cancel(sqs_client *client, sqs_call *call); /* one that is out, or not */
void once__sqs_call_release(sqs_client *client, sqs_call *call);
/* Sends it and waits for its end, or until the run is stopped; no other call of the client may be out. ONCE_OK: the
 * answer is FINE. Not for the thread of ack, which works on after a stop. */
int once__sqs_ask(sqs_client *client, sqs_call *call, int64_t timeout_ms, once_error *err);

/* faults.c: what a status of HTTP and the body of an answer mean; writes the error. */
sqs_fault once__sqs_read_fault(long http, once_bytes body, const char *action, once_error *err);
/* The same for a code and a text of SQS. */
sqs_fault once__sqs_fault_of(once_bytes code, once_bytes text);
int once__sqs_status(sqs_fault fault);

/* --- deliveries (deliveries.c) ------------------------------------------------------------------------------------ */

typedef struct sqs_delivery {
    uint64_t number; /* 0: the slot is free */
    char *handle;
    size_t handle_len, handle_room;
    once_hash id, group; /* of the message id; of the message group, or zero */
    int64_t received_ns;
    bool gone;     /* received again, or said to be gone: it may neither be deleted nor extended by this handle */
    uint32_t free; /* the next free slot + 1 */
} sqs_delivery;

/* Messages that were received and not deleted. Thread rule: any thread, under its own lock. */
typedef struct sqs_deliveries {
    pthread_mutex_t lock;
    sqs_delivery *at;
    uint32_t used, size, free;
    uint64_t last;  /* the serial number of the last one */
    once_table ids; /* the slot of a message id */
} sqs_deliveries;

void once__sqs_deliveries_init(sqs_deliveries *d);
void once__sqs_deliveries_release(sqs_deliveries *d);
/* One more. An older delivery of the same message is gone, with those behind it in its group. 0: out of memory. */
uint64_t once__sqs_received(sqs_deliveries *d, once_bytes id, once_bytes handle, once_bytes group, int64_t now_ns);
/* Appends the handle as JSON. False: it is unknown or gone. */
bool once__sqs_put_handle(sqs_deliveries *d, uint64_t number, once_buf *out, int64_t *received_ns);
/* It is deleted, or nobody will ask for it again. */
void once__sqs_forget(sqs_deliveries *d, uint64_t number);
/* SQS says that it is gone: it is forgotten. The later ones of its group are gone, too: they must not overtake it. */
void once__sqs_lost(sqs_deliveries *d, uint64_t number);
bool once__sqs_is_ours(sqs_deliveries *d, uint64_t number); /* it is known and not gone */
/* The numbers of all that are not gone, up to `max`, behind the slot *at; begin with 0. */
size_t once__sqs_list(sqs_deliveries *d, uint32_t *at, uint64_t *out, size_t max);

/* --- deletes, extensions, returns (batch.c) ----------------------------------------------------------------------- */

#define ONCE_SQS_RECEIPTS 512
#define ONCE_SQS_BATCHES ((ONCE_SQS_RECEIPTS + ONCE_SQS_TEN - 1) / ONCE_SQS_TEN)

typedef struct sqs_batcher {
    sqs_client client;
    sqs_call calls[ONCE_SQS_BATCHES];
} sqs_batcher;

typedef enum sqs_deed { SQS_DELETE, SQS_EXTEND, SQS_RETURN } sqs_deed;

/* Does it to up to ONCE_SQS_RECEIPTS deliveries of `list`, within about `ms`, and answers for each. Fails if one was
 * left OPEN. */
int once__sqs_do(sqs_batcher *b, sqs_deed deed, once_receipt *list, size_t n, int64_t ms, once_error *err);
/* Makes everything visible again that is in the table. Takes about `ms` at most; after once__sqs_end_polls. */
void once__sqs_return_all(sqs_batcher *b, int64_t ms);

/* --- receiving (receive.c, message.c) ----------------------------------------------------------------------------- */

/* The messages of one answer that were not handed out yet. */
typedef struct sqs_page {
    struct sqs_page *next;
    once_buf text;
    once_json json;
    uint64_t numbers[ONCE_SQS_TEN];
    once_json_value messages[ONCE_SQS_TEN];
    size_t n, given;
    int64_t fresh_ns; /* when they were received or extended */
    bool last;        /* SQS keeps them for no longer than that */
} sqs_page;

typedef struct sqs_poll {
    sqs_call call;
    char attempt[33]; /* ReceiveRequestAttemptId; empty: the next receive is a new attempt */
    int64_t began_ns; /* of the attempt */
    int64_t sent_ns;  /* of this receive */
    int64_t ends_ns;  /* when it ends at the server, even if we are gone */
} sqs_poll;

int once__sqs_fetch(once_source *source, once_fetch *fetch, once_error *err);
/* Takes what arrives now, and ends the polls that are out: those that would wait for messages to come. */
void once__sqs_end_polls(sqs_source *q);

/* The message of SQS as an item; False: out of memory. */
bool once__sqs_make_item(const sqs_source *q, const once_json *json, once_json_value message, once_batch *batch,
                         once_item *out);
/* An answer of ReceiveMessage: up to ONCE_SQS_TEN values of messages; false: it is not as SQS documents it. */
bool once__sqs_read_messages(const once_json *json, once_json_value *out, size_t *n);
/* A member that is a text; false: it is none, or memory is out. */
bool once__sqs_text(const once_json *json, once_json_value in, const char *name, once_arena *arena, once_bytes *out);
/* A whole number, written as a text or as a number; -1: none. */
int64_t once__sqs_number(once_json_value value, once_arena *arena);

/* --- the queue (queue.c, ask.c) ----------------------------------------------------------------------------------- */

/* Where requests go, and the region to sign for. */
int once__sqs_find_server(sqs_source *q, once_error *err);
/* The URL of the queue, within about `ms`. */
int once__sqs_find_url(sqs_source *q, int64_t ms, once_error *err);
/* The same, and its visibility timeout. */
int once__sqs_find_queue(sqs_source *q, once_error *err);
int once__sqs_report(once_source *source, const once_facts *facts, once_source_report *report, void *user,
                     once_error *err);

/* --- how many messages it has (counts.c) -------------------------------------------------------------------------- */

#define ONCE_SQS_COUNTS 3 /* ready, in flight, delayed */

typedef struct sqs_counting {
    sqs_call call;
    int64_t again_ns;                   /* it is not asked before */
    _Atomic int64_t looked_ns;          /* when somebody last looked; 0: never; any thread */
    _Atomic int64_t n[ONCE_SQS_COUNTS]; /* -1: not known; any thread */
} sqs_counting;

void once__sqs_counting_init(sqs_counting *c);
void once__sqs_count(sqs_source *q);   /* asks by the client `polls`, if it is time to */
void once__sqs_counted(sqs_source *q); /* the call has ended */
int64_t once__sqs_lag(once_source *source, uint32_t stream);
void once__sqs_lag_parts(once_source *source, uint32_t stream, char out[ONCE_LAG_PARTS]);
int once__sqs_backlog(once_source *source, const once_facts *facts, int64_t ms, once_source_left *visit, void *user,
                      once_error *err);

/* --- the source (sqs.c) ------------------------------------------------------------------------------------------- */

struct sqs_source {
    once_source base;
    const once_sqs_spec *sqs;
    once_source_purpose purpose;
    once_cancel opening; /* while it is opened */
    /* Set once, before other threads look at them: */
    once_aws_credentials *credentials;
    char *server, *region;         /* "https://sqs.eu-central-1.amazonaws.com/"; "eu-central-1" */
    char *url, *place;             /* of the queue; "123456789012/payments". NULL: not known yet */
    _Atomic int64_t visibility_ms; /* 0: not known yet */
    _Atomic int64_t clock_s;       /* how far the server's clock is ahead of ours; any thread */
    atomic_bool closing, woken;    /* any thread */
    sqs_deliveries deliveries;     /* any thread */

    sqs_batcher *acks;  /* thread of ack; close */
    sqs_batcher *aside; /* thread of fetch, and calls that come alone */
    sqs_client polls;
    sqs_poll *receivers;
    uint32_t n_receivers, parallel;  /* all; how many may be out now: more while answers are full */
    sqs_page *first, **last, *spare; /* pages in the order in which they came; unused ones */
    size_t held;                     /* messages in them */
    sqs_counting counting;
    int64_t unheard_ns; /* until then the server may answer a receive that was given up; close */
    bool told;          /* the machine knows how long a delivery stays ours */
    int64_t again_ns;   /* no receive begins before */
    unsigned fails;     /* receives that failed one after the other */
    once_error failure; /* status ONCE_OK: receives work */
};

static inline sqs_source *once__sqs(once_source *source) { return (sqs_source *)source; }
/* SQS counts on while this system is suspended; libcurl, which counts the age of its connections, does not. */
static inline int64_t once__sqs_now_ns(const sqs_source *q) { return once_env_boot_ms(q->base.env) * 1000000; }
static inline int64_t once__sqs_curl_ns(const sqs_source *q) { return once_env_mono_ns(q->base.env); }

/* Nobody needs the answer that the thread of fetch, or open, waits for: the run is stopped. */
bool once__sqs_gives_up(sqs_source *q);

extern const once_source_ops once__sqs_ops;

#endif
