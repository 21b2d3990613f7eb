/* The Redis store against the usual hand-written code on Redis: SET NX EX before the effect, SET after it, pipelined.
 *
 *     bench_redis [--batches N] [--batch N] [--rounds N]
 *
 *   bare   batches of SET key value NX EX, then batches of SET key value; keys of 36 bytes, values of 32
 *   once   batches of claim, then batches of settle (done), each of them a commit
 *
 * One server for both, in a folder of its own, every reply synced (appendonly yes, appendfsync always). They take
 * turns; figures are medians over the rounds, and the ratio is the median of the ratios of each round. Then bytes of
 * memory per finished key, from INFO before and after.
 *
 * Ends with 0 whatever the figures are; 3 when something could not be measured. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "redis/server.h"
#include "store/store.h"

enum { ROUNDS_MAX = 21, KEY = 36, VALUE = 32, MEMORY_KEYS = 200000 };

static redisContext *bare;
static const char *url;
static size_t batch = 1024, batches = 40;
static unsigned rounds = 5;
static uint64_t serial;

static void give_up(const char *what)
{
    fprintf(stderr, "bench_redis: %s\n", what);
    exit(3);
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Looks like a random UUID. */
static void make_key(uint64_t n, char out[KEY + 1])
{
    uint64_t a = n * UINT64_C(0x9e3779b97f4a7c15), b = (a ^ a >> 31) * UINT64_C(0xbf58476d1ce4e5b9);
    snprintf(out, KEY + 1, "%08x-%04x-4%03x-8%03x-%012llx", (unsigned)(a >> 32), (unsigned)(a & 0xffff),
             (unsigned)(a >> 16 & 0xfff), (unsigned)(b & 0xfff), (unsigned long long)(b >> 16));
}

/* --- bare --- */

static void bare_batch(uint64_t first, bool claim, bool expires)
{
    static const char value[VALUE + 1] = "0123456789abcdef0123456789abcdef";
    for (size_t i = 0; i < batch; i++) {
        char key[KEY + 1];
        make_key(first + i, key);
        const char *argv[] = {"SET", key, value, "EX", "604800", "NX"};
        const size_t lens[] = {3, KEY, VALUE, 2, 6, 2};
        redisAppendCommandArgv(bare, claim ? 6 : expires ? 5 : 3, argv, lens);
    }
    for (size_t i = 0; i < batch; i++) {
        void *reply;
        if (redisGetReply(bare, &reply) != REDIS_OK) give_up("a reply is missing");
        if (((redisReply *)reply)->type != REDIS_REPLY_STATUS) give_up("a key was there before");
        freeReplyObject(reply);
    }
}

static double run_bare(void)
{
    const double begun = now_s();
    for (size_t i = 0; i < batches; i++, serial += batch) {
        bare_batch(serial, true, true);
        bare_batch(serial, false, false);
    }
    return (double)(batches * batch) / (now_s() - begun);
}

/* --- once --- */

static void once_batch(once_backend *store, uint64_t first)
{
    static const once_scope scope = {{0}, {"payments", 8}, {"charge", 6}};
    once_request *requests = calloc(batch, sizeof *requests);
    const once_request **list = calloc(batch, sizeof *list);
    once_settlement *settlements = calloc(batch, sizeof *settlements);
    once_decision *decisions = calloc(batch, sizeof *decisions);
    bool *applied = calloc(batch, sizeof *applied);
    char(*keys)[KEY + 1] = calloc(batch, sizeof *keys), (*points)[12] = calloc(batch, sizeof *points);
    once_arena arena = {0};
    once_error err;
    if (!requests || !list || !settlements || !decisions || !applied || !keys || !points) give_up("out of memory");
    for (size_t i = 0; i < batch; i++) {
        make_key(first + i, keys[i]);
        const once_bytes key = {keys[i], KEY};
        requests[i] = (once_request){
            .scope = &scope,
            .key = key,
            .id = once_key_id(store->secret, &scope, key),
            .fingerprint = once_xxh128(1, keys[i], KEY),
            .token = once_xxh128(2, keys[i], KEY),
            .lane = {.gap_ms = -1},
            .lease_ms = 30000,
            .remember_ms = INT64_C(604800) * 1000,
            .sent_ms = ONCE_NO_TIME,
            .run = 0x123456789abcdef,
            .at = {{"payments.ndjson", 15},
                   {points[i], (size_t)snprintf(points[i], 12, "%llu", (unsigned long long)(first + i))}},
        };
        list[i] = &requests[i];
        settlements[i] = (once_settlement){.request = &requests[i], .outcome = ONCE_DONE};
    }
    if (store->ops->claim(store, list, batch, decisions, &arena, &err) != ONCE_OK) give_up(err.text);
    for (size_t i = 0; i < batch; i++)
        if (decisions[i].answer != ONCE_ANSWER_RUN) give_up("a claim was refused");
    if (store->ops->settle(store, settlements, batch, applied, &err) != ONCE_OK) give_up(err.text);
    for (size_t i = 0; i < batch; i++)
        if (!applied[i]) give_up("a settlement was fenced");
    once_arena_release(&arena);
    free(requests), free(list), free(settlements), free(decisions), free(applied), free(keys), free(points);
}

