/* `once run` on a queue of RabbitMQ, into SQLite.
 *
 *     bench_rabbitmq [--only PART] [--messages N] [--rounds N] [--full] [--json] [--once PATH] [--folder DIR] [--keep]
 *
 * rates: payments of 300 bytes (workload.h) from a durable classic queue:
 *   a  the client library alone: receives each message and acks it; nothing is done
 *   b  the classic consumer: for each message a transaction with its key and its effect, then its ack. On the first
 *      CLASSIC_MESSAGES only, for its rate
 *   c  once run, atomic. Its time is that of the whole command, from its start until the last effect is committed
 * memory: resident memory of one worker when a third is done, and at the end; 1 M messages with --full.
 *
 * The server is started for this. Entrants run next to each other; figures are medians over the rounds, ratios the
 * medians of the ratios of each round.
 *
 * Ends with 0 whatever the figures are, and when no server is available; 3 when something could not be measured. */
#include <amqp.h>
#include <amqp_tcp_socket.h>
#include <fcntl.h>
#include <poll.h>
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
#include "served.h"
#include "table.h"
#include "workload.h"

#include "base/banned.h"

enum { CLASSIC_MESSAGES = 3000, PREFETCH = 2048, CONFIRM_EACH = 500, LOOK_MS = 10, CHANNEL = 1 };

static scene_asked asked = {.messages = 100000, .full_messages = 1000000, .rounds = 3, .parts = "rates, memory"};
static const char *once;
static char host[200];
static int port;

static const char tables[] = "PRAGMA journal_mode = WAL;"
                             "CREATE TABLE processed_messages(key TEXT PRIMARY KEY) WITHOUT ROWID;"
                             "CREATE TABLE payments(id TEXT PRIMARY KEY, order_id INTEGER, amount INTEGER);";

/* ---- the broker ---- */

static void check_reply(amqp_connection_state_t c, const char *what)
{
    if (amqp_get_rpc_reply(c).reply_type != AMQP_RESPONSE_NORMAL) bench_die(what);
}

static amqp_connection_state_t broker_open(void)
{
    amqp_connection_state_t c = amqp_new_connection();
    if (!c || amqp_socket_open(amqp_tcp_socket_new(c), host, port) != AMQP_STATUS_OK) bench_die("cannot connect");
    if (amqp_login(c, "/", 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, "guest", "guest").reply_type != AMQP_RESPONSE_NORMAL)
        bench_die("cannot log in");
    amqp_channel_open(c, CHANNEL);
    check_reply(c, "cannot open a channel");
    return c;
}

static void broker_close(amqp_connection_state_t c)
{
    (void)amqp_connection_close(c, AMQP_REPLY_SUCCESS);
    amqp_destroy_connection(c);
}

static void await_confirm(amqp_connection_state_t c, uint64_t upto)
{
    for (uint64_t tag = 0; tag < upto;) {
        amqp_frame_t frame;
        if (amqp_simple_wait_frame(c, &frame) != AMQP_STATUS_OK || frame.frame_type != AMQP_FRAME_METHOD ||
            frame.payload.method.id != AMQP_BASIC_ACK_METHOD)
            bench_die("a message was not confirmed");
        tag = ((amqp_basic_ack_t *)frame.payload.method.decoded)->delivery_tag;
        amqp_maybe_release_buffers(c);
    }
}

typedef struct job {
    const char *queue, *label;
    uint64_t n;
    const payment *list;
    workload_sums sums;
    volatile uint64_t *done; /* shared */
    double *rate, *third_mib, *end_mib;
} job;

