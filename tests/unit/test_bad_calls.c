/* Every function of the library, called as no header allows: an error comes back, never an abort. The table has all
 * that docs/abi.txt lists. */
#include <setjmp.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "once/once.h"
#include "once/testing.h"

#define NOWHERE ((once_bytes){NULL, 20})
#define ENDLESS ((once_bytes){"aaaaaaaaaaaaaaaaaaaa", SIZE_MAX})
#define B(text) ((once_bytes){text, sizeof text - 1})

static once_error err;
static once_pipeline *pipeline;
static once_store *store;
static const once_scope scope = {.consumer = B("c")};

static void check(int rc, const char *call, int line)
{
    if (rc != ONCE_E_USAGE) fail_msg("line %d: %s: %s", line, call, once_status_name(rc));
    if (err.status != ONCE_E_USAGE || !err.text[0]) fail_msg("line %d: %s: no error", line, call);
    err = (once_error){0};
}
#define REFUSED(call) check(call, #call, __LINE__)

static once_outcome done(void *user, const once_call *call, once_reply *reply)
{
    (void)user, (void)call, (void)reply;
    return ONCE_DONE;
}

static void nothing(void) {}

/* ---- what a program shows ---- */

static void names(void)
{
    assert_string_equal(once_outcome_name((once_outcome)99), "?");
    assert_string_equal(once_outcome_name((once_outcome)-1), "?");
    assert_string_equal(once_answer_name((once_answer)99), "?");
    assert_string_equal(once_answer_name((once_answer)-3), "?");
    assert_string_equal(once_replay_verdict_name((once_replay_verdict)99), "?");
    assert_string_equal(once_replay_verdict_text((once_replay_verdict)-1), "?");
    assert_false(once_replay_verdict_leaves((once_replay_verdict)1000));
    assert_string_equal(once_status_name(12345), "?");
    assert_string_equal(once_status_text(12345), "unknown status");
    assert_int_equal(once_status_class(12345), ONCE_CLASS_FATAL);
}

static int fail_with(int status, const char *format)
{
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-security"
    return once_fail(&err, status, format);
#pragma GCC diagnostic pop
}

static void failures(void)
{
    assert_int_equal(once_fail(NULL, ONCE_E_USAGE, "x"), ONCE_E_USAGE);
    assert_int_equal(once_fail(&err, ONCE_OK, "x"), ONCE_E_BUG);
    assert_int_equal(fail_with(ONCE_E_USAGE, NULL), ONCE_E_USAGE);
    err = (once_error){0};
}

static void features(void) { once_features(NULL, NULL); }
static void modules(void) { once_modules(NULL, NULL); }
static void module_check(void)
{
    assert_int_equal(once_module_check(NULL, "memory", &err), ONCE_E_USAGE);
    assert_int_equal(once_module_check("store", NULL, &err), ONCE_E_USAGE);
    assert_int_equal(once_module_check("store", "nobody", NULL), ONCE_E_USAGE);
    assert_int_equal(once_module_check("store", "memory", NULL), ONCE_OK);
}

static void reason_group(void)
{
    char out[ONCE_REASON_GROUP_MAX + 1];
    once_reason_group(B("x"), NULL);
    once_reason_group(NOWHERE, out);
    assert_string_equal(out, "(none)");
}

static void first_character(void)
{
    const once_character none = once_character_first((once_bytes){0}), nowhere = once_character_first(NOWHERE);
    assert_true(none.len == 0 && !none.fit);
    assert_true(nowhere.len == NOWHERE.len && !nowhere.fit); /* whoever goes on behind it comes to the end */
    assert_true(once_character_first(ENDLESS).len == 1);
}

static void parse_when(void)
{
    int64_t ms;
    REFUSED(once_parse_when(NOWHERE, &ms, &err));
    REFUSED(once_parse_when(ENDLESS, &ms, &err));
    REFUSED(once_parse_when((once_bytes){0}, &ms, &err));
    REFUSED(once_parse_when(B("2h"), NULL, &err));
    assert_int_equal(once_parse_when(B("nonsense"), &ms, NULL), ONCE_E_USAGE);
}

static void logging(void)
{
    REFUSED(once_logging_start(NULL, NULL, &err));
    REFUSED(once_logging_start(NULL, "info", &err));
    REFUSED(once_logging_start("json", NULL, &err));
    REFUSED(once_logging_start("", "", &err));
    assert_int_equal(once_logging_start("json", "error", &err), ONCE_OK);
    REFUSED(once_logging_start("json", "error", &err));
    once_logging_stop();
    once_logging_stop();
}

