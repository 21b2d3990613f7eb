/* Several `once run` beside each other on one PostgreSQL store: do they help each other, or stand in each other's way?
 *
 *   a  every message inserts a row of its own
 *   b  transfers between 50 accounts, which all workers update: batches of 32
 *   c  the same, batches of 1024
 *   d  c, where the accounts are named (`locks`)
 *   e  500 lanes that all workers have messages of; 5 % fail once, and their lane waits for them
 *
 * Each with 1, 2, 4, 6 and 8 workers, which share the messages (of b and e half of those that are asked for), on a
 * store that is there already; direct, and through PgBouncer in transaction mode. A rate counts from the start of the
 * processes to the end of the last one; ratios are those to the mean of one worker just before and one just after,
 * medians over the rounds. */
#ifndef BENCH_POSTGRES_WORKERS_H
#define BENCH_POSTGRES_WORKERS_H

#include "scene.h"
#include "table.h"

/* The names of its kinds, for `--only`; "workers" means all of them. */
#define WORKERS_PARTS "workers, rows, hot_32, hot_1024, hot_named, lanes"

bool workers_wanted(const scene_asked *asked);
/* The server has been started, and the scene is open. */
void workers_measure(const scene_asked *asked, table *t);

#endif
