/* The source interface: where messages come from.
 *
 *   fetch    messages of its streams (core/receipt.h) into a batch, in order within each; may return none; says when
 *            streams come and go, and when the source is at its end
 *   ack      single deliveries, or everything up to one in its stream, after it is settled or the store owns it
 *   extend   deliveries that would run out
 *   release  a stream that was revoked, or of a run that ends
 *
 * Deliveries that run out (EXPIRES): for how long one is ours is said by the ASSIGNED news of its stream. A source
 * without ASSIGNS says it in its first fetch, as ASSIGNED news of stream 0; until then they count as if they did not.
 *
 * A stream that was revoked may be lost before it was released; that news may cross the release. A release that fails
 * has not happened, and is repeated, but not when the run ends. Whatever was not released goes with close; and a source
 * without ASSIGNS gives back in close what was not acked, unless it runs out by itself.
 *
 * The number of a delivery is not used again in its stream before its ack was answered or the stream was released. That
 * `extend` said GONE is no such answer: the delivery may still be acked. Who counts upwards is safe.
 *
 * A source whose connection may break while deliveries are not acked, so that these are somebody else's then, needs
 * ASSIGNS: LOST says so of the stream, and it is assigned anew when the connection is back.
 *
 * A source never loses what was not acked: it delivers it again, now or after a restart, and when it has STABLE at the
 * same coordinates.
 *
 * Where a source goes on is its own business: it keeps what it needs as facts of the store (once_facts), in the
 * transaction that the messages are settled in, and reads them before the first message of a stream. What it needs to
 * know of a message for that it leaves at item->resume, which nobody else looks into.
 *
 * Thread rule: fetch by one thread; ack, extend and release by another, at the same time as a fetch that blocks; keep,
 * and seek of a source with ASSIGNS, by a third one, that of the store; wake, lag, stream_name, beat_ms and bits by any
 * thread, perhaps under the lock of the machine, so that they must not wait for anybody (not for a fetch that blocks,
 * not for the network); open, close, look, ask, held and any other seek alone. */
#ifndef ONCE_SOURCE_SOURCE_H
#define ONCE_SOURCE_SOURCE_H

#include "base/config.h"
#include "base/env.h"
#include "base/value.h"
#include "core/receipt.h"
#include "core/item.h"
#include "core/spec.h"

typedef struct once_source once_source;

/* What the store keeps for a source from run to run: short texts, of this consumer alone, each under a kind ("cursor")
 * and a name (of a path, of a partition), which may be long. In a transaction they are set when it commits. */
typedef struct once_facts once_facts;
struct once_facts {
    uint64_t
        transaction; /* another number in each: what is found in the same one may be our own, and not be committed */
    /* Empty: there is none. */
    int (*get)(const once_facts *facts, const char *kind, once_bytes name, once_bytes *out, once_arena *arena,
               once_error *err);
    int (*set)(const once_facts *facts, const char *kind, once_bytes name, once_bytes value, once_error *err);
    /* What stands for it: another one for each store, consumer, kind and name. */
    once_hash (*id)(const once_facts *facts, const char *kind, once_bytes name);
};

/* Holds the cursor `which` of an open file for as long as the descriptor lives (source/cursor_lock.c). ONCE_E_BUSY:
 * another has it. */
int once_cursor_lock(const once_env *env, int fd, once_hash which, once_error *err);

/* A sentence that warns, for `once check`. */
typedef void once_source_warning(void *user, const char *text);

/* What fetch is asked for, and what it answers (->). */
typedef struct once_fetch {
    size_t max; /* messages at most; 0: none, only what keeps the source alive (heartbeats, polls), and news */
    const uint32_t *paused; /* streams of which nothing may be handed out now, ascending */
    size_t n_paused;
    bool rest;         /* only what has been read already is handed out, without waiting */
    once_batch *batch; /* -> items (message, batch, stream, delivery and resume set) and n; all of it in its arena */
    bool at_end;       /* -> FINITE: nothing will ever come again */
    once_stream_news *news; /* -> in the batch's arena; those of a stream count before its messages of this fetch */
    size_t n_news;
} once_fetch;

/* What it is opened for. */
typedef enum once_source_purpose {
    ONCE_OPEN_RUN,
    /* To be asked, or to read one message again: joins no group, takes no message from anybody, and tells the broker of
     * none. */
    ONCE_OPEN_CHECK,
    ONCE_OPEN_LOOK
} once_source_purpose;

