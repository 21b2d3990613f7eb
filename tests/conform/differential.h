/* Random sequences of verbs, played on the memory store and on another one: equal answers, or a report.
 *
 * Both stores get the same secret and live in equal worlds, so that tokens, times and identities are the same. Keys,
 * lanes and versions are few, so that everything meets everything. At the end all work is driven to its end: what can
 * never be taken again is a failure too. */
#ifndef ONCE_TESTS_DIFFERENTIAL_H
#define ONCE_TESTS_DIFFERENTIAL_H

#include "core/entry.h"
#include "core/plant.h"

typedef struct differential_options {
    const char *url; /* "memory:", "sqlite:" (a file in a folder of its own), "postgres:" (a schema of its own) or
                        "redis://...?name=" */
    uint64_t seed;
    unsigned steps;
    once_plant plant; /* set while the other store is called; test builds only */
} differential_options;

/* How often each answer was heard. */
typedef struct differential_counts {
    uint64_t claim[ONCE_ANSWERS], accept[ONCE_ANSWERS], take[ONCE_ANSWERS];
    uint64_t unreported, gap_over, why, result, own, left_by;
    uint64_t replaced[2];              /* by claim, by accept; with a new letter */
    uint64_t settle[ONCE_OUTCOMES][2]; /* fenced, applied */
    uint64_t natural[ONCE_ANSWERS], natural_settle[ONCE_OUTCOMES][2], natural_taken, asks,
        maybe_done[2]; /* maybe: retry, dead; applied */
    uint64_t extend[2], bury[2], forget[2];
    uint64_t replay[3]; /* not found, found, refused */
    uint64_t discard[2], drop[2], revive[2], resolve[3][2], audited;
    uint64_t repeated[5]; /* claim, accept, settle, extend, take: once more, as after a lost reply */
    uint64_t committed, rolled_back, broken, reopened, swept, jumped, rebooted, checkpoints, steps;
} differential_counts;

/* True: no difference. Otherwise `report` says what differed, with both answers and the last steps. Adds to `counts`.
 */
bool differential_run(const differential_options *options, differential_counts *counts, char *report, size_t size);

/* Prints the table; returns how many possible answers were never heard. */
int differential_print(const differential_counts *counts, bool table);

/* The program: [--seeds N] [--seed S] [--steps N] URL. Returns its exit status. */
int differential_main(int argc, char **argv);

#endif