static void failpoints(void)
{
    assert_int_equal(once_testing_failpoints(NULL, &err), ONCE_OK); /* none */
    REFUSED(once_testing_failpoints("no_such_point:kill", &err));
}

static void schema(void)
{
    const char *text;
    REFUSED(once_store_schema(NULL, &text, &err));
    REFUSED(once_store_schema("sqlite:", NULL, &err));
    assert_int_equal(once_store_schema("", &text, NULL), ONCE_E_UNSUPPORTED);
}

/* ---- stores and deliveries ---- */

static void open_store(void)
{
    once_store *out = NULL;
    once_open_options o = {.size = 0};
    REFUSED(once_store_open(NULL, NULL, &out, &err));
    REFUSED(once_store_open("memory:", NULL, NULL, &err));
    REFUSED(once_store_open("memory:", &o, &out, &err));
    o.size = SIZE_MAX;
    REFUSED(once_store_open("memory:", &o, &out, &err));
    o = (once_open_options){.size = sizeof o, .busy_ms = -1};
    REFUSED(once_store_open("memory:", &o, &out, &err));
    assert_null(out);
}

static void close_store(void) { once_store_close(NULL); }

static void handled(once_delivery delivery)
{
    once_verdict verdict;
    REFUSED(once_handle(store, &scope, &delivery, done, NULL, &verdict, &err));
    once_ticket ticket = {0};
    REFUSED(once_claim(store, &scope, &delivery, 1, &ticket, &err));
}

static const once_delivery fine = {.size = sizeof(once_delivery), .key = B("k"), .body = B("{}")};

static void bad_terms(once_terms terms)
{
    once_delivery delivery = fine;
    delivery.terms = &terms;
    handled(delivery);
}

static void handle(void)
{
    once_verdict verdict;
    once_delivery d = fine;
    REFUSED(once_handle(NULL, &scope, &fine, done, NULL, &verdict, &err));
    REFUSED(once_handle(store, NULL, &fine, done, NULL, &verdict, &err));
    REFUSED(once_handle(store, &scope, NULL, done, NULL, &verdict, &err));
    REFUSED(once_handle(store, &scope, &fine, NULL, NULL, &verdict, &err));
    REFUSED(once_handle(store, &scope, &fine, done, NULL, NULL, &err));
    assert_int_equal(once_handle(NULL, NULL, NULL, NULL, NULL, NULL, NULL), ONCE_E_USAGE);
    once_bytes *const fields[] = {&d.key, &d.body, &d.content, &d.type, &d.headers, &d.place, &d.point};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        d = fine;
        *fields[i] = NOWHERE;
        handled(d);
        d = fine;
        *fields[i] = ENDLESS;
        handled(d);
    }
    d = fine;
    d.size = 0;
    handled(d);
    d.size = SIZE_MAX;
    handled(d);
    const size_t size = sizeof(once_terms);
    bad_terms((once_terms){.size = 0});
    bad_terms((once_terms){.size = SIZE_MAX});
    bad_terms((once_terms){.size = size, .lease_ms = -1});
    bad_terms((once_terms){.size = size, .remember_ms = INT64_MIN});
    bad_terms((once_terms){.size = size, .result_max = SIZE_MAX});
    bad_terms((once_terms){.size = size, .idempotency_salt = NOWHERE});
    bad_terms((once_terms){.size = size, .idempotency_salt = ENDLESS});
    bad_terms((once_terms){.size = size, .idempotency_salt = B("short")});
    const once_scope lies[] = {
        {.consumer = NOWHERE}, {.consumer = B("c"), .tenant = ENDLESS}, {.consumer = B("c"), .operation = NOWHERE}};
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++)
        REFUSED(once_handle(store, &lies[i], &fine, done, NULL, &verdict, &err));
}

static void claim(void)
{
    once_ticket ticket = {0};
    REFUSED(once_claim(NULL, &scope, &fine, 1, &ticket, &err));
    REFUSED(once_claim(store, NULL, &fine, 1, &ticket, &err));
    REFUSED(once_claim(store, &scope, NULL, 1, &ticket, &err));
    REFUSED(once_claim(store, &scope, &fine, 1, NULL, &err));
    assert_int_equal(once_claim(store, NULL, NULL, 0, NULL, &err), ONCE_OK);
    assert_int_equal(once_claim(store, &scope, &fine, SIZE_MAX, &ticket, NULL), ONCE_E_NOMEM);
}

