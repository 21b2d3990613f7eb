/* Inside of the Kafka source: one struct, and the functions that its files call of each other.
 *
 * Two clients of librdkafka share the work, because a client that is in a group stops reading all of its partitions
 * while a rebalance goes on:
 *
 *   member   is in the group (group.c). It gets partitions and commits offsets (commit.c), and never reads: it
 *            answers every rebalance with an empty list, so librdkafka fetches nothing for it.
 *   reader   reads partitions (read.c), each into a queue of its own, so that a partition that may not be read now
 *            holds up no other. It is in no group.
 *
 * A partition is a stream of the source, and its number there is the place in `partitions`. States, with the thread
 * that sets them (all under `lock`):
 *
 *   FREE      -> WAITING   fetch    the group assigned it; where to begin is not known (start.c)
 *   WAITING   -> ASSIGNED  fetch    reported to the machine. With `cursor` it waits for seek
 *   WAITING   -> RELEASED  fetch    taken away before it was reported
 *   WAITING   -> READING   look     the partition of the one message that `once explain` reads
 *   ASSIGNED  -> READING   fetch
 *   READING   -> ASSIGNED  fetch    it is to be opened again, at `next`
 *   reported  -> REVOKED   fetch    reported; the group waits until it is released, or `revoke_until_ns` has passed
 *   reported  -> LOST      fetch    reported; another member may have it. Nothing of it is acked. Also REVOKED, when
 *                                   `revoke_until_ns` has passed
 *   reported  -> RELEASED  ack      the machine is done with it
 *   RELEASED  -> FREE      fetch
 *
 * "reported" are ASSIGNED, READING, REVOKED and LOST: the machine knows the partition.
 *
 * Thread rule: that of source/source.h. Fields without a remark belong to the thread of fetch. */
#ifndef ONCE_SOURCE_KAFKA_KAFKA_H
#define ONCE_SOURCE_KAFKA_KAFKA_H

#include <librdkafka/rdkafka.h>
#include <pthread.h>
#include <stdatomic.h>

#include "source/kafka_spec.h"
#include "source/source.h"

#define ONCE_KAFKA_ASK_MS 2000    /* how long one question to the broker may take */
#define ONCE_KAFKA_COMMIT_MS 5000 /* how long a commit may take */
#define ONCE_KAFKA_LEAST_MS 1000  /* after `drain` is over, how long each of them may take */

typedef enum kafka_state {
    KAFKA_FREE,
    KAFKA_WAITING,
    KAFKA_ASSIGNED,
    KAFKA_READING,
    KAFKA_REVOKED,
    KAFKA_LOST,
    KAFKA_RELEASED
} kafka_state;

/* A topic that was met. It and the names of its partitions live as long as the source. */
typedef struct kafka_topic {
    struct kafka_topic *next;
    char *name;
    rd_kafka_topic_t *handle; /* of the reader */
    /* How many partitions it had when the group began with it: those that were added later begin at their first
     * message. It is kept with each commit (kept.c). -1: not known. Under lock. */
    int32_t began_with;
    bool had_offset; /* the group had an offset for one of its partitions while this source is open; under lock */
    char **places;   /* "payments/3", by number; NULL: not met */
    int32_t n_places;
} kafka_topic;

/* What is kept with an offset of the group, in its metadata (kept.c). */
typedef struct kafka_kept {
    bool ours;          /* once has written it; false: the rest says nothing */
    int32_t partitions; /* kafka_topic.began_with */
    int32_t epoch;      /* of cursors in the store that count beside this offset; -1: a run without `cursor` wrote it */
    int64_t after;      /* between this offset and the committed one there is no message; -1: there may be some */
} kafka_kept;

