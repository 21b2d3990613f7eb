/* One conformance suite for every source driver (source/source.h), without a pipeline around it.
 *
 * A driver of the suite says which promises a source makes (its bits) and how a test does to its world what it needs:
 * put messages, restart, let time pass, take a stream away. The suite asks for what the bits promise and for nothing
 * else, and looks at nothing but the interface; so a source with a real server passes it in real time.
 *
 * Every fetch of a test goes through src_fetch, which checks what must always hold, and writes down what came. */
#ifndef ONCE_TESTS_SOURCE_CONFORM_H
#define ONCE_TESTS_SOURCE_CONFORM_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "source/source.h"

#define SRC_CONSUMERS 2
#define SRC_STREAMS 8
#define SRC_MESSAGE_MAX (1u << 20)

/* Beside the bits of a source: what else tests ask for. Those in the second line follow from what the driver can do. */
enum {
    SRC_REMEMBERS = 1u << 20, /* what was acked does not come again, after a restart neither */
    SRC_HEADERS = 1u << 21,   /* a message can have headers */
    SRC_TEXT = 1u << 14,      /* and any text as its body, with newlines */
    SRC_BINARY = 1u << 22,    /* or any bytes */
    SRC_EMPTY = 1u << 23,     /* or none */
    SRC_NO_BODY = 1u << 18,   /* or not even that: put gets NULL */
    SRC_UNORDERED = 1u << 17, /* they come in any order; with TIMED, tests see them in the order of their times */
    SRC_SHARES = 1u << 16,    /* there is one stream, which consumers share ... */
    SRC_DIVIDES = 1u << 15,   /* ... or there are several, which they divide among themselves */
    SRC_MISSING = 1u << 19,
    SRC_ENDLESS = 1u << 24,
    SRC_HOLES = 1u << 25,
    SRC_FAILS = 1u << 26,
    SRC_FAILS_ACKS = 1u << 27,
    SRC_HOLDS_ACKS = 1u << 28,
    SRC_LOSES = 1u << 29,
    SRC_LAST = 1u << 30,
    SRC_WATERMARK = 1u << 31
};

typedef struct source_driver {
    const char *name;
    unsigned bits;       /* ONCE_SOURCE_... that it must have, and SRC_... of the first line */
    unsigned streams;    /* with ASSIGNS; otherwise there is one */
    int64_t patience_ms; /* for how long something that must come is waited for; 0: 20 s */
    const void *own;     /* for the functions below */

    void *(*make)(const struct source_driver *driver); /* a world with empty streams, of this test alone */
    void (*unmake)(void *world);
    /* Durable when it returns. A body without SRC_TEXT and SRC_BINARY is one line of JSON. */
    void (*put)(void *world, unsigned stream, once_bytes body, once_bytes headers);
    /* One more consumer of the same group, or one who only looks. */
    int (*open)(void *world, once_source_purpose purpose, once_source **out, once_error *err);
    const char *(*name_of)(void *world, unsigned stream); /* as stream_name says it; with ASSIGNS */
    void (*pass)(void *world, int64_t ms);                /* with EXPIRES, ASSIGNS, beat_ms */
    /* Or NULL: */
    int (*open_missing)(void *world, once_source **out, once_error *err); /* of what is not there */
    void (*block)(void *world, int64_t ms);      /* how long fetches wait for something to come, from now on */
    void (*hole)(void *world, unsigned stream);  /* the next message does not stand right behind the last one */
    void (*fail_fetch)(void *world, bool fails); /* fetches do */
    void (*fail_ack)(void *world, size_t done);  /* the next ack fails, after the first ones of its list were done */
    void (*hold_acks)(void *world, bool hold);   /* acks do not return */
    void (*lose)(void *world, unsigned stream);  /* its consumer loses it, and is not asked */
    int64_t last_ms;                             /* EXPIRES: a delivery can be held that long at most; 0: for ever */
} source_driver;

typedef struct source_fixture source_fixture;

typedef struct source_test {
    const char *name;
    void (*run)(source_fixture *f);
    unsigned bits; /* what a source must promise for this test to make sense */
} source_test;
#define SRC_TEST(test, bits)                                                                                           \
    {                                                                                                                  \
#test, test, bits                                                                                              \
    }

/* A message that came. */
typedef struct src_got {
    int consumer;
    unsigned stream; /* by its name: as the driver counts them */
    uint32_t number; /* the source's */
    uint64_t delivery;
    int n; /* the number of an ordinary message (src_put); -1: it is another */
    once_item *item;
    once_message message;
    char *body, *at; /* copies, of what must not change while the batch lives */
} src_got;