/* What a broker says that a pipeline depends on. `once check` compares it with the pipeline file. */
typedef enum once_source_limit {
    ONCE_LIMIT_NONE,       /* `text` says all there is to say */
    ONCE_LIMIT_RETENTION,  /* ms for which it keeps a message, and could deliver it again; or ONCE_FOREVER */
    ONCE_LIMIT_DELIVERIES, /* how often it delivers a message before it gives it up */
    ONCE_LIMIT_HOLD        /* ms for which a delivery can be ours, however often it is extended */
} once_source_limit;

typedef struct once_source_finding {
    once_source_limit limit;
    int64_t value;       /* of the limit */
    const char *of;      /* "topic 'payments'" */
    const char *setting; /* "retention.ms": what to change there */
    const char *text;    /* without a limit: a sentence ("group 'g' has 2 other members"). With one: it could not be
                          * asked for, and this is why; NULL: it was */
    bool warning;        /* of a text without a limit */
} once_source_finding;
typedef void once_source_report(void *user, const once_source_finding *finding);

/* How what is not here yet fits. `body: json | bytes` is a field of the source's map; a body that is not JSON is that
 * of an item like any other, in which templates find no fields (core/template.h): check refuses templates with pointers
 * then, and effects get the bytes. No body (a tombstone) is not an empty one: message.no_body, which fetch sets. Until
 * a field of the source's map says what becomes of it, it is a dead letter. It must be decided at the intake, because
 * what the store keeps has a body, which may be empty. */

/* Which source it is, and its part of the pipeline file. It is always linked in, so that a file can be read without the
 * library of its source. Slots that may be NULL say so. */
typedef struct once_source_kind {
    const char *name;                  /* "file": the field of `source` that chooses it */
    const char *summary;               /* one line for `once version` and the docs */
    const struct once_source_ops *ops; /* NULL: its module has them ... */
    const char *module;                /* ... which is this one, as the part "source" of this name */

    once_config_field field; /* of that name: a map, whose scope has fields of the struct that is read, spec->own */
    size_t size;             /* of that struct, which is zeros before anything is read */
    /* Of ${source:NAME}, ends with NULL: what it knows of a message beside its body and headers (the key of a record,
     * its partition, its timestamp), the same at each delivery. With spec->source.named, fetch puts them into the
     * headers (core/message.h). NULL: none. */
    const char *const *names;
    /* What follows from its fields: `name`, `bits` and all else of the spec. Some may be wrong, and are left out. */
    void (*conclude)(once_source_spec *source);
    /* Rules between its fields; it tells each mistake. `map` is its own. A password that is written out is one: it must
     * be a reference (base/value.h). Or NULL. */
    void (*check)(once_config *config, const once_node *map, const once_source_spec *source);
    /* What is allowed and most likely not meant. `shared`: machines share the store, and keys are made of coordinates.
     * Or NULL. */
    void (*doubts)(const once_source_spec *source, bool shared, once_source_warning *warn, void *user);
    /* Texts of its fields that lead to secrets, or URLs. Or NULL: it has none. */
    void (*secrets)(const once_source_spec *source, once_secret_visit *visit, void *user);
    /* What others of this machine or of the network may see or change. Or NULL. */
    void (*exposed)(const once_source_spec *source, once_source_warning *warn, void *user);
    /* Whether coordinates with this place are of this source. With `look`, or NULL. */
    bool (*has)(const once_source_spec *source, once_bytes place);
} once_source_kind;

