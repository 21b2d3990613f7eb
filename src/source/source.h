/* The source interface: where messages come from.
 *
 * A new source is two tables in files of its own, and a line of ONCE_SOURCE_MAP below. once_source_kind is what is
 * known without opening it: its part of the pipeline file, and what follows from that. once_source_ops is what an open
 * source does. file.c with file_config.c and file_keep.c is the model. tests/conform/source_conform.h tests every one.
 *
 *   fetch    gives messages of its streams (core/receipt.h) into a batch, in order within each stream; may give none;
 *            reports streams that come and go, and the end of the source
 *   ack      acknowledges single deliveries, or all of a stream up to one, after they were settled or given to the
 *            store
 *   extend   extends deliveries that would run out
 *   release  gives back a stream that was revoked, or every stream when the run ends
 *
 * Guarantees that a source gives
 *   - With REDELIVERS: a message that was not acked is delivered again, now or after a restart; with STABLE at the same
 *     coordinates.
 *   - A delivery's number is not used again in its stream before its ack was answered or the stream was released. If
 *     `extend` answers GONE, the number stays reserved, because an ack for it may still follow. Counting upwards is
 *     safe.
 *   - A source whose connection may break while deliveries are not acked, so that another consumer gets them, has
 *     ASSIGNS: it reports LOST for the stream, and assigns it anew when the connection is back.
 *
 * Deliveries that run out (EXPIRES): the ASSIGNED news of a stream has the time. A source without ASSIGNS gives it in
 * its first fetch, as ASSIGNED news of stream 0; until then its deliveries count as if they did not run out.
 *
 * Release: a stream that was revoked may be lost before it is released, and that news may cross the release. A release
 * that fails has not happened; it is repeated, but not when the run ends. `close` gives back every stream that was not
 * released. `close` of a source without ASSIGNS gives back the deliveries that were not acked, unless they run out by
 * themselves.
 *
 * Where to go on: a source keeps what it needs for that as facts of the store (once_facts). It writes them in the
 * transaction that settles the messages, and reads them before the first message of a stream. What it must remember of
 * a message for that is at item->resume, which only the source reads.
 *
 * Thread rule
 *   fetch                                        one thread
 *   ack, extend, release                         a second thread, also while a fetch blocks
 *   keep; seek of a source with ASSIGNS          a third thread, that of the store
 *   wake, lag, lag_parts, stream_name, beat_ms, bits
 *                                                any thread, perhaps under the machine's lock: they must not wait, not
 *                                                for a fetch that blocks, and not for the network
 *   open, close, look, ask, backlog, held, any other seek: no other call at the same time */
#ifndef ONCE_SOURCE_SOURCE_H
#define ONCE_SOURCE_SOURCE_H

#include "base/cancel.h"
#include "base/config.h"
#include "base/env.h"
#include "base/value.h"
#include "core/receipt.h"
#include "core/item.h"
#include "core/spec.h"

typedef struct once_source once_source;

/* What the store keeps for a source from run to run: short texts of this consumer, each under a kind ("cursor") and a
 * name (a path, a partition), which may be long. A text that is set in a transaction counts when that commits. */
typedef struct once_facts once_facts;
struct once_facts {
    /* Differs between transactions: a text that was set in the same one may not be committed yet. */
    uint64_t transaction;
    /* *out is empty when there is none. */
    int (*get)(const once_facts *facts, const char *kind, once_bytes name, once_bytes *out, once_arena *arena,
               once_error *err);
    int (*set)(const once_facts *facts, const char *kind, once_bytes name, once_bytes value, once_error *err);
    /* The id of a fact, different for each store, consumer, kind and name. */
    once_hash (*id)(const once_facts *facts, const char *kind, once_bytes name);
};

/* Locks the cursor `which` of an open file until the descriptor is closed (source/cursor_lock.c). ONCE_E_BUSY: another
 * process has it. */
int once_cursor_lock(const once_env *env, int fd, once_hash which, once_error *err);

/* A sentence that warns, for `once check`. */
typedef void once_source_warning(void *user, const char *text);

/* The request and the answer (->) of a fetch. */
typedef struct once_fetch {
    size_t max;             /* messages at most; 0: no messages, only heartbeats, polls and news */
    const uint32_t *paused; /* streams of which no message may be given now, ascending */
    size_t n_paused;
    bool rest;              /* gives only messages that were read before, without waiting */
    once_batch *batch;      /* -> items (message, batch, stream, delivery and resume set) and n; all in its arena */
    bool at_end;            /* -> FINITE: no message will ever come again */
    once_stream_news *news; /* -> in the batch's arena; news of a stream count before its messages of this fetch */
    size_t n_news;
} once_fetch;

