/* `once run` on a queue of SQS, into SQLite: payments of 300 bytes (workload.h) whose effect is one INSERT and one
 * UPDATE.
 *
 *     bench_sqs [--only rates|memory|source] [--messages N] [--rounds N] [--full] [--json] [--once PATH] [--folder DIR]
 *               [--keep]
 *
 * rates: three entrants.
 *
 *   a  bare: libcurl with as many connections as the source has, which only receives and deletes, ten at a time
 *   b  classic: receives ten; for each message one transaction with its key and its effect, then one delete. On the
 *      first CLASSIC_MESSAGES only, for its rate
 *   c  once run, atomic. Its time is that of the whole command, from its start until the queue is empty
 *
 * memory: resident memory of one worker when a third and two thirds are done, and at the end; 1 M messages with --full.
 * The queue is filled meanwhile: the server has its messages in memory.
 *
 * source: the same with `natural: true` and an effect that does not grow, so that neither the store nor the tables do.
 *
 * The server is ElasticMQ, which is the limit of a; a real SQS answers later, and takes more requests at a time.
 * Entrants run next to each other; figures are medians over the rounds, ratios the medians of the ratios of each round.
 *
 * Ends with 0 whatever the figures are, and when no server is available; 3 when something could not be measured. */
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "process.h"
#include "scene.h"
#include "sqs/queue.h"
#include "table.h"
#include "workload.h"

#include "base/banned.h"

enum {
    CLASSIC_MESSAGES = 3000,
    FILLED_MESSAGES = 10000, /* at a time, for memory */
    CONNECTIONS = 10,
    LOOK_MS = 200 /* a look costs the server much */
};

static scene_asked asked = {.messages = 30000, .full_messages = 1000000, .rounds = 3, .parts = "rates, memory, source"};
static const char *once;
static workload_sums sums;

typedef struct job {
    const char *queue, *database, *config, *messages;
    uint64_t n;
    double seconds, mib[3]; /* resident when a third and two thirds are done, and at the end */
    uint64_t progress;
} job;

static const char tables[] =
    "PRAGMA journal_mode = WAL;"
    "CREATE TABLE processed(key TEXT PRIMARY KEY) WITHOUT ROWID;"
    "CREATE TABLE payments(id TEXT PRIMARY KEY, order_id INTEGER NOT NULL, amount INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE orders(id INTEGER PRIMARY KEY, paid INTEGER NOT NULL, last_amount INTEGER CHECK (last_amount > 0));"
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)"
    "INSERT INTO orders SELECT i, 0, NULL FROM n;";

/* ---- a: bare ---- */

typedef struct receiver {
    queue_call call;
    once_json json;
    size_t got; /* of the delete that is out; 0: a receive is */
} receiver;

static void bare(void *arg)
{
    job *j = arg;
    CURLM *multi = curl_multi_init();
    receiver *all = calloc(CONNECTIONS, sizeof *all);
    if (!multi || !all) bench_die("out of memory");
    const double from = bench_now_s();
    for (int i = 0; i < CONNECTIONS; i++) {
        queue_write_receive(&all[i].call, j->queue);
        curl_multi_add_handle(multi, all[i].call.easy);
    }
    while (j->progress < j->n) {
        int running, left;
        curl_multi_perform(multi, &running);
        for (CURLMsg *m; (m = curl_multi_info_read(multi, &left));) {
            receiver *r = NULL;
            once_json_value messages[10];
            curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&r); /* its first member */
            curl_multi_remove_handle(multi, r->call.easy);
            queue_check(&r->call);
            j->progress += r->got;
            r->got = r->got ? 0 : queue_received(&r->json, &r->call, messages);
            if (r->got) {
                once_buf answer = r->call.answer; /* the handles are in it */
                once_buf_init(&r->call.answer, answer.max);
                queue_write_delete(&r->call, j->queue, &r->json, messages, r->got);
                once_buf_release(&answer);
            } else {
                queue_write_receive(&r->call, j->queue);
            }
            curl_multi_add_handle(multi, r->call.easy);
        }
        if (j->progress < j->n) curl_multi_poll(multi, NULL, 0, 100, NULL);
    }
    j->seconds = bench_now_s() - from;
}