static void extend(void)
{
    once_ticket ticket = {0};
    bool ours;
    REFUSED(once_extend(NULL, &ticket, 1, 5, &ours, &err));
    REFUSED(once_extend(store, NULL, 1, 5, &ours, &err));
    REFUSED(once_extend(store, &ticket, 1, 5, NULL, &err));
    REFUSED(once_extend(store, &ticket, 1, INT64_MIN, &ours, &err));
    assert_int_equal(once_extend(store, &ticket, SIZE_MAX, 5, &ours, NULL), ONCE_E_NOMEM);
}

static void settle(void)
{
    once_ticket ticket = {0};
    bool applied;
    assert_int_equal(once_claim(store, &scope, &fine, 1, &ticket, &err), ONCE_OK);
    const once_ending ending = {.outcome = ONCE_DONE};
    REFUSED(once_settle(NULL, &ticket, &ending, 1, &applied, &err));
    REFUSED(once_settle(store, NULL, &ending, 1, &applied, &err));
    REFUSED(once_settle(store, &ticket, NULL, 1, &applied, &err));
    REFUSED(once_settle(store, &ticket, &ending, 1, NULL, &err));
    once_delivery unsized = fine, lies = fine;
    unsized.size = 0;
    lies.body = ENDLESS;
    const once_ending wrong[] = {{.outcome = (once_outcome)99},
                                 {.outcome = (once_outcome)-1},
                                 {.result = NOWHERE},
                                 {.result = ENDLESS},
                                 {.outcome = ONCE_DEAD, .reason = NOWHERE},
                                 {.outcome = ONCE_DEAD, .reason = ENDLESS},
                                 {.outcome = ONCE_RETRY, .delay_ms = -1},
                                 {.outcome = ONCE_DEAD, .message = &unsized},
                                 {.outcome = ONCE_DEAD, .message = &lies}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        REFUSED(once_settle(store, &ticket, &wrong[i], 1, &applied, &err));
    once_ticket_release(&ticket, 1);
    REFUSED(once_settle(store, &ticket, &ending, 1, &applied, &err)); /* it has no claim */
}

static void release_tickets(void)
{
    once_ticket_release(NULL, 0);
    once_ticket_release(NULL, 5);
}

static void release_verdict(void) { once_verdict_release(NULL); }

static once_outcome careless(void *user, const once_call *call, once_reply *reply)
{
    assert_int_equal(once_reply_result(NULL, B("x")), ONCE_E_USAGE);
    assert_int_equal(once_reply_result(reply, NOWHERE), ONCE_E_USAGE);
    assert_int_equal(once_reply_result(reply, ENDLESS), ONCE_E_USAGE);
    assert_int_equal(once_reply_result(reply, (once_bytes){0}), ONCE_OK);
    const char *volatile none = NULL;
    once_reply_reason(NULL, "x");
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-security"
    once_reply_reason(reply, none);
#pragma GCC diagnostic pop
    once_reply_delay(NULL, 1);
    once_reply_delay(reply, INT64_MIN);
    REFUSED(once_call_extend(NULL, 1, &err));
    REFUSED(once_call_extend(call, INT64_MIN, &err));
    *(bool *)user = true;
    return (once_outcome)77;
}

static void answers(void)
{
    bool called = false;
    once_verdict verdict;
    const once_delivery delivery = {.size = sizeof delivery, .key = B("careless")};
    assert_int_equal(once_handle(store, &scope, &delivery, careless, &called, &verdict, &err), ONCE_OK);
    assert_true(called);
    assert_int_equal(verdict.outcome, ONCE_UNKNOWN);
    once_verdict_release(&verdict);
}

static void on_sqlite(void)
{
    once_verdict verdict;
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(":memory:", &db), SQLITE_OK);
    REFUSED(once_sqlite_prepare(NULL, &err));
    REFUSED(once_sqlite_handle(NULL, &scope, &fine, done, NULL, &verdict, &err));
    REFUSED(once_sqlite_handle(db, &scope, &fine, done, NULL, &verdict, &err)); /* not prepared */
    assert_int_equal(once_sqlite_prepare(db, &err), ONCE_OK);
    REFUSED(once_sqlite_handle(db, NULL, &fine, done, NULL, &verdict, &err));
    REFUSED(once_sqlite_handle(db, &scope, NULL, done, NULL, &verdict, &err));
    REFUSED(once_sqlite_handle(db, &scope, &fine, NULL, NULL, &verdict, &err));
    REFUSED(once_sqlite_handle(db, &scope, &fine, done, NULL, NULL, &err));
    once_sqlite_release(NULL);
    once_sqlite_release(db);
    once_sqlite_release(db);
    sqlite3_close(db);
}

