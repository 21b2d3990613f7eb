/* The fixture of the conformance suite, and the program that runs its tables over one driver. */
#include "conform.h"

#include <assert.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define TESTS_MAX 260

/* --- the fixture --- */

once_backend *open_store(fixture *f, int handle)
{
    const once_store_options options = {.size = sizeof options, .env = &f->worlds[handle].env, .create = true};
    once_backend *store = NULL;
    assert_ok(f, once__store_open(f->url, &options, &store, &f->err));
    assert_non_null(store);
    return store;
}

void reopen(fixture *f)
{
    assert_ptr_equal(f->store, f->handles[0]);
    const once_secret secret = f->store->secret;
    once__store_close(f->handles[0]);
    f->store = f->handles[0] = NULL;
    f->store = f->handles[0] = open_store(f, 0);
    assert_memory_equal(&secret, &f->store->secret, sizeof secret); /* or every key would be new */
}

void use(fixture *f, int handle)
{
    if (!f->handles[handle]) {
        f->handles[handle] = open_store(f, handle);
        assert_memory_equal(&f->handles[handle]->secret, &f->handles[0]->secret, sizeof(once_secret));
    }
    f->store = f->handles[handle];
}

void pass(fixture *f, int64_t ms)
{
    test_env_pass(&f->worlds[0], ms);
    test_env_pass(&f->worlds[1], ms);
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    (void)info, (void)kind, (void)at;
    return remove(path);
}

/* What cmocka hands to a test's beginning. */
typedef struct start {
    const conform_driver *driver;
    const conform_test *test;
} start;

static int fixture_open(void **state)
{
    const start *from = *state;
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->driver = from->driver;
    f->test = from->test;
    f->scope = (once_scope){{0}, ONCE_BYTES("payments"), ONCE_BYTES("charge")};
    f->tokens = 1;
    test_env_init(&f->worlds[0], 1);
    test_env_init(&f->worlds[1], 2);
    const char *tmp = getenv("TMPDIR");
    snprintf(f->folder, sizeof f->folder, "%s/once-conform-XXXXXX", tmp && strlen(tmp) < 40 ? tmp : "/tmp");
    if (!mkdtemp(f->folder)) fail_msg("cannot make a folder like '%s'", f->folder);
    const char *place = strstr(f->driver->url, "%s");
    snprintf(f->url, sizeof f->url, "%.*s%s%s", place ? (int)(place - f->driver->url) : (int)strlen(f->driver->url),
             f->driver->url, place ? f->folder : "", place ? place + 2 : "");
    if (f->driver->make) f->driver->make(strrchr(f->folder, '/') + 1, f->url, sizeof f->url);
    *state = f; /* from here on the end cleans up */
    f->store = f->handles[0] = open_store(f, 0);
    return 0;
}