/* ---- b: classic ---- */

static sqlite3_stmt *prepare(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *s = NULL;
    if (sqlite3_prepare_v2(db, sql, -1, &s, NULL) != SQLITE_OK) bench_die(sqlite3_errmsg(db));
    return s;
}

static void step(sqlite3 *db, sqlite3_stmt *s)
{
    if (sqlite3_step(s) != SQLITE_DONE) bench_die(sqlite3_errmsg(db));
    sqlite3_reset(s);
}

typedef struct booking {
    sqlite3 *db;
    sqlite3_stmt *begin, *commit, *key, *insert, *update;
    once_json body;
    once_arena arena;
} booking;

static void book(booking *b, const once_json *json, once_json_value message)
{
    once_bytes text, id;
    int64_t order, amount;
    once_arena_reset(&b->arena);
    if (!once_json_string(once_json_member(json, message, ONCE_BYTES("Body")), &b->arena, &text) ||
        once_json_parse(&b->body, text, NULL, NULL) != ONCE_OK)
        bench_die("a body is malformed");
    const once_json_value root = once_json_root(&b->body);
    if (!once_json_string(once_json_member(&b->body, root, ONCE_BYTES("payment_id")), &b->arena, &id) ||
        !once_json_int64(once_json_member(&b->body, root, ONCE_BYTES("order_id")), &order) ||
        !once_json_int64(once_json_member(&b->body, root, ONCE_BYTES("amount")), &amount))
        bench_die("a body lacks something");
    step(b->db, b->begin);
    sqlite3_bind_text(b->key, 1, id.data, (int)id.len, SQLITE_STATIC);
    step(b->db, b->key);
    if (sqlite3_changes(b->db)) {
        sqlite3_bind_text(b->insert, 1, id.data, (int)id.len, SQLITE_STATIC);
        sqlite3_bind_int64(b->insert, 2, order);
        sqlite3_bind_int64(b->insert, 3, amount);
        step(b->db, b->insert);
        sqlite3_bind_int64(b->update, 1, amount);
        sqlite3_bind_int64(b->update, 2, order);
        step(b->db, b->update);
    }
    step(b->db, b->commit);
}

static void classic(void *arg)
{
    job *j = arg;
    booking b = {0};
    queue_call receive = {0}, delete = {0};
    once_json json = {0};
    if (sqlite3_open(j->database, &b.db) != SQLITE_OK) bench_die("cannot open the database");
    sqlite3_exec(b.db, "PRAGMA synchronous = FULL", NULL, NULL, NULL);
    b.begin = prepare(b.db, "BEGIN IMMEDIATE");
    b.commit = prepare(b.db, "COMMIT");
    b.key = prepare(b.db, "INSERT INTO processed(key) VALUES (?1) ON CONFLICT DO NOTHING");
    b.insert = prepare(b.db, "INSERT INTO payments(id, order_id, amount) VALUES (?1, ?2, ?3)");
    b.update = prepare(b.db, "UPDATE orders SET paid = paid + ?1, last_amount = ?1 WHERE id = ?2");
    const double from = bench_now_s();
    while (j->progress < j->n) {
        once_json_value messages[10];
        queue_write_receive(&receive, j->queue);
        queue_send(&receive);
        const size_t n = queue_received(&json, &receive, messages);
        for (size_t i = 0; i < n; i++, j->progress++) {
            book(&b, &json, messages[i]);
            queue_write_delete(&delete, j->queue, &json, &messages[i], 1);
            queue_send(&delete);
        }
    }
    j->seconds = bench_now_s() - from;
    sqlite3_exec(b.db, "PRAGMA wal_checkpoint", NULL, NULL, NULL);
}

/* ---- c: once run ---- */