/* What a consumer has been told of a number. */
typedef struct src_seat {
    enum { SRC_FREE, SRC_OURS, SRC_REVOKED, SRC_LOST } state;
    unsigned stream;
    int64_t within_ms, expires_ms;
} src_seat;

#define SRC_FACTS 32

typedef struct src_fact {
    char kind[16], name[128], value[4200];
    size_t name_len, len;
} src_fact;

/* What sources keep (source_facts.c). */
typedef struct src_facts {
    once_facts base;
    src_fact list[SRC_FACTS];
    size_t n;
    bool fails;
} src_facts;

void src_facts_init(src_facts *facts);

struct source_fixture {
    const source_driver *driver;
    const source_test *test;
    void *world;
    once_error err;
    once_source *consumers[SRC_CONSUMERS];
    src_seat seats[SRC_CONSUMERS][SRC_STREAMS];
    int put[SRC_STREAMS]; /* ordinary messages so far */
    src_got *got;
    size_t n, size;
    once_batch **batches;
    size_t batches_n, batches_size;
    uint32_t paused[SRC_STREAMS];
    size_t n_paused;
    src_facts facts, *before; /* before the transaction that is open; NULL: none is */
    bool no_seek;             /* streams that are assigned are not told where to go on */
    bool rest;                /* of the next fetches */
    bool at_end;              /* the last fetch said so */
    size_t before_reopen;     /* of f->got: what came before that stays in front (UNORDERED) */
};

/* Each ends with an empty row. */
extern const source_test source_delivery[], source_acks[], source_expiry[], source_streams[], source_cursor[],
    source_looks[];
int source_conform_run(const source_driver *driver);

/* --- the fixture --- */

void src_open(source_fixture *f, int consumer);
void src_close(source_fixture *f, int consumer);
void src_reopen(source_fixture *f); /* the first one; what was out has run out */
void src_pass(source_fixture *f, int64_t ms);
void src_put(source_fixture *f, unsigned stream, int n); /* so many more ordinary messages */
void src_put_body(source_fixture *f, unsigned stream, once_bytes body);
unsigned src_streams(const source_fixture *f);
bool src_has(const source_fixture *f, unsigned bits);
int64_t src_expires_ms(const source_fixture *f); /* as it was told */

void src_begin(source_fixture *f); /* a transaction of the store */
void src_end(source_fixture *f, bool commits);

once_batch *src_batch(source_fixture *f); /* one more, which lives as long as the test */
/* One fetch, which must succeed: how many messages came. They are the last ones of f->got. */
size_t src_fetch(source_fixture *f, int consumer, size_t max);
int src_try_fetch(source_fixture *f, int consumer, size_t max); /* one that may fail; then nothing came */
/* Until f->got has `n`, or longer than is patient: then the test fails. */
void src_fetch_until(source_fixture *f, int consumer, size_t n);
void src_quiet(source_fixture *f, int consumer); /* nothing comes */
void src_wait_for(source_fixture *f, int consumer, bool (*is_so)(const source_fixture *f));
void src_forget(source_fixture *f); /* what came so far */

/* The last delivery of an ordinary message; it must have come. */
const src_got *src_find(const source_fixture *f, unsigned stream, int n);
size_t src_count(const source_fixture *f, unsigned stream); /* that came from it */
/* What came from the stream, since it was forgotten, are exactly its messages from..upto, in order. */
void src_expect(const source_fixture *f, unsigned stream, int from, int upto);

once_receipt src_delivery(const src_got *got);
void src_ack(source_fixture *f, const src_got *got); /* it is ours, and works */
once_receipt_answer src_try_ack(source_fixture *f, int consumer, const src_got *got);
once_receipt_answer src_extend(source_fixture *f, const src_got *got);
/* Extends all that has come, as a run does: on a slow machine it would come again before the test ends. */
void src_keep(source_fixture *f);
void src_release(source_fixture *f, int consumer, uint32_t number);

int64_t src_real_ms(void);
int64_t src_patience_ms(const source_fixture *f);
void src_nap(void); /* between two questions that do not wait */

#define src_ok(f, call)                                                                                                \
    do {                                                                                                               \
        if ((call) != ONCE_OK) fail_msg("%s: %s", #call, (f)->err.text);                                               \
    } while (0)

#endif