/* A queue of this name with the first `n` messages, on disk. */
static void fill(void *arg)
{
    const job *j = arg;
    char body[WORKLOAD_BYTES];
    amqp_connection_state_t c = broker_open();
    const amqp_basic_properties_t properties = {._flags = AMQP_BASIC_DELIVERY_MODE_FLAG, .delivery_mode = 2};
    FILE *from = fopen(scene_path("messages"), "re");
    if (!from) bench_die_errno("cannot open the messages");
    amqp_queue_delete(c, CHANNEL, amqp_cstring_bytes(j->queue), 0, 0);
    amqp_queue_declare(c, CHANNEL, amqp_cstring_bytes(j->queue), 0, 1, 0, 0, amqp_empty_table);
    amqp_confirm_select(c, CHANNEL);
    check_reply(c, "cannot make the queue");
    for (uint64_t i = 0; i < j->n; i++) {
        if (fread(body, WORKLOAD_BYTES, 1, from) != 1 || fgetc(from) != '\n') bench_die("cannot read the messages");
        if (amqp_basic_publish(c, CHANNEL, amqp_empty_bytes, amqp_cstring_bytes(j->queue), 0, 0, &properties,
                               (amqp_bytes_t){.len = sizeof body, .bytes = body}) != AMQP_STATUS_OK)
            bench_die("cannot publish");
        if ((i + 1) % CONFIRM_EACH == 0 || i + 1 == j->n) await_confirm(c, i + 1);
        *j->done = i + 1;
    }
    fclose(from);
    broker_close(c);
}

static void consume(amqp_connection_state_t c, const char *queue)
{
    amqp_basic_qos(c, CHANNEL, 0, PREFETCH, 0);
    amqp_basic_consume(c, CHANNEL, amqp_cstring_bytes(queue), amqp_empty_bytes, 0, 0, 0, amqp_empty_table);
    check_reply(c, "cannot consume");
}

static uint64_t receive(amqp_connection_state_t c)
{
    amqp_envelope_t envelope;
    amqp_maybe_release_buffers(c);
    if (amqp_consume_message(c, &envelope, NULL, 0).reply_type != AMQP_RESPONSE_NORMAL) bench_die("cannot receive");
    const uint64_t tag = envelope.delivery_tag;
    amqp_destroy_envelope(&envelope);
    return tag;
}

static uint32_t ready(const char *queue)
{
    amqp_connection_state_t c = broker_open();
    const amqp_queue_declare_ok_t *ok =
        amqp_queue_declare(c, CHANNEL, amqp_cstring_bytes(queue), 1, 0, 0, 0, amqp_empty_table);
    check_reply(c, "cannot look at the queue");
    const uint32_t n = ok->message_count;
    broker_close(c);
    return n;
}

/* ---- entrants ---- */

static void run_bare(void *arg)
{
    const job *j = arg;
    amqp_connection_state_t c = broker_open();
    const double from = bench_now_s();
    consume(c, j->queue);
    for (uint64_t i = 0; i < j->n; i++, *j->done = i)
        if (amqp_basic_ack(c, CHANNEL, receive(c), 0) != AMQP_STATUS_OK) bench_die("cannot ack");
    *j->rate = (double)j->n / (bench_now_s() - from);
    broker_close(c);
}

static void say(sqlite3 *db, const char *sql)
{
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK) bench_die(sqlite3_errmsg(db));
}

static sqlite3_stmt *prepare(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *s;
    if (sqlite3_prepare_v2(db, sql, -1, &s, NULL) != SQLITE_OK) bench_die(sqlite3_errmsg(db));
    return s;
}

static void step(sqlite3 *db, sqlite3_stmt *s)
{
    if (sqlite3_step(s) != SQLITE_DONE) bench_die(sqlite3_errmsg(db));
    sqlite3_reset(s);
}