static int start_worker(const char *config)
{
    const pid_t parent = getpid(), pid = fork();
    if (pid < 0) bench_die_errno("cannot fork");
    if (pid > 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setenv("AWS_ACCESS_KEY_ID", "anyone", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "anything", 1);
    if (getppid() != parent || !freopen("/dev/null", "w", stdout)) _exit(126);
    execl(once, "once", "run", "--new-store", config, (char *)NULL);
    _exit(127);
}

static void run_worker(void *arg)
{
    job *j = arg;
    queue_call call = {0};
    int status = 0;
    const double from = bench_now_s();
    const int pid = start_worker(j->config);
    while (j->progress < j->n) {
        j->progress = j->n - queue_left(&call, j->queue);
        if (waitpid(pid, NULL, WNOHANG) != 0) bench_die("the worker ended");
        process_pause(LOOK_MS);
    }
    j->seconds = bench_now_s() - from;
    kill(pid, SIGTERM);
    if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        bench_die("the worker failed");
}

/* With a queue that is filled meanwhile, and never holds more than twice FILLED_MESSAGES. */
static void run_long(void *arg)
{
    job *j = arg;
    queue_call call = {0};
    int status = 0;
    FILE *from = fopen(j->messages, "re");
    if (!from) bench_die_errno("cannot read the messages");
    const int pid = start_worker(j->config);
    for (uint64_t sent = 0; j->progress < j->n; process_pause(LOOK_MS)) {
        const uint64_t left = queue_left(&call, j->queue), more = j->n - sent;
        j->progress = sent - left;
        if (waitpid(pid, NULL, WNOHANG) != 0) bench_die("the worker ended");
        for (uint64_t third = 1; third <= 3; third++)
            if (j->mib[third - 1] <= 0 && j->progress * 3 >= third * j->n)
                j->mib[third - 1] = process_resident_mib(pid);
        if (left > FILLED_MESSAGES || !more) continue;
        queue_put(&call, j->queue, from, WORKLOAD_BYTES, more < FILLED_MESSAGES ? more : FILLED_MESSAGES);
        sent += more < FILLED_MESSAGES ? more : FILLED_MESSAGES;
    }
    kill(pid, SIGTERM);
    if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        bench_die("the worker failed");
}

/* ---- all ---- */

static const char books[] =
    "sql:\n"
    "    - INSERT INTO payments(id, order_id, amount) VALUES (:payment_id, :order_id, :amount)\n"
    "    - UPDATE orders SET paid = paid + :amount, last_amount = :amount WHERE id = :order_id\n";
static const char adds_up[] =
    "natural: true\n"
    "  sql: UPDATE orders SET paid = paid + :amount, last_amount = :amount WHERE id = :order_id\n";

/* An empty database, a pipeline, and a queue with the first `filled` messages. */
static job *prepare_job(const char *messages, uint64_t filled, const char *handler)
{
    static unsigned count;
    static char name[40];
    char text[1500];
    job *j = process_share(sizeof *j);
    snprintf(name, sizeof name, "bench-%d-%u", (int)getpid(), ++count);
    *j = (job){.queue = name, .database = scene_path("sqs.db"), .config = scene_path("pipeline.yaml")};
    j->messages = messages;
    queue_fill(name, messages, WORKLOAD_BYTES, filled);
    scene_remove_database(j->database);
    scene_execute(j->database, tables);
    snprintf(text, sizeof text,
             "consumer: bench\nstore: \"sqlite:%s\"\nsource: {sqs: {queue: \"%s\", region: elasticmq, wait: 1s}}\n"
             "key: \"${/payment_id}\"\nhandler:\n  %s",
             j->database, queue_url(name), handler);
    scene_write_file(j->config, text);
    return j;
}

static double rate(const char *label, void (*work)(void *), const char *messages, uint64_t n)
{
    process_result result;
    job *j = prepare_job(messages, n, books);
    j->n = n;
    sync();
    process_run(label, work, j, &j->progress, n, &result);
    return (double)n / j->seconds;
}

static void check_sum_of(const char *database)
{
    sqlite3 *db;
    if (sqlite3_open_v2(database, &db, SQLITE_OPEN_READONLY, NULL) != SQLITE_OK) bench_die("cannot open the database");
    sqlite3_stmt *s = prepare(db, "SELECT sum(paid) FROM orders");
    if (sqlite3_step(s) != SQLITE_ROW || sqlite3_column_int64(s, 0) != sums.amount)
        bench_die("the sum of the payments is wrong");
    sqlite3_finalize(s);
    sqlite3_close(db);
}

static void add_ratio(table *t, const char *name, const char *label, double required, const double *over,
                      const double *under)
{
    row *r = table_add(t, name, label, 2);
    r->relation = 'g';
    r->required = required;
    r->value[0] = scene_median_ratio(over, under, asked.rounds);
}

static void measure_rates(const char *messages, table *t)
{
    static double of[3][SCENE_ROUNDS_MAX];
    static const char *const names[] = {"bare", "classic", "once"}, *const labels[] = {
                                                                        "a  receives and deletes, ten at a time",
                                                                        "b  a transaction and a delete per message",
                                                                        "c  once run, with its start"};
    const uint64_t few = asked.messages < CLASSIC_MESSAGES ? asked.messages : CLASSIC_MESSAGES;
    for (unsigned i = 0; i < asked.rounds; i++) {
        of[0][i] = rate("a: receive and delete", bare, messages, asked.messages);
        of[1][i] = rate("b: classic", classic, messages, few);
        of[2][i] = rate("c: once run", run_worker, messages, asked.messages);
        check_sum_of(scene_path("sqs.db"));
    }
    *t = (table){.columns = {"SQLite"}, .names = {"sqlite"}};
    for (int k = 0; k < 3; k++) table_add(t, names[k], labels[k], 0)->value[0] = scene_median(of[k], asked.rounds);
    add_ratio(t, "once_vs_bare", "c / a", 0.4, of[2], of[0]);
    add_ratio(t, "once_vs_classic", "c / b", 5, of[2], of[1]);
}

static void measure_memory(const char *messages, const char *handler, table *t)
{
    process_result result;
    job *j = prepare_job(messages, 0, handler);
    j->n = asked.messages;
    process_run("once run, for its memory", run_long, j, &j->progress, j->n, &result);
    if (handler == books) check_sum_of(j->database); /* a natural effect happens for duplicates, too */
    *t = (table){.columns = {"MiB"}, .names = {"mib"}};
    table_add(t, "third", "resident when a third is done", 1)->value[0] = j->mib[0];
    table_add(t, "two_thirds", "resident when two thirds are done", 1)->value[0] = j->mib[1];
    table_add(t, "end", "resident at the end", 1)->value[0] = j->mib[2];
}

static void show(const char *name, const table *t)
{
    if (asked.json) {
        printf(",\"%s\":{\"part\":\"%s\"", name, name);
        table_print_json(t);
        printf("}");
        return;
    }
    printf("\n%s\n", name);
    table_print(t);
}

int main(int argc, char **argv)
{
    static table t;
    scene_parse(argc, argv, &asked);
    process_prepare();
    if (!queue_start()) {
        fprintf(stderr, "bench_sqs: not measured: no ElasticMQ is available here; tools/setup bench installs it\n");
        return 0;
    }
    scene_open(&asked.scene);
    once = asked.scene.once ? asked.scene.once : strdup(scene_built("once"));
    const char *messages = scene_path("messages");
    workload_write(&(workload){.messages = asked.messages, .seed = 1}, messages, scene_path("payments"), &sums);
    if (asked.json) printf("{\"bench\":\"sqs\"");
    else
        printf("sqs: ElasticMQ, %llu messages, %u rounds; messages per second\n", (unsigned long long)asked.messages,
               asked.rounds);
    if (!asked.only || strcmp(asked.only, "rates") == 0) {
        measure_rates(messages, &t);
        show("rates", &t);
    }
    if (!asked.only || strcmp(asked.only, "memory") == 0) {
        measure_memory(messages, books, &t);
        show("memory", &t);
    }
    if (!asked.only || strcmp(asked.only, "source") == 0) {
        measure_memory(messages, adds_up, &t);
        show("source", &t);
    }
    if (asked.json) printf("}\n");
    return 0;
}