typedef struct kafka_partition {
    _Atomic(kafka_state) state; /* changed under lock */
    bool reported;              /* the machine knows it as a stream: it will release it */
    bool sought;                /* `next` is decided: by seek, or it is opened again there; under lock */
    bool anew;          /* it must be given up and assigned again, to begin at the first message; thread of fetch */
    bool fresh;         /* the group had no offset for it, and none was committed since; under lock */
    bool open;          /* the reader reads it into `queue` */
    atomic_bool at_end; /* nothing is left behind `next` for now */
    rd_kafka_resp_err_t failing; /* it cannot be read, for this reason; 0: it can */
    kafka_topic *topic;
    int32_t number;
    const char *place;
    rd_kafka_queue_t *queue;
    size_t taken, taken_bytes; /* messages, since its queue was last empty; thread of fetch, as the next */
    bool drained;              /* the queue was emptied after much was taken: it may have been full */
    int64_t next;              /* the offset to read next; under lock */
    int64_t first;             /* of a fresh one: the offset of the first message that the broker has */
    int64_t end;               /* with at_end: nothing that may be read is between `next` and this offset; under lock */
    int64_t committed;         /* the group's offset, as far as we know; -1: none; under lock */
    int64_t began;             /* where it was first read; -1: not yet; under lock */
    kafka_kept kept;           /* with the group's offset, when it was assigned; under lock */
    int32_t epoch;             /* of the cursors that are written for it (cursor.c); under lock */
} kafka_partition;

/* A warning that was logged about a part of the source (failure.c). */
typedef struct kafka_warned {
    char text[200];
    int64_t again_ns; /* not before */
} kafka_warned;
#define ONCE_KAFKA_WARNED 16

typedef struct kafka_source {
    once_source base;
    const once_kafka_spec *kafka;
    once_source_purpose purpose;
    rd_kafka_t *member, *reader;
    rd_kafka_queue_t *events;        /* of the member: rebalances and errors */
    rd_kafka_queue_t *reader_events; /* errors of the reader */
    char *group;
    int64_t poll_max_ms; /* max.poll.interval.ms */
    int64_t refresh_ms;  /* topic.metadata.refresh.interval.ms: how soon a topic that was made anew is noticed */

    pthread_mutex_t lock;
    kafka_partition **partitions; /* by the number of the stream; under lock, but only fetch adds to it */
    uint32_t n_partitions, first; /* where the next fetch begins: partitions take turns */
    kafka_topic *topics;          /* under lock, but only fetch, look, ask and backlog add to it */
    int lost;                     /* nothing more is acked: an offset of the group was lost (commit.c); thread of ack */
    once_error lost_how;

    atomic_bool closing; /* set by close: a command of `token` that is still running is ended */
    /* The topics that there were when the source was opened and ever since (start.c), if they are listed. */
    char **first_topics;
    size_t n_first_topics;
    bool listed_topics, topics_changed;
    int wake_fd;       /* an eventfd: written when a queue gets its first entry, and by wake ... */
    atomic_bool woken; /* ... which sets this, too; any thread */
    bool revoking;
    bool was_assigned; /* there was an assignment, perhaps of no partitions */
    int64_t revoke_until_ns;
    int64_t start_again_ns, start_fails_ns; /* when to ask again where partitions begin; since when that fails, or 0 */
    int64_t open_again_ns;                  /* when to try partitions again that could not be read */
    int64_t tails_again_ns, lost_again_ns;  /* when to look after offsets (commit.c) */
    rd_kafka_message_t **messages;          /* room for those of one fetch, and which partitions they are of */
    uint32_t *streams;
    size_t messages_max;
    bool drained; /* at least one partition is */

    kafka_warned warned[ONCE_KAFKA_WARNED];
    int failed; /* what keeps it from working (failure.c); ONCE_OK: nothing */
    once_error failure;
    rd_kafka_t *probe;

    int64_t look_for; /* ONCE_OPEN_LOOK: this offset; -1: there is nothing to find */
} kafka_source;

static inline kafka_source *once__kafka(once_source *source) { return (kafka_source *)source; }

/* News of one fetch, in the arena of its batch. */
typedef struct kafka_news {
    once_fetch *fetch;
    size_t room;
} kafka_news;

/* settings.c: clients as the pipeline file says. */
int once__kafka_make_clients(kafka_source *k, once_error *err);
/* The time in ns of the environment's clock that only moves forward. */
/* The group goes on while this system is suspended. */
static inline int64_t once__kafka_now_ns(const kafka_source *k) { return once_env_boot_ms(k->base.env) * 1000000; }

