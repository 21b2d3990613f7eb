#include "scene.h"

#include <assert.h>
#include <fcntl.h>
#include <ftw.h>
#include <getopt.h>
#include <limits.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/json.h"

#include "base/banned.h"

#define ARGUMENTS_MAX 16
#define PATHS_MAX 32

static scene_options opt;
static char folder[PATH_MAX], build[PATH_MAX], command[2 * PATH_MAX];
static pid_t owner;

/* ---- the command line ---- */

static __attribute__((noreturn)) void usage(const char *program, const scene_asked *usual, int status)
{
    fprintf(status ? stderr : stdout,
            "usage: %s [OPTION...]\n"
            "  --messages N   messages of a run (%llu)\n"
            "  --full         %llu of them\n"
            "  --rounds N     rounds, at most %d (%u)\n"
            "  --json         one object on standard output instead of the table\n"
            "  --once PATH    the command to measure (the one of this build)\n"
            "  --folder DIR   where the temporary folder is made (TMPDIR, or /tmp)\n"
            "  --keep         leave that folder\n"
            "%s%s%s",
            program, (unsigned long long)usual->messages, (unsigned long long)usual->full_messages, SCENE_ROUNDS_MAX,
            usual->rounds, usual->parts ? "  --only PART    one part of it: " : "", usual->parts ? usual->parts : "",
            usual->parts ? "\n" : "");
    exit(status);
}

static bool is_part(const char *parts, const char *name)
{
    const size_t len = strlen(name);
    for (const char *at = parts; *at; at += strcspn(at, " "), at += *at == ' ')
        if (strncmp(at, name, len) == 0 && len > 0 && (at[len] == ',' || !at[len])) return true;
    return false;
}

void scene_parse(int argc, char **argv, scene_asked *asked)
{
    enum { MESSAGES = 256, ROUNDS, FULL, JSON, ONCE, FOLDER, KEEP, ONLY, HELP };
    static const struct option known[] = {
        {"messages", required_argument, NULL, MESSAGES},
        {"rounds", required_argument, NULL, ROUNDS},
        {"full", no_argument, NULL, FULL},
        {"json", no_argument, NULL, JSON},
        {"once", required_argument, NULL, ONCE},
        {"folder", required_argument, NULL, FOLDER},
        {"keep", no_argument, NULL, KEEP},
        {"only", required_argument, NULL, ONLY},
        {"help", no_argument, NULL, HELP},
        {0},
    };
    const scene_asked usual = *asked;
    int which;
    while ((which = getopt_long(argc, argv, "", known, NULL)) >= 0) {
        switch (which) {
        case MESSAGES: asked->messages = strtoull(optarg, NULL, 10); break;
        case ROUNDS: asked->rounds = (unsigned)strtoul(optarg, NULL, 10); break;
        case FULL: asked->messages = usual.full_messages; break;
        case JSON: asked->json = true; break;
        case ONCE: asked->scene.once = optarg; break;
        case FOLDER: asked->scene.folder = optarg; break;
        case KEEP: asked->scene.keep = true; break;
        case ONLY: asked->only = optarg; break;
        case HELP: usage(argv[0], &usual, 0);
        default: usage(argv[0], &usual, 2);
        }
    }
    if (asked->only && (!asked->parts || !is_part(asked->parts, asked->only))) usage(argv[0], &usual, 2);
    if (optind < argc || asked->messages < 1000 || asked->rounds < 1 || asked->rounds > SCENE_ROUNDS_MAX)
        usage(argv[0], &usual, 2);
}

/* ---- the folder ---- */

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(path);
}

static void remove_folder(void)
{
    if (getpid() != owner || !folder[0] || opt.keep) return;
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void make_folder(void)
{
    const char *base = opt.folder ? opt.folder : getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/once-bench-XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(folder)) {
        folder[0] = '\0';
        bench_die_errno("cannot make a temporary folder");
    }
    owner = getpid();
    atexit(remove_folder);
}

static void find_command(void)
{
    const ssize_t len = readlink("/proc/self/exe", build, sizeof build - 1); /* build/bench/bench_run -> build */
    if (len < 0) bench_die_errno("cannot find myself");
    build[len] = '\0';
    *strrchr(build, '/') = '\0';
    *strrchr(build, '/') = '\0';
    snprintf(command, sizeof command, "%s", opt.once ? opt.once : scene_built("once"));
    if (access(command, X_OK) != 0) bench_die_errno("cannot run once; build it first, or name it with --once");
}

void scene_open(const scene_options *options)
{
    opt = *options;
    find_command();
    process_prepare();
    make_folder();
    /* Stores of many rounds are at one place under one pipeline: nothing is to be remembered of them, and the user's
     * folder is not ours. */
    unsetenv("STATE_DIRECTORY");
    unsetenv("XDG_STATE_HOME");
    unsetenv("HOME");
}

