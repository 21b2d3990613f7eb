/* Just enough XML for answers of the query protocol: elements, texts, the five entities, comments
 * and instructions. Declarations (DOCTYPE) and CDATA are refused. The whole document is checked: one that is cut off is
 * not well-formed. */
#include "aws/aws_impl.h"

#include <assert.h>

#include "base/ascii.h"
#include "base/buf.h"

#include "base/banned.h"

#define DEPTH_MAX 16
#define VALUE_MAX ((size_t)32 << 10)

typedef struct reader {
    const char *at, *end;
    once_bytes open[DEPTH_MAX];
    size_t depth;
    const char *text; /* where the content of the innermost element begins; NULL: it has elements inside */
} reader;

static bool is_name(char c)
{
    return once_ascii_is_letter(c) || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.' || c == ':';
}

static bool skip_to(reader *r, const char *mark)
{
    const char *found = memmem(r->at, (size_t)(r->end - r->at), mark, strlen(mark));
    if (found) r->at = found + strlen(mark);
    return found != NULL;
}

static bool begins(const reader *r, const char *mark)
{
    const size_t len = strlen(mark);
    return (size_t)(r->end - r->at) >= len && memcmp(r->at, mark, len) == 0;
}

static once_bytes read_name(reader *r)
{
    const char *begin = r->at;
    while (r->at < r->end && is_name(*r->at)) r->at++;
    return (once_bytes){begin, (size_t)(r->at - begin)};
}

/* To behind the '>' of a tag. `closed`: the element has no content. False: the tag does not end. */
static bool skip_attributes(reader *r, bool *closed)
{
    char quote = 0;
    for (; r->at < r->end; r->at++) {
        const char c = *r->at;
        if (quote) {
            if (c == quote) quote = 0;
        } else if (c == '"' || c == '\'') {
            quote = c;
        } else if (c == '>') {
            *closed = r->at[-1] == '/';
            r->at++;
            return true;
        } else if (c == '<') {
            return false;
        }
    }
    return false;
}

static bool put_entity(once_buf *out, once_bytes name)
{
    static const struct {
        const char *name, *text;
    } known[] = {{"amp", "&"}, {"lt", "<"}, {"gt", ">"}, {"quot", "\""}, {"apos", "'"}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (once_bytes_equal(name, once_bytes_of(known[i].name))) return once_buf_puts(out, known[i].text);
    return false;
}

/* Decodes a content. False: an entity that is not known, or memory is out. */
static bool decode(once_bytes raw, once_arena *arena, once_bytes *out)
{
    once_buf text;
    bool ok = true;
    once_buf_init(&text, VALUE_MAX);
    for (size_t i = 0; ok && i < raw.len; i++) {
        if (raw.data[i] != '&') {
            ok = once_buf_append(&text, raw.data + i, 1);
            continue;
        }
        const char *end = memchr(raw.data + i, ';', raw.len - i);
        ok = end && put_entity(&text, (once_bytes){raw.data + i + 1, (size_t)(end - raw.data) - i - 1});
        if (ok) i = (size_t)(end - raw.data);
    }
    ok = ok && once_arena_copy(arena, once_buf_bytes(&text), out);
    once_buf_release(&text);
    return ok;
}

/* Opens an element. `empty`: it is closed at once. */
static bool open_element(reader *r, bool *empty)
{
    r->at++;
    const once_bytes name = read_name(r);
    if (!name.len || r->depth == DEPTH_MAX || !skip_attributes(r, empty)) return false;
    if (!*empty) {
        r->open[r->depth++] = name;
        r->text = r->at;
    } else {
        r->text = NULL;
    }
    return true;
}

/* Closes the innermost element, and gives its content if it has no elements inside. */
static bool close_element(reader *r, once_bytes *name, once_bytes *content)
{
    const char *before = r->at;
    r->at += 2;
    *name = read_name(r);
    while (r->at < r->end && once_ascii_is_space(*r->at)) r->at++;
    if (r->at == r->end || *r->at != '>' || !r->depth || !once_bytes_equal(*name, r->open[r->depth - 1])) return false;
    r->at++;
    r->depth--;
    *content = r->text ? (once_bytes){r->text, (size_t)(before - r->text)} : (once_bytes){0};
    return true;
}

int once__aws_xml_find(once_bytes text, const char *around, const char *name, once_arena *arena, once_bytes *out)
{
    assert(around && name && arena && out);
    if (text.len == 0) return -1;
    reader r = {.at = text.data, .end = text.data + text.len};
    once_bytes closed, content;
    bool any = false, empty, found = false;
    while (r.at < r.end) {
        if (*r.at != '<') {
            if (!r.depth && !once_ascii_is_space(*r.at)) return -1; /* text outside of the document */
            r.at++;
        } else if (begins(&r, "<?")) {
            if (!skip_to(&r, "?>")) return -1;
        } else if (begins(&r, "<!--")) {
            r.text = NULL;
            if (!skip_to(&r, "-->")) return -1;
        } else if (begins(&r, "</")) {
            const bool leaf = r.text != NULL;
            if (!close_element(&r, &closed, &content)) return -1;
            r.text = NULL;
            if (found || !leaf || !r.depth || !once_bytes_equal(closed, once_bytes_of(name)) ||
                !once_bytes_equal(r.open[r.depth - 1], once_bytes_of(around)))
                continue;
            if (!decode(content, arena, out)) return -1;
            found = true;
        } else {
            if (any && !r.depth) return -1; /* a second document */
            any = true;
            if (!open_element(&r, &empty)) return -1;
        }
    }
    return !any || r.depth ? -1 : found;
}
