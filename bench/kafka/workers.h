/* `once run` on a topic, which does not end by itself: workers are started, watched from outside until their group has
 * committed the offset of every message, and stopped. */
#ifndef BENCH_KAFKA_WORKERS_H
#define BENCH_KAFKA_WORKERS_H

#include <stdint.h>

#define WORKERS_MAX 2

typedef struct workers_job {
    const char *label, *once;
    const char *config; /* the pipeline file, for all of them */
    const char *topic, *group;
    uint64_t messages;
    unsigned workers;
} workers_job;

typedef struct workers_result {
    double seconds;    /* from the start of the first process until everything was committed */
    double late_rate;  /* messages per second after the first quarter, when every worker has its partitions */
    double third_mib;  /* resident memory of the first worker when a third was committed */
    double end_mib;    /* and at the end */
    uint64_t progress; /* messages that were committed */
} workers_result;

void workers_run(const workers_job *job, workers_result *result);

/* --- in a child, for those who do other things while a worker runs --- */

/* Starts `once run`; it ends with the process that started it. Its log is in `log`. */
int workers_start(const char *once, const char *config, const char *log);
void workers_stop(int pid, const char *log);  /* ends the process unless it ends with 0 */
void workers_alive(int pid, const char *log); /* ends the process unless it still runs */

#endif