static void on_postgres(void)
{
    once_verdict verdict;
    const int prepared = once_postgres_prepare(NULL, &err),
              handled = once_postgres_handle(NULL, &scope, &fine, done, NULL, &verdict, &err);
    if (prepared == ONCE_E_UNSUPPORTED) { /* in this build */
        assert_int_equal(handled, ONCE_E_UNSUPPORTED);
    } else {
        assert_int_equal(prepared, ONCE_E_USAGE);
        assert_int_equal(handled, ONCE_E_USAGE);
    }
    once_postgres_release(NULL);
    err = (once_error){0};
}

/* ---- pipelines ---- */

static void load(void)
{
    once_pipeline *out = NULL;
    REFUSED(once_pipeline_load(NULL, NULL, NULL, &out, &err));
    REFUSED(once_pipeline_load("p.yaml", NULL, NULL, NULL, &err));
    assert_int_not_equal(once_pipeline_load("", NULL, NULL, &out, NULL), ONCE_OK);
    assert_null(out);
}

static void forget_pipeline(void)
{
    once_pipeline_free(NULL);
    once_pipeline_stop(NULL);
    assert_false(once_pipeline_has_secrets(NULL));
}

static void callback(void)
{
    REFUSED(once_pipeline_callback(NULL, "a", done, NULL, &err));
    REFUSED(once_pipeline_callback(pipeline, NULL, done, NULL, &err));
    REFUSED(once_pipeline_callback(pipeline, "a", NULL, NULL, &err));
    REFUSED(once_pipeline_callback(pipeline, "nobody", done, NULL, &err));
}

static void salt(void)
{
    REFUSED(once_pipeline_idempotency_salt(NULL, B("0123456789abcdef"), &err));
    REFUSED(once_pipeline_idempotency_salt(pipeline, NOWHERE, &err));
    REFUSED(once_pipeline_idempotency_salt(pipeline, ENDLESS, &err));
    REFUSED(once_pipeline_idempotency_salt(pipeline, (once_bytes){0}, &err));
}

static void run(void)
{
    once_summary summary;
    once_run_options options = {.size = 0};
    REFUSED(once_pipeline_run(NULL, NULL, &summary, &err));
    REFUSED(once_pipeline_run(pipeline, NULL, NULL, &err));
    REFUSED(once_pipeline_run(pipeline, &options, &summary, &err));
    options.size = SIZE_MAX;
    REFUSED(once_pipeline_run(pipeline, &options, &summary, &err));
    options.size = sizeof options + 1;
    REFUSED(once_pipeline_run(pipeline, &options, &summary, &err));
}

static void progress(void *user, const once_counts *counts, int64_t left, double seconds)
{
    (void)user, (void)counts, (void)left, (void)seconds;
}

static bool stream(void *user, const once_stream_shown *shown)
{
    (void)user, (void)shown;
    return true;
}

static void run_beside(void)
{
    once_snapshot now = {.size = 0};
    once_run_options options = {.size = 0};
    REFUSED(once_pipeline_start(NULL, NULL, &err));
    REFUSED(once_pipeline_start(pipeline, &options, &err));
    options = (once_run_options){.size = sizeof options, .progress = progress};
    REFUSED(once_pipeline_start(pipeline, &options, &err));
    REFUSED(once_pipeline_join(NULL, NULL, &err));
    REFUSED(once_pipeline_join(pipeline, NULL, &err));
    REFUSED(once_pipeline_snapshot(NULL, &now, &err));
    REFUSED(once_pipeline_snapshot(pipeline, NULL, &err));
    REFUSED(once_pipeline_snapshot(pipeline, &now, &err));
    now.size = SIZE_MAX;
    REFUSED(once_pipeline_snapshot(pipeline, &now, &err));
    REFUSED(once_pipeline_streams(NULL, stream, NULL, &err));
    REFUSED(once_pipeline_streams(pipeline, NULL, NULL, &err));
}

