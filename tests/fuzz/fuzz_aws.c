/* What comes from outside in src/aws: answers of providers (XML, JSON), the files of profiles, and addresses that are
 * signed. The first byte says which. What is accepted can be used: keys fit into headers, and have not ended. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef ONCE_WITH_SQS
#include "aws/aws_impl.h"
#include "base/buf.h"

#define NOW_MS INT64_C(1700000000000)
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) abort();                                                                                     \
    } while (0)

static bool within(once_bytes part, once_bytes text)
{
    return part.len == 0 || (part.data >= text.data && part.data + part.len <= text.data + text.len);
}

static void check_found(const once_aws_found *found)
{
    CHECK(found->until_ms > NOW_MS);
    CHECK(found->keys.id.len && found->keys.secret.len && found->keys.secret.len <= ONCE_AWS_SECRET_MAX);
    CHECK(!memchr(found->keys.id.data, '\n', found->keys.id.len));
    CHECK(!memchr(found->keys.token.data, '\r', found->keys.token.len));
}

static void read_answer(int kind, once_bytes text, once_arena *arena)
{
    once_aws_found found = {0};
    once_error err;
    const int rc = kind < 3 ? once__aws_read_json((once_aws_answer_kind)kind, text, NOW_MS, arena, &found, &err)
                            : once__aws_read_xml(text, NOW_MS, arena, &found, &err);
    if (rc == ONCE_OK) check_found(&found);
    if (kind == 3) {
        const once_bytes code = once__aws_read_xml_error(text, arena);
        CHECK(code.len <= 60);
    }
}

static void read_profiles(once_bytes text)
{
    const once_aws_profiles files = {text, text};
    const once_bytes name = ONCE_BYTES("p");
    const once_bytes value = once__aws_property(&files, name, "region");
    CHECK(within(value, text));
    if (value.len) CHECK(once__aws_has_profile(&files, name));
}

static void sign(const char *url, once_arena *arena)
{
    const once_aws_keys keys = {ONCE_BYTES("id"), ONCE_BYTES("secret"), ONCE_BYTES("token")};
    const once_aws_request request = {.method = "GET", .url = url};
    const char **lines;
    once_error err;
    if (once_aws_sign(&request, &keys, "r", "s", NOW_MS / 1000, arena, &lines, &err) != ONCE_OK) return;
    for (; *lines; lines++) CHECK(!strpbrk(*lines, "\r\n"));
}
#endif

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
#ifdef ONCE_WITH_SQS
    if (size == 0) return 0;
    once_arena arena = {0};
    char *text = malloc(size);
    CHECK(text);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    const once_bytes rest = {text, size - 1};
    const int what = data[0] % 8;
    if (what < 4) read_answer(what, rest, &arena);
    else if (what < 6) read_profiles(rest);
    else sign(text, &arena);
    free(text);
    once_arena_release(&arena);
#else
    (void)data;
    (void)size;
#endif
    return 0;
}