/* Why a source is opened. For CHECK and LOOK it joins no group, takes no message from other consumers, and acks
 * none. */
typedef enum once_source_purpose {
    ONCE_OPEN_RUN,
    ONCE_OPEN_CHECK, /* `ask` is called, which reports the broker's limits */
    ONCE_OPEN_LOOK   /* `look` is called: reads one message again */
} once_source_purpose;

/* A limit of a broker that a pipeline depends on. `once check` compares it with the pipeline file. */
typedef enum once_source_limit {
    ONCE_LIMIT_NONE,       /* no limit: `text` is the whole finding */
    ONCE_LIMIT_RETENTION,  /* ms for which the broker keeps a message and can deliver it again; or ONCE_FOREVER */
    ONCE_LIMIT_DELIVERIES, /* how often the broker delivers a message before it gives it up */
    ONCE_LIMIT_HOLD        /* ms for which a consumer can hold a delivery, however often it is extended */
} once_source_limit;

typedef struct once_source_finding {
    once_source_limit limit;
    int64_t value;       /* of the limit */
    const char *of;      /* "topic 'payments'" */
    const char *setting; /* "retention.ms": what to change there */
    const char *text;    /* without a limit: a sentence ("group 'g' has 2 other members"). With one: why the broker did
                          * not tell it; NULL: it did */
    bool warning, error; /* a text without a limit is a warning, or an error: the check fails */
} once_source_finding;
typedef void once_source_report(void *user, const once_source_finding *finding);

/* Gets how much of one stream is left for all workers together; -1: it is not known. */
typedef void once_source_left(void *user, const char *stream, int64_t left);

/* What every source has, so that a driver need not know it:
 *
 * `body: json | bytes`. Fetch gives the bytes of a message as they came. With `json` the intake parses them. With
 * `bytes` a message is an item like any other: its templates name no fields (the pipeline file is refused), its
 * fingerprint is that of the bytes, and its effect gets the bytes.
 *
 * `tombstones: dead | skip | run`. A message without a body (a tombstone) is not a message with an empty body: fetch
 * sets message.no_body, and the intake decides what becomes of it. */

/* A source as the pipeline file names it. Always linked in, so that a pipeline file can be read without the library of
 * its source. Functions may be NULL where that is said. */
typedef struct once_source_kind {
    const char *name;                  /* "file": the field of `source` that chooses it */
    const char *summary;               /* one line for `once version` and the docs */
    const char *unit;                  /* what `lag` counts: "bytes" or "messages" */
    const struct once_source_ops *ops; /* NULL: they are in a module ... */
    const char *module;                /* ... of this name, as its part "source" with the name of the source */

    once_config_field field; /* of that name: a map, whose section has the fields of spec->own */
    size_t size;             /* of spec->own, which is zeros before anything is read */
    /* The names of ${source:NAME}, ends with NULL: what the source has of a message beside its body and headers (the
     * key of a record, its partition, its timestamp), the same at each delivery unless it is in `varying`. With
     * spec->source.named, fetch puts them into the headers (core/message.h). NULL: none. */
    const char *const *names;
    /* Those of the names that are not the same at each delivery (how often it was delivered), ends with NULL: what
     * decides the key, the lane, the handler, the tenant, the version or the time may not have them. NULL: none. */
    const char *const *varying;
    /* Those of the names that the broker makes anew for each send (an offset, an id of its own), ends with NULL: a key
     * with one of them catches a redelivery only. NULL: none. */
    const char *const *numbered;
    /* The template of `order` for a file that has none, because the source itself has lanes (the groups of a FIFO
     * queue); NULL: none. `own` is its map, not read yet. Or NULL. */
    const char *(*order)(const once_node *own);
    /* Sets what follows from its fields: `name`, `bits` and the rest of the spec. A field with a mistake is still
     * zero. */
    void (*conclude)(once_source_spec *source);
    /* Reports each mistake between its fields. `map` is its own. A password in plain text is a mistake: it must be a
     * reference (base/value.h). Or NULL. */
    void (*check)(once_config *config, const once_node *map, const once_source_spec *source);
    /* Warns of what is allowed and probably not meant. `shared`: several hosts share the store, and keys are made of
     * coordinates. Or NULL. */
    void (*doubts)(const once_source_spec *source, bool shared, once_source_warning *warn, void *user);
    /* When later messages have the coordinates of earlier, other ones: "a topic that is made anew". NULL: never. */
    const char *repeats;
    /* Visits the texts of its fields that are references to secrets, or URLs. Or NULL: it has none. */
    void (*secrets)(const once_source_spec *source, once_secret_visit *visit, void *user);
    /* Warns of what other users of this host or of the network may see or change. Or NULL. */
    void (*exposed)(const once_source_spec *source, once_source_warning *warn, void *user);
    /* Whether a message at this place is from this source. NULL if `look` is NULL. */
    bool (*has)(const once_source_spec *source, once_bytes place);
} once_source_kind;