const char *scene_path(const char *name)
{
    static char paths[PATHS_MAX][PATH_MAX + 64];
    static unsigned n;
    for (unsigned i = 0; i < n; i++)
        if (strcmp(paths[i] + strlen(folder) + 1, name) == 0) return paths[i];
    assert(n < PATHS_MAX);
    snprintf(paths[n], sizeof paths[n], "%s/%s", folder, name);
    return paths[n++];
}

const char *scene_built(const char *name)
{
    static char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", build, name);
    return path;
}

/* ---- files ---- */

uint64_t scene_size(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
}

void scene_remove_database(const char *path)
{
    char other[PATH_MAX + 80];
    snprintf(other, sizeof other, "%s-wal", path);
    unlink(other);
    snprintf(other, sizeof other, "%s-shm", path);
    unlink(other);
    unlink(path);
}

void scene_copy_file(const char *from, const char *to)
{
    const int in = open(from, O_RDONLY | O_CLOEXEC), out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ssize_t sent = 1;
    if (in < 0 || out < 0) bench_die_errno("cannot copy a file");
    while (sent > 0) sent = sendfile(out, in, NULL, 1 << 24);
    if (sent < 0 || close(out) != 0) bench_die_errno("cannot copy a file");
    close(in);
}

void scene_write_file(const char *path, const char *text)
{
    FILE *to = fopen(path, "we");
    if (!to || fputs(text, to) < 0 || fclose(to) != 0) bench_die_errno("cannot write a file");
}

typedef struct statement {
    const char *database, *sql;
} statement;

static void execute(void *arg)
{
    const statement *s = arg;
    sqlite3 *db;
    char *why = NULL;
    if (sqlite3_open(s->database, &db) != SQLITE_OK ||
        sqlite3_exec(db, "PRAGMA journal_mode = WAL", NULL, NULL, &why) != SQLITE_OK ||
        sqlite3_exec(db, s->sql, NULL, NULL, &why) != SQLITE_OK)
        bench_die(why ? why : "cannot open a database");
    sqlite3_close(db);
}

void scene_execute(const char *database, const char *sql)
{
    process_result result;
    statement s = {database, sql};
    process_run("preparing", execute, &s, NULL, 0, &result);
}

/* ---- the command ---- */

void scene_once(const char *label, const char *const *arguments, int status, const char *watched, uint64_t unit,
                uint64_t total, process_result *result)
{
    const char *argv[ARGUMENTS_MAX] = {command, arguments[0]};
    const bool runs = strcmp(arguments[0], "run") == 0;
    if (runs) argv[2] = "--new-store"; /* stores are made anew from round to round, under pipelines that were known */
    for (size_t i = 1; arguments[i]; i++) {
        assert(i + 3 < ARGUMENTS_MAX);
        argv[i + 1 + runs] = arguments[i];
    }
    sync(); /* what went before is not to be paid by what comes now */
    process_exec(label, (char *const *)(uintptr_t)argv, scene_path("said.json"), watched, unit, total, result);
    if (result->status == status) return;
    process_show_log(scene_path("said.json"));
    fprintf(stderr, "bench: %s: once %s ended with %d\n", label, arguments[0], result->status);
    exit(3);
}

int64_t scene_said(const char *pointer)
{
    once_arena arena;
    once_json json;
    once_pointer where;
    int64_t number = -1;
    const char *path = scene_path("said.json");
    const uint64_t size = scene_size(path);
    once_arena_init(&arena);
    once_json_init(&json);
    char *text = once_arena_alloc(&arena, size);
    FILE *from = fopen(path, "re");
    if (!text || !from || fread(text, 1, size, from) != size) bench_die("cannot read what once said");
    fclose(from);
    if (once_json_parse(&json, (once_bytes){text, size}, NULL, NULL) != ONCE_OK ||
        once_pointer_parse(&arena, (once_bytes){pointer, strlen(pointer)}, &where, NULL) != ONCE_OK)
        bench_die("what once said is not JSON");
    once_json_int64(once_json_find(&json, &where), &number);
    once_json_release(&json);
    once_arena_release(&arena);
    return number;
}

/* ---- figures ---- */

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double scene_median(const double *values, unsigned n)
{
    double sorted[SCENE_ROUNDS_MAX];
    assert(n > 0 && n <= SCENE_ROUNDS_MAX);
    memcpy(sorted, values, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, compare_doubles);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

double scene_median_ratio(const double *over, const double *under, unsigned n)
{
    double ratios[SCENE_ROUNDS_MAX];
    assert(n > 0 && n <= SCENE_ROUNDS_MAX);
    for (unsigned i = 0; i < n; i++) ratios[i] = over[i] / under[i];
    return scene_median(ratios, n);
}
