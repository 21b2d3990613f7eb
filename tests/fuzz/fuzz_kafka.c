/* What the Kafka source decodes that comes from outside: the place of coordinates, and the token that a command writes.
 * A place that is read is written in one way only; a token that is read has a name and an end. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef ONCE_WITH_KAFKA
#include "source/kafka/kafka.h"
#endif
#include "source/kafka_spec.h"

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) abort();                                                                                     \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_place(once_bytes text)
{
    once_bytes topic;
    int32_t partition;
    char again[300];
    if (!once__kafka_place(text, &topic, &partition)) return;
    const int len = snprintf(again, sizeof again, "%.*s/%d", (int)topic.len, topic.data, (int)partition);
    CHECK((size_t)len == text.len && memcmp(again, text.data, text.len) == 0);
}

static void read_token(const char *token)
{
#ifdef ONCE_WITH_KAFKA
    once_arena arena = {0};
    once_bytes subject = {0};
    int64_t expires_ms = 0;
    if (once__kafka_read_token(token, &expires_ms, &arena, &subject)) CHECK(expires_ms > 0 && subject.len > 0);
    once_arena_release(&arena);
#else
    (void)token;
#endif
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    CHECK(text);
    memcpy(text, data, size);
    text[size] = '\0';
    read_place((once_bytes){text, size});
    read_token(text);
    free(text);
    return 0;
}