static double run_once(once_backend *store)
{
    const double begun = now_s();
    for (size_t i = 0; i < batches; i++, serial += batch) once_batch(store, serial);
    return (double)(batches * batch) / (now_s() - begun);
}

/* --- memory --- */

static double used_memory(void)
{
    redisReply *reply = redisCommand(bare, "INFO memory");
    if (!reply || reply->type != REDIS_REPLY_STRING) give_up("INFO is refused");
    const char *at = strstr(reply->str, "used_memory:");
    const double used = at ? strtod(at + strlen("used_memory:"), NULL) : 0;
    freeReplyObject(reply);
    return used;
}

static void flush(void) { freeReplyObject(redisCommand(bare, "FLUSHALL SYNC")); }

static double bytes_per_key(bool ours)
{
    flush();
    once_backend *store = NULL;
    once_error err;
    const once_store_options options = {.size = sizeof options, .create = true};
    if (ours && once__store_open(url, &options, &store, &err) != ONCE_OK) give_up(err.text);
    const double before = used_memory();
    const size_t n = (MEMORY_KEYS + batch - 1) / batch;
    for (size_t i = 0; i < n; i++, serial += batch) {
        if (ours) once_batch(store, serial);
        else bare_batch(serial, true, true), bare_batch(serial, false, true);
    }
    const double each = (used_memory() - before) / (double)(n * batch);
    once__store_close(store);
    return each;
}

static int by_size(const void *x, const void *y)
{
    return *(const double *)x < *(const double *)y ? -1 : *(const double *)x > *(const double *)y;
}

static double median(double *figures, size_t n)
{
    qsort(figures, n, sizeof *figures, by_size);
    return figures[n / 2];
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i += 2) {
        const unsigned long n = i + 1 < argc ? strtoul(argv[i + 1], NULL, 10) : 0;
        if (strcmp(argv[i], "--batches") == 0 && n > 0) batches = n;
        else if (strcmp(argv[i], "--batch") == 0 && n > 0) batch = n;
        else if (strcmp(argv[i], "--rounds") == 0 && n > 0 && n < ROUNDS_MAX) rounds = (unsigned)n;
        else {
            fprintf(stderr, "usage: bench_redis [--batches N] [--batch N] [--rounds N]\n");
            return 2;
        }
    }
    if (!redis_start()) {
        printf("bench_redis: not measured: no redis-server is available here; tools/setup bench installs it\n");
        return 0;
    }
    bare = redis_connect();
    url = redis_url();
    once_backend *store;
    once_error err;
    const once_store_options options = {.size = sizeof options, .create = true};
    if (once__store_open(url, &options, &store, &err) != ONCE_OK) give_up(err.text);
    double rates[2][ROUNDS_MAX], ratios[ROUNDS_MAX];
    run_bare();
    run_once(store);
    for (unsigned i = 0; i < rounds; i++) {
        rates[0][i] = run_bare();
        rates[1][i] = run_once(store);
        ratios[i] = rates[1][i] / rates[0][i];
    }
    once__store_close(store);
    const size_t asked = batch;
    batch = 1024;
    const double memory[2] = {bytes_per_key(false), bytes_per_key(true)};
    printf("redis, appendfsync always, batches of %zu, %u rounds of %zu\n", asked, rounds, batches * asked);
    printf("  SET NX EX, then SET, pipelined   %9.0f messages/s   %6.1f bytes/key\n", median(rates[0], rounds),
           memory[0]);
    printf("  claim, then settle               %9.0f messages/s   %6.1f bytes/key\n", median(rates[1], rounds),
           memory[1]);
    printf("  ratio                            %9.2f              %6.2f\n", median(ratios, rounds),
           memory[1] / memory[0]);
    return 0;
}