static void run_classic(void *arg)
{
    const job *j = arg;
    sqlite3 *db;
    amqp_connection_state_t c = broker_open();
    if (sqlite3_open(scene_path("classic.db"), &db) != SQLITE_OK) bench_die("cannot open the database");
    say(db, "PRAGMA synchronous = FULL");
    sqlite3_stmt *key = prepare(db, "INSERT OR IGNORE INTO processed_messages VALUES (?)"),
                 *effect = prepare(db, "INSERT INTO payments VALUES (?, ?, ?)");
    const double from = bench_now_s();
    consume(c, j->queue);
    for (uint64_t i = 0; i < j->n; i++, *j->done = i) {
        const uint64_t tag = receive(c);
        const payment *p = &j->list[i];
        say(db, "BEGIN IMMEDIATE");
        sqlite3_bind_text(key, 1, p->id, sizeof p->id, SQLITE_STATIC);
        step(db, key);
        if (sqlite3_changes(db)) {
            sqlite3_bind_text(effect, 1, p->id, sizeof p->id, SQLITE_STATIC);
            sqlite3_bind_int64(effect, 2, p->order_id);
            sqlite3_bind_int64(effect, 3, p->amount);
            step(db, effect);
        }
        say(db, "COMMIT");
        if (amqp_basic_ack(c, CHANNEL, tag, 0) != AMQP_STATUS_OK) bench_die("cannot ack");
    }
    *j->rate = (double)j->n / (bench_now_s() - from);
    sqlite3_finalize(key);
    sqlite3_finalize(effect);
    sqlite3_close(db);
    broker_close(c);
}

static pid_t start_once(const char *log)
{
    const pid_t parent = getpid(), pid = fork();
    if (pid < 0) bench_die_errno("cannot fork");
    if (pid > 0) return pid;
    const int to = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || to < 0 || dup2(to, 1) < 0 || dup2(to, 2) < 0) _exit(126);
    execl(once, "once", "run", "--json", "--new-store", scene_path("pipeline.yaml"), (char *)NULL);
    _exit(127);
}

/* How many payments are committed, as another connection sees them. */
static uint64_t committed(sqlite3_stmt *last)
{
    const uint64_t n = sqlite3_step(last) == SQLITE_ROW ? (uint64_t)sqlite3_column_int64(last, 0) : 0;
    sqlite3_reset(last);
    return n;
}

static void run_once(void *arg)
{
    const job *j = arg;
    sqlite3 *db;
    int status;
    const char *log = scene_path("once.log");
    if (sqlite3_open(scene_path("once.db"), &db) != SQLITE_OK) bench_die("cannot open the database");
    sqlite3_busy_timeout(db, 10000);
    sqlite3_stmt *last = prepare(db, "SELECT max(rowid) FROM payments");
    const double from = bench_now_s();
    const pid_t pid = start_once(log);
    for (uint64_t n = 0; n < j->sums.keys; poll(NULL, 0, LOOK_MS)) {
        n = committed(last);
        *j->done = n;
        if (*j->third_mib <= 0 && n * 3 >= j->sums.keys) *j->third_mib = process_resident_mib(pid);
        if (waitpid(pid, NULL, WNOHANG) != 0) bench_die("once ended; its log is once.log in the folder (--keep)");
    }
    *j->rate = (double)j->n / (bench_now_s() - from);
    *j->end_mib = process_resident_mib(pid);
    sqlite3_finalize(last);
    sqlite3_close(db);
    kill(pid, SIGTERM);
    if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0) bench_die("once failed");
}

/* ---- measuring ---- */

static void make_database(const char *name)
{
    scene_remove_database(scene_path(name));
    scene_execute(scene_path(name), tables);
}

static void work(job *j, const char *label, void (*entrant)(void *), uint64_t n)
{
    process_result result;
    j->n = n;
    *j->done = 0;
    process_run("filling the queue", fill, j, j->done, n, &result);
    *j->done = 0;
    *j->third_mib = *j->end_mib = 0;
    sync(); /* what went before is not to be paid by what comes now */
    process_run(label, entrant, j, j->done, n, &result);
}

static void work_once(job *j, uint64_t n)
{
    char text[1000];
    make_database("once.db");
    snprintf(text, sizeof text,
             "consumer: bench\nstore: \"sqlite:%s\"\nsource: {rabbitmq: {url: \"amqp://%s:%d\", queue: %s}}\n"
             "key: \"${/payment_id}\"\nhandler:\n"
             "  sql: INSERT INTO payments(id, order_id, amount) VALUES (:payment_id, :order_id, :amount)\n",
             scene_path("once.db"), host, port, j->queue);
    scene_write_file(scene_path("pipeline.yaml"), text);
    work(j, "c: once run", run_once, n);
    if (ready(j->queue) != 0) bench_die("not everything was acked");
}

