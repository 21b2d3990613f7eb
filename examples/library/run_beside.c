/* A pipeline that runs beside the rest of a program. The program starts it, reads its counters while it runs, asks for
 * the status of its store, stops it and joins it. The main thread only waits here; it could serve a page with these
 * numbers instead.
 *
 *     cc run_beside.c $(pkg-config --cflags --libs libonce) -o run_beside
 *     ./run_beside run_beside.yaml 6
 *
 * It ends when that many messages are acked. The file is followed, so the run does not end on its own. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <once/once.h>

/* The pipeline's threads call it. */
static once_outcome ship(void *user, const once_call *call, once_reply *reply)
{
    (void)user, (void)call;
    once_reply_result(reply, ONCE_BYTES("{\"parcel\": 1}"));
    return ONCE_DONE;
}

static once_pipeline *pipeline;
static void on_signal(int number)
{
    (void)number;
    once_pipeline_stop(pipeline); /* may be called in a signal handler, and from any thread */
}

/* The mean time of a stage, in milliseconds; a program that exports metrics would use the buckets. */
static double mean_ms(const once_timing *timing)
{
    return timing->count ? (double)timing->sum_ms / (double)timing->count : 0;
}

static void show(const char *when)
{
    once_snapshot now = {.size = sizeof now};
    once_error err;
    if (once_pipeline_snapshot(pipeline, &now, &err) != ONCE_OK) return;
    fprintf(stderr,
            "%s: %" PRIu64 " received, %" PRIu64 " done, %" PRIu64
            " here; claimed after %.1f ms, settled after %.1f ms\n",
            when, now.counts.received, now.counts.done, now.open, mean_ms(&now.timings.claim),
            mean_ms(&now.timings.settle));
}

/* Waits until so many messages are acked, or the run ends. */
static void wait_for(uint64_t acked)
{
    once_snapshot now = {.size = sizeof now};
    once_error err;
    do {
        usleep(20000);
        if (once_pipeline_snapshot(pipeline, &now, &err) != ONCE_OK) return;
    } while (now.state == ONCE_RUN_WORKING && now.counts.acked < acked);
}

static int work(uint64_t messages, once_error *err)
{
    once_summary summary;
    once_pipeline_state status;
    int rc = once_pipeline_start(pipeline, NULL, err); /* reports what is wrong with the store or the file */
    if (rc != ONCE_OK) return rc;
    wait_for(messages);
    show("so far");
    /* Uses the run's own store connection, between two of its transactions. */
    rc = once_pipeline_status(pipeline, true, &status, err);
    once_pipeline_stop(pipeline);
    const int ended = once_pipeline_join(pipeline, &summary, rc == ONCE_OK ? err : NULL);
    if (rc != ONCE_OK || ended != ONCE_OK) return rc != ONCE_OK ? rc : ended;
    show("at the end");
    printf("%" PRIu64 " received, %" PRIu64 " done, %" PRIu64 " duplicates; the store remembers %" PRIu64 "\n",
           summary.counts.received, summary.counts.done, summary.counts.duplicates, status.done);
    return ONCE_OK;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: run_beside FILE MESSAGES\n");
        return 2;
    }
    once_error err;
    int rc = once_pipeline_load(argv[1], NULL, NULL, &pipeline, &err);
    if (rc == ONCE_OK) rc = once_pipeline_callback(pipeline, "ship", ship, NULL, &err);
    if (rc == ONCE_OK) {
        signal(SIGTERM, on_signal);
        signal(SIGINT, on_signal);
        rc = work(strtoull(argv[2], NULL, 10), &err);
    }
    if (rc != ONCE_OK) fprintf(stderr, "run_beside: %s\n", err.text);
    once_pipeline_free(pipeline);
    return rc == ONCE_OK ? 0 : 1;
}
