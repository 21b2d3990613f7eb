/* Commands as effects: a process for each message against a process that is kept, and how close that comes to the rate
 * of the store alone.
 *
 *     bench_exec [--messages N] [--full] [--rounds N] [--json] [--once PATH] [--folder DIR] [--keep]
 *
 *   a  `exec`, a Python process for each message (on a two-hundredth of the messages, for its rate)
 *   b  `mode: stream`, the same logic in one Python process that is kept
 *   c  `mode: stream`, a handler in C that only says "done" (handlers/echo.c)
 *   d  the store alone: claim a batch, settle it, each in a durable transaction of its own, without source, JSON and
 *      handler
 *
 * Windows and batches are of 1024 messages, there is one handler process, and the store is sqlite with
 * synchronous=FULL. Entrants take turns; figures are medians over the rounds, and ratios medians of the ratios of each
 * round. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scene.h"
#include "store/store.h"
#include "table.h"

#include "base/banned.h"

enum { A_PROCESS, B_PYTHON, C_ECHO, D_STORE, ENTRANTS };

#define BATCH 1024
#define PROCESS_SHARE 200 /* a gets one message in so many */

static scene_asked opt = {.messages = 100000, .full_messages = 1000000, .rounds = 3};

static const char each_py[] = "import json, sys\n"
                              "message = json.load(sys.stdin)\n"
                              "sys.exit(0 if message['amount'] >= 0 else 1)\n";
static const char stream_py[] =
    "import json, os\n"
    "left = b''\n"
    "while chunk := os.read(0, 1 << 18):\n"
    "    *lines, left = (left + chunk).split(b'\\n')\n"
    "    replies = []\n"
    "    for line in lines:\n"
    "        message = json.loads(line)\n"
    "        outcome = 'done' if message['body']['amount'] >= 0 else 'dead'\n"
    "        replies.append('{\"id\":\"%s\",\"outcome\":\"%s\"}\\n' % (message['id'], outcome))\n"
    "    out = ''.join(replies).encode()\n"
    "    while out:\n"
    "        out = out[os.write(1, out):]\n";

static uint64_t messages_of(int entrant)
{
    return entrant == A_PROCESS ? (opt.messages + PROCESS_SHARE - 1) / PROCESS_SHARE : opt.messages;
}

/* All different, and in no order. */
static void write_key(uint64_t i, char out[33])
{
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)((i + 1) * 0x9e3779b97f4a7c15u),
             (unsigned long long)(i * 0xbf58476d1ce4e5b9u));
}

static void write_messages(void *arg)
{
    const uint64_t n = *(const uint64_t *)arg;
    FILE *to = fopen(scene_path("messages"), "we");
    char key[33];
    if (!to) bench_die_errno("cannot write messages");
    for (uint64_t i = 0; i < n; i++) {
        write_key(i, key);
        fprintf(to, "{\"id\":\"%s\",\"amount\":%llu,\"currency\":\"EUR\",\"method\":\"card\",\"note\":\"%0180llu\"}\n",
                key, (unsigned long long)(i % 1000), (unsigned long long)i);
    }
    if (fclose(to) != 0) bench_die_errno("cannot write messages");
}

/* ---- a, b, c: once run ---- */

static void write_config(int entrant)
{
    char text[6 * PATH_MAX], effect[3 * PATH_MAX];
    if (entrant == C_ECHO) snprintf(effect, sizeof effect, "\"%s\"", scene_built("bench/echo_handler"));
    else snprintf(effect, sizeof effect, "python3, \"%s\"", scene_path(entrant == A_PROCESS ? "each.py" : "stream.py"));
    snprintf(text, sizeof text,
             "consumer: payments\n"
             "store: \"sqlite:%s\"\n"
             "source: {file: {path: \"%s\"}}\n"
             "key: \"${/id}\"\n"
             "handler: {exec: [%s]%s}\n",
             scene_path("exec.db"), scene_path("messages"), effect,
             entrant == A_PROCESS ? "" : ", mode: stream, window: 1024");
    scene_write_file(scene_path("pipeline.yaml"), text);
}

static double run_once(int entrant)
{
    static const char *const labels[] = {"a: process each", "b: stream, Python", "c: stream, C"};
    process_result result;
    uint64_t n = messages_of(entrant);
    const char *const arguments[] = {"run", "--json", scene_path("pipeline.yaml"), NULL};
    process_run("writing messages", write_messages, &n, NULL, 0, &result);
    write_config(entrant);
    scene_once(labels[entrant], arguments, 0, NULL, 0, n, &result);
    if (scene_said("/done") != (int64_t)n) bench_die("not every message is done");
    return (double)n / result.seconds;
}

/* ---- d: the store alone ---- */

typedef struct store_job {
    char url[PATH_MAX + 64];
    volatile uint64_t done;
    double seconds;
} store_job;