static void finding(void *user, const char *topic, const char *text, bool warning)
{
    (void)user, (void)topic, (void)text, (void)warning;
}

static void look(void)
{
    once_pipeline_state status;
    REFUSED(once_pipeline_check(NULL, finding, NULL, &err));
    REFUSED(once_pipeline_check(pipeline, NULL, NULL, &err));
    REFUSED(once_pipeline_verify(NULL, finding, NULL, &err));
    REFUSED(once_pipeline_verify(pipeline, NULL, NULL, &err));
    REFUSED(once_pipeline_status(NULL, false, &status, &err));
    REFUSED(once_pipeline_status(pipeline, false, NULL, &err));
    REFUSED(once_pipeline_standing(NULL, false, &status, &err));
    once_stored stored = {.size = sizeof stored}, sizeless = {0};
    REFUSED(once_pipeline_stored(NULL, &stored, &err));
    REFUSED(once_pipeline_stored(pipeline, NULL, &err));
    REFUSED(once_pipeline_stored(pipeline, &sizeless, &err));
}

static void on_left(void *user, const char *stream, int64_t left) { (void)user, (void)stream, (void)left; }
static bool on_running(void *user, const once_running *item) { return !user && item; }
static bool on_listed(void *user, const once_listed *item) { return !user && item; }
static bool on_audited(void *user, const once_audited *item) { return !user && item; }
static void on_explained(void *user, const once_explanation *item) { (void)user, (void)item; }
static void on_fate(void *user, const once_fate *item) { (void)user, (void)item; }

static void lists(void)
{
    REFUSED(once_pipeline_workers(NULL, on_running, NULL, &err));
    REFUSED(once_pipeline_workers(pipeline, NULL, NULL, &err));
    REFUSED(once_pipeline_lag(NULL, on_left, NULL, &err));
    REFUSED(once_pipeline_lag(pipeline, NULL, NULL, &err));
    REFUSED(once_pipeline_list(NULL, ~0u, on_listed, NULL, &err));
    REFUSED(once_pipeline_list(pipeline, ~0u, NULL, NULL, &err));
    REFUSED(once_pipeline_audits(NULL, on_audited, NULL, &err));
    REFUSED(once_pipeline_audits(pipeline, NULL, NULL, &err));
}

static void explain(void)
{
    const once_bytes none = {0};
    REFUSED(once_pipeline_explain(NULL, none, B("k"), on_explained, NULL, &err));
    REFUSED(once_pipeline_explain(pipeline, none, B("k"), NULL, NULL, &err));
    REFUSED(once_pipeline_explain(pipeline, none, NOWHERE, on_explained, NULL, &err));
    REFUSED(once_pipeline_explain(pipeline, ENDLESS, B("k"), on_explained, NULL, &err));
    REFUSED(once_pipeline_explain_message(NULL, B("p.json"), B("0"), on_fate, on_explained, NULL, &err));
    REFUSED(once_pipeline_explain_message(pipeline, B("p.json"), B("0"), NULL, on_explained, NULL, &err));
    REFUSED(once_pipeline_explain_message(pipeline, B("p.json"), B("0"), on_fate, NULL, NULL, &err));
    REFUSED(once_pipeline_explain_message(pipeline, NOWHERE, B("0"), on_fate, on_explained, NULL, &err));
    REFUSED(once_pipeline_explain_message(pipeline, B("p.json"), ENDLESS, on_fate, on_explained, NULL, &err));
}

#define ANY                                                                                                            \
    {                                                                                                                  \
        .since_ms = ONCE_NO_TIME, .until_ms = ONCE_NO_TIME                                                             \
    }