/* When a wait for a broker ends that began at `from_ns` and may take `ms`: earlier if the run is stopped. */
static inline int64_t once__kafka_until_ns(const kafka_source *k, int64_t from_ns, int64_t ms)
{
    const int64_t drained_ns = atomic_load(&k->base.drained_ms) * 1000000;
    const int64_t least_ns = from_ns + ONCE_KAFKA_LEAST_MS * INT64_C(1000000), until_ns = from_ns + ms * 1000000;
    const int64_t stop_ns = drained_ns > least_ns ? drained_ns : least_ns;
    return drained_ns && stop_ns < until_ns ? stop_ns : until_ns;
}

/* How long a question that is asked now may take. */
static inline int once__kafka_ask_ms(const kafka_source *k)
{
    const int64_t now_ns = once__kafka_now_ns(k);
    return (int)((once__kafka_until_ns(k, now_ns, ONCE_KAFKA_ASK_MS) - now_ns) / 1000000);
}

/* partitions.c */
kafka_topic *once__kafka_topic(kafka_source *k, const char *name); /* NULL: out of memory */
/* The partition if it is this worker's: not FREE, RELEASED or LOST. A lost one may be assigned again, as a new one. */
kafka_partition *once__kafka_find(kafka_source *k, const char *topic, int32_t number); /* NULL: not ours */
bool once__kafka_add(kafka_source *k, const char *topic, int32_t number);
void once__kafka_free_released(kafka_source *k);
void once__kafka_free_all(kafka_source *k);
int once__kafka_open_partition(kafka_source *k, kafka_partition *p, once_error *err); /* the reader begins at p->next */
void once__kafka_stop_partition(kafka_source *k, kafka_partition *p);

/* group.c: serves the member's events. False: out of memory. */
bool once__kafka_serve_group(kafka_source *k, kafka_news *news);
bool once__kafka_report(kafka_news *news, once_stream_change change, uint32_t stream, int64_t within_ms);
bool once__kafka_leave(kafka_source *k);
/* failure.c. Remembers what keeps the source from working; what ends the run counts more than what may pass. `probe`:
 * the failure is over when the brokers answer this client (once__kafka_failing asks); NULL: when
 * once__kafka_failure_over is called. */
