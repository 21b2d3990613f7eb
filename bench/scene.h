/* Where a measurement takes place: a temporary folder, the `once` command, and what the command says at its end. */
#ifndef BENCH_SCENE_H
#define BENCH_SCENE_H

#include <stdbool.h>
#include <stdint.h>

#include "process.h"

typedef struct scene_options {
    const char *once;   /* NULL: the one of this build */
    const char *folder; /* where the temporary folder is made; NULL: TMPDIR, or /tmp */
    bool keep;          /* leave the folder */
} scene_options;

/* The command line of a program that has no other options than these: --messages N, --rounds N, --full, --json and
 * those of the scene; and --only where it has `parts`. `messages` and `rounds` come with what is usual. Ends the
 * program when it is wrong, or asks for help. */
typedef struct scene_asked {
    uint64_t messages, full_messages; /* --full: that many instead */
    unsigned rounds;
    bool json;
    const char *parts; /* of the program, as --only may name them: "a, b"; NULL: it has none */
    const char *only;  /* NULL: all of them */
    scene_options scene;
} scene_asked;
void scene_parse(int argc, char **argv, scene_asked *asked);

/* Makes the folder, which is removed when the program ends, and finds the command. Once in a program. */
void scene_open(const scene_options *options);

const char *scene_path(const char *name); /* in the folder; good until the program ends */
const char *
scene_built(const char *name); /* a program of this build, by its path in the build folder; good until the next one */
uint64_t scene_size(const char *path);
void scene_remove_database(const char *path); /* an SQLite file and what lies beside it */
void scene_copy_file(const char *from, const char *to);
void scene_write_file(const char *path, const char *text);
void scene_execute(const char *database,
                   const char *sql); /* in a process of its own; makes the database if it is missing */

/* Runs `once ARGUMENT...` (NULL ends them) after the disk was flushed; ends the program unless it ends with `status`.
 * `watched`: as for process_exec. */
void scene_once(const char *label, const char *const *arguments, int status, const char *watched, uint64_t unit,
                uint64_t total, process_result *result);
/* A number at this JSON pointer in what the last command said (with --json); -1: none. */
int64_t scene_said(const char *pointer);

#define SCENE_ROUNDS_MAX 15
double scene_median(const double *values, unsigned n);
double scene_median_ratio(const double *over, const double *under, unsigned n);

#endif
