/* once-sim: without arguments it runs the tests and prints TAP; with arguments it runs the seeds that they name. */
#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/plant.h"
#include "rare.h"
#include "sim.h"

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#else
#include <sanitizer/common_interface_defs.h>
#endif

#define SEEDS (SANITIZED ? 1000u : 2000u) /* `make soak` runs others without end */
#define PLANT_SEEDS 10000u                /* within so many each planted bug must be found */
#define ENOUGH 1000u                      /* so many seeds reach every kind of fault */

typedef struct totals {
    uint64_t seeds, failed, failed_external, steps, effects, messages;
    uint64_t fired[SIM_FAULTS];
    sim_result first; /* the first seed that failed */
} totals;

typedef struct job {
    uint64_t from, seeds;
    unsigned jobs;
    bool print, list, stop_early;
} job;

static const struct {
    once_plant plant;
    const char *name, *text;
} plants[] = {
#define PLANT(name, text) {ONCE_PLANT_##name, #name, text},
    ONCE_PLANT_MAP(PLANT)
#undef PLANT
};
#define PLANTS (sizeof plants / sizeof *plants)

static const struct {
    once_plant plant;
    uint64_t seed;
} rare[] = {
#define RARE(name, seed) {ONCE_PLANT_##name, seed},
    SIM_RARE_MAP(RARE)
#undef RARE
};

/* --- a seed that ends in an assertion --- */

static volatile uint64_t seed_now;
static const char *plant_now;

static void tell_seed(void)
{
    char text[200];
    const int len =
        snprintf(text, sizeof text, "\n# it ended in seed %llu; to see it: once-sim --seed %llu --trace%s%s\n",
                 (unsigned long long)seed_now, (unsigned long long)seed_now, plant_now ? " --plant " : "",
                 plant_now ? plant_now : "");
    if (len > 0 && write(STDERR_FILENO, text, (size_t)len) < 0) return;
}