static int fixture_close(void **state)
{
    fixture *f = *state;
    once__store_close(f->handles[1]);
    once__store_close(f->handles[0]);
    once_arena_release(&f->arena);
    if (f->driver->unmake) f->driver->unmake(strrchr(f->folder, '/') + 1);
    nftw(f->folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    free(f);
    return 0;
}

/* --- requests --- */

once_token new_token(fixture *f) { return (once_token){++f->tokens, UINT64_MAX - f->tokens}; }

once_bytes text(const char *string) { return (once_bytes){string, strlen(string)}; }

once_request ask_bytes(fixture *f, once_bytes key)
{
    return (once_request){
        .scope = &f->scope,
        .key = key,
        .id = once_key_id(f->store->secret, &f->scope, key),
        .fingerprint = {1, 2},
        .token = new_token(f),
        .lane = {.gap_ms = -1},
        .lease_ms = LEASE,
        .remember_ms = REMEMBER,
        .sent_ms = ONCE_NO_TIME,
        .run = 7,
        .at = {ONCE_BYTES("payments.ndjson"), ONCE_BYTES("17")},
    };
}

once_request ask(fixture *f, const char *key) { return ask_bytes(f, text(key)); }

once_request ask_lane(fixture *f, const char *key, const char *lane, int64_t version, int64_t gap_ms)
{
    once_request r = ask(f, key);
    r.lane = (once_lane_request){
        .id = once_lane_id(f->store->secret, &f->scope, text(lane)),
        .versioned = version >= 0,
        .version = version >= 0 ? version : 0,
        .gap_ms = gap_ms,
    };
    return r;
}

once_message message_of(const once_request *request)
{
    return (once_message){
        .body = ONCE_BYTES("{\"a\":\"\0\xff\"}"),
        .headers = ONCE_BYTES("{\"h\":1}"),
        .type = ONCE_BYTES("payment.received"),
        .at = request->at,
        .sent_ms = request->sent_ms,
    };
}

/* --- one verb for one entry --- */

once_decision do_claim(fixture *f, const once_request *request)
{
    once_decision decision;
    assert_ok(f, f->store->ops->claim(f->store, &request, 1, &decision, &f->arena, &f->err));
    return decision;
}

once_decision do_accept(fixture *f, const once_request *request)
{
    const once_message message = message_of(request), *messages = &message;
    once_decision decision;
    assert_ok(f, f->store->ops->accept(f->store, &request, &messages, 1, &decision, &f->arena, &f->err));
    return decision;
}

static bool settle(fixture *f, const once_request *request, once_outcome outcome, bool maybe)
{
    const once_message message = message_of(request);
    const bool open =
        outcome == ONCE_RETRY || outcome == ONCE_RELEASE || outcome == ONCE_UNKNOWN || outcome == ONCE_DEAD;
    const once_settlement settlement = {
        .request = request,
        .outcome = outcome,
        .result = open ? (once_bytes){0} : ONCE_BYTES("result"),
        .reason = ONCE_BYTES("reason"),
        .delay_ms = outcome == ONCE_RETRY || outcome == ONCE_RELEASE ? DELAY : 0,
        .message = open ? &message : NULL,
        .maybe_done = maybe,
    };
    bool applied;
    assert_ok(f, f->store->ops->settle(f->store, &settlement, 1, &applied, &f->err));
    return applied;
}

bool do_settle(fixture *f, const once_request *request, once_outcome outcome)
{
    return settle(f, request, outcome, false);
}
bool do_settle_maybe(fixture *f, const once_request *request, once_outcome outcome)
{
    return settle(f, request, outcome, true);
}

bool do_extend(fixture *f, const once_request *request)
{
    bool ours;
    assert_ok(f, f->store->ops->extend(f->store, &request, 1, &ours, &f->err));
    return ours;
}

size_t do_take(fixture *f, size_t max, once_taken *out)
{
    const once_token token = new_token(f);
    size_t n;
    assert_ok(f, f->store->ops->take(f->store, f->scope.consumer, token, false, LEASE, max, NULL, out, &n, &f->arena,
                                     &f->err));
    assert_true(n <= max);
    for (size_t i = 0; i < n; i++) {
        out[i].request.lease_ms = LEASE;
        out[i].request.remember_ms = REMEMBER;
    }
    return n;
}

once_taken take_one(fixture *f)
{
    once_taken taken[2];
    assert_int_equal(do_take(f, 2, taken), 1);
    assert_answer(taken[0].decision, RUN);
    taken[0].request.scope = &f->scope; /* taken moves */
    return taken[0];
}

once_entry do_get(fixture *f, once_hash id)
{
    once_entry entry;
    assert_ok(f, f->store->ops->get(f->store, id, &entry, &f->arena, &f->err));
    assert_true(once_hash_equal(entry.id, id));
    return entry;
}

once_stats do_stats(fixture *f)
{
    once_stats stats;
    assert_ok(f, f->store->ops->stats(f->store, f->scope.consumer, &stats, &f->err));
    return stats;
}

static bool count_entry(void *user, const once_entry *entry)
{
    (void)entry;
    ++*(size_t *)user;
    return true;
}

size_t count_listed(fixture *f, once_state state)
{
    size_t n = 0;
    assert_ok(f, f->store->ops->list(f->store, f->scope.consumer, state, count_entry, &n, &f->err));
    return n;
}

typedef struct letter_list {
    fixture *f;
    once_letter *out;
    size_t n, max;
} letter_list;

static once_bytes keep(fixture *f, once_bytes bytes)
{
    once_bytes copy = {0};
    assert_true(bytes.len == 0 || once_arena_copy(&f->arena, bytes, &copy));
    return copy;
}

static bool keep_letter(void *user, const once_letter *letter)
{
    letter_list *list = user;
    if (list->n < list->max) {
        once_letter copy = *letter;
        copy.key = keep(list->f, letter->key);
        copy.reason = keep(list->f, letter->reason);
        copy.message.body = keep(list->f, letter->message.body);
        copy.message.headers = keep(list->f, letter->message.headers);
        copy.message.at.place = keep(list->f, letter->message.at.place);
        copy.message.at.point = keep(list->f, letter->message.at.point);
        copy.scope = (once_scope){0};
        copy.message.type = (once_bytes){0};
        list->out[list->n] = copy;
    }
    list->n++;
    return true;
}

size_t list_letters(fixture *f, once_letter *out, size_t max)
{
    letter_list list = {f, out, 0, max};
    assert_ok(f, f->store->ops->letters(f->store, f->scope.consumer, 0, keep_letter, &list, &f->err));
    return list.n;
}

bool do_replay(fixture *f, uint64_t letter)
{
    bool found;
    assert_ok(f, f->store->ops->replay_letter(f->store, letter, &found, &f->err));
    return found;
}

bool do_forget(fixture *f, once_hash id)
{
    bool found;
    assert_ok(f, f->store->ops->forget(f->store, id, &found, &f->err));
    return found;
}

uint64_t sweep_all(fixture *f, size_t limit)
{
    uint64_t dropped = 0;
    once_sweep_result step = {.more = true};
    for (int i = 0; step.more; i++) {
        assert_in_range(i, 0, 100000);
        assert_ok(f, f->store->ops->sweep(f->store, limit, &step, &f->err));
        dropped += step.dropped;
    }
    return dropped;
}

void do_begin(fixture *f) { assert_ok(f, f->store->ops->begin(f->store, &f->err)); }
void do_commit(fixture *f) { assert_ok(f, f->store->ops->commit(f->store, &f->err)); }
void do_rollback(fixture *f) { f->store->ops->rollback(f->store); }

/* --- running --- */

static void run_row(void **state)
{
    fixture *f = *state;
    f->test->run(f);
}

/* What a store of this driver can do, as an open one says it. */
static unsigned bits_of(const conform_driver *driver)
{
    start from = {driver, NULL};
    void *state = &from;
    fixture_open(&state);
    const once_backend *store = ((const fixture *)state)->store;
    const unsigned bits = store->bits | driver->also | (store->ops->find ? CONFORM_FINDS : 0);
    fixture_close(&state);
    return bits;
}

int conform_run(const conform_driver *driver)
{
    const conform_test *const tables[] = {conform_claims, conform_repeated,  conform_waiting,   conform_letters,
                                          conform_buried, conform_operators, conform_bytes,     conform_time,
                                          conform_lists,  conform_lapsed,    conform_conflicts, conform_natural,
                                          conform_lanes,  conform_keeping,   conform_history,   conform_replace,
                                          conform_find,   conform_lookup,    conform_take};
    static struct CMUnitTest tests[TESTS_MAX];
    static start starts[TESTS_MAX];
    size_t n = 0;
    const unsigned bits = bits_of(driver);
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (const conform_test *test = tables[t]; test->name; test++) {
            if ((bits & test->bits) != test->bits) continue; /* a promise that this driver does not make */
            assert(n < TESTS_MAX);
            starts[n] = (start){driver, test};
            tests[n] = (struct CMUnitTest){test->name, run_row, fixture_open, fixture_close, &starts[n]};
            n++;
        }
    return _cmocka_run_group_tests(driver->name, tests, n, NULL, NULL);
}
