/* What a message costs before anything is decided about it: parsing with cJSON, with jansson, and with our scanner
 * (validate only; with three pointers; with three pointers and the fingerprint), for one flat payment of about 300
 * bytes, one nested order and one message whose strings are not ASCII.
 *
 *     bench_json [rounds]
 *
 * Rounds are interleaved, so that a noisy moment affects all of them; medians of nanoseconds per message.
 * `json_ratio_vs_cjson` is cJSON_Parse alone divided by everything that we do, for the flat payment. */
#include <cjson/cJSON.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/json.h"

#include "base/banned.h"

#define MESSAGES_PER_ROUND 20000
#define ROUNDS_MAX 101
#define POINTERS 3

struct sample {
    const char *name, *text;
    const char *pointers[POINTERS];
};

static const struct sample SAMPLES[] = {
    {"flat payment",
     "{\"payment_id\":\"pay_01HF7YAT00TZX4Y5Y2K9Q3J8RM\",\"order_id\":\"ord-20231114-000123\",\"type\":\"payment."
     "received\","
     "\"amount\":12500,\"currency\":\"EUR\",\"customer\":\"c-77812\",\"method\":\"card\",\"captured\":true,\"fee\":0."
     "35,"
     "\"sent_at\":\"2023-11-14T22:13:20.123Z\",\"reference\":\"invoice 2023/8841\",\"note\":null,\"version\":3}",
     {"/payment_id", "/order_id", "/amount"}},
    {"nested order",
     "{\"id\": \"8f14e45f-ceea-467f-a8d0-3d1e3e7f9a11\", \"type\": \"order.placed\", \"order\": {\"id\": 991823, "
     "\"lines\": "
     "[{\"sku\": \"A-1\", \"n\": 2, \"price\": 19.90}, {\"sku\": \"B-77\", \"n\": 1, \"price\": 240}], \"ship\": "
     "{\"name\": "
     "\"J. Doe\", \"street\": \"Main St. 1\", \"zip\": \"10115\"}}, \"ts\": 1700000000123}",
     {"/id", "/order/lines/1/sku", "/ts"}},
    {"not ascii",
     "{\"id\":\"pay-1\",\"\xD0\xB8\xD0\xBC\xD1\x8F\":\"\xD0\x98\xD0\xB2\xD0\xB0\xD0\xBD "
     "\xD0\x9F\xD0\xB5\xD1\x82\xD1\x80\xD0\xBE\xD0\xB2\","
     "\"note\":\"line one\\nline two \\u20ac 12\",\"city\":\"M\xC3\xBCnchen\",\"amount\":7,\"order_id\":\"o-1\"}",
     {"/id", "/order_id", "/amount"}},
};

enum { CJSON, JANSSON, VALIDATE, POINT, FINGERPRINT, ENTRANTS };

static const char *const NAMES[ENTRANTS] = {
    "cJSON parse", "jansson parse", "once validate", "once + 3 pointers", "once + 3 pointers + fingerprint",
};

static volatile uint64_t sink; /* keeps results alive */

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void die(const char *what)
{
    fprintf(stderr, "bench_json: %s\n", what);
    exit(1);
}

static void run_ours(int entrant, once_json *json, once_bytes text, const once_pointer *pointers)
{
    uint64_t got = 0;
    if (once_json_parse(json, text, NULL, NULL) != ONCE_OK) die("our scanner refused a sample");
    if (entrant >= POINT) {
        for (int i = 0; i < POINTERS; i++) got += once_json_find(json, &pointers[i]).raw.len;
    }
    if (entrant >= FINGERPRINT) got += once_json_fingerprint(json, once_json_root(json), 42).a;
    sink += got + json->count;
}

static double round_ns(int entrant, once_json *json, once_bytes text, const once_pointer *pointers)
{
    const double start = now_ns();
    for (int i = 0; i < MESSAGES_PER_ROUND; i++) {
        if (entrant == CJSON) {
            cJSON *tree = cJSON_ParseWithLength(text.data, text.len);
            if (!tree) die("cJSON refused a sample");
            cJSON_Delete(tree);
        } else if (entrant == JANSSON) {
            json_t *tree = json_loadb(text.data, text.len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
            if (!tree) die("jansson refused a sample");
            json_decref(tree);
        } else {
            run_ours(entrant, json, text, pointers);
        }
    }
    return (now_ns() - start) / MESSAGES_PER_ROUND;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void run_sample(const struct sample *sample, int rounds, double medians[ENTRANTS])
{
    static double ns[ENTRANTS][ROUNDS_MAX];
    once_arena arena;
    once_json json;
    once_pointer pointers[POINTERS];
    const once_bytes text = {sample->text, strlen(sample->text)};
    once_arena_init(&arena);
    once_json_init(&json);
    for (int i = 0; i < POINTERS; i++) {
        const once_bytes pointer = {sample->pointers[i], strlen(sample->pointers[i])};
        if (once_pointer_parse(&arena, pointer, &pointers[i], NULL) != ONCE_OK) die("a pointer was refused");
    }
    for (int round = -1; round < rounds; round++) { /* the first one only warms up */
        for (int entrant = 0; entrant < ENTRANTS; entrant++) {
            const double took = round_ns(entrant, &json, text, pointers);
            if (round >= 0) ns[entrant][round] = took;
        }
    }
    for (int entrant = 0; entrant < ENTRANTS; entrant++) {
        qsort(ns[entrant], (size_t)rounds, sizeof(double), compare_doubles);
        medians[entrant] = ns[entrant][rounds / 2];
    }
    once_json_release(&json);
    once_arena_release(&arena);
}

int main(int argc, char **argv)
{
    const long asked = argc > 1 ? strtol(argv[1], NULL, 10) : 15;
    const int rounds = asked < 1 ? 1 : asked > ROUNDS_MAX ? ROUNDS_MAX : (int)asked;
    double ratio = 0;
    for (size_t i = 0; i < sizeof(SAMPLES) / sizeof(*SAMPLES); i++) {
        double medians[ENTRANTS];
        run_sample(&SAMPLES[i], rounds, medians);
        printf("%s, %zu bytes, ns per message (median of %d rounds)\n", SAMPLES[i].name, strlen(SAMPLES[i].text),
               rounds);
        for (int entrant = 0; entrant < ENTRANTS; entrant++) {
            printf("  %-34s %8.0f   x%.2f\n", NAMES[entrant], medians[entrant], medians[CJSON] / medians[entrant]);
        }
        if (i == 0) ratio = medians[CJSON] / medians[FINGERPRINT];
    }
    printf("json_ratio_vs_cjson %.2f\n", ratio);
    return 0;
}