void once__kafka_note(kafka_source *k, rd_kafka_t *probe, const once_error *failure);
/* A failure of one topic or partition. While others are read, no fetch fails with it: it is only logged. */
void once__kafka_note_part(kafka_source *k, const once_error *failure);
/* Logs a warning, at most once a minute for the same text. Thread of fetch. */
void once__kafka_warn(kafka_source *k, const char *event, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool once__kafka_has_ended(const kafka_source *k);         /* it has a failure that does not pass */
void once__kafka_failure_over(kafka_source *k);            /* forgets a failure that can pass */
int once__kafka_failing(kafka_source *k, once_error *err); /* ONCE_OK: nothing keeps it from working */

/* What a client that can do nothing more says of itself, and its status. */
int once__kafka_fatal(const kafka_source *k, rd_kafka_t *client, once_error *err);

/* errors.c: the status that an error of librdkafka means. */
int once__kafka_status(rd_kafka_resp_err_t error);
/* The error of an error event. With TLS 1.3 a broker refuses the certificate of a client behind the handshake, by an
 * alert. librdkafka calls that a transport error; here it is one of SSL. */
rd_kafka_resp_err_t once__kafka_event_error(rd_kafka_event_t *event);
/* Writes the error, with what happened in front, and returns its status. */
int once__kafka_fail(once_error *err, rd_kafka_resp_err_t error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* kept.c: what is kept with an offset of the group. */
kafka_kept once__kafka_read_kept(const rd_kafka_topic_partition_t *at);
/* What belongs to an offset of this partition now. With the lock. */
kafka_kept once__kafka_kept(const kafka_source *k, const kafka_partition *p);
/* Adds a commit of this offset to the list. */
void once__kafka_add_commit(rd_kafka_topic_partition_list_t *list, const kafka_partition *p, int64_t offset,
                            const kafka_kept *kept);

/* start.c. Partitions that wait learn where to begin, and are reported. False: out of memory. */
bool once__kafka_start(kafka_source *k, kafka_news *news);
/* The first message that the broker has of it, and behind the last one that may be read. */
int once__kafka_ask_ends(kafka_source *k, const kafka_partition *p, int64_t *low, int64_t *high, once_error *err);
/* The reader stops, and begins again at p->next. */
void once__kafka_open_again(kafka_source *k, kafka_partition *p);

/* range.c. The message at p->next is gone, or not there yet: fails, or goes on behind the gap. */
int once__kafka_out_of_range(kafka_source *k, kafka_partition *p, once_error *err);
/* The group has lost the offset of a partition that is read: fails, or begins anew. */
int once__kafka_offset_lost(kafka_source *k, kafka_partition *p, once_error *err);
/* The failure for that. */
int once__kafka_say_lost(const kafka_source *k, const kafka_partition *p, once_error *err);
/* The group has no offset for a partition that is read, since its topic was made anew: without `cursor` the next start
 * begins at the first message, whatever `start` says. Fails only if that can be tried again. */
int once__kafka_commit_first(kafka_source *k, const char *topic, int32_t number, once_error *err);
/* The group has lost its offset for a partition that we had read up to `offset`: fails, or logs that it goes on at the
 * first message. */
int once__kafka_made_anew(const kafka_source *k, const kafka_partition *p, int64_t offset, once_error *err);

/* token.c: the callback of a client that needs a token. */
void once__kafka_refresh_token(rd_kafka_t *client, const char *config, void *opaque);
/* What a JSON Web Token says of itself. False: it does not, or memory is out. */
bool once__kafka_read_token(const char *token, int64_t *expires_ms, once_arena *arena, once_bytes *subject);

/* read.c: waits for messages and gives them. */
int once__kafka_read(kafka_source *k, once_fetch *fetch, once_error *err);
/* headers.c: the JSON text of headers and of the source's facts; empty: neither. False: out of memory. */
bool once__kafka_headers(const rd_kafka_message_t *m, bool named, once_arena *arena, once_bytes *out);

/* cursor.c: the offset to read next, as the store has it, and its epoch. */
typedef struct kafka_cursor {
    int64_t next; /* -1: the store has none */
    int32_t epoch;
} kafka_cursor;

/* What a cursor means beside the group's offset (-1: none). */
typedef enum kafka_cursor_fate {
    KAFKA_CURSOR_COUNTS,
    KAFKA_CURSOR_VOID, /* there is none, or it is of messages that are gone: the group's offset counts */
    KAFKA_CURSOR_ALONE /* the group has lost its offset: the topic was made anew */
} kafka_cursor_fate;

int once__kafka_read_cursor(const once_facts *facts, const char *place, kafka_cursor *out, once_error *err);
kafka_cursor_fate once__kafka_judge_cursor(const kafka_cursor *cursor, int64_t committed, const kafka_kept *kept);

/* commit.c. A commit beside those of ack; the error of each partition is in the list. Fails if all of them did. */
int once__kafka_commit_now(kafka_source *k, rd_kafka_topic_partition_list_t *offsets, once_error *err);
/* While there is nothing to read. Behind the last message there may be markers of transactions: when all messages are
 * acked, they are passed, too. And offsets that the group has lost are noticed. */
void once__kafka_look_after_offsets(kafka_source *k);

/* commit.c, cursor.c, look.c, ask.c, survey.c: functions of once_source_ops. */
int once__kafka_ack(once_source *source, once_receipt *list, size_t n, once_error *err);
int once__kafka_release(once_source *source, uint32_t stream, once_error *err);
int once__kafka_seek(once_source *source, uint32_t stream, const once_facts *facts, once_error *err);
int once__kafka_keep(once_source *source, const once_facts *facts, once_item *const *items, size_t n,
                     const once_item *const *last, size_t n_last, once_error *err);
int once__kafka_look(once_source *source, once_coordinates at, const once_facts *facts, once_error *err);
int once__kafka_ask(once_source *source, const once_facts *facts, once_source_report *report, void *user,
                    once_error *err);
int once__kafka_backlog(once_source *source, const once_facts *facts, int64_t ms, once_source_left *visit, void *user,
                        once_error *err);

extern const once_source_ops once__kafka_ops;

#endif
