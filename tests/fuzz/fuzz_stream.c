/* Fault 81: any bytes as the line that a stream handler answers. It is refused in words that quote nothing of it, or it
 * names one message and an outcome; a word that is no outcome is unknown, never a success; and the same line is read
 * the same way again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "effect/stream_line.h"

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) abort();                                                                                     \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool same(once_bytes a, once_bytes b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

static void check_reply(once_bytes line, const once_stream_reply *reply)
{
    CHECK(reply->id > 0 && reply->outcome >= 0 && reply->outcome < ONCE_OUTCOMES);
    CHECK(reply->delay_ms >= -1 && reply->delay_ms <= ONCE_STREAM_DELAY_MAX_MS);
    CHECK(!reply->odd || reply->outcome == ONCE_UNKNOWN);
    CHECK(reply->result.len <= line.len && reply->reason.len <= line.len);
    /* No success without the word for it somewhere in the line, as it is or with escapes. */
    if (reply->outcome == ONCE_DONE) CHECK(memmem(line.data, line.len, "done", 4) || memchr(line.data, '\\', line.len));
}

/* `why` is ours alone: a handler's line may hold secrets. */
static void check_refusal(const char *why, size_t room)
{
    static const char *const ours[] = {"a line that is not a JSON object: ", "a reply whose '", "a reply without '"};
    const size_t len = strnlen(why, room);
    bool known = false;
    CHECK(len > 0 && len < room);
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) known |= strncmp(why, ours[i], strlen(ours[i])) == 0;
    for (size_t i = 0; i < len; i++) known &= why[i] >= ' ' && why[i] < 0x7f;
    CHECK(known);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const once_bytes line = {(const char *)data, size};
    once_json json = {0};
    once_arena arena = {0};
    once_stream_reply reply, again;
    char why[200] = "", why_again[200] = "";
    const bool fine = once_stream_read(&json, &arena, line, &reply, why, sizeof why);
    if (fine) check_reply(line, &reply);
    else check_refusal(why, sizeof why);
    CHECK(once_stream_read(&json, &arena, line, &again, why_again, sizeof why_again) == fine);
    if (fine)
        CHECK(again.id == reply.id && again.outcome == reply.outcome && again.odd == reply.odd &&
              again.delay_ms == reply.delay_ms && same(again.result, reply.result) && same(again.reason, reply.reason));
    else CHECK(strcmp(why, why_again) == 0);
    once_json_release(&json);
    once_arena_release(&arena);
    return 0;
}
