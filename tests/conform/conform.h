/* One conformance suite for every store driver.
 *
 * A test gets a fixture with an empty store, whose clock the test moves. The do_ helpers call one verb for one entry,
 * demand ONCE_OK and return the answer. Tests ask for capability bits with `need`; without them they are
 * skipped. */
#ifndef ONCE_TESTS_CONFORM_H
#define ONCE_TESTS_CONFORM_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "store/store.h"
#include "testenv.h"

#define LEASE 30000
#define REMEMBER 3600000
#define DELAY 100

typedef struct conform_driver {
    const char *name;
    const char *url; /* "%s" in it becomes a folder of the test's own */
    /* For stores that are not files: makes an empty one for the test and writes its URL; `name` is the test's own.
     * NULL: `url`. */
    void (*make)(const char *name, char *url, size_t size);
    void (*unmake)(const char *name);
    unsigned also; /* bits that the driver does not grant although it keeps their promises to this suite */
} conform_driver;

typedef struct fixture fixture;

typedef struct conform_test {
    const char *name;
    void (*run)(fixture *f);
    unsigned bits; /* what a store must be able to do for this test to make sense (enum once_store_bits) */
} conform_test;
#define CONFORM_FINDS (1u << 31) /* beside the bits: it has `find` */
#define CONFORM(test)                                                                                                  \
    {                                                                                                                  \
#test, test, 0                                                                                                 \
    }
#define CONFORM_WITH(test, bits)                                                                                       \
    {                                                                                                                  \
#test, test, bits                                                                                              \
    }

struct fixture {
    const conform_driver *driver;
    const conform_test *test;
    test_env worlds[2];       /* of the two handles; time passes in both */
    once_backend *handles[2]; /* the second one is opened by `second` */
    once_backend *store;      /* the handle in use */
    once_arena arena;         /* for what comes back; freed with the fixture */
    once_error err;
    once_scope scope;
    uint64_t tokens;
    char folder[64], url[256];
};

/* Each ends with an empty row. */
extern const conform_test conform_claims[], conform_repeated[], conform_waiting[], conform_letters[], conform_buried[],
    conform_operators[], conform_bytes[], conform_time[], conform_lists[], conform_lapsed[], conform_conflicts[],
    conform_natural[], conform_lanes[], conform_keeping[], conform_history[], conform_replace[], conform_find[],
    conform_lookup[], conform_take[];
int conform_run(const conform_driver *driver);

/* --- the fixture --- */

once_backend *open_store(fixture *f, int handle);
void reopen(fixture *f);          /* closes the first handle and opens it again */
void use(fixture *f, int handle); /* which handle the helpers talk to; the second one is opened when first used */
void pass(fixture *f, int64_t ms);

/* --- requests, with a token of their own each --- */

once_token new_token(fixture *f);
once_bytes text(const char *string);
once_request ask(fixture *f, const char *key);
once_request ask_bytes(fixture *f, once_bytes key);
once_request ask_lane(fixture *f, const char *key, const char *lane, int64_t version,
                      int64_t gap_ms);                /* version -1: none */
once_message message_of(const once_request *request); /* with bytes that the tests know */

/* --- one verb for one entry --- */

once_decision do_claim(fixture *f, const once_request *request);
once_decision do_accept(fixture *f, const once_request *request);
bool do_settle(fixture *f, const once_request *request, once_outcome outcome); /* with a result or body, and DELAY */
bool do_settle_maybe(fixture *f, const once_request *request, once_outcome outcome); /* the effect may have happened */
bool do_extend(fixture *f, const once_request *request);
size_t do_take(fixture *f, size_t max, once_taken *out);
once_taken take_one(fixture *f); /* there is exactly one due; lease and remember filled in */
once_entry do_get(fixture *f, once_hash id);
once_stats do_stats(fixture *f);
size_t count_listed(fixture *f, once_state state);
size_t list_letters(fixture *f, once_letter *out, size_t max); /* how many there are; copies up to max */
bool do_replay(fixture *f, uint64_t letter);
bool do_forget(fixture *f, once_hash id);
uint64_t sweep_all(fixture *f,
                   size_t limit); /* until there is no more; counts records, of which a key may have had several */
void do_begin(fixture *f);
void do_commit(fixture *f);
void do_rollback(fixture *f);

#define assert_ok(f, call)                                                                                             \
    do {                                                                                                               \
        if ((call) != ONCE_OK) fail_msg("%s: %s", #call, (f)->err.text);                                               \
    } while (0)
#define assert_answer(decision, wanted)                                                                                \
    assert_string_equal(once_answer_name((decision).answer), once_answer_name(ONCE_ANSWER_##wanted))
#define assert_state(f, request, wanted)                                                                               \
    assert_string_equal(once_state_name(do_get(f, (request).id).state), once_state_name(ONCE_STATE_##wanted))
#define assert_bytes(bytes, string)                                                                                    \
    do {                                                                                                               \
        assert_int_equal((bytes).len, strlen(string));                                                                 \
        assert_memory_equal((bytes).data, string, (bytes).len);                                                        \
    } while (0)

#endif