/* What an open source does. Slots that may be NULL say so. */
typedef struct once_source_ops {
    int (*open)(const once_spec *spec, const once_env *env, once_source_purpose purpose, once_source **out,
                once_error *err);
    void (*close)(once_source *source);
    /* Those of the spec, and what is known when it is open. CURSOR is known before, and read from the spec: it is in
     * both or in none. */
    unsigned (*bits)(const once_source *source);

    /* Before the first message of a stream: the source reads what it has kept, and goes on there; outside of a
     * transaction. Without ASSIGNS before the first fetch, of stream 0; with it and CURSOR for each stream that was
     * assigned, beside fetches, which hand out nothing of that stream before. It may be released meanwhile, and its
     * number be another one's, who is asked for, too. ONCE_E_BUSY: another process has it. With ASSIGNS, what
     * may pass is repeated after a pause, and other streams go on meanwhile; without it, it ends the run. seek and keep
     * are both there, or both NULL: it keeps nothing, and has no CURSOR. */
    int (*seek)(once_source *source, uint32_t stream, const once_facts *facts, once_error *err);
    /* In a transaction, more than once. First come `items`, messages that it is about, also such as the source did not
     * bring: before their effects run, since an answer that is waited for behind those costs each batch a round trip.
     * `last` comes when it is about to commit: with CURSOR, for each stream of which something is over then the message
     * up to which all is; nothing should be read for it. Whether it was committed the source is not told: what it has
     * set it finds in the facts of a later one. After a crash, messages that are claimed one by one are told outside
     * of a transaction. Or NULL, as seek. */
    int (*keep)(once_source *source, const once_facts *facts, once_item *const *items, size_t n,
                const once_item *const *last, size_t n_last, once_error *err);

    /* To read one message again, opened for that: instead of seek, has fetch begin at the message of these coordinates
     * or before it, and say at_end when it cannot come any more. NULL: a message cannot be read again. */
    int (*look)(once_source *source, once_coordinates at, const once_facts *facts, once_error *err);
    /* Opened to be asked: reports what the broker says of its limits and of others who read with us. What cannot be
     * asked for is reported as such. Or NULL: there is nobody to ask. */
    int (*ask)(once_source *source, once_source_report *report, void *user, once_error *err);

    /* Blocks until there is a message (then at most spec->batch_wait_ms for more), news, the end, wake(), or about
     * 100 ms; with max 0 or `rest` it does not block. When it fails nothing was handed out. */
    int (*fetch)(once_source *source, once_fetch *fetch, once_error *err);
    /* `answer` of each is OPEN before. There are up to 512, of any streams; those of an extension are of one stream. A
     * call should not take longer than a tenth of expires_ms, nor of the time within which a revoked stream must be
     * released: one is out at a time, and the next extensions, acks and releases wait for it. When the broker does not
     * answer by then the call fails, with `answer` set for those that are done; the rest is asked for again. */
    int (*ack)(once_source *source, once_receipt *list, size_t n, once_error *err);
    int (*extend)(once_source *source, once_receipt *list, size_t n, once_error *err); /* NULL: it has no EXPIRES */
    int (*release)(once_source *source, uint32_t stream, once_error *err);             /* NULL: it has no ASSIGNS */
    /* A fetch that waits returns, with what has been read; so does the next one if none does. */
    void (*wake)(once_source *source);
    /* Messages, or parts of one, that were read and not handed out. NULL: there are none, or they are delivered again.
     */
    uint64_t (*held)(const once_source *source);
    /* How much is left of a stream: bytes of a file, messages of a queue, as far as it is known without asking anybody;
     * -1: it is not. */
    int64_t (*lag)(once_source *source, uint32_t stream);
    /* "payments-3", for people, and lives as long as the source. Of a number that was released it is any name, or NULL.
     */
    const char *(*stream_name)(once_source *source, uint32_t stream);
    /* Fetch is called at least that often, also after one that failed, and with max 0 where nothing may be fetched; 0
     * or NULL: it does not matter. */
    int64_t (*beat_ms)(const once_source *source);
} once_source_ops;

/* The list, in the order in which they are named to people. All are in every build; the module of one need not be. */
#define ONCE_SOURCE_MAP(X) X(file)

#define ONCE_SOURCE_DECLARE(name) extern const once_source_kind once__source_##name;
ONCE_SOURCE_MAP(ONCE_SOURCE_DECLARE)
#undef ONCE_SOURCE_DECLARE

/* Drivers embed this as their first member. */
struct once_source {
    const once_source_ops *ops;
    const once_spec *spec;
    const once_env *env;
};

const once_source_kind *const *once_source_list(size_t *n);

/* Loads its module where it has one. */
int once_source_open(const once_spec *spec, const once_env *env, once_source_purpose purpose, once_source **out,
                     once_error *err);

/* --- the field `source` of the pipeline file --- */

/* What it is read into: a struct for each of the list, since which of them counts is known when it was read. */
typedef struct once_source_fields {
    void **own;
} once_source_fields;

extern const once_config_section once_source_section; /* reads a once_source_fields */

bool once_source_fields_make(once_config *config, once_source_fields *out);
/* The one that `map` has, concluded and checked. Left as it was where the map has none; the mistake was told. */
void once_source_choose(once_config *config, const once_node *map, const once_source_fields *fields,
                        once_source_spec *out);

/* What ${source:NAME} may name in a file with this map, ends with NULL; NULL: the map names no source. */
const char *const *once_source_names(const once_node *map);

/* For every source; what it does not have is nothing. */
void once_source_doubts(const once_source_spec *source, bool shared, once_source_warning *warn, void *user);
void once_source_secrets(const once_source_spec *source, once_secret_visit *visit, void *user);
void once_source_exposed(const once_source_spec *source, once_source_warning *warn, void *user);

#endif