static void add_rate(table *t, const double *of, const char *name, const char *label)
{
    table_add(t, name, label, 0)->value[0] = scene_median(of, asked.rounds);
}

static void add_ratio(table *t, const double *over, const double *under, double required, const char *name,
                      const char *label)
{
    row *r = table_add(t, name, label, 2);
    r->relation = 'g';
    r->required = required;
    r->value[0] = scene_median_ratio(over, under, asked.rounds);
}

static void measure_rates(job *j, table *t)
{
    double bare[SCENE_ROUNDS_MAX], classic[SCENE_ROUNDS_MAX], ours[SCENE_ROUNDS_MAX];
    const uint64_t all = asked.messages, few = all < CLASSIC_MESSAGES ? all : CLASSIC_MESSAGES;
    for (unsigned round = 0; round < asked.rounds; round++) {
        work(j, "a: the library alone", run_bare, all);
        bare[round] = *j->rate;
        make_database("classic.db");
        work(j, "b: classic", run_classic, few);
        classic[round] = *j->rate;
        work_once(j, all);
        ours[round] = *j->rate;
    }
    *t = (table){.columns = {"SQLite"}, .names = {"sqlite"}};
    add_rate(t, bare, "bare", "a  librabbitmq alone, an ack per message");
    add_rate(t, classic, "classic", "b  a transaction and an ack per message");
    add_rate(t, ours, "once", "c  once run, with its start");
    add_ratio(t, ours, bare, 0.4, "once_vs_bare", "c / a");
    add_ratio(t, ours, classic, 5, "once_vs_classic", "c / b");
}

static void measure_memory(job *j, table *t)
{
    work_once(j, asked.messages);
    *t = (table){.columns = {"MiB"}, .names = {"mib"}};
    table_add(t, "third", "resident when a third is done", 1)->value[0] = *j->third_mib;
    table_add(t, "end", "resident at the end", 1)->value[0] = *j->end_mib;
}

static void show(const char *name, table *t)
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
    served server;
    table t;
    scene_parse(argc, argv, &asked);
    scene_open(&asked.scene);
    process_prepare();
    once = asked.scene.once ? asked.scene.once : strdup(scene_built("once"));
    if (!served_start(&server,
                      (const char *const[]){"python3", ONCE_SOURCE_ROOT "/tests/lib/rabbitmq.py", "serve", NULL}) ||
        sscanf(server.said, "%199[^:]:%d", host, &port) != 2) {
        fprintf(stderr, "bench_rabbitmq: no RabbitMQ server is available; tools/setup check installs one\n");
        return 0;
    }
    double *figures = process_share(3 * sizeof *figures);
    job j = {.queue = "bench",
             .done = process_share(sizeof(uint64_t)),
             .rate = &figures[0],
             .third_mib = &figures[1],
             .end_mib = &figures[2]};
    uint64_t n;
    workload_write(&(workload){.messages = asked.messages, .seed = 1}, scene_path("messages"), scene_path("payments"),
                   &j.sums);
    j.list = workload_map(scene_path("payments"), &n);
    if (asked.json) printf("{\"messages\":%llu", (unsigned long long)asked.messages);
    else
        printf("rabbitmq: a classic queue, %llu messages, %u rounds; messages per second\n",
               (unsigned long long)asked.messages, asked.rounds);
    if (!asked.only || strcmp(asked.only, "rates") == 0) {
        measure_rates(&j, &t);
        show("rates", &t);
    }
    if (!asked.only || strcmp(asked.only, "memory") == 0) {
        measure_memory(&j, &t);
        show("memory", &t);
    }
    if (asked.json) printf("}\n");
    return 0;
}
