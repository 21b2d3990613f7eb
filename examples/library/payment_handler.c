/* A consumer that charges cards through an external gateway: once_handle around its own handler.
 *
 *     cc payment_handler.c $(pkg-config --cflags --libs libonce) -o payment_handler
 *     ./payment_handler sqlite:payments.db
 *
 * The broker here is an array that delivers as brokers do: some messages twice, one under a key that was used for
 * another payment, and messages that were not acked again. Run it a second time: every payment is a duplicate, and no
 * card is charged. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <once/once.h>

/* ---- the gateway: fails at the first attempt at p3, and counts its charges ---- */

typedef struct gateway {
    int charges;
} gateway;

/* The handler. It is called only for the delivery that may have the effect. */
static once_outcome charge_card(void *user, const once_call *call, once_reply *reply)
{
    gateway *g = user;
    const once_bytes id = call->delivery->key;

    /* A real handler would send call->idempotency_key to the gateway: it is the same for every attempt at this key, so
     * even a repeat after a crash is one charge. */
    if (id.len == 2 && memcmp(id.data, "p3", 2) == 0 && call->failures == 0) {
        once_reply_reason(reply, "gateway answered 503");
        return ONCE_RETRY; /* counted as a failure, and tried again after a backoff; after 12 failures a dead letter */
    }
    if (strlen(call->idempotency_key) != 32) return ONCE_DEAD;

    char receipt[64];
    const int len = snprintf(receipt, sizeof receipt, "{\"receipt\": \"r-%.*s\"}", (int)id.len, id.data);
    g->charges++;
    once_reply_result(reply, (once_bytes){receipt, (size_t)len}); /* every duplicate of this message gets it */
    return ONCE_DONE;
}

/* ---- the broker ---- */

typedef struct message {
    const char *id, *body;
    int acked;
} message;

static message queue[] = {
    {"p1", "{\"card\": \"ann\", \"cents\": 1200}", 0}, {"p2", "{\"card\": \"bob\", \"cents\": 350}", 0},
    {"p1", "{\"cents\": 1200, \"card\": \"ann\"}", 0}, /* the same payment again, written in another order */
    {"p2", "{\"card\": \"bob\", \"cents\": 999}", 0},  /* the same id, another payment */
    {"p3", "{\"card\": \"cyd\", \"cents\": 50}", 0},   /* fails at first */
};
enum { MESSAGES = sizeof queue / sizeof *queue };

/* One delivery. Returns how long to wait before this message is delivered again, or -1 if it is acked. */
static int64_t deliver(once_store *store, gateway *g, message *m)
{
    const once_scope scope = {.consumer = ONCE_BYTES("payments"), .operation = ONCE_BYTES("charge")};
    const once_terms terms = {.size = sizeof terms, .backoff_min_ms = 20, .backoff_max_ms = 100};
    const once_delivery delivery = {.size = sizeof delivery,
                                    .key = {m->id, strlen(m->id)},
                                    .body = {m->body, strlen(m->body)},
                                    .place = ONCE_BYTES("queue"), /* for `once explain` and dead letters */
                                    .point = {m->id, strlen(m->id)},
                                    .terms = &terms};
    once_verdict verdict;
    once_error err;
    const int rc = once_handle(store, &scope, &delivery, charge_card, g, &verdict, &err);
    if (rc != ONCE_OK) { /* not settled: the broker keeps it */
        fprintf(stderr, "%s: %s\n", m->id, err.text);
        return once_status_class(rc) == ONCE_CLASS_RETRY ? 100 : -1;
    }
    /* A message that only waits for its next attempt is not printed again. */
    if (verdict.answer != ONCE_ANSWER_LATER)
        printf("%s: %s, %s%s%.*s\n", m->id, once_answer_name(verdict.answer), once_outcome_name(verdict.outcome),
               verdict.was_duplicate ? " before: "
               : verdict.result.len  ? ": "
                                     : "",
               (int)verdict.result.len, verdict.result.len ? verdict.result.data : "");
    m->acked = verdict.ack;
    const int64_t wait_ms = verdict.ack ? -1 : verdict.wait_ms;
    once_verdict_release(&verdict);
    return wait_ms;
}

int main(int argc, char **argv)
{
    once_store *store;
    once_error err;
    gateway g = {0};
    if (once_store_open(argc > 1 ? argv[1] : "memory:", NULL, &store, &err) != ONCE_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    int left = MESSAGES;
    for (int round = 0; left > 0 && round < 100; round++) {
        int64_t wait_ms = 0;
        left = 0;
        for (int i = 0; i < MESSAGES; i++) {
            if (queue[i].acked) continue;
            const int64_t again_ms = deliver(store, &g, &queue[i]);
            if (!queue[i].acked) left++;
            if (again_ms > wait_ms) wait_ms = again_ms;
        }
        if (left > 0) usleep((useconds_t)(wait_ms + 1) * 1000);
    }
    printf("%d charges\n", g.charges);
    once_store_close(store);
    return left ? 1 : 0;
}
