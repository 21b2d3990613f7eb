#include "kafka/classic.h"

#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>

#include "kafka/broker.h"
#include "postgres/server.h"
#include "process.h"

#include "base/banned.h"

enum { POLL_MS = 1000 };

typedef struct classic {
    const char *database, *topic, *group;
    const payment *payments;
    uint64_t n;
    struct {
        uint64_t done;
        double rate;
    } * shared;
} classic;

static PGresult *run_prepared(PGconn *conn, const char *name, int n, const char *const *values)
{
    PGresult *result = PQexecPrepared(conn, name, n, values, NULL, NULL, 0);
    if (PQresultStatus(result) != PGRES_COMMAND_OK) bench_die(PQerrorMessage(conn));
    return result;
}

static void prepare(PGconn *conn, const char *name, const char *sql)
{
    PGresult *result = PQprepare(conn, name, sql, 0, NULL);
    if (PQresultStatus(result) != PGRES_COMMAND_OK) bench_die(PQerrorMessage(conn));
    PQclear(result);
}

static void handle(PGconn *conn, const payment *p)
{
    char id[37], order[16], amount[16];
    snprintf(id, sizeof id, "%.36s", p->id);
    snprintf(order, sizeof order, "%u", p->order_id);
    snprintf(amount, sizeof amount, "%d", p->amount);
    PQclear(run_prepared(conn, "begin", 0, NULL));
    PGresult *seen = run_prepared(conn, "see", 1, (const char *const[]){id});
    if (PQcmdTuples(seen)[0] == '1') {
        PQclear(run_prepared(conn, "pay", 3, (const char *const[]){id, order, amount}));
        PQclear(run_prepared(conn, "order", 2, (const char *const[]){order, amount}));
    }
    PQclear(seen);
    PQclear(run_prepared(conn, "commit", 0, NULL));
}

static const payment *payment_of(const classic *c, const rd_kafka_message_t *m)
{
    char number[24];
    if (m->err) bench_die(rd_kafka_message_errstr(m));
    snprintf(number, sizeof number, "%.*s", (int)m->key_len, (const char *)m->key);
    return &c->payments[strtoull(number, NULL, 10)];
}

static void consume(const classic *c, PGconn *conn, rd_kafka_t *client)
{
    double from = 0;
    for (uint64_t i = 0; i < c->n;) {
        rd_kafka_message_t *m = rd_kafka_consumer_poll(client, POLL_MS);
        if (!m) continue;
        if (i == 0) from = bench_now_s();
        handle(conn, payment_of(c, m));
        const rd_kafka_resp_err_t error = rd_kafka_commit_message(client, m, 0);
        if (error) bench_die(rd_kafka_err2str(error));
        rd_kafka_message_destroy(m);
        c->shared->done = ++i;
    }
    c->shared->rate = (double)c->n / (bench_now_s() - from);
}

static void work(void *arg)
{
    const classic *c = arg;
    PGconn *conn = server_connect(c->database);
    prepare(conn, "begin", "BEGIN");
    prepare(conn, "see", "INSERT INTO processed_messages(key) VALUES ($1) ON CONFLICT DO NOTHING");
    prepare(conn, "pay", "INSERT INTO payments(id, order_id, amount) VALUES ($1, $2, $3)");
    prepare(conn, "order", "UPDATE orders SET paid = paid + $2, last_amount = $2 WHERE id = $1");
    prepare(conn, "commit", "COMMIT");
    rd_kafka_t *client =
        broker_client(RD_KAFKA_CONSUMER,
                      (const char *const[]){"group.id", c->group, "enable.auto.commit", "false", "auto.offset.reset",
                                            "earliest", "isolation.level", "read_committed", NULL});
    rd_kafka_topic_partition_list_t *topics = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(topics, c->topic, RD_KAFKA_PARTITION_UA);
    rd_kafka_poll_set_consumer(client);
    if (rd_kafka_subscribe(client, topics)) bench_die("the classic consumer cannot subscribe");
    consume(c, conn, client);
    rd_kafka_topic_partition_list_destroy(topics);
    rd_kafka_consumer_close(client);
    rd_kafka_destroy(client);
    PQfinish(conn);
}

double classic_run(const char *database, const char *topic, const char *group, const payment *payments, uint64_t n)
{
    process_result result;
    classic c = {database, topic, group, payments, n, NULL};
    c.shared = process_share(sizeof *c.shared);
    process_run("a: a transaction and a commit per message", work, &c, &c.shared->done, n, &result);
    return c.shared->rate;
}