static void on_signal(int number)
{
    tell_seed();
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

static void watch_for_crashes(void)
{
#if SANITIZED
    __sanitizer_set_death_callback(tell_seed);
#else
    (void)signal(SIGSEGV, on_signal);
    (void)signal(SIGBUS, on_signal);
#endif
    (void)signal(SIGABRT, on_signal);
}

/* --- running seeds --- */

static void add(totals *sum, const sim_result *r)
{
    sum->seeds++;
    sum->steps += r->steps;
    sum->effects += r->effects;
    sum->messages += r->messages;
    for (int i = 0; i < SIM_FAULTS; i++) sum->fired[i] += r->fired[i];
    if (!r->failed) return;
    if (sum->failed == 0 || r->seed < sum->first.seed) sum->first = *r;
    sum->failed++;
    sum->failed_external += r->external;
}

static void merge(totals *sum, const totals *part)
{
    sum->seeds += part->seeds;
    sum->steps += part->steps;
    sum->effects += part->effects;
    sum->messages += part->messages;
    for (int i = 0; i < SIM_FAULTS; i++) sum->fired[i] += part->fired[i];
    if (part->failed && (sum->failed == 0 || part->first.seed < sum->first.seed)) sum->first = part->first;
    sum->failed += part->failed;
    sum->failed_external += part->failed_external;
}

static void run_share(const job *j, unsigned share, totals *sum)
{
    for (uint64_t i = share; i < j->seeds; i += j->jobs) {
        sim_result result;
        seed_now = j->from + i;
        sim_run(j->from + i, j->print, &result);
        add(sum, &result);
        if (result.failed && j->list) printf("seed %llu: %s\n", (unsigned long long)result.seed, result.why);
        if (sum->failed && j->stop_early) return;
    }
}

static bool read_all(int fd, void *to, size_t len)
{
    char *at = to;
    while (len > 0) {
        const ssize_t n = read(fd, at, len);
        if (n <= 0) return false;
        at += n;
        len -= (size_t)n;
    }
    return true;
}

static void run_child(const job *j, unsigned share, int fd)
{
    static totals part;
    run_share(j, share, &part);
    const char *at = (const char *)&part;
    size_t left = sizeof part;
    while (left > 0) {
        const ssize_t n = write(fd, at, left);
        if (n <= 0) _exit(1);
        at += n;
        left -= (size_t)n;
    }
    _exit(0);
}

/* Texts in a trace are literals, so their addresses mean the same in a child. */
static bool run_jobs(const job *j, totals *sum)
{
    bool fine = true;
    *sum = (totals){0};
    if (j->jobs < 2) {
        run_share(j, 0, sum);
        return true;
    }
    int pipes[64][2];
    pid_t children[64];
    (void)fflush(stdout);
    for (unsigned i = 0; i < j->jobs; i++) {
        if (pipe(pipes[i]) != 0 || (children[i] = fork()) < 0) {
            perror("once-sim");
            exit(2);
        }
        if (children[i] == 0) run_child(j, i, pipes[i][1]);
        (void)close(pipes[i][1]);
    }
    for (unsigned i = 0; i < j->jobs; i++) {
        static totals part;
        int status = 0;
        if (read_all(pipes[i][0], &part, sizeof part)) merge(sum, &part);
        (void)close(pipes[i][0]);
        (void)waitpid(children[i], &status, 0);
        if (status != 0) {
            printf("# job %u ended with status %d; run with --jobs 1 to see why\n", i, status);
            fine = false;
        }
    }
    return fine;
}

/* --- telling --- */

static void print_failure(const sim_result *r, const char *plant, const char *before)
{
    printf("%sseed %llu: %s\n", before, (unsigned long long)r->seed, r->why);
    printf("%sthe last %zu of %llu steps:\n", before, r->last_n, (unsigned long long)r->steps);
    for (uint64_t i = r->steps - r->last_n; i < r->steps; i++) {
        (void)fputs(before, stdout);
        sim_print_step(stdout, &r->last[i % SIM_TRACE]);
    }
    printf("%sto see all of it: once-sim --seed %llu --trace%s%s\n", before, (unsigned long long)r->seed,
           plant ? " --plant " : "", plant ? plant : "");
}

static void print_faults(const totals *sum, const char *before)
{
    for (int i = 0; i < SIM_FAULTS; i++)
        printf("%s%10llu  %-20s %s\n", before, (unsigned long long)sum->fired[i], sim_fault_names[i],
               sim_fault_texts[i]);
}

static int missing_fault(const totals *sum)
{
    for (int i = 0; i < SIM_FAULTS; i++)
        if (sum->fired[i] == 0) return i;
    return -1;
}

static double seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void plant(size_t which)
{
    once_planted = which < PLANTS ? plants[which].plant : ONCE_PLANT_none;
    plant_now = which < PLANTS ? plants[which].name : NULL;
}

/* --- the tests --- */

static int test_number;
static bool test_failed;

static void report(bool fine, const char *name, const char *more)
{
    printf("%s %d - %s%s\n", fine ? "ok" : "not ok", ++test_number, name, more);
    (void)fflush(stdout);
    test_failed = test_failed || !fine;
}

static void test_same_seed(void)
{
    bool fine = true;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        sim_result one, two;
        seed_now = seed;
        sim_run(seed, false, &one);
        sim_run(seed, false, &two);
        if (one.hash == two.hash && one.steps == two.steps) continue;
        printf("# seed %llu: trace %016llx, then %016llx\n", (unsigned long long)seed, (unsigned long long)one.hash,
               (unsigned long long)two.hash);
        fine = false;
    }
    report(fine, "the_same_seed_gives_the_same_trace", "");
}

static void test_seeds(void)
{
    static totals sum;
    const job j = {.from = 1, .seeds = SEEDS, .jobs = 1};
    const double start = seconds();
    run_jobs(&j, &sum);
    printf("# %llu seeds, %llu messages, %llu effects, %llu steps, %.1f s\n", (unsigned long long)sum.seeds,
           (unsigned long long)sum.messages, (unsigned long long)sum.effects, (unsigned long long)sum.steps,
           seconds() - start);
    print_faults(&sum, "# ");
    if (sum.failed) {
        printf("# %llu seeds failed; the first:\n", (unsigned long long)sum.failed);
        print_failure(&sum.first, NULL, "# ");
    }
    report(sum.failed == sum.failed_external,
           "f10_f14_f16_f19_f20_f24_f25_f28_f29_f31_f33_f71_f74_f76_f77_f80_hold_in_every_seed", "");
    report(sum.failed_external == 0, "f02_f04_f05_f14_f15_f59_f73_f76_f80_hold_for_external_effects_in_every_seed", "");
    const int missing = missing_fault(&sum);
    if (missing >= 0) printf("# %s never happened\n", sim_fault_names[missing]);
    report(missing < 0, "every_kind_of_fault_happened", "");
}

/* The seed that is to find it first; 0: none. */
static uint64_t rare_seed(once_plant which)
{
    for (size_t i = 0; i < sizeof rare / sizeof *rare; i++)
        if (rare[i].plant == which) return rare[i].seed;
    return 0;
}