#define ONCE_LAG_PARTS 100 /* bytes of the text of `lag_parts` */

/* What an open source does. Functions may be NULL where that is said. */
typedef struct once_source_ops {
    /* `cancel` is asked while it waits for a server, and not afterwards. When it is cancelled, it fails with a status
     * of class RETRY. */
    int (*open)(const once_spec *spec, const once_env *env, once_source_purpose purpose, once_cancel cancel,
                once_source **out, once_error *err);
    void (*close)(once_source *source);
    /* The bits of the spec, and those that are known only when it is open. CURSOR must be in both or in neither. */
    unsigned (*bits)(const once_source *source);

    /* Before the first message of a stream, outside of a transaction: reads what `keep` has written, and goes on there.
     * Both functions are there, or both are NULL: then the source keeps nothing, and has no CURSOR.
     *   Without ASSIGNS: called once, for stream 0, while the run starts. ONCE_E_UNAVAILABLE, ONCE_E_ABORTED and
     *     ONCE_E_FULL are tried again after pauses, by a FINITE source for `patience`, by others until the run is
     *     stopped. Every other status ends the start of the run.
     *   With ASSIGNS and CURSOR: called for each stream that was assigned, beside fetches, which give no message of
     *     that stream before. A status of class RETRY or PAUSE is tried again after pauses, and other streams go on; a
     *     FINITE source gives up after `patience`. Every other status ends the run. The stream may be released
     *     meanwhile, and its number be given to another stream, for which seek is called, too.
     * ONCE_E_BUSY: another process has the stream. */
    int (*seek)(once_source *source, uint32_t stream, const once_facts *facts, once_error *err);
    /* Called several times in one transaction. First with `items`, the messages of the transaction, also those that
     * came from the store, before their effects run: a read after the effects would cost another round trip. With
     * CURSOR then, before the commit, with `last`: for each stream in which messages are over by then, the one up to
     * which all are over; do not read the store in this call. The source does not learn whether that was committed: it
     * finds what it has set in the facts of a later transaction. After a crash, messages that are claimed one by one
     * are passed outside of a transaction. Or NULL, as seek. */
    int (*keep)(once_source *source, const once_facts *facts, once_item *const *items, size_t n,
                const once_item *const *last, size_t n_last, once_error *err);

    /* Opened for ONCE_OPEN_LOOK, in place of seek: fetch begins at the message with these coordinates or before it, and
     * sets at_end when that message can no longer come. NULL: a message cannot be read again. */
    int (*look)(once_source *source, once_coordinates at, const once_facts *facts, once_error *err);
    /* Opened for ONCE_OPEN_CHECK: reports the broker's limits, other consumers of the same group, and whether it still
     * has the messages at which a run would go on. A limit that the broker does not tell is reported, too. NULL: there
     * is no broker. */
    int (*ask)(once_source *source, const once_facts *facts, once_source_report *report, void *user, once_error *err);
    /* Opened for ONCE_OPEN_CHECK: asks the broker how much is left of each stream, whoever reads it, and answers within
     * about `ms`. The facts are read behind the last question and before the first visit, so that the store is not held
     * while a broker is slow. NULL: there is no broker. */
    int (*backlog)(once_source *source, const once_facts *facts, int64_t ms, once_source_left *visit, void *user,
                   once_error *err);

    /* Blocks until there is a message (then at most spec->batch_wait_ms for more), news, the end, wake(), or for about
     * 100 ms. Does not block with max 0 or `rest`. When it fails, it has given no message. */
    int (*fetch)(once_source *source, once_fetch *fetch, once_error *err);
    /* Up to 512 receipts, of any streams; those of an extension are of one stream. `answer` of each is OPEN before.
     * There is one call at a time, and the next extensions, acks and releases wait for it. So a call should not take
     * longer than a tenth of expires_ms, nor of the time within which a revoked stream must be released. When the
     * broker has not answered by then, the call fails with `answer` set for those that are done; the rest is tried
     * again. */
    int (*ack)(once_source *source, once_receipt *list, size_t n, once_error *err);
    /* So long after an ack the next one may wait while other messages are worked on: one ack then covers more. For acks
     * that are watermarks. 0: they do not wait. */
    int64_t ack_pause_ms;
    int (*extend)(once_source *source, once_receipt *list, size_t n, once_error *err); /* NULL: it has no EXPIRES */
    int (*release)(once_source *source, uint32_t stream, once_error *err);             /* NULL: it has no ASSIGNS */
    /* Makes a blocked fetch return with what it has read. If no fetch is blocked, the next one does not block. */
    void (*wake)(once_source *source);
    /* How many messages were read and not handed out by fetch yet; a part of one counts. NULL: none, or they can be
     * read again. */
    uint64_t (*held)(const once_source *source);
    /* How much of a stream is left: bytes of a file, messages of a queue, as far as that is known without I/O; -1:
     * it is not known. */
    int64_t (*lag)(once_source *source, uint32_t stream);
    /* What `lag` is made of, for people: "80 ready, 40 in flight"; empty: that is not known. Or NULL. */
    void (*lag_parts)(once_source *source, uint32_t stream, char out[ONCE_LAG_PARTS]);
    /* "payments/3", for people; lives as long as the source. For a number that was released: any name, or NULL. */
    const char *(*stream_name)(once_source *source, uint32_t stream);
    /* Fetch is called at least this often, also after one that failed; with max 0 while nothing may be fetched. 0 or
     * NULL: the source needs no heartbeat. */
    int64_t (*beat_ms)(const once_source *source);
} once_source_ops;

