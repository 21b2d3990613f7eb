/* A whole pipeline whose effect is a C function. The YAML file says where messages come from, what makes two of them
 * the same, and when to retry; the function does the work. The library claims, calls the function from several threads,
 * extends the lease, settles and acks.
 *
 *     cc pipeline_callback.c $(pkg-config --cflags --libs libonce) -o pipeline_callback
 *     ./pipeline_callback pipeline_callback.yaml
 *
 * Run it a second time: every message is a duplicate, and nothing is shipped. */
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <once/once.h>

typedef struct warehouse {
    atomic_int shipped, asked;
} warehouse;

/* Up to `workers` threads call it at the same time, each with another message. */
static once_outcome ship(void *user, const once_call *call, once_reply *reply)
{
    warehouse *w = user;
    const once_bytes body = call->delivery->body;
    atomic_fetch_add(&w->asked, 1);

    if (memmem(body.data, body.len, "\"closed\"", 8)) {
        once_reply_reason(reply, "the account is closed");
        return ONCE_REJECTED; /* remembered, not retried */
    }
    if (memmem(body.data, body.len, "\"fragile\"", 9) && call->failures == 0) {
        once_reply_reason(reply, "no packer is free");
        once_reply_delay(reply, 10);
        return ONCE_RETRY; /* waits in the store and is called again, also after a restart */
    }
    /* A real handler would send call->idempotency_key to the carrier: it is the same for every attempt. */
    atomic_fetch_add(&w->shipped, 1);
    once_reply_result(reply, ONCE_BYTES("{\"parcel\": 1}"));
    return ONCE_DONE;
}

static once_pipeline *running;
static void on_signal(int number)
{
    (void)number;
    once_pipeline_stop(running); /* finishes what is in flight, then once_pipeline_run returns */
}

static void on_mistake(void *user, const char *text)
{
    (void)user;
    fprintf(stderr, "%s\n", text);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: pipeline_callback FILE\n");
        return 2;
    }
    warehouse w = {0};
    once_error err;
    once_summary summary;
    int rc = once_pipeline_load(argv[1], on_mistake, NULL, &running, &err);
    if (rc != ONCE_OK) return 2;
    rc = once_pipeline_callback(running, "ship", ship, &w, &err);
    if (rc == ONCE_OK) {
        signal(SIGTERM, on_signal);
        signal(SIGINT, on_signal);
        rc = once_pipeline_run(running, NULL, &summary, &err);
    }
    if (rc != ONCE_OK) fprintf(stderr, "pipeline_callback: %s\n", err.text);
    else
        printf("%" PRIu64 " received: %" PRIu64 " done, %" PRIu64 " rejected, %" PRIu64
               " duplicates\n%d calls, %d shipped\n",
               summary.counts.received, summary.counts.done, summary.counts.rejected, summary.counts.duplicates,
               atomic_load(&w.asked), atomic_load(&w.shipped));
    once_pipeline_free(running);
    return rc == ONCE_OK ? 0 : 1;
}
