/* A server for a measurement that a script of tests/lib starts: the script prints one line when it is up, and stops it
 * at the end of its standard input, which comes when this program ends. */
#ifndef BENCH_SERVED_H
#define BENCH_SERVED_H

#include <stdbool.h>

typedef struct served {
    char said[300]; /* the line */
} served;

/* Runs `/usr/bin/python3 ARGUMENT...` (argv[0] is a name, NULL ends them). False: the server is not available here. */
bool served_start(served *s, const char *const *argv);

#endif
