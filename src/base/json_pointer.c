/* Reading the tape: members, elements, iteration and JSON pointers (RFC 6901). */
#include "base/json_internal.h"
#include "base/no_memory.h"

#include "base/banned.h"

#define POINTER_MAX 65536

static const once_json_value ABSENT = {.type = ONCE_JSON_ABSENT, .raw = {"", 0}};

once_json_value once_json_root(const once_json *json) { return json->count ? once__json_at(json, 0) : ABSENT; }

once_json_iter once_json_each(const once_json *json, once_json_value in)
{
    once_json_iter it = {.key = ABSENT, .value = ABSENT, .json = json};
    if (in.type != ONCE_JSON_OBJECT && in.type != ONCE_JSON_ARRAY) return it;
    assert(in.token < json->count);
    it.object = in.type == ONCE_JSON_OBJECT;
    it.at = in.token + 1;
    it.end = json->tokens[in.token].next;
    return it;
}

bool once_json_next(once_json_iter *it)
{
    if (it->at >= it->end) return false;
    if (it->object) it->key = once__json_at(it->json, it->at++);
    it->value = once__json_at(it->json, it->at);
    it->at = it->json->tokens[it->at].next;
    return true;
}

/* The value's token, or 0: nothing contains the root. */
static uint32_t find_member(const once_json *json, uint32_t object, once_bytes name)
{
    const once_json_token *tokens = json->tokens;
    const char *text = json->text.data;
    const uint32_t end = tokens[object].next;
    for (uint32_t at = object + 1; at < end; at = tokens[at + 1].next) {
        if (UNLIKELY(tokens[at].escaped)) {
            if (once_json_string_is(once__json_at(json, at), name)) return at + 1;
        } else if (tokens[at].len == name.len && memcmp(text + tokens[at].offset, name.data, name.len) == 0) {
            return at + 1;
        }
    }
    return 0;
}

static uint32_t find_element(const once_json *json, uint32_t array, uint32_t index)
{
    const once_json_token *tokens = json->tokens;
    const uint32_t end = tokens[array].next;
    uint32_t at = array + 1;
    while (at < end && index > 0) at = tokens[at].next, index--;
    return at < end ? at : 0;
}

once_json_value once_json_member(const once_json *json, once_json_value in, once_bytes name)
{
    if (in.type != ONCE_JSON_OBJECT) return ABSENT;
    if (!name.len) name.data = "";
    const uint32_t at = find_member(json, in.token, name);
    return at ? once__json_at(json, at) : ABSENT;
}

once_json_value once_json_element(const once_json *json, once_json_value in, uint32_t index)
{
    if (in.type != ONCE_JSON_ARRAY) return ABSENT;
    const uint32_t at = find_element(json, in.token, index);
    return at ? once__json_at(json, at) : ABSENT;
}

once_json_value once_json_find(const once_json *json, const once_pointer *pointer)
{
    if (!json->count) return ABSENT;
    uint32_t at = 0;
    for (uint32_t i = 0; i < pointer->count; i++) {
        const once_pointer_step *step = &pointer->steps[i];
        const once_json_type type = (once_json_type)json->tokens[at].type;
        if (type == ONCE_JSON_OBJECT) at = find_member(json, at, step->name);
        else if (type == ONCE_JSON_ARRAY && step->index != UINT32_MAX) at = find_element(json, at, step->index);
        else at = 0;
        if (!at) return ABSENT;
    }
    return once__json_at(json, at);
}

/* 0, or digits without a leading zero; what does not fit finds nothing in any array that we can hold. */
static uint32_t read_index(once_bytes name)
{
    if (name.len == 0 || name.len > 9 || (name.data[0] == '0' && name.len > 1)) return UINT32_MAX;
    uint32_t index = 0;
    for (size_t i = 0; i < name.len; i++) {
        if (name.data[i] < '0' || name.data[i] > '9') return UINT32_MAX;
        index = index * 10 + (uint32_t)(name.data[i] - '0');
    }
    return index;
}

static int check_pointer(once_bytes text, uint32_t *count, once_error *err)
{
    *count = 0;
    if (text.len > POINTER_MAX)
        return once_fail(err, ONCE_E_USAGE, "JSON pointer is longer than %d bytes", POINTER_MAX);
    const int shown = text.len < 200 ? (int)text.len : 200;
    if (text.len && text.data[0] != '/') {
        return once_fail(err, ONCE_E_USAGE, "JSON pointer '%.*s' does not begin with '/'; write '/%.*s'", shown,
                         text.data, shown, text.data);
    }
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] == '/') ++*count;
        if (text.data[i] == '~' && (i + 1 == text.len || text.data[i + 1] < '0' || text.data[i + 1] > '3')) {
            return once_fail(err, ONCE_E_USAGE,
                             "JSON pointer '%.*s' has a '~' without 0, 1, 2 or 3 behind it; write '~0' for '~'", shown,
                             text.data);
        }
    }
    return ONCE_OK;
}

int once_pointer_parse(once_arena *arena, once_bytes text, once_pointer *out, once_error *err)
{
    uint32_t count;
    const int rc = check_pointer(text, &count, err);
    if (rc) return rc;
    once_bytes copy;
    char *names = once_arena_alloc(arena, text.len + 1); /* never longer than written */
    once_pointer_step *steps = once_arena_new(arena, once_pointer_step, count + 1);
    if (!names || !steps || !once_arena_copy(arena, text, &copy)) return once_no_memory(err, "for a pointer");

    const char *p = copy.data, *end = p + copy.len;
    for (uint32_t i = 0; i < count; i++) {
        assert(*p == '/');
        char *name = names;
        for (p++; p < end && *p != '/'; p++) {
            if (*p == '~') *names++ = "~/:}"[*++p - '0'];
            else *names++ = *p;
        }
        steps[i].name = (once_bytes){name, (size_t)(names - name)};
        steps[i].index = read_index(steps[i].name);
    }
    assert(p == end);
    *out = (once_pointer){.text = copy, .steps = steps, .count = count};
    return ONCE_OK;
}