typedef struct batch {
    char keys[BATCH][33];
    once_request requests[BATCH];
    const once_request *pointers[BATCH];
    once_decision decisions[BATCH];
    once_settlement settlements[BATCH];
    bool applied[BATCH];
} batch;

static const once_scope scope = {.consumer = {"payments", 8}, .operation = {"handler", 7}};

static void fill(batch *b, const once_backend *store, uint64_t from, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        write_key(from + i, b->keys[i]);
        b->requests[i] = (once_request){
            .scope = &scope,
            .key = {b->keys[i], 32},
            .fingerprint = {from + i + 1, 1},
            .token = {1, from + i + 1},
            .lease_ms = 30000,
            .remember_ms = 7 * 24 * 3600 * INT64_C(1000),
            .sent_ms = ONCE_NO_TIME,
            .run = 1,
            .at = {ONCE_BYTES("messages"), {b->keys[i], 8}},
        };
        b->requests[i].id = once_key_id(store->secret, &scope, b->requests[i].key);
        b->pointers[i] = &b->requests[i];
        b->settlements[i] = (once_settlement){.request = &b->requests[i], .outcome = ONCE_DONE};
    }
}

static void check(int rc, const once_error *err)
{
    if (rc != ONCE_OK) bench_die(err->text);
}

static void claim_and_settle(void *arg)
{
    store_job *j = arg;
    once_error err = {0};
    once_arena arena = {0};
    once_backend *store;
    batch *b = calloc(1, sizeof *b);
    const once_store_options options = {.size = sizeof options, .create = true};
    if (!b) bench_die("out of memory");
    const double begun = bench_now_s();
    check(once__store_open(j->url, &options, &store, &err), &err);
    while (j->done < opt.messages) {
        const size_t n = opt.messages - j->done < BATCH ? opt.messages - j->done : BATCH;
        once_arena_reset(&arena);
        fill(b, store, j->done, n);
        check(store->ops->claim(store, b->pointers, n, b->decisions, &arena, &err), &err);
        check(store->ops->settle(store, b->settlements, n, b->applied, &err), &err);
        for (size_t i = 0; i < n; i++)
            if (b->decisions[i].answer != ONCE_ANSWER_RUN || !b->applied[i]) bench_die("the store refused a claim");
        j->done += n;
    }
    once__store_close(store);
    j->seconds = bench_now_s() - begun;
    once_arena_release(&arena);
    free(b);
}

static double run_store(void)
{
    process_result result;
    store_job *j = process_share(sizeof *j);
    snprintf(j->url, sizeof j->url, "sqlite:%s", scene_path("exec.db"));
    process_run("d: the store alone", claim_and_settle, j, &j->done, opt.messages, &result);
    return (double)opt.messages / j->seconds;
}

/* ---- figures ---- */

static void add_ratio(table *t, double rate[ENTRANTS][SCENE_ROUNDS_MAX], int over, int under, double at_least,
                      const char *name, const char *label)
{
    row *r = table_add(t, name, label, 2);
    r->relation = 'g';
    r->required = at_least;
    r->value[0] = scene_median_ratio(rate[over], rate[under], opt.rounds);
}

int main(int argc, char **argv)
{
    static double rate[ENTRANTS][SCENE_ROUNDS_MAX];
    static table results = {.columns = {"rate"}, .names = {"rate"}};
    static const char *const names[] = {"process", "stream_python", "stream_c", "store"};
    static const char *const texts[] = {"a  a Python process for each message", "b  a stream to one Python process",
                                        "c  a stream to one process in C", "d  claim and settle, the store alone"};
    char count[32];
    scene_parse(argc, argv, &opt);
    scene_open(&opt.scene);
    scene_write_file(scene_path("each.py"), each_py);
    scene_write_file(scene_path("stream.py"), stream_py);
    for (unsigned round = 0; round < opt.rounds; round++)
        for (int entrant = 0; entrant < ENTRANTS; entrant++) {
            scene_remove_database(scene_path("exec.db"));
            rate[entrant][round] = entrant == D_STORE ? run_store() : run_once(entrant);
        }
    for (int entrant = 0; entrant < ENTRANTS; entrant++)
        table_add(&results, names[entrant], texts[entrant], 0)->value[0] = scene_median(rate[entrant], opt.rounds);
    add_ratio(&results, rate, B_PYTHON, A_PROCESS, 100, "stream_vs_process", "b / a");
    add_ratio(&results, rate, C_ECHO, D_STORE, 0.5, "stream_vs_store", "c / d");
    if (opt.json) {
        printf("{\"messages\":%llu,\"rounds\":%u", (unsigned long long)opt.messages, opt.rounds);
        table_print_json(&results);
        printf("}\n");
        return 0;
    }
    printf("\nexec: %s messages of about 300 bytes, windows and batches of %d; medians of %u interleaved rounds; "
           "messages per second\n\n",
           table_number((double)opt.messages, 0, count), BATCH, opt.rounds);
    table_print(&results);
    return 0;
}
