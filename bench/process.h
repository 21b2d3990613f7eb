/* Work in processes of its own, so that each starts with fresh memory and its peak can be told; and the clock.
 *
 * The program itself stays small: what the kernel calls the peak of a child begins with the size of its parent. */
#ifndef BENCH_PROCESS_H
#define BENCH_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void bench_die(const char *what) __attribute__((noreturn));
void bench_die_errno(const char *what) __attribute__((noreturn));
double bench_now_s(void);
int64_t bench_wall_ms(void);

#define GROWTH_POINTS 64 /* of a million messages each */

/* How a process went. */
typedef struct process_result {
    int status;     /* exit status; 128 + n: signal n */
    double seconds; /* from start to end, as seen from outside */
    double user_s, system_s;
    long peak_kib;
    unsigned points;               /* millions that were seen to pass */
    double point_s[GROWTH_POINTS]; /* when each one had passed */
} process_result;

/* From now on a signal that asks us to end kills the child at work and lets exit handlers run. */
void process_prepare(void);
/* For those who wait without one: ends the program if such a signal came. */
void process_pause(int ms);

double process_resident_mib(int pid); /* what another process has in memory now */

/* Memory that a child shares with its parent; zeroed. */
void *process_share(size_t size);

/* Runs work(arg) in a child, and shows `done` of `total` on a terminal meanwhile. Ends the program if the child fails.
 */
void process_run(const char *label, void (*work)(void *arg), void *arg, const volatile uint64_t *done, uint64_t total,
                 process_result *result);

/* Runs a command; its standard output goes to a file, and its log to one beside it, as a service's would: a line for
 * each dead letter on somebody's terminal is no part of what is measured. How far it has come is how far it has read
 * `watched`, in units of `unit` bytes; NULL: not known. */
void process_exec(const char *label, char *const argv[], const char *stdout_path, const char *watched, uint64_t unit,
                  uint64_t total, process_result *result);
/* The end of the log of what was run last, on standard error. */
void process_show_log(const char *stdout_path);

#endif