static void test_plant(size_t which)
{
    static totals sum;
    char name[120];
    const uint64_t known = rare_seed(plants[which].plant);
    const job first = {.from = known, .seeds = known ? 1 : 0, .jobs = 1};
    const job all = {.from = 1, .seeds = PLANT_SEEDS, .jobs = 1, .stop_early = true};
    plant(which);
    run_jobs(&first, &sum);
    if (!sum.failed) run_jobs(&all, &sum);
    plant(PLANTS);
    if (known && sum.first.seed != known)
        printf("# seed %llu of rare.h finds %s no more\n", (unsigned long long)known, plants[which].name);
    if (sum.failed)
        printf("# %s: seed %llu: %s\n", plants[which].text, (unsigned long long)sum.first.seed, sum.first.why);
    (void)snprintf(name, sizeof name, "planted_bug_%s_is_found", plants[which].name);
    report(sum.failed > 0, name, "");
}

static int run_tests(void)
{
    printf("1..%zu\n", 4 + PLANTS);
    test_same_seed();
    test_seeds();
    for (size_t i = 0; i < PLANTS; i++) test_plant(i);
    return test_failed ? 1 : 0;
}

/* --- the command line --- */

static int usage(void)
{
    (void)fputs("usage: once-sim                          the tests, as TAP\n"
                "       once-sim --seeds N [--from S] [--jobs J] [--plant NAME]\n"
                "       once-sim --seed S [--trace] [--plant NAME]\n"
                "planted bugs:\n",
                stderr);
    for (size_t i = 0; i < PLANTS; i++) (void)fprintf(stderr, "  %-18s %s\n", plants[i].name, plants[i].text);
    return 2;
}

static bool number(const char *text, uint64_t max, uint64_t *out)
{
    char *end;
    *out = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && *out <= max;
}

static int run_chosen(const job *j, const char *planted)
{
    static totals sum;
    const double start = seconds();
    const bool fine = run_jobs(j, &sum);
    if (sum.failed) print_failure(&sum.first, planted, "");
    if (j->seeds == 1) {
        sim_result again;
        sim_run(j->from, false, &again);
        printf("seed %llu, trace %016llx, %s\n", (unsigned long long)again.seed, (unsigned long long)again.hash,
               again.failed ? "FAILED" : "fine");
    } else {
        if (!planted) print_faults(&sum, "");
        printf("%llu seeds, %llu failed, %llu messages, %llu effects, %.1f s\n", (unsigned long long)sum.seeds,
               (unsigned long long)sum.failed, (unsigned long long)sum.messages, (unsigned long long)sum.effects,
               seconds() - start);
    }
    if (planted) { /* here finding it is the success */
        printf("planted bug '%s': %s\n", planted, sum.failed ? "found" : "NOT FOUND");
        return sum.failed ? 0 : 1;
    }
    const int missing = j->seeds >= ENOUGH ? missing_fault(&sum) : -1;
    if (missing >= 0) printf("FAILED: %s never happened\n", sim_fault_names[missing]);
    return fine && !sum.failed && missing < 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    watch_for_crashes();
    if (argc == 1) return run_tests();
    static const struct option options[] = {
        {"seeds", required_argument, NULL, 'n'},
        {"from", required_argument, NULL, 'f'},
        {"jobs", required_argument, NULL, 'j'},
        {"seed", required_argument, NULL, 's'},
        {"plant", required_argument, NULL, 'p'},
        {"trace", no_argument, NULL, 't'},
        {NULL, 0, NULL, 0},
    };
    job j = {.from = 1, .seeds = SEEDS, .jobs = 1, .list = true};
    const char *planted = NULL;
    uint64_t jobs;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) >= 0;) {
        switch (c) {
        case 'n':
            if (!number(optarg, UINT32_MAX, &j.seeds)) return usage();
            break;
        case 'f':
            if (!number(optarg, UINT64_MAX / 2, &j.from)) return usage();
            break;
        case 'j':
            if (!number(optarg, 64, &jobs) || jobs == 0) return usage();
            j.jobs = (unsigned)jobs;
            break;
        case 's':
            if (!number(optarg, UINT64_MAX / 2, &j.from)) return usage();
            j.seeds = 1;
            break;
        case 't': j.print = true; break;
        case 'p': planted = optarg; break;
        default: return usage();
        }
    }
    if (optind < argc) return usage();
    if (planted) {
        size_t which = 0;
        while (which < PLANTS && strcmp(plants[which].name, planted) != 0) which++;
        if (which == PLANTS) return usage();
        plant(which);
        j.list = false;
        j.stop_early = true;
    }
    return run_chosen(&j, planted);
}