/* The list, in the order in which people see them. Every build has all of them; their modules may be missing. */
#define ONCE_SOURCE_MAP(X) X(file) X(kafka) X(sqs) X(rabbitmq)

#define ONCE_SOURCE_DECLARE(name) extern const once_source_kind once__source_##name;
ONCE_SOURCE_MAP(ONCE_SOURCE_DECLARE)
#undef ONCE_SOURCE_DECLARE

/* Drivers embed this as their first member. */
struct once_source {
    const once_source_ops *ops;
    const once_spec *spec;
    const once_env *env;
    /* When `drain` is over, by boot_ms of the environment: set when the run is stopped, by any thread. From then on a
     * call should not wait for a server that does not answer. 0: not stopped. */
    _Atomic int64_t drained_ms;
};

const once_source_kind *const *once_source_list(size_t *n);

/* Loads its module where it has one. */
int once_source_open(const once_spec *spec, const once_env *env, once_source_purpose purpose, once_cancel cancel,
                     once_source **out, once_error *err);

/* --- the field `source` of the pipeline file --- */

/* What the map is read into: a struct for each source of the list, because the map is read before one is chosen. */
typedef struct once_source_fields {
    void **own;
    int body, tombstones; /* of every source: positions in their words */
} once_source_fields;

extern const once_config_section once_source_section; /* reads a once_source_fields */

bool once_source_fields_make(once_config *config, once_source_fields *out);
/* Chooses the source that `map` names, concludes and checks it. When the map names none, `out` is left as it is; that
 * mistake was reported. */
void once_source_choose(once_config *config, const once_node *map, const once_source_fields *fields,
                        once_source_spec *out);

/* The names that ${source:NAME} may have in a file with this map, ends with NULL; NULL: the map names no source. */
const char *const *once_source_names(const once_node *map);

/* The template of `order` if a file with this map says nothing about it; NULL: none. `map` may be NULL, or no map. */
const char *once_source_order(const once_node *map);

/* Whether a file with this map has `body: bytes`. `map` may be NULL, or no map. */
bool once_source_gives_bytes(const once_node *map);

/* For every source; does nothing where its function is NULL. */
void once_source_doubts(const once_source_spec *source, bool shared, once_source_warning *warn, void *user);
void once_source_secrets(const once_source_spec *source, once_secret_visit *visit, void *user);
void once_source_exposed(const once_source_spec *source, once_source_warning *warn, void *user);

#endif