static void replay(void)
{
    once_replay_counts counts;
    const once_bytes nowhere = NOWHERE;
    const uint64_t id = 1;
    const once_replay_options good = {.size = sizeof good, .choice = ANY};
    REFUSED(once_pipeline_replay(NULL, &good, &counts, &err));
    REFUSED(once_pipeline_replay(pipeline, NULL, &counts, &err));
    REFUSED(once_pipeline_replay(pipeline, &good, NULL, &err));
    const once_replay_options wrong[] = {
        {.size = 0},
        {.size = SIZE_MAX},
        {.size = sizeof good, .n_ids = 5, .choice = ANY}, /* not: all */
        {.size = sizeof good, .choice = {.reason = NOWHERE}},
        {.size = sizeof good, .choice = {.type = ENDLESS}},
        {.size = sizeof good, .choice = {.tenant = NOWHERE}},
        {.size = sizeof good, .ids = &id, .n_ids = 1, .body = &nowhere},
        {.size = sizeof good, .body = &fine.body},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        REFUSED(once_pipeline_replay(pipeline, &wrong[i], &counts, &err));
}

static void discard(void)
{
    uint64_t n;
    const once_discard_options good = {.size = sizeof good, .choice = ANY};
    REFUSED(once_pipeline_discard(NULL, &good, &n, &err));
    REFUSED(once_pipeline_discard(pipeline, NULL, &n, &err));
    REFUSED(once_pipeline_discard(pipeline, &good, NULL, &err));
    const once_discard_options wrong[] = {{.size = 0},
                                          {.size = SIZE_MAX},
                                          {.size = sizeof good, .n_ids = 5, .choice = ANY},
                                          {.size = sizeof good, .choice = {.group = NOWHERE}}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        REFUSED(once_pipeline_discard(pipeline, &wrong[i], &n, &err));
}

static void resolve(void)
{
    uint64_t n;
    const once_bytes nowhere = NOWHERE, key = B("k");
    const once_resolve_options good = {.size = sizeof good, .key = &key, .choice = ANY};
    REFUSED(once_pipeline_resolve(NULL, &good, &n, &err));
    REFUSED(once_pipeline_resolve(pipeline, NULL, &n, &err));
    REFUSED(once_pipeline_resolve(pipeline, &good, NULL, &err));
    const once_resolve_options wrong[] = {{.size = 0},
                                          {.size = SIZE_MAX},
                                          {.size = sizeof good, .key = &nowhere},
                                          {.size = sizeof good, .key = &key, .outcome = (once_outcome)77},
                                          {.size = sizeof good, .key = &key, .choice = {.operation = ENDLESS}}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        REFUSED(once_pipeline_resolve(pipeline, &wrong[i], &n, &err));
}

static void forget(void)
{
    const once_bytes none = {0};
    const char *was;
    REFUSED(once_pipeline_forget(NULL, none, none, B("k"), &was, &err));
    REFUSED(once_pipeline_forget(pipeline, none, none, B("k"), NULL, &err));
    REFUSED(once_pipeline_forget(pipeline, NOWHERE, none, B("k"), &was, &err));
    REFUSED(once_pipeline_forget(pipeline, none, NOWHERE, B("k"), &was, &err));
    REFUSED(once_pipeline_forget(pipeline, none, none, ENDLESS, &was, &err));
}

static void upkeep(void)
{
    int64_t ms;
    uint64_t n;
    bool there;
    REFUSED(once_pipeline_confirm_clock(NULL, &ms, &ms, &err));
    REFUSED(once_pipeline_confirm_clock(pipeline, NULL, &ms, &err));
    REFUSED(once_pipeline_confirm_clock(pipeline, &ms, NULL, &err));
    REFUSED(once_pipeline_take_store(NULL, &there, &err));
    REFUSED(once_pipeline_take_store(pipeline, NULL, &err));
    REFUSED(once_pipeline_repair(NULL, &n, &err));
    REFUSED(once_pipeline_repair(pipeline, NULL, &err));
    REFUSED(once_pipeline_sweep(NULL, NULL, NULL, &n, &err));
    REFUSED(once_pipeline_sweep(pipeline, NULL, NULL, NULL, &err));
}

/* ---- all of them ---- */

static const struct {
    const char *function;
    void (*called_badly)(void);
} calls[] = {
    {"once_answer_name", names},
    {"once_call_extend", answers},
    {"once_character_first", first_character},
    {"once_claim", claim},
    {"once_config_reference_text", nothing}, /* has no argument that could be wrong */
    {"once_extend", extend},
    {"once_fail", failures},
    {"once_features", features},
    {"once_modules", modules},
    {"once_module_check", module_check},
    {"once_handle", handle},
    {"once_logging_start", logging},
    {"once_logging_stop", logging},
    {"once_outcome_name", names},
    {"once_parse_when", parse_when},
    {"once_pipeline_audits", lists},
    {"once_pipeline_callback", callback},
    {"once_pipeline_check", look},
    {"once_pipeline_confirm_clock", upkeep},
    {"once_pipeline_discard", discard},
    {"once_pipeline_explain", explain},
    {"once_pipeline_explain_message", explain},
    {"once_pipeline_forget", forget},
    {"once_pipeline_free", forget_pipeline},
    {"once_pipeline_has_secrets", forget_pipeline},
    {"once_pipeline_idempotency_salt", salt},
    {"once_pipeline_join", run_beside},
    {"once_pipeline_list", lists},
    {"once_pipeline_lag", lists},
    {"once_pipeline_load", load},
    {"once_pipeline_repair", upkeep},
    {"once_pipeline_replay", replay},
    {"once_pipeline_resolve", resolve},
    {"once_pipeline_run", run},
    {"once_pipeline_snapshot", run_beside},
    {"once_pipeline_status", look},
    {"once_pipeline_standing", look},
    {"once_pipeline_start", run_beside},
    {"once_pipeline_stop", forget_pipeline},
    {"once_pipeline_stored", look},
    {"once_pipeline_streams", run_beside},
    {"once_pipeline_sweep", upkeep},
    {"once_pipeline_take_store", upkeep},
    {"once_pipeline_verify", look},
    {"once_pipeline_workers", lists},
    {"once_postgres_handle", on_postgres},
    {"once_postgres_prepare", on_postgres},
    {"once_postgres_release", on_postgres},
    {"once_reason_group", reason_group},
    {"once_replay_verdict_leaves", names},
    {"once_replay_verdict_name", names},
    {"once_replay_verdict_text", names},
    {"once_reply_delay", answers},
    {"once_reply_reason", answers},
    {"once_reply_result", answers},
    {"once_settle", settle},
    {"once_sqlite_handle", on_sqlite},
    {"once_sqlite_prepare", on_sqlite},
    {"once_sqlite_release", on_sqlite},
    {"once_status_class", names},
    {"once_status_name", names},
    {"once_status_text", names},
    {"once_store_close", close_store},
    {"once_store_open", open_store},
    {"once_store_schema", schema},
    {"once_testing_failpoints", failpoints},
    {"once_ticket_release", release_tickets},
    {"once_verdict_release", release_verdict},
    {"once_version", nothing},
};
enum { CALLS = sizeof calls / sizeof *calls };

static bool is_in_table(const char *function)
{
    for (size_t i = 0; i < CALLS; i++)
        if (strcmp(calls[i].function, function) == 0) return true;
    return false;
}

static void every_exported_function_is_called_badly(void **state)
{
    (void)state;
    char line[200], function[100];
    size_t n = 0;
    FILE *file = fopen(ONCE_SOURCE_ROOT "/docs/abi.txt", "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "function %99s", function) != 1) continue;
        if (!is_in_table(function)) fail_msg("%s is not in the table of this test", function);
        n++;
    }
    (void)fclose(file);
    assert_int_equal(n, CALLS);
}

static void a_bad_call_gets_an_error(void **state)
{
    (void)state;
    for (size_t i = 0; i < CALLS; i++) {
        bool before = false;
        for (size_t j = 0; j < i; j++) before = before || calls[j].called_badly == calls[i].called_badly;
        if (!before) calls[i].called_badly();
    }
}

static int setup(void **state)
{
    (void)state;
    static char folder[] = "/tmp/once-bad-calls-XXXXXX";
    if (!mkdtemp(folder) || chdir(folder) != 0 || setenv("XDG_STATE_HOME", folder, 1) != 0) return -1;
    FILE *file = fopen("p.yaml", "w");
    if (!file) return -1;
    (void)fputs(
        "consumer: c\nstore: sqlite:s.db\nsource: {file: {path: p.json}}\nkey: \"${/id}\"\nhandler: {callback: a}\n",
        file);
    (void)fclose(file);
    *state = folder;
    return once_pipeline_load("p.yaml", NULL, NULL, &pipeline, &err) == ONCE_OK &&
                   once_store_open("memory:", NULL, &store, &err) == ONCE_OK
               ? 0
               : -1;
}

/* Nothing has made a store on the way. */
static int teardown(void **state)
{
    once_pipeline_free(pipeline);
    once_store_close(store);
    if (access("s.db", F_OK) == 0 || unlink("p.yaml") != 0) return -1;
    return chdir("/") == 0 && rmdir(*state) == 0 ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_exported_function_is_called_badly),
        cmocka_unit_test(a_bad_call_gets_an_error),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
