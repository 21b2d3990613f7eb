#include "core/path.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"

#include "base/banned.h"

#define PREFIX "json:"
#define SHOWN(bytes) ((bytes).len > 100 ? 100 : (int)(bytes).len), ((bytes).data ? (bytes).data : "")

/* --- parsing ------------------------------------------------------------------------------------------------------ */

static bool is_nested(once_bytes text)
{
    return text.len >= strlen(PREFIX) && memcmp(text.data, PREFIX, strlen(PREFIX)) == 0;
}

/* The pointer at the beginning of the rest; cuts it off, with the ':' behind it. */
static once_bytes cut_pointer(once_bytes *rest)
{
    const char *end = rest->len > 1 ? memmem(rest->data + 1, rest->len - 1, ":/", 2) : NULL;
    const once_bytes pointer = {rest->data, end ? (size_t)(end - rest->data) : rest->len};
    const size_t used = pointer.len + (end ? 1 : 0);
    *rest = (once_bytes){rest->data + used, rest->len - used};
    return pointer;
}

static int parse_nested(once_arena *arena, once_bytes text, once_path *out, once_error *err)
{
    once_pointer pointers[ONCE_PATH_TEXTS_MAX + 1];
    size_t n = 0;
    once_bytes rest = {text.data + strlen(PREFIX), text.len - strlen(PREFIX)};
    do {
        if (n == sizeof pointers / sizeof *pointers)
            return once_fail(err, ONCE_E_USAGE, "it goes through more than %d texts", ONCE_PATH_TEXTS_MAX);
        const int rc = once_pointer_parse(arena, cut_pointer(&rest), &pointers[n], err);
        if (rc != ONCE_OK) return rc;
        if (pointers[n++].count == 0)
            return once_fail(err, ONCE_E_USAGE, "a pointer is missing; write " PREFIX "/text:/field");
    } while (rest.len > 0);
    if (n == 1)
        return once_fail(err, ONCE_E_USAGE,
                         "it names a text, and no field in it; write " PREFIX "/text:/field, or the pointer alone");
    once_pointer *kept = once_arena_new(arena, once_pointer, n);
    if (!kept || !once_arena_copy(arena, text, &out->text)) return once_no_memory(err, "for a path");
    memcpy(kept, pointers, n * sizeof *kept);
    out->pointers = kept;
    out->n = n;
    return ONCE_OK;
}

int once_path_parse(once_arena *arena, once_bytes text, once_path *out, once_error *err)
{
    assert(arena && out);
    once_path made = {0};
    if (is_nested(text)) {
        const int rc = parse_nested(arena, text, &made, err);
        if (rc == ONCE_OK) *out = made;
        return rc;
    }
    once_pointer *pointer = once_arena_new(arena, once_pointer, 1);
    if (!pointer) return once_no_memory(err, "for a path");
    const int rc = once_pointer_parse(arena, text, pointer, err);
    if (rc == ONCE_OK) *out = (once_path){.text = pointer->text, .pointers = pointer, .n = 1};
    return rc;
}

/* --- the texts of a message --------------------------------------------------------------------------------------- */

/* A text that was parsed, well or badly. */
typedef struct once_text {
    const once_json *in; /* where it was, and its token there */
    uint32_t token;
    int status;
    once_json json;
    once_json_error why;
    struct once_text *next;
} once_text;

void once_texts_begin(once_texts *texts, once_arena *arena, uint64_t seed)
{
    texts->arena = arena;
    texts->seed = seed;
    while (texts->used) {
        once_text *text = texts->used;
        texts->used = text->next;
        text->next = texts->spare;
        texts->spare = text;
    }
}

void once_texts_release(once_texts *texts)
{
    once_texts_begin(texts, NULL, 0);
    while (texts->spare) {
        once_text *text = texts->spare;
        texts->spare = text->next;
        once_json_release(&text->json);
        free(text);
    }
}

static once_text *new_text(once_texts *texts)
{
    once_text *text = texts->spare;
    if (text) texts->spare = text->next;
    else text = calloc(1, sizeof *text);
    if (!text) return NULL;
    text->next = texts->used;
    texts->used = text;
    return text;
}

/* The document of the text at this value. ONCE_E_NOMEM, or ONCE_OK, where text->status says whether it is JSON. */
static int open_text(once_texts *texts, const once_json *in, once_json_value value, once_text **out)
{
    assert(value.type == ONCE_JSON_STRING);
    for (once_text *text = texts->used; text; text = text->next) {
        if (text->in != in || text->token != value.token) continue;
        *out = text;
        return ONCE_OK;
    }
    once_bytes inner;
    once_text *made = once_json_string(value, texts->arena, &inner) ? new_text(texts) : NULL;
    if (!made) return ONCE_E_NOMEM;
    const once_json_options options = {.seed = texts->seed};
    made->in = in;
    made->token = value.token;
    made->status = once_json_parse(&made->json, inner, &options, &made->why);
    *out = made;
    return made->status == ONCE_E_NOMEM ? ONCE_E_NOMEM : ONCE_OK;
}

/* --- finding ------------------------------------------------------------------------------------------------------ */

/* The part of the path up to the text that its pointer `at` is taken from, for messages. */
static once_bytes text_named(const once_path *path, size_t at)
{
    size_t len = strlen(PREFIX) + at - 1;
    if (at == 1) return path->pointers[0].text;
    for (size_t i = 0; i < at; i++) len += path->pointers[i].text.len;
    assert(len < path->text.len && path->text.data[len] == ':');
    return (once_bytes){path->text.data, len};
}

/* Goes from the value into the document that is its text. */
static int enter(const once_path *path, size_t at, once_texts *texts, once_path_value *found, once_error *err)
{
    const once_bytes name = text_named(path, at);
    if (found->value.type != ONCE_JSON_STRING)
        return once_fail(err, ONCE_E_MESSAGE, "field '%.*s' is not a text, so there is no JSON in it for '%.*s'",
                         SHOWN(name), SHOWN(path->text));
    once_text *text;
    const int rc = open_text(texts, found->json, found->value, &text);
    if (rc != ONCE_OK) return once_no_memory(err, "for a message");
    if (text->status != ONCE_OK)
        return once_fail(err, ONCE_E_MESSAGE, "the text in field '%.*s' is not JSON, so it has no '%.*s': byte %zu: %s",
                         SHOWN(name), SHOWN(path->text), text->why.offset + 1, text->why.reason);
    found->json = &text->json;
    return ONCE_OK;
}

int once_path_find(const once_path *path, once_json *body, once_texts *texts, once_path_value *out, once_error *err)
{
    assert(path->n == 1 || (path->n > 1 && texts && texts->arena));
    *out = (once_path_value){.json = body};
    if (!body) return ONCE_OK;
    out->value = once_json_find(body, &path->pointers[0]);
    for (size_t i = 1; i < path->n && out->value.type != ONCE_JSON_ABSENT; i++) {
        if (out->value.type == ONCE_JSON_NULL) {
            out->value = (once_json_value){0};
            break;
        }
        const int rc = enter(path, i, texts, out, err);
        if (rc != ONCE_OK) return rc;
        out->value = once_json_find(out->json, &path->pointers[i]);
    }
    return ONCE_OK;
}
